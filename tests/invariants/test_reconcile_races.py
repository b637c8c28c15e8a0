"""Repairs with a change in the middle of every step of theirs: repaired once, and by what was wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import counters
from tally.counter import Counter
from tally.counting import tallies
from tally.drift import history, judge, recount, rows
from tally.drift.reconcile import Reconciler
from tally.dynamo import keys
from tally.dynamo.client import Call, Store
from tests.invariants.streaming import Watched
from tests.invariants.test_reconcile import LIKES, PLAYS, Clock, edit, like, now_and_then, put_drift, put_post, stored

pytestmark = pytest.mark.slow

COMMIT = -1
STEPS = [*range(0, 60, 5), COMMIT]  # calls of the engine before which the change comes; COMMIT: the first transaction


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


def reconciler(store: Store, step: int, change: Callable[[], object], each_sleep: Callable[[float], object]) -> Any:
    clock = Clock()

    def sleep(pause_s: float) -> None:
        clock.sleep(pause_s)
        each_sleep(clock())

    client: Any = Interrupted(store.client, step, change)
    return Reconciler(replace(store, client=client), counters.COUNTERS, clock=clock, sleep=sleep)


def repaired(store: Store, counter: Counter = LIKES, target: str = "p") -> int:
    return sum(entry["amount"] for entry in history.read(store, counter.name, target))


@pytest.mark.parametrize("liked", [True, False], ids=["like", "unlike of an old like"])
@pytest.mark.parametrize("step", STEPS)
def test_like_or_unlike_in_the_middle_of_any_step_is_not_mended_away(store: Store, step: int, liked: bool) -> None:
    put_post(store, 3)
    store.client.update_item(
        TableName=store.settings.counts_table, Key=keys.key("POST#p", "LIKE#USER#u0"),
        UpdateExpression="SET #at = :at", ExpressionAttributeNames={"#at": "at"},
        ExpressionAttributeValues={":at": {"N": str(int(time.time()) // 60 - 100)}},
    )  # fmt: skip
    edit(store, 5)
    at_once = reconciler(store, step, lambda: like(store, "new" if liked else "u0", liked), lambda _: None)
    assert at_once.repair(LIKES, "p", "ann", "x") is not None
    found = recount.recount(Call(store), LIKES, "p")
    assert found is not None
    assert found.tally == found.children
    assert repaired(store) == -5


@pytest.mark.parametrize("step", STEPS)
def test_spilled_like_in_the_middle_of_any_step_is_added_once(store: Store, step: int) -> None:
    """Its child comes before one step, and what the rollup adds while the repair sleeps."""
    put_post(store, 3)
    edit(store, 5)
    waiting: list[float] = []

    def spill() -> None:
        child: dict[str, Any] = {**keys.key("POST#p", "LIKE#USER#late"), "rollup": {"BOOL": True}}
        made_s = int(at_once.clock())
        child |= {"likedAt": {"N": str(made_s)}, "at": {"N": str(made_s // 60)}, "nonce": {"S": "x"}}
        store.client.put_item(TableName=store.settings.counts_table, Item=child)
        waiting.append(made_s)

    def roll_up(_: float) -> None:
        if waiting:
            waiting.pop()
            edit(store, 1, shard=1)

    at_once = reconciler(store, step, spill, roll_up)
    at_once.repair(LIKES, "p", "ann", "x")
    roll_up(0)
    assert repaired(store) == -5
    found = recount.recount(Call(store), LIKES, "p")
    assert found is not None
    assert found.tally == found.children


@pytest.mark.parametrize("counter", [LIKES, PLAYS], ids=["likes", "plays"])
@pytest.mark.parametrize("step", STEPS)
def test_sweep_in_the_middle_of_any_step_of_a_repair_moves_and_mends_each_difference_once(
    store: Store, step: int, counter: Counter
) -> None:
    """5 are in the drift row, 2 in the ledger."""
    target = "p" if counter is LIKES else "v"
    put_post(store, 3)
    edit(store, 7, counter, target)
    put_drift(store, 5, counter, target)
    minute = int(time.time() // 60)
    row = tallies.book(store.settings, counter.name, target, minute - 60, 3, observed=2)["Update"]
    row["ExpressionAttributeValues"][":now"] = {"N": str(minute * 60 - 1)}
    store.client.update_item(**row)

    def sweep(clock_s: float) -> None:
        judged = judge.sweep(store, int(clock_s) - store.settings.settle_s, clock_s, until_s=float("inf"))
        assert judged.failures == []

    settled_s = minute * 60 + store.settings.settle_s  # what the repair books is not: nobody observes it here
    at_once = reconciler(store, step, lambda: sweep(settled_s), now_and_then(sweep))
    at_once.repair(counter, target, "ann", "x")
    sweep(settled_s)
    left = sum(drift.drift for drift in rows.every(store) if drift.target == target)
    right = 3 if counter is LIKES else 0
    assert stored(store, counter, target) - right == left
    assert repaired(store, counter, target) == left - 7
