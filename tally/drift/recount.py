"""A tally compared with the children that it counts, while both keep moving."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from ..counter import Counter
from ..counting import tallies
from ..counting.tallies import GONE
from ..dynamo import queries
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item, minute_of
from ..streams import watermark
from . import history

Family = tuple[Counter, str, int, int]  # as a scan saw a tally, a hint: counter, id, number, number of children
TURNS_MAX = 10  # a turn is lost only to a change of the tally while its children are counted
MOVED = "it moved while its children were counted"
UNDER_WAY = "as_of is older than the newest child that is rolled up"


@dataclass(frozen=True)
class Recount:
    """A tally and its children. `low`, `high`: the bounds of what is missing. `unclear`: why it is not exact; or empty.

    `shards`: the tally's items after the count. When it began, `minute` had not passed; `repaired`: the newest repair.
    """

    tally: int
    children: int
    low: int
    high: int
    unclear: str
    shards: dict[int, Item]
    minute: int = -1
    repaired: str = ""


def recount(store: Store, counter: Counter, id_: str, now_s: float) -> Recount:
    """Count the children of a tally between two looks at it, again if it moved meanwhile.

    The result is exact if the tally did not move, and if the rollup has provably added every child that it adds.
    """
    seen, settings = watermark.read(store), store.settings  # before the first look at the tally
    as_of_s, repaired = seen.as_of(settings), history.newest(store, counter.name, id_)
    added_s = None if as_of_s is None else as_of_s - watermark.LATE * settings.minute_s
    for _ in range(TURNS_MAX):
        count = counted(store, counter, id_, added_s)
        if count.unclear != MOVED:
            break
    return replace(count, minute=settings.minute(min(now_s, seen.noted_s)), repaired=repaired)


def counted(store: Store, counter: Counter, id_: str, added_s: float | None) -> Recount:
    """One count. `added_s`: the rollup has added every child that was made before, or never will; None: not known."""
    children = open_ = 0
    before = shards_of(Call(store), counter, id_)
    read: Item = {"ProjectionExpression": f"#r, #at, {GONE}", "ExpressionAttributeNames": {"#r": "rollup", "#at": "at"}}
    partition = counter.partition_start + id_
    for item in queries.items(store, store.settings.counts_table, partition, *counter.children, **read):
        children += GONE not in item
        if item.get("rollup", {}).get("BOOL"):  # it may have been unliked since
            at = minute_of(item)
            open_ += added_s is None or at is None or (at + 1) * store.settings.minute_s > added_s
    after = shards_of(Call(store), counter, id_)
    lowest, highest = sorted((number(counter, before), number(counter, after)))
    unclear = MOVED if before != after else UNDER_WAY if open_ else ""
    low, high = children - open_ - highest, children - lowest
    assert low == high if not unclear else low <= high
    return Recount(number(counter, after), children, low, high, unclear, after)


def number(counter: Counter, shards: Mapping[int, Item]) -> int:
    """Returns the stored number: the sum of the shards, even below zero; `start` if no shard has a number. A shard may
    have an override alone."""
    numbers = [tallies.stored(counter, item, 0) for item in shards.values() if counter.attribute in item]
    return sum(numbers) if numbers else counter.start


def shards_of(call: Call, counter: Counter, id_: str) -> dict[int, Item]:
    """The tally's items by the number of the shard, without items that somebody put between them (`META#3x`)."""
    shards = ((counter.shard_of(item["SK"]["S"]), item) for item in tallies.shards(call, counter, id_))
    return {shard: item for shard, item in shards if shard is not None}


def families(store: Store, counters: Mapping[str, Counter]) -> Iterator[Family]:
    """Every tally that counts children, from a scan of the counts table: it returns item collections whole."""
    scanned = (item for page in queries.scan(store, store.settings.counts_table) for item in page)
    for partition, family in groupby(scanned, lambda item: str(item["PK"]["S"])):
        prefix, _, target = partition.partition("#")
        parents = [counter for counter in counters.values() if counter.child is not None and counter.prefix == prefix]
        by_counter: dict[str, Family] = {}
        for item, counter in ((item, counter) for item in family for counter in parents):
            is_child = item["SK"]["S"].startswith(str(counter.child)) and GONE not in item
            if is_child or counter.shard_of(item["SK"]["S"]) is not None:
                _, _, tally, children = by_counter.get(counter.name, (counter, target, 0, 0))
                tally += 0 if is_child else tallies.stored(counter, item, 0)
                by_counter[counter.name] = counter, target, tally, children + is_child
        yield from by_counter.values()
