"""`make events` writes the samples that `events/` lacks: for each operation, one of each way to call it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import counters
import operations
from openapi import inputs
from tally.operation import Operation, Source
from tests import events

CALLER = "auth0|7c20"
CLAIMS = {
    "sub": CALLER,
    "iss": "https://issuer.example.com/",
    "aud": "tally",
    "exp": "1785546001",
    "iat": "1785542401",
}


def examples(operation: Operation) -> dict[str, Any]:
    """The example of each field, by its name, as the OpenAPI document has it; without optional query parameters."""
    served = operation.served(counters.COUNTERS)
    parameters = inputs.parameters(operation, served)
    by_wire = {entry["name"]: entry["example"] for entry in parameters if entry["required"] or entry["in"] != "query"}
    if body := inputs.body(operation, served):
        by_wire |= body[1]["content"]["application/json"]["example"]
    return {field.name: by_wire[field.wire] for field in operation.fields if field.wire in by_wire}


def direct(operation: Operation) -> dict[str, Any]:
    """The event of another Lambda function."""
    caller = {"caller": CALLER} if operation.needs_caller else {}
    return {"operation": operation.name, **examples(operation), **caller}


def http(operation: Operation) -> dict[str, Any]:
    """The event of API Gateway."""
    values, event = examples(operation), events.sample("plays/http-get-plays")
    found: dict[Source, dict[str, Any]] = {source: {} for source in Source}
    for field in operation.fields:
        if field.name in values:
            found[field.source][field.wire] = values[field.name]
    path = operation.path.format_map(found[Source.PATH])
    event |= {
        "routeKey": operation.route,
        "rawPath": path,
        "rawQueryString": urlencode(found[Source.QUERY], doseq=True),
    }
    context = event["requestContext"]
    context |= {"routeKey": operation.route, "http": {**context["http"], "method": operation.method, "path": path}}
    event["headers"] |= {name.lower(): str(value) for name, value in found[Source.HEADER].items()}
    for name, parameters in (("pathParameters", found[Source.PATH]), ("queryStringParameters", found[Source.QUERY])):
        event.pop(name, None)
        event |= {name: {wire: _joined(value) for wire, value in parameters.items()}} if parameters else {}
    if found[Source.BODY]:
        event["headers"]["content-type"] = "application/json"
        event["body"] = json.dumps(found[Source.BODY])
    if operation.needs_caller:
        scope = {"scope": operation.scope} if operation.scope else {}
        context["authorizer"] = {"jwt": {"claims": {**CLAIMS, **scope}, "scopes": None}}
    return event


def _joined(value: object) -> str:
    """As API Gateway gives it: a comma joins the values of one name."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def missing(root: Path = events.EVENTS) -> dict[Path, dict[str, Any]]:
    """The samples that are not there: their files and events."""
    found: dict[Path, dict[str, Any]] = {}
    for operation in operations.OPERATIONS:
        for way, make in (("direct", direct), ("http", http)):
            path = root / operation.function / f"{way}-{operation.name.replace('_', '-')}.json"
            if not path.exists():
                found[path] = make(operation)
    return found


if __name__ == "__main__":
    for path, event in missing().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(event, indent=2) + "\n")
        print(f"tally: {path} is new")
