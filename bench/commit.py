"""The cost of a commit (tally/transact.py) with a receipt, three tallies, and an order and a total of a team."""

from __future__ import annotations

from typing import Any

import counters
from tally.transact import Transactions

from .clients import clients_of, fresh_engine
from .instruments import Meter, Rows

FIRST_SENT, SENT_AGAIN = "a receipt, 3 tallies, 2 writes of the team", "the same commit, sent again"
SHOP = "bench-shop"


def measure(quick: bool) -> Rows:
    """Returns requests and write units. The engine reports no units for a cancelled transaction, such as a replay's."""
    rows: Rows = {}
    key: dict[str, Any] = {"PK": {"S": "TOTAL"}}
    total = {"Key": key, "UpdateExpression": "ADD n :one", "ExpressionAttributeValues": {":one": {"N": "1"}}}
    order = {"Item": {"PK": {"S": "ORDER#1"}}, "ConditionExpression": "attribute_not_exists(PK)"}
    writes = [{"Put": {"TableName": SHOP, **order}}, {"Update": {"TableName": SHOP, **total}}]
    with fresh_engine() as endpoint:
        store = clients_of(endpoint).store
        client = store.client
        client.create_table(
            TableName=SHOP,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "PK", "AttributeType": "S"}],
        )
        transactions = Transactions(store, counters.COUNTERS, "bench")
        meter = Meter(client)
        for name in (FIRST_SENT, SENT_AGAIN):
            meter.reset()
            transactions.commit("order-1", [("stock", "mug", 1), ("plays", "mug"), ("usage", "ann", 1)], writes)
            rows[name] = {"requests": meter.requests, "WCU": meter.write_units}
    return rows
