"""`tally shadow` compares an old counter with Tally between two readings. A missing reading does not mean 0."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from tally.cli import shadow
from tally.drift import history
from tally.dynamo.client import Store
from tally.dynamo.transactions import try_commit
from tally.streams import fold
from tests.integration.command.numbers import Run, put_series

HOUR_8 = 500_000  # hours since 1970: 2027-01-15 08:00 UTC
UTC = ("--tz", "UTC")
HEAD = "from,to,ids,old,tally,excess"


@pytest.fixture(autouse=True)
def series(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores series from 05:55 to 10:20: 9 plays of `a` at 05:58, 100, 200, 300 and 400 plays of `a` in the hours
    from 06:00, and 10 plays of `b` at 07:30."""
    monkeypatch.setattr(fold, "BUCKETS", 1)  # put_series fills only the first bucket of a minute
    at_8 = HOUR_8 * 60  # minutes since 1970
    plays = [(at_8 - 120 + 60 * hour + 5, "a", 100 * (hour + 1)) for hour in range(4)]
    plays = [(at_8 - 122, "a", 9), *plays, (at_8 - 30, "b", 10)]
    put_series(store, since=at_8 - 125, through=at_8 + 140, plays=plays)


class Files:
    """Writes files of readings, and returns their paths."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *lines: str, head: str = "id,value,at") -> str:
        path = self.folder / f"{len(list(self.folder.iterdir()))}.csv"
        path.write_text("".join(f"{line}\n" for line in [head, *lines]))
        return str(path)

    def hourly(self, id_: str, values: Iterable[int | None], late_s: int = 0) -> str:
        """Writes the readings of one id, one an hour from 06:00, each `late_s` seconds late. None: no reading."""
        timed = [((HOUR_8 - 2 + hour) * 3600 + late_s, value) for hour, value in enumerate(values)]
        return self(*(f"{id_},{value},{at_s}" for at_s, value in timed if value is not None))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def rows(out: str) -> list[str]:
    """Returns the rows of the CSV, with each time cut to its hour: `06,07,2,90,100,-10`."""
    head, *lines = out.splitlines()
    assert head == HEAD
    return [line.replace("2027-01-15T", "").replace(":00:00+00:00", "") for line in lines]


def test_each_hour_and_the_sum_show_the_difference_of_the_old_number(run: Run, files: Files) -> None:
    code, out, err = run(
        "shadow", "plays", files.hourly("a", [1000, 1090, 1295, 1595]), files.hourly("b", [7, 7, 17]), *UTC
    )
    assert (code, rows(out)) == (1, ["06,07,2,90,100,-10", "07,08,2,215,210,5", "08,09,1,300,300,0"])
    assert err.splitlines()[:3] == [
        "tally: the old number's excess is -5 (-0.82%): it counted 605, Tally 610",
        "tally: the old counter's hours have 5 too many, and 10 too few",
        "tally: largest differences: a -5",
    ]
    assert "tally: Tally's hours are complete from 2027-01-15 05:55 up to 2027-01-15 10:20 (UTC)" in err


def test_a_right_old_number_exits_with_0_and_errors_that_cancel_out_exit_with_1(run: Run, files: Files) -> None:
    code, _, err = run("shadow", "plays", files.hourly("a", [5, 105, 305]), *UTC)
    assert (code, err.splitlines()[0]) == (0, "tally: the old number is right: 300, as Tally")
    code, out, err = run("shadow", "plays", files.hourly("a", [5, 104, 305]), *UTC)
    assert (code, rows(out)) == (1, ["06,07,1,99,100,-1", "07,08,1,201,200,1"])
    assert "excess is +0 (+0.00%)" in err
    assert "the old counter's hours have 1 too many, and 1 too few" in err


def test_hours_that_tally_has_not_completely_summed_up_are_unknown(run: Run, files: Files) -> None:
    first = files("a,1,1799989200", "a,5,1799992800")  # at 05:00 and 06:00; the series begin at 05:55
    code, out, err = run("shadow", "plays", first, files.hourly("a", [None, 105, 300, 600, 1000, 1000, 1000]), *UTC)
    assert (code, rows(out)) == (1, [
        "05,06,1,4,,", "06,07,1,100,100,0", "07,08,1,195,200,-5", "08,09,1,300,300,0", "09,10,1,400,400,0",
        "10,11,1,0,,", "11,12,1,0,,",
    ])  # fmt: skip
    assert "excess is -5 (-0.50%): it counted 995, Tally 1,000" in err
    assert "3 rows unknown: Tally has not summed up all of these hours" in err
    two_ids = (files.hourly(id_, [*[None] * 4, 1000, 1000]) for id_ in "ab")
    code, out, err = run("shadow", "plays", *two_ids, *UTC)
    assert (code, rows(out)) == (2, ["10,11,2,0,,"])
    assert "there is nothing to compare" in err


def test_an_hour_without_a_reading_is_compared_only_together_with_its_neighbours(run: Run, files: Files) -> None:
    code, out, err = run(
        "shadow", "plays", files.hourly("a", [0, None, None, 590]), files.hourly("b", [0, 0, 10]), *UTC
    )
    assert (code, rows(out)) == (1, ["06,07,1,0,0,0", "06,09,1,590,600,-10", "07,08,1,10,10,0"])
    assert "1 row of several hours: without readings in between, single hours are unknown" in err
    code, out, err = run("shadow", "plays", files.hourly("a", [0, 100]), files.hourly("b", [None, None, 10]), *UTC)
    assert (code, rows(out)) == (0, ["06,07,1,100,100,0"])
    assert "ids in no row, because they have fewer than two readings at full hours: 1" in err
    *_, err = run("shadow", "plays", files.hourly("b", [None, None, 10]), *UTC)
    assert "Tally's hours are complete" not in err, "no series was read, so the start of the series is not known"


def test_a_reading_far_from_a_full_hour_is_in_no_row_and_the_nearest_reading_counts(run: Run, files: Files) -> None:
    late_file, near_file = files.hourly("a", [0, 100, 300], late_s=70), files.hourly("a", [7, 109, 300], late_s=20)
    code, out, err = run("shadow", "plays", late_file, *UTC)
    assert (code, rows(out)) == (2, [])
    assert "3 readings are over 60 s from a full hour, and are in no row" in err
    out = run("shadow", "plays", late_file, *UTC, "--within", "70")[1]
    assert rows(out) == ["06,07,1,100,100,0", "07,08,1,200,200,0"]
    for order in ((late_file, near_file), (near_file, late_file)):
        out = run("shadow", "plays", *order, *UTC, "--within", "70")[1]
        assert rows(out) == ["06,07,1,102,100,2", "07,08,1,191,200,-9"]  # 109 - 7 and 300 - 109, of `near_file`


def test_bad_lines_are_named_and_nothing_is_compared(run: Run, files: Files) -> None:
    valid_file = files.hourly("a", [0, 100])
    valid_line = "a,1.0,18e8"
    bad_file = files("a,x,1800000000", "a,7,yesterday", "a,7", "a#b,7,1800000000", valid_line, "a,2,1800000000")
    code, out, err = run("shadow", "plays", valid_file, bad_file)
    assert (code, out) == (2, "")
    assert [line.split(": ")[2] for line in err.splitlines()[:-1]] == [f"line {line}" for line in (2, 3, 4, 5, 7)]
    assert err.splitlines()[-2].endswith("a has another value at the same time")
    assert err.splitlines()[-1] == "tally: 5 rows cannot be read: nothing is compared"
    for arguments, message in {
        ("plays", "nowhere.csv"): "nowhere.csv: No such file",
        ("plays", valid_file, "--at-column", "when"): "when: a file of readings names its columns id, value and at",
        ("plays", files("a,1", head="id,value")): "must name the columns id, value, at, once each",
        ("calls", valid_file): "calls has periods",
    }.items():
        code, out, err = run("shadow", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err


def test_json_has_every_id_and_a_terminal_shows_bars(
    run: Run, files: Files, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    repair = {"before": 900, "amount": -5, "added": -3}  # `added`: the part of the amount that no series has
    at_s = (HOUR_8 - 1) * 3600 + 5
    write = history.repair_entry_write(store, "plays", "a", at_s, repair, by="ann", why="x", how="ledger")
    try_commit(store, [write])
    readings = files.hourly("b", [0, 0, 10, 10]), files.hourly("a", [0, 90, 305, 605, 999, 999])
    arguments = ("shadow", "plays", *readings, *UTC)
    code, out, _ = run(*arguments, "--json")
    body = json.loads(out)
    assert (code, body["old"], body["tally"], body["excess"], body["added"]) == (1, 1009, 1010, -1, -3)
    assert body["ids"] == [
        {"id": "a", "old": 999, "tally": 1000, "excess": -1, "over": 15, "under": -16, "unknown": 1},
        {"id": "b", "old": 10, "tally": 10, "excess": 0, "over": 0, "under": 0, "unknown": 0},
    ]
    assert body["rows"][-1] == {"from": (HOUR_8 + 2) * 3600, "to": (HOUR_8 + 3) * 3600, "ids": 1, "old": 0,
                                "tally": None, "excess": None}  # fmt: skip
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(shadow, "may_draw", lambda _: True)
    code, out, err = run(*arguments)
    assert (code, err) == (1, "")
    assert [line.rstrip() for line in out.splitlines()[:7]] == [
        "the old number beside plays, UTC",
        "                       old   Tally  excess",
        "Fri 01-15 06:00 +0000   90     100     -10 ██████▊",
        "Fri 01-15 07:00 +0000  225     210     +15       ▕██████████",
        "Fri 01-15 08:00 +0000  300     300      +0",
        "Fri 01-15 09:00 +0000  394     400      -6   ▐███▊",
        "Fri 01-15 10:00 +0000    0 unknown unknown",
    ]
    assert "repairs of Tally's numbers added -3, which no hour of Tally has" in out
