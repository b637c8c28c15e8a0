"""A sweep finds the watermark (shard trees, checkpoints, heartbeats, reads of quiet leaves), and stores it.

A *leaf* is a stream shard that no other shard follows. A leaf is *quiet* if no record has come for two minutes.
The partition key of a heartbeat decides which leaf gets the heartbeat.
"""

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
from tally.streams import heartbeats, lineage, watermark
from tally.streams.lineage import StreamsSnapshot
from tally.streams.watermark import Watermark
from tests.tiers import marked_long


class Shard(NamedTuple):
    """A stream shard. `parent`: the shard that it follows; None: no shard."""

    id: str
    parent: str | None = None


NOW_S = 1_800_000_000.0
MINUTE = int(NOW_S // 60)
CONSUMERS, TABLES = ("rollup", "bookkeeper"), ("counts", "receipts")
ONE_SHARD_EACH = {"counts": [Shard("c")], "receipts": [Shard("r")]}
RECORD: dict[str, Any] = {}  # Lambda delivers every record to the bookkeeper, except the removal of a receipt


@dataclass
class Streams:
    """Imitates the streams. `trees`: the shards of each table. `answers`: by shard, the answers of GetRecords in order.
    A shard without `answers` gives empty answers without end.

    `requested`: each shard whose records were read, and after which sequence number. `failing`: each read fails.
    """

    trees: dict[str, list[Shard]] = field(default_factory=lambda: dict(ONE_SHARD_EACH))
    answers: dict[str, list[list[Any]]] = field(default_factory=dict)
    requested: list[tuple[str, str | None]] = field(default_factory=list)
    failing: bool = False

    def list_shards(self, table: str) -> ShardTree:
        return {shard.id: shard.parent for shard in self.trees[table]}

    def records_after(self, table: str, shard: str, sequence: str | None) -> Iterator[list[Any]]:
        assert shard in {known_shard.id for known_shard in self.trees[table]}, "DynamoDB does not know this shard"
        self.requested.append((shard, sequence))
        if self.failing:
            raise StoreBusyError("The store is busy.")
        yield from self.answers.get(shard, itertools.repeat([]))


@dataclass
class Stack:
    """The tables and streams of a stack."""

    store: Store
    streams: Streams = field(default_factory=Streams)

    def checkpoint(
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
        """Store a checkpoint in a shard, of one consumer or of both consumers.

        `ago_s` and `sequence`: the age at NOW_S and the sequence number of the newest record that the consumer has
        passed. `note`: the sequence number of the newest record for the rollup; 0: none came. `heartbeat`: the key of
        the newest heartbeat; empty: none came. `table`: if empty, the first letter of the shard decides.
        """
        table = table or ("receipts" if shard[0] == "r" else "counts")
        for name in [consumer] if consumer else CONSUMERS:
            item = keys.key(*keys.checkpoint_key(name, table, shard))
            item |= {"sequence": {"S": str(sequence)}, "through": {"N": str(int(NOW_S - ago_s))}}
            item |= {"heartbeat": {"S": heartbeat}} if heartbeat else {}
            item |= {"note": {"S": str(note)}} if note else {}
            self.store.client.put_item(TableName=self.store.settings.ledger_table, Item=item)

    def snapshot(self) -> StreamsSnapshot:
        return lineage.read_streams(self.store, self.streams, NOW_S)  # type: ignore[arg-type]

    def sweep(self, now_s: float) -> Watermark:
        """Run a sweep. Returns the watermark from before the sweep."""
        before = watermark.read(self.store)
        watermark.advance(self.store, self.streams, before, now_s)  # type: ignore[arg-type]
        return before

    def heartbeats(self, table: str) -> set[str]:
        """Returns the keys of the heartbeats in a table."""
        settings = self.store.settings
        items = self.store.client.scan(
            TableName=settings.counts_table if table == "counts" else settings.receipts_table
        )
        return {(item.get("PK") or item["id"])["S"].partition("#")[2] for item in items["Items"]}

    def watermark_item(self) -> dict[str, Any]:
        """Returns the item of the watermark, with plain values."""
        item = queries.get(self.store.client, self.store.settings.ledger_table, watermark.WATERMARK_KEY)
        return {name: next(iter(value.values())) for name, value in item.items()}


@pytest.fixture
def stack(store: Store) -> Stack:
    return Stack(store)


@pytest.fixture
def up_to_date_stack(stack: Stack) -> Stack:
    """A stack whose consumers are 2 s behind in the only shard of each stream."""
    stack.checkpoint("c")
    stack.checkpoint("r")
    return stack


def pass_everything(stack: Stack, after_s: float) -> None:
    """Store checkpoints as if both consumers had passed everything up to `after_s` seconds after NOW_S."""
    for shard in "cr":
        stack.checkpoint(shard, -after_s)


def seconds_ago(time_s: float) -> float:
    return NOW_S - time_s


def both_lags_s(snapshot: StreamsSnapshot) -> tuple[float, float]:
    """Returns how far the rollup and the bookkeeper are behind NOW_S, in the shard where each has passed least.

    Each lag is at least 60 s, because DynamoDB may list a new shard a minute late.
    """
    return seconds_ago(snapshot.all_passed_s("rollup")), seconds_ago(snapshot.all_passed_s("bookkeeper"))


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("shard", ["c1", "r1"])
def test_a_consumer_has_passed_as_much_as_in_the_shard_where_it_lags_most(
    stack: Stack, consumer: str, shard: str
) -> None:
    """In `shard`, the bookkeeper has an unread record, or the rollup has not passed record 9, which the bookkeeper
    noted."""
    stack.streams.trees = {table: [Shard(f"{table[0]}{number}") for number in range(3)] for table in TABLES}
    stack.streams.answers = {shard: [[RECORD]]}
    for number in range(3):
        stack.checkpoint(f"c{number}")
        stack.checkpoint(f"r{number}")
    stack.checkpoint(shard, 3000, consumer=consumer, sequence=8)
    snapshot = stack.snapshot()
    assert both_lags_s(snapshot) == ((3000, 60) if consumer == "rollup" else (60, 3000))
    assert snapshot.most_lagging(consumer)[0].split() == ["counts" if shard[0] == "c" else "receipts", shard]


@pytest.mark.parametrize(
    ("checkpoints", "lag_s"),
    [  # a checkpoint: shard, consumer, sequence number, and the noted sequence number of a record for the rollup
        ([("c1", "bookkeeper", 9, 0)], 70),  # no record for the rollup came to this leaf
        ([("c1", "bookkeeper", 9, 8)], 400),  # a record came, and the rollup has no checkpoint
        ([("c1", "bookkeeper", 9, 8), ("c1", "rollup", 8, 8)], 70),  # the rollup has passed record 8
        ([("c1", "bookkeeper", 9, 8), ("c1", "rollup", 7, 7)], 300),  # the rollup has not passed record 8
        ([("c1", "bookkeeper", 11, 9), ("c1", "rollup", 10, 10)], 70),  # sequence numbers are compared as numbers
        ([("c0", "bookkeeper", 9, 10), ("c1", "bookkeeper", 9, 0)], 400),  # the rollup has not passed record 10 of c0
        ([("c0", "bookkeeper", 9, 10), ("c1", "bookkeeper", 9, 8), ("c1", "rollup", 8, 8)], 70),  # the rollup is in c1
    ],
)
def test_the_rollup_is_as_far_as_the_bookkeeper_if_the_rollup_has_passed_its_newest_record(
    stack: Stack, checkpoints: list[tuple[str, str, int, int]], lag_s: int
) -> None:
    """The bookkeeper notes the newest record that the rollup's filter lets through. Otherwise a leaf without records
    for the rollup would stop `as_of` and judging.

    The lag is the age of a checkpoint: 400 s in c0, and in c1 70 s for the bookkeeper and 300 s for the rollup.
    """
    stack.streams.trees["counts"] = [Shard("c0"), Shard("c1", "c0")]
    stack.checkpoint("r")
    stack.checkpoint("c0", 400)
    for shard, consumer, sequence, note in checkpoints:
        age_s = 400 if shard == "c0" else 70 if consumer == "bookkeeper" else 300
        stack.checkpoint(shard, age_s, consumer=consumer, sequence=sequence, note=note)
    assert both_lags_s(stack.snapshot())[0] == lag_s


@pytest.mark.parametrize(("expired_ago_s", "lag_s"), [(300, 400), (420, 70)])  # lineage.RETENTION_MARGIN is 360 s
def test_the_rollup_does_not_wait_for_records_that_the_stream_has_dropped(
    stack: Stack, expired_ago_s: int, lag_s: int
) -> None:
    """`expired_ago_s`: how long ago the stream could drop record 10. After RETENTION_MARGIN minutes the record counts
    as dropped. If the rollup had to read a dropped record, no later minute would be judged."""
    stack.streams.trees["counts"] = [Shard("c0"), Shard("c1", "c0")]
    stack.checkpoint("r")
    stack.checkpoint("c0", 400, consumer="rollup", sequence=9)
    stack.checkpoint("c0", lineage.STREAM_RETENTION_S + expired_ago_s, consumer="bookkeeper", sequence=12, note=10)
    stack.checkpoint("c1", 70, consumer="bookkeeper", note=0)
    assert both_lags_s(stack.snapshot())[0] == lag_s


def test_a_stream_without_shards_proves_nothing(up_to_date_stack: Stack) -> None:
    for table in TABLES:
        up_to_date_stack.streams.trees = ONE_SHARD_EACH | {table: []}
        assert both_lags_s(up_to_date_stack.snapshot()) == (NOW_S, NOW_S), "each lag is the time since 1970"


def test_the_last_minute_does_not_count_as_passed_because_a_new_shard_may_be_unlisted(up_to_date_stack: Stack) -> None:
    assert both_lags_s(up_to_date_stack.snapshot()) == (60, 60)
    store = up_to_date_stack.store
    store_with_short_minutes = replace(store, settings=store.settings._replace(minute_s=4))
    assert both_lags_s(replace(up_to_date_stack.snapshot(), store=store_with_short_minutes)) == (4, 4)


def test_a_shard_without_a_checkpoint_is_passed_as_far_as_its_parent(stack: Stack) -> None:
    """Lambda finishes a parent shard before its children, so the parent's checkpoint holds for the children, too."""
    stack.checkpoint("r")
    stack.streams.trees["counts"] = [Shard("c0"), Shard("c1", "c0"), Shard("c2", "c0"), Shard("c3", "c2")]
    stack.streams.answers = {"c3": [[RECORD]]}  # without an unread record, the quiet leaf would count as passed
    stack.checkpoint("c0", 300)
    stack.checkpoint("c1", 80)
    snapshot = stack.snapshot()
    assert [leaf[0] for leaf in snapshot.leaves["counts"]] == ["c1", "c3"]
    assert both_lags_s(snapshot) == (300, 300)
    stack.checkpoint("c2", 200)
    assert both_lags_s(stack.snapshot()) == (200, 200)
    stack.streams.trees["counts"] = stack.streams.trees["counts"][1:]  # without c0, whose checkpoint is still stored
    assert both_lags_s(stack.snapshot()) == (200, 200)


def test_shards_that_are_each_others_parents_cause_no_endless_loop(stack: Stack) -> None:
    stack.streams.trees["counts"] = [Shard("c0", "c1"), Shard("c1", "c0"), Shard("c2", "c1")]
    stack.checkpoint("r")
    stack.checkpoint("c0", 70)
    assert both_lags_s(stack.snapshot()) == (70, 70)


def test_a_leaf_without_a_heartbeat_gets_the_key_of_its_parent_and_random_keys_when_it_is_quiet(stack: Stack) -> None:
    stack.streams.trees["counts"] = [Shard("c0"), Shard("c1", "c0"), Shard("c2", "c0")]
    stack.checkpoint("c0", 100, heartbeat="old")
    stack.checkpoint("r", 100, heartbeat="")
    stack.sweep(NOW_S)
    assert (stack.heartbeats("counts"), stack.heartbeats("receipts")) == ({"old"}, set())
    stack.sweep(NOW_S + 60)  # from here on each leaf is quiet: its newest record is more than two minutes old
    stack.sweep(NOW_S + 120)
    counts = stack.heartbeats("counts")
    assert "old" in counts
    assert len(counts) == 1 + 2 * heartbeats.RANDOM_HEARTBEATS, (
        "each sweep draws other random keys, which may reach a leaf that no earlier key has reached"
    )
    assert len(stack.heartbeats("receipts")) == 2 * heartbeats.RANDOM_HEARTBEATS


def test_two_shards_with_one_id_in_two_streams_are_two_shards(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are unique within one stream only. In an emulator, shards of both streams had one id, and judging stopped."""
    stack.streams.trees = {table: [Shard("same")] for table in TABLES}
    stack.checkpoint("same", table="counts")
    stack.checkpoint("same", 200, table="receipts", heartbeat="")
    stack.sweep(NOW_S)
    assert stack.heartbeats("counts") == {"k"}
    assert len(stack.heartbeats("receipts")) == heartbeats.RANDOM_HEARTBEATS
    stack.checkpoint("same", 200, table="counts", heartbeat="")
    monkeypatch.setattr(stack.streams, "records_after", lambda table, *_: [[RECORD] * (table == "counts")])
    snapshot = stack.snapshot()
    assert [seconds_ago(snapshot.passed_s("bookkeeper", table)) for table in TABLES] == [200, 60]


@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_failed_heartbeat_stops_no_other_heartbeat_and_its_leaf_counts_as_a_leaf_without_a_key(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, is_quiet: bool
) -> None:
    """Otherwise one throttled key would keep the heartbeats from every shard."""
    stack.streams.trees["counts"] = [Shard(f"c{number}") for number in range(3)]
    stack.checkpoint("r")
    for number in range(3):
        stack.checkpoint(f"c{number}", 200 if is_quiet and number == 0 else 2, heartbeat=f"k{number}")
    put_item = stack.store.client.put_item
    throttled_keys: list[str] = []

    def put_or_throttle(**write: Any) -> Any:
        key = write["Item"].get("PK", {}).get("S", "")
        if key == "HEARTBEAT#k0":
            throttled_keys.append(key)
            raise ClientError({"Error": {"Code": "ProvisionedThroughputExceededException"}}, "PutItem")
        return put_item(**write)

    monkeypatch.setattr(stack.store.client, "put_item", put_or_throttle)
    stack.sweep(NOW_S)
    assert len(throttled_keys) == 1
    assert {"k1", "k2"} < stack.heartbeats("counts")
    assert len(stack.heartbeats("counts")) == 2 + heartbeats.RANDOM_HEARTBEATS
    assert stack.streams.requested == [("c0", "9")] * is_quiet, "only the quiet leaf without a heartbeat is read"
    assert stack.watermark_item()["rollup_passed_s"] == str(int(NOW_S) - 60)


@pytest.fixture
def quiet_stack(stack: Stack) -> Stack:
    """A stack whose leaf `c2` is quiet: `c2` has no checkpoint, and the checkpoint of its parent `c0` is 400 s old."""
    stack.streams.trees["counts"] = [Shard("c0"), Shard("c1", "c0"), Shard("c2", "c0")]
    stack.checkpoint("c0", 400)
    for shard in ("c1", "r"):
        stack.checkpoint(shard, 1)
    return stack


@pytest.mark.parametrize(
    ("removals", "last_answer", "is_unread"), [(3, [], False), (3, [RECORD], True), (18, [], False), (19, [], True)]
)
def test_records_of_expired_receipts_do_not_count_as_unread(
    stack: Stack, removals: int, last_answer: list[Any], is_unread: bool
) -> None:
    """Lambda delivers no removal of a receipt to the bookkeeper, but every record of counts.

    A sweep reads up to 20 answers (lineage.PEEKED_MAX). If a leaf has a 20th answer, the leaf does not count as passed.
    """
    stack.checkpoint("r", 200, heartbeat="")
    stack.checkpoint("c", 200, heartbeat="")
    answers = [*[[{"eventName": "REMOVE"}]] * removals, last_answer]
    stack.streams.answers = {"r": answers}
    assert seconds_ago(stack.snapshot().passed_s("bookkeeper", "receipts")) == (200 if is_unread else 60)
    stack.streams.answers = {"c": answers}
    assert seconds_ago(stack.snapshot().passed_s("bookkeeper", "counts")) == 200


@pytest.mark.parametrize(("ago_s", "is_quiet"), [(119, False), (120, False), (121, True)])
@pytest.mark.parametrize("heartbeat", ["", "k"])
def test_a_sweep_reads_a_leaf_itself_if_the_leaf_is_quiet_and_no_heartbeat_reaches_it(
    stack: Stack, ago_s: int, is_quiet: bool, heartbeat: str
) -> None:
    stack.checkpoint("c", ago_s, heartbeat=heartbeat)
    stack.checkpoint("r", 1)
    stack.sweep(NOW_S)
    assert bool(stack.streams.requested) == (is_quiet and not heartbeat)


def test_a_quiet_leaf_without_unread_records_is_passed(quiet_stack: Stack) -> None:
    assert both_lags_s(quiet_stack.snapshot()) == (60, 60)
    assert quiet_stack.streams.requested == [("c2", None), ("c0", "9")], "c0 is read from its checkpoint on"


@pytest.mark.parametrize(
    ("parents", "unread", "lag_s"),
    [
        ({"c2": "c0"}, {"c2": [[], [], [RECORD], []]}, 400),
        ({"c2": "c0"}, {"c0": [[], [], [RECORD], []]}, 400),
        ({"c9": "c0", "c2": "c9"}, {"c9": [[RECORD]]}, 400),
        ({"c2": "c9"}, {}, 60),
        ({"c2": "c0"}, {"c2": [[]] * 5 + [[RECORD]]}, 60),
    ],
    ids=["in the leaf", "in the parent", "in a shard between them", "parent not listed", "five empty answers"],
)
def test_an_unread_record_in_a_leaf_or_in_a_shard_before_the_leaf_delays_both_consumers(
    quiet_stack: Stack, parents: dict[str, str], unread: dict[str, list[list[Any]]], lag_s: int
) -> None:
    """A shard that is not listed is not read. After five empty answers, a shard counts as read to its end."""
    later_shards = itertools.starmap(Shard, parents.items())
    quiet_stack.streams.trees["counts"] = [Shard("c0"), Shard("c1", "c0"), *later_shards]
    quiet_stack.streams.answers |= unread
    assert both_lags_s(quiet_stack.snapshot()) == (lag_s, lag_s)


def test_a_leaf_with_a_checkpoint_is_read_from_there_and_its_parent_is_not_read(quiet_stack: Stack) -> None:
    quiet_stack.streams.answers["c0"] = [[RECORD]]
    quiet_stack.checkpoint("c2", 300, heartbeat="")
    assert both_lags_s(quiet_stack.snapshot()) == (60, 60)
    assert quiet_stack.streams.requested == [("c2", "9")]


def test_a_shard_that_cannot_be_read_is_not_passed(quiet_stack: Stack) -> None:
    quiet_stack.streams.failing = True
    assert both_lags_s(quiet_stack.snapshot()) == (400, 400)


def test_a_ledger_of_another_format_is_neither_read_nor_written(up_to_date_stack: Stack) -> None:
    up_to_date_stack.sweep(NOW_S)
    assert up_to_date_stack.watermark_item()["format"] == str(keys.FORMAT)
    other_format = watermark.WATERMARK_KEY | {"format": {"N": str(keys.FORMAT + 1)}}
    up_to_date_stack.store.client.put_item(TableName=up_to_date_stack.store.settings.ledger_table, Item=other_format)
    message = f"in format {keys.FORMAT + 1}, and this Tally reads format {keys.FORMAT}"
    for use in (partial(up_to_date_stack.sweep, NOW_S + 60), partial(watermark.as_of, Call(up_to_date_stack.store))):
        with pytest.raises(ConfigurationError, match=message):
            use()
    assert "written_s" not in up_to_date_stack.watermark_item()


def test_the_ledger_stores_the_watermark_under_the_names_of_its_fields(up_to_date_stack: Stack) -> None:
    for minute in range(8):
        pass_everything(up_to_date_stack, 60 * minute)
        up_to_date_stack.sweep(NOW_S + 60 * minute)
    watermark_, stored = watermark.read(up_to_date_stack.store), up_to_date_stack.watermark_item()
    names = (
        "judged", "journal_complete_s", "rollup_passed_s", "reads_complete_s", "written_s", "resume_minute",
        "warm_up_until", "first_judged_s", "oldest_loss_s",
    )  # fmt: skip
    assert {name: float(stored[name]) for name in names} == {name: getattr(watermark_, name) for name in names}
    assert min(watermark_.journal_complete_s, watermark_.reads_complete_s) > NOW_S, "8 sweeps give each field a value"
    assert watermark_.warm_up_until > MINUTE


@pytest.mark.parametrize("stalled_minutes", [10, *marked_long([0])])
@pytest.mark.parametrize("restored_minutes_ago", [None, 1, 4, 99])
def test_the_judge_starts_when_the_minute_of_the_first_sweep_is_closed(
    stack: Stack, stalled_minutes: int, restored_minutes_ago: int | None
) -> None:
    """The first judged minute is the minute of the first sweep, so that an early edit is found.

    If the consumers then stall (`stalled_minutes`), judging only begins later. If the tables were restored to a time
    `restored_minutes_ago` before the first sweep, the first judged minute is at least two minutes after that time.
    """
    if restored_minutes_ago is not None:
        restored = watermark.WATERMARK_KEY | {"restored_s": {"N": str(60 * (MINUTE - restored_minutes_ago) + 59)}}
        stack.store.client.put_item(TableName=stack.store.settings.ledger_table, Item=restored)
    stack.streams.answers = {"c": [[RECORD]], "r": [[RECORD]]}  # otherwise quiet leaves would count as passed
    starting_sweep = None  # the minute of the first sweep that stores the last judged minute
    for minute in range(20):
        if minute == 0 or minute > stalled_minutes:
            pass_everything(stack, 60 * minute)
        last_complete = watermark.read(stack.store).last_complete_minute(stack.store.settings)
        stack.sweep(NOW_S + 60 * minute)
        assert ("judged" in stack.watermark_item()) == (starting_sweep is not None or last_complete >= MINUTE)
        if starting_sweep is None and "judged" in stack.watermark_item():
            starting_sweep = minute
    skipped = 0 if restored_minutes_ago is None else max(0, 2 - restored_minutes_ago)
    assert watermark.read(stack.store).judged == MINUTE + skipped - 1, "only the judge advances this minute"
    assert starting_sweep is not None
    assert starting_sweep <= stalled_minutes + 8, "the first probes and the end of the minute take a few sweeps"


def test_the_journal_is_complete_when_the_bookkeeper_has_passed_the_writes_of_the_rollup(
    up_to_date_stack: Stack,
) -> None:
    """The bookkeeper lags in shard c1, so it passes the probe that the sweep of minute 0 stored as late as in minute 5.

    In minute 7 the bookkeeper passes the probe of minute 5. A probe has the rollup's time, 60 s before its sweep.
    """
    up_to_date_stack.streams.trees["counts"] = [Shard("c"), Shard("c1")]
    complete_s = []
    for minute in range(8):
        pass_everything(up_to_date_stack, 60 * minute)
        up_to_date_stack.checkpoint("c1", 2 if minute < 5 else -60 * minute)
        up_to_date_stack.streams.answers["c1"] = [[RECORD]]  # so the quiet leaf is not passed
        up_to_date_stack.sweep(NOW_S + 60 * minute)
        complete_s.append(int(up_to_date_stack.watermark_item()["journal_complete_s"]) - NOW_S)
    assert complete_s == [0 - NOW_S] * 5 + [-60] * 2 + [60 * 5 - 60], "0: there is no watermark"


def test_of_two_sweeps_at_once_one_stores_the_watermark_and_a_watermark_is_too_fresh_for_10_s(
    up_to_date_stack: Stack,
) -> None:
    """The writes that a too fresh watermark proves may not be visible, so no sweep judges by it."""
    settings = up_to_date_stack.store.settings
    up_to_date_stack.sweep(NOW_S)
    first, second = watermark.read(up_to_date_stack.store), watermark.read(up_to_date_stack.store)
    pass_everything(up_to_date_stack, 60)
    watermark.advance(up_to_date_stack.store, up_to_date_stack.streams, first, NOW_S + 60)  # type: ignore[arg-type]
    watermark.advance(up_to_date_stack.store, up_to_date_stack.streams, second, NOW_S + 61)  # type: ignore[arg-type]
    assert float(up_to_date_stack.watermark_item()["written_s"]) == NOW_S + 60
    before = watermark.read(up_to_date_stack.store)
    assert [before.is_too_fresh(settings, NOW_S + 60 + after_s) for after_s in (0, 9.9, 10)] == [True, True, False]
    settings = settings._replace(minute_s=6)  # 10 s are a sixth of a minute, so 1 s of a minute of 6 s
    assert [before.is_too_fresh(settings, NOW_S + 60 + after_s) for after_s in (0.9, 1)] == [True, False]


@pytest.mark.parametrize(
    ("made_s", "began_s"), [(NOW_S - 90, NOW_S - 90), (NOW_S + 9, NOW_S), (1, NOW_S - 24 * 3600)],
    ids=["a record's time", "a clock ahead", "no stream keeps so old a record"],
)  # fmt: skip
def test_the_first_record_begins_the_ledger_and_a_sweep_at_the_same_time_writes_nothing(
    up_to_date_stack: Stack, made_s: float, began_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger begins at the time of the record, but not after the present, and at most a day ago."""
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    before = watermark.read(up_to_date_stack.store)
    for at_s in (made_s, NOW_S - 1):
        watermark.ensure_begun(Call(up_to_date_stack.store), at_s)
    watermark.advance(up_to_date_stack.store, up_to_date_stack.streams, before, NOW_S)  # type: ignore[arg-type]
    item = up_to_date_stack.watermark_item()
    assert (item["began_s"], "written_s" in item) == (str(int(began_s)), False)
    up_to_date_stack.sweep(NOW_S + 60)
    item = up_to_date_stack.watermark_item()
    assert (item["began_s"], "written_s" in item) == (str(int(began_s)), True)


@pytest.mark.parametrize("made_ago_s", [1000, 0])
def test_as_of_stays_before_a_dead_letter_of_the_rollup_until_one_sweep_after_its_redrive(
    up_to_date_stack: Stack, made_ago_s: int
) -> None:
    """A sweep may see that the dead letter is gone before it sees what the redrive added.

    A younger dead letter, and an older dead letter of the bookkeeper, make no difference.
    """
    settings, table = up_to_date_stack.store.settings, up_to_date_stack.store.settings.ledger_table
    made_s = int(NOW_S) - made_ago_s
    oldest = keys.key(keys.DEAD_LETTER_KEY, f"rollup#{made_s:010}#r#7")
    younger = keys.key(keys.DEAD_LETTER_KEY, f"rollup#{made_s + 5:010}#a#7")
    of_bookkeeper = keys.key(keys.DEAD_LETTER_KEY, f"bookkeeper#{made_s - 100:010}#r#7")
    shown_s = []
    for minute in range(6):
        pass_everything(up_to_date_stack, 60 * minute)
        if minute == 1:
            for key in (younger, of_bookkeeper, oldest):
                up_to_date_stack.store.client.put_item(TableName=table, Item=key)
        if minute == 3:
            up_to_date_stack.store.client.delete_item(TableName=table, Key=oldest)
            up_to_date_stack.store.client.delete_item(TableName=table, Key=younger)
        up_to_date_stack.sweep(NOW_S + 60 * minute)
        shown_s.append(watermark.read(up_to_date_stack.store).as_of(settings))
    rolled_up_s = [int(NOW_S) + 60 * minute - 60 for minute in range(6)]  # shown after the next sweep
    expected_s = [min(rolled_up_s[0], made_s), min(rolled_up_s[1], made_s), made_s, rolled_up_s[3], rolled_up_s[4]]
    assert shown_s == [None, *(time_s - 5 for time_s in expected_s)]  # 5 s: lineage.CLOCK_SKEW


def test_the_times_of_the_watermark_never_decrease(up_to_date_stack: Stack) -> None:
    """A sweep may find earlier times than the last sweep: checkpoints expire, and a new shard has no checkpoint."""
    for minute in range(6):
        pass_everything(up_to_date_stack, 60 * minute)
        up_to_date_stack.sweep(NOW_S + 60 * minute)
    before = watermark.read(up_to_date_stack.store)
    assert min(before.journal_complete_s, before.rollup_passed_s) > NOW_S
    up_to_date_stack.streams.trees["counts"] = [Shard("c7")]
    up_to_date_stack.streams.answers["c7"] = [[RECORD]]
    for minute in (6, 7, 8):
        up_to_date_stack.sweep(NOW_S + 60 * minute)
        after = watermark.read(up_to_date_stack.store)
        assert (after.journal_complete_s, after.rollup_passed_s) == (before.journal_complete_s, before.rollup_passed_s)


def test_a_sweep_keeps_the_minute_that_a_judge_judged_during_the_sweep(up_to_date_stack: Stack) -> None:
    for minute in range(10):
        pass_everything(up_to_date_stack, 60 * minute)
        up_to_date_stack.sweep(NOW_S + 60 * minute)
    before = watermark.read(up_to_date_stack.store)
    up_to_date_stack.store.client.update_item(
        TableName=up_to_date_stack.store.settings.ledger_table, Key=watermark.WATERMARK_KEY,
        UpdateExpression="ADD judged :one", ExpressionAttributeValues={":one": {"N": "1"}},
    )  # fmt: skip
    watermark.advance(up_to_date_stack.store, up_to_date_stack.streams, before, NOW_S + 600)  # type: ignore[arg-type]
    assert watermark.read(up_to_date_stack.store).judged == before.judged + 1 > 1


def test_a_minute_is_closed_two_minutes_and_the_clock_skew_after_it_began(store: Store) -> None:
    """The clock skew is a twelfth of a minute: 5 s, or 1 s of a minute of 12 s."""
    for complete_s, minute_s, closed in (
        (0, 60, -1), (60 * MINUTE + 4, 60, MINUTE - 3), (60 * MINUTE + 5, 60, MINUTE - 2),
        (60 * MINUTE + 64, 60, MINUTE - 2), (12 * MINUTE, 12, MINUTE - 3), (12 * MINUTE + 1, 12, MINUTE - 2),
    ):  # fmt: skip
        settings = store.settings._replace(minute_s=minute_s)
        assert Watermark(journal_complete_s=complete_s).last_complete_minute(settings) == closed


def test_as_of_is_read_once_a_second_at_most_and_is_none_before_there_is_a_watermark(
    up_to_date_stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    call = Call(up_to_date_stack.store)
    assert watermark.as_of(call) is None
    up_to_date_stack.sweep(NOW_S - 60)
    up_to_date_stack.sweep(NOW_S)
    clock[0] += watermark.CACHE_S / 2
    assert watermark.as_of(call) is None
    clock[0] += watermark.CACHE_S / 2
    assert watermark.as_of(call) == NOW_S - 60 - 60 - 5  # a minute and lineage.CLOCK_SKEW before the first sweep
    store = up_to_date_stack.store
    without_ledger = replace(store, settings=store.settings._replace(ledger_table="there-is-no-such-table"))
    with pytest.raises(Exception, match="refused"):  # the cache has the answer of the first table only
        watermark.as_of(Call(without_ledger))


def test_a_lag_begins_at_the_time_that_a_consumer_has_passed_or_at_the_first_sweep(stack: Stack) -> None:
    def lags(now_s: float) -> dict[str, int]:
        before = watermark.read(stack.store)
        snapshot = watermark.advance(stack.store, stack.streams, before, now_s)  # type: ignore[arg-type]
        return watermark.lags_s(snapshot, before, now_s)

    assert lags(NOW_S - 120) == {"rollup": 0, "bookkeeper": 0}
    assert lags(NOW_S - 60) == {"rollup": 60, "bookkeeper": 60}
    stack.checkpoint("c", 2)
    stack.checkpoint("r", 70, consumer="rollup", sequence=8)
    stack.checkpoint("r", 2, consumer="bookkeeper")
    assert lags(NOW_S) == {"rollup": 70, "bookkeeper": 60}
