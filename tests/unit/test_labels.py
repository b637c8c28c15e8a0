"""On which minute each half of a change is booked: the table of the journal, for every kind of record."""

from __future__ import annotations

from typing import Any

import pytest

import counters
from tally.counting import tallies
from tally.dynamo.keys import removal_pair_of
from tally.operations.bookkeeper import READER as BOOKKEEPER
from tally.operations.rollup import READER as ROLLUP
from tally.streams import bookkeeper, rollup
from tally.streams.bookkeeper import SegmentRun
from tally.streams.fold import BatchContext, Effect
from tally.streams.record import CounterIndex, Record, goes_to_bookkeeper, goes_to_rollup
from tally.streams.segments import JournalEntry
from tests.delivery import passes_filters

NOW = 29_916_666
DECLARED = CounterIndex(counters.COUNTERS)
Keys = dict[str, Any]
PLAYS: Keys = tallies.key(counters.PLAYS, "v", 3)
CHILD: Keys = {"PK": {"S": "POST#p"}, "SK": {"S": f"{counters.LIKES.child}ann"}}
STAMPS = [(NOW, NOW), (NOW - 1, NOW - 1), (NOW + 1, NOW + 1), (NOW - 2, NOW), (NOW + 2, NOW), (NOW - 300, NOW)]
MARKS: list[Any] = [{"BOOL": True}, {"BOOL": False}, {"S": "true"}, {"N": "1"}, {"NULL": True}, {"M": {}}, True, None]
UNSTAMPED: list[Any] = [None, {"S": "x"}, {"N": "1.5"}, {"N": "-7"}, {"N": str(10**10)}, {"NULL": True}]


def record(name: str, keys: Keys, new: Any = None, old: Any = None, made_s: float = NOW * 60 + 59.9) -> Record:
    images = {which: image for which, image in (("NewImage", new), ("OldImage", old)) if image is not None}
    return {"eventName": name, "dynamodb": {"Keys": keys, "ApproximateCreationDateTime": made_s, **images}}


def plays(number: int, nonce: str | None, at: Any = NOW) -> Keys:
    """The image of a tally item."""
    stamp = {"N": str(at)} if isinstance(at, int) else at
    more = {"at": stamp, "nonce": {"S": nonce} if nonce else None}
    return {**PLAYS, "play_count": {"N": str(number)}} | {name: value for name, value in more.items() if value}


def moved(new: Keys | None, old: Keys | None) -> list[Effect]:
    """The effects of a tally item that changed."""
    name = "REMOVE" if new is None else "INSERT" if old is None else "MODIFY"
    return list(bookkeeper.read_count(DECLARED, record(name, PLAYS, new, old)))


def receipt(at: Any = NOW, counter: str = "plays", **more: Any) -> Record:
    image = {"counter": {"S": counter}, "target": {"S": "v"}, "amount": {"N": "3"}, "at": {"N": str(at)}} | more
    return record("INSERT", {"id": {"S": "tally#1"}}, image)


def child(at: Any = NOW, name: str = "INSERT", **more: Any) -> Record:
    stamp = {"N": str(at)} if isinstance(at, int) else at
    image = {**CHILD, "likedAt": {"N": "1"}, "nonce": {"S": "n"}} | ({"at": stamp} if stamp else {}) | more
    return record(name, CHILD, *((None, image) if name == "REMOVE" else (image, None)))


@pytest.mark.parametrize(("at", "booked"), STAMPS)
def test_stamp_counts_if_it_is_within_a_minute_of_the_record(at: int, booked: int) -> None:
    assert bookkeeper.read_receipt(DECLARED, receipt(at)) == (Effect("plays", "v", booked, 3),)
    assert bookkeeper.read_count(DECLARED, child(at)) == (Effect("likes", "p", booked, 1),)
    assert moved(plays(7, "a", at), plays(5, "b")) == [Effect("plays", "v", booked, observed=2)]
    assert moved(plays(7, "-a_b-c", at), None) == [Effect("plays", "v", booked, observed=7)], "no unlike: it has no dot"


@pytest.mark.parametrize("at", [NOW - 1, NOW, NOW + 1])
def test_what_was_written_alone_is_added_and_booked_on_the_minute_of_its_record(at: int) -> None:
    alone = {"rollup": {"BOOL": True}}
    for consumer in (rollup, bookkeeper):
        day = at // tallies.MINUTES_PER_DAY if consumer is rollup else -1
        assert consumer.read_receipt(DECLARED, receipt(at, **alone)) == (Effect("plays", "v", NOW, 3, day=day),)
        assert consumer.read_count(DECLARED, child(at, **alone)) == (Effect("likes", "p", NOW, 1),)


@pytest.mark.parametrize("at", UNSTAMPED, ids=str)
def test_item_without_a_minute_is_booked_on_its_records(at: Any) -> None:
    assert bookkeeper.read_count(DECLARED, child(at)) == (Effect("likes", "p", NOW, 1),)
    assert rollup.read_count(DECLARED, child(at, rollup={"BOOL": True})) == (Effect("likes", "p", NOW, 1),)
    assert moved(plays(7, "a", at), None) == [Effect("plays", "v", NOW, observed=7)]
    assert moved(plays(7, "+a", at), None) == [Effect("plays", "v", NOW, observed=7)]


@pytest.mark.parametrize(("at", "booked"), [(NOW, NOW), (NOW - 300, NOW - 300), (NOW + 2, NOW + 2), (NOW + 3, NOW)])
def test_what_the_rollup_adds_is_booked_on_the_minute_that_it_says_however_late(at: int, booked: int) -> None:
    assert moved(plays(9, "+a", at), plays(5, "b")) == [Effect("plays", "v", booked, observed=4)]


def test_both_halves_of_an_unlike_are_booked_on_their_records_minute_under_one_name() -> None:
    one = child(NOW - 500, "REMOVE")
    pair = removal_pair_of(one["dynamodb"]["OldImage"])
    assert bookkeeper.read_count(DECLARED, one) == (Effect("likes", "p", NOW, -1, pair=pair),)
    unliked = plays(4, f"{tallies.removal_nonce(pair)}xyz", NOW - 500)
    assert moved(unliked, plays(5, "b")) == [Effect("plays", "v", NOW, observed=-1, pair=pair)]


def test_the_tombstone_of_a_child_is_not_a_child() -> None:
    """The unlike of a spilled like leaves an item; a like may take its place, and TTL removes it."""
    liked: Any = {**CHILD, "at": {"N": str(NOW)}, "nonce": {"S": "n"}, "likedAt": {"N": "1"}, "rollup": {"BOOL": True}}
    left = {
        **CHILD,
        tallies.TOMBSTONE: {"N": "1"},
        "nonce": {"S": "m"},
        "likedAt": {"N": "1"},
        "rollup": {"BOOL": True},
    }
    read = bookkeeper.read_count
    assert read(DECLARED, record("MODIFY", CHILD, left, liked)) == (
        Effect("likes", "p", NOW, -1, pair=removal_pair_of(liked)),
    )
    assert read(DECLARED, record("MODIFY", CHILD, liked, left)) == (Effect("likes", "p", NOW, 1),)
    assert read(DECLARED, record("MODIFY", CHILD, left, left)) == ()
    assert read(DECLARED, record("MODIFY", CHILD, liked, liked)) == ()
    assert read(DECLARED, record("REMOVE", CHILD, None, left)) == ()
    assert read(DECLARED, record("INSERT", CHILD, left)) == ()
    assert rollup.read_count(DECLARED, record("INSERT", CHILD, left)) == ()


IMPORTED = {"imported": {"BOOL": True}}


def test_what_is_imported_says_on_which_day_it_belongs_and_is_expected_on_its_minute() -> None:
    today, day_s = 60 * NOW // 86_400, 86_400
    with_receipt = receipt(NOW, **IMPORTED)
    [effect] = bookkeeper.read_receipt(DECLARED, with_receipt)
    assert (effect.minute, effect.expected, effect.day) == (NOW, 3, today)
    [rolled_up] = rollup.read_receipt(DECLARED, receipt(NOW, **IMPORTED, rollup={"BOOL": True}))
    assert rolled_up.expected == 3
    old = {**CHILD, "at": {"N": str(NOW)}, "nonce": {"S": "n"}, **IMPORTED}
    for since, day in (
        ({"N": str(19_846 * day_s)}, 19_846), ({"N": str(19_847 * day_s - 1)}, 19_846), ({"N": str(10**11)}, today),
        ({"N": "-5"}, today), ({"N": "1e400"}, today), ({"S": "x"}, today), (None, today),
    ):  # fmt: skip
        image = old if since is None else {**old, "likedAt": since}
        put, gone = record("INSERT", CHILD, image), record("REMOVE", CHILD, None, image)
        assert bookkeeper.read_count(DECLARED, put) == (Effect("likes", "p", NOW, 1, day=day),)
        [effect] = bookkeeper.read_count(DECLARED, gone)
        assert (effect.expected, effect.day) == (-1, -1), "the unlike of today is today's"


def test_traffic_and_imports_of_one_minute_are_entries_of_their_own_also_when_they_come_late() -> None:
    play, row = Effect("plays", "v", NOW, 1), Effect("plays", "v", NOW, 30, day=5)
    moved = Effect("plays", "v", NOW, observed=61)
    found = entries(play, row, moved, row)
    assert sorted(found[NOW]) == [JournalEntry("plays", "v", "", 1, 61), JournalEntry("plays", "v", "", 60, 0, 5)]
    assert entries(row, judged=NOW) == {NOW + 2: [JournalEntry("plays", "v", "", 30, 0, 5)]}


EDITS: dict[str, tuple[Keys | None, Keys | None]] = {
    "same nonce": (plays(7, "a", NOW - 500), plays(5, "a", NOW - 500)),
    "the rollup's nonce": (plays(7, "+a", NOW - 500), plays(5, "+a", NOW - 500)),
    "a repair's nonce": (plays(7, "~2.a", NOW - 500), plays(5, "~2.a", NOW - 500)),
    "nonce removed": (plays(7, None, NOW - 500), plays(5, "a", NOW - 500)),
    "put": (plays(2, None, NOW - 500), None),
    "removed": (None, plays(-2, "a", NOW - 500)),
    "removed repair": (None, plays(-2, "~2.a", NOW - 500)),
    "an old image of a repair": (plays(7, "~4.a", NOW - 500), plays(5, "b", NOW)),
    "no repair's nonce": (plays(7, "~a", NOW - 500), plays(5, "b", NOW)),
}


@pytest.mark.parametrize(("new", "old"), EDITS.values(), ids=EDITS)
def test_manual_edit_is_booked_on_its_records_minute(new: Keys | None, old: Keys | None) -> None:
    assert moved(new, old) == [Effect("plays", "v", NOW, observed=2)]


def test_what_is_no_change_of_a_number_has_no_effect() -> None:
    assert moved(plays(9, "~4.a"), plays(5, "b")) == [], "a repair is booked nowhere"
    assert moved(plays(5, "c"), plays(5, "b")) == []


def test_item_that_comes_or_goes_moves_its_tally_from_or_to_what_its_counter_starts_with() -> None:
    contest = counters.CONTEST
    key = tallies.key(contest, "c", 0)
    image = key | {contest.attribute: {"N": str(contest.start + 5)}}
    for name, images, amount in (("INSERT", (image, None), 5), ("REMOVE", (None, image), -5)):
        effects = bookkeeper.read_count(DECLARED, record(name, key, *images))
        assert list(effects) == [Effect("contest", "c", NOW, observed=amount)]
    assert contest.start


# A run


def entries(*effects: Effect, judged: int = -1) -> dict[int, list[JournalEntry]]:
    """The segments of a run of these, one record each."""
    run = SegmentRun("1", BatchContext("counts", "s", NOW, judged))
    for effect in effects:
        run.add([effect])
    return run.segments()


GONE = Effect("likes", "p", NOW, -1, pair="x")
UNLIKED = Effect("likes", "p", NOW, observed=-1, pair="x")


def test_unlike_whose_halves_meet_in_a_run_is_a_plain_entry() -> None:
    other, even = GONE._replace(pair="y"), Effect("likes", "p", NOW, 1, 1)
    left = JournalEntry("likes", "p", "y", -1, 0)
    assert sorted(entries(GONE, even, other, UNLIKED)[NOW]) == [left], "what comes to nothing is left out"
    assert sorted(entries(GONE, other, UNLIKED)[NOW]) == [JournalEntry("likes", "p", "", -1, -1), left]
    apart = entries(GONE, UNLIKED._replace(minute=NOW + 1))
    assert apart == {NOW: [JournalEntry("likes", "p", "x", -1, 0)], NOW + 1: [JournalEntry("likes", "p", "x", 0, -1)]}
    assert entries(even, even._replace(expected=-1, observed=-1)) == {}, "and so is its segment"


@pytest.mark.parametrize(("judged", "current"), [(NOW, NOW + 2), (NOW - 2, NOW), (NOW + 60, NOW + 62)])
def test_entry_of_a_judged_minute_goes_to_the_current_one_without_its_name(judged: int, current: int) -> None:
    late = GONE._replace(minute=judged), Effect("plays", "v", judged - 1, 5)
    assert entries(*late, judged=judged) == {
        current: [JournalEntry("likes", "p", "", -1, 0), JournalEntry("plays", "v", "", 5, 0)]
    }
    assert entries(GONE._replace(minute=judged + 1), judged=judged) == {
        judged + 1: [JournalEntry("likes", "p", "x", -1, 0)]
    }


@pytest.mark.parametrize("name", ["INSERT", "MODIFY", "REMOVE"])
@pytest.mark.parametrize(
    ("table", "keys"),
    [
        ("counts", CHILD),
        ("counts", PLAYS),
        ("counts", {"PK": {"S": "HEARTBEAT#7"}, "SK": {"S": "HEARTBEAT"}}),
        ("receipts", {"id": {"S": "tally#x"}}),
        ("receipts", {"id": {"S": "heartbeat#7"}}),
    ],
)
@pytest.mark.parametrize("image", [None, {}, *({"rollup": mark} for mark in MARKS)])
def test_what_is_for_a_consumer_is_what_its_filter_lets_through(
    name: str, table: str, keys: Keys, image: Keys | None
) -> None:
    made = record(name, keys, image, {})
    assert goes_to_rollup(table, made) == passes_filters(ROLLUP, table, made)
    assert goes_to_bookkeeper(table, made) == passes_filters(BOOKKEEPER, table, made)
