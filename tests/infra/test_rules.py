"""Every template keeps Tally's own rules (rules.py) and the quotas of AWS."""

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

MANY_COUNTERS = """
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

COUNTERS = declared([*OWN.values(), *(more(number) for number in range({additional}))])
"""
# HOSTS has nearly PAGE_HOSTS_BYTES_MAX bytes, so that a function's variables nearly reach their quota.
HOSTS = ",".join(f"shop-{number:03}.example-company.co.uk" for number in range(100))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_template_keeps_the_rule(rule: Rule, request: pytest.FixtureRequest) -> None:
    templates = [request.getfixturevalue(name) for name in ("dev", "prod", "lavish", "behind_cdn", "edge")]
    assert [violation for template in templates for violation in rule(template)] == []
    assert rule.__doc__


@pytest.mark.parametrize("stack", ["dev", "prod", "lavish", "behind_cdn", "edge"])
def test_no_stack_exceeds_a_quota_of_aws(stack: str, request: pytest.FixtureRequest) -> None:
    template: Template = request.getfixturevalue(stack)
    assert exceeded_quotas(template) == []
    if stack != "edge":  # `usage` measures every quota, but two quotas are of resources that only some options make
        quotas_of_options = {"characters of the domain of a user pool", "cache behaviors of a distribution"}
        assert {quota for quota, *_ in usage(template.body, template.stack)} >= QUOTAS.keys() - quotas_of_options


def exceeded_quotas(template: Template) -> list[str]:
    """Returns the quotas that a stack exceeds."""
    return [quota for quota, _, used in usage(template.body, template.stack) if used > QUOTAS[quota].most]


def test_too_many_counters_are_refused_at_synth_in_one_line_beside_the_findings_of_cdk_nag(tmp_path: Path) -> None:
    """Without this check the deploy would fail halfway. A new counter adds about ten characters to OperatorPolicy.

    112 counters exceed the quota of this policy, and no other quota. The queue breaks a rule of cdk-nag, because it
    allows requests without TLS.
    """
    (tmp_path / "crowd.py").write_text(MANY_COUNTERS.format(additional=112))
    context = {**context_of_cdk_json(), **UNBUNDLED, "stage": "prod", "pageHosts": HOSTS}
    crowded_app = app.build(context, str(tmp_path / "out"), tmp_path / "crowd.py")
    stack = crowded_app.node.find_child("Tally")
    assert isinstance(stack, Stack)
    sqs.Queue(stack, "Queue")
    with pytest.raises(RuntimeError, match="ValidationFailed"):
        crowded_app.synth()
    text = (tmp_path / "out/validation-report.json").read_text()
    assert "AwsSolutions-SQS4" in text
    reports = json.loads(text)["pluginReports"]
    [error] = [report["metadata"]["error"] for report in reports if report["pluginName"] == "Tally"]
    assert "\n" not in error
    assert re.search(
        r": OperatorPolicy\w+ would have 6\d{3} characters of a managed policy, and AWS takes 6144 \(https://", error
    )
    assert exceeded_quotas(Template(tmp_path / "out")) == ["characters of a managed policy"]
