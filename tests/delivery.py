"""Delivers the records of a stream to a consumer in this process: at least once, in order, in any batches.

Tests, the soak and the benchmark choose the batches, the repeated records and the faults. The time may be virtual, and
the shards may be a model. `make dev` delivers in real time, with a module of its own (tally/dev/streams/pump.py). Both
modules make the same events and read the same answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from tally.api.needs import Table
from tally.contract.deployment import filter_patterns
from tally.dev.stack.mappings import matches
from tests.sync_wire import SyncWire

if TYPE_CHECKING:
    from tally.api.background import StreamReader

BATCH_RECORDS = 1000  # the most records that a mapping puts into a batch, and that DynamoDB returns for a read
Record = dict[str, Any]
Handler = Callable[[dict[str, Any], Any], Mapping[str, Any]]
"""A function that answers an event and a context."""


def event(records: Sequence[Record], shard: str, table: str) -> dict[str, Any]:
    """Returns the event of a batch, as a mapping with a tumbling window sends it."""
    return {
        "Records": list(records),
        "shardId": shard,
        "eventSourceARN": f"arn:aws:dynamodb:eu-west-1:000000000000:table/{table}/stream/2026-11-21T00:00:00.000",
        "window": {"start": "2026-11-21T00:00:00Z", "end": "2026-11-21T00:01:00Z"},
        "state": {},
        "isFinalInvokeForWindow": False,
        "isWindowTerminatedEarly": False,
    }


def failed_sequence(answer: Mapping[str, Any]) -> str | None:
    """Returns the sequence number that an answer reports as failed; None: the consumer has applied every record."""
    failures = answer["batchItemFailures"]
    assert (answer["state"], len(failures) <= 1) == ({}, True), f"not an answer of Tally: {json.dumps(answer)}"
    return str(failures[0]["itemIdentifier"]) if failures else None


def passes_filters(reader: StreamReader, table: str, record: Record) -> bool:
    """Whether the filter of a reader's mapping lets a record through. `table`: `counts` or `receipts`.

    The patterns come from the stack, and `make dev` applies them with the same function.
    """
    filters = [*filter_patterns(reader, Table(table))]
    return not filters or any(matches(pattern, record) for pattern in filters)


@dataclass
class Delivery:
    """The records of one stream shard, and how far one consumer has come. `process`: the consumer.

    `source`: the name of the table. `records` may grow. `position`: the number of records that the consumer has applied
    or its mapping has filtered out. `passes_filter`: whether the mapping's filter lets a record through.
    """

    process: Handler
    source: str
    shard: str
    records: list[Record] = field(default_factory=list)
    passes_filter: Callable[[Record], bool] = lambda record: True
    position: int = 0

    @property
    def is_done(self) -> bool:
        """Whether every record is delivered."""
        return self.position >= len(self.records)

    def batch(self, size: int = BATCH_RECORDS, repeats: int = 0) -> list[Record]:
        """Returns the next `size` records, after `repeats` earlier records, without what the filter removes."""
        return [
            record
            for record in self.records[max(0, self.position - repeats) : self.position + size]
            if self.passes_filter(record)
        ]

    def invoke(self, batch: Sequence[Record], context: object, process: Handler | None = None) -> str | None:
        """Invoke the consumer (or `process`) unless the batch is empty. Returns the sequence number that failed."""
        if not batch:
            return None
        return failed_sequence((process or self.process)(event(batch, self.shard, self.source), context))

    def advance(self, failed: str | None, size: int = BATCH_RECORDS) -> None:
        """Move the position to the failed record; None: behind a batch of this size."""
        if failed is None:
            self.position = min(len(self.records), self.position + size)
            return
        numbers = [int(record["dynamodb"]["SequenceNumber"]) for record in self.records]
        self.position = numbers.index(int(failed))

    def deliver_all(self, context: object, size: int = BATCH_RECORDS) -> None:
        """Deliver every record once. Raises RuntimeError if a record fails."""
        while not self.is_done:
            if failed := self.invoke(self.batch(size), context):
                raise RuntimeError(f"the consumer refused the record {failed}")
            self.advance(None, size)


class Stream:
    """Reads the stream of a table, which has one shard. `after`: the sequence number behind which reading begins."""

    def __init__(self, wire: SyncWire, table: str, after: str | None = None) -> None:
        self._wire = wire
        self.arn = str(wire.describe_table(TableName=table)["Table"]["LatestStreamArn"])
        (shard,) = wire.describe_stream(StreamArn=self.arn)["StreamDescription"]["Shards"]
        self.shard = str(shard["ShardId"])
        self._has_read = False
        self._iterator = self._begin(after)

    def _begin(self, after: str | None = None) -> str:
        shard = {"StreamArn": self.arn, "ShardId": self.shard}
        oldest = {"ShardIteratorType": "TRIM_HORIZON"}
        begin = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": after} if after else oldest
        try:
            return str(self._wire.get_shard_iterator(**shard, **begin)["ShardIterator"])
        except ClientError:
            if after is None:
                raise
            return self._begin()  # the stream has dropped the record, so the oldest record is next

    def read(self) -> list[Record]:
        """Read the next records, BATCH_RECORDS or fewer."""
        try:
            page = self._wire.get_records(ShardIterator=self._iterator, Limit=BATCH_RECORDS)
        except ClientError as error:
            # The iterator was made when the stream was empty. DynamoDB Local refuses such an iterator after a record.
            if error.response["Error"]["Code"] != "TrimmedDataAccessException" or self._has_read:
                raise
            page = self._wire.get_records(ShardIterator=self._begin(), Limit=BATCH_RECORDS)
        self._iterator = page["NextShardIterator"]
        self._has_read |= bool(page["Records"])
        return list(page["Records"])

    def read_new(self) -> Iterator[Record]:
        """Yields every record since the last read."""
        full = True
        while full:
            records = self.read()
            yield from records
            full = len(records) == BATCH_RECORDS
