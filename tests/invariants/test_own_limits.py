"""Limits of one id: from the answer on, every write is judged by them, whatever a process knew before."""

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
from tally.dynamo.clock import OFF_S_MAX
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
from tests.invariants.world import World, acting_before, retry_until_final
from tests.tiers import in_long

QUOTA = Counter(
    "quota", prefix="QUOTA", sort_key="CALLS", attribute="calls", ceiling=10, limit_overrides=True, period="minute",
    keep_periods=500,
)  # fmt: skip
SEATS = Counter("seats", prefix="TEAM", sort_key="SEATS", attribute="seats", ceiling=10, limit_overrides=True)
CREDIT = Counter("credit", prefix="BUYER", sort_key="LEFT", attribute="left", start=5, floor=0, limit_overrides=True)
SOME = {faults.LOSE_RESPONSE: 0.05, faults.FAIL_AFTER: 0.05, faults.CONFLICT: 0.1, faults.FAIL_BEFORE: 0.05}


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    for counter in (QUOTA, SEATS, CREDIT):
        monkeypatch.setitem(counters.COUNTERS, counter.name, counter)


def processes(world: World, number: int) -> list[Store]:
    """Each knows what it has seen itself."""
    return [
        replace(world.store, spread=Spread(), breaker=Breaker(), idempotency_layers={}, limit_cache={})
        for _ in range(number)
    ]


def count(store: Store, counter: Counter, amount: int, key: str | None = None, at_s: float | None = None) -> None:
    """As the handler does. `at_s`: when the call began, if not now."""
    tally = periods.tally_id(counter, ITEM, time.time() if at_s is None else at_s)
    change = Increment(counter, tally, amount, "increment", key or new_key(), {"counted": True}, f"{counter.name}/x")
    increments.count(Call(store), change)


def give(store: Store, counter: Counter, limit: int | None, key: str | None = None, id_: str = ITEM) -> dict[str, Any]:
    return overrides.put_override(Call(store), counter, id_, limit, operation="limit", key=key or new_key()).body


def refused(store: Store, counter: Counter, amount: int, **how: Any) -> dict[str, Any]:
    """The members of the refusal."""
    with pytest.raises(LimitReachedError) as caught:
        count(store, counter, amount, **how)
    return dict(caught.value.members)


def injected(world: World) -> int:
    return sum(map(world.proxy.injected, SOME))


@pytest.mark.parametrize("counter", [QUOTA, *in_long([SEATS])], ids=lambda counter: counter.name)
@pytest.mark.parametrize("seed", [0, *in_long([1, 2])])
def test_the_number_ends_at_the_limit_of_now_above_none_and_nobody_is_refused_while_there_is_room(
    world: World, clock: Clock, counter: Counter, seed: int
) -> None:
    """8 processes count while answers get lost and writes fail; the limit goes 10, 40, 25, 60."""
    chance, stores = random.Random(seed), processes(world, 8)
    world.proxy.plan = faults.random_faults(seed, {"TransactWriteItems": SOME})
    tally, in_vain = periods.tally_id(counter, ITEM, clock()), []

    def storm(store: Store, amounts: list[int]) -> int:
        got = 0
        for amount in amounts:
            try:
                retry_until_final(partial(count, store, counter, amount, new_key()))
                got += amount
            except LimitReachedError as error:
                if error.left is not None and error.left >= amount:
                    in_vain.append((amount, error.left))
        return got

    accepted = 0
    for limit in (10, 40, 25, 60):
        if limit != 10:
            retry_until_final(partial(give, stores[0], counter, limit, f"to {limit}"))
        for most in (3, 1):  # the last room is for ones
            jobs = [partial(storm, store, [chance.randint(1, most) for _ in range(10)]) for store in stores]
            accepted += sum(run_together(jobs))
        assert world.tally(counter, tally) == accepted == (40 if limit == 25 else limit)
    assert in_vain == []
    assert injected(world) > 60


@pytest.mark.parametrize("seed", [0, *in_long(range(1, 12))])
def test_at_each_edge_of_a_period_the_plan_of_now_holds_once_it_is_answered(
    world: World, clock: Clock, seed: int
) -> None:
    """Eight edges: five processes count, the period ends and the plan changes, all at one moment."""
    chance, stores = random.Random(seed), processes(world, 6)
    world.proxy.plan = faults.random_faults(
        seed, {"TransactWriteItems": {faults.LOSE_RESPONSE: 0.05, faults.CONFLICT: 0.2}}
    )
    clock.pass_s(60 - clock() % 60)
    for turn in range(8):
        plan = 20 + 10 * turn

        def writer(store: Store) -> None:
            with suppress(LimitReachedError):
                retry_until_final(partial(count, store, QUOTA, 1, new_key()))

        jobs: list[Callable[[], object]] = [partial(writer, store) for store in stores[1:]]
        jobs += [
            partial(clock.pass_s, 60),
            partial(retry_until_final, partial(give, stores[0], QUOTA, plan, f"{seed} {turn}")),
        ]
        chance.shuffle(jobs)
        run_together(jobs)
        for store in stores:
            with suppress(LimitReachedError):
                retry_until_final(partial(count, store, QUOTA, 1, new_key()))
        assert copy_of(world, clock()) == plan, turn
    assert world.proxy.injected(faults.CONFLICT) > 5


def copy_of(world: World, at_s: float) -> int:
    """The limit that the item of a period says."""
    (item,) = world.items(QUOTA.partition_start + periods.tally_id(QUOTA, ITEM, at_s))
    return int(item[limits.OVERRIDE_CEILING]["N"])


@pytest.mark.parametrize(("margin_s", "judged_by"), [(OFF_S_MAX, 3), (0, 20)], ids=["margin", "without"])
def test_a_period_that_begins_while_the_plan_changes_has_the_new_one(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch, margin_s: int, judged_by: int
) -> None:
    """The new plan is on its way to the old period; the new one begins, and its first write copies the old plan.
    Without the margin, this forced race leaves the old one."""
    monkeypatch.setattr("tally.dynamo.clock.OFF_S_MAX", margin_s)
    clock.pass_s(60 - clock() % 60)
    give(world.store, QUOTA, 20)
    clock.pass_s(59)
    (other,) = processes(world, 1)

    def begin() -> None:
        clock.pass_s(1)
        count(replace(other, client=world.raw), QUOTA, 1)

    world.proxy.forget()
    world.proxy.plan = acting_before({0: begin})
    give(world.store, QUOTA, 3)
    assert refused(other, QUOTA, 21)["limit"] == judged_by


def test_a_mark_leaves_what_the_last_copy_said_until_the_next_copy(world: World, clock: Clock) -> None:
    """Events compare with it. A call whose clock is ahead copied the plan, which goes before the period begins."""
    clock.pass_s(59 - clock() % 60)
    early, late = processes(world, 2)
    give(early, QUOTA, 5)
    count(early, QUOTA, 1, at_s=clock() + 2)
    give(early, QUOTA, None)
    clock.pass_s(2)
    assert copy_of(world, clock()) == 5
    count(late, QUOTA, 7)
    (item,) = world.items(QUOTA.partition_start + periods.tally_id(QUOTA, ITEM, clock()))
    assert (item[limits.OVERRIDE], limits.OVERRIDE_CEILING in item) == ({"S": "-"}, False)
    assert refused(early, QUOTA, 3)["limit"] == refused(late, QUOTA, 3)["limit"] == 10


@pytest.mark.parametrize("off_s", [-600, -61, 61, 600])
@pytest.mark.parametrize("counter", [QUOTA, replace(QUOTA, period="day")], ids=lambda counter: str(counter.period))
def test_a_call_of_a_clock_that_is_off_is_judged_by_the_plan_of_now(
    world: World, clock: Clock, counter: Counter, off_s: int
) -> None:
    """Its process has had no answer yet: its own clock says which period it is."""
    clock.pass_s(DAY_S - clock() % DAY_S - off_s / 2)  # on either side of midnight
    (other,) = processes(world, 1)
    give(world.store, counter, 20)
    count(other, counter, 1, at_s=clock() + off_s)
    give(world.store, counter, 3)
    assert refused(other, counter, 21, at_s=clock() + off_s)["limit"] == 3


@pytest.mark.parametrize(("margin_s", "judged_by"), [(OFF_S_MAX, 3), (0, 20)], ids=["margin", "without"])
def test_a_call_from_before_the_edge_is_judged_by_the_plan_that_was_answered_after_it(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch, margin_s: int, judged_by: int
) -> None:
    monkeypatch.setattr("tally.dynamo.clock.OFF_S_MAX", margin_s)
    clock.pass_s(60 - clock() % 60)
    began_s = clock()
    give(world.store, QUOTA, 20)
    clock.pass_s(60)
    give(world.store, QUOTA, 3)
    assert refused(world.store, QUOTA, 21, at_s=began_s)["limit"] == judged_by


def test_of_two_plans_near_an_edge_the_last_holds_beyond_it_though_its_clock_is_behind(
    world: World, clock: Clock
) -> None:
    """The first clock sees one period more, for which it leaves a mark and no copy; the other one does not."""
    clock.pass_s(60 - clock() % 60)
    give(world.store, QUOTA, 20)
    with clock.with_skew(-1):
        give(world.store, QUOTA, 3)
    clock.pass_s(OFF_S_MAX)
    for store in processes(world, 2):
        assert refused(store, QUOTA, 4)["limit"] == 3
    count(world.store, QUOTA, 3)
    assert copy_of(world, clock()) == 3


def test_a_mark_is_read_before_the_plan_that_is_copied_over_it(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer of DynamoDB's is no snapshot: it may have the plan from before a change, and the mark of that one."""
    clock.pass_s(60 - clock() % 60)
    give(world.store, QUOTA, 20)
    read_many = queries.get_many
    clock.pass_s(60)

    def torn(call: Call, table: str, keys: list[Item]) -> list[Item]:
        monkeypatch.setattr(queries, "get_many", read_many)
        _, plan = keys
        old = read_many(call, table, [plan])
        with clock.with_skew(-60):
            give(processes(world, 1)[0], QUOTA, 3)
        return old + read_many(call, table, keys[:1])

    monkeypatch.setattr(queries, "get_many", torn)
    assert refused(world.store, QUOTA, 4)["limit"] == 3


def test_a_plan_that_moves_between_the_look_and_the_first_write_of_a_period_judges_it(
    world: World, clock: Clock
) -> None:
    (other,) = processes(world, 1)
    world.proxy.plan = acting_before({0: partial(give, replace(other, client=world.raw), QUOTA, 2)})
    assert refused(world.store, QUOTA, 5)["left"] == 2
    assert world.receipts() != [], "that of the plan"
    assert world.tally(QUOTA, periods.tally_id(QUOTA, ITEM, clock())) == 0


@pytest.mark.parametrize("seed", [0, *in_long([1, 2])])
def test_of_many_plans_at_once_near_an_edge_one_is_that_of_both_periods(world: World, clock: Clock, seed: int) -> None:
    clock.pass_s(59.5 - clock() % 60)
    world.proxy.plan = faults.random_faults(seed, {"TransactWriteItems": SOME})
    limits_of = [20, 30, None, 40, 50, 60]
    makers = [
        partial(retry_until_final, partial(give, store, QUOTA, limit, f"{seed} {limit}"))
        for store, limit in zip(processes(world, 6), limits_of, strict=True)
    ]
    counts = [partial(retry_until_final, partial(count, store, QUOTA, 1, new_key())) for store in processes(world, 2)]
    run_together([*makers, partial(clock.pass_s, 1), *counts])
    last = overrides.read_override(world.call(), QUOTA, ITEM)["limit"]
    assert last in [10 if limit is None else limit for limit in limits_of]
    for store in processes(world, 2):
        for at_s in (clock() - 1, clock()):
            assert refused(store, QUOTA, 61, at_s=at_s)["limit"] == last


@pytest.mark.parametrize("limit", [0, -7, AMOUNT_MAX, -AMOUNT_MAX])
def test_any_whole_number_is_a_limit(world: World, clock: Clock, limit: int) -> None:
    """A ceiling below where a number begins lets nothing through but what leads down. A floor is a limit as well."""
    give(world.store, SEATS, limit)
    if limit > 0:
        count(world.store, SEATS, limit)
    assert refused(world.store, SEATS, 1)["left"] == min(limit, 0)
    count(world.store, SEATS, -AMOUNT_MAX)
    give(world.store, CREDIT, limit)
    assert refused(world.store, CREDIT, -AMOUNT_MAX)["left"] == 5 - limit if limit > -AMOUNT_MAX else True
    count(world.store, CREDIT, 1)


@pytest.mark.parametrize("counter", [QUOTA, SEATS], ids=lambda counter: counter.name)
def test_without_the_option_the_declared_limit_holds_and_with_it_again_that_of_the_id(
    world: World, clock: Clock, counter: Counter
) -> None:
    """A deploy, and its rollback: each has processes of its own."""
    give(world.store, counter, 30)
    count(world.store, counter, 20)
    (before,) = processes(world, 1)
    without = replace(counter, limit_overrides=False)
    assert refused(before, without, 1)["left"] == -10
    count(before, without, -15)
    clock.pass_s(60)
    count(before, without, 5)
    (after,) = processes(world, 1)
    used = world.tally(counter, periods.tally_id(counter, ITEM, clock()))
    assert refused(after, counter, 31)["left"] == 30 - used


def test_an_override_of_the_floor_is_ignored_once_the_counter_has_a_ceiling(world: World, clock: Clock) -> None:
    """Nobody could see it any more: the override is its ceiling from then on."""
    give(world.store, CREDIT, -3)
    (later,) = processes(world, 1)
    bounded = replace(CREDIT, ceiling=20)
    assert overrides.read_override(Call(later), bounded, ITEM) == {
        "counter": "credit",
        "id": ITEM,
        "limit": 20,
        "own": False,
    }
    assert refused(later, bounded, -6)["left"] == 5
    give(later, bounded, 8)
    assert refused(later, bounded, 4)["left"] == 3


def test_a_visit_by_a_clock_that_is_ahead_is_judged_by_the_plan_of_now(world: World, clock: Clock) -> None:
    """It begins the next period early, having read the plan that is replaced meanwhile."""
    readers = replace(counters.READERS, visible="now", ceiling=2, max_shards=1, limit_overrides=True)
    pseudonyms.stack_secret(world.call())
    (other,) = processes(world, 1)
    clock.pass_s(DAY_S - clock() % DAY_S - OFF_S_MAX)
    tomorrow_s = int(clock()) + OFF_S_MAX

    def visit(visitor: str) -> None:
        unique_visitors.count(world.call(), readers, ITEM, visitor, tomorrow_s)

    def change() -> None:
        with clock.with_skew(-1):
            give(replace(other, client=world.raw), readers, 1)

    world.proxy.forget()
    world.proxy.plan = acting_before({0: change})
    visit("ann")
    assert refusal(partial(visit, "bob")).members["limit"] == 1


@pytest.mark.parametrize("counter", [QUOTA, SEATS], ids=lambda counter: counter.name)
def test_a_limit_below_what_is_used_refuses_until_it_fits_and_takes_back_what_leads_there(
    world: World, clock: Clock, counter: Counter
) -> None:
    count(world.store, counter, 8)
    assert give(world.store, counter, 5) == {"counter": counter.name, "id": ITEM, "limit": 5, "own": True}
    members = refused(world.store, counter, 1)
    assert (members["left"], members["limit"], "retry_after_s" in members) == (-3, 5, counter is QUOTA)
    count(world.store, counter, -2)
    assert refused(world.store, counter, 1)["left"] == -1
    count(world.store, counter, -2)
    count(world.store, counter, 1)
    assert refused(world.store, counter, 1)["left"] == 0
    assert "retry_after_s" not in refused(world.store, counter, 6), "more than a period takes"


@pytest.mark.parametrize("counter", [QUOTA, SEATS], ids=lambda counter: counter.name)
def test_a_limit_that_goes_leaves_the_declared_one_of_that_moment(world: World, clock: Clock, counter: Counter) -> None:
    count(world.store, counter, 1)
    give(world.store, counter, 50)
    (other,) = processes(world, 1)
    assert refused(other, counter, 50)["left"] == 49
    assert give(world.store, counter, None) == {"counter": counter.name, "id": ITEM, "limit": 10, "own": False}
    for store in (world.store, other):
        assert refused(store, counter, 10)["left"] == 9
    assert overrides.read_override(world.call(), counter, ITEM)["own"] is False
    (later,) = processes(world, 1)
    assert refused(later, replace(counter, ceiling=20), 20)["limit"] == 20, "a deploy raised it: no copy keeps the old"
    assert (counter.partition_start + ITEM in {item["PK"]["S"] for item in world.items()}) == (counter is SEATS)


def test_a_late_copy_of_an_earlier_plan_is_a_replay(world: World, clock: Clock) -> None:
    give(world.store, SEATS, 50, "first")
    give(world.store, SEATS, 20, "second")
    assert give(world.store, SEATS, 50, "first")["limit"] == 50, "the answer of then"
    assert overrides.read_override(world.call(), SEATS, ITEM)["limit"] == 20


@pytest.mark.parametrize("fault", [faults.LOSE_RESPONSE, faults.FAIL_AFTER, faults.CONFLICT], ids=str)
def test_a_plan_whose_answer_is_lost_stands_and_is_answered_as_the_first(
    world: World, clock: Clock, fault: Fault
) -> None:
    world.proxy.strip_tokens = True
    world.proxy.plan = faults.script({"TransactWriteItems": [fault]})
    assert retry_until_final(partial(give, world.store, QUOTA, 20, "key"))["limit"] == 20
    assert copy_of(world, clock()) == 20
    assert world.proxy.injected(fault) == 1


def test_holds_are_judged_by_the_limit_and_expired_ones_make_room_under_it(counting: Counting, clock: Clock) -> None:
    give(counting.world.store, CREDIT, -5)
    counting.place_hold(8, counter=CREDIT)
    caught = refusal(partial(counting.place_hold, 3, counter=CREDIT))
    assert caught.members == {"left": 2, "limit": -5}
    give(counting.world.store, CREDIT, 2)
    assert refusal(partial(counting.place_hold, 1, counter=CREDIT)).members == {"left": -5, "limit": 2}
    clock.pass_s(61)
    counting.place_hold(3, counter=CREDIT)  # 8 came back: of 5 there is room for 3
    assert counting.stored(CREDIT) == 2
    assert refusal(partial(counting.increment, CREDIT, -1)).members == {"left": 0, "limit": 2}


def test_a_hold_comes_back_below_a_limit_that_was_raised_meanwhile(counting: Counting) -> None:
    body, _ = counting.place_hold(3, counter=CREDIT)
    give(counting.world.store, CREDIT, 4)
    (other,) = processes(counting.world, 1)
    settled = settling.settle(Call(other), CREDIT, ITEM, body["hold"], hold_items.RELEASED)
    assert (settled["state"], counting.stored(CREDIT)) == ("released", 5)


def test_a_hold_that_gives_back_is_judged_by_a_ceiling_of_its_own(counting: Counting) -> None:
    both = replace(CREDIT, ceiling=9)
    body, _ = counting.place_hold(3, counter=CREDIT)
    (other,) = processes(counting.world, 1)
    give(other, both, 4)
    with pytest.raises(LimitReachedError) as caught:
        settling.settle(Call(other), both, ITEM, body["hold"], hold_items.RELEASED)
    assert caught.value.members == {"left": 2, "limit": 4}


def test_a_hold_is_judged_by_the_plan_of_its_own_period_which_stays_that_of_its_end(
    counting: Counting, clock: Clock
) -> None:
    """Near an edge, and long beyond it: what is taken, and what a commit takes more."""
    store = counting.world.store
    debtor = replace(QUOTA, debt=3)
    (other,) = processes(counting.world, 1)

    def take(amount: int) -> str:
        tally = periods.tally_id(QUOTA, ITEM, clock())
        return str(counting.place_hold(amount, ttl_s=3600, counter=QUOTA, id_=tally)[0]["hold"])

    def commit(hold: str, amount: int, counter: Counter = QUOTA) -> dict[str, Any]:
        return settling.settle(counting.world.call(), counter, ITEM, hold, hold_items.COMMITTED, amount)

    clock.pass_s(59 - clock() % 60)
    first = periods.tally_id(QUOTA, ITEM, clock())
    give(store, QUOTA, 100)
    used, more, late = take(70), take(10), take(5)
    assert refusal(partial(take, 16)).members == {"left": 15, "limit": 100, "retry_after_s": 1}
    give(other, QUOTA, 50)
    assert refusal(partial(take, 1)).members == {"left": -35, "limit": 50, "retry_after_s": 1}
    clock.pass_s(1)
    take(50)
    assert refusal(partial(take, 1)).members["left"] == 0
    assert refusal(partial(commit, used, 71)).members == {"left": -35, "limit": 50}
    assert commit(used, 20)["amount"] == 20
    assert refusal(partial(commit, more, 26)).members == {"left": 15, "limit": 50}
    give(other, QUOTA, 60)
    assert commit(more, 35)["changed"]
    clock.pass_s(OFF_S_MAX + 60)
    give(other, QUOTA, 200)
    assert refusal(partial(commit, late, 6)).members == {"left": 0, "limit": 60}
    assert refusal(partial(commit, late, 9, debtor)).members == {"left": 3, "limit": 60}
    assert commit(late, 8, debtor)["amount"] == 8
    assert counting.world.tally(QUOTA, first) == 20 + 35 + 8
    take(200)


def test_many_changes_are_judged_each_by_the_limit_of_its_id(world: World, clock: Clock) -> None:
    """The process knows the old limits of both: it learns the new ones from one refusal."""
    named = [("quota", ITEM), ("seats", ITEM)]

    def together(*amounts: int) -> None:
        entries = [{"counter": name, "id": id_, "amount": by} for (name, id_), by in zip(named, amounts, strict=True)]
        wanted = batch.parse_batch(entries, counters.COUNTERS, clock(), soon=False)
        batch.count(world.call(), wanted, operation="change", key=new_key(), soon=False)

    together(1, 1)
    together(1, 1)
    for counter in (QUOTA, SEATS):
        give(processes(world, 1)[0], counter, 30)
    world.proxy.forget()
    together(20, 20)
    assert [request.operation for request in world.proxy.requests] == ["TransactWriteItems"] * 2
    with pytest.raises(LimitReachedError) as caught:
        together(1, 9)
    assert caught.value.members == {"entry": 1, "counter": "seats", "id": ITEM, "left": 8, "limit": 30}
    assert (world.tally(SEATS, ITEM), world.tally(QUOTA, periods.tally_id(QUOTA, ITEM, clock()))) == (22, 22)


def test_a_value_is_set_within_the_limit_of_its_id(counting: Counting) -> None:
    """A plan moves the version: what was read before it may not be set."""
    counting.increment(SEATS, 1)
    give(counting.world.store, SEATS, 30)
    assert isinstance(refusal(partial(counting.set, SEATS, 25, 1)), PreconditionFailedError)
    assert counting.set(SEATS, 25, 2)[0]["value"] == 25
    assert isinstance(refusal(partial(counting.set, SEATS, 31, 3)), LimitReachedError)
    other = replace(processes(counting.world, 1)[0], client=counting.world.raw)
    counting.world.proxy.forget()
    counting.world.proxy.plan = acting_before({0: partial(give, other, SEATS, 5)})
    assert isinstance(refusal(partial(counting.set, SEATS, 20, 3)), PreconditionFailedError)
    assert isinstance(refusal(partial(counting.set, SEATS, 20, 4)), LimitReachedError)
    assert counting.stored(SEATS) == 25


def test_an_imported_number_is_judged_by_the_limit_of_its_id(world: World) -> None:
    give(world.store, SEATS, 30)
    rows = [NumberRow(1, ITEM, 25), NumberRow(2, "another", 25)]
    refused_rows = [imports.import_numbers(world.call(), SEATS, "run", Chunk(row.line, [row])) for row in rows]
    assert [len(one) for one in refused_rows] == [0, 1]
    assert world.tally(SEATS, ITEM) == 25


def test_a_number_with_a_start_is_imported_after_the_limit_of_its_id_and_once(counting: Counting) -> None:
    """The plan has moved the version, and there is no number yet."""
    call, rows = counting.world.call(), [NumberRow(1, ITEM, -25)]
    give(counting.world.store, CREDIT, -20)
    assert [one.why for one in imports.import_numbers(call, CREDIT, "run", Chunk(0, rows))] == [
        "-25 is not within the limits of credit."
    ]
    give(counting.world.store, CREDIT, -30)
    assert counting.read(CREDIT)["version"] == 2
    for _ in range(2):
        assert imports.import_numbers(counting.world.call(), CREDIT, "run", Chunk(0, rows)) == []
    assert (counting.stored(CREDIT), counting.read(CREDIT)["version"]) == (-25, 3)
    assert len(imports.import_numbers(counting.world.call(), CREDIT, "another run", Chunk(0, rows))) == 1
    assert counting.set(CREDIT, -24, 3)[0]["version"] == 4


def test_reads_show_the_limit_and_a_new_process_reads_what_holds(counting: Counting, clock: Clock) -> None:
    assert counting.read(QUOTA)["limit"] == 10
    give(counting.world.store, QUOTA, 20)
    assert counting.read(QUOTA)["limit"] == 20
    clock.pass_s(300)
    assert counting.read(QUOTA)["limit"] == 20, "no item of this minute says so: the plan does"
    assert counting.read(counters.STOCK)["limit"] == 0
    assert "limit" not in counting.read(counters.USAGE)


def test_a_tally_without_a_plan_is_written_as_it_was_before_there_were_plans(counting: Counting) -> None:
    counting.stock(3)
    counting.increment(counters.STOCK, -1)
    sent = counting.world.sent("TransactWriteItems")[-1]["TransactItems"][1]["Update"]
    assert (sent["ConditionExpression"], sorted(sent["ExpressionAttributeNames"])) == (
        "#number >= :limit", ["#at", "#number"],
    )  # fmt: skip
    (item,) = counting.world.items()
    assert sorted(item) == ["PK", "SK", "at", "nonce", "qty", "version"]
    assert counting.world.store.limit_cache == {}


def test_a_process_goes_on_when_the_item_that_it_knows_is_gone(world: World, clock: Clock) -> None:
    give(world.store, QUOTA, 30)
    count(world.store, QUOTA, 9)
    count(world.store, QUOTA, 9)
    world.delete(tallies.key(QUOTA, periods.tally_id(QUOTA, ITEM, clock()), 0))
    count(world.store, QUOTA, 25)
    assert copy_of(world, clock()) == 30


def test_what_a_process_remembers_has_an_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CACHED_TALLIES_MAX", 3)
    for number in range(10):
        limits.read_limits(world.call(), SEATS, f"{number}")
    assert 0 < len(world.store.limit_cache) <= 3


def test_what_a_plan_costs(world: World, clock: Clock) -> None:
    one, other = processes(world, 2)
    clock.pass_s(1.5 * DAY_S - clock() % DAY_S)

    def costs(what: Callable[[], object]) -> list[tuple[str, float]]:
        with world.capacity() as measured:
            what()
        return list(measured)

    look, write, daily = ("BatchGetItem", 2.0), ("TransactWriteItems", 4.0), counters.CALLS
    assert costs(lambda: count(one, daily, 1)) == [look, write], "the first of a period copies the plan"
    assert costs(lambda: count(one, daily, 1)) == [look, write]
    assert costs(lambda: count(one, daily, 1)) == [write]
    assert costs(lambda: count(other, daily, 1)) == [look, write]
    assert costs(lambda: give(one, daily, 5000)) == [("TransactWriteItems", 6.0)]
    assert costs(lambda: count(other, daily, 1))[-1] == write, "after an attempt that is refused"
    assert costs(lambda: count(other, daily, 1)) == [write]
    assert costs(lambda: give(one, SEATS, 5000)) == [("TransactWriteItems", 4.0)]
    assert costs(lambda: give(one, QUOTA, 5000)) == [("TransactWriteItems", 66.0)], "31 minutes are near"
    assert costs(lambda: count(other, SEATS, 1)) == [("BatchGetItem", 1.0), write]


@pytest.fixture
def calm() -> Iterator[Deployment]:
    with deployed() as made:
        yield made


def test_no_number_drifts_and_a_repair_keeps_to_the_limit(calm: Deployment) -> None:
    other = replace(calm.store, idempotency_layers={}, limit_cache={})
    for counter in (QUOTA, SEATS, CREDIT):
        give(calm.store, counter, 30 if counter.ceiling else -30)
        count(calm.store, counter, 2)
        refused(calm.store, counter, 40 if counter.ceiling else -40)
        give(other, counter, 6 if counter.ceiling else 0)
        count(calm.store, counter, -1)
        give(other, counter, None)
    calm.assert_no_drift(8)
    give(other, SEATS, 6)
    calm.edit(-1, SEATS, ITEM)
    count(calm.store, SEATS, 6)  # 7 are accepted, and 6 are stored
    calm.run(9)
    reconciler = calm.reconciler()
    required_minute = reconciler.minute_to_judge()
    reconciler.wait_until_judged(required_minute)
    with pytest.raises(OutOfBoundsError):
        reconciler.repair(SEATS, ITEM, "ann", "edited by hand", required_minute=required_minute)
    give(other, SEATS, 7)
    assert reconciler.repair(SEATS, ITEM, "ann", "edited by hand", required_minute=required_minute) is not None
    assert calm.tally(SEATS, ITEM) == 7
    give(other, CREDIT, 1, id_="new")
    assert reconciler.find(CREDIT, "new").tally == 5, "its item has a plan, and no number yet"
