"""Reads a team's table page by page while the team writes, and adds the contributions of its items to a scan's recount.

One transaction adds a pack of items, and stores the position of the scan. Each item is added on condition that neither
the stream nor the scan has counted the item. So a scan may stop anywhere and continue, and several processes may run
one scan at once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from ..counter import Counter
from ..counting import tallies
from ..dynamo import clock, items, queries
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..dynamo.queries import Page
from ..dynamo.transactions import CONDITION_FAILED, TRANSACTION_ITEMS_MAX, send, sleep_or_raise_busy, try_commit
from ..errors import TallyError
from ..items import EXAMPLE, RESERVED_GROUP_PREFIX, Contribution, Items, key_types
from . import faults, first_seen, scan_state
from .scan_state import Scan

WRITES_MAX = TRANSACTION_ITEMS_MAX - 1  # in one transaction, which has one write more: the scan's position


class ScanClosedError(TallyError):
    """The scan is closed or too old. Another process finished it or started another scan, or records that the scan
    needs were skipped or lost."""


class UncountableError(TallyError):
    """No item of a table can be counted, because of the table's keys."""


UncountedItem = tuple[Item, Contribution, Item]
"""An item to add: the key of its marker, its contribution, and the item."""


class Step(NamedTuple):
    """The result of one transaction of a scan: how many items it read and added, and the units that this cost."""

    read: int
    added: int
    read_units: float
    write_units: float

    @property
    def units(self) -> float:
        return self.read_units + self.write_units


class Pack(NamedTuple):
    """Items that one transaction adds, with a marker for each item that counts, and an update for each group."""

    items: Sequence[Item]
    markers: int
    groups: frozenset[str]

    @property
    def writes(self) -> int:
        return self.markers + len(self.groups)


@dataclass(frozen=True)
class ScanReader:
    """A scan that reads items. If DynamoDB fails, each method raises the error of `from_botocore`."""

    store: Store
    counter: Counter
    scan: Scan
    now_s: Callable[[], float] = field(default=clock.now_s)
    page_items: int = 0
    """How many items one request reads; 0: as many as DynamoDB returns."""

    @property
    def items_declaration(self) -> Items:
        """The declaration of the items that the scan counts."""
        assert self.counter.items is not None
        return self.counter.items

    @property
    def table(self) -> str:
        return self.store.settings.team_tables[self.items_declaration.table].name

    @cached_property
    def table_description(self) -> dict[str, Any]:
        return queries.describe_table(self.store, self.table)

    @cached_property
    def key_types(self) -> dict[str, str]:
        """The types of the table's keys by name, the partition key first."""
        return key_types(self.table_description)

    @property
    def is_by_partition(self) -> bool:
        """Whether each group is a partition. Items of a reserved group, as items with a fault, may be in any."""
        groups = self.scan.groups
        has_reserved = any(group.startswith(RESERVED_GROUP_PREFIX) for group in groups)
        return bool(groups) and self.items_declaration.group_by is None and not has_reserved

    def partition(self, group: str) -> Item:
        """Returns the value of a group's partition key."""
        return {self.key_types[self.items_declaration.partition_key]: self.items_declaration.partition_key_of(group)}

    def run_steps(self) -> Iterator[Step]:
        """Reads and adds all items after the scan's position, yields each step, and then notes the end of the scan.
        Raises ScanClosedError, UncountableError."""
        if "B" in self.key_types.values():
            raise UncountableError(f"The keys of {self.table} are binary: Tally counts items by strings and numbers.")
        read = self.scan.items
        for page in self._pages():
            units, written = page.units, 0.0
            for pack in self.pack(page):
                read += len(pack.items)
                result = self._add(pack.items, read)
                if result is None:
                    return  # another process has read all items, and ended the scan
                added, written = result
                yield Step(len(pack.items), added, units, written)
                units = 0.0  # the first step of a page has the units of the page's read
            # If the last pack had nothing to write, no transaction stored its position. No spot check is continued.
            if page and not written and not self.scan.is_spot_check:
                position = scan_state.position_write(self.store, self.scan, self.key_of(page[-1]), read)
                if not try_commit(self.store, [position]):
                    self.is_complete()  # raises if the scan is closed; otherwise the next page stores its position
                yield Step(read=0, added=0, read_units=0.0, write_units=1.0)
        if not scan_state.end(self.store, self.scan, self.now_s()):
            raise ScanClosedError(CLOSED_MESSAGE)

    def is_complete(self) -> bool:
        """Returns whether the recount is complete: the scan has ended, and the consumer has passed the end. Raises
        ScanClosedError."""
        stored = scan_state.read_scan(self.store, self.counter.name)
        if stored.generation != self.scan.generation or stored.closed or stored.may_lack_markers(self.now_s()):
            raise ScanClosedError(CLOSED_MESSAGE)
        return scan_state.is_complete(self.store, stored, self.items_declaration.table)

    def _pages(self) -> Iterator[Page]:
        after = json.loads(self.scan.position) if self.scan.position else None
        limited: dict[str, Any] = {"Limit": self.page_items} if self.page_items else {}
        if not self.is_by_partition:
            yield from queries.team_table_pages(self.store, self.table, after=after, **limited)
            return
        key = self.items_declaration.partition_key
        partitions = [self.partition(group) for group in self.scan.groups]
        first = partitions.index(after[key]) if after else 0
        for number, partition in enumerate(partitions[first:]):
            start = None if number else after  # the position is in the first of these partitions
            yield from queries.team_table_pages(self.store, self.table, (key, partition), start, **limited)

    def _add(self, pack: Sequence[Item], read: int) -> tuple[int, float] | None:
        """Adds items that neither the stream nor the scan has counted. Returns how many it added, and the write units;
        None: the scan has ended, so it adds no item. `read`: how many items the scan has read, including this pack.
        """
        name, generation, declaration = self.counter.name, self.scan.generation, self.items_declaration
        values = ((self._if_covered(declaration.contribution(item)), item) for item in pack)
        uncounted = [
            (first_seen.marker_key(name, generation, self.key_of(item)), value, item) for value, item in values if value
        ]
        numbers = (self._if_covered(declaration.team_number(item)) for item in pack)
        team_numbers = dict(number for number in numbers if number)  # by group
        if not uncounted and not team_numbers:
            return 0, 0.0
        store, retries, now_s, units = self.store, Call(self.store).retries(), self.now_s(), 0.0
        table = store.settings.ledger_table
        while True:
            writes = [first_seen.marker_write(table, key, None, value, now_s) for key, value, _ in uncounted]
            writes += [{"Update": update} for update in self._updates(uncounted, team_numbers, now_s)]
            writes.append(scan_state.position_write(store, self.scan, self.key_of(pack[-1]), read))
            sent = send(store.client, writes)
            units += 2 * len(writes)  # 2 units a write, also if the transaction fails
            if sent.committed:
                return len(uncounted), units
            if sent.condition_failed:
                if sent.codes[-1] == CONDITION_FAILED:  # of the position: the scan has ended, or is closed
                    self.is_complete()  # raises if the scan is closed
                    return None
                # Items with a failed condition have a marker: the stream or another process has counted them.
                uncounted = [one for one, code in zip(uncounted, sent.codes, strict=False) if code != CONDITION_FAILED]
                continue
            sent.raise_unless_busy()
            sleep_or_raise_busy(retries)

    def pack(self, page: Sequence[Item]) -> Iterator[Pack]:
        """Yields the items of a page in packs, each with as many items as one transaction takes."""
        pack, declaration = Pack([], 0, frozenset()), self.items_declaration
        for item in page:
            value = self._if_covered(declaration.contribution(item))
            number = self._if_covered(declaration.team_number(item))
            groups = {one.group for one in (value, number) if one}
            larger = Pack([*pack.items, item], pack.markers + (value is not None), pack.groups | groups)
            if larger.writes > WRITES_MAX:
                yield pack
                larger = Pack([item], int(value is not None), frozenset(groups))
            pack = larger
        if pack.items:
            yield pack

    def _if_covered(self, value: Contribution | None) -> Contribution | None:
        return value if value and self.scan.covers(self.counter, value.group) else None

    def _updates(
        self, uncounted: Sequence[UncountedItem], team_numbers: Mapping[str, int], now_s: float
    ) -> Iterator[dict[str, Any]]:
        """Yields an update of each group's tally: adds to the recount, and stores the team's number. The tally's number
        moves by 0, so the update has the nonce of a repair, for which the bookkeeper books nothing."""
        sums: dict[str, int] = defaultdict(int, dict.fromkeys(team_numbers, 0))
        examples: dict[str, str] = {}
        for _, value, item in uncounted:
            sums[value.group] += value.amount
            if example := faults.example(self.items_declaration, item, self.key_types):
                examples[value.group] = example
        minute = self.store.settings.minute_of(now_s)
        for group, amount in sums.items():
            of_group, prefix = (Call(self.store), self.counter, group), tallies.REPAIR_NONCE_PREFIX
            add = tallies.add_write(*of_group, shard=0, amount=0, minute=minute, nonce_prefix=prefix)
            # If the consumer has stored the team's number since the scan began, that newer number stays.
            read = {self.scan.team_number_attribute: team_numbers[group]} if group in team_numbers else {}
            sets = {EXAMPLE: examples[group]} if group in examples else {}
            yield items.extend_update(add, adds={self.scan.recount_attribute: amount}, if_missing=read, sets=sets)

    def key_of(self, item: Item) -> Item:
        return {name: item[name] for name in self.key_types}


CLOSED_MESSAGE = (
    "This scan cannot continue. Another process finished it or started another scan, the counter's declaration changed,"
    " records of the table may be lost, or the scan is older than 15 days. Run the command again."
)
