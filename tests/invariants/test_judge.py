"""The judge judges each closed minute once, though judges die, sleep, overlap and run out of time."""

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
NINE_DAYS_S = 9 * DAY_S  # how long segments, and rows at zero, are kept
FOREVER = float("inf")


@pytest.fixture(autouse=True)
def _mark_minutes_before_m_judged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "BUCKETS", 2)  # the judge reads fewer partitions; test_segments uses all buckets
    StreamWorld(store, store.client).mark_judged(M - 1)


def drift_entry(drift: int, target: str = "v", expected: int = 0) -> JournalEntry:
    """Returns an entry of `plays` whose observed amount exceeds the expected amount by `drift`."""
    return JournalEntry("plays", target, "", expected, expected + drift)


def watermark_of(store: Store, closed: int) -> Watermark:
    """Returns a watermark by which the minutes up to `closed` are closed."""
    # The end of the minute `closed`, a minute for late commits, and the 5 s by which clocks may differ.
    return Watermark(watermark.read(store).judged, 60 * (closed + 2) + 5)


def run(store: Store, closed: int, now_s: float = NOW_S, until_s: float = FOREVER) -> judge.JudgeRun:
    """Run the judge. Returns the result without the last minute, segments and bytes."""
    judged = judge.judge(store, watermark_of(store, closed), now_s, until_s=until_s)
    assert judged.last == watermark.read(store).judged
    return replace(judged, last=-1, segments=0, bytes=0)


def row(store: Store, target: str = "v", counter: str = "plays") -> DriftRow | None:
    """Returns the drift row of a tally, with empty `changes`; None if no row is stored."""
    stored_row = rows.read_row(store, counter, target)
    return stored_row._replace(changes=()) if stored_row.last_minute >= 0 else None


def drifts(store: Store) -> dict[str, int]:
    return {drift.target: drift.drift for drift in rows.all_rows(store)}


def with_client(store: Store, client: WatchedClient) -> Store:
    return replace(store, client=client)  # type: ignore[arg-type]


# The drift of a minute


def test_a_minute_is_summed_up_over_its_segments_and_a_tally_without_drift_has_no_row(store: Store) -> None:
    book(store, M, drift_entry(3), drift_entry(0, "right", 7), JournalEntry("likes", "v", "", 4, 1))
    book(store, M, drift_entry(-1), drift_entry(-2, "halves"), name="s#2")
    book(store, M, drift_entry(5), drift_entry(2, "halves"), bucket=1)
    book(store, M + 1, drift_entry(100))
    assert run(store, M) == judge.JudgeRun(minutes=1, changes=2)
    # The drift, the last minute that the row has, and the second from which the tally drifts.
    assert row(store) == DriftRow("plays", "v", 3 - 1 + 5, M, 60 * M)
    assert row(store, counter="likes") == DriftRow("likes", "v", -3, M, 60 * M)
    assert len(list(rows.all_rows(store))) == 2
    assert watermark.read(store).judged == M


@pytest.mark.parametrize(
    "without_closed_minute",
    [Watermark(), Watermark(-1, 60 * 6), Watermark(M - 1), Watermark(M - 1, 60 * (M + 2) + 4)],
    ids=["no watermark", "before the first judgement", "no complete journal", "complete up to a second too early"],
)
def test_a_watermark_without_a_closed_minute_judges_nothing(store: Store, without_closed_minute: Watermark) -> None:
    book(store, M, drift_entry(3))
    book(store, 0, drift_entry(3))
    judged = judge.judge(store, without_closed_minute, NOW_S, until_s=FOREVER)
    assert judged == judge.JudgeRun(last=without_closed_minute.judged)
    assert (drifts(store), watermark.read(store).judged) == ({}, M - 1)


# The halves of an unlike: the like item is deleted (expected), and the tally falls (observed). Halves of different
# unlikes have different pair names, except if the like was put by hand: then all its removals have one pair name.
ITEM_DELETED, TALLY_FELL = (
    JournalEntry("likes", "p", "0123456789ab", -1, 0),
    JournalEntry("likes", "p", "0123456789ab", 0, -1),
)


def test_one_half_of_an_unlike_without_the_other_half_is_drift(store: Store) -> None:
    book(store, M, ITEM_DELETED, ITEM_DELETED._replace(pair="x", id="q"))
    book(store, M, ITEM_DELETED._replace(pair="x", counter="other", observed=5), name="s#2")
    book(store, M + 1, TALLY_FELL._replace(pair="another"))
    assert run(store, M + 1).changes == 4  # a row of each of three tallies in minute M, and one row in minute M + 1
    # The halves of `p` are of two unlikes: drift of 1 in minute M, and of -1 in the next minute.
    assert (row(store, "p", "likes"), row(store, "q", "likes")) == (
        DriftRow("likes", "p", 0, M + 1, 0),
        DriftRow("likes", "q", 1, M, 60 * M),
    )
    assert row(store, "p", "other") == DriftRow("other", "p", 6, M, 60 * M)


@pytest.mark.parametrize(
    ("halves", "drift"),
    [
        # In each minute, somebody deletes the like manually, and the user likes again, which causes no drift.
        ({0: [ITEM_DELETED], 1: [ITEM_DELETED], 2: [ITEM_DELETED]}, [1, 2, 3, 3]),
        ({0: [ITEM_DELETED], 1: [ITEM_DELETED], 2: [ITEM_DELETED], 3: [ITEM_DELETED]}, [1, 2, 3, 4]),
        # The halves of an unlike are in two minutes, and somebody deletes the like manually after or before the unlike.
        ({0: [ITEM_DELETED], 1: [TALLY_FELL], 2: [ITEM_DELETED]}, [0, 0, 1, 1]),
        ({0: [ITEM_DELETED], 1: [ITEM_DELETED], 2: [TALLY_FELL]}, [1, 1, 1, 1]),
        ({0: [ITEM_DELETED], 1: [ITEM_DELETED, TALLY_FELL], 2: [ITEM_DELETED]}, [1, 1, 2, 2]),
        ({0: [ITEM_DELETED], 1: [TALLY_FELL], 2: [ITEM_DELETED], 3: [TALLY_FELL]}, [0, 0, 0, 0]),
        ({0: [TALLY_FELL], 1: [ITEM_DELETED, ITEM_DELETED]}, [0, 1, 1, 1]),
        ({0: [ITEM_DELETED, TALLY_FELL]}, [0, 0, 0, 0]),
        ({1: [TALLY_FELL], 2: [ITEM_DELETED]}, [0, 0, 0, 0]),
        # The halves are too far apart, so there is drift for some minutes.
        ({0: [ITEM_DELETED], 2: [TALLY_FELL]}, [1, 1, 0, 0]),
    ],
)
@pytest.mark.parametrize("runs", [1, 5], ids=["in one run", "a run for each minute"])
def test_each_half_counts_once_in_every_order_of_halves(
    store: Store, halves: dict[int, list[JournalEntry]], drift: list[int], runs: int
) -> None:
    """A half cancels out an opposite half of its own, the last or the next minute. `halves`: by minute, all with one
    pair name. `drift`: the drift after each judged minute."""
    for minute, entries in halves.items():
        for number, entry in enumerate(entries):
            book(store, M + minute, entry, name=f"s#{number}")
    for last in range(5)[-runs:]:  # all five minutes in one run, or one after the other
        run(store, M + last)
        if runs > 1 and last < 4:
            assert drifts(store).get("p", 0) == drift[last]
    assert drifts(store).get("p", 0) == drift[-1]


# Rows


def stored_attributes(store: Store) -> dict[str, str]:
    """Returns the stored attributes of the row of the tally `v`."""
    item = queries.get(store.client, store.settings.ledger_table, rows.row_key("plays", "v"))
    return {name: next(iter(value.values())) for name, value in item.items() if name not in ("PK", "SK")}


def test_a_row_has_the_time_of_its_first_drift_and_a_row_at_zero_expires_with_the_segments(store: Store) -> None:
    steps = [
        (5, {"drift": "5", "since": str(60 * M), "changes": f"[[{M}, 5]]"}),
        (-7, {"drift": "-2", "since": str(60 * M), "changes": f"[[{M}, 5], [{M + 1}, -7]]"}),
        (2, {"drift": "0", "expiration": str(int(NOW_S) + NINE_DAYS_S)}),
        (4, {"drift": "4", "since": str(60 * (M + 3)), "changes": f"[[{M + 3}, 4]]"}),
    ]
    for number, (amount, attributes) in enumerate(steps):
        book(store, M + number, drift_entry(amount))
        run(store, M + number)
        assert stored_attributes(store) == {"counter": "plays", "target": "v", "upto": str(M + number)} | attributes


def test_since_of_a_row_depends_on_the_length_of_a_minute(store: Store) -> None:
    with_short_minutes = replace(store, settings=store.settings._replace(minute_s=5))
    book(store, M, drift_entry(5))
    judge.judge(with_short_minutes, Watermark(M - 1, 5 * (M + 2) + 1), NOW_S, until_s=FOREVER)
    assert row(store) == DriftRow("plays", "v", 5, M, 5 * M)


@pytest.mark.parametrize(
    ("amounts", "confirmed"),
    [
        ({0: 3, 2: 1, 4: 1, 6: 1}, 3),  # only the drift from before the last five minutes is confirmed
        (dict.fromkeys(range(9), 1), 4),  # the last five minutes have added 5
        ({0: -2, 5: 1}, -1),  # the value nearest to 0
        ({0: 2, 4: -2, 5: 2}, 0),  # the drift was 0 in minute 4
        ({0: 2, 5: -3}, 0),  # the values lie on both sides of 0
        ({0: 5, 3: 1, 5: -1}, 5),  # 5 is drift; the two halves of a change are booked in minutes 3 and 5
        ({3: 1, 5: 4}, 0),  # the drift has stood for three minutes
    ],
)
def test_drift_that_has_stood_for_five_judged_minutes_is_confirmed_even_if_it_changes(
    store: Store, amounts: dict[int, int], confirmed: int
) -> None:
    last = max(amounts)
    for minute, amount in amounts.items():
        book(store, M + minute, drift_entry(amount))
    run(store, M + last)
    stored_row = rows.read_row(store, "plays", "v")
    assert stored_row.confirmed_amount(watermark.read(store)) == confirmed
    assert all(minute > M + last - watermark.CONFIRM_AFTER for minute, _ in stored_row.changes)
    run(store, M + last + watermark.CONFIRM_AFTER)
    assert stored_row.confirmed_amount(watermark.read(store)) == stored_row.drift == sum(amounts.values())


# Other processes


def book_drift(store: Store, minutes: int = 3, targets: int = 3) -> dict[str, int]:
    """Book drift of some tallies in some minutes. Returns the final drift of each tally."""
    total = {f"v{target}": 0 for target in range(targets)}
    for minute in range(minutes):
        amounts = {f"v{target}": 10**minute * (target + 1) for target in range(targets) if target != minute}
        book(store, M + minute, *(drift_entry(amount, target) for target, amount in amounts.items()))
        for target, amount in amounts.items():
            total[target] += amount
    return total


WRITES_OF_A_RUN = 2 * 3 + 3  # in each of three minutes, two rows and the watermark


@pytest.mark.parametrize("committed", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("write_number", range(WRITES_OF_A_RUN))
def test_a_judge_continues_the_work_of_a_judge_that_was_killed_at_any_write(
    store: Store, write_number: int, committed: bool
) -> None:
    expected = book_drift(store)
    with pytest.raises(Crash):
        run(with_client(store, client_that_dies(store.client, write_number, committed=committed)), M + 2)
    run(store, M + 2)
    assert (drifts(store), watermark.read(store).judged) == (expected, M + 2)


@pytest.mark.parametrize("write_number", range(WRITES_OF_A_RUN - 3))  # without the writes of the third minute
def test_a_judge_that_sleeps_while_another_judge_runs_changes_nothing(store: Store, write_number: int) -> None:
    expected = book_drift(store)
    sleeping = with_client(store, interrupted_client(store.client, write_number, lambda: run(store, M + 2)))
    judge.judge(sleeping, watermark_of(store, M + 1), NOW_S, until_s=FOREVER)
    assert (drifts(store), watermark.read(store).judged) == (expected, M + 2)


def test_a_row_at_zero_stops_a_late_judge_from_storing_the_drift_once_more(store: Store) -> None:
    book(store, M, drift_entry(5))
    book(store, M + 1, drift_entry(-5))
    old_watermark = watermark_of(store, M)
    run(store, M + 1)
    judge.judge(store, old_watermark, NOW_S, until_s=FOREVER)  # as a judge that read the watermark before this run
    assert (drifts(store), watermark.read(store).judged) == ({}, M + 1)


@pytest.mark.parametrize("days", [1, 3, 8])
def test_a_row_at_zero_is_kept_for_a_judge_that_continues_days_later(store: Store, days: int) -> None:
    book(store, M, drift_entry(5), now_s=NOW_S)
    run(store, M)
    book(store, M + 1, drift_entry(-5), now_s=NOW_S)
    with pytest.raises(Crash):
        run(with_client(store, client_that_dies(store.client, 0, committed=True)), M + 1)
    ConsumerWorld(store, store.client).delete_expired(NOW_S + days * DAY_S)
    run(store, M + 1, NOW_S + days * DAY_S)
    assert (drifts(store), watermark.read(store).judged) == ({}, M + 1)


def repair(store: Store, seen_row: DriftRow | None) -> bool:
    """Set the drift of a row to 0. Returns False if the stored row differs from `seen_row`."""
    assert seen_row
    return try_commit(store, [rows.drift_write(store, seen_row, 0, NOW_S)])


def test_a_judge_does_not_undo_a_repair_between_its_read_and_its_write(store: Store) -> None:
    book(store, M, drift_entry(5))
    run(store, M)
    book(store, M + 1, drift_entry(2))
    run(with_client(store, interrupted_client(store.client, 0, lambda: repair(store, row(store)))), M + 1)
    assert row(store) == DriftRow("plays", "v", 2, M + 1, 60 * (M + 1))


def test_a_repair_fails_after_the_judge_has_changed_the_row_though_the_drift_is_the_same(store: Store) -> None:
    book(store, M, drift_entry(5))
    run(store, M)
    row_before = row(store)
    for minute, amount in ((1, 2), (2, -2)):
        book(store, M + minute, drift_entry(amount))
        run(store, M + minute)
    assert not repair(store, row_before)
    assert repair(store, row(store))
    assert stored_attributes(store) == {
        "counter": "plays", "target": "v", "upto": str(M + 2), "drift": "0",
        "expiration": str(int(NOW_S) + NINE_DAYS_S),
    }  # fmt: skip
    assert not repair(store, row_before), "a second repair fails, too"


def test_a_row_that_changes_before_each_try_is_an_error_and_a_later_run_judges_the_minute(store: Store) -> None:
    book(store, M, drift_entry(5))
    client = WatchedClient(store.client)
    amounts: Iterator[int] = iter(range(1, 100))

    def change(*_: object) -> None:
        key = rows.row_key("plays", "v")
        item = key | {"counter": {"S": "plays"}, "target": {"S": "v"}, "drift": {"N": str(next(amounts))}}
        store.client.put_item(TableName=store.settings.ledger_table, Item=item | {"upto": {"N": "1"}})

    client.before = change
    with pytest.raises(StoreBusyError):
        run(with_client(store, client), M)
    assert watermark.read(store).judged == M - 1
    run(store, M)
    assert drifts(store) == {"v": judge.TRIES_MAX + 5}  # the drift at the last try, and the 5 of the segment


# Many tallies, and little time


def test_rows_outside_a_transaction_are_written_by_threads_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written one after the other, 60,000 rows would take the time of many sweeps."""
    monkeypatch.setattr(judge, "TRANSACTION_ROWS_MIN", WRITER_THREADS + 1)  # so these rows need no transaction
    barrier = threading.Barrier(WRITER_THREADS)  # each write waits for the others, so one thread would wait in vain
    client = WatchedClient(store.client, frozenset({"update_item"}))
    client.before = lambda number, *_: None if number >= WRITER_THREADS else barrier.wait(10)
    book(store, M, *(drift_entry(1, f"v{number}") for number in range(WRITER_THREADS)))
    assert run(with_client(store, client), M).changes == WRITER_THREADS


def drift_of_targets(number: int) -> dict[str, int]:
    """Returns a different drift for each of `number` targets."""
    return {f"v{index}": index + 1 for index in range(number)}


@pytest.mark.parametrize(("number", "operations"), [
    (judge.TRANSACTION_ROWS_MIN - 1, ["update_item"] * (judge.TRANSACTION_ROWS_MIN - 1)),
    (judge.TRANSACTION_ROWS_MIN, ["transact_write_items"]),
    (250, ["transact_write_items"] * 3),
])  # fmt: skip
def test_many_rows_are_written_in_transactions_and_few_rows_one_by_one(
    store: Store, number: int, operations: list[str]
) -> None:
    client = WatchedClient(store.client)
    book(store, M, *(drift_entry(amount, target) for target, amount in drift_of_targets(number).items()))
    assert run(with_client(store, client), M) == judge.JudgeRun(minutes=1, changes=number)
    assert [name for name, _ in client.calls] == [*operations, "update_item"]  # the last write stores the minute
    assert drifts(store) == drift_of_targets(number)


def test_a_row_that_a_repair_changes_during_a_transaction_of_many_rows_keeps_both_changes(store: Store) -> None:
    book(store, M, *(drift_entry(amount, target) for target, amount in drift_of_targets(50).items()))
    run(store, M)
    book(store, M + 1, *(drift_entry(1000, target) for target in drift_of_targets(50)))
    client = interrupted_client(store.client, 0, lambda: repair(store, row(store, "v7")))
    assert run(with_client(store, client), M + 1) == judge.JudgeRun(minutes=1, changes=50)
    assert drifts(store) == {target: amount + 1000 for target, amount in drift_of_targets(50).items()} | {"v7": 1000}


@pytest.mark.parametrize(("times", "operations"), [
    (3, ["transact_write_items"] * 4),
    (ATTEMPTS_MAX, ["transact_write_items"] * ATTEMPTS_MAX + ["update_item"] * 50),
])  # fmt: skip
def test_many_rows_are_retried_while_their_partition_is_throttled_and_then_written_one_by_one(
    store: Store, times: int, operations: list[str]
) -> None:
    waits: list[float] = []
    client = WatchedClient(store.client)

    def throttle(number: int, name: str, _: object) -> None:
        if number < times:
            reasons = [{"Code": "ThrottlingError"}] + 49 * [{"Code": "None"}]
            error: Any = {"Error": {"Code": "TransactionCanceledException"}, "CancellationReasons": reasons}
            raise ClientError(error, name)

    client.before = throttle
    book(store, M, *(drift_entry(amount, target) for target, amount in drift_of_targets(50).items()))
    untimed = replace(with_client(store, client), sleep=waits.append, clock=lambda: 0.0)
    assert run(untimed, M) == judge.JudgeRun(minutes=1, changes=50)
    assert [name for name, _ in client.calls] == [*operations, "update_item"]
    assert len(waits) == min(times, ATTEMPTS_MAX - 1)
    assert drifts(store) == drift_of_targets(50)


def test_the_next_run_continues_a_minute_in_which_the_judge_ran_out_of_time(store: Store) -> None:
    targets = {f"v{number}": number + 1 for number in range(250)}
    book(store, M, *(drift_entry(amount, target) for target, amount in targets.items()))
    book(store, M + 1, drift_entry(7, "v1"))
    client, now_s = WatchedClient(store.client), [0.0]
    timed = replace(with_client(store, client), clock=lambda: now_s[0])

    def pass_time(_: int) -> None:
        now_s[0] += 1

    client.after = pass_time
    assert run(timed, M + 1, until_s=2) == judge.JudgeRun(minutes=0, changes=200, finished=False)
    assert (len(drifts(store)), watermark.read(store).judged) == (200, M - 1)
    now_s[0] = 0
    # `watermark_of` forgets where the last run stopped. So this run also reads the 200 rows of that run (`changes`
    # includes these rows), and writes only the other 50.
    assert run(timed, M + 1, until_s=1) == judge.JudgeRun(minutes=1, changes=250, finished=False)
    assert (drifts(store), watermark.read(store).judged) == (targets, M)
    assert run(timed, M + 1) == judge.JudgeRun(minutes=1, changes=1)
    assert drifts(store) == targets | {"v1": 2 + 7}


def test_short_runs_of_the_judge_finish_a_minute_with_many_rows(store: Store) -> None:
    """A run does not read the rows of earlier runs, because the reads could take the whole time."""
    book(store, M, *(drift_entry(1, f"v{number}") for number in range(550)))
    client, now_s = WatchedClient(store.client), [0.0]
    slow = replace(with_client(store, client), clock=lambda: now_s[0])

    def pass_time(_: int) -> None:
        now_s[0] += 1

    client.after = pass_time
    changed_rows = []
    for _ in range(6):
        watermark_ = replace(watermark.read(slow), journal_complete_s=60 * (M + 2) + 5)
        changed_rows.append(judge.judge(slow, watermark_, NOW_S, until_s=now_s[0] + 1).changes)
    assert changed_rows == [100, 100, 100, 100, 100, 50]
    assert (len(drifts(store)), watermark.read(store).judged) == (550, M)


def test_a_judge_without_time_to_skip_to_the_resume_minute_has_not_finished(store: Store) -> None:
    book(store, M, drift_entry(3))
    run(store, M)
    with_loss = replace(watermark_of(store, M + 9), item={"resume_minute": {"N": str(M + 3)}})
    assert judge.judge(store, with_loss, NOW_S, until_s=-1) == judge.JudgeRun(last=M, finished=False)


def test_a_judge_has_finished_if_it_had_time_for_the_last_closed_minute(store: Store) -> None:
    """In minutes without drift, a run without time judges one minute."""
    assert run(store, M, until_s=0) == judge.JudgeRun(minutes=1)
    assert run(store, M + 2, until_s=0) == judge.JudgeRun(minutes=1, finished=False)


# Lists of drift


def test_pages_of_drift_list_every_tally_that_drifts_and_no_other(store: Store) -> None:
    targets = {f"v{number}": number % 5 for number in range(60)}
    book(store, M, *(drift_entry(1, target) for target in targets))
    book(store, M + 1, *(drift_entry(amount - 1, target) for target, amount in targets.items() if amount != 1))
    run(store, M + 9)  # so late that all drift is confirmed
    call, listed_rows, cursor = Call(store), list[Any](), None
    for _ in range(7):
        body = rows.list_drift(call, 7, cursor)
        listed_rows += body["drift"]
        cursor = keys.tally_digest("plays", listed_rows[-1]["id"])  # pages are in the order of these digests
    assert body["cursor"] is None
    assert {row["id"]: row["drift"] for row in listed_rows} == {id_: drift for id_, drift in targets.items() if drift}
    assert len(listed_rows) == 60 * 4 // 5, "each once"
    assert {row["confirmed"] for row in listed_rows} == {True}
    for cursor_after_all_rows in ("z", "g ", "~"):  # a caller may send any cursor
        assert rows.list_drift(call, 7, cursor_after_all_rows) == {"drift": [], "cursor": None}
