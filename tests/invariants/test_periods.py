"""A change of a counter with periods counts once, in the period in which its first try began."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tally.counter import Counter
from tally.counting import periods
from tally.errors import RetryableError
from tests import faults
from tests.faults.plans import Fault
from tests.invariants.counting import ITEM, Counting, new_key
from tests.invariants.simulation import Clock

DAY_S = 24 * 3600


def period_counter(name: str, period: str, keep_periods: int = 3, **fields: Any) -> Counter:
    options = {"period": period, "keep_periods": keep_periods, **fields}
    return Counter(name, prefix=name.upper(), sort_key="USED", attribute="used", **options)


QUOTA = period_counter("quota", "day", ceiling=20)
USED = period_counter("used", "day")
SOON = period_counter("soon", "day", visible="soon")


@pytest.fixture
def evening(clock: Clock) -> Clock:
    """A clock that stands five minutes before midnight."""
    clock.pass_s(DAY_S - clock() % DAY_S - 300)
    return clock


def tally_id_now(counter: Counter, clock: Clock) -> str:
    return periods.tally_id(counter, ITEM, clock())


def fault_past_midnight(clock: Clock, fault: Fault) -> faults.Plan:
    """Returns a plan by which the first write waits until midnight is past, and then meets the fault."""
    faults_left = [fault]

    def plan(operation: str, body: bytes, number: int) -> Fault | None:
        if operation not in ("TransactWriteItems", "PutItem", "UpdateItem") or not faults_left:
            return None
        clock.pass_s(600)
        return faults_left.pop()

    return plan


def tallies_after_rollup(counting: Counting, counter: Counter) -> dict[str, int]:
    """Returns each tally of a counter after the rollup has added every receipt, without zeros."""
    ids = {item["PK"]["S"].partition("#")[2] for item in counting.world.items()}
    ids |= {receipt["target"]["S"] for receipt in counting.world.receipts()}
    return {id_: number for id_ in ids if (number := counting.world.tally_after_rollup(counter, id_))}


@pytest.mark.parametrize("counter", [QUOTA, USED, SOON], ids=lambda counter: counter.name)
def test_a_retry_after_midnight_of_a_call_whose_response_was_lost_changes_nothing(
    counting: Counting, evening: Clock, counter: Counter
) -> None:
    key, first_id = new_key(), tally_id_now(counter, evening)
    counting.world.proxy.strip_tokens = True
    counting.world.proxy.plan = faults.always(faults.LOSE_RESPONSE, "TransactWriteItems", "PutItem")
    with pytest.raises(RetryableError):
        counting.increment(counter, 2, key)
    counting.world.proxy.plan = faults.no_faults
    evening.pass_s(600)
    assert tally_id_now(counter, evening) > first_id
    body, replayed = counting.increment(counter, 2, key)
    assert (periods.answer_members(first_id), replayed) == ({"id": body["id"], "period": body["period"]}, True)
    assert tallies_after_rollup(counting, counter) == {first_id: 2}


@pytest.mark.parametrize(
    ("counter", "fault"),
    [*itertools.product((QUOTA, USED, SOON), (faults.CONFLICT, faults.FAIL_BEFORE, faults.LOSE_RESPONSE))],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_a_call_that_is_retried_over_midnight_counts_in_the_day_of_its_start(
    counting: Counting, evening: Clock, counter: Counter, fault: Fault
) -> None:
    first_id = tally_id_now(counter, evening)
    counting.world.proxy.strip_tokens = True
    counting.world.proxy.plan = fault_past_midnight(evening, fault)
    body, _ = counting.increment(counter, 1)
    assert tally_id_now(counter, evening) > first_id
    assert body["period"] == first_id.partition("#")[2]
    assert tallies_after_rollup(counting, counter) == {first_id: 1}


@pytest.mark.parametrize("counter", [QUOTA, USED], ids=lambda counter: counter.name)
def test_every_write_of_a_tally_sets_its_expiration(counting: Counting, evening: Clock, counter: Counter) -> None:
    counting.increment(counter, 1)
    midnight_s = evening() + 300
    for item in counting.world.items():
        assert abs(int(item["expiration"]["N"]) - (midnight_s + counter.keep_periods * DAY_S)) < 2
        counting.world.put({**item, "expiration": {"N": "1"}})
    counting.increment(counter, 1)
    assert {int(item["expiration"]["N"]) > evening() for item in counting.world.items()} == {True}
