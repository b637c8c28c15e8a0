"""All changes of a batch count once, or no change counts, whatever fails."""

from __future__ import annotations

import re
import time
from collections import Counter as Multiset
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import counters
from tally import fields
from tally.counter import CHANGES, Counter
from tally.counting import batch, holds
from tally.counting.receipts import DAY_S, ChangeAnswer
from tally.dynamo.client import Call
from tally.errors import CounterRetiredError, InvalidInputError, KeyReusedError, LimitReachedError, PayloadTooLargeError
from tally.operations import changes as operations
from tally.operations.increments import _refusal_of_change
from tests import faults
from tests.invariants.simulation import Clock
from tests.invariants.streaming import EngineStreams
from tests.invariants.threads import run_together
from tests.invariants.world import World, retry_until_final

PLAYS, STOCK, USAGE, TICKET = counters.PLAYS, counters.STOCK, counters.USAGE, counters.TICKET
VIEWS = Counter("views", prefix="VIEW", sort_key="TOTAL", attribute="views", visible="soon")
CALLS = Counter("calls", prefix="API", sort_key="CALLS", attribute="calls", ceiling=5, period="day", keep_periods=2)
ONE_SHARD = Counter("one", prefix="ONE", sort_key="TOTAL", attribute="number", max_shards=1)
CAPPED = Counter("capped", prefix="CAP", sort_key="TOTAL", attribute="number", ceiling=5)
DECLARED = counters.COUNTERS | {counter.name: counter for counter in (VIEWS, ONE_SHARD, CAPPED, CALLS)}
ORDER = [("stock", "mug", -1), ("plays", "mug", 1), ("usage", "ann", 1)]

Changes = Sequence[tuple[str, str, int]]
"""Counter, id and amount of each change."""


def entries(changes: Changes) -> list[dict[str, Any]]:
    return [{"counter": counter, "id": id_, "amount": amount} for counter, id_, amount in changes]


def count(
    world: World,
    key: str,
    changes: Changes,
    *,
    soon: bool = False,
    call: Call | None = None,
    declared: Mapping[str, Counter] = DECLARED,
    now_s: float | None = None,
) -> ChangeAnswer:
    """Count a batch, as the handler does. `now_s`: the time of the call, which picks the period; None: now."""
    parsed = batch.parse_batch(entries(changes), declared, now_s or time.time(), soon=soon)
    return batch.count(call or world.call("shop"), parsed, operation="change", key=key, soon=soon)


def stock(world: World, amount: int) -> None:
    """Add an amount to the stock of mugs."""
    world.play("stocked", "mug", amount, counter=STOCK)


def order_tallies(world: World) -> list[int]:
    """Returns the tallies of `ORDER`: stock, plays and usage."""
    return [world.tally(STOCK, "mug"), world.tally(PLAYS, "mug"), world.tally(USAGE, "ann")]


def body(changes: int, tallies: int, visible: str = "now") -> dict[str, Any]:
    return {"counted": True, "changes": changes, "tallies": tallies, "visible": visible}


def plays_of(videos: int, plays: int = 10) -> Changes:
    return [("plays", f"video-{number}", 1) for number in range(videos) for _ in range(plays)]


# ---- one transaction ----


def test_an_order_moves_all_its_tallies_in_one_transaction_and_a_retry_moves_nothing(world: World) -> None:
    stock(world, 3)
    world.proxy.clear_requests()
    assert count(world, "order-1", ORDER) == (body(3, 3), False)
    assert len(world.requests()) == 1
    assert order_tallies(world) == [2, 1, 1]
    assert count(world, "order-1", ORDER) == (body(3, 3), True)
    assert count(world, "order-1", ORDER[::-1]) == (body(3, 3), True)
    for other_changes in ([*ORDER, ("usage", "ann", 1)], ORDER[:2], [*ORDER[:2], ("usage", "bob", 1)]):
        with pytest.raises(KeyReusedError):
            count(world, "order-1", other_changes)
    assert order_tallies(world) == [2, 1, 1]


def test_the_receipt_of_a_batch_is_kept_for_the_longest_receipt_days_of_its_counters(world: World) -> None:
    declared = {**DECLARED, "plays": replace(PLAYS, receipt_days=30)}
    count(world, "order-1", [("usage", "ann", 1), ("stock", "mug", 1)], declared=declared)
    count(world, "order-2", [("usage", "ann", 1), ("plays", "mug", 1)], declared=declared)
    lifetimes_s = sorted(int(receipt["expiration"]["N"]) - time.time() for receipt in world.receipts())
    assert [(lifetime_s + 60) // DAY_S for lifetime_s in lifetimes_s] == [1, 30]  # the test takes less than 60 s


@pytest.mark.parametrize("soon", [False, True])
def test_100_plays_of_10_videos_cost_the_documented_units(world: World, soon: bool) -> None:
    with world.measure_units() as measured:
        assert count(world, "feed", plays_of(10), soon=soon) == (body(100, 10, "soon" if soon else "now"), False)
    # In a transaction, the receipt and each of the ten tallies cost 2 units.
    assert measured == ([("PutItem", 1.0)] if soon else [("TransactWriteItems", 2.0 * (1 + 10))])
    assert [world.tally_after_rollup(id_=f"video-{number}") for number in range(10)] == [10] * 10


def test_1000_changes_of_90_tallies_count_and_91_tallies_are_too_many(world: World) -> None:
    changes = [("usage", f"u{number % 90}", 2) for number in range(1000)]
    with world.measure_units() as measured:
        assert count(world, "many", changes) == (body(1000, 90), False)
    ((_, units),) = measured
    assert units == 2 * 90 + 2  # a receipt with short ids is under 1 KB
    assert world.tally(USAGE, "u0") == 12 * 2, "u0 to u9 have 12 changes, the others 11"
    with pytest.raises(PayloadTooLargeError, match="more than 90 tallies"):
        count(world, "more", [("usage", f"u{number}", 1) for number in range(91)])


# ---- refusals ----


def test_a_refusal_names_the_entry_and_the_amount_left_and_nothing_of_the_order_is_stored(world: World) -> None:
    stock(world, 2)
    changes = [("usage", "ann", 1), ("stock", "mug", -1), ("plays", "mug", 1), ("stock", "mug", -2)]
    for _ in range(2):
        with pytest.raises(LimitReachedError) as error:
            count(world, "order-1", changes)
        assert error.value.members == {"entry": 1, "counter": "stock", "id": "mug", "left": 2}
        assert "changes[1], stock mug: 2 left" in error.value.detail
        assert order_tallies(world) == [2, 0, 0]
        assert len(world.receipts()) == 1, "the receipt of `stock`"
    world.play("more", "mug", 5, counter=STOCK)
    assert count(world, "order-1", changes) == (body(4, 3), False)
    assert order_tallies(world) == [4, 1, 1]


def test_a_limit_is_compared_with_the_sum_of_the_changes_of_a_tally(world: World) -> None:
    assert count(world, "in-and-out", [("stock", "mug", -3), ("stock", "mug", 5)])[0]["tallies"] == 1
    assert order_tallies(world) == [2, 0, 0]
    with pytest.raises(LimitReachedError) as error:
        count(world, "full", [("usage", "ann", 1), ("capped", "x", 2), ("capped", "x", 4)])
    assert error.value.members == {"entry": 1, "counter": "capped", "id": "x", "left": 5}


def test_expired_holds_are_released_before_an_order_is_refused(world: World, clock: Clock) -> None:
    stock(world, 5)
    holds.place(world.call("shop"), STOCK, "mug", 4, 60, operation="hold", key="cart")
    with pytest.raises(LimitReachedError):
        count(world, "order-1", [("stock", "mug", -3), ("usage", "ann", 1)])
    clock.pass_s(61)
    assert count(world, "order-1", [("stock", "mug", -3), ("usage", "ann", 1)]) == (body(2, 2), False)
    with pytest.raises(LimitReachedError) as error:
        count(world, "order-2", [("stock", "mug", -3)])
    assert error.value.left == 2
    assert order_tallies(world) == [2, 0, 1]


def test_a_counter_that_takes_no_changes_gives_the_same_reason_to_a_change_a_void_and_a_batch() -> None:
    refused_counters = [
        (counter, error.detail)
        for counter in counters.COUNTERS.values()
        if (error := fields.refusal_unless_counts(counter, CHANGES))
    ]
    assert len(refused_counters) > 4
    for counter, reason in refused_counters:
        for refusal_of in (operations._refusal_of_void, operations._refusal_of_batch, _refusal_of_change):
            error = refusal_of(counter)
            assert error
            assert error.detail == reason
        with pytest.raises(InvalidInputError, match=re.escape(reason)):
            batch.parse_batch([{"counter": counter.name, "id": "x"}], counters.COUNTERS, time.time(), soon=False)


@pytest.mark.parametrize(
    ("entry", "soon", "field", "reason"),
    [
        ({"counter": "ticket", "id": "x"}, False, "changes[1].counter", "numbered"),
        ({"counter": "likes", "id": "x", "amount": 1}, False, "changes[1].counter", "likes counts children: put"),
        ({"counter": "visits", "id": "x", "amount": 1}, False, "changes[1].counter", "visits counts pages: POST"),
        ({"counter": "nothing", "id": "x"}, False, "changes[1].counter", "must name a counter"),
        ({"counter": ["plays"], "id": "x"}, False, "changes[1].counter", "must name a counter"),
        ({"id": "x"}, False, "changes[1].counter", "must name a counter"),
        ({"counter": "plays", "id": "a#b"}, False, "changes[1].id", "must be 1 to 256"),
        ({"counter": "plays", "id": "x", "amount": 2}, False, "changes[1].amount", "moves by 1"),
        ({"counter": "usage", "id": "x"}, False, "changes[1].amount", "is missing"),
        ({"counter": "usage", "id": "x", "amount": True}, False, "changes[1].amount", "whole number"),
        ({"counter": "usage", "id": "x", "amount": 1, "key": "k"}, False, "changes[1]", "no field 'key'"),
        ({"counter": "stock", "id": "x", "amount": 1}, True, "changes[1].counter", "visible now"),
        ({"counter": "one", "id": "x", "amount": 1}, True, "changes[1].counter", "visible now"),
    ],
)
def test_the_error_names_the_field_of_an_entry_that_cannot_be_part_of_a_batch(
    entry: dict[str, Any], soon: bool, field: str, reason: str
) -> None:
    with pytest.raises(InvalidInputError, match=reason) as error:
        batch.parse_batch([{"counter": "plays", "id": "mug"}, entry], DECLARED, time.time(), soon=soon)
    assert error.value.field == field


def test_a_retired_counter_refuses_the_whole_batch_and_a_batch_counted_before_is_replayed(world: World) -> None:
    stock(world, 3)
    count(world, "order-1", ORDER)
    retired = DECLARED | {"usage": replace(USAGE, retired=True)}
    assert count(world, "order-1", ORDER, declared=retired) == (body(3, 3), True)
    with pytest.raises(CounterRetiredError) as error:
        count(world, "order-2", ORDER, declared=retired)
    assert error.value.members == {"entry": 2, "counter": "usage", "id": "ann"}
    assert order_tallies(world) == [2, 1, 1]


def test_a_retry_after_midnight_is_a_replay_of_the_period_of_the_first_try(world: World) -> None:
    changes = [("usage", "ann", 1), ("calls", "ann", 3)]
    midnight_s = (time.time() // DAY_S + 1) * DAY_S
    assert count(world, "job-1", changes, now_s=midnight_s - 1) == (body(2, 2), False)
    assert count(world, "job-1", changes, now_s=midnight_s + 1) == (body(2, 2), True)
    today = time.strftime("%Y-%m-%d", time.gmtime(midnight_s - 1))
    assert world.tally(CALLS, f"ann#{today}") == 3
    with pytest.raises(LimitReachedError) as error:
        count(world, "job-2", changes, now_s=midnight_s - 1)
    members = {"entry": 1, "counter": "calls", "id": "ann", "period": today, "left": 2}
    assert error.value.members == members | {"retry_after_s": error.value.retry_after_s}
    assert 0 < (error.value.retry_after_s or 0) <= DAY_S
    assert count(world, "job-2", changes, now_s=midnight_s + 1) == (body(2, 2), False)


# ---- faults ----


def test_after_a_failed_condition_beside_a_conflict_the_retry_decides_and_a_receipt_is_a_replay(world: World) -> None:
    stock(world, 3)
    # The receipt is write 0, then come stock, plays and usage.
    sold_out = {"qty": {"N": "0"}, "version": {"N": "1"}}
    refused = faults.condition_and_conflict(failed_at=1, conflict_at=3, item=sold_out)
    world.proxy.plan = faults.script({"TransactWriteItems": [refused]})
    assert count(world, "order-1", ORDER) == (body(3, 3), False)
    assert order_tallies(world) == [2, 1, 1]
    (receipt,) = [receipt for receipt in world.receipts() if "counter" not in receipt]  # a batch has several counters
    world.proxy.clear_requests()
    counted_before = faults.condition_and_conflict(failed_at=0, conflict_at=2, item=receipt)
    world.proxy.plan = faults.script({"TransactWriteItems": [counted_before]})
    assert count(world, "order-1", ORDER) == (body(3, 3), True)
    assert len(world.requests()) == 1, "the batch is not sent a second time"


@pytest.mark.parametrize("fault", [faults.CONFLICT, faults.THROTTLED_TRANSACTION])
def test_a_hot_batch_whose_changes_may_all_spill_writes_one_receipt_and_no_tally(
    world: World, fault: faults.Fault
) -> None:
    world.proxy.plan = faults.always(fault, "TransactWriteItems")
    assert count(world, "feed", plays_of(3)) == (body(30, 3, "soon"), False)
    assert (len(world.receipts()), world.items()) == (1, [])
    assert [world.tally_after_rollup(id_=f"video-{number}") for number in range(3)] == [10, 10, 10]


def test_a_hot_batch_moves_tallies_with_limits_now_and_spills_its_other_changes_in_the_same_receipt(
    world: World, streams: EngineStreams
) -> None:
    stock(world, 3)
    for partition in ("VID#mug", "USER#ann"):  # of plays and usage
        world.store.breaker.trip(partition)
    world.proxy.clear_requests()
    assert count(world, "order-1", ORDER) == (body(3, 3, "soon"), False)
    (request,) = world.requests("TransactWriteItems")
    assert len(request["TransactItems"]) == 2, "the receipt and the stock"
    assert order_tallies(world) == [2, 0, 0]
    streams.drain()
    assert (order_tallies(world), streams.drift_by_tally()) == ([2, 1, 1], {})
    streams.drain()
    assert order_tallies(world) == [2, 1, 1]


def test_50_orders_at_once_for_20_mugs_sell_20_and_refuse_30_whatever_fails(
    world: World, streams: EngineStreams
) -> None:
    """Stock, plays and usage move by the same number of orders. The rollup adds the plays and usage that spill."""
    stock(world, 20)
    world.proxy.strip_tokens = True
    mix = {
        faults.LOSE_RESPONSE: 0.05, faults.FAIL_BEFORE: 0.03, faults.FAIL_AFTER: 0.03, faults.CONFLICT: 0.05,
        faults.condition_and_conflict(failed_at=1, conflict_at=2, item={"qty": {"N": "0"}}): 0.03,
        faults.THROTTLED_TRANSACTION: 0.02,
    }  # fmt: skip
    world.proxy.plan = faults.random_faults(10, {"TransactWriteItems": mix, "PutItem": {faults.LOSE_RESPONSE: 0.2}})

    def order(number: int) -> str:
        try:
            retry_until_final(partial(count, world, f"order-{number}", ORDER))
        except LimitReachedError as error:
            return f"refused: entry {error.members['entry']}, {error.left} left"
        return "sold"

    answers = Multiset(run_together([partial(order, number) for number in range(50)]))
    assert answers == {"sold": 20, "refused: entry 0, 0 left": 30}
    assert world.proxy.count_injected(faults.LOSE_RESPONSE) > 0
    streams.drain()
    assert order_tallies(world) == [0, 20, 20]
    assert sum("counter" not in receipt for receipt in world.receipts()) == 20, "receipts of batches"
    assert streams.drift_by_tally() == {}
