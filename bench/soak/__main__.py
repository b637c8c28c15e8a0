"""`make soak`, or `python -m bench.soak`. Exit status 1 if anything is off."""

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
from .workers import FAMILIES, MOVES

OPERATIONS, MINUTE_S, WORKERS = 1_000_000, 4, 2
STOCK = 60  # of each item at first: most takes find some, and some find none
TICK_S = 0.1
LOOK_S = 1.0
EVEN_S_MAX = 240.0  # from the last answer until every tally is as accepted: holds expire, and the rollup catches up
JUDGED_S_MAX = 120.0  # without another minute judged


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak",
        description="Make changes of every kind through the core, on the embedded engine, while one request in twenty"
        " fails in one of fifteen ways and the consumers and the sweep are killed and frozen. Then compare every tally"
        " with what was accepted. Exit status 1 if anything is off.",
    )
    parser.add_argument("--operations", type=int, default=OPERATIONS, help=f"intended changes ({OPERATIONS:,})")
    parser.add_argument("--seed", type=int, default=None, help="of what is changed, what fails, who is killed (random)")
    parser.add_argument("--minute-s", type=int, default=MINUTE_S, help=f"the ledger's minute in seconds ({MINUTE_S})")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the engine's file, the notes and the logs here")
    parser.add_argument("--check", type=Path, metavar="DIR", help="only compare the tables in such a folder, once more")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line. Returns the exit status."""
    given = _arguments(argv)
    if given.check:
        return _check(given.check)
    seed = int.from_bytes(os.urandom(2)) if given.seed is None else given.seed
    with ExitStack() as stack:
        if given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
            folder = given.keep.absolute()
            if (folder / ENGINE).exists():
                print(f"tally: {folder} has a soak already", file=sys.stderr)
                return 2
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tally-soak-")))
        print(f"tally: soak with --seed={seed} in {folder}", file=sys.stderr)
        try:
            return Soak(folder, seed, given.minute_s, given.operations).run()
        except KeyboardInterrupt:
            return 130


class Soak:
    """One run."""

    def __init__(self, folder: Path, seed: int, minute_s: int, operations: int) -> None:
        self._folder, self._seed, self._minute_s, self._operations = folder, seed, minute_s, operations

    def run(self) -> int:
        """The exit status."""
        began_s = time.monotonic()
        with run_engine(self._folder) as running:
            create_soak_tables(self._folder, running)
            stage = SoakSetup(self._folder, self._seed, self._minute_s, running.endpoint)
            os.environ.update(stage.environment)
            processes.prepare_forkserver()
            _open(stage)
            watch = Monitor(stage, stage.store())
            players = self._run_load(stage, watch)
            stored = comparison.read_tables(stage)
        said = [*comparison.all_differences(watch.accepted, stored), *watch.as_of_errors]
        said += [f"false drift of {drift[0]} {drift[1]} by {drift[2]} was confirmed" for drift in watch.drifts]
        return self._report(watch, players, stored, said, time.monotonic() - began_s)

    def _run_load(self, stage: SoakSetup, watch: Monitor) -> processes.ConsumerProcesses:
        """Run everything until it rests. The tables stay as they are then."""
        stage, proxies, calm = processes.begin_proxies(stage)
        players = processes.ConsumerProcesses(stage)
        crowd = processes.begin_workers(stage, WORKERS, self._operations)
        try:
            self._watch_workers(stage, players, crowd, watch)
            calm.set()
            if not self._wait_until_complete(stage, players, watch):
                watch.as_of_errors.append("not everything was rolled up and judged in the end")
        finally:
            for process in crowd:
                process.kill()
            players.stop()
            proxies.kill()
        return players

    def _watch_workers(
        self, stage: SoakSetup, players: processes.ConsumerProcesses, crowd: list[Any], watch: Monitor
    ) -> None:
        """Watch until the workers are done."""
        shards = _shards(stage)
        look_s, alive = 0.0, True
        with tqdm(total=self._operations, unit=" operations", file=sys.stderr, disable=None, smoothing=0.05) as bar:
            while alive:
                alive, now_s = any(process.is_alive() for process in crowd), time.monotonic()
                players.step(now_s, strikes=alive)
                if now_s >= look_s or not alive:
                    look_s = now_s + LOOK_S
                    watch.look()
                    watch.trim(shards)
                    bar.n = watch.accepted.operations
                    bar.set_postfix(
                        off=watch.problem_count, faults=sum(_faults(stage.folder).values()), kills=players.kills
                    )
                time.sleep(TICK_S)
        if any(process.exitcode for process in crowd):
            raise RuntimeError(f"a worker failed: see {stage.folder}/worker-*.log")

    def _wait_until_complete(self, stage: SoakSetup, players: processes.ConsumerProcesses, watch: Monitor) -> bool:
        """Wait until every tally is as accepted and every minute up to then is judged; whether that came."""
        until_s, judged = time.monotonic() + EVEN_S_MAX, watch.last_judged
        rest_at: int | None = None
        wanted = {name: amount for name, amount in watch.accepted.tallies().items() if amount}
        while (now_s := time.monotonic()) < until_s:
            players.step(now_s, strikes=False)
            watch.look()
            if rest_at is not None and watch.last_judged != judged:
                until_s, judged = now_s + JUDGED_S_MAX, watch.last_judged
            if rest_at is None:
                stored = {name: amount for name, amount in comparison.read_counts(stage).tallies.items() if amount}
                rest_at = stage.settings.minute_of(time.time()) if stored == wanted else None
            elif watch.last_judged > rest_at:
                return True
            time.sleep(LOOK_S)
        return False

    def _report(
        self,
        watch: Monitor,
        players: processes.ConsumerProcesses,
        stored: comparison.Contents,
        said: list[str],
        took_s: float,
    ) -> int:
        _print_differences(said)
        accepted, kinds = watch.accepted, _faults(self._folder)
        print(f"faults: {', '.join(f'{count:,} {name.lower()}' for name, count in kinds.items())}")
        print(
            f"{watch.judged:,} minutes of {self._minute_s} s judged, {watch.looks:,} looks, {watch.passing:,} passing"
            f" rows, {players.freezes} freezes, {took_s:,.0f} s, {self._operations / took_s:,.0f} operations a second"
        )
        print(
            _last_line(
                accepted, stored, said, sum(kinds.values()), players.kills, len(watch.drifts) + len(stored.drifts)
            )
        )
        return int(bool(said))


def _last_line(
    accepted: Accepted, stored: comparison.Contents, said: Sequence[str], faults: int, kills: int, drifts: int
) -> str:
    wanted = accepted.tallies()
    lost, doubled = comparison.off_by(wanted, stored.tallies)
    totals = {name: sum(amount for of, amount in stored.tallies.items() if of[0] == name) for name in counters.COUNTERS}
    children = Multiset[str]()
    for (of, _), there in stored.children.items():
        children[of] += len(there)
    parts = [
        f"{name} {totals[name]:,} = "
        + (f"{children[name]:,} items" if counter.counts_children else f"sum of {counter.prefix}#*")
        for name, counter in counters.COUNTERS.items()
        if name in {of for of, _ in wanted}
    ]
    states = list(stored.holds.values())
    holds = ", ".join(f"{states.count(state):,} {state}" for state in (notes.COMMITTED, "released", notes.EXPIRED))
    return (
        f"{accepted.operations:,} operations, {faults:,} faults, {kills:,} kills:"
        f" {lost:,} lost, {doubled:,} doubled, {drifts:,} false drift, {len(said):,} off; {'; '.join(parts)};"
        f" {len(stored.imports):,} imports of {sum(stored.imports.values()):,} rows; holds {holds}"
    )


def _open(stage: SoakSetup) -> None:
    """Write the posts, and put stock on the shelves: noted like everything else."""
    from . import intended_changes

    store = stage.store()
    for post in FAMILIES[counters.LIKES]:
        posts.write_post(Call(store, "author"), counters.LIKES, post, "hello")
    with (stage.folder / "notes-shelves.tsv").open("w") as file:
        for item in MOVES["stock"].ids:
            entry = intended_changes.IntendedEntry(counters.STOCK, item, STOCK)
            intended_changes.increment(store, entry, f"shelves-{item}").send()
            file.write(notes.format_note(entry.note(notes.STOCKED, f"shelves-{item}")._replace(answered_s=time.time())))


def _shards(stage: SoakSetup) -> dict[str, str]:
    """The stream shard of each table."""
    with closing(stage.wire()) as wire:
        return {table: Stream(wire, f"soak-{table}").shard for table in STREAMED}


def _faults(folder: Path) -> dict[str, int]:
    """How many requests have met which fault so far."""
    path = folder / "faults.json"
    counts = json.loads(path.read_text()) if path.exists() else {}
    return {name: count for name, count in sorted(counts.items()) if name != "NONE"}


def _print_differences(said: Sequence[str]) -> None:
    for complaint in said[: comparison.DIFFERENCES_SHOWN_MAX]:
        print(f"tally: {complaint}")
    if len(said) > comparison.DIFFERENCES_SHOWN_MAX:
        print(f"tally: and {len(said) - comparison.DIFFERENCES_SHOWN_MAX} more")


def _check(folder: Path) -> int:
    accepted = Accepted()
    accepted.add(Reader(folder).new())
    with run_engine(folder) as running:
        stored = comparison.read_tables(SoakSetup(folder, 0, 1, running.endpoint))
    said = comparison.all_differences(accepted, stored)
    _print_differences(said)
    print(f"{accepted.operations:,} operations compared: {len(said)} off")
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main())
