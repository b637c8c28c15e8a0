"""The embedded DynamoDB engine (dynoxide), a child process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

from . import engine_package
from .engine_file import index_stream_records
from .errors import LocalError

READY_S_MAX = 120.0  # the embedded engine takes 10 ms, DynamoDB Local a second; more on a busy machine
STOP_S_MAX = 3.0
PORTS = (15_000, 30_000)  # below the ports that systems give to connections
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Ends the engine when this process dies; macOS has no prctl. A shell starts a child, and becomes the engine. The child
# reads a pipe until this process, the only writer, ends. Then the child kills the group: the engine and itself.
_DIE_WITH_PARENT = 'exec 3<&0; { read -r line <&3; kill -9 -$$; } >/dev/null 2>&1 & exec "$0" "$@" 3<&- </dev/null'


def find_or_fetch(data: Path) -> Path:
    """Returns the engine's program, installed or fetched. Raises LocalError. `data`: the folder for a fetched program
    if the user's cache is not writable."""
    if found := find_installed():
        return found
    if has_package():
        return engine_package.fetch_engine(_platform(), data)
    advice = "run `make dev` or `make test` with ENGINE=dynamodb-local"
    raise LocalError(f"there is no embedded engine for {_platform()}: {advice}")


def find_installed() -> Path | None:
    """Returns the engine that npm installed in this folder or a folder above, or `dynoxide` on the PATH."""
    here = Path.cwd()
    candidates = [folder / "node_modules/@dynoxide" / _platform() / "dynoxide" for folder in (here, *here.parents)]
    for candidate in (*candidates, shutil.which("dynoxide")):
        if candidate and os.access(candidate, os.X_OK):
            return Path(candidate)
    return None


def has_package() -> bool:
    """Whether the embedded engine has a package for this platform."""
    return _platform() in engine_package.INTEGRITY


def _platform() -> str:
    """Returns npm's name of this platform."""
    machine = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}.get(platform.machine().lower(), platform.machine())
    return f"{platform.system().lower()}-{machine}"


def free_port() -> int:
    """Returns a free port of the loopback interface, from PORTS. So no connection takes the port before the engine."""
    while True:
        port = random.SystemRandom().randrange(*PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


async def stop_listening(listener: socket.socket) -> None:
    """Accept no more connections, and give connections that were just accepted two turns of the loop to begin. Call
    this before the server closes: otherwise CPython 3.11 leaves the sockets of these connections open."""
    asyncio.get_running_loop().remove_reader(listener)
    for _ in range(2):
        await asyncio.sleep(0)


class Engine:
    """One engine process. `db_path`: the file of the data; None: in memory. `endpoint`: the URL."""

    warnings: tuple[str, ...] = ()  # lines that `make dev` prints; DynamoDB Local has one

    def __init__(self, db_path: Path | None = None, port: int | None = None) -> None:
        self.db_path = db_path
        self.port = port or free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes]

    def command(self) -> list[str]:
        """Returns the engine's program and its arguments. May fetch the program. Raises LocalError."""
        data = self.db_path.parent if self.db_path else Path.cwd()
        command = [str(find_or_fetch(data)), "serve", "--host", "127.0.0.1", "--port", str(self.port)]
        return command if self.db_path is None else [*command, "--db-path", str(self.db_path)]

    def start(self) -> Engine:
        """Start the engine and wait until it accepts connections. If it fails, raises LocalError with its output."""
        if self.db_path is not None:
            self.db_path.parent.mkdir(parents=True, exist_ok=True)
        command = self.command()  # before signals are blocked: this may fetch the engine, and Ctrl-C must end a fetch
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # `stop` closes it. A pipe could fill up
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # a Ctrl-C inside Popen would leave a process
        try:
            try:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _DIE_WITH_PARENT, *command],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=self._output,
                    preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS),
                    start_new_session=True,  # Ctrl-C reaches only this process, and this process stops the engine last
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            self._wait_until_ready()
            if self.db_path is not None:
                index_stream_records(self.db_path)
            return self
        except BaseException:
            self.stop()
            raise

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + READY_S_MAX
        while time.monotonic() < deadline_s and self.alive():
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.005)
        raise LocalError(f"the DynamoDB engine did not start: {self.end_reason() or 'no answer'}")

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def end_reason(self) -> str:
        """Returns the exit status and the last output of an ended process; "" while the process runs."""
        if self._process is None or self._process.poll() is None:
            return ""
        self._output.seek(0)
        output = self._output.read()[-500:].decode(errors="replace")
        return " ".join([f"exit status {self._process.returncode}", *output.split()])

    def kill(self) -> None:
        """Kill the engine, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Terminate the engine, and kill it after STOP_S_MAX."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()  # ends the child of _DIE_WITH_PARENT, which reads this pipe
        self._output.close()
        self._process = None

    def __enter__(self) -> Engine:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
