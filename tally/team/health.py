"""The health check of the counters of items, for `GET /status` and `tally status`: whether the items are counted, which
items cannot be counted, and whether Tally can compare the team's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..counter import Counter
from ..counting import tallies
from ..drift.checks import Check
from ..dynamo.client import Call, Store
from ..items import TEAM_NUMBERS_GROUP, UNREADABLE_GROUP
from . import faults, scan_state
from .scan_state import Scan


def items_check(store: Store, counters: Mapping[str, Counter]) -> Check:
    """Checks the counters of items. The result is wrong if the items of a counter are not counted. The result is
    unknown if a counter checks a number of the team, but no group has this number."""
    facts, lines, wrong = dict[str, Any](), list[str](), set[bool | None]()
    for name, counter in counters.items():
        if counter.items is None:
            continue
        scan = scan_state.read_scan(store, name)
        counted, missing = scan.counted_by == counter.items_digest, why_not_comparable(store, counter, scan)
        uncounted = list(faults.read_faults(store, counter)) if counted else []
        facts[name] = {
            "counted": counted,
            "scan": not scan.closed,
            "passed": scan_state.passed_s(store, counter.items.table),
            "uncounted": {one.kind: {"items": one.items, "example": one.example} for one in uncounted},
        }
        if counted and counter.watch:
            facts[name]["numbers"] = count_team_numbers(store, counter)
        word = "counted" if counted else f"not counted: run `tally scan {name}`"
        open_scan = "" if scan.closed else f", a scan is open, {scan.items:,} items read"
        lines += [f"{name} {word}{open_scan}", *(f"{name} does not count {one}" for one in uncounted)]
        lines += [f"{name}: {missing}"] * bool(missing)
        wrong.add(not counted or (None if missing else False))
    return Check("; ".join(lines), facts, True if True in wrong else None if None in wrong else False)


def count_team_numbers(store: Store, counter: Counter) -> int:
    """Returns how many items of the team have the number that `counter.watch` names."""
    return tallies.sum_of_shards(counter, tallies.read_shards(Call(store), counter, TEAM_NUMBERS_GROUP))


def why_not_comparable(store: Store, counter: Counter, scan: Scan | None = None) -> str:
    """Returns why no team number can be compared; empty if an item has a number, or the items are not counted."""
    watch, scan = counter.watch, scan or scan_state.read_scan(store, counter.name)
    if watch is None or scan.counted_by != counter.items_digest or count_team_numbers(store, counter):
        return ""
    item = f"item with the sort key {watch.at}"
    if unread := tallies.sum_of_shards(counter, tallies.read_shards(Call(store), counter, UNREADABLE_GROUP)):
        why, do = f"{unread:,} times an {item} has it, and Tally cannot read it", "Store it as a number"
    else:
        why, do = f"no {item} has it", "Correct `attribute` or `at`"
    return f"0 of {scan.groups_found:,} groups have {watch.attribute}: {why}, so nothing is compared. {do}."
