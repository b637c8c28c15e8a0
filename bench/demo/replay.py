"""Sends the visits of a log to a server, and compares the server's counts with the visits in the log."""

from __future__ import annotations

import asyncio
import re
import secrets
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from tqdm import tqdm  # type: ignore[import-untyped]

from .visitors import DriftingTally, RequestsSent, Server, read_counts, send
from .weblog import Weblog

COUNTS_S_MAX = 60.0  # reads show a visit within seconds, or later if the machine is busy
COUNTS_POLL_S = 0.1
PAGES = 10  # the most visited pages, whose series and values in the top list are compared
SERIES_POLL_S = 1.0
SERIES_WAIT_MINUTES_MAX = 90  # minutes of the ledger. If no consumer lags, 29 are enough: 9 to judge, 20 to sum up
NAME_CHARACTERS_MAX = 100  # of the log's name in a key; Tally allows keys of 255 characters
_BAR = "{l_bar}{bar}| {elapsed}"
_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9]+")


class SeriesAndTop(NamedTuple):
    """The visits of each page: in its series of the last month, and in the top lists of the run's months."""

    series: Mapping[str, int]
    top: Mapping[str, int]
    as_of_s: float
    """Series and top lists have every visit that was counted before this time, in epoch seconds. 0: they have none."""


@dataclass(frozen=True)
class Comparison:
    """Visits by page: in the log, and added to series and top list during the run."""

    log: Mapping[str, int]
    series: Mapping[str, int]
    top: Mapping[str, int]
    took_s: float | None
    """Seconds from the last visit until series and top list had the whole run. None: longer than the demo waits."""

    @property
    def differing_pages(self) -> list[str]:
        """The pages whose series or top list differs from the log."""
        return [page for page, number in self.log.items() if not number == self.series[page] == self.top[page]]


@dataclass(frozen=True)
class ReplayOutcome:
    """The visits of each page in the log (`expected`) and by Tally (`counted`), and the number of requests."""

    log: Weblog
    expected: Counter[str]
    counted: dict[str, int]
    sent: RequestsSent
    took_s: float
    """Seconds from the first visit to the last answer."""
    counts_right_after_s: float | None
    """Seconds from the last visit until every page had its count. None: more than COUNTS_S_MAX."""
    drifts: list[DriftingTally]
    """The tallies that drift after the run, and did not drift before."""
    series_and_top: Comparison | None
    """Series and top list of the most visited pages; None if the demo did not wait for them (`--quick`)."""

    @property
    def is_right(self) -> bool:
        """Whether every page has the log's count in time, no tally drifts, and series and top list equal the log."""
        compared = self.series_and_top
        series_agree = compared is None or (compared.took_s is not None and not compared.differing_pages)
        return series_agree and not self.differing_pages and self.counts_right_after_s is not None and not self.drifts

    @property
    def differing_pages(self) -> list[str]:
        """The pages whose count differs from the log."""
        return [page for page, number in self.expected.items() if self.counted[page] != number]

    @property
    def lost_and_doubled(self) -> tuple[int, int]:
        """How many visits Tally did not count, and how many it counted more than once."""
        amounts = [self.counted[page] - number for page, number in self.expected.items()]
        return sum(-amount for amount in amounts if amount < 0), sum(amount for amount in amounts if amount > 0)


def visits_with_keys(log: Weblog, run: str) -> Iterator[tuple[str, str]]:
    """Returns the URL and the key of each visit. Tally asks strangers for keys of 22 characters or more."""
    name = _NOT_IN_KEYS.sub("-", log.name)[:NAME_CHARACTERS_MAX]
    for visit in log.visits:
        yield visit.url, f"{name}.{run}.{visit.line:06d}"


async def replay(log: Weblog, port: int, concurrency: int, *, quick: bool = False) -> ReplayOutcome:
    """Reads the counts, sends the visits, and reads the counts and the drift after the visits. Raises LocalError.

    Unless `quick`, waits until Tally has judged the minutes of the run and summed them up in series and top lists.
    """
    expected = log.page_visits()
    run = secrets.token_hex(8)  # a part of each key, so that Tally counts the visits of a second run, too
    steps = 2 * len(expected) + len(log.visits)
    bar = tqdm(desc="reading the counts", total=steps, file=sys.stderr, disable=None, leave=False, bar_format=_BAR)
    async with Server(port) as server:
        with bar:
            drifted_before = await server.read_drift()
            counts_before, began_s = await read_counts(server, expected, concurrency, bar.update), time.time()
            top_pages = dict(expected.most_common(PAGES))
            top_before = {page: counts_before[page] for page in top_pages}
            series_before = None if quick else await _read_series_and_top(server, top_pages, began_s)
            if series_before and series_before.series != top_before:  # visits of an earlier run are not summed up
                series_before = await _wait_for_series(server, top_pages, began_s, until_s=began_s)
            bar.set_description("visiting")
            started_s = time.monotonic()
            await send(server, visits_with_keys(log, run), concurrency, bar.update)
            took_s = time.monotonic() - started_s
            bar.set_description("reading the counts again")
            expected_counts = {page: counts_before[page] + number for page, number in expected.items()}
            right_after_s = await _wait_for_counts(server, expected_counts, concurrency)
            counts_after = await read_counts(server, expected, concurrency, bar.update)
            compared = None
            if series_before:
                bar.set_description("waiting until the run's minutes are judged and summed up")
                compared = await _compare(server, series_before, top_pages, began_s)
                counts_after = await read_counts(server, expected, concurrency, lambda _: None)
            drifts = sorted(await server.read_drift() - drifted_before)
    counted = {page: counts_after[page] - counts_before[page] for page in expected}
    return ReplayOutcome(
        log, expected, counted, server.sent, took_s,
        counts_right_after_s=right_after_s, drifts=drifts, series_and_top=compared,
    )  # fmt: skip


async def _wait_for_counts(server: Server, expected_counts: Mapping[str, int], concurrency: int) -> float | None:
    """Wait until the counts reach `expected_counts`. Returns the seconds it took, or None after COUNTS_S_MAX."""
    started_s, missing = time.monotonic(), dict(expected_counts)
    while missing:
        counted = await read_counts(server, missing, concurrency, lambda _: None)
        missing = {page: number for page, number in missing.items() if counted[page] < number}
        if missing and time.monotonic() - started_s > COUNTS_S_MAX:
            return None
        if missing:
            await asyncio.sleep(COUNTS_POLL_S)
    took_s = time.monotonic() - started_s
    return took_s if took_s <= COUNTS_S_MAX else None  # the last read may have ended after COUNTS_S_MAX


async def _read_series_and_top(server: Server, pages: Collection[str], began_s: float) -> SeriesAndTop:
    """Reads series and top lists of these pages. A run that began last month needs the top lists of both months."""
    months = sorted({datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m") for at_s in (began_s, time.time())})
    lists = [await server.read_top(month) for month in months]
    series = {page: await server.read_series(page) for page in pages}
    ends = [as_of_s for _, as_of_s in (*lists, *series.values())]
    top = {page: sum(listed.get(page, 0) for listed, _ in lists) for page in pages}
    return SeriesAndTop({page: number for page, (number, _) in series.items()}, top, min(ends))


async def _wait_for_series(server: Server, pages: Collection[str], began_s: float, until_s: float) -> SeriesAndTop:
    """Waits until series and top lists have every visit before `until_s`, for at most SERIES_WAIT_MINUTES_MAX."""
    deadline_s = time.monotonic() + SERIES_WAIT_MINUTES_MAX * await server.read_minute_s()
    found = await _read_series_and_top(server, pages, began_s)
    while found.as_of_s < until_s and time.monotonic() < deadline_s:
        await asyncio.sleep(SERIES_POLL_S)
        found = await _read_series_and_top(server, pages, began_s)
    return found


async def _compare(server: Server, before: SeriesAndTop, log: Mapping[str, int], began_s: float) -> Comparison:
    """Waits until series and top lists have every visit, and compares. `before`: what both had before the run."""
    ended_s = time.time()
    after = await _wait_for_series(server, log, began_s, until_s=ended_s)
    return Comparison(
        log,
        series={page: after.series[page] - before.series[page] for page in log},
        top={page: after.top[page] - before.top[page] for page in log},
        took_s=time.time() - ended_s if after.as_of_s >= ended_s else None,
    )
