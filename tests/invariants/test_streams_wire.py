"""The records that the engine itself streams are read as the synthetic ones are: their wire form is the right one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from typing import Any

import boto3
import pytest
from botocore.config import Config

import counters
from dev.streams.delivery import refused
from tally.counting import children, tallies
from tally.drift import judge
from tally.dynamo.client import Call, Store, dynamodb_client
from tally.settings import Settings
from tests.conftest import create_tables
from tests.engines import new_engine
from tests.invariants.streaming import CONSUMERS, Context, StreamWorld


@pytest.fixture
def streamed() -> Iterator[tuple[StreamWorld, Any]]:
    """A world of an engine of its own whose tables have streams, and a client of them."""
    with new_engine() as engine, closing(dynamodb_client(endpoint_url=engine.endpoint)) as client:
        settings = Settings.from_environment({
            f"TALLY_{name}_TABLE": f"tally-wire-{name.lower()}" for name in ("COUNTS", "RECEIPTS", "LEDGER")
        })  # fmt: skip
        create_tables(engine.endpoint, settings, ("counts", "receipts"))
        # The engine's sequence numbers are shorter than the 21 digits that botocore insists on.
        config = Config(parameter_validation=False)
        with closing(boto3.client("dynamodbstreams", endpoint_url=engine.endpoint, config=config)) as reader:
            yield StreamWorld(Store(client, settings), client), reader


def events(world: StreamWorld, reader: Any, table: str) -> list[dict[str, Any]]:
    """What Lambda would send: a batch for each shard of the table's stream."""
    name = getattr(world.store.settings, f"{table}_table")
    (stream,) = reader.list_streams(TableName=name)["Streams"]
    found = []
    for shard in reader.describe_stream(StreamArn=stream["StreamArn"])["StreamDescription"]["Shards"]:
        at = reader.get_shard_iterator(
            StreamArn=stream["StreamArn"], ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        records = reader.get_records(ShardIterator=at)["Records"]
        found.append(world.event(table, shard["ShardId"], json.loads(json.dumps(records, default=_epoch))))
    return found


def _epoch(value: object) -> float:
    assert isinstance(value, datetime)
    return value.timestamp()


def test_what_the_engine_streams_of_receipts_likes_and_tallies_is_read(streamed: tuple[StreamWorld, Any]) -> None:
    world, reader = streamed
    store, client, at = world.store, world.raw, int(time.time() // 60)
    for number in range(11):  # past the number at which sequence numbers gain a digit
        facts = tallies.facts(counters.PLAYS, "9f3a", 2, at)
        item = {"id": {"S": f"tally#{number}"}, "status": {"S": "COMPLETED"}, "rollup": {"BOOL": True}, **facts}
        client.put_item(TableName=store.settings.receipts_table, Item=item)
    client.put_item(TableName=store.settings.receipts_table, Item=item | {"nonce": {"S": "over"}})  # an expired one
    client.delete_item(TableName=store.settings.receipts_table, Key={"id": {"S": "tally#0"}})
    post = {"PK": {"S": "POST#p"}, "SK": {"S": "META"}, "likeTally": {"N": "0"}}
    client.put_item(TableName=store.settings.counts_table, Item=post)
    for user in ("ann", "bob"):
        children.set_child(Call(store), counters.LIKES, "p", user, True)
    children.set_child(Call(store), counters.LIKES, "p", "ann", False)
    spilled = {"PK": {"S": "POST#p"}, "SK": {"S": "LIKE#USER#cy"}, "likedAt": {"N": "1"}, "at": {"N": str(at)}}
    client.put_item(TableName=store.settings.counts_table, Item=spilled | {"rollup": {"BOOL": True}})
    for consumer in CONSUMERS.values():
        for table in ("receipts", "counts"):
            for event in events(world, reader, table) * 2:
                assert refused(world.handler(consumer)(event, Context())) is None
    assert world.tallies() == {("plays", "9f3a"): 24, ("likes", "p"): 2}
    sums: dict[tuple[str, str], list[int]] = {}
    for (counter, target, _), (expected, observed) in world.ledger().items():
        there = sums.setdefault((counter, target), [0, 0])
        there[0] += expected
        there[1] += observed
    assert sums == {("plays", "9f3a"): [24, 24], ("likes", "p"): [2, 2]}
    assert world.marked() == {"rollup": set(), "bookkeeper": set()}
    minutes = {minute for minute, _, _ in world.segments()}
    assert [sums for minute in minutes for sums in judge.differences(store, minute).values() if sums] == []
