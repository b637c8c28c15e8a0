"""Records with atomic counters: what the Java enhanced client documents, and what here is asked for by name."""

from __future__ import annotations

import pickle
import re
import sys
from dataclasses import replace
from pathlib import Path as File
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from tally.errors import InvalidInputError, NotFoundError
from tally.records import (
    Condition,
    ExpressionError,
    RecordChangedError,
    RecordExistsError,
    Records,
    UpdateExpression,
)
from tests.unit.records.samples import Customer, Note, counts, faulty, new_table, stored

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

DOCUMENT = File(__file__).resolve().parents[3] / "docs" / "records.md"


# What the Java client documents: counters


def test_the_first_write_writes_the_start_and_each_update_adds_delta(customers: Records[Customer]) -> None:
    customer = Customer(id="1", name="Ada")
    assert counts(customers.update_item(customer)) == counts(customers.get_item("1")) == (0, 10, -20)
    for number in range(1, 21):
        assert counts(customers.update_item(customer)) == (number, 10 + 5 * number, -20 - number)
    assert customers.get_item("1") == Customer(id="1", name="Ada", visits=20, points=110, left=-40)
    assert counts(customers.put_item(Customer(id="2"))) == counts(customers.get_item("2")) == (0, 10, -20)
    assert counts(customers.update_item(Customer(id="2"))) == (1, 15, -21)


def test_a_counter_that_the_record_has_not_yet_begins_at_its_start(
    client: DynamoDBClient, customers: Records[Customer], table: str
) -> None:
    client.put_item(TableName=table, Item={"id": {"S": "1"}, "visits": {"N": "7"}})
    assert counts(customers.update_item(Customer(id="1"))) == (8, 10, -20)


def test_an_update_is_one_write_and_reads_itself_back(
    client: DynamoDBClient, customers: Records[Customer], table: str, sent: list[str]
) -> None:
    """Without `exact` it is one call, of half the price."""
    cheap = Records(client, table, Customer, exact=False)
    for records in (customers, cheap):
        records.update_item(Customer(id=f"1 {records is cheap}", name="Ada"))
        records.put_item(Customer(id=f"2 {records is cheap}"))
    assert sent == ["TransactWriteItems", "GetItem", "TransactWriteItems", "UpdateItem", "PutItem"]


@pytest.mark.parametrize("ignore_nulls", [False, True])
def test_a_counter_set_by_hand_is_refused_by_name_and_nothing_is_sent(
    customers: Records[Customer], sent: list[str], ignore_nulls: bool
) -> None:
    for counter, number in (("visits", 0), ("points", 10), ("left", 10)):
        by_hand = Customer(id="1")
        setattr(by_hand, counter, number)
        for write in (
            lambda one: customers.update_item(one, ignore_nulls=ignore_nulls),
            lambda one: customers.update_write(one, ignore_nulls=ignore_nulls),
            lambda one: customers.put_item(one, reset_counters=ignore_nulls),
            customers.put_write,
        ):
            with pytest.raises(InvalidInputError, match=counter) as refused:
                write(by_hand)
            assert refused.value.field == counter
    assert sent == []


def test_a_record_that_was_read_can_be_changed_and_written_back(customers: Records[Customer]) -> None:
    """The Java client first refused this, and changed it: aws-sdk-java-v2 pull request 4314."""
    customers.update_item(Customer(id="1", name="Ada"))
    read = customers.get_item("1")
    assert read is not None
    customers.update_item(Customer(id="1", name="Bob"))  # somebody else
    read.name = "Eva"
    assert customers.update_item(read) == Customer(id="1", name="Eva", visits=2, points=20, left=-22)
    again = pickle.loads(pickle.dumps(read))
    assert counts(customers.update_item(again)) == (3, 25, -23)


def test_a_counter_that_was_read_and_then_set_is_by_hand(customers: Records[Customer]) -> None:
    read = customers.update_item(Customer(id="1"))
    read.visits = 41
    with pytest.raises(InvalidInputError, match="visits"):
        customers.update_item(read)
    with pytest.raises(InvalidInputError, match="points"):
        customers.update_item(replace(read, visits=None))  # a new record: nobody read it
    assert counts(customers.update_item(replace(read, visits=None, points=None, left=None))) == (1, 15, -21)


def test_a_counter_moved_by_an_expression_is_refused_by_name(customers: Records[Customer], sent: list[str]) -> None:
    nothing = UpdateExpression()
    for expression in (nothing.set("visits", 7), nothing.remove("visits"), nothing.set("visits.x", 7)):
        with pytest.raises(ExpressionError, match=r"visits.*AtomicCounterExtension.*the caller's expression"):
            customers.update_item(Customer(id="1"), expression=expression)
    assert sent == []


# Asked for by name: put_item resets counters


def test_put_does_not_reset_counters_unless_it_is_asked_to(customers: Records[Customer], notes: Records[Note]) -> None:
    """Nor does it put a record that was read over itself. One without counters is just overwritten."""
    customers.update_item(Customer(id="1"))
    read = customers.update_item(Customer(id="1", name="Ada"))
    for again in (Customer(id="1", name="Eva"), read):
        with pytest.raises(RecordExistsError, match=r"id='1'.*visits, points, left.*reset_counters=True") as refused:
            customers.put_item(again)
        assert refused.value.status == 409
        kept = Customer(id="1", name="Ada", visits=1, points=15, left=-21)
        assert customers.from_item(refused.value.item) == customers.get_item("1") == kept
    reset = customers.put_item(Customer(id="1", name="Eva"), reset_counters=True)
    assert reset == customers.get_item("1") == Customer(id="1", name="Eva", visits=0, points=10, left=-20)
    notes.put_item(Note(id="2", text="a", number=1))
    assert notes.put_item(Note(id="2", text="b")) == notes.get_item("2") == Note(id="2", text="b")


def test_the_guard_of_put_is_in_the_write_itself(client: DynamoDBClient, customers: Records[Customer]) -> None:
    """So it also holds in a transaction, and against whoever comes between."""
    writes: list[Any] = [customers.put_write(Customer(id="1")), customers.update_write(Customer(id="1"))]
    for write in writes:
        client.transact_write_items(TransactItems=[write])
    with pytest.raises(client.exceptions.TransactionCanceledException) as cancelled:
        client.transact_write_items(TransactItems=writes[:1])
    (reason,) = cancelled.value.response["CancellationReasons"]
    assert reason["Code"] == "ConditionalCheckFailed"
    assert counts(customers.from_item(reason["Item"])) == counts(customers.get_item("1")) == (1, 15, -21)
    assert "ConditionExpression" not in customers.put_write(Customer(id="1"), reset_counters=True)["Put"]


# What the Java client documents: unset attributes


def test_unset_attributes_are_removed_by_an_update_and_stay_with_ignore_nulls(
    client: DynamoDBClient, notes: Records[Note], table: str
) -> None:
    """What the class does not declare stays in any case."""
    for ignore_nulls in (False, True):
        item: Any = {"id": {"S": "1"}, "likeTally": {"N": "7"}, "text": {"S": "a"}, "tags": {"SS": ["x"]}}
        client.put_item(TableName=table, Item=item)
        after = notes.update_item(Note(id="1", number=2), ignore_nulls=ignore_nulls)
        kept = Note(id="1", text="a", tags={"x"}, number=2) if ignore_nulls else Note(id="1", number=2)
        assert after == notes.get_item("1") == kept
        assert (stored(client, table) or {})["likeTally"] == {"N": "7"}


def test_an_update_makes_the_record_where_there_is_none(notes: Records[Note]) -> None:
    assert notes.update_item(Note(id="1", text="a")) == notes.get_item("1") == Note(id="1", text="a")
    assert notes.update_item(Note(id="2"), ignore_nulls=True) == notes.get_item("2") == Note(id="2")


@pytest.mark.parametrize("exact", [True, False])
def test_an_update_that_only_removes_says_that_it_made_no_record(
    client: DynamoDBClient, table: str, exact: bool
) -> None:
    """On DynamoDB, that is: aws-sdk-java-v2 issue 2761. The embedded engine makes one, so its answer is given here."""
    nothing = faulty(client, update_item=[{"ConsumedCapacity": {}}], get_item=[{"ConsumedCapacity": {}}])
    notes = Records(nothing, table, Note, exact=exact)
    with pytest.raises(NotFoundError, match=r"Note id='1'.*only removes"):
        notes.update_item(Note(id="1"))


# Conditions


def test_a_condition_that_holds_lets_the_write_through_and_one_that_does_not_writes_nothing(
    customers: Records[Customer],
) -> None:
    """Its placeholders are those that the generated expression could have used."""
    customers.update_item(Customer(id="1", name="Ada"))
    names, values = {"#n0": "name", "#n1": "visits"}, {":v0": "Ada", ":v1": 1}
    condition = Condition("#n0 = :v0 AND #n1 < :v1", names=names, values=values)
    kept = customers.update_item(Customer(id="1", name="Eva"), condition=condition)
    assert kept.visits == 1
    with pytest.raises(RecordChangedError, match="Customer id='1'") as refused:
        customers.update_item(Customer(id="1", name="Eva"), condition=condition)
    assert refused.value.status == 409
    assert refused.value.item is not None
    assert customers.from_item(refused.value.item) == customers.get_item("1") == kept


def test_the_condition_of_a_put_holds_beside_its_guard(customers: Records[Customer]) -> None:
    """An OR must not step out of the AND with the guard."""
    customers.update_item(Customer(id="1", name="Ada"))
    either = Condition("attribute_exists(id) OR attribute_not_exists(id)")
    with pytest.raises(RecordExistsError):
        customers.put_item(Customer(id="1"), condition=either)
    assert customers.put_item(Customer(id="2"), condition=either).visits == 0
    with pytest.raises(RecordChangedError):
        customers.put_item(Customer(id="1"), condition=Condition("visits = :n", values={":n": 7}), reset_counters=True)
    assert counts(customers.get_item("1")) == (0, 10, -20)


def test_an_update_of_nothing_is_no_entry_of_a_transaction(notes: Records[Note]) -> None:
    with pytest.raises(ExpressionError, match="Note id='1': there is nothing to write"):
        notes.update_write(Note(id="1"), ignore_nulls=True)


# The module


def test_the_examples_of_the_documentation_run(client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch) -> None:
    text = DOCUMENT.read_text()
    assert text.count("assert ") >= 12
    for name, keys in (("customers-table", ["id"]), ("posts-table", ["PK", "SK"])):
        text = text.replace(name, new_table(client, *keys))
    examples = ModuleType("examples_of_records")  # dataclasses look for the module of a class
    monkeypatch.setitem(sys.modules, examples.__name__, examples)
    examples.__dict__["client"] = client
    ran = 0
    for example in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        above = "\n" * text.count("\n", 0, example.start(1))  # so that a failure tells its line
        exec(compile(above + example[1], str(DOCUMENT), "exec"), examples.__dict__)
        ran += 1
    assert ran == text.count("```python") >= 8
