"""The drift rows: the tallies that drift, read and listed.

The judge and repairs write them, on condition that the row is as it was read. At 0 it is not listed, and DynamoDB
removes it days later. A row keeps its changes of the last minutes: what of a drift has stood for some judged minutes is
confirmed, however it goes on.
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

LOGGED_MAX = 20  # lines in a run; GET /drift lists them all
_FIRST, _LAST = "0", "g"  # digests are hexadecimal
_DRIFTING: Item = {"FilterExpression": "drift <> :zero", "ExpressionAttributeValues": {":zero": {"N": "0"}}}


class DriftRow(NamedTuple):
    """A drift row. `drift`: observed less expected. `last_minute`: its last minute; -1: there is no row.

    `since`: epoch seconds; 0 if it does not drift. `changes`: by how much it moved in which of the SETTLE minutes up to
    `last_minute`, the newest last.
    """

    counter: str
    target: str
    drift: int = 0
    last_minute: int = -1
    since: int = 0
    changes: tuple[tuple[int, int], ...] = ()

    def confirmed_amount(self, seen: Watermark) -> int:
        """What of the drift has stood for SETTLE judged minutes: its value next to 0 since then; 0 if it crossed 0.

        Nothing that began with the ledger is confirmed before its first minutes are whole.
        """
        if seen.judged < seen.warm_up_until and self.since >= seen.first_s:
            return 0
        before = least = self.drift
        for minute, amount in reversed(self.changes):
            if minute > max(seen.judged, self.last_minute) - watermark.CONFIRM_AFTER:
                before -= amount
                if before * least <= 0:
                    return 0
                least = min(least, before, key=abs)
        return least

    def body(self, seen: Watermark) -> dict[str, Any]:
        """The row as `GET /drift` lists it."""
        named = {"counter": self.counter, **periods.answer_members(self.target)}
        return {**named, "drift": self.drift, "since": self.since, "confirmed": self.confirmed_amount(seen) != 0}

    @property
    def expected(self) -> Expected:
        """What a write of the row rests on: that it is as it was read."""
        return items.EXPECT_NO_ITEM if self.last_minute < 0 else {"drift": self.drift, "upto": self.last_minute}


def row_key(counter: str, target: str) -> Item:
    """The key of a tally's drift row."""
    return keys.key(keys.DRIFT_KEY, keys.tally_digest(counter, target))


def drift_write(store: Store, row: DriftRow, drift: int, now_s: float, upto: int | None = None) -> Write:
    """The write that brings a row as it was read to `drift`. A judge gives the minute `upto`, and may make the row.
    A repair makes none: it checks that there still is none."""
    assert upto is None or upto > row.last_minute, "a row takes each minute once"
    assert row.drift or not row.changes, "changes of an older drift"
    table, name = store.settings.ledger_table, row_key(row.counter, row.target)
    if upto is None and row.last_minute < 0:
        return items.check_write(table, name, row.expected)
    values: dict[str, str | float] = {"drift": drift}
    if upto is not None:
        values |= {"counter": row.counter, "target": row.target, "upto": upto}
    if drift == 0:
        values["expiration"] = int(now_s) + segments.SEGMENT_KEPT_S  # as long as the minutes that it has taken
    elif upto is not None:
        young = [change for change in row.changes if change[0] > upto - watermark.CONFIRM_AFTER]
        values["changes"] = json.dumps([*young, (upto, drift - row.drift)])
        if row.drift == 0:
            values["since"] = upto * store.settings.minute_s
    return items.update_write(
        table, name, values, remove=["expiration"] if drift else ["since", "changes"], expected=row.expected
    )


def recount_write(store: Store, row: DriftRow, drift: int, now_s: float) -> Write:
    """The write that brings a row as it was read to what a recount found, as confirmed. It may make the row."""
    if drift == 0:
        return drift_write(store, row, 0, now_s)  # DynamoDB removes it days later
    minute = store.settings.minute_of(now_s)
    values: dict[str, str | float] = {
        "counter": row.counter, "target": row.target, "drift": drift, "upto": max(minute, row.last_minute + 1),
        "since": row.since or int(now_s),
    }  # fmt: skip
    name = row_key(row.counter, row.target)
    return items.update_write(
        store.settings.ledger_table, name, values, remove=["changes", "expiration"], expected=row.expected
    )


def forget_write(store: Store, row: DriftRow, kept: int, now_s: float) -> Write:
    """The write that leaves `kept` of a drift, as confirmed: nobody judges what its other changes waited for."""
    assert min(row.drift, 0) <= kept <= max(row.drift, 0), "what stays is a part of it"
    values = {"drift": kept} if kept else {"drift": 0, "expiration": int(now_s) + segments.SEGMENT_KEPT_S}
    removed = ["changes"] if kept else ["changes", "since"]
    return items.update_write(
        store.settings.ledger_table, row_key(row.counter, row.target), values, remove=removed, expected=row.expected
    )


def read_row(store: Store, counter: str, target: str) -> DriftRow:
    """The drift row of one tally."""
    return _parse_row(counter, target, queries.get(store.client, store.settings.ledger_table, row_key(counter, target)))


def read_many(store: Store, tallies: Sequence[tuple[str, str]]) -> list[DriftRow]:
    """The drift rows of up to 100 tallies, in order."""
    wanted = [row_key(*tally) for tally in tallies]
    by_digest = {item["SK"]["S"]: item for item in queries.get_many(Call(store), store.settings.ledger_table, wanted)}
    return [_parse_row(*tally, by_digest.get(one["SK"]["S"], {})) for tally, one in zip(tallies, wanted, strict=True)]


def _parse_row(counter: str, target: str, item: Item) -> DriftRow:
    if not item:
        return DriftRow(counter, target)
    changes = json.loads(item.get("changes", {"S": "[]"})["S"])
    drift, upto, since = (items.int_attribute(item, name) for name in ("drift", "upto", "since"))
    return DriftRow(counter, target, drift, upto, since, tuple((minute, amount) for minute, amount in changes))


def all_rows(store: Store, after: str = _FIRST) -> Iterator[DriftRow]:
    """The rows of the tallies that drift, in the order of their digests, from `after` on."""
    table = store.settings.ledger_table
    for item in queries.partition_items(store, table, keys.DRIFT_KEY, after, _LAST, **_DRIFTING):
        yield _parse_row(item["counter"]["S"], item["target"]["S"], item)


def list_drift(call: Call, limit: int, after: str | None) -> dict[str, Any]:
    """Tallies that drift, a page at a time: `{"drift": [{"counter","id","drift","since","confirmed"}], "cursor"}`.

    `after`: the digest whose successors follow. `cursor` is null on the last page.
    """
    seen = watermark.read(call.store)
    start = _FIRST if after is None else min(f"{after} ", _LAST)  # a cursor from outside may be anything
    drifting = list(islice(all_rows(call.store, start), limit + 1))
    cursor = encode_cursor(keys.tally_digest(*drifting[limit - 1][:2])) if len(drifting) > limit else None
    return {"drift": [drift.body(seen) for drift in drifting[:limit]], "cursor": cursor}


def summary(
    store: Store, counters: Mapping[str, Counter], seen: Watermark, now_s: float, until_s: float
) -> tuple[dict[str, int], dict[str, int]]:
    """Log the drifts. The metrics of the stack, and how many tallies of each counter are confirmed to drift.

    Once the time is out (`until_s`, on the store's clock) it reads no more. Then each number is "at least", and no
    counter is said to have none.
    """
    whole = dict.fromkeys((observe.DRIFTING_TALLIES, observe.DRIFT_ABSOLUTE, observe.OLDEST_DRIFT), 0)
    confirmed = dict.fromkeys(counters, 0)
    for drift in all_rows(store):
        whole[observe.DRIFTING_TALLIES] += 1
        whole[observe.DRIFT_ABSOLUTE] += abs(drift.drift)
        whole[observe.OLDEST_DRIFT] = max(whole[observe.OLDEST_DRIFT], int(now_s) - drift.since)
        if drift.counter in confirmed:
            confirmed[drift.counter] += drift.confirmed_amount(seen) != 0
        if whole[observe.DRIFTING_TALLIES] <= LOGGED_MAX:
            observe.logger.warning("drifts", extra=drift.body(seen))
        if store.clock() >= until_s:
            observe.logger.warning("more may drift", extra={"at_least": whole[observe.DRIFTING_TALLIES]})
            return whole, {name: tallies for name, tallies in confirmed.items() if tallies}
    return whole, confirmed
