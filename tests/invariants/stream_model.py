"""Models what the engine's streams lack: shards that split, roll over and are listed late; DynamoDB's stamps.

The engine has one shard a table. Its records are put into modelled shards by their keys. A table's keys lie between 0
and 1, and a shard covers an interval. An item collection is an interval too, so that a split may cut it by sort key.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tally.dynamo.shards import ShardTree

TABLES = ("counts", "receipts")
COLLECTIONS = 40  # places of item collections on the line of keys
OPEN_MAX = 7  # shards of a table: each more is a heartbeat, four deliveries and two checkpoints a minute
SMALLEST_STEP = 1e-9  # no two items of the counts are as near
Record = dict[str, Any]


@dataclass
class ModelledShard:
    """A stream shard. `alone`: what was written alone and is not in its tally yet, by tally, in order. `trimmed`: how
    many of its records are gone."""

    id: str
    parent: ModelledShard | None
    table: str
    low: float
    high: float
    listed_s: float
    is_open: bool = True
    records: list[Record] = field(default_factory=list)
    last_s: int = 0
    trimmed: int = 0
    alone: defaultdict[tuple[str, str], deque[tuple[int, int]]] = field(default_factory=lambda: defaultdict(deque))


@dataclass
class Streams:
    """The shards of both tables. It replaces `tally.dynamo.shards.Shards`."""

    chance: random.Random
    clock: Callable[[], float]
    """The true time."""
    begin: int | None = None
    """How many shards each table has at first; None: one to three."""
    shards: dict[str, list[ModelledShard]] = field(default_factory=lambda: {table: [] for table in TABLES})
    _numbers: Any = field(default_factory=lambda: itertools.count(1))
    _sequences: Any = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        for table in TABLES:
            number = self.begin or self.chance.randint(1, 3)
            for part in range(number):
                self._add(table, None, part / number, (part + 1) / number)

    def _add(self, table: str, parent: ModelledShard | None, low: float, high: float) -> None:
        late_s = self.chance.choice([0.0, self.chance.uniform(0, 45)]) if parent else 0.0
        made = ModelledShard(f"shard-{table}-{next(self._numbers):03}", parent, table, low, high, self.clock() + late_s)
        self.shards[table].append(made)

    def open_shards(self, table: str) -> list[ModelledShard]:
        """Returns the shards that take records."""
        return [shard for shard in self.shards[table] if shard.is_open]

    def split(self) -> None:
        """Split a shard in two, perhaps inside an item collection, or roll it over."""
        table = self.chance.choice(TABLES)
        shard = self.chance.choice(self.open_shards(table))
        shard.is_open = False
        if self.chance.random() < 0.3 or len(self.open_shards(table)) >= OPEN_MAX - 1:
            self._add(table, shard, shard.low, shard.high)
            return
        self.split_at(shard, self.chance.uniform(shard.low, shard.high))

    def split_at(self, shard: ModelledShard, middle: float) -> None:
        """Split a shard in two at a place."""
        shard.is_open = False
        self._add(shard.table, shard, shard.low, middle)
        self._add(shard.table, shard, middle, shard.high)

    def carve(self) -> None:
        """Split off a part of an item collection that has no key of the sweep."""
        place = self.chance.randrange(COLLECTIONS)
        for part in (0.55, 0.75):
            at = (place + part) / COLLECTIONS
            self.split_at(self._at("counts", at), at)

    def carve_item(self, key: dict[str, dict[str, str]]) -> None:
        """Split off one item of the counts. A tally's item has changes only, and no records for the rollup."""
        for at in (position(key) - SMALLEST_STEP, position(key) + SMALLEST_STEP):
            self.split_at(self._at("counts", at), at)

    def _at(self, table: str, position: float) -> ModelledShard:
        """Returns the open shard at a place."""
        (shard,) = (one for one in self.open_shards(table) if one.low <= position < one.high)
        return shard

    def append(self, table: str, record: Record) -> ModelledShard:
        """Put a record into its shard, with a sequence number and a stamp of the shard's node in whole seconds."""
        shard = self._at(table, position(record["dynamodb"]["Keys"]))
        node_skew_s = int(hashlib.md5(shard.id.encode()).hexdigest()[:4], 16) % 200 / 100 - 1
        shard.last_s = max(shard.last_s, int(self.clock() + node_skew_s))
        change = record["dynamodb"] | {"SequenceNumber": f"{next(self._sequences)}"}
        shard.records.append(record | {"dynamodb": change | {"ApproximateCreationDateTime": shard.last_s}})
        return shard

    def list_shards(self, table: str) -> ShardTree:
        """List shards as DescribeStream does: a child some seconds after its split, and its sister sooner."""
        known = [shard for shard in self.shards[table] if shard.listed_s <= self.clock()]
        return {shard.id: shard.parent.id if shard.parent else None for shard in known}

    def records_after(self, table: str, shard_id: str, sequence: str | None) -> Iterator[list[Record]]:
        """Returns the records of a shard after a sequence number, or all. Sometimes the first answer is empty."""
        (shard,) = (one for one in self.shards[table] if one.id == shard_id)
        after = int(sequence or 0)
        yield from [[]] * self.chance.randrange(3)
        there = shard.records[shard.trimmed :]
        yield [one for one in there if int(one["dynamodb"]["SequenceNumber"]) > after]


def position(keys: dict[str, dict[str, str]]) -> float:
    """Returns where a key lies: a receipt at its own point, an item of the counts in its item collection."""
    if "id" in keys:
        return _part(keys["id"]["S"])
    place = int(_part(keys["PK"]["S"]) * COLLECTIONS)
    return (place + _part(keys["SK"]["S"])) / COLLECTIONS


def _part(text: str) -> float:
    return int(hashlib.md5(text.encode()).hexdigest()[:8], 16) / 2**32
