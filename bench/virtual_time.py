"""Time that passes only when nobody has anything left to do at this moment: many calls at once, in one thread.

Each call is a greenlet, since the code that is measured is written to block: its sleeps and its requests come here.
Everything that happens at one moment happens in the order in which it was asked for, so a run repeats exactly.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

START_S = 1000.0  # clocks that start at 0 hide bugs


class Hub:
    """A clock, and who waits for which moment of it."""

    def __init__(self) -> None:
        self.now_s = START_S
        self._waiting: list[tuple[float, int, greenlet]] = []
        self._turns = itertools.count()
        self._main: greenlet = getcurrent()

    def clock(self) -> float:
        """Seconds, as time.monotonic() gives them."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let others go on until so many seconds have passed."""
        self._wait(getcurrent(), self.now_s + max(0.0, seconds))
        self._main.switch()

    def start(self, does: Callable[[], object], at_s: float | None = None) -> None:
        """Begin something at a moment (now, by default), beside whatever else goes on."""
        self._wait(greenlet(does, parent=self._main), self.now_s if at_s is None else at_s)

    def run(self) -> None:
        """Until everything that was begun has ended. What it raises ends the run and is raised here."""
        self._main = getcurrent()
        while self._waiting:
            self.now_s, _, who = heapq.heappop(self._waiting)
            who.switch()

    def _wait(self, who: greenlet, until_s: float) -> None:
        heapq.heappush(self._waiting, (until_s, next(self._turns), who))
