"""The time of a play on the local stack as its streams grow, on a trimmed engine and on an untrimmed one.

    python -m bench.stream_curve --plays 100000
    python -m bench.stream_curve --plays 30000 --untrimmed

In the embedded engine, each write on a table with a stream takes time in proportion to the records of the stream.
`make dev` indexes and trims the streams of its own engine. This command sends batches of plays through the real
functions while the consumers work. After each 10,000 it sends some plays one by one over HTTP and prints their median.
Exit status 1 if it does not find each play counted once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from dev.base.engine import Engine
from dev.base.errors import LocalError

from .rolled_up import local_stack

STEP = 10_000
BATCH = 100  # entries of one invocation: the most that the function takes
CALLERS = 4
SINGLE = 200
REFUSED_MAX = 50  # attempts of a batch: a slow engine answers 503 for a while


def measure(url: str, plays: int) -> Iterator[float]:
    """The median milliseconds of a play, before the first and after each 10,000. Raises LocalError."""
    yield _single_ms(url, 0)
    for first in range(0, plays, STEP):
        batches = range(first, min(first + STEP, plays), BATCH)
        with ThreadPoolExecutor(CALLERS) as callers:
            list(callers.map(lambda number: _batch(url, number), batches))
        yield _single_ms(url, first + STEP)


def _batch(url: str, first: int) -> None:
    """Send plays of one video, with the same keys until all are counted."""
    event = {
        "batch": [
            {"operation": "play", "video_id": f"v{first}", "idempotency_key": f"curve-{first:09d}-{number:012d}"}
            for number in range(BATCH)
        ]
    }
    for attempt in range(REFUSED_MAX):
        with contextlib.suppress(OSError):
            results = _call(f"{url}/2015-03-31/functions/plays/invocations", event).get("results", [])
            if results and all(result["status"] == 200 for result in results):
                return
        time.sleep(0.1 * attempt)
    raise LocalError(f"a batch was refused {REFUSED_MAX} times")


def _single_ms(url: str, streamed: int) -> float:
    taken_ms = []
    for number in range(SINGLE):
        started_s = time.perf_counter()
        _call(f"{url}/videos/single/plays", {}, f"curve-single-{streamed:09d}-{number:06d}")
        taken_ms.append((time.perf_counter() - started_s) * 1000)
    return statistics.median(taken_ms)


def _counted(url: str, plays: int) -> int:
    """The sum of the counts of all videos."""
    videos = [f"v{first}" for first in range(0, plays, BATCH)] + ["single"]
    return sum(int(_call(f"{url}/videos/{video}/plays")["value"]) for video in videos)


def _call(url: str, body: Any = None, key: str | None = None) -> Any:
    headers = {"User-Agent": "Mozilla/5.0", "Content-Type": "application/json"}
    if key is not None:
        headers |= {"Idempotency-Key": key}
    data = None if body is None else (json.dumps(body).encode() if body else b"")
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as answer:
        return json.load(answer)


@contextlib.contextmanager
def _stack(untrimmed: bool) -> Iterator[str]:
    """`make dev` with its own engine, or with another one, which it neither indexes nor trims."""
    with contextlib.ExitStack() as stack:
        environment = {}
        if untrimmed:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            environment["AWS_ENDPOINT_URL_DYNAMODB"] = stack.enter_context(Engine(folder / "engine.db")).endpoint
        yield stack.enter_context(local_stack(**environment))


def main() -> int:
    """Print the curve. Returns 1 if a play is missing or counted twice."""
    parser = argparse.ArgumentParser(prog="python -m bench.stream_curve", description=__doc__.split("\n")[0])
    parser.add_argument("--plays", type=int, default=100_000, help="in steps of 10,000 (100,000)")
    parser.add_argument("--untrimmed", action="store_true", help="use an engine without index and trimming")
    given = parser.parse_args()
    if given.plays < STEP or given.plays % STEP:
        parser.error(f"--plays must be a multiple of {STEP:,}")
    started_s = time.monotonic()
    try:
        with _stack(given.untrimmed) as url:
            print(f"{'plays':>8}  median ms of a play", flush=True)
            medians = tqdm(measure(url, given.plays), total=given.plays // STEP + 1, file=sys.stderr, disable=None)
            for step, median_ms in enumerate(medians):
                tqdm.write(f"{step * STEP:8,}  {median_ms:.1f}")
                sys.stdout.flush()
            sent, counted = given.plays + SINGLE * (given.plays // STEP + 1), _counted(url, given.plays)
    except (LocalError, OSError) as error:
        print(f"tally: {error}", file=sys.stderr)
        return 1
    print(f"{counted:,} counted of {sent:,}, in {time.monotonic() - started_s:.0f} s")
    return int(counted != sent)


if __name__ == "__main__":
    sys.exit(main())
