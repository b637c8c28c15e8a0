"""Folds stream records, purely, into runs: the writes of one transaction, and how far it moves the checkpoint.

A run covers records without a gap. It ends where one item would need two minutes, and where it is full. So the
checkpoint that commits with it says exactly which records have taken effect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..dynamo import keys
from ..dynamo.client import Call
from ..dynamo.transactions import Write
from ..errors import TallyError
from . import broken
from .record import MALFORMED, Declared, Record, created_s, sequence

ITEMS_MAX = 99  # DynamoDB takes 100 in a transaction; one is the checkpoint
SET_ASIDE_MAX = 25  # in a run: each is an object to put first, and the consumer looks at the time between runs
RECORDS_MAX = 10_000  # more than any batch has


class Effect(NamedTuple):
    """What one record, or a run of them, does to one tally in one minute."""

    counter: str
    id: str
    minute: int
    accepted: int = 0
    """The amount that was accepted: the rollup adds it, the bookkeeper expects it."""
    observed: int = 0
    """The amount by which the tally moved."""


class Numbered(NamedTuple):
    """A record with its sequence number, as a number to compare and as the record spells it."""

    number: int
    spelled: str
    record: Record


class SetAside(NamedTuple):
    """A record that cannot be applied, its sequence number, and why."""

    spelled: str
    record: Record
    reason: str


@dataclass(frozen=True)
class Consumer:
    """How one stream consumer differs from another. `table` is `counts` or `receipts`."""

    name: str
    read: Mapping[str, Callable[[Declared, Record], Sequence[Effect]]]
    """By table: the effects of a record. Raises UnreadableError or one of MALFORMED for one that is to be set aside."""
    write: Callable[[Call, Declared, str, int, Effect], Write]
    """(call, declared, table, bucket, folded effect) -> the entry of a transaction."""
    item: Callable[[Effect], tuple[object, ...]]
    """The item that an effect writes: effects of one item and one minute are summed."""
    awaited: Mapping[str, Callable[[Record], bool]]
    """By table: whether another consumer must act on a record before this one's entries can be judged."""


class Run:
    """A stretch of records, folded."""

    __slots__ = ("applied", "awaited", "first", "item", "last", "oldest_s", "records", "set_aside", "sums", "through_s")

    def __init__(self, first: str, item: Callable[[Effect], tuple[object, ...]]) -> None:
        self.item = item
        self.sums: dict[tuple[object, ...], Effect] = {}
        """By item."""
        self.set_aside: list[SetAside] = []
        self.first = self.last = first
        self.records = self.applied = 0
        self.awaited: str | None = None
        self.through_s: float | None = None
        """When the last record was made; None if no record says so."""
        self.oldest_s: float | None = None

    @property
    def effects(self) -> list[Effect]:
        """One for each item, without those that sum up to nothing."""
        return [effect for effect in self.sums.values() if effect.accepted or effect.observed]

    def takes(self, effects: Sequence[Effect]) -> bool:
        """Whether there is room for these, and no item would have two minutes."""
        sums, item = self.sums, self.item
        room = ITEMS_MAX - len(sums) - len(self.set_aside)
        if room < len(effects) and room < sum(item(effect) not in sums for effect in effects):
            return False
        for effect in effects:
            there = sums.get(item(effect))
            if there is not None and there.minute != effect.minute:
                return False
        return True

    def add(self, effects: Sequence[Effect]) -> None:
        """Sum them up."""
        sums = self.sums
        for effect in effects:
            item = self.item(effect)
            there = sums.get(item)
            if there is not None:
                counter, id_, minute, accepted, observed = effect
                effect = Effect(counter, id_, minute, there.accepted + accepted, there.observed + observed)
            sums[item] = effect

    def passes(self, spelled: str, created: float | None) -> None:
        """Cover this record too."""
        self.records += 1
        self.last = spelled
        if created is not None:
            self.through_s = created
            if self.oldest_s is None or created < self.oldest_s:
                self.oldest_s = created


def bucket(shard: str) -> int:
    """The bucket of a stream shard, equal in every process: consumers of one hot tally do not meet on one item."""
    return int(hashlib.sha256(shard.encode()).hexdigest()[:8], 16) % keys.BUCKETS


def in_order(records: Iterable[Any]) -> tuple[list[Numbered], list[Any]]:
    """The records in the order of their sequence numbers, each once; and those without a number."""
    numbered: dict[int, Numbered] = {}
    unnumbered: list[Any] = []
    for record in records:
        spelled = sequence(record)
        if spelled is None:
            unnumbered.append(record)
        else:
            number = int(spelled)
            numbered.setdefault(number, Numbered(number, spelled, record))
    return sorted(numbered.values(), key=lambda one: one.number), unnumbered


def next_run(
    consumer: Consumer,
    declared: Declared,
    table: str,
    records: Sequence[Numbered],
    start: int,
    *,
    most: int = RECORDS_MAX,
    refused: Mapping[str, str] | None = None,
) -> Run:
    """The run that begins with `records[start]`, of `most` records.

    `refused`: reasons, by sequence number, why DynamoDB does not take a record.
    """
    read, awaited, refused = consumer.read[table], consumer.awaited.get(table), refused or {}
    run = Run(records[start].spelled, consumer.item)
    for _, spelled, record in records[start : start + most]:
        effects, created, reason = _read(read, declared, table, record, refused.get(spelled))
        if reason is not None:
            if run.records and (len(run.set_aside) >= SET_ASIDE_MAX or len(run.sums) + len(run.set_aside) >= ITEMS_MAX):
                break
            run.set_aside.append(SetAside(spelled, record, reason))
        else:
            if not run.takes(effects):
                break
            run.add(effects)
            run.applied += bool(effects)
        if awaited is not None and _is(awaited, record):
            run.awaited = spelled
        run.passes(spelled, created)
    return run


def fold(consumer: Consumer, declared: Declared, table: str, records: Iterable[Record]) -> list[Run]:
    """All the runs of a batch: those that a consumer commits if nothing interrupts it."""
    numbered, _ = in_order(records)
    runs: list[Run] = []
    start = 0
    while start < len(numbered):
        runs.append(next_run(consumer, declared, table, numbered, start))
        start += runs[-1].records
    return runs


def _read(
    read: Callable[[Declared, Record], Sequence[Effect]],
    declared: Declared,
    table: str,
    record: Record,
    refused: str | None,
) -> tuple[Sequence[Effect], float | None, str | None]:
    """The effects of a record, when it was made, and the reason to set it aside, if there is one."""
    created: float | None = None
    try:
        created = created_s(record)
        return ((), created, refused) if refused is not None else (read(declared, record), created, None)
    except TallyError as error:
        return (), created, error.detail
    except MALFORMED as error:
        return (), created, broken.reason(declared, table, record, error)


def _is(awaited: Callable[[Record], bool], record: Record) -> bool:
    try:
        return awaited(record)
    except (TallyError, *MALFORMED):
        return False
