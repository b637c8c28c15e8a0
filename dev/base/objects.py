"""A small S3 for the dead letters: files in the data folder.

It knows put, get, head, delete and list, in path style, without versions or parts. Other calls get NotImplemented.
Source: "Amazon S3 REST API", API reference (2006-03-01).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from urllib.parse import unquote
from xml.sax.saxutils import escape

from aiohttp import web

PREFIX = "/dev/s3"
KEY_BYTES_MAX = 1_024  # S3's
LIST_MAX = 1_000
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'
_QUERY_KNOWN = {"list-type", "prefix", "max-keys", "start-after", "continuation-token", "encoding-type", "x-id"}


@dataclass(frozen=True)
class Stored:
    """An object: its metadata and its content."""

    key: str
    content_type: str
    etag: str
    modified_s: float
    content: bytes


class ObjectError(Exception):
    """An error of S3: its status and code."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Objects:
    """The buckets of the template, each a folder. A file has one line of JSON with the metadata, then the content."""

    def __init__(self, folder: Path, buckets: tuple[str, ...]) -> None:
        self._folder, self._buckets = folder, buckets

    def put(self, bucket: str, key: str, content: bytes, content_type: str) -> Stored:
        """Store an object atomically. Raises ObjectError."""
        made = Stored(key, content_type, hashlib.md5(content, usedforsecurity=False).hexdigest(), time.time(), content)
        path = self._path(bucket, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        facts = {"key": key, "type": content_type, "etag": made.etag, "modified": made.modified_s}
        fresh = path.with_suffix(".new")
        fresh.write_bytes(json.dumps(facts).encode() + b"\n" + content)
        os.replace(fresh, path)
        return made

    def get(self, bucket: str, key: str) -> Stored:
        """An object. Raises ObjectError."""
        try:
            return _read(self._path(bucket, key))
        except OSError:
            raise ObjectError(404, "NoSuchKey", "The specified key does not exist.") from None

    def delete(self, bucket: str, key: str) -> None:
        """Delete an object; it need not exist. Raises ObjectError."""
        self._path(bucket, key).unlink(missing_ok=True)

    def list(self, bucket: str, prefix: str = "", after: str = "") -> Iterator[Stored]:
        """The objects with a key after `after`, in the order of keys. Raises ObjectError."""
        folder = self._path(bucket, "any").parent
        found = []
        for path in folder.glob("*.object"):
            with contextlib.suppress(OSError):
                found.append(_read(path))
        for stored in sorted(found, key=lambda one: one.key.encode()):
            if stored.key.startswith(prefix) and stored.key > after:
                yield stored

    def _path(self, bucket: str, key: str) -> Path:
        if bucket not in self._buckets or not _BUCKET.fullmatch(bucket):
            raise ObjectError(404, "NoSuchBucket", "The specified bucket does not exist")
        if len(key.encode()) > KEY_BYTES_MAX:
            raise ObjectError(400, "KeyTooLongError", "Your key is too long")
        return self._folder / bucket / f"{hashlib.sha256(key.encode()).hexdigest()}.object"

    async def handle(self, request: web.Request) -> web.Response:
        """Answer one request of an S3 client."""
        raw = request.raw_path.partition("?")[0].removeprefix(PREFIX).lstrip("/")
        bucket, _, key = raw.partition("/")
        try:
            return await self._answer(request, bucket, unquote(key))
        except ObjectError as error:
            if request.method == "HEAD":
                return web.Response(status=error.status)
            body = f"{_XML}<Error><Code>{error.code}</Code><Message>{escape(str(error))}</Message></Error>"
            return web.Response(status=error.status, text=body, content_type="application/xml")

    async def _answer(self, request: web.Request, bucket: str, key: str) -> web.Response:
        unknown = sorted(set(request.query) - _QUERY_KNOWN)
        if (
            unknown
            or "x-amz-copy-source" in request.headers
            or "aws-chunked" in request.headers.get("content-encoding", "")
        ):
            raise ObjectError(501, "NotImplemented", "The local store has whole objects only.")
        match request.method, bool(key):
            case "PUT", True:
                content_type = request.headers.get("content-type", "binary/octet-stream")
                stored = self.put(bucket, key, await request.read(), content_type)
                return web.Response(headers={"ETag": f'"{stored.etag}"'})
            case (("GET" | "HEAD"), True):
                return _sent(self.get(bucket, key))
            case "DELETE", True:
                self.delete(bucket, key)
                return web.Response(status=204)
            case "GET", False if bucket:
                return self._listed(request, bucket)
            case "HEAD", False:
                self._path(bucket, "any")
                return web.Response()
        raise ObjectError(501, "NotImplemented", "The local store knows objects only.")

    def _listed(self, request: web.Request, bucket: str) -> web.Response:
        prefix = request.query.get("prefix", "")
        after = request.query.get("continuation-token") or request.query.get("start-after", "")
        wanted = min(LIST_MAX, int(request.query.get("max-keys", LIST_MAX)))
        found = list(self.list(bucket, prefix, after))
        entries = "".join(
            f"<Contents><Key>{escape(one.key)}</Key><LastModified>{_instant(one.modified_s)}</LastModified>"
            f"<ETag>&quot;{one.etag}&quot;</ETag><Size>{len(one.content)}</Size></Contents>"
            for one in found[:wanted]
        )
        more = len(found) > wanted > 0
        token = f"<NextContinuationToken>{escape(found[wanted - 1].key)}</NextContinuationToken>" if more else ""
        body = (
            f'{_XML}<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{bucket}</Name>'
            f"<Prefix>{escape(prefix)}</Prefix><MaxKeys>{wanted}</MaxKeys>"
            f"<KeyCount>{min(wanted, len(found))}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{token}{entries}</ListBucketResult>"
        )
        return web.Response(text=body, content_type="application/xml")


def _sent(stored: Stored) -> web.Response:
    modified = formatdate(stored.modified_s, usegmt=True)
    headers = {"ETag": f'"{stored.etag}"', "Last-Modified": modified, "Content-Type": stored.content_type}
    return web.Response(body=stored.content, headers=headers)


def _read(path: Path) -> Stored:
    head, _, content = path.read_bytes().partition(b"\n")
    facts = json.loads(head)
    return Stored(facts["key"], facts["type"], facts["etag"], facts["modified"], content)


def _instant(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))
