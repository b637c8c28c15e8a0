"""The command `history`: lists repairs, imports, who erased a user's data, and acknowledged losses."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

from tally.counting import periods
from tally.drift import history
from tally.drift.checks import format_time
from tally.errors import InvalidInputError
from tally.series import progress, read
from tally.series.progress import HOUR_S
from tally.series.read import ImportedHour

from . import forget, imports, values
from .command import ID_HELP, Command, Counters, Parser, UsageError
from .connection import Stack
from .terminal import CommandError, print_json_or_line, say


def _add_arguments(parser: Parser, counters: Counters) -> None:
    parser.add_argument("id", metavar="ID", nargs="?", help=ID_HELP)
    parser.add_argument("--user", metavar="ID", type=values.user_id, help="list who erased this user's data")
    parser.add_argument("--imports", action="store_true", help="list who imported what")
    parser.add_argument("--losses", action="store_true", help="list acknowledged stream losses")


def _check_options(args: argparse.Namespace) -> None:
    if (args.id is not None) + (args.user is not None) + args.imports + args.losses != 1:
        raise UsageError("history takes ID, --user ID, --imports, or --losses")


def print_history(args: argparse.Namespace, stack: Stack) -> int:
    """Prints the repairs and imports of an id, the oldest first, or the history that an option selects."""
    if args.user is not None:
        return forget.print_runs(args, stack)
    if args.imports:
        return imports.print_runs(args, stack)
    if args.losses:
        for loss in history.acknowledged_losses(stack.store):
            records = f"{loss['consumer']}'s records from {format_time(loss['since'])} to {format_time(loss['until'])}"
            line = f"{format_time(loss['at'])}  {records}, acknowledged by {loss['by']}: {loss['why']}"
            print_json_or_line(args, loss, line)
        return 0
    tallies = _tallies_of_id(stack, args.id)
    entries: list[tuple[int, dict[str, Any], str]] = []  # each with its time, its JSON object and its line
    for name, id_ in tallies:
        for repair in history.read_repairs(stack.store, name, id_):
            amounts = f"{name} {id_}: {repair['amount']:+d} ({repair['before']} to {repair['after']})"
            line = f"{amounts} by {repair['by']} ({repair['how']}): {repair['why']}"
            entries.append((repair["at"], {"counter": name, **periods.answer_members(id_), **repair}, line))
    series_progress = progress.read(stack.store)
    for name, id_ in {name: id_.partition("#")[0] for name, id_ in tallies}.items():  # a series has no period
        entries += _import_entries(name, id_, read.read_all_imports(stack.store, name, id_, series_progress))
    for at_s, body, line in sorted(entries, key=itemgetter(0)):
        print_json_or_line(args, body, f"{format_time(at_s)}  {line}")
    if not entries and not args.json:
        say(f"{args.id} has no repairs and no imports")
    return 0


def _import_entries(name: str, id_: str, imported: Iterable[ImportedHour]) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Yields one entry for each hour with imports: the start of the hour, the JSON object and the line."""
    for hour, imports_of_hour in groupby(sorted(imported, key=attrgetter("hour")), attrgetter("hour")):
        days, amounts = zip(*((part.day, part.amount) for part in imports_of_hour), strict=True)
        first, last, amount = min(days), max(days), sum(amounts)
        body = {"counter": name, "id": id_, "at": hour * HOUR_S, "how": "import", "amount": amount}
        days_text = first if first == last else f"{first} to {last}"
        line = f"{name} {id_}: {amount:+d} imported in this hour, into {days_text}; --imports says who and why"
        yield hour * HOUR_S, {**body, "first": first, "last": last}, line


def _tallies_of_id(stack: Stack, id_: str) -> list[tuple[str, str]]:
    """Returns each counter that can have this id, with the stored id. If no counter can, raises CommandError."""
    tallies, first_error = [], ""
    for counter in stack.counters.values():
        try:
            tallies.append((counter.name, values.resolve_id(counter, id_)))
        except InvalidInputError as error:
            first_error = first_error or error.detail
    if not tallies:
        raise CommandError(f"argument ID: {first_error}")
    return tallies


HISTORY = Command(
    "history", print_history, _add_arguments, _check_options, json=True,
    examples="  tally history a91f                             the repairs and imports of this id, in every counter\n",
)  # fmt: skip
