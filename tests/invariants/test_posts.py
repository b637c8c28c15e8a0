"""Posts: `revision` is the number of accepted edits, whatever fails and whoever edits at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from dev import faults
from tally.errors import EditConflictError, ForbiddenError, NotFoundError
from tests.invariants.threads import at_once
from tests.invariants.world import POST, World, meanwhile

EDITORS = 8


def stored(world: World, post_id: str = POST) -> tuple[int, str]:
    """The revision and the text of a post, as they are in the table."""
    items = {item["SK"]["S"]: item for item in world.items(f"POST#{post_id}")}
    return int(items["META"]["revision"]["N"]), items["META.BODY"]["body"]["S"]


def test_put_of_the_text_that_is_there_counts_no_edit_and_writes_nothing(world: World) -> None:
    world.write_post(text="same")
    world.proxy.forget()
    assert world.write_post(text="same")[0]["revision"] == 0
    assert world.sent("TransactWriteItems") == []
    assert stored(world) == (0, "same")


def test_8_edits_at_once_count_as_many_revisions_as_were_accepted(world: World) -> None:
    world.write_post(text="first")

    def edit(number: int) -> int | None:
        try:
            return int(world.write_post(text=f"text {number}")[0]["revision"])
        except EditConflictError:
            return None

    revisions = [revision for revision in at_once([partial(edit, number) for number in range(EDITORS)]) if revision]
    assert sorted(revisions) == list(range(1, len(revisions) + 1))  # each has a number of its own
    revision, text = stored(world)
    assert revision == len(revisions) >= 1
    assert text.startswith("text ")


def test_edit_that_always_comes_second_is_a_conflict_and_counts_nothing(world: World) -> None:
    world.write_post(text="first")

    def faster() -> None:
        world.raw.update_item(
            TableName=world.store.settings.counts_table,
            Key={"PK": {"S": f"POST#{POST}"}, "SK": {"S": "META"}},
            UpdateExpression="ADD revision :one",
            ExpressionAttributeValues={":one": {"N": "1"}},
        )

    world.proxy.plan = meanwhile(dict.fromkeys(range(20), faster))
    world.proxy.forget()
    with pytest.raises(EditConflictError):
        world.write_post(text="mine")
    attempts = len(world.sent("TransactWriteItems"))
    assert 1 < attempts < 20
    assert stored(world) == (attempts, "first")


def test_post_that_somebody_else_creates_first_is_theirs(world: World) -> None:
    theirs: dict[int, Callable[[], object]] = {
        0: lambda: world.put({
            "PK": {"S": f"POST#{POST}"}, "SK": {"S": "META"}, "authorId": {"S": "bob"},
            "createdAt": {"N": "1"}, "revision": {"N": "0"}, "likeTally": {"N": "0"},
        }),
    }  # fmt: skip
    world.put({"PK": {"S": f"POST#{POST}"}, "SK": {"S": "META.BODY"}, "body": {"S": "theirs"}})
    world.proxy.plan = meanwhile(theirs)
    with pytest.raises(ForbiddenError):
        world.write_post(text="mine", author="ann")
    assert stored(world) == (0, "theirs")


def test_edits_and_likes_at_once_do_not_undo_each_other(world: World) -> None:
    world.write_post(text="first")
    users = [f"user-{number}" for number in range(12)]
    edits = [partial(world.write_post, POST, f"text {number}") for number in range(3)]
    at_once([*(partial(world.like, user) for user in users), *edits])
    assert world.likes() == (len(users), set(users))
    assert stored(world)[0] == 3


def test_post_whose_text_a_read_misses_is_looked_at_once_more_and_then_is_none(world: World) -> None:
    """A Query beside the transaction that makes a post may find `META` and not the text yet."""
    world.write_post(text="here")
    [text] = [item for item in world.items() if "body" in item]
    world.delete(f"POST#{POST}", "META.BODY")
    world.proxy.plan = meanwhile({1: lambda: world.put(text)}, "Query")
    world.proxy.forget()
    assert world.read_post()["body"] == "here"
    world.delete(f"POST#{POST}", "META.BODY")
    world.proxy.forget()
    world.proxy.plan = faults.no_faults
    with pytest.raises(NotFoundError):
        world.read_post()
    assert len(world.sent("Query")) == 2
    with pytest.raises(EditConflictError):
        world.write_post(text="mine")
