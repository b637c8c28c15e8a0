"""Periods of a counter: which period a time is in, when the period ends, and how long its tally is kept.

A period is named as ISO 8601 has it: `2026-11-22T14:05`, `2026-11-22T14`, `2026-11-22`, `2026-W47`, `2026-11`, `2026`.
Its tally has the stored id `7c20#2026-11`. No id from outside has a `#`, so no caller can name the tally of another id.

Every write of a tally sets its TTL. If a late write makes a removed tally once more, TTL removes it once more. The
record of a removal says whether TTL removed the item. If so, and if the period is over, the removal is not drift. Any
other removal is drift. A repair of a removed tally sets its drift to 0, and does not make the tally. A rebuild adds
nothing to a tally whose TTL is over or ends within an hour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo

from ..counter import Counter
from ..errors import InvalidInputError, NotFoundError

_SEPARATOR = "#"
_NAME_CHARACTERS = {"minute": 16, "hour": 13, "day": 10, "month": 7, "year": 4}  # of `2026-11-22T14:05`
_FIRST_DAY = {"week": "-1", "month": "-01", "year": "-01-01"}  # a period's name and this are the date of its first day
_DURATIONS = {
    "minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(weeks=1),
}  # fmt: skip
_MONTHS = {"month": 1, "year": 12}


def tally_id(counter: Counter, id_: str, now_s: float, period: str | None = None) -> str:
    """Returns the stored id of the tally that a call at `now_s` moves or reads: `7c20#2026-11`.

    `period`: the period that the caller asks for; None: the current period. If the counter has no periods, the stored
    id is the id. Raises InvalidInputError for an invalid period, NotFoundError if the period's tally is not kept.
    """
    if counter.period is None:
        if period is not None:
            raise InvalidInputError(f"{counter.name} has no periods.", field="period")
        return id_
    current = _period_name(counter.period, datetime.fromtimestamp(now_s, _timezone(counter)))
    if period is None:
        return f"{id_}{_SEPARATOR}{current}"
    stored_id = f"{id_}{_SEPARATOR}{period}"
    if not is_valid_tally_id(counter, stored_id):
        raise InvalidInputError(f"period must be a {counter.period} of {counter.name}, like {current}.", field="period")
    if not is_kept(counter, stored_id, now_s):
        raise not_kept_error(counter, stored_id, "period")
    return stored_id


def not_kept_error(counter: Counter, stored_id: str, field: str) -> NotFoundError:
    """Makes the error for a tally that is no longer kept. `field`: the input that names the tally."""
    return NotFoundError(f"{counter.name} does not keep {stored_id.partition(_SEPARATOR)[2]} any longer.", field=field)


def answer_members(stored_id: str) -> dict[str, str]:
    """Returns the stored id of a tally as answers show it: `{"id","period"}`, or `{"id"}`."""
    id_, separator, period = stored_id.partition(_SEPARATOR)
    return {"id": id_, "period": period} if separator else {"id": id_}


def tally_id_of_answer(id_: str, body: Mapping[str, object]) -> str:
    """Returns the stored id of the tally that an answer is about. `id_`: the tally's id, with or without a period."""
    id_ = id_.partition(_SEPARATOR)[0]
    return f"{id_}{_SEPARATOR}{body['period']}" if "period" in body else id_


def is_valid_tally_id(counter: Counter, stored_id: str) -> bool:
    """Returns whether a stored id fits the present declaration. If the counter has periods, the id must name a period.
    If the counter has no periods, each id fits, also with a period of an earlier declaration."""
    if counter.period is None:
        return True
    id_, _, name = stored_id.partition(_SEPARATOR)
    try:
        is_name = name == _period_name(counter.period, _start_of(counter.period, name))  # in no other spelling
    except ValueError:
        return False
    return bool(id_) and is_name and name.startswith("2")  # the years 2000 to 2999


def is_kept(counter: Counter, stored_id: str, now_s: float) -> bool:
    """Returns whether a tally is kept at `now_s`. If not, TTL may have removed the tally, or its id does not fit."""
    if not is_valid_tally_id(counter, stored_id):
        return False
    end_s = expires_s(counter, stored_id)
    return end_s is None or now_s < end_s


def expires_s(counter: Counter, stored_id: str) -> int | None:
    """Returns when DynamoDB may remove a tally, in epoch seconds; None: never."""
    return None if counter.keep_periods is None else ends_s(counter, stored_id, counter.keep_periods)


def has_ended(counter: Counter, stored_id: str, at_s: float) -> bool:
    """Returns whether the tally's period had ended at `at_s`. Every period of an earlier declaration has ended."""
    return _SEPARATOR in stored_id if counter.period is None else ends_s(counter, stored_id) <= at_s


def seconds_to_next(counter: Counter, stored_id: str, now_s: float) -> int:
    """Returns the seconds until the next period begins: 1 or more."""
    return max(1, math.ceil(ends_s(counter, stored_id) - now_s))


def ends_s(counter: Counter, stored_id: str, periods_later: int = 0) -> int:
    """Returns the end of the tally's period, or of the period `periods_later` periods later, in epoch seconds."""
    period = str(counter.period)
    begins = _start_of(period, stored_id.partition(_SEPARATOR)[2])
    months = _MONTHS.get(period)
    if months:
        year, month = divmod(begins.year * 12 + begins.month - 1 + (periods_later + 1) * months, 12)
        ends = begins.replace(year=year, month=month + 1)
    else:
        ends = begins + (periods_later + 1) * _DURATIONS[period]
    return int(ends.replace(tzinfo=_timezone(counter)).timestamp())


def _period_name(period: str, local: datetime) -> str:
    if period == "week":
        year, week, _ = local.isocalendar()
        return f"{year}-W{week:02}"
    return local.isoformat()[: _NAME_CHARACTERS[period]]


def _start_of(period: str, name: str) -> datetime:
    """Returns the start of a period, as local time. Raises ValueError if `name` does not name a period."""
    return datetime.fromisoformat(name + _FIRST_DAY.get(period, ""))


def _timezone(counter: Counter) -> tzinfo:
    if counter.timezone is None:
        return UTC
    from zoneinfo import ZoneInfo  # imported only for a counter with a timezone; ZoneInfo caches zones

    return ZoneInfo(counter.timezone)
