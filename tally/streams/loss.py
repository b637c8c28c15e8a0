"""Losses: records that the streams may have lost. The ledger keeps each loss until a person acknowledges it.

A stream keeps a record for a day. If a consumer has not provably passed a record after a day, the record may be lost:
the consumer did not run, or was stuck in a shard, or the sweep, which makes the proof, did not run. If a table has a
new stream, the records of its old stream may be lost. If a person discards a dead letter, its record is lost.

Until a loss is acknowledged, `as_of` stays before the loss. Records that the bookkeeper lost are in no segment. So the
ledger restarts, and the judge resumes with `resume_minute` (drift/restarted_ledger.py). If the rollup alone lost
records, the ledger shows the lost changes as drift.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..dynamo import clock, items, keys, queries
from ..dynamo.client import Store
from ..dynamo.keys import Item
from ..dynamo.transactions import Write
from ..settings import Settings
from . import lineage
from .lineage import BOOKKEEPER, COMMIT_GRACE

LETTER_PREFIX, GAP_PREFIX = "letter#", "gap#"  # of a loss's name: of a discarded dead letter, or of a gap in the proof
NOTHING_LOST_S = 10**11  # later than every time, so no loss delays `as_of`
LETTER_WAITS_MINUTE = 10**11  # later than every minute: as `redriven_until`, while a dead letter waits


class Loss(NamedTuple):
    """A span of time whose records a consumer may have lost.

    `name`: the sort key of the loss's item in the ledger. `resume_minute`: the judge resumes with this minute; 0 if the
    journal is complete, because only the rollup lost records.
    """

    name: str
    consumer: str
    since_s: int
    until_s: int
    resume_minute: int = 0

    @property
    def key(self) -> Item:
        return keys.key(keys.LOST_KEY, self.name)

    @property
    def values(self) -> dict[str, str | float]:
        """The attributes of the loss in the ledger."""
        times = {"since": self.since_s, "until": self.until_s, "resume_minute": self.resume_minute}
        return {"consumer": self.consumer, **times}

    def as_write(self, settings: Settings) -> Write:
        """Returns the write that stores the loss, in place of an older loss of the same name."""
        return items.put_write(settings.ledger_table, self.key, self.values)


def list_losses(store: Store) -> list[Loss]:
    """Returns the losses that nobody has acknowledged."""
    times = ("since", "until", "resume_minute")
    return [
        Loss(item["SK"]["S"], item["consumer"]["S"], *(items.int_attribute(item, name) for name in times))
        for item in queries.partition_items(store, store.settings.ledger_table, keys.LOST_KEY)
    ]


def find_gaps(
    settings: Settings,
    known: list[Loss],
    passed_s: Mapping[str, float],
    now_s: float,
    *,
    has_new_streams: bool,
    redriven_until: int,
) -> list[Loss]:
    """Returns the gap of each consumer that may have lost records, or may lose records within COMMIT_GRACE.

    A new gap includes and replaces the known gap of its consumer. `passed_s`: the time up to which each consumer had
    passed the streams, by the last sweep. `redriven_until`: the last minute of a redrive; LETTER_WAITS_MINUTE while a
    dead letter waits. If dead letters were redriven before the gap was known, the ledger restarts after the minute of
    the redrive, because the other half of such a letter's change may be lost, or on a skipped minute.
    """
    if settings.local_port:  # of `make dev`, whose engine keeps every record
        return []
    before = {loss.name: loss for loss in known}
    until_s = now_s if has_new_streams else now_s - lineage.STREAM_RETENTION_S + COMMIT_GRACE * settings.minute_s
    losses = list[Loss]()
    for consumer, consumer_passed_s in passed_s.items():
        if consumer_passed_s < until_s:
            name = GAP_PREFIX + consumer
            since_s = min(int(consumer_passed_s), before[name].since_s) if name in before else int(consumer_passed_s)
            resume_minute = _resume_minute(settings, consumer, until_s)
            if resume_minute and name not in before and redriven_until < LETTER_WAITS_MINUTE:
                resume_minute = max(resume_minute, redriven_until + 1)
            losses.append(Loss(name, consumer, since_s, int(until_s), resume_minute))
    return losses


def loss_of_discarded(settings: Settings, marker: str, consumer: str, made_s: int) -> Loss:
    """Returns the loss of a dead letter that a person discards now. If the bookkeeper lost the record, the ledger
    restarts after the present minute, on which a redrive of the rollup may have just booked the other half."""
    now_s = clock.now_s()
    return Loss(LETTER_PREFIX + marker, consumer, made_s, made_s, _resume_minute(settings, consumer, now_s))


def _resume_minute(settings: Settings, consumer: str, until_s: float) -> int:
    """Returns the first minute without halves of lost changes; 0 if only the rollup lost records. The other half of a
    lost record is booked at most two minutes after the minute in which the record was made."""
    return settings.minute_of(until_s) + COMMIT_GRACE + 2 if consumer == BOOKKEEPER else 0
