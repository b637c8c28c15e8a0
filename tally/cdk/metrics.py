"""The metrics of the dashboard and the alarms: Tally's own metrics, and AWS's metrics of its services."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from aws_cdk import Duration
from aws_cdk import aws_apigatewayv2 as http
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_lambda as lambda_

from tally import observe
from tally.contract.declarations import Declarations

from .names import Names

MINUTE, FIVE_MINUTES = Duration.minutes(1), Duration.minutes(5)
Resource = lambda_.Alias | dynamodb.Table | http.HttpApi


@dataclass(frozen=True)
class TallyMetrics:
    """The metrics that the functions of this Tally write (tally/observe.py)."""

    names: Names
    declarations: Declarations

    def of_stack(self, name: str, statistic: str = "Sum") -> cloudwatch.Metric:
        """Returns the metric of this name of the whole stack."""
        return self._metric(name, {}, statistic, MINUTE, name)

    def by_counter(self, name: str, counters: Collection[str], statistic: str = "Sum") -> dict[str, cloudwatch.Metric]:
        """Returns the metric of each of these counters. A counter without changes has no data and costs nothing."""
        return {each: self._metric(name, {observe.COUNTER: each}, statistic, MINUTE, each) for each in counters}

    def each_counter(self, name: str) -> cloudwatch.MathExpression:
        """Returns a query with a line for each counter, for one alarm whose mails name the counter. An alarm takes at
        most ten metrics, but one query of up to 500 lines. A query with several lines needs ORDER BY."""
        return cloudwatch.MathExpression(
            expression=f'SELECT MAX({name}) FROM SCHEMA("{observe.NAMESPACE}", {observe.COUNTER}, service)'
            f" WHERE service = '{self.names.base}' GROUP BY {observe.COUNTER} ORDER BY MAX() DESC",
            period=MINUTE,
            label=name,
        )

    def by_consumer(self, name: str, statistic: str, *, period: Duration = MINUTE) -> dict[str, cloudwatch.Metric]:
        """Returns the metric of each stream consumer."""
        consumers = [consumer.function for consumer in self.declarations.readers]
        return {each: self._metric(name, {observe.CONSUMER: each}, statistic, period, each) for each in consumers}

    def by_version(self, name: str, version: str) -> cloudwatch.Metric:
        """Returns the metric of a version of a function: the code's digest and the module, as `1f2e3d4c5b6a.reads`."""
        return self._metric(name, {observe.VERSION: version}, "Sum", MINUTE, version)

    def _metric(
        self, name: str, dimensions: Mapping[str, str], statistic: str, period: Duration, label: str
    ) -> cloudwatch.Metric:
        dimensions = {"service": self.names.base, **dimensions}
        return metric(observe.NAMESPACE, name, dimensions, statistic, period=period, label=label)


def metric(
    namespace: str, name: str, dimensions: Mapping[str, str], statistic: str, *, period: Duration, label: str
) -> cloudwatch.Metric:
    """Returns a metric. `dimensions`: each value, by the name of its dimension."""
    return cloudwatch.Metric(
        namespace=namespace,
        metric_name=name,
        dimensions_map=dimensions,
        statistic=statistic,
        period=period,
        label=label,
    )


def aws_metric(
    resource: Resource, name: str, statistic: str = "Sum", *, period: Duration = MINUTE, label: str
) -> cloudwatch.Metric:
    """Returns AWS's metric of a function over all its versions, of a table, or of the whole API."""
    if isinstance(resource, lambda_.Alias):
        namespace, dimension, value = "AWS/Lambda", "FunctionName", resource.lambda_.function_name
    elif isinstance(resource, dynamodb.Table):
        namespace, dimension, value = "AWS/DynamoDB", "TableName", resource.table_name
    else:
        namespace, dimension, value = "AWS/ApiGateway", "ApiId", resource.api_id
    return metric(namespace, name, {dimension: value}, statistic, period=period, label=label)


def new_code_failures(failed: cloudwatch.Metric, alias: lambda_.Alias) -> cloudwatch.MathExpression:
    """Returns how many calls of a function's newest version failed by Tally's fault; 0 if at most a tenth failed,
    because while DynamoDB is busy, any code has a few failures a minute.

    `failed`: the answers that are failures. Lambda's `Errors` are calls without an answer, as of code that does not
    load. FILL: no data means 0."""
    function = alias.lambda_.function_name
    dimensions = {
        "FunctionName": function,
        "Resource": f"{function}:{alias.alias_name}",
        "ExecutedVersion": alias.version.version,
    }
    lambda_metrics = {
        label: metric("AWS/Lambda", name, dimensions, "Sum", period=MINUTE, label=label)
        for label, name in (("errors", "Errors"), ("calls", "Invocations"))
    }
    all_failed = "FILL(failed, 0) + FILL(errors, 0)"
    return cloudwatch.MathExpression(
        expression=f"IF(10 * ({all_failed}) > FILL(calls, 0), {all_failed}, 0)",
        using_metrics={"failed": failed, **lambda_metrics},
        period=MINUTE,
        label="failed",
    )


def failed_percentage(api: http.HttpApi) -> cloudwatch.MathExpression:
    """Returns the percentage of HTTP requests that failed, in five minutes."""
    return _expression("100 * FILL(failed, 0) / requests", "5xx", failed=(api, "5xx"), requests=(api, "Count"))


def write_units(tables: Mapping[str, dynamodb.Table]) -> cloudwatch.MathExpression:
    """Returns the write units of all tables, in five minutes. `FILL`: most of the time `salts` has no writes."""
    units = {name: (table, "ConsumedWriteCapacityUnits") for name, table in tables.items()}
    return _expression(" + ".join(f"FILL({name}, 0)" for name in tables), "all tables", **units)


def throttled_writes(name: str, table: dynamodb.Table) -> cloudwatch.MathExpression:
    """Returns the writes that DynamoDB throttled in a minute; 0 without data. Without FILL, an alarm on a metric of
    DynamoDB may ignore missing data, whatever its setting, and stay on."""
    return cloudwatch.MathExpression(
        expression=f"FILL({name}, 0)",
        using_metrics={name: aws_metric(table, "WriteThrottleEvents", label=name)},
        period=MINUTE,
        label=name,
    )


def successful_runs(alias: lambda_.Alias) -> cloudwatch.MathExpression:
    """Returns the number of runs of a function that ended without an error, in five minutes."""
    return _expression("runs - FILL(failed, 0)", "succeeded", runs=(alias, "Invocations"), failed=(alias, "Errors"))


def _expression(expression: str, label: str, **metrics: tuple[Resource, str]) -> cloudwatch.MathExpression:
    """Returns an expression over AWS's metrics, in five minutes.

    CloudWatch computes an expression only where each metric has data, so `FILL` replaces missing data. If a metric
    without `FILL` has no data, the expression has no value, and the alarm's `missing_data` decides.
    """
    using = {
        name: aws_metric(resource, metric, period=FIVE_MINUTES, label=name)
        for name, (resource, metric) in metrics.items()
    }
    return cloudwatch.MathExpression(expression=expression, using_metrics=using, period=FIVE_MINUTES, label=label)
