"""A process with a wrong clock makes no number, no judged minute and no expiry wrong, and causes no loss.
DynamoDB rejects the calls of a clock that is wrong by more than 5 minutes. The engine does not, so the tests are harder
than reality. Each process of the simulation starts without an answer of DynamoDB that would correct its clock."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

import counters
from tally.counting import expired_holds, hold_items, holds, increments, settling, tallies
from tally.counting.increments import Increment
from tally.dynamo.client import Call
from tally.dynamo.clock import CLOCK_DIFFERENCE_S_MAX
from tally.errors import HoldSettledError
from tally.streams import loss, watermark
from tests.invariants.deployment import PLAYS, Deployment, deployed
from tests.tiers import marked_long

HOUR_S, DAY_S = 3600, 24 * 3600
STOCK = counters.COUNTERS["stock"]
SKEWS_S = [HOUR_S, -26 * HOUR_S, *marked_long([15, -15, 120, -120, 300, -300, -HOUR_S, 26 * HOUR_S])]
ALLOWED_SKEWS_S = [300, -300, *marked_long([-15, 15, 120, -120])]


@pytest.fixture
def world() -> Iterator[Deployment]:
    with deployed() as deployment:
        yield deployment


def sweep_once(world: Deployment, skew_s: float) -> None:
    """Run one sweep in a process whose clock is ahead by `skew_s`."""
    with world.clock.with_skew(skew_s):
        world.collect_all_records()
        world.sweep()
        world.schedule_new_records()


def assert_judged_in_time(world: Deployment, minutes: int = 20) -> None:
    """Let time pass, with plays and an edit. Asserts that the judge advances, finds the edit and stores no loss."""
    minutes_without_progress, judged_minute, edits = 0, world.last_judged_minute, {("plays", "edited"): 5}
    world.edit(5, PLAYS, "edited")
    for _ in range(minutes):
        world.play()
        world.spill("w")
        world.run(1)
        minutes_without_progress = 0 if world.last_judged_minute > judged_minute else minutes_without_progress + 1
        judged_minute = world.last_judged_minute
        assert minutes_without_progress <= 3, "the judge advances"
        assert (world.as_of() or 0) <= world.now_s, "as_of is never in the future"
        assert world.drifts() in ({}, edits)
    assert world.drifts() == edits
    assert loss.list_losses(world.store) == []
    assert world.tally(PLAYS, "v") == minutes


@pytest.mark.parametrize("skew_s", SKEWS_S)
def test_one_sweep_with_a_wrong_clock_does_not_stop_the_judge_and_stores_no_loss(
    world: Deployment, skew_s: float
) -> None:
    sweep_once(world, skew_s)
    assert_judged_in_time(world)


@pytest.mark.parametrize("skew_s", SKEWS_S)
def test_sweeps_with_wrong_clocks_judge_each_minute_in_time(
    world: Deployment, skew_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep_with_right_clock = world.sweep

    def sweep(client: Any = None) -> None:
        with world.clock.with_skew(skew_s):
            sweep_with_right_clock(client)

    monkeypatch.setattr(world, "sweep", sweep)
    assert_judged_in_time(world)


@pytest.mark.parametrize("skew_s", SKEWS_S)
def test_consumers_with_wrong_clocks_book_each_change_once(
    world: Deployment, skew_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "with_random_skew", lambda: world.clock.with_skew(skew_s))
    assert_judged_in_time(world)


@pytest.mark.parametrize("skew_s", [HOUR_S, *marked_long([DAY_S])])
def test_a_stored_time_in_the_future_does_not_stop_the_judge(world: Deployment, skew_s: float) -> None:
    """A sweep with a wrong clock may have stored a time in the future."""
    future_s = {"N": str(int(world.now_s + skew_s))}
    item = watermark.read(world.store).item | {"written_s": future_s, "probe_visible_s": future_s}
    world.store.client.put_item(TableName=world.settings.ledger_table, Item=item)
    assert_judged_in_time(world)


@pytest.mark.parametrize("skew_s", SKEWS_S)
def test_a_hold_expires_at_its_time_for_processes_with_wrong_clocks(world: Deployment, skew_s: float) -> None:
    add_stock(world)
    holds = [place_hold(world, ttl_s=600) for _ in range(2)]
    world.skip(590)
    with world.clock.with_skew(skew_s):
        assert sweep_holds(world) == 0
    with world.clock.with_skew(skew_s):
        assert commit(world, holds[0])["changed"]
    world.skip(20)
    with world.clock.with_skew(skew_s), pytest.raises(HoldSettledError, match="expired"):
        commit(world, holds[1])
    assert sweep_holds(world) == 1
    assert tallies.read(Call(world.store), STOCK, "mug") == 10 - 1


@pytest.mark.parametrize("skew_s", SKEWS_S)
def test_a_sweep_whose_clock_an_answer_has_corrected_releases_holds_at_their_time(
    world: Deployment, skew_s: float
) -> None:
    add_stock(world)
    place_hold(world, ttl_s=600)
    world.skip(610)
    with world.clock.with_skew(skew_s):
        tallies.read(Call(world.store), STOCK, "mug")  # the answer corrects the clock of the process
        assert sweep_holds(world) == 1
    assert tallies.read(Call(world.store), STOCK, "mug") == 10


@pytest.mark.parametrize("skew_s", SKEWS_S)
def test_a_process_whose_clock_an_answer_has_corrected_places_a_hold_with_the_right_expiry(
    world: Deployment, skew_s: float
) -> None:
    add_stock(world)
    with world.clock.with_skew(skew_s):
        tallies.read(Call(world.store), STOCK, "mug")
        body = place_hold(world, ttl_s=600)
    assert body["expires_at"] == pytest.approx(world.now_s + 600, abs=3)


@pytest.mark.parametrize("skew_s", ALLOWED_SKEWS_S)
def test_a_key_counts_once_until_its_receipt_expires_though_two_clocks_are_wrong(
    world: Deployment, skew_s: float
) -> None:
    """No answer has corrected the two clocks. AWS accepts a clock that is wrong by up to 300 s."""
    with world.clock.with_skew(-skew_s):
        assert not play_is_replay(world, "a key")
    world.skip(world.settings.receipt_ttl_s - 1)
    with world.clock.with_skew(skew_s):
        assert play_is_replay(world, "a key")
    world.skip(2 * CLOCK_DIFFERENCE_S_MAX)
    with world.clock.with_skew(skew_s):
        assert not play_is_replay(world, "a key")
    assert world.tally(PLAYS, "v") == 2


def sweep_holds(world: Deployment) -> int:
    """Run the sweep of holds for up to 50 s. Returns how many holds the sweep released."""
    return expired_holds.sweep(world.store, counters.COUNTERS, until_s=world.store.clock() + 50).released


def add_stock(world: Deployment) -> None:
    increments.count(Call(world.store), Increment(STOCK, "mug", 10, "increment", "begin", {"counted": True}))


def play_is_replay(world: Deployment, key: str) -> bool:
    """Count a play. Returns whether the answer is a replay."""
    change = Increment(PLAYS, "v", 1, "play", key, {"counted": True})
    return increments.count(Call(world.store, "alice"), change).replayed


def place_hold(world: Deployment, ttl_s: int) -> dict[str, Any]:
    call = Call(world.store, counters=counters.COUNTERS)
    return holds.place(call, STOCK, "mug", 1, ttl_s, operation="hold", key=secrets.token_hex(8)).body


def commit(world: Deployment, hold: dict[str, Any]) -> dict[str, Any]:
    call = Call(world.store, counters=counters.COUNTERS)
    return settling.settle(call, STOCK, "mug", hold["hold"], hold_items.COMMITTED)
