"""The kinds of fields. A kind is one object: its check, its schema, its description and its example.

`tally/fields.py` has the checks that the command and the counting core use, too. An operation annotates its arguments
with the types below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, Any, NamedTuple

from tally import fields
from tally.counter import AMOUNT_MAX, Counter
from tally.errors import CallerError, InvalidInputError, NotFoundError, PreconditionRequiredError
from tally.ids import ID_FORM
from tally.items import GROUP_ID_CHARACTERS_MAX
from tally.pages import Pages

Schema = dict[str, Any]
_NUMBER_PATTERN = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4})?([eE][+-]?[0-9])?")  # as JSON writes one


class Source(Enum):
    """Where an HTTP request has a field."""

    PATH = "path"
    QUERY = "query"
    BODY = "body"
    HEADER = "header"
    ADDRESS = "address"
    """The address of the caller, as the gateway knows it."""


class FieldContext(NamedTuple):
    """The facts that the check of a field depends on, besides the value."""

    anonymous: bool
    page_hosts: frozenset[str]
    counters: Mapping[str, Counter]
    pages: Pages


class SchemaContext(NamedTuple):
    """The facts that schemas and examples depend on: the counters of a route, and whether its callers are anonymous."""

    counters: Sequence[Counter]
    anonymous: bool


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of field."""

    check: Callable[[Any, str, FieldContext], Any]
    """Takes a value and the field's name, and returns the value to use. Raises CallerError."""
    schema: Schema | Callable[[SchemaContext], Schema]
    description: str
    example: Any
    """A value, or a function of SchemaContext that makes one."""
    source: Source | None = None
    """Where an HTTP request has it. None: in the query of a GET, and in the body of any other method."""
    http_name: str = ""
    """Its name in an HTTP request. Empty: the argument's name."""
    body_name: str = ""
    """Its name in the JSON body, where a request may have it instead. Both, if sent, must be equal."""
    list_max: int = 0
    """The most values of a list; 0: the field has one value. A query repeats the name for each value."""
    http_default: str | None = None
    """The value of an HTTP request that does not have the field."""
    is_counter: bool = False
    uses_page_hosts: bool = False
    """Whether its check compares with the page hosts that the deployment lists."""
    is_documented: bool = True

    def missing_error(self, wire: str) -> CallerError:
        """Makes the error for a required field that is missing."""
        if self is VERSION:
            return PreconditionRequiredError(f"{wire} is missing: send the ETag that you read.", field=wire)
        return InvalidInputError(f"{wire} is missing.", field=wire)

    def parse(self, given: object, wire: str, context: FieldContext) -> Any:
        """Returns the value to use, or a list of these. Raises CallerError, which names the field."""
        if not self.list_max:
            return self.check(given, wire, context)
        if not isinstance(given, list) or not 1 <= len(given) <= self.list_max:
            detail = f"{wire} must be a list of 1 to {self.list_max} values. A query repeats the name for each."
            raise InvalidInputError(detail, field=wire)
        return [self.check(value, wire, context) for value in given]

    def schema_for(self, context: SchemaContext) -> Schema:
        """Returns the JSON Schema of its values."""
        schema = dict(self.schema) if isinstance(self.schema, dict) else self.schema(context)
        return {"type": "array", "minItems": 1, "maxItems": self.list_max, "items": schema} if self.list_max else schema

    def example_for(self, context: SchemaContext) -> Any:
        """Returns a value that the check accepts."""
        example = self.example(context) if callable(self.example) else self.example
        return [example] if self.list_max else example


def _without_context(check: Callable[[object, str], Any]) -> Callable[[Any, str, FieldContext], Any]:
    """Makes the check of a kind from a check that needs no context."""
    return lambda value, field, _: check(value, field)


def _string_schema(shortest: int, longest: int, pattern: re.Pattern[str] | None = None) -> Schema:
    schema: Schema = {"type": "string", "minLength": shortest, "maxLength": longest}
    return schema | ({"pattern": f"^{pattern.pattern}$"} if pattern else {})


def _pattern_schema(pattern: re.Pattern[str]) -> Schema:
    return {"type": "string", "pattern": f"^({pattern.pattern})$"}


def _integer_kind(least: int, most: int, description: str, example: Any) -> Kind:
    """Returns a kind for whole numbers."""

    def check(value: object, field: str, _: FieldContext) -> int:
        return fields.integer_between(value, field, least, most)

    return Kind(check, {"type": "integer", "minimum": least, "maximum": most}, description, example)


def _size_kind(most: int, default: int, description: str, example: int) -> Kind:
    """Returns a kind for the length of a list: a number, or its text in a query."""

    def check(value: object, field: str, _: FieldContext) -> int:
        written = isinstance(value, str) and _NUMBER_PATTERN.fullmatch(value)
        return fields.integer_between(float(written[0]) if written else value, field, 1, most)

    return Kind(check, {"type": "integer", "minimum": 1, "maximum": most, "default": default}, description, example)


def _text_kind(longest: int, description: str, example: str, unit: str = "bytes") -> Kind:
    """Returns a kind for any text up to a length."""

    def check(value: object, field: str, _: FieldContext) -> str:
        return fields.string(value, field, longest, unit)

    return Kind(check, _string_schema(1, longest), description, example)


def _pattern_kind(pattern: re.Pattern[str], schema: Schema, must: str, description: str, example: str) -> Kind:
    """Returns a kind for text that matches a pattern."""

    def check(value: object, field: str, _: FieldContext) -> str:
        given = fields.string(value, field)
        if not pattern.fullmatch(given):
            raise InvalidInputError(f"{field} must be {must}.", field=field)
        return given

    return Kind(check, schema, description, example)


def _check_hold_id(value: object, field: str, _: FieldContext) -> str:
    """Checks the id of a hold. Raises NotFoundError for an id that Tally cannot have made."""
    given = fields.string(value, field)
    if not fields.HOLD_PATTERN.fullmatch(given):
        raise NotFoundError("There is no such hold.", field=field)
    return given


def list_of(kind: Kind, most: int) -> Kind:
    """Returns the kind of a list of 1 to `most` values of this kind."""
    return replace(kind, list_max=most)


def choice(*choices: str, description: str = "One of these.") -> Kind:
    """Returns a kind for one of a few names. Its example is the first name."""

    def check(value: object, field: str, _: FieldContext) -> str:
        name = fields.string(value, field)
        if name not in choices:
            raise InvalidInputError(f"{field} must be one of: {', '.join(choices)}.", field=field)
        return name

    return Kind(check, {"type": "string", "enum": list(choices)}, description, choices[0])


def _example_counter(context: SchemaContext) -> Counter:
    """Returns a counter that takes any amount, or else the first counter."""
    return next((counter for counter in context.counters if counter.delta is None), context.counters[0])


def _changes_schema(context: SchemaContext) -> Schema:
    """Returns the schema of a list of changes. A change by a counter's fixed step may leave the amount out."""
    steps: dict[int | None, list[str]] = {}
    for counter in context.counters:
        steps.setdefault(counter.delta, []).append(counter.name)
    entries = []
    for step, names in steps.items():
        properties = {
            "counter": {"type": "string", "enum": names},
            "id": ID.schema,
            "amount": AMOUNT.schema if step is None else {"const": step},
        }
        needed = ["counter", "id", *(["amount"] if step is None else [])]
        entries.append({"type": "object", "properties": properties, "additionalProperties": False, "required": needed})
    items = {"anyOf": entries} if len(entries) > 1 else entries[0]
    return {"type": "array", "minItems": 1, "maxItems": fields.CHANGES_MAX, "items": items}


KEY_EXAMPLE = "5f0c2b9e-6f0a-4b63-8a37-0d1a4f0f6f11"
PAGE_EXAMPLE = "https://example.com/a"
HOLD_EXAMPLE = "1785542401-mFYxsn9wM2rBbRkD"
_KEY_SCHEMA = _string_schema(1, fields.KEY_CHARACTERS_MAX, fields.KEY_PATTERN)
_SECRET_SCHEMA = _string_schema(fields.ANONYMOUS_KEY_CHARACTERS_MIN, fields.KEY_CHARACTERS_MAX, fields.KEY_PATTERN)
# Without a format, because `uri` would rule out other alphabets.
_PAGE_SCHEMA = _string_schema(8, fields.RAW_PAGE_BYTES_MAX, fields.PAGE_PATTERN)
_ABOUT_PAGE = (
    "An absolute http or https URL. Tally drops its fragment and the parameters that the deployment lists (`utm_source`"
    f", …). The rest, normalised by RFC 3986, has at most {fields.PAGE_BYTES_MAX} bytes."
)
ID = Kind(
    _without_context(fields.identifier),
    _string_schema(1, fields.ID_CHARACTERS_MAX, ID_FORM),
    "The id of what is counted. The clients encode other characters: `/a/` is `~2Fa~2F` (docs/browser.md).",
    "7c20",
)
READ_ID = replace(
    ID,
    check=_without_context(fields.read_id),
    schema=_string_schema(1, GROUP_ID_CHARACTERS_MAX, ID_FORM),
    description=f"The id of what is counted. Only a group of items may have more than {fields.ID_CHARACTERS_MAX}"
    " characters.",
)
COUNTER = Kind(
    lambda value, field, context: fields.declared_counter(fields.string(value, field), field, context.counters),
    lambda context: {"type": "string", "enum": [counter.name for counter in context.counters]},
    "A counter that this deployment declares.",
    lambda context: _example_counter(context).name,
    is_counter=True,
)
KEY = Kind(
    lambda value, field, context: fields.idempotency_key(value, field, anonymous=context.anonymous),
    lambda context: _SECRET_SCHEMA if context.anonymous else _KEY_SCHEMA,
    "Your name for this one change, such as a UUID. Send it with every retry, and the change counts once.",
    KEY_EXAMPLE,
    source=Source.HEADER,
    http_name="Idempotency-Key",
)
SECRET = Kind(
    lambda value, field, _: fields.idempotency_key(value, field, anonymous=True),
    _SECRET_SCHEMA,
    "A secret of this browser, such as a UUID. Tally stores a hash of the secret and the id.",
    "0b1f6c64-7d0e-4a52-9c3b-8e2f5a7d9c10",
    source=Source.HEADER,  # a URL would be logged
    http_name="Tally-Secret",
)
# When its page is left, a browser sends with `navigator.sendBeacon`, which takes no headers.
_IN_HEADER_OR_BODY = f"{KEY.description} In the header, or as `key` in the body."
KEY_IN_HEADER_OR_BODY = replace(KEY, description=_IN_HEADER_OR_BODY, body_name="key")
KEYS_IN_QUERY = replace(KEY, description="The key of the change.", source=Source.QUERY, http_name="key", list_max=100)
VOIDED_KEY = replace(KEY, description="The key that the change was counted under.", source=None, http_name="key")
_UTF8 = "bytes in UTF-8"
POST_TEXT = _text_kind(fields.TEXT_BYTES_MAX, f"At most {fields.TEXT_BYTES_MAX} {_UTF8}.", "Hello", _UTF8)
PAGE = Kind(
    lambda value, field, context: fields.page(value, field, context.pages), _PAGE_SCHEMA, _ABOUT_PAGE, PAGE_EXAMPLE
)
PAGE_OF_LISTED_HOST = Kind(
    lambda value, field, context: fields.page_of_listed_host(value, field, context.pages, context.page_hosts),
    _PAGE_SCHEMA,
    f"{_ABOUT_PAGE} The deployment must list its host.",
    PAGE_EXAMPLE,
    uses_page_hosts=True,
)
PAGE_SIZE = _size_kind(
    fields.PAGE_SIZE_MAX, fields.PAGE_SIZE_DEFAULT, "How many entries a page has.", fields.PAGE_SIZE_DEFAULT
)
CURSOR = Kind(
    _without_context(fields.cursor),
    _string_schema(2, fields.CURSOR_CHARACTERS_MAX, fields.CURSOR_PATTERN),
    "The `cursor` of the previous page.",
    fields.encode_cursor("auth0%7C7c20"),
)
AMOUNT = _integer_kind(
    -AMOUNT_MAX,
    AMOUNT_MAX,
    "The amount to add, below 0 to subtract. For a counter with a fixed step: that step, or leave it out.",
    lambda context: _example_counter(context).delta or 1,
)
VALUE = _integer_kind(-AMOUNT_MAX, AMOUNT_MAX, "The value to set.", 98)
LIMIT_OVERRIDE = _integer_kind(
    -AMOUNT_MAX, AMOUNT_MAX, "The ceiling of this id, or its floor if the counter has no ceiling.", 10_000
)
CHANGES = Kind(
    _without_context(fields.changes),
    _changes_schema,
    f"The changes that count together, of at most {fields.TALLIES_MAX} numbers. Limits judge several changes of one"
    " number by their sum.",
    lambda context: [{"counter": one.name, "id": "7c20", "amount": one.delta or 1} for one in context.counters[:2]],
)
VISIBLE = choice(
    "now",
    "soon",
    description="`soon`: Tally stores one receipt for all changes, and adds them up within seconds. Only for counters"
    " without limits and without a version.",
)
HELD_AMOUNT = _integer_kind(1, AMOUNT_MAX, "The amount to take.", 2)
USED_AMOUNT = _integer_kind(
    0, AMOUNT_MAX, "The amount that was used, less or more than was held. Without it: the held amount.", 2
)
NEW_AMOUNT = replace(HELD_AMOUNT, description="The new amount of the hold. Without it: the amount stays.", example=3)
TTL = _integer_kind(1, fields.HOLD_TTL_MAX_S, "The seconds until the hold expires and gives the amount back.", 600)
NEW_TTL = replace(
    TTL, description="The seconds from now until the hold expires. Without it: the time stays.", example=1200
)
VERSION = Kind(
    _without_context(fields.version_of_etag),
    {"type": "string", "pattern": f"^{fields.ETAG_PATTERN.pattern}$"},
    "The `ETag` that you read.",
    '"7"',
    source=Source.HEADER,
    http_name="If-Match",
)
HOLD = Kind(_check_hold_id, _pattern_schema(fields.HOLD_PATTERN), "The `hold` from the answer.", HOLD_EXAMPLE)
CHILD_NAME = Kind(
    _without_context(fields.child),
    _string_schema(1, fields.USER_BYTES_MAX),
    f"The child's name, such as a user's `sub`. At most {fields.USER_BYTES_MAX} bytes, percent-encoded.",
    "auth0|7c20",
    source=Source.QUERY,  # API Gateway decodes a path before it routes: `a%3Fb` would arrive as `a`
)
INCLUDE_VALUE = Kind(
    _without_context(fields.boolean),
    {"type": "boolean", "default": False},
    "Whether the answer has the number, too. Tally reads it right after the change, for a read unit.",
    True,
    source=Source.QUERY,
)
USED = replace(
    INCLUDE_VALUE,
    description="Whether the amount is used already. Then it may go beyond the limit, as far as the counter's `debt`.",
)
TALLY = Kind(
    _without_context(fields.split_tally),
    _string_schema(1, fields.TALLY_BYTES_MAX),
    "`counter:id`, such as `likes:a91f`, or `visits:` and a page's URL. Repeat the parameter for each number.",
    lambda context: f"{next((one.name for one in context.counters if one.public), context.counters[0].name)}:a91f",
)
TALLY_OF_LISTED_HOST = replace(TALLY, uses_page_hosts=True)
_TALLY_OR_TOTAL = "`counter:id`, such as `plays:9f3a`. A counter alone means all of its ids together."
SERIES_TALLY = replace(TALLY, description=_TALLY_OR_TOTAL)
RECEIPT_TARGET = _text_kind(
    fields.RAW_PAGE_BYTES_MAX,
    "What was changed: `counter/id`, a page's URL, or `changes` for a batch.",
    "plays/9f3a",
)
_ID_OR_URL = "The id of what is counted. For `visits`: the page's URL."
ID_OR_PAGE = replace(RECEIPT_TARGET, description=_ID_OR_URL, example="7c20")
PERIOD = _pattern_kind(  # a later check says whether the counter has such periods, and this one
    fields.PERIOD_PATTERN,
    _string_schema(4, 16, fields.PERIOD_PATTERN),
    "a period, like 2026-11-22, 2026-W47 or 2026-11",
    "For a counter with periods: a minute (`2026-11-22T14:05`), hour, day, week (`2026-W47`), month or year. Without"
    " it: the current period.",
    "2026-11-22",
)
USER_AGENT = Kind(
    _without_context(fields.user_agent),
    {"type": "string"},
    "The browser's `User-Agent`; crawlers count apart.",
    "Mozilla/5.0",
    source=Source.HEADER,
    http_name="User-Agent",
    http_default="",  # every browser sends this header
    is_documented=False,  # every client sends it anyway
)
ADDRESS = replace(
    _text_kind(
        fields.ADDRESS_CHARACTERS_MAX, "The visitor's IP address; nothing stores it.", "203.0.113.10", "characters"
    ),
    source=Source.ADDRESS,
    is_documented=False,  # the gateway knows it
)
_USER_SCHEMA = _string_schema(1, fields.USER_BYTES_MAX)
CALLER = Kind(_without_context(fields.user), _USER_SCHEMA, "The caller whose change it was.", "auth0|7c20")
TIME = Kind(
    _without_context(fields.epoch_s),
    _pattern_schema(fields.TIME_PATTERN),
    "A time: `2026-07-31`, `2026-07-31T13:00Z`, or seconds since 1970. UTC without an offset.",
    "2026-07-30",
)
UNTIL = replace(TIME, example="2026-07-31")
VISITOR = _text_kind(
    fields.USER_BYTES_MAX,
    "Your name for the visitor, such as a user's `sub`. Tally stores a hash of it, keyed with a secret of the stack.",
    "auth0|7c20",
)
FIRST_TRY_TIME = _integer_kind(
    0,
    fields.TIME_S_MAX,
    "When you first sent this visit, in seconds since 1970, within the last day. It counts in the period of that time.",
    1785542401,
)
ZONE = _text_kind(
    64,  # the longest has 32
    "The time zone of the days. Without it: UTC. Each of its days must begin at a full hour of UTC.",
    "Europe/Berlin",
    "characters",
)
SPAN = _pattern_kind(
    fields.SPAN_PATTERN,
    {"type": "string", "pattern": f"^{fields.SPAN_PATTERN.pattern}$"},
    "2026-11, 2026-11-22 or 2026-11-22T13",
    "An hour `2026-07-31T13`, a day `2026-07-31` or a month `2026-07`, as `by` says. In UTC.",
    "2026-07-31T13",
)
TOP_SIZE = _size_kind(fields.TOP_SIZE_MAX, fields.TOP_SIZE_MAX, "How many ids the list has at most.", 10)
CONSOLE_FILE = replace(ID, description="The name of the file.", example="app.js")
CLIENT_FILE = replace(CONSOLE_FILE, example="tally.js")

Id = Annotated[str, ID]
ReadId = Annotated[str, READ_ID]
DeclaredCounter = Annotated[Counter, COUNTER]
Key = Annotated[str, KEY]
KeyInHeaderOrBody = Annotated[str, KEY_IN_HEADER_OR_BODY]
Secret = Annotated[str, SECRET]
PageSize = Annotated[int, PAGE_SIZE]
Cursor = Annotated[str, CURSOR]
Amount = Annotated[int, AMOUNT]
IncludeValue = Annotated[bool, INCLUDE_VALUE]
Period = Annotated[str, PERIOD]
ChildName = Annotated[str, CHILD_NAME]
