"""DynamoDB may cancel a transaction for several reasons at once. Tally looks at the reasons in a fixed order.
A stored receipt comes first: the change was counted before. Conflicts and throttling come next: the change is tried
again. If a condition failed beside a conflict, the retry decides, because the other call may change the item."""

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

BUSY_CODES = ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"]
RECEIPT, LIKE, TALLY = 0, 1, 2  # places of the writes in the transaction of a like with a key
PLAYED = {"video_id": VIDEO, "counted": True, "visible": "now"}
VISIBLE_BY_CODE = list(zip(BUSY_CODES, ("now", "soon", "soon"), strict=True))
"""The reason that cancels a like, and when the like is visible: a throttled like spills."""


def like_answer(visible: str, changed: bool = True) -> dict[str, Any]:
    return {"present": True, "changed": changed, "visible": visible}


@pytest.mark.parametrize("code", BUSY_CODES)
def test_a_receipt_beside_a_conflict_is_a_replay_and_the_receipt_of_the_same_call_is_a_first_answer(
    world: World, code: str
) -> None:
    call = world.call()
    world.play("key-1", call=call)
    cancelled = faults.condition_and_conflict(failed_at=0, conflict_at=1, item=world.receipt(), code=code)
    world.proxy.plan = faults.always(cancelled, "TransactWriteItems")
    world.proxy.clear_requests()
    assert world.play("key-1") == (PLAYED, True)
    assert world.play("key-1", call=call) == (PLAYED, False)  # as for a retry by the SDK
    assert len(world.requests()) == 2
    assert world.tally() == 1


def cancel_next(world: World, key: str | None, failed_at: int, busy_at: int, code: str) -> None:
    """Cancel the next transaction. `failed_at`: the place of the failed condition. `busy_at`: the place of `code`."""
    places = (failed_at, busy_at) if key else (failed_at - 1, busy_at - 1)  # without a key there is no receipt
    world.proxy.plan = faults.script({"TransactWriteItems": [faults.condition_and_conflict(*places, code=code)]})


with_and_without_key = pytest.mark.parametrize("key", [None, "key-1"], ids=["no key", "key"])


@pytest.mark.parametrize(("code", "visible"), VISIBLE_BY_CODE)
@pytest.mark.parametrize("places", [(LIKE, TALLY), (TALLY, LIKE)], ids=["the like is stored", "no post is stored"])
@with_and_without_key
def test_the_retry_decides_about_a_like_whose_condition_failed_beside_a_conflict(
    world: World, code: str, visible: str, places: tuple[int, int], key: str | None
) -> None:
    """`places`: of the failed condition, and of the conflict. Without the conflict, the failed condition would mean
    that the like is stored, or that no post is stored."""
    world.write_post()
    cancel_next(world, key, *places, code)
    assert world.like("ann", key=key) == (like_answer(visible), False)
    assert world.likes() == (1 if visible == "now" else 0, {"ann"})
    assert world.tally_after_rollup(counters.LIKES, POST) == 1


@pytest.mark.parametrize("code", BUSY_CODES)
@with_and_without_key
def test_the_retry_decides_about_a_change_that_never_spills(world: World, code: str, key: str | None) -> None:
    """Neither an unlike nor a change of the stock spills."""
    world.write_post()
    world.like("ann")
    world.play("in", counter=counters.STOCK, operation="increment")
    cancel_next(world, key, LIKE, TALLY, code)
    assert world.unlike("ann", key=key) == ({**like_answer("now"), "present": False}, False)
    assert world.likes() == (0, set())
    cancel_next(world, "out", 1, RECEIPT, code)  # 1: the stock
    body, _ = world.play("out", amount=-1, counter=counters.STOCK, operation="increment")
    assert (body["visible"], world.tally(counters.STOCK)) == ("now", 0)


def test_a_call_whose_receipt_is_in_conflict_is_retried(world: World) -> None:
    """DynamoDB cancels one of two calls that use the same key at once."""
    conflict = faults.Fault(faults.FaultKind.CONFLICT, at=RECEIPT)
    world.proxy.plan = faults.script({"TransactWriteItems": [conflict, conflict]})
    assert world.play("key-1") == (PLAYED, False)
    world.proxy.plan = faults.script({"TransactWriteItems": [conflict]})
    assert world.play("key-1") == (PLAYED, True)
    assert world.tally() == 1


CONFLICT_OUTSIDE_TALLY = faults.Fault(faults.FaultKind.CONFLICT, at=0)
"""A conflict on the receipt, or without a receipt on the like item, and not on the tally."""


def count_batch(world: World) -> Sequence[Any]:
    play = {"counter": "plays", "id": VIDEO}
    parsed = batch.parse_batch([play, play], counters.COUNTERS, time.time(), soon=False)
    return batch.count(world.call(), parsed, operation="change", key="key-1", soon=False)


@pytest.mark.parametrize(
    ("change", "partition"),
    [
        (lambda world: world.play("key-1"), counters.PLAYS.partition_start + VIDEO),
        (lambda world: world.like("ann"), counters.LIKES.partition_start + POST),
        (lambda world: world.like("ann", key="key-1"), counters.LIKES.partition_start + POST),
        (lambda world: world.unlike("bob"), counters.LIKES.partition_start + POST),
        (count_batch, counters.PLAYS.partition_start + VIDEO),
    ],
    ids=["play", "like", "like with a key", "unlike", "batch"],
)
def test_conflicts_on_a_receipt_or_a_like_item_neither_spread_the_tally_nor_make_it_hot(
    world: World, change: Callable[[World], Sequence[Any]], partition: str
) -> None:
    world.write_post()
    world.like("bob")
    world.proxy.plan = faults.script({"TransactWriteItems": [CONFLICT_OUTSIDE_TALLY] * (SPILL_RETRIES_MAX + 2)})
    assert change(world)[0]["visible"] == "now"
    assert world.store.spread.width(partition) == 1
    assert not world.store.breaker.open_tallies
