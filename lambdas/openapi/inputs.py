"""Parameters and bodies: JSON Schema for each kind of field, with the bounds that `tally/fields.py` checks.

Descriptions say what a schema cannot: limits in bytes, or which hosts' pages count.
"""

from __future__ import annotations

import json
import re
from typing import Any

import operations
from tally import fields
from tally.api.http import BEACON, JSON
from tally.counter import AMOUNT_MAX, Counter
from tally.counting.changes import TALLIES_MAX
from tally.fields import Kind
from tally.operation import Field, Operation, Source

Schema = dict[str, Any]

KEY_EXAMPLE = "5f0c2b9e-6f0a-4b63-8a37-0d1a4f0f6f11"
PAGE_EXAMPLE = "https://example.com/a"
VERSION_EXAMPLE = '"7"'
HOLD_EXAMPLE = "1785542401-mFYxsn9wM2rBbRkD"


def required(field: Field, operation: Operation, served: list[Counter]) -> bool:
    """Whether the operation needs the field. For an amount this depends on the counters that it serves."""
    if operation.increments and operation.by_counter and field.kind is Kind.AMOUNT:
        return all(counter.delta is None for counter in served)
    return field.required


def parameters(operation: Operation, served: list[Counter]) -> list[Schema]:
    """The parameters in path, query and headers."""
    return [
        {
            "name": field.wire,
            "in": field.source.value,
            "required": required(field, operation, served) and not field.body_wire,
            "description": description(field, operation, served),
            "schema": schema(field, operation, served),
            "example": _example(field, served),
            **({"style": "form", "explode": True} if field.many_max else {}),
        }
        for field in operation.fields
        if field.source is not Source.BODY
        and field.wire not in operation.fixed
        and field.kind is not Kind.USER_AGENT  # every client sends it anyway
        and (field.kind is not Kind.PERIOD or any(counter.period for counter in served))
    ]


def body(operation: Operation, served: list[Counter]) -> tuple[Schema, Schema] | None:
    """The schema of the JSON body, and the request body that refers to it as `<operation>_body`; else None."""
    found = {field.wire: field for field in operation.fields if field.source is Source.BODY}
    found |= {field.body_wire: field for field in operation.fields if field.body_wire}
    if not found:
        return None
    properties = {
        name: {**schema(field, operation, served), "description": description(field, operation, served)}
        for name, field in found.items()
    }
    needed = [name for name, field in found.items() if required(field, operation, served) and not field.body_wire]
    made: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    made |= {"required": needed} if needed else {}
    reference = {"$ref": f"#/components/schemas/{operation.name}_body"}
    example = {name: _example(field, served) for name, field in found.items()}
    content: Schema = {JSON: {"schema": reference, "example": example}}
    said = f"At most {operation.body_bytes_max} bytes. Other fields, and fields that occur twice, are refused."
    if operation.takes_beacon:
        text = {"type": "string", "contentMediaType": JSON, "contentSchema": reference}
        content[BEACON] = {"schema": text, "example": json.dumps(example)}
        said += " `text/plain` is the same JSON: `navigator.sendBeacon` sends it without a CORS preflight."
    return made, {"required": bool(needed), "description": said, "content": content}


def schema(field: Field, operation: Operation, served: list[Counter]) -> Schema:
    """JSON Schema of one field; of a list, if it has many values."""
    one = _schema(field, operation, served)
    return {"type": "array", "minItems": 1, "maxItems": field.many_max, "items": one} if field.many_max else one


def _schema(field: Field, operation: Operation, served: list[Counter]) -> Schema:
    if field.kind is Kind.KEY:
        shortest = 1 if operation.needs_caller else fields.ANONYMOUS_KEY_CHARACTERS_MIN
        return _string(shortest, fields.KEY_CHARACTERS_MAX, fields.KEY_FORM)
    if field.kind in (Kind.COUNTER, Kind.ANY_COUNTER):
        return {"type": "string", "enum": [counter.name for counter in served]}
    if field.kind in (Kind.OPERATION, Kind.VISIBLE, Kind.CHOICE):
        return {"type": "string", "enum": list(field.choices)}
    if field.kind is Kind.CHANGES:
        return _changes(served)
    return dict(_SCHEMAS[field.kind])


def _changes(served: list[Counter]) -> Schema:
    """A list of changes; those of counters with a fixed step may leave the amount out, or send that step."""
    steps: dict[int | None, list[str]] = {}
    for counter in served:
        steps.setdefault(counter.delta, []).append(counter.name)
    entries = []
    for step, names in steps.items():
        properties = {
            "counter": {"type": "string", "enum": names},
            "id": _SCHEMAS[Kind.ID],
            "amount": _SCHEMAS[Kind.AMOUNT] if step is None else {"const": step},
        }
        needed = ["counter", "id", *(["amount"] if step is None else [])]
        entry: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
        entries.append(entry | {"required": needed})
    items = {"anyOf": entries} if len(entries) > 1 else entries[0]
    return {"type": "array", "minItems": 1, "maxItems": fields.CHANGES_MAX, "items": items}


def description(field: Field, operation: Operation, served: list[Counter]) -> str:
    """The description of one field."""
    if field.kind in (Kind.COUNTER, Kind.ANY_COUNTER):
        return "A counter that this deployment declares."
    if field.body_wire:
        return f"{_DESCRIPTIONS[field.kind]} In the header, or as `{field.body_wire}` in the body."
    return _DESCRIPTIONS[field.kind]


def _example(field: Field, served: list[Counter]) -> Any:
    one = _example_of_one(field, served)
    return [one] if field.many_max else one


def _example_of_one(field: Field, served: list[Counter]) -> Any:
    if field.kind is Kind.CHOICE:
        return field.choices[0]
    if field.kind in (Kind.COUNTER, Kind.ANY_COUNTER):
        return _example_counter(served).name
    if field.kind in (Kind.AMOUNT, Kind.VALUE):
        return _example_counter(served).delta or 1
    if field.kind is Kind.CHANGES:
        return [{"counter": counter.name, "id": "7c20", "amount": counter.delta or 1} for counter in served[:2]]
    if field.kind is Kind.ID:
        return {"video_id": "9f3a", "post_id": "a91f", "post_ids": "a91f", "file": "app.js"}.get(field.name, "7c20")
    if field.kind is Kind.TIME:  # a range that is not empty
        return {"from_s": "2026-07-30", "to_s": "2026-07-31"}[field.name]
    return _EXAMPLES[field.kind]


def _example_counter(served: list[Counter]) -> Counter:
    """A counter that takes any amount, if there is one: its example says most."""
    return next((counter for counter in served if counter.delta is None), served[0])


def _string(shortest: int, longest: int, form: re.Pattern[str] | None = None) -> Schema:
    made: Schema = {"type": "string", "minLength": shortest, "maxLength": longest}
    return made | ({"pattern": f"^{form.pattern}$"} if form else {})


def _whole(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


_PAGE = _string(8, fields.PAGE_BYTES_MAX, fields.PAGE_FORM)  # no format: `uri` would rule out other alphabets
_SCHEMAS: dict[Kind, Schema] = {
    Kind.ID: _string(1, fields.ID_CHARACTERS_MAX, fields.ID_FORM),
    Kind.TEXT: _string(1, fields.TEXT_BYTES_MAX),
    Kind.PAGE: _PAGE,
    Kind.LISTED_PAGE: _PAGE,
    Kind.PAGE_SIZE: _whole(1, fields.PAGE_SIZE_MAX) | {"default": fields.PAGE_SIZE_DEFAULT},
    Kind.CURSOR: _string(2, fields.CURSOR_CHARACTERS_MAX, fields.CURSOR_FORM),
    Kind.AMOUNT: _whole(-AMOUNT_MAX, AMOUNT_MAX),
    Kind.VALUE: _whole(-AMOUNT_MAX, AMOUNT_MAX),
    Kind.HELD_AMOUNT: _whole(1, AMOUNT_MAX),
    Kind.TTL: _whole(1, fields.HOLD_TTL_MAX_S),
    Kind.VERSION: {"type": "string", "pattern": f"^{fields.ETAG_FORM.pattern}$"},
    Kind.HOLD: {"type": "string", "pattern": f"^{fields.HOLD_FORM.pattern}$"},
    Kind.TARGET: _string(1, fields.PAGE_BYTES_MAX),
    Kind.TIME: {"type": "string", "pattern": f"^({fields.TIME_FORM.pattern})$"},
    Kind.ZONE: _string(1, fields.SHORT_CHARACTERS_MAX),
    Kind.SPAN: {"type": "string", "pattern": f"^{fields.SPAN_FORM.pattern}$"},
    Kind.TOP_SIZE: _whole(1, fields.TOP_SIZE_MAX) | {"default": fields.TOP_SIZE_MAX},
    Kind.CHILD: _string(1, fields.USER_BYTES_MAX) | {"not": {"enum": [".", ".."]}},
    Kind.TALLY: _string(1, fields.TALLY_BYTES_MAX),
    Kind.FLAG: {"type": "boolean", "default": False},
    Kind.PERIOD: _string(4, 16, fields.PERIOD_FORM),
}
_URL = (
    f"An absolute http or https URL, at most {fields.PAGE_BYTES_MAX} bytes also when normalised (RFC 3986). Its"
    " fragment and the parameters that the deployment drops (`utm_source`, …) are no part of the page."
)
_DESCRIPTIONS: dict[Kind, str] = {
    Kind.ID: "The id of what is counted.",
    Kind.KEY: "Your name for this one change, such as a UUID. Send it with every retry, and the change counts once.",
    Kind.TEXT: f"At most {fields.TEXT_BYTES_MAX} bytes in UTF-8.",
    Kind.PAGE: _URL,
    Kind.LISTED_PAGE: f"{_URL} The deployment must list its host.",
    Kind.PAGE_SIZE: "How many entries a page has.",
    Kind.CURSOR: "The `cursor` of the page before.",
    Kind.AMOUNT: "By how much. For a counter with a fixed step: that step, or leave it out.",
    Kind.VALUE: "The value to set.",
    Kind.CHANGES: f"What counts together, of at most {TALLIES_MAX} tallies: by how much each counter of an id moves."
    " Several changes of one tally are judged by their sum.",
    Kind.VISIBLE: "`soon`: one receipt for all of them, which is added up within seconds. Only for counters without"
    " limits and without a version.",
    Kind.HELD_AMOUNT: "How much to take.",
    Kind.TTL: "For how many seconds. Then the hold expires and gives the amount back.",
    Kind.VERSION: "The `ETag` that you read.",
    Kind.HOLD: "The `hold_id` from the answer.",
    Kind.FLAG: "Whether the answer has the number as well, read right after the change. It costs a read unit.",
    Kind.TALLY: "`counter:id`, as `likes:a91f`, or `visits:` and a page's URL. Repeat it for each.",
    Kind.OPERATION: "The operation that the key was sent with.",
    Kind.CHOICE: "One of these.",
    Kind.TIME: "A time: `2026-07-31`, `2026-07-31T13:00Z`, or seconds since 1970. UTC without an offset.",
    Kind.ZONE: "The time zone of the days; UTC without one. Its days must begin with an hour of UTC.",
    Kind.SPAN: "An hour `2026-07-31T13`, a day `2026-07-31` or a month `2026-07`, as `by` says. In UTC.",
    Kind.TOP_SIZE: "How many tallies the list has at most.",
    Kind.CHILD: f"The child, such as a user's `sub`. At most {fields.USER_BYTES_MAX} bytes, percent-encoded.",
    Kind.PERIOD: "Of a counter with periods: the minute (`2026-11-22T14:05`), hour, day, week (`2026-W47`), month or"
    " year that you ask for. Without it: the current one.",
    Kind.TARGET: "The target of the change: the id, `counter/id`, the URL, or `changes` for many together. At most"
    f" {fields.PAGE_BYTES_MAX} bytes.",
}
_EXAMPLES: dict[Kind, Any] = {
    Kind.ZONE: "Europe/Berlin",
    Kind.SPAN: "2026-07-31T13",  # of the example of `by`
    Kind.TOP_SIZE: 10,
    Kind.PERIOD: "2026-11-22",
    Kind.KEY: KEY_EXAMPLE,
    Kind.TEXT: "Hello",
    Kind.PAGE: PAGE_EXAMPLE,
    Kind.LISTED_PAGE: PAGE_EXAMPLE,
    Kind.PAGE_SIZE: fields.PAGE_SIZE_DEFAULT,
    Kind.CURSOR: fields.to_cursor("auth0%7C7c20"),
    Kind.HELD_AMOUNT: 2,
    Kind.TTL: 600,
    Kind.VERSION: VERSION_EXAMPLE,
    Kind.HOLD: HOLD_EXAMPLE,
    Kind.OPERATION: operations.PLAY.name,
    Kind.VISIBLE: "now",
    Kind.TARGET: "9f3a",
    Kind.CHILD: "auth0|7c20",
    Kind.TALLY: "likes:a91f",
    Kind.FLAG: True,
}
