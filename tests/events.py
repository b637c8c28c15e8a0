"""Makes direct events (of other Lambdas) and HTTP events (of API Gateway) for tests, from the operations' samples."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from counters import COUNTERS
from tally.api.operation import Operation, Route
from tally.contract import samples
from tally.contract.declarations import OPERATIONS

EVENTS = Path(__file__).resolve().parent.parent / "events"
KEY = "k-0123456789-0123456789-0123"
BY_NAME: dict[str, Operation] = {operation.name: operation for operation in OPERATIONS}


def routes() -> dict[str, Route]:
    """Returns the routes of the declared counters, by their ids: `increment`, `increment_plays_short_route`."""
    return {route.id: route for operation in OPERATIONS for route in operation.routes(COUNTERS)}


def sample(name: str) -> dict[str, Any]:
    """Returns the event in `events/<name>.json`."""
    return json.loads((EVENTS / f"{name}.json").read_text())  # type: ignore[no-any-return]


def sample_names() -> list[str]:
    """Returns the name of every sample: `increments/http-increment`, …"""
    return sorted(str(path.relative_to(EVENTS).with_suffix("")) for path in EVENTS.rglob("*.json"))


def direct(operation: str, **fields: Any) -> dict[str, Any]:
    """Returns the sample event by which another Lambda calls an operation, with these fields; None removes a field."""
    [general, *_] = BY_NAME[operation].routes(COUNTERS)
    event = samples.direct_event(general, COUNTERS, **fields)
    if "caller" in fields:
        event["caller"] = fields["caller"]
    return {name: value for name, value in event.items() if value is not None}


def http(
    route: str,
    *,
    sub: str | None = None,
    headers: Mapping[str, str] | None = None,
    query: str | None = None,
    document: object = None,
    raw: str | bytes | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Returns the sample HTTP event of a route, with these fields; None removes a field.

    `sub`: the signed-in user. `headers`: more headers. `query` and `document` (a JSON body) replace the query and the
    body of the fields. `raw`: the body as it is; bytes are sent in base64.
    """
    event = samples.http_event(routes()[route], COUNTERS, **fields)
    if sub is not None:
        event["requestContext"]["authorizer"]["jwt"]["claims"]["sub"] = sub
    if query is not None:
        event["rawQueryString"] = query
    if document is not None:
        raw = json.dumps(document)
    if raw is not None:
        event["isBase64Encoded"] = isinstance(raw, bytes)
        event["body"] = base64.b64encode(raw).decode() if isinstance(raw, bytes) else raw
        event["headers"]["content-type"] = "application/json"
    event["headers"].update(headers or {})
    return event


def body_of(answer: Mapping[str, Any]) -> Any:
    """Returns the body of an answer to an HTTP event or to a direct event."""
    return json.loads(answer["body"]) if "statusCode" in answer else answer["body"]


def status_of(answer: Mapping[str, Any]) -> int:
    """Returns the status of an answer to an HTTP event or to a direct event."""
    return int(answer.get("statusCode") or answer["status"])
