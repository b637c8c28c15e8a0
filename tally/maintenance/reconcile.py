"""Repairs tallies by a proven amount, never by an overwrite, while other changes go on.

The drift row of a tally says by how much the tally is wrong. A repair takes back the confirmed part in one transaction,
on condition that the row is unchanged. The bookkeeper knows the repair by its nonce, and does not book the repair. The
judge adds later minutes to the row, with or without the repair. So writers need not stop.

A count of the children also finds what was wrong before the ledger began. But the count may find an edit whose minute
is not judged. The row gets that edit later, and a repair of the row would take the edit back a second time. So if a
count differs from the ledger, three exact counts must agree, the minutes of the first two must be judged, and the
ledger may have no edit or repair since the first count.

A repair is refused until the judge has judged the minute of its request. When that minute is judged, the row has every
edit and every redrive from before the request. While there is a dead letter, a repair is refused, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..counter import Counter
from ..counting import limits, periods, tallies
from ..drift import history, recount, rows
from ..drift.recount import Recount
from ..drift.rows import DriftRow
from ..dynamo import clock, items
from ..dynamo.client import Call, Store
from ..dynamo.items import Expected
from ..dynamo.keys import Item
from ..dynamo.transactions import Write, try_commit
from ..errors import TallyError
from ..streams import dead_letters, watermark
from ..streams.watermark import Watermark

REPAIRS_MAX = 20  # tries to commit a repair: a try fails if the drift row changes, or the tally has a conflict
PAUSE_S_MAX = 0.2  # seconds between two tries; a conflicting transaction is over in 30 ms
WAIT_MAX = 20  # minutes for the judge, which is six to eight minutes behind if no consumer stalls
WAITS_PER_MINUTE = 12  # reads of the watermark in a minute
COUNTS_BEFORE = 2  # counts in judged minutes that must agree with the last count, if that count differs from the ledger
SHARDS_CHECKED_MAX = 90  # shards that a repair checks: a transaction takes 100 items, with drift row and history


class RepairNotReadyError(TallyError):
    """Nothing proves yet by how much the tally is wrong. The message says what is missing."""


class RepairContentionError(TallyError):
    """A tally or its drift row changed at each attempt to repair it."""


class OutOfBoundsError(TallyError):
    """The repair would bring a tally beyond its floor or ceiling, or still further beyond. Tally refuses such a repair,
    because nobody can take back what was given out."""


class DayReceipts(NamedTuple):
    """The spilled receipts of one tally and one day. `amount`: their sum. `down`: the sum of the negative amounts."""

    amount: int = 0
    down: int = 0


@dataclass(frozen=True)
class Finding:
    """What is wrong with a tally. `difference`: the amount to add to the tally. `how`: what proves the difference."""

    counter: Counter
    target: str  # the id of the tally
    shards: Mapping[int, Item]  # the tally's items, by shard
    drift: DriftRow  # the tally's drift row
    difference: int
    how: str = history.LEDGER
    confirmed: int = 0  # the confirmed part of the drift; 0 if receipts, or a restore's count, prove the difference
    days: Mapping[int, int] = field(default_factory=dict)  # by day since 1970, the amount of the lost receipts
    accepted: Mapping[int, DayReceipts] = field(default_factory=dict)  # by day since 1970, all spilled receipts
    unproven_reason: str = ""  # why the difference is not proven; empty if it is

    @property
    def name(self) -> str:
        return f"{self.counter.name} {self.target}"

    @property
    def tally(self) -> int:
        """The stored number."""
        return recount.stored_sum(self.counter, self.shards)

    @property
    def has_drift(self) -> bool:
        return self.drift.drift != 0


@dataclass(frozen=True)
class Reconciler:
    """Finds and repairs wrong tallies in a store. `clock`: returns epoch seconds. `sleep`: waits some seconds."""

    store: Store
    clock: Callable[[], float] = field(default=clock.now_s)
    sleep: Callable[[float], None] = time.sleep

    def find(self, counter: Counter, target: str, watermark_: Watermark | None = None) -> Finding:
        """Returns what the ledger proves of one tally. `watermark_`: None to read it from the store."""
        drift = rows.read_row(self.store, counter.name, target)
        confirmed = drift.confirmed_amount(watermark_ or watermark.read(self.store))
        # If TTL may have removed the tally, a repair takes the drift from the row, and writes no tally.
        difference = -confirmed if periods.is_kept(counter, target, self.clock()) else 0
        if counter.numbered and difference * (counter.delta or 0) < 0:
            difference = 0  # an excess stays: callers have these numbers, and a repair would give them out twice
        shards = tallies.read_numbered_shards(Call(self.store), counter, target)
        return Finding(counter, target, shards, drift, difference, confirmed=confirmed)

    def count(self, counter: Counter, target: str) -> Recount:
        """Counts the children of a tally."""
        return recount.recount(self.store, counter, target, self.clock())

    def minute_to_judge(self) -> int:
        """Returns the minute that must be judged for a repair that is requested now. Raises RepairNotReadyError."""
        # This machine's clock may be slow. Sweeps write the watermark each minute, so now is at most one minute later.
        minute, noted_s = self.store.settings.minute_of, self._require_complete_ledger().written_s
        return max(minute(self.clock()), minute(noted_s) + 1)

    def wait_until_judged(self, required_minute: int, tell: Callable[[int], object] = lambda left: None) -> None:
        """Waits until the judge has judged a minute. Calls `tell` with the number of minutes that are not judged.
        Raises RepairNotReadyError after WAIT_MAX minutes."""
        for _ in range(WAIT_MAX * WAITS_PER_MINUTE):
            left = required_minute - watermark.read(self.store).judged
            if left <= 0:
                return
            tell(left)
            self.sleep(self.store.settings.minute_s / WAITS_PER_MINUTE)
        self._require_judged(required_minute)

    def count_again(self, counter: Counter, target: str, first: Recount | None) -> Sequence[Recount]:
        """Returns the counts for `repair`: `first`, and a second count if `first` differs from the ledger. If there is
        no exact `first`, returns no count, and the ledger decides. Call it when the minute of `first` is judged, and
        `repair` when the minute of the second count is judged."""
        if first is None or first.unproven_reason:
            return ()
        if first.low == self.find(counter, target).difference:  # `low` of an exact count: what the tally lacks
            return (first,)
        return first, self.count(counter, target)

    def repair(
        self,
        counter: Counter,
        target: str,
        by: str,
        why: str,
        *,
        required_minute: int = -1,
        counted: Sequence[Recount] = (),
    ) -> Finding | None:
        """Repairs one tally. Returns the finding with the amount; None if there is nothing to repair.

        `by`, `why`: who repairs, and the reason, for the history. `required_minute`: must be judged; -1: any minute.
        `counted`: from `count_again`. Raises RepairNotReadyError, OutOfBoundsError, RepairContentionError.
        """
        name = f"{counter.name} {target}"

        def prove(watermark_: Watermark) -> Finding | None:
            finding = self.find(counter, target, watermark_)
            if counted:
                finding = self._finding_by_count(finding, counted)
            if not (finding.has_drift or finding.difference):
                return None
            if finding.has_drift and not finding.confirmed:
                unready = "the drift is not confirmed yet, and may come to 0 by itself"
                raise RepairNotReadyError(f"{name}: {unready}: try again.")
            bounds = limits.read_limits(Call(self.store), counter, target).with_debt(counter.debt)
            if not bounds.allows(finding.tally, finding.difference):
                bound = "it would go below its floor or above its ceiling"
                raise OutOfBoundsError(f"{name} at {finding.tally} cannot move by {finding.difference:+d}: {bound}.")
            return finding

        if counter.items and counter.items.watch:
            number, table = counter.items.watch.attribute, counter.items.table
            raise RepairNotReadyError(f"{name}: {number} in {table} is the team's to repair: Tally never writes it.")
        return self.commit(name, prove, required_minute, by, why)

    def commit(
        self, name: str, prove: Callable[[Watermark], Finding | None], required_minute: int, by: str, why: str
    ) -> Finding | None:
        """Commits the finding that `prove` returns. If its drift row or a shard has changed, calls `prove` once more.
        Returns the finding; None if `prove` found nothing. Raises RepairNotReadyError, RepairContentionError."""
        for _ in range(REPAIRS_MAX):
            finding = prove(self._require_judged(required_minute))
            if finding is None or try_commit(self.store, repair_writes(self.store, finding, by, why, self.clock())):
                return finding
            self.sleep(self.store.spread.random.uniform(0, PAUSE_S_MAX))
        raise RepairContentionError(f"{name} changed at each attempt to repair it. Try again when it is calmer.")

    def _finding_by_count(self, finding: Finding, before: Sequence[Recount]) -> Finding:
        """Counts a last time, and returns the finding by the counts. Returns `finding` itself if the drift explains
        the last count, if the last count is not exact, or if a part of the drift is unconfirmed.

        An edit that is undone within its minute leaves no trace in the ledger. If the first count finds such an edit,
        and the last count finds an equal edit that is not judged, the two counts agree. So a count between the two must
        agree, too, and its minute must be judged. Raises RepairNotReadyError if the counts prove no amount.
        """
        if finding.confirmed != finding.drift.drift:
            return finding
        final, first = self.count(finding.counter, finding.target), before[0]
        newest_repair = history.newest_repair(self.store, finding.counter.name, finding.target)
        if final.unproven_reason and not finding.has_drift:
            raise RepairNotReadyError(f"{finding.name}: cannot tell yet: {final.unproven_reason}.")
        if final.unproven_reason or (finding.has_drift and final.low == finding.difference):
            return finding
        if finding.drift.last_minute >= first.minute or newest_repair != first.newest_repair:
            raise RepairNotReadyError(f"{finding.name} was edited or repaired after the first count: try again.")
        for count in [*before, final]:
            if count.low != first.low:
                counts_differ = f"the first count found {first.low:+d}, and a later one {count.low:+d}"
                raise RepairNotReadyError(f"{finding.name}: {counts_differ}: try again.")
        if final.low != finding.difference and len(before) < COUNTS_BEFORE:
            raise RepairNotReadyError(f"{finding.name}: one count before does not prove {final.low:+d}: try again.")
        return replace(finding, difference=final.low, shards=final.shards, how=history.RECOUNT)

    def _require_judged(self, required_minute: int) -> Watermark:
        """Returns the watermark. Raises RepairNotReadyError if the minute is not judged, or the ledger not complete."""
        watermark_ = self._require_complete_ledger()
        if watermark_.judged < max(0, required_minute):
            minutes_ago = self.store.settings.minute_of(self.clock()) - watermark_.judged
            until = f"judged up to {minutes_ago} minutes ago" if watermark_.judged >= 0 else "not judged yet"
            need, order = "this repair needs the minute of its request", "Check consumers and sweep with `tally status`"
            raise RepairNotReadyError(f"The ledger is {until}, and {need}. {order}, and run the repair again.")
        return watermark_

    def _require_complete_ledger(self) -> Watermark:
        """Returns the watermark. Raises RepairNotReadyError while there is a dead letter, because a redrive would add
        what the repair has added, and after a loss until the judge has come to the resume minute."""
        if dead_letters.any_waiting(self.store):
            why = "There are dead letters, which may be the cause of drift."
            raise RepairNotReadyError(f"{why} Apply them first: run `tally repair` without an id.")
        watermark_ = watermark.read(self.store)
        if watermark_.judged < watermark.pending_resume_minute(self.store, watermark_) - 1:
            why = "Records may be lost, and the ledger has not restarted."
            raise RepairNotReadyError(f"{why} Try again in some minutes.")
        return watermark_


def repair_writes(store: Store, finding: Finding, by: str, why: str, now_s: float) -> list[Write]:
    """Returns the writes of one repair: the tally, its drift row, the history, and checks of its shards.

    A repair by the ledger takes back the confirmed drift. A repair by lost receipts makes the drift smaller, because
    the ledger may know the same receipts as drift. A repair by a count sets the drift to 0. `added` in the history: the
    part of the amount that takes back no drift. No series has this part.
    """
    counter, target, amount = finding.counter, finding.target, finding.difference
    expected, transaction = _expectations(finding), list[Write]()
    if amount:
        shard = min(finding.shards, default=min(1, counter.max_shards - 1))  # a new shard 0 of likes would be a post
        move = Call(store), counter, target, shard, amount, store.settings.minute_of(now_s)
        add = tallies.add_write(*move, nonce_prefix=tallies.REPAIR_NONCE_PREFIX, debt=counter.debt)
        add = tallies.with_day_notes(add, finding.days) if finding.days else add
        of_shard = {**expected.pop(shard, {})}
        if shard in finding.shards:
            of_shard["PK"] = finding.shards[shard]["PK"]  # so the write fails if the parent was removed
        transaction.append({"Update": items.with_expected(add, of_shard) if of_shard else add})
    table, drift = store.settings.counts_table, finding.drift.drift
    transaction += [
        items.check_write(table, tallies.key(counter, target, shard), of_shard) for shard, of_shard in expected.items()
    ]
    left_by_proof = {history.LEDGER: drift - finding.confirmed, history.REBUILD: rows.cancel_out(drift, amount)}
    left = left_by_proof.get(finding.how, 0)
    assert min(drift, 0) <= left <= max(drift, 0), "a repair makes drift smaller"
    assert finding.how != history.LEDGER or amount in (0, -finding.confirmed)
    transaction.append(rows.drift_write(store, finding.drift, left, now_s))
    numbers = {"before": finding.tally, "amount": amount, "added": amount + drift - left}
    texts = {"by": by, "why": why, "how": finding.how}
    return [*transaction, history.repair_entry_write(store, counter.name, target, now_s, numbers, **texts)]


def _expectations(finding: Finding) -> dict[int, Expected]:
    """Returns what a repair expects of each shard: by a count, the number and nonce; by lost receipts, the day notes.

    A repair also expects that missing shards stay missing, as many as fit into the transaction. The shards of a counter
    of children all fit. A further shard gets no day note, because no stream has receipts of these days."""
    counted = [finding.counter.attribute, "nonce"] if finding.how == history.RECOUNT else []
    names = counted or [tallies.day_note(day) for day in finding.days]
    if counted and len(finding.shards) > SHARDS_CHECKED_MAX:
        raise RepairContentionError(f"{finding.name} has too many shards for one repair.")
    missing = [shard for shard in range(finding.counter.max_shards) if shard not in finding.shards]
    shards = [*sorted(finding.shards), *missing][:SHARDS_CHECKED_MAX] if names else []
    assert not counted or finding.shards.keys() <= set(shards), "a count needs each shard"
    return {shard: {name: finding.shards.get(shard, {}).get(name) for name in names} for shard in shards}
