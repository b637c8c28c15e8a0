"""Which thresholds a move crosses, and what the event of each says."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tally.counter import Counter
from tally.counting import tallies
from tally.notify import MULTIPLES_MAX, THRESHOLDS_MAX, Notify
from tally.streams import bookkeeper, crossings, events
from tally.streams.bookkeeper import EVENTS_MAX, SEGMENTS_MAX, SegmentRun
from tally.streams.fold import DEAD_LETTERS_MAX, BatchContext, Effect
from tally.streams.record import CounterIndex, Record

CALLS = Counter(
    "calls", prefix="CLIENT", sort_key="CALLS", attribute="calls", ceiling=1_000, period="day",
    notify=Notify(percent=(80, 100), at=(10,)),
)  # fmt: skip
STOCK = Counter("stock", prefix="ITEM", sort_key="STOCK", attribute="qty", start=20, notify=Notify(at=(10, 20)))
GROUPS = Counter("groups", prefix="G", sort_key="N", attribute="n", child="M#", max_shards=1, notify=Notify(at=(3,)))
DECLARED = CounterIndex({one.name: one for one in (CALLS, STOCK, GROUPS)})
MADE_S = 1_795_000_000.25


def said(notify: Notify, old: int, new: int, *ceilings: int) -> list[tuple[int, bool]]:
    found = crossings.crossings_between(notify, old, new, ceilings or (None, None))  # type: ignore[arg-type]
    return [(one.threshold, one.is_upward) for one in found]


@given(st.sets(st.integers(-40, 40), max_size=4), st.integers(1, 9), st.integers(-50, 50), st.integers(-50, 50))
def test_a_move_crosses_what_a_walk_one_by_one_does(at: set[int], every: int, old: int, new: int) -> None:
    walked: list[tuple[int, bool]] = []
    for number in range(old + 1, new + 1):
        walked += [(number, True)] * (number in at or number % every == 0)
    for number in range(old, new, -1):
        walked += [(number, False)] * (number in at)
    found = said(Notify(at=tuple(at), every=every), old, new)
    multiples = [one for one in walked if one[1] and one[0] % every == 0]
    dropped = {one for one in multiples[:-MULTIPLES_MAX] if one[0] not in at}
    assert found == [one for one in walked if one not in dropped]


def test_a_threshold_is_crossed_by_who_reaches_it_and_by_who_falls_below() -> None:
    ten = Notify(at=(10,))
    assert (said(ten, 9, 10), said(ten, 10, 9)) == ([(10, True)], [(10, False)])
    assert (said(ten, 10, 11), said(ten, 11, 10), said(ten, 10, 10)) == ([], [], [])


def test_a_percentage_is_the_least_number_that_has_it() -> None:
    third = Notify(percent=(33,))
    assert said(third, 3, 4, 10, 10) == [(4, True)]
    assert said(third, 4, 3, 10, 10) == [(4, False)]
    assert said(Notify(percent=(80, 100), at=(8,)), 0, 10, 10, 10) == [(8, True), (10, True)], "one number, one event"


def test_a_limit_that_changes_crosses_percentages_too() -> None:
    near = Notify(percent=(80,))
    assert said(near, 90, 90, 100, 1_000) == [(800, False)], "a larger plan: no more near its end"
    assert said(near, 90, 90, 1_000, 100) == [(80, True)]
    assert said(near, 90, 850, 100, 1_000) == [], "it was near the old one, and is near the new one"
    assert said(near, 90, 90, 0, 100) == [(80, True)]
    assert said(near, 90, 90, 100, 0) == [(80, False)], "nothing has no percentage"
    assert said(near, 70, 70, 100, 0) == said(near, 90, 90, 0, -5) == []


@given(st.lists(st.tuples(st.integers(-3, 130), st.sampled_from([-1, 0, 1, 2, 40, 100])), max_size=12))
def test_the_events_of_a_percentage_go_up_and_down_in_turn_and_say_whether_it_is_reached(
    moves: list[tuple[int, int]],
) -> None:
    percents, now, ceiling = (50, 80, 100), 0, 100
    heard: dict[int, list[bool]] = {percent: [] for percent in percents}
    for value, limit in moves:
        for one in crossings.crossings_between(Notify(percent=percents), now, value, (ceiling, limit)):
            heard[one.declaration["percent"]].append(one.is_upward)
        now, ceiling = value, limit
        for percent, ways in heard.items():
            assert all(way != last for last, way in pairwise([False, *ways])), (percent, moves)
            assert ([False, *ways][-1]) == (limit > 0 and 100 * now >= percent * limit), (percent, moves)


@pytest.mark.parametrize(
    ("notify", "why"),
    [
        ("80 %", "must be Notify("),
        (Notify(), "it must have 1 to 16 thresholds"),
        (Notify(at=tuple(range(THRESHOLDS_MAX)), every=1), "it must have 1 to 16 thresholds"),
        (Notify(percent=80), "percent must be a tuple of whole numbers from 1 to 100, like (80,)"),  # type: ignore[arg-type]
        (Notify(percent=(0,)), "percent must be"),
        (Notify(percent=(101,)), "percent must be"),
        (Notify(at=(True,)), "at must be"),
        (Notify(at=(10**15 + 1,)), "at must be"),
        (Notify(every=0), "every must be"),
        (Notify(every=1.5), "every must be"),  # type: ignore[arg-type]
        (Notify(percent=(80,)), "percent needs a ceiling above 0"),
        (Notify(at=(10,)), "Tally sees no sum of shards go down"),
    ],
)
def test_wrong_thresholds_are_refused(notify: Any, why: str) -> None:
    with pytest.raises(Exception, match=r"counter 'usage': notify is ") as refused:
        Counter("usage", prefix="USER", sort_key="U", attribute="u", notify=notify)
    assert why in str(refused.value)


LIMITED = Counter("x", prefix="X", sort_key="N", attribute="n", start=5, floor=0, ceiling=10)


@pytest.mark.parametrize(
    ("more", "notify", "why"),
    [
        ({"ceiling": None}, Notify(at=(0,)), "no number falls below 0, because 0 is the least: give 1 or more"),
        ({"ceiling": None, "debt": 3}, Notify(at=(-3,)), "no number falls below -3"),
        ({"ceiling": None, "debt": 3}, Notify(at=(-2, 0)), None),
        ({"ceiling": None, "limit_overrides": True}, Notify(at=(-9,)), None),
        ({}, Notify(at=(1, 10), percent=(100,), every=10), None),
        ({}, Notify(at=(0,)), "because 0 is the least"),
        ({}, Notify(at=(11,)), "no number reaches 11, because 10 is the greatest: give 10 or less"),
        ({"floor": 5}, Notify(percent=(50,)), "no number falls below 5"),
        ({"floor": 5, "limit_overrides": True}, Notify(percent=(50,), at=(99,)), None),
        ({"floor": None, "debt": 2}, Notify(at=(12, -99)), None),
        ({"floor": None, "debt": 2}, Notify(at=(13,)), "no number reaches 13"),
        ({}, Notify(every=11), "because 0 is the least"),
        ({"delta": 1}, Notify(at=(1, 5, 10)), None),
        ({"delta": 1, "numbered": True}, Notify(at=(6, 10)), None),
        ({"delta": 1, "numbered": True}, Notify(at=(3,)), "no number falls below 3, because 5 is the least: give 6"),
        ({"delta": 1, "numbered": True}, Notify(percent=(50,)), "no number falls below 5"),
        ({"delta": 1, "numbered": True}, Notify(every=5), None),
        ({"delta": 2, "numbered": True, "ceiling": None}, Notify(at=(5,)), "no number falls below 5"),
        ({"delta": -1, "numbered": True}, Notify(at=(1, 5)), None),
        ({"delta": -1, "numbered": True}, Notify(at=(6,)), "no number reaches 6, because 5 is the greatest: give 5"),
        ({"delta": -1, "numbered": True}, Notify(every=2), "every needs numbers that go up, and delta is -1"),
        ({"delta": 1, "period": "day"}, Notify(at=(5,)), "no number falls below 5"),
        ({"delta": 1, "period": "day", "limit_overrides": True}, Notify(at=(5,)), "no number falls below 5"),
        ({"delta": 1, "period": "day", "limit_overrides": True}, Notify(at=(99,)), None),
        ({"delta": 3, "period": "day"}, Notify(at=(8,)), None),
        ({"delta": 3, "period": "day"}, Notify(percent=(100,)), "no number reaches 10, because 8 is the greatest"),
        ({"delta": -3, "period": "day", "floor": 1}, Notify(at=(3, 5), every=5), None),
        ({"delta": -3, "period": "day", "floor": 1}, Notify(at=(2,)), "no number falls below 2, because 2"),
        ({"delta": -3, "period": "day", "ceiling": None}, Notify(at=(6,)), "no number reaches 6"),
        ({"start": 0, "floor": None, "unique": True, "period": "day"}, Notify(at=(0,)), "no number falls below 0"),
    ],
)
def test_a_threshold_that_no_number_can_cross_is_refused(more: dict[str, Any], notify: Notify, why: str | None) -> None:
    """Who asks for at=(0,) of a stock would never hear that it is sold out."""
    if why is None:
        assert replace(LIMITED, notify=notify, **more).notify == notify
        return
    with pytest.raises(Exception, match=r"counter 'x': notify is ") as refused:
        replace(LIMITED, notify=notify, **more)
    assert why in str(refused.value)


def test_sums_that_only_count_up_and_single_items_have_thresholds() -> None:
    base, ten = Counter("usage", prefix="USER", sort_key="U", attribute="u"), Notify(at=(10,))
    for more in ({"delta": 1}, {"visible": "soon", "delta": 1}, {"child": "A#"}, {"max_shards": 1}, {"floor": 0}):
        assert replace(base, notify=ten, **{"max_shards": 0, **more}).notify == ten  # type: ignore[arg-type]
    with pytest.raises(Exception, match="Tally sees no sum"):
        replace(base, notify=ten, delta=-1)


@pytest.mark.parametrize(
    "more",
    [
        {"delta": 1}, {"visible": "soon", "delta": 2}, {"child": "A#"}, {"child": "A#", "max_shards": 1},
        {"pages": True, "max_shards": 1}, {"pages": True, "max_shards": 1, "delta": 1},
    ],
)  # fmt: skip
@pytest.mark.parametrize("threshold", [0, -5])
def test_a_threshold_that_a_sum_has_reached_before_it_counts_is_refused(more: dict[str, Any], threshold: int) -> None:
    sums = Counter("usage", prefix="USER", sort_key="U", attribute="u", notify=Notify(at=(1,)), **more)
    with pytest.raises(Exception, match="because 0 is the least: give 1 or more"):
        replace(sums, notify=Notify(at=(1, threshold)))


def record(counter: Counter, id_: str, old: int | None, new: int | None, sequence: int = 111, **more: Any) -> Record:
    """The record of a tally item, whose images have `more` (new) and a nonce."""
    images = {
        name: {**tallies.key(counter, id_, 0), counter.attribute: {"N": str(number)}, "nonce": {"S": nonce}}
        for name, number, nonce in (("OldImage", old, "a"), ("NewImage", new, more.pop("nonce", "b")))
        if number is not None
    }
    images.get("NewImage", {}).update(more)
    return {
        "eventName": "INSERT" if old is None else "REMOVE" if new is None else "MODIFY",
        "dynamodb": {
            "SequenceNumber": str(sequence), "ApproximateCreationDateTime": MADE_S,
            "Keys": tallies.key(counter, id_, 0), **images,
        },
    }  # fmt: skip


def details(one: Record) -> list[Any]:
    return [event.detail for effect in bookkeeper.read_count(DECLARED, one) for event in effect.events]


def test_the_event_says_what_crossed_which_threshold_and_when() -> None:
    one = record(CALLS, "7c20#2026-11-18", 790, 812)
    [effect] = [effect for effect in bookkeeper.read_count(DECLARED, one) if effect.events]
    [event] = effect.events
    assert (effect.expected, effect.observed) == (0, 0), "it books nothing"
    assert (event.at_ms, event.detail["event"]) == (1_795_000_000_250, event.id)
    assert {**event.detail, "event": ""} == {
        "event": "", "counter": "calls", "id": "7c20", "period": "2026-11-18", "threshold": 800, "percent": 80,
        "limit": 1_000, "direction": "up", "value": 812, "before": 790, "by": "change", "at": 1_795_000_000,
        "sequence": f"{111:040}.00",
    }  # fmt: skip
    assert event == bookkeeper.read_count(DECLARED, one)[-1].events[0], "it has the same name whenever it is read"


def test_names_of_events_differ_and_sequences_sort() -> None:
    first = details(record(STOCK, "x", 25, 5, sequence=9))
    then = details(record(STOCK, "x", 5, 25, sequence=10)) + details(record(STOCK, "y", 5, 25, sequence=10))
    assert [one["threshold"] for one in first] == [20, 10]
    assert len({one["event"] for one in first + then}) == 6
    sequences = [one["sequence"] for one in first + then[:2]]
    assert sequences == sorted(sequences)


@pytest.mark.parametrize(
    ("one", "by", "value"),
    [
        (record(STOCK, "x", 25, 5, nonce="a"), "edit", 5),
        (record(STOCK, "x", 5, None), "edit", 20),
        (record(STOCK, "x", 25, 5, nonce="~-20.z"), "repair", 5),
        (record(STOCK, "x", None, 25), "change", 25),
        (record(GROUPS, "x", 7, 7, nonce="a", gone={"N": "1"}), "removal", 0),
    ],
)
def test_the_event_says_who_moved_the_number(one: Record, by: str, value: int) -> None:
    found = details(one)
    assert found
    assert {(event["by"], event["value"]) for event in found} == {(by, value)}


def test_a_limit_that_changes_crosses_nothing_in_a_period_that_is_over() -> None:
    """It comes there within a minute of the edge. What holds move there by then still crosses."""
    own, plan = replace(CALLS, limit_overrides=True), {"own#plan": {"S": "p"}, "own#ceiling": {"N": "100"}}
    for day, old, events_made in ((18, 85, 1), (17, 85, 0), (17, 70, 1)):
        one = record(own, f"7c20#2026-11-{day}", old, 85, **plan)
        one["dynamodb"]["OldImage"]["own#plan"] = {"S": "-"}
        effects = bookkeeper.read_count(CounterIndex({"calls": own}), one)
        assert sum(len(effect.events) for effect in effects) == events_made


@pytest.mark.parametrize("period", [None, "day"])
def test_percentages_are_those_of_the_ceiling_that_each_image_has(period: str | None) -> None:
    own = replace(CALLS, limit_overrides=True, period=period)
    id_ = f"7c20{'#2026-11-18' if period else ''}"
    plan, mark = {"own#plan": {"S": "p"}, "own#ceiling": {"N": "100"}}, {"own#plan": {"S": "?x"}}
    declared = {"own#plan": {"S": "-"}}

    def said(old: int, new: int, before: dict[str, Any], after: dict[str, Any], nonce: str = "b") -> list[Any]:
        one = record(own, id_, old, new, nonce=nonce, **after)
        one["dynamodb"]["OldImage"].update(before)
        effects = bookkeeper.read_count(CounterIndex({"calls": own}), one)
        found = [event.detail for effect in effects for event in effect.events]
        return [(one["threshold"], one["limit"], one["direction"], one["by"]) for one in found]

    assert said(70, 85, plan, plan) == [(80, 100, "up", "change")]
    assert said(70, 85, declared, declared) == []
    assert said(85, 85, declared, plan, nonce="a") == [(80, 100, "up", "limit")]
    assert said(85, 85, plan, declared, nonce="a") == [(800, 1000, "down", "limit")]
    assert said(70, 85, {}, plan) == [(80, 100, "up", "change")]
    assert said(85, 85, {}, plan, nonce="a") == [(80, 100, "up", "limit")], "no copy: the declared one was its limit"
    assert said(70, 85, mark, plan) == [(80, 100, "up", "change")]
    left = plan | mark
    assert said(85, 85, plan, left, nonce="a") == [], "the mark comes beside what the last copy said"
    assert said(85, 86, left, declared) == [(800, 1000, "down", "change")]
    assert said(700, 850, mark, mark) == [(800, 1000, "up", "change")], "and nobody has one of its own"


def test_a_limit_that_an_id_gets_before_its_first_change_crosses_from_the_declared_one() -> None:
    own = replace(CALLS, limit_overrides=True, period=None, keep_periods=None, start=85)
    plan = {"own#plan": {"S": "p"}, "own#ceiling": {"N": "100"}, "start": {"N": "85"}}
    effects = bookkeeper.read_count(CounterIndex({"calls": own}), record(own, "7c20", None, 85, **plan))
    [event] = [event.detail for effect in effects for event in effect.events]
    assert (event["threshold"], event["direction"], event["by"]) == (80, "up", "limit")


def test_an_item_that_begins_with_another_start_crosses_from_there() -> None:
    assert [one["before"] for one in details(record(STOCK, "x", None, 5, start={"N": "12"}))] == [12]


def test_a_period_that_dynamodb_removes_crosses_nothing() -> None:
    gone = record(CALLS, "7c20#2026-11-10", 900, None)
    assert len(details(gone)) == 2, "somebody deleted it"
    assert details(gone | {"userIdentity": {"principalId": "dynamodb.amazonaws.com"}}) == []


def test_a_hold_that_is_released_into_a_period_that_is_not_kept_crosses_no_threshold() -> None:
    """Its item begins with the start again, or below."""
    kept = CounterIndex({"calls": replace(CALLS, keep_periods=2, notify=Notify(at=(-5,)))})
    for day, events_made in ((15, 0), (16, 1)):
        effects = bookkeeper.read_count(kept, record(CALLS, f"7c20#2026-11-{day}", None, -400))
        assert [effect.observed for effect in effects] == [-400] + [0] * events_made


def test_a_run_always_fits_into_a_transaction() -> None:
    """Whatever its last record crosses."""
    most = THRESHOLDS_MAX - 1 + MULTIPLES_MAX
    assert SEGMENTS_MAX + DEAD_LETTERS_MAX + 1 + EVENTS_MAX + most <= 100
    run = SegmentRun("1", BatchContext("counts", "s"))
    full = tuple(events.Event(f"{number:032x}", 0, {}) for number in range(EVENTS_MAX))
    run.add([Effect("calls", "x", 1, events=full)])
    assert run.has_room_for([])
    run.add([Effect("calls", "x", 1, events=full[:1])])
    assert not run.has_room_for([])
