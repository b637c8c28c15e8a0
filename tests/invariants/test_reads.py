"""Reads of tallies and posts: whole, whatever somebody put beside them, and at the price of one page."""

from __future__ import annotations

from typing import Any

import counters
from tally.counting import posts, tallies
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


def test_read_that_sees_the_unlike_but_not_the_like_shows_zero(world: World) -> None:
    """What a read can meet between two shards on DynamoDB, whose queries are no snapshots."""
    world.write_post()
    world.put({"PK": {"S": f"POST#{POST}"}, "SK": {"S": "META#1"}, "likeTally": {"N": "-1"}})
    assert world.read_post()["likes"] == 0
    assert tallies.read(world.call(), counters.LIKES, POST) == 0


def test_read_takes_in_every_shard_and_no_neighbour(world: World) -> None:
    world.write_post(text="99")
    world.like("ann")
    for shard in (1, 9, 10, 99, 255):
        world.put({"PK": {"S": f"POST#{POST}"}, "SK": {"S": f"META#{shard}"}, "likeTally": {"N": "10"}})
    for neighbour in ("METB", "META:", "MET", "LIKE#USER#META"):
        world.put({"PK": {"S": f"POST#{POST}"}, "SK": {"S": neighbour}, "likeTally": {"N": "1000"}})
    world.put({"PK": {"S": f"POST#{POST}1"}, "SK": {"S": "META"}, "likeTally": {"N": "1000"}})
    assert tallies.read(world.call(), counters.LIKES, POST) == 51
    assert posts.read_post(world.call(), counters.LIKES, POST)["likes"] == 51
