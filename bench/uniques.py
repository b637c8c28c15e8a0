"""The cost of a visit of a counter of visitors. Unlike DynamoDB, the engine does not bill a rejected write."""

from __future__ import annotations

from dataclasses import replace

import counters
from tally.counting import periods, pseudonyms, tallies, unique_visitors
from tally.dynamo.client import Call

from .clients import clients_of, fresh_engine
from .consumers import Rows
from .instruments import Meter

NEW, AGAIN, READ = "new", "again", "read"
SOON, NOW, FULL = "soon", "now", "now, with a ceiling"
COUNTERS = {
    SOON: counters.READERS,
    NOW: replace(counters.READERS, visible="now"),
    FULL: replace(counters.READERS, visible="now", ceiling=25, max_shards=1),
}


def measure(quick: bool) -> Rows:
    """Returns requests and units of a new visitor's visit, of the same visitor's next visit, and of a read."""
    rows: Rows = {}
    for name, counter in COUNTERS.items():
        with fresh_engine() as endpoint:
            store = clients_of(endpoint).store
            pseudonyms.stack_secret(Call(store))  # once in a process
            meter = Meter(store.client)
            for which in (NEW, AGAIN, READ):
                meter.reset()
                if which == READ:
                    tallies.read(Call(store), counter, periods.tally_id(counter, "a", 1_800_000_000))
                else:
                    unique_visitors.count(Call(store), counter, "a", "ann")
                units = {"WCU": meter.write_units, "RCU": meter.read_units}
                rows[f"{name}: {which}"] = {"requests": meter.requests, **units}
    return rows
