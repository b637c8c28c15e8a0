"""Repairs with a change in the middle of every step of theirs: repaired once, and by what was wrong."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tally.drift import history
from tally.drift.reconcile import NotProvenError
from tests.invariants.judged import LIKES, PLAYS, Deployment, deployed
from tests.invariants.processes import Watched

COMMIT = -1
STEPS = [*range(0, 8, 2), COMMIT]  # calls of the engine before which the change comes; COMMIT: the first transaction


class Interrupted(Watched):
    """A client that does something else once, before its call number `step`."""

    def __init__(self, client: Any, step: int, change: Callable[[], object]) -> None:
        super().__init__(client)
        self.left, self.change, self.done = step, change, False

    def __getattr__(self, name: str) -> Any:
        real = super().__getattr__(name)
        if name not in ("query", "get_item", "transact_write_items"):
            return real

        def call(**parameters: Any) -> Any:
            due = name == "transact_write_items" if self.left == COMMIT else self.left == 0
            if due and not self.done:
                self.done = True
                self.change()
            self.left -= self.left > 0
            return real(**parameters)

        return call


@pytest.fixture
def world() -> Iterator[Deployment]:
    """A post and a video that are off by +5, confirmed."""
    with deployed() as made:
        made.post(3)
        made.play(times=3)
        made.edit(5)
        made.edit(5, PLAYS, "v")
        made.run(14)
        yield made


def spill_and_unlike(world: Deployment, user: str) -> None:
    """By a user who never liked before: a raw put over what an unlike has left is nothing that Tally does."""
    world.like_alone(user)
    world.like(user, liked=False)


CHANGES: dict[str, Callable[[Deployment], object]] = {
    "like": lambda world: world.like("new"),
    "spilled like": lambda world: world.like_alone("late"),
    "unlike": lambda world: world.like("u0", liked=False),
    "rolled up": lambda world: (world.like_alone("late"), world.deliver()),
    "spilled and unliked": lambda world: spill_and_unlike(world, secrets.token_hex(4)),
    "minutes": lambda world: world.run(2),
}


@pytest.mark.parametrize(
    ("step", "change"),
    [*itertools.product(STEPS, ["like", "spilled like"]), *itertools.product([4, 6, COMMIT], [*CHANGES][2:])],
)
def test_change_in_the_middle_of_any_step_is_kept_and_the_rest_repaired_once(
    world: Deployment, step: int, change: str
) -> None:
    for counter, target in ((LIKES, "p"), (PLAYS, "v")):
        client: Any = Interrupted(world.store.client, step, lambda: CHANGES[change](world))
        each = world.reconciler(client)
        counted = each.count(counter, target) if counter is LIKES else None
        client.left = step
        with suppress(NotProvenError):
            each.repair(counter, target, "ann", "x", counted=counted)
    world.run(4)
    again = world.reconciler()
    for counter, target in ((LIKES, "p"), (PLAYS, "v")):
        counted = again.count(counter, target) if counter is LIKES else None
        again.repair(counter, target, "ann", "x", counted=counted)
        assert sum(entry["amount"] for entry in history.read(world.store, counter.name, target)) == -5
    world.run(10)
    assert (world.drifts(), world.tally(PLAYS, "v")) == ({}, 3)
    assert again.count(LIKES, "p").low == again.count(LIKES, "p").high == 0
