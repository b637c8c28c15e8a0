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
from ..dynamo import keys, queries
from ..dynamo.client import Call, Store
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

    def confirmed(self, seen: Evidence) -> bool:
        """Whether the drift has stood for SETTLE judged minutes."""
        return self.drift != 0 and evidence.confirmed(seen, self.upto)

    def body(self, seen: Evidence) -> dict[str, Any]:
        """The row as `GET /drift` lists it."""
        facts = {"counter": self.counter, "id": self.target, "drift": self.drift, "since": self.since}
        return {**facts, "confirmed": self.confirmed(seen)}


@dataclass
class Summary:
    """The metrics of one counter's drifting tallies."""

    absolute: int = 0
    tallies: int = 0
    confirmed: int = 0
    oldest_s: int = 0

    @property
    def metrics(self) -> dict[str, int]:
        """By their names in CloudWatch."""
        return {
            observe.DRIFT_ABSOLUTE: self.absolute,
            observe.DRIFTING_TALLIES: self.tallies,
            observe.DRIFT_CONFIRMED: self.confirmed,
            observe.OLDEST_DRIFT: self.oldest_s,
        }


def drift_of(item: Item) -> Drift:
    """A stored drift row. One of an older version of Tally, without `upto`, is a drift that stands for long."""
    since, upto = (int(item.get(name, {"N": "0"})["N"]) for name in ("since", "upto"))
    return Drift(item["counter"]["S"], item["target"]["S"], int(item["drift"]["N"]), upto, since)


def key(counter: str, target: str) -> Item:
    """The key of a tally's drift row."""
    return keys.key(keys.DRIFT_KEY, keys.digest(counter, target))


def unchanged(row: Drift | None) -> tuple[str, dict[str, Item]]:
    """The condition, with its values, that a drift row is as it was read; None if there was none."""
    if row is None:
        return "attribute_not_exists(PK)", {}
    upto = "upto = :upto_seen" if row.upto else "attribute_not_exists(upto)"
    values = {":drift_seen": {"N": str(row.drift)}}
    return f"drift = :drift_seen AND {upto}", values | ({":upto_seen": {"N": str(row.upto)}} if row.upto else {})


def taken_back(store: Store, row: Drift, now_s: float) -> Write:
    """The write that brings a drift row to 0 after a repair, on condition that it is as it was read."""
    condition, values = unchanged(row)
    zero = {":zero": {"N": "0"}, ":removed": {"N": str(int(now_s) + ZERO_KEPT_S)}}
    return {
        "Update": {
            "TableName": store.settings.ledger_table,
            "Key": key(row.counter, row.target),
            "UpdateExpression": "SET drift = :zero, expiration = :removed REMOVE since",
            "ConditionExpression": condition,
            "ExpressionAttributeValues": values | zero,
        }
    }


def held(store: Store, counter: str, target: str, row: Drift | None) -> Write:
    """The check that a drift row is as it was read; None: there was none."""
    condition, values = unchanged(row)
    check = {"TableName": store.settings.ledger_table, "Key": key(counter, target), "ConditionExpression": condition}
    return {"ConditionCheck": check | ({"ExpressionAttributeValues": values} if values else {})}


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


def summaries(store: Store, counters: Mapping[str, Counter], seen: Evidence, now_s: float) -> dict[str, Summary]:
    """Log the drifts, and sum them up for every counter whose drift is measured.

    A counter that is no longer declared is summed up under its own name while it has rows.
    """
    found = {name: Summary() for name, counter in counters.items() if counter.tracked}
    for number, (_, drift) in enumerate(every(store)):
        summary = found.setdefault(drift.counter, Summary())
        summary.absolute += abs(drift.drift)
        summary.tallies += 1
        summary.confirmed += drift.confirmed(seen)
        summary.oldest_s = max(summary.oldest_s, int(now_s) - drift.since)
        if number < LOGGED_MAX:
            observe.logger.warning("drifts", extra=drift.body(seen))
    return found
