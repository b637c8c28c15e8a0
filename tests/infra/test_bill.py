"""What `tally cost` knows of a stage is what its template says, and a stage alone stays cheap."""

from __future__ import annotations

from dataclasses import replace

import pytest

import counters
import operations
from cli.cost import usage
from cli.cost.prices import Bill
from cli.cost.usage import DEV, PROD, Month, Stage, stages
from tests.infra.conftest import Synthesize
from tests.infra.template import Template

IDLE_USD = {DEV: 15, PROD: 30}
"""A month without a single request, without the free tier."""


def read(template: Template) -> Stage:
    return Stage.read(template.body, len(counters.COUNTERS), len(operations.CONSUMERS))


def idle(stage: Stage) -> float:
    return Bill(usage.usage(Month(), stage)).total


@pytest.mark.parametrize("stage", [DEV, PROD])
def test_an_idle_stage_is_cheap_and_the_calculator_knows_it(synthesize: Synthesize, stage: str) -> None:
    """An alarm or a metric more is no reason to write the page again, snapshots or traces of everything are."""
    found = read(synthesize(stage=stage))
    assert idle(found) < IDLE_USD[stage]
    assert idle(found) == pytest.approx(idle(stages()[stage]), rel=0.1), "stale: run `make cost`"


def test_what_is_read_of_a_template_is_what_costs(prod: Template, dev: Template) -> None:
    found, cheap = read(prod), read(dev)
    assert set(found.snapshots_mb) == {512}
    assert cheap.snapshots_mb == []
    assert (found.sweep_mb, cheap.sweep_mb) == (1769, 512)
    assert found.alarm_metrics == len(prod.of_type("AWS::CloudWatch::Alarm")) + 2  # 5xx and sweep look at two
    assert (found.traces_callers, found.window_s) == (True, 900)
    assert idle(replace(found, snapshots_mb=(512,) * 13, idle_metrics=36)) > 1.4 * idle(found)
