"""Declarations are checked when they are made, and the message says which field of which counter and why."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import counters
from tally.counter import (
    AMOUNT_MAX,
    KEEP_PERIODS_MAX,
    MAX_SHARDS_DEFAULT,
    MAX_SHARDS_LIMIT,
    Counter,
    declared,
)
from tally.counting.tallies import fits
from tally.errors import ConfigurationError

GOOD: dict[str, Any] = {"name": "stock", "prefix": "ITEM", "sort_key": "STOCK", "attribute": "qty"}
LAMBDAS = Path(counters.__file__).parent


def declare(**fields: Any) -> Counter:
    return Counter(**(GOOD | fields))


WRONG = [
    ("name", {"name": ""}, "must have the form"),
    ("name", {"name": "Stock"}, "must have the form"),
    ("name", {"name": "stock#1"}, "must have the form"),
    ("name", {"name": "s" * 33}, "must have the form"),
    ("name", {"name": "stock\n"}, "must have the form"),
    ("name", {"name": 7}, "must have the form"),
    ("prefix", {"prefix": "item"}, "must have the form"),
    ("prefix", {"prefix": "ITEM#"}, "must have the form"),
    ("prefix", {"prefix": "1TEM"}, "must have the form"),
    ("prefix", {"prefix": ""}, "must have the form"),
    ("prefix", {"prefix": "I" * 17}, "must have the form"),
    ("sort_key", {"sort_key": "STOCK#1"}, "must have the form"),
    ("sort_key", {"sort_key": "STOCK#"}, "must have the form"),
    ("sort_key", {"sort_key": "#STOCK"}, "must have the form"),
    ("sort_key", {"sort_key": "stock"}, "must have the form"),
    ("sort_key", {"sort_key": None}, "must have the form"),
    ("attribute", {"attribute": "my-qty"}, "must have the form"),
    ("attribute", {"attribute": "1qty"}, "must have the form"),
    ("attribute", {"attribute": "PK"}, "attribute of Tally itself"),
    ("attribute", {"attribute": "SK"}, "attribute of Tally itself"),
    ("attribute", {"attribute": "at"}, "attribute of Tally itself"),
    ("attribute", {"attribute": "version"}, "attribute of Tally itself"),
    ("attribute", {"attribute": "expiration"}, "attribute of Tally itself"),
    ("attribute", {"attribute": "gone"}, "attribute of Tally itself"),
    ("prefix", {"prefix": "HEARTBEAT"}, "prefix of Tally itself"),
    ("visible", {"visible": "later"}, "must be one of: now, soon"),
    ("visible", {"visible": None}, "must be one of: now, soon"),
    ("numbered", {"numbered": "yes"}, "must be True or False"),
    ("numbered", {"numbered": 1, "delta": 1}, "must be True or False"),
    ("pages", {"pages": None}, "must be True or False"),
    ("retired", {"retired": 1}, "must be True or False"),
    ("delta", {"delta": 0}, "would never change anything"),
    ("delta", {"delta": 1.0}, "whole number"),
    ("delta", {"delta": True}, "whole number"),
    ("delta", {"delta": AMOUNT_MAX + 1}, "whole number"),
    ("start", {"start": "0"}, "whole number"),
    ("start", {"start": None}, "whole number"),
    ("start", {"start": -AMOUNT_MAX - 1}, "whole number"),
    ("floor", {"floor": 0.5}, "whole number"),
    ("floor", {"floor": False}, "whole number"),
    ("floor", {"floor": 1}, "is above start, which is 0"),
    ("floor", {"floor": 11, "start": 10}, "is above start, which is 10"),
    ("ceiling", {"ceiling": "100"}, "whole number"),
    ("ceiling", {"ceiling": -1}, "is below start, which is 0"),
    ("ceiling", {"ceiling": 9, "start": 10}, "is below start, which is 10"),
    ("numbered", {"numbered": True}, "needs a delta"),
    ("visible", {"numbered": True, "delta": 1, "visible": "soon"}, "a change sees the number"),
    ("max_shards", {"max_shards": -1}, "whole number from 1 to"),
    ("max_shards", {"max_shards": MAX_SHARDS_LIMIT + 1}, "whole number from 1 to"),
    ("max_shards", {"max_shards": True}, "whole number from 1 to"),
    ("max_shards", {"max_shards": False}, "whole number from 1 to"),
    ("max_shards", {"max_shards": 2.0}, "whole number from 1 to"),
    ("max_shards", {"max_shards": 2, "floor": 0}, "must be 1"),
    ("max_shards", {"max_shards": 2, "ceiling": 9}, "must be 1"),
    ("max_shards", {"max_shards": 2, "start": 9}, "must be 1"),
    ("max_shards", {"max_shards": 2, "numbered": True, "delta": 1}, "must be 1"),
    ("visible", {"visible": "soon", "floor": 0}, "a change sees the number"),
    ("visible", {"visible": "soon", "ceiling": 9}, "a change sees the number"),
    ("visible", {"visible": "soon", "start": 9}, "a change sees the number"),
    ("receipt_days", {"receipt_days": 0}, "whole number from 1 to 365"),
    ("receipt_days", {"receipt_days": 366}, "whole number from 1 to 365"),
    ("receipt_days", {"receipt_days": True}, "whole number from 1 to 365"),
    ("receipt_days", {"receipt_days": 1.5}, "whole number from 1 to 365"),
    ("changes", {"changes": "everyone"}, "must be one of: anyone, caller, service"),
    ("changes", {"changes": None}, "must be one of: anyone, caller, service"),
    ("changes", {"child": "LIKE#USER#", "changes": "anyone"}, "a caller or a service gives it"),
    ("changes", {"child": "LIKE#", "changes": "caller"}, "its child must end with USER#"),
    ("read", {"read": "caller"}, "must be one of: anyone, service"),
    ("read", {"read": True}, "must be one of: anyone, service"),
    *(
        ("path", {"path": path}, "must have the form")
        for path in (
            "",
            "/",
            "stock/{id}",
            "/stock",
            "/{id}/{id}",
            "/stock-{id}",
            "/Stock/{id}",
            "/{id}/",
            "//{id}",
            "/{counter}/{id}",
            "/stock/{id}?",
            "/stock/{id}\n",
            1,
        )
    ),
    ("path", {"path": "/visits/{id}", "pages": True}, "no part of a path"),
    ("max_age_s", {"max_age_s": -1, "read": "anyone"}, "whole number from 0 to 86400"),
    ("max_age_s", {"max_age_s": 86401, "read": "anyone"}, "whole number from 0 to 86400"),
    ("max_age_s", {"max_age_s": True, "read": "anyone"}, "whole number from 0 to 86400"),
    ("max_age_s", {"max_age_s": 5.0, "read": "anyone"}, "whole number from 0 to 86400"),
    ("max_age_s", {"max_age_s": 5}, "needs read='anyone'"),
    ("child", {"child": "LIKE"}, "must have the form"),
    ("child", {"child": ""}, "must have the form"),
    ("max_shards", {"child": "A#", "max_shards": 65}, "at most 64: they are removed in one transaction"),
    ("visible", {"child": "A#", "visible": "soon"}, "with its tally in one transaction"),
    ("delta", {"child": "A#", "delta": 1}, "its number is that of the items A#"),
    ("start", {"child": "A#", "start": 3}, "its number is that of the items A#"),
    ("floor", {"child": "A#", "floor": 0}, "its number is that of the items A#"),
    ("ceiling", {"child": "A#", "ceiling": 9}, "its number is that of the items A#"),
    ("delta", {"child": "A#", "numbered": True, "delta": 1}, "its number is that of the items A#"),
    ("period", {"period": "fortnight"}, "must be one of: minute, hour, day, week, month, year"),
    ("period", {"period": ""}, "must be one of"),
    ("period", {"period": "day", "numbered": True, "delta": 1}, "belongs to no period"),
    ("period", {"period": "day", "child": "CALL#"}, "belongs to no period"),
    ("keep_periods", {"keep_periods": 3}, "goes with a period"),
    ("keep_periods", {"keep_periods": 0, "period": "day"}, "whole number from 1 to"),
    ("keep_periods", {"keep_periods": KEEP_PERIODS_MAX + 1, "period": "day"}, "whole number from 1 to"),
    ("keep_periods", {"keep_periods": True, "period": "day"}, "whole number from 1 to"),
    ("timezone", {"timezone": "Europe/Paris"}, "goes with a period"),
    ("timezone", {"timezone": "Europe/Paris", "period": "hour"}, "in local time one may come twice"),
    ("timezone", {"timezone": "Europe/Paris", "period": "minute"}, "in local time one may come twice"),
    ("timezone", {"timezone": "Europe/Atlantis", "period": "day"}, "must be a name of the IANA database"),
    ("timezone", {"timezone": "Europe", "period": "day"}, "must be a name of the IANA database"),
    ("timezone", {"timezone": "/etc/localtime", "period": "day"}, "must be a name of the IANA database"),
    ("timezone", {"timezone": 1, "period": "day"}, "must be a name of the IANA database"),
    ("timezone", {"timezone": "", "period": "day"}, "must be a name of the IANA database"),
]


@pytest.mark.parametrize(("field", "fields", "why"), WRONG)
def test_a_wrong_declaration_says_which_field_of_which_counter_and_why(
    field: str, fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        declare(**fields)
    name = (GOOD | fields)["name"]
    value = (GOOD | fields).get(field)
    assert caught.value.detail.startswith(f"counter {name!r}: {field} is {value!r}, but ")
    assert why in caught.value.detail


def test_a_number_of_a_period_is_not_set_and_not_held() -> None:
    """A version of today's tally says nothing of tomorrow's, and a hold could be given back to another day."""
    plain, daily = declare(floor=0), declare(floor=0, period="day")
    assert (plain.settable, plain.may_have_holds) == (True, True)
    assert (daily.settable, daily.may_have_holds, daily.versioned) == (False, False, True)


def test_every_field_of_a_declaration_is_checked() -> None:
    assert {field for field, _, _ in WRONG} == {field.name for field in dataclasses.fields(Counter)}


def test_a_counter_is_declared_by_four_fields_and_is_exact_and_spread() -> None:
    counter = declare()
    assert (counter.visible, counter.delta, counter.start, counter.floor, counter.ceiling) == (
        "now", None, 0, None, None,
    )  # fmt: skip
    assert (counter.numbered, counter.max_shards, counter.pages) == (False, MAX_SHARDS_DEFAULT, False)
    assert (counter.changes, counter.read, counter.path, counter.parent_required) == ("service", "service", None, False)
    assert (counter.public, declare(read="anyone").kept_s, declare(read="anyone", max_age_s=0).kept_s) == (False, 1, 0)
    assert not counter.versioned


@pytest.mark.parametrize(
    "fields", [{"floor": 0}, {"ceiling": 5}, {"start": 3}, {"numbered": True, "delta": 1}, {"max_shards": 1}]
)
def test_a_counter_whose_number_decides_has_one_shard_and_a_version(fields: dict[str, Any]) -> None:
    counter = declare(**fields)
    assert counter.max_shards == 1
    assert counter.versioned
    assert counter.known is ("max_shards" not in fields)


@pytest.mark.parametrize(
    ("fields", "holdable"),
    [
        ({"floor": 0}, True),
        ({"floor": -10, "start": 5}, True),
        ({}, False),
        ({"ceiling": 10}, False),
        ({"floor": 0, "ceiling": 10}, False),
        ({"floor": 0, "delta": -1}, False),
        ({"floor": 0, "delta": -1, "numbered": True}, False),
    ],
)
def test_what_can_run_out_by_any_amount_can_be_held(fields: dict[str, Any], holdable: bool) -> None:
    assert declare(**fields).holdable is holdable


def test_a_ceiling_that_came_later_keeps_holds_alive() -> None:
    assert declare(floor=0, ceiling=10).may_have_holds
    assert not declare(floor=0, delta=-1).may_have_holds


@pytest.mark.parametrize(("shard", "key"), [(0, "STOCK"), (1, "STOCK#1"), (15, "STOCK#15"), (255, "STOCK#255")])
def test_the_keys_of_a_tally(shard: int, key: str) -> None:
    counter = declare()
    assert counter.partition_start + "9f3a" == "ITEM#9f3a"
    assert counter.shard_key(shard) == key
    low, high = counter.shard_range
    assert low <= key <= high


@pytest.mark.parametrize("neighbour", ["META.BODY", "METAL", "META.", "LIKE#USER#7c20", "MET", "META#A", "META#:0"])
def test_a_read_of_a_post_takes_in_the_shards_of_its_tally_alone(neighbour: str) -> None:
    """The text of a post may have 10 KB: a read of the tally must not pay for it."""
    low, high = counters.LIKES.shard_range
    assert not low <= neighbour <= high


@settings(derandomize=True, max_examples=100)
@given(
    st.from_regex(r"[A-Z][A-Z0-9.]{0,8}(#[A-Z][A-Z0-9.]{0,8})?", fullmatch=True), st.integers(0, MAX_SHARDS_LIMIT - 1)
)
def test_no_shard_of_a_counter_is_in_the_range_of_another_one(other: str, shard: int) -> None:
    counter = declare()
    if other != counter.sort_key:
        low, high = counter.shard_range
        assert not low <= declare(sort_key=other).shard_key(shard) <= high


@settings(derandomize=True, max_examples=100)
@given(st.integers(-20, 20), st.none() | st.integers(-20, 20), st.none() | st.integers(-20, 20))
def test_what_is_declared_starts_within_its_limits(start: int, floor: int | None, ceiling: int | None) -> None:
    try:
        counter = declare(start=start, floor=floor, ceiling=ceiling)
    except ConfigurationError:
        assert (floor is not None and start < floor) or (ceiling is not None and start > ceiling)
    else:
        assert fits(counter, counter.start)


def test_two_counters_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="counter 'stock': name is declared twice"):
        declared([declare(), declare(sort_key="OTHER")])


def test_two_counters_that_would_share_an_item_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="counter 'shelf': sort_key 'STOCK' of 'ITEM' is 'stock''s"):
        declared([declare(), declare(name="shelf", attribute="other")])


def test_two_counters_of_one_path_are_refused() -> None:
    path = "/shelves/{id}/stock"
    with pytest.raises(ConfigurationError, match=r"counter 'shelf': path '/shelves/\{id\}/stock' is 'stock''s"):
        declared([declare(path=path), declare(name="shelf", sort_key="SHELF", path=path)])


@pytest.mark.parametrize("path", ["/{id}", "/{id}/stock", "/a-1/{id}", "/videos/{id}/plays"])
def test_a_path_has_the_id_as_a_segment_of_its_own(path: str) -> None:
    assert declare(path=path).path == path


@pytest.mark.parametrize("changes", ["caller", "service"])
def test_a_caller_or_a_service_puts_children(changes: str) -> None:
    assert declare(child="LIKE#USER#", changes=changes).changes == changes


def test_two_counters_of_one_prefix_are_two() -> None:
    assert list(declared([declare(), declare(name="shelf", sort_key="SHELF")])) == ["stock", "shelf"]


def test_the_shipped_counters_are_what_the_design_says() -> None:
    shipped = counters.COUNTERS
    assert {"plays", "likes", "visits", "usage", "stock", "contest", "ticket"} <= shipped.keys()
    assert (shipped["usage"].delta, shipped["usage"].max_shards) == (None, 16)
    assert (shipped["stock"].floor, shipped["stock"].holdable) == (0, True)
    contest = shipped["contest"]
    assert (contest.delta, contest.floor, contest.numbered) == (-1, 0, True)
    assert contest.start > 0
    assert (shipped["ticket"].delta, shipped["ticket"].numbered, shipped["ticket"].start) == (1, True, 0)
    assert {name for name, counter in shipped.items() if counter.holdable} == {"stock"}
    assert {name: (one.visible, one.changes, one.read, one.path) for name, one in shipped.items() if one.public} == {
        "plays": ("now", "anyone", "anyone", "/videos/{id}/plays"),
        "likes": ("now", "caller", "anyone", "/posts/{id}/like"),
        "visits": ("soon", "anyone", "anyone", None),
        "bot_visits": ("soon", "anyone", "anyone", None),
        "hearts": ("now", "caller", "anyone", None),
    }
    assert {name for name, counter in shipped.items() if counter.pages} == {"visits", "bot_visits"}
    assert {name for name, counter in shipped.items() if counter.parent_required} == {"likes"}
    assert dataclasses.replace(counters.LIKES, retired=True).parent_required


def test_a_counter_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        counters.STOCK.floor = -1  # type: ignore[misc]


def test_a_deployment_with_a_wrong_declaration_does_not_start(tmp_path: Path) -> None:
    text = (LAMBDAS / "counters.py").read_text().replace("floor=0)", "floor=1)", 1)
    assert "floor=1)" in text
    (tmp_path / "counters.py").write_text(text)
    path = f"{tmp_path}:{LAMBDAS}"
    ran = subprocess.run(
        [sys.executable, "-c", "import counters"], env={"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert ran.returncode != 0
    assert "ConfigurationError: counter 'stock': floor is 1, but is above start, which is 0" in ran.stderr


def test_the_declarations_are_what_handlers_import() -> None:
    for name in ("increments", "holds", "likes", "sweep", "rollup", "drift"):
        assert importlib.import_module(f"functions.{name}").counters is counters


@pytest.mark.parametrize("sort_key", ["META.BODY", "META.A", "LIKE#USER", "LIKE#USER#ALL"])
def test_counter_among_what_belongs_to_another_is_refused_by_name(sort_key: str) -> None:
    likes = Counter("likes", prefix="POST", sort_key="META", attribute="likeTally", child="LIKE#USER#")
    other = Counter("other", prefix="POST", sort_key=sort_key, attribute="number")
    for both in ([likes, other], [other, likes]):
        with pytest.raises(ConfigurationError, match=r"other.*likes"):
            declared(both)


@pytest.mark.parametrize(("one", "other"), [("A#", "A#"), ("A#", "A#B#")])
def test_counters_that_would_count_one_item_twice_are_refused(one: str, other: str) -> None:
    first = declare(name="first", child=one)
    for second in (declare(name="second", sort_key="SECOND", child=other),):
        for both in ([first, second], [second, first]):
            with pytest.raises(ConfigurationError, match="one item would be counted twice"):
                declared(both)
    elsewhere = declare(name="elsewhere", prefix="OTHER", child=other)
    assert list(declared([first, elsewhere])) == ["first", "elsewhere"]


@pytest.mark.parametrize(("child", "users"), [("LIKE#USER#", True), ("USER#", True), ("SUPERUSER#", False)])
def test_children_are_users_if_their_key_says_so(child: str, users: bool) -> None:
    assert declare(child=child).counts_users is users


@pytest.mark.parametrize("sort_key", ["METAL", "LIKE", "LIKES", "VIEWS"])
def test_counter_beside_one_with_children_is_taken(sort_key: str) -> None:
    likes = Counter("likes", prefix="POST", sort_key="META", attribute="likeTally", child="LIKE#USER#")
    other = Counter("other", prefix="POST", sort_key=sort_key, attribute="number")
    assert list(declared([likes, other])) == ["likes", "other"]
