"""Delivers the deployed tables' streams to the deployed consumers, as the template's mappings say, and runs the sweep.

The emulator's own events have no tumbling window, and so lack the shard that consumers need. The pump of `make dev`
delivers in place of the emulator. The tables, their streams and the functions behind their aliases are deployed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from tally.dev.base.wire import Wire
from tally.dev.functions.worker import Outcome
from tally.dev.functions.workers import Workers
from tally.dev.streams.positions import Positions
from tally.dev.streams.pump import Pump
from tests.emulator.stack import MINUTE_S, Stack
from tests.infra.mappings import mappings
from tests.infra.template import Template


class Aliases:
    """Deployed functions, which the pump invokes as it invokes local functions. `arns`: of the aliases, by function."""

    def __init__(self, client: Any, arns: Mapping[str, str]) -> None:
        self._client, self._arns = client, arns

    async def invoke(self, name: str, payload: bytes) -> Outcome:
        """Invokes a function by its alias."""
        answer = await asyncio.to_thread(self._client.invoke, FunctionName=self._arns[name], Payload=payload)
        return Outcome(await asyncio.to_thread(answer["Payload"].read), failed="FunctionError" in answer)


class StreamDelivery:
    """Delivers streams in the block of `running()`, by the mappings of the stack `id` in `assembly`."""

    def __init__(self, stack: Stack, assembly: Path, id: str = "Tally") -> None:
        resources, declared = stack.resources(), mappings(Template(assembly, id=id)).values()
        self._mappings = [replace(mapping, table=resources[mapping.table][1]) for mapping in declared]
        self.failures: list[str] = []
        """The failed and throttled invocations, as the pump reported them."""
        arns = {name: stack.alias(name) for name in {mapping.function for mapping in self._mappings}}
        self._aliases = Aliases(stack.client("lambda"), arns)
        self._url = stack.emulator.url

    @contextmanager
    def running(self) -> Iterator[StreamDelivery]:
        """Delivers in the background, until the block ends."""
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
            self.failures.append(f"the pump ended: {error!r}")
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    async def _run(self) -> None:
        async with Wire(self._url, self._url) as wire:
            workers = cast("Workers", self._aliases)
            await Pump(self._mappings, workers, wire, Positions(path=None), self.failures.append).run()


@contextmanager
def run_sweeps(stack: Stack, failures: list[str], every_s: float = MINUTE_S / 3) -> Iterator[None]:
    """Runs the sweep, by default three times in MINUTE_S. Appends an error that ends the sweeps to `failures`."""
    alias, stop = stack.alias("sweep"), threading.Event()

    def sweep() -> None:
        try:
            while not stop.wait(every_s):
                stack.invoke(alias, {})
        except Exception as error:
            failures.append(f"the sweep ended: {error!r}")

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
