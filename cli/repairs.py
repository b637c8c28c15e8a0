"""The commands that repair: `reconcile` by drift rows and children, `rebuild` by receipts. Both look first."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from tqdm import tqdm  # type: ignore[import-untyped]

from tally.counter import Counter
from tally.counting import tallies
from tally.drift import rebuild, recount, rows
from tally.drift.looks import moment
from tally.drift.rebuild import Accepted
from tally.drift.reconcile import Finding, Reconciler
from tally.drift.recount import Recount
from tally.dynamo import queries
from tally.dynamo.client import Store
from tally.errors import TallyError
from tally.settings import MINUTE_DEFAULT_S
from tally.shipped import LIKES
from tally.streams import watermark

from .connection import CommandError, Stack
from .terminal import bar, note, say

BAD_INPUT = 2


class Tally(NamedTuple):
    """A tally: its counter and the id that it counts."""

    counter: Counter
    target: str


class Look(NamedTuple):
    """What one tally looks like: by the ledger, and by its children if it counts any."""

    found: Finding
    counted: Recount | None

    @property
    def exact(self) -> int | None:
        """The amount that is missing by an exact count; None if there is no such count."""
        return self.counted.low if self.counted and not self.counted.unclear else None

    @property
    def differs(self) -> bool:
        """Whether something is wrong."""
        return self.found.differs or (self.counted is not None and not self.counted.low <= 0 <= self.counted.high)

    @property
    def line(self) -> str:
        """The tally, what is wrong with it, and what a repair would do."""
        found, counted, row = self.found, self.counted, self.found.drift
        parts = [f"tally {found.tally}"]
        if counted and self.exact is not None:
            parts.append(f"children {counted.children}")
        if row.drift:
            when = f"confirmed in {found.left} minutes" if found.left else "confirmed"
            parts.append(f"drift {row.drift:+d} since {moment(row.since)}, {when}")
        if counted and counted.unclear:
            bounds = f"{counted.low:+d}" if counted.low == counted.high else f"{counted.low:+d} to {counted.high:+d}"
            parts.append(f"by its children {bounds}, but {counted.unclear}")
        amount = found.difference if self.exact is None else self.exact
        parts.append(f"a repair adds {amount:+d}" if amount else "a repair accepts the number")
        return f"{found.counter.name} {found.target}: {', '.join(parts)}"


def reconcile(given: argparse.Namespace, stack: Stack) -> int:
    """Say which tallies are wrong; repair them with --repair.

    Returns 1 if one still is, or is unclear; 2 if there is none of a name that was given.
    """
    reconciler = Reconciler(stack.store)
    asked = [Tally(*named) for named in given.named] or _suspects(stack)
    missing = [tally for tally in asked if given.named and not _is_there(stack.store, *tally)]
    for counter, target in missing:
        note(f"there is no {'post' if counter == LIKES else counter.name} {target}")
    asked = [tally for tally in asked if tally not in missing]
    if not asked and missing:
        return BAD_INPUT
    with bar(asked, "tally", "looked at") as each:
        looks = [_look(reconciler, *tally) for tally in each]
    wrong = [look for look in looks if look.differs]
    unclear = [look for look in looks if not look.differs and look.counted and look.counted.unclear]
    for look in unclear:
        say(f"unclear  {look.line.rpartition(', ')[0]}")
    left = _repair(reconciler, given, wrong) if given.repair and wrong else len(wrong)
    if not given.repair:
        for look in wrong:
            say(f"differs  {look.line}")
    said = [f"{left} differ"] * bool(left) + [f"{len(unclear)} unclear"] * bool(unclear)
    said += [f"{len(missing)} missing"] * bool(missing)
    say(", ".join(said) or "all is well")
    return BAD_INPUT if missing else 1 if said else 0


def _look(reconciler: Reconciler, counter: Counter, target: str) -> Look:
    counted = reconciler.count(counter, target) if counter.child else None
    return Look(reconciler.look(counter, target), counted)


def _is_there(store: Store, counter: Counter, target: str) -> bool:
    """Whether there is a tally, a child of it, or a drift."""
    first, last = counter.shard_range
    if counter.child is not None:
        first, last = min(first, counter.children[0]), max(last, counter.children[1])
    there = queries.query(store, store.settings.counts_table, counter.partition_start + target, first, last, Limit=1)
    return bool(there) or rows.read(store, counter.name, target).upto >= 0


def _repair(reconciler: Reconciler, given: argparse.Namespace, wrong: Sequence[Look]) -> int:
    """Repair these once the ledger has judged what happened so far. Returns how many still differ."""
    asked = _judged(reconciler)
    left = 0
    with bar(wrong, "tally", "repaired") as looks:
        for look in looks:
            counter, target = look.found.counter, look.found.target
            try:
                done = reconciler.repair(counter, target, given.by, given.why, asked=asked, counted=look.counted)
            except TallyError as error:
                note(error.detail)
                left += 1
                continue
            if done is None:
                say(f"even     {counter.name} {target}: tally {reconciler.look(counter, target).tally}")
            else:
                after = done.tally + done.difference
                say(f"repaired {counter.name} {target}: {done.difference:+d} ({done.tally} to {after}), by {done.how}")
    return left


def _judged(reconciler: Reconciler) -> int:
    """Wait until the ledger has judged this minute; the minute. Shows what it waits for."""
    asked = reconciler.asked()
    shown: list[tqdm[Any]] = []

    def tell(left: int) -> None:
        if not shown:
            about_s = left * reconciler.store.settings.minute_s
            note(f"nothing is written until the ledger has judged what happened so far: about {about_s} s")
            shown.append(
                tqdm(total=left, unit=" minute", leave=False, disable=not sys.stderr.isatty(), file=sys.stderr)
            )
        shown[0].update(shown[0].total - left - shown[0].n)

    try:
        reconciler.wait(asked, tell)
    finally:
        for one in shown:
            one.close()
    return asked


def _suspects(stack: Stack) -> list[Tally]:
    """The tallies that differ from their children in a scan, and every tally that drifts."""
    found: dict[tuple[str, str], Tally] = {}
    with bar(recount.families(stack.store, stack.counters), "post", "scanned") as families:
        for counter, target, tally, children in families:
            if tally != children:
                found[counter.name, target] = Tally(counter, target)
    for row in rows.every(stack.store):
        if row.counter in stack.counters:
            found[row.counter, row.target] = Tally(stack.counters[row.counter], row.target)
        else:
            note(
                f"{row.counter} {row.target} drifts by {row.drift:+d}, but lambdas/counters.py declares no such counter"
            )
    return [found[name] for name in sorted(found)]


def rebuilt(given: argparse.Namespace, stack: Stack) -> int:
    """Say what was accepted and never rolled up; add it with --repair. Returns 1 if something is still missing."""
    if given.counter and not rebuild.rebuildable(given.counter):
        hint = "`tally reconcile` counts its items again" if given.counter.child else "it is never rolled up"
        raise CommandError(f"{given.counter.name} has no receipts to rebuild it from: {hint}")
    store, reconciler = stack.store, Reconciler(stack.store)
    seen, found = watermark.read(store, time.time()), rebuild.Accepted()
    days = rebuild.window(store, seen, time.time())
    with bar(rebuild.accepted(store, stack.counters, days, found), "page", "scanned") as pages:
        for _ in pages:
            pass
    only = {(given.counter.name, given.id)} if given.counter else set(found)
    with bar(sorted(only.intersection(found)), "tally", "looked at") as names:
        looks = [rebuild.look(store, stack.counters[name[0]], name[1], found[name]) for name in names]
    lost = [loss for loss in looks if loss.difference]
    left = _rebuild(reconciler, given, lost, found) if given.repair and lost else len(lost)
    if not given.repair:
        for loss in lost:
            say(f"lost     {_loss(store, loss)}")
    between = f"{_day(store, days.first)} to {_day(store, days.last)}"
    say(f"{left} lack receipts of {between}" if left else f"nothing is missing of {between}")
    return 1 if left else 0


def _rebuild(reconciler: Reconciler, given: argparse.Namespace, lost: Sequence[Finding], found: Accepted) -> int:
    """Add what these lack. Returns how many still lack something."""
    asked = _judged(reconciler)
    left = 0
    with bar(lost, "tally", "rebuilt") as losses:
        for loss in losses:
            name = loss.counter.name, loss.target
            try:
                done = rebuild.rebuild(reconciler, loss, found[name], given.by, given.why, asked)
            except TallyError as error:
                note(error.detail)
                left += 1
                continue
            if done:
                after = done.tally + done.difference
                say(f"rebuilt  {done.name}: {done.difference:+d} ({done.tally} to {after})")
    return left


def _loss(store: Store, loss: Finding) -> str:
    days = ", ".join(f"{_day(store, day)} {amount}" for day, amount in loss.days.items())
    repaired = sum(loss.days.values()) - loss.difference
    known = f", of which the ledger has repaired {repaired}" if repaired else ""
    drift = f", drifts by {loss.drift.drift:+d}: `tally reconcile` comes first" if loss.differs else ""
    return f"{loss.name}: tally {loss.tally}, missing {days}{known}{drift}"


def _day(store: Store, day: int) -> str:
    begins_s = day * tallies.DAY * store.settings.minute_s
    return moment(begins_s) if store.settings.minute_s < MINUTE_DEFAULT_S else moment(begins_s)[:10]
