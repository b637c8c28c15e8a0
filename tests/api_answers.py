"""Compares the answers of functions with the OpenAPI document: status, content type, headers, and every field.

The document allows more fields in answers, so that fields can be added. This module does not: a field that the document
does not name is a failure.
"""

from __future__ import annotations

import base64
import copy
import fnmatch
import functools
import gzip
import json
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator

from counters import COUNTERS
from tally.contract.declarations import OPERATIONS
from tally.contract.document import document
from tally.counter import Counter

CHECKED_HEADERS = {"etag": "ETag", "retry-after": "Retry-After", "idempotency-replayed": "Idempotency-Replayed"}


def close_schema(schema: Any) -> Any:
    """Returns the schema without room for properties that it does not name."""
    if isinstance(schema, list):
        return [close_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: close_schema(part) for name, part in schema.items()}
    if closed.get("type") == "object" and isinstance(closed.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed


class ApiDocument:
    """The OpenAPI document of some counters."""

    def __init__(self, counters: Mapping[str, Counter]) -> None:
        self.routes = {route.key: route for operation in OPERATIONS for route in operation.routes(counters)}
        # The first route of each operation, which is the general one.
        self.by_operation = {route.operation.name: route for route in reversed(self.routes.values())}
        self.document = copy.deepcopy(document(OPERATIONS, counters))
        self.document["components"]["schemas"] = close_schema(self.document["components"]["schemas"])
        self._validators: dict[tuple[str, int, str], Draft202012Validator] = {}

    def resolve(self, part: dict[str, Any]) -> dict[str, Any]:
        """Returns the part that a `$ref` leads to. Returns a part without a `$ref` as it is."""
        if "$ref" not in part:
            return part
        target: Any = self.document
        for name in part["$ref"].removeprefix("#/").split("/"):
            target = target[name]
        return self.resolve(target)

    def responses(self, route: str) -> dict[str, Any]:
        """Returns the documented responses of a route, by status."""
        path, method = self.routes[route].path, self.routes[route].method.lower()
        responses = self.document["paths"][path][method]["responses"]
        return {status: self.resolve(response) for status, response in responses.items()}

    def validate(self, route: str, status: int, media_type: str, body: object) -> None:
        """Fails if the body of an answer with this status and type is not as documented."""
        if (route, status, media_type) not in self._validators:
            schema = self.responses(route)[str(status)]["content"][media_type]["schema"]
            components = self.document["components"]
            validator = Draft202012Validator({**schema, "components": components})
            self._validators[route, status, media_type] = validator
        problems = self._validators[route, status, media_type].iter_errors(body)
        errors = [f"{problem.json_path}: {problem.message}" for problem in problems]
        assert not errors, f"{route}: {status}: {errors}"

    def media_type(self, route: str, status: int, media_type: str) -> str:
        """Returns the type that the document has for this answer. It may be a range, such as `text/*`."""
        media_types = self.responses(route)[str(status)]["content"]
        matches = [pattern for pattern in media_types if fnmatch.fnmatchcase(media_type, pattern)]
        assert matches, f"{route}: {status} as {media_type} is not documented"
        return matches[0]


@functools.cache
def _api_document(counters: tuple[Counter, ...]) -> ApiDocument:
    return ApiDocument({counter.name: counter for counter in counters})


def check(event: object, answer: Mapping[str, Any]) -> None:
    """Fails if the answer to an HTTP event or a direct event is not as documented. Other events are not checked."""
    if not isinstance(event, Mapping):
        return
    api = _api_document(tuple(COUNTERS.values()))
    if isinstance(event.get("batch"), list) and "results" in answer:
        for entry, result in zip(event["batch"], answer["results"], strict=True):
            check(entry, result)
    elif "statusCode" in answer:
        if event["routeKey"] in api.routes:
            _check_http(api, event["routeKey"], answer)
    elif isinstance(event.get("operation"), str) and event["operation"] in api.by_operation:
        _check_direct(api, api.by_operation[event["operation"]].key, answer)


def _check_http(api: ApiDocument, route: str, answer: Mapping[str, Any]) -> None:
    status, headers = answer["statusCode"], answer["headers"]
    responses = api.responses(route)
    assert str(status) in responses, f"{route}: {status} is not documented: {answer['body']}"
    documented_headers = responses[str(status)].get("headers", {})
    for header, documented_name in CHECKED_HEADERS.items():
        if header in headers:
            assert documented_name in documented_headers, f"{route}: {status} has an undocumented {documented_name}"
            value = int(headers[header]) if header == "retry-after" else headers[header]
            Draft202012Validator(api.resolve(documented_headers[documented_name])["schema"]).validate(value)
    if "content" not in responses[str(status)]:
        assert not answer["body"], f"{route}: {status} has a body"
        return
    media_type = api.media_type(route, status, headers["content-type"].partition(";")[0])
    text = answer["body"]
    if answer["isBase64Encoded"]:
        text = gzip.decompress(base64.b64decode(text)).decode()
    api.validate(route, status, media_type, json.loads(text) if media_type.endswith("json") else text)


def _check_direct(api: ApiDocument, route: str, answer: Mapping[str, Any]) -> None:
    """Checks a direct answer. It has the body of the HTTP answer; for a text: `{"media_type", "text"}`."""
    status = answer["status"]
    assert str(status) in api.responses(route), f"{route}: {status} is not documented: {answer['body']}"
    if "media_type" in answer["body"]:
        api.media_type(route, status, answer["body"]["media_type"])
        return
    media_type = "application/problem+json" if status >= 400 else "application/json"
    api.validate(route, status, media_type, answer["body"])
