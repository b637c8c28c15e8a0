"""Update expressions as data: what overlaps is refused, and what is written out cannot be misread."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tally.errors import InvalidInputError
from tally.records.expression_syntax import ExpressionError, Path
from tally.records.expressions import Condition, UpdateExpression, parameters

NOTHING = UpdateExpression()


def written(expression: UpdateExpression, *conditions: Condition) -> dict[str, Any]:
    return parameters(expression, conditions)


def in_plain_words(request: dict[str, Any], text: str = "UpdateExpression") -> str:
    """The expression with its aliases put back."""
    plain: str = request[text]
    for alias, name in sorted(request.get("ExpressionAttributeNames", {}).items(), reverse=True):
        plain = plain.replace(alias, name)
    for alias, wire in sorted(request.get("ExpressionAttributeValues", {}).items(), reverse=True):
        plain = plain.replace(alias, repr(next(iter(wire.values()))))
    return plain


def refused(make: Callable[[], object], why: str = ".") -> ExpressionError:
    with pytest.raises(ExpressionError, match=why) as error:
        make()
    return error.value


# Document paths, and which overlap


def test_paths_are_read_step_by_step() -> None:
    read: dict[str, tuple[str | int, ...]] = {
        "a": ("a",), "a.b": ("a", "b"), "l[0]": ("l", 0), "l[0][12].x": ("l", 0, 12, "x"), "_a1.B_2": ("_a1", "B_2"),
        "#d": ("date.of.birth",), "a.#d[3]": ("a", "date.of.birth", 3),
    }  # fmt: skip
    for text, elements in read.items():
        path = Path.parse(text, {"#d": "date.of.birth"})
        assert (path, path.attribute) == (Path.of(*elements), elements[0])


def test_what_is_no_path_is_refused() -> None:
    for text in (
        "", ".", "a.", ".a", "a..b", "a[", "a[]", "a[-1]", "a[x]", "a b", "e-mail", "1a", ":v", "[0]", "a, b", "a = b",
        "#", "a[9999999999]", "a[٣]", "ä", "a.b\n",
    ):  # fmt: skip
        refused(lambda text=text: Path.parse(text))  # type: ignore[misc]
    for elements in ((), (0,), ("",), ("a", ""), ("a", -1)):
        refused(lambda elements=elements: Path.of(*elements))  # type: ignore[misc]
    refused(lambda: Path.parse("a.#d", {"#e": "x"}), "#d")


@pytest.mark.parametrize(("first", "second"), [("a", "a.b.c"), ("a.b", "a"), ("l[0]", "l[0].x"), ("a[0]", "a.b")])
def test_paths_of_which_one_holds_the_other_are_refused_by_name(first: str, second: str) -> None:
    """A list here and a map there, too: DynamoDB calls it a conflict."""
    expression = NOTHING.set(first, 1).by("Alpha").merge(NOTHING.remove(second).by("Beta"))
    error = refused(lambda: written(expression))
    for name in (first, second, "Alpha", "Beta", "SET", "REMOVE"):
        assert name in error.detail
    assert error.field == first


def test_a_dot_in_a_name_is_no_step_into_a_map() -> None:
    written(NOTHING.set(Path.of("a.b"), 1).set("a", 2))
    refused(lambda: written(NOTHING.set(Path.of("a.b"), 1).set("#n", 2, names={"#n": "a.b"})))


STEPS = st.one_of(st.sampled_from(["a", "b", "c.d"]), st.integers(0, 2))
PATHS = st.lists(STEPS, max_size=4).map(lambda rest: Path.of("a", *rest))


@settings(derandomize=True, max_examples=300, deadline=None)
@given(PATHS, PATHS)
def test_overlap_means_that_no_item_has_room_for_both(one: Path, other: Path) -> None:
    """Against a second definition: at the first step where they differ, both are names or both are indexes."""
    pairs = list(zip(one.elements, other.elements, strict=False))
    parted = next(((mine, theirs) for mine, theirs in pairs if mine != theirs), None)
    apart = parted is not None and isinstance(parted[0], str) == isinstance(parted[1], str)
    assert one.overlaps(other) == other.overlaps(one) == (not apart)


# What is written out


def test_each_clause_stands_once_whatever_the_order_of_the_actions() -> None:
    expression = NOTHING.add("n", 5).set("a", 1).delete("tags", {"x"}).remove("l[0]").set("b", "two").remove("c")
    assert in_plain_words(written(expression)) == "SET a = '1', b = 'two' REMOVE l[0], c ADD n '5' DELETE tags ['x']"
    assert written(NOTHING) == {}


def test_every_name_is_an_alias_so_reserved_words_and_odd_names_are_no_matter() -> None:
    request = written(
        NOTHING.set("status", 1)
        .set(Path.of("e-mail", "a.b", 0), 2)
        .set_to("name", "if_not_exists(year, :v)", values={":v": 1}),
        Condition("size = :s AND attribute_exists(zone)", values={":s": 1}),
    )
    names = sorted(request["ExpressionAttributeNames"].values())
    assert names == ["a.b", "e-mail", "name", "size", "status", "year", "zone"]
    for name in names:
        assert name not in request["UpdateExpression"] + request["ConditionExpression"]


def test_one_placeholder_with_two_values_is_two_values() -> None:
    """The Java client refuses to coalesce them; here they never meet."""
    expression = NOTHING.set_to("a", ":v", values={":v": 1}).merge(
        NOTHING.set_to("b", "#n - :v", names={"#n": "c"}, values={":v": 2})
    )
    request = written(expression, Condition("#n = :v", names={"#n": "d"}, values={":v": 3}))
    assert in_plain_words(request) == "SET a = '1', b = c - '2'"
    assert in_plain_words(request, "ConditionExpression") == "d = '3'"


# Operands and conditions


def seven(text: str) -> dict[str, object] | None:
    return {":v": 7} if ":v" in text else None


def test_operands_are_written_out_as_they_mean() -> None:
    for operand in (
        ":v", "b", "b + :v", ":v - b", "if_not_exists(b, :v) + :v", "list_append(l, :v)",
        "if_not_exists ( a.b[0] , :v )", "(b + :v)", "list_append(if_not_exists(l, :v), :v)",
    ):  # fmt: skip
        plain = in_plain_words(written(NOTHING.set_to("a", operand, values=seven(operand))))
        assert plain.replace(" ", "") == f"SETa={operand}".replace(":v", "'7'").replace(" ", "")


@pytest.mark.parametrize(
    "operand",
    [
        ":v, b = :v",  # a second action, that no check for overlaps would have seen
        "b = :v", ":v)", "(:v", ")(", "", "  ", "size(b)", "attribute_exists(b)", "b * :v", "b AND :v", "b; c",
        "'text'", "if_not_exists(b, :v", "if_not_exists(b, :w)", "#n", "b..c",
    ],
)  # fmt: skip
def test_an_operand_that_means_something_else_is_refused(operand: str) -> None:
    refused(lambda: NOTHING.set_to("a", operand, values=seven(operand)))


@pytest.mark.parametrize(
    "text",
    [
        "a = :v) OR (b = :v",  # would step out of the AND with other conditions
        "a = :v, b = :v", "a + :v = b", "if_not_exists(a, :v) = :v", "a = :v OR (b = :v", "", "a = 1", "unknown(a)",
    ],
)  # fmt: skip
def test_a_condition_that_means_something_else_is_refused(text: str) -> None:
    refused(lambda: Condition(text, values=seven(text)))


def test_conditions_are_written_out_as_they_mean() -> None:
    for text in (
        "a = :v", "a.b[0] <> :v AND NOT contains(c, :v)", "NOT (a = :v OR b = :v)", "a BETWEEN :v AND :v",
        "order = :v AND inside < :v AND notes.or[0] > :v AND in.x = not[1]", "a IN (:v, :v)", "size(a) >= :v",
        "attribute_type(a, :v)", "attribute_not_exists(a) or a < :v",
    ):  # fmt: skip
        plain = in_plain_words(written(NOTHING, Condition(text, values=seven(text))), "ConditionExpression")
        assert plain.replace(" ", "") == text.replace(":v", "'7'").replace(" or ", "OR").replace(" ", "")


def test_conditions_hold_all_together() -> None:
    """An OR gets parentheses beside others; DynamoDB refuses parentheses that are not needed."""
    choice, one, wrapped = Condition("a = b OR c = d"), Condition("e = f"), Condition("(g = h OR i = j)")
    assert in_plain_words(written(NOTHING, choice), "ConditionExpression") == "a = b OR c = d"
    together = in_plain_words(written(NOTHING, choice, one, wrapped), "ConditionExpression")
    assert together == "(a = b OR c = d) AND e = f AND ( g = h OR i = j )"


def test_placeholders_that_are_not_used_are_refused_by_name() -> None:
    cases: list[tuple[dict[str, str], dict[str, object], str]] = [
        ({"#n": "x", "#m": "y"}, {":v": 1}, "#m"), ({"#n": "x"}, {":v": 1, "w": 2}, "w"),
    ]  # fmt: skip
    for names, values, unused in cases:
        why = f"does not use {unused}$"
        refused(lambda: NOTHING.set_to("a", "#n + :v", names=names, values=values), why)  # noqa: B023
        refused(lambda: Condition("#n = :v", names=names, values=values), why)  # noqa: B023
    refused(lambda: NOTHING.remove("a", names={"#n": "x"}), "#n")
    NOTHING.set_to("#n", ":v", names={"#n": "x"}, values={":v": 1})  # used by the path alone


# Values


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def test_values_on_the_wire() -> None:
    wires: list[tuple[object, dict[str, object]]] = [
        ("", {"S": ""}), (0, {"N": "0"}), (-(10**37), {"N": "-" + str(10**37)}), (Decimal("0.10"), {"N": "0.10"}),
        (Decimal("-0E-200"), {"N": "0"}), (True, {"BOOL": True}), (b"\x00", {"B": b"\x00"}), ((), {"L": []}),
        ([1, "a", [None]], {"L": [{"N": "1"}, {"S": "a"}, {"L": [{"NULL": True}]}]}),
        ({"a": {"b": None}}, {"M": {"a": {"M": {"b": {"NULL": True}}}}}), ({"b", "a"}, {"SS": ["a", "b"]}),
        (frozenset({Decimal("1.5"), 2}), {"NS": ["1.5", "2"]}), ({b"b", b"a"}, {"BS": [b"a", b"b"]}),
    ]  # fmt: skip
    for value, wire in wires:
        assert list(written(NOTHING.set("a", value))["ExpressionAttributeValues"].values()) == [wire]
    for number in (int("1" * 38), 10**125, Decimal("9." + "9" * 37 + "E+125"), Decimal("1E-130"), -int("9" * 38)):
        (stored,) = written(NOTHING.set("a", number))["ExpressionAttributeValues"].values()
        assert Decimal(stored["N"]) == number
    written(NOTHING.set("a", deep(31)))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (1.5, "float 1.5"), ([1, {"x": 0.1}], r"a\[1\]\.x is the float"), (Decimal("NaN"), "38 digits"),
        (Decimal("Infinity"), "38 digits"), (Decimal("sNaN"), "38 digits"), (10**126, "38 digits"),
        pytest.param(10**5000, "38 digits", id="huge"), (int("1" * 39), "38 digits"),
        (Decimal("1." + "1" * 38), "38 digits"), (Decimal("1E-131"), "38 digits"), (set(), "empty"),
        ({"a", 1}, "all str"), ({True}, "all str"), ({1.5}, "float"), ({("a",)}, "all str"), (None, "None"),
        (object(), "object"), ({1: "x"}, "a key"), ("\ud800", "Unicode"), ({"\ud800": 1}, "Unicode"),
        (deep(32), "32 levels"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_stored_exactly_are_refused_by_name(value: object, why: str) -> None:
    for make in (lambda: NOTHING.set("a", value), lambda: Condition("a = :a", values={":a": value})):
        with pytest.raises(InvalidInputError, match=why) as error:
            make()
        assert (error.value.field or "").lstrip(":").startswith("a")


def test_add_takes_numbers_and_sets_and_delete_takes_sets() -> None:
    for verb, values in (("add", ("text", [1], True)), ("delete", (1, ["x"]))):
        for value in values:
            with pytest.raises(ExpressionError, match=f"a: {verb.upper()} takes"):
                getattr(NOTHING, verb)("a", value)
