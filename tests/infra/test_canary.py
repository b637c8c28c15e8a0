"""New code serves a tenth of the calls for five minutes. If the new code fails, the deployment is rolled back."""

from __future__ import annotations

import math
import re

import pytest

from tests.infra.conftest import ROOT
from tests.infra.template import Json, Template, as_text
from tests.infra.test_functions import BUSY_FUNCTIONS, MODULES, WITH_ROUTES


def deployment_group(template: Template, module: str) -> Json | None:
    """Returns the deployment group that moves a function's callers to new code; None: the callers move at once."""
    alias = template.resources[template.alias_of(template.functions()[module])]
    if "UpdatePolicy" not in alias:
        return None
    update = alias["UpdatePolicy"]["CodeDeployLambdaAliasUpdate"]
    group: Json = template.resources[update["DeploymentGroupName"]["Ref"]]["Properties"]
    assert update["ApplicationName"] == group["ApplicationName"]
    return group


def rollback_alarm(template: Template, module: str) -> tuple[str, Json]:
    """Returns the alarm that rolls back a deployment of the function: its logical id and properties."""
    alarm_name = f"Tally-prod-new-code-{module}"
    [alarm] = [
        (name, resource["Properties"])
        for name, resource in template.of_type("AWS::CloudWatch::Alarm").items()
        if resource["Properties"]["AlarmName"] == alarm_name
    ]
    return alarm


@pytest.mark.parametrize("module", MODULES)
def test_new_code_of_a_busy_function_gets_a_tenth_for_five_minutes_and_an_alarm_rolls_it_back(
    prod: Template, module: str
) -> None:
    """Functions that are not busy have few calls, so an alarm would see few failures. They get new code at once."""
    group = deployment_group(prod, module)
    if module not in BUSY_FUNCTIONS:
        assert group is None
        return
    assert group is not None
    assert group["DeploymentConfigName"] == "CodeDeployDefault.LambdaCanary10Percent5Minutes"
    alarms = [{"Name": {"Ref": rollback_alarm(prod, module)[0]}}]
    assert group["AlarmConfiguration"] == {"Alarms": alarms, "Enabled": True}
    assert group["AutoRollbackConfiguration"] == {
        "Enabled": True,
        "Events": ["DEPLOYMENT_FAILURE", "DEPLOYMENT_STOP_ON_ALARM"],
    }


def test_the_rollback_alarms_read_metrics_of_the_new_code_alone(prod: Template) -> None:
    """If the alarm counted failures of the old code, too, it would roll back new code that mends these failures.

    Code that does not load writes no metric of Tally, so the alarms also read Lambda's errors.
    """
    version = prod.outputs["Version"]["Value"]
    for module in BUSY_FUNCTIONS:
        entries, function = rollback_alarm(prod, module)[1]["Metrics"], prod.functions()[module]
        metrics = {entry["Id"]: entry["MetricStat"]["Metric"] for entry in entries if "MetricStat" in entry}
        assert {id_: (metric["Namespace"], metric["MetricName"]) for id_, metric in metrics.items()} == {
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
        prod.resources[prod.functions()[module]]["Properties"]["Environment"]["Variables"] for module in WITH_ROUTES
    ]
    assert {entry["TALLY_VERSION"] for entry in variables} == {version}


def rollback_odds(calls_per_min: float, failing_share: float, threshold: float) -> float:
    """Returns the odds that the alarm goes off in five minutes, if calls come at random.

    The alarm goes off if in one minute more calls fail than the threshold, and more than a tenth of the calls.
    """
    calls_to_new_code, no_alarm = calls_per_min * 0.1, 0.0
    for calls in range(int(calls_to_new_code + 10 * math.sqrt(calls_to_new_code) + 20)):  # more calls are too rare
        # The odds that a minute has exactly `calls` calls (Poisson), and that so many calls do not set the alarm off.
        odds_of_calls = math.exp(calls * math.log(calls_to_new_code) - calls_to_new_code - math.lgamma(calls + 1))
        odds_of_no_alarm = sum(
            math.comb(calls, failed) * failing_share**failed * (1 - failing_share) ** (calls - failed)
            for failed in range(calls + 1)
            if failed <= threshold or 10 * failed <= calls
        )
        no_alarm += odds_of_calls * odds_of_no_alarm
    return 1 - no_alarm**5  # five minutes


def test_the_page_states_the_odds_of_a_rollback(prod: Template) -> None:
    """docs/operate.md has the odds for new code that fails every call, and for new code while 1 % of all calls fail."""
    alarm = rollback_alarm(prod, "increments_open")[1]
    assert (alarm["EvaluationPeriods"], alarm["ComparisonOperator"]) == (1, "GreaterThanThreshold")
    section = (ROOT / "docs/operate.md").read_text().partition("\n### New code\n")[2].partition("\n### ")[0]
    if_all_fail, if_some_fail, _ = re.split(r"While 1 % of all calls fail|So run", section.replace("\n", " "))
    for text, failing_share in ((if_all_fail, 1.0), (if_some_fail, 0.01)):
        odds_on_page = re.findall(r"([\d.]+) % at (\d+)", text)
        assert len(odds_on_page) == 3
        odds = [100 * rollback_odds(int(calls), failing_share, alarm["Threshold"]) for _, calls in odds_on_page]
        # The page has one decimal.
        assert odds == pytest.approx([float(percent) for percent, _ in odds_on_page], abs=0.06)


@pytest.mark.parametrize("stack", ["dev", "behind_cdn"])
def test_dev_and_a_stack_with_canary_false_have_no_canary(request: pytest.FixtureRequest, stack: str) -> None:
    template: Template = request.getfixturevalue(stack)
    assert "CodeDeploy" not in template.text
    assert "new-code" not in template.text


def dimensions(metric: Json) -> dict[str, str]:
    return {entry["Name"]: as_text(entry["Value"]) for entry in metric["Dimensions"]}
