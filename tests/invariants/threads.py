"""Runs many callers concurrently."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tests.patience import PATIENCE_S

T = TypeVar("T")


def run_together(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Runs all jobs at once, each in a thread. Returns the results in the jobs' order, or raises a job's error."""
    gate = threading.Barrier(len(jobs))

    def run(job: Callable[[], T]) -> T:
        gate.wait(PATIENCE_S)
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(run, jobs))
