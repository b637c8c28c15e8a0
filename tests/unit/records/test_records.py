"""Records with atomic counters: the promises of the Java enhanced client, and the differences from it."""

from __future__ import annotations

import itertools
import pickle
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path as File
from types import ModuleType
from typing import Any

import pytest
from boto3.dynamodb.conditions import Attr
from botocore.exceptions import ClientError

from tally.dynamo.client import Store
from tally.errors import InvalidInputError, NotFoundError, StoreUnreachableError
from tally.records import (
    Action,
    AtomicCounterExtension,
    ExpressionError,
    Path,
    RecordChangedError,
    RecordExistsError,
    Records,
    WriteContext,
    WriteModification,
    if_not_exists,
    list_append,
)
from tests.unit.records.conftest import LOST, Customer, Note, RecordingClient, numbers_of

DOCUMENT = File(__file__).resolve().parents[3] / "docs" / "records.md"
BUSY = ClientError({"Error": {"Code": "ProvisionedThroughputExceededException", "Message": ""}}, "GetItem")


@pytest.mark.parametrize("exact", [True, False])
def test_the_first_write_writes_the_start_and_each_update_adds_delta(
    recording_client: Any, table: str, exact: bool
) -> None:
    """Many threads update at once. No two answers have the same number, except with `exact`, which reads afterwards."""
    customers = Records(recording_client, table, Customer, exact=exact)
    assert numbers_of(customers.update_item(Customer(id="1"))) == numbers_of(customers.get_item("1")) == (0, 10, -20)
    assert numbers_of(customers.put_item(Customer(id="2"))) == numbers_of(customers.get_item("2")) == (0, 10, -20)
    with ThreadPoolExecutor(16) as pool:
        after = list(pool.map(lambda n: customers.update_item(Customer(id="2", name=f"n{n}")), range(160)))
    assert numbers_of(customers.get_item("2")) == (160, 10 + 160 * 5, -20 - 160)
    assert exact or sorted(customer.visits or 0 for customer in after) == list(range(1, 161))


def test_a_counter_that_the_stored_record_lacks_begins_at_its_start(
    recording_client: Any, customers: Records[Customer], table: str
) -> None:
    recording_client.put_item(TableName=table, Item={"id": {"S": "1"}, "visits": {"N": "7"}})
    assert numbers_of(customers.update_item(Customer(id="1"))) == (8, 10, -20)


def test_an_update_is_one_write_and_one_read(recording_client: Any, customers: Records[Customer], table: str) -> None:
    """Without `exact` an update is one call, at half the price."""
    for records in (customers, Records(recording_client, table, Customer, exact=False)):
        records.update_item(Customer(id="1"))
        records.put_item(Customer(id="1"), reset_counters=True)
    calls = ["transact_write_items", "get_item", "transact_write_items", "update_item", "put_item"]
    assert recording_client.sent == calls


def test_an_error_names_a_counter_that_the_caller_sets_and_nothing_is_sent(
    recording_client: Any, customers: Records[Customer]
) -> None:
    for counter, number in (("visits", 0), ("points", 10), ("left", 10)):
        by_hand = Customer(id="1")
        setattr(by_hand, counter, number)
        for write in (customers.update_item, customers.update_write, customers.put_item, customers.put_write):
            with pytest.raises(InvalidInputError, match=f"{counter} is an atomic counter") as refused:
                write(by_hand)
            assert refused.value.field == counter
        with pytest.raises(ExpressionError, match=rf"{counter} \(SET by AtomicCounterExtension\).*by the caller"):
            customers.update_item(Customer(id="1"), actions=[Action.set(counter, 7)])
    assert recording_client.sent == []


def test_a_record_that_was_read_may_be_changed_and_written_except_its_counters(
    customers: Records[Customer],
) -> None:
    """Until aws-sdk-java-v2 pull request 4314, the Java client refused to update a record that it had read."""
    customers.update_item(Customer(id="1", name="Ada"))
    read: Any = customers.get_item("1")
    customers.update_item(Customer(id="1", name="Bob"))  # as another program would
    read.name = "Eva"
    assert customers.update_item(read) == Customer(id="1", name="Eva", visits=2, points=20, left=-22)
    assert numbers_of(customers.update_item(pickle.loads(pickle.dumps(read)))) == (3, 25, -23)
    with pytest.raises(InvalidInputError, match="points"):
        customers.update_item(replace(read, visits=None))  # replace makes a new record, which was not read
    read.visits = 41
    with pytest.raises(InvalidInputError, match="visits"):
        customers.update_item(read)


def test_put_resets_counters_only_with_reset_counters(customers: Records[Customer], notes: Records[Note]) -> None:
    """put_item also refuses a record that was read, and overwrites a record of a class without counters."""
    customers.update_item(Customer(id="1"))
    read = customers.update_item(Customer(id="1", name="Ada"))
    always_true = Attr("id").exists() | Attr("id").not_exists()  # so put_item's own condition refuses
    for overwriting in (Customer(id="1", name="Eva"), read):
        with pytest.raises(RecordExistsError, match=r"id='1'.*visits, points, left.*reset_counters=True") as refused:
            customers.put_item(overwriting, condition=always_true)
        assert refused.value.status == 409
        unchanged = Customer(id="1", name="Ada", visits=1, points=15, left=-21)
        assert customers.from_item(refused.value.item) == customers.get_item("1") == unchanged
    with pytest.raises(RecordChangedError):
        customers.put_item(Customer(id="1"), condition=Attr("visits").eq(7), reset_counters=True)
    reset = customers.put_item(Customer(id="1", name="Eva"), reset_counters=True)
    assert reset == customers.get_item("1") == Customer(id="1", name="Eva", visits=0, points=10, left=-20)
    notes.put_item(Note(id="2", text="a", number=1))
    assert notes.put_item(Note(id="2", text="b")) == notes.get_item("2") == Note(id="2", text="b")


def test_the_check_of_put_is_a_condition_of_the_write(recording_client: Any, customers: Records[Customer]) -> None:
    """So a put is also refused in a transaction, and if another write makes the record just before the put."""
    writes: list[Any] = [customers.put_write(Customer(id="1")), customers.update_write(Customer(id="1"))]
    for write in writes:
        recording_client.transact_write_items(TransactItems=[write])
    with pytest.raises(ClientError) as cancelled:
        recording_client.transact_write_items(TransactItems=writes[:1])
    (reason,) = cancelled.value.response["CancellationReasons"]  # type: ignore[typeddict-item]
    assert reason["Code"] == "ConditionalCheckFailed"
    assert numbers_of(customers.from_item(reason["Item"])) == numbers_of(customers.get_item("1")) == (1, 15, -21)


def test_unset_attributes_are_removed_by_an_update_and_stay_with_ignore_nulls(
    recording_client: Any, notes: Records[Note], table: str
) -> None:
    """An attribute that the class does not declare always stays."""
    for ignore_nulls in (False, True):
        item: Any = {"id": {"S": "1"}, "likeTally": {"N": "7"}, "text": {"S": "a"}, "tags": {"SS": ["x"]}}
        recording_client.put_item(TableName=table, Item=item)
        after = notes.update_item(Note(id="1", number=2), ignore_nulls=ignore_nulls)
        expected = Note(id="1", text="a", tags={"x"}, number=2) if ignore_nulls else Note(id="1", number=2)
        assert after == notes.get_item("1") == expected
        assert recording_client.get_item(TableName=table, Key={"id": {"S": "1"}})["Item"]["likeTally"] == {"N": "7"}


@pytest.mark.parametrize("exact", [True, False])
def test_an_update_makes_a_missing_record_unless_it_only_removes_attributes(
    store: Store, notes: Records[Note], table: str, exact: bool
) -> None:
    """DynamoDB makes no such record (aws-sdk-java-v2 issue 2761), but the engine does. `dynamodb` acts as DynamoDB."""
    assert notes.update_item(Note(id="1"), ignore_nulls=True) == notes.get_item("1") == Note(id="1")
    dynamodb: Any = RecordingClient(store, update_item=[{"ConsumedCapacity": {}}], get_item=[{"ConsumedCapacity": {}}])
    with pytest.raises(NotFoundError, match=r"Note id='2'.*only removes"):
        Records(dynamodb, table, Note, exact=exact).update_item(Note(id="2"))


def test_a_condition_that_does_not_hold_writes_nothing(customers: Records[Customer]) -> None:
    customers.update_item(Customer(id="1", name="Ada"))
    condition = Attr("name").eq("Ada") & (Attr("visits").is_in([0, 7]) | ~Attr("visits").between(0, 9))
    updated = customers.update_item(Customer(id="1", name="Eva"), condition=condition)
    assert updated.visits == 1
    with pytest.raises(RecordChangedError, match="Customer id='1'") as refused:
        customers.update_item(Customer(id="1", name="Eva"), condition=condition & Attr("name").size().gt(0))
    assert refused.value.status == 409
    assert refused.value.item is not None
    assert customers.from_item(refused.value.item) == customers.get_item("1") == updated


@pytest.mark.parametrize("ignore_nulls", [False, True])
def test_actions_change_parts_of_a_record_and_no_update_removes_these_parts(
    notes: Records[Note], ignore_nulls: bool
) -> None:
    notes.put_item(Note(id="1", steps=["a", "b"], tags={"x", "y"}, number=5, text="t", address={"a": "1", "b": "2"}))
    actions = [
        Action.add("number", -7), Action.delete("tags", {"x"}), Action.remove("address.a"),
        Action.set(Path("address", "c.d"), if_not_exists("text", "none")), Action.set("steps[0]", "z"),
    ]  # fmt: skip
    after = notes.update_item(Note(id="1", text="u"), actions=actions, ignore_nulls=ignore_nulls)
    changed = Note(id="1", steps=["z", "b"], tags={"y"}, number=-2, text="u", address={"b": "2", "c.d": "t"})
    assert after == changed
    # Sets the number to 3 + 4 (none is no attribute), then to 7 - 1, then to 9 - 6.
    for number, operand in enumerate((if_not_exists("none", 3) + 4, Path("number") - 1, 9 - Path("number")), 7):
        longer_steps = list_append(if_not_exists("steps", []), [str(number)])
        actions = [Action.set("number", operand), Action.set("steps", longer_steps)]
        after = notes.update_item(Note(id="1"), actions=actions, ignore_nulls=True)
        assert after.steps is not None
        assert (after.number, after.steps[-1]) == ({7: 3 + 4, 8: 7 - 1, 9: 9 - 6}[number], str(number))


def test_an_invalid_path_is_refused() -> None:
    for text in ("", ".", "a.", ".a", "a..b", "a[", "a[]", "a[-1]", "a[x]", "[0]", "a[9999999999]", "a[0]b"):
        with pytest.raises(ExpressionError, match="not a document path"):
            Action.remove(text)


def test_overlapping_paths_are_refused_as_the_engine_refuses_them(
    recording_client: Any, table: str, notes: Records[Note]
) -> None:
    """`Records` refuses overlapping paths before it sends a write. This check must agree with the engine."""
    item: Any = {"id": {"S": "1"}, "l": {"L": [{"N": "1"}, {"N": "2"}]}, "a": {"M": {}}}
    for first, second in itertools.product(["a", "a.b", "a.c", "l", "l[0]", "l[1]"], repeat=2):
        actions = [Action.set(first, {"x": 1}), Action.set(second, {"x": 1})]
        refusal, overlaps = "", actions[0].overlaps(actions[1])
        recording_client.put_item(TableName=table, Item=item)
        set_ = {"UpdateExpression": f"SET {first} = :v, {second} = :v", "ExpressionAttributeValues": {":v": {"M": {}}}}
        try:
            recording_client.update_item(TableName=table, Key={"id": {"S": "1"}}, **set_)
        except ClientError as error:
            refusal = str(error)
        assert ("overlap" in refusal) == overlaps, (first, second)
        if overlaps:
            with pytest.raises(ExpressionError, match="overlap"):
                notes.update_item(Note(id="1"), actions=actions)


class Extension:
    """An extension that makes the same change to every write."""

    def __init__(self, change: Callable[[WriteContext], WriteModification | None]) -> None:
        self.before_write = change


def extension_of(*actions: Action) -> Extension:
    return Extension(lambda _: WriteModification(actions=actions))


@pytest.mark.parametrize("ignore_nulls", [False, True])
def test_changes_of_extensions_are_merged_and_no_update_removes_them(
    recording_client: Any, table: str, ignore_nulls: bool
) -> None:
    """An update keeps the other parts of an attribute that an extension changes in part. All conditions must hold."""
    add_5, move_city = Action.set("number", if_not_exists("number", 0) + 5), Action.set("address.city", "Paris")
    below_12 = Extension(lambda _: WriteModification(condition=Attr("number").lt(12)))
    notes = Records(recording_client, table, Note, extensions=[extension_of(add_5), extension_of(move_city), below_12])
    Records(recording_client, table, Note).put_item(Note(id="1", address={"city": "Rome", "zip": "1"}, number=5))
    for number in (10, 15):
        after = notes.update_item(Note(id="1", text="a"), ignore_nulls=ignore_nulls)
        assert after == Note(id="1", text="a", address={"city": "Paris", "zip": "1"}, number=number)
    with pytest.raises(RecordChangedError):  # because of `below_12`: the number is 15
        notes.update_item(Note(id="1"), ignore_nulls=ignore_nulls, condition=Attr("number").exists())


def test_an_error_names_what_an_extension_may_not_change(recording_client: Any, table: str) -> None:
    """The Java client drops an extension's actions in a put, and reports no error."""
    setter = extension_of(Action.set("number", 1))
    without_key = Extension(lambda _: WriteModification(item={"text": "a"}))
    refusals: list[tuple[list[Any], str, Note, str]] = [
        (
            [setter],
            "update_item",
            Note(id="1", number=9),
            r"number \(SET by Extension\) and number \(SET by the record\)",
        ),
        ([setter] * 2, "update_item", Note(id="1"), r"number \(SET by Extension\) and number \(SET by Extension\)"),
        ([setter], "put_item", Note(id="1"), "Extension.*put_item takes no actions"),
        ([setter], "put_write", Note(id="1"), "Extension.*put_item takes no actions"),
        ([extension_of(Action.set("id", "2"))], "update_item", Note(id="1"), "id: a key cannot be changed"),
        ([without_key], "put_item", Note(id="1"), "id is a key of Note"),
        ([without_key], "update_item", Note(id="1"), "id is a key of Note"),
    ]
    for extensions, write, note, why in refusals:
        with pytest.raises(ExpressionError, match=why):
            getattr(Records(recording_client, table, Note, extensions=extensions), write)(note)
    assert recording_client.sent == []


def test_extensions_run_in_order_and_counters_move_first_unless_the_list_names_their_extension(
    recording_client: Any, table: str
) -> None:
    """In the Java client a list of extensions replaces the default list, so that counters do not count."""
    visits_seen: list[object] = []

    def append(letter: str) -> Extension:
        return Extension(
            lambda context: WriteModification(item={**context.item, "name": f"{context.item['name']}{letter}"})
        )

    observer = Extension(lambda context: visits_seen.append(context.item.get("visits", "nothing")))
    first = Records(recording_client, table, Customer, extensions=[observer, *map(append, "bcd")])
    assert (first.put_item(Customer(id="1", name="a")).name, visits_seen) == ("abcd", [0])
    assert (first.update_item(Customer(id="1", name="x")).name, first.get_item("1")) == (
        "xbcd", Customer(id="1", name="xbcd", visits=1, points=15, left=-21),
    )  # fmt: skip
    last = Records(recording_client, table, Customer, extensions=[observer, AtomicCounterExtension()])
    assert (numbers_of(last.put_item(Customer(id="2"))), visits_seen[-1]) == ((0, 10, -20), "nothing")


def test_a_repeated_update_counts_twice_but_once_if_it_has_a_condition_on_the_version(store: Store, table: str) -> None:
    """docs/records.md says so. The record's version here is its number of visits."""

    def records_that_lose_an_answer() -> Records[Customer]:
        losing_client: Any = RecordingClient(store, transact_write_items=[LOST])
        return Records(losing_client, table, Customer)

    for condition in (None, Attr("visits").eq(1)):
        customers = records_that_lose_an_answer()
        with pytest.raises(StoreUnreachableError):
            customers.update_item(Customer(id="1"), condition=condition)
        if condition is None:
            assert customers.update_item(Customer(id="1")).visits == 1  # the update whose answer was lost made 0
        else:
            with pytest.raises(RecordChangedError):
                customers.update_item(Customer(id="1"), condition=condition)
    assert numbers_of(customers.get_item("1")) == (2, 20, -22)


def test_a_read_waits_for_a_busy_store_and_an_answer_that_was_cut_is_an_error(
    store: Store, customers: Records[Customer], table: str
) -> None:
    """botocore returns `{}` for an answer that was cut."""
    customers.put_item(Customer(id="1"))
    busy: Any = RecordingClient(store, get_item=[BUSY, BUSY, None, {}, {}], update_item=[{}])
    faulty = Records(busy, table, Customer)
    assert numbers_of(faulty.get_item("1")) == (0, 10, -20)
    inexact = Records(busy, table, Customer, exact=False)
    for call in (faulty.update_item, lambda _: faulty.get_item("1"), inexact.update_item):
        with pytest.raises(StoreUnreachableError):
            call(Customer(id="1"))


def test_the_examples_of_the_documentation_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    text = DOCUMENT.read_text()
    assert text.count("assert ") >= 12
    text = text.replace("customers-table", store.settings.receipts_table)
    text = text.replace("posts-table", store.settings.counts_table)
    examples = ModuleType("examples_of_records")  # dataclasses look for the module of a class
    monkeypatch.setitem(sys.modules, examples.__name__, examples)
    examples.__dict__["client"] = store.client
    examples_run = 0
    for example in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        lines_above = "\n" * text.count("\n", 0, example.start(1))  # so that a failure names its line of the page
        exec(compile(lines_above + example[1], str(DOCUMENT), "exec"), examples.__dict__)
        examples_run += 1
    assert examples_run == text.count("```python") >= 8
