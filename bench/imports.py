"""The time to import a hot handler at a cold start, beside that of boto3 with one client."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import NamedTuple

from dev.base.errors import LocalError

from . import ROOT
from .clients import SETTINGS

HOT_HANDLERS = ("increments_open", "children_open", "visits")
HEAVY = ("pydantic", "pydantic_core", "aws_xray_sdk")
"""Modules that the hot path must not import: 130 to 300 ms of cold start."""
IMPORT_S_MAX = 60.0
_TIMED = """
import time
started_s = time.perf_counter()
{what}
took_s = time.perf_counter() - started_s
import json, sys
print(json.dumps({{"took_s": took_s, "heavy": [name for name in {heavy!r} if name in sys.modules]}}))
"""
_BOTO3 = 'import boto3\nboto3.client("dynamodb")'


class Import(NamedTuple):
    """One import in a fresh interpreter: its wall time, and the HEAVY modules that it brought."""

    took_s: float
    heavy: list[str]


@dataclass(frozen=True)
class Imports:
    """Median wall times of the imports, without the start of the interpreter.

    `ratio`: the handler's time over boto3's, the median of pairs. A pair runs back to back, because noise is bursty.
    """

    boto3_ms: float
    handler_ms: float
    ratio: float
    heavy: dict[str, list[str]]
    """The HEAVY modules that each hot handler imported."""


def measure_imports(runs: int) -> Imports:
    """Import the first hot handler and boto3 in fresh interpreters, in turn, `runs` times each.

    Raises LocalError with the interpreter's message if an import fails.
    """
    codes = {"boto3": _BOTO3, "handler": f"import serve; serve.{HOT_HANDLERS[0]}"}
    taken_s: dict[str, list[float]] = {name: [] for name in codes}
    for number in range(runs + 1):
        for name in sorted(codes, reverse=number % 2 == 1):
            took_s = imported(codes[name]).took_s
            if number:  # the first run fills the caches of the file system and of byte code
                taken_s[name].append(took_s)
    heavy = {handler: imported(f"import serve; serve.{handler}").heavy for handler in HOT_HANDLERS}
    boto3_ms, handler_ms = (statistics.median(taken_s[name]) * 1e3 for name in ("boto3", "handler"))
    ratio = statistics.median(
        handler_s / boto3_s for handler_s, boto3_s in zip(taken_s["handler"], taken_s["boto3"], strict=True)
    )
    return Imports(boto3_ms, handler_ms, ratio, heavy)


def imported(what: str) -> Import:
    """Run `what` in a fresh interpreter with a function's environment. Raises LocalError if it fails."""
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": str(ROOT / "lambdas"),
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "TALLY_COUNTS_TABLE": SETTINGS.counts_table,
        "TALLY_RECEIPTS_TABLE": SETTINGS.receipts_table,
        "TALLY_LEDGER_TABLE": SETTINGS.ledger_table,
    }
    command = [sys.executable, "-c", _TIMED.format(what=what, heavy=HEAVY)]
    try:
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=IMPORT_S_MAX)
    except subprocess.TimeoutExpired:
        raise LocalError(f"`{what}` took longer than {IMPORT_S_MAX:.0f} s") from None
    if run.returncode:
        raise LocalError(f"`{what}` failed: {run.stderr.strip().splitlines()[-1:]}")
    return Import(**json.loads(run.stdout))
