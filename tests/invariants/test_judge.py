"""The judge: each closed minute is judged once, whoever judges it, and whatever happens meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tally.drift import judge, rows
from tally.drift.rows import DriftRow
from tally.dynamo import keys, queries
from tally.dynamo.client import WRITER_THREADS, Call, Store
from tally.dynamo.contention import ATTEMPTS_MAX
from tally.dynamo.transactions import try_commit
from tally.errors import StoreBusyError
from tally.streams import fold, watermark
from tally.streams.segments import JournalEntry
from tally.streams.watermark import Watermark
from tests.invariants.processes import Crash, WatchedClient, client_that_dies, interrupted_client
from tests.invariants.stream_records import book
from tests.invariants.streaming import ConsumerWorld, StreamWorld

M = 29_900_000  # the first minute that is not judged
NOW_S = (M + 100) * 60.0
DAY_S = 24 * 3600
NINE_DAYS_S = 9 * DAY_S
FOREVER = float("inf")


@pytest.fixture(autouse=True)
def _judged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "BUCKETS", 2)  # partitions to read; test_segments reads them all
    StreamWorld(store, store.client).put_judged(M - 1)


def plays(amount: int, target: str = "v", expected: int = 0) -> JournalEntry:
    return JournalEntry("plays", target, "", expected, expected + amount)


def seen(store: Store, closed: int) -> Watermark:
    """What may be concluded when the minutes up to `closed` are closed."""
    return Watermark(watermark.last_judged_minute(store), 60 * (closed + 2) + 5)


def run(store: Store, closed: int, now_s: float = NOW_S, until_s: float = FOREVER) -> judge.JudgeRun:
    """What a run did, without what it read."""
    judged = judge.judge(store, seen(store, closed), now_s, until_s=until_s)
    assert judged.last == watermark.last_judged_minute(store)
    return replace(judged, last=-1, segments=0, bytes=0)


def row(store: Store, target: str = "v", counter: str = "plays") -> DriftRow | None:
    found = rows.read_row(store, counter, target)
    return found._replace(changes=()) if found.last_minute >= 0 else None


def drifts(store: Store) -> dict[str, int]:
    return {drift.target: drift.drift for drift in rows.all_rows(store)}


def through(store: Store, client: WatchedClient) -> Store:
    return replace(store, client=client)  # type: ignore[arg-type]


# What is uneven


def test_a_minute_is_summed_up_over_its_segments_and_what_is_even_has_no_row(store: Store) -> None:
    book(store, M, plays(3), plays(0, "even", 7), JournalEntry("likes", "v", "", 4, 1))
    book(store, M, plays(-1), plays(-2, "halves"), name="s#2")
    book(store, M, plays(5), plays(2, "halves"), bucket=1)
    book(store, M + 1, plays(100))
    assert run(store, M) == judge.JudgeRun(minutes=1, changes=2)
    assert row(store) == DriftRow("plays", "v", 7, M, 60 * M)
    assert row(store, counter="likes") == DriftRow("likes", "v", -3, M, 60 * M)
    assert len(list(rows.all_rows(store))) == 2
    assert watermark.last_judged_minute(store) == M


@pytest.mark.parametrize(
    "known", [Watermark(), Watermark(-1, 60 * 6), Watermark(M - 1), Watermark(M - 1, 60 * (M + 2) + 4)]
)
def test_without_watermark_nothing_is_judged(store: Store, known: Watermark) -> None:
    book(store, M, plays(3))
    book(store, 0, plays(3))
    assert judge.judge(store, known, NOW_S, until_s=FOREVER) == judge.JudgeRun(last=known.judged)
    assert (drifts(store), watermark.last_judged_minute(store)) == ({}, M - 1)


GONE, UNLIKED = JournalEntry("likes", "p", "0123456789ab", -1, 0), JournalEntry("likes", "p", "0123456789ab", 0, -1)


def test_half_of_an_unlike_that_stands_alone_is_drift(store: Store) -> None:
    book(store, M, GONE, GONE._replace(pair="x", id="q"))
    book(store, M, GONE._replace(pair="x", counter="other", observed=5), name="s#2")
    book(store, M + 1, UNLIKED._replace(pair="another"))
    assert run(store, M + 1).changes == 4
    assert (row(store, "p", "likes"), row(store, "q", "likes")) == (
        DriftRow("likes", "p", 0, M + 1, 0),
        DriftRow("likes", "q", 1, M, 60 * M),
    )
    assert row(store, "p", "other") == DriftRow("other", "p", 6, M, 60 * M)


@pytest.mark.parametrize(
    ("halves", "drift"),
    [
        ({0: [GONE], 1: [GONE], 2: [GONE]}, [1, 2, 3, 3]),  # deleted by hand, and put back, minute after minute
        ({0: [GONE], 1: [GONE], 2: [GONE], 3: [GONE]}, [1, 2, 3, 4]),
        ({0: [GONE], 1: [UNLIKED], 2: [GONE]}, [0, 0, 1, 1]),  # an unlike over an edge, then deleted by hand
        ({0: [GONE], 1: [GONE], 2: [UNLIKED]}, [1, 1, 1, 1]),  # deleted by hand, then an unlike over an edge
        ({0: [GONE], 1: [GONE, UNLIKED], 2: [GONE]}, [1, 1, 2, 2]),
        ({0: [GONE], 1: [UNLIKED], 2: [GONE], 3: [UNLIKED]}, [0, 0, 0, 0]),
        ({0: [UNLIKED], 1: [GONE, GONE]}, [0, 1, 1, 1]),
        ({0: [GONE, UNLIKED]}, [0, 0, 0, 0]),
        ({1: [UNLIKED], 2: [GONE]}, [0, 0, 0, 0]),
        ({0: [GONE], 2: [UNLIKED]}, [1, 1, 0, 0]),  # too far apart: passing drift
    ],
)
@pytest.mark.parametrize("runs", [1, 5], ids=["in one run", "a run for each minute"])
def test_no_half_is_lost_nor_counted_twice_however_they_follow_each_other(
    store: Store, halves: dict[int, list[JournalEntry]], drift: list[int], runs: int
) -> None:
    """j5: the third of them was counted in no minute, and the drift stayed."""
    for minute, entries in halves.items():
        for number, entry in enumerate(entries):
            book(store, M + minute, entry, name=f"s#{number}")
    for last in range(5)[-runs:]:
        run(store, M + last)
        if runs > 1 and last < 4:
            assert drifts(store).get("p", 0) == drift[last]
    assert drifts(store).get("p", 0) == drift[-1]


# Rows


def stored(store: Store) -> dict[str, str]:
    item = queries.get(store.client, store.settings.ledger_table, rows.row_key("plays", "v"))
    return {name: next(iter(value.values())) for name, value in item.items() if name not in ("PK", "SK")}


def test_row_says_since_when_and_a_row_at_zero_goes_when_segments_do(store: Store) -> None:
    life = [
        (5, {"drift": "5", "since": str(60 * M), "changes": f"[[{M}, 5]]"}),
        (-7, {"drift": "-2", "since": str(60 * M), "changes": f"[[{M}, 5], [{M + 1}, -7]]"}),
        (2, {"drift": "0", "expiration": str(int(NOW_S) + NINE_DAYS_S)}),
        (4, {"drift": "4", "since": str(60 * (M + 3)), "changes": f"[[{M + 3}, 4]]"}),
    ]
    for number, (amount, facts) in enumerate(life):
        book(store, M + number, plays(amount))
        run(store, M + number)
        assert stored(store) == {"counter": "plays", "target": "v", "upto": str(M + number)} | facts


def test_row_counts_in_the_minutes_of_the_deployment(store: Store) -> None:
    short = replace(store, settings=store.settings._replace(minute_s=5))
    book(store, M, plays(5))
    judge.judge(short, Watermark(M - 1, 5 * (M + 2) + 1), NOW_S, until_s=FOREVER)
    assert row(store) == DriftRow("plays", "v", 5, M, 5 * M)


@pytest.mark.parametrize(
    ("amounts", "confirmed"),
    [
        ({0: 3, 2: 1, 4: 1, 6: 1}, 3),  # it goes on: what had stood before the last five
        (dict.fromkeys(range(9), 1), 4),
        ({0: -2, 5: 1}, -1),
        ({0: 2, 4: -2, 5: 2}, 0),  # it was even in between
        ({0: 2, 5: -3}, 0),
        ({0: 5, 3: 1, 5: -1}, 5),  # halves of one late change
        ({3: 1, 5: 4}, 0),
    ],
)
def test_what_has_stood_for_five_judged_minutes_is_confirmed_however_it_goes_on(
    store: Store, amounts: dict[int, int], confirmed: int
) -> None:
    last = max(amounts)
    for minute, amount in amounts.items():
        book(store, M + minute, plays(amount))
    run(store, M + last)
    found = rows.read_row(store, "plays", "v")
    assert found.confirmed_amount(seen(store, 0)) == confirmed
    assert all(minute > M + last - watermark.CONFIRM_AFTER for minute, _ in found.changes)
    run(store, M + last + watermark.CONFIRM_AFTER)
    assert found.confirmed_amount(seen(store, 0)) == found.drift == sum(amounts.values())


# Whatever happens meanwhile


def uneven(store: Store, minutes: int = 3, targets: int = 3) -> dict[str, int]:
    """Some tallies that are uneven in some minutes; what they must come to."""
    total = {f"v{target}": 0 for target in range(targets)}
    for minute in range(minutes):
        amounts = {f"v{target}": 10**minute * (target + 1) for target in range(targets) if target != minute}
        book(store, M + minute, *(plays(amount, target) for target, amount in amounts.items()))
        for target, amount in amounts.items():
            total[target] += amount
    return total


WRITES_OF_UNEVEN = 2 * 3 + 3


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(WRITES_OF_UNEVEN))
def test_judge_that_is_killed_at_any_write_is_followed_by_one_that_goes_on(store: Store, at: int, after: bool) -> None:
    wanted = uneven(store)
    with pytest.raises(Crash):
        run(through(store, client_that_dies(store.client, at, committed=after)), M + 2)
    run(store, M + 2)
    assert (drifts(store), watermark.last_judged_minute(store)) == (wanted, M + 2)


@pytest.mark.parametrize("at", range(WRITES_OF_UNEVEN - 3))
def test_judge_that_sleeps_while_another_one_judges_changes_nothing_more(store: Store, at: int) -> None:
    wanted = uneven(store)
    sleeping = through(store, interrupted_client(store.client, at, lambda: run(store, M + 2)))
    judge.judge(sleeping, seen(store, M + 1), NOW_S, until_s=FOREVER)
    assert (drifts(store), watermark.last_judged_minute(store)) == (wanted, M + 2)


def test_a_row_at_zero_stops_a_late_judge_from_writing_the_drift_again(store: Store) -> None:
    book(store, M, plays(5))
    book(store, M + 1, plays(-5))
    early = seen(store, M)
    run(store, M + 1)
    judge.judge(store, early, NOW_S, until_s=FOREVER)
    assert (drifts(store), watermark.last_judged_minute(store)) == ({}, M + 1)


@pytest.mark.parametrize("days", [1, 3, 8])
def test_row_at_zero_outlives_a_judge_that_died_over_its_minute_and_comes_back_days_later(
    store: Store, days: int
) -> None:
    book(store, M, plays(5), now_s=NOW_S)
    run(store, M)
    book(store, M + 1, plays(-5), now_s=NOW_S)
    with pytest.raises(Crash):
        run(through(store, client_that_dies(store.client, 0, committed=True)), M + 1)
    ConsumerWorld(store, store.client).expire(NOW_S + days * DAY_S)
    run(store, M + 1, NOW_S + days * DAY_S)
    assert (drifts(store), watermark.last_judged_minute(store)) == ({}, M + 1)


def repair(store: Store, found: DriftRow | None) -> bool:
    assert found
    return try_commit(store, [rows.drift_write(store, found, 0, NOW_S)])


def test_repair_between_a_judges_reading_and_writing_is_not_undone(store: Store) -> None:
    book(store, M, plays(5))
    run(store, M)
    book(store, M + 1, plays(2))
    run(through(store, interrupted_client(store.client, 0, lambda: repair(store, row(store)))), M + 1)
    assert row(store) == DriftRow("plays", "v", 2, M + 1, 60 * (M + 1))


def test_repair_is_refused_once_the_judge_has_moved_the_row_though_it_says_the_same(store: Store) -> None:
    book(store, M, plays(5))
    run(store, M)
    before = row(store)
    for minute, amount in ((1, 2), (2, -2)):
        book(store, M + minute, plays(amount))
        run(store, M + minute)
    assert not repair(store, before)
    assert repair(store, row(store))
    assert stored(store) == {
        "counter": "plays", "target": "v", "upto": str(M + 2), "drift": "0",
        "expiration": str(int(NOW_S) + NINE_DAYS_S),
    }  # fmt: skip
    assert not repair(store, before), "nor twice"


def test_row_that_keeps_changing_ends_in_an_error_and_the_minute_is_judged_again(store: Store) -> None:
    book(store, M, plays(5))
    client = WatchedClient(store.client)
    amounts: Iterator[int] = iter(range(1, 100))

    def change(*_: object) -> None:
        key = rows.row_key("plays", "v")
        item = key | {"counter": {"S": "plays"}, "target": {"S": "v"}, "drift": {"N": str(next(amounts))}}
        store.client.put_item(TableName=store.settings.ledger_table, Item=item | {"upto": {"N": "1"}})

    client.before = change
    with pytest.raises(StoreBusyError):
        run(through(store, client), M)
    assert watermark.last_judged_minute(store) == M - 1
    run(store, M)
    assert drifts(store) == {"v": judge.TRIES_MAX + 5}


# Many tallies, and little time


def test_rows_that_go_alone_are_written_side_by_side(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, 60,000 rows would take the time of many sweeps."""
    monkeypatch.setattr(judge, "TOGETHER_MIN", WRITER_THREADS + 1)
    together = threading.Barrier(WRITER_THREADS)
    client = WatchedClient(store.client, frozenset({"update_item"}))
    client.before = lambda number, *_: None if number >= WRITER_THREADS else together.wait(10)
    book(store, M, *(plays(1, f"v{number}") for number in range(WRITER_THREADS)))
    assert run(through(store, client), M).changes == WRITER_THREADS


def rows_of(number: int) -> dict[str, int]:
    return {f"v{at}": at + 1 for at in range(number)}


@pytest.mark.parametrize(("number", "names"), [
    (judge.TOGETHER_MIN - 1, ["update_item"] * (judge.TOGETHER_MIN - 1)),
    (judge.TOGETHER_MIN, ["transact_write_items"]),
    (250, ["transact_write_items"] * 3),
])  # fmt: skip
def test_many_rows_are_one_transaction_and_few_go_alone(store: Store, number: int, names: list[str]) -> None:
    client = WatchedClient(store.client)
    book(store, M, *(plays(amount, target) for target, amount in rows_of(number).items()))
    assert run(through(store, client), M) == judge.JudgeRun(minutes=1, changes=number)
    assert [name for name, _ in client.sent] == [*names, "update_item"]  # the last one notes the minute
    assert drifts(store) == rows_of(number)


def test_of_many_rows_one_that_somebody_moves_meanwhile_keeps_what_both_wrote(store: Store) -> None:
    book(store, M, *(plays(amount, target) for target, amount in rows_of(50).items()))
    run(store, M)
    book(store, M + 1, *(plays(1000, target) for target in rows_of(50)))
    client = interrupted_client(store.client, 0, lambda: repair(store, row(store, "v7")))
    assert run(through(store, client), M + 1) == judge.JudgeRun(minutes=1, changes=50)
    assert drifts(store) == {target: amount + 1000 for target, amount in rows_of(50).items()} | {"v7": 1000}


@pytest.mark.parametrize(("times", "names"), [
    (3, ["transact_write_items"] * 4),
    (ATTEMPTS_MAX, ["transact_write_items"] * ATTEMPTS_MAX + ["update_item"] * 50),
])  # fmt: skip
def test_many_rows_wait_while_their_partition_is_throttled_and_then_go_alone(
    store: Store, times: int, names: list[str]
) -> None:
    waits: list[float] = []
    client = WatchedClient(store.client)

    def throttle(number: int, name: str, _: object) -> None:
        if number < times:
            reasons = [{"Code": "ThrottlingError"}] + 49 * [{"Code": "None"}]
            error: Any = {"Error": {"Code": "TransactionCanceledException"}, "CancellationReasons": reasons}
            raise ClientError(error, name)

    client.before = throttle
    book(store, M, *(plays(amount, target) for target, amount in rows_of(50).items()))
    patient = replace(through(store, client), sleep=waits.append, clock=lambda: 0.0)
    assert run(patient, M) == judge.JudgeRun(minutes=1, changes=50)
    assert [name for name, _ in client.sent] == [*names, "update_item"]
    assert len(waits) == min(times, ATTEMPTS_MAX - 1)
    assert drifts(store) == rows_of(50)


def test_judge_that_runs_out_of_time_in_the_middle_of_a_minute_goes_on_there(store: Store) -> None:
    targets = {f"v{number}": number + 1 for number in range(250)}
    book(store, M, *(plays(amount, target) for target, amount in targets.items()))
    book(store, M + 1, plays(7, "v1"))
    client, now = WatchedClient(store.client), [0.0]
    passing = replace(through(store, client), clock=lambda: now[0])

    def pass_time(_: int) -> None:
        now[0] += 1

    client.after = pass_time
    assert run(passing, M + 1, until_s=2) == judge.JudgeRun(minutes=0, changes=200, finished=False)
    assert (len(drifts(store)), watermark.last_judged_minute(store)) == (200, M - 1)
    now[0] = 0
    assert run(passing, M + 1, until_s=1) == judge.JudgeRun(minutes=1, changes=250, finished=False)
    assert (drifts(store), watermark.last_judged_minute(store)) == (targets, M)
    assert run(passing, M + 1) == judge.JudgeRun(minutes=1, changes=1)
    assert drifts(store) == targets | {"v1": 2 + 7}


def test_judge_comes_to_the_end_of_a_minute_however_little_each_run_can_do(store: Store) -> None:
    """Rows that are done are not read again: of many, reading them would take the whole time."""
    book(store, M, *(plays(1, f"v{number}") for number in range(550)))
    client, now = WatchedClient(store.client), [0.0]
    slow = replace(through(store, client), clock=lambda: now[0])

    def pass_time(_: int) -> None:
        now[0] += 1

    client.after = pass_time
    judged = []
    for _ in range(6):
        known = replace(watermark.read(slow), journal_complete_s=60 * (M + 2) + 5)
        judged.append(judge.judge(slow, known, NOW_S, until_s=now[0] + 1).changes)
    assert judged == [100, 100, 100, 100, 100, 50]
    assert (len(drifts(store)), watermark.last_judged_minute(store)) == (550, M)


def test_judge_that_has_no_time_to_begin_again_has_not_finished(store: Store) -> None:
    book(store, M, plays(3))
    run(store, M)
    lost = replace(seen(store, M + 9), item={"resume_minute": {"N": str(M + 3)}})
    assert judge.judge(store, lost, NOW_S, until_s=-1) == judge.JudgeRun(last=M, finished=False)


def test_judge_that_has_time_for_the_last_minute_only_has_finished(store: Store) -> None:
    assert run(store, M, until_s=0) == judge.JudgeRun(minutes=1)
    assert run(store, M + 2, until_s=0) == judge.JudgeRun(minutes=1, finished=False)


# Reading


def test_drifting_tallies_are_listed_a_page_at_a_time_past_any_number_that_do_not(store: Store) -> None:
    targets = {f"v{number}": number % 5 for number in range(60)}
    book(store, M, *(plays(1, target) for target in targets))
    book(store, M + 1, *(plays(amount - 1, target) for target, amount in targets.items() if amount != 1))
    run(store, M + 9)
    call, found, after = Call(store), list[Any](), None
    for _ in range(7):
        body = rows.list_drift(call, 7, after)
        found += body["drift"]
        after = keys.tally_digest("plays", found[-1]["id"])
    assert body["cursor"] is None
    assert {one["id"]: one["drift"] for one in found} == {
        target: amount for target, amount in targets.items() if amount
    }
    assert len(found) == 48
    assert {one["confirmed"] for one in found} == {True}
    for behind_all in ("z", "g ", "~"):  # what a caller may send
        assert rows.list_drift(call, 7, behind_all) == {"drift": [], "cursor": None}
