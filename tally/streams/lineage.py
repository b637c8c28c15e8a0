"""How far the consumers have come: the shard trees of the streams, and the checkpoints in each shard.

A leaf is a shard that no shard follows, and its lineage is the leaf and all shards before the leaf. A consumer finishes
a shard before the shards that follow. So progress in a leaf is progress in its whole lineage.

Lambda delivers every heartbeat to the bookkeeper, so its newest record shows how far it has come. Lambda filters the
rollup's records, so some leaves deliver nothing to the rollup. The bookkeeper therefore notes the newest record that
the filter lets through. If the rollup has passed that record, it has come as far as the bookkeeper.
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

# The waits of the ledger, in minutes of settings.minute_s seconds.
COMMIT_GRACE = 1  # how late a change may commit: its retries take 3 s; a later commit of a frozen writer shows as drift
CONFIRM_AFTER = 5  # judged minutes after which drift is confirmed: the drift of a late commit lasts two minutes
CLOCK_SKEW = 1 / 12  # by how much clocks and DynamoDB's stamps may differ: 5 s
SHARD_LISTING_DELAY = 1  # how late DynamoDB may list a new shard
VISIBILITY_DELAY = 1 / 6  # how long the parts of a transaction may become visible one after the other: 10 s
RETENTION_MARGIN = CONFIRM_AFTER + 1  # a record delays `as_of` so long after its retention: a sweep notes the loss
QUIET_AFTER = 2  # after so long without a record, a leaf is quiet, and the sweep reads the leaf itself (peeks)

STREAM_RETENTION_S = 24 * 3600  # a stream keeps a record at least as long
ROLLUP, BOOKKEEPER, ITEMS = "rollup", "bookkeeper", "items"
COUNTS, RECEIPTS = "counts", "receipts"
Lineage = tuple[str, ...]  # ids: of a leaf, then of the shards before the leaf, the newest first
PEEK_EMPTY = 5  # empty answers of GetRecords after which a shard counts as empty; records may follow an empty answer
PEEKED_MAX = 20  # answers of GetRecords after which a shard counts as unread, even if all were of expired receipts


class Checkpoint(NamedTuple):
    """How far one consumer has come in one stream shard."""

    sequence: str | None = None  # of the last applied or skipped record; None: the consumer has not begun
    through_s: int = 0  # when the last applied or skipped record was made, epoch seconds; 0: never
    heartbeat: str = ""  # the key of the newest heartbeat that the consumer has passed
    newest_for_rollup: str = ""  # the sequence number of the newest record for the rollup that the consumer has passed

    @classmethod
    def of(cls, item: Item) -> Checkpoint:
        """Returns a stored checkpoint. An empty item: the consumer has not begun."""
        sequence, heartbeat, noted = (item.get(part, {}).get("S") for part in ("sequence", "heartbeat", "note"))
        return cls(sequence, items.int_attribute(item, "through"), heartbeat or "", noted or "")

    @property
    def values(self) -> dict[str, str | float]:
        """The attributes that a run stores. An attribute without a value stays as it was."""
        named = zip(("sequence", "through", "heartbeat", "note"), self, strict=True)
        return {name: value for name, value in named if value}


@dataclass(frozen=True)
class StreamsSnapshot:
    """The shard trees, by table, and the checkpoints, by consumer, table and shard.

    `listed_s`: when the trees were listed, before the checkpoints were read. `heartbeat_reached`: the leaves, by table,
    that a heartbeat of this sweep reaches. `has_unread`: whether a leaf that the sweep read may have unread records.
    `may_peek`: whether the sweep may read quiet leaves. A quiet leaf without unread records counts as passed.
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
        """By table, the lineages of all leaves."""
        trees = self.trees.items()
        return {table: [_lineage(tree, id_) for id_ in sorted(tree.keys() - tree.values())] for table, tree in trees}

    def all_passed_s(self, consumer: str) -> float:
        """Returns the time up to which a consumer has passed both streams; 0: not known."""
        return min(self.passed_s(consumer, table) for table in (RECEIPTS, COUNTS))

    def passed_s(self, consumer: str, table: str) -> float:
        """Returns the time up to which a consumer has passed every shard of a stream, listed or not; 0: not known."""
        passed = [self._passed_s(consumer, table, leaf) for leaf in self.leaves[table]]
        return min([*passed, self._before_s(SHARD_LISTING_DELAY)]) if passed else 0

    def most_lagging(self, consumer: str) -> list[str]:
        """Returns, for the log, the five leaves that delay the watermark most."""
        leaves = [(table, leaf) for table, leaves in self.leaves.items() for leaf in leaves]
        leaves.sort(key=lambda leaf: self._passed_s(consumer, *leaf))
        return [f"{table} {leaf[0]}" for table, leaf in leaves[:5]]

    def heartbeat_keys(self, table: str, leaf: Lineage, consumer: str = BOOKKEEPER) -> tuple[str, str]:
        """Returns the keys of the newest heartbeat in a leaf, and in the shards before the leaf; "": no heartbeat."""
        own, *before = (self._checkpoint(consumer, table, id_).heartbeat for id_ in leaf)
        return own, next(filter(None, before), "")

    def is_quiet(self, table: str, leaf: Lineage, consumer: str = BOOKKEEPER) -> bool:
        """Returns whether no heartbeat of this sweep reaches a leaf, and no record has come for QUIET_AFTER minutes."""
        since_s = self._before_s(QUIET_AFTER)
        return (table, leaf) not in self.heartbeat_reached and self._through_s(consumer, table, leaf) < since_s

    def _checkpoint(self, consumer: str, table: str, id_: str) -> Checkpoint:
        return self.checkpoints.get((consumer, table, id_), Checkpoint())

    def _through_s(self, consumer: str, table: str, leaf: Lineage) -> int:
        """Returns when the last record was made that a consumer has passed in a leaf's lineage, epoch seconds."""
        return max(self._checkpoint(consumer, table, id_).through_s for id_ in leaf)

    def _passed_s(self, consumer: str, table: str, leaf: Lineage) -> float:
        """Returns the time up to which a consumer has passed a leaf.

        If the consumer is not the rollup, a quiet leaf counts as passed if the sweep reads it and finds no record. If
        the sweep missed a record, half of a change shows as drift until the bookkeeper books the record.
        """
        through_s = self._through_s(consumer, table, leaf)
        if consumer == ROLLUP and self._has_rollup_caught_up(table, leaf):
            return max(through_s, self._passed_s(BOOKKEEPER, table, leaf))
        peeks = consumer != ROLLUP and self.may_peek
        if peeks and self.is_quiet(table, leaf, consumer) and not self._has_unread(consumer, table, leaf):
            return max(through_s, self._before_s(SHARD_LISTING_DELAY))
        return through_s

    def _before_s(self, minutes: float) -> float:
        """Returns the time `minutes` before the shards were listed."""
        return self.listed_s - minutes * self.store.settings.minute_s

    def _has_rollup_caught_up(self, table: str, leaf: Lineage) -> bool:
        """Returns whether the rollup has passed the newest record that the bookkeeper noted in a leaf's lineage."""
        dropped_s = self._before_s(RETENTION_MARGIN) - STREAM_RETENTION_S  # the stream has dropped older records
        for id_ in leaf:
            rollup, bookkeeper = (self._checkpoint(consumer, table, id_) for consumer in (ROLLUP, BOOKKEEPER))
            noted = bookkeeper.newest_for_rollup if bookkeeper.through_s >= dropped_s else ""
            if rollup.sequence:
                return int(rollup.sequence) >= int(noted or 0)  # the rollup has finished the shards before this shard
            if noted:
                return False  # there is a record for the rollup in a shard that the rollup has not begun
        return True

    def _has_unread(self, consumer: str, table: str, leaf: Lineage) -> bool:
        """Returns whether a consumer has unread records in a leaf, or in earlier shards that it has not finished."""
        if (table, leaf) not in self.has_unread:
            unread = False
            for id_ in leaf:  # a shard that is not listed has no records left
                sequence = self._checkpoint(consumer, table, id_).sequence
                unread |= id_ in self.trees[table] and self._has_records_after(table, id_, sequence)
                if sequence:
                    break
            self.has_unread[table, leaf] = unread
        return self.has_unread[table, leaf]

    def _has_records_after(self, table: str, id_: str, sequence: str | None) -> bool:
        """Returns whether a shard has records for a consumer, or the sweep could not read the shard to its end."""
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
    may_peek: bool = True,
) -> StreamsSnapshot:
    """Lists the shards, then reads the checkpoints. `may_peek`: as in `StreamsSnapshot`."""
    trees = {table: shards.list_shards(table) for table in tables}
    checkpoints: dict[tuple[str, str, str], Checkpoint] = {}
    for consumer, table in product(consumers, tables):
        partition, _ = keys.checkpoint_key(consumer, table, "")
        for item in queries.partition_items(store, store.settings.ledger_table, partition):
            checkpoints[consumer, table, item["SK"]["S"]] = Checkpoint.of(item)
    return StreamsSnapshot(store, shards, now_s, trees, checkpoints, may_peek=may_peek)


def _lineage(tree: ShardTree, leaf: str) -> Lineage:
    lineage, parent = [leaf], tree[leaf]
    while parent is not None and parent not in lineage:
        lineage.append(parent)
        parent = tree.get(parent)
    return tuple(lineage)
