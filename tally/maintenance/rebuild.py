"""Rebuilds tallies from receipts that the rollup lost.

A stream keeps its records for a day. If the rollup is stalled for longer, it loses records of spilled receipts. The
receipts live for 8 days. Each tally notes by how much the rollup moved the tally for the receipts of each day. If the
sum of a day's receipts is larger than the note, the difference was lost. Receipts and notes use the day of the receipt,
so late commits and redrives make no difference.

A rebuild reads a day when the day after it is judged, too, because no stream delivers the day's receipts after that.
The rebuild adds and notes what is missing, on condition that the notes are unchanged, so a second rebuild finds
nothing. The ledger expects lost receipts, so they are drift, too. Drift must be repaired first, and the rebuild
subtracts what repairs have added. If there were repairs, and the ledger may have lost records of those days, nobody
knows what the repairs were for, and the rebuild adds nothing. A recount finds lost children (drift/recount.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from ..counter import Counter
from ..counting import periods, tallies
from ..counting.receipts import PENDING_KEPT_S
from ..drift import history, rows
from ..dynamo import clock, items, queries
from ..dynamo.client import Call, Store
from ..streams import loss, record
from ..streams.lineage import BOOKKEEPER
from ..streams.record import TRUE_ATTRIBUTE, PoisonRecordError
from ..streams.watermark import Watermark
from .reconcile import DayReceipts, Finding, Reconciler, RepairNotReadyError

RECEIPT_DAYS = PENDING_KEPT_S // (24 * 3600) - 1  # the days before today of which every spilled receipt still lives
EXPIRY_MARGIN_S = 3600  # how long before its TTL a period's tally counts as complete (missing_of)
DELIVERY_DAYS = 1  # days after the receipt's day in which a stream may still deliver it

Accepted = dict[tuple[str, str], dict[int, DayReceipts]]  # by counter and id, then by day


class Window(NamedTuple):
    """The days that a rebuild can read, from `first` to `last`: whole days since 1970 by the ledger's minutes."""

    first: int
    last: int


def is_rebuildable(counter: Counter) -> bool:
    """Returns whether the rollup adds receipts to a counter. To a counter of children, the rollup adds the children."""
    return counter.may_roll_up and counter.child is None


def notes_began_s(watermark_: Watermark) -> int:
    """Returns when tallies began to note what the rollup adds: when this ledger, or its backup, began."""
    return items.int_attribute(watermark_.item, "notes_began_s", items.int_attribute(watermark_.item, "began_s"))


def rebuild_window(store: Store, watermark_: Watermark, now_s: float) -> Window:
    """Returns the days whose receipts exist, whose notes are complete, and that are judged.

    If there is no such day, raises RepairNotReadyError.
    """
    minute = store.settings.minute_of
    began = minute(notes_began_s(watermark_))
    first = max(minute(now_s) // tallies.MINUTES_PER_DAY - RECEIPT_DAYS, began // tallies.MINUTES_PER_DAY + 1)
    last = (watermark_.judged + 1) // tallies.MINUTES_PER_DAY - 1 - DELIVERY_DAYS
    if watermark_.judged < 0 or last < first:
        raise RepairNotReadyError("Cannot tell yet: no whole day of the ledger is judged with the day after it.")
    return Window(first, last)


def sum_receipts(store: Store, counters: Mapping[str, Counter], days: Window, sums: Accepted) -> Iterator[int]:
    """Adds the spilled receipts of these days to `sums`. Yields the number of receipts of each page of the scan."""
    attributes = ("rollup", "at", "counter", "target", "amount", record.SOON)  # SOON: the spilled changes of a batch
    first, last = days.first * tallies.MINUTES_PER_DAY, (days.last + 1) * tallies.MINUTES_PER_DAY - 1
    pages = queries.scan_pages(
        store,
        store.settings.receipts_table,
        FilterExpression="#rollup = :yes AND #at BETWEEN :first AND :last",
        ProjectionExpression=", ".join(f"#{name}" for name in attributes),
        ExpressionAttributeNames={f"#{name}": name for name in attributes},
        ExpressionAttributeValues={":yes": TRUE_ATTRIBUTE, ":first": {"N": str(first)}, ":last": {"N": str(last)}},
    )
    for page in pages:
        for receipt in page:
            amounts: list[tuple[str, str, int]] = []
            with suppress(PoisonRecordError, *record.MALFORMED_ERRORS):  # a dead letter, for which the rollup adds 0
                amounts = record.amounts_of(receipt, only_spilled=True)
            for name, target, amount in amounts:
                counter = counters.get(name)
                if counter is not None and is_rebuildable(counter):
                    of_tally = sums.setdefault((name, target), defaultdict(DayReceipts))
                    day = int(receipt["at"]["N"]) // tallies.MINUTES_PER_DAY
                    before = of_tally[day]
                    of_tally[day] = DayReceipts(before.amount + amount, before.down + min(amount, 0))
        yield len(page)


def missing_of(store: Store, counter: Counter, target: str, days: Mapping[int, DayReceipts]) -> Finding:
    """Returns what one tally lacks. `days`: the receipts of the tally, by day.

    From an hour before its TTL, the tally of a period counts as complete, because clocks differ, and DynamoDB may have
    removed its notes. The receipts live longer, but nobody reads the tally after its TTL.
    """
    if not periods.is_kept(counter, target, clock.now_s() + EXPIRY_MARGIN_S):
        days = {}
    row = rows.read_row(store, counter.name, target)
    shards = tallies.read_numbered_shards(Call(store), counter, target)
    lost: dict[int, int] = {}
    for day in sorted(days):
        noted = sum(items.int_attribute(item, tallies.day_note(day)) for item in shards.values())
        if _may_be_lost(counter, days[day].amount - noted, days[day]):
            lost[day] = days[day].amount - noted
    missing = sum(lost.values())
    finding = Finding(counter, target, shards, row, missing, history.REBUILD, days=lost, accepted=days)
    repaired = _sum_repairs(store, counter, target, min(lost), missing) if lost else 0
    # A repair of more than is missing was also for something else, so nobody knows how much was for the receipts.
    if repaired and (abs(repaired) > abs(missing) or _ledger_lost(store, lost)):
        return replace(finding, unproven_reason=f"repairs since then added {repaired:+d}, perhaps for these receipts")
    assert abs(missing - repaired) <= abs(missing), "the repair is larger than the lost receipts"
    return replace(finding, difference=missing - repaired)


def _may_be_lost(counter: Counter, amount: int, of_day: DayReceipts) -> bool:
    """Returns whether the rollup may have lost receipts. `amount`: a day's receipts less the day's note. If `amount`
    and the counter's step differ in sign, the rollup may have lost voids, up to all voids of the day. If `amount` is
    larger than these, somebody deleted receipts."""
    if counter.delta is None or amount * counter.delta > 0:
        return amount != 0
    voided = of_day.down if counter.delta > 0 else of_day.amount - of_day.down
    return 0 < abs(amount) <= abs(voided)


def _ledger_lost(store: Store, days: Mapping[int, int]) -> bool:
    """Returns whether the ledger may lack records of these days. If not, it showed the lost receipts as drift."""
    losses = [(one.consumer, one.since_s, one.until_s) for one in loss.list_losses(store)]
    losses += [(entry["consumer"], entry["since"], entry["until"]) for entry in history.acknowledged_losses(store)]
    minute = store.settings.minute_of
    return any(
        consumer == BOOKKEEPER
        and minute(since_s) // tallies.MINUTES_PER_DAY <= max(days)
        and minute(until_s) // tallies.MINUTES_PER_DAY >= min(days)
        for consumer, since_s, until_s in losses
    )


def find_missing(store: Store, counters: Mapping[str, Counter], accepted: Accepted) -> Iterator[Finding]:
    """Yields the tallies that provably lack receipts of `accepted`."""
    for (name, target), days in sorted(accepted.items()):
        finding = missing_of(store, counters[name], target, days)
        if finding.difference and not finding.unproven_reason:
            yield finding


def _sum_repairs(store: Store, counter: Counter, target: str, day: int, missing: int) -> int:
    """Returns what repairs with the sign of `missing` added since `day` and since the last rebuild."""
    total = 0
    for entry in history.read_repairs(store, counter.name, target):
        if entry["how"] == history.REBUILD:
            total = 0  # the rebuild subtracted the repairs before it
        elif store.settings.minute_of(entry["at"]) >= day * tallies.MINUTES_PER_DAY and entry["amount"] * missing > 0:
            total += entry["amount"]
    return total


def rebuild(reconciler: Reconciler, earlier: Finding, by: str, why: str, required_minute: int) -> Finding | None:
    """Adds what one tally lacks by the receipts of `earlier`, once. Returns the finding; None if nothing is missing.
    `required_minute`: the minute that must be judged. Raises RepairNotReadyError, RepairContentionError."""

    def prove(_: Watermark) -> Finding | None:
        finding = missing_of(reconciler.store, earlier.counter, earlier.target, earlier.accepted)
        if finding.difference and finding.has_drift:
            raise RepairNotReadyError(f"{finding.name} drifts by {finding.drift.drift:+d}. Repair the drift first.")
        if finding.unproven_reason:
            raise RepairNotReadyError(f"{finding.name}: cannot tell: {finding.unproven_reason}.")
        return finding if finding.difference else None

    return reconciler.commit(earlier.name, prove, required_minute, by, why)
