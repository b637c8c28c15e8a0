"""The console in a browser, on the local stack: what it loads, and the time to its first number."""

from __future__ import annotations

import secrets
import statistics
import urllib.request
from dataclasses import dataclass

from playwright.sync_api import Browser, BrowserContext, Request, sync_playwright

from dev.base.errors import LocalError
from tests.e2e import chromium

from .rolled_up import local_stack

VIDEO = "bench"
PAGES = ("#/", f"#/tally/plays/{VIDEO}", "#/top/plays", "#/drift", "#/try")
RUNS = 15
# From the beginning of the navigation to the moment at which the number is in the page.
_WATCH = """new MutationObserver(() => {
  const shown = document.querySelector('.live')?.textContent;
  if (/^[0-9]/.test(shown)) window.numberMs ??= performance.now();
}).observe(document, { childList: true, subtree: true, characterData: true });"""


@dataclass(frozen=True)
class Console:
    """What all pages of the console load, and the median times until a tally's page shows its number."""

    files: int
    loaded_bytes: int
    """The bodies of the files, as they are sent: compressed."""
    first_ms: float
    """In a browser that was never there."""
    again_ms: float
    """In the same browser: it asks whether the files have changed."""


def measure_console() -> Console:
    """Open every page, then a tally's page in RUNS browsers. Raises LocalError."""
    with local_stack() as url:
        _play(url)
        try:
            with sync_playwright() as playwright, chromium.launch(playwright) as browser:
                sizes = _sizes(browser, url)
                _number_ms(browser, url)  # it starts the functions' processes
                pairs = [_number_ms(browser, url) for _ in range(RUNS)]
        except chromium.NoChromiumError as error:
            raise LocalError(str(error)) from None
    first_ms, again_ms = (statistics.median(times) for times in zip(*pairs, strict=True))
    return Console(len(sizes), sum(sizes.values()), first_ms, again_ms)


def _play(url: str) -> None:
    headers = {"Idempotency-Key": secrets.token_urlsafe(24)}
    request = urllib.request.Request(f"{url}/videos/{VIDEO}/plays", b"", headers, method="POST")
    urllib.request.urlopen(request, timeout=10).close()


def _sizes(browser: Browser, url: str) -> dict[str, int]:
    """The bytes of each file of the console that its pages load."""
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
        return _opened(context, url), _opened(context, url)


def _opened(context: BrowserContext, url: str) -> float:
    page = context.new_page()
    page.goto(f"{url}/console#/tally/plays/{VIDEO}")
    page.locator(".live", has_text="1").wait_for()
    taken_ms = float(page.evaluate("numberMs"))
    page.close()
    return taken_ms


if __name__ == "__main__":
    print(measure_console())
