"""Each target of make runs the right commands, and the lock files have a hash for each pin."""

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
FOLDERS = ("lambdas", "tally/dev", ".", "tests", "tests/emulator", "tests/other_tools")  # with a lock, in make's order


def make(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run make without the variables of the make that runs these tests. No pin counts as changed."""
    inherited = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "ARGS", "ENGINE", "PYTHON")
    environment = {name: value for name, value in os.environ.items() if name not in inherited} | variables
    command = ["make", *(f"--assume-old={lock}" for lock in LOCKS), VENV, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)


def dry_run(*arguments: str) -> str:
    """Returns the commands that make would run, or its error."""
    run = make("--dry-run", *arguments)
    return run.stdout + run.stderr


def test_with_another_engine_make_fetches_it_and_runs_the_tests_that_store_something() -> None:
    plan = dry_run("test", "ENGINE=dynamodb-local")
    assert "-m tally.dev.base.dynamodb_local" in plan.partition("-m pytest")[0]
    assert plan.endswith("tests/invariants tests/integration\n")


def test_each_test_that_make_test_all_names_exists() -> None:
    named = re.findall(r"(tests/[a-z0-9_/]+\.py)(?:::(\w+))?", dry_run("test-all"))
    assert len(named) > 20
    for file, test in named:
        assert f"def {test}" in (ROOT / file).read_text(), (file, test)


def test_only_targets_that_deploy_install_the_cdk_and_only_targets_that_test_install_test_packages() -> None:
    always_make = "--always-make"
    for target in ("dev", "demo", "soak", "smoke", "cost", "openapi"):
        plan = dry_run(target, always_make)
        assert "--requirement tally/dev/requirements.txt" in plan, target
        assert "--requirement requirements.txt" not in plan, target
        assert re.findall("npm ci .*", plan) == [f"{NPM} --omit=dev --omit=peer"], target
    for target in ("deploy", "destroy", "diff", "wheel"):
        plan = dry_run(target, always_make)
        assert "--requirement requirements.txt" in plan, target
        assert "adding the CDK" in plan, target
        assert "tests/requirements.txt" not in plan, target
        assert re.findall("npm ci .*", plan)[-1] == f"{NPM} --omit=dev", target
    for target in ("test", "test-all", "lint", "synth", "bench", "mutations"):
        plan = dry_run(target, always_make)
        assert "--requirement requirements.txt --requirement tests/requirements.txt" in plan, target


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_lock_has_a_hash_for_each_pin_and_no_address_of_a_package_index(folder: str) -> None:
    lock = ROOT / folder / "requirements.txt"
    text = lock.read_text()
    pins = re.split(r"\n(?=[a-z0-9])", re.sub("^#.*\n", "", text, flags=re.MULTILINE).strip())
    assert [pin for pin in pins if not re.search(r"--hash=sha256:[0-9a-f]{64}$", pin)] == []
    assert "://" not in text


def test_the_lock_of_npm_has_a_hash_for_each_package_and_no_address_of_a_registry() -> None:
    text = (ROOT / "package-lock.json").read_text()
    packages = {name: package for name, package in json.loads(text)["packages"].items() if name}
    assert [name for name, package in packages.items() if not package["integrity"].startswith("sha512-")] == []
    assert "resolved" not in text


@pytest.mark.long
def test_an_audit_without_an_answer_fails_and_names_each_lock() -> None:
    """An audit never says "no known vulnerability" if nobody answered."""
    unreachable = {"HTTPS_PROXY": "http://nobody.invalid:1", "npm_config_registry": "http://nobody.invalid:1"}
    folders = (VENV.removeprefix("VENV="), "node_modules")
    installed = [f"--assume-old={folder}/{file}" for folder in folders for file in (".ready", ".cdk", ".tests")]
    run = make("audit", *installed, **unreachable)
    assert (run.returncode, run.stdout) == (2, "")
    *lines, last = run.stderr.splitlines()
    locks = [line.split(": ")[2] for line in lines if line.startswith("tally: not audited: ")]
    audited = [os.path.normpath(f"{folder}/requirements.txt") for folder in FOLDERS]
    assert locks == [*audited, "package-lock.json"]
    assert len(lines) == len(locks), last
