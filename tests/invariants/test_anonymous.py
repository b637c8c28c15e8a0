"""Likes without sign-in: each browser counts once, whatever fails, and who signs in takes its like over exactly."""

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
from tests.tiers import in_long

HEARTS = counters.HEARTS
SECRET = "0b1f6c64-7d0e-4a52-9c3b-8e2f5a7d9c10"
ALONE = {kind: FAULT_MIX[kind] for kind in (faults.LOSE_RESPONSE, faults.FAIL_AFTER, faults.FAIL_BEFORE)}


def wish(call: Call, id_: str, secret: str, there: bool) -> None:
    children.set_child(call, HEARTS, id_, anonymous.child_name(HEARTS, id_, secret), there)


def likes(call: Call, id_: str, secret: str) -> bool:
    return children.has_child(call, HEARTS, id_, anonymous.child_name(HEARTS, id_, secret))


@pytest.mark.parametrize("seed", [0, *in_long(range(1, 4))])
def test_a_number_is_the_browsers_whose_last_click_was_a_like(seed: int, world: World) -> None:
    """30 browsers, 3 pages, 150 clicks, each sent twice, 8 at once."""
    chance = random.Random(seed)
    browsers = [f"{SECRET}{number}" for number in range(30)]
    last: dict[tuple[str, str], bool] = {}
    lanes: list[list[tuple[str, str, bool]]] = [[] for _ in range(8)]
    for _ in range(150):
        number, page, there = chance.randrange(30), chance.choice("abc"), chance.random() < 0.65
        lanes[number % 8].append((browsers[number], page, there))
        last[browsers[number], page] = there
    world.proxy.plan = faults.random_faults(seed, {"TransactWriteItems": FAULT_MIX, "PutItem": ALONE})

    def click(lane: list[tuple[str, str, bool]]) -> None:
        for secret, page, there in lane:
            for _ in range(2):
                retry_until_final(lambda: wish(world.call(), page, secret, there))  # noqa: B023

    run_together([lambda lane=lane: click(lane) for lane in lanes])  # type: ignore[misc]
    injected = sum(count for kind, count in world.proxy.counts.items() if kind[0] != "NONE")
    world.proxy.plan = faults.no_faults
    assert injected > 30
    for page in "abc":
        wanted = {secret for secret in browsers if last.get((secret, page))}
        assert {secret for secret in browsers if likes(world.call(), page, secret)} == wanted
        assert world.tally_after_rollup(HEARTS, page) == len(wanted)


def test_who_reads_the_table_links_no_two_likes_and_no_user_has_such_a_name() -> None:
    """A hash of secret, counter and id; and a user or a child who is called so gets another key."""
    family = counters.MEMBERS
    names = [
        anonymous.child_name(counter, id_, secret) for counter in (HEARTS, family) for id_ in "ab" for secret in "xy"
    ]
    assert len(set(names)) == len(names)
    assert {(name[:2], len(name)) for name in names} == {("%~", 26)}
    for name in names:
        assert fields.cursor(fields.encode_cursor(name), "cursor") == name
        for quoted in (fields.user(name, "caller"), fields.child(name, "name")):
            assert not quoted.startswith(anonymous.CHILD_NAME_PREFIX)


def test_a_like_that_the_rollup_has_still_to_add_is_no_difference_though_its_item_has_the_day_alone(
    deployment: Deployment,
) -> None:
    hot = Call(replace(deployment.store, breaker=Breaker()))
    deployment.run(30)
    deployment.stall("rollup", "counts")
    hot.store.breaker.trip(f"{HEARTS.partition_start}a")
    wish(hot, "a", SECRET, True)
    deployment.run(1)
    found = recount.recount(deployment.store, HEARTS, "a", deployment.now_s)
    assert (found.children, found.low, found.unproven_reason) == (1, 0, recount.ROLLUP_PENDING)
    wish(Call(deployment.store), "a", SECRET, False)
    found = recount.recount(deployment.store, HEARTS, "a", deployment.now_s)
    assert (found.low, found.high, found.unproven_reason) == (0, 1, recount.ROLLUP_PENDING)
    deployment.resume()
    deployment.assert_no_drift()
    assert deployment.tally(HEARTS, "a") == 0


def test_likes_without_sign_in_drift_no_more_than_others(deployment: Deployment) -> None:
    """Written now and alone, taken over by users, taken back, and removed with their parent."""
    call, hot = Call(deployment.store), Call(replace(deployment.store, breaker=Breaker()))
    for page in "ab":
        hot.store.breaker.trip(HEARTS.partition_start + page)
        for number in range(6):
            wish(call if number < 3 else hot, page, f"{SECRET}{number}", True)
    deployment.run(1)
    for number in (0, 4):  # they sign in: theirs first
        children.set_child(call, HEARTS, "a", f"user{number}", True)
        assert deployment.tally(HEARTS, "a") == 7
        wish(call, "a", f"{SECRET}{number}", False)
    wish(call, "a", f"{SECRET}5", False)
    deletion.remove_parent(call, HEARTS, "b")
    deployment.assert_no_drift()
    assert deployment.tally(HEARTS, "a") == 5
    listed, _ = children.list_children(call, HEARTS, "a", 50, None)
    assert [one.name for one in listed] == [None, None, None, "user0", "user4"]
