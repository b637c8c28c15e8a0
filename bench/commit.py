"""What a commit costs (tally/transact.py): a receipt, three tallies, and an order and a total of a team's own."""

from __future__ import annotations

from typing import Any

import counters
from tally.transact import Transactions

from .clients import clients_of, fresh_engine
from .instruments import Meter

Rows = dict[str, dict[str, float]]
FIRST, AGAIN = "receipt, 3 tallies, 2 own writes", "sent again"
SHOP = "bench-shop"


def _sell(sells: Transactions) -> None:
    key: dict[str, Any] = {"PK": {"S": "TOTAL"}}
    total = {"Key": key, "UpdateExpression": "ADD n :one", "ExpressionAttributeValues": {":one": {"N": "1"}}}
    order = {"Item": {"PK": {"S": "ORDER#1"}}, "ConditionExpression": "attribute_not_exists(PK)"}
    writes = [{"Put": {"TableName": SHOP, **order}}, {"Update": {"TableName": SHOP, **total}}]
    sells.commit("order-1", [("stock", "mug", 1), ("plays", "mug"), ("usage", "ann", 1)], writes)


def measure(quick: bool) -> Rows:
    """Requests, and the write units of what was written. An engine does not say what a transaction costs that is
    cancelled, as that of a replay is."""
    rows: Rows = {}
    with fresh_engine() as endpoint:
        store = clients_of(endpoint).store
        client = store.client
        client.create_table(
            TableName=SHOP,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "PK", "AttributeType": "S"}],
        )
        sells = Transactions(store, counters.COUNTERS, "bench")
        meter = Meter(client)
        for name in (FIRST, AGAIN):
            meter.reset()
            _sell(sells)
            rows[name] = {"requests": meter.requests, "WCU": meter.write_units}
    return rows
