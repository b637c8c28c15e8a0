"""The team's own tables whose items counters count: `Tally(…, tables={"shop": shop_table})`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from aws_cdk import Annotations, CfnResource, Stack
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from constructs import Construct

from tally.contract.declarations import Declarations
from tally.contract.stream_views import KeysByCounter, why_uncountable
from tally.items import HEARTBEAT_PREFIX, key_names
from tally.settings import TeamTable

from .options import OptionsError
from .tables import leading_keys_condition


class TeamTables:
    """The team's tables whose items counters count, by their names in `counters.py`. The team makes them."""

    by_name: Mapping[str, dynamodb.ITable]

    def __init__(self, scope: Construct, given: Mapping[str, dynamodb.ITable], declarations: Declarations) -> None:
        """Raises OptionsError if `given` lacks a table, or if the stream of a table lacks what a counter needs."""
        for name, counters in declarations.team_tables.items():
            if name not in given:
                raise OptionsError(
                    f"counter {next(iter(counters))!r} counts items of the table {name!r}: give the construct"
                    f" tables={{{name!r}: …}}"
                )
            if why := _why_uncountable(given[name], counters):
                raise OptionsError(f"the items of the table {name!r} cannot be counted: {why}")
        for name in given.keys() - declarations.team_tables.keys():
            unused = f"tables has {name!r}: no counter counts its items"
            Annotations.of(scope).add_warning_v2(f"tally:table-{name}", unused)
        self.by_name = {name: given[name] for name in declarations.team_tables}
        names_by_stream: dict[str, str] = {}
        for name, table in self.by_name.items():
            stream = json.dumps(Stack.of(scope).resolve(table.table_stream_arn))
            other = names_by_stream.setdefault(stream, name)
            if other != name:
                raise OptionsError(f"tables has one table as {other!r} and as {name!r}: give the table one name")
        of_items = [counter.items for counter in declarations.counters.values() if counter.items is not None]
        self._heartbeat_tables = {of.table for of in of_items if of.heartbeats}

    @property
    def names_and_streams(self) -> dict[str, TeamTable]:
        """The names and streams of the tables, for the variables of the functions."""
        return {name: TeamTable(table.table_name, str(table.table_stream_arn)) for name, table in self.by_name.items()}

    def grant_read_streams(self, role: iam.IRole) -> None:
        """Let a role read the streams of the tables, and use a table's own key, which also encrypts the stream."""
        for table in self.by_name.values():
            table.grant_stream_read(role)

    def grant_write_heartbeats(self, role: iam.IRole) -> None:
        """Let a role write heartbeats into the tables that allow them."""
        for name, table in self.by_name.items():
            if name in self._heartbeat_tables:
                arns, only_heartbeats = [table.table_arn], leading_keys_condition([f"{HEARTBEAT_PREFIX}*"])
                write = iam.PolicyStatement(actions=["dynamodb:PutItem"], resources=arns, conditions=only_heartbeats)
                role.add_to_principal_policy(write)
                describe = iam.PolicyStatement(actions=["dynamodb:DescribeTable"], resources=arns)  # names no key
                role.add_to_principal_policy(describe)
                if table.encryption_key:
                    table.encryption_key.grant_encrypt_decrypt(role)

    @property
    def scan_statements(self) -> Sequence[iam.PolicyStatement]:
        """The statements that let the command and spot checks count existing items."""
        if not self.by_name:
            return ()
        tables = self.by_name.values()
        keys = {table.encryption_key.key_arn for table in tables if table.encryption_key}
        actions = ["dynamodb:DescribeTable", "dynamodb:Query", "dynamodb:Scan"]
        if keys:  # in one statement: a policy has little room
            actions += ["kms:Decrypt", "kms:DescribeKey"]
        return [iam.PolicyStatement(actions=actions, resources=[*(table.table_arn for table in tables), *sorted(keys)])]


def _why_uncountable(table: dynamodb.ITable, counters: KeysByCounter) -> str:
    """Returns why a table's items cannot be counted; empty if they can. An imported table shows only its stream."""
    resource = table.node.default_child
    if not isinstance(resource, CfnResource):
        return "" if table.table_stream_arn else "the table has no stream: import the table with table_stream_arn"
    properties = Stack.of(table).resolve(resource._cfn_properties)
    schema = [{"AttributeName": key["attributeName"], "KeyType": key["keyType"]} for key in properties["keySchema"]]
    stream = properties.get("streamSpecification") or {}
    return why_uncountable(key_names(schema), stream.get("streamViewType"), counters)
