"""The bounds of a number that a team keeps itself, in a model: what is reported is real, and what is wrong is found.

Items come and go, and the team's code moves the number after a lag, or before the item. In the middle the number loses
three for good. Looks come once a minute, at what the consumer has passed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tally.counter import Counter, Watched
from tally.items import Items
from tally.team import watch as judge
from tally.team.team_numbers import TeamNumberNote
from tests.tiers import in_long

SPAN_S, FAULT_S, LOST = 4 * 3600, 2 * 3600, 3
START_S = 1_795_000_000
RULE, NUMBER = "60 True", {"kept": {"N": "0"}, "items": {"N": "0"}}


def lag_s(kind: str, chance: random.Random, at_s: float, within: int) -> float:
    """How long after its item the number moves; before it, if it is negative."""
    if kind == "same moment":
        return 0.0
    if kind == "late":
        return min(within, chance.expovariate(5 / within))
    if kind == "slow":
        return within - 1
    if kind == "flushed":
        return within - at_s % within
    assert kind == "early"
    return -min(within, chance.expovariate(5 / within))


def events(rate: float, kind: str, within: int, chance: random.Random, fault_s: float) -> list[tuple[float, str, int]]:
    """What happens to a group: items that come and go, and the moves of its number. `rate`: changes a minute."""
    at_s, made, there = 0.0, list[tuple[float, str, int]](), 0
    while (at_s := at_s + chance.expovariate(rate / 60)) < SPAN_S:
        sign = -1 if there > 0 and chance.random() < 0.3 else 1
        there += sign
        made += [(at_s, "item", sign), (at_s + lag_s(kind, chance, at_s, within), "number", sign)]
    return sorted([*made, (fault_s, "number", -LOST)])


def counter(within: int) -> Counter:
    return Watched("w", table="t", attribute="n", items=Items("t", sort_key="SK"), at="META", within_s=within)


def noted_look(low: int, high: int, since: float) -> dict[str, Any]:
    bounds = {name: {"N": str(value)} for name, value in (("low", low), ("high", high), ("since", since))}
    return {**bounds, "rule": {"S": RULE}}


def looks(rate: float, kind: str, within: int, seed: int, fault_s: float) -> Iterator[tuple[float, int]]:
    """When, and by how much the number is said to be off."""
    chance, watching = random.Random(seed), counter(within)
    left, item, listed, number = events(rate, kind, within, chance, fault_s), dict[str, Any](), dict[str, Any](), 0
    count = 0
    for minute in range(1, SPAN_S // 60):
        passed_s = minute * 60 - chance.uniform(0, 50)
        seen_s = passed_s + chance.uniform(0, 5)  # the consumer may be further than what is noted
        while left and left[0][0] <= seen_s:
            at_s, what, amount = left.pop(0)
            count, number = (count + amount, number) if what == "item" else (count, number + amount)
            up = amount if what == "item" else -amount
            noted = TeamNumberNote()
            noted.move(watching, START_S + at_s, max(up, 0), max(-up, 0))
            for name, moved in noted.moves.items():
                item[name] = {"N": str(int(item.get(name, {"N": "0"})["N"]) + moved)}
        item |= {"kept": {"N": str(number)}, "items": {"N": str(count)}}
        known = judge.excess_bounds(watching, item, START_S + passed_s)
        assert known
        low, high, since = judge.intersect_bounds(listed, *known, START_S + passed_s, RULE)
        listed = noted_look(low, high, since)
        yield passed_s, low if low > 0 else high if high < 0 else 0


@pytest.mark.parametrize("kind", ["same moment", "late", "slow", "flushed", "early"])
@pytest.mark.parametrize("rate", [0.05, 1, 10, *in_long([60])])
def test_what_is_reported_is_real(kind: str, rate: float) -> None:
    """Nothing is off, and nothing is said to be; and of what is off no more is said than there is."""
    for seed in range(2):
        for at_s, off in looks(rate, kind, 60, seed, FAULT_S):
            assert off == 0 if at_s < FAULT_S - 5 else -LOST <= off <= 0, (seed, at_s)


@pytest.mark.parametrize(("rate", "within", "minutes"), [(0.05, 60, 5), (1, 60, 15), (10, 5, 15)])
def test_a_calm_group_is_found(rate: float, within: int, minutes: int) -> None:
    """By its whole amount, some minutes after; the fewer changes are in flight, the sooner."""
    for seed in range(3):
        found = [at_s for at_s, off in looks(rate, "late", within, seed, FAULT_S) if off == -LOST]
        assert found, seed
        assert found[0] < FAULT_S + minutes * 60, seed


def test_looks_begin_again_where_they_exclude_each_other_or_are_old() -> None:
    """The number was put right; or it went wrong since."""

    def after(low: int, high: int, *more: Any) -> tuple[int, int, int]:
        return judge.intersect_bounds(noted_look(low, high, START_S), *more)

    assert judge.intersect_bounds({}, -3, -1, START_S, RULE) == (-3, -1, START_S)
    assert after(-3, -1, -2, 4, START_S + 60, RULE) == (-2, -1, START_S)
    assert after(-3, -3, 0, 0, START_S + 60, RULE) == (0, 0, START_S + 60)
    later_s = START_S + judge.BOUNDS_WINDOW_S
    assert after(-3, -1, -2, 4, later_s, RULE) == (-2, 4, later_s)


def test_looks_begin_again_with_another_rule() -> None:
    """`together` was declared: a difference that was exact then may have been in flight."""
    looked = noted_look(5, 5, START_S)
    assert judge.intersect_bounds(looked, 0, 5, START_S + 60, "60 False") == (0, 5, START_S + 60)


@pytest.mark.parametrize(("before", "after"), [(60, 3600), (3600, 60), (5, 60)])
def test_changes_in_flight_stay_in_flight_with_another_within_s(before: int, after: int) -> None:
    """The stretches of the first declaration are read by the second one."""
    first, second = counter(before), counter(after)
    noted = TeamNumberNote()
    noted.move(first, START_S + 7, 1, 2)
    item = {name: {"N": str(moved)} for name, moved in noted.moves.items()}
    assert judge.excess_bounds(second, item | NUMBER, START_S + 7 + after) == (-2, 1)
    assert judge.excess_bounds(second, item | NUMBER, START_S + 7 + before + after) == (0, 0)
