"""Update expressions as data: what overlaps is refused, and what is written out cannot be misread."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tally.errors import InvalidInputError, TallyError
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


# Document paths


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ("a", ("a",)),
        ("a.b", ("a", "b")),
        ("l[0]", ("l", 0)),
        ("l[0][12].x", ("l", 0, 12, "x")),
        ("_a1.B_2", ("_a1", "B_2")),
        ("#d", ("date.of.birth",)),
        ("a.#d[3]", ("a", "date.of.birth", 3)),
    ],
)
def test_paths_are_read_step_by_step(text: str, elements: tuple[str | int, ...]) -> None:
    path = Path.parse(text, {"#d": "date.of.birth"})
    assert path == Path.of(*elements)
    assert path.attribute == elements[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "a[",
        "a[]",
        "a[-1]",
        "a[x]",
        "a b",
        "e-mail",
        "1a",
        ":v",
        "[0]",
        "a, b",
        "a = b",
        "#",
        "a[9999999999]",
        "a[٣]",
        "ä",
        "a.b\n",
    ],
)
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        Path.parse(text)


def test_a_name_that_was_not_given_is_refused_by_name() -> None:
    with pytest.raises(ExpressionError, match="#d"):
        Path.parse("a.#d", {"#e": "x"})


@pytest.mark.parametrize("elements", [(), (0,), ("",), ("a", ""), ("a", -1)])
def test_a_path_begins_with_a_name_and_has_no_empty_step(elements: tuple[str | int, ...]) -> None:
    with pytest.raises(ExpressionError):
        Path.of(*elements)


# Overlaps


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a", "a"),
        ("a", "a.b"),
        ("a", "a.b.c"),
        ("a.b", "a.b.c"),
        ("l", "l[0]"),
        ("l[0]", "l[0]"),
        ("l[0]", "l[0].x"),
        ("l[0]", "l[0][1]"),
        ("l[01]", "l[1]"),
        ("a.b", "a[0]"),
        ("a.b.c", "a[0]"),
    ],  # a list here and a map there: DynamoDB calls it a conflict
)
@pytest.mark.parametrize("turned", [False, True])
def test_paths_of_which_one_holds_the_other_are_refused_by_name(one: str, other: str, turned: bool) -> None:
    first, second = (other, one) if turned else (one, other)
    expression = NOTHING.set(first, 1).by("Alpha").merge(NOTHING.remove(second).by("Beta"))
    with pytest.raises(ExpressionError) as refused:
        written(expression)
    for name in (str(Path.parse(first)), str(Path.parse(second)), "Alpha", "Beta", "SET", "REMOVE"):
        assert name in refused.value.detail
    assert refused.value.field == str(Path.parse(first))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("l[0]", "l[1]"),
        ("a.b", "a.c"),
        ("a", "b"),
        ("a", "ab"),
        ("a.b", "a.bc"),
        ("a.b.c", "a.b.d"),
        ("l[1]", "l[11]"),
        ("l[0].x", "l[1].x"),
        ("l[0].x", "l[0].y"),
        ("a.x[0]", "b.x[0]"),
    ],
)
def test_paths_side_by_side_are_two_actions(one: str, other: str) -> None:
    assert in_plain_words(written(NOTHING.remove(one).remove(other))) == f"REMOVE {one}, {other}"


def test_a_dot_in_a_name_is_no_step_into_a_map() -> None:
    written(NOTHING.set(Path.of("a.b"), 1).set("a", 2))
    with pytest.raises(ExpressionError):
        written(NOTHING.set(Path.of("a.b"), 1).set("#n", 2, names={"#n": "a.b"}))


@pytest.mark.parametrize("verb", ["set", "remove", "add", "delete"])
@pytest.mark.parametrize("other_verb", ["set", "remove", "add", "delete"])
def test_two_actions_on_one_attribute_are_refused_whatever_they_are(verb: str, other_verb: str) -> None:
    def with_action(expression: UpdateExpression, name: str) -> UpdateExpression:
        return expression.remove("tags") if name == "remove" else getattr(expression, name)("tags", {"x"})

    with pytest.raises(ExpressionError, match="tags"):
        written(with_action(with_action(NOTHING, verb), other_verb))


STEPS = st.one_of(st.sampled_from(["a", "b", "c.d"]), st.integers(0, 2))
PATHS = st.lists(STEPS, max_size=4).map(lambda rest: Path.of("a", *rest))


@settings(derandomize=True, max_examples=300)
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


def test_every_name_is_an_alias_so_reserved_words_and_odd_names_are_no_matter() -> None:
    request = written(
        NOTHING.set("status", 1)
        .set(Path.of("e-mail", "a.b", 0), 2)
        .set_to("name", "if_not_exists(year, :v)", values={":v": 1}),
        Condition("size = :s AND attribute_exists(zone)", values={":s": 1}),
    )
    assert sorted(request["ExpressionAttributeNames"].values()) == [
        "a.b", "e-mail", "name", "size", "status", "year", "zone"
    ]  # fmt: skip
    for name in request["ExpressionAttributeNames"].values():
        assert name not in request["UpdateExpression"] + request["ConditionExpression"]


def test_one_placeholder_with_two_values_is_two_values() -> None:
    """The Java client refuses to coalesce them; here they never meet."""
    expression = NOTHING.set_to("a", ":v", values={":v": 1}).merge(
        NOTHING.set_to("b", "#n - :v", names={"#n": "c"}, values={":v": 2})
    )
    request = written(expression, Condition("#n = :v", names={"#n": "d"}, values={":v": 3}))
    assert in_plain_words(request) == "SET a = '1', b = c - '2'"
    assert in_plain_words(request, "ConditionExpression") == "d = '3'"


def test_nothing_is_written_out_as_nothing() -> None:
    assert written(NOTHING) == {}


def test_an_expression_is_not_changed_by_what_is_made_of_it() -> None:
    first = NOTHING.set("a", 1)
    first.set("b", 2)
    first.merge(NOTHING.set("c", 3))
    first.by("somebody")
    assert first == NOTHING.set("a", 1)


# Operands and conditions


@pytest.mark.parametrize(
    "operand",
    [
        ":v",
        "b",
        "b + :v",
        ":v - b",
        "if_not_exists(b, :v) + :v",
        "list_append(l, :v)",
        "if_not_exists ( a.b[0] , :v )",
        "(b + :v)",
        "list_append(if_not_exists(l, :v), :v)",
    ],
)
def test_operands_are_written_out_as_they_mean(operand: str) -> None:
    plain = in_plain_words(written(NOTHING.set_to("a", operand, values={":v": 7} if ":v" in operand else None)))
    assert plain.replace(" ", "") == f"SETa={operand}".replace(":v", "'7'").replace(" ", "")


@pytest.mark.parametrize(
    "operand",
    [
        ":v, b = :v",  # a second action, that no check for overlaps would have seen
        "b = :v",
        ":v)",
        "(:v",
        ")(",
        "",
        "  ",
        "size(b)",
        "attribute_exists(b)",
        "b * :v",
        "b AND :v",
        "b; c",
        "'text'",
        "if_not_exists(b, :v",
        "if_not_exists(b, :w)",
        "#n",
        "b..c",
    ],
)
def test_an_operand_that_means_something_else_is_refused(operand: str) -> None:
    with pytest.raises(ExpressionError):
        NOTHING.set_to("a", operand, values={":v": 1} if ":v" in operand else None)


@pytest.mark.parametrize(
    "text",
    [
        "a = :v) OR (b = :v",  # would step out of the AND with other conditions
        "a = :v, b = :v",
        "a + :v = b",
        "if_not_exists(a, :v) = :v",
        "a = :v OR (b = :v",
        "",
        "a = 1",
        "unknown(a)",
    ],
)
def test_a_condition_that_means_something_else_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        Condition(text, values={":v": 1} if ":v" in text else None)


@pytest.mark.parametrize(
    "text",
    [
        "a = :v",
        "a.b[0] <> :v AND NOT contains(c, :v)",
        "NOT (a = :v OR b = :v)",
        "a BETWEEN :v AND :v",
        "order = :v AND inside < :v AND notes.or[0] > :v AND in.x = not[1]",
        "a IN (:v, :v)",
        "size(a) >= :v",
        "attribute_type(a, :v)",
        "attribute_not_exists(a) or a < :v",
    ],
)
def test_conditions_are_written_out_as_they_mean(text: str) -> None:
    request = written(NOTHING, Condition(text, values={":v": 7} if ":v" in text else None))
    plain = in_plain_words(request, "ConditionExpression")
    assert plain.replace(" ", "") == text.replace(":v", "'7'").replace(" or ", "OR").replace(" ", "")


def test_conditions_hold_all_together() -> None:
    """An OR gets parentheses beside others; DynamoDB refuses parentheses that are not needed."""
    choice, one, wrapped = Condition("a = b OR c = d"), Condition("e = f"), Condition("(g = h OR i = j)")
    assert in_plain_words(written(NOTHING, choice), "ConditionExpression") == "a = b OR c = d"
    assert (
        in_plain_words(written(NOTHING, choice, one, wrapped), "ConditionExpression")
        == "(a = b OR c = d) AND e = f AND ( g = h OR i = j )"
    )


@pytest.mark.parametrize(
    ("names", "values", "unused"),
    [
        ({"#n": "x", "#m": "y"}, {":v": 1}, "#m"),
        ({"#n": "x"}, {":v": 1, ":w": 2}, ":w"),
        ({"#n": "x"}, {":v": 1, "w": 2}, "w"),
    ],
)
def test_placeholders_that_are_not_used_are_refused_by_name(
    names: dict[str, str], values: dict[str, object], unused: str
) -> None:
    for make in (
        lambda: NOTHING.set_to("a", "#n + :v", names=names, values=values),
        lambda: Condition("#n = :v", names=names, values=values),
    ):
        with pytest.raises(ExpressionError, match=f"does not use {unused}$"):
            make()
    with pytest.raises(ExpressionError, match="#n"):
        NOTHING.remove("a", names={"#n": "x"})
    NOTHING.set_to("#n", ":v", names={"#n": "x"}, values={":v": 1})  # used by the path alone


# Values


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        ("text", {"S": "text"}),
        ("", {"S": ""}),
        (7, {"N": "7"}),
        (0, {"N": "0"}),
        (-(10**37), {"N": "-" + str(10**37)}),
        (Decimal("0.10"), {"N": "0.10"}),
        (Decimal("-0E-200"), {"N": "0"}),
        (True, {"BOOL": True}),
        (b"\x00", {"B": b"\x00"}),
        ([1, "a", [None]], {"L": [{"N": "1"}, {"S": "a"}, {"L": [{"NULL": True}]}]}),
        ((), {"L": []}),
        ({"a": {"b": None}}, {"M": {"a": {"M": {"b": {"NULL": True}}}}}),
        ({"b", "a"}, {"SS": ["a", "b"]}),
        (frozenset({Decimal("1.5"), 2}), {"NS": ["1.5", "2"]}),
        ({b"b", b"a"}, {"BS": [b"a", b"b"]}),
    ],
)
def test_values_on_the_wire(value: object, wire: dict[str, object]) -> None:
    assert list(written(NOTHING.set("a", value))["ExpressionAttributeValues"].values()) == [wire]


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (1.5, "float 1.5"),
        ([1, {"x": 0.1}], r"a\[1\]\.x is the float"),
        (Decimal("NaN"), "38 digits"),
        (Decimal("Infinity"), "38 digits"),
        (Decimal("sNaN"), "38 digits"),
        (10**126, "38 digits"),
        pytest.param(10**5000, "38 digits", id="huge"),
        (int("1" * 39), "38 digits"),
        (Decimal("1." + "1" * 38), "38 digits"),
        (Decimal("1E-131"), "38 digits"),
        (set(), "empty"),
        ({"a", 1}, "all str"),
        ({True}, "all str"),
        ({1.5}, "float"),
        ({("a",)}, "all str"),
        (None, "None"),
        (object(), "object"),
        ({1: "x"}, "a key"),
        ("\ud800", "Unicode"),
        ({"\ud800": 1}, "Unicode"),
        (deep(32), "32 levels"),
    ],
)
def test_values_that_cannot_be_stored_exactly_are_refused_by_name(value: object, why: str) -> None:
    for make in (
        lambda: NOTHING.set("a", value),
        lambda: NOTHING.set_to("a", ":a", values={":a": value}),
        lambda: Condition("a = :a", values={":a": value}),
    ):
        with pytest.raises(InvalidInputError, match=why) as refused:
            make()
        assert (refused.value.field or "").lstrip(":").startswith("a")


def test_numbers_keep_38_digits_and_lists_32_levels() -> None:
    for number in (int("1" * 38), 10**125, Decimal("9." + "9" * 37 + "E+125"), Decimal("1E-130"), -int("9" * 38)):
        (wire,) = written(NOTHING.set("a", number))["ExpressionAttributeValues"].values()
        assert Decimal(wire["N"]) == number
    written(NOTHING.set("a", deep(31)))


@pytest.mark.parametrize(
    ("verb", "value"), [("add", "text"), ("add", [1]), ("add", True), ("delete", 1), ("delete", ["x"])]
)
def test_add_takes_numbers_and_sets_and_delete_takes_sets(verb: str, value: object) -> None:
    with pytest.raises(ExpressionError, match=f"a: {verb.upper()} takes"):
        getattr(NOTHING, verb)("a", value)


def test_expression_errors_are_in_the_tree() -> None:
    assert issubclass(ExpressionError, TallyError)
    assert ExpressionError.status == 500
    assert all(one != other for one, other in pairwise([ExpressionError.slug, TallyError.slug, InvalidInputError.slug]))
