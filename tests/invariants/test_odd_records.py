"""What hands, changed declarations and neighbours do to the streams: nothing counted twice, held up or made up."""

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
from tests.invariants.streaming import CONSUMERS, NOW_S, REDECLARED, StreamWorld
from tests.invariants.world import POST, World

SHARD = "shardId-1"
MINUTE = int(NOW_S // 60)


def record(sequence: int, name: str, **change: Any) -> dict[str, Any]:
    stamped = {**change, "SequenceNumber": str(sequence), "ApproximateCreationDateTime": NOW_S}
    return {"eventName": name, "dynamodb": stamped}


def receipt(counter: str = "plays", nonce: str = "a", **more: Any) -> dict[str, Any]:
    return {
        "id": {"S": "tally#1"}, "counter": {"S": counter}, "target": {"S": "v"}, "amount": {"N": "3"},
        "at": {"N": str(MINUTE)}, "nonce": {"S": nonce}, "rollup": {"BOOL": True},
    } | more  # fmt: skip


def test_a_receipt_that_is_edited_by_hand_is_not_counted_again_and_one_written_over_is(
    stream: StreamWorld,
) -> None:
    first, edited, rewritten = receipt(), receipt(note={"S": "seen"}), receipt(nonce="b")
    records = [
        record(1, "INSERT", NewImage=first),
        record(2, "MODIFY", OldImage=first, NewImage=edited),
        record(3, "MODIFY", OldImage=edited, NewImage=rewritten),
    ]
    for consumer in CONSUMERS:
        assert stream.deliver(consumer, "receipts", SHARD, records) is None
    assert stream.tallies() == {("plays", "v"): 6}
    assert stream.ledger() == {("plays", "v", MINUTE): [6, 0]}


def test_what_became_a_dead_letter_for_want_of_a_declaration_is_no_drift_once_redriven(stream: StreamWorld) -> None:
    keys = {"PK": {"S": "OLD#v"}, "SK": {"S": "LIKE#USER#ann"}}
    child = {**keys, "likedAt": {"N": "1"}, "at": {"N": str(MINUTE)}, "rollup": {"BOOL": True}}
    batches = {
        "receipts": record(1, "INSERT", NewImage=receipt("retired")),
        "counts": record(1, "INSERT", Keys=keys, NewImage=child),
    }
    for consumer in CONSUMERS:
        for table, one in batches.items():
            assert stream.deliver(consumer, table, f"{SHARD}-{table}", [one]) is None
    again = replace(REDECLARED["retired"], visible="now", child="LIKE#USER#")
    assert stream.redrive({"retired": again}) == ["applied"] * 4
    assert stream.tallies() == {("retired", "v"): 4}
    assert sum(expected for expected, _ in stream.ledger().values()) == 4


def many(soon: Any, **more: Any) -> dict[str, Any]:
    """The receipt of many changes, of which some wait for the rollup."""
    facts = {name: value for name, value in receipt().items() if name not in ("counter", "target", "amount")}
    return facts | {"soon": soon} | more


NO_INT = "malformed: ValueError: invalid literal for int() with base 10: '1.5'"
BROKEN: list[tuple[dict[str, Any], str]] = [
    (receipt(amount={"S": "lots"}), "amount cannot be {'S': 'lots'}"),
    (receipt(amount={"N": "1.5"}), NO_INT),
    (receipt(at={"NULL": True}), "at cannot be {'NULL': True}"),
    (receipt(at={"N": "-1"}), "at cannot be {'N': '-1'}"),
    (receipt() | {"counter": {"N": "7"}}, "counter cannot be {'N': '7'}"),
    (receipt(target={"S": 7}), "target cannot be {'S': 7}"),
    *(
        ({name: value for name, value in receipt().items() if name != lacking}, f"{lacking} cannot be missing")
        for lacking in ("target", "amount", "at")
    ),
    (many({"S": "plays"}), "malformed: KeyError: 'M'"),
    (many({"M": {"plays": {"L": []}}}), "malformed: KeyError: 'M'"),
    (many({"M": {"plays": {"M": {"v": {"N": "1.5"}}}}}), NO_INT),
    (many({"M": {"plays": {"M": {"v": {"N": str(10**38)}}}}}), "v has more than 38 digits"),
    (many({"M": {}}), "the list of changes is empty"),
    (many({"M": {"gone": {"M": {"v": {"N": "1"}}}}}), "the counter 'gone' is not declared"),
    (many({"M": {"plays": {"M": {"v": {"N": "1"}}}}}, at={"S": "now"}), "at cannot be {'S': 'now'}"),
]


def test_a_broken_receipt_becomes_a_dead_letter_with_what_is_wrong_and_blocks_nothing(stream: StreamWorld) -> None:
    images = [image for broken, _ in BROKEN for image in (receipt(), broken)]
    records = [record(number, "INSERT", NewImage=image) for number, image in enumerate([*images, receipt()], 100)]
    for consumer in CONSUMERS:
        assert stream.deliver(consumer, "receipts", SHARD, records) is None
    reasons = [reason for _, reason in BROKEN]
    assert [row["reason"]["S"] for row in stream.rows("DEADLETTER")] == reasons * 2
    assert stream.tallies() == {("plays", "v"): 3 * (len(BROKEN) + 1)}


def test_a_receipt_of_which_one_counter_is_declared_later_is_rolled_up_whole_once_redriven(stream: StreamWorld) -> None:
    some = {"M": {"v": {"N": "2"}}}
    image = many({"M": {"plays": some, "retired": some}}, changes={"M": {"usage": some, "gone": some}})
    for consumer in CONSUMERS:
        assert stream.deliver(consumer, "receipts", SHARD, [record(1, "INSERT", NewImage=image)]) is None
    assert (stream.tallies(), stream.ledger()) == ({}, {})
    assert stream.redrive() == ["applied"] * 2
    assert stream.tallies() == {("plays", "v"): 2, ("retired", "v"): 2}
    expected = {(counter, id_): sums for (counter, id_, _), sums in stream.ledger().items()}
    assert expected == {(counter, "v"): [2, 0] for counter in ("plays", "retired", "usage")}


PLAYS: dict[str, Any] = {"Keys": tallies.key(counters.PLAYS, "v", 0)}


def test_an_item_beside_the_shards_is_no_part_of_the_tally_for_anybody(stream: StreamWorld) -> None:
    call = Call(stream.store)
    for number, beside in enumerate(("#3x", "#03", "#-1", "!", "#²", "S")):
        keys = {"PK": {"S": f"VID#v{number}"}, "SK": {"S": f"STATS#TOTAL{beside}"}}
        item = {**keys, "play_count": {"N": "7"}}
        for one in (item, {**keys, "SK": {"S": "STATS#TOTAL#3"}, "play_count": {"N": "2"}}):
            stream.raw.put_item(TableName=call.store.settings.counts_table, Item=one)
        assert tallies.read(call, counters.PLAYS, f"v{number}") == 2
        assert recount.stored_sum(counters.PLAYS, recount.shards_of(call, counters.PLAYS, f"v{number}")) == 2
        inserted = record(1 + number, "INSERT", Keys=keys, NewImage=item)
        assert stream.deliver("bookkeeper", "counts", SHARD, [inserted]) is None
    assert stream.segments() == []


class Crowded(WatchedClient):
    """A store in which a transaction that moves more than two tallies always meets another."""

    def __getattr__(self, name: str) -> Any:
        real = super().__getattr__(name)
        if name != "transact_write_items":
            return real

        def write(**parameters: Any) -> Any:
            if len(parameters["TransactItems"]) > 3:
                reasons: Any = [{"Code": "TransactionConflict"}] * len(parameters["TransactItems"])
                error: Any = {"Error": {"Code": "TransactionCanceledException"}, "CancellationReasons": reasons}
                raise ClientError(error, name)
            return real(**parameters)

        return write


def test_a_wide_transaction_that_keeps_meeting_others_is_made_narrower(stream: StreamWorld) -> None:
    store = replace(stream.store, client=Crowded(stream.raw), sleep=lambda _: None)  # type: ignore[arg-type]
    records = [record(number, "INSERT", NewImage=receipt(target={"S": f"v{number}"})) for number in range(1, 21)]
    assert stream.deliver("rollup", "receipts", SHARD, records, store=store) is None
    assert stream.tallies() == {("plays", f"v{number}"): 3 for number in range(1, 21)}


def test_a_number_that_was_edited_into_a_fraction_is_read_and_its_drift_found(
    world: World, stream: StreamWorld
) -> None:
    world.write_post()
    keys = {"PK": {"S": f"POST#{POST}"}, "SK": {"S": "META"}}
    images = [{**keys, "likeTally": {"N": number}, "nonce": {"S": "a"}} for number in ("10", "12.5", "13.5", "11")]
    moves = itertools.pairwise(images)
    records = [record(n, "MODIFY", Keys=keys, OldImage=old, NewImage=new) for n, (old, new) in enumerate(moves, 1)]
    assert stream.deliver("bookkeeper", "counts", SHARD, records[:2]) is None
    assert stream.ledger() == {("likes", POST, MINUTE): [0, 3]}
    assert stream.deliver("bookkeeper", "counts", SHARD, records[2:]) is None
    assert stream.ledger() == {("likes", POST, MINUTE): [0, 1]}
    (meta,) = (item for item in world.items() if item["SK"]["S"] == "META")
    world.put(meta | {"likeTally": {"N": "12.5"}})
    assert tallies.read(world.call(), counters.LIKES, POST) == 12
