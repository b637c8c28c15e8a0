"""The spans of a counter of visitors. A span must lie within one period, because a visitor of two periods would count
twice. The exception is an hour in which a day begins, as in India: the hour has first visits of both days.
"""

from __future__ import annotations

from datetime import UTC, tzinfo

from ..counter import Counter
from ..errors import InvalidInputError

HOUR, MONTH = "hour", "month"


def require_single_period(counter: Counter, by: str, zone: tzinfo = UTC) -> None:
    """If a span would add up the visitors of several periods, raises InvalidInputError."""
    if not counter.unique or by == HOUR:
        return
    zone_name, counter_zone = getattr(zone, "key", "UTC"), counter.timezone or "UTC"
    if zone_name != counter_zone:
        raise InvalidInputError(
            f"{counter.name} has periods of {counter_zone}: a {by} of {zone_name} would count some visitors twice.",
            field="tz",
        )
    if by == MONTH and counter.period in ("day", "week"):
        raise InvalidInputError(
            f"{counter.name} counts the visitors of each {counter.period}: a {by} would count some of them twice.",
            field="by",
        )
