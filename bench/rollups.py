"""The cost and the speed of the stream consumers: the real handlers, on an engine, invoked as Lambda does."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from types import SimpleNamespace
from typing import Any

import boto3

import counters
from tally.counting import tallies
from tally.counting.increments import Increment, count
from tally.dynamo.client import Call
from tally.streams import fold, rollup
from tally.streams.consumer import Handler
from tally.streams.dead_letters import Objects
from tally.streams.fold import StreamConsumer, StreamPlace
from tally.streams.record import Declared, Record

from .clients import LOCAL, SETTINGS, Clients, clients_of, fresh_engine
from .watch import Meter

SEED = 1995
MEASURED = 1000  # plays
VIDEOS = (1, 10, 100, 1000)
BATCH_RECORDS = 1000  # as in the event source mappings
SHARD = "shardId-00000001700000000000-bench"
MINUTE = 28_000_000
_CONTEXT = SimpleNamespace(get_remaining_time_in_millis=lambda: 60_000)
_LOCATOR = "arn:aws:dynamodb:eu-west-1:000000000000:table/{}/stream/2026-01-01T00:00:00.000"


@dataclass(frozen=True)
class RollupCost:
    """The cost to roll up MEASURED plays of this many videos, in one batch."""

    videos: int
    write_units: float


@dataclass(frozen=True)
class Rollups:
    """The measurements of the stream consumers."""

    rollup_costs: list[RollupCost]
    folded_per_s: float
    """Records through the fold alone, in batches, on one core."""
    applied_per_s: float
    """Records of 100 videos, from the engine's stream through the rollup consumer into the tallies."""


def measure_rollups(records: int) -> Rollups:
    """Measure the costs, and the speeds with `records` records."""
    return Rollups(
        rollup_costs=[rollup_cost(videos) for videos in VIDEOS],
        folded_per_s=_fold_speed(records * 10),
        applied_per_s=_applied_speed(records),
    )


def receipts(number: int, videos: int) -> list[Record]:
    """Stream records of plays that were written as receipts alone."""
    chance = random.Random(SEED)
    return [
        {
            "eventName": "INSERT",
            "dynamodb": {
                "SequenceNumber": str(10**20 + index),
                "ApproximateCreationDateTime": MINUTE * 60.0,
                "Keys": {"id": {"S": f"tally#{index}"}},
                "NewImage": {
                    "id": {"S": f"tally#{index}"},
                    "counter": {"S": "plays"},
                    "target": {"S": f"video-{index % videos if index < videos else chance.randrange(videos)}"},
                    "amount": {"N": "1"},
                    "at": {"N": str(MINUTE)},
                    "nonce": {"S": "nonce"},
                    "rollup": {"BOOL": True},
                },
            },
        }
        for index in range(number)
    ]


def deliver(handler: Handler, table: str, records: Sequence[Record], shard: str = SHARD) -> None:
    """Invoke the handler with batches of one stream shard, as an event source mapping does.

    Raises RuntimeError if it refuses one.
    """
    for start in range(0, len(records), BATCH_RECORDS):
        batch = list(records[start : start + BATCH_RECORDS])
        event = {"Records": batch, "shardId": shard, "state": {}, "eventSourceARN": _LOCATOR.format(table)}
        with redirect_stdout(StringIO()):  # hides its metrics
            answer = handler(event, _CONTEXT)
        if answer["batchItemFailures"]:
            raise RuntimeError(f"the consumer did not apply {answer['batchItemFailures']}")


def handler_of(consumer: StreamConsumer, clients: Clients) -> Handler:
    """The handler of the Lambda function, with these clients."""
    return Handler(consumer, counters.COUNTERS, clients.store, Objects("bench"))


def rollup_cost(videos: int) -> RollupCost:
    """Write units to roll up MEASURED plays of so many videos."""
    with fresh_engine() as endpoint:
        clients = clients_of(endpoint)
        meter = Meter(clients.store.client)
        deliver(handler_of(rollup.CONSUMER, clients), SETTINGS.receipts_table, receipts(MEASURED, videos))
        units = meter.write_units
        counted = sum(clients.counted(f"video-{number}") for number in range(videos))
        assert counted == MEASURED, f"{counted} rolled up of {MEASURED}"
    return RollupCost(videos, units)


def _fold_speed(number: int) -> float:
    """Records a second of CPU time: other programs do not change it."""
    declared, batch, place = Declared(counters.COUNTERS), receipts(BATCH_RECORDS, 100), StreamPlace("receipts", SHARD)
    _fold(declared, place, batch)
    started_s, folded = time.process_time(), 0
    while folded < number:
        _fold(declared, place, batch)
        folded += len(batch)
    return folded / (time.process_time() - started_s)


def _fold(declared: Declared, place: StreamPlace, batch: Sequence[Record]) -> None:
    """All the runs of a batch: those that a consumer commits if nothing interrupts it."""
    records = list(fold.in_order(batch)[0].values())
    while records:
        records = records[fold.next_run(rollup.CONSUMER, declared, place, records, {}).records :]


def _applied_speed(number: int) -> float:
    with fresh_engine(streams=True) as endpoint:
        clients = clients_of(endpoint)
        plays = replace(counters.PLAYS, visible="soon")
        for index in range(number):
            change = Increment(plays, f"video-{index % 100}", 1, "play", f"{index:022d}", {"counted": True})
            count(Call(clients.store), change)
        handler = handler_of(rollup.CONSUMER, clients)
        started_s, applied, batch = time.perf_counter(), 0, list[Record]()
        for record in stream(endpoint, SETTINGS.receipts_table):
            batch.append(record)
            if len(batch) == BATCH_RECORDS:
                applied += len(batch)
                deliver(handler, SETTINGS.receipts_table, batch)
                batch = []
        deliver(handler, SETTINGS.receipts_table, batch)
        applied += len(batch)
        took_s = time.perf_counter() - started_s
        counted = sum(tallies.read(Call(clients.store), plays, f"video-{video}") for video in range(100))
        assert counted == number == applied, f"{counted} rolled up of {number}"
    return number / took_s


def stream(endpoint: str, table: str) -> Iterator[Record]:
    """The records of a table's stream, in the form that Lambda passes to a function."""
    client: Any = boto3.client("dynamodbstreams", endpoint_url=endpoint, **LOCAL)
    ((found),) = client.list_streams(TableName=table)["Streams"]
    for shard in client.describe_stream(StreamArn=found["StreamArn"])["StreamDescription"]["Shards"]:
        named = {"StreamArn": found["StreamArn"], "ShardId": shard["ShardId"]}
        iterator = client.get_shard_iterator(**named, ShardIteratorType="TRIM_HORIZON")["ShardIterator"]
        while iterator is not None:
            answer = client.get_records(ShardIterator=iterator, Limit=BATCH_RECORDS)
            for record in answer["Records"]:
                created = record["dynamodb"]["ApproximateCreationDateTime"].timestamp()
                yield {**record, "dynamodb": {**record["dynamodb"], "ApproximateCreationDateTime": created}}
            iterator = answer.get("NextShardIterator") if answer["Records"] else None
    client.close()
