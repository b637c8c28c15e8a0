"""Many callers at one moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

START_S_MAX = 10.0
T = TypeVar("T")


def at_once(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Run each job in a thread of its own, all let go at one moment; their results in order. Raises what a job does."""
    gate = threading.Barrier(len(jobs))

    def run(job: Callable[[], T]) -> T:
        gate.wait(START_S_MAX)
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(run, jobs))
