"""Counters, holds and receipts as callers meet them: over HTTP, and from other Lambdas."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from functions import holds as holds_function
from functions import increments
from tally.api.entry import Entry

import counters
from tally import fields
from tally.counter import AMOUNT_MAX
from tally.counting import children, holds, receipts
from tally.dynamo.client import Call, Store
from tally.errors import PROBLEM_TYPE_PREFIX
from tests import events
from tests.contexts import Context

Invoke = Callable[..., dict[str, Any]]
JSON = {"content-type": "application/json"}
NO_HOLD = "1700000000-AAAAAAAAAAAAAAAA"
STOCK = {"counter": "stock", "id": "mug"}
DIRECT = {**STOCK, "caller": "checkout"}


@pytest.fixture
def send(invoke: Invoke) -> Callable[..., dict[str, Any]]:
    """Send a sample HTTP request, changed."""
    return lambda name, **change: invoke(name.split("/")[0], events.http(name, **change))


def change(
    invoke: Invoke, amount: int | None, key: str, counter: str = "stock", id: str = "mug", caller: str = "checkout"
) -> dict[str, Any]:
    """Increment a counter directly."""
    event = {"operation": "increment", "counter": counter, "id": id, "idempotency_key": key, "caller": caller}
    return invoke("increments", event if amount is None else {**event, "amount": amount})


def problem(answer: dict[str, Any], status: int, slug: str) -> dict[str, Any]:
    """The problem document of an answer of either kind, checked."""
    document = events.body_of(answer) if "statusCode" in answer else answer["body"]
    assert (answer.get("statusCode") or answer["status"]) == status, document
    assert document["type"] == PROBLEM_TYPE_PREFIX + slug
    assert document["status"] == status
    return document  # type: ignore[no-any-return]


def qty(store: Store) -> int | None:
    """The stored stock of mugs."""
    items = store.client.scan(TableName=store.settings.counts_table)["Items"]
    return next((int(item["qty"]["N"]) for item in items if item["PK"] == {"S": "ITEM#mug"}), None)


def written(store: Store) -> int:
    """How many items there are in all tables."""
    tables = (store.settings.counts_table, store.settings.receipts_table, store.settings.ledger_table)
    return sum(store.client.scan(TableName=table)["Count"] for table in tables)


def test_an_increment_is_counted_once_and_a_replay_says_so(send: Invoke, store: Store) -> None:
    answers = [send("increments/http-increment") for _ in range(2)]
    assert [events.body_of(answer) for answer in answers] == [
        {"counter": "usage", "id": "7c20", "counted": True, "visible": "now"}
    ] * 2
    assert ["idempotency-replayed" in answer["headers"] for answer in answers] == [False, True]
    got = send("increments/http-get-counter", path={"counter": "usage", "id": "7c20"})
    assert events.body_of(got) == {"counter": "usage", "id": "7c20", "value": 7}
    assert "etag" not in got["headers"]


def test_a_counter_with_a_delta_needs_no_body_and_takes_no_other_amount(send: Invoke) -> None:
    body = events.body_of(send("increments/http-increment-of-a-ticket"))
    assert body == {
        "counter": "ticket",
        "id": "counter-4",
        "counted": True,
        "number": 1,
        "last": False,
        "visible": "now",
    }
    again = send("increments/http-increment-of-a-ticket", body={"amount": 1}, headers=JSON)
    assert (again["headers"]["idempotency-replayed"], events.body_of(again)) == ("true", body)
    refused = send("increments/http-increment-of-a-ticket", key="another-key", body={"amount": 2}, headers=JSON)
    assert problem(refused, 400, "invalid-input")["field"] == "amount"


def test_a_stock_that_is_too_small_is_409_and_says_what_is_left(send: Invoke, invoke: Invoke, store: Store) -> None:
    change(invoke, 5, "in")
    refused = send("increments/http-increment", path=STOCK, body={"amount": -6})
    assert problem(refused, 409, "limit-reached")["left"] == 5
    assert problem(change(invoke, -6, "direct"), 409, "limit-reached")["left"] == 5
    assert qty(store) == 5


def test_a_contest_is_given_out_to_its_end_over_http(send: Invoke, invoke: Invoke) -> None:
    start = counters.CONTEST.start
    path = {"counter": "contest", "id": "summer"}
    set_it = send("increments/http-set-counter", path=path, body={"value": 2})
    assert events.body_of(set_it)["value"] == 2 < start
    answers = [send("increments/http-increment-of-a-ticket", path=path, key=f"key-{number}") for number in (1, 2, 3)]
    assert [answer["statusCode"] for answer in answers] == [200, 200, 409]
    assert [(body["number"], body["last"]) for body in map(events.body_of, answers[:2])] == [(1, False), (0, True)]
    assert problem(answers[2], 409, "limit-reached")["left"] == 0
    again = send("increments/http-increment-of-a-ticket", path=path, key="key-2")
    assert (again["headers"]["idempotency-replayed"], again["body"]) == ("true", answers[1]["body"])


def test_the_etag_of_a_read_is_what_if_match_takes_and_a_new_one_comes_back(send: Invoke, store: Store) -> None:
    got = send("increments/http-get-counter")
    assert got["headers"]["etag"] == '"0"'
    put = send("increments/http-set-counter", body={"value": 41}, headers={"if-match": got["headers"]["etag"]})
    assert (put["headers"]["etag"], events.body_of(put)) == ('"1"', {**STOCK, "value": 41, "version": 1})
    put = send("increments/http-set-counter", body={"value": 42}, headers={"if-match": '"1"'})
    assert put["headers"]["etag"] == '"2"'
    assert send("increments/http-get-counter")["headers"]["etag"] == '"2"'
    assert qty(store) == 42


def test_a_put_of_a_counter_that_has_moved_is_412_with_the_version_that_stands(send: Invoke, invoke: Invoke) -> None:
    for amount in (41, -1, 1):
        change(invoke, amount, f"key{amount}")
    refused = send("increments/http-set-counter", body={"value": 42}, headers={"if-match": '"1"'})
    assert problem(refused, 412, "precondition-failed")["version"] == 3
    direct = invoke("increments", {**DIRECT, "operation": "set_counter", "value": 42, "version": 2})
    assert problem(direct, 412, "precondition-failed")["version"] == 3


def test_a_put_that_is_sent_again_is_a_replay_and_changes_nothing(send: Invoke, invoke: Invoke, store: Store) -> None:
    first, again = (send("increments/http-set-counter") for _ in range(2))
    assert ("idempotency-replayed" in first["headers"], again["headers"]["idempotency-replayed"]) == (False, "true")
    assert first["body"] == again["body"]
    change(invoke, -1, "sold")
    assert send("increments/http-set-counter")["body"] == first["body"]
    assert qty(store) == 41


def test_a_put_without_if_match_is_428_and_a_version_that_is_none_is_400(send: Invoke, invoke: Invoke) -> None:
    event = events.sample("increments/http-set-counter")
    del event["headers"]["if-match"]
    assert problem(invoke("increments", event), 428, "precondition-required")["field"] == "If-Match"
    direct = invoke("increments", {**DIRECT, "operation": "set_counter", "value": 42})
    problem(direct, 428, "precondition-required")
    for bad in ("0", "*", 'W/"0"', '"x"', '"-1"', '"0", "1"', '"' + "1" * 16 + '"'):
        refused = send("increments/http-set-counter", headers={"if-match": bad})
        assert problem(refused, 400, "invalid-input")["field"] == "If-Match"


def test_a_counter_of_many_shards_has_no_version_and_cannot_be_set(send: Invoke, store: Store) -> None:
    refused = send("increments/http-set-counter", path={"counter": "usage", "id": "7c20"})
    assert problem(refused, 400, "invalid-input")["field"] == "counter"
    assert written(store) == 0


def test_a_value_out_of_the_limits_is_409_and_nothing_is_written(send: Invoke, store: Store) -> None:
    problem(send("increments/http-set-counter", body={"value": -1}), 409, "limit-reached")
    assert written(store) == 0


@pytest.mark.parametrize("counter", ["visits", "nothing", "Stock", "stock%20", "s" * 200])
@pytest.mark.parametrize(
    "name",
    [
        "increments/http-increment", "increments/http-get-counter", "increments/http-set-counter", "holds/http-hold",
        "holds/http-commit-hold", "holds/http-release-hold",
    ],
)  # fmt: skip
def test_a_counter_that_is_not_declared_or_counts_pages_is_404(
    name: str, counter: str, send: Invoke, store: Store
) -> None:
    assert problem(send(name, path={"counter": counter}), 404, "not-found")["field"] == "counter"
    assert written(store) == 0


BAD_AMOUNTS: list[object] = [True, 1.0, 0.5, "1", None, [], {}, AMOUNT_MAX + 1, -AMOUNT_MAX - 1, 10**30]


@pytest.mark.parametrize("amount", BAD_AMOUNTS, ids=repr)
def test_an_amount_that_is_no_whole_number_within_bounds_is_400(
    amount: object, send: Invoke, invoke: Invoke, store: Store
) -> None:
    for body, name in (
        ({"amount": amount}, "increments/http-increment"),
        ({"value": amount}, "increments/http-set-counter"),
        ({"amount": amount, "ttl_s": 9}, "holds/http-hold"),
        ({"amount": 1, "ttl_s": amount}, "holds/http-hold"),
    ):
        problem(send(name, body=body), 400, "invalid-input")
    event = {**events.sample("increments/direct-increment"), "amount": amount}
    problem(invoke("increments", event), 400, "invalid-input")
    assert written(store) == 0


def test_amounts_up_to_the_bound_are_counted_whole(invoke: Invoke, store: Store) -> None:
    for number in range(3):
        assert change(invoke, AMOUNT_MAX, f"key-{number}", "usage", "big")["status"] == 200
    read = {"operation": "get_counter", "counter": "usage", "id": "big", "caller": "checkout"}
    assert invoke("increments", read)["body"]["value"] == 3 * AMOUNT_MAX
    change(invoke, -AMOUNT_MAX, "down", "usage", "big")
    assert invoke("increments", read)["body"]["value"] == 2 * AMOUNT_MAX


@pytest.mark.parametrize("change_", [{"amount": 0, "ttl_s": 9}, {"amount": -1, "ttl_s": 9}, {"amount": 1, "ttl_s": 0}])
def test_a_hold_takes_at_least_one_for_at_least_a_second(change_: dict[str, int], send: Invoke, store: Store) -> None:
    problem(send("holds/http-hold", body=change_), 400, "invalid-input")
    problem(send("holds/http-hold", body={"amount": 1, "ttl_s": fields.HOLD_TTL_MAX_S + 1}), 400, "invalid-input")
    assert written(store) == 0


@pytest.mark.parametrize("name", ["increments/http-increment", "holds/http-hold"])
def test_a_change_without_a_key_is_400_and_says_which_header(name: str, invoke: Invoke, store: Store) -> None:
    event = events.sample(name)
    del event["headers"]["idempotency-key"]
    assert problem(invoke(name.split("/")[0], event), 400, "invalid-input")["field"] == "Idempotency-Key"
    assert written(store) == 0


def test_an_increment_without_an_amount_is_400(send: Invoke, store: Store) -> None:
    assert problem(send("increments/http-increment", body={}), 400, "invalid-input")["field"] == "amount"
    assert written(store) == 0


@pytest.mark.parametrize("name", ["increments/http-increment", "holds/http-hold", "increments/http-set-counter"])
def test_a_key_that_was_used_for_another_change_is_422(name: str, send: Invoke, invoke: Invoke) -> None:
    change(invoke, 100, "in")
    bodies = {"increments/http-increment": {"amount": 8}, "holds/http-hold": {"amount": 3, "ttl_s": 900}}
    how = {"key": "the-one-key", "headers": {"if-match": '"1"'} if "set" in name else None}
    assert send(name, **how)["statusCode"] in (200, 201)
    problem(send(name, **how, body=bodies.get(name, {"value": 43})), 422, "key-reused")


@pytest.mark.parametrize(
    "operation", ["increment", "get_counter", "set_counter", "hold", "commit_hold", "release_hold"]
)
def test_another_lambda_must_say_who_it_calls_for(operation: str, invoke: Invoke, store: Store) -> None:
    function = "holds" if "hold" in operation else "increments"
    refused = invoke(function, {"operation": operation, **STOCK})
    assert problem(refused, 400, "invalid-input")["field"] == "caller"
    assert written(store) == 0


def test_a_hold_over_http_is_taken_kept_and_given_back(send: Invoke, invoke: Invoke, store: Store) -> None:
    change(invoke, 10, "in")
    taken = send("holds/http-hold")
    body = events.body_of(taken)
    assert taken["statusCode"] == 201
    assert {name: body[name] for name in ("counter", "id", "amount")} == {**STOCK, "amount": 2}
    assert abs(body["expires_at"] - time.time() - 900) < 60
    assert re.fullmatch(r"[0-9]{10}-[A-Za-z0-9_-]{16}", body["hold_id"])
    assert qty(store) == 8
    again = send("holds/http-hold")
    assert (again["statusCode"], again["body"]) == (201, taken["body"])
    assert again["headers"]["idempotency-replayed"] == "true"
    kept = send("holds/http-commit-hold", path={"hold": body["hold_id"]})
    assert events.body_of(kept) == {**STOCK, "hold_id": body["hold_id"], "state": "committed", "changed": True}
    problem(send("holds/http-release-hold", path={"hold": body["hold_id"]}), 409, "hold-settled")
    other = events.body_of(send("holds/http-hold", key="another"))["hold_id"]
    assert qty(store) == 6
    assert events.body_of(send("holds/http-release-hold", path={"hold": other}))["state"] == "released"
    assert events.body_of(send("holds/http-release-hold", path={"hold": other}))["changed"] is False
    problem(send("holds/http-commit-hold", path={"hold": other}), 409, "hold-settled")
    assert qty(store) == 8


@pytest.mark.parametrize(
    "hold", [NO_HOLD, "x", "1700000000-short", "1700000000-" + "A" * 16 + "#", "é" * 27, "a" * 500]
)
@pytest.mark.parametrize("name", ["holds/http-commit-hold", "holds/http-release-hold"])
def test_a_hold_that_never_was_is_404(name: str, hold: str, send: Invoke, store: Store) -> None:
    problem(send(name, path={"hold": hold}), 404, "not-found")
    assert written(store) == 0


def test_a_hold_of_another_item_is_404(send: Invoke, invoke: Invoke, store: Store) -> None:
    change(invoke, 10, "in")
    hold_id = events.body_of(send("holds/http-hold"))["hold_id"]
    problem(send("holds/http-release-hold", path={"id": "cup", "hold": hold_id}), 404, "not-found")
    assert qty(store) == 8


@pytest.mark.parametrize("counter", ["usage", "contest", "ticket", "plays"])
@pytest.mark.parametrize("name", ["holds/http-hold", "holds/http-commit-hold", "holds/http-release-hold"])
def test_what_cannot_run_out_or_is_numbered_cannot_be_held(name: str, counter: str, send: Invoke, store: Store) -> None:
    assert problem(send(name, path={"counter": counter}), 400, "invalid-input")["field"] == "counter"
    assert written(store) == 0


def test_an_expired_hold_over_http_is_409_to_commit_and_settled_to_release(
    send: Invoke, invoke: Invoke, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(invoke, 2, "in")
    hold_id = events.body_of(send("holds/http-hold"))["hold_id"]
    late = type("Late", (), {"time": staticmethod(lambda: time.time() + 901)})
    monkeypatch.setattr(holds, "time", late)
    assert "expired" in problem(send("holds/http-commit-hold", path={"hold": hold_id}), 409, "hold-settled")["detail"]
    assert events.body_of(send("holds/http-release-hold", path={"hold": hold_id})) == {
        **STOCK, "hold_id": hold_id, "state": "expired", "changed": False,
    }  # fmt: skip
    assert qty(store) == 2


def receipt(send: Invoke, operation: str, target: str, key: str, *, own: bool = True) -> dict[str, Any]:
    query = f"operation={operation}&target={target}&key={key}"
    answer = send(f"receipts/http-get-{'own-' if own else ''}receipt", query=query)
    assert answer["statusCode"] == 200
    return events.body_of(answer)  # type: ignore[no-any-return]


def test_a_receipt_says_that_a_change_was_counted_and_what_was_answered(send: Invoke, invoke: Invoke) -> None:
    key = events.sample("increments/http-increment")["headers"]["idempotency-key"]
    unknown = {"operation": "increment", "target": "usage/7c20", "state": "unknown"}
    assert receipt(send, "increment", "usage/7c20", key) == unknown
    answered = events.body_of(send("increments/http-increment"))
    assert receipt(send, "increment", "usage/7c20", key) == {**unknown, "state": "counted", "answer": answered}
    direct = {"operation": "get_own_receipt", "of": "increment", "target": "usage/7c20", "idempotency_key": key}
    assert invoke("receipts", {**direct, "caller": "auth0|7c20"})["body"]["state"] == "counted"


@pytest.mark.parametrize(
    ("name", "operation", "target"),
    [
        ("plays/http-play", "play", "9f3a"),
        ("visits/http-visit", "visit", "https://EXAMPLE.com:443/a"),
        ("likes/http-like-with-key", "like", "a91f"),
        ("increments/http-increment", "increment", "usage/7c20"),
        ("increments/http-set-counter", "set_counter", "stock/mug"),
        ("holds/http-hold", "hold", "stock/mug"),
    ],
)
def test_every_kind_of_change_can_be_asked_for_by_who_sent_it_alone(
    name: str, operation: str, target: str, send: Invoke, invoke: Invoke
) -> None:
    invoke("posts", {"operation": "put_post", "post_id": "a91f", "body": "x", "caller": "alice"})
    change(invoke, 5, "in")
    sample = events.sample(name)
    key = sample["headers"].get("idempotency-key") or "0123456789-0123456789-0123"
    own = "authorizer" in sample["requestContext"]
    if operation == "visit":
        answer = send(name, body={"url": target, "key": key})
    elif operation == "set_counter":
        answer = send(name, key=key, headers={"if-match": '"1"'})
    else:
        answer = send(name, key=key)
    assert answer["statusCode"] in (200, 201, 202), answer["body"]
    assert receipt(send, operation, target, key, own=own)["answer"] == events.body_of(answer)
    assert receipt(send, operation, target, key, own=not own)["state"] == "unknown"
    assert receipt(send, operation, target + "x", key, own=own)["state"] == "unknown"
    assert receipt(send, operation, target, key + "x", own=own)["state"] == "unknown"
    event = {"operation": "get_receipt", "of": operation, "target": target, "idempotency_key": key}
    assert invoke("receipts", {**event, "caller": "somebody else"})["body"]["state"] == "unknown"


def test_many_receipts_are_asked_for_at_once_in_one_read(send: Invoke, invoke: Invoke, store: Store) -> None:
    plays = {"k" * 30: "v1", "l" * 30: "v2", "m" * 30: "v3"}
    for key, video in list(plays.items())[:2]:
        invoke("plays", {"operation": "play", "video_id": video, "idempotency_key": key})
    asked: list[dict[str, Any]] = []
    store.client.meta.events.register("provide-client-params.dynamodb", lambda params, **_: asked.append(params))
    pairs = [*plays.items(), ("k" * 30, "v1"), ("k" * 30, "v2")]
    query = "operation=play&" + "&".join(f"target={video}&key={key}" for key, video in pairs)
    found = events.body_of(send("receipts/http-get-receipts", query=query))["receipts"]
    assert [(one["key"], one["target"]) for one in found] == pairs
    assert [one["state"] for one in found] == ["counted", "counted", "unknown", "counted", "unknown"]
    assert {key: value for key, value in found[1].items() if key != "key"} == receipt(
        send, "play", "v2", "l" * 30, own=False
    )
    assert [len(request["RequestItems"]) for request in asked[:1]] == [1]  # and the single one after it
    assert asked[0]["RequestItems"][store.settings.receipts_table]["ConsistentRead"]
    one_target = "operation=play&target=v1&" + "&".join(f"key={key}" for key in plays)
    found = events.body_of(send("receipts/http-get-receipts", query=one_target))["receipts"]
    assert [(one["target"], one["state"]) for one in found] == [("v1", "counted"), ("v1", "unknown"), ("v1", "unknown")]
    most = {"operation": "get_receipts", "of": "play", "targets": ["v1"]}
    keys = [f"{number:030d}" for number in range(100)]
    assert len(invoke("receipts", {**most, "idempotency_keys": keys})["body"]["receipts"]) == 100
    problem(invoke("receipts", {**most, "idempotency_keys": [*keys, "n" * 30]}), 400, "invalid-input")
    two_for_three = problem(send("receipts/http-get-receipts", query=f"{one_target}&target=v2"), 400, "invalid-input")
    assert two_for_three["field"] == "target"


def test_the_receipts_of_a_counter_live_as_long_as_it_says_and_health_tells(invoke: Invoke, store: Store) -> None:
    """Each kind of change leaves one; what is written alone lives 8 days at least."""
    nine = {name: replace(counter, receipt_days=9) for name, counter in counters.COUNTERS.items()}
    entry = Entry({**increments.handler.functions, **holds_function.handler.functions}, store, nine)
    usage = {"operation": "increment", "counter": "usage", "id": "u", "amount": 1, "caller": "shop"}
    for change in (
        {**DIRECT, "operation": "increment", "amount": 5, "idempotency_key": "add"},
        {**DIRECT, "operation": "set_counter", "value": 9, "version": 1},
        {**DIRECT, "operation": "hold", "amount": 1, "ttl_s": 60, "idempotency_key": "hold"},
        {**DIRECT, "operation": "increment", "counter": "ticket", "id": "desk", "idempotency_key": "number"},
        {"batch": [{**usage, "idempotency_key": "packed"}, {**usage, "idempotency_key": "too"}]},
    ):
        answer = entry(change, Context())
        assert {one["status"] for one in answer.get("results", [answer])} <= {200, 201}, answer
    invoke("posts", {"operation": "put_post", "post_id": "a91f", "body": "x", "caller": "alice"})
    keyed = receipts.Keyed("like", "a91f", "k", {}, nine["likes"].receipt_days)
    children.set_child(Call(store, "bob"), nine["likes"], "a91f", "bob", True, keyed=keyed)
    items = store.client.scan(TableName=store.settings.receipts_table)["Items"]
    lives_s = [int(item["expiration"]["N"]) - time.time() for item in items]
    assert len(lives_s) == 7
    assert all(abs(live_s - 9 * 86400) < 60 for live_s in lives_s)
    told = invoke("health", events.sample("health/direct-health"))["body"]["receipts_live_s"]
    assert (told["plays"], told["stock"], told["visits"]) == (86400, 86400, 8 * 86400)
    assert receipts.lives_s(store, replace(counters.VISITS, receipt_days=2)) == 8 * 86400
    assert receipts.lives_s(store, nine["plays"]) == 9 * 86400


def test_many_changes_are_one_answer_and_one_receipt(send: Invoke, invoke: Invoke) -> None:
    """1,000 of them, with the longest ids, fit into one request."""
    ids = [f"{number:02}{'~' * 126}" for number in range(90)]
    changes = [{"counter": "usage", "id": ids[number % 90], "amount": 10**9} for number in range(1000)]
    first, again = (send("increments/http-change", body={"changes": changes}, key="order-1") for _ in range(2))
    answer = {"counted": True, "changes": 1000, "tallies": 90, "visible": "now"}
    assert (events.body_of(first), events.body_of(again)) == (answer, answer)
    assert again["headers"]["idempotency-replayed"] == "true"
    assert receipt(send, "change", "changes", "order-1")["answer"] == answer
    batch = [{**events.sample("increments/direct-change"), "idempotency_key": key} for key in ("order-2", "order-2")]
    results = invoke("increments", {"batch": batch})["results"]
    assert [(result["status"], result["replayed"]) for result in results] == [(200, False), (200, True)]


def test_a_refused_change_has_no_receipt(send: Invoke, invoke: Invoke) -> None:
    problem(send("holds/http-hold", key="the-key"), 409, "limit-reached")
    assert receipt(send, "hold", "stock/mug", "the-key")["state"] == "unknown"


def test_a_receipt_whose_time_is_over_is_unknown(send: Invoke, invoke: Invoke, store: Store) -> None:
    send("increments/http-increment", key="the-key")
    (item,) = store.client.scan(TableName=store.settings.receipts_table)["Items"]
    over = {**item, "expiration": {"N": str(int(time.time()) - 10)}}
    store.client.put_item(TableName=store.settings.receipts_table, Item=over)
    assert receipt(send, "increment", "usage/7c20", "the-key")["state"] == "unknown"


@pytest.mark.parametrize("broken", [{"data": {"S": "{"}}, {"status": {"S": "?"}}, {"data": {"N": "1"}}])
def test_a_receipt_that_tally_does_not_write_is_503_and_not_taken_for_none(
    broken: dict[str, Any], send: Invoke, store: Store
) -> None:
    send("increments/http-increment", key="the-key")
    (item,) = store.client.scan(TableName=store.settings.receipts_table)["Items"]
    store.client.put_item(TableName=store.settings.receipts_table, Item={**item, **broken})
    query = "operation=increment&target=usage/7c20&key=the-key"
    problem(send("receipts/http-get-own-receipt", query=query), 503, "not-committed")
    problem(send("increments/http-increment", key="the-key"), 503, "not-committed")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "operation"),
        ("operation=get_plays&target=x&key=0123456789-0123456789-01", "operation"),
        ("operation=play&key=0123456789-0123456789-01", "target"),
        ("operation=play&target=x", "key"),
        ("operation=play&target=x&key=short", "key"),
        ("operation=play&target=&key=0123456789-0123456789-01", "target"),
        ("operation=play&target=" + "x" * 1025 + "&key=0123456789-0123456789-01", "target"),
        ("operation=visit&target=x&key=0123456789-0123456789-01", "target"),
        ("operation=play&target=x&key=0123456789-0123456789-01&caller=bob", "caller"),
    ],
)
def test_a_receipt_that_is_asked_for_wrongly_is_400_and_says_which_field(query: str, field: str, send: Invoke) -> None:
    refused = send("receipts/http-get-receipt", query=query)
    assert problem(refused, 400, "invalid-input")["field"] == field


def test_a_batch_of_increments_is_packed_refused_and_read_entry_by_entry(invoke: Invoke, store: Store) -> None:
    calls: list[str] = []
    store.client.meta.events.register("before-call.dynamodb", lambda model, **_: calls.append(model.name))
    first, again = (invoke("increments", events.sample("increments/direct-batch")) for _ in range(2))
    assert [result["status"] for result in first["results"]] == [200, 200, 409, 200]
    assert problem(first["results"][2], 409, "limit-reached")["left"] == 0
    assert first["results"][3]["body"]["value"] == 11
    assert [result["replayed"] for result in again["results"]] == [True, True, False, False]
    assert again["results"][3]["body"]["value"] == 11
    # Two increments packed; the stock alone, with a look for expired holds; the read.
    assert calls[:4] == ["TransactWriteItems", "TransactWriteItems", "Query", "Query"]


def test_an_entry_whose_time_is_over_is_503_and_was_not_counted(invoke: Invoke, store: Store) -> None:
    answer = invoke("increments", events.sample("increments/direct-batch"), Context(remaining_ms=400))
    assert [result["status"] for result in answer["results"]] == [503] * 4
    assert written(store) == 0


def test_health_has_no_etag_although_it_tells_a_version(invoke: Invoke) -> None:
    assert "etag" not in invoke("health", events.sample("health/http-health"))["headers"]
