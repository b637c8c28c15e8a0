"""Counts the items of a team's table while the team writes, and compares the numbers with that, or sets them to it.

A page of the table is added as it was read: each item on condition that nobody has begun with it, and all in the
transaction that notes how far the scan has come. So a scan may die anywhere and go on, and several may run at once.
What `difference` says holds under any traffic, once the scan is settled (team/scan_state.py).
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby
from types import MappingProxyType
from typing import Any, NamedTuple

from ..counter import Counter
from ..counting import tallies
from ..drift import rows
from ..drift.rows import DriftRow
from ..dynamo import items, queries
from ..dynamo.client import Call, Store
from ..dynamo.items import Write
from ..dynamo.keys import Item
from ..dynamo.queries import Page
from ..dynamo.transactions import CONDITION_FAILED, apply_once, pause, send
from ..errors import TallyError
from ..items import ASIDE, EXAMPLE, RECOUNTED, Items, Value, key_types
from . import faults, first_seen, kept_numbers, scan_state
from .kept_numbers import Noted
from .scan_state import Scan

PAGE = 48  # items that are added at once: a marker for each and an update for each group, and the scan's own note
STALE_MAX = 3  # recounts of older scans that an item may keep


class GivenUpError(TallyError):
    """The scan counts no more: another one was begun, or records that it needs were skipped or lost."""


class UncountableError(TallyError):
    """The items of a table cannot be counted."""


Counted = tuple[Item, Value, Item]
"""The key of the marker of an item that counts, what it counts for, and the item."""


class Step(NamedTuple):
    """What a scan did in one step: the items that it read, those that it added, and the units that it used."""

    read: int
    added: int
    read_units: float
    write_units: float

    @property
    def units(self) -> float:
        """All of them."""
        return self.read_units + self.write_units


class Difference(NamedTuple):
    """The number of one group, and what its items come to."""

    group: str
    number: int
    recount: int
    drift: DriftRow
    stale: bool = False
    settled: bool = False
    """Whether this scan has set the number already."""
    first: Mapping[str, Any] = MappingProxyType({})
    """The first item of the tally."""

    @property
    def off(self) -> int:
        """By how much the number is too high."""
        return self.number - self.recount


@dataclass(frozen=True)
class Recount:
    """A scan at work. Each method raises what botocore's errors map to."""

    store: Store
    counter: Counter
    scan: Scan
    now: Callable[[], float] = field(default=time.time)
    page_items: int = 0
    """How many items it reads at a time; 0: as many as DynamoDB gives."""

    @property
    def of(self) -> Items:
        """The items that it counts."""
        assert self.counter.items is not None
        return self.counter.items

    @property
    def table(self) -> str:
        """The name of the team's table."""
        return self.store.settings.own_tables[self.of.table].name

    @cached_property
    def described(self) -> dict[str, Any]:
        """What DynamoDB says of the team's table."""
        return queries.described(self.store, self.table)

    @cached_property
    def key_types(self) -> dict[str, str]:
        """The types of its keys by name, the partition key first."""
        return key_types(self.described)

    @property
    def by_partition(self) -> bool:
        """Whether its groups are partitions of the table. Those of ASIDE are not."""
        groups = self.scan.groups
        return bool(groups) and self.of.group is None and not any(group.startswith(ASIDE) for group in groups)

    def partition(self, group: str) -> Item:
        """The value of the partition key of a group."""
        return {self.key_types[self.of.key]: self.of.partition(group)}

    def steps(self) -> Iterator[Step]:
        """Read and add everything from where the scan stands; then it has ended.

        Raises GivenUpError, UncountableError.
        """
        if "B" in self.key_types.values():
            raise UncountableError(f"The keys of {self.table} are binary: Tally counts items by texts and numbers.")
        read = self.scan.items
        for page in self._pages():
            units = page.units
            for first in range(0, len(page), PAGE):
                some = page[first : first + PAGE]
                read += len(some)
                added, written = self._add(some, read)
                yield Step(len(some), added, units, written)
                units = 0.0
        if not scan_state.end(self.store, self.scan, self.now()):
            raise GivenUpError(GIVEN_UP)

    def settled(self) -> bool:
        """Whether what `difference` says is the whole truth: the scan has ended, and the consumer has passed it. Raises
        GivenUpError."""
        there = scan_state.read(self.store, self.counter.name)
        if there.generation != self.scan.generation or there.closed or there.is_old(self.now()):
            raise GivenUpError(GIVEN_UP)
        return scan_state.settled(self.store, there, self.of.table)

    def difference(self, group: str) -> Difference:
        """The number of one group and its recount."""
        row = rows.read(self.store, self.counter.name, group)  # before the number: a repair moves both
        return self._difference(group, tallies.shards(Call(self.store), self.counter, group), row)

    def differences(self) -> Iterator[Difference]:
        """Those of every group that has a tally, from a scan of the counts table, or a drift that is known: it may be
        that of a number which was kept elsewhere."""
        known = {row.target: row for row in rows.every(self.store) if row.counter == self.counter.name}
        start = self.counter.partition_start
        filtered = {
            "FilterExpression": "begins_with(PK, :start)", "ExpressionAttributeValues": {":start": {"S": start}},
        }  # fmt: skip
        pages = queries.scan(self.store, self.store.settings.counts_table, **filtered)
        for partition, family in groupby(chain.from_iterable(pages), lambda item: str(item["PK"]["S"])):
            group = partition.removeprefix(start)
            row = known.pop(group, DriftRow(self.counter.name, group))
            yield self._difference(group, list(family), row)
        yield from map(self.difference, known)

    def report(self, off: Difference) -> bool:
        """Note the difference as drift, which `tally repair` takes back. False if it has changed since: look again.
        Raises GivenUpError."""
        if not off.off and not off.drift.drift:
            return True
        return self._settle(rows.recounted(self.store, off.drift, off.off, self.now()))

    def set(self, off: Difference) -> bool:
        """Set the number of a group to its recount, once. False if it has changed since: look again. Raises
        GivenUpError."""
        watching = self.counter.watch is not None and not off.group.startswith(ASIDE)
        if off.settled or not (off.off or off.drift.drift or watching):
            return True
        now_s, generation = self.now(), self.scan.generation
        add = tallies.add(
            Call(self.store),
            self.counter,
            off.group,
            0,
            -off.off,
            self.store.settings.minute(now_s),
            by=tallies.REPAIRED,
        )
        add = items.beside(add, sets={RECOUNTED: generation})
        names, values = add["ExpressionAttributeNames"], add["ExpressionAttributeValues"]
        names["#recounted"], values[":generation"] = RECOUNTED, {"N": str(generation)}
        add["ConditionExpression"] = "attribute_not_exists(#recounted) OR #recounted < :generation"
        if not watching:
            return self._settle({"Update": add}, rows.moved(self.store, off.drift, 0, now_s))
        first = off.first.get(self.scan.kept)  # and the row says by how much the number of the team's is off
        add = items.only_if(add, {self.scan.kept: first})
        add = Noted(kept=first or kept_numbers.GONE).beside(add)
        listed = kept_numbers.listed(self.store.settings.ledger_table, self.counter.name, off.group, int(now_s))
        return self._settle({"Update": add}, listed)

    def _settle(self, *writes: Write) -> bool:
        """Commit while the scan is open: then nothing moves its recount any more, and a difference is none."""
        table, still = self.store.settings.ledger_table, {"generation": self.scan.generation, "closed": None}
        if apply_once(self.store, [*writes, items.check(table, scan_state.key(self.counter.name), still)]):
            return True
        self.settled()  # raises if it is closed
        return False

    def tidy(self, group: str) -> None:
        """Remove what older scans have left on the items of a group."""
        table = self.store.settings.counts_table
        for item in tallies.shards(Call(self.store), self.counter, group):
            stale = self._stale(item)
            if stale:
                at = {name: item[name] for name in ("PK", "SK")}
                apply_once(self.store, [items.removing(table, at, stale)])

    def close(self, *, counted: bool = False, found: int | None = None) -> None:
        """Close the scan. `counted`: every number stands for what is declared from now on. `found`: how many groups
        have items, if it has read all. Raises GivenUpError."""
        if not scan_state.close(self.store, self.scan, self.counter.digest if counted else None, found):
            raise GivenUpError(GIVEN_UP)

    def _pages(self) -> Iterator[Page]:
        after = json.loads(self.scan.position) if self.scan.position else None
        limited: dict[str, Any] = {"Limit": self.page_items} if self.page_items else {}
        if not self.by_partition:
            yield from queries.own_pages(self.store, self.table, after=after, **limited)
            return
        partitions = [self.partition(group) for group in self.scan.groups]
        first = partitions.index(after[self.of.key]) if after else 0
        for number, partition in enumerate(partitions[first:]):
            began = None if number else after
            yield from queries.own_pages(self.store, self.table, (self.of.key, partition), began, **limited)

    def _add(self, page: Sequence[Item], read: int) -> tuple[int, float]:
        """Add those items of a page that nobody has begun with. How many, and the units of it."""
        left, kept, last = list(self._counting(page)), self._kept(page), self._key(page[-1])
        if not left and not kept:
            return 0, 0.0
        store, retries, now_s, units = self.store, Call(self.store).retries(), self.now(), 0.0
        while True:
            writes = [first_seen.write(store.settings.ledger_table, key, None, value, now_s) for key, value, _ in left]
            writes += [{"Update": update} for update in self._updates(left, kept, now_s)]
            writes.append(scan_state.moved(store, self.scan, last, read))
            sent = send(store.client, writes)
            units += 2 * len(writes)
            if sent.committed:
                return len(left), units
            if sent.refused:
                if sent.codes[-1] == CONDITION_FAILED:
                    raise GivenUpError(GIVEN_UP)
                left = [one for one, code in zip(left, sent.codes, strict=False) if code != CONDITION_FAILED]
                continue
            sent.conflict_or_raise()
            pause(retries)

    def _kept(self, page: Sequence[Item]) -> dict[str, int]:
        """The numbers that the team keeps, by group."""
        values = [value for item in page if (value := self.of.kept(item))]
        return {group: number for group, number in values if self.scan.takes(self.counter, group)}

    def _updates(self, counting: Sequence[Counted], kept: Mapping[str, int], now_s: float) -> Iterator[dict[str, Any]]:
        sums: dict[str, int] = defaultdict(int, dict.fromkeys(kept, 0))
        examples: dict[str, str] = {}
        for _, value, item in counting:
            sums[value.group] += value.amount
            if example := faults.example(self.of, item, self.key_types):
                examples[value.group] = example
        minute = self.store.settings.minute(now_s)
        for group, amount in sums.items():
            add = tallies.add(Call(self.store), self.counter, group, 0, 0, minute, by=tallies.REPAIRED)
            read = {self.scan.kept: kept[group]} if group in kept else {}  # unless a record has said it since it began
            sets = {EXAMPLE: examples[group]} if group in examples else {}
            yield items.beside(add, adds={self.scan.attribute: amount}, unless_there=read, sets=sets)

    def _counting(self, page: Sequence[Item]) -> Iterator[Counted]:
        for item in page:
            value = self.of.value(item)
            if value is not None and self.scan.takes(self.counter, value.group):
                yield first_seen.key(self.counter.name, self.scan.generation, self._key(item)), value, item

    def _key(self, item: Item) -> Item:
        return {name: item[name] for name in self.key_types}

    def _difference(self, group: str, shards: Sequence[Item], row: DriftRow) -> Difference:
        mine = [item for item in shards if self.counter.shard_of(item["SK"]["S"]) is not None]
        number = sum(tallies.stored(self.counter, item, 0) for item in mine)
        recount = sum(items.number(item, self.scan.attribute) for item in mine)
        stale = any(len(self._stale(item)) > STALE_MAX for item in mine)
        settled = any(items.number(item, RECOUNTED) >= self.scan.generation for item in mine)
        first = next((item for item in mine if item["SK"]["S"] == self.counter.sort_key), {})
        return Difference(group, number, recount, row, stale, settled, first)

    def _stale(self, item: Item) -> list[str]:
        """The attributes of older scans. A newer one may be at work."""
        names = (name for name in item if name.startswith((scan_state.RECOUNT, scan_state.KEPT)))
        return [name for name in names if int(name.partition("#")[2]) < self.scan.generation]


GIVEN_UP = (
    "The scan was given up: another one was begun, the counter was declared otherwise, records of the table may be"
    " lost, or it began long ago. Begin it again."
)
