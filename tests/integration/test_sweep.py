"""The sweep: holds, ledger, pulse. None of them is kept from its turn by another."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

import counters
from functions import sweep
from tally.counting import expired, tallies
from tally.drift import judge
from tally.dynamo import keys
from tally.dynamo.client import Store
from tally.dynamo.transactions import apply_once
from tally.errors import StoreBusyError, TallyError
from tally.streams import progress
from tests.contexts import Context


@pytest.fixture(autouse=True)
def _store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_store", store)
    row = tallies.book(store.settings, "plays", "v", 28_000_000, 0, observed=5)["Update"]
    row["ExpressionAttributeValues"][":now"] = {"N": "1700000000"}
    store.client.update_item(**row)


def fail(*_: Any, **__: Any) -> Any:
    raise StoreBusyError("The store is busy.")


def metrics(out: str) -> dict[str, dict[str, Any]]:
    """What was written as EMF, by the value of its dimension."""
    found: dict[str, dict[str, Any]] = {}
    for line in (json.loads(line) for line in out.splitlines() if '"_aws"' in line):
        found.setdefault(line.get("counter") or line["consumer"], {}).update(line)
    return found


def pulses(store: Store) -> int:
    return progress.read_all(store).pulse.at


def drift(store: Store) -> list[int]:
    items = store.client.scan(TableName=store.settings.ledger_table)["Items"]
    return [int(item["drift"]["N"]) for item in items if "drift" in item]


def test_sweep_judges_and_says_how_things_stand_for_every_counter(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.handler({}, Context()) == {
        "returned": 0, "not_returned": 0, "equal": 0, "moved": 1, "left": 0, "finished": 1,
    }  # fmt: skip
    told = metrics(capsys.readouterr().out)
    assert set(told) == {*counters.COUNTERS, "rollup", "drift", "sweep"}
    assert told["rollup"]["RollupLagSeconds"] == [0.0]
    assert (told["rollup"]["StandsStill"], told["drift"]["StandsStill"]) == ([0.0], [0.0])
    assert told["sweep"]["SweepUnfinished"] == [0.0]
    assert (told["plays"]["DriftAbsolute"], told["plays"]["DriftingTallies"]) == ([5.0], [1.0])
    names = ("DriftAbsolute", "DriftingTallies", "DriftConfirmed", "OldestDriftSeconds")
    assert [told["likes"][name] for name in names] == [[0.0]] * 4
    assert (drift(store), pulses(store) > 0) == ([5], True)


def test_sweep_that_does_not_come_to_the_end_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(judge, "GROUPS_MAX", 0)
    assert sweep.handler({}, Context())["finished"] == 0
    assert metrics(capsys.readouterr().out)["sweep"]["SweepUnfinished"] == [1.0]


def test_stream_that_a_consumer_does_not_pass_is_told_and_named(
    store: Store, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    now_s = int(time.time())
    progress.pulse(store, now_s - 120)
    progress.pulse(store, now_s - 60)
    for consumer, table, age_s in (("rollup", "receipts", 600), ("drift", "receipts", 10), ("drift", "counts", 10)):
        times = {name: {"N": str(now_s - age_s)} for name in ("through", "moved")}
        item = keys.key(*keys.checkpoint_key(consumer, table, "s")) | {"sequence": {"S": "9"}} | times
        store.client.put_item(TableName=store.settings.ledger_table, Item=item)
    sweep.handler({}, Context())
    told = metrics(capsys.readouterr().out)
    assert (told["rollup"]["StandsStill"], told["drift"]["StandsStill"]) == ([1.0], [0.0])
    [named] = [vars(record) for record in caplog.records if record.message == "stalled"]
    assert (named["consumer"], named["table"]) == ("rollup", "receipts")


def test_no_item_is_a_dimension(capsys: pytest.CaptureFixture[str]) -> None:
    sweep.handler({}, Context())
    for line in metrics(capsys.readouterr().out).values():
        (directive,) = line["_aws"]["CloudWatchMetrics"]
        assert [sorted(names) for names in directive["Dimensions"]] in (
            [["counter", "service"]],
            [["consumer", "service"]],
        )


@pytest.mark.parametrize(
    ("module", "function", "judged", "pulsed"),
    [(expired, "sweep", True, True), (judge, "sweep", False, True), (progress, "pulse", True, False)],
)
def test_part_that_fails_stops_no_other_one_and_is_raised_at_the_end(
    store: Store, monkeypatch: pytest.MonkeyPatch, module: Any, function: str, judged: bool, pulsed: bool
) -> None:
    monkeypatch.setattr(module, function, fail)
    with pytest.raises(TallyError, match="busy"):
        sweep.handler({}, Context())
    assert (drift(store) == [5], pulses(store) > 0) == (judged, pulsed)


def test_slot_that_fails_is_raised_after_the_drift_was_summed_up(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    key = keys.key("LEDGER#3", f"{1:010d}#x#0")
    store.client.put_item(TableName=store.settings.ledger_table, Item=key)
    with pytest.raises(KeyError):
        sweep.handler({}, Context())
    assert drift(store) == [5]
    assert metrics(capsys.readouterr().out)["plays"]["DriftAbsolute"] == [5.0]


def test_drift_is_answered_a_page_at_a_time(store: Store, invoke: Any) -> None:
    for number in range(5):
        key = keys.key(keys.DRIFT_KEY, keys.digest("usage", f"u{number}"))
        assert apply_once(store, [judge.drift_write(store, key, {}, "usage", f"u{number}", number + 1, 1)])
    found, cursor = [], None
    for _ in range(3):
        event = {"operation": "get_drift", "caller": "watch", "limit": 2} | ({"cursor": cursor} if cursor else {})
        body = invoke("drifts", event)["body"]
        found += body["drift"]
        cursor = body["cursor"]
    assert cursor is None
    assert sorted((row["id"], row["drift"]) for row in found) == [(f"u{number}", number + 1) for number in range(5)]
    assert invoke("drifts", {"operation": "get_drift", "caller": "watch", "cursor": "!"})["status"] == 400


# NEEDS CONTEXT
