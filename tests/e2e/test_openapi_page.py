"""Tests in Chromium that the page /dev/openapi shows every operation, and loads nothing from another origin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e import chromium
from tests.e2e.accessible import AXE, NARROW, complaints
from tests.e2e.dev import Dev


@pytest.fixture
def page(dev: Dev, browser: Browser) -> Iterator[Page]:
    """The open page. Fails after a test if the page had an error, or called another origin."""
    errors, loaded = [], []
    with chromium.new_context(browser) as context:
        context.add_init_script(path=AXE)
        opened = context.new_page()
        opened.on("pageerror", lambda error: errors.append(str(error)))
        opened.on("request", lambda request: loaded.append(request.url))
        opened.goto(f"{dev.url}/dev/openapi")
        yield opened
    assert errors == []
    assert [url for url in loaded if not url.startswith((dev.url, "data:"))] == []


def test_the_page_shows_every_operation_with_its_details(page: Page, dev: Dev) -> None:
    paths = dev.call("GET", "/openapi.json").body["paths"].values()
    names = [operation["operationId"] for path in paths for operation in path.values()]
    expect(page.locator("main > details")).to_have_count(len(names))
    for name in names:
        page.locator(f"#{name} > summary").click()
        expect(page.locator(f"#{name} > table tr").first).to_be_visible()
    expect(page.locator("#increment")).to_contain_text("from 0, starts at 100")  # the floor and start of a counter
    assert "undefined" not in page.inner_text("main")


def test_the_page_has_the_colours_of_the_console_and_fits_a_narrow_screen(page: Page) -> None:
    expect(page.locator("main > details").first).to_be_visible()
    page.set_viewport_size(NARROW)
    backgrounds = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.locator("#increment > summary").click()
        assert complaints(page) == []
        backgrounds[scheme] = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert backgrounds == {"light": "rgb(246, 246, 244)", "dark": "rgb(16, 18, 20)"}  # --ground of console.css
    expect(page.get_by_role("banner").get_by_role("link", name="Elements")).to_have_attribute("href", "/dev/elements")
