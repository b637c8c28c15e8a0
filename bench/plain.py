"""A plain loop of Python over the same bytes: what a claim about CPU time compares with, on whatever machine."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

RUNS = 3  # the best counts: what else runs on the machine only slows it


def loop_s(content: bytes, read: Callable[[Any], tuple[str, int]]) -> float:
    """The CPU time of a loop over a list in JSON that adds amounts up by name. `read`: name and amount of an entry."""
    return min(_once_s(content, read) for _ in range(RUNS))


def _once_s(content: bytes, read: Callable[[Any], tuple[str, int]]) -> float:
    started_s, sums = time.process_time(), defaultdict[str, int](int)
    for entry in json.loads(content):
        name, amount = read(entry)
        sums[name] += amount
    return time.process_time() - started_s
