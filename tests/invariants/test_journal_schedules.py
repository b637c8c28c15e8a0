"""However streams, consumers, sweeps and repairs go: no false drift, no edit missed, `as_of` never ahead.

SCHEDULES=1000 pytest -n auto tests/invariants/test_journal_schedules.py      the seeds 0 to 999
SCHEDULES=4000:5000 …                                                          those from 4000 on
"""

from __future__ import annotations

import os

import pytest

from local.base.engine import Engine
from tests.invariants.schedules import roughly
from tests.invariants.simulation import Clock, Plan, World, seeded

pytestmark = pytest.mark.slow
FIRST, _, END = os.environ.get("SCHEDULES", "8").rpartition(":")
PASSING = {"wrong row-minutes"}
"""What commits that are minutes late make of the rows, for a while (journal.md, section 4)."""


@pytest.mark.parametrize("seed", range(int(FIRST or 0), int(END)))
def test_schedule(seed: int) -> None:
    plan = Plan(late=0.02) if seed % 10 == 9 else Plan(slow=0.2, gaps=0.5) if seed % 10 == 8 else Plan()
    clock = Clock()
    with Engine() as engine, seeded(clock, seed):
        world = World(engine, clock, seed, plan)
        bad = roughly(world)
        world.close()
    assert {what: times for what, times in bad.items() if not (plan.late and what in PASSING)} == {}
