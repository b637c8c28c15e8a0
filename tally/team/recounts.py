"""Compares numbers with what a scan has counted, and notes the difference as drift, or sets the numbers to it.

What `difference` says holds under any traffic, once the scan is settled (team/scan_state.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from types import MappingProxyType
from typing import Any, NamedTuple

from ..counting import tallies
from ..drift import rows
from ..drift.rows import DriftRow
from ..dynamo import items, queries
from ..dynamo.client import Call
from ..dynamo.items import Write
from ..dynamo.keys import Item
from ..dynamo.transactions import TRANSACTION_ITEMS_MAX, try_commit
from ..items import ASIDE, RECOUNT_GENERATION
from . import scan_state, team_numbers
from .scan_reader import ABANDONED_MESSAGE, ScanAbandonedError, ScanReader
from .team_numbers import TeamNumberNote

GROUPS_MAX = TRANSACTION_ITEMS_MAX - 1  # whose numbers are set at once, on one condition
STALE_MAX = 3  # recounts of older scans that an item may keep


class Difference(NamedTuple):
    """The number of one group, and what its items come to."""

    group: str
    number: int
    recount: int
    drift: DriftRow
    has_stale_recounts: bool = False
    is_set: bool = False
    """Whether this scan has set the number already."""
    first_item: Mapping[str, Any] = MappingProxyType({})
    """The first item of the tally."""

    @property
    def excess(self) -> int:
        """By how much the number is too high."""
        return self.number - self.recount


class Recount(ScanReader):
    """A scan at work: what it reads, and what it says of the numbers."""

    def difference(self, group: str) -> Difference:
        """The number of one group and its recount."""
        row = rows.read_row(self.store, self.counter.name, group)  # before the number: a repair moves both
        return self._difference(group, tallies.read_shards(Call(self.store), self.counter, group), row)

    def all_differences(self) -> Iterator[Difference]:
        """Those of every group that has a tally, from a scan of the counts table, or a drift that is known: it may be
        that of a number which was kept elsewhere."""
        known = {row.target: row for row in rows.all_rows(self.store) if row.counter == self.counter.name}
        start = self.counter.partition_start
        filtered = {
            "FilterExpression": "begins_with(PK, :start)", "ExpressionAttributeValues": {":start": {"S": start}},
        }  # fmt: skip
        pages = queries.scan_pages(self.store, self.store.settings.counts_table, **filtered)
        for partition, family in groupby(chain.from_iterable(pages), lambda item: str(item["PK"]["S"])):
            group = partition.removeprefix(start)
            row = known.pop(group, DriftRow(self.counter.name, group))
            yield self._difference(group, list(family), row)
        yield from map(self.difference, known)

    def report_drift(self, off: Difference) -> bool:
        """Note the difference as drift, which `tally repair` takes back. False if it has changed since: look again.
        Raises ScanAbandonedError."""
        if not off.excess and not off.drift.drift:
            return True
        return self._commit_while_open(
            rows.recount_write(self.store, off.drift, off.excess, self.now_s()), counted=True
        )

    def set_number(self, off: Difference) -> bool:
        """Set the number of a group to its recount, once. False if it has changed since: look again. Raises
        ScanAbandonedError."""
        watching = self.counter.watch is not None and not off.group.startswith(ASIDE)
        if off.is_set or not (off.excess or off.drift.drift or watching):
            return True
        now_s, add = self.now_s(), self._number_update(off)
        if not watching:
            return self._commit_while_open({"Update": add}, rows.drift_write(self.store, off.drift, 0, now_s))
        # and the row says by how much the number of the team's is off
        first = off.first_item.get(self.scan.team_number_attribute)
        add = items.with_expected(add, {self.scan.team_number_attribute: first})
        add = TeamNumberNote(team_number=first or team_numbers.NO_NUMBER).beside(add)
        listed = team_numbers.watch_write(self.store.settings.ledger_table, self.counter.name, off.group, int(now_s))
        return self._commit_while_open({"Update": add}, listed)

    def set_many(self, differences: Sequence[Difference]) -> list[Difference]:
        """Set the numbers of groups to their recounts, many at once. Returns the differences for `set_number` to set.

        All rest on one condition: the scan is open, and no number stands. Nobody can note a difference as drift then,
        because `report_drift` rests on the opposite.
        """
        plain = [
            one
            for one in differences
            if one.excess and not one.is_set and one.drift.last_minute < 0 and not self.counter.watch
        ]
        left = [one for one in differences if one not in plain]
        still: items.Expected = {"generation": self.scan.generation, "closed": None, "counted": None}
        check = items.check_write(self.store.settings.ledger_table, scan_state.scan_key(self.counter.name), still)
        for first in range(0, len(plain), GROUPS_MAX):
            some = plain[first : first + GROUPS_MAX]
            if not try_commit(self.store, [*({"Update": self._number_update(one)} for one in some), check]):
                left += some
        return left

    def _number_update(self, off: Difference) -> Item:
        """The update that sets the number of a group, once."""
        now_s, generation = self.now_s(), self.scan.generation
        minute = self.store.settings.minute_of(now_s)
        add = tallies.add_write(
            Call(self.store), self.counter, off.group, 0, -off.excess, minute, nonce_prefix=tallies.REPAIR_NONCE_START
        )
        add = items.extend_update(add, sets={RECOUNT_GENERATION: generation})
        names, values = add["ExpressionAttributeNames"], add["ExpressionAttributeValues"]
        names["#recounted"], values[":generation"] = RECOUNT_GENERATION, {"N": str(generation)}
        add["ConditionExpression"] = "attribute_not_exists(#recounted) OR #recounted < :generation"
        return add

    def _commit_while_open(self, *writes: Write, counted: bool = False) -> bool:
        """Commit while the scan is open: then nothing moves its recount any more, and a difference is none. `counted`:
        while the number stands, too."""
        table = self.store.settings.ledger_table
        still: items.Expected = {"generation": self.scan.generation, "closed": None}
        still = {**still, "counted": self.counter.items_digest} if counted else still
        if try_commit(self.store, [*writes, items.check_write(table, scan_state.scan_key(self.counter.name), still)]):
            return True
        self.is_complete()  # raises if it is closed
        return False

    def remove_stale(self, group: str) -> None:
        """Remove what older scans have left on the items of a group."""
        table = self.store.settings.counts_table
        for item in tallies.read_shards(Call(self.store), self.counter, group):
            stale = self._stale_attributes(item)
            if stale:
                at = {name: item[name] for name in ("PK", "SK")}
                try_commit(self.store, [items.remove_attributes_write(table, at, stale)])

    def close(self, *, counted: bool = False, found: int | None = None) -> None:
        """Close the scan. `counted`: the scan has counted every number by the declaration. `found`: how many groups
        have items, if it has read all. Raises ScanAbandonedError."""
        if not scan_state.close(self.store, self.scan, self.counter.items_digest if counted else None, found):
            raise ScanAbandonedError(ABANDONED_MESSAGE)

    def _difference(self, group: str, shards: Sequence[Item], row: DriftRow) -> Difference:
        mine = [item for item in shards if self.counter.shard_of(item["SK"]["S"]) is not None]
        number = sum(tallies.stored_number(self.counter, item, 0) for item in mine)
        recount = sum(items.int_attribute(item, self.scan.recount_attribute) for item in mine)
        stale = any(len(self._stale_attributes(item)) > STALE_MAX for item in mine)
        settled = any(items.int_attribute(item, RECOUNT_GENERATION) >= self.scan.generation for item in mine)
        first = next((item for item in mine if item["SK"]["S"] == self.counter.sort_key), {})
        return Difference(group, number, recount, row, stale, settled, first)

    def _stale_attributes(self, item: Item) -> list[str]:
        """The attributes of older scans. A newer one may be at work."""
        names = (name for name in item if name.startswith((scan_state.RECOUNT_START, scan_state.TEAM_NUMBER_START)))
        return [name for name in names if int(name.partition("#")[2]) < self.scan.generation]
