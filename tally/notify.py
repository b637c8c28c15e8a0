"""When a number of a counter makes an event: the thresholds of its declaration (docs/series.md)."""

from __future__ import annotations

from dataclasses import dataclass

THRESHOLDS_MAX = 16  # of a counter: one change may cross all of them, and its events are in one transaction
MULTIPLES_MAX = 10  # of `every`, that one change makes events of: the last ones
THRESHOLD_MAX = 10**15  # a Number of JavaScript has nine of them exactly


def part(ceiling: int, percent: int) -> int:
    """The least number that has so many percent of a ceiling."""
    return -(-ceiling * percent // 100)


@dataclass(frozen=True)
class Notify:
    """The thresholds of a counter's numbers, up to 16: one that a number crosses makes an event, with an id of its own.

        CALLS = Counter("calls", …, ceiling=1_000, notify=Notify(percent=(80, 100)))

    A number that stands in one item makes one for each crossing, upwards and downwards. One that is spread over shards,
    or rolled up, makes one for each threshold, once for good, when its sum has reached it.
    """

    percent: tuple[int, ...] = ()
    """Percentages of the ceiling, rounded up. An id with its own ceiling has percentages of that."""
    at: tuple[int, ...] = ()
    """These numbers. Downwards, 10 is crossed by 9."""
    every: int | None = None
    """Each multiple of this number, upwards."""

    @property
    def invalid_reason(self) -> str | None:
        """Why these are no thresholds; None if they are."""
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
        """Why one of these thresholds is never crossed by numbers from `low` to `high`; None if each may be.

        `ceiling`: of the percentages; None if ids have their own. `low`, `high`: None if there is no such bound.
        """
        of_ceiling = [] if ceiling is None else [part(ceiling, percent) for percent in self.percent]
        last = [] if self.every is None or high is None else [high // self.every * self.every]
        for threshold in (*self.at, *of_ceiling, *last):
            if low is not None and threshold <= low:
                return f"no number falls below {threshold}, because none goes below {low}: give {low + 1} or more"
            if high is not None and threshold > high:
                return f"no number reaches {threshold}, because none goes above {high}: give {high} or less"
        return None
