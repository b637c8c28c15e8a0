"""However streams, consumers, sweeps and repairs go: no false drift, no edit missed, `as_of` never ahead.

SCHEDULES=1000 pytest -n auto tests/invariants/test_journal_schedules.py      the seeds 0 to 999
SCHEDULES=4000:5000 …                                                          those from 4000 on
"""

from __future__ import annotations

import os
import random

import pytest

from tally.counting.holds import RELEASED
from tests.engines import new_engine
from tests.invariants.schedules import Schedule
from tests.invariants.simulation import Clock, Plan, Stall, World, seeded

FIRST, _, END = os.environ.get("SCHEDULES", "5").rpartition(":")
PASSING = {"wrong row-minutes"}
"""What commits that are minutes late make of the rows, for a while (journal.md, section 4)."""


def roughly(world: World) -> dict[str, int]:
    """Run the schedule of the world's seed to its end; what was wrong, which should be nothing."""
    chance, schedule = world.chance, Schedule(world)
    minutes = chance.uniform(25, 45)
    begin_s, end_s = world.clock.now_s, world.clock.now_s + 60 * minutes
    world.stalls = stalls(chance, begin_s, end_s)
    rate_s = chance.choice([8, 15, 30])

    def change() -> None:
        if world.clock.now_s < end_s:
            schedule.traffic.change()
            world.soon(chance.expovariate(1 / rate_s), change)

    def edit() -> None:
        if world.clock.now_s < end_s:
            if (
                schedule.first_judged is not None
                and world.settings.minute(world.clock.now_s) > schedule.first_judged + 1
            ):
                schedule.traffic.edit()
            world.soon(chance.expovariate(1 / 150), edit)

    def expire() -> None:
        schedule.traffic.expire()
        world.soon(600, expire)

    def split() -> None:
        if world.plan.splits_per_hour:
            (world.streams.carve if chance.random() < 0.1 else world.streams.split)()
            world.soon(chance.expovariate(world.plan.splits_per_hour / 3600), split)

    world.soon(chance.uniform(0, 60), change)
    world.soon(chance.uniform(0, 60), edit)
    world.soon(chance.uniform(0, 600), expire)
    world.soon(chance.expovariate(world.plan.splits_per_hour / 3600) if world.plan.splits_per_hour else 0, split)
    world.soon(chance.uniform(0, 60), schedule.sweep_roughly)
    world.soon(chance.uniform(300, 900), schedule.repair_roughly)
    world.soon(60, schedule.check_as_of)
    world.until(max([end_s, *(one.to_s for one in world.stalls)]))
    schedule.repairs = False
    for hold in schedule.traffic.holds:
        schedule.traffic.settle(hold, RELEASED)
    schedule.rest()
    schedule.check_at_rest()
    schedule.repair_all()
    schedule.rest()
    schedule.check_at_rest()
    if world.drifts():
        world.bad["drift after repair"] += 1
    return {name: number for name, number in world.bad.items() if number}


def stalls(chance: random.Random, begin_s: float, end_s: float) -> list[Stall]:
    """One consumer in one shard in every seed, and up to three others."""
    found = []
    for number in range(chance.randint(1, 3)):
        first_s = chance.choice([60, 540, 540, 540])  # as a rule the judge has begun by then
        from_s = chance.uniform(begin_s + first_s, begin_s + (end_s - begin_s) * 0.6)
        short_s, consumer = from_s + chance.uniform(300, 1500), chance.choice(["rollup", "bookkeeper"])
        kind = 0 if number == 0 else chance.choice([0, 0, 1, 1, 2, 3])
        found.append([
            Stall(from_s, short_s, consumer, chance.choice(["counts", "receipts"]), chance.randrange(4)),
            Stall(from_s, short_s, consumer),
            Stall(from_s, from_s + 1800),
            Stall(from_s, from_s + 3600, "rollup"),
        ][kind])  # fmt: skip
    return found


@pytest.mark.parametrize("seed", range(int(FIRST or 0), int(END)))
def test_schedule(seed: int) -> None:
    plan = Plan(late=0.02) if seed % 10 == 9 else Plan(slow=0.2, gaps=0.5) if seed % 10 == 8 else Plan()
    clock = Clock()
    with new_engine() as engine, seeded(clock, seed):
        world = World(engine, clock, seed, plan)
        world.series = True
        bad = roughly(world)
        world.wire.close()
    assert {what: times for what, times in bad.items() if not (plan.late and what in PASSING)} == {}
