"""What an idempotency key names: one change of one target by one caller through one operation."""

from __future__ import annotations

import json

import pytest

import counters
from tally.errors import KeyReusedError
from tests.invariants.world import VIDEO, World


def test_same_key_with_another_amount_is_refused_and_not_counted(world: World) -> None:
    world.play("key-1", amount=1)
    for _ in range(2):
        with pytest.raises(KeyReusedError):
            world.play("key-1", amount=2)
    assert world.tally() == 1
    assert world.play("key-1", amount=1)[1] is True
    assert len(world.receipts()) == 1


def test_parts_of_a_key_do_not_run_together(world: World) -> None:
    """Where one part ends and the next begins is part of the name, whatever characters they hold."""
    for target, caller, key in (("a", "b", "ck"), ("a", "bc", "k"), ("ab", "c", "k"), ("a", 'b","c', "k")):
        assert world.play(key, target, call=world.call(caller))[1] is False
    assert len(world.receipts()) == 4


def test_keys_are_told_apart_in_every_character(world: World) -> None:
    keys = ["k" * 255, "k" * 254, "K" * 255, "k" * 254 + "l", "null", "0", "{}", '"', "\\", "key 1", "kéy"]
    assert [world.play(key)[1] for key in keys + keys] == [False] * len(keys) + [True] * len(keys)
    assert world.tally() == len(keys)


def test_receipt_names_what_it_counted_and_tells_nothing_of_key_and_caller(world: World) -> None:
    world.play("secret-key", amount=7, call=world.call("ann"))
    receipt = world.receipt()
    assert receipt["counter"] == {"S": counters.PLAYS.name}
    assert receipt["target"] == {"S": VIDEO}
    assert receipt["amount"] == {"N": "7"}
    assert receipt["status"] == {"S": "COMPLETED"}
    assert "secret-key" not in json.dumps(receipt)
    assert "ann" not in json.dumps(receipt)


def test_receipt_and_tally_carry_one_minute(world: World) -> None:
    world.play("key-1")
    (item,) = world.items()
    assert item["at"] == world.receipt()["at"]
    assert item["at"]["N"].isdigit()
