"""Makes the writers of one hot tally avoid each other, without messages between them.

If two transactions on one item conflict, the writer tries another shard and spreads wider. After throttling the writer
only waits, because more shards under one partition key do not help until DynamoDB has split the partition. If a change
may spill, the writer spills it at once after throttling, after some retries of conflicts (transactions.commit_change),
and without a try while the circuit breaker of the tally is open.

Here a tally is named by its partition key. Counters that share the key share the number of shards and the breaker.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import SystemRandom
from typing import NamedTuple

TRACKED_TALLIES_MAX = 1024  # few tallies are hot; beyond this, the least recently hot tally is forgotten
NARROW_AFTER_S = 10.0  # a tally without a conflict for this long narrows to half its shards
RETRY_S_MAX = 3.0  # after this time the caller gets a 503, because a caller that waits holds a Lambda environment
ATTEMPTS_MAX = 12  # within RETRY_S_MAX
BACKOFF_FIRST_S = 0.010  # the first pause is up to twice this: a conflicting transaction is over in 10 to 30 ms
BACKOFF_MAX_S = 0.640
SPILL_RETRIES_MAX = 3  # after these retries, with 70 ms of pauses on average, a change spills if it may
BREAKER_OPEN_S = 10.0  # after it, one change probes; a tally stays hot for minutes, so most earlier probes would fail
BREAKER_THROTTLED_S = 60.0  # a throttled partition needs minutes until DynamoDB has split it
SPILL_RETRY_S_MAX = 6.0  # longer than RETRY_S_MAX: a spilled change needs only 1 WCU, and has no other way to count
PROBE_S = RETRY_S_MAX  # a change that probes has its answer within this time; after this time, the next change probes

Random = SystemRandom  # SnapStart restores every environment with the same state of `random`


class _Width(NamedTuple):
    shards: int
    since_s: float  # when the tally had its last conflict, or was last narrowed


@dataclass(eq=False)
class Spread:
    """Over how many shards this process spreads its writes of a tally: 1, unless the tally had conflicts lately."""

    clock: Callable[[], float] = time.monotonic
    random: Random = field(default_factory=SystemRandom)
    widths: OrderedDict[str, _Width] = field(default_factory=OrderedDict)
    """By tally. A tally that is not listed has a width of 1."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def width(self, tally: str) -> int:
        """Returns the number of shards for this tally; half as many after each NARROW_AFTER_S without a conflict."""
        with self._lock:
            if tally not in self.widths:
                return 1
            shards, since_s = self.widths[tally]
            while shards > 1 and self.clock() - since_s >= NARROW_AFTER_S:
                shards, since_s = shards // 2, since_s + NARROW_AFTER_S
            if shards == 1:
                del self.widths[tally]
            else:
                self.widths[tally] = _Width(shards, since_s)
            return shards

    def pick_shard(self, tally: str, max_shards: int, *, avoid: int | None = None) -> int:
        """Picks a shard below `max_shards` of the counter. Picks `avoid` only if there is no other shard."""
        shards = min(self.width(tally), max_shards)
        if avoid is None or shards == 1:
            return self.random.randrange(shards)
        shard = self.random.randrange(shards - 1)
        return shard + 1 if shard >= avoid else shard

    def widen(self, tally: str, max_shards: int) -> None:
        """Spreads a tally over twice as many shards after a conflict, `max_shards` at most. Never narrows the tally to
        a smaller `max_shards`: another counter of the same partition key may need the width."""
        now_s = self.clock()
        shards = self.width(tally)
        with self._lock:
            self.widths[tally] = _Width(max(shards, min(2 * shards, max_shards)), now_s)
            self.widths.move_to_end(tally)
            while len(self.widths) > TRACKED_TALLIES_MAX:
                self.widths.popitem(last=False)


class _OpenState(NamedTuple):
    until_s: float  # until then all changes that may spill do; after that, the next such change probes
    is_probing: bool


@dataclass(eq=False)
class Breaker:
    """The circuit breaker. While it is open for a tally, this process spills the tally's changes without a try. After
    some time one change *probes*: it is tried, and the breaker closes if the change has no conflict or throttling."""

    clock: Callable[[], float] = time.monotonic
    open_tallies: OrderedDict[str, _OpenState] = field(default_factory=OrderedDict)
    """By tally. A tally whose breaker is closed is not listed."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def is_open(self, tally: str) -> bool:
        """Returns whether the change of the caller, which may spill, has to spill. After the breaker was open for its
        time, one caller gets False, and its change probes."""
        with self._lock:
            state = self.open_tallies.get(tally)
            if state is None:
                return False
            now_s = self.clock()
            if now_s < state.until_s:
                return True
            self.open_tallies[tally] = _OpenState(now_s + PROBE_S, is_probing=True)
            return False

    def trip(self, tally: str, open_s: float = BREAKER_OPEN_S) -> None:
        """Opens the breaker of a tally after throttling or repeated conflicts. `open_s`: how long no change probes."""
        with self._lock:
            self.open_tallies[tally] = _OpenState(self.clock() + open_s, is_probing=False)
            self.open_tallies.move_to_end(tally)
            while len(self.open_tallies) > TRACKED_TALLIES_MAX:
                self.open_tallies.popitem(last=False)

    def close(self, tally: str) -> None:
        """Closes the breaker after an attempt without conflict or throttling, if a change probes. If no change probes,
        the attempt proves nothing: it began before the breaker opened, or was of a change that never spills."""
        with self._lock:
            state = self.open_tallies.get(tally)
            if state is not None and state.is_probing:
                del self.open_tallies[tally]


@dataclass(eq=False)
class Retries:
    """Jittered retries of one change, until `attempts_max`, `retry_s_max` or the deadline of the call."""

    deadline_s: float
    since_s: float | None = None
    """When the first attempt began, on `clock`; None: when the object is made."""
    attempts_max: int = ATTEMPTS_MAX
    backoff_max_s: float = BACKOFF_MAX_S
    retry_s_max: float = RETRY_S_MAX
    random: Random = field(default_factory=SystemRandom)
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    attempts: int = 0  # for which `sleep_before_retry` was called

    def __post_init__(self) -> None:
        since_s = self.clock() if self.since_s is None else self.since_s
        self.deadline_s = min(self.deadline_s, since_s + self.retry_s_max)

    def sleep_before_retry(self) -> bool:
        """Sleeps before the next attempt (full jitter, doubling). Returns False, at once, if no attempt is left."""
        self.attempts += 1
        pause_s = self.random.uniform(0, min(self.backoff_max_s, BACKOFF_FIRST_S * 2**self.attempts))
        if self.attempts >= self.attempts_max or self.clock() + pause_s >= self.deadline_s:
            return False
        self.sleep(pause_s)
        return True
