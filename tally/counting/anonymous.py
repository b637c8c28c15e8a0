"""Children without a user: the likes of browsers whose people do not sign in.

A browser keeps a secret. The name of the browser's child is a hash of the secret and the parent's id. So a reader of
the table cannot tell which likes come from one browser. Otherwise Tally treats the child as it treats a user's child.
"""

from __future__ import annotations

import re

from ..counter import Counter
from .pseudonyms import pseudonym
from .receipts import DAY_S

CHILD_NAME_PREFIX = "%~"
"""The start of the names of browsers' children. A user's name is percent-encoded, so hex digits follow each `%`."""
_CHILD_NAME_PATTERN = re.compile(rf"{CHILD_NAME_PREFIX}[\w-]{{24}}", re.ASCII)


def child_name(counter: Counter, id_: str, secret: str) -> str:
    """Returns the name of one browser's child of one id: the end of the child's sort key."""
    return CHILD_NAME_PREFIX + pseudonym(secret, f"{counter.name}/{id_}")


def stored_at_s(child: str, at_s: int) -> int:
    """Returns the time that a child's item stores: `at_s`, or for a browser the start of the day (UTC) of `at_s`.

    The access log has the address and the second of each request, so the second of an item would tell whose item it is.
    """
    return at_s - at_s % DAY_S if child.startswith(CHILD_NAME_PREFIX) else at_s


def is_child_name(child: object) -> bool:
    """Returns whether a child in an export file has the name of a browser's child."""
    return isinstance(child, str) and _CHILD_NAME_PATTERN.fullmatch(child) is not None
