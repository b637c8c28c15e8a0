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
    """A range of hours, or of days in `zone`: from the hour `first` up to but not including `end`, hours since 1970."""

    by: str
    first: int
    end: int
    zone: tzinfo = UTC


ALL_TIME = SeriesRange(DAY, 0, 24 * 365 * 1000)  # 1970 to 2969, so the day of every import is in it


def read_series(call: Call, counter: Counter, id_: str, wanted: SeriesRange) -> dict[str, Any]:
    """Answers `{"counter","id","by","series":[{"from","value"}],"imports","repairs","since","as_of"}`.

    `from` is the beginning of an hour or a day, in epoch seconds. The series lack changes after `as_of` and changes
    before `since`, which is the first deployment of Tally, or the first day that is kept. If no series exist, `as_of`
    and `since` are null. `imports`: `{"from","value"}` of each imported day of UTC in the range, also before `since`.
    `repairs`: `{"at","value","how","added"}` (`_repairs`). If a tally's first change was after `since`, the tally is
    the sum of its series, of all of its imports, and of `added` in all of its repairs.
    """
    spans.require_single_period(counter, wanted.by, wanted.zone)
    store, settings = call.store, call.store.settings
    progress_ = progress.read(store)  # before the amounts, so that they are as new as the progress, or newer
    body = {"counter": counter.name, "id": id_, "by": wanted.by}
    if progress_.as_of(settings) is None:
        return {**body, "series": [], "imports": [], "repairs": [], "since": None, "as_of": None}
    first = max(wanted.first, progress_.first_hour(settings))
    # The present hour is the hour that the sweep sums up now. Its amounts are the running amounts, not stored by day.
    has_present_hour = progress_.through >= minutes_of(settings, progress_.hour)[0]
    end = min(wanted.end, progress_.hour + 1 if has_present_hour else progress_.hour)
    running = list(hours.running_amounts_of(store, progress_, counter.name, id_))
    amounts: dict[int, int] = {}
    if first < end:
        low, high = hours.day_name(first // 24), hours.day_name((end - 1) // 24)
        for day, hour_of_day, amount in _stored_amounts(store, counter.name, id_, low, high):
            amounts[24 * hours.parse_day(day) + hour_of_day] = amount
    amounts[progress_.hour] = sum(entry.amount for entry in running if not entry.import_day)
    imports = read_imports(store, counter.name, id_, progress_, running, wanted)
    points: dict[int, int] = {}
    for hour in range(first, end):
        from_s = _start_s(hour, wanted)
        points[from_s] = points.get(from_s, 0) + amounts.get(hour, 0)
    return {
        **body,
        "series": [{"from": from_s, "value": value} for from_s, value in points.items()],
        "imports": [
            {"from": hours.parse_day(day) * hours.DAY_S, "value": sum(part.amount for part in same_day)}
            for day, same_day in groupby(sorted(imports), attrgetter("day"))
        ],
        "repairs": list(_repairs(call, counter, id_, wanted)),
        "since": max(progress_.since * settings.minute_s, progress_.first_hour(settings) * HOUR_S),
        "as_of": progress_.as_of(settings),
    }


def _stored_amounts(store: Store, counter: str, id_: str, low: str, high: str) -> Iterator[tuple[str, int, int]]:
    """Yields (sort key, hour, amount) for each amount in the items of a tally from the sort key `low` to `high`. The
    hour is an hour of the day, but in an item of imports an hour since 1970. The attribute of hour 13 is `h13`."""
    partition, table = hours.day_partition(counter, id_), store.settings.ledger_table
    for item in queries.partition_items(store, table, partition, low, high):
        for name in item.keys() - {"PK", "SK", "expiration"}:
            yield item["SK"]["S"], int(name[1:]), int(item[name]["N"])


class ImportedHour(NamedTuple):
    """An imported amount of a tally for one day (`2024-05-03`). `hour`: the hour of the import, in hours since 1970."""

    day: str
    hour: int
    amount: int


def read_imports(
    store: Store, counter: str, id_: str, progress_: Progress, running: Iterable[HourAmount], wanted: SeriesRange
) -> Iterator[ImportedHour]:
    """Yields the imports of a tally into the days (UTC) of a range, from 1970 on. `running`: the present hour's amounts
    of the tally."""
    first, last = (hours.day_name(max(-1, hour // 24)) for hour in (wanted.first, wanted.end - 1))
    low, high = f"{hours.IMPORT}{first}", f"{hours.IMPORT}{last}"
    for sort_key, hour, amount in _stored_amounts(store, counter, id_, low, high):
        if hour < progress_.hour:  # `running` has the present hour, which a sweep may be storing
            yield ImportedHour(sort_key.removeprefix(hours.IMPORT), hour, amount)
    for entry in running:
        if first <= entry.import_day <= last:
            yield ImportedHour(entry.import_day, progress_.hour, entry.amount)


def read_all_imports(store: Store, counter: str, id_: str, progress_: Progress) -> Iterator[ImportedHour]:
    """Yields the imports of a tally into any day."""
    running = hours.running_amounts_of(store, progress_, counter, id_)
    return read_imports(store, counter, id_, progress_, running, ALL_TIME)


def total_imported(call: Call, counter: Counter, id_: str) -> dict[str, int] | None:
    """Returns `{"amount","as_of"}`: all that was imported into a tally. Returns None if no hour is summed up, or if the
    counter has periods, because one series has all periods of an id."""
    progress_ = progress.read(call.store)
    as_of = progress_.as_of(call.store.settings)
    if as_of is None or counter.period is not None:
        return None
    imported_hours = read_all_imports(call.store, counter.name, id_, progress_)
    return {"amount": sum(part.amount for part in imported_hours), "as_of": as_of}


def _start_s(hour: int, wanted: SeriesRange) -> int:
    """Returns the beginning of an hour, or of the day that it is in: epoch seconds."""
    if wanted.by == HOUR:
        return hour * HOUR_S
    local = datetime.fromtimestamp(hour * HOUR_S, wanted.zone)
    return int(local.replace(hour=0, minute=0, second=0, fold=0).timestamp())


def _repairs(call: Call, counter: Counter, id_: str, wanted: SeriesRange) -> Iterator[dict[str, Any]]:
    """Yields the repairs in the range. No series has a repair. `added`: the part that takes back no drift, but corrects
    an error from before `since`, or adds changes whose records are lost."""
    for repair in history.read_repairs(call.store, counter.name, id_):
        if wanted.first * HOUR_S <= repair["at"] < wanted.end * HOUR_S:
            yield {"at": repair["at"], "value": repair["amount"], "how": repair["how"], "added": repair["added"]}


def range_of(by: str, from_s: int | None, to_s: int | None, zone: str | None, now_s: float) -> SeriesRange:
    """Returns the range that a caller asks for, in whole hours or days. Without `to_s`, the range ends now; without
    `from_s`, the range has 24 hours or 30 days; without `zone`, days are of UTC.

    Raises InvalidInputError if the range is empty or has too many points, if the time zone is not known, or if a day
    does not begin with an hour of UTC.
    """
    end = int(now_s) // HOUR_S + 1 if to_s is None else -(-to_s // HOUR_S)
    span = HOURS_DEFAULT if by == HOUR else 24 * DAYS_DEFAULT
    wanted = SeriesRange(by, end - span if from_s is None else from_s // HOUR_S, end, _timezone(zone))
    if wanted.first >= wanted.end:
        raise InvalidInputError("from must be before to.", field="from")
    if by == DAY:  # extends the range to whole days
        while _start_s(end, wanted) == _start_s(end - 1, wanted):
            end += 1
        wanted = wanted._replace(first=_start_s(wanted.first, wanted) // HOUR_S, end=end)
    points = (wanted.end - wanted.first) // (1 if by == HOUR else 24)
    if points > POINTS_MAX[by]:
        raise InvalidInputError(f"The range has {points} {by}s. Ask for {POINTS_MAX[by]} at most.", field="from")
    # Checks two hours of each day, because some zones change their offset by half an hour.
    sample_hours = (*range(wanted.first, wanted.end, 12), wanted.end) if by == DAY else ()
    if any(_start_s(hour, wanted) % HOUR_S for hour in sample_hours):
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
