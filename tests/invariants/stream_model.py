"""Models what the engine's streams lack: shards that split, end and are listed late, and DynamoDB's stamps.

The engine has one stream shard for each table. The model puts each record into a modelled shard, by the key of its
item. Each key has a position between 0 and 1, and a shard covers an interval. An item collection covers an interval,
too, so a split may cut the collection by sort key.
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
COLLECTIONS = 40  # intervals between the positions 0 and 1: each item collection has one, and some share one
OPEN_MAX = 7  # open shards of a table: each shard costs a heartbeat, four deliveries and two checkpoints a minute
SMALLEST_STEP = 1e-9  # the positions of two items of `counts` are equal, or hardly ever so close
Record = dict[str, Any]


@dataclass
class ModelledShard:
    """A stream shard, which covers the positions from `low` to below `high`. `listed_s`: when DescribeStream first
    lists it. `last_s`: when its newest record was made. `trimmed`: how many records the stream has trimmed."""

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
    spilled: defaultdict[tuple[str, str], deque[tuple[int, int]]] = field(default_factory=lambda: defaultdict(deque))
    """By tally: number and amount of each spilled change that the rollup has not added, oldest first."""


@dataclass
class Streams:
    """The shards of both tables, in place of `tally.dynamo.shards.StreamShards`."""

    chance: random.Random
    clock: Callable[[], float]
    """The true time."""
    shards_at_start: int | None = None
    """How many shards each table has at the start; None: one to three."""
    shards: dict[str, list[ModelledShard]] = field(default_factory=lambda: {table: [] for table in TABLES})
    """The shards of each table, from the first to the newest, also the closed shards."""
    _numbers: Any = field(default_factory=lambda: itertools.count(1))
    _sequences: Any = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        for table in TABLES:
            number = self.shards_at_start or self.chance.randint(1, 3)
            for part in range(number):
                self._add(table, None, part / number, (part + 1) / number)

    def _add(self, table: str, parent: ModelledShard | None, low: float, high: float) -> None:
        listed_s = self.clock() + (self.chance.choice([0.0, self.chance.uniform(0, 45)]) if parent else 0.0)
        shard_id = f"shard-{table}-{next(self._numbers):03}"
        self.shards[table].append(ModelledShard(shard_id, parent, table, low, high, listed_s))

    def open_shards(self, table: str) -> list[ModelledShard]:
        """Returns the shards that take records."""
        return [shard for shard in self.shards[table] if shard.is_open]

    def split(self) -> None:
        """Split a shard in two, perhaps inside an item collection, or replace the shard by one new shard."""
        table = self.chance.choice(TABLES)
        shard = self.chance.choice(self.open_shards(table))
        shard.is_open = False
        if self.chance.random() < 0.3 or len(self.open_shards(table)) >= OPEN_MAX - 1:
            self._add(table, shard, shard.low, shard.high)
            return
        self.split_at(shard, self.chance.uniform(shard.low, shard.high))

    def split_at(self, shard: ModelledShard, middle: float) -> None:
        """Split a shard in two at a position."""
        shard.is_open = False
        self._add(shard.table, shard, shard.low, middle)
        self._add(shard.table, shard, middle, shard.high)

    def split_off_part_of_collection(self) -> None:
        """Give a part of an item collection its own shard. No heartbeat that the sweep has sent is in this shard."""
        collection = self.chance.randrange(COLLECTIONS)
        for part in (0.55, 0.75):
            edge = (collection + part) / COLLECTIONS
            self.split_at(self._shard_at("counts", edge), edge)

    def split_off_item(self, key: dict[str, dict[str, str]]) -> None:
        """Give one item of the counts its own shard, with the items at the same position. The shard of a tally's item
        has no records for the rollup."""
        for edge in (position(key) - SMALLEST_STEP, position(key) + SMALLEST_STEP):
            self.split_at(self._shard_at("counts", edge), edge)

    def _shard_at(self, table: str, position: float) -> ModelledShard:
        """Returns the open shard that covers a position."""
        (shard,) = (shard for shard in self.open_shards(table) if shard.low <= position < shard.high)
        return shard

    def append(self, table: str, record: Record) -> ModelledShard:
        """Put a record into its shard, with a sequence number and, in whole seconds, the time of the shard's node."""
        shard = self._shard_at(table, position(record["dynamodb"]["Keys"]))
        node_skew_s = int(hashlib.md5(shard.id.encode()).hexdigest()[:4], 16) % 200 / 100 - 1
        shard.last_s = max(shard.last_s, int(self.clock() + node_skew_s))
        change = record["dynamodb"] | {"SequenceNumber": f"{next(self._sequences)}"}
        shard.records.append(record | {"dynamodb": change | {"ApproximateCreationDateTime": shard.last_s}})
        return shard

    def list_shards(self, table: str) -> ShardTree:
        """List shards as DescribeStream does: each child of a split at its own time, up to 45 s after the split."""
        shards = [shard for shard in self.shards[table] if shard.listed_s <= self.clock()]
        return {shard.id: shard.parent.id if shard.parent else None for shard in shards}

    def records_after(self, table: str, shard_id: str, sequence: str | None) -> Iterator[list[Record]]:
        """Returns the records of a shard after a sequence number; None: all records. The first pages may be empty."""
        (shard,) = (shard for shard in self.shards[table] if shard.id == shard_id)
        yield from [[]] * self.chance.randrange(3)
        records = shard.records[shard.trimmed :]
        yield [record for record in records if int(record["dynamodb"]["SequenceNumber"]) > int(sequence or 0)]


def position(keys: dict[str, dict[str, str]]) -> float:
    """Returns the position of a key: of a receipt by its id, of an item of the counts within its item collection."""
    if "id" in keys:
        return _hash_fraction(keys["id"]["S"])
    collection = int(_hash_fraction(keys["PK"]["S"]) * COLLECTIONS)
    return (collection + _hash_fraction(keys["SK"]["S"])) / COLLECTIONS


def _hash_fraction(text: str) -> float:
    """Returns a hash of the text, from 0 to below 1."""
    return int(hashlib.md5(text.encode()).hexdigest()[:8], 16) / 2**32
