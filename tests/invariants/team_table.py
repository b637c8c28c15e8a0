"""A team table: the team's writes, the consumer of its stream, scans, and the true numbers of its items."""

from __future__ import annotations

import itertools
import time
from collections import Counter as Multiset
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tally.counter import Counter
from tally.counting import tallies
from tally.dev.base.engine import Engine
from tally.dynamo.client import Call, Store
from tally.dynamo.keys import Item
from tally.dynamo.shards import StreamShards, streams_client
from tally.settings import TeamTable
from tally.streams import dead_letters
from tally.streams.dead_letters import DeadLetterBucket, DeadLetterMarker, RedriveOutcome
from tally.streams.record import CounterIndex
from tally.team import consumer, progress, scan_state
from tally.team.consumer import ItemsHandler
from tally.team.recounts import Recount
from tally.team.scan_state import Scan
from tests.contexts import LambdaContext
from tests.delivery import Delivery, Stream
from tests.invariants.streaming import Bucket
from tests.sync_wire import SyncWire

_numbers = itertools.count()
LATER_S = 600  # a sweep so much later finds that a scan that has just ended is complete


def make_team(store: Store, engine: Engine, counters: Mapping[str, Counter], name: str = "shop") -> Team:
    """Returns a team with a new table. `store`: a store whose client goes straight to the engine."""
    assert isinstance(store.client, SyncWire)
    return Team(store, store.client, counters, name, engine.endpoint)


@dataclass
class Team:
    """A team table, and the processes that count its items. `name`: the table's name in the declarations. `base`: a
    store that does not know the team table. `wire`: a client without faults. `counters`: the deployed declarations.
    `store`: `base` with the team table. `shards`: the delivery of each shard. `bucket`: has the dead letters."""

    base: Store
    wire: SyncWire
    counters: Mapping[str, Counter]
    name: str
    endpoint: str
    """The endpoint of the engine."""
    bucket: Bucket = field(default_factory=Bucket)
    store: Store = field(init=False)
    shards: dict[str, Delivery] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table = f"team-{self.name}-{next(_numbers)}"
        self.wire.create_table(
            TableName=self.table, BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "SK", "KeyType": "RANGE"}],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("PK", "SK")],
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        )  # fmt: skip
        self.stream = Stream(self.wire, self.table)
        tables = {self.name: TeamTable(self.table, self.stream.arn)}
        self.store = replace(self.base, settings=self.base.settings._replace(team_tables=tables))
        self.deploy(self.counters)

    @property
    def dead_letter_bucket(self) -> DeadLetterBucket:
        return DeadLetterBucket("bucket", lambda: self.bucket)

    def process(self, client: Any = None) -> ItemsHandler:
        """Returns the handler of a new consumer process. `client`: None: the client of `store`."""
        store = replace(self.store, client=client) if client else self.store
        return ItemsHandler(self.counters, store, self.dead_letter_bucket)

    def deploy(self, counters: Mapping[str, Counter]) -> None:
        """Deploy the consumer with these declarations."""
        self.counters = counters
        self.handler = self.process()

    def put(self, pk: str, sk: str, **attributes: Item) -> None:
        self.wire.put_item(TableName=self.table, Item={"PK": {"S": pk}, "SK": {"S": sk}, **attributes})

    def delete(self, pk: str, sk: str) -> None:
        self.wire.delete_item(TableName=self.table, Key={"PK": {"S": pk}, "SK": {"S": sk}})

    def read_stream(self) -> None:
        """Read the next records of the stream, to be delivered later."""
        name = self.stream.shard
        delivery = Delivery(lambda event, context: self.handler(event, context), self.table, name)
        self.shards.setdefault(name, delivery).records.extend(self.stream.read_new())

    def drain(self) -> None:
        """Deliver every record of the stream."""
        self.read_stream()
        for shard in self.shards.values():
            shard.deliver_all(LambdaContext())

    def begin_scan(self, name: str, *groups: str) -> Recount:
        """Begin a scan. `groups`: the groups that the scan counts; empty: all groups."""
        scan = scan_state.begin(self.store, self.counters[name], time.time(), groups)
        assert scan is not None
        return self.recount(name, scan)

    def recount(self, name: str, scan: Scan | None = None) -> Recount:
        """Returns a process that continues a scan. `scan`: the scan; None: the open scan."""
        return Recount(self.store, self.counters[name], scan or scan_state.read_scan(self.store, name))

    def sweep_later(self, later_s: float = LATER_S) -> None:
        """Run the sweep `later_s` later. The sweep stores how far the consumer has come."""
        arns = {name: table.stream for name, table in self.store.settings.team_tables.items()}
        shards = StreamShards(arns, lambda: streams_client(endpoint_url=self.endpoint))
        progress.note_progress(self.store, shards, self.counters, self.name, time.time() + later_s)

    def count(self, name: str) -> None:
        """Count the items of the counter `name`, and set its numbers, as `tally scan` does."""
        recount = self.begin_scan(name)
        self.finish_reading(recount)
        for difference in recount.set_many(list(recount.all_differences())):
            assert recount.set_number(difference)
        recount.close(has_counted_all=True)

    def finish_reading(self, recount: Recount) -> None:
        """Read the rest of the table, until the scan is complete."""
        for _ in recount.run_steps():
            pass
        self.drain()
        self.sweep_later()
        assert recount.is_complete()

    def numbers(self, name: str) -> dict[str, int]:
        """Returns the stored number of each group of a counter, without zeros."""
        counter = self.counters[name]
        numbers: Multiset[str] = Multiset()
        for item in self.wire.scan(TableName=self.store.settings.counts_table, ConsistentRead=True)["Items"]:
            prefix, _, group = item["PK"]["S"].partition("#")
            if prefix == counter.prefix and counter.shard_of(item["SK"]["S"]) is not None:
                numbers[group] += tallies.stored_number(counter, item, 0)
        return {group: number for group, number in numbers.items() if number}

    def truth(self, name: str) -> dict[str, int]:
        """Returns the true number of each group, counted from the items, without zeros."""
        declared_items = self.counters[name].items
        assert declared_items is not None
        numbers: Multiset[str] = Multiset()
        for item in self.items():
            if contribution := declared_items.contribution(item):
                numbers[contribution.group] += contribution.amount
        return {group: number for group, number in numbers.items() if number}

    def items(self) -> list[Item]:
        """Returns every item of the table."""
        return list(itertools.chain.from_iterable(self._pages()))

    def _pages(self) -> Any:
        start: dict[str, Any] = {}
        while True:
            page = self.wire.scan(TableName=self.table, ConsistentRead=True, **start)
            yield page["Items"]
            if "LastEvaluatedKey" not in page:
                return
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def item(self, pk: str, sk: str) -> Item:
        """Returns one item of the table."""
        item: Item = self.wire.get_item(TableName=self.table, Key={"PK": {"S": pk}, "SK": {"S": sk}})["Item"]
        return item

    def add_by_hand(self, name: str, group: str, amount: int) -> None:
        """Add an amount to a stored number, without Tally."""
        counter = self.counters[name]
        self.wire.update_item(
            TableName=self.store.settings.counts_table, Key=tallies.key(counter, group, 0),
            UpdateExpression="ADD #n :amount", ExpressionAttributeNames={"#n": counter.attribute},
            ExpressionAttributeValues={":amount": {"N": str(amount)}},
        )  # fmt: skip

    def redrive(self, marker: DeadLetterMarker) -> None:
        """Apply a dead letter, as `tally repair` does."""
        consumers, index = {consumer.NAME: consumer.items_consumer(self.counters)}, CounterIndex(self.counters)
        outcome = dead_letters.redrive(Call(self.store), self.dead_letter_bucket, consumers, index, marker)
        assert outcome == (RedriveOutcome.APPLIED, "")

    def tally_items(self, name: str, id_: str) -> list[Item]:
        """Returns the stored shards of a tally."""
        return tallies.read_shards(Call(self.store), self.counters[name], id_)

    def read(self, name: str, id_: str) -> int:
        """Returns the number that a caller reads. Raises NotCountedError until a scan has counted the items."""
        scan_state.as_of(self.store, self.counters[name])
        return tallies.read(Call(self.store), self.counters[name], id_)
