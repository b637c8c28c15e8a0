"""A tally compared with the children that it counts, while both keep moving."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..counter import Counter
from ..counting import tallies
from ..dynamo import queries
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item

TURNS_MAX = 10  # a turn is lost only to a change of the tally while its children are counted


@dataclass(frozen=True)
class Recount:
    """A tally and its children, counted while the tally did not move. `shards`: its items at that moment."""

    tally: int
    children: int
    shards: dict[int, Item]
    spilled_s: int | None = None
    """Epoch seconds of the newest child that the rollup adds (or has added); None if there is none."""


def recount(call: Call, counter: Counter, id_: str, turns: int = TURNS_MAX) -> Recount | None:
    """Count the children of a tally. None if it moved each time while they were being counted."""
    after = shards_of(call, counter, id_)
    for _ in range(turns):
        before = after
        children, spilled_s = _children(call, counter, id_)
        after = shards_of(call, counter, id_)
        if after == before:
            return Recount(number(counter, after), children, after, spilled_s)
    return None


def number(counter: Counter, shards: dict[int, Item]) -> int:
    """The stored number: the sum of the shards, even below zero; `start` without a shard."""
    if not shards:
        return counter.start
    return sum(tallies.stored(counter, item, 0) for item in shards.values())


def shards_of(call: Call, counter: Counter, id_: str) -> dict[int, Item]:
    """The tally's items by the number of the shard, without items that somebody put between them (`META#3x`)."""
    items = tallies.shards(call, counter, id_)
    shards = ((counter.shard_of(item["SK"]["S"]), item) for item in items)
    return {shard: item for shard, item in shards if shard is not None}


def _children(call: Call, counter: Counter, id_: str) -> tuple[int, int | None]:
    """How many children there are, and when the newest one that the rollup adds was made."""
    found, spilled_s = 0, None
    pages = queries.pages(
        call.store,
        call.store.settings.counts_table,
        counter.partition_start + id_,
        *counter.children,
        ProjectionExpression="#rollup, likedAt",
        ExpressionAttributeNames={"#rollup": "rollup"},
    )
    for page in pages:
        found += len(page)
        made = [int(item["likedAt"]["N"]) for item in page if item.get("rollup", {}).get("BOOL") and "likedAt" in item]
        spilled_s = max([*made, *([spilled_s] if spilled_s is not None else [])], default=None)
    return found, spilled_s


@dataclass(frozen=True)
class Family:
    """One tally that counts children, as a scan saw it: a hint, because the scan takes time."""

    counter: Counter
    target: str
    tally: int
    children: int


def families(store: Store, counters: Mapping[str, Counter]) -> Iterator[list[Family]]:
    """Every tally that counts children, page by page of a scan of the counts table.

    A scan returns item collections whole, so a family is complete when the next one begins. The last one of a page
    waits for the next page.
    """
    parents = [counter for counter in counters.values() if counter.child is not None]
    open_: dict[tuple[str, str], Family] = {}
    partition = ""
    for page in queries.scan(store, store.settings.counts_table):
        done: list[Family] = []
        for item in page:
            if item["PK"]["S"] != partition:
                done += open_.values()
                open_, partition = {}, item["PK"]["S"]
            for counter in parents:
                _join(open_, counter, item)
        yield done
    yield list(open_.values())


def _join(open_: dict[tuple[str, str], Family], counter: Counter, item: Item) -> None:
    prefix, _, target = item["PK"]["S"].partition("#")
    sort = item["SK"]["S"]
    is_child = counter.child is not None and sort.startswith(counter.child)
    if prefix != counter.prefix or not (is_child or counter.shard_of(sort) is not None):
        return
    family = open_.get((counter.name, target), Family(counter, target, 0, 0))
    number = 0 if is_child else tallies.stored(counter, item, 0)
    open_[counter.name, target] = Family(counter, target, family.tally + number, family.children + is_child)
