"""How soon a visit shows on the local stack."""

from __future__ import annotations

import json
import statistics
import time
import urllib.request
from typing import Any
from urllib.parse import quote

from dev.base.errors import LocalError
from dev.running import bare_environment, running

from . import ROOT

VISITS = 30
SHOWN_S_MAX = 120.0  # after it the visit counts as lost
POLL_S = 0.02
SHOWN = "a visit, from its answer to the count"


def measure(_: bool) -> dict[str, dict[str, float]]:
    """Send visits one after the other. Raises LocalError."""
    with running(ROOT, bare_environment()) as dev:
        _shown_s(dev.url, "warm-up")  # it waits for the consumers' processes
        shown_s = [_shown_s(dev.url, f"page-{number}") for number in range(VISITS)]
    return {SHOWN: {"s, median": statistics.median(shown_s), "s, longest": max(shown_s)}}


def _shown_s(url: str, name: str) -> float:
    """Seconds from a visit's answer to the count that includes it: poll, batching window, consumer, read."""
    page = f"https://example.com/{name}"
    _call(f"{url}/visits", {"url": page, "key": f"bench-0123456789-{name}"})
    started_s = time.monotonic()
    while _call(f"{url}/visits?url={quote(page, safe='')}")["value"] != 1:
        if time.monotonic() - started_s > SHOWN_S_MAX:
            raise LocalError(f"a visit was not rolled up within {SHOWN_S_MAX:.0f} s")
        time.sleep(POLL_S)
    return time.monotonic() - started_s


def _call(url: str, body: dict[str, str] | None = None) -> Any:
    headers = {"User-Agent": "Mozilla/5.0", "Content-Type": "application/json"}
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)
