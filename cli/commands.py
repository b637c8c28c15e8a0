"""What each command does. Results go to stdout, what is waited for to stderr."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

import counters
from tally.counter import Counter
from tally.drift import history, recount, rows
from tally.drift.reconcile import Finding, Reconciler
from tally.drift.recount import Family
from tally.dynamo.client import Call, Store
from tally.errors import TallyError
from tally.streams import bookkeeper, rollup, set_aside
from tally.streams.record import Declared
from tally.streams.set_aside import Outcome

from .connection import CommandError, Connection

Tally = tuple[Counter, str]
_CONSUMERS = {consumer.name: consumer for consumer in (rollup.CONSUMER, bookkeeper.CONSUMER)}


def reconcile(given: argparse.Namespace, at: Connection) -> int:
    """Hold tallies against what they count, and mend them if asked; 1 if something differs still."""
    reconciler = Reconciler(at.store, counters.COUNTERS, say=_note)
    asked = [(counters.LIKES, given.post)] if given.post else _suspects(at.store)
    if given.post and not _is_there(at.store, given.post):
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
    """Whether anything is known of a post: its tally, a like, or that it drifts."""
    found = recount.recount(Call(store), counters.LIKES, post, turns=1)
    return found is None or bool(found.shards or found.children or rows.read(store, counters.LIKES.name, post))


def _one(reconciler: Reconciler, given: argparse.Namespace, counter: Counter, target: str) -> bool:
    """Look at one tally, or mend it; whether it differs still."""
    if given.repair:
        mended = reconciler.repair(counter, target, given.by, given.why)
        if mended:
            _say(f"mended   {_told(mended)}")
        return False
    found = reconciler.look(counter, target)
    if found.differs:
        _say(f"differs  {_told(found)}")
    return found.differs


def _told(found: Finding) -> str:
    counted = "" if found.children is None else f" children {found.children}"
    drifts = f" drift {found.drift.drift:+d}" if found.drift else ""
    return f"{found.counter.name} {found.target}: tally {found.tally}{counted} difference {found.difference:+d}{drifts}"


def _suspects(store: Store) -> list[Tally]:
    """The tallies that a scan saw differ from their children, and every one that drifts."""
    found: dict[tuple[str, str], Tally] = {}
    with _bar(recount.families(store, counters.COUNTERS), "page", "scanned") as pages:
        for page in pages:
            found |= {_name(family): (family.counter, family.target) for family in page if _suspect(family)}
    for row in rows.every(store):
        if row.counter in counters.COUNTERS:
            found[row.counter, row.target] = (counters.COUNTERS[row.counter], row.target)
        else:
            _note(
                f"{row.counter} {row.target} drifts by {row.drift:+d}, but lambdas/counters.py declares no such counter"
            )
    return [found[name] for name in sorted(found)]


def _name(family: Family) -> tuple[str, str]:
    return family.counter.name, family.target


def _suspect(family: Family) -> bool:
    return family.tally != family.children


def drifts(given: argparse.Namespace, at: Connection) -> int:
    """Print what drifts; 1 if something does."""
    found = list(rows.every(at.store))
    for row in found:
        confirmed = "  confirmed" if row.confirmed else ""
        _print(given, row.body, f"{row.counter} {row.target}: {row.drift:+d} since {_time(row.since)}{confirmed}")
    if not found and not given.json:
        _say("nothing drifts")
    return 1 if found else 0


def get(given: argparse.Namespace, at: Connection) -> int:
    """Print one tally, its shards and its drift."""
    counter: Counter = given.counter
    shards = recount.shards_of(Call(at.store), counter, given.id)
    row = rows.read(at.store, counter.name, given.id)
    numbers = {str(shard): recount.number(counter, {shard: item}) for shard, item in sorted(shards.items())}
    number = recount.number(counter, shards)
    body = {"counter": counter.name, "id": given.id, "value": number, "shards": numbers}
    body["drift"] = row.drift if row else 0
    parts = f" in {len(numbers)} shards" if len(numbers) > 1 else "" if shards else ", for nothing is stored"
    drifts = f", drifts by {row.drift:+d}" if row else ""
    _print(given, body, f"{counter.name} {given.id}: {number}{parts}{drifts}")
    return 0


def redrive(given: argparse.Namespace, at: Connection) -> int:
    """Apply what was set aside, once; 1 if a record still cannot be applied."""
    if at.objects is None:
        raise CommandError("the stack has no output 'SetAsideBucketName': nothing can be read from there")
    done = dict.fromkeys(Outcome, 0)
    call, declared = Call(at.store), Declared(counters.COUNTERS)
    with _bar(list(set_aside.listed(call)), "record", "redriven") as markers:
        for marker in markers:
            outcome, why = set_aside.redrive(Call(at.store), at.objects, _CONSUMERS, declared, marker)
            done[outcome] += 1
            if outcome is Outcome.KEPT:
                _say(f"kept     {marker.object}: {why}")
    _say(f"{done[Outcome.APPLIED]} applied, {done[Outcome.GONE]} were by somebody else, {done[Outcome.KEPT]} kept")
    return 1 if done[Outcome.KEPT] else 0


def past(given: argparse.Namespace, at: Connection) -> int:
    """Print who mended a tally, the oldest first."""
    found = list(history.read(at.store, given.counter.name, given.id))
    for entry in found:
        moved = f"{entry['amount']:+d} ({entry['before']} to {entry['after']})"
        _print(given, entry, f"{_time(entry['at'])}  {moved} by {entry['by']}: {entry['why']}")
    if not found and not given.json:
        _say(f"{given.counter.name} {given.id} was never mended")
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace, Connection], int]] = {
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
