"""A client of an engine with the methods of boto3's client. A call takes a fifth of boto3's time.

The client speaks DynamoDB's JSON protocol. A call blocks, and each thread has a connection. In an event loop, use
tally/dev/base/wire.py.
"""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

_HEAD = (  # the engine does not check the signature
    "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-amz-json-1.0\r\nX-Amz-Date: 20260101T000000Z\r\n"
    "Authorization: AWS4-HMAC-SHA256 Credential=local/20260101/eu-west-1/dynamodb/aws4_request, SignedHeaders=host,"
    " Signature=0\r\nX-Amz-Target: %s\r\nContent-Length: %d\r\n\r\n"
)
_STREAMS = {"DescribeStream", "GetShardIterator", "GetRecords"}


class SyncWire:
    """A client of the engine at this port: `get_item`, `transact_write_items`, `get_records` …

    Answers are as boto3 gives them, with two differences: times are numbers of seconds, as in a Lambda event, and the
    only header is the date. An error is botocore's ClientError. A lost connection raises ConnectionError.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._local = threading.local()
        self._methods: dict[str, Callable[..., dict[str, Any]]] = {}
        self._open: list[socket.socket] = []
        self.calls = 0  # how many requests were sent

    def __getattr__(self, name: str) -> Callable[..., dict[str, Any]]:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._methods:
            operation = "".join(part.title() for part in name.split("_"))
            self._methods[name] = lambda **parameters: self._call(operation, parameters)
        return self._methods[name]

    def close(self) -> None:
        """Close every connection."""
        for connection in self._open:
            connection.close()

    def _call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self.calls += 1
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = socket.create_connection(("127.0.0.1", self._port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(connection)
        service = "DynamoDBStreams_20120810" if operation in _STREAMS else "DynamoDB_20120810"
        body = json.dumps(parameters, default=_encode_bytes).encode()
        connection.sendall((_HEAD % (f"{service}.{operation}", len(body))).encode() + body)
        status, date, content = _receive_answer(connection)
        answer = json.loads(content, object_hook=_decode_bytes)
        if status == 200:
            answer["ResponseMetadata"] = {"HTTPHeaders": {"date": date}}
            return answer  # type: ignore[no-any-return]
        code, message = answer.pop("__type").rpartition("#")[2], answer.pop("message", answer.pop("Message", ""))
        error: Any = {**answer, "Error": {"Code": code, "Message": message}}
        raise ClientError(error, operation)


def _receive_answer(connection: socket.socket) -> tuple[int, str, bytes]:
    """Returns the status of an answer, its date, and its body."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += _receive_more(connection)
    head, _, body = received.partition(b"\r\n\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in head.split(b"\r\n"))}
    length = int(headers[b"content-length"])
    while len(body) < length:
        body += _receive_more(connection)
    return int(head.split(b" ", 2)[1]), headers.get(b"date", b"").decode(), body


def _receive_more(connection: socket.socket) -> bytes:
    received = connection.recv(1 << 18)
    if not received:
        raise ConnectionError("the engine has closed the connection")
    return received


def _encode_bytes(value: object) -> str:
    if not isinstance(value, bytes):
        raise TypeError(f"{value!r} is not a value of DynamoDB")
    return base64.b64encode(value).decode()


def _decode_bytes(value: dict[str, Any]) -> dict[str, Any]:
    """Returns binary values as bytes, as boto3 does."""
    if len(value) == 1 and isinstance(value.get("B"), str):
        return {"B": base64.b64decode(value["B"])}
    return value
