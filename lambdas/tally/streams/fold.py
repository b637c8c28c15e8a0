"""Folds stream records, purely, into runs: the writes of one transaction, and how far it moves the checkpoint.

A run covers records without a gap, and ends where it is full. So the checkpoint that commits with it says exactly which
records have taken effect. Each consumer has a kind of run: the rollup's writes tallies, the bookkeeper's writes pages.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..dynamo.client import Call
from ..dynamo.transactions import Write
from ..errors import TallyError
from . import broken
from .record import MALFORMED, Declared, Record, created_s, pulse, sequence

SET_ASIDE_MAX = 25  # in a run: each is an object to put first, and the consumer looks at the time between runs
RECORDS_MAX = 10_000  # more than any batch has
BUCKETS = 16


class Effect(NamedTuple):
    """What one record, or a run of them, does to one tally in one minute."""

    counter: str
    id: str
    minute: int
    accepted: int = 0
    """The amount that was accepted: the rollup adds it, the bookkeeper expects it."""
    observed: int = 0
    """The amount by which the tally moved."""
    pair: str = ""
    """The name that both halves of an unlike share."""
    day: int = -1
    """The day that a receipt is stamped with, which the rollup notes; -1: none."""


class Place(NamedTuple):
    """The stream shard that records come from, the current minute, and the last minute that is judged (-1: none)."""

    table: str
    shard: str
    minute: int = 0
    judged: int = -1

    @property
    def bucket(self) -> int:
        """Equal in every process: consumers of one hot tally do not meet on one item."""
        return int(hashlib.sha256(self.shard.encode()).hexdigest()[:8], 16) % BUCKETS


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


@dataclass
class Run(ABC):
    """A stretch of records, folded. `sums`: one effect for each key, which a kind of run chooses."""

    first: str
    place: Place
    last: str = ""
    records: int = 0
    sums: dict[tuple[Any, ...], Effect] = field(default_factory=dict)
    set_aside: list[SetAside] = field(default_factory=list)
    through_s: float | None = None
    """When the last record was made that says so."""
    pulse: tuple[str, int] | None = None
    """The newest pulse: its key, and the time that it carries."""

    @abstractmethod
    def takes(self, effects: Sequence[Effect]) -> bool:
        """Whether there is room for these."""

    @abstractmethod
    def add(self, effects: Sequence[Effect]) -> None:
        """Sum them up."""

    @abstractmethod
    def writes(self, call: Call, declared: Declared) -> list[Write]:
        """The writes of its effects."""

    @property
    def full(self) -> bool:
        """Whether there is no room for another record that is set aside."""
        return len(self.set_aside) >= SET_ASIDE_MAX

    def _add(self, key: tuple[Any, ...], effect: Effect) -> None:
        there = self.sums.get(key)
        if there is not None:
            counter, id_, minute, accepted, observed, pair, day = effect  # four times as fast as `_replace`
            effect = Effect(counter, id_, minute, there.accepted + accepted, there.observed + observed, pair, day)
        self.sums[key] = effect


@dataclass(frozen=True)
class Consumer:
    """How one stream consumer differs from another. `table` is `counts` or `receipts`."""

    name: str
    read: Mapping[str, Callable[[Declared, Record], Sequence[Effect]]]
    """By table: the effects of a record. Raises UnreadableError or one of MALFORMED for one that is to be set aside."""
    run: Callable[[str, Place], Run]
    """An empty run that begins with this sequence number."""
    heeds_judge: bool = False
    """Whether it must know which minutes are judged."""


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
    place: Place,
    records: Sequence[Numbered],
    start: int,
    *,
    most: int = RECORDS_MAX,
    refused: Mapping[str, str] | None = None,
) -> Run:
    """The run that begins with `records[start]`, of `most` records.

    `refused`: reasons, by sequence number, why DynamoDB does not take a record.
    """
    read, refused = consumer.read[place.table], refused or {}
    run = consumer.run(records[start].spelled, place)
    for _, spelled, record in records[start : start + most]:
        effects: Sequence[Effect] = ()
        created, reason = None, refused.get(spelled)
        try:
            created = created_s(record)
            effects = () if reason is not None else read(declared, record)
        except TallyError as error:
            reason = error.detail
        except MALFORMED as error:
            reason = broken.reason(declared, place.table, record, error)
        if run.records and (run.full if reason is not None else effects and not run.takes(effects)):
            break
        if reason is not None:
            run.set_aside.append(SetAside(spelled, record, reason))
        elif effects:
            run.add(effects)
        else:
            run.pulse = pulse(record) or run.pulse
        run.records += 1
        run.last = spelled
        run.through_s = run.through_s if created is None else created
    return run


def fold(consumer: Consumer, declared: Declared, place: Place, records: Iterable[Record]) -> list[Run]:
    """All the runs of a batch: those that a consumer commits if nothing interrupts it."""
    numbered, _ = in_order(records)
    runs: list[Run] = []
    start = 0
    while start < len(numbered):
        runs.append(next_run(consumer, declared, place, numbered, start))
        start += runs[-1].records
    return runs
