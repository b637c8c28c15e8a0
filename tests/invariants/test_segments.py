"""A run of stream records writes its journal segments once, with the checkpoint. Each segment fits into an item."""

from __future__ import annotations

import secrets
import time

import pytest

import counters
from tally.counting.receipts import DAY_S
from tally.streams import fold, segments
from tally.streams.segments import JournalEntry
from tests.invariants.processes import Crash, client_that_dies
from tests.invariants.stream_records import MINUTE, SHARD, book, like, play
from tests.invariants.streaming import StreamWorld


def test_segments_are_read_as_they_were_written_from_every_bucket(stream: StreamWorld) -> None:
    entries = [  # counter, id, pair name, expected and observed
        JournalEntry("likes", "p", "0123456789ab", -1, 0),
        JournalEntry("likes", "p", "ba9876543210", 0, -1),
        JournalEntry("likes", "p", "", 3, 2),
        JournalEntry("likes", "é/ü", "", 3, -(10**38)),
        JournalEntry("plays", "u", "", 1, 1),
        JournalEntry("plays", "v", "", 30, 0, 19_846),  # an import, with its day
    ]
    for bucket in range(fold.BUCKETS):
        book(stream.store, MINUTE, *entries, name="x#1", bucket=bucket)
        book(stream.store, MINUTE, entries[-1], name="x#2", bucket=bucket)
    book(stream.store, MINUTE + 1, *entries, name="x#1")
    read = list(segments.read_segments(stream.store, MINUTE))
    assert len(read) == 2 * fold.BUCKETS
    assert [segments.removal_halves(segment) for segment in read] == [entries[:2], []] * fold.BUCKETS
    # By counter: the ids, and of each id the expected and the observed amount.
    sums = {"likes": [["p", "é/ü"], [3, 3], [2, -(10**38)]], "plays": [["u", "v"], [1, 30], [1, 0]]}
    assert [segments.columns(segment) for segment in read] == [sums, {"plays": [["v"], [30], [0]]}] * fold.BUCKETS
    imported = [list(segments.imported_amounts(segment, segments.columns(segment))) for segment in read]
    assert imported == [[("plays", "v", 19_846, 30)]] * len(read)
    halves = list(segments.read_segments(stream.store, MINUTE, **segments.ONLY_HALVES))
    assert [half for segment in halves for half in segments.removal_halves(segment)] == entries[:2] * fold.BUCKETS
    assert {name for segment in halves for name in segment} == {"pairs"}
    assert list(segments.read_segments(stream.store, MINUTE + 2)) == []


def test_each_minute_of_a_run_is_a_segment_and_all_commit_with_the_checkpoint(stream: StreamWorld) -> None:
    stream.note_fingerprint(counters.PLAYS)
    began_s, (store, client) = time.time(), stream.watched_store()
    records = [
        play(1, record_minute=MINUTE - 1),
        play(2, record_minute=MINUTE),
        play(3, record_minute=MINUTE - 1),
        play(4, record_minute=MINUTE + 1),
    ]
    stream.deliver("bookkeeper", "receipts", SHARD, records, store=store)
    ((_, parameters),) = client.calls
    assert len(parameters["TransactItems"]) == 3 + 1
    assert sorted(stream.segments()) == [
        (minute, f"receipts#{SHARD}#1", [JournalEntry("plays", "v", pair="", expected=amount, observed=0)])
        for minute, amount in ((MINUTE - 1, 2), (MINUTE, 1), (MINUTE + 1, 1))
    ]
    for row in stream.rows("SEGMENT#"):
        expires_s = int(row["expiration"]["N"])
        assert expires_s % DAY_S == 0, "an exact second would tell when a user was active"
        assert segments.SEGMENT_KEPT_S <= expires_s - int(began_s) < segments.SEGMENT_KEPT_S + DAY_S + 60


PLAYS_OF_61_MINUTES = [play(number, record_minute=MINUTE + number) for number in range(1, 62)]


def test_a_run_has_at_most_forty_minutes(stream: StreamWorld) -> None:
    stream.note_fingerprint(counters.PLAYS)
    store, client = stream.watched_store()
    assert stream.deliver("bookkeeper", "receipts", SHARD, PLAYS_OF_61_MINUTES, store=store) is None
    assert [len(parameters["TransactItems"]) for _, parameters in client.calls] == [40 + 1, 21 + 1]
    assert stream.ledger() == {("plays", "v", MINUTE + number): [1, 0] for number in range(1, 62)}


def test_a_run_ends_before_its_segments_are_too_large_for_items(stream: StreamWorld) -> None:
    """The records have random ids, which no compression shortens, and long amounts."""
    stream.note_fingerprint(counters.PLAYS)
    store, client = stream.watched_store()
    targets = [secrets.token_hex(100) for _ in range(2000)]
    records = [play(number, target, secrets.randbelow(10**38)) for number, target in enumerate(targets, 1)]
    assert stream.deliver("bookkeeper", "receipts", SHARD, records, store=store) is None
    assert len(client.calls) == 2, "two runs"
    assert {len(row["body"]["B"]) < 400_000 for row in stream.rows("SEGMENT#")} == {True}
    assert {target for _, target, _ in stream.ledger()} == set(targets)


@pytest.mark.parametrize("committed", [False, True], ids=["before", "after"])
def test_the_segments_of_a_run_are_stored_if_and_only_if_its_checkpoint_is(
    stream: StreamWorld, committed: bool
) -> None:
    """The process dies before or after it commits the second of two runs. Then Lambda repeats the records."""
    stream.note_fingerprint(counters.PLAYS)
    store = stream.with_client(client_that_dies(stream.raw, write_number=1, committed=committed))
    with pytest.raises(Crash):
        stream.deliver("bookkeeper", "receipts", SHARD, PLAYS_OF_61_MINUTES, store=store)
    checkpoint = int(stream.checkpoint("bookkeeper", "receipts", SHARD)["sequence"])
    assert (checkpoint, len(stream.segments())) == ((61, 61) if committed else (40, 40))
    for _ in range(2):  # the batch begins before the checkpoint, and the second time has no new record
        assert stream.deliver("bookkeeper", "receipts", SHARD, PLAYS_OF_61_MINUTES[10:]) is None
    assert len(stream.segments()) == 61
    assert stream.ledger() == {("plays", "v", MINUTE + number): [1, 0] for number in range(1, 62)}


def test_entries_for_judged_minutes_are_booked_on_the_current_minute_without_a_pair_name(stream: StreamWorld) -> None:
    """On other minutes, the removal of a like has a pair name, by which the judge finds both halves of the removal."""
    stream.mark_judged(MINUTE)
    receipts = [play(1, record_minute=MINUTE - 1), play(2, record_minute=MINUTE), play(3, record_minute=MINUTE + 1)]
    assert stream.deliver("bookkeeper", "receipts", SHARD, receipts) is None
    assert stream.deliver("bookkeeper", "counts", SHARD, [like(1, "ann", "REMOVE")]) is None
    assert sorted((minute == MINUTE + 1, entries) for minute, _, entries in stream.segments()) == [
        (False, [JournalEntry("likes", "p", pair="", expected=-1, observed=0)]),
        (False, [JournalEntry("plays", "v", pair="", expected=2, observed=0)]),
        (True, [JournalEntry("plays", "v", pair="", expected=1, observed=0)]),
    ]
    assert min(minute for minute, _, _ in stream.segments()) == MINUTE + 1
