"""A ConsumerWorld: tables, a bucket of dead letters, and the handlers of the rollup and of the bookkeeper."""

from __future__ import annotations

import io
import itertools
from collections import Counter as Multiset
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from botocore.exceptions import ClientError

import counters
from tally.contract.declarations import READERS
from tally.counter import Counter
from tally.counting import tallies
from tally.dynamo import keys, queries
from tally.dynamo.client import Call, Store
from tally.dynamo.keys import Item
from tally.streams import bookkeeper, dead_letters, rollup, segments, watermark
from tally.streams import consumer as streams
from tally.streams import record as stream_records
from tally.streams.dead_letters import DeadLetterBucket, DeadLetterMarker
from tally.streams.events import Bus
from tally.streams.fingerprints import FingerprintCache
from tally.streams.segments import JournalEntry
from tests import delivery
from tests.contexts import LambdaContext
from tests.delivery import Delivery, Record, Stream, failed_sequence
from tests.invariants.processes import WatchedClient
from tests.invariants.stream_model import TABLES
from tests.sync_wire import SyncWire

CONSUMERS = {"rollup": rollup.CONSUMER, "bookkeeper": bookkeeper.CONSUMER}
READER_OF_CONSUMER = {reader.function: reader for reader in READERS}
RETIRED = Counter("retired", prefix="OLD", sort_key="TOTAL", attribute="number", visible="soon", retired=True)
REDECLARED = {**counters.COUNTERS, "retired": RETIRED}
"""Declarations for a redrive. Consumers have COUNTERS, so a record of `retired` first becomes a dead letter."""
LONG_TEXT = "x" * 2100  # longer than a key of DynamoDB may be
NOW_S = 1_795_000_000.0  # the time of made-up records


class Bucket:
    """A bucket of S3 in memory. `failing_puts`: how many of the next puts fail."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.failing_puts = 0

    def put_object(self, Bucket: str, Key: str, Body: bytes, ContentType: str) -> None:
        if self.failing_puts > 0:
            self.failing_puts -= 1
            raise ClientError({"Error": {"Code": "SlowDown"}}, "PutObject")
        self.objects[Key] = Body

    def get_object(self, Bucket: str, Key: str) -> dict[str, Any]:
        if Key not in self.objects:
            raise ClientError({"Error": {"Code": "NoSuchKey"}}, "GetObject")
        return {"Body": io.BytesIO(self.objects[Key])}

    def delete_object(self, Bucket: str, Key: str) -> None:
        self.objects.pop(Key, None)


def journal_entries(page: Item) -> list[JournalEntry]:
    """Returns the entries of a page of the journal: changes, and the halves of removed children."""
    entries = segments.removal_halves(page)
    for counter, (ids, *columns) in segments.columns(page).items():
        entries += [JournalEntry(counter, id_, "", *amounts) for id_, *amounts in zip(ids, *columns, strict=True)]
    return entries


@dataclass
class ConsumerWorld:
    """The tables of a store, a bucket of dead letters, and consumers. Each handler is a separate process."""

    store: Store
    """The store of the handlers."""
    raw: Any
    """The client of the test. No fault meets its requests."""
    bucket: Bucket = field(default_factory=Bucket)

    @property
    def objects(self) -> DeadLetterBucket:
        return DeadLetterBucket("bucket", lambda: self.bucket)

    def handler(
        self,
        consumer: str,
        store: Store | None = None,
        declared: Mapping[str, Counter] = counters.COUNTERS,
        bus: Bus | None = None,
    ) -> streams.Handler:
        """Returns a new process of a consumer. `bus`: gets the consumer's events; None: nobody gets the events."""
        return streams.Handler(CONSUMERS[consumer], declared, store or self.store, self.objects, bus)

    def note_fingerprint(self, counter: Counter) -> None:
        """Store the fingerprint of a counter, as its first booked change does, so that no later batch writes it."""
        FingerprintCache(self.store).note(stream_records.CounterIndex({counter.name: counter}), [counter.name])

    def watched_store(self) -> tuple[Store, WatchedClient]:
        """Returns a store whose writes are watched, and its client."""
        client = WatchedClient(self.store.client)
        return self.with_client(client), client

    def with_client(self, client: Any = None) -> Store:
        """Returns the store of a process with this client."""
        return replace(self.store, client=client) if client else self.store

    def name(self, table: str) -> str:
        """Returns the name of a table. `table`: `counts`, `receipts` or `ledger`."""
        return str(getattr(self.store.settings, f"{table}_table"))

    def scan(self, table: str) -> list[Item]:
        """Returns every item of `counts`, `receipts` or `ledger`."""
        return list(itertools.chain(*queries.scan_pages(self.with_client(self.raw), self.name(table))))

    def delete_expired(self, now_s: float) -> None:
        """Delete the expired items of the ledger, as DynamoDB does sooner or later."""
        for item in self.scan("ledger"):
            if int(item.get("expiration", {"N": "9" * 12})["N"]) <= now_s:
                key = {part: item[part] for part in ("PK", "SK")}
                self.raw.delete_item(TableName=self.store.settings.ledger_table, Key=key)

    # ---- manual edits, without Tally ----

    def put(self, item: Item) -> None:
        """Put an item into the counts."""
        self.raw.put_item(TableName=self.name("counts"), Item=item)

    def delete(self, key: Item) -> None:
        """Delete an item of the counts."""
        self.raw.delete_item(TableName=self.name("counts"), Key=key)

    def edit(self, amount: int, counter: Counter = counters.LIKES, target: str = "p", shard: int = 0) -> None:
        """Add an amount to a tally without a receipt. The judge should find this edit."""
        self.raw.update_item(
            TableName=self.name("counts"),
            Key=tallies.key(counter, target, shard),
            UpdateExpression="ADD #number :amount",
            ExpressionAttributeNames={"#number": counter.attribute},
            ExpressionAttributeValues={":amount": {"N": str(amount)}},
        )

    # ---- the stored items ----

    def tallies(self) -> dict[tuple[str, str], int]:
        """Returns the stored sum of the shards of each tally (counter, target), without zeros."""
        sums: defaultdict[tuple[str, str], int] = defaultdict(int)
        for item in self.scan("counts"):
            prefix, _, target = item["PK"]["S"].partition("#")
            for counter in REDECLARED.values():
                low, high = counter.shard_range
                if counter.prefix == prefix and low <= item["SK"]["S"] <= high and counter.attribute in item:
                    sums[counter.name, target] += int(item[counter.attribute]["N"])
        return {tally: number for tally, number in sums.items() if number}

    def rows(self, prefix: str) -> list[Item]:
        """Returns the items of the ledger whose partition key has this prefix."""
        return [item for item in self.scan("ledger") if item["PK"]["S"].startswith(prefix)]

    def segments(self) -> list[tuple[int, str, list[JournalEntry]]]:
        """Returns the minute of each page of the journal, its sort key, and its entries."""
        pages = self.rows("SEGMENT#")
        return [(int(page["PK"]["S"].split("#")[1]), page["SK"]["S"], journal_entries(page)) for page in pages]

    def ledger(self) -> dict[tuple[str, str, int], list[int]]:
        """Returns the sums [expected, observed] of the journal by (counter, target, minute), without zeros."""
        booked: defaultdict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0, 0])
        for minute, _, entries in self.segments():
            for entry in entries:
                sums = booked[entry.counter, entry.id, minute]
                sums[0] += entry.expected
                sums[1] += entry.observed
        return {place: sums for place, sums in booked.items() if any(sums)}

    def mark_judged(self, minute: int) -> None:
        """Store a watermark by which every minute up to `minute` is judged."""
        item = watermark.WATERMARK_KEY | {"judged": {"N": str(minute)}, "began_s": {"N": "1"}}
        self.raw.put_item(TableName=self.store.settings.ledger_table, Item=item)

    def checkpoint(self, consumer: str, table: str, shard: str) -> dict[str, str]:
        """Returns the attributes of a checkpoint; empty if no checkpoint is stored."""
        key = keys.key(*keys.checkpoint_key(consumer, table, shard))
        item = queries.get(self.raw, self.name("ledger"), key)
        return {name: str(next(iter(value.values()))) for name, value in item.items()}

    def dead_letter_sequences(self) -> dict[str, set[str]]:
        """Returns the sequence numbers of each consumer's dead letters. Asserts that the bucket has each object."""
        sequences: dict[str, set[str]] = {name: set() for name in CONSUMERS}
        for marker in dead_letters.list_markers(Call(replace(self.store, client=self.raw))):
            consumer, *_, sequence = marker.sort_key.split("#")
            sequences[consumer].add(sequence)
            assert marker.object in self.bucket.objects
        return sequences

    def redrive(
        self, declared: Mapping[str, Counter] = REDECLARED, markers: Iterable[DeadLetterMarker] | None = None
    ) -> list[str]:
        """Redrive the dead letters of `markers`, by default all. Returns the result of each."""
        return [outcome for outcome, _ in self.redrive_with_reasons(declared, markers)]

    def redrive_with_reasons(
        self, declared: Mapping[str, Counter] = REDECLARED, markers: Iterable[DeadLetterMarker] | None = None
    ) -> list[tuple[str, str]]:
        """Redrive dead letters as `redrive` does. Returns the result of each, with the reason."""
        call, index = Call(self.store), stream_records.CounterIndex(declared)
        results = [
            dead_letters.redrive(call, self.objects, CONSUMERS, index, marker)
            for marker in (list(dead_letters.list_markers(call)) if markers is None else markers)
        ]
        return [(outcome.value, reason) for outcome, reason in results]


@dataclass
class StreamWorld(ConsumerWorld):
    """Delivers made-up records of any time. The ledger began before every record."""

    def __post_init__(self) -> None:
        self.mark_judged(-1)

    def event(self, table: str, shard: str, records: list[Any]) -> dict[str, Any]:
        """Returns the event of a batch."""
        return delivery.event(records, shard, self.name(table))

    def deliver(self, consumer: str, table: str, shard: str, records: list[Any], **options: Any) -> str | None:
        """Deliver a batch to a new process of a consumer. Returns the sequence number that the process reports as
        failed; None: every record is applied. `options`: what `handler` takes."""
        return failed_sequence(self.handler(consumer, **options)(self.event(table, shard, records), LambdaContext()))


class EngineStreams(ConsumerWorld):
    """The rollup and the bookkeeper, which read the engine's streams by the client `wire`."""

    def __init__(self, store: Store, wire: SyncWire) -> None:
        super().__init__(store, wire)
        self.wire = wire
        self.handlers = {consumer: self.handler(consumer, self.with_client(wire)) for consumer in CONSUMERS}
        self._streams = {table: Stream(wire, self.name(table)) for table in TABLES}

    def delivery(self, consumer: str, table: str, shard: str, records: list[Record]) -> Delivery:
        """Returns the delivery of a shard's records to a consumer."""
        passes = partial(delivery.passes_filters, READER_OF_CONSUMER[consumer], table)
        return Delivery(self.handlers[consumer], self.name(table), shard, records, passes)

    def records(self, table: str) -> Iterator[Record]:
        """Returns the new records of a table's stream."""
        return self._streams[table].read_new()

    def drop_new_records(self) -> None:
        """Drop the new records, as if the streams were off or had trimmed them."""
        for table in TABLES:
            list(self.records(table))

    def drift_by_tally(self) -> dict[tuple[str, str], int]:
        """Returns the drift of each tally, observed less expected, without zeros."""
        drifts: Multiset[tuple[str, str]] = Multiset()
        for (counter, id_, _), (expected, observed) in self.ledger().items():
            drifts[counter, id_] += observed - expected
        return {tally: drift for tally, drift in drifts.items() if drift}

    def drain(self) -> None:
        """Deliver the new records to both consumers, twice, because the rollup's writes make records as well."""
        for table in TABLES * 2:
            records = list(self.records(table))
            for consumer in CONSUMERS:
                self.delivery(consumer, table, f"shard-{table}", records).deliver_all(LambdaContext())
