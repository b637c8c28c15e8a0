"""Under conflicts and throttling no change is lost or doubled. Only conflicts spread a tally over shards.

A throttled play or like spills at once. If the spilled write is throttled, too, the call raises StoreBusyError. Changes
that never spill (bounded counters, unlikes, posts) back off. test_spilling.py tests spilled changes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from random import SystemRandom

import pytest

import counters
from tally.counter import Counter
from tally.counting import posts
from tally.dynamo.contention import ATTEMPTS_MAX, Spread
from tally.errors import StoreBusyError
from tests import faults
from tests.faults import Fault, Plan
from tests.invariants.threads import run_together
from tests.invariants.world import AUTHOR, FAULT_MIX, FIRST_SHARD, LAST_SHARD, POST, VIDEO, World, retry_until_final
from tests.tiers import marked_long

LIKES_OF_POST = counters.LIKES.partition_start + POST
SHARD_KEYS = {counters.PLAYS.shard_key(shard) for shard in range(counters.PLAYS.max_shards)}
THROTTLES = [faults.THROTTLE, faults.THROTTLED_TRANSACTION]


def always_on_writes(fault: Fault) -> Plan:
    """Returns a plan by which every write meets the fault. Outside of a transaction, throttling is another error."""
    single = faults.error_answer("ThrottlingException") if fault is faults.THROTTLED_TRANSACTION else fault

    def plan(operation: str, body: bytes, number: int) -> Fault | None:
        return {"TransactWriteItems": fault, "UpdateItem": single, "PutItem": single}.get(operation)

    return plan


def shards_tried(world: World) -> list[str]:
    """Returns the sort key of the tally item in each transaction, in the order of sending."""
    transactions = [request["TransactItems"] for request in world.requests("TransactWriteItems")]
    return [writes[-1]["Update"]["Key"]["SK"]["S"] for writes in transactions]  # the last write is of the tally


def test_16_concurrent_callers_with_one_key_count_once_and_get_16_equal_answers(world: World) -> None:
    world.proxy.strip_tokens = True
    world.proxy.plan = faults.random_faults(16, {"TransactWriteItems": FAULT_MIX})
    outcomes = run_together([lambda: retry_until_final(partial(world.play, "key-1"))] * 16)
    answers = [body for body, _ in outcomes]
    assert answers == answers[:1] * 16
    assert answers[0].items() >= {"video_id": VIDEO, "counted": True}.items()
    assert (world.tally_after_rollup(), len(world.receipts())) == (1, 1)


@pytest.mark.parametrize("seed", [1, *marked_long([2, 3])])
@pytest.mark.parametrize("spills", [True, False], ids=["spilling", "spreading"])
def test_nothing_is_lost_or_doubled_under_conflicts_and_throttling(
    world: World, seed: int, spills: bool, request: pytest.FixtureRequest
) -> None:
    if not spills:
        request.getfixturevalue("no_spilling")
    world.proxy.strip_tokens = True
    world.proxy.plan = faults.random_faults(seed, {"TransactWriteItems": FAULT_MIX})

    def play(caller: int) -> int:
        amounts = [random.Random(f"{seed}/{caller}/{number}").randint(-5, 100) for number in range(12)]
        for number, amount in enumerate(amounts):
            send = partial(world.play, f"{caller}-{number}", VIDEO, amount)
            retry_until_final(send)
            if number % 3 == 0:
                assert retry_until_final(send)[1] is True
        return sum(amounts)

    accepted = run_together([partial(play, caller) for caller in range(6)])
    shards = world.shards()
    assert world.tally_after_rollup() == sum(accepted)
    assert shards.keys() <= SHARD_KEYS
    assert world.read_plays() == max(0, world.tally())  # a read never shows a negative number
    if not spills:  # then conflicts spread the tally
        assert (len(shards) > 1, world.tally()) == (True, sum(accepted))


@pytest.mark.usefixtures("no_spilling")
@pytest.mark.parametrize("chance", [FIRST_SHARD, LAST_SHARD, SystemRandom()], ids=["first", "last", "random"])
def test_a_retry_after_a_conflict_is_on_another_shard(make_world: Callable[..., World], chance: SystemRandom) -> None:
    world = make_world(spread=Spread(random=chance))
    world.proxy.plan = faults.script({"TransactWriteItems": [faults.CONFLICT] * 6})
    world.play("key-1")
    sort_keys = shards_tried(world)
    assert len(sort_keys) == 6 + 1
    assert all(earlier != later for earlier, later in pairwise(sort_keys))
    assert world.shards() == {sort_keys[-1]: 1}


@pytest.mark.parametrize("throttle", THROTTLES, ids=lambda fault: fault.kind.name.lower())
def test_throttled_changes_of_bounded_counters_unlikes_and_posts_back_off_and_do_not_spread(
    world: World, throttle: Fault
) -> None:
    """An unlike could use sixteen shards, but uses only the first."""
    for number in range(5):
        world.proxy.plan = faults.script({"TransactWriteItems": [throttle] * 4})
        assert world.play(f"key-{number}", counter=counters.STOCK, operation="increment")[0]["visible"] == "now"
    assert world.proxy.count_injected(throttle) == 5 * 4
    assert world.shards(counters.STOCK) == {"STOCK": 5}
    world.write_post()
    for user in range(5):
        world.like(f"user-{user}")
    for user in range(5):
        world.proxy.plan = faults.script({"TransactWriteItems": [throttle] * 4})
        assert world.unlike(f"user-{user}")[0]["visible"] == "now"
    world.proxy.plan = faults.script({"TransactWriteItems": [throttle] * 4})
    assert world.write_post(text="new")[0]["revision"] == 1
    assert world.proxy.count_injected(throttle) == 5 * 4 + 5 * 4 + 4
    assert world.store.spread.width(LIKES_OF_POST) == 1
    assert not any(
        world.store.breaker.is_open(tally) for tally in (LIKES_OF_POST, counters.STOCK.partition_start + VIDEO)
    )
    assert world.shards(counters.LIKES, POST) == {"META": 0}


@pytest.mark.parametrize("fault", [faults.CONFLICT, *THROTTLES], ids=lambda fault: fault.kind.name.lower())
@pytest.mark.parametrize("counter", [counters.PLAYS, counters.STOCK], ids=lambda counter: counter.name)
def test_persistent_contention_is_answered_busy_within_the_calls_time(
    world: World, counter: Counter, fault: Fault
) -> None:
    """A change that may spill is busy, too, because its spilled write meets the same fault."""
    world.proxy.plan = always_on_writes(fault)
    timed, call = world.with_deadline(0.5)
    with pytest.raises(StoreBusyError):
        timed.play("key-1", counter=counter, call=call)
    assert timed.store.clock() <= 0.5
    assert 3 < len(world.requests()) <= 3 * ATTEMPTS_MAX  # with the SDK's own retries
    assert bool(world.requests("PutItem")) is counter.may_spill
    assert world.items() == world.receipts() == []
    world.proxy.plan = faults.no_faults
    assert world.play("key-1", counter=counter)[1] is False
    # The breaker is open, so if a change may spill, the change spills.
    assert (world.tally(counter), world.tally_after_rollup(counter)) == (0 if counter.may_spill else 1, 1)


@pytest.mark.parametrize("fault", [faults.CONFLICT, *THROTTLES], ids=lambda fault: fault.kind.name.lower())
def test_likes_and_posts_under_persistent_contention_are_busy_and_change_nothing(world: World, fault: Fault) -> None:
    world.write_post()
    world.like("ann")
    world.proxy.plan = always_on_writes(fault)
    for user, change in (("bob", world.like), ("ann", world.unlike)):
        for key in (None, "key-1"):
            with pytest.raises(StoreBusyError):
                change(user, key=key, call=world.with_deadline(0.1, user)[1])
    with pytest.raises(StoreBusyError):
        posts.write_post(world.with_deadline(0.1, AUTHOR)[1], counters.LIKES, POST, "new")
    assert world.likes() == (1, {"ann"})
    assert world.receipts() == world.spilled_children() == []
    assert world.read_post()["revision"] == 0
