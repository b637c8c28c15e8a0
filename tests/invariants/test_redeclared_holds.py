"""A hold can be settled after any change of its counter's declaration that a deployment accepts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from itertools import combinations
from typing import Any

import pytest

from tally.api.needs import NOTHING, to_release_expired_holds
from tally.counter import Counter, declared
from tally.counting import expired_holds, holds, limits, periods, settling, tallies
from tally.counting.hold_items import COMMITTED, EXPIRED, RELEASED
from tally.dynamo.client import Call, Store
from tally.errors import ConfigurationError, LimitReachedError
from tally.items import Items
from tally.notify import Notify
from tally.operations import holds as operations
from tally.streams import fingerprints
from tests.invariants.simulation import Clock
from tests.tiers import marked_long

STOCK = Counter("stock", prefix="ITEM", sort_key="STOCK", attribute="qty", start=10, floor=0)
CREDIT = replace(STOCK, limit_overrides=True, debt=3)
QUOTA = Counter("quota", prefix="CLIENT", sort_key="CALLS", attribute="calls", ceiling=10)
DAILY = replace(QUOTA, period="day")
HOLD_S = 9  # how long a hold lasts
CHANGES: dict[str, list[Any]] = {
    "name": ["other"], "prefix": ["D"], "sort_key": ["M"], "attribute": ["m"], "visible": ["soon"], "delta": [-1, 1],
    "start": [0, 7], "floor": [None, -5, 5], "ceiling": [None, 4, 20], "debt": [0, 5], "limit_overrides": [True, False],
    "numbered": [True], "max_shards": [0, 1, 2], "pages": [True], "path": ["/c/{id}"], "retired": [True],
    "receipt_days": [2], "changes": ["anyone", "caller"], "read": ["anyone"], "lists": ["anyone"], "max_age_s": [3],
    "child": ["LIKE#USER#"], "period": [None, "day", "month"], "keep_periods": [2], "timezone": ["Europe/Paris"],
    "unique": [True], "items": [Items("shop")], "notify": [Notify(at=(3,))],
}  # fmt: skip
# What a team may change in a declaration: one field, or two.
FIELD_VALUES = [(field, value) for field, values in CHANGES.items() for value in values]
SINGLE_CHANGES = [{field: value} for field, value in FIELD_VALUES]
PAIRS_OF_CHANGES = [dict(pair) for pair in combinations(FIELD_VALUES, 2) if pair[0][0] != pair[1][0]]


def accepted_redeclarations(counter: Counter, changes: list[dict[str, Any]]) -> Iterator[Counter]:
    """Returns the changed declarations that a deployment accepts after the counter has counted."""
    for change in changes:
        with suppress(ConfigurationError):
            redeclared = replace(counter, **change)
            fingerprints.check({counter.name: fingerprints.fingerprint_of(counter)}, declared([redeclared]))
            if redeclared.name == counter.name:  # a counter with another name is a new counter, without holds
                yield redeclared


def end_hold(call: Call, counter: Counter, id_: str, hold_id: str, end: str) -> bool:
    """Releases or commits a hold. For EXPIRED, sweeps the hold, whose time is over. Returns False if a limit refuses
    the release."""
    if end == EXPIRED:
        return expired_holds.sweep(call.store, declared([counter]), until_s=time.time() + 60).failed == 0
    with suppress(LimitReachedError):
        settling.settle(call, counter, id_, hold_id, end)
        return True
    return False


@pytest.mark.parametrize(
    ("counter", "changes"),
    [
        (STOCK, SINGLE_CHANGES), (DAILY, SINGLE_CHANGES),
        *marked_long([
            (CREDIT, SINGLE_CHANGES), (QUOTA, SINGLE_CHANGES),
            *((counter, PAIRS_OF_CHANGES) for counter in (STOCK, CREDIT, QUOTA, DAILY)),
        ]),
    ],
)  # fmt: skip
def test_a_hold_is_released_committed_or_expires_after_any_redeclaration_of_its_counter(
    store: Store, clock: Clock, counter: Counter, changes: list[dict[str, Any]]
) -> None:
    count = 0  # if no redeclaration is accepted
    for count, redeclared in enumerate(accepted_redeclarations(counter, changes), 1):
        assert operations._refusal_of_settling(redeclared) is None, redeclared
        assert to_release_expired_holds([redeclared]) != NOTHING
        call = Call(replace(store, limit_cache={}))  # in a process that knows only the new declaration
        for end in (RELEASED, COMMITTED, EXPIRED):
            id_, key = f"{counter.name}-{count}-{end}", secrets.token_hex(8)
            tally = periods.tally_id(counter, id_, clock())
            answer = holds.place(Call(store), counter, tally, amount=4, ttl_s=HOLD_S, operation="hold", key=key)
            number = tallies.read(call, redeclared, tally)
            released_by = 4 if counter.ceiling is None else -4
            moved_by = 0 if end == COMMITTED else released_by
            if end == EXPIRED:
                clock.pass_s(HOLD_S + 1)
            # A commit does not move the number. A release or an expiry must keep to the new limits.
            may_end = end == COMMITTED or limits.declared_limits(redeclared).allows(number, moved_by)
            assert end_hold(call, redeclared, id_, answer.body["hold"], end) is may_end, redeclared
            assert tallies.read(call, redeclared, tally) == number + (moved_by if may_end else 0), (redeclared, end)
            if not may_end:  # the hold waits for room, and its old declaration has room
                settling.settle(Call(replace(store, limit_cache={})), counter, id_, answer.body["hold"], RELEASED)
    assert count > 15, "the check accepts many redeclarations"


def test_the_redeclarations_change_each_field_of_a_counter() -> None:
    assert CHANGES.keys() == {field.name for field in fields(Counter)}


def test_a_counter_with_holds_never_gives_out_numbers() -> None:
    """After the release of a hold, the counter would give out the same numbers a second time."""
    stepwise = replace(STOCK, delta=-1)
    for counter in (STOCK, stepwise):
        with pytest.raises(ConfigurationError, match="numbered=False, which is True now"):
            fingerprints.check(
                {counter.name: fingerprints.fingerprint_of(counter)}, declared([replace(stepwise, numbered=True)])
            )
