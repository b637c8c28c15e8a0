"""How far the hours are summed up, and which minutes of the ledger an hour has."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from ..dynamo import clock, items, keys, queries
from ..dynamo.client import Store
from ..settings import Settings
from ..streams.lineage import CLOCK_SKEW
from ..streams.loss import NOTHING_LOST_S

HOUR_S = 3600
DAY_H = 24
EXPIRY_GRACE_DAYS = 7  # by which an item outlives what is shown of it: sweeps may be late
PROGRESS = keys.key(keys.PROGRESS_KEY, keys.PROGRESS_KEY)


@dataclass(frozen=True)
class Progress:
    """How far the hours are summed up. It is -1 everywhere before the first sweep."""

    since: int = -1
    """The first minute that the series have."""
    through: int = -1
    """The last minute that is in running segments."""
    hour: int = -1
    """The first hour, in hours since 1970, that is not yet in the items of the days."""
    after: str = ""
    """The digest of the last tally whose item of that hour is written; empty: none yet."""
    kept: str = "[]"
    """JSON, `[[first day, days]]`: the items from a day on were written to be kept for so many days, 0: for ever. The
    first one is the first day that is there at all; it only moves on."""
    lost_s: int = NOTHING_LOST_S
    """When the oldest record was made that is in no segment: it is a dead letter, or may be lost."""
    redriven: int = -1
    """The minute up to which one was booked that was in none before."""
    lacking_s: int = NOTHING_LOST_S
    """When the oldest change was made that may be in no hour: it is lost, or was redriven and is not summed up yet."""
    unset: tuple[str, ...] = ()
    """What the ledger does not have of it: an older sweep has noted the rest."""

    @property
    def values(self) -> dict[str, str | float]:
        """Its attributes in the ledger, but for `kept`: they say how far it has come."""
        return {
            "since": self.since, "through": self.through, "hour": self.hour, "after": self.after,
            "lost_s": self.lost_s, "redriven": self.redriven, "lacking_s": self.lacking_s,
        }  # fmt: skip

    def first_hour(self, settings: Settings) -> int:
        """The first hour that is shown: that of `since`, or of the first day that is still there.

        It moves on by the clock, too: while no sweep runs, days go all the same.
        """
        kept = json.loads(self.kept)
        kept = kept and json.loads(self.retention_for(kept[-1][1]))
        return max(hour_of(settings, self.since), kept[0][0] * DAY_H if kept else 0)

    def retention_for(self, option: int) -> str:
        """`kept`, while the items of its hour are written to be kept for `option` days; 0: for ever.

        A longer life holds for the days after this one: what was written before goes when it was to go.
        """
        day, kept = self.hour // DAY_H, json.loads(self.kept) or [[0, option]]
        was = kept[-1][1]
        if was != option:
            kept.append([day + (option == 0 or 0 < was < option), option])
        at = max(day, int(clock.now_s()) // (DAY_H * HOUR_S) - EXPIRY_GRACE_DAYS + 1)
        ends = [*(first for first, _ in kept[1:]), at + 2]
        gone = [min(end, at - days) for (first, days), end in zip(kept, ends, strict=True) if 0 < days < at - first]
        least = max(gone, default=0)
        return json.dumps(
            [[max(first, least), days] for (first, days), end in zip(kept, ends, strict=True) if end > least]
        )

    def as_of(self, settings: Settings) -> int | None:
        """Epoch seconds: the series have every change that was accepted before. None before there are any.

        A change may be booked on the minute after its own, so the newest minute does not count.
        """
        whole_s = min(self.through * settings.minute_s, int(self.lacking_s - CLOCK_SKEW * settings.minute_s))
        return max(0, whole_s) if self.through >= self.since >= 0 else None

    def with_missing(self, lost_s: int, minute: int) -> Progress:
        """As it is if a sweep finds, in `minute`, that the oldest record in no segment is of `lost_s`."""
        redriven = minute + 1 if lost_s > self.lost_s else self.redriven
        lacking_s = lost_s if self.through >= redriven else min(lost_s, self.lacking_s)
        return replace(self, lost_s=lost_s, redriven=redriven, lacking_s=lacking_s)


def read(store: Store) -> Progress:
    """How far the hours are summed up."""
    stored = items.from_wire(queries.get(store.client, store.settings.ledger_table, PROGRESS))
    return Progress(**stored, unset=tuple(name for name in ("lost_s", "redriven", "lacking_s") if name not in stored))


def hour_of(settings: Settings, minute: int) -> int:
    """The hour, since 1970, in which a minute begins."""
    return minute * settings.minute_s // HOUR_S


def minutes_of(settings: Settings, hour: int) -> range:
    """The minutes that begin in an hour."""
    first, after = (-(-at * HOUR_S // settings.minute_s) for at in (hour, hour + 1))
    return range(first, after)
