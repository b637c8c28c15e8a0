"""A feed: the plays of many videos by one request, beside one request for each, on the local stack over HTTP.

The engine answers each read READ_MS late, because DynamoDB is not on the machine of its caller. AWS says "single-digit
milliseconds".
"""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from dev.base.errors import LocalError
from dev.faults import FaultProxy, always, late_answer

from .clients import fresh_engine
from .rolled_up import local_stack

FEED = 50  # videos
ROUNDS = 15
READ_MS = 5.0


@dataclass(frozen=True)
class Feed:
    """The median times of a feed."""

    together_ms: float
    """By one request."""
    alone_ms: float
    """By one request for each video, one after the other, over one connection."""

    @property
    def faster(self) -> float:
        """How many times faster one request is."""
        return self.alone_ms / self.together_ms


def measure_feed() -> Feed:
    """Read the feed in both ways. Raises LocalError."""
    with fresh_engine() as endpoint, FaultProxy(endpoint) as far:
        far.plan = always(late_answer(READ_MS / 1000), "Query", "BatchGetItem")
        with local_stack(AWS_ENDPOINT_URL_DYNAMODB=far.endpoint) as url:
            return _read(url)


def _read(url: str) -> Feed:
    """Read one feed in both ways, in turn."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    videos = [f"video-{number}" for number in range(FEED)]

    def call(path: str, key: str = "") -> Any:
        connection.request("POST" if key else "GET", path, headers={"Idempotency-Key": key} if key else {})
        return json.load(connection.getresponse())

    def together() -> list[int]:
        found = call("/tallies?" + "&".join(f"of=plays:{video}" for video in videos))
        return [one["value"] for one in found["tallies"]]

    def alone() -> list[int]:
        return [call(f"/videos/{video}/plays")["value"] for video in videos]

    for number, video in enumerate(videos):
        call(f"/videos/{video}/plays", key=f"bench-0123456789-feed-{number}")
    if together() != alone():
        raise LocalError("one request reads other numbers than many")
    taken_ms: dict[Callable[[], list[int]], list[float]] = {together: [], alone: []}
    for _ in range(ROUNDS):
        for way, taken in taken_ms.items():
            started_s = time.perf_counter()
            way()
            taken.append((time.perf_counter() - started_s) * 1000)
    connection.close()
    return Feed(statistics.median(taken_ms[together]), statistics.median(taken_ms[alone]))
