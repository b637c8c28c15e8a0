"""Folds stream records, without any input or output, into runs. A run has the effects that one transaction commits.

A run covers records without a gap, and ends when it is full. The checkpoint that commits with a run says exactly which
records have taken effect. A run of the rollup writes tallies, a run of the bookkeeper writes segments.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter as Multiset
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..dynamo.client import Call
from ..dynamo.transactions import Write
from .events import Event
from .record import MALFORMED_ERRORS, CounterIndex, PoisonRecordError, Record, created_s, goes_to_rollup, heartbeat_key

DEAD_LETTERS_MAX = 25  # in a run, because each is first put into S3, and no deadline is checked within a run
DeadLetter = tuple[str, Record, str]  # the sequence number of a record that cannot be applied, the record, and why
BUCKETS = 16  # partitions of each minute of the journal; one partition takes the segments of 1,000 records a second


class Effect(NamedTuple):
    """The effect of one or more records on one tally in one minute. An effect with `events` has no amounts."""

    counter: str
    id: str
    minute: int  # the booking minute
    expected: int = 0  # the amount that the bookkeeper expects, or that the rollup or the consumer of team items adds
    observed: int = 0  # by how much the tally moved; only of the bookkeeper
    pair: str = ""  # the name that both halves of a child's removal share; empty: any other change
    day: int = -1  # since 1970: the day that the rollup notes on the tally, or the day of an import; -1: no day
    events: tuple[Event, ...] = ()  # of the thresholds that the number has crossed


class BatchContext(NamedTuple):
    """Where a batch comes from and how it is booked.

    `minute`: the current minute. `last_unbookable_minute`: the last minute that takes no entry (-1: every minute takes
    entries). `is_drift_exempt`: the batch is a redriven dead letter from before the ledger's restart. The other half of
    the letter's change is lost or skipped, so the amount is booked as expected and as observed, and causes no drift.
    """

    table: str
    shard: str
    minute: int = 0
    last_unbookable_minute: int = -1
    is_drift_exempt: bool = False

    @property
    def bucket(self) -> int:
        """The bucket of the stream shard. A hot tally has records in several shards, and so in several buckets."""
        return int(hashlib.sha256(self.shard.encode()).hexdigest()[:8], 16) % BUCKETS

    @property
    def open_minute(self) -> int:
        """The minute on which entries of unbookable minutes are booked: the current minute. If the clock is slow, the
        second minute after `last_unbookable_minute`, because the judge may be reading the minute before."""
        return max(self.minute, self.last_unbookable_minute + 2)


@dataclass
class Run(ABC):
    """The effects of consecutive records. `sums`: one effect for each key; each type of run has its own keys."""

    first: str  # the sequence number of the first record
    context: BatchContext
    last: str = ""  # the sequence number of the last record; empty: the run has no record
    records: int = 0  # how many
    sums: dict[tuple[Any, ...], Effect] = field(default_factory=dict)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    newest_record_s: float | None = None  # when the last record with a valid time was made, epoch seconds
    heartbeat: str = ""  # the key of the newest heartbeat; empty: the run has no heartbeat
    newest_for_rollup: str = ""  # the sequence number of the newest record that the rollup, too, must pass (lineage.py)
    metered_changes: Multiset[str] = field(default_factory=Multiset)  # by counter, without imports: for a metric
    events: list[Event] = field(default_factory=list)
    """Events of crossed thresholds. An event commits with the run, or before the run with its level (levels.py). The
    consumer sends all events after the run has committed."""

    @abstractmethod
    def has_room_for(self, effects: Sequence[Effect]) -> bool:
        """Returns whether the run has room for these effects."""

    @abstractmethod
    def add(self, effects: Sequence[Effect]) -> None: ...

    @abstractmethod
    def writes(self, call: Call, declared: CounterIndex) -> list[Write]: ...

    def on_commit(self) -> None:  # noqa: B027 (most runs note nothing)
        """Notes what the next run must know of this run."""

    @property
    def has_room_for_dead_letter(self) -> bool:
        """Whether the run has room for another dead letter."""
        return len(self.dead_letters) < DEAD_LETTERS_MAX

    def _add(self, key: tuple[Any, ...], effect: Effect) -> None:
        sum_ = self.sums.get(key)
        if sum_ is not None:
            assert sum_.minute == effect.minute
            counter, id_, minute, expected, observed, pair, day, _ = effect  # four times as fast as `_replace`
            effect = Effect(counter, id_, minute, sum_.expected + expected, sum_.observed + observed, pair, day)
        self.sums[key] = effect


@dataclass(frozen=True)
class StreamConsumer:
    """One stream consumer. `read`: by table, returns a record's effects, or raises MALFORMED_ERRORS."""

    name: str
    read: Mapping[str, Callable[[CounterIndex, Record], Sequence[Effect]]]
    run: Callable[[str, BatchContext], Run]  # makes an empty run that begins with this sequence number
    needs_watermark: bool = False  # True for the bookkeeper, which books nothing on judged minutes

    def effects(self, declared: CounterIndex, table: str, record: Record) -> Sequence[Effect]:
        """Returns what a record does. Raises PoisonRecordError if the record is to become a dead letter."""
        try:
            return self.read[table](declared, record)
        except MALFORMED_ERRORS as error:
            raise PoisonRecordError(f"malformed: {type(error).__name__}: {error}") from None


def by_sequence(records: Iterable[Record]) -> dict[int, Record]:
    """Returns the records by sequence number, in their order, each once."""
    numbered = {int(record["dynamodb"]["SequenceNumber"]): record for record in records}
    return dict(sorted(numbered.items()))


def next_run(
    consumer: StreamConsumer,
    declared: CounterIndex,
    context: BatchContext,
    records: Sequence[Record],
    rejected: Mapping[str, str],
) -> Run:
    """Folds records into one run, from the first record until the run is full.

    `rejected`: DynamoDB's reason for each record that it rejected in an earlier attempt, by sequence number.
    """
    run = consumer.run(records[0]["dynamodb"]["SequenceNumber"], context)
    for record in records:
        sequence_number = record["dynamodb"]["SequenceNumber"]
        effects: Sequence[Effect] = ()
        created, reason = None, rejected.get(sequence_number)
        try:
            created = created_s(record)
            effects = () if reason is not None else consumer.effects(declared, context.table, record)
        except PoisonRecordError as error:
            reason = error.detail
        has_room = run.has_room_for_dead_letter if reason is not None else not effects or run.has_room_for(effects)
        if run.records and not has_room:  # an empty run takes any record, so that the consumer gets on
            break
        if reason is not None:
            run.dead_letters.append((sequence_number, record, reason))
        elif effects:
            run.add(effects)
        else:
            run.heartbeat = heartbeat_key(record) or run.heartbeat
        if goes_to_rollup(context.table, record):
            run.newest_for_rollup = sequence_number
        assert int(sequence_number) > int(run.last or -1), "out of order"
        run.records += 1
        run.last = sequence_number
        run.newest_record_s = run.newest_record_s if created is None else created
    return run
