"""What stream consumers are tested in: synthetic records in DynamoDB's wire form, and what they must come to.

`Facts` makes records and notes, as it makes them, what they are worth: by what was meant, not by what the code reads.
"""

from __future__ import annotations

import io
import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from botocore.exceptions import ClientError

import counters
from dev.streams import delivery
from dev.streams.delivery import refused
from tally.counter import Counter
from tally.dynamo import keys
from tally.dynamo.client import Call, Store
from tally.dynamo.keys import Item
from tally.streams import bookkeeper, dead_letters, rollup, segments, watermark
from tally.streams import consumer as streams
from tally.streams import record as stream_records
from tally.streams.dead_letters import Objects
from tally.streams.fold import StreamConsumer
from tally.streams.segments import Booked
from tests.contexts import Context
from tests.invariants.processes import Watched

CONSUMERS = {"rollup": rollup.CONSUMER, "bookkeeper": bookkeeper.CONSUMER}
RETIRED = Counter("retired", prefix="OLD", sort_key="TOTAL", attribute="number", visible="soon", retired=True)
REDECLARED = {**counters.COUNTERS, "retired": RETIRED}
LONG = "x" * 2100  # more than a key of DynamoDB's has bytes
NOW_S = 1_795_000_000.0
S = stream_records


class Bucket:
    """S3, as far as it is used here; `failing` puts fail."""

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


@dataclass
class Facts:
    """Makes the records of stream shards, and keeps the sums that they must come to."""

    seed: int
    chance: random.Random
    tallies: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """What the rollup must have added: (counter, target) -> amount."""
    ledger: defaultdict[tuple[str, str, int], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    """(counter, target, minute) -> expected, observed."""
    dead_letters: dict[str, set[str]] = field(default_factory=lambda: {"rollup": set(), "bookkeeper": set()})
    """Sequence numbers of what must become a dead letter, by consumer."""
    redriven: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """What redriving must add, once the retired counter is declared again."""
    sequence: int = 0
    made: int = 0

    @property
    def now_minute(self) -> int:
        return int(NOW_S // 60)

    def minute(self) -> int:
        """A stamp: in time on three minutes, so that a batch often holds two of them for one tally; or strange."""
        return self.now_minute + self.chance.choice((-900, -2, -1, -1, 0, 0, 0, 1, 2))

    def label(self, at: int) -> int:
        """The minute that a change is booked on."""
        return at if abs(at - self.now_minute) <= 1 else self.now_minute

    def target(self) -> str:
        return f"s{self.seed}-{self.chance.randrange(4)}"

    def record(self, name: str, change: dict[str, Any]) -> dict[str, Any]:
        """A record with the next sequence number."""
        self.sequence += self.chance.choice((1, 1, 1, 2, 7))
        self.made += 1
        change |= {"SequenceNumber": str(self.sequence), "ApproximateCreationDateTime": NOW_S + self.made / 100}
        return {"eventID": str(self.sequence), "eventName": name, "eventSource": "aws:dynamodb", "dynamodb": change}

    def receipt(self, *, counter: str = "plays", alone: bool = True, name: str = "INSERT") -> dict[str, Any]:
        """An accepted change: of a play by default, written alone."""
        target, at, amount = self.target(), self.minute(), self.chance.choice((1, 1, 1, 3, -2, 10**9))
        image = _receipt(counter, target, amount, at, alone)
        made = self.record(name, {"Keys": {"id": image["id"]}, "NewImage": image})
        if alone and counter != "retired":
            self.tallies[counter, target] += amount
        if counter != "retired":
            self.ledger[counter, target, self.label(at)][0] += amount
        if alone and counter == "retired":
            for consumer in self.dead_letters.values():
                consumer.add(str(self.sequence))
            self.redriven[counter, target] += amount
        return made

    def nothing(self) -> dict[str, Any]:
        """A record of the receipts that has no effect: an expiry, a keyed like's receipt, a heartbeat."""
        image = _receipt("plays", self.target(), 5, self.minute(), True)
        of_receipt = {"Keys": {"id": image["id"]}}
        kind = self.chance.randrange(3)
        if kind == 0:
            return self.record("REMOVE", of_receipt)
        if kind == 1:
            return self.heartbeat({"id": {"S": f"heartbeat#{self.chance.randrange(9)}"}})
        bare = {name: value for name, value in image.items() if name in ("id", "status", "data", "expiration")}
        return self.record("INSERT", of_receipt | {"NewImage": bare})

    def heartbeat(self, key: Item) -> dict[str, Any]:
        """A heartbeat of the sweep; each carries a later time."""
        image = {**key, "at": {"N": "1"}, "rolled": {"N": str(int(NOW_S) + self.made)}, "expiration": {"N": "2"}}
        return self.record(self.chance.choice(("INSERT", "MODIFY")), {"Keys": key, "NewImage": image})

    def poison(self) -> dict[str, Any]:
        """A receipt that nobody can apply: malformed, or a target that DynamoDB does not take."""
        image: Any = _receipt("plays", self.target(), 1, self.minute(), True)
        name = "INSERT"
        kind = self.chance.randrange(6)
        if kind == 0:
            del image["amount"]
        elif kind == 1:
            image["amount"] = {"N": "1.5"}
        elif kind == 2:
            image["at"] = {"N": str(10**11)}
        elif kind == 3:
            name = "UPSERT"
        elif kind == 4:
            image = None
        else:
            image["target"] = {"S": LONG}
        made = self.record(name, {"Keys": {"id": {"S": "x"}}} | ({} if image is None else {"NewImage": image}))
        self.dead_letters["rollup"].add(str(self.sequence))
        if kind == 5:  # DynamoDB refuses it as a key; the ledger has only its digest in one
            self.ledger["plays", LONG, self.label(int(image["at"]["N"]))][0] += 1
        else:
            self.dead_letters["bookkeeper"].add(str(self.sequence))
        return made

    def receipts(self, length: int, poisoned: bool) -> list[dict[str, Any]]:
        """The records of one shard of the receipts' stream."""
        made: list[dict[str, Any]] = []
        for _ in range(length):
            kind = self.chance.randrange(12)
            if kind == 0:
                made.append(self.nothing())
            elif kind in (1, 2):
                made.append(self.receipt(alone=False))
            elif kind == 3:
                made.append(self.receipt(counter="visits", name="MODIFY"))
            elif kind == 4:
                made.append(self.receipt(counter="retired"))
            else:
                made.append(self.receipt(counter=self.chance.choice(("plays", "visits", "usage"))))
            if poisoned and self.chance.randrange(8) == 0:
                made.append(self.poison())
        return made

    def counts(self, length: int) -> list[dict[str, Any]]:
        """The records of one shard of the counts' stream: children, tally items, and things that mean nothing."""
        return [self.chance.choice((self.child, self.tally, self.other))() for _ in range(length)]

    def child(self) -> dict[str, Any]:
        """A like that came (alone, or with its tally), went, or was edited."""
        target, at, kind = self.target(), self.minute(), self.chance.randrange(6)
        keys = {"PK": {"S": f"POST#{target}"}, "SK": {"S": f"LIKE#USER#u{self.sequence}"}}
        image = {**keys, "likedAt": {"N": "1"}, "at": {"N": str(at)}, "nonce": {"S": "n"}}
        if kind == 5:
            return self.record("MODIFY", {"Keys": keys, "NewImage": image, "OldImage": image})
        if kind == 4:  # made manually, without a minute
            del image["at"]
            at = self.now_minute
        if kind == 3:
            image["rollup"] = {"BOOL": True}
            self.tallies["likes", target] += 1
        if kind == 2:
            self.ledger["likes", target, self.now_minute][0] -= 1
            return self.record("REMOVE", {"Keys": keys, "OldImage": image})
        self.ledger["likes", target, self.label(at)][0] += 1
        return self.record("INSERT", {"Keys": keys, "NewImage": image})

    def tally(self) -> dict[str, Any]:
        """A tally item that moved, or came or went: by a change, an unlike, the rollup, a repair, or manually."""
        name, target, at = self.chance.choice(("plays", "likes", "stock", "contest")), self.target(), self.minute()
        counter = counters.COUNTERS[name]
        shard = self.chance.randrange(counter.max_shards)
        keys = {"PK": {"S": counter.partition_start + target}, "SK": {"S": counter.shard_key(shard)}}
        old, new = self.chance.randrange(50), self.chance.randrange(50)
        now, label = self.now_minute, self.label(at)
        by, booked = self.chance.choice(
            (("", label), ("-", label), ("-0123456789ab.", now), ("+", min(at, now)), ("~", None), (None, now))
        )
        if by == "+":
            at = booked or 0
        before = {**keys, counter.attribute: {"N": str(old)}, "at": {"N": str(at - 1)}, "nonce": {"S": "old"}}
        there = by is None or self.chance.randrange(3) > 0
        moved = new - (old if there else counter.start)
        nonce = before["nonce"] if by is None else {"S": f"{by}{moved}.new" if by == "~" else f"{by}new"}
        image = {**keys, counter.attribute: {"N": str(new)}, "at": {"N": str(at)}, "nonce": nonce}
        if self.chance.randrange(4) == 0:
            self.ledger[name, target, self.now_minute][1] += counter.start - old
            return self.record("REMOVE", {"Keys": keys, "OldImage": before})
        if booked is not None:
            self.ledger[name, target, booked][1] += moved
        images = {"NewImage": image} | ({"OldImage": before} if there else {})
        return self.record("MODIFY" if there else "INSERT", {"Keys": keys, **images})

    def other(self) -> dict[str, Any]:
        """An item that is no tally and no child: a post's text, a heartbeat, an item of another team's."""
        partition, sort = self.chance.choice(
            (("POST#p", "META.BODY"), ("HEARTBEAT#7", "HEARTBEAT"), ("VID#v", "STATS#TOTALS"))
        )
        keys = {"PK": {"S": partition}, "SK": {"S": sort}}
        if sort == "HEARTBEAT":
            return self.heartbeat(keys)
        return self.record("INSERT", {"Keys": keys, "NewImage": {**keys, "likeTally": {"N": "3"}}})


def _receipt(counter: str, target: str, amount: int, at: int, alone: bool) -> dict[str, Any]:
    facts = {"counter": {"S": counter}, "target": {"S": target}, "amount": {"N": str(amount)}, "at": {"N": str(at)}}
    image = {"id": {"S": f"tally#{target}"}, "status": {"S": "COMPLETED"}, "data": {"S": "{}"}, "nonce": {"S": "n"}}
    return {**image, **facts, "expiration": {"N": "1"}} | ({"rollup": {"BOOL": True}} if alone else {})


@dataclass
class StreamWorld:
    """Tables, a bucket, and consumers of both kinds. Every handler is a process of its own."""

    store: Store
    """What handlers use."""
    raw: Any
    """A client of the tests' own, which nothing gets in the way of."""
    bucket: Bucket = field(default_factory=Bucket)

    def handler(
        self, consumer: StreamConsumer, store: Store | None = None, declared: Mapping[str, Counter] = counters.COUNTERS
    ) -> streams.Handler:
        return streams.Handler(consumer, declared, store or self.store, Objects("bucket", lambda: self.bucket))

    def watched(self) -> tuple[Store, Watched]:
        """A store whose writes are watched, and its client."""
        client = Watched(self.store.client)
        return self.through(client), client

    def through(self, client: Watched) -> Store:
        """The store of a process with this client."""
        return replace(self.store, client=client)  # type: ignore[arg-type]

    def event(self, table: str, shard: str, records: list[Any]) -> dict[str, Any]:
        """The event of a batch."""
        return delivery.event(records, shard, self.name(table))

    def name(self, table: str) -> str:
        """The name of `counts` or `receipts`."""
        return str(getattr(self.store.settings, f"{table}_table"))

    def deliver(self, name: str, table: str, shard: str, records: list[Any], **how: Any) -> str | None:
        """Deliver a batch; the sequence number that failed, or None."""
        return refused(self.handler(CONSUMERS[name], **how)(self.event(table, shard, records), Context()))

    def scan(self, table: str) -> list[Item]:
        pages = self.raw.get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
        return [dict(item) for page in pages for item in page["Items"]]

    def tallies(self) -> dict[tuple[str, str], int]:
        """(counter, target) -> the sum of its shards, as stored; zeros left out."""
        found: defaultdict[tuple[str, str], int] = defaultdict(int)
        for item in self.scan(self.store.settings.counts_table):
            prefix, _, target = item["PK"]["S"].partition("#")
            for counter in REDECLARED.values():
                low, high = counter.shard_range
                if counter.prefix == prefix and low <= item["SK"]["S"] <= high and counter.attribute in item:
                    found[counter.name, target] += int(item[counter.attribute]["N"])
        return {key: number for key, number in found.items() if number}

    def rows(self, prefix: str) -> list[Item]:
        return [item for item in self.scan(self.store.settings.ledger_table) if item["PK"]["S"].startswith(prefix)]

    def segments(self) -> list[tuple[int, str, list[Booked]]]:
        """The minute of each page, its sort key, and its entries: both those of plain changes and halves of unlikes."""
        found = []
        for row in self.rows("SEGMENT#"):
            entries = segments.pairs(row)
            for counter, (ids, *columns) in segments.sums(row).items():
                entries += [Booked(counter, id_, "", *amounts) for id_, *amounts in zip(ids, *columns, strict=True)]
            found.append((int(row["PK"]["S"].split("#")[1]), row["SK"]["S"], entries))
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
        """Say that the minutes up to this one are judged."""
        item = watermark.JUDGE | {"judged": {"N": str(minute)}}
        self.raw.put_item(TableName=self.store.settings.ledger_table, Item=item)

    def checkpoint(self, name: str, table: str, shard: str) -> dict[str, str]:
        """The attributes of a checkpoint; empty if there is none."""
        key = keys.key(*keys.checkpoint_key(name, table, shard))
        item = self.raw.get_item(TableName=self.store.settings.ledger_table, Key=key, ConsistentRead=True).get(
            "Item", {}
        )
        return {name: next(iter(value.values())) for name, value in item.items()}  # type: ignore[misc,call-overload]

    def marked(self) -> dict[str, set[str]]:
        """Sequence numbers of the dead letters, by consumer."""
        found: dict[str, set[str]] = {name: set() for name in CONSUMERS}
        for marker in dead_letters.listed(Call(replace(self.store, client=self.raw))):
            consumer, *_, sequence = marker.sort_key.split("#")
            found[consumer].add(sequence)
            assert marker.object in self.bucket.objects
        return found

    def redrive(self, declared: Mapping[str, Counter] = REDECLARED, store: Store | None = None) -> list[str]:
        """Redrive every dead letter; what became of each."""
        call = Call(store or self.store)
        objects = Objects("bucket", lambda: self.bucket)
        known = stream_records.Declared(declared)
        return [
            dead_letters.redrive(call, objects, CONSUMERS, known, marker, watermark.judged(call.store))[0].value
            for marker in list(dead_letters.listed(call))
        ]
