"""The answers to refused requests: Tally's problem documents, and API Gateway's own messages."""

from __future__ import annotations

from typing import Any

from tally import errors
from tally.errors import TallyError

from ..api.http import JSON_MEDIA_TYPE, PROBLEM_MEDIA_TYPE
from ..api.kind import Source
from ..api.operation import Route

Schema = dict[str, Any]

_MEMBERS: Schema = {
    "type": {"type": "string", "description": "Names the kind of problem, for programs. Stable."},
    "title": {"type": "string", "description": "The kind of problem, for people."},
    "status": {"type": "integer", "description": "The HTTP status."},
    "detail": {"type": "string", "description": "What is wrong with this request."},
    "field": {"type": "string", "description": "The input at fault."},
    "left": {"type": "integer", "description": "The amount that still fits."},
    "limit": {"type": "integer", "description": "Of a counter with `limit_overrides`: the limit of this id."},
    "entry": {
        "type": "integer",
        "minimum": 0,
        "description": "In a batch: the index of the refused change, or of the first change of the refused number.",
    },
    "counter": {"type": "string", "description": "The counter of that entry."},
    "id": {"type": "string", "description": "The id of that entry."},
    "period": {"type": "string", "description": "The period of that entry, if its counter has periods."},
    "retry_after_s": {
        "type": "integer",
        "minimum": 1,
        "description": "The seconds until the next period begins, if the change fits there.",
    },
    "version": {"type": "integer", "minimum": 0, "description": "The present version of the counter."},
    "request_id": {"type": "string", "description": "The id of this request in the logs."},
}
SCHEMAS: dict[str, Schema] = {
    "problem": {
        "description": "A problem document (RFC 9457).",
        "type": "object",
        "properties": _MEMBERS,
        "required": ["type", "title", "status", "detail"],
    },
    "message": {
        "description": "API Gateway's own answer.",
        "type": "object",
        "properties": {"message": {"type": "string"}},
        "required": ["message"],
    },
}
_ERRORS_OF_EVERY_ROUTE: tuple[type[TallyError], ...] = (
    errors.InvalidInputError,
    errors.PayloadTooLargeError,
    errors.UnsupportedMediaTypeError,
    errors.TallyError,
    errors.StoreBusyError,
    errors.StoreUnreachableError,
    errors.StoreRefusedError,
)
# API Gateway's own answers, whose bodies an HTTP API cannot change.
_GATEWAY_PHRASES = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    413: "Request Entity Too Large",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_GATEWAY_STATUSES_OF_EVERY_ROUTE = frozenset({413, 429, 431, 500, 503})


def responses(route: Route) -> dict[int, Schema]:
    """Returns the responses to refused requests, by status."""
    raised = {*_ERRORS_OF_EVERY_ROUTE, *route.operation.raises}
    gateway_statuses = set(_GATEWAY_STATUSES_OF_EVERY_ROUTE)
    if route.needs_caller:
        raised.add(errors.UnauthenticatedError)
        gateway_statuses.add(401)
    if route.scope:
        raised.add(errors.ForbiddenError)  # a token of the console whose user is not an operator
        gateway_statuses.add(403)
    if any(field.name == "idempotency_key" for field in route.fields):
        raised |= {errors.NotCommittedError} | ({errors.KeyReusedError} if route.operation.changes_numbers else set())
    if any(field.source is Source.PATH for field in route.fields):
        gateway_statuses.add(404)  # if the id is empty, the path matches no route
    by_status: dict[int, list[type[TallyError]]] = {}
    for error in sorted(raised, key=lambda error: error.slug):
        by_status.setdefault(error.status, []).append(error)
    return {
        status: _response(status, by_status.get(status, []), from_gateway=status in gateway_statuses)
        for status in sorted({*by_status, *gateway_statuses})
    }


def _response(status: int, raised: list[type[TallyError]], *, from_gateway: bool) -> Schema:
    """Returns the response with this status. `raised`: Tally's errors. `from_gateway`: API Gateway sends it, too."""
    titles = [f"{error.title} (`{error.slug}`)" for error in raised]
    content: Schema = {}
    if raised:
        types = [errors.PROBLEM_TYPE_PREFIX + error.slug for error in raised]
        properties: Schema = {"type": {"enum": types}, "status": {"const": status}}
        schema = {"allOf": [{"$ref": "#/components/schemas/problem"}, {"properties": properties}]}
        detail, members = _EXAMPLES.get(raised[0], (f"{raised[0].title}.", {}))
        example = errors.problem_document(raised[0](detail, **members), request_id="JKJaXmPLvHcESHA=")
        content[PROBLEM_MEDIA_TYPE] = {"schema": schema, "example": example}
    if from_gateway:
        phrase = _GATEWAY_PHRASES[status]
        titles.append(f"{phrase} (API Gateway)")
        content[JSON_MEDIA_TYPE] = {"schema": {"$ref": "#/components/schemas/message"}, "example": {"message": phrase}}
    response: Schema = {"description": "; ".join(titles) + ".", "content": content}
    if any(issubclass(error, (errors.RetryableError, errors.LimitReachedError)) for error in raised):
        response["headers"] = {"Retry-After": {"$ref": "#/components/headers/Retry-After"}}
    if errors.PreconditionFailedError in raised:
        response["headers"] = {"ETag": {"$ref": "#/components/headers/ETag"}}
    if status == 401:
        response["headers"] = {"WWW-Authenticate": {"$ref": "#/components/headers/WWW-Authenticate"}}
    return response


_EXAMPLES: dict[type[TallyError], tuple[str, dict[str, str | int | None]]] = {  # the detail and the members
    errors.InvalidInputError: ("limit must be a whole number from 1 to 1000.", {"field": "limit"}),
    errors.LimitReachedError: ("3 left. Nothing was counted.", {"left": 3}),
    errors.PreconditionFailedError: ("The counter is at version 8 now.", {"version": 8}),
    errors.PreconditionRequiredError: ("If-Match is missing: send the ETag that you read.", {"field": "If-Match"}),
}
