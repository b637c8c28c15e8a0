"""The stacks in a folder that `cdk synth` made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tally.contract.deployment import TABLES

from .terminal import CommandError

TABLE = "AWS::DynamoDB::Table"


class AssemblyStack(NamedTuple):
    """One stack of the assembly."""

    name: str
    region: str
    keeps_data: bool  # such a stack is protected from deletion
    descriptions: Mapping[str, str]
    """The descriptions of the outputs, by name."""
    tables: frozenset[str]
    """The names of counts, receipts and ledger."""
    format: str
    """The format of the stored data; empty for the CDN's stack."""
    reserved_concurrency: int
    """The concurrency that the functions of the stack reserve."""


def read_stacks(assembly: Path, region: str) -> list[AssemblyStack]:
    """Returns the stacks in a folder of `cdk synth`, the stack of the API first. Raises CommandError."""
    try:
        artifacts = json.loads((assembly / "manifest.json").read_text())["artifacts"]
    except (OSError, ValueError, KeyError):
        raise CommandError(f"{assembly} is not a folder of `cdk synth`") from None
    stacks, suffixes = [], tuple(f"-{table.value}" for table in TABLES)  # without the salts, which no deploy adopts
    for name, artifact in artifacts.items():
        if artifact["type"] == "aws:cloudformation:stack":
            properties, named_region = artifact["properties"], artifact["environment"].rpartition("/")[2]
            template = json.loads((assembly / properties["templateFile"]).read_text())
            outputs, resources = template.get("Outputs", {}), template["Resources"].values()
            table_names = [str(one.get("Properties", {}).get("TableName")) for one in resources if one["Type"] == TABLE]
            stack = AssemblyStack(
                properties.get("stackName", name),
                region if named_region == "unknown-region" else named_region,
                bool(properties.get("terminationProtection")),
                {output: one.get("Description", "") for output, one in outputs.items()},
                frozenset(table for table in table_names if table.endswith(suffixes)),
                outputs.get("StorageFormat", {}).get("Value", ""),
                sum(one.get("Properties", {}).get("ReservedConcurrentExecutions", 0) for one in resources),
            )
            stacks.append(stack)
    return sorted(stacks, key=lambda stack: "ApiUrl" not in stack.descriptions)
