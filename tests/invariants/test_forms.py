"""A declaration that changes while it counts: a number that was right stays right.

Consumers get the new declaration first, then writers. A deploy that is rolled back brings the old one back to both.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

import counters
from tally.counter import Counter
from tally.counting import increments, periods, tallies
from tally.counting.increments import Increment
from tally.dynamo.client import Call
from tally.errors import ConfigurationError
from tally.streams import forms
from tally.streams.record import CounterIndex
from tests.invariants.deployment import Deployment, deployed
from tests.tiers import in_long
from tests.unit.test_forms import DAILY, FITTING, ONE_SHARD, PLAIN, cases

ID = "u"


def declare(world: Deployment, *declared: Counter) -> None:
    """Both consumers have these counters, beside those that are shipped."""
    for handler in world.handlers.values():
        handler.declared = CounterIndex({**counters.COUNTERS, **{one.name: one for one in declared}})


def count(world: Deployment, counter: Counter, times: int = 1, id_: str = ID) -> int:
    """Changes of a counter that is contended, each by its delta or by 2; how much they come to."""
    amount = counter.delta or 2
    for _ in range(0 if counter.retired else times):
        world.store.spread.widen(counter.partition_start + id_, counter.max_shards)
        call, key = Call(world.store), secrets.token_hex(12)
        tally = periods.tally_id(counter, id_, world.now_s)
        increments.count(call, Increment(counter, tally, amount, "count", key, {"counted": True}))
        world.take_written()
    return amount * (0 if counter.retired else times)


def read(world: Deployment, counter: Counter, id_: str = ID) -> int:
    return tallies.read(Call(world.store), counter, periods.tally_id(counter, id_, world.now_s))


SEEN = [
    case if place % 8 == 0 else pytest.param(*case.values, id=case.id, marks=pytest.mark.long)
    for place, case in enumerate(cases(FITTING))
]


@pytest.mark.parametrize(("was", "change"), SEEN)
def test_a_change_that_fits_moves_no_number_and_makes_no_drift(was: Counter, change: Mapping[str, Any]) -> None:
    """Nor when it is rolled back. Each id, also one that is new at some moment, is what was accepted of it."""
    now, accepted = replace(was, **change), dict[str, int]()
    with deployed() as world:
        for consumers, writers in ((was, was), (now, was), (now, now), (was, now), (was, was)):
            declare(world, consumers)
            for id_ in (ID, f"{consumers == now} {writers == now}".replace(" ", "-")):
                start = 0 if id_ in accepted else writers.start
                accepted[id_] = accepted.get(id_, 0) + start + count(world, writers, 5, id_)
            world.assert_no_drift(3)
        world.assert_no_drift(8)
        kept = {id_: number for id_, number in accepted.items() if not (writers.retired and not number)}
        assert {id_: read(world, was, id_) for id_ in kept} == kept
        assert world.dead_letter_sequences() == {"rollup": set(), "bookkeeper": set()}


MOVED = replace(PLAIN, attribute="m")
WAITS = [
    *(replace(PLAIN, **{field: value}) for field, value in (("prefix", "D"), ("sort_key", "M"), ("name", "d"))),
    *(MOVED, replace(PLAIN, period="day"), replace(PLAIN, child="LIKE#USER#")),
]


@pytest.mark.parametrize("now", [MOVED, *in_long(WAITS)], ids=str)
def test_consumers_wait_where_they_would_book_wrongly_and_go_on_once_it_is_rolled_back(now: Counter) -> None:
    """Nothing is booked on one side, judged or repaired meanwhile, and callers' changes are accepted."""
    with deployed() as world:
        declare(world, PLAIN)
        accepted = count(world, PLAIN, 5)
        world.assert_no_drift(3)
        declare(world, now)
        accepted += count(world, PLAIN, 5)
        judged = world.last_judged_minute
        world.assert_no_drift(20)
        assert world.last_judged_minute - judged < 5, "and the alarm of the watermark goes off"
        declare(world, PLAIN)
        accepted += count(world, PLAIN, 5)
        world.assert_no_drift(15)
        assert (read(world, PLAIN), world.drifts()) == (accepted, {})
        assert world.dead_letter_sequences() == {"rollup": set(), "bookkeeper": set()}


@pytest.mark.parametrize(
    "change", [{"floor": 0}, *in_long([{"ceiling": 900}, {"max_shards": 1}, {"numbered": True, "delta": 2}])], ids=str
)
def test_a_number_in_many_shards_stays_right_under_a_declaration_that_needs_one(change: Mapping[str, Any]) -> None:
    """f7: it read the first shard alone, and a number that was given out was of that shard."""
    now = replace(PLAIN, **{"max_shards": 0, **change})
    with deployed() as world:
        declare(world, PLAIN)
        accepted = count(world, PLAIN, 40)
        world.assert_no_drift(3)
        declare(world, now)
        assert read(world, now) == accepted
        accepted += count(world, now, 3) + count(world, PLAIN, 3)
        world.assert_no_drift(8)
        assert (read(world, now), read(world, PLAIN)) == (accepted, accepted)
        declare(world, PLAIN)
        world.assert_no_drift(8)
        with pytest.raises(ConfigurationError, match="counter 'c' has counted in many shards: it can have no start"):
            forms.check(forms.noted(world.store), {"c": now})


def test_an_undeclared_counter_is_booked_as_expected_and_as_observed() -> None:
    """A removal that skipped `retired`, or the rollback of a deploy that added it: one half may be booked already."""
    with deployed() as world:
        declare(world, PLAIN)
        accepted = count(world, PLAIN, 5)
        world.assert_no_drift(3)
        for declared in ((), (PLAIN,), ()):
            accepted += count(world, PLAIN)
            world.run_until(world.now_s + 2)  # one consumer of one stream may have read it by now
            declare(world, *declared)
        world.assert_no_drift(8)
        declare(world, PLAIN)
        world.assert_no_drift(8)
        assert read(world, PLAIN) == accepted


def test_a_form_is_noted_with_the_first_change_and_never_changes_but_to_keep_less() -> None:
    """So code from before a deploy, and after its rollback, meets no form but its own."""
    with deployed() as world:
        declare(world, ONE_SHARD)
        world.run(3)
        assert forms.noted(world.store).keys() & {"c"} == set(), "what has never counted may change"
        for counter in (DAILY, replace(DAILY, keep_periods=3), replace(DAILY, keep_periods=5)):
            declare(world, counter)
            count(world, counter)
            world.assert_no_drift(3)
        assert forms.noted(world.store)["c"] == {**forms.form(DAILY), "keep_periods": 3}
