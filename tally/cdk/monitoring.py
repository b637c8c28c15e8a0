"""The dashboard: a section for each question of an operator, and the alarms on the same metrics.

docs/reference.md lists the widgets, and docs/runbook.md has a section for each alarm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from cdk_monitoring_constructs import (
    AlarmFactoryDefaults,
    CustomMetricGroup,
    CustomMetricWithAlarm,
    DynamicDashboardFactory,
    MetricFactoryDefaults,
    MonitoringFacade,
    SnsAlarmActionStrategy,
)
from cdk_monitoring_constructs import Monitoring as Monitored
from constructs import Construct

from tally import observe
from tally.contract.declarations import Declarations

from . import alarms, metrics
from .alarms import AlarmTopic, metric_with_alarm
from .api import Api
from .failed_events import FailedEvents
from .functions import Functions
from .metrics import TallyMetrics
from .names import Names
from .options import Options
from .tables import Tables

TRAFFIC_SHARE = 0.8  # of what a route lets through
WRITE_UNITS_PER_CHANGE = 4  # write units, of one that is visible now
WidgetMetric = cloudwatch.Metric | cloudwatch.MathExpression | CustomMetricWithAlarm


@dataclass(frozen=True)
class Parts:
    """The constructs that the dashboard and the alarms watch."""

    tables: Tables
    functions: Functions
    api: Api
    failed_events: FailedEvents


class Monitoring(Construct):
    """Dashboard, alarms and their topic.

    A dashboard of up to 50 metrics is in CloudWatch's free tier. So a widget has only what an operator looks at, and
    the alarms are on the dashboard by their state, not by their metrics.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        names: Names,
        declarations: Declarations,
        parts: Parts,
        options: Options,
    ) -> None:
        super().__init__(scope, id)
        self._names = names
        self._metrics = TallyMetrics(names, declarations)
        self._counters, self._readers = declarations.counters, declarations.readers
        self._parts = parts
        self._options = options
        alarm_topic = AlarmTopic(self, "Alarms", names=names, email=options.alarm_email)
        alarm_topic.grant_read_alarms(parts.functions.aliases["drift"])  # GET /status
        self.topic = alarm_topic.topic
        self.dashboard_name = names.dashboard_name
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
            # The dashboard is made below: it begins with the alarms, which the sections make.
            dashboard_factory=DynamicDashboardFactory(self, "None", dashboard_configs=[], dashboard_name_prefix="-"),
        )
        self._add_number_sections()
        self._add_caller_section()
        self._add_stream_section()
        self._add_journal_section()
        self._add_machinery_sections()
        sections = self._facade.created_monitorings()
        self._add_alarms_without_widgets()
        self._add_dashboard(sections)

    def _add_section(self, name: str, question: str, widgets: dict[str, Sequence[WidgetMetric]]) -> None:
        """One question and the widgets that answer it, by title. `name` only appears in construct ids."""
        self._facade.monitor_custom(
            human_readable_name=question,
            alarm_friendly_name=name,
            metric_groups=[CustomMetricGroup(title=title, metrics=list(shown)) for title, shown in widgets.items()],
        )

    def _add_dashboard(self, sections: Sequence[Monitored]) -> None:
        """The state of every alarm, then the sections."""
        shown = Duration.hours(1)  # at first: the sums in its legends are then an hour's
        dashboard = cloudwatch.Dashboard(self, "Dashboard", dashboard_name=self.dashboard_name, default_interval=shown)
        dashboard.add_widgets(cloudwatch.TextWidget(markdown="### Is anything wrong now?", width=24, height=1))
        on = [created.alarm for created in self._facade.created_alarms()]
        dashboard.add_widgets(cloudwatch.AlarmStatusWidget(alarms=on, title="Alarms", width=24, height=4))
        for section in sections:
            dashboard.add_widgets(*section.widgets())

    def _add_alarms_without_widgets(self) -> None:
        """Alarms whose metrics are not on the dashboard, which has the state of each alarm.

        Drift has one for all counters, and a mail for each: a drift that nobody has repaired yet hides none of another
        counter. Its query takes up to 500 counters; a formula takes ten metrics, and an alarm takes no SEARCH. https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Acting_Alarm_Changes.html
        """
        drift = metric_with_alarm(self._names, self._metrics.each_counter(observe.DRIFT_CONFIRMED), alarms.DRIFT)
        self._add_section("Confirmed", "Which counters drift?", {"Drifting tallies, confirmed": [drift]})
        unjudged = metric_with_alarm(
            self._names, self._metrics.of_stack(observe.SWEEP_UNFINISHED, "Maximum"), alarms.UNJUDGED
        )
        self._add_section(
            "Unjudged", "Is all judged that could be?", {"Sweeps that did not come to the end": [unjudged]}
        )

        if any(counter.notifies for counter in self._counters.values()):
            oldest = metric_with_alarm(
                self._names, self._metrics.of_stack(observe.OLDEST_EVENT, "Maximum"), alarms.EVENTS
            )
            self._add_section("Events", "Are the events of thresholds sent?", {"Oldest event left, seconds": [oldest]})

        lost = metric_with_alarm(
            self._names, self._metrics.of_stack(observe.RECORDS_LOST, "Maximum"), alarms.LOST_RECORDS
        )
        self._add_section("Lost", "May the streams have lost records?", {"Losses that nobody has acknowledged": [lost]})

        api, tables = self._parts.api, {table.value: resource for table, resource in self._parts.tables.by_name.items()}
        seconds = TRAFFIC_SHARE * metrics.FIVE_MINUTES.to_seconds()
        requests = metrics.aws_metric(api.api, "Count", period=metrics.FIVE_MINUTES, label="requests")
        refused = api.throttled_requests.metric(period=metrics.FIVE_MINUTES, statistic="Sum", label="refused")
        written, of_writes = (
            metrics.write_units(tables),
            seconds * WRITE_UNITS_PER_CHANGE * api.busiest_per_s(writes=True),
        )
        costs = [
            metric_with_alarm(self._names, requests, replace(alarms.TRAFFIC, threshold=seconds * api.busiest_per_s())),
            metric_with_alarm(self._names, refused, alarms.REFUSING),
        ]
        if of_writes:  # a Tally may count the items of the team's tables alone
            costs.append(metric_with_alarm(self._names, written, replace(alarms.WRITE_UNITS, threshold=of_writes)))
        if self._options.domain_name:  # behind it is what can stop every request before the API
            hourly = metrics.aws_metric(api.api, "Count", period=Duration.hours(1), label="requests")
            costs.append(metric_with_alarm(self._names, hourly, alarms.SILENCE))
        self._add_section("Costly", "Is somebody using up the routes?", {"What strangers cost": costs})

    def _add_number_sections(self) -> None:
        own = self._metrics
        counted = own.by_counter(observe.COUNTED, of=self._counters).values()
        self._add_section(
            "Drift",
            "Are the numbers right?",
            {
                "Drifting tallies": [own.of_stack(observe.DRIFTING_TALLIES, "Maximum")],
                "Drift, summed without its sign": [own.of_stack(observe.DRIFT_ABSOLUTE, "Maximum")],
                "Oldest drift, seconds": [own.of_stack(observe.OLDEST_DRIFT, "Maximum")],
                "Expired holds that could not be given back": [
                    metric_with_alarm(self._names, own.of_stack(observe.HOLDS_NOT_RETURNED, "Maximum"), alarms.HOLDS)
                ],
            },
        )
        of_items = {name: counter for name, counter in self._counters.items() if counter.items is not None}
        if of_items:
            uncounted = own.by_counter(observe.UNCOUNTED, of=of_items, statistic="Maximum").values()
            self._add_section("Items", "Which items count for nothing?", {"Items that count for nothing": [*uncounted]})
        self._add_section(
            "Traffic",
            "How much is counted, and how often would a retry have counted twice?",
            {
                "Changes counted, by counter": [metrics.with_sum_label(metric) for metric in counted],
                "Retries answered from their receipt": [own.of_stack(observe.REPLAYED)],
                "Refused: the caller has to correct it": [own.of_stack(observe.REFUSED)],
            },
        )
        self._add_section(
            "Heat",
            "Is one key hotter than its shards?",
            {
                "Conflicts, retried on another shard": [own.of_stack(observe.CONFLICTS)],
                "Spilled: counted now, visible soon": [own.of_stack(observe.SPILLED)],
            },
        )

    def _add_caller_section(self) -> None:
        api = self._parts.api.api
        p99 = metrics.aws_metric(api, "Latency", "p99", label="p99")
        # Without snapshots cold starts alone would set the alarm off.
        latency: WidgetMetric = metric_with_alarm(self._names, p99, alarms.LATENCY) if self._options.snap_start else p99
        self._add_section(
            "Callers",
            "Are callers answered, and fast?",
            {
                "HTTP requests": [metrics.aws_metric(api, "Count", label="all")],
                "HTTP requests that failed, %": [
                    metric_with_alarm(self._names, metrics.failed_percentage(api), alarms.FAILING)
                ],
                "Latency, ms": [latency],
            },
        )

    def _add_stream_section(self) -> None:
        ages = {
            consumer: metrics.aws_metric(alias, "IteratorAge", "Maximum", period=metrics.FIVE_MINUTES, label=consumer)
            for consumer, alias in self._parts.functions.consumers.items()
        }
        # No heartbeat goes into the team's tables: one that nobody writes is silent, and nothing is wrong.
        silent = replace(alarms.ITERATOR_AGE, missing_data=cloudwatch.TreatMissingData.NOT_BREACHING)
        ages_of = {one.function: silent if one.team_tables else alarms.ITERATOR_AGE for one in self._readers}
        watermark = self._metrics.by_consumer(observe.WATERMARK_AGE, "Maximum")
        dead = self._metrics.by_consumer(observe.DEAD_LETTERS, "Sum", period=metrics.FIVE_MINUTES)
        self._add_section(
            "Behind",
            "How far behind are the numbers that are rolled up, and the ledger?",
            {
                "Age of the proof that a consumer passed every shard, seconds": [
                    metric_with_alarm(self._names, metric, alarms.WATERMARK_AGE, of=consumer)
                    for consumer, metric in watermark.items()
                ],
                "Age of the oldest record read, ms": [
                    metric_with_alarm(self._names, age, ages_of[consumer], of=consumer)
                    for consumer, age in ages.items()
                ],
                "Dead letters": [
                    metric_with_alarm(self._names, metric, alarms.DEAD_LETTERS, of=consumer)
                    for consumer, metric in dead.items()
                ],
            },
        )

    def _add_journal_section(self) -> None:
        self._add_section(
            "Journal",
            "How far is the journal judged?",
            {"Age of the newest judged minute, seconds": [self._metrics.of_stack(observe.JUDGED_AGE, "Maximum")]},
        )

    def _add_machinery_sections(self) -> None:
        tables = {table.value: resource for table, resource in self._parts.tables.by_name.items()}
        self._add_section(
            "Throttles",
            "Does DynamoDB refuse anything, and what does it bill?",
            {
                "Writes throttled": [
                    metric_with_alarm(self._names, metrics.throttled_writes(name, table), alarms.THROTTLES, of=name)
                    for name, table in tables.items()
                ],
                "Write units": [
                    metrics.aws_metric(table, "ConsumedWriteCapacityUnits", label=name)
                    for name, table in tables.items()
                ],
            },
        )
        left = self._parts.failed_events.queue.metric_approximate_number_of_messages_visible(
            period=metrics.FIVE_MINUTES, statistic="Maximum", label="events"
        )
        unattended = self._parts.functions.background
        self._add_section(
            "Functions",
            "Do the functions run that nobody waits for?",
            {
                "Function errors": [
                    metrics.aws_metric(function, "Errors", label=name) for name, function in unattended.items()
                ],
                "Functions throttled": [
                    metrics.aws_metric(function, "Throttles", label=name) for name, function in unattended.items()
                ],
                "Sweeps that ended well": [
                    metric_with_alarm(self._names, metrics.successful_runs(unattended["sweep"]), alarms.SWEEP)
                ],
                "Asynchronous events given up": [metric_with_alarm(self._names, left, alarms.FAILED_EVENTS)],
            },
        )
