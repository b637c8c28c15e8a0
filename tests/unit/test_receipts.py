"""Powertools around a change, without a store: what each outcome of the change becomes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tally.counting import receipts
from tally.counting.receipts import Keyed, Stamp
from tally.dynamo.client import Call, Store, dynamodb_client
from tally.errors import KeyReusedError, NotCommittedError, NotFoundError, ReceiptFoundError, StoreBusyError
from tally.settings import Settings

BODY = {"counted": True}
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def call() -> Iterator[Call]:
    """A call whose store would fail, if it were asked."""
    client = dynamodb_client(endpoint_url=NOWHERE)
    yield Call(
        Store(client, Settings("counts-of-test", "receipts-of-test", "ledger-of-test", frozenset(), 3600, "test"))
    )
    client.close()


def once(call: Call, change: Callable[[Stamp], Any], *, key: str = "k", payload: Any = None) -> tuple[Any, bool]:
    return receipts.once(call, Keyed("play", "v1", key, payload or {"amount": 1}), change)


def in_a_batch(call: Call, change: Callable[[Stamp], Any], *, key: str = "k", payload: Any = None) -> tuple[Any, bool]:
    """A batch makes the stamps, sends the writes itself, and reads the receipts that they found."""
    stamp = receipts.stamp(call, Keyed("play", "v1", key, payload or {"amount": 1}))
    try:
        return change(stamp), False
    except ReceiptFoundError as found:
        return receipts.stored(call, "play", dict(found.item), stamp)


EITHER_WAY = pytest.mark.parametrize("count", [once, in_a_batch], ids=["alone", "in a batch"])
Count = Callable[..., tuple[Any, bool]]


def stamps_of(call: Call, **how: Any) -> Stamp:
    """The stamp that a change is given."""
    seen: list[Stamp] = []

    def change(stamp: Stamp) -> dict[str, bool]:
        seen.append(stamp)
        return BODY

    once(call, change, **how)
    (stamp,) = seen
    return stamp


def found(stamp: Stamp, *, nonce: str = "another", **damage: Any) -> ReceiptFoundError:
    """What the commit raises when it finds a receipt."""
    item = {
        "id": {"S": stamp.id},
        "status": {"S": "COMPLETED"},
        "data": {"S": json.dumps(BODY)},
        "validation": {"S": stamp.payload_hash},
        "expiration": {"N": str(stamp.expires_s)},
        "nonce": {"S": nonce},
        **damage,
    }
    return ReceiptFoundError({name: value for name, value in item.items() if value is not None})


def raising(error: Callable[[Stamp], Exception]) -> Callable[[Stamp], Any]:
    def change(stamp: Stamp) -> Any:
        raise error(stamp)

    return change


def test_change_is_made_once_and_its_body_answered(call: Call) -> None:
    made: list[Stamp] = []
    assert once(call, lambda stamp: made.append(stamp) or BODY) == (BODY, False)
    assert len(made) == 1


@EITHER_WAY
def test_receipt_found_is_replayed(call: Call, count: Count) -> None:
    assert count(call, raising(found)) == (BODY, True)


@EITHER_WAY
def test_own_receipt_found_is_a_first_answer(call: Call, count: Count) -> None:
    assert count(call, raising(lambda stamp: found(stamp, nonce=call.nonce))) == (BODY, False)


@EITHER_WAY
def test_receipt_of_another_payload_is_refused_without_a_word_of_what_was_stored(call: Call, count: Count) -> None:
    with pytest.raises(KeyReusedError) as raised:
        count(call, raising(lambda stamp: found(stamp, validation={"S": "0" * 64})))
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    "damage",
    [{"data": {"S": "{"}}, {"data": None}, {"status": {"S": "?"}}, {"expiration": {"S": "x"}}, {"id": None}],
    ids=str,
)
@EITHER_WAY
def test_broken_receipt_is_not_committed(call: Call, damage: dict[str, Any], count: Count) -> None:
    with pytest.raises(NotCommittedError):
        count(call, raising(lambda stamp: found(stamp, **damage)))


def test_receipt_that_has_just_expired_is_asked_for_again_and_then_a_first_answer(call: Call) -> None:
    answers: list[Any] = [lambda stamp: found(stamp, expiration={"N": str(int(time.time()) - 9)}), None]

    def change(stamp: Stamp) -> Any:
        if answer := answers.pop(0):
            raise answer(stamp)
        return BODY

    assert once(call, change) == (BODY, False)
    assert answers == []


def test_receipt_that_stays_expired_is_not_committed_after_a_bounded_number_of_looks(call: Call) -> None:
    looks: list[Stamp] = []

    def change(stamp: Stamp) -> Any:
        looks.append(stamp)
        raise found(stamp, expiration={"N": str(int(time.time()) - 9)})

    with pytest.raises(NotCommittedError):
        once(call, change)
    assert 1 < len(looks) < 10


@pytest.mark.parametrize("error", [NotFoundError("a"), StoreBusyError("b"), KeyReusedError("c")], ids=str)
def test_what_the_change_raises_comes_out_as_it_is(call: Call, error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        once(call, raising(lambda stamp: error))
    assert raised.value is error


@pytest.mark.parametrize("body", [None, {}])
def test_change_without_a_body_is_not_taken_for_an_answer(call: Call, body: Any) -> None:
    if body is None:
        with pytest.raises(NotCommittedError):
            once(call, lambda stamp: body)
    else:
        assert once(call, lambda stamp: body) == ({}, False)


@EITHER_WAY
def test_empty_key_is_refused_before_powertools_sees_it(call: Call, count: Count) -> None:
    """It hashes the parts of the name together: with one of them missing it would not notice."""
    with pytest.raises(NotCommittedError):
        count(call, lambda stamp: pytest.fail("the change was made"), key="")


def test_stamp_names_operation_target_caller_and_key_and_nothing_else(call: Call) -> None:
    def id_of(operation: str = "play", target: str = "v1", caller: str | None = None, key: str = "k") -> str:
        seen: list[str] = []
        other = Call(call.store, caller)
        receipts.once(other, Keyed(operation, target, key, {}), lambda stamp: seen.append(stamp.id) or BODY)
        return seen[0]

    different = [id_of(), id_of("other"), id_of(target="v2"), id_of(caller="ann"), id_of(key="l")]
    assert len(set(different)) == len(different)
    assert id_of() == different[0]
    assert all(name.startswith("tally#") and len(name) == 70 for name in different)


def test_a_change_alone_and_in_a_batch_have_one_stamp(call: Call) -> None:
    alone, packed = stamps_of(call), receipts.stamp(call, Keyed("play", "v1", "k", {"amount": 1}))
    assert (packed.id, packed.payload_hash) == (alone.id, alone.payload_hash)
    assert abs(packed.expires_s - alone.expires_s) < 60


def test_a_counters_receipts_live_as_long_as_it_says(call: Call) -> None:
    alone: list[Stamp] = []
    keyed = Keyed("play", "v1", "k", {"amount": 1}, days=9)
    receipts.once(call, keyed, lambda stamp: alone.append(stamp) or BODY)
    for stamp in (alone[0], receipts.stamp(call, keyed)):  # by itself, and in a batch
        assert abs(stamp.expires_s - time.time() - 9 * 86400) < 60
        assert stamp.id == stamps_of(call).id  # a key from before the counter said so is still known


def test_stamp_carries_the_payloads_hash_and_the_expiry(call: Call) -> None:
    stamp = stamps_of(call)
    assert stamp.payload_hash == stamps_of(call).payload_hash != stamps_of(call, payload={"amount": 2}).payload_hash
    assert stamp.id == stamps_of(call, payload={"amount": 2}).id
    assert abs(stamp.expires_s - time.time() - 3600) < 60


def test_calls_of_one_operation_and_thread_share_a_layer(call: Call) -> None:
    stamps_of(call)
    first = call.store.layers.__dict__["play"]
    stamps_of(Call(call.store))
    assert call.store.layers.__dict__["play"] is first
    assert list(call.store.layers.__dict__) == ["play"]
