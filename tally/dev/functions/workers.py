"""Workers run the functions. A zygote, a process that has loaded the code, forks as many workers as the load needs."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from ..base.errors import LocalError
from ..stack.template import Function
from .worker import Outcome, Worker, Zygote

WORKERS = 4  # each needs a few MB of memory, and shares the zygote's memory
WORKERS_MAX = 2 * WORKERS  # how many may run if every worker hangs
GROW_AFTER_S = 0.02  # a caller that has waited this long gets one more worker, up to WORKERS
HANG_S = 1.0  # a caller that has waited this long gets a worker beyond WORKERS
QUEUE_S_MAX = 30.0  # Lambda would start another process at once; here the caller waits as long as API Gateway does


class ThrottledError(Exception):
    """No worker was free in time, as when Lambda answers 429."""


class Workers:
    """Runs the functions. Use it from one event loop. `restart`: makes a new zygote of the same code if the zygote
    dies. `bound`: how many workers may run, unless all hang."""

    def __init__(
        self,
        zygote: Zygote,
        functions: Mapping[str, Function],
        logs: Path,
        restart: Callable[[], Awaitable[Zygote]],
        bound: int = WORKERS,
    ) -> None:
        self._zygote, self.functions, self._logs = zygote, functions, logs
        self._restart, self._bound = restart, bound
        self._idle: list[Worker] = []
        self._waiting: deque[asyncio.Future[Worker | Outcome]] = deque()  # an Outcome: no worker started
        self._starting: asyncio.Task[None] | None = None  # forks one worker; None: no fork is in progress
        self._closed = False

    async def invoke(self, name: str, payload: bytes, request_id: str = "") -> Outcome:
        """Run one invocation with `payload`, a JSON document. Raises ThrottledError."""
        function = self.functions[name]
        log, request_id = self._logs / f"{function.name}.log", request_id or str(uuid.uuid4())
        while True:  # if a worker dies before it begins, another worker gets the invocation
            worker = await self._free_worker(function)
            if isinstance(worker, Outcome):
                return worker
            try:
                if outcome := await worker.invoke(function, log, request_id, payload):
                    return outcome
            finally:
                if worker.alive and worker.zygote is self._zygote:
                    self._give(worker)
                else:
                    worker.zygote.discard(worker)
                    self._grow()  # one more worker may run

    def replace(self, zygote: Zygote, functions: Mapping[str, Function]) -> None:
        """Run new code from now on. An invocation that runs ends with the old code."""
        old_zygote, self._zygote, self.functions = self._zygote, zygote, functions
        old_zygote.retired = True
        for worker in self._idle:
            old_zygote.discard(worker)
        self._idle.clear()
        if not old_zygote.workers:
            old_zygote.close()
        self._grow()

    async def close(self) -> None:
        """End every process at once."""
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        self._zygote.close()
        await asyncio.sleep(0)  # lets the connections close

    async def _free_worker(self, function: Function) -> Worker | Outcome:
        """Returns an idle worker, or the error of a worker that did not start. Raises ThrottledError."""
        while self._idle:
            worker = self._idle.pop()  # the worker used last, which is warm
            if worker.ready:
                return worker
            worker.zygote.discard(worker)
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Worker | Outcome] = loop.create_future()
        self._waiting.append(waiting)
        loop.call_later(GROW_AFTER_S if self._zygote.workers else 0.0, self._grow)
        beyond_bound = loop.call_later(HANG_S, self._grow, WORKERS_MAX)
        try:
            async with asyncio.timeout(QUEUE_S_MAX):
                return await waiting
        except TimeoutError:
            if waiting.done() and not waiting.cancelled():  # a worker came at the last moment
                return waiting.result()
            raise ThrottledError(f"no worker was free for {function.name}") from None
        finally:
            beyond_bound.cancel()

    def _grow(self, bound: int = 0) -> None:
        """Fork a worker if a caller waits and no other fork runs. `bound`: how many may run, if above `_bound`."""
        is_wanted = any(not one.done() for one in self._waiting)
        has_room = len(self._zygote.workers) < max(bound, self._bound)
        if is_wanted and has_room and self._starting is None and not self._closed:
            self._starting = asyncio.create_task(self._grow_by_one())

    async def _grow_by_one(self) -> None:
        zygote = self._zygote
        try:
            if not zygote.alive:  # the zygote's workers have ended, too
                zygote.close()
                new_zygote = await self._restart()
                if self._zygote is not zygote:  # new code has replaced the old zygote
                    new_zygote.close()
                    return
                zygote = self._zygote = new_zygote
            worker = await zygote.fork()
            if self._zygote is zygote:
                self._give(worker)
            else:
                zygote.discard(worker)
        except (OSError, LocalError) as error:
            if self._zygote is zygote:  # otherwise the callers wait for a worker of the new zygote
                self._answer_longest_waiting(Outcome.failure("Runtime.StartError", str(error)))
        finally:
            self._starting = None
            self._grow()

    def _give(self, worker: Worker) -> None:
        """Give the worker to the caller that has waited longest. If no caller waits, keep the worker idle."""
        if not self._answer_longest_waiting(worker):
            self._idle.append(worker)

    def _answer_longest_waiting(self, result: Worker | Outcome) -> bool:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(result)
                return True
        return False
