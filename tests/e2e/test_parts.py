"""The parts of `make dev` without a process: events, responses, routes, throttles, CORS, claims, the pump."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from dev.base.wire import WireError
from dev.gateway import cors, event
from dev.gateway.event import AnswerError, Request, Response
from dev.gateway.routes import Bucket, Routes, decoded
from dev.gateway.tokens import claim_text, scopes
from dev.stack.mappings import StreamMapping
from dev.stack.template import Cors, Route, Throttle
from dev.streams.positions import Place, Positions
from dev.streams.pump import Pump, Reader
from tests.events import sample


def request(**changes: Any) -> Request:
    fields: dict[str, Any] = {
        "method": "GET",
        "path": "/videos/a b/plays",
        "query": "",
        "headers": (("Host", "x.example.com:8080"), ("User-Agent", "curl")),
        "body": b"",
        "source_ip": "127.0.0.1",
        "protocol": "HTTP/1.1",
        "request_id": "JKJaXmPLvHcESHA=",
        "port": 8080,
    }
    return Request(**fields | changes)


ROUTE = Route("GET", "/videos/{id}/plays", "plays")


def made(**changes: Any) -> dict[str, Any]:
    return event.event(request(**changes), ROUTE, {"id": "a b"}, None)


def shape(value: Any) -> Any:
    return {name: shape(entry) for name, entry in value.items()} if isinstance(value, dict) else type(value)


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        ("reads/http-get-counter-plays-short", None),
        ("visits/http-get-visits", None),
        ("children/http-put-mine-likes-short", {"sub": "a"}),
    ],
)
def test_an_event_has_the_shape_of_the_samples(name: str, claims: dict[str, str] | None) -> None:
    wanted = sample(name)
    query = wanted["rawQueryString"]
    authorizer = {"claims": claims, "scopes": None} if claims else None
    path = wanted.get("pathParameters", {})
    ours = event.event(request(query=query), Route("GET", "/x", "x"), path, authorizer)
    for document in (wanted, ours):
        document["headers"] = {}
        document["requestContext"].get("authorizer", {}).get("jwt", {}).pop("claims", None)
    assert shape(ours) == shape(wanted)


@pytest.mark.parametrize(
    ("headers", "body", "encoded"),
    [
        ({"content-type": "application/json"}, b'{"a":1}', False),
        ({"content-type": "text/plain;charset=UTF-8"}, "é".encode(), False),
        ({"content-type": "text/plain"}, b"\xff", True),
        ({"content-type": "application/json", "content-encoding": "gzip"}, b"{}", True),
        ({"content-type": "application/octet-stream"}, b"a", True),
        ({}, b"a", True),
    ],
)
def test_bodies_that_are_not_text_are_in_base64(headers: dict[str, str], body: bytes, encoded: bool) -> None:
    found = made(headers=tuple(headers.items()), body=body)
    assert found["isBase64Encoded"] is encoded
    assert (base64.b64decode(found["body"]) if encoded else found["body"].encode()) == body


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ({"a": 1}, Response(200, b'{"a": 1}', (("content-type", "application/json"),))),
        ("text", Response(200, b"text", (("content-type", "application/json"),))),
        ({"statusCode": 204}, Response(204, b"", (("content-type", "text/plain;charset=utf-8"),))),
        (
            {"statusCode": "201", "headers": {"X-N": 7, "Content-Type": "a/b"}, "cookies": ["c=1"], "body": "b"},
            Response(201, b"b", (("x-n", "7"), ("content-type", "a/b"), ("set-cookie", "c=1"))),
        ),
        (
            {"statusCode": 200, "headers": {"content-type": "a/b"}, "body": "/w==", "isBase64Encoded": True},
            Response(200, b"\xff", (("content-type", "a/b"),)),
        ),
    ],
)
def test_answers_become_responses(answer: object, wanted: Response) -> None:
    assert event.response(json.dumps(answer).encode()) == wanted


@pytest.mark.parametrize(
    "answer",
    [
        {"statusCode": "x"},
        {"statusCode": 99},
        {"statusCode": None},
        {"statusCode": 200, "headers": ["a"]},
        {"statusCode": 200, "body": "?", "isBase64Encoded": True},
    ],
)
def test_malformed_answers_are_errors(answer: object) -> None:
    with pytest.raises(AnswerError):
        event.response(json.dumps(answer).encode())


ROUTES = Routes(Route("GET", path, path) for path in ("/pets/{id}", "/pets/dog", "/pets/{id}/toys"))


@pytest.mark.parametrize(
    ("path", "function", "parameters"),
    [
        ("/pets/dog", "/pets/dog", {}),
        ("/pets/a b", "/pets/{id}", {"id": "a b"}),
        ("/pets/dog/toys", "/pets/{id}/toys", {"id": "dog"}),
    ],
)
def test_the_most_specific_route_wins(path: str, function: str, parameters: dict[str, str]) -> None:
    match = ROUTES.match("GET", path)
    assert match
    assert (match.route.function, match.parameters) == (function, parameters)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/pets/dog"), ("GET", "/pets/dog/"), ("GET", "/pets/"), ("GET", "/pets")]
)
def test_what_no_route_names_matches_none(method: str, path: str) -> None:
    assert ROUTES.match(method, path) is None


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        ("plain", "plain"),
        ("space%20value", "space value"),
        ("question%3Fvalue", "question"),
        ("percent%25done", None),
        ("hash%23value", "hash#value"),
        ("slash%2Fvalue", "slash/value"),
        ("unicode-%CE%BB-%E4%B8%96%E7%95%8C", "unicode-λ-世界"),
        ("literal%252Fvalue", "literal/value"),
        ("literal%253Fvalue", "literal?value"),
        ("literal%2525value", "literal%value"),
    ],
)
def test_a_path_is_decoded_as_an_http_api_does(sent: str, seen: str | None) -> None:
    """a3: `make dev` split the path before it decoded it."""
    if seen is None:
        with pytest.raises(ValueError, match="percent"):
            decoded(sent)
    else:
        assert decoded(sent) == seen


def test_a_bucket_lets_the_burst_through_and_refills(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr("dev.gateway.routes.time.monotonic", lambda: now_s[0])
    bucket = Bucket(Throttle(2, 3))
    assert [bucket.take() for _ in range(5)] == [True, True, True, False, False]
    now_s[0] = 0.5
    assert [bucket.take() for _ in range(2)] == [True, False]
    now_s[0] = 1000
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]


def test_cors_names_only_origins_that_are_listed() -> None:
    listed = Cors(("https://a.example.com",), ("GET",), ("etag",), ("ETag",), 60)
    asked = {"origin": "https://a.example.com", "access-control-request-method": "GET"}
    allowed = {"access-control-allow-origin": "https://a.example.com", "vary": "origin"}
    assert cors.preflight(listed, asked) == allowed | {
        "access-control-allow-methods": "GET",
        "access-control-allow-headers": "etag",
        "access-control-max-age": "60",
    }
    assert cors.preflight(listed, asked | {"origin": "https://b.example.com"}) == {}
    assert cors.preflight(listed, {"origin": "https://a.example.com"}) == {}
    assert cors.simple(listed, asked) == allowed | {"access-control-expose-headers": "ETag"}
    assert cors.simple(listed, {"origin": "https://b.example.com"}) == {}


def test_claims_are_text_and_scopes_are_found() -> None:
    assert [claim_text(value) for value in ("a", 7, True, ["a", "b"], None)] == ["a", "7", "true", "[a b]", "null"]
    assert scopes({"scope": "a b"}) == {"a", "b"}
    assert scopes({}) == set()


class Trimmed:
    """An engine that has trimmed what an iterator behind a position would read."""

    def __init__(self) -> None:
        self.iterators: list[str] = []

    async def call(self, service: str, operation: str, **asked: Any) -> dict[str, Any]:
        if operation == "GetShardIterator":
            self.iterators.append(asked["ShardIteratorType"])
            assert len(self.iterators) <= 2, "it asks for ever"
            return {"ShardIterator": asked["ShardIteratorType"]}
        if asked["ShardIterator"] != "TRIM_HORIZON":
            raise WireError("TrimmedDataAccessException", "")
        return {"Records": []}  # without a next iterator: the shard is closed


def test_a_shard_whose_position_is_trimmed_is_read_from_its_horizon_without_a_word() -> None:
    """An engine may give an iterator for it, and refuse that when it is used."""
    said: list[str] = []
    mapping, wire, positions = StreamMapping("m", "t", "f"), Trimmed(), Positions(None)
    positions.set("m", "arn:aws:dynamodb:x:0:table/t/stream/s", "shard", Place("5"))
    pump = Pump([mapping], {}, wire, positions, said.append)  # type: ignore[arg-type]
    asyncio.run(Reader(pump, mapping, "arn:aws:dynamodb:x:0:table/t/stream/s", "shard").run())
    assert (wire.iterators, said) == (["AFTER_SEQUENCE_NUMBER", "TRIM_HORIZON"], [])
