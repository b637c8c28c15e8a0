"""The rules of our own (rules.py) hold. tests/mutations/stacks.txt has what breaks each."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from aws_cdk import Stack
from aws_cdk import aws_sqs as sqs

import app
from tally.cdk.quotas import QUOTAS, usage
from tests.infra.conftest import UNBUNDLED, context_of_cdk_json
from tests.infra.rules import RULES, Rule
from tests.infra.template import Template

CROWD = """
from counters import COUNTERS as OWN
from tally.counter import ANYONE, CALLER, Counter, declared

def more(number):
    names = {{"prefix": f"C{{number:02}}", "sort_key": "N", "attribute": "n"}}
    kinds = [
        {{"changes": ANYONE, "read": ANYONE, "path": f"/many/{{number}}/{{{{id}}}}", "delta": 1}},
        {{"changes": CALLER, "read": ANYONE, "child": "X#USER#"}},
        {{"floor": 0}},
    ]
    return Counter(f"counter{{number:02}}", **names, **kinds[number % 3])

COUNTERS = declared([*OWN.values(), *(more(number) for number in range({more}))])
"""
HOSTS = ",".join(f"shop-{number:03}.example-company.co.uk" for number in range(100))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_template_keeps_the_rule(rule: Rule, request: pytest.FixtureRequest) -> None:
    made = [request.getfixturevalue(name) for name in ("dev", "prod", "lavish", "behind_cdn", "edge")]
    assert [found for template in made for found in rule(template)] == []
    assert rule.__doc__


@pytest.mark.parametrize("stack", ["dev", "prod", "lavish", "behind_cdn", "edge"])
def test_no_stack_passes_a_limit_of_aws(stack: str, request: pytest.FixtureRequest) -> None:
    template: Template = request.getfixturevalue(stack)
    assert passed(template) == []
    if stack != "edge":
        of_options = {"characters of the domain of a user pool", "cache behaviors of a distribution"}
        assert {quota for quota, *_ in usage(template.body, template.stack)} >= QUOTAS.keys() - of_options


def passed(template: Template) -> list[str]:
    """The limits that a stack passes."""
    return [quota for quota, _, used in usage(template.body, template.stack) if used > QUOTAS[quota].most]


def test_a_counter_too_many_is_refused_at_synth_in_a_line_and_cdk_nag_is_asked(tmp_path: Path) -> None:
    """The deploy would fail halfway. The policy of operators is the first to have no room, with 100 page hosts too."""
    (tmp_path / "crowd.py").write_text(CROWD.format(more=112))
    context = {**context_of_cdk_json(), **UNBUNDLED, "stage": "prod", "pageHosts": HOSTS}
    made = app.build(context, str(tmp_path / "out"), tmp_path / "crowd.py")
    stack = made.node.find_child("Tally")
    assert isinstance(stack, Stack)
    sqs.Queue(stack, "Queue")
    with pytest.raises(RuntimeError, match="ValidationFailed"):
        made.synth()
    text = (tmp_path / "out/validation-report.json").read_text()
    assert "AwsSolutions-SQS4" in text
    [said] = [one["metadata"]["error"] for one in json.loads(text)["pluginReports"] if one["pluginName"] == "Tally"]
    assert "\n" not in said
    assert re.search(
        r": OperatorPolicy\w+ would have 6\d{3} characters of a managed policy, and AWS takes 6144 \(https://", said
    )
    assert passed(Template(tmp_path / "out")) == ["characters of a managed policy"]
