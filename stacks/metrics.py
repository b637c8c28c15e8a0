"""The metrics that dashboard and alarms are made of: Tally's own, and those of the services under it."""

from __future__ import annotations

from collections.abc import Callable

from aws_cdk import Duration
from aws_cdk import aws_apigatewayv2 as http
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_lambda as lambda_

import counters
import operations
from tally.counter import Counter

SERVICE, NAMESPACE = "tally", "Tally"  # as observe.py writes them, which the stack does not load: a test compares
MINUTE, FIVE_MINUTES = Duration.minutes(1), Duration.minutes(5)


def by_counter(name: str, *, which: Callable[[Counter], bool] = lambda _: True) -> list[cloudwatch.Metric]:
    """How much of it there was of each declared counter. One that never moves costs nothing: it has no data."""
    return [_own(name, "counter", counter.name, "Sum") for counter in counters.COUNTERS.values() if which(counter)]


def standing(name: str) -> dict[str, cloudwatch.Metric]:
    """How each counter's drift stood, as the sweep saw it; counters without receipts have none."""
    tracked = [counter.name for counter in counters.COUNTERS.values() if counter.tracked]
    return {counter: _own(name, "counter", counter, "Maximum") for counter in tracked}


def by_consumer(name: str, *, period: Duration = MINUTE) -> dict[str, cloudwatch.Metric]:
    """What each stream consumer did."""
    consumers = [consumer.function for consumer in operations.CONSUMERS]
    return {consumer: _own(name, "consumer", consumer, "Sum", period) for consumer in consumers}


def standing_still() -> dict[str, cloudwatch.Metric]:
    """How many streams each consumer did not move on in, as the sweep saw it."""
    consumers = [consumer.function for consumer in operations.CONSUMERS]
    return {consumer: _own("StandsStill", "consumer", consumer, "Maximum") for consumer in consumers}


def sweep_unfinished() -> cloudwatch.Metric:
    """1 where a sweep did not come to the end of the ledger."""
    return _own("SweepUnfinished", "consumer", "sweep", "Maximum")


def rollup_lag() -> cloudwatch.Metric:
    """How many seconds the rolled up numbers were behind."""
    return _own("RollupLagSeconds", "consumer", "rollup", "Maximum")


def _own(name: str, dimension: str, of: str, statistic: str, period: Duration = MINUTE) -> cloudwatch.Metric:
    return cloudwatch.Metric(
        namespace=NAMESPACE,
        metric_name=name,
        dimensions_map={"service": SERVICE, dimension: of},
        statistic=statistic,
        period=period,
        label=of,
    )


def of_function(
    alias: lambda_.Alias, name: str, statistic: str = "Sum", *, period: Duration = MINUTE, label: str
) -> cloudwatch.Metric:
    """A metric of Lambda's for one function, whatever its version."""
    return cloudwatch.Metric(
        namespace="AWS/Lambda",
        metric_name=name,
        dimensions_map={"FunctionName": alias.lambda_.function_name},
        statistic=statistic,
        period=period,
        label=label,
    )


def of_table(table: dynamodb.Table, name: str, *, label: str) -> cloudwatch.Metric:
    """A sum of DynamoDB's for one table."""
    return cloudwatch.Metric(
        namespace="AWS/DynamoDB",
        metric_name=name,
        dimensions_map={"TableName": table.table_name},
        statistic="Sum",
        period=MINUTE,
        label=label,
    )


def of_api(
    api: http.HttpApi, name: str, statistic: str = "Sum", *, period: Duration = MINUTE, label: str
) -> cloudwatch.Metric:
    """A metric of API Gateway's for the whole API."""
    return cloudwatch.Metric(
        namespace="AWS/ApiGateway",
        metric_name=name,
        dimensions_map={"ApiId": api.api_id},
        statistic=statistic,
        period=period,
        label=label,
    )


def failed(api: http.HttpApi) -> cloudwatch.MathExpression:
    """What percentage of the HTTP requests failed, in five minutes."""
    return cloudwatch.MathExpression(
        expression="100 * failed / requests",
        using_metrics={
            "failed": of_api(api, "5xx", period=FIVE_MINUTES, label="failed"),
            "requests": of_api(api, "Count", period=FIVE_MINUTES, label="requests"),
        },
        period=FIVE_MINUTES,
        label="5xx",
    )


def ended_well(alias: lambda_.Alias) -> cloudwatch.MathExpression:
    """How many runs of a function ended without an error, in five minutes."""
    return cloudwatch.MathExpression(
        expression="runs - failed",
        using_metrics={
            "runs": of_function(alias, "Invocations", period=FIVE_MINUTES, label="runs"),
            "failed": of_function(alias, "Errors", period=FIVE_MINUTES, label="failed"),
        },
        period=FIVE_MINUTES,
        label="ended well",
    )
