"""The consumers read the engine's own stream records, which shows that the made-up records of other tests are right."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

import counters
from tally.counting import children, tallies
from tally.dev.base.engine import Engine
from tally.drift import judge
from tally.dynamo.client import Call, Store
from tests.contexts import LambdaContext
from tests.delivery import Record
from tests.invariants.stream_model import TABLES
from tests.invariants.streaming import CONSUMERS, EngineStreams
from tests.sync_wire import SyncWire


@pytest.fixture(scope="session")
def streamed() -> tuple[str, ...]:
    return TABLES


@pytest.fixture
def world(store: Store, engine: Engine) -> Iterator[EngineStreams]:
    wire = SyncWire(engine.port)
    yield EngineStreams(store, wire)
    wire.close()


def test_consumers_read_the_records_that_the_engine_streams(
    world: EngineStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)  # no minute ends during the test
    store, client, minute = world.store, world.store.client, int(now_s // 60)
    item: dict[str, Any] = {}
    for number in range(11):  # more than 10, so that sequence numbers gain a digit
        facts = tallies.receipt_facts(counters.PLAYS, "9f3a", 2, minute)
        item = {"id": {"S": f"tally#{number}"}, "status": {"S": "COMPLETED"}, "rollup": {"BOOL": True}, **facts}
        client.put_item(TableName=store.settings.receipts_table, Item=item)
    client.put_item(TableName=store.settings.receipts_table, Item=item | {"nonce": {"S": "after an expired receipt"}})
    client.delete_item(TableName=store.settings.receipts_table, Key={"id": {"S": "tally#0"}})
    post = {"PK": {"S": "POST#p"}, "SK": {"S": "META"}, "likeTally": {"N": "0"}}
    client.put_item(TableName=store.settings.counts_table, Item=post)
    for user in ("ann", "bob"):
        children.set_child(Call(store), counters.LIKES, "p", user, True)
    children.set_child(Call(store), counters.LIKES, "p", "ann", False)
    spilled = {"PK": {"S": "POST#p"}, "SK": {"S": "LIKE#USER#cy"}, "likedAt": {"N": "1"}, "at": {"N": str(minute)}}
    client.put_item(TableName=store.settings.counts_table, Item=spilled | {"rollup": {"BOOL": True}})
    records: dict[str, list[Record]] = {table: [] for table in TABLES}
    for consumer in CONSUMERS:
        for table in TABLES[::-1]:
            records[table] += world.records(table)  # the bookkeeper also reads what the rollup wrote
            for _ in range(2):  # each batch twice
                delivery = world.delivery(consumer, table, f"shard-{table}", [])
                assert delivery.invoke(records[table], LambdaContext()) is None
    # Twelve receipts of 2; the likes of ann, bob and cy, less the unlike of ann.
    assert world.tallies() == {("plays", "9f3a"): 24, ("likes", "p"): 2}
    sums: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for (counter, target, _), amounts in world.ledger().items():
        sums[counter, target] = [first + second for first, second in zip(sums[counter, target], amounts, strict=True)]
    assert sums == {("plays", "9f3a"): [24, 24], ("likes", "p"): [2, 2]}
    assert world.dead_letter_sequences() == {"rollup": set(), "bookkeeper": set()}
    assert not any(any(judge.differences(store, minute).values()) for minute, _, _ in world.segments())
