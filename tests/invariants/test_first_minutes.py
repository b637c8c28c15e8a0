"""In the first minutes of a stack an edit is found, and a late first sweep makes no drift."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError

import counters
from tally.drift import rows
from tally.dynamo.client import Call
from tally.streams import watermark
from tests.engines import new_engine
from tests.invariants.deployment import SEED, Deployment
from tests.invariants.processes import interrupted_client
from tests.invariants.simulation import UNDISTURBED, Clock, seed_randomness


@pytest.fixture
def world() -> Iterator[Deployment]:
    """A deployment before its first sweep."""
    clock = Clock()
    with new_engine() as engine, seed_randomness(clock, SEED):
        deployment = Deployment(engine, clock, SEED, UNDISTURBED, shards=1)
        yield deployment
        deployment.wire.close()


@pytest.mark.parametrize("after_s", [0, 8, 70])
def test_an_edit_before_the_first_sweep_of_a_stack_is_found(world: Deployment, after_s: int) -> None:
    """The judge begins some minutes after the first sweep, but judges the minutes before the first sweep, too.
    `after_s`: from the plays to the edit. The first sweep is 100 s after the plays."""
    world.play(times=12)
    world.sleep(after_s)
    world.edit(5, counters.PLAYS, "v")
    world.sleep(100 - after_s)
    world.sweep_each_minute()
    world.run_until_judged()
    assert world.drifts() == {("plays", "v"): 5}


def test_a_late_first_sweep_makes_no_drift(world: Deployment) -> None:
    """One half of a change is booked before the judge begins, and the other half after the judge has begun."""
    world.play(times=3)
    world.sleep(60)
    world.stall("bookkeeper", "counts")
    world.play(times=4)
    world.edit(5, counters.PLAYS, "v")
    world.sleep(12 * 60)
    world.sweep_each_minute()
    world.run(1)
    world.resume()
    world.run_until_judged()
    assert world.drifts() == {("plays", "v"): 5}


def test_changes_from_before_the_ledger_began_are_not_confirmed_drift(world: Deployment) -> None:
    """If a change is older than the ledger, each half is booked on the minute in which the bookkeeper reads the record.
    Here these minutes are half an hour apart."""
    world.stall()
    world.play(times=3)
    world.sleep(10 * 60)
    watermark.ensure_begun(Call(world.store), world.now_s)  # as a new record in another shard does
    world.resume()
    world.stall("bookkeeper", "counts")
    world.sweep_each_minute()
    world.run(30)
    world.resume()
    drifted, confirmed = set[int](), set[int]()
    for _ in range(30):
        world.run(1)
        row = rows.read_row(world.store, "plays", "v")
        drifted.add(row.drift)
        confirmed.add(row.confirmed_amount(watermark.read(world.store)))
    assert (drifted, confirmed, world.drifts()) == ({0, -3}, {0}, {})
    world.edit(5, counters.PLAYS, "v")
    world.run_until_confirmed()
    assert rows.read_row(world.store, "plays", "v").confirmed_amount(watermark.read(world.store)) == 5


def test_a_bookkeeper_that_cannot_begin_the_ledger_books_nothing(world: Deployment) -> None:
    """A sweep could begin the ledger after the minute of booked receipts, and nobody would judge that minute."""

    def conflict() -> None:
        raise ClientError({"Error": {"Code": "TransactionConflictException"}}, "UpdateItem")

    world.handlers["bookkeeper"].store = world.with_client(interrupted_client(world.wire, write_number=0, act=conflict))
    world.stall("bookkeeper", "counts")
    world.play(times=3)
    world.sleep(10 * 60)
    world.sweep_each_minute()
    world.resume()
    world.run(20)
    assert world.last_judged_minute > world.settings.minute_of(world.now_s) - 10
    assert world.drifts() == {}
