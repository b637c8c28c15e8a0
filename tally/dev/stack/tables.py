"""Creates the tables that an engine does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base.errors import LocalError
from ..base.wire import Wire, WireError


async def create(tables: Mapping[str, Any], ttl_attribute: str, wire: Wire, endpoint: str) -> dict[str, str]:
    """Create the missing tables, with stream and TTL. Returns the ARNs of the streams, by table. `tables`: the
    arguments of CreateTable, by table. Raises LocalError if no engine answers, or if a table has another key."""
    try:
        arns: dict[str, str] = {}
        for name, arguments in tables.items():
            try:
                table = (await wire.call("dynamodb", "DescribeTable", TableName=name))["Table"]
            except WireError as error:
                if error.kind != "ResourceNotFoundException":
                    raise
                await wire.call("dynamodb", "CreateTable", TableName=name, **arguments)
                table = (await wire.call("dynamodb", "DescribeTable", TableName=name))["Table"]
            if _schema(table) != _schema(arguments):
                advice = "give this stack a data folder of its own (TALLY_DATA)"
                raise LocalError(f"the table {name} at {endpoint} has another key than the stack's: {advice}")
            stream = arguments.get("StreamSpecification")
            if stream and not table.get("StreamSpecification", {}).get("StreamEnabled"):
                await wire.call("dynamodb", "UpdateTable", TableName=name, StreamSpecification=stream)
                table = (await wire.call("dynamodb", "DescribeTable", TableName=name))["Table"]
            ttl = (await wire.call("dynamodb", "DescribeTimeToLive", TableName=name))["TimeToLiveDescription"]
            if ttl.get("TimeToLiveStatus") not in {"ENABLED", "ENABLING"}:  # DynamoDB rejects a second call
                enabled = {"Enabled": True, "AttributeName": ttl_attribute}
                await wire.call("dynamodb", "UpdateTimeToLive", TableName=name, TimeToLiveSpecification=enabled)
            if arn := table.get("LatestStreamArn"):
                arns[name] = str(arn)
        return arns
    except WireError as error:
        raise LocalError(f"no usable DynamoDB engine at {endpoint}: {error}") from None


def _schema(table: Any) -> list[tuple[str, str, str]]:
    kinds = {entry["AttributeName"]: entry["AttributeType"] for entry in table["AttributeDefinitions"]}
    return [(key["AttributeName"], key["KeyType"], kinds[key["AttributeName"]]) for key in table["KeySchema"]]
