"""A hold is committed once, at the amount that was used. Spent, held and left always add up to the budget.

A budget is a stock, which has a floor, or the quota of a period, which has a ceiling.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

import counters
from bench import cost
from tally.counter import Counter
from tally.counting import changing, expired_holds, holds, periods, settling
from tally.counting.hold_items import COMMITTED, HELD, RELEASED, VOIDED
from tally.counting.increments import Increment, count
from tally.counting.receipts import ChangeAnswer
from tally.dynamo import items
from tally.dynamo.client import Call
from tally.errors import HoldSettledError, KeyReusedError, LimitReachedError
from tests import faults
from tests.invariants.counting import new_key, refusal
from tests.invariants.deployment import deployed
from tests.invariants.simulation import Clock
from tests.invariants.world import FAULT_MIX, World, retry_until_final
from tests.tiers import marked_long

STOCK = Counter("budget", prefix="BUDGET", sort_key="LEFT", attribute="credits", start=1_000, floor=0)
QUOTA = Counter("quota", prefix="BUDGET", sort_key="USED", attribute="used", ceiling=1_000, period="day")
MINUTES = replace(QUOTA, name="minutes", period="minute", keep_periods=2)
OWNER = "acme"
DAY_S = 24 * 3600


@dataclass
class Budget:
    """Does what callers do to a budget of 1,000. `counter`: the present declaration of the budget."""

    world: World
    counter: Counter

    def without_proxy(self) -> Budget:
        """Returns the budget of another process, whose requests meet no fault."""
        store = replace(self.world.store, client=self.world.raw)
        return replace(self, world=replace(self.world, store=store))

    def tally_id(self) -> str:
        """Returns the id of the budget's tally in the present period."""
        return periods.tally_id(self.counter, OWNER, time.time())

    def place(self, amount: int, key: str | None = None, ttl_s: int = 60) -> dict[str, Any]:
        call = self.world.call("ann")
        id_, key = self.tally_id(), key or new_key()
        return holds.place(call, self.counter, id_, amount, ttl_s, operation="hold", key=key).body

    def hold(self, amount: int, key: str | None = None, ttl_s: int = 60) -> str:
        """Places a hold. Returns the id of the hold."""
        return str(self.place(amount, key, ttl_s)["hold"])

    def change(
        self, hold_id: str, amount: int | None = None, ttl_s: int | None = None, key: str | None = None
    ) -> ChangeAnswer:
        return changing.change_hold(
            self.world.call("ann"), self.counter, OWNER, hold_id, amount, ttl_s,
            operation="change_hold", key=key or new_key(),
        )  # fmt: skip

    def commit(self, hold_id: str, amount: int | None = None) -> dict[str, Any]:
        return settling.settle(self.world.call("ann"), self.counter, OWNER, hold_id, COMMITTED, amount)

    def void(self, hold_id: str) -> dict[str, Any]:
        return settling.settle(self.world.call("ann"), self.counter, OWNER, hold_id, VOIDED)

    def release(self, hold_id: str) -> dict[str, Any]:
        return settling.settle(self.world.call("ann"), self.counter, OWNER, hold_id, RELEASED)

    def use(self, amount: int, key: str | None = None, *, used: bool = False) -> ChangeAnswer:
        """Counts an amount of the budget. `used`: the amount was used, so it may go into debt."""
        delta = amount if self.counter.floor is None else -amount  # a quota counts up, and a stock down
        change = Increment(self.counter, self.tally_id(), delta, "increment", key or new_key(), {}, used=used)
        return count(self.world.call("ann"), change)

    def left(self, tally_id: str | None = None) -> int:
        """Returns how much is neither spent nor held. `tally_id`: None: in the present period."""
        number = self.world.tally(self.counter, tally_id or self.tally_id())
        return number if self.counter.ceiling is None else self.counter.ceiling - number

    def held(self) -> int:
        """Returns the sum of the open holds."""
        open_holds = [row for row in self.world.rows("HOLDS#") if row["state"] == {"S": HELD}]
        return sum(abs(int(row["amount"]["N"])) for row in open_holds)

    def equals_receipts(self) -> bool:
        """Says whether the tally equals the sum of its receipts, as the judge compares them."""
        sum_of_receipts = sum(items.int_attribute(receipt, "amount") for receipt in self.world.receipts())
        return self.world.tally(self.counter, self.tally_id()) == self.counter.start + sum_of_receipts

    def sweep(self) -> expired_holds.SweptHolds:
        """Releases expired holds, for a minute at most."""
        store = self.world.store
        return expired_holds.sweep(store, {self.counter.name: self.counter}, store.clock() + 60)


@pytest.fixture(params=[STOCK, QUOTA], ids=["stock", "quota"])
def budget(request: pytest.FixtureRequest, world: World, clock: Clock) -> Budget:
    """A budget at noon."""
    clock.pass_s(1.5 * DAY_S - clock.now_s % DAY_S)
    return Budget(world, request.param)


@pytest.mark.parametrize(("used", "units"), [(None, 4.0), (30, 4.0), (20, 8.0), (45, 8.0), (0, 8.0)])
def test_a_commit_at_the_used_amount_releases_the_rest_or_takes_more_once(
    budget: Budget, used: int | None, units: float
) -> None:
    hold_id, spent = budget.hold(30), 30 if used is None else used
    assert budget.left() == 1_000 - 30
    with budget.world.measure_units() as measured:
        first_answer = budget.commit(hold_id, used)
    assert measured == [("GetItem", 1.0), ("TransactWriteItems", units)]
    # A commit at the amount of the hold does not move the number, so it costs 4 units. To place the hold costs 6 units.
    assert cost.KINDS["hold" if units == 4 else "hold, other amount"].writes == 6 + units
    answer = {"counter": budget.counter.name, "id": OWNER, "hold": hold_id, "state": COMMITTED, "amount": spent}
    assert first_answer == {**answer, "changed": True}
    for amount in (used, spent, None):
        assert budget.commit(hold_id, amount) == {**answer, "changed": False}
    error = refusal(partial(budget.commit, hold_id, spent + 1))
    assert (type(error), error.detail) == (HoldSettledError, f"The hold is committed at {spent}.")
    assert isinstance(refusal(partial(budget.release, hold_id)), HoldSettledError)
    assert budget.left() == 1_000 - spent
    assert budget.equals_receipts()


def test_a_commit_of_more_than_is_left_is_refused_and_the_hold_stays_open(budget: Budget) -> None:
    """The error has no `retry_after_s`, because a hold never moves to the next period."""
    hold_id = budget.hold(30)
    budget.use(960)
    error = refusal(partial(budget.commit, hold_id, 41))
    assert (type(error), error.members) == (LimitReachedError, {"left": 10})
    assert (budget.left(), budget.held()) == (1_000 - 30 - 960, 30)
    assert budget.commit(hold_id, 40)["changed"] is True
    assert budget.left() == 0


def test_before_a_refusal_expired_holds_are_released(budget: Budget, clock: Clock) -> None:
    hold_id = budget.hold(30, ttl_s=600)
    budget.hold(970)
    for change in (partial(budget.commit, hold_id, 31), partial(budget.hold, 969), partial(budget.use, 969)):
        clock.pass_s(61)  # the newest hold expires
        change()
        if budget.left():
            budget.hold(budget.left())  # so the next change is refused, unless this hold is released
    assert (budget.left(), budget.held(), budget.equals_receipts()) == (0, 0, True)


def test_only_commits_go_into_debt_and_holds_are_refused_until_the_debt_is_paid(budget: Budget) -> None:
    budget.counter = replace(budget.counter, debt=50)
    budget.use(900)
    first, second = (budget.hold(40) for _ in range(2))
    # `left` is what a commit may take beyond its hold: here the 20 that are left and the debt of 50.
    assert refusal(partial(budget.commit, first, 111)).members == {"left": 70}
    assert budget.commit(first, 100)["amount"] == 100
    assert budget.left() == 20 - (100 - 40), "10 of the debt are left, only for commits"
    for change in (partial(budget.hold, 1), partial(budget.use, 1)):
        assert refusal(change).members["left"] == -40
    assert refusal(partial(budget.commit, second, 51)).members == {"left": 10}
    assert budget.commit(second, 40)["changed"] is True
    budget.use(-41)  # pays the debt, and 1 more
    budget.hold(1)
    assert (budget.left(), budget.equals_receipts()) == (0, True)


def test_a_used_amount_goes_into_debt_once_and_its_answer_says_over(budget: Budget, clock: Clock) -> None:
    visible, key = {"visible": "now"}, new_key()
    budget.counter = replace(budget.counter, debt=50)
    assert budget.use(990, used=True) == (visible, False), "within the limit the answer has no `over`"
    assert refusal(partial(budget.use, 30)).members["left"] == 10
    budget.world.proxy.clear_requests()
    assert budget.use(30, key, used=True) == (visible | {"over": True}, False)
    # The first transaction is refused, the query finds no expired hold, and the second transaction goes into debt.
    assert (len(budget.world.requests("Query")), len(budget.world.requests("TransactWriteItems"))) == (1, 2)
    assert budget.use(30, key, used=True) == (visible | {"over": True}, True)
    assert isinstance(refusal(partial(budget.use, 30, key)), KeyReusedError)
    error = refusal(partial(budget.use, 31, used=True))
    assert (type(error), error.members["left"]) == (LimitReachedError, 50 - 20)  # 20 of the debt are used
    # The next period would accept the amount of 31. No period would accept 1,051.
    assert ("retry_after_s" in error.members) is (budget.counter.period is not None)
    if budget.counter.period:
        assert "retry_after_s" not in refusal(partial(budget.use, 1_051, used=True)).members
    for change in (partial(budget.hold, 1), partial(budget.use, 1)):
        assert refusal(change).members["left"] == -20
    assert budget.use(30, used=True).body["over"] is True
    budget.use(-70)
    assert budget.use(20, used=True) == (visible, False)
    budget.use(-50)
    budget.hold(50)
    clock.pass_s(61)
    assert budget.use(30, used=True) == (visible, False), "an expired hold was released first"
    assert budget.sweep().finished
    budget.counter = replace(budget.counter, debt=0)
    assert refusal(partial(budget.use, 21, used=True)).members["left"] == 20
    # Used are 990 + 30 + 30 - 70 + 20 - 50 + 30, so 980 of 1,000.
    assert (budget.left(), budget.equals_receipts()) == (20, True)


def test_no_hold_is_released_if_its_release_would_move_the_number_towards_the_refusing_limit_or_beyond_it(
    budget: Budget, clock: Clock
) -> None:
    """The counter is declared anew, with a limit in the direction in which a release moves the number."""
    open_hold, expired_hold = budget.hold(30, ttl_s=600), budget.hold(50)
    declared, number = budget.counter, budget.world.tally(budget.counter, budget.tally_id())
    clock.pass_s(61)
    for room in (60, 0):
        floor, ceiling = (None, number + room) if declared.ceiling is None else (number - room, None)
        budget.counter = replace(declared, start=number, floor=floor, ceiling=ceiling)  # limits must include the start
        assert refusal(partial(budget.use, room + 1)).members["left"] == room
        assert budget.held() == 80, "a release would take room"
    assert refusal(partial(budget.commit, open_hold, 29)).members == {"left": 0}
    assert budget.sweep()[:2] == (0, 1)  # released, failed
    budget.counter = declared
    assert budget.sweep()[:2] == (1, 0)  # released, failed
    assert budget.commit(open_hold, 20)["changed"] is True
    assert isinstance(refusal(partial(budget.commit, expired_hold)), HoldSettledError)
    assert (budget.left(), budget.equals_receipts()) == (1_000 - 20, True)


def test_a_hold_stays_in_its_period_and_its_release_makes_no_room_in_another_period(world: World, clock: Clock) -> None:
    clock.pass_s(1.5 * DAY_S - clock.now_s % DAY_S)
    quota, key = Budget(world, QUOTA), new_key()
    first_tally = quota.tally_id()
    first = quota.place(600, key, ttl_s=2 * DAY_S)
    expired_hold = quota.hold(300, ttl_s=DAY_S)
    assert (first["id"], f"{OWNER}#{first['period']}") == (OWNER, first_tally)
    clock.pass_s(DAY_S)
    quota.use(1_000)
    assert refusal(partial(quota.hold, 1)).members.keys() == {"left", "retry_after_s"}
    assert quota.held() == 900, "the expired hold was not released, because it is in another period"
    assert quota.place(600, key, ttl_s=2 * DAY_S) == first
    assert quota.commit(str(first["hold"]), 250)["changed"] is True
    assert quota.release(expired_hold)["changed"] is True
    assert (quota.left(first_tally), quota.left()) == (1_000 - 250, 0)


@pytest.mark.parametrize("seed", [0, *marked_long(range(1, 4))])
def test_under_faults_spent_held_and_left_add_up_and_no_hold_is_settled_in_two_ways(budget: Budget, seed: int) -> None:
    """Two callers commit each of 30 holds, while other callers commit another amount, release or change the hold."""
    chance, proxy = random.Random(seed), budget.world.proxy
    proxy.plan = faults.random_faults(seed, {"TransactWriteItems": FAULT_MIX})

    def act(change: Any, *arguments: Any) -> int | None:
        """Returns the amount spent on the hold; None if the act changed the hold or was refused."""
        try:
            body = retry_until_final(partial(change, *arguments))
            return None if change == budget.change else int(body.get("amount", 0))
        except (HoldSettledError, LimitReachedError):
            return None

    def use_hold(amount: int, used: int, luck: float, changes: list[tuple[int | None, int]]) -> set[int]:
        """Returns the spent amounts that the callers were told. `luck`: decides which other callers there are.
        `changes`: amount and time in seconds of each change of the hold. Two callers send each change."""
        try:
            hold_id = retry_until_final(partial(budget.hold, amount, new_key()))
        except LimitReachedError:
            return {0}
        acts = [(budget.commit, hold_id, used)] * 2 + [(budget.commit, hold_id, used + 1)] * (luck < 0.3)
        acts += [(budget.release, hold_id)] * (luck > 0.6)
        acts += [(budget.change, hold_id, *change, key) for change in changes for key in [new_key()] * 2]
        random.Random(luck).shuffle(acts)
        with ThreadPoolExecutor(len(acts)) as pool:
            return {spent for spent in pool.map(lambda arguments: act(*arguments), acts) if spent is not None}

    def random_job() -> tuple[int, int, float, list[tuple[int | None, int]]]:
        changes = [(chance.choice((1, 25, 50, None)), chance.choice((30, 60, 90))) for _ in range(chance.randint(0, 2))]
        return chance.choice((10, 20, 40)), chance.choice((0, 5, 10, 20, 40, 60)), chance.random(), changes

    jobs = [random_job() for _ in range(30)]
    with ThreadPoolExecutor(6) as pool:
        spent = list(pool.map(lambda job: use_hold(*job), jobs))
    fault_count = sum(times for (fault, _), times in proxy.counts.items() if fault != "NONE")
    proxy.plan = faults.no_faults
    proxy.wait_until_idle()
    assert fault_count > 20, "the plan must fail something"
    assert all(len(amounts) <= 1 for amounts in spent)
    assert sum(sum(amounts) for amounts in spent) + budget.held() + budget.left() == 1_000
    assert budget.left() >= 0
    assert budget.equals_receipts()


def test_settled_holds_make_no_drift_after_their_period_and_a_number_in_debt_is_repaired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a past period, one hold is committed at less, one hold has expired, and one hold is released."""
    small = replace(STOCK, start=100, debt=50)
    for counter in (small, MINUTES):
        monkeypatch.setitem(counters.COUNTERS, counter.name, counter)
    with deployed() as world:

        def hold(counter: Counter, tally: str, ttl_s: int = 600) -> str:
            answer = holds.place(Call(world.store), counter, tally, 15, ttl_s, operation="hold", key=new_key())
            return str(answer.body["hold"])

        def settle(counter: Counter, hold_id: str, state: str, used: int | None = None) -> None:
            settling.settle(Call(world.store), counter, OWNER, hold_id, state, used)

        minute = periods.tally_id(MINUTES, OWNER, world.now_s)
        used_hold, *released_holds = hold(MINUTES, minute), hold(MINUTES, minute, 30), hold(MINUTES, minute)
        for spent in (20, 30, 3, 0, None, 45):
            settle(small, hold(small, OWNER), COMMITTED, spent)
            world.run(0.5)
        settle(MINUTES, used_hold, COMMITTED, 12)
        for hold_id in released_holds:
            settle(MINUTES, hold_id, RELEASED)
        world.run_without_drift()
        left = 100 - (20 + 30 + 3 + 0 + 15 + 45)  # a commit without an amount spends the 15 of its hold
        assert (world.tally(small, OWNER), world.tally(MINUTES, minute)) == (left, 12)
        world.edit(5, small, OWNER)
        world.run_until_judged()
        reconciler = world.reconciler()
        required_minute = reconciler.minute_to_judge()
        reconciler.wait_until_judged(required_minute)
        assert reconciler.repair(small, OWNER, "ann", "edited by hand", required_minute=required_minute)
        world.run_until_judged()
        assert (world.tally(small, OWNER), world.drifts()) == (left, {})
