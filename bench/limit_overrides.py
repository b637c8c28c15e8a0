"""Measures the cost of an override of a limit: the write of the override, changes, and reads.

DynamoDB bills a write whose condition failed. The local engine does not, so the figures lack such writes.
"""

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
from .instruments import Meter, Rows

PUT_OVERRIDE, READ_OVERRIDE, READ_NUMBER = "a new override", "a read of the override", "a read of the number"
FIRST_CHANGE, LATER_CHANGE = "the first change", "a later change"
WITHOUT_PERIODS, WITH_PERIODS = "without periods", "with periods"
LIMITS_RCU = {WITHOUT_PERIODS: 1, WITH_PERIODS: 2}
"""The read units of a tally's limits, which a process without cached limits reads before a change."""
COUNTERS = {
    WITHOUT_PERIODS: replace(counters.CALLS, period=None, keep_periods=None),
    WITH_PERIODS: replace(counters.CALLS, period="year", keep_periods=None),
}


def _increment(call: Call, counter: Counter) -> None:
    count(call, Increment(counter, periods.tally_id(counter, "a", time.time()), 1, "increment", call.nonce, {}))


_STEPS: dict[str, Callable[[Call, Counter], object]] = {
    PUT_OVERRIDE: lambda call, counter: overrides.put_override(
        call, counter, "a", limit=10_000, operation="put_limit", key="override"
    ),
    FIRST_CHANGE: _increment,
    LATER_CHANGE: _increment,
    READ_OVERRIDE: lambda call, counter: overrides.read_override(call, counter, "a"),
    READ_NUMBER: lambda call, counter: reads.get_counter(call, counter=counter, id="a"),
}


def measure(quick: bool) -> Rows:
    """Returns the requests and units of each step. The process has no cached limits before its first change."""
    rows: Rows = {}
    for name, counter in COUNTERS.items():
        with fresh_engine() as endpoint:
            store = clients_of(endpoint).store
            meter = Meter(store.client)
            for step_name, step in _STEPS.items():
                meter.reset()
                step(Call(store), counter)
                units = {"WCU": meter.write_units, "RCU": meter.read_units}
                rows[f"{name}: {step_name}"] = {"requests": meter.requests, **units}
    return rows
