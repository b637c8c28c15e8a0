"""The progress of the hours, and the minutes of an hour."""

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
EXPIRY_GRACE_DAYS = 7  # how long an item outlives the days that are shown, because sweeps may be late
PROGRESS = keys.key(keys.PROGRESS_KEY, keys.PROGRESS_KEY)


@dataclass(frozen=True)
class Progress:
    """How far the hours are summed up. Before the first sweep, each number is -1."""

    since: int = -1
    """The first minute that the series have."""
    through: int = -1
    """The last minute in running segments."""
    hour: int = -1
    """The first hour, in hours since 1970, that the items of the days lack."""
    after: str = ""
    """The digest of the last tally whose item has that hour; empty: no item has it."""
    retention: str = "[]"
    """JSON, `[[first day, days]]`: the items from a day on are kept for so many days; 0: for ever. The first entry has
    the first day that is not deleted, which never goes back."""
    lost_s: int = NOTHING_LOST_S
    """The time of the oldest record that no segment has: it is a dead letter, or may be lost."""
    redriven_until: int = -1
    """The minute up to which a record that no segment had may be booked, such as a redriven one."""
    missing_since_s: int = NOTHING_LOST_S
    """The time of the oldest change that no hour may have: it is lost, or was redriven and is not summed up yet."""

    @property
    def values(self) -> dict[str, str | float]:
        """The attributes in the ledger without `retention`."""
        return {
            "since": self.since, "through": self.through, "hour": self.hour, "after": self.after,
            "lost_s": self.lost_s, "redriven_until": self.redriven_until, "missing_since_s": self.missing_since_s,
        }  # fmt: skip

    def first_hour(self, settings: Settings) -> int:
        """Returns the first hour that is shown: the hour of `since`, or the first hour of the days that are kept.

        It also moves with the clock: days are deleted while no sweep runs, too.
        """
        kept = json.loads(self.retention)
        kept = kept and json.loads(self.retention_for(kept[-1][1]))
        return max(hour_of(settings, self.since), kept[0][0] * DAY_H if kept else 0)

    def retention_for(self, option: int) -> str:
        """Returns `retention` if items are written now to be kept for `option` days; 0: for ever.

        A longer life begins with the next day: older items keep the expiration that they were written with.
        """
        day, kept = self.hour // DAY_H, json.loads(self.retention) or [[0, option]]
        before = kept[-1][1]
        if before != option:
            kept.append([day + (option == 0 or 0 < before < option), option])
        at = max(day, int(clock.now_s()) // (DAY_H * HOUR_S) - EXPIRY_GRACE_DAYS + 1)
        ends = [*(first for first, _ in kept[1:]), at + 2]
        gone = [min(end, at - days) for (first, days), end in zip(kept, ends, strict=True) if 0 < days < at - first]
        least = max(gone, default=0)
        left = [[max(first, least), days] for (first, days), end in zip(kept, ends, strict=True) if end > least]
        return json.dumps(left)

    def as_of(self, settings: Settings) -> int | None:
        """Returns the time up to which the series have every accepted change, epoch seconds; None if there are no
        series.

        A change may be booked on the minute after its own, so the newest minute is left out.
        """
        whole_s = min(self.through * settings.minute_s, int(self.missing_since_s - CLOCK_SKEW * settings.minute_s))
        return max(0, whole_s) if self.through >= self.since >= 0 else None

    def with_missing(self, lost_s: int, minute: int) -> Progress:
        """Returns the progress after a sweep found, in `minute`, that `lost_s` is the oldest record that no segment
        has."""
        redriven_until = minute + 1 if lost_s > self.lost_s else self.redriven_until
        missing_since_s = lost_s if self.through >= redriven_until else min(lost_s, self.missing_since_s)
        return replace(self, lost_s=lost_s, redriven_until=redriven_until, missing_since_s=missing_since_s)


def read(store: Store) -> Progress:
    """Reads the progress."""
    return Progress(**items.from_wire(queries.get(store.client, store.settings.ledger_table, PROGRESS)))


def hour_of(settings: Settings, minute: int) -> int:
    """Returns the hour since 1970 in which a minute begins."""
    return minute * settings.minute_s // HOUR_S


def minutes_of(settings: Settings, hour: int) -> range:
    """Returns the minutes that begin in an hour."""
    first, after = (-(-at * HOUR_S // settings.minute_s) for at in (hour, hour + 1))
    return range(first, after)
