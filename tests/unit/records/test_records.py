"""Records with atomic counters: what the Java enhanced client documents, and what here is asked for by name."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
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
    WriteContext,
    WriteModification,
)
from tests.unit.records.samples import Customer, Meta, Note, counts, faulty, new_table, stored

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

DOCUMENT = File(__file__).resolve().parents[3] / "docs" / "records.md"


# What the Java client documents: counters


def test_the_first_update_writes_the_start_and_the_next_adds_delta(customers: Records[Customer]) -> None:
    customer = Customer(id="1", name="Ada")
    assert counts(customers.update_item(customer)) == (0, 10, -20)
    assert counts(customers.get_item("1")) == (0, 10, -20)
    assert counts(customers.update_item(customer)) == (1, 15, -21)
    assert customers.get_item("1") == Customer(id="1", name="Ada", visits=1, points=15, left=-21)


def test_fifty_updates_are_fifty_deltas(customers: Records[Customer]) -> None:
    for _ in range(51):
        customers.update_item(Customer(id="1"))
    assert counts(customers.get_item("1")) == (50, 10 + 50 * 5, -20 - 50)


def test_put_writes_the_start_and_updates_go_on_from_there(customers: Records[Customer]) -> None:
    assert counts(customers.put_item(Customer(id="1", name="Ada"))) == (0, 10, -20)
    assert counts(customers.get_item("1")) == (0, 10, -20)
    assert counts(customers.update_item(Customer(id="1", name="Ada"))) == (1, 15, -21)


def test_a_counter_that_the_record_has_not_yet_begins_at_its_start(
    client: DynamoDBClient, customers: Records[Customer], table: str
) -> None:
    client.put_item(TableName=table, Item={"id": {"S": "1"}, "visits": {"N": "7"}})
    assert counts(customers.update_item(Customer(id="1"))) == (8, 10, -20)


def test_put_and_update_inside_transactions_move_the_counters(
    client: DynamoDBClient, customers: Records[Customer]
) -> None:
    for write in (
        customers.put_write(Customer(id="1", name="Ada")),
        customers.update_write(Customer(id="1", name="Eva")),
    ):
        client.transact_write_items(TransactItems=[write])  # type: ignore[list-item]
    assert customers.get_item("1") == Customer(id="1", name="Eva", visits=1, points=15, left=-21)


def test_an_update_is_one_write_and_reads_itself_back(customers: Records[Customer], sent: list[str]) -> None:
    customers.update_item(Customer(id="1", name="Ada"))
    customers.put_item(Customer(id="2"))
    assert sent == ["TransactWriteItems", "GetItem", "TransactWriteItems"]


def test_without_exact_an_update_is_one_call_of_half_the_price(
    client: DynamoDBClient, table: str, sent: list[str]
) -> None:
    cheap = Records(client, table, Customer, exact=False)
    cheap.update_item(Customer(id="1", name="Ada"))
    cheap.put_item(Customer(id="2"))
    assert sent == ["UpdateItem", "PutItem"]


@pytest.mark.parametrize("counter", ["visits", "points", "left"])
@pytest.mark.parametrize("ignore_nulls", [False, True])
def test_a_counter_set_by_hand_is_refused_by_name_and_nothing_is_sent(
    customers: Records[Customer], sent: list[str], counter: str, ignore_nulls: bool
) -> None:
    by_hand = Customer(id="1")
    setattr(by_hand, counter, 10)
    for write in (
        lambda: customers.update_item(by_hand, ignore_nulls=ignore_nulls),
        lambda: customers.update_write(by_hand, ignore_nulls=ignore_nulls),
        lambda: customers.put_item(by_hand),
        lambda: customers.put_item(by_hand, reset_counters=True),
        lambda: customers.put_write(by_hand),
    ):
        with pytest.raises(InvalidInputError, match=counter) as refused:
            write()
        assert refused.value.field == counter
    assert sent == []


def test_zero_by_hand_is_by_hand(customers: Records[Customer], sent: list[str]) -> None:
    with pytest.raises(InvalidInputError, match="visits"):
        customers.update_item(Customer(id="1", visits=0))
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


def test_a_counter_that_was_read_and_then_set_is_by_hand(customers: Records[Customer], sent: list[str]) -> None:
    read = customers.update_item(Customer(id="1"))
    sent.clear()
    read.visits = 41
    with pytest.raises(InvalidInputError, match="visits"):
        customers.update_item(read)
    with pytest.raises(InvalidInputError, match="points"):
        customers.update_item(replace(read, visits=None))  # a new record: nobody read it
    assert sent == []
    assert counts(customers.update_item(replace(read, visits=None, points=None, left=None))) == (1, 15, -21)


@pytest.mark.parametrize(
    "expression",
    [
        UpdateExpression().set("visits", 7),
        UpdateExpression().remove("visits"),
        UpdateExpression().add("visits", 7),
        UpdateExpression().set("visits.x", 7),
        UpdateExpression().set_to("visits", "visits + :n", values={":n": 7}),
    ],
)
def test_a_counter_moved_by_an_expression_is_refused_by_name(
    customers: Records[Customer], sent: list[str], expression: UpdateExpression
) -> None:
    with pytest.raises(ExpressionError, match="AtomicCounterExtension") as refused:
        customers.update_item(Customer(id="1"), expression=expression)
    assert "visits" in refused.value.detail
    assert "the caller's expression" in refused.value.detail
    assert sent == []


# Asked for by name: put_item resets counters


def test_put_does_not_reset_counters_unless_it_is_asked_to(customers: Records[Customer]) -> None:
    customers.update_item(Customer(id="1"))
    customers.update_item(Customer(id="1", name="Ada"))
    with pytest.raises(RecordExistsError, match=r"id='1'.*visits, points, left.*reset_counters=True") as refused:
        customers.put_item(Customer(id="1", name="Eva"))
    assert refused.value.status == 409
    kept = Customer(id="1", name="Ada", visits=1, points=15, left=-21)
    assert customers.from_item(refused.value.item) == customers.get_item("1") == kept
    reset = customers.put_item(Customer(id="1", name="Eva"), reset_counters=True)
    assert reset == customers.get_item("1") == Customer(id="1", name="Eva", visits=0, points=10, left=-20)


def test_a_record_that_was_read_is_not_put_over_itself(customers: Records[Customer]) -> None:
    customers.put_item(Customer(id="1"))
    read = customers.update_item(Customer(id="1"))
    with pytest.raises(RecordExistsError):
        customers.put_item(read)
    assert counts(customers.get_item("1")) == (1, 15, -21)


def test_the_guard_of_put_is_in_the_write_itself(client: DynamoDBClient, customers: Records[Customer]) -> None:
    """So it also holds in a transaction, and against whoever comes between."""
    customers.update_item(Customer(id="1"))
    with pytest.raises(client.exceptions.TransactionCanceledException) as cancelled:
        client.transact_write_items(TransactItems=[customers.put_write(Customer(id="1"))])  # type: ignore[list-item]
    (reason,) = cancelled.value.response["CancellationReasons"]
    assert reason["Code"] == "ConditionalCheckFailed"
    assert counts(customers.from_item(reason["Item"])) == (0, 10, -20)
    assert "ConditionExpression" not in customers.put_write(Customer(id="1"), reset_counters=True)["Put"]


def test_a_class_without_counters_is_just_overwritten(notes: Records[Note]) -> None:
    notes.put_item(Note(id="1", text="a", number=1))
    assert notes.put_item(Note(id="1", text="b")) == notes.get_item("1") == Note(id="1", text="b")


# What the Java client documents: unset attributes


def test_unset_attributes_are_removed_by_an_update(notes: Records[Note]) -> None:
    notes.put_item(Note(id="1", text="a", number=1, tags={"x"}))
    assert notes.update_item(Note(id="1", number=2)) == notes.get_item("1") == Note(id="1", number=2)


def test_unset_attributes_stay_with_ignore_nulls(notes: Records[Note]) -> None:
    notes.put_item(Note(id="1", text="a", number=1))
    expected = Note(id="1", text="a", number=2)
    assert notes.update_item(Note(id="1", number=2), ignore_nulls=True) == notes.get_item("1") == expected


def test_what_the_class_does_not_declare_stays(client: DynamoDBClient, notes: Records[Note], table: str) -> None:
    client.put_item(TableName=table, Item={"id": {"S": "1"}, "likeTally": {"N": "7"}, "text": {"S": "a"}})
    notes.update_item(Note(id="1", number=2))
    assert stored(client, table) == {"id": {"S": "1"}, "likeTally": {"N": "7"}, "number": {"N": "2"}}


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


def test_a_write_whose_condition_does_not_hold_writes_nothing(customers: Records[Customer]) -> None:
    customers.update_item(Customer(id="1", name="Ada"))
    with pytest.raises(RecordChangedError, match="Customer id='1'") as refused:
        customers.update_item(Customer(id="1", name="Eva"), condition=Condition("visits = :v0", values={":v0": 7}))
    assert refused.value.status == 409
    assert refused.value.item is not None
    kept = Customer(id="1", name="Ada", visits=0, points=10, left=-20)
    assert customers.from_item(refused.value.item) == customers.get_item("1") == kept


def test_a_condition_that_holds_lets_the_write_through(customers: Records[Customer]) -> None:
    """Its placeholders are those that the generated expression could have used."""
    customers.update_item(Customer(id="1", name="Ada"))
    condition = Condition(
        "#n0 = :v0 AND #n1 < :v1", names={"#n0": "name", "#n1": "visits"}, values={":v0": "Ada", ":v1": 1}
    )
    assert customers.update_item(Customer(id="1", name="Eva"), condition=condition).visits == 1
    with pytest.raises(RecordChangedError):
        customers.update_item(Customer(id="1", name="Eva"), condition=condition)


def test_a_condition_on_nothing_says_that_nothing_is_there(customers: Records[Customer], notes: Records[Note]) -> None:
    there = Condition("attribute_exists(id)")
    for write in (
        lambda: customers.update_item(Customer(id="1"), condition=there),
        lambda: customers.put_item(Customer(id="1"), condition=there),  # nothing to reset: not RecordExistsError
        lambda: notes.put_item(Note(id="1"), condition=there),
    ):
        with pytest.raises(RecordChangedError) as refused:
            write()
        assert refused.value.item is None
    assert customers.get_item("1") is None


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


def test_conditions_of_extensions_and_caller_must_all_hold(client: DynamoDBClient, table: str) -> None:
    class Bounded:
        def before_write(self, context: WriteContext) -> WriteModification:
            return WriteModification(
                condition=Condition("attribute_not_exists(number) OR number < :n", values={":n": 2})
            )

    notes = Records(client, table, Note, extensions=[Bounded()])
    unlocked = Condition("attribute_not_exists(locked) OR attribute_exists(id)")
    for number in (1, 2):
        notes.update_item(Note(id="1", number=number), condition=unlocked)
    for write in (notes.update_item, notes.put_item):
        with pytest.raises(RecordChangedError):
            write(Note(id="1", number=3), condition=unlocked)
    assert notes.get_item("1") == Note(id="1", number=2)


def test_revision_of_a_post_counts_edits_in_a_transaction(client: DynamoDBClient, metas: Records[Meta]) -> None:
    """As posts use it: 0 on creation, 1 more with each edit, and an edit of what somebody else edited is refused."""
    key: dict[str, Any] = {"post": "POST#a91f", "part": "META"}
    client.transact_write_items(TransactItems=[metas.put_write(Meta(**key, author="7c20"))])  # type: ignore[list-item]

    def edit(seen: int) -> None:
        unmoved = Condition("revision = :seen", values={":seen": seen})
        write = metas.update_write(Meta(**key), condition=unmoved, ignore_nulls=True)
        client.transact_write_items(TransactItems=[write])  # type: ignore[list-item]

    edit(0)
    edit(1)
    with pytest.raises(client.exceptions.TransactionCanceledException) as cancelled:
        edit(1)
    assert metas.from_item(cancelled.value.response["CancellationReasons"][0]["Item"]).revision == 2
    assert metas.get_item("POST#a91f", "META") == Meta(**key, author="7c20", revision=2)


def test_an_update_of_nothing_is_no_entry_of_a_transaction(notes: Records[Note]) -> None:
    with pytest.raises(ExpressionError, match="Note id='1': there is nothing to write"):
        notes.update_write(Note(id="1"), ignore_nulls=True)


# The module


def test_importing_records_is_cheap() -> None:
    """Beside what tally.store has imported there is nothing but tally's own and the standard library's."""
    code = """if True:
        import sys, tally.dynamo.transactions
        before = set(sys.modules)
        import tally.records
        print(*(set(sys.modules) - before))
    """
    environment = {**os.environ, "PYTHONPATH": "lambdas"}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    beyond = {name.partition(".")[0] for name in done.stdout.split()} - set(sys.stdlib_module_names)
    assert beyond == {"tally"}


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
