"""Records of manual edits, of changed declarations and of broken items: no change counts twice or is delayed."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from botocore.exceptions import ClientError

import counters
from tally.counting import tallies
from tally.drift import recount
from tally.dynamo.client import Call
from tests.invariants.processes import WatchedClient
from tests.invariants.stream_records import MINUTE, SHARD, record
from tests.invariants.streaming import CONSUMERS, REDECLARED, StreamWorld
from tests.invariants.world import POST, World


def receipt(counter: str = "plays", nonce: str = "a", **attributes: Any) -> dict[str, Any]:
    return {
        "id": {"S": "tally#1"}, "counter": {"S": counter}, "target": {"S": "v"}, "amount": {"N": "3"},
        "at": {"N": str(MINUTE)}, "nonce": {"S": nonce}, "rollup": {"BOOL": True},
    } | attributes  # fmt: skip


def test_a_manually_edited_receipt_counts_once_and_an_overwritten_receipt_is_a_new_receipt(stream: StreamWorld) -> None:
    first_image, edited_image, new_image = receipt(), receipt(note={"S": "seen"}), receipt(nonce="b")
    records = [
        record(1, "INSERT", {"NewImage": first_image}),
        record(2, "MODIFY", {"OldImage": first_image, "NewImage": edited_image}),
        record(3, "MODIFY", {"OldImage": edited_image, "NewImage": new_image}),
    ]
    for consumer in CONSUMERS:
        assert stream.deliver(consumer, "receipts", SHARD, records) is None
    assert stream.tallies() == {("plays", "v"): 3 + 3}
    assert stream.ledger() == {("plays", "v", MINUTE): [3 + 3, 0]}


def test_a_redriven_dead_letter_of_an_undeclared_counter_makes_no_drift(stream: StreamWorld) -> None:
    keys = {"PK": {"S": "OLD#v"}, "SK": {"S": "LIKE#USER#ann"}}
    child = {**keys, "likedAt": {"N": "1"}, "at": {"N": str(MINUTE)}, "rollup": {"BOOL": True}}
    batches = {
        "receipts": record(1, "INSERT", {"NewImage": receipt("retired")}),
        "counts": record(1, "INSERT", {"Keys": keys, "NewImage": child}),
    }
    for consumer in CONSUMERS:
        for table, inserted in batches.items():
            assert stream.deliver(consumer, table, f"{SHARD}-{table}", [inserted]) is None
    declared = replace(REDECLARED["retired"], visible="now", child="LIKE#USER#")
    assert stream.redrive({"retired": declared}) == ["applied"] * 4
    assert stream.tallies() == {("retired", "v"): 3 + 1}
    assert sum(expected for expected, _ in stream.ledger().values()) == 3 + 1


def batch_receipt(soon: Any, **attributes: Any) -> dict[str, Any]:
    """Makes the receipt of a batch. `soon`: the changes that spilled. `attributes`: others of the receipt, such as
    `changes`, the changes that did not spill."""
    facts = {name: value for name, value in receipt().items() if name not in ("counter", "target", "amount")}
    return facts | {"soon": soon} | attributes


NOT_AN_INTEGER = "malformed: ValueError: invalid literal for int() with base 10: '1.5'"
BROKEN: list[tuple[dict[str, Any], str]] = [
    (receipt(amount={"S": "lots"}), "amount cannot be {'S': 'lots'}"),
    (receipt(amount={"N": "1.5"}), NOT_AN_INTEGER),
    (receipt(at={"NULL": True}), "at cannot be {'NULL': True}"),
    (receipt(at={"N": "-1"}), "at cannot be {'N': '-1'}"),
    (receipt() | {"counter": {"N": "7"}}, "counter cannot be {'N': '7'}"),
    (receipt(target={"S": 7}), "target cannot be {'S': 7}"),
    *(
        ({name: value for name, value in receipt().items() if name != missing}, f"{missing} cannot be missing")
        for missing in ("target", "amount", "at")
    ),
    (batch_receipt({"S": "plays"}), "malformed: KeyError: 'M'"),
    (batch_receipt({"M": {"plays": {"L": []}}}), "malformed: KeyError: 'M'"),
    (batch_receipt({"M": {"plays": {"M": {"v": {"N": "1.5"}}}}}), NOT_AN_INTEGER),
    (batch_receipt({"M": {"plays": {"M": {"v": {"N": str(10**38)}}}}}), "v has more than 38 digits"),
    (batch_receipt({"M": {}}), "the list of changes is empty"),
    (batch_receipt({"M": {"gone": {"M": {"v": {"N": "1"}}}}}), "the counter 'gone' is not declared"),
    (batch_receipt({"M": {"plays": {"M": {"v": {"N": "1"}}}}}, at={"S": "now"}), "at cannot be {'S': 'now'}"),
]


def test_a_broken_receipt_becomes_a_dead_letter_with_its_reason_and_delays_no_other_record(stream: StreamWorld) -> None:
    images = [image for broken, _ in BROKEN for image in (receipt(), broken)]
    records = [record(number, "INSERT", {"NewImage": image}) for number, image in enumerate([*images, receipt()], 100)]
    for consumer in CONSUMERS:
        assert stream.deliver(consumer, "receipts", SHARD, records) is None
    reasons = [reason for _, reason in BROKEN]
    assert [row["reason"]["S"] for row in stream.rows("DEADLETTER")] == reasons * 2
    assert stream.tallies() == {("plays", "v"): 3 * (len(BROKEN) + 1)}


def test_a_redrive_after_the_missing_counter_is_declared_rolls_up_the_whole_receipt(stream: StreamWorld) -> None:
    of_video = {"M": {"v": {"N": "2"}}}
    image = batch_receipt(
        {"M": {"plays": of_video, "retired": of_video}}, changes={"M": {"usage": of_video, "gone": of_video}}
    )
    for consumer in CONSUMERS:
        assert stream.deliver(consumer, "receipts", SHARD, [record(1, "INSERT", {"NewImage": image})]) is None
    assert (stream.tallies(), stream.ledger()) == ({}, {})
    assert stream.redrive() == ["applied"] * 2
    assert stream.tallies() == {("plays", "v"): 2, ("retired", "v"): 2}
    expected = {(counter, id_): sums for (counter, id_, _), sums in stream.ledger().items()}
    assert expected == {(counter, "v"): [2, 0] for counter in ("plays", "retired", "usage")}


def test_reads_recounts_and_the_bookkeeper_ignore_an_item_whose_key_is_not_of_a_shard(stream: StreamWorld) -> None:
    call = Call(stream.store)
    for number, suffix in enumerate(("#3x", "#03", "#-1", "!", "#²", "S")):
        keys = {"PK": {"S": f"VID#v{number}"}, "SK": {"S": f"STATS#TOTAL{suffix}"}}
        item = {**keys, "play_count": {"N": "7"}}
        shard = {**keys, "SK": {"S": "STATS#TOTAL#3"}, "play_count": {"N": "2"}}
        for stored in (item, shard):
            stream.raw.put_item(TableName=call.store.settings.counts_table, Item=stored)
        assert tallies.read(call, counters.PLAYS, f"v{number}") == 2
        assert recount.stored_sum(counters.PLAYS, tallies.read_numbered_shards(call, counters.PLAYS, f"v{number}")) == 2
        inserted = record(1 + number, "INSERT", {"Keys": keys, "NewImage": item})
        assert stream.deliver("bookkeeper", "counts", SHARD, [inserted]) is None
    assert stream.segments() == []


class ConflictingClient(WatchedClient):
    """A client whose transactions of more than two tallies always fail with a conflict."""

    def __getattr__(self, name: str) -> Any:
        real = super().__getattr__(name)
        if name != "transact_write_items":
            return real

        def write(**parameters: Any) -> Any:
            if len(parameters["TransactItems"]) > 2 + 1:  # and the checkpoint
                reasons: Any = [{"Code": "TransactionConflict"}] * len(parameters["TransactItems"])
                error: Any = {"Error": {"Code": "TransactionCanceledException"}, "CancellationReasons": reasons}
                raise ClientError(error, name)
            return real(**parameters)

        return write


def test_the_rollup_makes_a_transaction_smaller_after_repeated_conflicts(stream: StreamWorld) -> None:
    store = replace(stream.store, client=ConflictingClient(stream.raw), sleep=lambda _: None)  # type: ignore[arg-type]
    records = [record(number, "INSERT", {"NewImage": receipt(target={"S": f"v{number}"})}) for number in range(1, 21)]
    assert stream.deliver("rollup", "receipts", SHARD, records, store=store) is None
    assert stream.tallies() == {("plays", f"v{number}"): 3 for number in range(1, 21)}


def test_a_number_that_was_edited_into_a_fraction_is_rounded_down_and_its_drift_is_booked(
    world: World, stream: StreamWorld
) -> None:
    world.write_post()
    keys = {"PK": {"S": f"POST#{POST}"}, "SK": {"S": "META"}}
    images = [{**keys, "likeTally": {"N": number}, "nonce": {"S": "a"}} for number in ("10", "12.5", "13.5", "11")]
    moves = itertools.pairwise(images)
    records = [
        record(n, "MODIFY", {"Keys": keys, "OldImage": old, "NewImage": new}) for n, (old, new) in enumerate(moves, 1)
    ]
    assert stream.deliver("bookkeeper", "counts", SHARD, records[:2]) is None
    assert stream.ledger() == {("likes", POST, MINUTE): [0, 13 - 10]}
    assert stream.deliver("bookkeeper", "counts", SHARD, records[2:]) is None
    assert stream.ledger() == {("likes", POST, MINUTE): [0, 11 - 10]}
    (meta,) = (item for item in world.items() if item["SK"]["S"] == "META")
    world.put(meta | {"likeTally": {"N": "12.5"}})
    assert tallies.read(world.call(), counters.LIKES, POST) == 12
