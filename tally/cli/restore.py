"""`tally restore`: restores `counts`, `receipts` and `ledger` to one time, as new tables that a stack can adopt.

It does not change the live tables. It restores each table to the same second under a new name, and repairs the numbers
while nothing writes to the new tables. Then it sets what a restore leaves out: stream, TTL, backups, protection, tags.
Before each part the command checks whether the part is done, so after Ctrl-C the same command continues.

With `--from-vault` it makes the tables from copies in a vault of AWS Backup, also if the stack does not exist any more.
Each copy has a time of its own, so the three tables are of different moments.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import boto3

from tally.dev.base.words import DEV
from tally.drift.checks import format_time
from tally.dynamo import clock
from tally.dynamo.client import Store
from tally.maintenance import restored
from tally.maintenance.reconcile import RepairNotReadyError
from tally.settings import Settings
from tally.streams import fingerprints

from . import connection, values
from .command import Command, Counters, Parser, UsageError
from .connection import PATIENT, Stack
from .terminal import CommandError, note, progress_bar, say
from .vault import TABLES, Vault

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

POLL_S = 10.0  # between two checks of the new tables: a restore takes minutes to hours
POLLS_MAX = 48 * 360  # two days
_COUNTS_TABLE_SUFFIX = re.compile(r"(-[0-9]{8}T[0-9]{6})?-counts$")  # with the time if a restore made the table
_WHAT_MAY_BE_WRONG = "docs/restore.md#what-may-be-wrong"
_STAGE_PREFIX = re.compile(r"Tally-([a-z][a-z0-9-]*)-[0-9]{8}T[0-9]{6}")  # new tables of a stage, not of a construct


class TableSettings(NamedTuple):
    """The settings that a restore of a table leaves out."""

    ttl_attribute: str
    """Empty if no item expires."""
    stream: dict[str, Any]
    """DynamoDB's StreamSpecification; empty if the table has no stream."""
    is_protected: bool
    tags: list[Any]


_IMAGES = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
TEMPLATE_SETTINGS = {
    "counts": TableSettings("expiration", _IMAGES, True, []),
    "receipts": TableSettings("expiration", _IMAGES, True, []),
    "ledger": TableSettings("expiration", {}, True, []),
}
"""The settings of tally/cdk/tables.py. A restore from a vault uses these, because the live tables may be lost."""


def _add_arguments(parser: Parser, counters: Counters) -> None:
    to = "the time to restore, like 2026-11-22T10:30:00Z"
    parser.add_argument("--to", metavar="TIME", type=values.epoch_seconds, required=True, help=to)
    dead_letters = "if there are dead letters at that time, delete them and go on"
    parser.add_argument("--without-dead-letters", action="store_true", help=dead_letters)
    vault = "restore the newest copies up to that time in this vault (AWS Backup)"
    parser.add_argument("--from-vault", metavar="ARN", type=values.vault_arn, help=vault)


def _check_options(args: argparse.Namespace) -> None:
    if args.from_vault and args.local:
        raise UsageError(f"--from-vault does not go with --local: {DEV} has no vault")


def restore(args: argparse.Namespace, stack: Stack | None = None) -> int:
    """Makes and repairs the tables, and prints how a stage of a checkout adopts them. `stack`: None if from a vault."""
    if args.local:
        raise CommandError(f"{DEV} has no backups to restore: name a stack in AWS with --stack")
    if stack is None:
        prefix = _restore_from_vault(args, Vault(args.from_vault))
    else:
        prefix = _restore_from_backups(boto3.client("dynamodb", config=PATIENT), args, stack)
    if stage := _STAGE_PREFIX.fullmatch(prefix):
        say(f'adopt    make deploy ARGS="-c stage={stage[1]} -c tables={prefix} --import-existing-resources"')
        say(f'then     write "tables": "{prefix}" into the context of cdk.json: every later deploy needs it')
    return 0


def _restore_from_backups(client: DynamoDBClient, args: argparse.Namespace, stack: Stack) -> str:
    """Makes the tables from backups, repairs the numbers, and returns the prefix of the new names."""
    live_settings, when = stack.store.settings, datetime.fromtimestamp(args.to, UTC)
    prefix = f"{_COUNTS_TABLE_SUFFIX.sub('', live_settings.counts_table)}-{when:%Y%m%dT%H%M%S}"
    new_settings = live_settings._replace(**{f"{table}_table": f"{prefix}-{table}" for table in TABLES})  # type: ignore[arg-type]
    tables = dict(zip(_table_names(live_settings), _table_names(new_settings), strict=True))
    missing = [source for source, target in tables.items() if not _is_restoring(client, source, target, args.to)]
    for source in missing:  # all of them before the first restore begins
        _check_moment(client, source, args.to)
    for source in missing:
        target = tables[source]
        client.restore_table_to_point_in_time(SourceTableName=source, TargetTableName=target, RestoreDateTime=when)
    _wait_until_active(client, list(tables.values()))
    _repair_tallies(args, stack.counters, replace(stack.store, settings=new_settings), args.to)
    for source, target in tables.items():
        _apply_settings(client, target, _settings_of(client, source))
        say(f"ready    {target}")
    return prefix


def _restore_from_vault(args: argparse.Namespace, vault: Vault) -> str:
    """Makes the tables from a vault, repairs the numbers, and returns the prefix of the new names."""
    base, copies = vault.copies(args.stack, args.to)
    to_s = max(int(copy.made_s) for copy in copies.values())  # of the newest copy
    prefix = f"{base}-{datetime.fromtimestamp(to_s, UTC):%Y%m%dT%H%M%S}"
    client = boto3.client("dynamodb", config=PATIENT, region_name=vault.region)
    names = {table: f"{prefix}-{table}" for table in TABLES}
    exists = {table: _describe_table(client, name) is not None for table, name in names.items()}
    for table, copy in copies.items():
        say(f"copy     {table}: {format_time(int(copy.made_s))}")
    jobs = [vault.begin_restore(copies[table], name, exists=exists[table]) for table, name in names.items()]
    _wait_until_active(client, list(names.values()), lambda: vault.check(jobs))
    store = connection.store_of_tables(names, vault.region)
    _repair_tallies(args, args.declared, store, to_s, moments_differ=True)
    for table, name in names.items():
        _apply_settings(client, name, TEMPLATE_SETTINGS[table])
        say(f"ready    {name}")
    return prefix


def _table_names(settings: Settings) -> tuple[str, str, str]:
    return settings.counts_table, settings.receipts_table, settings.ledger_table


def _describe_table(client: DynamoDBClient, name: str) -> dict[str, Any] | None:
    try:
        return dict(client.describe_table(TableName=name)["Table"])
    except client.exceptions.ResourceNotFoundException:
        return None


def _is_restoring(client: DynamoDBClient, source: str, target: str, to_s: int) -> bool:
    """Returns whether an earlier run began to make `target`. If another table has this name, raises CommandError."""
    table = _describe_table(client, target)
    if table is None:
        return False
    summary = table.get("RestoreSummary", {})
    is_of_source = str(summary.get("SourceTableArn", "")).endswith(f":table/{source}")
    if not is_of_source or int(summary["RestoreDateTime"].timestamp()) != to_s:
        raise CommandError(f"the table {target} exists, and this command did not make it: choose another second")
    return True


def _check_moment(client: DynamoDBClient, source: str, to_s: int) -> None:
    """If the backups cannot restore the table to this time, raises CommandError."""
    backups: Any = client.describe_continuous_backups(TableName=source)["ContinuousBackupsDescription"]
    reach = backups.get("PointInTimeRecoveryDescription", {})
    if reach.get("PointInTimeRecoveryStatus") != "ENABLED":
        raise CommandError(f"{source} has no point-in-time recovery")
    first, last = (int(reach[f"{end}RestorableDateTime"].timestamp()) for end in ("Earliest", "Latest"))
    if not first <= to_s <= last:
        raise CommandError(f"{source} can be restored to any second from {format_time(first)} to {format_time(last)}")


def _wait_until_active(client: DynamoDBClient, names: list[str], check: Callable[[], object] = lambda: None) -> None:
    """Waits until every table is active. Ctrl-C stops only the wait. `check`: raises CommandError if a job failed."""
    with progress_bar(None, "table", "restored", len(names)) as bar:
        for poll in range(POLLS_MAX):
            check()
            tables = [_describe_table(client, name) for name in names]
            active = sum(table is not None and table["TableStatus"] == "ACTIVE" for table in tables)
            bar.update(active - bar.n)
            bar.refresh()
            if active == len(names):
                return
            if not poll:
                note("DynamoDB needs minutes to hours for the tables. After Ctrl-C the same command continues the wait")
            time.sleep(POLL_S)
    raise CommandError("the tables are not ready: run the same command again")


def _repair_tallies(
    args: argparse.Namespace, counters: Counters, store: Store, to_s: int, moments_differ: bool = False
) -> None:
    """Repairs the numbers of the new tables, if an earlier run did not: a table gets its stream last, so a stream shows
    that the numbers are repaired. `moments_differ`: the tables are of different moments, so drift proves nothing."""
    names = (store.settings.counts_table, store.settings.receipts_table)
    tables = [_describe_table(store.client, name) or {} for name in names]
    if any(table.get("StreamSpecification", {}).get("StreamEnabled") for table in tables):
        return
    fingerprints.check(fingerprints.read_all(store), counters)  # raises if the declarations do not fit the stored items
    if moments_differ and not restored.is_repaired(store, to_s):
        times = restored.table_moments(store)
        shown = [f"{table} {format_time(at_s) if at_s else 'unknown'}" for table, at_s in times.items()]
        say(f"as of    {', '.join(shown)}")
        distance = "unknown, because a table has no heartbeat"
        if all(times.values()):  # one minute more, because a table may have writes after its newest heartbeat
            distance = f"at most {math.ceil((max(times.values()) - min(times.values())) / 60) + 1} minutes"
        say(f"apart    {distance}: {_WHAT_MAY_BE_WRONG} says what may be wrong")
        for row in restored.known_drift(store):
            say(f"forgets  the drift of {row.counter} {row.target}: {row.drift:+d}")
    audit_note = restored.AuditNote(args.by, args.why)
    try:
        with progress_bar(None, "item", "checked") as scanned:
            options: dict[str, Any] = {"without_dead_letters": args.without_dead_letters, "tell": scanned.update}
            now_s = clock.now_s()
            for finding in restored.repair_restored(
                store, counters, audit_note, to_s, now_s, moments_differ=moments_differ, **options
            ):
                amounts = f"{finding.difference:+d} ({finding.tally} to {finding.tally + finding.difference})"
                say(f"repaired {finding.name}: {amounts}, by {finding.how}")
    except RepairNotReadyError as error:
        hint = "Choose another second, or delete the dead letters: --without-dead-letters"
        raise CommandError(f"{error.detail} {hint}") from None


def _settings_of(client: DynamoDBClient, source: str) -> TableSettings:
    described = _describe_table(client, source) or {}
    ttl: Any = client.describe_time_to_live(TableName=source)["TimeToLiveDescription"]
    pages = client.get_paginator("list_tags_of_resource").paginate(ResourceArn=described["TableArn"])
    stream = described.get("StreamSpecification", {})
    return TableSettings(
        ttl_attribute=ttl["AttributeName"] if ttl["TimeToLiveStatus"] == "ENABLED" else "",
        stream=stream if stream.get("StreamEnabled") else {},
        is_protected=bool(described.get("DeletionProtectionEnabled")),
        tags=[tag for page in pages for tag in page["Tags"] if not tag["Key"].startswith("aws:")],
    )


def _apply_settings(client: DynamoDBClient, target: str, wanted: TableSettings) -> None:
    """Gives a new table the settings that a restore leaves out. Adds the stream last: a table with a stream is done."""
    table = _describe_table(client, target) or {}
    present_ttl: Any = client.describe_time_to_live(TableName=target)["TimeToLiveDescription"]
    if wanted.ttl_attribute and present_ttl.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
        new_ttl: Any = {"Enabled": True, "AttributeName": wanted.ttl_attribute}
        client.update_time_to_live(TableName=target, TimeToLiveSpecification=new_ttl)
    recovery: Any = {"PointInTimeRecoveryEnabled": True}
    client.update_continuous_backups(TableName=target, PointInTimeRecoverySpecification=recovery)
    if wanted.tags:
        client.tag_resource(ResourceArn=table["TableArn"], Tags=wanted.tags)
    if wanted.is_protected and not table.get("DeletionProtectionEnabled"):
        client.update_table(TableName=target, DeletionProtectionEnabled=True)
        _wait_until_active(client, [target])
    if wanted.stream and not table.get("StreamSpecification", {}).get("StreamEnabled"):
        client.update_table(TableName=target, StreamSpecification=wanted.stream)  # type: ignore[arg-type]
        _wait_until_active(client, [target])


RESTORE = Command(
    "restore", restore, _add_arguments, _check_options, write_option="", no_stack_option="from_vault",
    examples='  tally restore --to 2026-11-22T10:30:00Z --by ann --why "INC-9" --stack Tally-prod\n'
    "  tally restore --from-vault arn:aws:backup:… --to 2026-11-23T00:00:00Z --by ann --why … --stack Tally-prod\n",
)  # fmt: skip
