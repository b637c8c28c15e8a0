"""Posts: `revision` is the number of accepted edits, also under concurrent edits, and a read returns the whole post."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import counters
from tally.counting import posts, tallies
from tally.dynamo import keys
from tally.errors import EditConflictError, ForbiddenError, NotFoundError
from tests import faults
from tests.invariants.world import POST, World, before_requests, before_transactions


def stored_post(world: World, post_id: str = POST) -> tuple[int, str]:
    """Returns the stored revision and the stored text of a post."""
    items = {item["SK"]["S"]: item for item in world.items(f"POST#{post_id}")}
    return int(items["META"]["revision"]["N"]), items["META.BODY"]["body"]["S"]


def test_a_put_of_the_stored_text_counts_no_edit_and_writes_nothing(world: World) -> None:
    world.write_post(text="same")
    world.proxy.clear_requests()
    assert world.write_post(text="same")[0]["revision"] == 0
    assert world.requests("TransactWriteItems") == []
    assert stored_post(world) == (0, "same")


def test_an_edit_that_loses_every_race_is_a_conflict_and_counts_nothing(world: World) -> None:
    world.write_post(text="first")

    def edit_first() -> None:
        world.raw.update_item(
            TableName=world.store.settings.counts_table,
            Key={"PK": {"S": f"POST#{POST}"}, "SK": {"S": "META"}},
            UpdateExpression="ADD revision :one",
            ExpressionAttributeValues={":one": {"N": "1"}},
        )

    world.proxy.plan = before_transactions(dict.fromkeys(range(20), edit_first))
    world.proxy.clear_requests()
    with pytest.raises(EditConflictError):
        world.write_post(text="mine")
    attempts = len(world.requests("TransactWriteItems"))
    assert 1 < attempts < 20
    assert stored_post(world) == (attempts, "first"), "one other edit came before each attempt"


def test_a_post_belongs_to_the_author_who_creates_it_first(world: World) -> None:
    create_first: dict[int, Callable[[], object]] = {
        0: lambda: world.put({
            "PK": {"S": f"POST#{POST}"}, "SK": {"S": "META"}, "authorId": {"S": "bob"},
            "createdAt": {"N": "1"}, "revision": {"N": "0"}, "likeTally": {"N": "0"},
        }),
    }  # fmt: skip
    world.put({"PK": {"S": f"POST#{POST}"}, "SK": {"S": "META.BODY"}, "body": {"S": "theirs"}})
    world.proxy.plan = before_transactions(create_first)
    with pytest.raises(ForbiddenError):
        world.write_post(text="mine", author="ann")
    assert stored_post(world) == (0, "theirs")


def test_a_post_without_its_text_is_read_twice_and_is_not_found(world: World) -> None:
    """A Query beside the transaction that creates a post may find `META` before it finds the text."""
    world.write_post(text="here")
    [text] = [item for item in world.items() if "body" in item]
    world.delete(keys.key(f"POST#{POST}", "META.BODY"))
    world.proxy.plan = before_requests("Query", {1: lambda: world.put(text)})
    world.proxy.clear_requests()
    assert world.read_post()["body"] == "here"
    world.delete(keys.key(f"POST#{POST}", "META.BODY"))
    world.proxy.clear_requests()
    world.proxy.plan = faults.no_faults
    with pytest.raises(NotFoundError):
        world.read_post()
    assert len(world.requests("Query")) == 2
    with pytest.raises(EditConflictError):
        world.write_post(text="mine")


def large_item(partition: str, sort_key: str, **numbers: int) -> dict[str, Any]:
    """Returns a tally item of 390 KB, which Tally never writes. A page of a Query has no room for three such items."""
    item: dict[str, Any] = {"PK": {"S": partition}, "SK": {"S": sort_key}, "padding": {"S": "x" * 390_000}}
    return item | {name: {"N": str(number)} for name, number in numbers.items()}


def test_a_post_of_several_pages_is_read_whole(world: World) -> None:
    world.write_post()
    for shard in range(1, 5):
        world.put(large_item(f"POST#{POST}", f"META#{shard}", likeTally=shard))
    world.proxy.clear_requests()
    post = world.read_post()
    assert (post["likes"], post["body"]) == (1 + 2 + 3 + 4, "hello")
    assert len(world.requests("Query")) > 1, "each page is a request"


def test_a_read_that_sees_the_unlike_but_not_the_like_shows_zero(world: World) -> None:
    """A Query of DynamoDB is not a snapshot, so a read may miss one of two shards."""
    world.write_post()
    world.put({"PK": {"S": f"POST#{POST}"}, "SK": {"S": "META#1"}, "likeTally": {"N": "-1"}})
    assert world.read_post()["likes"] == 0
    assert tallies.read(world.call(), counters.LIKES, POST) == 0


def test_a_read_sums_every_shard_and_no_other_item(world: World) -> None:
    world.write_post(text="99")
    world.like("ann")
    for shard in (1, 9, 10, 99, 255):
        world.put({"PK": {"S": f"POST#{POST}"}, "SK": {"S": f"META#{shard}"}, "likeTally": {"N": "10"}})
    for sort_key in ("METB", "META:", "MET", "LIKE#USER#META"):
        world.put({"PK": {"S": f"POST#{POST}"}, "SK": {"S": sort_key}, "likeTally": {"N": "1000"}})
    world.put({"PK": {"S": f"POST#{POST}1"}, "SK": {"S": "META"}, "likeTally": {"N": "1000"}})
    number, post = tallies.read(world.call(), counters.LIKES, POST), posts.read_post(world.call(), counters.LIKES, POST)
    assert number == post["likes"] == 1 + 5 * 10
