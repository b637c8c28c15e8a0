"""Kills the rollup consumer (SIGKILL) several times while changes arrive, and counts them afterwards.

    python -m tests.e2e.kill_rollup --plays 20000 --kills 30

Starts a `make dev` of its own on a fresh data folder. The plays are visits, a counter of the guarantee ROLLUP, sent as
batches to the function as other Lambdas send them. Exit status 1 if the count is not what was sent.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.dev import Dev

BATCH = 100  # entries of one invocation: the function's limit
ATTEMPTS_MAX = 30  # of a batch; a retry replays the entries that have counted
CALLERS = 4
RIGHT_WITHIN_S = 60.0  # after the last play: two seconds, and longer after a kill
TICK_S = 0.005
WORKS_WITHIN_S = 3.0  # it gets a batch a second
THERE_WITHIN_S = 20.0  # the next batch starts a new process
AFTER_S_MAX = 0.15  # a batch takes about that: before, in and after its transaction
PAGE = "https://example.com/killed"


@dataclass(frozen=True)
class Outcome:
    """The plays sent and counted, and the kills between."""

    plays: int
    counted: int
    kills: int
    failed_batches: int
    sent_in_s: float
    right_after_s: float


def killed(dev: Dev, plays: int, kills: int, seed: int = 0) -> Outcome:
    """Send the plays, kill the consumer `kills` times meanwhile, and wait until the count is right."""
    chosen = random.Random(seed)
    started_s = time.monotonic()
    done = 0
    with ThreadPoolExecutor(CALLERS) as callers:
        for first, last in _parts(plays, kills + 1):
            keys = [f"{seed:010d}-{number:012d}" for number in range(first, last)]
            jobs = [callers.submit(_batch, dev, keys[place : place + BATCH]) for place in range(0, len(keys), BATCH)]
            if last < plays:
                done += _kill(dev, chosen.uniform(0, AFTER_S_MAX))
            for job in jobs:
                job.result()
    sent_s = time.monotonic()
    counted = _count(dev)
    while counted != plays and time.monotonic() - sent_s < RIGHT_WITHIN_S:
        time.sleep(0.1)
        counted = _count(dev)
    right_s = time.monotonic()
    time.sleep(2)  # a double count would come late
    failed = dev.text.count("tally: rollup failed on")
    return Outcome(plays, _count(dev), done, failed, sent_s - started_s, right_s - sent_s)


def _parts(plays: int, count: int) -> Iterator[tuple[int, int]]:
    """The plays in `count` parts. Each part but the last has one kill."""
    for part in range(count):
        yield plays * part // count, plays * (part + 1) // count


def _kill(dev: Dev, after_s: float) -> int:
    """Kill every process of the consumer `after_s` after it begins to work. Returns 1 if one died, else 0."""
    began_s = time.monotonic()
    found: list[int] = []
    seen: dict[int, int] = {}
    while time.monotonic() - began_s < (WORKS_WITHIN_S if found else THERE_WITHIN_S):
        found = dev.workers("rollup")
        ticks = {pid: _ticks(pid) for pid in found}
        if any(pid in seen and ticks[pid] > seen[pid] for pid in found):
            time.sleep(after_s)
            break
        seen = ticks
        time.sleep(TICK_S)
    died = 0
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            died = 1
    return died


def _ticks(pid: int) -> int:
    """The processor time of a process, in hundredths of a second."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _batch(dev: Dev, keys: list[str]) -> None:
    """Send the keys until each has counted."""
    left = keys
    for attempt in range(ATTEMPTS_MAX):
        entries = [{"operation": "visit", "url": PAGE, "idempotency_key": key} for key in left]
        answer = dev.call("POST", "/2015-03-31/functions/visits/invocations", {"batch": entries})
        if answer.status == 200 and "x-amz-function-error" not in answer.headers:
            results = answer.body["results"]
            left = [key for key, result in zip(left, results, strict=True) if not 200 <= result["status"] < 300]
            if not left:
                return
        time.sleep(0.05 * (attempt + 1))
    raise SystemExit(f"tally: {len(left)} plays were refused {ATTEMPTS_MAX} times: {answer.raw[:300]!r}")


def _count(dev: Dev) -> int:
    return int(dev.call("GET", f"/visits?url={PAGE}").body["visits"])


def main() -> int:
    """Run it and print the outcome."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.kill_rollup", description=__doc__.split("\n")[0])
    parser.add_argument("--plays", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tally-kill-") as folder:
        dev = Dev(Path(folder, "data"))
        try:
            outcome = killed(dev.wait_until_ready(), given.plays, given.kills, given.seed)
            metrics = dev.call("GET", "/dev/metrics?format=json").body["metrics"]
        finally:
            dev.stop()
    print(f"{outcome.plays:9,}  plays sent in {outcome.sent_in_s:.1f} s")
    print(f"{outcome.kills:9,}  kills of the rollup consumer; make dev spoke of {outcome.failed_batches:,} batches")
    print(f"{outcome.counted:9,}  counted, {outcome.right_after_s:.1f} s after the last was sent")
    for entry in metrics:
        if entry["dimensions"].get("consumer") == "rollup":
            print(f"{entry['sum']:9,}  {entry['metric']}")
    print(json.dumps(outcome.__dict__))
    return int(outcome.counted != outcome.plays)


if __name__ == "__main__":
    sys.exit(main())
