"""kill -9 of the function's process at any point: nothing is lost, nothing counts twice."""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tally.dev import faults
from tests.invariants import crash_child
from tests.invariants.threads import at_once
from tests.invariants.world import World
from tests.patience import PATIENCE_S, wait_for

PLAYS, KILLS, VIDEOS = 150, 30, 3
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["botocore.session", "aws_lambda_powertools.utilities.idempotency"])  # what takes long
HOW = {"lost": faults.DROP_BEFORE, "committed": faults.late_answer(PATIENCE_S)}


class Worker:
    """One process of the function, forked from one that has loaded everything, as a restored snapshot is."""

    def __init__(self, world: World) -> None:
        settings = world.store.settings
        environment = {
            "AWS_ENDPOINT_URL_DYNAMODB": world.proxy.endpoint,
            "TALLY_COUNTS_TABLE": settings.counts_table,
            "TALLY_RECEIPTS_TABLE": settings.receipts_table,
            "TALLY_LEDGER_TABLE": settings.ledger_table,
        }
        self._connection, theirs = FORKED.Pipe()
        self.process = FORKED.Process(target=crash_child.serve, args=(theirs, environment), daemon=True)
        self.process.start()
        theirs.close()

    def invoke(self, event: dict[str, Any], meanwhile: Callable[[], None] = lambda: None) -> dict[str, Any] | None:
        """The answer; None if the worker died before it gave one."""
        try:
            self._connection.send_bytes(json.dumps(event).encode())
            meanwhile()
            assert self._connection.poll(PATIENCE_S)
            answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionError):
            return None
        return answer

    def kill(self) -> None:
        """`kill -9`."""
        self.process.kill()

    def close(self) -> None:
        """Let it end."""
        self._connection.close()
        self.process.join(PATIENCE_S)


def play(number: int, video_id: str) -> dict[str, Any]:
    """The event of one play."""
    key = f"play-{number:04}-0123456789-0123456789"
    return {"operation": "increment", "counter": "plays", "id": video_id, "idempotency_key": key}


def kills() -> dict[int, str | float]:
    """The plays over which a worker is killed. How: as its transaction arrives, which is "lost"; once that is
    "committed", before the answer; or so many seconds after the event."""
    chance = random.Random(30)
    ways = [("lost", "committed", chance.uniform(0, 0.03))[kill % 3] for kill in range(KILLS)]  # a play takes 10 ms
    return dict(zip(chance.sample(range(PLAYS), KILLS), ways, strict=True))


def test_150_plays_with_30_kills_of_the_function_at_every_point_count_150(world: World) -> None:
    killed, met = kills(), dict[str, tuple[Worker, faults.Fault]]()

    def plan(operation: str, body: bytes, number: int) -> faults.Fault | None:
        for video_id in [video_id for video_id in met if f'"VID#{video_id}"'.encode() in body]:
            worker, fault = met.pop(video_id)
            if fault is faults.DROP_BEFORE:
                worker.kill()
            return fault
        return None

    def kill(worker: Worker, video_id: str, how: str | float, counted: int) -> None:
        """Kill the worker at its time. `counted`: the video's plays before this one."""
        if how == "committed":
            wait_for(lambda: world.tally(id_=video_id) > counted, every_s=0.01)
        if how != "lost":
            time.sleep(how if isinstance(how, float) else 0)
            worker.kill()

    def send(video: int) -> None:
        """The plays of a video. One whose worker is killed is sent again, whatever was answered."""
        worker, video_id = Worker(world), f"v{video}"
        for counted, number in enumerate(range(video, PLAYS, VIDEOS)):
            event, how = play(number, video_id), killed.get(number)
            if how is not None:
                if isinstance(how, str):
                    met[video_id] = (worker, HOW[how])
                answer = worker.invoke(event, partial(kill, worker, video_id, how, counted))
                assert answer is None or how != "lost"
                worker.close()
                worker = Worker(world)
            answer = worker.invoke(event)
            assert answer is not None
            assert (answer["status"], answer["body"]["counted"]) == (200, True)
            assert answer["replayed"] is (how == "committed") or isinstance(how, float)
        worker.close()

    world.proxy.plan = plan
    at_once([partial(send, video) for video in range(VIDEOS)])
    assert [world.tally(id_=f"v{video}") for video in range(VIDEOS)] == [PLAYS // VIDEOS] * VIDEOS
    assert len(world.receipts()) == PLAYS
