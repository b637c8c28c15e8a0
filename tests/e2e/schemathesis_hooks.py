"""What the OpenAPI schema cannot say, for schemathesis: rules that tie fields together, or that count bytes.

A request that is to be accepted is made to obey them; one that is to be refused is left as it is. schemathesis.toml
names this module.
"""

from __future__ import annotations

import itertools
import json
import os
from typing import Any
from urllib.parse import quote, unquote

import schemathesis
from schemathesis import Case, HookContext, Response
from schemathesis.core.failures import Failure
from schemathesis.generation.meta import TestPhase
from schemathesis.openapi.checks import UnsupportedMethodResponse

import counters
import operations
from openapi import inputs
from tally import fields

FRESH = '"0"'  # the version of a counter that was never written
STOCKED = "7c20"  # the id of the stock that there is enough of: whoever runs this puts it there (schemathesis_run.py)
_BY_LABEL = {operation.route: operation for operation in operations.OPERATIONS}
_NUMBERS = itertools.count()
_HELD: list[dict[str, str]] = []  # where the holds are that were made
_RUN = os.urandom(4).hex()  # the keys of one run are not those of another on the same data


@schemathesis.hook
def map_case(context: HookContext, case: Case) -> Case:
    """Make a request that is to be accepted obey what no schema says."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return case
    body = {name: _value(value) for name, value in case.body.items()} if isinstance(case.body, dict) else {}
    if case.media_type == "text/plain":  # of a body that is JSON in a string schemathesis knows only the string
        body = {"url": f"https://text.example/{quote(str(case.body), safe='')[:600]}", "key": inputs.KEY_EXAMPLE}
    if "url" in body:
        body["url"] = _page(str(body["url"]))
    _fit_query(case)
    if "counter" in (case.path_parameters or {}):
        _fit_counter(case, body)
    _fresh_key(case, body)
    if body:
        case.body = json.dumps(body) if case.media_type == "text/plain" else body
    return case


def _value(value: object) -> object:
    """JSON Schema takes 7.0 for an integer; Tally takes only what is written as one. Texts are measured in bytes."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return _cut(value, fields.TEXT_BYTES_MAX) if isinstance(value, str) else value


def _cut(text: str, bytes_max: int) -> str:
    return text.encode()[:bytes_max].decode(errors="ignore")


def _page(raw: str) -> str:
    """A URL is a page only if its host is one, and if it is short enough when normalised."""
    scheme, _, rest = raw.partition("://")
    host = "".join(character for character in rest if character.isascii() and character.isalnum())[:60]
    if raw == inputs.PAGE_EXAMPLE or scheme.lower() not in ("http", "https"):
        return inputs.PAGE_EXAMPLE
    return f"{scheme}://{host or 'a'}.example/{quote(rest, safe='')[:600]}"


def _fit_query(case: Case) -> None:
    """A cursor is one that a listing gave out: some user, encoded. What was visited is a page."""
    query = dict(case.query)
    if "url" in query:
        query["url"] = _page(str(query["url"]))
    if "cursor" in query:
        query["cursor"] = fields.to_cursor(quote(str(query["cursor"]), safe="")[: fields.USER_BYTES_MAX])
    if "target" in query:
        target = str(query["target"])
        query["target"] = _page(target) if query["operation"] == "visit" else _cut(target, fields.PAGE_BYTES_MAX)
    if query != case.query:
        case.query = query


def _fit_counter(case: Case, body: dict[str, Any]) -> None:
    """A counter with a step of its own takes that one, or none; the others need an amount.

    A link may bring a counter along that the operation is not for. A version is the one that a link brings along, or
    that of a counter never written; a hold is one that was made, of a stock that is not empty.
    """
    served = {counter.name for counter in _BY_LABEL[case.operation.label].served(counters.COUNTERS)}
    path = {name: unquote(value) for name, value in case.path_parameters.items()}  # schemathesis has them encoded
    made_up = case.meta is not None and case.meta.phase.name is TestPhase.FUZZING
    if made_up and case.operation.label == operations.HOLD.route:
        path["id"] = STOCKED
    elif made_up and "hold" in path and _HELD:
        mine = _HELD[case.operation.label == operations.COMMIT_HOLD.route :: 2] or _HELD  # the other half is released
        path |= mine[next(_NUMBERS) % len(mine)]
    if path["counter"] not in served:
        path["counter"] = min(served)
    counter = counters.COUNTERS[path["counter"]]
    if case.operation.label == operations.INCREMENT.route and counter.delta is None:
        body.setdefault("amount", 1)
        case.media_type = "application/json"
    elif case.operation.label == operations.INCREMENT.route and "amount" in body:
        body["amount"] = counter.delta
    if "If-Match" in case.headers and (made_up or case.headers["If-Match"] == inputs.VERSION_EXAMPLE):
        path["id"], case.headers["If-Match"] = f"{_RUN}-{next(_NUMBERS)}", FRESH
    if any(unquote(case.path_parameters[name]) != value for name, value in path.items()):
        case.path_parameters = path  # else as it is: schemathesis judges anew whatever is assigned


def _fresh_key(case: Case, body: dict[str, Any]) -> None:
    """A client makes a key for each change. With the one of the examples, all but the first were replays or 422."""
    for place, name in ((case.headers, "Idempotency-Key"), (body, "key")):
        if place.get(name) == inputs.KEY_EXAMPLE:
            place[name] = f"{_RUN}-0000-4000-8000-{next(_NUMBERS):012d}"


@schemathesis.hook
def after_call(context: HookContext, case: Case, response: Response) -> None:
    """Remember the holds that are made: their ids cannot be made up."""
    if case.operation.label == operations.HOLD.route and response.status_code == 201:
        hold = response.json()
        _HELD.append({"counter": hold["counter"], "id": hold["id"], "hold": hold["hold_id"]})


@schemathesis.hook
def filter_failure(context: HookContext, failure: Failure, case: Case, response: Response) -> bool:
    """A method without a route is 404 at API Gateway, whose HTTP APIs know no 405; everything else is a failure."""
    routed = not isinstance(failure, UnsupportedMethodResponse)
    return routed or response.status_code != 404 or response.json() != {"message": "Not Found"}
