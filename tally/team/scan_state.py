"""Stores in the ledger the last scan of each counter of team items. A counter has at most one open scan.

A scan counts the items into a recount, an attribute of the tally items beside the number. While the scan is open, each
record of an item moves number and recount. When the scan has ended and the consumer has passed the end by CLOCK_SLACK,
`number - recount` is the excess of the number, under any traffic. A closed scan's recount does not move any more.

    ITEMS, counter -> the fields of `Scan` (dynamo/keys.py has the names of the attributes)
    PASSED, table -> passed, seen, stream (progress.py describes these)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..counter import Counter
from ..dynamo import items, keys, queries
from ..dynamo.client import Store
from ..dynamo.items import Write
from ..dynamo.keys import Item
from ..dynamo.transactions import try_commit
from ..errors import NotCountedError, StoreBusyError
from . import first_seen

CLOCK_SLACK = 5  # minutes by which the clock of a scan and the times of DynamoDB's records may differ

SCANS_PARTITION = "ITEMS"
ATTEMPTS_MAX = 5  # an attempt fails only if another process changes a scan at the same moment
RECOUNT_PREFIX = "recount#"
"""The start of the name of the recount, an attribute of tally items. The generation of the scan follows."""
TEAM_NUMBER_PREFIX = "team_number#"
"""The start of the name of an attribute with the team's number, as the scan read it. The generation follows."""


class Scan(NamedTuple):
    """The last scan of a counter's items. `began_s`, `ended_s`: when the scan began, and when it had read all items, in
    epoch seconds; 0: not yet. `closed`: the results were used, the scan was abandoned, or there was no scan."""

    counter: str
    generation: int = 0
    """The number of the scan: each scan of a counter has a higher number; 0: there was no scan."""
    digest: str = ""
    """`Counter.items_digest` of the declaration that the scan counts by."""
    groups: tuple[str, ...] = ()
    """The only groups that the scan counts; empty: all groups."""
    began_s: int = 0
    ended_s: int = 0
    closed: bool = True
    position: str = ""
    """The key of the last item that the scan has read, as JSON; empty: the scan has not read an item."""
    items: int = 0
    """How many items the scan has read."""
    counted_by: str = ""
    """The digest of the declaration that the number was counted by; empty: the number is not valid."""
    table: str = ""
    """The team's table whose items the scan counts."""
    is_spot_check: bool = False
    """Whether the scan is a spot check of some groups by the sweep (team/spot_checks.py)."""
    groups_found: int = 0
    """How many groups have items, by the last scan of all groups."""

    @classmethod
    def of(cls, stored: Item) -> Scan:
        """Returns the scan of a stored item."""
        names = ("digest", "position", "counted_by", "table")
        fields: dict[str, Any] = {name: stored[name]["S"] for name in names if name in stored}
        fields |= {name: items.int_attribute(stored, name) for name in ("generation", "items")}
        fields["groups_found"] = items.int_attribute(stored, "found")
        fields |= {f"{name}_s": items.int_attribute(stored, name) for name in ("began", "ended")}
        fields |= {"closed": not fields["generation"] or "closed" in stored, "is_spot_check": "spot" in stored}
        return cls(stored["SK"]["S"], groups=tuple(stored.get("groups", {"S": ""})["S"].split()), **fields)

    @property
    def recount_attribute(self) -> str:
        """The attribute of tally items that the scan counts into. No counter may declare this attribute."""
        return f"{RECOUNT_PREFIX}{self.generation}"

    @property
    def team_number_attribute(self) -> str:
        """The attribute of tally items for the team's number as the scan reads it (team/team_numbers.py)."""
        return f"{TEAM_NUMBER_PREFIX}{self.generation}"

    def is_for_other_declaration(self, counter: Counter | None) -> bool:
        """Returns whether the number or an open scan counts by another declaration than `counter` (None: removed)."""
        declared = "" if counter is None else counter.items_digest
        return not {self.counted_by, "" if self.closed else self.digest} <= {"", declared}

    def covers(self, counter: Counter, group: str) -> bool:
        """Returns whether the items of a group move the recount now."""
        return self.is_open_for(counter) and (not self.groups or group in self.groups)

    def may_lack_markers(self, now_s: float) -> bool:
        """Returns whether markers of the scan may have expired. The scan could then count an item a second time."""
        return now_s >= self.began_s + first_seen.SCAN_VALID_S

    def is_open_for(self, counter: Counter) -> bool:
        """Returns whether the scan is open, and counts by the counter's present declaration."""
        return not self.closed and self.digest == counter.items_digest


def scan_key(counter: str) -> Item:
    """Returns the key of a counter's scan."""
    return keys.key(SCANS_PARTITION, counter)


def read_scan(store: Store, counter: str) -> Scan:
    """Returns the last scan of a counter, by a strongly consistent read."""
    stored = queries.get(store.client, store.settings.ledger_table, scan_key(counter))
    return Scan.of(stored) if stored else Scan(counter)


def begin(
    store: Store, counter: Counter, now_s: float, groups: Iterable[str] = (), *, is_spot_check: bool = False
) -> Scan | None:
    """Starts a scan of these groups, or of all. Returns None if another process started a scan.

    Abandons an open scan of the counter: records do not move its recount any more. If the number was counted by another
    declaration, removes `counted_by`, so nobody can read the number until the new scan is closed. The event source
    mapping of the consumer must exist, because the consumer has to get each record from the start of the new scan on.
    """
    assert counter.items is not None
    before, groups = read_scan(store, counter.name), tuple(groups)
    # Also at least the time: a renamed counter has no stored scan, but its tally items may have recounts of old scans.
    generation = max(before.generation + 1, int(now_s))
    values: dict[str, Any] = {
        "generation": generation, "digest": counter.items_digest, "groups": " ".join(groups), "began": int(now_s),
        "items": 0, "table": counter.items.table, **({"spot": 1} if is_spot_check else {}),
    }  # fmt: skip
    removed = ("ended", "closed", "position", *(() if is_spot_check else ("spot",)))
    removed = removed if before.counted_by == counter.items_digest else (*removed, "counted_by")
    _try_change(store, before, values, removed)
    scan = read_scan(store, counter.name)  # the answer may be lost, and another process may have started an equal scan
    started = (generation, counter.items_digest, groups, int(now_s))
    return scan if (scan.generation, scan.digest, scan.groups, scan.began_s) == started else None


def position_write(store: Store, scan: Scan, position: Item, items_read: int) -> Write:
    """Returns the write of a scan's position: the key of the last item that the scan has read, and how many items."""
    table, values = store.settings.ledger_table, dict[str, Any](items=items_read, position=json.dumps(position))
    return items.update_write(table, scan_key(scan.counter), values, expected=expect_reading(scan))


def expect_reading(scan: Scan) -> items.Expected:
    """Returns what a scan's attributes must be while it reads: not ended, not closed, and of the same generation."""
    return {"generation": scan.generation, "ended": None, "closed": None}


def same_scan_check_write(store: Store, scan: Scan) -> Write:
    """Returns the check that no scan was started or closed after this scan was read."""
    closed = 1 if scan.generation and scan.closed else None
    expected: items.Expected = {"generation": scan.generation or None, "closed": closed}
    return items.check_write(store.settings.ledger_table, scan_key(scan.counter), expected)


def end(store: Store, scan: Scan, now_s: float) -> bool:
    """Notes that a scan has read all items. Returns False if it was closed first, or another scan was started."""
    if _try_change(store, scan, {"ended": int(now_s)}, expected=expect_reading(scan)):
        return True
    stored = read_scan(store, scan.counter)
    return stored.generation == scan.generation and stored.ended_s > 0


def close(store: Store, scan: Scan, counted_by: str | None = None, groups_found: int | None = None) -> bool:
    """Closes a scan. Returns False if another scan was started, or if another process closed this scan and stored
    another `counted_by`. `counted_by`: the digest of the declaration, if the scan has counted every group.
    `groups_found`: how many groups have items. None: the stored value stays."""
    results = {"counted_by": counted_by, "found": groups_found}
    values: dict[str, Any] = {"closed": 1, **{name: value for name, value in results.items() if value is not None}}
    if _try_change(store, scan, values, expected={"generation": scan.generation, "closed": None}):
        return True
    stored = read_scan(store, scan.counter)
    return stored.generation == scan.generation and (counted_by is None or stored.counted_by == counted_by)


def scans_for_consumer(store: Store, table: str, counters: Mapping[str, Counter]) -> dict[str, Scan]:
    """Returns the last scans of a table's counters, by name, before the consumer applies records.

    The consumer skips the records of a counter whose declaration changed or was removed. So this function first
    invalidates the counter's scan, in case the old declaration is deployed again. Raises StoreBusyError.
    """
    for _ in range(ATTEMPTS_MAX):
        stored = map(Scan.of, queries.partition_items(store, store.settings.ledger_table, SCANS_PARTITION))
        scans = {scan.counter: scan for scan in stored if scan.table == table}
        outdated = [scan for scan in scans.values() if scan.is_for_other_declaration(counters.get(scan.counter))]
        if not outdated:
            return {name: scans.get(name, Scan(name)) for name in counters}
        for scan in outdated:
            invalidate(store, scan)
    raise StoreBusyError("The scans of the items keep changing.")


def invalidate(store: Store, scan: Scan) -> bool:
    """Removes `counted_by`, and abandons an open scan, because the consumer skips records or has lost records.

    If the scan has changed since it was read, changes nothing and returns False.
    """
    if not scan.counted_by and scan.closed:
        return True
    expected: items.Expected = {"generation": scan.generation or None, "counted_by": scan.counted_by or None}
    return _try_change(store, scan, {"closed": 1}, ("counted_by",), expected)


def invalidate_until_done(store: Store, counter: str) -> None:
    """Invalidates the last scan of a counter, and tries again if the scan changes. Raises StoreBusyError."""
    for _ in range(ATTEMPTS_MAX):
        if invalidate(store, read_scan(store, counter)):
            return
    raise StoreBusyError(f"The scan of {counter} keeps changing.")


def _try_change(
    store: Store, scan: Scan, values: items.Values, remove: tuple[str, ...] = (), expected: items.Expected | None = None
) -> bool:
    """Changes the stored scan if its attributes are as expected. Returns False if they are not."""
    expected = expected or {"generation": scan.generation or None}
    table, key = store.settings.ledger_table, scan_key(scan.counter)
    return try_commit(store, [items.update_write(table, key, values, remove=remove, expected=expected)])


def is_complete(store: Store, scan: Scan, table: str) -> bool:
    """Returns whether the recount is complete: the scan has ended, and the consumer is CLOCK_SLACK past the end."""
    return 0 < scan.ended_s <= passed_s(store, table) - CLOCK_SLACK * store.settings.minute_s


def as_of(store: Store, counter: Counter) -> int | None:
    """Returns the time up to which a counter's number includes every write of its items; None: not known. The time is
    approximate, because the sweep's read of a quiet stream shard may miss a record. Raises NotCountedError while the
    items are not counted by the present declaration."""
    assert counter.items is not None
    table = counter.items.table
    if read_scan(store, counter.name).counted_by != counter.items_digest:
        raise NotCountedError(
            f"{counter.name} counts items of the table {table}, and the items in the table are not counted yet: run"
            f" `tally scan {counter.name}`."
        )
    return passed_s(store, table) or None


def passed_key(table: str) -> Item:
    """Returns the key of the note that says how far the consumer has come in a team's table."""
    return keys.key("PASSED", table)


def passed_s(store: Store, table: str) -> int:
    """Returns the time up to which the consumer has passed every record of a team's table; 0: not known."""
    return items.int_attribute(queries.get(store.client, store.settings.ledger_table, passed_key(table)), "passed")
