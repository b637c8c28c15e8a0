"""Checks all input, before it becomes part of a key. A check returns the value to use, or raises InvalidInputError.

`page_of_listed_host`, `changes` and `declared_counter` raise other errors, too. `refusal_…` returns an error.
"""

from __future__ import annotations

import base64
import binascii
import re
import sys
from collections.abc import Mapping
from urllib.parse import quote, unquote, urlsplit

from .counter import AMOUNT_MAX, KINDS, Counter
from .errors import ForbiddenError, InvalidInputError, NotFoundError, PayloadTooLargeError
from .ids import ID_PATTERN, id_of
from .items import GROUP_ID_CHARACTERS_MAX
from .pages import Pages
from .settings import ANY_HOST

ID_CHARACTERS_MAX = 256  # the path of a post in WordPress fits: a date, and a slug of up to 200 percent-encoded bytes
KEY_CHARACTERS_MAX = 255
ANONYMOUS_KEY_CHARACTERS_MIN = 22  # 22 base64 characters carry 128 bits, so nobody can guess the key of another browser
CANONICAL_URL_BYTES_MAX = 1024  # the longest id: that of a page
URL_BYTES_MAX = 8192  # of a URL as it is sent: the parameters of advertisements have 1,000 bytes and more
TALLY_BYTES_MAX = 33 + URL_BYTES_MAX  # a counter, `:`, and an id or a page
USER_BYTES_MAX = 512  # percent-encoded
TEXT_BYTES_MAX = 10_240  # of a post
CHANGES_MAX = 1000  # of one batch
TALLIES_MAX = 90  # of one batch: one transaction, of up to 100 writes, also writes the receipt or a checkpoint
# Browsers send 100 to 250 characters. A longer text is cut and not left out: a visit without text is a crawler's.
USER_AGENT_CHARACTERS_MAX = 512
ADDRESS_CHARACTERS_MAX = 64  # the longest IPv6 address has 45
HOLD_TTL_MAX_S = 7 * 24 * 3600
PAGE_SIZE_DEFAULT = 50
PAGE_SIZE_MAX = 1000
TOP_SIZE_MAX = 100
TIME_S_MAX = 10**11 - 1  # the eleven digits that TIME_PATTERN takes
CURSOR_CHARACTERS_MAX = 683  # USER_BYTES_MAX bytes in base64
# The OpenAPI document uses these patterns, too, so they must mean the same in Python and in ECMA 262.
# A key: visible ASCII without a comma, which joins repeated headers. A quotation mark would begin a quoted string.
KEY_PATTERN = re.compile(r"[!#-+\--~][!-+\--~]*")
_QUOTED_USER = re.compile(rf"[A-Za-z0-9._~%-]{{1,{USER_BYTES_MAX}}}")
HOLD_PATTERN = re.compile(r"[0-9]{10}-[A-Za-z0-9_-]{16}")
ETAG_PATTERN = re.compile(r'"([0-9]{1,15})"')
SPAN_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}(-[0-9]{2}(T[0-9]{2})?)?")  # the month, day or hour of a top list
# Every time that `epoch_s` accepts matches. Not every match is a time: `2026-13-01`.
TIME_PATTERN = re.compile(
    r"[0-9]{1,11}|[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}(:[0-9]{2}(:[0-9]{2})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
PERIOD_PATTERN = re.compile(r"2[0-9]{3}(-W[0-9]{2}|-[0-9]{2}(-[0-9]{2}(T[0-9]{2}(:[0-9]{2})?)?)?)?")
CURSOR_PATTERN = re.compile(r"[A-Za-z0-9_-]+")
# Every URL that `page` accepts matches: a scheme, a host without a user before it, no spaces. `page` checks the rest.
PAGE_PATTERN = re.compile(
    r"[Hh][Tt][Tt][Pp][Ss]?://[^\x00-\x20\x7f\\/?#@:][^\x00-\x20\x7f\\/?#@]*([/?#][^\x00-\x20\x7f\\]*)?"
)
_FLAGS = {"true": True, "false": False}


def refusal_unless_counts(counter: Counter, *kinds: str) -> InvalidInputError | None:
    """Returns the error for an operation on counters of these kinds, if this counter is of another kind; else None."""
    return None if counter.counts in kinds else wrong_kind_error(counter)


def wrong_kind_error(counter: Counter) -> InvalidInputError:
    """Returns the error that says what this counter counts, and what moves its number."""
    what = counter.counts if counter.items is None else f"items of the table {counter.items.table}"
    return InvalidInputError(f"{counter.name} counts {what}: {KINDS[counter.counts]}.", field="counter")


def string(value: object, field: str, maximum: int = sys.maxsize, unit: str = "bytes") -> str:
    """Returns a text that is not empty and has at most `maximum` bytes in UTF-8, or characters (`unit`)."""
    if not isinstance(value, str):
        raise InvalidInputError(f"{field} must be a string.", field=field)
    if not value:
        raise InvalidInputError(f"{field} must not be empty.", field=field)
    try:
        encoded = value.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(f"{field} has half a surrogate pair: this is not valid Unicode.", field=field) from None
    if len(value if unit == "characters" else encoded) > maximum:
        raise InvalidInputError(f"{field} is longer than {maximum} {unit}.", field=field)
    return value


def identifier(value: object, field: str, longest: int = ID_CHARACTERS_MAX) -> str:
    """Returns an id that may become part of a key: 1 to `longest` of `A-Z a-z 0-9 . _ : ~ @ -`, and not `.` or `..`."""
    text = string(value, field)
    if len(text) > longest or not ID_PATTERN.fullmatch(text):
        encoded = id_of(text)
        detail = f"{field} must be 1 to {longest} of A-Z a-z 0-9 . _ : ~ @ -"
        if text in (".", ".."):
            detail += ", and not a dot or two"
        elif len(encoded) > longest:
            detail += f": spelled with ~ and a code for each other character it has {len(encoded)} characters"
        elif encoded != text:
            detail += f": write {encoded}"
        elif "#" in text:
            detail += ": write # as ~23"
        raise InvalidInputError(detail, field=field)
    return text


def id_to_read(value: object, field: str) -> str:
    """Returns an id whose number is read. The id of a group of items may be longer than other ids."""
    return identifier(value, field, GROUP_ID_CHARACTERS_MAX)


def idempotency_key(value: object, field: str, *, anonymous: bool) -> str:
    """Returns the caller's name for one change: 1 to 255 visible ASCII characters without commas. The first character
    is not a quotation mark. `anonymous`: the caller has not signed in, so the key has at least 22 characters."""
    text = string(value, field)
    shortest = ANONYMOUS_KEY_CHARACTERS_MIN if anonymous else 1
    if not shortest <= len(text) <= KEY_CHARACTERS_MAX:
        length = f"{shortest} to {KEY_CHARACTERS_MAX} characters"
        raise InvalidInputError(f"{field} must have {length}; a UUID fits.", field=field)
    if not KEY_PATTERN.fullmatch(text):
        detail = f"{field} must be visible ASCII characters without commas, and not begin with a quotation mark."
        raise InvalidInputError(detail, field=field)
    return text


def user(value: object, field: str) -> str:
    """Returns a JWT's `sub`, percent-encoded: `auth0|123` becomes `auth0%7C123`, at most 512 bytes."""
    quoted = quote(string(value, field), safe="")
    if len(quoted) > USER_BYTES_MAX:
        raise InvalidInputError(f"{field} is longer than {USER_BYTES_MAX} bytes, percent-encoded.", field=field)
    return quoted


def child(value: object, field: str) -> str:
    """Returns the name of a child, percent-encoded like a user's name. The name is not `.` or `..`."""
    if value in (".", ".."):
        raise InvalidInputError(f"{field} must not be a dot or two.", field=field)
    return user(value, field)


def decoded_user(quoted: str) -> str:
    """Returns the name that `user` encoded."""
    return unquote(quoted)


def page(value: object, field: str, pages: Pages) -> str:
    """Returns a page's URL, normalised (RFC 3986, section 6.2): http or https, no fragment, no user name.

    `HTTP://Example.com:80/a/../b#top` and `http://example.com/b` are one page. The query is part of the page, except
    for what `pages` drops; at most 1,024 bytes may be left.
    """
    from url_normalize import url_normalize  # 40 ms to import, and only visits have pages

    raw = string(value, field)
    if len(raw.encode()) > URL_BYTES_MAX or not PAGE_PATTERN.fullmatch(raw):
        detail = f"{field} must be an absolute http or https URL of at most {URL_BYTES_MAX} bytes without spaces."
        raise InvalidInputError(detail, field=field)
    try:
        normal = urlsplit(url_normalize(raw.partition("#")[0]) or "")
        host, port = normal.hostname, normal.port
        if not host or not re.fullmatch(r"[a-z0-9._:-]+", host) or port == 0:
            raise ValueError("no usable host")
    except ValueError:  # url_normalize and idna raise subclasses of ValueError
        raise InvalidInputError(f"{field} must be an absolute http or https URL.", field=field) from None
    url = pages.canonical(normal).geturl()
    if "#" in url or len(url.encode()) > CANONICAL_URL_BYTES_MAX:  # in a key, `#` would end the page
        raise InvalidInputError(f"{field} is longer than {CANONICAL_URL_BYTES_MAX} bytes when normalised.", field=field)
    return url


def page_of_listed_host(value: object, field: str, pages: Pages, page_hosts: frozenset[str]) -> str:
    """Returns a page of a host that the deployment lists."""
    url = page(value, field, pages)
    host = urlsplit(url).hostname
    if ANY_HOST not in page_hosts and host not in page_hosts:
        raise ForbiddenError(f"Pages of {host} are not counted here.", field=field)
    return url


def counted_id(
    counter: Counter, value: object, field: str, pages: Pages, page_hosts: frozenset[str] | None = None
) -> str:
    """Returns the id of what this counter counts: an id, or the normalised URL of a page.

    `page_hosts`: the hosts that the page must be of; None: any.
    """
    if not counter.pages:
        return identifier(value, field, GROUP_ID_CHARACTERS_MAX if counter.items else ID_CHARACTERS_MAX)
    return page(value, field, pages) if page_hosts is None else page_of_listed_host(value, field, pages, page_hosts)


def cursor(value: object, field: str) -> str:
    """Returns the percent-encoded user after whom a listing continues, from what `encode_cursor` has made."""
    opaque = string(value, field)
    try:
        quoted = base64.b64decode(opaque.encode("ascii") + b"=" * (-len(opaque) % 4), altchars=b"-_", validate=True)
        user_quoted = quoted.decode("ascii")
    except (UnicodeError, binascii.Error):
        user_quoted = ""
    if not _QUOTED_USER.fullmatch(user_quoted) or encode_cursor(user_quoted) != opaque:
        raise InvalidInputError(f"{field} is not a cursor of this listing.", field=field)
    return user_quoted


def encode_cursor(user_quoted: str) -> str:
    """Returns the cursor that continues a listing after this user."""
    return base64.urlsafe_b64encode(user_quoted.encode()).decode().rstrip("=")


def amount(value: object, field: str) -> int:
    """Returns a whole number within ±10^15."""
    return integer_between(value, field, -AMOUNT_MAX, AMOUNT_MAX)


def amount_or_step(counter: Counter, amount: int | None, field: str) -> int:
    """Returns by how much a change moves the tally: by `amount`, which may be left out if the counter has a `delta`."""
    if counter.delta is not None and amount not in (None, counter.delta):
        raise InvalidInputError(f"{counter.name} moves by {counter.delta} at a time.", field=field)
    by = counter.delta if amount is None else amount
    if by is None:
        raise InvalidInputError(f"{field} is missing.", field=field)
    return by


def changes(value: object, field: str) -> list[dict[str, object]]:
    """Returns a list of 1 to 1,000 JSON objects. counting/batch.py, which knows the counters, checks their members."""
    if not isinstance(value, list) or not value or not all(isinstance(entry, dict) for entry in value):
        raise InvalidInputError(f"{field} must be a list of JSON objects, and not empty.", field=field)
    if len(value) > CHANGES_MAX:
        raise PayloadTooLargeError(f"{field} has at most {CHANGES_MAX} changes.", field=field)
    return value


def integer_between(value: object, field: str, minimum: int, maximum: int) -> int:
    """Returns a whole number from `minimum` to `maximum`."""
    number = value if type(value) is int else integer_or_none(value)
    if number is None or not minimum <= number <= maximum:
        raise InvalidInputError(f"{field} must be a whole number from {minimum} to {maximum}.", field=field)
    return number


def integer_or_none(value: object) -> int | None:
    """Returns the value as an int, or None if the value is not a whole number. JSON has one type of number, so 7.0 and
    7e0 are 7."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def version_of_etag(value: object, field: str) -> int:
    """Returns the version from an `ETag` (`"7"`), or from a number."""
    etag = ETAG_PATTERN.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, str) and not etag:
        raise InvalidInputError(f'{field} must be the one ETag that you read, with its quotes, as "7".', field=field)
    return integer_between(int(etag[1]) if etag else value, field, 0, 10**15)


def declared_counter(name: str, field: str, counters: Mapping[str, Counter]) -> Counter:
    """Returns the counter of this name. Raises NotFoundError."""
    if name not in counters:
        raise NotFoundError(f"There is no counter {name[:64]!r}.", field=field)
    return counters[name]


def refusal_of_series(counter: Counter, field: str = "counter") -> InvalidInputError | None:
    """Returns the error for a counter without series; None if it has series. A counter of items has no series."""
    if counter.items is None:
        return None
    return InvalidInputError(f"{counter.name} counts items: it has no series.", field=field)


def refusal_of_public_read(counter: Counter, **members: str) -> ForbiddenError | None:
    """Returns the error for a counter that not everybody may read, else None. `members`: of its problem document."""
    if counter.public:
        return None
    return ForbiddenError(f"Only callers with the scope tally/read may read {counter.name}.", **members)


def refusal_of_listing(counter: Counter) -> ForbiddenError | None:
    """Returns the error for a counter whose ids not everybody may list, else None."""
    if counter.listed:
        return None
    return ForbiddenError(f"Only callers with the scope tally/read may list the ids of {counter.name}.")


def split_tally(value: object, field: str) -> tuple[str, str]:
    """Returns the counter and the id in `counter:id`, unchecked, because each operation raises errors of its own."""
    name, _, id_ = string(value, field, TALLY_BYTES_MAX).partition(":")
    return name, id_


def boolean(value: object, field: str) -> bool:
    """Returns the boolean, which a query has as the text `true` or `false`."""
    if isinstance(value, str) and value in _FLAGS:
        return _FLAGS[value]
    if not isinstance(value, bool):
        raise InvalidInputError(f"{field} must be true or false.", field=field)
    return value


def user_agent(value: object, field: str) -> str:
    """Returns the User-Agent of a visit, cut to 512 characters. It may hold anything, and Tally does not store it."""
    if not isinstance(value, str):
        raise InvalidInputError(f"{field} must be a string.", field=field)
    return value[:USER_AGENT_CHARACTERS_MAX]


def epoch_s(value: object, field: str) -> int:
    """Returns a time in epoch seconds, from a number, or from ISO 8601 (`2026-11-22`, `2026-11-22T13:00Z`). A time
    without an offset is UTC. A time before 1970 becomes 0."""
    from datetime import UTC, datetime

    number = integer_or_none(value)
    text = string(value, field) if number is None else str(number)
    try:
        if not TIME_PATTERN.fullmatch(text):
            raise ValueError(text)
        if text.isdigit():
            return int(text)
        moment = datetime.fromisoformat(text)
        seconds = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
        if seconds > TIME_S_MAX:
            raise ValueError(text)
        return max(0, seconds)
    except (ValueError, OverflowError):
        detail = f"{field} must be a time: 2026-11-22, 2026-11-22T13:00Z, or seconds since 1970."
        raise InvalidInputError(detail, field=field) from None
