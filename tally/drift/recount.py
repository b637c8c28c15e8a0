"""Compares a tally with the children that it counts, while callers may change both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from ..counter import Counter
from ..counting import tallies
from ..counting.tallies import TOMBSTONE
from ..dynamo import queries
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item, minute_of
from ..streams import watermark
from . import history

Family = tuple[Counter, str, int, int]  # from a scan, so not exact: counter, id, stored number, number of children
TRIES_MAX = 10  # to count the children; a try fails only if the tally moves while it counts
TALLY_MOVED = "it moved while its children were counted"
ROLLUP_PENDING = "as_of is older than the newest child that is rolled up"


@dataclass(frozen=True)
class Recount:
    """A tally and its children. `low`, `high`: the bounds of the amount that the tally lacks; equal if exact.

    `unproven_reason`: why the recount is not exact; empty if it is exact. `shards`: the tally's items after the count.
    `minute`: of the last sweep before the recount, or earlier (-1: not set). `newest_repair`: the name of the last
    repair before the recount. An edit in `minute` or later, or a newer repair, refutes the recount."""

    tally: int
    children: int
    low: int
    high: int
    unproven_reason: str
    shards: dict[int, Item]
    minute: int = -1
    newest_repair: str = ""


def recount(store: Store, counter: Counter, id_: str, now_s: float) -> Recount:
    """Counts the children of a tally between two reads of the tally. If the tally moved, counts up to TRIES_MAX times.

    The result is exact if the tally did not move, and the rollup has provably added every spilled child.
    """
    watermark_, settings = watermark.read(store), store.settings  # first, so the reads of the tally see what it proves
    as_of_s, newest_repair = watermark_.as_of(settings), history.newest_repair(store, counter.name, id_)
    # A child may commit up to COMMIT_GRACE minutes after the minute in its `at`.
    added_s = None if as_of_s is None else as_of_s - watermark.COMMIT_GRACE * settings.minute_s
    for _ in range(TRIES_MAX):
        count = count_children(store, counter, id_, added_s)
        if count.unproven_reason != TALLY_MOVED:
            break
    return replace(count, minute=settings.minute_of(min(now_s, watermark_.written_s)), newest_repair=newest_repair)


def count_children(store: Store, counter: Counter, id_: str, added_s: float | None) -> Recount:
    """Counts once. `added_s`: the rollup has added every child that was made before this time; None: not known."""
    children = pending = 0
    before = tallies.read_numbered_shards(Call(store), counter, id_)
    names = {"#r": "rollup", "#at": "at"}
    read: Item = {"ProjectionExpression": f"#r, #at, {TOMBSTONE}", "ExpressionAttributeNames": names}
    partition = counter.partition_start + id_
    for item in queries.partition_items(store, store.settings.counts_table, partition, *counter.child_range, **read):
        children += TOMBSTONE not in item
        if item.get("rollup", {}).get("BOOL"):  # a spilled child, which the rollup may not have added yet
            minute = minute_of(item)
            pending += added_s is None or minute is None or (minute + 1) * store.settings.minute_s > added_s
    after = tallies.read_numbered_shards(Call(store), counter, id_)
    lowest, highest = sorted((stored_sum(counter, before), stored_sum(counter, after)))
    unproven_reason = TALLY_MOVED if before != after else ROLLUP_PENDING if pending else ""
    low, high = children - pending - highest, children - lowest  # the tally may have, or lack, the pending children
    assert low == high if not unproven_reason else low <= high
    return Recount(stored_sum(counter, after), children, low, high, unproven_reason, after)


def stored_sum(counter: Counter, shards: Mapping[int, Item]) -> int:
    """Returns the sum of the shards, also below 0; `start` if no shard has a number, but only a copy of an override."""
    numbers = [tallies.stored_number(counter, item, 0) for item in shards.values() if counter.attribute in item]
    return sum(numbers) if numbers else counter.start


def scan_parents(store: Store, counters: Mapping[str, Counter]) -> Iterator[Family]:
    """Yields every tally that counts children, and children without a tally, with 0 as the stored number."""
    scanned = (item for page in queries.scan_pages(store, store.settings.counts_table) for item in page)
    for partition, family in groupby(scanned, lambda item: str(item["PK"]["S"])):  # a scan keeps a partition together
        prefix, _, target = partition.partition("#")
        parents = [counter for counter in counters.values() if counter.child is not None and counter.prefix == prefix]
        by_counter: dict[str, Family] = {}
        for item, counter in ((item, counter) for item in family for counter in parents):
            is_child = item["SK"]["S"].startswith(str(counter.child)) and TOMBSTONE not in item
            if is_child or counter.shard_of(item["SK"]["S"]) is not None:
                _, _, tally, children = by_counter.get(counter.name, (counter, target, 0, 0))
                tally += 0 if is_child else tallies.stored_number(counter, item, 0)
                by_counter[counter.name] = counter, target, tally, children + is_child
        yield from by_counter.values()
