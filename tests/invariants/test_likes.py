"""Likes: the like item and the tally move together, and a key keeps a late retry from liking again."""

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
from tests.invariants.world import FAULT_MIX, LAST, POST, ShardsInTurn, World, acting_before, retry_until_final
from tests.tiers import in_long

TALLY = counters.LIKES.partition_start + POST
LIKED = {"present": True}


@pytest.fixture(params=[counters.LIKES, counters.MEMBERS], ids=lambda counter: counter.name)
def either(world: World, request: pytest.FixtureRequest) -> World:
    """A world of likes, and one of members, whose workspace nobody has to make."""
    world.child_counter = request.param
    return world


@pytest.fixture
def spread_world(make_world: Callable[..., World]) -> World:
    """A world that writes to shard 1 of every post that it has met a conflict on."""
    world = make_world(spread=Spread(random=LAST))
    world.store.spread.widen(TALLY, 16)
    return world


@pytest.mark.parametrize("changed", [True, False], ids=["changes", "changes nothing"])
@pytest.mark.parametrize("liked", [True, False], ids=["like", "unlike"])
def test_delayed_retry_of_what_was_undone_meanwhile_is_answered_as_before_and_changes_nothing(
    either: World, liked: bool, changed: bool
) -> None:
    """What changed nothing has left a receipt, too."""
    either.write_post()
    change, opposite = (either.like, either.unlike) if liked else (either.unlike, either.like)
    if liked is not changed:
        either.like("ann", key="key-1" if changed else "key-0")  # one key names two changes through two operations
    first = change("ann", key="key-1")
    assert first == ({"present": liked, "changed": changed, "visible": "now"}, False)
    for turned in (True, False):
        assert opposite("ann") == ({"present": not liked, "changed": turned, "visible": "now"}, False)
    assert change("ann", key="key-1") == (first[0], True)
    assert either.likes() == ((0, set()) if liked else (1, {"ann"}))


def test_unlike_of_what_is_not_liked_only_looks(either: World) -> None:
    either.write_post()
    either.proxy.forget()
    assert either.unlike("ann")[0]["changed"] is False
    assert either.sent("TransactWriteItems") == []


def test_shard_that_another_writer_has_just_made_is_used_as_it_is(spread_world: World) -> None:
    spread_world.write_post()
    shard = {"PK": {"S": TALLY}, "SK": {"S": "META#1"}, "likeTally": {"N": "7"}}
    spread_world.proxy.plan = acting_before(
        {1: lambda: spread_world.put(shard)}
    )  # 0: the like, 1: the making, 2: the like
    assert spread_world.like("ann")[0]["changed"] is True
    assert spread_world.shards(counters.LIKES, POST) == {"META": 0, "META#1": 8}


def test_first_like_of_a_spread_post_makes_one_shard_and_uses_it(make_world: Callable[..., World]) -> None:
    """Not one after another while each next one is missing too: with sixteen that would outlast the turns."""
    world = make_world(spread=Spread(random=ShardsInTurn()))
    for _ in range(4):
        world.store.spread.widen(TALLY, 16)
    world.write_post()
    world.proxy.forget()
    assert world.like("ann", key="key-1")[0]["changed"] is True
    assert len(world.sent("TransactWriteItems")) == 3  # refused, made, done
    assert len(world.shards(counters.LIKES, POST)) == 2


@pytest.mark.parametrize("key", [None, "key-1"], ids=["no key", "key"])
@pytest.mark.parametrize("where", ["world", "spread_world"], ids=["first shard", "spread"])
def test_like_of_a_missing_post_is_refused_and_leaves_nothing(
    where: str, key: str | None, request: pytest.FixtureRequest
) -> None:
    world: World = request.getfixturevalue(where)
    for change in (world.like, world.unlike):
        with pytest.raises(NotFoundError):
            change("ann", key=key)
    assert world.items() == world.receipts() == []
    world.write_post()
    assert world.like("ann", key=key) == ({**LIKED, "changed": True, "visible": "now"}, False)  # judged afresh
    assert world.likes() == (1, {"ann"})


def test_what_another_changes_between_the_two_looks_of_a_keyed_change_is_changed_back(either: World) -> None:
    either.write_post()
    either.like("ann")
    either.proxy.plan = acting_before(
        {1: lambda: either.change_child_by_hand("ann", False)}
    )  # 0: refused, 1: the receipt alone
    assert either.like("ann", key="key-1") == ({**LIKED, "changed": True, "visible": "now"}, False)
    assert either.likes() == (1, {"ann"})
    either.unlike("ann")
    either.proxy.plan = acting_before({0: lambda: either.change_child_by_hand("ann", True)})  # 0: the receipt alone
    assert either.unlike("ann", key="key-2") == ({"present": False, "changed": True, "visible": "now"}, False)
    assert either.likes() == (0, set())


def test_like_that_keeps_changing_is_busy_and_leaves_no_receipt(either: World) -> None:
    either.write_post()
    either.like("ann")
    turns = range(2 * ATTEMPTS_MAX)
    either.proxy.plan = acting_before(
        {turn: lambda liked=turn % 2 == 0: either.change_child_by_hand("ann", liked) for turn in turns}
    )
    either.change_child_by_hand("ann", False)
    either.proxy.forget()
    with pytest.raises(StoreBusyError):
        either.like("ann", key="key-1")
    assert len(either.sent("TransactWriteItems")) <= 2 * ATTEMPTS_MAX
    assert either.receipts() == []
    tally, users = either.likes()
    assert tally == len(users)


def test_posts_that_a_user_likes_are_found_by_one_read(world: World) -> None:
    for post in ("a", "b"):
        world.write_post(post)
    world.like("ann", "b")
    world.like("bob", "a")
    world.store.breaker.trip("POST#a")
    world.like("ann", "a")
    world.unlike("ann", "a")  # leaves an item: it is no like
    world.proxy.forget()
    asked = [tallies.Tally(counters.LIKES, post) for post in ("a", "none", "b", "a")]
    assert parents_with_child(world.call(), dict.fromkeys(asked, "ann")) == {asked[2]}
    (read,) = world.sent("BatchGetItem")
    (wanted,) = read["RequestItems"].values()
    assert (len(wanted["Keys"]), wanted["ConsistentRead"]) == (3, True)


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


@pytest.mark.parametrize("family", [counters.LIKES, *in_long([counters.MEMBERS])])
def test_users_who_like_and_unlike_at_random_leave_as_many_likes_as_like_items(world: World, family: Counter) -> None:
    """Also with two devices of one user against each other, on many shards, with and without keys."""
    world.write_post()
    world.child_counter = family
    world.proxy.strip_tokens = True
    world.proxy.plan = faults.random_faults(24, {"TransactWriteItems": FAULT_MIX})

    def wander(seed: int) -> None:
        chance = random.Random(seed)
        for step in range(15):
            if (seed, step) == (0, 5):
                world.store.breaker.trip(family.partition_start + POST)  # likes spill from now on
            move = chance.choice([world.like, world.unlike])
            key = f"{seed}-{step}" if chance.random() < 0.5 else None
            retry_until_final(partial(move, f"user-{seed % 5}", POST, key))

    run_together([partial(wander, seed) for seed in range(8)])
    world.proxy.wait_until_idle()
    assert world.tally_after_rollup(family, POST) == len(world.likes()[1])
    assert world.spilled_children()
    assert len(world.shards(family, POST)) > 1
