"""A repair finds the exact wrong amount and corrects it once, under traffic. A repair leaves a right number alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
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
from tests.tiers import marked_long

BY_AND_WHY = ("ann", "edited by hand")


@pytest.fixture
def world() -> Iterator[Deployment]:
    with deployed() as deployment:
        yield deployment


def repair(reconciler: Reconciler, counter: Counter = LIKES, target: str = "p") -> reconcile.Finding | None:
    """Repairs as the command does: counts, waits for the judge, repairs."""
    return reconciler.repair(counter, target, *BY_AND_WHY, **repair_evidence(reconciler, counter, target))


def repair_evidence(reconciler: Reconciler, counter: Counter = LIKES, target: str = "p") -> dict[str, Any]:
    """Returns what the command passes to a repair: the counts of the children, and a minute that the judge has judged
    after the last count. A counter without children has no counts."""
    first_count = reconciler.count(counter, target) if counter.child else None
    return evidence_after(reconciler, first_count, counter, target)


def evidence_after(
    reconciler: Reconciler, first_count: recount.Recount | None, counter: Counter = LIKES, target: str = "p"
) -> dict[str, Any]:
    """Waits for the judge as the command does. If `first_count` differs from the ledger, counts the children a second
    time, and waits again. Returns what the command passes to a repair."""
    required_minute = reconciler.minute_to_judge()
    reconciler.wait_until_judged(required_minute)
    counts = reconciler.count_again(counter, target, first_count)
    if len(counts) > 1:
        required_minute = reconciler.minute_to_judge()
        reconciler.wait_until_judged(required_minute)
    return {"required_minute": required_minute, "counted": counts}


def evidence_of_an_unrecorded_edit(
    world: Deployment, reconciler: Reconciler, amount: int, likers: int = 3, shard: int = 0
) -> dict[str, Any]:
    """Creates a post with `likers` likes, and edits its tally without a stream record. Returns `repair_evidence`."""
    world.post(likers)
    world.edit(amount, shard=shard)
    world.drop_new_records()
    return repair_evidence(reconciler)


def repairs(world: Deployment, counter: Counter = LIKES, target: str = "p") -> list[tuple[int, str]]:
    """Returns the amount and the method of each repair."""
    return [(entry["amount"], entry["how"]) for entry in history.read_repairs(world.store, counter.name, target)]


def put_drift_row(world: Deployment, amount: int, counter: Counter, target: str, **other_numbers: Any) -> None:
    """Puts a drift row into the ledger. The row's last minute, `upto`, is nine minutes before the last judged minute.
    So its whole drift is confirmed. `other_numbers`: numbers that replace numbers of the row."""
    item = rows.row_key(counter.name, target) | {"counter": {"S": counter.name}, "target": {"S": target}}
    numbers = {"drift": amount, "since": int(world.now_s) - 900, "upto": world.last_judged_minute - 9} | other_numbers
    item |= {name: {"N": str(value)} for name, value in numbers.items()}
    world.wire.put_item(TableName=world.settings.ledger_table, Item=item)


@pytest.mark.parametrize("amount", [-7, *marked_long([5])])
def test_a_manual_edit_is_found_and_repaired_once(world: Deployment, reconciler: Reconciler, amount: int) -> None:
    world.post(3)
    world.edit(amount)
    world.run_until_confirmed()
    assert world.drifts() == {("likes", "p"): amount}
    finding = reconciler.find(LIKES, "p")
    assert (finding.tally, finding.difference, finding.confirmed) == (3 + amount, -amount, amount)
    assert repair(reconciler) is not None
    assert (world.tally(), world.drifts(), repairs(world)) == (3, {}, [(-amount, "ledger")])
    world.run_until_confirmed()
    assert (world.tally(), world.drifts()) == (3, {})
    assert repair(reconciler) is None


def test_a_post_that_gets_likes_during_each_count_is_repaired_by_the_ledger(
    world: Deployment, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.post(3)
    world.edit(5)
    world.run_until_confirmed()
    users = iter(range(1000))
    partition_pages = recount.queries.partition_pages

    def like_and_read_pages(*arguments: Any, **parameters: Any) -> Any:
        if "ProjectionExpression" in parameters:  # the count reads the children
            world.like(f"new{next(users)}")
        return partition_pages(*arguments, **parameters)

    monkeypatch.setattr(recount.queries, "partition_pages", like_and_read_pages)
    first_count = reconciler.count(LIKES, "p")
    assert first_count.unproven_reason == recount.TALLY_MOVED
    assert first_count.low <= -5 <= first_count.high < 0  # a count of a moving tally bounds the correction
    assert repair(reconciler) is not None
    new_likes = next(users)  # users have the numbers 0, 1, 2 …, so the next number is how many have liked
    assert (world.tally(), repairs(world)) == (3 + new_likes, [(-5, "ledger")])


@pytest.mark.parametrize("every_minutes", [4, *marked_long([1])])
def test_while_drift_grows_its_older_part_is_confirmed_and_repaired(
    world: Deployment, reconciler: Reconciler, every_minutes: int
) -> None:
    """A program adds 1 to the stored tally every few minutes, without the API."""
    world.post(5)
    until_s = world.now_s + 30 * 60

    def edit_repeatedly() -> None:
        if world.now_s < until_s:
            world.edit(+1)
            world.schedule_new_records()
            world.schedule_in(60 * every_minutes, edit_repeatedly)

    edit_repeatedly()
    world.run(20)
    row = rows.read_row(world.store, "likes", "p")
    assert 0 < row.confirmed_amount(watermark.read(world.store)) < row.drift
    assert checks.drift_check(world.store).failed
    finding = repair(reconciler)
    assert finding is not None
    assert (world.tally(), finding.how) == (finding.tally + finding.difference, "ledger")
    # The repair corrects only the confirmed part of the drift.
    assert 0 < -finding.difference == finding.confirmed < finding.drift.drift
    assert rows.read_row(world.store, "likes", "p").drift == finding.drift.drift - finding.confirmed
    world.run(30)
    assert repair(reconciler) is not None
    assert (world.tally(), world.drifts()) == (5, {})


@pytest.fixture
def edited_world(world: Deployment) -> Deployment:
    """A video with ten plays, and a confirmed drift of -5 from an edit by hand."""
    world.play(times=10)
    world.edit(-5, PLAYS, "v")
    world.run_until_confirmed()
    return world


def test_an_edit_that_was_undone_before_its_repair_is_not_repaired(
    edited_world: Deployment, reconciler: Reconciler
) -> None:
    """The drift row says -5, because the judge has not judged the minute in which the edit was undone."""
    edited_world.edit(5, PLAYS, "v")
    assert reconciler.find(PLAYS, "v").difference == 5
    with pytest.raises(RepairNotReadyError, match="judged up to"):
        reconciler.repair(PLAYS, "v", *BY_AND_WHY, required_minute=reconciler.minute_to_judge())
    assert repair(reconciler, PLAYS, "v") is None
    edited_world.run_until_judged()
    assert (edited_world.tally(PLAYS, "v"), edited_world.drifts()) == (10, {})


@pytest.mark.parametrize("committed", [False, True])
def test_a_repair_whose_process_dies_is_done_once(
    edited_world: Deployment, reconciler: Reconciler, committed: bool
) -> None:
    dying = edited_world.reconciler(client_that_dies(edited_world.wire, write_number=0, committed=committed))
    with pytest.raises(Crash):
        dying.repair(PLAYS, "v", *BY_AND_WHY)
    assert (repair(reconciler, PLAYS, "v") is None) == committed
    assert (edited_world.tally(PLAYS, "v"), edited_world.drifts()) == (10, {})
    assert repairs(edited_world, PLAYS, "v") == [(5, "ledger")]


def make_dead_letter(world: Deployment) -> None:
    """Spills a play while its tally is a string, so that DynamoDB rejects the rollup's write. Then removes the string.
    The bookkeeper applies the record of the play."""
    strings = [{**tallies.key(PLAYS, "v", shard), "play_count": {"S": "oops"}} for shard in range(PLAYS.max_shards)]
    for item in strings:
        world.put(item)
    world.drop_new_records()
    world.spill()
    world.deliver()
    for item in strings:
        world.delete({name: item[name] for name in ("PK", "SK")})
    world.drop_new_records()
    assert len(world.dead_letter_sequences()["rollup"]) == 1


def test_a_record_that_becomes_a_dead_letter_is_redriven_and_never_also_repaired(
    world: Deployment, reconciler: Reconciler
) -> None:
    make_dead_letter(world)
    world.run_until_confirmed()
    assert world.drifts() == {("plays", "v"): -1}
    with pytest.raises(RepairNotReadyError, match="dead letters"):
        reconciler.minute_to_judge()
    with pytest.raises(RepairNotReadyError, match="dead letters"):
        reconciler.repair(PLAYS, "v", *BY_AND_WHY)
    world.redrive()
    repair(reconciler, PLAYS, "v")
    world.run_until_confirmed()
    repair(reconciler, PLAYS, "v")
    assert (world.tally(PLAYS, "v"), world.drifts()) == (1, {}), "the redrive has added the play, and no repair"


def test_without_a_watermark_a_count_with_a_spilled_child_is_unproven_and_nothing_is_repaired(
    world: Deployment, reconciler: Reconciler
) -> None:
    world.post(1)
    world.spill_like("u1")
    world.run_until_judged()
    world.wire.delete_item(TableName=world.settings.ledger_table, Key=watermark.WATERMARK_KEY)
    assert reconciler.count(LIKES, "p").unproven_reason == recount.ROLLUP_PENDING
    with pytest.raises(RepairNotReadyError, match="not judged yet"):
        reconciler.repair(PLAYS, "v", *BY_AND_WHY)


def test_children_without_a_tally_get_a_tally_but_no_post(world: Deployment, reconciler: Reconciler) -> None:
    world.post(4)
    for key in ("META", "META.BODY"):
        world.delete(keys.key("POST#p", key))
    world.run_until_confirmed()
    repair(reconciler)
    # The repair writes shard 1, because the item of shard 0 would be a post.
    assert set(tallies.read_numbered_shards(tallies.Call(world.store), LIKES, "p")) == {1}
    assert (world.tally(), world.drifts()) == (4, {})


def test_a_count_of_an_edit_that_is_undone_within_its_minute_proves_no_later_edit(
    world: Deployment, reconciler: Reconciler
) -> None:
    """The ledger has no trace of the first edit. The second count finds a second edit of the same amount, which is not
    judged yet. So two counts that find the same difference do not prove the difference."""
    world.post(3)
    world.run_until_judged()
    world.sleep(60 - world.now_s % 60 + 5)  # so the first edit is undone in the minute in which it is made
    world.edit(5)
    world.schedule_new_records()
    first_count = reconciler.count(LIKES, "p")
    world.edit(-5)
    world.schedule_new_records()
    reconciler.wait_until_judged(reconciler.minute_to_judge())
    world.edit(5)
    world.schedule_new_records()
    with pytest.raises(RepairNotReadyError, match="one count before does not prove -5"):
        reconciler.repair(LIKES, "p", *BY_AND_WHY, counted=[first_count])
    reconciler.repair(LIKES, "p", *BY_AND_WHY, **evidence_after(reconciler, first_count))
    assert (world.tally(), repairs(world)) == (3, [(-5, "ledger")])
    world.run_until_confirmed()
    assert (world.tally(), world.drifts()) == (3, {})


@pytest.mark.parametrize("first_error_is", ["repaired", "undone"])
def test_two_equal_counts_of_different_errors_repair_nothing(
    world: Deployment, reconciler: Reconciler, first_error_is: str
) -> None:
    """The first error is corrected before the second error begins. The judge has not judged the second error."""
    world.post(3)
    world.add_child("first")
    world.run_until_confirmed()
    first_count = reconciler.count(LIKES, "p")
    assert first_count.low == 1
    if first_error_is == "repaired":
        assert repair(reconciler)
    else:
        world.delete_child("first")
        world.run_until_judged()
    world.add_child("second")
    with pytest.raises(RepairNotReadyError, match="edited or repaired after the first count"):
        reconciler.repair(LIKES, "p", *BY_AND_WHY, counted=[first_count, reconciler.count(LIKES, "p")])
    world.run_until_confirmed()
    assert world.drifts() == {("likes", "p"): -1}


def test_a_repair_accepts_an_edit_that_made_the_tally_right(world: Deployment, reconciler: Reconciler) -> None:
    """Somebody corrected an edit that had no stream record. The drift row says +3, and the children show no error."""
    world.post(4)
    world.edit(-3)
    world.drop_new_records()
    world.run_until_judged()
    world.edit(3)
    world.run_until_confirmed()
    assert world.drifts() == {("likes", "p"): 3}
    assert repair(reconciler) is not None
    assert (world.tally(), world.drifts(), repairs(world)) == (4, {}, [(0, "recount")])


def test_an_unlike_before_the_rollup_of_its_like_is_not_repaired(world: Deployment, reconciler: Reconciler) -> None:
    """The tally is 1 too low until the rollup adds the first like. The second like's child is not marked as spilled,
    so the first count takes the tally for wrong."""
    world.post(2)
    world.run_until_judged()
    world.stall("rollup", "counts")
    world.spill_like("late")
    world.like("late", liked=False)
    unproven = reconciler.count(LIKES, "p")
    assert (unproven.low, unproven.high, unproven.unproven_reason) == (0, 1, recount.ROLLUP_PENDING)
    world.like("late")
    first_count = reconciler.count(LIKES, "p")
    assert first_count.low == 1
    world.resume()
    evidence = evidence_after(reconciler, first_count)
    with pytest.raises(RepairNotReadyError, match=r"the first count found \+1, and a later one \+0"):
        reconciler.repair(LIKES, "p", *BY_AND_WHY, **evidence)
    assert world.tally() == 3


@pytest.mark.parametrize("shard", [0, *marked_long([1, 7])])
def test_a_like_between_the_second_count_and_the_write_makes_the_repair_count_once_more(
    world: Deployment, reconciler: Reconciler, shard: int
) -> None:
    """`shard`: the shard that the like moves. The repair writes shard 0, the edit was in shard 1, and there was no
    shard 7."""
    evidence = evidence_of_an_unrecorded_edit(world, reconciler, 1, shard=1)

    def like() -> None:
        world.add_child("new")
        world.wire.update_item(**tallies.add_write(tallies.Call(world.store), LIKES, "p", shard, amount=1, minute=0))

    client = interrupted_client(world.wire, write_number=0, act=like)
    assert world.reconciler(client).repair(LIKES, "p", *BY_AND_WHY, **evidence) is not None
    assert (len(client.calls), world.tally()) == (2, 4)  # two attempts


def test_a_drift_row_that_appears_before_the_write_stops_the_repair(world: Deployment, reconciler: Reconciler) -> None:
    evidence = evidence_of_an_unrecorded_edit(world, reconciler, 1)
    put_row = partial(put_drift_row, world, 2, LIKES, "p")
    upto = world.last_judged_minute  # so the row has a minute after the first count
    client = interrupted_client(world.wire, write_number=0, act=lambda: put_row(upto=upto))
    with pytest.raises(RepairNotReadyError, match="edited or repaired after the first count"):
        world.reconciler(client).repair(LIKES, "p", *BY_AND_WHY, **evidence)
    assert (len(client.calls), world.tally()) == (1, 4)


def test_a_like_that_spills_after_the_second_count_stops_the_repair(world: Deployment, reconciler: Reconciler) -> None:
    evidence = evidence_of_an_unrecorded_edit(world, reconciler, 1)
    world.spill_like("late")
    with pytest.raises(RepairNotReadyError, match="cannot tell yet: as_of is older"):
        reconciler.repair(LIKES, "p", *BY_AND_WHY, **evidence)
    assert world.tally() == 4


def test_a_repair_keeps_to_limits_and_gives_out_no_number_twice(world: Deployment, reconciler: Reconciler) -> None:
    """A repair never lowers a numbered counter, because callers have the numbers."""
    stock, ticket = counters.STOCK, counters.TICKET
    for counter, target, number, drift in ((stock, "mug", 2, 5), (ticket, "high", 9, 5), (ticket, "low", 4, -5)):
        world.edit(number, counter, target)
        put_drift_row(world, drift, counter, target)
    with pytest.raises(reconcile.OutOfBoundsError, match="at 2 cannot move by -5"):
        reconciler.repair(stock, "mug", *BY_AND_WHY)
    for target in ("high", "low"):
        assert reconciler.repair(ticket, target, *BY_AND_WHY) is not None
    assert [world.tally(stock, "mug"), world.tally(ticket, "high"), world.tally(ticket, "low")] == [2, 9, 9]
    assert repairs(world, ticket, "high") == [(0, "ledger")], "the drift row is removed, and the number stays"
    assert world.drifts() == {("stock", "mug"): 5}


def test_a_repair_beyond_a_limit_moves_towards_the_limit_or_within_the_debt(
    world: Deployment, reconciler: Reconciler
) -> None:
    """If a limit was declared after the changes, or has a debt, a number may be beyond the limit, and may drift."""
    debtor = replace(counters.STOCK, debt=5)
    for target, number, drift in (("towards", -20, -4), ("within", -3, 2), ("beyond", -4, 2)):
        world.edit(number, debtor, target)
        put_drift_row(world, drift, debtor, target)
    for target in ("towards", "within"):
        assert reconciler.repair(debtor, target, *BY_AND_WHY) is not None
    with pytest.raises(reconcile.OutOfBoundsError, match="at -4 cannot move by -2"):
        reconciler.repair(debtor, "beyond", *BY_AND_WHY)
    assert [world.tally(debtor, target) for target in ("towards", "within", "beyond")] == [-20 + 4, -3 - 2, -4]


@pytest.mark.parametrize("counter", [LIKES, PLAYS])
def test_two_concurrent_repairs_repair_once(world: Deployment, reconciler: Reconciler, counter: Counter) -> None:
    """Both repairs start from the same counts. The second repair sleeps before its write."""
    target = "p" if counter is LIKES else "v"
    world.post(3)
    world.edit(5, counter, target)
    world.run_until_confirmed()
    evidence = repair_evidence(reconciler, counter, target)

    def repair_once(reconciler: Reconciler) -> reconcile.Finding | None:
        return reconciler.repair(counter, target, *BY_AND_WHY, **evidence)

    second_repair = Sleeper(world.wire, write_number=0, run=lambda client: repair_once(world.reconciler(client)))
    assert repair_once(reconciler) is not None
    with suppress(RepairNotReadyError):  # the counts are too old if the second repair finds the first in the history
        second_repair.wake()
    assert world.tally(counter, target) == (3 if counter is LIKES else 0)
    assert len(repairs(world, counter, target)) == 1


def test_a_repair_waits_for_the_judge_though_the_operators_clock_is_behind(world: Deployment) -> None:
    reconciler = Reconciler(world.store, clock=lambda: world.now_s - 3600, sleep=world.sleep)
    assert reconciler.minute_to_judge() >= world.store.settings.minute_of(world.now_s)


def test_a_scan_finds_the_tally_and_the_children_of_every_parent(world: Deployment) -> None:
    for number in range(6):
        world.post(number, post=f"p{number}")
    world.edit(2, target="p4")
    world.delete(keys.key("POST#p2", "META"))
    world.edit(9, PLAYS, "p1")
    parents = recount.scan_parents(world.store, counters.COUNTERS)
    assert {target: (tally, children) for _, target, tally, children in parents} == {
        "p0": (0, 0), "p1": (1, 1), "p2": (0, 2), "p3": (3, 3), "p4": (6, 4), "p5": (5, 5),
    }  # fmt: skip


def test_the_change_of_a_tally_is_the_sum_of_its_series_its_imports_and_what_repairs_added(world: Deployment) -> None:
    """The series have no edits and no repairs. A repair that takes back an edit makes the tally agree with its series.
    A repair of an error that is older than the series adds to the tally what no series has: `added` in the answer."""
    reconciler = world.reconciler()
    evidence = evidence_of_an_unrecorded_edit(world, reconciler, 4)
    world.run(hours.LOOKBACK_MINUTES + 5)
    likes_before_series = world.tally()
    world.sweeps_series = True
    world.run(2)
    world.play(times=3)
    world.edit(50, PLAYS, "v")
    world.like("late")
    rows_of_file = [imports.NumberRow(line=1, id="v", value=1200)]
    imports.import_numbers(Call(world.store), PLAYS, "run", imports.Chunk(0, rows_of_file))
    assert reconciler.repair(LIKES, "p", *BY_AND_WHY, **evidence)
    world.add_child("by hand")
    world.run_until_confirmed()
    assert reconciler.repair(PLAYS, "v", *BY_AND_WHY)
    assert reconciler.repair(LIKES, "p", *BY_AND_WHY)
    world.run(45)  # minutes, so that the series have every change: a sweep adds 20 judged minutes at a time
    end_hour = int(world.now_s) // 3600 + 1
    for counter, id_, change, imported, added_by_repairs in (
        (PLAYS, "v", world.tally(PLAYS, "v"), [1200], [0]),
        (LIKES, "p", world.tally() - likes_before_series, [], [-4, 0]),
    ):
        range_ = series.SeriesRange(series.HOUR, end_hour - 9, end_hour)
        answer = series.read_series(Call(world.store), counter, id_, range_)
        assert [repair["added"] for repair in answer["repairs"]] == added_by_repairs
        assert [day["value"] for day in answer["imports"]] == imported
        assert change == sum(point["value"] for point in answer["series"]) + sum(imported) + sum(added_by_repairs)
    assert (world.tally(PLAYS, "v"), world.tally()) == (1200 + 3, 3 + 1 + 1)  # likes: 3 likers, `late`, by hand
