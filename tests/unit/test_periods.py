"""The period of a time: its name, its end, and how long its tally is kept."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tally.counter import PERIODS, Counter
from tally.counting import periods
from tally.errors import InvalidInputError, NotFoundError

DAY_S = 24 * 3600
# From 2012 to 2999. Before 2012 some clocks went back over midnight, so that a day came twice.
TIMES = st.integers(1_325_376_000, 32_503_000_000)
ZONES = (None, "Europe/Paris", "America/St_Johns", "Africa/Cairo", "Pacific/Apia", "Asia/Kathmandu")
ZONED = [(period, zone) for period in PERIODS for zone in (ZONES if period in PERIODS[2:] else ZONES[:1])]


def counter(period: str | None, **more: Any) -> Counter:
    return Counter("calls", prefix="CLIENT", sort_key="CALLS", attribute="calls", period=period, **more)


def epoch_s(text: str) -> float:
    """Returns the epoch seconds of a time in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("period", "name", "left_s", "kept_until"),
    [
        ("minute", "2026-11-22T14:05", 14, "2026-11-22T14:08"),
        ("hour", "2026-11-22T14", 54 * 60 + 14, "2026-11-22T17:00"),
        ("day", "2026-11-22", 9 * 3600 + 54 * 60 + 14, "2026-11-25"),
        ("week", "2026-W47", 9 * 3600 + 54 * 60 + 14, "2026-12-07"),
        ("month", "2026-11", 8 * DAY_S + 9 * 3600 + 54 * 60 + 14, "2027-02-01"),
        ("year", "2026", 39 * DAY_S + 9 * 3600 + 54 * 60 + 14, "2029-01-01"),
    ],
)
def test_a_period_has_its_iso_8601_name_and_its_tally_is_kept_for_keep_periods_more_periods(
    period: str, name: str, left_s: int, kept_until: str
) -> None:
    now_s, calls = epoch_s("2026-11-22T14:05:46.5"), counter(period, keep_periods=2)  # 13.5 s are rounded up to 14
    tally_id = periods.tally_id(calls, "7c20", now_s)
    assert tally_id == f"7c20#{name}"
    assert periods.answer_members(tally_id) == {"id": "7c20", "period": name}
    assert periods.seconds_to_next(calls, tally_id, now_s) == left_s
    assert periods.expires_s(calls, tally_id) == epoch_s(kept_until)
    assert periods.is_kept(calls, tally_id, epoch_s(kept_until) - 1)
    assert not periods.is_kept(calls, tally_id, epoch_s(kept_until))
    assert periods.expires_s(counter(period), tally_id) is None
    assert periods.is_kept(counter(period), tally_id, 1e11)


@pytest.mark.parametrize(("period", "zone"), ZONED)
@given(now_s=TIMES)
def test_periods_follow_each_other_without_a_gap(period: str, zone: str | None, now_s: int) -> None:
    """The last second of a period is in this period, and one second later the next period has begun."""
    calls = counter(period, timezone=zone)
    tally_id = periods.tally_id(calls, "x", now_s)
    left_s = periods.seconds_to_next(calls, tally_id, now_s)
    assert periods.is_valid_tally_id(calls, tally_id)
    assert 1 <= left_s <= 366 * DAY_S + 3600
    assert periods.tally_id(calls, "x", now_s + left_s - 1) == tally_id
    assert periods.tally_id(calls, "x", now_s + left_s) > tally_id
    assert not periods.has_ended(calls, tally_id, now_s + left_s - 1)
    assert periods.has_ended(calls, tally_id, now_s + left_s)


@pytest.mark.parametrize(
    ("zone", "last", "first"),
    [  # the last second of a day and the start of the next day, in UTC; Cairo's clocks change at midnight
        ("Europe/Paris", "2026-10-25T22:59:59", "2026-10-25T23:00"),
        ("Europe/Paris", "2026-10-24T21:59:59", "2026-10-24T22:00"),
        ("Africa/Cairo", "2025-10-30T21:59:59", "2025-10-30T22:00"),
        ("Africa/Cairo", "2025-04-24T21:59:59", "2025-04-24T22:00"),
        (None, "2026-10-25T23:59:59", "2026-10-26T00:00"),
    ],
)
def test_a_day_of_a_time_zone_ends_at_midnight_of_this_zone_even_if_the_day_has_23_or_25_hours(
    zone: str | None, last: str, first: str
) -> None:
    calls = counter("day", timezone=zone)
    before, after = (periods.tally_id(calls, "x", epoch_s(time)) for time in (last, first))
    assert before < after
    assert periods.seconds_to_next(calls, before, epoch_s(last)) == 1
    assert periods.seconds_to_next(calls, after, epoch_s(first)) in (23 * 3600, DAY_S, 25 * 3600)


NAMES = ["2026-11-22T14:05", "2026-11-22T14", "2026-11-22", "2026-W47", "2026-11", "2026"]
INVALID_NAMES = [  # 2025 has 52 weeks, and the years of names are 2000 to 2999
    "", "x", "2026-13", "2026-02-30", "2026-W54", "2025-W53", "1999", "3000", "2026-11-22T14:5", "2026-11-22T14:05:00",
    "2026-11-22 14", "20261122", "2026W47", "2026-W47-1", "２０２６", "2026-11-22T24", "2026-11-22T14Z", "2026-11#2026",
]  # fmt: skip


@pytest.mark.parametrize(("period", "valid_name"), list(zip(PERIODS, NAMES, strict=True)))
def test_each_kind_of_period_has_one_form_of_name(period: str, valid_name: str) -> None:
    calls, now_s = counter(period, keep_periods=14), epoch_s("2026-11-22T14:06")
    assert periods.tally_id(calls, "7c20", now_s, valid_name) == f"7c20#{valid_name}"
    for name in {*NAMES, *INVALID_NAMES} - {valid_name}:
        assert not periods.is_valid_tally_id(calls, f"7c20#{name}")
        with pytest.raises(InvalidInputError, match=f"must be a {period} of calls, like 2026"):
            periods.tally_id(calls, "7c20", now_s, name)
    with pytest.raises(NotFoundError, match="does not keep"):
        periods.tally_id(calls, "7c20", now_s, valid_name.replace("2026", "2002"))


def test_a_counter_without_periods_uses_an_id_unchanged_as_the_tally_id() -> None:
    plain = counter(None)
    assert periods.tally_id(plain, "7c20", 0) == "7c20"
    assert periods.answer_members("7c20") == {"id": "7c20"}
    assert periods.is_kept(plain, "7c20", 1e11)
    assert periods.expires_s(plain, "7c20") is None
    with pytest.raises(InvalidInputError, match="has no periods"):
        periods.tally_id(plain, "7c20", 0, "2026")
    assert not periods.has_ended(plain, "7c20", 1e11)
    assert periods.has_ended(plain, "7c20#2026", 0), "a tally from a time when the counter had periods"
