"""The CPU time to import a hot handler at a cold start, and to run the command `tally`, compared with boto3."""

from __future__ import annotations

import json
import operator
import os
import statistics
import subprocess
import sys
from typing import NamedTuple

from tally.dev.base.errors import LocalError

from . import ROOT
from .clients import SETTINGS

HOT_HANDLERS = ("increments_open", "children_open", "visits")
HEAVY = ("pydantic", "pydantic_core", "aws_xray_sdk")
"""Modules that a hot handler must not import, because they add 130 to 300 ms to a cold start."""
IMPORT_S_MAX = 60.0
_TIMED_PROGRAM = """
import time
started_s = time.process_time()
{code}
took_s = time.process_time() - started_s
import json, sys
print(json.dumps({{"took_s": took_s, "heavy": [name for name in {heavy!r} if name in sys.modules]}}))
"""
COMMANDS = {
    "tally --version": ["--version"],
    "tally get --local, without a server": ["get", "plays", "1", "--local", "--port", "1"],
}
_COMMAND_CODE = """
import contextlib, io
from tally.cli.__main__ import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main({arguments!r})
"""
_BOTO3 = 'import boto3\nboto3.client("dynamodb")'


class Import(NamedTuple):
    """One import in a fresh interpreter: its CPU time, and the HEAVY modules that it imported."""

    took_s: float
    heavy: list[str]


def measure(quick: bool) -> dict[str, dict[str, float]]:
    """Imports boto3 and the first hot handler and runs COMMANDS in turn, each in a fresh interpreter.

    Returns the median CPU times, without the interpreter's start. A ratio is the median over the rounds. A round runs
    each program once, because caches and clock rates change. If an import fails, raises LocalError with the message.
    """
    codes = {"boto3": _BOTO3, "handler": f"import handlers; handlers.{HOT_HANDLERS[0]}"}
    codes |= {name: _COMMAND_CODE.format(arguments=arguments) for name, arguments in COMMANDS.items()}
    taken_s: dict[str, list[float]] = {name: [] for name in codes}
    for number in range((1 if quick else 15) + 1):
        for name in sorted(codes, reverse=number % 2 == 1):
            took_s = time_code(codes[name]).took_s
            if number:  # the first run fills the caches of the file system and of byte code
                taken_s[name].append(took_s)
    heavy = {module for handler in HOT_HANDLERS for module in time_code(f"import handlers; handlers.{handler}").heavy}
    rows = {
        name: {
            "ms": statistics.median(each_s) * 1e3,
            "times boto3": statistics.median(map(operator.truediv, each_s, taken_s["boto3"])),
        }
        for name, each_s in taken_s.items()
    }
    handler = rows.pop("handler") | {"heavy modules": len(heavy)}
    return {"boto3 with one client": rows.pop("boto3"), "a hot handler": handler, **rows}


def time_code(code: str) -> Import:
    """Runs `code` in a fresh interpreter with a function's environment. Raises LocalError if the code fails."""
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "lambdas"))),
        "TALLY_APP": str(ROOT),
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "TALLY_COUNTS_TABLE": SETTINGS.counts_table,
        "TALLY_RECEIPTS_TABLE": SETTINGS.receipts_table,
        "TALLY_LEDGER_TABLE": SETTINGS.ledger_table,
        "TALLY_DEAD_LETTER_BUCKET": "bench",
    }
    command = [sys.executable, "-c", _TIMED_PROGRAM.format(code=code, heavy=HEAVY)]
    try:
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=IMPORT_S_MAX)
    except subprocess.TimeoutExpired:
        raise LocalError(f"`{code}` took longer than {IMPORT_S_MAX:.0f} s") from None
    if run.returncode:
        raise LocalError(f"`{code}` failed: {run.stderr.strip().splitlines()[-1:]}")
    return Import(**json.loads(run.stdout))
