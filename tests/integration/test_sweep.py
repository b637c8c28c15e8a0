"""The sweep writes heartbeats, judges, reports drift, releases holds and removes deleted posts.

A part that is slow or fails does not stop the other parts.
"""

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
from tests.integration.command.numbers import note_fingerprint

NO_HOLDS = expired_holds.SweptHolds(released=0, failed=0, finished=True)
NO_PARENTS = deletion.SweptParents(children=0, parents=0, failed=0, finished=True)


class Streams:
    """A fake of the tables' streams. `shards`: how many stream shards each stream has."""

    def __init__(self, shards: int = 1) -> None:
        self.shards = shards

    def list_shards(self, table: str) -> ShardTree:
        """Returns the stream shards: `shard-counts`, `shard-counts-1` and so on, all without a parent."""
        return {f"shard-{table}" + f"-{number}" * (number > 0): None for number in range(self.shards)}


@dataclass
class Ledger:
    """A ledger whose minutes from -9 to -5 are closed and not judged. Minute 0 is the present minute."""

    store: Store
    now_s: int

    def sweep(self, context: LambdaContext | None = None, **options: Any) -> dict[str, int]:
        """Run one sweep, and return the fields of its log line. `options`: another `store`, or other `shards`."""
        run = Sweep(counters.COUNTERS, options.get("store", self.store), options.get("shards", Streams()))
        return run({}, context or LambdaContext())

    @property
    def minute(self) -> int:
        return self.now_s // 60

    def put(self, key: Any, **values: int | str) -> None:
        item = {name: {"N": str(value)} if isinstance(value, int) else {"S": value} for name, value in values.items()}
        self.store.client.put_item(TableName=self.store.settings.ledger_table, Item=key | item)

    def checkpoint(self, consumer: str, table: str, ago_s: int, shard: str = "", sequence: str = "9") -> None:
        """Store that a consumer has passed a stream shard up to `ago_s` seconds ago, and there the record `sequence`.
        Heartbeats with the key k reach the shard, or, if `shard` is given, heartbeats with its last letter as key.
        `note`: the newest record for the rollup that the bookkeeper has passed."""
        key = keys.key(*keys.checkpoint_key(consumer, table, shard or f"shard-{table}"))
        self.put(key, sequence=sequence, through=self.now_s - ago_s, heartbeat=shard[-1:] or "k", note="9")

    def book(self, minute: int, *amounts: int) -> None:
        """Book amounts of v0, v1 and so on as observed, but not as expected, so that these tallies drift."""
        entries = [
            JournalEntry("plays", f"v{number}", pair="", expected=0, observed=amount)
            for number, amount in enumerate(amounts)
        ]
        segment = segments.segment_write(
            self.store.settings, self.minute + minute, bucket=0, name="s#1", entries=entries, now_s=0
        )
        assert try_commit(self.store, [segment])

    def drift(self) -> list[int]:
        return [drift.drift for drift in rows.all_rows(self.store)]

    def segment_bytes(self) -> int:
        """Returns the compressed bytes of all segments."""
        items = self.store.client.scan(TableName=self.store.settings.ledger_table)["Items"]
        return sum(len(item["body"]["B"]) for item in items if item["PK"]["S"].startswith("SEGMENT#"))

    def heartbeats(self) -> list[str]:
        """Returns the keys of the heartbeats in both tables."""
        counts = self.store.client.scan(TableName=self.store.settings.counts_table)["Items"]
        receipts = self.store.client.scan(TableName=self.store.settings.receipts_table)["Items"]
        return sorted([item["PK"]["S"] for item in counts] + [item["id"]["S"] for item in receipts])


def ledger_to_judge(store: Store, now_s: int) -> Ledger:
    """Returns a ledger with five minutes to judge. In minute -9 the tally v0 drifts by 5."""
    to_judge = Ledger(store, now_s)
    passed_s = 60 * (to_judge.minute - 3) + 5  # minute -4 is passed, so minute -5 is closed; clocks may differ by 5 s
    to_judge.put(
        watermark.WATERMARK_KEY, judged=to_judge.minute - 10, written_s=to_judge.now_s - 60,
        rollup_passed_s=passed_s, bookkeeper_passed_s=passed_s, rollup_booked_s=passed_s, probe_visible_s=passed_s + 10,
        journal_complete_s=passed_s, probe_rollup_s=passed_s + 120, began_s=to_judge.now_s - 3600,
    )  # fmt: skip
    # With these checkpoints the bookkeeper has passed `probe_visible_s`. So the first sweep finds that the journal is
    # complete up to `probe_rollup_s`, which is two minutes more.
    for consumer in ("rollup", "bookkeeper"):
        for table in ("counts", "receipts"):
            to_judge.checkpoint(consumer, table, ago_s=2)
    to_judge.book(-9, 5)
    return to_judge


@pytest.fixture(autouse=True)
def ledger(store: Store, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    now_s = int(time.time() // 3600) * 3600 + 40 * 60 + 30  # at 40:30: the hour does not end during a test
    to_judge = ledger_to_judge(store, now_s)
    monkeypatch.setattr(time, "time", lambda: float(to_judge.now_s))
    return to_judge


def fail_as_busy(*_: Any, **__: Any) -> Any:
    raise StoreBusyError("The store is busy.")


def metrics(out: str) -> dict[str, dict[str, Any]]:
    """Returns the metrics that were written as EMF, by counter or consumer. `stack`: the metrics of the whole stack."""
    by_dimension: dict[str, dict[str, Any]] = {}
    for line in (json.loads(line) for line in out.splitlines() if '"_aws"' in line):
        by_dimension.setdefault(line.get("counter") or line.get("consumer") or "stack", {}).update(line)
    return by_dimension


def test_a_sweep_judges_and_writes_the_metrics_of_every_counter(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lag of a consumer is at least a minute, because DynamoDB may list a new stream shard so late."""
    assert ledger.sweep() == {
        "rollup_age_s": 60, "bookkeeper_age_s": 60, "minutes": 5, "segments": 1, "bytes": ledger.segment_bytes(),
        "uneven": 1, "finished": 1, "hours": 0,
        "released": 0, "not_released": 0, "holds_finished": 1,
        "children_removed": 0, "parents_removed": 0, "parents_not_removed": 0, "parents_finished": 1,
    }  # fmt: skip
    metered = metrics(capsys.readouterr().out)
    assert set(metered) == {*counters.COUNTERS, "rollup", "bookkeeper", "stack"}
    assert (metered["rollup"]["WatermarkAgeSeconds"], metered["bookkeeper"]["WatermarkAgeSeconds"]) == ([60.0], [60.0])
    assert metered["stack"]["SweepUnfinished"] == [0.0]
    assert metered["stack"]["JudgedAgeSeconds"] == [4 * 60 + 30.0], "since the end of the last judged minute"
    names = ("DriftAbsolute", "DriftingTallies", "OldestDriftSeconds", "HoldsNotReleased")
    assert [metered["stack"][name] for name in names] == [[5.0], [1.0], [9 * 60 + 30.0], [0.0]]
    assert [metered[name]["DriftConfirmed"] for name in counters.COUNTERS] == [[0.0]] * len(counters.COUNTERS)
    assert (ledger.drift(), ledger.heartbeats()) == ([5], ["HEARTBEAT#k", "heartbeat#k"])
    ledger.now_s += 9
    assert "minutes" not in ledger.sweep(), "a sweep within 10 s of another sweep does not judge"
    assert metrics(capsys.readouterr().out)["plays"]["DriftConfirmed"] == [0.0], (
        "four judged minutes after the drift are too few to confirm the drift"
    )


def test_the_judge_gets_the_watermark_of_the_last_sweep_and_not_of_this_sweep(ledger: Ledger) -> None:
    ledger.book(-4, 7)
    assert ledger.sweep()["minutes"] == 5
    assert (ledger.drift(), watermark.read(ledger.store).judged) == ([5], ledger.minute - 5)
    ledger.now_s += 60
    assert ledger.sweep()["minutes"] == 2, "the minutes that the first sweep found complete"
    assert ledger.drift() == [12]


def test_a_sweep_that_runs_out_of_time_writes_a_metric(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    result = ledger.sweep(LambdaContext(remaining_ms=int(RESERVE_S * 1000)))  # leaves 0 s for the parts
    assert (result["minutes"], result["finished"]) == (0, 0)
    assert metrics(capsys.readouterr().out)["stack"]["SweepUnfinished"] == [1.0]
    assert ledger.heartbeats() == ["HEARTBEAT#k", "heartbeat#k"], "heartbeats are always written"
    ledger.now_s += 60
    assert ledger.sweep()["minutes"] == 5 + 2, "the first sweep found two more minutes complete"
    assert ledger.drift() == [5]


def test_each_part_of_a_sweep_has_its_share_of_the_time_and_holds_come_first(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, deadlines_s = [100.0], dict[str, float]()
    store = replace(ledger.store, clock=lambda: clock[0])
    advance = watermark.advance

    def advance_slowly(*arguments: Any) -> Any:
        clock[0] += 8  # so the parts after the heartbeats share 20 s
        return advance(*arguments)

    def fake_part(part: str, answer: Any, takes_s: float = 0.0) -> Any:
        def run(*arguments: Any, until_s: float = 0.0) -> Any:
            deadlines_s[part] = until_s or arguments[-1]
            clock[0] += takes_s
            return answer

        return run

    monkeypatch.setattr(expired_holds, "sweep", fake_part("holds", NO_HOLDS, takes_s=2))
    monkeypatch.setattr(watermark, "advance", advance_slowly)
    monkeypatch.setattr(judge, "judge", fake_part("judge", judge.JudgeRun()))
    monkeypatch.setattr(rows, "summary", fake_part("drift", ({observe.DRIFTING_TALLIES: 0}, {})))
    monkeypatch.setattr(hours, "sum_up", fake_part("series", 0))
    monkeypatch.setattr(deletion, "sweep", fake_part("parents", NO_PARENTS))
    ledger.sweep(LambdaContext(remaining_ms=32_000), store=store)  # RESERVE_S leaves 30 s for the parts
    assert list(deadlines_s.items()) == [
        ("holds", 100 + 0.5 * 30), ("judge", 110 + 0.6 * 20), ("drift", 110 + 0.25 * 20), ("series", 110 + 0.5 * 20),
        ("parents", 130),
    ]  # fmt: skip


def test_a_report_of_drift_that_runs_out_of_time_gives_a_lower_bound(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The report has a quarter of 80 s, and each row takes a second. So the report reads 20 of 60 rows."""
    ledger.book(-9, *[2 * 10**15] * 60)  # the sum is above the whole numbers that a double can hold
    ledger.sweep()
    capsys.readouterr()
    clock, times_left_s = [0.0], list[float]()
    all_rows = rows.all_rows

    def read_slowly(*arguments: Any) -> Any:
        for row in all_rows(*arguments):
            clock[0] += 1
            yield row

    monkeypatch.setattr(rows, "all_rows", read_slowly)
    monkeypatch.setattr(hours, "sum_up", lambda *_, until_s: times_left_s.append(until_s - clock[0]) or 0)
    ledger.sweep(
        LambdaContext(remaining_ms=int(1000 * (80 + RESERVE_S))), store=replace(ledger.store, clock=lambda: clock[0])
    )
    metered = metrics(capsys.readouterr().out)
    assert (metered["stack"]["DriftingTallies"], metered["stack"]["DriftAbsolute"]) == ([20.0], [4e16])
    assert not [name for name in counters.COUNTERS if name in metered], "no counter is known to have no drift"
    assert [vars(record)["at_least"] for record in caplog.records if record.message == "more may drift"] == [20]
    assert times_left_s == [30], "half of the 60 s that the report leaves"


def test_a_consumer_that_lags_is_logged_with_its_shard(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    ledger.checkpoint("rollup", "receipts", ago_s=700, sequence="8")  # record 9 waits: the bookkeeper has noted it
    ledger.sweep()
    metered = metrics(capsys.readouterr().out)
    assert (metered["rollup"]["WatermarkAgeSeconds"], metered["bookkeeper"]["WatermarkAgeSeconds"]) == ([700.0], [60.0])
    [log_line] = [vars(record) for record in caplog.records if record.message == "consumer lags"]
    assert (log_line["consumer"], log_line["in"][0]) == ("rollup", "receipts shard-receipts")


@pytest.mark.parametrize(
    ("module", "function"),
    [(watermark, "advance"), (judge, "judge"), (rows, "summary"), (expired_holds, "sweep"), (deletion, "sweep")],
)
def test_a_part_of_the_sweep_that_fails_does_not_stop_the_other_parts_and_raises_at_the_end(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: Any, function: str
) -> None:
    ended_parts = list[str]()
    monkeypatch.setattr(expired_holds, "sweep", lambda *_: ended_parts.append("holds") or NO_HOLDS)
    monkeypatch.setattr(deletion, "sweep", lambda *_: ended_parts.append("parents") or NO_PARENTS)
    monkeypatch.setattr(module, function, fail_as_busy)
    with pytest.raises(TallyError, match="busy"):
        ledger.sweep()
    metered = metrics(capsys.readouterr().out)
    effects = {
        watermark: (bool(ledger.heartbeats()), "rollup" in metered),
        judge: (ledger.drift() == [5], "SweepUnfinished" in metered.get("stack", {})),
        rows: ("plays" in metered,),
        expired_holds: ("holds" in ended_parts,),
        deletion: ("parents" in ended_parts,),
    }
    for part, found in effects.items():
        assert set(found) == {part is not module}, "the effects of a part are missing only if this part fails"


def test_a_sweep_with_a_counter_of_another_schema_raises_an_error(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep removes no children of any counter. It sends heartbeats, and judges."""
    note_fingerprint(ledger.store, replace(counters.HEARTS, child="STAR#USER#"))
    monkeypatch.setattr(deletion, "sweep", lambda *_: pytest.fail("removed"))
    with pytest.raises(
        ConfigurationError, match="counter 'hearts' has counted with child='STAR#USER#', which is 'HEART"
    ):
        ledger.sweep()
    assert (bool(ledger.heartbeats()), ledger.drift()) == (True, [5])


def test_get_drift_answers_one_page_at_a_time(store: Store, ledger: Ledger, invoke: Any) -> None:
    ledger.book(-8, 1, 0, 3, 4)
    ledger.book(-7, -1, 5)  # v0 does not drift any more
    judged_to_minus_9 = Watermark(judged=ledger.minute - 9, journal_complete_s=ledger.now_s)
    judge.judge(store, judged_to_minus_9, ledger.now_s, until_s=float("inf"))
    first = invoke.direct("get_drift", limit=2)["body"]
    second = invoke.direct("get_drift", limit=2, cursor=first["cursor"])["body"]
    since = 60 * (ledger.minute - 8)
    drifting = [(row["id"], row["drift"], row["since"], row["confirmed"]) for row in first["drift"] + second["drift"]]
    assert sorted(drifting) == [("v1", 5, since + 60, False), ("v2", 3, since, False), ("v3", 4, since, False)]
    assert (len(first["drift"]), second["cursor"]) == (2, None)
    assert invoke.direct("get_drift", cursor="!")["status"] == 400


@pytest.mark.long
@pytest.mark.sdk
def test_a_quiet_sweep_uses_what_the_calculator_bills(
    ledger: Ledger, meter: Meter, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compares reads, requests, bytes of the log, and the custom metrics that have data without traffic. The figures
    are means of two sweeps, because each probe of the rollup's writes takes two sweeps. So only every second sweep
    judges, and judges two minutes."""
    shards = Streams(cost.SHARDS)
    ledger.book(-5, -5)  # ends the drift of 5
    costs = list[tuple[float, float, float]]()
    for _ in range(8):  # enough sweeps to judge all old minutes; the last two are measured
        ledger.now_s += 60
        for consumer in ("rollup", "bookkeeper"):
            for table in ("counts", "receipts"):
                for shard in shards.list_shards(table):
                    ledger.checkpoint(consumer, table, ago_s=2, shard=shard)
        meter.reset()
        capsys.readouterr()
        ledger.sweep(shards=shards)
        costs.append((meter.read_units, meter.requests, meter.write_units))
    reads, requests, writes = (sum(pair) / 2 for pair in zip(*costs[-2:], strict=True))
    assert reads == pytest.approx(cost.QUIET_READS, rel=0.05)
    # The two sweeps sum up no series, because too few minutes are judged for a part of an hour.
    assert requests == pytest.approx(cost.SWEEP_REQUESTS - cost.SERIES_READS, rel=0.05)
    assert writes == cost.JUDGE_WRITES + 2 * cost.SHARDS
    printed = capsys.readouterr().out
    emf = [line for line in printed.splitlines() if '"_aws"' in line]
    assert sum(map(len, emf)) == pytest.approx(cost.SWEEP_LINES, rel=0.15)  # SWEEP_LINES also has the sweep's log line
    assert len(list(metrics_of(emf))) == pytest.approx(cost.METRICS, rel=0.2)  # depends on how many counters there are
    meter.reset()
    through = progress.read(ledger.store).through
    hours.sum_up(ledger.store, through + 2 * hours.PART_MINUTES, until_s=float("inf"))
    minutes = progress.read(ledger.store).through - through
    assert minutes >= hours.PART_MINUTES
    assert meter.read_units / minutes == pytest.approx(cost.SERIES_READS, rel=0.05)


def metrics_of(emf: list[str]) -> set[tuple[str, str]]:
    """Returns the custom metrics of these lines. AWS bills each name with each value of its dimensions."""
    metrics_of_lines = set()
    for line in map(json.loads, emf):
        [directive] = line["_aws"]["CloudWatchMetrics"]
        [dimensions] = directive["Dimensions"]
        values = str([line[dimension] for dimension in sorted(dimensions)])
        metrics_of_lines |= {(metric["Name"], values) for metric in directive["Metrics"]}
    return metrics_of_lines
