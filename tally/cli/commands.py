"""The commands of `tally`, and the parser of their command line."""

from __future__ import annotations

import argparse
import difflib
import importlib
from collections.abc import Mapping, Sequence

from tally.dev.base.words import DEV
from tally.paths import PACKAGE, version

from .command import EXIT_STATUS, STACK_DEFAULT, Command, Counters, Parser, UsageError
from .command_summaries import COMMAND_SUMMARIES, SUMMARIES_BY_PURPOSE
from .terminal import say


def print_help(args: argparse.Namespace) -> int:
    """Prints the help of one command or of all, and exits."""
    args.parser.parse_args([args.topic, "--help"] if args.topic else ["--help"])
    return 0


def print_version(args: argparse.Namespace) -> int:
    """Prints the version and the folder of the package."""
    say(f"tally {version()} ({PACKAGE})")
    return 0


HELP = Command(
    "help", print_help,
    lambda parser, counters: parser.add_argument("topic", metavar="COMMAND", nargs="?", choices=[*COMMAND_SUMMARIES],
                                                 help="the command to explain (default: all)"),
)  # fmt: skip
VERSION = Command("version", print_version)
COMPLETION = "completion"
_REMOVED_COMMANDS = {"cost": "docs/cost.md in Tally's repository has the bills"}
_ALIASES: Mapping[tuple[str, ...], Sequence[str]] = {(): ["help"], ("--version",): ["version"]}  # whole command lines


def command_named(name: str) -> Command:
    """Returns a command. Imports the module that declares the command."""
    command = getattr(importlib.import_module(f"{__package__}.{COMMAND_SUMMARIES[name].module}"), name.upper())
    assert isinstance(command, Command)
    assert command.name == name
    return command


def uses_stack(arguments: Sequence[str]) -> bool:
    """Returns whether the command needs a stack, and the command line does not ask for help."""
    summary = COMMAND_SUMMARIES.get(next(iter(arguments), ""))
    return summary is not None and summary.needs_stack and not {"-h", "--help"} & set(arguments)


def needed_commands(arguments: Sequence[str]) -> list[str]:
    """Returns the commands whose options this command line needs: the command itself, the topic of help, or all."""
    named = [word for word in _ALIASES.get(tuple(arguments), arguments) if word in COMMAND_SUMMARIES]
    if named[:1] == [COMPLETION]:
        return list(COMMAND_SUMMARIES)
    return list(dict.fromkeys(named[: 2 if named[:1] == [HELP.name] else 1]))


def takes_counters(arguments: Sequence[str]) -> bool:
    """Returns whether this command line may name or list counters, and therefore needs `counters.py`."""
    needed = [COMMAND_SUMMARIES[name] for name in needed_commands(arguments)]
    return any(summary.needs_stack or summary.needs_counters for summary in needed)


def parser(counters: Counters, names: Sequence[str] = tuple(COMMAND_SUMMARIES)) -> Parser:
    """Returns the parser of these commands, for the declared counters."""
    parser = Parser(prog="tally", formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ["usage: tally COMMAND [--local | --stack NAME] …\n       tally help COMMAND"]
    for purpose, of_purpose in SUMMARIES_BY_PURPOSE.items():
        parts.append("\n".join([purpose, *(f"  {name:12}{summary.about}" for name, summary in of_purpose.items())]))
    stack_help = f"`--local` uses a running {DEV} (`--port`), `--stack NAME` a stack in AWS ({STACK_DEFAULT})."
    parser.overview = "\n\n".join([*parts, stack_help, EXIT_STATUS]) + "\n"
    parser.set_defaults(parser=parser, declared=counters)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in names:
        command_named(name).add_to(commands, counters)
    return parser


def parse_arguments(arguments: Sequence[str], parser: Parser) -> argparse.Namespace:
    """Returns the checked options. Exits with 2 if an option is wrong, and with 0 for --help."""
    arguments = _ALIASES.get(tuple(arguments), arguments)
    name = arguments[1] if arguments[0] == "help" and len(arguments) > 1 else arguments[0]
    if not name.startswith("-") and name not in COMMAND_SUMMARIES:
        near = [f"did you mean {similar!r}?" for similar in difflib.get_close_matches(name, COMMAND_SUMMARIES, 1)]
        hints = [_REMOVED_COMMANDS[name]] if name in _REMOVED_COMMANDS else near
        parser.error(": ".join([f"there is no command {name!r}", *hints]))
    args, others = parser.parse_known_args(arguments)
    command = command_named(args.command)
    if others and not command.passes_unknown_options:
        hint = command.unknown_option_hint and f": {command.unknown_option_hint}"
        parser.error(f"unrecognized arguments: {' '.join(others)}{hint}")
    args.others = others
    try:
        command.check_options(args)
    except UsageError as error:
        parser.error(str(error))
    except Exception as error:
        from tally.errors import InvalidInputError  # imported here, so that the help starts fast

        if not isinstance(error, InvalidInputError):
            raise
        parser.error(f"argument ID: {error.detail}")
    return args
