"""Events over HTTP on `make dev`: what docs/events.md shows, and each crossing under one id while workers die."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.e2e.dev import Dev
from tests.e2e.test_readme import README_PORT, Shell, session
from tests.patience import wait_for

ROOT = Path(__file__).resolve().parents[2]
CALLERS = 8


def test_the_page_hears_of_two_crossings(dev: Dev) -> None:
    with Shell() as shell:
        for command, shown in session((ROOT / "docs/events.md").read_text()):
            assert shell.run(command.replace(README_PORT, str(dev.port))) == shown


def test_a_budget_that_is_used_up_at_once_crosses_each_threshold_once_though_workers_die(
    start: Callable[..., Dev],
) -> None:
    """40 callers take 25 each, and nobody any more; somebody kills whoever books, again and again."""
    dev = start().wait_until_ready()
    token = dev.token("gateway", scope="tally/read tally/write")
    done = threading.Event()
    killed = 0

    def take(number: int) -> int:
        path = "/counters/calls/storm/increments"
        return dev.call("POST", path, {"amount": 25}, token=token, idempotency_key=f"take-{number}").status

    def kill() -> None:
        nonlocal killed
        while not done.wait(0.2):
            for pid in dev.workers("bookkeeper"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1

    def listed() -> list[dict[str, Any]]:
        return list(dev.call("GET", "/events", token=token).body["events"])

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        with ThreadPoolExecutor(CALLERS) as callers:
            statuses = list(callers.map(take, range(40)))
        while 503 in statuses:  # too many at once: the same key again
            statuses = [take(number) if status == 503 else status for number, status in enumerate(statuses)]
        assert set(statuses) == {200}
        assert take(40) == 409
        wait_for(lambda: killed > 3, every_s=0.2)
    finally:
        done.set()
        killing.join()
    wait_for(lambda: len(listed()) == 2 and all(one["sent"] for one in listed()), every_s=0.5)
    found = [(one["id"], one["threshold"], one["direction"], one["value"]) for one in listed()]
    assert found == [("storm", 1000, "up", 1000), ("storm", 800, "up", 800)]
    heard = [one["detail"]["event"] for one in dev.call("GET", "/dev/events").body["events"]]
    assert set(heard) == {one["event"] for one in listed()}
