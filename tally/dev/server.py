"""Serves a prepared stack: functions, HTTP API, Invoke API, streams, schedules. It starts and stops them together."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from aiohttp.http_exceptions import HttpProcessingError

from .base.engine import Engine
from .base.engine_file import trimming
from .base.errors import LocalError
from .base.options import COUNTERS
from .base.wire import Wire
from .functions import runtime
from .functions.metrics import Metrics
from .functions.pool import Pool, ThrottledError
from .gateway import console
from .gateway.gateway import Gateway
from .gateway.site import site
from .stack import code
from .stack.prepared import Stack, open_log, template_of
from .streams.positions import Positions
from .streams.pump import Pump
from .streams.switches import Switches

ENGINE_LOOK_S = 0.5  # between two looks at the engine
CODE_LOOK_S = 1.0  # between two looks for changed code
_CODE = {".py", ".js", ".html", ".css"}  # handlers, and what browsers load
Say = Callable[[str], None]
_server_log = logging.getLogger("aiohttp.server")


async def serve(stack: Stack, say: Say) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP; a first call starts its function. Raises LocalError if the engine dies."""
    # The server answers bytes that are not HTTP with 400. That is not an error of this program.
    _server_log.addFilter(lambda line: not (line.exc_info and isinstance(line.exc_info[1], HttpProcessingError)))
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores it
            loop.add_signal_handler(number, stopped.set)
    async with contextlib.AsyncExitStack() as entered:
        pools = await entered.enter_async_context(_pools(stack))
        gathered = Metrics([stack.logs / f"{name}.log" for name in pools], stack.options.verbose)
        switches = Switches()
        gateway = await entered.enter_async_context(site(stack, pools, gathered, switches, say))
        waiting = [stopped.wait(), _watch_engine(stack.engine), _watch_code(stack, pools, gateway, say)]
        waiting += [gathered.run(), _pump(stack, pools, switches, say)]
        for schedule in stack.template.schedules:
            every_s = schedule.every_s * stack.options.minute_s / 60
            waiting.append(_run_on_schedule(every_s, pools[schedule.function]))
        tasks = [asyncio.ensure_future(one) for one in waiting]
        data = f"data in {stack.options.data}" if stack.engine else "with its own data"
        say(f"ready on {stack.url} (DynamoDB at {stack.endpoint}, {data}, logs in {stack.logs}; Ctrl-C stops)")
        for line in stack.template.warnings:
            say(line)
        print(f"\n{console.commands(stack.template, stack.url)}", flush=True)
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for task in done:
            task.result()


@contextlib.asynccontextmanager
async def _pools(stack: Stack) -> AsyncIterator[dict[str, Pool]]:
    pools: dict[str, Pool] = {}
    with contextlib.ExitStack() as logs:
        for name, function in stack.template.functions.items():
            log = logs.enter_context(open_log(stack.logs / f"{name}.log"))
            pools[name] = Pool(function, runtime.environment(function, stack.code, stack.variables), log)
        try:
            yield pools
        finally:
            await asyncio.gather(*(pool.close() for pool in pools.values()))


async def _pump(stack: Stack, pools: Mapping[str, Pool], switches: Switches, say: Say) -> None:
    """Run the event source mappings and keep the stream short."""
    file = stack.engine.db_path if stack.engine else None
    log = file and file.with_name(f"{file.name}-wal")
    positions = Positions(stack.options.data / "streams.json")
    async with Wire(stack.endpoint, stack.options.streams_endpoint or stack.endpoint) as wire:
        pump = Pump(stack.template.mappings, pools, wire, positions, say, switches, log)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pump.run())
            if file is not None:
                tasks.create_task(trimming(file, pump.passed))


async def _run_on_schedule(every_s: float, pool: Pool) -> None:
    """Invoke the function as EventBridge does. Its log has the errors, and the next run tries again."""
    event = json.dumps({"source": "aws.events", "detail-type": "Scheduled Event", "detail": {}}).encode()
    while True:
        await asyncio.sleep(every_s)
        with contextlib.suppress(ThrottledError):
            await pool.invoke(event)


async def _watch_engine(engine: Engine | None) -> None:
    """Raise LocalError when the embedded engine dies. An engine of the person's own is theirs to watch."""
    while engine is None or engine.alive():
        await asyncio.sleep(ENGINE_LOOK_S)
    raise LocalError(f"the DynamoDB engine died; its file has every acknowledged write: start again ({engine.ended()})")


async def _watch_code(stack: Stack, pools: Mapping[str, Pool], gateway: Gateway, say: Say) -> None:
    """Reload changed code. Functions read it where it is, but for the counters: these have to be right first."""
    sources = stack.options.counters if stack.options.packaged else stack.options.counters.parent
    seen = _changed_at(sources)
    while True:
        await asyncio.sleep(CODE_LOOK_S)
        now = _changed_at(sources)
        if now == seen:
            continue
        seen = now
        counters = _read(stack.options.counters)
        if counters == _read(stack.code / COUNTERS):
            _retire(pools)
            say("tally/ changed: the next invocations run the new code")
        await _take(counters, stack, pools, gateway, say)


async def _take(counters: bytes, stack: Stack, pools: Mapping[str, Pool], gateway: Gateway, say: Say) -> None:
    """Count by what the file declares now, and serve its routes: all of it, or nothing if any of it is wrong."""
    try:
        template = await asyncio.to_thread(template_of, stack.options)
        await asyncio.to_thread(stack.check_counters)
    except LocalError as error:
        say(f"the counters and routes stay as they were: {error}")
        return
    if new := sorted({route.function for route in template.routes} - pools.keys()):
        say(f"the counters and routes stay as they were: start again for the new function {new[0]}")
        return
    if code.take(stack.code, counters):
        _retire(pools)
        say(f"{COUNTERS} changed: the next invocations count by it")
    for line in template.warnings:
        say(line)
    if template.routes != gateway.template.routes:
        gateway.serve(template)
        say(f"{len(template.routes)} routes: those of {COUNTERS} as it is now")


def _retire(pools: Mapping[str, Pool]) -> None:
    for pool in pools.values():
        pool.retire()


def _read(path: Path) -> bytes:
    """What is in it; nothing if it is gone, which is no right file of counters."""
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


def _changed_at(sources: Path) -> tuple[int, int]:
    """A value that differs after any write, creation or removal of a file of the sources: a folder, or one file."""
    times = []
    for path in sources.rglob("*.*") if sources.is_dir() else (sources,):
        if path.suffix not in _CODE:
            continue
        with contextlib.suppress(OSError):  # removed meanwhile
            times.append(path.stat().st_mtime_ns)
    return len(times), max(times, default=0)
