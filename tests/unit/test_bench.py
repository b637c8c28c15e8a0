"""The benchmark measures the designs that it names, and reports each claim that does not hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import bench.__main__ as command
from bench import ROOT
from bench.claims import MEASURES, NOW, SOON, Claim, Measure
from bench.designs import BARE_TRANSACTION, PLAIN_ADD, POWERTOOLS

pytestmark = pytest.mark.long  # a test of a tool

ROWS = {"one": {"WCU": 4.0, "µs": 1200.0}, "two": {"WCU": 1.0}}


def test_a_quick_run_finds_no_false_claim(tmp_path: Path) -> None:
    out = tmp_path / "new" / "results.json"
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
        BARE_TRANSACTION.name: (1, 4, 0),
        NOW: (1, 4, 0),
        SOON: (1, 1, 0),
    }
    errors = {name: row["off by"] for name, row in plays.items()}
    # Each of three faults can double a play: the answer is lost on its way to the SDK or to the caller, or the caller
    # crashes.
    assert errors == errors | {PLAIN_ADD.name: 3, BARE_TRANSACTION.name: 0, NOW: 0, SOON: 0}
    assert errors["read-modify-write"] < 0 < errors[POWERTOOLS.name], "the first loses plays, the second doubles them"


def test_the_exit_status_says_whether_all_claims_held(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "new" / "results.json")]
    held_claim, missed_claim = Claim("two", "WCU", "=", 1), Claim("one", "µs", "<", 1000, full_only=True)
    monkeypatch.setattr(command, "MEASURES", [Measure("m", "a play", lambda quick: ROWS, (held_claim, missed_claim))])
    assert command.main([*out, "--quick"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "not judged" in printed.out
    assert command.main(out) == 1
    printed = capsys.readouterr()
    assert printed.err == "tally: these claims do not hold: one: µs\n"
    assert "NOT HELD" in printed.out
