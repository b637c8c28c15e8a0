"""The rules by which a scan counts beside the stream, in a model: every interleaving that chance finds.

What the code decides is asked of the code: what a record moves (`ItemsRun`, `_with_scan`, `first_seen.apply_record`),
and which scan counts. The model has the rest: items of few states, so that one often comes back to a state that it had;
shards that split; batches that come twice and overlap; invocations, scans and settlements that die or sleep between two
requests. Each rule taken away makes a number that is shown a wrong one.
"""

from __future__ import annotations

import random
from collections import Counter as Multiset
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest

from tally.counter import Counter
from tally.items import Contribution, Items
from tally.streams.fold import BatchContext
from tally.team import consumer, first_seen
from tally.team.consumer import ItemChange, ItemsRun
from tally.team.first_seen import LIVE_MARKER, Marker, moves_between
from tally.team.scan_state import Scan
from tests.tiers import in_long

COUNTER = Counter("n", prefix="N", sort_key="N", attribute="n", items=Items("t", amount="a"))
GROUPS, AMOUNTS, SLACK, OFF = "abc", (1, 5), 3.0, 1.0
PAGE = 3
SEEDS, SEEDS_LONG, WITHOUT = 150, 10_000, 3_000
RULES = (
    "the checkpoint is read first", "markers", "skip", "first in full", "the record's time", "zone", "a page is new",
    "a marker is as it was", "what was read", "pages before the end", "set while open", "set when passed", "set once",
)  # fmt: skip


@dataclass
class Shard:
    parent: Shard | None
    low: float
    high: float
    open: bool = True
    records: list[tuple[int, str, Contribution | None, Contribution | None, float]] = field(default_factory=list)
    at: int = 0
    checkpoint: int = -1
    through: float = -9.0


Process = Iterator[None]


class Model:
    """One table, its consumer and its scans. Each process is a generator: what is between two yields is one request."""

    def __init__(self, seed: int, without: str = "") -> None:
        self.chance, self.without, self.now, self.sequence = random.Random(seed), without, 10.0, 0
        self.keys = [f"k{n}" for n in range(self.chance.randint(3, 12))]
        self.place = {key: self.chance.random() for key in self.keys}
        self.items: dict[str, Contribution] = {key: value for key in self.keys if (value := self.value())}
        self.shards = [Shard(None, 0.0, 1.0)]
        self.scan, self.counted, self.marks = Scan("n"), False, dict[tuple[int, str], Marker]()
        self.number = Multiset({group: self.chance.choice((0, -3, 40)) for group in GROUPS})
        self.recounts: Multiset[tuple[int, str]] = Multiset()
        self.set_by: dict[str, int] = {}
        self.running: list[tuple[str, Process]] = []
        self.begins, self.alone = self.chance.choice((0.0005, 0.005)), self.chance.choice((0.2, 0.8))

    def has(self, rule: str) -> bool:
        return rule != self.without

    def value(self) -> Contribution | None:
        none = self.chance.random() < 0.3
        return None if none else Contribution(self.chance.choice(GROUPS), self.chance.choice(AMOUNTS))

    # ---- the team ----

    def write(self) -> None:
        key, new = self.chance.choice(self.keys), self.value()
        old = self.items.pop(key, None)
        if new:
            self.items[key] = new
        self.sequence += 1
        shard = next(one for one in self.shards if one.open and one.low <= self.place[key] < one.high)
        shard.records.append((self.sequence, key, old, new, self.now + self.chance.uniform(-OFF, OFF)))

    def split(self) -> None:
        shard = self.chance.choice([one for one in self.shards if one.open])
        shard.open, middle = False, self.chance.uniform(shard.low, shard.high)
        self.shards += [Shard(shard, shard.low, middle), Shard(shard, middle, shard.high)]

    # ---- the consumer ----

    def changes(self, record: Any, scan: Scan | None) -> ItemChange | None:
        _, key, old, new, made_s = record
        if old == new or (scan is None and not self.counted):
            return None
        change = ItemChange(COUNTER, 0, old, new)
        if scan is None:
            return change
        change = consumer._with_scan(change, scan, {"dynamodb": {"Keys": key}}, made_s, SLACK)
        if self.without == "markers":
            return change._replace(needs_marker=False, is_near_scan_end=False)
        if self.without == "the record's time":
            return change._replace(needs_marker=not scan.ended_s, is_near_scan_end=False)
        return change._replace(is_near_scan_end=False) if self.without == "zone" else change

    def consume(self, shard: Shard) -> Process:  # noqa: C901 (a consumer from its read to its commit)
        size, back = self.chance.randint(1, 6), self.chance.choice((0, 0, 0, 2, 50))
        batch = shard.records[max(0, shard.at - back) : shard.at + size]
        end = shard.at + len(shard.records[shard.at : shard.at + size])
        fate = self.chance.random()
        for _ in range(8):
            seen = shard.checkpoint
            if self.has("the checkpoint is read first"):
                yield
            scan = self.scan if self.scan.is_open_for(COUNTER) else None
            counts = self.counted
            yield
            known = {key: self.marks.get((scan.generation, key)) for _, key, *_ in batch} if scan else {}
            yield
            if not self.has("the checkpoint is read first"):
                seen = shard.checkpoint
            left = [record for record in batch if record[0] > seen]
            if not left:
                break
            run = ItemsRun("1", BatchContext("t", "s"))
            run.markers_before = {self.spelled(scan, key): marker for key, marker in known.items()} if scan else {}
            for record in left:
                change = self.changes(record, scan) if scan or counts else None
                if change:
                    run.add([change])
            yield
            if fate < 0.05:
                return
            now = {marker: one for marker, one in run.markers_after.items() if one != run.markers_before.get(marker)}
            if shard.checkpoint != seen or (self.has("a marker is as it was") and not self.as_known(run, now)):
                continue
            shard.checkpoint, shard.through = left[-1][0], left[-1][4]
            for spelled, marker in now.items():
                self.marks[self.places[spelled]] = marker
            for (_, group), effect in run.sums.items():
                self.number[group] += effect.expected
            for (_, group), (attribute, amount) in run.recounts.items():
                self.recounts[int(attribute.partition("#")[2]), group] += amount
            if fate < 0.10:
                return
            break
        else:
            return
        yield
        shard.at = max(shard.at, end)

    places: dict[str, tuple[int, str]] = {}  # noqa: RUF012 (names, the same in every model)

    def spelled(self, scan: Scan, key: str) -> str:
        """The marker's name as `_with_scan` spells it."""
        change, open_ = ItemChange(COUNTER, 0, None, Contribution("a", 1)), scan._replace(ended_s=0, groups=())
        name = consumer._with_scan(change, open_, {"dynamodb": {"Keys": key}}, 0.0, SLACK).marker
        self.places[name] = scan.generation, key
        return name

    def as_known(self, run: ItemsRun, now: dict[str, Marker]) -> bool:
        late = now.keys() - {name for name in now if name in run.markers_before}
        return all(self.marks.get(self.places[name]) == run.markers_before[name] for name in now if name not in late)

    def poll(self) -> None:
        busy = Multiset(name for name, _ in self.running)
        for number in self.chance.sample(range(len(self.shards)), len(self.shards)):
            shard, most = self.shards[number], 1 if self.chance.random() < self.alone else 3
            before = shard.parent is None or self.finished(shard.parent)
            if before and shard.at < len(shard.records) and busy[f"shard{number}"] < most:
                self.running.append((f"shard{number}", self.consume(shard)))
                return

    def finished(self, shard: Shard) -> bool:
        done = not shard.open and shard.at >= len(shard.records)
        return done and (shard.parent is None or self.finished(shard.parent))

    def passed(self) -> float:
        """Until when the consumer has passed every leaf, with those that it follows."""
        found = self.now - OFF
        for leaf in self.shards:
            if any(one.parent is leaf for one in self.shards):
                continue
            line, at = [leaf], leaf.parent
            while at:
                line.append(at)
                at = at.parent
            if any(one.records and one.records[-1][0] > one.checkpoint for one in line):
                found = min(found, max(one.through for one in line))
        return found

    # ---- scans ----

    def begin(self) -> None:
        groups = self.chance.choice(((), (), ("a",), ("b", "c")))
        self.scan = Scan("n", self.scan.generation + 1, COUNTER.items_digest, groups, int(self.now), closed=False)

    def still(self, scan: Scan) -> bool:
        ended = self.scan.ended_s and self.has("pages before the end")
        return self.scan.generation == scan.generation and not ended and not self.scan.closed

    def read(self) -> Process:
        scan, fate = self.scan, self.chance.random()
        for first in range(0, len(self.keys), PAGE):
            page = []
            for key in self.keys[first : first + PAGE]:  # a strongly consistent read, at its own time
                if (value := self.items.get(key)) and scan.covers(COUNTER, value.group):
                    page.append((key, value))
                yield
            for _ in range(self.chance.choice((0, 0, 1, 5, 40))):
                yield
            if fate < 0.2 and self.chance.random() < 0.3:
                return
            while page:
                free = [one for one in page if (scan.generation, one[0]) not in self.marks or not self.has("markers")]
                page = free if self.has("a page is new") else page
                yield
                fresh = all((scan.generation, key) not in self.marks for key, _ in page)
                if not fresh and self.has("a page is new") and self.has("markers"):
                    continue
                if not self.still(scan):
                    return
                for key, value in page:
                    self.marks[scan.generation, key] = value if self.has("what was read") else LIVE_MARKER
                    self.recounts[scan.generation, value.group] += value.amount
                break
        if self.still(scan) and not self.scan.ended_s:
            self.scan = self.scan._replace(ended_s=self.now)  # type: ignore[arg-type]

    def settle(self) -> Process:
        scan = self.scan
        passed = self.passed() >= scan.ended_s + SLACK or not self.has("set when passed")
        if scan.closed or not scan.ended_s or not passed:
            return
        for group in scan.groups or GROUPS:
            for _ in range(self.chance.choice((1, 1, 5, 20))):
                yield
            off = self.number[group] - self.recounts[scan.generation, group]
            was = self.set_by.get(group, 0)
            yield
            is_open = self.scan.generation == scan.generation and not self.scan.closed
            if not is_open and self.has("set while open"):
                return
            once = self.set_by.get(group, 0) < scan.generation and was < scan.generation
            if once or not self.has("set once"):
                self.set_by[group] = scan.generation
                self.number[group] -= off
        yield
        if self.scan.generation == scan.generation and not self.scan.closed:
            self.scan = self.scan._replace(closed=True)
            self.counted = self.counted or not scan.groups

    # ---- everything ----

    def turn(self) -> None:
        self.now += self.chance.uniform(0, 0.1)
        what = self.chance.random()
        if what < 0.28:
            self.write()
        elif what < 0.30 and len(self.shards) < 9:
            self.split()
        elif what < 0.42:
            self.poll()
        elif what < 0.42 + (0.04 if self.scan.closed else self.begins):
            self.begin()
        elif what < 0.5 and not self.scan.closed and sum(name == "scan" for name, _ in self.running) < 2:
            self.running.append(("scan", self.read() if not self.scan.ended_s else self.settle()))
        else:
            for _ in range(self.chance.randint(1, 6)):
                self.advance()

    def advance(self) -> None:
        if self.running:
            name, process = self.running.pop(self.chance.randrange(len(self.running)))
            if next(process, self) is None:
                self.running.append((name, process))

    def rest(self) -> None:
        """Everything that runs ends, and all is consumed."""
        while self.running or any(shard.at < len(shard.records) for shard in self.shards):
            if self.running:
                self.advance()
            else:
                self.poll()

    def wrong(self) -> bool:
        """Whether a number is shown that is wrong, at the end of some hours."""
        for turn in range(self.chance.randint(200, 1200)):
            self.turn()
            if turn % 25 == 0 and self.is_off():
                return True
        self.rest()
        return self.is_off()

    def is_off(self) -> bool:
        """Whether a number that is shown is wrong by more than what is under way."""
        found: Multiset[str] = Multiset()
        for value in self.items.values():
            found[value.group] += value.amount
        for shard in self.shards:
            for _, _, old, new, _ in (one for one in shard.records if one[0] > shard.checkpoint):
                for value, sign in moves_between(new, old):
                    found[value.group] += sign * value.amount
        return self.counted and any(self.number[group] != found[group] for group in GROUPS)


def without(rule: str, marker: Marker, old: Contribution | None, new: Contribution | None) -> Any:
    """`first_seen.apply_record`, less one rule."""
    if (rule == "skip" and isinstance(marker, Contribution)) or (rule == "first in full" and marker is None):
        return moves_between(old, new), LIVE_MARKER
    return STEP(marker, old, new)


STEP = first_seen.apply_record


@pytest.mark.parametrize("seeds", [range(SEEDS), *in_long([range(SEEDS, SEEDS_LONG)])], ids=str)
def test_a_number_that_is_shown_is_right(seeds: range) -> None:
    assert [seed for seed in seeds if Model(seed).wrong()] == []


@pytest.mark.long
@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule: str) -> None:
    with patch.object(first_seen, "apply_record", lambda *states: without(rule, *states)):
        assert any(Model(seed, rule).wrong() for seed in range(WITHOUT))
