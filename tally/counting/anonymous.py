"""Children without a user: the likes of browsers whose people do not sign in.

A browser keeps a secret. Its child of an id is named by a hash of both, so who reads the table cannot tell which likes
are of one browser. Nothing else about such a child differs from that of a user.
"""

from __future__ import annotations

import re

from ..counter import Counter
from .hashing import hashed

MARK = "%~"
"""How these names begin. No user's does: percent-encoding writes a `%` with two hex digits behind it."""
_FORM = re.compile(rf"{MARK}[\w-]{{24}}", re.ASCII)


def name(counter: Counter, id_: str, secret: str) -> str:
    """The child of one browser and one id, as its key has it."""
    return MARK + hashed(secret, f"{counter.name}/{id_}")


def is_name(child: object) -> bool:
    """Whether a child of a file is that of a browser, as an export has it."""
    return isinstance(child, str) and _FORM.fullmatch(child) is not None
