"""A transaction can be cancelled for several reasons at once; the order in which they are judged decides the count.

A receipt found: counted before, whatever else is stored. Then conflicts and throttling: try again. A condition that
failed beside them is judged afresh by the retry, for who knows what was about to change it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import counters
from tally.counting import batch
from tally.dynamo.contention import SPILL_RETRIES_MAX
from tests import faults
from tests.invariants.world import POST, VIDEO, World

BUSY = ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"]
RECEIPT, LIKE, TALLY = 0, 1, 2  # the places of the writes in the transaction of a keyed like
PLAYED = {"video_id": VIDEO, "counted": True, "visible": "now"}
NOW_AND_SOON = [("TransactionConflict", "now"), ("ThrottlingError", "soon"), ("ProvisionedThroughputExceeded", "soon")]
"""What a like meets, and when it is visible: one that was throttled is written alone, and judged by that write."""


def liked(visible: str, changed: bool = True) -> dict[str, Any]:
    return {"present": True, "changed": changed, "visible": visible}


@pytest.mark.parametrize("code", BUSY)
def test_receipt_found_beside_a_conflict_is_a_replay_at_once_and_ones_own_a_first_answer(
    world: World, code: str
) -> None:
    call = world.call()
    world.play("key-1", call=call)
    found = faults.mixed(refused_at=0, busy_at=1, item=world.receipt(), code=code)
    world.proxy.plan = faults.always(found, "TransactWriteItems")
    world.proxy.forget()
    assert world.play("key-1") == (PLAYED, True)
    assert world.play("key-1", call=call) == (PLAYED, False)  # as if the SDK had sent it again
    assert len(world.sent()) == 2
    assert world.tally() == 1


def refuse(world: World, key: str | None, refused: int, busy: int, code: str) -> None:
    """The next transaction is cancelled for a condition at one place and for something passing at another."""
    places = (refused, busy) if key else (refused - 1, busy - 1)
    world.proxy.plan = faults.script({"TransactWriteItems": [faults.mixed(*places, code=code)]})


keyed = pytest.mark.parametrize("key", [None, "key-1"], ids=["no key", "key"])


@pytest.mark.parametrize(("code", "visible"), NOW_AND_SOON)
@pytest.mark.parametrize("places", [(LIKE, TALLY), (TALLY, LIKE)], ids=["there is the like", "there is no post"])
@keyed
def test_like_refused_beside_a_conflict_is_judged_afresh(
    world: World, code: str, visible: str, places: tuple[int, int], key: str | None
) -> None:
    world.write_post()
    refuse(world, key, *places, code)
    assert world.like("ann", key=key) == (liked(visible), False)
    assert world.likes() == (1 if visible == "now" else 0, {"ann"})
    assert world.tally_after_rollup(counters.LIKES, POST) == 1


@pytest.mark.parametrize("code", BUSY)
@keyed
def test_what_never_spills_is_judged_afresh_by_the_retry(world: World, code: str, key: str | None) -> None:
    """An unlike, and a stock that had run out a moment ago."""
    world.write_post()
    world.like("ann")
    world.play("in", counter=counters.STOCK, operation="increment")
    refuse(world, key, LIKE, TALLY, code)
    assert world.unlike("ann", key=key) == ({**liked("now"), "present": False}, False)
    assert world.likes() == (0, set())
    refuse(world, "out", 1, RECEIPT, code)
    body, _ = world.play("out", amount=-1, counter=counters.STOCK, operation="increment")
    assert (body["visible"], world.tally(counters.STOCK)) == ("now", 0)


def test_conflict_on_the_receipt_itself_is_tried_again(world: World) -> None:
    """Two calls with one key at one moment: one is cancelled for a conflict on the receipt."""
    conflict = faults.Fault(faults.FaultKind.CONFLICT, at=RECEIPT)
    world.proxy.plan = faults.script({"TransactWriteItems": [conflict, conflict]})
    assert world.play("key-1") == (PLAYED, False)
    world.proxy.plan = faults.script({"TransactWriteItems": [conflict]})
    assert world.play("key-1") == (PLAYED, True)
    assert world.tally() == 1


ELSEWHERE = faults.Fault(faults.FaultKind.CONFLICT, at=0)
"""A conflict over the receipt, or over the like item if there is no receipt, and not over the tally."""


def together(world: World) -> Sequence[Any]:
    play = {"counter": "plays", "id": VIDEO}
    made = batch.parse_batch([play, play], counters.COUNTERS, time.time(), soon=False)
    return batch.count(world.call(), made, operation="change", key="key-1", soon=False)


@pytest.mark.parametrize(
    ("change", "tally"),
    [
        (lambda world: world.play("key-1"), counters.PLAYS.partition_start + VIDEO),
        (lambda world: world.like("ann"), counters.LIKES.partition_start + POST),
        (lambda world: world.like("ann", key="key-1"), counters.LIKES.partition_start + POST),
        (lambda world: world.unlike("bob"), counters.LIKES.partition_start + POST),
        (together, counters.PLAYS.partition_start + VIDEO),
    ],
    ids=["play", "like", "keyed like", "unlike", "together"],
)
def test_conflicts_over_a_receipt_or_a_like_neither_spread_nor_heat_the_tally(
    world: World, change: Callable[[World], Sequence[Any]], tally: str
) -> None:
    world.write_post()
    world.like("bob")
    world.proxy.plan = faults.script({"TransactWriteItems": [ELSEWHERE] * (SPILL_RETRIES_MAX + 2)})
    assert change(world)[0]["visible"] == "now"
    assert world.store.spread.width(tally) == 1
    assert not world.store.breaker.open_tallies
