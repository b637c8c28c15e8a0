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
from .claims import MEASURES, Claim, Measure
from .clients import ENDPOINT_VARIABLE
from .instruments import Rows
from .plays import ANSWERS_LOST_SHARE, CRASHES_SHARE, THREADS

RESULTS = ROOT / "bench/results"
_VERDICTS = {True: "held", False: "NOT HELD", None: "not judged"}


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> Iterator[str]:
    """Returns the lines of a table. The first `text_columns` columns align left, the other columns right."""
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    for row in (heads, ["─" * width for width in widths], *rows):
        cells = [
            cell.ljust(width) if column < text_columns else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def format_figure(value: float) -> str:
    """Returns a figure as text: `412,000`, `7.50`, `0.042`."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def figures_table(measure: Measure, rows: Rows) -> Iterator[str]:
    """Returns the figures of a measurement as the lines of a table."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    cells = [
        (name, *(format_figure(row[column]) if column in row else "" for column in columns))
        for name, row in rows.items()
    ]
    yield from table((measure.title, *columns), cells)


def judge_claims(measure: Measure, rows: Rows, quick: bool) -> list[tuple[Claim, bool | None]]:
    """Returns each claim, and whether the claim holds. None: a quick run does not judge the claim."""
    skipped = [claim for claim in measure.claims if quick and claim.full_only]
    return [(claim, None if claim in skipped else claim.holds(rows)) for claim in measure.claims]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=f"Count the same play in six ways on one engine, from {THREADS} threads, while"
        f" {ANSWERS_LOST_SHARE:.0%} of the answers are lost (half between store and SDK, half between function and"
        f" caller) and {CRASHES_SHARE:.0%} of the callers crash. Then measure the cost of changes, consumers and"
        " journal, and simulate one hot key. If a claim does not hold, the exit status is 1.",
    )
    parser.add_argument("--out", type=Path, help="file for the JSON (bench/results/latest.json, or quick.json)")
    parser.add_argument("--quick", action="store_true", help="a smoke test with few plays, which judges no times")
    names = [measure.name for measure in MEASURES]
    parser.add_argument(
        "--only", action="append", choices=names, help="run only this measurement (the option may be repeated)"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line. Returns the exit status."""
    arguments, started_s = _arguments(argv), time.monotonic()
    out = arguments.out or RESULTS / ("quick.json" if arguments.quick else "latest.json")
    engine = os.environ.get(ENDPOINT_VARIABLE, "dynoxide, in memory")
    print(f"Engine: {engine}. {os.cpu_count()} CPUs, Python {platform.python_version()}.\n", flush=True)
    measures = [measure for measure in MEASURES if not arguments.only or measure.name in arguments.only]
    document, verdicts = {}, []
    try:
        for measure in measures:
            if arguments.quick and measure.full_only:
                continue
            rows = document[measure.name] = measure.run(arguments.quick)
            print(*figures_table(measure, rows), "", sep="\n", flush=True)
            verdicts += [(measure, rows, *judgement) for judgement in judge_claims(measure, rows, arguments.quick)]
        out.parent.mkdir(parents=True, exist_ok=True)
        about_run = {"quick": arguments.quick, "python": platform.python_version(), "cpus": os.cpu_count()}
        out.write_text(json.dumps({**about_run, "figures": document}, indent=2) + "\n")
    except (LocalError, OSError, BotoCoreError, ClientError) as error:
        print(f"tally: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tally: bench stopped", file=sys.stderr)
        return 130
    lines = [
        (f"{measure.title}: {claim.row}", claim.column,
         "" if held is None else format_figure(rows[claim.row][claim.column]),
         f"{claim.comparison} {format_figure(claim.bound)}", _VERDICTS[held])
        for measure, rows, claim, held in verdicts
    ]  # fmt: skip
    print(*table(("claim", "", "measured", "bound", ""), lines, text_columns=5), sep="\n")
    print(f"\n{out}, in {time.monotonic() - started_s:.0f} s")
    failed = [f"{claim.row}: {claim.column}" for _, _, claim, held in verdicts if held is False]
    if failed:
        print(f"tally: these claims do not hold: {'; '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends the bench as Ctrl-C does: the engine stops
    sys.exit(main())
