"""An expired hold is committed late, and a committed hold is voided: each once, and in the period of the hold.
The receipt of a hold is kept as long as the hold can be committed."""

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
from tally.dynamo.clock import CLOCK_DIFFERENCE_S_MAX
from tally.errors import CounterRetiredError, HoldSettledError, LimitReachedError, NotFoundError
from tests import faults
from tests.invariants.counting import new_key, refusal
from tests.invariants.simulation import Clock
from tests.invariants.test_settling import DAY_S, MINUTES, OWNER, QUOTA, STOCK, Budget
from tests.invariants.world import FAULT_MIX, World, before_transactions, retry_until_final
from tests.tiers import marked_long


@pytest.fixture(params=[STOCK, QUOTA], ids=["stock", "quota"])
def budget(request: pytest.FixtureRequest, world: World, clock: Clock) -> Budget:
    """A budget of the stock or of a daily quota. The clock stands at noon."""
    clock.pass_s(1.5 * DAY_S - clock.now_s % DAY_S)
    return Budget(world, request.param)


def skip_sweep(budget: Budget) -> None:
    """Do nothing, so the hold still has its amount."""


def sweep(budget: Budget) -> None:
    """Run the sweep, which releases the hold."""
    assert budget.sweep()[:2] == (1, 0), "released, failed"


def sweep_in_vain(budget: Budget) -> None:
    """Run a sweep that cannot release the hold, because a newer limit refuses the release."""
    number, declared = budget.world.tally(budget.counter, budget.tally_id()), budget.counter
    floor, ceiling = (None, number) if declared.ceiling is None else (number, None)
    budget.counter = replace(declared, start=number, floor=floor, ceiling=ceiling)  # limits must include the start
    assert budget.sweep()[:2] == (0, 1), "released, failed"
    budget.counter = declared


@pytest.mark.parametrize("sweep_expired", [skip_sweep, sweep, sweep_in_vain])
@pytest.mark.parametrize("used", [0, 20, 30, 45])
def test_an_expired_hold_is_committed_once_with_the_amount_used(
    budget: Budget, clock: Clock, sweep_expired: Callable[[Budget], None], used: int
) -> None:
    key = new_key()
    hold_id = budget.hold(30, key)
    clock.pass_s(61)
    sweep_expired(budget)
    for _ in range(2):
        assert "Commit an amount" in refusal(partial(budget.commit, hold_id)).detail
    answer = {"counter": budget.counter.name, "id": OWNER, "hold": hold_id, "state": COMMITTED, "amount": used}
    assert budget.commit(hold_id, used) == {**answer, "changed": True}
    for amount in (used, None):
        assert budget.commit(hold_id, amount) == {**answer, "changed": False}
    error = refusal(partial(budget.commit, hold_id, used + 1))
    assert (type(error), error.detail) == (HoldSettledError, f"The hold is committed at {used}.")
    assert isinstance(refusal(partial(budget.release, hold_id)), HoldSettledError)
    assert budget.place(30, key)["state"] == COMMITTED
    budget.sweep()
    assert (budget.left(), budget.held(), budget.equals_receipts()) == (1_000 - used, 0, True)


def test_a_late_commit_takes_no_more_than_is_left_with_the_debt_and_nothing_of_other_holds(
    budget: Budget, clock: Clock
) -> None:
    first, second = (budget.hold(30) for _ in range(2))
    clock.pass_s(61)
    assert budget.sweep().released == 2
    open_hold = budget.hold(990, ttl_s=600)
    for _ in range(2):
        assert refusal(partial(budget.commit, first, 11)).members == {"left": 10}
        assert (budget.left(), budget.held()) == (10, 990)
    budget.counter = replace(budget.counter, debt=50)
    assert refusal(partial(budget.commit, first, 61)).members == {"left": 10 + 50}
    assert budget.commit(first, 40)["changed"] is True
    assert refusal(partial(budget.hold, 1)).members["left"] == 10 - 40
    budget.release(open_hold)
    assert budget.commit(second, 30)["changed"] is True
    assert (budget.left(), budget.equals_receipts()) == (1_000 - 40 - 30, True)


def test_expired_holds_are_released_before_a_late_commit_is_refused(budget: Budget, clock: Clock) -> None:
    """The commit also releases the late hold itself, and then takes the whole amount."""
    hold_id = budget.hold(30)
    budget.hold(970)
    clock.pass_s(61)
    assert budget.commit(hold_id, 45)["changed"] is True
    budget.sweep()
    assert (budget.left(), budget.equals_receipts()) == (1_000 - 45, True)
    last = budget.hold(500)
    budget.hold(455, ttl_s=600)  # so nothing is left
    clock.pass_s(61)
    assert refusal(partial(budget.commit, last, 501)).members == {"left": 500}
    assert budget.commit(last, 500)["changed"] is True
    assert (budget.left(), budget.equals_receipts()) == (0, True)


def test_the_receipt_of_a_hold_is_kept_as_long_as_the_hold_can_be_committed(budget: Budget, clock: Clock) -> None:
    """The receipt is kept for a day longer than the hold of seven days, however soon the hold is settled."""
    # A hold for each state. The test settles neither HELD nor EXPIRED, and commits EXPIRED at the last second.
    keys = {state: new_key() for state in (HELD, RELEASED, COMMITTED, EXPIRED)}
    placed = {state: budget.place(30, key, 7 * DAY_S) for state, key in keys.items()}
    budget.release(placed[RELEASED]["hold"])
    budget.commit(placed[COMMITTED]["hold"], 20)
    began_s, amount_left = time.time(), budget.left()
    # A receipt without `data` is of a commit or of a release.
    hold_receipts = [receipt for receipt in budget.world.receipts() if "data" in receipt]
    records = budget.world.rows("HOLDS#SETTLED#")
    assert (len(hold_receipts), len(records)) == (4, 2)
    for item in hold_receipts + records:
        assert int(item["expiration"]["N"]) == began_s + 8 * DAY_S + CLOCK_DIFFERENCE_S_MAX
    for passed_s in (2 * DAY_S, 7 * DAY_S - 1):
        clock.pass_s(began_s + passed_s - clock.now_s)
        states = [budget.place(30, key, 7 * DAY_S)["state"] for key in keys.values()]
        assert states == [HELD, RELEASED, COMMITTED, HELD]
    clock.pass_s(began_s + 8 * DAY_S - 1 - clock.now_s)
    replays = {state: budget.place(30, key, 7 * DAY_S) for state, key in keys.items()}
    assert {body["hold"] for body in replays.values()} == {body["hold"] for body in placed.values()}
    first_tally = f"{OWNER}#{placed[HELD]['period']}" if budget.counter.period else OWNER
    assert budget.left(first_tally) == amount_left
    assert budget.commit(placed[EXPIRED]["hold"], 30)["changed"] is True
    clock.pass_s(1)
    error = refusal(partial(budget.commit, placed[HELD]["hold"], 30))
    assert error.detail == "The hold expired too long ago to be committed."


def test_a_hold_can_be_committed_for_the_receipt_days_of_its_counter(world: World, clock: Clock) -> None:
    budget = Budget(world, replace(STOCK, receipt_days=30))
    hold_id = budget.hold(30)
    clock.pass_s(29 * DAY_S)
    budget.sweep()
    assert budget.commit(hold_id, 20)["changed"] is True
    assert budget.left() == 1_000 - 20


@pytest.mark.parametrize(("old_days", "new_days"), [(9, 2), (9, None), (2, 9)])
def test_a_hold_is_kept_as_long_as_its_receipt_though_the_receipt_days_change(
    world: World, clock: Clock, old_days: int, new_days: int | None
) -> None:
    """`receipt_days` changes while holds are open; None: a day. Nobody settles the holds EXPIRED and "late"."""
    budget = Budget(world, replace(STOCK, receipt_days=old_days))
    keys = {state: new_key() for state in (RELEASED, COMMITTED, EXPIRED, "late")}
    hold_ids = {state: budget.place(30, key)["hold"] for state, key in keys.items()}
    began_s = clock.now_s
    budget.counter = replace(STOCK, receipt_days=new_days)
    budget.release(hold_ids[RELEASED])
    budget.commit(hold_ids[COMMITTED], 20)
    clock.pass_s(61)
    assert budget.sweep().released == 2
    receipts_expire_s = {int(receipt["expiration"]["N"]) for receipt in world.receipts() if "data" in receipt}
    records_expire_s = {int(record["expiration"]["N"]) for record in world.rows("HOLDS#SETTLED#")}
    assert max(receipts_expire_s) <= min(records_expire_s), "no record of a hold expires before its receipt"
    clock.pass_s(began_s + 60 + old_days * DAY_S - 1 - clock.now_s)
    assert [budget.place(30, key)["state"] for key in keys.values()] == [RELEASED, COMMITTED, EXPIRED, EXPIRED]
    assert budget.commit(hold_ids["late"], 30)["changed"] is True
    clock.pass_s(1)
    error = refusal(partial(budget.commit, hold_ids[EXPIRED], 30))
    assert error.detail == "The hold expired too long ago to be committed."


def test_a_late_commit_and_a_void_count_in_the_period_of_the_hold_while_the_period_is_kept(
    world: World, clock: Clock
) -> None:
    clock.pass_s(1.5 * DAY_S - clock.now_s % DAY_S)
    budget = Budget(world, QUOTA)
    first_tally, hold_id = budget.tally_id(), budget.hold(30)
    clock.pass_s(DAY_S)
    budget.sweep()
    budget.use(1_000)
    assert budget.commit(hold_id, 20)["changed"] is True
    assert (budget.left(first_tally), budget.left()) == (1_000 - 20, 0)
    assert budget.void(hold_id)["changed"] is True
    assert (budget.left(first_tally), budget.left()) == (1_000, 0)
    minutes = Budget(world, MINUTES)
    late_hold, committed_hold = minutes.hold(30), minutes.hold(40)
    minutes.commit(committed_hold)
    clock.pass_s(300)  # MINUTES does not keep a period for so long
    minutes.sweep()
    for act in (partial(minutes.commit, late_hold, 20), partial(minutes.void, committed_hold)):
        error = refusal(act)
        assert (type(error), "minutes does not keep" in error.detail) == (NotFoundError, True)


def test_a_committed_hold_is_voided_once(budget: Budget, clock: Clock) -> None:
    key = new_key()
    early_hold, unused_hold, late_hold = budget.hold(30, key), budget.hold(30), budget.hold(30)
    budget.commit(early_hold, 45)
    budget.commit(unused_hold, 0)
    clock.pass_s(61)
    budget.sweep()
    budget.commit(late_hold, 20)
    assert budget.left() == 1_000 - 45 - 0 - 20
    with budget.world.measure_units() as measured:
        first_answer = budget.void(early_hold)
    # Reads the three keys that a hold has in turn (live, overdue, settled), and its receipt.
    assert measured == [("GetItem", 1.0)] * 4 + [("TransactWriteItems", 8.0)]
    answer = {"counter": budget.counter.name, "id": OWNER, "hold": early_hold, "state": VOIDED, "amount": 45}
    assert first_answer == {**answer, "changed": True}
    assert budget.void(early_hold) == {**answer, "changed": False}
    assert (budget.void(unused_hold)["amount"], budget.void(late_hold)["amount"]) == (0, 20)
    assert budget.place(30, key)["state"] == VOIDED
    for settle, *amount in ((budget.commit,), (budget.commit, 45), (budget.release,)):
        assert refusal(partial(settle, early_hold, *amount)).detail == "The hold is voided."
    assert (budget.left(), budget.equals_receipts()) == (1_000, True)
    for record in budget.world.rows("HOLDS#SETTLED#"):
        assert int(record["expiration"]["N"]) > time.time() + DAY_S - 120


def test_a_void_marks_the_receipt_of_its_hold_as_voided(budget: Budget, clock: Clock) -> None:
    """The receipt keeps its nonce, so consumers do not count it as new. A void also works without a receipt, because
    DynamoDB may have removed an expired receipt."""
    key, target = new_key(), f"{budget.counter.name}/{OWNER}"
    hold_id = budget.hold(30, key)
    budget.commit(hold_id)
    receipts_before, call = budget.world.receipts(), budget.world.call("ann")
    assert [receipt and receipt.is_voided for receipt in receipts.find_many(call, "hold", [(target, key)])] == [False]
    assert [budget.void(hold_id)["changed"] for _ in range(2)] == [True, False]
    assert [receipt and receipt.is_voided for receipt in receipts.find_many(call, "hold", [(target, key)])] == [True]
    nonces = {receipt["id"]["S"]: receipt["nonce"] for receipt in budget.world.receipts()}
    assert all(nonces[receipt["id"]["S"]] == receipt["nonce"] for receipt in receipts_before)
    assert budget.equals_receipts()
    late_hold = budget.hold(30)
    budget.commit(late_hold)
    clock.pass_s(8 * DAY_S + CLOCK_DIFFERENCE_S_MAX + 1)
    table = budget.world.store.settings.receipts_table
    for receipt in budget.world.receipts():
        budget.world.raw.delete_item(TableName=table, Key={"id": receipt["id"]})
    if budget.counter.period is None:  # the quota keeps no period for eight days
        assert budget.void(late_hold)["changed"] is True


def test_only_a_committed_hold_of_a_counter_that_is_not_retired_can_be_voided(budget: Budget, clock: Clock) -> None:
    open_hold, released_hold = (budget.hold(10, ttl_s=600) for _ in range(2))
    expired_hold, committed_hold = (budget.hold(10, ttl_s=60) for _ in range(2))
    budget.release(released_hold)
    budget.commit(committed_hold)
    clock.pass_s(61)
    for sweep_expired in (skip_sweep, sweep):
        sweep_expired(budget)
        for hold_id, state in ((open_hold, HELD), (released_hold, RELEASED), (expired_hold, EXPIRED)):
            assert refusal(partial(budget.void, hold_id)).detail == f"The hold is {state}."
    assert isinstance(refusal(partial(budget.void, "1700000000-AAAAAAAAAAAAAAAA")), NotFoundError)
    budget.counter = replace(budget.counter, retired=True)
    assert isinstance(refusal(partial(budget.void, committed_hold)), CounterRetiredError)
    assert budget.commit(expired_hold, 5)["changed"] is True, "open holds of a retired counter can be settled"
    held_or_committed = 10 + 10 + 5  # the open hold, the committed hold, the expired hold
    assert (budget.left(), budget.equals_receipts()) == (1_000 - held_or_committed, True)


@pytest.mark.parametrize("state", [EXPIRED, RELEASED, COMMITTED])
def test_a_late_commit_is_refused_if_the_hold_is_settled_between_its_read_and_its_write(
    budget: Budget, clock: Clock, state: str
) -> None:
    """If a sweep releases the expired hold between the read and the write, the late commit succeeds."""
    hold_id = budget.hold(30)
    clock.pass_s(61)

    def settle_first() -> None:
        other_process = budget.without_proxy()
        acts: dict[str, Callable[[], object]] = {
            EXPIRED: other_process.sweep,
            RELEASED: partial(other_process.release, hold_id),
            COMMITTED: partial(other_process.commit, hold_id, 7),
        }
        acts[state]()

    budget.world.proxy.clear_requests()
    budget.world.proxy.plan = before_transactions({0: settle_first})
    if state == EXPIRED:
        assert budget.commit(hold_id, 20)["changed"] is True
    else:
        assert isinstance(refusal(partial(budget.commit, hold_id, 20)), HoldSettledError)
    budget.world.proxy.plan = faults.no_faults
    assert budget.left() == 1_000 - {EXPIRED: 20, RELEASED: 0, COMMITTED: 7}[state]
    assert budget.equals_receipts()


@pytest.mark.parametrize("seed", [0, *marked_long(range(1, 6))])
def test_each_expired_hold_counts_once_in_a_race_of_late_commits_releases_voids_and_a_sweep(
    budget: Budget, clock: Clock, seed: int
) -> None:
    """Two callers commit each of 30 expired holds at once. A sweep runs, and some holds are released or voided. Other
    callers count amounts that were used. Each call is sent twice."""
    chance, proxy = random.Random(seed), budget.world.proxy
    budget.counter = replace(budget.counter, debt=500)
    hold_ids = [budget.hold(chance.choice((10, 20, 30))) for _ in range(30)]
    clock.pass_s(61)
    proxy.plan = faults.random_faults(seed, {"TransactWriteItems": FAULT_MIX})

    def act(hold_id: str, name: str, change: Callable[..., dict[str, Any]], *arguments: int) -> tuple[str, str, Any]:
        """Returns the hold (or the key of an amount that was used), `name`, and the body or the type of the error."""
        try:
            return hold_id, name, retry_until_final(partial(change, hold_id, *arguments))
        except (HoldSettledError, LimitReachedError) as error:
            return hold_id, name, type(error)

    jobs = []
    for hold_id in hold_ids:
        used = chance.choice((0, 5, 20, 45))
        jobs += [(hold_id, COMMITTED, budget.commit, used)] * 2
        jobs += [(hold_id, COMMITTED, budget.commit, used + 1)] * (chance.random() < 0.3)
        jobs += [(hold_id, RELEASED, budget.release)] * (chance.random() < 0.3)
        jobs += [(hold_id, VOIDED, budget.void)] * (2 * (chance.random() < 0.4))
    amounts_used = {new_key(): chance.choice((5, 20, 60)) for _ in range(20)}
    jobs += [(key, "used", lambda key: budget.use(amounts_used[key], key, used=True).body) for key in amounts_used] * 2
    chance.shuffle(jobs)
    with ThreadPoolExecutor(6) as pool:
        sweep_job = pool.submit(retry_until_final, budget.sweep)
        answers = list(pool.map(lambda job: act(*job), jobs))
        sweep_job.result()
    fault_count = sum(times for (fault, _), times in proxy.counts.items() if fault != "NONE")
    proxy.plan = faults.no_faults
    proxy.wait_until_idle()
    assert fault_count > 5, "the seed must draw faults"
    budget.sweep()
    spent = 0
    for record in budget.world.rows("HOLDS#SETTLED#"):
        hold_id, state = record["hold_id"]["S"], record["state"]["S"]
        successes = [
            (name, body) for settled_id, name, body in answers if settled_id == hold_id and isinstance(body, dict)
        ]
        states = {name for name, _ in successes}
        amounts = {body["amount"] for _, body in successes if "amount" in body}
        assert state in (states or {EXPIRED})  # no call has settled a hold that the sweep released
        assert len(amounts) <= 1
        assert not {RELEASED, COMMITTED} <= states
        spent += int(record["used"]["N"]) if state == COMMITTED else 0
    counted_keys = {key for key, name, body in answers if name == "used" and isinstance(body, dict)}
    spent += sum(amounts_used[key] for key in counted_keys)
    assert (budget.left(), budget.held(), budget.equals_receipts()) == (1_000 - spent, 0, True)
    assert budget.left() >= -500
