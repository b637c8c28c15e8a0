"""What every command does with bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


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
