"""Reads the fields of an operation from an HTTP API event (payload format 2.0), and makes the response of an answer."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from functools import cache, partial
from typing import Any, TypeGuard
from urllib.parse import parse_qsl

from tally.errors import (
    RETRY_AFTER_S,
    ForbiddenError,
    InvalidInputError,
    LimitReachedError,
    PayloadTooLargeError,
    RetryableError,
    TallyError,
    UnauthenticatedError,
    UnsupportedMediaTypeError,
    problem_document,
)

from .kind import Source
from .kinds import KEY
from .operation import Route

PARAMETERS_MAX = 16  # in a query, besides the values of lists
JSON_MEDIA_TYPE = "application/json"
PROBLEM_MEDIA_TYPE = "application/problem+json"
OPERATORS_GROUP = "operators"  # users of the stack's pool in this group may use routes with a scope from the console
BEACON_MEDIA_TYPE = "text/plain"  # what navigator.sendBeacon sends without a CORS preflight

Event = Mapping[str, Any]
_QUOTED_PATTERN = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')  # a string of RFC 9651


def is_request(event: object) -> TypeGuard[Event]:
    """Returns whether the event is like those of API Gateway. Checks the type of each member that Tally reads, because
    anyone who may invoke the function can send any event."""
    if not isinstance(event, Mapping) or "routeKey" not in event:
        return False
    context, headers, path = event.get("requestContext"), event.get("headers", {}), event.get("pathParameters")
    if not (isinstance(context, Mapping) and isinstance(headers, Mapping) and isinstance(path, Mapping | None)):
        return False
    texts = (event["routeKey"], context.get("requestId"), event.get("rawQueryString", ""), event.get("body") or "")
    return isinstance(_claims(context), Mapping) and set(map(type, (*texts, *headers.values()))) == {str}


def _claims(context: object) -> Any:
    """Returns the claims that the gateway's authorizer verified; empty without an authorizer; None if malformed."""
    for name in ("authorizer", "jwt", "claims"):
        context = (context.get(name) or {}) if isinstance(context, Mapping) else None
    return context


def verified_caller(event: Event, route: Route, console_client: str) -> object:
    """Returns the JWT's `sub`, which the gateway's authorizer verified. Raises UnauthenticatedError without a `sub`.

    `console_client`: the id of the console's app client, which gives every user of the stack's pool the scope
    tally/read. If the route has a scope, and a token of this client is not an operator's, raises ForbiddenError.
    """
    claims = _claims(event["requestContext"])
    if not claims.get("sub"):
        raise UnauthenticatedError("This request needs a token with a `sub`.")
    groups = claims.get("cognito:groups")
    if isinstance(groups, str):  # API Gateway writes a list as `[a b]`; names of groups have no spaces
        groups = groups.removeprefix("[").removesuffix("]").split()
    is_operator = isinstance(groups, list) and OPERATORS_GROUP in groups
    is_of_console = console_client and claims.get("client_id") == console_client
    if route.scope and is_of_console and not is_operator:
        raise ForbiddenError(f"You are not in the group {OPERATORS_GROUP} of this stack's user pool.")
    return claims["sub"]


def raw_fields(event: Event, route: Route, *, cdn: bool = False) -> dict[str, object]:
    """Returns the fields of the request, unchecked, by their names in direct events. `cdn`: CloudFront is in front of
    the API. Raises InvalidInputError, PayloadTooLargeError and UnsupportedMediaTypeError."""
    headers = {name.lower(): value for name, value in event.get("headers", {}).items()}
    has_query_to_parse = event.get("rawQueryString") and not route.operation.takes_any_query
    sent: dict[Source, Mapping[str, object]] = {
        Source.PATH: event.get("pathParameters") or {},
        Source.QUERY: _parse_query(event, route) if has_query_to_parse else {},
        Source.BODY: _parse_body(event, headers, route),
        Source.HEADER: headers,
        Source.ADDRESS: _address(event, headers, cdn=cdn) if route.operation.uses_client_address else {},
    }
    raw: dict[str, object] = dict(route.fixed_fields)
    known_names: dict[Source, set[str]] = {Source.QUERY: set(), Source.BODY: set()}  # here, Tally refuses other names
    for field in route.fields:
        http_name, body_name = field.http_name, field.kind.body_name
        known_names.get(field.source, set()).add(http_name)
        name = http_name.lower() if field.source is Source.HEADER else http_name
        if name in sent[field.source]:
            value = sent[field.source][name]
            is_quoted = http_name == KEY.http_name and headers[name][:1] == '"'
            raw[field.name] = _unquote(headers[name]) if is_quoted else value
        elif field.kind.http_default is not None:
            raw[field.name] = field.kind.http_default
        if body_name:
            known_names[Source.BODY].add(body_name)
        if body_name and body_name in sent[Source.BODY]:
            value = sent[Source.BODY][body_name]
            if raw.setdefault(field.name, value) != value:
                detail = f"{body_name} in the body differs from {http_name}: send one of them."
                raise InvalidInputError(detail, field=body_name)
    for source, names in known_names.items():
        unknown = sorted(sent[source].keys() - names)
        if unknown:
            name = unknown[0][:64]
            raise InvalidInputError(f"There is no field {name!r} in the {source.value} here.", field=name)
    return raw


def _address(event: Event, headers: Mapping[str, str], *, cdn: bool) -> dict[str, object]:
    """Returns the caller's address. Behind CloudFront, it is the last but one address in X-Forwarded-For: CloudFront
    appends the caller's address, and then the gateway appends CloudFront's address."""
    if cdn:
        *_, caller, _ = ["", "", *headers.get("x-forwarded-for", "").split(",")]
        return {"address": caller.strip()} if caller.strip() else {}
    source = (event["requestContext"].get("http") or {}).get("sourceIp")
    return {"address": source} if source else {}


def _unquote(key: str) -> str:
    """Returns the key in a quoted string: the IETF's draft of Idempotency-Key quotes keys. Raises InvalidInputError."""
    if not (quoted := _QUOTED_PATTERN.fullmatch(key)):
        raise InvalidInputError(f"{KEY.http_name} must be a key, or one quoted string.", field=KEY.http_name)
    return re.sub(r"\\(.)", r"\1", quoted[1])


def _parse_query(event: Event, route: Route) -> dict[str, object]:
    """Parses the raw query string, because API Gateway joins repeated parameters with commas. A field with many values
    is a list."""
    values: dict[str, object] = {}
    lists: dict[str, list[str]] = {field.http_name: [] for field in route.fields if field.kind.list_max}
    pairs_max = PARAMETERS_MAX + sum(field.kind.list_max for field in route.fields)
    text = event.get("rawQueryString", "")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=pairs_max)
    except ValueError:  # broken UTF-8, or too many parameters
        raise InvalidInputError("The query string is malformed, or has too many parameters.") from None
    for name, value in pairs:
        if name in lists:
            lists[name].append(value)
            values[name] = lists[name]
        elif name in values:
            raise InvalidInputError(f"{name[:64]} is given twice.", field=name[:64])
        else:
            values[name] = value
    return values


def _parse_body(event: Event, headers: Mapping[str, str], route: Route) -> dict[str, object]:
    text = event.get("body") or ""
    if event.get("isBase64Encoded") and text:
        try:
            raw = base64.b64decode(text, validate=True)
        except binascii.Error:
            raise InvalidInputError("The body is not valid base64.") from None
    else:
        raw = text.encode("utf-8", "surrogatepass")  # `parse_object` refuses half a surrogate pair
    bytes_max = route.operation.body_bytes_max
    if len(raw) > bytes_max:
        raise PayloadTooLargeError(f"The body is larger than {bytes_max} bytes.")
    if not raw:
        return {}
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnsupportedMediaTypeError("The body must not be compressed: leave Content-Encoding out.")
    media_type = headers.get("content-type", "").split(";")[0].strip().lower()
    accepted = media_types(route)
    if media_type not in accepted:
        raise UnsupportedMediaTypeError(f"The body must be {' or '.join(accepted)}.")
    return parse_object(raw)


@cache
def media_types(route: Route) -> tuple[str, ...]:
    """Returns the media types that a body may have. A browser's beacon sends no headers, so the body has its key. A
    route accepts the beacon's media type only if the body may have the key."""
    has_key_in_body = any(field.kind.body_name for field in route.fields)
    return (JSON_MEDIA_TYPE, BEACON_MEDIA_TYPE) if has_key_in_body else (JSON_MEDIA_TYPE,)


def parse_object(raw: bytes) -> dict[str, object]:
    """Parses a JSON object strictly: UTF-8, no NaN, no name twice. Raises InvalidInputError."""
    try:
        document = json.loads(
            raw.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_object_without_duplicates
        )
    except (ValueError, RecursionError):  # broken UTF-8 or JSON, huge numbers, deep nesting
        raise InvalidInputError("The body is not valid JSON.") from None
    if not isinstance(document, dict):
        raise InvalidInputError("The body must be a JSON object.")
    return document


def _refuse_constant(name: str) -> object:
    raise ValueError(name)


def _object_without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise InvalidInputError("The body names a field twice.")
    return document


def response(status: int, body: Mapping[str, Any], *, replayed: bool = False) -> dict[str, Any]:
    """Returns an answer for API Gateway."""
    headers = {"content-type": JSON_MEDIA_TYPE, "cache-control": "no-store", "x-content-type-options": "nosniff"}
    if tag := version_tag(body):
        headers["etag"] = tag
    if replayed:
        headers["idempotency-replayed"] = "true"
    return {"statusCode": status, "headers": headers, "body": dumps(body), "isBase64Encoded": False}


dumps = partial(json.dumps, separators=(",", ":"))
"""Returns the JSON of an answer, without spaces."""


def version_tag(body: Mapping[str, Any]) -> str:
    """Returns the ETag for an answer with a counter's version, else "". In `GET /health`, `version` is text and names
    the code, so that answer has no ETag."""
    return f'"{body["version"]}"' if isinstance(body.get("version"), int) else ""


def error_response(error: TallyError, request_id: str) -> dict[str, Any]:
    """Returns an RFC 9457 problem document for API Gateway."""
    answer = response(error.status, problem_document(error, request_id=request_id))
    answer["headers"]["content-type"] = PROBLEM_MEDIA_TYPE
    if isinstance(error, RetryableError):
        answer["headers"]["retry-after"] = str(RETRY_AFTER_S)
    if isinstance(error, LimitReachedError) and error.retry_after_s is not None:
        answer["headers"]["retry-after"] = str(error.retry_after_s)
    return answer
