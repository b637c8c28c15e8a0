"""The rules of our own (rules.py) hold. tests/mutations/stacks.txt has what breaks each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import app
from tally.cdk.quotas import QUOTAS, usage
from tests.infra.conftest import DECLARED, UNBUNDLED, context_of_cdk_json
from tests.infra.rules import RULES, Rule
from tests.infra.template import Template

MANY = """
from counters import COUNTERS as OWN
from tally.counter import Counter, declared

more = [Counter(f"own{{number:02}}", prefix=f"C{{number:02}}", sort_key="N", attribute="n") for number in range({more})]
COUNTERS = declared([*OWN.values(), *more])
"""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_template_keeps_the_rule(rule: Rule, request: pytest.FixtureRequest) -> None:
    made = [request.getfixturevalue(name) for name in ("dev", "prod", "lavish", "behind_cdn", "edge")]
    assert [found for template in made for found in rule(template)] == []
    assert rule.__doc__


@pytest.mark.parametrize("stack", ["dev", "prod", "lavish", "behind_cdn", "edge", "crowded"])
def test_no_stack_passes_a_limit_of_aws(stack: str, request: pytest.FixtureRequest) -> None:
    """`crowded` has 40 counters and 100 hosts of pages: it comes near some, and passes none."""
    template: Template = request.getfixturevalue(stack)
    used = list(usage(template.body, template.stack))
    assert [found for found in used if found[2] > QUOTAS[found[0]].most] == []
    if stack != "edge":
        of_options = {"characters of the domain of a user pool", "cache behaviors of a distribution"}
        assert {quota for quota, *_ in used} >= QUOTAS.keys() - of_options


def test_a_counter_too_many_is_refused_at_synth_in_a_line(tmp_path: Path, prod: Template) -> None:
    """The deploy would fail halfway. The widget of the alarms is the first that has no room."""
    [widget] = [one["properties"] for one in prod.dashboard()["widgets"] if one["type"] == "alarm"]
    most = 100 - len(widget["alarms"]) + len(DECLARED.counters)
    (tmp_path / "many.py").write_text(MANY.format(more=most + 1 - len(DECLARED.counters)))
    context = {**context_of_cdk_json(), **UNBUNDLED, "stage": "prod"}
    made = app.build(context, str(tmp_path / "out"), tmp_path / "many.py")
    with pytest.raises(RuntimeError, match="ValidationFailed"):
        made.synth()
    reports = json.loads((tmp_path / "out/validation-report.json").read_text())["pluginReports"]
    [said] = [one["metadata"]["error"] for one in reports if one["pluginName"] == "Tally"]
    assert "\n" not in said
    assert "the widget 'Alarms' of the dashboard would have 101 alarms in a widget, and AWS takes 100 (https://" in said
