"""What was written alone and never rolled up is found in the receipts and added, exactly and once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import counters
from tally.counting import batch, tallies
from tally.drift import history, recount
from tally.dynamo.client import Call
from tally.maintenance import rebuild
from tally.maintenance.rebuild import Accepted, Window
from tally.maintenance.reconcile import Finding, Reconciler, RepairNotReadyError
from tally.streams import watermark
from tests.invariants.deployment import PLAYS, VISITS, Deployment, deployed
from tests.invariants.processes import interrupted_client
from tests.invariants.test_reconcile import set_one_aside

DAY = 6  # minutes: a day of these tests
EVERYBODY, ROLLUP, DRIFT = None, "rollup", "bookkeeper"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """At the beginning of a day that is whole."""
    monkeypatch.setattr(tallies, "MINUTES_PER_DAY", DAY)
    with deployed() as made:
        next_day(made)
        yield made


def today(world: Deployment) -> int:
    return world.store.settings.minute_of(world.now_s) // DAY


def next_day(world: Deployment) -> None:
    day = today(world)
    while today(world) == day:
        world.run(1)


def lose(world: Deployment, consumer: str | None, each: Callable[[], object]) -> None:
    """What happens while this one stands still never reaches it."""
    world.stall(consumer)
    each()
    world.run(1)
    world.trim_and_resume()


def judge_on(world: Deployment, days: int = 2) -> None:
    """Until this day, and the one after it, are judged."""
    until = (today(world) + days) * DAY - 1
    while world.last_judged_minute < until:
        world.run(1)


def losses(reconciler: Reconciler) -> dict[tuple[str, str], Finding]:
    store, found = reconciler.store, Accepted()
    days = rebuild.rebuild_window(store, watermark.read(store), reconciler.clock())
    list(rebuild.sum_receipts(store, counters.COUNTERS, days, found))
    return {(loss.counter.name, loss.target): loss for loss in rebuild.find_missing(store, counters.COUNTERS, found)}


def mend(reconciler: Reconciler) -> dict[tuple[str, str], int]:
    """As the command does; what was added."""
    required_minute = reconciler.minute_to_judge()
    reconciler.wait_until_judged(required_minute)
    done = {
        name: rebuild.rebuild(reconciler, loss, "ann", "outage", required_minute)
        for name, loss in losses(reconciler).items()
    }
    return {name: one.difference for name, one in done.items() if one}


def test_a_rebuild_adds_once_what_both_consumers_lost(world: Deployment, reconciler: Reconciler) -> None:
    """Plays that spilled and visits; those before and after the outage, and plays that count at once, are there."""
    for before in range(3):
        world.spill(times=before + 1)
        world.play(times=2)
        world.spill("https://example.com/a", 2, VISITS)
        world.run(1)

    def outage() -> None:
        world.spill(times=5)
        world.play(times=2)
        world.spill("https://example.com/a", 4, VISITS)
        world.spill("https://example.com/lost", 3, VISITS)

    lose(world, EVERYBODY, outage)
    world.spill(times=3)
    judge_on(world)
    lost = {("plays", "v"): 5, ("visits", "https://example.com/a"): 4, ("visits", "https://example.com/lost"): 3}
    assert {name: loss.difference for name, loss in losses(reconciler).items()} == lost
    assert (world.tally(PLAYS, "v"), world.drifts()) == (6 + 6 + 2 + 3, {})
    assert mend(reconciler) == lost
    assert world.tally(PLAYS, "v") == 6 + 6 + 2 + 3 + 5
    assert world.tally(VISITS, "https://example.com/a") == 6 + 4
    assert world.tally(VISITS, "https://example.com/lost") == 3
    assert losses(reconciler) == mend(reconciler) == {}
    world.run(14)
    assert world.drifts() == {}
    [entry] = history.read_repairs(world.store, "plays", "v")
    assert (entry["how"], entry["amount"], entry["before"], entry["after"]) == ("rebuild", 5, 17, 22)
    assert entry["added"] == 5, "the journal has lost them too"


def test_a_rebuild_also_adds_what_waits_in_receipts_of_batches(world: Deployment, reconciler: Reconciler) -> None:
    """Not what moved with its receipt, nor a receipt that the rollup would make a dead letter."""

    def together(key: str, *ids: str) -> None:
        sent = [{"counter": "plays", "id": id_} for id_ in ids]
        for soon in (True, False):
            wanted = batch.parse_batch(sent, counters.COUNTERS, world.now_s, soon=soon)
            batch.count(Call(world.store), wanted, operation="change", key=f"{key}-{soon}", soon=soon)

    def outage() -> None:
        together("lost", "v", "v", "w")
        world.spill(times=3)
        receipt = {"id": {"S": "tally#forged"}, "at": {"N": str(world.store.settings.minute_of(world.now_s))}}
        world.wire.put_item(
            TableName=world.name("receipts"), Item=receipt | {"rollup": {"BOOL": True}, "soon": {"S": "plays"}}
        )

    together("before", "v", "x")
    world.run(1)
    lose(world, EVERYBODY, outage)
    judge_on(world)
    assert (world.tally(PLAYS, "v"), world.tally(PLAYS, "w"), world.tally(PLAYS, "x")) == (2 + 2, 1, 2)
    assert mend(reconciler) == {("plays", "v"): 5, ("plays", "w"): 1}
    assert losses(reconciler) == {}
    assert (world.tally(PLAYS, "v"), world.tally(PLAYS, "w"), world.tally(PLAYS, "x")) == (9, 2, 2)


def test_a_rebuild_adds_nothing_that_the_ledger_repairs(world: Deployment, reconciler: Reconciler) -> None:
    """The rollup alone was stalled for a time, and both for another."""
    lose(world, ROLLUP, lambda: world.spill(times=7))
    lose(world, EVERYBODY, lambda: world.spill(times=2))
    judge_on(world)
    lose(world, EVERYBODY, lambda: world.spill(times=4))  # too new to be looked at
    assert world.drifts() == {("plays", "v"): -7}
    with pytest.raises(RepairNotReadyError, match=r"drifts by -7\. Repair the drift first"):
        mend(reconciler)
    assert reconciler.repair(PLAYS, "v", "ann", "x") is not None
    assert mend(reconciler) == {("plays", "v"): 2}
    assert losses(reconciler) == {}
    assert (world.tally(PLAYS, "v"), world.drifts()) == (9, {})
    judge_on(world)
    assert mend(reconciler) == {("plays", "v"): 4}, "what was taken off once is not taken off again"


def test_repair_of_something_else_does_not_hide_what_was_lost(world: Deployment, reconciler: Reconciler) -> None:
    """Nobody can tell what it was for: nothing is added."""
    lose(world, EVERYBODY, lambda: world.spill(times=3))
    world.edit(-5, PLAYS, "v")
    judge_on(world)
    required_minute = reconciler.minute_to_judge()
    reconciler.wait_until_judged(required_minute)
    assert reconciler.repair(PLAYS, "v", "ann", "x", required_minute=required_minute) is not None
    days, found = rebuild.rebuild_window(world.store, watermark.read(world.store), world.now_s), Accepted()
    list(rebuild.sum_receipts(world.store, counters.COUNTERS, days, found))
    unclear = rebuild.missing_of(world.store, PLAYS, "v", found["plays", "v"])
    assert (unclear.difference, unclear.unproven_reason[:25]) == (3, "repairs since then added ")
    with pytest.raises(RepairNotReadyError, match=r"cannot tell: repairs since then added \+5,"):
        rebuild.rebuild(reconciler, unclear, "ann", "x", -1)
    assert (losses(reconciler), world.tally(PLAYS, "v")) == ({}, 0)


def test_a_rebuild_also_adds_lost_negative_amounts(world: Deployment, reconciler: Reconciler) -> None:
    world.spill("u", 2, counters.USAGE)
    world.run(1)
    lose(world, EVERYBODY, lambda: world.spill("u", 3, counters.USAGE, amount=-20))
    judge_on(world)
    assert mend(reconciler) == {("usage", "u"): -60}
    assert (mend(reconciler), world.tally(counters.USAGE, "u")) == ({}, -58)


@pytest.mark.parametrize(("more", "lost"), [(0, -2), (5, 3)])
def test_a_void_that_was_lost_is_taken_back(world: Deployment, reconciler: Reconciler, more: int, lost: int) -> None:
    """Of a counter that only counts up, a void alone counts down."""

    def outage() -> None:
        world.spill(times=more)
        world.spill(times=2, amount=-1)

    world.spill(times=4)
    world.run(1)
    lose(world, EVERYBODY, outage)
    judge_on(world)
    assert mend(reconciler) == {("plays", "v"): lost}
    assert (mend(reconciler), world.tally(PLAYS, "v")) == ({}, 4 + more - 2)


def test_receipts_that_somebody_removed_are_no_loss(world: Deployment, reconciler: Reconciler) -> None:
    """The number of a counter that only counts up is not taken back for them."""
    world.spill(times=3)
    world.spill(amount=-1)
    world.run(1)
    receipts = [item for item in world.scan("receipts") if not item["id"]["S"].startswith("heartbeat#")]
    for receipt in [one for one in receipts if one["amount"] == {"N": "1"}][:2]:
        world.wire.delete_item(TableName=world.name("receipts"), Key={"id": receipt["id"]})
    judge_on(world)
    assert (mend(reconciler), world.tally(PLAYS, "v")) == ({}, 2)


def test_late_receipts_and_redriven_ones_are_not_lost(world: Deployment, reconciler: Reconciler) -> None:
    """Booked on other minutes than they are stamped with, and on another day."""
    set_one_aside(world)
    yesterday = today(world) * DAY - 1
    world.run(4)
    world.spill(times=3, at=yesterday)
    world.spill(times=2)
    next_day(world)
    world.redrive()
    judge_on(world)
    assert world.tally(PLAYS, "v") == 6
    assert losses(reconciler) == {}


def test_days_before_notes_were_kept_are_not_looked_at(world: Deployment, reconciler: Reconciler) -> None:
    """Of the day on which the ledger began, half may have no note."""
    item = world.store.client.get_item(TableName=world.store.settings.ledger_table, Key=watermark.WATERMARK_KEY)["Item"]
    began = int(int(item["began_s"]["N"]) // 60 // DAY)
    now_s = (began + 20) * DAY * 60.0
    seen = watermark.Watermark(judged=(began + 4) * DAY - 1, item=item)
    assert rebuild.rebuild_window(world.store, seen, (began + 4) * DAY * 60.0) == Window(began + 1, began + 2)
    seen = watermark.Watermark(judged=(began + 20) * DAY - 1, item=item)
    assert rebuild.rebuild_window(world.store, seen, now_s) == Window(began + 13, began + 18)
    for judged in (-1, (began + 3) * DAY - 2):
        with pytest.raises(RepairNotReadyError, match="Cannot tell yet"):
            rebuild.rebuild_window(world.store, watermark.Watermark(judged=judged, item=item), now_s - 17 * DAY * 60)


def test_rebuild_waits_for_the_judge_and_for_dead_letters(world: Deployment, reconciler: Reconciler) -> None:
    lose(world, EVERYBODY, world.spill)
    judge_on(world)
    (loss,) = losses(reconciler).values()
    with pytest.raises(RepairNotReadyError, match="judged up to"):
        rebuild.rebuild(reconciler, loss, "ann", "x", reconciler.minute_to_judge())
    set_one_aside(world)
    with pytest.raises(RepairNotReadyError, match="dead letters"):
        rebuild.rebuild(reconciler, loss, "ann", "x", -1)


@pytest.mark.parametrize("first", ["another rebuild", "a redrive", "a row"])
def test_what_comes_before_the_write_sends_the_rebuild_back(
    world: Deployment, reconciler: Reconciler, first: str
) -> None:
    lose(world, EVERYBODY, lambda: world.spill(times=3))
    judge_on(world)
    (loss,) = losses(reconciler).values()

    def act() -> None:
        if first == "another rebuild":
            rebuild.rebuild(reconciler, loss, "bob", "x", -1)
        elif first == "a redrive":
            add = tallies.add_write(
                tallies.Call(world.store), PLAYS, "v", 7, 3, 0, nonce_prefix=tallies.ROLLUP_NONCE_START
            )
            world.wire.update_item(**tallies.with_day_notes(add, loss.days))
        else:
            world.edit(1, PLAYS, "v")
            while not world.drifts():
                world.run(1)

    late = world.reconciler(interrupted_client(world.wire, 0, act))
    if first == "a row":
        with pytest.raises(RepairNotReadyError, match="drifts by"):
            rebuild.rebuild(late, loss, "ann", "x", -1)
        assert world.tally(PLAYS, "v") == 1
    else:
        assert rebuild.rebuild(late, loss, "ann", "x", -1) is None
        assert world.tally(PLAYS, "v") == 3


def test_notes_of_old_days_go_with_the_next_write(world: Deployment) -> None:
    """Ten bytes a day for as long as a tally is counted would fill its item."""
    day = today(world)
    for ago in (0, 3, 8, 9, 11):
        add = tallies.add_write(tallies.Call(world.store), PLAYS, "v", 0, 1, 0)
        world.store.client.update_item(**tallies.with_day_notes(add, {day - ago: 1}))
    world.store.client.update_item(
        **tallies.with_day_notes(tallies.add_write(tallies.Call(world.store), PLAYS, "v", 0, 1, 0), {day: 4})
    )
    shard = recount.shards_of(tallies.Call(world.store), PLAYS, "v")[0]
    notes = {name: int(value["N"]) for name, value in shard.items() if name.startswith("day#")}
    assert notes == {tallies.day_note(day): 5, tallies.day_note(day - 3): 1, tallies.day_note(day - 8): 1}


def test_only_counters_with_receipts_of_their_own_are_rebuilt() -> None:
    assert {name for name, counter in counters.COUNTERS.items() if rebuild.rebuildable(counter)} == {
        "plays", "usage", "visits", "bot_visits", "readers",
    }  # fmt: skip
