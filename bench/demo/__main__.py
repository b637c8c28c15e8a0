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
from .replay import SETTLE_S_MAX, ReplayOutcome, replay
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
        " starts one. It sends some visits twice and loses the answers of others, then counts the log itself. Every"
        f" page must have the same number within {SETTLE_S_MAX:.0f} s, nothing may drift, and series and top list must"
        " have the log's numbers; else it exits with 1. In a terminal a server that it started runs until Ctrl-C.",
    )
    parser.add_argument("--port", type=int, default=PORT_DEFAULT, help=f"port of the server (default: {PORT_DEFAULT})")
    parser.add_argument(
        "--log", type=Path, default=LOG, help="a log in common log format, gzipped or not (default: NASA's)"
    )
    parser.add_argument(
        "--concurrency", type=int, default=CONCURRENCY_DEFAULT, help="number of visitors at a time (default: 8)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="do not wait until Tally has judged the minutes of the run and folded them into hours: a minute or so,"
        " more on a server with a longer TALLY_MINUTE_S",
    )
    arguments = parser.parse_args(argv)
    if not 1 <= arguments.port <= 65535:
        parser.error("--port must be from 1 to 65535")
    if not 1 <= arguments.concurrency <= CONCURRENCY_MAX:
        parser.error(f"--concurrency must be from 1 to {CONCURRENCY_MAX}")
    return arguments


@contextlib.contextmanager
def serve_tally(port: int) -> Iterator[bool]:
    """Runs a Tally server on this port. Yields True if it starts one, with a temporary data folder."""

    async def is_there() -> bool:
        async with Server(port) as server:
            return await server.is_there()

    if asyncio.run(is_there()):
        yield False
        return
    print(f"tally: nothing runs on port {port}: starting `make dev` there for the demo", file=sys.stderr)
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
            _say(outcome, arguments.port, started)
    except LocalError as error:
        print(f"tally: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tally: demo stopped; Tally keeps the visits it has counted", file=sys.stderr)
        return 130
    return 0 if outcome.right else 1


def _say(outcome: ReplayOutcome, port: int, started: bool) -> None:
    """Print the outcome, and where the console shows it. In a terminal, a server that was `started` then runs on."""
    print(*report(outcome), sep="\n")
    for complaint in complaints(outcome):
        print(f"tally: {complaint}", file=sys.stderr)
    stays = started and sys.stdout.isatty()
    how = " (Ctrl-C ends it)" if stays else ", while `make dev` runs" if started else ""
    has = "has" if outcome.hours else "will soon have"
    print(f"\nThe console {has} the log's hours{how}: http://localhost:{port}/console#/top/visits", flush=True)
    if stays:
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    # SIGTERM acts like Ctrl-C, so that the demo stops what it started: asyncio handles only SIGINT by itself.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    sys.exit(main())
