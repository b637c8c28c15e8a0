"""A team's folder without a checkout: `tally deploy` deploys it into the emulator, and `tally destroy` deletes it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.emulator.server import Emulator
from tests.emulator.stack import Stack, rewrite, without_unsupported
from tests.environments import ROOT
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.long
KEY = "5f0c2b9e-6f0a-4b63-8a37-0d1a4f0f6f11"


def test_the_folder_that_init_writes_is_deployed_counts_and_goes(tmp_path: Path, python: Path) -> None:
    emulator = Emulator(tmp_path)
    try:
        live(tmp_path / "shop", Stack(emulator, tmp_path), python)
    finally:
        emulator.stop()


def live(shop: Path, stack: Stack, python: Path) -> None:
    """Begin with nothing, and leave nothing. `python`: of the environment that has the wheel."""
    shop.mkdir()
    path = os.pathsep.join([str(python.parent), str(ROOT / "node_modules/.bin"), os.environ["PATH"]])
    kept = {name: value for name, value in stack.environment.items() if not name.startswith(("PYTHON", "TALLY_"))}

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=shop, env={**kept, "PATH": path}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def tally(*arguments: str) -> str:
        return run(str(python), "-P", "-m", "tally.cli", *arguments)  # the fixture has moved the environment

    tally("init")
    stack.bootstrap()
    run("cdk", "synth", "--quiet", "--output", "changed")
    rewrite(shop / "changed", without_unsupported)  # the emulator lacks some of what AWS has
    said = tally("deploy", "--yes", "--app", "changed")
    assert "Tally-dev answers at" in said
    assert "  tally status --stack Tally-dev" in said.splitlines()
    for _ in range(2):  # it counts once
        answer = stack.call("POST", "/articles/a91f/shares", Idempotency_Key=KEY)
        assert (answer.status, answer.body.get("counted")) == (200, True), answer
    assert stack.call("GET", "/articles/a91f/shares").body["value"] == 1
    assert tally("get", "shares", "a91f") == "shares a91f: 1\n"
    assert "deleted; nothing remains" in tally("destroy", "--yes")
