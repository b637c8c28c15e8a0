"""Whoever holds something can settle it, however its counter is declared by then."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from tally.api.needs import NOTHING, to_release_expired_holds
from tally.counter import Counter, declared
from tally.counting import expired_holds, holds, limits, periods, settling, tallies
from tally.counting.hold_items import COMMITTED, RELEASED
from tally.dynamo.client import Call, Store
from tally.errors import ConfigurationError, LimitReachedError
from tally.items import Items
from tally.notify import Notify
from tally.operations import holds as operations
from tally.streams import forms
from tests.invariants.simulation import Clock
from tests.tiers import in_long

STOCK = Counter("stock", prefix="ITEM", sort_key="STOCK", attribute="qty", start=10, floor=0)
CREDIT = replace(STOCK, limit_overrides=True, debt=3)
QUOTA = Counter("quota", prefix="CLIENT", sort_key="CALLS", attribute="calls", ceiling=10)
DAILY = replace(QUOTA, period="day")
CHANGES: dict[str, list[Any]] = {
    "name": ["other"], "prefix": ["D"], "sort_key": ["M"], "attribute": ["m"], "visible": ["soon"], "delta": [-1, 1],
    "start": [0, 7], "floor": [None, -5, 5], "ceiling": [None, 4, 20], "debt": [0, 5], "limit_overrides": [True, False],
    "numbered": [True], "max_shards": [0, 1, 2], "pages": [True], "path": ["/c/{id}"], "retired": [True],
    "receipt_days": [2], "changes": ["anyone", "caller"], "read": ["anyone"], "max_age_s": [3], "child": ["LIKE#USER#"],
    "period": [None, "day", "month"], "keep_periods": [2], "timezone": ["Europe/Paris"], "unique": [True],
    "items": [Items("shop")], "notify": [Notify(at=(3,))],
}  # fmt: skip
ONE = [(field, value) for field, values in CHANGES.items() for value in values]
SINGLE = [dict([one]) for one in ONE]
PAIRS = [{a[0]: a[1], b[0]: b[1]} for a, b in combinations(ONE, 2) if a[0] != b[0]]


def redeclared(was: Counter, changes: list[dict[str, Any]]) -> Iterator[Counter]:
    """What a deploy takes in place of this counter, once it has counted."""
    for change in changes:
        with suppress(ConfigurationError):
            now = replace(was, **change)
            forms.check({was.name: forms.form(was)}, declared([now]))
            if now.name == was.name:
                yield now


@pytest.mark.parametrize(
    ("was", "changes"),
    [
        (STOCK, SINGLE), (DAILY, SINGLE),
        *in_long([(CREDIT, SINGLE), (QUOTA, SINGLE), *((was, PAIRS) for was in (STOCK, CREDIT, QUOTA, DAILY))]),
    ],
)  # fmt: skip
def test_a_hold_is_settled_in_each_way_whatever_is_declared_by_then(
    store: Store, clock: Clock, was: Counter, changes: list[dict[str, Any]]
) -> None:
    tried = 0
    for tried, now in enumerate(redeclared(was, changes), 1):
        assert operations._refusal_of_settling(now) is None, now
        assert to_release_expired_holds([now]) != NOTHING
        call = Call(replace(store, limit_cache={}))  # of a process that knows the new declaration alone
        for how in (RELEASED, COMMITTED, "expired"):
            id_ = f"{was.name}-{tried}-{how}"
            tally = periods.tally_id(was, id_, clock())
            hold = holds.place(Call(store), was, tally, 4, 9, operation="hold", key=secrets.token_hex(8)).body["hold"]
            taken = tallies.read(call, now, tally)
            back = taken + (4 if was.ceiling is None else -4)
            if how == "expired":
                clock.pass_s(10)
                swept = expired_holds.sweep(call.store, declared([now]), time.time() + 60)
                fits = swept.failed == 0
            else:
                fits = True
                try:
                    settling.settle(call, now, id_, hold, how)
                except LimitReachedError:
                    fits = False
            assert fits is (how == COMMITTED or limits.declared_limits(now).allows(taken, back - taken)), now
            assert tallies.read(call, now, tally) == (back if fits and how != COMMITTED else taken), (now, how)
            if not fits:  # it waits for room, and no other case for it
                settling.settle(Call(replace(store, limit_cache={})), was, id_, hold, RELEASED)
    assert tried > 15


def test_a_counter_with_holds_never_gives_out_numbers() -> None:
    """What a hold gives back would be given out again."""
    steps = replace(STOCK, delta=-1)
    for was in (STOCK, steps):
        with pytest.raises(ConfigurationError, match="numbered=False, which is True now"):
            forms.check({was.name: forms.form(was)}, declared([replace(steps, numbered=True)]))
