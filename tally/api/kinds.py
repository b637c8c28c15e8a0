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
_NUMBER = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4})?([eE][+-]?[0-9])?")  # as JSON writes one


class Source(Enum):
    """Where an HTTP request has a field."""

    PATH = "path"
    QUERY = "query"
    BODY = "body"
    HEADER = "header"
    ADDRESS = "address"
    """It is the address of the caller, as the gateway knows it."""


class Context(NamedTuple):
    """The facts that checks depend on, beside the value."""

    anonymous: bool
    page_hosts: frozenset[str]
    counters: Mapping[str, Counter]
    pages: Pages


class RouteContext(NamedTuple):
    """What schemas and examples depend on: the counters that a route serves, and whether its callers are anonymous."""

    counters: Sequence[Counter]
    anonymous: bool


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of field."""

    check: Callable[[Any, str, Context], Any]
    """The value to use for what was given in the field of this name. Raises CallerError."""
    schema: Schema | Callable[[RouteContext], Schema]
    words: str
    example: Any
    """A value, or a function of RouteContext that makes one."""
    source: Source | None = None
    """Where an HTTP request has it, if not in the query of a GET or in the body of another method."""
    wire: str = ""
    """Its name in an HTTP request, if that is not the argument's."""
    body_wire: str = ""
    """Its name in the JSON body, where a request may have it there instead; in both it must be the same."""
    many_max: int = 0
    """How many values it has at most, as a list; 0: it is one value. A query repeats the name for each."""
    absent: str | None = None
    """What an HTTP request says that does not have it."""
    names_counter: bool = False
    knows_hosts: bool = False
    """Whether its check looks at the hosts that the deployment lists."""
    documented: bool = True

    def missing(self, wire: str) -> CallerError:
        """The error for a required field that is missing."""
        if self is VERSION:
            return PreconditionRequiredError(f"{wire} is missing: send the ETag that you read.", field=wire)
        return InvalidInputError(f"{wire} is missing.", field=wire)

    @cached_property
    def value(self) -> Callable[[Any, str, Context], Any]:
        """Gives the value to use: its check, or that of each of many. Raises CallerError, which names the field."""
        return self._each if self.many_max else self.check

    def _each(self, given: object, wire: str, context: Context) -> list[Any]:
        if not isinstance(given, list) or not 1 <= len(given) <= self.many_max:
            most = f"{wire} must be a list of 1 to {self.many_max} values. A query repeats the name for each."
            raise InvalidInputError(most, field=wire)
        return [self.check(value, wire, context) for value in given]

    def schema_for(self, asked: RouteContext) -> Schema:
        """The JSON Schema of its values."""
        schema = dict(self.schema) if isinstance(self.schema, dict) else self.schema(asked)
        return {"type": "array", "minItems": 1, "maxItems": self.many_max, "items": schema} if self.many_max else schema

    def example_for(self, asked: RouteContext) -> Any:
        """A value that the check takes."""
        example = self.example(asked) if callable(self.example) else self.example
        return [example] if self.many_max else example


def _plain(check: Callable[[object, str], Any]) -> Callable[[Any, str, Context], Any]:
    """A check that depends on nothing but the value."""
    return lambda value, field, _: check(value, field)


def _string(shortest: int, longest: int, form: re.Pattern[str] | None = None) -> Schema:
    schema: Schema = {"type": "string", "minLength": shortest, "maxLength": longest}
    return schema | ({"pattern": f"^{form.pattern}$"} if form else {})


def _form(form: re.Pattern[str]) -> Schema:
    return {"type": "string", "pattern": f"^({form.pattern})$"}


def _whole(least: int, most: int, words: str, example: Any) -> Kind:
    """A whole number."""

    def check(value: object, field: str, _: Context) -> int:
        return fields.whole(value, field, least, most)

    return Kind(check, {"type": "integer", "minimum": least, "maximum": most}, words, example)


def _size(most: int, default: int, words: str, example: int) -> Kind:
    """How long a list is: a number, or its text in a query."""

    def check(value: object, field: str, _: Context) -> int:
        written = isinstance(value, str) and _NUMBER.fullmatch(value)
        return fields.whole(float(written[0]) if written else value, field, 1, most)

    return Kind(check, {"type": "integer", "minimum": 1, "maximum": most, "default": default}, words, example)


def _free(longest: int, words: str, example: str, unit: str = "bytes") -> Kind:
    """Text of any form, up to a length."""

    def check(value: object, field: str, _: Context) -> str:
        return fields.string(value, field, longest, unit)

    return Kind(check, _string(1, longest), words, example)


def _formed(form: re.Pattern[str], schema: Schema, must: str, words: str, example: str) -> Kind:
    """Text of a form."""

    def check(value: object, field: str, _: Context) -> str:
        given = fields.string(value, field)
        if not form.fullmatch(given):
            raise InvalidInputError(f"{field} must be {must}.", field=field)
        return given

    return Kind(check, schema, words, example)


def _hold(value: object, field: str, _: Context) -> str:
    """The id of a hold. Raises NotFoundError for one that Tally cannot have made."""
    given = fields.string(value, field)
    if not fields.HOLD_FORM.fullmatch(given):
        raise NotFoundError("There is no such hold.", field=field)
    return given


def many(kind: Kind, most: int) -> Kind:
    """A list of 1 to `most` values of this kind."""
    return replace(kind, many_max=most)


def choice(*choices: str, words: str = "One of these.") -> Kind:
    """One of a few names. The first one is the example."""

    def check(value: object, field: str, _: Context) -> str:
        name = fields.string(value, field)
        if name not in choices:
            raise InvalidInputError(f"{field} must be one of: {', '.join(choices)}.", field=field)
        return name

    return Kind(check, {"type": "string", "enum": list(choices)}, words, choices[0])


def _any_amount(asked: RouteContext) -> Counter:
    """A counter that takes any amount, if there is one: its example says most."""
    return next((counter for counter in asked.counters if counter.delta is None), asked.counters[0])


def _counter(value: object, field: str, context: Context) -> Counter:
    return fields.declared(fields.string(value, field), field, context.counters)


def _changes(asked: RouteContext) -> Schema:
    """A list of changes; those of counters with a fixed step may leave the amount out, or send that step."""
    steps: dict[int | None, list[str]] = {}
    for counter in asked.counters:
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


def _key(asked: RouteContext) -> Schema:
    shortest = fields.ANONYMOUS_KEY_CHARACTERS_MIN if asked.anonymous else 1
    return _string(shortest, fields.KEY_CHARACTERS_MAX, fields.KEY_FORM)


def _check_key(value: object, field: str, context: Context) -> str:
    return fields.idempotency_key(value, field, anonymous=context.anonymous)


KEY_EXAMPLE = "5f0c2b9e-6f0a-4b63-8a37-0d1a4f0f6f11"
PAGE_EXAMPLE = "https://example.com/a"
HOLD_EXAMPLE = "1785542401-mFYxsn9wM2rBbRkD"
_PAGE = _string(8, fields.SPELT_PAGE_BYTES_MAX, fields.PAGE_FORM)  # no format: `uri` would rule out other alphabets
_URL = (
    "An absolute http or https URL. Its fragment and the parameters that the deployment drops (`utm_source`, …) are no"
    f" part of the page. What is left, normalised (RFC 3986), has at most {fields.PAGE_BYTES_MAX} bytes."
)
ID = Kind(
    _plain(fields.identifier),
    _string(1, fields.ID_CHARACTERS_MAX, ID_FORM),
    "The id of what is counted. The clients spell other text: `/a/` is `~2Fa~2F` (docs/browser.md).",
    "7c20",
)
READ_ID = replace(
    ID,
    check=_plain(fields.read_id),
    schema=_string(1, GROUP_ID_CHARACTERS_MAX, ID_FORM),
    words=f"The id of what is counted. Only a group of items may have more than {fields.ID_CHARACTERS_MAX} characters.",
)
COUNTER = Kind(
    _counter,
    lambda asked: {"type": "string", "enum": [counter.name for counter in asked.counters]},
    "A counter that this deployment declares.",
    lambda asked: _any_amount(asked).name,
    names_counter=True,
)
KEY = Kind(
    _check_key,
    _key,
    "Your name for this one change, such as a UUID. Send it with every retry, and the change counts once.",
    KEY_EXAMPLE,
    source=Source.HEADER,
    wire="Idempotency-Key",
)
SECRET = Kind(
    lambda value, field, _: fields.idempotency_key(value, field, anonymous=True),
    _string(fields.ANONYMOUS_KEY_CHARACTERS_MIN, fields.KEY_CHARACTERS_MAX, fields.KEY_FORM),
    "What this browser alone knows, such as a UUID. Tally stores a hash of it and the id.",
    "0b1f6c64-7d0e-4a52-9c3b-8e2f5a7d9c10",
    source=Source.HEADER,  # a URL would be logged
    wire="Tally-Secret",
)
# A page that is left sends by `navigator.sendBeacon`, which takes no headers.
KEY_OR_BODY = replace(KEY, words=f"{KEY.words} In the header, or as `key` in the body.", body_wire="key")
ASKED_KEY = replace(KEY, words="The key of the change.", source=Source.QUERY, wire="key", many_max=100)
VOIDED_KEY = replace(KEY, words="The key that the change was counted under.", source=None, wire="key")
TEXT = _free(fields.TEXT_BYTES_MAX, f"At most {fields.TEXT_BYTES_MAX} bytes in UTF-8.", "Hello", "bytes in UTF-8")
PAGE = Kind(lambda value, field, context: fields.page(value, field, context.pages), _PAGE, _URL, PAGE_EXAMPLE)
LISTED_PAGE = Kind(
    lambda value, field, context: fields.listed_page(value, field, context.pages, context.page_hosts),
    _PAGE,
    f"{_URL} The deployment must list its host.",
    PAGE_EXAMPLE,
    knows_hosts=True,
)
LIMIT = _size(fields.PAGE_SIZE_MAX, fields.PAGE_SIZE_DEFAULT, "How many entries a page has.", fields.PAGE_SIZE_DEFAULT)
CURSOR = Kind(
    _plain(fields.cursor),
    _string(2, fields.CURSOR_CHARACTERS_MAX, fields.CURSOR_FORM),
    "The `cursor` of the page before.",
    fields.to_cursor("auth0%7C7c20"),
)
AMOUNT = _whole(
    -AMOUNT_MAX,
    AMOUNT_MAX,
    "By how much. For a counter with a fixed step: that step, or leave it out.",
    lambda asked: _any_amount(asked).delta or 1,
)
VALUE = _whole(-AMOUNT_MAX, AMOUNT_MAX, "The value to set.", 98)
OWN_LIMIT = _whole(-AMOUNT_MAX, AMOUNT_MAX, "The ceiling of this id; of a counter without one, its floor.", 10_000)
CHANGES = Kind(
    _plain(fields.changes),
    _changes,
    f"What counts together, of at most {fields.TALLIES_MAX} numbers: by how much each counter of an id moves. Several"
    " changes of one number are judged by their sum.",
    lambda asked: [{"counter": one.name, "id": "7c20", "amount": one.delta or 1} for one in asked.counters[:2]],
)
VISIBLE = choice(
    "now",
    "soon",
    words="`soon`: one receipt for all of them, which is added up within seconds. Only for counters without limits and"
    " without a version.",
)
HELD_AMOUNT = _whole(1, AMOUNT_MAX, "How much to take.", 2)
USED_AMOUNT = _whole(0, AMOUNT_MAX, "How much was used, less or more than was held. Without it: what was held.", 2)
NEW_AMOUNT = replace(HELD_AMOUNT, words="How much it is to hold in all. Without it: as much as now.", example=3)
TTL = _whole(1, fields.HOLD_TTL_MAX_S, "For how many seconds. Then the hold expires and gives the amount back.", 600)
NEW_TTL = replace(TTL, words="For how many seconds from now. Without it: the time stays.", example=1200)
VERSION = Kind(
    _plain(fields.version),
    {"type": "string", "pattern": f"^{fields.ETAG_FORM.pattern}$"},
    "The `ETag` that you read.",
    '"7"',
    source=Source.HEADER,
    wire="If-Match",
)
HOLD = Kind(_hold, _form(fields.HOLD_FORM), "The `hold` from the answer.", HOLD_EXAMPLE)
NAME = Kind(
    _plain(fields.child),
    _string(1, fields.USER_BYTES_MAX),
    f"The child's name, such as a user's `sub`. At most {fields.USER_BYTES_MAX} bytes, percent-encoded.",
    "auth0|7c20",
    source=Source.QUERY,  # API Gateway decodes a path before it routes: `a%3Fb` would arrive as `a`
)
FLAG = Kind(
    _plain(fields.flag),
    {"type": "boolean", "default": False},
    "Whether the answer has the number as well, read right after the change. It costs a read unit.",
    True,
    source=Source.QUERY,
)
USED = replace(
    FLAG,
    words="Whether it is used already. Then it goes beyond the limit, as far as the counter's `debt`.",
)
TALLY = Kind(
    _plain(fields.tally),
    _string(1, fields.TALLY_BYTES_MAX),
    "`counter:id`, as `likes:a91f`, or `visits:` and a page's URL. Repeat it for each.",
    lambda asked: f"{next((one.name for one in asked.counters if one.public), asked.counters[0].name)}:a91f",
)
LISTED_TALLY = replace(TALLY, knows_hosts=True)
OF_SERIES = replace(TALLY, words="`counter:id`, as `plays:9f3a`; a counter alone is all of its numbers together.")
TARGET = _free(
    fields.SPELT_PAGE_BYTES_MAX,
    "What was changed: `counter/id`, a page's URL, or `changes` for many together.",
    "plays/9f3a",
)
ANY_ID = replace(TARGET, words="The id of what is counted; of `visits` the page's URL.", example="7c20")
PERIOD = _formed(  # whether the counter has such periods, and whether there is this one, is checked later
    fields.PERIOD_FORM,
    _string(4, 16, fields.PERIOD_FORM),
    "a period, like 2026-11-22, 2026-W47 or 2026-11",
    "Of a counter with periods: the minute (`2026-11-22T14:05`), hour, day, week (`2026-W47`), month or year that you"
    " ask for. Without it: the current one.",
    "2026-11-22",
)
USER_AGENT = Kind(
    _plain(fields.user_agent),
    {"type": "string"},
    "The browser's `User-Agent`; crawlers count apart.",
    "Mozilla/5.0",
    source=Source.HEADER,
    wire="User-Agent",
    absent="",  # what does not say what it is, is no browser
    documented=False,  # every client sends it anyway
)
ADDRESS = replace(
    _free(fields.ADDRESS_CHARACTERS_MAX, "The visitor's IP address; nothing stores it.", "203.0.113.10", "characters"),
    source=Source.ADDRESS,
    documented=False,  # the gateway knows it
)
CALLER = Kind(_plain(fields.user), _string(1, fields.USER_BYTES_MAX), "Whose change it was.", "auth0|7c20")
TIME = Kind(
    _plain(fields.time),
    _form(fields.TIME_FORM),
    "A time: `2026-07-31`, `2026-07-31T13:00Z`, or seconds since 1970. UTC without an offset.",
    "2026-07-30",
)
UNTIL = replace(TIME, example="2026-07-31")
VISITOR = _free(
    fields.USER_BYTES_MAX,
    "Who came: your name for a person, such as a user's `sub`. Tally stores a hash of it, under a secret of the stack.",
    "auth0|7c20",
)
FIRST_TRIED = _whole(
    0,
    fields.TIME_S_MAX,
    "When you tried this visit first, in seconds since 1970: within the last day. It counts in the period of then.",
    1785542401,
)
ZONE = _free(
    64,  # the longest has 32
    "The time zone of the days; UTC without one. Its days must begin with an hour of UTC.",
    "Europe/Berlin",
    "characters",
)
SPAN = _formed(
    fields.SPAN_FORM,
    {"type": "string", "pattern": f"^{fields.SPAN_FORM.pattern}$"},
    "2026-11, 2026-11-22 or 2026-11-22T13",
    "An hour `2026-07-31T13`, a day `2026-07-31` or a month `2026-07`, as `by` says. In UTC.",
    "2026-07-31T13",
)
TOP_SIZE = _size(fields.TOP_SIZE_MAX, fields.TOP_SIZE_MAX, "How many ids the list has at most.", 10)
FILE = replace(ID, words="The name of the file.", example="app.js")
CLIENT_FILE = replace(FILE, example="tally.js")

Id = Annotated[str, ID]
ReadId = Annotated[str, READ_ID]
ACounter = Annotated[Counter, COUNTER]
Key = Annotated[str, KEY]
KeyOrBody = Annotated[str, KEY_OR_BODY]
Secret = Annotated[str, SECRET]
Limit = Annotated[int, LIMIT]
Cursor = Annotated[str, CURSOR]
Amount = Annotated[int, AMOUNT]
Flag = Annotated[bool, FLAG]
Period = Annotated[str, PERIOD]
Name = Annotated[str, NAME]
