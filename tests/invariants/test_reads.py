"""Reads of tallies and posts: whole, whatever somebody put beside them, and at the price of one page."""

from __future__ import annotations

from typing import Any

import counters
from tally.counting import tallies
from tests.invariants.world import POST, VIDEO, World


def padded(partition: str, sort_key: str, **numbers: int) -> dict[str, Any]:
    """A tally item of 390 KB, as only hands can make it: three do not fit into one answer of a Query."""
    item: dict[str, Any] = {"PK": {"S": partition}, "SK": {"S": sort_key}, "padding": {"S": "x" * 390_000}}
    return item | {name: {"N": str(number)} for name, number in numbers.items()}


def test_a_tally_of_several_pages_is_read_whole(world: World) -> None:
    for shard in range(1, 8):
        world.put(padded(f"VID#{VIDEO}", f"STATS#TOTAL#{shard}", play_count=shard))
    assert world.read_plays() == 28


def test_counters_that_are_read_together_are_read_whole(world: World) -> None:
    partition = counters.VISITS.partition_start + "u"
    for number, counter in enumerate((counters.VISITS, counters.BOT_VISITS), 1):
        for shard in range(4):
            world.put(padded(partition, counter.shard_key(shard), **{counter.attribute: number}))
    read = tallies.read_together(world.call(), [counters.VISITS, counters.BOT_VISITS], "u")
    assert read == [4, 8]


def test_a_post_of_several_pages_is_read_whole(world: World) -> None:
    world.write_post()
    for shard in range(1, 5):
        world.put(padded(f"POST#{POST}", f"META#{shard}", likeTally=shard))
    post = world.read_post()
    assert (post["likes"], post["body"]) == (10, "hello")
