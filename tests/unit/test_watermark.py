"""Until when the consumers have provably passed everything: shard trees, heartbeats, peeks, and the JUDGE item."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import pytest

from tally.dynamo import keys, queries
from tally.dynamo.client import Call, Store
from tally.dynamo.shards import Tree
from tally.errors import ConfigurationError, StoreBusyError
from tally.streams import lineage, watermark
from tally.streams.lineage import Look
from tally.streams.watermark import Watermark


class Shard(NamedTuple):
    """A stream shard, and the one that it follows."""

    id: str
    parent: str | None = None


NOW_S = 1_800_000_000.0
MINUTE = int(NOW_S // 60)
CONSUMERS, TABLES = ("rollup", "bookkeeper"), ("counts", "receipts")
ONE = {"counts": [Shard("c")], "receipts": [Shard("r")]}
INSERT = {"eventName": "INSERT", "dynamodb": {"Keys": {"PK": {"S": "POST#p"}, "SK": {"S": "META"}}}}
MODIFY, REMOVE = INSERT | {"eventName": "MODIFY"}, INSERT | {"eventName": "REMOVE"}
HEARTBEAT = {"eventName": "MODIFY", "dynamodb": {"Keys": {"PK": {"S": "HEARTBEAT#3"}, "SK": {"S": "HEARTBEAT"}}}}


@dataclass
class Streams:
    """Stream shards: `trees` by table, and what GetRecords answers for a shard, call by call."""

    trees: dict[str, list[Shard]] = field(default_factory=lambda: dict(ONE))
    answers: dict[str, list[list[Any]]] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def listed(self, table: str) -> Tree:
        return {one.id: one.parent for one in self.trees[table]}

    def records_after(self, table: str, shard: str, sequence: str | None) -> Iterator[list[Any]]:
        assert shard in {one.id for one in self.trees[table]}, "DynamoDB knows no other"
        self.asked.append((shard, sequence))
        yield from self.answers.get(shard, itertools.repeat([]))


@dataclass
class Stack:
    """The tables and streams of a deployment."""

    store: Store
    streams: Streams = field(default_factory=Streams)

    def mark(
        self, shard: str, ago_s: float = 2, *, consumer: str = "", rolled_ago_s: float = 60, heartbeat: str = "k"
    ) -> None:
        """The checkpoint of a consumer, or of both, in a shard; which has passed a heartbeat, if that has a key."""
        for name in [consumer] if consumer else CONSUMERS:
            item = keys.key(*keys.checkpoint_key(name, "receipts" if shard[0] == "r" else "counts", shard))
            item |= {"sequence": {"S": "9"}, "through": {"N": str(int(NOW_S - ago_s))}}
            if heartbeat:
                item |= {"heartbeat": {"S": heartbeat}, "rolled": {"N": str(int(NOW_S - rolled_ago_s))}}
            self.store.client.put_item(TableName=self.store.settings.ledger_table, Item=item)

    def look(self) -> Look:
        item = queries.get(self.store.client, self.store.settings.ledger_table, watermark.JUDGE)
        return lineage.look(self.store, self.streams, item, NOW_S)  # type: ignore[arg-type]

    def sweep(self, now_s: float) -> Watermark:
        """A sweep; the watermark that it began with."""
        seen = watermark.read(self.store, now_s)
        watermark.renew(self.store, self.streams, seen, now_s)  # type: ignore[arg-type]
        return seen

    def heartbeats(self, table: str) -> dict[str, int]:
        """The time that each heartbeat carries, by its key."""
        settings = self.store.settings
        items = self.store.client.scan(
            TableName=settings.counts_table if table == "counts" else settings.receipts_table
        )
        found = ((item.get("PK") or item["id"], item) for item in items["Items"])
        return {name["S"].partition("#")[2]: int(item["rolled"]["N"]) for name, item in found}

    def noted(self) -> dict[str, Any]:
        """The JUDGE item."""
        item = queries.get(self.store.client, self.store.settings.ledger_table, watermark.JUDGE)
        return {name: next(iter(value.values())) for name, value in item.items()}


@pytest.fixture(autouse=True)
def _few_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watermark, "HEARTBEATS_TRIED", 2)


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
        stack.mark(shard, -after_s, rolled_ago_s=-after_s)


def ago_s(time_s: float) -> float:
    return NOW_S - time_s


# What the checkpoints prove


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("shard", ["c1", "r1"])
def test_consumer_behind_in_one_shard_holds_up_what_depends_on_it(stack: Stack, consumer: str, shard: str) -> None:
    """Though the heartbeats in the other shards are passed."""
    stack.streams.trees = {table: [Shard(f"{table[0]}{number}") for number in range(3)] for table in TABLES}
    for number in range(3):
        stack.mark(f"c{number}")
        stack.mark(f"r{number}")
    stack.mark(shard, 3000, consumer=consumer, rolled_ago_s=3060)
    look = stack.look()
    assert ago_s(look.counted_s()) == (3000 if consumer == "rollup" else 60)
    assert ago_s(look.known_s()) == (60 if consumer == "rollup" else 3000 if shard == "r1" else 3060)
    assert look.behind(consumer)[0].split()[1] == shard


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("shard", ["c", "r"])
def test_without_a_checkpoint_in_a_leaf_nothing_is_known(stack: Stack, consumer: str, shard: str) -> None:
    for name in CONSUMERS:
        for one in "cr":
            if (name, one) != (consumer, shard):
                stack.mark(one, consumer=name)
    look = stack.look()
    assert (look.known_s() == 0, look.counted_s() == 0) == (consumer == "bookkeeper", consumer == "rollup")
    assert look.known_s() == 0 or look.counted_s() == 0


def test_stream_without_shards_proves_nothing(abreast: Stack) -> None:
    for table in TABLES:
        abreast.streams.trees = ONE | {table: []}
        assert (abreast.look().counted_s(), abreast.look().known_s()) == (0, 0)


def test_nothing_is_known_of_the_last_minute_for_a_shard_may_not_be_listed_yet(abreast: Stack) -> None:
    assert ago_s(abreast.look().counted_s()) == 60
    settings = replace(abreast.store.settings, minute_s=4)
    assert ago_s(replace(abreast.look(), store=replace(abreast.store, settings=settings)).counted_s()) == 4


def test_shard_that_was_not_begun_counts_by_the_one_that_it_follows(stack: Stack) -> None:
    """Lambda finishes a parent before its children: what the parent's checkpoint says holds for them too."""
    stack.mark("r")
    stack.streams.trees["counts"] = [Shard("c0"), Shard("c1", "c0"), Shard("c2", "c0"), Shard("c3", "c2")]
    stack.mark("c0", 300, rolled_ago_s=400)
    stack.mark("c1", 80, rolled_ago_s=90)
    look = stack.look()
    assert [leaf[0] for leaf in look.leaves["counts"]] == ["c1", "c3"]
    assert (ago_s(look.counted_s()), ago_s(look.known_s())) == (300, 400)
    stack.mark("c2", 200, heartbeat="")
    assert (ago_s(stack.look().counted_s()), ago_s(stack.look().known_s())) == (200, 400)
    stack.streams.trees["counts"] = stack.streams.trees["counts"][1:]  # c0 is listed no more, and its checkpoint stands
    assert (ago_s(stack.look().counted_s()), ago_s(stack.look().known_s())) == (200, 400)


def test_parent_is_no_leaf_though_one_of_its_children_is_listed_late(stack: Stack) -> None:
    for shard, ago in (("r", 2), ("c0", 300), ("c1", 1)):
        stack.mark(shard, ago)
    stack.streams.trees["counts"] = [Shard("c0"), Shard("c1", "c0")]
    assert ago_s(stack.look().counted_s()) == 60, "its sister may hold what is younger, but nothing that is older"


def test_shards_that_follow_each_other_in_a_circle_end_the_walk(stack: Stack) -> None:
    stack.streams.trees["counts"] = [Shard("c0", "c1"), Shard("c1", "c0"), Shard("c2", "c1")]
    stack.mark("r")
    stack.mark("c0", 70)
    assert ago_s(stack.look().counted_s()) == 70


# Heartbeats


def test_heartbeat_reaches_a_leaf_by_the_key_that_its_checkpoint_notes(stack: Stack) -> None:
    stack.streams.trees["counts"] = [Shard("c0"), Shard("c1", "c0"), Shard("c2", "c0")]
    for shard, key in (("c0", "old"), ("c1", "one"), ("c2", "two"), ("r", "three")):
        stack.mark(shard, heartbeat=key)
    stack.sweep(NOW_S)
    assert stack.heartbeats("counts") == {"one": 0, "two": 0}
    assert stack.heartbeats("receipts") == {"three": 0}
    for table in TABLES:
        name = stack.store.settings.counts_table if table == "counts" else stack.store.settings.receipts_table
        for item in stack.store.client.scan(TableName=name)["Items"]:
            assert (item["at"], item["expiration"]) == ({"N": str(int(NOW_S))}, {"N": str(int(NOW_S) + 24 * 3600)})


def test_leaf_without_a_key_is_sent_fixed_and_random_ones_and_those_of_the_shards_before_it(stack: Stack) -> None:
    stack.streams.trees["counts"] = [Shard("c0"), Shard("c1", "c0")]
    stack.mark("c0", heartbeat="old")
    stack.sweep(NOW_S)
    first = set(stack.heartbeats("counts"))
    stack.sweep(NOW_S + 60)
    second = set(stack.heartbeats("counts"))
    fixed = {"0", "1"}
    assert first > fixed | {"old"}
    assert (len(first), len(second)) == (5, 5 + 2), "others in each sweep: what all miss at once is not missed for ever"
    assert len(stack.heartbeats("receipts")) == 2 + 2 * 2


def test_heartbeats_that_are_tried_have_a_bound(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watermark, "HEARTBEATS_TRIED", 32)
    stack.streams.trees["counts"] = [Shard(f"c{number}") for number in range(100)]
    stack.sweep(NOW_S)
    assert len(stack.heartbeats("counts")) == 32 + watermark.HEARTBEATS_TRIED_MAX


def test_heartbeats_carry_the_time_that_was_noted_a_sweep_ago_and_never_what_is_found_now(abreast: Stack) -> None:
    times = []
    for minute in range(4):
        for shard in "cr":
            abreast.mark(shard, -60 * minute)
        abreast.sweep(NOW_S + 60 * minute)
        times.append(abreast.heartbeats("counts")["k"])
    assert times == [0, *(int(NOW_S) + 60 * (minute - 1) for minute in range(3))]


# Leaves that no heartbeat reaches


@pytest.fixture
def unreached(stack: Stack) -> Stack:
    """A leaf `c2` that no key of ours lies in: it follows `c0` as `c1` does, and two sweeps have looked at it."""
    stack.streams.trees["counts"] = [Shard("c0"), Shard("c1", "c0"), Shard("c2", "c0")]
    stack.mark("c0", 400, rolled_ago_s=500)
    for shard in ("c1", "r"):
        stack.mark(shard, 1)
    for before_s in (240, 180, 120):
        stack.sweep(NOW_S - before_s)
    return stack


def test_leaf_is_peeked_at_once_no_heartbeat_has_reached_it_for_two_sweeps(stack: Stack) -> None:
    stack.streams.trees["counts"] = [Shard("c0"), Shard("c2", "c0")]
    stack.mark("c0", 400)
    stack.mark("r", 1)
    for sweep, peeked in ((0, False), (1, False), (2, False), (3, True)):
        stack.streams.asked.clear()
        stack.sweep(NOW_S - 240 + 60 * sweep)
        assert bool(stack.streams.asked) == peeked, sweep
    stack.mark("c2", 200)
    stack.streams.asked.clear()
    stack.sweep(NOW_S)
    assert ("c2" in stack.noted()["unreached"], stack.streams.asked) == (False, []), "a heartbeat has reached it"


def test_what_is_quiet_counts_as_the_heartbeats_of_the_last_sweep_say(unreached: Stack) -> None:
    look = unreached.look()
    assert ago_s(look.counted_s()) == 120 + 60
    assert ago_s(look.rolled_s()) == 400, "the time that those heartbeats carried"
    for minute in range(-1, 4):
        for shard in ("c1", "r"):
            unreached.mark(shard, -60 * minute, rolled_ago_s=60 - 60 * minute)
        unreached.sweep(NOW_S + 60 * minute)
    assert ago_s(int(unreached.noted()["known"])) == 240 - 180, "four minutes behind, and no more"


@pytest.mark.parametrize(
    ("tree", "left", "counted", "known"),
    [
        ({"c2": "c0"}, {"c2": [[], [], [INSERT], []]}, 400, 500),
        ({"c2": "c0"}, {"c2": [[], [], [HEARTBEAT], []]}, 400, 500),
        ({"c2": "c0"}, {"c2": [[], [], [MODIFY], []]}, 180, 500),
        ({"c2": "c0"}, {"c2": [[], [], [REMOVE], []]}, 180, 500),
        ({"c2": "c0"}, {"c2": [[MODIFY]] * 12}, 180, 500),
        ({"c2": "c0"}, {"c2": [[MODIFY]] * 100}, 400, 500),
        ({"c9": "c0", "c2": "c9"}, {"c9": [[INSERT]]}, 400, 500),
        ({"c2": "c9"}, {}, 180, 400),
    ],
    ids=["a new item", "a heartbeat", "a change", "a removal", "much", "more than is read", "before it", "not listed"],
)
def test_record_that_is_left_in_a_leaf_or_before_it_holds_up_whom_it_is_for(
    unreached: Stack, tree: dict[str, str], left: dict[str, list[list[Any]]], counted: int, known: int
) -> None:
    first = [] if tree == {"c2": "c9"} else [Shard("c0")]
    unreached.streams.trees["counts"] = [*first, Shard("c1", "c0"), *itertools.starmap(Shard, tree.items())]
    unreached.streams.answers |= left
    assert (ago_s(unreached.look().counted_s()), ago_s(unreached.look().known_s())) == (counted, known)


def test_record_that_is_left_in_the_receipts_holds_up_both_unless_it_is_an_expiry(stack: Stack) -> None:
    stack.streams.trees["receipts"] = [Shard("r0"), Shard("r1", "r0")]
    stack.mark("r0", 400)
    stack.mark("c", 1)
    for before_s in (240, 180, 120):
        stack.sweep(NOW_S - before_s)
    for kind, passed in (("INSERT", 400), ("MODIFY", 400), ("REMOVE", 180)):
        stack.streams.answers["r1"] = [[{"eventName": kind, "dynamodb": {"Keys": {"id": {"S": "x"}}}}]]
        look = stack.look()
        assert (ago_s(look.counted_s()), ago_s(look.passed_s("bookkeeper", "receipts"))) == (passed, passed)


def test_shard_is_not_read_if_the_consumer_has_begun_one_behind_it_nor_twice(unreached: Stack) -> None:
    """Lambda has finished it. Its checkpoint may be a day old, and what follows it in the stream for others only."""
    unreached.streams.answers["c0"] = [[INSERT]]
    unreached.streams.asked.clear()
    look = unreached.look()
    for _ in range(2):
        assert ago_s(look.counted_s()) == 180
        assert ago_s(look.known_s()) == 400
    assert unreached.streams.asked == [("c2", None)] * 2, "once for each consumer"


def test_shard_is_read_from_the_checkpoint_on(unreached: Stack) -> None:
    unreached.mark("c2", 300, consumer="rollup", heartbeat="")
    unreached.streams.asked.clear()
    unreached.look().counted_s()
    assert unreached.streams.asked == [("c2", "9")]


def test_leaf_that_is_never_quiet_counts_once_a_record_is_passed_that_is_younger_than_the_heartbeats(
    unreached: Stack,
) -> None:
    """A viral post may have a shard of its own, where no heartbeat comes and records always are under way."""
    unreached.streams.answers["c2"] = [[INSERT]]
    unreached.mark("c2", 116, heartbeat="")
    assert ago_s(unreached.look().known_s()) == 500, "within 5 s, clocks may be wrong"
    unreached.mark("c2", 115, heartbeat="")
    assert (ago_s(unreached.look().known_s()), ago_s(unreached.look().counted_s())) == (400, 115)


# The JUDGE item


def test_a_ledger_of_another_format_is_neither_read_nor_written(abreast: Stack) -> None:
    abreast.sweep(NOW_S)
    assert abreast.noted()["format"] == str(keys.FORMAT)
    other = watermark.JUDGE | {"format": {"N": str(keys.FORMAT + 1)}}
    abreast.store.client.put_item(TableName=abreast.store.settings.ledger_table, Item=other)
    says = f"in format {keys.FORMAT + 1}, and this Tally reads format {keys.FORMAT}"
    for read in (partial(abreast.sweep, NOW_S + 60), partial(watermark.as_of, Call(abreast.store))):
        with pytest.raises(ConfigurationError, match=says):
            read()
    assert "noted" not in abreast.noted()


@pytest.mark.parametrize("stalled", [0, 10])
def test_judge_starts_once_a_whole_minute_since_the_first_sweep_is_closed(stack: Stack, stalled: int) -> None:
    """A consumer that stalls meanwhile delays that: a minute of which one half was read only would be drift."""
    started = []
    for minute in range(20):
        if minute == 0 or minute > stalled:
            abreast_at(stack, 60 * minute)
        stack.sweep(NOW_S + 60 * minute)
        started.append(stack.noted().get("judged"))
    first = 7 if not stalled else stalled + 2
    assert started == [None] * first + [str(MINUTE + first - 5)] * (20 - first), "only the judge moves it on"
    assert watermark.judged(stack.store) == MINUTE + first - 5


def test_watermark_is_used_when_it_is_old_enough_and_until_then_the_one_before(abreast: Stack) -> None:
    abreast.sweep(NOW_S)
    first = watermark.read(abreast.store, NOW_S + 1)
    assert (first.known_s, first.rolled_s, first.as_of(abreast.store.settings)) == (0, 0, None)
    abreast_at(abreast, 60)
    abreast.sweep(NOW_S + 60)
    younger, older = (watermark.read(abreast.store, NOW_S + 60 + after_s) for after_s in (9.9, 10))
    assert (younger.known_s, younger.rolled_s) == (NOW_S - 60, NOW_S - 60)
    assert (older.known_s, older.rolled_s) == (NOW_S, NOW_S)
    fast = replace(abreast.store, settings=replace(abreast.store.settings, minute_s=6))
    assert [watermark.read(fast, NOW_S + 60 + after_s).known_s for after_s in (0.9, 1)] == [NOW_S - 60, NOW_S]


def test_of_two_sweeps_at_once_one_notes_and_nothing_young_is_used(abreast: Stack) -> None:
    abreast.sweep(NOW_S)
    first, second = (watermark.read(abreast.store, NOW_S + 60 + after_s) for after_s in (0, 1))
    for shard in "cr":
        abreast.mark(shard, -60, rolled_ago_s=0)
    watermark.renew(abreast.store, abreast.streams, first, NOW_S + 60)  # type: ignore[arg-type]
    watermark.renew(abreast.store, abreast.streams, second, NOW_S + 61)  # type: ignore[arg-type]
    assert float(abreast.noted()["noted"]) == NOW_S + 60
    abreast.sweep(NOW_S + 65)  # another one, before what the first noted may be used
    assert watermark.read(abreast.store, NOW_S + 66).known_s == NOW_S - 60
    assert watermark.read(abreast.store, NOW_S + 76).known_s == NOW_S


def test_what_was_once_passed_stays_passed(abreast: Stack) -> None:
    """A checkpoint expires, and a shard that is new to the list has none."""
    abreast.sweep(NOW_S)
    abreast.streams.trees["counts"] = [Shard("c7")]
    for minute in (1, 2, 3):
        abreast.sweep(NOW_S + 60 * minute)
        seen = watermark.read(abreast.store, NOW_S + 60 * minute + 10)
        assert (seen.known_s, seen.rolled_s) == (NOW_S - 60, NOW_S - 60)


def test_sweep_that_fails_notes_nothing(abreast: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    abreast.sweep(NOW_S)
    before = abreast.noted()

    def fail(*_: Any) -> Any:
        raise StoreBusyError("The store is busy.")

    monkeypatch.setattr(watermark, "put", fail)
    with pytest.raises(StoreBusyError):
        abreast.sweep(NOW_S + 60)
    assert abreast.noted() == before


def test_note_does_not_take_back_what_a_judge_did_meanwhile(abreast: Stack) -> None:
    for minute in range(8):
        abreast_at(abreast, 60 * minute)
        abreast.sweep(NOW_S + 60 * minute)
    seen = watermark.read(abreast.store, NOW_S + 600)
    abreast.store.client.update_item(
        TableName=abreast.store.settings.ledger_table, Key=watermark.JUDGE,
        UpdateExpression="ADD judged :one", ExpressionAttributeValues={":one": {"N": "1"}},
    )  # fmt: skip
    watermark.renew(abreast.store, abreast.streams, seen, NOW_S + 600)  # type: ignore[arg-type]
    assert watermark.judged(abreast.store) == seen.judged + 1 > 1


# What follows from it


def test_minute_is_closed_two_minutes_and_a_skew_after_it_began(store: Store) -> None:
    for known_s, minute_s, closed in (
        (0, 60, -1), (60 * MINUTE + 4, 60, MINUTE - 3), (60 * MINUTE + 5, 60, MINUTE - 2),
        (60 * MINUTE + 64, 60, MINUTE - 2), (12 * MINUTE, 12, MINUTE - 3), (12 * MINUTE + 1, 12, MINUTE - 2),
    ):  # fmt: skip
        settings = replace(store.settings, minute_s=minute_s)
        assert Watermark(known_s=known_s).closed(settings) == closed


def test_as_of_of_a_backlog_is_never_ahead(abreast: Stack) -> None:
    """Ten minutes behind, then with both consumers dead."""
    settings = abreast.store.settings
    for minutes in range(40):
        now_s = NOW_S + 60 * minutes
        if minutes < 20:
            abreast.mark("r", 600 - 60 * minutes, consumer="rollup")
            abreast.mark("c", -60 * minutes, consumer="rollup")
        abreast.sweep(now_s)
        as_of = watermark.read(abreast.store, now_s + 59).as_of(settings)
        passed_s = min(now_s, NOW_S + 60 * 19) - 600
        assert as_of == passed_s - 5


def test_as_of_is_asked_once_a_second_at_most_and_is_none_before_there_is_watermark(
    abreast: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "time", lambda: NOW_S + 20)
    call = Call(abreast.store)
    assert watermark.as_of(call) is None
    abreast.sweep(NOW_S)
    clock[0] += watermark.CACHED_S / 2
    assert watermark.as_of(call) is None
    clock[0] += watermark.CACHED_S / 2
    assert watermark.as_of(call) == NOW_S - 60 - 5
    other = replace(abreast.store, settings=replace(abreast.store.settings, ledger_table="tally-none"))
    with pytest.raises(Exception, match="refused"):
        watermark.as_of(Call(other))


def test_age_is_since_the_time_that_a_consumer_has_passed_or_since_the_first_sweep(stack: Stack) -> None:
    def ages(now_s: float) -> dict[str, int]:
        seen = watermark.read(stack.store, now_s)
        look = watermark.renew(stack.store, stack.streams, seen, now_s)  # type: ignore[arg-type]
        return watermark.ages_s(look, seen, now_s)

    assert ages(NOW_S - 120) == {"rollup": 0, "bookkeeper": 0}
    assert ages(NOW_S - 60) == {"rollup": 60, "bookkeeper": 60}
    stack.mark("c", 2, rolled_ago_s=70)
    stack.mark("r", 2)
    assert ages(NOW_S) == {"rollup": 60, "bookkeeper": 70}
