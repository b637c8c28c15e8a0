"""Both consumers on the engine's own streams, whenever a test asks: for tests of what is in front of them."""

from __future__ import annotations

from typing import Any

import counters
from local.base.engine import Engine
from tally.dynamo.client import Store
from tally.streams import bookkeeper, rollup
from tally.streams.consumer import Handler
from tally.streams.set_aside import Objects
from tests.contexts import Context
from tests.invariants.stream_model import TABLES, Record, passes_filter
from tests.invariants.wire import Wire

CONSUMERS = {"rollup": rollup.CONSUMER, "drift": bookkeeper.CONSUMER}


def iterator(wire: Wire, table: str) -> str:
    """Where the stream of a table begins. The engine has one shard a table."""
    arn = wire.describe_table(TableName=table)["Table"]["LatestStreamArn"]
    (shard,) = wire.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
    how = {"StreamArn": arn, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
    return str(wire.get_shard_iterator(**how)["ShardIterator"])


def handler(consumer: str, store: Store, bucket: object = None) -> Handler:
    """A consumer's. `bucket`: a client of S3, for what is set aside."""
    return Handler(CONSUMERS[consumer], counters.COUNTERS, store, Objects("bucket", make=lambda: bucket))


def event(table: str, shard: str, records: list[Record]) -> dict[str, Any]:
    """A batch, as Lambda hands it on. `table`: its name."""
    arn = f"arn:aws:dynamodb:eu-west-1:000000000000:table/{table}/stream/x"
    return {"Records": records, "shardId": shard, "eventSourceARN": arn}


class Deployment:
    """Consumers of the store's tables, which get streams."""

    def __init__(self, store: Store, engine: Engine) -> None:
        self.wire = Wire(engine.port)
        self.names = {"counts": store.settings.counts_table, "receipts": store.settings.receipts_table}
        how: Any = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
        for table in self.names.values():
            store.client.update_table(TableName=table, StreamSpecification=how)
        self._handlers = {consumer: handler(consumer, store) for consumer in CONSUMERS}
        self._iterators = {table: iterator(self.wire, self.names[table]) for table in TABLES}

    def deliver(self) -> None:
        """Hand both consumers what the streams have, twice: the rollup writes for the bookkeeper."""
        for table in TABLES * 2:
            page = self.wire.get_records(ShardIterator=self._iterators[table], Limit=1000)
            self._iterators[table] = page["NextShardIterator"]
            for consumer in CONSUMERS:
                batch = [record for record in page["Records"] if passes_filter(consumer, table, record)]
                if batch:
                    answer = self._handlers[consumer](event(self.names[table], f"shard-{table}", batch), Context())
                    assert answer["batchItemFailures"] == []
