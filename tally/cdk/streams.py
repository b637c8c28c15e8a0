"""The event source mappings: one for each stream and consumer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aws_cdk import CfnResource, Duration
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from tally.api.background import StreamReader
from tally.contract.declarations import Declarations
from tally.contract.deployment import DELIVERY, filter_patterns

from .tables import Tables
from .team_tables import TeamTables


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
        team_tables: TeamTables,
        consumers: Mapping[str, lambda_.Alias],
    ) -> None:
        super().__init__(scope, id)
        self.consumers = [*consumers.values()]
        self.mappings = []
        for consumer in declarations.readers:
            alias = consumers[consumer.function]
            assert isinstance(alias.role, iam.Role)  # Lambda reads the streams with this role
            if consumer.team_tables:
                team_tables.grant_read_streams(alias.role)
            else:
                alias.role.add_to_policy(tables.read_streams_statement(consumer.streams))
                # ListStreams takes no resource.
                alias.role.add_to_policy(iam.PolicyStatement(actions=["dynamodb:ListStreams"], resources=["*"]))
            for table in consumer.streams:
                id_, arn = table.value.capitalize(), tables.by_name[table].table_stream_arn
                self.mappings.append(self._mapping(consumer, alias, id_, arn, filter_patterns(consumer, table)))
            for name in consumer.team_tables:
                arn = team_tables.by_name[name].table_stream_arn
                self.mappings.append(self._mapping(consumer, alias, f"Of{name}", arn, ()))

    def deploy_before(self, writers: Iterable[lambda_.Alias | lambda_.Function]) -> None:
        """Let a deploy update the consumers before these functions, which write. A consumer that does not know a new
        counter makes dead letters of the counter's records, or books only half of a change."""
        for writer in writers:
            for mapping in self.mappings:
                _resource(writer).add_resource_dependency(mapping)
            for consumer in self.consumers:
                _resource(writer).add_resource_dependency(_resource(consumer))

    def _mapping(
        self, consumer: StreamReader, alias: lambda_.Alias, id_end: str, stream: str | None, patterns: Iterable[Any]
    ) -> lambda_.CfnEventSourceMapping:
        filters = [lambda_.FilterCriteria.filter(pattern) for pattern in patterns]
        mapping = lambda_.EventSourceMapping(
            self,
            f"{consumer.function.capitalize()}{id_end}",
            target=alias,
            event_source_arn=stream,
            starting_position=lambda_.StartingPosition[DELIVERY.begins],
            batch_size=DELIVERY.batch_records,
            max_batching_window=Duration.seconds(consumer.window_s),
            tumbling_window=Duration.seconds(DELIVERY.tumbling_window_s),
            parallelization_factor=DELIVERY.parallel,
            bisect_batch_on_error=DELIVERY.bisects,
            report_batch_item_failures=DELIVERY.reports_failures,
            filters=filters or None,
        )
        resource = mapping.node.default_child
        assert isinstance(resource, lambda_.CfnEventSourceMapping)
        resource.function_name = alias.function_arn  # CDK's construct would join the ARN from its parts
        resource.maximum_retry_attempts = DELIVERY.retries  # CDK's construct refuses -1
        resource.maximum_record_age_in_seconds = DELIVERY.age_s
        return resource


def _resource(construct: lambda_.Alias | lambda_.Function) -> CfnResource:
    resource = construct.node.default_child
    assert isinstance(resource, CfnResource)
    return resource
