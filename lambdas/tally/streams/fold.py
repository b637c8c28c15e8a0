"""Folds stream records, purely, into runs: what one transaction writes, and how far it moves the checkpoint.

A run covers a stretch of records without a gap. It is cut where an item would stand in it twice with two minutes, and
where it is full; so the checkpoint that commits with it says exactly which records have taken effect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..dynamo import ledger
from ..dynamo.client import Call
from ..dynamo.transactions import Write
from ..errors import TallyError
from . import broken
from .record import MALFORMED, Declared, Record, created_s, sequence

ITEMS_MAX = 99  # DynamoDB takes 100 in a transaction; one is the checkpoint
SET_ASIDE_MAX = 25  # of a run: each is an object to put first, and the time left is looked at between runs
RECORDS_MAX = 10_000  # more than any batch has

Key = tuple[Any, ...]
"""What names the item that an effect writes."""
Effect = tuple[Key, int, int, int]
"""(key, mark, a, b): `a` and `b` are summed over a run; two marks for one key are two runs."""
Numbered = tuple[int, str, Record]
"""A record with its sequence number, to compare and as it was spelled."""


@dataclass(frozen=True)
class Consumer:
    """What tells one stream consumer from another. `table` is `counts` or `receipts`."""

    name: str
    read: Mapping[str, Callable[[Declared, Record], Sequence[Effect]]]
    """By table: the effects of a record. Raises UnreadableError or one of MALFORMED for one that is to be set aside."""
    write: Callable[[Call, Declared, str, int, Effect], Write]
    """(call, declared, table, bucket, folded effect) -> the entry of a transaction."""
    awaited: Mapping[str, Callable[[Record], bool]]
    """By table: whether another consumer has to act on a record before what this one says of it can be judged."""


class Run:
    """A stretch of records, folded."""

    __slots__ = ("applied", "awaited", "first", "last", "oldest_s", "records", "set_aside", "sums", "through_s")

    def __init__(self, first: str) -> None:
        self.sums: dict[Key, list[int]] = {}
        """By key: mark, sum of `a`, sum of `b`."""
        self.set_aside: list[tuple[str, Record, str]] = []
        """Sequence number, record and reason of those that cannot be applied."""
        self.first = self.last = first
        self.records = self.applied = 0
        self.awaited: str | None = None
        self.through_s: float | None = None
        """When the last record was made; None if no record says so."""
        self.oldest_s: float | None = None

    @property
    def effects(self) -> list[Effect]:
        """One for each item; those that sum up to nothing are left out."""
        return [(key, mark, a, b) for key, (mark, a, b) in self.sums.items() if a or b]

    def takes(self, effects: Sequence[Effect]) -> bool:
        """Whether these fit: room for them, and no item with two marks."""
        sums = self.sums
        room = ITEMS_MAX - len(sums) - len(self.set_aside)
        if room < len(effects) and room < sum(effect[0] not in sums for effect in effects):
            return False
        for effect in effects:
            there = sums.get(effect[0])
            if there is not None and there[0] != effect[1]:
                return False
        return True

    def add(self, effects: Sequence[Effect]) -> None:
        """Sum them up."""
        sums = self.sums
        for key, mark, a, b in effects:
            there = sums.get(key)
            if there is None:
                sums[key] = [mark, a, b]
            else:
                there[1] += a
                there[2] += b

    def passes(self, spelled: str, created: float | None) -> None:
        """It covers this record too."""
        self.records += 1
        self.last = spelled
        if created is not None:
            self.through_s = created
            if self.oldest_s is None or created < self.oldest_s:
                self.oldest_s = created


def bucket(shard: str) -> int:
    """The bucket of a stream shard, the same in every process: consumers of one hot tally do not meet on one item."""
    return int(hashlib.sha256(shard.encode()).hexdigest()[:8], 16) % ledger.BUCKETS


def in_order(records: Iterable[Any]) -> tuple[list[Numbered], list[Any]]:
    """The records by their sequence numbers, each once; and those that have none."""
    numbered: dict[int, Numbered] = {}
    unnumbered: list[Any] = []
    for record in records:
        spelled = sequence(record)
        if spelled is None:
            unnumbered.append(record)
        else:
            number = int(spelled)
            numbered.setdefault(number, (number, spelled, record))
    return sorted(numbered.values(), key=lambda one: one[0]), unnumbered


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
    run = Run(records[start][1])
    for _, spelled, record in records[start : start + most]:
        effects, created, reason = _read(read, declared, table, record, refused.get(spelled))
        if reason is not None:
            if run.records and (len(run.set_aside) >= SET_ASIDE_MAX or len(run.sums) + len(run.set_aside) >= ITEMS_MAX):
                break
            run.set_aside.append((spelled, record, reason))
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
    """All the runs of a batch, from the first record on: what `streams.py` does with it if nothing comes in between."""
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
    """The effects of a record, when it was made, and the reason why it is to be set aside, if it is."""
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
