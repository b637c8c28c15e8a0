"""A number stays within its floor and its ceiling, no amount is lost, and no number is given out twice."""

from __future__ import annotations

from collections import Counter as Multiset
from functools import partial
from itertools import chain
from typing import Any

import pytest

import counters
from tally.counter import Counter
from tally.counting import tallies
from tally.dynamo.clock import CLOCK_DIFFERENCE_S_MAX
from tally.errors import KeyReusedError, LimitReachedError, PreconditionFailedError, StoreUnreachableError
from tests import faults
from tests.invariants.counting import ITEM, Counting, buy, new_key, refusal
from tests.invariants.simulation import Clock
from tests.invariants.threads import run_together
from tests.invariants.world import FAULT_MIX, before_transactions, retry_until_final

SEATS = Counter("seats", prefix="HALL", sort_key="SEATS", attribute="taken", floor=0, ceiling=10)
LIVES = Counter("lives", prefix="GAME", sort_key="LIVES", attribute="lives", start=3, delta=-1, floor=0)
NEGATIVE = Counter("negative", prefix="USER", sort_key="N", attribute="n", start=-5, floor=-10, ceiling=-1)
BESIDE_USAGE = Counter("credits", prefix=counters.USAGE.prefix, sort_key="CREDITS", attribute="credits", floor=0)


def test_100_of_200_buyers_at_once_buy_the_100_in_stock_and_100_are_refused(counting: Counting) -> None:
    counting.stock(100)
    counting.world.proxy.strip_tokens = True
    counting.world.proxy.plan = faults.random_faults(200, {"TransactWriteItems": {faults.LOSE_RESPONSE: 0.10}})
    outcomes = run_together([partial(buy, counting, counters.STOCK, -1) for _ in range(200)])
    assert Multiset(type(outcome) for outcome in outcomes) == {dict: 100, int: 100}
    assert {outcome for outcome in outcomes if isinstance(outcome, int)} == {0}
    assert counting.stored(counters.STOCK) == 0
    assert len(counting.world.receipts()) == 101  # one receipt of the stock, and one of each sale
    assert counting.world.proxy.count_injected(faults.LOSE_RESPONSE) > 10


@pytest.mark.parametrize(
    ("counter", "moves", "numbers", "left_after_refusals"),
    [
        (SEATS, [4, 4, 4, 2, 1, -11, -10, -1], [4, 8, 8, 10, 10, 10, 0, 0], {2: 2, 4: 0, 5: 10, 7: 0}),
        (LIVES, [-1, -1, -1, -1], [2, 1, 0, 0], {3: 0}),
        (NEGATIVE, [5, 4, 1, -10, -9], [-5, -1, -1, -1, -10], {0: 4, 2: 0, 3: 9}),
        (counters.STOCK, [-1, 3, -4, -3], [0, 3, 3, 0], {0: 0, 2: 3}),
    ],
    ids=lambda value: value.name if isinstance(value, Counter) else "",
)
def test_a_number_stays_within_floor_and_ceiling_and_a_refusal_has_the_amount_left(
    counting: Counting, counter: Counter, moves: list[int], numbers: list[int], left_after_refusals: dict[int, int]
) -> None:
    """`numbers`: the number after each move. `left_after_refusals`: which moves are refused, and their `left`."""
    for turn, (amount, number) in enumerate(zip(moves, numbers, strict=True)):
        if turn in left_after_refusals:
            error = refusal(partial(counting.increment, counter, amount))
            assert isinstance(error, LimitReachedError)
            assert error.members == {"left": left_after_refusals[turn]}
        else:
            counting.increment(counter, amount)
        assert counting.stored(counter) == number, turn
    assert counting.read(counter)["value"] == numbers[-1]


def test_a_refusal_leaves_no_receipt_so_the_same_key_counts_after_restocking(counting: Counting) -> None:
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


def test_a_counter_with_a_floor_keeps_one_shard_beside_a_hot_counter_with_the_same_partition_key(
    counting: Counting,
) -> None:
    spread = counting.world.store.spread
    for _ in range(4):
        spread.widen(counters.USAGE.partition_start + ITEM, counters.USAGE.max_shards)
    counting.increment(BESIDE_USAGE, 5)
    for _ in range(4):
        counting.increment(BESIDE_USAGE, -1)
    spread.widen(BESIDE_USAGE.partition_start + ITEM, BESIDE_USAGE.max_shards)
    assert counting.world.shards(BESIDE_USAGE, ITEM) == {"CREDITS": 1}
    assert spread.width(counters.USAGE.partition_start + ITEM) == 16
    assert isinstance(refusal(partial(counting.increment, BESIDE_USAGE, -2)), LimitReachedError)


def test_the_receipts_of_increments_and_settings_add_up_to_the_number(counting: Counting) -> None:
    """The judge compares the number with the receipts, so the two must agree under faults, too."""
    counting.world.proxy.strip_tokens = True
    mix = {faults.LOSE_RESPONSE: 0.1, faults.CONFLICT: 0.2, faults.FAIL_BEFORE: 0.05, faults.FAIL_AFTER: 0.05}
    counting.world.proxy.plan = faults.random_faults(7, {"TransactWriteItems": mix})
    for value in (41, 7, 7, 0, 12):
        retry_until_final(partial(counting.increment, counters.STOCK, 5, new_key()))
        version = counting.read(counters.STOCK)["version"]
        retry_until_final(partial(counting.set, counters.STOCK, value, version))
        assert counting.stored(counters.STOCK) == counting.sum_of_receipts() == value


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
def test_a_counter_that_changes_between_the_read_and_the_commit_is_not_set(counting: Counting, version: int) -> None:
    if version:
        counting.stock(41)
    receipts = counting.world.receipts()
    key: dict[str, Any] = {"PK": {"S": counters.STOCK.partition_start + ITEM}, "SK": {"S": counters.STOCK.shard_key(0)}}
    moved_item = {**key, counters.STOCK.attribute: {"N": "7"}, "version": {"N": str(version + 1)}}
    counting.world.proxy.clear_requests()
    counting.world.proxy.plan = before_transactions({0: lambda: counting.world.put(moved_item)})
    error = refusal(partial(counting.set, counters.STOCK, 42, version, "key-1"))
    assert isinstance(error, PreconditionFailedError)
    assert error.members == {"version": version + 1}
    assert counting.stored(counters.STOCK) == 7
    assert counting.world.receipts() == receipts


def test_a_set_without_a_key_uses_the_version_as_the_key_of_each_caller(counting: Counting) -> None:
    counting.stock(41)
    assert counting.set(counters.STOCK, 42, 1)[1] is False
    assert counting.set(counters.STOCK, 42, 1)[1] is True
    set_ = partial(counting.set, counters.STOCK)
    for act in (partial(set_, 43, 1), partial(set_, 42, 1, caller="bob")):
        error = refusal(act)
        assert isinstance(error, PreconditionFailedError)
        assert error.version == 2
    body = {"counter": "stock", "id": ITEM, "value": 42, "version": 2, "limit": 0, "left": 42}
    assert counting.read(counters.STOCK) == body


def test_a_key_that_was_used_with_another_value_or_version_is_refused(counting: Counting) -> None:
    counting.set(counters.STOCK, 42, 0, "key-1")
    assert isinstance(refusal(partial(counting.set, counters.STOCK, 43, 0, "key-1")), KeyReusedError)
    assert isinstance(refusal(partial(counting.set, counters.STOCK, 42, 1, "key-1")), KeyReusedError)
    body = {"counter": "stock", "id": ITEM, "value": 42, "version": 1, "limit": 0, "left": 42}
    assert counting.read(counters.STOCK) == body


@pytest.mark.parametrize(("counter", "value"), [(counters.STOCK, -1), (SEATS, 11), (SEATS, -1), (NEGATIVE, 0)])
def test_a_value_outside_the_limits_is_not_set(counting: Counting, counter: Counter, value: int) -> None:
    assert isinstance(refusal(partial(counting.set, counter, value, 0)), LimitReachedError)
    assert counting.world.items() == counting.world.receipts() == []


PRIZES = 50
DRAW = Counter(
    "prizes", prefix="PRIZE", sort_key="LEFT", attribute="left", start=PRIZES, delta=-1, floor=0, numbered=True
)
PAIRS = Counter(
    "pairs", prefix="PAIR", sort_key="LEFT", attribute="left", start=5, delta=-2, floor=0, ceiling=5, numbered=True
)
ROWS = Counter("rows", prefix="HALL", sort_key="ROWS", attribute="row", delta=1, ceiling=3, numbered=True)


def test_50_of_60_entries_in_a_contest_get_different_numbers_and_number_0_is_the_last(counting: Counting) -> None:
    counting.world.proxy.strip_tokens = True
    counting.world.proxy.plan = faults.random_faults(50, {"TransactWriteItems": FAULT_MIX})
    callers = 12
    keys = [f"key-{number}" for number in range(PRIZES + 10)]

    def enter(keys_of_caller: list[str]) -> list[dict[str, Any] | int]:
        return [buy(counting, DRAW, None, key) for key in keys_of_caller]

    entries = run_together([partial(enter, keys[caller::callers]) for caller in range(callers)])
    outcomes = list(chain(*entries))
    winners = [outcome for outcome in outcomes if isinstance(outcome, dict)]
    assert sorted(body["number"] for body in winners) == list(range(PRIZES))
    assert [body["number"] for body in winners if body["last"]] == [0]
    assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [0] * 10
    assert counting.stored(DRAW) == 0
    assert [enter(keys[caller::callers]) for caller in range(callers)] == entries, "a retry gets the first answer"
    assert counting.stored(DRAW) == 0


def test_a_retry_of_the_winner_is_a_replay_until_its_receipt_expires_though_no_number_is_left(
    counting: Counting, clock: Clock
) -> None:
    counting.set(DRAW, 1, 0)  # one prize is left: the number 0
    body, replayed = counting.increment(DRAW, key="key-1")
    assert (body["number"], body["last"], replayed) == (0, True, False)
    assert counting.increment(DRAW, key="key-1") == (body, True)
    for key, caller in (("key-2", "ann"), ("key-1", "bob")):
        error = refusal(partial(counting.increment, DRAW, key=key, caller=caller))
        assert isinstance(error, LimitReachedError)
        assert error.members == {"left": 0}
    for fault in (faults.LOSE_RESPONSE, faults.TRUNCATE):
        counting.world.proxy.plan = faults.always(fault, "GetItem")  # the read of the receipt fails
        with pytest.raises(StoreUnreachableError):
            counting.increment(DRAW, key="key-1")
    counting.world.proxy.plan = faults.no_faults
    clock.pass_s(counting.world.store.settings.receipt_ttl_s - 5)
    assert counting.increment(DRAW, key="key-1")[1] is True
    clock.pass_s(CLOCK_DIFFERENCE_S_MAX + 10)
    assert isinstance(refusal(partial(counting.increment, DRAW, key="key-1")), LimitReachedError)


@pytest.mark.parametrize(
    ("counter", "numbers", "amount_left"), [(PAIRS, [3, 1], 1), (ROWS, [1, 2, 3], 0)], ids=["delta -2", "to a ceiling"]
)
def test_the_last_number_is_the_number_after_which_no_change_fits(
    counting: Counting, counter: Counter, numbers: list[int], amount_left: int
) -> None:
    bodies = [counting.increment(counter)[0] for _ in numbers]
    assert [body["number"] for body in bodies] == numbers
    assert [body["last"] for body in bodies] == [False] * (len(numbers) - 1) + [True]
    error = refusal(partial(counting.increment, counter))
    assert isinstance(error, LimitReachedError)
    assert error.members == {"left": amount_left}
    assert counting.stored(counter) == numbers[-1]


@pytest.mark.parametrize(
    ("counter", "used_number", "free_number"), [(counters.TICKET, 1, 4), (DRAW, PRIZES - 2, PRIZES - 4)]
)
def test_compare_and_set_gives_no_number_out_twice(
    counting: Counting, counter: Counter, used_number: int, free_number: int
) -> None:
    numbers = [counting.increment(counter)[0]["number"] for _ in range(3)]
    error = refusal(partial(counting.set, counter, used_number, 3))
    assert isinstance(error, LimitReachedError)
    assert error.members == {"field": "value"}
    direction = "up" if counter is counters.TICKET else "down"
    assert f"has given out its numbers {direction} to {numbers[-1]}" in str(error)
    assert counting.stored(counter) == numbers[-1]
    assert len(counting.world.receipts()) == 3
    assert counting.set(counter, numbers[-1], 3)[1] is False  # the present number is accepted
    assert counting.set(counter, free_number, 4)[1] is False
    assert counting.set(counter, free_number, 4)[1] is True
    numbers += [counting.increment(counter)[0]["number"] for _ in range(3)]
    assert len(set(numbers)) == 6


def test_a_numbered_counter_can_be_set_before_its_first_number(counting: Counting) -> None:
    counting.set(DRAW, PRIZES + 10, 0)
    assert counting.increment(DRAW)[0]["number"] == PRIZES + 9
    assert isinstance(refusal(partial(counting.set, DRAW, PRIZES + 10, 2)), LimitReachedError)


def test_a_call_whose_number_another_call_has_taken_gets_the_next_number_without_a_second_read(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        counting.increment(counters.TICKET)
    counting.world.proxy.clear_requests()
    stale_state = tallies.State(1, 1)  # the state before the last two increments
    monkeypatch.setattr(tallies, "read_state", lambda *_: stale_state)
    assert counting.increment(counters.TICKET)[0]["number"] == 4
    assert len(counting.world.requests("TransactWriteItems")) == 2
