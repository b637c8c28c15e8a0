"""The command `get`: shows a number, its shards, its limit and its drift."""

from __future__ import annotations

import argparse
from datetime import UTC

from tally.counter import Counter
from tally.counting import limits, periods, tallies
from tally.drift import recount, rows
from tally.dynamo.client import Call

from . import values
from .command import Command, add_number
from .connection import Stack
from .terminal import iso, print_json_or_line


def print_number(args: argparse.Namespace, stack: Stack) -> int:
    """Prints the number. Returns 0."""
    counter: Counter = args.counter
    stack.check_counted(counter)
    call = Call(stack.store)
    shards = tallies.read_numbered_shards(call, counter, args.id)
    row = rows.read_row(stack.store, counter.name, args.id)
    numbers = {str(shard): recount.stored_sum(counter, {shard: item}) for shard, item in sorted(shards.items())}
    number = recount.stored_sum(counter, shards)
    id_members = {"counter": counter.name, **periods.answer_members(args.id)}
    limits_of_id = limits.limits_from_item(call, counter, args.id, shards.get(0, {}))
    limit_members = limits.answer_members(counter, args.id, number, limits_of_id)
    body = {**id_members, "value": number, **limit_members, "shards": numbers, "drift": row.drift}
    line = f"{counter.name} {args.id}: {number}"
    line += f" in {len(numbers)} shards" if len(numbers) > 1 else "" if shards else ", nothing is stored"
    if row.drift and counter.items and counter.watched:
        line += f", and {counter.watched} has an excess of {counter.items.format(row.drift, '+')}"
    elif row.drift:
        line += f", drifts by {row.drift:+d}"
    if limit_members:
        left, limit = limit_members["left"], limit_members["limit"]
        line += f", {-left} beyond its limit of {limit}" if left < 0 else f", {left} left to its limit of {limit}"
    if "resets_at" in limit_members:
        line += f", until {iso(limit_members['resets_at'], UTC)}"
    print_json_or_line(args, body, line)
    return 0


GET = Command("get", print_number, add_number, values.complete_id, json=True)
