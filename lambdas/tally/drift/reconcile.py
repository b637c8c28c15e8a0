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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..counter import Counter
from ..counting import tallies
from ..dynamo.client import Call, Store
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
    def differs(self) -> bool:
        """Whether the tally drifts."""
        return self.drift is not None and self.drift.drift != 0


@dataclass(frozen=True)
class Reconciler:
    """A run's store and counters. `clock`, `sleep`: wall time."""

    store: Store
    counters: Mapping[str, Counter]
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
        noted_s = float(self._seen().item.get("noted", {"N": "0"})["N"])
        minute = self.store.settings.minute
        return Mark(min(minute(self.clock()), minute(noted_s)), history.newest(self.store, counter.name, target))

    def asked(self) -> int:
        """The minute through which the ledger must be judged for a repair that is asked for now.

        Raises NotProvenError while a record is set aside: it may be what drifts, and a redrive would add it again.
        """
        if set_aside.any_left(self.store):
            raise NotProvenError("Records are set aside, and may be what drifts: run `tally redrive` first.")
        noted_s = float(self._seen().item.get("noted", {"N": "0"})["N"])  # the sweep's clock is better than a laptop's
        minute = self.store.settings.minute
        return max(minute(self.clock()), minute(noted_s) + 1)

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
        self.check_judged(self._seen(), asked)

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
        for _ in range(REPAIRS_MAX):
            seen = self._seen()
            self.check_judged(seen, asked)
            found = self._finding(counter, target, seen)
            row, held = found.drift, None
            if counted is not None:
                try:
                    found = held = self._counted(found, counted, marked)
                except UnclearError:
                    if not found.differs:
                        raise
            if not (found.differs or found.difference):
                return None
            self._check(found)
            if apply_once(self.store, self._writes(found, row, by, why, held=held is not None)):
                return found
            self.pause()
        name = f"{counter.name} {target}"
        raise RestlessError(f"{name} changed at each attempt to repair it: try again when it is calmer.")

    def _counted(self, found: Finding, counted: int, marked: Mark | None) -> Finding:
        """The finding by a second count. Raises UnclearError, or NotProvenError if the first one found another.

        Two equal counts prove that nothing is in the second one that is yet to be judged, if the ledger knows of no
        edit and of no repair in between: one of these, and an edit after it, would come to the same number.
        """
        again = self.count(found.counter, found.target)
        name = f"{found.counter.name} {found.target}"
        edited = marked is not None and found.drift is not None and found.drift.upto >= marked.minute
        if edited or (marked and history.newest(self.store, found.counter.name, found.target) != marked.repaired):
            raise NotProvenError(f"{name} was edited or repaired after the first count: try again.")
        if again.unclear:
            raise UnclearError(f"{name}: cannot tell yet: {again.unclear}.")
        if again.low != counted:
            raise NotProvenError(
                f"{name}: the first count found {counted:+d}, and the second one {again.low:+d}: try again."
            )
        return replace(found, tally=again.tally, difference=counted, shards=again.shards, how=history.RECOUNT)

    def check_judged(self, seen: Evidence, asked: int) -> None:
        """Raise NotProvenError if the ledger is not judged through this minute, or a record is set aside by now."""
        late = self.store.settings.minute(self.clock()) - seen.judged
        if seen.judged < 0:
            raise NotProvenError("The ledger is not judged yet: do its consumers and sweep run?")
        if seen.judged < asked:
            raise NotProvenError(f"The ledger is judged up to {late} minutes ago only: do its consumers and sweep run?")
        if set_aside.any_left(self.store):
            raise NotProvenError("Records are set aside, and may be what drifts: run `tally redrive` first.")

    def pause(self) -> None:
        """Wait a moment before another try."""
        self.sleep(self.store.spread.random.uniform(0, PAUSE_S_MAX))

    def _seen(self) -> Evidence:
        return evidence.read(self.store, self.clock())

    def _finding(self, counter: Counter, target: str, seen: Evidence) -> Finding:
        drift = rows.read(self.store, counter.name, target)
        shards = recount.shards_of(Call(self.store), counter, target)
        difference = -drift.drift if drift else 0
        if counter.numbered and difference * (counter.delta or 0) < 0:
            difference = 0  # a repair would give its numbers out again: accept the number that it has
        left = max(0, evidence.SETTLE - (seen.judged - drift.upto)) if drift and drift.drift else 0
        return Finding(counter, target, recount.number(counter, shards), difference, drift, left, shards)

    def _check(self, found: Finding) -> None:
        """Raise NotProvenError or OutOfBoundsError if the drift must not be repaired now."""
        if found.left:
            name = f"{found.counter.name} {found.target}"
            raise NotProvenError(f"{name}: the drift is not confirmed yet. Try again in {found.left} minutes.")
        if not tallies.fits(found.counter, found.tally + found.difference):
            name = f"{found.counter.name} {found.target}"
            raise OutOfBoundsError(f"{name} at {found.tally} does not take {found.difference:+d}.")

    def _writes(self, found: Finding, row: Drift | None, by: str, why: str, *, held: bool) -> list[Write]:
        """One transaction: the tally moved, its drift row at 0, the history. `held`: every shard must be as counted."""
        counter, target, now_s = found.counter, found.target, self.clock()
        writes: list[Write] = []
        conditions = {shard: as_it_was(counter, item) for shard, item in _every_shard(found).items()} if held else {}
        if found.difference:
            shard = min(found.shards, default=min(1, counter.max_shards - 1))  # never 0: that would make a post
            at = self.store.settings.minute(now_s)
            add = tallies.add(Call(self.store), counter, target, shard, found.difference, at, by=tallies.REPAIRED)
            writes.append({"Update": both(add, conditions.pop(shard)) if held else add})
        for shard, condition in conditions.items():
            key = {"TableName": self.store.settings.counts_table, "Key": tallies.key(counter, target, shard)}
            writes.append({"ConditionCheck": {**key, **condition}})
        if row is not None and row.drift:
            writes.append(rows.taken_back(self.store, row, now_s))
        else:
            writes.append(rows.held(self.store, counter.name, target, row))
        numbers = {"amount": found.difference, "before": found.tally, "after": found.tally + found.difference}
        texts = {"by": by, "why": why, "how": found.how}
        return [*writes, history.entry(self.store, counter.name, target, now_s, texts, numbers)]


def _every_shard(found: Finding) -> dict[int, Item | None]:
    """Every shard that exists, and those that may come to exist, as far as a transaction has room.

    Beyond that a new shard may go unnoticed. That is harmless: Tally writes a shard together with its child.
    """
    if len(found.shards) > SHARDS_HELD_MAX:
        raise RestlessError(f"{found.counter.name} {found.target} has too many shards for one repair.")
    missing = [shard for shard in range(found.counter.max_shards) if shard not in found.shards]
    return {**found.shards, **dict.fromkeys(missing[: SHARDS_HELD_MAX - len(found.shards)])}


def as_it_was(counter: Counter, item: Item | None) -> Item:
    """The condition that a shard still has the number and the nonce that were read, as parameters of a write."""
    if item is None:
        return {"ConditionExpression": "attribute_not_exists(PK)"}
    conditions, names, values = [], {}, {}
    for attribute in (counter.attribute, "nonce"):
        names[f"#held_{attribute}"] = attribute
        if attribute in item:
            values[f":held_{attribute}"] = item[attribute]
            conditions.append(f"#held_{attribute} = :held_{attribute}")
        else:
            conditions.append(f"attribute_not_exists(#held_{attribute})")
    found: Item = {"ConditionExpression": " AND ".join(conditions), "ExpressionAttributeNames": names}
    return found | ({"ExpressionAttributeValues": values} if values else {})


def both(write: Write, condition: Item) -> Write:
    """An update with another condition beside its own."""
    own = write.get("ConditionExpression")
    merged = {name: write.get(name, {}) | part for name, part in condition.items() if isinstance(part, dict)}
    expression = condition["ConditionExpression"]
    return write | merged | {"ConditionExpression": f"({own}) AND ({expression})" if own else expression}
