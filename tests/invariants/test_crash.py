"""kill -9 of the function's process at any point: nothing is lost, nothing counts twice."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tally
from dev import faults
from dev.base.engine import die_with_parent
from tests.invariants.threads import at_once
from tests.invariants.world import World
from tests.patience import PATIENCE_S, wait_for

PLAYS, KILLS, VIDEOS = 150, 30, 3
HOW = {"lost": faults.DROP_BEFORE, "committed": faults.late_answer(PATIENCE_S)}
AT_RANDOM_S_MAX = 0.03  # a play takes ten milliseconds
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

    def invoke(self, event: dict[str, Any], meanwhile: Callable[[], None] = lambda: None) -> dict[str, Any] | None:
        """The answer; None if the worker died before it gave one."""
        try:
            self._connection.sendall(json.dumps(event).encode() + b"\n")
            meanwhile()
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
    key = f"play-{number:04}-0123456789-0123456789"
    return {"operation": "increment", "counter": "plays", "id": video_id, "idempotency_key": key}


def kills() -> dict[int, str | float]:
    """The plays over which a worker is killed. How: as its transaction arrives, which is "lost"; once that is
    "committed", before the answer; or so many seconds after the event."""
    chance = random.Random(30)
    ways = [("lost", "committed", chance.uniform(0, AT_RANDOM_S_MAX))[kill % 3] for kill in range(KILLS)]
    return dict(zip(chance.sample(range(PLAYS), KILLS), ways, strict=True))


def test_150_plays_with_30_kills_of_the_function_at_every_point_count_150(world: World, workers: Workers) -> None:
    killed, met = kills(), dict[str, tuple[int, faults.Fault]]()

    def plan(operation: str, body: bytes, number: int) -> faults.Fault | None:
        for video_id in [video_id for video_id in met if f'"VID#{video_id}"'.encode() in body]:
            pid, fault = met.pop(video_id)
            if fault is faults.DROP_BEFORE:
                os.kill(pid, signal.SIGKILL)
            return fault
        return None

    def kill(worker: Worker, video_id: str, how: str | float, counted: int) -> None:
        """Kill the worker at its time. `counted`: the video's plays before this one."""
        if how == "committed":
            wait_for(lambda: world.tally(id_=video_id) > counted, every_s=0.01)
        if how != "lost":
            time.sleep(how if isinstance(how, float) else 0)
            os.kill(worker.pid, signal.SIGKILL)

    def send(video: int) -> None:
        """The plays of a video. One whose worker is killed is sent again, whatever was answered."""
        worker, video_id = workers.fork(), f"v{video}"
        for counted, number in enumerate(range(video, PLAYS, VIDEOS)):
            event, how = play(number, video_id), killed.get(number)
            if how is not None:
                if isinstance(how, str):
                    met[video_id] = (worker.pid, HOW[how])
                answer = worker.invoke(event, partial(kill, worker, video_id, how, counted))
                assert answer is None or how != "lost"
                worker.close()
                worker = workers.fork()
            answer = worker.invoke(event)
            assert answer is not None
            assert (answer["status"], answer["body"]["counted"]) == (200, True)
            assert answer["replayed"] is (how == "committed") or isinstance(how, float)
        worker.close()

    world.proxy.plan = plan
    at_once([partial(send, video) for video in range(VIDEOS)])
    assert [world.tally(id_=f"v{video}") for video in range(VIDEOS)] == [PLAYS // VIDEOS] * VIDEOS
    assert len(world.receipts()) == PLAYS
