"""After the change of an override is answered, the override decides every write, whatever a process has cached."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import counters
from tally.counter import AMOUNT_MAX, Counter
from tally.counting import (
    batch,
    hold_items,
    increments,
    limits,
    overrides,
    periods,
    pseudonyms,
    settling,
    tallies,
    unique_visitors,
)
from tally.counting.increments import Increment
from tally.counting.receipts import DAY_S
from tally.dynamo import queries
from tally.dynamo.client import Call, Store
from tally.dynamo.clock import CLOCK_DIFFERENCE_S_MAX
from tally.dynamo.contention import Breaker, Spread
from tally.dynamo.keys import Item
from tally.errors import LimitReachedError, PreconditionFailedError
from tally.maintenance import imports
from tally.maintenance.imports import Chunk, NumberRow
from tally.maintenance.reconcile import OutOfBoundsError
from tests import faults
from tests.faults.plans import Fault
from tests.invariants.counting import ITEM, Counting, new_key, refusal
from tests.invariants.deployment import Deployment, deployed
from tests.invariants.simulation import Clock
from tests.invariants.threads import run_together
from tests.invariants.world import World, before_transactions, retry_until_final
from tests.tiers import marked_long

QUOTA = Counter(
    "quota", prefix="QUOTA", sort_key="CALLS", attribute="calls", ceiling=10, limit_overrides=True, period="minute",
    keep_periods=500,
)  # fmt: skip
SEATS = Counter("seats", prefix="TEAM", sort_key="SEATS", attribute="seats", ceiling=10, limit_overrides=True)
CREDIT = Counter("credit", prefix="BUYER", sort_key="LEFT", attribute="left", start=5, floor=0, limit_overrides=True)
FAULT_CHANCES = {faults.LOSE_RESPONSE: 0.05, faults.FAIL_AFTER: 0.05, faults.CONFLICT: 0.1, faults.FAIL_BEFORE: 0.05}


@pytest.fixture(autouse=True)
def _declare_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    for counter in (QUOTA, SEATS, CREDIT):
        monkeypatch.setitem(counters.COUNTERS, counter.name, counter)


def new_processes(world: World, number: int) -> list[Store]:
    """Returns the stores of processes that have cached nothing."""
    return [
        replace(world.store, spread=Spread(), breaker=Breaker(), idempotency_layers={}, limit_cache={})
        for _ in range(number)
    ]


def count(store: Store, counter: Counter, amount: int, key: str | None = None, at_s: float | None = None) -> None:
    """Counts as the handler does. `at_s`: when the call began, if not now."""
    tally = periods.tally_id(counter, ITEM, time.time() if at_s is None else at_s)
    key, target = key or new_key(), f"{counter.name}/{ITEM}"
    increments.count(Call(store), Increment(counter, tally, amount, "increment", key, {"counted": True}, target))


def put_override(
    store: Store, counter: Counter, limit: int | None, key: str | None = None, id_: str = ITEM
) -> dict[str, Any]:
    return overrides.put_override(Call(store), counter, id_, limit, operation="limit", key=key or new_key()).body


def refusal_members(store: Store, counter: Counter, amount: int, **options: Any) -> dict[str, Any]:
    """Counts an amount, which a limit refuses. Returns the members of the error. `options`: what `count` takes."""
    with pytest.raises(LimitReachedError) as caught:
        count(store, counter, amount, **options)
    return dict(caught.value.members)


@pytest.mark.parametrize("counter", [QUOTA, *marked_long([SEATS])], ids=lambda counter: counter.name)
@pytest.mark.parametrize("seed", [0, *marked_long([1, 2])])
def test_concurrent_changes_reach_each_limit_exceed_none_and_are_refused_only_without_room(
    world: World, clock: Clock, counter: Counter, seed: int
) -> None:
    """8 processes count while responses are lost and writes fail. The limit goes from 10 to 40, 25 and 60."""
    chance, stores = random.Random(seed), new_processes(world, 8)
    world.proxy.plan = faults.random_faults(seed, {"TransactWriteItems": FAULT_CHANCES})
    tally, wrongly_refused = periods.tally_id(counter, ITEM, clock()), []

    def count_amounts(store: Store, amounts: list[int]) -> int:
        """Returns the sum of the amounts that were accepted."""
        accepted = 0
        for amount in amounts:
            try:
                retry_until_final(partial(count, store, counter, amount, new_key()))
                accepted += amount
            except LimitReachedError as error:
                if error.left is not None and error.left >= amount:
                    wrongly_refused.append((amount, error.left))
        return accepted

    accepted = 0
    for limit in (10, 40, 25, 60):
        if limit != 10:  # the declared limit
            retry_until_final(partial(put_override, stores[0], counter, limit, f"to {limit}"))
        for amount_max in (3, 1):  # amounts of 1 reach the limit
            jobs = [
                partial(count_amounts, store, [chance.randint(1, amount_max) for _ in range(10)]) for store in stores
            ]
            accepted += sum(run_together(jobs))
        assert world.tally(counter, tally) == accepted == (40 if limit == 25 else limit)  # 25: the number stays 40
    assert wrongly_refused == []
    assert sum(map(world.proxy.count_injected, FAULT_CHANCES)) > 60


@pytest.mark.parametrize("seed", [0, *marked_long(range(1, 12))])
def test_an_override_that_is_put_at_the_edge_of_a_period_holds_in_the_next_period(
    world: World, clock: Clock, seed: int
) -> None:
    """At each of eight edges five processes count, the period ends and the override changes, all concurrently."""
    chance, stores = random.Random(seed), new_processes(world, 6)
    world.proxy.plan = faults.random_faults(
        seed, {"TransactWriteItems": {faults.LOSE_RESPONSE: 0.05, faults.CONFLICT: 0.2}}
    )
    clock.pass_s(60 - clock() % 60)
    for turn in range(8):
        limit = 20 + 10 * turn

        def count_one(store: Store) -> None:
            with suppress(LimitReachedError):
                retry_until_final(partial(count, store, QUOTA, 1, new_key()))

        jobs: list[Callable[[], object]] = [partial(count_one, store) for store in stores[1:]]
        jobs += [
            partial(clock.pass_s, 60),
            partial(retry_until_final, partial(put_override, stores[0], QUOTA, limit, f"{seed} {turn}")),
        ]
        chance.shuffle(jobs)
        run_together(jobs)
        for store in stores:  # their first write copies the override into the period
            with suppress(LimitReachedError):
                retry_until_final(partial(count, store, QUOTA, 1, new_key()))
        assert copied_limit(world, clock()) == limit, turn
    assert world.proxy.count_injected(faults.CONFLICT) > 5


def copied_limit(world: World, at_s: float) -> int:
    """Returns the limit that the tally of a period has copied from the override."""
    (item,) = world.items(QUOTA.partition_start + periods.tally_id(QUOTA, ITEM, at_s))
    return int(item[limits.OVERRIDE_CEILING]["N"])


@pytest.mark.parametrize(("margin_s", "limit"), [(CLOCK_DIFFERENCE_S_MAX, 3), (0, 20)], ids=["margin", "without"])
def test_a_period_that_begins_while_the_override_changes_has_the_new_override(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch, margin_s: int, limit: int
) -> None:
    """The first write of the period copies the old override before the new override is written. A change of an override
    also writes into periods that begin within `margin_s`. Without this margin, the copied old override would stay."""
    monkeypatch.setattr("tally.dynamo.clock.CLOCK_DIFFERENCE_S_MAX", margin_s)
    clock.pass_s(60 - clock() % 60)
    put_override(world.store, QUOTA, 20)
    clock.pass_s(59)
    (other_process,) = new_processes(world, 1)

    def begin_period() -> None:
        clock.pass_s(1)
        count(replace(other_process, client=world.raw), QUOTA, 1)

    world.proxy.plan = before_transactions({0: begin_period})
    put_override(world.store, QUOTA, 3)
    assert refusal_members(other_process, QUOTA, 21)["limit"] == limit


def test_a_removed_override_leaves_the_copied_limit_in_a_tally_until_the_next_write(world: World, clock: Clock) -> None:
    """A call whose clock is ahead copies the limit into the next period. The removal only marks this copy as stale,
    because until the next write events of thresholds compare with the copied limit."""
    clock.pass_s(59 - clock() % 60)
    first, second = new_processes(world, 2)
    put_override(first, QUOTA, 5)
    count(first, QUOTA, 1, at_s=clock() + 2)
    put_override(first, QUOTA, None)
    clock.pass_s(2)
    assert copied_limit(world, clock()) == 5
    count(second, QUOTA, 7)
    (item,) = world.items(QUOTA.partition_start + periods.tally_id(QUOTA, ITEM, clock()))
    assert (item[limits.OVERRIDE], limits.OVERRIDE_CEILING in item) == (limits.NO_OVERRIDE[limits.OVERRIDE], False)
    assert refusal_members(first, QUOTA, 3)["limit"] == refusal_members(second, QUOTA, 3)["limit"] == 10


@pytest.mark.parametrize("clock_skew_s", [-600, -61, 61, 600])
@pytest.mark.parametrize("counter", [QUOTA, replace(QUOTA, period="day")], ids=lambda counter: str(counter.period))
def test_a_call_with_a_wrong_clock_is_judged_by_the_present_override(
    world: World, clock: Clock, counter: Counter, clock_skew_s: int
) -> None:
    """The process has had no response of DynamoDB, so its own clock says which period it is."""
    clock.pass_s(DAY_S - clock() % DAY_S - clock_skew_s / 2)  # midnight is between the true time and the wrong clock
    (other_process,) = new_processes(world, 1)
    put_override(world.store, counter, 20)
    count(other_process, counter, 1, at_s=clock() + clock_skew_s)
    put_override(world.store, counter, 3)
    assert refusal_members(other_process, counter, 21, at_s=clock() + clock_skew_s)["limit"] == 3


@pytest.mark.parametrize(("margin_s", "limit"), [(CLOCK_DIFFERENCE_S_MAX, 3), (0, 20)], ids=["margin", "without"])
def test_a_call_that_began_in_the_last_period_is_judged_by_an_override_of_this_period(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch, margin_s: int, limit: int
) -> None:
    """A change of an override also writes into periods that ended within `margin_s`. Without this margin, the last
    period would keep the old override."""
    monkeypatch.setattr("tally.dynamo.clock.CLOCK_DIFFERENCE_S_MAX", margin_s)
    clock.pass_s(60 - clock() % 60)
    began_s = clock()
    put_override(world.store, QUOTA, 20)
    clock.pass_s(60)
    put_override(world.store, QUOTA, 3)
    assert refusal_members(world.store, QUOTA, 21, at_s=began_s)["limit"] == limit


def test_the_last_override_near_an_edge_holds_beyond_the_edge_though_its_clock_is_behind(
    world: World, clock: Clock
) -> None:
    """The first override puts a stale mark on the period that begins CLOCK_DIFFERENCE_S_MAX later. By its clock, the
    second override is too early to write into this period. The mark makes the first write read the override."""
    clock.pass_s(60 - clock() % 60)
    put_override(world.store, QUOTA, 20)
    with clock.with_skew(-1):
        put_override(world.store, QUOTA, 3)
    clock.pass_s(CLOCK_DIFFERENCE_S_MAX)
    for store in new_processes(world, 2):
        assert refusal_members(store, QUOTA, 4)["limit"] == 3
    count(world.store, QUOTA, 3)
    assert copied_limit(world, clock()) == 3


def test_after_a_stale_mark_is_read_the_override_is_read_once_more(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A BatchGetItem is not a snapshot: it may return the old override with the stale mark of the new override."""
    clock.pass_s(60 - clock() % 60)
    put_override(world.store, QUOTA, 20)
    read_many = queries.get_many
    clock.pass_s(60)

    def read_with_a_new_override_between(call: Call, table: str, keys: list[Item]) -> list[Item]:
        monkeypatch.setattr(queries, "get_many", read_many)
        _, override_key = keys
        old_override = read_many(call, table, [override_key])
        with clock.with_skew(-60):  # by this clock the period begins later, so it gets a stale mark and no copy
            put_override(new_processes(world, 1)[0], QUOTA, 3)
        return old_override + read_many(call, table, keys[:1])

    monkeypatch.setattr(queries, "get_many", read_with_a_new_override_between)
    assert refusal_members(world.store, QUOTA, 4)["limit"] == 3


def test_an_override_that_is_put_after_the_read_and_before_the_first_write_of_a_period_judges_the_write(
    world: World, clock: Clock
) -> None:
    (other_process,) = new_processes(world, 1)
    world.proxy.plan = before_transactions(
        {0: partial(put_override, replace(other_process, client=world.raw), QUOTA, 2)}
    )
    assert refusal_members(world.store, QUOTA, 5)["left"] == 2
    assert world.receipts() != [], "the receipt of the override"
    assert world.tally(QUOTA, periods.tally_id(QUOTA, ITEM, clock())) == 0


@pytest.mark.parametrize("seed", [0, *marked_long([1, 2])])
def test_after_concurrent_overrides_near_an_edge_both_periods_have_the_same_limit(
    world: World, clock: Clock, seed: int
) -> None:
    clock.pass_s(59.5 - clock() % 60)
    world.proxy.plan = faults.random_faults(seed, {"TransactWriteItems": FAULT_CHANCES})
    new_limits = [20, 30, None, 40, 50, 60]
    puts = [
        partial(retry_until_final, partial(put_override, store, QUOTA, limit, f"{seed} {limit}"))
        for store, limit in zip(new_processes(world, 6), new_limits, strict=True)
    ]
    counts = [
        partial(retry_until_final, partial(count, store, QUOTA, 1, new_key())) for store in new_processes(world, 2)
    ]
    run_together([*puts, partial(clock.pass_s, 1), *counts])
    present_limit = overrides.read_override(world.call(), QUOTA, ITEM)["limit"]
    assert present_limit in [10 if limit is None else limit for limit in new_limits]
    for store in new_processes(world, 2):
        for at_s in (clock() - 1, clock()):
            assert refusal_members(store, QUOTA, 61, at_s=at_s)["limit"] == present_limit


@pytest.mark.parametrize("limit", [0, -7, AMOUNT_MAX, -AMOUNT_MAX])
def test_any_whole_number_is_a_limit(world: World, clock: Clock, limit: int) -> None:
    """A ceiling below the present number accepts only decreases. An override may be a floor, too."""
    put_override(world.store, SEATS, limit)
    if limit > 0:
        count(world.store, SEATS, limit)
    assert refusal_members(world.store, SEATS, 1)["left"] == min(limit, 0)
    count(world.store, SEATS, -AMOUNT_MAX)
    put_override(world.store, CREDIT, limit)
    if limit > -AMOUNT_MAX:  # a floor of -AMOUNT_MAX refuses no amount
        assert refusal_members(world.store, CREDIT, -AMOUNT_MAX)["left"] == 5 - limit
    count(world.store, CREDIT, 1)


@pytest.mark.parametrize("counter", [QUOTA, SEATS], ids=lambda counter: counter.name)
def test_without_limit_overrides_the_declared_limit_holds_and_after_a_rollback_the_override(
    world: World, clock: Clock, counter: Counter
) -> None:
    """A deploy switches the option off, and a rollback switches it on. Each deploy starts new processes."""
    put_override(world.store, counter, 30)
    count(world.store, counter, 20)
    (deployed_store,) = new_processes(world, 1)
    without_overrides = replace(counter, limit_overrides=False)
    assert refusal_members(deployed_store, without_overrides, 1)["left"] == 10 - 20
    count(deployed_store, without_overrides, -15)
    clock.pass_s(60)  # to the next period of QUOTA
    count(deployed_store, without_overrides, 5)
    (rolled_back_store,) = new_processes(world, 1)
    number = world.tally(counter, periods.tally_id(counter, ITEM, clock()))
    assert refusal_members(rolled_back_store, counter, 31)["left"] == 30 - number


def test_an_override_of_the_floor_is_ignored_once_the_counter_has_a_ceiling(world: World, clock: Clock) -> None:
    """Reads show only the ceiling of a counter that has a ceiling, so an override of such a counter is its ceiling."""
    put_override(world.store, CREDIT, -3)
    (later_process,) = new_processes(world, 1)
    bounded = replace(CREDIT, ceiling=20)
    body = {"counter": "credit", "id": ITEM, "limit": 20, "override": False}
    assert overrides.read_override(Call(later_process), bounded, ITEM) == body
    assert refusal_members(later_process, bounded, -6)["left"] == 5
    put_override(later_process, bounded, 8)
    assert refusal_members(later_process, bounded, 4)["left"] == 3


def test_a_visit_with_a_clock_that_is_ahead_is_judged_by_the_present_override(world: World, clock: Clock) -> None:
    """The visit finds no override, and begins the next period early. Before its write, a process with a clock that is
    behind puts an override. By that clock, the period begins more than CLOCK_DIFFERENCE_S_MAX later."""
    readers = replace(counters.READERS, visible="now", ceiling=2, max_shards=1, limit_overrides=True)
    pseudonyms.stack_secret(world.call())
    (other_process,) = new_processes(world, 1)
    clock.pass_s(DAY_S - clock() % DAY_S - CLOCK_DIFFERENCE_S_MAX)
    tomorrow_s = int(clock()) + CLOCK_DIFFERENCE_S_MAX

    def visit(visitor: str) -> None:
        unique_visitors.count(world.call(), readers, ITEM, visitor, tomorrow_s)

    def put_first_override() -> None:
        with clock.with_skew(-1):
            put_override(replace(other_process, client=world.raw), readers, 1)

    world.proxy.plan = before_transactions({0: put_first_override})
    visit("ann")
    assert refusal(partial(visit, "bob")).members["limit"] == 1


@pytest.mark.parametrize("counter", [QUOTA, SEATS], ids=lambda counter: counter.name)
def test_an_override_below_the_present_number_refuses_increases_and_accepts_decreases(
    world: World, clock: Clock, counter: Counter
) -> None:
    count(world.store, counter, 8)
    assert put_override(world.store, counter, 5) == {"counter": counter.name, "id": ITEM, "limit": 5, "override": True}
    members = refusal_members(world.store, counter, 1)
    assert (members["left"], members["limit"], "retry_after_s" in members) == (-3, 5, counter is QUOTA)
    count(world.store, counter, -2)
    assert refusal_members(world.store, counter, 1)["left"] == -1
    count(world.store, counter, -2)
    count(world.store, counter, 1)
    assert refusal_members(world.store, counter, 1)["left"] == 0
    assert "retry_after_s" not in refusal_members(world.store, counter, 6), "no period would accept this amount"


@pytest.mark.parametrize("counter", [QUOTA, SEATS], ids=lambda counter: counter.name)
def test_after_an_override_is_removed_the_present_declared_limit_holds(
    world: World, clock: Clock, counter: Counter
) -> None:
    count(world.store, counter, 1)
    put_override(world.store, counter, 50)
    (other_process,) = new_processes(world, 1)
    assert refusal_members(other_process, counter, 50)["left"] == 49
    declared = {"counter": counter.name, "id": ITEM, "limit": 10, "override": False}
    assert put_override(world.store, counter, None) == declared
    for store in (world.store, other_process):
        assert refusal_members(store, counter, 10)["left"] == 9
    assert overrides.read_override(world.call(), counter, ITEM)["override"] is False
    (later_process,) = new_processes(world, 1)
    assert refusal_members(later_process, replace(counter, ceiling=20), 20)["limit"] == 20, (
        "a deploy raised the limit, and no tally has a copy of the old limit"
    )
    # The item of an override is deleted. Without periods, this item also has the number, and stays.
    assert (counter.partition_start + ITEM in {item["PK"]["S"] for item in world.items()}) == (counter is SEATS)


def test_a_late_retry_of_an_earlier_override_is_a_replay(world: World, clock: Clock) -> None:
    put_override(world.store, SEATS, 50, "first")
    put_override(world.store, SEATS, 20, "second")
    assert put_override(world.store, SEATS, 50, "first")["limit"] == 50, "the first answer"
    assert overrides.read_override(world.call(), SEATS, ITEM)["limit"] == 20


@pytest.mark.parametrize("fault", [faults.LOSE_RESPONSE, faults.FAIL_AFTER, faults.CONFLICT], ids=str)
def test_an_override_whose_response_is_lost_holds_and_its_retry_gets_the_first_answer(
    world: World, clock: Clock, fault: Fault
) -> None:
    world.proxy.strip_tokens = True
    world.proxy.plan = faults.script({"TransactWriteItems": [fault]})
    assert retry_until_final(partial(put_override, world.store, QUOTA, 20, "key"))["limit"] == 20
    assert copied_limit(world, clock()) == 20
    assert world.proxy.count_injected(fault) == 1


def test_an_override_decides_about_holds_and_expired_holds_are_released_to_make_room(
    counting: Counting, clock: Clock
) -> None:
    put_override(counting.world.store, CREDIT, -5)
    counting.place_hold(8, counter=CREDIT)
    assert refusal(partial(counting.place_hold, 3, counter=CREDIT)).members == {"left": 2, "limit": -5}
    put_override(counting.world.store, CREDIT, 2)
    assert refusal(partial(counting.place_hold, 1, counter=CREDIT)).members == {"left": -5, "limit": 2}
    clock.pass_s(61)
    counting.place_hold(3, counter=CREDIT)  # after the release of the hold of 8, 5 are left, 3 above the floor
    assert counting.stored(CREDIT) == 2
    assert refusal(partial(counting.increment, CREDIT, -1)).members == {"left": 0, "limit": 2}


def test_a_hold_is_released_though_an_override_raised_the_floor_after_the_hold_was_placed(counting: Counting) -> None:
    body, _ = counting.place_hold(3, counter=CREDIT)
    put_override(counting.world.store, CREDIT, 4)
    (other_process,) = new_processes(counting.world, 1)
    body = settling.settle(Call(other_process), CREDIT, ITEM, body["hold"], hold_items.RELEASED)
    assert (body["state"], counting.stored(CREDIT)) == ("released", 5)


def test_the_release_of_a_hold_is_judged_by_the_override_of_the_ceiling(counting: Counting) -> None:
    with_ceiling = replace(CREDIT, ceiling=9)
    body, _ = counting.place_hold(3, counter=CREDIT)
    (other_process,) = new_processes(counting.world, 1)
    put_override(other_process, with_ceiling, 4)
    with pytest.raises(LimitReachedError) as caught:
        settling.settle(Call(other_process), with_ceiling, ITEM, body["hold"], hold_items.RELEASED)
    assert caught.value.members == {"left": 4 - (5 - 3), "limit": 4}


def test_a_commit_is_judged_by_the_last_override_that_was_copied_into_its_period(
    counting: Counting, clock: Clock
) -> None:
    """Holds are placed near the end of their period, and committed just after it and long after it, at other amounts. A
    period gets no copy of an override that is put more than CLOCK_DIFFERENCE_S_MAX after the end of the period.
    `left` is the limit less the amounts that are held or committed in the period."""
    store = counting.world.store
    with_debt = replace(QUOTA, debt=3)
    (other_process,) = new_processes(counting.world, 1)

    def place_hold(amount: int) -> str:
        tally = periods.tally_id(QUOTA, ITEM, clock())
        return str(counting.place_hold(amount, ttl_s=3600, counter=QUOTA, id_=tally)[0]["hold"])

    def commit(hold: str, amount: int, counter: Counter = QUOTA) -> dict[str, Any]:
        return settling.settle(counting.world.call(), counter, ITEM, hold, hold_items.COMMITTED, amount)

    clock.pass_s(59 - clock() % 60)
    tally = periods.tally_id(QUOTA, ITEM, clock())
    put_override(store, QUOTA, 100)
    hold_of_70, hold_of_10, hold_of_5 = place_hold(70), place_hold(10), place_hold(5)
    assert refusal(partial(place_hold, 16)).members == {"left": 100 - 85, "limit": 100, "retry_after_s": 1}
    put_override(other_process, QUOTA, 50)
    assert refusal(partial(place_hold, 1)).members == {"left": 50 - 85, "limit": 50, "retry_after_s": 1}
    clock.pass_s(1)
    place_hold(50)
    assert refusal(partial(place_hold, 1)).members["left"] == 0
    assert refusal(partial(commit, hold_of_70, 71)).members == {"left": 50 - 85, "limit": 50}
    assert commit(hold_of_70, 20)["amount"] == 20
    assert refusal(partial(commit, hold_of_10, 26)).members == {"left": 50 - (20 + 10 + 5), "limit": 50}
    put_override(other_process, QUOTA, 60)
    assert commit(hold_of_10, 35)["changed"]
    clock.pass_s(CLOCK_DIFFERENCE_S_MAX + 60)
    put_override(other_process, QUOTA, 200)
    assert refusal(partial(commit, hold_of_5, 6)).members == {"left": 60 - (20 + 35 + 5), "limit": 60}
    assert refusal(partial(commit, hold_of_5, 9, with_debt)).members == {"left": with_debt.debt, "limit": 60}
    assert commit(hold_of_5, 8, with_debt)["amount"] == 8
    assert counting.world.tally(QUOTA, tally) == 20 + 35 + 8
    place_hold(200)  # the present period has the newest override


def test_each_change_of_a_batch_is_judged_by_the_override_of_its_id(world: World, clock: Clock) -> None:
    """The second batch caches the limits of both tallies, because a process caches only limits that are stored in the
    item of the tally. The write of the third batch fails, and shows both new limits."""

    def count_batch(*amounts: int) -> None:
        entries = [
            {"counter": name, "id": ITEM, "amount": amount}
            for name, amount in zip(("quota", "seats"), amounts, strict=True)
        ]
        changes = batch.parse_batch(entries, counters.COUNTERS, clock(), soon=False)
        batch.count(world.call(), changes, operation="change", key=new_key(), soon=False)

    count_batch(1, 1)
    count_batch(1, 1)
    for counter in (QUOTA, SEATS):
        put_override(new_processes(world, 1)[0], counter, 30)
    world.proxy.clear_requests()
    count_batch(20, 20)
    assert [request.operation for request in world.proxy.requests] == ["TransactWriteItems"] * 2
    with pytest.raises(LimitReachedError) as caught:
        count_batch(1, 9)
    assert caught.value.members == {"entry": 1, "counter": "seats", "id": ITEM, "left": 30 - 22, "limit": 30}
    assert world.tally(SEATS, ITEM) == world.tally(QUOTA, periods.tally_id(QUOTA, ITEM, clock())) == 1 + 1 + 20


def test_a_value_is_set_within_the_override_of_its_id(counting: Counting) -> None:
    """`set` takes a value and the version that the caller has read. An override raises the version, so `set` fails if
    the caller has read the version before the override."""
    counting.increment(SEATS, 1)
    put_override(counting.world.store, SEATS, 30)
    assert isinstance(refusal(partial(counting.set, SEATS, 25, 1)), PreconditionFailedError)
    assert counting.set(SEATS, 25, 2)[0]["value"] == 25
    assert isinstance(refusal(partial(counting.set, SEATS, 31, 3)), LimitReachedError)
    other_process = replace(new_processes(counting.world, 1)[0], client=counting.world.raw)
    counting.world.proxy.plan = before_transactions({0: partial(put_override, other_process, SEATS, 5)})
    assert isinstance(refusal(partial(counting.set, SEATS, 20, 3)), PreconditionFailedError)
    assert isinstance(refusal(partial(counting.set, SEATS, 20, 4)), LimitReachedError)
    assert counting.stored(SEATS) == 25


def test_an_imported_number_is_judged_by_the_override_of_its_id(world: World) -> None:
    put_override(world.store, SEATS, 30)
    rows = [NumberRow(1, ITEM, 25), NumberRow(2, "another", 25)]
    refused_rows = [imports.import_numbers(world.call(), SEATS, "run", Chunk(row.line, [row])) for row in rows]
    assert [len(rows_of_chunk) for rows_of_chunk in refused_rows] == [0, 1]
    assert world.tally(SEATS, ITEM) == 25


def test_a_number_with_a_start_is_imported_once_though_its_id_has_an_override(counting: Counting) -> None:
    """An override raises the version before there is a number. So the condition of the import is that no number is
    stored. Version 0 would be a wrong condition."""
    call, rows = counting.world.call(), [NumberRow(1, ITEM, -25)]
    put_override(counting.world.store, CREDIT, -20)
    assert [row.why for row in imports.import_numbers(call, CREDIT, "run", Chunk(0, rows))] == [
        "-25 is not within the limits of credit."
    ]
    put_override(counting.world.store, CREDIT, -30)
    assert counting.read(CREDIT)["version"] == 2
    for _ in range(2):
        assert imports.import_numbers(counting.world.call(), CREDIT, "run", Chunk(0, rows)) == []
    assert (counting.stored(CREDIT), counting.read(CREDIT)["version"]) == (-25, 3)
    assert len(imports.import_numbers(counting.world.call(), CREDIT, "another run", Chunk(0, rows))) == 1
    assert counting.set(CREDIT, -24, 3)[0]["version"] == 4


def test_reads_show_the_present_limit_in_every_period(counting: Counting, clock: Clock) -> None:
    assert counting.read(QUOTA)["limit"] == 10
    put_override(counting.world.store, QUOTA, 20)
    assert counting.read(QUOTA)["limit"] == 20
    clock.pass_s(300)
    assert counting.read(QUOTA)["limit"] == 20, "this minute has no tally, so the read takes the override"
    assert counting.read(counters.STOCK)["limit"] == 0
    assert "limit" not in counting.read(counters.USAGE)


def test_the_write_of_a_tally_without_an_override_has_no_condition_on_an_override(counting: Counting) -> None:
    counting.stock(3)
    counting.increment(counters.STOCK, -1)
    update = counting.world.requests("TransactWriteItems")[-1]["TransactItems"][1]["Update"]
    assert (update["ConditionExpression"], sorted(update["ExpressionAttributeNames"])) == (
        "#number >= :limit", ["#at", "#number"],
    )  # fmt: skip
    (item,) = counting.world.items()
    assert sorted(item) == ["PK", "SK", "at", "nonce", "qty", "version"]
    assert counting.world.store.limit_cache == {}


def test_a_process_still_counts_after_a_tally_whose_limit_is_cached_was_deleted(world: World, clock: Clock) -> None:
    put_override(world.store, QUOTA, 30)
    count(world.store, QUOTA, 9)
    count(world.store, QUOTA, 9)
    world.delete(tallies.key(QUOTA, periods.tally_id(QUOTA, ITEM, clock()), 0))
    count(world.store, QUOTA, 25)
    assert copied_limit(world, clock()) == 30


def test_a_process_caches_the_limits_of_few_tallies(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CACHED_TALLIES_MAX", 3)
    for number in range(10):
        limits.read_limits(world.call(), SEATS, f"{number}")
    assert 0 < len(world.store.limit_cache) <= 3


def test_overrides_cost_the_documented_units(world: World, clock: Clock) -> None:
    first, second = new_processes(world, 2)
    clock.pass_s(1.5 * DAY_S - clock() % DAY_S)  # noon: no other day is near

    def costs(act: Callable[[], object]) -> list[tuple[str, float]]:
        with world.measure_units() as measured:
            act()
        return list(measured)

    read, write, daily = ("BatchGetItem", 2.0), ("TransactWriteItems", 4.0), counters.CALLS
    assert costs(lambda: count(first, daily, 1)) == [read, write], "the first change of a period copies the override"
    assert costs(lambda: count(first, daily, 1)) == [read, write], "a process caches only limits that it read in a copy"
    assert costs(lambda: count(first, daily, 1)) == [write]
    assert costs(lambda: count(second, daily, 1)) == [read, write]
    assert costs(lambda: put_override(first, daily, 5000)) == [("TransactWriteItems", 6.0)]
    assert costs(lambda: count(second, daily, 1))[-1] == write, "after a failed attempt"
    assert costs(lambda: count(second, daily, 1)) == [write]
    assert costs(lambda: put_override(first, SEATS, 5000)) == [("TransactWriteItems", 4.0)]
    near = "the present minute, and 15 minutes before and after it, have a copy or a stale mark"
    assert costs(lambda: put_override(first, QUOTA, 5000)) == [("TransactWriteItems", 4.0 + 31 * 2.0)], near
    assert costs(lambda: count(second, SEATS, 1)) == [("BatchGetItem", 1.0), write]


@pytest.fixture
def quiet_deployment() -> Iterator[Deployment]:
    with deployed() as deployment:
        yield deployment


def test_overrides_cause_no_drift_and_a_repair_does_not_exceed_an_override(quiet_deployment: Deployment) -> None:
    other_process = replace(quiet_deployment.store, idempotency_layers={}, limit_cache={})
    for counter in (QUOTA, SEATS, CREDIT):
        put_override(quiet_deployment.store, counter, 30 if counter.ceiling else -30)
        count(quiet_deployment.store, counter, 2)
        refusal_members(quiet_deployment.store, counter, 40 if counter.ceiling else -40)
        put_override(other_process, counter, 6 if counter.ceiling else 0)
        count(quiet_deployment.store, counter, -1)
        put_override(other_process, counter, None)
    quiet_deployment.run_without_drift()
    put_override(other_process, SEATS, 6)
    quiet_deployment.edit(-1, SEATS, ITEM)
    count(quiet_deployment.store, SEATS, 6)  # 2 - 1 + 6 are accepted, and the edit took 1
    quiet_deployment.run_until_judged()
    reconciler = quiet_deployment.reconciler()
    required_minute = reconciler.minute_to_judge()
    reconciler.wait_until_judged(required_minute)
    with pytest.raises(OutOfBoundsError):
        reconciler.repair(SEATS, ITEM, "ann", "edited by hand", required_minute=required_minute)
    put_override(other_process, SEATS, 7)
    assert reconciler.repair(SEATS, ITEM, "ann", "edited by hand", required_minute=required_minute) is not None
    assert quiet_deployment.tally(SEATS, ITEM) == 7
    put_override(other_process, CREDIT, 1, id_="new")
    assert reconciler.find(CREDIT, "new").tally == 5, "the item of this id has an override and no number"
