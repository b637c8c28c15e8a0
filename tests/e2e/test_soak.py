"""Runs a small `make soak`: no change is lost or doubled, and no tally is wrong."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore.config import Config

import counters
from bench.soak import processes
from bench.soak.comparison import Contents, all_differences
from bench.soak.notes import Accepted, Note, parse_note
from bench.soak.setup import ENGINE, SoakSetup, create_soak_tables
from tally.dev.base.engine import Engine
from tally.dynamo import client
from tally.dynamo.client import CLIENT_CONFIG
from tally.dynamo.queries import ping
from tally.errors import StoreUnreachableError
from tests.environments import ROOT
from tests.faults import FaultKind

OPERATIONS = 20_000


@pytest.mark.long
def test_20_000_operations_through_faults_and_kills_are_exact(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.soak", f"--operations={OPERATIONS}", "--minute-s=1", f"--keep={tmp_path}"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    output = ran.stdout + ran.stderr
    assert ran.returncode == 0, output
    last = ran.stdout.strip().splitlines()[-1]
    no_error = "0 lost, 0 doubled, 0 false drift, 0 differences;"
    match = re.match(rf"20,000 operations, (?P<faults>[\d,]+) faults, (?P<kills>\d+) kills: {no_error}", last)
    assert match, output
    assert int(match["faults"].replace(",", "")) > OPERATIONS / 50, "at least one fault in 50 operations"
    assert json.loads((tmp_path / "faults.json").read_text()).keys() >= {kind.name for kind in FaultKind}
    assert int(match["kills"]) > 0
    notes = [parse_note(line) for path in tmp_path.glob("notes-*.tsv") for line in path.read_text().splitlines()]
    # No client of the soak is a bot. Clicks are the soak's own counter.
    assert {note.counter for note in notes} >= {*counters.COUNTERS} - {"bot_visits"} | {"clicks"}
    outcomes = {note.outcome for note in notes}
    assert outcomes >= {"counted", "imported", "put", "removed", "refused", "held", "committed"}


@pytest.mark.long
def test_the_faultless_store_waits_while_the_engine_is_stalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The monitor and the workers of the soak use the faultless store."""
    short_timeout = CLIENT_CONFIG.merge(Config(read_timeout=0.1))  # tests/conftest.py gave Tally's client a long one
    monkeypatch.setattr(client, "CLIENT_CONFIG", short_timeout)
    with Engine(tmp_path / ENGINE) as engine:
        create_soak_tables(tmp_path, engine)
        setup = SoakSetup(tmp_path, seed=0, minute_s=1, engine_endpoint=engine.endpoint)
        assert engine._process is not None
        engine._process.send_signal(signal.SIGSTOP)
        with pytest.raises(StoreUnreachableError):  # Tally gives up after three attempts, which take 4 s at most
            ping(setup.store(engine.endpoint))
        timer = threading.Timer(5, engine._process.send_signal, [signal.SIGCONT])
        timer.start()
        ping(setup.faultless_store())
        timer.join()


def test_the_soak_shows_why_a_process_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --keep, the soak deletes the logs when it ends, so the error quotes the log's end."""
    monkeypatch.setattr(processes, "_start_process", lambda *_: SimpleNamespace(is_alive=lambda: False))
    (tmp_path / "rollup.log").write_text("ValueError: why\n")
    consumers = processes.ConsumerProcesses(SoakSetup(tmp_path, seed=0, minute_s=1, engine_endpoint=""))
    with pytest.raises(RuntimeError, match="rollup failed:\nValueError: why"):
        consumers.kill_or_restart(now_s=0.0, may_kill=True)


def accepted(*notes: Note) -> Accepted:
    changes = Accepted()
    changes.add(notes)
    return changes


def test_the_soak_reports_every_kind_of_difference() -> None:
    stored = Contents()
    notes = accepted(
        Note("counted", "plays", "v1", 1),
        Note("counted", "ticket", "q1", 1, detail="1"),
        Note("counted", "ticket", "q1", 1, detail="1"),  # the number 1 was given out twice
        Note("put", "likes", "p1", detail="ann"),
        Note("counted", "calls", "u1#2026-11-21", 2),
        Note("imported", "usage", "u2", 7, key="run1"),
        Note("imported", "hearts", "h1", 0, key="run2", detail="bob"),
        Note("held", "stock", "i1", 3, detail="h1"),
        Note("committed", "stock", "i1", detail="h1"),
        Note("unknown", "plays", "v2"),
        Note("wrong", "likes", "p2", key="k1", detail="why"),
    )
    stored.tallies |= {("ticket", "q1"): 2, ("stock", "i1"): -3, ("likes", "p1"): 1, ("hearts", "h1"): 1}
    stored.tallies |= {("calls", "u1#2026-11-22"): 2, ("usage", "u2"): 14}
    stored.children |= {("likes", "p1"): {"bob"}, ("hearts", "h1"): {"bob"}}
    stored.imports["run2"] = 1
    stored.holds["h1"] = "expired"
    for sums in (stored.receipts, stored.expected, stored.observed):
        sums.update({("plays", "v1"): 1, ("ticket", "q1"): 2, ("stock", "i1"): -3, ("likes", "p1"): 1})
        sums.update({("calls", "u1#2026-11-21"): 2, ("usage", "u2"): 7, ("hearts", "h1"): 1})
    del stored.receipts["likes", "p1"], stored.receipts["hearts", "h1"]
    stored.receipts["usage", "u2"] += 1
    stored.expected["plays", "v1"] += 1
    stored.observed["ticket", "q1"] -= 1
    stored.drifts.append("plays v1 drifts by 5")
    stored.judge_item = "judged 7"  # no difference: `all_differences` shows the judge's item if there is drift
    stored.dead_letters.append("letter1")
    assert all_differences(notes, stored) == [
        "unknown: plays v2  ",
        "wrong: likes p2 k1 why",
        "calls u1#2026-11-21: 2 accepted, 0 in the tally",
        "calls u1#2026-11-22: 0 accepted, 2 in the tally",
        "plays v1: 1 accepted, 0 in the tally",
        "usage u2: 7 accepted, 14 in the tally",
        "usage u2: 7 accepted, 8 in receipts",
        "plays v1: 1 accepted, 2 expected by the journal",
        "ticket q1: 2 accepted, 1 observed by the journal",
        "likes p1: ['bob'] stored but not accepted, ['ann'] not stored",
        "import run1: 1 rows accepted, None in the history",
        "hold h1: expected committed, stored expired",
        "ticket q1: 2 numbers from 1 to 1, some missing or doubled",
        "the judge: judged 7",
        "plays v1 drifts by 5",
        "dead letters: letter1",
    ]
