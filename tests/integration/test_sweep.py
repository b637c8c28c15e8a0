"""The sweep: heartbeats, judge, drift, holds, deleted posts. None of them is kept from its turn by another."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import Any

import pytest

import counters
from bench import cost
from bench.instruments import Meter
from tally import observe
from tally.counting import deletion, expired_holds
from tally.drift import judge, rows
from tally.dynamo import keys
from tally.dynamo.client import Store
from tally.dynamo.shards import ShardTree
from tally.dynamo.transactions import try_commit
from tally.errors import ConfigurationError, StoreBusyError, TallyError
from tally.operations.sweep import RESERVE_S, Sweep
from tally.series import hours, progress
from tally.streams import segments, watermark
from tally.streams.segments import JournalEntry
from tally.streams.watermark import Watermark
from tests.contexts import LambdaContext
from tests.integration.command.numbers import note_form


class Streams:
    """So many shards for each stream."""

    def __init__(self, shards: int = 1) -> None:
        self.shards = shards

    def list_shards(self, table: str) -> ShardTree:
        return {f"shard-{table}" + f"-{number}" * (number > 0): None for number in range(self.shards)}


@dataclass
class Ledger:
    """A ledger whose minutes from -9 to -5 are closed, as a sweep noted a minute ago. Minutes count from now."""

    store: Store
    now_s: int

    def sweep(self, context: LambdaContext | None = None, **how: Any) -> dict[str, int]:
        """Sweep once."""
        run = Sweep(counters.COUNTERS, how.get("store", self.store), how.get("shards", Streams()))
        return run({}, context or LambdaContext())

    @property
    def minute(self) -> int:
        return self.now_s // 60

    def put(self, key: Any, **facts: int | str) -> None:
        item = {name: {"N": str(value)} if isinstance(value, int) else {"S": value} for name, value in facts.items()}
        self.store.client.put_item(TableName=self.store.settings.ledger_table, Item=key | item)

    def mark(self, consumer: str, table: str, ago_s: int, shard: str = "", sequence: str = "9") -> None:
        key = keys.key(*keys.checkpoint_key(consumer, table, shard or f"shard-{table}"))
        self.put(key, sequence=sequence, through=self.now_s - ago_s, heartbeat=shard[-1:] or "k", note="9")

    def book(self, minute: int, *amounts: int) -> None:
        entries = [JournalEntry("plays", f"v{number}", "", 0, amount) for number, amount in enumerate(amounts)]
        assert try_commit(
            self.store, [segments.segment_write(self.store.settings, self.minute + minute, 0, "s#1", entries, 0)]
        )

    def drift(self) -> list[int]:
        return [drift.drift for drift in rows.all_rows(self.store)]

    def page_bytes(self) -> int:
        """The compressed bytes of all pages."""
        stored = self.store.client.scan(TableName=self.store.settings.ledger_table)["Items"]
        return sum(len(item["body"]["B"]) for item in stored if item["PK"]["S"].startswith("SEGMENT#"))

    def heartbeats(self) -> list[str]:
        """The keys of the heartbeats in both tables."""
        counts = self.store.client.scan(TableName=self.store.settings.counts_table)["Items"]
        receipts = self.store.client.scan(TableName=self.store.settings.receipts_table)["Items"]
        return sorted([item["PK"]["S"] for item in counts] + [item["id"]["S"] for item in receipts])


def behind(store: Store, now_s: int) -> Ledger:
    """A ledger with five minutes to judge. In one of them a tally drifts."""
    made = Ledger(store, now_s)
    known_s = 60 * (made.minute - 3) + 5
    made.put(
        watermark.WATERMARK_KEY, judged=made.minute - 10, written_s=made.now_s - 60, journal_complete_s=known_s,
        rollup_passed_s=known_s, bookkeeper_passed_s=known_s, rollup_booked_s=known_s, probe_visible_s=known_s + 10,
        probe_rollup_s=known_s + 120, began_s=made.now_s - 3600,
    )  # fmt: skip
    for consumer in ("rollup", "bookkeeper"):
        for table in ("counts", "receipts"):
            made.mark(consumer, table, 2)
    made.book(-9, 5)
    return made


@pytest.fixture(autouse=True)
def ledger(store: Store, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    made = behind(store, int(time.time() // 3600) * 3600 + 40 * 60 + 30)  # when no part is folded
    monkeypatch.setattr(time, "time", lambda: float(made.now_s))
    return made


def fail(*_: Any, **__: Any) -> Any:
    raise StoreBusyError("The store is busy.")


def metrics(out: str) -> dict[str, dict[str, Any]]:
    """What was written as EMF, by the value of its dimension."""
    found: dict[str, dict[str, Any]] = {}
    for line in (json.loads(line) for line in out.splitlines() if '"_aws"' in line):
        found.setdefault(line.get("counter") or line.get("consumer") or "stack", {}).update(line)
    return found


def test_sweep_judges_and_writes_the_metrics_of_every_counter(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ledger.sweep() == {
        "rollup_age_s": 60, "bookkeeper_age_s": 60, "minutes": 5, "segments": 1, "bytes": ledger.page_bytes(),
        "uneven": 1, "finished": 1, "hours": 0,
        "returned": 0, "not_returned": 0, "holds_finished": 1,
        "children_removed": 0, "parents_removed": 0, "parents_not_removed": 0, "parents_finished": 1,
    }  # fmt: skip
    told = metrics(capsys.readouterr().out)
    assert set(told) == {*counters.COUNTERS, "rollup", "bookkeeper", "stack"}
    assert (told["rollup"]["WatermarkAgeSeconds"], told["bookkeeper"]["WatermarkAgeSeconds"]) == ([60.0], [60.0])
    assert told["stack"]["SweepUnfinished"] == [0.0]
    assert told["stack"]["JudgedAgeSeconds"] == [4 * 60 + 30.0], "since the end of the minute five before this one"
    names = ("DriftAbsolute", "DriftingTallies", "OldestDriftSeconds", "HoldsNotReturned")
    assert [told["stack"][name] for name in names] == [[5.0], [1.0], [9 * 60 + 30.0], [0.0]]
    assert {name: told[name]["DriftConfirmed"] for name in counters.COUNTERS} == {
        name: [0.0] for name in counters.COUNTERS
    }
    assert (ledger.drift(), ledger.heartbeats()) == ([5], ["HEARTBEAT#k", "heartbeat#k"])
    ledger.now_s += 9
    assert "minutes" not in ledger.sweep(), "another sweep has just noted"
    assert metrics(capsys.readouterr().out)["plays"]["DriftConfirmed"] == [0.0], "four judged minutes are too few"


def test_judge_gets_what_was_noted_a_sweep_ago_and_never_what_this_one_finds(ledger: Ledger) -> None:
    ledger.book(-4, 7)
    assert ledger.sweep()["minutes"] == 5
    assert (ledger.drift(), watermark.last_judged_minute(ledger.store)) == ([5], ledger.minute - 5)
    ledger.now_s += 60
    assert ledger.sweep()["minutes"] == 2
    assert ledger.drift() == [12]


def test_sweep_that_does_not_come_to_the_end_says_so(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    swept = ledger.sweep(LambdaContext(remaining_ms=int(RESERVE_S * 1000)))
    assert (swept["minutes"], swept["finished"]) == (0, 0)
    assert metrics(capsys.readouterr().out)["stack"]["SweepUnfinished"] == [1.0]
    assert ledger.heartbeats() == ["HEARTBEAT#k", "heartbeat#k"], "heartbeats are sent in any case"
    ledger.now_s += 60
    assert ledger.sweep()["minutes"] == 5 + 2
    assert ledger.drift() == [5]


def test_each_part_has_its_share_of_the_time_and_holds_come_first(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, given = [100.0], dict[str, float]()
    store = replace(ledger.store, clock=lambda: clock[0])
    renew = watermark.advance

    def slowly(*how: Any) -> Any:
        clock[0] += 8
        return renew(*how)

    def note(part: str, answer: Any, takes_s: float = 0.0) -> Any:
        def run(*how: Any, until_s: float = 0.0) -> Any:
            given[part] = until_s or how[-1]
            clock[0] += takes_s
            return answer

        return run

    monkeypatch.setattr(expired_holds, "sweep", note("holds", expired_holds.SweptHolds(0, 0, True), takes_s=2))
    monkeypatch.setattr(watermark, "advance", slowly)
    monkeypatch.setattr(judge, "judge", note("judge", judge.JudgeRun()))
    monkeypatch.setattr(rows, "summary", note("drift", ({observe.DRIFTING_TALLIES: 0}, {})))
    monkeypatch.setattr(hours, "sum_up", note("series", 0))
    monkeypatch.setattr(deletion, "sweep", note("deleted", deletion.SweptParents(0, 0, 0, True)))
    ledger.sweep(LambdaContext(remaining_ms=32_000), store=store)
    assert list(given.items()) == [
        ("holds", 100 + 0.5 * 30), ("judge", 110 + 0.6 * 20), ("drift", 110 + 0.25 * 20), ("series", 110 + 0.5 * 20),
        ("deleted", 130),
    ]  # fmt: skip


def test_drift_beyond_the_time_of_the_report_is_told_as_at_least_so_much(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    ledger.book(-9, *[2 * 10**15] * 60)  # past what a double holds by ones
    ledger.sweep()
    capsys.readouterr()
    clock, read = [0.0], list[float]()
    drifting = rows.all_rows

    def slowly(*how: Any) -> Any:
        for row in drifting(*how):
            clock[0] += 1
            yield row

    monkeypatch.setattr(rows, "all_rows", slowly)
    monkeypatch.setattr(hours, "sum_up", lambda *_, until_s: read.append(until_s - clock[0]) or 0)
    ledger.sweep(
        LambdaContext(remaining_ms=int(1000 * (80 + RESERVE_S))), store=replace(ledger.store, clock=lambda: clock[0])
    )
    told = metrics(capsys.readouterr().out)
    assert (told["stack"]["DriftingTallies"], told["stack"]["DriftAbsolute"]) == ([20.0], [4e16])
    assert not [name for name in counters.COUNTERS if name in told], "no counter is known to have no drift"
    assert [vars(record)["at_least"] for record in caplog.records if record.message == "more may drift"] == [20]
    assert read == [30], "the parts behind it have their time"


def test_consumer_that_is_behind_is_named_with_the_shard(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    ledger.mark("rollup", "receipts", 700, sequence="8")
    ledger.sweep()
    told = metrics(capsys.readouterr().out)
    assert (told["rollup"]["WatermarkAgeSeconds"], told["bookkeeper"]["WatermarkAgeSeconds"]) == ([700.0], [60.0])
    [named] = [vars(record) for record in caplog.records if record.message == "behind"]
    assert (named["consumer"], named["in"][0]) == ("rollup", "receipts shard-receipts")


@pytest.mark.parametrize(
    ("module", "function"),
    [(watermark, "advance"), (judge, "judge"), (rows, "summary"), (expired_holds, "sweep"), (deletion, "sweep")],
)
def test_a_part_of_the_sweep_that_fails_does_not_stop_the_others_and_its_error_is_raised_at_the_end(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: Any, function: str
) -> None:
    swept = list[str]()
    monkeypatch.setattr(
        expired_holds, "sweep", lambda *_: swept.append("holds") or expired_holds.SweptHolds(0, 0, True)
    )
    monkeypatch.setattr(deletion, "sweep", lambda *_: swept.append("parents") or deletion.SweptParents(0, 0, 0, True))
    monkeypatch.setattr(module, function, fail)
    with pytest.raises(TallyError, match="busy"):
        ledger.sweep()
    told = metrics(capsys.readouterr().out)
    assert (bool(ledger.heartbeats()), "rollup" in told) == (module is not watermark,) * 2
    assert (ledger.drift() == [5], "SweepUnfinished" in told.get("stack", {})) == (module is not judge,) * 2
    assert ("plays" in told) == (module is not rows)
    assert ("holds" in swept) == (module is not expired_holds)
    assert ("parents" in swept) == (module is not deletion)


def test_a_counter_that_is_declared_in_another_form_than_it_has_counted_in_is_an_error(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is removed for it, and all else is done."""
    note_form(ledger.store, replace(counters.HEARTS, child="STAR#USER#"))
    monkeypatch.setattr(deletion, "sweep", lambda *_: pytest.fail("removed"))
    with pytest.raises(
        ConfigurationError, match="counter 'hearts' has counted with child='STAR#USER#', which is 'HEART"
    ):
        ledger.sweep()
    assert (bool(ledger.heartbeats()), ledger.drift()) == (True, [5])


def test_drift_is_answered_a_page_at_a_time(store: Store, ledger: Ledger, invoke: Any) -> None:
    ledger.book(-8, 1, 0, 3, 4)
    ledger.book(-7, -1, 5)
    judge.judge(store, Watermark(ledger.minute - 9, ledger.now_s), ledger.now_s, until_s=float("inf"))
    page = invoke.direct("get_drift", limit=2)["body"]
    rest = invoke.direct("get_drift", limit=2, cursor=page["cursor"])["body"]
    since = 60 * (ledger.minute - 8)
    found = [(row["id"], row["drift"], row["since"], row["confirmed"]) for row in page["drift"] + rest["drift"]]
    assert sorted(found) == [("v1", 5, since + 60, False), ("v2", 3, since, False), ("v3", 4, since, False)]
    assert (len(page["drift"]), rest["cursor"]) == (2, None)
    assert invoke.direct("get_drift", cursor="!")["status"] == 400


@pytest.mark.long
@pytest.mark.sdk
def test_a_quiet_sweep_takes_what_the_calculator_bills(
    ledger: Ledger, meter: Meter, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reads, requests, bytes of the log, and the custom metrics that have data while nobody calls: of two sweeps, for
    every second one knows more of the rollup's additions, and judges two minutes."""
    shards = Streams(cost.SHARDS)
    ledger.book(-5, -5)  # nothing drifts
    taken = list[tuple[float, float, float]]()
    for _ in range(8):  # until the judge has caught up
        ledger.now_s += 60
        for consumer in ("rollup", "bookkeeper"):
            for table in ("counts", "receipts"):
                for shard in shards.list_shards(table):
                    ledger.mark(consumer, table, 2, shard)
        meter.reset()
        capsys.readouterr()
        ledger.sweep(shards=shards)
        taken.append((meter.read_units, meter.requests, meter.write_units))
    reads, requests, writes = (sum(of_two) / 2 for of_two in zip(*taken[-2:], strict=True))
    assert reads == pytest.approx(cost.QUIET_READS, rel=0.05)
    assert requests == pytest.approx(cost.SWEEP_REQUESTS - cost.FOLD_READS, rel=0.05)
    assert writes == cost.JUDGE_WRITES + 2 * cost.SHARDS
    printed = capsys.readouterr().out
    emf = [line for line in printed.splitlines() if '"_aws"' in line]
    assert sum(map(len, emf)) == pytest.approx(cost.SWEEP_LINES, rel=0.15)  # and the line of the sweep itself
    assert len(list(metrics_of(emf))) == pytest.approx(cost.METRICS, rel=0.2)  # each counter has one
    meter.reset()
    hours.sum_up(
        ledger.store, (through := progress.read(ledger.store).through) + 2 * hours.PART_MINUTES, until_s=float("inf")
    )
    minutes = progress.read(ledger.store).through - through
    assert minutes >= hours.PART_MINUTES
    assert meter.read_units / minutes == pytest.approx(cost.FOLD_READS, rel=0.05)


def metrics_of(emf: list[str]) -> set[tuple[str, str]]:
    """The custom metrics that these lines write: AWS bills each name with each value of its dimensions."""
    found = set()
    for line in map(json.loads, emf):
        [directive] = line["_aws"]["CloudWatchMetrics"]
        [dimensions] = directive["Dimensions"]
        values = str([line[dimension] for dimension in sorted(dimensions)])
        found |= {(metric["Name"], values) for metric in directive["Metrics"]}
    return found
