"""A client of the embedded engine, a table for each test, and what was sent to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tally.dev.base.engine import Engine
from tally.dynamo.client import dynamodb_client
from tally.records import Records
from tests.unit.records.samples import Customer, Meta, Note, new_table

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


@pytest.fixture(scope="module")
def client(engine: Engine) -> DynamoDBClient:
    return dynamodb_client(endpoint_url=engine.endpoint)


@pytest.fixture
def sent(client: DynamoDBClient) -> Iterator[list[str]]:
    """The operations that left for the store in this test."""
    operations: list[str] = []

    def note(request: Any, **_: Any) -> None:
        operations.append(request.headers["X-Amz-Target"].decode().partition(".")[2])

    client.meta.events.register("before-send.dynamodb", note)
    yield operations
    client.meta.events.unregister("before-send.dynamodb", note)


@pytest.fixture
def table(client: DynamoDBClient) -> str:
    return new_table(client, "id")


@pytest.fixture
def customers(client: DynamoDBClient, table: str) -> Records[Customer]:
    return Records(client, table, Customer)


@pytest.fixture
def notes(client: DynamoDBClient, table: str) -> Records[Note]:
    return Records(client, table, Note)


@pytest.fixture
def metas(client: DynamoDBClient) -> Records[Meta]:
    return Records(client, new_table(client, "PK", "SK"), Meta)
