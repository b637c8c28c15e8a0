"""Records with atomic counters: what the Java enhanced client documents, and what here is asked for by name."""

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
from tests.unit.records.conftest import LOST, Customer, Note, RecordingClient, counts

DOCUMENT = File(__file__).resolve().parents[3] / "docs" / "records.md"
BUSY = ClientError({"Error": {"Code": "ProvisionedThroughputExceededException", "Message": ""}}, "GetItem")

# Counters


@pytest.mark.parametrize("exact", [True, False])
def test_the_first_write_writes_the_start_and_each_update_adds_delta(between: Any, table: str, exact: bool) -> None:
    """Whoever counts at once. Without `exact` each update sees numbers of its own."""
    customers = Records(between, table, Customer, exact=exact)
    assert counts(customers.update_item(Customer(id="1"))) == counts(customers.get_item("1")) == (0, 10, -20)
    assert counts(customers.put_item(Customer(id="2"))) == counts(customers.get_item("2")) == (0, 10, -20)
    with ThreadPoolExecutor(16) as pool:
        after = list(pool.map(lambda n: customers.update_item(Customer(id="2", name=f"n{n}")), range(160)))
    assert counts(customers.get_item("2")) == (160, 10 + 160 * 5, -20 - 160)
    assert exact or sorted(customer.visits or 0 for customer in after) == list(range(1, 161))


def test_a_counter_that_the_record_has_not_yet_begins_at_its_start(
    between: Any, customers: Records[Customer], table: str
) -> None:
    between.put_item(TableName=table, Item={"id": {"S": "1"}, "visits": {"N": "7"}})
    assert counts(customers.update_item(Customer(id="1"))) == (8, 10, -20)


def test_an_update_is_one_write_and_reads_itself_back(between: Any, customers: Records[Customer], table: str) -> None:
    """Without `exact` it is one call, of half the price."""
    for records in (customers, Records(between, table, Customer, exact=False)):
        records.update_item(Customer(id="1"))
        records.put_item(Customer(id="1"), reset_counters=True)
    assert between.sent == ["transact_write_items", "get_item", "transact_write_items", "update_item", "put_item"]


def test_a_counter_set_by_hand_is_refused_by_name_and_nothing_is_sent(
    between: Any, customers: Records[Customer]
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
    assert between.sent == []


def test_a_record_that_was_read_can_be_changed_and_written_back_but_for_its_counters(
    customers: Records[Customer],
) -> None:
    """The Java client first refused this, and changed it: aws-sdk-java-v2 pull request 4314."""
    customers.update_item(Customer(id="1", name="Ada"))
    read: Any = customers.get_item("1")
    customers.update_item(Customer(id="1", name="Bob"))  # somebody else
    read.name = "Eva"
    assert customers.update_item(read) == Customer(id="1", name="Eva", visits=2, points=20, left=-22)
    assert counts(customers.update_item(pickle.loads(pickle.dumps(read)))) == (3, 25, -23)
    with pytest.raises(InvalidInputError, match="points"):
        customers.update_item(replace(read, visits=None))  # a new record: nobody read it
    read.visits = 41
    with pytest.raises(InvalidInputError, match="visits"):
        customers.update_item(read)


# Asked for by name: put_item resets counters


def test_put_does_not_reset_counters_unless_it_is_asked_to(customers: Records[Customer], notes: Records[Note]) -> None:
    """Nor does it put a record that was read over itself. One without counters is just overwritten."""
    customers.update_item(Customer(id="1"))
    read = customers.update_item(Customer(id="1", name="Ada"))
    for again in (Customer(id="1", name="Eva"), read):
        with pytest.raises(RecordExistsError, match=r"id='1'.*visits, points, left.*reset_counters=True") as refused:
            customers.put_item(again, condition=Attr("id").exists() | Attr("id").not_exists())  # no OR leaves the AND
        assert refused.value.status == 409
        kept = Customer(id="1", name="Ada", visits=1, points=15, left=-21)
        assert customers.from_item(refused.value.item) == customers.get_item("1") == kept
    with pytest.raises(RecordChangedError):
        customers.put_item(Customer(id="1"), condition=Attr("visits").eq(7), reset_counters=True)
    reset = customers.put_item(Customer(id="1", name="Eva"), reset_counters=True)
    assert reset == customers.get_item("1") == Customer(id="1", name="Eva", visits=0, points=10, left=-20)
    notes.put_item(Note(id="2", text="a", number=1))
    assert notes.put_item(Note(id="2", text="b")) == notes.get_item("2") == Note(id="2", text="b")


def test_the_guard_of_put_is_in_the_write_itself(between: Any, customers: Records[Customer]) -> None:
    """So it also holds in a transaction, and against whoever comes between."""
    writes: list[Any] = [customers.put_write(Customer(id="1")), customers.update_write(Customer(id="1"))]
    for write in writes:
        between.transact_write_items(TransactItems=[write])
    with pytest.raises(ClientError) as cancelled:
        between.transact_write_items(TransactItems=writes[:1])
    (reason,) = cancelled.value.response["CancellationReasons"]  # type: ignore[typeddict-item]
    assert reason["Code"] == "ConditionalCheckFailed"
    assert counts(customers.from_item(reason["Item"])) == counts(customers.get_item("1")) == (1, 15, -21)


# Unset attributes


def test_unset_attributes_are_removed_by_an_update_and_stay_with_ignore_nulls(
    between: Any, notes: Records[Note], table: str
) -> None:
    """What the class does not declare stays in any case."""
    for ignore_nulls in (False, True):
        item: Any = {"id": {"S": "1"}, "likeTally": {"N": "7"}, "text": {"S": "a"}, "tags": {"SS": ["x"]}}
        between.put_item(TableName=table, Item=item)
        after = notes.update_item(Note(id="1", number=2), ignore_nulls=ignore_nulls)
        kept = Note(id="1", text="a", tags={"x"}, number=2) if ignore_nulls else Note(id="1", number=2)
        assert after == notes.get_item("1") == kept
        assert between.get_item(TableName=table, Key={"id": {"S": "1"}})["Item"]["likeTally"] == {"N": "7"}


@pytest.mark.parametrize("exact", [True, False])
def test_an_update_makes_the_record_where_there_is_none_unless_it_only_removes(
    store: Store, notes: Records[Note], table: str, exact: bool
) -> None:
    """On DynamoDB, that is: aws-sdk-java-v2 issue 2761. The embedded engine makes one, so its answer is given here."""
    assert notes.update_item(Note(id="1"), ignore_nulls=True) == notes.get_item("1") == Note(id="1")
    nothing: Any = RecordingClient(store, update_item=[{"ConsumedCapacity": {}}], get_item=[{"ConsumedCapacity": {}}])
    with pytest.raises(NotFoundError, match=r"Note id='2'.*only removes"):
        Records(nothing, table, Note, exact=exact).update_item(Note(id="2"))


# Conditions and actions


def test_a_condition_that_does_not_hold_writes_nothing(customers: Records[Customer]) -> None:
    customers.update_item(Customer(id="1", name="Ada"))
    condition = Attr("name").eq("Ada") & (Attr("visits").is_in([0, 7]) | ~Attr("visits").between(0, 9))
    kept = customers.update_item(Customer(id="1", name="Eva"), condition=condition)
    assert kept.visits == 1
    with pytest.raises(RecordChangedError, match="Customer id='1'") as refused:
        customers.update_item(Customer(id="1", name="Eva"), condition=condition & Attr("name").size().gt(0))
    assert refused.value.status == 409
    assert refused.value.item is not None
    assert customers.from_item(refused.value.item) == customers.get_item("1") == kept


@pytest.mark.parametrize("ignore_nulls", [False, True])
def test_actions_change_parts_of_a_record_and_what_they_write_is_not_removed(
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
    for number, operand in enumerate((if_not_exists("none", 3) + 4, Path("number") - 1, 9 - Path("number")), 7):
        more = list_append(if_not_exists("steps", []), [str(number)])
        actions = [Action.set("number", operand), Action.set("steps", more)]
        after = notes.update_item(Note(id="1"), actions=actions, ignore_nulls=True)
        assert after.steps is not None
        assert (after.number, after.steps[-1]) == ({7: 7, 8: 6, 9: 3}[number], str(number))


def test_an_invalid_path_is_refused() -> None:
    for text in ("", ".", "a.", ".a", "a..b", "a[", "a[]", "a[-1]", "a[x]", "[0]", "a[9999999999]", "a[0]b"):
        with pytest.raises(ExpressionError, match="not a document path"):
            Action.remove(text)


def test_overlapping_paths_are_refused_as_the_engine_refuses_them(
    between: Any, table: str, notes: Records[Note]
) -> None:
    """So the local check is no stricter than the store."""
    item: Any = {"id": {"S": "1"}, "l": {"L": [{"N": "1"}, {"N": "2"}]}, "a": {"M": {}}}
    for first, second in itertools.product(["a", "a.b", "a.c", "l", "l[0]", "l[1]"], repeat=2):
        actions = [Action.set(first, {"x": 1}), Action.set(second, {"x": 1})]
        there, here = "", actions[0].overlaps(actions[1])
        between.put_item(TableName=table, Item=item)
        texts = {"UpdateExpression": f"SET {first} = :v, {second} = :v", "ExpressionAttributeValues": {":v": {"M": {}}}}
        try:
            between.update_item(TableName=table, Key={"id": {"S": "1"}}, **texts)
        except ClientError as error:
            there = str(error)
        assert ("overlap" in there) == here, (first, second)
        if here:
            with pytest.raises(ExpressionError, match="overlap"):
                notes.update_item(Note(id="1"), actions=actions)


# Extensions


class Doing:
    """An extension that makes one change to every write."""

    def __init__(self, does: Callable[[WriteContext], WriteModification | None]) -> None:
        self.before_write = does


def setting(*actions: Action) -> Doing:
    return Doing(lambda _: WriteModification(actions=actions))


@pytest.mark.parametrize("ignore_nulls", [False, True])
def test_writes_of_extensions_are_merged_and_not_removed(between: Any, table: str, ignore_nulls: bool) -> None:
    """Nor what they write in part. All conditions must hold."""
    more, part = Action.set("number", if_not_exists("number", 0) + 5), Action.set("address.city", "Paris")
    only = Doing(lambda _: WriteModification(condition=Attr("number").lt(12)))
    notes = Records(between, table, Note, extensions=[setting(more), setting(part), only])
    Records(between, table, Note).put_item(Note(id="1", address={"city": "Rome", "zip": "1"}, number=5))
    for number in (10, 15):
        after = notes.update_item(Note(id="1", text="a"), ignore_nulls=ignore_nulls)
        assert after == Note(id="1", text="a", address={"city": "Paris", "zip": "1"}, number=number)
    with pytest.raises(RecordChangedError):
        notes.update_item(Note(id="1"), ignore_nulls=ignore_nulls, condition=Attr("number").exists())


def test_what_no_write_can_have_is_refused_by_name(between: Any, table: str) -> None:
    """The Java client drops the actions of a put without a word. And keys stay as they are."""
    one, losing = setting(Action.set("number", 1)), Doing(lambda _: WriteModification(item={"text": "a"}))
    refusals: list[tuple[list[Any], str, Note, str]] = [
        ([one], "update_item", Note(id="1", number=100), r"number \(SET by Doing\) and number \(SET by the record\)"),
        ([one, one], "update_item", Note(id="1"), r"number \(SET by Doing\) and number \(SET by Doing\)"),
        ([one], "put_item", Note(id="1"), "Doing.*put_item takes no actions"),
        ([one], "put_write", Note(id="1"), "Doing.*put_item takes no actions"),
        ([setting(Action.set("id", "2"))], "update_item", Note(id="1"), "id: a key cannot be changed"),
        ([losing], "put_item", Note(id="1"), "id is a key of Note"),
        ([losing], "update_item", Note(id="1"), "id is a key of Note"),
    ]
    for extensions, write, note, why in refusals:
        with pytest.raises(ExpressionError, match=why):
            getattr(Records(between, table, Note, extensions=extensions), write)(note)
    assert between.sent == []


def test_extensions_run_in_order_and_the_counters_go_first_unless_their_place_is_named(
    between: Any, table: str
) -> None:
    """They go in any case. In the Java client a list of extensions replaces the default one, and they stand still."""
    seen: list[object] = []

    def appending(letter: str) -> Doing:
        return Doing(
            lambda context: WriteModification(item={**context.item, "name": f"{context.item['name']}{letter}"})
        )

    look = Doing(lambda context: seen.append(context.item.get("visits", "nothing")))
    first = Records(between, table, Customer, extensions=[look, *map(appending, "bcd")])
    assert (first.put_item(Customer(id="1", name="a")).name, seen) == ("abcd", [0])
    assert (first.update_item(Customer(id="1", name="x")).name, first.get_item("1")) == (
        "xbcd", Customer(id="1", name="xbcd", visits=1, points=15, left=-21),
    )  # fmt: skip
    last = Records(between, table, Customer, extensions=[look, AtomicCounterExtension()])
    assert (counts(last.put_item(Customer(id="2"))), seen[-1]) == ((0, 10, -20), "nothing")


# What an atomic counter is worth


def test_what_a_caller_sends_again_counts_twice_and_with_a_version_once(store: Store, table: str) -> None:
    """What docs/records.md says of atomic counters, and of how to make a caller's retry safe."""

    def losing() -> Records[Customer]:
        instead: Any = RecordingClient(store, transact_write_items=[LOST])
        return Records(instead, table, Customer)

    for condition in (None, Attr("visits").eq(1)):
        customers = losing()
        with pytest.raises(StoreUnreachableError):
            customers.update_item(Customer(id="1"), condition=condition)
        if condition is None:
            assert customers.update_item(Customer(id="1")).visits == 1  # one visit, sent twice
        else:
            with pytest.raises(RecordChangedError):
                customers.update_item(Customer(id="1"), condition=condition)
    assert counts(customers.get_item("1")) == (2, 20, -22)


def test_a_read_waits_for_a_busy_store_and_one_that_was_cut_is_no_missing_record(
    store: Store, customers: Records[Customer], table: str
) -> None:
    """botocore gives an answer that was cut as an empty one."""
    customers.put_item(Customer(id="1"))
    busy: Any = RecordingClient(store, get_item=[BUSY, BUSY, None, {}, {}], update_item=[{}])
    faulty = Records(busy, table, Customer)
    assert counts(faulty.get_item("1")) == (0, 10, -20)
    cheap = Records(busy, table, Customer, exact=False)
    for cut in (faulty.update_item, lambda _: faulty.get_item("1"), cheap.update_item):
        with pytest.raises(StoreUnreachableError):
            cut(Customer(id="1"))


def test_the_examples_of_the_documentation_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    text = DOCUMENT.read_text()
    assert text.count("assert ") >= 12
    text = text.replace("customers-table", store.settings.receipts_table)
    text = text.replace("posts-table", store.settings.counts_table)
    examples = ModuleType("examples_of_records")  # dataclasses look for the module of a class
    monkeypatch.setitem(sys.modules, examples.__name__, examples)
    examples.__dict__["client"] = store.client
    ran = 0
    for example in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        above = "\n" * text.count("\n", 0, example.start(1))  # so that a failure tells its line
        exec(compile(above + example[1], str(DOCUMENT), "exec"), examples.__dict__)
        ran += 1
    assert ran == text.count("```python") >= 8
