"""Conflicts and throttling on seeded schedules: nothing lost, nothing doubled; shards where they help, only there.

Throttled changes are written alone at once where they may be (plays, likes), and there is no more to be done if that is
throttled too. What may not (bounded counters, unlikes, posts) backs off. test_spilling.py has what is written
alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from random import SystemRandom

import pytest

import counters
from dev import faults
from dev.faults import Fault, Plan
from tally.counter import Counter
from tally.counting import posts
from tally.dynamo.contention import ATTEMPTS_MAX, RETRY_S_MAX, Spread
from tally.errors import StoreBusyError, StoreUnreachableError
from tests.invariants.threads import at_once
from tests.invariants.world import AUTHOR, POST, VIDEO, First, Last, World, persist

TALLY, LIKES = counters.PLAYS.partition_start + VIDEO, counters.LIKES.partition_start + POST
SHARD_KEYS = {counters.PLAYS.shard_key(shard) for shard in range(counters.PLAYS.max_shards)}
THROTTLES = [faults.THROTTLE, faults.THROTTLED_TRANSACTION]


by_throttle = pytest.mark.parametrize("throttle", THROTTLES, ids=lambda fault: fault.kind.name.lower())


def busy(fault: Fault) -> Plan:
    """Every write meets the fault; outside of transactions there is another error for one that is throttled."""
    single = faults.answer("ThrottlingException") if fault is faults.THROTTLED_TRANSACTION else fault

    def plan(operation: str, body: bytes, number: int) -> Fault | None:
        return {"TransactWriteItems": fault, "UpdateItem": single, "PutItem": single}.get(operation)

    return plan


def shards_tried(world: World) -> list[str]:
    """The tally item of each transaction that was sent, in order."""
    return [sent["TransactItems"][-1]["Update"]["Key"]["SK"]["S"] for sent in world.sent("TransactWriteItems")]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("spills", [True, False], ids=["spilling", "spreading"])
def test_nothing_is_lost_or_doubled_under_conflicts_and_throttling(
    world: World, seed: int, spills: bool, request: pytest.FixtureRequest
) -> None:
    if not spills:
        request.getfixturevalue("patient")
    world.proxy.plan = faults.seeded(
        seed, {"TransactWriteItems": {faults.CONFLICT: 0.25, faults.THROTTLED_TRANSACTION: 0.08, faults.THROTTLE: 0.02}}
    )

    def play(caller: int) -> int:
        amounts = [random.Random(f"{seed}/{caller}/{number}").randint(1, 100) for number in range(12)]
        for number, amount in enumerate(amounts):
            persist(partial(world.play, f"{caller}-{number}", VIDEO, amount))
        return sum(amounts)

    accepted = at_once([partial(play, caller) for caller in range(6)])
    shards = world.shards()
    assert world.rolled_up() == sum(accepted)
    assert shards.keys() <= SHARD_KEYS
    assert world.read_plays() == world.tally()
    assert spills or (len(shards) > 1 and world.tally() == sum(accepted))


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("chance", [First, Last, SystemRandom], ids=lambda cls: cls.__name__)
def test_retry_after_a_conflict_is_on_another_shard(
    make_world: Callable[..., World], chance: type[SystemRandom]
) -> None:
    world = make_world(spread=Spread(random=chance()))
    world.proxy.plan = faults.script({"TransactWriteItems": [faults.CONFLICT] * 6})
    world.play("key-1")
    tried = shards_tried(world)
    assert len(tried) == 7
    assert all(earlier != later for earlier, later in pairwise(tried))
    assert world.shards() == {tried[-1]: 1}


def test_writers_spread_over_twice_as_many_shards_at_each_conflict_up_to_the_counters_limit(world: World) -> None:
    for number, expected in enumerate([2, 4, 8, 16, 16]):
        world.proxy.plan = faults.script({"TransactWriteItems": [faults.CONFLICT]})
        world.play(f"key-{number}")
        assert world.store.spread.shards(TALLY) == expected
    for number in range(60):
        world.play(f"more-{number}")
    shards = world.shards()
    assert sum(shards.values()) == 65
    assert len(shards) > 8
    assert shards.keys() <= SHARD_KEYS


@by_throttle
def test_throttled_changes_of_bounded_counters_only_back_off(world: World, throttle: Fault) -> None:
    for number in range(5):
        world.proxy.plan = faults.script({"TransactWriteItems": [throttle] * 4})
        assert world.play(f"key-{number}", counter=counters.STOCK, operation="increment")[0]["visible"] == "now"
    assert world.proxy.injected(throttle) == 20
    assert world.shards(counters.STOCK) == {"STOCK": 5}
    assert not world.store.breaker.hot(counters.STOCK.partition_start + VIDEO)


@by_throttle
def test_throttled_unlikes_and_posts_only_back_off_and_do_not_spread(world: World, throttle: Fault) -> None:
    """An unlike has sixteen shards to go to, and goes to none of them."""
    world.write_post()
    for user in range(5):
        world.like(f"user-{user}")
    for user in range(5):
        world.proxy.plan = faults.script({"TransactWriteItems": [throttle] * 4})
        assert world.unlike(f"user-{user}")[0]["visible"] == "now"
    world.proxy.plan = faults.script({"TransactWriteItems": [throttle] * 4})
    assert world.write_post(text="new")[0]["revision"] == 1
    assert world.proxy.injected(throttle) == 24
    assert world.store.spread.shards(LIKES) == 1
    assert not world.store.breaker.hot(LIKES)
    assert world.shards(counters.LIKES, POST) == {"META": 0}


@pytest.mark.parametrize("fault", [faults.CONFLICT, *THROTTLES], ids=lambda fault: fault.kind.name.lower())
@pytest.mark.parametrize("counter", [counters.PLAYS, counters.STOCK], ids=lambda counter: counter.name)
def test_persistent_contention_is_answered_busy_within_the_calls_time(
    world: World, counter: Counter, fault: Fault
) -> None:
    """Of what spills, too, where what is written alone meets the same."""
    world.proxy.plan = busy(fault)
    rushed, call = world.rushed(0.5)
    with pytest.raises(StoreBusyError):
        rushed.play("key-1", counter=counter, call=call)
    assert rushed.store.clock() <= 0.5
    assert len(world.sent()) > 3
    assert bool(world.sent("PutItem")) is counter.spills
    assert world.items() == world.receipts() == []
    world.proxy.plan = faults.no_faults
    assert world.play("key-1", counter=counter)[1] is False
    assert (world.tally(counter), world.rolled_up(counter)) == (0 if counter.spills else 1, 1)


@pytest.mark.usefixtures("patient")
def test_retries_are_bounded_where_the_call_has_more_time(world: World) -> None:
    world.proxy.plan = faults.always(faults.CONFLICT)
    rushed, call = world.rushed(60)
    with pytest.raises(StoreBusyError):
        rushed.play("key-1", call=call)
    assert rushed.store.clock() <= RETRY_S_MAX
    assert len(world.sent("TransactWriteItems")) <= ATTEMPTS_MAX
    assert world.receipts() == []


@pytest.mark.parametrize("fault", [faults.DROP_BEFORE, faults.FAIL_BEFORE], ids=lambda fault: fault.kind.name.lower())
def test_store_that_is_down_is_unreachable_and_a_later_retry_counts_once(world: World, fault: Fault) -> None:
    world.write_post()
    world.proxy.plan = faults.always(fault)
    changes = [lambda: world.play("key-1"), lambda: world.like("ann"), lambda: world.like("bob", key="key-1")]
    for change in [*changes, world.read_plays, world.read_post, lambda: world.write_post(text="new")]:
        with pytest.raises(StoreUnreachableError):
            change()
    world.proxy.plan = faults.no_faults
    assert [change()[1] for change in changes] == [False, False, False]
    assert world.tally() == 1
    assert world.likes(POST) == (2, {"ann", "bob"})


@pytest.mark.parametrize("fault", [faults.CONFLICT, *THROTTLES], ids=lambda fault: fault.kind.name.lower())
def test_likes_and_posts_under_persistent_contention_are_busy_and_change_nothing(world: World, fault: Fault) -> None:
    world.write_post()
    world.like("ann")
    world.proxy.plan = busy(fault)
    for user, change in (("bob", world.like), ("ann", world.unlike)):
        for key in (None, "key-1"):
            with pytest.raises(StoreBusyError):
                change(user, key=key, call=world.rushed(0.1, user)[1])
    with pytest.raises(StoreBusyError):
        posts.write_post(world.rushed(0.1, AUTHOR)[1], counters.LIKES, POST, "new")
    assert world.likes() == (1, {"ann"})
    assert world.receipts() == world.inserted_alone() == []
    assert world.read_post()["revision"] == 0
