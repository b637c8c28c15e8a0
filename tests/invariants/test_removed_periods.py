"""Tallies of periods are kept for their time, and go without a trace of drift."""

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
from tests.invariants.test_rebuild import EVERYBODY, ROLLUP, judge_on, lose, losses
from tests.invariants.test_reconcile import amounts, mend

BY_TTL = {"userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"}}


def metered(name: str, period: str, keep: int = 3, **more: Any) -> Counter:
    return Counter(
        name, prefix=name.upper(), sort_key="USED", attribute="used", period=period, keep_periods=keep, **more
    )


USED = metered("used", "day")
ROLLED = metered("rolled", "day", visible="soon")
SHORT = metered("short", "minute")  # kept for three minutes
HOURLY = metered("hourly", "hour", 5)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    for counter in (SHORT, HOURLY, ROLLED):
        monkeypatch.setitem(counters.COUNTERS, counter.name, counter)
    with deployed() as made:
        yield made


def now(world: Deployment, counter: Counter) -> str:
    """The tally of the current period."""
    return periods.tally_id(counter, "x", world.now_s)


def stored(world: Deployment, target: str) -> list[dict[str, Any]]:
    found = world.scan("counts")
    return [item for item in found if item["PK"]["S"].endswith(f"#{target}")]


def expire(world: Deployment) -> int:
    """What DynamoDB does with expired items, sooner or later; how many it removed."""
    world.take_written()
    found = world.scan("counts")
    gone = [item for item in found if int(item.get("expiration", {"N": "9" * 12})["N"]) <= world.now_s]
    for item in gone:
        world.delete({"PK": item["PK"], "SK": item["SK"]})
    taken, world.records = world.records, lambda table: ({**each, **BY_TTL} for each in taken(table))  # type: ignore[method-assign]
    world.take_written()
    world.records = taken  # type: ignore[method-assign]
    return len([item for item in gone if not item["PK"]["S"].startswith("HEARTBEAT#")])


def judge(world: Deployment) -> None:
    """Until all that happened so far is judged."""
    until = world.store.settings.minute_of(world.now_s)
    while world.last_judged_minute <= until:
        world.run(1)


def test_what_a_person_removes_is_drift_and_so_is_what_goes_before_its_time(world: Deployment) -> None:
    target, later = now(world, SHORT), now(world, HOURLY)
    world.play(target, 3, SHORT)
    world.play(later, 4, HOURLY)
    world.run(5)
    world.delete(tallies.key(SHORT, target, 0))
    world.put({**stored(world, later)[0], "expiration": {"N": "1"}})
    assert expire(world) == 1
    judge(world)
    assert world.drifts() == {("short", target): -3, ("hourly", later): -4}
    listed = rows.list_drift(Call(world.store), 2, None)["drift"]
    assert {(row["id"], row["period"]) for row in listed} == {tuple(each.split("#")) for each in (target, later)}


@pytest.mark.parametrize("there", [False, True], ids=["nothing is there", "the rest was removed"])
def test_what_is_rolled_up_after_the_removal_makes_no_item_that_stays_and_no_drift(
    world: Deployment, there: bool
) -> None:
    target = now(world, SHORT)
    if there:
        world.play(target, 3, SHORT)
    world.stall(ROLLUP)
    world.spill(target, 2, SHORT)
    world.run(6)
    assert expire(world) == there
    world.resume()
    judge(world)
    (late,) = stored(world, target)
    assert (late["used"], int(late["expiration"]["N"]) < world.now_s) == ({"N": "2"}, True)
    assert expire(world) == 1
    judge(world)
    assert (stored(world, target), world.drifts()) == ([], {})


def test_a_drift_is_taken_back_from_a_tally_that_is_kept_and_accepted_for_one_that_is_gone_and_stays_gone(
    world: Deployment, reconciler: Reconciler
) -> None:
    gone, kept = now(world, SHORT), now(world, HOURLY)
    for target, counter in ((gone, SHORT), (kept, HOURLY)):
        world.play(target, 3, counter)
        world.edit(5, counter, target)
    world.run(10)
    expire(world)
    judge(world)
    assert world.drifts() == {("short", gone): 5, ("hourly", kept): 5}
    assert mend(reconciler, SHORT, gone) is not None
    assert mend(reconciler, HOURLY, kept) is not None
    assert (stored(world, gone), world.drifts(), amounts(world, SHORT, gone)) == ([], {}, [(0, "ledger")])
    assert world.tally(HOURLY, kept) == 3
    assert int(stored(world, kept)[0]["expiration"]["N"]) == periods.expires_s(HOURLY, kept)


def test_a_rebuild_adds_nothing_to_a_tally_that_is_gone(
    world: Deployment, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receipts of both are there. The notes of the one that is gone went with it."""
    monkeypatch.setattr(tallies, "MINUTES_PER_DAY", 6)
    world.run(6)
    gone, kept = now(world, SHORT), now(world, ROLLED)

    def outage() -> None:
        world.spill(gone, 2, SHORT)
        world.spill(kept, 3, ROLLED)

    world.spill(gone, 1, SHORT)
    world.spill(kept, 1, ROLLED)
    world.deliver()
    lose(world, EVERYBODY, outage)
    world.run(4)
    expire(world)
    judge_on(world)
    assert {name: loss.difference for name, loss in losses(reconciler).items()} == {("rolled", kept): 3}


@pytest.mark.parametrize("target", ["7c20", "7c20#2026-11", "7c20#2026-11-22#"])
def test_what_was_counted_under_another_declaration_becomes_a_dead_letter_or_left_alone_by_both(
    stream: StreamWorld, target: str
) -> None:
    """A counter had no periods, or others: nobody reads such a tally any more."""
    declared = {**counters.COUNTERS, "used": USED}
    alone = play(1, target, counter={"S": "used"})
    at_once_ = play(2, target, counter={"S": "used"}, rollup={"BOOL": False})
    for name in ("rollup", "bookkeeper"):
        assert stream.deliver(name, "receipts", SHARD, [alone, at_once_], declared=declared) is None
    found = keys.key(f"USED#{target}", "USED")
    change = {"Keys": found, "NewImage": {**found, "used": {"N": "1"}, "at": {"N": "1"}, "nonce": {"S": "n"}}}
    assert stream.deliver("bookkeeper", "counts", "shard-c", [record(3, "INSERT", change)], declared=declared) is None
    assert stream.dead_letter_sequences() == {"rollup": {"1"}, "bookkeeper": {"1"}}
    assert (stream.ledger(), stream.tallies()) == ({}, {})
