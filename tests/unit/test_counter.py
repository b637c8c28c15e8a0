"""A declaration is checked when it is made. The keys of a tally's items follow from the declaration."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import counters
from tally.counter import (
    AMOUNT_MAX,
    COUNTERS_PER_TABLE_MAX,
    KEEP_PERIODS_MAX,
    MAX_SHARDS_LIMIT,
    WATCHED_MAX,
    Counter,
    Watched,
    declared,
)
from tally.errors import ConfigurationError
from tally.items import Items
from tally.notify import Notify

MINIMAL: dict[str, Any] = {"name": "stock", "prefix": "ITEM", "sort_key": "STOCK", "attribute": "qty"}


def declare(**fields: Any) -> Counter:
    return Counter(**(MINIMAL | fields))


INVALID_VALUES: list[tuple[str, list[Any], str]] = [  # a field, invalid values, a part of the message
    ("name", ["", "Stock", "stock#1", "s" * 33, "stock\n", 7], "must have the form"),
    ("prefix", ["item", "ITEM#", "1TEM", "", "I" * 17], "must have the form"),
    ("prefix", ["HEARTBEAT"], "prefix of Tally itself"),
    ("sort_key", ["STOCK#1", "STOCK#", "#STOCK", "stock", None], "must have the form"),
    ("attribute", ["my-qty", "1qty"], "must have the form"),
    ("attribute", ["PK", "SK", "at", "nonce", "version", "expiration", "gone", "removal"], "attribute of Tally itself"),
    ("child", ["LIKE", ""], "must have the form"),
    ("path", ["", "/", "stock/{id}", "/stock", "/{id}/{id}", "/stock-{id}", "/Stock/{id}", "/{id}/", "//{id}",
              "/{counter}/{id}", "/stock/{id}?", "/stock/{id}\n", 1], "must have the form"),
    ("visible", ["later", None], "must be one of: now, soon"),
    ("changes", ["everyone", None], "must be one of: anyone, caller, service"),
    ("read", ["caller", True], "must be one of: anyone, service"),
    ("lists", ["caller", True], "must be one of: anyone, service"),
    ("lists", ["anyone"], "needs read='anyone'"),
    ("numbered", ["yes"], "must be True or False"),
    ("limit_overrides", [1], "must be True or False"),
    ("limit_overrides", [True], "needs a floor or a ceiling"),
    ("numbered", [True], "needs a delta"),
    ("pages", [None], "must be True or False"),
    ("retired", [1], "must be True or False"),
    ("delta", [0], "would never change anything"),
    ("delta", [1.0, True, AMOUNT_MAX + 1], "whole number"),
    ("start", ["0", None, -AMOUNT_MAX - 1], "whole number"),
    ("floor", [0.5, False], "whole number"),
    ("floor", [1], "is above start, which is 0"),
    ("ceiling", ["100"], "whole number"),
    ("ceiling", [-1], "is below start, which is 0"),
    ("debt", [-1, None, True, 0.5], "whole number from 0 to"),
    ("debt", [1], "goes with holds"),
    ("max_shards", [-1, MAX_SHARDS_LIMIT + 1, True, False, 2.0], "whole number from 1 to"),
    ("receipt_days", [0, 366, True, 1.5], "whole number from 1 to 365"),
    ("max_age_s", [5], "needs read='anyone'"),
    ("period", ["fortnight", ""], "must be one of: minute, hour, day, week, month, year"),
    ("keep_periods", [3], "goes with a period"),
    ("timezone", ["Europe/Paris"], "goes with a period"),
    ("unique", ["yes"], "must be True or False"),
    ("unique", [True], "needs a period, one of: day, week, month, year"),
    ("items", ["shop", {"table": "shop"}], "must be Items("),
    ("notify", [(80,), {"at": 1}], "must be Notify("),
]  # fmt: skip
UNIQUE = {"unique": True, "period": "day"}
CONDITIONAL: list[dict[str, Any]] = [{"floor": 0}, {"ceiling": 9}, {"start": 9}, {"numbered": True, "delta": 1}]
INVALID_TOGETHER: list[tuple[str, dict[str, Any], str]] = [  # the wrong field, all fields, a part of the message
    (
        "limit_overrides",
        {"limit_overrides": True, "floor": 0, "delta": -1, "numbered": True},
        "neither numbered nor pages",
    ),
    ("limit_overrides", {"limit_overrides": True, "ceiling": 9, "pages": True}, "neither numbered nor pages"),
    ("floor", {"floor": 11, "start": 10}, "is above start, which is 10"),
    ("ceiling", {"ceiling": 9, "start": 10}, "is below start, which is 10"),
    ("debt", {"debt": 5, "floor": 0, "delta": -1}, "one limit and no delta"),
    *(("debt", {"debt": 5, "floor": 0, "changes": by}, "needs changes='service'") for by in ("anyone", "caller")),
    *(("visible", {"visible": "soon", **fields}, "changes depend on the number") for fields in CONDITIONAL),
    *(("max_shards", {"max_shards": 2, **fields}, "must be 1") for fields in CONDITIONAL),
    *(("max_age_s", {"max_age_s": age, "read": "anyone"}, "from 0 to 86400") for age in (-1, 86401, True, 5.0)),
    *(
        ("changes", {"child": "LIKE#", "changes": changes}, "its child must end with USER#")
        for changes in ("anyone", "caller")
    ),
    ("path", {"path": "/visits/{id}", "pages": True}, "not part of a path"),
    ("max_shards", {"child": "A#", "max_shards": 65}, "at most 64: they are removed in one transaction"),
    ("visible", {"child": "A#", "visible": "soon"}, "its tally move in one transaction"),
    *(
        (field, {"child": "A#", field: value}, "it counts the items A#")
        for field, value in (("delta", 1), ("start", 3), ("floor", 0), ("ceiling", 9))
    ),
    ("period", {"period": "day", "numbered": True, "delta": 1}, "for one tally for good"),
    ("period", {"period": "day", "child": "CALL#"}, "for one tally for good"),
    *(
        ("keep_periods", {"keep_periods": keep, "period": "day"}, "whole number from 1 to")
        for keep in (0, KEEP_PERIODS_MAX + 1, True)
    ),
    *(("unique", {"unique": True, "period": period}, "needs a period, one of") for period in ("minute", "hour")),
    *(("delta", {**UNIQUE, "delta": delta}, "must be 1: a visitor counts as 1") for delta in (-1, 2)),
    *(
        (field, {**UNIQUE, field: value}, "only services add its visitors")
        for field, value in (("start", 5), ("floor", 0), ("receipt_days", 9), ("changes", "anyone"))
    ),
    ("unique", {**UNIQUE, "child": "A#"}, "visitors or items, not both"),
    ("debt", {**UNIQUE, "ceiling": 9, "debt": 1}, "one limit and no delta"),
    *(("timezone", {"timezone": "Europe/Paris", "period": period}, "local time") for period in ("hour", "minute")),
    *(
        ("timezone", {"timezone": zone, "period": "day"}, "must be a name of the IANA database")
        for zone in ("Europe/Atlantis", "Europe", "/etc/localtime", 1, "")
    ),
]
SHOP_ITEMS = Items("shop")
NOT_WITH_ITEMS = [
    ("delta", 1), ("start", 3), ("floor", 0), ("ceiling", 9), ("numbered", True), ("child", "A#"), ("period", "day"),
    ("pages", True), ("receipt_days", 2), ("changes", "anyone"), ("retired", True), ("notify", Notify(every=5)),
]  # fmt: skip
INVALID_TOGETHER += [
    ("items", {"items": "shop"}, "must be Items(…)"),
    *((field, {"items": SHOP_ITEMS, field: value}, "it counts the items of shop") for field, value in NOT_WITH_ITEMS),
]
INVALID = [
    *((field, {field: value}, why) for field, values, why in INVALID_VALUES for value in values),
    *INVALID_TOGETHER,
]


@pytest.mark.parametrize(("field", "fields", "why"), INVALID)
def test_an_invalid_declaration_raises_an_error_with_counter_field_and_reason(
    field: str, fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        declare(**fields)
    name = (MINIMAL | fields)["name"]
    value = (MINIMAL | fields).get(field)
    assert caught.value.detail.startswith(f"counter {name!r}: {field} is {value!r}, but ")
    assert why in caught.value.detail


def test_a_visitor_counts_as_1_and_takes_part_in_no_batch_and_no_hold() -> None:
    seats = declare(**UNIQUE, ceiling=25)
    assert (seats.delta, seats.is_batchable, seats.takes_holds, seats.may_be_set) == (1, False, False, False)
    assert dataclasses.replace(seats) == seats, "an explicit delta=1 declares the same counter"


def test_the_number_of_a_period_cannot_be_set() -> None:
    """A caller who sets a number names the version that the caller read. The next day's tally may have it, too."""
    plain, daily = declare(floor=0), declare(floor=0, period="day")
    assert (plain.may_be_set, plain.takes_holds) == (True, True)
    assert (daily.may_be_set, daily.takes_holds, daily.has_version) == (False, True, True)


def test_only_items_move_a_counter_of_items() -> None:
    of_items = declare(items=SHOP_ITEMS)
    assert of_items.visible == "soon"
    assert (of_items.is_batchable, of_items.may_roll_up, of_items.takes_holds, of_items.may_be_set) == (False,) * 4


def test_the_digest_of_a_counter_of_items_depends_on_the_items_and_on_where_the_number_is_stored() -> None:
    changes: list[dict[str, Any]] = [
        {"prefix": "OTHER"}, {"sort_key": "OTHER"}, {"attribute": "other"},
        *({"items": dataclasses.replace(SHOP_ITEMS, **change)} for change in (
            {"table": "shop2"}, {"partition_key": "id"}, {"partition_prefix": "A"}, {"sort_key": "SK"},
            {"sort_key": "SK", "sort_prefix": "B"}, {"where": {"a": 1}}, {"where": {"a": True}}, {"where": {"a": "1"}},
            {"group_by": "a"}, {"amount": 2},
            {"amount": "a"}, {"amount": "a", "scale": 2},
        )),
    ]  # fmt: skip
    digests = [declare(**{"items": SHOP_ITEMS, **change}).items_digest for change in ({}, *changes)]
    assert len(set(digests)) == len(digests)
    assert declare(items=SHOP_ITEMS, read="anyone", max_shards=1, name="other").items_digest == digests[0]


def test_every_field_of_a_declaration_is_checked() -> None:
    assert {field for field, _, _ in INVALID} == {field.name for field in dataclasses.fields(Counter)}


@pytest.mark.parametrize("fields", [*CONDITIONAL, {"max_shards": 1}])
def test_a_conditional_counter_has_one_shard_and_a_counter_with_one_shard_has_a_version(fields: dict[str, Any]) -> None:
    counter = declare(**fields)
    assert counter.max_shards == 1
    assert counter.has_version
    assert counter.is_conditional is ("max_shards" not in fields)


@pytest.mark.parametrize(
    ("fields", "takes_holds"),
    [
        ({"floor": 0}, True),
        ({"floor": -10, "start": 5}, True),
        ({}, False),
        ({"ceiling": 10}, True),
        ({"ceiling": 10, "period": "day"}, True),
        ({"floor": 0, "ceiling": 10}, False),
        ({"floor": 0, "delta": -1}, False),
        ({"ceiling": 10, "delta": 1}, False),
        ({"floor": 0, "delta": -1, "numbered": True}, False),
    ],
)
def test_a_counter_takes_holds_if_it_has_one_limit_and_no_delta(fields: dict[str, Any], takes_holds: bool) -> None:
    assert declare(**fields).takes_holds is takes_holds


def test_holds_can_be_settled_after_the_counter_got_a_second_limit_or_a_delta_or_lost_its_limit() -> None:
    for fields in ({"floor": 0, "ceiling": 10}, {"floor": 0, "delta": -1}, {"max_shards": 1}, {**UNIQUE, "ceiling": 9}):
        assert declare(**fields).may_settle_holds, "such a counter may have had one limit and no delta"
    for fields in ({}, {"child": "LIKE#USER#", "max_shards": 1}, {"delta": 1, "numbered": True}):
        assert not declare(**fields).may_settle_holds, "a deploy refuses such a declaration for a counter with holds"


@pytest.mark.parametrize(("shard", "key"), [(0, "STOCK"), (1, "STOCK#1"), (15, "STOCK#15"), (255, "STOCK#255")])
def test_a_tally_has_a_partition_key_and_a_sort_key_for_each_shard(shard: int, key: str) -> None:
    counter = declare()
    assert counter.partition_start + "9f3a" == "ITEM#9f3a"
    assert counter.shard_key(shard) == key
    low, high = counter.shard_range
    assert low <= key <= high


@pytest.mark.parametrize("neighbour", ["META.BODY", "METAL", "META.", "LIKE#USER#7c20", "MET", "META#A", "META#:0"])
def test_a_read_of_a_tally_reads_none_of_the_items_beside_its_shards(neighbour: str) -> None:
    """The text of a post, at META.BODY, may have 10 KB, and a read of the tally must not pay for the text."""
    low, high = counters.LIKES.shard_range
    assert not low <= neighbour <= high


@given(
    st.from_regex(r"[A-Z][A-Z0-9.]{0,8}(#[A-Z][A-Z0-9.]{0,8})?", fullmatch=True), st.integers(0, MAX_SHARDS_LIMIT - 1)
)
def test_no_shard_of_a_counter_is_in_the_range_of_another_counter(other_sort_key: str, shard: int) -> None:
    counter = declare()
    if other_sort_key != counter.sort_key:
        low, high = counter.shard_range
        assert not low <= declare(sort_key=other_sort_key).shard_key(shard) <= high


@pytest.mark.parametrize(
    ("first_fields", "second_fields", "why"),
    [
        ({}, {"sort_key": "OTHER"}, "counter 'stock': name is declared twice"),
        ({}, {"name": "shelf", "attribute": "other"}, r"counter 'shelf': sort_key 'STOCK' .* is the key of 'stock'"),
        ({"path": "/a/{id}"}, {"name": "shelf", "sort_key": "SHELF", "path": "/a/{id}"},
         r"counter 'shelf': path '/a/\{id\}' is the path of 'stock'"),
    ],
)  # fmt: skip
def test_two_counters_with_one_name_one_key_or_one_path_are_refused(
    first_fields: dict[str, str], second_fields: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigurationError, match=why):
        declared([declare(**first_fields), declare(**second_fields)])


def test_a_counter_needs_four_fields_and_the_other_fields_have_defaults() -> None:
    counter = declare()
    assert (counter.visible, counter.changes, counter.read, counter.has_version) == ("now", "service", "service", False)
    assert (counter.lists, counter.listed, declare(read="anyone").listed) == ("service", False, False)
    assert not counter.public
    assert (declare(read="anyone").cache_s, declare(read="anyone", max_age_s=0).cache_s) == (1, 0)


@pytest.mark.parametrize("sort_key", ["META.BODY", "META.A", "LIKE#USER", "LIKE#USER#ALL"])
def test_a_counter_whose_key_lies_among_the_items_of_another_counter_is_refused_with_both_names(sort_key: str) -> None:
    likes = Counter("likes", prefix="POST", sort_key="META", attribute="likeTally", child="LIKE#USER#")
    other = Counter("other", prefix="POST", sort_key=sort_key, attribute="number")
    for pair in ([likes, other], [other, likes]):
        with pytest.raises(ConfigurationError, match=r"other.*likes"):
            declared(pair)


@pytest.mark.parametrize(("first_child", "second_child"), [("A#", "A#"), ("A#", "A#B#")])
def test_counters_that_would_count_one_item_twice_are_refused(first_child: str, second_child: str) -> None:
    first = declare(name="first", child=first_child)
    second = declare(name="second", sort_key="SECOND", child=second_child)
    for pair in ([first, second], [second, first]):
        with pytest.raises(ConfigurationError, match="both would count them"):
            declared(pair)
    elsewhere = declare(name="elsewhere", prefix="OTHER", child=second_child)
    assert list(declared([first, elsewhere])) == ["first", "elsewhere"]


_PART = st.sampled_from(["A", "B", "A.A"])
# The parts of a counter's sort key, and of its `child` (None: it has no child).
_KEYS = st.tuples(st.lists(_PART, min_size=1, max_size=2), st.none() | st.lists(_PART, min_size=1, max_size=2))


@given(st.lists(_KEYS, min_size=2, max_size=4, unique_by=lambda keys: tuple(keys[0])))
def test_counters_are_refused_if_and_only_if_the_keys_of_two_counters_overlap(keys: list[Any]) -> None:
    """`declared` looks up the starts of each counter's keys. This test compares the keys of each pair of counters.

    A counter with children also owns the keys that begin with its sort key and a dot, such as the text of a post.
    """
    family = [
        declare(name=f"c{number}", sort_key="#".join(sort_parts), child=child_parts and "#".join([*child_parts, ""]))
        for number, (sort_parts, child_parts) in enumerate(keys)
    ]
    is_free_of_overlaps = all(
        owner.child is None
        or not (
            f"{member.sort_key}#".startswith(owner.child)
            or member.sort_key.startswith(f"{owner.sort_key}.")
            or (member is not owner and (member.child or "").startswith(owner.child))
        )
        for owner in family
        for member in family
    )
    with contextlib.nullcontext() if is_free_of_overlaps else pytest.raises(ConfigurationError):
        assert list(declared(family)) == [member.name for member in family]


@pytest.mark.parametrize("children", [False, True])
def test_twice_as_many_counters_take_twice_the_work(children: bool) -> None:
    """Each cold start declares all counters. The test counts function calls, which are the same on every machine."""
    family = [
        declare(name=f"c{i}", sort_key=f"S{i:03}", child=f"K{i:03}#USER#" if children else None) for i in range(200)
    ]
    assert count_calls(lambda: declared(family)) < 2.2 * count_calls(lambda: declared(family[:100]))


def count_calls(work: Callable[[], object]) -> int:
    """Returns how many functions `work` calls, C functions included."""
    calls = 0

    def count_call(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count_call)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def test_a_table_has_at_most_as_many_counters_as_one_transaction_can_move() -> None:
    too_many = [
        Counter(f"c{number}", prefix=f"P{number}", sort_key="N", attribute="n", items=Items("shop", group_by="queue"))
        for number in range(COUNTERS_PER_TABLE_MAX + 1)
    ]
    assert len(declared(too_many[1:])) == COUNTERS_PER_TABLE_MAX
    message = f"'c{COUNTERS_PER_TABLE_MAX}': too many counters .* at most {COUNTERS_PER_TABLE_MAX} for a table"
    with pytest.raises(ConfigurationError, match=message):
        declared(too_many)


def test_team_numbers_may_have_names_that_begin_alike() -> None:
    """A prefix has only the first 15 letters and digits of a name. The sort key has a digest of the whole name."""
    like_items = Items("shop", partition_prefix="POST#", sort_key="SK", sort_prefix="LIKE#")
    names = ["customer_orders_open", "customer_orders_old", "post_likes", "postlikes"]
    watched = [Watched(name, table="shop", attribute="n", items=like_items, at="META") for name in names]
    assert list(declared(watched)) == names
    for name, items in (("x", "shop"), (None, like_items)):
        with pytest.raises(ConfigurationError, match=r"must be Items\(…\)"):
            Watched(name, table="shop", attribute="n", items=items, at="META")  # type: ignore[arg-type]


def test_a_table_may_have_fewer_team_numbers_than_counters() -> None:
    like_items = Items("shop", partition_prefix="POST#", sort_key="SK", sort_prefix="LIKE#")
    *watched, one_too_many = [
        Watched(f"w{number}", table="shop", attribute="n", items=like_items, at="META")
        for number in range(WATCHED_MAX + 1)
    ]
    assert len(declared(watched)) == WATCHED_MAX < COUNTERS_PER_TABLE_MAX
    plain = Counter("c", prefix="C", sort_key="N", attribute="n", items=like_items)
    assert len(declared([*watched, plain])) == WATCHED_MAX + 1
    other = dataclasses.replace(plain, name="d", prefix="D")
    for too_many in ([*watched, one_too_many], [*watched, plain, other]):
        with pytest.raises(ConfigurationError, match=f"too many counters .*, or {WATCHED_MAX} that `Watched` makes"):
            declared(too_many)


@pytest.mark.parametrize("attribute", ["recounted", "team_number"])
def test_an_attribute_that_scans_write_cannot_hold_the_number(attribute: str) -> None:
    with pytest.raises(ConfigurationError, match="is an attribute that scans write"):
        Counter("a", prefix="A", sort_key="N", attribute=attribute, items=Items("shop"))
    assert declare(attribute=attribute).attribute == attribute, "no scan writes to a counter that counts no items"


def test_all_counters_of_one_table_must_agree_on_heartbeats() -> None:
    """A counter that does not know of heartbeats would count them."""
    with_heartbeats = Counter("a", prefix="A", sort_key="N", attribute="n", items=Items("shop", heartbeats=True))
    other = Counter("b", prefix="B", sort_key="N", attribute="n", items=Items("shop"))
    with pytest.raises(ConfigurationError, match="'b': heartbeats is False, but must be the same in all counters"):
        declared([with_heartbeats, other])
    elsewhere = dataclasses.replace(other, items=Items("social"))
    assert list(declared([with_heartbeats, elsewhere])) == ["a", "b"]
