"""`make dev` runs what the stack deploys: its description agrees with the synthesized template."""

from __future__ import annotations

from typing import Any

from tally.api.operation import UserVisibility
from tally.contract.deployment import TABLES as TABLE_SCHEMAS
from tally.contract.deployment import Surroundings
from tally.contract.deployment_document import deployment_document
from tally.dev.stack.template import parse
from tests.infra.conftest import DECLARED
from tests.infra.mappings import mappings
from tests.infra.template import Json, Template

TABLES = {table: f"{table.value.capitalize()}Table" for table in TABLE_SCHEMAS}
ONLY_IN_TEMPLATE = {"POWERTOOLS_LOGGER_SAMPLE_RATE", "TALLY_ALARM_TOPIC"}  # variables that a local stack does not set


def description(**options: Any) -> Json:
    """Returns the description of a stack that `make dev` runs. `options`: fields of Surroundings."""
    streams = {table: f"stream of {name}" for table, name in TABLES.items()}
    surroundings = Surroundings("Tally", "v", TABLES, streams, dead_letters="bucket", event_bus="bus", **options)
    return deployment_document(DECLARED, surroundings, config="", client="id of the console's client")


def test_the_described_routes_scopes_and_throttles_are_those_of_the_stack(prod: Template) -> None:
    modules = {name: module for module, name in prod.functions().items()}
    settings = prod.only("AWS::ApiGatewayV2::Stage")["RouteSettings"]
    deployed = {}
    for key, route in prod.routes().items():
        alias = prod.resources[route["Target"]["Fn::Join"][1][1]["Ref"]]["Properties"]["IntegrationUri"]["Ref"]
        function = next(name for name in modules if prod.alias_of(name) == alias)
        throttle = (settings[key]["ThrottlingRateLimit"], settings[key]["ThrottlingBurstLimit"])
        signed_in = route["AuthorizationType"] == "JWT"
        deployed[key] = (modules[function], signed_in, route.get("AuthorizationScopes", []), throttle)
    described = {
        route.key: (
            route.function,
            route.signed_in,
            [route.scope] if route.scope else [],
            route.throttle,
        )
        for route in parse(description()).routes
    }
    assert described == deployed


def test_the_described_functions_have_the_variables_and_timeouts_of_the_stack(
    dev: Template, behind_cdn: Template
) -> None:
    hosts = "example.com,blog.example.org"
    with_options = description(page_hosts=hosts, likers_visible=UserVisibility.NOBODY, receipt_ttl_hours=48)
    for stack, described in ((dev, description()["functions"]), (behind_cdn, with_options["functions"])):
        assert described.keys() == stack.functions().keys()
        for module, name in stack.functions().items():
            properties = stack.resources[name]["Properties"]
            variables = properties["Environment"]["Variables"]
            if stack is dev:  # behind_cdn has no user pool, so its functions have fewer variables
                assert described[module]["environment"].keys() == variables.keys() - ONLY_IN_TEMPLATE, module
            assert described[module]["timeout_s"] == properties["Timeout"], module
            for variable in ("TALLY_PAGE_HOSTS", "TALLY_LIKERS_VISIBLE", "TALLY_RECEIPT_TTL_S"):
                assert described[module]["environment"].get(variable) == variables.get(variable), module


def test_the_described_tables_mappings_schedules_and_cors_are_those_of_the_stack(dev: Template) -> None:
    described = description()
    for name, arguments in described["tables"].items():
        properties = dev.resources[name]["Properties"]
        assert {key: properties.get(key) for key in ("KeySchema", "BillingMode")} == {
            key: arguments[key] for key in ("KeySchema", "BillingMode")
        }
        assert {definition["AttributeName"] for definition in properties["AttributeDefinitions"]} == {
            definition["AttributeName"] for definition in arguments["AttributeDefinitions"]
        }
        images = arguments.get("StreamSpecification", {}).get("StreamViewType")
        assert properties.get("StreamSpecification", {}).get("StreamViewType") == images
        assert properties["TimeToLiveSpecification"]["AttributeName"] == described["ttl_attribute"]
    described_mappings, deployed_mappings = (
        {(mapping.function, mapping.table): vars(mapping) | {"name": ""} for mapping in stack_mappings}
        for stack_mappings in (parse(described).mappings, mappings(dev).values())
    )
    assert described_mappings == deployed_mappings
    rules = [rule["Properties"] for rule in dev.of_type("AWS::Events::Rule").values()]
    assert [rule["ScheduleExpression"] for rule in rules if "ScheduleExpression" in rule] == [
        f"rate({every_s // 60} minute)" for _, every_s in described["schedules"]
    ]
    cors = dev.only("AWS::ApiGatewayV2::Api")["CorsConfiguration"]
    assert (cors["AllowMethods"], cors["AllowHeaders"]) == (described["cors"]["methods"], described["cors"]["headers"])
    assert dev.only("AWS::ApiGatewayV2::Stage")["AccessLogSettings"]["Format"] == described["access_log_format"]
