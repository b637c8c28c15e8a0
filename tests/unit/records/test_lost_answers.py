"""Threads, lost answers, conflicts: what an atomic counter is worth then."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from tally.dynamo import contention
from tally.errors import StoreBusyError, StoreRefusedError, StoreUnreachableError
from tally.records import Condition, RecordChangedError, RecordExistsError, Records
from tests.unit.records.samples import LOST, Customer, counts, faulty

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# Concurrency and lost answers


@pytest.mark.parametrize("exact", [True, False])
def test_sixteen_threads_lose_no_update(client: DynamoDBClient, table: str, exact: bool) -> None:
    customers = Records(client, table, Customer, exact=exact)
    with ThreadPoolExecutor(16) as pool:
        after = list(pool.map(lambda n: customers.update_item(Customer(id="1", name=f"n{n}")), range(320)))
    if not exact:  # each has numbers of its own
        assert sorted(customer.visits for customer in after if customer.visits is not None) == list(range(320))
        assert sorted(customer.points for customer in after if customer.points is not None) == list(range(10, 1610, 5))
    assert counts(customers.get_item("1")) == (319, 10 + 319 * 5, -20 - 319)


def test_sixteen_threads_that_put_make_one_record(customers: Records[Customer]) -> None:
    def create(n: int) -> bool:
        try:
            customers.put_item(Customer(id="1", name=f"n{n}"))
        except RecordExistsError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(create, range(64))) == 1


def answer(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": ""}}, "UpdateItem")


def test_what_a_caller_sends_again_counts_twice_and_with_a_version_once(
    client: DynamoDBClient, customers: Records[Customer], table: str
) -> None:
    """What docs/records.md says of atomic counters, and of how to make a caller's retry safe."""
    customers.put_item(Customer(id="1"))
    losing = Records(faulty(client, transact_write_items=[LOST, None]), table, Customer)
    with pytest.raises(StoreUnreachableError):
        losing.update_item(Customer(id="1"))
    assert losing.update_item(Customer(id="1")).visits == 2  # one visit, sent twice

    losing = Records(faulty(client, transact_write_items=[LOST, None]), table, Customer)
    unmoved = Condition("visits = :seen", values={":seen": 2})
    with pytest.raises(StoreUnreachableError):
        losing.update_item(Customer(id="1"), condition=unmoved)
    with pytest.raises(RecordChangedError):
        losing.update_item(Customer(id="1"), condition=unmoved)
    assert counts(customers.get_item("1")) == (3, 25, -23)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("code", ["TransactionConflictException", "ProvisionedThroughputExceededException"])
def test_conflicts_and_throttling_are_tried_again_because_nothing_was_written(
    client: DynamoDBClient, table: str, code: str, exact: bool
) -> None:
    failing = faulty(
        client,
        transact_write_items=[answer(code)] * 4,
        update_item=[answer(code)] * 3,
        put_item=[answer(code)],
        get_item=[answer(code)],
    )
    customers = Records(failing, table, Customer, exact=exact)
    customers.put_item(Customer(id="1"))
    assert customers.update_item(Customer(id="1")).visits == 1
    assert counts(customers.get_item("1")) == (1, 15, -21)


def test_retries_end(client: DynamoDBClient, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "BACKOFF_FIRST_S", 1e-6)
    faults = [answer("TransactionConflictException")] * 100
    with pytest.raises(StoreBusyError):
        Records(faulty(client, transact_write_items=faults), table, Customer).update_item(Customer(id="1"))
    assert len(faults) == 100 - contention.ATTEMPTS_MAX


@pytest.mark.parametrize("code", ["InternalServerError", "ValidationException"])
def test_other_errors_are_told_at_once(client: DynamoDBClient, table: str, code: str) -> None:
    """A failure of the store may have written: sending it again is the caller's to decide."""
    faults = [answer(code), None]
    with pytest.raises(StoreUnreachableError if code == "InternalServerError" else StoreRefusedError):
        Records(faulty(client, transact_write_items=faults), table, Customer).update_item(Customer(id="1"))
    assert faults == [None]


def test_an_answer_that_was_cut_is_no_missing_record(
    client: DynamoDBClient, customers: Records[Customer], table: str
) -> None:
    """botocore gives it as an empty one."""
    customers.put_item(Customer(id="1"))
    cut = Records(faulty(client, get_item=[{}, {}], update_item=[{}]), table, Customer)
    with pytest.raises(StoreUnreachableError):
        cut.get_item("1")
    with pytest.raises(StoreUnreachableError):
        cut.update_item(Customer(id="1"))
    cheap = Records(faulty(client, update_item=[{}]), table, Customer, exact=False)
    with pytest.raises(StoreUnreachableError):
        cheap.update_item(Customer(id="1"))
