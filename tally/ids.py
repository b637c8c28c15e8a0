"""Encodes a path, an address, or text of any script as an id: `/posts/x/` becomes the id `~2Fposts~2Fx~2F`.

The clients, the command and the console encode a name before they send it. The API and the tables know only encoded
ids. This module imports nothing of Tally, because the typed client ships it.
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import quote, unquote_to_bytes

# The OpenAPI document uses this pattern, too, so it must mean the same in Python and in ECMA 262.
# Neither `.` nor `..`: clients and proxies remove these path segments (RFC 3986, section 5.2.4).
ID_PATTERN = re.compile(r"(\.{3,}|\.*[A-Za-z0-9_:~@-][A-Za-z0-9._:~@-]*)")
PAGE_COUNTERS = ("visits", "bot_visits", "page_visitors")
"""Counters of pages: Tally itself normalises the address."""
# `#` is between an id and its period, so `acme#2026-11` must not become another id. Control characters name nothing.
_UNUSABLE = re.compile(r"[\x00-\x1f\x7f#\ud800-\udfff]")
# What a browser writes for a letter, a space or one of "<>^`{} in the path of an address.
_ENCODED = re.compile(r"(?:%(?:[89a-f][0-9a-f]|2[02]|3[ce]|5e|60|7[bd]))+", re.IGNORECASE)


def id_of(name: str) -> str:
    """Returns the id of what a person names. Text that is an id is returned unchanged, so a caller may send an id back.

    In other text, percent-encoded letters become letters, as in a browser, and Unicode gets the form NFC. If a letter
    is newer than the Unicode version of a client, that client may make another id. Each character that an id cannot
    have becomes `~` and its code. Returns `.`, `..`, and text with `#`, control characters or half a surrogate pair
    unchanged: `fields.identifier` refuses them.
    """
    if ID_PATTERN.fullmatch(name) or _UNUSABLE.search(name) or name in (".", ".."):
        return name
    return encode_id(unicodedata.normalize("NFC", _ENCODED.sub(_decode_letters, name)))


def group_of(name: str) -> str:
    """Returns the id of the group of a team's items that a person names. Text that is not an id is encoded."""
    return name if ID_PATTERN.fullmatch(name) else encode_id(name)


def encode_id(name: str) -> str:
    """Returns the id of exactly this text: unlike `id_of`, decodes and normalises nothing. No two texts have the same
    id. `hr desk` becomes `hr~20desk`, and `~` becomes `~7E`."""
    quoted = "%2E" * len(name) if name in (".", "..") else quote(name, safe=":@").replace("~", "%7E")
    return quoted.replace("%", "~")


def tally_of(of: str) -> str:
    """Returns `counter:id`, from a text whose id may not be encoded."""
    counter, colon, name = of.partition(":")
    return of if counter in PAGE_COUNTERS else f"{counter}{colon}{id_of(name)}"


def target_of(target: str) -> str:
    """Returns `counter/id`, the target of a receipt, from a text whose id may not be encoded."""
    counter, slash, name = target.partition("/")
    return f"{counter}{slash}{id_of(name)}"


def _decode_letters(run: re.Match[str]) -> str:
    try:
        return unquote_to_bytes(run[0]).decode()
    except UnicodeDecodeError:
        return run[0]
