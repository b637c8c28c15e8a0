"""The command `events`: the newest events of numbers that crossed a threshold. It reads, and writes nothing."""

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


def _arguments(parser: Parser, counters: Counters) -> None:
    add_counter(parser, counters, "list only events of this counter (default: all)", nargs="?")
    parser.add_argument(
        "id", metavar="ID", nargs="?", help="list only events of this id; with a period, 7c20#2026-11-22"
    )
    most = values.whole(1, LIMIT_MAX)
    parser.add_argument(
        "--limit", metavar="N", type=most, default=LIMIT_DEFAULT, help=f"how many to list (default: {LIMIT_DEFAULT})"
    )


def _events(given: argparse.Namespace, stack: Stack) -> int:
    """Print the events, the newest first. Returns 0."""
    asked = (
        (event, sent)
        for event, sent in events.newest_events(stack.store)
        if given.counter is None or event.detail["counter"] == given.counter.name
        if given.id is None or _is_of(event.detail, given.id)
    )
    shown = 0
    for event, sent in islice(asked, given.limit):
        shown += 1
        print_json_or_line(given, {**event.detail, "sent": sent}, _line(event.detail, sent=sent))
    if not shown and not given.json:
        say("no event is known: each is kept for nine days after it was sent")
    return 0


def _is_of(detail: Any, id_: str) -> bool:
    """Whether an event is of this id, of this period if one is named."""
    name, mark, period = id_.partition("#")
    return f"{id_of(name)}{mark}{period}" in (detail["id"], _full(detail))


def _full(detail: Any) -> str:
    return f"{detail['id']}#{detail['period']}" if "period" in detail else str(detail["id"])


def _line(detail: Any, *, sent: bool) -> str:
    of = f" ({detail['percent']} % of {detail['limit']})" if "percent" in detail else ""
    moved = f"{detail['before']} to {detail['value']}" if "before" in detail else f"at {detail['value']}"
    by = "" if detail.get("by", "change") == "change" else f", by {detail['by']}"
    crossed = f"{'reached' if detail['direction'] == 'up' else 'fell below'} {detail['threshold']}{of}: {moved}{by}"
    return (
        f"{format_time(detail['at'])}  {detail['counter']} {_full(detail)} {crossed}{'' if sent else '; not sent yet'}"
    )


EVENTS = Command(
    "events", _events, _arguments, json=True,
    examples="  tally events calls 7c20                        of one number; without COUNTER of all\n",
)  # fmt: skip
