"""A deleted post is gone at once, and its likes go in the background: no drift, whatever dies and whatever is late."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError

from dev import faults
from dev.base.engine import Engine
from tally.counting import children, deletion, posts, tallies
from tally.counting.children import GONE_KEPT_S
from tally.counting.deletion import Swept
from tally.dynamo import keys
from tally.dynamo.client import CALL_TIME_DEFAULT_S, Call, Store
from tally.dynamo.contention import Spread
from tally.errors import ForbiddenError, NotFoundError, PostDeletedError, StoreUnreachableError, TallyError
from tests.invariants.judged import LIKES, Deployment, deployed
from tests.invariants.threads import at_once
from tests.invariants.world import World, meanwhile

FOREVER = float("inf")
POST = "p"
WAIT_S = 60  # instead of 15 minutes, each of which would be judged


@pytest.fixture(scope="session")
def streamed() -> tuple[str, ...]:
    return ("counts", "receipts")


@pytest.fixture
def judged(world: World, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """The deployment's writes go through the proxy of `world`."""
    monkeypatch.setattr(deletion, "GONE_KEPT_S", WAIT_S)
    with deployed(engine=engine, store=world.store) as made:
        yield made


class KilledError(BaseException):
    """The process is no more: nothing catches this."""


@contextmanager
def killed(store: Store, at: int, *, before: bool) -> Iterator[list[str]]:
    """Kill the process over its request number `at`, before it is sent or before the answer is seen; those made."""
    made, event = list[str](), "before-call.dynamodb" if before else "after-call.dynamodb"

    def kill(model: Any, **_: Any) -> None:
        if len(made) == at:
            raise KilledError
        made.append(model.name)

    store.client.meta.events.register(event, kill, unique_id="kill")
    try:
        yield made
    except KilledError:
        pass
    finally:
        store.client.meta.events.unregister(event, unique_id="kill")


def delete(store: Store, caller: str = "author", post: str = POST) -> dict[str, Any]:
    return deletion.delete(Call(store, caller), LIKES, post)


def sweep(judged: Deployment, until_s: float = FOREVER) -> Swept:
    return deletion.sweep(judged.store, LIKES, until_s)


def stored(world: World, post: str = POST) -> list[dict[str, Any]]:
    return world.items(f"POST#{post}")


def rows(world: World) -> list[str]:
    return [item["SK"]["S"] for item in world._scan(world.store.settings.ledger_table) if item["PK"]["S"] == "DELETED"]


def liked_by(judged: Deployment, number: int, post: str = POST) -> None:
    """Likes on all shards, whose tallies differ: some are below zero."""
    for user in range(number):
        if user % 3 == 0:
            judged.store.spread.conflict(f"POST#{post}", 16)
        judged.like(f"u{user}", post=post)


def even(judged: Deployment, minutes: int = 6) -> None:
    """Every change so far is judged, and no tally drifts, nor did any at any look."""
    judged.run(minutes, lambda: None if not judged.drifts() else pytest.fail(f"{judged.drifts()}"))
    assert judged.drifts() == {}


def ended(judged: Deployment, world: World) -> None:
    """After the wait the post is removed for good."""
    for _ in range(3):
        sweep(judged)
        judged.deliver()
        judged.skip(WAIT_S)
    left = [item for item in stored(world) if "expiration" not in item]  # what unlikes leave is TTL's
    assert (left, rows(world)) == ([], [])
    even(judged)


def test_only_the_author_deletes_and_once(judged: Deployment, world: World) -> None:
    with pytest.raises(NotFoundError):
        delete(judged.store)
    judged.post(3)
    with pytest.raises(ForbiddenError):
        delete(judged.store, "u1")
    assert delete(judged.store) == {"post_id": POST, "deleted": True, "changed": True}
    assert delete(judged.store) == {"post_id": POST, "deleted": True, "changed": False}
    with pytest.raises(NotFoundError):
        delete(judged.store, "u1")
    assert len(rows(world)) == 1


@pytest.mark.parametrize("fault", [faults.LOSE_RESPONSE, faults.FAIL_AFTER], ids=lambda fault: fault.kind.name)
def test_own_deletion_whose_answer_is_lost_is_a_change(judged: Deployment, world: World, fault: faults.Fault) -> None:
    judged.post()
    world.proxy.forget()
    world.proxy.plan = faults.script({"TransactWriteItems": [fault]})
    assert delete(judged.store)["changed"] is True


def test_own_deletion_that_the_call_finds_is_a_change(judged: Deployment) -> None:
    """The store forgets a token after ten minutes: the nonce is the guarantee."""
    judged.post()
    call = Call(judged.store, "author")
    assert [deletion.delete(call, LIKES, POST)["changed"] for _ in range(2)] == [True, True]


def test_deleted_post_is_gone_at_once_for_readers_and_likers(judged: Deployment, world: World) -> None:
    judged.post()
    liked_by(judged, 6)
    delete(judged.store)
    call = partial(Call, judged.store)
    refused: list[Callable[[], object]] = [
        lambda: posts.read_post(call(), LIKES, POST),
        lambda: children.is_there(call(), LIKES, POST, "u1"),
        lambda: children.listed(call(), LIKES, POST, 10, None),
        lambda: judged.like("u1", liked=False),
        lambda: judged.like("u1"),  # who likes it
        lambda: children.set_like(call("u1"), LIKES, POST, True, operation="like", key="key-1"),
        lambda: children.set_like(call("u1"), LIKES, POST, False, operation="unlike", key="key-2"),
    ]
    for _ in range(20):  # new likes, on shards at random
        refused.append(lambda: judged.like("new"))
        judged.store.spread.conflict(f"POST#{POST}", 16)
    for change in refused:
        with pytest.raises(NotFoundError):
            change()
    judged.store.breaker.trip(f"POST#{POST}")
    with pytest.raises(NotFoundError):  # written alone
        judged.like("new")
    assert not [item for item in stored(world) if item["SK"]["S"].endswith("#new") or "body" in item]
    assert [item for item in world.receipts() if not item["id"]["S"].startswith("heartbeat#")] == []


def test_id_of_a_deleted_post_is_taken_until_its_likes_are_gone(judged: Deployment, world: World) -> None:
    judged.post()
    liked_by(judged, 20)
    delete(judged.store)
    for caller in ("author", "u1"):
        for _ in range(2):
            with pytest.raises(PostDeletedError, match="quarter of an hour"):
                posts.write_post(Call(judged.store, caller), LIKES, POST, "again")
            sweep(judged)
    ended(judged, world)
    assert posts.write_post(Call(judged.store, "u1"), LIKES, POST, "again")[1] is True
    liked_by(judged, 40)
    assert posts.read_post(Call(judged.store), LIKES, POST)["likeTally"] == 40
    even(judged)


def test_likes_go_with_the_tally_and_nothing_drifts_all_the_while(judged: Deployment, world: World) -> None:
    judged.post()
    liked_by(judged, 70)
    calm = replace(judged.store, spread=Spread())
    for user in range(0, 30, 2):  # on another shard than most of their likes
        children.set_like(Call(calm, f"u{user}"), LIKES, POST, False, operation="unlike", key=None)
    for user in range(5):
        judged.like_alone(f"alone{user}")
    delete(judged.store)
    judged.run(1)
    assert min(world.shards(LIKES, POST).values()) < 0
    assert sweep(judged) == Swept(60, 0, 0, True)
    assert world.likes(POST)[1] == set()
    assert sweep(judged) == Swept(0, 0, 0, True), "it waits"
    even(judged)
    assert world.tally(LIKES, POST) == 0
    assert sweep(judged) == Swept(0, 1, 0, True)
    assert ([item for item in stored(world) if "likeTally" in item], rows(world)) == ([], [])
    even(judged)


def test_deletion_and_sweeps_that_are_killed_at_every_request_lose_nothing(judged: Deployment, world: World) -> None:
    """What comes next goes on with what it finds."""
    judged.post()
    liked_by(judged, 100)
    for at in range(40):
        with killed(judged.store, at, before=bool(at % 2)) as made:
            delete(judged.store)
        meta = next(item for item in stored(world) if item["SK"]["S"] == "META")
        assert ("createdAt" in meta) == (rows(world) == []), "neither without the other"
        if len(made) < at:
            break
    with pytest.raises(NotFoundError):
        posts.read_post(Call(judged.store), LIKES, POST)
    deaths = 0
    for turn in range(99):
        at = turn // 2 % 5
        with killed(judged.store, at, before=bool(turn % 2)) as made:
            sweep(judged)
        deaths += len(made) == at
        judged.deliver()
        tally, users = world.likes(POST)
        assert tally == len(users)
        assert judged.drifts() == {}
        if turn % 5 == 4:
            judged.run(1)
        if not rows(world):
            break
    assert deaths > 15
    assert (stored(world), rows(world)) == ([], [])
    even(judged)


@pytest.mark.parametrize("marked", [0, 7], ids=["no shard", "half the shards"])
def test_sweep_marks_the_shards_that_a_deletion_which_died_left_open(
    judged: Deployment, world: World, marked: int
) -> None:
    judged.post()
    liked_by(judged, 9)
    with killed(judged.store, 2 + marked, before=True):
        delete(judged.store)
    assert sweep(judged).likes == 9
    for shard in range(1, 16):
        judged.store.spread.conflict(f"POST#{POST}", 16)
        with pytest.raises(NotFoundError):
            judged.like(f"late{shard}")
    ended(judged, world)


def test_like_that_makes_a_shard_while_the_post_is_being_deleted_is_refused(judged: Deployment, world: World) -> None:
    """`META` is marked, and the shard is not there yet."""
    judged.post()
    with killed(judged.store, 2, before=True):
        delete(judged.store)
    judged.store.spread.conflict(f"POST#{POST}", 16)
    for _ in range(20):
        with pytest.raises(NotFoundError):
            judged.like("late")
    assert world.likes(POST)[1] == set()


def test_copies_that_arrive_late_bring_nothing_back(judged: Deployment, world: World) -> None:
    judged.post()
    judged.like("ann")
    world.proxy.plan = faults.always(faults.FAIL_BEFORE, "TransactWriteItems")  # these are under way all the while
    for change in (
        lambda: posts.write_post(Call(judged.store, "author"), LIKES, POST, "edit"),
        lambda: judged.like("b"),
    ):
        with pytest.raises(StoreUnreachableError):
            change()
    world.proxy.plan = faults.no_faults
    sent = {json.dumps(body["TransactItems"]) for body in world.sent("TransactWriteItems") if POST in str(body)}
    copies = [{"TransactItems": json.loads(items)} for items in sent if "POST#p" in items]
    assert len(copies) == 4  # created, liked; an edit and another like
    delete(judged.store)
    for swept in (False, True):
        for copy in copies:
            with pytest.raises(ClientError, match="Conditional"):
                world.raw.transact_write_items(**copy)
        kinds = {item["SK"]["S"].partition("#")[0] for item in stored(world)}
        assert kinds == ({"META"} if swept else {"META", "LIKE"})
        sweep(judged)
    ended(judged, world)


def test_spilled_like_that_arrives_late_is_removed_too(judged: Deployment, world: World) -> None:
    """It was decided before the deletion: nothing in its write notices."""
    judged.post(2)
    delete(judged.store)
    assert sweep(judged).likes == 2
    judged.like_alone("late")
    judged.run(1)
    judged.skip(WAIT_S)
    assert sweep(judged) == Swept(1, 0, 0, True), "it waits once more"
    even(judged)
    ended(judged, world)


def test_tally_that_moves_at_the_very_end_is_not_removed(judged: Deployment, world: World) -> None:
    """As when the rollup adds a like that it was behind with."""
    judged.post()
    delete(judged.store)
    sweep(judged)
    judged.skip(WAIT_S)
    world.proxy.forget()
    late = tallies.add(Call(judged.store), LIKES, POST, 3, 1, 0, by=tallies.ROLLED_UP)
    world.proxy.plan = meanwhile({0: lambda: world.raw.update_item(**late)})
    assert sweep(judged) == Swept(0, 0, 1, True)
    assert world.tally(LIKES, POST) == 1
    assert len(rows(world)) == 1


def test_post_without_likes_waits_too(judged: Deployment, world: World) -> None:
    judged.post()
    delete(judged.store)
    assert sweep(judged) == Swept(0, 0, 0, True)
    judged.like_alone("late")
    ended(judged, world)


def test_sweep_stops_in_time_and_posts_take_turns(judged: Deployment, world: World) -> None:
    """Each transaction takes a second."""
    for post in ("big", "small"):
        judged.post(post=post)
    liked_by(judged, 80, "big")
    liked_by(judged, 20, "small")
    for post in ("big", "small"):
        delete(judged.store, post=post)
    world.proxy.forget()
    done = partial(world.sent, "TransactWriteItems")
    slow = replace(judged.store, clock=lambda: len(done()))
    assert deletion.sweep(slow, LIKES, 2) == Swept(32, 0, 0, False)
    assert [len(world.likes(post)[1]) for post in ("big", "small")] == [64, 4]
    assert deletion.sweep(slow, LIKES, 4) == Swept(20, 0, 0, False)
    assert [len(world.likes(post)[1]) for post in ("big", "small")] == [48, 0]
    assert deletion.sweep(slow, LIKES, 99).finished
    assert [len(world.likes(post)[1]) for post in ("big", "small")] == [0, 0]
    even(judged)


def test_post_that_drifts_waits_for_its_repair_and_keeps_no_other_one_waiting(
    judged: Deployment, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for post in ("off", POST):
        judged.post(5, post=post)
    judged.edit(7, target="off")
    for post in ("off", POST):
        delete(judged.store, post=post)
    assert sweep(judged).likes == 10
    judged.skip(WAIT_S)
    assert sweep(judged) == Swept(0, 1, 1, True)
    assert "deleted post keeps a tally" in caplog.text
    assert len(rows(world)) == 1
    judged.edit(-7, target="off")
    judged.skip(WAIT_S)
    assert sweep(judged) == Swept(0, 1, 0, True)
    assert rows(world) == []


def test_broken_row_and_a_post_that_somebody_put_back_stop_nothing(judged: Deployment, world: World) -> None:
    judged.post(3)
    delete(judged.store)
    ledger = world.store.settings.ledger_table
    world.raw.put_item(TableName=ledger, Item=keys.key("DELETED", "000000000001#x"))
    judged.post(1, post="back")
    world.raw.put_item(TableName=ledger, Item=deletion._row(world.store, "back", 1, calm=True)["Put"]["Item"])
    assert sweep(judged) == Swept(3, 0, 1, True)
    assert posts.read_post(Call(judged.store), LIKES, "back")["likeTally"] == 1
    assert [row for row in rows(world) if row.endswith("#back")] == []


def test_sweep_that_cannot_read_says_that_it_did_not_finish(judged: Deployment, world: World) -> None:
    judged.post(3)
    delete(judged.store)
    world.proxy.forget()
    world.proxy.plan = faults.always(faults.answer("ValidationException"), "Query")
    assert sweep(judged) == Swept(0, 0, 0, False)


def test_retry_of_a_deletion_long_after_makes_no_shard(judged: Deployment, world: World) -> None:
    """The sweep may be about to remove them all: one that is made after that would refuse likes of the next post."""
    assert deletion.MARKS_S_MAX + CALL_TIME_DEFAULT_S < GONE_KEPT_S
    judged.post()
    delete(judged.store)
    judged.skip(deletion.MARKS_S_MAX + 1)
    world.proxy.forget()
    assert delete(judged.store)["changed"] is False
    assert world.sent("UpdateItem") == []


def test_likes_and_unlikes_that_race_with_a_deletion_leave_nothing(judged: Deployment, world: World) -> None:
    judged.post(30)
    chance = iter(range(10**6))
    world.proxy.plan = lambda operation, body, number: faults.LOSE_RESPONSE if next(chance) % 13 == 0 else None
    over = threading.Event()

    def traffic(who: int) -> int:
        done = 0
        for turn in range(400):
            if over.is_set():
                break
            try:
                judged.like(f"u{(who * 7 + turn) % 60}", liked=turn % 3 != 0)
                done += 1
            except NotFoundError:
                break
            except TallyError:
                continue
        return done

    def remove() -> int:
        time.sleep(0.15)
        try:
            for _ in range(20):
                try:
                    delete(judged.store)
                    break
                except StoreUnreachableError:
                    continue
        finally:
            over.set()
        return 1

    assert sum(at_once([*(partial(traffic, who) for who in range(5)), remove])) > 10
    world.proxy.plan = faults.no_faults
    judged.deliver()
    sweep(judged)
    sweep(judged)
    assert world.likes(POST)[1] == set()
    even(judged)
    ended(judged, world)


def test_deletion_costs_what_the_docs_say(judged: Deployment, world: World) -> None:
    judged.post(16)
    with world.capacity() as measured:
        delete(judged.store)
    assert sum(units for name, units in measured if name != "GetItem") == 6 + 15
    with world.capacity() as measured:
        sweep(judged)
    assert sum(units for name, units in measured if name == "TransactWriteItems") == 16 * 4 + 4
    judged.skip(WAIT_S)
    with world.capacity() as measured:
        sweep(judged)
    level, last = 2 * 16, 2 * 17  # the likes were on one shard, and each was taken back on another
    assert sum(units for name, units in measured if name == "TransactWriteItems") == level + last
    assert tallies.shards(Call(judged.store), LIKES, POST) == []
