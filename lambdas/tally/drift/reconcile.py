"""Repairs tallies: by an amount that is proven, never by an overwrite, safe while people like and play.

The drift row of a tally says by how much it is wrong. A repair takes that amount back in one transaction, on condition
that the row is as it was read, and books it nowhere: its nonce tells the bookkeeper. What is under way meanwhile comes
to the row later, whatever the repair did. So nothing has to stand still.

Children that can be counted exactly are better evidence: they also show what was wrong before the streams. What the
ledger will know a minute later must not be repaired twice. So a repair by children needs two exact counts with the same
result, and between them the ledger must have judged the time of the first one. It brings the drift row to 0, too.

A repair needs positive evidence. It is refused until the ledger has judged the minute in which it was asked for: an
edit that was undone, or a record that was redriven, is in the row by then. It is refused while a record is set aside.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from ..counter import Counter
from ..counting import periods, tallies
from ..dynamo import items
from ..dynamo.client import Call, Store
from ..dynamo.items import Was
from ..dynamo.keys import Item
from ..dynamo.transactions import Write, apply_once
from ..errors import TallyError
from ..streams import evidence, set_aside
from ..streams.evidence import Evidence
from . import history, recount, rows
from .recount import Recount
from .rows import Drift

REPAIRS_MAX = 20  # tries to commit a repair: a change of the drift row, or a conflict on the tally, spoils one
PAUSE_S_MAX = 0.2  # between two tries: a conflicting transaction is over in 30 ms
WAIT_MAX = 20  # minutes for the judge: three to six behind while nobody stalls, 13 where no pulse reaches a shard
WAITS_PER_MINUTE = 12
SHARDS_HELD_MAX = 90  # of a tally in a repair: a transaction takes 100 items
T = TypeVar("T")


class NotProvenError(TallyError):
    """The evidence does not allow a repair yet. The message says what is missing."""


class UnclearError(NotProvenError):
    """The children of a tally cannot be counted exactly now."""


class RestlessError(TallyError):
    """A tally or its drift row changed at each attempt to repair it."""


class OutOfBoundsError(TallyError):
    """The repair would bring a tally below its floor or above its ceiling: what was given out cannot be taken back."""


class Mark(NamedTuple):
    """What tells whether something happened to a tally since a count of its children.

    `minute`: one that had not passed when the count began. `repaired`: the newest repair then.
    """

    minute: int
    repaired: str


@dataclass(frozen=True)
class Finding:
    """What the ledger says of one tally. `difference`: the amount that repairs it. `how`: one of the history's."""

    counter: Counter
    target: str
    tally: int
    difference: int
    drift: Drift | None
    left: int
    """Judged minutes that are left until the drift is confirmed; 0: it is."""
    shards: dict[int, Item]
    """Its items."""
    how: str = history.LEDGER

    @property
    def name(self) -> str:
        """The tally, for people."""
        return f"{self.counter.name} {self.target}"

    @property
    def differs(self) -> bool:
        """Whether the tally drifts."""
        return self.drift is not None and self.drift.drift != 0


@dataclass(frozen=True)
class Reconciler:
    """A run's store. `clock`, `sleep`: wall time."""

    store: Store
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def look(self, counter: Counter, target: str) -> Finding:
        """What the ledger says of one tally."""
        return self._finding(counter, target, self._seen())

    def count(self, counter: Counter, target: str) -> Recount:
        """What the children of one tally say."""
        return recount.recount(self.store, counter, target, self.clock())

    def mark(self, counter: Counter, target: str) -> Mark:
        """To be taken before a count, and given to the repair."""
        minute = self.store.settings.minute
        return Mark(
            min(minute(self.clock()), minute(self._seen().noted_s)), history.newest(self.store, counter.name, target)
        )

    def asked(self) -> int:
        """The minute through which the ledger must be judged for a repair that is asked for now.

        Raises NotProvenError while a record is set aside: it may be what drifts, and a redrive would add it again.
        """
        self._check_set_aside()
        minute, noted_s = self.store.settings.minute, self._seen().noted_s
        return max(minute(self.clock()), minute(noted_s) + 1)  # the sweep's clock is better than a laptop's

    def wait(self, asked: int, tell: Callable[[int], object] = lambda left: None) -> None:
        """Wait until the ledger is judged through this minute. `tell` gets the number of minutes left.

        Raises NotProvenError if the judge takes too long.
        """
        minute_s = self.store.settings.minute_s
        for _ in range(WAIT_MAX * WAITS_PER_MINUTE):
            left = asked - self._seen().judged
            if left <= 0:
                return
            tell(left)
            self.sleep(minute_s / WAITS_PER_MINUTE)
        self._check_judged(self._seen(), asked)

    def repair(
        self,
        counter: Counter,
        target: str,
        by: str,
        why: str,
        *,
        asked: int = -1,
        counted: int | None = None,
        marked: Mark | None = None,
    ) -> Finding | None:
        """Repair one tally; the finding with the amount, None if there is nothing to repair.

        `asked`: the minute through which the ledger must be judged. `counted`: what an exact count found before that
        minute; None: the children do not tell. `marked`: taken before that count. Raises NotProvenError,
        OutOfBoundsError, RestlessError.
        """

        def prepared(seen: Evidence) -> tuple[Finding, list[Write]] | None:
            found = self._finding(counter, target, seen)
            if counted is not None:
                try:
                    found = self._counted(found, counted, marked)
                except UnclearError:
                    if not found.differs:
                        raise
            if not (found.differs or found.difference):
                return None
            self._check(found)
            return found, self._writes(found, by, why)

        return self.commit(f"{counter.name} {target}", asked, prepared)

    def commit(self, name: str, asked: int, prepared: Callable[[Evidence], tuple[T, list[Write]] | None]) -> T | None:
        """Commit the writes that `prepared` makes, again if something changed meanwhile; what it made beside them.

        None if it makes none. `asked`: the minute through which the ledger must be judged. Raises NotProvenError,
        RestlessError.
        """
        for _ in range(REPAIRS_MAX):
            seen = self._seen()
            self._check_judged(seen, asked)
            made = prepared(seen)
            if made is None:
                return None
            if apply_once(self.store, made[1]):
                return made[0]
            self.sleep(self.store.spread.random.uniform(0, PAUSE_S_MAX))
        raise RestlessError(f"{name} changed at each attempt to repair it: try again when it is calmer.")

    def _counted(self, found: Finding, counted: int, marked: Mark | None) -> Finding:
        """The finding by a second count. Raises UnclearError, or NotProvenError if the first one found another.

        Two equal counts prove that nothing is in the second one that is yet to be judged, if the ledger knows of no
        edit and of no repair in between: one of these, and an edit after it, would come to the same number.
        """
        again = self.count(found.counter, found.target)
        edited = marked is not None and found.drift is not None and found.drift.upto >= marked.minute
        if edited or (marked and history.newest(self.store, found.counter.name, found.target) != marked.repaired):
            raise NotProvenError(f"{found.name} was edited or repaired after the first count: try again.")
        if again.unclear:
            raise UnclearError(f"{found.name}: cannot tell yet: {again.unclear}.")
        if again.low != counted:
            said = f"the first count found {counted:+d}, and the second one {again.low:+d}"
            raise NotProvenError(f"{found.name}: {said}: try again.")
        return replace(found, tally=again.tally, difference=counted, shards=again.shards, how=history.RECOUNT)

    def _check_judged(self, seen: Evidence, asked: int) -> None:
        """Raise NotProvenError if the ledger is not judged through this minute, or a record is set aside by now."""
        late = self.store.settings.minute(self.clock()) - seen.judged
        if seen.judged < 0:
            raise NotProvenError("The ledger is not judged yet: do its consumers and sweep run?")
        if seen.judged < asked:
            raise NotProvenError(f"The ledger is judged up to {late} minutes ago only: do its consumers and sweep run?")
        self._check_set_aside()

    def _check_set_aside(self) -> None:
        if set_aside.any_left(self.store):
            raise NotProvenError("Records are set aside, and may be what drifts: run `tally redrive` first.")

    def _seen(self) -> Evidence:
        return evidence.read(self.store, self.clock())

    def _finding(self, counter: Counter, target: str, seen: Evidence) -> Finding:
        drift = rows.read(self.store, counter.name, target)
        shards = recount.shards_of(Call(self.store), counter, target)
        difference = -drift.drift if drift and periods.kept(counter, target, self.clock()) else 0
        if counter.numbered and difference * (counter.delta or 0) < 0:
            difference = 0  # a repair would give its numbers out again: accept the number that it has
        left = drift.left(seen) if drift else 0
        return Finding(counter, target, recount.number(counter, shards), difference, drift, left, shards)

    def _check(self, found: Finding) -> None:
        """Raise NotProvenError or OutOfBoundsError if the drift must not be repaired now."""
        if found.left:
            raise NotProvenError(f"{found.name}: the drift is not confirmed yet. Try again in {found.left} minutes.")
        if not tallies.fits(found.counter, found.tally + found.difference):
            raise OutOfBoundsError(f"{found.name} at {found.tally} does not take {found.difference:+d}.")

    def _writes(self, found: Finding, by: str, why: str) -> list[Write]:
        """One transaction: the tally moved, its drift row at 0, the history. After a count, every shard as counted."""
        counter, target, now_s = found.counter, found.target, self.clock()
        writes: list[Write] = []
        counted = _as_counted(found) if found.how == history.RECOUNT else {}
        if found.difference:
            shard = min(found.shards, default=min(1, counter.max_shards - 1))  # never 0: that would make a post
            at = self.store.settings.minute(now_s)
            add = tallies.add(Call(self.store), counter, target, shard, found.difference, at, by=tallies.REPAIRED)
            writes.append({"Update": items.only_if(add, counted.pop(shard)) if counted else add})
        table = self.store.settings.counts_table
        writes += [items.check(table, tallies.key(counter, target, shard), was) for shard, was in counted.items()]
        writes.append(rows.evened(self.store, counter.name, target, found.drift, now_s))
        numbers = {"before": found.tally, "amount": found.difference}
        texts = {"by": by, "why": why, "how": found.how}
        return [*writes, history.entry(self.store, counter.name, target, now_s, texts, **numbers)]


def _as_counted(found: Finding) -> dict[int, Was]:
    """Every shard with the number and the nonce that were read, and those that may come to exist, as far as there is
    room in a transaction.

    Beyond that a new shard may go unnoticed. That is harmless: Tally writes a shard together with its child.
    """
    if len(found.shards) > SHARDS_HELD_MAX:
        raise RestlessError(f"{found.name} has too many shards for one repair.")
    names = (found.counter.attribute, "nonce")
    missing = [shard for shard in range(found.counter.max_shards) if shard not in found.shards]
    there = {shard: {name: item.get(name) for name in names} for shard, item in found.shards.items()}
    return {**there, **dict.fromkeys(missing[: SHARDS_HELD_MAX - len(there)], items.NO_ITEM)}
