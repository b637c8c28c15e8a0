"""Dashboard and alarms read what the code writes, and every alarm leads to a section of the runbook."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

import counters
from tally import observe
from tally.cdk import alarms
from tests.infra.conftest import DECLARED, ROOT
from tests.infra.template import EACH, Json, Template, as_text, queried_metrics
from tests.infra.test_functions import BUSY_FUNCTIONS
from tests.unit.test_docs import anchors

DOCS = "https://git.example.com/tally/docs"
RUNBOOK_PAGE = ROOT / "docs" / "runbook.md"
RUNBOOK = RUNBOOK_PAGE.read_text()
SCREEN_LINES_MAX = 40  # of an alarm's section, so that the section fits on one screen
WORDS_PER_ALARM_MAX = 150  # words of the whole page, divided by the number of alarms
NOT_METRICS = {"SERVICE", "CODE_VERSION", "NAMESPACE", "COUNTER", "CONSUMER", "VERSION"}  # other texts of observe.py
WRITTEN_METRICS = {
    value
    for name, value in vars(observe).items()
    if isinstance(value, str) and name.isupper() and not name.startswith("_") and name not in NOT_METRICS
}
WRITTEN_METRICS.remove(observe.UNCOUNTED)  # only stacks that count a team's items write this metric
Metric = tuple[str, str, frozenset[tuple[str, str]]]


def alarms_of(template: Template) -> dict[str, Json]:
    """Returns the properties of the alarms, by their names."""
    resources = template.of_type("AWS::CloudWatch::Alarm").values()
    return {alarm["Properties"]["AlarmName"]: alarm["Properties"] for alarm in resources}


def shown_metrics(template: Template) -> dict[str, list[Metric]]:
    """Returns (namespace, metric, dimensions) of the metrics that each widget shows, by its title."""
    by_title: dict[str, list[Metric]] = {}
    for widget in template.widgets():
        if widget["type"] == "metric":
            assert widget["properties"]["title"] not in by_title
            by_title[widget["properties"]["title"]] = [*metrics_of_widget(widget)]
    return by_title


def metrics_of_widget(widget: Json) -> Iterator[Metric]:
    """Yields the metrics of a widget, also the metrics that only an expression uses."""
    for row in widget["properties"]["metrics"]:
        names = [part for part in row if isinstance(part, str)]
        if names:
            yield names[0], names[1], frozenset(zip(names[2::2], names[3::2], strict=True))


def alarm_metrics(template: Template) -> dict[str, list[Metric]]:
    """Returns (namespace, metric, dimensions) of the metrics that each alarm reads, by its name.

    A query reads the metric of EACH value of a dimension.
    """
    by_name: dict[str, list[Metric]] = {}
    for name, alarm in alarms_of(template).items():
        by_name[name] = [
            (metric["Namespace"], metric["MetricName"], frozenset(map(_pair, metric.get("Dimensions", ()))))
            for metric in (entry["MetricStat"]["Metric"] for entry in alarm["Metrics"] if "MetricStat" in entry)
        ]
        by_name[name] += [
            (namespace, metric, frozenset(by_metric.items())) for namespace, metric, by_metric in queried_metrics(alarm)
        ]
        assert by_name[name]
    return by_name


def _pair(dimension: Json) -> tuple[str, str]:
    return dimension["Name"], as_text(dimension["Value"])


def metrics_of_tally(metrics: dict[str, list[Metric]]) -> set[Metric]:
    return {series for listed in metrics.values() for series in listed if series[0] == observe.NAMESPACE}


def test_every_metric_that_the_code_writes_is_on_the_dashboard_or_in_an_alarm_and_no_other(prod: Template) -> None:
    """CloudWatch also bills a metric that nobody reads."""
    assert {
        name for _, name, _ in metrics_of_tally(shown_metrics(prod)) | metrics_of_tally(alarm_metrics(prod))
    } == WRITTEN_METRICS
    assert {name for _, name, _ in metrics_of_tally(alarm_metrics(prod))} == {
        "DriftConfirmed", "WatermarkAgeSeconds", "HoldsNotReleased", "DeadLetters", "SweepUnfinished", "Failed",
        "RecordsLost", "OldestEventSeconds",
    }  # fmt: skip


CONSUMERS = {reader.function for reader in DECLARED.readers}
# By metric: the dimension that it has beside `service` (the stack), and the values. Written out to check the code.
DIMENSIONS = {
    "Counted": ("counter", {*counters.COUNTERS}),
    "DriftConfirmed": ("counter", {EACH}),
    "WatermarkAgeSeconds": ("consumer", CONSUMERS),
    "DeadLetters": ("consumer", CONSUMERS),
}


@pytest.mark.parametrize("metric", sorted(WRITTEN_METRICS))
def test_the_dimensions_of_a_metric_are_the_stack_and_a_counter_consumer_or_version(
    prod: Template, metric: str
) -> None:
    of_metric = [
        dict(dimensions)
        for _, name, dimensions in metrics_of_tally(shown_metrics(prod)) | metrics_of_tally(alarm_metrics(prod))
        if name == metric
    ]
    assert {dimensions.pop("service") for dimensions in of_metric} == {"Tally-prod"}
    by_metric = DIMENSIONS | {
        "Failed": ("version", {f"{prod.outputs['Version']['Value']}.{module}" for module in BUSY_FUNCTIONS})
    }
    if metric not in by_metric:
        assert of_metric == [{}]
    else:
        dimension, names = by_metric[metric]
        assert sorted(map(dict.popitem, of_metric)) == sorted((dimension, name) for name in names)


def test_the_dashboard_is_in_the_free_tier(dev: Template) -> None:
    """The free tier has 50 metrics. A metric that only an expression uses counts, and a metric of two widgets twice."""
    assert sum(len(series) for series in shown_metrics(dev).values()) <= 50


def test_each_widget_that_the_runbook_names_is_on_the_dashboard(dev: Template) -> None:
    """The runbook may leave out the unit in brackets."""
    titles = {title.partition(" (")[0] for title in shown_metrics(dev)}
    names = {*re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", RUNBOOK)}
    assert len(names) > 5
    assert names - titles == set()


@pytest.mark.parametrize("alarm", alarms.ALARMS, ids=lambda alarm: alarm.name)
def test_an_alarm_leads_to_one_screen_that_says_what_to_do(
    prod: Template, behind_cdn: Template, edge: Template, alarm: alarms.Alarm
) -> None:
    """If the option docsUrl is set, the description has a URL, which mail programs turn into a link."""
    alarms_found = 0
    for template, docs in ((prod, "docs"), (behind_cdn, DOCS), (edge, DOCS)):
        for name, properties in alarms_of(template).items():
            [anchor] = re.findall(rf"What to do: {docs}/runbook\.md#(\S+)$", properties["AlarmDescription"])
            assert anchor in anchors(RUNBOOK_PAGE)
            assert properties["AlarmDescription"].isprintable()
            alarms_found += anchor == alarm.name and alarm.name in name
    assert alarms_found, "no template has this alarm"
    section = RUNBOOK.partition(f"\n## {alarm.name}\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\*\*(\w+)", section, re.MULTILINE) == ["Symptom", "Meaning", "Check", "Fix", "Escalate"]
    assert f'**Symptom.** "{alarm.description}".' in " ".join(section.split()), (
        "a search for the text of a mail must find the section"
    )
    assert len(section.splitlines()) <= SCREEN_LINES_MAX
    assert f"| [{alarm.name}](#{alarm.name}) |" in RUNBOOK


def test_the_runbook_has_a_section_and_a_row_for_each_alarm_and_for_no_other() -> None:
    names = [alarm.name for alarm in alarms.ALARMS]
    assert re.findall(r"^## (\S+)$", RUNBOOK, re.MULTILINE) == names
    rows = re.findall(r"^\| \[(\S+)\]\(#.* \| (.*) \|$", RUNBOOK, re.MULTILINE)
    assert rows == [(alarm.name, alarm.act) for alarm in alarms.ALARMS]
    assert len(RUNBOOK.split()) <= WORDS_PER_ALARM_MAX * len(names), (
        "the page must stay short: its reader has just been woken up"
    )


def alarm_rule(alarm: Json) -> tuple[Any, ...]:
    """Returns statistic or expression, threshold, number and seconds of the periods, and the effect of missing data."""
    [metric] = [entry for entry in alarm["Metrics"] if entry.get("ReturnData", True)]
    stats = [entry["MetricStat"] for entry in alarm["Metrics"] if "MetricStat" in entry]
    [period] = {entry["Period"] for entry in (*stats, *alarm["Metrics"]) if "Period" in entry}
    assert alarm["DatapointsToAlarm"] == alarm["EvaluationPeriods"]
    symbol = {"GreaterThanThreshold": ">", "LessThanThreshold": "<"}[alarm["ComparisonOperator"]]
    statistic = metric.get("Expression") or metric["MetricStat"]["Stat"]
    return statistic, f"{symbol} {alarm['Threshold']}", alarm["EvaluationPeriods"], period, alarm["TreatMissingData"]


def drift_rule(stack: str) -> tuple[Any, ...]:
    query = (
        f"""SELECT MAX(DriftConfirmed) FROM SCHEMA("Tally", counter, service) WHERE service = '{stack}'"""
        " GROUP BY counter ORDER BY MAX() DESC"
    )
    return query, "> 0", 1, 60, "ignore"


FAILURES = "FILL(failed, 0) + FILL(errors, 0)"
NEW_CODE_FAILS = (f"IF(10 * ({FAILURES}) > FILL(calls, 0), {FAILURES}, 0)", "> 1", 1, 60, "notBreaching")
RULES = {  # the rule of each alarm of prod, as `alarm_rule` returns it. Written out to check the declarations
    "drift": drift_rule("Tally-prod"),
    "watermark-age-rollup": ("Maximum", "> 600", 5, 60, "ignore"),
    "watermark-age-bookkeeper": ("Maximum", "> 600", 5, 60, "ignore"),
    "iterator-age-rollup": ("Maximum", "> 60000", 2, 300, "missing"),
    "iterator-age-bookkeeper": ("Maximum", "> 60000", 2, 300, "missing"),
    "dead-letters-rollup": ("Sum", "> 0", 1, 300, "notBreaching"),
    "dead-letters-bookkeeper": ("Sum", "> 0", 1, 300, "notBreaching"),
    "lost-records": ("Maximum", "> 0", 1, 60, "ignore"),
    # "missing": without data the alarm changes its state, which sends a mail.
    "sweep": ("runs - FILL(failed, 0)", "< 1", 2, 300, "missing"),
    "unjudged": ("Maximum", "> 0", 15, 60, "ignore"),
    "events": ("Maximum", "> 900", 2, 60, "ignore"),
    "holds": ("Maximum", "> 0", 5, 60, "ignore"),
    "5xx": ("100 * FILL(failed, 0) / requests", "> 1", 2, 300, "notBreaching"),
    "latency": ("p99", "> 1000", 10, 60, "notBreaching"),
    "throttles-counts": ("FILL(counts, 0)", "> 60", 5, 60, "notBreaching"),
    "throttles-receipts": ("FILL(receipts, 0)", "> 60", 5, 60, "notBreaching"),
    "throttles-ledger": ("FILL(ledger, 0)", "> 60", 5, 60, "notBreaching"),
    "traffic": ("Sum", "> 240000", 2, 300, "notBreaching"),  # 300 s, four fifths of 1,000 reads a second
    "429": ("Sum", "> 1000", 2, 300, "notBreaching"),
    # 300 s, four fifths of 500 plays a second, four write units for each play.
    "write-units": ("FILL(counts, 0) + FILL(receipts, 0) + FILL(ledger, 0)", "> 480000", 2, 300, "notBreaching"),
    "failed-events": ("Maximum", "> 0", 1, 300, "ignore"),
    **dict.fromkeys((f"new-code-{module}" for module in BUSY_FUNCTIONS), NEW_CODE_FAILS),  # they have a canary, too
}
DEV_RULES = {
    "drift": drift_rule("Tally-dev"),
    # The throttles of dev, and so these two thresholds, are a tenth of those of prod.
    "traffic": ("Sum", "> 24000", 2, 300, "notBreaching"),
    "write-units": ("FILL(counts, 0) + FILL(receipts, 0) + FILL(ledger, 0)", "> 48000", 2, 300, "notBreaching"),
}


def test_each_alarm_goes_off_as_the_table_says(dev: Template, prod: Template) -> None:
    """Dev has no snapshots and no canary. Without snapshots, cold starts alone would set off an alarm of latency."""
    assert {name.removeprefix("Tally-prod-"): alarm_rule(alarm) for name, alarm in alarms_of(prod).items()} == RULES
    dev_rules = {name.removeprefix("Tally-dev-"): alarm_rule(alarm) for name, alarm in alarms_of(dev).items()}
    assert dev_rules == {
        name: rule for name, rule in (RULES | DEV_RULES).items() if not name.startswith(("latency", "new-code"))
    }


def test_the_query_of_the_drift_alarm_has_exactly_the_dimensions_that_the_sweep_writes(
    dev: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one dimension more or less the query finds no metric, and the alarm is silent."""
    observe.write_metrics({observe.DRIFT_CONFIRMED: 1}, counter="plays")
    [written] = json.loads(capsys.readouterr().out)["_aws"]["CloudWatchMetrics"]
    [(namespace, metric, dimensions)] = alarm_metrics(dev)["Tally-dev-drift"]
    assert (written["Namespace"], [entry["Name"] for entry in written["Metrics"]]) == (namespace, [metric])
    assert [set(names) for names in written["Dimensions"]] == [{name for name, _ in dimensions}]


def test_an_api_behind_a_front_door_has_an_alarm_that_goes_off_if_no_request_reaches_the_api(
    behind_cdn: Template, dev: Template
) -> None:
    """If no request reaches the API, none of the API's other alarms has data."""
    assert alarm_rule(alarms_of(behind_cdn)["Tally-prod-silence"]) == ("Sum", "< 1", 6, 3600, "missing"), (
        "without data the alarm changes its state, which sends a mail"
    )
    assert not [name for name in alarms_of(dev) if "silence" in name], (
        "an API without a custom domain has no front door"
    )


def test_each_alarm_of_the_front_door_reads_cloudfront_or_aws_waf_and_goes_off_as_listed_here(edge: Template) -> None:
    assert {
        name.removeprefix("Tally-prod-edge-eu-west-1-"): alarm_rule(alarm) for name, alarm in alarms_of(edge).items()
    } == {
        "edge-5xx": ("Average", "> 5", 2, 300, "notBreaching"),
        "edge-4xx": ("IF(requests > 100, FILL(refused, 0), 0)", "> 50", 3, 300, "notBreaching"),
        "edge-blocked": ("Sum", "> 10000", 2, 300, "notBreaching"),
    }
    distribution = ("DistributionId", f"${{{edge.only_name('AWS::CloudFront::Distribution')}}}")
    assert {series for listed in alarm_metrics(edge).values() for series in listed} == {
        *(
            ("AWS/CloudFront", name, frozenset({distribution, ("Region", "Global")}))
            for name in ("5xxErrorRate", "4xxErrorRate", "Requests")
        ),
        ("AWS/WAFV2", "BlockedRequests", frozenset({("WebACL", "Tally-prod-edge-eu-west-1"), ("Rule", "ClientRate")})),
    }
