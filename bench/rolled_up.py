"""The time from a visit's answer to the count that includes it, on the local stack over HTTP.

Visits are rolled up. The time is that of the streams: the poll, the batching window, the consumer, the read.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dev.base.errors import LocalError

from . import ROOT

READY_S_MAX = 120.0  # a changed stack is synthesized first
END_S_MAX = 20.0
SHOWN_S_MAX = 30.0  # after it the visit counts as lost
POLL_S = 0.02
CONSUMERS_START_S_MAX = 60.0  # the first visit is not measured: it waits for the consumers' processes


@dataclass(frozen=True)
class RolledUp:
    """Seconds from a visit's answer to the count that includes it."""

    visits: int
    median_s: float
    longest_s: float


def measure_rolled_up(visits: int) -> RolledUp:
    """Send visits one after the other, each of another page. Raises LocalError."""
    with local_stack() as url:
        _shown_s(url, "warm-up", CONSUMERS_START_S_MAX)
        taken_s = [_shown_s(url, f"page-{number}", SHOWN_S_MAX) for number in range(visits)]
    return RolledUp(visits, statistics.median(taken_s), max(taken_s))


def _shown_s(url: str, name: str, most_s: float) -> float:
    page = f"https://example.com/{name}"
    _call(f"{url}/visits", {"url": page, "key": f"bench-0123456789-{name}"})
    started_s = time.monotonic()
    while _call(f"{url}/visits?url={quote(page, safe='')}")["value"] != 1:
        if time.monotonic() - started_s > most_s:
            raise LocalError(f"a visit was not rolled up within {most_s:.0f} s")
        time.sleep(POLL_S)
    return time.monotonic() - started_s


def _call(url: str, body: dict[str, str] | None = None) -> Any:
    headers = {"User-Agent": "Mozilla/5.0", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None, headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


@contextmanager
def local_stack(**environment: str) -> Iterator[str]:
    """The URL of a `make dev` with its own port and data. Raises LocalError if it does not start."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TALLY_"))} | environment
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        with output.open("wb") as into:
            process = subprocess.Popen(
                [sys.executable, "-m", "dev", "--data", f"{folder}/data", "--port", "0"],
                cwd=ROOT, env=kept, stdin=subprocess.DEVNULL, stdout=into, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            yield _ready(process, output)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(END_S_MAX)


def _ready(process: subprocess.Popen[bytes], output: Path) -> str:
    started_s = time.monotonic()
    while time.monotonic() - started_s < READY_S_MAX and process.poll() is None:
        if found := re.search(r"^tally: ready on (http://localhost:\d+)", output.read_text(), re.M):
            return found[1]
        time.sleep(0.1)
    raise LocalError(f"make dev did not start: {output.read_text()[-500:]}")


if __name__ == "__main__":
    print(measure_rolled_up(30))
