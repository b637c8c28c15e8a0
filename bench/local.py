"""What people meet on the local stack: how soon a visit shows, and how large and how fast the console is."""

from __future__ import annotations

import json
import secrets
import statistics
import time
import urllib.request
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser, BrowserContext, Request, sync_playwright

from dev.base.errors import LocalError
from dev.running import bare_environment, running
from tests.e2e import chromium

from . import ROOT

VISITS = 30
SHOWN_S_MAX = 120.0  # after it the visit counts as lost
POLL_S = 0.02
VIDEO = "bench"
SHOWN, CONSOLE = "a visit, from its answer to the count", "the console"
PAGES = ("#/", f"#/tally/plays/{VIDEO}", "#/top/plays", "#/drift", "#/try")
OPENED = 15
# From the beginning of the navigation to the moment at which the number is in the page.
_WATCH = """new MutationObserver(() => {
  const shown = document.querySelector('.live')?.textContent;
  if (/^[0-9]/.test(shown)) window.numberMs ??= performance.now();
}).observe(document, { childList: true, subtree: true, characterData: true });"""


def measure(_: bool) -> dict[str, dict[str, float]]:
    """Send visits one after the other, then open the console. Raises LocalError."""
    with running(ROOT, bare_environment()) as dev:
        _shown_s(dev.url, "warm-up")  # it waits for the consumers' processes
        shown_s = [_shown_s(dev.url, f"page-{number}") for number in range(VISITS)]
        return {
            "a visit, from its answer to the count": {
                "s, median": statistics.median(shown_s),
                "s, longest": max(shown_s),
            },
            "the console": _console(dev.url),
        }


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


def _call(url: str, body: dict[str, str] | None = None, **headers: str) -> Any:
    sent = {"User-Agent": "Mozilla/5.0", "Content-Type": "application/json"} | headers
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), sent)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def _console(url: str) -> dict[str, float]:
    """The size of what all its pages load, and the median times until a tally's page shows its number.

    `again`: in the same browser, which asks whether the files have changed.
    """
    _call(f"{url}/videos/{VIDEO}/plays", {}, **{"Idempotency-Key": secrets.token_urlsafe(24)})
    try:
        with sync_playwright() as playwright, chromium.launch(playwright) as browser:
            sizes = _sizes(browser, url)
            _number_ms(browser, url)  # it starts the functions' processes
            pairs = [_number_ms(browser, url) for _ in range(OPENED)]
    except chromium.NoChromiumError as error:
        raise LocalError(str(error)) from None
    first_ms, again_ms = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {"files": len(sizes), "KB": sum(sizes.values()) / 1000, "ms, first": first_ms, "ms, again": again_ms}


def _sizes(browser: Browser, url: str) -> dict[str, int]:
    """The bytes of each file of the console that its pages load, as they are sent: compressed."""
    asked: list[Request] = []
    with browser.new_context() as context:
        page = context.new_page()
        page.on("request", lambda request: asked.append(request))
        page.goto(f"{url}/console")
        for hash_ in PAGES:
            page.evaluate("hash => { location.hash = hash }", hash_)
            page.wait_for_load_state("networkidle")
        files = [request for request in asked if request.url.startswith(f"{url}/console")]
        return {request.url: request.sizes()["responseBodySize"] for request in files}


def _number_ms(browser: Browser, url: str) -> tuple[float, float]:
    """Milliseconds until a new browser shows the number, and until it shows it again."""
    with browser.new_context() as context:
        context.add_init_script(_WATCH)
        return _opened_ms(context, url), _opened_ms(context, url)


def _opened_ms(context: BrowserContext, url: str) -> float:
    page = context.new_page()
    page.goto(f"{url}/console#/tally/plays/{VIDEO}")
    page.locator(".live", has_text="1").wait_for()
    taken_ms = float(page.evaluate("numberMs"))
    page.close()
    return taken_ms
