"""Holds the numbers that a team keeps itself against the exact counts of their items. It writes drift rows, no numbers.

The count and the number stand in one item. What came and went lately may not be in the number yet, and a move of the
number may be before its items. So one look says between which bounds the number is off. What it is off by for good is
between the bounds of every look. If 0 is not, the number is wrong, as long as it follows within the time declared.
"""

from __future__ import annotations

from collections import Counter as Sums
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..counter import Counter
from ..counting import tallies
from ..drift import rows
from ..dynamo import items, queries
from ..dynamo.client import Store
from ..dynamo.items import Write
from ..dynamo.keys import Item
from ..dynamo.transactions import try_commit
from ..items import TEAM_NUMBER
from . import scan_state, team_numbers

BOUNDS_WINDOW_S = 600  # looks of so long are taken together: the number may change for good


def check_numbers(store: Store, counters: Mapping[str, Counter], now_s: float, until_s: float) -> int:
    """Look at the groups that are listed, as far as the time goes (`until_s`, on the store's clock). How many."""
    looked = 0
    watching = {name: counter for name, counter in counters.items() if counter.watch}
    passed = {name: _passed_s(store, counter) for name, counter in watching.items()}
    for listed in _listed_groups(store) if watching else ():  # the role of a sweep that watches none may not look
        name = listed["counter"]["S"]
        if store.clock() >= until_s:
            break
        if passed.get(name):
            check_group(store, watching[name], listed, passed[name], now_s)
            looked += 1
        elif name in watching:  # its items are being counted: that may take hours
            at = tallies.key(watching[name], listed["target"]["S"], 0)
            _compact(store, at, queries.get(store.client, store.settings.counts_table, at))
    return looked


def _listed_groups(store: Store) -> Iterator[Item]:
    """The groups that changed lately, of every counter."""
    for bucket in range(team_numbers.PARTITIONS):
        yield from queries.partition_items(store, store.settings.ledger_table, f"WATCHED#{bucket}")


def check_group_now(store: Store, counter: Counter, group: str, now_s: float) -> None:
    """Look at one group now, if it is listed: else nothing has moved since the last look."""
    listed = queries.get(store.client, store.settings.ledger_table, team_numbers.watch_key(counter.name, group))
    passed_s = _passed_s(store, counter)
    if listed and passed_s:
        check_group(store, counter, listed, passed_s, now_s)


def team_number(store: Store, counter: Counter, group: str) -> int | None:
    """The number that the team keeps of a group, as the newest record has it; None: it keeps none."""
    item = queries.get(store.client, store.settings.counts_table, tallies.key(counter, group, 0))
    return items.int_attribute(item, TEAM_NUMBER) if "N" in item.get(TEAM_NUMBER, {}) else None


def unproven_reason(store: Store, counter: Counter, group: str) -> str:
    """Returns why nobody can tell now whether the number of a group is right; empty if it is off by a known amount, 0
    included. Looks from before say nothing of what changed since."""
    watch, of = counter.watch, counter.items
    assert watch is not None
    assert of is not None
    item = queries.get(store.client, store.settings.counts_table, tallies.key(counter, group, 0))
    known = excess_bounds(counter, item, _passed_s(store, counter))
    if known is None:
        return f"has no {watch.attribute}"
    low, high = known
    if low == high or low > 0 or high < 0:
        return ""
    off = f"its {watch.attribute} may be off by {of.shown(low)} to {of.shown(high)}"
    return f"changed within {watch.within_s} s, and {off}: check it again later"


def count_changed_groups(store: Store) -> Mapping[str, int]:
    """How many groups of each counter changed lately: what their numbers are off by for good is not known yet."""
    return Sums(listed["counter"]["S"] for listed in _listed_groups(store))


def _passed_s(store: Store, counter: Counter) -> int:
    """Until when the count holds everything; 0: not known, or the items are not counted."""
    assert counter.items is not None
    counted = scan_state.read_scan(store, counter.name).counted == counter.items_digest
    return scan_state.passed_s(store, counter.items.table) if counted else 0


def check_group(store: Store, counter: Counter, listed: Item, passed_s: int, now_s: float) -> None:
    """Look at one group, and note what is wrong. Nothing happens if somebody else looks, or it moves meanwhile."""
    assert counter.watch is not None
    target, table = listed["target"]["S"], store.settings.ledger_table
    at = tallies.key(counter, target, 0)
    row = rows.read_row(store, counter.name, target)
    item = queries.get(store.client, store.settings.counts_table, at)
    key, seen = {name: listed[name] for name in ("PK", "SK")}, {"at": items.int_attribute(listed, "at")}
    since_s, rule = passed_s - counter.watch.within_s, f"{counter.watch.within_s} {counter.watch.same_transaction}"
    known = excess_bounds(counter, item, passed_s)
    if known is None or (seen["at"] <= since_s and team_numbers.in_flight(item, since_s) == (0, 0)):
        low, high = known or (0, 0)  # it is calm: the next record lists it again
        writes = [{"Delete": items.with_expected({"TableName": table, "Key": key}, seen)}]
    else:
        low, high, since = intersect_bounds(listed, *known, now_s, rule)
        looked: items.Values = {"low": low, "high": high, "since": since, "rule": rule}
        writes = [items.update_write(table, key, looked, expected=seen)]
    off = low if low > 0 else high if high < 0 else 0
    if off != row.drift:
        writes += _row_writes(store, row, off, now_s, together=counter.watch.same_transaction)
    if try_commit(store, writes):
        _compact(store, at, item, team_numbers.expired_stretches(item, since_s))


def _compact(store: Store, at: Item, item: Item, over: Sequence[str] = ()) -> None:
    """Remove stretches that nobody asks for any more; without such ones make few of many."""
    table = store.settings.counts_table
    if over:
        try_commit(store, [items.remove_attributes_write(table, at, over)])
        return
    for values, gone in team_numbers.merged_stretches(item):
        was = {name: item[name] for name in (*values, *gone)}
        try_commit(store, [items.update_write(table, at, values, remove=gone, expected=was)])


def excess_bounds(counter: Counter, item: Mapping[str, Any], passed_s: float) -> tuple[int, int] | None:
    """Between which amounts the number of a group is too high, by its tally item; None: there is no number.

    `passed_s`: until when the count holds everything, epoch seconds.
    """
    assert counter.watch is not None
    if "N" not in item.get(TEAM_NUMBER, {}):
        return None
    above = items.int_attribute(dict(item), TEAM_NUMBER) - tallies.stored_number(counter, item, 0)
    if counter.watch.same_transaction:
        return above, above
    up, down = team_numbers.in_flight(item, passed_s - counter.watch.within_s)
    return above - down, above + up


def intersect_bounds(listed: Item, low: int, high: int, now_s: float, rule: str) -> tuple[int, int, int]:
    """The bounds of this look and of those before it, and when the first of them was, epoch seconds.

    Where they exclude each other, the first one is old, or it followed another `rule`, the looks begin again.
    """
    since = items.int_attribute(listed, "since") if listed.get("rule") == {"S": rule} else 0
    if since and now_s - since < BOUNDS_WINDOW_S:
        both = max(low, items.int_attribute(listed, "low")), min(high, items.int_attribute(listed, "high"))
        if both[0] <= both[1]:
            return (*both, since)
    return low, high, int(now_s)


def _row_writes(store: Store, row: rows.DriftRow, off: int, now_s: float, *, together: bool) -> list[Write]:
    """The write of the drift row.

    A number that is written together with its items has to be off for some minutes before that is confirmed.
    """
    minute = store.settings.minute_of(now_s)
    if not together or off == 0:
        return [rows.recount_write(store, row, off, now_s)]
    return [rows.drift_write(store, row, off, now_s, minute)] if minute > row.last_minute else []
