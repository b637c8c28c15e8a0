"""The drift rows: reads, lists and writes the tallies that drift.

The judge and repairs write a row on condition that the row has not changed since they read it. A row at 0 is not
listed. Such a row lives as long as segments, so that a late judge does not add a minute twice. A row keeps its changes
of the last minutes. The part of a drift that has stood for CONFIRM_AFTER judged minutes is confirmed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from .. import observe
from ..counter import Counter
from ..counting import periods
from ..dynamo import items, keys, queries
from ..dynamo.client import Call, Store
from ..dynamo.items import Expected
from ..dynamo.keys import Item
from ..dynamo.transactions import Write
from ..fields import encode_cursor
from ..streams import segments, watermark
from ..streams.watermark import Watermark

LOGGED_MAX = 20  # rows that one sweep logs; GET /drift lists all
_FIRST, _LAST = "0", "g"  # before and after every digest, which is hexadecimal
_DRIFTING: Item = {"FilterExpression": "drift <> :zero", "ExpressionAttributeValues": {":zero": {"N": "0"}}}


class DriftRow(NamedTuple):
    """A drift row. `drift`: observed less expected. `last_minute`: the last minute that was added; -1: there is no row.

    `since`: when the drift began, epoch seconds; 0 if the tally does not drift. `changes`: minutes and amounts of the
    CONFIRM_AFTER minutes up to `last_minute`, the newest last; empty if a recount or a restore confirmed the drift."""

    counter: str
    target: str
    drift: int = 0
    last_minute: int = -1
    since: int = 0
    changes: tuple[tuple[int, int], ...] = ()

    def confirmed_amount(self, watermark_: Watermark) -> int:
        """Returns the part of the drift that has stood for CONFIRM_AFTER judged minutes.

        This part is the drift's value nearest to 0 in these minutes; 0 if the drift was 0, or changed its sign. Drift
        that began in this ledger is confirmed only after the ledger's warm-up (`Watermark.warm_up_until`).
        """
        if watermark_.judged < watermark_.warm_up_until and self.since >= watermark_.first_judged_s:
            return 0
        before = least = self.drift
        for minute, amount in reversed(self.changes):  # the row may be newer than the watermark
            if minute > max(watermark_.judged, self.last_minute) - watermark.CONFIRM_AFTER:
                before -= amount
                if before * least <= 0:
                    return 0
                least = min(least, before, key=abs)
        return least

    def body(self, watermark_: Watermark) -> dict[str, Any]:
        """Returns the row as `GET /drift` lists it."""
        named = {"counter": self.counter, **periods.answer_members(self.target)}
        return {**named, "drift": self.drift, "since": self.since, "confirmed": self.confirmed_amount(watermark_) != 0}

    @property
    def expected(self) -> Expected:
        """The attributes that a write of the row expects: the row is as it was read."""
        return items.EXPECT_NO_ITEM if self.last_minute < 0 else {"drift": self.drift, "upto": self.last_minute}


def row_key(counter: str, target: str) -> Item:
    """Returns the key of a tally's drift row."""
    return keys.key(keys.DRIFT_KEY, keys.tally_digest(counter, target))


def drift_write(store: Store, row: DriftRow, drift: int, now_s: float, upto: int | None = None) -> Write:
    """Returns the write that sets the drift of a row. `upto`: the minute that the judge adds; None: a repair writes.
    A judge may make the row. If there is no row, the write of a repair only checks that there is still no row."""
    assert upto is None or upto > row.last_minute, "a row takes each minute once"
    assert row.drift or not row.changes, "a row without drift has no changes"
    table, key = store.settings.ledger_table, row_key(row.counter, row.target)
    if upto is None and row.last_minute < 0:
        return items.check_write(table, key, row.expected)
    values: dict[str, str | float] = {"drift": drift}
    if upto is not None:
        values |= {"counter": row.counter, "target": row.target, "upto": upto}
    if drift == 0:
        values["expiration"] = int(now_s) + segments.SEGMENT_KEPT_S  # as long as segments live
    elif upto is not None:
        recent = [change for change in row.changes if change[0] > upto - watermark.CONFIRM_AFTER]
        values["changes"] = json.dumps([*recent, (upto, drift - row.drift)])
        if row.drift == 0:
            values["since"] = upto * store.settings.minute_s
    removed = ["expiration"] if drift else ["since", "changes"]
    return items.update_write(table, key, values, remove=removed, expected=row.expected)


def recount_write(store: Store, row: DriftRow, drift: int, now_s: float) -> Write:
    """Returns the write that sets the row of a team's count or number to the drift that a recount proved. Removes
    `changes`, so the drift is confirmed at once. If the drift is not 0, may make the row."""
    if drift == 0:
        return drift_write(store, row, 0, now_s)
    minute = store.settings.minute_of(now_s)  # the judge adds no minute to this row, because the journal has no entries
    values: dict[str, str | float] = {
        "counter": row.counter, "target": row.target, "drift": drift, "upto": max(minute, row.last_minute + 1),
        "since": row.since or int(now_s),
    }  # fmt: skip
    table, key, removed = store.settings.ledger_table, row_key(row.counter, row.target), ["changes", "expiration"]
    return items.update_write(table, key, values, remove=removed, expected=row.expected)


def forget_write(store: Store, row: DriftRow, remaining: int, now_s: float) -> Write:
    """Returns the write that keeps the part `remaining` of a drift, as confirmed drift, and deletes the other part."""
    assert min(row.drift, 0) <= remaining <= max(row.drift, 0), "a part of the drift is kept"
    values = {"drift": remaining} if remaining else {"drift": 0, "expiration": int(now_s) + segments.SEGMENT_KEPT_S}
    table, key = store.settings.ledger_table, row_key(row.counter, row.target)
    removed = ["changes"] if remaining else ["changes", "since"]
    return items.update_write(table, key, values, remove=removed, expected=row.expected)


def cancel_out(amount: int, other: int) -> int:
    """Returns the part of `amount` that `other` does not cancel out: all of `amount` if the signs are the same."""
    return amount if amount * other >= 0 else 0 if abs(amount) <= abs(other) else amount + other


def read_row(store: Store, counter: str, target: str) -> DriftRow:
    """Reads the drift row of one tally."""
    return _parse_row(counter, target, queries.get(store.client, store.settings.ledger_table, row_key(counter, target)))


def read_many(store: Store, tallies: Sequence[tuple[str, str]]) -> list[DriftRow]:
    """Reads the drift rows of up to 100 tallies (counter and id), in their order."""
    row_keys = [row_key(*tally) for tally in tallies]
    by_digest = {item["SK"]["S"]: item for item in queries.get_many(Call(store), store.settings.ledger_table, row_keys)}
    return [_parse_row(*tally, by_digest.get(key["SK"]["S"], {})) for tally, key in zip(tallies, row_keys, strict=True)]


def _parse_row(counter: str, target: str, item: Item) -> DriftRow:
    if not item:
        return DriftRow(counter, target)
    changes = json.loads(item.get("changes", {"S": "[]"})["S"])
    drift, upto, since = (items.int_attribute(item, name) for name in ("drift", "upto", "since"))
    return DriftRow(counter, target, drift, upto, since, tuple((minute, amount) for minute, amount in changes))


def all_rows(store: Store, after: str = _FIRST) -> Iterator[DriftRow]:
    """Yields the rows of the tallies that drift, in the order of their digests, from `after` on."""
    table = store.settings.ledger_table
    for item in queries.partition_items(store, table, keys.DRIFT_KEY, after, _LAST, **_DRIFTING):
        yield _parse_row(item["counter"]["S"], item["target"]["S"], item)


def list_drift(call: Call, limit: int, after: str | None) -> dict[str, Any]:
    """Returns a page of the drifting tallies: `{"drift": [{"counter","id","drift","since","confirmed"}], "cursor"}`.

    `after`: the digest of the last tally of the page before; None: the first page. `cursor` is null on the last page.
    """
    watermark_ = watermark.read(call.store)
    # The space excludes the digest `after`. A caller may send a cursor that is greater than `_LAST`.
    start = _FIRST if after is None else min(f"{after} ", _LAST)
    drifting = list(islice(all_rows(call.store, start), limit + 1))
    cursor = encode_cursor(keys.tally_digest(*drifting[limit - 1][:2])) if len(drifting) > limit else None
    return {"drift": [row.body(watermark_) for row in drifting[:limit]], "cursor": cursor}


def summary(
    store: Store, counters: Mapping[str, Counter], watermark_: Watermark, now_s: float, until_s: float
) -> tuple[dict[str, int], dict[str, int]]:
    """Logs the drifts. Returns the stack's metrics, and the number of tallies with confirmed drift by counter.

    If the time runs out (`until_s`, on the store's clock), each number is a minimum, and counters at 0 are left out.
    """
    totals = dict.fromkeys((observe.DRIFTING_TALLIES, observe.DRIFT_ABSOLUTE, observe.OLDEST_DRIFT), 0)
    confirmed = dict.fromkeys(counters, 0)
    for row in all_rows(store):
        totals[observe.DRIFTING_TALLIES] += 1
        totals[observe.DRIFT_ABSOLUTE] += abs(row.drift)
        totals[observe.OLDEST_DRIFT] = max(totals[observe.OLDEST_DRIFT], int(now_s) - row.since)
        if row.counter in confirmed:  # not if the counter is no longer declared
            confirmed[row.counter] += row.confirmed_amount(watermark_) != 0
        if totals[observe.DRIFTING_TALLIES] <= LOGGED_MAX:
            observe.logger.warning("drifts", extra=row.body(watermark_))
        if store.clock() >= until_s:
            observe.logger.warning("more may drift", extra={"at_least": totals[observe.DRIFTING_TALLIES]})
            return totals, {name: tallies for name, tallies in confirmed.items() if tallies}
    return totals, confirmed
