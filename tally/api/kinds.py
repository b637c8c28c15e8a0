"""The kinds of fields. A kind is one object: its check, its schema, its words and its example.

Checks that the command and the counting core use too are those of `tally/fields.py`. An operation annotates its
arguments with the types below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
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
    """It is the address of the caller, as the gateway knows it."""


class FieldContext(NamedTuple):
    """The facts that checks depend on, beside the value."""

    anonymous: bool
    page_hosts: frozenset[str]
    counters: Mapping[str, Counter]
    pages: Pages


class SchemaContext(NamedTuple):
    """What schemas and examples depend on: the counters that a route serves, and whether its callers are anonymous."""

    counters: Sequence[Counter]
    anonymous: bool


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of field."""

    check: Callable[[Any, str, FieldContext], Any]
    """The value to use for what was given in the field of this name. Raises CallerError."""
    schema: Schema | Callable[[SchemaContext], Schema]
    description: str
    example: Any
    """A value, or a function of SchemaContext that makes one."""
    source: Source | None = None
    """Where an HTTP request has it, if not in the query of a GET or in the body of another method."""
    http_name: str = ""
    """Its name in an HTTP request, if that is not the argument's."""
    body_name: str = ""
    """Its name in the JSON body, where a request may have it there instead; in both it must be the same."""
    list_max: int = 0
    """How many values it has at most, as a list; 0: it is one value. A query repeats the name for each."""
    http_default: str | None = None
    """What an HTTP request says that does not have it."""
    is_counter: bool = False
    uses_page_hosts: bool = False
    """Whether its check looks at the hosts that the deployment lists."""
    is_documented: bool = True

    def missing_error(self, wire: str) -> CallerError:
        """The error for a required field that is missing."""
        if self is VERSION:
            return PreconditionRequiredError(f"{wire} is missing: send the ETag that you read.", field=wire)
        return InvalidInputError(f"{wire} is missing.", field=wire)

    @cached_property
    def parse(self) -> Callable[[Any, str, FieldContext], Any]:
        """Gives the value to use: its check, or that of each of many. Raises CallerError, which names the field."""
        return self._parse_each if self.list_max else self.check

    def _parse_each(self, given: object, wire: str, context: FieldContext) -> list[Any]:
        if not isinstance(given, list) or not 1 <= len(given) <= self.list_max:
            most = f"{wire} must be a list of 1 to {self.list_max} values. A query repeats the name for each."
            raise InvalidInputError(most, field=wire)
        return [self.check(value, wire, context) for value in given]

    def schema_for(self, context: SchemaContext) -> Schema:
        """The JSON Schema of its values."""
        schema = dict(self.schema) if isinstance(self.schema, dict) else self.schema(context)
        return {"type": "array", "minItems": 1, "maxItems": self.list_max, "items": schema} if self.list_max else schema

    def example_for(self, context: SchemaContext) -> Any:
        """A value that the check takes."""
        example = self.example(context) if callable(self.example) else self.example
        return [example] if self.list_max else example


def _without_context(check: Callable[[object, str], Any]) -> Callable[[Any, str, FieldContext], Any]:
    """A check that depends on nothing but the value."""
    return lambda value, field, _: check(value, field)


def _string_schema(shortest: int, longest: int, pattern: re.Pattern[str] | None = None) -> Schema:
    schema: Schema = {"type": "string", "minLength": shortest, "maxLength": longest}
    return schema | ({"pattern": f"^{pattern.pattern}$"} if pattern else {})


def _pattern_schema(pattern: re.Pattern[str]) -> Schema:
    return {"type": "string", "pattern": f"^({pattern.pattern})$"}


def _integer_kind(least: int, most: int, words: str, example: Any) -> Kind:
    """A whole number."""

    def check(value: object, field: str, _: FieldContext) -> int:
        return fields.integer_between(value, field, least, most)

    return Kind(check, {"type": "integer", "minimum": least, "maximum": most}, words, example)


def _size_kind(most: int, default: int, words: str, example: int) -> Kind:
    """How long a list is: a number, or its text in a query."""

    def check(value: object, field: str, _: FieldContext) -> int:
        written = isinstance(value, str) and _NUMBER_PATTERN.fullmatch(value)
        return fields.integer_between(float(written[0]) if written else value, field, 1, most)

    return Kind(check, {"type": "integer", "minimum": 1, "maximum": most, "default": default}, words, example)


def _text_kind(longest: int, words: str, example: str, unit: str = "bytes") -> Kind:
    """Text of any form, up to a length."""

    def check(value: object, field: str, _: FieldContext) -> str:
        return fields.string(value, field, longest, unit)

    return Kind(check, _string_schema(1, longest), words, example)


def _pattern_kind(pattern: re.Pattern[str], schema: Schema, must: str, words: str, example: str) -> Kind:
    """Text of a form."""

    def check(value: object, field: str, _: FieldContext) -> str:
        given = fields.string(value, field)
        if not pattern.fullmatch(given):
            raise InvalidInputError(f"{field} must be {must}.", field=field)
        return given

    return Kind(check, schema, words, example)


def _check_hold_id(value: object, field: str, _: FieldContext) -> str:
    """The id of a hold. Raises NotFoundError for one that Tally cannot have made."""
    given = fields.string(value, field)
    if not fields.HOLD_PATTERN.fullmatch(given):
        raise NotFoundError("There is no such hold.", field=field)
    return given


def list_of(kind: Kind, most: int) -> Kind:
    """A list of 1 to `most` values of this kind."""
    return replace(kind, list_max=most)


def choice(*choices: str, description: str = "One of these.") -> Kind:
    """One of a few names. The first one is the example."""

    def check(value: object, field: str, _: FieldContext) -> str:
        name = fields.string(value, field)
        if name not in choices:
            raise InvalidInputError(f"{field} must be one of: {', '.join(choices)}.", field=field)
        return name

    return Kind(check, {"type": "string", "enum": list(choices)}, description, choices[0])


def _example_counter(context: SchemaContext) -> Counter:
    """A counter that takes any amount, if there is one: its example says most."""
    return next((counter for counter in context.counters if counter.delta is None), context.counters[0])


def _check_counter(value: object, field: str, context: FieldContext) -> Counter:
    return fields.declared_counter(fields.string(value, field), field, context.counters)


def _changes_schema(context: SchemaContext) -> Schema:
    """A list of changes; those of counters with a fixed step may leave the amount out, or send that step."""
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


def _key_schema(context: SchemaContext) -> Schema:
    shortest = fields.ANONYMOUS_KEY_CHARACTERS_MIN if context.anonymous else 1
    return _string_schema(shortest, fields.KEY_CHARACTERS_MAX, fields.KEY_PATTERN)


def _check_key(value: object, field: str, context: FieldContext) -> str:
    return fields.idempotency_key(value, field, anonymous=context.anonymous)


KEY_EXAMPLE = "5f0c2b9e-6f0a-4b63-8a37-0d1a4f0f6f11"
PAGE_EXAMPLE = "https://example.com/a"
HOLD_EXAMPLE = "1785542401-mFYxsn9wM2rBbRkD"
# no format: `uri` would rule out other alphabets
_PAGE_SCHEMA = _string_schema(8, fields.RAW_PAGE_BYTES_MAX, fields.PAGE_PATTERN)
_PAGE_DESCRIPTION = (
    "An absolute http or https URL. Its fragment and the parameters that the deployment drops (`utm_source`, …) are no"
    f" part of the page. What is left, normalised (RFC 3986), has at most {fields.PAGE_BYTES_MAX} bytes."
)
ID = Kind(
    _without_context(fields.identifier),
    _string_schema(1, fields.ID_CHARACTERS_MAX, ID_FORM),
    "The id of what is counted. The clients spell other text: `/a/` is `~2Fa~2F` (docs/browser.md).",
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
    _check_counter,
    lambda context: {"type": "string", "enum": [counter.name for counter in context.counters]},
    "A counter that this deployment declares.",
    lambda context: _example_counter(context).name,
    is_counter=True,
)
KEY = Kind(
    _check_key,
    _key_schema,
    "Your name for this one change, such as a UUID. Send it with every retry, and the change counts once.",
    KEY_EXAMPLE,
    source=Source.HEADER,
    http_name="Idempotency-Key",
)
SECRET = Kind(
    lambda value, field, _: fields.idempotency_key(value, field, anonymous=True),
    _string_schema(fields.ANONYMOUS_KEY_CHARACTERS_MIN, fields.KEY_CHARACTERS_MAX, fields.KEY_PATTERN),
    "What this browser alone knows, such as a UUID. Tally stores a hash of it and the id.",
    "0b1f6c64-7d0e-4a52-9c3b-8e2f5a7d9c10",
    source=Source.HEADER,  # a URL would be logged
    http_name="Tally-Secret",
)
# A page that is left sends by `navigator.sendBeacon`, which takes no headers.
KEY_IN_HEADER_OR_BODY = replace(
    KEY, description=f"{KEY.description} In the header, or as `key` in the body.", body_name="key"
)
KEYS_IN_QUERY = replace(KEY, description="The key of the change.", source=Source.QUERY, http_name="key", list_max=100)
VOIDED_KEY = replace(KEY, description="The key that the change was counted under.", source=None, http_name="key")
POST_TEXT = _text_kind(
    fields.TEXT_BYTES_MAX, f"At most {fields.TEXT_BYTES_MAX} bytes in UTF-8.", "Hello", "bytes in UTF-8"
)
PAGE = Kind(
    lambda value, field, context: fields.page(value, field, context.pages),
    _PAGE_SCHEMA,
    _PAGE_DESCRIPTION,
    PAGE_EXAMPLE,
)
PAGE_OF_LISTED_HOST = Kind(
    lambda value, field, context: fields.page_of_listed_host(value, field, context.pages, context.page_hosts),
    _PAGE_SCHEMA,
    f"{_PAGE_DESCRIPTION} The deployment must list its host.",
    PAGE_EXAMPLE,
    uses_page_hosts=True,
)
PAGE_SIZE = _size_kind(
    fields.PAGE_SIZE_MAX, fields.PAGE_SIZE_DEFAULT, "How many entries a page has.", fields.PAGE_SIZE_DEFAULT
)
CURSOR = Kind(
    _without_context(fields.cursor),
    _string_schema(2, fields.CURSOR_CHARACTERS_MAX, fields.CURSOR_PATTERN),
    "The `cursor` of the page before.",
    fields.encode_cursor("auth0%7C7c20"),
)
AMOUNT = _integer_kind(
    -AMOUNT_MAX,
    AMOUNT_MAX,
    "By how much. For a counter with a fixed step: that step, or leave it out.",
    lambda context: _example_counter(context).delta or 1,
)
VALUE = _integer_kind(-AMOUNT_MAX, AMOUNT_MAX, "The value to set.", 98)
LIMIT_OVERRIDE = _integer_kind(
    -AMOUNT_MAX, AMOUNT_MAX, "The ceiling of this id; of a counter without one, its floor.", 10_000
)
CHANGES = Kind(
    _without_context(fields.changes),
    _changes_schema,
    f"What counts together, of at most {fields.TALLIES_MAX} numbers: by how much each counter of an id moves. Several"
    " changes of one number are judged by their sum.",
    lambda context: [{"counter": one.name, "id": "7c20", "amount": one.delta or 1} for one in context.counters[:2]],
)
VISIBLE = choice(
    "now",
    "soon",
    description="`soon`: one receipt for all of them, which is added up within seconds. Only for counters without"
    " limits and without a version.",
)
HELD_AMOUNT = _integer_kind(1, AMOUNT_MAX, "How much to take.", 2)
USED_AMOUNT = _integer_kind(
    0, AMOUNT_MAX, "How much was used, less or more than was held. Without it: what was held.", 2
)
NEW_AMOUNT = replace(HELD_AMOUNT, description="How much it is to hold in all. Without it: as much as now.", example=3)
TTL = _integer_kind(
    1, fields.HOLD_TTL_MAX_S, "For how many seconds. Then the hold expires and gives the amount back.", 600
)
NEW_TTL = replace(TTL, description="For how many seconds from now. Without it: the time stays.", example=1200)
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
    "Whether the answer has the number as well, read right after the change. It costs a read unit.",
    True,
    source=Source.QUERY,
)
USED = replace(
    INCLUDE_VALUE,
    description="Whether it is used already. Then it goes beyond the limit, as far as the counter's `debt`.",
)
TALLY = Kind(
    _without_context(fields.split_tally),
    _string_schema(1, fields.TALLY_BYTES_MAX),
    "`counter:id`, as `likes:a91f`, or `visits:` and a page's URL. Repeat it for each.",
    lambda context: f"{next((one.name for one in context.counters if one.public), context.counters[0].name)}:a91f",
)
TALLY_OF_LISTED_HOST = replace(TALLY, uses_page_hosts=True)
SERIES_TALLY = replace(
    TALLY, description="`counter:id`, as `plays:9f3a`; a counter alone is all of its numbers together."
)
RECEIPT_TARGET = _text_kind(
    fields.RAW_PAGE_BYTES_MAX,
    "What was changed: `counter/id`, a page's URL, or `changes` for many together.",
    "plays/9f3a",
)
ID_OR_PAGE = replace(
    RECEIPT_TARGET, description="The id of what is counted; of `visits` the page's URL.", example="7c20"
)
PERIOD = _pattern_kind(  # whether the counter has such periods, and whether there is this one, is checked later
    fields.PERIOD_PATTERN,
    _string_schema(4, 16, fields.PERIOD_PATTERN),
    "a period, like 2026-11-22, 2026-W47 or 2026-11",
    "Of a counter with periods: the minute (`2026-11-22T14:05`), hour, day, week (`2026-W47`), month or year that you"
    " ask for. Without it: the current one.",
    "2026-11-22",
)
USER_AGENT = Kind(
    _without_context(fields.user_agent),
    {"type": "string"},
    "The browser's `User-Agent`; crawlers count apart.",
    "Mozilla/5.0",
    source=Source.HEADER,
    http_name="User-Agent",
    http_default="",  # what does not say what it is, is no browser
    is_documented=False,  # every client sends it anyway
)
ADDRESS = replace(
    _text_kind(
        fields.ADDRESS_CHARACTERS_MAX, "The visitor's IP address; nothing stores it.", "203.0.113.10", "characters"
    ),
    source=Source.ADDRESS,
    is_documented=False,  # the gateway knows it
)
CALLER = Kind(
    _without_context(fields.user), _string_schema(1, fields.USER_BYTES_MAX), "Whose change it was.", "auth0|7c20"
)
TIME = Kind(
    _without_context(fields.epoch_s),
    _pattern_schema(fields.TIME_PATTERN),
    "A time: `2026-07-31`, `2026-07-31T13:00Z`, or seconds since 1970. UTC without an offset.",
    "2026-07-30",
)
UNTIL = replace(TIME, example="2026-07-31")
VISITOR = _text_kind(
    fields.USER_BYTES_MAX,
    "Who came: your name for a person, such as a user's `sub`. Tally stores a hash of it, under a secret of the stack.",
    "auth0|7c20",
)
FIRST_TRY_TIME = _integer_kind(
    0,
    fields.TIME_S_MAX,
    "When you tried this visit first, in seconds since 1970: within the last day. It counts in the period of then.",
    1785542401,
)
ZONE = _text_kind(
    64,  # the longest has 32
    "The time zone of the days; UTC without one. Its days must begin with an hour of UTC.",
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
