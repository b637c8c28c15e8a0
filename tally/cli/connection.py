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
_TABLE_OUTPUTS = {"counts": "CountsTableName", "receipts": "ReceiptsTableName", "ledger": "LedgerTableName"}
# For CloudFormation, S3 and the management of tables, where a user prefers a wait to a failure.
PATIENT = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 3, "mode": "standard"})


@dataclass(frozen=True)
class Stack:
    """The tables of a stack, and the counters that the app declares."""

    store: Store
    objects: DeadLetterBucket | None
    """The bucket of dead letters; None: the stack has no bucket."""
    counters: Mapping[str, Counter]
    outputs: Mapping[str, str] = field(default_factory=dict)
    """The outputs of CloudFormation; for `make dev` the outputs whose values are known without AWS, and the address."""
    status: str = ""
    """CloudFormation's status of the stack after the last deploy; empty for `make dev`."""

    def team_table(self, counter: Counter) -> TeamTable:
        """Returns the team table whose items a counter counts. Raises CommandError."""
        if counter.items is None:
            raise CommandError(f"{counter.name} does not count items of your tables")
        name = counter.items.table
        if name in self.store.settings.team_tables:
            return self.store.settings.team_tables[name]
        here = f"create it with a stream, and start {DEV} with TALLY_TABLES={name}"
        in_aws = f"pass it to the construct, tables={{{name!r}: …}}, and deploy"
        raise CommandError(f"the stack does not read the table {name}: {in_aws if self.status else here}")

    def check_counted(self, counter: Counter) -> None:
        """Raises NotCountedError if the counter counts items, and no scan has counted them."""
        if counter.items is not None:
            scan_state.as_of(self.store, counter)


def local_stack(port_option: int | None, counters: Mapping[str, Counter]) -> Stack:
    """Returns the stack of `make dev`. `port_option`: --port; without it, PORT or the default. Raises CommandError."""
    port = port_option or os.environ.get("PORT") or PORT_DEFAULT
    url = f"http://localhost:{port}/dev/stack"
    os.environ["no_proxy"] = "*"  # through a proxy, `localhost` is another machine
    try:
        with urllib.request.urlopen(url, timeout=LOCAL_TIMEOUT_S) as answer:
            stack = json.load(answer)
        client = boto3.client("dynamodb", config=CLIENT_CONFIG, endpoint_url=stack["dynamodb"], **LOCAL)
        team_tables = json.dumps(stack.get("team_tables", {}))
        store = Store(client, _settings(stack, stack["bucket"], stack["minute_s"], team_tables))
        s3 = {"config": PATIENT.merge(Config(s3={"addressing_style": "path"})), "endpoint_url": stack["s3"], **LOCAL}
        objects = DeadLetterBucket(stack["bucket"], lambda: boto3.client("s3", **s3)) if stack["bucket"] else None
        if (app := stack.get("app")) and Path(app) != folder().resolve():  # another checkout has the port
            note(f"port {port} is the {DEV} of {app}")
        return Stack(store, objects, counters, dict(stack["outputs"]))
    except urllib.error.HTTPError as error:
        raise CommandError(f"{url} answered {error.code}. Check that {DEV} has the port, or give --port") from None
    except OSError:
        raise CommandError(f"nothing answers on port {port}. Start {DEV}, or give its --port") from None
    except (ValueError, KeyError, TypeError, AttributeError, ConfigurationError, http.client.HTTPException):
        hint = f"Check that {DEV} has the port, or give --port"
        raise CommandError(f"{url} did not answer as {DEV} does. {hint}") from None


def deployed_stack(stack: str, counters: Mapping[str, Counter]) -> Stack:
    """Returns the stack of this name. `Shop/Polls`: the Tally `Polls` of the stack `Shop`. Raises CommandError."""
    try:
        name, _, construct = ("", "", "") if stack.startswith("arn:") else stack.partition("/")  # ARNs have a slash
        if not boto3.Session().region_name:  # botocore would put the empty region into an address
            raise NoRegionError
        answer: Any = boto3.client("cloudformation", config=PATIENT).describe_stacks(StackName=name or stack)
        [described] = answer["Stacks"]
        values = {output["OutputKey"]: output["OutputValue"] for output in described.get("Outputs", [])}
        suffix = next(iter(_TABLE_OUTPUTS.values()))  # each Tally has this output, with its construct's id as prefix
        prefixes = [output.removesuffix(suffix) for output in values if output.endswith(suffix)]
        prefix = construct.replace("/", "")
        if not prefix and len(prefixes) > 1:
            choices = " or ".join(f"{stack}/{one}" for one in sorted(prefixes) if one)
            raise CommandError(f"the stack {stack} has {len(prefixes)} Tallys: give --stack {choices}")
        prefix = prefix or "".join(prefixes)
        outputs = {output.removeprefix(prefix): value for output, value in values.items() if output.startswith(prefix)}
        tables = {table: outputs[name] for table, name in _TABLE_OUTPUTS.items()}
        check_format(stack, outputs["StorageFormat"], str(FORMAT))
        bucket = outputs.get("DeadLetterBucketName", "")
        settings = _settings(tables, bucket, MINUTE_DEFAULT_S, outputs.get("TeamTables", "{}"))
        store = Store(boto3.client("dynamodb", config=CLIENT_CONFIG), settings)
        objects = DeadLetterBucket(bucket) if bucket else None
        return Stack(store, objects, counters, outputs, described.get("StackStatus", ""))
    except KeyError as missing:
        raise CommandError(f"the stack {stack} has no output {missing}. Give the name of a stack with Tally") from None
    except NoCredentialsError:
        raise CommandError(f"there are no AWS credentials: sign in (aws sso login), or use --local for {DEV}") from None
    except NoRegionError:
        raise CommandError(f"there is no AWS region: set AWS_DEFAULT_REGION, or use --local for {DEV}") from None
    except ClientError as error:
        why = error.response["Error"].get("Message", error)
        raise CommandError(f"the stack {stack} cannot be read: {why}") from None


def store_of_tables(names: Mapping[str, str], region: str, client: Any = None) -> Store:
    """Returns the store of tables that perhaps no stack has. `names`: the names of counts, receipts and ledger."""
    client = client or boto3.client("dynamodb", config=CLIENT_CONFIG, region_name=region)
    return Store(client, _settings(names, "", MINUTE_DEFAULT_S))


def check_format(stack: str, stored: str, read: str) -> None:
    """If a stack stores its data in a format that this version does not read, raises CommandError."""
    if stored != read:
        formats = f"the stack {stack} has format {stored}, and this version reads format {read}"
        raise CommandError(f"{formats}. Use the version of the stack")


def _settings(tables: Mapping[str, str], bucket: str, minute_s: int, team_tables: str = "{}") -> Settings:
    return Settings(
        counts_table=tables["counts"],
        receipts_table=tables["receipts"],
        ledger_table=tables["ledger"],
        page_hosts=frozenset(),
        receipt_ttl_s=0,  # not used, because an import says for how long its receipts live
        version="command",
        minute_s=int(minute_s),
        dead_letter_bucket=bucket,
        team_tables=parse_team_tables(team_tables),
    )
