"""What a refusal costs when the same tally has had many holds: it looks for expired ones before it refuses."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import counters
from tally.counting import holds, increments
from tally.counting.increments import Increment
from tally.dynamo.client import Call
from tally.errors import LimitReachedError

from .bounds import Bounded, plural
from .clients import SETTINGS, Clients, clients_of, fresh_engine
from .watch import Meter

ITEM = "mug"
WRITE_AT_ONCE = 25  # DynamoDB's limit


def measure_refusal(settled: int) -> Bounded:
    """Refuse an increment after so many settled holds of the last day."""
    with fresh_engine() as endpoint:
        clients = clients_of(endpoint)
        _increment(clients, 1)
        call = Call(clients.store)
        held = holds.take(call, counters.STOCK, ITEM, 1, 3600, operation="hold", key="hold").body["hold_id"]
        holds.settle(call, counters.STOCK, ITEM, held, holds.COMMITTED)
        _settle_more(clients, held, settled)
        meter = Meter(clients.store.client)
        try:
            _increment(clients, -1)
        except LimitReachedError:
            what = f"a refused increment after {plural(settled, 'settled hold')}"
            return Bounded(what, "RCU", "1,651", meter.read_units, 5)
    raise AssertionError("what was sold was sold again")


def _increment(clients: Clients, amount: int) -> None:
    change = Increment(counters.STOCK, ITEM, amount, "increment", f"key {amount}", {}, receipt_target=ITEM)
    increments.count(Call(clients.store), change)


def _settle_more(clients: Clients, held: str, number: int) -> None:
    """Copy whatever the settled hold has left in the ledger, under other ids."""
    ledger, client = SETTINGS.ledger_table, clients.plain
    left = [json.dumps(item) for item in client.scan(TableName=ledger)["Items"]]
    now_s = int(time.time())

    def copies() -> Iterator[Any]:
        for hold in range(number):
            for item in left:
                yield {"PutRequest": {"Item": json.loads(item.replace(held, f"{now_s - 80_000 + hold}-{hold:016d}"))}}

    every = list(copies())
    for first in range(0, len(every), WRITE_AT_ONCE):
        client.batch_write_item(RequestItems={ledger: every[first : first + WRITE_AT_ONCE]})
