"""Likes without sign-in: each browser counts once under faults. A user who signs in takes over the browser's like."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import counters
from tally import fields
from tally.counting import anonymous, children, deletion
from tally.drift import recount
from tally.dynamo.client import Call
from tally.dynamo.contention import Breaker
from tests import faults
from tests.invariants.deployment import Deployment
from tests.invariants.threads import run_together
from tests.invariants.world import FAULT_MIX, World, retry_until_final
from tests.tiers import marked_long

HEARTS = counters.HEARTS
SECRET = "0b1f6c64-7d0e-4a52-9c3b-8e2f5a7d9c10"
SPILL_FAULTS = {kind: FAULT_MIX[kind] for kind in (faults.LOSE_RESPONSE, faults.FAIL_AFTER, faults.FAIL_BEFORE)}


def set_like(call: Call, id_: str, secret: str, liked: bool) -> None:
    children.set_child(call, HEARTS, id_, anonymous.child_name(HEARTS, id_, secret), liked)


def has_like(call: Call, id_: str, secret: str) -> bool:
    return children.has_child(call, HEARTS, id_, anonymous.child_name(HEARTS, id_, secret))


@pytest.mark.parametrize("seed", [0, *marked_long(range(1, 4))])
def test_a_tally_is_the_number_of_browsers_whose_last_click_was_a_like(seed: int, world: World) -> None:
    """30 browsers click 150 times on 3 pages. Each click is sent twice, and 8 threads send at once."""
    chance = random.Random(seed)
    browsers = [f"{SECRET}{number}" for number in range(30)]
    last_clicks: dict[tuple[str, str], bool] = {}
    # One thread sends all clicks of a browser, so the last click of a browser is known.
    clicks_of_threads: list[list[tuple[str, str, bool]]] = [[] for _ in range(8)]
    for _ in range(150):
        number, page, liked = chance.randrange(30), chance.choice("abc"), chance.random() < 0.65
        clicks_of_threads[number % 8].append((browsers[number], page, liked))
        last_clicks[browsers[number], page] = liked
    world.proxy.plan = faults.random_faults(seed, {"TransactWriteItems": FAULT_MIX, "PutItem": SPILL_FAULTS})

    def send(clicks: list[tuple[str, str, bool]]) -> None:
        for secret, page, liked in clicks:
            for _ in range(2):
                retry_until_final(lambda: set_like(world.call(), page, secret, liked))  # noqa: B023

    run_together([lambda clicks=clicks: send(clicks) for clicks in clicks_of_threads])  # type: ignore[misc]
    fault_count = sum(count for (fault, _), count in world.proxy.counts.items() if fault != "NONE")
    world.proxy.plan = faults.no_faults
    assert fault_count > 30
    for page in "abc":
        likers = {secret for secret in browsers if last_clicks.get((secret, page))}
        assert {secret for secret in browsers if has_like(world.call(), page, secret)} == likers
        assert world.tally_after_rollup(HEARTS, page) == len(likers)


def test_two_likes_of_a_browser_have_different_child_names_and_no_user_can_have_such_a_name() -> None:
    """The child name is a hash of secret, counter and id. A user with this name is stored under another name."""
    names = [
        anonymous.child_name(counter, id_, secret)
        for counter in (HEARTS, counters.MEMBERS)
        for id_ in "ab"
        for secret in "xy"
    ]
    assert len(set(names)) == len(names)
    assert {(name[:2], len(name)) for name in names} == {(anonymous.CHILD_NAME_PREFIX, 26)}
    for name in names:
        assert fields.cursor(fields.encode_cursor(name), "cursor") == name
        for quoted in (fields.user(name, "caller"), fields.child(name, "name")):
            assert not quoted.startswith(anonymous.CHILD_NAME_PREFIX)


def test_a_spilled_like_that_stores_only_its_day_is_no_drift_before_it_is_rolled_up(deployment: Deployment) -> None:
    """`likedAt` is the start of the day. So a recount goes by `at`, the minute of the call."""
    hot = Call(replace(deployment.store, breaker=Breaker()))
    deployment.stall("rollup", "counts")
    hot.store.breaker.trip(f"{HEARTS.partition_start}a")
    set_like(hot, "a", SECRET, True)
    deployment.run(1)
    with_like = recount.recount(deployment.store, HEARTS, "a", deployment.now_s)
    assert (with_like.children, with_like.low, with_like.unproven_reason) == (1, 0, recount.ROLLUP_PENDING)
    set_like(Call(deployment.store), "a", SECRET, False)
    without_like = recount.recount(deployment.store, HEARTS, "a", deployment.now_s)
    assert (without_like.low, without_like.high, without_like.unproven_reason) == (0, 1, recount.ROLLUP_PENDING)
    deployment.resume()
    deployment.run_without_drift()
    assert deployment.tally(HEARTS, "a") == 0


def test_likes_without_sign_in_cause_no_drift(deployment: Deployment) -> None:
    """Some likes commit at once and some spill. Users take over two likes, and one like and one page are removed."""
    call, hot = Call(deployment.store), Call(replace(deployment.store, breaker=Breaker()))
    for page in "ab":
        hot.store.breaker.trip(HEARTS.partition_start + page)
        for number in range(6):
            set_like(call if number < 3 else hot, page, f"{SECRET}{number}", True)
    deployment.run(1)
    for number in (0, 4):  # after the sign-in, the user's like is put before the browser's like is removed
        children.set_child(call, HEARTS, "a", f"user{number}", True)
        assert deployment.tally(HEARTS, "a") == 6 + 1
        set_like(call, "a", f"{SECRET}{number}", False)
    set_like(call, "a", f"{SECRET}5", False)
    deletion.remove_parent(call, HEARTS, "b")
    deployment.run_without_drift()
    assert deployment.tally(HEARTS, "a") == 6 - 1
    page_of_children, _ = children.list_children(call, HEARTS, "a", 50, None)
    assert [child.name for child in page_of_children] == [None, None, None, "user0", "user4"], "browsers have no name"
