"""How far the sweep has summed up the hours, and the minutes of an hour."""

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
EXPIRY_GRACE_DAYS = 7  # an item is kept for so many days after its day is last shown, because sweeps may be late
PROGRESS = keys.key(keys.PROGRESS_KEY, keys.PROGRESS_KEY)


@dataclass(frozen=True)
class Progress:
    """How far the hours are summed up. Before the first sweep, each number is -1."""

    since: int = -1
    """The first minute that the series have."""
    through: int = -1
    """The last minute in running segments."""
    hour: int = -1
    """The present hour, in hours since 1970: the first hour that the items of the days lack."""
    after: str = ""
    """The digest of the last tally whose item of the day has this hour; empty: no item has this hour."""
    retention: str = "[]"
    """JSON, `[[first day, days]]`: items from the first day on are kept for so many days (0: for ever), up to the first
    day of the next entry. The first day of the first entry is the first day that is not deleted, which only grows."""
    lost_s: int = NOTHING_LOST_S
    """The time of the oldest record that no segment has, because the record is a dead letter, or may be lost."""
    redriven_until: int = -1
    """A dead letter that was redriven lately is booked on this minute or an earlier minute."""
    missing_since_s: int = NOTHING_LOST_S
    """The time of the oldest change that may be in no hour: lost, a dead letter, or redriven and not summed up."""

    @property
    def values(self) -> dict[str, str | float]:
        """The attributes in the ledger without `retention`."""
        return {
            "since": self.since, "through": self.through, "hour": self.hour, "after": self.after,
            "lost_s": self.lost_s, "redriven_until": self.redriven_until, "missing_since_s": self.missing_since_s,
        }  # fmt: skip

    def first_hour(self, settings: Settings) -> int:
        """Returns the first hour that is shown: the hour of `since`, or the first hour of the days that are kept.

        The hour also depends on the clock, because days are deleted while no sweep runs, too.
        """
        entries = json.loads(self.retention)
        entries = entries and json.loads(self.retention_for(entries[-1][1]))
        return max(hour_of(settings, self.since), entries[0][0] * DAY_H if entries else 0)

    def retention_for(self, option: int) -> str:
        """Returns `retention` if items are written now to be kept for `option` days; 0: for ever.

        A longer `option` than before applies from the next day on, because items keep the expiration that they have.
        """
        day, entries = self.hour // DAY_H, json.loads(self.retention) or [[0, option]]
        before = entries[-1][1]
        if before != option:
            is_longer = option == 0 or 0 < before < option
            entries.append([day + 1 if is_longer else day, option])
        # TTL may have deleted the items of days before `expired_before - days`.
        expired_before = max(day, int(clock.now_s()) // (DAY_H * HOUR_S) - EXPIRY_GRACE_DAYS + 1)
        ends = [*(first for first, _ in entries[1:]), expired_before + 2]  # the last entry has no end: a later day
        spans = [(first, days, end) for (first, days), end in zip(entries, ends, strict=True)]
        kept_from = [min(end, expired_before - days) for first, days, end in spans if 0 < days < expired_before - first]
        first_kept = max(kept_from, default=0)
        return json.dumps([[max(first, first_kept), days] for first, days, end in spans if end > first_kept])

    def as_of(self, settings: Settings) -> int | None:
        """Returns the time up to which the series have every accepted change, epoch seconds; None: no series.

        A change may be booked on the minute after its own, so the newest minute is left out.
        """
        complete_s = min(self.through * settings.minute_s, int(self.missing_since_s - CLOCK_SKEW * settings.minute_s))
        return max(0, complete_s) if self.through >= self.since >= 0 else None

    def with_missing(self, lost_s: int, minute: int) -> Progress:
        """Returns the progress with `lost_s`, as a sweep found it in `minute`. If `lost_s` is later than before, a dead
        letter was redriven. Until the hours have the minute on which it was booked, `missing_since_s` stays."""
        redriven_until = minute + 1 if lost_s > self.lost_s else self.redriven_until
        missing_since_s = lost_s if self.through >= redriven_until else min(lost_s, self.missing_since_s)
        return replace(self, lost_s=lost_s, redriven_until=redriven_until, missing_since_s=missing_since_s)


def read(store: Store) -> Progress:
    """Reads the progress of the hours."""
    return Progress(**items.from_wire(queries.get(store.client, store.settings.ledger_table, PROGRESS)))


def hour_of(settings: Settings, minute: int) -> int:
    """Returns the hour since 1970 in which a minute begins."""
    return minute * settings.minute_s // HOUR_S


def minutes_of(settings: Settings, hour: int) -> range:
    """Returns the minutes that begin in an hour."""
    first, after = (-(-start * HOUR_S // settings.minute_s) for start in (hour, hour + 1))  # rounded up
    return range(first, after)
