"""Tests which items of a team's table a counter counts, and the group and the amount of each item."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tally.errors import ConfigurationError
from tally.ids import encode_id
from tally.items import (
    FAULT_KINDS,
    GROUP_ID_CHARACTERS_MAX,
    RESERVED_GROUP_PREFIX,
    TEAM_NUMBERS_GROUP,
    Contribution,
    Fault,
    Items,
    Watch,
)

ORDERS = Items("shop", partition_prefix="CUSTOMER#", sort_key="SK", sort_prefix="ORDER#")
TOTALS = Items("shop", amount="total", scale=2)
WATCH = Watch("orders", at="PROFILE")


def order(**attributes: Any) -> dict[str, Any]:
    return {"PK": {"S": "CUSTOMER#ann"}, "SK": {"S": "ORDER#1"}, **attributes}


@pytest.mark.parametrize(
    ("where", "image", "is_counted"),
    [
        ({}, order(), True),
        ({}, order(PK={"S": "TICKET#1"}), False),
        ({}, order(SK={"S": "PROFILE"}), False),
        ({"status": "open"}, order(status={"S": "open"}), True),
        ({"status": "open"}, order(status={"S": "closed"}), False),
        ({"status": "open"}, order(), False),
        ({"rank": 1}, order(rank={"N": "1.0"}), True),
        ({"rank": 1}, order(rank={"BOOL": True}), False),
        ({"rank": 1}, order(rank={"N": "x"}), False),
        ({"paid": True}, order(paid={"BOOL": True}), True),
        ({"paid": True}, order(paid={"N": "1"}), False),
        ({"paid": True, "status": "open"}, order(paid={"BOOL": True}), False),
        ({"paid": True}, order(paid="not in wire form"), False),
    ],
)
def test_only_items_that_the_declaration_selects_count(where: Any, image: Any, is_counted: bool) -> None:
    items = Items("shop", partition_prefix="CUSTOMER#", sort_key="SK", sort_prefix="ORDER#", where=where)
    assert items.contribution(image) == (Contribution("ann", 1) if is_counted else None)


@pytest.mark.parametrize(
    ("stored", "amount"),
    [("12.5", 1250), ("12.50", 1250), ("-0.05", -5), ("1E+2", 10_000), ("1000000000000", 10**14), ("0", None)],
)
def test_an_amount_is_counted_in_units_of_its_scale_and_0_is_not_counted(stored: str, amount: int | None) -> None:
    image = {"PK": {"S": "a"}, "total": {"N": stored}}
    assert TOTALS.contribution(image) == (Contribution("a", amount) if amount else None)


@pytest.mark.parametrize("value", [{"NULL": True}, {"L": []}, {"B": "eA=="}, {"BOOL": False}])
def test_an_empty_text_in_where_does_not_match_null_lists_bytes_or_false(value: Any) -> None:
    items = Items("shop", partition_prefix="CUSTOMER#", where={"closed": ""})
    assert items.contribution_or_fault(order(closed=value)) is None
    assert items.contribution_or_fault(order(closed={"S": ""})) == Contribution("ann", 1)


@pytest.mark.parametrize("total", [{}, {"NULL": True}, None])
def test_an_item_without_its_amount_does_not_count(total: Any) -> None:
    assert TOTALS.contribution({"PK": {"S": "a"}, "total": total}) is None
    assert TOTALS.contribution({"PK": {"S": "a"}}) is None


@pytest.mark.parametrize(
    ("total", "kind", "why"),
    [
        ({"N": "12.505"}, "decimals", "declare scale=3"),
        ({"N": "1E-7"}, "decimals", "no scale has 7 decimals"),
        ({"N": "1E+13"}, "large", "too large"),
        ({"N": "-1E+14"}, "large", "too large"),
        ({"N": f"12.{'0' * 35}1"}, "decimals", "no scale has 36 decimals"),
        ({"S": "12"}, "amount", "total is {'S': '12'}, and not a number"),
        ({"NS": ["1"]}, "amount", "not a number"),
        ({"N": "NaN?"}, "amount", "not a number"),
        ("12", "amount", "not a number"),
    ],
)
def test_an_amount_that_cannot_be_added_is_a_fault(total: Any, kind: str, why: str) -> None:
    image = {"PK": {"S": "a"}, "total": total}
    result = TOTALS.contribution_or_fault(image)
    assert isinstance(result, Fault)
    assert (result.kind, why in result.why) == (kind, True)
    assert TOTALS.contribution(image) == Contribution(f"{RESERVED_GROUP_PREFIX}{kind}", 1)


@pytest.mark.parametrize(
    ("fields", "image", "kind"),
    [
        ({"where": {"status": "1"}}, order(status={"N": "1"}), "type"),
        ({"where": {"rank": 1}}, order(rank={"S": "1"}), "type"),
        ({"where": {"done": True}}, order(done={"S": "True"}), "type"),
        ({"where": {"done": True}}, order(done={"BOOL": False}), None),
        ({"where": {"status": "open"}}, order(status={"S": "Open"}), None),
        ({"where": {"status": "true"}}, order(status={"BOOL": True}), "type"),
        ({"group_by": "queue"}, order(queue={"SS": ["it"]}), "group"),
        ({"group_by": "queue"}, order(queue={"S": "x" * 129}), "group"),
        ({"group_by": "queue"}, order(queue={"S": ""}), "group"),
        ({"group_by": "queue"}, order(queue={"NULL": True}), None),
        ({}, order(PK={"S": "CUSTOMER#" + "x" * 129}), "group"),
        ({}, order(PK={"S": "CUSTOMER#"}), "group"),
        ({"watch": WATCH}, order(SK={"S": "PROFILE"}, orders={"N": "1.5"}), "unreadable"),
        ({"watch": WATCH}, order(SK={"S": "PROFILE"}), None),
        ({"watch": WATCH}, order(SK={"S": "OTHER"}, orders={"N": "1.5"}), None),
        ({"watch": WATCH}, {"PK": {"S": "B#1"}, "SK": {"S": "PROFILE"}, "orders": {"N": "1.5"}}, None),
    ],
)
def test_a_fault_has_a_kind_and_a_missing_attribute_is_not_a_fault(fields: Any, image: Any, kind: str | None) -> None:
    items = Items("shop", partition_prefix="CUSTOMER#", sort_key="SK", sort_prefix="ORDER#", **fields)
    assert items.contribution(image) == (Contribution(f"{RESERVED_GROUP_PREFIX}{kind}", 1) if kind else None)
    assert kind is None or kind in FAULT_KINDS


@pytest.mark.parametrize(
    ("group", "id_"),
    [("ann", "ann"), ("hr desk", "hr~20desk"), ("a#b", "a~23b"), (".", "~2E"), ("..", "~2E~2E"), ("a.b", "a.b"),
     ("50%", "50~25"), ("~20", "~7E20"), ("é", "~C3~A9"), ("a/b", "a~2Fb"), ("a:b@c", "a:b@c")],
)  # fmt: skip
def test_the_id_of_a_group_decodes_to_its_partition_key(group: str, id_: str) -> None:
    assert encode_id(group) == id_
    assert ORDERS.partition_key_of(id_) == f"CUSTOMER#{group}"


def test_the_group_is_an_attribute_with_a_text_a_number_or_a_boolean() -> None:
    items = Items("shop", partition_prefix="TICKET#", group_by="queue")
    assert items.contribution({"PK": {"S": "TICKET#1"}, "queue": {"S": "hr desk"}}) == Contribution("hr~20desk", 1)
    assert items.contribution({"PK": {"S": "TICKET#1"}}) is None
    assert Items("shop", partition_key="id").contribution({"id": {"N": "7"}}) == Contribution("7", 1)
    assert Items("shop", partition_key="id").contribution({"id": {"B": b"7"}}) is None
    todos = Items("todos", partition_key="id", group_by="done")
    assert [todos.contribution({"id": {"S": "7"}, "done": {"BOOL": value}}) for value in (True, False)] == [
        Contribution("true", 1), Contribution("false", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("character", ["x", "é", "返", "😀"])
def test_the_length_limit_of_a_group_is_in_characters_before_encoding(character: str) -> None:
    items = Items("shop", partition_prefix="TICKET#", group_by="queue")
    group_fault = Contribution(f"{RESERVED_GROUP_PREFIX}group", 1)
    for length in (128, 129):
        value = items.contribution({"PK": {"S": "TICKET#1"}, "queue": {"S": character * length}})
        assert value == (Contribution(encode_id(character * 128), 1) if length == 128 else group_fault)
    assert len(encode_id(character * 128)) <= GROUP_ID_CHARACTERS_MAX


def test_the_item_with_the_team_number_counts_only_in_the_group_of_team_numbers() -> None:
    items = Items(
        "shop", partition_prefix="CUSTOMER#", sort_key="SK", amount="total", watch=Watch("total", at="PROFILE")
    )
    profile = order(SK={"S": "PROFILE"}, total={"N": "3"})
    assert items.team_number(profile) == Contribution("ann", 3)
    assert items.contribution(profile) == Contribution(TEAM_NUMBERS_GROUP, 1)
    assert items.team_number(order(total={"N": "3"})) is None
    assert items.contribution(order(total={"N": "3"})) == Contribution("ann", 3)
    assert items.contribution(order(SK={"S": "PROFILE"})) is None


def test_a_watch_without_the_sort_key_of_its_item_is_invalid() -> None:
    for at in ("", None, 7):
        with pytest.raises(
            ConfigurationError, match=r"watch: at is .*, but must be the sort key of the item that has n"
        ):
            Watch("n", at=at)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="sort_key is None, but must name the sort key"):
        Items("shop", watch=Watch("total", at="PROFILE"))


@pytest.mark.parametrize(
    ("fields", "keeps_digest"),
    [
        ({"watch": Watch("n", "META", within_s=120)}, True),
        ({"watch": Watch("n", "META", same_transaction=True)}, True),
        ({"heartbeats": True}, True),
        ({"heartbeats": True, "partition_prefix": ""}, False),  # heartbeats match this prefix, and are not counted
        ({"heartbeats": True, "partition_prefix": "HEART"}, False),
        ({"heartbeats": True, "partition_prefix": "HEARTBEAT#1"}, False),
        ({"watch": Watch("m", "META")}, False),
        ({"watch": Watch("n", "PROFILE")}, False),
        ({"watch": None}, False),
        ({"where": {"a": 1}}, False),
    ],
)
def test_the_digest_depends_only_on_what_can_change_the_count(fields: Any, keeps_digest: bool) -> None:
    items = Items("shop", partition_prefix="POST#", sort_key="SK", sort_prefix="LIKE#", watch=Watch("n", "META"))
    # The prefix alone changes the digest, too, so `before` has the new prefix.
    before = replace(items, **{name: value for name, value in fields.items() if name == "partition_prefix"})
    assert (replace(items, **fields).digest_fields == before.digest_fields) is keeps_digest


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"table": ""}, "must have a name"),
        ({"table": "counts"}, "is a table of Tally itself"),
        ({"table": "shop#1"}, "must have the form"),
        ({"partition_key": ""}, "must have a name"),
        ({"partition_prefix": 1}, "must be text"),
        ({"sort_prefix": "A"}, "goes with sort_key"),
        ({"where": {"a": 1.5}}, "a text, a whole number, True or False for"),
        ({"amount": 0}, "other than 0"),
        ({"amount": True}, "other than 0"),
        ({"amount": 10**15}, "other than 0"),
        ({"amount": ""}, "other than 0"),
        ({"where": {"": "x"}}, "where is .* for each name of an attribute"),
        ({"where": {1: "x"}}, "where is .* for each name of an attribute"),
        *(
            ({name: invalid}, f"{name} is .* the name of an attribute")
            for name in ("sort_key", "group_by")
            for invalid in ("", 5)
        ),
        ({"sort_key": "PK"}, "is the partition key"),
        ({"scale": 1}, "goes with an attribute"),
        ({"scale": 7, "amount": "total"}, "from 0 to 6"),
    ],
)
def test_a_wrong_field_raises_an_error_that_says_why(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Items(**{"table": "shop", **fields})
