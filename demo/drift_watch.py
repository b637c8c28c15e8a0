"""Asks a running `make dev` what drifts, again and again, while the demo replays its log.

`GET /drift` lists what was judged by then: the sweep judges a minute when it has rested for the settle time. What a run
shorter than that sees is the minutes before it; `judged_at_s` says when its own are judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from local.server import SCHEDULE_S_MAX

from .visitors import Drifting, Server

ASK_EVERY_S = 1.0
SWEEP_S_MAX = 10.0  # of one, and of what waits before it, on a busy machine
MINUTE_S = 60


@dataclass
class DriftWatch:
    """How often it was asked, and what drifts that did not do so before."""

    before: frozenset[Drifting] = frozenset()
    """What drifted when the demo began is none of its doing."""
    asked: int = 0
    found: dict[tuple[str, str], int] = field(default_factory=dict)
    """(counter, id) to the largest drift that was seen of it."""
    settled: bool = False
    """Whether the minutes of the run were judged too before it was asked for the last time."""

    async def ask(self, server: Server) -> None:
        """Once. Raises LocalError."""
        now = await server.drift()
        self.asked += 1
        for counter, target, drift in sorted(now - self.before):
            key = counter, target
            self.found[key] = max(self.found.get(key, 0), drift, key=abs)


@contextlib.asynccontextmanager
async def watching(server: Server) -> AsyncIterator[DriftWatch]:
    """Asked before, all the while, and at the end. Raises LocalError."""
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
    if isinstance(ended, Exception):  # not that it was cancelled
        raise ended
    await watch.ask(server)


def judged_at_s(now_s: float, settle_s: int) -> float:
    """When a sweep has judged the minute of `now_s`: its end, the settle time, the next sweep."""
    return math.floor(now_s / MINUTE_S + 1) * MINUTE_S + settle_s + SCHEDULE_S_MAX + SWEEP_S_MAX


async def until_judged(watch: DriftWatch, settle_s: int) -> None:
    """Wait until what was booked up to now is judged; the last question comes after it."""
    await asyncio.sleep(judged_at_s(time.time(), settle_s) - time.time())
    watch.settled = True
