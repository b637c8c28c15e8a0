"""A rebuild adds the receipts that the rollup lost, exactly and once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import counters
from tally.counting import batch, tallies
from tally.drift import history
from tally.dynamo.client import Call
from tally.maintenance import rebuild
from tally.maintenance.rebuild import Accepted, Window
from tally.maintenance.reconcile import Finding, Reconciler, RepairNotReadyError
from tally.streams import watermark
from tests.invariants.deployment import PLAYS, VISITS, Deployment, deployed
from tests.invariants.processes import interrupted_client
from tests.invariants.test_reconcile import make_dead_letter

DAY_MINUTES = 6  # the length of a day in these tests
EVERY_CONSUMER, ROLLUP = None, "rollup"  # as `Deployment.stall` names consumers


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """A deployment at the beginning of its first whole day."""
    monkeypatch.setattr(tallies, "MINUTES_PER_DAY", DAY_MINUTES)
    with deployed() as deployment:
        run_to_next_day(deployment)
        yield deployment


def today(world: Deployment) -> int:
    """Returns the number of the present day, in days of DAY_MINUTES since 1970."""
    return world.store.settings.minute_of(world.now_s) // DAY_MINUTES


def run_to_next_day(world: Deployment) -> None:
    day = today(world)
    while today(world) == day:
        world.run(1)


def lose_records(world: Deployment, consumer: str | None, act: Callable[[], object]) -> None:
    """Stalls a consumer (None: every consumer) while `act` runs. The consumer never gets the records of this time."""
    world.stall(consumer)
    act()
    world.run(1)
    world.trim_and_resume()


def run_until_days_are_judged(world: Deployment, days: int = 2) -> None:
    """Runs until `days` days are judged, of which this day is the first."""
    last_minute = (today(world) + days) * DAY_MINUTES - 1
    while world.last_judged_minute < last_minute:
        world.run(1)


def missing_amounts(reconciler: Reconciler) -> dict[tuple[str, str], Finding]:
    """Returns what a rebuild would add, by counter and id."""
    store, accepted = reconciler.store, Accepted()
    days = rebuild.rebuild_window(store, watermark.read(store), reconciler.clock())
    list(rebuild.sum_receipts(store, counters.COUNTERS, days, accepted))  # adds to `accepted`
    missing = rebuild.find_missing(store, counters.COUNTERS, accepted)
    return {(finding.counter.name, finding.target): finding for finding in missing}


def rebuild_all(reconciler: Reconciler) -> dict[tuple[str, str], int]:
    """Rebuilds as the command does. Returns the amounts that were added, by counter and id."""
    required_minute = reconciler.minute_to_judge()
    reconciler.wait_until_judged(required_minute)
    findings = {
        tally: rebuild.rebuild(reconciler, missing, "ann", "outage", required_minute)
        for tally, missing in missing_amounts(reconciler).items()
    }
    return {tally: finding.difference for tally, finding in findings.items() if finding}


def test_a_rebuild_adds_once_what_both_consumers_lost(world: Deployment, reconciler: Reconciler) -> None:
    """The rollup loses the plays and visits that spill during an outage, and no other change."""
    for turn in range(3):
        world.spill(times=turn + 1)
        world.play(times=2)
        world.spill("https://example.com/a", 2, VISITS)
        world.run(1)

    def outage() -> None:
        world.spill(times=5)
        world.play(times=2)
        world.spill("https://example.com/a", 4, VISITS)
        world.spill("https://example.com/lost", 3, VISITS)

    lose_records(world, EVERY_CONSUMER, outage)
    world.spill(times=3)
    run_until_days_are_judged(world)
    lost_visits = {("visits", "https://example.com/a"): 4, ("visits", "https://example.com/lost"): 3}
    lost_amounts = {("plays", "v"): 5, **lost_visits}
    assert {tally: missing.difference for tally, missing in missing_amounts(reconciler).items()} == lost_amounts
    # Before the outage 6 plays spill and 6 are counted at once. In the outage 2 are counted at once. Then 3 spill.
    assert (world.tally(PLAYS, "v"), world.drifts()) == (6 + 6 + 2 + 3, {})
    assert rebuild_all(reconciler) == lost_amounts
    assert world.tally(PLAYS, "v") == 6 + 6 + 2 + 3 + 5
    assert world.tally(VISITS, "https://example.com/a") == 6 + 4
    assert world.tally(VISITS, "https://example.com/lost") == 3
    assert missing_amounts(reconciler) == rebuild_all(reconciler) == {}
    world.run_until_confirmed()
    assert world.drifts() == {}
    [entry] = history.read_repairs(world.store, "plays", "v")
    assert (entry["how"], entry["amount"], entry["before"], entry["after"]) == ("rebuild", 5, 17, 22)
    assert entry["added"] == 5, "the journal has lost the plays, too, so no series has any of them"


def test_a_rebuild_also_adds_lost_batches_that_the_rollup_was_to_add(world: Deployment, reconciler: Reconciler) -> None:
    """A rebuild adds no batch that moved its tallies at once, and no receipt that would become a dead letter."""

    def count_batches(key: str, *ids: str) -> None:
        entries = [{"counter": "plays", "id": id_} for id_ in ids]
        for soon in (True, False):
            changes = batch.parse_batch(entries, counters.COUNTERS, world.now_s, soon=soon)
            batch.count(Call(world.store), changes, operation="change", key=f"{key}-{soon}", soon=soon)

    def outage() -> None:
        count_batches("lost", "v", "v", "w")
        world.spill(times=3)
        # Without an amount, this receipt would become a dead letter.
        receipt = {"id": {"S": "tally#forged"}, "at": {"N": str(world.store.settings.minute_of(world.now_s))}}
        world.wire.put_item(
            TableName=world.name("receipts"), Item=receipt | {"rollup": {"BOOL": True}, "soon": {"S": "plays"}}
        )

    count_batches("before", "v", "x")
    world.run(1)
    lose_records(world, EVERY_CONSUMER, outage)
    run_until_days_are_judged(world)
    # Both batches before the outage are counted, and of the outage the batch that is visible now.
    assert (world.tally(PLAYS, "v"), world.tally(PLAYS, "w"), world.tally(PLAYS, "x")) == (2 + 2, 1, 2)
    # Both consumers lost the batch that is visible soon, and three plays of `v`.
    assert rebuild_all(reconciler) == {("plays", "v"): 2 + 3, ("plays", "w"): 1}
    assert missing_amounts(reconciler) == {}
    assert (world.tally(PLAYS, "v"), world.tally(PLAYS, "w"), world.tally(PLAYS, "x")) == (4 + 5, 1 + 1, 2)


def test_a_rebuild_leaves_the_drift_of_the_rollups_loss_to_a_repair(world: Deployment, reconciler: Reconciler) -> None:
    """First only the rollup loses records, which is drift. Later both consumers lose records, which is not drift."""
    lose_records(world, ROLLUP, lambda: world.spill(times=7))
    lose_records(world, EVERY_CONSUMER, lambda: world.spill(times=2))
    run_until_days_are_judged(world)
    lose_records(world, EVERY_CONSUMER, lambda: world.spill(times=4))  # too new for a rebuild
    assert world.drifts() == {("plays", "v"): -7}
    with pytest.raises(RepairNotReadyError, match=r"drifts by -7\. Repair the drift first"):
        rebuild_all(reconciler)
    assert reconciler.repair(PLAYS, "v", "ann", "x") is not None
    assert rebuild_all(reconciler) == {("plays", "v"): 2}
    assert missing_amounts(reconciler) == {}
    assert (world.tally(PLAYS, "v"), world.drifts()) == (7 + 2, {})
    run_until_days_are_judged(world)
    assert rebuild_all(reconciler) == {("plays", "v"): 4}, "the repair of the drift is not subtracted a second time"


def test_a_rebuild_adds_nothing_after_a_repair_that_may_have_added_the_lost_receipts(
    world: Deployment, reconciler: Reconciler
) -> None:
    lose_records(world, EVERY_CONSUMER, lambda: world.spill(times=3))
    world.edit(-5, PLAYS, "v")
    run_until_days_are_judged(world)
    required_minute = reconciler.minute_to_judge()
    reconciler.wait_until_judged(required_minute)
    assert reconciler.repair(PLAYS, "v", "ann", "x", required_minute=required_minute) is not None
    days, accepted = rebuild.rebuild_window(world.store, watermark.read(world.store), world.now_s), Accepted()
    list(rebuild.sum_receipts(world.store, counters.COUNTERS, days, accepted))
    unproven = rebuild.missing_of(world.store, PLAYS, "v", accepted["plays", "v"])
    assert unproven.difference == 3
    with pytest.raises(RepairNotReadyError, match=r"cannot tell: repairs since then added \+5,"):
        rebuild.rebuild(reconciler, unproven, "ann", "x", required_minute=-1)  # -1: without waiting for the judge
    assert (missing_amounts(reconciler), world.tally(PLAYS, "v")) == ({}, -5 + 5)


def test_a_rebuild_also_adds_lost_negative_amounts(world: Deployment, reconciler: Reconciler) -> None:
    world.spill("u", 2, counters.USAGE)
    world.run(1)
    lose_records(world, EVERY_CONSUMER, lambda: world.spill("u", 3, counters.USAGE, amount=-20))
    run_until_days_are_judged(world)
    assert rebuild_all(reconciler) == {("usage", "u"): -60}
    assert (rebuild_all(reconciler), world.tally(counters.USAGE, "u")) == ({}, 2 - 60)


@pytest.mark.parametrize("plays", [0, 5])
def test_a_rebuild_also_adds_a_lost_void(world: Deployment, reconciler: Reconciler, plays: int) -> None:
    """A spilled receipt of -1 is as of a void, because only a void lowers the tally of a counter that counts up."""

    def outage() -> None:
        world.spill(times=plays)
        world.spill(times=2, amount=-1)

    world.spill(times=4)
    world.run(1)
    lose_records(world, EVERY_CONSUMER, outage)
    run_until_days_are_judged(world)
    assert rebuild_all(reconciler) == {("plays", "v"): plays - 2}
    assert (rebuild_all(reconciler), world.tally(PLAYS, "v")) == ({}, 4 + plays - 2)


def test_a_rebuild_does_not_lower_a_tally_whose_receipts_somebody_deleted(
    world: Deployment, reconciler: Reconciler
) -> None:
    world.spill(times=3)
    world.spill(amount=-1)
    world.run(1)
    receipts = [item for item in world.scan("receipts") if not item["id"]["S"].startswith("heartbeat#")]
    for receipt in [receipt for receipt in receipts if receipt["amount"] == {"N": "1"}][:2]:
        world.wire.delete_item(TableName=world.name("receipts"), Key={"id": receipt["id"]})
    run_until_days_are_judged(world)
    assert (rebuild_all(reconciler), world.tally(PLAYS, "v")) == ({}, 3 - 1)


def test_late_and_redriven_receipts_are_not_missing(world: Deployment, reconciler: Reconciler) -> None:
    """A late or redriven receipt is booked on another minute and another day than its stamp says."""
    make_dead_letter(world)
    yesterdays_last_minute = today(world) * DAY_MINUTES - 1
    world.run(4)
    world.spill(times=3, writer_minute=yesterdays_last_minute)
    world.spill(times=2)
    run_to_next_day(world)
    world.redrive()
    run_until_days_are_judged(world)
    assert world.tally(PLAYS, "v") == 1 + 3 + 2  # the play of the dead letter, the late plays, the others
    assert missing_amounts(reconciler) == {}


def test_a_rebuild_begins_with_the_first_whole_day_of_the_ledger(world: Deployment, reconciler: Reconciler) -> None:
    """Tallies have no notes (`day#n`) of earlier days, and may lack notes of a part of the first day."""
    item = watermark.read(world.store).item
    first_day = int(int(item["began_s"]["N"]) // 60 // DAY_MINUTES)

    def window(day: int, judged_minute: int) -> Window:
        now_s = day * DAY_MINUTES * 60.0
        return rebuild.rebuild_window(world.store, watermark.Watermark(judged=judged_minute, item=item), now_s)

    # The window begins seven days ago, or with day 1. It ends two days ago, because late records may come until then.
    for day, first, last in ((4, 1, 2), (20, 13, 18)):
        expected = Window(first_day + first, first_day + last)
        assert window(first_day + day, (first_day + day) * DAY_MINUTES - 1) == expected
    # -1: no minute is judged. The other minute is the last but one of yesterday.
    for judged_minute in (-1, (first_day + 3) * DAY_MINUTES - 2):
        with pytest.raises(RepairNotReadyError, match="Cannot tell yet"):
            window(first_day + 3, judged_minute)


def test_a_rebuild_waits_for_the_judge_and_for_dead_letters(world: Deployment, reconciler: Reconciler) -> None:
    lose_records(world, EVERY_CONSUMER, world.spill)
    run_until_days_are_judged(world)
    (missing,) = missing_amounts(reconciler).values()
    with pytest.raises(RepairNotReadyError, match="judged up to"):
        rebuild.rebuild(reconciler, missing, "ann", "x", reconciler.minute_to_judge())
    make_dead_letter(world)
    with pytest.raises(RepairNotReadyError, match="dead letters"):
        rebuild.rebuild(reconciler, missing, "ann", "x", -1)


@pytest.mark.parametrize("interruption", ["another rebuild", "a redrive", "a drift row"])
def test_a_rebuild_adds_nothing_if_its_tally_is_repaired_or_drifts_before_its_write(
    world: Deployment, reconciler: Reconciler, interruption: str
) -> None:
    lose_records(world, EVERY_CONSUMER, lambda: world.spill(times=3))
    run_until_days_are_judged(world)
    (missing,) = missing_amounts(reconciler).values()

    def act() -> None:
        if interruption == "another rebuild":
            rebuild.rebuild(reconciler, missing, "bob", "x", -1)
        elif interruption == "a redrive":  # adds as the redrive of the three plays would
            prefix = tallies.ROLLUP_NONCE_PREFIX
            add = tallies.add_write(Call(world.store), PLAYS, "v", shard=7, amount=3, minute=0, nonce_prefix=prefix)
            world.wire.update_item(**tallies.with_day_notes(add, missing.days))
        else:
            world.edit(1, PLAYS, "v")
            while not world.drifts():
                world.run(1)

    interrupted = world.reconciler(interrupted_client(world.wire, 0, act))
    if interruption == "a drift row":
        with pytest.raises(RepairNotReadyError, match="drifts by"):
            rebuild.rebuild(interrupted, missing, "ann", "x", -1)
        assert world.tally(PLAYS, "v") == 1, "the edit by hand"
    else:
        assert rebuild.rebuild(interrupted, missing, "ann", "x", -1) is None
        assert world.tally(PLAYS, "v") == 3


def test_the_next_write_removes_the_notes_of_old_days(world: Deployment) -> None:
    """A day's note has ten bytes, and the notes of years would fill the item. Notes of nine days stay."""
    day = today(world)
    for days_ago, amount in ((0, 1), (3, 1), (8, 1), (9, 1), (11, 1), (0, 4)):
        add = tallies.add_write(Call(world.store), PLAYS, "v", shard=0, amount=1, minute=0)
        world.store.client.update_item(**tallies.with_day_notes(add, {day - days_ago: amount}))
    shard = tallies.read_numbered_shards(Call(world.store), PLAYS, "v")[0]
    notes = {name: int(value["N"]) for name, value in shard.items() if name.startswith("day#")}
    assert notes == {tallies.day_note(day): 5, tallies.day_note(day - 3): 1, tallies.day_note(day - 8): 1}


def test_only_counters_whose_receipts_the_rollup_adds_are_rebuilt() -> None:
    assert {name for name, counter in counters.COUNTERS.items() if rebuild.is_rebuildable(counter)} == {
        "plays", "usage", "visits", "bot_visits", "readers",
    }  # fmt: skip
