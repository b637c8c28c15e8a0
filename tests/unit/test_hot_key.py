"""A hot key in the simulator of the benchmark: Tally's writes at the limit of one partition."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import counters
from bench.clients import SETTINGS
from bench.hot_key import Load, simulate
from bench.hot_table import PARTITION_WCU_PER_S, HotClient, HotTables, Hub
from tally.counting import children
from tally.dynamo import contention, transactions
from tally.dynamo.client import CALL_TIME_DEFAULT_S, Call, Store, dynamodb_client
from tally.dynamo.contention import BREAKER_THROTTLED_S, Breaker
from tally.errors import StoreBusyError
from tests.tiers import marked_long

TABLE = SETTINGS.counts_table


@pytest.fixture
def hub() -> Hub:
    """The virtual clock, which runs the simulated calls in turn."""
    return Hub()


@pytest.fixture
def tables(hub: Hub) -> HotTables:
    return HotTables(hub, SETTINGS, random.Random(1), receipts_partitions=4)


@pytest.fixture
def client(tables: HotTables) -> Iterator[HotClient]:
    boto = dynamodb_client()
    yield HotClient(tables, boto)
    boto.close()


def run(hub: Hub, calls: int, call: Callable[[], Any]) -> list[Any]:
    """Returns the results of `calls` calls that begin at the same time."""
    results: list[Any] = []
    for _ in range(calls):
        hub.start(lambda: results.append(call()), hub.now_s)
    hub.run()
    return results


def exhaust(hub: Hub, tables: HotTables, rate_per_s: float = 0.0) -> None:
    """Use up the write capacity of the one partition of counts. `rate_per_s`: the units that it regains in a second."""
    writes = tables.partition_of((TABLE, "VID#hot", "")).writes
    writes.rate_per_s, writes.units_left, writes.last_refill_s = rate_per_s, 0.0, hub.now_s


@pytest.mark.parametrize("counter", [counters.LIKES, *marked_long([counters.PLAYS])])
def test_changes_of_a_hot_tally_spill_and_none_fails(counter: Any) -> None:
    load = Load(counter, per_s=1000, duration_s=3.0)
    hot = simulate(load)
    assert (hot["failed"], hot["off by"]) == (0, 0)
    assert hot["conflicts"]
    assert hot["spilled"] > 0.5
    assert simulate(load) == hot, "a second run has the same seed, and so the same numbers"


def test_a_throttled_transaction_is_not_retried_and_its_change_spills(hub: Hub, tables: HotTables, client: Any) -> None:
    exhaust(hub, tables, PARTITION_WCU_PER_S)  # a retry some milliseconds later would succeed
    tables.items.add((TABLE, "POST#hot", "META"))  # the post exists
    store = Store(client, SETTINGS, breaker=Breaker(clock=hub.clock), clock=hub.clock, sleep=hub.sleep)
    call = Call(store, "reader", hub.now_s + 8)
    ((body, _),) = run(hub, 1, lambda: children.set_child(call, counters.LIKES, "hot", "reader", puts=True))
    assert body["visible"] == "soon"
    assert tables.throttles == 1
    hub.now_s += BREAKER_THROTTLED_S - 1
    assert store.breaker.is_open("POST#hot"), "DynamoDB takes minutes to split a partition"
    hub.now_s += 1
    assert not store.breaker.is_open("POST#hot")


def test_the_write_of_a_spilled_change_is_retried_for_longer_than_other_writes(
    hub: Hub, tables: HotTables, client: Any
) -> None:
    exhaust(hub, tables)
    store = Store(client, SETTINGS, clock=hub.clock, sleep=hub.sleep)
    put = {"TableName": TABLE, "Item": {"PK": {"S": "VID#hot"}, "SK": {"S": "x"}}}

    def seconds_until_failure() -> float:
        started_s = hub.now_s
        with pytest.raises(StoreBusyError):
            transactions.put_alone(Call(store, deadline_s=hub.now_s + 8), {"Put": put})
        return hub.now_s - started_s

    took_s = statistics.mean(run(hub, 20, seconds_until_failure))
    assert took_s > contention.RETRY_S_MAX + 2.5, "it takes about 7.0 s, and 3.9 s for other writes"
    assert contention.SPILL_RETRY_S_MAX < CALL_TIME_DEFAULT_S
