"""Tests parts of `make dev` in this process: events, responses, paths, buckets, and a reader of the pump."""

from __future__ import annotations

import asyncio
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from tally.dev.base.objects import Buckets, ObjectError
from tally.dev.base.wire import WireError
from tally.dev.functions.worker import Outcome
from tally.dev.gateway import event
from tally.dev.gateway.event import Response
from tally.dev.gateway.gateway import Gateway
from tally.dev.gateway.routes import Match, decoded
from tally.dev.stack.mappings import StreamMapping
from tally.dev.stack.template import Route, Template, Throttle
from tally.dev.streams.positions import Position, Positions
from tally.dev.streams.pump import Pump, ShardReader
from tests.events import sample


def shape(value: Any) -> Any:
    """Returns the names of an object, with the types of the values."""
    return {name: shape(entry) for name, entry in value.items()} if isinstance(value, dict) else type(value)


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        ("reads/http-get-counter-plays-short-route", None),
        ("visits/http-get-visits", None),
        ("children/http-put-mine-likes-short-route", {"sub": "a"}),
    ],
)
def test_an_event_has_the_shape_of_the_samples(name: str, claims: dict[str, str] | None) -> None:
    expected = sample(name)
    query = expected["rawQueryString"]
    authorizer = {"claims": claims, "scopes": None} if claims else None
    match = Match(Route("GET", "/x", "x"), expected.get("pathParameters", {}))
    request = make_mocked_request("GET", "/x", {"Host": "x.example.com:8080", "User-Agent": "curl"})
    event_of_dev = event.event(
        request, "/videos/a b/plays", query, body=b"", match=match, authorizer=authorizer, request_id="JKJaXmPLvHcESHA="
    )
    for document in (expected, event_of_dev):  # callers choose the headers, and the issuer the claims
        document["headers"] = {}
        document["requestContext"].get("authorizer", {}).get("jwt", {}).pop("claims", None)
    assert shape(event_of_dev) == shape(expected)


@pytest.mark.parametrize(
    ("answer", "expected"),
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
def test_answers_become_responses(answer: object, expected: Response) -> None:
    assert event.response(json.dumps(answer).encode()) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("plain", "plain"),
        ("space%20value", "space value"),
        ("question%3Fvalue", "question"),  # API Gateway cuts the decoded path at "?"
        ("percent%25done", None),  # API Gateway decodes twice, and "%do" is not an encoded byte
        ("hash%23value", "hash#value"),
        ("slash%2Fvalue", "slash/value"),
        ("unicode-%CE%BB-%E4%B8%96%E7%95%8C", "unicode-λ-世界"),
        ("literal%252Fvalue", "literal/value"),
        ("literal%253Fvalue", "literal?value"),
        ("literal%2525value", "literal%value"),
    ],
)
def test_a_path_is_decoded_as_an_http_api_does(path: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(ValueError, match="percent"):
            decoded(path)
    else:
        assert decoded(path) == expected


class FakeWorkers:
    """In place of the workers: each function answers {}."""

    async def invoke(self, name: str, payload: bytes) -> Outcome:
        return Outcome(b"{}")


def test_a_throttled_route_answers_429_until_its_rate_allows_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    template = Template({}, (Route("GET", "/health", "health", throttle=Throttle(rate_per_s=10, burst=2)),))
    gateway = Gateway(template, FakeWorkers(), issuer=None, access_log=io.StringIO(), say=print)  # type: ignore[arg-type]

    def statuses() -> list[int]:
        responses = [asyncio.run(gateway.handle(make_mocked_request("GET", "/health"))) for _ in range(3)]
        refused = {response.body for response in responses if response.status == 429}
        assert refused == {b'{"message":"Too Many Requests"}'}
        return [response.status for response in responses]

    assert statuses() == [200, 200, 429]
    now_s = 0.1
    assert statuses() == [200, 429, 429]
    now_s = 9
    assert statuses() == [200, 200, 429], "at most `burst` requests at one time"


def test_an_object_name_cannot_leave_its_folder(tmp_path: Path) -> None:
    for bucket in ("..", "a/b", ""):
        with pytest.raises(ObjectError):
            Buckets(tmp_path / "objects", (bucket,)).put(bucket, "x", content=b"", content_type="a/b")
    stored = Buckets(tmp_path / "objects", ("abc",)).put("abc", "../../x", content=b"1", content_type="a/b")
    assert stored.key == "../../x"
    assert [path.parent for path in tmp_path.rglob("*.object")] == [tmp_path / "objects/abc"]


class TrimmedStream:
    """In place of the engine: it has trimmed the records after the stored position."""

    def __init__(self) -> None:
        self.iterators: list[str] = []

    async def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        if operation == "GetShardIterator":
            self.iterators.append(arguments["ShardIteratorType"])
            assert len(self.iterators) <= 2, "the reader does not stop"
            return {"ShardIterator": arguments["ShardIteratorType"]}
        if arguments["ShardIterator"] != "TRIM_HORIZON":
            raise WireError("TrimmedDataAccessException", "")
        return {"Records": []}  # without a next iterator: the shard is closed


def test_a_shard_whose_position_is_trimmed_is_read_from_its_oldest_record_without_a_message() -> None:
    """An engine may give an iterator for a trimmed position, and reject the iterator at its first use."""
    messages: list[str] = []
    mapping, wire = StreamMapping(name="m", table="t", function="f"), TrimmedStream()
    positions = Positions(path=None)  # in memory
    positions.set("m", "arn:aws:dynamodb:x:0:table/t/stream/s", "shard", Position("5"))
    pump = Pump([mapping], FakeWorkers(), wire, positions, messages.append)  # type: ignore[arg-type]
    asyncio.run(ShardReader(pump, mapping, "arn:aws:dynamodb:x:0:table/t/stream/s", "shard").run())
    assert (wire.iterators, messages) == (["AFTER_SEQUENCE_NUMBER", "TRIM_HORIZON"], [])
