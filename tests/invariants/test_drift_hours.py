"""Traffic is no drift, however heavy, late or undone; what happens around the API is, by exactly that much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import counters
from local.base.engine import Engine
from tally.counting import tallies
from tally.drift import recount, rows
from tally.dynamo import keys
from tally.dynamo.client import Call, Store
from tests.invariants.simulation import Simulation, simulate

pytestmark = pytest.mark.slow


@pytest.fixture
def world(store: Store, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Simulation:
    made = simulate(store, engine.endpoint, monkeypatch)
    made.write_post()
    made.deliver()
    return made


def heavy(world: Simulation) -> Callable[[int], None]:
    """Plays, visits, likes, and unlikes of what was liked long ago; every other half minute on a hot key."""
    turns = iter(range(10**6))

    def traffic(minute: int) -> None:
        turn = next(turns)
        if turn % 2:
            for key in (counters.PLAYS.partition_start + "v", counters.LIKES.partition_start + "p"):
                world.store.breaker.trip(key)
        else:
            world.store.breaker.heats.clear()
        world.play("v")
        world.play("v")
        world.play("https://example.com/a", counters.VISITS)
        world.like(f"u{turn}")
        if turn % 3 == 2:
            world.like(f"u{turn // 2}", liked=False)

    return traffic


def edit(world: Simulation, amount: int, key: dict[str, Any], attribute: str) -> None:
    """Edit a tally manually."""
    world.store.client.update_item(
        TableName=world.store.settings.counts_table,
        Key=key,
        UpdateExpression="ADD #number :amount",
        ExpressionAttributeNames={"#number": attribute},
        ExpressionAttributeValues={":amount": {"N": str(amount)}},
    )


def drifts(world: Simulation) -> dict[tuple[str, str], int]:
    return {(row.counter, row.target): row.drift for row in rows.every(world.store)}


def ledger_rows(world: Simulation) -> int:
    items = world.store.client.scan(TableName=world.store.settings.ledger_table)["Items"]
    return sum(item["PK"]["S"].startswith("LEDGER#") for item in items)


def right(world: Simulation) -> bool:
    found = recount.recount(Call(world.store), counters.LIKES, "p")
    return found is not None and found.tally == found.children > 0


def test_half_an_hour_of_heavy_traffic_is_no_drift_at_any_time(world: Simulation) -> None:
    world.minutes(30, heavy(world))
    world.minutes(10)
    assert (world.drifted, ledger_rows(world)) == ([], 0)
    assert right(world)
    assert tallies.read(Call(world.store), counters.PLAYS, "v") == 120


def test_rollup_that_lags_20_minutes_is_no_drift_and_hides_none(world: Simulation) -> None:
    """With a manual edit in the middle, that edit alone is found, and with its exact amount."""
    edited = 7
    traffic = heavy(world)
    world.minutes(5, traffic)
    world.held = {("rollup", "counts"), ("rollup", "receipts")}
    world.minutes(10, traffic)
    edit(world, edited, tallies.key(counters.PLAYS, "v", 0), "play_count")
    world.minutes(10, traffic)
    world.held = set()
    world.minutes(5, traffic)
    world.minutes(15)
    assert drifts(world) == {("plays", "v"): edited}
    assert set(world.drifted) == {("plays", "v", edited)}
    assert right(world)


@pytest.mark.parametrize("table", ["counts", "receipts"])
def test_drift_consumer_that_lags_20_minutes_in_one_stream_is_no_drift(world: Simulation, table: str) -> None:
    traffic = heavy(world)
    world.minutes(5, traffic)
    world.held = {("drift", table)}
    world.minutes(20, traffic)
    world.held = set()
    world.minutes(15)
    assert (world.drifted, ledger_rows(world)) == ([], 0)


def around_tally(world: Simulation) -> tuple[str, str, int]:
    edit(world, -3, tallies.key(counters.LIKES, "p", 0), "likeTally")
    return "likes", "p", -3


def around_like(world: Simulation) -> tuple[str, str, int]:
    """As TTL would, too: a like that vanishes is drift, whoever removed it."""
    key: Any = keys.key("POST#p", "LIKE#USER#early1")
    world.store.client.delete_item(TableName=world.store.settings.counts_table, Key=key)
    return "likes", "p", 1


def child_without_tally(world: Simulation) -> tuple[str, str, int]:
    item = {**keys.key("POST#p", "LIKE#USER#forged"), "likedAt": {"N": "1"}, "nonce": {"S": "x"}}
    item |= {"at": {"N": str(int(world.clock() // 60))}}
    world.store.client.put_item(TableName=world.store.settings.counts_table, Item=item)
    return "likes", "p", -1


def tally_without_child(world: Simulation) -> tuple[str, str, int]:
    edit(world, 1, tallies.key(counters.LIKES, "p", 3), "likeTally")
    return "likes", "p", 1


def play_without_receipt(world: Simulation) -> tuple[str, str, int]:
    """As a plain ADD around the API would, stamps and all."""
    world.store.client.update_item(
        **tallies.add(Call(world.store), counters.PLAYS, "v", 0, 2, int(world.clock() // 60))
    )
    return "plays", "v", 2


def deleted_tally(world: Simulation) -> tuple[str, str, int]:
    key: Any = tallies.key(counters.PLAYS, "w", 0)
    world.store.client.delete_item(TableName=world.store.settings.counts_table, Key=key)
    return "plays", "w", -1


@pytest.mark.parametrize(
    "around",
    [around_tally, around_like, child_without_tally, tally_without_child, play_without_receipt, deleted_tally],
)
def test_what_happens_around_the_api_is_found_with_the_right_amount(
    world: Simulation, around: Callable[[Simulation], tuple[str, str, int]]
) -> None:
    traffic = heavy(world)
    world.like("early1")
    world.play("w")
    world.minutes(8, traffic)
    counter, target, amount = around(world)
    world.minutes(3, traffic)
    world.minutes(9)
    assert drifts(world) == {(counter, target): amount}
    assert set(world.drifted) == {(counter, target, amount)}


def test_expiry_of_a_receipt_is_no_drift(world: Simulation) -> None:
    world.play("v")
    world.minutes(2)
    (receipt,) = (
        item for item in world.store.client.scan(TableName=world.store.settings.receipts_table)["Items"]
        if item["id"]["S"] != "pulse"
    )  # fmt: skip
    world.store.client.delete_item(TableName=world.store.settings.receipts_table, Key={"id": receipt["id"]})
    world.minutes(12)
    assert (world.drifted, ledger_rows(world)) == ([], 0)
