"""Changes counters and holds, and reads receipts, over HTTP and as other Lambda functions do."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import pytest

import counters
from tally.contract import samples
from tally.contract.declarations import OPERATIONS
from tally.counter import AMOUNT_MAX, Counter
from tally.counting import receipts
from tally.dynamo import clock
from tally.dynamo.client import Store
from tally.errors import PROBLEM_TYPE_PREFIX
from tally.operations import increments
from tally.operations.receipts import KEYED_OPERATIONS
from tests import events
from tests.integration.conftest import Invoke

STOCK = {"counter": "stock", "id": "mug"}
USAGE = {"counter": "usage", "id": "7c20"}
TICKET = {"counter": "ticket", "id": "desk"}


def problem(answer: dict[str, Any], status: int, slug: str) -> dict[str, Any]:
    """Returns the problem document of an answer. Fails for another status, or if the type does not end with `slug`."""
    document = events.body_of(answer)
    assert events.status_of(answer) == status, document
    assert (document["type"], document["status"]) == (PROBLEM_TYPE_PREFIX + slug, status)
    return document  # type: ignore[no-any-return]


def stored_quantity(store: Store) -> int | None:
    """Returns the stored stock of mugs, or None if no item is stored."""
    items = store.client.scan(TableName=store.settings.counts_table)["Items"]
    return next((int(item["qty"]["N"]) for item in items if item["PK"] == {"S": "ITEM#mug"}), None)


def test_an_increment_is_counted_once_and_a_replay_has_a_header(invoke: Invoke) -> None:
    answers = [invoke.http("increment", **USAGE, amount=7) for _ in range(2)]
    assert [events.body_of(answer) for answer in answers] == [{**USAGE, "counted": True, "visible": "now"}] * 2
    assert ["idempotency-replayed" in answer["headers"] for answer in answers] == [False, True]
    answer_to_read = invoke.http("get_counter", **USAGE)
    assert events.body_of(answer_to_read) == {**USAGE, "value": 7}
    assert "etag" not in answer_to_read["headers"]


def test_anonymous_callers_share_keys_and_each_named_caller_has_its_own_keys(invoke: Invoke) -> None:
    play = {"id": "9f3a", "idempotency_key": events.KEY}
    by_http = [invoke.http(route, **play) for route in ("increment_plays_short_route", "increment_plays")]
    assert ["idempotency-replayed" in answer["headers"] for answer in by_http] == [False, True]
    direct = [invoke.direct("increment", counter="plays", **play, **caller) for caller in ({}, {"caller": "x"})]
    assert [answer["replayed"] for answer in direct] == [True, False]
    assert invoke.read("plays", "9f3a")["value"] == 2


def test_quotation_marks_of_the_key_header_are_not_part_of_the_key(invoke: Invoke) -> None:
    """The header is a structured field, as the IETF's draft says. In a body, quotation marks belong to the key."""
    for quoted, key in (('"one-key"', "one-key"), (r'"a\"b\\c"', r'a"b\c'), ('a"b"', 'a"b"')):
        sent = invoke.http("increment", **USAGE, amount=7, idempotency_key=quoted)
        assert (sent["statusCode"], "idempotency-replayed" in sent["headers"]) == (200, False)
        plain = {"amount": 7, "idempotency_key": key, "caller": samples.CALLER}
        assert invoke.direct("increment", **USAGE, **plain)["replayed"]
    visit = {"url": "https://example.com/a", "key": events.KEY}  # a key in the body must be the key of the header
    header = {"idempotency-key": f'"{events.KEY}"'}
    assert invoke.http("visit", idempotency_key=None, document=visit, headers=header)["statusCode"] == 202
    for wrong in (
        '"', '"k', '""', '"k"x', '"k";a=1', '"a", "b"', r'"a\b"', '"a b"', '"ä"', r'"\"k"', '"' + "k" * 256 + '"',
    ):  # fmt: skip
        answer = invoke.http("increment", **USAGE, amount=7, idempotency_key=wrong)
        assert problem(answer, 400, "invalid-input")["field"] == "Idempotency-Key", wrong
    short_key = '"' + "k" * 21 + '"'  # a key of an anonymous caller has at least 22 characters
    short = invoke.http("increment_plays_short_route", idempotency_key=short_key)
    assert problem(short, 400, "invalid-input")["field"] == "Idempotency-Key"


def test_a_counter_with_a_delta_needs_no_body_and_refuses_another_amount(invoke: Invoke) -> None:
    first = invoke.http("increment", **TICKET, amount=None)
    body = {**TICKET, "counted": True, "number": 1, "last": False, "visible": "now"}
    assert events.body_of(first) == body
    replay = invoke.http("increment", **TICKET, amount=1)
    assert (replay["headers"]["idempotency-replayed"], events.body_of(replay)) == ("true", body)
    refused = invoke.http("increment", **TICKET, idempotency_key="another-key", amount=2)
    assert problem(refused, 400, "invalid-input")["field"] == "amount"
    without_delta = invoke.http("increment", **USAGE, amount=None)
    assert problem(without_delta, 400, "invalid-input")["field"] == "amount"


def test_if_match_takes_the_etag_of_a_read_and_the_answer_has_a_new_etag(invoke: Invoke, store: Store) -> None:
    tag = invoke.http("get_counter", **STOCK)["headers"]["etag"]
    assert tag == '"0"'
    put = invoke.http("set_counter", **STOCK, value=41, version=tag)
    assert (put["headers"]["etag"], events.body_of(put)) == ('"1"', {**STOCK, "value": 41, "version": 1})
    assert invoke.http("set_counter", **STOCK, value=42, version='"1"')["headers"]["etag"] == '"2"'
    assert invoke.http("get_counter", **STOCK)["headers"]["etag"] == '"2"'
    assert stored_quantity(store) == 42
    old_version = invoke.http("set_counter", **STOCK, value=42, version='"1"', idempotency_key="another")
    assert problem(old_version, 412, "precondition-failed")["version"] == 2


def test_a_put_without_if_match_is_refused_with_428_and_an_invalid_version_with_400(invoke: Invoke) -> None:
    missing = problem(invoke.http("set_counter", **STOCK, version=None), 428, "precondition-required")
    assert missing["field"] == "If-Match"
    problem(invoke.direct("set_counter", **STOCK, value=42, caller="checkout"), 428, "precondition-required")
    for bad in ("0", "*", 'W/"0"', '"x"', '"-1"', '"0", "1"', '"' + "1" * 16 + '"'):  # at most 15 digits
        refused = problem(invoke.http("set_counter", **STOCK, version=bad), 400, "invalid-input")
        assert refused["field"] == "If-Match"
        assert 'with its quotes, as "7"' in refused["detail"]


def test_a_counter_without_versions_and_a_value_beyond_a_limit_cannot_be_set(invoke: Invoke, store: Store) -> None:
    refused = invoke.http("set_counter", **USAGE)
    assert problem(refused, 400, "invalid-input")["field"] == "counter"
    problem(invoke.http("set_counter", **STOCK, value=-1, version='"0"'), 409, "limit-reached")
    assert stored_quantity(store) is None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "is spread over shards"),
        ({"max_shards": 1, "visible": "soon"}, 'has visible="soon"'),
        ({"max_shards": 1, "period": "day"}, "has a number for each day"),
    ],
)
def test_the_refusal_to_set_a_counter_says_why_its_numbers_have_no_version(options: dict[str, Any], why: str) -> None:
    refusal = increments.set_counter.refusal_for(Counter("c", prefix="CNT", sort_key="N", attribute="n", **options))
    assert str(refusal) == f"c {why}: it has no version to compare."


def test_a_key_of_another_change_is_refused_with_422(invoke: Invoke) -> None:
    assert invoke.http("increment", **STOCK, idempotency_key="the-one-key", amount=7)["statusCode"] == 200
    problem(invoke.http("increment", **STOCK, idempotency_key="the-one-key", amount=8), 422, "key-reused")


def test_a_change_with_used_may_pass_a_limit_within_the_debt_and_every_answer_says_over(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`used`: the amount is used already, so Tally counts it up to the limit and the debt. The first change with key 2
    is refused, which leaves no receipt."""
    calls = {"counter": "calls", "id": "7c20"}
    monkeypatch.setitem(counters.COUNTERS, "calls", replace(counters.CALLS, debt=500))
    invoke.direct("put_limit", **calls, limit=10, idempotency_key="plan", caller="billing")
    assert "over" not in events.body_of(invoke.http("increment", **calls, amount=9, used="true", idempotency_key="1"))
    problem(invoke.http("increment", **calls, amount=5, idempotency_key="2"), 409, "limit-reached")
    over = events.body_of(invoke.http("increment", **calls, amount=5, used="true", value="true", idempotency_key="2"))
    assert (over["over"], over["value"]) == (True, 14)
    replay = invoke.direct("increment", **calls, amount=5, used=True, idempotency_key="2", caller=samples.CALLER)
    assert (replay["replayed"], replay["body"]["over"]) == (True, True)
    expected = {"value": 14, "limit": 10, "left": -4, "over": True}
    for read in (invoke.http("get_counter", **calls), invoke.http("get_any_tallies", of=["calls:7c20"])):
        body = events.body_of(read)
        assert expected.items() <= body.get("tallies", [body])[0].items()
    refused = problem(
        invoke.http("increment", **calls, amount=497, used="true", idempotency_key="3"), 409, "limit-reached"
    )
    assert (refused["left"], refused["limit"]) == (10 + 500 - 14, 10)
    wrong = invoke.http("increment", **calls, amount=1, used="yes", idempotency_key="4")
    assert problem(wrong, 400, "invalid-input")["field"] == "used"


# Holds


def test_a_hold_over_http_is_placed_committed_and_released(invoke: Invoke, store: Store) -> None:
    invoke.direct("increment", **STOCK, amount=10, idempotency_key="in", caller="checkout")
    placed = invoke.http("hold", **STOCK, amount=2, ttl_s=900)
    body = events.body_of(placed)
    assert placed["statusCode"] == 201
    assert {name: body[name] for name in ("counter", "id", "amount")} == {**STOCK, "amount": 2}
    assert abs(body["expires_at"] - time.time() - 900) < 60
    assert re.fullmatch(r"[0-9]{10}-[A-Za-z0-9_-]{16}", body["hold"])
    assert stored_quantity(store) == 8
    replay = invoke.http("hold", **STOCK, amount=2, ttl_s=900)
    assert (replay["statusCode"], replay["body"]) == (201, placed["body"])
    assert replay["headers"]["idempotency-replayed"] == "true"
    first_hold = {**STOCK, "hold": body["hold"]}
    assert events.body_of(invoke.http("commit_hold", **first_hold)) == {
        **first_hold, "state": "committed", "amount": 2, "changed": True,
    }  # fmt: skip
    problem(invoke.http("release_hold", **first_hold), 409, "hold-settled")
    assert events.body_of(invoke.http("hold", **STOCK, amount=2, ttl_s=900)) == body | {"state": "committed"}
    second_hold = {**STOCK, "hold": events.body_of(invoke.http("hold", **STOCK, idempotency_key="another"))["hold"]}
    assert stored_quantity(store) == 6
    assert events.body_of(invoke.http("release_hold", **second_hold))["state"] == "released"
    assert events.body_of(invoke.http("release_hold", **second_hold))["changed"] is False
    problem(invoke.http("commit_hold", **second_hold), 409, "hold-settled")
    problem(invoke.http("release_hold", counter="stock", id="cup", hold=second_hold["hold"]), 404, "not-found")
    assert stored_quantity(store) == 8


def test_a_hold_over_http_is_committed_at_another_amount_and_voided(invoke: Invoke, store: Store) -> None:
    invoke.direct("increment", **STOCK, amount=10, idempotency_key="in", caller="checkout")
    hold = {**STOCK, "hold": events.body_of(invoke.http("hold", **STOCK, amount=8))["hold"]}
    for wrong in (-1, 1.5, "3", AMOUNT_MAX + 1):
        assert problem(invoke.http("commit_hold", **hold, amount=wrong), 400, "invalid-input")["field"] == "amount"
    assert problem(invoke.http("commit_hold", **hold, amount=11), 409, "limit-reached")["left"] == 2  # 8 of 10 are held
    assert events.body_of(invoke.http("commit_hold", **hold, amount=3))["amount"] == 3
    problem(invoke.http("commit_hold", **hold, amount=4), 409, "hold-settled")
    assert stored_quantity(store) == 7
    voided = {**hold, "state": "voided", "amount": 3}
    assert events.body_of(invoke.http("void_hold", **hold)) == {**voided, "changed": True}
    assert events.body_of(invoke.http("void_hold", **hold)) == {**voided, "changed": False}
    problem(invoke.http("void_hold", **{**hold, "hold": "1785542401-mFYxsn9wM2rBbRkE"}), 404, "not-found")
    assert stored_quantity(store) == 10


def test_the_amount_and_the_time_of_a_hold_are_changed_over_http(invoke: Invoke, store: Store) -> None:
    invoke.direct("increment", **STOCK, amount=5, idempotency_key="in", caller="checkout")
    placed = events.body_of(invoke.http("hold", **STOCK, amount=5, ttl_s=900))
    hold = {**STOCK, "hold": placed["hold"]}
    for number, amount in enumerate((2, 5)):
        key = {"idempotency_key": f"change-{number}", "amount": amount, "ttl_s": None}
        for replayed in (False, True):
            answer = invoke.http("change_hold", **hold, **key)
            assert (answer["statusCode"], events.body_of(answer)) == (200, placed | {"amount": amount})
            assert ("idempotency-replayed" in answer["headers"]) is replayed
        assert stored_quantity(store) == 5 - amount
    longer = {"idempotency_key": "longer", "amount": None, "ttl_s": 1800}
    assert events.body_of(invoke.http("change_hold", **hold, **longer))["expires_at"] > placed["expires_at"]
    assert problem(invoke.http("change_hold", **hold, amount=6), 409, "limit-reached")["left"] == 0
    assert problem(invoke.http("change_hold", **hold, **longer | {"amount": 1}), 422, "key-reused")
    for wrong in (0, -1, 1.5, "3", AMOUNT_MAX + 1):
        assert problem(invoke.http("change_hold", **hold, amount=wrong), 400, "invalid-input")["field"] == "amount"
    for wrong in (0, 1.5, 7 * 24 * 3600 + 1):
        assert problem(invoke.http("change_hold", **hold, ttl_s=wrong), 400, "invalid-input")["field"] == "ttl_s"
    nothing = problem(invoke.http("change_hold", **hold, amount=None, ttl_s=None), 400, "invalid-input")
    assert nothing["detail"] == "amount and ttl_s are missing. Send one of them, or both."
    assert events.body_of(invoke.http("commit_hold", **hold, amount=None))["amount"] == 5
    for change in (longer | {"idempotency_key": "too-late"}, {"amount": 4, "ttl_s": None}):
        refused = problem(invoke.http("change_hold", **hold, **change), 409, "hold-settled")
        assert "The hold is committed" in refused["detail"]
    replay = invoke.http("change_hold", **hold, **longer)
    assert (replay["headers"]["idempotency-replayed"], events.body_of(replay)["state"]) == ("true", "committed")
    problem(invoke.http("change_hold", counter="stock", id="cup", hold=placed["hold"]), 404, "not-found")
    assert stored_quantity(store) == 0


@pytest.mark.usefixtures("midday")
def test_the_answer_to_a_hold_names_the_period_and_a_commit_needs_no_period(invoke: Invoke) -> None:
    calls = {"counter": "calls", "id": "7c20"}
    placed = events.body_of(invoke.http("hold", **calls, amount=900))
    assert placed["period"] == time.strftime("%Y-%m-%d", time.gmtime(time.time()))
    refused = problem(invoke.http("hold", **calls, amount=101, idempotency_key="more"), 409, "limit-reached")
    assert (refused["left"], refused["retry_after_s"] > 0) == (100, True)
    settled = events.body_of(invoke.http("commit_hold", **calls, hold=placed["hold"], amount=250))
    assert (settled["amount"], settled["changed"]) == (250, True)
    assert invoke.direct("get_counter", **calls, caller="checkout")["body"]["value"] == 250


@pytest.mark.parametrize("counter", ["usage", "contest", "ticket", "plays"])
def test_a_counter_without_a_limit_and_a_numbered_counter_take_no_holds(counter: str, invoke: Invoke) -> None:
    for route in ("hold", "change_hold", "commit_hold", "release_hold", "void_hold"):
        assert problem(invoke.http(route, counter=counter), 400, "invalid-input")["field"] == "counter"


# Receipts


def receipts_of(
    invoke: Invoke, of: str, target: Any, key: Any, route: str = "get_own_receipts", **more: Any
) -> list[Any]:
    """Returns the receipts of these keys. `of`: the operation of the changes. The route `get_receipts` has the receipts
    of anonymous callers."""
    answer = invoke.http(route, of=of, target=target, key=key, **more)
    assert answer["statusCode"] == 200, answer
    return list(events.body_of(answer)["receipts"])


def state_of(invoke: Invoke, of: str, target: str, key: str, route: str = "get_own_receipts", **more: Any) -> str:
    [entry] = receipts_of(invoke, of, [target], [key], route, **more)
    return str(entry["state"])


RECEIPT_CASES: list[tuple[str, str, str, dict[str, Any]]] = [  # route, operation, target of the receipt, fields
    ("increment_plays_short_route", "increment", "plays/9f3a", {"id": "9f3a"}),
    ("visit", "visit", "https://EXAMPLE.com:443/a", {"url": "https://EXAMPLE.com:443/a"}),
    ("put_mine_likes_short_route", "put_mine", "likes/a91f", {"id": "a91f"}),
    ("delete_mine", "delete_mine", "hearts/a91f", {"counter": "hearts", "id": "a91f"}),
    ("put_anonymous", "put_anonymous", "hearts/a91f", {"counter": "hearts", "id": "a91f"}),
    ("delete_anonymous", "delete_anonymous", "hearts/a91f", {"counter": "hearts", "id": "a91f"}),
    ("put_child", "put_child", "members/acme", {"counter": "members", "id": "acme"}),
    ("delete_child", "delete_child", "members/acme", {"counter": "members", "id": "acme"}),
    ("increment", "increment", "usage/7c20", USAGE),
    ("set_counter", "set_counter", "stock/mug", {**STOCK, "version": '"1"'}),
    ("put_limit", "put_limit", "calls/mug", {"counter": "calls", "id": "mug"}),
    ("delete_limit", "delete_limit", "calls/mug", {"counter": "calls", "id": "mug"}),
    ("hold", "hold", "stock/mug", STOCK),
    ("change_hold", "change_hold", "stock/mug", STOCK),
    ("change", "change", "changes", {}),
]


@pytest.mark.parametrize(
    ("route", "operation", "target", "fields"), RECEIPT_CASES, ids=[route for route, *_ in RECEIPT_CASES]
)
def test_only_the_caller_of_a_change_finds_its_receipt(
    route: str, operation: str, target: str, fields: dict[str, Any], invoke: Invoke
) -> None:
    invoke.direct("put_post", id="a91f", body="x", caller="alice")
    invoke.direct("increment", **STOCK, amount=5, idempotency_key="in", caller="checkout")
    if operation == "change_hold":
        hold = invoke.direct("hold", **STOCK, amount=1, ttl_s=60, idempotency_key="held", caller="checkout")
        fields = {**fields, "hold": hold["body"]["hold"]}
    needs_caller = events.routes()[route].needs_caller
    routes = ["get_own_receipts", "get_receipts"]
    right_route, wrong_route = routes if needs_caller else reversed(routes)
    answer = invoke.http(route, idempotency_key=events.KEY, **fields)
    assert answer["statusCode"] in (200, 201, 202), answer["body"]
    [entry] = receipts_of(invoke, operation, [target], [events.KEY], right_route)
    body = events.body_of(answer)  # a receipt stores only some of these fields
    assert (entry["state"], {name: entry["answer"].get(name, body[name]) for name in body}) == ("counted", body)
    assert state_of(invoke, operation, target, events.KEY, wrong_route) == "unknown"
    assert state_of(invoke, operation, target + "x", events.KEY, right_route) == "unknown"
    assert state_of(invoke, operation, target, events.KEY + "x", right_route) == "unknown"
    # A service may read every receipt. To find one, it names the caller of the change.
    caller = {"caller": samples.CALLER} if needs_caller else {}
    assert state_of(invoke, operation, target, events.KEY, "get_any_receipts", **caller) == "counted"
    assert state_of(invoke, operation, target, events.KEY, "get_any_receipts", caller="somebody else") == "unknown"


def test_a_change_is_voided_by_its_key_and_its_receipt_says_voided(invoke: Invoke) -> None:
    order = [{**USAGE, "amount": 1}, {**STOCK, "amount": 5}]
    sent = {"increment": {**USAGE, "amount": 7}, "change": {"changes": order}}
    voids = {"increment": ("void", "usage/7c20", USAGE), "change": ("void_changes", "changes", {})}
    no_caller = {"caller": None}  # removes the caller of the sample: without this field, callers void their own changes
    for operation, (void, target, fields) in voids.items():
        problem(invoke.http(void, **fields, **no_caller, key="order-1"), 404, "not-found")
        invoke.http(operation, **sent[operation], idempotency_key="order-1")
        assert "voided" not in receipts_of(invoke, operation, [target], ["order-1"])[0]
        answers = [invoke.http(void, **fields, **no_caller, key="order-1") for _ in range(2)]
        assert [events.body_of(answer)["changed"] for answer in answers] == [True, False]
        [entry] = receipts_of(invoke, operation, [target], ["order-1"])
        assert (entry["state"], entry["voided"]) == ("counted", True)
        retried = invoke.http(operation, **sent[operation], idempotency_key="order-1")
        assert retried["headers"]["idempotency-replayed"] == "true"
        problem(invoke.http(void, **fields, caller="another", key="order-1"), 404, "not-found")
    of_void_changes = events.body_of(answers[0])  # the last operation of the loop
    assert of_void_changes == {"tallies": 2, "changed": True, "visible": "now"}
    assert (invoke.read("usage", "7c20")["value"], invoke.read("stock", "mug")["value"]) == (0, 0)
    for counter in ("likes", "members", "visits", "ticket"):
        wrong = invoke.http("void", counter=counter, id="x", key="order-1")
        assert problem(wrong, 400, "invalid-input")["field"] == "counter"


def test_the_receipts_of_every_operation_that_leaves_receipts_can_be_read() -> None:
    assert (
        set(KEYED_OPERATIONS)
        == {operation.name for operation in OPERATIONS if operation.leaves_receipt}
        == {operation for _, operation, *_ in RECEIPT_CASES}
    )


@pytest.mark.sdk
def test_many_receipts_are_read_in_one_request(invoke: Invoke, store: Store) -> None:
    keys = {"k" * 30: "plays/v1", "l" * 30: "plays/v2", "m" * 30: "plays/v3"}
    for key, target in list(keys.items())[:2]:
        invoke.direct("increment", counter="plays", id=target.partition("/")[2], idempotency_key=key)
    requests: list[dict[str, Any]] = []
    store.client.meta.events.register("provide-client-params.dynamodb", lambda params, **_: requests.append(params))
    pairs = [*keys.items(), ("k" * 30, "plays/v1"), ("k" * 30, "plays/v2")]
    entries = receipts_of(
        invoke, "increment", [target for _, target in pairs], [key for key, _ in pairs], "get_receipts"
    )
    assert [(entry["key"], entry["target"]) for entry in entries] == pairs
    assert [entry["state"] for entry in entries] == ["counted", "counted", "unknown", "counted", "unknown"]
    assert [len(request["RequestItems"]) for request in requests] == [1]
    assert requests[0]["RequestItems"][store.settings.receipts_table]["ConsistentRead"]
    one_target = receipts_of(invoke, "increment", ["plays/v1"], list(keys), "get_receipts")
    assert [(entry["target"], entry["state"]) for entry in one_target] == [
        ("plays/v1", "counted"), ("plays/v1", "unknown"), ("plays/v1", "unknown"),
    ]  # fmt: skip
    assert len(receipts_of(invoke, "increment", ["plays/v1"], [f"{n:030d}" for n in range(100)], "get_receipts")) == 100
    wrong = invoke.http("get_receipts", of="increment", target=["plays/v1", "plays/v2"], key=list(keys))
    assert problem(wrong, 400, "invalid-input")["field"] == "target"


def test_receipts_are_kept_for_the_declared_days_and_health_answers_how_long(
    invoke: Invoke, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A counter with visible="soon" keeps its receipts for at least 8 days, because the rollup counts by receipts."""
    lifetimes_s = events.body_of(invoke.http("health"))["receipts_live_s"]
    assert (lifetimes_s["plays"], lifetimes_s["stock"], lifetimes_s["visits"]) == (86400, 86400, 8 * 86400)
    assert receipts.lifetime_s(store, replace(counters.VISITS, receipt_days=2)) == 8 * 86400
    all_counters = counters.COUNTERS.items()
    # A unique counter takes no `receipt_days`.
    with_nine_days = {name: replace(counter, receipt_days=9) for name, counter in all_counters if not counter.unique}
    for name, counter in with_nine_days.items():
        monkeypatch.setitem(counters.COUNTERS, name, counter)
    invoke = Invoke(store)
    usage = {"operation": "increment", **USAGE, "amount": 1, "caller": "shop"}
    hearts = {"operation": "put_mine", "counter": "hearts", "id": "page", "caller": "bob"}
    for event in (
        {"operation": "increment", **STOCK, "amount": 5, "idempotency_key": "add", "caller": "shop"},
        {"operation": "set_counter", **STOCK, "value": 9, "version": 1, "caller": "shop"},
        {"operation": "hold", **STOCK, "amount": 1, "ttl_s": 60, "idempotency_key": "hold", "caller": "shop"},
        {"operation": "increment", **TICKET, "idempotency_key": "number", "caller": "shop"},
        {"batch": [{**usage, "idempotency_key": "one"}, {**usage, "idempotency_key": "two"}]},
        hearts | {"idempotency_key": "heart"},
    ):
        answer = invoke(event)
        assert {result["status"] for result in answer.get("results", [answer])} <= {200, 201}, answer
    items = store.client.scan(TableName=store.settings.receipts_table)["Items"]
    *lives_s, of_hold_s = sorted(int(item["expiration"]["N"]) - time.time() for item in items)
    assert len(lives_s) == 6
    life_s = 9 * 86400 + clock.CLOCK_DIFFERENCE_S_MAX
    assert all(life_s - 60 < live_s <= life_s for live_s in lives_s)
    assert life_s - 60 < of_hold_s - 7 * 86400 <= life_s, "`change_hold` may let the hold last for seven days"
    assert receipts.lifetime_s(store, with_nine_days["plays"]) == 9 * 86400


def test_an_expired_receipt_is_unknown(invoke: Invoke, store: Store) -> None:
    invoke.http("increment", **USAGE, idempotency_key="the-key")
    [item] = store.client.scan(TableName=store.settings.receipts_table)["Items"]
    expired = {**item, "expiration": {"N": str(int(time.time()) - 10)}}
    store.client.put_item(TableName=store.settings.receipts_table, Item=expired)
    assert state_of(invoke, "increment", "usage/7c20", "the-key") == "unknown"


def test_a_damaged_receipt_is_answered_with_503_and_not_with_unknown(invoke: Invoke, store: Store) -> None:
    invoke.http("increment", **USAGE, idempotency_key="the-key")
    [item] = store.client.scan(TableName=store.settings.receipts_table)["Items"]
    store.client.put_item(TableName=store.settings.receipts_table, Item={**item, "data": {"S": "{"}})
    query = {"of": "increment", "target": ["usage/7c20"], "key": ["the-key"]}
    problem(invoke.http("get_own_receipts", **query), 503, "not-committed")
    problem(invoke.http("increment", **USAGE, idempotency_key="the-key"), 503, "not-committed")
