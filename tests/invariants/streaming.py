"""The world of stream consumers: tables, a bucket, the handlers of both consumers, and their stored items."""

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
from tally.streams.forms import Forms
from tally.streams.segments import JournalEntry
from tests import delivery
from tests.contexts import LambdaContext
from tests.delivery import Delivery, Record, Stream, failed_sequence
from tests.invariants.processes import WatchedClient
from tests.invariants.stream_model import TABLES
from tests.sync_wire import SyncWire

CONSUMERS = {"rollup": rollup.CONSUMER, "bookkeeper": bookkeeper.CONSUMER}
DECLARED = {one.function: one for one in READERS}
RETIRED = Counter("retired", prefix="OLD", sort_key="TOTAL", attribute="number", visible="soon", retired=True)
REDECLARED = {**counters.COUNTERS, "retired": RETIRED}
LONG = "x" * 2100  # more than a key of DynamoDB's has bytes
NOW_S = 1_795_000_000.0


class Bucket:
    """A small S3. `failing`: so many puts fail."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.failing = 0

    def put_object(self, Bucket: str, Key: str, Body: bytes, ContentType: str) -> None:
        if self.failing > 0:
            self.failing -= 1
            raise ClientError({"Error": {"Code": "SlowDown"}}, "PutObject")
        self.objects[Key] = Body

    def get_object(self, Bucket: str, Key: str) -> dict[str, Any]:
        if Key not in self.objects:
            raise ClientError({"Error": {"Code": "NoSuchKey"}}, "GetObject")
        return {"Body": io.BytesIO(self.objects[Key])}

    def delete_object(self, Bucket: str, Key: str) -> None:
        self.objects.pop(Key, None)


def journal_entries(page: Item) -> list[JournalEntry]:
    """Returns the entries of a page of the journal: plain changes, and halves of unlikes."""
    entries = segments.removal_halves(page)
    for counter, (ids, *columns) in segments.columns(page).items():
        entries += [JournalEntry(counter, id_, "", *amounts) for id_, *amounts in zip(ids, *columns, strict=True)]
    return entries


@dataclass
class ConsumerWorld:
    """The tables of a store, a bucket, and consumers. Every handler is a process of its own."""

    store: Store
    """What handlers use."""
    raw: Any
    """A client of the tests' own, which nothing gets in the way of."""
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
        return streams.Handler(CONSUMERS[consumer], declared, store or self.store, self.objects, bus)

    def has_counted(self, counter: Counter) -> None:
        """Note the form of a counter, as its first booked change does: what follows writes nothing but its effects."""
        Forms(self.store).note(stream_records.CounterIndex({counter.name: counter}), [counter.name])

    def watched(self) -> tuple[Store, WatchedClient]:
        """Returns a store whose writes are watched, and its client."""
        client = WatchedClient(self.store.client)
        return self.with_client(client), client

    def with_client(self, client: Any = None) -> Store:
        """Returns the store of a process with this client."""
        return replace(self.store, client=client) if client else self.store

    def name(self, table: str) -> str:
        """The name of `counts` or `receipts`."""
        return str(getattr(self.store.settings, f"{table}_table"))

    def scan(self, table: str) -> list[Item]:
        """Returns every item of `counts`, `receipts` or `ledger`."""
        return list(itertools.chain(*queries.scan_pages(self.with_client(self.raw), self.name(table))))

    def expire(self, now_s: float) -> None:
        """Delete the expired items of the ledger, as DynamoDB does sooner or later."""
        for item in self.scan("ledger"):
            if int(item.get("expiration", {"N": "9" * 12})["N"]) <= now_s:
                name = {part: item[part] for part in ("PK", "SK")}
                self.raw.delete_item(TableName=self.store.settings.ledger_table, Key=name)

    # ---- what somebody does by hand, around Tally ----

    def put(self, item: Item) -> None:
        """Put an item into the counts."""
        self.raw.put_item(TableName=self.name("counts"), Item=item)

    def delete(self, key: Item) -> None:
        """Delete an item."""
        self.raw.delete_item(TableName=self.name("counts"), Key=key)

    def edit(self, amount: int, counter: Counter = counters.LIKES, target: str = "p", shard: int = 0) -> None:
        """Edit a tally."""
        self.raw.update_item(
            TableName=self.name("counts"),
            Key=tallies.key(counter, target, shard),
            UpdateExpression="ADD #number :amount",
            ExpressionAttributeNames={"#number": counter.attribute},
            ExpressionAttributeValues={":amount": {"N": str(amount)}},
        )

    # ---- what is stored ----

    def tallies(self) -> dict[tuple[str, str], int]:
        """(counter, target) -> the sum of its shards, as stored; zeros left out."""
        found: defaultdict[tuple[str, str], int] = defaultdict(int)
        for item in self.scan("counts"):
            prefix, _, target = item["PK"]["S"].partition("#")
            for counter in REDECLARED.values():
                low, high = counter.shard_range
                if counter.prefix == prefix and low <= item["SK"]["S"] <= high and counter.attribute in item:
                    found[counter.name, target] += int(item[counter.attribute]["N"])
        return {key: number for key, number in found.items() if number}

    def rows(self, prefix: str) -> list[Item]:
        return [item for item in self.scan("ledger") if item["PK"]["S"].startswith(prefix)]

    def segments(self) -> list[tuple[int, str, list[JournalEntry]]]:
        """The minute of each page, its sort key, and its entries."""
        found = []
        for row in self.rows("SEGMENT#"):
            found.append((int(row["PK"]["S"].split("#")[1]), row["SK"]["S"], journal_entries(row)))
        return found

    def ledger(self) -> dict[tuple[str, str, int], list[int]]:
        """(counter, target, minute) -> expected and observed, summed over the pages; zeros left out."""
        found: defaultdict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0, 0])
        for minute, _, entries in self.segments():
            for entry in entries:
                sums = found[entry.counter, entry.id, minute]
                sums[0] += entry.expected
                sums[1] += entry.observed
        return {key: sums for key, sums in found.items() if any(sums)}

    def put_judged(self, minute: int) -> None:
        """Store that the minutes up to this one are judged."""
        item = watermark.WATERMARK_KEY | {"judged": {"N": str(minute)}, "began": {"N": "1"}}
        self.raw.put_item(TableName=self.store.settings.ledger_table, Item=item)

    def checkpoint(self, name: str, table: str, shard: str) -> dict[str, str]:
        """The attributes of a checkpoint; empty if there is none."""
        key = keys.key(*keys.checkpoint_key(name, table, shard))
        item = queries.get(self.raw, self.name("ledger"), key)
        return {name: str(next(iter(value.values()))) for name, value in item.items()}

    def dead_letter_sequences(self) -> dict[str, set[str]]:
        """Sequence numbers of the dead letters, by consumer."""
        found: dict[str, set[str]] = {name: set() for name in CONSUMERS}
        for marker in dead_letters.list_markers(Call(replace(self.store, client=self.raw))):
            consumer, *_, sequence = marker.sort_key.split("#")
            found[consumer].add(sequence)
            assert marker.object in self.bucket.objects
        return found

    def redrive(
        self, declared: Mapping[str, Counter] = REDECLARED, markers: Iterable[DeadLetterMarker] | None = None
    ) -> list[str]:
        """Redrive every dead letter, or these. Returns the result of each."""
        return [outcome for outcome, _ in self.redrive_with_reasons(declared, markers)]

    def redrive_with_reasons(
        self, declared: Mapping[str, Counter] = REDECLARED, markers: Iterable[DeadLetterMarker] | None = None
    ) -> list[tuple[str, str]]:
        """Returns the results of `redrive` with their reasons."""
        call, known = Call(self.store), stream_records.CounterIndex(declared)
        done = [
            dead_letters.redrive(call, self.objects, CONSUMERS, known, marker)
            for marker in (list(dead_letters.list_markers(call)) if markers is None else markers)
        ]
        return [(outcome.value, why) for outcome, why in done]


@dataclass
class StreamWorld(ConsumerWorld):
    """Delivers made-up records of any time: the ledger began before all of them."""

    def __post_init__(self) -> None:
        self.put_judged(-1)

    def event(self, table: str, shard: str, records: list[Any]) -> dict[str, Any]:
        """Returns the event of a batch."""
        return delivery.event(records, shard, self.name(table))

    def deliver(self, name: str, table: str, shard: str, records: list[Any], **how: Any) -> str | None:
        """Deliver a batch. Returns the failed sequence number, or None."""
        return failed_sequence(self.handler(name, **how)(self.event(table, shard, records), LambdaContext()))


class EngineStreams(ConsumerWorld):
    """The engine's own streams of the tables, and both consumers. `wire`: a client of the engine, for the consumers."""

    def __init__(self, store: Store, wire: SyncWire) -> None:
        super().__init__(store, wire)
        self.wire = wire
        self.handlers = {consumer: self.handler(consumer, self.with_client(wire)) for consumer in CONSUMERS}
        self._streams = {table: Stream(wire, self.name(table)) for table in TABLES}

    def delivery(self, consumer: str, table: str, shard: str, records: list[Record]) -> Delivery:
        """Returns the delivery of a shard's records to a consumer."""
        takes = partial(delivery.passes_filters, DECLARED[consumer], table)
        return Delivery(self.handlers[consumer], self.name(table), shard, records, takes)

    def records(self, table: str) -> Iterator[Record]:
        """Returns the new records of a table's stream."""
        return self._streams[table].read_new()

    def forget(self) -> None:
        """Lose the new records, as if the streams were off or had trimmed them."""
        for table in TABLES:
            list(self.records(table))

    def off_by(self) -> dict[tuple[str, str], int]:
        """Returns observed minus expected, by tally, without zeros."""
        found: Multiset[tuple[str, str]] = Multiset()
        for (counter, id_, _), (expected, observed) in self.ledger().items():
            found[counter, id_] += observed - expected
        return {tally: drift for tally, drift in found.items() if drift}

    def drain(self) -> None:
        """Hand both consumers what the streams have, twice: the rollup writes for the bookkeeper."""
        for table in TABLES * 2:
            records = list(self.records(table))
            for consumer in CONSUMERS:
                self.delivery(consumer, table, f"shard-{table}", records).all(LambdaContext())
