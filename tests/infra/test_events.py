"""The event bus, which exists only if a counter has thresholds, and the webhook of docs/examples."""

from __future__ import annotations

import runpy
from dataclasses import replace
from typing import Any

from aws_cdk import App, SecretValue, Stack
from aws_cdk.assertions import Match
from aws_cdk.assertions import Template as CdkTemplate

from tally.api.needs import Table
from tally.contract.deployment import Surroundings
from tally.contract.deployment_document import deployment_document
from tests.infra.conftest import DECLARED, ROOT
from tests.infra.template import Template

BUS = "arn:aws:events:eu-west-1:123456789012:event-bus/numbers"


def test_the_stack_makes_an_event_bus_or_uses_the_bus_of_the_option(dev: Template, behind_cdn: Template) -> None:
    bus = dev.only_name("AWS::Events::EventBus")
    assert dev.resources[bus]["Properties"] == {"Name": "Tally-dev"}
    assert dev.outputs["EventBusArn"]["Value"] == {"Fn::GetAtt": [bus, "Arn"]}
    assert behind_cdn.of_type("AWS::Events::EventBus") == {}
    assert behind_cdn.outputs["EventBusArn"]["Value"] == BUS


def test_a_stack_without_thresholds_has_no_events_and_no_right_to_send_them() -> None:
    counters = {name: replace(counter, notify=None) for name, counter in DECLARED.counters.items()}
    without_thresholds = replace(DECLARED, counters=counters)
    surroundings = Surroundings(
        "Tally", "v", {table: table.value for table in Table}, dict.fromkeys(Table, ""), "b", event_bus=BUS
    )

    def variables_routes_and_needs(declared: Any) -> str:
        return str(deployment_document(declared, surroundings, "", "")) + str(sorted(map(str, declared.needs.values())))

    for part in ("TALLY_EVENT_BUS", "/events", "EVENT#", "SENT#"):
        assert part in variables_routes_and_needs(DECLARED), part
        assert part not in variables_routes_and_needs(without_thresholds), part


def test_the_webhook_of_the_example_gets_the_detail_of_each_event() -> None:
    stack = Stack(App(), "Hooks")
    example = runpy.run_path(str(ROOT / "docs/examples/webhook.py"))
    secret = SecretValue.unsafe_plain_text("for a test")
    example["Webhook"](stack, "Hook", bus_arn=BUS, url="https://example.com/hooks/tally", header_value=secret)
    template = CdkTemplate.from_stack(stack)
    template.has_resource_properties(
        "AWS::Events::Rule",
        {
            "EventBusName": "numbers",
            "EventPattern": {"source": ["tally"], "detail-type": ["Threshold crossed"]},
            "Targets": [
                Match.object_like(
                    {
                        "Arn": {"Fn::GetAtt": [Match.string_like_regexp("Destination"), "Arn"]},
                        "InputPath": "$.detail",
                        "DeadLetterConfig": Match.any_value(),
                        "RetryPolicy": {"MaximumEventAgeInSeconds": 86400, "MaximumRetryAttempts": 185},
                    }
                )
            ],
        },
    )
    template.has_resource_properties(
        "AWS::Events::ApiDestination", {"HttpMethod": "POST", "InvocationEndpoint": "https://example.com/hooks/tally"}
    )
