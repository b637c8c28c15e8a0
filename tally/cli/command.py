"""One command of `tally`: its name, help, arguments, checks and function."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from tally.dev.base.words import DEV

from .command_summaries import COMMAND_SUMMARIES

if TYPE_CHECKING:
    from tally.counter import Counter

EXIT_STATUS = "exit status: 0 ok, 1 something is wrong or was not applied, 2 bad input or no answer, 130 Ctrl-C"
NAME_CHARACTERS_MAX, WHY_CHARACTERS_MAX = 128, 1000  # of --by and --why, which the history keeps for ever
ID_HELP = "the id of a post, a video, …; for visits the page's URL; with a period, 7c20#2026-11-22"
STACK_DEFAULT = "Tally-dev"
WRONG, CANNOT_TELL = 1, 2  # exit statuses
Counters = Mapping[str, "Counter"]


class UsageError(Exception):
    """An error in the options of a command, in one line."""


class Parser(argparse.ArgumentParser):
    """A parser that reports a wrong command line in one line."""

    overview = ""
    """The text of --help; empty: the text of argparse."""
    passes_unknown_options = True
    """Whether unknown options go to another program, or from the parser of all commands to that of one command."""
    _args: Sequence[str] = ()

    def parse_known_args(  # type: ignore[override]  # argparse overloads this for other namespaces
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Keeps the arguments for `error`."""
        self._args = args or ()
        return super().parse_known_args(args, namespace)

    def _parse_optional(self, arg_string: str) -> Any:
        """Reads `-h`, `--…` and the wrong `-json` as options, and any other word as a value: the id `-X9P8VE94Po`."""
        is_option = arg_string.startswith("--") or {arg_string, f"-{arg_string}"} & self._option_string_actions.keys()
        return super()._parse_optional(arg_string) if self.passes_unknown_options or is_option else None

    def error(self, message: str) -> NoReturn:
        """Prints the message and exits with 2."""
        unknown = {one.partition("=")[0] for one in self._args} - self._option_string_actions.keys() - {"--"}
        if "required" in message and any(one.startswith("--") for one in unknown):
            message += "; write an id that begins with -- at the end, behind a separate --"
        self.exit(2, f"tally: {message.removesuffix('.')}; --help says more\n")

    def print_help(self, file: Any = None) -> None:
        """Prints the help. Raises an error of the output, which the method of argparse would hide."""
        print(self.format_help(), end="", file=file)

    def format_help(self) -> str:
        return self.overview or super().format_help()


@dataclass(frozen=True)
class Command:
    """One command of `tally`."""

    name: str
    """The key of COMMAND_SUMMARIES."""
    run: Callable[..., int]
    """Gets the options, and, if the command needs a stack, the stack. Returns the exit status."""
    arguments: Callable[[Parser, Counters], object] = lambda parser, counters: None  # adds the command's arguments
    check: Callable[[argparse.Namespace], None] = lambda args: None
    """Checks the options against each other, and completes them. Raises UsageError or InvalidInputError."""
    examples: str = ""  # for the help
    json: bool = False  # the command has --json
    write_option: str | None = None
    """The option with which a run needs `--by` and `--why`; empty: every run needs both; None: no run needs them."""
    no_stack_option: str = ""
    """The option with which the command needs no stack; empty: no such option."""
    unknown_option_hint: str = ""
    """The hint for an unknown option."""
    passes_unknown_options: bool = False
    """Whether the command gets unknown options as `others`, for a program that it runs."""

    @property
    def needs_stack(self) -> bool:
        """Whether the command reads or writes a stack."""
        return COMMAND_SUMMARIES[self.name].needs_stack

    @property
    def description(self) -> str:
        """The summary of the command, as a sentence."""
        about = COMMAND_SUMMARIES[self.name].about
        return f"{about[0].upper()}{about[1:]}."

    def add_to(self, commands: argparse._SubParsersAction[Parser], counters: Counters) -> None:
        parser = commands.add_parser(
            self.name, help=COMMAND_SUMMARIES[self.name].about, description=self.description,
            epilog=(f"examples:\n{self.examples.rstrip()}\n\n" if self.examples else "") + EXIT_STATUS,
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=not self.passes_unknown_options,
        )  # fmt: skip
        parser.passes_unknown_options = self.passes_unknown_options
        self.arguments(parser, counters)
        if self.json:
            parser.add_argument("--json", action="store_true", help="print JSON, one document a line")
        if self.write_option:
            parser.add_argument(self.write_option, action="store_true", help="do it; needs --by and --why")
        if self.write_option is None and not self.needs_stack:
            return
        from . import values  # imported late, because the help does not need it

        if self.write_option is not None:
            by, why = values.history_text(NAME_CHARACTERS_MAX), values.history_text(WHY_CHARACTERS_MAX)
            always = not self.write_option
            parser.add_argument("--by", metavar="NAME", type=by, required=always, help="who does it, for the history")
            parser.add_argument("--why", metavar="TEXT", type=why, required=always, help="why, for the history")
        if self.needs_stack:
            from .connection import PORT_DEFAULT

            stack_options = parser.add_mutually_exclusive_group()
            stack_options.add_argument("--local", action="store_true", help=f"use a running {DEV}")
            stack = f"use this stack in AWS (default: {STACK_DEFAULT})"
            stack_options.add_argument("--stack", metavar="NAME", default=STACK_DEFAULT, help=stack)
            port, text = values.whole_number(1, 65535), f"the port of {DEV}, with --local"
            parser.add_argument("--port", type=port, help=f"{text} (default: PORT, or {PORT_DEFAULT})")

    def check_options(self, args: argparse.Namespace) -> None:
        """Checks the options against each other. Raises UsageError or InvalidInputError."""
        if self.needs_stack and args.port and not args.local:  # --port means `make dev`, not AWS
            raise UsageError("--port goes with --local")
        if self.write_option:
            writes = getattr(args, self.write_option.strip("-"))
            if writes and not (args.by and args.why):
                raise UsageError(f"{self.write_option} needs --by NAME and --why TEXT, for the history")
            if not writes and (args.by or args.why):
                raise UsageError(f"--by and --why go with {self.write_option}")
        self.check(args)


def add_counter(
    parser: argparse._ActionsContainer, counters: Counters, about: str, name: str = "counter", **options: Any
) -> None:
    """Adds an argument or an option that names a counter. TAB offers the names of the declared counters."""
    from . import values

    type_ = values.declared_counter(counters)
    added: Any = parser.add_argument(name, metavar="COUNTER", type=type_, help=about, **options)
    added.complete = {"bash": "_tally_counters", "zsh": "_tally_counters"}  # for shtab


def add_number(parser: Parser, counters: Counters) -> None:
    """Adds the arguments that name one number."""
    add_counter(parser, counters, "the counter of the number")
    parser.add_argument("id", metavar="ID", help=ID_HELP)


def require_series(counter: Counter) -> None:
    """Raises UsageError for a counter without a series."""
    from tally import fields

    if refusal := fields.refusal_of_series(counter):
        raise UsageError(refusal.detail)


def add_output_formats(parser: Parser) -> None:
    """Adds --json and --csv, for a command that draws without them."""
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="print the JSON of the API")
    formats.add_argument("--csv", action="store_true", help="print CSV, also at a terminal")
