"""Repairs tables that were restored from a backup, before a stack adopts them.

Three tables that were restored to one second are not a snapshot of one moment. Restored tables get new streams, so the
records that the old streams had not delivered never arrive. But nothing writes to the restored tables. So a comparison
needs no watermark: if a receipt or a child is not in its tally, it is missing, and the repair adds it.

The repair deletes what the ledger has of the old streams: checkpoints, losses, dead letters and the watermark. The
ledger begins as in a new stack, and never judges the segments of the old streams. The first sweep adds to the series
what they lack of these segments. The history and confirmed drift stay. Unconfirmed drift is deleted, because it may be
half of a late change whose other half is not judged. If there was a dead letter or a recent redrive, confirmed drift is
deleted, too, because it may be the other half of that record's change.

Receipts show what a tally lacks: the tally notes what the rollup added for the receipts of each day. If the sum of the
receipts is larger, the repair adds and notes the difference. On the first day of a stack these notes are not complete,
so the repair adds no receipts of that day. The repair counts the children of each parent. The series lack what the old
streams had not delivered: traffic of some seconds.

If a counter has `visible="now"`, a change in the restored second may be halved: its receipt or its count is missing.
Holds and repairs may be halved, too. No table shows the halves. AWS says that the moments of tables that are restored
to one second differ by much less than a second.

The copies of the three tables in a backup vault are of three moments, up to an hour apart. Tallies are as in `counts`,
and spilled receipts are added. All drift is deleted, because drift may have appeared, or may have been repaired,
between the moment of the ledger and the moment of `counts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from ..counter import Counter
from ..counting import tallies
from ..drift import history, recount, rows
from ..drift.rows import DriftRow
from ..dynamo import items, keys, queries
from ..dynamo.client import Store
from ..dynamo.keys import Item
from ..dynamo.transactions import TRANSACTION_ITEMS_MAX, Write, try_commit
from ..errors import TallyError
from ..items import HEARTBEAT_PREFIX
from ..streams import dead_letters, segments, watermark
from ..streams.lineage import BOOKKEEPER, COUNTS, RECEIPTS, ROLLUP
from ..team import scan_state
from . import rebuild
from .rebuild import Accepted, Window
from .reconcile import Finding, RepairNotReadyError, repair_writes

ALL_TIME = float("inf")  # `added_s` of `count_children`: no rollup runs, so no child waits for the rollup

Tell = Callable[[int], object]
"""A function that gets the number of items that were read."""


class TablesInUseError(TallyError):
    """Something writes to the restored tables."""


class AuditNote(NamedTuple):
    """Who restores, and why. The history keeps both with each repaired tally."""

    by: str
    why: str


def table_moments(store: Store) -> dict[str, int]:
    """Returns the moment of each table, to the minute, in epoch seconds: the time of the ledger's watermark, and of the
    other tables' newest heartbeats; 0: not known. Call it before `repair_restored` replaces the watermark."""

    def newest(table: str, key: str, start: str) -> int:
        heartbeats: Item = {
            "FilterExpression": "begins_with(#key, :start)",
            "ExpressionAttributeNames": {"#key": key, "#at": "at"},
            "ExpressionAttributeValues": {":start": {"S": start}},
        }
        pages = queries.scan_pages(store, table, ProjectionExpression="#at", **heartbeats)
        return max((items.int_attribute(item, "at") for page in pages for item in page), default=0)

    return {
        COUNTS: newest(store.settings.counts_table, "PK", HEARTBEAT_PREFIX),
        RECEIPTS: newest(store.settings.receipts_table, "id", keys.RECEIPT_HEARTBEAT_PREFIX),
        "ledger": int(watermark.read(store).written_s),
    }


def known_drift(store: Store) -> list[DriftRow]:
    """Returns the drift that `repair_restored` deletes if the tables are of different moments."""
    return list(rows.all_rows(store))


def is_repaired(store: Store, restored_s: float) -> bool:
    """Returns whether `repair_restored` has finished for tables that were restored to `restored_s`."""
    return items.int_attribute(watermark.read(store).item, "restored_s") == int(restored_s)


def repair_restored(
    store: Store,
    counters: Mapping[str, Counter],
    audit_note: AuditNote,
    restored_s: float,
    now_s: float,
    *,
    moments_differ: bool = False,
    without_dead_letters: bool = False,
    tell: Tell = lambda scanned: None,
) -> Iterator[Finding]:
    """Repairs every tally and restarts the ledger. Yields each repair. A second run continues an interrupted run.

    `restored_s`: the moment that the tables were restored to. `moments_differ`: the tables are of different moments, so
    all drift is deleted. `without_dead_letters`: deletes the dead letters. Otherwise, if there are dead letters, raises
    RepairNotReadyError, because a redrive would add the same amounts a second time. If somebody writes to the tables,
    raises TablesInUseError.
    """
    if is_repaired(store, restored_s):
        return
    has_letters = dead_letters.any_waiting(store)
    if has_letters and not without_dead_letters:
        raise RepairNotReadyError("There were dead letters at that moment, and a redrive would add them once more.")
    _drop_drift(store, now_s, everything=has_letters or moments_differ or watermark.read(store).has_unjudged_redrive)
    _delete_partition(store, keys.DEAD_LETTER_KEY)
    _delete_partition(store, keys.LOST_KEY)
    for counter in counters.values():
        if counter.items is not None:  # a scan must count the items: the team's table is of another moment
            scan_state.invalidate_until_done(store, counter.name)
    days, accepted = window(store, restored_s), Accepted()
    for scanned in rebuild.sum_receipts(store, counters, days, accepted) if days else ():
        tell(scanned)
    lost_receipts = rebuild.find_missing(store, counters, accepted)
    for finding in chain(lost_receipts, _wrong_parents(store, counters, tell)):
        _write_or_raise(store, finding.name, repair_writes(store, finding, *audit_note, now_s))
        yield finding
    _keep_unsummed_minutes(store, restored_s)
    _restart_ledger(store, restored_s)


def _keep_unsummed_minutes(store: Store, restored_s: float) -> None:
    """Removes the expiration of segments that the series lack, and of the last hour's running segments, the sums that
    series/hours.py has begun. The first sweep needs both, and in an old backup both have expired."""
    table, minute = store.settings.ledger_table, store.settings.minute_of
    progress = queries.get(store.client, table, keys.key(keys.PROGRESS_KEY, keys.PROGRESS_KEY))
    through = items.int_attribute(progress, "through", minute(restored_s))
    first = max(through, minute(restored_s - segments.SEGMENT_KEPT_S)) + 1
    partitions = [keys.running_partition(items.int_attribute(progress, "hour"), through)]
    for at_minute in range(first, minute(restored_s) + watermark.COMMIT_GRACE + 1):
        partitions += segments.partitions(at_minute)
    for item in chain.from_iterable(queries.partition_items(store, table, partition) for partition in partitions):
        item.pop("expiration", None)
        _write_or_raise(store, "The ledger", [{"Put": {"TableName": table, "Item": item}}])


def _drop_drift(store: Store, now_s: float, *, everything: bool) -> None:
    """Deletes unconfirmed drift. `everything`: deletes confirmed drift, too."""
    watermark_ = watermark.read(store)
    for row in list(rows.all_rows(store)):
        confirmed = 0 if everything else row.confirmed_amount(watermark_)
        if confirmed != row.drift:
            write = rows.forget_write(store, row, confirmed, now_s)
            _write_or_raise(store, f"The drift of {row.counter} {row.target}", [write])


def window(store: Store, restored_s: float) -> Window | None:
    """Returns the days whose receipts and notes are complete; None if the ledger has no watermark."""
    minute = store.settings.minute_of
    began_s = rebuild.notes_began_s(watermark.read(store))
    if not began_s:
        return None
    today = minute(restored_s) // tallies.MINUTES_PER_DAY
    first = max(today - rebuild.RECEIPT_DAYS, minute(began_s) // tallies.MINUTES_PER_DAY + 1)
    return Window(first, today + 1)  # the clock of a receipt's writer may be fast


def _wrong_parents(store: Store, counters: Mapping[str, Counter], tell: Tell) -> Iterator[Finding]:
    """Yields each tally that drifts, or differs from its number of children. Its repair also ends its drift."""
    drifting = {(row.counter, row.target) for row in rows.all_rows(store)}
    for counter, target, tally, children in recount.scan_parents(store, counters):
        tell(1 + children)
        if tally == children and (counter.name, target) not in drifting:
            continue
        counted = recount.count_children(store, counter, target, ALL_TIME)
        if counted.unproven_reason:
            raise TablesInUseError(f"{counter.name} {target}: {counted.unproven_reason}.")
        row = rows.read_row(store, counter.name, target)
        yield Finding(counter, target, counted.shards, row, counted.low, history.RECOUNT)


def _restart_ledger(store: Store, restored_s: float) -> None:
    """Deletes the checkpoints, and replaces the watermark. Keeps the time when the day notes began."""
    for consumer in (ROLLUP, BOOKKEEPER):
        for table in (COUNTS, RECEIPTS):
            _delete_partition(store, keys.checkpoint_key(consumer, table, "")[0])
    began_s = rebuild.notes_began_s(watermark.read(store))
    values = {"format": keys.FORMAT, "restored_s": int(restored_s)} | ({"notes_began_s": began_s} if began_s else {})
    write = items.put_write(store.settings.ledger_table, watermark.WATERMARK_KEY, values)
    _write_or_raise(store, "The ledger", [write])


def _delete_partition(store: Store, partition: str) -> None:
    """Deletes every item of a partition of the ledger."""
    table = store.settings.ledger_table
    item_keys = [keys.key(partition, item["SK"]["S"]) for item in queries.partition_items(store, table, partition)]
    for start in range(0, len(item_keys), TRANSACTION_ITEMS_MAX):
        chunk = item_keys[start : start + TRANSACTION_ITEMS_MAX]
        _write_or_raise(store, "The ledger", [{"Delete": {"TableName": table, "Key": key}} for key in chunk])


def _write_or_raise(store: Store, name: str, writes: list[Write]) -> None:
    if not try_commit(store, writes):
        raise TablesInUseError(f"{name} changed during its repair, so something writes to these tables. Stop it first.")
