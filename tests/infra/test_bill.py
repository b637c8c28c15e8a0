"""What bench/cost.py knows of a stage is what its template says, and a stage alone stays cheap."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import counters
from bench import cost
from bench.cost import CPU_MB, DEV, FUNCTION_GB, KB, PROD, BilledStage
from tests.infra.conftest import Synthesize
from tests.infra.template import Json, Template

IDLE_USD = {"dev": 15, "prod": 35}
"""A month without a single request, without the free tier."""


def read(template: Template) -> BilledStage:
    functions = [one["Properties"] for one in template.of_type("AWS::Lambda::Function").values()]
    [sweep_mb] = [one["MemorySize"] for one in functions if one["Handler"].endswith(".sweep")]
    alarms = [one["Properties"].get("Metrics", ()) for one in template.of_type("AWS::CloudWatch::Alarm").values()]
    return BilledStage(
        snapshots=sum("SnapStart" in one for one in functions),
        sweep_mb=sweep_mb,
        alarm_metrics=sum(map(_looked_at, alarms)),
        logged=_logged(
            [one["Environment"]["Variables"] for one in functions if one["Handler"] == "handlers.increments"]
        ),
    )


def _looked_at(metrics: Sequence[Json]) -> int:
    """How many metrics AWS bills for an alarm: a query looks at one of each counter."""
    if any("SELECT" in metric.get("Expression", "") for metric in metrics):
        return len(counters.COUNTERS)
    return sum("MetricStat" in metric for metric in metrics) or 1


def _logged(variables: Sequence[Json]) -> float:
    """The share of its invocations that log a success, of the one function."""
    [found] = variables
    return 1 if found["POWERTOOLS_LOG_LEVEL"] == "INFO" else float(found["POWERTOOLS_LOGGER_SAMPLE_RATE"])


@pytest.mark.parametrize(("stage", "known"), [("dev", DEV), ("prod", PROD)])
def test_an_idle_stage_is_cheap_and_the_calculator_knows_it(
    synthesize: Synthesize, stage: str, known: BilledStage
) -> None:
    """An alarm or a metric more is no reason to edit the calculator, two snapshots are."""
    template = synthesize(stage=stage)
    found = read(template)
    idle, known_idle = (cost.bill(stage=one)["total"] for one in (found, known))
    assert idle < IDLE_USD[stage]
    assert idle == pytest.approx(known_idle, rel=0.1), "stale: DEV and PROD of bench/cost.py"
    assert found.logged == known.logged, "stale: DEV and PROD of bench/cost.py"
    functions = [one["Properties"] for one in template.of_type("AWS::Lambda::Function").values()]
    assert {one["MemorySize"] for one in functions} <= {FUNCTION_GB * KB, CPU_MB}
    assert {one["MemorySize"] for one in functions if "SnapStart" in one} <= {FUNCTION_GB * KB}
    assert len(template.of_type("AWS::CloudWatch::Dashboard")) == 1
