"""Holds: taken at once, then kept or given back, each exactly once. The stock always adds up."""

from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import counters
import faults
from functions import sweep as sweep_handler
from tally.counter import Counter, declared
from tally.counting import expired, holds, tallies
from tally.counting.holds import COMMITTED, EXPIRED, HELD, RELEASED
from tally.dynamo.contention import Spread
from tally.errors import (
    HoldSettledError,
    KeyReusedError,
    LimitReachedError,
    NotFoundError,
    RetryableError,
    StoreBusyError,
    StoreUnreachableError,
)
from tests.contexts import Context
from tests.invariants.counting import ITEM, Clock, Counting, buy, new_key, refusal
from tests.invariants.threads import at_once
from tests.invariants.world import First, Last, World, persist

CALLERS = 8
SOME_OF_ALL = {
    faults.LOSE_RESPONSE: 0.05, faults.FAIL_AFTER: 0.03, faults.FAIL_BEFORE: 0.03, faults.CONFLICT: 0.1,
    faults.THROTTLED_TRANSACTION: 0.03,
}  # fmt: skip


@pytest.fixture
def counting(world: World) -> Counting:
    return Counting(world)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that the test moves."""
    made = Clock()
    made.install(monkeypatch)
    return made


def neighbour() -> str:
    """Another item, whose holds are in the same bucket."""
    bucket = holds.bucket(counters.STOCK, ITEM)
    return next(id_ for id_ in map(str, range(500)) if holds.bucket(counters.STOCK, id_) == bucket)


def take_of(counting: Counting, id_: str, amount: int = 1, counter: Counter = counters.STOCK) -> str:
    """Hold an amount of any item for a minute; the hold's id."""
    call = counting.world.call("ann")
    return str(holds.take(call, counter, id_, amount, 60, operation="hold", key=new_key()).body["hold_id"])


def stock_by_hand(counting: Counting, qty: dict[str, str], id_: str = ITEM) -> None:
    """Put a number, or what is none, in stock past Tally."""
    counting.world.put({**tallies.key(counters.STOCK, id_, 0), "qty": qty, "version": {"N": "1"}})


def settled_before(counting: Counting, number: int, amount: int = 1, pad: int = 0) -> list[str]:
    """Holds of the item that an earlier Tally settled: they stay in the bucket, with their state. Their ids."""
    now_s, ids = int(time.time()), []
    for hold in range(number):
        ids.append(f"{now_s - 600 + hold}-{hold:016d}")
        item = {
            **holds._key(counters.STOCK, ITEM, ids[-1]), "counter": {"S": "stock"}, "target": {"S": ITEM},
            "hold_id": {"S": ids[-1]}, "state": {"S": COMMITTED}, "amount": {"N": str(amount)},
            "expires": {"N": str(now_s - 600 + hold)}, "expiration": {"N": str(now_s + 3600)}, "pad": {"S": "x" * pad},
        }  # fmt: skip
        counting.world.raw.put_item(TableName=counting.world.store.settings.ledger_table, Item=item)
    return ids


def not_returned(out: str) -> dict[str, int]:
    """What the metric says, by counter."""
    lines = [json.loads(line) for line in out.splitlines() if '"HoldsNotReturned"' in line]
    return {line["counter"]: int(line["HoldsNotReturned"][0]) for line in lines}


def the_hold(counting: Counting) -> dict[str, Any]:
    """The only hold there is, as it is stored."""
    (hold,) = counting.ledger()
    return hold


def test_a_hold_takes_its_amount_at_once_and_carries_no_ttl(counting: Counting) -> None:
    counting.stock(10)
    before_s = int(time.time())
    body, replayed = counting.take(3, ttl_s=60)
    assert (body["counter"], body["id"], body["amount"], replayed) == ("stock", ITEM, 3, False)
    assert before_s + 60 <= body["expires_at"] <= int(time.time()) + 60
    assert counting.stored(counters.STOCK) == 7
    hold = the_hold(counting)
    assert (hold["state"], hold["amount"], hold["hold_id"]) == ({"S": HELD}, {"N": "3"}, {"S": body["hold_id"]})
    assert "expiration" not in hold


@pytest.mark.parametrize(("state", "left"), [(COMMITTED, 7), (RELEASED, 10)])
def test_a_hold_is_settled_once_and_gets_its_ttl_then(counting: Counting, state: str, left: int) -> None:
    counting.stock(10)
    hold_id = counting.take(3)[0]["hold_id"]
    settled = {"counter": "stock", "id": ITEM, "hold_id": hold_id, "state": state}
    assert counting.settle(hold_id, state) == {**settled, "changed": True}
    assert counting.settle(hold_id, state) == {**settled, "changed": False}
    other = RELEASED if state == COMMITTED else COMMITTED
    assert isinstance(refusal(partial(counting.settle, hold_id, other)), HoldSettledError)
    assert counting.stored(counters.STOCK) == left
    hold = the_hold(counting)
    assert (hold["PK"], hold["state"]) == ({"S": f"HOLDS#SETTLED#stock/{ITEM}"}, {"S": state})
    assert int(hold["expiration"]["N"]) >= time.time() + holds.SETTLED_KEPT_S - 5


def test_a_replay_is_the_same_hold_and_takes_nothing_more(counting: Counting, clock: Clock) -> None:
    counting.stock(10)
    key = new_key()
    body, _ = counting.take(3, key=key)
    clock.pass_s(5)
    assert counting.take(3, key=key) == (body, True)
    assert isinstance(refusal(partial(counting.take, 4, key=key)), KeyReusedError)
    assert isinstance(refusal(partial(counting.take, 3, 61, key=key)), KeyReusedError)
    assert counting.stored(counters.STOCK) == 7
    assert the_hold(counting)["hold_id"] == {"S": body["hold_id"]}


def test_a_replay_is_the_same_hold_also_when_nothing_is_left_or_it_is_settled(counting: Counting) -> None:
    counting.stock(3)
    body, _ = counting.take(3, key="key-1")
    assert counting.take(3, key="key-1") == (body, True)
    counting.settle(body["hold_id"], RELEASED)
    assert counting.take(3, key="key-1") == (body, True)
    assert counting.stored(counters.STOCK) == 3


def test_more_than_is_left_is_not_held_and_leaves_nothing(counting: Counting) -> None:
    counting.stock(3)
    refused = refusal(partial(counting.take, 4, key="key-1"))
    assert isinstance(refused, LimitReachedError)
    assert refused.members == {"left": 3}
    assert counting.ledger() == []
    assert len(counting.world.receipts()) == 1
    counting.stock(1)
    assert counting.take(4, key="key-1")[1] is False


def test_a_hold_that_never_was_is_not_found(counting: Counting) -> None:
    counting.stock(3)
    for state in (COMMITTED, RELEASED):
        assert isinstance(refusal(partial(counting.settle, "1700000000-AAAAAAAAAAAAAAAA", state)), NotFoundError)
    assert counting.ledger() == []
    assert counting.stored(counters.STOCK) == 3


def test_a_hold_is_found_under_its_own_item_only(counting: Counting) -> None:
    counting.stock(3)
    hold_id = counting.take(3)[0]["hold_id"]
    for state in (COMMITTED, RELEASED):
        with pytest.raises(NotFoundError):
            holds.settle(counting.world.call(), counters.STOCK, neighbour(), hold_id, state)
    assert the_hold(counting)["state"] == {"S": HELD}


@pytest.mark.parametrize("swept", [False, True], ids=["not swept", "swept"])
def test_an_expired_hold_is_not_committed_and_its_amount_is_given_back_once(
    counting: Counting, clock: Clock, swept: bool
) -> None:
    counting.stock(10)
    hold_id = counting.take(3, ttl_s=60)[0]["hold_id"]
    clock.pass_s(50)
    assert counting.sweep() == 0
    clock.pass_s(11)
    if swept:
        assert counting.sweep() == 1
    assert isinstance(refusal(partial(counting.settle, hold_id, COMMITTED)), HoldSettledError)
    assert counting.settle(hold_id, RELEASED) == {
        "counter": "stock", "id": ITEM, "hold_id": hold_id, "state": EXPIRED, "changed": False,
    }  # fmt: skip
    assert counting.stored(counters.STOCK) == 10
    assert the_hold(counting)["state"] == {"S": EXPIRED}
    assert "expiration" in the_hold(counting)
    assert counting.sweep() == 0


def test_a_hold_can_be_committed_until_its_last_second_and_given_back_from_then_on(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = int(time.time())
    ticks = {"s": now_s}
    monkeypatch.setattr(holds, "time", SimpleNamespace(time=lambda: ticks["s"]))
    counting.stock(10)
    in_time, late = (counting.take(1, ttl_s=60)[0]["hold_id"] for _ in range(2))
    ticks["s"] = now_s + 59
    assert counting.sweep() == 0
    assert counting.settle(in_time, COMMITTED)["changed"] is True
    ticks["s"] = now_s + 60
    assert isinstance(refusal(partial(counting.settle, late, COMMITTED)), HoldSettledError)
    assert counting.stored(counters.STOCK) == 9


def test_a_hold_that_the_sweep_takes_for_due_too_early_stays_held(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The condition on time is in the write itself."""
    counting.stock(1)
    counting.take(1, ttl_s=60)
    monkeypatch.setattr(expired, "due", lambda *_: iter([[the_hold(counting)]]))
    assert counting.sweep() == 0
    assert isinstance(refusal(partial(counting.take, 1)), LimitReachedError)
    assert the_hold(counting)["state"] == {"S": HELD}
    assert counting.stored(counters.STOCK) == 0


def test_before_a_refusal_expired_holds_are_given_back_and_the_take_is_tried_once_more(
    counting: Counting, clock: Clock
) -> None:
    counting.stock(10)
    for _ in range(5):
        counting.take(2, ttl_s=60)
    assert isinstance(refusal(partial(counting.take, 1)), LimitReachedError)
    clock.pass_s(61)
    counting.take(7)
    assert counting.stored(counters.STOCK) == 1
    assert counting.amounts() == {HELD: 9, EXPIRED: 8}  # as many as the take needed
    refused = refusal(partial(counting.take, 4))
    assert refused.members == {"left": 3}


def test_a_take_or_an_increment_gets_all_the_room_that_expired_holds_make_however_many(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "LOOK_MAX", 7)
    counting.stock(60)
    for _ in range(60):
        counting.take(1, ttl_s=60)
    clock.pass_s(61)
    assert counting.take(30)[0]["amount"] == 30
    assert buy(counting, counters.STOCK, -30) == {"counter": "stock", "id": ITEM, "counted": True, "visible": "now"}
    assert (counting.stored(counters.STOCK), counting.amounts()) == (0, {EXPIRED: 60, HELD: 30})


def test_a_call_whose_time_is_over_says_so_and_not_that_nothing_is_left(counting: Counting, clock: Clock) -> None:
    counting.stock(1)
    counting.take(1, ttl_s=60)
    clock.pass_s(61)
    with pytest.raises(StoreBusyError):
        counting.take(1, call=counting.world.call("ann", deadline_s=0))
    assert counting.take(1)[1] is False


def test_before_an_increment_is_refused_expired_holds_are_given_back(counting: Counting, clock: Clock) -> None:
    counting.stock(2)
    counting.take(2, ttl_s=60)
    clock.pass_s(61)
    assert buy(counting, counters.STOCK, -2) == {"counter": "stock", "id": ITEM, "counted": True, "visible": "now"}
    assert counting.stored(counters.STOCK) == 0


def test_holds_of_another_item_are_not_given_back_for_this_one_nor_do_they_hide_its_own(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "LOOK_MAX", 2)
    for _ in range(3):
        counting.increment(counters.STOCK, 1, id_=neighbour())
    take_of(counting, neighbour())
    clock.pass_s(61)
    assert isinstance(refusal(partial(counting.take, 1)), LimitReachedError)
    assert the_hold(counting)["state"] == {"S": HELD}
    counting.stock(1)
    counting.take(1, ttl_s=60)
    clock.pass_s(61)
    assert counting.take(1, ttl_s=62)[1] is False
    assert counting.amounts() == {HELD: 2, EXPIRED: 1}
    for _ in range(2):
        take_of(counting, neighbour())
    clock.pass_s(63)
    with pytest.raises(StoreBusyError):  # two of the others fill the look: nobody knows what is behind them
        counting.take(1)
    assert counting.sweep() == 4
    assert counting.take(1)[1] is False


def test_a_refusal_at_a_ceiling_gives_nothing_back(counting: Counting, clock: Clock) -> None:
    counting.stock(2)
    counting.take(2, ttl_s=60)
    clock.pass_s(61)
    low = replace(counters.STOCK, ceiling=1)
    assert isinstance(refusal(partial(counting.increment, low, 2)), LimitReachedError)
    assert the_hold(counting)["state"] == {"S": HELD}


def test_whoever_finds_that_another_has_given_the_expired_holds_back_takes_them_too(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep comes between the look for expired holds and giving them back."""
    counting.stock(1)
    counting.take(1, ttl_s=60)
    clock.pass_s(61)
    due = holds.due

    def look(*arguments: Any) -> Any:
        monkeypatch.setattr(holds, "due", due)
        found = list(due(*arguments))
        assert counting.sweep() == 1
        return iter(found)

    monkeypatch.setattr(holds, "due", look)
    assert counting.take(1)[1] is False
    assert counting.stored(counters.STOCK) == 0


def test_a_release_that_finds_the_hold_committed_in_between_says_so(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another function's clock is behind ours: to it the hold is still good."""
    counting.stock(1)
    hold_id = counting.take(1, ttl_s=60)[0]["hold_id"]
    clock.pass_s(61)
    move = holds.move

    def commit_first(*arguments: Any) -> bool:
        if arguments[-1] == EXPIRED:
            clock.pass_s(-10)
            assert counting.settle(hold_id, COMMITTED)["changed"] is True
            clock.pass_s(10)
        return move(*arguments)

    monkeypatch.setattr(holds, "move", commit_first)
    refused = refusal(partial(counting.settle, hold_id, RELEASED))
    assert isinstance(refused, HoldSettledError)
    assert COMMITTED in refused.detail
    assert counting.stored(counters.STOCK) == 0


def wander(counting: Counting, clock: Clock, seed: int, settled: list[str]) -> None:
    """Take, and settle one's own and others' holds at random, as time passes."""
    chance = random.Random(seed)
    for turn in range(7):
        try:
            hold = persist(partial(counting.take, chance.randint(1, 3), chance.choice([1, 30]), f"{seed}-{turn}"))[0]
        except LimitReachedError:
            continue
        if chance.random() < 0.3:
            clock.pass_s(2)
        for state in chance.sample([COMMITTED, RELEASED, None], 2):
            try:
                if state and persist(partial(counting.settle, hold["hold_id"], state))["changed"]:
                    settled.append(hold["hold_id"])
            except HoldSettledError:
                continue


def test_commit_release_expiry_and_sweep_race_and_the_stock_always_adds_up(counting: Counting, clock: Clock) -> None:
    counting.stock(20)
    counting.world.proxy.plan = faults.seeded(11, {"TransactWriteItems": SOME_OF_ALL})
    settled: list[str] = []
    over = threading.Event()

    def keep_sweeping() -> None:
        while not over.is_set():
            persist(counting.sweep)

    def race() -> None:
        try:
            at_once([partial(wander, counting, clock, seed, settled) for seed in range(CALLERS)])
        finally:
            over.set()

    at_once([race, keep_sweeping])
    counting.world.proxy.plan = faults.no_faults
    counting.world.proxy.settle()
    assert counting.in_existence() == 20
    assert 0 <= counting.stored(counters.STOCK) <= 20
    assert len(settled) == len(set(settled))
    for hold in counting.ledger():
        assert ("expiration" in hold) is (hold["state"]["S"] != HELD)
    assert {COMMITTED, RELEASED, EXPIRED} <= set(counting.states().values())
    clock.pass_s(31)
    counting.sweep()
    assert counting.amounts().get(HELD) is None
    assert counting.stored(counters.STOCK) + counting.amounts().get(COMMITTED, 0) == 20
    assert counting.stored(counters.STOCK) == counting.expected()


def test_one_hold_that_all_settle_at_once_is_settled_once(counting: Counting, clock: Clock) -> None:
    for round_ in range(6):
        counting.stock(1)
        hold_id = counting.take(1, ttl_s=60)[0]["hold_id"]
        clock.pass_s(61 if round_ % 2 else 0)

        def settle(state: str, hold_id: str = hold_id) -> str | None:
            try:
                return state if counting.settle(hold_id, state)["changed"] else None
            except HoldSettledError:
                return None

        def sweep() -> str | None:
            return EXPIRED if counting.sweep() else None

        settlers = [partial(settle, state) for state in (COMMITTED, RELEASED) * 3]
        won = [state for state in at_once([*settlers, sweep, sweep]) if state]
        state = counting.states()[hold_id]
        assert won == [state] or (won, state) == ([], EXPIRED)  # a late commit gives it back and is refused
        assert counting.in_existence() == round_ + 1


def test_buyers_at_once_of_a_stock_that_is_all_in_expired_holds_are_never_sold_more(
    counting: Counting, clock: Clock
) -> None:
    counting.stock(8)
    for _ in range(8):
        counting.take(1, ttl_s=60)
    clock.pass_s(61)
    outcomes = at_once([partial(buy, counting, counters.STOCK, -1) for _ in range(16)])
    sold = sum(isinstance(outcome, dict) for outcome in outcomes)
    assert 0 < sold <= 8
    assert counting.stored(counters.STOCK) == 8 - sold
    assert counting.amounts() == {EXPIRED: 8}


def test_a_sweep_or_a_refusal_with_nothing_due_touches_no_hold(counting: Counting, clock: Clock) -> None:
    counting.stock(3)
    counting.take(1, ttl_s=60)
    kept = counting.take(1, ttl_s=60)[0]["hold_id"]
    counting.settle(kept, COMMITTED)
    for due in (0, 1):
        counting.world.proxy.forget()
        assert counting.swept() == (due, 0, True)
        assert len(counting.world.sent("TransactWriteItems")) == due
        assert isinstance(refusal(partial(counting.take, 4)), LimitReachedError)
        assert len(counting.world.sent("TransactWriteItems")) == due + 1
        clock.pass_s(61)


def test_a_sweep_ends_in_time_and_the_next_one_does_the_rest_bucket_by_bucket_in_turn(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each return takes a second. Behind a bucket that is full, others get their turn."""
    monkeypatch.setattr(expired, "PAGE_MAX", 1)
    ids = {holds.bucket(counters.STOCK, id_): id_ for id_ in map(str, range(99))}
    counting.increment(counters.STOCK, 9, id_=ids[0])
    counting.increment(counters.STOCK, 1, id_=ids[15])
    for id_ in [ids[0]] * 9 + [ids[15]]:
        take_of(counting, id_)
    clock.pass_s(61)
    counting.world.proxy.forget()
    done = partial(counting.world.sent, "TransactWriteItems")
    slow = replace(counting.world.store, clock=lambda: len(done()), spread=Spread(random=First()))
    assert counting.swept(slow, until_s=2) == (2, 0, False)
    assert [counting.stored(counters.STOCK, ids[bucket]) for bucket in (0, 15)] == [1, 1]
    assert counting.swept(slow, until_s=2) == (0, 0, False)
    slow.spread.random = Last()
    assert counting.swept(slow, until_s=3) == (1, 0, False)
    assert counting.swept(slow, until_s=99) == (7, 0, True)


def test_a_bucket_that_cannot_be_read_keeps_no_other_one_waiting(
    counting: Counting, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    counting.stock(1)
    counting.take(1, ttl_s=60)
    clock.pass_s(61)
    mine = f"HOLDS#{holds.bucket(counters.STOCK, ITEM)}"

    def plan(operation: str, body: bytes, number: int) -> Any:
        reads_another = operation == "Query" and json.loads(body)["ExpressionAttributeValues"][":pk"]["S"] != mine
        return faults.TRUNCATE if reads_another else None

    counting.world.proxy.plan = plan
    assert counting.swept() == (1, 0, False)
    assert not_returned(capsys.readouterr().out) == {}  # nobody knows that it is 0


def test_holds_that_cannot_be_given_back_keep_no_other_one_waiting_and_are_reported_until_they_are(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(holds, "LOOK_MAX", 5)
    broken = neighbour()
    for id_, amount in ((broken, 7), (ITEM, 1)):
        counting.increment(counters.STOCK, amount, id_=id_)
    for id_ in [broken] * 7 + [ITEM]:
        take_of(counting, id_)
        clock.pass_s(1)
    stock_by_hand(counting, {"S": "many"}, broken)
    clock.pass_s(61)
    counting.world.proxy.forget()
    for returned in (1, 0):
        assert counting.swept() == (returned, 7, True)
        assert not_returned(capsys.readouterr().out) == {"stock": 7}
    sent = [len(sent["TransactItems"]) for sent in counting.world.sent("TransactWriteItems")]
    assert sorted(sent) == [4, 4, 4, 14]  # each sweep tries one of the seven; they move together
    assert counting.take(1)[1] is False  # they do not fill the look
    stock_by_hand(counting, {"N": "0"}, broken)
    assert counting.swept() == (7, 0, True)
    assert not_returned(capsys.readouterr().out) == {"stock": 0}
    assert counting.stored(counters.STOCK, broken) == 7


def test_a_hold_whose_return_a_ceiling_refuses_is_reported_and_comes_back_when_there_is_room(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counting.stock(9)
    big, small, early = (counting.take(amount, ttl_s=60)[0]["hold_id"] for amount in (4, 1, 2))
    low = replace(counters.STOCK, ceiling=3)  # there are 2
    monkeypatch.setattr(counters, "COUNTERS", declared([low]))
    settle = partial(holds.settle, counting.world.call("ann"), low, ITEM)
    assert refusal(partial(settle, early, RELEASED)).members == {"left": 1}
    clock.pass_s(61)
    assert isinstance(refusal(partial(settle, big, COMMITTED)), HoldSettledError)
    assert counting.swept() == (1, 2, True)
    assert counting.swept() == (0, 2, True)
    assert not_returned(capsys.readouterr().out) == {"stock": 2}
    assert isinstance(refusal(partial(settle, big, COMMITTED)), HoldSettledError)
    assert refusal(partial(settle, big, RELEASED)).members == {"left": 0}
    assert counting.states() == {big: HELD, small: EXPIRED, early: HELD}
    stock_by_hand(counting, {"N": "0"})
    take = partial(holds.take, counting.world.call("ann"), low, ITEM, operation="hold")
    take(2, 60, key="one")  # a refusal gives back what is overdue, too: what fits of it
    assert counting.states()[early] == EXPIRED
    assert refusal(partial(settle, big, RELEASED)).members == {"left": 3}
    monkeypatch.setattr(counters, "COUNTERS", declared([counters.STOCK]))
    assert counting.swept() == (1, 0, True)


def test_what_fails_in_passing_stays_due_and_comes_back_with_the_next_sweep(counting: Counting, clock: Clock) -> None:
    counting.stock(2)
    for _ in range(2):
        counting.take(1, ttl_s=60)
    clock.pass_s(61)
    due = counting.ledger()
    counting.world.proxy.plan = faults.always(faults.FAIL_BEFORE, "TransactWriteItems")
    counting.world.proxy.forget()
    assert counting.swept() == (0, 2, True)
    assert counting.ledger() == due
    counting.world.proxy.plan = faults.no_faults
    assert counting.swept() == (2, 0, True)


def test_holds_of_a_counter_that_is_declared_no_more_and_what_is_no_hold_keep_no_other_one_waiting(
    counting: Counting, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = Counter("gone", prefix="GONE", sort_key="STOCK", attribute="qty", floor=0)
    bucket = holds.bucket(counters.STOCK, ITEM)
    id_ = next(id_ for id_ in map(str, range(500)) if holds.bucket(gone, id_) == bucket)
    ledger = counting.world.store.settings.ledger_table
    counting.world.raw.put_item(TableName=ledger, Item={"PK": {"S": f"HOLDS#{bucket}"}, "SK": {"S": "1"}})
    counting.increment(gone, 1, id_=id_)
    take_of(counting, id_, counter=gone)
    counting.stock(1)
    counting.take(1, ttl_s=60)
    clock.pass_s(61)
    assert counting.take(1, ttl_s=60)[1] is False
    clock.pass_s(61)
    assert counting.swept() == (1, 2, True)
    assert not_returned(capsys.readouterr().out) == {"stock": 0, "gone": 1, "unknown": 1}
    assert expired.sweep(counting.world.store, declared([gone]), time.monotonic() + 9).returned == 1
    assert counting.stored(gone, id_) == 1


def test_holds_that_were_settled_in_their_bucket_are_found_and_the_sweep_moves_them(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stack is deployed over. Until the sweep has come by, they are in the way of a look, and it says so."""
    monkeypatch.setattr(holds, "LOOK_MAX", 60)
    counting.stock(1)
    before = settled_before(counting, 120, pad=2000)
    clock.pass_s(-620)
    counting.take(1, ttl_s=60)
    clock.pass_s(681)
    for moved in (False, True):
        assert counting.settle(before[0], COMMITTED)["changed"] is False
        assert isinstance(refusal(partial(counting.settle, before[-1], RELEASED)), HoldSettledError)
        if not moved:
            assert counting.swept() == (1, 0, True)
    assert counting.take(1)[1] is False
    settled = [hold for hold in counting.ledger() if hold["state"]["S"] == COMMITTED]
    assert {hold["PK"]["S"] for hold in settled} == {f"HOLDS#SETTLED#stock/{ITEM}"}
    assert len(settled) == 120
    assert all("expiration" in hold for hold in settled)
    assert counting.stored(counters.STOCK) == 0


def test_the_scheduled_function_sweeps_every_bucket(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [str(number) for number in range(40)]
    assert len({holds.bucket(counters.STOCK, id_) for id_ in ids}) == 12
    for id_ in ids:
        counting.increment(counters.STOCK, 1, id_=id_)
        holds.take(counting.world.call("ann"), counters.STOCK, id_, 1, 60, operation="hold", key=new_key())
    clock.pass_s(61)
    monkeypatch.setattr(sweep_handler, "_store", counting.world.store)
    monkeypatch.setattr(sweep_handler, "renew", lambda *_: {})  # it reads streams
    assert sweep_handler.handler({}, Context())["returned"] == 40
    assert counting.amounts() == {EXPIRED: 40}
    assert sweep_handler.handler({}, Context())["returned"] == 0


@pytest.mark.parametrize("operation", ["Query", "GetItem"])
def test_an_answer_about_holds_that_was_cut_is_unreachable_and_never_a_404_or_409(
    counting: Counting, clock: Clock, operation: str
) -> None:
    counting.stock(1)
    hold_id = counting.take(1, ttl_s=60)[0]["hold_id"]
    counting.world.proxy.plan = faults.always(faults.TRUNCATE, operation)
    change = {"Query": partial(counting.take, 1), "GetItem": partial(counting.settle, hold_id, RELEASED)}[operation]
    with pytest.raises(StoreUnreachableError):
        change()
    counting.world.proxy.plan = faults.always(faults.THROTTLE, operation)
    with pytest.raises(RetryableError):
        change()
    counting.world.proxy.plan = faults.no_faults
    assert counting.settle(hold_id, RELEASED)["changed"] is True


def test_what_a_hold_costs_and_a_refusal_whatever_was_settled(counting: Counting) -> None:
    counting.stock(2)
    with counting.world.capacity() as measured:
        kept, given_back = (counting.take(1)[0]["hold_id"] for _ in range(2))
        counting.settle(kept, COMMITTED)
        counting.settle(given_back, RELEASED)
    assert [units for name, units in measured if name == "TransactWriteItems"] == [6.0, 6.0, 4.0, 8.0]
    for _ in range(40):
        counting.settle(counting.take(1, ttl_s=1)[0]["hold_id"], RELEASED)
    time.sleep(1.1)
    with counting.world.capacity() as measured:
        assert isinstance(refusal(partial(counting.take, 2)), LimitReachedError)
    assert [units for name, units in measured if name == "Query"] == [1.0, 1.0]
