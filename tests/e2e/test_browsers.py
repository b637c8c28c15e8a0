"""Tests the JavaScript client and its elements in Firefox and in WebKitGTK, without a driver.

`make test-all` runs these tests in each of the two browsers that the machine has.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import plain
from tests.e2e.dev import Dev
from tests.e2e.faulty_api import FaultyApi
from tests.e2e.plain import Browser, Tab
from tests.patience import wait_for

pytestmark = pytest.mark.long

# `void`: the script does not wait for the answers. PAGE (plain.py) explains `haste`, `endless` and `asking`.
PLAY = "void tally.increment('plays', arg)"
BURST = "void Array.from({ length: 10 }, () => tally.increment('plays', arg))"


@pytest.fixture(scope="module", params=plain.COMMANDS)
def browser(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with plain.running(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def api(dev: Dev) -> Iterator[FaultyApi]:
    """The API of `make dev`. Requests meet faults after a test has set `failing`."""
    made = FaultyApi(dev, seed=1)
    made.failing = False
    with made.server.running():
        yield made


@pytest.fixture
def video() -> str:
    return f"video-{secrets.token_hex(4)}"


def no_change_waits(*tabs: Tab) -> bool:
    return not any(tab.count_waiting() for tab in tabs)


def play(tab: Tab, video: str) -> None:
    """Plays a video, and waits until no change of the tab waits."""
    tab.run(PLAY, video)
    wait_for(lambda: no_change_waits(tab))


def test_plays_are_sent_from_each_page_and_from_a_page_of_the_back_forward_cache(
    browser: Browser, api: FaultyApi, dev: Dev, video: str
) -> None:
    tab = browser.open_tab(api=api.server.origin)
    play(tab, video)
    tab.go(api=api.server.origin)
    play(tab, video)
    tab.back()
    assert tab.run("kept") == [False, True]  # the second time, the page came from the cache
    play(tab, video)
    assert dev.plays(video) == 3
    tab.close()


def test_a_page_that_is_left_in_the_same_script_as_its_play_delays_no_other_page(
    browser: Browser, api: FaultyApi, dev: Dev, video: str
) -> None:
    tab = browser.open_tab(api=api.server.origin)
    leave = "tally.increment('plays', arg[0]), location.assign(arg[1])"
    tab.run(plain.NO_SCRIPT, [video, tab.url(api=api.server.origin)], last=leave)
    tab.wait_until_loaded()
    play(tab, video)
    tab.back()
    play(tab, video)
    assert dev.plays(video) == 3  # the play of the page that was left, too
    tab.close()


def test_a_page_that_is_left_before_its_answers_delays_no_other_tab(
    browser: Browser, api: FaultyApi, dev: Dev, video: str
) -> None:
    left, other = browser.open_tab(api=api.server.origin, endless="1"), browser.open_tab(api=api.server.origin)
    gate = api.gate = threading.Event()  # the answer to the play of `left` waits for the gate
    left.run(PLAY, video)
    wait_for(lambda: dev.plays(video) == 1)
    api.gate = None  # the other tab may send the play of `left`, too
    left.go()  # to a page without the client
    other.run(PLAY, video)
    wait_for(lambda: dev.plays(video) == 2)
    left.back()
    left.run(PLAY, video)
    wait_for(lambda: dev.plays(video) == 3)
    gate.set()
    wait_for(lambda: no_change_waits(other))
    assert dev.plays(video) == 3
    assert left.run("errors") + other.run("errors") == []
    for tab in (left, other):
        tab.close()


def test_a_dialog_that_asks_for_the_password_delays_no_play(
    browser: Browser, api: FaultyApi, dev: Dev, video: str
) -> None:
    ann = f"ann-{secrets.token_hex(4)}"
    asking, other = (
        browser.open_tab(api=api.server.origin, user=ann, asking="1"),
        browser.open_tab(api=api.server.origin),
    )
    asking.run("void tally.like('hearts', arg)", video)
    for plays, tab in enumerate((asking, other), 1):
        tab.run(PLAY, video)
        wait_for(lambda plays=plays: dev.plays(video) == plays)  # type: ignore[misc]
    assert dev.number("hearts", video) == 0
    for tab in (asking, other):
        tab.run("tally.forget(arg)", ann)  # deletes the like that waits
        tab.close()


def test_through_faults_reloads_and_closed_tabs_each_play_counts_once(
    browser: Browser, api: FaultyApi, dev: Dev, video: str
) -> None:
    api.failing = True
    open_tab, reloaded_tab = (browser.open_tab(api=api.server.origin, haste="1") for _ in range(2))
    for _ in range(4):
        closed_tab = browser.open_tab(api=api.server.origin, haste="1")
        for tab in (open_tab, reloaded_tab, closed_tab):
            tab.run(BURST, video)
        reloaded_tab.reload()
        closed_tab.close()
    wait_for(lambda: no_change_waits(open_tab, reloaded_tab))
    assert dev.plays(video) == 4 * 3 * 10  # rounds, tabs, and the plays of a burst
    assert open_tab.run("errors") + reloaded_tab.run("errors") == []
    for tab in (open_tab, reloaded_tab):
        tab.close()


def test_the_last_like_of_two_tabs_wins_and_each_tab_gets_its_outcome(
    browser: Browser, api: FaultyApi, dev: Dev, video: str
) -> None:
    api.failing = True
    user = f"ann-{secrets.token_hex(4)}"
    token = dev.token(user)
    one, other = (browser.open_tab(api=api.server.origin, user=user, token=token, haste="1") for _ in range(2))
    for turn in range(7):  # the last turn, 6, likes
        (one, other)[turn % 2].run("void tally.like('hearts', arg[0], arg[1])", [video, turn % 2 == 0])
    wait_for(lambda: no_change_waits(one, other))
    assert dev.number("hearts", video) == 1
    assert dev.call("GET", f"/counters/hearts/{video}/mine", token=token).body["present"]
    for tab in (one, other):
        assert tab.run("until(() => heard.some(([id, state]) => id === arg && state === 'counted'))", video)
        assert tab.run("errors") == []
        tab.close()


def test_clicks_while_the_server_is_down_count_when_the_server_is_up(
    browser: Browser, api: FaultyApi, dev: Dev, video: str
) -> None:
    user = f"ann-{secrets.token_hex(4)}"
    tab = browser.open_tab(api=api.server.origin, user=user, token=dev.token(user), haste="1")
    api.failing, api.faults = True, {"request lost": 1.0}
    tab.run(BURST, video)
    tab.run(plain.NO_SCRIPT, video, last="tally.like('hearts', arg), location.reload()")
    tab.wait_until_loaded()
    assert tab.count_waiting() == 11  # ten plays and a like
    api.failing = False
    wait_for(lambda: no_change_waits(tab))
    assert (dev.plays(video), dev.number("hearts", video)) == (10, 1)
    tab.close()


SANDBOX = """new Promise((done) => {
  onmessage = ({ data }) => done(data);
  const frame = document.createElement("iframe");
  frame.sandbox = "allow-scripts";
  frame.srcdoc = `<script type=module>
    let storage;
    try { storage = !!localStorage } catch { storage = false }
    const { Tally } = await import("${arg[0]}/client/tally.js");
    const tally = new Tally();
    const outcomes = await Promise.all(Array.from({ length: 10 }, () => tally.increment("plays", "${arg[1]}")));
    parent.postMessage({ storage, states: outcomes.map(({ state }) => state), waiting: tally.waiting().length }, "*");
  <\\/script>`;
  document.body.append(frame);
})"""


def test_a_sandboxed_frame_without_storage_and_locks_counts(
    browser: Browser, api: FaultyApi, dev: Dev, video: str
) -> None:
    api.failing = True
    tab = browser.open_tab()
    message = tab.run(SANDBOX, [api.server.origin, video])
    assert message == {"storage": False, "states": ["counted"] * 10, "waiting": 0}
    assert dev.plays(video) == 10
    tab.close()


ELEMENTS = """(async () => {
  const { define } = await import(`${arg.api}/client/elements.js`);
  window.refresh = define(tally);
  document.body.insertAdjacentHTML("beforeend", `<audio id=player muted></audio>
    <div id=box><tally-plays of="${arg.video}" for=player after=1 live=1></tally-plays></div>
    <tally-like counter=hearts of="${arg.video}"></tally-like>`);
  // Three seconds of silence in a WAV file, with one byte for each sample.
  const rate = 8000, bytes = 3 * rate, wave = new DataView(new ArrayBuffer(44 + bytes));
  const text = (at, word) => [...word].forEach((letter, index) => wave.setUint8(at + index, letter.charCodeAt(0)));
  text(0, "RIFF"), wave.setUint32(4, 36 + bytes, true), text(8, "WAVEfmt "), wave.setUint32(16, 16, true);
  wave.setUint16(20, 1, true), wave.setUint16(22, 1, true), wave.setUint32(24, rate, true);
  wave.setUint32(28, rate, true), wave.setUint16(32, 1, true), wave.setUint16(34, 8, true);
  text(36, "data"), wave.setUint32(40, bytes, true);
  player.src = URL.createObjectURL(new Blob([wave], { type: "audio/wav" }));
  window.like = document.querySelector("tally-like");
  window.shows = (element, text) => element.shadowRoot.querySelector("[part=count]").textContent === text;
})()"""


def test_the_elements_count_a_playback_and_a_like_once(browser: Browser, api: FaultyApi, dev: Dev, video: str) -> None:
    user = f"ann-{secrets.token_hex(4)}"
    tab = browser.open_tab(api=api.server.origin, user=user, token=dev.token(user))
    tab.run(ELEMENTS, {"api": api.server.origin, "video": video})
    tab.run("until(() => shows(like, '0') && shows(box.firstElementChild, '0'))")
    tab.run("player.play()")
    tab.run("until(() => player.currentTime > .5)")
    tab.run("void (box.innerHTML = box.innerHTML)")  # replaces the element during the playback
    tab.run("until(() => shows(box.firstElementChild, '1'))")
    tab.run("void (box.innerHTML = box.innerHTML)")
    tab.run("until(() => player.ended)")
    tab.run("void like.button.click()")
    tab.run("until(() => shows(like, '1') && like.button.getAttribute('aria-pressed') === 'true')")
    wait_for(lambda: no_change_waits(tab))
    assert (dev.plays(video), dev.number("hearts", video)) == (1, 1)
    tab.run("player.play()")
    tab.run("until(() => shows(box.firstElementChild, '2'))")
    assert tab.run("errors") == []
    tab.close()


BUTTON = """(async () => {
  const { define } = await import(`${arg[0]}/client/elements.js`);
  define(tally);
  const button = `<tally-like anonymous counter=hearts of="${arg[1]}" live=1></tally-like>`;
  document.body.insertAdjacentHTML("beforeend", button);
  window.like = document.querySelector("tally-like");
  window.part = (name) => like.shadowRoot.querySelector(`[part=${name}]`);
  window.shows = (count, pressed) => part("count").textContent === count && like.button.ariaPressed === pressed;
})()"""


def test_a_button_without_accounts_counts_each_browser_until_a_user_takes_over_the_like(
    browser: Browser, api: FaultyApi, dev: Dev, video: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    query = {"api": api.server.origin, "haste": "1"}

    def shows(tab: Tab, count: int, *, liked: bool) -> None:
        tab.run("until(() => shows(...arg))", [str(count), str(liked).lower()])

    def click(tab: Tab) -> None:
        tab.run("void like.button.click()")
        wait_for(lambda: no_change_waits(tab))

    tab = browser.open_tab(**query)
    with plain.running(request.node.callspec.params["browser"], tmp_path) as second:
        other = second.open_tab(**query)
        for one in (tab, other):
            one.run(BUTTON, [api.server.origin, video])
            shows(one, 0, liked=False)
        api.failing = True
        click(tab)
        shows(tab, 1, liked=True)
        tab.reload()
        tab.run(BUTTON, [api.server.origin, video])
        shows(tab, 1, liked=True)
        shows(other, 1, liked=False)
        click(other)
        for one in (tab, other):
            shows(one, 2, liked=True)
        click(tab)
        shows(tab, 1, liked=False)
        click(tab)
        shows(tab, 2, liked=True)
        user = f"ann-{secrets.token_hex(4)}"
        tab.go(**query, user=user, token=dev.token(user))
        tab.run(BUTTON, [api.server.origin, video])
        # Waits until the browser stores nothing about the video.
        tab.run("until(() => !Object.keys(localStorage).some((name) => name.endsWith(arg)))", video)
        shows(tab, 2, liked=True)
        assert dev.hearts(video) == [None, user]  # None: the like of the other browser
        assert tab.run("errors") + other.run("errors") == []
    tab.close()
