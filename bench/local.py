"""The time from a visit on the local stack until reads show the visit."""

from __future__ import annotations

import asyncio
import statistics
import time

from bench.demo.visitors import Server
from bench.running import bare_environment, run_dev
from tally.dev.base.errors import LocalError

from . import ROOT

VISITS = 30
SHOWN_S_MAX = 120.0  # after this time without the visit, the measurement fails
POLL_S = 0.02
VISIT_SHOWN = "a visit, from its answer to the count"


def measure(_: bool) -> dict[str, dict[str, float]]:
    """Sends visits one after the other. Returns the seconds until reads show a visit."""
    with run_dev(ROOT, bare_environment()) as dev:
        shown_s = asyncio.run(_all_shown_s(dev.port))
    return {VISIT_SHOWN: {"s, median": statistics.median(shown_s), "s, longest": max(shown_s)}}


async def _all_shown_s(port: int) -> list[float]:
    async with Server(port) as server:
        await _shown_s(server, "warm-up")  # the first visit waits for the consumers' processes
        return [await _shown_s(server, f"page-{number}") for number in range(VISITS)]


async def _shown_s(server: Server, name: str) -> float:
    """Returns the seconds from a visit's answer to the read that shows the visit."""
    page = f"https://example.com/{name}"
    await server.visit(page, f"bench-0123456789-{name}")  # a stranger's key has at least 22 characters
    started_s = time.monotonic()
    while await server.read_visits(page) != 1:
        if time.monotonic() - started_s > SHOWN_S_MAX:
            raise LocalError(f"a visit was not rolled up within {SHOWN_S_MAX:.0f} s")
        await asyncio.sleep(POLL_S)
    return time.monotonic() - started_s
