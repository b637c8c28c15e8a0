"""No number, judgement, expiry or loss rests on the clock of one process, however wrong that clock is.

The engine checks no signature. DynamoDB refuses a process whose clock is off by more than 5 minutes, so the larger
times are worse than life. In the simulation each run is a process that no answer has corrected yet.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

import counters
from tally.counting import expired_holds, hold_items, holds, increments, settling, tallies
from tally.counting.increments import Increment
from tally.dynamo.client import Call
from tally.dynamo.clock import OFF_S_MAX
from tally.errors import HoldSettledError
from tally.streams import loss, watermark
from tests.invariants.deployment import PLAYS, Deployment, deployed
from tests.tiers import in_long

HOUR_S, DAY_S = 3600, 24 * 3600
STOCK = counters.COUNTERS["stock"]
FAR = [HOUR_S, -26 * HOUR_S, *in_long([15, -15, 120, -120, 300, -300, -HOUR_S, 26 * HOUR_S])]
NEAR = [300, -300, *in_long([-15, 15, 120, -120])]


@pytest.fixture
def world() -> Iterator[Deployment]:
    with deployed() as made:
        yield made


def swept(world: Deployment, off_s: float) -> None:
    """One sweep by a process whose clock is off."""
    with world.clock.with_skew(off_s):
        world.collect_all_records()
        world.sweep()
        world.take_written()


def is_judged(world: Deployment, minutes: int = 20) -> None:
    """Time passes, with a play and an edit: each minute is judged in time, nothing is lost, and the edit is found."""
    stood, before, edited = 0, world.last_judged_minute, {("plays", "edited"): 5}
    world.edit(5, PLAYS, "edited")
    for _ in range(minutes):
        world.play()
        world.spill("w")
        world.run(1)
        stood, before = 0 if world.last_judged_minute > before else stood + 1, world.last_judged_minute
        assert stood <= 3, "the judge stands"
        assert (world.as_of() or 0) <= world.now_s, "as_of is ahead"
        assert world.drifts() in ({}, edited)
    assert world.drifts() == edited
    assert loss.list_losses(world.store) == []
    assert world.tally(PLAYS, "v") == minutes


@pytest.mark.parametrize("off_s", FAR)
def test_one_sweep_whose_clock_is_wrong_stops_nothing_and_notes_no_loss(world: Deployment, off_s: float) -> None:
    swept(world, off_s)
    is_judged(world)


@pytest.mark.parametrize("off_s", FAR)
def test_sweeps_whose_clocks_are_wrong_judge_as_others_do(
    world: Deployment, off_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = world.sweep

    def sweep(client: Any = None) -> None:
        with world.clock.with_skew(off_s):
            plain(client)

    monkeypatch.setattr(world, "sweep", sweep)
    is_judged(world)


@pytest.mark.parametrize("off_s", FAR)
def test_consumers_whose_clocks_are_wrong_book_as_others_do(
    world: Deployment, off_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "with_random_skew", lambda: world.clock.with_skew(off_s))
    is_judged(world)


@pytest.mark.parametrize("off_s", [HOUR_S, *in_long([DAY_S])])
def test_what_an_older_sweep_noted_of_a_time_to_come_stops_the_judge_no_longer(world: Deployment, off_s: float) -> None:
    """Sweeps went by their own clocks before."""
    later = {"written_s": {"N": str(world.now_s + off_s)}, "probe_visible_s": {"N": str(int(world.now_s + off_s))}}
    item = watermark.read(world.store).item | later
    world.store.client.put_item(TableName=world.settings.ledger_table, Item=item)
    is_judged(world)


@pytest.mark.parametrize("off_s", FAR)
def test_a_hold_ends_when_its_time_is_over_whoever_looks_at_it(world: Deployment, off_s: float) -> None:
    stocked(world)
    held = [hold(world, ttl_s=600) for _ in range(2)]
    world.skip(590)
    with world.clock.with_skew(off_s):
        assert expired_holds.sweep(world.store, counters.COUNTERS, world.store.clock() + 50).returned == 0
    with world.clock.with_skew(off_s):
        assert settled(world, held[0])["changed"]
    world.skip(20)
    with world.clock.with_skew(off_s), pytest.raises(HoldSettledError, match="expired"):
        settled(world, held[1])
    assert expired_holds.sweep(world.store, counters.COUNTERS, world.store.clock() + 50).returned == 1
    assert tallies.read(Call(world.store), STOCK, "mug") == 10 - 1


@pytest.mark.parametrize("off_s", FAR)
def test_a_sweep_gives_holds_back_when_their_time_is_over_by_no_clock_of_its_own(
    world: Deployment, off_s: float
) -> None:
    stocked(world)
    hold(world, ttl_s=600)
    world.skip(610)
    with world.clock.with_skew(off_s):
        tallies.read(Call(world.store), STOCK, "mug")  # the process has asked something before
        assert expired_holds.sweep(world.store, counters.COUNTERS, world.store.clock() + 50).returned == 1
    assert tallies.read(Call(world.store), STOCK, "mug") == 10


@pytest.mark.parametrize("off_s", FAR)
def test_a_process_that_has_asked_before_holds_for_the_time_that_it_says(world: Deployment, off_s: float) -> None:
    stocked(world)
    with world.clock.with_skew(off_s):
        tallies.read(Call(world.store), STOCK, "mug")
        body = hold(world, ttl_s=600)
    assert body["expires_at"] == pytest.approx(world.now_s + 600, abs=3)


@pytest.mark.parametrize("off_s", NEAR)
def test_a_key_counts_once_for_as_long_as_receipts_live_though_two_clocks_are_wrong(
    world: Deployment, off_s: float
) -> None:
    """Neither process has asked anything before. The one that wrote the receipt is as far off as AWS allows."""
    with world.clock.with_skew(-off_s):
        assert not count(world, "a key")
    world.skip(world.settings.receipt_ttl_s - 1)
    with world.clock.with_skew(off_s):
        assert count(world, "a key")
    world.skip(2 * OFF_S_MAX)
    with world.clock.with_skew(off_s):
        assert not count(world, "a key")
    assert world.tally(PLAYS, "v") == 2


def stocked(world: Deployment) -> None:
    increments.count(Call(world.store), Increment(STOCK, "mug", 10, "increment", "begin", {"counted": True}))


def count(world: Deployment, key: str) -> bool:
    """Whether a play was a replay."""
    change = Increment(PLAYS, "v", 1, "play", key, {"counted": True})
    return increments.count(Call(world.store, "alice"), change).replayed


def hold(world: Deployment, ttl_s: int) -> dict[str, Any]:
    call = Call(world.store, counters=counters.COUNTERS)
    return holds.place(call, STOCK, "mug", 1, ttl_s, operation="hold", key=secrets.token_hex(8)).body


def settled(world: Deployment, held: dict[str, Any]) -> dict[str, Any]:
    return settling.settle(
        Call(world.store, counters=counters.COUNTERS), STOCK, "mug", held["hold"], hold_items.COMMITTED
    )
