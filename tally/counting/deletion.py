"""Removes a parent with its children. A parent is the id of any counter with children, such as a post.

From the removal on, readers find nothing of the parent. The sweep removes the children, and moves the tally for each.

The call marks every shard of the parent's tally as a tombstone (attribute `gone`), which takes no child. A row in the
ledger tells the sweep of the parent. Each sweep continues from what it finds:

    1. It marks the shards that lack the mark, because the call may have crashed before it marked them.
    2. It removes the children. One transaction removes as many children as there are shards, and moves each shard once.
    3. When no child is left, the row waits for TOMBSTONE_KEPT_S, because a late copy of a spilled put may still come.
       If a sweep finds a child after the wait, it removes the child, and the row waits once more.
    4. One transaction brings each shard to 0. Another transaction removes all shards, and the row.

Until the row is removed, nobody can use the id for a new parent. So a late write does not meet a new parent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..counter import Counter
from ..dynamo import clock, items, keys, queries
from ..dynamo.client import Call, Store
from ..dynamo.items import Expected, Write
from ..dynamo.keys import Item, key
from ..dynamo.transactions import commit_change, commit_writes
from ..errors import ChangeRefusedError, ConfigurationError, StoreBusyError, TallyError
from ..observe import logger
from . import tallies
from .children import TOMBSTONE_KEPT_S, removal_writes
from .receipts import retired_error
from .tallies import TOMBSTONE, Tally

ROWS_MAX = 25  # parents that take turns in a sweep; the next parents follow when these are done
PAGE_MAX = 96  # children that are read at once: six transactions, if there are 16 shards
TRANSACTION_CHILDREN_MAX = 50  # each with a write of the tally: DynamoDB takes 100 writes
TRANSACTION_S_MAX = 1.0  # for one transaction, because the other parents wait
MARKS_S_MAX = TOMBSTONE_KEPT_S / 2  # after this time a call marks no shard, because a sweep may soon free the id
ATTEMPTS_MAX = 5  # an attempt fails only if another call removes the same parent at the same moment
_ANYTHING: Expected = {}  # no attribute of the parent's item must have a certain value


def remove_parent(
    call: Call, counter: Counter, parent: str, *, expected: Expected = _ANYTHING, extra_writes: Sequence[Write] = ()
) -> bool:
    """Removes a parent with its children. Returns False if another call was first, or if no tally and no child exists.

    After the call, the parent's number is 0, its list of children is empty, and it takes no child until the sweep has
    removed all children. Costs 4 WCU, 1 WCU for each shard after the first, and 1 to 3 RCU. `expected`: what attributes
    of shard 0, the parent's own item, must be. `extra_writes`: writes of the same transaction. Raises
    CounterRetiredError, StoreBusyError if the parent keeps changing, and the errors of transactions.commit_change.
    """
    if counter.retired:
        raise retired_error(counter)
    tally, table = Tally(counter, parent), call.store.settings.counts_table
    for _ in range(ATTEMPTS_MAX):
        first = queries.get(call.store.client, table, tallies.key(counter, parent, 0))
        if not first and not tallies.read_shards(call, *tally):
            # If the first child spilled, there may be children without a tally.
            pages = queries.partition_pages(call.store, table, tally.partition, *counter.child_range, Limit=PAGE_MAX)
            if not any(TOMBSTONE not in item for page in pages for item in page):
                return False
        # If the answer to an earlier attempt was lost, the mark has the nonce of this call.
        since_s, is_own_mark = items.int_attribute(first, TOMBSTONE), first.get("removal") == {"S": call.nonce}
        if TOMBSTONE not in first:
            since_s, is_own_mark = int(clock.now_s()), True
            if not _mark_removed(call, tally, since_s, expected, extra_writes):
                continue  # another call marked or changed the parent first, so read it again
        _mark_shards(call, tally, range(1, counter.max_shards), since_s)
        return is_own_mark
    raise StoreBusyError(f"{counter.name} of {parent} keep changing.")


def _mark_removed(call: Call, tally: Tally, now_s: int, expected: Expected, extra: Sequence[Write]) -> bool:
    """Marks shard 0, and puts the row for the sweep. Returns False if another call marked or changed the parent."""
    where = call.store.settings.counts_table, tallies.key(*tally, 0)
    mark = items.update_write(*where, {TOMBSTONE: now_s, "removal": call.nonce}, expected={**expected, TOMBSTONE: None})
    writes = [mark, *extra, _removal_row_write(call.store, tally, now_s, found_nothing=False)]
    try:
        commit_change(call, *tally, lambda _: writes)
    except ChangeRefusedError:
        return False
    return True


def _removal_row_write(store: Store, tally: Tally, due_s: int, *, found_nothing: bool) -> Write:
    """Returns the write of the row, due at `due_s`. `found_nothing`: True if a sweep has left no child and no unmarked
    shard, so that the next sweep ends the removal if it finds nothing; False in the row of the call."""
    row_key = key(keys.DELETED_KEY, f"{due_s:012d}#{tally.counter.name}#{tally.id}")
    values: items.Values = {"counter": tally.counter.name, "target": tally.id, "found_nothing": {"BOOL": found_nothing}}
    return items.put_write(store.settings.ledger_table, row_key, values)


def _mark_shards(call: Call, tally: Tally, shards: Iterable[int], since_s: int) -> None:
    """Marks shards of a removed parent, one at a time, because one transaction would conflict with every child's write.

    A mark makes a missing shard. If this happened after the end of the removal, the shard would refuse the children of
    a new parent. So the marks stop MARKS_S_MAX after `since_s`, when the removal began or the sweep read the shards.
    """
    for shard in shards:
        assert shard, "shard 0 is marked with the row: this write would make a parent"
        if clock.now_s() - since_s >= MARKS_S_MAX:
            return
        mark = {
            "TableName": call.store.settings.counts_table,
            "Key": tallies.key(*tally, shard),
            "UpdateExpression": f"SET {TOMBSTONE} = if_not_exists({TOMBSTONE}, :now)",
            "ExpressionAttributeValues": {":now": {"N": str(since_s)}},
        }
        commit_writes(call, [{"Update": mark}])


class SweptParents(NamedTuple):
    """How many children and parents a sweep removed, how many parents failed, and whether it tried all parents."""

    children: int
    parents: int
    failed: int
    finished: bool


def sweep(store: Store, counters: Mapping[str, Counter], until_s: float) -> SweptParents:
    """Continues to remove parents, until `until_s` on the store's clock. The next sweep continues from there.

    Parents take turns, with one transaction each. If a removal fails, the sweep logs the error and continues.
    """
    run = _ParentsSweep(store, counters, until_s)
    finished = False
    try:
        finished = run.run()
    except TallyError:
        logger.exception("removed parents not read")
    return SweptParents(run.children, run.parents, run.failed, finished)


@dataclass
class _ParentsSweep:
    """One sweep. `children`, `parents`: how many it removed. `failed`: how many parents it could not remove."""

    store: Store
    counters: Mapping[str, Counter]
    until_s: float
    children: int = 0
    parents: int = 0
    failed: int = 0

    @property
    def is_out_of_time(self) -> bool:
        return self.store.clock() >= self.until_s

    def run(self) -> bool:
        """Continues with every parent whose row is due. Returns whether there was time for every parent."""
        ledger, end = self.store.settings.ledger_table, f"{int(clock.now_s()) + 1:012d}"  # keys begin with the due time
        for page in queries.partition_pages(self.store, ledger, keys.DELETED_KEY, high=end, Limit=ROWS_MAX):
            turns = deque((row, self._removal(row)) for row in page)
            while turns:
                if self.is_out_of_time:
                    return False
                row, removal = turns.popleft()
                try:
                    next(removal)
                    turns.append((row, removal))
                except StopIteration:
                    pass
                except (TallyError, KeyError, TypeError, ValueError):  # the last three, if the row was put by hand
                    logger.exception("parent not removed yet", extra={"row": row["SK"]})
                    self.failed += 1
        return True

    def _removal(self, row: Item) -> Iterator[None]:
        """Continues to remove one parent. Yields after each transaction, so that other parents have their turns."""
        name, found_nothing = row["counter"]["S"], row["found_nothing"]["BOOL"]
        if name not in self.counters:
            raise ConfigurationError(f"The counter {name} is not declared.")
        tally = Tally(self.counters[name], row["target"]["S"])
        shards = tallies.read_numbered_shards(self._new_call(), *tally)
        if TOMBSTONE not in shards.get(0, {}):
            logger.warning("not a removed parent", extra={"row": row["SK"]})
            commit_writes(self._new_call(), [self._delete_row_write(row)])
            return  # somebody put the row by hand: a removal marks shard 0 in the transaction that puts the row
        shard_numbers = {*shards, *range(tally.counter.max_shards)}  # an earlier declaration may have had more shards
        unmarked = [shard for shard in sorted(shard_numbers) if TOMBSTONE not in shards.get(shard, {})]
        _mark_shards(self._new_call(), tally, unmarked, int(clock.now_s()))
        found_nothing = found_nothing and not unmarked
        yield
        chunk_size, child_range = min(tally.counter.max_shards, TRANSACTION_CHILDREN_MAX), tally.counter.child_range
        table = self.store.settings.counts_table
        for page in queries.partition_pages(self.store, table, tally.partition, *child_range, Limit=PAGE_MAX):
            children = [item for item in page if TOMBSTONE not in item]
            for first in range(0, len(children), chunk_size):
                found_nothing = False
                call, chunk = self._new_call(), children[first : first + chunk_size]
                # Each child moves another shard, because a transaction may write an item once only.
                parts = [removal_writes(call, *tally, child, shard) for shard, child in enumerate(chunk)]
                commit_writes(call, [write for writes in parts for write in writes])
                self.children += len(chunk)
                yield
        if found_nothing:
            self._finish(row, tally)
        else:
            self._postpone(row, tally)

    def _postpone(self, row: Item, tally: Tally) -> None:
        """Makes the row due when no late copy of a put can come any more."""
        later_row = _removal_row_write(self.store, tally, int(clock.now_s()) + TOMBSTONE_KEPT_S, found_nothing=True)
        commit_writes(self._new_call(), [self._delete_row_write(row), later_row])

    def _finish(self, row: Item, tally: Tally) -> None:
        """If the sum of the shards is 0, removes the shards and the row. If not, the tally drifts or the rollup lags,
        and a later sweep tries again."""
        shards = tallies.read_numbered_shards(self._new_call(), *tally)
        numbers = {shard: tallies.stored_number(tally.counter, item, 0) for shard, item in shards.items()}
        if sum(numbers.values()):
            logger.warning("removed parent has a tally", extra={"row": row["SK"], "tally": sum(numbers.values())})
            self.failed += 1
            self._postpone(row, tally)
            return
        if any(numbers.values()):
            commit_writes(self._new_call(), self._zero_shards_writes(tally, numbers))
        zero = "(#number = :zero OR attribute_not_exists(#number))"
        delete = {
            "TableName": self.store.settings.counts_table,
            "ConditionExpression": f"attribute_exists({TOMBSTONE}) AND {zero}",
            "ExpressionAttributeNames": {"#number": tally.counter.attribute},
            "ExpressionAttributeValues": {":zero": {"N": "0"}},
        }
        removals: list[Write] = [{"Delete": {**delete, "Key": tallies.key(*tally, shard)}} for shard in shards]
        commit_writes(self._new_call(), [*removals, self._delete_row_write(row)])
        self.parents += 1

    def _zero_shards_writes(self, tally: Tally, numbers: dict[int, int]) -> list[Write]:
        """Returns the writes that bring every shard to 0, booked on one minute. The sum over the shards stays 0."""
        assert not sum(numbers.values())
        call, writes = self._new_call(), list[Write]()
        minute = tallies.minute_now(call)
        for shard, number in numbers.items():
            if number:
                move = tallies.add_write(call, *tally, shard, -number, minute)
                move["ExpressionAttributeValues"] |= {":expected": {"N": str(number)}}
                move["ConditionExpression"] = f"#number = :expected AND attribute_exists({TOMBSTONE})"
                writes.append({"Update": move})
        return writes

    def _delete_row_write(self, row: Item) -> Write:
        ledger = {"TableName": self.store.settings.ledger_table, "Key": {"PK": row["PK"], "SK": row["SK"]}}
        return {"Delete": {**ledger, "ConditionExpression": "attribute_exists(PK)"}}

    def _new_call(self) -> Call:
        """Makes a call with a deadline for one transaction."""
        return Call(self.store, deadline_s=min(self.until_s, self.store.clock() + TRANSACTION_S_MAX))
