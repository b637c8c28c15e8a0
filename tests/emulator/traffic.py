"""Runs callers that count until a test stops them. Then the numbers must equal the accepted changes."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.emulator.stack import Answer, Stack
from tests.patience import wait_for

PAUSE_S = 0.02  # between two requests of a caller, because the emulator needs the processors, too
PAGE = "https://example.com/busy"
PERSON = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
Request = Callable[[str], Answer]
"""Sends one change with an idempotency key."""


class Traffic:
    """Callers of plays, of visits, and of a counter that a deploy adds. They repeat a change until it is accepted."""

    def __init__(self, stack: Stack, token: str, added_counter: str) -> None:
        self.accepted: Counter[str] = Counter()
        """The accepted changes of each counter."""
        self.failures: Counter[str] = Counter()
        """How many callers got no answer, or an answer that no deploy explains; by error, or by counter and status."""
        self._added_counter = added_counter
        self._requests: dict[str, Request] = {
            "plays": lambda key: stack.call("POST", "/videos/busy/plays", Idempotency_Key=key),
            "visits": lambda key: stack.call("POST", "/visits", {"url": PAGE, "key": key}, User_Agent=PERSON),
            added_counter: lambda key: stack.call(
                "POST", f"/counters/{added_counter}/busy/increments", {"amount": 1}, token, Idempotency_Key=key
            ),
        }
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    @contextmanager
    def running(self) -> Iterator[Traffic]:
        """Runs a caller for each counter, until the block ends."""
        self._threads = [threading.Thread(target=self._repeat, args=pair) for pair in self._requests.items()]
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self.stop()

    def stop(self) -> None:
        """Stops every caller."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, counter: str, more: int) -> None:
        """Waits until `more` further changes of the counter are accepted."""
        target = self.accepted[counter] + more

        def is_reached() -> bool:
            assert not self.failures, self.failures
            return self.accepted[counter] >= target

        wait_for(is_reached)

    def _repeat(self, counter: str, request: Request) -> None:
        key = str(uuid.uuid4())
        while not self._stop.is_set():
            try:
                answer = request(key)
                status = answer.status
            except Exception as error:
                self.failures[repr(error)] += 1
                status = 0
            if status in (200, 202):
                self.accepted[counter] += 1
                key = str(uuid.uuid4())
            elif not (counter == self._added_counter and status == 404):  # the counter is not deployed
                self.failures[f"{counter} {status}"] += 1
            self._stop.wait(PAUSE_S)
