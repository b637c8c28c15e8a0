"""The spans of a counter of visitors. None may hold more than one period: who came in both would be in it twice.

But for an hour in whose middle a day begins, as in India: that one has first visits of both.
"""

from __future__ import annotations

from datetime import UTC, tzinfo

from ..counter import Counter
from ..errors import InvalidInputError

HOUR, MONTH = "hour", "month"


def require_single_period(counter: Counter, by: str, zone: tzinfo = UTC) -> None:
    """Raise InvalidInputError for spans that would add up the visitors of several periods."""
    if not counter.unique or by == HOUR:
        return
    asked, own = getattr(zone, "key", "UTC"), counter.timezone or "UTC"
    if asked != own:
        raise InvalidInputError(
            f"{counter.name} has periods of {own}: a {by} of {asked} would count some visitors twice.", field="tz"
        )
    if by == MONTH and counter.period in ("day", "week"):
        raise InvalidInputError(
            f"{counter.name} counts the visitors of each {counter.period}: a {by} would count some of them twice.",
            field="by",
        )
