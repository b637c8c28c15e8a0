"""The waits of the ledger, in one place. They scale with the length of a minute (settings.minute_s)."""

from __future__ import annotations

from typing import NamedTuple

LATE = 1  # minutes after its own in which a change may be committed: retries end after 3 s; frozen writers get a minute
SETTLE = 5  # judged minutes that a drift must stand to be confirmed: one that comes of a late commit lasts two
START = 2  # minutes from the first sweep to the first minute that may be judged: older ones may lack a half


class Waits(NamedTuple):
    """The waits of the ledger in seconds, for a minute of this length."""

    minute_s: int

    @property
    def skew_s(self) -> float:
        """How far clocks and DynamoDB's stamps may differ: 5 s."""
        return self.minute_s / 12

    @property
    def listing_s(self) -> float:
        """How late DynamoDB may list a new shard: 60 s."""
        return self.minute_s

    @property
    def fresh_s(self) -> float:
        """How old noted evidence must be to be used: 10 s."""
        return self.minute_s / 6

    @property
    def unreached_s(self) -> float:
        """How long no pulse may reach a shard before the sweep reads the shard itself: 90 s."""
        return 1.5 * self.minute_s
