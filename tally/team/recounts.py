"""Compares numbers with the recount of a scan, and notes the difference as drift, or sets the numbers to the recount.

When the scan is complete (team/scan_state.py), number and recount can be compared under any traffic.
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
from ..items import RECOUNT_GENERATION, RESERVED_GROUP_PREFIX
from . import scan_state, team_numbers
from .scan_reader import CLOSED_MESSAGE, ScanClosedError, ScanReader
from .team_numbers import TeamNumberNote

GROUPS_MAX = TRANSACTION_ITEMS_MAX - 1  # numbers that one transaction sets, beside the check of the scan
STALE_MAX = 3  # attributes of older scans that an item may keep, because their removal costs a write


class Difference(NamedTuple):
    """The number of one group, its recount, and its `drift` row. `is_set`: this scan or a newer scan has set the number
    to its recount. `first_item`: the group's shard 0, on which a scan stores the team's number; empty: there is no
    shard 0. `has_stale_recounts`: an item of the group has more than STALE_MAX attributes of older scans."""

    group: str
    number: int
    recount: int
    drift: DriftRow
    has_stale_recounts: bool = False
    is_set: bool = False
    first_item: Mapping[str, Any] = MappingProxyType({})

    @property
    def excess(self) -> int:
        """By how much the number is too high; negative if it is too low."""
        return self.number - self.recount


class Recount(ScanReader):
    """A scan that reads items, and then compares or sets numbers."""

    def difference(self, group: str) -> Difference:
        """Returns the number of one group and the recount of the scan."""
        # Read the row before the number: if a repair changes both in between, the old row makes the next commit fail.
        row = rows.read_row(self.store, self.counter.name, group)
        return self._difference(group, tallies.read_shards(Call(self.store), self.counter, group), row)

    def all_differences(self) -> Iterator[Difference]:
        """Yields the differences of all groups with a tally or a drift row, from a scan of the counts table. A group
        has only a drift row if an earlier declaration stored its number under other keys."""
        drifts = {row.target: row for row in rows.all_rows(self.store) if row.counter == self.counter.name}
        start = self.counter.partition_start
        filtered = {
            "FilterExpression": "begins_with(PK, :start)", "ExpressionAttributeValues": {":start": {"S": start}},
        }  # fmt: skip
        pages = queries.scan_pages(self.store, self.store.settings.counts_table, **filtered)
        for partition, group_items in groupby(chain.from_iterable(pages), lambda item: str(item["PK"]["S"])):
            group = partition.removeprefix(start)
            row = drifts.pop(group, DriftRow(self.counter.name, group))
            yield self._difference(group, list(group_items), row)
        yield from map(self.difference, drifts)

    def report_drift(self, difference: Difference) -> bool:
        """Notes the difference as drift, which `tally repair` removes. Returns False if the items are not counted, so
        that a difference is not drift, or if the row has changed. The caller then reads the difference again. Raises
        ScanClosedError."""
        if not difference.excess and not difference.drift.drift:
            return True
        noted = rows.recount_write(self.store, difference.drift, difference.excess, self.now_s())
        return self._commit_while_open(noted, only_if_counted=True)

    def set_number(self, difference: Difference) -> bool:
        """Sets the number of a group to its recount, once for this scan, and its drift to 0. Returns False if another
        process has set the number, or if the row or the team's number has changed: then the caller reads the difference
        again. Raises ScanClosedError."""
        has_team_number = self.counter.watch is not None and not difference.group.startswith(RESERVED_GROUP_PREFIX)
        if difference.is_set or not (difference.excess or difference.drift.drift or has_team_number):
            return True
        now_s, add = self.now_s(), self._number_update(difference)
        if not has_team_number:
            return self._commit_while_open({"Update": add}, rows.drift_write(self.store, difference.drift, 0, now_s))
        # If the team keeps a number, the drift row has the excess of the team's number, so the row stays. `listed` puts
        # the group on the list of the groups whose team numbers the sweep checks (watch.py).
        as_read = difference.first_item.get(self.scan.team_number_attribute)  # the team's number as the scan read it
        add = items.with_expected(add, {self.scan.team_number_attribute: as_read})
        add = TeamNumberNote(team_number=as_read or team_numbers.NO_NUMBER).extend(add)
        listed = team_numbers.watch_write(
            self.store.settings.ledger_table, self.counter.name, difference.group, int(now_s)
        )
        return self._commit_while_open({"Update": add}, listed)

    def set_many(self, differences: Sequence[Difference]) -> list[Difference]:
        """Sets the numbers of groups to their recounts, many at once. Returns the differences that it did not set. Sets
        no number with a drift row, because `set_number` must also set the drift to 0.

        All writes have one condition: the scan is open, and the items are not counted yet. Nobody can make a drift row
        before the items are counted, because `report_drift` needs counted items.
        """
        to_set = [one for one in differences if one.excess and not one.is_set and not self.counter.watch]
        without_row = [one for one in to_set if one.drift.last_minute < 0]
        unset_differences = [one for one in differences if one not in without_row]
        expected: items.Expected = {"generation": self.scan.generation, "closed": None, "counted_by": None}
        check = items.check_write(self.store.settings.ledger_table, scan_state.scan_key(self.counter.name), expected)
        for first in range(0, len(without_row), GROUPS_MAX):
            chunk = without_row[first : first + GROUPS_MAX]
            if not try_commit(self.store, [*({"Update": self._number_update(one)} for one in chunk), check]):
                unset_differences += chunk
        return unset_differences

    def _number_update(self, difference: Difference) -> Item:
        """Returns the update that sets the number of a group, if neither this scan nor a newer scan has set it."""
        generation, of_group = self.scan.generation, (Call(self.store), self.counter, difference.group)
        minute, prefix = self.store.settings.minute_of(self.now_s()), tallies.REPAIR_NONCE_PREFIX
        add = tallies.add_write(*of_group, shard=0, amount=-difference.excess, minute=minute, nonce_prefix=prefix)
        add = items.extend_update(add, sets={RECOUNT_GENERATION: generation})
        names, values = add["ExpressionAttributeNames"], add["ExpressionAttributeValues"]
        names["#recounted"], values[":generation"] = RECOUNT_GENERATION, {"N": str(generation)}
        add["ConditionExpression"] = "attribute_not_exists(#recounted) OR #recounted < :generation"
        return add

    def _commit_while_open(self, *writes: Write, only_if_counted: bool = False) -> bool:
        """Commits the writes if the scan is open, because the recount of a closed scan does not move, and so is wrong.
        `only_if_counted`: the items must be counted, too. Returns False if another condition failed."""
        table, expected = self.store.settings.ledger_table, dict[str, Any](generation=self.scan.generation, closed=None)
        expected |= {"counted_by": self.counter.items_digest} if only_if_counted else {}
        check = items.check_write(table, scan_state.scan_key(self.counter.name), expected)
        if try_commit(self.store, [*writes, check]):
            return True
        self.is_complete()  # raises ScanClosedError if the scan is closed
        return False

    def remove_stale(self, group: str) -> None:
        """Removes the attributes of older scans from the items of a group."""
        table = self.store.settings.counts_table
        for item in tallies.read_shards(Call(self.store), self.counter, group):
            stale = self._stale_attributes(item)
            if stale:
                key = {name: item[name] for name in ("PK", "SK")}
                try_commit(self.store, [items.remove_attributes_write(table, key, stale)])

    def close(self, *, has_counted_all: bool = False, groups_found: int | None = None) -> None:
        """Closes the scan. `has_counted_all`: each number is now counted by the declaration. `groups_found`: how
        many groups have items; None: the scan has not read all groups. Raises ScanClosedError."""
        counted_by = self.counter.items_digest if has_counted_all else None
        if not scan_state.close(self.store, self.scan, counted_by, groups_found):
            raise ScanClosedError(CLOSED_MESSAGE)

    def _difference(self, group: str, shards: Sequence[Item], row: DriftRow) -> Difference:
        tally = [item for item in shards if self.counter.shard_of(item["SK"]["S"]) is not None]
        number = sum(tallies.stored_number(self.counter, item, 0) for item in tally)
        recount = sum(items.int_attribute(item, self.scan.recount_attribute) for item in tally)
        stale = any(len(self._stale_attributes(item)) > STALE_MAX for item in tally)
        is_set = any(items.int_attribute(item, RECOUNT_GENERATION) >= self.scan.generation for item in tally)
        first = next((item for item in tally if item["SK"]["S"] == self.counter.sort_key), {})
        return Difference(group, number, recount, row, stale, is_set, first)

    def _stale_attributes(self, item: Item) -> list[str]:
        """Returns the attributes of scans that are older than this scan, because a newer scan may be open."""
        names = (name for name in item if name.startswith((scan_state.RECOUNT_PREFIX, scan_state.TEAM_NUMBER_PREFIX)))
        return [name for name in names if int(name.partition("#")[2]) < self.scan.generation]
