"""Schedules of a world: traffic, sweeps that fail, run twice or sleep, repairs that die, and what must be all along."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import counters
from tally.counting.holds import RELEASED
from tally.drift import judge, reconcile, rows
from tally.dynamo.client import Call, Store
from tally.streams import evidence
from tests.invariants.processes import Crash, Sleeper, killed
from tests.invariants.simulation import REST_MINUTES_MAX, Stall, Tally, World, amount_of, tally_of
from tests.invariants.traffic import Traffic

FOREVER_S = float("inf")
FIRST_CHANGES_S = 300.0  # traffic is there before the first sweep has any evidence; edits by hand only then


class Schedule:
    """A world with traffic, sweeps and repairs. `bad` counts what must not be."""

    def __init__(self, world: World) -> None:
        self.world, self.chance, self.truth, self.bad = world, world.chance, world.truth, world.bad
        self.traffic = Traffic(world)
        self.asleep: list[Sleeper] = []
        self.first_judged: int | None = None
        self.repairs = True
        self.sweeping = True
        self.found = 0

    def store(self, client: Any = None) -> Store:
        """The store of a process with this client."""
        return replace(self.world.store, client=client) if client else self.world.store

    # ---- the sweep ----

    def sweep(self, client: Any = None) -> None:
        """As functions/sweep does it each minute."""
        store, now_s = self.store(client), self.world.clock()
        seen = evidence.read(store, now_s)
        evidence.renew(store, self.world.shards, seen, now_s)
        judge.judge(store, seen, now_s, until_s=FOREVER_S)

    def sweep_roughly(self) -> None:
        """A sweep that may fail to run, die, sleep, or run beside another one; now and in a minute again."""
        self.world.soon(self.world.settings.minute_s + self.chance.uniform(-1, 1), self.sweep_roughly)
        if not self.sweeping:
            return
        for sleeper in self._woken():
            self._ended(sleeper.wake)
        if self.world.faulty():
            if self.chance.random() < 0.3:
                return
            self._faulty_sweep()
        if not self.world.faulty() or self.chance.random() < 0.5:
            with self.world.skewed():
                self.sweep()
        self.world.written()
        self.check()

    def _faulty_sweep(self) -> None:
        at = int(self.chance.expovariate(0.1))
        if self.chance.random() < 0.5:
            client = killed(self.world.wire, at, committed=self.chance.random() < 0.5)
            with self.world.skewed():
                self._ended(lambda: self.sweep(client))
            return
        with self.world.skewed():
            sleeper = Sleeper(self.world.wire, at, self.sweep)
        self.asleep.append(sleeper)

    def _woken(self) -> list[Sleeper]:
        woken = [sleeper for sleeper in self.asleep if self.chance.random() < 0.6]
        self.asleep = [sleeper for sleeper in self.asleep if sleeper not in woken]
        return woken

    def _ended(self, run: Callable[[], object]) -> None:
        with contextlib.suppress(Crash):
            run()

    # ---- repairs ----

    def repair_roughly(self) -> None:
        """Somebody repairs what is confirmed; the command may die, or sleep, at any step."""
        self.world.soon(self.chance.uniform(100, 300), self.repair_roughly)
        if not self.repairs:
            return
        for tally in self.drifts():
            self._repair_roughly(tally, self.chance.randrange(2))
        self.world.written()

    def _repair_roughly(self, tally: Tally, at: int) -> None:
        def repair(client: Any) -> None:
            with contextlib.suppress(reconcile.NotProvenError, reconcile.RestlessError):
                self.repair(tally, client)

        if self.world.faulty() and self.chance.random() < 0.5:
            client = killed(self.world.wire, at, committed=self.chance.random() < 0.5)
            self._ended(lambda: repair(client))
        elif self.world.faulty():
            self.asleep.append(Sleeper(self.world.wire, at, repair))
        else:
            repair(self.world.wire)

    def repair(self, tally: Tally, client: Any = None) -> reconcile.Finding | None:
        """Repair one tally, as the command does."""
        store, clock = self.store(client), self.world.clock
        reconciler = reconcile.Reconciler(store, counters.COUNTERS, clock=clock, sleep=lambda _: None)
        return reconciler.repair(counters.COUNTERS[tally[0]], tally[1], "ann", "test")

    # ---- what must be ----

    def judged(self) -> int:
        """The last minute that is judged; -1: none."""
        judged = evidence.judged(self.world.store)
        if self.first_judged is None and judged >= 0:
            self.first_judged = judged
        return judged

    def drifts(self) -> dict[Tally, int]:
        """The rows that are listed."""
        return {(row.counter, row.target): row.drift for _, row in rows.every(self.world.store)}

    def check(self) -> None:
        """Compare the drift rows with what was edited by hand until the judged minute."""
        judged = self.judged()
        if judged < 0 or self.first_judged is None:
            return
        stored = {(row.counter, row.target): row for _, row in rows.every(self.world.store)}
        for tally in {*stored, *self.truth.edits} - self.truth.unbooked:
            row = stored.get(tally) or rows.read(self.world.store, *tally)
            drift, upto = (row.drift, row.upto) if row else (0, -1)
            if upto > judged:
                continue  # the judge died between the row and its minute
            if drift != self.truth.drift(tally, judged, self.first_judged):
                self.bad["wrong row-minutes"] += 1
                if drift and judged - upto >= 5:
                    self.bad["confirmed"] += 1

    def check_as_of(self) -> None:
        """Compare what readers are told with the oldest change that is not in its tally; at any time."""
        self.world.soon(self.chance.uniform(1, 30), self.check_as_of)
        evidence._cached = None
        with self.world.skewed():
            claimed = evidence.as_of(Call(self.world.store))
        if claimed is not None and claimed > min(self.truth.alone.values(), default=self.world.clock.now_s):
            self.bad["as_of ahead"] += 1

    def check_at_rest(self) -> None:
        """Everything is judged, every edit is found, and each tally is off by its drift and by nothing else."""
        stored = self.drifts()
        numbers: dict[Tally, int] = {}
        for item in self.world.wire.scan(TableName=self.world.names["counts"])["Items"]:
            tally = tally_of(item)
            if tally is not None:
                numbers[tally] = numbers.get(tally, 0) + amount_of(tally, item)
        for tally in {*stored, *self.truth.edits}:
            if stored.get(tally, 0) != self.truth.drift(tally):
                self.bad["edits missed or wrong"] += 1
        for tally in {*numbers, *self.truth.accepted}:
            if numbers.get(tally, 0) - stored.get(tally, 0) != self.truth.accepted[tally]:
                self.bad["tallies wrong"] += 1
        if self.truth.alone:
            self.bad["never rolled up"] += 1

    # ---- a run ----

    def minutes(self, number: float) -> None:
        """Let time pass."""
        self.world.run(self.world.clock.now_s + number * self.world.settings.minute_s)

    def rest(self) -> None:
        """Wait until all is delivered and judged. Nothing else happens any more."""
        wanted = self.world.settings.minute(self.world.clock.now_s) + 1
        for _ in range(REST_MINUTES_MAX):
            self.minutes(1)
            if self.world.caught_up() and self.judged() >= wanted + 5:
                break
        else:
            self.bad["judge stuck"] += 1
        if self.world.settings.minute(self.world.clock.now_s) - self.judged() > reconcile.JUDGED_LATE_MAX:
            self.bad["judge behind"] += 1
        for sleeper in self.asleep:
            self._ended(sleeper.wake)
        self.world.written()
        self.check()


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

    def split() -> None:
        if world.plan.splits_per_hour:
            (world.streams.carve if chance.random() < 0.1 else world.streams.split)()
            world.soon(chance.expovariate(world.plan.splits_per_hour / 3600), split)

    world.soon(chance.uniform(0, 60), change)
    world.soon(chance.uniform(0, 60), edit)
    world.soon(chance.expovariate(world.plan.splits_per_hour / 3600) if world.plan.splits_per_hour else 0, split)
    world.soon(chance.uniform(0, 60), schedule.sweep_roughly)
    world.soon(chance.uniform(300, 900), schedule.repair_roughly)
    world.soon(60, schedule.check_as_of)
    world.run(max([end_s, *(one.to_s for one in world.stalls)]))
    schedule.repairs = False
    for hold in schedule.traffic.holds:
        schedule.traffic.settle(hold, RELEASED)
    schedule.rest()
    schedule.check_at_rest()
    for tally in schedule.drifts():
        try:
            schedule.repair(tally)
        except reconcile.NotProvenError:
            world.bad["repair refused at rest"] += 1
    world.written()
    schedule.rest()
    schedule.check_at_rest()
    if schedule.drifts():
        world.bad["drift after repair"] += 1
    return {name: number for name, number in world.bad.items() if number}


def stalls(chance: random.Random, begin_s: float, end_s: float) -> list[Stall]:
    """One consumer in one shard in every seed, and up to three others."""
    found = []
    for number in range(chance.randint(1, 3)):
        from_s = chance.uniform(begin_s + 60, begin_s + (end_s - begin_s) * 0.6)
        short_s, consumer = from_s + chance.uniform(300, 1500), chance.choice(["rollup", "drift"])
        kind = 0 if number == 0 else chance.choice([0, 0, 1, 1, 2, 3])
        found.append([
            Stall(from_s, short_s, consumer, chance.choice(["counts", "receipts"]), chance.randrange(4)),
            Stall(from_s, short_s, consumer),
            Stall(from_s, from_s + 1800),
            Stall(from_s, from_s + 3600, "rollup"),
        ][kind])  # fmt: skip
    return found
