"""The commands. Results go to stdout, progress and notes to stderr."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tqdm import tqdm  # type: ignore[import-untyped]

from tally.counter import Counter
from tally.drift import history, recount, rows
from tally.drift.reconcile import Finding, Reconciler
from tally.drift.recount import Family
from tally.dynamo.client import Call, Store
from tally.errors import TallyError
from tally.shipped import LIKES
from tally.streams import bookkeeper, rollup, set_aside
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


def reconcile(given: argparse.Namespace, stack: Stack) -> int:
    """Compare tallies with what they count, and repair them with --repair. Returns 1 if one still differs."""
    reconciler = Reconciler(stack.store, stack.counters, say=_note)
    asked = [Tally(LIKES, given.post)] if given.post else _suspects(stack)
    if given.post and not _is_there(stack.store, given.post):
        raise CommandError(f"there is no post {given.post}")
    left = 0
    with _bar(asked, "tally", "looked at") as tallies:
        for counter, target in tallies:
            try:
                left += _one(reconciler, given, counter, target)
            except TallyError as error:
                _note(error.detail)
                left += 1
    _say(f"{left} differ" if left else "all is well")
    return 1 if left else 0


def _is_there(store: Store, post: str) -> bool:
    """Whether a post has a tally, a like, or a drift."""
    found = recount.recount(Call(store), LIKES, post, turns=1)
    return found is None or bool(found.shards or found.children or rows.read(store, LIKES.name, post))


def _one(reconciler: Reconciler, given: argparse.Namespace, counter: Counter, target: str) -> bool:
    """Look at one tally, or repair it. Returns whether it still differs."""
    if given.repair:
        repaired = reconciler.repair(counter, target, given.by, given.why)
        if repaired:
            _say(f"repaired {_line(repaired)}")
        return False
    found = reconciler.look(counter, target)
    if found.differs:
        _say(f"differs  {_line(found)}")
    return found.differs


def _line(found: Finding) -> str:
    counted = "" if found.children is None else f" children {found.children}"
    drifts = f" drift {found.drift.drift:+d}" if found.drift else ""
    return f"{found.counter.name} {found.target}: tally {found.tally}{counted} difference {found.difference:+d}{drifts}"


def _suspects(stack: Stack) -> list[Tally]:
    """The tallies that differ from their children in a scan, and every tally that drifts."""
    found: dict[tuple[str, str], Tally] = {}
    with _bar(recount.families(stack.store, stack.counters), "page", "scanned") as pages:
        for page in pages:
            found |= {_name(family): Tally(family.counter, family.target) for family in page if _suspect(family)}
    for row in rows.every(stack.store):
        if row.counter in stack.counters:
            found[row.counter, row.target] = Tally(stack.counters[row.counter], row.target)
        else:
            _note(
                f"{row.counter} {row.target} drifts by {row.drift:+d}, but lambdas/counters.py declares no such counter"
            )
    return [found[name] for name in sorted(found)]


def _name(family: Family) -> tuple[str, str]:
    return family.counter.name, family.target


def _suspect(family: Family) -> bool:
    return family.tally != family.children


def drifts(given: argparse.Namespace, stack: Stack) -> int:
    """Print what drifts. Returns 1 if something does."""
    found = list(rows.every(stack.store))
    for row in found:
        confirmed = "  confirmed" if row.confirmed else ""
        _print(given, row.body, f"{row.counter} {row.target}: {row.drift:+d} since {_time(row.since)}{confirmed}")
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
    drifts = f", drifts by {row.drift:+d}" if row else ""
    _print(given, body, f"{counter.name} {given.id}: {number}{parts}{drifts}")
    return 0


def redrive(given: argparse.Namespace, stack: Stack) -> int:
    """Apply each set-aside record once. Returns 1 if a record still cannot be applied."""
    objects = stack.at.objects
    if objects is None:
        raise CommandError("the stack has no output 'SetAsideBucketName', where the records would be")
    done = dict.fromkeys(Outcome, 0)
    call, declared = Call(stack.store), Declared(stack.counters)
    with _bar(list(set_aside.listed(call)), "record", "redriven") as markers:
        for marker in markers:
            outcome, why = set_aside.redrive(Call(stack.store), objects, _CONSUMERS, declared, marker)
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
        _print(given, entry, f"{_time(entry['at'])}  {moved} by {entry['by']}: {entry['why']}")
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
