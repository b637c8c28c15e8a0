"""Makes the OpenAPI document of the operations."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tally.counter import Counter
from tally.counting.receipts import DAY_S, PENDING_KEPT_S
from tally.settings import RECEIPT_TTL_DEFAULT_S

from ..api.http import BEACON_MEDIA_TYPE, JSON_MEDIA_TYPE, media_types
from ..api.kind import SchemaContext, Source
from ..api.kinds import AMOUNT
from ..api.operation import Field, Operation, Route, UserVisibility
from ..api.texts import Text
from . import error_responses, schemas

API_VERSION = "1.0.0"  # of the HTTP contract; `GET /health` has the version of a deployment
Schema = dict[str, Any]
_SECURITY = "token"
_API_DESCRIPTION = f"""\
Counting that is right after retries, crashes and viral posts.

- **Retries.** A change with an `Idempotency-Key` counts once, however often you send it. The header may have the key in
  quotation marks: `"k"` is `k`. A replay has the header `Idempotency-Replayed: true` and the body of the first answer,
  but the `state` of a hold is its present state. Tally remembers a key for {RECEIPT_TTL_DEFAULT_S // 3600} hours,
  unless the deployment or the counter says otherwise: `GET /health` has the seconds for each counter. An older key
  counts again. A client with a wrong clock can compute a key's age from the header `Date` of answers. A key is for one
  operation, target and caller. If the caller sends the key there with another change, the change is refused (422).
- **Problems** are RFC 9457 documents (`application/problem+json`) with a stable `type`. API Gateway's own answers (a
  missing token or scope, an unknown route, too many requests) are `{{"message": …}}`.
- **503** means that nothing is wrong with the request: send it again with the same key.
"""
_HEADERS: dict[str, Schema] = {
    "Idempotency-Replayed": {
        "description": "Present if this change was counted before. The body is the first answer.",
        "schema": {"const": "true"},
    },
    "ETag": {
        "description": "The version of a counter, for `If-Match`, or of an answer, for `If-None-Match`.",
        "schema": {"type": "string", "pattern": '^(W/)?"[0-9a-f]+"$'},
    },
    "Retry-After": {
        "description": "Seconds to wait.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "WWW-Authenticate": {
        "description": "What is wrong with the token, from API Gateway.",
        "schema": {"type": "string"},
    },
}
_IF_NONE_MATCH: Schema = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "The `ETag` of the answer that you have.",
    "schema": {"type": "string"},
    "example": 'W/"0123456789abcdef"',
}


def document_json(
    operations: Sequence[Operation],
    counters: Mapping[str, Counter],
    indent: int | None = None,
    likers_visible: UserVisibility = UserVisibility.ANYONE,
) -> str:
    """Returns the document as JSON. `likers_visible`: who may read over HTTP which users like a post."""
    openapi = document(operations, counters, likers_visible)
    return json.dumps(openapi, indent=indent, separators=None if indent else (",", ":"), ensure_ascii=False)


def document(
    operations: Sequence[Operation],
    counters: Mapping[str, Counter],
    likers_visible: UserVisibility = UserVisibility.ANYONE,
) -> Schema:
    """Returns the OpenAPI 3.1 document of these operations, without operations that work on no declared counter."""
    paths: dict[str, Schema] = {}
    components: dict[str, Schema] = {"schemas": dict(error_responses.SCHEMAS), "headers": _HEADERS, "responses": {}}
    routes = [route for one in operations for route in one.routes(counters)]
    for route in routes:
        if shown := route.as_deployed(likers_visible):
            paths.setdefault(route.path, {})[route.method.lower()] = _operation(shown, counters, components)
    token = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
    token["description"] = "A JWT of the deployment's issuer. Its `sub` names the caller; some operations need a scope."
    modules = dict.fromkeys(route.operation.module for route in routes)
    docs = {name: importlib.import_module(f"tally.operations.{name}").__doc__ or "" for name in modules}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tally",
            "version": API_VERSION,
            "description": _API_DESCRIPTION,
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The host of this document."}],
        "tags": [{"name": name, "description": doc.strip().partition("\n\n")[0]} for name, doc in docs.items()],
        "paths": paths,
        "components": {**components, "securitySchemes": {_SECURITY: token}},
    }


def _operation(route: Route, counters: Mapping[str, Counter], components: dict[str, Schema]) -> Schema:
    """Returns the Operation Object of a route. Adds to `components` what the object refers to."""
    operation, served = route.operation, route.served_counters(counters)
    context = SchemaContext(served, anonymous=not route.needs_caller)
    schema: Schema = {
        "operationId": route.id,
        "tags": [operation.module],
        "summary": operation.summary,
        "description": _description(route, served),
        "security": [{_SECURITY: [route.scope] if route.scope else []}] if route.needs_caller else [],
    }
    if parameters := _parameters(route, context) + ([_IF_NONE_MATCH] if route.is_cacheable else []):
        schema["parameters"] = parameters
    if body := _body(route, context):
        components["schemas"][f"{route.id}_body"], schema["requestBody"] = body
    responses = {str(status): _success_response(route, status, components["schemas"]) for status in route.statuses}
    shared = components["responses"]
    for status, response in error_responses.responses(route).items():
        name = next((name for name, other in shared.items() if other == response), "")
        if not name:  # no earlier operation of the document has an equal response
            variants = sum(other.partition("_")[0] == str(status) for other in shared)
            name = f"{status}_{variants + 1}" if variants else str(status)  # `409`, then `409_2`
            shared[name] = response
        responses[str(status)] = {"$ref": f"#/components/responses/{name}"}
    schema["responses"] = responses
    return schema


def _is_required(field: Field, context: SchemaContext) -> bool:
    """Returns whether the route needs the field. It needs an amount if none of its counters has a fixed step."""
    return field.required or (field.kind is AMOUNT and all(one.delta is None for one in context.counters))


def _parameters(route: Route, context: SchemaContext) -> list[Schema]:
    """Returns the parameters in path, query and headers; without `period` if no counter of the path has periods. A
    parameter that the body may have instead is not required."""
    may_name_period = not route.operation.has_counter_in_path or any(one.period for one in context.counters)
    return [
        {
            "name": field.http_name,
            "in": field.source.value,
            "required": _is_required(field, context) and not field.kind.body_name,
            "description": field.kind.description,
            "schema": field.kind.schema_for(context),
            "example": field.kind.example_for(context),
            **({"style": "form", "explode": True} if field.kind.list_max else {}),
        }
        for field in route.fields
        if field.source is not Source.BODY and field.kind.is_documented and (may_name_period or field.name != "period")
    ]


def _body(route: Route, context: SchemaContext) -> tuple[Schema, Schema] | None:
    """Returns the schema of the JSON body, and the Request Body Object that refers to it; None without a body."""
    fields = {field.http_name: field for field in route.fields if field.source is Source.BODY}
    fields |= {field.kind.body_name: field for field in route.fields if field.kind.body_name}
    if not fields:
        return None
    kinds = {name: field.kind for name, field in fields.items()}
    properties = {name: {**kind.schema_for(context), "description": kind.description} for name, kind in kinds.items()}
    needed = [name for name, field in fields.items() if _is_required(field, context) and not field.kind.body_name]
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    schema |= {"required": needed} if needed else {}
    reference = {"$ref": f"#/components/schemas/{route.id}_body"}
    example = {name: kind.example_for(context) for name, kind in kinds.items()}
    content: Schema = {JSON_MEDIA_TYPE: {"schema": reference, "example": example}}
    description = f"At most {route.operation.body_bytes_max} bytes."
    description += " Other fields, and fields that occur twice, are refused."
    if BEACON_MEDIA_TYPE in media_types(route):
        plain = {"type": "string", "contentMediaType": JSON_MEDIA_TYPE, "contentSchema": reference}
        content[BEACON_MEDIA_TYPE] = {"schema": plain, "example": json.dumps(example)}
        description += " `text/plain` is the same JSON: `navigator.sendBeacon` sends it without a CORS preflight."
    return schema, {"required": bool(needed), "description": description, "content": content}


def _success_response(route: Route, status: int, component_schemas: dict[str, Schema]) -> Schema:
    operation = route.operation
    response: Schema = {"description": _SUCCESS_DESCRIPTIONS[status]}
    answer = {"type": "string"} if operation.answer is Text else schemas.schema(operation.answer, component_schemas)
    headers = ["Idempotency-Replayed"] if operation.leaves_receipt else []
    if route.is_cacheable or "version" in getattr(operation.answer, "__annotations__", {}):
        headers.append("ETag")
    if headers:
        response["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in headers}
    if status != 304:
        example = {} if operation.example is None else {"example": operation.example}
        response["content"] = {operation.media_type: {"schema": answer, **example}}
    return response


_SUCCESS_DESCRIPTIONS = {
    200: "Done.",
    201: "Created.",
    202: "Accepted, and counted.",
    304: "You have the current answer.",
}


def _description(route: Route, served: list[Counter]) -> str:
    operation = route.operation
    parts = [operation.description] if operation.description else []
    if operation.name == "increment":
        parts.append(_table(served))
    who = "A signed-in caller" if route.needs_caller else "Anyone"
    who += f" with the scope `{route.scope}`" if route.scope else ""
    limit = f"{route.throttle.rate_per_s} requests a second, with bursts of {route.throttle.burst}"
    parts.append(f"{who} may call it. The limit for all callers together is {limit}.")
    return "\n\n".join(parts)


def _table(counters: list[Counter]) -> str:
    """Returns a table of these counters in Markdown."""
    rows = ["| counter | step | limits | visible | a key is recognised for |", "|---|---|---|---|---|"]
    for one in counters:
        step = "any amount" if one.delta is None else f"{one.delta:+d}"
        limits = [f"from {one.floor}"] if one.floor is not None else []
        limits += [f"to {one.ceiling}"] if one.ceiling is not None else []
        limits += [f"a `used` amount may exceed a limit by {one.debt}"] if one.debt else []
        limits += [f"starts at {one.start}"] if one.start else []
        limits += [f"for each {one.period}"] if one.period else []
        visible = "now" if one.visible == "now" else "within seconds"
        visible += ", numbered" if one.numbered else ""
        if one.retired:
            visible = "retired: it can be read, but not changed"
        kept = f"{one.receipt_days} days" if one.receipt_days else f"{RECEIPT_TTL_DEFAULT_S // 3600} hours at least"
        if one.visible == "soon":
            kept = f"{max(one.receipt_days or 0, PENDING_KEPT_S // DAY_S)} days at least"
        rows.append(f"| `{one.name}` | {step} | {', '.join(limits) or 'none'} | {visible} | {kept} |")
    return "\n".join(rows)
