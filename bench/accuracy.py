"""The error of the count after lost answers and crashes, on a seeded schedule."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID

import counters
from dev.faults import LOSE_RESPONSE, Fault, FaultProxy
from tally.streams import rollup

from .clients import SETTINGS, clients_of, fresh_engine
from .designs import COUNTED, ROLLUP, Design, Play
from .rollups import deliver, handler_of, stream
from .speed import Progress
from .watch import Crasher, CrashError

THREADS = 8
SEED = 1995
ANSWERS_LOST_SHARE = 0.02
CRASHES_SHARE = 0.01
CALLER_ATTEMPTS_MAX = 40  # with the pauses 2 s: several times designs.INVOCATION_S
CALLER_PAUSE_S = 0.05


@dataclass(frozen=True)
class Schedule:
    """Which plays of a run meet which fault. It is the same for every design."""

    plays: int
    lost_at_store: frozenset[int]
    """The numbers of the counting writes whose answer is lost between store and SDK. The SDK then retries."""
    lost_at_caller: frozenset[int]
    """The plays whose answer does not reach the caller. The caller then retries with the same key."""
    crashes: frozenset[int]
    """The plays whose process ends between two writes, or after the only one. The caller then retries too."""

    @classmethod
    def seeded(cls, plays: int) -> Schedule:
        """Lose half of the answers on each side; at least one fault of each sort."""
        lost_each = max(1, round(plays * ANSWERS_LOST_SHARE / 2))
        crashes = max(1, round(plays * CRASHES_SHARE))
        drawn = random.Random(SEED).sample(range(plays), lost_each + crashes)
        at_store = random.Random(SEED + 1).sample(range(plays), lost_each)
        return cls(plays, frozenset(at_store), frozenset(drawn[:lost_each]), frozenset(drawn[lost_each:]))


@dataclass(frozen=True)
class Accuracy:
    """The outcome of one design."""

    expected: int
    counted: int
    unanswered: int
    """Plays for which the caller gave up."""
    lost_at_store: int
    """Answers that the proxy took away."""
    took_s: float

    @property
    def error(self) -> int:
        """Counted minus expected."""
        return self.counted - self.expected


_COUNTING = (counters.PLAYS.attribute.encode(), b'"rollup"')


class _LosesAnswers:
    """A plan for the proxy: it loses the answers of the counting writes that the schedule names."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._seen = 0

    def __call__(self, operation: str, body: bytes, number: int) -> Fault | None:
        # Powertools' own UpdateItem and PutItem do not name the attribute. A receipt to roll up says `rollup`.
        if operation == "GetItem" or not any(word in body for word in _COUNTING):
            return None
        self._seen += 1
        return LOSE_RESPONSE if self._seen - 1 in self._schedule.lost_at_store else None


def measure_accuracy(plays: int, progress: Progress) -> dict[str, Accuracy]:
    """Count `plays` with each design from THREADS threads, each on a fresh engine, with the same faults."""
    schedule = Schedule.seeded(plays)
    return {design.name: _run(design, schedule, progress) for design in COUNTED}


def _run(design: Design, schedule: Schedule, progress: Progress) -> Accuracy:
    rolled_up = design is ROLLUP
    with fresh_engine(streams=rolled_up) as endpoint, FaultProxy(endpoint, _LosesAnswers(schedule)) as proxy:
        clients = clients_of(proxy.endpoint)
        crasher = Crasher(clients.plain, clients.store.client)
        caller = _Caller(design, design.make(clients, design.name), crasher, schedule)
        lock = threading.Lock()

        def one(index: int) -> bool:
            answered = caller.play(index)
            with lock:
                progress(1)
            return answered

        started_s = time.perf_counter()
        with ThreadPoolExecutor(THREADS) as threads:
            answered = sum(threads.map(one, range(schedule.plays)))
        took_s = time.perf_counter() - started_s
        lost = proxy.injected(LOSE_RESPONSE)
        if rolled_up:
            _roll_up(endpoint)
        counted = clients_of(endpoint).counted(design.name)
    return Accuracy(schedule.plays, counted, schedule.plays - answered, lost, took_s)


def _roll_up(endpoint: str) -> None:
    """Deliver the stream of receipts to the rollup consumer twice, the second time in other batches."""
    handler = handler_of(rollup.CONSUMER, clients_of(endpoint))
    records = list(stream(endpoint, SETTINGS.receipts_table))
    deliver(handler, SETTINGS.receipts_table, records)
    deliver(handler, SETTINGS.receipts_table, records[: len(records) // 3])
    deliver(handler, SETTINGS.receipts_table, records[len(records) // 3 :])


@dataclass(frozen=True)
class _Caller:
    """A caller who retries with the same key until an answer arrives."""

    design: Design
    count: Play
    crasher: Crasher
    schedule: Schedule

    def play(self, index: int) -> bool:
        """Send one play. Returns whether an answer arrived within CALLER_ATTEMPTS_MAX attempts."""
        chance = random.Random(f"{SEED}/{index}")
        key = str(UUID(int=chance.getrandbits(128), version=4))
        crash_after = chance.randint(1, max(1, self.design.writes - 1)) if index in self.schedule.crashes else 0
        for attempt in range(CALLER_ATTEMPTS_MAX):
            self.crasher.arm(crash_after if attempt == 0 else 0)
            try:
                self.count(key)
            except (Exception, CrashError):  # a caller sees only that it failed
                time.sleep(CALLER_PAUSE_S)
                continue
            if attempt == 0 and index in self.schedule.lost_at_caller:
                continue
            return True
        return False
