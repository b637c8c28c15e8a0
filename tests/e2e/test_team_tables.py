"""Tests a team table in the engine of `make dev`. The stream counts new items, and a scan counts older items."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tally.contract.declarations import Declarations
from tally.dynamo.client import Store
from tally.settings import Settings, TeamTable
from tally.team import scan_state
from tally.team.recounts import Recount
from tests.e2e.dev import ROOT, Dev, client
from tests.patience import wait_for

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.literals import StreamViewTypeType

Start = Callable[..., Dev]
COUNTERS = """from tally.counter import ANYONE, Counter, declared
from tally.items import Items

OPEN = Items("shop", partition_prefix="CUSTOMER#", sort_key="SK", sort_prefix="ORDER#", where={"status": "open"})
ORDERS = Counter("orders", prefix="CUSTOMER", sort_key="ORDERS", attribute="orders", read=ANYONE, items=OPEN)
COUNTERS = declared([ORDERS])
"""


def make_table(engine: DynamoDBClient, view: StreamViewTypeType, name: str = "shop") -> None:
    engine.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "SK", "KeyType": "RANGE"}],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("PK", "SK")],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": view},
    )


def put_order(engine: DynamoDBClient, number: int, status: str = "open") -> None:
    """Stores an order of Ann as the team's own code does."""
    item = {"PK": {"S": "CUSTOMER#ann"}, "SK": {"S": f"ORDER#{number}"}, "status": {"S": status}}
    engine.put_item(TableName="shop", Item=item)


def scan_orders(stack: dict[str, Any], counters: Path) -> None:
    """Counts the items that are older than the stream's first read, as `tally scan` does."""
    tables = {name: TeamTable(**table) for name, table in stack["team_tables"].items()}
    names = stack["counts"], stack["receipts"], stack["ledger"]
    # This scan uses neither pages nor receipts.
    unused: dict[str, Any] = {"page_hosts": frozenset(), "receipt_ttl_s": 0, "version": "test"}
    settings = Settings(*names, **unused, minute_s=stack["minute_s"], team_tables=tables)
    store = Store(client(stack["dynamodb"]), settings)
    orders = Declarations.load(counters).counters["orders"]
    scan = scan_state.begin(store, orders, time.time())
    assert scan is not None
    recount = Recount(store, orders, scan)
    list(recount.run_steps())
    wait_for(recount.is_complete)
    assert all(recount.set_number(difference) for difference in recount.all_differences())
    recount.close(has_counted_all=True)


def test_orders_are_counted_in_a_table_that_is_made_after_the_start(start: Start, tmp_path: Path) -> None:
    counters = tmp_path / "app/counters.py"
    counters.parent.mkdir()
    counters.write_text(COUNTERS)
    variables = {"TALLY_MINUTE_S": "1", "PYTHONPATH": str(ROOT)}
    dev = start(app=counters.parent, TALLY_TABLES="shop, crates", **variables).wait_until_ready()
    engine = client(dev.endpoint)
    wait_for(lambda: "tally: orders: the table shop is not read: it does not exist yet\n" in dev.text)
    assert "tally: TALLY_TABLES has crates: no counter counts its items\n" in dev.text
    assert "tally count orders" not in dev.text, "callers cannot increment this counter"
    make_table(engine, "KEYS_ONLY")
    wait_for(
        lambda: "shop is not read: the table's stream has KEYS_ONLY, and counter 'orders' needs NEW_AND_OLD" in dev.text
    )
    engine.delete_table(TableName="shop")
    make_table(engine, "NEW_AND_OLD_IMAGES")
    wait_for(lambda: "tally: your own tables changed: shop is read now\n" in dev.text)
    stack = dev.call("GET", "/dev/stack").body
    assert stack["team_tables"]["shop"]["name"] == "shop"
    assert {"consumer": "items", "table": "shop", "enabled": True} in dev.call("GET", "/dev/mappings").body["mappings"]

    def read_orders() -> tuple[int, int | None]:
        answer = dev.call("GET", "/counters/orders/ann")
        return answer.status, answer.body.get("value")

    for number in range(3):
        put_order(engine, number)
    assert read_orders() == (409, None)  # before the first scan
    scan_orders(stack, counters)
    assert read_orders() == (200, 3)
    for number in range(2, 5):
        put_order(engine, number)
    put_order(engine, 0, "shipped")
    wait_for(lambda: read_orders() == (200, 4))  # orders 1 to 4 are open


def test_a_table_that_no_variable_names_is_not_read(start: Start, tmp_path: Path) -> None:
    (tmp_path / "counters.py").write_text(COUNTERS)
    dev = start(app=tmp_path, PYTHONPATH=str(ROOT)).wait_until_ready()
    wait_for(lambda: "tally: orders: the table shop is not read: start `make dev` with TALLY_TABLES=shop\n" in dev.text)
    assert dev.call("GET", "/dev/stack").body["team_tables"] == {}
