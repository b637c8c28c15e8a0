"""Processes that die or sleep at a write. The client of the process raises or waits before or after its n-th write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

WRITES = frozenset({"transact_write_items", "update_item", "put_item", "delete_item"})


class Crash(BaseException):
    """The process dies. No code of Tally catches this."""


class WatchedClient:
    """A client that notes its calls, and calls `before(number, name, parameters)` and `after(number)` around each call.
    `operations`: the operations to watch instead of the writes. `number`: how many watched calls came before."""

    def __init__(self, client: Any, operations: frozenset[str] = WRITES) -> None:
        self._client, self._operations = client, operations
        self.calls: list[tuple[str, dict[str, Any]]] = []
        """Operation and parameters of each call."""
        self.before: Callable[[int, str, dict[str, Any]], None] = lambda number, name, parameters: None
        self.after: Callable[[int], None] = lambda number: None

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._client, name)
        if name not in self._operations:
            return real

        def call(**parameters: Any) -> Any:
            number = len(self.calls)
            self.calls.append((name, parameters))
            self.before(number, name, parameters)
            answer = real(**parameters)
            self.after(number)
            return answer

        return call


def client_that_dies(client: Any, write_number: int, *, committed: bool) -> WatchedClient:
    """Returns a client whose process dies at a write. The first write is 0. `committed`: DynamoDB has the write."""
    watched = WatchedClient(client)

    def die(number: int, *_: object) -> None:
        if number == write_number:
            raise Crash

    if committed:
        watched.after = die
    else:
        watched.before = die
    return watched


def interrupted_client(client: Any, write_number: int, act: Callable[[], object]) -> WatchedClient:
    """Returns a client that calls `act` just before a write, as another process would act. The first write is 0."""
    watched = WatchedClient(client)

    def before(number: int, *_: object) -> None:
        if number == write_number:
            act()

    watched.before = before
    return watched


class Sleeper:
    """A process that sleeps before a write until `wake`. The sleeper and its caller never run at once.
    `write_number`: the write; the first write is 0."""

    def __init__(self, client: Any, write_number: int, run: Callable[[Any], object]) -> None:
        """Start the process, and wait until it sleeps or ends. `run`: the work, with the client as argument."""
        self._woken, self._stopped = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        watched = WatchedClient(client)

        def sleep(number: int, *_: object) -> None:
            if number == write_number:
                self._stopped.set()
                self._woken.wait()

        def process() -> None:
            try:
                run(watched)
            except BaseException as error:
                self._error = error
            self._stopped.set()

        watched.before = sleep
        self._thread = threading.Thread(target=process, daemon=True)
        self._thread.start()
        self._stopped.wait()

    def wake(self) -> None:
        """Let the process run to its end. Raises the exception of the process."""
        self._woken.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
