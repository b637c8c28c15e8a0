"""Which changes of a declaration fit what a counter has stored. tests/invariants/test_forms.py runs those that do."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from tally.counter import Counter, declared
from tally.errors import ConfigurationError
from tally.items import Items
from tally.notify import Notify
from tally.streams import forms

PLAIN = Counter("c", prefix="C", sort_key="N", attribute="n")
ONE = replace(PLAIN, floor=0, max_shards=0)
STEPS = replace(ONE, delta=1)
DAILY = replace(PLAIN, period="day", keep_periods=9)
UNKEPT = replace(PLAIN, period="day")
CHILDREN = replace(PLAIN, child="LIKE#USER#")
ITEMS = replace(PLAIN, items=Items("shop"), visible="soon")
Change = tuple[Counter, dict[str, Any]]

FITTING: dict[str, list[Change]] = {
    "visible": [(PLAIN, {"visible": "soon"}), (replace(PLAIN, visible="soon"), {"visible": "now"})],
    "delta": [(PLAIN, {"delta": 1}), (replace(PLAIN, delta=1), {"delta": None})],
    "start": [(ONE, {"start": 180}), (replace(ONE, start=180), {"start": 200}), (replace(ONE, start=5), {"start": 0})],
    "floor": [(ONE, {"floor": -9}), (ONE, {"floor": None, "max_shards": 1})],
    "limit_overrides": [
        (replace(ONE, floor=0), {"limit_overrides": True}),
    (replace(ONE, floor=0, limit_overrides=True), {"limit_overrides": False}),
    ],
    "ceiling": [(ONE, {"ceiling": 500}), (replace(ONE, ceiling=400), {"ceiling": None})],
    "debt": [(ONE, {"debt": 50}), (replace(ONE, debt=50), {"debt": 0})],
    "max_shards": [(PLAIN, {"max_shards": 2}), (replace(PLAIN, max_shards=2), {"max_shards": 64})],
    "path": [(PLAIN, {"path": "/c/{id}"})],
    "notify": [(ONE, {"notify": Notify(at=(5,))}), (replace(ONE, notify=Notify(at=(5,))), {"notify": None})],
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
    "floor": [(PLAIN, {"floor": 0, "max_shards": 0}), (ONE, {"floor": None, "max_shards": 0})],
    "ceiling": [(PLAIN, {"ceiling": 9, "max_shards": 0})],
    "numbered": [
        (replace(PLAIN, delta=1), {"numbered": True, "max_shards": 0}),
        (STEPS, {"numbered": True}), (replace(STEPS, numbered=True), {"numbered": False}),
    ],
    "max_shards": [(PLAIN, {"max_shards": 1}), (replace(PLAIN, max_shards=1), {"max_shards": 2})],
    "pages": [(PLAIN, {"pages": True})],
    "child": [(PLAIN, {"child": "LIKE#USER#"}), (CHILDREN, {"child": "FAN#USER#"}), (CHILDREN, {"child": None})],
    "period": [(PLAIN, {"period": "day"}), (DAILY, {"period": "hour"}), (UNKEPT, {"period": None})],
    "keep_periods": [(DAILY, {"keep_periods": 10}), (DAILY, {"keep_periods": None})],
    "timezone": [(DAILY, {"timezone": "Europe/Paris"})],
    "items": [(PLAIN, {"items": Items("shop"), "visible": "soon"}), (ITEMS, {"items": None})],
}  # fmt: skip


def why(was: Counter, *now: Counter) -> list[str]:
    found = forms.refused({was.name: forms.form(was)}, declared(now))
    return [str(one) for one in found]


def cases(changes: dict[str, list[Change]]) -> list[Any]:
    return [pytest.param(*change, id=f"{field} {change[1]}") for field, some in changes.items() for change in some]


def test_a_change_of_each_field_is_judged() -> None:
    """One that is new has to be listed above, with what was seen. What a number of items stands for is noted with their
    scan (team/scan_state.py)."""
    assert {one.name for one in fields(Counter)} == FITTING.keys() | REFUSED.keys() | {"items"}


@pytest.mark.parametrize(("was", "change"), cases(FITTING))
def test_fields_outside_the_schema_fingerprint_may_change(was: Counter, change: dict[str, Any]) -> None:
    assert why(was, replace(was, **change)) == []


@pytest.mark.parametrize(("was", "change"), cases(REFUSED))
def test_a_changed_schema_fingerprint_is_refused_with_the_counter_and_what_to_do(
    was: Counter, change: dict[str, Any]
) -> None:
    now = replace(was, **change)
    assert why(was, now)
    with pytest.raises(
        ConfigurationError, match=r"counter 'c' has counted .*: take that back, or declare a new counter"
    ):
        forms.check({was.name: forms.form(was)}, declared([now]))


def test_fields_that_a_scan_recounts_by_may_change() -> None:
    for change in ({"items": Items("crates")}, {"prefix": "D"}, {"name": "d"}):
        assert why(ITEMS, replace(ITEMS, **change)) == []
    assert why(ITEMS, Counter("d", prefix="D", sort_key="N", attribute="n")) == []


def test_two_counters_that_swap_their_keys_are_both_refused() -> None:
    other = Counter("d", prefix="D", sort_key="N", attribute="n")
    stored = {one.name: forms.form(one) for one in (PLAIN, other)}
    found = forms.refused(stored, declared([replace(PLAIN, prefix="D"), replace(other, prefix="C")]))
    assert {one.counter for one in found if one.booked} == {"c", "d"}


def test_an_undeclared_counter_keeps_its_keys() -> None:
    elsewhere = Counter("d", prefix="D", sort_key="N", attribute="n")
    assert why(PLAIN, elsewhere) == []
    assert why(PLAIN, elsewhere, PLAIN) == [], "and it may come back as it was"
    assert why(PLAIN, replace(elsewhere, prefix="C", sort_key="CHILDREN", child="N#USER#")) == []
    [clash] = why(replace(PLAIN, sort_key="N#USER#X"), replace(elsewhere, prefix="C", sort_key="M", child="N#USER#"))
    assert "'c' has counted and is not declared any more, but counter 'c': sort_key 'N#USER#X'" in clash
