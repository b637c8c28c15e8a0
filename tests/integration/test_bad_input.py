"""Whatever a caller gets wrong has an answer from the contract's list, and writes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tally.operation import BODY_BYTES_MAX, Operation

import operations
from tally.dynamo.client import Store
from tally.errors import PROBLEM_TYPE_PREFIX
from tests import events
from tests.contexts import Context

Invoke = Callable[..., dict[str, Any]]
JSON = {"content-type": "application/json"}


@pytest.fixture
def untouched(store: Store) -> Iterator[None]:
    """After the test both tables are as empty as before."""
    yield
    for table in (store.settings.counts_table, store.settings.receipts_table):
        assert store.client.scan(TableName=table)["Items"] == []


def problem(answer: dict[str, Any], status: int, slug: str) -> dict[str, Any]:
    """The problem document of an HTTP answer, checked."""
    assert answer["statusCode"] == status, answer["body"]
    assert answer["headers"]["content-type"] == "application/problem+json"
    document = events.body_of(answer)
    assert document["type"] == PROBLEM_TYPE_PREFIX + slug
    assert document["status"] == status
    assert document["detail"]
    return document  # type: ignore[no-any-return]


CHANGES: list[dict[str, Any]] = [{"counter": "plays", "id": "9f3a"}]
HTTP_REFUSALS = [
    ("plays/http-play", {"id": "a#b"}, 400, "invalid-input", "id"),
    ("plays/http-play", {"id": "a" * 129}, 400, "invalid-input", "id"),
    ("plays/http-play", {"id": ".."}, 400, "invalid-input", "id"),
    ("plays/http-play", {"id": ""}, 400, "invalid-input", "id"),
    ("plays/http-play", {"key": ""}, 400, "invalid-input", "Idempotency-Key"),
    ("plays/http-play", {"key": "short"}, 400, "invalid-input", "Idempotency-Key"),
    ("plays/http-play", {"key": "k" * 256}, 400, "invalid-input", "Idempotency-Key"),
    ("plays/http-play", {"key": "a" * 30 + "," + "b" * 30}, 400, "invalid-input", "Idempotency-Key"),
    ("plays/http-play", {"body": {"amount": 5}, "headers": JSON}, 400, "invalid-input", "amount"),
    ("plays/http-play", {"body": {"key": "k" * 40}, "headers": JSON}, 400, "invalid-input", "key"),
    ("plays/http-play", {"body": {"": events.KEY}, "headers": JSON}, 400, "invalid-input", ""),
    ("plays/http-play-beacon", {"body": {}}, 400, "invalid-input", "Idempotency-Key"),
    ("plays/http-play-beacon", {"body": {"key": "short"}}, 400, "invalid-input", "Idempotency-Key"),
    ("plays/http-play-beacon", {"body": {"key": 7}}, 400, "invalid-input", "Idempotency-Key"),
    ("plays/http-play-beacon", {"headers": {"content-type": "image/png"}}, 415, "unsupported-media-type", None),
    ("plays/http-play", {"query": "fast=1"}, 400, "invalid-input", "fast"),
    ("plays/http-get-plays", {"query": "x=%ff"}, 400, "invalid-input", None),
    ("plays/http-get-plays", {"query": "&".join(f"a{n}=1" for n in range(20))}, 400, "invalid-input", None),
    ("posts/http-put-post", {"body": {}}, 400, "invalid-input", "body"),
    ("posts/http-put-post", {"body": {"body": ""}}, 400, "invalid-input", "body"),
    ("posts/http-put-post", {"body": {"body": 7}}, 400, "invalid-input", "body"),
    ("posts/http-put-post", {"body": {"body": "x", "authorId": "bob"}}, 400, "invalid-input", "authorId"),
    ("posts/http-put-post", {"raw": ""}, 400, "invalid-input", "body"),
    ("posts/http-put-post", {"raw": "{"}, 400, "invalid-input", None),
    ("posts/http-put-post", {"raw": "[]"}, 400, "invalid-input", None),
    ("posts/http-put-post", {"raw": "null"}, 400, "invalid-input", None),
    ("posts/http-put-post", {"raw": '{"body": NaN}'}, 400, "invalid-input", None),
    ("posts/http-put-post", {"raw": '{"body": "a", "body": "b"}'}, 400, "invalid-input", None),
    ("posts/http-put-post", {"raw": '{"body": "\\ud800"}'}, 400, "invalid-input", "body"),
    ("posts/http-put-post", {"raw": b'{"body": "\xff"}'}, 400, "invalid-input", None),
    ("posts/http-put-post", {"raw": "[" * 10_000}, 400, "invalid-input", None),
    ("posts/http-put-post", {"raw": '{"body": ' + "9" * 6000 + "}"}, 400, "invalid-input", None),
    ("posts/http-put-post", {"body": {"body": "x" * 10_241}}, 400, "invalid-input", "body"),
    ("posts/http-put-post", {"raw": "x" * (BODY_BYTES_MAX + 1)}, 413, "payload-too-large", None),
    ("posts/http-put-post", {"raw": b"x" * (BODY_BYTES_MAX + 1)}, 413, "payload-too-large", None),
    ("posts/http-put-post", {"headers": {"content-type": "text/plain"}}, 415, "unsupported-media-type", None),
    ("posts/http-put-post", {"headers": {"content-type": ""}}, 415, "unsupported-media-type", None),
    ("posts/http-put-post", {"headers": {"content-type": "application/x-www-form-urlencoded"}}, 415,
     "unsupported-media-type", None),
    ("posts/http-put-post", {"body": {"body": "x"}, "headers": {**JSON, "content-encoding": "gzip"}}, 415,
     "unsupported-media-type", None),
    ("posts/http-put-post", {"sub": "ü" * 200}, 400, "invalid-input", "caller"),
    ("posts/http-put-post", {"sub": ""}, 401, "unauthenticated", None),
    ("posts/http-get-post", {}, 404, "not-found", None),
    ("posts/http-get-post", {"id": "../x"}, 400, "invalid-input", "id"),
    ("likes/http-like", {}, 404, "not-found", None),
    ("likes/http-like", {"key": "a b"}, 400, "invalid-input", "Idempotency-Key"),
    ("likes/http-like-with-key", {}, 404, "not-found", None),
    ("likes/http-unlike", {}, 404, "not-found", None),
    ("likes/http-unlike", {"key": "fresh-key"}, 404, "not-found", None),
    ("likes/http-get-like", {}, 404, "not-found", None),
    ("likes/http-list-likes", {}, 404, "not-found", None),
    ("likes/http-list-likes", {"query": "limit=0"}, 400, "invalid-input", "limit"),
    ("likes/http-list-likes", {"query": "limit=ten"}, 400, "invalid-input", "limit"),
    ("likes/http-list-likes", {"query": "limit=5&limit=6"}, 400, "invalid-input", "limit"),
    ("likes/http-list-likes", {"query": "cursor=%23"}, 400, "invalid-input", "cursor"),
    ("likes/http-list-likes", {"query": "cursor="}, 400, "invalid-input", "cursor"),
    ("likes/http-my-likes", {"query": ""}, 400, "invalid-input", "post"),
    ("likes/http-my-likes", {"query": "post=a91f&post=a%23b"}, 400, "invalid-input", "post"),
    ("likes/http-my-likes", {"query": "&".join(["post=a91f"] * 101)}, 400, "invalid-input", "post"),
    ("likes/http-my-likes", {"query": "&".join(["post=a91f"] * 120)}, 400, "invalid-input", None),
    ("likes/http-my-likes", {"query": "post=a91f&limit=1"}, 400, "invalid-input", "limit"),
    ("likes/http-put-child", {"path": {"counter": "usage"}}, 400, "invalid-input", "counter"),
    ("likes/http-put-child", {"path": {"counter": "visits"}}, 404, "not-found", "counter"),
    ("likes/http-put-child", {"id": "a#b"}, 400, "invalid-input", "id"),
    ("likes/http-put-child", {"path": {"child": ".."}}, 400, "invalid-input", "child"),
    ("likes/http-put-child", {"path": {"child": ""}}, 400, "invalid-input", "child"),
    ("likes/http-put-child", {"path": {"child": "ü" * 86}}, 400, "invalid-input", "child"),
    ("likes/http-delete-child", {"key": "a b"}, 400, "invalid-input", "Idempotency-Key"),
    ("likes/http-get-child", {"path": {"counter": "plays"}}, 400, "invalid-input", "counter"),
    ("likes/http-list-children", {"path": {"counter": "stock"}}, 400, "invalid-input", "counter"),
    ("likes/http-list-children", {"query": "limit=0"}, 400, "invalid-input", "limit"),
    ("increments/http-increment", {"path": {"counter": "members"}}, 400, "invalid-input", "counter"),
    ("increments/http-set-counter", {"path": {"counter": "members"}}, 400, "invalid-input", "counter"),
    ("holds/http-hold", {"path": {"counter": "members"}}, 400, "invalid-input", "counter"),
    ("increments/http-change", {"body": {"changes": []}}, 400, "invalid-input", "changes"),
    ("increments/http-change", {"body": {"changes": [1]}}, 400, "invalid-input", "changes"),
    ("increments/http-change", {"body": {"changes": CHANGES, "visible": "later"}}, 400, "invalid-input", "visible"),
    ("increments/http-change", {"body": {"changes": [{"counter": ["plays"]}]}}, 400, "invalid-input",
     "changes[0].counter"),
    ("increments/http-change", {"body": {"changes": CHANGES * 1001}}, 413, "payload-too-large", "changes"),
    ("increments/http-change", {"body": {"changes": [{**CHANGES[0], "id": str(n)} for n in range(91)]}}, 413,
     "payload-too-large", "changes"),
    ("increments/http-change", {"raw": "x" * (256 * 1024 + 1)}, 413, "payload-too-large", None),
    ("visits/http-visit", {"body": {"url": "https://example.com/"}}, 400, "invalid-input", "key"),
    ("visits/http-visit", {"body": {"key": events.KEY}}, 400, "invalid-input", "url"),
    ("visits/http-visit", {"body": {"url": "example.com", "key": events.KEY}}, 400, "invalid-input", "url"),
    ("visits/http-visit", {"body": {"url": ["https://example.com"], "key": events.KEY}}, 400, "invalid-input", "url"),
    ("visits/http-visit", {"body": {"url": "https://example.com/", "key": "short"}}, 400, "invalid-input", "key"),
    ("visits/http-visit-beacon", {"headers": {"content-type": "image/png"}}, 415, "unsupported-media-type", None),
    ("visits/http-get-visits", {"query": ""}, 400, "invalid-input", "url"),
    ("visits/http-get-visits", {"query": "url=nonsense"}, 400, "invalid-input", "url"),
    ("visits/http-get-visits", {"query": "url=http://a/&url=http://b/"}, 400, "invalid-input", "url"),
]  # fmt: skip


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(("name", "change", "status", "slug", "field"), HTTP_REFUSALS)
def test_bad_http_input_is_refused_and_writes_nothing(
    name: str, change: dict[str, Any], status: int, slug: str, field: str | None, invoke: Invoke
) -> None:
    document = problem(invoke(name.split("/")[0], events.http(name, **change)), status, slug)
    assert document.get("field") == field


@pytest.mark.usefixtures("untouched")
def test_a_play_without_a_key_is_refused_and_says_which_header(invoke: Invoke) -> None:
    event = events.sample("plays/http-play")
    del event["headers"]["idempotency-key"]
    assert "Idempotency-Key" in problem(invoke("plays", event), 400, "invalid-input")["detail"]


@pytest.mark.usefixtures("untouched")
def test_a_body_that_is_not_the_base64_it_claims_to_be_is_refused(invoke: Invoke) -> None:
    event = events.http("visits/http-visit-beacon")
    event["body"] = "!!!"
    problem(invoke("visits", event), 400, "invalid-input")


@pytest.mark.usefixtures("untouched")
def test_a_route_that_the_function_does_not_have_is_404(invoke: Invoke) -> None:
    problem(invoke("plays", {**events.sample("plays/http-play"), "routeKey": "GET /nothing"}), 404, "not-found")


@pytest.mark.usefixtures("untouched")
def test_a_signed_in_route_without_claims_is_401_even_if_no_authorizer_stands_before_it(invoke: Invoke) -> None:
    event = events.sample("likes/http-like")
    del event["requestContext"]["authorizer"]
    problem(invoke("likes", event), 401, "unauthenticated")


DIRECT_REFUSALS = [
    ("plays", {"operation": "nothing"}, 400, "operation"),
    ("plays", {"operation": None}, 400, "operation"),
    ("plays", {"operation": ["play"]}, 400, "operation"),
    ("plays", {}, 400, "operation"),
    ("plays", [], 400, None),
    ("plays", "play", 400, None),
    ("plays", None, 400, None),
    ("plays", {"operation": "like", "post_id": "a91f", "caller": "a"}, 400, "operation"),
    ("plays", {"operation": "play", "video_id": "9f3a"}, 400, "Idempotency-Key"),
    ("plays", {"operation": "play", "video_id": 9, "idempotency_key": events.KEY}, 400, "id"),
    ("plays", {"operation": "play", "video_id": "9f3a", "idempotency_key": events.KEY, "amount": 2}, 400, "amount"),
    ("plays", {"operation": "play", "video_id": "9f3a", "idempotency_key": "short"}, 400, "Idempotency-Key"),
    ("plays", {"operation": "play", "video_id": "9f3a", "idempotency_key": events.KEY, "caller": ""}, 400, "caller"),
    ("plays", {"operation": "play", "video_id": "9f3a", "idempotency_key": events.KEY, "caller": 7}, 400, "caller"),
    ("plays", {"batch": []}, 400, "batch"),
    ("plays", {"batch": "play"}, 400, "batch"),
    ("plays", {"batch": [{}], "operation": "play"}, 400, "batch"),
    ("plays", {"batch": [{}] * 101}, 413, "batch"),
    ("plays", {"batch": [{}], "on_failure": "ignore"}, 400, "on_failure"),
    ("plays", {"batch": [{}], "on_failure": None}, 400, "on_failure"),
    ("plays", {"batch": [{}], "on_failure": ["raise"]}, 400, "on_failure"),
    ("plays", {"operation": "play", "on_failure": "raise"}, 400, "on_failure"),
    ("likes", {"operation": "like", "post_id": "a91f"}, 400, "caller"),
    ("likes", {"operation": "like", "post_id": "a91f", "caller": "alice"}, 404, None),
    ("likes", {"operation": "list_likes", "post_id": "a91f", "limit": True}, 400, "limit"),
]  # fmt: skip


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(("function", "event", "status", "field"), DIRECT_REFUSALS)
def test_bad_direct_input_is_refused_and_writes_nothing(
    function: str, event: object, status: int, field: str | None, invoke: Invoke
) -> None:
    answer = invoke(function, event)
    assert (answer["status"], answer["body"].get("field")) == (status, field), answer


def test_one_bad_entry_of_a_batch_does_not_fail_the_others(invoke: Invoke) -> None:
    play = {"operation": "play", "video_id": "9f3a", "idempotency_key": events.KEY}
    results = invoke("plays", {"batch": [play, {"operation": "play"}, None, {"batch": [play]}, play]})["results"]
    assert [result["status"] for result in results] == [200, 400, 400, 400, 200]
    assert results[4]["replayed"]


@pytest.mark.usefixtures("untouched")
def test_without_time_left_nothing_is_done_and_every_entry_is_told(invoke: Invoke) -> None:
    play = {"operation": "play", "video_id": "9f3a", "idempotency_key": events.KEY}
    results = invoke("plays", {"batch": [play, play]}, Context(remaining_ms=100))["results"]
    assert [result["status"] for result in results] == [503, 503]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
FIELDS = sorted(
    {field.name for operation in operations.OPERATIONS for field in operation.fields} | {"caller", "batch", "x"}
)


@settings(
    derandomize=True, max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(operations.OPERATIONS),
    st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES | st.just("a91f"), max_size=5),
)
def test_no_direct_event_is_answered_with_a_500(invoke: Invoke, operation: Operation, fields: dict[str, Any]) -> None:
    answer = invoke(operation.function, {"operation": operation.name, **fields})
    for result in answer.get("results", [answer]):
        assert result["status"] in {200, 201, 202, 400, 403, 404, 413, 422}
        json.dumps(result)
