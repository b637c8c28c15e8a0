"""Who may read which number, and for how long caches may keep it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import operations
from counters import COUNTERS
from functions import increments
from tally.api.entry import Entry
from tally.counter import Counter, declared
from tally.dynamo.client import Store
from tally.operation import by_route
from tests import events, make_events
from tests.contexts import Context

Invoke = Callable[..., dict[str, Any]]
VIEWS = Counter("views", prefix="PAGE", sort_key="VIEWS", attribute="views", read="anyone", max_age_s=5)
SEATS = Counter("seats", prefix="SHOW", sort_key="SEATS", attribute="seats", floor=0, read="anyone")
DECLARED = declared([*COUNTERS.values(), VIEWS, SEATS])
ROUTES = by_route(operations.OPERATIONS, DECLARED)
TOKEN = {"authorization": "Bearer anything"}


@pytest.fixture
def ask(store: Store) -> Invoke:
    """Ask for the number 7c20 of a public counter, as anyone does, or change it."""
    entry = Entry(increments.handler.functions, store, DECLARED)

    def call(counter: str, headers: dict[str, str] | None = None, **change: Any) -> dict[str, Any]:
        if change:
            event = {"operation": "increment", "counter": counter, "id": "7c20", "caller": "checkout", **change}
            return entry(event, Context())
        event = make_events.http(ROUTES[f"GET /counters/{counter}/{{id}}"])
        event["headers"] |= headers or {}
        return entry(event, Context())

    return call


def test_anyone_reads_a_counter_that_says_so_and_a_cache_keeps_it_as_long_as_it_says(ask: Invoke) -> None:
    ask("views", amount=3, idempotency_key="a")
    answer = ask("views")
    assert answer["statusCode"] == 200
    assert events.body_of(answer) == {"counter": "views", "id": "7c20", "value": 3}
    headers = answer["headers"]
    assert (headers["content-type"], headers["cache-control"]) == ("application/json", "public, max-age=5")
    assert "authorization" in headers["vary"], "nobody who is signed in gets what a cache keeps for anyone"


def test_who_has_the_number_is_told_so_until_it_moves(ask: Invoke) -> None:
    tag = ask("views")["headers"]["etag"]
    same = ask("views", {"if-none-match": tag})
    assert (same["statusCode"], same["body"], same["headers"]["etag"]) == (304, "", tag)
    assert same["headers"]["cache-control"] == "public, max-age=5"
    ask("views", amount=1, idempotency_key="a")
    assert ask("views", {"if-none-match": tag})["statusCode"] == 200


def test_the_etag_of_a_versioned_counter_stays_its_version_for_anyone_too(ask: Invoke) -> None:
    ask("seats", amount=2, idempotency_key="a")
    answer = ask("seats")
    assert answer["headers"]["etag"] == '"1"'
    assert answer["headers"]["cache-control"] == "public, max-age=1"
    assert ask("seats", {"if-none-match": '"1"'})["statusCode"] == 304
    ask("seats", amount=-2, idempotency_key="b")
    moved = ask("seats", {"if-none-match": '"1"'})
    assert (moved["statusCode"], moved["headers"]["etag"]) == (200, '"2"')


def test_nothing_keeps_what_a_caller_with_a_token_reads(ask: Invoke, invoke: Invoke) -> None:
    assert ask("views", TOKEN)["headers"]["cache-control"] == "no-store"
    plays = invoke("plays", events.http("plays/http-get-plays", headers=TOKEN))
    assert plays["headers"]["cache-control"] == "no-store"
    own = invoke("increments", events.sample("increments/http-get-counter"))
    assert (own["headers"]["cache-control"], own["headers"]["etag"]) == ("no-store", '"0"')


def test_a_counter_that_does_not_say_so_has_no_route_without_a_token() -> None:
    public = {route.fixed["counter"] for route in ROUTES.values() if route.fixed}
    assert public == {"plays", "views", "seats"}
    assert {name for name, counter in COUNTERS.items() if counter.public} == {"plays", "likes", "visits", "bot_visits"}


@pytest.mark.parametrize("sample", ["plays/http-get-plays", "posts/http-get-post", "visits/http-get-visits"])
def test_plays_posts_and_visits_are_kept_for_a_second_and_revalidated(sample: str, invoke: Invoke) -> None:
    invoke("posts", {"operation": "put_post", "post_id": "a91f", "body": "first", "caller": "alice"})
    function = sample.split("/")[0]
    answer = invoke(function, events.sample(sample))
    assert answer["headers"]["cache-control"] == "public, max-age=1"
    again = invoke(function, events.http(sample, headers={"if-none-match": answer["headers"]["etag"]}))
    assert (again["statusCode"], again["body"]) == (304, "")


def test_a_refusal_is_kept_by_nobody(invoke: Invoke) -> None:
    answer = invoke("posts", events.sample("posts/http-get-post"))
    assert (answer["statusCode"], answer["headers"]["cache-control"]) == (404, "no-store")
    assert "etag" not in answer["headers"], json.dumps(answer)
