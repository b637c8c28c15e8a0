"""Tests Spread, Breaker and Retries with a clock that only the test moves."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter as Multiset
from random import SystemRandom

import pytest

from tally.dynamo import contention
from tally.dynamo.contention import (
    ATTEMPTS_MAX,
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    BREAKER_OPEN_S,
    NARROW_AFTER_S,
    RETRY_S_MAX,
    TRACKED_TALLIES_MAX,
    Breaker,
    Retries,
    Spread,
)

MAX_SHARDS = 16


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s


class LongestPause(SystemRandom):
    """A random source that always draws the longest pause."""

    def uniform(self, a: float, b: float) -> float:
        return b


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spread(clock: Clock) -> Spread:
    return Spread(clock=clock)


def test_a_tally_has_one_shard_until_there_is_a_conflict(spread: Spread) -> None:
    assert spread.width("a") == 1
    assert {spread.pick_shard("a", MAX_SHARDS) for _ in range(20)} == {0}


def test_shards_double_at_each_conflict_up_to_the_counters_limit(spread: Spread) -> None:
    widths = []
    for _ in range(6):
        spread.widen("a", MAX_SHARDS)
        widths.append(spread.width("a"))
    assert widths == [2, 4, 8, 16, 16, 16]
    assert spread.width("b") == 1


@pytest.mark.parametrize(("limit", "width"), [(1, 1), (3, 3), (5, 4)])  # two conflicts: 4 shards or the limit
def test_shards_never_exceed_the_counters_limit(spread: Spread, limit: int, width: int) -> None:
    for _ in range(2):
        spread.widen("a", limit)
    assert spread.width("a") == width
    assert {spread.pick_shard("a", MAX_SHARDS) for _ in range(200)} <= set(range(limit))


def test_the_number_of_shards_halves_after_each_10_s_without_a_conflict(spread: Spread, clock: Clock) -> None:
    for _ in range(4):
        spread.widen("a", MAX_SHARDS)
    widths = []
    for _ in range(5):
        clock.now_s += NARROW_AFTER_S - 0.001
        before = spread.width("a")
        clock.now_s += 0.001
        widths.append((before, spread.width("a")))
    assert widths == [(16, 8), (8, 4), (4, 2), (2, 1), (1, 1)]


def test_every_shard_is_picked_about_equally_often(spread: Spread) -> None:
    for _ in range(4):
        spread.widen("a", MAX_SHARDS)
    picked = Multiset(spread.pick_shard("a", MAX_SHARDS) for _ in range(3200))
    assert set(picked) == set(range(16))
    assert max(picked.values()) < 2 * 3200 / 16


@pytest.mark.parametrize("avoided", range(4))
def test_a_pick_avoids_only_the_shard_of_the_conflict(spread: Spread, avoided: int) -> None:
    spread.widen("a", MAX_SHARDS)
    spread.widen("a", MAX_SHARDS)
    assert {spread.pick_shard("a", MAX_SHARDS, avoid=avoided) for _ in range(200)} == set(range(4)) - {avoided}


def test_a_spread_has_a_bounded_size_and_forgets_the_tally_whose_last_conflict_is_oldest(spread: Spread) -> None:
    spread.widen("first", MAX_SHARDS)
    spread.widen("second", MAX_SHARDS)
    spread.widen("first", MAX_SHARDS)
    for number in range(TRACKED_TALLIES_MAX - 1):  # with `first` and `second`, that is one too many
        spread.widen(f"more-{number}", MAX_SHARDS)
    assert len(spread.widths) == TRACKED_TALLIES_MAX
    assert spread.width("first") == 4
    assert spread.width("second") == 1


def test_random_numbers_come_from_the_system_and_not_from_a_snapshot() -> None:
    """SnapStart restores every environment with one `random` state, so all environments would pick the same shards."""
    assert isinstance(Spread().random, SystemRandom)
    assert isinstance(Retries(0.0).random, SystemRandom)
    assert contention.Random is SystemRandom


def test_pauses_double_up_to_their_limit_and_attempts_are_bounded(clock: Clock) -> None:
    pauses: list[float] = []
    retries = Retries(clock.now_s + 60, random=LongestPause(), sleep=pauses.append, clock=clock)
    assert sum(retries.sleep_before_retry() for _ in range(100)) == ATTEMPTS_MAX - 1
    assert pauses == [min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2**number) for number in range(1, ATTEMPTS_MAX)]


def test_pauses_are_drawn_from_their_whole_range(clock: Clock) -> None:
    pauses_s, longest_s = [], 2 * BACKOFF_FIRST_S
    for _ in range(200):
        Retries(clock.now_s + 60, sleep=pauses_s.append, clock=clock).sleep_before_retry()
    assert min(pauses_s) < 0.2 * longest_s
    assert max(pauses_s) > 0.8 * longest_s


@pytest.mark.parametrize("time_s", [0.05, 0.5, RETRY_S_MAX, 60.0])
def test_retries_end_before_the_deadline_and_before_their_time_limit(clock: Clock, time_s: float) -> None:
    started_s = clock.now_s
    retries = Retries(started_s + time_s, random=LongestPause(), sleep=clock.sleep, clock=clock)
    while retries.sleep_before_retry():
        pass
    assert clock.now_s - started_s < min(time_s, RETRY_S_MAX)


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(clock)


def test_a_breaker_stays_open_until_one_change_may_probe(breaker: Breaker, clock: Clock) -> None:
    assert not breaker.is_open("a")
    breaker.trip("a")
    assert [breaker.is_open("a"), breaker.is_open("b")] == [True, False]
    clock.sleep(BREAKER_OPEN_S - 0.001)
    assert breaker.is_open("a")
    clock.sleep(0.001)
    assert [breaker.is_open("a") for _ in range(3)] == [False, True, True]


def test_a_probe_that_commits_closes_the_breaker_and_a_probe_that_fails_opens_it(
    breaker: Breaker, clock: Clock
) -> None:
    for commits in (False, True):
        breaker.trip("a")
        clock.sleep(BREAKER_OPEN_S)
        assert not breaker.is_open("a")
        (breaker.close if commits else breaker.trip)("a")
        assert breaker.is_open("a") is not commits


def test_a_change_that_began_before_the_breaker_opened_does_not_close_it(breaker: Breaker) -> None:
    breaker.trip("a")
    breaker.close("a")
    assert breaker.is_open("a")


def test_a_breaker_has_a_bounded_size_and_forgets_the_tally_whose_last_trip_is_oldest(breaker: Breaker) -> None:
    for number in range(TRACKED_TALLIES_MAX):
        breaker.trip(f"{number}")
    breaker.trip("0")
    breaker.trip("one more")
    assert breaker.is_open("0")
    assert not breaker.is_open("1")
    assert len(breaker.open_tallies) == TRACKED_TALLIES_MAX


def test_only_one_of_many_threads_probes(breaker: Breaker, clock: Clock) -> None:
    breaker.trip("a")
    clock.sleep(BREAKER_OPEN_S)
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(breaker.is_open("a"))) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.count(False) == 1


RESTORE_THREE_TIMES = """
import random
from snapshot_restore_py import get_after_restore
import tally.dynamo.client
from tally.dynamo.clock import CLOCK

CLOCK.ahead_s = 300.0
snapshot = random.getstate()
numbers = set()
for _ in range(3):
    random.setstate(snapshot)
    for hook, arguments, options in get_after_restore():  # as the runtime does
        hook(*arguments, **options)
    numbers.add(random.random())
print(len(numbers), CLOCK.ahead_s)
"""


def test_environments_that_snapstart_restores_draw_different_numbers_and_forget_the_clock_correction() -> None:
    """botocore draws its waits from `random`, whose state is in the snapshot. Equal waits would collide."""
    command = [sys.executable, "-P", "-c", RESTORE_THREE_TIMES]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    run = subprocess.run(command, env=paths, capture_output=True, text=True, check=True)
    assert run.stdout == "3 0.0\n"
