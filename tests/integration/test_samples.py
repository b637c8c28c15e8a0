"""Every sample in `events/` is answered as the contract says, and leaves in the tables what it says it counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tally.operation import Operation

import counters
import operations
from tally.counting import holds
from tally.dynamo.client import Call, Store
from tests import events, make_events

Invoke = Callable[..., dict[str, Any]]

POST = {"operation": "put_post", "post_id": "a91f", "body": "first", "caller": "auth0|7c20"}
UNKNOWN = {
    "key": "5f0c2b9e-6f0a-4b63-8a37-0d1a4f0f6f11", "operation": "play", "target": "9f3a", "state": "unknown"
}  # fmt: skip
EXPECTED: dict[str, tuple[int, dict[str, Any]]] = {
    "plays/http-play": (200, {"video_id": "9f3a", "counted": True}),
    "plays/http-play-beacon": (200, {"video_id": "9f3a", "counted": True}),
    "plays/http-get-plays": (200, {"video_id": "9f3a", "play_count": 0}),
    "plays/direct-play": (200, {"video_id": "9f3a", "counted": True}),
    "plays/direct-play-of-a-caller": (200, {"video_id": "9f3a", "counted": True}),
    "plays/direct-get-plays": (200, {"video_id": "9f3a", "play_count": 0}),
    "posts/http-put-post": (200, {"post_id": "a91f", "revision": 1, "likeTally": 0, "authorId": "auth0|7c20"}),
    "posts/http-get-post": (200, {"post_id": "a91f", "revision": 0, "likeTally": 0, "body": "first"}),
    "posts/direct-put-post": (200, {"post_id": "a91f", "revision": 1}),
    "posts/direct-get-post": (200, {"post_id": "a91f", "revision": 0, "authorId": "auth0|7c20"}),
    "posts/http-delete-post": (200, {"post_id": "a91f", "deleted": True, "changed": True}),
    "posts/direct-delete-post": (200, {"post_id": "a91f", "deleted": True, "changed": True}),
    "likes/http-like": (200, {"post_id": "a91f", "liked": True, "changed": True}),
    "likes/http-like-with-key": (200, {"post_id": "a91f", "liked": True, "changed": True}),
    "likes/http-unlike": (200, {"post_id": "a91f", "liked": False, "changed": False}),
    "likes/http-get-like": (200, {"post_id": "a91f", "liked": False, "changed": False}),
    "likes/http-list-likes": (200, {"post_id": "a91f", "likes": [], "cursor": None}),
    "likes/direct-like": (200, {"post_id": "a91f", "liked": True, "changed": True}),
    "likes/direct-unlike": (200, {"post_id": "a91f", "liked": False, "changed": False}),
    "likes/direct-get-like": (200, {"post_id": "a91f", "liked": False, "changed": False}),
    "likes/direct-list-likes": (200, {"post_id": "a91f", "likes": [], "cursor": None}),
    "likes/http-my-likes": (200, {"likes": [{"post_id": "a91f", "liked": False}]}),
    "likes/direct-my-likes": (200, {"likes": [{"post_id": "a91f", "liked": False}]}),
    "likes/http-put-child": (200, {"counter": "members", "child": "auth0|7c20", "counted": True, "changed": True}),
    "likes/http-delete-child": (200, {"counter": "members", "counted": False, "changed": False}),
    "likes/http-get-child": (200, {"counter": "members", "counted": False}),
    "likes/http-list-children": (200, {"counter": "members", "children": [], "cursor": None}),
    "visits/http-visit": (202, {"counted": True}),
    "visits/http-visit-beacon": (202, {"counted": True}),
    "visits/http-visit-of-a-crawler": (202, {"counted": True}),
    "visits/http-get-visits": (200, {"url": "https://example.com/a", "visits": 0, "bot_visits": 0}),
    "visits/http-get-badge": (200, {"media_type": "image/svg+xml; charset=utf-8"}),
    "visits/direct-visit": (202, {"counted": True}),
    "visits/direct-visit-of-a-crawler": (202, {"counted": True}),
    "visits/direct-get-visits": (200, {"url": "https://example.com/a", "visits": 0, "bot_visits": 0}),
    "visits/direct-get-badge": (200, {"media_type": "image/svg+xml"}),
    "beacon/http-beacon": (200, {"media_type": "text/javascript; charset=utf-8"}),
    "beacon/direct-beacon": (200, {"media_type": "text/javascript"}),
    "beacon/http-get-console": (200, {"media_type": "text/html; charset=utf-8"}),
    "beacon/http-get-console-file": (200, {"media_type": "text/javascript; charset=utf-8"}),
    "beacon/http-get-console-config": (200, {"sign_in": {"kind": "token"}}),
    "increments/http-increment": (200, {"counter": "usage", "id": "7c20", "counted": True}),
    "increments/http-increment-of-a-ticket": (200, {"counter": "ticket", "number": 1, "last": False}),
    "increments/http-get-counter": (200, {"counter": "stock", "id": "mug", "value": 0, "version": 0}),
    "increments/http-get-counter-of-a-period": (200, {"counter": "calls", "period": "2030-01-01", "value": 0}),
    "increments/direct-get-counter-of-a-period": (200, {"counter": "calls", "period": "2030-01-01", "value": 0}),
    "increments/http-set-counter": (200, {"counter": "stock", "id": "mug", "value": 42, "version": 1}),
    "increments/direct-increment": (200, {"counter": "usage", "id": "7c20", "counted": True}),
    "increments/direct-get-counter": (200, {"counter": "stock", "id": "mug", "value": 0, "version": 0}),
    "increments/direct-set-counter": (200, {"counter": "stock", "id": "mug", "value": 42, "version": 1}),
    "holds/http-hold": (409, {"type": "urn:problem-type:tally:limit-reached", "left": 0}),
    "holds/http-commit-hold": (200, {"counter": "stock", "id": "mug", "state": "committed", "changed": True}),
    "holds/http-release-hold": (200, {"counter": "stock", "id": "mug", "state": "released", "changed": True}),
    "holds/direct-hold": (409, {"type": "urn:problem-type:tally:limit-reached", "left": 0}),
    "holds/direct-commit-hold": (200, {"counter": "stock", "id": "mug", "state": "committed", "changed": True}),
    "holds/direct-release-hold": (200, {"counter": "stock", "id": "mug", "state": "released", "changed": True}),
    "receipts/http-get-receipt": (200, {"operation": "play", "target": "9f3a", "state": "unknown"}),
    "receipts/http-get-own-receipt": (200, {"operation": "increment", "target": "usage/7c20", "state": "unknown"}),
    "receipts/direct-get-receipt": (200, {"operation": "play", "target": "9f3a", "state": "unknown"}),
    "receipts/direct-get-own-receipt": (200, {"operation": "increment", "target": "usage/7c20", "state": "unknown"}),
    "receipts/http-get-receipts": (200, {"receipts": [UNKNOWN]}),
    "receipts/direct-get-own-receipts": (200, {"receipts": [UNKNOWN]}),
    "drifts/http-get-drift": (200, {"drift": [], "cursor": None}),
    "drifts/direct-get-drift": (200, {"drift": [], "cursor": None}),
    "drifts/http-get-details": (200, {"counter": "likes", "id": "9f3a", "value": 0, "shards": [], "repairs": []}),
    "health/http-health": (200, {"status": "ok", "version": "dev"}),
    "health/direct-health": (200, {"status": "ok", "version": "dev"}),
    "health/http-get-openapi": (200, {"openapi": "3.1.0"}),
    "health/direct-get-openapi": (200, {"media_type": "application/json"}),
}


def hold_of_the_samples(store: Store) -> None:
    """Store the hold that the samples settle: of 2 mugs, until 2100."""
    hold_id = events.sample("holds/direct-commit-hold")["hold_id"]
    item = holds._take_writes(Call(store), counters.STOCK, "mug", hold_id, 2, 0)[1]["Put"]
    store.client.put_item(**item)


@pytest.mark.parametrize(
    "name",
    [name for name in events.names() if not name.endswith("-batch") and name.split("/")[0] in operations.functions()],
)
def test_a_sample_is_answered_as_the_contract_says(name: str, invoke: Invoke, store: Store) -> None:
    invoke("posts", POST)
    hold_of_the_samples(store)
    answer = invoke(name.split("/")[0], events.sample(name))
    status, part = EXPECTED.get(name, (200, {}))
    body = _http_body(answer) if "statusCode" in answer else answer["body"]
    assert (answer.get("statusCode") or answer["status"]) == status, body
    assert {field: body[field] for field in part} == part


def _http_body(answer: dict[str, Any]) -> Any:
    """The JSON of an HTTP answer; the type of one that is text."""
    media_type = answer["headers"]["content-type"]
    return json.loads(answer["body"]) if media_type.endswith("json") else {"media_type": media_type}


def test_every_operation_has_a_sample_of_each_way_to_call_it() -> None:
    samples = [events.sample(name) for name in events.names()]
    assert {sample.get("operation") for sample in samples} >= {operation.name for operation in operations.OPERATIONS}
    assert {sample.get("routeKey") for sample in samples} >= {operation.route for operation in operations.OPERATIONS}
    assert make_events.missing() == {}, "make events"


@pytest.mark.parametrize("operation", operations.OPERATIONS, ids=lambda operation: operation.name)
def test_a_sample_that_is_made_is_answered_like_one_that_is_kept(operation: Operation, invoke: Invoke) -> None:
    invoke("posts", POST)
    known = {*operation.success, 404, 409, 412}  # there is no such hold, no stock, no version 7
    assert invoke(operation.function, make_events.direct(operation))["status"] in known
    answer = invoke(operation.function, make_events.http(operation))
    assert answer["statusCode"] in known
    kept = "public, max-age=" if operation.revalidated else "no-store"
    assert answer["headers"]["cache-control"].startswith(kept), "CloudFront keeps what says so"


def test_a_batch_answers_each_entry_in_order(invoke: Invoke) -> None:
    batch = events.sample("plays/direct-batch")
    first, again = invoke("plays", batch), invoke("plays", batch)
    assert [result["status"] for result in first["results"]] == [200, 200, 200]
    assert first["results"][2]["body"] == {"video_id": "9f3a", "play_count": 1}
    assert [result["replayed"] for result in again["results"]] == [True, True, False]
    assert again["results"][2]["body"] == {"video_id": "9f3a", "play_count": 1}


def test_an_asynchronous_batch_is_counted_like_any_other(invoke: Invoke) -> None:
    results = invoke("plays", events.sample("plays/direct-asynchronous-batch"))["results"]
    assert [result["status"] for result in results] == [200, 200]


def test_http_and_direct_calls_of_the_anonymous_share_keys_and_a_callers_keys_are_its_own(invoke: Invoke) -> None:
    invoke("plays", events.sample("plays/http-play"))
    same = invoke("plays", events.sample("plays/direct-play"))
    own = invoke("plays", {**events.sample("plays/direct-play"), "caller": "billing"})
    assert (same["replayed"], own["replayed"]) == (True, False)
    assert invoke("plays", {"operation": "get_plays", "video_id": "9f3a"})["body"]["play_count"] == 2


def test_a_post_is_created_by_201_and_edited_by_200_by_its_author_alone(invoke: Invoke) -> None:
    created = invoke("posts", events.http("posts/http-put-post", sub="alice", body={"body": "one"}))
    edited = invoke("posts", events.http("posts/http-put-post", sub="alice", body={"body": "two"}))
    same = invoke("posts", events.http("posts/http-put-post", sub="alice", body={"body": "two"}))
    other = invoke("posts", events.http("posts/http-put-post", sub="bob", body={"body": "three"}))
    assert [answer["statusCode"] for answer in (created, edited, same, other)] == [201, 200, 200, 403]
    post = events.body_of(invoke("posts", events.sample("posts/http-get-post")))
    assert (post["body"], post["revision"], post["authorId"]) == ("two", 1, "alice")


def test_who_liked_is_paged_without_gaps_or_repeats(invoke: Invoke) -> None:
    invoke("posts", POST)
    users = sorted(f"user|{number}" for number in range(7))
    for user in users:
        invoke("likes", {"operation": "like", "post_id": "a91f", "caller": user})
    found, query = [], "limit=3"
    for _ in range(4):
        page = events.body_of(invoke("likes", events.http("likes/http-list-likes", query=query)))
        found += [like["user_id"] for like in page["likes"]]
        if page["cursor"] is None:
            break
        query = f"limit=3&cursor={page['cursor']}"
    assert found == users


def test_children_are_listed_by_their_names_and_no_name_forges_a_key(invoke: Invoke, store: Store) -> None:
    """Names are percent-encoded in keys. One that did not go through Tally has no time."""
    names = ["auth0|7c20", "a#b", "x/y", "ü", "..."]
    for name in names:
        event = events.http("likes/http-put-child", path={"child": name}, key=f"key-{names.index(name)}")
        body = events.body_of(invoke("likes", event))
        assert (body["child"], body["changed"]) == (name, True)
    key = {"PK": {"S": "WORKSPACE#7c20"}, "SK": {"S": "MEMBER#USER#zoe"}}
    store.client.put_item(TableName=store.settings.counts_table, Item=key)
    items = store.client.scan(TableName=store.settings.counts_table)["Items"]
    assert {item["SK"]["S"].count("#") for item in items if item["SK"]["S"].startswith("MEMBER#")} == {2}
    page = invoke("likes", {**events.sample("likes/direct-list-children"), "limit": 4})["body"]
    rest = invoke("likes", {**events.sample("likes/direct-list-children"), "cursor": page["cursor"]})["body"]
    listed = {child["child"]: child["since"] for child in page["children"] + rest["children"]}
    assert listed.keys() == {*names, "zoe"}
    assert {name for name, since in listed.items() if since is None} == {"zoe"}


def test_the_text_of_a_post_is_no_part_of_its_tally_item(invoke: Invoke, store: Store) -> None:
    invoke("posts", POST)
    items = store.client.scan(TableName=store.settings.counts_table)["Items"]
    assert {item["SK"]["S"]: "body" in item for item in items} == {"META": False, "META.BODY": True}
