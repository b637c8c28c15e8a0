"""On the local stack over HTTP: how soon a visit shows, and how much faster one request reads a feed than many.

Visits are rolled up. The time from a visit's answer to the count that includes it is that of the streams: the poll, the
batching window, the consumer, the read.
"""

from __future__ import annotations

import http.client
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from local.base.errors import LocalError

from . import ROOT

READY_S_MAX = 120.0  # a changed stack is synthesized first
END_S_MAX = 20.0
SHOWN_S_MAX = 30.0  # after it the visit counts as lost
POLL_S = 0.02
FEED, FEED_ROUNDS = 50, 15
CONSUMERS_START_S_MAX = 60.0  # the first visit is not measured: it waits for the consumers' processes


@dataclass(frozen=True)
class RolledUp:
    """Seconds from a visit's answer to the count that includes it."""

    visits: int
    median_s: float
    longest_s: float
    feed_ms: float
    """The plays of FEED videos by one request, the median."""
    alone_ms: float
    """The same by one request for each, one after the other, over one connection."""

    @property
    def faster(self) -> float:
        """How many times faster one request is."""
        return self.alone_ms / self.feed_ms


def measure_rolled_up(visits: int) -> RolledUp:
    """Send visits one after the other, each of another page; then read feeds. Raises LocalError."""
    with local_stack() as url:
        _shown_s(url, "warm-up", CONSUMERS_START_S_MAX)
        taken_s = [_shown_s(url, f"page-{number}", SHOWN_S_MAX) for number in range(visits)]
        feed_ms, alone_ms = _feed_ms(url)
    return RolledUp(visits, statistics.median(taken_s), max(taken_s), feed_ms, alone_ms)


def _feed_ms(url: str) -> tuple[float, float]:
    """Read one feed in both ways, in turn; the medians."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    videos = [f"video-{number}" for number in range(FEED)]

    def call(path: str, key: str = "") -> Any:
        connection.request("POST" if key else "GET", path, headers={"Idempotency-Key": key} if key else {})
        return json.load(connection.getresponse())

    def together() -> list[int]:
        found = call("/tallies?" + "&".join(f"of=plays:{video}" for video in videos))
        return [one["value"] for one in found["tallies"]]

    def alone() -> list[int]:
        return [call(f"/videos/{video}/plays")["play_count"] for video in videos]

    for number, video in enumerate(videos):
        call(f"/videos/{video}/plays", key=f"bench-0123456789-feed-{number}")
    if together() != alone():
        raise LocalError("one request reads other numbers than many")
    taken_ms: dict[Callable[[], list[int]], list[float]] = {together: [], alone: []}
    for _ in range(FEED_ROUNDS):
        for way, taken in taken_ms.items():
            started_s = time.perf_counter()
            way()
            taken.append((time.perf_counter() - started_s) * 1000)
    connection.close()
    return statistics.median(taken_ms[together]), statistics.median(taken_ms[alone])


def _shown_s(url: str, name: str, most_s: float) -> float:
    page = f"https://example.com/{name}"
    _call(f"{url}/visits", {"url": page, "key": f"bench-0123456789-{name}"})
    started_s = time.monotonic()
    while _call(f"{url}/visits?url={quote(page, safe='')}")["visits"] != 1:
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
                [sys.executable, "-m", "local", "--data", f"{folder}/data", "--port", "0"],
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
