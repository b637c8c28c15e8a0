"""What is wrong is found with the right amount and repaired once, while people like; a right number is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

import counters
from tally.counter import Counter
from tally.counting import tallies
from tally.drift import checks, history, recount, rows
from tally.dynamo import keys
from tally.dynamo.client import Call
from tally.maintenance import imports, reconcile
from tally.maintenance.reconcile import Reconciler, RepairNotReadyError
from tally.series import hours
from tally.series import read as series
from tally.streams import watermark
from tests.invariants.deployment import LIKES, PLAYS, Deployment, deployed
from tests.invariants.processes import Crash, Sleeper, client_that_dies, interrupted_client
from tests.tiers import in_long

MENDED = ("ann", "edited by hand")


@pytest.fixture
def world() -> Iterator[Deployment]:
    with deployed() as made:
        yield made


def mend(reconciler: Reconciler, counter: Counter = LIKES, target: str = "p") -> reconcile.Finding | None:
    """As the command does: look, wait for the judge, repair."""
    return reconciler.repair(counter, target, *MENDED, **looked(reconciler, counter, target))


def looked(reconciler: Reconciler, counter: Counter = LIKES, target: str = "p") -> dict[str, Any]:
    """What the command asks for a repair with. The ledger has judged the minutes of the counts."""
    counted = reconciler.count(counter, target) if counter.child else None
    return counted_again(reconciler, counted, counter, target)


def counted_again(
    reconciler: Reconciler, first: recount.Recount | None, counter: Counter = LIKES, target: str = "p"
) -> dict[str, Any]:
    """What it asks with after the first count."""
    required_minute = reconciler.minute_to_judge()
    reconciler.wait_until_judged(required_minute)
    counts = reconciler.count_again(counter, target, first)
    if len(counts) > 1:
        required_minute = reconciler.minute_to_judge()
        reconciler.wait_until_judged(required_minute)
    return {"required_minute": required_minute, "counted": counts}


def off(world: Deployment, reconciler: Reconciler, amount: int, likers: int = 3, shard: int = 0) -> dict[str, Any]:
    """A post is off since before the streams; its repair is asked for, and the ledger has judged that minute."""
    world.post(likers)
    world.edit(amount, shard=shard)
    world.drop_new_records()
    return looked(reconciler)


def amounts(world: Deployment, counter: Counter = LIKES, target: str = "p") -> list[tuple[int, str]]:
    return [(entry["amount"], entry["how"]) for entry in history.read_repairs(world.store, counter.name, target)]


def put_row(world: Deployment, amount: int, counter: Counter, target: str, **more: Any) -> None:
    item = rows.row_key(counter.name, target) | {"counter": {"S": counter.name}, "target": {"S": target}}
    numbers = {"drift": amount, "since": int(world.now_s) - 900, "upto": world.last_judged_minute - 9} | more
    item |= {name: {"N": str(value)} for name, value in numbers.items() if value is not None}
    world.wire.put_item(TableName=world.settings.ledger_table, Item=item)


@pytest.mark.parametrize("amount", [-7, *in_long([5])])
def test_manual_edit_is_found_and_taken_back_once(world: Deployment, reconciler: Reconciler, amount: int) -> None:
    world.post(3)
    world.edit(amount)
    world.run(14)
    assert world.drifts() == {("likes", "p"): amount}
    found = reconciler.find(LIKES, "p")
    assert (found.tally, found.difference, found.confirmed) == (3 + amount, -amount, amount)
    assert mend(reconciler) is not None
    assert (world.tally(), world.drifts(), amounts(world)) == (3, {}, [(-amount, "ledger")])
    world.run(14)
    assert (world.tally(), world.drifts()) == (3, {})
    assert mend(reconciler) is None


def test_busy_post_is_repaired_by_the_ledger(
    world: Deployment, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It moves during each count."""
    world.post(3)
    world.edit(5)
    world.run(14)
    users = iter(range(1000))
    real = recount.queries.partition_pages

    def pages(*how: Any, **more: Any) -> Any:
        if "ProjectionExpression" in more:
            world.like(f"new{next(users)}")
        return real(*how, **more)

    monkeypatch.setattr(recount.queries, "partition_pages", pages)
    counted = reconciler.count(LIKES, "p")
    assert counted.unproven_reason == recount.TALLY_MOVED
    assert counted.low <= -5 <= counted.high < 0
    assert mend(reconciler) is not None
    likers = next(users)
    assert (world.tally(), amounts(world)) == (3 + likers, [(-5, "ledger")])


@pytest.mark.parametrize("every_min", [4, *in_long([1])])
def test_drift_that_goes_on_is_confirmed_and_what_has_stood_is_repaired(
    world: Deployment, reconciler: Reconciler, every_min: int
) -> None:
    """j2: a program adds one around the API every few minutes. Nothing rang, and nothing could be repaired."""
    world.post(5)
    until_s = world.now_s + 30 * 60

    def move() -> None:
        if world.now_s < until_s:
            world.edit(+1)
            world.take_written()
            world.schedule_in(60 * every_min, move)

    move()
    world.run(20)
    row, seen = rows.read_row(world.store, "likes", "p"), watermark.read(world.store)
    assert 0 < row.confirmed_amount(seen) < row.drift
    assert checks.drift(world.store).failed
    done = mend(reconciler)
    assert done is not None
    assert (world.tally(), done.how) == (done.tally + done.difference, "ledger")
    assert 0 < -done.difference == done.confirmed < done.drift.drift
    assert rows.read_row(world.store, "likes", "p").drift == done.drift.drift - done.confirmed
    world.run(30)
    assert mend(reconciler) is not None
    assert (world.tally(), world.drifts()) == (5, {})


@pytest.fixture
def edited(world: Deployment) -> Deployment:
    """Ten plays, five of them taken off by hand: a drift that is confirmed."""
    world.play(times=10)
    world.edit(-5, PLAYS, "v")
    world.run(14)
    return world


def test_edit_that_was_undone_before_the_repair_was_asked_for_is_not_repaired(
    edited: Deployment, reconciler: Reconciler
) -> None:
    """p7: the row says -5, and nobody has judged the minute yet in which the edit was undone."""
    edited.edit(5, PLAYS, "v")
    assert reconciler.find(PLAYS, "v").difference == 5
    with pytest.raises(RepairNotReadyError, match="judged up to"):
        reconciler.repair(PLAYS, "v", *MENDED, required_minute=reconciler.minute_to_judge())
    assert mend(reconciler, PLAYS, "v") is None
    edited.run(10)
    assert (edited.tally(PLAYS, "v"), edited.drifts()) == (10, {})


@pytest.mark.parametrize("committed", [False, True])
def test_repair_that_dies_is_done_once(edited: Deployment, reconciler: Reconciler, committed: bool) -> None:
    with pytest.raises(Crash):
        edited.reconciler(client_that_dies(edited.wire, 0, committed=committed)).repair(PLAYS, "v", *MENDED)
    assert (mend(reconciler, PLAYS, "v") is None) == committed
    assert (edited.tally(PLAYS, "v"), edited.drifts()) == (10, {})
    assert amounts(edited, PLAYS, "v") == [(5, "ledger")]


def set_one_aside(world: Deployment) -> None:
    """A play that DynamoDB refuses to roll up, because its tally was made a string. Nobody sees that but the rollup."""
    broken = [{**tallies.key(PLAYS, "v", shard), "play_count": {"S": "oops"}} for shard in range(16)]
    for item in broken:
        world.put(item)
    world.drop_new_records()
    world.spill()
    world.deliver()
    for item in broken:
        world.delete({name: item[name] for name in ("PK", "SK")})
    world.drop_new_records()
    assert len(world.dead_letter_sequences()["rollup"]) == 1


def test_record_that_becomes_a_dead_letter_is_redriven_or_repaired_never_both(
    world: Deployment, reconciler: Reconciler
) -> None:
    """p10."""
    set_one_aside(world)
    world.run(14)
    assert world.drifts() == {("plays", "v"): -1}
    with pytest.raises(RepairNotReadyError, match="dead letters"):
        reconciler.minute_to_judge()
    with pytest.raises(RepairNotReadyError, match="dead letters"):
        reconciler.repair(PLAYS, "v", *MENDED)
    world.redrive()
    mend(reconciler, PLAYS, "v")
    world.run(14)
    mend(reconciler, PLAYS, "v")
    assert (world.tally(PLAYS, "v"), world.drifts()) == (1, {})


def test_without_watermark_a_count_with_a_child_written_alone_is_unclear_and_nothing_is_repaired(
    world: Deployment, reconciler: Reconciler
) -> None:
    world.post(1)
    world.spill_like("u1")
    world.run(10)
    world.wire.delete_item(TableName=world.settings.ledger_table, Key=watermark.WATERMARK_KEY)
    assert reconciler.count(LIKES, "p").unproven_reason == recount.ROLLUP_PENDING
    with pytest.raises(RepairNotReadyError, match="not judged yet"):
        reconciler.repair(PLAYS, "v", *MENDED)


def test_children_without_tally_get_one_and_no_post_is_made(world: Deployment, reconciler: Reconciler) -> None:
    world.post(4)
    for key in ("META", "META.BODY"):
        world.delete(keys.key("POST#p", key))
    world.run(14)
    mend(reconciler)
    assert set(recount.shards_of(tallies.Call(world.store), LIKES, "p")) == {1}
    assert (world.tally(), world.drifts()) == (4, {})


def test_edit_that_is_undone_within_its_minute_proves_no_later_one(world: Deployment, reconciler: Reconciler) -> None:
    """The ledger has no trace of the first edit, and two counts were equal: a right number drifted after the repair."""
    world.post(3)
    world.run(10)
    world.sleep(60 - world.now_s % 60 + 5)
    world.edit(5)
    world.take_written()
    first = reconciler.count(LIKES, "p")
    world.edit(-5)
    world.take_written()
    reconciler.wait_until_judged(reconciler.minute_to_judge())
    world.edit(5)
    world.take_written()
    with pytest.raises(RepairNotReadyError, match="one count before does not prove -5"):
        reconciler.repair(LIKES, "p", *MENDED, counted=[first])
    reconciler.repair(LIKES, "p", *MENDED, **counted_again(reconciler, first))
    assert (world.tally(), amounts(world)) == (3, [(-5, "ledger")])
    world.run(14)
    assert (world.tally(), world.drifts()) == (3, {})


@pytest.mark.parametrize("how", ["repaired", "undone"])
def test_count_that_comes_to_the_same_for_another_reason_repairs_nothing(
    world: Deployment, reconciler: Reconciler, how: str
) -> None:
    """What the first count found is gone, and what the second one finds is not judged yet: it would be in the row."""
    world.post(3)
    world.add_child("first")
    world.run(14)
    first = reconciler.count(LIKES, "p")
    assert first.low == 1
    if how == "repaired":
        assert mend(reconciler)
    else:
        world.delete_child("first")
        world.run(10)
    world.add_child("second")
    with pytest.raises(RepairNotReadyError, match="edited or repaired after the first count"):
        reconciler.repair(LIKES, "p", *MENDED, counted=[first, reconciler.count(LIKES, "p")])
    world.run(14)
    assert world.drifts() == {("likes", "p"): -1}


def test_edit_that_made_the_tally_right_is_accepted(world: Deployment, reconciler: Reconciler) -> None:
    """Somebody corrected by hand what was wrong before the streams: the row says +3, the children say 0."""
    world.post(4)
    world.edit(-3)
    world.drop_new_records()
    world.run(6)
    world.edit(3)
    world.run(14)
    assert world.drifts() == {("likes", "p"): 3}
    assert mend(reconciler) is not None
    assert (world.tally(), world.drifts(), amounts(world)) == (4, {}, [(0, "recount")])


def test_unlike_of_a_like_that_is_under_way_is_no_difference(world: Deployment, reconciler: Reconciler) -> None:
    """The tally is one short until the rollup has come. No child shows it once the user likes again."""
    world.post(2)
    world.run(10)
    world.stall("rollup", "counts")
    world.spill_like("late")
    world.like("late", liked=False)
    under_way = reconciler.count(LIKES, "p")
    assert (under_way.low, under_way.high, under_way.unproven_reason) == (0, 1, recount.ROLLUP_PENDING)
    world.like("late")
    first = reconciler.count(LIKES, "p")
    assert first.low == 1
    world.resume()
    how = counted_again(reconciler, first)
    with pytest.raises(RepairNotReadyError, match=r"the first count found \+1, and a later one \+0"):
        reconciler.repair(LIKES, "p", *MENDED, **how)
    assert world.tally() == 3


@pytest.mark.parametrize("shard", [0, *in_long([1, 7])])
def test_like_between_the_second_count_and_the_write_sends_the_repair_back(
    world: Deployment, reconciler: Reconciler, shard: int
) -> None:
    """On the shard that is repaired, on another, and on one that was not there. The child is gone by the next look."""
    how = off(world, reconciler, 1, shard=1)

    def like() -> None:
        world.add_child("new")
        world.wire.update_item(**tallies.add_write(tallies.Call(world.store), LIKES, "p", shard, 1, 0))

    client = interrupted_client(world.wire, 0, like)
    assert world.reconciler(client).repair(LIKES, "p", *MENDED, **how) is not None
    assert (client.writes, world.tally()) == (2, 4)


def test_row_that_appears_before_the_write_sends_the_repair_back(world: Deployment, reconciler: Reconciler) -> None:
    how = off(world, reconciler, 1)
    client = interrupted_client(world.wire, 0, lambda: put_row(world, 2, LIKES, "p", upto=world.last_judged_minute))
    with pytest.raises(RepairNotReadyError, match="edited or repaired after the first count"):
        world.reconciler(client).repair(LIKES, "p", *MENDED, **how)
    assert (client.writes, world.tally()) == (1, 4)


def test_child_alone_in_the_second_count_is_unclear(world: Deployment, reconciler: Reconciler) -> None:
    how = off(world, reconciler, 1)
    world.spill_like("late")
    with pytest.raises(RepairNotReadyError, match="cannot tell yet: as_of is older"):
        reconciler.repair(LIKES, "p", *MENDED, **how)
    assert world.tally() == 4


def test_bounds_hold_and_numbers_that_were_given_are_not_given_again(world: Deployment, reconciler: Reconciler) -> None:
    """A row that says too many accepts the number of a numbered counter; too few skips the numbers."""
    stock, ticket = counters.STOCK, counters.TICKET
    for counter, target, number, drift in ((stock, "mug", 2, 5), (ticket, "given", 9, 5), (ticket, "again", 4, -5)):
        world.edit(number, counter, target)
        put_row(world, drift, counter, target)
    with pytest.raises(reconcile.OutOfBoundsError, match="at 2 cannot move by -5"):
        reconciler.repair(stock, "mug", *MENDED)
    for target in ("given", "again"):
        assert reconciler.repair(ticket, target, *MENDED) is not None
    assert [world.tally(stock, "mug"), world.tally(ticket, "given"), world.tally(ticket, "again")] == [2, 9, 9]
    assert amounts(world, ticket, "given") == [(0, "ledger")]
    assert world.drifts() == {("stock", "mug"): 5}


def test_a_repair_beyond_a_limit_leads_back_or_keeps_to_the_debt(world: Deployment, reconciler: Reconciler) -> None:
    """A limit that came later, or a debt, leaves numbers beyond it, and these may drift, too."""
    debtor = replace(counters.STOCK, debt=5)
    for target, number, drift in (("back", -20, -4), ("debt", -3, 2), ("more", -4, 2)):
        world.edit(number, debtor, target)
        put_row(world, drift, debtor, target)
    for target in ("back", "debt"):
        assert reconciler.repair(debtor, target, *MENDED) is not None
    with pytest.raises(reconcile.OutOfBoundsError, match="at -4 cannot move by -2"):
        reconciler.repair(debtor, "more", *MENDED)
    assert [world.tally(debtor, target) for target in ("back", "debt", "more")] == [-16, -5, -4]


@pytest.mark.parametrize("counter", [LIKES, PLAYS])
def test_two_repairs_at_once_repair_once(world: Deployment, reconciler: Reconciler, counter: Counter) -> None:
    """The other one has looked, and writes last."""
    target = "p" if counter is LIKES else "v"
    world.post(3)
    world.edit(5, counter, target)
    world.run(14)
    how = looked(reconciler, counter, target)
    other = Sleeper(world.wire, 0, lambda client: world.reconciler(client).repair(counter, target, *MENDED, **how))
    assert reconciler.repair(counter, target, *MENDED, **how) is not None
    with suppress(RepairNotReadyError):  # this one's repair is in its second count
        other.wake()
    assert world.tally(counter, target) == (3 if counter is LIKES else 0)
    assert len(amounts(world, counter, target)) == 1


def test_laptop_whose_clock_is_behind_waits_all_the_same(world: Deployment) -> None:
    behind = Reconciler(world.store, clock=lambda: world.now_s - 3600, sleep=world.sleep)
    assert behind.minute_to_judge() >= world.store.settings.minute_of(world.now_s)


def test_scan_finds_every_family_that_may_differ(world: Deployment) -> None:
    for number in range(6):
        world.post(number, post=f"p{number}")
    world.edit(2, target="p4")
    world.delete(keys.key("POST#p2", "META"))
    world.edit(9, PLAYS, "p1")
    found = recount.scan_parents(world.store, counters.COUNTERS)
    assert {target: (tally, children) for _, target, tally, children in found} == {
        "p0": (0, 0), "p1": (1, 1), "p2": (0, 2), "p3": (3, 3), "p4": (6, 4), "p5": (5, 5),
    }  # fmt: skip


def test_a_tally_has_moved_by_its_series_its_imports_and_what_repairs_have_added(world: Deployment) -> None:
    """A repair of an edit brings the tally to its series. What was wrong before there were series is added to them."""
    reconciler = world.reconciler()
    how = off(world, reconciler, 4)
    world.run(hours.LOOKBACK_MINUTES + 5)
    before, world.series = world.tally(), True
    world.run(2)
    world.play(times=3)
    world.edit(50, PLAYS, "v")
    world.like("late")
    imports.import_numbers(Call(world.store), PLAYS, "run", imports.Chunk(0, [imports.NumberRow(1, "v", 1200)]))
    assert reconciler.repair(LIKES, "p", *MENDED, **how)
    world.add_child("by hand")
    world.run(20)
    assert reconciler.repair(PLAYS, "v", *MENDED)
    assert reconciler.repair(LIKES, "p", *MENDED)
    world.run(45)
    end = int(world.now_s) // 3600 + 1
    for counter, id_, moved, imported, added in (
        (PLAYS, "v", world.tally(PLAYS, "v"), [1200], [0]),
        (LIKES, "p", world.tally() - before, [], [-4, 0]),
    ):
        told = series.read_series(Call(world.store), counter, id_, series.SeriesRange(series.HOUR, end - 9, end))
        assert [repair["added"] for repair in told["repairs"]] == added
        assert [day["value"] for day in told["imports"]] == imported
        assert moved == sum(point["value"] for point in told["series"]) + sum(imported) + sum(added)
    assert (world.tally(PLAYS, "v"), world.tally()) == (1200 + 3, 3 + 1 + 1)
