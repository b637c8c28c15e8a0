"""Runs the command `tally`."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import io
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

BAD, INTERRUPTED = 2, 130  # exit statuses
UNWRITTEN = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}  # a write to stdout failed
ERROR_CHARACTERS_MAX = 300  # of a printed error, because it may quote a page of HTML


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status (`command.EXIT_STATUS`). Prints a user's error in one line."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the caller closed the stream, as by `>&-`
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  # open until the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a line may quote characters that the terminal lacks
    try:
        try:
            return _run(sys.argv[1:] if arguments is None else arguments)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("tally: stopped", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # in `tally check | head`, `head` ends first
            print(f"tally: the output cannot be written: {error.strerror or error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at the end must not fail, too
        return BAD


def _exit_now(number: int, frame: FrameType | None) -> None:
    """Ends the process at Ctrl-C during imports, because CPython turns an exception in an import into a TypeError."""
    os.write(sys.stderr.fileno(), b"tally: stopped\n")
    os._exit(INTERRUPTED)


def _load(arguments: Sequence[str]) -> None:
    """Imports what a command needs before it runs: for a command with a stack this takes half a second."""
    from . import commands

    for name in commands.needed_commands(arguments):
        commands.command_named(name)  # imports the module
    if commands.takes_counters(arguments):
        importlib.import_module("tally.cli.connection")
        importlib.import_module("tally.contract.counters_file")


def _is_bare() -> bool:
    """Returns whether the package is installed without the extra `dev`, which the commands need."""
    return importlib.util.find_spec("shtab") is None


def _run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit status."""
    if _is_bare():
        from .init import run_bare

        return run_bare(arguments)
    from .terminal import run_to_exit_status

    _load(arguments)
    try:
        return run_to_exit_status(lambda: _command(arguments))
    except Exception as error:  # perhaps another program has the port of `make dev`, and answers something else
        if os.environ.get("TALLY_TRACEBACK") or (isinstance(error, OSError) and error.errno in UNWRITTEN):
            raise  # `main` prints the error
        error_text = " ".join(f"{type(error).__name__}: {error}".split())[:ERROR_CHARACTERS_MAX]
        line = f"an answer cannot be read, or Tally has a bug: {error_text} (TALLY_TRACEBACK=1 shows where)"
        print(f"tally: {line}", file=sys.stderr)
    return BAD


def _command(arguments: Sequence[str]) -> int:
    """Finds what the command needs, and runs it. If `counters.py` is wrong, the help still runs."""
    from . import commands

    names = commands.needed_commands(arguments)
    if not commands.takes_counters(arguments):
        args = commands.parse_arguments(arguments, commands.parser({}, names))
        return commands.command_named(args.command).run(args)
    from tally.builtin import BUILTIN
    from tally.contract.counters_file import CountersFile
    from tally.errors import ConfigurationError
    from tally.pages import DEFAULT_PAGES

    from . import connection, folder
    from .terminal import CommandError, note

    file, needs_stack = folder.counters(), commands.uses_stack(arguments)
    exists = file.is_file()  # without the file, as before `tally init`, the help knows the built-in counters
    app = CountersFile(file, {} if exists else {counter.name: counter for counter in BUILTIN}, DEFAULT_PAGES)
    try:
        app = CountersFile.load(file) if exists else app
    except ConfigurationError:
        if needs_stack:
            raise
    for line in app.warnings if needs_stack else ():
        note(line)
    args = commands.parse_arguments(arguments, commands.parser(app.counters, names))
    command = commands.command_named(args.command)
    if not command.needs_stack or getattr(args, command.no_stack_option, None):
        return command.run(args)
    if not exists:
        raise CommandError(folder.missing_text(file))
    local, counters = args.local, app.counters
    stack = connection.local_stack(args.port, counters) if local else connection.deployed_stack(args.stack, counters)
    if command.write_option is not None:  # the command may write
        from tally.streams import fingerprints

        fingerprints.check(fingerprints.read_all(stack.store), counters)
    return command.run(args, stack)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _exit_now)
    if not _is_bare():
        _load(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
