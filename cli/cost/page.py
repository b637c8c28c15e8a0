"""`make cost`: runs the commands of docs/cost.md again, and writes what they print below them."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

from ..command import Parser
from .command import COST

PAGE = Path(__file__).resolve().parents[2] / "docs/cost.md"
_RUN = re.compile(r"(?<=```console\n\$ tally )(cost.*\n)[^`]*(?=```)")


def _printed(found: re.Match[str]) -> str:
    made = Parser()
    COST.add(made.add_subparsers(), {})
    with redirect_stdout(io.StringIO()) as printed:
        COST.run(made.parse_args(shlex.split(found[1])))
    return found[1] + printed.getvalue()


def written(page: str) -> str:
    """The page with what each command prints now."""
    return _RUN.sub(_printed, page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
