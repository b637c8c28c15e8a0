"""Instruments of a measurement: a meter of requests, a crash between two writes, a stopped clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tally.dynamo.clock import CLOCK

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

Rows = dict[str, dict[str, float]]
"""The figures of a measurement, by row and column. The name of a column includes its unit."""
_READS = frozenset({"GetItem", "Query", "Scan", "BatchGetItem"})


class CrashError(BaseException):
    """A simulated death of the process. This is not an Exception, because no handler may catch it."""


class Meter:
    """Counts the requests of its clients, including retries of the SDK, and the capacity that DynamoDB bills."""

    def __init__(self, *clients: DynamoDBClient) -> None:
        self.reset()
        self._clients = clients
        self._hooks: dict[str, Callable[..., None]] = {
            "provide-client-params.dynamodb": self._ask_for_units,
            "before-send.dynamodb": self._count_request,
            "after-call.dynamodb": self._add_units,
        }
        for client in clients:
            for event, hook in self._hooks.items():
                client.meta.events.register(event, hook)

    def close(self) -> None:
        """Stop metering, because some calls reject the parameter that asks for units."""
        for client in self._clients:
            for event, hook in self._hooks.items():
                client.meta.events.unregister(event, hook)

    def reset(self) -> None:
        """Set all counts to zero."""
        self.requests, self.write_units, self.read_units = 0, 0.0, 0.0
        self.billed: list[tuple[str, float]] = []
        """The operation and the units of each answered request."""

    def _ask_for_units(self, params: dict[str, Any], model: Any, **_: object) -> None:
        if "ReturnConsumedCapacity" in model.input_shape.members:
            params["ReturnConsumedCapacity"] = "TOTAL"

    def _count_request(self, **_: object) -> None:
        self.requests += 1

    def _add_units(self, parsed: dict[str, Any], model: Any, **_: object) -> None:
        consumed = parsed.get("ConsumedCapacity", [])
        units = sum(table["CapacityUnits"] for table in (consumed if isinstance(consumed, list) else [consumed]))
        self.billed.append((model.name, units))
        if model.name in _READS:
            self.read_units += units
        else:
            self.write_units += units


class Crasher:
    """Raises CrashError in a thread after one of its writes, if this thread has called `arm`."""

    def __init__(self, *clients: DynamoDBClient) -> None:
        self._armed = threading.local()
        for client in clients:
            client.meta.events.register("after-call.dynamodb", self._crash_after_write)

    def arm(self, writes: int) -> None:
        """Crash this thread after so many more writes. 0 disarms."""
        self._armed.writes = writes

    def _crash_after_write(self, model: Any, **_: object) -> None:
        writes_left = getattr(self._armed, "writes", 0)
        if writes_left and model.name not in _READS:
            self._armed.writes = writes_left - 1
            if writes_left == 1:
                raise CrashError


class WallClock:
    """A stopped clock: while it is entered, `time.time()` returns `now_s` in the whole process.

    time.monotonic(), by which retries and deadlines go, does not stop, and neither does the engine's clock. While
    the clock is stopped, Tally does not correct its own clock by the engine's answers.
    """

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self._real = time.time

    def __enter__(self) -> WallClock:
        self._real, time.time = time.time, lambda: self.now_s
        vars(CLOCK)["correct_from"] = lambda date, sent_s: None
        return self

    def __exit__(self, *_: object) -> None:
        time.time = self._real
        del vars(CLOCK)["correct_from"]
