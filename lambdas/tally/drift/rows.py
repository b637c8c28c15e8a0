"""The drift rows: the tallies that drift, read and listed.

The judge and a repair write them, each on condition that the row is as it was read. A row is never deleted: at 0 it is
not listed, and DynamoDB removes it days later. A drift is confirmed when it has stood for some judged minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from .. import observe
from ..counter import Counter
from ..counting import periods
from ..dynamo import items, keys, queries
from ..dynamo.client import Call, Store
from ..dynamo.items import Was
from ..dynamo.keys import Item
from ..dynamo.transactions import Write
from ..fields import to_cursor
from ..streams import evidence
from ..streams.evidence import Evidence

ZERO_KEPT_S = 2 * 24 * 3600  # of a row at 0: no judge sleeps that long over a minute
LOGGED_MAX = 20  # lines in a run; GET /drift lists them all
_FIRST, _LAST = "0", "g"  # digests are hexadecimal
_DRIFTING: Mapping[str, Any] = {
    "FilterExpression": "drift <> :zero",
    "ExpressionAttributeValues": {":zero": {"N": "0"}},
}


class Drift(NamedTuple):
    """A drift row. `drift`: observed less expected. `upto`: its last minute. `since`: epoch seconds, 0 if unknown."""

    counter: str
    target: str
    drift: int
    upto: int
    since: int

    def left(self, seen: Evidence) -> int:
        """Judged minutes that are left until the drift is confirmed: it must have stood for SETTLE."""
        return max(0, evidence.SETTLE - (seen.judged - self.upto)) if self.drift else 0

    def confirmed(self, seen: Evidence) -> bool:
        """Whether it drifts, and has for long enough."""
        return self.drift != 0 and not self.left(seen)

    def body(self, seen: Evidence) -> dict[str, Any]:
        """The row as `GET /drift` lists it."""
        named = {"counter": self.counter, **periods.shown(self.target)}
        return {**named, "drift": self.drift, "since": self.since, "confirmed": self.confirmed(seen)}


@dataclass
class Summary:
    """All tallies that drift, and how many of them are confirmed, by counter."""

    confirmed: dict[str, int]
    tallies: int = 0
    absolute: int = 0
    oldest_s: int = 0

    @property
    def metrics(self) -> dict[str, int]:
        """The metrics of the stack, by their names in CloudWatch."""
        return {
            observe.DRIFTING_TALLIES: self.tallies,
            observe.DRIFT_ABSOLUTE: self.absolute,
            observe.OLDEST_DRIFT: self.oldest_s,
        }


def drift_of(item: Item) -> Drift:
    """A stored drift row. One of an older version of Tally, without `upto`, is a drift that stands for long."""
    drift, upto, since = int(item["drift"]["N"]), items.number(item, "upto"), items.number(item, "since")
    return Drift(item["counter"]["S"], item["target"]["S"], drift, upto, since)


def key(counter: str, target: str) -> Item:
    """The key of a tally's drift row."""
    return keys.key(keys.DRIFT_KEY, keys.digest(counter, target))


def was(row: Drift | None) -> Was:
    """A drift row as it was read, None for none: what a write of it rests on."""
    return items.NO_ITEM if row is None else {"drift": row.drift, "upto": row.upto or None}


def moved(store: Store, counter: str, target: str, row: Drift | None, drift: int | None, now_s: float) -> Write:
    """The write that brings a drift row as it was read to `drift`; None: the check that it is as it was read."""
    table, name = store.settings.ledger_table, key(counter, target)
    if drift is None:
        return items.check(table, name, was(row))
    if drift:
        return items.update(table, name, {"drift": drift}, was=was(row))
    values = {"drift": 0, "expiration": int(now_s) + ZERO_KEPT_S}
    return items.update(table, name, values, removed=["since"], was=was(row))


def removal(store: Store, row: Drift) -> Write:
    """The write that removes a drift row, if it is as it was read."""
    where = {"TableName": store.settings.ledger_table, "Key": key(row.counter, row.target)}
    return {"Delete": items.only_if(where, was(row))}


def evened(store: Store, counter: str, target: str, row: Drift | None, now_s: float) -> Write:
    """The write that a repair goes with: the drift row as it was read comes to 0, or it is checked that it is there."""
    return moved(store, counter, target, row, 0 if row and row.drift else None, now_s)


def read(store: Store, counter: str, target: str) -> Drift | None:
    """The drift row of one tally, if there is one; its drift may be 0."""
    found = queries.get(store.client, store.settings.ledger_table, key(counter, target))
    return drift_of(found) if found else None


def every(store: Store, after: str = _FIRST) -> Iterator[tuple[str, Drift]]:
    """The rows of the tallies that drift, each with its digest, in the order of the digests, from `after` on."""
    table = store.settings.ledger_table
    for page in queries.pages(store, table, keys.DRIFT_KEY, after, _LAST, **_DRIFTING):
        for item in page:
            yield item["SK"]["S"], drift_of(item)


def listed(call: Call, limit: int, after: str | None, now_s: float) -> dict[str, Any]:
    """Tallies that drift, a page at a time: `{"drift": [{"counter","id","drift","since","confirmed"}], "cursor"}`.

    `after`: the digest whose successors follow. `cursor` is null on the last page.
    """
    seen = evidence.read(call.store, now_s)
    start = _FIRST if after is None else min(f"{after} ", _LAST)  # a cursor from outside may be anything
    found = list(islice(every(call.store, start), limit + 1))
    cursor = to_cursor(found[limit - 1][0]) if len(found) > limit else None
    return {"drift": [drift.body(seen) for _, drift in found[:limit]], "cursor": cursor}


def summary(store: Store, counters: Mapping[str, Counter], seen: Evidence, now_s: float) -> Summary:
    """Log the drifts, and sum them up.

    `confirmed` has every counter whose drift is measured. One that is no longer declared has no alarm: its tallies are
    in the sums of the stack only.
    """
    found = Summary({name: 0 for name, counter in counters.items() if counter.tracked})
    for _, drift in every(store):
        found.absolute += abs(drift.drift)
        found.tallies += 1
        found.oldest_s = max(found.oldest_s, int(now_s) - drift.since)
        if drift.counter in found.confirmed:
            found.confirmed[drift.counter] += drift.confirmed(seen)
        if found.tallies <= LOGGED_MAX:
            observe.logger.warning("drifts", extra=drift.body(seen))
    return found
