"""What the pictures show is counted: a data folder that `make pictures` filled has the numbers of its day."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from counters import CALLS, LIKES, PLAYS, VISITS
from dev.base.options import Options
from dev.base.sync_wire import SyncWire
from dev.stack.prepared import prepared
from tally.counting import periods, tallies
from tally.drift import rows
from tally.dynamo.client import Call, Store
from tally.series import hours
from tally.settings import Settings
from tests import pictured_day
from tests.environments import ROOT

NOW_S = 1_800_000_000
VIEWS = pictured_day.read_views()


def test_the_log_has_a_day_of_page_views_in_order() -> None:
    assert len(VIEWS) == 9_530
    assert sorted(VIEWS, key=lambda view: view[0]) == VIEWS
    assert VIEWS[-1][0] // 3600 == 14  # the server was shut down at 14:52
    assert all(path.startswith("/") for _, path in VIEWS)


@pytest.mark.parametrize(("hour", "zone"), [(0, "Etc/GMT+0"), (3, "Etc/GMT+3"), (12, "Etc/GMT+12"), (21, "Etc/GMT-3")])
def test_the_zone_is_the_one_in_which_the_day_begins_at_midnight(hour: int, zone: str) -> None:
    began_s = NOW_S // 86400 * 86400 + hour * 3600
    assert pictured_day.Filled(VIEWS, began_s).zone == zone


@pytest.mark.long
def test_a_filled_folder_has_the_days_numbers_and_one_drift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictured_day, "read_views", lambda: VIEWS[:150])
    monkeypatch.setattr(pictured_day, "LIKED", {"post": 12})
    monkeypatch.setattr(pictured_day, "PLAYED", {"film": 20})
    monkeypatch.setattr(pictured_day, "CALLED", {"client": 9})
    monkeypatch.setattr(pictured_day, "EDITED", "film")
    monkeypatch.setattr(pictured_day, "EDIT_S", 500)
    filled = pictured_day.fill(ROOT, tmp_path / "day", NOW_S)
    options = Options(app=ROOT, port=0, data=tmp_path / "day", endpoint=None, page_hosts="*")
    with prepared(options) as stack, contextlib.ExitStack() as entered:
        settings = Settings.from_environment({**stack.template.functions["sweep"].environment, **stack.variables})
        assert stack.engine is not None
        wire = entered.enter_context(contextlib.closing(SyncWire(stack.engine.port)))
        call = Call(Store(wire, settings))  # type: ignore[arg-type]
        assert {page: tallies.read(call, VISITS, page) for page in filled.visits} == filled.visits
        assert tallies.read(call, LIKES, "post") == 12
        assert tallies.read(call, CALLS, periods.tally_id(CALLS, "client", NOW_S)) == 9
        assert tallies.read(call, PLAYS, "film") == 20 + pictured_day.EDIT
        assert [(row.target, row.drift) for row in rows.every(call.store)] == [("film", pictured_day.EDIT)]
        assert hours.progress.read(call.store).through >= 0
