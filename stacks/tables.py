"""The three tables (docs/how-it-works.md says what stands in them)."""

from __future__ import annotations

from aws_cdk import RemovalPolicy
from aws_cdk import aws_dynamodb as dynamodb
from constructs import Construct

from tally.operation import Table

from .options import Options

TTL_ATTRIBUTE = "expiration"  # the name that Powertools writes


class Tables(Construct):
    """Counts, receipts and ledger: on-demand, with point-in-time recovery, encrypted.

    Encrypted with the key that DynamoDB owns: the managed and customer keys would bill KMS requests and put KMS's
    limits on the hot path, and protect against nothing that a role on this table does not.
    """

    counts: dynamodb.Table
    receipts: dynamodb.Table
    ledger: dynamodb.Table
    by_name: dict[Table, dynamodb.Table]
    """The same, by the names that operations have for them."""

    def __init__(self, scope: Construct, id: str, *, options: Options) -> None:
        super().__init__(scope, id)
        self._keeps_data = options.keeps_data
        warm = _warm(options)  # the ledger takes a few writes a batch: what AWS starts it with is plenty
        # No LSI, ever: with one, DynamoDB cannot split a hot item collection by sort key. No TTL: counts are kept.
        # Old images of receipts too: by them a receipt that was edited by hand is told from a new one (MODIFY both).
        images = dynamodb.StreamViewType.NEW_AND_OLD_IMAGES
        self.counts = self._table("Counts", "PK", sort_key="SK", stream=images, expires=False, warm=warm)
        self.receipts = self._table("Receipts", "id", stream=images, expires=True, warm=warm)
        # No stream: what consumers write of themselves must not feed them.
        self.ledger = self._table("Ledger", "PK", sort_key="SK", expires=True)
        self.by_name = {Table.COUNTS: self.counts, Table.RECEIPTS: self.receipts, Table.LEDGER: self.ledger}

    def _table(
        self,
        name: str,
        partition_key: str,
        *,
        expires: bool,
        sort_key: str | None = None,
        stream: dynamodb.StreamViewType | None = None,
        warm: dynamodb.WarmThroughput | None = None,
    ) -> dynamodb.Table:
        # Table, not TableV2: the latter is a GlobalTable, which moto cannot create.
        table = dynamodb.Table(
            self,
            name,
            partition_key=_string(partition_key),
            sort_key=_string(sort_key) if sort_key else None,
            stream=stream,
            time_to_live_attribute=TTL_ATTRIBUTE if expires else None,
            warm_throughput=warm,
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            removal_policy=RemovalPolicy.RETAIN if self._keeps_data else RemovalPolicy.DESTROY,
            deletion_protection=self._keeps_data,
        )
        # A table that changes its logical id is a new, empty table: no refactoring of the constructs may do that.
        resource = table.node.default_child
        assert isinstance(resource, dynamodb.CfnTable)
        resource.override_logical_id(f"{name}Table")
        return table


def _warm(options: Options) -> dynamodb.WarmThroughput | None:
    if options.warm_writes is None and options.warm_reads is None:
        return None
    return dynamodb.WarmThroughput(write_units_per_second=options.warm_writes, read_units_per_second=options.warm_reads)


def _string(name: str) -> dynamodb.Attribute:
    return dynamodb.Attribute(name=name, type=dynamodb.AttributeType.STRING)
