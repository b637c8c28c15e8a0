"""Team tables, whose items counters count. The team's tests create the tables at any time, on the same engine.

If a table is deleted and created again, it is another table: the numbers count the first table until a scan.
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
    """A table that the engine has. `view`: the view type of its stream; None: the table has no stream."""

    keys: Sequence[str]
    stream: str
    """The ARN of the table's stream; "": the table has no stream."""
    view: str | None


Tables = Mapping[str, FoundTable]
"""The tables that the engine has, by name."""


async def find(tables: Collection[str], wire: Wire) -> Tables:
    """Returns the tables of this list that the engine has."""
    existing_tables: dict[str, FoundTable] = {}
    for name in tables:
        with contextlib.suppress(WireError):  # the engine does not have the table
            table = (await wire.call("dynamodb", "DescribeTable", TableName=name))["Table"]
            stream = table.get("StreamSpecification") or {}
            arn = table["LatestStreamArn"] if stream.get("StreamEnabled") else ""
            existing_tables[name] = FoundTable(key_names(table["KeySchema"]), arn, stream.get("StreamViewType"))
    return existing_tables


def with_team_tables(template: Template, tables: Collection[str], arns: Mapping[str, str], found: Tables) -> Template:
    """Returns the stack with the team tables that can be read, and a warning for each other table. `arns`: the ARN of
    each stream of Tally's own tables, by its stand-in. `found`: the team tables that exist."""
    mappings: list[StreamMapping] = []
    warnings: list[str] = []
    read_tables: dict[str, Mapping[str, str]] = {}
    for mapping in template.mappings:
        if mapping.counters is None:
            mappings.append(mapping)
        elif why := _why_unread(mapping.table, mapping.counters, tables, found):
            warnings.append(f"{', '.join(mapping.counters)}: the table {mapping.table} is not read: {why}")
        else:
            stream = found[mapping.table].stream
            mappings.append(replace(mapping, stream=stream))
            read_tables[mapping.table] = {"name": mapping.table, "stream": stream}
    counted = {mapping.table for mapping in template.mappings if mapping.counters is not None}
    warnings += [f"TALLY_TABLES has {name}: no counter counts its items" for name in tables if name not in counted]
    template = template.with_variables(arns, json.dumps(read_tables))
    warnings = [*template.warnings, *warnings]
    return replace(template, mappings=tuple(mappings), team_tables=read_tables, warnings=tuple(warnings))


def _why_unread(table: str, counters: KeysByCounter, tables: Collection[str], found: Tables) -> str:
    if table not in tables:
        return f"start {DEV} with TALLY_TABLES={','.join([*tables, table])}"
    if table not in found:
        return "it does not exist yet"
    return why_uncountable(found[table].keys, found[table].view, counters)
