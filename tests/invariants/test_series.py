"""Series and top lists: each hour has exactly its accepted changes, however often the sweep that sums them up dies.

Every PART_MINUTES a sweep writes the sums of the present hour as *running segments*. At the end of the hour it writes
them into an item of the day. A *segment* without this word is a segment of the journal.
`test_journal_schedules` compares the series of whole deployments under faults with the accepted changes.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections import Counter as Sums
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.instruments import Meter
from counters import CALLS
from tally.builtin import PLAYS
from tally.counter import Counter
from tally.drift import history
from tally.dynamo.client import WRITER_THREADS, Call, Store
from tally.dynamo.keys import DEAD_LETTER_KEY, key
from tally.dynamo.transactions import try_commit
from tally.errors import InvalidInputError, NotFoundError, StoreBusyError
from tally.series import hours, progress, read, top
from tally.series.read import DAY, HOUR, SeriesRange, range_of
from tally.streams import fold as streams_fold
from tally.streams.lineage import CLOCK_SKEW
from tally.streams.loss import Loss
from tally.streams.segments import JournalEntry
from tests.invariants.processes import Crash, WatchedClient, client_that_dies
from tests.invariants.stream_records import book
from tests.invariants.streaming import ConsumerWorld
from tests.tiers import marked_long

H = 500_000  # the number of an hour, counted from 1970
M = 4 * H  # the first minute of this hour. Here an hour has four minutes, so that the tests read less
MINUTE_S = 900  # the seconds of such a minute
FOREVER = float("inf")
TWO_DAYS = SeriesRange(HOUR, H - 24, H + 24)


@pytest.fixture
def store(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(hours, "PART_MINUTES", 1)
    monkeypatch.setattr(hours, "LOOKBACK_MINUTES", 4)
    monkeypatch.setattr(streams_fold, "BUCKETS", 1)  # fewer partitions to read; test_segments reads them all
    return replace(store, settings=store.settings._replace(minute_s=MINUTE_S))


def plays(amount: int, video: str = "v", day: int = -1) -> JournalEntry:
    """Returns the entry of accepted plays. `day`: the day since 1970 to which imports belong; -1: not imported."""
    return JournalEntry("plays", video, "", amount, amount, day)


def sum_up(store: Store, last_judged: int) -> int:
    """Sums up the judged minutes, as a sweep does after the judge."""
    return hours.sum_up(store, last_judged, until_s=FOREVER)


def series(store: Store, video: str = "v", range_: SeriesRange = TWO_DAYS, counter: Counter = PLAYS) -> dict[int, int]:
    """Returns the values that are not 0, by hour, or by the hour in which a day begins."""
    answer = read.read_series(Call(store), counter, video, range_)
    return {point["from"] // 3600: point["value"] for point in answer["series"] if point["value"]}


def test_series_begin_with_the_first_sweep_however_late_the_judge_begins(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: M * MINUTE_S + 1)
    assert (sum_up(store, -1), progress.read(store).since) == (0, M + 1 - hours.LOOKBACK_MINUTES)  # -1: no minute
    answer = read.read_series(Call(store), PLAYS, "v", TWO_DAYS)
    assert (answer["series"], answer["since"], answer["as_of"]) == ([], None, None)
    book(store, M - 1, plays(2))  # before the first sweep, within LOOKBACK_MINUTES
    book(store, M + 1, plays(3))
    sum_up(store, M + 40)  # ten hours later
    assert sum(series(store).values()) == 5


def test_amounts_above_2_to_the_53_are_exact_in_segments_series_and_lists(store: Store) -> None:
    """Segments are JSON. Python reads each whole number of JSON exactly."""
    large = 2**53 + 1
    sum_up(store, M - 1)
    for minute, amount in enumerate((10**15, large, -(10**30), 10**30 + 1)):
        book(store, M + minute, plays(amount), plays(-large, "w"))
        sum_up(store, M + minute)
    v, w = 10**15 + large + 1, -4 * large  # the last two amounts of v add up to 1
    assert (series(store), series(store, "w"), series(store, hours.TOTAL_ID)) == ({H: v}, {H: w}, {H: v + w})
    assert newest_list(store) == {"v": v}  # a list has no id that fell


def test_series_that_are_kept_for_some_days_expire_and_since_is_the_first_day_that_is_kept(store: Store) -> None:
    two_day_store = replace(store, settings=store.settings._replace(series_days=2))
    sum_up(two_day_store, M - 1)
    book(two_day_store, M, plays(5))
    sum_up(two_day_store, M + 3)
    assert {item["expiration"]["N"] for item in whole_days(two_day_store)} == {
        str((H // 24 + 2 + hours.EXPIRY_GRACE_DAYS) * hours.DAY_S)
    }
    sum_up(two_day_store, M + 4 * 24 * 3)  # three days later
    without_setting = Call(store)  # a command does not know `series_days`
    answer = read.read_series(without_setting, PLAYS, "v", TWO_DAYS._replace(end=H + 24 * 4))
    first_hour = (H // 24 + 1) * 24  # the day of H is three days old, so the next day is the first that is kept
    assert answer["since"] == 3600 * first_hour
    assert answer["series"][0] == {"from": 3600 * first_hour, "value": 0}


@pytest.mark.parametrize("days_without_sweeps", [1, 3, 8])
def test_an_hour_is_complete_though_no_sweep_ran_for_days_after_its_first_half(
    store: Store, monkeypatch: pytest.MonkeyPatch, days_without_sweeps: int
) -> None:
    """Running segments have the sums of the first half. Running segments expire no earlier than the journal's segments,
    which have the second half."""
    now_s = [float(M * MINUTE_S)]
    monkeypatch.setattr(time, "time", lambda: now_s[0])
    sum_up(store, M - 1)
    for minute in range(4):
        now_s[0] += MINUTE_S
        book(store, M + minute, plays(5 + minute), now_s=now_s[0])
        sum_up(store, min(M + minute, M + 1))
    now_s[0] += days_without_sweeps * hours.DAY_S
    ConsumerWorld(store, store.client).delete_expired(now_s[0])
    sum_up(store, M + 3)
    assert (series(store), newest_list(store)) == ({H: 5 + 6 + 7 + 8}, {"v": 26})


# From the seventh day without sweeps on, the items of one more day expire each day.
@pytest.mark.parametrize(("days_without_sweeps", "expired_days"), [(1, 0), (6, 0), (7, 1), (40, 34)])
def test_days_that_expire_while_no_sweep_runs_are_not_shown_as_zeros(
    store: Store, monkeypatch: pytest.MonkeyPatch, days_without_sweeps: int, expired_days: int
) -> None:
    """A day is shown for `series_days`, and its items expire EXPIRY_GRACE_DAYS (7) later."""
    first_day, midnight_h = H // 24 + 1, 24 * (H // 24 + 1)
    two_day_store = replace(store, settings=store.settings._replace(series_days=2))
    sum_up(two_day_store, 4 * midnight_h - 1)  # an hour has four minutes
    for day in range(3):
        book(two_day_store, 4 * (midnight_h + 24 * day), plays(5))
    sum_up(two_day_store, 4 * (midnight_h + 24 * 3) - 1)
    now_s = float((first_day + 3) * hours.DAY_S + days_without_sweeps * hours.DAY_S)
    monkeypatch.setattr(time, "time", lambda: now_s)
    ConsumerWorld(store, store.client).delete_expired(now_s)
    answer = read.read_series(Call(store), PLAYS, "v", SeriesRange(DAY, midnight_h, midnight_h + 24 * 3))
    shown_days = {point["from"] // hours.DAY_S - first_day: point["value"] for point in answer["series"]}
    assert shown_days == dict.fromkeys(range(1 + expired_days, 3), 5)  # `series_days` shows two of the three days
    assert answer["since"] == hours.DAY_S * (first_day + 1 + expired_days)


@pytest.mark.parametrize("longer_days", [400, 0], ids=["longer", "for ever"])
def test_expired_days_are_not_shown_as_zeros_after_series_days_is_raised(store: Store, longer_days: int) -> None:
    """Each day gets its TTL when the day is written, so more `series_days` keep only later days for longer."""

    def with_series_days(series_days: int) -> Store:
        return replace(store, settings=store.settings._replace(series_days=series_days))

    def since(series_days: int, day: int) -> int:
        """Returns the first day that is shown after two sweeps in the second hour of `day`. A sweep computes `since` by
        the hour that was stored before it, so two sweeps are needed. Both days count from `first_day`."""
        hour = 24 * (first_day + day) + 1
        for _ in range(2):
            present = progress.read(store)
            later = replace(present, through=4 * hour - 1, hour=hour)
            hours._store_progress(with_series_days(series_days), present, later)
        return int(read.read_series(Call(store), PLAYS, "v", TWO_DAYS)["since"]) // hours.DAY_S - first_day

    first_day = H // 24
    sum_up(with_series_days(30), 4 * 24 * first_day + 3)
    # Days before day 33 are written with 30 `series_days`, and shown for 30 days. From day 33 on, days are kept longer.
    assert [since(30, day) for day in (1, 30, 32)] == [0, 0, 2]
    assert [since(longer_days, day) for day in (33, 40, 60)] == [3, 10, 30]
    assert since(longer_days, 80) == 33, "the first whole day that was written to stay"
    assert since(longer_days, 300) == 33
    assert since(5, 301) == 33, "fewer `series_days`, too, hold only for days that are written later"
    assert since(5, 310) == 305
    assert since(longer_days, 311) == 306, "`since` never moves back"


def test_a_list_that_expired_or_is_older_than_the_series_is_not_found(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert top.top_list(Call(store), PLAYS, HOUR, None, 10)["top"] == []
    sum_up(store, M - 1)
    book(store, M, plays(5))
    sum_up(store, M + 3)
    now_s = [3600.0 * (H + 1)]
    monkeypatch.setattr(time, "time", lambda: now_s[0])
    hour, first_hour = top.span_of(H), top.span_of(H - 1)  # series begin LOOKBACK_MINUTES before the first sweep

    def values_at(by: str, span: str) -> list[int]:
        return [entry["value"] for entry in top.top_list(Call(store), PLAYS, by, span, 10)["top"]]

    assert (values_at(HOUR, hour), values_at(HOUR, first_hour)) == ([5], [])
    for by, span in ((HOUR, top.span_of(H - 2)), (DAY, top.span_of(H - 24)[:10]), ("month", "2020-01")):
        with pytest.raises(NotFoundError):
            values_at(by, span)
    now_s[0] += top.HOURS_KEPT_S - 1
    assert values_at(HOUR, hour) == [5]
    now_s[0] += 1
    with pytest.raises(NotFoundError, match=f"begin with {top.span_of(H + 1)}"):
        values_at(HOUR, hour)
    assert values_at(DAY, hour[:10]) == [5]


def test_the_series_have_complete_hours_and_the_current_hour_up_to_its_last_complete_part(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read.read_series(Call(store), PLAYS, "v", TWO_DAYS)["as_of"] is None
    monkeypatch.setattr(hours, "PART_MINUTES", 2)
    sum_up(store, M - 1)
    for minute in range(4):
        book(store, M + minute, plays(1))
    sum_up(store, M)
    assert series(store) == {}
    sum_up(store, M + 1)
    assert series(store) == {H: 2}
    assert newest_list(store) == {"v": 2}
    answer = read.read_series(Call(store), PLAYS, "v", TWO_DAYS)
    assert answer["as_of"] == MINUTE_S * (M + 1)  # not M + 2: a change of minute M + 1 may be booked on M + 2
    sum_up(store, M + 2)
    assert series(store) == {H: 2}
    assert whole_days(store) == []
    sum_up(store, M + 3)
    assert series(store) == {H: 4}
    assert newest_list(store) == {"v": 4}
    assert len(whole_days(store)) == 2  # the video, and the total of all videos
    book(store, M + 4, plays(7))
    sum_up(store, M + 5)
    assert series(store) == {H: 4, H + 1: 7}
    assert (newest_list(store), newest_list(store, "day")) == ({"v": 7}, {"v": 11})
    assert series(store, "other") == {}


def newest_list(store: Store, by: str = "hour") -> dict[str, int]:
    """Returns the values of the newest top list by id. `by`: the span of the list."""
    return {entry["id"]: entry["value"] for entry in top.top_list(Call(store), PLAYS, by, None, 100)["top"]}


def test_a_list_drops_ids_that_fell_to_0_and_a_slow_sweep_does_not_overwrite_the_list(store: Store) -> None:
    sum_up(store, M - 1)
    book(store, M, plays(3), plays(5, "w"))
    sum_up(store, M)
    assert newest_list(store) == newest_list(store, "day") == {"w": 5, "v": 3}
    old_list = top.TopListBuilder()
    old_list.add("plays", "v", 3)
    book(store, M + 1, plays(-3), plays(-5, "w"))
    sum_up(store, M + 1)
    assert newest_list(store) == newest_list(store, "day") == {}
    top.write_lists(store, H, M, old_list, ["plays"])  # by a slow sweep, which has read up to M
    assert newest_list(store) == newest_list(store, "day") == {}


def whole_days(store: Store) -> list[dict[str, Any]]:
    """Returns the ledger's items that have a day of a series, or a day of imports."""
    ledger = store.client.scan(TableName=store.settings.ledger_table, ConsistentRead=True)["Items"]
    return [item for item in ledger if item["PK"]["S"].startswith("SERIES#")]


def test_a_dead_letter_of_the_bookkeeper_stops_as_of_until_its_redrive_is_summed_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bookkeeper has two dead letters, and the rollup an earlier one, which stops no series. A redrive books the
    change on the minute of the redrive."""
    table, now_s = store.settings.ledger_table, [float((M + 4) * MINUTE_S)]
    monkeypatch.setattr(time, "time", lambda: now_s[0])

    def marker_key(consumer: str, minute: int) -> dict[str, Any]:
        return key(DEAD_LETTER_KEY, f"{consumer}#{minute * MINUTE_S:010}#receipts#s#1")

    def as_of(judged: int) -> float:
        """Sweeps. Returns `as_of` in minutes, plus CLOCK_SKEW, the minutes by which `as_of` is before a dead letter."""
        sum_up(store, judged)
        return float(read.read_series(Call(store), PLAYS, "v", TWO_DAYS)["as_of"] + CLOCK_SKEW * MINUTE_S) / MINUTE_S

    sum_up(store, M - 1)
    for item in (marker_key("rollup", M), marker_key("bookkeeper", M + 1), marker_key("bookkeeper", M + 3)):
        store.client.put_item(TableName=table, Item=item)
    assert [as_of(M), as_of(M + 4), as_of(M + 5)] == [M + CLOCK_SKEW, M + 1, M + 1]  # no dead letter stops the first: M
    now_s[0] += 2 * MINUTE_S
    store.client.delete_item(TableName=table, Key=marker_key("bookkeeper", M + 1))  # redriven
    # A sweep finds the redrive in M + 6. Its change may be booked on M + 7, so `as_of` stays until M + 7 is summed up.
    assert [as_of(M + 6), as_of(M + 7), as_of(M + 8)] == [M + 1, M + 1, M + 3]
    now_s[0] += 9 * MINUTE_S
    store.client.delete_item(TableName=table, Key=marker_key("bookkeeper", M + 3))  # a sweep finds this in M + 15
    assert [as_of(M + 15), as_of(M + 16), as_of(M + 17)] == [M + 3, M + 3, M + 17 + CLOCK_SKEW]


@pytest.mark.parametrize(
    ("consumer", "days", "hours_before"), [("rollup", 2, None), ("bookkeeper", 2, 0), ("bookkeeper", 8, 2)]
)
def test_a_loss_of_the_bookkeeper_stops_as_of_and_a_loss_of_the_rollup_does_not(
    store: Store, consumer: str, days: int, hours_before: int | None
) -> None:
    """`days`: how long the loss is. `hours_before`: how long before the loss `as_of` stops; None: it does not stop. If
    a loss is longer than a week, the running segments of the hour in which it began may have expired."""
    sum_up(store, M - 1)
    since_s = (M + 2) * MINUTE_S
    loss = Loss("gap", consumer, since_s, since_s + days * hours.DAY_S)
    store.client.put_item(**loss.as_write(store.settings)["Put"])
    sum_up(store, M + 7)
    unaffected_s = (M + 7) * MINUTE_S  # not M + 8: a change of minute M + 7 may be booked on M + 8
    as_of_s = unaffected_s if hours_before is None else since_s - 3600 * hours_before - CLOCK_SKEW * MINUTE_S
    assert read.read_series(Call(store), PLAYS, "v", TWO_DAYS)["as_of"] == as_of_s


def test_series_have_the_halves_of_unlikes_and_entries_from_before_the_judge_began(store: Store) -> None:
    likes = replace(PLAYS, name="likes")
    book(store, M - 1, JournalEntry("likes", "v", "", 5, 5))
    # Of the first unlike, the expected half is booked first, and of the second unlike, the observed half.
    for pair, expected in (("0123456789ab", -1), ("ba9876543210", 0)):
        book(store, M + 1, JournalEntry("likes", "v", pair, expected, -1 - expected), name=pair)
        book(store, M + 2, JournalEntry("likes", "v", pair, -1 - expected, expected), name=pair)
    sum_up(store, M + 2)
    sum_up(store, M + 3)
    assert series(store, counter=likes) == {H - 1: 5, H: -2}


def test_running_segments_are_written_in_parallel_until_the_time_is_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hours, "SEGMENT_BYTES", 1)  # a running segment for each tally
    monkeypatch.setattr(hours, "PART_MINUTES", 4)
    tallies = 3 * WRITER_THREADS - 1  # with the segment of the total, each thread has three segments to write
    sum_up(store, M - 1)
    book(store, M, *(plays(1, f"v{number}") for number in range(tallies)))
    client, now_s = WatchedClient(store.client, frozenset({"put_item"})), [0.0]
    all_writers = threading.Barrier(WRITER_THREADS)

    def wait(*_: object) -> None:
        all_writers.wait(10)
        now_s[0] += 1  # so there is time for the second round of writes, and not for the third

    client.before = wait
    timed = replace(store, client=cast(Any, client), clock=lambda: now_s[0])  # each write takes a second
    with pytest.raises(StoreBusyError, match="no time"):
        hours.sum_up(timed, M + 3, until_s=WRITER_THREADS + 1)
    assert (len(client.calls), progress.read(store).through) == (2 * WRITER_THREADS, M - 1)
    sum_up(store, M + 3)
    assert (series(store, "v1"), series(store, hours.TOTAL_ID)) == ({H: 1}, {H: tallies})


def test_a_sweep_leaves_half_of_its_time_to_write_what_it_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hours, "PART_MINUTES", 4)
    sum_up(store, M - 1)
    for minute in range(4):
        book(store, M + minute, plays(1))
    now_s, add_minute = [0.0], hours._add_minute

    def add_minute_in_a_second(*arguments: Any) -> None:
        now_s[0] += 1
        add_minute(*arguments)

    monkeypatch.setattr(hours, "_add_minute", add_minute_in_a_second)
    hours.sum_up(replace(store, clock=lambda: now_s[0]), M + 3, until_s=4)
    assert progress.read(store).through == M + 2, "two minutes in half of the time, and one in half of the rest"


@pytest.mark.parametrize("seed", [0, *marked_long([1])])
def test_sweeps_that_die_at_random_writes_write_the_right_series_and_lists(
    store: Store, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep dies before or after a write. Parts, segments and lists are small, so that a sweep has many writes."""
    monkeypatch.setattr(top, "UP_MAX", 15)
    monkeypatch.setattr(hours, "SEGMENT_BYTES", 150)
    monkeypatch.setattr(hours, "ROWS_AT_ONCE", 11)
    monkeypatch.setattr(hours, "SUMS_MAX", 23)
    chance, truth = random.Random(seed), defaultdict[int, Sums[str]](Sums)
    imported = defaultdict[str, Sums[int]](Sums)
    sum_up(store, M - 1)
    for minute in range(3 * 4):
        amounts = {f"v{number}": chance.randint(1, 9) for number in range(40) if chance.random() < 0.5}
        truth[H + minute // 4].update(amounts)
        rows = [(f"v{chance.randrange(9)}", OLD_DAY + chance.randrange(3), chance.randint(1, 9)) for _ in range(12)]
        for video, day, amount in rows:
            for id_ in (video, hours.TOTAL_ID):
                imported[id_][day] += amount
        imports_ = (plays(amount, video, day) for video, day, amount in rows)
        book(store, M + minute, *(plays(amount, video) for video, amount in amounts.items()), *imports_)
        for _ in range(4):
            client = client_that_dies(store.client, chance.randrange(20), committed=chance.random() < 0.5)
            with contextlib.suppress(Crash):
                sum_up(replace(store, client=client), M + minute)
    sum_up(store, M + 3 * 4 - 1)
    assert series(store, hours.TOTAL_ID) == {hour: sum(amounts.values()) for hour, amounts in truth.items()}
    for video in {video for amounts in truth.values() for video in amounts}:
        assert series(store, video) == {hour: amounts[video] for hour, amounts in truth.items() if video in amounts}
    assert {video: imports(store, video) for video in imported} == imported
    for hour, amounts in truth.items():
        answer = top.top_list(Call(store), PLAYS, "hour", top.span_of(hour), 100)
        assert answer["error_max"] == 0
        assert [entry["value"] for entry in answer["top"]] == sorted(amounts.values(), reverse=True)[: top.UP_MAX]
        check_bound(answer["top"], 0, amounts)
    for day in {top.span_of(hour)[:10] for hour in truth}:
        hours_of_day = (amounts for hour, amounts in truth.items() if top.span_of(hour).startswith(day))
        answer = top.top_list(Call(store), PLAYS, "day", day, 100)
        check_bound(answer["top"], answer["error_max"], sum(hours_of_day, Sums[str]()))


def check_bound(listed_entries: Sequence[Mapping[str, Any]], error_max: int, truth: Mapping[str, int]) -> None:
    """Asserts that `error_max` bounds the error of each listed value, and of each id that is not listed."""
    for entry in listed_entries:
        assert abs(entry["value"] - truth[entry["id"]]) <= error_max
    missing = [truth[id_] for id_ in truth.keys() - {entry["id"] for entry in listed_entries}]
    assert max(missing, default=0) <= min((entry["value"] for entry in listed_entries), default=0) + error_max


HOURS_OF_DAY = st.lists(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(-9, 9).filter(bool)), max_size=6)
"""For each hour of a day: amounts by id."""


@given(month=st.lists(HOURS_OF_DAY, max_size=3), up=st.integers(1, 4), down=st.integers(1, 3))
def test_the_error_of_a_merged_list_bounds_every_value(month: list[list[dict[str, int]]], up: int, down: int) -> None:
    """Hours are merged into days, and days into a month. `up`, `down`: the most risen and fallen ids of a list."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top, "UP_MAX", up)
        patch.setattr(top, "DOWN_MAX", down)
        truth, day_lists = Sums[str](), []
        for day in month:
            hour_lists = []
            for amounts in day:
                builder = top.TopListBuilder()
                for id_, amount in amounts.items():
                    truth[id_] += amount
                    builder.add("likes", id_, amount)
                hour_lists += [builder.list("likes")] if amounts else []
            day_lists.append(top.merge_lists(hour_lists))
        merged = top.merge_lists(day_lists)
    shown_entries = [{"id": entry.id, "value": entry.value} for entry in merged.entries if entry.value > 0]
    check_bound(shown_entries, merged.error, truth)


def test_a_counter_has_a_total_series_and_an_id_has_one_series_over_all_its_periods(store: Store) -> None:
    calls = replace(PLAYS, name="calls")
    sum_up(store, M - 1)
    book(store, M, plays(3, "v"), plays(4, "w"), JournalEntry("calls", "c#2026-11", "", 5, 5))
    half_of_removal = JournalEntry("calls", "d#2026-12", "0123456789ab", -1, 0)
    book(store, M + 4, JournalEntry("calls", "c#2026-12", "", 6, 6), half_of_removal)
    sum_up(store, M + 5)
    assert series(store, hours.TOTAL_ID) == {H: 7}
    assert series(store, "c", counter=calls) == {H: 5, H + 1: 6}
    assert series(store, hours.TOTAL_ID, counter=calls) == {H: 5, H + 1: 6 - 1}  # 1 was removed of the id d
    hour = top.top_list(Call(store), PLAYS, "hour", top.span_of(H), 100)
    assert [entry["id"] for entry in hour["top"]] == ["w", "v"]


def test_days_are_sums_of_hours_in_any_zone_whose_days_begin_with_an_hour(store: Store) -> None:
    midnight_h = H - H % 24 + 24
    sum_up(store, 4 * (midnight_h - 2) - 1)
    for hour, amount in ((midnight_h - 2, 1), (midnight_h - 1, 2), (midnight_h, 4), (midnight_h + 1, 8)):
        book(store, 4 * hour, plays(amount))
    sum_up(store, 4 * (midnight_h + 2) - 1)
    utc = range_of(DAY, 3600 * (midnight_h - 24), 3600 * (midnight_h + 2), None, 0)
    assert series(store, range_=utc) == {midnight_h - 24: 1 + 2, midnight_h: 4 + 8}
    one_hour_ahead = range_of(DAY, 3600 * (midnight_h - 24), 3600 * (midnight_h + 2), "Etc/GMT-1", 0)
    assert series(store, range_=one_hour_ahead) == {midnight_h - 25: 1, midnight_h - 1: 2 + 4 + 8}


@pytest.mark.parametrize("now_s", [3600 * H, 3600 * H + 0.5, 3600 * H + 1, 3600 * H + 3599.9])
def test_a_range_without_an_end_includes_the_current_hour_from_its_first_moment(now_s: float) -> None:
    assert range_of(HOUR, None, None, None, now_s) == SeriesRange(HOUR, H - 23, H + 1)
    assert range_of(HOUR, 3600 * H, None, None, now_s) == SeriesRange(HOUR, H, H + 1)
    midnight_s = now_s - 3600 * (H % 24)
    assert range_of(DAY, int(midnight_s), None, None, midnight_s) == SeriesRange(DAY, H - H % 24, H - H % 24 + 24)


@pytest.mark.parametrize(
    ("first_day", "accepted"), [("2026-01-10", True), ("2026-06-10", False), ("2026-04-03", False)]
)
def test_each_day_of_a_range_must_begin_with_an_hour_of_utc(first_day: str, accepted: bool) -> None:
    """Lord Howe is eleven hours ahead of UTC in summer, and ten and a half in winter, from 5 April 2026."""
    from_s = int(datetime.fromisoformat(first_day).replace(tzinfo=UTC).timestamp())
    with nullcontext() if accepted else pytest.raises(InvalidInputError, match="days begin with an hour of UTC"):
        range_of(DAY, from_s, from_s + 5 * hours.DAY_S, "Australia/Lord_Howe", 0)
    assert range_of(HOUR, from_s, from_s + 7200, "Australia/Lord_Howe", 0).end == from_s // 3600 + 2


OLD_DAY = 19_846  # 3 May 2024


def imports(store: Store, video: str = "v", counter: Counter = PLAYS) -> dict[int, int]:
    """Returns the imported amounts by day since 1970."""
    answer = read.read_series(Call(store), counter, video, SeriesRange(DAY, 24 * OLD_DAY, H + 24))
    return {point["from"] // hours.DAY_S: point["value"] for point in answer["imports"]}


def test_an_imported_amount_is_shown_on_its_day_and_in_no_hour_and_no_list(store: Store) -> None:
    """The import is shown once in the current hour, after it, and after a second import in the next hour."""
    sum_up(store, M - 1)
    book(store, M, plays(3), plays(1200, day=OLD_DAY), plays(7, "w", OLD_DAY), plays(5, day=OLD_DAY + 1))
    for last_judged in (M, M + 3):  # in the hour, and at the end of the hour
        sum_up(store, last_judged)
        assert (series(store), imports(store)) == ({H: 3}, {OLD_DAY: 1200, OLD_DAY + 1: 5})
        assert (series(store, "w"), imports(store, "w")) == ({}, {OLD_DAY: 7})
        assert series(store, hours.TOTAL_ID) == {H: 3}
        assert imports(store, hours.TOTAL_ID) == {OLD_DAY: 1207, OLD_DAY + 1: 5}
        assert top.top_list(Call(store), PLAYS, "hour", top.span_of(H), 100)["top"] == [{"id": "v", "value": 3}]
    assert imports(store, "other") == {}
    book(store, M + 4, plays(100, day=OLD_DAY), JournalEntry("plays", "v", "", -1, -1))
    sum_up(store, M + 4)
    assert (series(store), imports(store)) == ({H: 3, H + 1: -1}, {OLD_DAY: 1300, OLD_DAY + 1: 5})
    for other_days in (TWO_DAYS, SeriesRange(HOUR, -(10**8), -(10**8) + 1)):  # the second is before the year 1
        assert read.read_series(Call(store), PLAYS, "v", other_days)["imports"] == []


def test_an_import_is_shown_once_though_the_sweep_of_its_hour_dies(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep dies at each of its writes in turn, and the next sweep continues its work."""
    monkeypatch.setattr(hours, "ROWS_AT_ONCE", 1)
    sum_up(store, M - 1)
    book(store, M, plays(3), plays(5, day=OLD_DAY), plays(7, "w", OLD_DAY))
    for write_number, committed in itertools.product(range(12), (True, False)):
        dying = replace(store, client=client_that_dies(store.client, write_number, committed=committed))
        with contextlib.suppress(Crash):
            sum_up(dying, M + 3)
        assert (series(store), imports(store)) in (({}, {}), ({H: 3}, {OLD_DAY: 5}))
    assert (progress.read(store).hour, imports(store, hours.TOTAL_ID)) == (H + 1, {OLD_DAY: 12})


def test_imports_of_the_current_hour_are_read_from_all_of_its_running_segments(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hours, "SEGMENT_BYTES", 50)
    sum_up(store, M - 1)
    imported = [plays(1, day=OLD_DAY + days) for days in range(20)]
    book(store, M, plays(3), *imported, *(plays(9, f"v{number}") for number in range(9)))
    sum_up(store, M)
    assert (series(store), imports(store)) == ({H: 3}, dict.fromkeys(range(OLD_DAY, OLD_DAY + 20), 1))


def test_imports_never_expire_and_an_id_has_one_series_of_imports_over_all_periods(store: Store) -> None:
    two_day_store, calls = replace(store, settings=store.settings._replace(series_days=2)), replace(PLAYS, name="calls")
    sum_up(two_day_store, M - 1)
    book(store, M, plays(1, day=OLD_DAY), JournalEntry("calls", "c#2024-05-03", "", 5, 5, OLD_DAY))
    book(store, M + 1, JournalEntry("calls", "c#2024-05-04", "", 6, 6, OLD_DAY))
    sum_up(two_day_store, M + 3)
    assert not any("expiration" in item for item in whole_days(store))
    assert (imports(store), imports(store, "c", calls)) == ({OLD_DAY: 1}, {OLD_DAY: 11})
    assert series(store, "c", counter=calls) == {}


def test_the_imported_total_is_unknown_before_the_first_sweep(store: Store) -> None:
    call = Call(store)
    assert read.total_imported(call, PLAYS, "v") is None
    sum_up(store, M - 1)
    book(store, M, plays(1200, day=OLD_DAY), plays(5, day=OLD_DAY + 1), plays(3))
    sum_up(store, M)
    assert read.total_imported(call, PLAYS, "v") == {"amount": 1205, "as_of": MINUTE_S * M}
    assert read.total_imported(call, PLAYS, "w") == {"amount": 0, "as_of": MINUTE_S * M}
    # Imports are stored by id, without the period, so the tally of one period has no imported total.
    assert read.total_imported(call, CALLS, "v#2026-11-22") is None


def test_series_list_a_repair_beside_the_values(store: Store) -> None:
    sum_up(store, M - 1)
    numbers = {"before": 60, "amount": -50, "added": -3}  # `added`: the part of the amount that no series has
    repair = history.repair_entry_write(store, "plays", "v", 3600.0 * H, numbers, by="ann", why="w", how=history.LEDGER)
    assert try_commit(store, [repair])
    book(store, M, plays(10))
    sum_up(store, M + 3)
    answer = read.read_series(Call(store), PLAYS, "v", TWO_DAYS)
    assert answer["repairs"] == [{"at": 3600 * H, "value": -50, "how": "ledger", "added": -3}]
    assert series(store) == {H: 10}


@pytest.mark.long
@pytest.mark.sdk
def test_summing_up_costs_at_most_1_1_write_units_for_each_tally_and_hour(store: Store) -> None:
    """Each of 1,000 tallies moves in each of two hours. An hour has four parts."""
    sum_up(store, M - 1)
    for minute in range(8):
        book(store, M + minute, *(plays(1, f"{number:08}") for number in range(1000)))
    meter = Meter(store.client)
    for minute in range(8):
        sum_up(store, M + minute)
    assert progress.read(store).hour == H + 2
    assert 2000 <= meter.write_units <= 1.1 * 2000
