"""Asks a running `make dev` for drift, again and again, while the demo replays its log.

`GET /drift` lists the minutes that Tally has judged: the sweep judges a minute once both consumers have provably
passed it, some minutes later. A shorter run sees only the minutes before it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from .visitors import Drifting, Server

ASK_EVERY_S = 1.0


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
