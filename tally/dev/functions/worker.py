"""A worker process, which runs any function, and the zygote that forks it (tally/dev/stack/zygote.py)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.account import ACCOUNT, REGION
from ..base.errors import LocalError
from ..stack import zygote
from ..stack.template import Function

INIT_S_MAX = 30.0  # Lambda allows 10 s; a busy laptop is slower
PAYLOAD_BYTES_MAX = 6 * 1024 * 1024 + 100  # Lambda's quota for an event and for an answer: 6,291,556
DOCUMENT_BYTES_MAX = 16 * 1024 * 1024  # of the zygote's description of the stack, which is one line


@dataclass(frozen=True)
class Outcome:
    """The result of an invocation: the function's JSON, or an error document if it failed."""

    payload: bytes
    failed: bool = False

    @classmethod
    def failure(cls, error_type: str, message: str) -> Outcome:
        """Returns the outcome of a failure outside the function's code. `error_type`: such as Runtime.ExitError."""
        return cls(json.dumps({"errorType": error_type, "errorMessage": message}).encode(), failed=True)

    @property
    def reason(self) -> str:
        """The error as one line for the terminal."""
        try:
            error = json.loads(self.payload)
            return f"{error['errorType']}: {error['errorMessage']}"[:300]
        except (ValueError, TypeError, KeyError):
            return "its error is not a JSON object with errorType and errorMessage"


@dataclass(eq=False)
class Worker:
    """One process, which handles one invocation at a time. `alive`: False after `kill`."""

    zygote: Zygote
    pid: int
    _connection: socket.socket
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    alive: bool = True

    @property
    def ready(self) -> bool:
        """Whether the process runs: a process that has ended has closed its end of the connection."""
        try:
            return self.alive and bool(self._connection.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    async def invoke(self, function: Function, log: Path, request_id: str, payload: bytes) -> Outcome | None:
        """Run one invocation, and kill the process after the function's timeout. Returns None if the process died
        before the invocation began: another worker can run it."""
        head = json.dumps({
            "function": function.name, "id": request_id, "log": str(log), "memory_mb": function.memory_mb,
            "deadline_ms": int((time.time() + function.timeout_s) * 1000),
            "arn": f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{function.name}",
        }).encode()  # fmt: skip
        try:
            async with asyncio.timeout(function.timeout_s):
                self._writer.write(zygote.HEAD.pack(len(head), len(payload)) + head + payload)
                try:
                    await self._reader.readexactly(len(zygote.TAKEN))  # the worker has begun
                except (asyncio.IncompleteReadError, OSError):
                    self.kill()
                    return None
                failed, size = zygote.ANSWER.unpack(await self._reader.readexactly(zygote.ANSWER.size))
                answer = await self._reader.readexactly(size)
        except TimeoutError:
            self.kill()
            message = f"RequestId: {request_id} Error: Task timed out after {function.timeout_s:.2f} seconds"
            return Outcome.failure("Sandbox.Timedout", message)
        except (asyncio.IncompleteReadError, OSError):
            ended = await self.zygote.end_reason(self.pid)
            self.kill()
            return Outcome.failure("Runtime.ExitError", f"Error: Runtime exited with error: {ended}")
        except asyncio.CancelledError:
            self.kill()
            raise
        if size > PAYLOAD_BYTES_MAX:
            message = f"Response payload size exceeded maximum allowed payload size ({PAYLOAD_BYTES_MAX} bytes)."
            return Outcome.failure("Function.ResponseSizeTooLarge", message)
        return Outcome(answer, bool(failed))

    def kill(self) -> None:
        if self.alive:
            self.alive = False
            self._writer.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Zygote:
    """The process that forks the workers of one version of the code. `control`: the socket to the process."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process, self._control = process, control
        self._ended: dict[int, asyncio.Future[int]] = {}  # exit statuses of workers, by process id
        self._lines: asyncio.StreamReader | None = None  # the JSON that the zygote sends, one object a line
        self._listening: asyncio.Task[None] | None = None  # `_read_reports_of_ends`
        self._writer: asyncio.StreamWriter | None = None  # for JSON to the zygote, over `_control`
        self.workers: set[Worker] = set()
        self.retired = False
        """Whether new code has replaced this code, so that idle workers end."""

    async def read_document(self) -> dict[str, Any]:
        """Returns the document that describes the code. Raises LocalError if the code does not load."""
        self._lines, self._writer = await asyncio.open_unix_connection(sock=self._control, limit=DOCUMENT_BYTES_MAX)
        return dict((await self._read_reply())["document"])

    async def make_handlers(self, environments: Mapping[str, Mapping[str, str]]) -> None:
        """Let the zygote make the handlers. `environments`: the variables of each function. Raises LocalError."""
        assert self._writer is not None
        self._writer.write(json.dumps(environments).encode() + b"\n")
        await self._read_reply()
        self._listening = asyncio.create_task(self._read_reports_of_ends())

    async def _read_reply(self) -> dict[str, Any]:
        assert self._lines is not None
        reply = {"error": "the code of the functions does not load (log import.log)"}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(INIT_S_MAX):
                if line := await self._lines.readline():
                    reply = json.loads(line)
        if "error" in reply:
            raise LocalError(reply["error"])
        return reply

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    async def fork(self) -> Worker:
        """Fork one more worker. Raises OSError."""
        own_end, worker_end = socket.socketpair()
        with worker_end:
            socket.send_fds(self._control, [b"w"], [worker_end.fileno()])
        reader, writer = await asyncio.open_unix_connection(sock=own_end)
        try:
            async with asyncio.timeout(INIT_S_MAX):
                (pid,) = struct.unpack(">I", await reader.readexactly(4))  # the worker's first message
        except BaseException as error:
            writer.close()
            if isinstance(error, asyncio.IncompleteReadError | TimeoutError):
                raise OSError(f"no worker started: {error}") from None
            raise
        worker = Worker(self, pid, own_end, reader, writer)
        self.workers.add(worker)
        return worker

    async def end_reason(self, pid: int) -> str:
        """Returns how a worker ended: a signal or an exit status."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                status = await asyncio.shield(self._end_of(pid))
                return f"signal: {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        return "unknown"

    def _end_of(self, pid: int) -> asyncio.Future[int]:
        return self._ended.setdefault(pid, asyncio.get_running_loop().create_future())

    async def _read_reports_of_ends(self) -> None:
        assert self._lines is not None
        while line := await self._lines.readline():
            ended = json.loads(line)
            if not (end := self._end_of(ended["pid"])).done():
                end.set_result(ended["status"])

    def discard(self, worker: Worker) -> None:
        """End a worker. After the last worker of a retired zygote, end the zygote, too."""
        worker.kill()
        self.workers.discard(worker)
        if self.retired and not self.workers:
            self.close()

    def close(self) -> None:
        """End the zygote and its workers."""
        for worker in tuple(self.workers):
            worker.kill()
        if self._listening is not None:
            self._listening.cancel()
        if self._writer is not None:
            self._writer.close()
        self._process.kill()
        self._process.wait()
        self._control.close()
