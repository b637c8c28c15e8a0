"""Checks that a page is usable with a keyboard, with a screen reader and on a small screen."""

from __future__ import annotations

from playwright.sync_api import Page

from tests.e2e.chromium import ROOT

AXE = ROOT / "node_modules/axe-core/axe.min.js"
"""The script that a test adds to a page before it calls `complaints`."""
NARROW, WIDE = {"width": 360, "height": 740}, {"width": 1280, "height": 800}
_RUN = """async () => (await axe.run()).violations.map(
    rule => `${rule.id}: `
        + rule.nodes.map(node => node.html + ' ' + node.any.map(check => check.message)).join(' | '))"""


def complaints(page: Page) -> list[str]:
    """Returns the rules that axe finds broken, and a line if the page scrolls sideways."""
    violations: list[str] = page.evaluate(_RUN)
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        violations.append("the page scrolls sideways")
    return violations


def complaints_by_screen(page: Page) -> dict[str, list[str]]:
    """Returns the complaints on narrow and wide screens with light and dark colours. Empty: there is no complaint."""
    found = {}
    for size in (NARROW, WIDE):
        for scheme in ("light", "dark"):
            page.set_viewport_size(size)
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            if violations := complaints(page):
                found[f"{scheme}, {size['width']} px"] = violations
    return found
