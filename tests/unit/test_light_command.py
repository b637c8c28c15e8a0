"""The command imports only what it needs: little for help and version, and nothing of tally.operations for a read."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tally.cli import commands
from tally.cli.command_summaries import COMMAND_SUMMARIES
from tests.patience import PATIENCE_S

RUN_AND_PRINT_MODULES = """
import sys
from tally.cli.__main__ import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(*sys.modules, file=sys.stderr)
"""
HEAVY = {
    "aws_cdk", "aws_lambda_powertools", "asyncio", "boto3", "botocore", "concurrent.futures", "rich", "shtab",
    "tally.api", "tally.contract.declarations", "tally.operations", "tqdm",
}  # fmt: skip
FOR_TABLES = {"aws_lambda_powertools", "boto3", "botocore", "concurrent.futures"}


@pytest.mark.parametrize(
    ("line", "modules_max", "allowed"),
    [
        ("--version", 170, set()),
        ("help", 170, set()),
        ("init --help", 170, set()),
        ("help get", 580, FOR_TABLES),
        ("get plays 1 --local --port 1", 580, FOR_TABLES),
    ],
)
def test_a_command_imports_only_what_it_needs(line: str, modules_max: int, allowed: set[str]) -> None:
    """`modules_max`: about 50 more modules than the command imports now."""
    run = subprocess.run(
        [sys.executable, "-c", RUN_AND_PRINT_MODULES, *line.split()], capture_output=True, text=True, timeout=PATIENCE_S
    )
    imported = set(run.stderr.splitlines()[-1].split())
    assert imported & HEAVY <= allowed
    assert len(imported) <= modules_max, sorted(imported)


def test_each_summary_names_the_module_of_its_command() -> None:
    assert all(commands.command_named(name).name == name for name in COMMAND_SUMMARIES)
