"""Invokes the stream consumers as Lambda does, with the samples in `events/`, and records their requests to tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import counters
import handlers
from tally.api import needs
from tally.api.background import StreamReader
from tally.contract.declarations import READERS, Declarations
from tally.counting import periods, tallies
from tally.dynamo.client import Store
from tally.errors import ConfigurationError
from tally.notify import Notify
from tally.streams import rollup
from tally.streams.consumer import Handler
from tally.streams.dead_letters import DeadLetterBucket
from tally.streams.events import Bus
from tests import events
from tests.contexts import LambdaContext
from tests.integration.test_needs import AcceptingBus, Recorder
from tests.invariants.streaming import CONSUMERS, Bucket, StreamWorld

pytestmark = pytest.mark.sdk
MINUTE = 1795251612 // 60  # of the records in the samples, since 1970
SUCCESS: dict[str, Any] = {"state": {}, "batchItemFailures": []}
# The tallies after each sample, by counter and id.
TALLIES: dict[str, dict[tuple[str, str], int]] = {
    "rollup/stream-receipts": {("plays", "9f3a"): 2},
    "rollup/stream-likes": {("likes", "a91f"): 1},
}
# The amounts [expected, observed] that are booked after each sample, by counter, id and minute.
LEDGER: dict[str, dict[tuple[str, str, int], list[int]]] = {
    "bookkeeper/stream-receipts": {("plays", "9f3a", MINUTE): [2, 0], ("usage", "7c20", MINUTE): [10, 0]},
    # A like is expected and observed (+1), an edit by hand observed (+4), a removal by hand expected (-1).
    "bookkeeper/stream-counts": {("likes", "a91f", MINUTE): [0, 5]},
}
SAMPLES = [name for name in events.sample_names() if name.split("/")[0] in CONSUMERS]


class ConsumersRecorder(Recorder):
    """Records the needs of checkpoints by consumer and table, as the roles grant these needs."""

    def prefix(self, partition_key: str) -> str:
        if partition_key.startswith("CHECKPOINT#"):
            return partition_key[: partition_key.rindex("#") + 1]
        return super().prefix(partition_key)


@pytest.fixture
def consume(store: Store) -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    """Returns a function that invokes a consumer with an event, and puts the test's tables into the event."""
    bucket = Bucket()

    def call(function: str, event: dict[str, Any]) -> dict[str, Any]:
        objects, bus = DeadLetterBucket("bucket", lambda: bucket), Bus("bus", AcceptingBus)
        handler = Handler(CONSUMERS[function], counters.COUNTERS, store, objects, bus)
        settings = store.settings
        source = event["eventSourceARN"].replace("tally-test-counts", settings.counts_table)
        source = source.replace("tally-test-receipts", settings.receipts_table)
        return handler({**event, "eventSourceARN": source}, LambdaContext(remaining_ms=60_000))

    return call


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_takes_effect_once(name: str, consume: Callable[..., dict[str, Any]], store: Store) -> None:
    world = StreamWorld(store, store.client)
    for _ in range(2):
        assert consume(name.split("/")[0], events.sample(name)) == SUCCESS
    assert world.tallies() == TALLIES.get(name, {})
    assert world.ledger() == LEDGER.get(name, {})
    assert world.dead_letter_sequences() == {"rollup": set(), "bookkeeper": set()}


def test_an_event_without_a_shard_says_what_is_missing(consume: Callable[..., dict[str, Any]]) -> None:
    event = events.sample("rollup/stream-receipts")
    del event["shardId"]
    with pytest.raises(ConfigurationError, match="shardId"):
        consume("rollup", event)


def test_an_invalid_write_stops_a_consumer_until_its_code_is_corrected(
    consume: Callable[..., dict[str, Any]], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record does not become a dead letter, because the code is at fault: it names a shard that the tally cannot
    have."""
    world, name = StreamWorld(store, store.client), "rollup/stream-receipts"
    monkeypatch.setattr(rollup, "shard_of", lambda counter, context: counter.max_shards)
    with pytest.raises(AssertionError):
        consume("rollup", events.sample(name))
    assert (world.tallies(), world.rows("CHECKPOINT#"), world.rows("DEADLETTER")) == ({}, [], [])
    monkeypatch.undo()
    assert consume("rollup", events.sample(name)) == SUCCESS
    assert world.tallies() == TALLIES[name]


def test_a_consumer_of_this_deployment_stores_dead_letters_in_its_bucket() -> None:
    for consumer in READERS:
        handler = getattr(handlers, consumer.function)
        assert handler.objects.bucket == "tally-test-dead-letters"


@pytest.mark.parametrize("consumer", READERS, ids=lambda consumer: consumer.function)
def test_a_consumer_needs_exactly_what_it_declares(
    consumer: StreamReader, consume: Callable[..., dict[str, Any]], store: Store
) -> None:
    """The consumer gets changes of every counter, a threshold crossing, a dead letter, and a batch without effect."""
    recorder = ConsumersRecorder(store)
    receipts, likes = events.sample("rollup/stream-receipts"), events.sample("bookkeeper/stream-counts")
    spilled_likes = events.sample("rollup/stream-likes")
    (first, *_) = receipts["Records"]
    for number, counter in enumerate(counters.COUNTERS.values()):
        target = periods.tally_id(counter, "x", 1_800_000_000)
        image = {**first["dynamodb"]["NewImage"], "counter": {"S": counter.name}, "target": {"S": target}}
        if not counter.may_roll_up:
            del image["rollup"]
        receipts["Records"].append(_copy_of(first, 100 + number, NewImage=image))
    without_effect, poison = _copy_of(first, 200, NewImage={}), _copy_of(first, 201, NewImage=None)
    receipts["Records"] += [without_effect, poison]
    if consumer.function == "bookkeeper":
        calls = tallies.key(counters.CALLS, "7c20#2026-11-22", 0)  # `calls` has a threshold at 80 % of 1000
        images = {name: {**calls, "calls": {"N": number}} for name, number in (("OldImage", "9"), ("NewImage", "900"))}
        likes["Records"].append(_copy_of(likes["Records"][-1], 400, Keys=calls, **images))
    for event in (receipts, likes, spilled_likes, {**receipts, "Records": [_copy_of(first, 300, NewImage={})]}):
        assert consume(consumer.function, event) == SUCCESS
    assert recorder.needs == Declarations(Path(), counters.COUNTERS, counters.PAGES).needs[consumer.function]


def test_thresholds_of_a_counter_with_several_shards_need_only_what_is_declared(store: Store) -> None:
    plays = {"plays": replace(counters.PLAYS, notify=Notify(at=(3,)))}
    keys = tallies.key(counters.PLAYS, "9f3a", 0)
    store.client.put_item(TableName=store.settings.counts_table, Item={**keys, "play_count": {"N": "5"}})
    recorder = ConsumersRecorder(store)
    world = StreamWorld(store, store.client)
    first = events.sample("bookkeeper/stream-counts")["Records"][0]
    image = {**keys, "play_count": {"N": "5"}, "nonce": {"S": "n"}}
    put = {**first, "eventName": "INSERT", "dynamodb": {**first["dynamodb"], "Keys": keys, "NewImage": image}}
    batch = world.event("counts", "shard-1", [put])
    world.handler("bookkeeper", declared=plays, bus=Bus("bus", AcceptingBus))(batch, LambdaContext())
    assert len(world.rows("SENT#")) == 1
    declared_needs = Declarations(Path(), plays, counters.PAGES).needs["bookkeeper"]
    assert recorder.needs <= declared_needs | needs.on_ledger({"JUDGE": ["PutItem"]})  # the test itself writes JUDGE
    assert recorder.needs >= needs.to_make_events(plays.values()) | needs.to_send_events(plays.values())


def _copy_of(record: dict[str, Any], number: int, **change: Any) -> dict[str, Any]:
    """Returns a copy of the record with another sequence number, and with these changes."""
    sequence = str(int(record["dynamodb"]["SequenceNumber"]) + number)
    return {**record, "dynamodb": {**record["dynamodb"], "SequenceNumber": sequence, **change}}
