"""One execution environment of a Lambda function: a process under AWS's runtime client, and its Runtime API.

The process gets its environment, invocations, deadline and end as in Lambda. Each process has a Runtime API on its own
loopback port, as in Lambda, so that a request there always comes from this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from aiohttp import web

from ..base.account import ACCOUNT, REGION
from ..base.engine import die_with_parent
from ..base.listening import stop_listening
from ..stack.template import Function
from . import loop

INIT_S_MAX = 30.0  # Lambda allows 10 s; a laptop that is busy is slower
PAYLOAD_BYTES_MAX = 6 * 1024 * 1024 + 100  # of a synchronous invocation, in and out
CLEANUP_S_MAX = 0.01  # a dead process needs no graceful end of its Runtime API (0 would wait for ever)
_API = "/2018-06-01/runtime"
_ACCEPTED = b'{"status":"OK"}'


@dataclass(frozen=True)
class Outcome:
    """The result of an invocation: the function's JSON, or an error document if it failed."""

    payload: bytes
    failed: bool = False

    @classmethod
    def failure(cls, kind: str, message: str) -> Outcome:
        """An error outside the function's code. `kind` is Lambda's name of it, such as Runtime.ExitError."""
        return cls(json.dumps({"errorType": kind, "errorMessage": message}).encode(), failed=True)

    @property
    def reason(self) -> str:
        """One line for the person at the terminal."""
        try:
            error = json.loads(self.payload)
            return f"{error['errorType']}: {error['errorMessage']}"[:300]
        except (ValueError, TypeError, KeyError):
            return "it failed"


@dataclass(frozen=True)
class Invocation:
    """One event on its way to a process."""

    request_id: str
    payload: bytes
    deadline_ms: int
    """Milliseconds since 1970."""


def client() -> tuple[str, ...]:
    """The arguments with which Python runs AWS's runtime client. AWS makes its native part for Linux only."""
    return ("-m", "awslambdaric") if find_spec("runtime_client") else (loop.__file__,)


def environment(function: Function, code: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """The variables of a function's process: those that Lambda sets, the function's own, then `extra`.

    `code` is the folder of its handlers: the process runs there.

    The process inherits nothing from the terminal: with its variables a function could run here and fail in Lambda.
    """
    return {
        "PATH": os.defpath,
        "LANG": "en_US.UTF-8",
        "TZ": ":UTC",
        "_HANDLER": function.handler,
        "LAMBDA_TASK_ROOT": str(code),
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_CONFIG_FILE": os.devnull,  # a person's profile is not Lambda's
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_EXECUTION_ENV": f"AWS_Lambda_{function.runtime}",
        "AWS_LAMBDA_FUNCTION_NAME": function.name,
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory_mb),
        "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
        "AWS_LAMBDA_LOG_FORMAT": "JSON",
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{function.name}",
        "AWS_LAMBDA_LOG_STREAM_NAME": "local",
        **function.environment,
        **extra,
    }


class Worker:
    """One process of a function. It handles one invocation at a time, and calls `on_idle` when it can take one."""

    def __init__(
        self,
        function: Function,
        variables: Mapping[str, str],
        log: IO[bytes] | None,
        on_idle: Callable[[Worker], None],
        on_exit: Callable[[Worker], None],
    ) -> None:
        self.function = function
        self._variables = dict(variables)
        self._log = log
        self._on_idle, self._on_exit = on_idle, on_exit
        self._next: asyncio.Queue[Invocation] = asyncio.Queue(1)
        self._started: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        self._outcome: asyncio.Future[Outcome] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._runner: web.AppRunner | None = None
        self._watch: asyncio.Task[None] | None = None
        self.retired = False
        """Whether the pool stops it when it is idle."""

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> Outcome | None:
        """Start the process and wait until it asks for its first invocation. Returns the failure if it does not."""
        app = web.Application(client_max_size=PAYLOAD_BYTES_MAX)
        app.router.add_get(f"{_API}/invocation/next", self._get_next)
        app.router.add_post(f"{_API}/invocation/{{id}}/response", self._post_response)
        app.router.add_post(f"{_API}/invocation/{{id}}/error", self._post_error)
        app.router.add_post(f"{_API}/init/error", self._post_init_error)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=CLEANUP_S_MAX,
            handler_cancellation=True,  # a process that ended waits for no invocation any more
        )
        await self._runner.setup()
        listener = socket.create_server(("127.0.0.1", 0))
        await web.SockSite(self._runner, listener).start()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *client(), self.function.handler,
            cwd=self._variables["LAMBDA_TASK_ROOT"],
            env=self._variables | {"AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{listener.getsockname()[1]}"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            preexec_fn=die_with_parent,
            start_new_session=True,  # Ctrl-C reaches this process, which ends the child
        )  # fmt: skip
        self._watch = asyncio.create_task(self._wait(listener))
        try:
            async with asyncio.timeout(INIT_S_MAX):
                return await self._started
        except TimeoutError:
            self.kill()
            return Outcome.failure("Sandbox.Timedout", f"it was not ready after {INIT_S_MAX:g} s")

    async def invoke(self, request_id: str, payload: bytes) -> Outcome:
        """Run one invocation on the idle process. Kill the process after the function's timeout."""
        timeout_s = self.function.timeout_s
        self._outcome = asyncio.get_running_loop().create_future()
        self._next.put_nowait(Invocation(request_id, payload, int((time.time() + timeout_s) * 1000)))
        try:
            async with asyncio.timeout(timeout_s):
                return await self._outcome
        except TimeoutError:
            self.kill()
            message = f"RequestId: {request_id} Error: Task timed out after {timeout_s:.2f} seconds"
            return Outcome.failure("Sandbox.Timedout", message)
        finally:
            self._outcome = None

    def kill(self) -> None:
        """Kill the process."""
        if self.alive and self._process is not None:
            self._process.kill()

    async def stop(self) -> None:
        """End the process and its Runtime API."""
        self.kill()
        if self._watch is not None:
            await self._watch
        elif self._runner is not None:
            await self._runner.cleanup()

    async def _wait(self, listener: socket.socket) -> None:
        """When the process ends, settle everything that waits for it. `listener`: of its Runtime API."""
        if self._process is None or self._runner is None:
            return
        status = await self._process.wait()
        ended = f"signal: {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        failure = Outcome.failure("Runtime.ExitError", f"Error: Runtime exited with error: {ended}")
        if not self._started.done():
            self._started.set_result(failure)
        self._settle(failure)
        self._on_exit(self)
        await stop_listening(listener)
        await self._runner.cleanup()

    def _settle(self, outcome: Outcome) -> None:
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(outcome)

    async def _get_next(self, request: web.Request) -> web.Response:
        if not self._started.done():
            self._started.set_result(None)
        self._on_idle(self)
        invocation = await self._next.get()
        return web.Response(
            body=invocation.payload,
            content_type="application/json",
            headers={
                "Lambda-Runtime-Aws-Request-Id": invocation.request_id,
                "Lambda-Runtime-Deadline-Ms": str(invocation.deadline_ms),
                "Lambda-Runtime-Invoked-Function-Arn": (
                    f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{self.function.name}"
                ),
            },
        )

    async def _post_response(self, request: web.Request) -> web.Response:
        try:
            self._settle(Outcome(await request.read()))
        except web.HTTPRequestEntityTooLarge:
            message = f"Response payload size exceeded maximum allowed payload size ({PAYLOAD_BYTES_MAX} bytes)."
            self._settle(Outcome.failure("Function.ResponseSizeTooLarge", message))
            raise
        return web.Response(status=202, body=_ACCEPTED)

    async def _post_error(self, request: web.Request) -> web.Response:
        self._settle(Outcome(await request.read(), failed=True))
        return web.Response(status=202, body=_ACCEPTED)

    async def _post_init_error(self, request: web.Request) -> web.Response:
        if not self._started.done():
            self._started.set_result(Outcome(await request.read(), failed=True))
        return web.Response(status=202, body=_ACCEPTED)
