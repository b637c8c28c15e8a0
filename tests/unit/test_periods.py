"""Which period a time falls into, by its name; when it ends; until when its tally is kept."""

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
TIMES = st.integers(1_325_376_000, 32_503_000_000)  # 2012 to 2999; clocks went back over midnight somewhere before
ZONES = (None, "Europe/Paris", "America/St_Johns", "Africa/Cairo", "Pacific/Apia", "Asia/Kathmandu")
ZONED = [(period, zone) for period in PERIODS for zone in (ZONES if period in PERIODS[2:] else ZONES[:1])]


def counter(period: str | None, **more: Any) -> Counter:
    return Counter("calls", prefix="CLIENT", sort_key="CALLS", attribute="calls", period=period, **more)


def at(text: str) -> float:
    """Epoch seconds of a time of UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("period", "named", "left_s", "gone"),
    [
        ("minute", "2026-11-22T14:05", 14, "2026-11-22T14:08"),
        ("hour", "2026-11-22T14", 54 * 60 + 14, "2026-11-22T17:00"),
        ("day", "2026-11-22", 9 * 3600 + 54 * 60 + 14, "2026-11-25"),
        ("week", "2026-W47", 9 * 3600 + 54 * 60 + 14, "2026-12-07"),
        ("month", "2026-11", 8 * DAY_S + 9 * 3600 + 54 * 60 + 14, "2027-02-01"),
        ("year", "2026", 39 * DAY_S + 9 * 3600 + 54 * 60 + 14, "2029-01-01"),
    ],
)
def test_a_time_falls_into_the_period_that_iso_8601_names_which_is_kept_for_so_many_after_it(
    period: str, named: str, left_s: int, gone: str
) -> None:
    now_s, declared = at("2026-11-22T14:05:46.5"), counter(period, keep_periods=2)
    found = periods.tally_id(declared, "7c20", now_s)
    assert found == f"7c20#{named}"
    assert periods.answer_members(found) == {"id": "7c20", "period": named}
    assert periods.seconds_to_next(declared, found, now_s) == left_s
    assert periods.expires_s(declared, found) == at(gone)
    assert periods.is_kept(declared, found, at(gone) - 1)
    assert not periods.is_kept(declared, found, at(gone))
    assert periods.expires_s(counter(period), found) is None
    assert periods.is_kept(counter(period), found, 1e11)


@pytest.mark.parametrize(("period", "zone"), ZONED)
@given(now_s=TIMES)
def test_periods_follow_each_other_without_a_gap(period: str, zone: str | None, now_s: int) -> None:
    """The moment before the end of a period is in it, and its end is in the next one."""
    declared = counter(period, timezone=zone)
    found = periods.tally_id(declared, "x", now_s)
    left_s = periods.seconds_to_next(declared, found, now_s)
    assert periods.is_valid_tally_id(declared, found)
    assert 1 <= left_s <= 366 * DAY_S + 3600
    assert periods.tally_id(declared, "x", now_s + left_s - 1) == found
    assert periods.tally_id(declared, "x", now_s + left_s) > found
    assert not periods.has_ended(declared, found, now_s + left_s - 1)
    assert periods.has_ended(declared, found, now_s + left_s)


@pytest.mark.parametrize(
    ("zone", "last", "first"),
    [  # the summer time of Paris is two hours ahead; Cairo's clocks go from 24:00 to 23:00, and from 0:00 to 1:00
        ("Europe/Paris", "2026-10-25T22:59:59", "2026-10-25T23:00"),
        ("Europe/Paris", "2026-10-24T21:59:59", "2026-10-24T22:00"),
        ("Africa/Cairo", "2025-10-30T21:59:59", "2025-10-30T22:00"),
        ("Africa/Cairo", "2025-04-24T21:59:59", "2025-04-24T22:00"),
        (None, "2026-10-25T23:59:59", "2026-10-26T00:00"),
    ],
)
def test_a_day_of_a_time_zone_ends_at_its_midnight_on_days_that_are_longer_or_shorter_too(
    zone: str | None, last: str, first: str
) -> None:
    declared = counter("day", timezone=zone)
    before, after = (periods.tally_id(declared, "x", at(time)) for time in (last, first))
    assert before < after
    assert periods.seconds_to_next(declared, before, at(last)) == 1
    assert periods.seconds_to_next(declared, after, at(first)) in (23 * 3600, DAY_S, 25 * 3600)


NAMES = ["2026-11-22T14:05", "2026-11-22T14", "2026-11-22", "2026-W47", "2026-11", "2026"]
ODD = [
    "", "x", "2026-13", "2026-02-30", "2026-W54", "2025-W53", "1999", "3000", "2026-11-22T14:5", "2026-11-22T14:05:00",
    "2026-11-22 14", "20261122", "2026W47", "2026-W47-1", "２０２６", "2026-11-22T24", "2026-11-22T14Z", "2026-11#2026",
]  # fmt: skip


@pytest.mark.parametrize(("period", "own"), list(zip(PERIODS, NAMES, strict=True)))
def test_a_period_is_asked_for_by_the_one_name_that_it_has(period: str, own: str) -> None:
    declared, now_s = counter(period, keep_periods=14), at("2026-11-22T14:06")
    assert periods.tally_id(declared, "7c20", now_s, own) == f"7c20#{own}"
    for name in {*NAMES, *ODD} - {own}:
        assert not periods.is_valid_tally_id(declared, f"7c20#{name}")
        with pytest.raises(InvalidInputError, match=f"must be a {period} of calls, like 2026"):
            periods.tally_id(declared, "7c20", now_s, name)
    with pytest.raises(NotFoundError, match="does not keep"):
        periods.tally_id(declared, "7c20", now_s, own.replace("2026", "2002").replace("2002-W47", "2002-W46"))


def test_a_counter_without_periods_has_ids_as_they_are() -> None:
    plain = counter(None)
    assert periods.tally_id(plain, "7c20", 0) == "7c20"
    assert periods.answer_members("7c20") == {"id": "7c20"}
    assert periods.is_kept(plain, "7c20", 1e11)
    assert periods.expires_s(plain, "7c20") is None
    with pytest.raises(InvalidInputError, match="has no periods"):
        periods.tally_id(plain, "7c20", 0, "2026")
    assert not periods.has_ended(plain, "7c20", 1e11)
    assert periods.has_ended(plain, "7c20#2026", 0), "the counter had periods once"
