"""A plain Python loop over bytes that Tally's code reads, too. A claim compares the two CPU times, on any machine."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

RUNS = 3  # the fastest run counts, because other programs only slow a run down


def loop_s(content: bytes, read: Callable[[Any], tuple[str, int]]) -> float:
    """Returns the CPU time of a loop that sums amounts by name. `read` returns the name and amount of an entry."""
    return min(_once_s(content, read) for _ in range(RUNS))


def _once_s(content: bytes, read: Callable[[Any], tuple[str, int]]) -> float:
    started_s, sums = time.process_time(), defaultdict[str, int](int)
    for entry in json.loads(content):
        name, amount = read(entry)
        sums[name] += amount
    return time.process_time() - started_s
