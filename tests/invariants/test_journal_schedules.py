"""In random schedules of streams, consumers, sweeps and repairs, drift is never false, the judge misses no edit, and
`as_of` is never too late.

In two seeds of ten, streams keep records for only 20 minutes and dead letters are discarded, so records get lost. The
ledger then restarts: the judge skips the minutes of the loss. In one seed of ten, declarations change.

`make test` runs one seed, and the long tier nine more. To run other seeds:

SCHEDULES=1000 pytest -n auto tests/invariants/test_journal_schedules.py      the seeds 0 to 999
SCHEDULES=4000:5000 …                                                          the seeds 4000 to 4999
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest

import counters
from tally.counter import Counter
from tally.counting import tallies
from tally.counting.hold_items import RELEASED
from tally.drift import rows
from tally.drift.recount import Recount
from tally.dynamo import items
from tally.dynamo.client import Call
from tally.maintenance import losses
from tally.maintenance.reconcile import WAIT_MAX, Finding, Reconciler, RepairContentionError, RepairNotReadyError
from tally.operations.bookkeeper import READER as BOOKKEEPER
from tally.series import hours
from tally.series import read as series
from tally.series.read import SeriesRange
from tally.streams import fingerprints, lineage, loss, watermark
from tally.streams.record import CounterIndex
from tally.streams.watermark import Watermark
from tests.engines import new_engine
from tests.invariants.mixed import Mixed
from tests.invariants.processes import Crash, Sleeper, client_that_dies
from tests.invariants.simulation import Clock, Disturbances, SimulatedWorld, Stall, seed_randomness
from tests.invariants.truth import DECLARED, Tally, amount_of, tally_of
from tests.tiers import marked_long

FIRST_SEED, _, END_SEED = os.environ.get("SCHEDULES", "1").rpartition(":")
SEEDS = range(int(FIRST_SEED or 0), int(END_SEED))
SEEDS_LONG = [] if "SCHEDULES" in os.environ else marked_long(range(1, 10))
ALLOWED_FAILURES_OF_LATE_COMMITS = {"drift of a row is wrong", "drift is not confirmed"}
"""Commits that are minutes late cause these failures for some minutes."""
DISTURBANCES = {
    0: Disturbances(retention_s=1200), 3: Disturbances(deploys=True), 7: Disturbances(retention_s=1200, gap_share=0.5),
    8: Disturbances(slow_share=0.2, gap_share=0.5),
    9: Disturbances(late_share=0.02),
}  # fmt: skip
"""The disturbances by the last digit of the seed. `slow_share`, `late_share`: of the changes that are committed seconds
or minutes after the writer read its clock. `gap_share`: of the records that reach their shard up to 2 s after the other
records of their transaction."""
WINDOWS_S = (float(BOOKKEEPER.window_s), 0.0, 10.0, 20.0)
"""How long a stream gathers records for the bookkeeper. The seed picks the time."""
COMPATIBLE_FIELDS: list[tuple[str, dict[str, Any]]] = [  # stored items stay valid
    ("plays", {"max_shards": 3}), ("plays", {"visible": "soon"}), ("visits", {"visible": "now"}),
    ("usage", {"max_shards": 2}), ("stock", {"floor": -5}), ("contest", {"start": 120}),
    ("ticket", {"numbered": False}),
]  # fmt: skip
INCOMPATIBLE_FIELDS: list[tuple[str, dict[str, Any]]] = [  # stored items do not fit, so consumers stop
    ("plays", {"attribute": "other"}), ("visits", {"sort_key": "OTHER"}), ("likes", {"child": "FAN#USER#"}),
    ("usage", {"period": "day"}), ("stock", {"floor": None, "max_shards": 0}),
]  # fmt: skip
JUDGE_LAG_MAX = 10  # minutes that the judge may be behind at the end: mostly three to six, and more after a split
CONFIRM_MINUTES_MAX = watermark.CONFIRM_AFTER + 6  # drift that has stood for so many judged minutes must be confirmed
REST_MINUTES_MAX = 60  # after the last action, consumers and judge must catch up in this time


class RepairRequest(NamedTuple):
    """A repair that an operator has requested. The repair waits until the judge has judged `minute`; -1: no wait.
    `child_counts`: the results of counting the children, oldest first; empty: the children are not counted."""

    minute: int = -1
    child_counts: Sequence[Recount] = ()


class Schedule:
    """A world with traffic, sweeps and repairs. `failures`: how often each thing happened that must not happen."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world, self.chance, self.truth, self.failures = world, world.chance, world.truth, world.failures
        self.traffic = Mixed(world)
        self.truth.starts.update(self.truth.accepted)  # what `Mixed` has stored is older than the streams
        world.wire.conflict_seed = self.chance.randrange(10**9)  # some updates of the ledger fail with a conflict
        self.sleepers: list[Sleeper] = []
        self.may_repair = True  # False after the callers have stopped; then no repair and no deploy begins
        self.resume_minute = 0  # of the loss that `_forget_lost_drift` has handled last
        self.last_checked_minute = 0  # the last minute whose rows `check` has compared

    # ---- the sweep ----

    def sweep_with_faults(self) -> None:
        """Schedule the next sweep, and run a sweep. Some sweeps do not start, die, sleep, or run twice at once."""
        self.world.schedule_in(self.world.settings.minute_s + self.chance.uniform(-1, 1), self.sweep_with_faults)
        for sleeper in self._pick_sleepers_to_wake():  # processes that slept before a write
            self._run_ignoring_crash(sleeper.wake)
        if self.world.draws_fault():
            if self.chance.random() < 0.3:
                return
            self._faulty_sweep()
        if not self.world.draws_fault() or self.chance.random() < 0.5:
            with self.world.with_random_skew():
                self.world.sweep()
        self.world.schedule_new_records()
        self.check()

    def _faulty_sweep(self) -> None:
        write_number = int(self.chance.expovariate(0.1))  # of the write at which the sweep dies or sleeps
        if self.chance.random() < 0.5:
            client = client_that_dies(self.world.wire, write_number, committed=self.chance.random() < 0.5)
            with self.world.with_random_skew():
                self._run_ignoring_crash(lambda: self.world.sweep(client))
            return
        with self.world.with_random_skew():
            sleeper = Sleeper(self.world.wire, write_number, self.world.sweep)
        self.sleepers.append(sleeper)

    def _pick_sleepers_to_wake(self) -> list[Sleeper]:
        picked = [sleeper for sleeper in self.sleepers if self.chance.random() < 0.6]
        self.sleepers = [sleeper for sleeper in self.sleepers if sleeper not in picked]
        return picked

    def _run_ignoring_crash(self, run: Callable[[], object]) -> None:
        with contextlib.suppress(Crash):
            run()

    # ---- repairs ----

    def repair_with_faults(self) -> None:
        """Request a repair of each tally that drifts, and of `likes` of p0, which is often right."""
        self.world.schedule_in(self.chance.uniform(100, 300), self.repair_with_faults)
        if self.chance.random() < 0.3:
            self.acknowledge()
        if self.may_repair:
            for tally in {**self.world.drifts(), ("likes", "p0"): 0}:
                with contextlib.suppress(RepairNotReadyError):
                    self._repair_later(tally, self.request_repair(tally))

    def acknowledge(self) -> None:
        """Acknowledge the losses, so that `as_of` advances. `as_of` may then pass spilled changes that were lost."""
        with contextlib.suppress(RepairNotReadyError):
            if all_losses := loss.list_losses(self.world.store):
                losses.acknowledge(self.world.store, all_losses, "ann", "test")
                for change_number in self.truth.lost_changes:
                    self.truth.spilled.pop(change_number, None)
                self.truth.lost_changes.clear()

    def _repair_later(
        self, tally: Tally, request: RepairRequest, tries: int = 15, *, is_recounted: bool = False
    ) -> None:
        """Repair a tally after the minute of the request is judged, and after `recount`. `tries`: how many minutes the
        command still waits for the judge. `is_recounted`: `request` comes from `recount`."""
        if self.last_judged_minute() < request.minute:
            if tries and self.may_repair:
                retry = partial(self._repair_later, is_recounted=is_recounted)
                self.world.schedule_in(60, retry, tally, request, tries - 1)
        elif is_recounted:
            self._repair_with_faults(tally, request, self.chance.randrange(2))
        else:
            with contextlib.suppress(RepairNotReadyError):
                self._repair_later(tally, self.recount(tally, request), is_recounted=True)

    def _repair_with_faults(self, tally: Tally, request: RepairRequest, write_number: int) -> None:
        """Repair a tally. The command may die or sleep at this write."""

        def repair(client: Any) -> None:
            with contextlib.suppress(RepairNotReadyError, RepairContentionError):
                self.repair(tally, request, client)

        if self.world.draws_fault() and self.chance.random() < 0.5:
            client = client_that_dies(self.world.wire, write_number, committed=self.chance.random() < 0.5)
            self._run_ignoring_crash(lambda: repair(client))
        elif self.world.draws_fault():
            self.sleepers.append(Sleeper(self.world.wire, write_number, repair))
        else:
            repair(self.world.wire)
        self.world.schedule_new_records()

    def request_repair(self, tally: Tally) -> RepairRequest:
        """Request the repair of a tally. Raises RepairNotReadyError."""
        counter, command = counters.COUNTERS[tally[0]], self._command()
        # A count of children also finds edits before a loss. `_forget_lost_drift` drops these from `truth`, so a repair
        # by such a count would look wrong. If records may be lost, count no children.
        counts_children = counter.child and not self.world.disturbances.may_lose_records
        counts = [command.count(counter, tally[1])] if counts_children else []
        return RepairRequest(command.minute_to_judge(), counts)

    def recount(self, tally: Tally, request: RepairRequest) -> RepairRequest:
        """If the first count of children contradicts the ledger, count once more. Raises RepairNotReadyError."""
        counter, command = counters.COUNTERS[tally[0]], self._command()
        counts = command.count_again(counter, tally[1], request.child_counts[0] if request.child_counts else None)
        return RepairRequest(command.minute_to_judge() if len(counts) > 1 else request.minute, counts)

    def repair(self, tally: Tally, request: RepairRequest, client: Any = None) -> Finding | None:
        """Repair a tally, as the command does after its wait for the judge. Raises RepairNotReadyError."""
        counter, command = counters.COUNTERS[tally[0]], self._command(client)
        return command.repair(
            counter, tally[1], "ann", "test", required_minute=request.minute, counted=request.child_counts
        )

    def wait_for_judge(self, request: RepairRequest) -> None:
        """Let time pass until the judge has judged the minute of a request."""
        for _ in range(2 * WAIT_MAX):  # the command gives up after WAIT_MAX, and a person runs it once more
            if self.last_judged_minute() < request.minute:
                self.pass_minutes(1)

    def repair_all(self) -> None:
        """Repair each tally that drifts. No other process acts, so no repair is refused."""
        requests = {tally: self.request_repair(tally) for tally in self.world.drifts()}
        for tally, request in requests.items():
            self.wait_for_judge(request)
            second_request = self.recount(tally, request)
            self.wait_for_judge(second_request)
            try:
                self.repair(tally, second_request)
            except RepairNotReadyError:
                self.failures["repair refused at rest"] += 1
        self.world.schedule_new_records()

    def _command(self, client: Any = None) -> Reconciler:
        return Reconciler(self.world.with_client(client), clock=self.world.clock, sleep=lambda _: None)

    # ---- deploys ----

    def redeclare(self) -> None:
        """Schedule a deploy that changes a declaration, and its rollback. Consumers get a declaration before writers.
        Writers never get an incompatible declaration."""
        receivers, after_s = [*self.world.handlers, "writers"], 0.0
        name, fields = self.chance.choice(COMPATIBLE_FIELDS)
        # A counter without a stored fingerprint has no items yet, so every declaration fits it.
        counters_with_changes = fingerprints.read_all(self.world.store)
        incompatible = [entry for entry in INCOMPATIBLE_FIELDS if entry[0] in counters_with_changes]
        if incompatible and self.chance.random() < 0.5:
            receivers, (name, fields) = [*self.world.handlers], self.chance.choice(incompatible)
        declared = counters.COUNTERS[name]
        for counter in (replace(declared, **fields), declared):
            for receiver in receivers:
                self.world.schedule_in(after_s, self._declare, receiver, counter)
                after_s += self.chance.uniform(0, 60)
            after_s += self.chance.uniform(60, 400)
        if self.may_repair:
            self.world.schedule_in(after_s, self.redeclare)

    def _declare(self, receiver: str, counter: Counter) -> None:
        """Give a consumer or the writers a declaration. `receiver`: the name of a consumer, or `writers`."""
        if receiver in self.world.handlers:
            handler = self.world.handlers[receiver]
            handler.declared = CounterIndex({**handler.declared.by_name, counter.name: counter})
        else:
            counters.COUNTERS[counter.name] = counter
            setattr(counters, counter.name.upper(), counter)

    # ---- the checks ----

    def last_judged_minute(self) -> int:
        """Returns the last minute that is judged; -1: no minute is judged."""
        return watermark.read(self.world.store).judged

    def check(self) -> None:
        """Compare each drift row with the edits up to the last judged minute."""
        current = watermark.read(self.world.store)
        judged_minute = current.judged
        if judged_minute < max(0, current.resume_minute - 1):
            return  # nothing is judged, or the judge has not skipped the loss
        if self.resume_minute != current.resume_minute:
            self._forget_lost_drift(current)
        self.last_checked_minute = judged_minute
        stored_rows = {(row.counter, row.target): row for row in rows.all_rows(self.world.store)}
        for tally in {*stored_rows, *self.truth.drifts} - self._unpredictable() - self._edited_before_the_ledger():
            row = stored_rows.get(tally) or rows.read_row(self.world.store, *tally)
            if row.last_minute > judged_minute:
                continue  # the judge died after it wrote the row, and before it stored the minute
            minutes = range(judged_minute, judged_minute - CONFIRM_MINUTES_MAX, -1)
            true_drifts = [self.truth.drift(tally, minute) for minute in minutes]
            self.failures["drift of a row is wrong"] += row.drift != true_drifts[0]
            amount = row.confirmed_amount(watermark.Watermark(judged_minute))
            if amount:
                is_too_much = true_drifts[0] * amount <= 0 or abs(amount) > abs(true_drifts[0])
                self.failures["false drift is confirmed"] += is_too_much
            else:  # was the true drift on one side of 0 in all of these minutes?
                self.failures["drift is not confirmed"] += min(true_drifts) > 0 or max(true_drifts) < 0

    def _forget_lost_drift(self, current: Watermark) -> None:
        """After a loss, drop the edits before the resume minute from `truth`, except the drift that a row has kept.
        A row may keep a part of the true drift, because confirmed drift stays. Check that no row has kept more."""
        self.resume_minute, truth = current.resume_minute, self.truth
        for tally in {*self.world.drifts(), *truth.drifts}:
            row = rows.read_row(self.world.store, *tally)
            true_drift = truth.drift(tally, self.last_checked_minute)
            later_edits = [edit for edit in truth.drifts[tally] if edit[0] >= current.resume_minute]
            last_minute = max(current.judged, row.last_minute)
            old_drift = row.drift - sum(amount for minute, amount in later_edits if minute <= last_minute)
            if tally not in self._unpredictable():
                # Without true drift, a row may keep nothing. The divisor -old_drift then gives -1, which is wrong.
                is_wrong = old_drift != 0 and not 0 < old_drift / (true_drift or -old_drift) <= 1
                self.failures["unproven drift kept after a restart"] += is_wrong
            truth.drifts[tally] = [(0, old_drift - truth.repaired[tally]), *later_edits]  # Truth.drift adds the repairs

    def _unpredictable(self) -> set[Tally]:
        """Returns the tallies whose drift rows the simulation cannot predict, because it does not know the minute of an
        edit. If records may be lost, it cannot predict the rows of tallies of periods, too: their items expire, and the
        record of an expiry may be lost."""
        if not self.world.disturbances.may_lose_records:
            return self.truth.without_minute
        return self.truth.without_minute | {tally for tally in self.truth.drifts if DECLARED[tally[0]].period}

    def _edited_before_the_ledger(self) -> set[Tally]:
        """Returns the tallies with an edit in the minute before the ledger began. The judge does not judge this minute,
        so the bookkeeper books the edit on a later minute than `truth`. Clocks of shards differ by seconds, so one
        shard may be in that minute when another shard's record begins the ledger."""
        began_s = items.int_attribute(watermark.read(self.world.store).item, "began_s")
        minute_before = self.world.settings.minute_of(began_s) - 1
        return {
            tally for tally, edits in self.truth.drifts.items() if any(minute == minute_before for minute, _ in edits)
        }

    def check_as_of(self) -> None:
        """Check that `as_of` is not later than the oldest change that is not in its tally; schedule the next check."""
        self.world.schedule_in(self.chance.uniform(1, 30), self.check_as_of)
        watermark._cached = None
        with self.world.with_random_skew():
            as_of = watermark.as_of(Call(self.world.store))
        if as_of is not None and as_of > min(self.truth.spilled.values(), default=self.world.clock.now_s):
            self.failures["as_of is too late"] += 1

    def check_at_rest(self) -> None:
        """Check that the judge has found every edit, and that each tally is wrong by its edits and repairs only."""
        drifts = self.world.drifts()
        numbers: dict[Tally, int] = {}
        for item in self.world.scan("counts"):
            tally = tally_of(item)
            if tally is not None:
                numbers[tally] = numbers.get(tally, 0) + amount_of(tally, item)
        may_lose = self.world.disturbances.may_lose_records
        unpredictable = self._unpredictable() if may_lose else set[Tally]()  # the minute of an edit does not matter now
        for tally in {*drifts, *self.truth.drifts} - unpredictable:
            if drifts.get(tally, 0) != self.truth.drift(tally):
                self.failures["edit missed or wrong"] += 1
        for tally in {*numbers, *self.truth.accepted}:
            excess = self.truth.excesses[tally] + self.truth.repaired[tally]
            if numbers.get(tally, 0) - excess != self.truth.accepted[tally]:
                self.failures["tally is wrong"] += 1
        if self.truth.spilled:
            self.failures["change was never rolled up"] += 1
        if self.world.sweeps_series and not may_lose:
            self._check_series()

    def _check_series(self) -> None:
        """Check that each series sums up to the accepted changes, and lists the imported changes separately.
        Traffic deletes imported likes and restores them. Series and `truth` have a restored like as one more import."""
        store, judged_minute = self.world.store, self.last_judged_minute()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hours, "PART_MINUTES", 1)
            hours.sum_up(store, judged_minute, until_s=float("inf"))
        all_hours = SeriesRange(series.HOUR, 0, 10**6)
        for tally in self.truth.accepted:
            if DECLARED[tally[0]].period:
                continue  # all periods of an id have one series
            answer = series.read_series(Call(store), counters.COUNTERS[tally[0]], tally[1], all_hours)
            counted, imported = (sum(point["value"] for point in answer[kind]) for kind in ("series", "imports"))
            accepted = self.truth.accepted[tally] - self.truth.starts.get(tally, 0)
            self.failures["series is wrong"] += counted + imported != accepted
            self.failures["imports of a series are wrong"] += imported != self.truth.imported[tally]

    # ---- time ----

    def pass_minutes(self, number: float) -> None:
        self.world.run_until(self.world.clock.now_s + number * self.world.settings.minute_s)

    def _minute(self) -> int:
        return self.world.settings.minute_of(self.world.clock.now_s)

    def rest(self) -> None:
        """Let time pass until every record is delivered and judged."""
        target_minute = self._minute() + watermark.CONFIRM_AFTER + 1  # when drift of the last edits is confirmed
        for _ in range(REST_MINUTES_MAX):
            self.pass_minutes(1)
            judged_minute = self.last_judged_minute()
            has_judged = judged_minute >= max(target_minute, self._minute() - JUDGE_LAG_MAX)
            if has_judged and self.world.consumers_have_caught_up():
                break
        else:
            self.failures["judge is stuck"] += 1
        for sleeper in self.sleepers:
            self._run_ignoring_crash(sleeper.wake)
        self.world.schedule_new_records()
        self.check()


def run_schedule(world: SimulatedWorld) -> dict[str, int]:
    """Run the schedule of the world's seed to its end. Returns how often each thing failed; empty if all is right."""
    chance, schedule = world.chance, Schedule(world)
    minutes = chance.uniform(25, 45)
    begin_s, end_s = world.clock.now_s, world.clock.now_s + 60 * minutes
    world.stalls = draw_stalls(chance, begin_s, end_s)
    change_every_s = chance.choice([8, 15, 30])
    _schedule_actions(world, schedule, change_every_s, end_s)
    world.run_until(max([end_s, *(stall.to_s for stall in world.stalls)]))
    schedule.may_repair = False
    world.unreadable.clear()  # consumers can read every receipt
    for hold in schedule.traffic.holds:
        schedule.traffic.settle(hold, RELEASED)
    schedule.pass_minutes(5)  # a late write of a process that seemed dead may store a dead letter
    schedule.world.redrive_all()
    schedule.rest()
    schedule.acknowledge()
    schedule.check_at_rest()
    schedule.repair_all()
    schedule.rest()
    schedule.check_at_rest()
    if world.drifts():
        world.failures["drift remains after its repair"] += 1
    return {name: number for name, number in world.failures.items() if number}


def _schedule_actions(world: SimulatedWorld, schedule: Schedule, change_every_s: float, end_s: float) -> None:
    """Schedule the actions of callers, of people and of Tally's processes. Callers stop, and edits end, at `end_s`."""
    chance = world.chance

    def change() -> None:
        if world.clock.now_s < end_s:
            schedule.traffic.change()
            world.schedule_in(chance.expovariate(1 / change_every_s), change)

    def edit() -> None:
        if world.clock.now_s < end_s:
            schedule.traffic.edit()
            world.schedule_in(chance.expovariate(1 / 150), edit)  # on average every 150 s

    def edit_repeatedly() -> None:
        tally = chance.choice([("plays", "v0"), ("likes", "p0"), ("visits", "https://example.com/0")])
        amount, every_s = chance.choice([1, 1, -2]), chance.choice([60, 120, 240])
        schedule.traffic.edit_repeatedly(tally, amount, every_s, until_s=end_s)

    def expire() -> None:
        schedule.traffic.expire()
        world.schedule_in(600, expire)

    def split() -> None:
        if world.disturbances.splits_per_hour:
            is_rare = chance.random() < 0.1
            world.streams.split_off_part_of_collection() if is_rare else world.streams.split()
            world.schedule_in(chance.expovariate(world.disturbances.splits_per_hour / 3600), split)

    def remove_and_restore_repeatedly() -> None:
        if world.clock.now_s < end_s and schedule.traffic.likes:
            schedule.traffic.remove_and_restore_repeatedly(chance.randint(2, 4))
            world.schedule_in(chance.expovariate(1 / 400), remove_and_restore_repeatedly)

    world.schedule_in(chance.uniform(0, 60), change)
    world.schedule_in(chance.uniform(0, 600), remove_and_restore_repeatedly)
    _schedule_disturbances(world)
    world.schedule_in(chance.uniform(0, 10), edit)
    world.schedule_in(chance.uniform(0, 1200), edit_repeatedly)
    world.schedule_in(chance.uniform(0, 600), expire)
    world.schedule_in(
        chance.expovariate(world.disturbances.splits_per_hour / 3600) if world.disturbances.splits_per_hour else 0,
        split,
    )
    world.schedule_in(chance.uniform(0, 60), schedule.sweep_with_faults)
    world.schedule_in(chance.uniform(300, 900), schedule.repair_with_faults)
    world.schedule_in(60, schedule.check_as_of)
    if world.disturbances.deploys:
        world.schedule_in(chance.uniform(0, 600), schedule.redeclare)


def _schedule_disturbances(world: SimulatedWorld) -> None:
    """Schedule a split by which one shard has only records of one tally, which the rollup does not get; a heartbeat
    that is throttled; and receipts that consumers cannot read for some minutes."""
    chance = world.chance

    def split_off_tally() -> None:
        counter, id_ = chance.choice([(counters.PLAYS, "v0"), (counters.LIKES, "p0"), (counters.LIKES, "p1")])
        world.streams.split_off_item(tallies.key(counter, id_, 0))

    def throttle_heartbeat() -> None:
        checkpoints = world.rows("CHECKPOINT#bookkeeper#counts")
        heartbeats = [item["heartbeat"]["S"] for item in checkpoints if "heartbeat" in item]
        if heartbeats:
            key = f"HEARTBEAT#{chance.choice(sorted(heartbeats))}"
            world.wire.throttled.add(key)
            world.schedule_in(2400, world.wire.throttled.discard, key)

    def break_consumers() -> None:
        consumers = chance.choice([["rollup"], ["bookkeeper"], ["rollup", "bookkeeper"]])
        unreadable = {(name, f"https://example.com/{number}") for name in consumers for number in range(8)}
        world.unreadable |= unreadable
        mended_after_s = chance.uniform(30, 300)
        world.schedule_in(mended_after_s, world.unreadable.difference_update, unreadable)
        redriven_after_s = mended_after_s + chance.uniform(60, 1500)
        redriver_skew_s = chance.choice([0, 0, 240, 3600, -3600])
        world.schedule_in(redriven_after_s, world.redrive_all, redriver_skew_s)
        if world.disturbances.may_lose_records:
            world.schedule_in(redriven_after_s - 30, world.discard_some_dead_letters)

    world.schedule_in(chance.uniform(60, 1200), split_off_tally)
    world.schedule_in(chance.uniform(120, 1500), throttle_heartbeat)
    world.schedule_in(chance.uniform(30, 1200), break_consumers)


def draw_stalls(chance: random.Random, begin_s: float, end_s: float) -> list[Stall]:
    """Returns a stall of one consumer in one shard, and up to two other stalls."""
    stalls = []
    for number in range(chance.randint(1, 3)):
        earliest_s = begin_s + chance.choice([60, 540, 540, 540])  # mostly after the judge has judged its first minute
        from_s = chance.uniform(earliest_s, begin_s + (end_s - begin_s) * 0.6)
        short_end_s, consumer = from_s + chance.uniform(300, 1500), chance.choice(["rollup", "bookkeeper"])
        kind = 0 if number == 0 else chance.choice([0, 0, 1, 1, 2, 3])
        stalls.append([
            Stall(from_s, short_end_s, consumer, chance.choice(["counts", "receipts"]), chance.randrange(4)),
            Stall(from_s, short_end_s, consumer),
            Stall(from_s, from_s + 1800),  # of every consumer
            Stall(from_s, from_s + 3600, "rollup"),
        ][kind])  # fmt: skip
    return stalls


@pytest.mark.parametrize("seed", [*SEEDS, *SEEDS_LONG])
def test_the_schedule_of_a_seed_makes_no_false_drift_and_misses_no_edit(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, counter in DECLARED.items():
        monkeypatch.setitem(counters.COUNTERS, name, counter)
        monkeypatch.setattr(counters, name.upper(), counter, raising=False)
    window_s = WINDOWS_S[seed % len(WINDOWS_S)]
    disturbances = replace(DISTURBANCES.get(seed % 10, Disturbances()), window_s=window_s)
    monkeypatch.setattr(lineage, "STREAM_RETENTION_S", disturbances.retention_s)
    clock = Clock()
    with new_engine() as engine, seed_randomness(clock, seed):
        world = SimulatedWorld(engine, clock, seed, disturbances)
        world.sweeps_series = True
        failures = run_schedule(world)
        world.wire.close()
    allowed = ALLOWED_FAILURES_OF_LATE_COMMITS if disturbances.late_share else set[str]()
    assert {failure: times for failure, times in failures.items() if failure not in allowed} == {}
