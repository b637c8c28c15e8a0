"""The judge's speed and memory for a minute with a million changed tallies. The time is also given as a multiple of
the time of a plain loop over the same ids and amounts.

Each tally has two entries, in different segments: the expected amount and the observed amount. A new process judges the
minute as the sweep does, and reads the segments from an engine with boto3.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import resource
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

from tally.dev.base.errors import LocalError
from tally.drift import judge
from tally.dynamo.client import Store
from tally.dynamo.transactions import try_commit
from tally.streams import watermark
from tally.streams.fold import BUCKETS
from tally.streams.segments import JournalEntry, segment_write
from tally.streams.watermark import Watermark
from tests.delivery import BATCH_RECORDS

from . import plain
from .clients import SETTINGS, clients_of, fresh_engine
from .consumers import JUDGE_S_MAX, MINUTE, SEED, journal_complete_s, note_judged
from .instruments import Rows

RUNS = 3  # the fastest run counts, because other programs only slow a run down


class Judging(NamedTuple):
    """One run of the judge: the processor time of the judge alone, and the memory of its process."""

    cpu_s: float
    peak_mb: float


def measure(quick: bool) -> Rows:
    """Judges a minute in which a million tallies moved. Raises LocalError if the judge fails or judges wrongly."""
    tallies, chance = 20_000 if quick else 1_000_000, random.Random(SEED)
    ids = [f"{number:08x}" for number in chance.sample(range(2**32), tallies)]
    new_process = multiprocessing.get_context("spawn")
    with fresh_engine() as endpoint, ProcessPoolExecutor(1, new_process, max_tasks_per_child=1) as processes:
        store = clients_of(endpoint).store
        play_of = partial(JournalEntry, "plays", pair="")
        put_segments(store, MINUTE, "receipts", [play_of(id_, expected=1, observed=0) for id_ in ids])
        chance.shuffle(ids)
        put_segments(store, MINUTE, "counts", [play_of(id_, expected=0, observed=1) for id_ in ids])
        note_judged(store, MINUTE - 1)
        content = json.dumps([(id_, 1) for id_ in ids] * 2).encode()
        runs = list(processes.map(judge_once, [endpoint] * RUNS))
    cpu_s = min(run.cpu_s for run in runs)
    return {
        "a minute with a million tallies": {
            "tallies a second": tallies / cpu_s,
            "times a plain loop": cpu_s / plain.loop_s(content, tuple),
            "MB": max(run.peak_mb for run in runs),
        }
    }


def put_segments(store: Store, minute: int, shard: str, entries: Sequence[JournalEntry]) -> None:
    """Put segments of a minute, each with the entries of a whole batch."""
    for number, first in enumerate(range(0, len(entries), BATCH_RECORDS)):
        batch = entries[first : first + BATCH_RECORDS]
        name = f"{shard}#{first}"
        try_commit(store, [segment_write(SETTINGS, minute, number % BUCKETS, name, batch, time.time())])


def judge_once(endpoint: str) -> Judging:
    """Judges MINUTE in this process, then resets the judge, so that the next run judges MINUTE again."""
    store = clients_of(endpoint).store
    complete_s = journal_complete_s(MINUTE)
    watermark_ = Watermark(judged=MINUTE - 1, journal_complete_s=complete_s)
    cpu_s = time.process_time()
    result = judge.judge(store, watermark_, complete_s, until_s=store.clock() + JUDGE_S_MAX)
    cpu_s = time.process_time() - cpu_s
    if (result.minutes, result.changes, watermark.read(store).judged) != (1, 0, MINUTE):
        raise LocalError(f"the judge was wrong: {result}")
    note_judged(store, MINUTE - 1)
    return Judging(cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
