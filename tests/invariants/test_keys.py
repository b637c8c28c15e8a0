"""What an idempotency key names; and receipts that are expired, forged or broken: never a wrong count."""

from __future__ import annotations

import hashlib
import json
import re
import time
from typing import Any

import pytest

import counters
from tally.errors import KeyReusedError
from tests import faults
from tests.invariants.world import VIDEO, World

PLAYED = {"video_id": VIDEO, "counted": True, "visible": "now"}
TTL_S = 24 * 3600


def test_parts_of_a_key_do_not_run_together(world: World) -> None:
    """Where one part ends and the next begins is part of the name, whatever characters they hold."""
    for target, caller, key in (("a", "b", "ck"), ("a", "bc", "k"), ("ab", "c", "k"), ("a", 'b","c', "k")):
        assert world.play(key, target, call=world.call(caller))[1] is False
    assert len(world.receipts()) == 4


def test_receipt_names_what_it_counted_in_which_minute_and_tells_nothing_of_key_and_caller(world: World) -> None:
    world.play("secret-key", amount=7, call=world.call("ann"))
    receipt = world.receipt()
    assert receipt["counter"] == {"S": counters.PLAYS.name}
    assert receipt["target"] == {"S": VIDEO}
    assert receipt["amount"] == {"N": "7"}
    assert receipt["status"] == {"S": "COMPLETED"}
    assert [item["at"] for item in world.items()] == [receipt["at"]]
    assert receipt["at"]["N"].isdigit()
    assert "secret-key" not in json.dumps(receipt)
    assert "ann" not in json.dumps(receipt)


@pytest.fixture
def played(world: World) -> World:
    """A world with one play under key-1."""
    world.play("key-1")
    return world


def test_expired_receipt_that_is_still_there_is_overwritten_and_counts_again(played: World) -> None:
    played.put_receipt({**played.receipt(), "expiration": {"N": str(int(time.time()) - 10)}})
    assert played.play("key-1", amount=5) == (PLAYED, False)  # with another payload, too: the key is free again
    assert played.tally() == 6
    assert int(played.receipt()["expiration"]["N"]) > time.time() + TTL_S - 60
    assert played.play("key-1", amount=5) == (PLAYED, True)


def test_receipt_that_lived_for_the_store_is_replayed_though_it_has_just_expired(played: World) -> None:
    old = {**played.receipt(), "expiration": {"N": str(int(time.time()) - 5)}}
    played.put_receipt(old)
    played.proxy.plan = faults.script({"TransactWriteItems": [faults.condition_failed(0, old)]})
    assert played.play("key-1") == (PLAYED, True)
    assert played.tally() == 1


@pytest.mark.parametrize("validation", [None, {"S": ""}, {"S": "0" * 64}, {"N": "1"}], ids=str)
def test_receipt_without_the_payloads_hash_is_never_replayed(played: World, validation: dict[str, str] | None) -> None:
    receipt = {name: value for name, value in {**played.receipt(), "validation": validation}.items() if value}
    played.put_receipt(receipt)
    with pytest.raises(KeyReusedError):
        played.play("key-1")
    assert played.tally() == 1


def test_key_of_a_receipt_is_a_constant_prefix_and_sha_256_whatever_the_function_is_called(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default the names of the Lambda function and of the Python function are part of the key."""
    for name in ("tally-plays", "tally-batch"):
        monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", name)
        world.store.idempotency_layers.clear()
        world.play("key-1", call=world.call("ann"))
    key = json.dumps(["play", VIDEO, "ann", "key-1"])
    assert world.receipt()["id"] == {"S": "tally#" + hashlib.sha256(key.encode()).hexdigest()}
    assert re.fullmatch("[0-9a-f]{64}", world.receipt()["validation"]["S"])
    assert world.tally() == 1


def test_calls_leak_no_handlers(world: World) -> None:
    """A layer for each call registers a handler for each call: 0.6 ms became 9.8 after 4,000."""

    def handlers() -> int:
        emitter: Any = world.store.client.meta.events
        return len(emitter._emitter._handlers.prefix_search("request-created.dynamodb.TransactWriteItems"))

    world.play("key-0")
    before = handlers()
    for number in range(3):
        world.play(f"key-{number}")
    assert handlers() == before > 0
