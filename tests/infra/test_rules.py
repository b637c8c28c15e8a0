"""The rules of our own (rules.py) hold, and each reports a template that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import pytest

from tests.infra import rules
from tests.infra.conftest import LAVISH, Synthesize
from tests.infra.rules import REGION, RULES, Rule
from tests.infra.template import Json, Template, joined

Resources = dict[str, Json]


def of_type(resources: Resources, type_: str, at: int = 0) -> Json:
    """The properties of a resource of the type."""
    found: Json = [one for one in resources.values() if one["Type"] == type_][at]["Properties"]
    return found


def share_a_metric(resources: Resources) -> None:
    for alarm in resources.values():
        if alarm["Type"] == "AWS::CloudWatch::Alarm" and alarm["Properties"]["AlarmName"].endswith("-drift-likes"):
            alarm["Properties"]["Metrics"][0]["MetricStat"]["Metric"]["Dimensions"] = [
                {"Name": "service", "Value": "tally"}
            ]


def watch_another_table(resources: Resources) -> None:
    for alarm in resources.values():
        if alarm["Type"] == "AWS::CloudWatch::Alarm" and alarm["Properties"]["AlarmName"].endswith("-throttles-counts"):
            metric = alarm["Properties"]["Metrics"][0]["MetricStat"]["Metric"]
            metric["Dimensions"][0]["Value"] = "Tally-dev-CountsTable-1A2B"


def show_every_function(resources: Resources) -> None:
    body = of_type(resources, "AWS::CloudWatch::Dashboard")["DashboardBody"]["Fn::Join"][1]
    body[0] = body[0].replace('"widgets":[', '"widgets":[{"type":"metric","properties":{"title":"all",'
                              '"metrics":[["AWS/Lambda","Errors"]]}},')  # fmt: skip


def name_the_dashboard(resources: Resources) -> None:
    of_type(resources, "AWS::CloudWatch::Dashboard")["DashboardName"] = "Tally-prod"


def name_a_role(resources: Resources) -> None:
    of_type(resources, "AWS::IAM::Role")["RoleName"] = "Tally-prod-plays"


def write_at_once(resources: Resources) -> None:
    next(one for id_, one in resources.items() if id_.startswith("FunctionsPlaysLive")).pop("DependsOn")


def write_before_the_mappings(resources: Resources) -> None:
    alias = next(one for id_, one in resources.items() if id_.startswith("FunctionsSweepLive"))
    alias["DependsOn"] = [id_ for id_ in alias["DependsOn"] if not id_.startswith("Streams")]


def wait_in_a_circle(resources: Resources) -> None:
    [writer] = [id_ for id_ in resources if id_.startswith("FunctionsPlaysLive")]
    next(one for id_, one in resources.items() if id_.startswith("FunctionsDriftLive"))["DependsOn"] = [writer]


def drop_the_invoke_config_of(module: str) -> Callable[[Resources], None]:
    def change(resources: Resources) -> None:
        for id_, one in list(resources.items()):
            if one["Type"] == "AWS::Lambda::EventInvokeConfig" and module in joined(one["Properties"]["FunctionName"]):
                del resources[id_]

    return change


def forget_a_throttle(resources: Resources) -> None:
    of_type(resources, "AWS::ApiGatewayV2::Stage")["RouteSettings"].pop("POST /visits")


def add_a_route(resources: Resources) -> None:
    route = {"RouteKey": "GET /secret", "AuthorizationType": "NONE"}
    resources["Another"] = {"Type": "AWS::ApiGatewayV2::Route", "Properties": route}


def change_a_table(**changes: object) -> Callable[[Resources], None]:
    def change(resources: Resources) -> None:
        resources["LedgerTable"] |= changes

    return change


def let_anybody_delete(resources: Resources) -> None:
    resources["CountsTable"]["Properties"]["DeletionProtectionEnabled"] = False


def lose_the_past(resources: Resources) -> None:
    del resources["CountsTable"]["Properties"]["PointInTimeRecoverySpecification"]


def add_many(type_: str, number: int) -> Callable[[Resources], None]:
    def change(resources: Resources) -> None:
        resources |= {f"More{at}": {"Type": type_, "Properties": {"RouteKey": f"GET /{at}"}} for at in range(number)}

    return change


def allow_a_lot(type_: str) -> Callable[[Resources], None]:
    def change(resources: Resources) -> None:
        document = of_type(resources, type_)["PolicyDocument"]
        document["Statement"] += document["Statement"] * 40

    return change


def let_a_third_read(resources: Resources) -> None:
    mapping = next(one for one in resources.values() if one["Type"] == "AWS::Lambda::EventSourceMapping")
    resources["Third"] = mapping


FAILING: list[tuple[Rule, Callable[[Resources], object], str]] = [
    (rules.metrics_of_its_own, share_a_metric, "DriftConfirmed of service tally"),
    (rules.metrics_of_its_own, watch_another_table, "'TableName': 'Tally-dev-CountsTable-1A2B'"),
    (rules.metrics_of_its_own, show_every_function, "all: AWS/Lambda Errors of {}"),
    (rules.region_in_global_names, name_the_dashboard, "Tally-prod has no region"),
    (rules.region_in_global_names, name_a_role, "Tally-prod-plays has no region"),
    (rules.writers_after_consumers, write_at_once, "FunctionsPlaysLive"),
    (rules.writers_after_consumers, write_before_the_mappings, "FunctionsSweepLive"),
    (rules.writers_after_consumers, wait_in_a_circle, "waits for itself"),
    (rules.an_event_invoke_config_for_each_asynchronous_target, drop_the_invoke_config_of("Sweep"), "SweepLive"),
    (rules.an_event_invoke_config_for_each_asynchronous_target, drop_the_invoke_config_of("Posts"), "PostsLive"),
    (rules.a_throttle_for_each_route, forget_a_throttle, "POST /visits has no throttle"),
    (rules.a_throttle_for_each_route, add_a_route, "GET /secret has no throttle"),
    (rules.tables_protected_outside_dev, change_a_table(DeletionPolicy="Delete"), "LedgerTable lacks a deletion"),
    (rules.tables_protected_outside_dev, change_a_table(UpdateReplacePolicy="Delete"), "LedgerTable lacks a replace"),
    (rules.tables_protected_outside_dev, let_anybody_delete, "CountsTable lacks deletion protection"),
    (rules.tables_protected_outside_dev, lose_the_past, "CountsTable lacks point-in-time recovery"),
    (rules.room_in_the_quotas, add_many("AWS::SNS::Topic", 400), "resources of a stack, of 500"),
    (rules.room_in_the_quotas, add_many("AWS::ApiGatewayV2::Route", 300), "routes of an API, of 300"),
    (rules.room_in_the_quotas, allow_a_lot("AWS::IAM::Policy"), "characters of all inline policies of a role"),
    (rules.room_in_the_quotas, allow_a_lot("AWS::IAM::ManagedPolicy"), "characters of a managed policy"),
    (rules.room_in_the_quotas, let_a_third_read, "3 readers of a table's stream, of 2"),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_template_keeps_the_rule(rule: Rule, dev: Template, prod: Template, synthesize: Synthesize) -> None:
    budget = synthesize(**LAVISH)
    assert [*chain(rule(dev), rule(prod), rule(budget))] == []


@pytest.mark.parametrize(("rule", "change", "found"), FAILING)
def test_a_rule_reports_what_breaks_it(
    rule: Rule, change: Callable[[Resources], object], found: str, prod: Template
) -> None:
    assert found in "\n".join(rule(prod.changed(change)))


def test_each_rule_has_its_reason_and_an_example_that_breaks_it() -> None:
    assert {rule for rule, _, _ in FAILING} == {*RULES}
    assert all(rule.__doc__ for rule in RULES)


def test_a_stage_in_two_regions_shares_no_name_that_all_regions_share(prod: Template, synthesize: Synthesize) -> None:
    """The template names no region: CloudFormation puts in the one that it deploys to."""
    budget = synthesize(**LAVISH)

    def names(region: str) -> Iterator[str]:
        for template in (prod, budget):
            for id_, name in rules.global_names(template).items():
                yield f"{template.resources[id_]['Type']} {name.replace(REGION, region)}"

    here, there = ({*names(region)} for region in ("eu-west-1", "us-east-1"))
    assert here.isdisjoint(there)
    assert sorted(here) == [
        "AWS::Budgets::Budget Tally-dev-eu-west-1",
        "AWS::CloudWatch::Dashboard Tally-dev-eu-west-1",
        "AWS::CloudWatch::Dashboard Tally-prod-eu-west-1",
    ]
