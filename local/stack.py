"""The stack on one machine: engine, functions, HTTP API and Invoke API, started and stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from local import console, invoke, openapi_page, runtime, tables, tokens
from local.engine import Engine
from local.errors import LocalError
from local.gateway import BODY_BYTES_MAX, HEADER_BYTES_MAX, Gateway
from local.options import Options
from local.pool import Pool, ThrottledError
from local.template import Schedule, Template, synthesized

ENGINE_LOOK_S = 0.5  # how often the engine is looked after
CODE_LOOK_S = 1.0  # how often lambdas/ is looked at for changes
STOP_S_MAX = 3.0  # for requests under way when it is stopped
LOG_BYTES_MAX = 20 * 1024 * 1024  # a larger log is put aside at the next start; one old one is kept
Say = Callable[[str], None]
_server_log = logging.getLogger("aiohttp.server")


@dataclass(frozen=True)
class Stack:
    """What runs: the template it was made from, and where it is found."""

    template: Template
    options: Options
    listener: socket.socket
    endpoint: str
    engine: Engine | None

    @property
    def url(self) -> str:
        """Of the HTTP API."""
        return f"http://localhost:{self.listener.getsockname()[1]}"

    @property
    def logs(self) -> Path:
        """The folder of the log files."""
        return self.options.data / "logs"


@contextlib.contextmanager
def prepared(options: Options) -> Iterator[Stack]:
    """Take port and data folder, synthesize, start the engine, create the tables. Raises LocalError."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(_listen(options.port)))
        stack.enter_context(_locked(options.data))
        template = synthesized()
        engine = None if options.endpoint else stack.enter_context(Engine(options.data / "engine.db"))
        endpoint = engine.endpoint if engine else str(options.endpoint)
        tables.create(template.tables.values(), endpoint)
        if engine and engine.db_path:
            tables.index_stream_records(engine.db_path)
        yield Stack(template, options, listener, endpoint, engine)


async def serve(stack: Stack, say: Say) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. Raises LocalError if the engine dies."""
    # Bytes that are no HTTP are answered 400, and are not this program's error.
    _server_log.addFilter(lambda line: not (line.exc_info and isinstance(line.exc_info[1], HttpProcessingError)))
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup has it ignored
            loop.add_signal_handler(number, stopped.set)
    async with _pools(stack, say) as pools, _site(stack, pools, say):
        waiting = [stopped.wait(), _watch_engine(stack.engine), _warm_and_watch_code(stack, pools, say)]
        waiting += [_run_on_schedule(schedule, pools[schedule.function]) for schedule in stack.template.schedules]
        tasks = [asyncio.ensure_future(one) for one in waiting]
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for task in done:
            task.result()


@contextlib.asynccontextmanager
async def _pools(stack: Stack, say: Say) -> AsyncIterator[dict[str, Pool]]:
    extra = {"AWS_ENDPOINT_URL_DYNAMODB": stack.endpoint, "TALLY_PAGE_HOSTS": stack.options.page_hosts}
    pools: dict[str, Pool] = {}
    with contextlib.ExitStack() as logs:
        for name, function in stack.template.functions.items():
            log = None if stack.options.verbose else logs.enter_context(_log(stack.logs / f"{name}.log"))
            pools[name] = Pool(function, runtime.environment(function, extra), log)
        try:
            yield pools
        finally:
            await asyncio.gather(*(pool.close() for pool in pools.values()))


@contextlib.asynccontextmanager
async def _site(stack: Stack, pools: dict[str, Pool], say: Say) -> AsyncIterator[None]:
    """The HTTP server with the API, Lambda's Invoke API, and what is local only, under /dev."""
    audience = {
        entry: None for route in stack.template.routes if route.authorizer for entry in route.authorizer.audience
    }
    issuer = tokens.Issuer(stack.url, tuple(audience), stack.options.data / "issuer.pem")
    invoker = invoke.Invoke(pools, say)
    with _log(stack.logs / "access.log") as access_log:
        gateway = Gateway(stack.template, pools, issuer, access_log, say)
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_post(invoke.PATH, invoker.handle)
        _add_dev_routes(app, stack, issuer)
        app.router.add_route("*", "/{path:(?s:.*)}", gateway.handle)  # any path: also one with a line break in it
        runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=STOP_S_MAX,
            max_line_size=2 * HEADER_BYTES_MAX,  # so that it is the gateway that refuses
            max_field_size=2 * HEADER_BYTES_MAX,
        )
        await runner.setup()
        try:
            await web.SockSite(runner, stack.listener).start()
            yield
        finally:
            await runner.cleanup()
            await invoker.close()


def _add_dev_routes(app: web.Application, stack: Stack, issuer: tokens.Issuer) -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text=console.page(stack.template, stack.url), content_type="text/html")

    async def configuration(_: web.Request) -> web.Response:
        return web.json_response(issuer.configuration())

    async def jwks(_: web.Request) -> web.Response:
        return web.json_response(issuer.jwks)

    async def token(request: web.Request) -> web.Response:
        try:
            return web.json_response(issuer.token(tokens.token_request(await request.read())))
        except tokens.TokenRequestError as error:
            return web.json_response({"message": str(error)}, status=400)

    async def api(_: web.Request) -> web.Response:
        return web.Response(text=openapi_page.page(), content_type="text/html")

    app.router.add_get("/dev", page)
    app.router.add_get(openapi_page.PATH, api)
    app.router.add_get("/.well-known/openid-configuration", configuration)
    app.router.add_get("/dev/jwks.json", jwks)
    app.router.add_post("/dev/token", token)


async def _run_on_schedule(schedule: Schedule, pool: Pool) -> None:
    """Invoke the function as EventBridge does. What goes wrong is in its log, and is left to the next run."""
    event = json.dumps({"source": "aws.events", "detail-type": "Scheduled Event", "detail": {}}).encode()
    while True:
        await asyncio.sleep(schedule.every_s)
        with contextlib.suppress(ThrottledError):
            await pool.invoke(event)


async def _watch_engine(engine: Engine | None) -> None:
    """Until the engine dies: then LocalError. An engine that was given is its owner's to look after."""
    while engine is None or engine.alive():
        await asyncio.sleep(ENGINE_LOOK_S)
    raise LocalError("the DynamoDB engine died; what was acknowledged is in its file: start again")


async def _warm_and_watch_code(stack: Stack, pools: dict[str, Pool], say: Say) -> None:
    """Start a process of each function, say that all is ready; then let new code take effect without a restart."""
    seen = _code_changed_at()
    started = await asyncio.gather(*(pool.warm() for pool in pools.values()))
    for name, failure in zip(pools, started, strict=True):
        if failure is not None:
            say(f"{name} does not start: {failure.reason} (see {stack.logs / name}.log)")
    data = f"data in {stack.options.data}" if stack.engine else "its data is there"
    say(f"ready on {stack.url} (DynamoDB at {stack.endpoint}, {data}, logs in {stack.logs}; Ctrl-C stops)")
    print(f"\n{console.commands(stack.url)}", flush=True)
    while True:
        await asyncio.sleep(CODE_LOOK_S)
        now = _code_changed_at()
        if now != seen:
            seen = now
            for pool in pools.values():
                pool.retire()
            say("lambdas/ changed: the next invocations run the new code")


def _code_changed_at() -> tuple[int, int]:
    """Changes when a file of lambdas/ is written, made or removed."""
    times = []
    for path in runtime.TASK_ROOT.rglob("*.[pj][ys]"):  # handlers, and the script that one of them serves
        with contextlib.suppress(OSError):  # removed in between
            times.append(path.stat().st_mtime_ns)
    return len(times), max(times, default=0)


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise LocalError(f"port {port} cannot be used ({error.strerror}): set PORT to another one") from None
    return listener


@contextlib.contextmanager
def _locked(data: Path) -> Iterator[None]:
    """Hold the data folder: two engines on one file would be one too many."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = (data / "lock").open("a+")
    except OSError as error:
        raise LocalError(f"the data folder {data} cannot be written to: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise LocalError(
                f"another `make dev` (process {lock.read().strip() or '?'}) has the data folder {data}:"
                " stop it, or set TALLY_DATA to another folder"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _log(path: Path) -> IO[Any]:
    """A log to append to: text, a line at a time. A large one is put aside first. Raises LocalError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
            path.replace(path.with_suffix(".log.old"))
        return path.open("a", buffering=1)
    except OSError as error:
        raise LocalError(f"{path} cannot be written to: {error.strerror}") from None
