"""The `make dev` that the demo uses: a running one, or one that the demo starts and stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from dev.base.engine import die_with_parent
from dev.base.errors import LocalError

from .visitors import Server
from .weblog import SITE

START_S_MAX = 120.0  # it synthesizes the stack first: 15 s, and more on a busy machine
START_LOOK_S = 0.1
STOP_S_MAX = 10.0
_READY = "tally: ready"


@contextlib.contextmanager
def running(port: int, app: Path) -> Iterator[bool]:
    """A Tally server on this port. If there is none, start the app's own with a temporary data folder: True."""
    if asyncio.run(_is_there(port)):
        yield False
        return
    print(f"tally: nothing runs on port {port}: starting `make dev` there for the demo", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="tally-demo-") as folder:
        output = Path(folder, "output")
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "dev", "--port", str(port), "--data", str(Path(folder, "data"))],
                cwd=app,
                env={**os.environ, "TALLY_PAGE_HOSTS": urlsplit(SITE).netloc},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
                start_new_session=True,  # Ctrl-C reaches the demo, which then stops the server
            )
        try:
            _wait_until_ready(process, output)
            yield True
        finally:
            _stop(process)


async def _is_there(port: int) -> bool:
    async with Server(port) as server:
        return await server.is_there()


def _wait_until_ready(process: subprocess.Popen[bytes], output: Path) -> None:
    deadline_s = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline_s:
        lines = output.read_text(errors="replace").splitlines()
        if any(line.startswith(_READY) for line in lines):
            return
        if process.poll() is not None:
            reason = lines[-1].removeprefix("tally: ") if lines else f"exit status {process.returncode}"
            raise LocalError(f"`make dev` did not start: {reason}")
        time.sleep(START_LOOK_S)
    raise LocalError(f"`make dev` was not ready within {START_S_MAX:.0f} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
