"""The benchmark measures what it says, and says so when a claim does not hold."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bench.__main__ as command
from bench import ROOT
from bench.accuracy import Accuracy, Schedule
from bench.bounds import Bounded
from bench.clients import clients_of, fresh_engine
from bench.console import Console
from bench.costs import Batch, Like, Read
from bench.designs import (
    BARE_TRANSACTION,
    COUNTED,
    DESIGNS,
    EXACT,
    PLAIN_ADD,
    PLAIN_PUT,
    POWERTOOLS,
    READ_MODIFY_WRITE,
    ROLLUP,
    TIMED,
)
from bench.feed import Feed
from bench.hot_key import Outcome
from bench.imports import Imports
from bench.many import NOW, SOON, Many
from bench.report import lines
from bench.results import Results
from bench.rolled_up import RolledUp
from bench.rollups import RollupCost, Rollups
from bench.speed import Cost
from bench.watch import Crasher, CrashError, Meter
from dev.faults import LOSE_RESPONSE, FaultProxy, script

GOOD = Results(
    times_us={
        READ_MODIFY_WRITE.name: 1500.0,
        PLAIN_ADD.name: 800.0,
        POWERTOOLS.name: 2600.0,
        BARE_TRANSACTION.name: 1000.0,
        EXACT.name: 1200.0,
        PLAIN_PUT.name: 800.0,
        ROLLUP.name: 800.0,
    },
    costs={
        design.name: Cost(1, 4 if design in (BARE_TRANSACTION, EXACT) else 1, 0) for design in TIMED
    },  # as far as claims look at them
    accuracy={
        design.name: Accuracy(
            1000, 1000 if design in (EXACT, ROLLUP) else 1030, unanswered=0, lost_at_store=10, took_s=1.0
        )
        for design in COUNTED
    },
    likes=[Like(1, 1, 4.0), Like(10_240, 1, 4.0)],
    reads=[Read(1, 1, 1.0, 1000.0), Read(16, 1, 1.0, 1300.0)],
    batches=[Batch(90, 2.02, 0.01, 500.0), Batch(1, 4.0, 1.0, 2000.0)],
    many=[Many(NOW, 1, 22.0, 110.0), Many(SOON, 1, 1.0, 70.0, {10: 0.042})],
    imports=Imports(boto3_ms=160, handler_ms=190, ratio=1.19, heavy={"plays": []}),
    hot=[
        Outcome(name, per_s, warm, 1000, 0, 20.0, 60.0, 3.5, 0.1, 2.0, 20, 50, 0)
        for name, per_s, warm in (
            ("plays 200/s", 200, False),
            ("likes 400/s", 400, False),
            ("plays 5,000/s warm", 5000, True),
        )
    ]
    + [Outcome("likes 5,000/s", 5000, False, 1000, 800, 900.0, 3000.0, 9.0, 0.9, 2.0, 2000, 50, 9000)],
    rollups=Rollups([RollupCost(1, 4.0)], folded_per_s=60_000.0, applied_per_s=3000.0),
    ledger=[
        Bounded("drift", "WCU", "8,044", 40, 40),
        Bounded("judged", "a second", "", 5, 5, least=True, full_only=True),
    ],
    rolled_up=RolledUp(30, median_s=1.2, longest_s=1.6),
    feed=Feed(together_ms=60, alone_ms=400),
    console=Console(files=12, loaded_bytes=90_000, first_ms=300, again_ms=100),
    judge_times=True,
)


def broken(results: Results) -> list[str]:
    return [claim.what for claim in results.claims() if claim.held is False]


@pytest.mark.long
def test_a_quick_run_holds_every_claim_that_it_judges(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    run = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (run.returncode, run.stderr) == (0, "")
    document = json.loads(out.read_text())
    designs = document["designs"]
    units = ("round_trips", "write_units", "read_units")
    assert {name: tuple(found[unit] for unit in units) for name, found in designs.items()} == {
        "read-modify-write": (2, 1, 1),
        "plain-add": (1, 1, 0),
        "powertools": (3, 3, 0),
        "bare-transaction": (1, 4, 0),
        "exact": (1, 4, 0),
        "plain-put": (1, 1, 0),
        "rollup": (1, 1, 0),
    }
    errors = {name: found["error"] for name, found in designs.items() if "error" in found}
    # One answer lost before the SDK, one before the caller, one crash: each can double a play.
    assert errors == errors | {"plain-add": 3, "bare-transaction": 0, "exact": 0}
    assert errors["read-modify-write"] < 0 < errors["powertools"]
    for design in DESIGNS:
        assert re.search(rf"^{re.escape(design.title)} +[0-9,]+ µs ", run.stdout, re.MULTILINE)
    assert document["claims"]


def test_good_results_hold_every_claim() -> None:
    assert broken(GOOD) == []
    assert {claim.held for claim in GOOD.claims()} == {True}


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        ({"times_us": GOOD.times_us | {EXACT.name: 1201.0}}, "time: EXACT to a bare transaction"),
        ({"times_us": GOOD.times_us | {POWERTOOLS.name: 2000.0}}, "time: EXACT to Powertools' layer"),
        ({"times_us": GOOD.times_us | {ROLLUP.name: 881.0}}, "time: ROLLUP to a plain PutItem"),
        ({"costs": GOOD.costs | {ROLLUP.name: Cost(2, 1, 0)}}, "ROLLUP: round trips"),
        ({"costs": GOOD.costs | {ROLLUP.name: Cost(1, 2, 0)}}, "ROLLUP: WCU"),
        ({"rollups": replace(GOOD.rollups, folded_per_s=49_999.0)}, "rollup: records folded a second"),
        ({"rolled_up": RolledUp(30, 2.0, 2.1)}, "a visit, from its answer to the count"),
        ({"feed": Feed(together_ms=60, alone_ms=299)}, "50 plays by one request, beside 50, reads of 5 ms"),
        ({"console": Console(12, 150_001, 300, 100)}, "all that the console loads"),
        ({"ledger": [replace(GOOD.ledger[0], measured=40.01)]}, "drift"),
        ({"ledger": [replace(GOOD.ledger[1], measured=4)]}, "judged"),
        ({"imports": replace(GOOD.imports, ratio=1.26)}, "import: hot handler to boto3 with a client"),
        ({"imports": replace(GOOD.imports, heavy={"plays": ["pydantic"]})}, "hot handlers: heavy modules imported"),
        ({"costs": GOOD.costs | {EXACT.name: Cost(2, 4, 0)}}, "EXACT: round trips"),
        ({"costs": GOOD.costs | {EXACT.name: Cost(1, 5, 0)}}, "EXACT: WCU"),
        ({"many": [replace(GOOD.many[0], write_units=25.0), GOOD.many[1]]}, f"100 plays of 10 videos, {NOW}: WCU"),
        (
            {"many": [GOOD.many[0], replace(GOOD.many[1], all_in={10: 0.051})]},
            f"a play {SOON}, all in, 10 such receipts in a stream batch: WCU",
        ),
        ({"likes": [Like(1, 1, 4.0), Like(10_240, 1, 22.0)]}, "a like, text of 10,240 B: WCU"),
        ({"reads": [Read(1, 1, 1.0, 9.0), Read(16, 16, 8.0, 9.0)]}, "a read, 16 shards: requests"),
        ({"hot": [replace(GOOD.hot[0], failed=1)]}, "hot key, plays 200/s: failed"),
        ({"hot": [replace(GOOD.hot[0], p99_ms=100.0)]}, "hot key, plays 200/s: p99"),
        ({"hot": [replace(GOOD.hot[1], failed=5)]}, "hot key, likes 400/s: failed"),
        ({"hot": [replace(GOOD.hot[2], failed=1)]}, "hot key, plays 5,000/s warm: failed"),
        ({"hot": [replace(GOOD.hot[0], catch_up_s=math.inf)]}, "hot key, plays 200/s: catch-up"),
    ],
)
def test_a_claim_that_does_not_hold_is_named(change: dict[str, Any], claim: str) -> None:
    assert broken(replace(GOOD, **change)) == [claim]


@pytest.mark.parametrize(
    ("design", "change", "claim"),
    [
        (EXACT, {"counted": 1001}, "EXACT: error of the count"),
        (EXACT, {"counted": 999}, "EXACT: error of the count"),
        (ROLLUP, {"counted": 1001}, "ROLLUP: error of the count"),
        (ROLLUP, {"counted": 999}, "ROLLUP: error of the count"),
        (ROLLUP, {"lost_at_store": 0}, "answers lost between store and SDK, least"),
        (POWERTOOLS, {"unanswered": 1}, "plays without an answer, all designs"),
        (PLAIN_ADD, {"counted": 1000}, "plain ADD: error of the count"),
        (EXACT, {"lost_at_store": 0}, "answers lost between store and SDK, least"),
    ],
)
def test_a_count_that_is_off_or_was_never_put_to_the_test_is_named(
    design: Any, change: dict[str, int], claim: str
) -> None:
    accuracy = GOOD.accuracy | {design.name: replace(GOOD.accuracy[design.name], **change)}
    assert broken(replace(GOOD, accuracy=accuracy)) == [claim]


def test_times_are_not_judged_in_a_quick_run() -> None:
    ledger = [replace(GOOD.ledger[1], measured=1)]
    slow = replace(GOOD, times_us=GOOD.times_us | {EXACT.name: 9999.0}, ledger=ledger, judge_times=False)
    assert broken(slow) == []
    assert "not judged" in "\n".join(lines(slow))


def test_the_exit_status_says_whether_all_claims_held(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "made" / "results.json")]
    monkeypatch.setattr(command, "measure", lambda size: GOOD)
    assert command.main(out) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(command, "measure", lambda size: replace(GOOD, likes=[Like(1, 1, 5.0)]))
    assert command.main(out) == 1
    printed = capsys.readouterr()
    assert printed.err == "tally: does not hold: a like, text of 1 B: WCU\n"
    assert "NOT HELD" in printed.out


def test_every_design_meets_the_same_faults_in_every_run() -> None:
    schedule = Schedule.seeded(1000)
    assert schedule == Schedule.seeded(1000)
    assert len(schedule.lost_at_store) == len(schedule.lost_at_caller) == len(schedule.crashes) == 10
    assert not schedule.lost_at_caller & schedule.crashes


def test_the_meter_counts_what_the_sdk_repeats() -> None:
    with fresh_engine() as endpoint, FaultProxy(endpoint, script({"UpdateItem": [LOSE_RESPONSE]})) as proxy:
        clients = clients_of(proxy.endpoint)
        meter = Meter(clients.plain)
        play = PLAIN_ADD.make(clients, "video")
        play("key")
        assert (meter.requests, meter.write_units) == (2, 1)
        assert clients.counted("video") == 2


@pytest.mark.parametrize(("write", "counted"), [(1, 0), (2, 1)])
def test_a_crash_between_powertools_writes_leaves_the_play_in_progress(write: int, counted: int) -> None:
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


def test_an_engine_that_is_given_is_used_and_left_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    with fresh_engine() as given:
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", given)
        with fresh_engine() as endpoint:
            assert endpoint == given
            clients = clients_of(endpoint)
            assert sorted(clients.plain.list_tables()["TableNames"]) == [
                "bench-counts",
                "bench-ledger",
                "bench-receipts",
            ]
            EXACT.make(clients, "video")("key")
        assert clients.plain.list_tables()["TableNames"] == []
