"""Calls the command `tally` for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import counters
from tally.cli import commands
from tally.cli.__main__ import main
from tally.cli.connection import Stack
from tally.dynamo.client import Store

WRITE_OPTIONS = ("--yes", "--by", "ann", "--why", "INC-9")  # of a command that writes: without questions


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Returns the exit status of the command, its output, and its errors."""
    capsys.readouterr()
    try:
        code = main(arguments)
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def error_of(main: Callable[[list[str]], int], arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Returns the only line that the command prints to stderr, with exit status 2."""
    try:
        code: Any = main(arguments)
    except SystemExit as stopped:
        code = stopped.code
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert printed.err.startswith("tally: ")
    assert printed.err.count("\n") == 1
    return printed.err.removeprefix("tally: ").strip()


@dataclass
class Command:
    """Runs the command `tally` on the tables of a store, and makes files for it in a folder."""

    store: Store
    folder: Path
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: object) -> int:
        """Returns the exit status."""
        parsed = commands.parse_arguments([str(argument) for argument in arguments], commands.parser(counters.COUNTERS))
        return commands.command_named(parsed.command).run(
            parsed, Stack(self.store, objects=None, counters=counters.COUNTERS)
        )

    def file(self, *lines: str, name: str = ".csv") -> Path:
        """Returns a new file with these lines. `name`: the end of its name."""
        path = self.folder / f"{len(list(self.folder.iterdir()))}{name}"
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def import_(self, path: Path, counter: str = "plays", *options: str) -> int:
        """Import the file, with the name of who imports and the reason. Returns the exit status."""
        kind = "--children" if counter == "likes" else "--counter"
        return self("import", path, kind, counter, *WRITE_OPTIONS, *options)

    def read_output(self) -> tuple[str, str]:
        """Returns the output and the errors since the last call."""
        return self.capsys.readouterr()
