"""Declarations of record classes, and the values that the store keeps for each type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from decimal import Decimal
from functools import reduce
from typing import Any

import pytest

from tally.errors import ConfigurationError, InvalidInputError
from tally.records import (
    Action,
    Path,
    RecordMismatchError,
    Records,
    atomic_counter,
    attribute,
    partition_key,
    record,
    sort_key,
)
from tests.unit.records.conftest import Customer, Note, numbers_of


@record
class Everything:
    """A record class with an attribute of each type."""

    id: str = partition_key()
    text: str | None = None
    whole: int | None = None
    exact: Decimal | None = None
    flag: bool | None = None
    raw: bytes | None = None
    words: list[str] | None = None
    mixed: list[Any] | None = None
    plain: list | None = None  # type: ignore[type-arg]
    prices: dict[str, Decimal] | None = None
    tree: dict[str, dict[str, list[int]]] | None = None
    anything: Any = None
    texts: set[str] | None = None
    wholes: set[int] | None = None
    exacts: frozenset[Decimal] | None = None
    raws: set[bytes] | None = None
    holes: list[int | None] | None = None
    required: int = 0
    with_factory: list[str] = field(default_factory=list)


EVERYTHING = Everything(
    id="1", text="", whole=-(10**37), exact=Decimal("0.1"), flag=False, raw=b"\x00\xff", words=["a", ""],
    mixed=[1, Decimal("1.5"), "a", True, None, b"b", {"x": [1]}, {"s"}], plain=[],
    prices={"a": Decimal("1.10"), "b": Decimal(2)}, tree={"a": {"b": [1, 2]}}, anything={"x": [1, None]},
    texts={"a", "b"}, wholes={1, 10**37}, exacts=frozenset({Decimal("0.5"), Decimal(1)}), raws={b"a"},
    holes=[1, None], required=7, with_factory=["x"],
)  # fmt: skip


@pytest.mark.sdk  # SyncWire does not decode sets of bytes
def test_every_type_is_read_as_it_was_written(recording_client: Any, table: str) -> None:
    everything = Records(recording_client, table, Everything)
    assert everything.put_item(EVERYTHING) == everything.get_item("1") == EVERYTHING
    updated = replace(EVERYTHING, id="2")
    assert everything.update_item(updated) == updated
    read: Any = everything.get_item("2")
    for name in vars(EVERYTHING):
        assert type(getattr(read, name)) is type(getattr(EVERYTHING, name)), name
    assert [type(value) for value in read.mixed] == [int, Decimal, str, bool, type(None), bytes, dict, set]
    assert {type(value) for value in (*read.prices.values(), *read.exacts)} == {Decimal}


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("whole", True, "bool"), ("whole", 1.5, "float"), ("whole", "1", "must be int, and is a str"),
        ("exact", Decimal("1." + "1" * 38), "38 digits"), ("flag", 1, "must be bool"), ("raw", "a", "must be bytes"),
        ("words", "ab", "must be list"), ("words", [None], r"words\[0\] must be str, and is None"),
        ("prices", [1], "must be dict"), ("tree", {"a": {"b": ["c"]}}, r"tree\.a\.b\[0\] must be int"),
        ("texts", {1}, "must be str"), ("texts", ["a"], "must be set"), ("wholes", {True}, "bool"),
        ("whole", Decimal("1.5"), "must be int"), ("required", None, "required must be int, and is None"),
        ("id", "\u00e4" * 1025, "1 to 2048 bytes"), ("id", "", "1 to 2048 bytes"),
    ],
)  # fmt: skip
def test_an_error_names_a_value_of_a_wrong_type_or_size_and_nothing_is_sent(
    recording_client: Any, table: str, name: str, value: object, why: str
) -> None:
    everything = Records(recording_client, table, Everything)
    wrong = replace(EVERYTHING, **{name: value})  # type: ignore[arg-type]
    for write in (everything.put_item, everything.update_item):
        with pytest.raises(InvalidInputError, match=why) as refused:
            write(wrong)
        assert (refused.value.field or "").startswith(name)
    assert recording_client.sent == []


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (1.5, "float"), ([1, {"x": 0.1}], r"number\[1\]\.x must be Any, and is a float"), (10**126, "1E-130"),
        (Decimal("NaN"), "a number"), (Decimal("-Infinity"), "a number"), (Decimal("1E+999999"), "a number"),
        pytest.param(10**5000, "a number", id="huge"), (int("1" * 39), "38 digits"), (Decimal("1E-131"), "1E-130"),
        (set(), "empty"), ({"a", 1}, "all str"), ({True}, "bool"), (object(), "object"), ({1: "x"}, "a key"),
        ("\ud800", "surrogates"), (reduce(lambda inner, _: [inner], range(32), 1), "32 levels"),
    ],
)  # fmt: skip
def test_an_error_names_a_value_that_cannot_be_stored_exactly(
    recording_client: Any, notes: Records[Note], value: object, why: str
) -> None:
    for options in ({"actions": [Action.set("number", value)]}, {"condition": Path("number").ne(value)}):
        with pytest.raises(InvalidInputError, match=why) as refused:
            notes.update_item(Note(id="1"), **options)  # type: ignore[arg-type]
        assert refused.value.field == "number"
    assert recording_client.sent == []


def test_attribute_names_may_be_reserved_words_and_may_contain_dots_spaces_and_signs(
    recording_client: Any, table: str
) -> None:
    @record
    class Odd:
        id: str = partition_key()
        status: str | None = None
        size: int | None = None
        dotted: int | None = attribute(name="a.b", default=None)
        dashed: str | None = attribute(name="e-mail #1", default=None)
        shadow: dict[str, int] | None = attribute(name="a", default=None)
        count_: int | None = atomic_counter(name="count.of[0] #x")

    odds = Records(recording_client, table, Odd)
    odd = Odd(id="1", status="new", size=1, dotted=2, dashed="x", shadow={"b": 3})
    odds.update_item(odd)
    assert odds.update_item(odd) == replace(odd, count_=1) == odds.get_item("1")
    item = recording_client.get_item(TableName=table, Key={"id": {"S": "1"}})["Item"]
    assert item.keys() == {"id", "a.b", "e-mail #1", "a", "count.of[0] #x", "status", "size"}
    changed = odds.update_item(
        Odd(id="1"),
        # Path("a.b") is the attribute `a.b`, and "a.b" is the entry `b` of `a`.
        actions=[Action.set(Path("a.b"), 5), Action.set("a.b", 6)],
        condition=Path("a.b").eq(2) & Path("a", "b").eq(3) & Path("size").eq(1),
    )
    assert (changed.dotted, changed.shadow, changed.status, changed.count_) == (5, {"b": 6}, None, 2)


@record
class Strict:
    id: str = partition_key()
    name: str
    maybe: str | None = "default"
    always: str = "default"


@pytest.mark.parametrize(
    ("cls", "stored", "why"),
    [
        (Everything, {"whole": {"S": "1"}}, "whole must be int, and is a str"),
        (Everything, {"whole": {"N": "1.5"}}, "whole must be int, and is 1.5"),
        (Everything, {"words": {"L": [{"NULL": True}]}}, r"words\[0\] must be str, and is None"),
        (Everything, {"required": {"NULL": True}}, "required must be int, and is None"),
        (Everything, {"whole": {"N": "1E50"}}, "whole has a number of more than 38 digits"),
        (Strict, {}, "name must be str, and is None"),
    ],
)
def test_an_item_that_does_not_fit_the_class_raises_an_error_with_the_attribute(
    recording_client: Any, table: str, cls: type, stored: dict[str, Any], why: str
) -> None:
    recording_client.put_item(TableName=table, Item={"id": {"S": "1"}, **stored})
    with pytest.raises(RecordMismatchError, match=why):
        Records(recording_client, table, cls).get_item("1")


def test_a_missing_attribute_is_none_if_the_class_allows_none_and_else_the_default(
    recording_client: Any, table: str
) -> None:
    """An attribute that is null is None, too, or an error if the class does not allow None."""
    item: Any = {"id": {"S": "1"}, "name": {"S": "n"}, "unknown": {"S": "x"}}
    for maybe in ({}, {"maybe": {"NULL": True}}):
        recording_client.put_item(TableName=table, Item=item | maybe)
        read = Records(recording_client, table, Strict).get_item("1")
        assert read == Strict(id="1", name="n", maybe=None, always="default")


def test_a_record_or_a_key_of_another_class_is_refused(recording_client: Any, customers: Records[Any]) -> None:
    for write in (customers.put_item, customers.update_item):
        with pytest.raises(InvalidInputError, match="Note is not a Customer"):
            write(Note(id="1"))
    with pytest.raises(InvalidInputError, match="Customer has no sort key"):
        customers.get_item("1", "2")
    assert recording_client.sent == []


def declare(**attributes: tuple[Any, ...]) -> Callable[[], type]:
    """Returns a function that makes a record class. `attributes`: the annotation of each, and any default."""
    members = {name: declared[1] for name, declared in attributes.items() if len(declared) > 1}
    annotations = {name: declared[0] for name, declared in attributes.items()}
    return lambda: record(type("Bad", (), {"__annotations__": annotations, **members}))


def declare_with_key(annotation: Any, *default: Any) -> Callable[[], type]:
    """Declares a class with a key and an attribute `x`."""
    return declare(id=(str, partition_key()), x=(annotation, *default))


def declare_counter(**arguments: Any) -> Callable[[], type]:
    return declare_with_key(int | None, atomic_counter(**arguments))


def test_an_error_names_an_invalid_declaration_when_the_class_is_made() -> None:
    for make, why in (
        (declare(id=(str,)), "one partition_key"),
        (declare(a=(str, partition_key()), b=(str, sort_key()), c=(str, sort_key())), "at most one sort_key"),
        (declare(id=(bool, partition_key())), "id is the partition key: it must be str"),
        (declare_with_key(int, atomic_counter()), r"x is an atomic counter.*int \| None"),
        (declare_with_key(Decimal | None, atomic_counter()), "x is an atomic counter"),
        (declare_counter(delta=0), "x is an atomic counter: .*delta not 0"),
        (declare_counter(start=True), "x is an atomic counter: start and delta must be int"),
        (declare_with_key(float), "x has the type <class 'float'>"),
        (declare_with_key(set[bool]), "x has the type"),
        (declare_with_key(dict[int, str]), "x has the type"),
        (declare(id=(str, partition_key()), x=(str,), y=(str, attribute(name="x"))), "y is a second x"),
        (declare_with_key(str, field(init=False)), "x has init=False"),
    ):
        with pytest.raises(ConfigurationError, match=f"record Bad: .*{why}"):
            make()


def test_records_takes_only_record_classes_and_a_record_class_may_inherit(recording_client: Any, table: str) -> None:
    class Undecorated(Customer):
        """Without @record the attribute `more` would be ignored."""

        more: str | None = None

    for cls in (Undecorated, str):
        with pytest.raises(ConfigurationError, match=f"{cls.__name__} is not a record class"):
            Records(recording_client, table, cls)
    special: Any = record(Undecorated)
    specials = Records(recording_client, table, special)
    for after in ((0, 10, -20), (1, 15, -21)):
        assert numbers_of(specials.update_item(special(id="1", more="x"))) == after
