"""What make would do, without doing it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VENV = f"VENV={os.path.relpath(sys.prefix, ROOT)}"
MADE_AGAIN = "-m venv --clear"


def planned(*arguments: str) -> str:
    """What it would run, or its error; the pins count as unchanged. The make that runs this test leaves no trace."""
    inherited = ("MAKEFLAGS", "MAKELEVEL", "ARGS", "ENGINE", "ON_ENGINE", "PYTHON")
    own = {name: value for name, value in os.environ.items() if name not in inherited}
    command = ["make", "--dry-run", "--assume-old=requirements.txt", VENV, *arguments]
    run = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=20)
    return run.stdout + run.stderr


def python_of(version: str, folder: Path) -> Path:
    made = folder / "python"
    made.write_text(f"#!/bin/sh\necho {version}\n")
    made.chmod(0o755)
    return made


def test_a_python_of_another_version_makes_the_environment_again(tmp_path: Path) -> None:
    assert MADE_AGAIN in planned("setup", f"PYTHON={python_of('3.99', tmp_path)}")


@pytest.mark.parametrize("named", [[f"PYTHON={sys.executable}"], []], ids=["the same", "none"])
def test_the_environment_stays_with_the_same_python_and_without_one(named: list[str]) -> None:
    assert MADE_AGAIN not in planned("setup", *named)


def test_another_engine_runs_what_stores_something_and_is_fetched_first() -> None:
    plan = planned("test", "ENGINE=dynamodb-local", "--assume-new=tests/engines/pom.xml")
    assert "mvn " in plan.partition("-m pytest")[0]
    assert plan.endswith("tests/invariants tests/integration \n")


def test_an_unknown_engine_is_one_line() -> None:
    assert "ENGINE=nothing is not known" in planned("test", "ENGINE=nothing")
    assert planned("test", "ENGINE=nothing").count("\n") == 1
