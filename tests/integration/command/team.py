"""Runs the command `tally` of a team with a table and counters of its items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tally.cli import commands, terminal
from tally.cli.connection import Stack
from tally.counter import Counter
from tally.counting import tallies
from tally.dynamo.keys import Item
from tally.items import Items
from tally.streams.dead_letters import DeadLetterBucket
from tally.team import scan_state
from tests.invariants import team_table

OPEN_ORDERS = Items("shop", partition_prefix="CUSTOMER#", sort_key="SK", sort_prefix="ORDER#", where={"status": "open"})
COUNTERS_FILE = f"""
from tally.counter import Counter, declared
from tally.items import Items

OPEN_ORDERS = {OPEN_ORDERS!r}
ORDERS = Counter("orders", prefix="OPENORDERS", sort_key="OPEN", attribute="open", items=OPEN_ORDERS)
TOTALS = Items("shop", amount="total", scale=2, group_by="shop")
SPENT = Counter("spent", prefix="SPENT", sort_key="TOTAL", attribute="cents", items=TOTALS)
USAGE = Counter("usage", prefix="USAGE", sort_key="TOTAL", attribute="usage")
COUNTERS = declared([ORDERS, SPENT, USAGE])
"""
"""A counters file, which tests also write into a team's folder."""
_module: dict[str, Any] = {}
exec(COUNTERS_FILE, _module)
COUNTERS: Mapping[str, Counter] = _module["COUNTERS"]
ORDERS = COUNTERS["orders"]


@dataclass
class Team(team_table.Team):
    """A team's table and its command. While the command waits, the consumer and the sweep run."""

    capsys: pytest.CaptureFixture[str] = field(kw_only=True)

    def __call__(self, line: str, client: Any = None) -> tuple[int, str, str]:
        """Run the command. `client`: the command's client; None: the client of the store. Returns the exit status, the
        output, and the errors."""
        self.capsys.readouterr()
        arguments = commands.parse_arguments(line.split(), commands.parser(self.counters))
        objects = DeadLetterBucket("bucket", lambda: self.bucket)
        stack = Stack(replace(self.store, client=client or self.store.client), objects, self.counters)
        code = terminal.run_to_exit_status(lambda: commands.command_named(arguments.command).run(arguments, stack))
        return code, *self.capsys.readouterr()

    def order(self, customer: str, number: int, status: str = "open", **attributes: Item) -> None:
        """Write an order."""
        self.put(f"CUSTOMER#{customer}", f"ORDER#{number}", status={"S": status}, **attributes)

    def old_orders(self, number: int = 120) -> None:
        """Write orders of four customers, which the consumer passes before a scan. Every fifth order is closed."""
        for order in range(number):
            self.order("abcd"[order % 4], order, "closed" if order % 5 == 0 else "open")
        self.drain()

    def poison(self) -> None:
        """Remove the new image of the newest record, so that the record becomes a dead letter."""
        self.read_stream()
        (shard,) = self.shards.values()
        shard.records[-1]["dynamodb"].pop("NewImage")
        self.drain()

    def sleep(self, _: float) -> None:
        """Run the consumer and the sweep. The command calls this in place of `time.sleep` while it waits."""
        self.drain()
        self.sweep_later()

    def stall(self) -> None:
        """Remove the stored progress of the consumer, so that a scan waits for the consumer."""
        self.wire.delete_item(TableName=self.store.settings.ledger_table, Key=scan_state.passed_key(self.name))

    def edit(self, group: str, amount: int) -> None:
        """Edit the number of a group of orders by hand."""
        self.wire.update_item(
            TableName=self.store.settings.counts_table, Key=tallies.key(ORDERS, group, 0),
            UpdateExpression="ADD #number :amount", ExpressionAttributeNames={"#number": ORDERS.attribute},
            ExpressionAttributeValues={":amount": {"N": str(amount)}},
        )  # fmt: skip
