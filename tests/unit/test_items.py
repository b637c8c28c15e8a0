"""What an item of a team's table counts for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tally.errors import ConfigurationError
from tally.ids import quoted as id_of
from tally.items import ASIDE, GROUP_ID_CHARACTERS_MAX, KINDS, NUMBERS, Contribution, Fault, Items, Watch

ORDERS = Items("shop", partition_prefix="CUSTOMER#", sort_key="SK", sort_prefix="ORDER#")
SPENT = Items("shop", amount="total", scale=2)
KEPT = Watch("kept", at="PROFILE")


def order(**attributes: Any) -> dict[str, Any]:
    return {"PK": {"S": "CUSTOMER#ann"}, "SK": {"S": "ORDER#1"}, **attributes}


@pytest.mark.parametrize(
    ("where", "image", "counts"),
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
        ({"paid": True}, order(paid="nothing of DynamoDB's"), False),
    ],
)
def test_which_items_count(where: Any, image: Any, counts: bool) -> None:
    of = Items("shop", partition_prefix="CUSTOMER#", sort_key="SK", sort_prefix="ORDER#", where=where)
    assert of.contribution(image) == (Contribution("ann", 1) if counts else None)


@pytest.mark.parametrize(
    ("spelled", "amount"),
    [("12.5", 1250), ("12.50", 1250), ("-0.05", -5), ("1E+2", 10_000), ("1000000000000", 10**14), ("0", None)],
)
def test_an_amount_is_in_units_of_the_scale(spelled: str, amount: int | None) -> None:
    image = {"PK": {"S": "a"}, "total": {"N": spelled}}
    assert SPENT.contribution(image) == (Contribution("a", amount) if amount else None)


@pytest.mark.parametrize("there", [{"NULL": True}, {"L": []}, {"B": "eA=="}, {"BOOL": False}])
def test_what_spells_nothing_is_not_an_empty_text_as_another_type(there: Any) -> None:
    of = Items("shop", partition_prefix="CUSTOMER#", where={"closed": ""})
    assert of.judged(order(closed=there)) is None
    assert of.judged(order(closed={"S": ""})) == Contribution("ann", 1)


@pytest.mark.parametrize("total", [{}, {"NULL": True}, None])
def test_what_is_not_there_counts_for_nothing(total: Any) -> None:
    assert SPENT.contribution({"PK": {"S": "a"}, "total": total}) is None
    assert SPENT.contribution({"PK": {"S": "a"}}) is None


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
def test_what_cannot_be_added_up_is_one_item_with_a_fault(total: Any, kind: str, why: str) -> None:
    image = {"PK": {"S": "a"}, "total": total}
    judged = SPENT.judged(image)
    assert isinstance(judged, Fault)
    assert (judged.kind, why in judged.why) == (kind, True)
    assert SPENT.contribution(image) == Contribution(f"{ASIDE}{kind}", 1)


@pytest.mark.parametrize(
    ("of", "image", "kind"),
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
        ({"watch": KEPT}, order(SK={"S": "PROFILE"}, kept={"N": "1.5"}), "kept"),
        ({"watch": KEPT}, order(SK={"S": "PROFILE"}), None),
        ({"watch": KEPT}, order(SK={"S": "OTHER"}, kept={"N": "1.5"}), None),
        ({"watch": KEPT}, {"PK": {"S": "B#1"}, "SK": {"S": "PROFILE"}, "kept": {"N": "1.5"}}, None),
    ],
)
def test_a_fault_says_its_kind_and_what_lacks_an_attribute_has_none(of: Any, image: Any, kind: str | None) -> None:
    value = Items("shop", partition_prefix="CUSTOMER#", sort_key="SK", sort_prefix="ORDER#", **of).contribution(image)
    assert value == (Contribution(f"{ASIDE}{kind}", 1) if kind else None)
    assert kind is None or kind in KINDS


@pytest.mark.parametrize(
    ("group", "id_"),
    [("ann", "ann"), ("hr desk", "hr~20desk"), ("a#b", "a~23b"), (".", "~2E"), ("..", "~2E~2E"), ("a.b", "a.b"),
     ("50%", "50~25"), ("~20", "~7E20"), ("é", "~C3~A9"), ("a/b", "a~2Fb"), ("a:b@c", "a:b@c")],
)  # fmt: skip
def test_a_group_has_an_id_that_leads_back_to_it(group: str, id_: str) -> None:
    assert id_of(group) == id_
    assert ORDERS.partition_key_of(id_) == f"CUSTOMER#{group}"


def test_an_attribute_may_say_the_group_and_a_number_is_one() -> None:
    of = Items("shop", partition_prefix="TICKET#", group_by="queue")
    assert of.contribution({"PK": {"S": "TICKET#1"}, "queue": {"S": "hr desk"}}) == Contribution("hr~20desk", 1)
    assert of.contribution({"PK": {"S": "TICKET#1"}}) is None
    assert Items("shop", partition_key="id").contribution({"id": {"N": "7"}}) == Contribution("7", 1)
    assert Items("shop", partition_key="id").contribution({"id": {"B": b"7"}}) is None
    done = Items("todos", partition_key="id", group_by="done")
    assert [done.contribution({"id": {"S": "7"}, "done": {"BOOL": one}}) for one in (True, False)] == [
        Contribution("true", 1), Contribution("false", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("letter", ["x", "é", "返", "😀"])
def test_a_group_is_as_long_as_the_item_spells_it(letter: str) -> None:
    of = Items("shop", partition_prefix="TICKET#", group_by="queue")
    for length in (128, 129):
        value = of.contribution({"PK": {"S": "TICKET#1"}, "queue": {"S": letter * length}})
        assert value == (Contribution(id_of(letter * 128), 1) if length == 128 else Contribution("~-group", 1))
    assert len(id_of(letter * 128)) <= GROUP_ID_CHARACTERS_MAX


def test_the_item_with_the_number_of_the_team_is_the_one_at_that_sort_key_and_does_not_count() -> None:
    of = Items("shop", partition_prefix="CUSTOMER#", sort_key="SK", amount="total", watch=Watch("total", at="PROFILE"))
    profile = order(SK={"S": "PROFILE"}, total={"N": "3"})
    assert (of.team_number(profile), of.contribution(profile)) == (Contribution("ann", 3), Contribution(NUMBERS, 1))
    assert (of.team_number(order(total={"N": "3"})), of.contribution(order(total={"N": "3"}))) == (
        None,
        Contribution("ann", 3),
    )
    assert of.contribution(order(SK={"S": "PROFILE"})) is None


def test_a_number_whose_item_is_not_named_is_refused() -> None:
    for at in ("", None, 7):
        with pytest.raises(
            ConfigurationError, match=r"watch: at is .*, but must be the sort key of the item that has n"
        ):
            Watch("n", at=at)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="sort_key is None, but must name the sort key"):
        Items("shop", watch=Watch("total", at="PROFILE"))


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        ({"watch": Watch("n", "META", within_s=120)}, True),
        ({"watch": Watch("n", "META", same_transaction=True)}, True),
        ({"heartbeats": True}, True),
        ({"heartbeats": True, "partition_prefix": ""}, False),
        ({"heartbeats": True, "partition_prefix": "HEART"}, False),
        ({"heartbeats": True, "partition_prefix": "HEARTBEAT#1"}, False),
        ({"watch": Watch("m", "META")}, False),
        ({"watch": Watch("n", "PROFILE")}, False),
        ({"watch": None}, False),
        ({"where": {"a": 1}}, False),
    ],
)
def test_what_items_count_for_is_the_same_with_more_patience_or_another_proof(fields: Any, same: bool) -> None:
    of = Items("shop", partition_prefix="POST#", sort_key="SK", sort_prefix="LIKE#", watch=Watch("n", "META"))
    before = replace(of, **{name: value for name, value in fields.items() if name == "partition_prefix"})
    assert (replace(of, **fields).as_facts == before.as_facts) is same


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
            ({name: no}, f"{name} is .* the name of an attribute")
            for name in ("sort_key", "group_by")
            for no in ("", 5)
        ),
        ({"sort_key": "PK"}, "is the partition key"),
        ({"scale": 1}, "goes with an attribute"),
        ({"scale": 7, "amount": "total"}, "from 0 to 6"),
    ],
)
def test_a_wrong_field_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Items(**{"table": "shop", **fields})
