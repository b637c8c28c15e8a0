"""Virtual time for many concurrent calls in one thread. It advances only when no call has work left at this moment.

Each call is a greenlet, because the simulated code blocks: its sleeps and its requests switch to the hub. Events of
the same moment happen in the order of their registration, so a run repeats exactly.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

START_S = 1000.0  # clocks that start at 0 hide bugs


class Hub:
    """A clock, and the calls that wait for a moment of it."""

    def __init__(self) -> None:
        self.now_s = START_S
        self._waiting: list[tuple[float, int, greenlet]] = []
        self._turns = itertools.count()
        self._main: greenlet = getcurrent()

    def clock(self) -> float:
        """Seconds, like time.monotonic()."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let other calls run until these seconds have passed."""
        self._wait(getcurrent(), self.now_s + max(0.0, seconds))
        self._main.switch()

    def start(self, call: Callable[[], object], at_s: float | None = None) -> None:
        """Begin a call at a moment, by default now."""
        self._wait(greenlet(call, parent=self._main), self.now_s if at_s is None else at_s)

    def run(self) -> None:
        """Run until every call has ended. An exception of a call ends the run; it is raised here."""
        self._main = getcurrent()
        while self._waiting:
            self.now_s, _, waiter = heapq.heappop(self._waiting)
            waiter.switch()

    def _wait(self, waiter: greenlet, until_s: float) -> None:
        heapq.heappush(self._waiting, (until_s, next(self._turns), waiter))


class WallClock:
    """Time that waits: while it is entered, `time.time()` says `now_s` in the whole process.

    The clock of retries and deadlines is time.monotonic(), which goes on.
    """

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self._real = time.time

    def __enter__(self) -> WallClock:
        self._real, time.time = time.time, lambda: self.now_s
        return self

    def __exit__(self, *_: object) -> None:
        time.time = self._real
