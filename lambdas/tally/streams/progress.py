"""How far the stream consumers have come: until when the numbers are right, and which minutes can be judged.

Two consumers read both streams. Their checkpoints are compared, stream shard by stream shard: the rollup is behind when
the drift consumer has seen a record that the rollup must still add, the drift consumer when the rollup has passed it.
The pulse, which each sweep writes, distinguishes a quiet stream from a stalled consumer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..dynamo import keys, queries
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..dynamo.transactions import Write, apply

ROLLUP, DRIFT = "rollup", "drift"
COUNTS, RECEIPTS = "counts", "receipts"
DELIVERY_S = 5  # from the write to the consumer, with the consumer's own second of batching
PULSE_GRACE_S = 30  # the time that a consumer may need to reach a pulse: a cold start, a retry
STREAM_KEPT_S = 24 * 3600  # the stream drops older records: no consumer is behind there any more
CACHED_S = 1.0  # a process reads the checkpoints at most this often
PULSE_KEY = keys.key("PULSE", "PULSE")
NOTHING = 0
"""The horizon when no minute can be judged."""

_SEEING_PULSES = (
    (ROLLUP, RECEIPTS),
    (DRIFT, RECEIPTS),
    (DRIFT, COUNTS),
)  # of counts, the rollup gets INSERTs only


@dataclass(frozen=True)
class Checkpoint:
    """How far one consumer has come in one stream shard. Times are in epoch seconds; None: never."""

    consumer: str
    table: str
    shard: str
    sequence: int
    """The last record that it applied or skipped."""
    through: int
    """When that record was written."""
    moved: int
    late: int | None = None
    """When it last applied an old record."""
    pending: int | None = None
    """The drift consumer's: the last record that the rollup has to add."""
    began: int | None = None
    """When the oldest record of its first batch was written: the shard holds nothing older."""


@dataclass(frozen=True)
class Pulse:
    """When the sweep wrote its last pulse, the one before, and the first. 0: never."""

    at: int = 0
    previous: int = 0
    first: int = 0


@dataclass(frozen=True)
class Progress:
    """Checkpoints and pulse at one moment."""

    checkpoints: Sequence[Checkpoint]
    pulse: Pulse = Pulse()

    def newest(self, consumer: str, table: str) -> int:
        """When the newest record that this consumer has passed in this table's stream was written."""
        found = (mark.through for mark in self.checkpoints if (mark.consumer, mark.table) == (consumer, table))
        return max(found, default=0)

    @property
    def began(self) -> int:
        """The first sign of this stack: a record that a consumer received, or a pulse. 0: none."""
        pulse_s = self.pulse.first or self.pulse.previous or self.pulse.at
        records = (mark.through if mark.began is None else mark.began for mark in self.checkpoints)
        return min((known for known in (pulse_s, *records) if known > 0), default=0)


def read(store: Store, streams: Sequence[str] = (COUNTS, RECEIPTS)) -> list[Checkpoint]:
    """Every checkpoint in these streams: one query for each of them and each consumer."""
    table = store.settings.ledger_table
    found: list[Checkpoint] = []
    for consumer in (ROLLUP, DRIFT):
        for stream in streams:
            partition, _ = keys.checkpoint_key(consumer, stream, "")
            for page in queries.pages(store, table, partition, queries.FIRST, queries.LAST):
                found += [_checkpoint(consumer, stream, item) for item in page]
    return found


def read_all(store: Store, streams: Sequence[str] = (COUNTS, RECEIPTS)) -> Progress:
    """Checkpoints in these streams, and the pulse.

    The pulse first: a consumer that passes it meanwhile must not seem stalled.
    """
    found = queries.get(store.client, store.settings.counts_table, PULSE_KEY)
    at, previous, first = (_whole_s(found, name) or 0 for name in ("at", "previous", "first"))
    return Progress(read(store, streams), Pulse(at, previous, first))


def as_of(call: Call) -> int:
    """Epoch seconds: rolled-up numbers include every change that was accepted before.

    It reads the tables once in CACHED_S, and looks at the receipts' stream alone: those numbers come from no other.
    """
    global _cached
    table, now_s = call.store.settings.ledger_table, time.monotonic()
    cached = _cached
    if cached is None or cached[0] != table or now_s - cached[1] >= CACHED_S:
        cached = _cached = (
            table,
            now_s,
            counted_until(read_all(call.store, (RECEIPTS,)), time.time(), call.store.settings.settle_s),
        )
    return cached[2]


_cached: tuple[str, float, int] | None = None


def counted_until(progress: Progress, now_s: float, settle_s: int) -> int:
    """Epoch seconds until which the rollup has added everything, as far as the checkpoints show."""
    # Before the rollup's first batch nothing is counted: there was nothing to count until the stack began. Never 0 (the
    # year 1970), which would raise an alarm in a stack's first minute.
    newest = progress.newest(ROLLUP, RECEIPTS) or progress.began
    passed = [own.through if own and own.through else _nothing_before(other, newest)
              for own, other in _behind(progress, ROLLUP, now_s)]  # fmt: skip
    if _stalled(progress, ROLLUP, RECEIPTS, now_s, settle_s):
        passed.append(newest)
    return int(min([now_s - DELIVERY_S, *(known for known in passed if known)]))


def _nothing_before(other: Checkpoint, newest: int) -> int:
    """Epoch seconds for a shard that the rollup has not begun. It has passed the shard's parent, or is behind there
    too; and `other` knows of nothing older in the shard itself."""
    return newest if other.began is None else min(newest, other.began)


def rollup_lag_s(progress: Progress, now_s: float, settle_s: int) -> int:
    """How far the rollup is behind, in seconds; 0 if it has caught up."""
    return max(0, int(now_s - DELIVERY_S) - counted_until(progress, now_s, settle_s))


def horizon(progress: Progress, now_s: float, settle_s: int) -> int:
    """Epoch seconds: a minute that ended, and a row that was last booked on, before it is settled.

    Where a consumer is behind or stalled, the judge's time stops at what that consumer has passed. NOTHING while a
    consumer catches up: its own changes of tallies are still on their way through the stream.
    """
    until_s = int(known_until(progress, now_s, settle_s)) - settle_s
    if any(mark.late is not None and mark.late > until_s for mark in progress.checkpoints):
        return NOTHING
    return max(NOTHING, until_s)


def known_until(progress: Progress, now_s: float, settle_s: int) -> float:
    """Epoch seconds that every consumer has passed, apart from records on their way: now, if all have caught up."""
    known_s = float(now_s)
    for consumer in (ROLLUP, DRIFT):
        for own, _ in _behind(progress, consumer, now_s):
            known_s = min(known_s, NOTHING if own is None else own.through)
    for consumer, table in _SEEING_PULSES:
        if _stalled(progress, consumer, table, now_s, settle_s):
            known_s = min(known_s, progress.newest(consumer, table))
    return known_s


def settled_minute(horizon_s: int) -> int:
    """The first minute that is not settled."""
    return horizon_s // 60


def pulse(store: Store, now_s: float) -> None:
    """Write the pulse into both streams: a consumer that does not pass it is stalled."""
    now, removed = {"N": str(int(now_s))}, {"N": str(int(now_s) + STREAM_KEPT_S)}
    counts: Write = {
        "TableName": store.settings.counts_table,
        "Key": PULSE_KEY,
        "UpdateExpression": "SET #previous = if_not_exists(#at, :never), #at = :now,"
        " #first = if_not_exists(#first, :now)",
        "ExpressionAttributeNames": {"#at": "at", "#previous": "previous", "#first": "first"},
        "ExpressionAttributeValues": {":now": now, ":never": {"N": "0"}},
    }
    receipts: Write = {
        "TableName": store.settings.receipts_table,
        "Key": {"id": {"S": "pulse"}},
        "UpdateExpression": "SET #at = :now, expiration = :removed",
        "ExpressionAttributeNames": {"#at": "at"},
        "ExpressionAttributeValues": {":now": now, ":removed": removed},
    }
    for write in (counts, receipts):
        apply(Call(store), [{"Update": write}])


def _behind(progress: Progress, consumer: str, now_s: float) -> list[tuple[Checkpoint | None, Checkpoint]]:
    """The consumer's checkpoint (None: it has not begun) and the other's, for each stream shard where it is behind."""
    marks = {(mark.consumer, mark.table, mark.shard): mark for mark in progress.checkpoints}
    found: list[tuple[Checkpoint | None, Checkpoint]] = []
    for mark in progress.checkpoints:
        if mark.consumer == consumer or now_s - mark.moved > STREAM_KEPT_S:
            continue
        target = mark.pending if consumer == ROLLUP else mark.sequence
        own = marks.get((consumer, mark.table, mark.shard))
        if target is not None and (own is None or own.sequence < target):
            found.append((own, mark))
    return found


def _grace_s(settle_s: int) -> float:
    return min(PULSE_GRACE_S, settle_s / 2)


def _stalled(progress: Progress, consumer: str, table: str, now_s: float, settle_s: int) -> bool:
    """Whether the consumer has not passed a pulse that it had time for."""
    last_s = now_s - _grace_s(settle_s)
    due = max((at for at in (progress.pulse.at, progress.pulse.previous) if at <= last_s), default=0)
    return progress.newest(consumer, table) < due


def stalled(progress: Progress, now_s: float, settle_s: int) -> list[tuple[str, str]]:
    """The streams, as (consumer, table), in which a consumer does not move although it has records to read.

    It has not passed a pulse that it had time for, or it is behind the other one in a shard and has not moved there:
    the rollup does not get the pulses of counts, and a pulse passes through one shard only.
    """
    still = [pair for pair in _SEEING_PULSES if _stalled(progress, *pair, now_s, settle_s)]
    for consumer in (ROLLUP, DRIFT):
        still += [
            (consumer, other.table)
            for own, other in _behind(progress, consumer, now_s)
            if own is None or now_s - own.moved > _grace_s(settle_s)
        ]
    return sorted(set(still))


def _checkpoint(consumer: str, table: str, item: Item) -> Checkpoint:
    pending = item.get("pending", {}).get("S")
    return Checkpoint(
        consumer=consumer,
        table=table,
        shard=item["SK"]["S"],
        sequence=int(item["sequence"]["S"]),
        through=_whole_s(item, "through") or 0,
        moved=_whole_s(item, "moved") or 0,
        late=_whole_s(item, "late"),
        pending=int(pending) if pending else None,
        began=_whole_s(item, "began"),
    )


def _whole_s(item: Item, name: str) -> int | None:
    return int(float(item[name]["N"])) if name in item else None
