"""The kinds of fields. An operation annotates its arguments with the types at the end of this module.

`tally/fields.py` has the checks, which the command and the counting core use, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from tally import fields
from tally.counter import AMOUNT_MAX, Counter
from tally.errors import NotFoundError
from tally.ids import ID_PATTERN
from tally.items import GROUP_ID_CHARACTERS_MAX

from . import kind
from .kind import FieldContext, Kind, Schema, SchemaContext, Source


def _check_hold_id(value: object, field: str, _: FieldContext) -> str:
    """Checks the id of a hold. Raises NotFoundError for an id that Tally cannot have made."""
    hold_id = fields.string(value, field)
    if not fields.HOLD_PATTERN.fullmatch(hold_id):
        raise NotFoundError("There is no such hold.", field=field)
    return hold_id


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
_KEY_SCHEMA = kind.string_schema(1, fields.KEY_CHARACTERS_MAX, fields.KEY_PATTERN)
_SECRET_SCHEMA = kind.string_schema(fields.ANONYMOUS_KEY_CHARACTERS_MIN, fields.KEY_CHARACTERS_MAX, fields.KEY_PATTERN)
# Without JSON Schema's format `uri`, which allows no letters beyond ASCII.
_PAGE_SCHEMA = kind.string_schema(8, fields.URL_BYTES_MAX, fields.PAGE_PATTERN)
_ABOUT_PAGE = (
    "An absolute http or https URL. Tally drops its fragment and the parameters that the deployment lists (`utm_source`"
    f", …). The rest, normalised by RFC 3986, has at most {fields.CANONICAL_URL_BYTES_MAX} bytes."
)
ID = Kind(
    kind.without_context(fields.identifier),
    kind.string_schema(1, fields.ID_CHARACTERS_MAX, ID_PATTERN),
    "The id of what is counted. The clients encode what an id cannot contain: `/a/` is `~2Fa~2F` (docs/browser.md).",
    "7c20",
)
READ_ID = replace(
    ID,
    check=kind.without_context(fields.id_to_read),
    schema=kind.string_schema(1, GROUP_ID_CHARACTERS_MAX, ID_PATTERN),
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
    lambda value, field, _: fields.idempotency_key(value, field, anonymous=True),  # long, so nobody guesses a secret
    _SECRET_SCHEMA,
    "A secret of this browser, such as a UUID. Tally stores a hash of the secret and the id.",
    "0b1f6c64-7d0e-4a52-9c3b-8e2f5a7d9c10",
    source=Source.HEADER,  # proxies log URLs, and a secret must not be in a log
    http_name="Tally-Secret",
)
# When a visitor leaves a page, the browser sends changes with `navigator.sendBeacon`, which takes no headers.
_IN_HEADER_OR_BODY = f"{KEY.description} In the header, or as `key` in the body."
KEY_IN_HEADER_OR_BODY = replace(KEY, description=_IN_HEADER_OR_BODY, body_name="key")
KEYS_IN_QUERY = replace(KEY, description="The key of each change.", source=Source.QUERY, http_name="key", list_max=100)
VOIDED_KEY = replace(KEY, description="The key under which the change was counted.", source=None, http_name="key")
_UTF8 = "bytes in UTF-8"
POST_TEXT = kind.text(fields.TEXT_BYTES_MAX, f"At most {fields.TEXT_BYTES_MAX} {_UTF8}.", "Hello", _UTF8)
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
PAGE_SIZE = kind.size(
    fields.PAGE_SIZE_MAX, fields.PAGE_SIZE_DEFAULT, "How many entries a page has.", fields.PAGE_SIZE_DEFAULT
)
CURSOR = Kind(
    kind.without_context(fields.cursor),
    kind.string_schema(2, fields.CURSOR_CHARACTERS_MAX, fields.CURSOR_PATTERN),
    "The `cursor` of the previous page.",
    fields.encode_cursor("auth0%7C7c20"),
)
AMOUNT = kind.integer(
    -AMOUNT_MAX,
    AMOUNT_MAX,
    "The amount to add, below 0 to subtract. If the counter has a `delta`, send this `delta` or no amount.",
    lambda context: _example_counter(context).delta or 1,
)
VALUE = kind.integer(-AMOUNT_MAX, AMOUNT_MAX, "The value to set.", 98)
LIMIT_OVERRIDE = kind.integer(
    -AMOUNT_MAX, AMOUNT_MAX, "The ceiling of this id, or its floor if the counter has no ceiling.", 10_000
)
CHANGES = Kind(
    kind.without_context(fields.changes),
    _changes_schema,
    f"The changes that count together, of at most {fields.TALLIES_MAX} numbers. Limits judge several changes of one"
    " number by their sum.",
    lambda context: [{"counter": one.name, "id": "7c20", "amount": one.delta or 1} for one in context.counters[:2]],
)
VISIBLE = kind.choice(
    "now",
    "soon",
    description="`soon`: Tally stores one receipt for all changes, and adds them up within seconds. Only for counters"
    " without limits and without a version.",
)
HELD_AMOUNT = kind.integer(1, AMOUNT_MAX, "The amount to take.", 2)
USED_AMOUNT = kind.integer(
    0, AMOUNT_MAX, "The amount that was used, less or more than was held. Without it: the held amount.", 2
)
NEW_AMOUNT = replace(HELD_AMOUNT, description="The new amount of the hold. Without it: the amount stays.", example=3)
TTL = kind.integer(1, fields.HOLD_TTL_MAX_S, "The seconds until the hold expires and gives the amount back.", 600)
NEW_TTL = replace(
    TTL, description="The seconds from now until the hold expires. Without it: the time stays.", example=1200
)
VERSION = Kind(
    kind.without_context(fields.version_of_etag),
    {"type": "string", "pattern": f"^{fields.ETAG_PATTERN.pattern}$"},
    "The version that you read. In the header: the `ETag`.",
    '"7"',
    source=Source.HEADER,
    http_name="If-Match",
    is_precondition=True,
)
HOLD = Kind(_check_hold_id, kind.pattern_schema(fields.HOLD_PATTERN), "The id of the hold.", HOLD_EXAMPLE)
CHILD_NAME = Kind(
    kind.without_context(fields.child),
    kind.string_schema(1, fields.USER_BYTES_MAX),
    f"The child's name, such as a user's `sub`. Percent-encoded, it has at most {fields.USER_BYTES_MAX} bytes.",
    "auth0|7c20",
    source=Source.QUERY,  # API Gateway decodes a path first, so `a%3Fb` in a path would arrive as `a`
)
INCLUDE_VALUE = Kind(
    kind.without_context(fields.boolean),
    {"type": "boolean", "default": False},
    "Whether the answer has the number, too. Tally reads it right after the change, which costs a read unit.",
    True,
    source=Source.QUERY,
)
USED = replace(
    INCLUDE_VALUE,
    description="Whether the amount is used already. Such an amount may exceed the limit, up to the counter's `debt`.",
)
TALLY = Kind(
    kind.without_context(fields.split_tally),
    kind.string_schema(1, fields.TALLY_BYTES_MAX),
    "`counter:id`, such as `likes:a91f`, or `visits:` and a page's URL. In a URL, repeat the parameter.",
    lambda context: f"{next((one.name for one in context.counters if one.public), context.counters[0].name)}:a91f",
)
TALLY_OF_LISTED_HOST = replace(TALLY, uses_page_hosts=True)
_TALLY_OR_TOTAL = "`counter:id`, such as `plays:9f3a`. A counter alone means all of its ids together."
SERIES_TALLY = replace(TALLY, description=_TALLY_OR_TOTAL)
RECEIPT_TARGET = kind.text(
    fields.URL_BYTES_MAX,
    "What was changed: `counter/id`, a page's URL, or `changes` for a batch.",
    "plays/9f3a",
)
_ID_OR_URL = "The id of what is counted. For `visits`: the page's URL."
ID_OR_PAGE = replace(RECEIPT_TARGET, description=_ID_OR_URL, example="7c20")  # `fields.counted_id` checks the value
PERIOD = kind.matching(  # counting/periods.py refuses a period that the counter does not have
    fields.PERIOD_PATTERN,
    kind.string_schema(4, 16, fields.PERIOD_PATTERN),
    "a period, like 2026-11-22, 2026-W47 or 2026-11",
    "For a counter with periods: a minute (`2026-11-22T14:05`), hour, day, week (`2026-W47`), month or year. Without"
    " it: the current period.",
    "2026-11-22",
)
USER_AGENT = Kind(
    kind.without_context(fields.user_agent),
    {"type": "string"},
    "The browser's `User-Agent`. Tally counts visits of crawlers separately.",
    "Mozilla/5.0",
    source=Source.HEADER,
    http_name="User-Agent",
    http_default="",  # a request without the header counts as a crawler's, because every browser sends it
    is_documented=False,  # HTTP clients send the header on their own
)
ADDRESS = replace(
    kind.text(
        fields.ADDRESS_CHARACTERS_MAX, "The visitor's IP address; nothing stores it.", "203.0.113.10", "characters"
    ),
    source=Source.ADDRESS,
    is_documented=False,  # no client sends it: the gateway knows the address
)
_USER_SCHEMA = kind.string_schema(1, fields.USER_BYTES_MAX)
CALLER = Kind(kind.without_context(fields.user), _USER_SCHEMA, "The caller whose change it was.", "auth0|7c20")
TIME = Kind(
    kind.without_context(fields.epoch_s),
    kind.pattern_schema(fields.TIME_PATTERN),
    "A time: `2026-07-31`, `2026-07-31T13:00Z`, or seconds since 1970. UTC without an offset.",
    "2026-07-30",
)
UNTIL = replace(TIME, example="2026-07-31")
VISITOR = kind.text(
    fields.USER_BYTES_MAX,
    "Your name for the visitor, such as a user's `sub`. Tally stores a hash of it, keyed with a secret of the stack.",
    "auth0|7c20",
)
FIRST_TRY_TIME = kind.integer(
    0,
    fields.TIME_S_MAX,
    "When you first sent this visit, in seconds since 1970, within the last day. This time decides its period.",
    1785542401,
)
ZONE = kind.text(
    64,  # the longest name of a zone has 32
    "The time zone of the days. Without it: UTC. Each of its days must begin at a full hour of UTC.",
    "Europe/Berlin",
    "characters",
)
SPAN = kind.matching(
    fields.SPAN_PATTERN,
    {"type": "string", "pattern": f"^{fields.SPAN_PATTERN.pattern}$"},
    "2026-11, 2026-11-22 or 2026-11-22T13",
    "An hour `2026-07-31T13`, a day `2026-07-31` or a month `2026-07`, as `by` says. In UTC.",
    "2026-07-31T13",
)
TOP_SIZE = kind.size(fields.TOP_SIZE_MAX, fields.TOP_SIZE_MAX, "How many ids the list has at most.", 10)
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
