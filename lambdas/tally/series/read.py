"""The series of a tally: how much of it was accepted in each hour or day."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, tzinfo
from typing import Any, NamedTuple

from ..counter import Counter
from ..drift import history
from ..dynamo import queries
from ..dynamo.client import Call
from ..errors import InvalidInputError
from . import hours, progress
from .progress import HOUR_S, Progress, minutes_of

HOUR, DAY = "hour", "day"
HOURS_DEFAULT, DAYS_DEFAULT = 24, 30
POINTS_MAX = {HOUR: 2400, DAY: 400}  # in one answer: hours of 100 days, days of more than a year


class Range(NamedTuple):
    """What is asked for: `by` hour or day, from the hour `first` up to but not including `end` (hours since 1970)."""

    by: str
    first: int
    end: int
    zone: tzinfo = UTC


def read(call: Call, counter: Counter, id_: str, asked: Range) -> dict[str, Any]:
    """`{"counter","id","by","series":[{"from","value"}],"repairs":[{"at","value","how","added"}],"since","as_of"}`.

    `from` is the beginning of an hour or a day, in epoch seconds. What is newer than `as_of` is not in it yet, nor is
    what is older than `since`: series begin when Tally is deployed, or with the first day that is still there. Both are
    null before there are any. From `since` on, a tally has moved by its series and by what repairs have `added`.
    """
    store, settings = call.store, call.store.settings
    at = progress.read(store)  # before the numbers: the hours that it names are whole
    body = {"counter": counter.name, "id": id_, "by": asked.by}
    if at.as_of(settings) is None:
        return {**body, "series": [], "repairs": [], "since": None, "as_of": None}
    running = at.through >= minutes_of(settings, at.hour)[0]
    first = max(asked.first, at.first_hour(settings))
    end = min(asked.end, at.hour + running)
    values = dict(_values(call, counter, id_, first, end, at)) if first < end else {}
    points: dict[int, int] = {}
    for hour in range(first, end):
        from_s = _begins(hour, asked)
        points[from_s] = points.get(from_s, 0) + values.get(hour, 0)
    return {
        **body,
        "series": [{"from": from_s, "value": value} for from_s, value in points.items()],
        "repairs": list(_repairs(call, counter, id_, asked)),
        "since": max(at.since * settings.minute_s, at.first_hour(settings) * HOUR_S),
        "as_of": at.as_of(settings),
    }


def _values(call: Call, counter: Counter, id_: str, first: int, end: int, at: Progress) -> Iterator[tuple[int, int]]:
    """The hours from `first` up to `end` in which the tally moved, and by how much."""
    table, partition = call.store.settings.ledger_table, hours.day_partition(counter.name, id_)
    low, high = hours.day_name(first // 24), hours.day_name((end - 1) // 24)
    for item in queries.items(call.store, table, partition, low, high):
        day = date.fromisoformat(item["SK"]["S"]).toordinal() - hours.EPOCH
        for hour in range(24 * day, 24 * day + 24):
            if f"h{hour % 24}" in item and hour < at.hour:
                yield hour, int(item[f"h{hour % 24}"]["N"])
    if end > at.hour:
        yield at.hour, hours.running_of(call.store, at, counter.name, id_)


def _begins(hour: int, asked: Range) -> int:
    """When the hour, or the day that it is in, begins: epoch seconds."""
    if asked.by == HOUR:
        return hour * HOUR_S
    local = datetime.fromtimestamp(hour * HOUR_S, asked.zone)
    return int(local.replace(hour=0, minute=0, second=0, fold=0).timestamp())


def _repairs(call: Call, counter: Counter, id_: str, asked: Range) -> Iterator[dict[str, Any]]:
    """The repairs in the range. They are no traffic. `added`: what of one is in no series, for it was accepted before
    `since`, or its record is lost. The rest brings the tally to what the series says."""
    for repair in history.read(call.store, counter.name, id_):
        if asked.first * HOUR_S <= repair["at"] < asked.end * HOUR_S:
            yield {"at": repair["at"], "value": repair["amount"], "how": repair["how"], "added": repair["added"]}


def range_of(by: str, from_s: int | None, to_s: int | None, zone: str | None, now_s: float) -> Range:
    """The range that a caller asks for: by default the last day of hours, or the last month of days.

    Raises InvalidInputError for a range that is empty or has too many points, for a time zone that is not known, and
    for days of which one does not begin with an hour of UTC.
    """
    end = -(-int(now_s if to_s is None else to_s) // HOUR_S)
    span = HOURS_DEFAULT if by == HOUR else 24 * DAYS_DEFAULT
    asked = Range(by, end - span if from_s is None else from_s // HOUR_S, end, _zone(zone))
    if asked.first >= asked.end:
        raise InvalidInputError("from must be before to.", field="from")
    asked = _whole_days(asked) if by == DAY else asked
    points = (asked.end - asked.first) // (1 if by == HOUR else 24)
    if points > POINTS_MAX[by]:
        raise InvalidInputError(f"That is {points} {by}s: ask for {POINTS_MAX[by]} at most.", field="from")
    half_days = (*range(asked.first, asked.end, 12), asked.end) if by == DAY else ()
    if any(_begins(hour, asked) % HOUR_S for hour in half_days):  # each day: some zones change by half an hour
        raise InvalidInputError(
            "tz must be a time zone whose days begin with an hour of UTC, all of these.", field="tz"
        )
    return asked


def _whole_days(asked: Range) -> Range:
    """The range with the days whole in which it begins and ends."""
    end = asked.end
    while _begins(end, asked) == _begins(end - 1, asked):
        end += 1
    return asked._replace(first=_begins(asked.first, asked) // HOUR_S, end=end)


def _zone(name: str | None) -> tzinfo:
    if name is None or name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # only where somebody asks for it

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidInputError(f"tz is not a time zone that is known here: {name[:64]!r}.", field="tz") from None
