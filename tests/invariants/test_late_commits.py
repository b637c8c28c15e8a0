"""What was used is written down after its hold has expired, and taken back, each once and in the period of the hold.

The key of a hold is known for as long as the hold can be committed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tally.counting import receipts
from tally.counting.hold_items import COMMITTED, EXPIRED, HELD, RELEASED, VOIDED
from tally.dynamo.clock import OFF_S_MAX
from tally.errors import CounterRetiredError, HoldSettledError, LimitReachedError, NotFoundError
from tests import faults
from tests.invariants.counting import new_key, refusal
from tests.invariants.simulation import Clock
from tests.invariants.test_settling import DAY_S, MINUTES, OWNER, QUOTA, STOCK, Budget
from tests.invariants.world import FAULT_MIX, World, acting_before, retry_until_final
from tests.tiers import in_long


@pytest.fixture(params=[STOCK, QUOTA], ids=["stock", "quota"])
def budget(request: pytest.FixtureRequest, world: World, clock: Clock) -> Budget:
    """At noon."""
    clock.pass_s(1.5 * DAY_S - clock.now_s % DAY_S)
    return Budget(world, request.param)


def not_swept(budget: Budget) -> None:
    """The sweep has not come yet: the hold has its amount."""


def swept(budget: Budget) -> None:
    assert budget.sweep()[:2] == (1, 0)


def overdue(budget: Budget) -> None:
    """A limit that came later refuses the return."""
    number, was = budget.world.tally(budget.counter, budget.tally()), budget.counter
    floor, ceiling = (None, number) if was.ceiling is None else (number, None)
    budget.counter = replace(was, start=number, floor=floor, ceiling=ceiling)
    assert budget.sweep()[:2] == (0, 1)
    budget.counter = was


@pytest.mark.parametrize("became", [not_swept, swept, overdue])
@pytest.mark.parametrize("used", [0, 20, 30, 45])
def test_an_expired_hold_is_committed_once_with_the_amount_used(
    budget: Budget, clock: Clock, became: Callable[[Budget], None], used: int
) -> None:
    key = new_key()
    hold_id = budget.hold(30, key)
    clock.pass_s(61)
    became(budget)
    for _ in range(2):
        assert "Commit an amount" in refusal(partial(budget.commit, hold_id)).detail
    settled = {"counter": budget.counter.name, "id": OWNER, "hold": hold_id, "state": COMMITTED, "amount": used}
    assert budget.commit(hold_id, used) == {**settled, "changed": True}
    for again in (used, None):
        assert budget.commit(hold_id, again) == {**settled, "changed": False}
    refused = refusal(partial(budget.commit, hold_id, used + 1))
    assert (type(refused), refused.detail) == (HoldSettledError, f"The hold is committed at {used}.")
    assert isinstance(refusal(partial(budget.release, hold_id)), HoldSettledError)
    assert budget.take(30, key)["state"] == COMMITTED
    budget.sweep()
    assert (budget.left(), budget.held(), budget.even()) == (1_000 - used, 0, True)


def test_a_late_commit_takes_what_there_is_room_for_within_the_debt_and_nobody_elses(
    budget: Budget, clock: Clock
) -> None:
    first, second = (budget.hold(30) for _ in range(2))
    clock.pass_s(61)
    assert budget.sweep().returned == 2
    held = budget.hold(990, ttl_s=600)
    for _ in range(2):
        assert refusal(partial(budget.commit, first, 11)).members == {"left": 10}
        assert (budget.left(), budget.held()) == (10, 990)
    budget.counter = replace(budget.counter, debt=50)
    assert refusal(partial(budget.commit, first, 61)).members == {"left": 60}
    assert budget.commit(first, 40)["changed"] is True
    assert refusal(partial(budget.hold, 1)).members["left"] == -30
    budget.release(held)
    assert budget.commit(second, 30)["changed"] is True
    assert (budget.left(), budget.even()) == (930, True)


def test_before_a_late_commit_is_refused_other_expired_holds_make_room(budget: Budget, clock: Clock) -> None:
    """Also the hold itself, which then takes all of what it commits."""
    hold_id = budget.hold(30)
    budget.hold(970)
    clock.pass_s(61)
    assert budget.commit(hold_id, 45)["changed"] is True
    budget.sweep()
    assert (budget.left(), budget.even()) == (955, True)
    last = budget.hold(500)
    budget.hold(455, ttl_s=600)
    clock.pass_s(61)
    assert refusal(partial(budget.commit, last, 501)).members == {"left": 500}
    assert budget.commit(last, 500)["changed"] is True
    assert (budget.left(), budget.even()) == (0, True)


def test_the_key_of_a_hold_is_known_as_long_as_the_hold_can_be_committed(budget: Budget, clock: Clock) -> None:
    """Seven days and a day more, however soon the hold is settled."""
    keys = {state: new_key() for state in (HELD, RELEASED, COMMITTED, EXPIRED)}
    first = {state: budget.take(30, key, 7 * DAY_S) for state, key in keys.items()}
    budget.release(first[RELEASED]["hold"])
    budget.commit(first[COMMITTED]["hold"], 20)
    began_s, left = time.time(), budget.left()
    receipts = [receipt for receipt in budget.world.receipts() if "data" in receipt]
    records = budget.world.rows("HOLDS#SETTLED#")
    assert (len(receipts), len(records)) == (4, 2)
    for stored in receipts + records:
        assert int(stored["expiration"]["N"]) == began_s + 8 * DAY_S + OFF_S_MAX, "DynamoDB removes it then"
    for passed_s in (2 * DAY_S, 7 * DAY_S - 1):
        clock.pass_s(began_s + passed_s - clock.now_s)
        states = [budget.take(30, key, 7 * DAY_S)["state"] for key in keys.values()]
        assert states == [HELD, RELEASED, COMMITTED, HELD]
    clock.pass_s(began_s + 8 * DAY_S - 1 - clock.now_s)
    again = {state: budget.take(30, key, 7 * DAY_S) for state, key in keys.items()}
    assert {one["hold"] for one in again.values()} == {one["hold"] for one in first.values()}
    today = f"{OWNER}#{first[HELD]['period']}" if budget.counter.period else OWNER
    assert budget.left(today) == left
    assert budget.commit(first[EXPIRED]["hold"], 30)["changed"] is True
    clock.pass_s(1)
    refused = refusal(partial(budget.commit, first[HELD]["hold"], 30))
    assert refused.detail == "The hold expired too long ago to be committed."


def test_receipts_that_live_longer_keep_their_holds_longer(world: World, clock: Clock) -> None:
    budget = Budget(world, replace(STOCK, receipt_days=30))
    hold_id = budget.hold(30)
    clock.pass_s(29 * DAY_S)
    budget.sweep()
    assert budget.commit(hold_id, 20)["changed"] is True
    assert budget.left() == 980


@pytest.mark.parametrize(("then", "now"), [(9, 2), (9, None), (2, 9)])
def test_a_hold_is_kept_as_long_as_its_key_whatever_the_receipt_days_are_now(
    world: World, clock: Clock, then: int, now: int | None
) -> None:
    """`receipt_days` changes while holds are open: neither a key without its hold, nor a hold without its key."""
    budget = Budget(world, replace(STOCK, receipt_days=then))
    keys = {state: new_key() for state in (RELEASED, COMMITTED, EXPIRED, "late")}
    first = {state: budget.take(30, key)["hold"] for state, key in keys.items()}
    began_s = clock.now_s
    budget.counter = replace(STOCK, receipt_days=now)
    budget.release(first[RELEASED])
    budget.commit(first[COMMITTED], 20)
    clock.pass_s(61)
    assert budget.sweep().returned == 2
    receipts = {int(one["expiration"]["N"]) for one in world.receipts() if "data" in one}
    records = {int(one["expiration"]["N"]) for one in world.rows("HOLDS#SETTLED#")}
    assert max(receipts) <= min(records), "DynamoDB removes the hold before its key"
    clock.pass_s(began_s + 60 + then * DAY_S - 1 - clock.now_s)
    assert [budget.take(30, key)["state"] for key in keys.values()] == [RELEASED, COMMITTED, EXPIRED, EXPIRED]
    assert budget.commit(first["late"], 30)["changed"] is True
    clock.pass_s(1)
    refused = refusal(partial(budget.commit, first[EXPIRED], 30))
    assert refused.detail == "The hold expired too long ago to be committed."


def test_a_late_commit_and_a_void_count_in_the_period_of_the_hold_while_it_is_kept(world: World, clock: Clock) -> None:
    clock.pass_s(1.5 * DAY_S - clock.now_s % DAY_S)
    budget = Budget(world, QUOTA)
    today, hold_id = budget.tally(), budget.hold(30)
    clock.pass_s(DAY_S)
    budget.sweep()
    budget.use(1_000)
    assert budget.commit(hold_id, 20)["changed"] is True
    assert (budget.left(today), budget.left()) == (980, 0)
    assert budget.void(hold_id)["changed"] is True
    assert (budget.left(today), budget.left()) == (1_000, 0)
    minutes = Budget(world, MINUTES)
    late, done = minutes.hold(30), minutes.hold(40)
    minutes.commit(done)
    clock.pass_s(300)
    minutes.sweep()
    for act in (partial(minutes.commit, late, 20), partial(minutes.void, done)):
        refused = refusal(act)
        assert (type(refused), refused.detail[:14]) == (NotFoundError, "minutes does n")


def test_a_committed_hold_is_voided_once(budget: Budget, clock: Clock) -> None:
    key = new_key()
    kept, none, late = budget.hold(30, key), budget.hold(30), budget.hold(30)
    budget.commit(kept, 45)
    budget.commit(none, 0)
    clock.pass_s(61)
    budget.sweep()
    budget.commit(late, 20)
    assert budget.left() == 935
    with budget.world.capacity() as measured:
        first = budget.void(kept)
    assert measured == [("GetItem", 1.0)] * 4 + [("TransactWriteItems", 8.0)]
    voided = {"counter": budget.counter.name, "id": OWNER, "hold": kept, "state": VOIDED, "amount": 45}
    assert first == {**voided, "changed": True}
    assert budget.void(kept) == {**voided, "changed": False}
    assert (budget.void(none)["amount"], budget.void(late)["amount"]) == (0, 20)
    assert budget.take(30, key)["state"] == VOIDED
    for act in (partial(budget.commit, kept), partial(budget.commit, kept, 45), partial(budget.release, kept)):
        assert refusal(act).detail == "The hold is voided."
    assert (budget.left(), budget.even()) == (1_000, True)
    for record in budget.world.rows("HOLDS#SETTLED#"):
        assert int(record["expiration"]["N"]) > time.time() + DAY_S - 120


def test_the_receipt_of_a_hold_says_that_its_commit_was_taken_back(budget: Budget, clock: Clock) -> None:
    """It is no new one to the consumers. Once it has expired, DynamoDB may have removed it."""
    key, owner = new_key(), f"{budget.counter.name}/{OWNER}"
    hold_id = budget.hold(30, key)
    budget.commit(hold_id)
    before, call = budget.world.receipts(), budget.world.call("ann")
    assert [one and one.voided for one in receipts.find_many(call, "hold", [(owner, key)])] == [False]
    assert [budget.void(hold_id)["changed"] for _ in range(2)] == [True, False]
    assert [one and one.voided for one in receipts.find_many(call, "hold", [(owner, key)])] == [True]
    nonces = {one["id"]["S"]: one["nonce"] for one in budget.world.receipts()}
    assert [nonces[one["id"]["S"]] for one in before] == [one["nonce"] for one in before]
    assert budget.even()
    late = budget.hold(30)
    budget.commit(late)
    clock.pass_s(8 * DAY_S + OFF_S_MAX + 1)
    table = budget.world.store.settings.receipts_table
    for one in budget.world.receipts():
        budget.world.raw.delete_item(TableName=table, Key={"id": one["id"]})
    if budget.counter.period is None:
        assert budget.void(late)["changed"] is True
    assert budget.world.receipts() == [] or budget.counter.period is None


def test_a_hold_that_is_not_committed_has_nothing_to_void_and_a_retired_counter_voids_none(
    budget: Budget, clock: Clock
) -> None:
    held, released, expired, done = (budget.hold(10, ttl_s=ttl_s) for ttl_s in (600, 600, 60, 60))
    budget.release(released)
    budget.commit(done)
    clock.pass_s(61)
    for became in (not_swept, swept):
        became(budget)
        for hold_id, state in ((held, HELD), (released, RELEASED), (expired, EXPIRED)):
            assert refusal(partial(budget.void, hold_id)).detail == f"The hold is {state}."
    assert isinstance(refusal(partial(budget.void, "1700000000-AAAAAAAAAAAAAAAA")), NotFoundError)
    budget.counter = replace(budget.counter, retired=True)
    assert isinstance(refusal(partial(budget.void, done)), CounterRetiredError)
    assert budget.commit(expired, 5)["changed"] is True, "its open holds are settled"
    assert (budget.left(), budget.even()) == (975, True)


@pytest.mark.parametrize("state", [EXPIRED, RELEASED, COMMITTED])
def test_a_late_commit_that_another_comes_before_says_so_and_takes_nothing(
    budget: Budget, clock: Clock, state: str
) -> None:
    """Between the read of the hold and the write."""
    hold_id = budget.hold(30)
    clock.pass_s(61)

    def first() -> None:
        past_the_proxy = replace(budget.world, store=replace(budget.world.store, client=budget.world.raw))
        other = Budget(past_the_proxy, budget.counter)
        acts: dict[str, Callable[[], object]] = {
            EXPIRED: other.sweep,
            RELEASED: partial(other.release, hold_id),
            COMMITTED: partial(other.commit, hold_id, 7),
        }
        acts[state]()

    budget.world.proxy.forget()
    budget.world.proxy.plan = acting_before({0: first})
    if state == EXPIRED:
        assert budget.commit(hold_id, 20)["changed"] is True
    else:
        assert isinstance(refusal(partial(budget.commit, hold_id, 20)), HoldSettledError)
    budget.world.proxy.plan = faults.no_faults
    assert budget.left() == 1_000 - {EXPIRED: 20, RELEASED: 0, COMMITTED: 7}[state]
    assert budget.even()


@pytest.mark.parametrize("seed", [0, *in_long(range(1, 6))])
def test_expiry_late_commits_releases_and_voids_race_and_each_hold_counts_once(
    budget: Budget, clock: Clock, seed: int
) -> None:
    """30 holds whose time is over: two callers commit each at once, the sweep runs, and some are released or voided.
    Others write down what is used already, and each change is sent twice."""
    chance, proxy = random.Random(seed), budget.world.proxy
    budget.counter = replace(budget.counter, debt=500)
    hold_ids = [budget.hold(chance.choice((10, 20, 30))) for _ in range(30)]
    clock.pass_s(61)
    proxy.plan = faults.random_faults(seed, {"TransactWriteItems": FAULT_MIX})

    def act(hold_id: str, name: str, change: Callable[..., dict[str, Any]], *given: int) -> tuple[str, str, Any]:
        try:
            return hold_id, name, retry_until_final(partial(change, hold_id, *given))
        except (HoldSettledError, LimitReachedError) as refused:
            return hold_id, name, type(refused)

    jobs = []
    for hold_id in hold_ids:
        used = chance.choice((0, 5, 20, 45))
        jobs += [(hold_id, COMMITTED, budget.commit, used)] * 2
        jobs += [(hold_id, COMMITTED, budget.commit, used + 1)] * (chance.random() < 0.3)
        jobs += [(hold_id, RELEASED, budget.release)] * (chance.random() < 0.3)
        jobs += [(hold_id, VOIDED, budget.void)] * (2 * (chance.random() < 0.4))
    keys = {new_key(): chance.choice((5, 20, 60)) for _ in range(20)}
    jobs += [(key, "used", lambda key: budget.use(keys[key], key, used=True).body) for key in keys] * 2
    chance.shuffle(jobs)
    with ThreadPoolExecutor(6) as pool:
        swept = pool.submit(retry_until_final, budget.sweep)
        answers = list(pool.map(lambda job: act(*job), jobs))
        swept.result()
    injected = sum(times for (fault, _), times in proxy.counts.items() if fault != "NONE")
    proxy.plan = faults.no_faults
    proxy.wait_until_idle()
    assert injected > 5, "the plan must fail something"
    budget.sweep()
    spent = 0
    for record in budget.world.rows("HOLDS#SETTLED#"):
        hold_id, state = record["hold_id"]["S"], record["state"]["S"]
        ways = {name for which, name, body in answers if which == hold_id and isinstance(body, dict)}
        bodies = [body for which, _, body in answers if which == hold_id and isinstance(body, dict)]
        taken = {body["amount"] for body in bodies if "amount" in body}
        assert state in (ways or {EXPIRED})
        assert (len(taken) <= 1, {RELEASED, COMMITTED} <= ways) == (True, False)
        spent += int(record["used"]["N"]) if state == COMMITTED else 0
    used = {key: body for key, name, body in answers if name == "used" and isinstance(body, dict)}
    spent += sum(keys[key] for key in used)
    assert (budget.left(), budget.held(), budget.even()) == (1_000 - spent, 0, True)
    assert budget.left() >= -500
