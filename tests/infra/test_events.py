"""The bus of events: there for counters with thresholds alone; and the webhook of docs/examples."""

from __future__ import annotations

import runpy
from dataclasses import replace
from typing import Any

from aws_cdk import App, SecretValue, Stack
from aws_cdk.assertions import Match
from aws_cdk.assertions import Template as Made

from tally.api.needs import Table
from tally.contract.deployment import Surroundings
from tally.contract.deployment_document import deployment_document
from tests.infra.conftest import DECLARED, ROOT
from tests.infra.template import Template

BUS = "arn:aws:events:eu-west-1:123456789012:event-bus/numbers"


def test_the_stack_makes_a_bus_or_sends_to_the_one_that_is_given(dev: Template, behind_cdn: Template) -> None:
    own = dev.only_name("AWS::Events::EventBus")
    assert dev.resources[own]["Properties"] == {"Name": "Tally-dev"}
    assert dev.outputs["EventBusArn"]["Value"] == {"Fn::GetAtt": [own, "Arn"]}
    assert behind_cdn.of_type("AWS::Events::EventBus") == {}
    assert behind_cdn.outputs["EventBusArn"]["Value"] == BUS


def test_without_thresholds_nothing_of_events_is_there() -> None:
    plain = {name: replace(counter, notify=None) for name, counter in DECLARED.counters.items()}
    without = replace(DECLARED, counters=plain)
    place = Surroundings("Tally", "v", {one: one.value for one in Table}, dict.fromkeys(Table, ""), "b", event_bus=BUS)

    def said(declared: Any) -> str:
        return str(deployment_document(declared, place, "", "")) + str(sorted(map(str, declared.needs.values())))

    for part in ("TALLY_EVENT_BUS", "/events", "EVENT#", "SENT#"):
        assert part in said(DECLARED), part
        assert part not in said(without), part


def test_the_webhook_of_the_example_gets_the_detail_of_each_event() -> None:
    stack = Stack(App(), "Hooks")
    example = runpy.run_path(str(ROOT / "docs/examples/webhook.py"))
    secret = SecretValue.unsafe_plain_text("for a test")
    example["Webhook"](stack, "Hook", bus_arn=BUS, url="https://example.com/hooks/tally", header_value=secret)
    made = Made.from_stack(stack)
    made.has_resource_properties(
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
    made.has_resource_properties(
        "AWS::Events::ApiDestination", {"HttpMethod": "POST", "InvocationEndpoint": "https://example.com/hooks/tally"}
    )
