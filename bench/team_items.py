"""The cost to count items of a team's own table, for a record, a scanned item, and a record during a scan."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from tally.counter import Counter
from tally.dynamo.client import Store
from tally.items import Items
from tally.settings import TeamTable
from tally.streams.dead_letters import DeadLetterBucket
from tally.team import scan_state
from tally.team.consumer import ItemsHandler
from tally.team.recounts import Recount
from tests.contexts import LambdaContext
from tests.delivery import Delivery, Stream
from tests.sync_wire import SyncWire

from .clients import clients_of, fresh_engine
from .instruments import Meter, Rows

RECORDS_ALONE, RECORDS_DURING_SCAN, SCANNED_ITEMS = (
    "200 records of 10 groups",
    "200 records of 10 groups, while a scan is open",
    "480 items of 10 groups, scanned",
)
SHOP, GROUPS = "bench-own", 10  # the team's table, and how many customers have its orders
ORDERS = Counter(
    "orders", prefix="ORDERS", sort_key="OPEN", attribute="open", items=Items("shop", partition_prefix="CUSTOMER#")
)
COUNTERS = {"orders": ORDERS}


def _put_items(client: Any, first: int, items: int) -> None:
    for number in range(first, first + items):
        item = {"PK": {"S": f"CUSTOMER#{number % GROUPS}"}, "SK": {"S": f"ORDER#{number}"}}
        client.put_item(TableName=SHOP, Item=item)


def _scan(store: Store) -> Recount:
    scan = scan_state.begin(store, ORDERS, time.time())
    assert scan is not None
    return Recount(store, ORDERS, scan)


def measure(quick: bool) -> Rows:
    """Returns the units of each case. The units of a scan include its reads of the team's items."""
    rows: Rows = {}
    with fresh_engine() as endpoint:
        clients = clients_of(endpoint)
        clients.store.client.create_table(
            TableName=SHOP,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "SK", "KeyType": "RANGE"}],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("PK", "SK")],
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"},
        )
        wire = SyncWire(int(endpoint.rpartition(":")[2]))
        stream = Stream(wire, SHOP)
        tables = {"shop": TeamTable(SHOP, stream.arn)}
        store = replace(clients.store, settings=clients.store.settings._replace(team_tables=tables))
        consumer = ItemsHandler(COUNTERS, store, DeadLetterBucket("none"))
        delivery = Delivery(consumer, SHOP, stream.shard)
        meter = Meter(store.client)

        def deliver(items: int) -> dict[str, float]:
            delivery.records.extend(stream.read_new())
            meter.reset()
            delivery.deliver_all(LambdaContext())
            return {"WCU": meter.write_units / items, "RCU": meter.read_units / items}

        _put_items(store.client, 0, 480)
        deliver(480)  # before a scan, the consumer counts no items
        recount = _scan(store)
        meter.reset()
        for _ in recount.run_steps():
            pass
        rows[SCANNED_ITEMS] = {"WCU": meter.write_units / 480, "RCU": meter.read_units / 480}
        _put_items(store.client, 1000, 200)
        rows[RECORDS_DURING_SCAN] = deliver(200)
        for difference in recount.all_differences():
            recount.set_number(difference)
        recount.close(has_counted_all=True)
        _put_items(store.client, 2000, 200)
        rows[RECORDS_ALONE] = deliver(200)
        wire.close()
    return rows
