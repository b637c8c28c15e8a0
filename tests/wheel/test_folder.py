"""Runs the session of docs/adopt.md in a team's folder, with the wheel alone: without a checkout, and without Node."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tally.dev.stack.zygote import die_with_parent
from tests.e2e.test_readme import is_as_shown, session
from tests.environments import ROOT
from tests.patience import PATIENCE_S, wait_for

pytestmark = pytest.mark.long
PAGE, TITLE = ROOT / "docs/adopt.md", "## Without a CDK app"
TOOLS = ("bash", "curl", "sleep")
Start = Callable[[], tuple[int, subprocess.Popen[str]]]  # returns the port and the process
READY = re.compile(r"^tally: ready on http://localhost:(\d+)", re.MULTILINE)


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """The environment of a person without Node: the tools of the page, a home, and the folder's virtual environment."""
    tools, home = tmp_path / "tools", tmp_path / "home"
    tools.mkdir()
    home.mkdir()
    uv = Path(sys.executable).with_name("uv")
    for path in (uv, *(Path(shutil.which(name) or "") for name in TOOLS)):
        (tools / path.name).symlink_to(path)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "TALLY_", "PYTHON", "VIRTUAL_ENV", "UV_PYTHON"))
    }
    cache = subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    (tools / "python3").symlink_to(os.path.realpath(sys.executable))
    folders = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "UV_CACHE_DIR": cache}
    path = os.pathsep.join([str(tmp_path / "shop/.venv/bin"), str(tools)])
    assert not shutil.which("node", path=path)
    assert not shutil.which("npm", path=path)
    return inherited | folders | {"PATH": path}


@pytest.fixture
def start_dev(tmp_path: Path, environment: Mapping[str, str]) -> Iterator[Start]:
    """A function that starts `tally dev` in the folder, and returns its port and its process."""
    running: list[subprocess.Popen[str]] = []
    output = tmp_path / "dev.out"

    def start() -> tuple[int, subprocess.Popen[str]]:
        with output.open("w") as file:
            process = subprocess.Popen(
                ["bash", "-c", "exec tally dev --port 0"], cwd=tmp_path / "shop", env=environment, text=True,
                stdout=file, stderr=subprocess.STDOUT, preexec_fn=die_with_parent,
            )  # fmt: skip
        running.append(process)
        wait_for(lambda: READY.search(output.read_text()) or process.poll() is not None)
        ready = READY.search(output.read_text())
        assert ready, output.read_text()
        return int(ready[1]), process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_the_session_of_the_page_works_without_node(
    tmp_path: Path, wheel: Path, environment: Mapping[str, str], start_dev: Start
) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "operations.py").write_text("raise SystemExit('Tally must not import this file of the team')")
    text = PAGE.read_text().partition(TITLE)[2].partition("\n## ")[0]
    before, command, after = text.partition("```\ntally dev\n```")
    assert command

    def run_steps(steps: list[tuple[str, str]], port: int = 0) -> None:
        assert steps
        with_port = {**environment, "PORT": str(port)}
        for command, expected in steps:
            runnable = command.replace("tallystick[", f"{wheel}[").replace(":8080", f":{port}")
            output = _output(runnable, folder, with_port)
            deadline_s = time.monotonic() + PATIENCE_S
            # A command that waits with `sleep` may need longer on a busy machine.
            while command.startswith("sleep ") and not is_as_shown(output, expected) and time.monotonic() < deadline_s:
                output = _output(runnable, folder, with_port)
            assert is_as_shown(output, expected), f"{command}\nprinted:  {output}\nexpected: {expected}"

    run_steps(session(before))
    port, process = start_dev()
    run_steps(session(after), port)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0
    assert (tmp_path / "dev.out").read_text().endswith("tally: stopped\n")


def _output(command: str, folder: Path, environment: Mapping[str, str]) -> str:
    result = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    return (result.stdout + result.stderr).strip()
