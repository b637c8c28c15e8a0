"""Finds the tables of a running `make dev` or of a stack in AWS."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError, NoCredentialsError, NoRegionError

from tally.counter import Counter
from tally.dev.base.words import DEV
from tally.dynamo.client import CLIENT_CONFIG, Store
from tally.dynamo.keys import FORMAT
from tally.errors import ConfigurationError
from tally.settings import MINUTE_DEFAULT_S, Settings, TeamTable, parse_team_tables
from tally.streams.dead_letters import DeadLetterBucket
from tally.team import scan_state

from .folder import folder
from .terminal import CommandError, note

LOCAL_TIMEOUT_S = 5
PORT_DEFAULT = 8080
LOCAL: dict[str, Any] = {"aws_access_key_id": "local", "aws_secret_access_key": "local", "region_name": "eu-west-1"}
_TABLES = {"counts": "CountsTableName", "receipts": "ReceiptsTableName", "ledger": "LedgerTableName"}
# Calls of CloudFormation, of S3 for each record, and for tables: waiting is better than failing.
PATIENT = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 3, "mode": "standard"})


@dataclass(frozen=True)
class Stack:
    """The tables of a stack, and the counters that the app declares."""

    store: Store
    objects: DeadLetterBucket | None
    """The bucket of dead letters; None without one."""
    counters: Mapping[str, Counter]
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Those of CloudFormation; of `make dev` those that the template spells out, and its address."""
    status: str = ""
    """CloudFormation's word for how the last deploy ended; empty for `make dev`."""

    def team_table(self, counter: Counter) -> TeamTable:
        """The team's table whose items a counter counts. Raises CommandError."""
        if counter.items is None:
            raise CommandError(f"{counter.name} counts no items of a table of your own")
        name = counter.items.table
        if name in self.store.settings.team_tables:
            return self.store.settings.team_tables[name]
        here = f"make it there, with a stream, and start {DEV} with TALLY_TABLES={name}"
        there = f"give it to the construct, tables={{{name!r}: …}}, and deploy"
        raise CommandError(f"the stack does not read the table {name}: {there if self.status else here}")

    def check_counted(self, counter: Counter) -> None:
        """Raise NotCountedError while the number of a counter of items does not count them."""
        if counter.items is not None:
            scan_state.as_of(self.store, counter)


def local_stack(given: int | None, counters: Mapping[str, Counter]) -> Stack:
    """The stack of `make dev` on this port; without one on PORT, as `make dev`. Raises CommandError if none answers."""
    port = given or os.environ.get("PORT") or PORT_DEFAULT
    url = f"http://localhost:{port}/dev/stack"
    os.environ["no_proxy"] = "*"  # this command asks this machine alone, and a proxy means another one by that name
    try:
        with urllib.request.urlopen(url, timeout=LOCAL_TIMEOUT_S) as answer:
            where = json.load(answer)
        client = boto3.client("dynamodb", config=CLIENT_CONFIG, endpoint_url=where["dynamodb"], **LOCAL)
        own = json.dumps(where.get("own_tables", {}))
        store = Store(client, _settings(where, where["bucket"], where["minute_s"], own))
        s3 = {"config": PATIENT.merge(Config(s3={"addressing_style": "path"})), "endpoint_url": where["s3"], **LOCAL}
        objects = DeadLetterBucket(where["bucket"], lambda: boto3.client("s3", **s3)) if where["bucket"] else None
        if (app := where.get("app")) and Path(app) != folder().resolve():  # two checkouts, and one of them has the port
            note(f"port {port} is the {DEV} of {app}")
        return Stack(store, objects, counters, dict(where["outputs"]))
    except urllib.error.HTTPError as error:
        raise CommandError(f"{url} answered {error.code}: is that {DEV}?") from None
    except OSError:
        raise CommandError(f"nothing answers on port {port}: is {DEV} running? --port names another") from None
    except (ValueError, KeyError, TypeError, AttributeError, ConfigurationError, http.client.HTTPException):
        raise CommandError(f"{url} did not say where its tables are: is that {DEV}?") from None


def deployed_stack(stack: str, counters: Mapping[str, Counter]) -> Stack:
    """A stack in the account and region of the credentials. Raises CommandError if it cannot be read.

    `stack` may name a Tally in a stack that has two: `Shop/Polls`.
    """
    try:
        name, _, place = ("", "", "") if stack.startswith("arn:") else stack.partition("/")
        if not boto3.Session().region_name:  # also an empty variable, of which botocore makes an address
            raise NoRegionError
        answer: Any = boto3.client("cloudformation", config=PATIENT).describe_stacks(StackName=name or stack)
        [described] = answer["Stacks"]
        named = {output["OutputKey"]: output["OutputValue"] for output in described.get("Outputs", [])}
        outputs = _outputs_of_tally(stack, place.replace("/", ""), named)
        tables = {table: outputs[name] for table, name in _TABLES.items()}
        check_format(stack, outputs["Format"], str(FORMAT))
        bucket = outputs.get("DeadLetterBucketName", "")
        settings = _settings(tables, bucket, MINUTE_DEFAULT_S, outputs.get("TeamTables", "{}"))
        store = Store(boto3.client("dynamodb", config=CLIENT_CONFIG), settings)
        return Stack(
            store, DeadLetterBucket(bucket) if bucket else None, counters, outputs, described.get("StackStatus", "")
        )
    except KeyError as missing:
        raise CommandError(f"the stack {stack} has no output {missing}: is it Tally's?") from None
    except NoCredentialsError:
        raise CommandError(f"there are no AWS credentials: sign in (aws sso login) or use --local for {DEV}") from None
    except NoRegionError:
        raise CommandError(f"there is no AWS region: set AWS_DEFAULT_REGION, or use --local for {DEV}") from None
    except ClientError as error:
        raise CommandError(
            f"the stack {stack} cannot be read: {error.response['Error'].get('Message', error)}"
        ) from None


def _outputs_of_tally(stack: str, id_: str, outputs: Mapping[str, str]) -> dict[str, str]:
    """The outputs of one Tally, by their names in a stack of its own. A construct puts its id before each.

    `id_`: the construct's; empty for the only one. Raises CommandError if there are several.
    """
    output = next(iter(_TABLES.values()))
    ids = [name.removesuffix(output) for name in outputs if name.endswith(output)]
    if not id_ and len(ids) > 1:
        named = " or ".join(f"{stack}/{place}" for place in sorted(ids) if place)
        raise CommandError(f"the stack {stack} has {len(ids)} Tallys: give --stack {named}")
    id_ = id_ or "".join(ids)
    return {name.removeprefix(id_): value for name, value in outputs.items() if name.startswith(id_)}


def store_of_tables(names: Mapping[str, str], region: str, client: Any = None) -> Store:
    """Tables of a region that no stack has. `names`: of counts, receipts and ledger."""
    client = client or boto3.client("dynamodb", config=CLIENT_CONFIG, region_name=region)
    return Store(client, _settings(names, "", MINUTE_DEFAULT_S))


def check_format(stack: str, stored: str, read: str) -> None:
    """Raise CommandError if a stack stores its data in another format than the one that this checkout reads."""
    if stored != read:
        raise CommandError(
            f"the stack {stack} is in format {stored}, and this is format {read}: use the version it runs"
        )


def _settings(tables: Mapping[str, str], bucket: str, minute_s: int, own: str = "{}") -> Settings:
    return Settings(
        counts_table=tables["counts"],
        receipts_table=tables["receipts"],
        ledger_table=tables["ledger"],
        page_hosts=frozenset(),
        receipt_ttl_s=0,
        version="command",
        minute_s=int(minute_s),
        dead_letter_bucket=bucket,
        team_tables=parse_team_tables(own),
    )
