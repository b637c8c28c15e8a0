"""A change under its key, without a store: what each outcome becomes, and what names the receipt."""

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
KEYED = Keyed("play", "v1", "k", {"amount": 1})


@pytest.fixture
def call() -> Iterator[Call]:
    """A call whose store would fail, if it were asked."""
    client = dynamodb_client(endpoint_url="http://127.0.0.1:9")
    yield Call(
        Store(client, Settings("counts-of-test", "receipts-of-test", "ledger-of-test", frozenset(), 3600, "test"))
    )
    client.close()


def finding(call: Call, *, nonce: str = "another", **damage: Any) -> Callable[[Stamp], Any]:
    """A change that finds a receipt."""

    def change(stamp: Stamp) -> Any:
        [write] = stamp.receipt(call, BODY).values()
        item = {**write["Item"], "nonce": {"S": nonce}, **damage}
        raise ReceiptFoundError({name: value for name, value in item.items() if value is not None})

    return change


def test_change_is_made_once_and_its_body_answered(call: Call) -> None:
    made: list[Stamp] = []
    assert receipts.once(call, KEYED, lambda stamp: made.append(stamp) or BODY) == (BODY, False)
    assert made == [receipts.stamp(call, KEYED)]


def test_receipt_found_is_replayed_and_the_calls_own_is_a_first_answer(call: Call) -> None:
    assert receipts.once(call, KEYED, finding(call)) == (BODY, True)
    assert receipts.once(call, KEYED, finding(call, nonce=call.nonce)) == (BODY, False)


def test_receipt_of_another_payload_is_refused_without_a_word_of_what_was_stored(call: Call) -> None:
    with pytest.raises(KeyReusedError) as raised:
        receipts.once(call, KEYED, finding(call, validation={"S": "0" * 64}))
    assert (raised.value.__cause__, raised.value.__suppress_context__) == (None, True)


@pytest.mark.parametrize(
    "damage",
    [{"data": {"S": "{"}}, {"data": None}, {"status": {"S": "?"}}, {"expiration": {"S": "x"}}, {"id": None}],
    ids=str,
)
def test_broken_receipt_is_not_committed(call: Call, damage: dict[str, Any]) -> None:
    with pytest.raises(NotCommittedError):
        receipts.once(call, KEYED, finding(call, **damage))


@pytest.mark.parametrize("error", [NotFoundError("a"), StoreBusyError("b"), ZeroDivisionError("a bug")], ids=str)
def test_what_the_change_raises_comes_out_as_it_is(call: Call, error: Exception) -> None:
    def change(stamp: Stamp) -> Any:
        raise error

    with pytest.raises(type(error)) as raised:
        receipts.once(call, KEYED, change)
    assert raised.value is error


def test_without_a_key_nothing_is_made(call: Call) -> None:
    """Powertools hashes the parts of the name together: with one of them missing it would not notice."""
    with pytest.raises(NotCommittedError):
        receipts.once(call, KEYED._replace(key=""), lambda stamp: pytest.fail("the change was made"))


def test_stamp_names_operation_target_caller_and_key_and_nothing_else(call: Call) -> None:
    others = [KEYED._replace(operation="other"), KEYED._replace(target="v2"), KEYED._replace(key="l")]
    different = [receipts.stamp(call, keyed).id for keyed in (KEYED, *others)]
    different.append(receipts.stamp(Call(call.store, "ann"), KEYED).id)
    assert len(set(different)) == len(different)
    assert receipts.stamp(call, KEYED._replace(payload={"amount": 2}, days=9)).id == different[0]
    assert all(name.startswith("tally#") and len(name) == 70 for name in different)


def test_stamp_carries_the_payloads_hash_and_the_expiry(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_795_000_000.5)
    one, other = receipts.stamp(call, KEYED), receipts.stamp(call, KEYED._replace(payload={"amount": 2}))
    assert one.payload_hash != other.payload_hash
    assert one.expires_s == 1_795_000_000 + 3600
    assert receipts.stamp(call, KEYED._replace(days=9)).expires_s == 1_795_000_000 + 9 * 86400
    assert json.loads(one.receipt(call, BODY)["Put"]["Item"]["data"]["S"]) == BODY
