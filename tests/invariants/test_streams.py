"""A stream consumer applies one batch: runs, checkpoint, dead letters and metrics."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

import counters
from bench import cost
from tally import observe
from tally.counting import tallies
from tally.dynamo import keys
from tally.dynamo.client import Store
from tally.errors import ConfigurationError, StoreRefusedError
from tally.streams import consumer as streams
from tally.streams import fold, rollup
from tests import faults
from tests.contexts import LambdaContext
from tests.delivery import failed_sequence
from tests.faults import FaultProxy
from tests.invariants.stream_records import MINUTE, POISON_PLAY, SHARD, bucket_of, heartbeat, like, play, record
from tests.invariants.streaming import CONSUMERS, LONG_TEXT, NOW_S, StreamWorld

OTHER_SHARD = "shardId-4"  # has another bucket than SHARD, so the rollup adds its records to another shard of a tally


def test_an_error_names_the_fault_of_the_configuration(stream: StreamWorld, store: Store) -> None:
    event = stream.event("receipts", SHARD, [play(1)])
    other_table = {"eventSourceARN": "arn:aws:dynamodb:x:1:table/other/stream/1"}
    # Without a tumbling window, Lambda's event has no shardId.
    wrong_events = ((event | {"shardId": None}, "tumbling window"), (event | other_table, "not of the counts"))
    for wrong_event, message in wrong_events:
        with pytest.raises(ConfigurationError, match=message):
            stream.handler("rollup")(wrong_event, LambdaContext())
    with pytest.raises(ConfigurationError, match="TALLY_DEAD_LETTER_BUCKET"):
        streams.Handler(rollup.CONSUMER, counters.COUNTERS, store)


@pytest.mark.parametrize("name", CONSUMERS)
def test_records_without_effect_move_the_checkpoint_in_one_update_without_a_transaction(
    stream: StreamWorld, name: str
) -> None:
    store, client = stream.watched_store()
    records = [heartbeat(1), record(2, "INSERT", {"NewImage": {"id": {"S": "tally#2"}}}), record(3, "REMOVE", {})]
    assert stream.deliver(name, "receipts", SHARD, records, store=store) is None
    assert [operation for operation, _ in client.calls] == ["update_item"]
    assert stream.checkpoint(name, "receipts", SHARD)["sequence"] == "3"
    assert stream.deliver(name, "receipts", SHARD, records[:1]) is None
    assert stream.checkpoint(name, "receipts", SHARD)["sequence"] == "3", "a second delivery does not move it back"


def test_a_batch_has_one_write_for_each_tally_in_transactions_of_at_most_a_hundred_items(stream: StreamWorld) -> None:
    # Each transaction has the checkpoint, so a run has 99 tallies at most. The 500 plays are two for each of 250
    # tallies, so far apart in the batch that no run has both: 500 writes.
    for plays, tally_count, sizes in ((1000, 10, [11]), (500, 250, [100] * 5 + [6])):
        store, client = stream.watched_store()
        records = [play(number, f"{tally_count} {number % tally_count}") for number in range(1, plays + 1)]
        assert stream.deliver("rollup", "receipts", f"shardId-{tally_count}", records, store=store) is None
        assert [len(parameters["TransactItems"]) for _, parameters in client.calls] == sizes
    assert stream.tallies() == {
        ("plays", f"{tally_count} {number}"): amount
        for tally_count, amount in ((10, 100), (250, 2))
        for number in range(tally_count)
    }


def test_a_tally_is_stamped_with_the_minute_of_its_records_whatever_clocks_their_writers_have(
    stream: StreamWorld,
) -> None:
    """The writers' stamps alternate, and a minute ends after 400 records. The batch is not split for each stamp."""
    store, client = stream.watched_store()
    numbers = range(1, 1001)
    records = [
        play(number, record_minute=MINUTE - (number <= 400), writer_minute=MINUTE - number % 2) for number in numbers
    ]
    stream.deliver("rollup", "receipts", SHARD, records, store=store)
    stamps = [parameters["TransactItems"][0]["Update"]["ExpressionAttributeValues"] for _, parameters in client.calls]
    expected = [(400, MINUTE - 1), (600, MINUTE)]
    assert [(int(stamp[":amount"]["N"]), int(stamp[":at"]["N"])) for stamp in stamps] == expected
    assert {item["nonce"]["S"][0] for item in stream.scan("counts")} == {tallies.ROLLUP_NONCE_PREFIX}


@pytest.mark.parametrize(("days", "writes"), [(0, 2), (1, 2), (9, 1000)])
def test_receipts_of_two_days_are_noted_in_one_write_if_one_day_follows_the_other(
    stream: StreamWorld, days: int, writes: int
) -> None:
    """The rollup notes the sum of each day in the tally (`day#n`). Around midnight the writers' stamps alternate,
    `days` apart; 0: a minute. The records are of two minutes, so two writes are needed. A write that notes today
    removes the note of nine days ago, so it cannot note both."""
    store, client = stream.watched_store()
    midnight = MINUTE // tallies.MINUTES_PER_DAY * tallies.MINUTES_PER_DAY
    records = [
        play(
            number,
            record_minute=midnight - (number <= 400),
            writer_minute=midnight - number % 2 * max(1, days * tallies.MINUTES_PER_DAY),
        )
        for number in range(1, 1001)
    ]
    stream.deliver("rollup", "receipts", SHARD, records, store=store)
    assert len(client.calls) == writes
    assert stream.tallies() == {("plays", "v"): 1000}


def test_amounts_of_two_days_whose_sum_is_0_are_noted_on_both_days(stream: StreamWorld) -> None:
    midnight = MINUTE // tallies.MINUTES_PER_DAY * tallies.MINUTES_PER_DAY
    records = [
        play(1, record_minute=midnight, writer_minute=midnight - 1),
        play(2, record_minute=midnight, writer_minute=midnight, amount=-1),
    ]
    stream.deliver("rollup", "receipts", SHARD, records)
    [item] = stream.scan("counts")
    notes = {name: value["N"] for name, value in item.items() if name.startswith("day#")}
    assert sorted(notes.values()) == ["-1", "1"]


def test_two_stream_shards_add_to_different_tally_items(stream: StreamWorld) -> None:
    for shard in (SHARD, OTHER_SHARD):
        stream.deliver("rollup", "receipts", shard, [play(1)])
    sort_keys = {item["SK"]["S"] for item in stream.scan("counts")}
    assert sort_keys == {counters.PLAYS.shard_key(bucket_of(shard)) for shard in (SHARD, OTHER_SHARD)}
    assert len(sort_keys) == 2
    assert stream.tallies() == {("plays", "v"): 2}


def test_stream_shards_use_all_buckets_and_each_shard_has_the_same_bucket_in_every_process() -> None:
    assert {bucket_of(f"shardId-{number}") for number in range(200)} == set(range(fold.BUCKETS))
    # Python's own hash would differ in each process.
    assert [bucket_of(f"shardId-{number}") for number in range(1, 6)] == [9, 6, 5, 1, 1]


def test_the_rollup_of_a_spilled_like_never_creates_a_post(stream: StreamWorld) -> None:
    for number in range(40):
        stream.deliver("rollup", "counts", f"shardId-{number}", [like(1, f"u{number}")])
    assert "META" not in {item["SK"]["S"] for item in stream.scan("counts")}
    assert stream.tallies() == {("likes", "p"): 40}


def test_the_checkpoint_names_the_newest_record_heartbeat_and_record_of_the_rollup(stream: StreamWorld) -> None:
    began_s = time.time()
    timeless = {"eventName": "INSERT", "dynamodb": {**play(4)["dynamodb"], "ApproximateCreationDateTime": None}}
    # The values are `sequence`, `through`, `heartbeat` and `note`, the newest record that the rollup's filter lets
    # through. The filter stops removals, but no heartbeat. A record without a time leaves `through` as it is.
    batches = [
        ([heartbeat(1, "a"), record(2, "REMOVE", {}, NOW_S + 1.9)], ("2", NOW_S + 1, "a", "1")),
        ([record(3, "INSERT", {"NewImage": {}}, NOW_S + 3), timeless], ("4", NOW_S + 3, "a", "4")),
        ([record(5, "REMOVE", {}, NOW_S + 4)], ("5", NOW_S + 4, "a", "4")),
        ([heartbeat(6, "b", NOW_S + 5), heartbeat(7, "c", NOW_S + 5)], ("7", NOW_S + 5, "c", "7")),
    ]
    for name in CONSUMERS:
        for batch, (sequence, through, key, note) in batches:
            assert stream.deliver(name, "receipts", SHARD, batch) is None
            checkpoint = stream.checkpoint(name, "receipts", SHARD)
            assert [checkpoint[attribute] for attribute in ("sequence", "heartbeat", "note")] == [sequence, key, note]
            assert int(checkpoint["through"]) == through
            assert began_s - 1 <= int(checkpoint["expiration"]) - keys.CHECKPOINT_KEPT_S <= time.time()


POISON = (
    POISON_PLAY,
    play(50, amount="1234567890" * 4),  # a number of DynamoDB has up to 38 digits
    play(50, video=LONG_TEXT),  # DynamoDB rejects this id
    play(50, counter={"S": "retired"}),  # the counter is not declared
    play(50, counter={"S": "stock"}),  # the counter has limits
    play(50, counter={}),
    {"dynamodb": {"SequenceNumber": "50"}},
    record(50, "UPSERT", {"NewImage": {}}),
    record(50, "INSERT", {}),
    record(50, "INSERT", {"NewImage": None}),
    play(50, writer_minute=-1),
    play(50, writer_minute=10**10),
    {"eventName": "INSERT", "dynamodb": {"SequenceNumber": "50", "NewImage": {}}},  # without a time
    record(50, "INSERT", play(50)["dynamodb"], float("inf")),
    play(50, target={"S": []}),
)


def test_a_poison_record_becomes_a_dead_letter_and_delays_no_other_record(stream: StreamWorld) -> None:
    """The poison record is the first of its batch, the last, in the middle, or alone."""
    for number, (bad, place) in enumerate(zip(POISON, itertools.cycle(("first", "last", "middle", "alone"))), 1):
        shard, video = f"shardId-{number}", f"v{number}"
        records_before = [] if place in ("first", "alone") else [play(sequence, video) for sequence in range(40, 50)]
        records_after = [] if place in ("last", "alone") else [play(sequence, video) for sequence in range(51, 61)]
        assert stream.deliver("rollup", "receipts", shard, [*records_before, bad, *records_after]) is None
        assert stream.tallies().get(("plays", video), 0) == len(records_before) + len(records_after)
        dead_letter = json.loads(stream.bucket.objects[f"rollup/receipts/{shard}/50.json"])
        assert dead_letter["record"]["dynamodb"]["SequenceNumber"] == "50"
        assert (dead_letter["consumer"], dead_letter["table"], dead_letter["shard"]) == ("rollup", "receipts", shard)
        assert dead_letter["reason"]
        assert stream.checkpoint("rollup", "receipts", shard)["sequence"] == str(50 + len(records_after))
    assert len(stream.rows("DEADLETTER")) == len(POISON)


def test_dead_letters_of_two_tables_are_kept_apart_though_shard_and_sequence_number_are_equal(
    stream: StreamWorld,
) -> None:
    for table in ("receipts", "counts"):
        assert stream.deliver("bookkeeper", table, SHARD, [record(50, "INSERT", {"NewImage": None})]) is None
    tables = [json.loads(body)["table"] for body in stream.bucket.objects.values()]
    assert (tables, len(stream.rows("DEADLETTER"))) == (["receipts", "counts"], 2)


def test_a_run_too_large_for_one_transaction_is_split_and_no_record_becomes_a_dead_letter(stream: StreamWorld) -> None:
    """A transaction has at most 4 MB. The stored items count, too, so only DynamoDB's error says that a run is too
    large. Here DynamoDB rejects more than nine writes."""
    store, client = stream.watched_store()

    def reject_large(_: int, name: str, parameters: dict[str, Any]) -> None:
        if len(parameters.get("TransactItems", ())) > 9:
            raise ClientError({"Error": {"Code": "ValidationException", "Message": "4 MB"}}, name)

    client.before = reject_large
    records = [play(number, f"v{number}") for number in range(1, 101)]
    assert stream.deliver("rollup", "receipts", SHARD, records, store=store) is None
    assert stream.tallies() == {("plays", f"v{number}"): 1 for number in range(1, 101)}
    assert stream.dead_letter_sequences()["rollup"] == set()


def test_with_no_time_left_a_consumer_applies_nothing_and_reports_the_first_record_as_failed(
    stream: StreamWorld,
) -> None:
    handler = stream.handler("rollup")
    context = LambdaContext(int(streams.RESERVE_S * 1000) - 100)
    assert failed_sequence(handler(stream.event("receipts", SHARD, [play(3), play(4)]), context)) == "3"
    assert stream.tallies() == {}


def test_a_truncated_response_is_not_mistaken_for_a_missing_checkpoint(
    proxied_stream: StreamWorld, proxy: FaultProxy
) -> None:
    assert proxied_stream.deliver("rollup", "receipts", SHARD, [play(1)]) is None
    proxy.plan = faults.always(faults.TRUNCATE, "GetItem")
    proxy.clear_requests()
    assert proxied_stream.deliver("rollup", "receipts", SHARD, [play(1)]) == "1"
    assert {operation for _, operation in proxy.counts} == {"Query", "GetItem"}, "the consumer has written"
    assert proxied_stream.tallies() == {("plays", "v"): 1}


def test_a_consumer_retries_after_conflicts_and_throttling(proxied_stream: StreamWorld, proxy: FaultProxy) -> None:
    plan = [faults.CONFLICT, faults.THROTTLED_TRANSACTION, faults.THROTTLE]
    proxy.plan = faults.script({"TransactWriteItems": plan, "UpdateItem": [faults.CONFLICT]})
    for new_record in (play(1), record(2, "REMOVE", {})):
        assert proxied_stream.deliver("rollup", "receipts", SHARD, [new_record]) is None
    assert proxied_stream.tallies() == {("plays", "v"): 1}


def test_a_missing_table_fails_the_function_and_makes_no_dead_letter(stream: StreamWorld) -> None:
    settings = stream.store.settings._replace(counts_table="tally-no-such-table")
    with pytest.raises(StoreRefusedError):
        stream.deliver("rollup", "receipts", SHARD, [play(1)], store=replace(stream.store, settings=settings))
    assert stream.dead_letter_sequences()["rollup"] == set()


def test_a_metric_counts_dead_letters_and_is_not_printed_without_any(
    stream: StreamWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    stream.deliver("rollup", "receipts", SHARD, [play(1), record(2, "REMOVE", {})])
    assert "_aws" not in capsys.readouterr().out
    stream.deliver("rollup", "receipts", SHARD, [play(1), record(2, "REMOVE", {}), play(3), play(4), POISON_PLAY])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    metrics = json.loads(line)
    assert (metrics["consumer"], metrics["DeadLetters"]) == ("rollup", [1.0])


def test_the_bookkeeper_prints_one_metric_for_each_counter_and_counts_each_change_once(
    stream: StreamWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record that is delivered twice, or that another process has applied, does not count. Imports and records of
    tallies do not count. The removal of a like is a change, and counts."""

    def counted_changes(consumer: str, table: str, records: list[Any], store: Store | None = None) -> dict[str, float]:
        stream.deliver(consumer, table, SHARD, records, store=store)
        printed = [line for line in capsys.readouterr().out.splitlines() if "_aws" in line]
        # A line has about as many bytes as the bill of bench/cost.py says.
        assert all(len(line) + cost.LOG_EVENT == pytest.approx(cost.METRICS_LINE, rel=0.15) for line in printed)
        lines = [json.loads(line) for line in printed]
        assert all(len(line["_aws"]["CloudWatchMetrics"]) == len(line["Counted"]) == 1 for line in lines)
        assert {line["service"] for line in lines} <= {observe.SERVICE}
        return {line["counter"]: line["Counted"][0] for line in lines}

    imported = {"imported": {"BOOL": True}}
    receipts = [play(1, amount=5), play(2, amount=-2), play(3, "w"), play(4, **imported), heartbeat(5)]
    assert counted_changes("rollup", "receipts", receipts) == {}
    store, client = stream.watched_store()
    first_two = iter([receipts[:2]])

    def apply_first_two(*_: object) -> None:
        for records in first_two:  # only before the first write
            assert counted_changes("bookkeeper", "receipts", records) == {"plays": 2}

    client.before = apply_first_two
    assert counted_changes("bookkeeper", "receipts", receipts, store) == {"plays": 1}
    assert counted_changes("bookkeeper", "receipts", receipts) == {}
    key = tallies.key(counters.PLAYS, "v", 0)
    move = record(5, "INSERT", {"Keys": key, "NewImage": key | {"play_count": {"N": "7"}}})
    likes = [like(1, "ann"), like(2, "bob"), like(3, "ann", "REMOVE"), like(4, "cy", **imported), move]
    assert counted_changes("bookkeeper", "counts", likes) == {"likes": 3}
