"""The thresholds of a counter. If a tally crosses a threshold, Tally sends an event (docs/series.md)."""

from __future__ import annotations

from dataclasses import dataclass

THRESHOLDS_MAX = 16  # of a counter: one change may cross all of its thresholds, and one transaction stores these events
MULTIPLES_MAX = 10  # if one change crosses more multiples of `every`, only the last 10 make events
THRESHOLD_MAX = 10**15  # JavaScript's Number holds integers exactly up to about 9 * 10**15


def share_of_ceiling(ceiling: int, percent: int) -> int:
    """Returns `percent` of a ceiling, rounded up."""
    return -(-ceiling * percent // 100)


@dataclass(frozen=True)
class Notify:
    """The thresholds of a counter, up to 16. Each crossing makes an event, which has an id of its own.

        CALLS = Counter("calls", …, ceiling=1_000, notify=Notify(percent=(80, 100)))

    A tally in one item makes an event for each crossing, upwards and downwards. A tally that is spread over shards, or
    rolled up, makes at most one event for each threshold: when its sum first reaches the threshold.
    """

    percent: tuple[int, ...] = ()
    """Percentages of the ceiling or of its override, rounded up."""
    at: tuple[int, ...] = ()
    """Numbers. A tally crosses 10 upwards at 10, and downwards at 9."""
    every: int | None = None
    """Every multiple of this number, upwards only."""

    @property
    def invalid_reason(self) -> str | None:
        """Why these thresholds are invalid; None if they are valid."""
        for name, least, most in (("percent", 1, 100), ("at", -THRESHOLD_MAX, THRESHOLD_MAX)):
            values = getattr(self, name)
            if not isinstance(values, tuple) or not all(type(one) is int and least <= one <= most for one in values):
                return f"{name} must be a tuple of whole numbers from {least} to {most}, like (80,)"
        if self.every is not None and (type(self.every) is not int or not 1 <= self.every <= THRESHOLD_MAX):
            return f"every must be a whole number from 1 to {THRESHOLD_MAX}"
        if not 0 < len(self.percent) + len(self.at) + (self.every is not None) <= THRESHOLDS_MAX:
            return f"it must have 1 to {THRESHOLDS_MAX} thresholds"
        return None

    def unreachable_reason(self, ceiling: int | None, low: int | None, high: int | None) -> str | None:
        """Returns the reason why one of these thresholds can never be crossed; None if each threshold can.

        `ceiling`: the ceiling of the percentages; None if overrides may set it for each id. `low`, `high`: the least
        and the greatest number that a tally can have; None if there is no such bound.
        """
        of_ceiling = [] if ceiling is None else [share_of_ceiling(ceiling, percent) for percent in self.percent]
        last_multiple = [] if self.every is None or high is None else [high // self.every * self.every]
        for threshold in (*self.at, *of_ceiling, *last_multiple):
            if low is not None and threshold <= low:
                return f"no number falls below {threshold}, because {low} is the least: give {low + 1} or more"
            if high is not None and threshold > high:
                return f"no number reaches {threshold}, because {high} is the greatest: give {high} or less"
        return None
