"""Floors, ceilings and amounts: no number goes where it must not, and none is lost, whoever races whom."""

from __future__ import annotations

from collections import Counter as Multiset
from functools import partial
from typing import Any

import pytest

import counters
from dev import faults
from tally.counter import Counter
from tally.errors import (
    KeyReusedError,
    LimitReachedError,
    PreconditionFailedError,
)
from tests.invariants.counting import ITEM, Counting, buy, new_key, refusal
from tests.invariants.threads import at_once
from tests.invariants.world import meanwhile, persist
from tests.tiers import in_long

SEATS = Counter("seats", prefix="HALL", sort_key="SEATS", attribute="taken", floor=0, ceiling=10)
LIVES = Counter("lives", prefix="GAME", sort_key="LIVES", attribute="lives", start=3, delta=-1, floor=0)
DEBT = Counter("debt", prefix="USER", sort_key="DEBT", attribute="debt", start=-5, floor=-10, ceiling=-1)
BESIDE_USAGE = Counter("credits", prefix=counters.USAGE.prefix, sort_key="CREDITS", attribute="credits", floor=0)
LOSSES = {"TransactWriteItems": {faults.LOSE_RESPONSE: 0.10}}


@pytest.mark.parametrize("lost", [True, *in_long([False])])
def test_200_buyers_at_once_of_100_in_stock_are_100_sold_and_100_refused(counting: Counting, lost: bool) -> None:
    counting.stock(100)
    counting.world.proxy.strip_tokens = lost
    counting.world.proxy.plan = faults.seeded(200, LOSSES) if lost else faults.no_faults
    outcomes = at_once([partial(buy, counting, counters.STOCK, -1) for _ in range(200)])
    assert Multiset(type(outcome) for outcome in outcomes) == {dict: 100, int: 100}
    assert {outcome for outcome in outcomes if isinstance(outcome, int)} == {0}
    assert counting.stored(counters.STOCK) == 0
    assert len(counting.world.receipts()) == 101  # the stocking, and one for each that was sold
    assert (counting.world.proxy.injected(faults.LOSE_RESPONSE) > 10) is lost


@pytest.mark.parametrize(
    ("counter", "moves", "ends", "lefts"),
    [
        (SEATS, [4, 4, 4, 2, 1, -11, -10, -1], [4, 8, 8, 10, 10, 10, 0, 0], {2: 2, 4: 0, 5: 10, 7: 0}),
        (LIVES, [-1, -1, -1, -1], [2, 1, 0, 0], {3: 0}),
        (DEBT, [5, 4, 1, -10, -9], [-5, -1, -1, -1, -10], {0: 4, 2: 0, 3: 9}),
        (counters.STOCK, [-1, 3, -4, -3], [0, 3, 3, 0], {0: 0, 2: 3}),
    ],
    ids=lambda value: value.name if isinstance(value, Counter) else "",
)
def test_a_number_stays_within_floor_and_ceiling_and_a_refusal_says_what_is_left(
    counting: Counting, counter: Counter, moves: list[int], ends: list[int], lefts: dict[int, int]
) -> None:
    for place, (amount, end) in enumerate(zip(moves, ends, strict=True)):
        if place in lefts:
            refused = refusal(partial(counting.increment, counter, amount))
            assert isinstance(refused, LimitReachedError)
            assert refused.members == {"left": lefts[place]}
        else:
            counting.increment(counter, amount)
        assert counting.stored(counter) == end, place
    assert counting.read(counter)["value"] == ends[-1]


def test_a_refusal_leaves_no_receipt_and_the_same_key_after_restocking_is_judged_afresh(counting: Counting) -> None:
    key = new_key()
    for _ in range(2):
        assert isinstance(refusal(partial(counting.increment, counters.STOCK, -3, key)), LimitReachedError)
    assert counting.world.receipts() == []
    assert counting.world.items() == []
    counting.stock(3)
    body, replayed = counting.increment(counters.STOCK, -3, key)
    assert (body["counted"], replayed) == (True, False)
    assert counting.increment(counters.STOCK, -3, key) == (body, True)
    assert isinstance(refusal(partial(counting.increment, counters.STOCK, -1, key)), KeyReusedError)
    assert counting.stored(counters.STOCK) == 0


def test_a_bounded_counter_beside_a_hot_one_of_the_same_key_keeps_its_one_shard_and_its_floor(
    counting: Counting,
) -> None:
    spread = counting.world.store.spread
    for _ in range(4):
        spread.conflict(counters.USAGE.partition_start + ITEM, counters.USAGE.max_shards)
    counting.increment(BESIDE_USAGE, 5)
    for _ in range(4):
        counting.increment(BESIDE_USAGE, -1)
    spread.conflict(BESIDE_USAGE.partition_start + ITEM, BESIDE_USAGE.max_shards)
    assert counting.world.shards(BESIDE_USAGE, ITEM) == {"CREDITS": 1}
    assert spread.shards(counters.USAGE.partition_start + ITEM) == 16
    assert isinstance(refusal(partial(counting.increment, BESIDE_USAGE, -2)), LimitReachedError)


def test_the_receipts_of_increments_and_settings_add_up_to_the_number(counting: Counting) -> None:
    """Whatever is in the way: the streams hold the number against what receipts say."""
    counting.world.proxy.strip_tokens = True
    some = {faults.LOSE_RESPONSE: 0.1, faults.CONFLICT: 0.2, faults.FAIL_BEFORE: 0.05, faults.FAIL_AFTER: 0.05}
    counting.world.proxy.plan = faults.seeded(7, {"TransactWriteItems": some})
    for value in (41, 7, 7, 0, 12):
        persist(partial(counting.increment, counters.STOCK, 5, new_key()))
        version = counting.read(counters.STOCK)["version"]
        persist(partial(counting.set, counters.STOCK, value, version))
        assert counting.stored(counters.STOCK) == counting.expected() == value


@pytest.mark.parametrize("counter", [counters.STOCK, SEATS, LIVES, counters.CONTEST, counters.TICKET])
def test_every_write_of_a_counter_moves_its_version_by_one(counting: Counting, counter: Counter) -> None:
    versions = [counting.read(counter)["version"]]
    for change in (
        partial(counting.increment, counter, counter.delta or 2),
        partial(counting.set, counter, 1, 1),
        partial(counting.increment, counter, counter.delta or -1),
    ):
        change()
        versions.append(counting.read(counter)["version"])
    assert versions == [0, 1, 2, 3]


@pytest.mark.parametrize("version", [0, 1])
def test_a_counter_that_moves_between_look_and_commit_is_not_set(counting: Counting, version: int) -> None:
    if version:
        counting.stock(41)
    receipts = counting.world.receipts()
    key: dict[str, Any] = {"PK": {"S": counters.STOCK.partition_start + ITEM}, "SK": {"S": counters.STOCK.shard_key(0)}}
    moved = {**key, counters.STOCK.attribute: {"N": "7"}, "version": {"N": str(version + 1)}}
    counting.world.proxy.forget()
    counting.world.proxy.plan = meanwhile({0: lambda: counting.world.put(moved)})
    failed = refusal(partial(counting.set, counters.STOCK, 42, version, "key-1"))
    assert isinstance(failed, PreconditionFailedError)
    assert failed.members == {"version": version + 1}
    assert counting.stored(counters.STOCK) == 7
    assert counting.world.receipts() == receipts


def test_without_a_key_the_version_is_the_key_of_each_caller(counting: Counting) -> None:
    counting.stock(41)
    assert counting.set(counters.STOCK, 42, 1)[1] is False
    assert counting.set(counters.STOCK, 42, 1)[1] is True
    set_ = partial(counting.set, counters.STOCK)
    for again in (partial(set_, 43, 1), partial(set_, 42, 1, caller="bob")):
        moved = refusal(again)
        assert isinstance(moved, PreconditionFailedError)
        assert moved.version == 2
    assert counting.read(counters.STOCK) == {"counter": "stock", "id": ITEM, "value": 42, "version": 2}


def test_a_key_that_set_another_value_is_refused(counting: Counting) -> None:
    counting.set(counters.STOCK, 42, 0, "key-1")
    assert isinstance(refusal(partial(counting.set, counters.STOCK, 43, 0, "key-1")), KeyReusedError)
    assert isinstance(refusal(partial(counting.set, counters.STOCK, 42, 1, "key-1")), KeyReusedError)
    assert counting.read(counters.STOCK) == {"counter": "stock", "id": ITEM, "value": 42, "version": 1}


@pytest.mark.parametrize(("counter", "value"), [(counters.STOCK, -1), (SEATS, 11), (SEATS, -1), (DEBT, 0)])
def test_a_value_out_of_the_limits_is_not_set(counting: Counting, counter: Counter, value: int) -> None:
    assert isinstance(refusal(partial(counting.set, counter, value, 0)), LimitReachedError)
    assert counting.world.items() == counting.world.receipts() == []


def test_compare_and_set_races_increments_and_no_change_is_lost(counting: Counting) -> None:
    """Whoever sets adds 100 to what it read; whoever increments adds 1."""

    def set_until_it_fits(number: int) -> None:
        while True:
            state = counting.read(counters.STOCK)
            try:
                counting.set(counters.STOCK, state["value"] + 100, state["version"], f"{number}-{state['version']}")
                return
            except PreconditionFailedError:
                continue

    def add() -> None:
        for _ in range(10):
            counting.increment(counters.STOCK, 1)

    at_once([*[partial(set_until_it_fits, number) for number in range(4)], add, add])
    assert counting.read(counters.STOCK) == {"counter": "stock", "id": ITEM, "value": 420, "version": 24}
