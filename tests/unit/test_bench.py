"""The benchmark measures what it says, and says so when a claim does not hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import bench.__main__ as command
from bench import ROOT, designs
from bench.claims import BARE, MEASURES, NOW, SOON, Claim, Measure
from bench.clients import clients_of, fresh_engine
from bench.designs import PLAIN_ADD, POWERTOOLS
from bench.watch import Crasher, CrashError, Meter
from dev.faults import LOSE_RESPONSE, FaultProxy, script

pytestmark = pytest.mark.long  # it tests a tool

ROWS = {"one": {"WCU": 4.0, "µs": 1200.0}, "two": {"WCU": 1.0}}


def test_a_quick_run_holds_every_claim_that_it_judges(tmp_path: Path) -> None:
    out = tmp_path / "made" / "results.json"
    run = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--out", str(out)], cwd=ROOT, capture_output=True, text=True
    )
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    figures = json.loads(out.read_text())["figures"]
    assert figures.keys() == {measure.name for measure in MEASURES if not measure.full_only}
    plays = figures["plays"]
    assert {name: (row["round trips"], row["WCU"], row["RCU"]) for name, row in plays.items()} == {
        "read-modify-write": (2, 1, 1),
        PLAIN_ADD.name: (1, 1, 0),
        POWERTOOLS.name: (3, 3, 0),
        BARE: (1, 4, 0),
        NOW: (1, 4, 0),
        SOON: (1, 1, 0),
    }
    errors = {name: row["off by"] for name, row in plays.items()}
    # One answer lost before the SDK, one before the caller, one crash: each can double a play.
    assert errors == errors | {PLAIN_ADD.name: 3, BARE: 0, NOW: 0, SOON: 0}
    assert errors["read-modify-write"] < 0 < errors[POWERTOOLS.name]


@pytest.mark.parametrize(
    ("how", "bound", "held"),
    [
        ("≤", 4, True), ("≤", 3.9, False), ("≥", 4, True), ("≥", 4.1, False), ("=", 4, True), ("=", 5, False),
        ("<", 4.1, True), ("<", 4, False), (">", 3.9, True), (">", 4, False),
    ],
)  # fmt: skip
def test_a_claim_is_judged_by_its_bound(how: str, bound: float, held: bool) -> None:
    assert Claim("one", "WCU", how, bound).holds(ROWS) is held


def test_the_exit_status_says_whether_all_claims_held(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "made" / "results.json")]
    good, slow = Claim("two", "WCU", "=", 1), Claim("one", "µs", "<", 1000, full_only=True)
    monkeypatch.setattr(command, "MEASURES", [Measure("m", "a play", lambda quick: ROWS, (good, slow))])
    assert command.main([*out, "--quick"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "not judged" in printed.out
    assert command.main(out) == 1
    printed = capsys.readouterr()
    assert printed.err == "tally: does not hold: one: µs\n"
    assert "NOT HELD" in printed.out


def test_the_meter_counts_what_the_sdk_repeats() -> None:
    with fresh_engine() as endpoint, FaultProxy(endpoint, script({"UpdateItem": [LOSE_RESPONSE]})) as proxy:
        clients = clients_of(proxy.endpoint)
        meter = Meter(clients.plain)
        play = PLAIN_ADD.make(clients, "video")
        play("key")
        assert (meter.requests, meter.write_units) == (2, 1)
        assert clients.counted("video") == 2


@pytest.mark.parametrize(("write", "counted"), [(1, 0), (2, 1)])
def test_a_crash_between_powertools_writes_leaves_the_play_in_progress(
    monkeypatch: pytest.MonkeyPatch, write: int, counted: int
) -> None:
    monkeypatch.setattr(designs, "INVOCATION_S", 3600.0)
    with fresh_engine() as endpoint:
        clients = clients_of(endpoint)
        crasher = Crasher(clients.plain)
        play = POWERTOOLS.make(clients, "video")
        crasher.arm(write)
        with pytest.raises(CrashError):
            play("key")
        assert clients.counted("video") == counted
        with pytest.raises(Exception, match="already in progress"):
            play("key")
