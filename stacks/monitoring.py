"""The dashboard: a section for each question of an operator, and the alarms on the same metrics.

docs/operations.md lists the widgets and has a section for each alarm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_dynamodb as dynamodb
from cdk_monitoring_constructs import (
    AlarmFactoryDefaults,
    CustomMetricGroup,
    CustomMetricWithAlarm,
    DefaultDashboardFactory,
    MetricFactoryDefaults,
    MonitoringFacade,
    SnsAlarmActionStrategy,
)
from constructs import Construct

from declarations import Declarations
from tally import observe

from . import alarms, metrics
from .alarms import AlarmTopic, watched
from .api import Api
from .dead_letters import DeadLetters
from .functions import Functions
from .metrics import OwnMetrics
from .names import Names
from .tables import Tables

Shown = cloudwatch.Metric | cloudwatch.MathExpression | CustomMetricWithAlarm


@dataclass(frozen=True)
class Parts:
    """The constructs that the dashboard and the alarms watch."""

    tables: Tables
    functions: Functions
    api: Api
    dead_letters: DeadLetters


class Monitoring(Construct):
    """Dashboard, alarms and their topic."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        names: Names,
        declarations: Declarations,
        parts: Parts,
        alarm_email: str | None,
    ) -> None:
        super().__init__(scope, id)
        self._names = names
        self._own = OwnMetrics(declarations)
        self._parts = parts
        self.topic = AlarmTopic(self, "Alarms", email=alarm_email).topic
        self.dashboard_name = names.dashboard
        self._facade = MonitoringFacade(
            self,
            "Facade",
            alarm_factory_defaults=AlarmFactoryDefaults(
                actions_enabled=True,
                alarm_name_prefix=names.base,
                action=SnsAlarmActionStrategy(
                    on_alarm_topic=self.topic, on_ok_topic=self.topic, on_insufficient_data_topic=self.topic
                ),
            ),
            metric_factory_defaults=MetricFactoryDefaults(period=metrics.MINUTE),
            dashboard_factory=DefaultDashboardFactory(self, "Dashboards", dashboard_name_prefix=self.dashboard_name),
        )
        self._numbers()
        self._callers()
        self._streams()
        self._machinery()

    def _section(self, name: str, question: str, widgets: dict[str, Sequence[Shown]]) -> None:
        """One question and the widgets that answer it, by title. `name` only appears in construct ids."""
        self._facade.monitor_custom(
            human_readable_name=question,
            alarm_friendly_name=name,
            metric_groups=[CustomMetricGroup(title=title, metrics=list(shown)) for title, shown in widgets.items()],
        )

    def _numbers(self) -> None:
        confirmed = [
            watched(self._names, metric, alarms.DRIFT, of=counter)
            for counter, metric in self._own.drift(observe.DRIFT_CONFIRMED).items()
        ]
        self._section(
            "Drift",
            "Are the numbers right?",
            {
                "Drifting tallies, confirmed": confirmed,
                "Drifting tallies": [*self._own.drift(observe.DRIFTING_TALLIES).values()],
                "Drift, summed without its sign": [*self._own.drift(observe.DRIFT_ABSOLUTE).values()],
                "Oldest drift, seconds": [*self._own.drift(observe.OLDEST_DRIFT).values()],
                "Sweeps that did not come to the end": [
                    watched(self._names, self._own.sweep_unfinished(), alarms.UNJUDGED)
                ],
                "Expired holds that could not be given back": [
                    watched(self._names, metric, alarms.HOLDS, of=counter)
                    for counter, metric in self._own.holds_not_returned().items()
                ],
            },
        )
        self._section(
            "Traffic",
            "How much is counted, and how often would a retry have counted twice?",
            {
                "Changes counted": self._own.by_counter(observe.COUNTED),
                "Retries answered from their receipt": self._own.by_counter(observe.REPLAYED),
                "Refused: the caller has to correct it": self._own.by_counter(observe.REFUSED),
            },
        )
        self._section(
            "Heat",
            "Is one key hotter than its shards?",
            {
                "Conflicts, retried on another shard": self._own.by_counter(observe.CONFLICTS),
                "Spilled: counted now, visible soon": self._own.by_counter(
                    observe.SPILLED, which=lambda counter: counter.spills
                ),
            },
        )

    def _callers(self) -> None:
        api = self._parts.api.api
        self._section(
            "Callers",
            "Are callers answered, and fast?",
            {
                "HTTP requests": [
                    metrics.of_api(api, "Count", label="all"),
                    metrics.of_api(api, "4xx", label="4xx"),
                    metrics.of_api(api, "5xx", label="5xx"),
                ],
                "HTTP requests that failed, %": [watched(self._names, metrics.failed(api), alarms.FAILING)],
                "Latency, ms": [
                    metrics.of_api(api, "Latency", "p50", label="p50"),
                    watched(self._names, metrics.of_api(api, "Latency", "p99", label="p99"), alarms.LATENCY),
                    metrics.of_api(api, "IntegrationLatency", "p99", label="p99 of the functions"),
                ],
            },
        )

    def _streams(self) -> None:
        ages = {
            consumer: metrics.of_function(alias, "IteratorAge", "Maximum", period=metrics.FIVE_MINUTES, label=consumer)
            for consumer, alias in self._parts.functions.consumers.items()
        }
        put_aside = self._own.by_consumer(observe.SET_ASIDE, period=metrics.FIVE_MINUTES)
        self._section(
            "Behind",
            "How far behind are the numbers that are rolled up, and the ledger?",
            {
                "Age of the proof that a consumer passed every shard, seconds": [
                    watched(self._names, metric, alarms.EVIDENCE_AGE, of=consumer)
                    for consumer, metric in self._own.evidence_age().items()
                ],
                "Age of the oldest record read, ms": [
                    watched(self._names, age, alarms.ITERATOR_AGE, of=consumer) for consumer, age in ages.items()
                ],
            },
        )
        self._section(
            "Records",
            "What becomes of the records that the streams bring?",
            {
                "Records applied": [*self._own.by_consumer(observe.APPLIED).values()],
                "Records skipped: delivered before": [*self._own.by_consumer(observe.SKIPPED).values()],
                "Records set aside": [
                    watched(self._names, metric, alarms.SET_ASIDE, of=consumer)
                    for consumer, metric in put_aside.items()
                ],
            },
        )

    def _machinery(self) -> None:
        tables = {table.value: found for table, found in self._parts.tables.by_name.items()}
        functions = self._parts.functions.all
        self._section(
            "Throttles",
            "Does DynamoDB refuse anything?",
            {
                "Writes throttled": [
                    watched(self._names, metric, alarms.THROTTLES, of=table)
                    for table, metric in _of_tables(tables, "WriteThrottleEvents").items()
                ],
                "Reads throttled": [*_of_tables(tables, "ReadThrottleEvents").values()],
            },
        )
        left = self._parts.dead_letters.queue.metric_approximate_number_of_messages_visible(
            period=metrics.FIVE_MINUTES, statistic="Maximum", label="events"
        )
        self._section(
            "Functions",
            "Do the functions run?",
            {
                "Function errors": [
                    metrics.of_function(found, "Errors", label=name) for name, found in functions.items()
                ],
                "Functions throttled": [
                    metrics.of_function(found, "Throttles", label=name) for name, found in functions.items()
                ],
                "Sweeps that ended well": [watched(self._names, metrics.ended_well(functions["sweep"]), alarms.SWEEP)],
                "Asynchronous events given up": [watched(self._names, left, alarms.DEAD_LETTERS)],
            },
        )
        self._section(
            "Cost",
            "What is it that costs?",
            {
                "Write units": [*_of_tables(tables, "ConsumedWriteCapacityUnits").values()],
                "Read units": [*_of_tables(tables, "ConsumedReadCapacityUnits").values()],
                "Invocations": [
                    metrics.of_function(found, "Invocations", label=name) for name, found in functions.items()
                ],
                "Time that functions ran, ms": [
                    metrics.of_function(found, "Duration", label=name) for name, found in functions.items()
                ],
            },
        )


def _of_tables(tables: dict[str, dynamodb.Table], name: str) -> dict[str, cloudwatch.Metric]:
    return {label: metrics.of_table(table, name, label=label) for label, table in tables.items()}
