"""Sends the visits of a log to a server and compares the server's counts with the log."""

from __future__ import annotations

import asyncio
import re
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tqdm import tqdm  # type: ignore[import-untyped]

from . import hours
from .drift_watch import DriftWatch, watching
from .hours import Compared
from .visitors import Sent, Server, counts, send
from .weblog import Weblog

SETTLE_S_MAX = 5.0  # a rolled-up visit shows within seconds
SETTLE_LOOK_S = 0.1
NAME_CHARACTERS_MAX = 100  # of the log's name in keys: Tally allows 255 in all
_BAR = "{l_bar}{bar}| {elapsed}"
_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True)
class Outcome:
    """The log's own count and Tally's, by page, and the requests between them."""

    log: Weblog
    expected: Counter[str]
    counted: dict[str, int]
    sent: Sent
    took_s: float
    settled_s: float | None
    """Seconds until the counts were right; None if SETTLE_S_MAX was not enough."""
    drift: DriftWatch
    hours: Compared | None
    """Series and top list of the most visited pages; None if nobody waited for them."""

    @property
    def right(self) -> bool:
        """Whether every page has its count in time, nothing drifted, and series and top list have the log's counts."""
        told = self.hours is None or (self.hours.took_s is not None and not self.hours.differing)
        return told and not self.differing and self.settled_s is not None and not self.drift.found

    @property
    def differing(self) -> list[str]:
        """The pages whose count differs from the log."""
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
    """The URL and the key of each visit. A key has the log's name, the run and the line: more than 22 characters."""
    name = _NOT_IN_KEYS.sub("-", log.name)[:NAME_CHARACTERS_MAX]
    for visit in log.visits:
        yield visit.url, f"{name}.{run}.{visit.line:06d}"


async def replay(log: Weblog, port: int, concurrency: int, *, quick: bool = False) -> Outcome:
    """Read the counts, send the visits, read the counts again. Ask for drift all the time. Raises LocalError.

    Then wait until Tally has judged the minutes of the run and folded them into hours, unless it is to be `quick`.
    """
    expected = log.recount()
    run = secrets.token_hex(8)  # new keys: a second run counts again
    steps = 2 * len(expected) + len(log.visits)
    async with Server(port) as server, watching(server) as watch:
        with tqdm(
            desc="reading the counts", total=steps, file=sys.stderr, disable=None, leave=False, bar_format=_BAR
        ) as bar:
            before, began_s = await counts(server, expected, concurrency, bar.update), time.time()
            most = dict(expected.most_common(hours.PAGES))
            was = None if quick else await hours.before(server, {page: before[page] for page in most}, began_s)
            bar.set_description("visiting")
            started_s = time.monotonic()
            await send(server, keyed(log, run), concurrency, bar.update)
            took_s = time.monotonic() - started_s
            bar.set_description("reading them again")
            due = {page: before[page] + number for page, number in expected.items()}
            settled_s = await settle(server, due, concurrency)
            after = await counts(server, expected, concurrency, bar.update)
            compared = None
            if was is not None:
                bar.set_description("waiting until its minutes are judged and in the hours")
                compared = await hours.compare(server, was, most, began_s)
                watch.settled = compared.took_s is not None
                after = await counts(server, expected, concurrency, lambda _: None)
    counted = {page: after[page] - before[page] for page in expected}
    return Outcome(log, expected, counted, server.sent, took_s, settled_s, watch, compared)


async def settle(server: Server, due: Mapping[str, int], concurrency: int) -> float | None:
    """Wait until the counts reach `due`. Returns the seconds it took, or None after SETTLE_S_MAX.

    Visits are rolled up: Tally has counted them when it answers, and shows them within seconds.
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
