"""The spans of a counter of visitors. A span must lie within one period, because a visitor of two periods would count
twice. An hour may have visitors of two periods, as in India, where a day begins at half past an hour of UTC.
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
