"""One deployment on a clock of its own: the engine's streams, both consumers, and the sweep's evidence and judge."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from botocore.config import Config

import counters
from tally.counter import Counter
from tally.counting import increments, likes, posts, receipts, tallies
from tally.counting.increments import Increment
from tally.drift import judge, recount, rows
from tally.drift.rows import Drift
from tally.dynamo import keys
from tally.dynamo.client import Call, Store
from tally.dynamo.shards import Shards
from tally.dynamo.transactions import put_receipt
from tally.streams import bookkeeper, evidence, record, rollup
from tally.streams.consumer import Handler
from tally.streams.set_aside import Objects
from tests.contexts import Context
from tests.invariants.streaming import Bucket

CONSUMERS = {"rollup": rollup.CONSUMER, "drift": bookkeeper.CONSUMER}
DAY_S = 24 * 3600
START_S = 1_800_000_000.0 // DAY_S * DAY_S + 3600
LIKES, PLAYS, VISITS = counters.LIKES, counters.PLAYS, counters.VISITS


@dataclass
class Deployment:
    """`silent`: each (consumer, table) that is not invoked now."""

    store: Store
    streams: Any
    now_s: float = START_S
    silent: set[tuple[str, str]] = field(default_factory=set)
    waiting: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    objects: Objects = field(default_factory=lambda: Objects("bucket", Bucket))

    def __post_init__(self) -> None:
        settings = self.store.settings
        self.names = {"counts": settings.counts_table, "receipts": settings.receipts_table}
        self.arns = {}
        for table, name in self.names.items():
            how: Any = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
            described = self.store.client.describe_table(TableName=name)["Table"]
            if "LatestStreamArn" not in described:
                described = self.store.client.update_table(TableName=name, StreamSpecification=how)["TableDescription"]
            self.arns[table] = described["LatestStreamArn"]
        self.shards = Shards(self.arns, lambda: self.streams)
        self.waiting = {(consumer, table): [] for consumer in CONSUMERS for table in self.names}
        self.shard = {table: self.shards.listed(table)[0].id for table in self.names}
        self._iterators = {table: self._iterator(table) for table in self.names}
        self.handlers = {
            name: Handler(each, counters.COUNTERS, self.store, self.objects) for name, each in CONSUMERS.items()
        }

    def _iterator(self, table: str) -> str:
        how = {"StreamArn": self.arns[table], "ShardId": self.shard[table], "ShardIteratorType": "TRIM_HORIZON"}
        return str(self.streams.get_shard_iterator(**how)["ShardIterator"])

    def clock(self) -> float:
        return self.now_s

    def _drain(self) -> None:
        for table in self.names:
            while records := self._records(table):
                for one in records:
                    one["dynamodb"]["ApproximateCreationDateTime"] = self.now_s
                    for consumer in CONSUMERS:
                        self.waiting[consumer, table].append(one)

    def _records(self, table: str) -> list[dict[str, Any]]:
        page = self.streams.get_records(ShardIterator=self._iterators[table], Limit=1000)
        self._iterators[table] = page["NextShardIterator"]
        found: list[dict[str, Any]] = page["Records"]
        return found

    def deliver(self) -> None:
        """Every consumer that is not silent gets what waits for it: first the rollup, which writes for the other."""
        for consumer in CONSUMERS:
            self._drain()
            for table in self.names:
                self._invoke(consumer, table)

    def _invoke(self, consumer: str, table: str) -> None:
        batch = [one for one in self.waiting[consumer, table] if wanted(consumer, table, one)]
        if batch and (consumer, table) not in self.silent:
            arn = f"arn:aws:dynamodb:eu-west-1:000000000000:table/{self.names[table]}/stream/x"
            event = {"Records": batch, "shardId": self.shard[table], "eventSourceARN": arn}
            assert self.handlers[consumer](event, Context())["batchItemFailures"] == []
            self.waiting[consumer, table] = []

    def trim(self) -> None:
        """What was not delivered so far is lost: it was more than a day in the stream."""
        self._drain()
        self.waiting = {mapping: [] for mapping in self.waiting}

    def sweep(self) -> None:
        seen = evidence.read(self.store, self.now_s)
        judge.judge(self.store, seen, self.now_s, until_s=float("inf"))
        evidence.renew(self.store, self.shards, seen, self.now_s)

    def run(self, minutes: float, each: Callable[[], object] = lambda: None) -> None:
        """Time passes, in steps of half a minute; a delivery and a sweep every minute."""
        for step in range(int(2 * minutes)):
            each()
            self.now_s += 30
            if step % 2:
                self.sweep()
            else:
                self.deliver()

    def sleep(self, pause_s: float) -> None:
        """What a command that waits does: the deployment goes on."""
        before = self.now_s
        self.now_s += max(pause_s, 0.001)
        if before // 30 != self.now_s // 30:
            self.deliver()
        if before // 60 != self.now_s // 60:
            self.sweep()

    def skip(self, seconds: float) -> None:
        """A long time passes in which nothing is delivered."""
        self.now_s += seconds

    @property
    def judged(self) -> int:
        return evidence.judged(self.store)

    # ---- what people do ----

    def play(self, video: str = "v", times: int = 1, counter: Counter = PLAYS) -> None:
        for _ in range(times):
            body = {"video_id": video, "counted": True}
            increments.count(Call(self.store), Increment(counter, video, 1, "play", secrets.token_hex(12), body))

    def spill(self, target: str = "v", times: int = 1, counter: Counter = PLAYS, at: int | None = None) -> None:
        """Accepted, and written alone."""
        for _ in range(times):
            call, key = Call(self.store), secrets.token_hex(12)
            stamp = receipts.stamp(call, receipts.Keyed("play", target, key, {}))
            facts = tallies.facts(counter, target, 1, tallies.minute_now(call) if at is None else at)
            put_receipt(call, stamp.alone(call, {}, **facts))

    def like(self, user: str, liked: bool = True, post: str = "p") -> None:
        operation = "like" if liked else "unlike"
        likes.set_like(Call(self.store, user), LIKES, post, liked, operation=operation, key=None)

    def like_alone(self, user: str, post: str = "p") -> None:
        child = {**keys.key(f"POST#{post}", f"LIKE#USER#{user}"), "rollup": {"BOOL": True}, "nonce": {"S": user}}
        child |= {"likedAt": {"N": str(int(self.now_s))}, "at": {"N": str(self.store.settings.minute(self.now_s))}}
        self.store.client.put_item(TableName=self.store.settings.counts_table, Item=child)

    def post(self, likers: int = 0, post: str = "p") -> None:
        posts.write_post(Call(self.store, "author"), LIKES, post, "hello")
        for number in range(likers):
            self.like(f"u{number}", post=post)

    def edit(self, amount: int, counter: Counter = LIKES, target: str = "p", shard: int = 0) -> None:
        """Edit a tally manually, around the API."""
        self.store.client.update_item(
            TableName=self.store.settings.counts_table,
            Key=tallies.key(counter, target, shard),
            UpdateExpression="ADD #number :amount",
            ExpressionAttributeNames={"#number": counter.attribute},
            ExpressionAttributeValues={":amount": {"N": str(amount)}},
        )

    def tally(self, counter: Counter = LIKES, target: str = "p") -> int:
        return recount.number(counter, recount.shards_of(Call(self.store), counter, target))

    def drift(self) -> dict[tuple[str, str], int]:
        return {(row.counter, row.target): row.drift for _, row in rows.every(self.store)}

    def row(self, counter: Counter = LIKES, target: str = "p") -> Drift | None:
        return rows.read(self.store, counter.name, target)


def wanted(consumer: str, table: str, one: dict[str, Any]) -> bool:
    """Whether the mapping's filter lets a record through."""
    if consumer == "drift" and table == "counts":
        return True
    if table == "receipts":
        return bool(one["eventName"] != record.REMOVE)
    return bool(one["eventName"] == record.INSERT or one["dynamodb"]["Keys"]["PK"]["S"].startswith("PULSE#"))


def deployed(store: Store, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A deployment that has judged its first minutes."""
    streams: Any = boto3.client(
        "dynamodbstreams", endpoint_url=endpoint, config=Config(parameter_validation=False)
    )  # fmt: skip
    made = Deployment(store, streams)
    monkeypatch.setattr(time, "time", made.clock)
    began = {"began": {"N": str(int(START_S) - 600)}}  # else the judge would let some minutes pass
    store.client.put_item(TableName=store.settings.ledger_table, Item=evidence.JUDGE | began)
    while made.judged < 0 and made.now_s < START_S + 1200:
        made.run(1)
    assert made.judged > 0
    return made
