"""Repairs with a change in the middle of every step of theirs: repaired once, and by what was wrong."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tally.drift import history
from tally.maintenance.reconcile import RepairNotReadyError
from tests.invariants.deployment import LIKES, PLAYS, Deployment, deployed
from tests.invariants.processes import WatchedClient
from tests.tiers import in_long

COMMIT = -1  # the call of the engine before which a change comes: the first transaction
CALLS = frozenset({"query", "get_item", "transact_write_items"})


def interrupted(client: Any, step: int, change: Callable[[], object]) -> WatchedClient:
    """A client; something else happens once, before its call number `step`."""
    watched, done = WatchedClient(client, CALLS), list[bool]()

    def before(number: int, name: str, _: object) -> None:
        if not done and (name == "transact_write_items" if step == COMMIT else number == step):
            done.append(True)
            change()

    watched.before = before
    return watched


@pytest.fixture
def world() -> Iterator[Deployment]:
    """A post that is off by +5 since before the streams, and a video that is, confirmed."""
    with deployed() as made:
        made.post(3)
        made.edit(5)
        made.drop_new_records()
        made.play(times=3)
        made.edit(5, PLAYS, "v")
        made.run(14)
        yield made


def spill_and_unlike(world: Deployment, user: str) -> None:
    """By a user who never liked before: a raw put over what an unlike has left is nothing that Tally does."""
    world.spill_like(user)
    world.like(user, liked=False)


CHANGES: dict[str, Callable[[Deployment], object]] = {
    "like": lambda world: world.like("new"),
    "spilled like": lambda world: world.spill_like("late"),
    "unlike": lambda world: world.like("u0", liked=False),
    "rolled up": lambda world: (world.spill_like("late"), world.deliver()),
    "spilled and unliked": lambda world: spill_and_unlike(world, secrets.token_hex(4)),
    "minutes": lambda world: world.run(2),
}


@pytest.mark.parametrize(
    ("step", "change"),
    [
        *((COMMIT, change) for change in ("like", "spilled and unliked", "rolled up")),
        *in_long((COMMIT, change) for change in ("spilled like", "unlike", "minutes")),
        *in_long(itertools.product([0, 2], ["like", "spilled like"])),
        *in_long(itertools.product([4, 6], CHANGES)),
    ],
)
def test_change_in_the_middle_of_any_step_is_kept_and_the_rest_repaired_once(
    world: Deployment, step: int, change: str
) -> None:
    for counter, target in ((LIKES, "p"), (PLAYS, "v")):
        client = interrupted(world.store.client, step, lambda: CHANGES[change](world))
        each = world.reconciler(client)
        counted = [one.count(counter, target) for one in (world.reconciler(), each)] if counter is LIKES else ()
        client.writes = 0
        with suppress(RepairNotReadyError):
            each.repair(counter, target, "ann", "x", counted=counted)
    world.run(5)
    again = world.reconciler()
    for counter, target in ((LIKES, "p"), (PLAYS, "v")):
        counted = [again.count(counter, target) for _ in range(2)] if counter is LIKES else ()
        again.repair(counter, target, "ann", "x", counted=counted)
        assert sum(entry["amount"] for entry in history.read_repairs(world.store, counter.name, target)) == -5
    world.run(10)
    assert (world.drifts(), world.tally(PLAYS, "v")) == ({}, 3)
    assert again.count(LIKES, "p").low == again.count(LIKES, "p").high == 0
