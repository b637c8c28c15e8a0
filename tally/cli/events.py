"""The command `events`: lists the newest threshold crossings. Writes nothing."""

from __future__ import annotations

import argparse
from itertools import islice
from typing import Any

from tally.drift.checks import format_time
from tally.ids import id_of
from tally.streams import events

from . import values
from .command import Command, Counters, Parser, add_counter
from .connection import Stack
from .terminal import print_json_or_line, say

LIMIT_DEFAULT, LIMIT_MAX = 20, 10_000


def _add_arguments(parser: Parser, counters: Counters) -> None:
    add_counter(parser, counters, "list only events of this counter (default: all)", nargs="?")
    of_id = "list only events of this id; with a period, 7c20#2026-11-22"
    parser.add_argument("id", metavar="ID", nargs="?", help=of_id)
    values.add_limit(parser, LIMIT_DEFAULT, LIMIT_MAX)


def print_events(args: argparse.Namespace, stack: Stack) -> int:
    """Prints the events, the newest first. Returns 0."""
    name, separator, period = (args.id or "").partition("#")
    id_ = f"{id_of(name)}{separator}{period}" if args.id else ""
    newest = ((event.detail, sent) for event, sent in events.newest_events(stack.store))
    of_counter = (one for one in newest if args.counter is None or one[0]["counter"] == args.counter.name)
    of_id = (one for one in of_counter if args.id is None or id_ in (one[0]["id"], _id_with_period(one[0])))
    shown = list(islice(of_id, args.limit))
    for detail, sent in shown:
        of_limit = f" ({detail['percent']} % of {detail['limit']})" if "percent" in detail else ""
        moved = f"{detail['before']} to {detail['value']}" if "before" in detail else f"at {detail['value']}"
        by = "" if detail.get("by", "change") == "change" else f", by {detail['by']}"
        crossed = f"{'reached' if detail['direction'] == 'up' else 'fell below'} {detail['threshold']}{of_limit}"
        line = f"{format_time(detail['at'])}  {detail['counter']} {_id_with_period(detail)} {crossed}: {moved}{by}"
        print_json_or_line(args, {**detail, "sent": sent}, line if sent else f"{line}; not sent yet")
    if not shown and not args.json:
        say("there are no events: Tally keeps each for nine days after EventBridge accepts it")
    return 0


def _id_with_period(detail: Any) -> str:
    return f"{detail['id']}#{detail['period']}" if "period" in detail else str(detail["id"])


EVENTS = Command(
    "events", print_events, _add_arguments, json=True,
    examples="  tally events calls 7c20                        events of one number\n",
)  # fmt: skip
