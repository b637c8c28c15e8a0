"""A person's own tables, whose items counters count. Their tests make them, at any time, on the same engine.

A table that is made again is another table: the numbers are those of the first one until its items are scanned.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tally.contract.stream_views import KeysByCounter, why_uncountable
from tally.items import key_names

from ..base.wire import Wire, WireError
from ..base.words import DEV
from .mappings import StreamMapping
from .template import Template


class FoundTable(NamedTuple):
    """A table that is there."""

    keys: Sequence[str]
    stream: str
    """Its ARN; empty: it has none."""
    view: str | None


Found = Mapping[str, FoundTable]
"""By the name of the table. A table that is not there is missing."""


async def find(tables: Collection[str], wire: Wire) -> Found:
    """Those of these tables that are there."""
    there: dict[str, FoundTable] = {}
    for name in tables:
        with contextlib.suppress(WireError):  # it is not there
            table = (await wire.call("dynamodb", "DescribeTable", TableName=name))["Table"]
            stream = table.get("StreamSpecification") or {}
            arn = table["LatestStreamArn"] if stream.get("StreamEnabled") else ""
            there[name] = FoundTable(key_names(table["KeySchema"]), arn, stream.get("StreamViewType"))
    return there


def with_team_tables(
    template: Template, tables: Collection[str], variables: Mapping[str, str], there: Found
) -> Template:
    """The stack as it reads those of these tables that can be read, with a line for each other one. `made`: the values
    of variables."""
    mappings: list[StreamMapping] = []
    lines: list[str] = []
    own: dict[str, Mapping[str, str]] = {}
    for mapping in template.mappings:
        if mapping.counters is None:
            mappings.append(mapping)
        elif why := _why_unread(mapping.table, mapping.counters, tables, there):
            lines.append(f"{', '.join(mapping.counters)}: the table {mapping.table} is not read: {why}")
        else:
            stream = there[mapping.table].stream
            mappings.append(replace(mapping, stream=stream))
            own[mapping.table] = {"name": mapping.table, "stream": stream}
    counted = {mapping.table for mapping in template.mappings if mapping.counters is not None}
    lines += [f"TALLY_TABLES has {name}: no counter counts items of it" for name in tables if name not in counted]
    return replace(
        template.with_variables(variables, json.dumps(own)),
        mappings=tuple(mappings),
        team_tables=own,
        warnings=(*template.warnings, *lines),
    )


def _why_unread(table: str, counters: KeysByCounter, tables: Collection[str], there: Found) -> str:
    if table not in tables:
        return f"start {DEV} with TALLY_TABLES={','.join([*tables, table])}"
    if table not in there:
        return "it is not there yet"
    return why_uncountable(there[table].keys, there[table].view, counters)
