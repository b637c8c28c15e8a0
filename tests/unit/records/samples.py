"""Record classes, a client that fails as told, and looks into the store."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError, ReadTimeoutError

from tally.records import atomic_counter, attribute, partition_key, record, sort_key

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_numbers = itertools.count()
LOST = "lost"


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


@record
class Meta:
    """A post's, with a sort key, other names in the table, and one counter."""

    post: str = partition_key(name="PK")
    part: str = sort_key(name="SK")
    author: str | None = attribute(name="authorId", default=None)
    revision: int | None = atomic_counter()


def new_table(client: DynamoDBClient, *keys: str) -> str:
    name = f"tally-test-records-{next(_numbers)}"
    schema: Any = [{"AttributeName": key, "KeyType": kind} for key, kind in zip(keys, ("HASH", "RANGE"), strict=False)]
    types: Any = [{"AttributeName": key, "AttributeType": "S"} for key in keys]
    client.create_table(TableName=name, KeySchema=schema, AttributeDefinitions=types, BillingMode="PAY_PER_REQUEST")
    return name


def stored(client: DynamoDBClient, table: str) -> dict[str, Any] | None:
    """The item with the id 1."""
    return client.get_item(TableName=table, Key={"id": {"S": "1"}}, ConsistentRead=True).get("Item")


def counts(customer: Customer | None) -> tuple[int | None, ...]:
    assert customer is not None
    return customer.visits, customer.points, customer.left


def faulty(client: DynamoDBClient, **told: list[Any]) -> Any:
    """A client whose calls go as told, one after the other: an error is raised, an answer is given instead of a call,
    LOST is a call whose answer is lost, None a call, and so is each behind the last one that was told of."""

    class Faulty:
        def __getattr__(self, name: str) -> Any:
            return lambda **parameters: one(name, parameters)

    def one(name: str, parameters: dict[str, Any]) -> Any:
        what = told[name].pop(0) if told.get(name) else None
        if isinstance(what, ClientError):
            raise what
        if isinstance(what, dict):
            return what
        answer = getattr(client, name)(**parameters)
        if what == LOST:
            raise ReadTimeoutError(endpoint_url="http://lost")
        return answer

    return Faulty()
