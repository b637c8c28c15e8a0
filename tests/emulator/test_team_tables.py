"""Tally counts the orders in a team's table: the old orders by a scan, and the new orders by the stream.

The team's app is built with the wheel alone, and its code does not call Tally.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tally.contract.declarations import Declarations
from tally.dynamo.client import Store
from tally.settings import Settings, parse_team_tables
from tally.team import scan_state
from tally.team.recounts import Recount
from tests.emulator.server import Emulator
from tests.emulator.stack import MINUTE_S, Stack, rewrite_template, without_unsupported
from tests.emulator.steps import step
from tests.emulator.streams import StreamDelivery, run_sweeps
from tests.patience import wait_for
from tests.wheel.conftest import python, run, shared, wheel  # noqa: F401 (fixtures)

pytestmark = pytest.mark.long
COUNTERS = """from tally.counter import ANYONE, Counter, declared
from tally.items import Items

OPEN = Items("shop", partition_prefix="CUSTOMER#", sort_key="SK", sort_prefix="ORDER#", where={"status": "open"})
COUNTERS = declared([
    Counter("orders", prefix="CUSTOMER", sort_key="ORDERS", attribute="orders", read=ANYONE, items=OPEN),
])
"""
APP = '''"""A shop with its own table. Tally counts the open orders of each customer."""

from aws_cdk import App, CfnOutput, RemovalPolicy, Stack
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_lambda as lambda_
from constructs import Construct
from tally.cdk import Tally

CODE = """
import os
import boto3

table = boto3.resource("dynamodb").Table(os.environ["TABLE"])

def handler(event, context):
    key = {"PK": "CUSTOMER#" + event["customer"], "SK": "ORDER#" + event["order"]}
    table.put_item(Item={**key, "status": event["status"]})
"""


class Shop(Stack):
    def __init__(self, scope: Construct, id: str) -> None:
        super().__init__(scope, id)
        table = dynamodb.Table(
            self,
            "Table",
            partition_key=dynamodb.Attribute(name="PK", type=dynamodb.AttributeType.STRING),
            sort_key=dynamodb.Attribute(name="SK", type=dynamodb.AttributeType.STRING),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            stream=dynamodb.StreamViewType.NEW_AND_OLD_IMAGES,
            removal_policy=RemovalPolicy.DESTROY,
        )
        orders = lambda_.Function(
            self,
            "Orders",
            runtime=lambda_.Runtime.PYTHON_3_14,
            code=lambda_.Code.from_inline(CODE),
            handler="index.handler",
            environment={"TABLE": table.table_name},
        )
        table.grant_write_data(orders)
        Tally(self, "Tally", counters="counters.py", keep_data=False, tables={"shop": table})
        CfnOutput(self, "OrdersName", value=orders.function_name)


app = App()
Shop(app, "Shop")
app.synth()
'''


def test_tally_counts_the_orders_in_a_table_of_a_team(tmp_path: Path, python: Path) -> None:  # noqa: F811
    shop, assembly = tmp_path / "shop", tmp_path / "cdk.out"
    shop.mkdir()
    for name, text in (("counters.py", COUNTERS), ("app.py", APP)):
        (shop / name).write_text(text)
    with step("synthesize with the wheel"):
        run(str(python), "app.py", cwd=shop, variables={"CDK_OUTDIR": str(assembly)})
        rewrite_template(assembly, without_unsupported, "Shop")
    with step("start the emulator"):
        emulator = Emulator(tmp_path)
    try:
        stack = Stack(emulator, tmp_path, name="Shop")
        with step("cdk bootstrap, cdk deploy") as notes:
            stack.bootstrap()
            stack.cdk("deploy", "--method=direct", "--require-approval=never", "--app", str(assembly))
            notes.append(f"{len(stack.resources())} resources")
        check_counts(TeamStack(stack, shop / "counters.py"), assembly)
    finally:
        emulator.stop()


class TeamStack:
    """The team's deployed stack: places orders, reads their number, and scans the table."""

    def __init__(self, stack: Stack, counters: Path) -> None:
        self.stack = stack
        team_tables = parse_team_tables(stack.outputs["TallyTeamTables"])
        names = [stack.outputs[f"Tally{table}TableName"] for table in ("Counts", "Receipts", "Ledger")]
        settings = Settings(
            *names, page_hosts=frozenset(), receipt_ttl_s=0, version="test", minute_s=MINUTE_S, team_tables=team_tables
        )
        self.store = Store(stack.client("dynamodb"), settings)
        self.counter = Declarations.load(counters).counters["orders"]

    def put_order(self, order: int, status: str = "open") -> None:
        """Places an order of Ann, or changes its status."""
        event = {"customer": "ann", "order": str(order), "status": status}
        self.stack.invoke(self.stack.outputs["OrdersName"], event)

    def read_number(self) -> tuple[int, int | None]:
        """Returns the status and the number that a reader of Ann's open orders gets; 409 and None before a scan."""
        event = {"operation": "get_counter", "counter": "orders", "id": "ann"}
        answer = self.stack.invoke(self.stack.outputs["TallyReadsFunctionArn"], event)
        return answer["status"], answer["body"].get("value")

    def scan_excesses(self, *, set_numbers: bool) -> list[int]:
        """Scans the table. Returns the excess of each wrong number. `set_numbers`: correct these numbers."""
        scan = scan_state.begin(self.store, self.counter, time.time())
        assert scan is not None
        recount = Recount(self.store, self.counter, scan)
        list(recount.run_steps())
        wait_for(recount.is_complete, every_s=1)
        differences = list(recount.all_differences())
        if set_numbers:
            assert all(recount.set_number(difference) for difference in differences)
        recount.close(has_counted_all=set_numbers)
        return [difference.excess for difference in differences]


def check_counts(team: TeamStack, assembly: Path) -> None:
    for order in range(3):
        team.put_order(order)
    assert team.read_number() == (409, None)
    streams = StreamDelivery(team.stack, assembly, "Shop")
    with streams.running(), run_sweeps(team.stack, streams.failures):
        with step("scan the orders in the table, while another order is placed"):
            team.put_order(3)
            assert len(team.scan_excesses(set_numbers=True)) == 1, "Ann's number lacks the orders before the stream"
            wait_for(lambda: team.read_number() == (200, 4), every_s=0.5)
        with step("place two orders and ship one"):
            for order in (4, 5):
                team.put_order(order)
            team.put_order(0, "shipped")
            wait_for(lambda: team.read_number() == (200, 5), every_s=0.5)
        with step("edit a number: a scan returns the edit as the excess"):
            edit_number(team, 7)
            assert team.scan_excesses(set_numbers=False) == [7]
    assert streams.failures == []


def edit_number(team: TeamStack, amount: int) -> None:
    """Adds to the number of Ann's orders in DynamoDB, without Tally."""
    counts = team.store.settings.counts_table
    stored: list[dict[str, Any]] = team.store.client.scan(TableName=counts)["Items"]  # type: ignore[assignment]
    item = next(item for item in stored if item["PK"]["S"] == "CUSTOMER#ann")
    team.store.client.update_item(
        TableName=counts,
        Key={name: item[name] for name in ("PK", "SK")},
        UpdateExpression="ADD orders :more",
        ExpressionAttributeValues={":more": {"N": str(amount)}},
    )
