"""Many callers at once: conservation, whatever the interleaving."""

from __future__ import annotations

import random
from functools import partial

import pytest

import counters
from dev import faults
from tally.counter import Counter
from tally.counting import posts, tallies
from tests.invariants.threads import at_once
from tests.invariants.world import POST, VIDEO, World, persist

CALLERS = 16
SOME_CONFLICTS = {faults.CONFLICT: 0.2, faults.THROTTLED_TRANSACTION: 0.05}
SOME_OF_ALL = {**SOME_CONFLICTS, faults.LOSE_RESPONSE: 0.05, faults.FAIL_AFTER: 0.05, faults.FAIL_BEFORE: 0.05}


def test_16_callers_with_one_key_at_once_are_one_count_and_get_16_equal_answers(world: World) -> None:
    outcomes = at_once([partial(world.play, "key-1")] * CALLERS)
    assert [body for body, _ in outcomes] == [{"video_id": VIDEO, "counted": True, "visible": "now"}] * CALLERS
    assert sorted(replayed for _, replayed in outcomes) == [False] + [True] * (CALLERS - 1)
    assert world.shards() == {"STATS#TOTAL": 1}
    assert len(world.receipts()) == 1


def test_16_callers_with_one_key_at_once_are_one_count_while_everything_fails(world: World) -> None:
    world.proxy.strip_tokens = True
    world.proxy.plan = faults.seeded(16, {"TransactWriteItems": SOME_OF_ALL})
    outcomes = at_once([lambda: persist(partial(world.play, "key-1"))] * CALLERS)
    answers = [body for body, _ in outcomes]
    assert answers[0].items() >= {"video_id": VIDEO, "counted": True}.items()
    assert answers == answers[:1] * CALLERS
    assert sum(not replayed for _, replayed in outcomes) <= 1
    assert world.rolled_up() == 1


@pytest.mark.parametrize("spills", [True, False], ids=["spilling", "on shards"])
def test_16_users_like_one_post_at_once_and_8_of_them_twice_is_16_while_everything_fails(
    world: World, spills: bool, request: pytest.FixtureRequest
) -> None:
    if not spills:
        request.getfixturevalue("patient")
    world.write_post()
    for _ in range(3):
        world.store.spread.conflict(counters.LIKES.partition_start + POST, counters.LIKES.max_shards)
    world.proxy.strip_tokens = True
    world.proxy.plan = faults.seeded(8, {"TransactWriteItems": SOME_OF_ALL})
    users = [f"user-{number}" for number in range(CALLERS)]
    at_once([lambda user=user: persist(partial(world.like, user)) for user in users + users[:8]])
    assert world.likes()[1] == set(users)
    assert world.rolled_up(counters.LIKES, POST) == CALLERS
    assert spills or len(world.shards(counters.LIKES, POST)) > 1


def test_16_unlikes_of_one_like_at_once_take_it_back_once(world: World) -> None:
    world.write_post()
    world.like("ann")
    outcomes = at_once([partial(world.unlike, "ann")] * CALLERS)
    assert sum(body["changed"] for body, _ in outcomes) == 1
    assert world.likes() == (0, set())


@pytest.mark.parametrize("family", [counters.LIKES, counters.MEMBERS], ids=lambda counter: counter.name)
def test_users_who_like_and_unlike_at_random_leave_as_many_likes_as_like_items(world: World, family: Counter) -> None:
    """Also with two devices of one user against each other, on many shards, with and without keys."""
    world.write_post()
    world.family = family
    world.proxy.plan = faults.seeded(24, {"TransactWriteItems": SOME_OF_ALL})

    def wander(seed: int) -> None:
        chance = random.Random(seed)
        for step in range(15):
            if (seed, step) == (0, 5):
                world.store.breaker.trip(family.partition_start + POST)  # likes spill from now on
            move = chance.choice([world.like, world.unlike])
            key = f"{seed}-{step}" if chance.random() < 0.5 else None
            persist(partial(move, f"user-{seed % 5}", POST, key))

    at_once([partial(wander, seed) for seed in range(8)])
    world.proxy.settle()
    assert world.rolled_up(family, POST) == len(world.likes()[1])
    assert world.inserted_alone()
    assert len(world.shards(family, POST)) > 1


def test_plays_of_many_callers_sum_up_to_what_was_accepted(world: World) -> None:
    """Every third play is sent twice; amounts differ."""
    world.proxy.strip_tokens = True
    world.proxy.plan = faults.seeded(5, {"TransactWriteItems": SOME_OF_ALL})
    accepted: list[int] = []

    def play(seed: int) -> None:
        chance = random.Random(seed)
        for number in range(20):
            amount = chance.randint(-5, 50)
            send = partial(world.play, f"{seed}-{number}", VIDEO, amount)
            persist(send)
            if number % 3 == 0:
                assert persist(send)[1] is True
            accepted.append(amount)

    at_once([partial(play, seed) for seed in range(8)])
    assert world.rolled_up() == sum(accepted)
    assert len(world.receipts()) == len(accepted) == 160
    assert world.read_plays() == max(0, world.tally())


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
