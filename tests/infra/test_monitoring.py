"""Dashboard and alarms: their metrics exist, and every alarm reaches the topic and says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

import counters
from release import reference
from tally import observe
from tally.cdk import alarms
from tests.infra.conftest import DECLARED, ROOT
from tests.infra.template import EACH, Json, Template, as_text, queried_metrics

DOCS = "https://git.example.com/tally/docs"
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
SCREEN_LINES = 40
WORDS_PER_ALARM = 152  # of the whole page
NO_METRICS = {"SERVICE", "CODE_VERSION", "FUNCTION_VERSION", "NAMESPACE", "COUNTER", "CONSUMER", "VERSION"}
EMITTED = {
    value: name
    for name, value in vars(observe).items()
    if isinstance(value, str) and name.isupper() and not name.startswith("_") and name not in NO_METRICS
}
EMITTED.pop(observe.UNCOUNTED)  # of stacks that count items of a team's table
Series = tuple[str, str, frozenset[tuple[str, str]]]


def alarms_of(template: Template) -> dict[str, Json]:
    """The properties of the alarms, by their names."""
    found = template.of_type("AWS::CloudWatch::Alarm").values()
    return {alarm["Properties"]["AlarmName"]: alarm["Properties"] for alarm in found}


def shown(template: Template) -> dict[str, list[Series]]:
    """(namespace, metric, dimensions) that each widget shows, by its title."""
    found: dict[str, list[Series]] = {}
    for widget in template.dashboard()["widgets"]:
        if widget["type"] == "metric":
            assert widget["properties"]["title"] not in found
            found[widget["properties"]["title"]] = [*series_of(widget)]
    return found


def series_of(widget: Json) -> Iterator[Series]:
    """The metrics of a widget, those that an expression takes too."""
    for row in widget["properties"]["metrics"]:
        names = [part for part in row if isinstance(part, str)]
        if names:
            yield names[0], names[1], frozenset(zip(names[2::2], names[3::2], strict=True))


def watched(template: Template) -> dict[str, list[Series]]:
    """(namespace, metric, dimensions) that each alarm looks at, by its name. A query looks at EACH of a dimension."""
    found: dict[str, list[Series]] = {}
    for name, alarm in alarms_of(template).items():
        found[name] = [
            (metric["Namespace"], metric["MetricName"], frozenset(_pair(each) for each in metric.get("Dimensions", ())))
            for metric in (entry["MetricStat"]["Metric"] for entry in alarm["Metrics"] if "MetricStat" in entry)
        ]
        found[name] += [(namespace, metric, frozenset(of.items())) for namespace, metric, of in queried_metrics(alarm)]
        assert found[name]
    return found


def _pair(dimension: Json) -> tuple[str, str]:
    return dimension["Name"], as_text(dimension["Value"])


def own(found: dict[str, list[Series]]) -> set[Series]:
    return {series for all_of_it in found.values() for series in all_of_it if series[0] == observe.NAMESPACE}


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


ANCHORS = {slug(heading) for heading in re.findall(r"^#+ (.*)$", RUNBOOK, re.MULTILINE)}


def test_every_metric_that_the_code_emits_is_looked_at_and_no_other(prod: Template) -> None:
    """CloudWatch bills each metric that has data, whether anybody looks at it or not."""
    assert {name for _, name, _ in own(shown(prod)) | own(watched(prod))} == set(EMITTED)
    assert {name for _, name, _ in own(watched(prod))} == {
        "DriftConfirmed", "WatermarkAgeSeconds", "HoldsNotReturned", "DeadLetters", "SweepUnfinished", "Failed",
        "RecordsLost", "OldestEventSeconds",
    }  # fmt: skip


BUSY = (
    "increments", "increments_open", "reads", "children", "children_open", "holds", "posts", "receipts", "visits",
)  # fmt: skip
CONSUMERS = {found.function for found in DECLARED.readers}
OF = {  # written out a second time; every other metric is of the stack
    "Counted": ("counter", {*counters.COUNTERS}),
    "DriftConfirmed": ("counter", {EACH}),
    "WatermarkAgeSeconds": ("consumer", CONSUMERS),
    "DeadLetters": ("consumer", CONSUMERS),
}


@pytest.mark.parametrize("metric", EMITTED)
def test_dimensions_are_the_stack_and_a_counter_consumer_or_version_never_an_item(prod: Template, metric: str) -> None:
    found = [dict(dimensions) for _, name, dimensions in own(shown(prod)) | own(watched(prod)) if name == metric]
    assert {dimensions.pop("service") for dimensions in found} == {"Tally-prod"}
    of = OF | {"Failed": ("version", {f"{prod.outputs['Version']['Value']}.{module}" for module in BUSY})}
    if metric not in of:
        assert found == [{}]
    else:
        dimension, names = of[metric]
        assert sorted(map(dict.popitem, found)) == sorted((dimension, name) for name in names)


def test_the_dashboard_is_in_the_free_tier(dev: Template) -> None:
    """Up to 50 metrics. Metrics that only an expression takes count, too, and those that two widgets show, twice."""
    assert sum(len(series) for series in shown(dev).values()) <= 50


def test_the_reference_lists_every_widget_under_its_heading(dev: Template) -> None:
    heading, on_dashboard = "", []
    for widget in dev.dashboard()["widgets"][2:]:  # below the state of every alarm
        if widget["type"] == "text":
            heading = widget["properties"]["markdown"].lstrip("# ")
        else:
            on_dashboard.append((heading, widget["properties"]["title"]))
    assert [one for one in reference.widgets() if one[1] != "Items not counted"] == on_dashboard
    assert {*re.findall(r"\*(.+?)\*", reference.ABOUT["Widgets"])} < {title for _, title in on_dashboard}


@pytest.mark.parametrize("alarm", alarms.ALARMS, ids=lambda alarm: alarm.name)
def test_an_alarm_leads_to_one_screen_that_says_what_to_do(
    prod: Template, behind_cdn: Template, edge: Template, alarm: alarms.Alarm
) -> None:
    """By a URL that a mail makes a link of, if the deployment says where people read the pages."""
    found = 0
    for template, docs in ((prod, "docs"), (behind_cdn, DOCS), (edge, DOCS)):
        for name, properties in alarms_of(template).items():
            [anchor] = re.findall(rf"What to do: {docs}/runbook\.md#(\S+)$", properties["AlarmDescription"])
            assert anchor in ANCHORS
            assert properties["AlarmDescription"].isprintable()
            found += anchor == alarm.name and alarm.name in name
    assert found, "declared, but watches nothing"
    section = RUNBOOK.partition(f"\n## {alarm.name}\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\*\*(\w+)", section, re.MULTILINE) == ["Symptom", "Meaning", "Check", "Fix", "Escalate"]
    assert f'**Symptom.** "{alarm.description}".' in " ".join(section.split()), (
        "who searches for the text of a mail finds it"
    )
    assert len(section.splitlines()) <= SCREEN_LINES
    assert f"| [{alarm.name}](#{alarm.name}) |" in RUNBOOK


def test_the_runbook_has_a_section_and_a_row_for_each_alarm_and_for_no_other() -> None:
    names = [alarm.name for alarm in alarms.ALARMS]
    assert re.findall(r"^## (\S+)$", RUNBOOK, re.MULTILINE) == names
    rows = re.findall(r"^\| \[(\S+)\]\(#.* \| (.*) \|$", RUNBOOK, re.MULTILINE)
    assert rows == [(alarm.name, alarm.act) for alarm in alarms.ALARMS]
    assert len(RUNBOOK.split()) <= WORDS_PER_ALARM * len(names), "who reads it has been woken up"


def judged(alarm: Json) -> tuple[Any, ...]:
    """Threshold, number and seconds of periods, statistic, and how missing data counts."""
    [metric] = [entry for entry in alarm["Metrics"] if entry.get("ReturnData", True)]
    stats = [entry["MetricStat"] for entry in alarm["Metrics"] if "MetricStat" in entry]
    [period] = {entry["Period"] for entry in (*stats, *alarm["Metrics"]) if "Period" in entry}
    assert alarm["DatapointsToAlarm"] == alarm["EvaluationPeriods"]
    symbol = {"GreaterThanThreshold": ">", "LessThanThreshold": "<"}[alarm["ComparisonOperator"]]
    what = metric.get("Expression") or metric["MetricStat"]["Stat"]
    return what, f"{symbol} {alarm['Threshold']}", alarm["EvaluationPeriods"], period, alarm["TreatMissingData"]


def drifts(stack: str) -> tuple[Any, ...]:
    query = (
        f"""SELECT MAX(DriftConfirmed) FROM SCHEMA("Tally", counter, service) WHERE service = '{stack}'"""
        " GROUP BY counter ORDER BY MAX() DESC"
    )
    return query, "> 0", 1, 60, "ignore"


FAILURES = "FILL(failed, 0) + FILL(errors, 0)"
FAILING_NOW = (f"IF(10 * ({FAILURES}) > FILL(calls, 0), {FAILURES}, 0)", "> 1", 1, 60, "notBreaching")
WHEN = {  # written out a second time, to check the declarations
    "drift": drifts("Tally-prod"),
    "watermark-age-rollup": ("Maximum", "> 600", 5, 60, "ignore"),
    "watermark-age-bookkeeper": ("Maximum", "> 600", 5, 60, "ignore"),
    "iterator-age-rollup": ("Maximum", "> 60000", 2, 300, "missing"),
    "iterator-age-bookkeeper": ("Maximum", "> 60000", 2, 300, "missing"),
    "dead-letters-rollup": ("Sum", "> 0", 1, 300, "notBreaching"),
    "dead-letters-bookkeeper": ("Sum", "> 0", 1, 300, "notBreaching"),
    "lost-records": ("Maximum", "> 0", 1, 60, "ignore"),
    "sweep": ("runs - FILL(failed, 0)", "< 1", 2, 300, "missing"),  # silence changes its state, which notifies
    "unjudged": ("Maximum", "> 0", 15, 60, "ignore"),
    "events": ("Maximum", "> 900", 2, 60, "ignore"),
    "holds": ("Maximum", "> 0", 5, 60, "ignore"),
    "5xx": ("100 * FILL(failed, 0) / requests", "> 1", 2, 300, "notBreaching"),
    "latency": ("p99", "> 1000", 10, 60, "notBreaching"),
    "throttles-counts": ("FILL(counts, 0)", "> 60", 5, 60, "notBreaching"),
    "throttles-receipts": ("FILL(receipts, 0)", "> 60", 5, 60, "notBreaching"),
    "throttles-ledger": ("FILL(ledger, 0)", "> 60", 5, 60, "notBreaching"),
    "traffic": ("Sum", "> 240000", 2, 300, "notBreaching"),  # four fifths of 1,000 reads a second
    "429": ("Sum", "> 1000", 2, 300, "notBreaching"),
    "write-units": ("FILL(counts, 0) + FILL(receipts, 0) + FILL(ledger, 0)", "> 480000", 2, 300, "notBreaching"),
    "failed-events": ("Maximum", "> 0", 1, 300, "ignore"),
    **dict.fromkeys((f"new-code-{busy}" for busy in BUSY), FAILING_NOW),
}
IN_DEV = {  # its routes let a tenth through
    "drift": drifts("Tally-dev"),
    "traffic": ("Sum", "> 24000", 2, 300, "notBreaching"),
    "write-units": ("FILL(counts, 0) + FILL(receipts, 0) + FILL(ledger, 0)", "> 48000", 2, 300, "notBreaching"),
}


def test_when_each_alarm_goes_off(dev: Template, prod: Template) -> None:
    """A stage without snapshots has no alarm of latency: cold starts alone would set it off."""
    assert {name.removeprefix("Tally-prod-"): judged(alarm) for name, alarm in alarms_of(prod).items()} == WHEN
    found = {name.removeprefix("Tally-dev-"): judged(alarm) for name, alarm in alarms_of(dev).items()}
    assert found == {
        name: when for name, when in (WHEN | IN_DEV).items() if not name.startswith(("latency", "new-code"))
    }


def test_the_query_of_drift_asks_for_just_the_dimensions_that_the_sweep_writes(
    dev: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one more or one less it finds nothing, and an alarm that finds nothing is silent."""
    observe.write_metrics({observe.DRIFT_CONFIRMED: 1}, counter="plays")
    [described] = json.loads(capsys.readouterr().out)["_aws"]["CloudWatchMetrics"]
    [(namespace, metric, dimensions)] = watched(dev)["Tally-dev-drift"]
    assert (described["Namespace"], [one["Name"] for one in described["Metrics"]]) == (namespace, [metric])
    assert [set(names) for names in described["Dimensions"]] == [{name for name, _ in dimensions}]


def test_a_front_door_that_lets_nobody_through_is_heard_of(behind_cdn: Template, edge: Template, dev: Template) -> None:
    """No request reaches the API then: none of its other alarms has anything to judge."""
    [silence] = [alarm for name, alarm in alarms_of(behind_cdn).items() if name == "Tally-prod-silence"]
    assert judged(silence) == ("Sum", "< 1", 6, 3600, "missing"), "silence changes its state, which notifies"
    found = {name.removeprefix("Tally-prod-edge-eu-west-1-"): judged(alarm) for name, alarm in alarms_of(edge).items()}
    assert found == {
        "edge-5xx": ("Average", "> 5", 2, 300, "notBreaching"),
        "edge-4xx": ("IF(requests > 100, FILL(refused, 0), 0)", "> 50", 3, 300, "notBreaching"),
        "edge-blocked": ("Sum", "> 10000", 2, 300, "notBreaching"),
    }
    distribution = ("DistributionId", f"${{{edge.only_name('AWS::CloudFront::Distribution')}}}")
    seen = {series for all_of_it in watched(edge).values() for series in all_of_it}
    assert seen == {
        *(
            ("AWS/CloudFront", name, frozenset({distribution, ("Region", "Global")}))
            for name in ("5xxErrorRate", "4xxErrorRate", "Requests")
        ),
        ("AWS/WAFV2", "BlockedRequests", frozenset({("WebACL", "Tally-prod-edge-eu-west-1"), ("Rule", "ClientRate")})),
    }
    assert not [name for name in alarms_of(dev) if "silence" in name], "an address of AWS's own has no front door"
