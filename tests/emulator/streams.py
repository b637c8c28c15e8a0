"""Delivers the deployed tables' streams to the deployed consumers, as the template's mappings say; runs the sweep.

The emulator delivers without tumbling windows, so without the shard that consumers need. `make dev`'s pump takes its
place: the tables, their streams and the functions behind their aliases are the deployed ones.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from tally.dev.base.wire import Wire
from tally.dev.functions.worker import Outcome
from tally.dev.functions.workers import LocalFunction
from tally.dev.streams.positions import Positions
from tally.dev.streams.pump import Pump
from tests.emulator.stack import MINUTE_S, Stack
from tests.infra.mappings import mappings
from tests.infra.template import Template


class Alias:
    """A deployed function, invoked as the pump invokes a local one."""

    def __init__(self, client: Any, arn: str) -> None:
        self._client, self._arn = client, arn

    async def invoke(self, payload: bytes) -> Outcome:
        """One invocation through the alias."""
        return await asyncio.to_thread(self._invoke, payload)

    def _invoke(self, payload: bytes) -> Outcome:
        answer = self._client.invoke(FunctionName=self._arn, Payload=payload)
        return Outcome(answer["Payload"].read(), failed="FunctionError" in answer)


class Streams:
    """The mappings of a deployed stack, at work while `running()`."""

    def __init__(self, stack: Stack, assembly: Path, id: str = "Tally") -> None:
        resources, made = stack.resources(), mappings(Template(assembly, id=id)).values()
        self._mappings = [replace(one, table=resources[one.table][1]) for one in made]
        self.said: list[str] = []
        """What the pump had to report: a failed or throttled invocation."""
        client = stack.client("lambda")
        self._aliases = {name: Alias(client, stack.alias(name)) for name in {one.function for one in self._mappings}}
        self._url = stack.emulator.url

    @contextmanager
    def running(self) -> Iterator[Streams]:
        """Deliver in the background."""
        loop = asyncio.new_event_loop()
        task = loop.create_task(self._run())
        thread = threading.Thread(target=self._until_cancelled, args=(loop, task))
        thread.start()
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(task.cancel)
            thread.join()

    def _until_cancelled(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self.said.append(f"the pump ended: {error!r}")
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    async def _run(self) -> None:
        async with Wire(self._url, self._url) as wire:
            ports = cast("dict[str, LocalFunction]", self._aliases)
            pump = Pump(self._mappings, ports, wire, Positions(None), self.said.append)
            await pump.run()


@contextmanager
def run_sweeps(stack: Stack, said: list[str], every_s: float = MINUTE_S / 3) -> Iterator[None]:
    """The sweep runs as its schedule runs it, by default at least once a (short) minute. What ends it is said."""
    alias, stop = stack.alias("sweep"), threading.Event()

    def sweep() -> None:
        try:
            while not stop.wait(every_s):
                stack.invoke(alias, {})
        except Exception as error:
            said.append(f"the sweep ended: {error!r}")

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
