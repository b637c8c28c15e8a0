"""What is wrong with a page for people who use it otherwise: by a keyboard, a screen reader, a small screen."""

from __future__ import annotations

from playwright.sync_api import Page

from tests.e2e.chromium import ROOT

AXE = ROOT / "node_modules/axe-core/axe.min.js"
"""A page that is asked has loaded this script."""
NARROW, WIDE = {"width": 360, "height": 740}, {"width": 1280, "height": 800}
_RUN = """async () => (await axe.run()).violations.map(
    one => `${one.id}: ${one.nodes.map(node => node.html + ' ' + node.any.map(why => why.message)).join(' | ')}`)"""


def complaints(page: Page) -> list[str]:
    """What axe finds, and whether the page scrolls sideways."""
    broken: list[str] = page.evaluate(_RUN)
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        broken.append("it scrolls sideways")
    return broken
