"""`python -m bench`: measures, prints, and writes the JSON. Exit status 1 if a claim does not hold."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from tally.dev.base.errors import LocalError

from . import ROOT
from .claims import MEASURES, Claim, Measure, Rows
from .clients import ENDPOINT_VARIABLE
from .plays import ANSWERS_LOST_SHARE, CRASHES_SHARE, THREADS

RESULTS = ROOT / "bench/results"
_VERDICTS = {True: "held", False: "NOT HELD", None: "not judged"}


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> Iterator[str]:
    """Lines of a table. The first `texts` columns align left, the others right."""
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    for row in (heads, ["─" * width for width in widths], *rows):
        cells = [
            cell.ljust(width) if column < texts else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def shown(value: float) -> str:
    """Returns a figure as text: `412,000`, `7.50`, `0.042`."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def figures(measure: Measure, rows: Rows) -> Iterator[str]:
    """Returns the figures of a measurement as a table."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    cells = [(name, *(shown(row[column]) if column in row else "" for column in columns)) for name, row in rows.items()]
    yield from table((measure.title, *columns), cells)


def judged(measure: Measure, rows: Rows, quick: bool) -> list[tuple[Claim, bool | None]]:
    """Returns each claim, and whether it holds. None: a quick run does not judge the claim."""
    skipped = [claim for claim in measure.claims if quick and claim.full_only]
    return [(claim, None if claim in skipped else claim.holds(rows)) for claim in measure.claims]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=f"Count the same play in six ways on one engine, from {THREADS} threads, while"
        f" {ANSWERS_LOST_SHARE:.0%} of the answers are lost (half between store and SDK, half between function and"
        f" caller) and {CRASHES_SHARE:.0%} of the callers crash; measure what changes, consumers and journal cost;"
        " simulate one hot key. Exit status 1 if a claim does not hold.",
    )
    parser.add_argument("--out", type=Path, help="file for the JSON (bench/results/latest.json, or quick.json)")
    parser.add_argument("--quick", action="store_true", help="a smoke test: few plays, and times are not judged")
    names = [measure.name for measure in MEASURES]
    parser.add_argument("--only", action="append", choices=names, help="one measurement; may be given several times")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line. Returns the exit status."""
    given, started_s = _arguments(argv), time.monotonic()
    out = given.out or RESULTS / ("quick.json" if given.quick else "latest.json")
    engine = os.environ.get(ENDPOINT_VARIABLE, "dynoxide, in memory")
    print(f"Engine: {engine}. {os.cpu_count()} CPUs, Python {platform.python_version()}.\n", flush=True)
    wanted = [one for one in MEASURES if one.name in given.only] if given.only else list(MEASURES)
    document, verdicts = {}, []
    try:
        for measure in wanted:
            if given.quick and measure.full_only:
                continue
            rows = document[measure.name] = measure.run(given.quick)
            print(*figures(measure, rows), "", sep="\n", flush=True)
            verdicts += [(measure, rows, *judgement) for judgement in judged(measure, rows, given.quick)]
        out.parent.mkdir(parents=True, exist_ok=True)
        about = {"quick": given.quick, "python": platform.python_version(), "cpus": os.cpu_count()}
        out.write_text(json.dumps({**about, "figures": document}, indent=2) + "\n")
    except (LocalError, OSError, BotoCoreError, ClientError) as error:
        print(f"tally: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tally: bench stopped", file=sys.stderr)
        return 130
    lines = [
        (f"{measure.title}: {claim.row}", claim.column, "" if held is None else shown(rows[claim.row][claim.column]),
         f"{claim.how} {shown(claim.bound)}", _VERDICTS[held])
        for measure, rows, claim, held in verdicts
    ]  # fmt: skip
    print(*table(("claim", "", "measured", "bound", ""), lines, texts=5), sep="\n")
    print(f"\n{out}, in {time.monotonic() - started_s:.0f} s")
    broken = [f"{claim.row}: {claim.column}" for _, _, claim, held in verdicts if held is False]
    if broken:
        print(f"tally: does not hold: {'; '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the engine too
    sys.exit(main())
