"""Compares a team's own numbers with the exact counts of their items. It writes drift rows, and never a number.

One tally item has the count and the team's number (team_numbers.py). The team's number may lag behind its items, or be
ahead of them. So one check gives a lower and an upper bound of the excess, not the excess itself. A lasting excess lies
within the bounds of every check, so the bounds of ten minutes are intersected. If the intersection does not contain 0,
the number is wrong, or the team's code takes longer than the declared `within_s`.
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
from ..dynamo.keys import Item
from ..dynamo.transactions import try_commit
from ..items import TEAM_NUMBER
from . import scan_state, team_numbers

BOUNDS_WINDOW_S = 600  # the bounds of so many seconds are intersected; after that, the lasting excess may be another


def check_numbers(store: Store, counters: Mapping[str, Counter], now_s: float, until_s: float) -> int:
    """Checks the groups on the list, until `until_s` on the store's clock. Returns how many it checked."""
    checked = 0
    watching = {name: counter for name, counter in counters.items() if counter.watch}
    passed_s = {name: _passed_s(store, counter) for name, counter in watching.items()}
    for listed in _listed_groups(store) if watching else ():  # without `watch`, the sweep's role may not read the list
        name = listed["counter"]["S"]
        if store.clock() >= until_s:
            break
        if passed_s.get(name):
            check_group(store, watching[name], listed, passed_s[name], now_s)
            checked += 1
        elif name in watching:  # no count to compare with, perhaps for hours: so only keeps the tally item small
            tally_key = tallies.key(watching[name], listed["target"]["S"], 0)
            _compact(store, tally_key, queries.get(store.client, store.settings.counts_table, tally_key))
    return checked


def _listed_groups(store: Store) -> Iterator[Item]:
    """Yields the groups on the list (team_numbers.py): their items or team numbers have changed lately."""
    for bucket in range(team_numbers.PARTITIONS):
        yield from queries.partition_items(store, store.settings.ledger_table, f"WATCHED#{bucket}")


def check_group_now(store: Store, counter: Counter, group: str, now_s: float) -> None:
    """Checks one group now, if there is a count. In a group that is not listed, nothing has changed since its check."""
    listed = queries.get(store.client, store.settings.ledger_table, team_numbers.watch_key(counter.name, group))
    passed_s = _passed_s(store, counter)
    if listed and passed_s:
        check_group(store, counter, listed, passed_s, now_s)


def team_number(store: Store, counter: Counter, group: str) -> int | None:
    """Returns the team's number of a group, as the newest record has it; None: the group has no number."""
    item = queries.get(store.client, store.settings.counts_table, tallies.key(counter, group, 0))
    return items.int_attribute(item, TEAM_NUMBER) if "N" in item.get(TEAM_NUMBER, {}) else None


def unproven_reason(store: Store, counter: Counter, group: str) -> str:
    """Returns why nobody can know now whether the number of a group is right; empty if the number is known to be right
    or wrong. Uses only the present bounds, because earlier checks prove nothing about later changes."""
    watch, declaration = counter.watch, counter.items
    assert watch is not None
    assert declaration is not None
    item = queries.get(store.client, store.settings.counts_table, tallies.key(counter, group, 0))
    bounds = excess_bounds(counter, item, _passed_s(store, counter))
    if bounds is None:
        return f"has no {watch.attribute}"
    low, high = bounds
    if low == high or low > 0 or high < 0:
        return ""
    excess = f"the excess of its {watch.attribute} may be {declaration.format(low)} to {declaration.format(high)}"
    return f"changed within {watch.within_s} s, and {excess}: check it again later"


def count_changed_groups(store: Store) -> Mapping[str, int]:
    """Returns how many groups of each counter are on the list. Nobody knows the lasting excess of these groups."""
    return Sums(listed["counter"]["S"] for listed in _listed_groups(store))


def _passed_s(store: Store, counter: Counter) -> int:
    """Returns the time up to which the count includes every record; 0: not known, or the items are not counted."""
    assert counter.items is not None
    counted = scan_state.read_scan(store, counter.name).counted_by == counter.items_digest
    return scan_state.passed_s(store, counter.items.table) if counted else 0


def check_group(store: Store, counter: Counter, listed: Item, passed_s: int, now_s: float) -> None:
    """Checks one group, and stores its bounds and its drift. Stores nothing if another process or the consumer changes
    the row or the listed group after they were read. `listed`: the group's item on the list."""
    assert counter.watch is not None
    target, table = listed["target"]["S"], store.settings.ledger_table
    tally_key = tallies.key(counter, target, 0)
    row = rows.read_row(store, counter.name, target)
    item = queries.get(store.client, store.settings.counts_table, tally_key)
    key, expected = {name: listed[name] for name in ("PK", "SK")}, {"at": items.int_attribute(listed, "at")}
    since_s = passed_s - counter.watch.within_s  # number and items agree on every change from before this time
    rule = f"{counter.watch.within_s} {counter.watch.same_transaction}"  # bounds by another rule are not intersected
    bounds = excess_bounds(counter, item, passed_s)
    if bounds is None or (expected["at"] <= since_s and team_numbers.uncertainty(item, since_s) == (0, 0)):
        low, high = bounds or (0, 0)  # final bounds, or no number: the group leaves the list until its next record
        writes = [{"Delete": items.with_expected({"TableName": table, "Key": key}, expected)}]
    else:
        low, high, first_check_s = intersect_bounds(listed, *bounds, now_s, rule)
        checked: items.Values = {"low": low, "high": high, "since": first_check_s, "rule": rule}
        writes = [items.update_write(table, key, checked, expected=expected)]
    excess = low if low > 0 else high if high < 0 else 0  # the part of the excess that the bounds prove
    minute = store.settings.minute_of(now_s)
    if excess != row.drift:
        # Bounds that allow for `within_s` are proof at once, and so is 0. If item and number share a transaction, the
        # consumer may have passed one of its records, so the row gets one value a minute until the drift is confirmed.
        if not counter.watch.same_transaction or excess == 0:
            writes.append(rows.recount_write(store, row, excess, now_s))
        elif minute > row.last_minute:
            writes.append(rows.drift_write(store, row, excess, now_s, minute))
    if try_commit(store, writes):
        _compact(store, tally_key, item, team_numbers.expired_stretches(item, since_s))


def _compact(store: Store, tally_key: Item, item: Item, expired: Sequence[str] = ()) -> None:
    """Removes the attributes `expired` (`up#time`, `down#time`) from a tally item. If none expired, merges old ones."""
    table = store.settings.counts_table
    if expired:
        try_commit(store, [items.remove_attributes_write(table, tally_key, expired)])
        return
    for values, merged in team_numbers.merged_stretches(item):
        expected = {name: item[name] for name in (*values, *merged)}
        try_commit(store, [items.update_write(table, tally_key, values, remove=merged, expected=expected)])


def excess_bounds(counter: Counter, item: Mapping[str, Any], passed_s: float) -> tuple[int, int] | None:
    """Returns the bounds of the excess of the team's number, by its tally item; None: the item has no team number.
    `passed_s`: the time up to which the count includes every record, epoch seconds."""
    assert counter.watch is not None
    if "N" not in item.get(TEAM_NUMBER, {}):
        return None
    excess = items.int_attribute(dict(item), TEAM_NUMBER) - tallies.stored_number(counter, item, 0)
    if counter.watch.same_transaction:
        return excess, excess
    too_low, too_high = team_numbers.uncertainty(item, passed_s - counter.watch.within_s)
    return excess - too_high, excess + too_low


def intersect_bounds(listed: Item, low: int, high: int, now_s: float, rule: str) -> tuple[int, int, int]:
    """Returns the intersection of a check's bounds with the stored bounds, and when its first check was, epoch seconds.
    `rule`: the fields of Watch that the check used. If the intersection is empty, or the first check is older than
    BOUNDS_WINDOW_S or had another `rule`, this check is the new first check."""
    since = items.int_attribute(listed, "since") if listed.get("rule") == {"S": rule} else 0
    if since and now_s - since < BOUNDS_WINDOW_S:
        highest_low = max(low, items.int_attribute(listed, "low"))
        lowest_high = min(high, items.int_attribute(listed, "high"))
        if highest_low <= lowest_high:
            return highest_low, lowest_high, since
    return low, high, int(now_s)
