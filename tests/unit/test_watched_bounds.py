"""The bounds of a team number's excess, in a model: each reported excess is real, and a wrong number is found.

Items are written and removed, and the team's code moves its number after a lag, or before the item. Halfway a fault
lowers the number by 3 for good. Each minute Tally checks the number, up to the record that the consumer has passed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tally.counter import Counter, Watched
from tally.items import Items
from tally.team import watch
from tally.team.team_numbers import TeamNumberNote
from tests.tiers import marked_long

SPAN_S, FAULT_S, LOST = 4 * 3600, 2 * 3600, 3  # how long the model runs; when the fault comes; what the number loses
START_S = 1_795_000_000
RULE = "60 True"  # `within_s` and `same_transaction` of the declaration, as the ledger notes them
NUMBERS = {"team_number": {"N": "0"}, "items": {"N": "0"}}  # the team's number and the count, in a tally item


def lag_s(kind: str, rng: random.Random, at_s: float, within_s: int) -> float:
    """Returns how long after its item the team's number moves; negative: before its item."""
    if kind == "same moment":
        return 0.0
    if kind == "late":
        return min(within_s, rng.expovariate(5 / within_s))
    if kind == "slow":
        return within_s - 1
    if kind == "flushed":  # the team's code writes its numbers every `within_s`
        return within_s - at_s % within_s
    assert kind == "early"
    return -min(within_s, rng.expovariate(5 / within_s))


class Change(NamedTuple):
    """A change of the items of a group, or of the team's number. `attribute`: `items` or `team_number`."""

    at_s: float
    attribute: str
    amount: int

    def apply(self, watched: Counter, item: dict[str, Any]) -> None:
        """Changes the tally item of the group as the consumer does."""
        # Until the other of items and number follows, the number is too low by this amount (negative: too high).
        too_low = self.amount if self.attribute == "items" else -self.amount
        note = TeamNumberNote()
        note.move(watched, START_S + self.at_s, up=max(too_low, 0), down=max(-too_low, 0))
        for attribute, amount in ((self.attribute, self.amount), *note.moves.items()):
            item[attribute] = {"N": str(int(item.get(attribute, {"N": "0"})["N"]) + amount)}


def changes_of_group(rate_per_min: float, kind: str, within_s: int, rng: random.Random) -> list[Change]:
    """Returns the changes of a group, by time."""
    at_s, changes, items = 0.0, list[Change](), 0
    while (at_s := at_s + rng.expovariate(rate_per_min / 60)) < SPAN_S:
        sign = -1 if items > 0 and rng.random() < 0.3 else 1
        items += sign
        moved_s = at_s + lag_s(kind, rng, at_s, within_s)
        changes += [Change(at_s, "items", sign), Change(moved_s, "team_number", sign)]
    return sorted([*changes, Change(FAULT_S, "team_number", -LOST)])


def counter(within_s: int) -> Counter:
    return Watched("w", table="t", attribute="n", items=Items("t", sort_key="SK"), at="META", within_s=within_s)


def noted_bounds(low: int, high: int, since: float) -> dict[str, Any]:
    """Returns the attributes by which the ledger notes the bounds of a group."""
    bounds = {name: {"N": str(value)} for name, value in (("low", low), ("high", high), ("since", since))}
    return {**bounds, "rule": {"S": RULE}}


def checks(rate_per_min: float, kind: str, within_s: int, seed: int) -> Iterator[tuple[float, int]]:
    """Yields the time of each check, and the excess that the check proves (0: no excess)."""
    rng, watched = random.Random(seed), counter(within_s)
    pending = changes_of_group(rate_per_min, kind, within_s, rng)
    item, noted = dict(NUMBERS), dict[str, Any]()
    for minute in range(1, SPAN_S // 60):
        passed_s = minute * 60 - rng.uniform(0, 50)
        read_s = passed_s + rng.uniform(0, 5)  # the consumer may be ahead of its noted checkpoint
        while pending and pending[0].at_s <= read_s:
            pending.pop(0).apply(watched, item)
        bounds = watch.excess_bounds(watched, item, START_S + passed_s)
        assert bounds
        low, high, since = watch.intersect_bounds(noted, *bounds, START_S + passed_s, RULE)
        noted = noted_bounds(low, high, since)
        yield passed_s, low if low > 0 else high if high < 0 else 0


@pytest.mark.parametrize("kind", ["same moment", "late", "slow", "flushed", "early"])
@pytest.mark.parametrize("rate_per_min", [0.05, 1, 10, *marked_long([60])])
def test_a_reported_excess_is_real(kind: str, rate_per_min: float) -> None:
    """Before the fault no excess is reported, and then at most the lost amount. A check may see the fault 5 s early."""
    for seed in range(2):
        for at_s, excess in checks(rate_per_min, kind, within_s=60, seed=seed):
            assert excess == 0 if at_s < FAULT_S - 5 else -LOST <= excess <= 0, (seed, at_s)


@pytest.mark.parametrize(("rate_per_min", "within_s", "minutes"), [(0.05, 60, 5), (1, 60, 15), (10, 5, 15)])
def test_the_whole_excess_of_a_group_with_few_changes_is_found_within_minutes(
    rate_per_min: float, within_s: int, minutes: int
) -> None:
    """A number may lack the changes of the last `within_s`. The fewer these are, the sooner the excess is found."""
    for seed in range(3):
        found_at_s = [at_s for at_s, excess in checks(rate_per_min, "late", within_s, seed) if excess == -LOST]
        assert found_at_s, seed
        assert found_at_s[0] < FAULT_S + minutes * 60, seed


def test_the_noted_bounds_are_replaced_if_they_exclude_the_new_bounds_or_are_old() -> None:
    """In both cases the excess may have changed since the noted check."""

    def intersection(noted: tuple[int, int], found: tuple[int, int], found_s: int) -> tuple[int, int, int]:
        return watch.intersect_bounds(noted_bounds(*noted, since=START_S), *found, found_s, RULE)

    assert watch.intersect_bounds({}, -3, -1, START_S, RULE) == (-3, -1, START_S)
    assert intersection(noted=(-3, -1), found=(-2, 4), found_s=START_S + 60) == (-2, -1, START_S)
    assert intersection(noted=(-3, -3), found=(0, 0), found_s=START_S + 60) == (0, 0, START_S + 60)
    later_s = START_S + watch.BOUNDS_WINDOW_S
    assert intersection(noted=(-3, -1), found=(-2, 4), found_s=later_s) == (-2, 4, later_s)


def test_the_noted_bounds_are_replaced_if_the_declaration_has_another_rule() -> None:
    """The noted bounds are exact only with `same_transaction`, which the new declaration lacks."""
    noted = noted_bounds(5, 5, START_S)
    assert watch.intersect_bounds(noted, 0, 5, START_S + 60, "60 False") == (0, 5, START_S + 60)


@pytest.mark.parametrize(("before", "after"), [(60, 3600), (3600, 60), (5, 60)])
def test_changes_that_the_number_may_lack_keep_widening_the_bounds_if_within_s_changes(before: int, after: int) -> None:
    """The second declaration reads the sums by stretch of time (team_numbers.py) that the first declaration wrote."""
    first, second = counter(before), counter(after)
    note = TeamNumberNote()
    note.move(first, START_S + 7, up=1, down=2)
    item = {name: {"N": str(amount)} for name, amount in note.moves.items()}
    assert watch.excess_bounds(second, item | NUMBERS, START_S + 7 + after) == (-2, 1)
    assert watch.excess_bounds(second, item | NUMBERS, START_S + 7 + before + after) == (0, 0)
