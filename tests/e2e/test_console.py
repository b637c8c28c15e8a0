"""Tests the console in Chromium on `make dev`: pages show what is stored, run no markup, and fit on any screen."""

from __future__ import annotations

import re
import secrets
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, Route, expect

from tally.api import console as served
from tally.cli import connection
from tally.drift import history as repairs
from tally.drift import rows
from tally.dynamo import items
from tally.dynamo.client import Call, Store
from tally.dynamo.transactions import commit_writes, try_commit
from tally.ids import id_of
from tally.series import hours, progress, top
from tally.series.hours import HourAmount
from tests.e2e import chromium
from tests.e2e.accessible import AXE, NARROW, WIDE, complaints, complaints_by_screen
from tests.e2e.dev import KEY, ROOT, Dev
from tests.e2e.servers import Pool
from tests.patience import PATIENCE_S, wait_for

LOADED_BYTES_MAX = 150 * 1000  # of the compressed files of all pages together
VIDEO = "most-played"
PAGES = {
    "overview": "#/",
    "tally": f"#/tally/plays/{VIDEO}",
    "top": "#/top/plays",
    "drift": "#/drift",
    "try it": "#/try",
}
# The browser logs this line for each answer with an error status. Such answers are not errors of the page.
NETWORK_LINE = "Failed to load resource"


@dataclass
class Console:
    """A browser context with a page of the console.

    `errors`: the errors that the page logged or threw. `requests`: the requests of the page.
    """

    dev: Dev
    context: BrowserContext
    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def open(self, hash_: str = "#/", *, name: str = "") -> Page:
        """Loads a page of the console. `name`: the user who signs in; "": nobody signs in."""
        self.page.goto(f"{self.dev.url}/console{hash_}")
        expect(self.page.locator("h1")).to_be_visible()
        if name:
            self.sign_in(name)
            expect(self.page.get_by_role("banner")).to_contain_text(name)
        return self.page

    def sign_in(self, name: str) -> None:
        """Sends the sign-in form, and does not wait for the answer."""
        self.page.get_by_role("banner").get_by_role("button", name="Sign in").click()
        self.page.get_by_label("Your name").fill(name)
        self.page.get_by_label("Your name").press("Enter")

    def go(self, hash_: str) -> None:
        """Goes to another page as a link of the console does: the browser does not load the document again."""
        self.page.evaluate("hash => { location.hash = hash }", hash_)
        expect(self.page.locator("h1")).to_be_focused()

    def wait_until_loaded(self) -> None:
        """Waits until every card has loaded."""
        expect(self.page.locator(".loading")).to_have_count(0)

    def requests_for(self, text: str) -> int:
        """Returns how many requests had this text in their URL."""
        return sum(text in request.url for request in self.requests)


@pytest.fixture
def console(browser: Browser, dev: Dev) -> Iterator[Console]:
    """The console. Fails after a test whose pages had an error, violated a policy, or called another origin."""
    with chromium.new_context(browser, viewport=WIDE) as context:
        context.add_init_script(chromium.HIDDEN_IF_AWAY)
        made = Console(dev, context, context.new_page())
        made.page.on("pageerror", lambda error: made.errors.append(str(error)))
        made.page.on("console", lambda line: line.type == "error" and made.errors.append(line.text))
        made.page.on("request", lambda request: made.requests.append(request))
        yield made
        made.page.unroute_all(behavior="ignoreErrors")  # a request of the closing page may still reach a route
    assert [line for line in made.errors if not line.startswith(NETWORK_LINE)] == []
    assert [request.url for request in made.requests if not request.url.startswith((made.dev.url, "data:"))] == []


# Ids and names that would run a script, or lead to another path, if a page did not escape them.
HOSTILE = (
    '<img src=x onerror="window.pwned = 1">',
    '"><script>window.pwned = 1</script>',
    "../../dev/token",
    "a/b?c#d%2F&amp;",
    "\u202etxt.exe",
    "javascript:window.pwned=1",
)


@pytest.fixture(scope="module")
def shown_data(dev: Dev) -> Iterator[None]:
    """Stores what the pages show: an hour of the series, its top list, an import, two tallies that drift, and a repair.

    The console must show ids of HOSTILE as text, although the API refuses such ids.
    """
    store, now_s = connection.local_stack(dev.port, {}).store, time.time()
    wait_for(lambda: begin_series(store))
    table, hour = store.settings.ledger_table, progress.read(store).hour  # the first hour that is not summed up
    amounts = [HourAmount.of("plays", VIDEO, 1234), *(HourAmount.of("plays", id_, 10) for id_ in HOSTILE)]
    top_list = top.TopListBuilder()
    for amount in amounts:
        top_list.add(amount.counter, amount.id, amount.amount)
    now_h = int(now_s) // 3600
    listed_hour, last_minute = hour - 1, store.settings.minute_of(now_s)
    if listed_hour // 24 != now_h // 24:  # no hour of today is summed up, and pages ask for the list of today
        # This list has a later minute than the sweep's, so no sweep replaces this list.
        listed_hour, last_minute = now_h, progress.minutes_of(store.settings, now_h + 1)[0]
    top.write_lists(store, listed_hour, last_minute, top_list, ["plays"])
    amounts.append(HourAmount.of("plays", hours.TOTAL_ID, 1294))  # 1,234 + 6 * 10
    # An import of 70 into today.
    amounts.append(HourAmount.of("plays", f"{VIDEO}#{datetime.fromtimestamp(now_s, UTC).date()}", 70))
    repair = {"by": HOSTILE[0], "why": HOSTILE[1], "how": repairs.LEDGER}
    writes = [hours._hour_write(store.settings, hour - 1, amount) for amount in amounts]
    writes.append(
        repairs.repair_entry_write(store, "plays", VIDEO, now_s, {"before": 1239, "amount": -5, "added": 0}, **repair)
    )
    drift_rows = [rows.DriftRow("plays", id_) for id_ in (VIDEO, HOSTILE[0])]
    writes += [rows.drift_write(store, row, 5, now_s, store.settings.minute_of(now_s - 3600)) for row in drift_rows]
    for write in writes:
        commit_writes(Call(store), [write])
    yield
    for row in drift_rows:
        store.client.delete_item(TableName=table, Key=rows.row_key(row.counter, row.target))


def begin_series(store: Store) -> bool:
    """Makes the series begin 20 hours ago. Returns False if the sweep has just changed the progress."""
    stored, hour = progress.read(store), int(time.time()) // 3600
    since, is_stored = progress.minutes_of(store.settings, hour - 20)[0], stored.since >= 0
    new = progress.Progress(since, store.settings.minute_of(time.time()) - 1, hour)
    new = replace(stored, since=since) if is_stored else new
    expected = stored.values if is_stored else items.EXPECT_NO_ITEM
    return try_commit(
        store, [items.update_write(store.settings.ledger_table, progress.PROGRESS, new.values, expected=expected)]
    )


def test_the_pages_show_what_is_stored(console: Console, shown_data: None) -> None:
    page = console.open(name="ann")
    plays = page.locator(".counter").filter(has=page.get_by_role("heading", name="plays", exact=True))
    leader = plays.get_by_role("listitem").first
    expect(leader).to_contain_text(VIDEO)
    expect(leader).to_contain_text("1,234")
    assert int(re.sub(r"\D", "", plays.locator(".sum strong").inner_text())) >= 1294  # other tests play, too
    expect(page.locator(".status")).to_contain_text("status of")
    expect(page.locator(".verdict").get_by_role("link", name="drift")).to_have_attribute("href", "#/drift")
    leader.get_by_role("link").click()
    expect(page.locator("h1")).to_have_text(VIDEO)
    expect(page.locator(".moves .sum")).to_contain_text("1,234")
    page.get_by_text("Show as a table").click()
    expect(page.locator(".moves tbody td.figure").filter(has_text="1,234")).to_have_count(1)
    expect(page.get_by_role("img", name=re.compile("1,234 in all"))).to_be_visible()
    repair = page.get_by_role("row").filter(has_text=HOSTILE[0]).first
    expect(repair.get_by_role("cell")).to_have_text(["-5", *HOSTILE[:2], "by its drift"])
    expect(page.locator(".legend")).to_contain_text("Import of +70 into 1 day, not traffic")
    expect(page.get_by_role("row").filter(has_text="+70")).to_have_count(1)
    expect(page.get_by_role("heading", name="Imports").locator("+ p")).to_contain_text("+70. Known up to")
    expect(page.locator("p.alert")).to_contain_text("+5: more is stored")
    console.go("#/tally/plays/never-imported")
    expect(page.get_by_role("heading", name="Imports").locator("+ p")).to_contain_text("None. Known up to")
    expect(page.locator(".legend")).to_contain_text("Hours in")
    # The legend has no text outside its elements.
    assert page.locator(".legend").evaluate("list => list.childNodes.length === list.children.length")
    console.go("#/top/plays")
    expect(page.get_by_role("row").nth(1)).to_contain_text(VIDEO)
    expect(page.get_by_role("row").nth(1)).to_contain_text("1,234")
    console.go("#/drift")
    drift = page.get_by_role("listitem").filter(has=page.get_by_role("link", name=VIDEO, exact=True))
    expect(drift).to_contain_text("+5")
    expect(drift.locator("pre")).to_have_text(re.compile("tally repair .*--by"))


def test_a_failed_check_links_to_its_section_of_the_runbook(console: Console, shown_data: None) -> None:
    page = console.open(name="ann")
    expect(page.locator(".verdict code").filter(has_text="docs/runbook.md#drift")).to_have_count(1)

    def answer_with_published_docs(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "docs": "https://git.example.com/docs"})

    page.route("**/console/config.json", answer_with_published_docs)
    page.reload()
    page = console.open(name="ann")
    links = page.locator(".verdict").get_by_role("link", name="what to do")
    expect(links.and_(page.locator("[href='https://git.example.com/docs/runbook.md#drift']"))).to_have_count(1)


def test_the_overview_of_a_new_stack_shows_a_first_command_and_the_counters_with_changes(
    console: Console, shown_data: None
) -> None:
    def answer_as_a_new_stack(route: Route) -> None:
        answer = route.fetch()
        parts = [{"name": "judged", "state": "unknown", "line": "nothing yet", "see": "runbook.md#unjudged"}]
        route.fulfill(response=answer, json={**answer.json(), "well": None, "judged_up_to": None, "parts": parts})

    console.page.route("**/status", answer_as_a_new_stack)
    page = console.open(name="ann")
    text = "This stack is new Nothing is checked yet: a new stack needs some minutes."
    expect(page.locator(".verdict")).to_have_text(text)
    curl = page.get_by_role("group", name="a first change").inner_text()
    assert re.fullmatch(
        rf"curl -X POST {console.dev.url}/counters/plays/first/increments -H 'Idempotency-Key: \S+'", curl
    )
    console.go("#/top/plays")
    console.go("#/")
    expect(page.get_by_role("group", name="a first change")).to_have_text(curl)  # the command keeps its key
    before = console.dev.number("plays", "first")
    subprocess.run(shlex.split(curl), check=True, capture_output=True)
    assert console.dev.number("plays", "first") == before + 1
    console.wait_until_loaded()
    expect(page.get_by_role("heading", level=3, name="plays", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", level=3, name="contest")).to_be_hidden()
    unchanged = page.get_by_role("region", name="Counters, the last").locator("p", has_text="contest")
    expect(unchanged).to_have_text(re.compile(r"No change up to .*\d+.* in: .*contest"))
    page.get_by_role("link", name="try it", exact=True).click()
    expect(page.locator("h1")).to_have_text("Try it")


def test_names_with_markup_are_shown_as_text(console: Console, shown_data: None) -> None:
    page = console.open("#/top/plays", name=HOSTILE[0])
    for id_ in HOSTILE:
        link = page.get_by_role("link", name=id_, exact=True)
        expect(link).to_be_visible()
        link.click()
        expect(page.locator("h1")).to_have_text(id_)
        console.wait_until_loaded()
        console.go("#/top/plays")
    markup, script = (quote(name, safe="") for name in HOSTILE[:2])
    for hash_ in ("#/", "#/drift", f"#/top/{markup}", "#/%E0%A4%A", f"#/{script}"):  # %E0%A4%A is malformed
        console.go(hash_)
        console.wait_until_loaded()
        assert page.locator("img, iframe, [onerror], main script").count() == 0
    assert page.evaluate("window.pwned") is None
    # The page signs in with POST /dev/token. A GET would come from the id "../../dev/token" in a path.
    assert not any("/dev/token" in request.url and request.method == "GET" for request in console.requests)


def play(dev: Dev, times: int = 1, video: str = "") -> str:
    """Plays a video so many times. `video`: the id; "": a new video. Returns the id."""
    video = video or f"console-{secrets.token_hex(4)}"
    for _ in range(times):
        dev.play(video, secrets.token_urlsafe(24))
    return video


@contextmanager
def drifting(dev: Dev, counter: str, id_: str, by: int) -> Iterator[None]:
    """Stores drift, as if a judge had written the drift an hour ago. Deletes the drift at the end of the block."""
    store, now_s = connection.local_stack(dev.port, {}).store, time.time()
    commit_writes(
        Call(store),
        [rows.drift_write(store, rows.DriftRow(counter, id_), by, now_s, store.settings.minute_of(now_s - 3600))],
    )
    yield
    store.client.delete_item(TableName=store.settings.ledger_table, Key=rows.row_key(counter, id_))


def test_the_sentence_under_a_number_says_whether_the_number_is_right(console: Console) -> None:
    video = play(console.dev, 3)
    page = console.open(f"#/tally/plays/{video}")
    expect(page.locator(".live")).to_have_text("3")
    expect(page.locator(".now")).to_contain_text("The stored number.")  # drift is not for strangers
    console.sign_in("ann")
    expect(page.locator(".now")).to_contain_text(re.compile("checked"))
    with drifting(console.dev, "plays", video, 2):
        page.reload()
        console.sign_in("ann")
        expect(page.locator(".now")).to_contain_text("3 stored, 1 accepted: drifts by +2.")
        console.go(f"#/tally/plays/{video}x")  # a video without plays
        expect(page.locator(".live")).to_have_text("0")
        expect(page.locator(".now")).to_contain_text("Never counted")


def test_drift_of_a_team_number_is_shown_with_a_check_and_without_a_repair(console: Console) -> None:
    """`tally repair` refuses a team number, because only the team's code writes it."""
    video = play(console.dev, 3)

    def answer_with_a_team_number(route: Route) -> None:
        answer = route.fetch()
        body = answer.json()
        counters = [
            {**counter, "watched": "playTally"} if counter["name"] == "plays" else counter
            for counter in body["counters"]
        ]
        route.fulfill(response=answer, json={**body, "counters": counters})

    console.page.route("**/status", answer_with_a_team_number)
    with drifting(console.dev, "plays", video, 2):
        page = console.open(f"#/tally/plays/{video}", name="ann")
        expect(page.locator(".now")).to_contain_text("playTally differs from its items by +2.")
        expect(page.locator("p.alert")).to_contain_text("+2: playTally is higher than the sum of its items")
        for hash_ in ("#/drift", f"#/tally/plays/{video}"):
            console.go(hash_)
            expect(page.locator("main")).to_contain_text("tally check --only drift --local")
            expect(page.locator("main")).not_to_contain_text("tally repair")


def test_a_number_shows_how_much_of_its_limit_is_used(console: Console) -> None:
    token = console.dev.token("gate", scope="tally/read tally/write")
    key = secrets.token_hex(8)
    path = "/counters/calls/metered"
    console.dev.call("POST", f"{path}/increments", {"amount": 30}, token=token, idempotency_key=key)
    console.dev.call("PUT", f"{path}/limit", {"limit": 40}, token=token, idempotency_key=key)
    console.page.add_init_script(path=AXE)
    page = console.open("#/tally/calls/metered", name="ann")
    expect(page.locator(".now")).to_contain_text("30 of 40 used. 10 left until ")
    expect(page.get_by_role("meter", name="30 of 40 used")).to_be_visible()
    console.dev.call("PUT", f"{path}/limit", {"limit": 20}, token=token, idempotency_key=f"{key}-2")
    expect(page.locator(".now")).to_contain_text("30 of 20 used. 10 beyond the limit until ")
    console.dev.call("POST", "/counters/stock/metered/increments", {"amount": 5}, token=token, idempotency_key=key)
    console.go("#/tally/stock/metered")
    expect(page.locator(".now")).to_contain_text("The floor is 0. 5 left.")
    assert complaints(page) == []


def test_a_number_that_javascript_rounds_has_the_sign_for_about(console: Console) -> None:
    token, key = console.dev.token("gate", scope="tally/write"), secrets.token_hex(8)
    changes = [{"counter": "usage", "id": f"large-{key}", "amount": 10**15}] * 10  # 10**16 is above 2**53
    changes += [{"counter": "usage", "id": f"exact-{key}", "amount": 10**15}]
    console.dev.call("POST", "/changes", {"changes": changes}, token=token, idempotency_key=key)
    page = console.open(f"#/tally/usage/exact-{key}", name="ann")
    expect(page.locator(".now .live")).to_have_text("1,000,000,000,000,000")
    console.go(f"#/tally/usage/large-{key}")
    expect(page.locator(".now .live")).to_have_text("≈ 10,000,000,000,000,000")


def test_a_change_of_another_caller_is_found_with_the_callers_name(console: Console) -> None:
    shop, key = console.dev.token("shop", scope="tally/write"), secrets.token_hex(8)
    console.dev.call("POST", "/counters/usage/u/increments", {"amount": 7}, token=shop, idempotency_key=key)
    page = console.open("#/tally/usage/u", name="ann")
    form = page.get_by_role("region", name="Look up a change")
    for caller, text in (("", "another caller sent it"), ("shop", "Counted once."), ("shop2", "never sent by shop2")):
        form.get_by_label("Key").fill(key)
        form.get_by_label("Caller").fill(caller)
        form.get_by_role("button", name="Look up").click()
        expect(form.get_by_role("status")).to_contain_text(text)


def test_a_voided_change_is_shown_as_voided(console: Console) -> None:
    shop, key = console.dev.token("shop", scope="tally/write"), secrets.token_hex(8)
    console.dev.call("POST", "/counters/usage/u/increments", {"amount": 7}, token=shop, idempotency_key=key)
    console.dev.call("POST", "/counters/usage/u/voids", {"key": key}, token=shop)
    form = console.open("#/tally/usage/u", name="ann").get_by_role("region", name="Look up a change")
    form.get_by_label("Key").fill(key)
    form.get_by_label("Caller").fill("shop")
    form.get_by_role("button", name="Look up").click()
    expect(form.get_by_role("status")).to_contain_text("Counted once, and voided later. The answer was:")


def test_a_counter_of_visitors_asks_for_no_key(console: Console) -> None:
    form = console.open("#/tally/readers/b", name="ann").get_by_role("region", name="Look up a change")
    expect(form).to_contain_text("This counter counts visitors, not keys")
    expect(form.get_by_role("button")).to_be_hidden()


@pytest.mark.parametrize("name", ["", "ann"], ids=["a stranger", "signed in"])
def test_the_first_page_of_a_visit_finds_an_anonymous_play(console: Console, name: str) -> None:
    """The page opens before the console knows that plays take no token. Even if ann is signed in, the console must look
    up the key of an anonymous caller."""
    key = str(uuid.uuid4())
    console.dev.call("POST", "/counters/plays/alone/increments", idempotency_key=key)
    page = console.open("#/tally/plays/alone", name=name)
    form = page.get_by_role("region", name="Look up a change")
    expect(form.get_by_label("Caller")).to_be_hidden()
    form.get_by_label("Key").fill(key)
    form.get_by_role("button", name="Look up").click()
    expect(form.get_by_role("status")).to_contain_text("Counted once.")


def test_a_number_updates_only_while_its_page_is_visible(console: Console) -> None:
    video = play(console.dev, 2)
    console.page.clock.install()
    live = console.open(f"#/tally/plays/{video}").locator(".live")
    expect(live).to_have_text("2")
    play(console.dev, 1, video)
    console.page.clock.fast_forward(2_100)
    expect(live).to_have_text("3")
    console.page.evaluate(chromium.SET_AWAY, True)
    play(console.dev, 1, video)
    before = console.requests_for(f"/counters/plays/{video}")
    for _ in range(5):
        console.page.clock.fast_forward(10_000)
    assert console.requests_for(f"/counters/plays/{video}") == before
    console.page.evaluate(chromium.SET_AWAY, False)
    expect(live).to_have_text("4")


def test_the_form_opens_a_number_by_its_path_its_encoded_path_or_its_id(console: Console) -> None:
    text = f"/films/привет {secrets.token_hex(4)}/"
    video = play(console.dev, 1, id_of(text))
    page = console.open()
    for written in (text, quote(text), video):
        page.get_by_label("Counter", exact=True).fill("plays")
        page.get_by_label("Id, or the page's address").fill(written)
        page.get_by_role("button", name="Open", exact=True).click()
        expect(page.locator("h1")).to_have_text(text)
        expect(page.locator(".live")).to_have_text("1")
        console.go("#/")


def test_a_lost_connection_is_shown_until_it_is_back(console: Console) -> None:
    video = play(console.dev)
    page = console.open(f"#/tally/plays/{video}")
    expect(page.locator(".live")).to_have_text("1")
    console.context.set_offline(True)
    expect(page.locator("#lost")).to_contain_text("No connection to Tally.")
    expect(page.locator(".live")).to_have_text("1")
    play(console.dev, 1, video)
    console.context.set_offline(False)
    expect(page.locator(".live")).to_have_text("2")
    expect(page.locator("#lost")).to_be_empty()


def test_a_page_whose_code_loads_late_changes_nothing_on_the_page_that_is_open_then(console: Console) -> None:
    page, requests = console.open("#/drift"), list[Route]()
    title = page.title()
    page.route("**/tryit.js", lambda route: requests.append(route))
    with page.expect_request("**/tryit.js"):
        page.evaluate("location.hash = '#/try'")
    console.go("#/drift")
    requests[0].continue_()
    page.evaluate("import(`${location.origin}/console/tryit.js`)")  # waits until the code is loaded
    expect(page.locator("h1")).to_have_text(["Drift"])
    assert page.title() == title


def answer_token_requests(console: Console, answer: dict[str, Any]) -> None:
    """Answers each request of the page for a token with this body."""
    console.page.route("**/dev/token", lambda route: route.fulfill(json=answer))


def test_strangers_see_the_sign_in_and_nothing_private(console: Console) -> None:
    writer = console.dev.token(scope="tally/write")
    usage = "/counters/usage/private/increments"
    console.dev.call("POST", usage, {"amount": 4711}, token=writer, idempotency_key=KEY)
    page = console.open("#/tally/usage/private")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    console.wait_until_loaded()
    expect(page.get_by_role("button", name="Sign in")).to_have_count(2)  # one in the banner and one in the form
    stranger = {"access_token": console.dev.token("mallory"), "expires_in": 3600}  # without tally/read
    answer_token_requests(console, stranger)
    page.get_by_label("Your name").fill("mallory")
    page.get_by_label("Your name").press("Enter")
    expect(page.locator("#sign-in").get_by_role("alert")).to_contain_text("tally/read")
    expect(page.locator("main")).not_to_contain_text("4,711")
    page.unroute("**/dev/token")
    page.get_by_label("Your name").fill("ann")
    page.get_by_label("Your name").press("Enter")
    expect(page.locator(".live")).to_have_text("4,711")
    expect(page.locator("#sign-in")).to_have_count(0)


@pytest.mark.parametrize("counter", ["visits", "bot_visits"])
def test_a_stranger_sees_how_often_a_page_was_visited(counter: str, console: Console) -> None:
    """Before and after the sign-in, the console reads `/tallies?of=visits:…`, and never `/counters/visits/…`."""
    url, key = f"https://example.com/{secrets.token_hex(4)}", secrets.token_urlsafe(24)
    user_agent = {"visits": "Mozilla/5.0 Firefox/153.0", "bot_visits": "Googlebot/2.1"}[counter]
    console.dev.call("POST", "/visits", {"url": url, "key": key}, user_agent=user_agent)
    wait_for(lambda: sum(console.dev.visits(url)[:2]) == 1)  # of people and of programs
    live = console.open(f"#/tally/{counter}/{quote(url, safe='')}").locator(".now .live")
    expect(live).to_have_text("1")
    form = console.page.get_by_role("region", name="Look up a change")
    expect(form.locator("option")).to_have_text(["visit"])
    form.get_by_label("Key").fill(key)
    form.get_by_role("button", name="Look up").click()
    expect(form.get_by_role("status")).to_contain_text("Counted once.")
    console.sign_in("ann")
    expect(console.page.get_by_role("banner")).to_contain_text("ann")
    console.wait_until_loaded()
    expect(console.page.locator(".now")).to_contain_text(re.compile("Right|nothing is checked"))
    expect(live).to_have_text("1")
    expect(console.page.locator(".error")).to_have_count(0)
    assert console.requests_for(f"counters/{counter}") == 0


VISITOR_COUNTERS = """from tally.counter import Counter, declared

UTC, PARIS = (
    Counter(name, prefix="TEAM", sort_key=name.upper(), attribute=name, unique=True, period=period, timezone=zone)
    for name, period, zone in (("members", "day", None), ("guests", "month", "Europe/Paris"))
)
COUNTERS = declared([UTC, PARIS])
"""


def test_no_card_reads_a_span_that_would_count_visitors_twice(
    console: Console, start: Callable[..., Dev], tmp_path: Path
) -> None:
    """A top list adds the periods of its span, so a visitor of two periods would count twice in a list of both.

    A month has many periods (days) of members. A day or month of UTC may span two periods (months in Paris) of guests.
    """
    (tmp_path / "counters.py").write_text(VISITOR_COUNTERS)
    console.dev = start(app=tmp_path, PYTHONPATH=str(ROOT), TALLY_MINUTE_S="1").wait_until_ready()
    writer = console.dev.token(scope="tally/read tally/write")
    for counter in ("members", "guests"):
        path = f"/top/any?counter={counter}&by=hour"
        visitor = {"visitor": "ann"}
        assert console.dev.call("POST", f"/counters/{counter}/a/visitors", visitor, token=writer).status == 200
        wait_for(lambda path=path: console.dev.call("GET", path, token=writer).body["top"])  # type: ignore[misc]
    page = console.open(name="ann")
    cards = page.locator(".counter:not(.still)")  # `.still`: a counter without changes
    expect(cards.get_by_role("listitem")).to_have_text(["a1", "a1"])  # the id a, and 1 visitor
    expect(page.locator(".error")).to_have_count(0)
    for counter, spans in (("members", ["Hour", "Day"]), ("guests", ["Hour"])):
        page.goto("about:blank")  # so that the browser loads the console anew
        console.open(f"#/top/{counter}", name="ann")
        expect(page.get_by_role("group", name="Span").locator("label")).to_have_text(spans)
        expect(page.locator("table.top .id")).to_have_text(["a"])
        expect(page.locator(".error")).to_have_count(0)


def test_strangers_see_the_list_of_a_counter_that_anyone_may_list_and_of_no_other(
    console: Console, shown_data: None
) -> None:
    page = console.open("#/top/plays")
    expect(page.get_by_role("heading", name="Sign in", exact=True)).to_be_visible()
    console.wait_until_loaded()
    expect(page.locator("main")).not_to_contain_text(VIDEO)
    console.sign_in("ann")
    expect(page.get_by_role("row").nth(1)).to_contain_text(VIDEO)
    config = console.dev.call("GET", "/console/config.json").body
    assert config["listed"] == []
    page.route("**/console/config.json", lambda route: route.fulfill(json=config | {"listed": ["likes"]}))
    found = {"counter": "likes", "by": "day", "span": "2026-01-01", "as_of": 1_800_000_000, "error_max": 0}
    found["top"] = [{"id": "of-anyone", "value": 9}]
    page.route("**/top?counter=likes*", lambda route: route.fulfill(json=found))
    page.goto("about:blank")
    console.open("#/top/likes")
    expect(page.get_by_role("row").nth(1)).to_contain_text("of-anyone")


def test_signing_in_and_out_removes_what_the_page_showed_before(console: Console, shown_data: None) -> None:
    page = console.open("#/drift")
    expect(page.locator(".note", has_text="Sign in to see this")).to_have_count(2)
    unanswered: list[Route] = []
    page.route(re.compile(r"/(status|drift\?.*)$"), lambda route: unanswered.append(route))  # a slow network
    console.sign_in("ann")
    expect(page.locator(".loading")).to_have_count(2)
    expect(page.locator("main")).not_to_contain_text("Sign in to see this")
    for route in unanswered:
        route.continue_()
    page.unroute_all()
    expect(page.locator(".drifts")).to_contain_text(VIDEO)
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator(".note", has_text="Sign in to see this")).to_have_count(2)
    expect(page.locator("main")).not_to_contain_text(VIDEO)


def test_the_overview_lists_the_thresholds_that_were_crossed(console: Console) -> None:
    console.page.add_init_script(path=AXE)
    token = console.dev.token("gateway", scope="tally/write")
    change = {"amount": 850}
    path = "/counters/calls/heavy-user/increments"
    assert console.dev.call("POST", path, change, token=token, idempotency_key=secrets.token_hex(12)).status == 200
    page = console.open(name="ann")
    line = page.get_by_role("region", name="Thresholds crossed").get_by_role("listitem").filter(has_text="heavy-user")
    expect(line).to_contain_text("reached 800 (80 % of 1,000)")
    line.get_by_role("link").click()
    expect(page.locator(".live")).to_have_text("850")
    console.go("#/")
    expect(line).not_to_contain_text("not sent")
    assert complaints(page) == []


def test_a_narrow_overview_shows_the_ends_of_long_ids(console: Console) -> None:
    ids = [f"https://example.com/a/long/way/into/the/site/{name}.html" for name in ("first", "second", "fifth")]
    ids.append("https://example.com/a/long/way/into/the/site/")
    found = {"counter": "visits", "span": "2026-01-01", "as_of": 1_800_000_000, "error_max": 0, "cursor": None}
    found["top"] = [{"id": id_, "value": 9} for id_ in ids]
    console.page.route("**/top/any?counter=visits*", lambda route: route.fulfill(json=found))
    console.page.set_viewport_size(NARROW)
    page = console.open(name="ann")
    leaders = page.locator(".counter", has=page.get_by_role("link", name="visits", exact=True)).get_by_role("listitem")
    expect(leaders.get_by_role("link")).to_have_text(["…/first.html", "…/second.html", "…/fifth.html", "…/"])
    expect(leaders.get_by_role("link", name=ids[0], exact=True)).to_be_visible()
    cut_links = "links => links.filter(link => link.scrollWidth > link.clientWidth + 1)"
    assert leaders.get_by_role("link").evaluate_all(cut_links) == []
    for sum_ in page.locator(".sum strong").all():  # a long number must not make the page scroll sideways
        sum_.evaluate("element => { element.textContent = '+10,000,000,000,000,000'; }")
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


def test_the_console_asks_for_sign_in_after_the_token_expires(console: Console) -> None:
    console.page.clock.install()
    page = console.open("#/drift", name="ann")
    console.wait_until_loaded()
    console.page.clock.fast_forward(3700 * 1000)  # a token lives for 3,600 s
    expect(page.get_by_role("heading", name="Sign in again")).to_be_visible()


def test_the_console_asks_for_sign_in_after_the_api_refuses_the_token(console: Console) -> None:
    forged = console.dev.token("ann", scope="tally/read")[:-8] + "AAAAAAAA"  # the end of the signature
    answer_token_requests(console, {"access_token": forged, "expires_in": 3600})
    page = console.open("#/drift")
    console.sign_in("ann")  # `open` would wait for the name in the banner, which may disappear at once
    expect(page.get_by_role("heading", name="Sign in again")).to_be_visible()
    expect(page.locator("main li")).to_have_count(0)


# --- Accessibility


def test_every_page_is_accessible_and_fits_on_narrow_and_wide_screens(console: Console, shown_data: None) -> None:
    console.page.add_init_script(path=AXE)
    page = console.open(name="ann")
    violations = {}
    for name, hash_ in PAGES.items():
        console.go(hash_)
        console.wait_until_loaded()
        if broken := complaints_by_screen(page):
            violations[name] = broken
    assert violations == {}


def test_the_keyboard_reaches_every_page(console: Console) -> None:
    page = console.open(name="ann")
    page.reload()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    for name, title in (("Top", "Top"), ("Drift", "Drift"), ("Try it", "Try it"), ("Overview", "Overview")):
        link = page.get_by_role("banner").get_by_role("link", name=name)
        for _ in range(40):
            if link.evaluate("link => link === document.activeElement"):
                break
            page.keyboard.press("Shift+Tab")
        expect(link).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1, name=title)).to_be_focused()
        expect(link).to_have_attribute("aria-current", "page")
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline not in ("none", "")  # the focus is visible


def test_the_files_of_the_console_are_small(console: Console) -> None:
    page = console.open(name="ann")
    for hash_ in PAGES.values():
        console.go(hash_)
        console.wait_until_loaded()
    page.wait_for_load_state("networkidle")
    files = [request for request in console.requests if "/console" in request.url]
    sizes = {request.url: request.sizes()["responseBodySize"] for request in files}
    assert {Path(url).name for url in sizes} >= {"app.js", "tryit.js", "uPlot.esm.js", "console.css"}
    assert 0 < sum(sizes.values()) <= LOADED_BYTES_MAX, sizes


# --- PKCE


@pytest.fixture
def pool(browser: Browser, dev: Dev) -> Iterator[Pool]:
    made = Pool(lambda: dev.token("ann", scope="tally/read"))
    with made.server.running():
        yield made


@pytest.fixture
def console_with_pool(browser: Browser, dev: Dev, pool: Pool) -> Iterator[Console]:
    """The console with the configuration and the content security policy of a stack that has a user pool."""
    sign_in = {
        "kind": "pkce",
        "domain": pool.server.origin,
        "client_id": pool.client_id,
        "redirect": f"{dev.url}/console",
    }
    config = {"stage": "test", "stack": "Tally-test", "region": "eu-west-1", "sign_in": sign_in}
    config |= {"try_it": False, "docs": "docs", "counters": ["plays"], "listed": []}

    def answer_with_policy(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(
            response=answer,
            headers={**answer.headers, "content-security-policy": served.content_security_policy(pool.server.origin)},
        )

    # Chromium treats a page that a test fulfils as a page of the internet, which needs permission to call this machine.
    with chromium.new_context(browser, viewport=WIDE, permissions=["local-network-access"]) as context:
        made = Console(dev, context, context.new_page())
        made.page.on("console", lambda line: line.type == "error" and made.errors.append(line.text))
        made.page.on("request", lambda request: made.requests.append(request))
        made.page.route(f"{dev.url}/console/config.json", lambda route: route.fulfill(json=config))
        made.page.route(re.compile(rf"^{re.escape(dev.url)}/console(\?.*)?$"), answer_with_policy)
        yield made
    assert [line for line in made.errors if not line.startswith(NETWORK_LINE)] == []


def test_pkce_signs_in_and_the_token_is_in_memory_only(console_with_pool: Console, pool: Pool) -> None:
    page = console_with_pool.open("#/drift")
    page.locator("#sign-in").get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="Sign in as ann").click()
    expect(page.get_by_role("banner")).to_contain_text("ann")
    expect(page).to_have_url(f"{console_with_pool.dev.url}/console#/drift")
    console_with_pool.wait_until_loaded()
    assert pool.tokens_issued == 1
    tokens = {
        request.headers["authorization"] for request in console_with_pool.requests if "authorization" in request.headers
    }
    [token] = [header.removeprefix("Bearer ") for header in tokens]
    stored = page.evaluate("[{...localStorage}, {...sessionStorage}, document.cookie, history.state]")
    assert stored == [{}, {}, "", None]
    assert not any(token in request.url for request in console_with_pool.requests)
    # Only `make dev` has the page "Try it", because this page writes.
    assert "try" not in page.locator("nav#pages").inner_text().lower()


def test_pkce_refuses_an_answer_to_a_sign_in_that_this_page_did_not_begin(
    console_with_pool: Console, pool: Pool
) -> None:
    pool.state = "of-somebody-else"
    page = console_with_pool.open("#/drift")
    page.locator("#sign-in").get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="Sign in as ann").click()
    expect(page.get_by_text("was not started on this page")).to_be_visible()
    page.goto(f"{console_with_pool.dev.url}/console?code={pool.code}&state=forged#/drift")
    expect(page.get_by_text("was not started on this page")).to_be_visible()
    assert pool.tokens_issued == 0
    assert "forged" not in page.url


# --- Try it


def test_the_experiment_with_an_edit_shows_the_drift_the_repair_and_the_history(console: Console) -> None:
    page = console.open("#/try")
    page.get_by_role("button", name="Edit a number by 50").click()
    steps = page.get_by_role("list", name="Steps: A number that is edited").locator("> li")
    expect(steps.filter(has_text="The number drifts")).to_contain_text("55 stored, 5 accepted, +50")
    repair = steps.locator(".command code").inner_text().replace("$(whoami)", "ann").replace("WHY", "a script")
    program, *arguments = shlex.split(repair)
    assert (program, arguments[0]) == ("tally", "repair")
    command = [sys.executable, "-m", "tally.cli", *arguments, "--yes"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "-50 (55 to 5), by ledger" in ran.stdout, ran
    expect(steps.last).to_contain_text("The number is 5 again.")
    expect(steps.last.get_by_role("cell")).to_have_text(["-50", "ann", "a script"])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"pk": "VID#nobody", "sk": "STATS#TOTAL", "attribute": "play_count", "by": 1}, 404),
        ({"pk": "VID#nobody", "sk": "STATS#TOTAL", "attribute": "play_count", "by": "1"}, 400),
        ([], 400),
    ],
)
def test_an_edit_is_refused_if_its_item_is_missing_or_its_body_is_wrong(dev: Dev, body: object, status: int) -> None:
    assert dev.call("PATCH", "/dev/edit", body).status == status


def test_a_play_whose_answer_is_lost_counts_once(console: Console) -> None:
    page = console.open("#/try")
    before = console.dev.plays("try-it")
    page.get_by_role("button", name="Play, and lose the answer").click()
    steps = page.get_by_role("list", name="Steps: A play").locator("li")
    expect(steps).to_have_count(5)
    expect(steps.locator("strong")).to_have_text([str(number) for number in (before, before + 1, before + 1)])
    expect(steps.nth(1)).to_contain_text("→ no answer")
    expect(steps.nth(3)).to_contain_text("Idempotency-Replayed: true")
    keys = re.findall(r"Idempotency-Key: (\S+)", steps.nth(1).inner_text() + "\n" + steps.nth(3).inner_text())
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert console.dev.plays("try-it") == before + 1
