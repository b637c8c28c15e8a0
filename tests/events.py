"""Makes events for tests out of the samples in `events/`, which are what API Gateway and other Lambdas send."""

from __future__ import annotations

import base64
import copy
import json
from pathlib import Path
from typing import Any

EVENTS = Path(__file__).resolve().parent.parent / "events"
KEY = "k-0123456789-0123456789-0123"


def sample(name: str) -> dict[str, Any]:
    """The event in `events/<name>.json`."""
    return json.loads((EVENTS / f"{name}.json").read_text())  # type: ignore[no-any-return]


def names() -> list[str]:
    """Every sample: `plays/http-play`, …"""
    return sorted(str(path.relative_to(EVENTS).with_suffix("")) for path in EVENTS.rglob("*.json"))


def http(
    name: str,
    *,
    id: str | None = None,
    path: dict[str, str] | None = None,
    sub: str | None = None,
    key: str | None = None,
    body: object = None,
    raw: str | bytes | None = None,
    query: str | None = None,
    headers: dict[str, str] | None = None,
) -> dict[str, Any]:
    """The sample HTTP event with some of it replaced. `body`: as JSON; `raw`: as it is (bytes: in base64)."""
    event = copy.deepcopy(sample(name))
    if id is not None:
        event["pathParameters"]["id"] = id
    if path is not None:
        event["pathParameters"].update(path)
    if sub is not None:
        event["requestContext"]["authorizer"]["jwt"]["claims"]["sub"] = sub
    if key is not None:
        event["headers"]["idempotency-key"] = key
    if body is not None:
        event["body"], event["isBase64Encoded"] = json.dumps(body), False
    if isinstance(raw, bytes):
        event["body"], event["isBase64Encoded"] = base64.b64encode(raw).decode(), True
    elif raw is not None:
        event["body"], event["isBase64Encoded"] = raw, False
    if query is not None:
        event["rawQueryString"] = query
    event["headers"].update(headers or {})
    return event


def body_of(answer: dict[str, Any]) -> Any:
    """The JSON that an HTTP answer carries."""
    return json.loads(answer["body"])
