"""Predicts from a sample what a scan of a team's table costs, and which items will not count.

The sample costs some read units. The estimate is good if the sample's random places are like the rest of the table.
"""

from __future__ import annotations

from collections import Counter as Multiset
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ..items import FAULT_KINDS, RESERVED_GROUP_PREFIX, Fault
from . import faults
from .recounts import GROUPS_MAX, Recount
from .scan_state import Scan
from .spot_checks import random_items

SAMPLE_PLACES, ITEMS_PER_PLACE = 8, 100  # a sample: 8 random places of the table, and up to 100 items after each
UNIT_BYTES = 4096  # what one read unit reads, strongly consistent
TRANSACTION_S, MB_S = 0.03, 0.15  # about how long DynamoDB takes to commit many writes, and to read 1 MB
# The write units to set a number: one write; with a team's number also its place on the list of checks, and a check.
SET_UNITS, SET_WATCHED_UNITS = 2, 6


@dataclass
class ScanPlan:
    """A sample of a table, and the estimates for the whole table."""

    recount: Recount
    only_groups: tuple[str, ...] = ()  # the only groups that the scan counts; empty: all groups
    sets_numbers: bool = False  # whether the scan sets the numbers; False: it only compares them
    units_per_s_max: int = 0  # how many units a second the scan may take; 0: no limit
    items_read: int = 0  # how many items the sample has; the next numbers are of the sample, too
    items_counting: int = 0  # how many items count
    writes: int = 0  # how many writes add these items, and store the position of the scan
    transactions: int = 0  # of these writes
    items_not_counting: int = 0
    """Items that may count by their keys, but lack an attribute, differ from `Items.where`, or have the amount 0."""
    groups: set[str] = field(default_factory=set)
    faults: Multiset[str] = field(default_factory=Multiset)
    examples: dict[str, str] = field(default_factory=dict)  # by the kind of the fault

    def __post_init__(self) -> None:
        # `pack` leaves out items without an open scan. So the sample has its own open scan, which is not stored.
        scan = Scan(self.recount.counter.name, 1, self.recount.counter.items_digest, self.only_groups, closed=False)
        with_scan, seen = replace(self.recount, scan=scan), dict[str, object]()
        for _ in range(SAMPLE_PLACES):
            page = random_items(with_scan, ITEMS_PER_PLACE)  # two places may have the same items
            new = [item for item in page if seen.setdefault(str(with_scan.key_of(item)), item) is item]
            for pack in with_scan.pack(new):
                self.transactions += 1
                self.writes += pack.writes + 1
                self.groups |= pack.groups
            for item in new:
                result = self.recount.items_declaration.contribution_or_fault(item)
                self.items_read += 1
                if isinstance(result, Fault):
                    self.faults[result.kind] += 1
                    example = faults.example(self.recount.items_declaration, item, self.recount.key_types)
                    self.examples.setdefault(result.kind, example)
                elif result is None:
                    self.items_not_counting += self.recount.items_declaration.may_count(item)
                elif not result.is_reserved:  # items with a team's number count in a reserved group
                    self.items_counting += 1

    @property
    def items(self) -> int:
        """About how many items the table has: DynamoDB counts them every six hours."""
        return max(int(self.recount.table_description.get("ItemCount", 0)), self.items_read)

    @property
    def read_units(self) -> int:
        """The read units of the whole table."""
        return max(1, -(-int(self.recount.table_description.get("TableSizeBytes", 0)) // UNIT_BYTES))

    def extrapolate(self, number: float) -> int:
        """Returns the estimate for the whole table if the sample has `number`."""
        return round(number * self.items / max(self.items_read, 1))

    @property
    def numbers_to_set(self) -> int:
        """About how many numbers the scan sets. If an attribute names the groups, the groups are few, and the sample
        has most of them. Otherwise each partition is a group."""
        if not self.sets_numbers:
            return 0
        has_few_groups = self.recount.items_declaration.group_by is not None
        return len(self.groups) if has_few_groups else self.extrapolate(len(self.groups))

    @property
    def write_units(self) -> int:
        """The write units in Tally's tables. One transaction sets at most GROUPS_MAX numbers, and checks the scan."""
        units_per_number, numbers = SET_WATCHED_UNITS if self.recount.counter.watch else SET_UNITS, self.numbers_to_set
        return 2 * self.extrapolate(self.writes) + units_per_number * numbers + 2 * -(-numbers // GROUPS_MAX)

    @property
    def seconds(self) -> int:
        """About how long the scan takes."""
        numbers_per_transaction = 1 if self.recount.counter.watch else GROUPS_MAX
        transactions = self.extrapolate(self.transactions) + -(-self.numbers_to_set // numbers_per_transaction)
        seconds = self.read_units * UNIT_BYTES / 2**20 * MB_S + transactions * TRANSACTION_S
        reads_per_s_max = half_of_provisioned_reads(self.recount)
        if self.units_per_s_max:
            seconds = max(seconds, (self.read_units + self.write_units) / self.units_per_s_max)
        elif reads_per_s_max:
            seconds = max(seconds, self.read_units / reads_per_s_max)
        return max(1, round(seconds))

    def lines(self) -> Iterator[str]:
        """Yields the lines that `tally scan` prints before it asks for confirmation."""
        table, command = self.recount.items_declaration.table, "scan" if self.sets_numbers else "recount"
        groups = sum(not group.startswith(RESERVED_GROUP_PREFIX) for group in self.groups)
        yield (
            f"{table} has about {self.items:,} items. Of a sample of {self.items_read:,}, {self.items_counting:,}"
            f" count, in {groups:,} groups"
        )
        speed = f" at {self.units_per_s_max:,} units a second" if self.units_per_s_max else ""
        yield (
            f"a {command} takes about {self.read_units:,} read units of {table}, {self.write_units:,} write units of"
            f" Tally's tables and {self.seconds:,} s{speed}; then it reads the counts table"
        )
        if capacity := half_of_provisioned_reads(self.recount) * 2:
            share = self.read_units / self.seconds / capacity
            yield f"that is {share:.0%} of the {capacity:,} read units a second that {table} has provisioned"
        for kind, number in self.faults.most_common():
            example = self.examples[kind]
            yield f"about {self.extrapolate(number):,} will not count, with {FAULT_KINDS[kind]}, such as {example}"
        if self.items_not_counting:
            lacking = self.extrapolate(self.items_not_counting)
            yield f"about {lacking:,} count for nothing: they lack an attribute, or `where` differs"


def half_of_provisioned_reads(recount: Recount) -> int:
    """Returns half of the table's provisioned read units a second; 0: on demand. The team needs the other half."""
    provisioned = recount.table_description.get("ProvisionedThroughput", {})
    return int(provisioned.get("ReadCapacityUnits", 0)) // 2
