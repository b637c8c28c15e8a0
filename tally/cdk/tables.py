"""The tables (docs/internals.md describes their items).

Their names are fixed, so that CloudFormation can adopt a table that exists (docs/restore.md). A restored table has a
logical id of its own: CloudFormation adopts only what is new in a template, and keeps what is gone from the template.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aws_cdk import Acknowledgment, RemovalPolicy, Validations
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from constructs import Construct

from tally.api.needs import Table
from tally.contract.deployment import TABLES, TTL_ATTRIBUTE, TableSchema
from tally.contract.stream_views import NEW_AND_OLD_IMAGES

from .names import Names
from .options import Options


class Tables(Construct):
    """Counts, receipts and ledger: on-demand, encrypted, with point-in-time recovery.

    If Tally counts visitors of pages, salts are a fourth table, without recovery. DynamoDB's own key encrypts
    the tables. With another key, AWS would bill KMS requests, and KMS's limits would apply to each change. Another key
    would protect only against callers whose roles allow the table, but not the key.
    """

    counts: dynamodb.Table
    receipts: dynamodb.Table
    ledger: dynamodb.Table
    by_name: dict[Table, dynamodb.Table]
    """All tables, as `Need.table` names them."""
    restored: str
    """The moment that the tables were restored to; empty if they were not restored."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        names: Names,
        options: Options,
        schemas: Mapping[Table, TableSchema] = TABLES,
    ) -> None:
        super().__init__(scope, id)
        self._names, self._options = names, options
        self.restored = options.restored
        # Restored tables keep their data in every stage, because CloudFormation adopts no table that it may delete.
        self._keeps_data = options.keeps_data or bool(self.restored)
        warm, writes, reads = None, options.warm_writes, options.warm_reads
        if writes is not None or reads is not None:
            warm = dynamodb.WarmThroughput(write_units_per_second=writes, read_units_per_second=reads)
        # No table may have a local index, because DynamoDB then cannot split a hot item collection by sort key.
        # Tallies without a period have no TTL attribute, so they are kept.
        # The ledger has no stream. It gets a few writes for each batch, so AWS's default throughput is enough.
        self.by_name = {
            table: self._table(table.value.capitalize(), schema, warm if schema.has_stream else None)
            for table, schema in schemas.items()
        }
        self.counts, self.receipts, self.ledger = (self.by_name[table] for table in TABLES)

    def read_streams_statement(self, tables: Iterable[Table]) -> iam.PolicyStatement:
        """Returns the statement that lets a role read the streams of these tables."""
        return iam.PolicyStatement(
            actions=["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"],
            resources=[str(self.by_name[table].table_stream_arn) for table in tables],
        )

    def _table(self, name: str, schema: TableSchema, warm: dynamodb.WarmThroughput | None) -> dynamodb.Table:
        restored, keeps_data = (self.restored, self._keeps_data) if schema.has_backups else ("", False)
        # Not TableV2, which is a GlobalTable: moto cannot create it.
        table = dynamodb.Table(
            self,
            name,
            table_name=self._names.table(name.lower(), restored),
            partition_key=_string(schema.partition_key),
            sort_key=_string(schema.sort_key) if schema.sort_key else None,
            stream=dynamodb.StreamViewType[NEW_AND_OLD_IMAGES] if schema.has_stream else None,
            time_to_live_attribute=TTL_ATTRIBUTE,
            warm_throughput=warm,
            max_write_request_units=self._options.max_writes if schema.has_stream else None,
            max_read_request_units=self._options.max_reads if schema.has_stream else None,
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=schema.has_backups
            ),
            removal_policy=RemovalPolicy.RETAIN if keeps_data else RemovalPolicy.DESTROY,
            deletion_protection=keeps_data,
        )
        if not schema.has_backups:
            why = "Its items are forgotten after their day: a backup would remember them"
            Validations.of(table).acknowledge(Acknowledgment(id="AwsSolutions-DDB3", reason=why))
        # A table under another logical id is a new, empty table: no refactoring of the constructs may cause that.
        resource = table.node.default_child
        assert isinstance(resource, dynamodb.CfnTable)
        resource.override_logical_id(self._names.logical_id(f"{name}Table{restored}"))
        return table


def leading_keys_condition(patterns: Iterable[str]) -> dict[str, dict[str, list[str] | str]]:
    """Returns the conditions of a statement that allows only items whose partition keys match a pattern."""
    return {
        "ForAllValues:StringLike": {"dynamodb:LeadingKeys": list(patterns)},
        # ForAllValues is also true if a request names no key.
        "Null": {"dynamodb:LeadingKeys": "false"},
    }


def _string(name: str) -> dynamodb.Attribute:
    return dynamodb.Attribute(name=name, type=dynamodb.AttributeType.STRING)
