"""Repairs tallies: by an amount that is proven, never by an overwrite, safe while people like and play.

The drift row of a tally says by how much it is wrong. A repair takes back what of that is confirmed, in one
transaction, on condition that the row is as it was read, and books it nowhere: its nonce tells the bookkeeper. What is
under way meanwhile comes to the row later, whatever the repair did. So nothing has to stand still.

Children that can be counted exactly show more: also what was wrong before the streams. What the ledger will know a
minute later must not be repaired twice. So where a count says something else than the ledger, three exact counts need
the same result, the ledger must have judged the minutes of the first two, and it must have seen no edit since.

A repair is refused until the ledger has judged the minute in which it was asked for: an edit that was undone, or a
record that was redriven, is in the row by then. It is refused while there is a dead letter.
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

REPAIRS_MAX = 20  # tries to commit a repair: a change of the drift row, or a conflict on the tally, spoils one
PAUSE_S_MAX = 0.2  # between two tries: a conflicting transaction is over in 30 ms
WAIT_MAX = 20  # minutes for the judge: it is four to eight behind while nobody stalls
WAITS_PER_MINUTE = 12
COUNTS_BEFORE = 2  # of the children, judged since, before a count is believed that the ledger does not explain
SHARDS_HELD_MAX = 90  # of a tally in a repair: a transaction takes 100 items


class RepairNotReadyError(TallyError):
    """The watermark does not allow a repair yet. The message says what is missing."""


class RepairContentionError(TallyError):
    """A tally or its drift row changed at each attempt to repair it."""


class OutOfBoundsError(TallyError):
    """The repair would bring a tally below its floor or above its ceiling, or further beyond: what was given out cannot
    be taken back."""


class DayReceipts(NamedTuple):
    """What the receipts of a day come to. `down`: those of negative amounts."""

    amount: int = 0
    down: int = 0


@dataclass(frozen=True)
class Finding:
    """What is wrong with one tally. `difference`: the amount that repairs it. `how`: what shows it (history.py)."""

    counter: Counter
    target: str
    shards: Mapping[int, Item]  # its items
    drift: DriftRow
    difference: int
    how: str = history.LEDGER
    confirmed: int = 0  # what of the drift is
    days: Mapping[int, int] = field(default_factory=dict)  # amounts of lost receipts, by day
    accepted: Mapping[int, DayReceipts] = field(default_factory=dict)  # all receipts of the days that were looked at
    unproven_reason: str = ""  # why nobody can tell whether the difference is one

    @property
    def name(self) -> str:
        return f"{self.counter.name} {self.target}"

    @property
    def tally(self) -> int:
        return recount.stored_sum(self.counter, self.shards)

    @property
    def has_drift(self) -> bool:
        return self.drift.drift != 0


@dataclass(frozen=True)
class Reconciler:
    """A run's store. `clock`, `sleep`: wall time."""

    store: Store
    clock: Callable[[], float] = field(default=clock.now_s)
    sleep: Callable[[float], None] = time.sleep

    def find(self, counter: Counter, target: str, seen: Watermark | None = None) -> Finding:
        """What the ledger says of one tally."""
        drift = rows.read_row(self.store, counter.name, target)
        confirmed = drift.confirmed_amount(seen or watermark.read(self.store))
        difference = -confirmed if periods.is_kept(counter, target, self.clock()) else 0
        if counter.numbered and difference * (counter.delta or 0) < 0:
            difference = 0  # a repair would give its numbers out again: accept the number that it has
        shards = recount.shards_of(Call(self.store), counter, target)
        return Finding(counter, target, shards, drift, difference, confirmed=confirmed)

    def count(self, counter: Counter, target: str) -> Recount:
        """What the children of one tally say."""
        return recount.recount(self.store, counter, target, self.clock())

    def minute_to_judge(self) -> int:
        """The minute through which the ledger must be judged for a repair asked for now. Raises RepairNotReadyError."""
        minute, noted_s = self.store.settings.minute_of, self._require_settled().written_s
        return max(minute(self.clock()), minute(noted_s) + 1)  # the sweep's clock is better than a laptop's

    def wait_until_judged(self, asked: int, tell: Callable[[int], object] = lambda left: None) -> None:
        """Wait until the ledger is judged through this minute.

        `tell` gets the minutes left. Raises RepairNotReadyError.
        """
        for _ in range(WAIT_MAX * WAITS_PER_MINUTE):
            left = asked - watermark.read(self.store).judged
            if left <= 0:
                return
            tell(left)
            self.sleep(self.store.settings.minute_s / WAITS_PER_MINUTE)
        self._require_judged(asked)

    def count_again(self, counter: Counter, target: str, first: Recount | None) -> Sequence[Recount]:
        """The counts that a repair needs, once the ledger is judged through the first one. If they are two, the second
        one's minute is to be judged, too."""
        if first is None or first.unproven_reason:
            return ()
        if first.low == self.find(counter, target).difference:
            return (first,)
        return first, self.count(counter, target)

    def repair(
        self, counter: Counter, target: str, by: str, why: str, *, asked: int = -1, counted: Sequence[Recount] = ()
    ) -> Finding | None:
        """Repair one tally; the finding with the amount, None if there is nothing to repair.

        `counted`: the counts before, as count_again gives them. `asked`: the minute to be judged. Raises
        RepairNotReadyError, OutOfBoundsError, RepairContentionError.
        """

        def proven(seen: Watermark) -> Finding | None:
            finding = self.find(counter, target, seen)
            if counted:
                finding = self._finding_by_count(finding, counted)
            if not (finding.has_drift or finding.difference):
                return None
            if finding.has_drift and not finding.confirmed:
                raise RepairNotReadyError(
                    f"{name}: the drift is not confirmed yet, and may come to 0 by itself: try again."
                )
            within = limits.read_limits(Call(self.store), counter, target).with_debt(counter.debt)
            if not within.allows(finding.tally, finding.difference):
                raise OutOfBoundsError(f"{name} at {finding.tally} does not take {finding.difference:+d}.")
            return finding

        name = f"{counter.name} {target}"
        if counter.items and counter.items.watch:
            number, table = counter.items.watch.attribute, counter.items.table
            raise RepairNotReadyError(f"{name}: {number} in {table} is the team's to repair: Tally never writes it.")
        return self.commit(name, proven, asked, by, why)

    def commit(
        self, name: str, proven: Callable[[Watermark], Finding | None], asked: int, by: str, why: str
    ) -> Finding | None:
        """Commit what `proven` finds, asked again if something changed meanwhile; None if that is nothing.

        Raises RepairNotReadyError, RepairContentionError.
        """
        for _ in range(REPAIRS_MAX):
            finding = proven(self._require_judged(asked))
            if finding is None or try_commit(self.store, repair_writes(self.store, finding, by, why, self.clock())):
                return finding
            self.sleep(self.store.spread.random.uniform(0, PAUSE_S_MAX))
        raise RepairContentionError(f"{name} changed at each attempt to repair it: try again when it is calmer.")

    def _finding_by_count(self, finding: Finding, before: Sequence[Recount]) -> Finding:
        """Return the finding by one more count, or by the ledger if that explains it or stands alone.

        An edit that is undone within its minute leaves no trace in the ledger. So one count alone proves nothing: what
        it found may be gone, and what the next one finds may be an edit that is yet to be judged. While the drift goes
        on, the ledger alone can tell. Raises RepairNotReadyError.
        """
        if finding.confirmed != finding.drift.drift:
            return finding
        again, first = self.count(finding.counter, finding.target), before[0]
        newest = history.newest_repair(self.store, finding.counter.name, finding.target)
        if again.unproven_reason and not finding.has_drift:
            raise RepairNotReadyError(f"{finding.name}: cannot tell yet: {again.unproven_reason}.")
        if again.unproven_reason or (finding.has_drift and again.low == finding.difference):
            return finding
        if finding.drift.last_minute >= first.minute or newest != first.newest_repair:
            raise RepairNotReadyError(f"{finding.name} was edited or repaired after the first count: try again.")
        for count in [*before, again]:
            if count.low != first.low:
                said = f"the first count found {first.low:+d}, and a later one {count.low:+d}"
                raise RepairNotReadyError(f"{finding.name}: {said}: try again.")
        if again.low != finding.difference and len(before) < COUNTS_BEFORE:
            raise RepairNotReadyError(f"{finding.name}: one count before does not prove {again.low:+d}: try again.")
        return replace(finding, difference=again.low, shards=again.shards, how=history.RECOUNT)

    def _require_judged(self, asked: int) -> Watermark:
        """The watermark. Raises RepairNotReadyError if the ledger is not judged through this minute, or not settled."""
        seen = self._require_settled()
        if seen.judged < max(0, asked):
            late = self.store.settings.minute_of(self.clock()) - seen.judged
            until = f"judged up to {late} minutes ago only" if seen.judged >= 0 else "not judged yet"
            raise RepairNotReadyError(f"The ledger is {until}: do its consumers and sweep run?")
        return seen

    def _require_settled(self) -> Watermark:
        """Return the watermark. Raises RepairNotReadyError while there is a dead letter, which a redrive would add
        again, and while the ledger has to begin again."""
        if dead_letters.any_waiting(self.store):
            raise RepairNotReadyError(
                "There are dead letters. They may be what drifts: `tally repair` applies them first."
            )
        seen = watermark.read(self.store)
        if seen.judged < watermark.pending_resume_minute(self.store, seen) - 1:
            raise RepairNotReadyError(
                "Records may be lost, and the ledger has not restarted. Try again in some minutes."
            )
        return seen


def repair_writes(store: Store, finding: Finding, by: str, why: str, now_s: float) -> list[Write]:
    """One repair, as one transaction: the tally moved, its drift row, the history; each shard as its watermark was
    read.

    By the ledger it takes back what is confirmed. Lost receipts may be what the ledger knows as a drift: then it
    becomes less. A count brings it to 0.
    """
    counter, target, amount = finding.counter, finding.target, finding.difference
    held, transaction = _expectations(finding), list[Write]()
    if amount:
        shard = min(finding.shards, default=min(1, counter.max_shards - 1))  # never 0: that would make a post
        at = store.settings.minute_of(now_s)
        add = tallies.add_write(
            Call(store), counter, target, shard, amount, at, nonce_prefix=tallies.REPAIR_NONCE_START, debt=counter.debt
        )
        add = tallies.with_day_notes(add, finding.days) if finding.days else add
        was = {**held.pop(shard, {})}
        if shard in finding.shards:
            was["PK"] = finding.shards[shard]["PK"]  # else its parent has been removed meanwhile
        transaction.append({"Update": items.with_expected(add, was) if was else add})
    table, drift = store.settings.counts_table, finding.drift.drift
    transaction += [items.check_write(table, tallies.key(counter, target, shard), was) for shard, was in held.items()]
    lefts = {history.LEDGER: drift - finding.confirmed, history.REBUILD: _offset(drift, amount)}
    left = lefts.get(finding.how, 0)
    assert min(drift, 0) <= left <= max(drift, 0), "a repair turns no drift"
    assert finding.how != history.LEDGER or amount in (0, -finding.confirmed)
    transaction.append(rows.drift_write(store, finding.drift, left, now_s))
    numbers = {"before": finding.tally, "amount": amount, "added": amount + drift - left}
    return [
        *transaction,
        history.repair_entry_write(store, counter.name, target, now_s, numbers, by=by, why=why, how=finding.how),
    ]


def _offset(drift: int, amount: int) -> int:
    """What is left of a drift that an amount may be about."""
    return drift if drift * amount >= 0 else 0 if abs(drift) <= abs(amount) else drift + amount


def _expectations(finding: Finding) -> dict[int, Expected]:
    """What a repair rests on, by shard: after a count its number and nonce, for lost receipts the notes of the days.
    Shards that may come to exist, too, while there is room: one beyond is harmless, for it comes with its child."""
    counted = [finding.counter.attribute, "nonce"] if finding.how == history.RECOUNT else []
    names = counted or [tallies.day_note(day) for day in finding.days]
    if counted and len(finding.shards) > SHARDS_HELD_MAX:
        raise RepairContentionError(f"{finding.name} has too many shards for one repair.")
    missing = [shard for shard in range(finding.counter.max_shards) if shard not in finding.shards]
    shards = [*sorted(finding.shards), *missing][:SHARDS_HELD_MAX] if names else []
    assert not counted or finding.shards.keys() <= set(shards), "a count rests on each shard"
    return {shard: {name: finding.shards.get(shard, {}).get(name) for name in names} for shard in shards}
