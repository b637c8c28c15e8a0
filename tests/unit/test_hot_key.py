"""The simulator of a hot key: its model of DynamoDB keeps its limits, and it is Tally's guards that it measures."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

import counters
from bench.clients import SETTINGS
from bench.hot_key import Heat, simulate
from bench.hot_table import PARTITION_WCU_PER_S, START_S, HotClient, HotTables, Hub
from tally.counting import children
from tally.dynamo import contention, transactions
from tally.dynamo.client import CALL_TIME_DEFAULT_S, Call, Store, dynamodb_client
from tally.dynamo.contention import THROTTLED_S, Breaker
from tally.errors import StoreBusyError
from tests.tiers import in_long

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

TABLE = SETTINGS.counts_table


@pytest.fixture(scope="module")
def boto() -> Iterator[DynamoDBClient]:
    client = dynamodb_client()
    yield client
    client.close()


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def tables(hub: Hub) -> HotTables:
    return HotTables(hub, SETTINGS, random.Random(1), receipts_partitions=4)


@pytest.fixture
def client(tables: HotTables, boto: DynamoDBClient) -> HotClient:
    return HotClient(tables, boto)


def put(sort_key: str, **more: Any) -> dict[str, Any]:
    return {"TableName": TABLE, "Item": {"PK": {"S": "VID#hot"}, "SK": {"S": sort_key}}, **more}


def transact(client: HotClient, *sort_keys: str, **more: Any) -> list[str]:
    """The codes of a transaction; none if it was committed."""
    try:
        client.transact_write_items([{"Put": put(key, **more)} for key in sort_keys])
    except client.exceptions.TransactionCanceledException as cancelled:
        return [reason["Code"] for reason in cancelled.response["CancellationReasons"]]
    return []


def put_alone(client: HotClient, sort_key: str) -> str:
    """The code of a single write; empty if it was made."""
    try:
        client.put_item(**put(sort_key))
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def run(hub: Hub, *calls: tuple[float, Any]) -> list[Any]:
    """What the calls give, each begun so many seconds from now, in that order."""
    found: list[Any] = [None] * len(calls)

    def note(place: int, call: Any) -> None:
        found[place] = call()

    for place, (after_s, call) in enumerate(calls):
        hub.start(lambda place=place, call=call: note(place, call), hub.now_s + after_s)  # type: ignore[misc]
    hub.run()
    return found


def exhausted(hub: Hub, tables: HotTables, rate_per_s: float = 0.0) -> None:
    """Use up the hot partition; it regains so much."""
    writes = tables.partition_of((TABLE, "VID#hot", "")).writes
    writes.rate_per_s, writes.left, writes.seen_s = rate_per_s, 0.0, hub.now_s


def test_writes_beyond_the_limit_of_the_partition_are_throttled(hub: Hub, tables: HotTables, client: HotClient) -> None:
    seconds, per_s = 4, 1000
    numbers = range(seconds * per_s)
    codes = run(hub, *((n / per_s, lambda n=n: transact(client, f"a{n}", f"b{n}")) for n in numbers))
    committed = sum(not found for found in codes)
    assert committed == pytest.approx(PARTITION_WCU_PER_S * (seconds + 1) / 4, rel=0.01)  # and what it had kept
    assert {code for found in codes for code in found} == {"ThrottlingError"}


@pytest.mark.parametrize(("after_s", "expected"), [(0.005, ["TransactionConflict"]), (0.040, [])])
def test_transactions_conflict_only_while_they_overlap(
    hub: Hub, tables: HotTables, client: HotClient, after_s: float, expected: list[str]
) -> None:
    first, second = run(hub, (0, lambda: transact(client, "x")), (after_s, lambda: transact(client, "x")))
    assert (first, second) == ([], expected)
    assert tables.conflicts == len(expected)


def test_the_codes_stand_in_the_order_of_the_writes_and_others_do_not_conflict(hub: Hub, client: HotClient) -> None:
    calls = [(0.0, ("x",)), (0.003, ("y", "x", "z")), (0.003, ("u",))]
    found = run(hub, *((after_s, lambda keys=keys: transact(client, *keys)) for after_s, keys in calls))
    assert found == [[], ["None", "TransactionConflict", "None"], []]


def test_conditions_are_judged_and_what_fails_is_paid_for(hub: Hub, tables: HotTables, client: HotClient) -> None:
    condition = {"ConditionExpression": "attribute_not_exists(SK)"}
    assert run(hub, (0, lambda: transact(client, "x", **condition))) == [[]]
    assert tables.write_units == 2
    assert run(hub, (0, lambda: transact(client, "x", **condition))) == [["ConditionalCheckFailed"]]
    assert tables.write_units == 3
    with pytest.raises(NotImplementedError, match="play_count"):
        run(hub, (0, lambda: transact(client, "x", ConditionExpression="play_count > :x")))


def test_a_single_write_is_sent_again_after_throttling_and_not_after_a_conflict(
    hub: Hub, tables: HotTables, client: HotClient
) -> None:
    found = run(hub, (0, lambda: transact(client, "x")), (0.005, lambda: put_alone(client, "x")))
    assert (found, tables.conflicts) == ([[], "TransactionConflictException"], 1)
    exhausted(hub, tables)
    assert run(hub, (0, lambda: put_alone(client, "x"))) == ["ProvisionedThroughputExceededException"]
    assert tables.throttles == 3
    assert 0.1 < hub.now_s - START_S < 3.1  # up to 1 s and up to 2 s


# Tally in it


@pytest.mark.parametrize("counter", [counters.LIKES, *in_long([counters.PLAYS])])
def test_heat_is_written_alone_and_nothing_fails(counter: Any) -> None:
    hot = simulate(Heat(counter, 1000, 3.0))
    assert (hot["failed"], hot["off by"]) == (0, 0)
    assert hot["conflicts"]
    assert hot["spilled"] > 0.5
    assert simulate(Heat(counter, 1000, 3.0)) == hot  # a seed repeats every number


def test_without_spilling_heat_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def trip(self: object, tally: str, hot_s: float = 0.0) -> None:
        raise StoreBusyError("no spilling")

    monkeypatch.setattr(transactions, "SPILL_RETRIES_MAX", contention.ATTEMPTS_MAX)
    monkeypatch.setattr(contention.Breaker, "hot", lambda self, tally: False)
    monkeypatch.setattr(contention.Breaker, "trip", trip)
    assert simulate(Heat(counters.PLAYS, 1000, 4.0))["failed"] > 0.05


# What the simulation asked of the write path at the limit of one partition


def test_a_throttled_transaction_is_not_tried_again_but_written_alone(hub: Hub, tables: HotTables, client: Any) -> None:
    exhausted(hub, tables, PARTITION_WCU_PER_S)  # but milliseconds later there is room again
    tables.items.add((TABLE, "POST#hot", "META"))
    store = Store(client, SETTINGS, breaker=Breaker(clock=hub.clock), clock=hub.clock, sleep=hub.sleep)
    call = Call(store, "reader", hub.now_s + 8)
    ((body, _),) = run(hub, (0, lambda: children.set_child(call, counters.LIKES, "hot", "reader", True)))
    assert body["visible"] == "soon"
    assert tables.throttles == 1
    hub.now_s += THROTTLED_S - 1
    assert store.breaker.hot("POST#hot")  # longer than after conflicts: DynamoDB takes minutes to split a partition
    hub.now_s += 1
    assert not store.breaker.hot("POST#hot")


def test_what_is_written_alone_is_tried_for_longer_than_what_is_not(hub: Hub, tables: HotTables, client: Any) -> None:
    exhausted(hub, tables)
    store = Store(client, SETTINGS, clock=hub.clock, sleep=hub.sleep)

    def failing() -> float:
        started_s = hub.now_s
        with pytest.raises(StoreBusyError):
            transactions.put(Call(store, deadline_s=hub.now_s + 8), {"Put": put("x")})
        return hub.now_s - started_s

    took_s = statistics.mean(run(hub, *((0, failing) for _ in range(20))))
    assert took_s > contention.RETRY_S_MAX + 2.5  # 7.0 +- 0.2, and 3.9 +- 0.2 for what is not
    assert contention.ALONE_RETRY_S_MAX < CALL_TIME_DEFAULT_S
