"""The sweep of holds: what has expired is given back in time, or reported; nothing keeps the others waiting."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import counters
from tally.counter import Counter, declared
from tally.counting import expired_holds, hold_items, holds, settling, tallies
from tally.counting.hold_items import COMMITTED, EXPIRED, HELD, RELEASED
from tally.dynamo import items
from tally.dynamo.client import Call
from tally.dynamo.contention import Spread
from tally.dynamo.shards import StreamShards
from tally.errors import (
    HoldSettledError,
    LimitReachedError,
)
from tally.operations import holds as handler
from tally.operations import sweep as sweep_handler
from tests import faults
from tests.contexts import LambdaContext
from tests.invariants.counting import ITEM, Counting, neighbour, refusal
from tests.invariants.simulation import Clock
from tests.invariants.world import FIRST, LAST, meanwhile


def stock_by_hand(counting: Counting, qty: dict[str, str], id_: str = ITEM) -> None:
    """Put a number, or what is none, in stock past Tally."""
    counting.world.put({**tallies.key(counters.STOCK, id_, 0), "qty": qty, "version": {"N": "1"}})


def not_returned(out: str) -> int | None:
    """What the metric said last; None if it said nothing."""
    lines = [json.loads(line) for line in out.splitlines() if '"HoldsNotReturned"' in line]
    return int(lines[-1]["HoldsNotReturned"][0]) if lines else None


def test_a_hold_that_the_sweep_takes_for_due_too_early_stays_held(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The condition on time is in the write itself."""
    counting.stock(1)
    counting.take(1, ttl_s=60)
    monkeypatch.setattr(expired_holds, "due_pages", lambda *_: iter([[counting.hold()]]))
    assert counting.sweep() == 0
    assert isinstance(refusal(partial(counting.take, 1)), LimitReachedError)
    assert counting.hold()["state"] == {"S": HELD}
    assert counting.stored(counters.STOCK) == 0


def test_a_sweep_ends_in_time_and_the_next_one_does_the_rest_bucket_by_bucket_in_turn(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each return takes a second. Behind a bucket that is full, others get their turn."""
    ids = {hold_items.bucket(counters.STOCK, id_): id_ for id_ in map(str, range(99))}
    for bucket, number in ((0, 9), (15, 2)):
        counting.increment(counters.STOCK, number, id_=ids[bucket])
        for _ in range(number):
            counting.take(id_=ids[bucket])
    clock.pass_s(61)
    counting.world.proxy.forget()
    done = partial(counting.world.sent, "TransactWriteItems")
    slow = replace(counting.world.store, clock=lambda: len(done()), spread=Spread(random=FIRST))
    for until_s, page_max, returned in (
        (2, 1, (1, 1)),
        (2, 1, (1, 1)),
        (3, 1, (1, 2)),
        (5, 50, (3, 2)),
        (99, 2, (9, 2)),
    ):
        monkeypatch.setattr(expired_holds, "PAGE_MAX", page_max)
        before = len(done())
        assert counting.swept(slow, until_s=until_s) == (min(until_s, 11) - before, 0, until_s == 99)
        assert tuple(counting.stored(counters.STOCK, ids[bucket]) for bucket in (0, 15)) == returned
        slow.spread.random = LAST


def test_a_bucket_that_cannot_be_read_keeps_no_other_one_waiting(
    counting: Counting, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    counting.stock(1)
    counting.take(1, ttl_s=60)
    clock.pass_s(61)
    mine = f"HOLDS#{hold_items.bucket(counters.STOCK, ITEM)}"

    def plan(operation: str, body: bytes, number: int) -> Any:
        reads_another = operation == "Query" and json.loads(body)["ExpressionAttributeValues"][":pk"]["S"] != mine
        return faults.TRUNCATE if reads_another else None

    counting.world.proxy.plan = plan
    assert counting.swept() == (1, 0, False)
    assert not_returned(capsys.readouterr().out) is None  # nobody knows that it is 0


def test_holds_that_cannot_be_given_back_keep_no_other_one_waiting_and_are_reported_until_they_are(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(holds, "DUE_PAGE_MAX", 5)
    broken = neighbour()
    for id_, amount in ((broken, 7), (ITEM, 1)):
        counting.increment(counters.STOCK, amount, id_=id_)
    for id_ in [broken] * 7 + [ITEM]:
        counting.take(id_=id_)
        clock.pass_s(1)
    stock_by_hand(counting, {"S": "many"}, broken)
    clock.pass_s(61)
    counting.world.proxy.forget()
    for returned in (1, 0):
        assert counting.swept() == (returned, 7, True)
        assert not_returned(capsys.readouterr().out) == 7
    sent = [len(sent["TransactItems"]) for sent in counting.world.sent("TransactWriteItems")]
    assert sorted(sent) == [4, 4, 4, 14]  # each sweep tries one of the seven; they move together
    assert counting.take(1)[1] is False  # they do not fill the look
    stock_by_hand(counting, {"N": "0"}, broken)
    assert counting.swept() == (7, 0, True)
    assert not_returned(capsys.readouterr().out) == 0
    assert counting.stored(counters.STOCK, broken) == 7


def test_a_hold_whose_return_a_ceiling_refuses_is_reported_and_comes_back_when_there_is_room(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counting.stock(9)
    big, small, early = (counting.take(amount, ttl_s=60 - amount)[0]["hold"] for amount in (4, 1, 2))
    low = replace(counters.STOCK, ceiling=3)  # there are 2
    monkeypatch.setattr(counters, "COUNTERS", declared([low]))

    def settle(hold_id: str, state: str) -> dict[str, Any]:
        change = handler.commit_hold if state == COMMITTED else handler.release_hold
        assert change.refusal_for(low) is None  # nobody can hold any more, and what is held can be settled
        return dict(change(counting.world.call("ann"), counter=low, id=ITEM, hold=hold_id).body)

    assert refusal(partial(settle, early, RELEASED)).members == {"left": 1}
    clock.pass_s(61)
    assert isinstance(refusal(partial(settle, big, COMMITTED)), HoldSettledError)
    assert counting.swept() == (1, 2, True)
    assert counting.swept() == (0, 2, True)
    assert not_returned(capsys.readouterr().out) == 2
    assert isinstance(refusal(partial(settle, big, COMMITTED)), HoldSettledError)
    assert refusal(partial(settle, big, RELEASED)).members == {"left": 0}
    assert counting.states() == {big: HELD, small: EXPIRED, early: HELD}
    stock_by_hand(counting, {"N": "0"})
    counting.increment(low, -2)  # a refusal gives back what is overdue, too: what fits of it
    assert counting.states()[early] == EXPIRED
    assert refusal(partial(settle, big, RELEASED)).members == {"left": 3}
    monkeypatch.setattr(counters, "COUNTERS", declared([counters.STOCK]))
    assert counting.swept() == (1, 0, True)


def test_a_hold_that_another_gives_back_before_the_sweep_moves_it_is_not_moved(
    counting: Counting, clock: Clock
) -> None:
    counting.stock(1)
    hold_id = counting.take(1, ttl_s=60)[0]["hold"]
    clock.pass_s(61)
    stock_by_hand(counting, {"S": "many"})

    def give_back() -> None:
        stock_by_hand(counting, {"N": "0"})
        call = Call(replace(counting.world.store, client=counting.world.raw), "ann")
        assert settling.settle(call, counters.STOCK, ITEM, hold_id, RELEASED)["changed"] is True

    counting.world.proxy.plan = meanwhile({1: give_back})  # 0: refused, 1: the move
    assert counting.swept() == (0, 1, True)
    assert counting.states() == {hold_id: RELEASED}
    assert counting.stored(counters.STOCK) == 1


def test_what_fails_in_passing_stays_due_and_comes_back_with_the_next_sweep(counting: Counting, clock: Clock) -> None:
    counting.stock(2)
    for _ in range(2):
        counting.take(1, ttl_s=60)
    clock.pass_s(61)
    due = counting.ledger()
    counting.world.proxy.plan = lambda _, body, __: faults.FAIL_BEFORE if b"Update" in body else None
    assert counting.swept() == (0, 2, True)
    assert counting.ledger() == due
    counting.world.proxy.plan = faults.no_faults
    assert counting.swept() == (2, 0, True)


def test_holds_of_a_counter_that_is_declared_no_more_and_what_is_no_hold_keep_no_other_one_waiting(
    counting: Counting, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = Counter("gone", prefix="GONE", sort_key="STOCK", attribute="qty", floor=0)
    bucket = hold_items.bucket(counters.STOCK, ITEM)
    id_ = next(id_ for id_ in map(str, range(500)) if hold_items.bucket(gone, id_) == bucket)
    ledger = counting.world.store.settings.ledger_table
    counting.world.raw.put_item(TableName=ledger, Item={"PK": {"S": f"HOLDS#{bucket}"}, "SK": {"S": "1"}})
    counting.increment(gone, 1, id_=id_)
    counting.take(id_=id_, counter=gone)
    counting.stock(1)
    counting.take(1, ttl_s=60)
    clock.pass_s(61)
    assert counting.take(1, ttl_s=60)[1] is False
    clock.pass_s(61)
    assert counting.swept() == (1, 2, True)
    assert not_returned(capsys.readouterr().out) == 2
    moved = itertools.chain(*hold_items.overdue_pages(counting.world.store, bucket, 10))
    assert [hold["target"]["S"] for hold in moved] == [id_]
    assert expired_holds.sweep(counting.world.store, declared([gone]), counting.world.store.clock() + 60).returned == 1
    assert counting.stored(gone, id_) == 1


def test_an_item_among_the_holds_that_is_not_held_makes_no_room(counting: Counting) -> None:
    """Somebody put it there manually. A refusal that counted it would look for its room again and again."""
    counting.stock(1)
    hold_id = f"{int(time.time()) - 600}-{'A' * 16}"
    values = {
        "counter": "stock",
        "target": ITEM,
        "hold_id": hold_id,
        "state": COMMITTED,
        "amount": 1,
        "expires": 1,
        "latest": 1,
        "kept": 1,
        "receipt": "none",
    }
    place = hold_items.live_key(counters.STOCK, ITEM, hold_id, int(hold_id.split("-")[0]))
    put = items.put_write(counting.world.store.settings.ledger_table, place, values)
    counting.world.raw.put_item(**put["Put"])
    assert refusal(partial(counting.take, 2)).members == {"left": 1}
    assert counting.swept() == (0, 0, True)
    assert counting.stored(counters.STOCK) == 1


def test_the_scheduled_function_sweeps_every_bucket(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [str(number) for number in range(40)]
    assert len({hold_items.bucket(counters.STOCK, id_) for id_ in ids}) == 12
    for id_ in ids:
        counting.increment(counters.STOCK, 1, id_=id_)
        counting.take(id_=id_)
    clock.pass_s(61)
    sweep = sweep_handler.Sweep(counters.COUNTERS, counting.world.store, StreamShards({}))
    monkeypatch.setattr(sweep_handler, "advance_watermark", lambda *_: {})  # it reads streams
    assert sweep({}, LambdaContext())["returned"] == 40
    assert counting.amounts() == {EXPIRED: 40}
    assert sweep({}, LambdaContext())["returned"] == 0
