"""In a folder without a checkout, `tally deploy` deploys into the emulator, and `tally destroy` deletes the stack."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.emulator.server import Emulator
from tests.emulator.stack import Stack, rewrite_template, without_unsupported
from tests.environments import ROOT
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.long
KEY = "5f0c2b9e-6f0a-4b63-8a37-0d1a4f0f6f11"


def test_the_folder_of_init_is_deployed_counts_once_and_is_destroyed(tmp_path: Path, python: Path) -> None:
    emulator = Emulator(tmp_path)
    try:
        init_deploy_and_destroy(tmp_path / "shop", Stack(emulator, tmp_path), python)
    finally:
        emulator.stop()


def init_deploy_and_destroy(shop: Path, stack: Stack, python: Path) -> None:
    """Write a folder, deploy it, count, and destroy the stack. `python`: of an environment with the wheel."""
    shop.mkdir()
    path = os.pathsep.join([str(python.parent), str(ROOT / "node_modules/.bin"), os.environ["PATH"]])
    inherited = {name: value for name, value in stack.environment.items() if not name.startswith(("PYTHON", "TALLY_"))}

    def run(*command: str) -> str:
        result = subprocess.run(
            command, cwd=shop, env={**inherited, "PATH": path}, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def tally(*arguments: str) -> str:
        # The script `tally` does not run: it names the folder from which the fixture moved the environment.
        return run(str(python), "-P", "-m", "tally.cli", *arguments)

    tally("init")
    stack.bootstrap()
    run("cdk", "synth", "--quiet", "--output", "changed")
    rewrite_template(shop / "changed", without_unsupported)  # the emulator lacks some features of AWS
    printed = tally("deploy", "--yes", "--app", "changed")
    assert "Tally-dev answers at" in printed
    assert "  tally status --stack Tally-dev" in printed.splitlines()
    for _ in range(2):  # the second call is a replay
        answer = stack.call("POST", "/articles/a91f/shares", Idempotency_Key=KEY)
        assert (answer.status, answer.body.get("counted")) == (200, True), answer
    assert stack.call("GET", "/articles/a91f/shares").body["value"] == 1
    assert tally("get", "shares", "a91f") == "shares a91f: 1\n"
    assert "deleted; nothing remains" in tally("destroy", "--yes")
