"""Hours in seconds: the core on a simulated clock, with the engine's own streams, both consumers and the sweep."""

from __future__ import annotations

import itertools
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from botocore.config import Config

import counters
from tally.counter import Counter
from tally.counting import increments, likes, posts
from tally.counting.increments import Increment
from tally.drift import judge, rows
from tally.dynamo.client import Call, Store
from tally.streams import bookkeeper, progress, rollup
from tally.streams.consumer import Handler
from tally.streams.set_aside import Objects
from tests.contexts import Context

STREAMED = {"counts": "NEW_AND_OLD_IMAGES", "receipts": "NEW_AND_OLD_IMAGES"}
KINDS = {
    ("rollup", "receipts"): {"INSERT", "MODIFY"},
    ("rollup", "counts"): {"INSERT"},
    ("drift", "receipts"): {"INSERT", "MODIFY"},
    ("drift", "counts"): {"INSERT", "MODIFY", "REMOVE"},
}
Mapping_ = tuple[str, str]


class Clock:
    """Wall time that only the test moves."""

    def __init__(self) -> None:
        self.now_s = float(int(time.time() // 60) * 60)

    def __call__(self) -> float:
        return self.now_s


class Present(Clock):
    """Wall time as it is."""

    def __call__(self) -> float:
        return time.time()


@dataclass
class Simulation:
    """One deployment. `held`: mappings (consumer, table) that are not served now, as if their consumer lagged."""

    store: Store
    clock: Clock
    streams: Any
    held: set[Mapping_] = field(default_factory=set)
    waiting: dict[Mapping_, list[dict[str, Any]]] = field(default_factory=dict)
    drifted: list[tuple[str, str, int]] = field(default_factory=list)
    """Every drift row that was seen after any sweep."""
    users: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        declared, objects = counters.COUNTERS, Objects("unused", make=lambda: None)
        consumers = {"rollup": rollup.CONSUMER, "drift": bookkeeper.CONSUMER}
        self.handlers = {name: Handler(each, declared, self.store, objects) for name, each in consumers.items()}
        self.waiting = {mapping: [] for mapping in KINDS}
        self._iterators = {table: self._iterator(table) for table in STREAMED}

    def name(self, table: str) -> str:
        settings = self.store.settings
        return {"counts": settings.counts_table, "receipts": settings.receipts_table}[table]

    def _iterator(self, table: str) -> str:
        arn = self.store.client.describe_table(TableName=self.name(table))["Table"]["LatestStreamArn"]
        (shard,) = self.streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
        how = {"StreamArn": arn, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        return str(self.streams.get_shard_iterator(**how)["ShardIterator"])

    def _drain(self) -> None:
        """Take what the streams have, stamped with the simulated time."""
        for table in STREAMED:
            while True:
                page = self.streams.get_records(ShardIterator=self._iterators[table], Limit=1000)
                self._iterators[table] = page["NextShardIterator"]
                if not page["Records"]:
                    break
                for record in page["Records"]:
                    record["dynamodb"]["ApproximateCreationDateTime"] = self.clock()
                    for (consumer, stream), kinds in KINDS.items():
                        if stream == table and record["eventName"] in kinds:
                            self.waiting[consumer, stream].append(record)

    def deliver(self) -> None:
        """Hand every consumer that is served what waits for it, until nothing does: the rollup writes for the drift."""
        for mapping in [*KINDS, *KINDS]:
            self._drain()
            if mapping in self.held or not self.waiting[mapping]:
                continue
            consumer, table = mapping
            arn = f"arn:aws:dynamodb:eu-west-1:000000000000:table/{self.name(table)}/stream/x"
            event = {"Records": self.waiting[mapping], "shardId": f"shard-{table}", "eventSourceARN": arn}
            answer = self.handlers[consumer](event, Context())
            assert answer["batchItemFailures"] == []
            self.waiting[mapping] = []

    def sweep(self) -> None:
        """As the schedule does each minute, and note what drifts."""
        now_s, settle_s = self.clock(), self.store.settings.settle_s
        stands = progress.read_all(self.store)
        horizon_s = progress.horizon(stands, now_s, settle_s)
        judged = judge.sweep(self.store, horizon_s, now_s, until_s=float("inf"))
        assert judged.failures == []
        progress.pulse(self.store, now_s)
        self.drifted += [(row.counter, row.target, row.drift) for row in rows.every(self.store)]

    def minutes(self, number: int, traffic: Any = lambda minute: None) -> None:
        """Let time pass, in steps of 30 s: traffic, delivery; a sweep at the end of each minute."""
        for minute in range(number):
            for _ in range(2):
                traffic(minute)
                self.clock.now_s += 30
                self.deliver()
            self.sweep()

    def play(self, video: str, counter: Counter = counters.PLAYS) -> None:
        body = {"video_id": video, "counted": True}
        increments.count(Call(self.store), Increment(counter, video, 1, "play", secrets.token_hex(12), body))

    def like(self, user: str, liked: bool = True) -> None:
        name = "like" if liked else "unlike"
        likes.set_like(Call(self.store, user), counters.LIKES, "p", liked, operation=name, key=None)

    def write_post(self) -> None:
        posts.write_post(Call(self.store, "author"), counters.LIKES, "p", "hello")


def deployed(store: Store, endpoint: str, clock: Clock) -> Simulation:
    """A deployment on the store's tables, which get streams."""
    names = {"counts": store.settings.counts_table, "receipts": store.settings.receipts_table}
    for table, view in STREAMED.items():
        how: Any = {"StreamEnabled": True, "StreamViewType": view}
        store.client.update_table(TableName=names[table], StreamSpecification=how)
    config = Config(parameter_validation=False)
    streams: Any = boto3.client("dynamodbstreams", endpoint_url=endpoint, config=config)
    return Simulation(store, clock, streams)


def simulate(store: Store, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Simulation:
    """A deployment whose `time.time` is the simulation's."""
    clock = Clock()
    monkeypatch.setattr(time, "time", clock)
    return deployed(store, endpoint, clock)


# NEEDS CONTEXT
