"""Compares Tally's series and top list with the log's own count, for the most visited pages.

Both say until when they are complete (`as_of`): Tally folds the minutes that it has judged, twenty at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from .visitors import Server

PAGES = 10
LOOK_S = 1.0
FOLDED_MINUTES_MAX = 90  # of the ledger: 29 if no consumer is behind, nine to judge and twenty to fold


@dataclass(frozen=True)
class Hours:
    """The visits of each page by the hours of its series, and by the top lists of their months."""

    series: Mapping[str, int]
    top: Mapping[str, int]
    as_of_s: float
    """Epoch seconds: both have every visit that was counted before. 0: Tally has folded nothing yet."""


@dataclass(frozen=True)
class Compared:
    """Visits by page: of the log, and what series and top list gained in the run."""

    log: Mapping[str, int]
    series: Mapping[str, int]
    top: Mapping[str, int]
    took_s: float | None
    """How long after the last visit they had the run; None if they had it not in time."""

    @property
    def differing(self) -> list[str]:
        """The pages whose series or top list differs from the log."""
        return [page for page, number in self.log.items() if not number == self.series[page] == self.top[page]]


async def read(server: Server, pages: Collection[str], since_s: float) -> Hours:
    """What Tally has of these pages. `since_s`: the month in which the run began."""
    months = sorted({datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m") for at_s in (since_s, time.time())})
    top, ends = Counter[str](), list[float]()
    for month in months:
        listed, as_of_s = await server.top(month)
        top.update(listed)
        ends.append(as_of_s)
    series = {}
    for page in pages:
        series[page], as_of_s = await server.series(page)
        ends.append(as_of_s)
    return Hours(series, {page: top[page] for page in pages}, min(ends))


async def until(server: Server, pages: Collection[str], since_s: float, at_s: float) -> Hours:
    """What Tally has once it has folded `at_s`, or what it has after FOLDED_MINUTES_MAX."""
    deadline_s = time.monotonic() + FOLDED_MINUTES_MAX * await server.minute_s()
    while True:
        found = await read(server, pages, since_s)
        if found.as_of_s >= at_s or time.monotonic() >= deadline_s:
            return found
        await asyncio.sleep(LOOK_S)


async def before(server: Server, visits: Mapping[str, int], now_s: float) -> Hours:
    """What Tally has before the run, once it has folded all visits (`visits`: their number by page)."""
    found = await read(server, visits, now_s)
    return found if found.series == visits else await until(server, visits, now_s, now_s)


async def compare(server: Server, was: Hours, log: Mapping[str, int], since_s: float) -> Compared:
    """Wait until Tally has folded every visit up to now, and compare. `was`: what it had before the run."""
    ended_s = time.time()
    now = await until(server, log, since_s, ended_s)
    return Compared(
        log,
        {page: now.series[page] - was.series[page] for page in log},
        {page: now.top[page] - was.top[page] for page in log},
        time.time() - ended_s if now.as_of_s >= ended_s else None,
    )
