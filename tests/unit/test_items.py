"""What an item of a team's table counts for."""

from __future__ import annotations

from typing import Any

import pytest

from tally.errors import ConfigurationError
from tally.items import AmountError, Items, Value, id_of

ORDERS = Items("shop", starts="CUSTOMER#", sort="SK", sort_starts="ORDER#")
SPENT = Items("shop", amount="total", scale=2)


def order(**attributes: Any) -> dict[str, Any]:
    return {"PK": {"S": "CUSTOMER#ann"}, "SK": {"S": "ORDER#1"}, **attributes}


@pytest.mark.parametrize(
    ("where", "image", "counts"),
    [
        ({}, order(), True),
        ({}, order(PK={"S": "TICKET#1"}), False),
        ({}, order(SK={"S": "PROFILE"}), False),
        ({}, order(PK={"S": "CUSTOMER#"}), False),  # of no group
        ({}, order(PK={"S": "CUSTOMER#" + "x" * 129}), False),
        ({"status": "open"}, order(status={"S": "open"}), True),
        ({"status": "open"}, order(status={"S": "closed"}), False),
        ({"status": "open"}, order(), False),
        ({"status": "1"}, order(status={"N": "1"}), False),
        ({"rank": 1}, order(rank={"N": "1.0"}), True),
        ({"rank": 1}, order(rank={"BOOL": True}), False),
        ({"rank": 1}, order(rank={"N": "x"}), False),
        ({"paid": True}, order(paid={"BOOL": True}), True),
        ({"paid": True}, order(paid={"N": "1"}), False),
        ({"paid": True, "status": "open"}, order(paid={"BOOL": True}), False),
        ({"paid": True}, order(paid="nothing of DynamoDB's"), False),
    ],
)
def test_which_items_count(where: Any, image: Any, counts: bool) -> None:
    of = Items("shop", starts="CUSTOMER#", sort="SK", sort_starts="ORDER#", where=where)
    assert of.value(image) == (Value("ann", 1) if counts else None)


@pytest.mark.parametrize(
    ("spelled", "amount"),
    [("12.5", 1250), ("12.50", 1250), ("-0.05", -5), ("1E+2", 10_000), ("1000000000000", 10**14), ("0", None)],
)
def test_an_amount_is_in_units_of_the_scale(spelled: str, amount: int | None) -> None:
    image = {"PK": {"S": "a"}, "total": {"N": spelled}}
    assert SPENT.value(image) == (Value("a", amount) if amount else None)


@pytest.mark.parametrize("total", [{"S": "12"}, {"N": "NaN?"}, {}, {"NULL": True}, None, "12"])
def test_what_is_no_number_counts_for_nothing(total: Any) -> None:
    assert SPENT.value({"PK": {"S": "a"}, "total": total}) is None
    assert SPENT.value({"PK": {"S": "a"}}) is None


@pytest.mark.parametrize(
    ("spelled", "why"),
    [
        ("12.505", "declare scale=3"),
        ("1E-7", "no scale has 7 decimals"),
        ("1E+13", "too large"),
        ("-1E+14", "too large"),
        (f"12.{'0' * 35}1", "no scale has 36 decimals"),
    ],
)
def test_what_cannot_be_added_up_exactly_is_an_error(spelled: str, why: str) -> None:
    with pytest.raises(AmountError, match=why):
        SPENT.value({"PK": {"S": "a"}, "total": {"N": spelled}})


@pytest.mark.parametrize(
    ("group", "id_"),
    [("ann", "ann"), ("hr desk", "hr~20desk"), ("a#b", "a~23b"), (".", "~2E"), ("..", "~2E~2E"), ("a.b", "a.b"),
     ("50%", "50~25"), ("~20", "~7E20"), ("é", "~C3~A9"), ("a/b", "a~2Fb"), ("a:b@c", "a:b@c")],
)  # fmt: skip
def test_a_group_has_an_id_that_leads_back_to_it(group: str, id_: str) -> None:
    assert id_of(group) == id_
    assert ORDERS.partition(id_) == f"CUSTOMER#{group}"


def test_an_attribute_may_say_the_group_and_a_number_is_one() -> None:
    of = Items("shop", starts="TICKET#", group="queue")
    assert of.value({"PK": {"S": "TICKET#1"}, "queue": {"S": "hr desk"}}) == Value("hr~20desk", 1)
    assert of.value({"PK": {"S": "TICKET#1"}}) is None
    assert Items("shop", key="id").value({"id": {"N": "7"}}) == Value("7", 1)
    assert Items("shop", key="id").value({"id": {"B": b"7"}}) is None


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"table": ""}, "must have a name"),
        ({"table": "counts"}, "is a table of Tally itself"),
        ({"table": "shop#1"}, "must have the form"),
        ({"key": ""}, "must have a name"),
        ({"starts": 1}, "must be text"),
        ({"sort_starts": "A"}, "goes with sort"),
        ({"where": {"a": 1.5}}, "a text, a whole number, True or False"),
        ({"amount": 0}, "other than 0"),
        ({"amount": True}, "other than 0"),
        ({"amount": 10**15}, "other than 0"),
        ({"scale": 1}, "goes with an attribute"),
        ({"scale": 7, "amount": "total"}, "from 0 to 6"),
    ],
)
def test_a_wrong_field_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Items(**{"table": "shop", **fields})
