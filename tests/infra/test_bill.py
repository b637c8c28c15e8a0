"""What `tally cost` knows of a stage is what its template says, and a stage alone stays cheap."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tally.cli.cost.prices import bill
from tally.cli.cost.units import CPU_MB, FUNCTION_GB, KB, STAGES, WINDOW_S, Stage
from tally.cli.cost.usage import Month, usage
from tests.infra.conftest import Synthesize
from tests.infra.template import Json, Template

IDLE_USD = {"dev": 15, "prod": 35}
"""A month without a single request, without the free tier."""


def read(template: Template) -> Stage:
    functions = [one["Properties"] for one in template.of_type("AWS::Lambda::Function").values()]
    [sweep_mb] = [one["MemorySize"] for one in functions if one["Handler"].endswith(".sweep")]
    alarms = [one["Properties"].get("Metrics", ()) for one in template.of_type("AWS::CloudWatch::Alarm").values()]
    return Stage(
        snapshots=sum("SnapStart" in one for one in functions),
        sweep_mb=sweep_mb,
        alarm_metrics=sum(sum("MetricStat" in metric for metric in metrics) or 1 for metrics in alarms),
        logged=_logged(
            [one["Environment"]["Variables"] for one in functions if one["Handler"] == "handlers.increments"]
        ),
        traced=any("TracingConfig" in one for one in functions),
    )


def _logged(variables: Sequence[Json]) -> float:
    """The share of its invocations that log a success, of the one function."""
    [found] = variables
    return 1 if found["POWERTOOLS_LOG_LEVEL"] == "INFO" else float(found["POWERTOOLS_LOGGER_SAMPLE_RATE"])


def idle(stage: Stage) -> float:
    return sum(bill(usage(Month(), stage)).values())


@pytest.mark.parametrize("stage", STAGES)
def test_an_idle_stage_is_cheap_and_the_calculator_knows_it(synthesize: Synthesize, stage: str) -> None:
    """An alarm or a metric more is no reason to edit the calculator, two snapshots are."""
    template = synthesize(stage=stage)
    assert idle(read(template)) < IDLE_USD[stage]
    assert idle(read(template)) == pytest.approx(idle(STAGES[stage]), rel=0.1), (
        "stale: STAGES of tally/cli/cost/units.py"
    )
    assert read(template)[-2:] == STAGES[stage][-2:], "stale: STAGES of tally/cli/cost/units.py"
    functions = [one["Properties"] for one in template.of_type("AWS::Lambda::Function").values()]
    assert {one["MemorySize"] for one in functions} <= {FUNCTION_GB * KB, CPU_MB}
    assert {one["MemorySize"] for one in functions if "SnapStart" in one} <= {FUNCTION_GB * KB}
    streams = [one["Properties"] for one in template.of_type("AWS::Lambda::EventSourceMapping").values()]
    assert {one["TumblingWindowInSeconds"] for one in streams} == {WINDOW_S}
    assert len(template.of_type("AWS::CloudWatch::Dashboard")) == 1
