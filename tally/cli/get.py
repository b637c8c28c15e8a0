"""The command `get`: one number, the parts that it is kept in (its shards), and its drift."""

from __future__ import annotations

import argparse

from tally.counter import Counter
from tally.counting import periods
from tally.drift import recount, rows
from tally.dynamo.client import Call

from . import values
from .command import ID, Command, Counters, Parser, add_counter
from .connection import Stack
from .terminal import show


def _arguments(parser: Parser, counters: Counters) -> None:
    add_counter(parser, counters)
    parser.add_argument("id", metavar="ID", help=ID)


def _get(given: argparse.Namespace, stack: Stack) -> int:
    """Print it. Returns 0."""
    counter: Counter = given.counter
    stack.check_counted(counter)
    shards = recount.shards_of(Call(stack.store), counter, given.id)
    row = rows.read(stack.store, counter.name, given.id)
    numbers = {str(shard): recount.number(counter, {shard: item}) for shard, item in sorted(shards.items())}
    number = recount.number(counter, shards)
    named = {"counter": counter.name, **periods.shown(given.id)}
    body = {**named, "value": number, "shards": numbers, "drift": row.drift}
    parts = f" in {len(numbers)} parts" if len(numbers) > 1 else "" if shards else ", nothing is stored"
    off = f", and {counter.watched} is {row.drift:+d} off" if counter.watched else f", drifts by {row.drift:+d}"
    drifts = off if row.drift else ""
    show(given, body, f"{counter.name} {given.id}: {number}{parts}{drifts}")
    return 0


GET = Command(
    "get", "a number, the parts that it is kept in, and its drift", _get, _arguments, values.check_id, json=True
)
