"""The scans of the items that a counter counts, as the ledger has them: one at a time for each counter.

While a scan is open, tally items have a recount beside their number, and every write moves both. Once it has ended,
and the consumer has passed it by SLACK, `number - recount` is by how much the number is off, whatever happens
meanwhile. Then the scan is closed: nothing moves its recount any more.

    ITEMS, counter -> table, counted, generation, digest, groups, began, ended, closed, position, items, spot, found
    PASSED, table -> passed, seen, stream

`counted`: the digest of the declaration by which the items are counted; none while they are not.
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

CLOCK_SLACK = 5  # minutes: how far the clock of a scan and the stamps of DynamoDB may differ

SCANS_PARTITION = "ITEMS"
ATTEMPTS_MAX = 5
RECOUNT_START = "recount#"
"""How the attributes of tally items begin that scans count into."""
TEAM_NUMBER_START = "kept#"


class Scan(NamedTuple):
    """The last scan of a counter's items. Times in epoch seconds; 0: not yet."""

    counter: str
    generation: int = 0
    """0: there has been none."""
    digest: str = ""
    """Of the declaration that it counts by."""
    groups: tuple[str, ...] = ()
    """The only groups that it counts; none: all."""
    began_s: int = 0
    ended_s: int = 0
    closed: bool = True
    position: str = ""
    """Where it goes on, as JSON; empty: at the beginning."""
    items: int = 0
    """How many it has read."""
    counted: str = ""

    table: str = ""
    """The team's table whose items it counts."""
    spot: bool = False
    """Whether the sweep does it, of some groups (team/spot_checks.py)."""
    found: int = 0
    """How many groups have items, by the last scan of all."""

    @classmethod
    def of(cls, stored: Item) -> Scan:
        """A scan as it is stored."""
        names = ("digest", "position", "counted", "table")
        texts: dict[str, Any] = {name: stored[name]["S"] for name in names if name in stored}
        numbers = [items.int_attribute(stored, name) for name in ("generation", "began", "ended", "items", "found")]
        generation, began_s, ended_s, read, found = numbers
        closed = not generation or "closed" in stored
        texts["spot"] = "spot" in stored
        texts["groups"] = tuple(stored.get("groups", {"S": ""})["S"].split())
        times: dict[str, Any] = {"began_s": began_s, "ended_s": ended_s}
        return cls(stored["SK"]["S"], generation, closed=closed, items=read, found=found, **times, **texts)

    @property
    def recount_attribute(self) -> str:
        """The attribute of tally items that it counts into. No counter has it."""
        return f"{RECOUNT_START}{self.generation}"

    @property
    def team_number_attribute(self) -> str:
        """The attribute of tally items for a number of the team's as it finds it (team/team_numbers.py)."""
        return f"{TEAM_NUMBER_START}{self.generation}"

    def is_for_other_declaration(self, counter: Counter | None) -> bool:
        """Whether the number, or an open scan, counts by another declaration. `counter`: as it is declared now; None:
        it is not declared."""
        known = "" if counter is None else counter.items_digest
        return not {self.counted, "" if self.closed else self.digest} <= {"", known}

    def covers(self, counter: Counter, group: str) -> bool:
        """Whether what counts in a group moves the recount."""
        return self.is_open_for(counter) and (not self.groups or group in self.groups)

    def may_lack_markers(self, now_s: float) -> bool:
        """Whether markers of it may be gone, which say who began with an item."""
        return now_s >= self.began_s + first_seen.SCAN_VALID_S

    def is_open_for(self, counter: Counter) -> bool:
        """Whether it is open, and of the counter as it is declared."""
        return not self.closed and self.digest == counter.items_digest


def scan_key(counter: str) -> Item:
    """The key of a counter's scan."""
    return keys.key(SCANS_PARTITION, counter)


def read_scan(store: Store, counter: str) -> Scan:
    """The last scan of a counter, strongly consistent."""
    stored = queries.get(store.client, store.settings.ledger_table, scan_key(counter))
    return Scan.of(stored) if stored else Scan(counter)


def begin(
    store: Store, counter: Counter, now_s: float, groups: Iterable[str] = (), *, spot: bool = False
) -> Scan | None:
    """Begin a scan, of these groups or of all; None if somebody else has begun one. `spot`: as a spot check.

    One that is open is given up: its recount moves no more. The consumer's mapping must exist: what is written from now
    on must reach it.
    """
    assert counter.items is not None
    seen, groups = read_scan(store, counter.name), tuple(groups)
    generation = max(seen.generation + 1, int(now_s))  # of no scan that the ledger knows no more, or by another name
    values: dict[str, Any] = {
        "generation": generation, "digest": counter.items_digest, "groups": " ".join(groups), "began": int(now_s),
        "items": 0, "table": counter.items.table, **({"spot": 1} if spot else {}),
    }  # fmt: skip
    gone = ("ended", "closed", "position", *(() if spot else ("spot",)))
    gone = gone if seen.counted == counter.items_digest else (*gone, "counted")
    _try_change(store, seen, values, gone)
    there = read_scan(store, counter.name)  # an answer may be lost; the same scan, begun by somebody else, is as good
    ours = (generation, counter.items_digest, groups, int(now_s))
    return there if (there.generation, there.digest, there.groups, there.began_s) == ours else None


def position_write(store: Store, scan: Scan, position: Item, read: int) -> Write:
    """The write that notes how far a scan has come: the key of the last item that it has read, and how many it has."""
    values: dict[str, Any] = {"items": read, "position": json.dumps(position)}
    return items.update_write(
        store.settings.ledger_table, scan_key(scan.counter), values, expected=expect_counting(scan)
    )


def expect_counting(scan: Scan) -> items.Expected:
    """That a scan still counts: it has not ended, was not closed, and no other one was begun."""
    return {"generation": scan.generation, "ended": None, "closed": None}


def same_scan_check_write(store: Store, scan: Scan) -> Write:
    """The check that no other scan was begun, and that this one is open or closed as it was read."""
    was: items.Expected = {
        "generation": scan.generation or None,
        "closed": 1 if scan.generation and scan.closed else None,
    }
    return items.check_write(store.settings.ledger_table, scan_key(scan.counter), was)


def end(store: Store, scan: Scan, now_s: float) -> bool:
    """Note that a scan has read all. False if it was closed, or another one was begun."""
    if _try_change(store, scan, {"ended": int(now_s)}, was=expect_counting(scan)):
        return True
    there = read_scan(store, scan.counter)
    return there.generation == scan.generation and there.ended_s > 0


def close(store: Store, scan: Scan, counted: str | None = None, found: int | None = None) -> bool:
    """Close a scan. `counted`: the digest of the declaration by which the scan has counted every group. `found`: how
    many groups have items. None: the scan does not say, so the item keeps what it has."""
    given = {"counted": counted, "found": found}
    values: dict[str, Any] = {"closed": 1, **{name: value for name, value in given.items() if value is not None}}
    if _try_change(store, scan, values, was={"generation": scan.generation, "closed": None}):
        return True
    there = read_scan(store, scan.counter)
    return there.generation == scan.generation and (counted is None or there.counted == counted)


def scans_for_consumer(store: Store, table: str, counters: Mapping[str, Counter]) -> dict[str, Scan]:
    """The last scans of the counters of a table, read by a consumer that knows them as they are declared, by name.

    A number may belong to another declaration, or to a counter that is declared no more. The consumer gives such a
    number up before it skips records: that declaration may come back. Raises StoreBusyError.
    """
    for _ in range(ATTEMPTS_MAX):
        listed = [
            Scan.of(item) for item in queries.partition_items(store, store.settings.ledger_table, SCANS_PARTITION)
        ]
        seen = {scan.counter: scan for scan in listed if scan.table == table}
        others = [scan for scan in seen.values() if scan.is_for_other_declaration(counters.get(scan.counter))]
        if not others:
            return {name: seen.get(name, Scan(name)) for name in counters}
        for scan in others:
            invalidate(store, scan)
    raise StoreBusyError("The scans of the items keep changing.")


def invalidate(store: Store, scan: Scan) -> bool:
    """Note that the items are not counted by any declaration, and give up an open scan: records are skipped or lost.
    False if the scan has changed since it was read: then nothing happens."""
    if not scan.counted and scan.closed:
        return True
    was: items.Expected = {"generation": scan.generation or None, "counted": scan.counted or None}
    return _try_change(store, scan, {"closed": 1}, ("counted",), was)


def invalidate_until_done(store: Store, counter: str) -> None:
    """Note that records of its items are lost, whatever its scan becomes meanwhile. Raises StoreBusyError."""
    for _ in range(ATTEMPTS_MAX):
        if invalidate(store, read_scan(store, counter)):
            return
    raise StoreBusyError(f"The scan of {counter} keeps changing.")


def _try_change(
    store: Store, seen: Scan, values: items.Values, removed: tuple[str, ...] = (), was: items.Expected | None = None
) -> bool:
    """Change what the ledger has, on condition that it is as it was. False if it is not."""
    before = was or {"generation": seen.generation or None}
    write = items.update_write(
        store.settings.ledger_table, scan_key(seen.counter), values, remove=removed, expected=before
    )
    return try_commit(store, [write])


def is_complete(store: Store, scan: Scan, table: str) -> bool:
    """Whether the recount of a scan that has ended holds all that it should: the consumer has passed it."""
    return 0 < scan.ended_s <= passed_s(store, table) - CLOCK_SLACK * store.settings.minute_s


def as_of(store: Store, counter: Counter) -> int | None:
    """Until when the number of a counter of items holds every write of them, epoch seconds; None: not known.

    It is about that time: a quiet stream shard that shows no record may have one. Raises NotCountedError while the
    items are not counted as they are declared.
    """
    assert counter.items is not None
    table = counter.items.table
    if read_scan(store, counter.name).counted != counter.items_digest:
        raise NotCountedError(
            f"{counter.name} counts items of the table {table}, and those that are there are not counted yet: run"
            f" `tally scan {counter.name}`."
        )
    return passed_s(store, table) or None


def passed_key(table: str) -> Item:
    """The key of the note that says how far the consumer has come in a team's table."""
    return keys.key("PASSED", table)


def passed_s(store: Store, table: str) -> int:
    """Until when the consumer has passed every record of a team's table, epoch seconds; 0: not known."""
    return items.int_attribute(queries.get(store.client, store.settings.ledger_table, passed_key(table)), "passed")
