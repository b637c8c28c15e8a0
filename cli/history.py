"""The command `history`: who repaired a number, imported something, or had a user forgotten."""

from __future__ import annotations

import argparse

from tally.counting import periods
from tally.drift import history
from tally.drift.looks import moment
from tally.errors import InvalidInputError

from . import forget, imports, values
from .command import ID, Command, Counters, Parser, UsageError
from .connection import Stack
from .terminal import CommandError, say, show


def _arguments(made: Parser, counters: Counters) -> None:
    made.add_argument("id", metavar="ID", nargs="?", help=ID)
    made.add_argument("--user", metavar="ID", type=values.user, help="who had this user forgotten, instead")
    made.add_argument("--imports", action="store_true", help="who imported what, instead")


def _check(given: argparse.Namespace) -> None:
    if (given.id is not None) + (given.user is not None) + given.imports != 1:
        raise UsageError("history takes ID, --user ID, or --imports")


def _past(given: argparse.Namespace, stack: Stack) -> int:
    """Print the repairs of a number, or who had a user forgotten, or what was imported, the oldest first."""
    if given.user is not None:
        return forget.past(given, stack)
    if given.imports:
        return imports.past(given, stack)
    named = _named(stack, given.id)
    found = [(name, id_, entry) for name, id_ in named for entry in history.read(stack.store, name, id_)]
    for name, id_, entry in sorted(found, key=lambda each: each[2]["at"]):
        moved = f"{name} {id_}: {entry['amount']:+d} ({entry['before']} to {entry['after']})"
        body = {"counter": name, **periods.shown(id_), **entry}
        show(given, body, f"{moment(entry['at'])}  {moved} by {entry['by']} ({entry['how']}): {entry['why']}")
    if not found and not given.json:
        say(f"{given.id} was never repaired")
    return 0


def _named(stack: Stack, id_: str) -> list[tuple[str, str]]:
    """Every number of this id: the counter's name, and the id as it stores it. Raises CommandError if none can be."""
    found, wrong = [], ""
    for counter in stack.counters.values():
        try:
            found.append((counter.name, values.checked_id(counter, id_)))
        except InvalidInputError as error:
            wrong = wrong or error.detail
    if not found:
        raise CommandError(f"argument ID: {wrong}")
    return found


HISTORY = Command(
    "history", "who repaired a number, when, why and by how much", _past, _arguments, _check, json=True,
    examples="  tally history a91f                             under any counter; also --user ID, --imports\n",
)  # fmt: skip
