"""Answers for anyone: a number, a script, a picture, the console. Caches keep them and revalidate with `If-None-Match`.

No cache keeps the answer to a request with a token, so a signed-in caller sees each change at once.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

GZIP_BYTES_MIN = 500  # shorter texts hardly shrink
_ZERO_WEIGHT_PATTERN = re.compile(r"q=0(\.0*)?")
_SAFE_HEADERS = {  # of a text without headers of its own
    "cross-origin-resource-policy": "cross-origin",  # pages of any origin embed them
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",  # a picture runs nothing
    "x-content-type-options": "nosniff",
}


class Text(NamedTuple):
    """A text, its media type without parameters, and for how long a cache may keep it."""

    text: str
    media_type: str
    max_age_s: int
    version_tag: str = ""
    """The ETag, such as a counter's version. Empty: one is made from the text."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers of its own. Each replaces the one that a text for other sites has."""

    @property
    def etag(self) -> str:
        """The ETag. One that is made from the text is weak, because the compressed text shares it."""
        return self.version_tag or f'W/"{hashlib.sha256(self.text.encode()).hexdigest()[:16]}"'


def response(body: Text, request_headers: Mapping[str, str]) -> dict[str, Any]:
    """Returns an answer for API Gateway: 200, or 304 if the caller has the text. API Gateway does not compress."""
    headers = {name.lower(): value for name, value in request_headers.items()}
    cached = "no-store" if "authorization" in headers else f"public, max-age={body.max_age_s}"
    sent = {"cache-control": cached, "etag": body.etag, "vary": "accept-encoding, authorization"}
    # No 304 by version, because a deploy with another start or limit changes the answer, and not the version.
    # RFC 9110, section 13.1.2: the comparison is weak, and `*` matches anything.
    offered = [tag.strip().removeprefix("W/") for tag in headers.get("if-none-match", "").split(",")]
    if not body.version_tag and ("*" in offered or body.etag.removeprefix("W/") in offered):
        return {"statusCode": 304, "headers": sent, "body": "", "isBase64Encoded": False}
    charset = "" if body.media_type.endswith("/json") else "; charset=utf-8"  # JSON has no other
    sent |= {"content-type": f"{body.media_type}{charset}", **_SAFE_HEADERS, **dict(body.headers)}
    if len(body.text) < GZIP_BYTES_MIN or not _accepts_gzip(headers.get("accept-encoding", "")):
        return {"statusCode": 200, "headers": sent, "body": body.text, "isBase64Encoded": False}
    packed = base64.b64encode(gzip.compress(body.text.encode(), 9, mtime=0)).decode()
    sent["content-encoding"] = "gzip"
    return {"statusCode": 200, "headers": sent, "body": packed, "isBase64Encoded": True}


def _accepts_gzip(accept_encoding: str) -> bool:
    """RFC 9110, section 12.5.3. Without the header the answer is `no`: a plain client may not decompress."""
    for offer in accept_encoding.lower().split(","):
        name, _, weight = (part.strip() for part in offer.partition(";"))
        if name == "gzip":
            return not _ZERO_WEIGHT_PATTERN.fullmatch(weight)
    return False
