"""Tests likes by the secret of a browser, on a page without accounts, in Chromium. The API has another origin."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from functools import partial

import pytest
from playwright.sync_api import Browser, BrowserContext, Route, expect

from tests.e2e import chromium
from tests.e2e.accessible import AXE, WIDE, complaints_by_screen
from tests.e2e.dev import Dev
from tests.e2e.servers import Reply, Server

BLOG = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>A post</title><link rel="icon" href="data:,"><meta name="color-scheme" content="light dark">
<script type="module">
  import { Tally } from "%(api)s/client/tally.js";
  import { define } from "%(api)s/client/elements.js";
  window.tally = new Tally({ user: () => window.sub, token: () => window.bearer });
  window.refresh = define(tally);
</script>
<main><h1>A post</h1><p><tally-like anonymous counter="hearts" of="%(post)s" live="1"></tally-like></p></main>"""
NOTHING_WAITS = "!tally.waiting().length"


@pytest.fixture
def post() -> str:
    return f"post-{secrets.token_hex(4)}"


class Reader:
    """A browser that reads the post. The fixture `readers` fails if the page had an error."""

    def __init__(self, context: BrowserContext, blog: str) -> None:
        self.errors: list[str] = []
        self.page = context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(blog)

    def expect_to_see(self, number: int, *, liked: bool) -> None:
        expect(self.page.locator("tally-like [part=count]")).to_have_text(str(number))
        expect(self.page.get_by_role("button", name="Like")).to_have_attribute("aria-pressed", str(liked).lower())

    def click(self) -> None:
        self.page.get_by_role("button", name="Like").click()
        self.page.wait_for_function(NOTHING_WAITS)

    def sign_in(self, dev: Dev, name: str) -> None:
        self.page.evaluate("([sub, bearer]) => Object.assign(window, { sub, bearer })", [name, dev.token(name)])
        self.page.evaluate("refresh()")


@pytest.fixture
def readers(browser: Browser, dev: Dev, post: str) -> Iterator[list[Reader]]:
    text = (BLOG % {"api": dev.url, "post": post}).encode()
    site = Server(lambda *_: Reply(200, text, {"content-type": "text/html"}))
    new_context = partial(chromium.new_context, browser, viewport=WIDE)
    with site.running(), new_context() as one, new_context() as other:
        made = [Reader(context, site.origin) for context in (one, other)]
        yield made
        assert [reader.errors for reader in made] == [[], []]


def test_each_browser_likes_once_shows_its_like_after_a_reload_and_deletes_it(readers: list[Reader], post: str) -> None:
    one, other = readers
    one.expect_to_see(0, liked=False)
    one.click()
    one.expect_to_see(1, liked=True)
    one.page.reload()
    one.expect_to_see(1, liked=True)
    other.page.reload()
    other.expect_to_see(1, liked=False)
    other.click()
    other.expect_to_see(2, liked=True)
    one.click()
    one.expect_to_see(1, liked=False)
    one.page.reload()
    one.expect_to_see(1, liked=False)


def test_a_user_who_signs_in_takes_over_the_like_and_forget_deletes_the_like_of_a_browser(
    readers: list[Reader], dev: Dev, post: str
) -> None:
    one, other = readers
    for reader in readers:
        reader.click()
    ann = f"ann-{secrets.token_hex(4)}"
    one.sign_in(dev, ann)
    one.page.wait_for_function("(post) => !Object.keys(localStorage).some((name) => name.endsWith(post))", arg=post)
    one.page.wait_for_function(NOTHING_WAITS)
    one.expect_to_see(2, liked=True)
    assert dev.hearts(post) == [None, ann]  # None: the like of the other browser
    other.page.evaluate("tally.forget()")
    other.expect_to_see(1, liked=False)
    stored = "Object.keys(localStorage).filter((name) => name.startsWith('tally1-own'))"  # the secret, and its likes
    assert other.page.evaluate(stored) == []
    one.page.reload()  # after the reload no user is signed in
    one.expect_to_see(1, liked=False)


FULL_STORAGE = "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError') };"
NO_STORAGE = (
    "Object.defineProperty(window, 'localStorage', { get: () => { throw new DOMException('', 'SecurityError') } });"
)


@pytest.mark.parametrize("storage", [FULL_STORAGE, NO_STORAGE], ids=["full", "off"])
def test_a_reader_whose_browser_stores_nothing_is_asked_to_sign_in(readers: list[Reader], storage: str) -> None:
    [one, _] = readers
    one.page.add_init_script(storage)
    one.page.reload()
    one.expect_to_see(0, liked=False)
    one.page.evaluate("addEventListener('tally-sign-in', () => (window.asksToSignIn = true))")
    one.page.get_by_role("button", name="Like").click()
    assert one.page.evaluate("asksToSignIn")
    one.expect_to_see(0, liked=False)


def test_a_reader_whose_storage_was_cleared_counts_as_another_browser(readers: list[Reader]) -> None:
    """Safari clears the storage after seven days, and a private window at its end. Nobody can delete the first like."""
    [one, _] = readers
    one.click()
    one.page.evaluate("localStorage.clear()")
    one.page.reload()
    one.expect_to_see(1, liked=False)
    one.click()
    one.expect_to_see(2, liked=True)
    one.click()
    one.expect_to_see(1, liked=False)


def test_a_button_whose_id_changes_shows_the_like_of_the_new_id(readers: list[Reader], post: str) -> None:
    [one, _] = readers
    one.click()
    set_id = "(of) => document.querySelector('tally-like').setAttribute('of', of)"
    one.page.evaluate(set_id, f"{post}-b")
    one.expect_to_see(0, liked=False)
    one.click()
    one.click()
    one.expect_to_see(0, liked=False)
    one.page.evaluate(set_id, post)
    one.expect_to_see(1, liked=True)


def test_the_button_of_a_blog_is_accessible(readers: list[Reader]) -> None:
    [one, _] = readers
    unanswered: list[Route] = []
    one.page.route("**/anonymous", lambda route: unanswered.append(route))
    one.page.get_by_role("button", name="Like").press("Enter")
    expect(one.page.locator("tally-like [part=pending]")).to_have_text("+1 waiting")
    one.page.add_script_tag(path=AXE)
    assert complaints_by_screen(one.page) == {}
