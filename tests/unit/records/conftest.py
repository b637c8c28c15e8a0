"""Record classes, a table for them, and a client that records calls and answers as a test says."""

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
    """A counter with defaults, a counter with a start and a step, and a counter with a negative step.

    AWS's client for Java (the DynamoDB Enhanced Client) tests its atomic counters with these.
    """

    id: str = partition_key()
    name: str | None = None
    visits: int | None = atomic_counter()
    points: int | None = atomic_counter(delta=5, start=10)
    left: int | None = atomic_counter(delta=-1, start=-20)


@record
class Note:
    """A record class without counters."""

    id: str = partition_key()
    text: str | None = None
    tags: set[str] | None = None
    number: int | None = None
    steps: list[str] | None = None
    address: dict[str, str] | None = None


def numbers_of(customer: Customer | None) -> tuple[int | None, ...]:
    assert customer is not None
    return customer.visits, customer.points, customer.left


class RecordingClient:
    """A client of the store that records the calls in `sent`.

    `answers`: the answers to the first calls of each method. LOST: the call reaches the store, and its answer is lost.
    Another error is raised without a call. None: an ordinary call.
    """

    def __init__(self, store: Store, **answers: list[Any]) -> None:
        self.sent: list[str] = []
        self._client, self._answers = store.client, answers

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name)

    def _call(self, name: str, **parameters: Any) -> Any:
        self.sent.append(name)
        answers = self._answers.get(name)
        prepared_answer = answers.pop(0) if answers else None
        answer = getattr(self._client, name)(**parameters) if prepared_answer in (None, LOST) else prepared_answer
        if isinstance(prepared_answer, Exception):
            raise prepared_answer
        return answer


@pytest.fixture
def table(store: Store) -> str:
    """A table with the partition key `id`."""
    return store.settings.receipts_table


@pytest.fixture
def recording_client(store: Store) -> Any:
    """A client that lists its calls in `sent`."""
    return RecordingClient(store)


@pytest.fixture
def customers(recording_client: Any, table: str) -> Records[Customer]:
    return Records(recording_client, table, Customer)


@pytest.fixture
def notes(recording_client: Any, table: str) -> Records[Note]:
    return Records(recording_client, table, Note)
