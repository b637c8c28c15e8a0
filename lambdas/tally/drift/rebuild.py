"""Adds what was accepted and never rolled up, by the receipts.

A stream keeps its records for a day. A rollup that is stalled for longer loses receipts that were written alone. The
receipts live for 8 days. Each tally notes by how much the rollup moved it for the receipts of each day. What a day's
receipts come to beyond that was lost. Both sides go by the minute that the receipt is stamped with. So neither a late
commit nor a redrive makes a difference, and nothing that the bookkeeper missed is taken for lost.

A day is looked at once the day after it is judged, too: by then no stream delivers its receipts any more. A rebuild
adds what is missing and notes it, in one transaction on condition that the notes are as they were read. So a second one
finds nothing. What the ledger knows as drift is left to `tally reconcile`, and is taken off if that has repaired it.

Children that were written alone and lost are found by counting them again (recount.py).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..counter import Counter
from ..counting import periods, tallies
from ..counting.receipts import ALONE_KEPT_S
from ..dynamo import items, queries
from ..dynamo.client import Call, Store
from ..dynamo.items import Was
from ..dynamo.keys import Item
from ..dynamo.transactions import Write
from ..streams import rollup
from ..streams.evidence import Evidence
from . import history, recount, rows
from .reconcile import SHARDS_HELD_MAX, NotProvenError, Reconciler

DAYS = ALONE_KEPT_S // (24 * 3600) - 1  # whole days that receipts are there for
GOING_S = 3600
UNDELIVERED = 1  # days after its own in which a stream may still deliver a receipt

Accepted = dict[tuple[str, str], dict[int, int]]
"""By counter and id: the amount of the receipts of each day."""


class Window(NamedTuple):
    """The days that can be looked at, both included: whole days since 1970 by the ledger's minutes."""

    first: int
    last: int


class Loss(NamedTuple):
    """What one tally lacks. `days`: amounts by day. `repaired`: what the ledger's repairs have added of it."""

    counter: Counter
    target: str
    tally: int
    days: dict[int, int]
    repaired: int
    drift: int
    shards: dict[int, Item]

    @property
    def amount(self) -> int:
        """What is to be added."""
        return max(0, sum(self.days.values()) - self.repaired)


def rebuildable(counter: Counter) -> bool:
    """Whether a counter has receipts that are rolled up. Children have none."""
    return rollup.rolled_up(counter) and counter.child is None


def notes_began_s(seen: Evidence) -> int:
    """Since when tallies note what the rollup adds: since the ledger began, or the one that it was restored from."""
    return items.number(seen.item, "notes", items.number(seen.item, "began"))


def window(store: Store, seen: Evidence, now_s: float) -> Window:
    """The days of which the receipts are there, the notes were kept from the beginning, and all is judged.

    Raises NotProvenError if there is none yet.
    """
    minute = store.settings.minute
    began = minute(notes_began_s(seen))
    first = max(minute(now_s) // tallies.DAY - DAYS, began // tallies.DAY + 1)
    last = (seen.judged + 1) // tallies.DAY - 1 - UNDELIVERED
    if seen.judged < 0 or last < first:
        raise NotProvenError(
            "Cannot tell yet: no whole day since the ledger began is judged together with the day after it."
        )
    return Window(first, last)


def accepted(
    store: Store, counters: Mapping[str, Counter], days: Window, found: Accepted, only: tuple[str, str] | None = None
) -> Iterator[int]:
    """Sum up the receipts that were written alone, into `found`. Yields the receipts of each page of the scan."""
    first, last = days.first * tallies.DAY, (days.last + 1) * tallies.DAY - 1
    values: Item = {":yes": {"BOOL": True}, ":first": {"N": str(first)}, ":last": {"N": str(last)}}
    wanted = "#rollup = :yes AND #at BETWEEN :first AND :last"
    if only:
        wanted += " AND #counter = :counter AND #target = :target"
        values |= {":counter": {"S": only[0]}, ":target": {"S": only[1]}}
    attributes = ("rollup", "at", "counter", "target", "amount")
    more: dict[str, Any] = {
        "FilterExpression": wanted,
        "ProjectionExpression": ", ".join(f"#{name}" for name in attributes),
        "ExpressionAttributeNames": {f"#{name}": name for name in attributes},
        "ExpressionAttributeValues": values,
    }
    for page in queries.scan(store, store.settings.receipts_table, **more):
        for receipt in page:
            counter = counters.get(receipt["counter"]["S"])
            if counter is not None and rebuildable(counter):
                of_tally = found.setdefault((counter.name, receipt["target"]["S"]), defaultdict(int))
                of_tally[int(receipt["at"]["N"]) // tallies.DAY] += int(receipt["amount"]["N"])
        yield len(page)


def look(store: Store, counter: Counter, target: str, days: Mapping[int, int]) -> Loss:
    """What one tally lacks. `days`: the amount of its receipts by day.

    The tally of a period lacks nothing from an hour before DynamoDB may remove it: its notes may be gone with it, and
    clocks differ. Receipts outlive it, and nobody reads it any more.
    """
    if not periods.kept(counter, target, time.time() + GOING_S):
        days = {}
    shards = recount.shards_of(Call(store), counter, target)
    lost = {day: amount - _noted(shards, day) for day, amount in sorted(days.items())}
    lost = {day: amount for day, amount in lost.items() if amount > 0}
    row = rows.read(store, counter.name, target)
    repaired = _repaired(store, counter, target, min(lost)) if lost else 0
    number = recount.number(counter, shards)
    return Loss(counter, target, number, lost, repaired, row.drift if row else 0, shards)


def _noted(shards: Mapping[int, Item], day: int) -> int:
    name = tallies.day_note(day)
    return sum(items.number(item, name) for item in shards.values())


def _repaired(store: Store, counter: Counter, target: str, day: int) -> int:
    """What repairs by the ledger have added since a day, and since the last rebuild."""
    total = 0
    for entry in history.read(store, counter.name, target):
        if entry["how"] == history.REBUILD:
            total = 0
        elif store.settings.minute(entry["at"]) >= day * tallies.DAY:
            total += max(0, entry["amount"])
    return total


def rebuild(reconciler: Reconciler, loss: Loss, days: Mapping[int, int], by: str, why: str, asked: int) -> Loss | None:
    """Add what one tally lacks, once; the loss, None if there is none by now.

    `days`: the amount of its receipts by day. `asked`: the minute through which the ledger must be judged. Raises
    NotProvenError, RestlessError.
    """
    store, counter, target = reconciler.store, loss.counter, loss.target
    name = f"{counter.name} {target}"

    def prepared(_: Evidence) -> tuple[Loss, list[Write]] | None:
        row = rows.read(store, counter.name, target)
        now = look(store, counter, target, days)
        if now.amount and row is not None and row.drift:
            raise NotProvenError(f"{name} drifts by {row.drift:+d}: `tally reconcile` comes first.")
        held = rows.evened(store, counter.name, target, row, reconciler.clock())
        return (now, [*writes(store, now, by, why, reconciler.clock()), held]) if now.amount else None

    return reconciler.commit(name, asked, prepared)


def writes(store: Store, loss: Loss, by: str, why: str, now_s: float) -> list[Write]:
    """The tally moved and noted, on condition that the notes of all its shards are as they were read; the history."""
    counter, target = loss.counter, loss.target
    moved = min(loss.shards, default=0)
    add = tallies.add(
        Call(store), counter, target, moved, loss.amount, store.settings.minute(now_s), by=tallies.REPAIRED
    )
    table, others = store.settings.counts_table, sorted({*loss.shards, *range(counter.max_shards)} - {moved})
    made = [
        items.check(table, tallies.key(counter, target, shard), _notes(loss, shard))
        for shard in others[: SHARDS_HELD_MAX - 1]
    ]
    texts = {"by": by, "why": why, "how": history.REBUILD}
    made.append(history.entry(store, counter.name, target, now_s, texts, before=loss.tally, amount=loss.amount))
    return [{"Update": items.only_if(tallies.noted(add, loss.days), _notes(loss, moved))}, *made]


def _notes(loss: Loss, shard: int) -> Was:
    """That a shard's notes of the days are as they were read."""
    return {name: loss.shards.get(shard, {}).get(name) for name in map(tallies.day_note, loss.days)}
