"""What `tally cost` knows of a stage is what its template says, and a stage alone stays cheap."""

from __future__ import annotations

from dataclasses import replace

import pytest

import counters
import operations
from cli.cost import page, traffic, units
from cli.cost.prices import Bill
from cli.cost.template import DEV, PROD, Stage, stages
from cli.cost.traffic import Month
from stacks.front_door_options import CLIENT_RATE_DEFAULT, CLIENT_RATE_WINDOW_S
from tests.infra.conftest import Synthesize
from tests.infra.template import Template

IDLE_USD = {DEV: 12, PROD: 25}
"""A month without a single request, without the free tier."""

SHIPPED = 10  # counters


def read(template: Template) -> Stage:
    tracked = len([counter for counter in counters.COUNTERS.values() if counter.tracked])
    return Stage.read(template.body, page.idle_metrics(tracked, len(operations.CONSUMERS)))


@pytest.mark.parametrize("stage", [DEV, PROD])
def test_an_idle_stage_costs_at_most_what_was_promised(synthesize: Synthesize, stage: str) -> None:
    """Each counter beyond those that Tally comes with brings a metric and an alarm."""
    found = read(synthesize(stage=stage))
    more = 0.4 * max(0, len(counters.COUNTERS) - SHIPPED)
    assert round(Bill(traffic.usage(Month(), found)).total, 2) <= IDLE_USD[stage] + more


@pytest.mark.parametrize("stage", [DEV, PROD])
def test_the_calculator_knows_the_stage_as_its_template_is(synthesize: Synthesize, stage: str) -> None:
    assert stages()[stage] == read(synthesize(stage=stage)), "stale: run `make cost`"


def test_the_calculator_knows_the_rate_rule() -> None:
    assert CLIENT_RATE_DEFAULT / CLIENT_RATE_WINDOW_S == units.CLIENT_PER_S


def test_what_is_read_of_a_template_is_what_costs(prod: Template, dev: Template) -> None:
    found, cheap = read(prod), read(dev)
    assert (found.snapshots_mb, cheap.snapshots_mb) == ((512,) * 6, ())
    assert (found.sweep_mb, cheap.sweep_mb) == (1769, 512)
    assert found.alarms == len(prod.of_type("AWS::CloudWatch::Alarm"))
    assert found.alarm_metrics == found.alarms + 2  # 5xx and sweep look at two
    assert found.dashboard_metrics <= 50
    assert (found.traces_callers, found.traces_background, found.window_s) == (True, False, 900)
    dearer = replace(found, snapshots_mb=(512,) * 13, alarm_metrics=60, idle_metrics=36, traces_background=True)
    assert Bill(traffic.usage(Month(), dearer)).total > 1.5 * IDLE_USD[PROD]
