"""How far the consumers have come: the shard trees of the streams, and the checkpoints in them.

A shard that follows another one is read after it. So for each leaf of the tree its whole lineage counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product, takewhile
from typing import Any, NamedTuple

from ..dynamo import items, keys, queries
from ..dynamo.client import Store
from ..dynamo.keys import Item
from ..dynamo.shards import Shards, Tree
from .record import INSERT, MODIFY

# The waits of the ledger, in minutes: they scale with the length of a minute (settings.minute_s).
LATE = 1  # after its own, in which a change may be committed: retries end after 3 s; frozen writers get a minute
SETTLE = 5  # judged ones that a drift must stand to be confirmed: one that comes of a late commit lasts two
START = 2  # from the first sweep to the first minute that may be judged: older ones may lack a half
SKEW = 1 / 12  # how far clocks and DynamoDB's stamps may differ: 5 s
LISTING = 1  # how late DynamoDB may list a new shard
FRESH = 1 / 6  # how old noted watermark must be to be used: 10 s
UNREACHED = 1.5  # how long no heartbeat may reach a shard before the sweep reads the shard itself

ROLLUP, BOOKKEEPER = "rollup", "bookkeeper"
COUNTS, RECEIPTS = "counts", "receipts"
Line = tuple[str, ...]  # a leaf: the id of a shard that no other one follows, and those of all that it follows
PEEK_EMPTY = 5  # empty answers of GetRecords in one shard: one may be empty although records follow
PEEK_CALLS_MAX = 20  # of 1,000 records each: who has more behind it than this is not at the end


class Checkpoint(NamedTuple):
    """How far one consumer has come in one stream shard. Times are in epoch seconds; 0: never."""

    sequence: str | None = None
    through_s: int = 0  # when the last record was made that it applied or skipped
    heartbeat: str = ""  # the key of the newest heartbeat that it has passed
    rolled_s: int = 0  # the newest time that a heartbeat carried

    @classmethod
    def of(cls, item: Item) -> Checkpoint:
        """A stored checkpoint; without an item the consumer has not begun."""
        name, heartbeat = (item.get(part, {}).get("S") for part in ("sequence", "heartbeat"))
        return cls(name, items.number(item, "through"), heartbeat or "", items.number(item, "rolled"))

    def after(self, last: str, through_s: float | None, heartbeat: tuple[str, int] | None) -> Checkpoint:
        """The checkpoint after a run that begins behind it; the run says how (fold.py)."""
        through_s = self.through_s if through_s is None else int(through_s)
        name, rolled_s = heartbeat or (self.heartbeat, 0)
        return Checkpoint(last, through_s, name, max(self.rolled_s, rolled_s))

    @property
    def values(self) -> dict[str, str | float]:
        """What is stored of it: what is known."""
        named = zip(("sequence", "through", "heartbeat", "rolled"), self, strict=True)
        return {name: value for name, value in named if value}


class Unreached(NamedTuple):
    """A leaf that no heartbeat has reached: since when; when the sweep last sent heartbeats, and the time that they
    carried."""

    since_s: float
    sent_s: float = 0
    rolled_s: int = 0


@dataclass(frozen=True)
class Look:
    """The shard trees, by table, and the checkpoints, by consumer, table and shard. The trees were listed first.

    `peeks`: whether records may be left for a consumer in a shard. `unreached`: by leaf, as the last sweep left them.
    """

    store: Store
    shards: Shards
    listed_s: float
    trees: Mapping[str, Tree]
    marks: Mapping[tuple[str, str, str], Checkpoint]
    unreached: Mapping[str, Unreached]
    peeks: dict[tuple[str, str, str], bool] = field(default_factory=dict)

    @cached_property
    def leaves(self) -> dict[str, list[Line]]:
        parents = {table: set(tree.values()) for table, tree in self.trees.items()}
        return {
            table: [_line(tree, id_) for id_ in tree if id_ not in parents[table]] for table, tree in self.trees.items()
        }

    def known_s(self) -> float:
        """The time up to which minutes can be judged."""
        return min(self.passed_s(BOOKKEEPER, RECEIPTS), self.passed_s(BOOKKEEPER, COUNTS), self.rolled_s())

    def counted_s(self) -> float:
        """The time until which the rollup has added everything."""
        return min(self.passed_s(ROLLUP, RECEIPTS), self.passed_s(ROLLUP, COUNTS))

    def passed_s(self, consumer: str, table: str) -> float:
        """The time until which a consumer has passed every shard of a stream; 0: not known."""
        passed = [self._passed(consumer, table, leaf)[0] for leaf in self.leaves[table]]
        return min([*passed, self.listed_s - self._s(LISTING)]) if passed else 0

    def rolled_s(self) -> int:
        """The newest time whose heartbeats the bookkeeper has passed in every shard of counts; 0: not known."""
        return min((self._passed(BOOKKEEPER, COUNTS, leaf)[1] for leaf in self.leaves[COUNTS]), default=0)

    def behind(self, consumer: str) -> list[str]:
        """The leaves in which a consumer has passed least, for the log: those that hold up the watermark."""
        leaves = [(table, leaf) for table, leaves in self.leaves.items() for leaf in leaves]
        leaves.sort(key=lambda leaf: self._passed(consumer, *leaf)[0])
        return [f"{table} {leaf[0]}" for table, leaf in leaves[:5]]

    def heartbeats(self, table: str, leaf: Line) -> tuple[str, set[str]]:
        """The key of a heartbeat that has reached a leaf, if one has; and those that reached the shards before it."""
        own, *before = (mark.heartbeat for mark in self._lineage(BOOKKEEPER, table, leaf))
        return own, set(filter(None, before))

    def _lineage(self, consumer: str, table: str, leaf: Line) -> list[Checkpoint]:
        """The checkpoints of a leaf and of all that it follows: a consumer in a shard has finished its parents."""
        return [self.marks.get((consumer, table, id_), Checkpoint()) for id_ in leaf]

    def _passed(self, consumer: str, table: str, leaf: Line) -> tuple[float, int]:
        """The time until which a consumer has passed a leaf, and the newest that a heartbeat carried which it has
        passed.

        For a leaf that no heartbeat reaches the last ones speak, if the consumer has passed the time of their sweep.
        It has if it has passed a later record, or if no record is left for it. The latter is weak: an empty answer is
        no proof. An error makes a passing difference, because no entry is lost.
        """
        marks = self._lineage(consumer, table, leaf)
        through_s, rolled_s = max(mark.through_s for mark in marks), max(mark.rolled_s for mark in marks)
        last = self.unreached.get(leaf[0], Unreached(0))
        if not last.sent_s or self.heartbeats(table, leaf)[0]:
            return through_s, rolled_s
        if through_s - self._s(SKEW) < last.sent_s and self._left(consumer, table, leaf):
            return through_s, rolled_s
        return max(through_s, last.sent_s - self._s(LISTING)), max(rolled_s, last.rolled_s)

    def _s(self, minutes: float) -> float:
        return minutes * self.store.settings.minute_s

    def _left(self, consumer: str, table: str, leaf: Line) -> bool:
        """Whether a record may be left for a consumer in a leaf, or before it, up to a shard that it has finished."""
        tree = self.trees[table]
        finished = {parent for id_, parent in tree.items() if (consumer, table, id_) in self.marks}
        for id_ in takewhile(lambda id_: id_ not in finished, leaf):
            place = consumer, table, id_
            if id_ in tree and place not in self.peeks:
                sequence = self.marks.get(place, Checkpoint()).sequence
                self.peeks[place] = _any_for(consumer, table, self.shards.records_after(table, id_, sequence))
            if self.peeks.get(place):
                return True
        return False


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
    """Whether the filter of the mapping hands a record to the consumer (`READER` in operations/)."""
    kind = record["eventName"]
    if table == RECEIPTS:
        return kind in (INSERT, MODIFY)
    is_heartbeat = record["dynamodb"]["Keys"]["PK"]["S"].startswith(keys.HEARTBEAT_START)
    return bool(consumer == BOOKKEEPER or kind == INSERT or is_heartbeat)


def look(store: Store, shards: Shards, item: Item, now_s: float) -> Look:
    """List the shards, then read the checkpoints. `item`: the JUDGE item."""
    trees = {table: shards.listed(table) for table in (COUNTS, RECEIPTS)}
    marks: dict[tuple[str, str, str], Checkpoint] = {}
    for consumer, table in product((ROLLUP, BOOKKEEPER), (COUNTS, RECEIPTS)):
        partition, _ = keys.checkpoint_key(consumer, table, "")
        for one in queries.items(store, store.settings.ledger_table, partition):
            marks[consumer, table, one["SK"]["S"]] = Checkpoint.of(one)
    unreached = json.loads(item.get("unreached", {"S": "{}"})["S"])
    return Look(store, shards, now_s, trees, marks, {leaf: Unreached(*of) for leaf, of in unreached.items()})


def _line(tree: Tree, leaf: str) -> Line:
    line, at = [leaf], tree[leaf]
    while at is not None and at not in line:
        line.append(at)
        at = tree.get(at)
    return tuple(line)
