"""How the streams of the tables reach their consumers: one event source mapping for each stream and consumer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aws_cdk import Duration
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from tally.api.needs import Table
from tally.api.unattended import StreamReader
from tally.contract.declarations import Declarations
from tally.contract.described import BATCH_RECORDS, BATCHING_WINDOW_S, TUMBLING_WINDOW_S, patterns

from .tables import Tables

UNLIMITED = -1


class Streams(Construct):
    """The event source mappings of all consumers."""

    mappings: list[lambda_.CfnEventSourceMapping]
    consumers: Sequence[lambda_.Alias]

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        declarations: Declarations,
        tables: Tables,
        consumers: Mapping[str, lambda_.Alias],
    ) -> None:
        super().__init__(scope, id)
        self.consumers = [*consumers.values()]
        for consumer in declarations.readers:
            _let_read(consumer, consumers[consumer.function], tables)
        self.mappings = [
            self._mapping(consumer, consumers[consumer.function], table, tables.by_name[table])
            for consumer in declarations.readers
            for table in consumer.streams
        ]

    def precede(self, writers: Iterable[lambda_.Alias]) -> None:
        """Let the functions that write go live after the consumers.

        A consumer that does not know a new counter yet would set its records aside, or book one side of them.
        """
        for writer in writers:
            for mapping in self.mappings:
                _resource(writer).add_resource_dependency(mapping)
            for consumer in self.consumers:
                _resource(writer).add_resource_dependency(_resource(consumer))

    def _mapping(
        self, consumer: StreamReader, alias: lambda_.Alias, table: Table, source: dynamodb.Table
    ) -> lambda_.CfnEventSourceMapping:
        filters = [lambda_.FilterCriteria.filter(pattern) for pattern in patterns(consumer, table)]
        mapping = lambda_.EventSourceMapping(
            self,
            f"{consumer.function.capitalize()}{table.value.capitalize()}",
            target=alias,
            event_source_arn=source.table_stream_arn,
            starting_position=lambda_.StartingPosition.TRIM_HORIZON,  # includes changes from before the mapping
            batch_size=BATCH_RECORDS,
            max_batching_window=Duration.seconds(BATCHING_WINDOW_S),
            tumbling_window=Duration.seconds(TUMBLING_WINDOW_S),
            parallelization_factor=1,  # two invocations would share the checkpoint of one stream shard
            bisect_batch_on_error=True,
            report_batch_item_failures=True,
            filters=filters or None,
        )
        resource = mapping.node.default_child
        assert isinstance(resource, lambda_.CfnEventSourceMapping)
        resource.function_name = alias.function_arn  # the construct rebuilds the ARN from its parts
        # Lambda never gives up a record: the consumer sets aside those that fail. The construct refuses -1.
        resource.maximum_retry_attempts = UNLIMITED
        resource.maximum_record_age_in_seconds = UNLIMITED
        return resource


def _resource(alias: lambda_.Alias) -> lambda_.CfnAlias:
    resource = alias.node.default_child
    assert isinstance(resource, lambda_.CfnAlias)
    return resource


def _let_read(consumer: StreamReader, alias: lambda_.Alias, tables: Tables) -> None:
    """Let Lambda read the consumer's streams with its role."""
    assert isinstance(alias.role, iam.Role)
    alias.role.add_to_policy(tables.reading_streams(consumer.streams))
    alias.role.add_to_policy(iam.PolicyStatement(actions=["dynamodb:ListStreams"], resources=["*"]))  # takes no other
