"""Tables restored from copies that are no snapshot: put right at rest, adopted, counted on. Every number is right."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

import counters
from tally.counting import tallies
from tally.dev.base.engine import Engine
from tally.drift import history, recount
from tally.dynamo.client import Call, Store
from tally.dynamo.keys import FORMAT, Item
from tally.maintenance import rebuild, restored
from tally.maintenance.rebuild import Accepted
from tally.maintenance.reconcile import Finding, RepairNotReadyError
from tally.maintenance.restored import AuditNote, TablesInUseError
from tally.series import progress
from tally.series import read as series
from tally.series.progress import minutes_of
from tally.series.read import SeriesRange
from tally.streams import dead_letters, segments, watermark
from tests.engines import new_engine
from tests.invariants.deployment import LIKES, PLAYS, SEED, VISITS, Deployment, deployed
from tests.invariants.processes import Crash, client_that_dies, interrupted_client
from tests.invariants.simulation import UNDISTURBED
from tests.invariants.streaming import ConsumerWorld
from tests.invariants.test_rebuild import DAY, EVERYBODY, ROLLUP, judge_on, lose, losses, next_day
from tests.invariants.test_reconcile import set_one_aside
from tests.tiers import in_long

TABLES = ("counts", "receipts", "ledger")
BACKWARDS = ("ledger", "receipts", "counts")
PAGE = "https://example.com/a"
WHY = AuditNote("ann", "INC-9")
Adopt = Callable[..., Deployment]
_numbers = itertools.count()


@pytest.fixture
def running() -> Iterator[Engine]:
    """The tables of a deployment have fixed names, so each has an engine of its own."""
    with new_engine() as made:
        yield made


@pytest.fixture
def world(running: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """At the beginning of a day that is whole. Days are short."""
    monkeypatch.setattr(tallies, "MINUTES_PER_DAY", DAY)
    with deployed(engine=running) as made:
        next_day(made)
        yield made


def copied(world: Deployment, order: tuple[str, ...] = TABLES, between: Callable[[], object] = lambda: None) -> Store:
    """New tables without streams, with the items of now: one table after the other, and `between` in between.

    A restore to one second is better than that: its tables are less than a second apart.
    """
    wire, old, number = world.wire, world.settings, next(_numbers)
    names = {table: f"tally-restored-{table}-{number}" for table in TABLES}
    for table in order:
        source = getattr(old, f"{table}_table")
        shape = wire.describe_table(TableName=source)["Table"]
        same = {part: shape[part] for part in ("KeySchema", "AttributeDefinitions")}
        wire.create_table(TableName=names[table], BillingMode="PAY_PER_REQUEST", **same)
        for item in everything(world.store, table):
            wire.put_item(TableName=names[table], Item=item)
        between()
    return replace(world.store, settings=old._replace(**{f"{table}_table": name for table, name in names.items()}))


def everything(store: Store, table: str) -> list[Item]:
    return ConsumerWorld(store, store.client).scan(table)


def settle(world: Deployment, rest: Store, moment_s: float | None = None, **how: Any) -> list[Finding]:
    moment_s = world.now_s if moment_s is None else moment_s
    return list(restored.repair_restored(rest, counters.COUNTERS, WHY, moment_s, world.now_s, **how))


@pytest.fixture
def adopt(running: Engine, world: Deployment) -> Iterator[Adopt]:
    """Make a stack that has restored tables from now on, with new streams; by default those of now, put right."""
    made: list[Deployment] = []

    def adopt(rest: Store | None = None) -> Deployment:
        if rest is None:
            rest = copied(world)
            settle(world, rest)
        on = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
        for name in (rest.settings.counts_table, rest.settings.receipts_table):
            world.wire.update_table(TableName=name, StreamSpecification=on)
        world.clock.now_s += 60
        made.append(Deployment(running, world.clock, SEED, UNDISTURBED, 1, rest))
        made[0].sweep_each_minute()
        return made[0]

    yield adopt
    for one in made:
        one.wire.close()
        assert "a consumer failed" not in one.failures


def of_receipts(rest: Store, target: str) -> int:
    """What the restored receipts that were written alone come to."""
    found = everything(rest, "receipts")
    return sum(int(one["amount"]["N"]) for one in found if "rollup" in one and one["target"]["S"] == target)


def children(rest: Store, post: str) -> int:
    return recount.count_children(rest, LIKES, post, float("inf")).children


@pytest.mark.parametrize("order", [TABLES, pytest.param(BACKWARDS, marks=pytest.mark.long)], ids="-".join)
def test_every_number_is_right_after_a_restore_under_traffic(
    world: Deployment, adopt: Adopt, order: tuple[str, ...]
) -> None:
    """Likes are their children, and what is rolled up is its receipts: at once, while it goes on, and days later."""
    users = itertools.count()

    def traffic() -> None:
        world.like(f"u{next(users)}")
        world.spill_like(f"u{next(users)}")
        world.spill(times=2)
        world.spill(PAGE, 3, VISITS)
        if not next(users) % 4:
            world.like("author", liked=not next(users) % 8)

    world.post(2)
    world.play("counted at once", 4)
    world.run(7, traffic)
    lose(world, ROLLUP, traffic)  # and what the rollup lost before
    world.run(2, traffic)
    world.stall(EVERYBODY)  # a consumer is always behind

    def moves() -> None:
        traffic()
        world.clock.now_s += 1

    rest = copied(world, order, moves)
    wanted = {"v": of_receipts(rest, "v"), PAGE: of_receipts(rest, PAGE), "p": children(rest, "p")}
    assert {one.how for one in settle(world, rest)} == {history.REBUILD, history.RECOUNT}
    after = adopt(rest)

    def numbers() -> dict[str, int]:
        return {"v": after.tally(PLAYS, "v"), PAGE: after.tally(VISITS, PAGE), "p": after.tally()}

    assert numbers() == wanted
    assert after.tally(PLAYS, "counted at once") == 4
    for _ in range(3):
        after.like(f"u{next(users)}")
        after.spill_like(f"u{next(users)}")
        after.spill(times=2)
        after.spill(PAGE, 1, VISITS)
        after.run(2)
    after.like("u0", liked=False)
    reconciler = after.reconciler()
    judge_on(after, 3)
    assert numbers() == {"v": wanted["v"] + 6, PAGE: wanted[PAGE] + 3, "p": wanted["p"] + 5}
    assert after.drifts() == losses(reconciler) == {}
    counted = reconciler.count(LIKES, "p")
    assert (counted.low, counted.unproven_reason) == (0, "")
    as_of = after.as_of()
    assert as_of is not None
    assert after.now_s - as_of < 240


def test_nothing_is_left_of_the_old_streams_and_the_history_is(world: Deployment) -> None:
    world.post(1)
    world.edit(1)
    world.run(14)
    reconciler = world.reconciler()
    assert reconciler.repair(LIKES, "p", "ann", "x")
    began = watermark.read(world.store).item["began_s"]
    rest = copied(world)
    settle(world, rest)
    found = everything(rest, "ledger")
    kinds = {one["PK"]["S"].partition("#")[0] for one in found}
    assert kinds == {"JUDGE", "HISTORY", "DRIFT", "SEGMENT", "FORM"}
    [judge] = [one for one in found if one["PK"]["S"] == "JUDGE"]
    assert judge == watermark.WATERMARK_KEY | {
        "format": {"N": str(FORMAT)},
        "restored_s": {"N": str(int(world.now_s))},
        "notes_began_s": began,
    }
    assert [one["by"] for one in history.read_repairs(rest, "likes", "p")] == ["ann"]


@pytest.mark.parametrize("more", [1, *in_long([0])])
def test_drift_that_was_confirmed_stays_and_what_was_not_goes(world: Deployment, adopt: Adopt, more: int) -> None:
    world.play()
    world.edit(5, PLAYS, "v")
    world.run(14)
    if more:
        world.edit(more, PLAYS, "v")
    while world.drifts() != {("plays", "v"): 5 + more}:
        world.run(1)
    after = adopt()
    after.run(14)
    reconciler = after.reconciler()
    assert after.drifts() == {("plays", "v"): 5}
    assert reconciler.repair(PLAYS, "v", "ann", "x")
    assert (after.tally(PLAYS, "v"), after.drifts()) == (1 + more, {})


@pytest.mark.parametrize(("known", "left"), [(7, 0), (-3, -1)])
def test_what_the_ledger_knows_to_be_lost_is_added_once(world: Deployment, adopt: Adopt, known: int, left: int) -> None:
    """The rollup lost 7, of which the ledger knows; 2 more were on their way. Or somebody took 3 away by hand."""
    if known > 0:
        lose(world, ROLLUP, lambda: world.spill(times=known))
    else:
        world.edit(known, PLAYS, "v")
    world.run(14)
    assert world.drifts() == {("plays", "v"): -abs(known)}
    world.stall(EVERYBODY)
    world.spill(times=2)
    after = adopt()
    after.run(14)
    assert after.tally(PLAYS, "v") == (known + 2 if known > 0 else -1)
    assert after.drifts() == ({("plays", "v"): left} if left else {})


def test_loss_after_a_restore_is_found_on_any_day(world: Deployment, adopt: Adopt) -> None:
    """The tallies have notes from before the restore, so its own day can be looked at, too."""
    world.spill(times=3)
    world.run(1)
    world.stall(EVERYBODY)
    world.spill(times=2)
    after = adopt()
    after.run(1)
    lose(after, EVERYBODY, lambda: after.spill(times=4))
    judge_on(after, 3)
    reconciler = after.reconciler()
    assert {name: loss.difference for name, loss in losses(reconciler).items()} == {("plays", "v"): 4}
    found = Accepted()
    days = rebuild.rebuild_window(after.store, watermark.read(after.store), after.now_s)
    list(rebuild.sum_receipts(after.store, counters.COUNTERS, days, found))
    assert sum(day.amount for day in found["plays", "v"].values()) == 9


def test_the_hour_that_ran_at_a_moment_long_ago_is_whole(
    world: Deployment, adopt: Adopt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the ledger had of it expires once the restored tables have a TTL: before the first sweep."""
    world.series = True
    world.run(60)
    world.run(50, world.play)
    world.deliver()
    moment_s, rest, read = world.now_s, copied(world), segments.read_segments
    at = progress.read(rest)
    assert minutes_of(rest.settings, at.hour)[0] < at.through < rest.settings.minute_of(moment_s) - 1
    world.clock.now_s += 11 * 86400
    settle(world, rest, moment_s)
    ConsumerWorld(rest, world.wire).expire(world.now_s + 86400)
    quiet = range(rest.settings.minute_of(moment_s) + 3, rest.settings.minute_of(world.now_s) - 2)  # nothing is read
    monkeypatch.setattr(
        segments, "read_segments", lambda store, at, **how: () if at in quiet else read(store, at, **how)
    )
    after = adopt(rest)
    after.series = True
    after.run(10)
    told = series.read_series(Call(rest), PLAYS, "v", SeriesRange(series.HOUR, 0, 10**6))
    assert sum(point["value"] for point in told["series"]) == after.tally(PLAYS, "v") == 100
    assert told["as_of"] > moment_s


def test_records_that_are_dead_letters_are_a_choice(world: Deployment, adopt: Adopt) -> None:
    """A redrive would add what the receipts have added. So would a repair by drift that such a record explains."""
    set_one_aside(world)
    world.edit(5, PLAYS, "v")
    world.run(14)
    assert world.drifts()
    rest = copied(world)
    with pytest.raises(RepairNotReadyError, match="There were dead letters at that moment"):
        settle(world, rest)
    settle(world, rest, without_dead_letters=True)
    assert not dead_letters.any_waiting(rest)
    after = adopt(rest)
    after.run(14)
    assert after.drifts() == {}


def test_drift_that_a_redriven_record_explains_is_forgotten(world: Deployment, adopt: Adopt) -> None:
    """It was redriven just before: what takes the drift back is on a minute that nobody judges any more."""
    set_one_aside(world)
    world.run(14)
    assert world.drifts()
    assert world.redrive() == ["applied"]
    after = adopt()
    after.run(14)
    assert after.drifts() == {}


def test_interrupted_at_any_write_it_is_finished_by_the_next_run(world: Deployment) -> None:
    world.post(1)
    world.run(2)
    world.edit(5, PLAYS, "edited")
    world.run(10)
    world.edit(1, PLAYS, "unconfirmed")
    while len(world.drifts()) < 2:
        world.run(1)
    world.stall(EVERYBODY)
    world.spill_like("alone")
    world.spill(times=2)
    world.spill(PAGE, 3, VISITS)
    wanted: list[str] = []
    for stop in itertools.count():
        rest = copied(world)
        dying = client_that_dies(world.wire, stop, committed=True)
        with suppress(Crash):
            settle(world, replace(rest, client=dying))
        settle(world, rest)
        looked = ((LIKES, "p"), (PLAYS, "v"), (VISITS, PAGE))
        shards = [recount.shards_of(Call(rest), counter, target) for counter, target in looked]
        found = [recount.stored_sum(counter, of) for (counter, _), of in zip(looked, shards, strict=True)]
        assert found == [2, 2, 3]
        kinds = sorted(one["PK"]["S"] for one in everything(rest, "ledger"))
        wanted = wanted or kinds
        assert kinds == wanted
        if dying.writes <= stop:
            assert stop > 5
            return


def test_writes_to_the_restored_tables_stop_it(world: Deployment) -> None:
    """They are not at rest: what seems to be missing may be on its way."""
    world.stall(EVERYBODY)
    world.spill()
    rest = copied(world)

    def roll_up() -> None:
        add = tallies.add_write(Call(rest), PLAYS, "v", 0, 1, 0, nonce_prefix=tallies.ROLLUP_NONCE_START)
        world.wire.update_item(**tallies.with_day_notes(add, {world.settings.minute_of(world.now_s) // DAY: 1}))

    with pytest.raises(TablesInUseError, match="plays v changed during its repair"):
        settle(world, replace(rest, client=interrupted_client(world.wire, 0, roll_up)))


@pytest.mark.parametrize("order", [BACKWARDS, *in_long([(TABLES,), (("receipts", "counts", "ledger"),)])], ids="-".join)
def test_of_copies_minutes_apart_each_number_is_of_a_moment_between(
    world: Deployment, adopt: Adopt, order: tuple[str, ...]
) -> None:
    """Numbers that are visible now and likes are those of counts. What is rolled up is of no older moment than counts
    and receipts both are, and of no newer one."""
    users, known = itertools.count(), dict[str, dict[str, int]]()

    def traffic() -> None:
        world.like(f"u{next(users)}")
        world.spill_like(f"u{next(users)}")
        world.play("now", 2)
        world.spill(times=2)
        world.spill(PAGE, 3, VISITS)

    def between() -> None:
        known[order[len(known)]] = {
            "now": world.tally(PLAYS, "now"),
            "p": sum(item["SK"]["S"].startswith("LIKE#") for item in everything(world.store, "counts")),
            **{target: of_receipts(world.store, target) for target in ("v", PAGE)},
        }
        world.run(4, traffic)

    world.post(1)
    world.run(6, traffic)
    lose(world, ROLLUP, traffic)
    world.run(2, traffic)
    rest = copied(world, order, between)
    newest_s = world.now_s
    settle(world, rest, newest_s, apart=True)
    after = adopt(rest)
    assert after.tally(PLAYS, "now") == known["counts"]["now"]
    assert after.tally() == known["counts"]["p"] == children(rest, "p")
    first, last = sorted(("counts", "receipts"), key=order.index)
    for counter, target in ((PLAYS, "v"), (VISITS, PAGE)):
        number = after.tally(counter, target)
        assert known[first][target] <= number <= known[last][target]
        if last == "receipts":
            assert number == known["receipts"][target], "every receipt that is there is counted"
    numbers = {target: after.tally(counter, target) for counter, target in ((PLAYS, "v"), (VISITS, PAGE))}
    after.spill(times=5)
    after.run(14)
    judge_on(after, 3)
    assert {target: after.tally(PLAYS if target == "v" else VISITS, target) for target in numbers} == {
        "v": numbers["v"] + 5, PAGE: numbers[PAGE],
    }  # fmt: skip
    assert after.drifts() == losses(after.reconciler()) == {}


def test_tables_tell_up_to_when_they_were_written(world: Deployment) -> None:
    """To the minute, by the heartbeats of the sweep: nothing else says of which moment a copy is."""
    world.run(3)
    made: dict[str, float] = {}

    def between() -> None:
        made[TABLES[len(made)]] = world.now_s
        world.run(5)

    rest = copied(world, between=between)
    found = restored.table_moments(rest)
    assert list(found) == list(TABLES)
    for table, at_s in found.items():
        assert 0 <= made[table] - at_s <= 61, table
    empty = world.store.settings.ledger_table
    unknown = replace(
        rest, settings=rest.settings._replace(counts_table=empty, ledger_table=rest.settings.counts_table)
    )
    assert [restored.table_moments(unknown)[table] for table in ("counts", "ledger")] == [0, 0]


def test_drift_that_a_ledger_of_another_moment_knows_is_forgotten(world: Deployment, adopt: Adopt) -> None:
    """The edit came after the copy of counts: a repair by this drift would take back what is not there."""
    world.play(times=2)
    world.run(2)

    def edited() -> None:
        world.edit(5, PLAYS, "v")
        world.run(14)

    edits = iter([edited])
    rest = copied(world, between=lambda: next(edits, lambda: None)())
    assert [(row.counter, row.target, row.drift) for row in restored.known_drift(rest)] == [("plays", "v", 5)]
    settle(world, rest, apart=True)
    after = adopt(rest)
    after.run(14)
    assert (after.tally(PLAYS, "v"), after.drifts()) == (2, {})
