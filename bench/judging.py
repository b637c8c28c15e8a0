"""The judge's minute with a million changed tallies: how many it judges a second, and how much memory it takes.

Each tally has two entries, on different segments: what was accepted, and what was observed. A process of its own judges
the minute, as the sweep does: it reads the segments from an engine with boto3.

    python -m bench.judging ENDPOINT      judges MINUTE there, once
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from dev.base.errors import LocalError
from dev.streams.delivery import BATCH_RECORDS
from tally.drift import judge
from tally.dynamo.client import Store
from tally.dynamo.transactions import apply_once
from tally.streams import segments, watermark
from tally.streams.fold import BUCKETS
from tally.streams.watermark import Watermark

from . import ROOT
from .clients import SETTINGS, clients_of, fresh_engine
from .consumers import MINUTE, SEED, Rows, note_judged

RUNS = 3  # the best counts: what else runs on the machine only slows it
RUN_S_MAX = 120


@dataclass(frozen=True)
class Judging:
    """One run of the judge. `cpu_s`: of the judge alone; `took_s`: the engine's time, and that of others, included."""

    cpu_s: float
    took_s: float
    peak_mb: float


def measure(quick: bool) -> Rows:
    """Judge a minute in which a million tallies moved. Raises LocalError if the judge fails or judges wrongly."""
    tallies = 20_000 if quick else 1_000_000
    with fresh_engine() as endpoint:
        _fill(clients_of(endpoint).store, tallies)
        runs = [_run(endpoint) for _ in range(RUNS)]
    rate, peak_mb = tallies / min(run.cpu_s for run in runs), max(run.peak_mb for run in runs)
    return {"a minute with a million tallies": {"tallies a second": rate, "MB": peak_mb}}


def _fill(store: Store, tallies: int) -> None:
    """Put the segments of MINUTE: batches of receipts, then batches of tallies in another order."""
    chance = random.Random(SEED)
    ids = [f"{number:08x}" for number in chance.sample(range(2**32), tallies)]
    _put(store, "receipts", [segments.Booked("plays", id_, "", 1, 0) for id_ in ids])
    chance.shuffle(ids)
    _put(store, "counts", [segments.Booked("plays", id_, "", 0, 1) for id_ in ids])
    note_judged(store, MINUTE - 1)


def _put(store: Store, shard: str, entries: Sequence[segments.Booked]) -> None:
    for number, first in enumerate(range(0, len(entries), BATCH_RECORDS)):
        batch = entries[first : first + BATCH_RECORDS]
        name = f"{shard}#{first}"
        apply_once(store, [segments.write(SETTINGS, MINUTE, number % BUCKETS, name, batch, time.time())])


def _run(endpoint: str) -> Judging:
    command = [sys.executable, "-m", "bench.judging", endpoint]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    if ran.returncode:
        raise LocalError(f"the judge failed: {ran.stderr[-500:]}")
    return Judging(**json.loads(ran.stdout))


def judge_once(endpoint: str) -> Judging:
    """Judge MINUTE in this process, and then take that back."""
    store = clients_of(endpoint).store
    known_s = (MINUTE + watermark.LATE + 2) * SETTINGS.minute_s
    seen = Watermark(judged=MINUTE - 1, known_s=known_s)
    cpu_s, took_s = time.process_time(), time.perf_counter()
    found = judge.judge(store, seen, known_s, until_s=store.clock() + RUN_S_MAX)
    cpu_s, took_s = time.process_time() - cpu_s, time.perf_counter() - took_s
    if (found.minutes, found.changes, watermark.judged(store)) != (1, 0, MINUTE):
        raise LocalError(f"judged wrongly: {found}")
    note_judged(store, MINUTE - 1)
    return Judging(cpu_s, took_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    print(json.dumps(vars(judge_once(sys.argv[1]))))
