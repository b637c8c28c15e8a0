"""A hold is committed at what was really used, once: spent, held and left always add up to the budget."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import counters
from bench import cost
from tally.counter import Counter
from tally.counting import holds
from tally.counting.holds import COMMITTED, HELD, RELEASED
from tally.counting.increments import Increment, count
from tally.dynamo.client import Call
from tally.errors import HoldSettledError, LimitReachedError
from tests import faults
from tests.invariants.counting import new_key, refusal
from tests.invariants.judged import deployed
from tests.invariants.simulation import Clock
from tests.invariants.world import SOME_OF_ALL, World, persist

BUDGET = Counter("budget", prefix="BUDGET", sort_key="LEFT", attribute="credits", start=1_000, floor=0)
LENIENT = Counter("lenient", prefix="BUDGET", sort_key="LENIENT", attribute="credits", start=100, floor=0, debt=50)
OWNER = "acme"


@dataclass
class Budgets:
    """What callers do to the budgets of a world."""

    world: World

    def hold(self, amount: int, counter: Counter = BUDGET, key: str | None = None, ttl_s: int = 60) -> str:
        """Hold an amount; the hold's id."""
        call = self.world.call("ann")
        taken = holds.take(call, counter, OWNER, amount, ttl_s, operation="hold", key=key or new_key())
        return str(taken.body["hold"])

    def commit(self, hold_id: str, amount: int | None = None, counter: Counter = BUDGET) -> dict[str, Any]:
        return holds.settle(self.world.call("ann"), counter, OWNER, hold_id, COMMITTED, amount)

    def release(self, hold_id: str, counter: Counter = BUDGET) -> dict[str, Any]:
        return holds.settle(self.world.call("ann"), counter, OWNER, hold_id, RELEASED)

    def move(self, amount: int, counter: Counter = BUDGET) -> None:
        count(self.world.call("ann"), Increment(counter, OWNER, amount, "increment", new_key(), {}))

    def left(self, counter: Counter = BUDGET) -> int:
        return self.world.tally(counter, OWNER)

    def held(self) -> int:
        """What open holds have taken."""
        return sum(int(row["amount"]["N"]) for row in self.world.rows("HOLDS#") if row["state"] == {"S": HELD})

    def expected(self) -> int:
        """By how much the receipts say that the budgets moved: what the judge compares with the tallies."""
        return sum(int(receipt["amount"]["N"]) for receipt in self.world.receipts())


@pytest.fixture
def budgets(world: World) -> Budgets:
    return Budgets(world)


@pytest.mark.parametrize(("used", "units"), [(None, 4.0), (30, 4.0), (20, 8.0), (45, 8.0), (0, 8.0)])
def test_a_commit_at_what_was_used_gives_back_the_rest_or_takes_more_once(
    budgets: Budgets, used: int | None, units: float
) -> None:
    hold_id, spent = budgets.hold(30), 30 if used is None else used
    with budgets.world.capacity() as measured:
        first = budgets.commit(hold_id, used)
    assert measured == [("GetItem", 1.0), ("TransactWriteItems", units)]
    assert cost.KINDS["hold" if units == 4 else "settled hold"].writes == 6 + units
    settled = {"counter": "budget", "id": OWNER, "hold": hold_id, "state": COMMITTED, "amount": spent}
    assert first == {**settled, "changed": True}
    for again in (used, spent, None):
        assert budgets.commit(hold_id, again) == {**settled, "changed": False}
    refused = refusal(partial(budgets.commit, hold_id, spent + 1))
    assert (type(refused), refused.detail) == (HoldSettledError, f"The hold is committed at {spent}.")
    assert isinstance(refusal(partial(budgets.release, hold_id)), HoldSettledError)
    assert budgets.left() == 1_000 - spent == 1_000 + budgets.expected()


def test_a_commit_of_more_than_is_left_is_refused_and_the_hold_stands(budgets: Budgets) -> None:
    hold_id = budgets.hold(30)
    budgets.move(-960)
    refused = refusal(partial(budgets.commit, hold_id, 41))
    assert (type(refused), refused.members) == (LimitReachedError, {"left": 10})
    assert (budgets.left(), budgets.held()) == (10, 30)
    assert budgets.commit(hold_id, 40)["changed"] is True
    assert budgets.left() == 0


def test_before_a_commit_of_more_is_refused_expired_holds_are_given_back(budgets: Budgets, clock: Clock) -> None:
    hold_id = budgets.hold(30, ttl_s=600)
    budgets.hold(970)
    clock.pass_s(61)
    assert budgets.commit(hold_id, 31)["amount"] == 31
    assert (budgets.left(), budgets.held()) == (969, 0)


def test_commits_alone_go_into_debt_and_holds_wait_until_it_is_paid(budgets: Budgets) -> None:
    first, second = (budgets.hold(40, LENIENT) for _ in range(2))
    assert refusal(partial(budgets.commit, first, 111, LENIENT)).members == {"left": 70}
    assert budgets.commit(first, 110, LENIENT)["amount"] == 110
    assert budgets.left(LENIENT) == -50
    for change in (partial(budgets.hold, 1, LENIENT), partial(budgets.move, -1, LENIENT)):
        assert refusal(change).members == {"left": -50}
    assert refusal(partial(budgets.commit, second, 41, LENIENT)).members == {"left": 0}
    assert budgets.commit(second, 40, LENIENT)["changed"] is True
    budgets.move(51, LENIENT)
    budgets.hold(1, LENIENT)
    assert budgets.left(LENIENT) == 0


def test_a_hold_that_was_committed_before_its_record_had_an_amount_is_committed_as_a_whole(budgets: Budgets) -> None:
    hold_id = budgets.hold(30)
    budgets.commit(hold_id)
    [record] = budgets.world.rows("HOLDS#")
    old = {name: value for name, value in record.items() if name not in ("amount", "nonce")}
    budgets.world.raw.put_item(TableName=budgets.world.name("ledger"), Item=old)
    again = budgets.commit(hold_id)
    assert (again["changed"], "amount" in again) == (False, False)
    assert refusal(partial(budgets.commit, hold_id, 20)).detail == "The hold is committed."


@pytest.mark.parametrize("seed", range(4))
def test_spent_held_and_left_add_up_whatever_fails_and_no_hold_is_settled_two_ways(budgets: Budgets, seed: int) -> None:
    """60 holds, each committed by two callers at once, some also at another amount, or released."""
    chance, proxy = random.Random(seed), budgets.world.proxy
    proxy.plan = faults.seeded(seed, {"TransactWriteItems": SOME_OF_ALL})

    def act(change: Any, *given: Any) -> int | None:
        """What was spent on the hold; None if it was settled otherwise, or has no room."""
        try:
            return int(persist(partial(change, *given)).get("amount", 0))
        except (HoldSettledError, LimitReachedError):
            return None

    def one(held: int, used: int, luck: float) -> set[int]:
        try:
            hold_id = persist(partial(budgets.hold, held, key=new_key()))
        except LimitReachedError:
            return {0}
        acts = [(budgets.commit, hold_id, used)] * 2 + [(budgets.commit, hold_id, used + 1)] * (luck < 0.3)
        acts += [(budgets.release, hold_id)] * (luck > 0.6)
        with ThreadPoolExecutor(len(acts)) as pool:
            return {spent for spent in pool.map(lambda one: act(*one), acts) if spent is not None}

    jobs = [(chance.choice((10, 20, 40)), chance.choice((0, 5, 10, 20, 40, 60)), chance.random()) for _ in range(60)]
    with ThreadPoolExecutor(6) as pool:
        spent = list(pool.map(lambda job: one(*job), jobs))
    injected = sum(times for (fault, _), times in proxy.counts.items() if fault != "NONE")
    proxy.plan = faults.no_faults
    proxy.settle()
    assert injected > 40, "the plan must fail something"
    assert all(len(ways) <= 1 for ways in spent)
    assert sum(sum(ways) for ways in spent) + budgets.held() + budgets.left() == 1_000
    assert budgets.left() == 1_000 + budgets.expected() >= 0


def test_the_judge_finds_every_settled_hold_even_and_repairs_a_number_in_debt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(counters.COUNTERS, "lenient", LENIENT)
    with deployed() as world:
        for used in (20, 30, 3, 0, None, 45):
            taken = holds.take(Call(world.store), LENIENT, OWNER, 15, 600, operation="hold", key=new_key())
            holds.settle(Call(world.store), LENIENT, OWNER, taken.body["hold"], COMMITTED, used)
            world.run(0.5)
        world.even(8)
        assert world.tally(LENIENT, OWNER) == 100 - 113
        world.edit(-5, LENIENT, OWNER)
        world.run(8)
        assert world.drifts() != {}
        reconciler = world.reconciler()
        asked = reconciler.asked()
        reconciler.wait(asked)
        assert reconciler.repair(LENIENT, OWNER, "ann", "edited by hand", asked=asked)
        assert world.tally(LENIENT, OWNER) == 100 - 113
        world.run(8)
        assert world.drifts() == {}
