"""A store's tables, the engine's streams of them, and both consumers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from botocore.exceptions import ClientError

import counters
from tally.dynamo.client import Store
from tally.streams import bookkeeper, rollup
from tally.streams.consumer import Handler
from tally.streams.dead_letters import Objects
from tests.contexts import Context
from tests.invariants.stream_model import TABLES, Record, passes_filter
from tests.invariants.streaming import Bucket
from tests.invariants.wire import Wire

CONSUMERS = {"rollup": rollup.CONSUMER, "bookkeeper": bookkeeper.CONSUMER}


class Tables:
    """`wire`: a client of the store's engine."""

    def __init__(self, store: Store, wire: Wire) -> None:
        self.store, self.wire, self.bucket = store, wire, Bucket()
        self.names = {"counts": store.settings.counts_table, "receipts": store.settings.receipts_table}
        self.objects = Objects("bucket", lambda: self.bucket)
        self.handlers = {consumer: self.handler(consumer, store) for consumer in CONSUMERS}
        self._read: set[str] = set()  # tables of whose streams something was read
        self._iterators = {table: self._begin(table) for table in TABLES}

    def _begin(self, table: str) -> str:
        """Where the stream of a table begins. The engine has one shard a table."""
        arn = self.wire.describe_table(TableName=self.names[table])["Table"]["LatestStreamArn"]
        (shard,) = self.wire.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
        how = {"StreamArn": arn, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        return str(self.wire.get_shard_iterator(**how)["ShardIterator"])

    def handler(self, consumer: str, store: Store) -> Handler:
        """A process of a consumer."""
        return Handler(CONSUMERS[consumer], counters.COUNTERS, store, self.objects)

    def event(self, table: str, shard: str, records: list[Record]) -> dict[str, Any]:
        """A batch, as Lambda hands it on."""
        arn = f"arn:aws:dynamodb:eu-west-1:000000000000:table/{self.names[table]}/stream/x"
        return {"Records": records, "shardId": shard, "eventSourceARN": arn}

    def records(self, table: str) -> Iterator[Record]:
        """What the stream of a table has got since the last look."""
        full = True
        while full:
            page = self._page(table)
            self._iterators[table] = page["NextShardIterator"]
            yield from page["Records"]
            full = len(page["Records"]) == 1000

    def _page(self, table: str) -> dict[str, Any]:
        """DynamoDB Local calls the first iterator of an empty stream trimmed, once there is a record."""
        try:
            page = self.wire.get_records(ShardIterator=self._iterators[table], Limit=1000)
        except ClientError as error:
            if error.response["Error"]["Code"] != "TrimmedDataAccessException" or table in self._read:
                raise
            page = self.wire.get_records(ShardIterator=self._begin(table), Limit=1000)
        if page["Records"]:
            self._read.add(table)
        return page

    def forget(self) -> None:
        """What was written since the last look is lost: the streams were off, or did not keep it."""
        for table in TABLES:
            list(self.records(table))


def deliver(tables: Tables) -> None:
    """Hand both consumers what the streams have, twice: the rollup writes for the bookkeeper."""
    for table in TABLES * 2:
        records = list(tables.records(table))
        for consumer, process in tables.handlers.items():
            if batch := [record for record in records if passes_filter(consumer, table, record)]:
                answer = process(tables.event(table, f"shard-{table}", batch), Context())
                assert answer["batchItemFailures"] == []
