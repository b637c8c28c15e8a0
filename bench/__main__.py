"""`python -m bench`: measure, print, write the JSON. Exit status 1 if a claim does not hold."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError
from tqdm import tqdm  # type: ignore[import-untyped]

from dev.base.errors import LocalError

from . import ROOT
from .accuracy import ANSWERS_LOST_SHARE, CRASHES_SHARE, THREADS, measure_accuracy
from .clients import ENDPOINT_VARIABLE
from .console import measure_console
from .costs import measure_batches, measure_likes, measure_reads
from .designs import COUNTED, TIMED
from .feed import measure_feed
from .holds import measure_refusal
from .hot_key import Heat, full, quick, simulate_all
from .imports import measure_imports
from .journal import measure_journal
from .judging import measure_judging
from .manual_edits import measure_manual_edits
from .many import measure_many
from .report import lines
from .results import Results
from .rolled_up import measure_rolled_up
from .rollups import measure_rollups
from .speed import ROUND_PLAYS, WARM_UP_ROUNDS, measure_costs, measure_times

RESULTS = ROOT / "bench/results"


@dataclass(frozen=True)
class Size:
    """How much to measure."""

    rounds: int
    plays: int
    reads: int
    import_runs: int
    batches: int
    holds: int
    heats: list[Heat]
    records: int
    changes: int
    tallies: int
    phases: int
    visits: int
    """On the local stack; 0 skips it."""
    judge_times: bool


FULL = Size(
    rounds=100,
    plays=1000,
    reads=300,
    import_runs=15,
    batches=20,
    holds=40_000,
    heats=full(),
    records=5000,
    changes=1000,
    tallies=1_000_000,
    phases=6,
    visits=30,
    judge_times=True,
)
QUICK = Size(
    rounds=3,
    plays=60,
    reads=5,
    import_runs=1,
    batches=1,
    holds=400,
    heats=quick(),
    records=200,
    changes=50,
    tallies=20_000,
    phases=1,
    visits=0,
    judge_times=False,
)


def measure(size: Size) -> Results:
    """The whole run, one phase after the other. Raises LocalError."""
    steps = len(TIMED) * ROUND_PLAYS * (WARM_UP_ROUNDS + size.rounds) + len(COUNTED) * size.plays
    with tqdm(desc="client time", total=steps, unit=" plays", file=sys.stderr, disable=None, leave=False) as bar:
        times_us = measure_times(size.rounds, bar.update)
        bar.set_description("round trips, capacity")
        costs = measure_costs()
        likes, reads, batches = measure_likes(), measure_reads(size.reads), measure_batches(size.batches)
        many = measure_many(size.batches)
        bar.set_description("imports")
        imports = measure_imports(size.import_runs)
        bar.set_description("streams")
        rollups = measure_rollups(size.records)
        bar.set_description("the journal")
        ledger = [
            *measure_journal(size.changes),
            *measure_judging(size.tallies),
            *measure_manual_edits(size.phases),
            measure_refusal(size.holds),
        ]
        hot = simulate_all(size.heats, bar.set_description)
        bar.set_description("the local stack")
        rolled_up = measure_rolled_up(size.visits) if size.visits else None
        feed = measure_feed() if size.visits else None
        console = measure_console() if size.visits else None
        bar.set_description("faults")
        accuracy = measure_accuracy(size.plays, bar.update)
    return Results(
        times_us, costs, accuracy, likes, reads, batches, many, imports, hot, rollups, ledger, rolled_up, feed, console,
        size.judge_times,
    )  # fmt: skip


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Count the same play in seven ways on one engine: client time, round trips, capacity units, and the"
        f" error of the count after {FULL.plays:,} plays of which {ANSWERS_LOST_SHARE:.0%} lose their answer and"
        f" {CRASHES_SHARE:.0%} crash; the cost of the stream consumers and of the journal; one hot key with"
        " up to 5,000 changes a second, simulated. Exit status 1 if a claim does not hold.",
    )
    parser.add_argument("--out", type=Path, help="file for the JSON (bench/results/latest.json, or quick.json)")
    parser.add_argument("--quick", action="store_true", help="a smoke test: few plays, and no judgement of times")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line. Returns the exit status."""
    arguments = _arguments(argv)
    size = QUICK if arguments.quick else FULL
    out = arguments.out or RESULTS / ("quick.json" if arguments.quick else "latest.json")
    started_s = time.monotonic()
    try:
        results = measure(size)
        _write(out, results, size)
    except (LocalError, OSError, BotoCoreError, ClientError) as error:
        print(f"tally: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tally: bench stopped", file=sys.stderr)
        return 130
    print(_head(size))
    print(*lines(results), sep="\n")
    broken = [claim.what for claim in results.claims() if claim.held is False]
    print(f"\n{out}, in {time.monotonic() - started_s:.0f} s")
    if broken:
        print(f"tally: does not hold: {'; '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


def _head(size: Size) -> str:
    engine = os.environ.get(ENDPOINT_VARIABLE, "dynoxide, in memory")
    return (
        f"Engine: {engine}; tables without streams. {os.cpu_count()} CPUs, Python {platform.python_version()}.\n"
        f"Client time: median of {size.rounds * ROUND_PLAYS:,} plays of each design in turn, one thread, no faults.\n"
        f"Counted: {size.plays:,} plays of one video from {THREADS} threads. {ANSWERS_LOST_SHARE:.0%} lose their"
        " answer: half between\nstore and SDK, which retries; half between function and caller, who retries with the"
        f" same key.\n{CRASHES_SHARE:.0%} crash between two writes, or after the only one. The caller then retries"
        " too.\n"
    )


def _write(path: Path, results: Results, size: Size) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "plays": size.plays,
        "timed_plays": size.rounds * ROUND_PLAYS,
        "times_judged": size.judge_times,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        **results.document(),
    }
    path.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the engine too
    sys.exit(main())
