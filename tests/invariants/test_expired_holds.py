"""The sweep releases each expired hold in time or reports it, and no hold that cannot be released delays another.

If the sweep releases a hold, the state of the hold becomes EXPIRED. RELEASED is the state after a caller's release. If
a limit or DynamoDB refuses the release, the sweep moves the hold from the due to the overdue holds, where it delays no
other hold. Each later sweep tries to release the overdue holds.
"""

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
from tally.errors import HoldSettledError, LimitReachedError
from tally.operations import holds as handler
from tally.operations import sweep as sweep_handler
from tests import faults
from tests.contexts import LambdaContext
from tests.invariants.counting import ITEM, Counting, id_in_same_bucket, refusal
from tests.invariants.simulation import Clock
from tests.invariants.world import FIRST_SHARD, LAST_SHARD, before_transactions


def put_stock_item(counting: Counting, qty: dict[str, str], id_: str = ITEM) -> None:
    """Puts an item of the stock without Tally. `qty`: the number, or an attribute that is not a number."""
    counting.world.put({**tallies.key(counters.STOCK, id_, 0), "qty": qty, "version": {"N": "1"}})


def last_not_released(out: str) -> int | None:
    """Returns the last value of the metric HoldsNotReleased, or None if the sweep did not write the metric."""
    lines = [json.loads(line) for line in out.splitlines() if '"HoldsNotReleased"' in line]
    return int(lines[-1]["HoldsNotReleased"][0]) if lines else None


def test_a_hold_that_is_listed_as_due_before_it_expires_is_not_released(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write of the release expects that the hold has expired."""
    counting.stock(1)
    counting.place_hold(1, ttl_s=60)
    monkeypatch.setattr(expired_holds, "due_pages", lambda *_: iter([[counting.only_hold()]]))
    assert counting.sweep() == 0
    assert isinstance(refusal(partial(counting.place_hold, 1)), LimitReachedError)
    assert counting.only_hold()["state"] == {"S": HELD}
    assert counting.stored(counters.STOCK) == 0


def test_a_sweep_stops_at_its_time_limit_and_the_buckets_take_turns(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each release takes a second. A bucket with many holds does not delay the holds of other buckets."""
    ids = {hold_items.bucket(counters.STOCK, id_): id_ for id_ in map(str, range(99))}
    for bucket, number in ((0, 9), (15, 2)):
        counting.increment(counters.STOCK, number, id_=ids[bucket])
        for _ in range(number):
            counting.place_hold(id_=ids[bucket])
    clock.pass_s(61)
    counting.world.proxy.clear_requests()

    def now_s() -> int:
        return len(counting.world.requests("TransactWriteItems"))

    slow = replace(counting.world.store, clock=now_s, spread=Spread(random=FIRST_SHARD))  # starts with bucket 0
    # Of each run: its time limit, the holds that a page may have, and the stock of both buckets after the run.
    runs = ((2, 1, (1, 1)), (2, 1, (1, 1)), (3, 1, (1, 2)), (5, 50, (3, 2)), (99, 2, (9, 2)))
    for until_s, page_max, stocks in runs:
        monkeypatch.setattr(expired_holds, "PAGE_MAX", page_max)
        before_s = now_s()
        released = min(until_s, 9 + 2) - before_s
        assert counting.sweep_until(slow, until_s=until_s) == (released, 0, until_s == 99)
        assert tuple(counting.stored(counters.STOCK, ids[bucket]) for bucket in (0, 15)) == stocks
        slow.spread.random = LAST_SHARD  # later runs start with bucket 15


def test_a_bucket_that_cannot_be_read_does_not_delay_the_other_buckets(
    counting: Counting, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    counting.stock(1)
    counting.place_hold(1, ttl_s=60)
    clock.pass_s(61)
    readable = f"HOLDS#{hold_items.bucket(counters.STOCK, ITEM)}"

    def plan(operation: str, body: bytes, number: int) -> Any:
        reads_another = operation == "Query" and json.loads(body)["ExpressionAttributeValues"][":pk"]["S"] != readable
        return faults.TRUNCATE if reads_another else None

    counting.world.proxy.plan = plan
    assert counting.sweep_until() == (1, 0, False)
    assert last_not_released(capsys.readouterr().out) is None  # the other buckets may have due holds


def test_holds_that_cannot_be_released_do_not_delay_others_and_are_reported_until_they_are_released(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(holds, "DUE_PAGE_MAX", 5)
    broken = id_in_same_bucket()
    for id_, amount in ((broken, 7), (ITEM, 1)):
        counting.increment(counters.STOCK, amount, id_=id_)
    for id_ in [broken] * 7 + [ITEM]:
        counting.place_hold(id_=id_)
        clock.pass_s(1)
    put_stock_item(counting, {"S": "many"}, broken)
    clock.pass_s(61)
    counting.world.proxy.clear_requests()
    for released in (1, 0):
        assert counting.sweep_until() == (released, 7, True)
        assert last_not_released(capsys.readouterr().out) == 7
    sizes = [len(request["TransactItems"]) for request in counting.world.requests("TransactWriteItems")]
    # A release has 4 writes: the first sweep releases the hold of ITEM, and each sweep tries one of the seven holds.
    # The first sweep moves the seven holds to the overdue holds, with 2 writes for each hold.
    assert sorted(sizes) == [4, 4, 4, 14]
    assert counting.place_hold(1)[1] is False  # the search for expired holds of ITEM is not full of broken holds
    put_stock_item(counting, {"N": "0"}, broken)
    assert counting.sweep_until() == (7, 0, True)
    assert last_not_released(capsys.readouterr().out) == 0
    assert counting.stored(counters.STOCK, broken) == 7


def test_a_hold_whose_release_would_exceed_a_ceiling_is_reported_and_released_once_it_fits(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counting.stock(9)
    # The sweep meets the holds in the order of their expiry: 4, 2, 1. So the two holds that do not fit come first.
    bodies = [counting.place_hold(amount, ttl_s=60 - amount)[0] for amount in (4, 1, 2)]
    big_hold, small_hold, middle_hold = (body["hold"] for body in bodies)
    low_ceiling = replace(counters.STOCK, ceiling=3)  # 2 of the 9 are not held, so there is room for 1
    monkeypatch.setattr(counters, "COUNTERS", declared([low_ceiling]))

    def settle(hold_id: str, state: str) -> dict[str, Any]:
        change = handler.commit_hold if state == COMMITTED else handler.release_hold
        # A counter with a floor and a ceiling refuses new holds. Its old holds can be settled.
        assert change.refusal_for(low_ceiling) is None
        return dict(change(counting.world.call("ann"), counter=low_ceiling, id=ITEM, hold=hold_id).body)

    assert refusal(partial(settle, middle_hold, RELEASED)).members == {"left": 1}
    clock.pass_s(61)
    assert isinstance(refusal(partial(settle, big_hold, COMMITTED)), HoldSettledError)
    assert counting.sweep_until() == (1, 2, True), "released, failed, finished"
    assert counting.sweep_until() == (0, 2, True)
    assert last_not_released(capsys.readouterr().out) == 2
    assert isinstance(refusal(partial(settle, big_hold, COMMITTED)), HoldSettledError)
    assert refusal(partial(settle, big_hold, RELEASED)).members == {"left": 0}
    assert counting.states() == {big_hold: HELD, small_hold: EXPIRED, middle_hold: HELD}
    put_stock_item(counting, {"N": "0"})
    counting.increment(low_ceiling, -2)  # before a refusal, overdue holds that fit are released, too
    assert counting.states()[middle_hold] == EXPIRED
    assert refusal(partial(settle, big_hold, RELEASED)).members == {"left": 3}
    monkeypatch.setattr(counters, "COUNTERS", declared([counters.STOCK]))
    assert counting.sweep_until() == (1, 0, True)


def test_a_hold_that_a_caller_releases_does_not_become_overdue(counting: Counting, clock: Clock) -> None:
    counting.stock(1)
    hold_id = counting.place_hold(1, ttl_s=60)[0]["hold"]
    clock.pass_s(61)
    put_stock_item(counting, {"S": "many"})

    def release() -> None:
        put_stock_item(counting, {"N": "0"})
        call = Call(replace(counting.world.store, client=counting.world.raw), "ann")
        assert settling.settle(call, counters.STOCK, ITEM, hold_id, RELEASED)["changed"] is True

    counting.world.proxy.plan = before_transactions({1: release})  # 0: the refused release; 1: the move to overdue
    assert counting.sweep_until() == (0, 1, True)
    assert counting.states() == {hold_id: RELEASED}
    assert counting.stored(counters.STOCK) == 1


def test_a_hold_whose_release_fails_temporarily_stays_due_and_the_next_sweep_releases_it(
    counting: Counting, clock: Clock
) -> None:
    counting.stock(2)
    for _ in range(2):
        counting.place_hold(1, ttl_s=60)
    clock.pass_s(61)
    holds_before = counting.stored_holds()
    # Each release fails: of the sweep's requests, only a release has an Update, which moves the stock.
    counting.world.proxy.plan = lambda _, body, __: faults.FAIL_BEFORE if b"Update" in body else None
    assert counting.sweep_until() == (0, 2, True)
    assert counting.stored_holds() == holds_before
    counting.world.proxy.plan = faults.no_faults
    assert counting.sweep_until() == (2, 0, True)


def test_holds_of_an_undeclared_counter_and_an_item_that_is_not_a_hold_do_not_delay_others(
    counting: Counting, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    removed_counter = Counter("gone", prefix="GONE", sort_key="STOCK", attribute="qty", floor=0)
    bucket = hold_items.bucket(counters.STOCK, ITEM)
    id_ = next(id_ for id_ in map(str, range(500)) if hold_items.bucket(removed_counter, id_) == bucket)
    ledger = counting.world.store.settings.ledger_table
    counting.world.raw.put_item(TableName=ledger, Item={"PK": {"S": f"HOLDS#{bucket}"}, "SK": {"S": "1"}})
    counting.increment(removed_counter, 1, id_=id_)
    counting.place_hold(id_=id_, counter=removed_counter)
    counting.stock(1)
    counting.place_hold(1, ttl_s=60)
    clock.pass_s(61)
    assert counting.place_hold(1, ttl_s=60)[1] is False
    clock.pass_s(61)
    assert counting.sweep_until() == (1, 2, True), "the hold of the stock; the undeclared hold and the odd item failed"
    assert last_not_released(capsys.readouterr().out) == 2
    overdue = itertools.chain(*hold_items.overdue_pages(counting.world.store, bucket, 10))
    assert [hold["target"]["S"] for hold in overdue] == [id_]
    store = counting.world.store
    assert expired_holds.sweep(store, declared([removed_counter]), store.clock() + 60).released == 1
    assert counting.stored(removed_counter, id_) == 1


def test_an_item_among_the_live_holds_that_is_already_committed_is_not_released(counting: Counting) -> None:
    """Somebody put the item there manually. If the item were an expired hold, each refusal would try to release it."""
    counting.stock(1)
    hold_id = f"{int(time.time()) - 600}-{'A' * 16}"  # the time of the expiry, and a random part
    values = {
        "counter": "stock", "target": ITEM, "hold_id": hold_id, "state": COMMITTED, "amount": 1, "expires": 1,
        "latest": 1, "kept_s": 1, "receipt": "none",
    }  # fmt: skip
    key = hold_items.live_key(counters.STOCK, ITEM, hold_id, int(hold_id.split("-")[0]))
    put = items.put_write(counting.world.store.settings.ledger_table, key, values)
    counting.world.raw.put_item(**put["Put"])
    assert refusal(partial(counting.place_hold, 2)).members == {"left": 1}
    assert counting.sweep_until() == (0, 0, True)
    assert counting.stored(counters.STOCK) == 1


def test_the_scheduled_function_sweeps_every_bucket(
    counting: Counting, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = {hold_items.bucket(counters.STOCK, id_): id_ for id_ in map(str, range(99))}.values()  # one of each bucket
    assert len(ids) == hold_items.BUCKETS
    for id_ in ids:
        counting.increment(counters.STOCK, 1, id_=id_)
        counting.place_hold(id_=id_)
    clock.pass_s(61)
    sweep = sweep_handler.Sweep(counters.COUNTERS, counting.world.store, StreamShards({}))
    monkeypatch.setattr(sweep_handler, "advance_watermark", lambda *_: {})  # the watermark would read streams
    assert sweep({}, LambdaContext())["released"] == hold_items.BUCKETS
    assert counting.amounts_by_state() == {EXPIRED: hold_items.BUCKETS}
    assert sweep({}, LambdaContext())["released"] == 0
