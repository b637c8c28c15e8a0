"""The series of a tally: the accepted amount in each hour or day."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, tzinfo
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from ..counter import Counter
from ..drift import history
from ..dynamo import queries
from ..dynamo.client import Call, Store
from ..errors import InvalidInputError
from . import hours, progress, spans
from .hours import HourAmount
from .progress import HOUR_S, Progress, minutes_of

HOUR, DAY = "hour", "day"
HOURS_DEFAULT, DAYS_DEFAULT = 24, 30
POINTS_MAX = {HOUR: 2400, DAY: 400}  # in one answer: hours of 100 days, days of more than a year


class SeriesRange(NamedTuple):
    """A range of hours or days (`by`): from the hour `first` up to but not including `end`, hours since 1970."""

    by: str
    first: int
    end: int
    zone: tzinfo = UTC


ALL_TIME = SeriesRange(DAY, 0, 24 * 365 * 1000)  # no import belongs to another day


def read_series(call: Call, counter: Counter, id_: str, wanted: SeriesRange) -> dict[str, Any]:
    """`{"counter","id","by","series":[{"from","value"}],"imports","repairs","since","as_of"}`.

    `from` is the beginning of an hour or a day, in epoch seconds. The series lack changes after `as_of`, and changes
    before `since`: series begin with the first deployment of Tally, or with the first day that is kept. Both are null
    if there are no series yet. `imports`: `{"from","value"}`, the days of UTC that the range touches and that rows were
    imported into, also before `since`. `repairs`: `{"at","value","how","added"}`. If a tally is younger than the
    series, it is the sum of its series, all of its imports, and `added` of its repairs.
    """
    spans.require_single_period(counter, wanted.by, wanted.zone)
    store, settings = call.store, call.store.settings
    at = progress.read(store)  # read before the numbers, so they have every hour that the progress says
    body = {"counter": counter.name, "id": id_, "by": wanted.by}
    if at.as_of(settings) is None:
        return {**body, "series": [], "imports": [], "repairs": [], "since": None, "as_of": None}
    first = max(wanted.first, at.first_hour(settings))
    end = min(wanted.end, at.hour + (at.through >= minutes_of(settings, at.hour)[0]))
    running = list(hours.running_amounts_of(store, at, counter.name, id_))
    values: dict[int, int] = {}
    if first < end:
        low, high = hours.day_name(first // 24), hours.day_name((end - 1) // 24)
        for day, of_day, amount in _stored(store, counter.name, id_, low, high):
            values[24 * hours.parse_day(day) + of_day] = amount
    values[at.hour] = sum(moved.amount for moved in running if not moved.day)
    points: dict[int, int] = {}
    for hour in range(first, end):
        from_s = _start_s(hour, wanted)
        points[from_s] = points.get(from_s, 0) + values.get(hour, 0)
    return {
        **body,
        "series": [{"from": from_s, "value": value} for from_s, value in points.items()],
        "imports": [
            {"from": hours.parse_day(day) * hours.DAY_S, "value": sum(part.amount for part in same)}
            for day, same in groupby(sorted(imported(store, counter.name, id_, at, running, wanted)), attrgetter("day"))
        ],
        "repairs": list(_repairs(call, counter, id_, wanted)),
        "since": max(at.since * settings.minute_s, at.first_hour(settings) * HOUR_S),
        "as_of": at.as_of(settings),
    }


def _stored(store: Store, counter: str, id_: str, low: str, high: str) -> Iterator[tuple[str, int, int]]:
    """Yields the sort key, the hour and the amount of each attribute of the items from one sort key to another."""
    partition, table = hours.day_partition(counter, id_), store.settings.ledger_table
    for item in queries.partition_items(store, table, partition, low, high):
        for name in item.keys() - {"PK", "SK", "expiration"}:
            yield item["SK"]["S"], int(name[1:]), int(item[name]["N"])


class ImportedHour(NamedTuple):
    """The imported amount of a tally for one day (`2024-05-03`). `hour`: of the import, since 1970."""

    day: str
    hour: int
    amount: int


def imported(
    store: Store, counter: str, id_: str, at: Progress, running: Iterable[HourAmount], wanted: SeriesRange
) -> Iterator[ImportedHour]:
    """Yields the imports of a tally into the days of UTC that a range touches. `running`: amounts of the present
    hour."""
    first, last = (hours.day_name(max(-1, hour // 24)) for hour in (wanted.first, wanted.end - 1))
    low, high = f"{hours.IMPORT}{first}", f"{hours.IMPORT}{last}"
    for into, hour, amount in _stored(store, counter, id_, low, high):
        if hour < at.hour:
            yield ImportedHour(into.removeprefix(hours.IMPORT), hour, amount)
    yield from (ImportedHour(new.day, at.hour, new.amount) for new in running if first <= new.day <= last)


def ever_imported(store: Store, counter: str, id_: str, at: Progress) -> Iterator[ImportedHour]:
    """Yields the imports of a tally into any day."""
    return imported(store, counter, id_, at, hours.running_amounts_of(store, at, counter, id_), ALL_TIME)


def total_imported(call: Call, counter: Counter, tally: str) -> dict[str, int] | None:
    """`{"amount","as_of"}`: the imported amount of a tally in all. None if nothing is summed up yet, and for a counter
    with periods: one series has all periods of an id."""
    at = progress.read(call.store)
    as_of = at.as_of(call.store.settings)
    if as_of is None or counter.period is not None:
        return None
    imported_hours = ever_imported(call.store, counter.name, tally, at)
    return {"amount": sum(part.amount for part in imported_hours), "as_of": as_of}


def _start_s(hour: int, wanted: SeriesRange) -> int:
    """Returns the beginning of an hour, or of the day that it is in: epoch seconds."""
    if wanted.by == HOUR:
        return hour * HOUR_S
    local = datetime.fromtimestamp(hour * HOUR_S, wanted.zone)
    return int(local.replace(hour=0, minute=0, second=0, fold=0).timestamp())


def _repairs(call: Call, counter: Counter, id_: str, wanted: SeriesRange) -> Iterator[dict[str, Any]]:
    """Yields the repairs in the range, which are not traffic. `added`: the part that no series has, because it was
    accepted before `since`, or its record is lost. The rest brings the tally to the sum of its series."""
    for repair in history.read_repairs(call.store, counter.name, id_):
        if wanted.first * HOUR_S <= repair["at"] < wanted.end * HOUR_S:
            yield {"at": repair["at"], "value": repair["amount"], "how": repair["how"], "added": repair["added"]}


def range_of(by: str, from_s: int | None, to_s: int | None, zone: str | None, now_s: float) -> SeriesRange:
    """Returns the range that a caller asks for: by default the last day of hours, or the last month of days, to now.

    Raises InvalidInputError if the range is empty or has too many points, if the time zone is not known, or if a day
    does not begin with an hour of UTC.
    """
    end = int(now_s) // HOUR_S + 1 if to_s is None else -(-to_s // HOUR_S)
    span = HOURS_DEFAULT if by == HOUR else 24 * DAYS_DEFAULT
    wanted = SeriesRange(by, end - span if from_s is None else from_s // HOUR_S, end, _timezone(zone))
    if wanted.first >= wanted.end:
        raise InvalidInputError("from must be before to.", field="from")
    if by == DAY:  # whole days
        while _start_s(end, wanted) == _start_s(end - 1, wanted):
            end += 1
        wanted = wanted._replace(first=_start_s(wanted.first, wanted) // HOUR_S, end=end)
    points = (wanted.end - wanted.first) // (1 if by == HOUR else 24)
    if points > POINTS_MAX[by]:
        raise InvalidInputError(f"The range has {points} {by}s. Ask for {POINTS_MAX[by]} at most.", field="from")
    half_days = (*range(wanted.first, wanted.end, 12), wanted.end) if by == DAY else ()
    if any(_start_s(hour, wanted) % HOUR_S for hour in half_days):  # each day: some zones change by half an hour
        raise InvalidInputError("tz must be a zone whose days begin with an hour of UTC on each day.", field="tz")
    return wanted


def _timezone(name: str | None) -> tzinfo:
    if name is None or name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # only if a caller names a zone

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidInputError(f"tz is not a known time zone: {name[:64]!r}.", field="tz") from None
