"""Measures the cost of a visit of a counter of unique visitors.

DynamoDB bills a write whose condition failed. The local engine does not, so the figures lack such writes.
"""

from __future__ import annotations

from dataclasses import replace

import counters
from tally.counting import periods, pseudonyms, tallies, unique_visitors
from tally.dynamo.client import Call

from .clients import clients_of, fresh_engine
from .instruments import Meter, Rows

FIRST_VISIT, NEXT_VISIT, READ_NUMBER = "a new visitor's visit", "the next visit", "a read"
SOON, NOW, NOW_WITH_CEILING = "visible soon", "visible now", "visible now, with a ceiling"
COUNTERS = {
    SOON: counters.READERS,
    NOW: replace(counters.READERS, visible="now"),
    NOW_WITH_CEILING: replace(counters.READERS, visible="now", ceiling=25, max_shards=1),  # a ceiling needs one shard
}


def measure(quick: bool) -> Rows:
    """Returns requests and units of a new visitor's visit, of the same visitor's next visit, and of a read."""
    rows: Rows = {}
    for name, counter in COUNTERS.items():
        with fresh_engine() as endpoint:
            store = clients_of(endpoint).store
            pseudonyms.stack_secret(Call(store))  # a process reads the secret once, so this read is not measured
            meter = Meter(store.client)
            for step in (FIRST_VISIT, NEXT_VISIT, READ_NUMBER):
                meter.reset()
                if step == READ_NUMBER:
                    # The tally is of a day in 2027, because a read costs the same on any day.
                    tallies.read(Call(store), counter, periods.tally_id(counter, "a", 1_800_000_000))
                else:
                    unique_visitors.count(Call(store), counter, "a", "ann")
                units = {"WCU": meter.write_units, "RCU": meter.read_units}
                rows[f"{name}: {step}"] = {"requests": meter.requests, **units}
    return rows
