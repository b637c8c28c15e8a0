"""`as_of`: what readers are told is never ahead of what the rollup has added, in any shard, whatever stands still."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.invariants.judged import VISITS, Deployment, deployed

PAGE = "https://example.com/a"


@pytest.fixture
def world() -> Iterator[Deployment]:
    with deployed(shards=3) as made:
        yield made


def as_of(world: Deployment) -> float:
    told = world.as_of()
    assert told is not None
    return told


@pytest.mark.parametrize("table", ["counts", "receipts"])
def test_as_of_stops_where_the_rollup_is_stuck_in_one_shard(world: Deployment, table: str) -> None:
    """p11: it said that numbers were complete up to five seconds ago."""
    stuck_s = world.now_s
    world.stall("rollup", table, 1)
    world.run(9, world.play)
    assert stuck_s - 180 <= as_of(world) <= stuck_s
    world.resume()
    world.run(4)
    assert as_of(world) >= world.now_s - 180


def test_as_of_stops_with_the_sweep_and_the_consumers(world: Deployment) -> None:
    """p16: two hours later it said the same."""
    died_s = world.now_s
    world.stall()
    world.sweeping = False
    world.run(120)
    assert as_of(world) <= died_s


def test_as_of_is_never_ahead_of_a_visit_that_no_consumer_saw(world: Deployment) -> None:
    """p17: nothing seemed to be left to do, because nobody looked."""
    world.stall("rollup")
    world.spill(PAGE, counter=VISITS)
    accepted_s = world.now_s
    for _ in range(20):
        world.run(0.5)
        assert as_of(world) <= accepted_s


def test_shard_that_is_not_listed_yet_holds_as_of_up(world: Deployment) -> None:
    """One child of a split is listed, the other one not yet: a visit waits there that the rollup has not seen."""
    (parent, *_) = world.streams.open_shards("receipts")
    world.streams.split_at(parent, (parent.low + parent.high) / 2)
    first, second = world.streams.shards["receipts"][-2:]
    second.listed_s = world.now_s + 50
    world.stall("rollup", "receipts", world.streams.shards["receipts"].index(second))
    accepted_s: list[float] = []
    while not (first.records and second.records):
        accepted_s.append(world.now_s)
        world.spill(PAGE, counter=VISITS)
        world.sleep(2)
        if not second.records:
            accepted_s.clear()  # those are in the other shards
    for _ in range(10):
        world.sleep(10)
        world.sweep()
        assert as_of(world) <= accepted_s[0]
