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
from bench.hot_key import COLD_WCU, WARM_WCU, Heat, simulate
from bench.hot_table import PARTITION_WCU_PER_S, START_S, Bucket, HotClient, HotTables, Hub
from tally.counting import children
from tally.dynamo import contention, transactions
from tally.dynamo.client import CALL_TIME_DEFAULT_S, Call, Store, dynamodb_client
from tally.dynamo.contention import THROTTLED_S, Breaker
from tally.errors import StoreBusyError

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

TABLE, RECEIPTS = SETTINGS.counts_table, SETTINGS.receipts_table


@pytest.fixture(scope="module")
def boto() -> Iterator[DynamoDBClient]:
    client = dynamodb_client()
    yield client
    client.close()


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def tables(hub: Hub, boto: DynamoDBClient) -> HotTables:
    return HotTables(hub, SETTINGS, boto, random.Random(1), receipts_partitions=4)


def put(sort_key: str, **more: Any) -> dict[str, Any]:
    return {"TableName": TABLE, "Item": {"PK": {"S": "VID#hot"}, "SK": {"S": sort_key}}, **more}


def transact(client: HotClient, *sort_keys: str, **more: Any) -> list[str]:
    """The codes of a transaction; none if it was committed."""
    try:
        client.transact_write_items([{"Put": put(key, **more)} for key in sort_keys])
    except client.exceptions.TransactionCanceledException as cancelled:
        return [reason["Code"] for reason in cancelled.response["CancellationReasons"]]
    return []


def run(hub: Hub, *calls: tuple[float, Any]) -> list[Any]:
    """What the calls give, each begun so many seconds from now, in that order."""
    found: list[Any] = [None] * len(calls)

    def note(place: int, call: Any) -> None:
        found[place] = call()

    for place, (after_s, call) in enumerate(calls):
        hub.start(lambda place=place, call=call: note(place, call), hub.now_s + after_s)  # type: ignore[misc]
    hub.run()
    return found


# Virtual time


def test_what_happens_at_one_moment_happens_in_the_order_asked_for(hub: Hub) -> None:
    seen: list[tuple[str, float]] = []

    def call(name: str, pause_s: float) -> None:
        seen.append((name, hub.clock()))
        hub.sleep(pause_s)
        seen.append((name, hub.clock()))

    run(hub, (0, lambda: call("a", 2)), (0, lambda: call("b", 1)), (1, lambda: call("c", 0)))
    assert [(name, at_s - START_S) for name, at_s in seen] == [
        ("a", 0), ("b", 0), ("c", 1), ("b", 1), ("c", 1), ("a", 2),
    ]  # fmt: skip


def test_what_a_call_raises_ends_the_run(hub: Hub) -> None:
    with pytest.raises(ZeroDivisionError):
        run(hub, (1, lambda: 1 / 0))


# The limits


def test_a_partition_takes_its_units_and_no_more(hub: Hub) -> None:
    partition = Bucket(hub, PARTITION_WCU_PER_S)
    taken = 0
    while partition.has(1):
        partition.take(1)
        taken += 1
    assert taken == PARTITION_WCU_PER_S
    hub.now_s += 0.1
    assert partition.has(PARTITION_WCU_PER_S / 10 - 0.001)
    assert not partition.has(PARTITION_WCU_PER_S / 10 + 0.001)


def test_a_partition_keeps_what_it_did_not_use_for_a_second_only(hub: Hub) -> None:
    partition = Bucket(hub, PARTITION_WCU_PER_S)
    hub.now_s += 1000
    assert partition.has(PARTITION_WCU_PER_S)
    assert not partition.has(PARTITION_WCU_PER_S + 1)


def test_writes_beyond_the_limit_of_the_partition_are_throttled(hub: Hub, tables: HotTables) -> None:
    client = HotClient(tables)
    seconds, per_s = 4, 1000
    codes = run(
        hub,
        *(
            (number / per_s, lambda number=number: transact(client, f"a{number}", f"b{number}"))
            for number in range(seconds * per_s)
        ),
    )
    committed = sum(not found for found in codes)
    assert committed == pytest.approx(PARTITION_WCU_PER_S * (seconds + 1) / 4, rel=0.01)  # and what it had kept
    assert {code for found in codes for code in found} == {"ThrottlingError"}


def test_receipts_are_spread_over_the_partitions_of_their_table(tables: HotTables) -> None:
    assert COLD_WCU / PARTITION_WCU_PER_S == 4
    assert WARM_WCU / PARTITION_WCU_PER_S == 10
    found = {id(tables.partition_of((RECEIPTS, f"tally#{number}", ""))) for number in range(100)}
    assert len(found) == 4
    assert len({id(tables.partition_of((TABLE, "VID#hot", str(number)))) for number in range(100)}) == 1


@pytest.mark.parametrize(("after_s", "expected"), [(0.005, ["TransactionConflict"]), (0.040, [])])
def test_transactions_conflict_only_while_they_overlap(
    hub: Hub, tables: HotTables, after_s: float, expected: list[str]
) -> None:
    one, other = HotClient(tables), HotClient(tables)
    first, second = run(hub, (0, lambda: transact(one, "x")), (after_s, lambda: transact(other, "x")))
    assert (first, second) == ([], expected)
    assert tables.conflicts == len(expected)


def test_transactions_on_different_items_do_not_conflict(hub: Hub, tables: HotTables) -> None:
    client = HotClient(tables)
    assert run(hub, (0, lambda: transact(client, "x", "y")), (0, lambda: transact(client, "z", "u"))) == [[], []]


def test_the_codes_stand_in_the_order_of_the_writes(hub: Hub, tables: HotTables) -> None:
    client = HotClient(tables)
    _, second = run(hub, (0, lambda: transact(client, "x")), (0.003, lambda: transact(client, "y", "x", "z")))
    assert second == ["None", "TransactionConflict", "None"]


def test_conditions_are_judged_and_what_fails_is_paid_for(hub: Hub, tables: HotTables) -> None:
    client = HotClient(tables)
    condition = {"ConditionExpression": "attribute_not_exists(SK)"}
    assert run(hub, (0, lambda: transact(client, "x", **condition))) == [[]]
    assert tables.write_units == 2
    assert run(hub, (0, lambda: transact(client, "x", **condition))) == [["ConditionalCheckFailed"]]
    assert tables.write_units == 3


def test_a_condition_that_the_model_does_not_know_is_no_condition_that_holds(hub: Hub, tables: HotTables) -> None:
    with pytest.raises(NotImplementedError, match="play_count"):
        run(hub, (0, lambda: transact(HotClient(tables), "x", ConditionExpression="play_count > :x")))


def _code(client: HotClient, sort_key: str) -> str:
    try:
        client.put_item(**put(sort_key))
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def test_a_single_write_of_a_held_item_is_refused_and_not_sent_again(hub: Hub, tables: HotTables) -> None:
    client = HotClient(tables)
    found = run(hub, (0, lambda: transact(client, "x")), (0.005, lambda: _code(client, "x")))
    assert found == [[], "TransactionConflictException"]
    assert tables.conflicts == 1


def test_botocore_sends_a_throttled_write_twice_more_after_pauses(hub: Hub, tables: HotTables) -> None:
    bucket = tables.partitions()[0].writes
    bucket.rate_per_s = bucket.left = 0.0
    assert run(hub, (0, lambda: _code(HotClient(tables), "x"))) == ["ProvisionedThroughputExceededException"]
    assert tables.throttles == 3
    assert 0.1 < hub.now_s - START_S < 3.1  # up to 1 s and up to 2 s


# Tally in it


def test_a_seed_repeats_every_number() -> None:
    heat = Heat(counters.LIKES, 500, 1.0)
    assert simulate(heat) == simulate(heat)
    assert simulate(heat) != simulate(heat, seed=1)


@pytest.mark.parametrize("counter", [counters.PLAYS, counters.LIKES], ids=lambda counter: counter.name)
def test_the_tally_ends_as_what_was_accepted(counter: Any) -> None:
    hot = simulate(Heat(counter, 1000, 1.0))
    assert hot["conflicts"]
    assert hot["catch-up s"] < 10


def test_heat_is_written_alone_and_nothing_fails() -> None:
    hot = simulate(Heat(counters.PLAYS, 1000, 4.0))
    assert (hot["failed"], hot["throttles"]) == (0, 0)
    assert hot["spilled"] > 0.5
    assert hot["WCU each"] < 3


def test_without_spilling_heat_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "SPILL_RETRIES_MAX", contention.ATTEMPTS_MAX)
    monkeypatch.setattr(contention.Breaker, "hot", lambda self, tally: False)
    monkeypatch.setattr(contention.Breaker, "trip", _never_hot)
    assert simulate(Heat(counters.PLAYS, 1000, 4.0))["failed"] > 0.05


def _never_hot(self: object, tally: str, hot_s: float = 0.0) -> None:
    raise StoreBusyError("no spilling")


# What the simulation asked of the write path at the limit of one partition


def test_a_throttled_transaction_is_not_tried_again_but_written_alone(
    boto: DynamoDBClient, tables: HotTables, hub: Hub
) -> None:
    bucket = tables.partitions()[0].writes
    bucket.left, bucket.seen_s = 0.0, hub.now_s  # used up, but milliseconds later there is room again
    tables.items.add((TABLE, "POST#hot", "META"))
    store = Store(HotClient(tables), SETTINGS, breaker=Breaker(clock=hub.clock), clock=hub.clock, sleep=hub.sleep)  # type: ignore[arg-type]
    call = Call(store, "reader", hub.now_s + 8)
    ((body, _),) = run(hub, (0, lambda: children.set_child(call, counters.LIKES, "hot", "reader", True)))
    assert body["visible"] == "soon"
    assert tables.throttles == 1
    hub.now_s += THROTTLED_S - 1
    assert store.breaker.hot("POST#hot")  # longer than after conflicts: DynamoDB takes minutes to split a partition
    hub.now_s += 1
    assert not store.breaker.hot("POST#hot")


def test_what_is_written_alone_is_tried_for_longer_than_what_is_not(hub: Hub, tables: HotTables) -> None:
    bucket = tables.partitions()[0].writes
    bucket.rate_per_s = bucket.left = 0.0
    store = Store(HotClient(tables), SETTINGS, clock=hub.clock, sleep=hub.sleep)  # type: ignore[arg-type]

    def failing() -> float:
        started_s = hub.now_s
        with pytest.raises(StoreBusyError):
            transactions.put(Call(store, deadline_s=hub.now_s + 8), {"Put": put("x")})
        return hub.now_s - started_s

    assert statistics.mean(run(hub, *((0, failing) for _ in range(20)))) > contention.RETRY_S_MAX + 1  # 5.4 +- 0.1
    assert contention.ALONE_RETRY_S_MAX < CALL_TIME_DEFAULT_S
