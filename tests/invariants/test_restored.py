"""A restore copies each table at another moment. After the repair of the copies, every number is right."""

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
from tests.invariants.test_rebuild import (
    DAY_MINUTES,
    EVERY_CONSUMER,
    ROLLUP,
    lose_records,
    missing_amounts,
    run_to_next_day,
    run_until_days_are_judged,
)
from tests.invariants.test_reconcile import make_dead_letter
from tests.tiers import marked_long

TABLES = ("counts", "receipts", "ledger")
BACKWARDS = ("ledger", "receipts", "counts")
PAGE = "https://example.com/a"
AUDIT_NOTE = AuditNote("ann", "INC-9")
Adopt = Callable[..., Deployment]
_numbers = itertools.count()


@pytest.fixture
def own_engine() -> Iterator[Engine]:
    """An engine for one test, because the tables of a deployment have fixed names."""
    with new_engine() as engine:
        yield engine


@pytest.fixture
def world(own_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """A deployment at the beginning of its first whole day. A day has six minutes (DAY_MINUTES)."""
    monkeypatch.setattr(tallies, "MINUTES_PER_DAY", DAY_MINUTES)
    with deployed(engine=own_engine) as deployment:
        run_to_next_day(deployment)
        yield deployment


def copy_tables(
    world: Deployment, order: tuple[str, ...] = TABLES, between: Callable[[], object] = lambda: None
) -> Store:
    """Copies each table into a new table without a stream, and calls `between` after each copy. A real restore copies
    all tables within a second, so its copies are easier to repair."""
    wire, settings, number = world.wire, world.settings, next(_numbers)
    names = {table: f"tally-restored-{table}-{number}" for table in TABLES}
    for table in order:
        source = getattr(settings, f"{table}_table")
        described = wire.describe_table(TableName=source)["Table"]
        schema = {part: described[part] for part in ("KeySchema", "AttributeDefinitions")}
        wire.create_table(TableName=names[table], BillingMode="PAY_PER_REQUEST", **schema)
        for item in all_items(world.store, table):
            wire.put_item(TableName=names[table], Item=item)
        between()
    return replace(world.store, settings=settings._replace(**{f"{table}_table": name for table, name in names.items()}))


def all_items(store: Store, table: str) -> list[Item]:
    return ConsumerWorld(store, store.client).scan(table)


def repair_restored(world: Deployment, copy: Store, moment_s: float | None = None, **options: Any) -> list[Finding]:
    """Repairs restored tables. `moment_s`: when the tables were copied; None: now. `options`: what `repair_restored`
    takes, such as `moments_differ`: the copies are of different moments, so all drift is deleted."""
    moment_s = world.now_s if moment_s is None else moment_s
    return list(restored.repair_restored(copy, counters.COUNTERS, AUDIT_NOTE, moment_s, world.now_s, **options))


@pytest.fixture
def adopt(own_engine: Engine, world: Deployment) -> Iterator[Adopt]:
    """Yields a function that deploys the restored tables `copy` with new streams. Without `copy`, the function first
    copies the present tables, and repairs the copies."""
    deployments: list[Deployment] = []

    def adopt(copy: Store | None = None) -> Deployment:
        if copy is None:
            copy = copy_tables(world)
            repair_restored(world, copy)
        stream = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
        for name in (copy.settings.counts_table, copy.settings.receipts_table):
            world.wire.update_table(TableName=name, StreamSpecification=stream)
        world.clock.now_s += 60  # the deploy takes a minute
        deployments.append(Deployment(own_engine, world.clock, SEED, UNDISTURBED, shards=1, store=copy))
        deployments[0].sweep_each_minute()
        return deployments[0]

    yield adopt
    for deployment in deployments:
        deployment.wire.close()
        assert "a consumer failed" not in deployment.failures


def sum_of_receipts(copy: Store, target: str) -> int:
    """Returns the sum of the receipts of `target` whose changes spilled."""
    receipts = all_items(copy, "receipts")
    return sum(int(item["amount"]["N"]) for item in receipts if "rollup" in item and item["target"]["S"] == target)


def count_children(copy: Store, post: str) -> int:
    return recount.count_children(copy, LIKES, post, float("inf")).children


@pytest.mark.parametrize("order", [TABLES, pytest.param(BACKWARDS, marks=pytest.mark.long)], ids="-".join)
def test_every_number_is_right_after_a_restore_under_traffic(
    world: Deployment, adopt: Adopt, order: tuple[str, ...]
) -> None:
    """A tally of likes equals its children, and a tally that is rolled up equals its receipts. The numbers are equal
    after the repair, under new traffic, and days later."""
    users = itertools.count()

    def traffic() -> None:
        world.like(f"u{next(users)}")
        world.spill_like(f"u{next(users)}")
        world.spill(times=2)
        world.spill(PAGE, 3, VISITS)
        if not next(users) % 4:  # in some calls, the author likes or unlikes the post; `next` never repeats a number
            world.like("author", liked=not next(users) % 8)

    world.post(2)
    world.play("counted at once", 4)
    world.run(7, traffic)
    lose_records(world, ROLLUP, traffic)  # the rollup lost records before the copies
    world.run(2, traffic)
    world.stall(EVERY_CONSUMER)  # so the copies have receipts that the rollup has not added

    def traffic_between_copies() -> None:
        traffic()
        world.clock.now_s += 1

    copy = copy_tables(world, order, traffic_between_copies)
    expected = {"v": sum_of_receipts(copy, "v"), PAGE: sum_of_receipts(copy, PAGE), "p": count_children(copy, "p")}
    assert {finding.how for finding in repair_restored(world, copy)} == {history.REBUILD, history.RECOUNT}
    new_world = adopt(copy)

    def numbers() -> dict[str, int]:
        return {"v": new_world.tally(PLAYS, "v"), PAGE: new_world.tally(VISITS, PAGE), "p": new_world.tally()}

    assert numbers() == expected
    assert new_world.tally(PLAYS, "counted at once") == 4
    for _ in range(3):
        new_world.like(f"u{next(users)}")
        new_world.spill_like(f"u{next(users)}")
        new_world.spill(times=2)
        new_world.spill(PAGE, 1, VISITS)
        new_world.run(2)
    new_world.like("u0", liked=False)
    reconciler = new_world.reconciler()
    run_until_days_are_judged(new_world, 3)
    # In three rounds: 2 plays, 1 visit and 2 likes each; and an unlike.
    assert numbers() == {"v": expected["v"] + 6, PAGE: expected[PAGE] + 3, "p": expected["p"] + 5}
    assert new_world.drifts() == missing_amounts(reconciler) == {}
    last_count = reconciler.count(LIKES, "p")
    assert (last_count.low, last_count.unproven_reason) == (0, "")
    as_of = new_world.as_of()
    assert as_of is not None
    assert new_world.now_s - as_of < 240, "as_of is older than four minutes"


def test_a_restore_deletes_the_items_of_the_old_streams_and_keeps_the_history(world: Deployment) -> None:
    world.post(1)
    world.edit(1)
    world.run_until_confirmed()
    reconciler = world.reconciler()
    assert reconciler.repair(LIKES, "p", "ann", "x")
    notes_began_s = watermark.read(world.store).item["began_s"]  # since then tallies have the notes `day#n`
    copy = copy_tables(world)
    repair_restored(world, copy)
    ledger = all_items(copy, "ledger")
    kinds = {item["PK"]["S"].partition("#")[0] for item in ledger}
    assert kinds == {"JUDGE", "HISTORY", "DRIFT", "SEGMENT", "FINGERPRINT"}
    [watermark_item] = [item for item in ledger if item["PK"]["S"] == "JUDGE"]
    assert watermark_item == watermark.WATERMARK_KEY | {
        "format": {"N": str(FORMAT)},
        "restored_s": {"N": str(int(world.now_s))},
        "notes_began_s": notes_began_s,
    }
    assert [entry["by"] for entry in history.read_repairs(copy, "likes", "p")] == ["ann"]


def test_a_second_repair_of_restored_tables_with_the_same_moment_changes_nothing(world: Deployment) -> None:
    world.play()
    world.run_until_confirmed()
    copy = copy_tables(world)
    assert not restored.is_repaired(copy, world.now_s)
    repair_restored(world, copy)
    assert restored.is_repaired(copy, world.now_s)
    assert not restored.is_repaired(copy, world.now_s - 1), "another moment"
    ledger_before = all_items(copy, "ledger")
    assert repair_restored(world, copy) == []
    assert all_items(copy, "ledger") == ledger_before


@pytest.mark.parametrize("unconfirmed_amount", [1, *marked_long([0])])
def test_a_restore_keeps_confirmed_drift_and_deletes_unconfirmed_drift(
    world: Deployment, adopt: Adopt, unconfirmed_amount: int
) -> None:
    """The amount of the deleted drift stays in the tally."""
    world.play()
    world.edit(5, PLAYS, "v")
    world.run_until_confirmed()
    if unconfirmed_amount:
        world.edit(unconfirmed_amount, PLAYS, "v")
    while world.drifts() != {("plays", "v"): 5 + unconfirmed_amount}:
        world.run(1)
    new_world = adopt()
    new_world.run_until_confirmed()
    reconciler = new_world.reconciler()
    assert new_world.drifts() == {("plays", "v"): 5}
    assert reconciler.repair(PLAYS, "v", "ann", "x")
    assert (new_world.tally(PLAYS, "v"), new_world.drifts()) == (1 + unconfirmed_amount, {})


@pytest.mark.parametrize(("amount", "drift_left"), [(7, 0), (-3, -1)])
def test_drift_that_the_restore_repairs_is_not_repaired_a_second_time(
    world: Deployment, adopt: Adopt, amount: int, drift_left: int
) -> None:
    """The rollup lost 7 plays, or somebody subtracted 3 by hand. Two more plays were not rolled up before the copy. The
    restore adds 9 or 2 receipts. These receipts may cause the drift, so the drift shrinks by as much, at most to 0."""
    if amount > 0:
        lose_records(world, ROLLUP, lambda: world.spill(times=amount))
    else:
        world.edit(amount, PLAYS, "v")
    world.run_until_confirmed()
    assert world.drifts() == {("plays", "v"): -abs(amount)}
    world.stall(EVERY_CONSUMER)
    world.spill(times=2)
    new_world = adopt()
    new_world.run_until_confirmed()
    assert new_world.tally(PLAYS, "v") == (amount + 2 if amount > 0 else -1)
    assert new_world.drifts() == ({("plays", "v"): drift_left} if drift_left else {})


def test_a_loss_on_the_day_of_the_restore_is_found(world: Deployment, adopt: Adopt) -> None:
    """The restored tallies have the sums by day (`day#n`), so a rebuild can also check the day of the restore."""
    world.spill(times=3)
    world.run(1)
    world.stall(EVERY_CONSUMER)
    world.spill(times=2)
    new_world = adopt()
    new_world.run(1)
    lose_records(new_world, EVERY_CONSUMER, lambda: new_world.spill(times=4))
    run_until_days_are_judged(new_world, 3)
    reconciler = new_world.reconciler()
    assert {tally: missing.difference for tally, missing in missing_amounts(reconciler).items()} == {("plays", "v"): 4}
    accepted = Accepted()
    days = rebuild.rebuild_window(new_world.store, watermark.read(new_world.store), new_world.now_s)
    list(rebuild.sum_receipts(new_world.store, counters.COUNTERS, days, accepted))
    assert sum(day.amount for day in accepted["plays", "v"].values()) == 3 + 2 + 4


def test_the_series_of_the_hour_of_the_copy_are_complete_though_the_copy_is_restored_days_later(
    world: Deployment, adopt: Adopt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segments of the hour expire as soon as the restored tables have a TTL, which is before the first sweep."""
    world.sweeps_series = True
    world.run(60)
    world.run(50, world.play)  # plays twice a minute
    world.deliver()
    moment_s, copy, read_segments = world.now_s, copy_tables(world), segments.read_segments
    progress_ = progress.read(copy)  # the sweep has summed up a part of the present hour
    assert minutes_of(copy.settings, progress_.hour)[0] < progress_.through < copy.settings.minute_of(moment_s) - 1
    world.clock.now_s += 11 * 86400
    repair_restored(world, copy, moment_s)
    ConsumerWorld(copy, world.wire).delete_expired(world.now_s + 86400)
    # From some minutes after the copy until now there are no segments, so the test skips the reads of most minutes.
    minutes_without_segments = range(copy.settings.minute_of(moment_s) + 3, copy.settings.minute_of(world.now_s) - 2)

    def read_or_skip(store: Store, minute: int, **options: Any) -> Any:
        return () if minute in minutes_without_segments else read_segments(store, minute, **options)

    monkeypatch.setattr(segments, "read_segments", read_or_skip)
    new_world = adopt(copy)
    new_world.sweeps_series = True
    new_world.run_until_judged()
    answer = series.read_series(Call(copy), PLAYS, "v", SeriesRange(series.HOUR, 0, 10**6))
    assert sum(point["value"] for point in answer["series"]) == new_world.tally(PLAYS, "v") == 50 * 2
    assert answer["as_of"] > moment_s


def test_a_restore_with_dead_letters_needs_the_option_that_deletes_them(world: Deployment, adopt: Adopt) -> None:
    """The restore adds a dead letter's receipt. A redrive, or a repair of the drift, would add the receipt twice. So
    the restore deletes the dead letters and all drift, even the drift of the edit."""
    make_dead_letter(world)
    world.edit(5, PLAYS, "v")
    world.run_until_confirmed()
    assert world.drifts()
    copy = copy_tables(world)
    with pytest.raises(RepairNotReadyError, match="There were dead letters at that moment"):
        repair_restored(world, copy)
    repair_restored(world, copy, without_dead_letters=True)
    assert not dead_letters.any_waiting(copy)
    new_world = adopt(copy)
    new_world.run_until_confirmed()
    assert new_world.drifts() == {}


def test_a_restore_deletes_the_drift_of_a_redriven_record(world: Deployment, adopt: Adopt) -> None:
    """The redrive before the copy is booked on a minute that nobody judges, so the judge would never end the drift."""
    make_dead_letter(world)
    world.run_until_confirmed()
    assert world.drifts()
    assert world.redrive() == ["applied"]
    new_world = adopt()
    new_world.run_until_confirmed()
    assert new_world.drifts() == {}


def test_a_repair_of_restored_tables_that_dies_at_any_write_is_finished_by_the_next_run(world: Deployment) -> None:
    world.post(1)
    world.run(2)
    world.edit(5, PLAYS, "edited")
    world.run_until_confirmed()
    world.edit(1, PLAYS, "unconfirmed")
    while len(world.drifts()) < 2:
        world.run(1)
    world.stall(EVERY_CONSUMER)
    world.spill_like("spilled")
    world.spill(times=2)
    world.spill(PAGE, 3, VISITS)
    first_ledger_keys: list[str] = []
    for write_number in itertools.count():
        copy = copy_tables(world)
        dying = client_that_dies(world.wire, write_number, committed=True)
        with suppress(Crash):
            repair_restored(world, replace(copy, client=dying))
        repair_restored(world, copy)
        numbers = [
            recount.stored_sum(counter, tallies.read_numbered_shards(Call(copy), counter, target))
            for counter, target in ((LIKES, "p"), (PLAYS, "v"), (VISITS, PAGE))
        ]
        assert numbers == [1 + 1, 2, 3]  # one like was counted at once, one spilled
        ledger_keys = sorted(item["PK"]["S"] for item in all_items(copy, "ledger"))
        first_ledger_keys = first_ledger_keys or ledger_keys
        assert ledger_keys == first_ledger_keys, "the ledger depends on the write at which the first run died"
        if len(dying.calls) <= write_number:  # the repair ended before this write
            assert write_number > 5, "the repair had too few writes to die at"
            return


def test_a_write_to_the_restored_tables_stops_their_repair(world: Deployment) -> None:
    """A rollup that still writes may later add the amount that seems to be missing."""
    world.stall(EVERY_CONSUMER)
    world.spill()
    copy = copy_tables(world)

    def roll_up() -> None:
        add = tallies.add_write(
            Call(copy), PLAYS, "v", shard=0, amount=1, minute=0, nonce_prefix=tallies.ROLLUP_NONCE_PREFIX
        )
        world.wire.update_item(**tallies.with_day_notes(add, {world.settings.minute_of(world.now_s) // DAY_MINUTES: 1}))

    # The rollup writes just before the first write of the repair.
    with pytest.raises(TablesInUseError, match="plays v changed during its repair"):
        repair_restored(world, replace(copy, client=interrupted_client(world.wire, 0, roll_up)))


@pytest.mark.parametrize(
    "order", [BACKWARDS, *marked_long([(TABLES,), (("receipts", "counts", "ledger"),)])], ids="-".join
)
def test_each_number_of_copies_that_are_minutes_apart_was_right_between_the_first_and_the_last_copy(
    world: Deployment, adopt: Adopt, order: tuple[str, ...]
) -> None:
    """Likes, and numbers that are visible now, are as in the copy of counts. A number that is rolled up lies between
    its values in the copies of counts and of receipts."""
    users, numbers_at_copy = itertools.count(), dict[str, dict[str, int]]()

    def traffic() -> None:
        world.like(f"u{next(users)}")
        world.spill_like(f"u{next(users)}")
        world.play("now", 2)
        world.spill(times=2)
        world.spill(PAGE, 3, VISITS)

    def between() -> None:
        numbers_at_copy[order[len(numbers_at_copy)]] = {  # of the table that was just copied
            "now": world.tally(PLAYS, "now"),
            "p": sum(item["SK"]["S"].startswith("LIKE#") for item in all_items(world.store, "counts")),
            **{target: sum_of_receipts(world.store, target) for target in ("v", PAGE)},
        }
        world.run(4, traffic)

    world.post(1)
    world.run(6, traffic)
    lose_records(world, ROLLUP, traffic)
    world.run(2, traffic)
    copy = copy_tables(world, order, between)
    newest_s = world.now_s
    repair_restored(world, copy, newest_s, moments_differ=True)
    new_world = adopt(copy)
    assert new_world.tally(PLAYS, "now") == numbers_at_copy["counts"]["now"]
    assert new_world.tally() == numbers_at_copy["counts"]["p"] == count_children(copy, "p")
    first, last = sorted(("counts", "receipts"), key=order.index)
    for counter, target in ((PLAYS, "v"), (VISITS, PAGE)):
        number = new_world.tally(counter, target)
        assert numbers_at_copy[first][target] <= number <= numbers_at_copy[last][target]
        if last == "receipts":
            assert number == numbers_at_copy["receipts"][target], "every receipt of the copy is counted"
    numbers = {target: new_world.tally(counter, target) for counter, target in ((PLAYS, "v"), (VISITS, PAGE))}
    new_world.spill(times=5)
    new_world.run_until_confirmed()
    run_until_days_are_judged(new_world, 3)
    assert {target: new_world.tally(PLAYS if target == "v" else VISITS, target) for target in numbers} == {
        "v": numbers["v"] + 5, PAGE: numbers[PAGE],
    }  # fmt: skip
    assert new_world.drifts() == missing_amounts(new_world.reconciler()) == {}


def test_the_heartbeats_of_a_copied_table_tell_to_the_minute_when_it_was_copied(world: Deployment) -> None:
    world.run(3)
    copied_s: dict[str, float] = {}

    def between() -> None:
        copied_s[TABLES[len(copied_s)]] = world.now_s  # of the table that was just copied
        world.run(5)

    copy = copy_tables(world, between=between)
    moments = restored.table_moments(copy)
    assert list(moments) == list(TABLES)
    for table, moment_s in moments.items():
        assert 0 <= copied_s[table] - moment_s <= 61, table  # sweeps send heartbeats once a minute
    ledger = world.store.settings.ledger_table  # a table of another kind has no heartbeat that tells its moment
    swapped_tables = copy.settings._replace(counts_table=ledger, ledger_table=copy.settings.counts_table)
    moments = restored.table_moments(replace(copy, settings=swapped_tables))
    assert [moments[table] for table in ("counts", "ledger")] == [0, 0], "0: the table does not tell its moment"


def test_a_restore_deletes_drift_of_an_edit_that_is_not_in_its_copy_of_counts(world: Deployment, adopt: Adopt) -> None:
    """The ledger was copied later than counts. A repair of this drift would subtract what the tally does not have."""
    world.play(times=2)
    world.run(2)

    def edit() -> None:
        world.edit(5, PLAYS, "v")
        world.run_until_confirmed()

    edits = iter([edit])  # after the first copy, which is of counts
    copy = copy_tables(world, between=lambda: next(edits, lambda: None)())
    assert [(row.counter, row.target, row.drift) for row in restored.known_drift(copy)] == [("plays", "v", 5)]
    repair_restored(world, copy, moments_differ=True)
    new_world = adopt(copy)
    new_world.run_until_confirmed()
    assert (new_world.tally(PLAYS, "v"), new_world.drifts()) == (2, {})
