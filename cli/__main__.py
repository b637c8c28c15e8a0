"""The command `tally`: `tally --help`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

INTERRUPTED = 130
BAD = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if all is well, 1 if something differs, 2 and one line for what a person can put right, 130 for Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a line may quote what no terminal can show
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print("tally: stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `tally drift | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BAD


def _run(arguments: Sequence[str] | None) -> int:
    """The imports take half a second: they stand here so that Ctrl-C is heeded meanwhile."""
    from botocore.exceptions import BotoCoreError

    from tally.errors import TallyError

    from . import connection, options
    from .commands import COMMANDS

    given = options.parsed(sys.argv[1:] if arguments is None else arguments, options.parser())
    try:
        at = connection.local(given.port) if given.local else connection.deployed(given.stack)
        return COMMANDS[given.command](given, at)
    except connection.CommandError as error:
        print(f"tally: {error}", file=sys.stderr)
    except TallyError as error:
        print(f"tally: {connection.explained(error)}", file=sys.stderr)
    except BotoCoreError as error:
        print(f"tally: AWS cannot be asked: {error}", file=sys.stderr)
    return BAD


if __name__ == "__main__":
    sys.exit(main())
