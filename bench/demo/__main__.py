"""`make demo`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tally.dev.base.errors import LocalError

from .. import ROOT, running
from .replay import COUNTS_S_MAX, ReplayOutcome, replay
from .report import complaints, report
from .visitors import Server
from .weblog import SITE, read_log

LOG = ROOT / "bench/data/nasa-http-aug95-first-lines.log.gz"
PORT_DEFAULT = 8080
CONCURRENCY_DEFAULT, CONCURRENCY_MAX = 8, 256


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make demo",
        description="Replay a web server's log as visits of its pages. The demo uses the `make dev` on the port, or"
        " starts a `make dev`. It sends some visits twice, loses the answers of others, and then counts the log itself."
        f" Within {COUNTS_S_MAX:.0f} s every page must have the log's number. No tally may drift, and series and"
        " top list must have the log's numbers. Otherwise the exit status is 1. In a terminal, a server that the demo"
        " started runs until Ctrl-C.",
    )
    parser.add_argument("--port", type=int, default=PORT_DEFAULT, help=f"port of the server (default: {PORT_DEFAULT})")
    parser.add_argument(
        "--log", type=Path, default=LOG, help="a log in common log format, gzipped or not (default: NASA's)"
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        default=CONCURRENCY_DEFAULT,
        help=f"number of visitors at a time (default: {CONCURRENCY_DEFAULT})",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="do not wait until Tally has judged the minutes of the run and summed them up (about a minute, and"
        " longer on a server with a longer TALLY_MINUTE_S)",
    )
    arguments = parser.parse_args(argv)
    if not 1 <= arguments.port <= 65535:
        parser.error("--port must be from 1 to 65535")
    if not 1 <= arguments.concurrency <= CONCURRENCY_MAX:
        parser.error(f"--concurrency must be from 1 to {CONCURRENCY_MAX}")
    return arguments


@contextlib.contextmanager
def serve_tally(port: int) -> Iterator[bool]:
    """Starts a server with a temporary data folder, unless a server runs on the port.

    Yields whether this function started the server."""

    async def is_running() -> bool:
        async with Server(port) as server:
            return await server.is_running()

    if asyncio.run(is_running()):
        yield False
        return
    print(f"tally: nothing runs on port {port}, so the demo starts `make dev` on this port", file=sys.stderr)
    environment = {**os.environ, "TALLY_PAGE_HOSTS": urlsplit(SITE).netloc}
    with running.run_dev(ROOT, environment, port):
        yield True


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo. Returns 0 if every count is right, 1 if not or if it cannot run, 130 after Ctrl-C."""
    arguments = _arguments(argv)
    try:
        log = read_log(arguments.log)
        with serve_tally(arguments.port) as started:
            outcome = asyncio.run(replay(log, arguments.port, arguments.concurrency, quick=arguments.quick))
            _print_outcome(outcome, arguments.port, started)
    except LocalError as error:
        print(f"tally: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tally: demo stopped; Tally keeps the visits that it has counted", file=sys.stderr)
        return 130
    return 0 if outcome.is_right else 1


def _print_outcome(outcome: ReplayOutcome, port: int, started: bool) -> None:
    """Print the outcome and the console's address. If the demo `started` the server in a terminal, wait for Ctrl-C."""
    print(*report(outcome), sep="\n")
    for complaint in complaints(outcome):
        print(f"tally: {complaint}", file=sys.stderr)
    keeps_running = started and sys.stdout.isatty()
    until = " (Ctrl-C ends the server)" if keeps_running else ", while `make dev` runs" if started else ""
    has = "has" if outcome.series_and_top else "will soon have"
    print(f"\nThe console {has} the log's hours{until}: http://localhost:{port}/console#/top/visits", flush=True)
    if keeps_running:
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    # SIGTERM acts like Ctrl-C, so that the demo stops what it started: asyncio alone handles only SIGINT.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    sys.exit(main())
