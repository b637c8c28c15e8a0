"""A change of a hold sets its amount or time, once for its key. Spent, held and left always sum up to the budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tally.counting.hold_items import COMMITTED, EXPIRED, HELD, OVERDUE, RELEASED, VOIDED
from tally.dynamo.clock import CLOCK_DIFFERENCE_S_MAX
from tally.errors import (
    CounterRetiredError,
    HoldSettledError,
    InvalidInputError,
    KeyReusedError,
    LimitReachedError,
    NotFoundError,
    StoreBusyError,
)
from tests import faults
from tests.invariants.counting import new_key, refusal
from tests.invariants.simulation import Clock
from tests.invariants.test_settling import DAY_S, MINUTES, OWNER, QUOTA, STOCK, Budget
from tests.invariants.world import World, before_transactions


@pytest.fixture(params=[STOCK, QUOTA], ids=["stock", "quota"])
def budget(request: pytest.FixtureRequest, world: World, clock: Clock) -> Budget:
    """A budget of the stock or of a daily quota. The clock stands at noon. A hold lasts 60 s if a test says no time."""
    clock.pass_s(1.5 * DAY_S - clock.now_s % DAY_S)
    return Budget(world, request.param)


def test_a_hold_of_the_whole_budget_shrinks_and_grows(budget: Budget) -> None:
    """The amount that a hold has is left for its own change: only the difference must fit."""
    first = budget.place(1_000)
    for amount in (400, 1_000, 1, 1_000):
        assert budget.change(first["hold"], amount) == (first | {"amount": amount}, False)
        assert (budget.left(), budget.held(), budget.equals_receipts()) == (1_000 - amount, amount, True)
    error = refusal(partial(budget.change, first["hold"], 1_001))
    assert (type(error), error.members) == (LimitReachedError, {"left": 0})
    assert (budget.left(), budget.held()) == (0, 1_000)
    assert budget.commit(first["hold"])["amount"] == 1_000


def test_a_change_costs_the_documented_units(world: World, clock: Clock) -> None:
    budget = Budget(world, STOCK)
    for amount, ttl_s, units in ((20, None, 6), (None, 900, 8), (20, 900, 10), (30, 60, 4)):
        hold_id = budget.hold(30)
        with world.measure_units() as measured:
            budget.change(hold_id, amount, ttl_s)
        assert measured == [("GetItem", 1.0), ("TransactWriteItems", units)]


def test_a_hold_with_a_longer_time_is_held_until_its_new_expiry_and_keeps_its_id(budget: Budget, clock: Clock) -> None:
    first, began_s = budget.place(30), int(time.time())
    for _ in range(3):
        assert budget.change(first["hold"], ttl_s=60)[0] == first | {"expires_at": int(time.time()) + 60}
        clock.pass_s(50)
        assert (budget.sweep().released, budget.held()) == (0, 30)
    assert refusal(partial(budget.hold, 971)).members["left"] == 970, "the first expiry of the hold has passed"
    clock.pass_s(9)  # the last change was 59 s before, so one second is left
    assert (int(time.time()) - began_s, budget.held()) == (159, 30)
    assert budget.commit(first["hold"])["changed"] is True
    assert (budget.left(), budget.held(), budget.equals_receipts()) == (970, 0, True)


def test_a_hold_keeps_its_id_though_a_new_expiry_moves_the_hold_to_another_key(budget: Budget) -> None:
    hold_id = budget.hold(30)
    ends_s = budget.change(hold_id, ttl_s=900)[0]["expires_at"]
    id_with_new_expiry = f"{ends_s}-{hold_id.partition('-')[2]}"
    for act in (budget.commit, budget.release, budget.void, partial(budget.change, amount=20)):
        assert isinstance(refusal(partial(act, id_with_new_expiry)), NotFoundError)
    assert (budget.held(), budget.left()) == (30, 970)
    assert budget.commit(hold_id)["changed"] is True


@pytest.mark.parametrize("released_by", ["sweep", "hold"])
def test_a_hold_with_a_shorter_time_expires_earlier_with_its_present_amount(
    budget: Budget, clock: Clock, released_by: str
) -> None:
    hold_id = budget.hold(30, ttl_s=600)
    budget.change(hold_id, 50, 600)
    assert budget.change(hold_id, 70, 60)[0]["amount"] == 70
    clock.pass_s(59)
    assert (budget.sweep().released, budget.left()) == (0, 930)
    clock.pass_s(1)
    if released_by == "sweep":
        assert budget.sweep()[:2] == (1, 0), "released, failed"
    budget.hold(1_000)
    assert (budget.left(), budget.equals_receipts()) == (0, True)
    assert isinstance(refusal(partial(budget.commit, hold_id)), HoldSettledError)


def test_a_change_counts_once_for_its_key_and_a_late_copy_changes_nothing(budget: Budget, clock: Clock) -> None:
    hold_id, other_hold_id, key = budget.hold(30, ttl_s=600), budget.hold(1), new_key()
    first = budget.change(hold_id, 50, 900, key)
    assert first.replayed is False
    clock.pass_s(5)
    assert budget.change(hold_id, 50, 900, key) == (first.body, True)
    for change in ((hold_id, 51, 900), (hold_id, 50, 901), (hold_id, 50, None), (other_hold_id, 50, 900)):
        assert isinstance(refusal(partial(budget.change, *change, key)), KeyReusedError)
    budget.change(hold_id, 20)
    assert budget.change(hold_id, 50, 900, key) == (first.body, True)
    assert budget.held() == 20 + 1
    budget.commit(hold_id, 10)
    assert budget.change(hold_id, 50, 900, key) == (first.body | {"state": COMMITTED}, True)
    assert (budget.left(), budget.equals_receipts()) == (1_000 - 10 - 1, True)


@pytest.mark.parametrize("is_changed", [False, True], ids=["not changed before", "changed before"])
# EXPIRED: no sweep has run since the time of the hold ended. "swept": a sweep has released the hold.
@pytest.mark.parametrize("state", [COMMITTED, RELEASED, VOIDED, EXPIRED, "swept", OVERDUE])
def test_a_hold_that_has_ended_is_not_changed_and_a_retry_of_an_earlier_change_gets_its_answer(
    budget: Budget, clock: Clock, state: str, is_changed: bool
) -> None:
    hold_id, key = budget.hold(30, ttl_s=600), new_key()
    if is_changed:
        budget.change(hold_id, 40, 900, key)
    declared = budget.counter
    if state in (COMMITTED, VOIDED):
        budget.commit(hold_id)
    if state == VOIDED:
        budget.void(hold_id)
    if state == RELEASED:
        budget.release(hold_id)
    if state in (EXPIRED, "swept", OVERDUE):
        clock.pass_s(901)
    if state == "swept":
        assert budget.sweep()[:2] == (1, 0)
    if state == OVERDUE:
        make_overdue(budget)
        budget.counter = declared
    last_state = state if state in (COMMITTED, RELEASED, VOIDED) else EXPIRED  # "swept" and OVERDUE, too
    amount_left = budget.left()
    for amount, ttl_s in ((20, None), (None, 900), (50, 900)):
        error = refusal(partial(budget.change, hold_id, amount, ttl_s))
        assert isinstance(error, HoldSettledError)
        assert error.detail.startswith(f"The hold is {last_state}")
    if is_changed:
        assert budget.change(hold_id, 40, 900, key).body["state"] == last_state
    assert (budget.left(), budget.equals_receipts()) == (amount_left, True)
    assert isinstance(refusal(partial(budget.change, "1700000000-AAAAAAAAAAAAAAAA", 1)), NotFoundError)


def test_no_change_lets_a_hold_last_longer_than_seven_days(budget: Budget, clock: Clock) -> None:
    key, change_key = new_key(), new_key()
    hold_id, began_s = budget.hold(30, key), int(time.time())
    clock.pass_s(50)
    error = refusal(partial(budget.change, hold_id, 20, 7 * DAY_S - 49))
    assert (type(error), error.field, budget.held()) == (InvalidInputError, "ttl_s", 30)
    assert f"Set ttl_s to {7 * DAY_S - 50} or less." in error.detail
    body = budget.change(hold_id, 20, 7 * DAY_S - 50, change_key).body
    assert body["expires_at"] == began_s + 7 * DAY_S
    clock.pass_s(5)
    assert budget.change(hold_id, 20, 7 * DAY_S - 50, change_key) == (body, True), "a replay may exceed seven days"
    # A receipt of a hold lives for the seven days that the hold may last, and for one day more.
    for receipt in budget.world.receipts():
        assert int(receipt["expiration"]["N"]) == began_s + 8 * DAY_S + CLOCK_DIFFERENCE_S_MAX
    clock.pass_s(began_s + 8 * DAY_S - 1 - clock.now_s)
    assert budget.place(30, key)["hold"] == hold_id
    assert budget.commit(hold_id, 20)["changed"] is True
    assert budget.place(30, key)["state"] == COMMITTED
    assert budget.change(hold_id, 20, 7 * DAY_S - 50, change_key).body["state"] == COMMITTED
    (record,) = budget.world.rows("HOLDS#SETTLED#")  # kept for a day after the commit
    assert int(record["expiration"]["N"]) == began_s + 8 * DAY_S - 1 + DAY_S + CLOCK_DIFFERENCE_S_MAX


def test_expired_holds_are_released_before_a_larger_amount_is_refused_and_a_hold_may_not_use_the_debt(
    budget: Budget, clock: Clock
) -> None:
    """The refusal does not say when the next period begins (`retry_after_s`): a hold stays in its period."""
    budget.counter = replace(budget.counter, debt=50)
    hold_id = budget.hold(30, ttl_s=600)
    budget.hold(960)
    assert refusal(partial(budget.change, hold_id, 41, 900)).members == {"left": 10}
    assert (budget.held(), budget.left()) == (990, 10)
    clock.pass_s(61)
    assert budget.change(hold_id, 1_000, 900)[0]["amount"] == 1_000
    assert (budget.held(), budget.left(), budget.equals_receipts()) == (1_000, 0, True)
    budget.commit(hold_id, 1_020)
    if budget.counter.ceiling is not None:  # the quota is in debt by 20, so a hold fits only below a higher ceiling
        hold_in_debt = Budget(budget.world, replace(budget.counter, ceiling=1_100)).hold(5)
        assert refusal(partial(budget.change, hold_in_debt, 6)).members == {"left": 1_000 - 1_020 - 5}
        assert budget.change(hold_in_debt, 4)[0]["amount"] == 4, "a smaller amount is never refused"


def test_a_change_counts_in_the_period_of_the_hold_while_the_period_is_kept(world: World, clock: Clock) -> None:
    clock.pass_s(1.5 * DAY_S - clock.now_s % DAY_S)
    budget = Budget(world, QUOTA)
    today, hold_id = budget.tally_id(), budget.hold(30, ttl_s=2 * DAY_S)
    clock.pass_s(DAY_S)
    budget.use(1_000)
    body = budget.change(hold_id, 1_000, 2 * DAY_S)[0]
    assert (f"{OWNER}#{body['period']}", budget.left(today), budget.left()) == (today, 0, 0)
    minutes = Budget(world, MINUTES)
    hold_id = minutes.hold(30, ttl_s=600)
    clock.pass_s(300)  # MINUTES does not keep a period for so long
    error = refusal(partial(minutes.change, hold_id, 20))
    assert isinstance(error, NotFoundError)
    assert error.detail.startswith("minutes does not keep")


def test_a_retired_counter_changes_no_hold_and_answers_a_retry_of_an_earlier_change(budget: Budget) -> None:
    hold_id, key = budget.hold(30), new_key()
    first = budget.change(hold_id, 20, key=key)
    budget.counter = replace(budget.counter, retired=True)
    for amount, ttl_s in ((10, None), (40, None), (None, 900)):
        assert isinstance(refusal(partial(budget.change, hold_id, amount, ttl_s)), CounterRetiredError)
    assert budget.change(hold_id, 20, key=key) == (first.body, True)
    assert budget.commit(hold_id)["amount"] == 20


@pytest.mark.parametrize("changes", [(20, None), (None, 900), (45, 900)], ids=["amount", "time", "both"])
@pytest.mark.parametrize("other_act", ["commit", "commit at", "release", "change", "move", "sweep", "overdue"])
@pytest.mark.parametrize("change_is_first", [True, False], ids=["the change is first", "the other act is first"])
def test_no_amount_is_lost_or_counted_twice_if_another_call_acts_between_the_read_and_the_write_of_a_hold(
    budget: Budget, clock: Clock, other_act: str, changes: tuple[int | None, int | None], change_is_first: bool
) -> None:
    """One call begins and ends between the read and the write of the other call. `changes`: the new amount and time."""
    declared, began_s, other_process = budget.counter, clock.now_s, budget.without_proxy()
    hold_id = budget.hold(30)
    acts: dict[str, Callable[[Budget], Any]] = {
        "commit": lambda budget: budget.commit(hold_id),
        "commit at": lambda budget: budget.commit(hold_id, 10),
        "release": lambda budget: budget.release(hold_id),
        "change": lambda budget: budget.change(hold_id, 5),
        "move": lambda budget: budget.change(hold_id, ttl_s=300),
        "sweep": lambda budget: budget.sweep(),
        "overdue": make_overdue,
    }

    def change_hold(process: Budget) -> None:
        act_at(0, lambda: process.change(hold_id, *changes))

    def act_otherwise(process: Budget) -> None:
        act_at(61 if other_act in ("sweep", "overdue") else 0, lambda: acts[other_act](process))

    def act_at(passed_s: float, act: Callable[[], object]) -> None:
        """Act by a clock that is `passed_s` after the start, and set the clock back: each process has its own clock. By
        the clock of the sweep (61 s), the hold has expired. By the clock of the change (0 s), the hold has not."""
        saved_s = clock.now_s
        clock.pass_s(began_s + passed_s - saved_s)
        try:
            act()
        finally:
            clock.pass_s(saved_s - clock.now_s)

    first, second = (change_hold, act_otherwise) if change_is_first else (act_otherwise, change_hold)
    # `first` comes before the first write of `second`.
    budget.world.proxy.plan = before_transactions({0: lambda: first(other_process)})
    # If the other act is first, the change may find that the hold has ended.
    with suppress(HoldSettledError) if not change_is_first else nullcontext():
        second(budget)
    budget.world.proxy.plan, budget.counter = faults.no_faults, declared
    spent = 1_000 - budget.left() - budget.held()
    amount_at_commit = (changes[0] or 30) if change_is_first else 30
    assert spent == {"commit": amount_at_commit, "commit at": 10}.get(other_act, 0)
    assert budget.equals_receipts()
    clock.pass_s(1_000)
    budget.sweep()
    assert (budget.held(), budget.left()) == (0, 1_000 - spent)


def test_a_hold_that_a_sweep_makes_overdue_keeps_the_change_of_a_slow_process(budget: Budget, clock: Clock) -> None:
    """A limit refuses the release. The change commits just before the transaction by which the sweep moves the hold."""
    other_process, hold_id, declared = budget.without_proxy(), budget.hold(30), budget.counter
    clock.pass_s(61)

    def change() -> None:
        clock.pass_s(-61)
        other_process.change(hold_id, 20)
        clock.pass_s(61)

    budget.world.proxy.plan = before_transactions({1: change})  # write 0 is the refused release, write 1 moves the hold
    make_overdue(budget)
    budget.world.proxy.plan, budget.counter = faults.no_faults, declared
    assert (budget.left(), budget.held(), budget.equals_receipts()) == (980, 20, True)
    budget.sweep()
    assert (budget.left(), budget.held(), budget.equals_receipts()) == (1_000, 0, True)


def make_overdue(budget: Budget) -> None:
    """Run a sweep that cannot release the expired hold, because a newer limit refuses the release. The budget keeps
    this limit, so the test restores the declaration."""
    number, declared = budget.world.tally(budget.counter, budget.tally_id()), budget.counter
    floor, ceiling = (None, number) if declared.ceiling is None else (number, None)
    budget.counter = replace(declared, start=number, floor=floor, ceiling=ceiling)  # no start may be beyond the limit
    budget.sweep()


def test_a_commit_of_a_hold_that_other_calls_change_at_each_try_is_busy(
    budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_id = budget.hold(30)
    budget.change(hold_id, ttl_s=900)
    moved_mark = budget.world.rows("HOLDS#SETTLED#")[0]
    with monkeypatch.context() as patched:  # as if another call changed the time of the hold between any two reads
        patched.setattr("tally.dynamo.queries.get", lambda _, __, key: moved_mark if "SETTLED" in str(key) else {})
        with pytest.raises(StoreBusyError, match="Other calls are changing the hold"):
            budget.commit(hold_id)
    assert budget.held() == 30


def test_a_hold_with_a_new_expiry_is_among_the_live_holds_with_its_user(budget: Budget) -> None:
    """A command that forgets a user finds the user's holds among the live holds."""
    hold_id = budget.hold(30)
    budget.change(hold_id, 40, 900)
    rows = [row for row in budget.world.rows("HOLDS#") if row["state"] == {"S": HELD}]
    assert [(row["caller"]["S"], row["hold_id"]["S"], "expiration" in row) for row in rows] == [("ann", hold_id, False)]
