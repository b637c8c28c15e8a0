"""What a scan of a team's table will take, and which items will not count: from a sample, which costs some read units.

The sample are items at places that chance chooses. It is fair as far as the parts of the table are alike.
"""

from __future__ import annotations

from collections import Counter as Multiset
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ..images import Image
from ..items import ASIDE, KINDS, Fault
from . import faults
from .recounts import GROUPS_MAX, Recount
from .scan_state import Scan
from .spot_checks import some_items

PLACES, AT_EACH = 8, 100  # of a sample, and how many items it reads there
UNIT_BYTES = 4096  # of a strongly consistent read
TRANSACTION_S, MB_S = 0.03, 0.15  # about what DynamoDB takes for a transaction of many writes, and to read 1 MB
SET_UNITS, SET_WATCHED_UNITS = 2, 6  # to set a number; with the number of the team's it is a transaction of its own


@dataclass
class Plan:
    """A sample, and what it says of the whole table."""

    recount: Recount
    only: tuple[str, ...] = ()
    """The only groups that it counts; none: all."""
    setting: bool = False
    """Whether it sets the numbers."""
    units: int = 0
    """How many units a second the scan may take; 0: as many as it can."""
    read: int = 0
    counting: int = 0
    writes: int = 0
    packs: int = 0
    lacking: int = 0
    """Items at their place that lack an attribute, or have another value of `where`."""
    groups: set[str] = field(default_factory=set)
    faults: Multiset[str] = field(default_factory=Multiset)
    examples: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        scan = Scan(self.recount.counter.name, 1, self.recount.counter.items_digest, self.only, closed=False)
        scanning, seen = replace(self.recount, scan=scan), dict[str, object]()
        for _ in range(PLACES):
            page = some_items(scanning, AT_EACH)
            new = [item for item in page if seen.setdefault(str(scanning.key_of(item)), item) is item]
            for pack in scanning.packed(new):
                self.packs += 1
                self.writes += pack.writes + 1
                self.groups |= pack.groups
            for item in new:
                self._judge(item)

    def _judge(self, item: Image) -> None:
        judged, self.read = self.recount.of.judged(item), self.read + 1
        if isinstance(judged, Fault):
            self.faults[judged.kind] += 1
            self.examples.setdefault(judged.kind, faults.example(self.recount.of, item, self.recount.key_types))
        elif judged is None:
            self.lacking += self.recount.of.may_count(item)
        elif not judged.aside:
            self.counting += 1

    @property
    def items(self) -> int:
        """How many items the table has, about: DynamoDB counts them every six hours."""
        return max(int(self.recount.described.get("ItemCount", 0)), self.read)

    @property
    def reads(self) -> int:
        """The read units of the whole table."""
        return max(1, -(-int(self.recount.described.get("TableSizeBytes", 0)) // UNIT_BYTES))

    def whole(self, number: float) -> int:
        """What a number of the sample comes to in the whole table."""
        return round(number * self.items / max(self.read, 1))

    @property
    def sets(self) -> int:
        """How many numbers are set. Groups of an attribute are few: the sample has most of them."""
        groups = len(self.groups) if self.recount.of.group is not None else self.whole(len(self.groups))
        return groups if self.setting else 0

    @property
    def write_units(self) -> int:
        """The write units in Tally's tables."""
        each = SET_WATCHED_UNITS if self.recount.counter.watch else SET_UNITS
        return 2 * self.whole(self.writes) + each * self.sets + 2 * -(-self.sets // GROUPS_MAX)

    @property
    def seconds(self) -> int:
        """How long the scan takes, about."""
        many = 1 if self.recount.counter.watch else GROUPS_MAX
        transactions = self.whole(self.packs) + -(-self.sets // many)
        seconds = self.reads * UNIT_BYTES / 2**20 * MB_S + transactions * TRANSACTION_S
        capacity = half_of(self.recount)
        if self.units:
            seconds = max(seconds, (self.reads + self.write_units) / self.units)
        elif capacity:
            seconds = max(seconds, self.reads / capacity)
        return max(1, round(seconds))

    def lines(self) -> Iterator[str]:
        """Returns the lines that `tally scan` prints before it asks."""
        table, what = self.recount.of.table, "scan" if self.setting else "recount"
        groups = sum(not group.startswith(ASIDE) for group in self.groups)
        yield (
            f"{table} has about {self.items:,} items. Of a sample of {self.read:,}, {self.counting:,} count, in"
            f" {groups:,} groups"
        )
        yield (
            f"a {what} takes about {self.reads:,} read units of {table}, {self.write_units:,} write units of Tally's"
            f" tables and {self.seconds:,} s{f' at {self.units:,} units a second' if self.units else ''}; then it reads"
            " the counts table"
        )
        if capacity := half_of(self.recount) * 2:
            share = self.reads / self.seconds / capacity
            yield f"that is {share:.0%} of the {capacity:,} read units a second that {table} has provisioned"
        for kind, number in self.faults.most_common():
            yield f"about {self.whole(number):,} will not count, with {KINDS[kind]}, such as {self.examples[kind]}"
        if self.lacking:
            yield f"about {self.whole(self.lacking):,} count for nothing: they lack an attribute, or `where` differs"


def half_of(recount: Recount) -> int:
    """Half of the read units a second that the team's table has provisioned: the team needs the rest; 0: on demand."""
    provisioned = recount.described.get("ProvisionedThroughput", {})
    return int(provisioned.get("ReadCapacityUnits", 0)) // 2
