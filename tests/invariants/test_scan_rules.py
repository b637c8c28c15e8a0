"""A model tests the rules by which a scan counts beside the stream, on random interleavings.

The model asks the code what a record moves (`ItemsRun`, `_with_scan`, `first_seen.apply_record`), and which groups an
open scan counts (`Scan`). The model does everything else. An item has few states, so it often returns to an earlier
state. Shards split. Batches are delivered twice and overlap. Invocations and scans die or sleep between two requests.
If any rule is missing, the model finds a wrong number that is shown.
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
from tally.team.first_seen import STREAM_MARKER, Marker, moves_between
from tally.team.scan_state import Scan
from tests.tiers import in_long

COUNTER = Counter("n", prefix="N", sort_key="N", attribute="n", items=Items("t", amount="a"))
GROUPS, AMOUNTS = "abc", (1, 5)
SLACK_S, SKEW_S = 3.0, 1.0  # the time that the code allows for wrong event times, and how wrong they are at most
PAGE_ITEMS = 3  # how many items a scan reads before it adds them
SEEDS, SEEDS_LONG, SEEDS_WITHOUT_RULE = 150, 10_000, 3_000  # the third: seeds in which a missing rule must show
RULES = (
    "read the checkpoint first", "write markers", "skip records that the scan has read",
    "count the first record in full", "compare the record's time with the scan's end", "write markers near the end",
    "add only new pages", "expect unchanged markers", "store the state that was read", "add no page after the end",
    "set only while the scan is open", "set only after the end is passed", "set each number once",
)  # fmt: skip


@dataclass
class Shard:
    """A stream shard with the records of the keys whose hash is from `low` to below `high`."""

    parent: Shard | None
    low: float
    high: float
    open: bool = True
    records: list[tuple[int, str, Contribution | None, Contribution | None, float]] = field(default_factory=list)
    """Sequence number, key, old and new contribution, event time."""
    position: int = 0
    """The index of the first record that Lambda has not delivered."""
    checkpoint: int = -1
    """The sequence number of the last record that was applied; -1: no record was applied."""
    through_s: float = -9.0
    """The event time of the last record that was applied; before any record: earlier than every event time."""


Process = Iterator[None]


class Model:
    """One table, its consumer and its scans. Each process is a generator: between two yields it makes one request."""

    def __init__(self, seed: int, missing_rule: str = "") -> None:
        self.chance, self.missing_rule, self.now_s, self.sequence = random.Random(seed), missing_rule, 10.0, 0
        self.keys = [f"k{n}" for n in range(self.chance.randint(3, 12))]
        self.hashes = {key: self.chance.random() for key in self.keys}
        self.items: dict[str, Contribution] = {key: value for key in self.keys if (value := self.random_contribution())}
        self.shards = [Shard(None, 0.0, 1.0)]
        self.scan, self.counted, self.markers = Scan("n"), False, dict[tuple[int, str], Marker]()
        """The last scan; whether a scan has set all numbers, so that they are shown; markers by generation and key."""
        self.numbers = Multiset({group: self.chance.choice((0, -3, 40)) for group in GROUPS})
        self.recounts: Multiset[tuple[int, str]] = Multiset()
        self.set_by: dict[str, int] = {}
        """The generation of the scan that last set the number of each group."""
        self.running: list[tuple[str, Process]] = []
        self.begin_chance, self.single_chance = self.chance.choice((0.0005, 0.005)), self.chance.choice((0.2, 0.8))
        """The chance that a turn begins a scan beside an open scan; the chance that a shard has only one invocation."""

    def has_rule(self, rule: str) -> bool:
        return rule != self.missing_rule

    def random_contribution(self) -> Contribution | None:
        if self.chance.random() < 0.3:
            return None
        return Contribution(self.chance.choice(GROUPS), self.chance.choice(AMOUNTS))

    # ---- the team ----

    def write(self) -> None:
        key, new = self.chance.choice(self.keys), self.random_contribution()
        old = self.items.pop(key, None)
        if new:
            self.items[key] = new
        self.sequence += 1
        shard = next(shard for shard in self.shards if shard.open and shard.low <= self.hashes[key] < shard.high)
        shard.records.append((self.sequence, key, old, new, self.now_s + self.chance.uniform(-SKEW_S, SKEW_S)))

    def split(self) -> None:
        shard = self.chance.choice([shard for shard in self.shards if shard.open])
        shard.open, middle = False, self.chance.uniform(shard.low, shard.high)
        self.shards += [Shard(shard, shard.low, middle), Shard(shard, middle, shard.high)]

    # ---- the consumer ----

    def change_of(self, record: Any, scan: Scan | None) -> ItemChange | None:
        """Returns what a record changes; None: nothing. `scan`: the open scan; None: no scan is open."""
        _, key, old, new, event_s = record
        if old == new or (scan is None and not self.counted):
            return None
        change = ItemChange(COUNTER, 0, old, new)
        if scan is None:
            return change
        change = consumer._with_scan(change, scan, {"dynamodb": {"Keys": key}}, event_s, SLACK_S)
        if not self.has_rule("write markers"):
            return change._replace(needs_marker=False, is_near_scan_end=False)
        if not self.has_rule("compare the record's time with the scan's end"):
            return change._replace(needs_marker=not scan.ended_s, is_near_scan_end=False)
        return change if self.has_rule("write markers near the end") else change._replace(is_near_scan_end=False)

    def consume(self, shard: Shard) -> Process:  # noqa: C901 (a consumer from its read to its commit)
        size, repeats = self.chance.randint(1, 6), self.chance.choice((0, 0, 0, 2, 50))  # delivered before, and now
        batch = shard.records[max(0, shard.position - repeats) : shard.position + size]
        end = shard.position + len(shard.records[shard.position : shard.position + size])
        fate = self.chance.random()
        for _ in range(8):  # attempts
            checkpoint = shard.checkpoint
            if self.has_rule("read the checkpoint first"):
                yield
            scan = self.scan if self.scan.is_open_for(COUNTER) else None
            is_counted = self.counted
            yield
            markers = {key: self.markers.get((scan.generation, key)) for _, key, *_ in batch} if scan else {}
            yield
            if not self.has_rule("read the checkpoint first"):
                checkpoint = shard.checkpoint
            new_records = [record for record in batch if record[0] > checkpoint]
            if not new_records:
                break
            run = ItemsRun("1", BatchContext("t", "s"))
            if scan:
                run.markers_before = {self.marker_name(scan, key): marker for key, marker in markers.items()}
            for record in new_records:
                change = self.change_of(record, scan) if scan or is_counted else None
                if change:
                    run.add([change])
            yield
            if fate < 0.05:  # the invocation dies before its commit
                return
            changed_markers = dict(run.markers_after.items() - run.markers_before.items())
            expects_markers = self.has_rule("expect unchanged markers")
            if shard.checkpoint != checkpoint or (expects_markers and not self.are_unchanged(run, changed_markers)):
                continue
            shard.checkpoint, shard.through_s = new_records[-1][0], new_records[-1][4]
            for name, marker in changed_markers.items():
                self.markers[self.marker_keys[name]] = marker
            for (_, group), effect in run.sums.items():
                self.numbers[group] += effect.expected
            for (_, group), (attribute, amount) in run.recounts.items():
                self.recounts[int(attribute.partition("#")[2]), group] += amount
            if fate < 0.10:  # the invocation dies after its commit, so the batch is delivered once more
                return
            break
        else:  # no attempt has committed
            return
        yield
        shard.position = max(shard.position, end)

    marker_keys: dict[str, tuple[int, str]] = {}  # noqa: RUF012 (the names are the same in every model)
    """The key in `markers` of each marker's name."""

    def marker_name(self, scan: Scan, key: str) -> str:
        """Returns the name that `_with_scan` gives to the marker, here for a change that needs a marker in any case."""
        change, open_ = ItemChange(COUNTER, 0, None, Contribution("a", 1)), scan._replace(ended_s=0, groups=())
        name = consumer._with_scan(change, open_, {"dynamodb": {"Keys": key}}, 0.0, SLACK_S).marker
        self.marker_keys[name] = scan.generation, key
        return name

    def are_unchanged(self, run: ItemsRun, changed_markers: dict[str, Marker]) -> bool:
        """Says whether the markers that the run read and changes are stored as the run read them."""
        names = [name for name in changed_markers if name in run.markers_before]
        return all(self.markers.get(self.marker_keys[name]) == run.markers_before[name] for name in names)

    def poll(self) -> None:
        """Invokes the consumer for one shard that has records left."""
        invocations = Multiset(name for name, _ in self.running)
        for number in self.chance.sample(range(len(self.shards)), len(self.shards)):
            shard, invocations_max = self.shards[number], 1 if self.chance.random() < self.single_chance else 3
            may_start = shard.parent is None or self.is_finished(shard.parent)
            has_records = shard.position < len(shard.records)
            if may_start and has_records and invocations[f"shard{number}"] < invocations_max:
                self.running.append((f"shard{number}", self.consume(shard)))
                return

    def is_finished(self, shard: Shard) -> bool:
        is_read = not shard.open and shard.position >= len(shard.records)
        return is_read and (shard.parent is None or self.is_finished(shard.parent))

    def watermark_s(self) -> float:
        """Returns the time up to which the consumer has passed every lineage."""
        watermark_s = self.now_s - SKEW_S
        for leaf in self.shards:
            if any(shard.parent is leaf for shard in self.shards):
                continue
            lineage, parent = [leaf], leaf.parent
            while parent:
                lineage.append(parent)
                parent = parent.parent
            # If a record of a lineage is not applied, the consumer has only passed the last record that it applied.
            if any(shard.records and shard.records[-1][0] > shard.checkpoint for shard in lineage):
                watermark_s = min(watermark_s, max(shard.through_s for shard in lineage))
        return watermark_s

    # ---- scans ----

    def begin(self) -> None:
        groups = self.chance.choice(((), (), ("a",), ("b", "c")))
        self.scan = Scan("n", self.scan.generation + 1, COUNTER.items_digest, groups, int(self.now_s), closed=False)

    def may_add_page(self, scan: Scan) -> bool:
        has_ended = self.scan.ended_s and self.has_rule("add no page after the end")
        return self.scan.generation == scan.generation and not has_ended and not self.scan.closed

    def read(self) -> Process:
        """Reads the table for the scan, page by page, and adds each page."""
        scan, fate = self.scan, self.chance.random()
        for first in range(0, len(self.keys), PAGE_ITEMS):
            page = []
            for key in self.keys[first : first + PAGE_ITEMS]:  # a strongly consistent read, at its own time
                if (value := self.items.get(key)) and scan.covers(COUNTER, value.group):
                    page.append((key, value))
                yield
            for _ in range(self.chance.choice((0, 0, 1, 5, 40))):  # the process of the scan sleeps
                yield
            if fate < 0.2 and self.chance.random() < 0.3:  # the process of the scan dies
                return
            while page:
                # If the consumer writes no markers, a page cannot know which items are new: all of them count.
                unmarked = [
                    (key, value)
                    for key, value in page
                    if (scan.generation, key) not in self.markers or not self.has_rule("write markers")
                ]
                page = unmarked if self.has_rule("add only new pages") else page
                yield
                is_new = all((scan.generation, key) not in self.markers for key, _ in page)
                if not is_new and self.has_rule("add only new pages") and self.has_rule("write markers"):
                    continue
                if not self.may_add_page(scan):
                    return
                for key, value in page:
                    stores_state = self.has_rule("store the state that was read")
                    self.markers[scan.generation, key] = value if stores_state else STREAM_MARKER
                    self.recounts[scan.generation, value.group] += value.amount
                break
        if self.may_add_page(scan) and not self.scan.ended_s:
            self.scan = self.scan._replace(ended_s=self.now_s)  # type: ignore[arg-type]

    def set_numbers(self) -> Process:
        """Sets the numbers by the recounts of the scan, and closes the scan."""
        scan = self.scan
        is_passed = self.watermark_s() >= scan.ended_s + SLACK_S
        is_passed = is_passed or not self.has_rule("set only after the end is passed")
        if scan.closed or not scan.ended_s or not is_passed:
            return
        for group in scan.groups or GROUPS:
            for _ in range(self.chance.choice((1, 1, 5, 20))):
                yield
            excess = self.numbers[group] - self.recounts[scan.generation, group]
            set_before = self.set_by.get(group, 0)  # the read; the write below fails if another process was first
            yield
            is_open = self.scan.generation == scan.generation and not self.scan.closed
            if not is_open and self.has_rule("set only while the scan is open"):
                return
            is_first = self.set_by.get(group, 0) < scan.generation and set_before < scan.generation
            if is_first or not self.has_rule("set each number once"):
                self.set_by[group] = scan.generation
                self.numbers[group] -= excess
        yield
        if self.scan.generation == scan.generation and not self.scan.closed:
            self.scan = self.scan._replace(closed=True)
            self.counted = self.counted or not scan.groups

    # ---- all processes ----

    def turn(self) -> None:
        self.now_s += self.chance.uniform(0, 0.1)
        drawn = self.chance.random()
        if drawn < 0.28:
            self.write()
        elif drawn < 0.30 and len(self.shards) < 9:
            self.split()
        elif drawn < 0.42:
            self.poll()
        elif drawn < 0.42 + (0.04 if self.scan.closed else self.begin_chance):
            self.begin()
        elif drawn < 0.5 and not self.scan.closed and sum(name == "scan" for name, _ in self.running) < 2:
            self.running.append(("scan", self.read() if not self.scan.ended_s else self.set_numbers()))
        else:
            for _ in range(self.chance.randint(1, 6)):
                self.advance()

    def advance(self) -> None:
        if self.running:
            name, process = self.running.pop(self.chance.randrange(len(self.running)))
            if next(process, self) is None:  # `self` if the process has ended
                self.running.append((name, process))

    def finish(self) -> None:
        """Runs until every process has ended and every record is consumed."""
        while self.running or any(shard.position < len(shard.records) for shard in self.shards):
            if self.running:
                self.advance()
            else:
                self.poll()

    def shows_wrong_number(self) -> bool:
        """Runs many turns. Says whether a wrong number was ever shown."""
        for turn in range(self.chance.randint(200, 1200)):
            self.turn()
            if turn % 25 == 0 and self.has_wrong_number():
                return True
        self.finish()
        return self.has_wrong_number()

    def has_wrong_number(self) -> bool:
        """Says whether a number that is shown differs from the items as they were before the unconsumed records."""
        expected: Multiset[str] = Multiset()
        for value in self.items.values():
            expected[value.group] += value.amount
        for shard in self.shards:
            for _, _, old, new, _ in (record for record in shard.records if record[0] > shard.checkpoint):
                for value, sign in moves_between(new, old):  # from the new state back to the old state
                    expected[value.group] += sign * value.amount
        return self.counted and any(self.numbers[group] != expected[group] for group in GROUPS)


APPLY_RECORD = first_seen.apply_record


def apply_record_without(rule: str, marker: Marker, old: Contribution | None, new: Contribution | None) -> Any:
    """Does what `first_seen.apply_record` does, without one rule."""
    skips_rule = rule == "skip records that the scan has read" and isinstance(marker, Contribution)
    if skips_rule or (rule == "count the first record in full" and marker is None):
        return moves_between(old, new), STREAM_MARKER
    return APPLY_RECORD(marker, old, new)


@pytest.mark.parametrize("seeds", [range(SEEDS), *in_long([range(SEEDS, SEEDS_LONG)])], ids=str)
def test_a_number_that_is_shown_is_right(seeds: range) -> None:
    assert [seed for seed in seeds if Model(seed).shows_wrong_number()] == []


@pytest.mark.long
@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule: str) -> None:
    with patch.object(first_seen, "apply_record", lambda *states: apply_record_without(rule, *states)):
        assert any(Model(seed, rule).shows_wrong_number() for seed in range(SEEDS_WITHOUT_RULE))
