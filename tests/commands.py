"""The command `tally` as a test calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cli.__main__ import main


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The status of the command, what it printed, and what it said beside it."""
    capsys.readouterr()
    try:
        code = main(arguments)
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def one_line(main: Callable[[list[str]], int], arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The only line that the command prints, with status 2."""
    try:
        code: Any = main(arguments)
    except SystemExit as stopped:
        code = stopped.code
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert printed.err.startswith("tally: ")
    assert printed.err.count("\n") == 1
    return printed.err.removeprefix("tally: ").strip()
