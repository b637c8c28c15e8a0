"""How writers of one hot tally stay out of each other's way, without talking to each other.

Conflicts (two transactions on one item) are answered by moving to another shard and spreading wider; throttling only
by waiting, for more shards under one partition key do not help until DynamoDB has split it. A change that may be is
written alone, to be rolled up: at once when it was throttled, when retries did not help against conflicts
(commit.transact), and without a try while a breaker holds the tally for hot.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import SystemRandom

from ..counter import MAX_SHARDS_LIMIT

TALLIES_REMEMBERED_MAX = 1024  # hot tallies are few; beyond this the one that was hot longest ago is forgotten
CALM_S = 10.0  # without a conflict for this long a tally comes back to half its shards
RETRY_S_MAX = 3.0  # then the caller is told 503: it holds an environment all the while
ATTEMPTS_MAX = 12
BACKOFF_FIRST_S = 0.010  # a conflicting transaction is over in 10 to 30 ms
BACKOFF_MAX_S = 0.640
SPILL_RETRIES_MAX = 3  # then a change that may is written alone: by then other shards and some 60 ms did not help
HOT_S = 10.0  # as long as a tally stays spread without a conflict: heat comes in minutes, not in moments
THROTTLED_S = 60.0  # a partition that is out of capacity is so until DynamoDB has split it, which takes minutes
ALONE_RETRY_S_MAX = 6.0  # nothing is left to fall back on, and what is written alone has its turn soon: 1 WCU
PROBE_S = RETRY_S_MAX  # the change that tries whether the heat is over has its answer by then, or never

Random = SystemRandom  # SnapStart restores every environment with the same `random` state


@dataclass
class _Width:
    shards: int
    since_s: float


@dataclass
class Spread:
    """Over how many shards this process spreads its writes, tally by tally. One shard until there are conflicts."""

    clock: Callable[[], float] = time.monotonic
    random: Random = field(default_factory=SystemRandom)
    _widths: OrderedDict[str, _Width] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def shards(self, tally: str) -> int:
        """How many shards the next write of this tally spreads over; halved for each CALM_S without a conflict."""
        with self._lock:
            width = self._widths.get(tally)
            if width is None:
                return 1
            while width.shards > 1 and self.clock() - width.since_s >= CALM_S:
                width.shards //= 2
                width.since_s += CALM_S
            if width.shards == 1:
                del self._widths[tally]
            return width.shards

    def pick(self, tally: str, max_shards: int = MAX_SHARDS_LIMIT, *, avoid: int | None = None) -> int:
        """A shard for the next write, of `max_shards` at most; another one than `avoid`, where there are two.

        Counters that share a partition key share its heat, but not how far they may spread.
        """
        shards = min(self.shards(tally), max_shards)
        if avoid is None or shards == 1:
            return self.random.randrange(shards)
        shard = self.random.randrange(shards - 1)
        return shard + 1 if shard >= avoid else shard

    def conflict(self, tally: str, max_shards: int) -> None:
        """A write of this tally met another one: spread over twice as many shards, `max_shards` at most.

        Never over fewer than before: another counter of the same partition key may spread further.
        """
        now_s = self.clock()
        shards = self.shards(tally)
        with self._lock:
            self._widths[tally] = _Width(max(shards, min(2 * shards, max_shards)), now_s)
            self._widths.move_to_end(tally)
            while len(self._widths) > TALLIES_REMEMBERED_MAX:
                self._widths.popitem(last=False)


@dataclass
class _Heat:
    until_s: float
    probed: bool


@dataclass
class Breaker:
    """Which tallies are so hot that this process writes their changes alone, without trying first."""

    clock: Callable[[], float] = time.monotonic
    _heats: OrderedDict[str, _Heat] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hot(self, tally: str) -> bool:
        """Whether the next change of this tally is written alone.

        After HOT_S one change is told no, so that it tries whether the heat is over; the others go on meanwhile.
        """
        with self._lock:
            heat = self._heats.get(tally)
            if heat is None:
                return False
            now_s = self.clock()
            if now_s < heat.until_s:
                return True
            self._heats[tally] = _Heat(now_s + PROBE_S, probed=True)
            return False

    def trip(self, tally: str, hot_s: float = HOT_S) -> None:
        """Retries did not get a change of this tally through: it is hot, for `hot_s` at least."""
        with self._lock:
            self._heats[tally] = _Heat(self.clock() + hot_s, probed=False)
            self._heats.move_to_end(tally)
            while len(self._heats) > TALLIES_REMEMBERED_MAX:
                self._heats.popitem(last=False)

    def cool(self, tally: str) -> None:
        """A change of this tally got through. Those that were under way when it became hot say nothing of it."""
        with self._lock:
            heat = self._heats.get(tally)
            if heat is not None and heat.probed:
                del self._heats[tally]


@dataclass
class Retries:
    """Bounded, jittered retries of one change: at most `attempts_max`, `retry_s_max` and the call's own deadline."""

    deadline_s: float
    attempts_max: int = ATTEMPTS_MAX
    backoff_max_s: float = BACKOFF_MAX_S
    retry_s_max: float = RETRY_S_MAX
    random: Random = field(default_factory=SystemRandom)
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    attempts: int = 0

    def __post_init__(self) -> None:
        self.deadline_s = min(self.deadline_s, self.clock() + self.retry_s_max)

    def wait(self) -> bool:
        """Sleep before the next attempt (full jitter, doubling); False, at once, when there is to be none."""
        self.attempts += 1
        pause_s = self.random.uniform(0, min(self.backoff_max_s, BACKOFF_FIRST_S * 2**self.attempts))
        if self.attempts >= self.attempts_max or self.clock() + pause_s >= self.deadline_s:
            return False
        self.sleep(pause_s)
        return True
