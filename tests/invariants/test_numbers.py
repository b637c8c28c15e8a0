"""Numbered counters: no number twice, none missing, each told again to whoever it was given to."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import counters
from dev import faults
from tally.counter import Counter
from tally.counting import tallies
from tally.errors import (
    KeyReusedError,
    LimitReachedError,
    StoreBusyError,
    StoreUnreachableError,
)
from tests.invariants.counting import ITEM, Clock, Counting, buy, refusal
from tests.invariants.threads import at_once
from tests.invariants.world import SOME_OF_ALL
from tests.tiers import in_long

PRIZES = 50
CONTEST = Counter(
    "prizes", prefix="PRIZE", sort_key="LEFT", attribute="left", start=PRIZES, delta=-1, floor=0, numbered=True
)
PAIRS = Counter(
    "pairs", prefix="PAIR", sort_key="LEFT", attribute="left", start=5, delta=-2, floor=0, ceiling=5, numbered=True
)
SEATS = Counter("rows", prefix="HALL", sort_key="ROWS", attribute="row", delta=1, ceiling=3, numbered=True)


@pytest.mark.parametrize(("fails", "callers"), [(True, 12), *in_long([(False, 60)])])
def test_of_60_in_a_contest_of_50_each_of_50_has_a_number_of_its_own_and_one_is_told_that_it_was_the_last(
    counting: Counting, fails: bool, callers: int
) -> None:
    counting.world.proxy.strip_tokens = fails
    counting.world.proxy.plan = faults.seeded(50, {"TransactWriteItems": SOME_OF_ALL}) if fails else faults.no_faults
    keys = [f"key-{number}" for number in range(PRIZES + 10)]

    def enter(own: list[str]) -> list[dict[str, Any] | int]:
        return [buy(counting, CONTEST, None, key) for key in own]

    entries = at_once([partial(enter, keys[caller::callers]) for caller in range(callers)])
    outcomes = [outcome for own in entries for outcome in own]
    winners = [outcome for outcome in outcomes if isinstance(outcome, dict)]
    assert sorted(body["number"] for body in winners) == list(range(PRIZES))
    assert [body["number"] for body in winners if body["last"]] == [0]
    assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [0] * 10
    assert counting.stored(CONTEST) == 0
    assert [enter(keys[caller::callers]) for caller in range(callers)] == entries
    assert counting.stored(CONTEST) == 0


def test_the_winner_is_told_so_again_when_nothing_is_left(counting: Counting) -> None:
    counting.set(CONTEST, 1, 0)
    body, replayed = counting.increment(CONTEST, key="key-1")
    assert (body["number"], body["last"], replayed) == (0, True, False)
    assert counting.increment(CONTEST, key="key-1") == (body, True)
    refused = refusal(partial(counting.increment, CONTEST, key="key-2"))
    assert isinstance(refused, LimitReachedError)
    assert refused.members == {"left": 0}
    assert isinstance(refusal(partial(counting.increment, CONTEST, key="key-1", caller="bob")), LimitReachedError)


def test_a_retry_at_the_end_whose_receipt_cannot_be_read_is_not_refused(counting: Counting) -> None:
    counting.set(CONTEST, 1, 0)
    counting.increment(CONTEST, key="key-1")
    for fault in (faults.LOSE_RESPONSE, faults.TRUNCATE):
        counting.world.proxy.plan = faults.always(fault, "GetItem")
        with pytest.raises(StoreUnreachableError):
            counting.increment(CONTEST, key="key-1")


def test_the_key_of_the_winner_is_told_so_as_long_as_its_receipt_lives(counting: Counting, clock: Clock) -> None:
    counting.set(CONTEST, 1, 0)
    counting.increment(CONTEST, key="key-1")
    clock.pass_s(counting.world.store.settings.receipt_ttl_s - 5)
    assert counting.increment(CONTEST, key="key-1")[1] is True
    clock.pass_s(10)
    assert isinstance(refusal(partial(counting.increment, CONTEST, key="key-1")), LimitReachedError)


@pytest.mark.parametrize(
    ("counter", "numbers", "left"), [(PAIRS, [3, 1], 1), (SEATS, [1, 2, 3], 0)], ids=["delta -2", "up to a ceiling"]
)
def test_the_last_is_the_one_after_which_no_step_fits(
    counting: Counting, counter: Counter, numbers: list[int], left: int
) -> None:
    bodies = [counting.increment(counter)[0] for _ in numbers]
    assert [body["number"] for body in bodies] == numbers
    assert [body["last"] for body in bodies] == [False] * (len(numbers) - 1) + [True]
    refused = refusal(partial(counting.increment, counter))
    assert isinstance(refused, LimitReachedError)
    assert refused.members == {"left": left}
    assert counting.stored(counter) == numbers[-1]


@pytest.mark.parametrize(("counter", "back", "ahead"), [(counters.TICKET, 1, 4), (CONTEST, PRIZES - 2, PRIZES - 4)])
def test_compare_and_set_gives_no_number_out_twice(counting: Counting, counter: Counter, back: int, ahead: int) -> None:
    numbers = [counting.increment(counter)[0]["number"] for _ in range(3)]
    refused = refusal(partial(counting.set, counter, back, 3))
    assert isinstance(refused, LimitReachedError)
    assert refused.members == {"field": "value"}
    assert f"has given out its numbers {'up' if counter is counters.TICKET else 'down'} to {numbers[-1]}" in str(
        refused
    )
    assert counting.stored(counter) == numbers[-1]
    assert len(counting.world.receipts()) == 3
    assert counting.set(counter, numbers[-1], 3)[1] is False  # where it stands
    assert counting.set(counter, ahead, 4)[1] is False
    assert counting.set(counter, ahead, 4)[1] is True
    numbers += [counting.increment(counter)[0]["number"] for _ in range(3)]
    assert len(set(numbers)) == 6


def test_a_numbered_counter_begins_where_it_is_set_before_its_first_number(counting: Counting) -> None:
    counting.set(CONTEST, PRIZES + 10, 0)
    assert counting.increment(CONTEST)[0]["number"] == PRIZES + 9
    assert isinstance(refusal(partial(counting.set, CONTEST, PRIZES + 10, 2)), LimitReachedError)


def test_a_number_that_was_lost_to_another_is_the_next_one_without_another_read(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        counting.increment(counters.TICKET)
    counting.world.proxy.forget()
    monkeypatch.setattr(tallies, "read_state", lambda *_: tallies.State(1, 1))  # what stood before two others came
    assert counting.increment(counters.TICKET)[0]["number"] == 4
    assert len(counting.world.sent("TransactWriteItems")) == 2


def test_a_number_that_is_lost_to_others_at_every_turn_is_503_and_takes_none(counting: Counting) -> None:
    stands = {"version": {"N": "7"}, "last_ticket": {"N": "7"}}
    counting.world.proxy.plan = faults.always(faults.refused(1, stands), "TransactWriteItems")
    rushed, _ = counting.world.rushed(0)
    with pytest.raises(StoreBusyError):
        Counting(rushed).increment(counters.TICKET, key="key-1", within_s=0.3)
    assert len(counting.world.sent("TransactWriteItems")) > 1
    assert counting.world.items() == counting.world.receipts() == []


def test_the_key_of_a_number_is_no_key_of_another_step(counting: Counting) -> None:
    """As after a deployment that changed the counter's delta."""
    counting.increment(counters.TICKET, key="key-1")
    twice = Counter("ticket", prefix="QUEUE", sort_key="TICKETS", attribute="last_ticket", delta=2, numbered=True)
    assert isinstance(refusal(partial(counting.increment, twice, key="key-1")), KeyReusedError)
    assert counting.world.shards(counters.TICKET, ITEM) == {"TICKETS": 1}
