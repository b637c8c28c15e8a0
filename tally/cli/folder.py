"""The folder that a command acts for: a checkout, or one that `tally init` made."""

from __future__ import annotations

import os
from pathlib import Path

from tally.dev.base.options import COUNTERS
from tally.errors import ConfigurationError


def folder() -> Path:
    """The present one, unless TALLY_APP names another. Raises ConfigurationError."""
    try:
        return Path(os.environ.get("TALLY_APP") or Path.cwd())
    except FileNotFoundError:
        raise ConfigurationError("the present folder is gone: go to another one") from None


def lambdas() -> Path | None:
    """The sources of the functions, in a checkout; None elsewhere."""
    sources = folder() / "lambdas"
    return sources if (sources / "handlers.py").is_file() else None


def missing(file: Path) -> str:
    """What to say of a file of counters that is not there."""
    return f"{file} is missing: go to the folder of your counters, or run `tally init`"


def counters() -> Path:
    """The file that declares the counters. Elsewhere than in a checkout it is beside app.py."""
    return (lambdas() or folder()) / COUNTERS
