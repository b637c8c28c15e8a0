"""A sample of each operation: its fields, a direct event, and an event of API Gateway.

`make generate` writes the events to `events/`. Tests, the smoke test and the API document use the same values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from tally.counter import Counter
from tally.streams import crossings, events

from ..api.kind import SchemaContext, Source
from ..api.operation import Route

CALLER = "auth0|7c20"
_CLAIMS = {
    "sub": CALLER, "iss": "https://issuer.example.com/", "aud": "tally", "exp": "1785546001", "iat": "1785542401",
}  # fmt: skip
_HOST = "api.example.com"


def field_values(route: Route, counters: Mapping[str, Counter], **given: Any) -> dict[str, Any]:
    """Returns the fields of a request by name: the required fields, and the fields of the body except `visible`, which
    few counters allow, and `at`, a time that must be recent. `given` replaces values; None removes a field."""
    context = SchemaContext(route.served_counters(counters), anonymous=not route.needs_caller)
    fields = {
        field.name: field.kind.example_for(context)
        for field in route.operation.fields
        if field.required or (field.source is Source.BODY and field.name not in ("visible", "at"))
    }
    known = {field.name for field in route.operation.fields}
    fields |= dict(route.fixed_fields) | {name: value for name, value in given.items() if name in known}
    return {name: value for name, value in fields.items() if value is not None}


def direct_event(route: Route, counters: Mapping[str, Counter], **given: Any) -> dict[str, Any]:
    """Returns the event of another Lambda function."""
    caller = {"caller": CALLER} if route.needs_caller else {}
    return {"operation": route.operation.name, **field_values(route, counters, **given), **caller}


def http_request(route: Route, fields: Mapping[str, Any]) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Returns the path with its query, the headers, and the JSON body of an HTTP request with these fields."""
    sent: dict[Source, dict[str, Any]] = {source: {} for source in Source}
    for field in route.fields:
        if field.name in fields:
            sent[field.source][field.http_name] = fields[field.name]
    query = urlencode(sent[Source.QUERY], doseq=True)
    path = route.path.format_map({name: quote(str(value), safe="") for name, value in sent[Source.PATH].items()})
    headers = {name: str(value) for name, value in sent[Source.HEADER].items()}
    return (f"{path}?{query}" if query else path), headers, sent[Source.BODY]


def http_event(route: Route, counters: Mapping[str, Counter], **given: Any) -> dict[str, Any]:
    """Returns the event of API Gateway (payload format 2.0)."""
    fields = field_values(route, counters, **given)
    url, headers, body = http_request(route, fields)
    path, _, query = url.partition("?")
    sent = {name.lower(): value for name, value in headers.items()}
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": route.key,
        "rawPath": path,
        "rawQueryString": query,
        "headers": {"host": _HOST, "user-agent": "curl/8.5.0", **sent},
        "requestContext": {
            "accountId": "123456789012", "apiId": "a1b2c3d4e5", "domainName": _HOST, "domainPrefix": "api",
            "http": {
                "method": route.method, "path": path, "protocol": "HTTP/1.1", "sourceIp": "203.0.113.10",
                "userAgent": "curl/8.5.0",
            },
            "requestId": "JKJaXmPLvHcESHA=", "routeKey": route.key, "stage": "$default",
            "time": "01/Aug/2026:00:00:01 +0000", "timeEpoch": 1785542401000,
        },
        "isBase64Encoded": False,
    }  # fmt: skip
    in_path = {field.http_name: fields[field.name] for field in route.fields if field.source is Source.PATH}
    event |= {"pathParameters": in_path} if in_path else {}
    in_query = [field for field in route.fields if field.source is Source.QUERY and field.name in fields]
    values = {field.http_name: fields[field.name] for field in in_query}
    lists = {name: value if isinstance(value, list) else [value] for name, value in values.items()}
    texts = {name: ",".join(map(str, values)) for name, values in lists.items()}  # as API Gateway joins them
    event |= {"queryStringParameters": texts} if texts else {}
    if body:
        event["headers"]["content-type"] = "application/json"
        event["body"] = json.dumps(body)
    if route.needs_caller:
        scope = {"scope": route.scope} if route.scope else {}
        event["requestContext"]["authorizer"] = {"jwt": {"claims": {**_CLAIMS, **scope}, "scopes": None}}
    return event


def threshold_event() -> dict[str, Any]:
    """Returns what a rule of EventBridge gets when a number crosses a threshold."""
    detail = crossings.EXAMPLE
    return {
        "version": "0",
        "id": "17793124-05d4-b198-2fde-7ededc63b103",
        "detail-type": events.DETAIL_TYPE,
        "source": events.SOURCE,
        "account": "123456789012",
        "time": f"{datetime.fromtimestamp(detail['at'], UTC):%Y-%m-%dT%H:%M:%SZ}",
        "region": "eu-west-1",
        "resources": [],
        "detail": detail,
    }
