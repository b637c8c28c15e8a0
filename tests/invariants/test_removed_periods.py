"""Tallies of periods are kept until they expire, and their expiry makes no drift."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import counters
from tally.counter import Counter
from tally.counting import periods, tallies
from tally.drift import rows
from tally.dynamo import keys
from tally.dynamo.client import Call
from tally.maintenance.reconcile import Reconciler
from tests.invariants.deployment import Deployment, deployed
from tests.invariants.stream_records import SHARD, play, record
from tests.invariants.streaming import StreamWorld
from tests.invariants.test_periods import SOON, USED, period_counter
from tests.invariants.test_rebuild import (
    EVERY_CONSUMER,
    ROLLUP,
    lose_records,
    missing_amounts,
    run_until_days_are_judged,
)
from tests.invariants.test_reconcile import repair, repairs

BY_TTL = {"userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"}}
SHORT = period_counter("short", "minute")  # kept for three minutes
HOURLY = period_counter("hourly", "hour", 5)  # kept for at least five hours


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    for counter in (SHORT, HOURLY, SOON):
        monkeypatch.setitem(counters.COUNTERS, counter.name, counter)
    with deployed() as deployment:
        yield deployment


def current_tally_id(world: Deployment, counter: Counter) -> str:
    """Returns the id of the tally of the current period."""
    return periods.tally_id(counter, "x", world.now_s)


def stored_items(world: Deployment, target: str) -> list[dict[str, Any]]:
    return [item for item in world.scan("counts") if item["PK"]["S"].endswith(f"#{target}")]


def take_removals_by_ttl(world: Deployment) -> None:
    """Takes the new records, and marks each record as a removal by TTL."""
    records, world.records = world.records, lambda table: ({**record, **BY_TTL} for record in records(table))  # type: ignore[method-assign]
    world.schedule_new_records()
    world.records = records  # type: ignore[method-assign]


def expire(world: Deployment) -> int:
    """Removes the expired items, as DynamoDB does by TTL. Returns the number of removed items, without heartbeats."""
    world.schedule_new_records()
    items = world.scan("counts")
    expired = [item for item in items if int(item.get("expiration", {"N": "9" * 12})["N"]) <= world.now_s]
    for item in expired:
        world.delete({"PK": item["PK"], "SK": item["SK"]})
    take_removals_by_ttl(world)
    return len([item for item in expired if not item["PK"]["S"].startswith("HEARTBEAT#")])


def test_a_tally_that_a_person_removes_or_that_expires_too_early_is_drift(world: Deployment) -> None:
    target, hourly_id = current_tally_id(world, SHORT), current_tally_id(world, HOURLY)
    world.play(target, 3, SHORT)
    world.play(hourly_id, 4, HOURLY)
    world.run(5)
    world.delete(tallies.key(SHORT, target, 0))
    world.put({**stored_items(world, hourly_id)[0], "expiration": {"N": "1"}})
    assert expire(world) == 1
    world.run_until_judged()
    assert world.drifts() == {("short", target): -3, ("hourly", hourly_id): -4}
    drift_rows = rows.list_drift(Call(world.store), 2, None)["drift"]
    assert {f"{row['id']}#{row['period']}" for row in drift_rows} == {target, hourly_id}


@pytest.mark.parametrize("has_expired", [False, True], ids=["never stored", "expired"])
def test_an_amount_that_the_rollup_adds_after_its_period_was_removed_is_removed_too_and_makes_no_drift(
    world: Deployment, has_expired: bool
) -> None:
    target = current_tally_id(world, SHORT)
    if has_expired:
        world.play(target, 3, SHORT)
    world.stall(ROLLUP)
    world.spill(target, 2, SHORT)
    world.run(6)  # longer than SHORT is kept
    assert expire(world) == int(has_expired)
    world.resume()
    world.run_until_judged()
    (late_item,) = stored_items(world, target)
    assert (late_item["used"], int(late_item["expiration"]["N"]) < world.now_s) == ({"N": "2"}, True)
    assert expire(world) == 1
    world.run_until_judged()
    assert (stored_items(world, target), world.drifts()) == ([], {})


def test_a_repair_moves_a_tally_that_is_kept_and_stores_no_tally_that_has_expired(
    world: Deployment, reconciler: Reconciler
) -> None:
    expired_id, kept_id = current_tally_id(world, SHORT), current_tally_id(world, HOURLY)
    for target, counter in ((expired_id, SHORT), (kept_id, HOURLY)):
        world.play(target, 3, counter)
        world.edit(5, counter, target)
    world.run_until_judged()
    expire(world)
    world.run_until_judged()
    assert world.drifts() == {("short", expired_id): 5, ("hourly", kept_id): 5}
    assert repair(reconciler, SHORT, expired_id) is not None
    assert repair(reconciler, HOURLY, kept_id) is not None
    assert (stored_items(world, expired_id), repairs(world, SHORT, expired_id)) == ([], [(0, "ledger")])
    assert world.drifts() == {}
    assert world.tally(HOURLY, kept_id) == 3
    assert int(stored_items(world, kept_id)[0]["expiration"]["N"]) == periods.expires_s(HOURLY, kept_id)


def test_a_rebuild_adds_nothing_to_an_expired_tally(
    world: Deployment, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receipts of both tallies are kept, but the notes of the expired tally expired with its item."""
    monkeypatch.setattr(tallies, "MINUTES_PER_DAY", 6)  # a rebuild goes by whole days
    world.run(6)  # so a whole day is judged
    expired_id, kept_id = current_tally_id(world, SHORT), current_tally_id(world, SOON)

    def outage() -> None:
        world.spill(expired_id, 2, SHORT)
        world.spill(kept_id, 3, SOON)

    world.spill(expired_id, 1, SHORT)
    world.spill(kept_id, 1, SOON)
    world.deliver()
    lose_records(world, EVERY_CONSUMER, outage)
    world.run(4)
    expire(world)
    run_until_days_are_judged(world)
    [(name, missing)] = missing_amounts(reconciler).items()
    assert (name, missing.difference) == (("soon", kept_id), 3)


@pytest.mark.parametrize("target", ["7c20", "7c20#2026-11", "7c20#2026-11-22#"])
def test_a_spilled_change_of_another_kind_of_period_is_a_dead_letter_and_other_changes_are_ignored(
    stream: StreamWorld, target: str
) -> None:
    """The counter had no periods, or other periods, when it counted. Nobody reads the tallies of that time."""
    declared = {**counters.COUNTERS, "used": USED}
    spilled = play(1, target, counter={"S": "used"})
    visible_now = play(2, target, counter={"S": "used"}, rollup={"BOOL": False})
    for name in ("rollup", "bookkeeper"):
        assert stream.deliver(name, "receipts", SHARD, [spilled, visible_now], declared=declared) is None
    key = keys.key(f"USED#{target}", "USED")
    change = {"Keys": key, "NewImage": {**key, "used": {"N": "1"}, "at": {"N": "1"}, "nonce": {"S": "n"}}}
    assert stream.deliver("bookkeeper", "counts", "shard-c", [record(3, "INSERT", change)], declared=declared) is None
    assert stream.dead_letter_sequences() == {"rollup": {"1"}, "bookkeeper": {"1"}}
    assert (stream.ledger(), stream.tallies()) == ({}, {})
