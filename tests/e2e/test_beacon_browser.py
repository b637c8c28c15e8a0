"""Tests the beacon in Chromium, on a site of another origin.

The beacon relies on these browser features, by MDN and web.dev:

                                    Chrome, Edge    Firefox                  Safari
    sendBeacon, pageshow, pagehide  yes             yes                      yes
    back/forward cache              since 96        yes                      yes
    fetch with keepalive            yes             since 133                yes
    Navigation API                  yes             since January 2026       since January 2026
    prerendering                    since 108       no (MDN, 2024)           no (MDN, 2024)

In a browser without the Navigation API, the beacon patches `history`. The scripts of a page from the back/forward
cache do not run. Such a page gets `pageshow` with `persisted`, and the beacon counts a visit. The beacon has no
listener for `unload`, because Firefox caches no page with such a listener. A phone that closes the browser sends no
`pagehide`, so the beacon sends a visit when the visit begins.

The headless shell of `npm ci` (Linux on x86-64) has no back/forward cache and does not prerender, so the tests dispatch
the events. On other machines the tests use `chromium` or `google-chrome`, or the browser that TALLY_CHROMIUM names.
Firefox and Safari were not tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.e2e import chromium
from tests.e2e.dev import ROOT, Dev
from tests.e2e.servers import LOST, Api, Reply, Site
from tests.patience import PATIENCE_S, wait_for

PAGES_TO_LEAVE = 24  # each page sends a play as the browser leaves it
PLAY_URL = "{}/videos/left/plays"
WAIT_FOR_DOUBLE_S = 1.5  # the rollup would add a second count of a visit with its next batch, within a second
QUIET_MS = 250  # a visit that a page has sent arrives in less time
PERSON = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/147.0.0.0 Safari/537.36"
# The beacon waits some seconds before a retry. HASTE makes the pauses a hundred times shorter.
HASTE = "const wait = setTimeout; window.setTimeout = (run, ms, ...more) => wait(run, ms / 100, ...more);"
NO_NAVIGATION_API = "delete window.navigation;"
HISTORIES = {"Navigation API": "", "patched history": NO_NAVIGATION_API}
over_each_history = pytest.mark.parametrize("before", HISTORIES.values(), ids=HISTORIES.keys())
NO_BEACON = "delete Navigator.prototype.sendBeacon;"
# sendBeacon returns false if its queue is full.
FULL_BEACON = "Navigator.prototype.sendBeacon = () => false;"


def getter(class_name: str, name: str, value: str) -> str:
    """Returns JavaScript that gives a property of the browser another value."""
    return f"Object.defineProperty({class_name}.prototype, '{name}', {{ get: () => {value} }});"


@dataclass
class Visitor:
    """A browser that visits the site, and the errors in its pages."""

    context: BrowserContext
    api: Api
    site: Site
    page: Page
    errors: list[str] = field(default_factory=list)

    def go(self, path: str) -> None:
        """Loads a page of the site."""
        self.page.goto(self.site.server.origin + path)

    def run(self, script: str) -> object:
        """Waits until the beacon has run, and runs a script in the page. The beacon sets a variable that has the URL of
        the visits as its name."""
        self.page.wait_for_function(f"self['{self.api.server.origin}/visits']")
        return self.page.evaluate(script)

    def expect_visits(self, expected: dict[str, int]) -> None:
        """Waits up to PATIENCE_S until so many visits of each path are counted, and asserts that no more come in
        QUIET_MS."""

        def counted() -> dict[str, int]:
            return {path: self.api.count_of(self.site.server.origin + path) for path in expected}

        self.wait_until(lambda: counted() == expected)
        self.page.wait_for_timeout(QUIET_MS)
        assert counted() == expected

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits for the condition, at most PATIENCE_S, and raises nothing. The test asserts the condition."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition() and time.monotonic() < deadline_s:
            self.page.wait_for_timeout(10)


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    with made.server.running():
        yield made


@pytest.fixture
def site(api: Api) -> Iterator[Site]:
    made = Site(api.server.origin)
    with made.server.running():
        yield made


NewVisitor = Callable[..., Visitor]


@pytest.fixture
def new_visitor(browser: Browser, api: Api, site: Site) -> Iterator[NewVisitor]:
    """Makes a visitor. `before`: JavaScript that runs before the scripts of a page. The pages must have no errors."""
    visitors: list[Visitor] = []

    def make(*before: str, agent: str = PERSON, browser: Browser = browser) -> Visitor:
        context = chromium.new_context(browser, user_agent=agent)
        for script in before:
            context.add_init_script(script)
        visitor = Visitor(context, api, site, context.new_page())
        visitor.page.on("pageerror", lambda error: visitor.errors.append(str(error)))
        visitors.append(visitor)
        return visitor

    yield make
    for visitor in visitors:
        visitor.context.close()
        assert visitor.errors == []


def test_visits_from_another_origin_are_counted_page_by_page(new_visitor: NewVisitor, api: Api) -> None:
    visitor = new_visitor()
    visitor.go("/a")
    visitor.page.reload()
    visitor.go("/b?id=1")
    visitor.go("/b?id=2")
    visitor.go("/a#part")
    visitor.expect_visits({"/a": 3, "/b?id=1": 1, "/b?id=2": 1, "/b": 0})  # a reload is a visit
    assert api.content_types == {"text/plain;charset=UTF-8"}  # another type would need a preflight for each visit
    assert len({visit["key"] for visit in api.visits}) == 5
    assert not any("#" in visit["url"] for visit in api.visits)
    assert {tuple(visit) for visit in api.visits} == {("url", "key")}  # a visit has no data of the visitor


PUSH_AND_REPLACE = """async ([to, redirected, ms]) => { history.pushState({}, "", to);
    await new Promise((done) => setTimeout(done, ms));
    for (const next of redirected) history.replaceState({}, "", next) }"""
# ([a pushed address, the addresses that replace it, after how many ms], the visits by path). The beacon waits for 2 s
# before it counts a pushed address.
STEPS = (
    (["/about", ["/about/"], 150], {"/about": 0, "/about/": 1}),
    (["/b", [], 0], {"/b": 1}),
    (["/c", ["/login", "/c/"], 400], {"/c": 0, "/login": 0, "/c/": 1}),
    (["/d", ["/d?page=2"], 10], {"/d": 1, "/d?page=2": 0}),  # only the query changes: the same page
    (["/e", [], 2_200], {"/e": 1}),
    (["/f", ["/g"], 2_200], {"/f": 1, "/g": 1}),  # the application redirects the visitor after the visit
    (["/left", [], 0], {"/left": 1}),  # the visitor leaves the page at once
)


@over_each_history
def test_a_pushed_address_that_is_replaced_within_2_s_is_not_a_visit(before: str, new_visitor: NewVisitor) -> None:
    """Turbo, PJAX and swup push the address of a link, fetch it, and replace the address if the server redirects."""
    visitor = new_visitor(before)
    visitor.go("/a")
    visitor.run("1")  # waits for the beacon
    for step, _ in STEPS:
        visitor.page.evaluate(PUSH_AND_REPLACE, step)
    visitor.go("/end")
    for _, visits in STEPS:
        visitor.expect_visits(visits)
    visitor.expect_visits({"/a": 1, "/end": 1})


HIDE_PAGE = """Object.defineProperty(document, 'hidden', { get: () => true });
    document.dispatchEvent(new Event('visibilitychange'))"""


def test_a_visit_that_waits_is_sent_when_its_page_is_hidden(new_visitor: NewVisitor) -> None:
    """The browser may close a hidden page without an event."""
    visitor = new_visitor("window.setTimeout = () => {};")  # the 2 s never end
    visitor.go("/a")
    visitor.run("history.pushState({}, '', '/b')")
    visitor.expect_visits({"/a": 1, "/b": 0})
    visitor.run(HIDE_PAGE)
    visitor.expect_visits({"/a": 1, "/b": 1})


@over_each_history
def test_a_link_that_turbo_follows_through_a_redirect_counts_one_visit(
    before: str, new_visitor: NewVisitor, site: Site
) -> None:
    turbo = (ROOT / "node_modules/@hotwired/turbo/dist/turbo.es2017-umd.js").read_bytes()
    site.replies = {
        "/turbo.js": Reply(200, turbo, {"content-type": "text/javascript"}),
        "/about": Reply(301, b"", {"location": "/about/"}),
    }
    for path in ("/", "/about/"):
        site.heads[path] = (
            site.tag + "<script src=/turbo.js></script><body><a href=/about>About</a><a href=/plain>Plain</a>"
        )
    site.heads["/plain"] = site.heads["/"]
    visitor = new_visitor(before)
    visitor.go("/")
    visitor.run("window.same = true")
    for link, path in (("About", "/about/"), ("Plain", "/plain"), ("About", "/about/")):
        visitor.page.get_by_role("link", name=link).click()
        visitor.page.wait_for_function("path => location.pathname == path", arg=path)
        visitor.page.wait_for_function("!document.documentElement.hasAttribute('aria-busy')")
    assert visitor.page.evaluate("window.same"), "Turbo has followed the links without a page load"
    visitor.expect_visits({"/": 1, "/about": 0, "/about/": 2, "/plain": 1})


def test_the_beacon_stores_nothing_on_the_visitors_machine(new_visitor: NewVisitor) -> None:
    visitor = new_visitor()
    visitor.go("/a")
    visitor.expect_visits({"/a": 1})
    assert visitor.context.cookies() == []
    assert visitor.context.storage_state(indexed_db=True) == {"cookies": [], "origins": []}
    assert visitor.run("sessionStorage.length + (window.name ? 1 : 0)") == 0


def test_a_page_that_redirects_after_its_head_counts_and_a_redirect_in_the_head_does_not(
    new_visitor: NewVisitor, site: Site
) -> None:
    sync_tag, redirect = site.tag.replace(" async", ""), "<script>location = '/there'</script>"
    # The page waits for a beacon without `async`, so the beacon runs before the redirect.
    site.heads["/gone"] = f"{sync_tag}<body>{redirect}"
    site.heads["/sent-on"] = sync_tag + redirect  # nobody sees a page that redirects from its head
    visitor = new_visitor()
    for path in ("/gone", "/sent-on"):
        visitor.go(path)
        visitor.page.wait_for_url("**/there")
    visitor.expect_visits({"/gone": 1, "/sent-on": 0, "/there": 2})


def test_make_dev_counts_each_visit_once_and_serves_the_badge_as_a_picture(browser: Browser, dev: Dev) -> None:
    site = Site(dev.url)
    with site.server.running(), chromium.new_context(browser, user_agent=PERSON) as context:
        page, url = context.new_page(), f"{site.server.origin}/a"
        page.goto(url)
        page.reload()

        def counted() -> tuple[int, int]:
            return dev.visits(url)[:2]  # of people, and of programs

        assert plays_of_pages_that_are_left(page, site, dev.url) == PAGES_TO_LEAVE
        date = page.evaluate("url => fetch(url).then((answer) => answer.headers.get('date'))", PLAY_URL.format(dev.url))
        # A page of another origin reads `date` only because the gateway exposes this header.
        assert abs(parsedate_to_datetime(date).timestamp() - time.time()) < PATIENCE_S
        wait_for(lambda: counted() >= (2, 0))
        page.wait_for_timeout(WAIT_FOR_DOUBLE_S * 1000)
        assert counted() == (2, 0)
        badge = f"{dev.url}/visits/badge.svg?url={url}"
        site.heads["/readme"] = f'<meta http-equiv=content-security-policy content="img-src *"><img src="{badge}">'
        page.goto(f"{site.server.origin}/readme")
        assert page.evaluate("[document.images[0].naturalWidth, document.images[0].naturalHeight]") == [60, 20]


def plays_of_pages_that_are_left(page: Page, site: Site, api_url: str) -> int:
    """Leaves PAGES_TO_LEAVE pages. Each page sends a play on `pagehide`. Returns how many plays are counted."""
    url, body = PLAY_URL.format(api_url), "JSON.stringify({ key: crypto.randomUUID() })"
    script = f"addEventListener('pagehide', () => navigator.sendBeacon('{url}', {body}))"
    site.heads["/watch"] = f"<script>{script}</script>"
    for number in range(PAGES_TO_LEAVE):
        page.goto(f"{site.server.origin}/watch?{number}")
    page.goto(f"{site.server.origin}/end")

    def counted() -> int:
        return int(page.request.get(url).json()["value"])

    wait_for(lambda: counted() >= PAGES_TO_LEAVE)
    page.wait_for_timeout(QUIET_MS)
    return counted()


@over_each_history
def test_a_single_page_application_is_counted_by_its_addresses(
    before: str, new_visitor: NewVisitor, site: Site
) -> None:
    site.heads["/app"] = site.tag + "<nav id=navigation></nav>"  # without the API, `window.navigation` is this element
    visitor = new_visitor(before)
    visitor.go("/app")
    for step, address in (
        ("history.pushState(null, '', '/app/one')", "/app/one"),
        ("history.pushState(null, '', '/app/two?page=1')", "/app/two?page=1"),
        ("history.back()", "/app/one"),
        ("history.forward()", "/app/two?page=1"),
        ("history.pushState({ open: true }, '', location.href)", "/app/two?page=1"),  # another state, the same page
        ("history.pushState(null, '', '/app/two?page=2')", "/app/two?page=2"),
    ):
        visitor.run(step)
        visitor.page.wait_for_function("address => location.pathname + location.search == address", arg=address)
    visitor.expect_visits({"/app": 1, "/app/one": 2, "/app/two?page=1": 2, "/app/two?page=2": 1})


def test_a_page_is_counted_by_its_canonical_link_if_the_link_has_the_same_host(
    new_visitor: NewVisitor, api: Api, site: Site
) -> None:
    sync_tag = site.tag.replace(" async", "")
    site.heads |= {
        "/before": f"<link rel=canonical href=/named>{site.tag}",
        "/behind": f"{sync_tag}<link rel='alternate CANONICAL' href='{site.server.origin}/named?fbclid=x#top'>",
        "/stranger": f"<link rel=canonical href=https://other.example/named>{site.tag}",
        "/broken": f"<link rel=canonical href='http://['><link rel=canonical href=/named>{site.tag}",
        "/tls": f"<link rel=canonical href={site.server.origin.replace('http:', 'https:')}/named>{site.tag}",
        "/late": f"{site.tag}<body><link rel=canonical href=/named>",  # ignored, because users may write in the body
    }
    visitor = new_visitor()
    for path in ("/before?utm_source=mail", "/behind?id=1", "/stranger", "/broken", "/tls", "/late"):
        visitor.go(path)
    # "/tls" counts for "/named", because the beacon does not compare the scheme of the link.
    visitor.expect_visits({"/named": 3, "/before": 0, "/behind": 0, "/behind?id=1": 0, "/tls": 0})
    visitor.expect_visits({"/stranger": 1, "/broken": 1, "/late": 1})
    assert len(api.visits) == 6


def test_the_canonical_link_of_a_single_page_application_applies_to_its_first_address(
    new_visitor: NewVisitor, site: Site
) -> None:
    """The beacon reads the link once, because applications change the link after the address, or never."""
    site.heads["/app"] = f"<link rel=canonical href=/named>{site.tag}"
    visitor = new_visitor()
    visitor.go("/app?ref=1")
    visitor.run("history.pushState(null, '', '/app/two')")
    visitor.run("document.head.querySelector('[rel=canonical]').href = '/two'")
    visitor.run("history.back()")
    visitor.page.wait_for_function("location.search")
    visitor.expect_visits({"/named": 2, "/app/two": 1, "/two": 0, "/app?ref=1": 0})


@over_each_history
def test_a_fragment_is_not_a_page(before: str, new_visitor: NewVisitor, api: Api) -> None:
    visitor = new_visitor(before)
    visitor.go("/a")
    for step in ("location.hash = 'part'", "history.pushState(null, '', '#other')", "history.go(-2)"):
        visitor.run(step)
        visitor.page.wait_for_timeout(50)
    visitor.expect_visits({"/a": 1})
    assert len(api.visits) == 1


@over_each_history
def test_replacing_the_address_counts_a_visit_only_if_the_path_changes(
    before: str, new_visitor: NewVisitor, api: Api
) -> None:
    visitor = new_visitor(before)
    visitor.go("/list?utm_source=mail")
    visitor.run("history.replaceState(null, '', '/list')")  # the site removes the campaign from the address
    for letters in ("t", "ta", "tal"):
        visitor.run(f"history.replaceState(null, '', '/list?q={letters}')")  # a filter while a person types
    visitor.run("history.pushState(null, '', '/list?q=tal#top')")  # the same page
    visitor.run("history.replaceState(null, '', '/login')")  # the application redirects the visitor
    visitor.expect_visits({"/list": 1, "/list?q=tal": 0, "/login": 1})
    assert len(api.visits) == 2


@over_each_history
def test_the_beacon_hides_no_error_of_the_page(before: str, new_visitor: NewVisitor, api: Api) -> None:
    visitor = new_visitor(before)
    visitor.go("/a")
    caught = visitor.run(
        "(() => { try { history.pushState(null, '', 'https://other.example/') } catch (e) { return e.name } })()"
    )
    assert caught == "SecurityError"
    assert visitor.run("history.pushState({ a: 1 }, '', '/b'); history.state.a") == 1
    visitor.expect_visits({"/a": 1, "/b": 1})


OPT_OUTS = {
    "Do Not Track": getter("Navigator", "doNotTrack", "'1'"),
    "Global Privacy Control": getter("Navigator", "globalPrivacyControl", "true"),
    "data-tally=off": "",
}


@pytest.mark.parametrize("before", OPT_OUTS.values(), ids=OPT_OUTS.keys())
def test_visitors_who_opt_out_are_not_counted(before: str, new_visitor: NewVisitor, api: Api, site: Site) -> None:
    if not before:
        site.tag = site.tag.replace(" async", ' async data-tally="off"')
    visitor = new_visitor(before)
    visitor.go("/a")
    visitor.run("history.pushState(null, '', '/b')")
    visitor.page.wait_for_timeout(QUIET_MS)
    assert api.visits == []


@pytest.mark.parametrize("before", [NO_BEACON, FULL_BEACON], ids=["no sendBeacon", "sendBeacon is full"])
def test_without_send_beacon_a_visit_is_retried_with_its_key_until_it_counts(
    before: str, new_visitor: NewVisitor, api: Api
) -> None:
    api.faults = [503, LOST, 429]
    visitor = new_visitor(before, HASTE)
    visitor.go("/a")
    visitor.wait_until(lambda: len(api.visits) >= 4)
    visitor.expect_visits({"/a": 1})
    assert len(api.visits) == 4
    assert len({visit["key"] for visit in api.visits}) == 1
    assert api.content_types == {"text/plain;charset=UTF-8"}


def test_a_refused_visit_is_not_sent_again(new_visitor: NewVisitor, api: Api) -> None:
    api.faults = [403] * 20
    visitor = new_visitor(NO_BEACON, HASTE)
    visitor.go("/a")
    visitor.wait_until(lambda: api.visits != [])
    visitor.page.wait_for_timeout(QUIET_MS)
    assert len(api.visits) == 1


def test_a_page_from_the_back_forward_cache_counts_a_visit(new_visitor: NewVisitor) -> None:
    # The headless shell has no back/forward cache, so the test dispatches the event.
    visitor = new_visitor()
    visitor.go("/a")
    visitor.run("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
    visitor.run("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: false }))")
    visitor.expect_visits({"/a": 2})


def test_a_prerendering_page_counts_no_visit_until_it_is_shown(new_visitor: NewVisitor, api: Api) -> None:
    visitor = new_visitor("window.isPrerendering = true;" + getter("Document", "prerendering", "window.isPrerendering"))
    visitor.go("/a")
    visitor.run("history.replaceState(null, '', '/b')")
    visitor.page.wait_for_timeout(QUIET_MS)
    assert api.visits == []
    visitor.run("window.isPrerendering = false; document.dispatchEvent(new Event('prerenderingchange'))")
    visitor.expect_visits({"/a": 0, "/b": 1})


def test_a_page_that_embeds_the_beacon_twice_counts_one_visit(new_visitor: NewVisitor, site: Site) -> None:
    site.heads["/a"] = site.tag * 2 + site.tag.replace(".js", ".js?v=2")
    visitor = new_visitor()
    visitor.go("/a")
    visitor.run("history.pushState(null, '', '/b')")
    visitor.expect_visits({"/a": 1, "/b": 1})


LIMITED_BROWSERS = {
    "no crypto": "delete window.crypto;",
    "no sendBeacon, no fetch": NO_BEACON + "delete window.fetch;",
    "a blocker in sendBeacon": "Navigator.prototype.sendBeacon = () => { throw new Error('blocked') };",
    "a frozen history": NO_NAVIGATION_API + "Object.freeze(History.prototype); Object.freeze(history);",
}


@pytest.mark.parametrize("before", LIMITED_BROWSERS.values(), ids=LIMITED_BROWSERS.keys())
def test_the_beacon_throws_no_error_in_a_browser_that_lacks_or_blocks_an_api(
    before: str, new_visitor: NewVisitor
) -> None:
    visitor = new_visitor(before)  # the fixture asserts that the page has no errors
    visitor.go("/a")
    assert visitor.run("history.pushState({ a: 1 }, '', '/b'); history.state.a") == 1


def test_the_beacon_as_a_module_sends_nothing(new_visitor: NewVisitor, api: Api, site: Site) -> None:
    # A module has no `document.currentScript`, so the beacon cannot know the API's URL.
    site.heads["/module"] = site.tag.replace("async", "type=module crossorigin")
    visitor = new_visitor()
    visitor.go("/module")
    visitor.page.wait_for_load_state("networkidle")
    assert api.visits == []


def test_the_beacon_stops_after_three_retries_without_an_error(new_visitor: NewVisitor, api: Api) -> None:
    api.faults = [LOST] * 20
    visitor = new_visitor(NO_BEACON, HASTE, "addEventListener('unhandledrejection', () => { window.unhandled = true })")
    visitor.go("/a")
    visitor.wait_until(lambda: len(api.visits) >= 4)
    visitor.page.wait_for_timeout(1000)  # longer than the pause before a fifth attempt
    assert len(api.visits) == 4
    assert visitor.run("window.unhandled") is None
