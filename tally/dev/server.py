"""Serves a prepared stack: functions, HTTP API, Invoke API, streams and schedules, which start and stop together."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from aiohttp.http_exceptions import HttpProcessingError

from tally.paths import PACKAGE

from .base.engine import Engine
from .base.engine_file import trim_until_cancelled
from .base.errors import LocalError
from .base.options import COUNTERS
from .base.wire import Wire
from .base.words import Say
from .functions.code import CodeVersions
from .functions.metrics import Metrics
from .functions.worker import Zygote
from .functions.workers import ThrottledError, Workers
from .gateway import console
from .gateway.site import site
from .stack.code import Spawned
from .stack.prepared import PreparedStack
from .stack.template import Template
from .streams.positions import Positions
from .streams.pump import Pump

ENGINE_CHECK_S = 0.5  # between two checks of the engine
CODE_CHECK_S = 1.0  # between two checks for changed code
_CODE_SUFFIXES = (".py", ".js", ".html", ".css")  # of the functions' code, and of what browsers load
_server_log = logging.getLogger("aiohttp.server")


async def serve(stack: PreparedStack, spawned: Spawned, say: Say) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. Raises LocalError if the code does not load, or the engine dies."""
    # aiohttp answers bytes that are not HTTP with 400, and logs an error, which is not an error of this program.
    _server_log.addFilter(lambda line: not (line.exc_info and isinstance(line.exc_info[1], HttpProcessingError)))
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            loop.add_signal_handler(number, stopped.set)
    async with contextlib.AsyncExitStack() as exits:
        wire = await exits.enter_async_context(Wire(stack.endpoint, stack.options.streams_endpoint or stack.endpoint))
        code = CodeVersions(stack, wire)
        zygote, stack.template = await code.load_first(spawned)
        workers = Workers(zygote, stack.template.functions, stack.logs.resolve(), code.restart_zygote)
        exits.push_async_callback(workers.close)
        metrics, db_path = Metrics(stack.options.verbose), stack.engine.db_path if stack.engine else None
        metrics.follow(stack.logs, stack.template.functions)
        pump = Pump(stack.scaled_mappings, workers, wire, Positions(stack.options.data / "streams.json"), say, db_path)
        gateway = await exits.enter_async_context(site(stack, workers, metrics, pump, say))

        def serve_new_code(zygote: Zygote, template: Template) -> None:
            stack.template = template
            metrics.follow(stack.logs, template.functions)
            workers.replace(zygote, template.functions)
            gateway.serve(template)
            pump.follow(stack.scaled_mappings)

        coroutines = [stopped.wait(), _watch_engine(stack.engine), _watch_code(stack, code, serve_new_code, say)]
        coroutines += [metrics.run(), pump.run()]
        coroutines += [trim_until_cancelled(db_path, pump.passed)] if db_path else []
        for function, every_s in stack.template.schedules:
            coroutines.append(_run_on_schedule(every_s * stack.options.minute_s / 60, workers, function))
        tasks = [asyncio.ensure_future(one) for one in coroutines]
        data = f"data in {stack.options.data}" if stack.engine else "with its own data"
        say(f"ready on {stack.url} (DynamoDB at {stack.endpoint}, {data}, logs in {stack.logs}; Ctrl-C stops)")
        for line in (*stack.template.warnings, *(stack.engine.warnings if stack.engine else ())):
            say(line)
        print(f"\n{console.commands(stack.template, stack.url)}", flush=True)
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for task in done:
            task.result()


async def _run_on_schedule(every_s: float, workers: Workers, function: str) -> None:
    """Invoke the function after every `every_s` seconds, as EventBridge does. A failed run only writes a log."""
    event = json.dumps({"source": "aws.events", "detail-type": "Scheduled Event", "detail": {}}).encode()
    while True:
        await asyncio.sleep(every_s)
        with contextlib.suppress(ThrottledError):
            await workers.invoke(function, event)


async def _watch_engine(engine: Engine | None) -> None:
    """Raise LocalError when the engine dies. Without an engine of this program (None), only wait."""
    while engine is None or engine.alive():
        await asyncio.sleep(ENGINE_CHECK_S)
    text = "the DynamoDB engine died; its file has every acknowledged write: start again"
    raise LocalError(f"{text} ({engine.end_reason()})")


async def _watch_code(
    stack: PreparedStack, code: CodeVersions, serve_new_code: Callable[[Zygote, Template], None], say: Say
) -> None:
    """Run changed code, and serve its declarations. If the changed code does not load, the old code stays."""
    options = stack.options
    sources = [options.counters] if options.is_packaged else [options.counters.parent, PACKAGE]
    stamps, tables = file_stamps(sources), code.streams
    if _read(options.counters) != code.counters:  # a person saved the counters while the stack started
        stamps = {}  # so that the first check loads the counters
    while True:
        await asyncio.sleep(CODE_CHECK_S)
        stamps_before, tables_before = stamps, tables
        stamps, tables = file_stamps(sources), await code.find_team_tables()
        if (stamps, tables) == (stamps_before, tables_before):
            continue
        counters_before, routes_before = code.counters, stack.template.routes
        counters = _read(options.counters)
        try:
            zygote, template = await code.load_next(counters)
        except LocalError as error:
            say(f"the counters and routes stay as they were: {error}")
            continue
        serve_new_code(zygote, template)
        if counters != counters_before:
            say(f"{COUNTERS} changed: the next invocations use its declarations")
        elif tables != tables_before:
            say(f"your own tables changed: {', '.join(template.team_tables) or 'none of them'} is read now")
        else:
            say("tally/ changed: the next invocations run the new code")
        for line in template.warnings:
            say(line)
        if template.routes != routes_before:
            say(f"{len(template.routes)} routes, which {COUNTERS} declares now")


def _read(path: Path) -> bytes:
    """Returns the content of a file; b"" if there is no file. A counters.py without content does not load."""
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


def file_stamps(sources: Sequence[Path]) -> dict[str, tuple[int, int]]:
    """Returns a value that differs after any change of a file. `sources`: files, and folders with all their files."""
    stamps = {}
    for source in sources:
        for folder, _, names in os.walk(source) if source.is_dir() else [(source.parent, (), [source.name])]:
            for path in (os.path.join(folder, name) for name in names if name.endswith(_CODE_SUFFIXES)):
                with contextlib.suppress(OSError):  # the file is gone
                    stat = os.stat(path)
                    stamps[path] = stat.st_mtime_ns, stat.st_size  # two writes may have one time, and differ in size
    return stamps
