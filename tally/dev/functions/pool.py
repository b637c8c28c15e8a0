"""The processes of one function: as many as the load needs, up to a bound. Each runs one invocation at a time."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections import deque
from collections.abc import Mapping
from typing import IO

from ..stack.template import Function
from .runtime import Outcome, Worker

WORKERS_MAX = min(8, max(4, 2 * (os.cpu_count() or 1)))  # each process takes about 60 MB
GROW_AFTER_S = 0.02  # after its answer, a process takes a moment to ask for the next invocation
QUEUE_S_MAX = 30.0  # Lambda would start another process at once; here the caller waits as long as API Gateway does


class ThrottledError(Exception):
    """No process was free in time: Lambda's 429."""


class Pool:
    """The processes of one function. To be used from one event loop."""

    def __init__(
        self,
        function: Function,
        variables: Mapping[str, str],
        log: IO[bytes] | None,
        workers_max: int = WORKERS_MAX,
    ) -> None:
        self.function = function
        self._variables = dict(variables)
        self._log = log
        self._workers_max = workers_max
        self._workers: set[Worker] = set()
        self._idle: list[Worker] = []
        self._waiting: deque[asyncio.Future[Worker | Outcome]] = deque()
        self._starting: asyncio.Task[None] | None = None
        self._stopping: set[asyncio.Task[None]] = set()
        self._closed = False

    async def invoke(self, payload: bytes, request_id: str | None = None) -> Outcome:
        """Run one invocation with `payload`, a JSON document. Raises ThrottledError."""
        found = await self._worker()
        if isinstance(found, Outcome):
            return found
        return await found.invoke(request_id or str(uuid.uuid4()), payload)

    def retire(self) -> None:
        """Stop every process once it is idle. The next invocations start new ones, with the present code."""
        for worker in self._workers:
            worker.retired = True
        for worker in self._idle:
            self._stop(worker)
        self._idle.clear()

    async def close(self) -> None:
        """End every process at once."""
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in tuple(self._workers)), *self._stopping)

    async def _worker(self) -> Worker | Outcome:
        """An idle process, or why there is none. Raises ThrottledError."""
        while self._idle:
            worker = self._idle.pop()  # the one used last: it is warm
            if worker.alive:
                return worker
        waiting: asyncio.Future[Worker | Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        patience_s = GROW_AFTER_S if self._workers else 0.0
        asyncio.get_running_loop().call_later(patience_s, self._grow, waiting)
        try:
            async with asyncio.timeout(QUEUE_S_MAX):
                return await waiting
        except TimeoutError:
            if waiting.done() and not waiting.cancelled():  # a process came at the last moment
                return waiting.result()
            raise ThrottledError(f"no process of {self.function.name} was free") from None

    def _grow(self, waiting: asyncio.Future[Worker | Outcome] | None = None) -> None:
        """Start a process for `waiting`, or for any waiting caller.

        Only one starts at a time: a start takes processor time from the working ones.
        """
        wanted = any(not one.done() for one in ([waiting] if waiting else self._waiting))
        busy = self._starting is not None or len(self._workers) >= self._workers_max
        if wanted and not busy and not self._closed:
            self._starting = asyncio.create_task(self._grow_by_one())

    async def _grow_by_one(self) -> None:
        failure = await self._start()
        self._starting = None
        if failure is not None:
            self._give(failure)
        self._grow()

    async def _start(self) -> Outcome | None:
        worker = Worker(self.function, self._variables, self._log, self._on_idle, self._on_exit)
        self._workers.add(worker)
        try:
            failure = await worker.start()
        except OSError as error:  # no more processes, files or memory
            failure = Outcome.failure("Runtime.StartError", str(error))
        if failure is not None:
            self._workers.discard(worker)
            await worker.stop()
        return failure

    def _give(self, found: Worker | Outcome) -> bool:
        """Give it to the caller who has waited longest. Returns False if nobody waits."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(found)
                return True
        return False

    def _on_idle(self, worker: Worker) -> None:
        if worker.retired:
            self._stop(worker)
        elif not self._give(worker):
            self._idle.append(worker)

    def _on_exit(self, worker: Worker) -> None:
        self._workers.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        self._grow()

    def _stop(self, worker: Worker) -> None:
        task = asyncio.create_task(worker.stop())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
