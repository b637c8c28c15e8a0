"""A repair adds its exact amount once, whatever change comes just before a request of the repair.

A repair of likes reads the dead letters, the watermark, the losses and the drift row (requests 0 to 3), and the tally
(4). After two further reads it counts: it reads the tally, the likes and the tally once more (7 to 9). Request 11
commits. A repair of plays counts nothing, and its request 5 commits.
"""

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
from tests.tiers import marked_long

FIRST_COMMIT = -1  # as `request_number`: the first transaction of the repair, whatever its number is
REQUESTS = frozenset({"query", "get_item", "transact_write_items"})


def client_with_change(client: Any, request_number: int, change: Callable[[], object]) -> WatchedClient:
    """Returns a client that makes a change once, just before its request with this number."""
    watched = WatchedClient(client, REQUESTS)

    def before(number: int, name: str, _: object) -> None:
        is_commit = name == "transact_write_items"
        if number == request_number or (is_commit and request_number == FIRST_COMMIT):
            watched.before = lambda *_: None
            change()

    watched.before = before
    return watched


@pytest.fixture
def world() -> Iterator[Deployment]:
    """A post whose tally is 5 too high, which no stream record shows, and a video with a confirmed drift of 5."""
    with deployed() as deployment:
        deployment.post(3)
        deployment.edit(5)
        deployment.drop_new_records()
        deployment.play(times=3)
        deployment.edit(5, PLAYS, "v")
        deployment.run_until_confirmed()
        yield deployment


def spill_and_unlike(world: Deployment, user: str) -> None:
    """Spills a like and removes it. The user is new, because Tally never spills a like over a tombstone."""
    world.spill_like(user)
    world.like(user, liked=False)


CHANGES: dict[str, Callable[[Deployment], object]] = {
    "like": lambda world: world.like("new"),
    "spilled like": lambda world: world.spill_like("late"),
    "unlike": lambda world: world.like("u0", liked=False),
    "spilled like that is rolled up": lambda world: (world.spill_like("late"), world.deliver()),
    "spilled like that is removed": lambda world: spill_and_unlike(world, secrets.token_hex(4)),
    "two minutes": lambda world: world.run(2),
}


@pytest.mark.parametrize(
    ("request_number", "change"),
    [
        *(
            (FIRST_COMMIT, change)
            for change in ("like", "spilled like that is removed", "spilled like that is rolled up")
        ),
        *marked_long((FIRST_COMMIT, change) for change in ("spilled like", "unlike", "two minutes")),
        *marked_long(itertools.product([0, 2], ["like", "spilled like"])),
        *marked_long(itertools.product([4, 7, 8, 9], CHANGES)),
    ],
)
def test_a_change_before_a_request_of_a_repair_is_kept_and_the_wrong_amount_is_repaired_once(
    world: Deployment, request_number: int, change: str
) -> None:
    for counter, target in ((LIKES, "p"), (PLAYS, "v")):
        client = client_with_change(world.store.client, request_number, lambda: CHANGES[change](world))
        disturbed = world.reconciler(client)
        reconcilers = (world.reconciler(), disturbed)
        counted = [reconciler.count(counter, target) for reconciler in reconcilers] if counter is LIKES else ()
        client.calls.clear()
        with suppress(RepairNotReadyError):
            disturbed.repair(counter, target, "ann", "x", counted=counted)
    world.run(5)
    undisturbed = world.reconciler()
    for counter, target in ((LIKES, "p"), (PLAYS, "v")):
        counted = [undisturbed.count(counter, target) for _ in range(2)] if counter is LIKES else ()
        undisturbed.repair(counter, target, "ann", "x", counted=counted)
        assert sum(entry["amount"] for entry in history.read_repairs(world.store, counter.name, target)) == -5
    world.run_until_judged()
    assert (world.drifts(), world.tally(PLAYS, "v")) == ({}, 3)
    recount = undisturbed.count(LIKES, "p")
    assert recount.low == recount.high == 0
