"""Serves a prepared stack: functions, HTTP API, Invoke API, streams, schedules. It starts and stops them together."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aiohttp.http_exceptions import HttpProcessingError

from tally.paths import PACKAGE

from .base.engine import Engine
from .base.engine_file import trim_until_cancelled
from .base.errors import LocalError
from .base.options import COUNTERS
from .base.wire import Wire
from .functions.code import CodeVersions
from .functions.metrics import Metrics
from .functions.worker import Zygote
from .functions.workers import LocalFunction, ThrottledError, Workers
from .gateway import console
from .gateway.site import site
from .stack.code import Spawned
from .stack.prepared import PreparedStack, rotate
from .stack.template import Template
from .streams.positions import Positions
from .streams.pump import Pump
from .streams.switches import Switches

ENGINE_LOOK_S = 0.5  # between two looks at the engine
CODE_LOOK_S = 1.0  # between two looks for changed code
_CODE = (".py", ".js", ".html", ".css")  # handlers, and what browsers load
Say = Callable[[str], None]
_server_log = logging.getLogger("aiohttp.server")


async def serve(stack: PreparedStack, spawned: Spawned, say: Say) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. Raises LocalError if the code does not load, or the engine dies."""
    # The server answers bytes that are not HTTP with 400. That is not an error of this program.
    _server_log.addFilter(lambda line: not (line.exc_info and isinstance(line.exc_info[1], HttpProcessingError)))
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores it
            loop.add_signal_handler(number, stopped.set)
    async with contextlib.AsyncExitStack() as entered:
        wire = await entered.enter_async_context(Wire(stack.endpoint, stack.options.streams_endpoint or stack.endpoint))
        code = CodeVersions(stack, wire)
        zygote, stack.template = await code.load_first(spawned)
        workers = Workers(zygote, stack.logs.resolve(), code.restart_zygote)
        entered.push_async_callback(workers.close)
        ports, gathered, switches = dict[str, LocalFunction](), Metrics(stack.options.verbose), Switches()
        _bind(stack, ports, workers, gathered)
        gateway = await entered.enter_async_context(site(stack, ports, gathered, switches, say))
        pump = _make_pump(stack, ports, wire, switches, say)

        def take(zygote: Zygote, template: Template) -> None:
            stack.template = template
            _bind(stack, ports, workers, gathered)
            workers.replace(zygote)
            gateway.serve(template)
            pump.follow([one.scaled_to(stack.options.minute_s) for one in template.mappings])

        waiting = [stopped.wait(), _watch_engine(stack.engine), _watch_code(stack, code, take, say)]
        waiting += [gathered.run(), pump.run()]
        if file := stack.engine and stack.engine.db_path:
            waiting.append(trim_until_cancelled(file, pump.passed))
        for function, every_s in stack.template.schedules:
            waiting.append(_run_on_schedule(every_s * stack.options.minute_s / 60, ports, function))
        tasks = [asyncio.ensure_future(one) for one in waiting]
        data = f"data in {stack.options.data}" if stack.engine else "with its own data"
        say(f"ready on {stack.url} (DynamoDB at {stack.endpoint}, {data}, logs in {stack.logs}; Ctrl-C stops)")
        for line in (*stack.template.warnings, *(stack.engine.warnings if stack.engine else ())):
            say(line)
        print(f"\n{console.commands(stack.template, stack.url)}", flush=True)
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for task in done:
            task.result()


def _bind(stack: PreparedStack, ports: dict[str, LocalFunction], workers: Workers, gathered: Metrics) -> None:
    """Let each function of the stack run in the workers, with a log of its own."""
    functions = stack.template.functions
    for name in functions.keys() - ports.keys():
        rotate(stack.logs / f"{name}.log")
    gathered.follow(stack.logs / f"{name}.log" for name in functions)
    ports.clear()
    ports.update({name: LocalFunction(function, workers) for name, function in functions.items()})


def _make_pump(
    stack: PreparedStack, ports: Mapping[str, LocalFunction], wire: Wire, switches: Switches, say: Say
) -> Pump:
    """What runs the event source mappings."""
    file = stack.engine.db_path if stack.engine else None
    log = file and file.with_name(f"{file.name}-wal")
    positions = Positions(stack.options.data / "streams.json")
    mappings = [one.scaled_to(stack.options.minute_s) for one in stack.template.mappings]
    return Pump(mappings, ports, wire, positions, say, switches, log)


async def _run_on_schedule(every_s: float, ports: Mapping[str, LocalFunction], function: str) -> None:
    """Invoke the function as EventBridge does. Its log has the errors, and the next run tries again."""
    event = json.dumps({"source": "aws.events", "detail-type": "Scheduled Event", "detail": {}}).encode()
    while True:
        await asyncio.sleep(every_s)
        with contextlib.suppress(ThrottledError):
            await ports[function].invoke(event)


async def _watch_engine(engine: Engine | None) -> None:
    """Raise LocalError when the embedded engine dies. An engine of the person's own is theirs to watch."""
    while engine is None or engine.alive():
        await asyncio.sleep(ENGINE_LOOK_S)
    raise LocalError(
        f"the DynamoDB engine died; its file has every acknowledged write: start again ({engine.end_reason()})"
    )


async def _watch_code(
    stack: PreparedStack, code: CodeVersions, take: Callable[[Zygote, Template], None], say: Say
) -> None:
    """Run changed code, and serve what it declares: all of it, or nothing if any of it is wrong."""
    options = stack.options
    sources = [options.counters] if options.packaged else [options.counters.parent, PACKAGE]
    found = file_stamps(sources)
    # If somebody wrote the counters while the stack started, `found` has that already: the first look takes them.
    seen = found if _read(options.counters) == code.counters else {}, code.streams
    while True:
        await asyncio.sleep(CODE_LOOK_S)
        now = file_stamps(sources), await code.find_team_tables()
        if now == seen:
            continue
        own = now[1] != seen[1]
        seen, before = now, (code.counters, stack.template)
        counters = _read(options.counters)
        try:
            zygote, template = await code.load_next(counters)
        except LocalError as error:
            say(f"the counters and routes stay as they were: {error}")
            continue
        take(zygote, template)
        if counters != before[0]:
            say(f"{COUNTERS} changed: the next invocations count by it")
        elif own:
            say(f"your own tables changed: {', '.join(template.team_tables) or 'none of them'} is read now")
        else:
            say("tally/ changed: the next invocations run the new code")
        for line in template.warnings:
            say(line)
        if template.routes != before[1].routes:
            say(f"{len(template.routes)} routes: those of {COUNTERS} as it is now")


def _read(path: Path) -> bytes:
    """What is in it; nothing if it is gone, which is no right file of counters."""
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


def file_stamps(sources: Sequence[Path]) -> dict[str, tuple[int, int]]:
    """A value that differs after any write, creation, removal or replacement of a file of the sources.

    A source is a file, or a folder with its folders.
    """
    found = {}
    for source in sources:
        for folder, _, names in os.walk(source) if source.is_dir() else [(source.parent, (), [source.name])]:
            for path in (os.path.join(folder, name) for name in names if name.endswith(_CODE)):
                with contextlib.suppress(OSError):  # the file is gone
                    stat = os.stat(path)
                    found[path] = stat.st_mtime_ns, stat.st_size  # two writes at one tick of the clock differ in size
    return found
