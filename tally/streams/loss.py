"""What the streams may have lost: noted until somebody acknowledges it.

A stream keeps a record for a day. So what a consumer has not provably passed a day later may be lost, whatever it says
when it is back: it was off, it was stuck in a shard, or the sweep was off, which proves what it passes. Streams under
other ARNs begin with nothing. A dead letter that was dropped is lost for certain.

Until then `as_of` does not pass what may be lost. What the bookkeeper lost is in no segment: the ledger restarts, and
judges from `resume_minute` on (drift/restarted_ledger.py). What the rollup alone lost is drift that the ledger
knows.
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

LETTER, GAP = "letter#", "gap#"
NOTHING_LOST_S = 10**11  # later than every time: nothing holds `as_of` up


class Loss(NamedTuple):
    """A span of time whose records a consumer may have lost.

    `name`: the sort key of the item. `resume_minute`: the judge resumes with this minute; 0 if the journal is complete,
    because only the rollup lost records.
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
        """Its attributes in the ledger."""
        return {"consumer": self.consumer, "since": self.since_s, "until": self.until_s, "again": self.resume_minute}

    def as_write(self, settings: Settings) -> Write:
        """The write that notes it, over an older note of its name."""
        return items.put_write(settings.ledger_table, self.key, self.values)


def list_losses(store: Store) -> list[Loss]:
    """What nobody has acknowledged."""
    unacknowledged = queries.partition_items(store, store.settings.ledger_table, keys.LOST_KEY)
    return [
        Loss(
            item["SK"]["S"],
            item["consumer"]["S"],
            *(items.int_attribute(item, name) for name in ("since", "until", "again")),
        )
        for item in unacknowledged
    ]


def find_gaps(
    settings: Settings, known: list[Loss], passed_s: Mapping[str, float], now_s: float, *, other_streams: bool
) -> list[Loss]:
    """What may be lost now. `passed_s`: what each consumer had passed, as a sweep noted it.

    The engine of `make dev` keeps every record, also while it is off.
    """
    if settings.local_port:
        return []
    before = {loss.name: loss for loss in known}
    until_s = now_s if other_streams else now_s - lineage.STREAM_RETENTION_S + COMMIT_GRACE * settings.minute_s
    losses = list[Loss]()
    for consumer, seen_s in passed_s.items():
        if seen_s < until_s:
            name = GAP + consumer
            since_s = min(int(seen_s), before[name].since_s) if name in before else int(seen_s)
            losses.append(Loss(name, consumer, since_s, int(until_s), _resume_minute(settings, consumer, until_s)))
    return losses


def loss_of_discarded(settings: Settings, marker: str, consumer: str, made_s: int) -> Loss:
    """A dead letter that somebody drops now. What was redriven just before is booked on this minute."""
    now_s = clock.now_s()
    return Loss(LETTER + marker, consumer, made_s, made_s, _resume_minute(settings, consumer, now_s))


def _resume_minute(settings: Settings, consumer: str, until_s: float) -> int:
    """The other half of a change is booked on its own minute, or one of its neighbours. The rollup's may be two on."""
    return settings.minute_of(until_s) + COMMIT_GRACE + 2 if consumer == BOOKKEEPER else 0
