"""A fresh engine with empty tables, and the clients that change its tables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import boto3

import counters
from tally.counting import tallies
from tally.dev.base.engine import Engine
from tally.dynamo.client import Call, Store, dynamodb_client
from tally.settings import Settings

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

SETTINGS = Settings.from_environment({
    "TALLY_COUNTS_TABLE": "bench-counts",
    "TALLY_RECEIPTS_TABLE": "bench-receipts",
    "TALLY_LEDGER_TABLE": "bench-ledger",
})  # fmt: skip
ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL_DYNAMODB"
KEY_ATTRIBUTES = {"counts": ("PK", "SK"), "receipts": ("id",), "ledger": ("PK", "SK")}
STREAMED = ("counts", "receipts")  # the tables that have a stream in a deployed stack
LOCAL: dict[str, Any] = {"region_name": "eu-west-1", "aws_access_key_id": "local", "aws_secret_access_key": "local"}


@dataclass(frozen=True)
class Clients:
    """The clients of one engine. `boto3_client` has boto3's default configuration, and `store` Tally's."""

    endpoint: str
    boto3_client: DynamoDBClient
    store: Store

    def read_plays(self, video_id: str) -> int:
        """Returns the number of plays in the tally."""
        return tallies.read(Call(self.store), counters.PLAYS, video_id)


def clients_of(endpoint: str) -> Clients:
    """Returns clients for the engine, or for the proxy in front of it, at `endpoint`."""
    boto3_client = boto3.client("dynamodb", endpoint_url=endpoint, **LOCAL)
    return Clients(endpoint, boto3_client, Store(dynamodb_client(endpoint_url=endpoint, **LOCAL), SETTINGS))


@contextmanager
def fresh_engine(*, streams: bool = False) -> Iterator[str]:
    """Runs an engine with empty tables, in memory, and yields its endpoint.

    If AWS_ENDPOINT_URL_DYNAMODB names another engine, uses that engine, and deletes its tables named bench-… first.
    `streams`: `counts` and `receipts` have streams (`create_tables` says what streams cost). If the engine does not
    start, raises LocalError. Passes on botocore's errors.
    """
    endpoint, streamed = os.environ.get(ENDPOINT_VARIABLE), STREAMED if streams else ()
    if endpoint is None:
        with Engine() as engine:
            create_tables(boto3.client("dynamodb", endpoint_url=engine.endpoint, **LOCAL), SETTINGS, streamed)
            yield engine.endpoint
        return
    client = boto3.client("dynamodb", endpoint_url=endpoint, **LOCAL)
    _delete_tables(client)  # a killed run leaves its tables
    create_tables(client, SETTINGS, streamed)
    try:
        yield endpoint
    finally:
        _delete_tables(client)


def create_tables(client: DynamoDBClient, settings: Settings, streamed: Sequence[str] = ()) -> None:
    """Creates the three tables of the settings. `streamed`: the tables that have a stream.

    Streams cost time, because the embedded engine reads all stream records at each write to a table with a stream.
    """
    for table, keys in KEY_ATTRIBUTES.items():
        schema: Any = [
            {"AttributeName": key, "KeyType": kind} for key, kind in zip(keys, ("HASH", "RANGE"), strict=False)
        ]
        images: Any = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
        client.create_table(
            TableName=getattr(settings, f"{table}_table"),
            KeySchema=schema,
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
            BillingMode="PAY_PER_REQUEST",
            **({"StreamSpecification": images} if table in streamed else {}),
        )


def _delete_tables(client: DynamoDBClient) -> None:
    for table in KEY_ATTRIBUTES:
        with suppress(client.exceptions.ResourceNotFoundException):
            client.delete_table(TableName=f"bench-{table}")
