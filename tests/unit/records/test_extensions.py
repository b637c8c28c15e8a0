"""Extensions and expressions of a write: chained, merged, and refused by name where they overlap."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from tally.records import (
    AtomicCounterExtension,
    ExpressionError,
    Extension,
    Path,
    Records,
    UpdateExpression,
    WriteContext,
    WriteModification,
)
from tests.unit.records.samples import Customer, Note, counts, stored

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# What the Java client documents: extensions. Its two test extensions, in Python


class Preserving:
    """Adds to `number`, and leaves the item as it is."""

    def __init__(self, amount: int = 5, placeholder: str = ":increment") -> None:
        self.amount, self.placeholder = amount, placeholder

    def before_write(self, context: WriteContext) -> WriteModification | None:
        if context.operation == "put_item":
            return None
        return WriteModification(
            expression=UpdateExpression().set_to(
                "number",
                f"if_not_exists(number, :zero) + {self.placeholder}",
                values={":zero": 0, self.placeholder: self.amount},
            )
        )


class Filtering:
    """Takes members out of `tags`, and takes `tags` out of the item."""

    def before_write(self, context: WriteContext) -> WriteModification | None:
        if context.operation == "put_item":
            return None
        item = {name: value for name, value in context.item.items() if name != "tags"}
        return WriteModification(item=item, expression=UpdateExpression().delete("tags", {"yellow", "red"}))


def extended(client: DynamoDBClient, table: str, *extensions: Extension) -> Records[Note]:
    return Records(client, table, Note, extensions=extensions)


@pytest.mark.parametrize("ignore_nulls", [False, True])
def test_what_an_extension_writes_is_not_removed(client: DynamoDBClient, table: str, ignore_nulls: bool) -> None:
    notes = extended(client, table, Preserving())
    assert notes.update_item(Note(id="1", text="a"), ignore_nulls=ignore_nulls).number == 5
    assert notes.update_item(Note(id="1", text="a"), ignore_nulls=ignore_nulls) == Note(id="1", text="a", number=10)


def test_an_attribute_that_an_extension_writes_in_part_is_not_removed(client: DynamoDBClient, table: str) -> None:
    class Touching:
        def before_write(self, context: WriteContext) -> WriteModification:
            return WriteModification(expression=UpdateExpression().set("address.city", "Paris").set("steps[1]", "z"))

    Records(client, table, Note).put_item(Note(id="1", address={"city": "Rome", "zip": "1"}, steps=["a", "b"]))
    after = extended(client, table, Touching()).update_item(Note(id="1"))
    assert after == Note(id="1", address={"city": "Paris", "zip": "1"}, steps=["a", "z"])


def test_an_attribute_that_an_extension_only_reads_is_removed(client: DynamoDBClient, table: str) -> None:
    class Copying:
        def before_write(self, context: WriteContext) -> WriteModification:
            return WriteModification(expression=UpdateExpression().set_to("copy", "#from", names={"#from": "text"}))

    Records(client, table, Note).put_item(Note(id="1", text="a"))
    extended(client, table, Copying()).update_item(Note(id="1"))
    assert stored(client, table) == {"id": {"S": "1"}, "copy": {"S": "a"}}


@pytest.mark.parametrize("ignore_nulls", [False, True])
@pytest.mark.parametrize("tags", [None, {"purple"}])
def test_an_extension_that_takes_an_attribute_out_of_the_item_has_it_to_itself(
    client: DynamoDBClient, table: str, ignore_nulls: bool, tags: set[str] | None
) -> None:
    Records(client, table, Note).put_item(Note(id="1", tags={"yellow", "blue", "red", "green"}))
    notes = extended(client, table, Filtering())
    after = notes.update_item(Note(id="1", text="a", tags=tags), ignore_nulls=ignore_nulls)
    assert after == Note(id="1", text="a", tags={"blue", "green"})


@pytest.mark.parametrize("ignore_nulls", [False, True])
def test_an_attribute_that_record_and_extension_both_write_is_refused_by_name(
    client: DynamoDBClient, table: str, sent: list[str], ignore_nulls: bool
) -> None:
    with pytest.raises(ExpressionError, match=r"number \(SET by Preserving\) and number \(SET by the record\)"):
        extended(client, table, Preserving()).update_item(Note(id="1", number=100), ignore_nulls=ignore_nulls)
    assert sent == []


@pytest.mark.parametrize("ignore_nulls", [False, True])
def test_two_extensions_on_two_attributes_both_have_their_way(
    client: DynamoDBClient, table: str, ignore_nulls: bool
) -> None:
    Records(client, table, Note).put_item(Note(id="1", number=11, tags={"yellow", "blue"}))
    after = extended(client, table, Preserving(), Filtering()).update_item(
        Note(id="1", text="a"), ignore_nulls=ignore_nulls
    )
    assert after == Note(id="1", text="a", number=16, tags={"blue"})


@pytest.mark.parametrize(
    "other", [Preserving(), Preserving(5, ":ref"), Preserving(13, ":ref"), Preserving(10, ":increment")]
)
def test_two_extensions_on_one_attribute_are_refused_whatever_their_values(
    client: DynamoDBClient, table: str, sent: list[str], other: Preserving
) -> None:
    with pytest.raises(ExpressionError, match=r"number \(SET by Preserving\) and number \(SET by Preserving\)"):
        extended(client, table, Preserving(), other).update_item(Note(id="1"))
    assert sent == []


def test_a_placeholder_of_another_form_is_refused(client: DynamoDBClient, table: str, sent: list[str]) -> None:
    with pytest.raises(ExpressionError, match="illegal"):
        extended(client, table, Preserving(10, "illegal")).update_item(Note(id="1"))
    assert sent == []


def test_extensions_run_in_order_and_each_sees_the_item_as_the_last_one_left_it(
    client: DynamoDBClient, table: str
) -> None:
    class Appending:
        def __init__(self, letter: str) -> None:
            self.letter = letter

        def before_write(self, context: WriteContext) -> WriteModification:
            return WriteModification(item={**context.item, "text": f"{context.item['text']}{self.letter}"})

    notes = extended(client, table, Appending("b"), Appending("c"), Appending("d"))
    assert notes.put_item(Note(id="1", text="a")).text == "abcd"
    assert notes.update_item(Note(id="1", text="x")).text == "xbcd"


def test_the_counters_go_first_unless_their_place_is_named(client: DynamoDBClient, table: str) -> None:
    seen: list[object] = []

    class Looking:
        def before_write(self, context: WriteContext) -> None:
            seen.append(context.item.get("visits", "nothing"))

    Records(client, table, Customer, extensions=[Looking()]).put_item(Customer(id="1"))
    Records(client, table, Customer, extensions=[Looking(), AtomicCounterExtension()]).put_item(Customer(id="2"))
    assert seen == [0, "nothing"]
    assert counts(Records(client, table, Customer).get_item("2")) == (0, 10, -20)


def test_extensions_keep_the_counters_moving(client: DynamoDBClient, table: str) -> None:
    """In the Java client a list of extensions replaces the default one, and the counters stand still."""
    customers = Records(client, table, Customer, extensions=[Preserving()])
    customers.update_item(Customer(id="1"))
    assert counts(customers.update_item(Customer(id="1"))) == (1, 15, -21)


def test_an_extension_is_told_of_the_write_and_cannot_change_the_item_behind_its_back(
    client: DynamoDBClient, table: str
) -> None:
    contexts: list[WriteContext] = []

    class Meddling:
        def before_write(self, context: WriteContext) -> None:
            contexts.append(context)
            context.item["text"] = "meddled"  # type: ignore[index]

    with pytest.raises(TypeError):
        extended(client, table, Meddling()).update_item(Note(id="1", text="a"))
    (context,) = contexts
    assert (context.operation, context.table_name, context.record_class.name) == ("update_item", table, "Note")
    assert dict(context.item) == {
        "id": "1", "text": "a", "tags": None, "number": None, "steps": None, "address": None
    }  # fmt: skip


def test_an_extension_writes_attributes_that_the_class_does_not_declare(client: DynamoDBClient, table: str) -> None:
    class Stamping:
        def before_write(self, context: WriteContext) -> WriteModification:
            return WriteModification(item={**context.item, "at": 7, "old": None})

    notes = extended(client, table, Stamping())
    notes.put_item(Note(id="1"))
    assert stored(client, table) == {"id": {"S": "1"}, "at": {"N": "7"}}
    client.put_item(TableName=table, Item={"id": {"S": "1"}, "old": {"S": "x"}})
    notes.update_item(Note(id="1", text="a"))
    assert stored(client, table) == {"id": {"S": "1"}, "at": {"N": "7"}, "text": {"S": "a"}}


def test_an_extension_of_a_put_cannot_ask_for_an_update_expression(
    client: DynamoDBClient, table: str, sent: list[str]
) -> None:
    """The Java client drops it without a word."""

    class Always:
        def before_write(self, context: WriteContext) -> WriteModification:
            return WriteModification(expression=UpdateExpression().set("number", 1))

    for write in (extended(client, table, Always()).put_item, extended(client, table, Always()).put_write):
        with pytest.raises(ExpressionError, match=r"Always.*put_item takes no update expression"):
            write(Note(id="1"))
    assert sent == []


def test_keys_stay_as_they_are(client: DynamoDBClient, table: str, sent: list[str]) -> None:
    class Losing:
        def before_write(self, context: WriteContext) -> WriteModification:
            return WriteModification(item={"text": "a"})

    with pytest.raises(ExpressionError, match="id: a key cannot be changed"):
        Records(client, table, Note).update_item(Note(id="1"), expression=UpdateExpression().set("id", "2"))
    for write in (extended(client, table, Losing()).put_item, extended(client, table, Losing()).update_item):
        with pytest.raises(ExpressionError, match="id is a key of Note"):
            write(Note(id="1"))
    assert sent == []


# What the Java client documents: an expression with the request


@pytest.mark.parametrize("ignore_nulls", [False, True])
def test_an_expression_with_the_request_is_merged_and_what_it_writes_is_not_removed(
    notes: Records[Note], ignore_nulls: bool
) -> None:
    notes.put_item(Note(id="1", steps=["a", "b"]))
    after = notes.update_item(
        Note(id="1"), expression=UpdateExpression().set("steps[1]", "c"), ignore_nulls=ignore_nulls
    )
    assert after == notes.get_item("1") == Note(id="1", steps=["a", "c"])


def test_an_expression_with_the_request_works_in_a_transaction(client: DynamoDBClient, notes: Records[Note]) -> None:
    notes.put_item(Note(id="1", steps=["a", "b"]))
    write = notes.update_write(Note(id="1"), expression=UpdateExpression().set("steps[1]", "c").add("number", 4))
    client.transact_write_items(TransactItems=[write])  # type: ignore[list-item]
    assert notes.get_item("1") == Note(id="1", steps=["a", "c"], number=4)


@pytest.mark.parametrize(
    ("note", "expression"),
    [
        (Note(id="1", steps=["a"]), UpdateExpression().set("steps[1]", "c")),
        (Note(id="1", address={"a": "b"}), UpdateExpression().set("address.city", "c")),
        (Note(id="1", number=1), UpdateExpression().add("number", 1)),
    ],
)
def test_an_expression_that_overlaps_the_record_is_refused_by_name(
    notes: Records[Note], sent: list[str], note: Note, expression: UpdateExpression
) -> None:
    with pytest.raises(ExpressionError, match=r"the caller's expression\) and .* \(SET by the record\) overlap"):
        notes.update_item(note, expression=expression)
    assert sent == []


def test_lists_sets_and_sums_in_one_expression(notes: Records[Note]) -> None:
    notes.put_item(Note(id="1", steps=["a"], tags={"x", "y"}, number=5, text="t", address={"a": "1", "b": "2"}))
    expression = (
        UpdateExpression()
        .set_to("steps", "list_append(steps, :more)", values={":more": ["b", "c"]})
        .delete("tags", {"x"})
        .add("number", -7)
        .remove("address.a")
    )
    after = notes.update_item(Note(id="1", text="u"), expression=expression)
    assert after == Note(id="1", steps=["a", "b", "c"], tags={"y"}, number=-2, text="u", address={"b": "2"})


def test_the_engine_refuses_what_is_refused_here(client: DynamoDBClient, table: str) -> None:
    """So the local check is no stricter than the store, and refuses nothing that would have worked."""
    client.put_item(TableName=table, Item={"id": {"S": "1"}, "l": {"L": [{"N": "1"}, {"N": "2"}]}, "a": {"M": {}}})

    def on_the_engine(one: str, other: str) -> str:
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
        client.put_item(TableName=table, Item={"id": {"S": "1"}, "l": {"L": [{"N": "1"}, {"N": "2"}]}, "a": {"M": {}}})
