"""The document, put together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from operations import OPERATIONS
from tally.counter import Counter
from tally.counting.receipts import ALONE_KEPT_S, DAY_S
from tally.operation import Access, Operation, Visible
from tally.settings import RECEIPT_TTL_DEFAULT_S

from . import inputs, refusals, schemas
from .answers import CONTRACTS, TAGS, Contract

API_VERSION = "1.0.0"  # of the HTTP contract, not of a deployment: that is in `GET /health`
Schema = dict[str, Any]
_SECURITY = "token"
_ABOUT = f"""\
Counting that is right after retries, crashes and viral posts.

- **Retries.** A change with an `Idempotency-Key` counts once, however often you send it. A replay has the header
  `Idempotency-Replayed: true` and the same body. Tally remembers a key for {RECEIPT_TTL_DEFAULT_S // 3600} hours,
  unless the deployment or the counter says otherwise: `GET /health` has the seconds for each counter. A key that is
  older counts again; `Date` tells a client with a wrong clock how old its key is. The same key with another change of
  the same operation, target and caller is refused (422).
- **Problems** are RFC 9457 documents (`application/problem+json`) with a stable `type`. API Gateway's own answers (a
  missing token or scope, an unknown route, too many requests) are `{{"message": …}}`.
- **503** means that nothing is wrong with the request: send it again with the same key.
"""
_HEADERS: dict[str, Schema] = {
    "Idempotency-Replayed": {
        "description": "Present if this change was counted before. The body is the answer of that time.",
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


def text(counters: Mapping[str, Counter], indent: int | None = None, likers: Visible = Visible.ANYONE) -> str:
    """The document as JSON. `likers`: who sees which users like a post."""
    made = document(counters, likers=likers)
    return json.dumps(made, indent=indent, separators=None if indent else (",", ":"), ensure_ascii=False)


def document(
    counters: Mapping[str, Counter],
    operations: Iterable[Operation] = OPERATIONS,
    likers: Visible = Visible.ANYONE,
) -> Schema:
    """The OpenAPI 3.1 document of these operations. It leaves out those that none of the declared counters fits."""
    paths: dict[str, Schema] = {}
    components: dict[str, Schema] = {"schemas": {**schemas.SCHEMAS, **refusals.SCHEMAS}, "headers": _HEADERS}
    components["responses"] = {}
    fitting = [operation for operation in operations if operation.served(counters) or not operation.by_counter]
    documented = {operation: shown for operation in fitting if (shown := operation.shown(likers))}
    for operation, shown in documented.items():
        contract = CONTRACTS[operation]
        if contract.schema:
            components["schemas"][contract.answer] = dict(contract.schema)
        links = {name: link for name, link in contract.links.items() if link.to in documented}
        for route in shown.routes(counters):
            served = route.served(counters) if route.by_counter else []
            made = _operation(route, replace(contract, links={} if route.fixed else links), served, components)
            paths.setdefault(route.path, {})[route.method.lower()] = made
    token = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
    token["description"] = "A JWT of the deployment's issuer. Its `sub` names the caller; some operations need a scope."
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tally",
            "version": API_VERSION,
            "description": _ABOUT,
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The host of this document."}],
        "tags": [{"name": name, "description": said} for name, said in TAGS.items()],
        "paths": paths,
        "components": {**components, "securitySchemes": {_SECURITY: token}},
    }


def _operation(
    operation: Operation, contract: Contract, served: list[Counter], components: dict[str, Schema]
) -> Schema:
    made: Schema = {
        "operationId": operation.id,
        "tags": [contract.tag],
        "summary": contract.summary,
        "description": _description(operation, contract, served),
        "security": [{_SECURITY: [operation.scope] if operation.scope else []}] if operation.needs_caller else [],
    }
    if parameters := inputs.parameters(operation, served) + ([_IF_NONE_MATCH] if operation.revalidated else []):
        made["parameters"] = parameters
    if body := inputs.body(operation, served):
        components["schemas"][f"{operation.name}_body"], made["requestBody"] = body
    responses = {str(status): _success(operation, contract, status) for status in operation.success}
    for status, response in refusals.responses(operation, contract.errors).items():
        responses[str(status)] = _shared(status, response, components["responses"])
    made["responses"] = responses
    return made


def _shared(status: int, response: Schema, shared: dict[str, Schema]) -> Schema:
    """A reference to the response among the components, where operations share equal responses."""
    equal = [name for name, other in shared.items() if other == response]
    if not equal:
        variants = sum(name.partition("_")[0] == str(status) for name in shared)
        equal = [f"{status}_{variants + 1}" if variants else str(status)]
        shared[equal[0]] = response
    return {"$ref": f"#/components/responses/{equal[0]}"}


def _success(operation: Operation, contract: Contract, status: int) -> Schema:
    made: Schema = {"description": _SUCCESS[status]}
    headers = []
    if operation.leaves_receipt:
        headers.append("Idempotency-Replayed")
    if operation.revalidated or schemas.versioned(contract.answer):
        headers.append("ETag")
    if headers:
        made["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in headers}
    if status != 304:
        schema = {"$ref": f"#/components/schemas/{contract.answer}"} if contract.answer else {"type": "string"}
        example = {} if contract.example is None else {"example": contract.example}
        made["content"] = {operation.media_type: {"schema": schema, **example}}
    if contract.links:
        made["links"] = {
            name: {"operationId": link.to.name, "parameters": dict(link.parameters)}
            for name, link in contract.links.items()
        }
    return made


_SUCCESS = {200: "Done.", 201: "Created.", 202: "Accepted, and counted.", 304: "You have the current answer."}


def _description(operation: Operation, contract: Contract, served: list[Counter]) -> str:
    parts = [contract.description] if contract.description else []
    if operation.increments and served:
        parts.append(_table(served))
    elif operation.leaves_receipt and operation.counter:
        parts.append(f"Tally recognises a key for {_life(operation.counter)}.")
    who = {Access.ANYONE: "Anyone", Access.SIGNED_IN: "A signed-in caller"}.get(
        operation.access, f"A signed-in caller with the scope `{operation.scope}`"
    )
    parts.append(
        f"{who} may call it. The limit for all callers together is {operation.throttle.rate_per_s} requests a second,"
        f" with bursts of {operation.throttle.burst}."
    )
    return "\n\n".join(parts)


def _table(counters: list[Counter]) -> str:
    """The declared counters, in Markdown."""
    rows = [
        f"| `{counter.name}` | {_step(counter)} | {_limits(counter)} | {_promise(counter)} | {_life(counter)} |"
        for counter in counters
    ]
    return "\n".join(
        ["| counter | step | limits | promise | a key is recognised for |", "|---|---|---|---|---|", *rows]
    )


def _step(counter: Counter) -> str:
    return "any amount" if counter.delta is None else f"{counter.delta:+d}"


def _limits(counter: Counter) -> str:
    limits = [f"from {counter.floor}"] if counter.floor is not None else []
    limits += [f"to {counter.ceiling}"] if counter.ceiling is not None else []
    limits += [f"starts at {counter.start}"] if counter.start else []
    limits += [f"each {counter.period} by itself"] if counter.period else []
    return ", ".join(limits) or "none"


def _life(counter: Counter) -> str:
    """How long its receipts live, as far as the declaration says."""
    if counter.soon:
        return f"{max(counter.receipt_days or 0, ALONE_KEPT_S // DAY_S)} days at least"
    return f"{counter.receipt_days} days" if counter.receipt_days else f"{RECEIPT_TTL_DEFAULT_S // 3600} hours at least"


def _promise(counter: Counter) -> str:
    if counter.retired:
        return "retired: it can be read, and takes no more changes"
    return f"once for each key, visible {counter.visible}" + (", numbered" if counter.numbered else "")
