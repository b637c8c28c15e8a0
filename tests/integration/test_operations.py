"""Every operation by every route: its sample is answered as its declaration says, and bad input is refused.

What each does to the tables: test_needs.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from jsonschema import Draft202012Validator

from counters import COUNTERS
from tally.api.kinds import KEY_EXAMPLE, SchemaContext, Source
from tally.api.operation import Field, Operation, Route
from tally.cli import smoke
from tally.contract import __main__ as generated
from tally.contract import samples
from tally.contract.declarations import OPERATIONS, Declarations
from tally.counter import AMOUNT_MAX
from tally.dev.base.engine import Engine
from tally.dynamo.client import Store
from tally.errors import PROBLEM_TYPE_PREFIX
from tally.pages import DROP_NOTHING
from tests import events
from tests.conftest import fresh_tables
from tests.contexts import LambdaContext
from tests.integration.conftest import Invoke

JSON = {"content-type": "application/json"}
ROUTES = events.routes()
REFUSED = {400, 404, 412, 413, 415, 428}
AS_NUMBERS = {"version", "from", "to"}  # an HTTP request has them as text, a direct event may have numbers
VOLATILE = {"hold", "expires_at", "created_at", "at", "since", "as_of"}
REST = {"caller": samples.CALLER, "id": "7c20"}  # who and what the samples name


def prepared(invoke: Invoke, operation: str) -> dict[str, Any]:
    """A world in which the operation's sample succeeds; the fields that the sample cannot know."""
    if operation != "put_post":
        invoke.direct("put_post", body="first", **REST)
    if operation == "set_counter":
        return {"version": '"0"'}
    invoke.direct("increment", counter="stock", amount=5, idempotency_key="stock-5", **REST)
    if operation in ("void", "void_changes"):
        change = {"counter": "usage", "id": "7c20", "amount": 1}
        counted = {"void": ("increment", change), "void_changes": ("change", {"changes": [change]})}[operation]
        invoke.direct(counted[0], **counted[1], idempotency_key=KEY_EXAMPLE, caller=samples.CALLER)
    if operation not in ("change_hold", "commit_hold", "release_hold", "void_hold"):
        return {}
    held = invoke.direct("hold", counter="stock", amount=2, ttl_s=60, idempotency_key="held", **REST)
    if operation == "void_hold":
        invoke.direct("commit_hold", counter="stock", hold=held["body"]["hold"], **REST)
    return {"hold": held["body"]["hold"]}


def steady(body: Any) -> Any:
    """The body without what no two requests have in common."""
    if isinstance(body, list):
        return [steady(one) for one in body]
    if not isinstance(body, dict):
        return body
    return {name: "…" if name in VOLATILE else steady(value) for name, value in body.items()}


@pytest.mark.parametrize("route", ROUTES.values(), ids=lambda route: route.id)
def test_a_sample_succeeds_and_is_answered_alike_over_http_and_directly(
    route: Route, invoke: Invoke, store: Store, engine: Engine
) -> None:
    """`invoke` holds each answer against the document."""
    other = Invoke(Store(store.client, fresh_tables(engine.endpoint)))
    answer = invoke(samples.http_event(route, COUNTERS, **prepared(invoke, route.operation.name)))
    direct = other(samples.direct_event(route, COUNTERS, **prepared(other, route.operation.name)))
    assert answer["statusCode"] in route.operation.success_statuses, answer["body"]
    assert answer["statusCode"] == direct["status"]
    if "media_type" not in direct["body"]:
        assert steady(events.body_of(answer)) == steady(direct["body"])
    kept = "public, max-age=" if route.is_cacheable else "no-store"
    assert answer["headers"]["cache-control"].startswith(kept), "CloudFront keeps what says so"


def test_the_smoke_test_calls_every_route_and_expects_what_it_gets(invoke: Invoke) -> None:
    scopes = {"tally/read", "tally/write"}
    calls = smoke.make_probes(
        Declarations(Path(), COUNTERS, DROP_NOTHING),
        "https://example.com/a",
        events.KEY,
        page_given=True,
        scopes=scopes,
    )
    found = {call.name.removesuffix(" again") for call in calls}
    assert found == {*ROUTES, "no token"}
    for call in calls:
        if call.name == "no token":
            continue  # API Gateway answers it
        route = ROUTES[call.name.removesuffix(" again")]
        path, _, query = call.path.partition("?")
        named = re.fullmatch(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", route.path), path)
        assert named
        event = events.http(route.id, query=query, headers={name.lower(): one for name, one in call.headers.items()})
        event |= {"pathParameters": {name: unquote(one) for name, one in named.groupdict().items()}}
        event |= {"body": json.dumps(call.body)} if call.body else {}
        answer = invoke(event)
        text = answer["headers"]["content-type"].startswith(("text/", "image/"))
        body = answer["body"] if text else events.body_of(answer)
        seen = smoke.HttpAnswer(answer["statusCode"], answer["headers"], body)
        assert call.expected(seen), (call.name, answer)


def test_what_follows_from_the_operations_is_generated() -> None:
    """`make generate`: the samples in `events/`, and the client."""
    old = [
        path for path, text in generated.files(COUNTERS).items() if not path.exists() or path.read_text("utf-8") != text
    ]
    assert (old, generated.stale_files(generated.files(COUNTERS))) == ([], [])
    folders = {path.parent.name for path in generated.files(COUNTERS) if path.is_relative_to(generated.EVENTS)}
    assert folders | {"rollup", "bookkeeper"} == {path.name for path in generated.EVENTS.iterdir()}


def whole(route: Route) -> bool:
    """Whether a request of the route has whole numbers."""
    asked = SchemaContext(route.served_counters(COUNTERS), anonymous=False)
    return any(
        field.name == "changes" or field.kind.schema_for(asked).get("type") == "integer" for field in route.fields
    )


@pytest.mark.parametrize("route", [*filter(whole, ROUTES.values())], ids=lambda route: route.id)
def test_a_whole_number_is_the_same_with_a_fraction_or_an_exponent(route: Route, invoke: Invoke) -> None:
    """To JSON Schema, and so to the document: some libraries write 7 so."""
    changed = prepared(invoke, route.operation.name) | {"limit": 7}
    event, direct = samples.http_event(route, COUNTERS, **changed), samples.direct_event(route, COUNTERS, **changed)
    invoke(direct)  # what has changed something by now changes nothing more
    answers = []
    for written in (r"\g<0>", r"\g<0>.0", r"\g<0>0e-1"):
        body = re.sub(r"(?<=: )-?[0-9]+", written, event.get("body", ""))
        query = re.sub(r"(?<=limit=)[0-9]+", written, event["rawQueryString"])
        entry = json.loads(re.sub(r"(?<=: )-?[0-9]+", written, json.dumps(direct)))
        answers += [invoke(event | {"body": body, "rawQueryString": query}), invoke(entry)]
    assert {events.status_of(one) for one in answers} <= {*route.operation.success_statuses}
    assert [steady(events.body_of(one)) for one in answers] == [steady(events.body_of(answers[0]))] * 6


# Bad input

ODD: list[object] = [
    None, True, 0, -1, 1.5, 10**30, "", " ", "\x00", "\ud800", "a#b", "ü" * 9000, "x" * 20_000, [], ["x"], {}, {"": 1},
]  # fmt: skip


def wrong(route: Route, field: Field) -> list[object]:
    """Values that are no value of this field, as the document says."""
    schema = field.kind.schema_for(SchemaContext(route.served_counters(COUNTERS), anonymous=not route.needs_caller))
    schema = schema["items"] if field.kind.list_max else schema  # a query repeats it
    validator = Draft202012Validator(schema)
    words = {"true", "false"} if schema.get("type") == "boolean" else set()
    in_url = [one for one in ODD if isinstance(one, str) and one not in words]
    found = ODD if field.source is Source.BODY else in_url
    return [one for one in found if not _surrogate(one, field) and not validator.is_valid(one)]


def _surrogate(value: object, field: Field) -> bool:
    return value == "\ud800" and field.source is not Source.BODY  # no URL has one


def bad_requests(route: Route) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is wrong with the event of API Gateway, and the event."""
    good = samples.field_values(route, COUNTERS)
    for field in route.fields:
        if not field.kind.is_documented:
            continue
        for value in wrong(route, field):
            given = [value] if field.kind.list_max else value
            if given is None or (field.source is Source.BODY and field.kind.list_max):
                continue
            yield f"{field.name} is {str(value)[:20]!r}", samples.http_event(route, COUNTERS, **{field.name: given})
        if field.required and field.source is not Source.PATH:
            yield f"no {field.name}", samples.http_event(route, COUNTERS, **{field.name: None})
        if field.source is Source.QUERY:
            event = samples.http_event(route, COUNTERS, **{field.name: good.get(field.name, "x")})
            times = field.kind.list_max + 1 if field.kind.list_max else 2
            pair = next(
                (one for one in event["rawQueryString"].split("&") if one.startswith(f"{field.http_name}=")), "x=1"
            )
            yield f"{field.name} {times} times", {**event, "rawQueryString": "&".join([pair] * times)}
        if field.source is Source.BODY:
            body = json.loads(samples.http_event(route, COUNTERS)["body"])
            sent = {**samples.http_event(route, COUNTERS), "body": json.dumps(body | {field.http_name: None})}
            yield f"{field.name} is null", sent
            twice = json.dumps(body)[:-1] + f", {json.dumps(field.http_name)}: 1}}"
            yield f"{field.name} twice", {**sent, "body": twice}
    event = samples.http_event(route, COUNTERS)
    if not route.operation.any_query:
        asked = event["rawQueryString"]
        yield "an unknown query", {**event, "rawQueryString": f"{asked}&" * bool(asked) + "unknown=1"}
        yield "a query that is no UTF-8", {**event, "rawQueryString": "x=%ff"}
        yield "a long query", {**event, "rawQueryString": "&".join(f"a{n}=1" for n in range(400))}
    headers = event["headers"] | JSON
    for name, text in (
        ("an unknown field", '{"unknown": 1}'),
        ("no JSON", "{"),
        ("a list", "[]"),
        ("NaN", '{"a": NaN}'),
    ):
        yield name, {**event, "body": text, "headers": headers}
    deep, huge = "[" * 10_000, '{"a": ' + "9" * 6000 + "}"
    yield "a deep body", {**event, "body": deep, "headers": headers}
    yield "a huge number", {**event, "body": huge, "headers": headers}
    yield "a large body", {**event, "body": "x" * (route.operation.body_bytes_max + 1), "headers": headers}
    yield "no base64", {**event, "body": "!!!", "headers": headers, "isBase64Encoded": True}
    yield "another type", {**event, "body": "{}", "headers": headers | {"content-type": "image/png"}}
    yield "a packed body", {**event, "body": "{}", "headers": headers | {"content-encoding": "gzip"}}


def stored(store: Store) -> int:
    """How many items there are in all tables."""
    tables = (store.settings.counts_table, store.settings.receipts_table, store.settings.ledger_table)
    return sum(store.client.scan(TableName=table)["Count"] for table in tables)


@pytest.mark.parametrize("route", ROUTES.values(), ids=lambda route: route.id)
def test_bad_requests_are_refused_with_a_problem_and_store_nothing(route: Route, invoke: Invoke, store: Store) -> None:
    taken = {}
    for name, event in bad_requests(route):
        answer = invoke(event)
        document = events.body_of(answer) if answer["statusCode"] >= 400 else {}
        if answer["statusCode"] not in REFUSED or not document.get("detail"):
            taken[name] = answer["statusCode"]
        else:
            assert answer["headers"]["content-type"] == "application/problem+json"
            assert document["type"].startswith(PROBLEM_TYPE_PREFIX)
            assert "\ud800" in name or document["status"] == answer["statusCode"]
    assert taken == {}
    assert stored(store) == 0


@pytest.mark.parametrize("operation", [one for one in OPERATIONS if one.routes(COUNTERS)], ids=lambda one: one.name)
def test_bad_direct_events_are_refused_with_a_problem_and_store_nothing(
    operation: Operation, invoke: Invoke, store: Store
) -> None:
    [general, *_] = operation.routes(COUNTERS)
    event = samples.direct_event(general, COUNTERS)
    bad: list[tuple[str, dict[str, Any]]] = [("unknown", event | {"unknown": 1})]
    for field in operation.fields:
        schema = field.kind.schema_for(
            SchemaContext(general.served_counters(COUNTERS), anonymous=not general.needs_caller)
        )
        validator = Draft202012Validator(schema)
        bad += [
            (f"{field.name}={str(value)[:20]!r}", event | {field.name: value})
            for value in ODD
            if not validator.is_valid(value) and not (value == 0 and field.name in AS_NUMBERS)
        ]
        bad += [(f"{field.name}_", event | {f"{field.name}_": event.get(field.name)})]
        if field.required:
            bad.append((f"no {field.name}", {name: value for name, value in event.items() if name != field.name}))
    if general.needs_caller and (operation.writes or not general.scope):
        bad.append(("no caller", {name: value for name, value in event.items() if name != "caller"}))
    bad += [(f"caller={str(value)[:20]!r}", event | {"caller": value}) for value in (7, "", "ü" * 200, ["a"], {})]
    taken = {name: answer["status"] for name, sent in bad if (answer := invoke(sent))["status"] not in REFUSED}
    assert taken == {}
    assert stored(store) == 0


BOUNDS = [
    ("put_post", {"raw": b'{"body": "\xff"}'}, 400, "invalid-input", None),
    ("put_post", {"headers": {"content-type": "text/plain"}}, 415, "unsupported-media-type", None),
    ("put_post", {"sub": "ü" * 200}, 400, "invalid-input", "caller"),
    ("put_post", {"sub": ""}, 401, "unauthenticated", None),
    ("increment_plays_short", {"idempotency_key": "a" * 30 + "," + "b" * 30}, 400, "invalid-input", "Idempotency-Key"),
    ("increment_plays_short", {"document": {"key": "k" * 40}}, 400, "invalid-input", "key"),  # not the header's
    ("change", {"changes": [{"counter": ["plays"]}]}, 400, "invalid-input", "changes[0].counter"),
    ("change", {"changes": [{"counter": "plays", "id": "a"}] * 1001}, 413, "payload-too-large", "changes"),
    ("change", {"changes": [{"counter": "plays", "id": str(n)} for n in range(91)]}, 413,
     "payload-too-large", "changes"),
    ("put_child", {"counter": "usage"}, 400, "invalid-input", "counter"),
    ("increment", {"counter": "members"}, 400, "invalid-input", "counter"),
    ("increment", {"counter": "visits"}, 400, "invalid-input", "counter"),
    ("set_counter", {"counter": "members"}, 400, "invalid-input", "counter"),
    ("put_limit", {"counter": "stock"}, 400, "invalid-input", "counter"),
    ("put_limit", {"limit": AMOUNT_MAX + 1}, 400, "invalid-input", "limit"),
    ("put_limit", {"limit": -1}, 400, "invalid-input", "limit"),
    ("get_counter", {"counter": "visits"}, 400, "invalid-input", "counter"),
    ("hold", {"counter": "members"}, 400, "invalid-input", "counter"),
    ("get_post", {}, 404, "not-found", None),
    ("put_mine_likes_short", {}, 404, "not-found", None),
]  # fmt: skip


@pytest.mark.parametrize(("route", "change", "status", "slug", "field"), BOUNDS)
def test_what_is_just_too_much_or_of_another_kind_is_refused_by_its_name(
    route: str, change: dict[str, Any], status: int, slug: str, field: str | None, invoke: Invoke, store: Store
) -> None:
    answer = invoke.http(route, **change)
    document = events.body_of(answer)
    assert (answer["statusCode"], document["type"]) == (status, PROBLEM_TYPE_PREFIX + slug), document
    assert document.get("field") == field
    assert stored(store) == 0


def test_a_route_that_the_function_does_not_have_is_404_and_one_without_claims_401(invoke: Invoke) -> None:
    """Even if no authorizer stands before it."""
    other = invoke({**events.http("get_post"), "routeKey": "GET /nothing"}, function="posts")
    assert (other["statusCode"], events.body_of(other)["type"]) == (404, PROBLEM_TYPE_PREFIX + "not-found")
    event = events.http("put_mine_likes_short")
    del event["requestContext"]["authorizer"]
    assert invoke(event)["statusCode"] == 401


PLAY = {"operation": "increment", "counter": "plays", "id": "9f3a", "idempotency_key": events.KEY}
REQUEST = events.http("increment_plays_short", id="9f3a", idempotency_key=events.KEY)
DIRECT_REFUSALS: list[tuple[Any, int, str | None]] = [
    *((REQUEST | odd, 400, "operation") for odd in (
        {"routeKey": None}, {"routeKey": ["POST"]}, {"requestContext": None}, {"requestContext": {}},
        {"requestContext": {"requestId": 7}}, {"requestContext": {"requestId": "r", "authorizer": "x"}},
        {"requestContext": {"requestId": "r", "authorizer": {"jwt": 7}}},
        {"requestContext": {"requestId": "r", "authorizer": {"jwt": {"claims": ["sub"]}}}},
        {"headers": None}, {"headers": ["host"]}, {"headers": {"idempotency-key": 7}}, {"pathParameters": "id"},
        {"rawQueryString": 7}, {"rawQueryString": None}, {"body": {"amount": 1}}, {"body": 7},
    )),
    ({"routeKey": "POST /videos/{id}/plays"}, 400, "operation"),
    ({"operation": "nothing"}, 400, "operation"),
    ({"operation": ["increment"]}, 400, "operation"),
    ([], 400, None),
    (None, 400, None),
    ({**PLAY, "operation": "put_mine", "caller": "a"}, 400, "operation"),
    ({**PLAY, "idempotency_key": "k" * 21}, 400, "Idempotency-Key"),
    ({"batch": []}, 400, "batch"),
    ({"batch": [{}], "operation": "increment"}, 400, "batch"),
    ({"batch": [{}] * 101}, 413, "batch"),
    ({"batch": [{}], "on_failure": "ignore"}, 400, "on_failure"),
    ({**PLAY, "on_failure": "raise"}, 400, "on_failure"),
]  # fmt: skip


@pytest.mark.parametrize(("event", "status", "field"), DIRECT_REFUSALS)
def test_an_event_that_is_none_is_refused(
    event: Any, status: int, field: str | None, invoke: Invoke, store: Store
) -> None:
    answer = invoke(event, function="increments")
    assert (answer["status"], answer["body"].get("field")) == (status, field), answer
    assert stored(store) == 0


def test_one_bad_entry_of_a_batch_does_not_fail_the_others(invoke: Invoke) -> None:
    batch = [PLAY, {"operation": "increment"}, None, {"batch": [PLAY]}, PLAY]
    results = invoke({"batch": batch})["results"]
    assert [result["status"] for result in results] == [200, 400, 400, 400, 200]
    assert results[4]["replayed"]


def test_without_time_left_nothing_is_done_and_every_entry_is_told(invoke: Invoke, store: Store) -> None:
    results = invoke({"batch": [PLAY, PLAY]}, LambdaContext(remaining_ms=100))["results"]
    assert [result["status"] for result in results] == [503, 503]
    assert stored(store) == 0
