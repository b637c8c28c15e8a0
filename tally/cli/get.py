"""The command `get`: shows a number, its shards, its limit and its drift."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import UTC

from tally.counter import Counter
from tally.counting import limits, periods
from tally.drift import recount, rows
from tally.dynamo.client import Call

from . import values
from .command import ID_HELP, Command, Counters, Parser, add_counter
from .connection import Stack
from .terminal import iso, print_json_or_line


def _arguments(parser: Parser, counters: Counters) -> None:
    add_counter(parser, counters)
    parser.add_argument("id", metavar="ID", help=ID_HELP)


def _get(given: argparse.Namespace, stack: Stack) -> int:
    """Prints the number. Returns 0."""
    counter: Counter = given.counter
    stack.check_counted(counter)
    call = Call(stack.store)
    shards = recount.shards_of(call, counter, given.id)
    row = rows.read_row(stack.store, counter.name, given.id)
    numbers = {str(shard): recount.stored_sum(counter, {shard: item}) for shard, item in sorted(shards.items())}
    number = recount.stored_sum(counter, shards)
    named = {"counter": counter.name, **periods.answer_members(given.id)}
    within = limits.limits_from_item(call, counter, given.id, shards.get(0, {}))
    limited = limits.answer_members(counter, given.id, number, within)
    body = {**named, "value": number, **limited, "shards": numbers, "drift": row.drift}
    parts = f" in {len(numbers)} shards" if len(numbers) > 1 else "" if shards else ", nothing is stored"
    off = f", drifts by {row.drift:+d}"
    if counter.items and counter.watched:
        off = f", and {counter.watched} is {counter.items.shown(row.drift, '+')} off"
    drifts = off if row.drift else ""
    print_json_or_line(given, body, f"{counter.name} {given.id}: {number}{parts}{drifts}{_limit_text(limited)}")
    return 0


def _limit_text(limited: Mapping[str, int]) -> str:
    """Returns the part of the line about the limit; empty without a limit. `limited`: the members of the answer."""
    if not limited:
        return ""
    left, limit = limited["left"], limited["limit"]
    limit_text = f", {-left} beyond its limit of {limit}" if left < 0 else f", {left} left to its limit of {limit}"
    return f"{limit_text}, until {iso(limited['resets_at'], UTC)}" if "resets_at" in limited else limit_text


GET = Command("get", _get, _arguments, values.complete_id, json=True)
