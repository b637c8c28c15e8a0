"""`tally restore`: all three tables as they were at one moment, beside the live ones, ready for a stack to adopt.

It changes nothing that is live. It restores each table to the same second under a new name, puts the tallies right
while nobody writes to these tables, and gives the tables the settings that a restore leaves out: stream, TTL, backups,
protection, tags. Each step looks whether it is done: after Ctrl-C the same command continues.
"""

from __future__ import annotations

import argparse
import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import boto3
from botocore.exceptions import ClientError

from tally.drift import restored
from tally.drift.looks import moment
from tally.drift.reconcile import NotProvenError
from tally.dynamo.client import Store
from tally.settings import Settings

from . import values
from .command import Command, Counters, Parser
from .connection import PATIENT, Stack
from .terminal import CommandError, bar, note, say

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

LOOK_S = 10.0  # between two looks at tables that are being made: a restore takes from minutes to hours
LOOKS_MAX = 48 * 360  # two days
_SUFFIX = re.compile(r"(-[0-9]{8}T[0-9]{6})?-counts$")
_STAGE = re.compile(r"Tally-(.+)")


def _arguments(made: Parser, counters: Counters) -> None:
    made.add_argument("--to", metavar="TIME", type=values.second, required=True, help="like 2026-11-22T10:30:00Z")
    made.add_argument("--without-dead-letters", action="store_true", help="give up the dead letters at that moment")


def _restore(given: argparse.Namespace, stack: Stack) -> int:
    """Make the tables, put them right, and print what adopts them. Returns 0."""
    if given.local:
        raise CommandError("`make dev` has no backups to restore: name a stack in AWS with --stack")
    client = boto3.client("dynamodb", config=PATIENT)
    try:
        prefix = _restored(client, given, stack)
    except ClientError as error:
        raise CommandError(f"AWS refuses it: {error.response['Error'].get('Message', error)}") from None
    _say_what_adopts_them(given.stack, prefix)
    return 0


def _restored(client: DynamoDBClient, given: argparse.Namespace, stack: Stack) -> str:
    """Make the tables and put them right; how their names begin."""
    old, when = stack.store.settings, datetime.fromtimestamp(given.to, UTC)
    prefix = f"{_SUFFIX.sub('', old.counts_table)}-{when:%Y%m%dT%H%M%S}"
    names = {f"{table}_table": f"{prefix}-{table}" for table in ("counts", "receipts", "ledger")}
    new = old._replace(**names)  # type: ignore[arg-type]
    tables = dict(zip(_tables(old), _tables(new), strict=True))
    missing = [source for source, target in tables.items() if not _made_before(client, source, target, given.to)]
    for source in missing:
        _check_moment(client, source, given.to)
    for source in missing:
        client.restore_table_to_point_in_time(
            SourceTableName=source, TargetTableName=tables[source], RestoreDateTime=when
        )
    _wait(client, list(tables.values()))
    _settle(given, stack, replace(stack.store, settings=new))
    for source, target in tables.items():
        _set(client, source, target)
        say(f"ready    {target}")
    return prefix


def _tables(settings: Settings) -> tuple[str, str, str]:
    return settings.counts_table, settings.receipts_table, settings.ledger_table


def _described(client: DynamoDBClient, name: str) -> dict[str, Any] | None:
    try:
        return dict(client.describe_table(TableName=name)["Table"])
    except client.exceptions.ResourceNotFoundException:
        return None


def _made_before(client: DynamoDBClient, source: str, target: str, to_s: int) -> bool:
    """Whether this command has begun to make a table. Raises CommandError for another table of that name."""
    table = _described(client, target)
    if table is None:
        return False
    summary = table.get("RestoreSummary", {})
    same = str(summary.get("SourceTableArn", "")).endswith(f":table/{source}")
    if not same or int(summary["RestoreDateTime"].timestamp()) != to_s:
        raise CommandError(f"there is a table {target} that this command has not made: choose another second")
    return True


def _check_moment(client: DynamoDBClient, source: str, to_s: int) -> None:
    """Raise CommandError for a moment that the backups do not reach."""
    backups: Any = client.describe_continuous_backups(TableName=source)["ContinuousBackupsDescription"]
    reach = backups.get("PointInTimeRecoveryDescription", {})
    if reach.get("PointInTimeRecoveryStatus") != "ENABLED":
        raise CommandError(f"{source} has no point-in-time recovery")
    first, last = (int(reach[f"{end}RestorableDateTime"].timestamp()) for end in ("Earliest", "Latest"))
    if not first <= to_s <= last:
        raise CommandError(f"{source} can be restored to any second from {moment(first)} to {moment(last)}")


def _wait(client: DynamoDBClient, names: list[str]) -> None:
    """Wait until every table is there, with a bar on a terminal. Ctrl-C stops the wait and nothing else."""
    with bar(None, "table", "restored", len(names)) as shown:
        for look in range(LOOKS_MAX):
            found = [_described(client, name) for name in names]
            made = sum(table is not None and table["TableStatus"] == "ACTIVE" for table in found)
            shown.update(made - shown.n)
            shown.refresh()
            if made == len(names):
                return
            if not look:
                note(
                    "DynamoDB makes the tables: minutes to hours. Ctrl-C stops the wait; the same command continues it"
                )
            time.sleep(LOOK_S)
    raise CommandError("the tables are still not there: run the same command again")


def _settle(given: argparse.Namespace, stack: Stack, new: Store) -> None:
    """Put the restored tables right, if they are at rest. Those with a stream have been put right."""
    names = (new.settings.counts_table, new.settings.receipts_table)
    if any((_described(new.client, name) or {}).get("StreamSpecification", {}).get("StreamEnabled") for name in names):
        return
    why = restored.Why(given.by, given.why)
    try:
        with bar(None, "item", "put right") as scanned:
            how: dict[str, Any] = {"without_dead_letters": given.without_dead_letters, "tell": scanned.update}
            for one in restored.settle(new, stack.counters, why, given.to, time.time(), **how):
                after = one.tally + one.difference
                say(f"put right {one.name}: {one.difference:+d} ({one.tally} to {after}), by {one.how}")
    except NotProvenError as error:
        raise CommandError(f"{error.detail} Choose another second, or give them up: --without-dead-letters") from None


def _set(client: DynamoDBClient, source: str, target: str) -> None:
    """Give a restored table the settings of its source that a restore leaves out. The stream comes last."""
    was, table = _described(client, source) or {}, _described(client, target) or {}
    ttl: Any = client.describe_time_to_live(TableName=source)["TimeToLiveDescription"]
    has: Any = client.describe_time_to_live(TableName=target)["TimeToLiveDescription"]
    if ttl["TimeToLiveStatus"] == "ENABLED" and has.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
        there = {"Enabled": True, "AttributeName": ttl["AttributeName"]}
        client.update_time_to_live(TableName=target, TimeToLiveSpecification=there)  # type: ignore[arg-type]
    client.update_continuous_backups(
        TableName=target, PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
    )
    pages = client.get_paginator("list_tags_of_resource").paginate(ResourceArn=was["TableArn"])
    tags = [tag for page in pages for tag in page["Tags"] if not tag["Key"].startswith("aws:")]
    if tags:
        client.tag_resource(ResourceArn=table["TableArn"], Tags=tags)
    if was.get("DeletionProtectionEnabled") and not table.get("DeletionProtectionEnabled"):
        client.update_table(TableName=target, DeletionProtectionEnabled=True)
        _wait(client, [target])
    stream = was.get("StreamSpecification", {})
    if stream.get("StreamEnabled") and not table.get("StreamSpecification", {}).get("StreamEnabled"):
        client.update_table(TableName=target, StreamSpecification=stream)
        _wait(client, [target])


def _say_what_adopts_them(stack: str, prefix: str) -> None:
    stage = _STAGE.fullmatch(stack)
    if stage and prefix.startswith(f"{stack}-"):
        say(f'adopt    make deploy ARGS="-c stage={stage[1]} -c tables={prefix} --import-existing-resources"')
        say(f'then     write "tables": "{prefix}" into the context of cdk.json: every later deploy needs it')


RESTORE = Command(
    "restore", "make new tables from the backups of a moment, ready to be adopted", _restore, _arguments, signed="",
    examples='  tally restore --to 2026-11-22T10:30:00Z --by ann --why "INC-9" --stack Tally-prod\n',
)  # fmt: skip
