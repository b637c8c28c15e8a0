"""From an HTTP API event (payload format 2.0) to an operation's raw fields, and from an answer to its response."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from ..errors import (
    RETRY_AFTER_S,
    ForbiddenError,
    InvalidInputError,
    LimitReachedError,
    PayloadTooLargeError,
    RetryableError,
    TallyError,
    UnauthenticatedError,
    UnsupportedMediaTypeError,
    problem,
)
from ..operation import Operation

PARAMETERS_MAX = 16  # in a query, beside the values of fields that have many
JSON = "application/json"
PROBLEM = "application/problem+json"
OPERATORS = "operators"  # the group of the pool's users who may read what needs a scope
BEACON = "text/plain"  # what navigator.sendBeacon sends without a CORS preflight

Event = Mapping[str, Any]


def caller(event: Event, operation: Operation, console_client: str) -> object:
    """The JWT's `sub`, which the gateway's authorizer verified. Raises UnauthenticatedError if there is none.

    Every user of the stack's pool gets the scope tally/read at `console_client`. So its tokens may use a scope only in
    the hands of an operator. Raises ForbiddenError.
    """
    claims = event["requestContext"].get("authorizer", {}).get("jwt", {}).get("claims", {})
    if not claims.get("sub"):
        raise UnauthenticatedError("This needs a token with a `sub`.")
    a_persons = console_client and claims.get("client_id") == console_client
    if operation.scope and a_persons and OPERATORS not in _groups(claims.get("cognito:groups")):
        raise ForbiddenError(f"You are not in the group {OPERATORS} of this stack's user pool.")
    return claims["sub"]


def _groups(claim: object) -> list[str]:
    """The groups in a claim. API Gateway gives a list to functions as `[a b]`; no group has a space in its name."""
    if isinstance(claim, str):
        return claim.removeprefix("[").removesuffix("]").split()
    return [str(group) for group in claim] if isinstance(claim, list) else []


def raw_fields(event: Event, operation: Operation) -> dict[str, object]:
    """The operation's fields that the request has, unchecked, by name.

    Raises InvalidInputError for a malformed or unexpected body, query or field, PayloadTooLargeError and
    UnsupportedMediaTypeError.
    """
    headers = {name.lower(): value for name, value in event.get("headers", {}).items()}
    headers.setdefault("user-agent", "")  # a missing header counts as an empty one; browsers always send it
    sources: dict[str, Mapping[str, object]] = {
        "path": {**(event.get("pathParameters") or {}), **operation.fixed},
        "query": {} if operation.any_query else _query(event, operation),
        "body": _body(event, headers, operation),
        "header": headers,
    }
    fields: dict[str, object] = {}
    for field in operation.fields:
        name = field.wire.lower() if field.source.value == "header" else field.wire
        if name in sources[field.source.value]:
            fields[field.name] = sources[field.source.value][name]
        if field.body_wire and field.body_wire in sources["body"]:
            given = sources["body"][field.body_wire]
            if fields.setdefault(field.name, given) != given:
                detail = f"{field.body_wire} in the body differs from {field.wire}: send one of them."
                raise InvalidInputError(detail, field=field.body_wire)
    for source in ("query", "body"):
        known = {field.wire for field in operation.fields if field.source.value == source}
        if source == "body":
            known |= {field.body_wire for field in operation.fields if field.body_wire}
        unknown = sorted(sources[source].keys() - known)
        if unknown:
            raise InvalidInputError(
                f"There is no field {unknown[0][:64]!r} in the {source} here.", field=unknown[0][:64]
            )
    return fields


def _query(event: Event, operation: Operation) -> dict[str, object]:
    """The raw query string, parsed; a field that has many values as a list.

    API Gateway's own parsing joins repeated parameters with commas.
    """
    found: dict[str, object] = {}
    lists: dict[str, list[str]] = {field.wire: [] for field in operation.fields if field.many_max}
    most = PARAMETERS_MAX + sum(field.many_max for field in operation.fields)
    try:
        pairs = parse_qsl(event.get("rawQueryString", ""), keep_blank_values=True, errors="strict", max_num_fields=most)
    except ValueError:  # broken UTF-8, or too many
        raise InvalidInputError("The query string is malformed, or has too many parameters.") from None
    for name, value in pairs:
        if name in lists:
            lists[name].append(value)
            found[name] = lists[name]
        elif name in found:
            raise InvalidInputError(f"{name[:64]} is given twice.", field=name[:64])
        else:
            found[name] = value
    return found


def _body(event: Event, headers: Mapping[str, str], operation: Operation) -> dict[str, object]:
    text = event.get("body") or ""
    if event.get("isBase64Encoded") and text:
        try:
            raw = base64.b64decode(text, validate=True)
        except binascii.Error:
            raise InvalidInputError("The body is not valid base64.") from None
    else:
        raw = text.encode("utf-8", "surrogatepass")
    if len(raw) > operation.body_bytes_max:
        raise PayloadTooLargeError(f"The body is larger than {operation.body_bytes_max} bytes.")
    if not raw:
        return {}
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnsupportedMediaTypeError("The body must not be compressed: leave Content-Encoding out.")
    media_type = headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type != JSON and not (operation.takes_beacon and media_type == BEACON):
        raise UnsupportedMediaTypeError(f"The body must be {JSON}{' or ' + BEACON if operation.takes_beacon else ''}.")
    return parse_object(raw)


def parse_object(raw: bytes) -> dict[str, object]:
    """A JSON object, strictly: UTF-8, no NaN, no name twice. Raises InvalidInputError."""
    try:
        document = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError):  # broken UTF-8 or JSON, huge numbers, deep nesting
        raise InvalidInputError("The body is not valid JSON.") from None
    if not isinstance(document, dict):
        raise InvalidInputError("The body must be a JSON object.")
    return document


def _refuse_constant(name: str) -> object:
    raise ValueError(name)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise InvalidInputError("The body names a field twice.")
    return document


def response(status: int, body: Mapping[str, Any], *, replayed: bool = False) -> dict[str, Any]:
    """An answer for API Gateway."""
    headers = {"content-type": JSON, "cache-control": "no-store", "x-content-type-options": "nosniff"}
    if tag := version_tag(body):
        headers["etag"] = tag
    if replayed:
        headers["idempotency-replayed"] = "true"
    return {
        "statusCode": status,
        "headers": headers,
        "body": dumps(body),
        "isBase64Encoded": False,
    }


def dumps(body: Mapping[str, Any]) -> str:
    """The JSON of an answer."""
    return json.dumps(body, separators=(",", ":"))


def version_tag(body: Mapping[str, Any]) -> str:
    """The ETag of a counter's version; empty if the answer has none. The version of `GET /health` is text."""
    return f'"{body["version"]}"' if isinstance(body.get("version"), int) else ""


def error_response(error: TallyError, request_id: str) -> dict[str, Any]:
    """An RFC 9457 problem document for API Gateway."""
    answer = response(error.status, problem(error, request_id=request_id))
    answer["headers"]["content-type"] = PROBLEM
    if isinstance(error, RetryableError):
        answer["headers"]["retry-after"] = str(RETRY_AFTER_S)
    if isinstance(error, LimitReachedError) and error.retry_after_s is not None:
        answer["headers"]["retry-after"] = str(error.retry_after_s)
    return answer
