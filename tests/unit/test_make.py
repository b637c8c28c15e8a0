"""What make would do, without doing it, and what the locks hold."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
VENV = f"VENV={os.path.relpath(sys.prefix, ROOT)}"
LOCKS = ("requirements.txt", "tally/dev/requirements.txt", "tests/requirements.txt", "package-lock.json")
NPM = "npm ci --no-audit --no-fund --loglevel=error"
FOLDERS = ("lambdas", "tally/dev", ".", "tests", "tests/emulator", "tests/other_tools")  # of locks, in make's order


def make(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """As in a terminal: the make that runs these tests leaves no trace. The pins count as unchanged."""
    inherited = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "ARGS", "ENGINE", "PYTHON")
    own = {name: value for name, value in os.environ.items() if name not in inherited} | variables
    command = ["make", *(f"--assume-old={lock}" for lock in LOCKS), VENV, *arguments]
    return subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=PATIENCE_S)


def planned(*arguments: str) -> str:
    """What it would run, or its error."""
    run = make("--dry-run", *arguments)
    return run.stdout + run.stderr


def test_another_engine_runs_what_stores_something_and_is_fetched_first() -> None:
    plan = planned("test", "ENGINE=dynamodb-local")
    assert "-m tally.dev.base.dynamodb_local" in plan.partition("-m pytest")[0]
    assert plan.endswith("tests/invariants tests/integration\n")


def test_only_what_deploys_comes_with_the_cdk_and_only_what_tests_with_their_packages() -> None:
    everything = "--always-make"
    for target in ("dev", "demo", "soak", "smoke", "cost", "openapi"):
        plan = planned(target, everything)
        assert "--requirement tally/dev/requirements.txt" in plan, target
        assert "--requirement requirements.txt" not in plan, target
        assert re.findall("npm ci .*", plan) == [f"{NPM} --omit=dev --omit=peer"], target
    for target in ("deploy", "destroy", "diff", "wheel"):
        plan = planned(target, everything)
        assert "--requirement requirements.txt" in plan, target
        assert "adding the CDK" in plan, target
        assert "tests/requirements.txt" not in plan, target
        assert re.findall("npm ci .*", plan)[-1] == f"{NPM} --omit=dev", target
    for target in ("test", "test-all", "lint", "synth", "bench", "mutations"):
        plan = planned(target, everything)
        assert "--requirement requirements.txt --requirement tests/requirements.txt" in plan, target


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_lock_has_a_hash_for_each_pin_and_no_address(folder: str) -> None:
    lock = ROOT / folder / "requirements.txt"
    text = lock.read_text()
    pins = re.split(r"\n(?=[a-z0-9])", re.sub("^#.*\n", "", text, flags=re.MULTILINE).strip())
    assert [pin for pin in pins if not re.search(r"--hash=sha256:[0-9a-f]{64}$", pin)] == []
    assert "://" not in text


def test_the_lock_of_npm_has_a_hash_for_each_package_and_no_address() -> None:
    text = (ROOT / "package-lock.json").read_text()
    packages = {name: package for name, package in json.loads(text)["packages"].items() if name}
    assert [name for name, package in packages.items() if not package["integrity"].startswith("sha512-")] == []
    assert "resolved" not in text


@pytest.mark.long
def test_an_audit_that_gets_no_answer_fails_and_says_so_of_each_lock() -> None:
    """Never "no known vulnerability" of what nobody looked at."""
    nobody = {"HTTPS_PROXY": "http://nobody.invalid:1", "npm_config_registry": "http://nobody.invalid:1"}
    folders = (VENV.removeprefix("VENV="), "node_modules")
    ready = [f"--assume-old={folder}/{mark}" for folder in folders for mark in (".ready", ".cdk", ".tests")]
    run = make("audit", *ready, **nobody)
    assert (run.returncode, run.stdout) == (2, "")
    *said, last = run.stderr.splitlines()
    locks = [line.split(": ")[2] for line in said if line.startswith("tally: not audited: ")]
    audited = [os.path.normpath(f"{folder}/requirements.txt") for folder in FOLDERS]
    assert locks == [*audited, "package-lock.json"]
    assert len(said) == len(locks), last
