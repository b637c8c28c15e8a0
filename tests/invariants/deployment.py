"""A store's tables, the engine's streams of them, and both consumers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import counters
from declarations import READERS
from dev.base.sync_wire import SyncWire
from dev.streams import delivery
from dev.streams.delivery import Delivery, Record, Stream
from tally.dynamo.client import Store
from tally.streams import bookkeeper, rollup
from tally.streams.consumer import Handler
from tally.streams.dead_letters import Objects
from tests.contexts import Context
from tests.invariants.stream_model import TABLES
from tests.invariants.streaming import Bucket

CONSUMERS = {"rollup": rollup.CONSUMER, "bookkeeper": bookkeeper.CONSUMER}
DECLARED = {one.function: one for one in READERS}


class Tables:
    """`wire`: a client of the store's engine."""

    def __init__(self, store: Store, wire: SyncWire) -> None:
        self.store, self.wire, self.bucket = store, wire, Bucket()
        self.names = {"counts": store.settings.counts_table, "receipts": store.settings.receipts_table}
        self.objects = Objects("bucket", lambda: self.bucket)
        self.handlers = {consumer: self.handler(consumer, store) for consumer in CONSUMERS}
        self._streams = {table: Stream(wire, self.names[table]) for table in TABLES}

    def handler(self, consumer: str, store: Store) -> Handler:
        """A process of a consumer."""
        return Handler(CONSUMERS[consumer], counters.COUNTERS, store, self.objects)

    def delivery(self, consumer: str, table: str, shard: str, records: list[Record]) -> Delivery:
        """A consumer's way through the records of a shard."""
        takes = partial(delivery.takes, DECLARED[consumer], table)
        return Delivery(self.handlers[consumer], self.names[table], shard, records, takes)

    def records(self, table: str) -> Iterator[Record]:
        """What the stream of a table has got since the last look."""
        return self._streams[table].new()

    def forget(self) -> None:
        """What was written since the last look is lost: the streams were off, or did not keep it."""
        for table in TABLES:
            list(self.records(table))


def deliver(tables: Tables) -> None:
    """Hand both consumers what the streams have, twice: the rollup writes for the bookkeeper."""
    for table in TABLES * 2:
        records = list(tables.records(table))
        for consumer in CONSUMERS:
            tables.delivery(consumer, table, f"shard-{table}", records).all(Context())
