"""The speed at which the series sum up an hour: changed tallies a second on one core. The time is also given as a
multiple of the time of a plain loop over the same ids and amounts.

Each tally moves in each part of the hour (hours.PART_MINUTES). Only the processor time of this process counts, not the
engine's, because a sweep does not wait for each write before it sends the next write.
"""

from __future__ import annotations

import json
import random
import time
from uuid import UUID

from tally.operations.sweep import RESERVE_S, SERIES_SHARE
from tally.series import hours, progress
from tally.series.progress import Progress
from tally.streams import segments

from . import plain
from .clients import clients_of, fresh_engine
from .consumers import SEED
from .instruments import Rows
from .judging import put_segments

HOUR = 495_000  # since 1970
FIRST_MINUTE = 60 * HOUR
SWEEP_S = 55.0  # SCHEDULED_TIMEOUT_S, tally/contract/deployment.py
SWEEPS = 60  # in an hour
ACTIVE = "an hour in which every tally moves, on one core"  # the row's name


def measure(quick: bool) -> Rows:
    """Sums up an hour in its three parts. `tallies an hour`: how many tallies the sweeps of an hour can sum up."""
    tallies, chance = 2_000 if quick else 20_000, random.Random(SEED)
    ids = [str(UUID(int=chance.getrandbits(128))) for _ in range(tallies)]
    entries = [segments.JournalEntry("plays", id_, "", 1, 1) for id_ in ids]
    with fresh_engine() as endpoint:
        store = clients_of(endpoint).store
        for part in range(1, 4):  # the segments of one minute of each part
            put_segments(store, FIRST_MINUTE + part * hours.PART_MINUTES - 1, "r", entries)
        hours._store_progress(store, Progress(), Progress(since=FIRST_MINUTE, through=FIRST_MINUTE - 1, hour=HOUR))
        cpu_s = time.process_time()
        written = hours.sum_up(store, FIRST_MINUTE + 59, until_s=float("inf"))
        cpu_s = time.process_time() - cpu_s
        if (written, progress.read(store).hour) != (tallies + 1, HOUR + 1):  # the counter's total is an item, too
            raise AssertionError(f"{written} items were written, not {tallies + 1}")
    rate, content = tallies / cpu_s, json.dumps([(id_, 1) for id_ in ids] * 3).encode()
    return {
        ACTIVE: {
            "tallies a second": rate,
            "tallies an hour": rate * SWEEPS * SERIES_SHARE * (SWEEP_S - RESERVE_S),
            "times a plain loop": cpu_s / plain.loop_s(content, tuple),
        }
    }
