"""The cost of likes without sign-in, with keys as the JavaScript client sends them (operations/children.py)."""

from __future__ import annotations

from collections.abc import Callable

import counters
from tally.dynamo.client import Call
from tally.operations import children

from .clients import clients_of, fresh_engine
from .instruments import Meter

Rows = dict[str, dict[str, float]]
LIKE, UNLIKE, READ_LIKE, TAKE_OVER = (
    "a like",
    "its unlike",
    "whether this browser likes it",
    "its user takes the like over",
)
SECRET = "what-one-browser-alone-knows"


def measure(quick: bool) -> Rows:
    """Returns requests and units of each."""
    rows: Rows = {}
    with fresh_engine() as endpoint:
        store = clients_of(endpoint).store
        meter = Meter(store.client)
        stranger, ann = (Call(store, caller, counters=counters.COUNTERS) for caller in (None, "ann"))
        its = {"counter": counters.HEARTS, "id": "home", "secret": SECRET}

        def row(name: str, does: Callable[[], object]) -> None:
            meter.reset()
            does()
            rows[name] = {"requests": meter.requests, "WCU": meter.write_units, "RCU": meter.read_units}

        def look() -> None:
            children.list_anonymous(stranger, of=[("hearts", "home")], secret=SECRET)

        def adopt() -> None:
            look()
            children.put_mine(ann, counter=counters.HEARTS, id="home", idempotency_key="hers")
            children.delete_anonymous(stranger, **its, idempotency_key="gone")

        row(LIKE, lambda: children.put_anonymous(stranger, **its, idempotency_key="first"))
        row(UNLIKE, lambda: children.delete_anonymous(stranger, **its, idempotency_key="back"))
        children.put_anonymous(stranger, **its, idempotency_key="again")
        row(READ_LIKE, look)
        row(TAKE_OVER, adopt)
    return rows
