"""Parameters and bodies: JSON Schema for each kind of field, with the bounds that `tally/fields.py` checks.

What a schema cannot say (bytes instead of characters, which page may be counted) is said in the description.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import counters
import operations
from operations import Field, Operation, Source
from tally import fields
from tally.api.http import BEACON, BODY_BYTES_MAX, JSON
from tally.counter import AMOUNT_MAX, Counter, Guarantee
from tally.fields import Kind

Schema = dict[str, Any]

KEY_EXAMPLE = "5f0c2b9e-6f0a-4b63-8a37-0d1a4f0f6f11"
PAGE_EXAMPLE = "https://example.com/a"
VERSION_EXAMPLE = '"7"'
HOLD_EXAMPLE = "1785542401-mFYxsn9wM2rBbRkD"
_SCOPED_COUNTERS: dict[Operation, Callable[[Counter], bool]] = {
    operations.SET_COUNTER: lambda counter: counter.versioned,
    operations.HOLD: lambda counter: counter.holdable,
    operations.COMMIT_HOLD: lambda counter: counter.holdable,
    operations.RELEASE_HOLD: lambda counter: counter.holdable,
}


def served(operation: Operation) -> list[Counter]:
    """The declared counters that an operation with a counter in its path can be called for."""
    found = [counter for counter in counters.COUNTERS.values() if counter.api]
    fits = _SCOPED_COUNTERS.get(operation)
    return [counter for counter in found if fits(counter)] if fits else found


def required(field: Field, operation: Operation) -> bool:
    """Whether the operation needs the field: for some it depends on the counters that are declared."""
    if operation is operations.INCREMENT and field.kind is Kind.KEY:
        return all(counter.guarantee is not Guarantee.FAST for counter in served(operation))
    if operation is operations.INCREMENT and field.kind is Kind.AMOUNT:
        return all(counter.delta is None for counter in served(operation))
    return field.required


def parameters(operation: Operation) -> list[Schema]:
    """The parameters in path, query and headers."""
    return [
        {
            "name": field.wire,
            "in": field.source.value,
            "required": required(field, operation),
            "description": description(field, operation),
            "schema": schema(field, operation),
            "example": _example(field, operation),
        }
        for field in operation.fields
        if field.source is not Source.BODY and field.kind is not Kind.USER_AGENT  # every client sends it by itself
    ]


def body(operation: Operation) -> tuple[Schema, Schema] | None:
    """The schema of the JSON body and the request body that refers to it as `<operation>_body`; None without one."""
    found = [field for field in operation.fields if field.source is Source.BODY]
    if not found:
        return None
    properties = {
        field.wire: {**schema(field, operation), "description": description(field, operation)} for field in found
    }
    needed = [field.wire for field in found if required(field, operation)]
    made: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    made |= {"required": needed} if needed else {}
    reference = {"$ref": f"#/components/schemas/{operation.name}_body"}
    example = {field.wire: _example(field, operation) for field in found}
    content: Schema = {JSON: {"schema": reference, "example": example}}
    said = f"At most {BODY_BYTES_MAX} bytes; no field beside these, and none twice."
    if operation is operations.VISIT:
        text = {"type": "string", "contentMediaType": JSON, "contentSchema": reference}
        content[BEACON] = {"schema": text, "example": json.dumps(example)}
        said += " As `text/plain` it is the same JSON: what `navigator.sendBeacon` sends without asking first."
    return made, {"required": bool(needed), "description": said, "content": content}


def schema(field: Field, operation: Operation) -> Schema:
    """JSON Schema of one field."""
    if field.kind is Kind.KEY:
        shortest = 1 if operation.needs_caller else fields.ANONYMOUS_KEY_CHARACTERS_MIN
        return _string(shortest, fields.KEY_CHARACTERS_MAX, fields.KEY_FORM)
    if field.kind is Kind.COUNTER:
        return {"type": "string", "enum": [counter.name for counter in served(operation)]}
    return dict(_SCHEMAS[field.kind])


def description(field: Field, operation: Operation) -> str:
    """What a caller must know of one field."""
    if field.kind is Kind.COUNTER:
        return "A counter that this deployment declares."
    if field.kind is Kind.AMOUNT and operation is operations.SET_COUNTER:
        return "The value to set."
    if field.kind is Kind.KEY and operation is operations.INCREMENT and not required(field, operation):
        fast = [counter.name for counter in served(operation) if counter.guarantee is Guarantee.FAST]
        return f"{_DESCRIPTIONS[Kind.KEY]} Needed for every counter but {', '.join(fast)}."
    return _DESCRIPTIONS[field.kind]


def _example(field: Field, operation: Operation) -> Any:
    if field.kind is Kind.COUNTER:
        return _example_counter(operation).name
    if field.kind is Kind.AMOUNT:
        return _example_counter(operation).delta or 1
    if field.kind is Kind.ID:
        return {"video_id": "9f3a", "post_id": "a91f"}.get(field.name, "7c20")
    return _EXAMPLES[field.kind]


def _example_counter(operation: Operation) -> Counter:
    """One that is moved by any amount, if there is one: its example says most."""
    found = served(operation)
    return next((counter for counter in found if counter.delta is None), found[0])


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
    Kind.HELD_AMOUNT: _whole(1, AMOUNT_MAX),
    Kind.TTL: _whole(1, fields.HOLD_TTL_MAX_S),
    Kind.VERSION: {"type": "string", "pattern": f"^{fields.ETAG_FORM.pattern}$"},
    Kind.HOLD: {"type": "string", "pattern": f"^{fields.HOLD_FORM.pattern}$"},
    Kind.OPERATION: {"type": "string", "enum": list(fields.RECEIPT_OPERATIONS)},
    Kind.TARGET: _string(1, fields.PAGE_BYTES_MAX),
}
_URL = f"An absolute http or https URL, at most {fields.PAGE_BYTES_MAX} bytes also when normalised (RFC 3986)."
_DESCRIPTIONS: dict[Kind, str] = {
    Kind.ID: "Of what is counted.",
    Kind.KEY: "Your name for this one change, a UUID for instance. Send it again with every retry: it counts once.",
    Kind.TEXT: f"At most {fields.TEXT_BYTES_MAX} bytes in UTF-8.",
    Kind.PAGE: _URL,
    Kind.LISTED_PAGE: f"{_URL} Its host must be one that the deployment lists.",
    Kind.PAGE_SIZE: "How many at once.",
    Kind.CURSOR: "Where to go on: the `cursor` of the page before.",
    Kind.AMOUNT: "By how much. For a counter with a step of its own: left out, or that step.",
    Kind.HELD_AMOUNT: "How much to take.",
    Kind.TTL: "For how many seconds; then it is given back.",
    Kind.VERSION: "The `ETag` that you read.",
    Kind.HOLD: "The `hold_id` that you were given.",
    Kind.OPERATION: "The operation that the key was sent with.",
    Kind.TARGET: f"What it was sent to: the id, `counter/id`, or a visited page's URL. At most {fields.PAGE_BYTES_MAX}"
    " bytes.",
}
_EXAMPLES: dict[Kind, Any] = {
    Kind.KEY: KEY_EXAMPLE,
    Kind.TEXT: "Hello",
    Kind.PAGE: PAGE_EXAMPLE,
    Kind.LISTED_PAGE: PAGE_EXAMPLE,
    Kind.PAGE_SIZE: fields.PAGE_SIZE_DEFAULT,
    Kind.CURSOR: fields.to_cursor("auth0%7C7c20"),
    Kind.AMOUNT: 1,
    Kind.HELD_AMOUNT: 2,
    Kind.TTL: 600,
    Kind.VERSION: VERSION_EXAMPLE,
    Kind.HOLD: HOLD_EXAMPLE,
    Kind.OPERATION: operations.PLAY.name,
    Kind.TARGET: "9f3a",
}
