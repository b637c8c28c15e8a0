"""kill -9 of the function's process at any point: nothing is lost, nothing counts twice."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter as Multiset
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tally
from dev import faults
from dev.base.engine import die_with_parent
from tests.invariants.threads import at_once
from tests.invariants.world import World
from tests.patience import PATIENCE_S

PLAYS, KILLS, CALLERS, VIDEOS = 150, 30, 3, 3
WARM_UPS = 5  # plays that tell how long one takes here: most kills fall within twice that
LAMBDAS = Path(tally.__file__).resolve().parents[1]


class Workers:
    """Forks workers of the plays function; see crash_child.py."""

    def __init__(self, world: World, folder: Path) -> None:
        settings = world.store.settings
        self._lock = threading.Lock()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(folder / "socket"))
        self._server.listen()
        self._server.settimeout(PATIENCE_S)
        environment = {
            "PYTHONPATH": str(LAMBDAS),
            "AWS_ENDPOINT_URL_DYNAMODB": world.proxy.endpoint,
            "TALLY_COUNTS_TABLE": settings.counts_table,
            "TALLY_RECEIPTS_TABLE": settings.receipts_table,
            "TALLY_LEDGER_TABLE": settings.ledger_table,
        }
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("crash_child.py"), folder / "socket"],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # the handler's logs
            preexec_fn=die_with_parent,
        )

    def fork(self) -> Worker:
        """A new worker."""
        assert self._process.stdin
        with self._lock:
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
            return Worker(self._server.accept()[0])

    def close(self) -> None:
        """Fork no more."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._server.close()


class Worker:
    """One process of the function."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_S)
        self._connection = connection
        self._lines = connection.makefile("rb")
        self.pid = int(self._lines.readline())

    def invoke(self, event: dict[str, Any], kill_after_s: float | None) -> dict[str, Any] | None:
        """The answer; None if the worker died before it gave one. Kills it after `kill_after_s`, if given."""
        try:
            self._connection.sendall(json.dumps(event).encode() + b"\n")
            if kill_after_s is not None:
                time.sleep(kill_after_s)
                os.kill(self.pid, signal.SIGKILL)
            line = self._lines.readline()
        except ConnectionError:
            return None
        return json.loads(line) if line.endswith(b"\n") else None  # half an answer is none

    def close(self) -> None:
        """Let it end."""
        self._lines.close()
        self._connection.close()


@pytest.fixture
def workers(world: World, tmp_path: Path) -> Iterator[Workers]:
    running = Workers(world, tmp_path)
    yield running
    running.close()


def play(number: int, video_id: str) -> dict[str, Any]:
    """The event of one play."""
    return {"operation": "play", "video_id": video_id, "idempotency_key": f"play-{number:04}-0123456789-0123456789"}


def typical_s(workers: Workers) -> float:
    """How long a play takes."""
    worker, took_s = workers.fork(), []
    for number in range(WARM_UPS):
        started_s = time.perf_counter()
        assert worker.invoke(play(number, "warm-up"), None)
        took_s.append(time.perf_counter() - started_s)
    worker.close()
    return statistics.median(took_s)


def kill_times(play_s: float) -> dict[int, list[float]]:
    """For each play that a worker is killed over: how long after each sending of it."""
    chance = random.Random(30)
    times: dict[int, list[float]] = {}
    for kill in range(KILLS):
        latest_s = play_s * (2 if kill % 2 else 6)  # every other one may be late: plays are slower on a busy machine
        times.setdefault(chance.randrange(PLAYS), []).append(chance.uniform(0, latest_s))
    return times


def test_150_plays_with_30_kills_of_the_function_at_random_points_count_150(world: World, workers: Workers) -> None:
    # The answer of every third transaction is held back, so that kills fall after the commit as often as before it.
    world.proxy.plan = lambda operation, body, number: faults.late_answer(0.010) if number % 3 == 0 else None
    kills, seen = kill_times(typical_s(workers)), Multiset[str]()

    def send(first: int) -> None:
        worker = workers.fork()
        for number in range(first, PLAYS, CALLERS):
            event = play(number, f"v{number % VIDEOS}")
            for kill_after_s in [*kills.get(number, []), None]:  # sent again after each kill, whatever was answered
                answer = worker.invoke(event, kill_after_s)
                seen["unanswered"] += answer is None
                seen["replayed"] += answer is not None and answer["replayed"]
                if kill_after_s is not None:
                    seen["killed"] += 1
                    worker.close()
                    worker = workers.fork()
            assert answer is not None
            assert (answer["status"], answer["body"]) == (
                200,
                {"video_id": event["video_id"], "counted": True, "visible": "now"},
            )
        worker.close()

    at_once([lambda first=first: send(first) for first in range(CALLERS)])
    assert [world.tally(id_=f"v{number}") for number in range(VIDEOS)] == [PLAYS // VIDEOS] * VIDEOS
    assert len(world.receipts()) == PLAYS + WARM_UPS
    assert seen["killed"] == KILLS
    assert 0 < seen["replayed"] < KILLS  # some had been counted when the worker died, and some had not
    assert seen["unanswered"] > 0
