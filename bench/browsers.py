"""The cost of likes without sign-in, with keys as the JavaScript client sends them (operations/children.py)."""

from __future__ import annotations

from collections.abc import Callable

import counters
from tally.dynamo.client import Call
from tally.operations import children

from .clients import clients_of, fresh_engine
from .instruments import Meter, Rows

LIKE, UNLIKE, READ_LIKE, TAKE_OVER = (
    "a like",
    "a removal of the like",
    "a read of the like",
    "a user takes over the browser's like",  # the user likes as a user, and the like of the browser is removed
)
SECRET = "known-to-one-browser-only"  # a browser proves with its secret that a like is its own


def measure(quick: bool) -> Rows:
    """Returns the requests and units of each step."""
    rows: Rows = {}
    with fresh_engine() as endpoint:
        store = clients_of(endpoint).store
        meter = Meter(store.client)
        stranger, ann = (Call(store, caller, counters=counters.COUNTERS) for caller in (None, "ann"))
        heart_fields = {"counter": counters.HEARTS, "id": "home", "secret": SECRET}

        def measure_step(name: str, step: Callable[[], object]) -> None:
            meter.reset()
            step()
            rows[name] = {"requests": meter.requests, "WCU": meter.write_units, "RCU": meter.read_units}

        def read_like() -> None:
            children.list_anonymous(stranger, of=[("hearts", "home")], secret=SECRET)

        def take_over() -> None:
            read_like()
            children.put_mine(ann, counter=counters.HEARTS, id="home", idempotency_key="hers")
            children.delete_anonymous(stranger, **heart_fields, idempotency_key="gone")

        measure_step(LIKE, lambda: children.put_anonymous(stranger, **heart_fields, idempotency_key="first"))
        measure_step(UNLIKE, lambda: children.delete_anonymous(stranger, **heart_fields, idempotency_key="back"))
        children.put_anonymous(stranger, **heart_fields, idempotency_key="again")
        measure_step(READ_LIKE, read_like)
        measure_step(TAKE_OVER, take_over)
    return rows
