"""A hold takes its amount at once, and is committed or released exactly once. The stock, and what is held or committed,
always add up to what was stocked."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import counters
from bench import cost
from tally.counting import hold_items, holds, settling
from tally.counting.hold_items import COMMITTED, EXPIRED, HELD, RELEASED
from tally.errors import (
    HoldSettledError,
    KeyReusedError,
    LimitReachedError,
    NotFoundError,
    RetryableError,
    StoreBusyError,
    StoreUnreachableError,
)
from tests import faults
from tests.invariants.counting import ITEM, Counting, buy, id_in_same_bucket, new_key, refusal
from tests.invariants.simulation import Clock
from tests.invariants.threads import run_together
from tests.invariants.world import FAULT_MIX, retry_until_final

CALLERS = 8


@pytest.mark.parametrize(("state", "stock_at_end"), [(COMMITTED, 10 - 3), (RELEASED, 10)])
def test_a_hold_takes_its_amount_at_once_is_settled_once_and_gets_a_ttl_when_it_is_settled(
    counting: Counting, state: str, stock_at_end: int
) -> None:
    counting.stock(10)
    before_s = int(time.time())
    body, replayed = counting.place_hold(3, ttl_s=60)
    hold_id = body["hold"]
    assert (body["counter"], body["id"], body["amount"], replayed) == ("stock", ITEM, 3, False)
    assert before_s + 60 <= body["expires_at"] <= int(time.time()) + 60
    assert counting.stored(counters.STOCK) == 7
    hold = counting.only_hold()
    assert (hold["state"], hold["amount"], hold["hold_id"]) == ({"S": HELD}, {"N": "3"}, {"S": hold_id})
    assert "expiration" not in hold
    answer = {"counter": "stock", "id": ITEM, "hold": hold_id, "state": state}
    answer |= {"amount": 3} if state == COMMITTED else {}
    assert counting.settle_hold(hold_id, state) == {**answer, "changed": True}
    assert counting.settle_hold(hold_id, state) == {**answer, "changed": False}
    other_state = RELEASED if state == COMMITTED else COMMITTED
    assert isinstance(refusal(partial(counting.settle_hold, hold_id, other_state)), HoldSettledError)
    assert counting.stored(counters.STOCK) == stock_at_end
    hold = counting.only_hold()
    assert (hold["PK"], hold["state"]) == ({"S": f"HOLDS#SETTLED#stock/{ITEM}"}, {"S": state})
    assert int(hold["expiration"]["N"]) >= time.time() + hold_items.SETTLED_KEPT_S - 5


def test_a_replay_answers_the_same_hold_and_takes_no_second_amount(counting: Counting, clock: Clock) -> None:
    counting.stock(10)
    key = new_key()
    body, _ = counting.place_hold(3, key=key)
    clock.pass_s(5)  # the replay keeps the expiry
    assert counting.place_hold(3, key=key) == (body, True)
    assert isinstance(refusal(partial(counting.place_hold, 4, key=key)), KeyReusedError)
    assert isinstance(refusal(partial(counting.place_hold, 3, 61, key=key)), KeyReusedError)
    assert counting.stored(counters.STOCK) == 7
    assert counting.only_hold()["hold_id"] == {"S": body["hold"]}
    counting.settle_hold(body["hold"], RELEASED)
    assert counting.place_hold(3, key=key) == (body | {"state": RELEASED}, True)
    assert counting.stored(counters.STOCK) == 10


@pytest.mark.parametrize("state", [COMMITTED, RELEASED, EXPIRED])
def test_a_replay_answers_the_present_state_of_the_hold(counting: Counting, clock: Clock, state: str) -> None:
    """The state tells a caller not to charge a customer for a hold that has ended."""
    counting.stock(10)
    key = new_key()
    body, _ = counting.place_hold(3, 3600, key)
    assert body["state"] == HELD
    clock.pass_s(60)
    assert counting.place_hold(3, 3600, key)[0]["state"] == HELD
    if state == EXPIRED:
        clock.pass_s(3600)
        assert counting.place_hold(3, 3600, key) == (body | {"state": EXPIRED}, True)
        assert counting.stored(counters.STOCK) == 7, "no sweep has released the hold"
        counting.sweep()
    else:
        counting.settle_hold(body["hold"], state)
    assert counting.place_hold(3, 3600, key) == (body | {"state": state}, True)


def test_the_state_of_a_hold_is_kept_as_long_as_the_receipt_of_its_key(counting: Counting) -> None:
    stock = replace(counters.STOCK, receipt_days=9)
    counting.increment(stock, 1)
    body, _ = counting.place_hold(1, counter=stock)
    settling.settle(counting.world.call("ann"), stock, ITEM, body["hold"], COMMITTED)
    assert int(counting.only_hold()["expiration"]["N"]) >= time.time() + 9 * 24 * 3600 - 5


def test_an_unknown_hold_and_a_hold_of_another_item_are_not_found(counting: Counting) -> None:
    counting.stock(3)
    hold_id = counting.place_hold(3)[0]["hold"]
    unknown = "1700000000-AAAAAAAAAAAAAAAA"
    other_item = id_in_same_bucket()
    for id_, settled_id, state in (
        (ITEM, unknown, COMMITTED),
        (ITEM, unknown, RELEASED),
        (other_item, hold_id, RELEASED),
    ):
        with pytest.raises(NotFoundError):
            settling.settle(counting.world.call(), counters.STOCK, id_, settled_id, state)
    assert counting.only_hold()["state"] == {"S": HELD}


@pytest.mark.parametrize("is_swept", [False, True], ids=["not swept", "swept"])
def test_an_expired_hold_cannot_be_committed_without_an_amount_and_is_released_once(
    counting: Counting, clock: Clock, is_swept: bool
) -> None:
    """A hold can be committed until its last second. After a release of the expired hold, no commit is possible."""
    counting.stock(11)
    prompt_hold_id, hold_id = (counting.place_hold(amount, ttl_s=60)[0]["hold"] for amount in (1, 3))
    clock.pass_s(59)
    assert counting.sweep() == 0
    assert counting.settle_hold(prompt_hold_id, COMMITTED)["changed"] is True
    clock.pass_s(1)
    if is_swept:
        assert counting.sweep() == 1
    assert isinstance(refusal(partial(counting.settle_hold, hold_id, COMMITTED)), HoldSettledError)
    released = {"counter": "stock", "id": ITEM, "hold": hold_id, "state": RELEASED}
    for changed in (True, False):
        assert counting.settle_hold(hold_id, RELEASED) == {**released, "changed": changed}
        assert isinstance(refusal(partial(counting.settle_hold, hold_id, COMMITTED, 3)), HoldSettledError)
        assert counting.stored(counters.STOCK) == 10
    assert counting.states() == {prompt_hold_id: COMMITTED, hold_id: RELEASED}
    assert counting.sweep() == 0


def test_a_new_hold_that_does_not_fit_releases_as_many_expired_holds_as_it_needs(
    counting: Counting, clock: Clock
) -> None:
    counting.stock(10)
    for _ in range(5):
        counting.place_hold(2, ttl_s=60)
    assert isinstance(refusal(partial(counting.place_hold, 1)), LimitReachedError)
    clock.pass_s(61)
    counting.place_hold(7)
    assert counting.stored(counters.STOCK) == 4 * 2 - 7
    assert counting.amounts_by_state() == {HELD: 2 + 7, EXPIRED: 4 * 2}, "four of the five expired holds are released"
    assert refusal(partial(counting.place_hold, 4)).members == {"left": 1 + 2}, "the fifth is released, too"


def test_a_hold_or_an_increment_releases_many_pages_of_expired_holds_if_it_needs_them(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "DUE_PAGE_MAX", 7)
    counting.stock(60)
    for _ in range(60):
        counting.place_hold(1, ttl_s=60)
    clock.pass_s(61)
    assert counting.place_hold(30)[0]["amount"] == 30
    assert buy(counting, counters.STOCK, -30) == {"counter": "stock", "id": ITEM, "counted": True, "visible": "now"}
    assert (counting.stored(counters.STOCK), counting.amounts_by_state()) == (0, {EXPIRED: 60, HELD: 30})


def test_expired_holds_of_another_item_are_not_released_and_do_not_block_holds_of_this_item(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "DUE_PAGE_MAX", 2)
    for _ in range(3):
        counting.increment(counters.STOCK, 1, id_=id_in_same_bucket())
    counting.place_hold(id_=id_in_same_bucket())
    clock.pass_s(61)
    assert isinstance(refusal(partial(counting.place_hold, 1)), LimitReachedError)
    assert counting.only_hold()["state"] == {"S": HELD}
    counting.stock(1)
    counting.place_hold(1, ttl_s=60)
    clock.pass_s(61)
    assert counting.place_hold(1, ttl_s=62)[1] is False
    assert counting.amounts_by_state() == {HELD: 2, EXPIRED: 1}
    for _ in range(2):
        counting.place_hold(id_=id_in_same_bucket())
    clock.pass_s(63)
    # Two holds of the other item fill the page, so the page may hide this item's holds.
    with pytest.raises(StoreBusyError):
        counting.place_hold(1)
    assert counting.sweep() == 3 + 1, "three holds of the other item, and the last of this item"
    assert counting.place_hold(1)[1] is False


def test_a_hold_can_take_the_amounts_of_expired_holds_that_a_sweep_has_released(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep runs after the call has read the expired holds, and before it releases them."""
    counting.stock(1)
    counting.place_hold(1, ttl_s=60)
    clock.pass_s(61)
    with pytest.raises(StoreBusyError):  # a call out of time does not know whether an amount is left
        counting.place_hold(1, call=counting.world.call("ann", deadline_s=0))
    due_pages = hold_items.due_pages

    def read_then_sweep(*arguments: Any) -> Any:
        monkeypatch.setattr(hold_items, "due_pages", due_pages)
        pages = list(due_pages(*arguments))
        assert counting.sweep() == 1
        return iter(pages)

    monkeypatch.setattr(hold_items, "due_pages", read_then_sweep)
    assert counting.place_hold(1)[1] is False
    assert counting.stored(counters.STOCK) == 0


def test_a_release_of_a_committed_hold_is_refused_and_a_release_that_loses_each_try_is_busy(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function whose clock is behind commits the hold, because the hold has not expired by this clock."""
    counting.stock(1)
    hold_id = counting.place_hold(1, ttl_s=60)[0]["hold"]
    make_transition = holds.make_transition
    monkeypatch.setattr(holds, "make_transition", lambda *_, **__: False)  # other calls win each time
    with pytest.raises(StoreBusyError):
        counting.settle_hold(hold_id, RELEASED)
    clock.pass_s(61)

    def commit_first(*arguments: Any, **options: Any) -> bool:
        if holds.RELEASE in arguments:
            clock.pass_s(-10)
            assert counting.settle_hold(hold_id, COMMITTED)["changed"] is True
            clock.pass_s(10)
        return make_transition(*arguments, **options)

    monkeypatch.setattr(holds, "make_transition", commit_first)
    error = refusal(partial(counting.settle_hold, hold_id, RELEASED))
    assert isinstance(error, HoldSettledError)
    assert COMMITTED in error.detail
    assert counting.stored(counters.STOCK) == 0


def place_and_settle_at_random(
    counting: Counting, clock: Clock, seed: int, placed_ids: list[str], settled_ids: list[str]
) -> None:
    """Place holds, and settle these and other callers' holds at random, while time passes. Add the ids to `placed_ids`
    and `settled_ids`, which all callers share."""
    chance = random.Random(seed)
    for turn in range(7):
        try:
            body, _ = retry_until_final(
                partial(counting.place_hold, chance.randint(1, 3), chance.choice([1, 30]), f"{seed}-{turn}")
            )
        except LimitReachedError:
            continue
        placed_ids.append(body["hold"])
        if chance.random() < 0.3:
            clock.pass_s(2)
        if chance.random() < 0.5:
            change = partial(
                counting.change_hold, body["hold"], chance.randint(1, 4), chance.choice([1, 30]), f"{seed}-{turn}"
            )
            with suppress(HoldSettledError, LimitReachedError):
                retry_until_final(change)
        for state in chance.sample([COMMITTED, RELEASED, None], 2):  # None: settles no hold
            hold_id = chance.choice([body["hold"], *placed_ids[-CALLERS:]])
            try:
                if state and retry_until_final(partial(counting.settle_hold, hold_id, state))["changed"]:
                    settled_ids.append(hold_id)
            except HoldSettledError:
                continue


def test_the_stock_sums_up_after_commits_releases_expiries_and_sweeps_in_a_race(
    counting: Counting, clock: Clock
) -> None:
    counting.stock(20)
    counting.world.proxy.plan = faults.random_faults(11, {"TransactWriteItems": FAULT_MIX})
    placed_ids, settled_ids = list[str](), list[str]()
    is_over = threading.Event()

    def keep_sweeping() -> None:
        while not is_over.is_set():
            retry_until_final(counting.sweep)

    def race() -> None:
        try:
            act = partial(place_and_settle_at_random, counting, clock)
            run_together([partial(act, seed, placed_ids, settled_ids) for seed in range(CALLERS)])
        finally:
            is_over.set()

    run_together([race, keep_sweeping])
    counting.world.proxy.plan = faults.no_faults
    counting.world.proxy.wait_until_idle()
    amounts = counting.amounts_by_state()
    assert counting.stored(counters.STOCK) + amounts.get(HELD, 0) + amounts.get(COMMITTED, 0) == 20
    assert 0 <= counting.stored(counters.STOCK) <= 20
    assert len(settled_ids) == len(set(settled_ids))
    for hold in counting.stored_holds():
        assert ("expiration" in hold) is (hold["state"]["S"] != HELD)
    assert {COMMITTED, RELEASED, EXPIRED} <= set(counting.states().values())
    clock.pass_s(31)  # longer than any hold is held
    counting.sweep()
    assert counting.amounts_by_state().get(HELD) is None
    assert counting.stored(counters.STOCK) + counting.amounts_by_state().get(COMMITTED, 0) == 20
    assert counting.stored(counters.STOCK) == counting.sum_of_receipts()


def test_a_sweep_or_a_refusal_without_an_expired_hold_changes_no_hold(counting: Counting, clock: Clock) -> None:
    counting.stock(3)
    counting.place_hold(1, ttl_s=60)
    committed = counting.place_hold(1, ttl_s=60)[0]["hold"]
    counting.settle_hold(committed, COMMITTED)
    low_ceiling = replace(counters.STOCK, ceiling=2)
    for expired_count in (0, 1):  # the second time, the hold has expired
        assert isinstance(refusal(partial(counting.increment, low_ceiling, 2)), LimitReachedError)
        assert HELD in counting.states().values(), "a release raises the number, so it makes no room below a ceiling"
        counting.world.proxy.clear_requests()
        assert counting.sweep_until() == (expired_count, 0, True), "released, failed, finished"
        assert len(counting.world.requests("TransactWriteItems")) == expired_count
        assert isinstance(refusal(partial(counting.place_hold, 4)), LimitReachedError)
        assert len(counting.world.requests("TransactWriteItems")) == expired_count + 1, "the refused hold"
        clock.pass_s(61)


@pytest.mark.parametrize("operation", ["Query", "GetItem"])
def test_a_truncated_answer_about_holds_is_a_503_and_never_a_404_or_409(
    counting: Counting, clock: Clock, operation: str
) -> None:
    counting.stock(1)
    hold_id = counting.place_hold(1, ttl_s=60)[0]["hold"]
    counting.world.proxy.plan = faults.always(faults.TRUNCATE, operation)
    place, release = partial(counting.place_hold, 1), partial(counting.settle_hold, hold_id, RELEASED)
    change = {"Query": place, "GetItem": release}[operation]
    with pytest.raises(StoreUnreachableError):
        change()
    counting.world.proxy.plan = faults.always(faults.THROTTLE, operation)
    with pytest.raises(RetryableError):
        change()
    counting.world.proxy.plan = faults.no_faults
    assert counting.settle_hold(hold_id, RELEASED)["changed"] is True


def test_a_hold_costs_the_documented_units_and_a_refusal_one_read_after_40_settled_holds(
    counting: Counting, clock: Clock
) -> None:
    counting.stock(2)
    with counting.world.measure_units() as measured:
        committed, released = (counting.place_hold(1)[0]["hold"] for _ in range(2))
        counting.settle_hold(committed, COMMITTED)
        counting.settle_hold(released, RELEASED)
    writes = [units for name, units in measured if name == "TransactWriteItems"]
    assert writes == [6.0, 6.0, 4.0, 8.0]  # hold, hold, commit, release
    assert cost.KINDS["hold"].writes == 6 + 4  # a hold and its commit
    for _ in range(40):
        counting.settle_hold(counting.place_hold(1, ttl_s=60)[0]["hold"], RELEASED)
    clock.pass_s(61)
    with counting.world.measure_units() as measured:
        assert isinstance(refusal(partial(counting.place_hold, 2)), LimitReachedError)
    assert [units for name, units in measured if name == "Query"] == [1.0]
