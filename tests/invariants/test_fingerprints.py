"""A right number stays right while the declaration of its counter changes.

Consumers get the new declaration before writers. If the deploy is rolled back, both get the old declaration. A
declaration fits if it has the schema fingerprint that the ledger stores for the counter. A consumer that would book
records wrongly waits until the declaration fits.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

import counters
from tally.counter import MAX_SHARDS_AUTOMATIC, Counter
from tally.counting import increments, periods, tallies
from tally.counting.increments import Increment
from tally.dynamo.client import Call
from tally.errors import ConfigurationError
from tally.streams import fingerprints
from tally.streams.record import CounterIndex
from tests.invariants.deployment import Deployment, deployed
from tests.tiers import marked_long
from tests.unit.test_fingerprints import DAILY, FITTING, ONE_SHARD, PLAIN, cases

ID = "u"


def declare(world: Deployment, *declared: Counter) -> None:
    """Give both consumers the declarations of these counters and of the built-in counters."""
    for handler in world.handlers.values():
        handler.declared = CounterIndex({**counters.COUNTERS, **{counter.name: counter for counter in declared}})


def count(world: Deployment, counter: Counter, times: int = 1, id_: str = ID) -> int:
    """Change a counter on many shards, each time by its delta, or by 2 if the counter has no delta. Returns the sum,
    which is 0 if the counter is retired."""
    amount = counter.delta or 2
    for _ in range(0 if counter.retired else times):
        world.store.spread.widen(counter.partition_start + id_, counter.max_shards)
        call, key = Call(world.store), secrets.token_hex(12)
        tally = periods.tally_id(counter, id_, world.now_s)
        increments.count(call, Increment(counter, tally, amount, "count", key, {"counted": True}))
        world.schedule_new_records()
    return amount * (0 if counter.retired else times)


def read(world: Deployment, counter: Counter, id_: str = ID) -> int:
    return tallies.read(Call(world.store), counter, periods.tally_id(counter, id_, world.now_s))


FITTING_CASES = [  # the short tier has every eighth case
    case if number % 8 == 0 else pytest.param(*case.values, id=case.id, marks=pytest.mark.long)
    for number, case in enumerate(cases(FITTING))
]


@pytest.mark.parametrize(("old", "change"), FITTING_CASES)
def test_a_new_declaration_that_fits_and_its_rollback_move_no_number_and_make_no_drift(
    old: Counter, change: Mapping[str, Any]
) -> None:
    """Each number is the sum of its accepted changes, also if its id is new in a step of the deploy."""
    new, accepted = replace(old, **change), dict[str, int]()
    with deployed() as world:
        steps = ((old, old), (new, old), (new, new), (old, new), (old, old))
        for step, (consumers, writers) in enumerate(steps):
            declare(world, consumers)
            for id_ in (ID, f"new-in-step-{step}"):
                start = 0 if id_ in accepted else writers.start
                accepted[id_] = accepted.get(id_, 0) + start + count(world, writers, 5, id_)
            world.run_without_drift(minutes=3)
        world.run_without_drift()
        assert {id_: read(world, old, id_) for id_ in accepted} == accepted
        assert world.dead_letter_sequences() == {"rollup": set(), "bookkeeper": set()}


OTHER_ATTRIBUTE = replace(PLAIN, attribute="m")
NOT_FITTING = [
    *(replace(PLAIN, **{field: value}) for field, value in (("prefix", "D"), ("sort_key", "M"), ("name", "d"))),
    *(OTHER_ATTRIBUTE, replace(PLAIN, period="day"), replace(PLAIN, child="LIKE#USER#")),
]


@pytest.mark.parametrize("new", [OTHER_ATTRIBUTE, *marked_long(NOT_FITTING)], ids=str)
def test_consumers_wait_while_a_declaration_does_not_fit_and_continue_after_its_rollback(new: Counter) -> None:
    """While consumers wait, the judge stops, no number drifts, and callers' changes are accepted."""
    with deployed() as world:
        declare(world, PLAIN)
        accepted = count(world, PLAIN, 5)
        world.run_without_drift(minutes=3)
        declare(world, new)
        accepted += count(world, PLAIN, 5)
        judged_minute = world.last_judged_minute
        world.run_without_drift(minutes=20)
        assert world.last_judged_minute - judged_minute < 5, "the judge stops soon after the consumers"
        declare(world, PLAIN)
        accepted += count(world, PLAIN, 5)
        world.run_without_drift()
        assert (read(world, PLAIN), world.drifts()) == (accepted, {})
        assert world.dead_letter_sequences() == {"rollup": set(), "bookkeeper": set()}


@pytest.mark.parametrize(
    "change",
    [{"floor": 0}, *marked_long([{"ceiling": 900}, {"max_shards": 1}, {"numbered": True, "delta": 2}])],
    ids=str,
)
def test_a_number_in_many_shards_stays_right_under_a_declaration_of_one_shard(change: Mapping[str, Any]) -> None:
    """Reads sum up all shards, and a change of a numbered counter takes its number from the sum."""
    # With MAX_SHARDS_AUTOMATIC, a counter with a limit or with `numbered` has one shard.
    new = replace(PLAIN, **{"max_shards": MAX_SHARDS_AUTOMATIC, **change})
    with deployed() as world:
        declare(world, PLAIN)
        accepted = count(world, PLAIN, 40)
        world.run_without_drift(minutes=3)
        declare(world, new)
        assert read(world, new) == accepted
        accepted += count(world, new, 3) + count(world, PLAIN, 3)
        world.run_without_drift()
        assert (read(world, new), read(world, PLAIN)) == (accepted, accepted)
        declare(world, PLAIN)
        world.run_without_drift()
        with pytest.raises(ConfigurationError, match="counter 'c' has counted in many shards"):
            fingerprints.check(fingerprints.read_all(world.store), {"c": new})


def test_both_halves_of_a_change_are_booked_although_its_counter_is_no_longer_declared() -> None:
    """A deploy or a rollback may remove the counter when the bookkeeper has booked one half of a change. Unless the
    other half is booked, too, the number drifts."""
    with deployed() as world:
        declare(world, PLAIN)
        accepted = count(world, PLAIN, 5)
        world.run_without_drift(minutes=3)
        for declared in ((), (PLAIN,), ()):
            accepted += count(world, PLAIN)
            world.run_until(world.now_s + 2)  # so perhaps only one half of the change is booked
            declare(world, *declared)
        world.run_without_drift()
        declare(world, PLAIN)
        world.run_without_drift()
        assert read(world, PLAIN) == accepted


def test_the_first_change_stores_the_fingerprint_and_later_changes_only_lower_its_keep_periods() -> None:
    """A declaration with more `keep_periods` than the fingerprint does not fit, so a deploy refuses the declaration.
    But consumers do not wait, because they book each record rightly."""
    with deployed() as world:
        declare(world, ONE_SHARD)
        world.run(3)
        assert "c" not in fingerprints.read_all(world.store), "a counter without a change has no fingerprint"
        for counter in (DAILY, replace(DAILY, keep_periods=3), replace(DAILY, keep_periods=5)):
            declare(world, counter)
            count(world, counter)
            world.run_without_drift(minutes=3)
        assert fingerprints.read_all(world.store)["c"] == {**fingerprints.fingerprint_of(DAILY), "keep_periods": 3}
