"""Decides which tallies of a batch (batch.py) spill, and when its transaction is sent again.

transactions.commit_change decides the same for one change outside a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ..dynamo.client import Call
from ..dynamo.contention import BREAKER_OPEN_S, BREAKER_THROTTLED_S, SPILL_RETRIES_MAX, Retries
from ..dynamo.transactions import CONDITION_FAILED, CONFLICT, SendResult, Write, record_conflict, sleep_or_raise_busy
from . import tallies
from .tallies import Tally


@dataclass
class SpillPlan:
    """The tallies of a batch that spill, if their counters allow this. While its breaker is open, a tally spills from
    the first attempt on. If writes are throttled and no tally meets a conflict, the throttled tallies spill from the
    next attempt on. If a tally still meets a conflict, or a write is still throttled, after SPILL_RETRIES_MAX retries,
    all tallies spill."""

    call: Call
    may_spill: Collection[Tally]
    spilled: set[Tally]
    """The tallies whose sums the rollup adds. Tallies of counters that are always visible soon may be missing."""
    retries: Retries

    @classmethod
    def at_start(cls, call: Call, moved: Iterable[Tally]) -> SpillPlan:
        """Makes the plan of the first attempt. `moved`: none if the caller asked for `soon`."""
        may_spill = {tally for tally in moved if tally.counter.may_spill}
        hot = {tally for tally in may_spill if call.store.breaker.is_open(tally.partition)}
        return cls(call, may_spill, hot, call.retries())

    def is_pending(self, tally: Tally) -> bool:
        """Returns whether the rollup adds the sum of the tally."""
        return tally in self.spilled or tally.counter.is_rolled_up

    def updates(self, sums: Mapping[Tally, int], minute: int, *, may_use_debt: bool) -> list[Write]:
        """Returns the writes that add each sum to its tally. `sums`: no pending tallies. Each call picks new shards."""
        call, pick = self.call, self.call.store.spread.pick_shard
        shards = [pick(tally.partition, tally.counter.max_shards) for tally in sums]
        return [
            {"Update": tallies.add_write(call, *tally, shard, amount, minute, debt=may_use_debt * tally.counter.debt)}
            for (tally, amount), shard in zip(sums.items(), shards, strict=True)
        ]

    def close_breakers(self, sums: Iterable[Tally]) -> None:
        """Closes the breakers of the tallies that the committed transaction moved."""
        for tally in sums:
            self.call.store.breaker.close(tally.partition)

    def retry(self, sums: Collection[Tally], sent: SendResult) -> None:
        """Decides after conflicts or throttling which tallies spill, and sleeps before the next attempt.

        In the transaction the receipt was first, the tallies followed, and then the team's writes. A conflict on the
        receipt or on a team's write says nothing about the tallies. Raises StoreBusyError when the retries are used up.
        If no write met a conflict or throttling, raises what the error of `sent` maps to.
        """
        sent.raise_unless_busy()
        without_team = sent._replace(reasons=sent.reasons[: 1 + len(sums)])
        throttled = without_team.is_busy and not without_team.has_conflict  # and nothing but throttled
        codes = dict(zip(sums, without_team.codes[1:], strict=False))
        for tally, code in codes.items():
            if code == CONFLICT:
                record_conflict(self.call, *tally)
        busy = [tally for tally, code in codes.items() if code not in ("None", CONDITION_FAILED)]
        must_spill, spilled = self.retries.attempts >= SPILL_RETRIES_MAX, set[Tally]()
        if throttled or (must_spill and busy):
            hot = set(self.may_spill).intersection(busy)
            for tally in hot:
                self.call.store.breaker.trip(tally.partition, BREAKER_THROTTLED_S if throttled else BREAKER_OPEN_S)
            spilled = (set(self.may_spill) if must_spill else hot) - self.spilled
        self.spilled |= spilled
        if not (throttled and spilled):  # after a spill, the next attempt needs less throughput, and is sent at once
            sleep_or_raise_busy(self.retries)
