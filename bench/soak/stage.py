"""What a soak runs on: an engine on a file with the three tables, and the processes that use it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3

from dev.base.engine import Engine, die_with_parent
from dev.base.engine_file import index_stream_records
from dev.base.wire import NO_ANSWER, Wire, WireError
from tally.dynamo.client import Store, dynamodb_client
from tally.settings import Settings

REGION = "eu-west-1"
SCAN_TRIES = 30  # a call without an answer takes ten seconds
STREAMED = ("counts", "receipts")
_IMAGES = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
_KEYS = {"counts": ("PK", "SK"), "receipts": ("id",), "ledger": ("PK", "SK")}


@dataclass(frozen=True)
class Stage:
    """Where everything is. `engine`: the engine's own endpoint. `weather`: that of the proxy which fails; `tokens`: of
    the one that fails, but leaves DynamoDB's tokens in the requests."""

    folder: Path
    seed: int
    minute_s: int
    engine: str
    weather: str = ""
    tokens: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a deployed function, with the proxy as DynamoDB."""
        return {
            "AWS_ACCESS_KEY_ID": "local",
            "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL_DYNAMODB": self.weather,
            "AWS_ENDPOINT_URL_DYNAMODB_STREAMS": self.weather,
            "TALLY_COUNTS_TABLE": "soak-counts",
            "TALLY_RECEIPTS_TABLE": "soak-receipts",
            "TALLY_LEDGER_TABLE": "soak-ledger",
            "TALLY_COUNTS_STREAM": _arn(self.folder, "counts"),
            "TALLY_RECEIPTS_STREAM": _arn(self.folder, "receipts"),
            "TALLY_MINUTE_S": str(self.minute_s),
            "TALLY_DEAD_LETTER_BUCKET": "soak-dead-letter",
            "TALLY_PAGE_HOSTS": "*",
        }

    @property
    def settings(self) -> Settings:
        """The settings of the functions."""
        return Settings.from_environment(self.environment)

    def stream(self, table: str) -> str:
        """The ARN of the stream of `counts` or `receipts`."""
        return {"counts": self.settings.counts_stream, "receipts": self.settings.receipts_stream}[table]

    def store(self, endpoint: str | None = None) -> Store:
        """A store behind this endpoint; straight at the engine without one."""
        return Store(dynamodb_client(endpoint_url=endpoint or self.engine), self.settings)


def _arn(folder: Path, table: str) -> str:
    path = folder / f"{table}.arn"
    return path.read_text() if path.exists() else ""


def create_tables(folder: Path, engine: Engine) -> None:
    """Create the tables with their streams, and note the streams' names in the folder."""
    client: Any = boto3.client("dynamodb", endpoint_url=engine.endpoint, region_name=REGION)
    for table, names in _KEYS.items():
        kinds = zip(names, ("HASH", "RANGE"), strict=False)
        client.create_table(
            TableName=f"soak-{table}",
            KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in kinds],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in names],
            BillingMode="PAY_PER_REQUEST",
            **({"StreamSpecification": _IMAGES} if table in STREAMED else {}),
        )
        if table in STREAMED:
            found = client.describe_table(TableName=f"soak-{table}")["Table"]
            (folder / f"{table}.arn").write_text(found["LatestStreamArn"])
    assert engine.db_path
    index_stream_records(engine.db_path)


class Raw:
    """Calls the engine without a client: records and items as they are on the wire. One for each thread."""

    def __init__(self, endpoint: str) -> None:
        self._runner = asyncio.Runner()
        self._wire = self._runner.run(_wire(endpoint))

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """One call of `dynamodb` or `streams`. Raises WireError."""
        return self._runner.run(self._wire.call(service, operation, **arguments))

    def shard(self, stream: str) -> str:
        """The one shard of a stream."""
        described = self.call("streams", "DescribeStream", StreamArn=stream)["StreamDescription"]
        return str(described["Shards"][0]["ShardId"])

    def scan(self, table: str) -> Iterator[dict[str, Any]]:
        """Every item of a table (`counts`, `receipts`, `ledger`)."""
        start: dict[str, Any] = {}
        while True:
            page = self._page(TableName=f"soak-{table}", ConsistentRead=True, **start)
            yield from page["Items"]
            if "LastEvaluatedKey" not in page:
                return
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def _page(self, **asked: Any) -> dict[str, Any]:
        """One page of a Scan. The engine of a long run on a busy machine may be late: ask again."""
        for _ in range(SCAN_TRIES - 1):
            try:
                return self.call("dynamodb", "Scan", **asked)
            except WireError as error:
                if error.kind != NO_ANSWER:
                    raise
        return self.call("dynamodb", "Scan", **asked)

    def close(self) -> None:
        """Close the connection."""
        self._runner.run(self._wire.__aexit__())
        self._runner.close()


async def _wire(endpoint: str) -> Wire:
    return Wire(endpoint, endpoint)


def become(stage: Stage, name: str) -> None:
    """Make this process one of the stage: its environment, its log, and no Ctrl-C, which the main process handles."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(stage.environment)
    log = os.open(stage.folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.stdout.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
