"""Asks a running `make dev` for drift, again and again, while the demo replays its log.

`GET /drift` lists the minutes that Tally has judged: the sweep judges a minute once both consumers have provably
passed it, some minutes later. A shorter run sees only the minutes before it. `judged_at_s` says when that is.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from .visitors import Drifting, Server

ASK_EVERY_S = 1.0
SWEEP_S_MAX = 10.0  # one sweep and its wait for a process, on a busy machine
JUDGED_AFTER = 8  # minutes after its own end, if no consumer is behind: an edit takes 6.5 in the median, 7.5 at most


@dataclass
class DriftWatch:
    """The number of questions, and the drift that began during the run."""

    before: frozenset[Drifting] = frozenset()
    """The drift before the run: not the demo's."""
    asked: int = 0
    found: dict[tuple[str, str], int] = field(default_factory=dict)
    """(counter, id) to its largest drift."""
    settled: bool = False
    """Whether Tally had judged the minutes of the run before the last question."""

    async def ask(self, server: Server) -> None:
        """Ask once. Raises LocalError."""
        now = await server.drift()
        self.asked += 1
        for row in sorted(now - self.before):
            key = row.counter, row.id
            self.found[key] = max(self.found.get(key, 0), row.drift, key=abs)


@contextlib.asynccontextmanager
async def watching(server: Server) -> AsyncIterator[DriftWatch]:
    """Ask before the block, while it runs, and after it. Raises LocalError."""
    watch = DriftWatch(await server.drift())

    async def ask_on() -> None:
        while True:
            await watch.ask(server)
            await asyncio.sleep(ASK_EVERY_S)

    asking = asyncio.ensure_future(ask_on())
    try:
        yield watch
    finally:
        if not asking.done():
            asking.cancel()
        ended = (await asyncio.gather(asking, return_exceptions=True))[0]
    if isinstance(ended, Exception):  # and not the cancellation
        raise ended
    await watch.ask(server)


def judged_at_s(now_s: float, minute_s: int) -> float:
    """When a sweep has judged the minute of `now_s`. `minute_s`: the length of a minute of the ledger."""
    return math.floor(now_s / minute_s + 1 + JUDGED_AFTER) * minute_s + SWEEP_S_MAX


async def wait_until_judged(watch: DriftWatch, minute_s: int) -> None:
    """Wait until Tally has judged every minute up to now."""
    await asyncio.sleep(judged_at_s(time.time(), minute_s) - time.time())
    watch.settled = True
