"""Repairs tallies: by an amount that is proven, never by an overwrite, safe while people like and play.

The drift row of a tally says by how much it is wrong. A repair takes that amount back in one transaction, on condition
that the row is as it was read, and books it nowhere: its nonce tells the bookkeeper. What is under way meanwhile comes
to the row later, whatever the repair did. So nothing has to stand still.

A repair needs positive evidence. It is refused while the drift is not confirmed, while the ledger is not judged up to
now, while a record is set aside, and while minutes that are not judged yet take the drift back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..counter import Counter
from ..counting import tallies
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..dynamo.transactions import Write, apply_once
from ..errors import TallyError
from ..streams import evidence, set_aside
from ..streams.evidence import Evidence
from . import history, judge, recount, rows
from .rows import Drift

REPAIRS_MAX = 20  # tries to commit a repair: a change of the drift row, or a conflict on the tally, spoils one
PAUSE_S_MAX = 0.2  # between two tries: a conflicting transaction is over in 30 ms
JUDGED_LATE_MAX = 10  # minutes that the judge may be behind: nobody stalled, it is three to five


class NotProvenError(TallyError):
    """The evidence does not allow a repair yet. The message says what is missing."""


class RestlessError(TallyError):
    """A tally or its drift row changed at each attempt to repair it."""


class OutOfBoundsError(TallyError):
    """The repair would bring a tally below its floor or above its ceiling: what was given out cannot be taken back."""


@dataclass(frozen=True)
class Finding:
    """What the ledger says of one tally. `difference`: the amount that repairs it."""

    counter: Counter
    target: str
    tally: int
    difference: int
    drift: Drift | None
    confirmed: bool
    shards: dict[int, Item]
    """Its items."""

    @property
    def differs(self) -> bool:
        """Whether the tally drifts."""
        return self.drift is not None and self.drift.drift != 0

    @property
    def body(self) -> dict[str, Any]:
        """The finding as the command prints it."""
        named = {"counter": self.counter.name, "id": self.target, "tally": self.tally}
        return {**named, "difference": self.difference, "confirmed": self.confirmed}


@dataclass(frozen=True)
class Reconciler:
    """A run's store and counters. `clock`, `sleep`: wall time."""

    store: Store
    counters: Mapping[str, Counter]
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def look(self, counter: Counter, target: str) -> Finding:
        """What the ledger says of one tally."""
        return self._finding(counter, target, evidence.read(self.store, self.clock()))

    def repair(self, counter: Counter, target: str, by: str, why: str) -> Finding | None:
        """Take back the drift of one tally; the finding, None if it does not drift.

        Raises NotProvenError, OutOfBoundsError, RestlessError.
        """
        for _ in range(REPAIRS_MAX):
            seen = evidence.read(self.store, self.clock())
            found = self._finding(counter, target, seen)
            if not found.differs:
                return None
            self._check(found, seen)
            if apply_once(self.store, self._writes(found, by, why)):
                return found
            self.sleep(self.store.spread.random.uniform(0, PAUSE_S_MAX))
        name = f"{counter.name} {target}"
        raise RestlessError(f"{name} changed at each attempt to repair it: try again when it is calmer.")

    def _finding(self, counter: Counter, target: str, seen: Evidence) -> Finding:
        drift = rows.read(self.store, counter.name, target)
        shards = recount.shards_of(Call(self.store), counter, target)
        difference = -drift.drift if drift else 0
        if counter.numbered and difference * (counter.delta or 0) < 0:
            difference = 0  # a repair would give its numbers out again: accept the number that it has
        confirmed = drift is not None and drift.confirmed(seen)
        return Finding(counter, target, recount.number(counter, shards), difference, drift, confirmed, shards)

    def _check(self, found: Finding, seen: Evidence) -> None:
        """Raise NotProvenError or OutOfBoundsError if the drift must not be repaired now."""
        settings, name = self.store.settings, f"{found.counter.name} {found.target}"
        assert found.drift is not None
        late = int(evidence.late_s(seen, settings, self.clock()) // settings.minute_s)
        if late > JUDGED_LATE_MAX:
            raise NotProvenError(f"The ledger is judged up to {late} minutes ago only: do its consumers and sweep run?")
        if not found.confirmed:
            left = evidence.SETTLE - (seen.judged - found.drift.upto)
            raise NotProvenError(f"{name}: the drift is not confirmed yet. Try again in {left} minutes.")
        if set_aside.any_left(self.store):
            raise NotProvenError("Records are set aside, and may be what drifts: run `tally redrive` first.")
        since = judge.unjudged(self.store, seen, found.counter.name, found.target, self.clock())
        if abs(found.drift.drift + since) * 2 <= abs(found.drift.drift):
            raise NotProvenError(f"{name}: minutes that are not judged yet take the drift back. Try again later.")
        if not tallies.fits(found.counter, found.tally + found.difference):
            raise OutOfBoundsError(f"{name} at {found.tally} does not take {found.difference:+d}.")

    def _writes(self, found: Finding, by: str, why: str) -> list[Write]:
        """One transaction: the tally moved, its drift row at 0, the history."""
        counter, target, now_s = found.counter, found.target, self.clock()
        assert found.drift is not None
        writes: list[Write] = [rows.taken_back(self.store, found.drift, now_s)]
        if found.difference:
            shard = min(found.shards, default=min(1, counter.max_shards - 1))  # never 0: that would make a post
            at = self.store.settings.minute(now_s)
            add = tallies.add(Call(self.store), counter, target, shard, found.difference, at, by=tallies.REPAIRED)
            writes.append({"Update": add})
        numbers = {"amount": found.difference, "before": found.tally, "after": found.tally + found.difference}
        writes.append(history.entry(self.store, counter.name, target, now_s, by, why, numbers))
        return writes
