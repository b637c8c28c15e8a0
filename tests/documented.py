"""Holds what functions answer against the OpenAPI document: status, content type, headers, and every field.

The document leaves answers open, so that fields can be added; here they are closed: a field that it does not name is a
failure.
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
from openapi.document import document
from tally.operation import by_route

import operations
from counters import COUNTERS

ROUTES = by_route(operations.OPERATIONS, COUNTERS)
HEADERS = {"etag": "ETag", "retry-after": "Retry-After", "idempotency-replayed": "Idempotency-Replayed"}


def closed(schema: Any) -> Any:
    """The schema, where no object has a property that is not named."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(part) for name, part in schema.items()}
    if made.get("type") == "object" and isinstance(made.get("properties"), dict):
        made.setdefault("additionalProperties", False)
    return made


@functools.cache
def _document() -> dict[str, Any]:
    made = copy.deepcopy(document(COUNTERS))
    made["components"]["schemas"] = closed(made["components"]["schemas"])
    return made


def _resolved(part: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in part:
        return part
    found: Any = _document()
    for name in part["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    return _resolved(found)


@functools.cache
def _validator(name: str, status: int, media_type: str) -> Draft202012Validator:
    """Validates what operation `name` answers with this status and type. KeyError: that is not documented."""
    schema = responses(name)[str(status)]["content"][media_type]["schema"]
    return Draft202012Validator({**schema, "components": _document()["components"]})


@functools.cache
def responses(name: str) -> dict[str, Any]:
    """The documented responses of an operation by one of its routes, by status."""
    operation = next(route for route in ROUTES.values() if route.id == name)
    found = _document()["paths"][operation.path][operation.method.lower()]["responses"]
    return {status: _resolved(response) for status, response in found.items()}


def check(event: object, answer: Mapping[str, Any]) -> None:
    """Fail if the answer to an event, of either kind, is not as documented. What no operation answers is passed by."""
    if not isinstance(event, Mapping):
        return
    if isinstance(event.get("batch"), list) and "results" in answer:
        for entry, result in zip(event["batch"], answer["results"], strict=True):
            check(entry, result)
    elif "statusCode" in answer:
        if event["routeKey"] in ROUTES:
            _check_http(ROUTES[event["routeKey"]].id, answer)
    elif event.get("operation") in [operation.name for operation in operations.OPERATIONS]:
        _check_direct(event["operation"], answer)


def _check_http(name: str, answer: Mapping[str, Any]) -> None:
    status, headers = answer["statusCode"], answer["headers"]
    assert str(status) in responses(name), f"{name}: {status} is not documented"
    expected = responses(name)[str(status)].get("headers", {})
    for header, spelled in HEADERS.items():
        if header in headers:
            assert spelled in expected, f"{name}: {status} has an undocumented {spelled}"
            Draft202012Validator(_resolved(expected[spelled])["schema"]).validate(_typed(header, headers[header]))
    if "content" not in responses(name)[str(status)]:
        assert not answer["body"], f"{name}: {status} has a body"
        return
    media_type = _documented(name, status, headers["content-type"].partition(";")[0])
    _validator(name, status, media_type).validate(_body(answer, media_type))


def _documented(name: str, status: int, media_type: str) -> str:
    """The documented type that this one is of; it may be a range, as `text/*`."""
    found = [known for known in responses(name)[str(status)]["content"] if fnmatch.fnmatchcase(media_type, known)]
    assert found, f"{name}: {status} as {media_type} is not documented"
    return found[0]


def _typed(header: str, value: str) -> object:
    return int(value) if header == "retry-after" else value


def _body(answer: Mapping[str, Any], media_type: str) -> Any:
    text = answer["body"]
    if answer["isBase64Encoded"]:
        text = gzip.decompress(base64.b64decode(text)).decode()
    return json.loads(text) if media_type.endswith("json") else text


def _check_direct(name: str, answer: Mapping[str, Any]) -> None:
    """The same bodies as over HTTP; a text as `{"media_type","text"}`."""
    status = answer["status"]
    assert str(status) in responses(name), f"{name}: {status} is not documented"
    if "media_type" in answer["body"]:
        _documented(name, status, answer["body"]["media_type"])
        return
    media_type = "application/problem+json" if status >= 400 else "application/json"
    _validator(name, status, media_type).validate(answer["body"])
