"""Tests which changes of a declaration fit the stored items.

tests/invariants/test_fingerprints.py counts after each change that fits.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from tally.counter import Counter, declared
from tally.errors import ConfigurationError
from tally.items import Items
from tally.notify import Notify
from tally.streams import fingerprints

PLAIN = Counter("c", prefix="C", sort_key="N", attribute="n")
# With max_shards=0 a counter has as many shards as its other fields allow: one with a floor, else 16.
ONE_SHARD = replace(PLAIN, floor=0, max_shards=0)
WITH_DELTA = replace(ONE_SHARD, delta=1)
DAILY = replace(PLAIN, period="day", keep_periods=9)
DAILY_FOR_EVER = replace(PLAIN, period="day")
CHILDREN = replace(PLAIN, child="LIKE#USER#")
ITEMS = replace(PLAIN, items=Items("shop"), visible="soon")
Change = tuple[Counter, dict[str, Any]]  # a counter that has counted, and the fields that change

FITTING: dict[str, list[Change]] = {  # by the field that changes
    "visible": [(PLAIN, {"visible": "soon"}), (replace(PLAIN, visible="soon"), {"visible": "now"})],
    "delta": [(PLAIN, {"delta": 1}), (replace(PLAIN, delta=1), {"delta": None})],
    "start": [
        (ONE_SHARD, {"start": 180}), (replace(ONE_SHARD, start=180), {"start": 200}),
        (replace(ONE_SHARD, start=5), {"start": 0}),
    ],
    "floor": [(ONE_SHARD, {"floor": -9}), (ONE_SHARD, {"floor": None, "max_shards": 1})],
    "limit_overrides": [
        (replace(ONE_SHARD, floor=0), {"limit_overrides": True}),
        (replace(ONE_SHARD, floor=0, limit_overrides=True), {"limit_overrides": False}),
    ],
    "ceiling": [(ONE_SHARD, {"ceiling": 500}), (replace(ONE_SHARD, ceiling=400), {"ceiling": None})],
    "debt": [(ONE_SHARD, {"debt": 50}), (replace(ONE_SHARD, debt=50), {"debt": 0})],
    "max_shards": [(PLAIN, {"max_shards": 2}), (replace(PLAIN, max_shards=2), {"max_shards": 64})],
    "path": [(PLAIN, {"path": "/c/{id}"})],
    "notify": [
        (ONE_SHARD, {"notify": Notify(at=(5,))}), (replace(ONE_SHARD, notify=Notify(at=(5,))), {"notify": None}),
    ],
    "retired": [(PLAIN, {"retired": True})],
    "receipt_days": [(PLAIN, {"receipt_days": 2})],
    "changes": [(PLAIN, {"changes": "anyone"})],
    "read": [(PLAIN, {"read": "anyone"})],
    "lists": [(replace(PLAIN, read="anyone"), {"lists": "anyone"})],
    "max_age_s": [(replace(PLAIN, read="anyone"), {"max_age_s": 9})],
    "unique": [(DAILY, {"unique": True}), (replace(DAILY, unique=True), {"unique": False, "delta": None})],
    "keep_periods": [(DAILY, {"keep_periods": 3}), (replace(DAILY, keep_periods=None), {"keep_periods": 3})],
}  # fmt: skip
REFUSED: dict[str, list[Change]] = {
    "name": [(PLAIN, {"name": "d"})],
    "prefix": [(PLAIN, {"prefix": "D"})],
    "sort_key": [(PLAIN, {"sort_key": "M"})],
    "attribute": [(PLAIN, {"attribute": "m"})],
    "visible": [(replace(PLAIN, visible="soon", max_shards=1), {"visible": "now"})],
    "start": [(PLAIN, {"start": 5, "max_shards": 0})],
    "floor": [(PLAIN, {"floor": 0, "max_shards": 0}), (ONE_SHARD, {"floor": None, "max_shards": 0})],
    "ceiling": [(PLAIN, {"ceiling": 9, "max_shards": 0})],
    "numbered": [
        (replace(PLAIN, delta=1), {"numbered": True, "max_shards": 0}),
        (WITH_DELTA, {"numbered": True}), (replace(WITH_DELTA, numbered=True), {"numbered": False}),
    ],
    "max_shards": [(PLAIN, {"max_shards": 1}), (replace(PLAIN, max_shards=1), {"max_shards": 2})],
    "pages": [(PLAIN, {"pages": True})],
    "child": [(PLAIN, {"child": "LIKE#USER#"}), (CHILDREN, {"child": "FAN#USER#"}), (CHILDREN, {"child": None})],
    "period": [(PLAIN, {"period": "day"}), (DAILY, {"period": "hour"}), (DAILY_FOR_EVER, {"period": None})],
    "keep_periods": [(DAILY, {"keep_periods": 10}), (DAILY, {"keep_periods": None})],
    "timezone": [(DAILY, {"timezone": "Europe/Paris"})],
    "items": [(PLAIN, {"items": Items("shop"), "visible": "soon"}), (ITEMS, {"items": None})],
}  # fmt: skip


def refusals(before: Counter, *after: Counter) -> list[str]:
    """Returns why a deployment with the counters `after` is refused, if `before` has counted."""
    return [
        str(refusal)
        for refusal in fingerprints.mismatches({before.name: fingerprints.fingerprint_of(before)}, declared(after))
    ]


def cases(changes: dict[str, list[Change]]) -> list[Any]:
    return [pytest.param(*change, id=f"{field} {change[1]}") for field, listed in changes.items() for change in listed]


def test_each_field_of_a_counter_is_in_a_list_of_this_test() -> None:
    assert {field.name for field in fields(Counter)} == FITTING.keys() | REFUSED.keys()


@pytest.mark.parametrize(("before", "change"), cases(FITTING))
def test_a_change_that_keeps_the_fingerprint_of_the_counter_fits(before: Counter, change: dict[str, Any]) -> None:
    assert refusals(before, replace(before, **change)) == []


@pytest.mark.parametrize(("before", "change"), cases(REFUSED))
def test_a_change_of_the_fingerprint_is_refused_with_the_counter_and_what_to_do(
    before: Counter, change: dict[str, Any]
) -> None:
    after = replace(before, **change)
    assert refusals(before, after)
    message = r"counter 'c' has counted .*: take that back, or declare a new counter"
    with pytest.raises(ConfigurationError, match=message):
        fingerprints.check({before.name: fingerprints.fingerprint_of(before)}, declared([after]))


def test_a_counter_of_items_may_change_or_become_undeclared_because_a_scan_counts_its_items() -> None:
    for change in ({"items": Items("crates")}, {"prefix": "D"}, {"name": "d"}):
        assert refusals(ITEMS, replace(ITEMS, **change)) == []
    assert refusals(ITEMS, Counter("d", prefix="D", sort_key="N", attribute="n")) == []


def test_two_counters_that_swap_their_keys_are_both_refused() -> None:
    counter_d = Counter("d", prefix="D", sort_key="N", attribute="n")
    stored = {counter.name: fingerprints.fingerprint_of(counter) for counter in (PLAIN, counter_d)}
    refused = fingerprints.mismatches(stored, declared([replace(PLAIN, prefix="D"), replace(counter_d, prefix="C")]))
    misbooked = {refusal.counter for refusal in refused if refusal.misbooks}
    assert misbooked == {"c", "d"}, "the records of each would be booked on the other"


def test_no_other_counter_may_use_the_keys_of_a_counter_that_is_not_declared_any_more() -> None:
    counter_d = Counter("d", prefix="D", sort_key="N", attribute="n")
    assert refusals(PLAIN, counter_d) == []
    assert refusals(PLAIN, counter_d, PLAIN) == [], "counter c may be declared as before"
    # The key N of counter c is not among d's children N#USER#…, and the key N#USER#X is.
    assert refusals(PLAIN, replace(counter_d, prefix="C", sort_key="CHILDREN", child="N#USER#")) == []
    [clash] = refusals(
        replace(PLAIN, sort_key="N#USER#X"), replace(counter_d, prefix="C", sort_key="M", child="N#USER#")
    )
    assert "'c' has counted and is not declared any more, but counter 'c': sort_key 'N#USER#X'" in clash
