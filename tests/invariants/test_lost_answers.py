"""The change is made and its answer is lost: the SDK tries again by itself, and callers send it again.

Each kind of change meets each kind of fault. The SDK's tokens are taken away, as after ten minutes: what protects is
the receipt, the item itself or its version.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from boto3.dynamodb.conditions import Attr

import counters
from tally.counter import Counter
from tally.dev.base.engine import Engine
from tally.dynamo.client import Store
from tally.errors import RetryableError, StoreUnreachableError
from tally.records import Records, atomic_counter, partition_key, record, sort_key
from tests import faults
from tests.conftest import fresh_tables
from tests.faults import Fault
from tests.invariants.counting import Counting
from tests.invariants.world import POST, VIDEO, Outcome, World, killing_at

DONE = [faults.LOSE_RESPONSE, faults.FAIL_AFTER, faults.TRUNCATE]
NOT_DONE = [faults.FAIL_BEFORE, faults.DROP_BEFORE]
TIMED_OUT = [faults.SILENCE, faults.HANG_BEFORE]  # a client notices these by its time-out alone
SDK_ATTEMPTS = 3  # client.CLIENT_CONFIG
LATE_S = 2.0  # longer than the hasty client reads
PLAYED = {"video_id": VIDEO, "counted": True, "visible": "now"}
ROLLED_UP = Counter("pages", prefix="PAG", sort_key="TOTAL", attribute="number", visible="soon")
IN_DEBT = replace(counters.STOCK, debt=5)
KEY = "key-1"
IN_PROGRESS = "TransactionInProgressException"


@dataclass(frozen=True)
class Change:
    """A change, what it answers and what it leaves when it is made once."""

    name: str
    make: Callable[[World], Outcome]
    answer: dict[str, Any]
    """Members of the first answer."""
    stored: Callable[[World], object]
    """What the tables hold of it."""
    once: object
    """What they hold when it is made once."""
    before: Callable[[World], object] = lambda world: None
    keyed: bool = True
    """Whether a receipt remembers it: the caller's retry is a replay with the first answer."""
    retried: dict[str, Any] | None = None
    """Members of the answer to a retry after it was made, if those of the first answer cannot be known then."""
    transactions: int = 1
    """How many it sends at most, if nothing fails."""


def posts(world: World) -> tuple[int, str]:
    """Revision and text of the post."""
    items = {item["SK"]["S"]: item for item in world.items(f"POST#{POST}")}
    return (int(items["META"]["revision"]["N"]), items["META.BODY"]["body"]["S"]) if items else (-1, "")


def written(world: World, text: str) -> Outcome:
    """Write the post; nobody can say after a failure whether it was this call that created it."""
    return world.write_post(text=text)[0], False


def liked_by(*users: str) -> Callable[[World], None]:
    """Write a post that these users like."""

    def prepare(world: World) -> None:
        world.write_post()
        for user in users:
            world.like(user)

    return prepare


def heat(world: World) -> None:
    """A post and a video whose tallies are hot: changes spill."""
    world.write_post()
    for counter, id_ in ((counters.PLAYS, VIDEO), (counters.LIKES, POST)):
        world.store.breaker.trip(counter.partition_start + id_)


def stock(world: World) -> None:
    Counting(world).stock(10)


def held(world: World) -> str:
    """The id of the only hold."""
    (hold_id,) = Counting(world).states()
    return hold_id


def hold(world: World) -> None:
    stock(world)
    Counting(world).place_hold(3)


def expired_hold(world: World) -> None:
    """A hold that the sweep has given back."""
    stock(world)
    Counting(world).place_hold(3, ttl_s=-60)
    assert Counting(world).sweep() == 1


def committed_hold(world: World) -> None:
    hold(world)
    settled(world, "committed")


def settled(world: World, state: str, amount: int | None = None) -> Outcome:
    return Counting(world).settle_hold(held(world), state, amount), False


def changed(world: World, amount: int, ttl_s: int | None = None) -> Outcome:
    return Counting(world).change_hold(held(world), amount, ttl_s, KEY)


def held_and_left(world: World) -> tuple[dict[str, int], int]:
    """What holds have taken, by state, and what is left in stock."""
    return Counting(world).amounts_by_state(), Counting(world).stored(counters.STOCK)


def likes_of(world: World) -> tuple[int, set[str]]:
    """The tally of the post once all is rolled up, and who likes it."""
    return world.tally_after_rollup(counters.LIKES, POST), world.likes()[1]


def number_of(counter: Counter) -> Callable[[World], int]:
    return lambda world: Counting(world).stored(counter)


KEPT = {"state": "committed"}
LIKED = {"present": True}
UNLIKED = {"present": False}
SPILLED_LIKE = {**LIKED, "changed": True, "visible": "soon"}
CHANGES = [
    Change("play", lambda world: world.play(KEY), PLAYED, World.shards, {"STATS#TOTAL": 1}),
    Change("rolled up", lambda world: world.play(KEY, counter=ROLLED_UP), {"visible": "soon"},
           lambda world: world.tally_after_rollup(ROLLED_UP), 1),
    Change("spilled play", lambda world: world.play(KEY), {"visible": "soon"}, World.tally_after_rollup, 1, heat),
    Change("take from stock", lambda world: Counting(world).increment(counters.STOCK, -1, KEY), {"counted": True},
           number_of(counters.STOCK), 9, stock),
    Change("use beyond a limit", lambda world: Counting(world).increment(IN_DEBT, -12, KEY, used=True), {"over": True},
           number_of(counters.STOCK), -2, stock, transactions=2),
    Change("number", lambda world: Counting(world).increment(counters.TICKET, key=KEY), {"number": 1},
           number_of(counters.TICKET), 1),
    Change("set", lambda world: Counting(world).set(counters.STOCK, 42, 1, KEY), {"value": 42, "version": 2},
           lambda world: Counting(world).read(counters.STOCK)["version"], 2, stock),
    Change("hold", lambda world: Counting(world).place_hold(3, key=KEY), {"amount": 3}, held_and_left, ({"held": 3}, 7),
           stock),
    Change("commit of a hold", partial(settled, state="committed"), {**KEPT, "amount": 3, "changed": True},
           held_and_left, ({"committed": 3}, 7), hold, keyed=False, retried={**KEPT, "amount": 3, "changed": False}),
    Change("commit at what was used", partial(settled, state="committed", amount=1), {**KEPT, "amount": 1,
           "changed": True}, held_and_left, ({"committed": 3}, 9), hold, keyed=False, retried={**KEPT, "amount": 1,
           "changed": False}),
    Change("commit of an expired hold", partial(settled, state="committed", amount=1), {**KEPT, "amount": 1,
           "changed": True}, held_and_left, ({"committed": 3}, 9), expired_hold, keyed=False,
           retried={**KEPT, "amount": 1, "changed": False}),
    Change("void of a hold", partial(settled, state="voided"), {"state": "voided", "amount": 3, "changed": True},
           held_and_left, ({"voided": 3}, 10), committed_hold, keyed=False, retried={"state": "voided", "amount": 3,
           "changed": False}),
    Change("more of a hold", partial(changed, amount=5), {"amount": 5, "state": "held"}, held_and_left,
           ({"held": 5}, 5), hold),
    Change("less of a hold, for longer", partial(changed, amount=1, ttl_s=900), {"amount": 1, "state": "held"},
           held_and_left, ({"held": 1}, 9), hold),
    Change("release of a hold", partial(settled, state="released"), {"state": "released", "changed": True},
           held_and_left, ({"released": 3}, 10), hold, keyed=False, retried={"state": "released", "changed": False}),
    Change("like", lambda world: world.like("ann"), {**LIKED, "changed": True}, likes_of, (1, {"ann"}), liked_by(),
           keyed=False, retried={**LIKED, "changed": False}),
    Change("keyed like", lambda world: world.like("ann", key=KEY), {**LIKED, "changed": True}, likes_of, (1, {"ann"}),
           liked_by()),
    Change("spilled like", lambda world: world.like("ann"), SPILLED_LIKE, likes_of,
           (1, {"ann"}), heat, keyed=False, retried={**LIKED, "changed": False}),
    Change("keyed spilled like", lambda world: world.like("ann", key=KEY), SPILLED_LIKE,
           likes_of, (1, {"ann"}), heat),
    # Without token and key nobody can say whether it was this call that took the like back.
    Change("unlike", lambda world: world.unlike("ann"), UNLIKED, likes_of, (1, {"bob"}), liked_by("ann", "bob"),
           keyed=False),
    Change("keyed unlike", lambda world: world.unlike("ann", key=KEY), {**UNLIKED, "changed": True}, likes_of,
           (1, {"bob"}), liked_by("ann", "bob")),
    Change("new post", partial(written, text="first"), {"revision": 0}, posts, (0, "first"), keyed=False),
    Change("edit", partial(written, text="second"), {"revision": 1, "body": "second"}, posts, (1, "second"),
           World.write_post, keyed=False),
]  # fmt: skip


def fault_name(fault: Fault) -> str:
    return fault.kind.name.lower()


each_change = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)


def prepared(world: World, change: Change, *planned: Fault) -> World:
    """The world before the change; these faults meet its commit."""
    change.before(world)
    world.proxy.forget()
    world.proxy.strip_tokens = True
    world.proxy.plan = faults.script({"TransactWriteItems": planned, "PutItem": planned})
    return world


def answers(members: dict[str, Any], answer: Outcome, *, replayed: bool) -> bool:
    return members.items() <= answer[0].items() and answer[1] is replayed


@each_change
def test_an_answer_that_it_is_still_in_progress_is_none_and_the_same_request_goes_again(
    world: World, change: Change
) -> None:
    """DynamoDB gives it to the second copy of a request, and it may have committed by then: so nothing is known."""
    prepared(world, change)
    world.proxy.strip_tokens = False
    unknown = [faults.error_after_write(IN_PROGRESS), *[faults.error_answer(IN_PROGRESS)] * (SDK_ATTEMPTS - 1)]
    world.proxy.plan = faults.script({"TransactWriteItems": unknown})
    outcome = change.make(world)
    assert answers(change.answer, outcome, replayed=False)
    assert outcome[0].get("changed", True) is True, "it was this call that changed it"
    assert len({sent["ClientRequestToken"] for sent in world.sent("TransactWriteItems")}) <= change.transactions
    assert change.stored(world) == change.once


def test_a_change_that_stays_in_progress_is_unknown_when_its_time_is_over(world: World) -> None:
    world.proxy.plan = faults.always(faults.error_answer(IN_PROGRESS), "TransactWriteItems")
    rushed, call = world.with_deadline(within_s=0.5)
    with pytest.raises(StoreUnreachableError, match="The store failed"):
        rushed.play(KEY, call=call)
    assert 0 < rushed.store.clock() <= 0.5, "the call's own clock"
    assert world.tally() == 0


@each_change
@pytest.mark.parametrize("fault", [*DONE, faults.DROP_BEFORE], ids=fault_name)
def test_sdk_retry_changes_once_and_is_a_first_answer(world: World, change: Change, fault: Fault) -> None:
    prepared(world, change, fault)
    assert answers(change.answer, change.make(world), replayed=False)
    assert len(world.sent()) >= 2
    assert change.stored(world) == change.once


@each_change
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_process_that_is_killed_over_any_request_and_a_retry_by_another_one_change_once(
    world: World, engine: Engine, change: Change, before: bool
) -> None:
    """Each round has tables of its own, and is killed one request later."""
    for at in itertools.count():
        settings = fresh_tables(engine.endpoint, ("counts", "receipts"))
        first, other = (replace(world, store=Store(world.store.client, settings)) for _ in range(2))
        prepared(first, change)
        with killing_at(first.store, at, before=before) as made:
            change.make(first)
        committed = change.stored(other) == change.once
        body, replayed = change.make(other)
        assert replayed is (committed and change.keyed)
        assert not committed or (change.retried or change.answer).items() <= body.items()
        assert change.stored(other) == change.once
        if len(made) < at:
            break


@pytest.mark.parametrize("read", [World.read_plays, World.read_post], ids=["plays", "post"])
def test_read_whose_answers_are_all_cut_is_unreachable_and_never_a_wrong_number(
    world: World, read: Callable[[World], object]
) -> None:
    world.write_post()
    world.play(KEY)
    world.proxy.plan = faults.always(faults.TRUNCATE, "Query")
    with pytest.raises(StoreUnreachableError):
        read(world)


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "no tokens"])
@pytest.mark.parametrize("fault", [*TIMED_OUT, faults.delay(LATE_S)], ids=fault_name)
def test_a_play_that_times_out_or_arrives_after_its_own_retry_counts_once(
    make_world: Callable[..., World], fault: Fault, tokens: bool
) -> None:
    world = make_world(hasty=True)
    world.proxy.strip_tokens = not tokens
    world.proxy.plan = faults.script({"TransactWriteItems": [fault]})
    assert world.play(KEY) == (PLAYED, False)
    world.proxy.wait_until_idle()
    assert len(world.sent("TransactWriteItems")) >= 2
    assert world.shards() == {"STATS#TOTAL": 1}
    assert len(world.receipts()) == 1


@pytest.mark.parametrize("spilled", [False, True], ids=["exact", "spilled"])
def test_like_without_a_key_that_arrives_after_its_retry_and_an_unlike_does_not_like_again(
    make_world: Callable[..., World], spilled: bool
) -> None:
    world = make_world(hasty=True)
    heat(world) if spilled else world.write_post()
    world.proxy.plan = writes(faults.delay(LATE_S))
    assert world.like("ann")[0]["changed"] is True
    world.proxy.plan = faults.script({})  # the unlike comes before the copy
    assert world.unlike("ann")[0]["changed"] is True
    world.proxy.wait_until_idle()
    assert world.likes()[1] == set()
    assert world.tally_after_rollup(counters.LIKES, POST) == 0


def test_each_attempt_of_ours_has_a_token_of_its_own_and_the_sdk_keeps_it(world: World) -> None:
    world.proxy.plan = faults.script({"TransactWriteItems": [faults.FAIL_BEFORE, faults.CONFLICT]})
    world.play(KEY)
    first, sdk_retry, ours = (sent["ClientRequestToken"] for sent in world.sent("TransactWriteItems"))
    assert first == sdk_retry != ours


# Records


@record
class Visitor:
    """A record with a counter, among the counts."""

    p: str = partition_key(name="PK")
    s: str = sort_key(name="SK")
    visits: int | None = atomic_counter()


def records(world: World, *, exact: bool = True) -> Records[Visitor]:
    return Records(world.store.client, world.store.settings.counts_table, Visitor, exact=exact)


def visitor() -> Visitor:
    return Visitor(p="V", s="1")


def writes(*planned: Fault | None) -> faults.Plan:
    """The plan for whatever write a record is sent as."""
    return faults.script({name: list(planned) for name in ("TransactWriteItems", "UpdateItem", "PutItem")})


@pytest.mark.parametrize("fault", DONE + NOT_DONE, ids=lambda fault: fault.kind.name)
@pytest.mark.parametrize("times", [1, SDK_ATTEMPTS - 1])
def test_a_record_that_is_written_once_is_written_once(world: World, fault: Fault, times: int) -> None:
    visitors = records(world)
    world.proxy.plan = writes(*[fault] * times)
    assert visitors.put_item(visitor()).visits == 0  # no RecordExistsError: it is this very put that made it
    world.proxy.plan = writes(*[fault] * times)
    assert visitors.update_item(visitor()).visits == 1
    world.proxy.plan = writes(*[fault] * times)
    assert visitors.update_item(visitor(), condition=Attr("visits").eq(1)).visits == 2
    assert visitors.get_item("V", "1") == Visitor(p="V", s="1", visits=2)


def test_all_attempts_of_a_record_have_one_token(world: World) -> None:
    """A copy of the first attempt may still be under way when the second one commits."""
    visitors = records(world)
    planned = [faults.FAIL_BEFORE, faults.CONFLICT, faults.THROTTLED_TRANSACTION, faults.error_after_write(IN_PROGRESS)]
    world.proxy.plan = writes(*planned)
    assert visitors.update_item(visitor()).visits == 0
    sent = world.sent("TransactWriteItems")
    assert len(sent) > len(planned)
    assert len({request["ClientRequestToken"] for request in sent}) == 1
    visitors.update_item(visitor())
    assert world.sent("TransactWriteItems")[-1]["ClientRequestToken"] != sent[0]["ClientRequestToken"]


def test_a_record_that_is_updated_but_cannot_be_read_says_so(world: World) -> None:
    world.proxy.plan = faults.always(faults.LOSE_RESPONSE, "GetItem")
    with pytest.raises(RetryableError, match="is updated, but could not be read"):
        records(world).update_item(visitor())
    world.proxy.plan = faults.no_faults
    assert records(world).get_item("V", "1") == Visitor(p="V", s="1", visits=0)
