"""The dashboard, and the alarms on the same metrics. docs/runbook.md has a section for each alarm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

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
from cdk_monitoring_constructs import Monitoring as Section
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

TRAFFIC_SHARE = 0.8  # above this share of the busiest route's throttle, the alarms `traffic` and `write-units` go off
WRITE_UNITS_PER_CHANGE = 4  # if the change is visible now
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

    CloudWatch's free tier has dashboards of up to 50 metrics, so a widget has only what an operator looks at. The
    dashboard shows the state of every alarm, also if no widget shows its metric.
    """

    def __init__(
        self, scope: Construct, id: str, *, names: Names, declarations: Declarations, parts: Parts, options: Options
    ) -> None:
        super().__init__(scope, id)
        self._with_alarm = partial(metric_with_alarm, names)
        self._metrics = TallyMetrics(names, declarations)
        self._counters, self._readers = declarations.counters, declarations.readers
        self._parts = parts
        self._tables = {table.value: resource for table, resource in parts.tables.by_name.items()}
        self._options = options
        alarm_topic = AlarmTopic(self, "Alarms", names=names, email=options.alarm_email)
        alarm_topic.grant_read_alarms(parts.functions.aliases["drift"])  # GET /status
        self.topic = alarm_topic.topic
        self.dashboard_name = names.dashboard_name
        topics = dict.fromkeys(("on_alarm_topic", "on_ok_topic", "on_insufficient_data_topic"), self.topic)
        self._facade = MonitoringFacade(
            self,
            "Facade",
            alarm_factory_defaults=AlarmFactoryDefaults(
                actions_enabled=True,
                alarm_name_prefix=names.base,
                action=SnsAlarmActionStrategy(**topics),
            ),
            metric_factory_defaults=MetricFactoryDefaults(period=metrics.MINUTE),
            # No dashboard: `_add_dashboard` makes it after the sections, because it begins with the sections' alarms.
            dashboard_factory=DynamicDashboardFactory(self, "None", dashboard_configs=[], dashboard_name_prefix="-"),
        )
        self._add_number_sections()
        self._add_caller_section()
        self._add_stream_sections()
        self._add_machinery_sections()
        sections = self._facade.created_monitorings()  # the sections that the dashboard shows
        self._add_alarms_without_widgets()
        self._add_dashboard(sections)

    def _add_section(self, id: str, heading: str, widgets: dict[str, Sequence[WidgetMetric]]) -> None:
        """Adds a section of the dashboard with these widgets, by title. `id`: for construct ids, which nobody reads."""
        self._facade.monitor_custom(
            human_readable_name=heading,
            alarm_friendly_name=id,
            metric_groups=[CustomMetricGroup(title=title, metrics=list(shown)) for title, shown in widgets.items()],
        )

    def _add_dashboard(self, sections: Sequence[Section]) -> None:
        """Adds the dashboard: the state of every alarm, then the sections."""
        hour = Duration.hours(1)  # the time that the dashboard first shows, so that a legend has the sum of an hour
        dashboard = cloudwatch.Dashboard(self, "Dashboard", dashboard_name=self.dashboard_name, default_interval=hour)
        dashboard.add_widgets(cloudwatch.TextWidget(markdown="### Alarms", width=24, height=1))
        every_alarm = [created.alarm for created in self._facade.created_alarms()]
        dashboard.add_widgets(
            cloudwatch.AlarmStatusWidget(alarms=every_alarm, title="State of each alarm", width=24, height=4)
        )
        for section in sections:
            dashboard.add_widgets(*section.widgets())

    def _add_alarms_without_widgets(self) -> None:
        """Adds the alarms whose metrics no widget shows, in sections that are not on the dashboard.

        One `drift` alarm covers all counters and sends a mail for each counter, so unrepaired drift of one counter does
        not hide drift of another (docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Acting_Alarm_Changes.html).
        """
        of_stack, api = self._metrics.of_stack, self._parts.api
        lost = of_stack(observe.RECORDS_LOST, "Maximum")
        groups = {
            "Confirmed": [self._with_alarm(self._metrics.each_counter(observe.DRIFT_CONFIRMED), alarms.DRIFT)],
            "Unjudged": [self._with_alarm(of_stack(observe.SWEEP_UNFINISHED, "Maximum"), alarms.UNJUDGED)],
            "Lost": [self._with_alarm(lost, alarms.LOST_RECORDS)],
        }
        if any(counter.notifies for counter in self._counters.values()):
            oldest = of_stack(observe.OLDEST_EVENT, "Maximum")
            groups["Events"] = [self._with_alarm(oldest, alarms.EVENTS)]
        full_throttle_s = TRAFFIC_SHARE * metrics.FIVE_MINUTES.to_seconds()  # up to so long in five minutes: no alarm
        requests = metrics.aws_metric(api.api, "Count", period=metrics.FIVE_MINUTES, label="requests")
        refused = api.throttled_requests.metric(period=metrics.FIVE_MINUTES, statistic="Sum", label="refused")
        groups["Costly"] = [
            self._with_alarm(requests, replace(alarms.TRAFFIC, threshold=full_throttle_s * api.busiest_per_s())),
            self._with_alarm(refused, alarms.REFUSING),
        ]
        units = full_throttle_s * WRITE_UNITS_PER_CHANGE * api.busiest_per_s(only_writes=True)
        if units:  # 0: no route writes, because Tally counts only items of the team's tables
            written = metrics.write_units(self._tables)
            groups["Costly"].append(self._with_alarm(written, replace(alarms.WRITE_UNITS, threshold=units)))
        if self._options.domain_name:  # behind the domain, CloudFront or a firewall may block every request
            hourly = metrics.aws_metric(api.api, "Count", period=Duration.hours(1), label="requests")
            groups["Costly"].append(self._with_alarm(hourly, alarms.SILENCE))
        for id, metrics_with_alarms in groups.items():
            self._add_section(id, id, {id: metrics_with_alarms})

    def _add_number_sections(self) -> None:
        of_stack = self._metrics.of_stack
        counted = self._metrics.by_counter(observe.COUNTED, self._counters).values()
        with_sums = [metric.with_(label=f"{metric.label} ${{SUM}}") for metric in counted]  # SUM: over the shown time
        holds = of_stack(observe.HOLDS_NOT_RELEASED, "Maximum")
        self._add_section(
            "Drift",
            "Drift",
            {
                "Numbers with drift": [of_stack(observe.DRIFTING_TALLIES, "Maximum")],
                "Total drift (absolute)": [of_stack(observe.DRIFT_ABSOLUTE, "Maximum")],
                "Oldest drift (s)": [of_stack(observe.OLDEST_DRIFT, "Maximum")],
                "Expired holds not released": [self._with_alarm(holds, alarms.HOLDS)],
            },
        )
        of_items = {name: counter for name, counter in self._counters.items() if counter.items is not None}
        if of_items:
            uncounted = self._metrics.by_counter(observe.UNCOUNTED, of_items, "Maximum").values()
            self._add_section("Items", "Items of your tables", {"Items not counted": [*uncounted]})
        self._add_section(
            "Traffic",
            "Traffic and retries",
            {
                "Changes counted, by counter": with_sums,
                "Retries answered from their receipt": [of_stack(observe.REPLAYED)],
                "Refused requests (caller's fault)": [of_stack(observe.REFUSED)],
            },
        )
        self._add_section(
            "Heat",
            "Hot keys",
            {
                "Conflicts (retried on another shard)": [of_stack(observe.CONFLICTS)],
                "Spilled changes (counted now, visible soon)": [of_stack(observe.SPILLED)],
            },
        )

    def _add_caller_section(self) -> None:
        api = self._parts.api.api
        p99 = metrics.aws_metric(api, "Latency", "p99", label="p99")
        # Without snapshots there is no latency alarm, because cold starts alone would set it off.
        latency: WidgetMetric = self._with_alarm(p99, alarms.LATENCY) if self._options.snap_start else p99
        self._add_section(
            "Callers",
            "HTTP API",
            {
                "HTTP requests": [metrics.aws_metric(api, "Count", label="all")],
                "Failed HTTP requests (%)": [self._with_alarm(metrics.failed_percentage(api), alarms.FAILING)],
                "Latency (ms)": [latency],
            },
        )

    def _add_stream_sections(self) -> None:
        ages = {
            name: metrics.aws_metric(alias, "IteratorAge", "Maximum", period=metrics.FIVE_MINUTES, label=name)
            for name, alias in self._parts.functions.consumers.items()
        }
        # Tally may not write heartbeats into a team's table, so if nobody writes to the table, its consumer has no age.
        quiet_age = replace(alarms.ITERATOR_AGE, missing_data=cloudwatch.TreatMissingData.NOT_BREACHING)
        age_alarms = {each.function: quiet_age if each.team_tables else alarms.ITERATOR_AGE for each in self._readers}
        lags = self._metrics.by_consumer(observe.WATERMARK_AGE, "Maximum")
        dead_letters = self._metrics.by_consumer(observe.DEAD_LETTERS, "Sum", period=metrics.FIVE_MINUTES)
        self._add_section(
            "Behind",
            "Lag of the stream consumers",
            {
                "Consumer lag, proven (s)": [
                    self._with_alarm(lag, alarms.WATERMARK_AGE, subject=name) for name, lag in lags.items()
                ],
                "Age of the oldest record read (ms)": [
                    self._with_alarm(age, age_alarms[name], subject=name) for name, age in ages.items()
                ],
                "Dead letters": [
                    self._with_alarm(one, alarms.DEAD_LETTERS, subject=name) for name, one in dead_letters.items()
                ],
            },
        )
        judged = self._metrics.of_stack(observe.JUDGED_AGE, "Maximum")
        self._add_section("Journal", "Lag of the checks", {"Age of the newest checked minute (s)": [judged]})

    def _add_machinery_sections(self) -> None:
        throttled = {name: metrics.throttled_writes(name, table) for name, table in self._tables.items()}
        units_name = "ConsumedWriteCapacityUnits"
        self._add_section(
            "Throttles",
            "DynamoDB",
            {
                "Writes throttled": [
                    self._with_alarm(one, alarms.THROTTLES, subject=name) for name, one in throttled.items()
                ],
                "Write units": [metrics.aws_metric(one, units_name, label=name) for name, one in self._tables.items()],
            },
        )
        given_up = self._parts.failed_events.queue.metric_approximate_number_of_messages_visible(
            period=metrics.FIVE_MINUTES, statistic="Maximum", label="events"
        )
        functions = self._parts.functions.background
        self._add_section(
            "Functions",
            "Background functions",
            {
                "Function errors": [metrics.aws_metric(one, "Errors", label=name) for name, one in functions.items()],
                "Functions throttled": [
                    metrics.aws_metric(one, "Throttles", label=name) for name, one in functions.items()
                ],
                "Successful sweeps": [self._with_alarm(metrics.successful_runs(functions["sweep"]), alarms.SWEEP)],
                "Asynchronous events given up": [self._with_alarm(given_up, alarms.FAILED_EVENTS)],
            },
        )
