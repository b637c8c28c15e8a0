"""Compares tallies with what they count, and repairs them: never an overwrite, safe while people like and play.

A tally that counts children is compared with them. Any other tally has nothing to count again: its drift row decides. A
difference counts only when it is seen twice. Between the two looks everything that was accepted before the first one
must have passed through the streams, and the ledger must have no unsettled row about the tally: records that the
streams still carry would show as drift after the repair.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..counter import Counter
from ..counting import tallies
from ..dynamo import keys
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..dynamo.transactions import Write, apply_once
from ..errors import TallyError
from ..streams import progress
from . import history, judge, recount, rows
from .rows import Drift

LOOKS_MAX = 40  # at one tally: a change of it, or a consumer that is behind, spoils a look
REPAIRS_MAX = 20  # tries to commit a repair: a change of the tally between the look and the write spoils one
LOOK_PAUSE_S = 1.0  # a consumer needs this long for a batch
SETTLE_SLACK_S = 120  # beyond the settle time: the rest of the minute, and the next sweep
SHARDS_HELD_MAX = 90  # of a tally in a repair: a transaction takes 100 items


class RestlessError(TallyError):
    """A tally kept moving while it was counted or repaired."""


class OutOfBoundsError(TallyError):
    """The repair would bring a tally below its floor or above its ceiling: what was given out cannot be taken back."""


@dataclass(frozen=True)
class Finding:
    """What is wrong with one tally. `difference`: the amount that repairs it; 0 if only its drift row is wrong."""

    counter: Counter
    target: str
    tally: int
    difference: int
    children: int | None
    """How many children it should count; None if it counts none."""
    drift: Drift | None
    shards: dict[int, Item]
    """Its items when it was counted."""

    @property
    def differs(self) -> bool:
        """Whether there is anything to repair."""
        return self.difference != 0 or self.drift is not None

    @property
    def body(self) -> dict[str, Any]:
        """The finding as the command prints it."""
        named = {"counter": self.counter.name, "id": self.target, "tally": self.tally, "children": self.children}
        return {**named, "difference": self.difference, "drift": self.drift.drift if self.drift else 0}


@dataclass(frozen=True)
class Reconciler:
    """A run's store and counters. `say` reports in a line what the run waits for. `clock`, `sleep`: wall time."""

    store: Store
    counters: Mapping[str, Counter]
    say: Callable[[str], None] = lambda line: None
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def look(self, counter: Counter, target: str) -> Finding:
        """What is wrong with one tally. Raises RestlessError if it keeps moving."""
        if counter.child is None:
            return self._by_ledger(counter, target)
        first: Finding | None = None
        first_s = 0.0
        for _ in range(LOOKS_MAX):
            began_s = self.clock()
            found = self._count(counter, target)
            if found is not None:
                if found.difference == 0:
                    return found
                if first is not None and first.difference == found.difference:
                    if self._come_through() > first_s:
                        return found
                else:
                    first, first_s = found, began_s
                    self.say(
                        f"{counter.name} {target}: {found.difference:+d}; looking again when the streams have caught up"
                    )
            self.sleep(LOOK_PAUSE_S)
        raise RestlessError(f"{counter.name} {target} keeps moving: try again when it is calmer.")

    def repair(self, counter: Counter, target: str, by: str, why: str) -> Finding | None:
        """Repair one tally; the finding, None if nothing differs. Raises RestlessError, OutOfBoundsError."""
        for _ in range(REPAIRS_MAX):
            if counter.child is not None:
                self._wait_for_the_ledger(counter, target)
            found = self.look(counter, target)
            if not found.differs:
                return None
            if not tallies.fits(counter, found.tally + found.difference):
                raise OutOfBoundsError(f"{counter.name} {target} at {found.tally} does not take {found.difference:+d}.")
            if not self._carried(found) and self._commit(found, by, why):
                return found
            self.sleep(self.store.spread.random.uniform(0, LOOK_PAUSE_S))
        raise RestlessError(f"{counter.name} {target} moved at each attempt to repair it: try again when it is calmer.")

    def _carried(self, found: Finding) -> bool:
        """Whether the ledger still carries a difference that a recount found. A drift row's own is not carried."""
        return found.children is not None and self.unsettled(found.counter, found.target) > 0

    def unsettled(self, counter: Counter, target: str) -> int:
        """How many minutes of this tally in the ledger are uneven and not judged yet."""
        slot = int(keys.row_key(counter.name, target, 0, 0)[0].partition("#")[2])
        far = progress.settled_minute(int(self.clock())) + 2 * 24 * 60
        every = judge.rows_of_slot(self.store, slot, far)
        own = (row for row in every if (row.counter, row.target) == (counter.name, target))
        return sum(judge.difference(group) != 0 for group in judge.groups(own))

    def _count(self, counter: Counter, target: str) -> Finding | None:
        """One look at a tally and its children; None if it moved, or the rollup has yet to add some of them."""
        found = recount.recount(Call(self.store), counter, target)
        if found is None or (found.spilled_s is not None and found.spilled_s >= self._counted_until()):
            return None
        drift = rows.read(self.store, counter.name, target)
        return Finding(counter, target, found.tally, found.children - found.tally, found.children, drift, found.shards)

    def _by_ledger(self, counter: Counter, target: str) -> Finding:
        shards = recount.shards_of(Call(self.store), counter, target)
        number, drift = recount.number(counter, shards), rows.read(self.store, counter.name, target)
        difference = -drift.drift if drift else 0
        if counter.numbered and difference * (counter.delta or 0) < 0:
            difference = 0  # a repair would give its numbers out again: accept the number that it has
        return Finding(counter, target, number, difference, None, drift, shards)

    def _counted_until(self) -> float:
        return progress.counted_until(progress.read_all(self.store), self.clock(), self.store.settings.settle_s)

    def _come_through(self) -> float:
        """Until when the rollup has counted, and the drift consumer has booked, everything that was accepted."""
        now, now_s, settle_s = progress.read_all(self.store), self.clock(), self.store.settings.settle_s
        booked = progress.known_until(now, now_s, settle_s) - progress.DELIVERY_S
        return min(progress.counted_until(now, now_s, settle_s), booked)

    def _wait_for_the_ledger(self, counter: Counter, target: str) -> None:
        """Wait until the ledger's uneven minutes of this tally are judged. Raises RestlessError after a time-out."""
        until_s = self.clock() + self.store.settings.settle_s + SETTLE_SLACK_S
        said = False
        while self.unsettled(counter, target):
            if self.clock() >= until_s:
                raise RestlessError(
                    f"The ledger of {counter.name} {target} is not judged: do its consumers and sweep run?"
                )
            if not said:
                left = f"{self.store.settings.settle_s} s and a sweep"
                self.say(f"{counter.name} {target}: waiting until its minutes are settled and judged ({left})")
                said = True
            self.sleep(LOOK_PAUSE_S)

    def _commit(self, found: Finding, by: str, why: str) -> bool:
        """One transaction: the adjustment, booked; the drift row deleted; the history. False if anything had moved.

        If children were counted, every shard must be as it was then: a like moves one. There must be no new shard
        either, so the transaction checks all that there may be. A difference that the ledger alone knows does not
        depend on the tally. There the drift row, as it was read, prevents a second repair.
        """
        at = int(self.clock() // 60)
        shard = min(found.shards, default=min(1, found.counter.max_shards - 1))  # never 0: that would make a post
        writes = _held(self.store, found, skip=shard) if found.children is not None else []
        if found.difference:
            writes += self._adjustment(found, shard, at)
        elif found.children is not None:
            writes += _held(self.store, found, only=shard)
        writes.append(self._drift_gone(found))
        numbers = {"amount": found.difference, "before": found.tally, "after": found.tally + found.difference}
        writes.append(history.entry(self.store, found.counter.name, found.target, self.clock(), by, why, numbers))
        return apply_once(self.store, writes)

    def _adjustment(self, found: Finding, shard: int, at: int) -> list[Write]:
        counter, target = found.counter, found.target
        move = tallies.add(Call(self.store), counter, target, shard, found.difference, at)
        if found.children is not None:
            condition, names, values = _as_it_was(counter, found.shards.get(shard))
            move["ConditionExpression"] = condition
            move["ExpressionAttributeNames"] = {**move["ExpressionAttributeNames"], **names}
            move["ExpressionAttributeValues"] = {**move["ExpressionAttributeValues"], **values}
        if not counter.tracked:
            return [{"Update": move}]
        bucket = secrets.randbelow(keys.BUCKETS)
        booked = tallies.book(self.store.settings, counter.name, target, at, bucket, expected=found.difference)
        return [{"Update": move}, booked]

    def _drift_gone(self, found: Finding) -> Write:
        """Delete the drift row if it is as it was read; if there was none, there must be none."""
        condition, values = judge.unchanged(found.drift.item if found.drift else {})
        write = {
            "TableName": self.store.settings.ledger_table,
            "Key": rows.key(found.counter.name, found.target),
            "ConditionExpression": condition,
        }
        if not found.drift:
            return {"ConditionCheck": write}
        return {"Delete": {**write, "ExpressionAttributeValues": values}}


def _held(store: Store, found: Finding, *, skip: int | None = None, only: int | None = None) -> list[Write]:
    """Checks that the tally's shards, even those that do not exist yet, are as they were."""
    shards = [only] if only is not None else [shard for shard in _every_shard(found) if shard != skip]
    writes: list[Write] = []
    for shard in shards:
        condition, names, values = _as_it_was(found.counter, found.shards.get(shard))
        check: dict[str, Any] = {
            "TableName": store.settings.counts_table,
            "Key": tallies.key(found.counter, found.target, shard),
            "ConditionExpression": condition,
        }
        if names:
            check["ExpressionAttributeNames"] = names
        if values:
            check["ExpressionAttributeValues"] = values
        writes.append({"ConditionCheck": check})
    return writes


def _every_shard(found: Finding) -> list[int]:
    """Every shard that exists, and those that may come to exist, as far as a transaction has room.

    Beyond that a new shard may go unnoticed. That is harmless: Tally writes a shard together with its child.
    """
    there = sorted(found.shards)
    if len(there) > SHARDS_HELD_MAX:
        raise RestlessError(f"{found.counter.name} {found.target} has {len(there)} shards: too many for one repair.")
    missing = [shard for shard in range(found.counter.max_shards) if shard not in found.shards]
    return there + missing[: SHARDS_HELD_MAX - len(there)]


def _as_it_was(counter: Counter, item: Item | None) -> tuple[str, dict[str, str], dict[str, Any]]:
    """The condition, names and values that a shard still has the number and the nonce that were read."""
    if item is None:
        return "attribute_not_exists(PK)", {}, {}
    conditions, names, values = [], {}, {}
    for attribute, name in ((counter.attribute, "number"), ("nonce", "nonce")):
        names[f"#{name}"] = attribute
        if attribute in item:
            values[f":held_{name}"] = item[attribute]
            conditions.append(f"#{name} = :held_{name}")
        else:
            conditions.append(f"attribute_not_exists(#{name})")
    return " AND ".join(conditions), names, values
