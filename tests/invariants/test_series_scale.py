"""Series and top lists of much traffic, through the deployed consumers: each adds up to the stored tally, to the unit.

SERIES_CHANGES=100000 pytest -s tests/invariants/test_series_scale.py      over 1,000 tallies
SERIES_DEATHS=0 …                                                           what it costs when no fold dies
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import uuid
from collections import Counter as Sums
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.watch import Meter
from dev.demo import weblog
from tally.dynamo.client import Call
from tally.series import hours, read, top
from tally.series.read import HOUR, Range
from tally.shipped import VISITS
from tally.streams import fold
from tests.contexts import Context
from tests.invariants.processes import Crash, killed
from tests.invariants.stream_records import SHARD, record
from tests.invariants.streaming import CONSUMERS, StreamWorld

CHANGES = int(os.environ.get("SERIES_CHANGES", "2000"))
DEATHS = float(os.environ.get("SERIES_DEATHS", "0.2"))  # the share of folds that die at one of their writes
TALLIES = max(20, CHANGES // 100)
LOG = next((Path(__file__).parents[2] / "bench/data").glob("*.log.gz"))
START_S, MINUTES = 1_800_000_000, 180
FOREVER = float("inf")


@pytest.fixture(scope="session")
def streamed() -> tuple[str, ...]:
    """The engine is slow to write a table with a long stream; here the records are made up."""
    return ()


@pytest.fixture(autouse=True)
def _few_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a minute: each is read once. test_segments reads all that there are."""
    monkeypatch.setattr(fold, "BUCKETS", 2)


class Visit(NamedTuple):
    """A visit of a page, when it was stamped and when its record was made."""

    at_s: int
    made_s: int
    page: str


class Happening:
    """Visits that happen in virtual time, and processes that die or are invoked again with what they had."""

    def __init__(self, stream: StreamWorld, seed: int) -> None:
        self.stream, self.store, self.chance = stream, stream.store, random.Random(seed)
        self.truth = defaultdict[int, Sums[str]](Sums)
        """Visits by hour since 1970, and page."""
        self.records: list[dict[str, Any]] = []
        self.folded_units = self.died_units = 0.0

    def visits(self, visits: Iterable[Visit]) -> None:
        """Let these happen, minute by minute, and fold them."""
        by_minute = defaultdict[int, list[Visit]](list)
        for visit in visits:
            by_minute[visit.made_s // 60].append(visit)
            self.truth[visit.at_s // 3600][visit.page] += 1
        first, last = min(by_minute), max(by_minute)
        self.fold(first - 60)
        for minute in range(first, last + 1):
            passed = len(self.records)
            self.records += [self._record(number, visit) for number, visit in enumerate(by_minute[minute], passed + 1)]
            for consumer in ("rollup", "bookkeeper"):
                self._deliver(consumer, passed)
            self.fold(minute - 3)
        for minute in range(last - 2, last - last % 60 + 60):
            self.fold(minute)

    def _record(self, number: int, visit: Visit) -> dict[str, Any]:
        image = {
            "id": {"S": f"tally#{number}"}, "counter": {"S": "visits"}, "target": {"S": visit.page},
            "amount": {"N": "1"}, "at": {"N": str(visit.at_s // 60)}, "rollup": {"BOOL": True},
        }  # fmt: skip
        return record(number, "INSERT", {"Keys": {"id": image["id"]}, "NewImage": image}, visit.made_s)

    def _deliver(self, name: str, passed: int) -> None:
        """The records behind `passed`, in batches. An invocation in five dies, and one brings old records again."""
        for start in range(passed, len(self.records), 1000):
            batch = self.records[max(0, start - self.chance.choice((0, 0, 0, 0, 50))) : start + 1000]
            event = self.stream.event("receipts", SHARD, batch)
            if self.chance.random() < 0.2:
                dying = killed(self.store.client, self.chance.randrange(4), committed=self.chance.random() < 0.5)
                with contextlib.suppress(Crash):
                    self.stream.handler(CONSUMERS[name], self.stream.through(dying))(event, Context(60_000))
            answer = self.stream.handler(CONSUMERS[name])(event, Context(60_000))
            assert answer["batchItemFailures"] == []

    def fold(self, judged: int) -> None:
        """As the sweep does. Some die at one of their writes; the next one goes on."""
        meter = Meter(self.store.client)
        if self.chance.random() < DEATHS:
            at = self.chance.choice((0, 1, self.chance.randrange(2 * TALLIES)))
            dying = killed(self.store.client, at, committed=self.chance.random() < 0.5)
            with contextlib.suppress(Crash):
                hours.sum_up(replace(self.store, client=dying), judged, until_s=FOREVER)  # type: ignore[arg-type]
        died = meter.write_units
        hours.sum_up(self.store, judged, until_s=FOREVER)
        meter.close()
        self.died_units += died
        self.folded_units += meter.write_units - died

    def series(self, page: str) -> dict[int, int]:
        """By hour since 1970."""
        asked = Range(HOUR, min(self.truth) - 1, max(self.truth) + 2)
        told = read.read(Call(self.store), VISITS, page, asked)
        return {point["from"] // 3600: point["value"] for point in told["series"] if point["value"]}

    def check_series(self, pages: Iterable[str]) -> None:
        """Each series has each hour, and adds up to the stored tally."""
        stored = self.stream.tallies()
        for page in pages:
            assert self.series(page) == {hour: moved[page] for hour, moved in self.truth.items() if moved[page]}
            assert sum(self.series(page).values()) == stored["visits", page]
        assert self.series(hours.TOTAL) == {hour: moved.total() for hour, moved in self.truth.items()}

    def check_top(self) -> None:
        """Each list is a recount: exact for an hour, within its error for a day."""
        for hour, moved in self.truth.items():
            self._check_top("hour", top.span_of(hour), moved)
        for day in {top.span_of(hour)[:10] for hour in self.truth}:
            of_day = (moved for hour, moved in self.truth.items() if top.span_of(hour).startswith(day))
            self._check_top("day", day, sum(of_day, Sums[str]()))

    def _check_top(self, by: str, span: str, moved: Sums[str]) -> None:
        told = top.over(Call(self.store), VISITS, by, span, 100)
        assert by == "day" or told["error_max"] == 0
        for (_, value), one in zip(moved.most_common(100), told["top"], strict=True):
            assert abs(one["value"] - moved[one["id"]]) <= told["error_max"]
            assert abs(one["value"] - value) <= told["error_max"]


def made_up(chance: random.Random) -> Iterator[Visit]:
    """Visits of pages whose ids are UUIDs, some much busier than others, up to a minute older than their records."""
    pages = [str(uuid.UUID(int=chance.getrandbits(128))) for _ in range(TALLIES)]
    weights = [1 + 20 / (place + 1) for place in range(TALLIES)]
    made_s = sorted(START_S + chance.randrange(60 * MINUTES) for _ in range(CHANGES))
    for at_s, page in zip(made_s, chance.choices(pages, weights, k=CHANGES), strict=True):
        yield Visit(max(START_S, at_s - chance.randrange(60)), at_s, page)


def test_each_series_adds_up_to_its_tally_whoever_dies(stream: StreamWorld) -> None:
    """Three hours in which consumers and folds are killed at their writes and given old records again."""
    happening = Happening(stream, 1)
    happening.visits(made_up(random.Random(1)))
    happening.check_series({page for moved in happening.truth.values() for page in moved})
    happening.check_top()
    moved = sum(len(pages) for pages in happening.truth.values())
    folded, died = happening.folded_units / moved, happening.died_units / moved
    print(f"{CHANGES} changes, {moved} tallies and hours: {folded:.3f} WCU each, and {died:.3f} of folds that died")
    assert folded <= 1.1 + 70 / moved  # notes, lists and the total, which few tallies share


def logged() -> Iterator[Visit]:
    """The visits of the web server's log, at the times that it has."""
    lines = weblog.gzip.decompress(LOG.read_bytes()).splitlines()
    for visit in weblog.read_log(LOG).visits:
        found = re.search(r"\[(.+?)\]", lines[visit.line - 1].decode())
        assert found
        at_s = int(datetime.strptime(found[1], "%d/%b/%Y:%H:%M:%S %z").timestamp())
        yield Visit(at_s, at_s, visit.page)


def test_top_lists_of_a_web_servers_log_are_a_recount_of_it(stream: StreamWorld) -> None:
    happening = Happening(stream, 2)
    happening.visits(logged())
    recount = weblog.read_log(LOG).recount()
    assert sum((moved for moved in happening.truth.values()), Sums[str]()) == recount
    happening.check_top()
    happening.check_series(page for page, _ in recount.most_common(10))
