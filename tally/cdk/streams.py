"""How the streams of the tables reach their consumers: one event source mapping for each stream and consumer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from aws_cdk import Duration
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from tally.api.needs import Table
from tally.api.unattended import StreamReader
from tally.contract.declarations import Declarations

from .tables import Tables

BATCH_SIZE = 1000  # the more records are folded into one transaction, the fewer write units they take
BATCHING_WINDOW = Duration.seconds(1)  # a quiet stream gathers this long: half of a reader's wait for a rollup
# Only because an event without a window lacks the stream shard's id. The longest that Lambda takes: it invokes the
# consumer once more at the end of each, which at 60 s was half of what an idle stack invokes.
TUMBLING_WINDOW = Duration.minutes(15)
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
        filters = [lambda_.FilterCriteria.filter(pattern) for pattern in _patterns(consumer, table, source)]
        mapping = lambda_.EventSourceMapping(
            self,
            f"{consumer.function.capitalize()}{table.value.capitalize()}",
            target=alias,
            event_source_arn=source.table_stream_arn,
            starting_position=lambda_.StartingPosition.TRIM_HORIZON,  # includes changes from before the mapping
            batch_size=BATCH_SIZE,
            max_batching_window=BATCHING_WINDOW,
            tumbling_window=TUMBLING_WINDOW,
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


def _patterns(consumer: StreamReader, table: Table, source: dynamodb.Table) -> Iterator[dict[str, Any]]:
    """What a mapping lets through: a record that matches any of these, or every record if there are none.

    No kind is filtered by an attribute: a malformed record would disappear here.
    """
    kinds, prefix = consumer.streams[table], consumer.prefixes.get(table)
    if kinds:
        yield {"eventName": list(kinds)}
        if prefix:
            [key] = source.schema_v2().partition_keys
            yield {"dynamodb": {"Keys": {key.name: {"S": [{"prefix": prefix}]}}}}


def _let_read(consumer: StreamReader, alias: lambda_.Alias, tables: Tables) -> None:
    """Let Lambda read the consumer's streams with its role."""
    assert isinstance(alias.role, iam.Role)
    alias.role.add_to_policy(tables.reading_streams(consumer.streams))
    alias.role.add_to_policy(iam.PolicyStatement(actions=["dynamodb:ListStreams"], resources=["*"]))  # takes no other
