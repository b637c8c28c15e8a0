"""The rules of our own (rules.py) hold. tests/mutations/stacks.txt has what breaks each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.infra import rules
from tests.infra.rules import QUOTAS, RULES, Rule
from tests.infra.template import Json, Template

Resources = dict[str, Json]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_template_keeps_the_rule(rule: Rule, request: pytest.FixtureRequest) -> None:
    made = [request.getfixturevalue(name) for name in ("dev", "prod", "lavish", "behind_cdn")]
    assert [found for template in made for found in rule(template)] == []
    assert rule.__doc__


def add_many(type_: str, number: int) -> Callable[[Resources], None]:
    def change(resources: Resources) -> None:
        resources |= {f"More{at}": {"Type": type_, "Properties": {"RouteKey": f"GET /{at}"}} for at in range(number)}

    return change


def allow_a_lot(type_: str) -> Callable[[Resources], None]:
    def change(resources: Resources) -> None:
        [first, *_] = [one["Properties"] for one in resources.values() if one["Type"] == type_]
        [policy] = first.get("Policies", [first])
        policy["PolicyDocument"]["Statement"] *= 40

    return change


def let_a_third_read(resources: Resources) -> None:
    resources["Third"] = next(one for one in resources.values() if one["Type"] == "AWS::Lambda::EventSourceMapping")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (add_many("AWS::SNS::Topic", 400), "resources of a stack, of 500"),
        (add_many("AWS::ApiGatewayV2::Route", 300), "routes of an API, of 300"),
        (allow_a_lot("AWS::IAM::Role"), "characters of all inline policies of a role"),
        (allow_a_lot("AWS::IAM::ManagedPolicy"), "characters of a managed policy"),
        (let_a_third_read, "3 readers of a table's stream, of 2"),
    ],
)
def test_a_stack_that_comes_near_a_quota_is_reported(
    change: Callable[[Resources], object], found: str, prod: Template
) -> None:
    assert found in "\n".join(rules.room_in_the_quotas(prod.changed(change)))


@pytest.mark.parametrize("stack", ["dev", "prod", "lavish", "behind_cdn", "edge", "crowded"])
def test_no_stack_passes_a_limit_of_aws(stack: str, request: pytest.FixtureRequest) -> None:
    """`crowded` has 40 counters and 100 hosts of pages: it comes near some, and passes none."""
    used = list(rules.usage(request.getfixturevalue(stack)))
    assert [found for found in used if found[2] > QUOTAS[found[0]].most] == []
    if stack != "edge":
        assert {quota for quota, *_ in used} >= QUOTAS.keys() - {
            "behaviors of a distribution", "characters of the domain of a user pool",
        }  # fmt: skip
