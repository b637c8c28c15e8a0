"""Each metric that an alarm or a widget reads is written: by a function of Tally, which runs here, or by AWS."""

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
from tests.infra.test_monitoring import Metric, alarms_of, metrics_of_widget
from tests.integration.test_needs import AcceptingBus
from tests.integration.test_sweep import Streams, ledger_to_judge
from tests.invariants.stream_records import POISON_PLAY, SHARD, play, record
from tests.invariants.streaming import StreamWorld

Written = dict[Metric, str]
"""The unit of each metric that functions have written."""
ROUTES_BY_FUNCTION = routes_by_function(OPERATIONS, counters.COUNTERS)
IDEMPOTENCY_KEYS = ("k-0123456789-0123456789-0123", "k-9876543210-9876543210-9876")


@contextlib.contextmanager
def in_lambda(template: Template, function: str) -> Iterator[None]:
    """Set the environment variables that the template and Lambda give a function, and load observe.py with these."""
    properties = template.resources[template.functions()[function]]["Properties"]
    variables = {name: as_text(value) for name, value in properties["Environment"]["Variables"].items()}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**variables, "_HANDLER": properties["Handler"]}.items():
            patch.setenv(name, value)
        importlib.reload(observe)
        yield
    importlib.reload(observe)


def written_metrics(printed: str) -> Written:
    """Returns the metrics that CloudWatch reads from printed lines in its embedded metric format (EMF)."""
    metrics: Written = {}
    for line in (json.loads(line) for line in printed.splitlines() if '"_aws"' in line):
        for directive in line["_aws"]["CloudWatchMetrics"]:
            for names in directive["Dimensions"]:
                dimensions = frozenset((name, line[name]) for name in names)
                metrics |= {
                    (directive["Namespace"], entry["Name"], dimensions): entry["Unit"] for entry in directive["Metrics"]
                }
    return metrics


def read_metrics(template: Template) -> dict[Metric, set[str | None]]:
    """Returns the metrics that alarms and widgets read, each with the units that alarms expect (None: any unit)."""
    units: dict[Metric, set[str | None]] = {}
    for alarm in alarms_of(template).values():
        for stat in (entry["MetricStat"] for entry in alarm["Metrics"] if "MetricStat" in entry):
            pairs = ((entry["Name"], as_text(entry["Value"])) for entry in stat["Metric"].get("Dimensions", ()))
            series = stat["Metric"]["Namespace"], stat["Metric"]["MetricName"], frozenset(pairs)
            units.setdefault(series, set()).add(stat.get("Unit"))
        for namespace, metric, dimensions in queried_metrics(alarm):  # a query has a line for each counter
            for name in counters.COUNTERS:
                units[namespace, metric, frozenset((dimensions | {observe.COUNTER: name}).items())] = {None}
    for widget in template.widgets():
        if widget["type"] == "metric":
            for series in metrics_of_widget(widget):
                units.setdefault(series, set()).add(None)
    return units


def call_without_tables(function: str, store: Store) -> None:
    """Call every operation of a function while its tables are missing, so that each call fails."""
    missing = store.settings._replace(**dict.fromkeys(("counts_table", "receipts_table", "ledger_table"), "missing"))
    entry = handlers.entry(function, replace(store, settings=missing))
    for route in ROUTES_BY_FUNCTION[function]:
        entry(samples.http_event(route, counters.COUNTERS), LambdaContext())


def call_with_each_outcome(store: Store, engine: Engine) -> None:
    """Call the function for plays: a change counts, is replayed, is not valid, and spills."""
    entry = handlers.entry("increments_open", store)
    for event in (play_event(), play_event(), play_event(id="#")):  # no id may contain #
        entry(event, LambdaContext())
    with FaultProxy(engine.endpoint, faults.always(faults.CONFLICT, "TransactWriteItems")) as proxy:
        conflicting = replace(store, client=dynamodb_client(endpoint_url=proxy.endpoint))
        entry = handlers.entry("increments_open", conflicting)
        answer = entry(play_event(idempotency_key=IDEMPOTENCY_KEYS[1]), LambdaContext())
    assert json.loads(answer["body"])["visible"] == "soon"


def play_event(**fields: Any) -> Any:
    return events.http("increment_plays_short_route", **{"idempotency_key": IDEMPOTENCY_KEYS[0], **fields})


def consume(function: str, world: StreamWorld) -> None:
    """Deliver to a consumer a change of every counter, and a poison record from another stream shard."""
    for sequence_number, counter in enumerate(counters.COUNTERS.values(), start=1000):
        target = periods.tally_id(counter, "x", int(time.time()))
        if counter.counts_children:
            key = tallies.key(counter, "x", shard=0) | {"SK": {"S": f"{counter.child}ann"}}
            image = {**key, "likedAt": {"N": "1"}, "at": {"N": "1"}, "rollup": {"BOOL": True}}
            table, change = "counts", record(sequence_number, "INSERT", {"Keys": key, "NewImage": image})
        else:
            table, change = "receipts", play(sequence_number, target, counter={"S": counter.name})
            if not counter.may_roll_up:  # its changes do not spill
                del change["dynamodb"]["NewImage"]["rollup"]
        world.deliver(function, table, SHARD, [change])
    world.deliver(function, "receipts", f"{SHARD}-of-{function}", [POISON_PLAY])
    assert world.dead_letter_sequences()[function]


def sweep(store: Store) -> None:
    """Run a sweep that judges a minute with drift. With a bus, the sweep writes the oldest unsent event's age."""
    ledger_to_judge(store, int(time.time()))
    with_event_bus = replace(store, settings=store.settings._replace(event_bus="bus"))
    Sweep(counters.COUNTERS, with_event_bus, Streams(), Bus("bus", AcceptingBus))({}, LambdaContext())  # type: ignore[arg-type]


def test_each_metric_of_tally_that_is_read_is_written_with_its_dimensions_and_unit(
    prod: Template, store: Store, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    """An alarm that expects another unit than the written unit finds no data."""
    written, world = Written(), StreamWorld(store, store.client)
    for function in prod.functions():
        capsys.readouterr()
        with in_lambda(prod, function):
            if function in ROUTES_BY_FUNCTION:
                call_without_tables(function, store)
            if function == "increments_open":
                call_with_each_outcome(store, engine)
            if function in {reader.function for reader in READERS}:
                consume(function, world)
            if function == "sweep":
                sweep(store)
        written |= written_metrics(capsys.readouterr().out)
    read = {series: units for series, units in read_metrics(prod).items() if series[0] == observe.NAMESPACE}
    assert set(read) - set(written) == set(), "these metrics are read and not written"
    # Every function may write `Failed`. An alarm of the canary reads `Failed` of the busy functions (BUSY_PER_S) only.
    needless = {(namespace, name) for namespace, name, _ in set(written) - set(read)} - {(observe.NAMESPACE, "Failed")}
    assert needless == set(), "these metrics are written and not read"
    for series, units in read.items():
        assert units <= {None, written[series]}, series


# By namespace: the metrics that AWS documents and Tally reads, and the type of the resource that a dimension names.
AWS_METRICS: dict[str, tuple[set[str], dict[str, str]]] = {
    # https://docs.aws.amazon.com/lambda/latest/dg/monitoring-metrics-types.html
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
LAMBDA_DIMENSIONS = [{"FunctionName"}, {"FunctionName", "Resource", "ExecutedVersion"}]  # of a function, of a version


@pytest.mark.parametrize("stack", ["prod", "behind_cdn", "lavish"])
def test_each_metric_of_aws_that_is_read_exists_and_is_of_a_resource_of_the_stack(
    request: pytest.FixtureRequest, stack: str
) -> None:
    template: Template = request.getfixturevalue(stack)
    # The filter of the access log writes metrics, too.
    filter_metrics = template.only("AWS::Logs::MetricFilter")["MetricTransformations"]
    by_filter: set[Metric] = {
        (metric["MetricNamespace"], metric["MetricName"], frozenset()) for metric in filter_metrics
    }
    for namespace, name, pairs in read_metrics(template).keys() - by_filter:
        if namespace == observe.NAMESPACE:
            continue
        names, dimensions = AWS_METRICS[namespace]
        assert name in names
        keys = set(dict(pairs))
        assert keys == set(dimensions) or (namespace == "AWS/Lambda" and keys in LAMBDA_DIMENSIONS)
        for dimension, value in pairs:
            [logical] = re.findall(r"\$\{(\w+)", value)
            assert template.resources[logical]["Type"] == dimensions[dimension]
    assert by_filter <= read_metrics(template).keys()


MAY_BE_SILENT = {"requests", "runs"}
"""The ids of metrics that no FILL makes 0. If there were no requests, or no runs, the expression has no value."""


@pytest.mark.parametrize("stack", ["prod", "behind_cdn", "edge"])
def test_a_metric_without_data_is_0_in_an_expression(request: pytest.FixtureRequest, stack: str) -> None:
    """Without FILL, CloudWatch computes an expression only if each of its metrics has data."""
    template: Template = request.getfixturevalue(stack)
    assert [*expressions(template)]
    for expression, ids in expressions(template):
        unfilled = set(re.findall(r"[a-z_]\w*", re.sub(r"FILL\(\w+, 0\)", "", expression)))
        assert unfilled <= MAY_BE_SILENT, expression
        assert len(unfilled) <= 1, expression
        assert set(re.findall(r"[a-z_]\w*", expression)) == ids, expression


def test_an_alarm_on_a_metric_of_dynamodb_ends_when_the_metric_has_no_data(prod: Template) -> None:
    """A page of AWS says that such an alarm always ignores missing data. So without FILL the alarm would not end."""
    for name, alarm in alarms_of(prod).items():
        spaces = {entry["MetricStat"]["Metric"]["Namespace"] for entry in alarm["Metrics"] if "MetricStat" in entry}
        if "AWS/DynamoDB" in spaces:
            [expression] = [entry["Expression"] for entry in alarm["Metrics"] if "Expression" in entry]
            assert re.fullmatch(r"FILL\(\w+, 0\)( \+ FILL\(\w+, 0\))*", expression), name


def expressions(template: Template) -> Iterator[tuple[str, set[str]]]:
    """Yields each expression of alarms and widgets, with the ids of the metrics that it may use."""
    for alarm in alarms_of(template).values():
        ids = {entry["Id"] for entry in alarm["Metrics"] if "MetricStat" in entry}
        if not queried_metrics(alarm):
            yield from ((entry["Expression"], ids) for entry in alarm["Metrics"] if "Expression" in entry)
    for widget in template.widgets():
        for row in widget["properties"].get("metrics", ()):
            if isinstance(row[-1], dict) and "expression" in row[-1]:
                names = set(re.findall(r"[a-z_]\w*", row[-1]["expression"]))
                yield row[-1]["expression"], names & {entry[-1].get("id") for entry in widget["properties"]["metrics"]}
