"""How far the consumers have come: the shard trees of the streams, and the checkpoints in them.

A shard that follows another one is read after it. So for each leaf of the tree its whole lineage counts.

The bookkeeper gets every record, so a heartbeat shows how far it is. The rollup gets heartbeats and what waits for it
alone, and in some leaves nothing. It has passed what the bookkeeper has if it has passed the newest record for it that
the bookkeeper noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import NamedTuple

from .. import observe
from ..dynamo import items, keys, queries
from ..dynamo.client import Store
from ..dynamo.keys import Item
from ..dynamo.shards import ShardTree, StreamShards
from ..errors import TallyError
from .record import goes_to_bookkeeper

# The waits of the ledger, in minutes: they scale with the length of a minute (settings.minute_s).
COMMIT_GRACE = (
    1  # after its own, in which a change may be committed: retries end after 3 s; frozen writers get a minute
)
CONFIRM_AFTER = 5  # judged ones that a drift must stand to be confirmed: one that comes of a late commit lasts two
CLOCK_SKEW = 1 / 12  # how far clocks and DynamoDB's stamps may differ: 5 s
SHARD_LISTING_DELAY = 1  # how late DynamoDB may list a new shard
VISIBILITY_DELAY = 1 / 6  # how long the parts of a transaction may become visible one after the other: 10 s
RETENTION_MARGIN = CONFIRM_AFTER + 1  # after a stream need not keep a record any more, until it has gone
QUIET_AFTER = 2  # without a record in a leaf, until the sweep reads the leaf itself

STREAM_RETENTION_S = 24 * 3600  # by a stream, at least
ROLLUP, BOOKKEEPER, ITEMS = "rollup", "bookkeeper", "items"
COUNTS, RECEIPTS = "counts", "receipts"
Lineage = tuple[str, ...]  # a leaf: the id of a shard that no other one follows, and those of all that it follows
PEEK_EMPTY = 5  # empty answers of GetRecords in one shard: one may be empty although records follow
PEEKED_MAX = 20  # answers in all: more expired receipts than 20,000 in a leaf that no heartbeat reaches hold it up


class Checkpoint(NamedTuple):
    """How far one consumer has come in one stream shard."""

    sequence: str | None = None
    through_s: int = 0  # when the last record was made that it applied or skipped, epoch seconds; 0: never
    heartbeat: str = ""  # the key of the newest heartbeat that it has passed
    note: str = ""  # the newest record for the rollup that it has passed

    @classmethod
    def of(cls, item: Item) -> Checkpoint:
        """A stored checkpoint; without an item the consumer has not begun."""
        name, heartbeat, note = (item.get(part, {}).get("S") for part in ("sequence", "heartbeat", "note"))
        return cls(name, items.int_attribute(item, "through"), heartbeat or "", note or "")

    @property
    def values(self) -> dict[str, str | float]:
        """What a run stores of it: what is known now. The rest stays as it was."""
        named = zip(("sequence", "through", "heartbeat", "note"), self, strict=True)
        return {name: value for name, value in named if value}


@dataclass(frozen=True)
class StreamsSnapshot:
    """The shard trees, by table, and the checkpoints, by consumer, table and shard. The trees were listed first.

    `heartbeat_reached`: the leaves that a heartbeat of this sweep reaches. `has_unread`: whether records may be left in
    a leaf. Both name the table, too: DynamoDB promises different ids within one stream only. `may_peek`: whether a
    quiet leaf may be passed because no record is found in it.
    """

    store: Store
    shards: StreamShards
    listed_s: float
    trees: Mapping[str, ShardTree]
    checkpoints: Mapping[tuple[str, str, str], Checkpoint]
    heartbeat_reached: set[tuple[str, Lineage]] = field(default_factory=set)
    has_unread: dict[tuple[str, Lineage], bool] = field(default_factory=dict)
    may_peek: bool = True

    @cached_property
    def leaves(self) -> dict[str, list[Lineage]]:
        parents = {table: set(tree.values()) for table, tree in self.trees.items()}
        return {
            table: [_lineage(tree, id_) for id_ in tree if id_ not in parents[table]]
            for table, tree in self.trees.items()
        }

    def all_passed_s(self, consumer: str) -> float:
        """The time until which a consumer has passed both streams; 0: not known."""
        return min(self.passed_s(consumer, table) for table in (RECEIPTS, COUNTS))

    def passed_s(self, consumer: str, table: str) -> float:
        """The time until which a consumer has passed every shard of a stream; 0: not known."""
        passed = [self._passed_s(consumer, table, leaf) for leaf in self.leaves[table]]
        return min([*passed, self._before_s(SHARD_LISTING_DELAY)]) if passed else 0

    def most_lagging(self, consumer: str) -> list[str]:
        """The leaves in which a consumer has passed least, for the log: those that delay the watermark."""
        leaves = [(table, leaf) for table, leaves in self.leaves.items() for leaf in leaves]
        leaves.sort(key=lambda leaf: self._passed_s(consumer, *leaf))
        return [f"{table} {leaf[0]}" for table, leaf in leaves[:5]]

    def heartbeat_keys(self, table: str, leaf: Lineage, consumer: str = BOOKKEEPER) -> tuple[str, str]:
        """The key of a heartbeat that has come to a leaf, and that of the nearest shard before it; empty: none."""
        own, *before = (self._checkpoint(consumer, table, id_).heartbeat for id_ in leaf)
        return own, next(filter(None, before), "")

    def is_quiet(self, table: str, leaf: Lineage, consumer: str = BOOKKEEPER) -> bool:
        """Whether no heartbeat reaches a leaf, and no record has come for a while."""
        return (table, leaf) not in self.heartbeat_reached and self._through_s(consumer, table, leaf) < self._before_s(
            QUIET_AFTER
        )

    def _checkpoint(self, consumer: str, table: str, id_: str) -> Checkpoint:
        return self.checkpoints.get((consumer, table, id_), Checkpoint())

    def _through_s(self, consumer: str, table: str, leaf: Lineage) -> int:
        """By the checkpoints of a leaf and of all that it follows: a consumer in a shard has finished its parents."""
        return max(self._checkpoint(consumer, table, id_).through_s for id_ in leaf)

    def _passed_s(self, consumer: str, table: str, leaf: Lineage) -> float:
        """The time until which a consumer has passed a leaf.

        One that gets every record has passed a quiet leaf if no record is left in it. That is weak: an empty answer is
        no proof. An error makes a passing difference, because no entry is lost.
        """
        through_s = self._through_s(consumer, table, leaf)
        if consumer == ROLLUP and self._rollup_caught_up(table, leaf):
            return max(through_s, self._passed_s(BOOKKEEPER, table, leaf))
        peeks = consumer != ROLLUP and self.may_peek
        if peeks and self.is_quiet(table, leaf, consumer) and not self._has_unread(consumer, table, leaf):
            return max(through_s, self._before_s(SHARD_LISTING_DELAY))
        return through_s

    def _before_s(self, minutes: float) -> float:
        return self.listed_s - minutes * self.store.settings.minute_s

    def _rollup_caught_up(self, table: str, leaf: Lineage) -> bool:
        """Whether the rollup has passed all that the bookkeeper has in a leaf, and that is not gone (loss.py)."""
        gone_s = self._before_s(RETENTION_MARGIN) - STREAM_RETENTION_S
        for id_ in leaf:
            rollup, passed = self._checkpoint(ROLLUP, table, id_).sequence, self._checkpoint(BOOKKEEPER, table, id_)
            note = passed.note if passed.through_s >= gone_s else ""
            if rollup:
                return int(rollup) >= int(note or 0)  # the shards before it are finished
            if note:
                return False  # a record for it is in a shard that it has not begun
        return True

    def _has_unread(self, consumer: str, table: str, leaf: Lineage) -> bool:
        """Whether a record may be left for a consumer in a leaf, or before it up to a shard that it has begun."""
        if (table, leaf) not in self.has_unread:
            left = False
            for id_ in leaf:
                sequence = self._checkpoint(consumer, table, id_).sequence
                left |= id_ in self.trees[table] and self._has_records_after(table, id_, sequence)
                if sequence:
                    break
            self.has_unread[table, leaf] = left
        return self.has_unread[table, leaf]

    def _has_records_after(self, table: str, id_: str, sequence: str | None) -> bool:
        empty = 0
        try:
            for answer, records in enumerate(self.shards.records_after(table, id_, sequence), 1):
                empty += not records
                if empty == PEEK_EMPTY:
                    return False
                if answer == PEEKED_MAX or any(goes_to_bookkeeper(table, record) for record in records):
                    return True
        except TallyError as error:
            observe.logger.warning("a shard cannot be read", exc_info=error, extra={"table": table, "shard": id_})
            return True
        return False


def read_streams(
    store: Store,
    shards: StreamShards,
    now_s: float,
    consumers: Iterable[str] = (ROLLUP, BOOKKEEPER),
    tables: Sequence[str] = (COUNTS, RECEIPTS),
    *,
    peeking: bool = True,
) -> StreamsSnapshot:
    """List the shards, then read the checkpoints."""
    trees = {table: shards.list_shards(table) for table in tables}
    marks: dict[tuple[str, str, str], Checkpoint] = {}
    for consumer, table in product(consumers, tables):
        partition, _ = keys.checkpoint_key(consumer, table, "")
        for checkpoint in queries.partition_items(store, store.settings.ledger_table, partition):
            marks[consumer, table, checkpoint["SK"]["S"]] = Checkpoint.of(checkpoint)
    return StreamsSnapshot(store, shards, now_s, trees, marks, may_peek=peeking)


def _lineage(tree: ShardTree, leaf: str) -> Lineage:
    line, at = [leaf], tree[leaf]
    while at is not None and at not in line:
        line.append(at)
        at = tree.get(at)
    return tuple(line)
