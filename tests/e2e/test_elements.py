"""Tests the elements in Chromium, on the page of `make dev` that shows all elements."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

import pytest
from playwright.sync_api import APIResponse, Browser, Locator, Page, Route, expect

from tests.e2e import chromium
from tests.e2e.accessible import AXE, WIDE, complaints_by_screen
from tests.e2e.dev import Dev

# The client stores each change that waits in localStorage. The name of the entry has the counter.
NOTHING_WAITS = "!Object.keys(localStorage).some((name) => / (hearts|plays) /.test(name))"
NOT_FOUND = {"status": 404, "detail": "There is no counter 'hearts'."}
# Two frames later, the page shows what it received before.
TWO_FRAMES = "new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"


@pytest.fixture
def page(browser: Browser, dev: Dev) -> Iterator[Page]:
    """The page with all elements. Fails after a test if the page had an error."""
    errors: list[str] = []
    with chromium.new_context(browser, viewport=WIDE) as context:
        context.add_init_script(chromium.HIDDEN_IF_AWAY)
        opened = context.new_page()
        opened.on("pageerror", lambda error: errors.append(str(error)))
        opened.goto(f"{dev.url}/dev/elements")
        expect(shown_number(opened, "tally-count")).to_have_text(re.compile(r"\d"))
        yield opened
        opened.unroute_all(behavior="ignoreErrors")  # the page may send requests while its context closes
    assert errors == []


def shown_number(page: Page, element: str) -> Locator:
    return page.locator(f"{element} [part=count]").first


def shown_pending(page: Page, element: str) -> Locator:
    return page.locator(f"{element} [part=pending]").first


def like_button(page: Page) -> Locator:
    return page.get_by_role("button", name="Like")


def sign_in(page: Page, name: str) -> None:
    page.get_by_label("Your name").fill(name)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name=f"Sign {name} out")).to_be_visible()


def test_a_like_that_waits_is_shown_beside_tallys_number(page: Page, dev: Dev) -> None:
    sign_in(page, f"ann-{secrets.token_hex(4)}")
    before = dev.number("hearts", "article-1")
    expect(shown_number(page, "tally-like")).to_have_text(str(before))
    expect(like_button(page)).to_have_attribute("aria-pressed", "false")
    held: list[Route] = []
    page.route("**/mine", lambda route: held.append(route))
    like_button(page).press("Space")
    expect(like_button(page)).to_have_attribute("aria-pressed", "true")
    expect(shown_pending(page, "tally-like")).to_have_text("+1 waiting")
    expect(shown_number(page, "tally-like")).to_have_text(str(before))
    reads: list[Route] = []
    page.route("**/tallies?*", lambda route: reads.append(route))
    held[0].continue_()
    page.unroute("**/mine")
    page.wait_for_function(NOTHING_WAITS)
    # The like is counted, and the number that the page shows does not include it.
    expect(shown_pending(page, "tally-like")).to_have_text("+1 waiting")
    for route in reads:
        route.continue_()
    page.unroute("**/tallies?*")
    expect(shown_pending(page, "tally-like")).to_have_text("")
    expect(shown_number(page, "tally-like")).to_have_text(str(before + 1))
    like_button(page).dblclick()  # a double click deletes the like once
    expect(shown_number(page, "tally-like")).to_have_text(str(before))
    expect(like_button(page)).to_have_attribute("aria-pressed", "false")
    page.reload()
    assert dev.number("hearts", "article-1") == before


def test_a_click_without_sign_in_asks_for_sign_in_and_signing_in_shows_the_like(page: Page, dev: Dev) -> None:
    name = f"bob-{secrets.token_hex(4)}"
    dev.call("PUT", "/counters/hearts/article-1/mine", token=dev.token(name))
    like_button(page).click()
    expect(page.get_by_label("Your name")).to_be_focused()
    expect(like_button(page)).to_have_attribute("aria-pressed", "false")
    sign_in(page, name)
    expect(like_button(page)).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name=f"Sign {name} out").click()
    expect(like_button(page)).to_have_attribute("aria-pressed", "false")


def deliver(page: Page, late: list[tuple[Route, APIResponse]]) -> None:
    """Delivers the answers, and waits until the page shows what the answers say."""
    for route, answer in late:
        route.fulfill(response=answer)
        route.request.response().finished()  # type: ignore[union-attr]
    page.evaluate(TWO_FRAMES)


@pytest.fixture
def late(page: Page) -> list[tuple[Route, APIResponse]]:
    """The answers of GET /mine, which the page does not get until `deliver`."""
    held: list[tuple[Route, APIResponse]] = []
    page.route("**/mine?*", lambda route: held.append((route, route.fetch())))
    return held


def test_a_late_answer_about_the_user_does_not_revert_a_button(
    page: Page, dev: Dev, late: list[tuple[Route, APIResponse]]
) -> None:
    name = f"ann-{secrets.token_hex(4)}"
    with page.expect_request("**/mine?*"):
        sign_in(page, name)
    like_button(page).click()
    page.wait_for_function(NOTHING_WAITS)
    deliver(page, late)
    expect(like_button(page)).to_have_attribute("aria-pressed", "true")
    like_button(page).click()  # the next click deletes the like
    page.wait_for_function(NOTHING_WAITS)
    assert not dev.call("GET", "/counters/hearts/article-1/mine", token=dev.token(name)).body["present"]


def test_a_button_does_not_show_the_like_of_another_user(
    page: Page, dev: Dev, late: list[tuple[Route, APIResponse]]
) -> None:
    name = f"ann-{secrets.token_hex(4)}"
    dev.call("PUT", "/counters/hearts/article-1/mine", token=dev.token(name))
    with page.expect_request("**/mine?*"):
        sign_in(page, name)
    page.get_by_role("button", name=f"Sign {name} out").click()
    with page.expect_request("**/mine?*"):
        sign_in(page, f"bob-{secrets.token_hex(4)}")
    deliver(page, late[::-1])  # the answer about the first user comes last
    expect(like_button(page)).to_have_attribute("aria-pressed", "false")


def test_a_button_that_is_removed_and_added_shows_a_like_that_counted_between(page: Page) -> None:
    sign_in(page, f"ann-{secrets.token_hex(4)}")
    expect(like_button(page)).to_have_attribute("aria-pressed", "false")
    with page.expect_response("**/mine"):
        page.evaluate(
            """window.taken = document.querySelector('tally-like'); window.box = taken.parentElement;
            taken.button.click(); taken.remove()"""
        )
    page.wait_for_function(NOTHING_WAITS)
    page.route("**/mine?*", lambda route: None)  # no answer tells the button that the user likes
    page.evaluate(f"box.append(taken); {TWO_FRAMES}")
    expect(like_button(page)).to_have_attribute("aria-pressed", "true")
    expect(page.locator("tally-like").first.locator("[part=pending]")).to_have_text("")


def test_two_buttons_of_one_post_show_the_same_like(page: Page, dev: Dev) -> None:
    name = f"ann-{secrets.token_hex(4)}"
    page.evaluate("(one => one.after(one.cloneNode(true)))(document.querySelector('tally-like'))")
    sign_in(page, name)
    for clicked, present in ((0, True), (1, False)):
        like_button(page).nth(clicked).click()
        for button in (like_button(page).nth(0), like_button(page).nth(1)):
            expect(button).to_have_attribute("aria-pressed", str(present).lower())
        page.wait_for_function(NOTHING_WAITS)
        assert dev.call("GET", "/counters/hearts/article-1/mine", token=dev.token(name)).body["present"] == present


def test_a_button_shows_the_reason_of_a_refusal(page: Page) -> None:
    sign_in(page, "ann")
    problem = '{"type":"urn:problem-type:tally:counter-retired","title":"","status":409,"detail":"hearts is retired."}'
    page.route("**/mine", lambda route: route.fulfill(status=409, body=problem))
    like_button(page).click()
    expect(page.locator("tally-like").first.get_by_role("status")).to_have_text("hearts is retired.")
    expect(like_button(page)).to_have_attribute("aria-pressed", "false")


def start_player(page: Page) -> None:
    page.evaluate("window.audio = document.querySelector('audio'); audio.muted = true; audio.play()")


def play_to_the_end(page: Page) -> None:
    """Plays for more than a second, so that the play counts, then to the end of the tone, until no change waits."""
    page.wait_for_function("audio.currentTime > 1.5")
    page.evaluate("audio.currentTime = 3.9")  # the tone has 4 s
    page.wait_for_function("audio.ended")
    page.wait_for_function(NOTHING_WAITS)


def test_a_playback_counts_once_however_often_it_pauses(page: Page, dev: Dev) -> None:
    before = dev.number("plays", "9f3a")
    start_player(page)
    expect(shown_number(page, "tally-plays")).to_have_text(str(before + 1))
    page.evaluate("audio.pause(); audio.currentTime = 0; audio.play()")
    play_to_the_end(page)
    assert dev.number("plays", "9f3a") == before + 1
    page.evaluate("audio.play()")  # after the end: another playback
    expect(shown_number(page, "tally-plays")).to_have_text(str(before + 2))


# What a page may do during a playback. `box` is the parent of the element.
CHANGES = {
    "the element is replaced": "box.innerHTML = box.innerHTML",
    "a second element": "box.append(box.firstElementChild.cloneNode(true))",
    "another id": "box.firstElementChild.setAttribute('of', '9f3b')",
    "the source is loaded again": "audio.load(); audio.play()",
    "the player moves": "document.body.append(audio); audio.play()",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_playback_counts_once_if_elements_or_the_player_change(change: str, page: Page, dev: Dev) -> None:
    before = dev.number("plays", "9f3a") + dev.number("plays", "9f3b")
    start_player(page)
    page.evaluate("window.box = document.querySelector('tally-plays').parentElement")
    page.wait_for_function("audio.currentTime > .5")
    page.evaluate(change)  # before the play counts, after 1 s
    page.wait_for_function("audio.currentTime > 1.2")
    page.evaluate(change)
    play_to_the_end(page)
    assert dev.number("plays", "9f3a") + dev.number("plays", "9f3b") == before + 1


def test_a_number_counts_each_time_that_its_source_begins_in_a_playlist(page: Page, dev: Dev) -> None:
    """The player plays film, next and film. The second element shows the album, which counts once for all three."""
    names = [secrets.token_hex(4) for _ in range(3)]
    page.evaluate(
        """([film, next, album]) => { window.first = document.querySelector('tally-plays');
        first.setAttribute('of', film);
        first.insertAdjacentHTML('afterend', `<tally-plays of=${album} for=player after=1></tally-plays>`) }""",
        names,
    )
    start_player(page)
    page.wait_for_function("audio.currentTime > 1.5")
    change = """of => fetch(audio.src).then((answer) => answer.blob()).then((blob) => {
        first.setAttribute('of', of); audio.src = URL.createObjectURL(blob); audio.play() })"""
    for name in (names[1], names[0]):
        page.evaluate(change, name)
        page.wait_for_function("audio.currentTime < 1")
        page.wait_for_function("audio.currentTime > 1.5")
    play_to_the_end(page)
    assert [dev.number("plays", name) for name in names] == [2, 1, 1]  # film, next, album


def test_a_live_number_updates_while_the_page_is_visible_and_one_request_reads_all_numbers(
    page: Page, dev: Dev
) -> None:
    before = dev.number("plays", "9f3a")
    reads: list[str] = []
    page.on("request", lambda request: reads.append(request.url) if "/tallies" in request.url else None)
    dev.play("9f3a", secrets.token_urlsafe(24))
    expect(shown_number(page, "tally-count")).to_have_text(str(before + 1))
    page.evaluate(chromium.SET_AWAY, True)
    page.wait_for_load_state("networkidle")
    reads.clear()
    dev.play("9f3a", secrets.token_urlsafe(24))
    page.wait_for_timeout(2_500)  # longer than the time between two reads
    assert reads == []
    page.evaluate(chromium.SET_AWAY, False)
    expect(shown_number(page, "tally-count")).to_have_text(str(before + 2))
    reads.clear()
    page.reload()
    expect(shown_number(page, "tally-count")).to_have_text(str(before + 2))
    # The first read asks for the numbers of the page: article-1, article-2, 9f3a. The second, which may come later,
    # asks for live numbers.
    assert [url.count("of=") for url in reads][:2] in ([3], [3, 2])
    # An element whose `live` is not a number of seconds delays no other element.
    page.evaluate("document.querySelector('tally-like').setAttribute('live', 'often')")
    page.wait_for_load_state("networkidle")
    dev.play("9f3a", secrets.token_urlsafe(24))
    expect(shown_number(page, "tally-count")).to_have_text(str(before + 3))


def test_a_number_that_cannot_be_read_is_a_dash(page: Page, dev: Dev) -> None:
    page.route("**/tallies?*", lambda route: route.abort())
    page.reload()
    expect(shown_number(page, "tally-count")).to_have_text("–")
    page.unroute("**/tallies?*")
    page.evaluate("document.querySelector('tally-count').setAttribute('of', 'other')")
    expect(shown_number(page, "tally-count")).to_have_text("0")
    page.evaluate("document.querySelector('tally-count').setAttribute('counter', 'stock')")  # strangers may not read it
    expect(page.locator("tally-count").get_by_role("status")).to_contain_text("stock")


def test_a_number_stays_if_a_later_read_of_it_fails_and_other_numbers_update(page: Page, dev: Dev) -> None:
    before, plays = dev.number("hearts", "article-1"), dev.number("plays", "9f3a")
    expect(shown_number(page, "tally-like")).to_have_text(str(before))

    def fail(route: Route) -> None:
        answer = route.fetch()
        values = [value if value["counter"] == "plays" else {"error": NOT_FOUND} for value in answer.json()["tallies"]]
        route.fulfill(response=answer, json={"tallies": values})

    page.route("**/tallies?*", fail)
    dev.play("9f3a", secrets.token_urlsafe(24))
    expect(shown_number(page, "tally-count")).to_have_text(str(plays + 1))
    expect(page.locator("tally-like").first.get_by_role("status")).to_have_text(NOT_FOUND["detail"])
    expect(shown_number(page, "tally-like")).to_have_text(str(before))


def test_a_failed_request_removes_no_number_of_another_request(page: Page) -> None:
    page.route("**/tallies?*lost*", lambda route: route.abort())
    # The page reads these numbers with two requests, because their ids do not fit into one address.
    page.evaluate(
        """for (let n = 0; n < 60; n++) document.body.insertAdjacentHTML("beforeend",
            `<tally-count of="${n ? "many" : "lost"}${"x".repeat(110)}${n}"></tally-count>`)"""
    )
    expect(page.locator("tally-count [part=count]").last).to_have_text("0")
    expect(page.locator("tally-count [part=count]").nth(1)).to_have_text("–")  # `lost`, after the element of the page


def test_the_elements_are_accessible_and_fit_on_narrow_and_wide_screens(page: Page) -> None:
    sign_in(page, "ann")
    page.route("**/mine", lambda route: None)  # no answer comes, so the like waits
    like_button(page).click()
    expect(shown_pending(page, "tally-like")).not_to_be_empty()
    page.add_script_tag(path=AXE)
    assert complaints_by_screen(page) == {}
