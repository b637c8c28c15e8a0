"""The metrics of dashboard and alarms: Tally's own, and those of the services that it uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aws_cdk import Duration
from aws_cdk import aws_apigatewayv2 as http
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_lambda as lambda_

from declarations import Declarations
from tally import observe
from tally.counter import Counter

MINUTE, FIVE_MINUTES = Duration.minutes(1), Duration.minutes(5)


@dataclass(frozen=True)
class OwnMetrics:
    """The metrics that the functions write themselves (tally/observe.py), for each declared counter and consumer."""

    declarations: Declarations

    def by_counter(self, name: str, *, which: Callable[[Counter], bool] = lambda _: True) -> list[cloudwatch.Metric]:
        """Its sum for each declared counter. A counter that never moves has no data, and costs nothing."""
        counters = self.declarations.counters.values()
        return [_own(name, observe.COUNTER, counter.name, "Sum") for counter in counters if which(counter)]

    def drift(self, name: str) -> dict[str, cloudwatch.Metric]:
        """How the sweep saw each counter's drift. Counters without receipts have none."""
        return self._seen_by_sweep(name, lambda counter: counter.tracked)

    def holds_not_returned(self) -> dict[str, cloudwatch.Metric]:
        """How many expired holds of each counter the sweep could not give back."""
        return self._seen_by_sweep(observe.HOLDS_NOT_RETURNED, lambda counter: counter.may_have_holds)

    def _seen_by_sweep(self, name: str, which: Callable[[Counter], bool]) -> dict[str, cloudwatch.Metric]:
        counters = [counter.name for counter in self.declarations.counters.values() if which(counter)]
        return {counter: _own(name, observe.COUNTER, counter, "Maximum") for counter in counters}

    def by_consumer(self, name: str, *, period: Duration = MINUTE) -> dict[str, cloudwatch.Metric]:
        """Its sum for each stream consumer."""
        return {consumer: _own(name, observe.CONSUMER, consumer, "Sum", period) for consumer in self._consumers}

    def evidence_age(self) -> dict[str, cloudwatch.Metric]:
        """How long ago the time is that each consumer had provably passed in every shard when the sweep looked."""
        name = observe.EVIDENCE_AGE
        return {consumer: _own(name, observe.CONSUMER, consumer, "Maximum") for consumer in self._consumers}

    def sweep_unfinished(self) -> cloudwatch.Metric:
        """1 if a sweep did not judge all that it could."""
        return _own(observe.SWEEP_UNFINISHED, observe.CONSUMER, observe.SWEEP, "Maximum")

    @property
    def _consumers(self) -> list[str]:
        return [consumer.function for consumer in self.declarations.consumers]


def _own(name: str, dimension: str, of: str, statistic: str, period: Duration = MINUTE) -> cloudwatch.Metric:
    return cloudwatch.Metric(
        namespace=observe.NAMESPACE,
        metric_name=name,
        dimensions_map={"service": observe.SERVICE, dimension: of},
        statistic=statistic,
        period=period,
        label=of,
    )


def of_function(
    alias: lambda_.Alias, name: str, statistic: str = "Sum", *, period: Duration = MINUTE, label: str
) -> cloudwatch.Metric:
    """A metric of Lambda for one function, over all its versions."""
    return cloudwatch.Metric(
        namespace="AWS/Lambda",
        metric_name=name,
        dimensions_map={"FunctionName": alias.lambda_.function_name},
        statistic=statistic,
        period=period,
        label=label,
    )


def of_table(table: dynamodb.Table, name: str, *, label: str) -> cloudwatch.Metric:
    """A sum of DynamoDB for one table."""
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
    """A metric of API Gateway for the whole API."""
    return cloudwatch.Metric(
        namespace="AWS/ApiGateway",
        metric_name=name,
        dimensions_map={"ApiId": api.api_id},
        statistic=statistic,
        period=period,
        label=label,
    )


def failed(api: http.HttpApi) -> cloudwatch.MathExpression:
    """The percentage of HTTP requests that failed, in five minutes."""
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
