"""Runs `make dev` as a process, for the demo, the bench and the tests."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from tally.dev.base.errors import LocalError
from tally.dev.stack.zygote import die_with_parent

START_S_MAX, STOP_S_MAX = 300.0, 120.0  # a start takes a second, and longer on a busy machine
POLL_S = 0.05
_READY = re.compile(r"^tally: ready on http://localhost:(\d+) .*DynamoDB at (http://\S+),", re.MULTILINE)


def bare_environment(**variables: str) -> dict[str, str]:
    """Returns this process's environment without the variables that configure a stack, but with these variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TALLY_"))} | variables


class Dev:
    """A process that runs `make dev` of the app in the folder `app`, on the data folder `data`.

    The process writes to the file `output`, and dies with this process. `port`, `url` and `endpoint` (of the engine)
    are known after `wait_until_ready`. `arguments`: of the command line. `python`: options of the interpreter.
    """

    def __init__(
        self, app: Path, data: Path, *arguments: str, python: Sequence[str] = (), environment: Mapping[str, str]
    ) -> None:
        self.data, self.output = data, data.parent / f"{data.name}-{time.monotonic_ns()}.out"
        self.port, self.endpoint = 0, ""
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *python, "-m", "tally.dev", "--data", str(data), *arguments],
                cwd=app,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
                start_new_session=True,  # Ctrl-C reaches this process, which then stops the server
            )

    @property
    def url(self) -> str:
        """The URL of the HTTP API."""
        return f"http://localhost:{self.port}"

    @property
    def text(self) -> str:
        """The output so far."""
        return self.output.read_text(errors="replace")

    def wait_until_ready(self, patience_s: float = START_S_MAX) -> Self:
        """Wait until the server is ready. If the server ends, or is not ready in time, raises LocalError."""
        deadline_s = time.monotonic() + patience_s
        while time.monotonic() < deadline_s:
            has_ended = self.process.poll() is not None
            if ready := _READY.search(self.text):
                self.port, self.endpoint = int(ready[1]), ready[2]
                return self
            if has_ended:
                lines = self.text.splitlines() or [f"exit status {self.process.returncode}"]
                raise LocalError(f"`make dev` did not start: {lines[-1].removeprefix('tally: ')}")
            time.sleep(POLL_S)
        raise LocalError(f"`make dev` was not ready within {patience_s:.0f} s")

    def stop(self, number: signal.Signals = signal.SIGTERM, patience_s: float = STOP_S_MAX) -> int:
        """End the process, by force after `patience_s`. Returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


@contextlib.contextmanager
def run_dev(app: Path, environment: Mapping[str, str], port: int = 0) -> Iterator[Dev]:
    """Runs `make dev` with a temporary data folder. Raises LocalError if `make dev` does not start."""
    with tempfile.TemporaryDirectory(prefix="tally-dev-") as folder:
        server = Dev(app, Path(folder, "data"), "--port", str(port), environment=environment)
        try:
            server.wait_until_ready()
            yield server
        finally:
            server.stop()
