"""The health check of the counters of items: whether they are counted, what counts for nothing, and whether the team
keeps a number at all. `GET /status` and `tally status` show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..counter import Counter
from ..counting import tallies
from ..drift.checks import Check
from ..dynamo.client import Call, Store
from ..items import ASIDE, NUMBERS
from . import faults, scan_state
from .scan_state import Scan


def items_check(store: Store, counters: Mapping[str, Counter]) -> Check:
    """`wrong`: some counter is not counted. None: no group of some counter has the number that is compared with it."""
    facts, lines, wrong = dict[str, Any](), list[str](), set[bool | None]()
    for name, counter in counters.items():
        if counter.items is None:
            continue
        scan = scan_state.read_scan(store, name)
        counted, missing = scan.counted == counter.items_digest, why_not_comparable(store, counter, scan)
        found = list(faults.read_faults(store, counter)) if counted else []
        facts[name] = {
            "counted": counted,
            "scan": not scan.closed,
            "passed": scan_state.passed_s(store, counter.items.table),
            "uncounted": {one.kind: {"items": one.items, "example": one.example} for one in found},
        }
        if counted and counter.watch:
            facts[name]["numbers"] = count_team_numbers(store, counter)
        word = "counted" if counted else f"not counted: `tally scan {name}`"
        reading = "" if scan.closed else f", a scan is open, {scan.items:,} items read"
        lines += [f"{name} {word}{reading}", *(f"{name} does not count {one}" for one in found)]
        lines += [f"{name}: {missing}"] * bool(missing)
        wrong.add(not counted or (None if missing else False))
    return Check("; ".join(lines), facts, True if True in wrong else None if None in wrong else False)


def count_team_numbers(store: Store, counter: Counter) -> int:
    """How many items have the number that the team keeps."""
    return tallies.sum_of_shards(counter, tallies.read_shards(Call(store), counter, NUMBERS))


def why_not_comparable(store: Store, counter: Counter, scan: Scan | None = None) -> str:
    """Why nobody can tell whether the numbers that the team keeps are right: there are none. Empty if there are some,
    and if the items are not counted."""
    watch, scan = counter.watch, scan or scan_state.read_scan(store, counter.name)
    if watch is None or scan.counted != counter.items_digest or count_team_numbers(store, counter):
        return ""
    at = f"item with the sort key {watch.at}"
    if unread := tallies.sum_of_shards(counter, tallies.read_shards(Call(store), counter, f"{ASIDE}kept")):
        why, do = f"{unread:,} times an {at} has it, and Tally cannot read it", "Store it as a number"
    else:
        why, do = f"no {at} has it", "Correct `number` or `at`"
    return f"0 of {scan.found:,} groups have {watch.attribute}: {why}, so nothing is compared. {do}."
