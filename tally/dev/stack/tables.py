"""Creates the missing tables of the template on an engine."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
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
    connect_timeout=2,  # seconds; a local engine answers in milliseconds
    read_timeout=10,
    retries={"total_max_attempts": 1, "mode": "standard"},
    proxies={},  # the terminal's proxy cannot reach this machine
)


def client(endpoint: str) -> DynamoDBClient:
    """A client for the engine at `endpoint`, with the credentials of local functions."""
    return boto3.client(
        "dynamodb",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=_CONFIG,
    )


def create(tables: Iterable[Table], endpoint: str) -> dict[str, str]:
    """Create the missing tables, with stream and TTL. Existing tables keep their items.

    Returns the ARNs of the streams, by table.

    Raises LocalError if the engine does not answer, or if it has such a table with another key.
    """
    try:
        with closing(client(endpoint)) as dynamodb:
            pages = dynamodb.get_paginator("list_tables").paginate()
            present = {name for page in pages for name in page["TableNames"]}
            arns: dict[str, str] = {}
            for table in tables:
                if table.name in present:
                    _check(dynamodb, table, endpoint)
                else:
                    dynamodb.create_table(TableName=table.name, **table.arguments)
                _expire(dynamodb, table)
                if arn := dynamodb.describe_table(TableName=table.name)["Table"].get("LatestStreamArn"):
                    arns[table.name] = arn
            return arns
    except (ClientError, BotoCoreError, ValueError) as error:  # ValueError: not a URL
        raise LocalError(f"no usable DynamoDB engine at {endpoint}: {error}") from None


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
    """Switch TTL on, unless it is: DynamoDB refuses that."""
    if table.ttl_attribute is None:
        return
    status = dynamodb.describe_time_to_live(TableName=table.name)["TimeToLiveDescription"]
    if status.get("TimeToLiveStatus") not in {"ENABLED", "ENABLING"}:
        dynamodb.update_time_to_live(
            TableName=table.name,
            TimeToLiveSpecification={"Enabled": True, "AttributeName": table.ttl_attribute},
        )
