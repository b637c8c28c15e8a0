"""Each metric that an alarm or a widget reads is one that somebody writes: a function that runs here, or AWS."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import counters
import handlers
from tally import observe
from tally.api.operation import routes_by_function
from tally.contract import samples
from tally.contract.declarations import OPERATIONS, READERS
from tally.counting import periods, tallies
from tally.dev.base.engine import Engine
from tally.dynamo.client import Store, dynamodb_client
from tally.operations.sweep import Sweep
from tally.streams.events import Bus
from tests import events, faults
from tests.contexts import LambdaContext
from tests.faults import FaultProxy
from tests.infra.template import Template, as_text, queried_metrics
from tests.infra.test_monitoring import Series, alarms_of, series_of
from tests.integration.test_needs import TakesAll
from tests.integration.test_sweep import Streams, behind
from tests.invariants.stream_records import BAD, SHARD, play, record
from tests.invariants.streaming import StreamWorld

Written = dict[Series, str]
"""Each series that was written, with its unit."""
SERVING = routes_by_function(OPERATIONS, counters.COUNTERS)
KEYS = ("k-0123456789-0123456789-0123", "k-9876543210-9876543210-9876")


@contextlib.contextmanager
def in_lambda(template: Template, function: str) -> Iterator[None]:
    """Gives this process the variables that the template gives a function, and the one that Lambda adds."""
    properties = template.resources[template.functions()[function]]["Properties"]
    variables = {name: as_text(value) for name, value in properties["Environment"]["Variables"].items()}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**variables, "_HANDLER": properties["Handler"]}.items():
            patch.setenv(name, value)
        importlib.reload(observe)  # as a cold start does
        yield
    importlib.reload(observe)


def written(printed: str) -> Written:
    """What CloudWatch makes of the lines that were printed as EMF."""
    found: Written = {}
    for line in (json.loads(line) for line in printed.splitlines() if '"_aws"' in line):
        for directive in line["_aws"]["CloudWatchMetrics"]:
            for names in directive["Dimensions"]:
                of = frozenset((name, line[name]) for name in names)
                found |= {(directive["Namespace"], one["Name"], of): one["Unit"] for one in directive["Metrics"]}
    return found


def read(template: Template) -> dict[Series, set[str | None]]:
    """What every alarm and every widget reads, with the units that they name."""
    found: dict[Series, set[str | None]] = {}
    for alarm in alarms_of(template).values():
        for stat in (entry["MetricStat"] for entry in alarm["Metrics"] if "MetricStat" in entry):
            of = frozenset((one["Name"], as_text(one["Value"])) for one in stat["Metric"].get("Dimensions", ()))
            series = stat["Metric"]["Namespace"], stat["Metric"]["MetricName"], of
            found.setdefault(series, set()).add(stat.get("Unit"))
        for namespace, metric, dimensions in queried_metrics(alarm):
            for name in counters.COUNTERS:
                found[namespace, metric, frozenset((dimensions | {observe.COUNTER: name}).items())] = {None}
    for widget in template.dashboard()["widgets"] if template.of_type("AWS::CloudWatch::Dashboard") else ():
        if widget["type"] == "metric":
            for series in series_of(widget):
                found.setdefault(series, set()).add(None)
    return found


def call_failing(function: str, store: Store) -> None:
    """Calls every operation of a function while its tables are missing."""
    missing = store.settings._replace(**dict.fromkeys(("counts_table", "receipts_table", "ledger_table"), "missing"))
    entry = handlers.entry(function, replace(store, settings=missing))
    for route in SERVING[function]:
        entry(samples.http_event(route, counters.COUNTERS), LambdaContext())


def call_in_every_way(store: Store, engine: Engine) -> None:
    """Counts, counts again, is refused, and meets conflicts until it spills."""
    entry, sample = handlers.entry("increments_open", store), samples_of_plays()
    for event in (sample(), sample(), sample(id="#")):
        entry(event, LambdaContext())
    with FaultProxy(engine.endpoint, faults.always(faults.CONFLICT, "TransactWriteItems")) as proxy:
        conflicting = replace(store, client=dynamodb_client(endpoint_url=proxy.endpoint))
        answer = handlers.entry("increments_open", conflicting)(sample(idempotency_key=KEYS[1]), LambdaContext())
    assert json.loads(answer["body"])["visible"] == "soon"


def samples_of_plays() -> Any:
    return lambda **how: events.http("increment_plays_short", **{"idempotency_key": KEYS[0], **how})


def consume(function: str, world: StreamWorld) -> None:
    """A consumer gets a change of every counter, from the stream that has it, and a record that it cannot apply."""
    for number, counter in enumerate(counters.COUNTERS.values(), start=1000):
        target = periods.tally_id(counter, "x", int(time.time()))
        if counter.counts_children:
            key = tallies.key(counter, "x", 0) | {"SK": {"S": f"{counter.child}ann"}}
            image = {**key, "likedAt": {"N": "1"}, "at": {"N": "1"}, "rollup": {"BOOL": True}}
            table, change = "counts", record(number, "INSERT", {"Keys": key, "NewImage": image})
        else:
            table, change = "receipts", play(number, target, counter={"S": counter.name})
            if not counter.may_roll_up:
                del change["dynamodb"]["NewImage"]["rollup"]
        world.deliver(function, table, SHARD, [change])
    world.deliver(function, "receipts", f"{SHARD}-of-{function}", [BAD])
    assert world.dead_letter_sequences()[function]


def sweep(store: Store) -> None:
    """Judges minutes in which a tally drifts."""
    behind(store, int(time.time()))
    sending = replace(store, settings=store.settings._replace(event_bus="bus"))
    Sweep(counters.COUNTERS, sending, Streams(), Bus("bus", TakesAll))({}, LambdaContext())  # type: ignore[arg-type]


def test_each_metric_of_tally_that_is_read_is_written_with_these_dimensions_and_this_unit(
    prod: Template, store: Store, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    found, world = Written(), StreamWorld(store, store.client)
    for function in prod.functions():
        capsys.readouterr()
        with in_lambda(prod, function):
            if function in SERVING:
                call_failing(function, store)
            if function == "increments_open":
                call_in_every_way(store, engine)
            if function in {one.function for one in READERS}:
                consume(function, world)
            if function == "sweep":
                sweep(store)
        found |= written(capsys.readouterr().out)
    wanted = {series: units for series, units in read(prod).items() if series[0] == observe.NAMESPACE}
    assert set(wanted) - set(found) == set(), "read, and nobody writes it"
    assert set(wanted) == {one for one in found if one[1] != "Failed" or one in wanted}, "written, and nobody reads it"
    for series, units in wanted.items():
        assert units <= {None, found[series]}, series


OF_AWS: dict[str, tuple[set[str], dict[str, str]]] = {
    # The names, and what each dimension names: https://docs.aws.amazon.com/lambda/latest/dg/monitoring-metrics-types.html
    "AWS/Lambda": (
        {"Errors", "Invocations", "IteratorAge", "Throttles"},
        dict.fromkeys(("FunctionName", "Resource"), "AWS::Lambda::Function")
        | {"ExecutedVersion": "AWS::Lambda::Version"},
    ),
    # https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/metrics-dimensions.html
    "AWS/DynamoDB": ({"ConsumedWriteCapacityUnits", "WriteThrottleEvents"}, {"TableName": "AWS::DynamoDB::Table"}),
    # https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-metrics.html
    "AWS/ApiGateway": ({"5xx", "Count", "Latency"}, {"ApiId": "AWS::ApiGatewayV2::Api"}),
    # https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-available-cloudwatch-metrics.html
    "AWS/SQS": ({"ApproximateNumberOfMessagesVisible"}, {"QueueName": "AWS::SQS::Queue"}),
}
OF_LAMBDA = [{"FunctionName"}, {"FunctionName", "Resource", "ExecutedVersion"}]


@pytest.mark.parametrize("stack", ["prod", "behind_cdn", "lavish"])
def test_each_metric_of_aws_that_is_read_is_one_that_it_sends_of_a_resource_of_the_stack(
    request: pytest.FixtureRequest, stack: str
) -> None:
    template: Template = request.getfixturevalue(stack)
    [counted] = [
        one["Properties"]["MetricTransformations"] for one in template.of_type("AWS::Logs::MetricFilter").values()
    ]
    by_filter = [(one["MetricNamespace"], one["MetricName"], frozenset()) for one in counted]
    for namespace, name, of in set(read(template)) - set(by_filter):
        if namespace == observe.NAMESPACE:
            continue
        names, dimensions = OF_AWS[namespace]
        assert name in names
        assert set(dict(of)) == set(dimensions) or (namespace == "AWS/Lambda" and set(dict(of)) in OF_LAMBDA)
        for dimension, value in of:
            [logical] = re.findall(r"\$\{(\w+)", value)
            assert template.resources[logical]["Type"] == dimensions[dimension]
    assert set(by_filter) <= set(read(template))


SILENT = {"requests", "runs"}
"""Metrics without which an expression has no value: nothing was asked, or nothing runs."""


@pytest.mark.parametrize("stack", ["prod", "behind_cdn", "edge"])
def test_no_silent_metric_makes_an_expression_silent(request: pytest.FixtureRequest, stack: str) -> None:
    """CloudWatch computes an expression only where each of its metrics has data."""
    template: Template = request.getfixturevalue(stack)
    found = [*expressions(template)]
    assert found
    for expression, ids in found:
        bare = set(re.findall(r"[a-z_]\w*", re.sub(r"FILL\(\w+, 0\)", "", expression)))
        assert bare <= SILENT, expression
        assert len(bare) <= 1, expression
        assert set(re.findall(r"[a-z_]\w*", expression)) == ids, expression


def test_an_alarm_of_dynamodb_ends_though_its_metric_is_silent(prod: Template) -> None:
    """AWS says in one place that such an alarm ignores missing data whatever it is told: it would stay on for ever."""
    for name, alarm in alarms_of(prod).items():
        spaces = {entry["MetricStat"]["Metric"]["Namespace"] for entry in alarm["Metrics"] if "MetricStat" in entry}
        if "AWS/DynamoDB" in spaces:
            [shown] = [entry["Expression"] for entry in alarm["Metrics"] if "Expression" in entry]
            assert re.fullmatch(r"FILL\(\w+, 0\)( \+ FILL\(\w+, 0\))*", shown), name


def expressions(template: Template) -> Iterator[tuple[str, set[str]]]:
    """Each expression of the alarms and the widgets, with the metrics that it may name."""
    for alarm in alarms_of(template).values():
        ids = {entry["Id"] for entry in alarm["Metrics"] if "MetricStat" in entry}
        if not queried_metrics(alarm):
            yield from ((entry["Expression"], ids) for entry in alarm["Metrics"] if "Expression" in entry)
    for widget in template.dashboard()["widgets"] if template.of_type("AWS::CloudWatch::Dashboard") else ():
        for row in widget["properties"].get("metrics", ()):
            if isinstance(row[-1], dict) and "expression" in row[-1]:
                named = set(re.findall(r"[a-z_]\w*", row[-1]["expression"]))
                yield row[-1]["expression"], named & {one[-1].get("id") for one in widget["properties"]["metrics"]}
