"""The commands of `tally`, by what they are for; the command line that follows from them."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping, Sequence

import shtab

from tally.dev.base.words import DEV
from tally.errors import InvalidInputError
from tally.home import PACKAGE, version

from . import (
    check,
    count,
    deploy,
    destroy,
    dev,
    events,
    exports,
    forget,
    get,
    history,
    imports,
    init,
    limit,
    receipt,
    repair,
    restore,
    scan,
    series,
    shadow,
    status,
    watch,
)
from .command import EXIT_STATUS, STACK_DEFAULT, Command, Counters, Parser, UsageError
from .terminal import say

_HOW_TO_COMPLETE = """  tally completion bash > ~/.local/share/bash-completion/completions/tally
  tally completion zsh > "${fpath[1]}/_tally"
"""


def _help(given: argparse.Namespace) -> int:
    """Print the help, of one command or of all. Exits."""
    given.parser.parse_args([given.topic, "--help"] if given.topic else ["--help"])
    return 0


def _completion(given: argparse.Namespace) -> int:
    """Print the script. It knows the counters that are declared now."""
    names = " ".join(given.declared)
    listed = {
        "bash": f"_tally_counters() {{ compgen -W '{names}' -- \"$1\"; }}",
        "zsh": f"_tally_counters() {{ _values counter {names}; }}",
    }
    say(shtab.complete(given.parser, given.shell, preamble=listed[given.shell]))
    return 0


def _topic(parser: Parser, counters: Counters) -> None:
    parser.add_argument("topic", metavar="COMMAND", nargs="?", choices=tuple(COMMANDS), help="(default: all of them)")


def _version(given: argparse.Namespace) -> int:
    """Print which version this is, and where it is."""
    say(f"tally {version()} ({PACKAGE})")
    return 0


HELP = Command("help", "what a command does", _help, _topic, stack=False)
COMPLETION = Command(
    "completion",
    "print the script that lets TAB complete this command",
    _completion,
    lambda made, counters: made.add_argument("shell", choices=("bash", "zsh")),
    examples=_HOW_TO_COMPLETE,
    stack=False,
)
VERSION = Command("version", "which version of the command this is, and where it is", _version, stack=False)
INIT = Command(
    "init", init.ABOUT, init.init, init.add_arguments, examples="  tally init shop && cd shop && tally dev", stack=False
)
PURPOSES = {
    "Is all well, and if not, what repairs it?": (status.STATUS, check.CHECK, repair.REPAIR, history.HISTORY),
    "What is the number, and how did it move?": (
        get.GET,
        count.COUNT,
        limit.LIMIT,
        receipt.RECEIPT,
        series.SERIES,
        series.TOP,
        watch.WATCH,
        events.EVENTS,
    ),
    "Numbers from elsewhere, and to elsewhere": (imports.IMPORT, scan.SCAN, shadow.SHADOW, exports.EXPORT),
    "Going back, and forgetting a user": (restore.RESTORE, forget.FORGET),
    "A stack of your own": (INIT, dev.DEV, deploy.DEPLOY, destroy.DESTROY),
    "Without a stack": (HELP, COMPLETION, VERSION),
}
COMMANDS = {command.name: command for commands in PURPOSES.values() for command in commands}
_GONE = {"cost": "docs/cost.md in Tally's repository has the bills"}


_SHORT: Mapping[tuple[str, ...], Sequence[str]] = {(): ["help"], ("--version",): ["version"]}


def looks_at_a_stack(arguments: Sequence[str]) -> bool:
    """Whether this command line asks for something of a stack, and not for help."""
    command = COMMANDS.get(next(iter(arguments), ""))
    return command is not None and command.stack and not {"-h", "--help"} & set(arguments)


def parser(counters: Counters) -> Parser:
    """The command line, for the counters that the app declares."""
    parser = Parser(prog="tally", formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.overview = _overview()
    parser.set_defaults(parser=parser, declared=counters)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS.values():
        command.add(commands, counters)
    return parser


def _overview() -> str:
    """The commands by what they are for."""
    parts = [
        "\n".join([purpose, *(f"  {command.name:12}{command.about}" for command in commands)])
        for purpose, commands in PURPOSES.items()
    ]
    where = f"`--local` looks at a running {DEV} (`--port`), `--stack NAME` at a stack in AWS"
    usage = "usage: tally COMMAND [--local | --stack NAME] …\n       tally help COMMAND"
    return "\n\n".join([usage, *parts, f"{where} ({STACK_DEFAULT}).", EXIT_STATUS]) + "\n"


def parsed(arguments: Sequence[str], parser: Parser) -> argparse.Namespace:
    """The options, checked. Exits with 2 if they are wrong, with 0 for --help."""
    arguments = _SHORT.get(tuple(arguments), arguments)
    name = arguments[1] if arguments[0] == "help" and len(arguments) > 1 else arguments[0]
    if not name.startswith("-") and name not in COMMANDS:
        near = [f"is it {name!r}?" for name in difflib.get_close_matches(name, COMMANDS, 1)]
        parser.error(": ".join([f"there is no command {name!r}", *([_GONE[name]] if name in _GONE else near)]))
    given, others = parser.parse_known_args(arguments)
    command = COMMANDS[given.command]
    if others and not command.passes_on:
        parser.error(f"unrecognized arguments: {' '.join(others)}{command.instead and ': '}{command.instead}")
    given.others = others
    try:
        command.checked(given)
    except UsageError as error:
        parser.error(str(error))
    except InvalidInputError as error:
        parser.error(f"argument ID: {error.detail}")
    return given
