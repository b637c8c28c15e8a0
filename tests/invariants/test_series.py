"""Series and top lists: each hour says what was accepted in it, to the last unit, however often the fold dies.

`test_journal_schedules` compares the series of whole deployments under faults with what was accepted.
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
from tests.tiers import in_long

H = 500_000  # an hour since 1970
M = 4 * H  # its first minute: here an hour has four, so that there is less to read
MINUTE_S = 900
FOREVER = float("inf")
EVER = SeriesRange(HOUR, H - 24, H + 24)


@pytest.fixture
def store(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(hours, "PART_MINUTES", 1)
    monkeypatch.setattr(hours, "LOOKBACK_MINUTES", 4)
    monkeypatch.setattr(streams_fold, "BUCKETS", 1)  # fewer partitions to read; test_segments reads them all
    return replace(store, settings=store.settings._replace(minute_s=MINUTE_S))


def plays(amount: int, video: str = "v", day: int = -1) -> JournalEntry:
    return JournalEntry("plays", video, "", amount, amount, day)


def fold(store: Store, judged: int) -> int:
    return hours.sum_up(store, judged, until_s=FOREVER)


def series(store: Store, video: str = "v", asked: SeriesRange = EVER, counter: Counter = PLAYS) -> dict[int, int]:
    """By hour, or by the hour in which a day begins."""
    told = read.read_series(Call(store), counter, video, asked)
    return {point["from"] // 3600: point["value"] for point in told["series"] if point["value"]}


def test_series_begin_with_the_first_sweep_however_late_the_first_judge_is(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: M * MINUTE_S + 1)
    assert (fold(store, -1), progress.read(store).since) == (0, M + 1 - hours.LOOKBACK_MINUTES)
    told = read.read_series(Call(store), PLAYS, "v", EVER)
    assert (told["series"], told["since"], told["as_of"]) == ([], None, None)
    book(store, M - 1, plays(2))  # before the first sweep
    book(store, M + 1, plays(3))
    fold(store, M + 40)
    assert sum(series(store).values()) == 5


def test_amounts_past_2_53_are_exact_in_segments_series_and_lists(store: Store) -> None:
    """Of the journal's segments, too: they are JSON, which Python reads exactly."""
    large = 2**53 + 1
    fold(store, M - 1)
    for minute, amount in enumerate((10**15, large, -(10**30), 10**30 + 1)):
        book(store, M + minute, plays(amount), plays(-large, "w"))
        fold(store, M + minute)
    v, w = 10**15 + large + 1, -4 * large
    assert (series(store), series(store, "w"), series(store, "")) == ({H: v}, {H: w}, {H: v + w})
    assert listed(store) == {"v": v}


def test_series_that_are_kept_for_some_days_expire_and_say_since_when_they_are_shown(store: Store) -> None:
    brief = replace(store, settings=store.settings._replace(series_days=2))
    fold(brief, M - 1)
    book(brief, M, plays(5))
    fold(brief, M + 3)
    assert {item["expiration"]["N"] for item in days(brief)} == {
        str((H // 24 + 2 + hours.EXPIRY_GRACE_DAYS) * hours.DAY_S)
    }
    fold(brief, M + 4 * 24 * 3)  # three days later
    told = read.read_series(Call(store), PLAYS, "v", EVER._replace(end=H + 24 * 4))  # a command has no such setting
    first = (H // 24 + 1) * 24
    assert told["since"] == 3600 * first
    assert told["series"][0] == {"from": 3600 * first, "value": 0}


@pytest.mark.parametrize("days_off", [1, 3, 8])
def test_an_hour_is_whole_when_the_sweep_was_off_in_its_middle(
    store: Store, monkeypatch: pytest.MonkeyPatch, days_off: int
) -> None:
    """What it had so far is there as long as the segments that it still lacks."""
    now_s = [float(M * MINUTE_S)]
    monkeypatch.setattr(time, "time", lambda: now_s[0])
    fold(store, M - 1)
    for minute in range(4):
        now_s[0] += MINUTE_S
        book(store, M + minute, plays(5 + minute), now_s=now_s[0])
        fold(store, min(M + minute, M + 1))
    now_s[0] += days_off * hours.DAY_S
    ConsumerWorld(store, store.client).expire(now_s[0])
    fold(store, M + 3)
    assert (series(store), listed(store)) == ({H: 26}, {"v": 26})


@pytest.mark.parametrize(("days_off", "since"), [(1, 0), (6, 0), (7, 1), (40, 34)])
def test_days_that_go_while_the_sweep_is_off_are_not_shown_as_zeros(
    store: Store, monkeypatch: pytest.MonkeyPatch, days_off: int, since: int
) -> None:
    first, midnight = H // 24 + 1, 24 * (H // 24 + 1)
    brief = replace(store, settings=store.settings._replace(series_days=2))
    fold(brief, 4 * midnight - 1)
    for day in range(3):
        book(brief, 4 * (midnight + 24 * day), plays(5))
    fold(brief, 4 * (midnight + 24 * 3) - 1)
    now_s = float((first + 3) * hours.DAY_S + days_off * hours.DAY_S)
    monkeypatch.setattr(time, "time", lambda: now_s)
    ConsumerWorld(store, store.client).expire(now_s)
    told = read.read_series(Call(store), PLAYS, "v", SeriesRange(DAY, midnight, midnight + 24 * 3))
    shown = {point["from"] // hours.DAY_S - first: point["value"] for point in told["series"]}
    assert shown == dict.fromkeys(range(1 + since, 3), 5)
    assert told["since"] == hours.DAY_S * (first + 1 + since)


@pytest.mark.parametrize("longer", [400, 0], ids=["longer", "for ever"])
def test_days_that_are_gone_do_not_come_back_as_zeros_when_series_are_kept_longer(store: Store, longer: int) -> None:
    """Days are written to expire: a longer life later holds for those that are written from then on."""

    def kept(series_days: int) -> Store:
        return replace(store, settings=store.settings._replace(series_days=series_days))

    def since(option: int, day: int) -> int:
        """The first day that is shown, when so many days are over."""
        hour = 24 * (first + day) + 1
        for _ in range(2):  # as two sweeps do
            at = progress.read(store)
            hours._note(kept(option), at, replace(at, through=4 * hour - 1, hour=hour))
        return int(read.read_series(Call(store), PLAYS, "v", EVER)["since"]) // hours.DAY_S - first

    first = H // 24
    fold(kept(30), 4 * 24 * first + 3)
    assert [since(30, day) for day in (1, 30, 32)] == [0, 0, 2]
    assert [since(longer, day) for day in (33, 40, 60)] == [3, 10, 30]
    assert since(longer, 80) == 33, "the first whole day that was written to stay"
    assert since(longer, 300) == 33
    assert since(5, 301) == 33, "a shorter life holds for what is written from then on, too"
    assert since(5, 310) == 305
    assert since(longer, 311) == 306, "it only moves on"


def test_a_list_that_is_gone_or_was_over_before_the_series_began_is_not_an_empty_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert top.top_list(Call(store), PLAYS, HOUR, None, 10)["top"] == []
    fold(store, M - 1)
    book(store, M, plays(5))
    fold(store, M + 3)
    now_s = [3600.0 * (H + 1)]
    monkeypatch.setattr(time, "time", lambda: now_s[0])
    hour, begun = top.span_of(H), top.span_of(H - 1)

    def listed_at(by: str, span: str) -> list[int]:
        return [one["value"] for one in top.top_list(Call(store), PLAYS, by, span, 10)["top"]]

    assert (listed_at(HOUR, hour), listed_at(HOUR, begun)) == ([5], [])
    for by, span in ((HOUR, top.span_of(H - 2)), (DAY, top.span_of(H - 24)[:10]), ("month", "2020-01")):
        with pytest.raises(NotFoundError):
            listed_at(by, span)
    now_s[0] += top.HOURS_KEPT_S - 1
    assert listed_at(HOUR, hour) == [5]
    now_s[0] += 1
    with pytest.raises(NotFoundError, match=f"begin with {top.span_of(H + 1)}"):
        listed_at(HOUR, hour)
    assert listed_at(DAY, hour[:10]) == [5]


def test_an_hour_is_in_the_series_up_to_its_last_part_and_whole_when_it_is_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read.read_series(Call(store), PLAYS, "v", EVER)["as_of"] is None
    monkeypatch.setattr(hours, "PART_MINUTES", 2)
    fold(store, M - 1)
    for minute in range(4):
        book(store, M + minute, plays(1))
    fold(store, M)
    assert series(store) == {}
    fold(store, M + 1)
    assert series(store) == {H: 2}
    assert listed(store) == {"v": 2}
    told = read.read_series(Call(store), PLAYS, "v", EVER)
    assert told["as_of"] == MINUTE_S * (M + 1)  # a change may be booked one minute later
    fold(store, M + 2)
    assert series(store) == {H: 2}
    assert not list(days(store))
    fold(store, M + 3)
    assert series(store) == {H: 4}
    assert listed(store) == {"v": 4}
    assert len(days(store)) == 2  # and of all together
    book(store, M + 4, plays(7))
    fold(store, M + 5)
    assert series(store) == {H: 4, H + 1: 7}
    assert (listed(store), listed(store, "day")) == ({"v": 7}, {"v": 11})
    assert series(store, "other") == {}


def listed(store: Store, by: str = "hour") -> dict[str, int]:
    """The newest list."""
    return {one["id"]: one["value"] for one in top.top_list(Call(store), PLAYS, by, None, 100)["top"]}


def test_the_list_of_an_hour_forgets_what_was_taken_back_and_no_slow_fold_puts_an_old_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hours, "PART_MINUTES", 1)
    fold(store, M - 1)
    book(store, M, plays(3), plays(5, "w"))
    fold(store, M)
    assert listed(store) == listed(store, "day") == {"w": 5, "v": 3}
    slow = top.TopListBuilder()
    slow.add("plays", "v", 3)
    book(store, M + 1, plays(-3), plays(-5, "w"))
    fold(store, M + 1)
    assert listed(store) == listed(store, "day") == {}
    top.write_lists(store, H, M, slow, ["plays"])
    assert listed(store) == listed(store, "day") == {}


def days(store: Store) -> list[dict[str, Any]]:
    """The items of days."""
    found = store.client.scan(TableName=store.settings.ledger_table, ConsistentRead=True)["Items"]
    return [item for item in found if item["PK"]["S"].startswith("SERIES#")]


def test_what_is_in_no_segment_holds_as_of_up_until_it_is_summed_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two letters of the bookkeeper: each is redriven on a later minute, and the other one waits until then."""
    table, now_s = store.settings.ledger_table, [float((M + 4) * MINUTE_S)]
    monkeypatch.setattr(time, "time", lambda: now_s[0])

    def letter(consumer: str, minute: int) -> dict[str, Any]:
        return key(DEAD_LETTER_KEY, f"{consumer}#{minute * MINUTE_S:010}#receipts#s#1")

    def as_of(judged: int) -> float:
        """The minute up to which the series are complete, as a sweep notes it."""
        fold(store, judged)
        return float(read.read_series(Call(store), PLAYS, "v", EVER)["as_of"] + CLOCK_SKEW * MINUTE_S) / MINUTE_S

    fold(store, M - 1)
    for name in (letter("rollup", M), letter("bookkeeper", M + 1), letter("bookkeeper", M + 3)):
        store.client.put_item(TableName=table, Item=name)
    assert [as_of(M), as_of(M + 4), as_of(M + 5)] == [M + CLOCK_SKEW, M + 1, M + 1]
    now_s[0] += 2 * MINUTE_S
    store.client.delete_item(TableName=table, Key=letter("bookkeeper", M + 1))  # redriven by now
    assert [as_of(M + 6), as_of(M + 7), as_of(M + 8)] == [M + 1, M + 1, M + 3]
    now_s[0] += 9 * MINUTE_S
    store.client.delete_item(TableName=table, Key=letter("bookkeeper", M + 3))
    assert [as_of(M + 15), as_of(M + 16), as_of(M + 17)] == [M + 3, M + 3, M + 17 + CLOCK_SKEW]


@pytest.mark.parametrize(
    ("consumer", "days", "held"), [("rollup", 2, None), ("bookkeeper", 2, 0), ("bookkeeper", 8, 2)]
)
def test_what_the_bookkeeper_may_have_lost_holds_as_of_up_until_somebody_knows(
    store: Store, consumer: str, days: int, held: int | None
) -> None:
    """After a week, what its hour had may be gone, too."""
    fold(store, M - 1)
    since_s = (M + 2) * MINUTE_S
    lost = Loss("gap", consumer, since_s, since_s + days * hours.DAY_S)
    store.client.put_item(**lost.as_write(store.settings)["Put"])
    fold(store, M + 7)
    whole_s = (M + 7) * MINUTE_S if held is None else since_s - 3600 * held - CLOCK_SKEW * MINUTE_S
    assert read.read_series(Call(store), PLAYS, "v", EVER)["as_of"] == whole_s


def test_halves_of_unlikes_and_what_was_booked_before_the_judge_began_are_in_it(store: Store) -> None:
    likes = replace(PLAYS, name="likes")
    book(store, M - 1, JournalEntry("likes", "v", "", 5, 5))
    book(
        store,
        M + 1,
        JournalEntry("likes", "v", "0123456789ab", -1, 0),
        JournalEntry("likes", "v", "ba9876543210", 0, -1),
    )
    book(
        store,
        M + 2,
        JournalEntry("likes", "v", "0123456789ab", 0, -1),
        JournalEntry("likes", "v", "ba9876543210", -1, 0),
    )
    fold(store, M + 2)
    fold(store, M + 3)
    assert series(store, counter=likes) == {H - 1: 5, H: -2}


def test_running_segments_are_written_side_by_side_and_no_longer_than_the_time_goes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hours, "SEGMENT_BYTES", 1)  # a segment for each tally
    monkeypatch.setattr(hours, "PART_MINUTES", 4)
    tallies = 3 * WRITER_THREADS - 1  # and all together
    fold(store, M - 1)
    book(store, M, *(plays(1, f"v{number}") for number in range(tallies)))
    together, client, now = (
        threading.Barrier(WRITER_THREADS),
        WatchedClient(store.client, frozenset({"put_item"})),
        [0.0],
    )

    def wait(*_: object) -> None:
        together.wait(10)
        now[0] += 1

    client.before = wait
    timed = replace(store, client=cast(Any, client), clock=lambda: now[0])
    with pytest.raises(StoreBusyError, match="no time"):
        hours.sum_up(timed, M + 3, until_s=WRITER_THREADS + 1)
    assert (client.writes, progress.read(store).through) == (2 * WRITER_THREADS, M - 1)
    fold(store, M + 3)
    assert (series(store, "v1"), series(store, hours.TOTAL_ID)) == ({H: 1}, {H: tallies})


def test_half_of_the_time_is_left_to_write_what_was_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hours, "PART_MINUTES", 4)
    fold(store, M - 1)
    for minute in range(4):
        book(store, M + minute, plays(1))
    now, add_minute = [0.0], hours._add_minute

    def slowly(*how: Any) -> None:
        now[0] += 1
        add_minute(*how)

    monkeypatch.setattr(hours, "_add_minute", slowly)
    hours.sum_up(replace(store, clock=lambda: now[0]), M + 3, until_s=4)
    assert progress.read(store).through == M + 2, "two minutes, and then one of the two that are left"


@pytest.mark.parametrize("seed", [0, *in_long([1])])
def test_a_sweep_that_dies_anywhere_comes_to_the_same_series_and_lists(
    store: Store, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before and after each write, in small parts, segments, steps and lists. Some rows are imported."""
    monkeypatch.setattr(top, "UP_MAX", 15)
    monkeypatch.setattr(hours, "SEGMENT_BYTES", 150)
    monkeypatch.setattr(hours, "ROWS_AT_ONCE", 11)
    monkeypatch.setattr(hours, "SUMS_MAX", 23)
    chance, truth = random.Random(seed), defaultdict[int, Sums[str]](Sums)
    imported = defaultdict[str, Sums[int]](Sums)
    fold(store, M - 1)
    for minute in range(3 * 4):
        moved = {f"v{number}": chance.randint(1, 9) for number in range(40) if chance.random() < 0.5}
        truth[H + minute // 4].update(moved)
        into = [(f"v{chance.randrange(9)}", OLD + chance.randrange(3), chance.randint(1, 9)) for _ in range(12)]
        for video, day, amount in into:
            for id_ in (video, hours.TOTAL_ID):
                imported[id_][day] += amount
        rows = (plays(amount, video, day) for video, day, amount in into)
        book(store, M + minute, *(plays(amount, video) for video, amount in moved.items()), *rows)
        for _ in range(4):
            dying = replace(
                store, client=client_that_dies(store.client, chance.randrange(20), committed=chance.random() < 0.5)
            )
            with contextlib.suppress(Crash):
                fold(dying, M + minute)
    fold(store, M + 3 * 4 - 1)
    assert series(store, hours.TOTAL_ID) == {hour: sum(moved.values()) for hour, moved in truth.items()}
    for video in {video for moved in truth.values() for video in moved}:
        assert series(store, video) == {hour: moved[video] for hour, moved in truth.items() if video in moved}
    assert {video: imports(store, video) for video in imported} == imported
    for hour, moved in truth.items():
        told = top.top_list(Call(store), PLAYS, "hour", top.span_of(hour), 100)
        assert told["error_max"] == 0
        assert [one["value"] for one in told["top"]] == sorted(moved.values(), reverse=True)[:15]
        check_bound(told["top"], 0, moved)
    for day in {top.span_of(hour)[:10] for hour in truth}:
        of_day = (moved for hour, moved in truth.items() if top.span_of(hour).startswith(day))
        told = top.top_list(Call(store), PLAYS, "day", day, 100)
        check_bound(told["top"], told["error_max"], sum(of_day, Sums[str]()))


def check_bound(found: Sequence[Mapping[str, Any]], error_max: int, truth: Mapping[str, int]) -> None:
    """The error is a bound in both directions, and for what is missing."""
    for one in found:
        assert abs(one["value"] - truth[one["id"]]) <= error_max
    missing = [truth[id_] for id_ in truth.keys() - {one["id"] for one in found}]
    assert max(missing, default=0) <= min((one["value"] for one in found), default=0) + error_max


MOVES = st.lists(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(-9, 9).filter(bool)), max_size=6)


@given(months=st.lists(MOVES, max_size=3), up=st.integers(1, 4), down=st.integers(1, 3))
def test_the_error_of_a_merged_list_is_a_bound_in_both_directions(
    months: list[list[dict[str, int]]], up: int, down: int
) -> None:
    """Days from hours and months from days, against a recount: a tally that is not listed may have moved down."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top, "UP_MAX", up)
        patch.setattr(top, "DOWN_MAX", down)
        truth, days_ = Sums[str](), []
        for day in months:
            hours_ = []
            for moved in day:
                board = top.TopListBuilder()
                for id_, amount in moved.items():
                    truth[id_] += amount
                    board.add("likes", id_, amount)
                hours_ += [board.list("likes")] if moved else []
            days_.append(top.merge_lists(hours_))
        found = top.merge_lists(days_)
    shown = [{"id": one.id, "value": one.value} for one in found.entries if one.value > 0]
    check_bound(shown, found.error, truth)


def test_all_tallies_of_a_counter_are_one_more_and_an_id_has_one_series_over_its_periods(store: Store) -> None:
    calls = replace(PLAYS, name="calls")
    fold(store, M - 1)
    book(store, M, plays(3, "v"), plays(4, "w"), JournalEntry("calls", "c#2026-11", "", 5, 5))
    book(
        store,
        M + 4,
        JournalEntry("calls", "c#2026-12", "", 6, 6),
        JournalEntry("calls", "d#2026-12", "0123456789ab", -1, 0),
    )
    fold(store, M + 5)
    assert series(store, hours.TOTAL_ID) == {H: 7}
    assert series(store, "c", counter=calls) == {H: 5, H + 1: 6}
    assert series(store, hours.TOTAL_ID, counter=calls) == {H: 5, H + 1: 5}
    assert [one["id"] for one in top.top_list(Call(store), PLAYS, "hour", top.span_of(H), 100)["top"]] == ["w", "v"]


def test_days_are_sums_of_hours_in_any_zone_whose_days_begin_with_an_hour(store: Store) -> None:
    midnight = H - H % 24 + 24
    fold(store, 4 * (midnight - 2) - 1)
    for hour, amount in ((midnight - 2, 1), (midnight - 1, 2), (midnight, 4), (midnight + 1, 8)):
        book(store, 4 * hour, plays(amount))
    fold(store, 4 * (midnight + 2) - 1)
    ever = range_of(DAY, 3600 * (midnight - 24), 3600 * (midnight + 2), None, 0)
    assert series(store, asked=ever) == {midnight - 24: 3, midnight: 12}
    paris = range_of(DAY, 3600 * (midnight - 24), 3600 * (midnight + 2), "Etc/GMT-1", 0)
    assert series(store, asked=paris) == {midnight - 25: 1, midnight - 1: 14}


@pytest.mark.parametrize("now_s", [3600 * H, 3600 * H + 0.5, 3600 * H + 1, 3600 * H + 3599.9])
def test_a_range_without_an_end_has_the_hour_that_runs_from_its_first_moment(now_s: float) -> None:
    assert range_of(HOUR, None, None, None, now_s) == SeriesRange(HOUR, H - 23, H + 1)
    assert range_of(HOUR, 3600 * H, None, None, now_s) == SeriesRange(HOUR, H, H + 1)
    midnight_s = now_s - 3600 * (H % 24)
    assert range_of(DAY, int(midnight_s), None, None, midnight_s) == SeriesRange(DAY, H - H % 24, H - H % 24 + 24)


@pytest.mark.parametrize(("of", "taken"), [("2026-01-10", True), ("2026-06-10", False), ("2026-04-03", False)])
def test_each_day_of_a_range_begins_with_an_hour(of: str, taken: bool) -> None:
    """Lord Howe: eleven hours from UTC in summer, and ten and a half in winter. Only days that were asked for count."""
    from_s = int(datetime.fromisoformat(of).replace(tzinfo=UTC).timestamp())
    odd = InvalidInputError, "days begin with an hour of UTC"
    with nullcontext() if taken else pytest.raises(odd[0], match=odd[1]):
        range_of(DAY, from_s, from_s + 5 * hours.DAY_S, "Australia/Lord_Howe", 0)
    assert range_of(HOUR, from_s, from_s + 7200, "Australia/Lord_Howe", 0).end == from_s // 3600 + 2


OLD = 19_846  # 3 May 2024


def imports(store: Store, video: str = "v", counter: Counter = PLAYS) -> dict[int, int]:
    """By day, since 1970."""
    told = read.read_series(Call(store), counter, video, SeriesRange(DAY, 24 * OLD, H + 24))
    return {point["from"] // hours.DAY_S: point["value"] for point in told["imports"]}


def test_what_is_imported_is_in_its_own_days_and_in_no_hour_and_no_list(store: Store) -> None:
    """Also while its hour runs, when it is imported in two hours, and after a fold that was repeated."""
    fold(store, M - 1)
    book(store, M, plays(3), plays(1200, day=OLD), plays(7, "w", OLD), plays(5, day=OLD + 1))
    for running in (True, False):
        assert fold(store, M + 3 * (not running)) or running
        assert (series(store), imports(store)) == ({H: 3}, {OLD: 1200, OLD + 1: 5})
        assert (series(store, "w"), imports(store, "w")) == ({}, {OLD: 7})
        assert (series(store, hours.TOTAL_ID), imports(store, hours.TOTAL_ID)) == ({H: 3}, {OLD: 1207, OLD + 1: 5})
        assert top.top_list(Call(store), PLAYS, "hour", top.span_of(H), 100)["top"] == [{"id": "v", "value": 3}]
    assert imports(store, "other") == {}
    book(store, M + 4, plays(100, day=OLD), JournalEntry("plays", "v", "", -1, -1))
    fold(store, M + 4)
    assert (series(store), imports(store)) == ({H: 3, H + 1: -1}, {OLD: 1300, OLD + 1: 5})
    for other in (EVER, SeriesRange(HOUR, -(10**8), -(10**8) + 1)):
        assert read.read_series(Call(store), PLAYS, "v", other)["imports"] == [], "it asks for other days"


def test_what_is_imported_counts_once_while_its_hour_is_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fold dies at one write after the other, and another one goes on."""
    monkeypatch.setattr(hours, "ROWS_AT_ONCE", 1)
    fold(store, M - 1)
    book(store, M, plays(3), plays(5, day=OLD), plays(7, "w", OLD))
    for at, committed in itertools.product(range(12), (True, False)):
        dying = replace(store, client=client_that_dies(store.client, at, committed=committed))
        with contextlib.suppress(Crash):
            fold(dying, M + 3)
        assert (series(store), imports(store)) in (({}, {}), ({H: 3}, {OLD: 5}))
    assert (progress.read(store).hour, imports(store, hours.TOTAL_ID)) == (H + 1, {OLD: 12})


def test_imports_of_the_hour_that_runs_are_read_over_all_of_its_segments(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hours, "SEGMENT_BYTES", 50)
    fold(store, M - 1)
    book(store, M, plays(3), *(plays(1, day=OLD + ago) for ago in range(20)), *(plays(9, f"v{n}") for n in range(9)))
    fold(store, M)
    assert (series(store), imports(store)) == ({H: 3}, dict.fromkeys(range(OLD, OLD + 20), 1))


def test_imports_are_kept_for_ever_and_periods_are_one(store: Store) -> None:
    brief, calls = replace(store, settings=store.settings._replace(series_days=2)), replace(PLAYS, name="calls")
    fold(brief, M - 1)
    book(store, M, plays(1, day=OLD), JournalEntry("calls", "c#2024-05-03", "", 5, 5, OLD))
    book(store, M + 1, JournalEntry("calls", "c#2024-05-04", "", 6, 6, OLD))
    fold(brief, M + 3)
    assert not any("expiration" in item for item in days(store))
    assert (imports(store), imports(store, "c", calls), series(store, "c", counter=calls)) == ({OLD: 1}, {OLD: 11}, {})


def test_how_much_was_imported_is_unknown_before_anything_is_summed_up(store: Store) -> None:
    call = Call(store)
    assert read.total_imported(call, PLAYS, "v") is None
    fold(store, M - 1)
    book(store, M, plays(1200, day=OLD), plays(5, day=OLD + 1), plays(3))
    fold(store, M)
    assert read.total_imported(call, PLAYS, "v") == {"amount": 1205, "as_of": MINUTE_S * M}
    assert read.total_imported(call, PLAYS, "w") == {"amount": 0, "as_of": MINUTE_S * M}
    assert read.total_imported(call, CALLS, "v#2026-11-22") is None, "its series has every period of the id"


def test_a_repair_is_in_it_as_a_repair(store: Store) -> None:
    fold(store, M - 1)
    numbers = {"before": 60, "amount": -50, "added": -3}
    repair = history.repair_entry_write(store, "plays", "v", 3600.0 * H, numbers, by="ann", why="w", how=history.LEDGER)
    assert try_commit(store, [repair])
    book(store, M, plays(10))
    fold(store, M + 3)
    told = read.read_series(Call(store), PLAYS, "v", EVER)
    assert told["repairs"] == [{"at": 3600 * H, "value": -50, "how": "ledger", "added": -3}]
    assert series(store) == {H: 10}


@pytest.mark.long
@pytest.mark.sdk
def test_a_tally_and_hour_costs_one_write_unit_and_its_part_of_the_pages(store: Store) -> None:
    """1,000 tallies in two hours of four parts: at most 1.1 WCU for each tally and hour in which it moved."""
    fold(store, M - 1)
    for minute in range(8):
        book(store, M + minute, *(plays(1, f"{number:08}") for number in range(1000)))
    meter = Meter(store.client)
    for minute in range(8):
        fold(store, M + minute)
    assert progress.read(store).hour == H + 2
    assert 2000 <= meter.write_units <= 1.1 * 2000
