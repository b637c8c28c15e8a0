"""bench/cost.py describes each stage as the template does, and a stage without requests is cheap."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import counters
from bench import cost
from bench.cost import CPU_MB, DEV, FUNCTION_GB, KB, PROD, BilledStage
from tests.infra.conftest import Synthesize
from tests.infra.template import Json, Template

IDLE_USD = {"dev": 15, "prod": 35}
"""The most that a month without requests may cost, without the free tier."""


def read_stage(template: Template) -> BilledStage:
    """Returns the billed parts of a stage, as its template has them."""
    functions = [resource["Properties"] for resource in template.of_type("AWS::Lambda::Function").values()]
    [sweep_mb] = [function["MemorySize"] for function in functions if function["Handler"] == "handlers.sweep"]
    [increments] = [function for function in functions if function["Handler"] == "handlers.increments"]
    alarms = [alarm["Properties"]["Metrics"] for alarm in template.of_type("AWS::CloudWatch::Alarm").values()]
    return BilledStage(
        snapshots=sum("SnapStart" in function for function in functions),
        sweep_mb=sweep_mb,
        alarm_metrics=sum(map(_billed_metrics, alarms)),
        logged=_logged_share(increments["Environment"]["Variables"]),
    )


def _billed_metrics(metrics: Sequence[Json]) -> int:
    """Returns how many metrics AWS bills for an alarm. A query reads one metric of each counter."""
    if any("SELECT" in metric.get("Expression", "") for metric in metrics):
        return len(counters.COUNTERS)
    return sum("MetricStat" in metric for metric in metrics)


def _logged_share(variables: Json) -> float:
    """Returns the share of a function's successful invocations that write a log line."""
    is_info = variables["POWERTOOLS_LOG_LEVEL"] == "INFO"
    return 1 if is_info else float(variables["POWERTOOLS_LOGGER_SAMPLE_RATE"])


@pytest.mark.parametrize(("stage", "calculated"), [("dev", DEV), ("prod", PROD)])
def test_an_idle_stage_is_cheap_and_costs_what_the_calculator_says(
    synthesize: Synthesize, stage: str, calculated: BilledStage
) -> None:
    """The calculator may differ by 10 %: one alarm or metric more is within this, and two snapshots more are not."""
    template = synthesize(stage=stage)
    deployed = read_stage(template)
    idle_usd, calculated_usd = (cost.bill(stage=billed)["total"] for billed in (deployed, calculated))
    assert idle_usd < IDLE_USD[stage]
    assert idle_usd == pytest.approx(calculated_usd, rel=0.1), "stale: DEV and PROD of bench/cost.py"
    assert deployed.logged == calculated.logged, "stale: DEV and PROD of bench/cost.py"
    functions = [resource["Properties"] for resource in template.of_type("AWS::Lambda::Function").values()]
    assert {function["MemorySize"] for function in functions} <= {FUNCTION_GB * KB, CPU_MB}
    assert {function["MemorySize"] for function in functions if "SnapStart" in function} <= {FUNCTION_GB * KB}
    assert len(template.of_type("AWS::CloudWatch::Dashboard")) == 1
