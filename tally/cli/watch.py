"""The command `watch`: follows a number until Ctrl-C. Writes nothing."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime

from botocore.exceptions import BotoCoreError

from tally.counting import tallies
from tally.dynamo.client import Call
from tally.errors import NotCountedError, TallyError

from . import connection, values
from .command import Command, Counters, Parser, add_number, add_output_formats
from .connection import Stack
from .terminal import CommandError, WatchedValue, explain_error, may_draw, note, print_json_or_line, say, viewers_zone

INTERVAL_DEFAULT_S, INTERVAL_MAX_S = 2, 3600


def _add_arguments(parser: Parser, counters: Counters) -> None:
    add_number(parser, counters)
    seconds, text = values.whole_number(1, INTERVAL_MAX_S), f"seconds between two reads (default: {INTERVAL_DEFAULT_S})"
    parser.add_argument("--interval", metavar="S", type=seconds, default=INTERVAL_DEFAULT_S, help=text)
    add_output_formats(parser)


def watch(args: argparse.Namespace, stack: Stack) -> int:
    """Prints the number whenever it moves. Returns 0 at Ctrl-C. Raises what the first read raises."""
    values_read = _read_values(args, stack)
    try:
        if may_draw(args):
            from . import charts  # imported late, because the import takes a tenth of a second

            charts.draw_watch(f"{args.counter.name} {args.id}", args.interval, values_read, viewers_zone())
        else:
            _print_values(args, values_read)
    except KeyboardInterrupt:
        pass
    return 0


def _read_values(args: argparse.Namespace, stack: Stack) -> Iterator[WatchedValue]:
    """Reads the number after each interval, for ever. Raises errors of the first read, later only NotCountedError."""
    last = _read_value(args, stack)
    yield WatchedValue(int(time.time()), last, 0)
    while True:
        time.sleep(args.interval)
        try:
            value = _read_value(args, stack)
        except NotCountedError:
            raise
        except (TallyError, BotoCoreError) as error:
            why = explain_error(error) if isinstance(error, TallyError) else str(error)
            yield WatchedValue(int(time.time()), last, 0, " ".join(why.split()) or type(error).__name__)
            if args.local:  # a `make dev` that was started again may have another engine
                with suppress(CommandError):
                    stack = connection.local_stack(args.port, stack.counters)
            continue
        yield WatchedValue(int(time.time()), value, value - last)
        last = value


def _read_value(args: argparse.Namespace, stack: Stack) -> int:
    """Returns the number. Raises NotCountedError, and what a read raises."""
    stack.check_counted(args.counter)
    return tallies.read(Call(stack.store), args.counter, args.id)


def _print_values(args: argparse.Namespace, values_read: Iterable[WatchedValue]) -> None:
    """Prints a line for the first value and for each change, and a note when the connection is lost or restored."""
    is_lost = False
    for number, read in enumerate(values_read):
        if bool(read.error) != is_lost:
            is_lost = bool(read.error)
            note(f"the connection is lost: {read.error}; trying again" if is_lost else "the connection is restored")
        if number == 0 and not args.json:
            say("at,value,change")
        if number == 0 or read.change:
            at = datetime.fromtimestamp(read.at_s, UTC).isoformat()
            body = {"at": read.at_s, "value": read.value, "change": read.change}
            print_json_or_line(args, body, f"{at},{read.value},{read.change}")


WATCH = Command(
    "watch", watch, _add_arguments, values.complete_id,
    examples="""  tally watch plays 9f3a                         each interval costs a read
  tally watch likes a91f --interval 10 --stack Tally-prod
  tally watch stock mug --json                   a line for each change
""",
)  # fmt: skip
