"""Periods of a counter: which period a time is in, when the period ends, and how long its tally is kept.

A period is named as ISO 8601 has it: `2026-11-22T14:05`, `2026-11-22T14`, `2026-11-22`, `2026-W47`, `2026-11`, `2026`.
Its tally has the stored id `7c20#2026-11`. No id from outside holds `#`, so no caller can name the tally of another id.

Every write of a tally sets its TTL. If a late write comes after the removal, DynamoDB removes that item, too. The
stream says that TTL removed an item, so the removal is not drift. If a person removes a tally, or its period is not
over, the removal is drift. A repair sets the drift of a removed tally to 0 and does not move the tally. A rebuild
leaves out the receipts of a tally from an hour before its TTL on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo

from ..counter import Counter
from ..errors import InvalidInputError, NotFoundError

_SEPARATOR = "#"
_CHARACTERS = {"minute": 16, "hour": 13, "day": 10, "month": 7, "year": 4}  # of `2026-11-22T14:05`
_FIRST_DAY = {"week": "-1", "month": "-01", "year": "-01-01"}  # makes a date of the name
_LENGTHS = {
    "minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(weeks=1),
}  # fmt: skip
_MONTHS = {"month": 1, "year": 12}


def tally_id(counter: Counter, id_: str, now_s: float, period: str | None = None) -> str:
    """Returns the stored id of the tally that a change or a read at `now_s` moves or reads: `7c20#2026-11`.

    `period`: the period that the caller asks for; None: the current period. Without periods the stored id is the id
    itself. Raises InvalidInputError if the counter has no such period, NotFoundError if its tally is no longer kept.
    """
    if counter.period is None:
        if period is not None:
            raise InvalidInputError(f"{counter.name} has no periods.", field="period")
        return id_
    now = _period_name(counter.period, datetime.fromtimestamp(now_s, _timezone(counter)))
    if period is None:
        return f"{id_}{_SEPARATOR}{now}"
    tally = f"{id_}{_SEPARATOR}{period}"
    if not is_valid_tally_id(counter, tally):
        raise InvalidInputError(f"period must be a {counter.period} of {counter.name}, like {now}.", field="period")
    if not is_kept(counter, tally, now_s):
        raise NotFoundError(f"{counter.name} does not keep {period} any longer.", field="period")
    return tally


def answer_members(tally: str) -> dict[str, str]:
    """Returns the stored id of a tally as answers show it: `{"id","period"}`, or `{"id"}`."""
    id_, separator, period = tally.partition(_SEPARATOR)
    return {"id": id_, "period": period} if separator else {"id": id_}


def tally_id_of_answer(id_: str, body: Mapping[str, object]) -> str:
    """Returns the stored id of the tally that an answer names. `id_`: the id, with any period."""
    id_ = id_.partition(_SEPARATOR)[0]
    return f"{id_}{_SEPARATOR}{body['period']}" if "period" in body else id_


def is_valid_tally_id(counter: Counter, tally: str) -> bool:
    """Returns whether a stored id fits the counter as it is declared now: with the name of a period if it has
    periods."""
    if counter.period is None:
        return True
    id_, _, name = tally.partition(_SEPARATOR)
    try:
        return bool(id_) and name == _period_name(counter.period, _start_of(counter.period, name)) and name[0] == "2"
    except ValueError:
        return False


def is_kept(counter: Counter, tally: str, now_s: float) -> bool:
    """Returns whether a tally is still kept. If it is not, no item says what its number was."""
    if not is_valid_tally_id(counter, tally):
        return False
    gone_s = expires_s(counter, tally)
    return gone_s is None or now_s < gone_s


def expires_s(counter: Counter, tally: str) -> int | None:
    """Returns when DynamoDB may remove a tally, in epoch seconds; None: never."""
    return None if counter.keep_periods is None else ends_s(counter, tally, counter.keep_periods)


def has_ended(counter: Counter, tally: str, at_s: float) -> bool:
    """Returns whether the period of a tally had ended at this time. If the counter has no periods any more, it had."""
    return _SEPARATOR in tally if counter.period is None else ends_s(counter, tally) <= at_s


def seconds_to_next(counter: Counter, tally: str, now_s: float) -> int:
    """Returns in how many seconds the next period begins: 1 or more."""
    return max(1, math.ceil(ends_s(counter, tally) - now_s))


def ends_s(counter: Counter, tally: str, periods_later: int = 0) -> int:
    """Returns the end of the period that is `periods_later` periods after that of the tally, in epoch seconds."""
    period = str(counter.period)
    begins = _start_of(period, tally.partition(_SEPARATOR)[2])
    months = _MONTHS.get(period)
    if months:
        year, month = divmod(begins.year * 12 + begins.month - 1 + (periods_later + 1) * months, 12)
        ends = begins.replace(year=year, month=month + 1)
    else:
        ends = begins + (periods_later + 1) * _LENGTHS[period]
    return int(ends.replace(tzinfo=_timezone(counter)).timestamp())


def _period_name(period: str, local: datetime) -> str:
    if period == "week":
        year, week, _ = local.isocalendar()
        return f"{year}-W{week:02}"
    return local.isoformat()[: _CHARACTERS[period]]


def _start_of(period: str, name: str) -> datetime:
    """Raises ValueError if `name` does not name a period."""
    return datetime.fromisoformat(name + _FIRST_DAY.get(period, ""))


def _timezone(counter: Counter) -> tzinfo:
    if counter.timezone is None:
        return UTC
    from zoneinfo import ZoneInfo  # it caches the zones

    return ZoneInfo(counter.timezone)
