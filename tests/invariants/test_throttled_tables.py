"""DynamoDB throttles a table above `maxWrites` and `maxReads` units a second, and no change is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

import handlers
from tally.dynamo.client import Store
from tests import events, faults
from tests.contexts import LambdaContext
from tests.faults import Fault, Plan
from tests.invariants.stream_records import SHARD, play
from tests.invariants.streaming import StreamWorld
from tests.invariants.world import VIDEO, World

# DynamoDB's answers above the maximum of an on-demand table: to one request, and to a transaction.
THROTTLED, THROTTLED_TRANSACTION = faults.error_answer("ThrottlingException"), faults.THROTTLED_TRANSACTION
PLAY = events.http("increment_plays_short_route", id=VIDEO, idempotency_key=events.KEY)
CONTEST_ENTRY = events.http("increment", counter="contest", id="c", amount=None, idempotency_key=events.KEY)
LIKE = events.http(
    "put_anonymous", counter="hearts", id="home", secret="a-secret-of-one-browser-alone", idempotency_key=events.KEY
)
# Function and event. Functions whose names end with `_open` serve callers without sign-in.
CHANGES = [("increments_open", PLAY), ("increments", CONTEST_ENTRY), ("children_open", LIKE)]
READS = [("reads", events.http("get_counter", counter="plays", id=VIDEO)), ("receipts", events.http("get_receipts"))]


def throttling(store: Store, *tables: str) -> Plan:
    """Returns a plan that throttles every request to one of these tables."""
    names = [f'"{getattr(store.settings, f"{table}_table")}"'.encode() for table in tables]

    def plan(operation: str, body: bytes, number: int) -> Fault | None:
        if not any(name in body for name in names):
            return None
        return THROTTLED_TRANSACTION if operation == "TransactWriteItems" else THROTTLED

    return plan


def invoke(world: World, function: str, event: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Invoke a function. Returns the status and the whole answer."""
    answer = handlers.entry(function, world.store)(event, LambdaContext())
    return events.status_of(answer), answer


@pytest.mark.parametrize(("function", "event"), CHANGES, ids=[function for function, _ in CHANGES])
def test_a_change_of_throttled_tables_is_503_stores_nothing_and_its_retry_counts_once(
    world: World, function: str, event: dict[str, Any]
) -> None:
    world.proxy.plan = throttling(world.store, "counts", "receipts")
    for _ in range(2):
        status, answer = invoke(world, function, event)
        assert status == 503
        assert answer["headers"]["retry-after"] == "1"
        assert events.body_of(answer)["type"].endswith(":busy")
    assert world.scan("counts") == world.scan("receipts") == []
    world.proxy.plan = faults.no_faults
    assert [invoke(world, function, event)[0] for _ in range(2)] == [200, 200]
    assert len(world.scan("receipts")) == 1


def test_a_play_spills_while_the_counts_are_throttled_and_is_added_later_by_the_rollup(world: World) -> None:
    world.proxy.plan = throttling(world.store, "counts")
    status, answer = invoke(world, "increments_open", PLAY)
    assert (status, json.loads(answer["body"])["visible"]) == (200, "soon")
    assert (world.scan("counts"), world.tally_after_rollup()) == ([], 1)
    consumers, records = StreamWorld(world.store, world.raw), [play(1, VIDEO), play(2, VIDEO)]
    for _ in range(2):
        assert consumers.deliver("rollup", "receipts", SHARD, records) == "1", "Lambda repeats the failed record"
    assert world.scan("counts") == []
    world.proxy.plan = faults.no_faults
    assert consumers.deliver("rollup", "receipts", SHARD, records) is None
    assert consumers.deliver("rollup", "receipts", SHARD, records) is None
    assert world.tally() == 2
    assert consumers.dead_letter_sequences()["rollup"] == set(), "a throttled record does not become a dead letter"


@pytest.mark.parametrize(("function", "event"), READS, ids=[function for function, _ in READS])
def test_a_read_of_throttled_tables_is_503(world: World, function: str, event: dict[str, Any]) -> None:
    world.proxy.plan = throttling(world.store, "counts", "receipts")
    status, answer = invoke(world, function, event)
    assert (status, answer["headers"]["retry-after"]) == (503, "1")
    assert events.body_of(answer)["type"].endswith(":busy")
    world.proxy.plan = faults.no_faults
    assert invoke(world, function, event)[0] in (200, 404)
