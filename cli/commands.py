"""The commands. Results go to stdout, progress and notes to stderr."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from tally.counter import Counter
from tally.counting import periods
from tally.drift import history, recount, rows
from tally.drift.looks import moment
from tally.dynamo.client import Call
from tally.errors import InvalidInputError
from tally.streams import bookkeeper, dead_letters, rollup, watermark
from tally.streams.dead_letters import Marker, Redriven
from tally.streams.record import Declared

from . import exports, imports
from .connection import CommandError, Stack
from .forget import forget, forgotten
from .repairs import rebuilt, reconcile
from .restore import restore
from .series import series, top
from .status import status
from .terminal import bar, clock, note, say, show
from .values import checked_id
from .watch import watch

_CONSUMERS = {consumer.name: consumer for consumer in (rollup.CONSUMER, bookkeeper.CONSUMER)}


def drifts(given: argparse.Namespace, stack: Stack) -> int:
    """Print what drifts, and until when the ledger has judged. Returns 1 if something drifts, 2 if nobody can tell."""
    seen = watermark.read(stack.store, time.time())
    found = list(rows.every(stack.store))
    for row in found:
        confirmed = "  confirmed" if row.confirmed(seen) else ""
        show(given, row.body(seen), f"{row.counter} {row.target}: {row.drift:+d} since {moment(row.since)}{confirmed}")
    judged = seen.judged >= 0
    until = clock((seen.judged + 1) * stack.store.settings.minute_s, time.time()) if judged else ""
    if not judged:
        note("nothing is judged yet: a new stack needs some minutes, and its sweep")
    elif found or given.json:
        note(f"judged up to {until}")
    else:
        say(f"nothing drifts; judged up to {until}")
    return 1 if found else 0 if judged else 2


def get(given: argparse.Namespace, stack: Stack) -> int:
    """Print one tally, its shards and its drift."""
    counter: Counter = given.counter
    shards = recount.shards_of(Call(stack.store), counter, given.id)
    row = rows.read(stack.store, counter.name, given.id)
    numbers = {str(shard): recount.number(counter, {shard: item}) for shard, item in sorted(shards.items())}
    number = recount.number(counter, shards)
    named = {"counter": counter.name, **periods.shown(given.id)}
    body = {**named, "value": number, "shards": numbers, "drift": row.drift}
    parts = f" in {len(numbers)} shards" if len(numbers) > 1 else "" if shards else ", nothing is stored"
    drifts = f", drifts by {row.drift:+d}" if row.drift else ""
    show(given, body, f"{counter.name} {given.id}: {number}{parts}{drifts}")
    return 0


def redrive(given: argparse.Namespace, stack: Stack) -> int:
    """Apply each dead letter once; with --drop, remove the markers of those that have expired.

    Returns 1 if a record is left.
    """
    objects = stack.at.objects
    if objects is None:
        raise CommandError("the stack has no output 'DeadLetterBucketName', where the records would be")
    done = dict.fromkeys(Redriven, 0)
    call, declared = Call(stack.store), Declared(stack.counters, stack.store.settings.minute_s)
    with bar(list(dead_letters.listed(call)), "record", "redriven") as markers:
        for marker in markers:
            judged = watermark.judged(stack.store)
            outcome, why = dead_letters.redrive(Call(stack.store), objects, _CONSUMERS, declared, marker, judged)
            done[outcome] += 1
            if outcome is Redriven.KEPT:
                say(f"kept     {marker.object}: {why}")
            if outcome is Redriven.LOST:
                _lose(given, stack, marker, why)
    lost = f", {done[Redriven.LOST]} {'dropped' if given.drop else 'lost'}" if done[Redriven.LOST] else ""
    say(f"{done[Redriven.APPLIED]} applied, {done[Redriven.GONE]} already gone, {done[Redriven.KEPT]} kept{lost}")
    return 1 if done[Redriven.KEPT] or (done[Redriven.LOST] and not given.drop) else 0


def _lose(given: argparse.Namespace, stack: Stack, marker: Marker, why: str) -> None:
    """Say that nobody can apply this record any more; remove its marker if that is asked for."""
    if given.drop:
        dead_letters.drop(Call(stack.store), marker)
        say(f"dropped  {marker.object}, a dead letter since {moment(marker.at_s)}: {why}")
    else:
        say(f"lost     {marker.object}, a dead letter since {moment(marker.at_s)}: {why}; --drop removes its marker")


def past(given: argparse.Namespace, stack: Stack) -> int:
    """Print the repairs of a tally, or who had a user forgotten, the oldest first."""
    if given.user is not None:
        return forgotten(given, stack)
    if given.imports:
        return imports.past(given, stack)
    named = [(given.counter.name, given.id)] if given.counter else _named(stack, given.id)
    found = [(name, id_, entry) for name, id_ in named for entry in history.read(stack.store, name, id_)]
    for name, id_, entry in sorted(found, key=lambda each: each[2]["at"]):
        moved = f"{name} {id_}: {entry['amount']:+d} ({entry['before']} to {entry['after']})"
        body = {"counter": name, **periods.shown(id_), **entry}
        show(given, body, f"{moment(entry['at'])}  {moved} by {entry['by']} ({entry['how']}): {entry['why']}")
    if not found and not given.json:
        say(f"{given.counter.name + ' ' if given.counter else ''}{given.id} was never repaired")
    return 0


def _named(stack: Stack, id_: str) -> list[tuple[str, str]]:
    """Every tally that has this id: the counter's name, and the id as it stores it. Raises CommandError if none can."""
    found, wrong = [], ""
    for counter in stack.counters.values():
        try:
            found.append((counter.name, checked_id(counter, id_)))
        except InvalidInputError as error:
            wrong = wrong or error.detail
    if not found:
        raise CommandError(f"argument ID: {wrong}")
    return found


COMMANDS: dict[str, Callable[[argparse.Namespace, Stack], int]] = {
    "reconcile": reconcile, "drift": drifts, "get": get, "redrive": redrive, "history": past,
    "rebuild": rebuilt, "restore": restore, "forget": forget, "status": status, "import": imports.run,
    "export": exports.run, "series": series, "top": top, "watch": watch,
}  # fmt: skip
