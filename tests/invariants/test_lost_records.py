"""After a stream may have lost records, the ledger restarts. No drift is false, no later edit is missed, and `as_of` is
never too late. Here a stream keeps a record for `DAY` minutes instead of a day."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

import counters
from tally.counter import Counter
from tally.drift import checks, history, restarted_ledger, rows
from tally.dynamo.client import Call
from tally.maintenance import losses, rebuild
from tally.maintenance.rebuild import Accepted, Window
from tally.maintenance.reconcile import RepairNotReadyError
from tally.series import hours, top
from tally.series import read as series
from tally.series.read import SeriesRange
from tally.streams import dead_letters, lineage, loss, watermark
from tally.streams.record import PoisonRecordError
from tests.invariants.deployment import PLAYS, VISITS, Deployment, deployed
from tests.tiers import marked_long

DAY = 12  # minutes, in place of a day
PAGE = "https://example.com/a"
BOTH_CONSUMERS = ("rollup", "bookkeeper")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    monkeypatch.setattr(lineage, "STREAM_RETENTION_S", DAY * 60)
    with deployed() as deployment:
        yield deployment


def trim(world: Deployment, consumer: str) -> None:
    """Let a consumer lose the unseen records that are older than a day."""
    for shards in world.streams.shards.values():
        for shard in shards:
            created_s = [record["dynamodb"]["ApproximateCreationDateTime"] for record in shard.records]
            old_count = sum(at_s < world.now_s - DAY * 60 for at_s in created_s)
            delivery = world.delivery_to(consumer, shard)
            delivery.position = max(delivery.position, old_count)


def switch_off(world: Deployment, *consumers: str, minutes: float = DAY + 5) -> None:
    """Switch these consumers off for some minutes. They lose the unseen records that are older than a day."""
    for consumer in consumers:
        world.stall(consumer)
    world.run(minutes)
    for consumer in consumers:
        trim(world, consumer)
    world.resume()


def switch_off_with_sweep(world: Deployment, *consumers: str) -> None:
    """Switch these consumers and the sweep off for more than a day."""
    for consumer in consumers:
        world.stall(consumer)
    world.deliver()
    world.skip((DAY + 5) * 60)
    for consumer in consumers:
        trim(world, consumer)
    world.resume()


def repair(world: Deployment, counter: Counter, target: str) -> int:
    """Repair a tally with the command. Returns the amount of the repair."""
    reconciler = world.reconciler()
    required_minute = reconciler.minute_to_judge()
    reconciler.wait_until_judged(required_minute)
    finding = reconciler.repair(counter, target, "ann", "test", required_minute=required_minute)
    return finding.difference if finding else 0


def acknowledge(world: Deployment) -> None:
    losses.acknowledge(world.store, loss.list_losses(world.store), "ann", "a long weekend")


@pytest.mark.parametrize(
    ("consumers", "switch_off_consumers"),
    [
        (BOTH_CONSUMERS, switch_off),
        (("bookkeeper",), switch_off_with_sweep),
        *marked_long([(("bookkeeper",), switch_off), (BOTH_CONSUMERS, switch_off_with_sweep)]),
    ],
)
def test_a_right_number_stays_right_when_its_records_are_lost(
    world: Deployment, consumers: tuple[str, ...], switch_off_consumers: Callable[..., None]
) -> None:
    """DynamoDB trims more of `receipts` than of `counts`, so of the last four plays the ledger has only one half."""
    world.play(times=5)
    world.run_without_drift()
    before_s = world.now_s
    for consumer in consumers:
        world.stall(consumer)
    world.play(times=7)
    world.deliver()
    first_kept_positions = {shard.id: len(shard.records) for shard in world.streams.shards["counts"]}
    world.play(times=4)
    switch_off_consumers(world, *consumers)
    for shard in world.streams.shards["counts"]:
        world.delivery_to("bookkeeper", shard).position = first_kept_positions[shard.id]
    world.run_without_drift(minutes=25)
    assert (world.tally(PLAYS, "v"), repair(world, PLAYS, "v")) == (5 + 7 + 4, 0)
    assert (world.as_of() or 0) <= before_s, "a lost change may have spilled, and so be in no tally"
    acknowledge(world)
    world.run(3)
    assert (world.as_of() or 0) > before_s + DAY * 60
    assert {entry["by"] for entry in history.acknowledged_losses(world.store)} == {"ann"}


def test_confirmed_drift_stays_after_a_restart_and_unconfirmed_drift_is_deleted(world: Deployment) -> None:
    world.edit(-5, PLAYS, "old")
    world.run_until_confirmed()
    world.edit(-3, PLAYS, "young")
    world.run_until_judged()
    assert world.drifts() == {("plays", "old"): -5, ("plays", "young"): -3}
    switch_off(world, "bookkeeper")
    world.run_until_confirmed()
    assert world.drifts() == {("plays", "old"): -5}
    assert repair(world, PLAYS, "old") == 5
    world.edit(2, PLAYS, "new")
    world.run_until_confirmed()
    assert world.drifts() == {("plays", "new"): 2}
    assert repair(world, PLAYS, "new") == -2


def test_a_late_restart_by_a_sleeping_sweep_does_not_delete_newer_drift(world: Deployment) -> None:
    minute_before = world.last_judged_minute
    switch_off(world, "bookkeeper")
    world.run_until_judged()
    world.edit(2, PLAYS, "new")
    world.run_until_judged()
    old_watermark = replace(watermark.read(world.store), judged=minute_before)  # as the sleeping sweep has read it
    restarted_ledger.restart(world.store, old_watermark, world.now_s, float("inf"))
    assert world.drifts() == {("plays", "new"): 2}


def test_an_edit_that_is_less_than_a_day_old_is_judged_after_a_restart(world: Deployment) -> None:
    world.stall("bookkeeper")
    world.run(DAY - 2)
    world.edit(9, PLAYS, "v")
    switch_off(world, "bookkeeper", minutes=5)
    world.run_until_judged()
    assert loss.list_losses(world.store), "the bookkeeper was off for more than a day"
    assert world.drifts() == {("plays", "v"): 9}


@pytest.mark.parametrize("consumers", [BOTH_CONSUMERS, *marked_long([(("bookkeeper",),), (("rollup",),)])])
def test_consumers_that_are_off_for_less_than_a_day_lose_no_record(
    world: Deployment, consumers: tuple[str, ...]
) -> None:
    for consumer in consumers:
        world.stall(consumer)
    world.play(times=3)
    world.spill(PAGE, 3, VISITS)
    world.run(DAY - 5)
    world.resume()
    world.run_until_judged()
    assert (loss.list_losses(world.store), world.drifts()) == ([], {})
    assert watermark.read(world.store).resume_minute == 0, "the ledger did not restart"


def test_the_ledger_has_the_changes_that_only_the_rollup_has_lost(world: Deployment) -> None:
    before_s = world.now_s
    world.stall("rollup")
    world.spill(PAGE, 3, VISITS)
    switch_off(world, "rollup")
    world.spill(PAGE, 4, VISITS)
    world.run_until_confirmed()
    assert [entry.consumer for entry in loss.list_losses(world.store)] == ["rollup"]
    assert (world.tally(VISITS, PAGE), world.drifts()) == (4, {("visits", PAGE): -3})
    assert (world.as_of() or 0) <= before_s
    assert repair(world, VISITS, PAGE) == 3
    acknowledge(world)
    world.run(4)
    assert (world.as_of() or 0) > before_s


def test_receipts_have_the_changes_that_both_consumers_have_lost(world: Deployment) -> None:
    """The bookkeeper has lost more records than the rollup. The changes that the rollup has added are not drift."""
    world.stall()
    world.spill(PAGE, 10, VISITS)
    world.deliver()
    first_kept_positions = {shard.id: len(shard.records) for shard in world.streams.shards["receipts"]}
    world.spill(PAGE, 5, VISITS)
    world.run(DAY + 5)
    trim(world, "bookkeeper")
    for shard in world.streams.shards["receipts"]:
        delivery = world.delivery_to("rollup", shard)
        delivery.position = max(delivery.position, first_kept_positions[shard.id])
    world.resume()
    world.run_without_drift(minutes=14)
    day, accepted = world.store.settings.minute_of(world.now_s) // (24 * 60), Accepted()
    list(rebuild.sum_receipts(world.store, {"visits": VISITS}, Window(day - 1, day), accepted))  # adds to `accepted`
    missing = rebuild.missing_of(world.store, VISITS, PAGE, accepted["visits", PAGE]).difference
    assert (world.tally(VISITS, PAGE), missing) == (5, 10)
    world.edit(-7, VISITS, PAGE)
    world.run_until_confirmed()
    assert repair(world, VISITS, PAGE) == 7
    unproven = rebuild.missing_of(world.store, VISITS, PAGE, accepted["visits", PAGE])
    assert unproven.difference == 10
    assert unproven.unproven_reason.startswith("repairs since then added +7"), "they may have added lost changes"


def test_a_stream_that_was_switched_off_and_on_has_lost_its_old_records(world: Deployment) -> None:
    """A new stream has another name. The records of writes while the stream was off are lost."""
    world.stall()
    world.play(times=2)
    world.deliver()  # to no consumer, but the streams have the records
    for (shard,) in world.streams.shards.values():  # the bookkeeper never gets the records of the two plays
        world.delivery_to("bookkeeper", shard).position = len(shard.records)
    world.resume()
    world.store = replace(world.store, settings=world.store.settings._replace(receipts_stream="arn:…/new"))
    world.run_without_drift(minutes=14)
    assert {entry.consumer for entry in loss.list_losses(world.store)} == set(BOTH_CONSUMERS)
    acknowledge(world)
    world.run_without_drift(minutes=5)
    assert (loss.list_losses(world.store), checks.lost_records_check(world.store).failed) == ([], False)


def test_make_dev_reports_no_loss_because_its_engine_keeps_every_record(world: Deployment) -> None:
    world.store = replace(world.store, settings=world.store.settings._replace(local_port=8080))
    switch_off_with_sweep(world)
    world.run(3)
    assert loss.list_losses(world.store) == []


def test_a_health_check_reports_a_loss_until_somebody_acknowledges_it(world: Deployment) -> None:
    switch_off_with_sweep(world)
    assert checks.lost_records_check(world.store).state == "ok", "no sweep has run, so nobody has noted the loss"
    world.run(1)
    check = checks.lost_records_check(world.store)
    assert (check.state, check.facts["since"] < world.now_s - DAY * 60) == ("wrong", True)
    with pytest.raises(RepairNotReadyError, match="has not restarted"):
        acknowledge(world)
    with pytest.raises(RepairNotReadyError, match="has not restarted"):
        world.reconciler().minute_to_judge()
    world.run_until_judged()
    first_losses = loss.list_losses(world.store)
    switch_off_with_sweep(world)
    world.run_until_judged()
    with pytest.raises(RepairNotReadyError, match="More records of bookkeeper may be lost"):
        losses.acknowledge(world.store, first_losses, "ann", "of the first loss")
    acknowledge(world)
    world.run(1)
    assert checks.lost_records_check(world.store).state == "ok"


def test_series_have_every_change_if_the_stream_trims_no_record_of_a_long_stall(world: Deployment) -> None:
    """The bookkeeper was off for more than a day, so records may be lost, but DynamoDB trimmed no record."""
    world.sweeps_series = True
    world.run(1)
    world.stall("bookkeeper")
    world.play(times=6)
    world.run(DAY + 5)
    world.resume()
    world.run_until_judged()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hours, "PART_MINUTES", 1)  # so the series have each judged minute at once
        hours.sum_up(world.store, world.last_judged_minute, until_s=float("inf"))
    assert sum_of_series(world) == 6


# ---- dead letters ----


def break_consumers(world: Deployment, *consumers: str, target: str = "v") -> Callable[[], object]:
    """Give these consumers a bug in reading the receipts of a target. Returns a function that removes the bug."""
    originals = {consumer: world.handlers[consumer].consumer for consumer in consumers}

    def read(consumer: str, declared, record):  # type: ignore[no-untyped-def]
        if record["dynamodb"].get("NewImage", {}).get("target") == {"S": target}:
            raise PoisonRecordError("a bug")
        return originals[consumer].read["receipts"](declared, record)

    def mend() -> None:
        for consumer in consumers:
            world.handlers[consumer].consumer = originals[consumer]

    for consumer in consumers:
        broken_read = {**originals[consumer].read, "receipts": partial(read, consumer)}
        world.handlers[consumer].consumer = replace(originals[consumer], read=broken_read)
    return mend


def discard_all(world: Deployment) -> None:
    """Discard every dead letter, after its object has expired."""
    world.bucket.objects.clear()
    for marker in list(dead_letters.list_markers(Call(world.store))):
        dead_letters.discard(Call(world.store), marker)


def test_a_discarded_dead_letter_of_the_bookkeeper_is_no_drift(world: Deployment) -> None:
    """Confirmed drift is deleted, too, because it may be the other half of the dead letter's change."""
    mend = break_consumers(world, "bookkeeper")
    before_s = world.now_s
    world.play(times=4)
    world.run_until_confirmed()
    mend()
    row = rows.read_row(world.store, "plays", "v")
    assert (row.drift, row.confirmed_amount(watermark.read(world.store))) == (4, 4)
    discard_all(world)
    with pytest.raises(RepairNotReadyError, match="has not restarted"):
        world.reconciler().minute_to_judge()
    world.run_until_confirmed()
    assert (repair(world, PLAYS, "v"), world.tally(PLAYS, "v"), world.drifts()) == (0, 4, {})
    assert (world.as_of() or 0) <= before_s
    world.edit(1, PLAYS, "v")
    world.run_until_confirmed()
    assert repair(world, PLAYS, "v") == -1


def as_of_of_series(world: Deployment) -> dict[str, float]:
    """Returns the `as_of` of each kind of answer that is made of series."""
    call, all_hours = Call(world.store), SeriesRange(series.HOUR, 0, 10**6)
    answers = {
        "series": series.read_series(call, PLAYS, "v", all_hours),
        "top": top.top_list(call, PLAYS, top.HOUR, None, 10),
        "imported": series.total_imported(call, PLAYS, "v") or {},
    }
    return {name: answer["as_of"] for name, answer in answers.items()}


def sum_of_series(world: Deployment) -> int:
    """Returns the sum of the series of the video."""
    answer = series.read_series(Call(world.store), PLAYS, "v", SeriesRange(series.HOUR, 0, 10**6))
    return sum(point["value"] for point in answer["series"])


@pytest.mark.parametrize("discards", [False, True], ids=["redriven", "discarded"])
def test_the_as_of_of_series_does_not_pass_a_dead_letter_of_the_bookkeeper(
    world: Deployment, monkeypatch: pytest.MonkeyPatch, *, discards: bool
) -> None:
    """`as_of` passes the minute of the dead letter when the series have the redriven change, or after somebody has
    acknowledged the loss of the discarded dead letter."""
    monkeypatch.setattr(hours, "PART_MINUTES", 1)
    world.sweeps_series = True
    mend = break_consumers(world, "bookkeeper")
    before_s = world.now_s
    world.play(times=4)
    world.run_until_judged()
    assert (sum_of_series(world), max(as_of_of_series(world).values()) <= before_s) == (0, True)
    mend()
    discard_all(world) if discards else world.redrive()
    for _ in range(14):
        world.run(1)
        assert sum_of_series(world) == 4 or max(as_of_of_series(world).values()) <= before_s
    if discards:
        acknowledge(world)
        world.run(12)
    assert (sum_of_series(world), min(as_of_of_series(world).values()) > before_s) == (0 if discards else 4, True)


def test_a_discarded_dead_letter_of_the_rollup_is_drift_that_a_repair_corrects(world: Deployment) -> None:
    mend = break_consumers(world, "rollup", target=PAGE)
    before_s = world.now_s
    world.spill(PAGE, 4, VISITS)
    world.run_until_confirmed()
    mend()
    discard_all(world)
    world.run(3)
    assert (world.as_of() or 0) <= before_s
    assert (repair(world, VISITS, PAGE), world.tally(VISITS, PAGE)) == (4, 4)
    acknowledge(world)
    world.run(3)
    assert (world.as_of() or 0) > before_s


@pytest.mark.parametrize(
    ("consumers", "loss_kind"),
    [
        (BOTH_CONSUMERS, "gap"),
        (("bookkeeper",), "dead letter"),
        *marked_long([(("rollup",), "gap"), (("rollup",), "dead letter")]),
        *marked_long([(("bookkeeper",), "gap"), (BOTH_CONSUMERS, "dead letter")]),
    ],
)
def test_a_dead_letter_that_is_redriven_after_a_restart_is_no_drift(
    world: Deployment, consumers: tuple[str, ...], loss_kind: str
) -> None:
    """The ledger has lost the other half of the dead letter's change. The tally and the series get the change.
    `loss_kind`: the bookkeeper loses records while it is off (gap), or somebody discards another dead letter of the
    bookkeeper. In the second case the first dead letter is redriven before the restart, and the others after it."""
    mend = break_consumers(world, *consumers, target=PAGE)
    world.spill(PAGE, 2, VISITS)
    world.run_until_judged()
    mend()
    markers = list(dead_letters.list_markers(Call(world.store)))
    if loss_kind == "gap":
        switch_off(world, "bookkeeper")
    else:
        mend = break_consumers(world, "bookkeeper")
        world.play()
        world.run(1)
        mend()
        [new_marker] = [marker for marker in dead_letters.list_markers(Call(world.store)) if marker not in markers]
        dead_letters.discard(Call(world.store), new_marker)
        world.redrive(markers=markers[:1])  # before a sweep restarts the ledger
    world.run_until_confirmed()
    assert set(world.redrive(counters.COUNTERS, markers[1:] if loss_kind == "dead letter" else markers)) <= {"applied"}
    world.run_without_drift()
    assert (world.tally(VISITS, PAGE), repair(world, VISITS, PAGE)) == (2, 0)


@pytest.mark.parametrize(("minutes", "skew_s"), [(-1, 5), (0, -5), *marked_long([(-1, -5), (0, 5)])])
def test_a_dead_letter_near_the_resume_minute_is_no_drift_whichever_minute_its_other_half_is_on(
    world: Deployment, minutes: int, skew_s: float
) -> None:
    """The record's time and the writer's clock are on different sides of the start of the resume minute, or of a minute
    beside it. `minutes`: the record's minute less the resume minute. `skew_s`: how far the writer's clock is ahead."""
    mend = break_consumers(world, "bookkeeper")
    world.play()
    world.deliver()
    discard_all(world)
    [only_loss] = loss.list_losses(world.store)
    world.run_until((only_loss.resume_minute + minutes) * 60 + (1 if skew_s < 0 else 59))
    with world.clock.with_skew(skew_s):
        world.play()
    world.run(3)
    mend()
    world.run_until_judged()
    assert world.redrive() == ["applied"]
    world.run_until_confirmed()
    assert (repair(world, PLAYS, "v"), world.tally(PLAYS, "v"), world.drifts()) == (0, 2, {})


@pytest.mark.parametrize(
    ("consumer", "minutes"),
    [("rollup", 1), ("bookkeeper", DAY + 5), *marked_long([("rollup", DAY + 5), ("bookkeeper", 1)])],
)
def test_a_dead_letter_that_is_redriven_while_the_bookkeeper_is_off_is_no_drift(
    world: Deployment, consumer: str, minutes: int
) -> None:
    """The dead letter was confirmed drift. The entry of the redrive would take the drift back, but this entry is lost
    or is booked on a skipped minute.
    `minutes`: for how long the bookkeeper is off before the redrive."""
    mend = break_consumers(world, consumer, target=PAGE)
    world.spill(PAGE, 4, VISITS)
    world.run_until_confirmed()
    mend()
    assert world.drifts()
    world.stall("bookkeeper")
    world.run(minutes)
    world.redrive()
    switch_off(world, "bookkeeper", minutes=DAY + 10)
    world.run_until_confirmed()
    assert (repair(world, VISITS, PAGE), world.tally(VISITS, PAGE), world.drifts()) == (0, 4, {})


@pytest.mark.parametrize("minutes", [6, DAY - 2])
def test_a_dead_letter_that_is_redriven_on_a_judged_minute_is_no_drift(world: Deployment, minutes: int) -> None:
    """The bookkeeper was off when the change was made, so the change's half in the ledger is on a skipped minute. The
    redrive's half is on a later minute, which is judged.
    `minutes`: the time from the change to the redrive."""
    mend = break_consumers(world, "rollup", target=PAGE)
    world.stall("bookkeeper")
    world.spill(PAGE, 2, VISITS)
    world.run(minutes)
    mend()
    assert set(world.redrive()) == {"applied"}
    world.run(DAY + 4 - minutes)
    trim(world, "bookkeeper")
    world.resume()
    world.run_without_drift(minutes=14)
    assert (world.tally(VISITS, PAGE), repair(world, VISITS, PAGE)) == (2, 0)
