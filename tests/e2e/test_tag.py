"""Tests the tag `auto.js` and its elements in Chromium, on pages of another origin than the API."""

from __future__ import annotations

import html
import secrets
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tally import ids
from tally.api import scripts
from tests.e2e import chromium
from tests.e2e.dev import Dev
from tests.e2e.servers import Reply, Server

HEAD = "<!doctype html><html lang=en{more}><meta charset=utf-8><title>t</title><link rel=icon href=data:,>"
TAG = '<script type="module" src="{api}/client/auto.js"{more}></script>'
BUTTON = '<tally-like anonymous counter=hearts of="{post}"></tally-like>'
# A script of the page makes a client and defines the elements. `from`: the API's files, or /bundle, the site's copy.
OWN_SCRIPT = """<script type=module>
import { Tally } from "%(from)s/tally.js"; import { define } from "%(from)s/elements.js";
window.defined = (window.defined ?? 0) + 1; window.refresh = define(new Tally({ api: "%(api)s" }));</script>"""
NO_STORAGE = (
    "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError') } })"
)
COUNT_SIGN_INS = "window.signIns = 0; addEventListener('tally-sign-in', () => signIns++)"
ATTRIBUTES = {
    "tally-like": {"counter": "hearts", "of": "a", "live": 2, "anonymous": True},
    "tally-plays": {"counter": "plays", "of": "a", "for": "player", "after": 3},
    "tally-count": {"counter": "plays", "of": "a", "live": True},
}
# Angular always assigns properties. React 19 and Vue 3 assign a property that the element has.
ASSIGN = """attributes => Object.entries(attributes).map(([tag, given]) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) made[name] = value;
  document.body.append(made);
  return made })"""
READ_ATTRIBUTES = (
    "made => made.map(one => Object.fromEntries([...one.attributes].map(({ name, value }) => [name, value])))"
)
# Does what Turbo does on a visit: the scripts of the head run once, and the scripts of each body run again.
TURBO_VISIT = """html => { document.body.innerHTML = html;
  for (const old of document.body.querySelectorAll("script")) {
    const made = document.createElement("script");
    for (const { name, value } of old.attributes) made.setAttribute(name, value);
    made.append(old.textContent); old.replaceWith(made) } }"""


class Blog:
    """A site. `pages`: the HTML and the headers, by path. `page`: a browser's page. `post`: an id for this test."""

    def __init__(self, page: Page, post: str) -> None:
        self.page, self.post, self.pages = page, post, dict[str, tuple[str, dict[str, str]]]()
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.server = Server(self._answer)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda line: self.warnings.append(line.text) if line.type == "warning" else None)

    def _answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
        if target.startswith("/bundle/"):  # the site has a copy of the client
            return Reply(200, scripts.read_script(target[8:]).text.encode(), {"content-type": "text/javascript"})
        text, headers = self.pages[target]
        return Reply(200, text.encode(), {"content-type": "text/html", **headers})

    def show(self, body: str, dir: str = "ltr", **headers: str) -> None:
        """Opens a page with this body and these headers, whose names have `_` in place of `-`."""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.pages["/"] = (HEAD.format(more=f" dir={dir}") + body, headers)
        self.page.goto(self.server.origin)

    @property
    def button(self) -> Locator:
        return self.page.get_by_role("button", name="Like")

    def like(self, number: int) -> None:
        """Clicks the button, and asserts that the number rises by one to `number`."""
        expect(self.page.locator("tally-like [part=count]")).to_have_text(str(number - 1))
        self.button.click()
        expect(self.page.locator("tally-like [part=count]")).to_have_text(str(number))


@pytest.fixture
def blog(browser: Browser) -> Iterator[Blog]:
    with chromium.new_context(browser) as context:
        made = Blog(context.new_page(), f"post-{secrets.token_hex(4)}")
        with made.server.running():
            yield made
        assert made.errors == []


@pytest.fixture
def tag(dev: Dev) -> Callable[[str], str]:
    """Returns a function that makes the tag, with more attributes."""
    return lambda more="": TAG.format(api=dev.url, more=more)


def test_one_tag_is_enough_on_a_page_with_a_strict_policy(blog: Blog, dev: Dev, tag: Callable[..., str]) -> None:
    named = f"script-src {dev.url}; connect-src {dev.url}; img-src data:"
    policy = f"default-src 'none'; {named}; require-trusted-types-for 'script'"
    blog.show(tag() + BUTTON.format(post=blog.post), content_security_policy=policy)
    blog.like(1)
    assert dev.number("hearts", blog.post) == 1
    assert blog.warnings == []


def test_turbo_react_and_a_second_bundle_may_define_the_elements_again(
    blog: Blog, dev: Dev, tag: Callable[..., str]
) -> None:
    """Turbo runs the scripts of a body on each visit. StrictMode of React runs an effect twice."""
    own, bundle = ({"from": source, "api": dev.url} for source in (f"{dev.url}/client", "/bundle"))
    body = tag() + OWN_SCRIPT % own + OWN_SCRIPT % bundle + BUTTON.format(post=blog.post)
    blog.show(body)
    blog.like(1)
    blog.page.evaluate(TURBO_VISIT, body)
    blog.page.wait_for_function("defined === 4")  # two scripts on two visits
    blog.page.evaluate("refresh()")
    blog.button.click()  # the second click deletes the like
    expect(blog.page.locator("tally-like [part=count]")).to_have_text("0")
    assert blog.warnings == []


def test_the_elements_ask_the_last_client_who_is_signed_in(blog: Blog, dev: Dev, tag: Callable[..., str]) -> None:
    """An effect of React that depends on the user makes another client when somebody signs in."""
    name = f"ann-{secrets.token_hex(4)}"
    blog.show(tag() + f'<tally-like counter=hearts of="{blog.post}"></tally-like>')
    blog.page.evaluate(
        """async ([name, bearer, api]) => {
           const { Tally } = await import(`${api}/client/tally.js`);
           const { define } = await import(`${api}/client/elements.js`);
           for (const _ of [1, 2]) define(new Tally({ user: () => name, token: () => bearer })) }""",
        [name, dev.token(name), dev.url],
    )
    blog.like(1)
    assert dev.call("GET", f"/counters/hearts/{blog.post}/mine", token=dev.token(name)).body["present"]


def test_a_client_of_another_api_is_not_used_and_causes_a_warning(
    blog: Blog, dev: Dev, tag: Callable[..., str]
) -> None:
    other = OWN_SCRIPT % {"from": "/bundle", "api": "https://other.example"}
    blog.show(tag() + other + BUTTON.format(post=blog.post))
    blog.page.wait_for_function("window.defined")
    blog.like(1)
    assert blog.warnings == [f"tally: this page's elements use {dev.url}, so they cannot use https://other.example"]


def test_a_page_may_set_the_session_object_after_the_tag_has_loaded(
    blog: Blog, dev: Dev, tag: Callable[..., str]
) -> None:
    name = f"ann-{secrets.token_hex(4)}"
    blog.show(tag(' data-session="site"') + f'<tally-like counter=hearts of="{blog.post}"></tally-like>')
    blog.page.evaluate("addEventListener('tally-sign-in', () => (window.asksToSignIn = true))")
    blog.button.click()
    blog.page.wait_for_function("window.asksToSignIn")
    blog.page.evaluate(
        """async ([name, bearer, api]) => { window.site = { user: () => name, token: () => bearer };
           (await import(`${api}/client/auto.js`)).refresh() }""",
        [name, dev.token(name), dev.url],
    )
    blog.like(1)
    assert dev.call("GET", f"/counters/hearts/{blog.post}/mine", token=dev.token(name)).body["present"]


@pytest.mark.parametrize("first", ["define the elements", "assign the properties"])
def test_each_attribute_may_be_assigned_as_a_property(
    first: str, blog: Blog, dev: Dev, tag: Callable[..., str]
) -> None:
    blog.show(tag() if first == "define the elements" else "")
    if first == "define the elements":
        blog.page.evaluate("customElements.whenDefined('tally-plays')")
    made = blog.page.evaluate_handle(ASSIGN, ATTRIBUTES)
    if first == "assign the properties":
        blog.page.add_script_tag(type="module", url=f"{dev.url}/client/auto.js")
        blog.page.evaluate("customElements.whenDefined('tally-plays')")
    expected = [{name: "" if value is True else str(value) for name, value in of.items()} for of in ATTRIBUTES.values()]
    assert made.evaluate(READ_ATTRIBUTES) == expected
    made.evaluate(
        "([like]) => { like.of = undefined; like.anonymous = false; like.after(document.createElement('hr')) }"
    )
    assert made.evaluate(READ_ATTRIBUTES)[0] == {"counter": "hearts", "live": "2"}
    assert blog.page.locator("tally-like + hr").count() == 1  # `after` is a method of each element


def test_a_button_whose_attributes_are_assigned_as_properties_counts(
    blog: Blog, dev: Dev, tag: Callable[..., str]
) -> None:
    blog.show(tag())
    blog.page.evaluate(ASSIGN, {"tally-like": {"counter": "hearts", "of": blog.post, "anonymous": True}})
    blog.like(1)
    assert dev.number("hearts", blog.post) == 1


@pytest.mark.parametrize(
    ("anonymous", "script", "message"),
    [
        ("anonymous", NO_STORAGE, "nobody is signed in, and this browser stores nothing for this site"),
        ("", "", "nobody is signed in"),
    ],
    ids=["blocked storage", "no sign-in"],
)
def test_a_button_says_why_it_cannot_like_and_asks_for_sign_in(
    anonymous: str, script: str, message: str, blog: Blog, tag: Callable[..., str]
) -> None:
    blog.page.add_init_script(f"{script};{COUNT_SIGN_INS}")
    blog.show(tag() + f'<tally-like {anonymous} counter=hearts of="{blog.post}"></tally-like>')
    expect(blog.page.locator("tally-like [part=count]")).to_have_text("0")
    blog.button.click()
    expect(blog.page.get_by_role("status")).to_have_text(message)
    expect(blog.button).to_have_attribute("aria-pressed", "false")
    assert blog.page.evaluate("signIns") == 1


@pytest.mark.parametrize("of", ["", "a#b", None], ids=["empty", "a number sign", "none"])
def test_a_malformed_id_throws_a_type_error_and_does_not_ask_for_sign_in(
    of: str | None, blog: Blog, tag: Callable[..., str]
) -> None:
    blog.page.add_init_script(COUNT_SIGN_INS)
    named = "" if of is None else f'of="{of}"'
    blog.show(tag() + f"<tally-like anonymous counter=hearts {named}></tally-like>")
    blog.button.click()
    words = f"{'null' if of is None else of} is not a valid counter or id"
    blog.page.wait_for_function(
        "document.querySelector('tally-like').shadowRoot.querySelector('[part=status]').textContent"
    )
    assert blog.page.evaluate("signIns") == 0
    assert blog.errors == [f"tally: {words}"]
    blog.errors.clear()
    blog.page.evaluate("post => document.querySelector('tally-like').setAttribute('of', post)", blog.post)
    expect(blog.page.get_by_role("status")).to_have_text("")
    blog.like(1)


def test_a_button_says_that_its_like_was_denied(blog: Blog, tag: Callable[..., str]) -> None:
    blog.show(tag() + BUTTON.format(post=blog.post))
    expect(blog.page.locator("tally-like [part=count]")).to_have_text("0")
    blog.page.route(
        "**/anonymous", lambda route: route.fulfill(status=403, headers={"access-control-allow-origin": "*"})
    )
    blog.button.click()
    expect(blog.page.get_by_role("status")).to_have_text("waits: the answer was 403")


def test_a_pressed_button_has_other_colours_if_colours_are_forced(blog: Blog, tag: Callable[..., str]) -> None:
    blog.page.emulate_media(forced_colors="active")
    blog.show(tag() + BUTTON.format(post=blog.post))
    colours = "one => { const { color, backgroundColor } = getComputedStyle(one); return [color, backgroundColor] }"
    before = blog.button.evaluate(colours)
    blog.like(1)
    expect(blog.button).to_have_attribute("aria-pressed", "true")
    after = blog.button.evaluate(colours)
    assert all(old != new for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("dir", ["ltr", "rtl"])
def test_a_sign_is_in_front_of_its_number_in_both_directions(dir: str, blog: Blog, tag: Callable[..., str]) -> None:
    blog.show(tag() + BUTTON.format(post=blog.post), dir=dir)
    expect(blog.page.locator("tally-like [part=count]")).to_have_text("0")
    blog.page.route("**/anonymous", lambda route: route.abort())
    blog.button.click()
    expect(blog.page.locator("tally-like [part=pending]")).to_have_text("+1 waiting")
    sign, digit = blog.page.locator("tally-like [part=pending]").evaluate(
        """({ firstChild: text }) => [0, 1].map(at => {
             const one = document.createRange(); one.setStart(text, at); one.setEnd(text, at + 1);
             return one.getBoundingClientRect().x })"""
    )
    assert sign < digit


@pytest.mark.parametrize(
    "of", ["/posts/{}/", "привет-{}", "https://example.com/{}?a=1&b=2"], ids=["path", "slug", "address"]
)
def test_a_button_of_a_path_a_slug_or_an_address_counts(of: str, blog: Blog, dev: Dev, tag: Callable[..., str]) -> None:
    named = of.format(blog.post)
    blog.show(
        tag() + BUTTON.format(post=html.escape(named)) + f'<tally-count counter=hearts of="{html.escape(named)}">'
    )
    blog.like(1)
    expect(blog.page.locator("tally-count [part=count]")).to_have_text("1")
    assert dev.number("hearts", ids.id_of(named)) == 1
    blog.page.reload()
    expect(blog.button).to_have_attribute("aria-pressed", "true")


def test_the_encoded_address_of_a_browser_and_the_text_of_a_template_have_the_same_like(
    blog: Blog, dev: Dev, tag: Callable[..., str]
) -> None:
    path = f"/привет мир {{{blog.post}}}/"
    # Some browsers encode braces.
    blog.pages[quote(path, safe="/{}")] = blog.pages[quote(path)] = (HEAD.format(more="") + tag(), {})
    blog.page.goto(blog.server.origin + path)
    blog.page.evaluate(ASSIGN, {"tally-like": {"counter": "hearts", "of": path, "anonymous": True}})
    blog.like(1)
    shown = blog.page.evaluate("location.pathname")
    assert shown != path
    assert ids.id_of(shown) == ids.id_of(path)
    blog.page.evaluate("document.querySelector('tally-like').of = location.pathname")
    expect(blog.button).to_have_attribute("aria-pressed", "true")
