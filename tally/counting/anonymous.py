"""Children without a user: the likes of browsers whose people do not sign in.

A browser keeps a secret. Its child of an id is named by a hash of both, so who reads the table cannot tell which likes
are of one browser. Nothing else about such a child differs from that of a user.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

from ..counter import Counter

MARK = "%~"
"""How these names begin. No user's does: percent-encoding writes a `%` with two hex digits behind it."""
_DIGEST_BYTES = 18  # 24 characters: 144 bits, more than a secret of 22 characters has
_FORM = re.compile(rf"{MARK}[\w-]{{24}}", re.ASCII)


def name(counter: Counter, id_: str, secret: str) -> str:
    """The child of one browser and one id, as its key has it."""
    digest = hmac.new(secret.encode(), f"{counter.name}/{id_}".encode(), hashlib.sha256).digest()
    return MARK + base64.urlsafe_b64encode(digest[:_DIGEST_BYTES]).decode()


def is_name(child: object) -> bool:
    """Whether a child of a file is that of a browser, as an export has it."""
    return isinstance(child, str) and _FORM.fullmatch(child) is not None
