"""The setup of a soak: an engine on a file with the three tables, and the environment of the processes that use it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

import counters
from tally.counter import Counter
from tally.dev.base.engine import Engine
from tally.dev.base.engine_file import index_stream_records
from tally.dev.stack.zygote import die_with_parent
from tally.dynamo.client import CLIENT_CONFIG, Store, dynamodb_client
from tally.settings import Settings
from tests.patience import PATIENCE_S
from tests.sync_wire import SyncWire

from ..clients import LOCAL, STREAMED, create_tables

ENGINE = "engine.db"
LOG_LINES_SHOWN = 20
CLICKS = Counter("clicks", prefix="AD", sort_key="CLICKS", attribute="clicks", period="minute", keep_periods=5000)
"""The soak's own counter, whose periods begin and end while the soak runs, and are kept until the soak ends."""
_PATIENT = CLIENT_CONFIG.merge(Config(connect_timeout=PATIENCE_S, read_timeout=PATIENCE_S))


@dataclass(frozen=True)
class SoakSetup:
    """The folder, the seed, the endpoints, and the length of a minute of the ledger (`minute_s`) of a soak.

    `engine_endpoint`: the engine, without faults. `faulty_endpoint`: the proxy that makes requests fail, and drops
    DynamoDB's tokens. `faulty_endpoint_with_tokens`: the proxy that makes requests fail, and keeps the tokens.
    """

    folder: Path
    seed: int
    minute_s: int
    engine_endpoint: str
    faulty_endpoint: str = ""
    faulty_endpoint_with_tokens: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a deployed function, with the proxy as DynamoDB."""
        arns = {table: self.folder / f"{table}.arn" for table in STREAMED}
        streams = {
            f"TALLY_{table.upper()}_STREAM": path.read_text() if path.exists() else "" for table, path in arns.items()
        }
        return streams | {
            "AWS_ACCESS_KEY_ID": LOCAL["aws_access_key_id"],
            "AWS_SECRET_ACCESS_KEY": LOCAL["aws_secret_access_key"],
            "AWS_DEFAULT_REGION": LOCAL["region_name"],
            "AWS_ENDPOINT_URL_DYNAMODB": self.faulty_endpoint,
            "AWS_ENDPOINT_URL_DYNAMODB_STREAMS": self.faulty_endpoint,
            "TALLY_COUNTS_TABLE": "soak-counts",
            "TALLY_RECEIPTS_TABLE": "soak-receipts",
            "TALLY_LEDGER_TABLE": "soak-ledger",
            "TALLY_MINUTE_S": str(self.minute_s),
            "TALLY_DEAD_LETTER_BUCKET": "soak-dead-letter",
            "TALLY_PAGE_HOSTS": "*",
        }

    @property
    def settings(self) -> Settings:
        """The settings of the functions."""
        return Settings.from_environment(self.environment)

    def store(self, endpoint: str) -> Store:
        """Returns a store that uses this proxy, and gives up after the product's timeouts."""
        return Store(dynamodb_client(endpoint_url=endpoint), self.settings)

    def faultless_store(self) -> Store:
        """Returns a store that uses the engine without faults, and waits if a busy machine stalls the engine."""
        client = boto3.client("dynamodb", endpoint_url=self.engine_endpoint, config=_PATIENT)
        return Store(client, self.settings)

    def end_of_log(self, name: str) -> str:
        """Returns the last lines of a process's log. Without --keep the log is deleted when the soak ends."""
        return "\n".join((self.folder / f"{name}.log").read_text().splitlines()[-LOG_LINES_SHOWN:])

    def wire(self) -> SyncWire:
        """Returns a direct connection to the engine, without proxy and boto3."""
        return SyncWire(urlsplit(self.engine_endpoint).port or 0)

    def scan(self, table: str) -> Iterator[dict[str, Any]]:
        """Yields every item of a table (`counts`, `receipts`, `ledger`)."""
        start: dict[str, Any] = {}
        with closing(self.wire()) as wire:
            while True:
                page = wire.scan(TableName=f"soak-{table}", ConsistentRead=True, **start)
                yield from page["Items"]
                if "LastEvaluatedKey" not in page:
                    return
                start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}


@contextmanager
def run_engine(folder: Path) -> Iterator[Engine]:
    """Runs the engine on the file of a soak. Until the soak sets its own environment, a minute has 1 s."""
    with Engine(folder / ENGINE) as engine:
        _set_environment(SoakSetup(folder, seed=0, minute_s=1, engine_endpoint=engine.endpoint))
        yield engine


def create_soak_tables(folder: Path, engine: Engine) -> None:
    """Create the tables with their streams, and write the streams' ARNs into the folder."""
    client = boto3.client("dynamodb", endpoint_url=engine.endpoint, **LOCAL)
    create_tables(client, SoakSetup(folder, seed=0, minute_s=1, engine_endpoint=engine.endpoint).settings, STREAMED)
    for table in STREAMED:
        arn = client.describe_table(TableName=f"soak-{table}")["Table"]["LatestStreamArn"]
        (folder / f"{table}.arn").write_text(arn)
    index_stream_records(folder / ENGINE)


def _set_environment(setup: SoakSetup) -> None:
    """Set the environment and the counters that the handlers read."""
    os.environ.update(setup.environment)
    counters.COUNTERS[CLICKS.name] = CLICKS


def set_up_process(setup: SoakSetup, name: str) -> None:
    """Set up a process of the soak: its environment, its log, and no Ctrl-C, which the main process handles."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _set_environment(setup)
    log = os.open(setup.folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.stdout.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
