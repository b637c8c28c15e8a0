"""Answers for anyone: a number, a script, a picture, the console. Caches keep these answers.

A cache asks with `If-None-Match` whether an answer has changed. No cache keeps the answer to a request with a token, so
a signed-in caller sees each change at once.
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
_SAFE_HEADERS = {  # of every text; `Text.headers` may replace some
    "cross-origin-resource-policy": "cross-origin",  # pages of any origin embed the text
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",  # no script in a picture runs
    "x-content-type-options": "nosniff",
}


class Text(NamedTuple):
    """A text, its media type without parameters, and for how long a cache may keep it."""

    text: str
    media_type: str
    max_age_s: int
    version_tag: str = ""
    """The ETag, such as a counter's version. Empty: the ETag is made from the text."""
    headers: tuple[tuple[str, str], ...] = ()
    """More headers. Each replaces the header of the same name in _SAFE_HEADERS."""

    @property
    def etag(self) -> str:
        """The ETag. An ETag made from the text is weak, because the compressed text has the same ETag."""
        return self.version_tag or f'W/"{hashlib.sha256(self.text.encode()).hexdigest()[:16]}"'


def response(body: Text, request_headers: Mapping[str, str]) -> dict[str, Any]:
    """Returns an answer for API Gateway: 200, or 304 if the caller has the text. Compresses the text."""
    headers = {name.lower(): value for name, value in request_headers.items()}
    cache_control = "no-store" if "authorization" in headers else f"public, max-age={body.max_age_s}"
    response_headers = {"cache-control": cache_control, "etag": body.etag, "vary": "accept-encoding, authorization"}
    # A version tag gives no 304, because a deploy with another start or limit changes the answer, but not the version.
    # RFC 9110, section 13.1.2: the comparison is weak, and `*` matches anything.
    known_tags = [tag.strip().removeprefix("W/") for tag in headers.get("if-none-match", "").split(",")]
    if not body.version_tag and ("*" in known_tags or body.etag.removeprefix("W/") in known_tags):
        return {"statusCode": 304, "headers": response_headers, "body": "", "isBase64Encoded": False}
    charset = "" if body.media_type.endswith("/json") else "; charset=utf-8"  # JSON is always UTF-8
    response_headers |= {"content-type": f"{body.media_type}{charset}", **_SAFE_HEADERS, **dict(body.headers)}
    if len(body.text) < GZIP_BYTES_MIN or not _accepts_gzip(headers.get("accept-encoding", "")):
        return {"statusCode": 200, "headers": response_headers, "body": body.text, "isBase64Encoded": False}
    compressed = base64.b64encode(gzip.compress(body.text.encode(), 9, mtime=0)).decode()
    response_headers["content-encoding"] = "gzip"
    return {"statusCode": 200, "headers": response_headers, "body": compressed, "isBase64Encoded": True}


def _accepts_gzip(accept_encoding: str) -> bool:
    """Returns whether the caller takes gzip (RFC 9110, section 12.5.3). Without the header, a caller may lack gzip."""
    for offer in accept_encoding.lower().split(","):
        name, _, weight = (part.strip() for part in offer.partition(";"))
        if name == "gzip":
            return not _ZERO_WEIGHT_PATTERN.fullmatch(weight)
    return False
