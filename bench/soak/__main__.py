"""`make soak`, or `python -m bench.soak`. Exit status 1 if a number is wrong."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter as Multiset
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

import counters
from tally.counting import posts
from tally.dynamo.client import Call
from tests.delivery import Stream

from ..clients import STREAMED
from . import comparison, notes, processes
from .monitor import Monitor
from .notes import Accepted, Reader
from .setup import ENGINE, SoakSetup, create_soak_tables, run_engine
from .workers import INCREMENTS, PARENTS

OPERATIONS, MINUTE_S, WORKERS = 1_000_000, 4, 2
STOCK = 60  # of each item at the start: enough for most changes, and too little for some
TICK_S = 0.1  # between two looks at whether a process is due to be killed or restarted
CHECK_S = 1.0  # between two checks of the tables
RIGHT_S_MAX = 240.0  # from the last answer until every tally is right, because holds expire and the rollup catches up
JUDGED_S_MAX = 120.0  # from the check that finds every tally right, or from a judged minute, to the next judged minute


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak",
        description="Make changes of every kind through the core, on the embedded engine, while one request in twenty"
        " fails in one of fifteen ways and the consumers and the sweep are killed and frozen. Then compare every tally"
        " with the accepted changes. If a number is wrong, the exit status is 1.",
    )
    parser.add_argument("--operations", type=int, default=OPERATIONS, help=f"intended changes ({OPERATIONS:,})")
    parser.add_argument("--seed", type=int, default=None, help="seed of changes, faults and kills (random)")
    parser.add_argument("--minute-s", type=int, default=MINUTE_S, help=f"the ledger's minute in seconds ({MINUTE_S})")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep the engine's file, the notes and the logs in this folder"
    )
    parser.add_argument("--check", type=Path, metavar="DIR", help="only compare the tables in a folder of --keep")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line. Returns the exit status."""
    arguments = _arguments(argv)
    if arguments.check:
        return _compare_kept_tables(arguments.check)
    seed = int.from_bytes(os.urandom(2)) if arguments.seed is None else arguments.seed
    with ExitStack() as stack:
        if arguments.keep:
            arguments.keep.mkdir(parents=True, exist_ok=True)
            folder = arguments.keep.absolute()
            if (folder / ENGINE).exists():
                print(f"tally: {folder} has the tables of another soak", file=sys.stderr)
                return 2
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tally-soak-")))
        print(f"tally: soak with --seed={seed} in {folder}", file=sys.stderr)
        try:
            return Soak(folder, seed, arguments.minute_s, arguments.operations).run()
        except KeyboardInterrupt:
            return 130


class Soak:
    """One run of the soak. `minute_s`: how long a minute of the ledger is."""

    def __init__(self, folder: Path, seed: int, minute_s: int, operations: int) -> None:
        self._folder, self._seed, self._minute_s, self._operations = folder, seed, minute_s, operations

    def run(self) -> int:
        """Runs the soak, and returns the exit status."""
        began_s = time.monotonic()
        with run_engine(self._folder) as engine:
            create_soak_tables(self._folder, engine)
            setup = SoakSetup(self._folder, self._seed, self._minute_s, engine.endpoint)
            os.environ.update(setup.environment)
            processes.prepare_forkserver()
            _write_posts_and_stock(setup)
            monitor = Monitor(setup, setup.faultless_store())
            consumers = self._run_load(setup, monitor)
            stored = comparison.read_tables(setup)
        problems = [*comparison.all_differences(monitor.accepted, stored), *monitor.errors]
        problems += [f"false drift of {name} {id_} by {drift} was confirmed" for name, id_, drift in monitor.drifts]
        return self._report(monitor, consumers, stored, problems, time.monotonic() - began_s)

    def _run_load(self, setup: SoakSetup, monitor: Monitor) -> processes.ConsumerProcesses:
        """Run the workers and the consumers until every change is rolled up and judged."""
        setup, proxies, faults_end = processes.begin_proxies(setup)
        consumers = processes.ConsumerProcesses(setup)
        workers = processes.begin_workers(setup, WORKERS, self._operations)
        try:
            self._watch_workers(setup, consumers, workers, monitor)
            faults_end.set()
            if not self._wait_until_complete(setup, consumers, monitor):
                monitor.errors.append("not every change was rolled up and judged in time")
        finally:
            for process in workers:
                process.kill()
            consumers.stop()
            proxies.kill()
        return consumers

    def _watch_workers(
        self, setup: SoakSetup, consumers: processes.ConsumerProcesses, workers: list[Any], monitor: Monitor
    ) -> None:
        """Monitor the tables until the workers are done."""
        with closing(setup.wire()) as wire:
            shards = {table: Stream(wire, f"soak-{table}").shard for table in STREAMED}
        next_check_s, alive = 0.0, True
        with tqdm(total=self._operations, unit=" operations", file=sys.stderr, disable=None, smoothing=0.05) as bar:
            while alive:
                alive, now_s = any(process.is_alive() for process in workers), time.monotonic()
                consumers.kill_or_restart(now_s, may_kill=alive)
                if now_s >= next_check_s or not alive:
                    next_check_s = now_s + CHECK_S
                    monitor.check()
                    monitor.trim(shards)
                    bar.n = monitor.accepted.operations
                    faults = sum(_read_fault_counts(setup.folder).values())
                    bar.set_postfix(problems=monitor.problem_count, faults=faults, kills=consumers.kills)
                time.sleep(TICK_S)
        if failed := [f"worker-{number}" for number, process in enumerate(workers) if process.exitcode]:
            raise RuntimeError(f"{failed[0]} failed:\n{setup.end_of_log(failed[0])}")

    def _wait_until_complete(self, setup: SoakSetup, consumers: processes.ConsumerProcesses, monitor: Monitor) -> bool:
        """Wait until every tally is right and every minute up to this time is judged. Returns False after a timeout."""
        until_s, last_judged = time.monotonic() + RIGHT_S_MAX, monitor.last_judged
        right_minute: int | None = None  # the minute in which every tally was right; None: some tally is still wrong
        expected = {tally: amount for tally, amount in monitor.accepted.tallies().items() if amount}
        while (now_s := time.monotonic()) < until_s:
            consumers.kill_or_restart(now_s, may_kill=False)
            monitor.check()
            if right_minute is None:
                stored = {tally: amount for tally, amount in comparison.read_counts(setup).tallies.items() if amount}
                if stored == expected:
                    right_minute, until_s = setup.settings.minute_of(time.time()), time.monotonic() + JUDGED_S_MAX
            elif monitor.last_judged > right_minute:
                return True
            elif monitor.last_judged != last_judged:
                until_s, last_judged = now_s + JUDGED_S_MAX, monitor.last_judged
            time.sleep(CHECK_S)
        return False

    def _report(
        self,
        monitor: Monitor,
        consumers: processes.ConsumerProcesses,
        stored: comparison.Contents,
        problems: list[str],
        took_s: float,
    ) -> int:
        _print_problems(problems)
        accepted, faults = monitor.accepted, _read_fault_counts(self._folder)
        print(f"faults: {', '.join(f'{count:,} {name.lower()}' for name, count in faults.items())}")
        checked = f"{monitor.judged_minutes:,} minutes of {self._minute_s} s judged, {monitor.checks:,} checks"
        speed = f"{took_s:,.0f} s, {self._operations / took_s:,.0f} operations a second"
        print(f"{checked}, {monitor.drift_rows:,} drift rows before confirmation, {consumers.freezes} freezes, {speed}")
        drifts = len(monitor.drifts) + len(stored.drifts)
        print(_summary(accepted, stored, problems, sum(faults.values()), consumers.kills, drifts))
        return int(bool(problems))


def _summary(
    accepted: Accepted, stored: comparison.Contents, problems: Sequence[str], faults: int, kills: int, drifts: int
) -> str:
    expected = accepted.tallies()
    lost, doubled = comparison.lost_and_doubled(expected, stored.tallies)
    totals = {
        name: sum(amount for tally, amount in stored.tallies.items() if tally[0] == name) for name in counters.COUNTERS
    }
    children = Multiset[str]()
    for (counter, _), names in stored.children.items():
        children[counter] += len(names)
    parts = [
        f"{name} {totals[name]:,} = "
        + (f"{children[name]:,} items" if counter.counts_children else f"sum of {counter.prefix}#*")
        for name, counter in counters.COUNTERS.items()
        if name in {counter for counter, _ in expected}
    ]
    states = list(stored.holds.values())
    holds = ", ".join(f"{states.count(state):,} {state}" for state in (notes.COMMITTED, notes.RELEASED, notes.EXPIRED))
    return (
        f"{accepted.operations:,} operations, {faults:,} faults, {kills:,} kills:"
        f" {lost:,} lost, {doubled:,} doubled, {drifts:,} false drift, {len(problems):,} differences;"
        f" {'; '.join(parts)}; {len(stored.imports):,} imports of {sum(stored.imports.values()):,} rows; holds {holds}"
    )


def _write_posts_and_stock(setup: SoakSetup) -> None:
    """Write the posts, and the first stock of each item, and write a note for each item, as a worker does."""
    from . import intended_changes  # after `run` has set the environment, which the import reads

    store = setup.faultless_store()
    for post in PARENTS[counters.LIKES]:
        posts.write_post(Call(store, "author"), counters.LIKES, post, "hello")
    with (setup.folder / "notes-stock.tsv").open("w") as file:
        for item in INCREMENTS["stock"].ids:
            entry = intended_changes.IntendedEntry(counters.STOCK, item, STOCK)
            intended_changes.increment(store, entry, f"stock-{item}").send()
            file.write(notes.format_note(entry.note(notes.STOCKED, f"stock-{item}")._replace(answered_s=time.time())))


def _read_fault_counts(folder: Path) -> dict[str, int]:
    """Returns how many requests have met each fault."""
    path = folder / "faults.json"
    counts = json.loads(path.read_text()) if path.exists() else {}
    return {name: count for name, count in sorted(counts.items()) if name != "NONE"}  # NONE: requests without a fault


def _print_problems(problems: Sequence[str]) -> None:
    for problem in problems[: comparison.DIFFERENCES_SHOWN_MAX]:
        print(f"tally: {problem}")
    if len(problems) > comparison.DIFFERENCES_SHOWN_MAX:
        print(f"tally: and {len(problems) - comparison.DIFFERENCES_SHOWN_MAX} more")


def _compare_kept_tables(folder: Path) -> int:
    accepted = Accepted()
    accepted.add(Reader(folder).read_new())
    with run_engine(folder) as engine:
        stored = comparison.read_tables(SoakSetup(folder, seed=0, minute_s=1, engine_endpoint=engine.endpoint))
    problems = comparison.all_differences(accepted, stored)
    _print_problems(problems)
    print(f"{accepted.operations:,} operations compared: {len(problems)} differences")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
