"""`make demo`: a real web server's log, replayed as visits of its pages with retries, then counted again by us."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tqdm import tqdm  # type: ignore[import-untyped]

from local.base.engine import ROOT, die_with_parent
from local.base.errors import LocalError
from local.base.options import Options

from .drift_watch import DriftWatch, until_judged, watching
from .visitors import Sent, Server, counts, send
from .weblog import LOG, SITE, Weblog, read_log

PORT_DEFAULT = 8080
CONCURRENCY_DEFAULT, CONCURRENCY_MAX = 8, 256
TOP_PAGES = 10
DIFFERENCES_SHOWN_MAX = 10
START_S_MAX = 120.0  # it synthesizes the stack first: 15 s, and more on a busy machine
START_LOOK_S = 0.1
STOP_S_MAX = 10.0
SETTLE_S_MAX = 5.0  # what is rolled up shows within seconds
SETTLE_LOOK_S = 0.1
PATH_CHARACTERS_SHOWN_MAX = 60
NAME_CHARACTERS_MAX = 100  # of the log's name in keys: Tally takes 255
_READY = "tally: ready"
_BAR = "{l_bar}{bar}| {elapsed}"
_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True)
class Outcome:
    """Our own count and Tally's, by page, and what was sent in between."""

    log: Weblog
    expected: Counter[str]
    counted: dict[str, int]
    sent: Sent
    took_s: float
    settled_s: float | None
    """After how long the counts were right; None if they were not within SETTLE_S_MAX."""
    drift: DriftWatch

    @property
    def right(self) -> bool:
        """Whether every page has its count, in time, and nothing drifted."""
        return not self.differing and self.settled_s is not None and not self.drift.found

    @property
    def differing(self) -> list[str]:
        """The pages that Tally counted otherwise than we did."""
        return [page for page, number in self.expected.items() if self.counted[page] != number]

    @property
    def lost(self) -> int:
        """Visits that are missing from Tally's count."""
        return sum(max(0, number - self.counted[page]) for page, number in self.expected.items())

    @property
    def doubled(self) -> int:
        """Visits that Tally counted more than once."""
        return sum(max(0, self.counted[page] - number) for page, number in self.expected.items())


def keyed(log: Weblog, run: str) -> Iterator[tuple[str, str]]:
    """The URL of each visit, with its key: the log's name, the run and the line; always more than 22 characters."""
    name = _NOT_IN_KEYS.sub("-", log.name)[:NAME_CHARACTERS_MAX]
    for visit in log.visits:
        yield visit.url, f"{name}.{run}.{visit.line:06d}"


async def replay(log: Weblog, port: int, concurrency: int, settle_s: int | None = None) -> Outcome:
    """Read the counts, send the visits, read the counts again, and ask for drift all the while. Raises LocalError.

    `settle_s`: wait until the run's minutes are judged, on a server with this settle time; None: do not.
    """
    expected = log.recount()
    run = secrets.token_hex(8)  # so that the demo counts again when it is run again
    steps = 2 * len(expected) + len(log.visits)
    async with Server(port) as server, watching(server) as watch:
        with tqdm(
            desc="reading the counts", total=steps, file=sys.stderr, disable=None, leave=False, bar_format=_BAR
        ) as bar:
            before = await counts(server, expected, concurrency, bar.update)
            bar.set_description("visiting")
            started_s = time.monotonic()
            await send(server, keyed(log, run), concurrency, bar.update)
            took_s = time.monotonic() - started_s
            bar.set_description("reading them again")
            due = {page: before[page] + number for page, number in expected.items()}
            settled_s = await settle(server, due, concurrency)
            after = await counts(server, expected, concurrency, bar.update)
            if settle_s is not None:
                bar.set_description("waiting until its minutes are judged")
                await until_judged(watch, settle_s)
                after = await counts(server, expected, concurrency, lambda _: None)
    counted = {page: after[page] - before[page] for page in expected}
    return Outcome(log, expected, counted, server.sent, took_s, settled_s, watch)


async def settle(server: Server, due: Mapping[str, int], concurrency: int) -> float | None:
    """Wait until the counts are those that are due: seconds since now, or None if SETTLE_S_MAX was not enough.

    Visits are rolled up: they are counted when they are answered, and shown within seconds.
    """
    started_s, waiting = time.monotonic(), dict(due)
    while waiting:
        found = await counts(server, waiting, concurrency, lambda _: None)
        waiting = {page: number for page, number in waiting.items() if found[page] < number}
        if waiting and time.monotonic() - started_s > SETTLE_S_MAX:
            return None
        if waiting:
            await asyncio.sleep(SETTLE_LOOK_S)
    took_s = time.monotonic() - started_s
    return took_s if took_s <= SETTLE_S_MAX else None  # the last look may have ended too late


def report(outcome: Outcome) -> Iterator[str]:
    """What a person wants to see of it."""
    log, sent = outcome.log, outcome.sent
    yield f"The {TOP_PAGES} most visited pages of {SITE}, of {len(outcome.expected):,}:\n"
    yield "    log  Tally"
    for page, number in outcome.expected.most_common(TOP_PAGES):
        yield f"{number:7,}{outcome.counted[page]:7,}  {_path(page)}"
    yield ""
    yield from _facts(
        ("in the log", len(log.visits), f"requests, and {log.malformed:,} malformed lines"),
        ("sent", sent.requests, f"times in {outcome.took_s:.1f} s"),
        ("", sent.sent_twice, "visits twice at the same moment"),
        ("", sent.answers_lost, "visits again because their answer was lost"),
        ("", sent.come_agains, "times again because the server was busy or gave no answer"),
        ("replayed", sent.replays, "times the answer to a visit that was counted already"),
        ("counted", sum(outcome.counted.values()), "visits"),
        ("lost", outcome.lost, "visits"),
        ("doubled", outcome.doubled, "visits"),
    )
    yield ""
    if outcome.settled_s is None:
        yield f"After {SETTLE_S_MAX:.0f} s the counts were not yet those of the log."
    else:
        yield f"The counts were those of the log {outcome.settled_s:.1f} s after the last visit."
    yield from _drift(outcome.drift)
    if not outcome.differing:
        yield f"All {len(outcome.expected):,} pages have the count that the log says."
        return
    for page in outcome.differing[:DIFFERENCES_SHOWN_MAX]:
        yield f"differs: {_path(page)}: {outcome.expected[page]:,} in the log, {outcome.counted[page]:,} by Tally"


def _drift(watch: DriftWatch) -> Iterator[str]:
    covers = (
        "the run's minutes were judged" if watch.settled else "minutes not yet judged are not in it; --settle waits"
    )
    yield f"GET /drift, asked {watch.asked:,} times: {len(watch.found):,} tallies drifted ({covers})."
    for counter, target in list(watch.found)[:DIFFERENCES_SHOWN_MAX]:
        yield f"drifts: {counter} of {target}: by {watch.found[counter, target]:+,}"


def _facts(*facts: tuple[str, int, str]) -> Iterator[str]:
    for name, number, rest in facts:
        yield f"{name:10}{number:7,}  {rest}"


def _path(page: str) -> str:
    parts = urlsplit(page)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    return path if len(path) <= PATH_CHARACTERS_SHOWN_MAX else path[: PATH_CHARACTERS_SHOWN_MAX - 1] + "…"


@contextlib.contextmanager
def running(port: int) -> Iterator[None]:
    """A Tally server on this port: the one that is there, or one of ours in a folder that goes with it."""
    if asyncio.run(_is_there(port)):
        yield
        return
    print(f"tally: nothing runs on port {port}: starting `make dev` there for the demo", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="tally-demo-") as folder:
        output = Path(folder, "output")
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "local", "--port", str(port), "--data", str(Path(folder, "data"))],
                cwd=ROOT,
                env={**os.environ, "TALLY_PAGE_HOSTS": urlsplit(SITE).netloc},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
                start_new_session=True,  # Ctrl-C reaches us, and we stop it
            )
        try:
            _wait_until_ready(process, output)
            yield
        finally:
            _stop(process)


async def _is_there(port: int) -> bool:
    async with Server(port) as server:
        return await server.is_there()


def _wait_until_ready(process: subprocess.Popen[bytes], output: Path) -> None:
    deadline_s = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline_s:
        words = output.read_text(errors="replace").splitlines()
        if any(line.startswith(_READY) for line in words):
            return
        if process.poll() is not None:
            reason = words[-1].removeprefix("tally: ") if words else f"exit status {process.returncode}"
            raise LocalError(f"`make dev` did not start: {reason}")
        time.sleep(START_LOOK_S)
    raise LocalError(f"`make dev` was not ready within {START_S_MAX:.0f} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="Replay a web server's log as visits of its pages on a running `make dev` (or one that is started"
        " for it), sending some twice and losing the answers of others, then count the log again: every page must have"
        f" the same number within {SETTLE_S_MAX:.0f} s, and nothing may drift. Exit status 1 if that is not so.",
    )
    parser.add_argument("--port", type=int, default=PORT_DEFAULT, help=f"of the server (default: {PORT_DEFAULT})")
    parser.add_argument("--log", type=Path, default=LOG, help="in common log format, gzipped or not (default: NASA's)")
    parser.add_argument("--concurrency", type=int, default=CONCURRENCY_DEFAULT, help="visitors at a time (default: 8)")
    parser.add_argument(
        "--settle",
        action="store_true",
        help="wait until the minutes of the run are judged for drift: one to two minutes (TALLY_SETTLE_S: as of the"
        " server)",
    )
    arguments = parser.parse_args(argv)
    if not 1 <= arguments.port <= 65535:
        parser.error("--port must be from 1 to 65535")
    if not 1 <= arguments.concurrency <= CONCURRENCY_MAX:
        parser.error(f"--concurrency must be from 1 to {CONCURRENCY_MAX}")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line; the exit status."""
    arguments = _arguments(argv)
    try:
        log = read_log(arguments.log)
        with running(arguments.port):
            settle_s = Options.read([], os.environ).settle_s if arguments.settle else None
            outcome = asyncio.run(replay(log, arguments.port, arguments.concurrency, settle_s))
    except LocalError as error:
        print(f"tally: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tally: demo stopped; visits that were sent stay counted", file=sys.stderr)
        return 130
    print(*report(outcome), sep="\n")
    for complaint in _complaints(outcome):
        print(f"tally: {complaint}", file=sys.stderr)
    return 0 if outcome.right else 1


def _complaints(outcome: Outcome) -> Iterator[str]:
    if outcome.differing:
        yield f"{len(outcome.differing)} pages differ from the log (unless others visited them meanwhile)"
    elif outcome.settled_s is None:
        yield f"the counts were right only later than {SETTLE_S_MAX:.0f} s after the last visit"
    if outcome.drift.found:
        yield f"{len(outcome.drift.found)} tallies drifted during the run"


if __name__ == "__main__":
    # As Ctrl-C, so that what was started is stopped; asyncio has a handler of its own for that one only.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    sys.exit(main())
