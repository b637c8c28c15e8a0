"""The like item and its tally change in one transaction, and with a key a late retry makes no second like."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

import counters
from tally.counter import Counter
from tally.counting import tallies
from tally.counting.children import ATTEMPTS_MAX, parents_with_child
from tally.dynamo.contention import Spread
from tally.errors import CounterRetiredError, KeyReusedError, NotFoundError, StoreBusyError
from tests import faults
from tests.invariants.threads import run_together
from tests.invariants.world import (
    FAULT_MIX,
    LAST_SHARD,
    POST,
    ShardsInTurn,
    World,
    before_transactions,
    retry_until_final,
)
from tests.tiers import marked_long

TALLY = counters.LIKES.partition_start + POST
LIKED = {"present": True}


@pytest.fixture(params=[counters.LIKES, counters.MEMBERS], ids=lambda counter: counter.name)
def each_world(world: World, request: pytest.FixtureRequest) -> World:
    """A world whose children are likes, and a world whose children are members. Nobody has to make their workspace."""
    world.child_counter = request.param
    return world


@pytest.fixture
def spread_world(make_world: Callable[..., World]) -> World:
    """A world whose likes of the post go to shard 1, as after a conflict."""
    world = make_world(spread=Spread(random=LAST_SHARD))
    world.store.spread.widen(TALLY, 16)
    return world


@pytest.mark.parametrize("is_change", [True, False], ids=["changes", "changes nothing"])
@pytest.mark.parametrize("liked", [True, False], ids=["like", "unlike"])
def test_a_late_retry_of_a_change_that_was_undone_gets_the_first_answer_and_changes_nothing(
    each_world: World, liked: bool, is_change: bool
) -> None:
    """A call that changed nothing has left a receipt, too."""
    each_world.write_post()
    change, opposite = (each_world.like, each_world.unlike) if liked else (each_world.unlike, each_world.like)
    if liked is not is_change:
        # The user likes the post already. `like` and `unlike` may use the same key for two changes.
        each_world.like("ann", key="key-1" if is_change else "key-0")
    first = change("ann", key="key-1")
    assert first == ({"present": liked, "changed": is_change, "visible": "now"}, False)
    for is_changed in (True, False):
        assert opposite("ann") == ({"present": not liked, "changed": is_changed, "visible": "now"}, False)
    assert change("ann", key="key-1") == (first[0], True)
    assert each_world.likes() == ((0, set()) if liked else (1, {"ann"}))


def test_an_unlike_of_a_post_that_is_not_liked_only_reads(each_world: World) -> None:
    each_world.write_post()
    each_world.proxy.clear_requests()
    assert each_world.unlike("ann")[0]["changed"] is False
    assert each_world.requests("TransactWriteItems") == []


def test_a_like_adds_to_a_shard_that_another_writer_has_just_made(spread_world: World) -> None:
    spread_world.write_post()
    shard = {"PK": {"S": TALLY}, "SK": {"S": "META#1"}, "likeTally": {"N": "7"}}
    # Transaction 0 is the failed like, 1 makes the shard, and 2 is the like.
    spread_world.proxy.plan = before_transactions({1: lambda: spread_world.put(shard)})
    assert spread_world.like("ann")[0]["changed"] is True
    assert spread_world.shards(counters.LIKES, POST) == {"META": 0, "META#1": 8}


def test_the_first_like_of_a_spread_post_makes_one_shard_and_uses_it(make_world: Callable[..., World]) -> None:
    """Each try draws the next of 16 shards. The retry must use the new shard, and not draw a missing shard."""
    world = make_world(spread=Spread(random=ShardsInTurn()))
    for _ in range(4):
        world.store.spread.widen(TALLY, 16)
    world.write_post()
    world.proxy.clear_requests()
    assert world.like("ann", key="key-1")[0]["changed"] is True
    assert len(world.requests("TransactWriteItems")) == 3  # the failed like, the new shard, and the like
    assert len(world.shards(counters.LIKES, POST)) == 2


@pytest.mark.parametrize("key", [None, "key-1"], ids=["no key", "key"])
@pytest.mark.parametrize("fixture", ["world", "spread_world"], ids=["first shard", "spread"])
def test_a_like_of_a_missing_post_is_refused_and_stores_nothing(
    fixture: str, key: str | None, request: pytest.FixtureRequest
) -> None:
    world: World = request.getfixturevalue(fixture)
    for change in (world.like, world.unlike):
        with pytest.raises(NotFoundError):
            change("ann", key=key)
    assert world.items() == world.receipts() == []
    world.write_post()
    answer = {**LIKED, "changed": True, "visible": "now"}
    assert world.like("ann", key=key) == (answer, False), "the refusal has left no receipt"
    assert world.likes() == (1, {"ann"})


def test_a_change_with_a_key_wins_over_an_opposite_change_just_before_its_receipt_is_stored(each_world: World) -> None:
    each_world.write_post()
    each_world.like("ann")
    # The condition of transaction 0 fails, and transaction 1 has only the receipt.
    each_world.proxy.plan = before_transactions({1: lambda: each_world.change_child_by_hand("ann", False)})
    assert each_world.like("ann", key="key-1") == ({**LIKED, "changed": True, "visible": "now"}, False)
    assert each_world.likes() == (1, {"ann"})
    each_world.unlike("ann")
    # The first read finds no like, so transaction 0 has only the receipt.
    each_world.proxy.plan = before_transactions({0: lambda: each_world.change_child_by_hand("ann", True)})
    assert each_world.unlike("ann", key="key-2") == ({"present": False, "changed": True, "visible": "now"}, False)
    assert each_world.likes() == (0, set())


def test_a_like_that_another_device_changes_before_each_try_is_busy_and_leaves_no_receipt(each_world: World) -> None:
    each_world.write_post()
    each_world.like("ann")
    turns = range(2 * ATTEMPTS_MAX)  # an attempt sends up to two transactions
    each_world.proxy.plan = before_transactions(
        {turn: lambda liked=turn % 2 == 0: each_world.change_child_by_hand("ann", liked) for turn in turns}
    )
    each_world.change_child_by_hand("ann", False)
    each_world.proxy.clear_requests()
    with pytest.raises(StoreBusyError):
        each_world.like("ann", key="key-1")
    assert len(each_world.requests("TransactWriteItems")) <= 2 * ATTEMPTS_MAX
    assert each_world.receipts() == []
    tally, users = each_world.likes()
    assert tally == len(users)


def test_one_read_finds_which_of_many_posts_a_user_likes(world: World) -> None:
    for post in ("a", "b"):
        world.write_post(post)
    world.like("ann", "b")
    world.like("bob", "a")
    world.store.breaker.trip("POST#a")
    world.like("ann", "a")
    world.unlike("ann", "a")  # the removal of a spilled like leaves an item, which is not a like
    world.proxy.clear_requests()
    posts = [tallies.Tally(counters.LIKES, post) for post in ("a", "none", "b", "a")]
    assert parents_with_child(world.call(), dict.fromkeys(posts, "ann")) == {posts[2]}
    (read,) = world.requests("BatchGetItem")
    (request,) = read["RequestItems"].values()
    assert (len(request["Keys"]), request["ConsistentRead"]) == (3, True), "each post once"


def test_a_key_is_bound_to_its_child_and_is_replayed_when_the_counter_is_retired(world: World) -> None:
    world.child_counter = counters.MEMBERS
    first, _ = world.like("ann", key="key-1")
    with pytest.raises(KeyReusedError):
        world.like("bob", key="key-1")
    world.child_counter = replace(counters.MEMBERS, retired=True)
    assert world.like("ann", key="key-1") == (first, True)
    for change, key in ((world.like, None), (world.unlike, "key-2")):
        with pytest.raises(CounterRetiredError):
            change("ann", key=key)
    assert (world.likes(), len(world.receipts())) == ((1, {"ann"}), 1)


@pytest.mark.parametrize("family", [counters.LIKES, *marked_long([counters.MEMBERS])])
def test_after_random_likes_and_unlikes_the_tally_is_the_number_of_like_items(world: World, family: Counter) -> None:
    """Two devices of a user act at once, on many shards, with and without keys."""
    world.write_post()
    world.child_counter = family
    world.proxy.strip_tokens = True
    world.proxy.plan = faults.random_faults(24, {"TransactWriteItems": FAULT_MIX})

    def like_and_unlike(seed: int) -> None:
        chance = random.Random(seed)
        for step in range(15):
            if (seed, step) == (0, 5):
                world.store.breaker.trip(family.partition_start + POST)  # the next likes spill
            change = chance.choice([world.like, world.unlike])
            key = f"{seed}-{step}" if chance.random() < 0.5 else None
            retry_until_final(partial(change, f"user-{seed % 5}", POST, key))

    run_together([partial(like_and_unlike, seed) for seed in range(8)])
    world.proxy.wait_until_idle()
    assert world.tally_after_rollup(family, POST) == len(world.likes()[1])
    assert world.spilled_children()
    assert len(world.shards(family, POST)) > 1
