"""The fold of an hour: how many tallies that moved in it one core sums up a second, and how long that takes, as a
multiple of the time of a plain loop over the same ids and amounts.

Each tally moves in each part of the hour. What counts is the processor time of this process: the engine has its own,
and while DynamoDB works a sweep writes others.
"""

from __future__ import annotations

import json
import random
import time
from uuid import UUID

from tally.dynamo.client import Store
from tally.operations.sweep import RESERVE_S, SERIES_SHARE
from tally.series import hours, progress
from tally.series.progress import Progress
from tally.streams import segments

from . import plain
from .clients import clients_of, fresh_engine
from .consumers import SEED, Rows
from .judging import put

HOUR = 495_000
FIRST = 60 * HOUR
SWEEP_S = 55.0  # SCHEDULED_TIMEOUT_S, tally/contract/described.py
SWEEPS = 60  # in an hour
ACTIVE = "an hour in which tallies moved, on one core"


def measure(quick: bool) -> Rows:
    """Fold an hour with its three parts. `fit`: so many in an hour, if nothing else takes a sweep's time."""
    tallies = 2_000 if quick else 20_000
    with fresh_engine() as endpoint:
        store = clients_of(endpoint).store
        content = _fill(store, tallies)
        cpu_s = time.process_time()
        written = hours.sum_up(store, FIRST + 59, until_s=float("inf"))
        cpu_s = time.process_time() - cpu_s
        if (written, progress.read(store).hour) != (tallies + 1, HOUR + 1):
            raise AssertionError(f"{written} of {tallies} are written")
    rate = tallies / cpu_s
    return {
        ACTIVE: {
            "tallies a second": rate,
            "fit": rate * SWEEPS * SERIES_SHARE * (SWEEP_S - RESERVE_S),
            "times a plain loop": cpu_s / plain.loop_s(content, tuple),
        }
    }


def _fill(store: Store, tallies: int) -> bytes:
    """Put the segments of one minute of each part: what was accepted, of ids that are UUIDs. Returns all ids and
    amounts."""
    chance = random.Random(SEED)
    ids = [str(UUID(int=chance.getrandbits(128))) for _ in range(tallies)]
    for part in range(1, 4):
        put(
            store,
            FIRST + part * hours.PART_MINUTES - 1,
            "r",
            [segments.JournalEntry("plays", id_, "", 1, 1) for id_ in ids],
        )
    hours._note(store, Progress(), Progress(FIRST, FIRST - 1, HOUR))
    return json.dumps([(id_, 1) for id_ in ids] * 3).encode()
