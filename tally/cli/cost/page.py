"""`make cost`: runs the commands of docs/cost.md again, writes what they print below them, and what strangers cost."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

from tally.contract.declarations import Declarations
from tally.home import LAMBDAS

from ..command import Parser
from .command import COST
from .strangers import worst_day

PAGE = Path(__file__).parents[3] / "docs/cost.md"
_RUN = re.compile(r"(?<=```console\n\$ tally )(cost.*\n)[^`]*(?=```)")
_WORST = re.compile(r"(?<=cost up to \$)[0-9,]+(?= a day)")


def _printed(found: re.Match[str]) -> str:
    made = Parser()
    COST.add(made.add_subparsers(), {})
    with redirect_stdout(io.StringIO()) as printed:
        COST.run(made.parse_args(shlex.split(found[1])))
    return found[1] + printed.getvalue()


def written(page: str) -> str:
    """The page with what each command prints now, and with the worst day of the counters and routes that there are."""
    worst = worst_day(Declarations.load(LAMBDAS / "counters.py"), 1)
    return _RUN.sub(_printed, _WORST.sub(f"{worst:,.0f}", page))


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
