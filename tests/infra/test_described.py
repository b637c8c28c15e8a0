"""What `make dev` runs is what the stack deploys: the description beside the synthesized template."""

from __future__ import annotations

from typing import Any

from tally.api.operation import UserVisibility
from tally.contract.deployment import TABLES as FORMS
from tally.contract.deployment import Surroundings
from tally.contract.deployment_document import deployment_document
from tally.dev.stack.template import parse
from tests.infra.conftest import DECLARED
from tests.infra.mappings import mappings
from tests.infra.template import Json, Template

TABLES = {table: f"{table.value.capitalize()}Table" for table in FORMS}
ONLY_THERE = {"POWERTOOLS_LOGGER_SAMPLE_RATE", "TALLY_ALARM_TOPIC"}


def described(**more: Any) -> Json:
    streams = {table: f"stream of {name}" for table, name in TABLES.items()}
    place = Surroundings("Tally", "v", TABLES, streams, "bucket", event_bus="bus", **more)
    return deployment_document(DECLARED, place, "config", "console")


def test_routes_and_who_may_call_them_how_often_are_the_stacks(prod: Template) -> None:
    of = {name: module for module, name in prod.functions().items()}
    settings = prod.only("AWS::ApiGatewayV2::Stage")["RouteSettings"]
    wanted = {}
    for key, route in prod.routes().items():
        behind = prod.resources[route["Target"]["Fn::Join"][1][1]["Ref"]]["Properties"]["IntegrationUri"]["Ref"]
        function = next(name for name in of if prod.alias_of(name) == behind)
        throttle = (settings[key]["ThrottlingRateLimit"], settings[key]["ThrottlingBurstLimit"])
        signed_in = route["AuthorizationType"] == "JWT"
        wanted[key] = (of[function], signed_in, route.get("AuthorizationScopes", []), throttle)
    found = {
        one.key: (
            one.function,
            one.signed_in,
            [one.scope] if one.scope else [],
            (one.throttle.rate_per_s, one.throttle.burst),
        )
        for one in parse(described()).routes
        if one.throttle
    }
    assert found == wanted


def test_functions_have_the_variables_and_times_of_the_stacks(dev: Template, behind_cdn: Template) -> None:
    hosts = "example.com,blog.example.org"
    given = described(page_hosts=hosts, likers=UserVisibility.NOBODY, receipt_ttl_hours=48)
    for stack, found in ((dev, described()["functions"]), (behind_cdn, given["functions"])):
        assert found.keys() == stack.functions().keys()
        for module, name in stack.functions().items():
            properties = stack.resources[name]["Properties"]
            variables = properties["Environment"]["Variables"]
            if stack is dev:  # the other one has no pool, and alarms of its own
                assert found[module]["environment"].keys() == variables.keys() - ONLY_THERE, module
            assert found[module]["timeout_s"] == properties["Timeout"], module
            for variable in ("TALLY_PAGE_HOSTS", "TALLY_LIKERS_VISIBLE", "TALLY_RECEIPT_TTL_S"):
                assert found[module]["environment"].get(variable) == variables.get(variable), module


def test_tables_mappings_schedules_and_browsers_are_the_stacks(dev: Template) -> None:
    found = described()
    for name, arguments in found["tables"].items():
        properties = dev.resources[name]["Properties"]
        assert {one: properties.get(one) for one in ("KeySchema", "BillingMode")} == {
            one: arguments[one] for one in ("KeySchema", "BillingMode")
        }
        assert {one["AttributeName"] for one in properties["AttributeDefinitions"]} == {
            one["AttributeName"] for one in arguments["AttributeDefinitions"]
        }
        images = arguments.get("StreamSpecification", {}).get("StreamViewType")
        assert properties.get("StreamSpecification", {}).get("StreamViewType") == images
        assert properties["TimeToLiveSpecification"]["AttributeName"] == found["ttl_attribute"]
    ours, theirs = (
        {(one.function, one.table): one for one in some} for some in (parse(found).mappings, mappings(dev).values())
    )
    assert {which: vars(one) | {"name": ""} for which, one in ours.items()} == {
        which: vars(one) | {"name": ""} for which, one in theirs.items()
    }
    rules = [one["Properties"] for one in dev.of_type("AWS::Events::Rule").values()]
    assert [one["ScheduleExpression"] for one in rules if "ScheduleExpression" in one] == [
        f"rate({every_s // 60} minute)" for _, every_s in found["schedules"]
    ]
    cors = dev.only("AWS::ApiGatewayV2::Api")["CorsConfiguration"]
    assert (cors["AllowMethods"], cors["AllowHeaders"]) == (found["cors"]["methods"], found["cors"]["headers"])
    assert dev.only("AWS::ApiGatewayV2::Stage")["AccessLogSettings"]["Format"] == found["access_log_format"]
