"""Tests the JavaScript client in Chromium under faults. Each play counts once.

Two tabs of one user and a browser of another user reload, close and leave pages, and go offline. Requests and answers
get lost, and other answers are 503, 429 or a captive portal's page. With SEED 1 to 5 all 3,000 plays counted once, and
each like ended as its last change. A page that sent each retry with a new key counted 300 plays as 311 to 325.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.e2e import chromium
from tests.e2e.dev import LIKES_FUNCTION, Dev
from tests.e2e.faulty_api import FAULT_SHARES, FaultyApi
from tests.e2e.servers import Site
from tests.patience import wait_for

pytestmark = pytest.mark.long

SEED = int(os.environ.get("SEED", "1"))
PLAYS = int(os.environ.get("PLAYS", "3000"))
LIKES = 150  # the actions of readers without sign-in. Each action changes the like of one article
VIDEOS, POSTS = ("video-a", "video-b", "video-c"), ("post-1", "post-2", "post-3", "post-4")
ARTICLES = ("article-a", "article-b", "article-c")
# Whether the browser stores an anonymous like of the article.
HAS_ANONYMOUS_LIKE = (
    "(article) => Object.keys(localStorage).some((name) => name.startsWith('tally1-own') && name.endsWith(article))"
)
# The page's timers run ten times as fast, so that the test is short.
HASTE = "const wait = setTimeout; window.setTimeout = (run, ms, ...more) => wait(run, ms / 10, ...more);"
CLIENT = """
<script type="module">
import { Tally } from "%(api)s/client/tally.js";
const query = new URLSearchParams(location.search);
window.tally = new Tally({ user: () => query.get("user"), token: () => query.get("token") });
</script>"""


@dataclass
class Visitor:
    """A browser with tabs. `user`, `token`: of the signed-in user; empty: nobody is signed in. `url`: the page's URL.

    `likes`: by post or article, whether the last change put the like.
    """

    user: str
    token: str
    url: str
    context: BrowserContext
    tabs: list[Page] = field(default_factory=list)
    plays_sent: int = 0
    likes: dict[str, bool] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def open(self) -> Page:
        """Opens a tab with the page."""
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tabs.append(page)
        self.load(page)
        return page

    def load(self, page: Page) -> None:
        """Loads the page with the present user. If the tab has the page, reloads it."""
        page.goto(f"{self.url}?user={self.user}&token={self.token}")
        page.wait_for_function("window.tally")

    def play(self, page: Page, video: str, times: int) -> None:
        """Plays a video `times` times in one script."""
        page.evaluate("([video, times]) => { while (times--) tally.increment('plays', video) }", [video, times])
        self.plays_sent += times

    def like(self, page: Page, post: str, *changes: bool) -> None:
        """Puts (True) and deletes (False) the like of a post, in this order."""
        script = (
            "([post, changes]) => { for (const present of changes)"
            " tally.like('hearts', post, present, { anonymous: true }) }"
        )
        page.evaluate(script, [post, list(changes)])
        self.likes[post] = changes[-1]

    def count_waiting(self) -> int:
        """Returns how many changes wait for an answer."""
        return int(self.tabs[0].evaluate("tally.waiting().length"))

    def wait_until_answered(self) -> None:
        """Waits until no change waits for an answer."""
        while left := self.count_waiting():
            wait_for(lambda left=left: self.count_waiting() < left, every_s=0.5)  # type: ignore[misc]


@pytest.fixture
def api(dev: Dev) -> Iterator[FaultyApi]:
    made = FaultyApi(dev, SEED)
    with made.server.running():
        yield made


@pytest.fixture
def new_visitor(browser: Browser, dev: Dev) -> Iterator[Callable[..., Visitor]]:
    """Makes visitors. Fails after a test whose pages had an error."""
    all_visitors: list[Visitor] = []

    def make(site: Site, user: str = "") -> Visitor:
        context = chromium.new_context(browser)
        context.add_init_script(HASTE)
        all_visitors.append(Visitor(user, user and dev.token(user), f"{site.server.origin}/page", context))
        all_visitors[-1].open()
        return all_visitors[-1]

    yield make
    for visitor in all_visitors:
        visitor.context.close()
        assert visitor.errors == []


def act(chance: random.Random, person: Visitor, plays: int) -> None:
    """Makes a visitor do one random thing, with at most `plays` plays."""
    page = chance.choice(person.tabs)
    video, post = chance.choice(VIDEOS), chance.choice(POSTS)
    match chance.choices(
        ["play", "burst", "like", "reload", "close", "leave", "offline"], [30, 20, 20, 7, 5, 5, 3], k=1
    ):
        case ["play"]:
            person.play(page, video, min(plays, chance.choice((1, 1, 2))))
        case ["burst"]:
            person.play(page, video, min(plays, chance.randrange(10, 60)))
        case ["like"]:
            first = not person.likes.get(post, False)  # the changes alternate
            person.like(page, post, *(first ^ bool(turn % 2) for turn in range(chance.choice((1, 1, 2, 3)))))
        case ["reload"]:
            person.play(page, video, min(plays, 3))  # the reload comes before the answers
            person.load(page)
        case ["close"]:
            person.play(page, video, min(plays, 3))
            person.tabs.remove(page)
            page.close()
            person.open()
        case ["leave"]:
            person.play(page, video, min(plays, 3))
            page.goto("about:blank")
            person.load(page)
        case ["offline"]:
            person.context.set_offline(True)
            person.play(page, video, min(plays, 10))
            person.like(page, post, chance.random() < 0.5)
            person.context.set_offline(False)


def test_under_faults_each_play_counts_once_and_each_like_ends_as_its_last_change(
    api: FaultyApi, new_visitor: Callable[..., Visitor], dev: Dev
) -> None:
    chance, site = random.Random(SEED), Site(api.server.origin)
    site.heads["/page"] = CLIENT % {"api": api.server.origin}
    before = {video: dev.plays(video) for video in VIDEOS}
    with site.server.running():
        ann, bob = new_visitor(site, f"ann-{SEED}"), new_visitor(site, f"bob-{SEED}")
        ann.open()
        while (plays_left := PLAYS - ann.plays_sent - bob.plays_sent) > 0:
            act(chance, chance.choice((ann, ann, bob)), plays_left)
        for person in (ann, bob):
            person.wait_until_answered()
    counted = sum(dev.plays(video) - before[video] for video in VIDEOS)
    print(f"seed {SEED}: {PLAYS} plays sent, {counted} counted; requests: {dict(api.fault_counts)}")
    assert counted == PLAYS
    for person in (ann, bob):
        likes = {post: is_liked(dev, post, person.token) for post in person.likes}
        assert likes == person.likes, person.user
    for post in POSTS:
        number = dev.number("hearts", post)
        assert number == len(dev.hearts(post))
    assert set(FAULT_SHARES) <= set(api.fault_counts), "every fault happened"


def is_liked(dev: Dev, post: str, token: str) -> Any:
    """Returns whether the user likes the post."""
    return dev.call("GET", f"/counters/hearts/{post}/mine", token=token).body["present"]


def act_without_sign_in(chance: random.Random, reader: Visitor) -> None:
    """Makes a reader, who is not signed in, do one random thing."""
    page, article = chance.choice(reader.tabs), chance.choice(ARTICLES)
    changes = [chance.random() < 0.6 for _ in range(chance.choice((1, 1, 2, 3)))]
    [action] = chance.choices(["like", "offline", "reload", "close"], [70, 5, 15, 10], k=1)
    reader.context.set_offline(action == "offline")
    reader.like(page, article, *changes)
    reader.context.set_offline(False)
    if action == "reload":  # before the answers come
        reader.load(page)
    if action == "close":
        reader.tabs.remove(page)
        page.close()
        reader.open()


def likers_of(dev: Dev, article: str) -> list[str | None]:
    """Returns the user of each like; None: an anonymous like. Asserts that the article's number counts the likes."""
    listed = dev.hearts(article)
    assert dev.number("hearts", article) == len(listed)
    return listed


def test_under_faults_each_anonymous_like_ends_as_its_last_change_and_a_sign_in_makes_it_a_users_like(
    api: FaultyApi, new_visitor: Callable[..., Visitor], dev: Dev
) -> None:
    """Workers are killed, too. One of two tabs signs in, while the other tab changes anonymous likes."""
    chance, site, killed = random.Random(SEED), Site(api.server.origin), 0
    site.heads["/page"] = CLIENT % {"api": api.server.origin}
    with site.server.running():
        readers = [new_visitor(site) for _ in range(3)]
        for reader in readers:
            reader.open()
        for step in range(LIKES):
            act_without_sign_in(chance, chance.choice(readers))
            for pid in dev.workers(LIKES_FUNCTION) if step % 20 == 10 else ():
                os.kill(pid, signal.SIGKILL)
                killed += 1
        for reader in readers:
            reader.wait_until_answered()
            hearts = [f"hearts:{article}" for article in reader.likes]
            likes = reader.tabs[0].evaluate("(hearts) => tally.mine(hearts)", hearts)
            assert {like["id"]: like["present"] for like in likes} == reader.likes
        for article in ARTICLES:
            assert likers_of(dev, article) == [None] * sum(reader.likes.get(article, False) for reader in readers)
        ann, *others = readers
        ann.user = f"ann-{SEED}"
        ann.token = dev.token(ann.user)
        signed_in_tab, other_tab = ann.tabs
        ann.load(signed_in_tab)
        for _ in range(20):
            ann.like(other_tab, chance.choice(ARTICLES), chance.random() < 0.6)
        ann.load(other_tab)  # signs in, too
        for article in ARTICLES:
            wait_for(lambda article=article: not signed_in_tab.evaluate(HAS_ANONYMOUS_LIKE, article), every_s=0.5)  # type: ignore[misc]
        ann.wait_until_answered()
    faults = sum(count for fault, count in api.fault_counts.items() if fault != "none")
    print(f"seed {SEED}: {killed} workers killed; requests: {dict(api.fault_counts)}")
    assert faults > 10
    assert killed
    for article in ARTICLES:
        likers = likers_of(dev, article)
        assert likers.count(None) == sum(reader.likes.get(article, False) for reader in others)
        # If ann's last change deleted her anonymous like, the sign-in may have made a user's like of it before.
        assert ann.user in likers or not ann.likes.get(article)
