"""The thresholds that a move of a number crosses, and the event of each crossing."""

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
DECLARED = CounterIndex({counter.name: counter for counter in (CALLS, STOCK, GROUPS)})
MADE_S = 1_795_000_000.25  # when DynamoDB made the records: on 2026-11-18


def crossed(notify: Notify, old: int, new: int, *ceilings: int) -> list[tuple[int, bool]]:
    """Returns each threshold that a move crosses, and whether upwards. `ceilings`: before and after the move."""
    results = crossings.crossings_between(notify, old, new, ceilings or (None, None))  # type: ignore[arg-type]
    return [(crossing.threshold, crossing.is_upward) for crossing in results]


@given(st.sets(st.integers(-40, 40), max_size=4), st.integers(1, 9), st.integers(-50, 50), st.integers(-50, 50))
def test_a_move_crosses_the_thresholds_that_single_steps_cross(at: set[int], every: int, old: int, new: int) -> None:
    stepped: list[tuple[int, bool]] = []
    for number in range(old + 1, new + 1):
        stepped += [(number, True)] * (number in at or number % every == 0)
    for number in range(old, new, -1):
        stepped += [(number, False)] * (number in at)
    multiples = [(number, up) for number, up in stepped if up and number % every == 0]
    # Of the multiples of `every`, a move makes events for the last MULTIPLES_MAX only.
    dropped = {(number, up) for number, up in multiples[:-MULTIPLES_MAX] if number not in at}
    assert crossed(Notify(at=tuple(at), every=every), old, new) == [step for step in stepped if step not in dropped]


def test_a_number_that_reaches_a_threshold_or_falls_below_crosses_the_threshold() -> None:
    at_ten = Notify(at=(10,))
    assert (crossed(at_ten, 9, 10), crossed(at_ten, 10, 9)) == ([(10, True)], [(10, False)])
    assert (crossed(at_ten, 10, 11), crossed(at_ten, 11, 10), crossed(at_ten, 10, 10)) == ([], [], [])


def test_a_percentage_is_crossed_at_the_least_number_that_has_reached_it() -> None:
    third = Notify(percent=(33,))
    assert crossed(third, 3, 4, 10, 10) == [(4, True)]  # 33 % of 10 are 3.3
    assert crossed(third, 4, 3, 10, 10) == [(4, False)]
    assert crossed(Notify(percent=(80, 100), at=(8,)), 0, 10, 10, 10) == [(8, True), (10, True)], (
        "two thresholds at one number make one event"
    )


def test_a_limit_that_changes_crosses_percentages_too() -> None:
    at_80 = Notify(percent=(80,))
    assert crossed(at_80, 90, 90, 100, 1_000) == [(800, False)], "90 is below 80 % of the larger limit"
    assert crossed(at_80, 90, 90, 1_000, 100) == [(80, True)]
    assert crossed(at_80, 90, 850, 100, 1_000) == [], "the number has reached 80 % of both limits"
    assert crossed(at_80, 90, 90, 0, 100) == [(80, True)]
    assert crossed(at_80, 90, 90, 100, 0) == [(80, False)], "a limit of 0 has no percentages"
    assert crossed(at_80, 70, 70, 100, 0) == crossed(at_80, 90, 90, 0, -5) == [], "80 % of neither limit is reached"


@given(st.lists(st.tuples(st.integers(-3, 130), st.sampled_from([-1, 0, 1, 2, 40, 100])), max_size=12))
def test_the_events_of_a_percentage_alternate_and_the_last_says_whether_it_is_reached(
    moves: list[tuple[int, int]],
) -> None:
    percents, number, ceiling = (50, 80, 100), 0, 100
    directions: dict[int, list[bool]] = {percent: [] for percent in percents}
    for value, limit in moves:
        for crossing in crossings.crossings_between(Notify(percent=percents), number, value, (ceiling, limit)):
            directions[crossing.declaration["percent"]].append(crossing.is_upward)
        number, ceiling = value, limit
        for percent, upward in directions.items():
            assert all(after != before for before, after in pairwise([False, *upward])), (percent, moves)
            assert ([False, *upward][-1]) == (limit > 0 and 100 * number >= percent * limit), (percent, moves)


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
def test_invalid_thresholds_are_refused(notify: Any, why: str) -> None:
    with pytest.raises(Exception, match=r"counter 'usage': notify is ") as refused:
        Counter("usage", prefix="USER", sort_key="U", attribute="u", notify=notify)
    assert why in str(refused.value)


# From 5, a delta of 3 makes 5 and 8, and a delta of -3 makes 5 and 2. A debt needs one limit, and moves this limit.
LIMITED = Counter("x", prefix="X", sort_key="N", attribute="n", start=5, floor=0, ceiling=10)


@pytest.mark.parametrize(
    ("fields", "notify", "why"),
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
def test_a_threshold_that_no_number_crosses_is_refused(fields: dict[str, Any], notify: Notify, why: str | None) -> None:
    """With at=(0,) a team would never hear that a stock is sold out, because no number falls below 0."""
    if why is None:
        assert replace(LIMITED, notify=notify, **fields).notify == notify
        return
    with pytest.raises(Exception, match=r"counter 'x': notify is ") as refused:
        replace(LIMITED, notify=notify, **fields)
    assert why in str(refused.value)


def test_a_counter_with_thresholds_has_one_shard_or_children_or_visitors_or_a_delta_above_0() -> None:
    """Of a sum over shards, Tally sees only that the sum first reaches a threshold."""
    base, at_ten = Counter("usage", prefix="USER", sort_key="U", attribute="u"), Notify(at=(10,))
    for fields in (
        {"delta": 1}, {"visible": "soon", "delta": 1}, {"child": "A#"}, {"unique": True, "period": "day"},
        {"max_shards": 1}, {"floor": 0},
    ):  # fmt: skip
        assert replace(base, notify=at_ten, **{"max_shards": 0, **fields}).notify == at_ten  # type: ignore[arg-type]
    with pytest.raises(Exception, match="Tally sees no sum"):
        replace(base, notify=at_ten, delta=-1)


@pytest.mark.parametrize(
    "fields",
    [
        {"delta": 1}, {"visible": "soon", "delta": 2}, {"child": "A#"}, {"child": "A#", "max_shards": 1},
        {"pages": True, "max_shards": 1}, {"pages": True, "max_shards": 1, "delta": 1},
    ],
)  # fmt: skip
@pytest.mark.parametrize("threshold", [0, -5])
def test_a_threshold_that_every_new_tally_has_reached_is_refused(fields: dict[str, Any], threshold: int) -> None:
    sums = Counter("usage", prefix="USER", sort_key="U", attribute="u", notify=Notify(at=(1,)), **fields)
    with pytest.raises(Exception, match="because 0 is the least: give 1 or more"):
        replace(sums, notify=Notify(at=(1, threshold)))


def record(counter: Counter, id_: str, old: int | None, new: int | None, sequence: int = 111, **more: Any) -> Record:
    """Returns the record of a tally item whose images have these numbers. None: there is no such image.

    `more`: attributes of the new image. The default nonce is b. An edit by hand keeps a, the nonce of the old image.
    """
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


def details_of(change: Record) -> list[Any]:
    return [event.detail for effect in bookkeeper.read_count(DECLARED, change) for event in effect.events]


def test_an_event_names_the_counter_the_threshold_the_number_and_the_time() -> None:
    change = record(CALLS, "7c20#2026-11-18", 790, 812)
    [effect] = [effect for effect in bookkeeper.read_count(DECLARED, change) if effect.events]
    [event] = effect.events
    assert (effect.expected, effect.observed) == (0, 0), "the effect books nothing"
    assert (event.at_ms, event.detail["event"]) == (1_795_000_000_250, event.id)
    assert {**event.detail, "event": ""} == {
        "event": "", "counter": "calls", "id": "7c20", "period": "2026-11-18", "threshold": 800, "percent": 80,
        "limit": 1_000, "direction": "up", "value": 812, "before": 790, "by": "change", "at": 1_795_000_000,
        "sequence": f"{111:040}.00",  # 40 digits, so that sequences sort as texts; .00: the first event of the record
    }  # fmt: skip
    assert event == bookkeeper.read_count(DECLARED, change)[-1].events[0], (
        "each time the record is read, the event has the same id"
    )


def test_each_event_has_its_own_id_and_a_sequence_by_which_the_events_sort() -> None:
    first = details_of(record(STOCK, "x", 25, 5, sequence=9))
    later = details_of(record(STOCK, "x", 5, 25, sequence=10)) + details_of(record(STOCK, "y", 5, 25, sequence=10))
    assert [detail["threshold"] for detail in first] == [20, 10]
    assert len({detail["event"] for detail in first + later}) == 6
    sequences = [detail["sequence"] for detail in first + later[:2]]
    assert sequences == sorted(sequences)


@pytest.mark.parametrize(
    ("change", "by", "value"),
    [
        (record(STOCK, "x", 25, 5, nonce="a"), "edit", 5),
        (record(STOCK, "x", 5, None), "edit", 20),  # without an item, the number is the start
        (record(STOCK, "x", 25, 5, nonce="~-20.z"), "repair", 5),  # the nonce of a repair has its amount
        (record(STOCK, "x", None, 25), "change", 25),
        (record(GROUPS, "x", 7, 7, nonce="a", gone={"N": "1"}), "removal", 0),  # a removed parent has 0
    ],
)
def test_an_event_says_what_kind_of_write_moved_the_number(change: Record, by: str, value: int) -> None:
    details = details_of(change)
    assert details
    assert {(detail["by"], detail["value"]) for detail in details} == {(by, value)}


def test_a_changed_limit_crosses_no_threshold_in_a_period_that_has_ended() -> None:
    """Tally copies a new limit also into a tally whose period has ended. This copy makes no event, but a move does."""
    limited = replace(CALLS, limit_overrides=True)
    override = {"override#name": {"S": "p"}, "override#ceiling": {"N": "100"}}
    for day, old, events_made in ((18, 85, 1), (17, 85, 0), (17, 70, 1)):  # the day of the records is 18
        change = record(limited, f"7c20#2026-11-{day}", old, 85, **override)
        change["dynamodb"]["OldImage"]["override#name"] = {"S": "-"}
        effects = bookkeeper.read_count(CounterIndex({"calls": limited}), change)
        assert sum(len(effect.events) for effect in effects) == events_made


@pytest.mark.parametrize("period", [None, "day"])
def test_a_percentage_is_of_the_ceiling_in_each_image(period: str | None) -> None:
    limited = replace(CALLS, limit_overrides=True, period=period)
    id_ = f"7c20{'#2026-11-18' if period else ''}"
    override = {"override#name": {"S": "p"}, "override#ceiling": {"N": "100"}}
    stale_mark = {"override#name": {"S": "?x"}}  # limits.STALE_COPY_PREFIX
    no_override = {"override#name": {"S": "-"}}  # limits.NO_OVERRIDE

    def events_of(old: int, new: int, before: dict[str, Any], after: dict[str, Any], nonce: str = "b") -> list[Any]:
        change = record(limited, id_, old, new, nonce=nonce, **after)
        change["dynamodb"]["OldImage"].update(before)
        effects = bookkeeper.read_count(CounterIndex({"calls": limited}), change)
        details = [event.detail for effect in effects for event in effect.events]
        return [(detail["threshold"], detail["limit"], detail["direction"], detail["by"]) for detail in details]

    assert events_of(70, 85, override, override) == [(80, 100, "up", "change")]
    assert events_of(70, 85, no_override, no_override) == []
    assert events_of(85, 85, no_override, override, nonce="a") == [(80, 100, "up", "limit")]
    assert events_of(85, 85, override, no_override, nonce="a") == [(800, 1000, "down", "limit")]
    assert events_of(70, 85, {}, override) == [(80, 100, "up", "change")]
    assert events_of(85, 85, {}, override, nonce="a") == [(80, 100, "up", "limit")], (
        "the old image has no copy of an override, so the declared limit counts"
    )
    assert events_of(70, 85, stale_mark, override) == [(80, 100, "up", "change")]
    stale_copy = override | stale_mark
    assert events_of(85, 85, override, stale_copy, nonce="a") == [], "a stale copy still has its limit"
    assert events_of(85, 86, stale_copy, no_override) == [(800, 1000, "down", "change")]
    assert events_of(700, 850, stale_mark, stale_mark) == [(800, 1000, "up", "change")], (
        "neither image has an override, so the declared limit counts"
    )


def test_an_override_before_the_first_change_of_an_id_crosses_from_the_declared_limit() -> None:
    limited = replace(CALLS, limit_overrides=True, period=None, keep_periods=None, start=85)
    override = {"override#name": {"S": "p"}, "override#ceiling": {"N": "100"}, "start": {"N": "85"}}
    effects = bookkeeper.read_count(CounterIndex({"calls": limited}), record(limited, "7c20", None, 85, **override))
    [event] = [event.detail for effect in effects for event in effect.events]
    assert (event["threshold"], event["direction"], event["by"]) == (80, "up", "limit")


def test_a_new_item_with_another_start_crosses_from_that_start() -> None:
    assert [detail["before"] for detail in details_of(record(STOCK, "x", None, 5, start={"N": "12"}))] == [12]


def test_a_period_that_ttl_removes_crosses_no_threshold() -> None:
    removal = record(CALLS, "7c20#2026-11-10", 900, None)
    assert len(details_of(removal)) == 2, "a person deleted the item, so the number falls below 800 and 10"
    assert details_of(removal | {"userIdentity": {"principalId": "dynamodb.amazonaws.com"}}) == []


def test_a_hold_that_is_released_into_a_period_that_is_not_kept_crosses_no_threshold() -> None:
    """The released amount makes a new item, as if the number had fallen from the start. Days 16 to 18 are kept."""
    index = CounterIndex({"calls": replace(CALLS, keep_periods=2, notify=Notify(at=(-5,)))})
    for day, events_made in ((15, 0), (16, 1)):
        effects = bookkeeper.read_count(index, record(CALLS, f"7c20#2026-11-{day}", None, -400))
        assert [effect.observed for effect in effects] == [-400] + [0] * events_made


def test_a_run_always_fits_into_a_transaction() -> None:
    """A transaction has up to 100 writes. A run that has EVENTS_MAX events takes one more record.

    This record may cross all thresholds. One of these may be `every`, which makes up to MULTIPLES_MAX events.
    """
    events_of_a_record, checkpoint_writes = THRESHOLDS_MAX - 1 + MULTIPLES_MAX, 1
    assert SEGMENTS_MAX + DEAD_LETTERS_MAX + checkpoint_writes + EVENTS_MAX + events_of_a_record <= 100
    run = SegmentRun("1", BatchContext("counts", "s"))
    full = tuple(events.Event(f"{number:032x}", 0, {}) for number in range(EVENTS_MAX))
    run.add([Effect("calls", "x", minute=1, events=full)])
    assert run.has_room_for([])
    run.add([Effect("calls", "x", minute=1, events=full[:1])])
    assert not run.has_room_for([])
