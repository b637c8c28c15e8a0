"""Until when the consumers have provably passed everything: shard trees, heartbeats, peeks, and the JUDGE item."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import pytest
from botocore.exceptions import ClientError

from tally.dynamo import keys, queries
from tally.dynamo.client import Call, Store
from tally.dynamo.shards import ShardTree
from tally.errors import ConfigurationError, StoreBusyError
from tally.streams import lineage, watermark
from tally.streams.lineage import StreamsSnapshot
from tally.streams.watermark import Watermark
from tests.tiers import in_long


class Shard(NamedTuple):
    """A stream shard, and the one that it follows."""

    id: str
    parent: str | None = None


NOW_S = 1_800_000_000.0
MINUTE = int(NOW_S // 60)
CONSUMERS, TABLES = ("rollup", "bookkeeper"), ("counts", "receipts")
ONE = {"counts": [Shard("c")], "receipts": [Shard("r")]}
RECORD: dict[str, Any] = {}


@dataclass
class Streams:
    """Stream shards: `trees` by table, and what GetRecords answers for a shard, call by call."""

    trees: dict[str, list[Shard]] = field(default_factory=lambda: dict(ONE))
    answers: dict[str, list[list[Any]]] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    failing: bool = False

    def list_shards(self, table: str) -> ShardTree:
        return {one.id: one.parent for one in self.trees[table]}

    def records_after(self, table: str, shard: str, sequence: str | None) -> Iterator[list[Any]]:
        assert shard in {one.id for one in self.trees[table]}, "DynamoDB knows no other"
        self.asked.append((shard, sequence))
        if self.failing:
            raise StoreBusyError("The store is busy.")
        yield from self.answers.get(shard, itertools.repeat([]))


@dataclass
class Stack:
    """The tables and streams of a deployment."""

    store: Store
    streams: Streams = field(default_factory=Streams)

    def mark(
        self,
        shard: str,
        ago_s: float = 2,
        *,
        consumer: str = "",
        sequence: int = 9,
        note: int = 9,
        heartbeat: str = "k",
        table: str = "",
    ) -> None:
        """The checkpoint of a consumer, or of both, in a shard. 0 and empty: it has passed no such record.

        Without a table the shard's first letter names it.
        """
        table = table or ("receipts" if shard[0] == "r" else "counts")
        for name in [consumer] if consumer else CONSUMERS:
            item = keys.key(*keys.checkpoint_key(name, table, shard))
            item |= {"sequence": {"S": str(sequence)}, "through": {"N": str(int(NOW_S - ago_s))}}
            item |= {"heartbeat": {"S": heartbeat}} if heartbeat else {}
            item |= {"note": {"S": str(note)}} if note else {}
            self.store.client.put_item(TableName=self.store.settings.ledger_table, Item=item)

    def look(self) -> StreamsSnapshot:
        return lineage.read_streams(self.store, self.streams, NOW_S)  # type: ignore[arg-type]

    def sweep(self, now_s: float) -> Watermark:
        """A sweep; the watermark that it began with."""
        seen = watermark.read(self.store)
        watermark.advance(self.store, self.streams, seen, now_s)  # type: ignore[arg-type]
        return seen

    def heartbeats(self, table: str) -> set[str]:
        """The keys of the heartbeats."""
        settings = self.store.settings
        items = self.store.client.scan(
            TableName=settings.counts_table if table == "counts" else settings.receipts_table
        )
        return {(item.get("PK") or item["id"])["S"].partition("#")[2] for item in items["Items"]}

    def noted(self) -> dict[str, Any]:
        """The JUDGE item."""
        item = queries.get(self.store.client, self.store.settings.ledger_table, watermark.WATERMARK_KEY)
        return {name: next(iter(value.values())) for name, value in item.items()}


@pytest.fixture
def stack(store: Store) -> Stack:
    return Stack(store)


@pytest.fixture
def abreast(stack: Stack) -> Stack:
    """A stack whose consumers are 2 s behind in the only shard of each stream."""
    stack.mark("c")
    stack.mark("r")
    return stack


def abreast_at(stack: Stack, after_s: float) -> None:
    """Both consumers have passed everything up to then."""
    for shard in "cr":
        stack.mark(shard, -after_s)


def ago_s(time_s: float) -> float:
    return NOW_S - time_s


# What the checkpoints prove


def passed_s(look: StreamsSnapshot) -> tuple[float, float]:
    """How long ago the time is that the rollup has passed everywhere, and the bookkeeper."""
    return ago_s(look.all_passed_s("rollup")), ago_s(look.all_passed_s("bookkeeper"))


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("shard", ["c1", "r1"])
def test_consumer_behind_in_one_shard_holds_up_what_depends_on_it(stack: Stack, consumer: str, shard: str) -> None:
    """Though the heartbeats in the other shards are passed."""
    stack.streams.trees = {table: [Shard(f"{table[0]}{number}") for number in range(3)] for table in TABLES}
    stack.streams.answers = {shard: [[RECORD]]}
    for number in range(3):
        stack.mark(f"c{number}")
        stack.mark(f"r{number}")
    stack.mark(shard, 3000, consumer=consumer, sequence=8)
    look = stack.look()
    assert passed_s(look) == ((3000, 60) if consumer == "rollup" else (60, 3000))
    assert look.most_lagging(consumer)[0].split()[1] == shard


# The rollup, which gets few records: what the bookkeeper has passed tells how far it is


@pytest.mark.parametrize(
    ("marks", "passed"),
    [
        ([("c1", "bookkeeper", 9, 0)], 70),  # nothing for the rollup came there: a leaf with changes only
        ([("c1", "bookkeeper", 9, 8)], 400),  # something came, and the rollup has not begun
        ([("c1", "bookkeeper", 9, 8), ("c1", "rollup", 8, 8)], 70),
        ([("c1", "bookkeeper", 9, 8), ("c1", "rollup", 7, 7)], 300),
        ([("c1", "bookkeeper", 11, 9), ("c1", "rollup", 10, 10)], 70),  # numbers, not strings
        ([("c0", "bookkeeper", 9, 10), ("c1", "bookkeeper", 9, 0)], 400),  # the shard before it is not finished
        ([("c0", "bookkeeper", 9, 10), ("c1", "bookkeeper", 9, 8), ("c1", "rollup", 8, 8)], 70),  # it is
    ],
)
def test_rollup_has_passed_what_the_bookkeeper_has_if_it_has_passed_the_newest_record_for_it(
    stack: Stack, marks: list[tuple[str, str, int, int]], passed: int
) -> None:
    """j1: one leaf of a split, with changes only, stopped `as_of`, judging, series and repairs of the whole stack."""
    stack.streams.trees["counts"] = [Shard("c0"), Shard("c1", "c0")]
    stack.mark("r")
    stack.mark("c0", 400)
    for shard, consumer, sequence, note in marks:
        ago = 400 if shard == "c0" else 70 if consumer == "bookkeeper" else 300
        stack.mark(shard, ago, consumer=consumer, sequence=sequence, note=note)
    assert passed_s(stack.look())[0] == passed


@pytest.mark.parametrize(("after_min", "passed"), [(5, 400), (7, 70)])
def test_rollup_does_not_wait_for_what_is_gone_from_the_stream(stack: Stack, after_min: int, passed: int) -> None:
    """It was off for more than a day, and no record for it came to the leaf since: that stopped judging for good."""
    stack.streams.trees["counts"] = [Shard("c0"), Shard("c1", "c0")]
    stack.mark("r")
    stack.mark("c0", 400, consumer="rollup", sequence=9)
    stack.mark("c0", lineage.STREAM_RETENTION_S + 60 * after_min, consumer="bookkeeper", sequence=12, note=10)
    stack.mark("c1", 70, consumer="bookkeeper", note=0)
    assert passed_s(stack.look())[0] == passed


# Shard trees


def test_stream_without_shards_proves_nothing(abreast: Stack) -> None:
    for table in TABLES:
        abreast.streams.trees = ONE | {table: []}
        assert passed_s(abreast.look()) == (NOW_S, NOW_S)


def test_nothing_is_known_of_the_last_minute_for_a_shard_may_not_be_listed_yet(abreast: Stack) -> None:
    assert passed_s(abreast.look()) == (60, 60)
    settings = abreast.store.settings._replace(minute_s=4)
    assert passed_s(replace(abreast.look(), store=replace(abreast.store, settings=settings))) == (4, 4)


def test_shard_that_was_not_begun_counts_by_the_one_that_it_follows(stack: Stack) -> None:
    """Lambda finishes a parent before its children: what the parent's checkpoint says holds for them too."""
    stack.mark("r")
    stack.streams.trees["counts"] = [Shard("c0"), Shard("c1", "c0"), Shard("c2", "c0"), Shard("c3", "c2")]
    stack.streams.answers = {"c3": [[RECORD]]}
    stack.mark("c0", 300)
    stack.mark("c1", 80)
    look = stack.look()
    assert [leaf[0] for leaf in look.leaves["counts"]] == ["c1", "c3"]
    assert passed_s(look) == (300, 300)
    stack.mark("c2", 200)
    assert passed_s(stack.look()) == (200, 200)
    stack.streams.trees["counts"] = stack.streams.trees["counts"][1:]  # c0 is listed no more, and its checkpoint stands
    assert passed_s(stack.look()) == (200, 200)


def test_shards_that_follow_each_other_in_a_circle_end_the_walk(stack: Stack) -> None:
    stack.streams.trees["counts"] = [Shard("c0", "c1"), Shard("c1", "c0"), Shard("c2", "c1")]
    stack.mark("r")
    stack.mark("c0", 70)
    assert passed_s(stack.look()) == (70, 70)


# Heartbeats


def test_leaf_without_a_key_is_sent_that_of_the_shard_before_it_and_random_ones_once_it_is_quiet(stack: Stack) -> None:
    stack.streams.trees["counts"] = [Shard("c0"), Shard("c1", "c0"), Shard("c2", "c0")]
    stack.mark("c0", 100, heartbeat="old")
    stack.mark("r", 100, heartbeat="")
    stack.sweep(NOW_S)
    assert (stack.heartbeats("counts"), stack.heartbeats("receipts")) == ({"old"}, set())
    stack.sweep(NOW_S + 60)
    stack.sweep(NOW_S + 120)
    counts = stack.heartbeats("counts")
    assert "old" in counts
    assert len(counts) == 1 + 2 * 8, "others in each sweep: what all miss at once is not missed for ever"
    assert len(stack.heartbeats("receipts")) == 2 * 8


def test_shard_of_the_same_name_in_the_other_stream_is_another_shard(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DynamoDB promises different ids within one stream only. An emulator had the same one in both: judging stopped."""
    stack.streams.trees = {table: [Shard("same")] for table in TABLES}
    stack.mark("same", table="counts")
    stack.mark("same", 200, table="receipts", heartbeat="")
    stack.sweep(NOW_S)
    assert stack.heartbeats("counts") == {"k"}
    assert len(stack.heartbeats("receipts")) == watermark.RANDOM_HEARTBEATS
    stack.mark("same", 200, table="counts", heartbeat="")
    monkeypatch.setattr(stack.streams, "records_after", lambda table, *_: [[RECORD] * (table == "counts")])
    look = stack.look()
    assert [ago_s(look.passed_s("bookkeeper", table)) for table in TABLES] == [200, 60]


@pytest.mark.parametrize("quiet", [False, True])
def test_heartbeat_that_fails_stops_no_other_and_its_leaf_is_one_without_a_key(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    """j6: one key that was always throttled, and no shard had a heartbeat."""
    stack.streams.trees["counts"] = [Shard(f"c{number}") for number in range(3)]
    stack.mark("r")
    for number in range(3):
        stack.mark(f"c{number}", 200 if quiet and number == 0 else 2, heartbeat=f"k{number}")
    put = stack.store.client.put_item
    refused: list[str] = []

    def throttled(**write: Any) -> Any:
        key = write["Item"].get("PK", {}).get("S", "")
        if key == "HEARTBEAT#k0":
            refused.append(key)
            raise ClientError({"Error": {"Code": "ProvisionedThroughputExceededException"}}, "PutItem")
        return put(**write)

    monkeypatch.setattr(stack.store.client, "put_item", throttled)
    stack.sweep(NOW_S)
    assert len(refused) == 1
    assert {"k1", "k2"} < stack.heartbeats("counts")
    assert len(stack.heartbeats("counts")) == 2 + watermark.RANDOM_HEARTBEATS
    assert stack.streams.asked == [("c0", "9")] * quiet, "that leaf alone is read"
    assert stack.noted()["rolled"] == str(int(NOW_S) - 60)


# Leaves that no heartbeat reaches


@pytest.fixture
def quiet(stack: Stack) -> Stack:
    """A leaf `c2` that no key of ours lies in: it follows `c0` as `c1` does, and nothing comes there."""
    stack.streams.trees["counts"] = [Shard("c0"), Shard("c1", "c0"), Shard("c2", "c0")]
    stack.mark("c0", 400)
    for shard in ("c1", "r"):
        stack.mark(shard, 1)
    return stack


@pytest.mark.parametrize(
    ("removed", "then", "left"), [(3, [], False), (3, [RECORD], True), (18, [], False), (19, [], True)]
)
def test_what_expires_is_no_record_that_is_left(stack: Stack, removed: int, then: list[Any], left: bool) -> None:
    """The bookkeeper gets no removal of a receipt. It gets every record of counts."""
    stack.mark("r", 200, heartbeat="")
    stack.mark("c", 200, heartbeat="")
    answers = [*[[{"eventName": "REMOVE"}]] * removed, then]
    stack.streams.answers = {"r": answers, "c": [[]] * 5}
    assert ago_s(stack.look().passed_s("bookkeeper", "receipts")) == (200 if left else 60)
    stack.streams.answers = {"c": answers}
    assert ago_s(stack.look().passed_s("bookkeeper", "counts")) == 200


@pytest.mark.parametrize(("ago_s", "peeked"), [(119, False), (120, False), (121, True)])
@pytest.mark.parametrize("key", ["", "k"])
def test_leaf_is_peeked_at_if_it_is_quiet_and_no_heartbeat_reaches_it(
    stack: Stack, ago_s: int, peeked: bool, key: str
) -> None:
    stack.mark("c", ago_s, heartbeat=key)
    stack.mark("r", 1)
    stack.sweep(NOW_S)
    assert bool(stack.streams.asked) == (peeked and not key)


def test_quiet_leaf_without_records_is_passed(quiet: Stack) -> None:
    assert passed_s(quiet.look()) == (60, 60)
    assert quiet.streams.asked == [("c2", None), ("c0", "9")], "once each; what is before it was finished in part"


@pytest.mark.parametrize(
    ("tree", "left", "passed"),
    [
        ({"c2": "c0"}, {"c2": [[], [], [RECORD], []]}, 400),
        ({"c2": "c0"}, {"c0": [[], [], [RECORD], []]}, 400),
        ({"c9": "c0", "c2": "c9"}, {"c9": [[RECORD]]}, 400),
        ({"c2": "c9"}, {}, 60),
        ({"c2": "c0"}, {"c2": [[]] * 5 + [[RECORD]]}, 60),
    ],
    ids=["a record", "one before it", "one between them", "not listed", "nothing five times"],
)
def test_record_that_is_left_in_a_leaf_or_before_it_holds_both_up(
    quiet: Stack, tree: dict[str, str], left: dict[str, list[list[Any]]], passed: int
) -> None:
    first = [] if tree == {"c2": "c9"} else [Shard("c0")]
    quiet.streams.trees["counts"] = [*first, Shard("c1", "c0"), *itertools.starmap(Shard, tree.items())]
    quiet.streams.answers |= left
    assert passed_s(quiet.look()) == (passed, passed)


def test_shard_is_read_from_the_checkpoint_on_and_none_before_it(quiet: Stack) -> None:
    quiet.streams.answers["c0"] = [[RECORD]]
    quiet.mark("c2", 300, heartbeat="")
    assert passed_s(quiet.look()) == (60, 60)
    assert quiet.streams.asked == [("c2", "9")]


def test_shard_that_cannot_be_read_is_not_passed(quiet: Stack) -> None:
    quiet.streams.failing = True
    assert passed_s(quiet.look()) == (400, 400)


# The JUDGE item


def test_a_ledger_of_another_format_is_neither_read_nor_written(abreast: Stack) -> None:
    abreast.sweep(NOW_S)
    assert abreast.noted()["format"] == str(keys.FORMAT)
    other = watermark.WATERMARK_KEY | {"format": {"N": str(keys.FORMAT + 1)}}
    abreast.store.client.put_item(TableName=abreast.store.settings.ledger_table, Item=other)
    says = f"in format {keys.FORMAT + 1}, and this Tally reads format {keys.FORMAT}"
    for read in (partial(abreast.sweep, NOW_S + 60), partial(watermark.as_of, Call(abreast.store))):
        with pytest.raises(ConfigurationError, match=says):
            read()
    assert "noted" not in abreast.noted()


@pytest.mark.parametrize("stalled", [10, *in_long([0])])
@pytest.mark.parametrize("restored_ago", [None, 1, 4, 99])
def test_judge_starts_once_the_first_sweeps_minute_is_closed_with_the_first_one_of_the_tables_life(
    stack: Stack, stalled: int, restored_ago: int | None
) -> None:
    """A5: an edit in the first minutes of a stack was never found. A consumer that stalls delays that only."""
    if restored_ago is not None:
        restored = watermark.WATERMARK_KEY | {"restored": {"N": str(60 * (MINUTE - restored_ago) + 59)}}
        stack.store.client.put_item(TableName=stack.store.settings.ledger_table, Item=restored)
    stack.streams.answers = {"c": [[RECORD]], "r": [[RECORD]]}
    first = None
    for minute in range(20):
        if minute == 0 or minute > stalled:
            abreast_at(stack, 60 * minute)
        closed = watermark.read(stack.store).last_complete_minute(stack.store.settings)
        stack.sweep(NOW_S + 60 * minute)
        assert ("judged" in stack.noted()) == (first is not None or closed >= MINUTE)
        first = minute if first is None and "judged" in stack.noted() else first
    after = 0 if restored_ago is None else max(0, 2 - restored_ago)
    assert watermark.last_judged_minute(stack.store) == MINUTE + after - 1, "only the judge moves it on"
    assert first is not None
    assert first <= stalled + 8


def test_what_the_rollup_has_added_is_known_once_the_bookkeeper_has_passed_it_too(abreast: Stack) -> None:
    """The question is answered by what the bookkeeper passes in every shard of counts, and by nothing else."""
    abreast.streams.trees["counts"] = [Shard("c"), Shard("c1")]
    known = []
    for minute in range(8):
        abreast_at(abreast, 60 * minute)
        abreast.mark("c1", 2 if minute < 5 else -60 * minute)
        abreast.streams.answers["c1"] = [[RECORD]]
        abreast.sweep(NOW_S + 60 * minute)
        known.append(int(abreast.noted()["known"]) - NOW_S)
    assert known == [-NOW_S] * 5 + [-60] * 2 + [60 * 5 - 60]


def test_of_two_sweeps_at_once_one_notes_and_what_is_young_is_not_used(abreast: Stack) -> None:
    settings = abreast.store.settings
    abreast.sweep(NOW_S)
    first, second = watermark.read(abreast.store), watermark.read(abreast.store)
    abreast_at(abreast, 60)
    watermark.advance(abreast.store, abreast.streams, first, NOW_S + 60)  # type: ignore[arg-type]
    watermark.advance(abreast.store, abreast.streams, second, NOW_S + 61)  # type: ignore[arg-type]
    assert float(abreast.noted()["noted"]) == NOW_S + 60
    seen = watermark.read(abreast.store)
    assert [seen.is_too_fresh(settings, NOW_S + 60 + after_s) for after_s in (0, 9.9, 10)] == [True, True, False]
    fast = settings._replace(minute_s=6)
    assert [seen.is_too_fresh(fast, NOW_S + 60 + after_s) for after_s in (0.9, 1)] == [True, False]


@pytest.mark.parametrize(
    ("made_s", "began_s"), [(NOW_S - 90, NOW_S - 90), (NOW_S + 9, NOW_S), (1, NOW_S - 24 * 3600)],
    ids=["a record's time", "a clock ahead", "no stream keeps so old a record"],
)  # fmt: skip
def test_the_first_record_begins_the_ledger_and_a_sweep_at_the_same_time_does_not(
    abreast: Stack, made_s: float, began_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    seen = watermark.read(abreast.store)
    for at_s in (made_s, NOW_S - 1):
        watermark.ensure_begun(Call(abreast.store), at_s)
    watermark.advance(abreast.store, abreast.streams, seen, NOW_S)  # type: ignore[arg-type]
    assert (abreast.noted()["began"], "noted" in abreast.noted()) == (str(int(began_s)), False)
    abreast.sweep(NOW_S + 60)
    assert (abreast.noted()["began"], "noted" in abreast.noted()) == (str(int(began_s)), True)


@pytest.mark.parametrize("made_ago_s", [1000, 0])
def test_as_of_does_not_pass_what_the_rollup_has_set_aside_nor_what_has_just_left(
    abreast: Stack, made_ago_s: int
) -> None:
    """j13. A redrive may be seen before its addition is: one more sweep goes by the old marker."""
    settings, table = abreast.store.settings, abreast.store.settings.ledger_table
    made_s = int(NOW_S) - made_ago_s
    marker = keys.key(keys.DEAD_LETTER_KEY, f"rollup#{made_s:010}#r#7")
    younger = keys.key(keys.DEAD_LETTER_KEY, f"rollup#{made_s + 5:010}#a#7")
    other = keys.key(keys.DEAD_LETTER_KEY, f"bookkeeper#{made_s - 100:010}#r#7")
    shown = []
    for minute in range(6):
        abreast_at(abreast, 60 * minute)
        if minute == 1:
            for key in (younger, other, marker):
                abreast.store.client.put_item(TableName=table, Item=key)
        if minute == 3:
            abreast.store.client.delete_item(TableName=table, Key=marker)
            abreast.store.client.delete_item(TableName=table, Key=younger)
        abreast.sweep(NOW_S + 60 * minute)
        shown.append(watermark.read(abreast.store).as_of(settings))
    rolled = [int(NOW_S) + 60 * minute - 60 for minute in range(6)]
    wanted = [min(rolled[0], made_s), min(rolled[1], made_s), made_s, rolled[3], rolled[4]]
    assert shown == [None, *(time_s - 5 for time_s in wanted)]


def test_a_watermark_does_not_go_back(abreast: Stack) -> None:
    """A checkpoint expires, and a shard that is new to the list has none."""
    for minute in range(6):
        abreast_at(abreast, 60 * minute)
        abreast.sweep(NOW_S + 60 * minute)
    seen = watermark.read(abreast.store)
    assert min(seen.journal_complete_s, seen.rollup_passed_s) > NOW_S
    abreast.streams.trees["counts"] = [Shard("c7")]
    abreast.streams.answers["c7"] = [[RECORD]]
    for minute in (6, 7, 8):
        abreast.sweep(NOW_S + 60 * minute)
        again = watermark.read(abreast.store)
        assert (again.journal_complete_s, again.rollup_passed_s) == (seen.journal_complete_s, seen.rollup_passed_s)


def test_note_does_not_take_back_what_a_judge_did_meanwhile(abreast: Stack) -> None:
    for minute in range(10):
        abreast_at(abreast, 60 * minute)
        abreast.sweep(NOW_S + 60 * minute)
    seen = watermark.read(abreast.store)
    abreast.store.client.update_item(
        TableName=abreast.store.settings.ledger_table, Key=watermark.WATERMARK_KEY,
        UpdateExpression="ADD judged :one", ExpressionAttributeValues={":one": {"N": "1"}},
    )  # fmt: skip
    watermark.advance(abreast.store, abreast.streams, seen, NOW_S + 600)  # type: ignore[arg-type]
    assert watermark.last_judged_minute(abreast.store) == seen.judged + 1 > 1


# What follows from it


def test_minute_is_closed_two_minutes_and_a_skew_after_it_began(store: Store) -> None:
    for known_s, minute_s, closed in (
        (0, 60, -1), (60 * MINUTE + 4, 60, MINUTE - 3), (60 * MINUTE + 5, 60, MINUTE - 2),
        (60 * MINUTE + 64, 60, MINUTE - 2), (12 * MINUTE, 12, MINUTE - 3), (12 * MINUTE + 1, 12, MINUTE - 2),
    ):  # fmt: skip
        settings = store.settings._replace(minute_s=minute_s)
        assert Watermark(journal_complete_s=known_s).last_complete_minute(settings) == closed


def test_as_of_is_asked_once_a_second_at_most_and_is_none_before_there_is_watermark(
    abreast: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "time", lambda: NOW_S + 20)
    call = Call(abreast.store)
    assert watermark.as_of(call) is None
    abreast.sweep(NOW_S - 60)
    abreast.sweep(NOW_S)
    clock[0] += watermark.CACHE_S / 2
    assert watermark.as_of(call) is None
    clock[0] += watermark.CACHE_S / 2
    assert watermark.as_of(call) == NOW_S - 120 - 5
    other = replace(abreast.store, settings=abreast.store.settings._replace(ledger_table="tally-none"))
    with pytest.raises(Exception, match="refused"):
        watermark.as_of(Call(other))


def test_age_is_since_the_time_that_a_consumer_has_passed_or_since_the_first_sweep(stack: Stack) -> None:
    def ages(now_s: float) -> dict[str, int]:
        seen = watermark.read(stack.store)
        look = watermark.advance(stack.store, stack.streams, seen, now_s)  # type: ignore[arg-type]
        return watermark.lags_s(look, seen, now_s)

    assert ages(NOW_S - 120) == {"rollup": 0, "bookkeeper": 0}
    assert ages(NOW_S - 60) == {"rollup": 60, "bookkeeper": 60}
    stack.mark("c", 2)
    stack.mark("r", 70, consumer="rollup", sequence=8)
    stack.mark("r", 2, consumer="bookkeeper")
    assert ages(NOW_S) == {"rollup": 70, "bookkeeper": 60}
