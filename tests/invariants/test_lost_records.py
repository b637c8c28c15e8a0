"""Where a stream may have lost records, the ledger begins again: no false drift, no lost edit, no `as_of` that lies."""

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
from tests.tiers import in_long

DAY = 12
"""Minutes for which a stream keeps a record here."""
PAGE = "https://example.com/a"
BOTH = ("rollup", "bookkeeper")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    monkeypatch.setattr(lineage, "STREAM_RETENTION_S", DAY * 60)
    with deployed() as made:
        yield made


def trim(world: Deployment, consumer: str, keep: int = 0) -> None:
    """The streams lose what is older than a day and this consumer has not seen, but for the last ones."""
    for shards in world.streams.shards.values():
        for shard in shards:
            made = [record["dynamodb"]["ApproximateCreationDateTime"] for record in shard.records]
            old = sum(at < world.now_s - DAY * 60 for at in made)
            way = world.delivery_to(consumer, shard)
            way.position = max(way.position, old - keep)


def off(world: Deployment, *consumers: str, minutes: float = DAY + 5, keep: int = 0) -> None:
    """These consumers are off for so long, from now on, and lose what the streams no longer have."""
    for consumer in consumers:
        world.stall(consumer)
    world.run(minutes)
    for consumer in consumers:
        trim(world, consumer, keep)
    world.resume()


def without_sweep(world: Deployment, *consumers: str) -> None:
    """So are they, and the sweep with them."""
    for consumer in consumers:
        world.stall(consumer)
    world.deliver()
    world.skip((DAY + 5) * 60)
    for consumer in consumers:
        trim(world, consumer)
    world.resume()


def repaired(world: Deployment, counter: Counter, target: str) -> int:
    """By how much the command repairs it."""
    reconciler = world.reconciler()
    required_minute = reconciler.minute_to_judge()
    reconciler.wait_until_judged(required_minute)
    found = reconciler.repair(counter, target, "ann", "test", required_minute=required_minute)
    return found.difference if found else 0


def acknowledge(world: Deployment) -> None:
    losses.acknowledge(world.store, loss.list_losses(world.store), "ann", "a long weekend")


@pytest.mark.parametrize(
    ("consumers", "going"),
    [(BOTH, off), (("bookkeeper",), without_sweep), *in_long([(("bookkeeper",), off), (BOTH, without_sweep)])],
)
def test_a_right_number_stays_right_when_its_records_are_lost(
    world: Deployment, consumers: tuple[str, ...], going: Callable[..., None]
) -> None:
    """Trimmed to other places in both streams: the ledger has halves of changes."""
    world.play(times=5)
    world.assert_no_drift()
    at = world.now_s
    for consumer in consumers:
        world.stall(consumer)
    world.play(times=7)
    world.deliver()
    for shard in world.streams.shards["receipts"]:
        world.delivery_to("bookkeeper", shard).position = len(shard.records)
    world.play(times=4)
    going(world, *consumers)
    world.assert_no_drift(25)
    assert (world.tally(PLAYS, "v"), repaired(world, PLAYS, "v")) == (16, 0)
    assert (world.as_of() or 0) <= at, "a visit of then may be in no number"
    acknowledge(world)
    world.run(3)
    assert (world.as_of() or 0) > at + DAY * 60
    assert {entry["by"] for entry in history.acknowledged_losses(world.store)} == {"ann"}


def test_what_was_confirmed_stays_and_what_was_not_goes(world: Deployment) -> None:
    world.edit(-5, PLAYS, "old")
    world.run(12)
    world.edit(-3, PLAYS, "young")
    world.run(8)
    assert world.drifts() == {("plays", "old"): -5, ("plays", "young"): -3}
    off(world, "bookkeeper")
    world.run(12)
    assert world.drifts() == {("plays", "old"): -5}
    assert repaired(world, PLAYS, "old") == 5
    world.edit(2, PLAYS, "new")
    world.run(14)
    assert world.drifts() == {("plays", "new"): 2}
    assert repaired(world, PLAYS, "new") == -2


def test_a_sweep_that_slept_forgets_nothing_that_was_judged_since(world: Deployment) -> None:
    before = world.last_judged_minute
    off(world, "bookkeeper")
    world.run(12)
    world.edit(2, PLAYS, "new")
    world.run(10)
    seen = watermark.read(world.store)
    restarted_ledger.restart(world.store, replace(seen, judged=before), world.now_s, float("inf"))
    assert world.drifts() == {("plays", "new"): 2}


def test_what_is_not_a_day_old_is_judged_after_all(world: Deployment) -> None:
    world.stall("bookkeeper")
    world.run(DAY - 2)
    world.edit(9, PLAYS, "v")
    off(world, "bookkeeper", minutes=5)
    world.run(12)
    assert loss.list_losses(world.store), "it was off for more than a day"
    assert world.drifts() == {("plays", "v"): 9}


@pytest.mark.parametrize("consumers", [BOTH, *in_long([(("bookkeeper",),), (("rollup",),)])])
def test_less_than_a_day_loses_nothing(world: Deployment, consumers: tuple[str, ...]) -> None:
    """Whoever is behind."""
    for consumer in consumers:
        world.stall(consumer)
    world.play(times=3)
    world.spill(PAGE, 3, VISITS)
    world.run(DAY - 5)
    world.resume()
    world.run(12)
    assert (loss.list_losses(world.store), world.drifts()) == ([], {})
    assert watermark.read(world.store).resume_minute == 0


def test_the_ledger_knows_what_the_rollup_alone_has_lost(world: Deployment) -> None:
    at = world.now_s
    world.stall("rollup")
    world.spill(PAGE, 3, VISITS)
    off(world, "rollup")
    world.spill(PAGE, 4, VISITS)
    world.run(14)
    assert [one.consumer for one in loss.list_losses(world.store)] == ["rollup"]
    assert (world.tally(VISITS, PAGE), world.drifts()) == (4, {("visits", PAGE): -3})
    assert (world.as_of() or 0) <= at
    assert repaired(world, VISITS, PAGE) == 3
    acknowledge(world)
    world.run(4)
    assert (world.as_of() or 0) > at


def test_receipts_have_what_both_consumers_have_lost(world: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bookkeeper has lost more of them than the rollup: what that has added is no drift."""
    world.stall()
    world.spill(PAGE, 10, VISITS)
    world.deliver()
    edge = {shard.id: len(shard.records) for shard in world.streams.shards["receipts"]}
    world.spill(PAGE, 5, VISITS)
    world.run(DAY + 5)
    trim(world, "bookkeeper")
    for shard in world.streams.shards["receipts"]:
        world.delivery_to("rollup", shard).position = max(world.delivery_to("rollup", shard).position, edge[shard.id])
    world.resume()
    world.assert_no_drift(14)
    day, found = world.store.settings.minute_of(world.now_s) // (24 * 60), Accepted()
    list(rebuild.sum_receipts(world.store, {"visits": VISITS}, Window(day - 1, day), found))
    missing = rebuild.missing_of(world.store, VISITS, PAGE, found["visits", PAGE]).difference
    assert (world.tally(VISITS, PAGE), missing) == (5, 10)
    world.edit(-7, VISITS, PAGE)
    world.run(14)
    assert repaired(world, VISITS, PAGE) == 7
    found_again = rebuild.missing_of(world.store, VISITS, PAGE, found["visits", PAGE])
    assert (found_again.difference, found_again.unproven_reason[:27]) == (10, "repairs since then added +7"), (
        "the repair may have been for the loss"
    )


def test_streams_under_other_names_have_none_of_the_old_records(world: Deployment) -> None:
    """The streams were switched off and on. The engine goes on: what was written meanwhile is lost."""
    world.stall()
    world.play(times=2)
    for shards in world.streams.shards.values():
        for shard in shards[:1]:
            world.deliver()
            world.delivery_to("bookkeeper", shard).position = len(shard.records)
    world.resume()
    world.store = replace(world.store, settings=world.store.settings._replace(receipts_stream="arn:…/new"))
    world.assert_no_drift(14)
    assert {one.consumer for one in loss.list_losses(world.store)} == set(BOTH)
    acknowledge(world)
    world.assert_no_drift(5)
    assert (loss.list_losses(world.store), checks.lost_records(world.store).failed) == ([], False)


def test_the_engine_of_make_dev_keeps_every_record(world: Deployment) -> None:
    world.store = replace(world.store, settings=world.store.settings._replace(local_port=8080))
    without_sweep(world)
    world.run(3)
    assert loss.list_losses(world.store) == []


def test_a_loss_is_said_until_somebody_acknowledges_it(world: Deployment) -> None:
    without_sweep(world)
    assert checks.lost_records(world.store).state == "ok"
    world.run(1)
    seen = checks.lost_records(world.store)
    assert (seen.state, seen.facts["since"] < world.now_s - DAY * 60) == ("wrong", True)
    with pytest.raises(RepairNotReadyError, match="has not restarted"):
        acknowledge(world)
    with pytest.raises(RepairNotReadyError, match="has not restarted"):
        world.reconciler().minute_to_judge()
    world.run(8)
    stale = loss.list_losses(world.store)
    without_sweep(world)
    world.run(8)
    with pytest.raises(RepairNotReadyError, match="More records of bookkeeper may be lost"):
        losses.acknowledge(world.store, stale, "ann", "of the first one")
    acknowledge(world)
    world.run(1)
    assert checks.lost_records(world.store).state == "ok"


def test_series_have_what_the_segments_have(world: Deployment) -> None:
    """The bookkeeper was off for more than a day, and DynamoDB trimmed late: nothing is lost after all."""
    world.series = True
    world.run(1)
    world.stall("bookkeeper")
    world.play(times=6)
    world.run(DAY + 5)
    world.resume()
    world.run(10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hours, "PART_MINUTES", 1)
        hours.sum_up(world.store, world.last_judged_minute, until_s=float("inf"))
    told = series.read_series(Call(world.store), PLAYS, "v", SeriesRange(series.HOUR, 0, 10**6))
    assert sum(point["value"] for point in told["series"]) == 6


# ---- dead letters ----


def set_aside(world: Deployment, *consumers: str, target: str = "v") -> Callable[[], object]:
    """A bug makes these consumers unable to read receipts of a target, until what this returns is called."""
    good = {consumer: world.handlers[consumer].consumer for consumer in consumers}

    def read(consumer: str, declared, record):  # type: ignore[no-untyped-def]
        if record["dynamodb"].get("NewImage", {}).get("target") == {"S": target}:
            raise PoisonRecordError("a bug")
        return good[consumer].read["receipts"](declared, record)

    def mend() -> None:
        for consumer in consumers:
            world.handlers[consumer].consumer = good[consumer]

    for consumer in consumers:
        broken = {**good[consumer].read, "receipts": partial(read, consumer)}
        world.handlers[consumer].consumer = replace(good[consumer], read=broken)
    return mend


def drop_all(world: Deployment) -> None:
    """As the command does with --drop, once their objects are gone."""
    world.bucket.objects.clear()
    for marker in list(dead_letters.list_markers(Call(world.store))):
        dead_letters.discard(Call(world.store), marker)


def test_a_dropped_letter_of_the_bookkeeper_is_no_drift(world: Deployment) -> None:
    """Nor is anything that was confirmed before: it may be its other half."""
    mend = set_aside(world, "bookkeeper")
    at = world.now_s
    world.play(times=4)
    world.run(16)
    mend()
    row = rows.read_row(world.store, "plays", "v")
    assert (row.drift, row.confirmed_amount(watermark.read(world.store))) == (4, 4)
    drop_all(world)
    with pytest.raises(RepairNotReadyError, match="has not restarted"):
        world.reconciler().minute_to_judge()
    world.run(12)
    assert (repaired(world, PLAYS, "v"), world.tally(PLAYS, "v"), world.drifts()) == (0, 4, {})
    assert (world.as_of() or 0) <= at
    world.edit(1, PLAYS, "v")
    world.run(14)
    assert repaired(world, PLAYS, "v") == -1


def dated(world: Deployment) -> dict[str, float]:
    """Up to when each answer with a part of the series says that it is complete."""
    call, ever = Call(world.store), SeriesRange(series.HOUR, 0, 10**6)
    answers = {
        "series": series.read_series(call, PLAYS, "v", ever),
        "top": top.top_list(call, PLAYS, top.HOUR, None, 10),
        "imported": series.total_imported(call, PLAYS, "v") or {},
    }
    return {name: answer["as_of"] for name, answer in answers.items()}


def in_series(world: Deployment) -> int:
    return sum(
        point["value"]
        for point in series.read_series(Call(world.store), PLAYS, "v", SeriesRange(series.HOUR, 0, 10**6))["series"]
    )


@pytest.mark.parametrize("drops", [False, True], ids=["redriven", "dropped"])
def test_series_are_not_complete_past_a_letter_of_the_bookkeeper(
    world: Deployment, monkeypatch: pytest.MonkeyPatch, *, drops: bool
) -> None:
    """Until what is redriven is summed up, or until somebody acknowledges what was dropped."""
    monkeypatch.setattr(hours, "PART_MINUTES", 1)
    world.series = True
    mend = set_aside(world, "bookkeeper")
    at = world.now_s
    world.play(times=4)
    world.run(12)
    assert (in_series(world), max(dated(world).values()) <= at) == (0, True)
    mend()
    drop_all(world) if drops else world.redrive()
    for _ in range(14):
        world.run(1)
        assert in_series(world) == 4 or max(dated(world).values()) <= at
    if drops:
        acknowledge(world)
        world.run(12)
    assert (in_series(world), min(dated(world).values()) > at) == (0 if drops else 4, True)


def test_a_dropped_letter_of_the_rollup_is_drift_that_a_repair_takes_back(world: Deployment) -> None:
    mend = set_aside(world, "rollup", target=PAGE)
    at = world.now_s
    world.spill(PAGE, 4, VISITS)
    world.run(14)
    mend()
    drop_all(world)
    world.run(3)
    assert (world.as_of() or 0) <= at
    assert (repaired(world, VISITS, PAGE), world.tally(VISITS, PAGE)) == (4, 4)
    acknowledge(world)
    world.run(3)
    assert (world.as_of() or 0) > at


@pytest.mark.parametrize(
    ("consumers", "lost"),
    [
        (BOTH, "gap"),
        (("bookkeeper",), "letter"),
        *in_long([(("rollup",), "gap"), (("rollup",), "letter"), (("bookkeeper",), "gap"), (BOTH, "letter")]),
    ],
)
def test_a_letter_that_is_redriven_later_is_no_drift(world: Deployment, consumers: tuple[str, ...], lost: str) -> None:
    """Its other half was forgotten. The number has it, and so have the series."""
    mend = set_aside(world, *consumers, target=PAGE)
    world.spill(PAGE, 2, VISITS)
    world.run(9)
    mend()
    letters = list(dead_letters.list_markers(Call(world.store)))
    if lost == "gap":
        off(world, "bookkeeper")
    else:
        mend = set_aside(world, "bookkeeper")
        world.play()
        world.run(1)
        mend()
        [gone] = [one for one in dead_letters.list_markers(Call(world.store)) if one not in letters]
        dead_letters.discard(Call(world.store), gone)
        world.redrive(markers=letters[:1])  # before a sweep takes it up
    world.run(14)
    assert set(world.redrive(counters.COUNTERS, letters[1:] if lost == "letter" else letters)) <= {"applied"}
    world.assert_no_drift(12)
    assert (world.tally(VISITS, PAGE), repaired(world, VISITS, PAGE)) == (2, 0)


@pytest.mark.parametrize(("minutes", "off_s"), [(-1, 5), (0, -5), *in_long([(-1, -5), (0, 5)])])
def test_a_letter_is_even_by_the_minute_that_its_other_half_is_booked_on(
    world: Deployment, minutes: int, off_s: float
) -> None:
    """It was made next to the minute from which the ledger is judged again, and stamped across its edge."""
    mend = set_aside(world, "bookkeeper")
    world.play()
    world.deliver()
    drop_all(world)
    [gone] = loss.list_losses(world.store)
    world.run_until((gone.resume_minute + minutes) * 60 + (1 if off_s < 0 else 59))
    with world.clock.with_skew(off_s):
        world.play()
    world.run(3)
    mend()
    world.run(8)
    assert world.redrive() == ["applied"]
    world.run(14)
    assert (repaired(world, PLAYS, "v"), world.tally(PLAYS, "v"), world.drifts()) == (0, 2, {})


@pytest.mark.parametrize(
    ("consumer", "minutes"),
    [("rollup", 1), ("bookkeeper", DAY + 5), *in_long([("rollup", DAY + 5), ("bookkeeper", 1)])],
)
def test_a_letter_that_is_redriven_while_the_bookkeeper_is_off_is_no_drift(
    world: Deployment, consumer: str, minutes: int
) -> None:
    """It had drifted for long. What takes that back is lost, or on a minute that is passed over."""
    mend = set_aside(world, consumer, target=PAGE)
    world.spill(PAGE, 4, VISITS)
    world.run(14)
    mend()
    assert world.drifts()
    world.stall("bookkeeper")
    world.run(minutes)
    world.redrive()
    off(world, "bookkeeper", minutes=DAY + 10)
    world.run(14)
    assert (repaired(world, VISITS, PAGE), world.tally(VISITS, PAGE), world.drifts()) == (0, 4, {})


@pytest.mark.parametrize("minutes", [6, DAY - 2])
def test_a_letter_that_is_redriven_on_a_minute_that_is_judged_is_no_drift(world: Deployment, minutes: int) -> None:
    """Its other half is on a minute that is passed over, for the bookkeeper was off since before it became a letter."""
    mend = set_aside(world, "rollup", target=PAGE)
    world.stall("bookkeeper")
    world.spill(PAGE, 2, VISITS)
    world.run(minutes)
    mend()
    assert set(world.redrive()) == {"applied"}
    world.run(DAY + 4 - minutes)
    trim(world, "bookkeeper")
    world.resume()
    world.assert_no_drift(14)
    assert (world.tally(VISITS, PAGE), repaired(world, VISITS, PAGE)) == (2, 0)
