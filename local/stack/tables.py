"""Creates the template's tables on an engine, where they are missing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from ..base.account import REGION
from ..base.errors import LocalError
from .template import Table

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_CONFIG = Config(
    connect_timeout=2,  # seconds; an engine on this machine answers in milliseconds
    read_timeout=10,
    retries={"total_max_attempts": 1, "mode": "standard"},
    proxies={},  # a proxy of the terminal's is not for this machine's engine
)
_BUSY_S_MAX = 5.0  # for the engine to let go of its file
_STREAM_INDEX = (
    "CREATE INDEX IF NOT EXISTS tally_stream_order ON _stream_records (table_name, CAST(sequence_number AS INTEGER))"
)


def client(endpoint: str) -> DynamoDBClient:
    """A client for the engine at `endpoint`, with the credentials that local functions have."""
    return boto3.client(
        "dynamodb",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=_CONFIG,
    )


def create(tables: Iterable[Table], endpoint: str) -> None:
    """Create what is missing, with its stream and TTL; existing tables keep what they hold.

    Raises LocalError if the engine does not answer, or has a table of that name with another key.
    """
    try:
        with closing(client(endpoint)) as dynamodb:
            pages = dynamodb.get_paginator("list_tables").paginate()
            present = {name for page in pages for name in page["TableNames"]}
            for table in tables:
                if table.name in present:
                    _check(dynamodb, table, endpoint)
                else:
                    dynamodb.create_table(TableName=table.name, **table.arguments)
                _expire(dynamodb, table)
    except (ClientError, BotoCoreError, ValueError) as error:  # ValueError: not a URL
        raise LocalError(f"no DynamoDB engine to work with at {endpoint}: {error}") from None


def index_stream_records(db_path: Path) -> None:
    """Keep the engine's writes fast: without this index each costs time in proportion to all stream records.

    It is the engine's private schema: where a version has another, nothing is done.
    """
    with closing(sqlite3.connect(db_path, timeout=_BUSY_S_MAX)) as database:
        try:
            database.execute(_STREAM_INDEX)
            database.commit()
        except sqlite3.OperationalError:
            return


def _check(dynamodb: DynamoDBClient, table: Table, endpoint: str) -> None:
    found: Any = dynamodb.describe_table(TableName=table.name)["Table"]
    if _schema(found) != _schema(table.arguments):
        raise LocalError(
            f"the table {table.name} at {endpoint} has another key than the stack's:"
            " give this stack a data folder of its own (TALLY_DATA)"
        )
    wanted = table.arguments.get("StreamSpecification")
    if wanted and not found.get("StreamSpecification", {}).get("StreamEnabled"):
        dynamodb.update_table(TableName=table.name, StreamSpecification=wanted)


def _schema(table: Any) -> list[tuple[str, str, str]]:
    kinds = {entry["AttributeName"]: entry["AttributeType"] for entry in table["AttributeDefinitions"]}
    return [(key["AttributeName"], key["KeyType"], kinds[key["AttributeName"]]) for key in table["KeySchema"]]


def _expire(dynamodb: DynamoDBClient, table: Table) -> None:
    """Switch TTL on; DynamoDB refuses that where it is on already."""
    if table.ttl_attribute is None:
        return
    status = dynamodb.describe_time_to_live(TableName=table.name)["TimeToLiveDescription"]
    if status.get("TimeToLiveStatus") not in {"ENABLED", "ENABLING"}:
        dynamodb.update_time_to_live(
            TableName=table.name,
            TimeToLiveSpecification={"Enabled": True, "AttributeName": table.ttl_attribute},
        )
