"""The rules of our own (rules.py) hold. tests/mutations/stacks.txt has what breaks each."""

from __future__ import annotations

import pytest

from tests.infra import rules
from tests.infra.rules import QUOTAS, RULES, Rule


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_template_keeps_the_rule(rule: Rule, request: pytest.FixtureRequest) -> None:
    made = [request.getfixturevalue(name) for name in ("dev", "prod", "lavish", "behind_cdn")]
    assert [found for template in made for found in rule(template)] == []
    assert rule.__doc__


@pytest.mark.parametrize("stack", ["dev", "prod", "lavish", "behind_cdn", "edge", "crowded"])
def test_no_stack_passes_a_limit_of_aws(stack: str, request: pytest.FixtureRequest) -> None:
    """`crowded` has 40 counters and 100 hosts of pages: it comes near some, and passes none."""
    used = list(rules.usage(request.getfixturevalue(stack)))
    assert [found for found in used if found[2] > QUOTAS[found[0]].most] == []
    if stack != "edge":
        assert {quota for quota, *_ in used} >= QUOTAS.keys() - {"characters of the domain of a user pool"}
