"""An HTTP proxy between boto3 and the engine. A plan says which requests fail, and how.

The faults are below the SDK, so a test or measurement includes the SDK's own retries:

    plan = faults.random_faults(7, {"TransactWriteItems": {faults.LOSE_RESPONSE: 0.02}})
    with FaultProxy(engine.endpoint, plan) as proxy:
        client = dynamodb_client(endpoint_url=proxy.endpoint)

The proxy runs on an event loop in a thread, with one connection to the engine for each connection of a client.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections import Counter, deque
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlsplit

from tally.dev.base.engine import stop_listening

from .answers import answer_for, error
from .plans import UNFORWARDED, Fault, FaultKind, Plan, no_faults

START_S_MAX = STOP_S_MAX = IDLE_S_MAX = 60.0  # start and stop take milliseconds, and longer on a busy machine
# The token with its comma, which is behind or in front of the token.
_TOKEN = re.compile(rb', ?"ClientRequestToken": ?"[^"]*"|"ClientRequestToken": ?"[^"]*", ?')
REQUESTS_KEPT_MAX = 20_000  # of 1 to 2 KB each; `counts` also counts older requests


@dataclass(frozen=True)
class ReceivedRequest:
    """One request. `body`: as forwarded, without a stripped token. `number`: of earlier requests of the operation."""

    operation: str
    body: bytes
    number: int
    fault: Fault | None
    forwarded: bool


class FaultProxy:
    """Runs the proxy in a `with` statement. Clients connect to `endpoint`. Assign `plan` to change the faults.

    `strip_tokens`: whether to remove ClientRequestToken from requests, so that only the receipt protects a change.
    `requests_kept`: how many requests `requests` keeps.
    """

    def __init__(
        self,
        upstream_endpoint: str,
        plan: Plan = no_faults,
        *,
        strip_tokens: bool = False,
        requests_kept: int = REQUESTS_KEPT_MAX,
    ) -> None:
        parts = urlsplit(upstream_endpoint)
        self.upstream_address = (parts.hostname or "", parts.port or 80)
        self.strip_tokens = strip_tokens
        self.endpoint = ""
        self._plan = plan
        self._next_numbers: Counter[str] = Counter()
        self._requests: deque[ReceivedRequest] = deque(maxlen=requests_kept)
        self._counts: Counter[tuple[str, str]] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self.connections: set[_Client] = set()
        self.failures: list[Exception] = []
        """Errors of the plan or the proxy. The end of the `with` statement raises the first error."""

    @property
    def plan(self) -> Plan:
        """Which request meets which fault. An assignment restarts the numbers of requests at 0."""
        return self._plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        self._plan, self._next_numbers = plan, Counter()

    @property
    def requests(self) -> list[ReceivedRequest]:
        """The last `requests_kept` requests since `clear_requests`, oldest first."""
        return list(self._requests)

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """The number of requests since `clear_requests`, by (name of the fault's kind or "NONE", operation)."""
        return dict(self._counts)

    def count_injected(self, fault: Fault, operation: str | None = None) -> int:
        """Returns how many requests met faults of this kind. `operation`: None counts requests of all operations."""
        return sum(
            count for (name, of), count in self.counts.items() if name == fault.kind.name and operation in (None, of)
        )

    def clear_requests(self) -> None:
        """Clears the kept requests, and restarts `counts` at 0."""
        self._requests, self._counts = deque(maxlen=self._requests.maxlen), Counter()

    def wait_until_idle(self) -> None:
        """Waits until no request is open, not even a delayed request of a client that has gone. Raises TimeoutError."""
        deadline_s = time.monotonic() + IDLE_S_MAX
        while any(client.is_busy for client in list(self.connections)):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"requests are still open after {IDLE_S_MAX} s")
            time.sleep(0.002)

    def choose_fault(self, operation: str, body: bytes) -> tuple[Fault | None, bytes]:
        """Returns the fault of a request and the body to forward. The event loop calls this method."""
        number = self._next_numbers[operation]
        self._next_numbers[operation] += 1
        fault = self._plan(operation, body, number)
        if self.strip_tokens and b'"ClientRequestToken"' in body:
            body = _TOKEN.sub(b"", body)
        self._counts[fault.kind.name if fault else "NONE", operation] += 1
        forwarded = fault is None or fault.kind not in UNFORWARDED
        self._requests.append(ReceivedRequest(operation, body, number, fault, forwarded))
        return fault, body

    def __enter__(self) -> FaultProxy:
        ready: Future[str] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="fault-proxy", daemon=True)
        self._thread.start()
        self.endpoint = ready.result(START_S_MAX)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop and self._stop and self._thread:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(STOP_S_MAX)
        if self.failures and error is None:
            raise self.failures[0]

    def _run(self, ready: Future[str]) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as failure:
            if ready.done():
                raise
            ready.set_exception(failure)

    async def _serve(self, ready: Future[str]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        server = await self._loop.create_server(lambda: _Client(self), sock=listener, backlog=256)
        ready.set_result(f"http://127.0.0.1:{listener.getsockname()[1]}")
        await self._stop.wait()
        await stop_listening(listener)
        server.close()
        for client in list(self.connections):
            client.stop()
        await server.wait_closed()
        await asyncio.sleep(0)  # lets the connections close


class _HttpConnection(asyncio.Protocol):
    """A connection of HTTP/1.1 with keep-alive. Reads one message at a time, because boto3 does not pipeline."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head_length = self._buffer.find(b"\r\n\r\n") + 4
        if head_length < 4:
            return
        head = bytes(self._buffer[:head_length])
        length = head_length + int(_header(head, b"content-length") or 0)
        if len(self._buffer) >= length:
            body = bytes(self._buffer[head_length:length])
            del self._buffer[:length]
            self.handle_message(head, body)

    def handle_message(self, head: bytes, body: bytes) -> None:
        """Handles a message that is complete."""
        raise NotImplementedError


class _Upstream(_HttpConnection):
    """The connection to the engine."""

    def __init__(self) -> None:
        super().__init__()
        self._answer: asyncio.Future[bytes] | None = None

    async def send(self, request: bytes) -> bytes:
        """Returns the engine's answer. Raises ConnectionError if the engine closes the connection."""
        self._answer = asyncio.get_running_loop().create_future()
        if self.transport.is_closing():
            raise ConnectionResetError
        self.transport.write(request)
        return await self._answer

    def handle_message(self, head: bytes, body: bytes) -> None:
        if self._answer and not self._answer.done():
            self._answer.set_result(head + body)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer and not self._answer.done():
            self._answer.set_exception(ConnectionResetError())


class _Client(_HttpConnection):
    """The connection of a client, which has a connection to the engine."""

    def __init__(self, proxy: FaultProxy) -> None:
        super().__init__()
        self.proxy = proxy
        self._upstream: _Upstream | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.proxy.connections.add(self)

    @property
    def is_busy(self) -> bool:
        """Whether a request is open."""
        return self._task is not None and not self._task.done()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_busy:
            self._discard()  # not while a request is open: a delayed request must still arrive

    def stop(self) -> None:
        """Aborts the open request and both connections."""
        if self._task:
            self._task.cancel()
        self.transport.abort()
        self._discard()

    def _discard(self) -> None:
        self.proxy.connections.discard(self)
        if self._upstream:
            self._upstream.transport.abort()

    def handle_message(self, head: bytes, body: bytes) -> None:
        self._task = asyncio.get_running_loop().create_task(self._serve(head, body))

    async def _serve(self, head: bytes, body: bytes) -> None:
        try:
            await self._answer(head, body)
        except Exception as failure:
            self.proxy.failures.append(failure)
            self.transport.abort()
            self._discard()

    async def _answer(self, head: bytes, body: bytes) -> None:
        operation = _header(head, b"x-amz-target").rpartition(b".")[2].decode()
        fault, forwarded_body = self.proxy.choose_fault(operation, body)
        answer: bytes | None
        if fault and fault.kind in UNFORWARDED:
            answer = answer_for(fault, operation, body)
        else:
            answer = await self._forward(fault, head, body, forwarded_body)
        if self.transport.is_closing():
            self._discard()
        elif answer and fault and fault.kind is FaultKind.TRUNCATE:
            self.transport.write(answer[:-1])
            self.transport.close()
        elif answer:
            self.transport.write(answer)
        elif fault is None or fault.kind not in (FaultKind.SILENCE, FaultKind.HANG_BEFORE):  # these leave it open
            self.transport.close()

    async def _forward(self, fault: Fault | None, head: bytes, body: bytes, forwarded_body: bytes) -> bytes | None:
        """Forwards a request. `body`: as received. Returns the answer for the client; None: no answer."""
        if fault and fault.kind is FaultKind.DELAY:
            await asyncio.sleep(fault.delay_s)
        if forwarded_body is not body:
            head = _with_length(head, len(forwarded_body))
        try:
            if self._upstream is None:
                loop = asyncio.get_running_loop()
                self._upstream = (await loop.create_connection(_Upstream, *self.proxy.upstream_address))[1]
            answer = await self._upstream.send(head + forwarded_body)
        except OSError:  # the engine has closed the connection
            return None
        match fault:
            case Fault(kind=FaultKind.LOSE_RESPONSE | FaultKind.SILENCE):
                return None
            case Fault(kind=FaultKind.LATE_ANSWER):
                await asyncio.sleep(fault.delay_s)
            case Fault(kind=FaultKind.FAIL_AFTER):
                return error(500, "InternalServerError", "injected after the write")
            case Fault(kind=FaultKind.ERROR_AFTER):
                return error(400, fault.code, "injected after the write")
        return answer


def _header(head: bytes, name: bytes) -> bytes:
    """Returns the value of a header; "" if the header is missing. `name` is in lower case."""
    for line in head.split(b"\r\n")[1:]:
        field, _, value = line.partition(b":")
        if field.lower() == name:
            return value.strip()
    return b""


def _with_length(head: bytes, length: int) -> bytes:
    lines = [line for line in head.split(b"\r\n")[:-2] if not line.lower().startswith(b"content-length:")]
    return b"\r\n".join([*lines, b"Content-Length: %d" % length, b"", b""])
