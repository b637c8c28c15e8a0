"""A batch of increments: packed into few transactions, and still each counted once, by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import counters
import handlers
from tally.counter import Counter
from tally.counting import batches, tallies
from tally.counting import increments as increments_core
from tally.counting.increments import Increment
from tally.counting.receipts import Counted
from tally.dev import faults
from tally.dynamo.client import Call
from tally.errors import (
    KeyReusedError,
    StoreRefusedError,
)
from tests.contexts import Context
from tests.invariants.counting import ITEM
from tests.invariants.world import VIDEO, World

BODY = {"video_id": VIDEO, "counted": True, "visible": "now"}
ONE_SHARD = Counter("one", prefix="ONE", sort_key="TOTAL", attribute="number", max_shards=1)


def play(key: str, id_: str = VIDEO, amount: int = 1, counter: Counter = counters.PLAYS) -> Increment:
    body = {"video_id": id_, "counted": True}
    if counter.numbered:
        body = {"counter": counter.name, "id": id_, "counted": True}
    return Increment(counter, id_, amount, "play" if counter is counters.PLAYS else "increment", key, body)


def plays(number: int, id_: str = VIDEO, start: int = 0) -> list[Increment]:
    return [play(f"key-{start + place}", id_) for place in range(number)]


def count(world: World, increments: Sequence[Increment], **how: Any) -> list[batches.Result]:
    """Count a batch, each entry in a call of its own as the entry point makes them."""
    return batches.count([(world.call("ann", **how), increment) for increment in increments])


def slugs(results: Sequence[batches.Result]) -> list[str]:
    """What became of each: counted, replayed, or the error's slug."""
    named = {False: "counted", True: "replayed"}
    return [named[result[1]] if isinstance(result, tuple) else getattr(result, "slug", "bug") for result in results]


def test_90_plays_of_one_video_are_one_transaction_of_about_2_write_units_each(world: World) -> None:
    with world.capacity() as measured:
        results = count(world, plays(90))
    assert results == [(BODY, False)] * 90
    assert world.shards() == {"STATS#TOTAL": 90}
    assert len(world.receipts()) == 90
    ((name, units),) = measured
    assert name == "TransactWriteItems"
    assert units == 182.0  # 2 for each receipt and 2 for the tally; one by one they would be 360


def test_more_than_100_items_are_split_over_transactions_that_hold_100_at_most(world: World) -> None:
    increments = [play(f"key-{number}", f"v{number % 40}") for number in range(120)]
    assert count(world, increments) == [({**increment.body, "visible": "now"}, False) for increment in increments]
    sizes = [len(request["TransactItems"]) for request in world.sent("TransactWriteItems")]
    assert max(sizes) <= 100
    assert len(sizes) == 2
    assert {world.tally(id_=f"v{number}") for number in range(40)} == {3}


def test_amounts_for_one_tally_are_summed_and_every_tally_is_written_once(world: World) -> None:
    increments = [
        play("a", "v1", 5, counters.USAGE),
        play("b", "v2", 7, counters.USAGE),
        play("c", "v1", -2, counters.USAGE),
        play("d", "v1"),
    ]
    assert slugs(count(world, increments)) == ["counted"] * 4
    (request,) = world.sent("TransactWriteItems")
    assert [next(iter(write)) for write in request["TransactItems"]] == ["Put"] * 4 + ["Update"] * 3
    tallies_ = [world.tally(counters.USAGE, "v1"), world.tally(counters.USAGE, "v2"), world.tally(id_="v1")]
    assert tallies_ == [3, 7, 1]
    amounts = {receipt["amount"]["N"] for receipt in world.receipts()}
    assert amounts == {"5", "7", "-2", "1"}


@pytest.mark.parametrize(
    ("odd", "outcome"),
    [
        (play("old"), "replayed"),
        (play("old", amount=2), "key-reused"),
        (play("key-3"), "replayed"),
        (play("key-3", amount=2), "key-reused"),
        (play("late", "x", -1, counters.STOCK), "limit-reached"),
        (play("", amount=2), "not-committed"),
    ],
    ids=["replayed", "key reused", "twice in the batch", "reused in the batch", "refused", "no key"],
)
@pytest.mark.parametrize("place", [0, 10])
def test_one_odd_entry_does_not_fail_the_others(world: World, odd: Increment, outcome: str, place: int) -> None:
    count(world, [play("old")])
    others = plays(10)
    results = count(world, [*others[:place], odd, *others[place:]])
    expected = ["counted"] * 10
    if odd.key == "key-3" and place == 0:  # then it is the first one of that key
        expected[3], outcome = outcome, "counted"
    assert slugs(results) == [*expected[:place], outcome, *expected[place:]]
    assert world.tally() == (12 if (odd.amount, outcome) == (2, "counted") else 11)
    assert len(world.receipts()) == 11


def test_a_key_that_comes_twice_in_a_batch_leaves_the_others_packed(world: World) -> None:
    assert slugs(count(world, [*plays(10), play("key-3"), play("key-3", amount=2)])) == [
        *["counted"] * 10, "replayed", "key-reused",
    ]  # fmt: skip
    assert [len(request["TransactItems"]) for request in world.sent("TransactWriteItems")] == [11, 2, 2]


def test_a_pack_that_was_lost_does_not_fail_the_next_one(world: World) -> None:
    world.proxy.plan = faults.script({"TransactWriteItems": [faults.FAIL_BEFORE] * 3})
    results = count(world, plays(150))
    assert slugs(results) == ["unreachable"] * 99 + ["counted"] * 51
    assert world.tally() == 51


@pytest.mark.parametrize("fault", [faults.CONFLICT, faults.answer("TransactionConflictException")], ids=str)
def test_a_pack_that_meets_others_is_tried_again_and_spreads(world: World, fault: faults.Fault) -> None:
    world.proxy.plan = faults.script({"TransactWriteItems": [fault] * 2})
    assert slugs(count(world, plays(20))) == ["counted"] * 20
    assert world.tally() == 20
    assert world.store.spread.shards(counters.PLAYS.partition_start + VIDEO) > 1


def test_a_conflict_beside_a_receipt_that_stands_replays_it_and_counts_the_others(world: World) -> None:
    count(world, plays(1))
    stands = world.receipt()
    world.proxy.plan = faults.script({"TransactWriteItems": [faults.mixed(0, -1, stands), faults.CONFLICT]})
    assert slugs(count(world, plays(5))) == ["replayed"] + ["counted"] * 4
    assert world.tally() == 5


def test_a_tally_that_holds_no_number_fails_its_own_entries_only(world: World) -> None:
    world.put({"PK": {"S": "VID#broken"}, "SK": {"S": "STATS#TOTAL"}, "play_count": {"S": "many"}})
    results = count(world, [*plays(5), play("x", "broken"), *plays(5, "v2", 10)])
    assert [type(result) for result in results] == [Counted] * 5 + [StoreRefusedError] + [Counted] * 5
    assert (world.tally(), world.tally(id_="v2")) == (5, 5)
    assert len(world.receipts()) == 10


def test_a_bug_fails_the_entry_that_meets_it_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    single = increments_core.count

    def meet(call: Call, change: Increment) -> tuple[dict[str, Any], bool]:
        if change.id == "bug":
            raise KeyError("bug")
        return single(call, change)

    monkeypatch.setattr(increments_core, "count", meet)
    stock = [play(f"s{number}", id_, 1, counters.STOCK) for number, id_ in enumerate(("a", "bug", "b"))]
    results = count(world, [*plays(3), *stock])
    assert [type(result) for result in results] == [Counted] * 4 + [KeyError, Counted]
    assert (world.tally(), world.tally(counters.STOCK, "a"), world.tally(counters.STOCK, "b")) == (3, 1, 1)


def test_a_counter_of_one_shard_keeps_it_when_packed_and_its_version_moves(world: World) -> None:
    for _ in range(3):
        world.store.spread.conflict(ONE_SHARD.partition_start + "v1", 16)
    assert slugs(count(world, [play(f"k{number}", "v1", 2, ONE_SHARD) for number in range(5)])) == ["counted"] * 5
    assert world.shards(ONE_SHARD, "v1") == {"TOTAL": 10}
    assert tallies.read_state(world.call(), ONE_SHARD, "v1").version == 1


@pytest.mark.parametrize("counter", [counters.STOCK, counters.TICKET, counters.CONTEST])
def test_counters_whose_number_decides_are_not_packed(world: World, counter: Counter) -> None:
    amount = counter.delta or 1
    assert slugs(count(world, [play(f"k{number}", "v1", amount, counter) for number in range(3)])) == ["counted"] * 3
    assert all(len(request["TransactItems"]) == 2 for request in world.sent("TransactWriteItems"))
    assert world.tally(counter, "v1") == counter.start + 3 * amount


def test_receipts_of_a_pack_are_those_of_single_changes(world: World) -> None:
    assert slugs(count(world, plays(3))) == ["counted"] * 3
    for increment in plays(3):
        assert world.play(increment.key or "", call=world.call("ann")) == (BODY, True)
    world.play("single", call=world.call("ann"))
    assert slugs(count(world, [play("single"), play("new")])) == ["replayed", "counted"]
    assert isinstance(count(world, [play("single", amount=2), play("more")])[0], KeyReusedError)
    packed, single = (sorted(receipt) for receipt in world.receipts()[:2])
    assert packed == single


def test_what_is_set_behind_increments_in_one_batch_sees_them(world: World) -> None:
    named = {"counter": "stock", "id": ITEM}
    more = [{"operation": "increment", **named, "amount": 1, "idempotency_key": f"key-{number}"} for number in range(3)]
    put = {"operation": "set_counter", **named, "value": 50, "version": 3}
    answer = handlers.entry("increments", world.store)(
        {"batch": [{**one, "caller": "shop"} for one in [*more, put]]}, Context()
    )
    assert [result["status"] for result in answer["results"]] == [200] * 4
    assert world.tally(counters.STOCK, ITEM) == 50


# The time


def slow(world: World) -> World:
    """The world with a clock that each request moves by 60 ms."""
    return replace(world, store=replace(world.store, clock=lambda: 0.060 * len(world.proxy.requests)))


def takes(number: int, counter: Counter = counters.STOCK) -> list[Increment]:
    return [play(f"take-{place}", "x", counter.delta or -1, counter) for place in range(number)]


@pytest.mark.parametrize(("counter", "requests"), [(counters.STOCK, 1), (counters.TICKET, 2)], ids=["stock", "ticket"])
def test_a_batch_of_bounded_counters_ends_in_time_and_gets_further_each_time(
    world: World, counter: Counter, requests: int
) -> None:
    count(world, [play("in", "x", 1000, counters.STOCK)])
    world, done = slow(world), [0]
    while done[-1] < 100:
        deadline_s = world.store.clock() + 2.5
        results = count(world, takes(100, counter), deadline_s=deadline_s)
        assert world.store.clock() < deadline_s
        outcomes = slugs(results)
        assert set(outcomes) <= {"counted", "replayed", "busy"}
        done.append(100 - outcomes.count("busy"))
        assert done[-1] >= min(100, done[-2] + 40 // requests - 3)  # 41 requests fit: two are for what was done
        assert outcomes[: done[-2]] == ["replayed"] * done[-2]
        assert outcomes[done[-2] :] == ["counted"] * (done[-1] - done[-2]) + ["busy"] * (100 - done[-1])
    assert len(done) <= 3 + 2 * requests
    assert world.tally(counter, "x") == (900 if counter is counters.STOCK else 100)
    assert slugs(count(world, takes(100, counter), deadline_s=world.store.clock() + 2.5)) == ["replayed"] * 100


def test_packs_end_in_time_too(world: World) -> None:
    world = slow(world)
    assert slugs(count(world, plays(297), deadline_s=0.1)) == ["counted"] * 198 + ["busy"] * 99
    assert len(world.sent()) == 2
    assert world.tally() == 198
    again = slugs(count(world, plays(297), deadline_s=world.store.clock() + 1))
    assert again == ["replayed"] * 198 + ["counted"] * 99
    assert world.tally() == 297


def test_replays_that_cannot_be_read_together_find_their_own_receipts(world: World) -> None:
    stocked = [play(f"k{number}", "x", 1, counters.STOCK) for number in range(3)]
    count(world, stocked)
    world.proxy.plan = faults.always(faults.answer("AccessDeniedException"), "BatchGetItem")
    assert slugs(count(world, stocked)) == ["replayed"] * 3
    assert world.tally(counters.STOCK, "x") == 3


@pytest.mark.parametrize("expiration", [{"N": "1"}, None], ids=["expired", "none"])
def test_replays_that_are_read_together_are_judged_as_those_that_are_not(
    world: World, expiration: dict[str, str] | None
) -> None:
    stocked = [play(f"k{number}", "x", 1, counters.STOCK) for number in range(4)]
    for increment in stocked[:3]:
        count(world, [increment])
        (receipt,) = (item for item in world.receipts() if item["nonce"] not in [{"S": "old"}, {"S": "new"}])
        changed = (
            {"expiration": expiration, "nonce": {"S": "old"}} if increment is stocked[2] else {"nonce": {"S": "new"}}
        )
        receipt = {name: value for name, value in (receipt | changed).items() if value}
        world.put_receipt(receipt)
    stocked[1] = stocked[1]._replace(amount=2)
    last = "counted" if expiration else "not-committed"
    assert slugs(count(world, stocked)) == ["replayed", "key-reused", last, "counted"]
    assert world.tally(counters.STOCK, "x") == 3 + 1 + bool(expiration)


def test_a_first_turn_reads_no_receipts_and_a_second_one_reads_them_once_at_half_a_unit_each(world: World) -> None:
    stocked = [play(f"k{number}", "x", 1, counters.STOCK) for number in range(21)]
    with world.capacity() as measured:
        count(world, stocked)
    assert measured == [("TransactWriteItems", 4.0)] * 21
    with world.capacity() as measured:
        assert slugs(count(world, stocked)) == ["replayed"] * 21
    assert [name for name, _ in measured] == ["TransactWriteItems", "BatchGetItem"]
    assert measured[1][1] == 10.0
