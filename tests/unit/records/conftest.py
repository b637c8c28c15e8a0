"""Record classes, their tables, and a client that answers what a test says."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from tally.dynamo.client import Store
from tally.records import Records, atomic_counter, partition_key, record

LOST = ReadTimeoutError(endpoint_url="http://lost")


@record
class Customer:
    """The Java client's test record: default, custom and decreasing counter."""

    id: str = partition_key()
    name: str | None = None
    visits: int | None = atomic_counter()
    points: int | None = atomic_counter(delta=5, start=10)
    left: int | None = atomic_counter(delta=-1, start=-20)


@record
class Note:
    """No counters."""

    id: str = partition_key()
    text: str | None = None
    tags: set[str] | None = None
    number: int | None = None
    steps: list[str] | None = None
    address: dict[str, str] | None = None


def counts(customer: Customer | None) -> tuple[int | None, ...]:
    assert customer is not None
    return customer.visits, customer.points, customer.left


class RecordingClient:
    """Stands before the store: `sent` has the calls. `instead` are the first answers of a call, in place of its own.

    A LOST call arrives; another error is the answer; None is a call as usual.
    """

    def __init__(self, store: Store, **instead: list[Any]) -> None:
        self.sent: list[str] = []
        self._client, self._instead = store.client, instead

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name)

    def _call(self, name: str, **parameters: Any) -> Any:
        self.sent.append(name)
        left = self._instead.get(name)
        instead = left.pop(0) if left else None
        answer = getattr(self._client, name)(**parameters) if instead in (None, LOST) else instead
        if isinstance(instead, Exception):
            raise instead
        return answer


@pytest.fixture
def table(store: Store) -> str:
    """A table with the partition key `id`."""
    return store.settings.receipts_table


@pytest.fixture
def between(store: Store) -> Any:
    return RecordingClient(store)


@pytest.fixture
def customers(between: Any, table: str) -> Records[Customer]:
    return Records(between, table, Customer)


@pytest.fixture
def notes(between: Any, table: str) -> Records[Note]:
    return Records(between, table, Note)
