"""The metrics of dashboard and alarms: Tally's own, and those of the services that it uses."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from aws_cdk import Duration
from aws_cdk import aws_apigatewayv2 as http
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_lambda as lambda_

from declarations import Declarations
from tally import observe

from .names import Names

MINUTE, FIVE_MINUTES = Duration.minutes(1), Duration.minutes(5)


@dataclass(frozen=True)
class OwnMetrics:
    """The metrics that the functions write themselves (tally/observe.py), of this Tally alone."""

    names: Names
    declarations: Declarations

    def of_stack(self, name: str, statistic: str = "Sum") -> cloudwatch.Metric:
        """The one metric of this name."""
        return self._own(name, {}, statistic, MINUTE, name)

    def by_counter(self, name: str, *, of: Collection[str], statistic: str = "Sum") -> dict[str, cloudwatch.Metric]:
        """The metric of each of these counters. A counter that never moves has no data, and costs nothing."""
        return {counter: self._own(name, {observe.COUNTER: counter}, statistic, MINUTE, counter) for counter in of}

    def by_consumer(self, name: str, statistic: str, *, period: Duration = MINUTE) -> dict[str, cloudwatch.Metric]:
        """The metric of each stream consumer."""
        consumers = [consumer.function for consumer in self.declarations.readers]
        return {each: self._own(name, {observe.CONSUMER: each}, statistic, period, each) for each in consumers}

    def _own(self, name: str, of: Mapping[str, str], statistic: str, period: Duration, label: str) -> cloudwatch.Metric:
        return cloudwatch.Metric(
            namespace=observe.NAMESPACE,
            metric_name=name,
            dimensions_map={"service": self.names.base, **of},
            statistic=statistic,
            period=period,
            label=label,
        )


def summed(metric: cloudwatch.Metric) -> cloudwatch.Metric:
    """The metric with its sum over the time that a widget shows, in the legend."""
    return metric.with_(label=f"{metric.label} ${{SUM}}")


def of(
    resource: lambda_.Alias | dynamodb.Table | http.HttpApi,
    name: str,
    statistic: str = "Sum",
    *,
    period: Duration = MINUTE,
    label: str,
) -> cloudwatch.Metric:
    """AWS's metric of a function, over all its versions, of a table, or of the whole API."""
    if isinstance(resource, lambda_.Alias):
        namespace, dimension, value = "AWS/Lambda", "FunctionName", resource.lambda_.function_name
    elif isinstance(resource, dynamodb.Table):
        namespace, dimension, value = "AWS/DynamoDB", "TableName", resource.table_name
    else:
        namespace, dimension, value = "AWS/ApiGateway", "ApiId", resource.api_id
    return cloudwatch.Metric(
        namespace=namespace,
        metric_name=name,
        dimensions_map={dimension: value},
        statistic=statistic,
        period=period,
        label=label,
    )


def failed(api: http.HttpApi) -> cloudwatch.MathExpression:
    """The percentage of HTTP requests that failed, in five minutes."""
    return cloudwatch.MathExpression(
        expression="100 * failed / requests",
        using_metrics={
            "failed": of(api, "5xx", period=FIVE_MINUTES, label="failed"),
            "requests": of(api, "Count", period=FIVE_MINUTES, label="requests"),
        },
        period=FIVE_MINUTES,
        label="5xx",
    )


def ended_well(alias: lambda_.Alias) -> cloudwatch.MathExpression:
    """How many runs of a function ended without an error, in five minutes."""
    return cloudwatch.MathExpression(
        expression="runs - failed",
        using_metrics={
            "runs": of(alias, "Invocations", period=FIVE_MINUTES, label="runs"),
            "failed": of(alias, "Errors", period=FIVE_MINUTES, label="failed"),
        },
        period=FIVE_MINUTES,
        label="ended well",
    )
