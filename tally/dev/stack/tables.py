"""Creates the missing tables on an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base.errors import LocalError
from ..base.wire import Wire, WireError


async def create(tables: Mapping[str, Any], ttl_attribute: str, wire: Wire, endpoint: str) -> dict[str, str]:
    """Create the missing tables, with stream and TTL. Existing tables keep their items. `tables`: what CreateTable
    takes, by their names.

    Returns the ARNs of the streams, by table.

    Raises LocalError if the engine does not answer, or if it has such a table with another key.
    """
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
                raise LocalError(
                    f"the table {name} at {endpoint} has another key than the stack's:"
                    " give this stack a data folder of its own (TALLY_DATA)"
                )
            wanted = arguments.get("StreamSpecification")
            if wanted and not table.get("StreamSpecification", {}).get("StreamEnabled"):
                await wire.call("dynamodb", "UpdateTable", TableName=name, StreamSpecification=wanted)
                table = (await wire.call("dynamodb", "DescribeTable", TableName=name))["Table"]
            await _enable_ttl(wire, name, ttl_attribute)
            if arn := table.get("LatestStreamArn"):
                arns[name] = str(arn)
        return arns
    except WireError as error:
        raise LocalError(f"no usable DynamoDB engine at {endpoint}: {error}") from None


def _schema(table: Any) -> list[tuple[str, str, str]]:
    kinds = {entry["AttributeName"]: entry["AttributeType"] for entry in table["AttributeDefinitions"]}
    return [(key["AttributeName"], key["KeyType"], kinds[key["AttributeName"]]) for key in table["KeySchema"]]


async def _enable_ttl(wire: Wire, name: str, attribute: str) -> None:
    """Switch TTL on, unless it is: DynamoDB refuses that."""
    described = await wire.call("dynamodb", "DescribeTimeToLive", TableName=name)
    if described["TimeToLiveDescription"].get("TimeToLiveStatus") not in {"ENABLED", "ENABLING"}:
        wanted = {"Enabled": True, "AttributeName": attribute}
        await wire.call("dynamodb", "UpdateTimeToLive", TableName=name, TimeToLiveSpecification=wanted)
