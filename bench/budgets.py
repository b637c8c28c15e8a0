"""The cost of a hold, of its commit (holds.py), and of a void (voids.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import counters
from tally.counting import changing, hold_items, holds, settling
from tally.dynamo.client import Call
from tally.operations import changes, increments

from .clients import clients_of, fresh_engine
from .instruments import Meter

Rows = dict[str, dict[str, float]]
HOLD, COMMIT, SETTLE = "a hold", "its commit", "its commit at another amount"
CHANGES = {"its change of the amount": (20, None), "of the time": (None, 90), "of both": (10, 120)}
VOID, VOID_SOON = "a void", "a void of what the rollup adds"


def measure(quick: bool) -> Rows:
    """Returns requests and units of each."""
    rows: Rows = {}
    with fresh_engine() as endpoint:
        store = clients_of(endpoint).store
        meter = Meter(store.client)
        stock, plays = counters.STOCK, counters.PLAYS

        def call() -> Call:
            return Call(store, "bench", counters=counters.COUNTERS)

        def row(name: str, does: Callable[[], object]) -> None:
            meter.reset()
            does()
            rows[name] = {"requests": meter.requests, "WCU": meter.write_units, "RCU": meter.read_units}

        def hold(key: str) -> str:
            return str(holds.place(call(), stock, "mug", 30, 60, operation="hold", key=key).body["hold"])

        increments.increment(call(), counter=stock, id="mug", amount=100, idempotency_key="in")
        row(HOLD, lambda: hold("cart-1"))
        changed = hold("changed")
        for name, (amount, ttl_s) in CHANGES.items():
            how = {"operation": "change_hold", "key": name}
            row(name, partial(changing.change_hold, call(), stock, "mug", changed, amount, ttl_s, **how))
        for name, amount in ((COMMIT, None), (SETTLE, 20)):
            taken = hold(name)
            row(name, partial(settling.settle, call(), stock, "mug", taken, hold_items.COMMITTED, amount))
        increments.increment(call(), counter=stock, id="mug", amount=-1, idempotency_key="out")
        row(VOID, lambda: changes.void(call(), counter=stock, id="mug", key="out"))
        increments.increment(call(), counter=plays, id="mug", idempotency_key="play")
        store.breaker.trip("VID#mug")
        row(VOID_SOON, lambda: changes.void(call(), counter=plays, id="mug", key="play"))
    return rows
