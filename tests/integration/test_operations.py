"""Each operation answers its sample as its declaration says, on every route, and refuses bad input.

test_needs.py tests the operations' requests to tables.
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
from tally.api.kind import SchemaContext, Source
from tally.api.kinds import KEY_EXAMPLE
from tally.api.operation import Field, Operation, Route
from tally.cli import smoke
from tally.contract import __main__ as generated
from tally.contract import samples
from tally.contract.declarations import OPERATIONS, Declarations
from tally.counter import AMOUNT_MAX
from tally.dev.base.engine import Engine
from tally.dynamo.client import Store
from tally.errors import PROBLEM_TYPE_PREFIX
from tally.fields import CHANGES_MAX, TALLIES_MAX
from tally.pages import DROP_NOTHING
from tests import events
from tests.conftest import fresh_tables
from tests.contexts import LambdaContext
from tests.integration.conftest import Invoke

JSON_HEADERS = {"content-type": "application/json"}
ROUTES = events.routes()
REFUSALS = {400, 404, 412, 413, 415, 428}
NUMBERS_IN_DIRECT_EVENTS = {"version", "from", "to"}  # the schemas say text, because these are text in HTTP requests
VOLATILE = {"hold", "expires_at", "created_at", "at", "since", "as_of"}
SAMPLE = {"caller": samples.CALLER, "id": "7c20"}  # the caller and the id of the samples


def prepare(invoke: Invoke, operation: str) -> dict[str, Any]:
    """Stores what the operation's sample needs to succeed. Returns the fields that no sample can know."""
    if operation != "put_post":
        invoke.direct("put_post", body="first", **SAMPLE)
    if operation == "set_counter":
        return {"version": '"0"'}  # nothing has changed the counter
    invoke.direct("increment", counter="stock", amount=5, idempotency_key="stock-5", **SAMPLE)
    if operation in ("void", "void_changes"):
        change = {"counter": "usage", "id": "7c20", "amount": 1}
        to_void, fields = {"void": ("increment", change), "void_changes": ("change", {"changes": [change]})}[operation]
        invoke.direct(to_void, **fields, idempotency_key=KEY_EXAMPLE, caller=samples.CALLER)
    if operation not in ("change_hold", "commit_hold", "release_hold", "void_hold"):
        return {}
    hold = invoke.direct("hold", counter="stock", amount=2, ttl_s=60, idempotency_key="held", **SAMPLE)
    if operation == "void_hold":
        invoke.direct("commit_hold", counter="stock", hold=hold["body"]["hold"], **SAMPLE)
    return {"hold": hold["body"]["hold"]}


def without_volatile(body: Any) -> Any:
    """Returns the body with "…" for values that differ in each answer."""
    if isinstance(body, list):
        return [without_volatile(member) for member in body]
    if not isinstance(body, dict):
        return body
    return {name: "…" if name in VOLATILE else without_volatile(value) for name, value in body.items()}


@pytest.mark.parametrize("route", ROUTES.values(), ids=lambda route: route.id)
def test_a_sample_succeeds_and_has_the_same_answer_over_http_and_as_a_direct_event(
    route: Route, invoke: Invoke, store: Store, engine: Engine
) -> None:
    """`invoke` compares each answer with the API document."""
    invoke_direct = Invoke(Store(store.client, fresh_tables(engine.endpoint)))
    answer = invoke(samples.http_event(route, COUNTERS, **prepare(invoke, route.operation.name)))
    direct = invoke_direct(samples.direct_event(route, COUNTERS, **prepare(invoke_direct, route.operation.name)))
    assert answer["statusCode"] in route.operation.success_statuses, answer["body"]
    assert answer["statusCode"] == direct["status"]
    if "media_type" not in direct["body"]:  # a badge, or another body that is not JSON
        assert without_volatile(events.body_of(answer)) == without_volatile(direct["body"])
    caching = "public, max-age=" if route.is_cacheable else "no-store"
    assert answer["headers"]["cache-control"].startswith(caching), "CloudFront caches by this header"


def test_the_smoke_test_calls_every_route_and_expects_the_right_answers(invoke: Invoke) -> None:
    scopes = {"tally/read", "tally/write"}
    declarations = Declarations(Path(), COUNTERS, DROP_NOTHING)
    probes = smoke.make_probes(declarations, "https://example.com/a", events.KEY, page_given=True, scopes=scopes)
    called_routes = {probe.name.removesuffix(" again") for probe in probes}
    assert called_routes == {*ROUTES, "no token"}
    for probe in probes:
        if probe.name == "no token":
            continue  # API Gateway answers this request
        # Make the event that API Gateway makes of the probe's request.
        route = ROUTES[probe.name.removesuffix(" again")]
        path, _, query = probe.path.partition("?")
        match = re.fullmatch(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", route.path), path)
        assert match
        event = events.http(route.id, query=query, headers={name.lower(): text for name, text in probe.headers.items()})
        event |= {"pathParameters": {name: unquote(text) for name, text in match.groupdict().items()}}
        event |= {"body": json.dumps(probe.body)} if probe.body else {}
        answer = invoke(event)
        is_text = answer["headers"]["content-type"].startswith(("text/", "image/"))
        body = answer["body"] if is_text else events.body_of(answer)
        http_answer = smoke.HttpAnswer(answer["statusCode"], answer["headers"], body)
        assert probe.is_expected(http_answer), (probe.name, answer)


def test_generated_files_are_up_to_date() -> None:
    """`make generate` writes the samples in `events/`, and the client, and removes samples of removed operations."""
    stale = [
        path for path, text in generated.files(COUNTERS).items() if not path.exists() or path.read_text("utf-8") != text
    ]
    assert (stale, generated.stale_files(generated.files(COUNTERS))) == ([], [])
    folders = {path.parent.name for path in generated.files(COUNTERS) if path.is_relative_to(generated.EVENTS)}
    written_by_hand = {"rollup", "bookkeeper"}
    assert folders | written_by_hand == {path.name for path in generated.EVENTS.iterdir()}


def has_whole_numbers(route: Route) -> bool:
    """Returns whether a request of the route has a whole number. Each change in `changes` has an amount."""
    context = SchemaContext(route.served_counters(COUNTERS), anonymous=False)
    return any(
        field.name == "changes" or field.kind.schema_for(context).get("type") == "integer" for field in route.fields
    )


@pytest.mark.parametrize("route", [*filter(has_whole_numbers, ROUTES.values())], ids=lambda route: route.id)
def test_a_whole_number_may_be_written_with_a_fraction_or_an_exponent(route: Route, invoke: Invoke) -> None:
    """JSON Schema and the API document allow 7.0 and 70e-1 for 7, and some libraries write such numbers."""
    fields = prepare(invoke, route.operation.name) | {"limit": 7}  # in a query or in a body
    event, direct = samples.http_event(route, COUNTERS, **fields), samples.direct_event(route, COUNTERS, **fields)
    invoke(direct)  # the first request may change something, and later requests do not
    answers = []
    for spelling in (r"\g<0>", r"\g<0>.0", r"\g<0>0e-1"):
        body = re.sub(r"(?<=: )-?[0-9]+", spelling, event.get("body", ""))
        query = re.sub(r"(?<=limit=)[0-9]+", spelling, event["rawQueryString"])
        entry = json.loads(re.sub(r"(?<=: )-?[0-9]+", spelling, json.dumps(direct)))
        answers += [invoke(event | {"body": body, "rawQueryString": query}), invoke(entry)]
    assert {events.status_of(answer) for answer in answers} <= {*route.operation.success_statuses}
    assert [without_volatile(events.body_of(answer)) for answer in answers] == [
        without_volatile(events.body_of(answers[0]))
    ] * 6


# Bad input

ODD_VALUES: list[object] = [
    None, True, 0, -1, 1.5, 10**30, "", " ", "\x00", "\ud800", "a#b", "ü" * 9000, "x" * 20_000, [], ["x"], {}, {"": 1},
]  # fmt: skip


def invalid_values(route: Route, field: Field) -> list[object]:
    """Returns the values of ODD_VALUES that are invalid for this field, as the API document says."""
    schema = field.kind.schema_for(SchemaContext(route.served_counters(COUNTERS), anonymous=not route.needs_caller))
    schema = schema["items"] if field.kind.list_max else schema  # a query repeats the field for each member
    validator = Draft202012Validator(schema)
    in_url = [value for value in ODD_VALUES if isinstance(value, str) and value != "\ud800"]  # a URL has no surrogate
    values = ODD_VALUES if field.source is Source.BODY else in_url
    return [value for value in values if not validator.is_valid(value)]


def bad_requests(route: Route) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each bad request: a description, and the event of API Gateway."""
    valid_values = samples.field_values(route, COUNTERS)
    for field in route.fields:
        if not field.kind.is_documented:
            continue
        for value in invalid_values(route, field):
            sent_value = [value] if field.kind.list_max else value
            # None removes the field from a sample. REFUSED_REQUESTS has the cases of lists in a body.
            if sent_value is None or (field.source is Source.BODY and field.kind.list_max):
                continue
            yield (
                f"{field.name} is {str(value)[:20]!r}",
                samples.http_event(route, COUNTERS, **{field.name: sent_value}),
            )
        if field.required and field.source is not Source.PATH:
            yield f"no {field.name}", samples.http_event(route, COUNTERS, **{field.name: None})
        if field.source is Source.QUERY:
            event = samples.http_event(route, COUNTERS, **{field.name: valid_values.get(field.name, "x")})
            times = field.kind.list_max + 1 if field.kind.list_max else 2
            pairs = event["rawQueryString"].split("&")
            pair = next(part for part in pairs if part.startswith(f"{field.http_name}="))
            yield f"{field.name} {times} times", {**event, "rawQueryString": "&".join([pair] * times)}
        if field.source is Source.BODY:
            body = json.loads(samples.http_event(route, COUNTERS)["body"])
            with_null = {**samples.http_event(route, COUNTERS), "body": json.dumps(body | {field.http_name: None})}
            yield f"{field.name} is null", with_null
            once = json.dumps({field.http_name: 1} | body)
            yield f"{field.name} twice", {**with_null, "body": f'{once[:-1]}, "{field.http_name}": 1}}'}
    event = samples.http_event(route, COUNTERS)
    if not route.operation.takes_any_query:
        query = event["rawQueryString"]
        yield "an unknown query", {**event, "rawQueryString": f"{query}&" * bool(query) + "unknown=1"}
        yield "a query that is not UTF-8", {**event, "rawQueryString": "x=%ff"}
        yield "many parameters", {**event, "rawQueryString": "&".join(f"a{n}=1" for n in range(400))}
    headers = event["headers"] | JSON_HEADERS
    bodies = {"an unknown field": '{"unknown": 1}', "not JSON": "{", "a list": "[]", "NaN": '{"a": NaN}'}
    for name, text in bodies.items():
        yield name, {**event, "body": text, "headers": headers}
    deep, huge = "[" * 10_000, '{"a": ' + "9" * 6000 + "}"  # both are too large for Python's parser
    yield "a deep body", {**event, "body": deep, "headers": headers}
    yield "a huge number", {**event, "body": huge, "headers": headers}
    yield "a large body", {**event, "body": "x" * (route.operation.body_bytes_max + 1), "headers": headers}
    yield "not base64", {**event, "body": "!!!", "headers": headers, "isBase64Encoded": True}
    yield "another media type", {**event, "body": "{}", "headers": headers | {"content-type": "image/png"}}
    yield "a compressed body", {**event, "body": "{}", "headers": headers | {"content-encoding": "gzip"}}


def item_count(store: Store) -> int:
    """Returns the number of items in all tables."""
    tables = (store.settings.counts_table, store.settings.receipts_table, store.settings.ledger_table)
    return sum(store.client.scan(TableName=table)["Count"] for table in tables)


@pytest.mark.parametrize("route", ROUTES.values(), ids=lambda route: route.id)
def test_bad_requests_are_refused_with_a_problem_and_store_nothing(route: Route, invoke: Invoke, store: Store) -> None:
    accepted = {}
    for name, event in bad_requests(route):
        answer = invoke(event)
        document = events.body_of(answer) if answer["statusCode"] >= 400 else {}
        if answer["statusCode"] not in REFUSALS or not document.get("detail"):
            accepted[name] = answer["statusCode"]
        else:
            assert answer["headers"]["content-type"] == "application/problem+json"
            assert document["type"].startswith(PROBLEM_TYPE_PREFIX)
            assert document["status"] == answer["statusCode"]
            assert ("names a field twice" in document["detail"]) == name.endswith(" twice")
    assert accepted == {}
    assert item_count(store) == 0


@pytest.mark.parametrize(
    "operation",
    [operation for operation in OPERATIONS if operation.routes(COUNTERS)],
    ids=lambda operation: operation.name,
)
def test_bad_direct_events_are_refused_with_a_problem_and_store_nothing(
    operation: Operation, invoke: Invoke, store: Store
) -> None:
    [first_route, *_] = operation.routes(COUNTERS)
    event = samples.direct_event(first_route, COUNTERS)
    bad: list[tuple[str, dict[str, Any]]] = [("unknown", event | {"unknown": 1})]
    for field in operation.fields:
        schema = field.kind.schema_for(
            SchemaContext(first_route.served_counters(COUNTERS), anonymous=not first_route.needs_caller)
        )
        validator = Draft202012Validator(schema)
        bad += [
            (f"{field.name}={str(value)[:20]!r}", event | {field.name: value})
            for value in ODD_VALUES
            if not validator.is_valid(value) and not (value == 0 and field.name in NUMBERS_IN_DIRECT_EVENTS)
        ]
        # An argument `from_` of an operation's function is the field `from`.
        bad += [(f"{field.name}_", event | {f"{field.name}_": event.get(field.name)})]
        if field.required:
            bad.append((f"no {field.name}", {name: value for name, value in event.items() if name != field.name}))
    if first_route.needs_caller and (operation.writes or not first_route.scope):  # a service reads without a caller
        bad.append(("no caller", {name: value for name, value in event.items() if name != "caller"}))
    bad += [(f"caller={str(value)[:20]!r}", event | {"caller": value}) for value in (7, "", "ü" * 200, ["a"], {})]
    accepted = {name: answer["status"] for name, sent in bad if (answer := invoke(sent))["status"] not in REFUSALS}
    assert accepted == {}
    assert item_count(store) == 0


REFUSED_REQUESTS = [
    ("put_post", {"raw": b'{"body": "\xff"}'}, 400, "invalid-input", None),
    ("put_post", {"headers": {"content-type": "text/plain"}}, 415, "unsupported-media-type", None),
    ("put_post", {"sub": "ü" * 200}, 400, "invalid-input", "caller"),
    ("put_post", {"sub": ""}, 401, "unauthenticated", None),
    (  # API Gateway joins two headers of one name with a comma
        "increment_plays_short_route", {"idempotency_key": "a" * 30 + "," + "b" * 30}, 400, "invalid-input",
        "Idempotency-Key",
    ),
    ("increment_plays_short_route", {"document": {"key": "k" * 40}}, 400, "invalid-input", "key"),  # not the header's
    ("change", {"changes": [{"counter": ["plays"]}]}, 400, "invalid-input", "changes[0].counter"),
    ("change", {"changes": [{}] * (CHANGES_MAX + 1)}, 413, "payload-too-large", "changes"),
    ("change", {"changes": [{"counter": "plays", "id": str(n)} for n in range(TALLIES_MAX + 1)]}, 413,
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
    ("put_mine_likes_short_route", {}, 404, "not-found", None),
]  # fmt: skip


@pytest.mark.parametrize(("route", "change", "status", "slug", "field"), REFUSED_REQUESTS)
def test_a_refusal_has_the_right_status_type_and_field(
    route: str, change: dict[str, Any], status: int, slug: str, field: str | None, invoke: Invoke, store: Store
) -> None:
    answer = invoke.http(route, **change)
    document = events.body_of(answer)
    assert (answer["statusCode"], document["type"]) == (status, PROBLEM_TYPE_PREFIX + slug), document
    assert document.get("field") == field
    assert item_count(store) == 0


def test_an_unknown_route_is_answered_with_404_and_a_route_without_claims_with_401(invoke: Invoke) -> None:
    """The function checks the claims, too, in case API Gateway has no authorizer for the route."""
    answer = invoke({**events.http("get_post"), "routeKey": "GET /nothing"}, function="posts")
    assert (answer["statusCode"], events.body_of(answer)["type"]) == (404, PROBLEM_TYPE_PREFIX + "not-found")
    event = events.http("put_mine_likes_short_route")
    del event["requestContext"]["authorizer"]
    assert invoke(event)["statusCode"] == 401


PLAY = {"operation": "increment", "counter": "plays", "id": "9f3a", "idempotency_key": events.KEY}
REQUEST = events.http("increment_plays_short_route", id="9f3a", idempotency_key=events.KEY)
DIRECT_REFUSALS: list[tuple[Any, int, str | None]] = [
    *((REQUEST | odd, 400, "operation") for odd in (  # not events of API Gateway, so direct events without `operation`
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
    ({**PLAY, "operation": "put_mine", "caller": "a"}, 400, "operation"),  # another function has this operation
    ({**PLAY, "idempotency_key": "k" * 21}, 400, "Idempotency-Key"),  # anonymous keys: at least 22
    ({"batch": []}, 400, "batch"),
    ({"batch": [{}], "operation": "increment"}, 400, "batch"),
    ({"batch": [{}] * 101}, 413, "batch"),
    ({"batch": [{}], "on_failure": "ignore"}, 400, "on_failure"),
    ({**PLAY, "on_failure": "raise"}, 400, "on_failure"),
]  # fmt: skip


@pytest.mark.parametrize(("event", "status", "field"), DIRECT_REFUSALS)
def test_an_invalid_event_is_refused(event: Any, status: int, field: str | None, invoke: Invoke, store: Store) -> None:
    answer = invoke(event, function="increments")
    assert (answer["status"], answer["body"].get("field")) == (status, field), answer
    assert item_count(store) == 0


def test_a_bad_entry_of_a_batch_does_not_fail_the_other_entries(invoke: Invoke) -> None:
    batch = [PLAY, {"operation": "increment"}, None, {"batch": [PLAY]}, PLAY]
    results = invoke({"batch": batch})["results"]
    assert [result["status"] for result in results] == [200, 400, 400, 400, 200]
    assert results[4]["replayed"]


def test_without_time_left_every_entry_is_answered_with_503_and_nothing_is_stored(invoke: Invoke, store: Store) -> None:
    results = invoke({"batch": [PLAY, PLAY]}, LambdaContext(remaining_ms=100))["results"]
    assert [result["status"] for result in results] == [503, 503]
    assert item_count(store) == 0
