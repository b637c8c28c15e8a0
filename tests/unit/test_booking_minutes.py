"""Tests on which minute the bookkeeper books each half of a change, for every kind of record."""

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

NOW = 29_916_666  # the current minute, counted from 1970
DECLARED = CounterIndex(counters.COUNTERS)
Item = dict[str, Any]
PLAYS: Item = tallies.key(counters.PLAYS, "v", shard=3)
CHILD: Item = {"PK": {"S": "POST#p"}, "SK": {"S": f"{counters.LIKES.child}ann"}}
# The minute of a change, and the minute that the change is booked on.
STAMPS = [(NOW, NOW), (NOW - 1, NOW - 1), (NOW + 1, NOW + 1), (NOW - 2, NOW), (NOW + 2, NOW), (NOW - 300, NOW)]
# Values of the attribute `rollup`. The last two are not in DynamoDB's wire form.
ROLLUPS: list[Any] = [{"BOOL": True}, {"BOOL": False}, {"S": "true"}, {"N": "1"}, {"NULL": True}, {"M": {}}, True, None]
UNUSABLE_STAMPS: list[Any] = [None, {"S": "x"}, {"N": "1.5"}, {"N": "-7"}, {"N": str(10**10)}, {"NULL": True}]


def record(event: str, keys: Item, new: Any = None, old: Any = None) -> Record:
    """Returns a record with these images, made at the end of the current minute. None: the record lacks this image."""
    images = {which: image for which, image in (("NewImage", new), ("OldImage", old)) if image is not None}
    return {"eventName": event, "dynamodb": {"Keys": keys, "ApproximateCreationDateTime": NOW * 60 + 59.9, **images}}


def plays(number: int, nonce: str | None, at: Any = NOW) -> Item:
    """Returns the image of a tally item. `at`: the minute of its last change, or an attribute; None: no attribute.

    `nonce`: of the rollup (`+…`), of a repair (`~<amount>.…`), of the removal of a child (`-<pair>.…`), or of a change.
    """
    stamp = {"N": str(at)} if isinstance(at, int) else at
    fields = {"at": stamp, "nonce": {"S": nonce} if nonce else None}
    return {**PLAYS, "play_count": {"N": str(number)}} | {name: value for name, value in fields.items() if value}


def tally_effects(new: Item | None, old: Item | None) -> list[Effect]:
    """Returns the effects of a changed tally item with these images. `new` is None: removed; `old` is None: new."""
    name = "REMOVE" if new is None else "INSERT" if old is None else "MODIFY"
    return list(bookkeeper.read_count(DECLARED, record(name, PLAYS, new, old)))


def receipt(at: int = NOW, **attributes: Any) -> Record:
    image = {"counter": {"S": "plays"}, "target": {"S": "v"}, "amount": {"N": "3"}, "at": {"N": str(at)}} | attributes
    return record("INSERT", {"id": {"S": "tally#1"}}, image)


def child(at: Any = NOW, event: str = "INSERT", **attributes: Any) -> Record:
    stamp = {"N": str(at)} if isinstance(at, int) else at
    image = {**CHILD, "likedAt": {"N": "1"}, "nonce": {"S": "n"}} | ({"at": stamp} if stamp else {}) | attributes
    return record(event, CHILD, *((None, image) if event == "REMOVE" else (image, None)))


@pytest.mark.parametrize(("at", "booked"), STAMPS)
def test_a_change_is_booked_on_its_own_minute_if_that_is_within_a_minute_of_the_record(at: int, booked: int) -> None:
    assert bookkeeper.read_receipt(DECLARED, receipt(at)) == (Effect("plays", "v", booked, 3),)
    assert bookkeeper.read_count(DECLARED, child(at)) == (Effect("likes", "p", booked, 1),)
    assert tally_effects(plays(7, "a", at), plays(5, "b")) == [Effect("plays", "v", booked, observed=2)]
    assert tally_effects(plays(7, "-a_b-c", at), None) == [Effect("plays", "v", booked, observed=7)], (
        "a nonce without a dot is not the nonce of a removal"
    )


@pytest.mark.parametrize("at", [NOW - 1, NOW, NOW + 1])
def test_a_spilled_change_is_added_and_booked_on_the_minute_of_its_record(at: int) -> None:
    spilled = {"rollup": {"BOOL": True}}
    for consumer in (rollup, bookkeeper):
        day = at // tallies.MINUTES_PER_DAY if consumer is rollup else -1  # the rollup notes this day on the tally
        assert consumer.read_receipt(DECLARED, receipt(at, **spilled)) == (Effect("plays", "v", NOW, 3, day=day),)
        assert consumer.read_count(DECLARED, child(at, **spilled)) == (Effect("likes", "p", NOW, 1),)


@pytest.mark.parametrize("at", UNUSABLE_STAMPS, ids=str)
def test_a_change_without_a_usable_minute_is_booked_on_the_minute_of_its_record(at: Any) -> None:
    assert bookkeeper.read_count(DECLARED, child(at)) == (Effect("likes", "p", NOW, 1),)
    assert rollup.read_count(DECLARED, child(at, rollup={"BOOL": True})) == (Effect("likes", "p", NOW, 1),)
    assert tally_effects(plays(7, "a", at), None) == [Effect("plays", "v", NOW, observed=7)]
    assert tally_effects(plays(7, "+a", at), None) == [Effect("plays", "v", NOW, observed=7)]


@pytest.mark.parametrize(("at", "booked"), [(NOW, NOW), (NOW - 300, NOW - 300), (NOW + 2, NOW + 2), (NOW + 3, NOW)])
def test_an_addition_of_the_rollup_is_booked_on_the_minute_that_it_names_unless_that_is_over_two_minutes_ahead(
    at: int, booked: int
) -> None:
    assert tally_effects(plays(9, "+a", at), plays(5, "b")) == [Effect("plays", "v", booked, observed=4)]


def test_both_halves_of_a_removal_are_booked_as_a_pair_on_the_minutes_of_their_records() -> None:
    removal = child(NOW - 500, "REMOVE")
    pair = removal_pair_of(removal["dynamodb"]["OldImage"])
    assert bookkeeper.read_count(DECLARED, removal) == (Effect("likes", "p", NOW, -1, pair=pair),)
    tally_after = plays(4, f"{tallies.removal_nonce(pair)}xyz", NOW - 500)
    assert tally_effects(tally_after, plays(5, "b")) == [Effect("plays", "v", NOW, observed=-1, pair=pair)]


def test_the_tombstone_of_a_child_is_not_a_child() -> None:
    """The removal of a spilled like leaves a tombstone. A new like may replace the tombstone, and TTL removes it."""
    liked: Any = {**CHILD, "at": {"N": str(NOW)}, "nonce": {"S": "n"}, "likedAt": {"N": "1"}, "rollup": {"BOOL": True}}
    tombstone = {name: value for name, value in liked.items() if name != "at"}
    tombstone |= {tallies.TOMBSTONE: {"N": "1"}, "nonce": {"S": "m"}}
    read = bookkeeper.read_count
    assert read(DECLARED, record("MODIFY", CHILD, tombstone, liked)) == (
        Effect("likes", "p", NOW, -1, pair=removal_pair_of(liked)),
    )
    assert read(DECLARED, record("MODIFY", CHILD, liked, tombstone)) == (Effect("likes", "p", NOW, 1),)
    assert read(DECLARED, record("MODIFY", CHILD, tombstone, tombstone)) == ()
    assert read(DECLARED, record("MODIFY", CHILD, liked, liked)) == ()
    assert read(DECLARED, record("REMOVE", CHILD, None, tombstone)) == ()
    assert read(DECLARED, record("INSERT", CHILD, tombstone)) == ()
    assert rollup.read_count(DECLARED, record("INSERT", CHILD, tombstone)) == ()


IMPORTED = {"imported": {"BOOL": True}}


def test_an_import_is_expected_on_its_minute_and_belongs_to_the_day_of_the_child() -> None:
    """If the time of the child (`likedAt`) is unusable or in the future, the import belongs to today."""
    today, day_s = 60 * NOW // 86_400, 86_400
    with_receipt = receipt(NOW, **IMPORTED)
    [effect] = bookkeeper.read_receipt(DECLARED, with_receipt)
    assert (effect.minute, effect.expected, effect.day) == (NOW, 3, today)
    [rolled_up] = rollup.read_receipt(DECLARED, receipt(NOW, **IMPORTED, rollup={"BOOL": True}))
    assert rolled_up.expected == 3
    imported_child = {**CHILD, "at": {"N": str(NOW)}, "nonce": {"S": "n"}, **IMPORTED}
    for liked_at, day in (
        ({"N": str(19_846 * day_s)}, 19_846), ({"N": str(19_847 * day_s - 1)}, 19_846), ({"N": str(10**11)}, today),
        ({"N": "-5"}, today), ({"N": "1e400"}, today), ({"S": "x"}, today), (None, today),
    ):  # fmt: skip
        image = imported_child if liked_at is None else {**imported_child, "likedAt": liked_at}
        insert, removal = record("INSERT", CHILD, image), record("REMOVE", CHILD, None, image)
        assert bookkeeper.read_count(DECLARED, insert) == (Effect("likes", "p", NOW, 1, day=day),)
        [effect] = bookkeeper.read_count(DECLARED, removal)
        assert (effect.expected, effect.day) == (-1, -1), "the removal is traffic, and belongs to no day of an import"


def test_changes_and_imports_of_one_minute_are_separate_entries_even_if_they_come_late() -> None:
    play, imported = Effect("plays", "v", NOW, 1), Effect("plays", "v", NOW, 30, day=5)
    addition = Effect("plays", "v", NOW, observed=61)
    segments = entries(play, imported, addition, imported)
    both_imports = JournalEntry("plays", "v", pair="", expected=30 + 30, observed=0, day=5)
    assert sorted(segments[NOW]) == [JournalEntry("plays", "v", pair="", expected=1, observed=61), both_imports]
    # The current minute is two minutes after the judged minute.
    assert entries(imported, judged=NOW) == {NOW + 2: [both_imports._replace(expected=30)]}


EDITS: dict[str, tuple[Item | None, Item | None]] = {
    "same nonce": (plays(7, "a", NOW - 500), plays(5, "a", NOW - 500)),
    "the rollup's nonce": (plays(7, "+a", NOW - 500), plays(5, "+a", NOW - 500)),
    "a repair's nonce": (plays(7, "~2.a", NOW - 500), plays(5, "~2.a", NOW - 500)),
    "nonce removed": (plays(7, None, NOW - 500), plays(5, "a", NOW - 500)),
    "put without a nonce": (plays(2, None, NOW - 500), None),
    "removed": (None, plays(-2, "a", NOW - 500)),
    "removed repair": (None, plays(-2, "~2.a", NOW - 500)),
    "an old item with a repair's nonce, restored": (plays(7, "~4.a", NOW - 500), plays(5, "b", NOW)),
    "a nonce that is not of a repair": (plays(7, "~a", NOW - 500), plays(5, "b", NOW)),
}


@pytest.mark.parametrize(("new", "old"), EDITS.values(), ids=EDITS)
def test_an_edit_by_hand_is_booked_on_the_minute_of_its_record(new: Item | None, old: Item | None) -> None:
    assert tally_effects(new, old) == [Effect("plays", "v", NOW, observed=2)]


def test_a_repair_and_a_write_that_keeps_the_number_have_no_effect() -> None:
    assert tally_effects(plays(9, "~4.a"), plays(5, "b")) == [], "a repair is not booked"
    assert tally_effects(plays(5, "c"), plays(5, "b")) == []


def test_a_new_item_moves_its_tally_from_the_start_and_a_removed_item_back_to_the_start() -> None:
    contest = counters.CONTEST
    key = tallies.key(contest, "c", 0)
    image = key | {contest.attribute: {"N": str(contest.start + 5)}}
    for name, images, amount in (("INSERT", (image, None), 5), ("REMOVE", (None, image), -5)):
        effects = bookkeeper.read_count(DECLARED, record(name, key, *images))
        assert list(effects) == [Effect("contest", "c", NOW, observed=amount)]
    assert contest.start, "with a start of 0, this test would prove nothing"


def entries(*effects: Effect, judged: int = -1) -> dict[int, list[JournalEntry]]:
    """Returns the segments of a run whose records have one of these effects each. `judged`: the last judged minute."""
    run = SegmentRun("1", BatchContext("counts", "s", NOW, judged))
    for effect in effects:
        run.add([effect])
    return run.segments()


CHILD_REMOVED = Effect("likes", "p", NOW, -1, pair="x")
TALLY_MOVED = Effect("likes", "p", NOW, observed=-1, pair="x")


def test_a_removal_whose_halves_are_in_one_run_is_an_entry_without_a_pair() -> None:
    lone, balanced = CHILD_REMOVED._replace(pair="y"), Effect("likes", "p", NOW, 1, 1)
    lone_entry = JournalEntry("likes", "p", pair="y", expected=-1, observed=0)
    assert sorted(entries(CHILD_REMOVED, balanced, lone, TALLY_MOVED)[NOW]) == [lone_entry], (
        "an entry whose amounts come to 0 is left out"
    )
    both_halves = JournalEntry("likes", "p", pair="", expected=-1, observed=-1)
    assert sorted(entries(CHILD_REMOVED, lone, TALLY_MOVED)[NOW]) == [both_halves, lone_entry]
    assert entries(CHILD_REMOVED, TALLY_MOVED._replace(minute=NOW + 1)) == {
        NOW: [both_halves._replace(pair="x", observed=0)],
        NOW + 1: [both_halves._replace(pair="x", expected=0)],
    }
    assert entries(balanced, balanced._replace(expected=-1, observed=-1)) == {}, "a segment without entries is left out"


@pytest.mark.parametrize(("judged", "current"), [(NOW, NOW + 2), (NOW - 2, NOW), (NOW + 60, NOW + 62)])
def test_an_entry_of_a_judged_minute_is_booked_on_the_current_minute_without_its_pair(
    judged: int, current: int
) -> None:
    """The current minute is at least `judged + 2`, because the judge may be reading the minute after `judged`."""
    late_effects = CHILD_REMOVED._replace(minute=judged), Effect("plays", "v", judged - 1, 5)
    assert entries(*late_effects, judged=judged) == {
        current: [
            JournalEntry("likes", "p", pair="", expected=-1, observed=0),
            JournalEntry("plays", "v", pair="", expected=5, observed=0),
        ]
    }
    assert entries(CHILD_REMOVED._replace(minute=judged + 1), judged=judged) == {
        judged + 1: [JournalEntry("likes", "p", pair="x", expected=-1, observed=0)]
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
@pytest.mark.parametrize("image", [None, {}, *({"rollup": value} for value in ROLLUPS)])
def test_a_record_is_for_a_consumer_if_and_only_if_its_filter_lets_it_through(
    name: str, table: str, keys: Item, image: Item | None
) -> None:
    change = record(name, keys, image, {})
    assert goes_to_rollup(table, change) == passes_filters(ROLLUP, table, change)
    assert goes_to_bookkeeper(table, change) == passes_filters(BOOKKEEPER, table, change)
