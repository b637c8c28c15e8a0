"""Decides which tallies of one transaction spill, and when the transaction is sent again after conflicts or throttling.

The rules of transactions.commit_change apply, for many changes under one key (batch.py).
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
    """The tallies of one transaction. A hot tally that may spill does so at the start, and a throttled tally at once.
    After SPILL_RETRIES_MAX retries, all tallies that may spill do so."""

    call: Call
    may_spill: Collection[Tally]
    spilled: set[Tally]
    """The tallies whose changes are written alone, so that the rollup adds them; not if their counter is always rolled
    up."""
    retries: Retries

    @classmethod
    def at_start(cls, call: Call, moved: Iterable[Tally]) -> SpillPlan:
        """Makes the plan of the first attempt."""
        may_spill = {tally for tally in moved if tally.counter.may_spill}
        hot = {tally for tally in may_spill if call.store.breaker.is_open(tally.partition)}
        return cls(call, may_spill, hot, call.retries())

    def is_pending(self, tally: Tally) -> bool:
        """Returns whether the rollup adds the tally's change."""
        return tally in self.spilled or tally.counter.is_rolled_up

    def updates(self, sums: Mapping[Tally, int], minute: int, *, may_use_debt: bool) -> list[Write]:
        """Returns the writes that move the tallies by their sums, each on a shard of this attempt."""
        call, pick = self.call, self.call.store.spread.pick_shard
        shards = [pick(tally.partition, tally.counter.max_shards) for tally in sums]
        return [
            {"Update": tallies.add_write(call, *tally, shard, amount, minute, debt=may_use_debt * tally.counter.debt)}
            for (tally, amount), shard in zip(sums.items(), shards, strict=True)
        ]

    def close_breakers(self, sums: Iterable[Tally]) -> None:
        """Closes the breakers of tallies that the transaction moved."""
        for tally in sums:
            self.call.store.breaker.close(tally.partition)

    def retry(self, sums: Collection[Tally], sent: SendResult) -> None:
        """Decides after conflicts or throttling which tallies spill, and waits for the next attempt.

        In the transaction the receipt was first, the tallies followed, and then the team's writes. A conflict on one of
        the team's writes says nothing about the tallies, nor does a conflict on the receipt alone. Raises
        StoreBusyError when the retries are used up, or what `sent` maps to if nothing was busy.
        """
        sent.raise_unless_busy()
        without_team = sent._replace(reasons=sent.reasons[: 1 + len(sums)])
        throttled = without_team.is_busy and not without_team.has_conflict
        codes = dict(zip(sums, without_team.codes[1:], strict=False))
        for tally, code in codes.items():
            if code == CONFLICT:
                record_conflict(self.call, *tally)
        failed = [tally for tally, code in codes.items() if code not in ("None", CONDITION_FAILED)]
        last, spilled = self.retries.attempts >= SPILL_RETRIES_MAX, set[Tally]()
        if throttled or (last and failed):
            hot = set(self.may_spill).intersection(failed)
            for tally in hot:
                self.call.store.breaker.trip(tally.partition, BREAKER_THROTTLED_S if throttled else BREAKER_OPEN_S)
            spilled = (set(self.may_spill) if last else hot) - self.spilled
        self.spilled |= spilled
        if not (throttled and spilled):  # otherwise the next attempt needs less throughput
            sleep_or_raise_busy(self.retries)
