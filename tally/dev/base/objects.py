"""A small S3 for the dead letters: it keeps objects as files in the data folder.

It supports put, get, delete and list, in path style, without versions or parts. Other calls get NotImplemented.
Source: "Amazon S3 REST API", API reference (2006-03-01).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote
from xml.sax.saxutils import escape

from aiohttp import web

PREFIX = "/dev/s3"
KEY_BYTES_MAX = 1_024  # S3's quota
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'
_XMLNS = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_TIME = "%Y-%m-%dT%H:%M:%S.000Z"
_KNOWN_PARAMETERS = {"list-type", "prefix", "max-keys", "encoding-type", "x-id"}


class StoredObject(NamedTuple):
    """An object. `modified_s`: when it was put, in epoch seconds."""

    key: str
    content_type: str
    modified_s: float
    content: bytes

    @property
    def etag(self) -> str:
        """The ETag as S3 makes it."""
        return f'"{hashlib.md5(self.content, usedforsecurity=False).hexdigest()}"'


class ObjectError(Exception):
    """An error of S3: its status and code."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Buckets:
    """The buckets of the stack, each a folder. A file has one line of JSON with the metadata, then the content."""

    def __init__(self, folder: Path, buckets: tuple[str, ...]) -> None:
        self._folder, self._buckets = folder, buckets

    def put(self, bucket: str, key: str, content: bytes, content_type: str) -> StoredObject:
        """Store an object atomically. Raises ObjectError."""
        stored = StoredObject(key, content_type, time.time(), content)
        path = self._path(bucket, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_bytes(json.dumps(stored[:3]).encode() + b"\n" + content)
        os.replace(fresh, path)
        return stored

    def get(self, bucket: str, key: str) -> StoredObject:
        """Returns an object. Raises ObjectError."""
        try:
            return _read(self._path(bucket, key))
        except OSError:
            raise ObjectError(404, "NoSuchKey", "The specified key does not exist.") from None

    def list(self, bucket: str, prefix: str = "") -> list[StoredObject]:
        """Returns every object whose key begins with `prefix`, in the order of keys. Raises ObjectError."""
        folder = self._path(bucket, "any").parent  # a bucket's objects are in one folder
        stored = map(_read, folder.glob("*.object"))
        return sorted(one for one in stored if one.key.startswith(prefix))

    def _path(self, bucket: str, key: str) -> Path:
        if bucket not in self._buckets or not _BUCKET.fullmatch(bucket):
            raise ObjectError(404, "NoSuchBucket", "The specified bucket does not exist")
        if len(key.encode()) > KEY_BYTES_MAX:
            raise ObjectError(400, "KeyTooLongError", "Your key is too long")
        return self._folder / bucket / f"{hashlib.sha256(key.encode()).hexdigest()}.object"

    async def handle(self, request: web.Request) -> web.Response:
        """Answer one request of an S3 client."""
        path = request.raw_path.partition("?")[0].removeprefix(PREFIX).lstrip("/")
        bucket, _, key = path.partition("/")
        try:
            return await self._answer(request, bucket, unquote(key))
        except ObjectError as error:
            body = f"{_XML}<Error><Code>{error.code}</Code><Message>{escape(str(error))}</Message></Error>"
            return web.Response(status=error.status, text=body, content_type="application/xml")

    async def _answer(self, request: web.Request, bucket: str, key: str) -> web.Response:
        chunked = "aws-chunked" in request.headers.get("content-encoding", "")
        if set(request.query) - _KNOWN_PARAMETERS or "x-amz-copy-source" in request.headers or chunked:
            raise ObjectError(501, "NotImplemented", "The local store has whole objects only.")
        match request.method, bool(key):
            case "PUT", True:
                content_type = request.headers.get("content-type", "binary/octet-stream")
                stored = self.put(bucket, key, await request.read(), content_type)
                return web.Response(headers={"ETag": stored.etag})
            case "GET", True:
                stored = self.get(bucket, key)
                headers = {"ETag": stored.etag, "Content-Type": stored.content_type}
                return web.Response(body=stored.content, headers=headers)
            case "DELETE", True:
                self._path(bucket, key).unlink(missing_ok=True)
                return web.Response(status=204)
            case "GET", False if bucket:
                entries = [
                    f"<Contents><Key>{escape(one.key)}</Key><ETag>{escape(one.etag)}</ETag><LastModified>"
                    f"{time.strftime(_TIME, time.gmtime(one.modified_s))}</LastModified>"
                    f"<Size>{len(one.content)}</Size></Contents>"
                    for one in self.list(bucket, request.query.get("prefix", ""))
                ]
                body = f"<Name>{bucket}</Name><KeyCount>{len(entries)}</KeyCount><IsTruncated>false</IsTruncated>"
                body = f"{_XML}<ListBucketResult {_XMLNS}>{body}{''.join(entries)}</ListBucketResult>"
                return web.Response(text=body, content_type="application/xml")
        raise ObjectError(501, "NotImplemented", "The local store knows put, get, delete and list.")


def _read(path: Path) -> StoredObject:
    head, _, content = path.read_bytes().partition(b"\n")
    key, content_type, modified_s = json.loads(head)
    return StoredObject(key, content_type, modified_s, content)
