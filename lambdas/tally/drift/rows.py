"""The drift rows: the tallies that drift, read, listed and confirmed.

A second look that does not depend on the streams confirms a drift. For a tally of children it compares the tally with
the children. For any other, the drift must stay unchanged for another settle time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .. import observe
from ..counter import Counter
from ..dynamo import keys, queries
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..dynamo.transactions import apply_once
from ..errors import TallyError
from ..fields import to_cursor
from . import judge, recount

CONFIRMATIONS_MAX = 100  # second looks in one run; if more tallies drift, a page of them is enough
LOGGED_MAX = 20  # lines in a run; GET /drift lists them all
_FIRST, _LAST = "0", "g"  # digests are hexadecimal


@dataclass(frozen=True)
class Drift:
    """A drift row. `drift` is observed minus expected; `since` and `judged` are in epoch seconds."""

    counter: str
    target: str
    drift: int
    since: int
    judged: int
    confirmed: bool
    item: Item
    """The stored item, for conditions on it."""

    @property
    def body(self) -> dict[str, Any]:
        """The row as `GET /drift` lists it."""
        facts = {"counter": self.counter, "id": self.target, "drift": self.drift}
        return {**facts, "since": self.since, "confirmed": self.confirmed}


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
    """A stored drift row."""
    return Drift(
        counter=item["counter"]["S"],
        target=item["target"]["S"],
        drift=int(item["drift"]["N"]),
        since=int(item["since"]["N"]),
        judged=int(item["judged"]["N"]),
        confirmed=bool(item.get("confirmed", {}).get("BOOL", False)),
        item=item,
    )


def read(store: Store, counter: str, target: str) -> Drift | None:
    """The drift row of one tally, if there is one."""
    found = queries.get(store.client, store.settings.ledger_table, key(counter, target))
    return drift_of(found) if found else None


def key(counter: str, target: str) -> Item:
    """The key of a tally's drift row."""
    return keys.key(keys.DRIFT_KEY, keys.digest(counter, target))


def every(store: Store) -> Iterator[Drift]:
    """Every drift row."""
    for page in queries.pages(store, store.settings.ledger_table, keys.DRIFT_KEY, _FIRST, _LAST):
        yield from map(drift_of, page)


def listed(call: Call, limit: int, after: str | None) -> dict[str, Any]:
    """Tallies that drift, a page at a time: `{"drift": [{"counter","id","drift","since","confirmed"}], "cursor"}`.

    `after`: the digest whose successors follow. `cursor` is null on the last page.
    """
    table, partition = call.store.settings.ledger_table, keys.DRIFT_KEY
    page = queries.query(call.store, table, partition, _FIRST, _LAST, after=after, Limit=limit)
    cursor = to_cursor(page[-1]["SK"]["S"]) if page.more and page else None
    return {"drift": [drift_of(item).body for item in page], "cursor": cursor}


def look_again(store: Store, counters: Mapping[str, Counter], now_s: float, *, until_s: float) -> dict[str, Summary]:
    """Confirm the drifts that can be confirmed, log them, and sum them up for every counter whose drift is measured.

    A counter that is no longer declared is summed up under its own name while it has rows.
    """
    summaries = {name: Summary() for name, counter in counters.items() if counter.tracked}
    looked = 0
    for drift in every(store):
        confirmed = drift.confirmed
        if not confirmed and looked < CONFIRMATIONS_MAX and store.clock() < until_s:
            looked += 1
            confirmed = _confirm(store, counters.get(drift.counter), drift, now_s)
        summary = summaries.setdefault(drift.counter, Summary())
        summary.absolute += abs(drift.drift)
        summary.tallies += 1
        summary.confirmed += confirmed
        summary.oldest_s = max(summary.oldest_s, int(now_s) - drift.since)
        if sum(each.tallies for each in summaries.values()) <= LOGGED_MAX:
            observe.logger.warning("drifts", extra={**drift.body, "confirmed": confirmed})
    return summaries


def _confirm(store: Store, counter: Counter | None, drift: Drift, now_s: float) -> bool:
    """Whether a second look finds the same drift, and the row is marked."""
    try:
        if counter is not None and counter.child is not None:
            found = recount.recount(Call(store), counter, drift.target)
            same = found is not None and found.tally - found.children == drift.drift
        else:
            same = now_s - drift.judged >= store.settings.settle_s
        return same and _mark(store, drift)
    except TallyError:
        observe.logger.exception("not confirmed", extra=drift.body)
        return False


def _mark(store: Store, drift: Drift) -> bool:
    condition, values = judge.unchanged(drift.item)
    update: dict[str, Any] = {
        "TableName": store.settings.ledger_table,
        "Key": key(drift.counter, drift.target),
        "UpdateExpression": "SET confirmed = :yes",
        "ConditionExpression": condition,
        "ExpressionAttributeValues": {**values, ":yes": {"BOOL": True}},
    }
    return apply_once(store, [{"Update": update}])
