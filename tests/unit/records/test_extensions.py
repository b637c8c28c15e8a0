"""Extensions and expressions of a write: chained, merged, and refused by name where they overlap."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tally.records import (
    AtomicCounterExtension,
    ExpressionError,
    Path,
    Records,
    UpdateExpression,
    WriteContext,
    WriteModification,
)
from tests.unit.records.samples import Customer, Note, counts

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

Change = WriteModification
Extend = Callable[..., Records[Note]]
NOTHING = UpdateExpression()


class Doing:
    """An extension that does what it is told, in updates only."""

    def __init__(self, does: Callable[[WriteContext], WriteModification | None]) -> None:
        self.does = does

    def before_write(self, context: WriteContext) -> WriteModification | None:
        return self.does(context) if context.operation == "update_item" else None


class Always(Doing):
    """In puts, too."""

    def before_write(self, context: WriteContext) -> WriteModification | None:
        return self.does(context)


class Preserving(Doing):
    """The Java client's: adds to `number`, and leaves the item as it is."""

    def __init__(self, amount: int = 5, placeholder: str = ":increment") -> None:
        values = {":zero": 0, placeholder: amount}
        more = f"if_not_exists(number, :zero) + {placeholder}"
        super().__init__(lambda _: Change(expression=NOTHING.set_to("number", more, values=values)))


@pytest.fixture
def extended(client: DynamoDBClient, table: str) -> Extend:
    return lambda *extensions: Records(client, table, Note, extensions=extensions)


@pytest.mark.parametrize("ignore_nulls", [False, True])
def test_what_an_extension_writes_is_not_removed(extended: Extend, ignore_nulls: bool) -> None:
    """Nor what it writes in part."""
    notes = extended(Preserving())
    assert notes.update_item(Note(id="1", text="a"), ignore_nulls=ignore_nulls).number == 5
    assert notes.update_item(Note(id="1", text="a"), ignore_nulls=ignore_nulls) == Note(id="1", text="a", number=10)
    extended().put_item(Note(id="2", address={"city": "Rome", "zip": "1"}, steps=["a", "b"]))
    touching = Doing(lambda _: Change(expression=NOTHING.set("address.city", "Paris").set("steps[1]", "z")))
    after = extended(touching, Preserving(16)).update_item(Note(id="2", text="a"), ignore_nulls=ignore_nulls)
    assert after == Note(id="2", text="a", address={"city": "Paris", "zip": "1"}, steps=["a", "z"], number=16)


def test_an_attribute_that_two_write_is_refused_by_name(extended: Extend, sent: list[str]) -> None:
    """Whatever the values."""
    for ignore_nulls in (False, True):
        with pytest.raises(ExpressionError, match=r"number \(SET by Preserving\) and number \(SET by the record\)"):
            extended(Preserving()).update_item(Note(id="1", number=100), ignore_nulls=ignore_nulls)
    for other in (Preserving(), Preserving(5, ":ref"), Preserving(10)):
        with pytest.raises(ExpressionError, match=r"number \(SET by Preserving\) and number \(SET by Preserving\)"):
            extended(Preserving(), other).update_item(Note(id="1"))
    assert sent == []


def test_extensions_run_in_order_and_each_sees_the_item_as_the_last_one_left_it(extended: Extend) -> None:
    def appending(letter: str) -> Always:
        return Always(lambda context: Change(item={**context.item, "text": f"{context.item['text']}{letter}"}))

    notes = extended(*map(appending, "bcd"))
    assert notes.put_item(Note(id="1", text="a")).text == "abcd"
    assert notes.update_item(Note(id="1", text="x")).text == "xbcd"


def test_the_counters_go_first_unless_their_place_is_named(client: DynamoDBClient, table: str) -> None:
    """They go in any case. In the Java client a list of extensions replaces the default one, and they stand still."""
    seen: list[object] = []

    def look(context: WriteContext) -> None:
        seen.append(context.item.get("visits", "nothing"))

    Records(client, table, Customer, extensions=[Always(look)]).put_item(Customer(id="1"))
    last = Records(client, table, Customer, extensions=[Always(look), AtomicCounterExtension()])
    assert counts(last.put_item(Customer(id="2"))) == (0, 10, -20)
    assert seen == [0, "nothing"]
    moving = Records(client, table, Customer, extensions=[Preserving()])
    assert counts(moving.update_item(Customer(id="1"))) == (1, 15, -21)


def test_what_no_write_can_have_is_refused(extended: Extend, sent: list[str]) -> None:
    """A put takes no update expression: the Java client drops it without a word. And keys stay as they are."""
    setting = extended(Always(lambda _: Change(expression=NOTHING.set("number", 1))))
    losing = extended(Always(lambda _: Change(item={"text": "a"})))
    one: list[tuple[Callable[[], object], str]] = [
        (lambda: setting.put_item(Note(id="1")), r"Always.*put_item takes no update expression"),
        (lambda: setting.put_write(Note(id="1")), r"Always.*put_item takes no update expression"),
        (
            lambda: extended().update_item(Note(id="1"), expression=NOTHING.set("id", "2")),
            "id: a key cannot be changed",
        ),
        (lambda: losing.put_item(Note(id="1")), "id is a key of Note"),
        (lambda: losing.update_item(Note(id="1")), "id is a key of Note"),
    ]
    for write, why in one:
        with pytest.raises(ExpressionError, match=why):
            write()
    assert sent == []


# What the Java client documents: an expression with the request


@pytest.mark.parametrize("ignore_nulls", [False, True])
def test_an_expression_with_the_request_is_merged_and_what_it_writes_is_not_removed(
    notes: Records[Note], ignore_nulls: bool
) -> None:
    notes.put_item(Note(id="1", steps=["a"], tags={"x", "y"}, number=5, text="t", address={"a": "1", "b": "2"}))
    expression = (
        NOTHING.set_to("steps", "list_append(steps, :more)", values={":more": ["b", "c"]})
        .delete("tags", {"x"})
        .add("number", -7)
        .remove("address.a")
    )
    after = notes.update_item(Note(id="1", text="u"), expression=expression, ignore_nulls=ignore_nulls)
    assert after == Note(id="1", steps=["a", "b", "c"], tags={"y"}, number=-2, text="u", address={"b": "2"})


def test_the_engine_refuses_what_is_refused_here(client: DynamoDBClient, table: str) -> None:
    """So the local check is no stricter than the store, and refuses nothing that would have worked."""

    def on_the_engine(one: str, other: str) -> str:
        item: Any = {"id": {"S": "1"}, "l": {"L": [{"N": "1"}, {"N": "2"}]}, "a": {"M": {}}}
        client.put_item(TableName=table, Item=item)
        try:
            client.update_item(
                TableName=table,
                Key={"id": {"S": "1"}},
                UpdateExpression=f"SET {one} = :v, {other} = :v",
                ExpressionAttributeValues={":v": {"M": {"x": {"N": "1"}}}},
            )
        except ClientError as error:
            return str(error)
        return ""

    for one, other in itertools.product(["a", "a.b", "a.c", "l", "l[0]", "l[1]"], repeat=2):
        overlap = Path.parse(one).overlaps(Path.parse(other))
        assert ("overlap" in on_the_engine(one, other)) == overlap, (one, other)
