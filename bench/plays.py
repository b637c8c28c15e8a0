"""The same play counted in six ways: the time and the cost of each, and the error of its count after faults."""

from __future__ import annotations

import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID, uuid4

import counters
from tally.streams import rollup
from tests.faults import LOSE_RESPONSE, Fault, FaultProxy

from .clients import clients_of, fresh_engine
from .consumers import deliver_streams
from .designs import BARE_TRANSACTION, DESIGNS, NOW, POWERTOOLS, SOON, Design, Play
from .instruments import Crasher, CrashError, Meter, Rows

ROUND_PLAYS = 5  # plays of each design before the next design's turn, so that other programs slow all designs equally
WARM_UP_ROUNDS = 4  # these rounds make connections, caches and Powertools' layers
METERED_PLAYS = 20  # of each design, for the mean round trips and units of a play
THREADS = 8
SEED = 1995
ANSWERS_LOST_SHARE = 0.02
CRASHES_SHARE = 0.01
CALLER_ATTEMPTS_MAX = 40  # for 2 s. After a crash, Powertools refuses retries for INVOCATION_S, 0.3 s
CALLER_PAUSE_S = 0.05
_IN_COUNTING_WRITES = (counters.PLAYS.attribute.encode(), b'"rollup"')  # a counting write contains one of the two


def measure(quick: bool) -> Rows:
    """Returns the client's time, round trips, write and read units, and the error of the count, by design."""
    times_us, costs = _times(3 if quick else 100), _costs()
    schedule = FaultSchedule.seeded(60 if quick else 1000)
    rows = {}
    for design in DESIGNS:
        name = design.name
        rows[name] = {
            "µs": times_us[name],
            "times a bare transaction": times_us[name] / times_us[BARE_TRANSACTION.name],
            **costs[name],
            **_count_with_faults(design, schedule),
        }
    rows[NOW.name]["times Powertools"] = times_us[NOW.name] / times_us[POWERTOOLS.name]
    return rows


def _times(rounds: int) -> dict[str, float]:
    """Returns the median client time of one play in microseconds, by design, on one thread without faults and hooks."""
    taken_s: dict[str, list[float]] = {design.name: [] for design in DESIGNS}
    with fresh_engine() as endpoint:
        clients = clients_of(endpoint)
        plays = [(design.name, design.make(clients, design.name)) for design in DESIGNS]
        for number in range(WARM_UP_ROUNDS + rounds):
            first = number % len(plays)  # each design is first equally often
            for name, play in plays[first:] + plays[:first]:
                times_s = [_time(play) for _ in range(ROUND_PLAYS)]
                if number >= WARM_UP_ROUNDS:
                    taken_s[name] += times_s
    return {name: statistics.median(times) * 1e6 for name, times in taken_s.items()}


def _time(play: Play) -> float:
    key = str(uuid4())
    started_s = time.perf_counter()
    play(key)
    return time.perf_counter() - started_s


def _costs() -> Rows:
    """Returns round trips and units of one play, by design. Metering takes time, so this is a separate pass."""
    costs = {}
    with fresh_engine() as endpoint:
        clients = clients_of(endpoint)
        meter = Meter(clients.boto3_client, clients.store.client)
        for design in DESIGNS:
            play = design.make(clients, design.name)
            meter.reset()
            for _ in range(METERED_PLAYS):
                play(str(uuid4()))
            totals = {"round trips": meter.requests, "WCU": meter.write_units, "RCU": meter.read_units}
            costs[design.name] = {name: total / METERED_PLAYS for name, total in totals.items()}
    return costs


@dataclass(frozen=True)
class FaultSchedule:
    """The faults of a run of `plays` plays. Every design gets the same schedule."""

    plays: int
    lost_at_store: frozenset[int]
    """The numbers of the counting writes whose answer is lost between store and SDK. The SDK then retries."""
    lost_at_caller: frozenset[int]
    """The plays whose answer does not reach the caller. The caller then retries with the same key."""
    crashes: frozenset[int]
    """The plays whose process ends between two writes, or after the only write. The caller then retries, too."""

    @classmethod
    def seeded(cls, plays: int) -> FaultSchedule:
        """Returns a schedule with at least one fault of each kind. Half of the lost answers are lost on each side."""
        lost_each = max(1, round(plays * ANSWERS_LOST_SHARE / 2))
        crashes = max(1, round(plays * CRASHES_SHARE))
        drawn = random.Random(SEED).sample(range(plays), lost_each + crashes)
        at_store = random.Random(SEED + 1).sample(range(plays), lost_each)
        return cls(plays, frozenset(at_store), frozenset(drawn[:lost_each]), frozenset(drawn[lost_each:]))


def _count_with_faults(design: Design, schedule: FaultSchedule) -> dict[str, float]:
    """Counts the plays from THREADS threads, on a fresh engine with the schedule's faults. Returns the error."""
    counting_writes = 0

    def lose_answers(operation: str, body: bytes, number: int) -> Fault | None:
        """Lose the answers of the counting writes that the schedule names."""
        nonlocal counting_writes
        # Powertools' own UpdateItem and PutItem do not name the attribute. Receipts of spilled plays have `rollup`.
        if operation == "GetItem" or not any(word in body for word in _IN_COUNTING_WRITES):
            return None
        counting_writes += 1
        return LOSE_RESPONSE if counting_writes - 1 in schedule.lost_at_store else None

    with fresh_engine(streams=design is SOON) as endpoint, FaultProxy(endpoint, lose_answers) as proxy:
        clients = clients_of(proxy.endpoint)
        crasher = Crasher(clients.boto3_client, clients.store.client)
        count = design.make(clients, design.name)
        with ThreadPoolExecutor(THREADS) as threads:
            answered = sum(
                threads.map(lambda index: _call(design, count, crasher, schedule, index), range(schedule.plays))
            )
        if design is SOON:  # each record is delivered twice, the second time in other batches
            for batch_records in (1000, schedule.plays // 3):
                deliver_streams(clients_of(endpoint), rollup.CONSUMER, size=batch_records, tables=("receipts",))
        counted = clients_of(endpoint).read_plays(design.name)
        lost = proxy.count_injected(LOSE_RESPONSE)
    return {
        "expected": schedule.plays,
        "counted": counted,
        "off by": counted - schedule.plays,
        "unanswered": schedule.plays - answered,
        "answers lost at the store": lost,
    }


def _call(design: Design, count: Play, crasher: Crasher, schedule: FaultSchedule, index: int) -> bool:
    """Play once, and retry with the same key. Returns whether an answer came within CALLER_ATTEMPTS_MAX."""
    chance = random.Random(f"{SEED}/{index}")
    key = str(UUID(int=chance.getrandbits(128), version=4))
    crash_after = chance.randint(1, max(1, design.writes - 1)) if index in schedule.crashes else 0
    for attempt in range(CALLER_ATTEMPTS_MAX):
        crasher.arm(crash_after if attempt == 0 else 0)
        try:
            count(key)
        except (Exception, CrashError):  # a caller sees only that the request failed
            time.sleep(CALLER_PAUSE_S)
            continue
        if attempt == 0 and index in schedule.lost_at_caller:
            continue
        return True
    return False
