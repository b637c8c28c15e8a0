"""The folder that a command works on: a checkout, or a folder of `tally init`."""

from __future__ import annotations

import os
from pathlib import Path

from tally.dev.base.options import COUNTERS
from tally.errors import ConfigurationError


def folder() -> Path:
    """Returns the folder TALLY_APP, or the current folder. Raises ConfigurationError."""
    try:
        return Path(os.environ.get("TALLY_APP") or Path.cwd())
    except FileNotFoundError:
        raise ConfigurationError("the current folder does not exist: go to another one") from None


def lambdas() -> Path | None:
    """Returns the sources of the functions in a checkout; None outside a checkout."""
    sources = folder() / "lambdas"
    return sources if (sources / "handlers.py").is_file() else None


def missing_text(file: Path) -> str:
    """Returns the message for a file of counters that does not exist."""
    return f"{file} is missing: go to the folder of your counters, or run `tally init`"


def counters() -> Path:
    """Returns the file that declares the counters. Outside a checkout it is beside app.py."""
    return (lambdas() or folder()) / COUNTERS
