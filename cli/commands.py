"""The commands. Results go to stdout, progress and notes to stderr."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tqdm import tqdm  # type: ignore[import-untyped]

from tally.counter import Counter
from tally.drift import history, recount, rows
from tally.drift.reconcile import Finding, Reconciler
from tally.drift.recount import Recount
from tally.dynamo import queries
from tally.dynamo.client import Call, Store
from tally.errors import TallyError
from tally.shipped import LIKES
from tally.streams import bookkeeper, evidence, rollup, set_aside
from tally.streams.record import Declared
from tally.streams.set_aside import Outcome

from .connection import CommandError, Connection

_CONSUMERS = {consumer.name: consumer for consumer in (rollup.CONSUMER, bookkeeper.CONSUMER)}


class Tally(NamedTuple):
    """A tally: its counter and the id that it counts."""

    counter: Counter
    target: str


@dataclass(frozen=True)
class Stack:
    """The tables of a stack, and the counters that the app declares."""

    at: Connection
    counters: Mapping[str, Counter]

    @property
    def store(self) -> Store:
        """The tables."""
        return self.at.store


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
        return self.found.differs or (self.counted is not None and not self.counted.even)

    @property
    def line(self) -> str:
        """The tally, what is wrong with it, and what a repair would do."""
        found, counted, row = self.found, self.counted, self.found.drift
        parts = [f"tally {found.tally}"]
        if counted and self.exact is not None:
            parts.append(f"children {counted.children}")
        if row and row.drift:
            when = f"confirmed in {found.left} minutes" if found.left else "confirmed"
            parts.append(f"drift {row.drift:+d} since {_time(row.since)}, {when}")
        if counted and counted.unclear:
            bounds = f"{counted.low:+d}" if counted.low == counted.high else f"{counted.low:+d} to {counted.high:+d}"
            parts.append(f"by its children {bounds}, but {counted.unclear}")
        amount = found.difference if self.exact is None else self.exact
        parts.append(f"a repair adds {amount:+d}" if amount else "a repair accepts the number")
        return f"{found.counter.name} {found.target}: {', '.join(parts)}"


def reconcile(given: argparse.Namespace, stack: Stack) -> int:
    """Say which tallies are wrong; repair them with --repair. Returns 1 if one still is, or if it cannot be told."""
    reconciler = Reconciler(stack.store, stack.counters)
    asked = [Tally(LIKES, given.post)] if given.post else _suspects(stack)
    if given.post and not _is_there(stack.store, given.post):
        raise CommandError(f"there is no post {given.post}")
    with _bar(asked, "tally", "looked at") as tallies:
        looks = [_look(reconciler, *tally) for tally in tallies]
    wrong = [look for look in looks if look.differs]
    unclear = [look for look in looks if not look.differs and look.counted and look.counted.unclear]
    for look in unclear:
        _say(f"unclear  {look.line.rpartition(', ')[0]}")
    left = _repair(reconciler, given, wrong) if given.repair and wrong else len(wrong)
    if not given.repair:
        for look in wrong:
            _say(f"differs  {look.line}")
    said = [f"{left} differ"] * bool(left) + [f"{len(unclear)} unclear"] * bool(unclear)
    _say(", ".join(said) or "all is well")
    return 1 if said else 0


def _look(reconciler: Reconciler, counter: Counter, target: str) -> Look:
    counted = reconciler.count(counter, target) if counter.child is not None else None
    return Look(reconciler.look(counter, target), counted)


def _is_there(store: Store, post: str) -> bool:
    """Whether a post has a tally, a like, or a drift."""
    low, high = LIKES.shard_range[0], LIKES.children[1]
    first, last = min(low, LIKES.children[0]), max(LIKES.shard_range[1], high)
    there = queries.query(store, store.settings.counts_table, LIKES.partition_start + post, first, last, Limit=1)
    return bool(there or rows.read(store, LIKES.name, post))


def _repair(reconciler: Reconciler, given: argparse.Namespace, wrong: Sequence[Look]) -> int:
    """Repair these once the ledger has judged what happened so far. Returns how many still differ."""
    asked = _judged(reconciler)
    left = 0
    with _bar(wrong, "tally", "repaired") as looks:
        for look in looks:
            counter, target = look.found.counter, look.found.target
            try:
                done = reconciler.repair(counter, target, given.by, given.why, asked=asked, counted=look.exact)
            except TallyError as error:
                _note(error.detail)
                left += 1
                continue
            if done is None:
                _say(f"even     {counter.name} {target}: tally {reconciler.look(counter, target).tally}")
            else:
                after = done.tally + done.difference
                _say(f"repaired {counter.name} {target}: {done.difference:+d} ({done.tally} to {after}), by {done.how}")
    return left


def _judged(reconciler: Reconciler) -> int:
    """Wait until the ledger has judged this minute; the minute. Shows what it waits for."""
    asked = reconciler.asked()
    shown: list[tqdm[Any]] = []

    def tell(left: int) -> None:
        if not shown:
            _note(f"nothing is written until the ledger has judged what happened so far: {left} minutes of it are left")
            shown.append(
                tqdm(total=left, unit=" minute", leave=False, disable=not sys.stderr.isatty(), file=sys.stderr)
            )
        shown[0].update(shown[0].total - left - shown[0].n)

    try:
        reconciler.wait(asked, tell)
    finally:
        for bar in shown:
            bar.close()
    return asked


def _suspects(stack: Stack) -> list[Tally]:
    """The tallies that differ from their children in a scan, and every tally that drifts."""
    found: dict[tuple[str, str], Tally] = {}
    with _bar(recount.families(stack.store, stack.counters), "page", "scanned") as pages:
        for page in pages:
            suspects = (family for family in page if family.tally != family.children)
            found |= {(family.counter.name, family.target): Tally(family.counter, family.target) for family in suspects}
    for _, row in rows.every(stack.store):
        if row.counter in stack.counters:
            found[row.counter, row.target] = Tally(stack.counters[row.counter], row.target)
        else:
            _note(
                f"{row.counter} {row.target} drifts by {row.drift:+d}, but lambdas/counters.py declares no such counter"
            )
    return [found[name] for name in sorted(found)]


def drifts(given: argparse.Namespace, stack: Stack) -> int:
    """Print what drifts. Returns 1 if something does."""
    seen = evidence.read(stack.store, time.time())
    found = [row for _, row in rows.every(stack.store)]
    for row in found:
        confirmed = "  confirmed" if row.confirmed(seen) else ""
        _print(given, row.body(seen), f"{row.counter} {row.target}: {row.drift:+d} since {_time(row.since)}{confirmed}")
    if not found and not given.json:
        _say("nothing drifts")
    return 1 if found else 0


def get(given: argparse.Namespace, stack: Stack) -> int:
    """Print one tally, its shards and its drift."""
    counter: Counter = given.counter
    shards = recount.shards_of(Call(stack.store), counter, given.id)
    row = rows.read(stack.store, counter.name, given.id)
    numbers = {str(shard): recount.number(counter, {shard: item}) for shard, item in sorted(shards.items())}
    number = recount.number(counter, shards)
    body = {"counter": counter.name, "id": given.id, "value": number, "shards": numbers}
    body["drift"] = row.drift if row else 0
    parts = f" in {len(numbers)} shards" if len(numbers) > 1 else "" if shards else ", nothing is stored"
    drifts = f", drifts by {row.drift:+d}" if row and row.drift else ""
    _print(given, body, f"{counter.name} {given.id}: {number}{parts}{drifts}")
    return 0


def redrive(given: argparse.Namespace, stack: Stack) -> int:
    """Apply each set-aside record once. Returns 1 if a record still cannot be applied."""
    objects = stack.at.objects
    if objects is None:
        raise CommandError("the stack has no output 'SetAsideBucketName', where the records would be")
    done = dict.fromkeys(Outcome, 0)
    call, declared = Call(stack.store), Declared(stack.counters, stack.store.settings.minute_s)
    with _bar(list(set_aside.listed(call)), "record", "redriven") as markers:
        for marker in markers:
            judged = evidence.judged(stack.store)
            outcome, why = set_aside.redrive(Call(stack.store), objects, _CONSUMERS, declared, marker, judged)
            done[outcome] += 1
            if outcome is Outcome.KEPT:
                _say(f"kept     {marker.object}: {why}")
    _say(f"{done[Outcome.APPLIED]} applied, {done[Outcome.GONE]} already gone, {done[Outcome.KEPT]} kept")
    return 1 if done[Outcome.KEPT] else 0


def past(given: argparse.Namespace, stack: Stack) -> int:
    """Print the repairs of a tally, the oldest first."""
    found = list(history.read(stack.store, given.counter.name, given.id))
    for entry in found:
        moved = f"{entry['amount']:+d} ({entry['before']} to {entry['after']})"
        _print(given, entry, f"{_time(entry['at'])}  {moved} by {entry['by']} ({entry['how']}): {entry['why']}")
    if not found and not given.json:
        _say(f"{given.counter.name} {given.id} was never repaired")
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace, Stack], int]] = {
    "reconcile": reconcile, "drift": drifts, "get": get, "redrive": redrive, "history": past,
}  # fmt: skip


@contextmanager
def _bar(things: Iterable[Any], unit: str, does: str) -> Iterator[Iterable[Any]]:
    """The things, with a progress bar on stderr if that is a terminal."""
    with tqdm(things, desc=does, unit=f" {unit}", disable=not sys.stderr.isatty(), leave=False, file=sys.stderr) as bar:
        yield bar


def _print(given: argparse.Namespace, body: object, line: str) -> None:
    _say(json.dumps(body) if given.json else line)


def _say(line: str) -> None:
    with tqdm.external_write_mode(file=sys.stdout):
        print(line, flush=True)


def _note(line: str) -> None:
    with tqdm.external_write_mode(file=sys.stderr):
        print(f"tally: {line}", file=sys.stderr, flush=True)


def _time(epoch_s: int) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
