"""The command line of `tally`."""

from __future__ import annotations

import argparse
import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from tally.counter import Counter
from tally.drift import rebuild
from tally.errors import InvalidInputError
from tally.shipped import LIKES

from . import completion, exports, imports, series, values, watch
from .cost import command as cost

NAME_CHARACTERS_MAX, WHY_CHARACTERS_MAX = 128, 1000  # the history keeps them for ever
_EXAMPLES = """examples:
  tally reconcile --local                        every post and every drifting tally of a running `make dev`
  tally reconcile likes a91f 7b20                two posts of the stack Tally-dev
  tally reconcile --all --repair --by ann --why "edited by hand on 3 May" --stack Tally-prod
  tally status --stack Tally-prod                whether all is well, on one screen
  tally drift --json                             what drifts now
  tally get likes a91f                           a tally, shard by shard
  tally history a91f                             who repaired it under any counter, when and why
  tally import plays.csv --counter plays         what is in the file; with --yes, import it
  tally export plays plays.csv                   the tallies of a counter
  tally series plays 9f3a --by day               a bar for each day; also: top plays, watch plays 9f3a
  tally redrive                                  apply the dead letters, once
  tally rebuild --all                            what consumers lost that were stalled for a day
  tally restore --to 2026-11-22T10:30:00Z --by ann --why "INC-9" --stack Tally-prod
  tally forget --user 'auth0|7c20'               what there is of a user; with --yes, remove it
  tally cost --plays 50M --reads 1B              what Tally would cost a month

"""
_EXIT_STATUS = (
    "exit status: 0 all is well, 1 something differs (or could not be applied), 2 bad input or no stack, 130 Ctrl-C"
)
_ID = "of a post, a video, …; for visits the page's URL; 7c20#2026-11-22 with a period"
PORT_DEFAULT, STACK_DEFAULT = 8080, "Tally-dev"
COMMANDS = (
    "status", "reconcile", "drift", "get", "redrive", "history", "rebuild", "restore", "forget", "import",
    "export", "series", "top", "watch", "cost", "help", "completion",
)  # fmt: skip
ALONE = ("cost", "help", "completion")
"""The commands that look at no stack."""


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit 2."""
        self.exit(2, f"tally: {message}; --help says more\n")


def parser(counters: Mapping[str, Counter]) -> Parser:
    """The command line, for the counters that the app declares."""
    made = Parser(
        prog="tally",
        description="Look at Tally's numbers and repair them.",
        epilog=_EXAMPLES + _EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _where(made)
    made.add_argument("--version", action="version", version=f"tally {version()}")
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _command(commands, "status", "whether all is well: version, alarms, lag, drift, failed events", json=True)
    _reconcile(commands, counters)
    _command(commands, "drift", "the tallies that drift now", json=True)
    get = _command(commands, "get", "a tally, shard by shard, with its drift", json=True)
    counter = values.counter(counters)
    completion.counter(
        get.add_argument("counter", metavar="COUNTER", type=counter, help=f"one of: {', '.join(counters)}")
    )
    get.add_argument("id", metavar="ID", help=_ID)
    redrive = _command(commands, "redrive", "apply the dead letters, once")
    redrive.add_argument("--drop", action="store_true", help="remove the markers of records that have expired")
    history = _command(commands, "history", "who repaired a tally, when, why and by how much", json=True)
    history.add_argument("id", metavar="ID", nargs="?", help=_ID)
    history.add_argument(
        "--user", metavar="ID", type=values.user, help="who had this user forgotten, instead of a tally"
    )
    history.add_argument("--imports", action="store_true", help="who imported what, instead of a tally")
    completion.counter(
        history.add_argument("--counter", metavar="COUNTER", type=counter, help="look in this counter only")
    )
    _rebuild(commands, counters)
    _restore(commands)
    forget = _command(
        commands, "forget", "what there is of a user: posts, likes, other children, holds; with --yes, remove it"
    )
    forget.add_argument("--user", metavar="ID", type=values.user, required=True, help="the `sub` of the user's tokens")
    forget.add_argument("--yes", action="store_true", help="remove it")
    _signed(forget)
    imports.add(
        _signed(_command(commands, "import", "check the numbers in a file; with --yes, import them, each row once")),
        counter,
        values.run,
    )
    exports.add(
        _command(commands, "export", "print the tallies of a counter, or what it counts, as `import` reads it"), counter
    )
    series.add_series(_command(commands, "series", "what was accepted of a tally, by the hour or day"), counter)
    series.add_top(_command(commands, "top", "what moved up most in an hour, a day or a month"), counter)
    watch.add(_command(commands, "watch", "a tally as it moves, until Ctrl-C"), counter)
    cost.add(commands)
    _alone(commands, "help", "what a command does").add_argument(
        "topic", metavar="COMMAND", nargs="?", choices=COMMANDS, help="the command (default: all of them)"
    )
    completion.add(_alone(commands, "completion", "print the script that lets TAB complete this command"))
    return made


def version() -> str:
    """The version of this checkout. `tally status` shows what is deployed."""
    with (Path(__file__).resolve().parents[1] / "pyproject.toml").open("rb") as declared:
        return str(tomllib.load(declared)["project"]["version"])


def _reconcile(commands: argparse._SubParsersAction[Parser], counters: Mapping[str, Counter]) -> None:
    made = _command(commands, "reconcile", "compare tallies with what they count; with --repair, repair them")
    completion.counter(
        made.add_argument(
            "counter",
            metavar="COUNTER",
            nargs="?",
            type=values.counter(counters),
            help=f"one of: {', '.join(counters)}",
        )
    )
    made.add_argument("ids", metavar="ID", nargs="*", default=[], help=f"one or more, {_ID}")
    made.add_argument("--post", metavar="ID", action="append", default=[], help="short for `likes ID`; may be repeated")
    made.add_argument("--all", action="store_true", help="every post and every drifting tally (the default)")
    _repair(made)


def _rebuild(commands: argparse._SubParsersAction[Parser], counters: Mapping[str, Counter]) -> None:
    made = _command(commands, "rebuild", "find what was accepted and never rolled up; with --repair, add it")
    named = ", ".join(name for name, counter in counters.items() if rebuild.rebuildable(counter))
    completion.counter(
        made.add_argument(
            "counter", metavar="COUNTER", nargs="?", type=values.counter(counters), help=f"one of: {named}"
        )
    )
    made.add_argument("id", metavar="ID", nargs="?", help=_ID)
    made.add_argument("--all", action="store_true", help="every tally that is rolled up, instead of one")
    _repair(made)


def _restore(commands: argparse._SubParsersAction[Parser]) -> None:
    made = _command(commands, "restore", "make new tables from the backups of a moment, ready to be adopted")
    made.add_argument("--to", metavar="TIME", type=values.second, required=True, help="like 2026-11-22T10:30:00Z")
    made.add_argument("--without-dead-letters", action="store_true", help="give up the dead letters at that moment")
    _signed(made, required=True)


def _repair(made: Parser) -> None:
    made.add_argument("--repair", action="store_true", help="write the repair; needs --by and --why")
    _signed(made)


def _signed(made: Parser, *, required: bool = False) -> Parser:
    limits = {"--by": ("NAME", NAME_CHARACTERS_MAX, "who does it"), "--why": ("TEXT", WHY_CHARACTERS_MAX, "why")}
    for name, (kind, most, what) in limits.items():
        made.add_argument(
            name, metavar=kind, type=values.text(most), required=required, help=f"{what}, for the history"
        )
    return made


def _alone(commands: argparse._SubParsersAction[Parser], name: str, does: str) -> Parser:
    return commands.add_parser(name, help=does, description=does[0].upper() + does[1:] + ".", epilog=_EXIT_STATUS)


def _command(commands: argparse._SubParsersAction[Parser], name: str, does: str, *, json: bool = False) -> Parser:
    made = _alone(commands, name, does)
    _where(made)
    if json:
        made.add_argument("--json", action="store_true", help="print JSON, one document a line")
    return made


def _where(made: Parser) -> None:
    """Which stack. The options go before or after the command, so they have no defaults: one would hide the other."""
    where = made.add_mutually_exclusive_group()
    where.add_argument("--local", action="store_true", default=argparse.SUPPRESS, help="use a running `make dev`")
    where.add_argument(
        "--stack", metavar="NAME", default=argparse.SUPPRESS, help=f"use this stack in AWS ({STACK_DEFAULT})"
    )
    made.add_argument(
        "--port",
        type=values.port,
        default=argparse.SUPPRESS,
        help=f"with --local: the port of `make dev` ({PORT_DEFAULT})",
    )


def parsed(arguments: Sequence[str], made: Parser) -> argparse.Namespace:
    """The options, checked. Exits with 2 if they are wrong, with 0 for --help."""
    _check_order(arguments, made)
    given = made.parse_args(arguments)
    if "local" in given and "stack" in given:  # one before the command, one after it
        made.error("argument --stack: not allowed with argument --local")
    if "port" in given and "local" not in given:  # else it would go to AWS though the person means `make dev`
        made.error("--port goes with --local")
    if given.command in ALONE and ("local" in given or "stack" in given):
        made.error(f"{given.command} looks at no stack: leave --local and --stack out")
    defaults = {"local": False, "stack": STACK_DEFAULT, "port": PORT_DEFAULT}
    given = argparse.Namespace(**{**defaults, **vars(given)})
    _check(given, made)
    return given


def _check_order(arguments: Sequence[str], made: Parser) -> None:
    """A command's options go after it: before it, argparse would take their value for the command."""
    for argument in itertools.takewhile(lambda each: each not in COMMANDS, arguments):
        option = argument.partition("=")[0]
        if option.startswith("-") and option not in ("--local", "--stack", "--port", "--help", "-h", "--version"):
            made.error(f"{option} goes after the command: `tally COMMAND {option}`")


def _check(given: argparse.Namespace, made: Parser) -> None:
    """Check one option against another. Exits with 2."""
    if given.command == "cost" and (wrong := cost.check(given)):
        made.error(wrong)
    if given.command in ("series", "top") and (wrong := series.check(given)):
        made.error(wrong)
    if given.command == "rebuild" and (given.id is not None) == given.all:
        made.error("rebuild takes COUNTER and ID, or --all")
    if given.command == "history" and (given.id is not None) + (given.user is not None) + given.imports != 1:
        made.error("history takes ID, --user ID, or --imports")
    try:
        if given.command in ("get", "rebuild", "series", "watch") and given.id is not None:
            given.id = values.checked_id(given.counter, given.id)
        if given.command == "history" and given.id is not None and given.counter is not None:
            given.id = values.checked_id(given.counter, given.id)
        if given.command == "reconcile":
            _check_named(given, made)
    except InvalidInputError as error:
        made.error(f"argument ID: {error.detail}")
    if given.command in ("reconcile", "rebuild", "forget", "import"):
        _check_signed(given, made)


def _check_named(given: argparse.Namespace, made: Parser) -> None:
    """The tallies that reconcile is to look at, in `given.named`; none: every one. Raises InvalidInputError."""
    if given.counter and not given.ids:
        made.error("reconcile takes COUNTER and one ID or more, or --all")
    if given.all and (given.counter or given.post):
        made.error("argument --all: not allowed with COUNTER ID or --post")
    named = [(given.counter, values.checked_id(given.counter, id_)) for id_ in given.ids]
    given.named = list(dict.fromkeys(named + [(LIKES, values.checked_id(LIKES, id_)) for id_ in given.post]))


def _check_signed(given: argparse.Namespace, made: Parser) -> None:
    """Who and why go with what writes, and do not name a user who is to be forgotten. Exits with 2."""
    does, writes = ("--yes", given.yes) if "yes" in given else ("--repair", given.repair)
    if writes and not (given.by and given.why):
        made.error(f"{does} needs --by NAME and --why TEXT: the history keeps them")
    if not writes and (given.by or given.why):
        made.error(f"--by and --why go with {does}")
    if given.command == "forget" and re.search(rf"(?<!\w){re.escape(given.user)}(?!\w)", f"{given.by} {given.why}"):
        made.error("--by and --why must not name the user: the history keeps them")
