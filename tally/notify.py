"""Notify: the thresholds of a counter. A number that crosses a threshold makes an event (docs/series.md)."""

from __future__ import annotations

from dataclasses import dataclass

THRESHOLDS_MAX = 16  # of a counter: one change may cross all of them, and its events are in one transaction
MULTIPLES_MAX = 10  # of `every`: one change makes events of the last multiples only
THRESHOLD_MAX = 10**15  # nine times as much is exact in JavaScript


def part(ceiling: int, percent: int) -> int:
    """Returns the least number that is at least `percent` of a ceiling."""
    return -(-ceiling * percent // 100)


@dataclass(frozen=True)
class Notify:
    """The thresholds of a counter's numbers, up to 16. Each number that crosses a threshold makes an event with its own
    id.

        CALLS = Counter("calls", …, ceiling=1_000, notify=Notify(percent=(80, 100)))

    A number in one item makes an event for each crossing, upwards and downwards. A number that is spread over shards,
    or rolled up, makes one event for each threshold, once for good, when its sum has reached the threshold.
    """

    percent: tuple[int, ...] = ()
    """Percentages of the ceiling, rounded up. If an id has a ceiling of its own, they are percentages of that."""
    at: tuple[int, ...] = ()
    """These numbers. Downwards, 9 crosses 10."""
    every: int | None = None
    """Each multiple of this number, upwards."""

    @property
    def invalid_reason(self) -> str | None:
        """Why these thresholds are invalid; None if they are valid."""
        for name, least, most in (("percent", 1, 100), ("at", -THRESHOLD_MAX, THRESHOLD_MAX)):
            given = getattr(self, name)
            if not isinstance(given, tuple) or not all(type(one) is int and least <= one <= most for one in given):
                return f"{name} must be a tuple of whole numbers from {least} to {most}, like (80,)"
        if self.every is not None and (type(self.every) is not int or not 1 <= self.every <= THRESHOLD_MAX):
            return f"every must be a whole number from 1 to {THRESHOLD_MAX}"
        if not 0 < len(self.percent) + len(self.at) + (self.every is not None) <= THRESHOLDS_MAX:
            return f"it must have 1 to {THRESHOLDS_MAX} thresholds"
        return None

    def never(self, ceiling: int | None, low: int | None, high: int | None) -> str | None:
        """Returns why no number from `low` to `high` crosses one of these thresholds; None if each may be crossed.

        `ceiling`: the ceiling of the percentages; None if ids have their own. `low`, `high`: None if there is no such
        bound.
        """
        of_ceiling = [] if ceiling is None else [part(ceiling, percent) for percent in self.percent]
        last = [] if self.every is None or high is None else [high // self.every * self.every]
        for threshold in (*self.at, *of_ceiling, *last):
            if low is not None and threshold <= low:
                return f"no number falls below {threshold}, because {low} is the least: give {low + 1} or more"
            if high is not None and threshold > high:
                return f"no number reaches {threshold}, because {high} is the greatest: give {high} or less"
        return None
