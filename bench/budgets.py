"""The cost of a hold, of its changes and its commit, and of a void."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import counters
from tally.counting import changing, hold_items, holds, settling
from tally.dynamo.client import Call
from tally.operations import changes, increments

from .clients import clients_of, fresh_engine
from .instruments import Meter, Rows

HOLD, COMMIT, COMMIT_OTHER = "a hold", "a commit of a hold", "a commit at another amount"
HOLD_CHANGES = {
    "a change of a hold's amount": (20, None), "a change of a hold's time": (None, 90),
    "a change of a hold's amount and time": (10, 120),
}  # fmt: skip
"""For each change of a hold: the new amount, and the new time in seconds; None: unchanged."""
VOID, SPILLED_VOID = "a void", "a void that spills"


def measure(quick: bool) -> Rows:
    """Returns the requests and units of each step."""
    rows: Rows = {}
    with fresh_engine() as endpoint:
        store = clients_of(endpoint).store
        meter = Meter(store.client)
        stock, plays = counters.STOCK, counters.PLAYS

        def call() -> Call:
            return Call(store, "bench", counters=counters.COUNTERS)

        def measure_step(name: str, step: Callable[[], object]) -> None:
            meter.reset()
            step()
            rows[name] = {"requests": meter.requests, "WCU": meter.write_units, "RCU": meter.read_units}

        def hold(key: str) -> str:
            return str(holds.place(call(), stock, "mug", amount=30, ttl_s=60, operation="hold", key=key).body["hold"])

        increments.increment(call(), counter=stock, id="mug", amount=100, idempotency_key="delivery")
        measure_step(HOLD, lambda: hold("cart-1"))
        changed_hold = hold("changed")
        for name, (amount, ttl_s) in HOLD_CHANGES.items():
            options = {"operation": "change_hold", "key": name}
            measure_step(
                name, partial(changing.change_hold, call(), stock, "mug", changed_hold, amount, ttl_s, **options)
            )
        for name, amount in ((COMMIT, None), (COMMIT_OTHER, 20)):
            committed_hold = hold(name)
            measure_step(
                name, partial(settling.settle, call(), stock, "mug", committed_hold, hold_items.COMMITTED, amount)
            )
        increments.increment(call(), counter=stock, id="mug", amount=-1, idempotency_key="sale")
        measure_step(VOID, lambda: changes.void(call(), counter=stock, id="mug", key="sale"))
        increments.increment(call(), counter=plays, id="mug", idempotency_key="play")
        store.breaker.trip("VID#mug")  # opens the circuit breaker of the plays
        measure_step(SPILLED_VOID, lambda: changes.void(call(), counter=plays, id="mug", key="play"))
    return rows
