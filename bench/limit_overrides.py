"""The cost of an override. Unlike DynamoDB, the engine does not bill a rejected write."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import counters
from tally.counter import Counter
from tally.counting import overrides, periods
from tally.counting.increments import Increment, count
from tally.dynamo.client import Call
from tally.operations import reads

from .clients import clients_of, fresh_engine
from .consumers import Rows
from .instruments import Meter

FIRST, CHANGE, GIVEN, LIMIT, NUMBER = "the first change", "a change", "a new limit", "its read", "the number's read"
CEILING, PERIOD = "a ceiling", "a period"
LOOKS = {CEILING: 1, PERIOD: 2}
"""Read units of a look at the limits of a number."""
COUNTERS = {
    CEILING: replace(counters.CALLS, period=None, keep_periods=None),
    PERIOD: replace(counters.CALLS, period="year", keep_periods=None),
}


def _move(call: Call, counter: Counter) -> None:
    count(call, Increment(counter, periods.tally_id(counter, "a", time.time()), 1, "increment", call.nonce, {}))


_STEPS: dict[str, Callable[[Call, Counter], object]] = {
    GIVEN: lambda call, counter: overrides.put_override(call, counter, "a", 10_000, operation="put_limit", key="plan"),
    FIRST: _move,
    CHANGE: _move,
    LIMIT: lambda call, counter: overrides.read_override(call, counter, "a"),
    NUMBER: lambda call, counter: reads.get_counter(call, counter=counter, id="a"),
}


def measure(quick: bool) -> Rows:
    """Returns requests and units of changes of a process without cached limits, of a new override, and of reads."""
    rows: Rows = {}
    for name, counter in COUNTERS.items():
        with fresh_engine() as endpoint:
            store = clients_of(endpoint).store
            meter = Meter(store.client)
            for which in (GIVEN, FIRST, CHANGE, LIMIT, NUMBER):
                meter.reset()
                _STEPS[which](Call(store), counter)
                units = {"WCU": meter.write_units, "RCU": meter.read_units}
                rows[f"{name}: {which}"] = {"requests": meter.requests, **units}
    return rows
