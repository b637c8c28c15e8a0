"""New code serves a tenth of the calls first, and none if it fails."""

from __future__ import annotations

import math
import re

import pytest

from tests.infra.conftest import ROOT
from tests.infra.template import Json, Template, as_text
from tests.infra.test_functions import CALLED, FROM_SNAPSHOTS, MODULES

BUSY = FROM_SNAPSHOTS  # the same reason: visitors wait for them, all the time


def group_of(template: Template, module: str) -> Json | None:
    """The properties of the deployment group that moves the callers of a function; None if they move at once."""
    alias = template.resources[template.alias_of(template.functions()[module])]
    if "UpdatePolicy" not in alias:
        return None
    update = alias["UpdatePolicy"]["CodeDeployLambdaAliasUpdate"]
    group: Json = template.resources[update["DeploymentGroupName"]["Ref"]]["Properties"]
    assert update["ApplicationName"] == group["ApplicationName"]
    return group


def failing(template: Template, module: str) -> tuple[str, Json]:
    """The logical id and the properties of the alarm that takes a deployment of the function back."""
    wanted = f"Tally-prod-new-code-{module}"
    [(name, found)] = [
        (name, found["Properties"])
        for name, found in template.of_type("AWS::CloudWatch::Alarm").items()
        if found["Properties"]["AlarmName"] == wanted
    ]
    return name, found


@pytest.mark.parametrize("module", MODULES)
def test_new_code_of_a_busy_function_gets_a_tenth_for_five_minutes_and_an_alarm_takes_it_back(
    prod: Template, module: str
) -> None:
    group = group_of(prod, module)
    if module not in BUSY:
        assert group is None
        return
    assert group is not None
    assert group["DeploymentConfigName"] == "CodeDeployDefault.LambdaCanary10Percent5Minutes"
    alarms = [{"Name": {"Ref": failing(prod, module)[0]}}]
    assert group["AlarmConfiguration"] == {"Alarms": alarms, "Enabled": True}
    assert group["AutoRollbackConfiguration"] == {
        "Enabled": True,
        "Events": ["DEPLOYMENT_FAILURE", "DEPLOYMENT_STOP_ON_ALARM"],
    }


def test_the_alarms_look_at_the_new_code_alone(prod: Template) -> None:
    """An alarm on all failures would take back the code that mends them. Code that does not load writes no metric."""
    version = prod.outputs["Version"]["Value"]
    for module in BUSY:
        looked_at, function = failing(prod, module)[1]["Metrics"], prod.functions()[module]
        metrics = {entry["Id"]: entry["MetricStat"]["Metric"] for entry in looked_at if "MetricStat" in entry}
        assert {id_: (one["Namespace"], one["MetricName"]) for id_, one in metrics.items()} == {
            "failed": ("Tally", "Failed"), "errors": ("AWS/Lambda", "Errors"), "calls": ("AWS/Lambda", "Invocations"),
        }  # fmt: skip
        assert dimensions(metrics["failed"]) == {"service": "Tally-prod", "version": f"{version}.{module}"}
        newest = prod.resources[prod.alias_of(function)]["Properties"]["FunctionVersion"]
        for name in ("errors", "calls"):
            assert dimensions(metrics[name]) == {
                "FunctionName": f"${{{function}}}",
                "Resource": f"${{{function}}}:live",
                "ExecutedVersion": as_text(newest),
            }
    variables = [
        prod.resources[prod.functions()[module]]["Properties"]["Environment"]["Variables"] for module in CALLED
    ]
    assert {each["TALLY_VERSION"] for each in variables} == {version}


def taken_back(calls_per_min: float, failing: float, threshold: float) -> float:
    """The odds that the alarm goes off in a canary's five minutes, when calls come at random: more failures in a minute
    than the threshold, and more than a tenth of the calls."""
    to_new, no_alarm = calls_per_min * 0.1, 0.0
    for calls in range(int(to_new + 10 * math.sqrt(to_new) + 20)):
        happens = math.exp(calls * math.log(to_new) - to_new - math.lgamma(calls + 1))
        quiet = sum(
            math.comb(calls, failed) * failing**failed * (1 - failing) ** (calls - failed)
            for failed in range(calls + 1)
            if failed <= threshold or 10 * failed <= calls
        )
        no_alarm += happens * quiet
    return 1 - no_alarm**5


def test_the_odds_of_a_canary_are_those_of_the_page(prod: Template) -> None:
    """Code that fails every call; code that fails one in a hundred, as any does while the store is busy."""
    alarm = failing(prod, "increments_open")[1]
    assert (alarm["EvaluationPeriods"], alarm["ComparisonOperator"]) == (1, "GreaterThanThreshold")
    section = (ROOT / "docs/operate.md").read_text().partition("\n### New code\n")[2].partition("\n### ")[0]
    broken, busy, _ = re.split(r"While 1 % of all calls fail|So run", section.replace("\n", " "))
    for text, share in ((broken, 1.0), (busy, 0.01)):
        said = re.findall(r"([\d.]+) % at (\d+)", text)
        assert len(said) == 3
        odds = [100 * taken_back(int(calls), share, alarm["Threshold"]) for _, calls in said]
        assert odds == pytest.approx([float(percent) for percent, _ in said], abs=0.06)


@pytest.mark.parametrize("stack", ["dev", "behind_cdn"])
def test_dev_and_who_does_not_want_it_have_none(request: pytest.FixtureRequest, stack: str) -> None:
    template: Template = request.getfixturevalue(stack)
    assert "CodeDeploy" not in template.text
    assert "new-code" not in template.text


def dimensions(metric: Json) -> dict[str, str]:
    return {each["Name"]: as_text(each["Value"]) for each in metric["Dimensions"]}
