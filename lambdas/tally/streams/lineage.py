"""How far the consumers have come: the shard trees of the streams, and the checkpoints in them.

A shard that follows another one is read after it. So for each leaf of the tree its whole lineage counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product, takewhile
from typing import Any, NamedTuple

from ..dynamo import items, keys, queries
from ..dynamo.client import Store
from ..dynamo.keys import Item
from ..dynamo.shards import Shards
from .record import INSERT, MODIFY
from .waits import LISTING, SKEW

ROLLUP, DRIFT = "rollup", "drift"
COUNTS, RECEIPTS = "counts", "receipts"
PEEK_EMPTY = 5  # empty answers of GetRecords in one shard: one may be empty although records follow
PEEK_CALLS_MAX = 20  # of 1,000 records each: who has more behind it than this is not at the end


class Checkpoint(NamedTuple):
    """How far one consumer has come in one stream shard. Times are in epoch seconds; 0: never."""

    sequence: str | None = None
    through_s: int = 0
    """When the last record was made that it applied or skipped."""
    pulse: str = ""
    """The key of the newest pulse that it has passed."""
    rolled_s: int = 0
    """The newest time that a pulse carried."""

    @classmethod
    def of(cls, item: Item) -> Checkpoint:
        """A stored checkpoint; without an item the consumer has not begun."""
        name, pulse = (item.get(part, {}).get("S") for part in ("sequence", "pulse"))
        return cls(name, items.number(item, "through"), pulse or "", items.number(item, "rolled"))

    def after(self, last: str, through_s: float | None, pulse: tuple[str, int] | None) -> Checkpoint:
        """The checkpoint after a run that begins behind it. The parameters are what the run says (fold.py)."""
        through_s = self.through_s if through_s is None else int(through_s)
        name, rolled_s = pulse or (self.pulse, 0)
        return Checkpoint(last, through_s, name, max(self.rolled_s, rolled_s))

    @property
    def values(self) -> dict[str, str | float]:
        """What is stored of it: what is known."""
        values = {"sequence": self.sequence, "through": self.through_s, "pulse": self.pulse, "rolled": self.rolled_s}
        return {name: value for name, value in values.items() if value}


class Unreached(NamedTuple):
    """A leaf that no pulse has reached: since when; when the sweep last sent pulses, and the time that they carried."""

    since_s: float
    sent_s: float = 0
    rolled_s: int = 0


class Leaf(NamedTuple):
    """A shard that no other one follows. `line`: its id, and those of all that it follows, listed or gone."""

    table: str
    line: tuple[str, ...]

    @property
    def id(self) -> str:
        """Its own."""
        return self.line[0]


Marks = Mapping[tuple[str, str, str], Checkpoint]
"""By consumer, table and shard."""


@dataclass(frozen=True)
class Look:
    """The shard trees and the checkpoints at one moment. The trees were listed first."""

    store: Store
    shards: Shards
    listed_s: float
    trees: Mapping[str, Mapping[str, str | None]]
    """By table, the shards that are listed, each with the one that it follows."""
    leaves: Mapping[str, Sequence[Leaf]]
    """By table."""
    marks: Marks
    unreached: Mapping[str, Unreached]
    """By leaf, as the last sweep left them."""
    peeks: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    """By consumer, table and shard: whether records may be left for the consumer. Each shard is asked once."""

    def known_s(self) -> float:
        """The time up to which minutes can be judged."""
        return min(self.passed_s(DRIFT, RECEIPTS), self.passed_s(DRIFT, COUNTS), self.rolled_s())

    def counted_s(self) -> float:
        """The time until which the rollup has added everything."""
        return min(self.passed_s(ROLLUP, RECEIPTS), self.passed_s(ROLLUP, COUNTS))

    def passed_s(self, consumer: str, table: str) -> float:
        """The time until which a consumer has passed every shard of a stream; 0: not known."""
        passed = [self._passed(consumer, leaf)[0] for leaf in self.leaves[table]]
        return min([*passed, self.listed_s - self._s(LISTING)]) if passed else 0

    def rolled_s(self) -> int:
        """The newest time whose pulses the bookkeeper has passed in every shard of counts; 0: not known."""
        return min((self._passed(DRIFT, leaf)[1] for leaf in self.leaves[COUNTS]), default=0)

    def behind(self, consumer: str) -> list[str]:
        """The leaves in which a consumer has passed least, for the log: those that hold up the evidence."""
        leaves = [leaf for table in (COUNTS, RECEIPTS) for leaf in self.leaves[table]]
        found = sorted((self._passed(consumer, leaf)[0], f"{leaf.table} {leaf.id}") for leaf in leaves)
        return [name for _, name in found[:5]]

    def reached(self, leaf: Leaf) -> bool:
        """Whether a pulse has reached a leaf: then its key is known."""
        return self._lineage(DRIFT, leaf)[0].pulse != ""

    def pulses(self, leaf: Leaf) -> set[str]:
        """The key of a pulse that reaches a leaf; before one is known, those that reached the shards before it."""
        own, *before = (mark.pulse for mark in self._lineage(DRIFT, leaf))
        return {own} if own else {pulse for pulse in before if pulse}

    def _lineage(self, consumer: str, leaf: Leaf) -> list[Checkpoint]:
        """The checkpoints of a leaf and of all that it follows: a consumer in a shard has finished its parents."""
        return [self.marks.get((consumer, leaf.table, id_), Checkpoint()) for id_ in leaf.line]

    def _passed(self, consumer: str, leaf: Leaf) -> tuple[float, int]:
        """The time until which a consumer has passed a leaf, and the newest that a pulse carried which it has passed.

        For a leaf that no pulse reaches the last ones speak, if the consumer has passed the time of their sweep. It has
        if it has passed a later record, or if no record is left for it. The latter is weak: an empty answer is no
        proof. An error makes a passing difference, because no entry is lost.
        """
        marks = self._lineage(consumer, leaf)
        through_s, rolled_s = max(mark.through_s for mark in marks), max(mark.rolled_s for mark in marks)
        last = self.unreached.get(leaf.id, Unreached(0))
        if not last.sent_s or self.reached(leaf):
            return through_s, rolled_s
        if through_s - self._s(SKEW) < last.sent_s and self._left(consumer, leaf):
            return through_s, rolled_s
        return max(through_s, last.sent_s - self._s(LISTING)), max(rolled_s, last.rolled_s)

    def _s(self, minutes: float) -> float:
        return minutes * self.store.settings.minute_s

    def _left(self, consumer: str, leaf: Leaf) -> bool:
        """Whether a record may be left for a consumer in a leaf, or in a shard before it that may not be finished.

        A shard is finished if the consumer has begun one behind it.
        """
        tree = self.trees[leaf.table]
        finished = {parent for id_, parent in tree.items() if (consumer, leaf.table, id_) in self.marks}
        line = takewhile(lambda id_: id_ not in finished, leaf.line)
        return any(self._peek(consumer, leaf.table, id_) for id_ in line if id_ in tree)

    def _peek(self, consumer: str, table: str, shard: str) -> bool:
        """Whether a shard may hold a record that the consumer has not passed."""
        place = consumer, table, shard
        if place not in self.peeks:
            sequence = self.marks.get(place, Checkpoint()).sequence
            self.peeks[place] = _any_for(consumer, table, self.shards.records_after(table, shard, sequence))
        return self.peeks[place]


def _any_for(consumer: str, table: str, answers: Iterable[Sequence[Mapping[str, Any]]]) -> bool:
    """Whether one of these records is for the consumer, as far as a few answers show."""
    empty = 0
    for number, records in enumerate(answers, 1):
        if number > PEEK_CALLS_MAX or any(_is_for(consumer, table, record) for record in records):
            return True
        empty += not records
        if empty == PEEK_EMPTY:
            break
    return False


def _is_for(consumer: str, table: str, record: Mapping[str, Any]) -> bool:
    """Whether the mapping's filter hands a record to the consumer (operations.CONSUMERS)."""
    if (consumer, table) == (DRIFT, COUNTS):
        return True
    kind = record["eventName"]
    if table == RECEIPTS:
        return kind in (INSERT, MODIFY)
    return bool(kind == INSERT or record["dynamodb"]["Keys"]["PK"]["S"].startswith(keys.PULSE_START))


def look(store: Store, shards: Shards, item: Item, now_s: float) -> Look:
    """List the shards, then read the checkpoints. `item`: the JUDGE item."""
    trees = {table: {one.id: one.parent for one in shards.listed(table)} for table in (COUNTS, RECEIPTS)}
    parents = {table: set(tree.values()) for table, tree in trees.items()}
    leaves = {
        table: [Leaf(table, _line(tree, id_)) for id_ in tree if id_ not in parents[table]]
        for table, tree in trees.items()
    }
    unreached = json.loads(item.get("unreached", {"S": "{}"})["S"])
    since = {leaf: Unreached(*of) for leaf, of in unreached.items()}
    return Look(store, shards, now_s, trees, leaves, _checkpoints(store), since)


def _line(tree: Mapping[str, str | None], leaf: str) -> tuple[str, ...]:
    line, at = [leaf], tree[leaf]
    while at is not None and at not in line:
        line.append(at)
        at = tree.get(at)
    return tuple(line)


def _checkpoints(store: Store) -> Marks:
    found: dict[tuple[str, str, str], Checkpoint] = {}
    for consumer, table in product((ROLLUP, DRIFT), (COUNTS, RECEIPTS)):
        partition, _ = keys.checkpoint_key(consumer, table, "")
        for page in queries.pages(store, store.settings.ledger_table, partition):
            found |= {(consumer, table, item["SK"]["S"]): Checkpoint.of(item) for item in page}
    return found
