"""How far the consumers have come: the shard trees of the streams, and the checkpoints in them.

A shard that follows another one is read after it. So for each leaf of the tree its whole lineage counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

from ..dynamo import keys, queries
from ..dynamo.client import Store
from ..dynamo.keys import Item
from ..dynamo.shards import Shard, Shards
from .record import INSERT, MODIFY
from .waits import Waits

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


class Unreached(NamedTuple):
    """A leaf that no pulse has reached: since when; when the sweep last sent pulses, and the time that they carried."""

    since_s: float
    sent_s: float = 0
    rolled_s: int = 0


Marks = Mapping[tuple[str, str, str], Checkpoint]
"""By consumer, table and shard."""


@dataclass(frozen=True)
class Look:
    """The shard trees and the checkpoints at one moment. The trees were listed first."""

    store: Store
    shards: Shards
    listed_s: float
    trees: Mapping[str, Sequence[Shard]]
    """By table."""
    marks: Marks
    unreached: Mapping[str, Unreached]
    """By leaf, as the last sweep left them."""
    peeks: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    """By consumer, table and shard: whether records may be left for the consumer. Each shard is asked once."""

    def leaves(self, table: str) -> list[Shard]:
        """The shards of a table's stream that no other one follows."""
        parents = {shard.parent for shard in self.trees[table]}
        return [shard for shard in self.trees[table] if shard.id not in parents]

    def passed_s(self, consumer: str, table: str) -> float:
        """The time until which a consumer has passed every shard of a stream; 0: not known."""
        waits = Waits(self.store.settings.minute_s)
        passed = [self._through_s(consumer, table, leaf) for leaf in self.leaves(table)]
        return min([*passed, self.listed_s - waits.listing_s]) if passed else 0

    def rolled_s(self) -> int:
        """The newest time whose pulses the bookkeeper has passed in every shard of counts; 0: not known."""
        times = []
        for leaf in self.leaves(COUNTS):
            own = max(mark.rolled_s for mark in self._lineage(DRIFT, COUNTS, leaf))
            peeked = self._peeked(DRIFT, COUNTS, leaf)
            times.append(max(own, peeked.rolled_s if peeked else 0))
        return min(times, default=0)

    @cached_property
    def _parents(self) -> dict[str, dict[str, str | None]]:
        return {table: {shard.id: shard.parent for shard in tree} for table, tree in self.trees.items()}

    def reached(self, table: str, leaf: Shard) -> bool:
        """Whether a pulse has reached a leaf: then its key is known."""
        return bool(self.marks.get((DRIFT, table, leaf.id), Checkpoint()).pulse)

    def pulses(self, table: str, leaf: Shard) -> set[str]:
        """The key of a pulse that reaches a leaf; before one is known, those that reached the shards before it."""
        own, *before = (mark.pulse for mark in self._lineage(DRIFT, table, leaf))
        return {own} if own else {pulse for pulse in before if pulse}

    def behind(self, consumer: str) -> list[str]:
        """The leaves in which a consumer has passed least, for the log: those that hold up the evidence."""
        found = [
            (self._through_s(consumer, table, leaf), f"{table} {leaf.id}")
            for table in (COUNTS, RECEIPTS)
            for leaf in self.leaves(table)
        ]
        return [name for _, name in sorted(found)[:5]]

    def _through_s(self, consumer: str, table: str, leaf: Shard) -> float:
        own: float = max(mark.through_s for mark in self._lineage(consumer, table, leaf))
        peeked = self._peeked(consumer, table, leaf)
        return max(own, peeked.sent_s - Waits(self.store.settings.minute_s).listing_s) if peeked else own

    def _lineage(self, consumer: str, table: str, leaf: Shard) -> list[Checkpoint]:
        """The checkpoints of a leaf and of all that it follows: a consumer in a shard has finished its parents."""
        return [self.marks.get((consumer, table, id_), Checkpoint()) for id_ in self._line(table, leaf)]

    def _line(self, table: str, leaf: Shard) -> list[str]:
        parents = self._parents[table]
        found: list[str] = []
        at: str | None = leaf.id
        while at is not None and at not in found:
            found.append(at)
            at = parents.get(at)
        return found

    def _peeked(self, consumer: str, table: str, leaf: Shard) -> Unreached | None:
        """What the last pulses say of a leaf that none reaches, if the consumer has passed the time of their sweep.

        It has if it has passed a later record, or if no record is left for it. The latter is weak: an empty answer is
        no proof. An error makes a passing difference, because no entry is lost.
        """
        found = self.unreached.get(leaf.id)
        if not found or not found.sent_s or self.reached(table, leaf):
            return None
        through_s = max(mark.through_s for mark in self._lineage(consumer, table, leaf))
        if through_s - Waits(self.store.settings.minute_s).skew_s >= found.sent_s:
            return found
        return None if any(self._left(consumer, table, id_) for id_ in self._open(consumer, table, leaf)) else found

    def _open(self, consumer: str, table: str, leaf: Shard) -> list[str]:
        """The leaf, and those shards before it that a consumer may not have finished: it has begun none behind them."""
        finished = {shard.parent for shard in self.trees[table] if (consumer, table, shard.id) in self.marks}
        line = takewhile(lambda id_: id_ not in finished, self._line(table, leaf))
        return [id_ for id_ in line if id_ in self._parents[table]]

    def _left(self, consumer: str, table: str, shard: str) -> bool:
        """Whether a shard may hold a record that the consumer has not passed."""
        place = consumer, table, shard
        if place not in self.peeks:
            sequence = self.marks.get(place, Checkpoint()).sequence
            self.peeks[place] = _any_for(consumer, table, self.shards.records_after(table, shard, sequence))
        return self.peeks[place]

    def known_s(self) -> float:
        """The time up to which minutes can be judged."""
        return min(self.passed_s(DRIFT, RECEIPTS), self.passed_s(DRIFT, COUNTS), self.rolled_s())

    def counted_s(self) -> float:
        """The time until which the rollup has added everything."""
        return min(self.passed_s(ROLLUP, RECEIPTS), self.passed_s(ROLLUP, COUNTS))


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
    trees = {table: shards.listed(table) for table in (COUNTS, RECEIPTS)}
    unreached = json.loads(item.get("unreached", {"S": "{}"})["S"])
    since = {leaf: Unreached(*of) for leaf, of in unreached.items()}
    return Look(store, shards, now_s, trees, _checkpoints(store), since)


def _checkpoints(store: Store) -> Marks:
    found: dict[tuple[str, str, str], Checkpoint] = {}
    for consumer in (ROLLUP, DRIFT):
        for table in (COUNTS, RECEIPTS):
            partition, _ = keys.checkpoint_key(consumer, table, "")
            for page in queries.pages(store, store.settings.ledger_table, partition, queries.FIRST, queries.LAST):
                for mark in page:
                    found[consumer, table, mark["SK"]["S"]] = Checkpoint(
                        mark["sequence"]["S"],
                        whole(mark, "through"),
                        mark.get("pulse", {"S": ""})["S"],
                        whole(mark, "rolled"),
                    )
    return found


def whole(item: Item, name: str, missing: int = 0) -> int:
    """A number of an item; `missing` if it has none."""
    return int(item[name]["N"]) if name in item else missing
