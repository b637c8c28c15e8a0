"""Update expressions as data: what overlaps is refused, and what is written out cannot be misread."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

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
        "a": ("a",), "l[0][12].x": ("l", 0, 12, "x"), "_a1.B_2": ("_a1", "B_2"), "a.#d[3]": ("a", "date.of.birth", 3),
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


# What is written out


def test_each_clause_stands_once_whatever_the_order_of_the_actions() -> None:
    expression = NOTHING.add("n", 5).set("a", 1).delete("tags", {"x"}).remove("l[0]").set("b", "two").remove("c")
    assert in_plain_words(written(expression)) == "SET a = '1', b = 'two' REMOVE l[0], c ADD n '5' DELETE tags ['x']"
    assert written(NOTHING) == {}


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


def test_operands_and_conditions_are_written_out_as_they_mean() -> None:
    for operand in (":v - b", "if_not_exists ( a.b[0] , :v )", "(b + :v)", "list_append(if_not_exists(l, :v), :v)"):
        plain = in_plain_words(written(NOTHING.set_to("a", operand, values=seven(operand))))
        assert plain.replace(" ", "") == f"SETa={operand}".replace(":v", "'7'").replace(" ", "")
    for text in (
        "a.b[0] <> :v AND NOT contains(c, :v)", "NOT (a = :v OR b = :v)", "a BETWEEN :v AND :v", "a IN (:v, :v)",
        "order = :v AND inside < :v AND notes.or[0] > :v AND in.x = not[1]", "size(a) >= :v", "attribute_type(a, :v)",
    ):  # fmt: skip
        plain = in_plain_words(written(NOTHING, Condition(text, values=seven(text))), "ConditionExpression")
        assert plain.replace(" ", "") == text.replace(":v", "'7'").replace(" ", "")


def test_an_operand_or_a_condition_that_means_something_else_is_refused() -> None:
    """The first of each would be a second action that no check for overlaps has seen, or step out of the AND."""
    for operand in (
        ":v, b = :v", "b = :v", ":v)", "", "size(b)", "b * :v", "b AND :v", "'text'", "if_not_exists(b, :w)", "#n",
    ):  # fmt: skip
        refused(lambda operand=operand: NOTHING.set_to("a", operand, values=seven(operand)))  # type: ignore[misc]
    for text in ("a = :v) OR (b = :v", "a = :v, b = :v", "a + :v = b", "a = :v OR (b = :v", "", "a = 1", "unknown(a)"):
        refused(lambda text=text: Condition(text, values=seven(text)))  # type: ignore[misc]


def test_conditions_hold_all_together() -> None:
    """An OR gets parentheses beside others; DynamoDB refuses parentheses that are not needed."""
    choice, one, wrapped = Condition("a = b OR c = d"), Condition("e = f"), Condition("(g = h OR i = j)")
    assert in_plain_words(written(NOTHING, choice), "ConditionExpression") == "a = b OR c = d"
    together = in_plain_words(written(NOTHING, choice, one, wrapped), "ConditionExpression")
    assert together == "(a = b OR c = d) AND e = f AND ( g = h OR i = j )"


def test_placeholders_that_are_not_used_are_refused_by_name() -> None:
    names = {"#n": "x", "#m": "y"}
    refused(lambda: NOTHING.set_to("a", "#n + :v", names=names, values={":v": 1}), "does not use #m$")
    refused(lambda: Condition("#n = :v", names={"#n": "x"}, values={":v": 1, "w": 2}), "does not use w$")
    refused(lambda: NOTHING.remove("a", names={"#n": "x"}), "#n")
    NOTHING.set_to("#n", ":v", names={"#n": "x"}, values={":v": 1})  # used by the path alone


# Values


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (1.5, "float 1.5"), ([1, {"x": 0.1}], r"a\[1\]\.x is the float"), (Decimal("NaN"), "38 digits"),
        (10**126, "38 digits"), pytest.param(10**5000, "38 digits", id="huge"), (int("1" * 39), "38 digits"),
        (Decimal("1E-131"), "38 digits"), (set(), "empty"), ({"a", 1}, "all str"), ({True}, "all str"),
        (None, "None"), (object(), "object"), ({1: "x"}, "a key"), ("\ud800", "Unicode"), (deep(32), "32 levels"),
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
