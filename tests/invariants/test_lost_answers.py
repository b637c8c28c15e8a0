"""A change whose answer is lost after the commit is made once, though the SDK and the caller retry.
Each kind of change meets each kind of fault. The proxy removes the SDK's tokens, as DynamoDB forgets them after ten
minutes, so the receipt, the item itself or its version must stop a second change."""

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

FAULTS_AFTER_COMMIT = [faults.LOSE_RESPONSE, faults.FAIL_AFTER, faults.TRUNCATE]  # only the answer is lost
FAULTS_BEFORE_COMMIT = [faults.FAIL_BEFORE, faults.DROP_BEFORE]
TIMED_OUT = [faults.SILENCE, faults.HANG_BEFORE]  # the client notices these faults only by its read time-out
SDK_ATTEMPTS = 3  # how often the SDK sends a request, by client.CLIENT_CONFIG
LATE_S = 2.0  # longer than the read time-out of the hasty client
PLAYED = {"video_id": VIDEO, "counted": True, "visible": "now"}
PAGES = Counter("pages", prefix="PAG", sort_key="TOTAL", attribute="number", visible="soon")
STOCK_WITH_DEBT = replace(counters.STOCK, debt=5)  # a used amount may go 5 below the floor
KEY = "key-1"
IN_PROGRESS = "TransactionInProgressException"


@dataclass(frozen=True)
class Change:
    """A kind of change, with its answer and the stored state after one change."""

    name: str
    make: Callable[[World], Outcome]
    answer: dict[str, Any]
    """Members of the first answer."""
    read_stored: Callable[[World], object]
    """Returns the stored state of the change."""
    stored_once: object
    """The stored state after exactly one change."""
    prepare: Callable[[World], object] = lambda world: None
    """Makes what the change needs."""
    has_receipt: bool = True
    """Whether the change leaves a receipt, so that the caller's retry is a replay with the first answer."""
    retry_answer: dict[str, Any] | None = None
    """Members of the answer to a retry after the commit; None: the members of the first answer."""
    transactions_max: int = 1
    """How many transactions the change sends at most without a fault."""


def revision_and_text(world: World) -> tuple[int, str]:
    """Returns the revision and the text of the post; (-1, "") if there is no post."""
    items = {item["SK"]["S"]: item for item in world.items(f"POST#{POST}")}
    return (int(items["META"]["revision"]["N"]), items["META.BODY"]["body"]["S"]) if items else (-1, "")


def write_post(world: World, text: str) -> Outcome:
    """Write the post. The outcome does not say whether this call created the post: after a failure nobody knows."""
    return world.write_post(text=text)[0], False


def post_liked_by(*users: str) -> Callable[[World], None]:
    """Returns a function that writes a post and lets these users like it."""

    def prepare(world: World) -> None:
        world.write_post()
        for user in users:
            world.like(user)

    return prepare


def make_hot(world: World) -> None:
    """Write a post, and make the tallies of the post and of a video hot, so that their changes spill."""
    world.write_post()
    for counter, id_ in ((counters.PLAYS, VIDEO), (counters.LIKES, POST)):
        world.store.breaker.trip(counter.partition_start + id_)


def add_stock(world: World) -> None:
    Counting(world).stock(10)


def only_hold_id(world: World) -> str:
    (hold_id,) = Counting(world).states()
    return hold_id


def place_hold(world: World) -> None:
    add_stock(world)
    Counting(world).place_hold(3)


def expire_hold(world: World) -> None:
    """Place a hold that is expired, and let the sweep release it."""
    add_stock(world)
    Counting(world).place_hold(3, ttl_s=-60)
    assert Counting(world).sweep() == 1


def commit_hold(world: World) -> None:
    place_hold(world)
    settle_hold(world, "committed")


def settle_hold(world: World, state: str, amount: int | None = None) -> Outcome:
    return Counting(world).settle_hold(only_hold_id(world), state, amount), False


def change_hold(world: World, amount: int, ttl_s: int | None = None) -> Outcome:
    return Counting(world).change_hold(only_hold_id(world), amount, ttl_s, KEY)


def held_and_left(world: World) -> tuple[dict[str, int], int]:
    """Returns the amounts that the holds of each state took, whatever was committed, and the stock that is left."""
    return Counting(world).amounts_by_state(), Counting(world).stored(counters.STOCK)


def likes_of(world: World) -> tuple[int, set[str]]:
    """Returns the tally of the post after the rollup, and the users who like the post."""
    return world.tally_after_rollup(counters.LIKES, POST), world.likes()[1]


def number_of(counter: Counter) -> Callable[[World], int]:
    return lambda world: Counting(world).stored(counter)


COMMITTED_3, COMMITTED_1 = ({"state": "committed", "amount": amount} for amount in (3, 1))
LIKED = {"present": True}
UNLIKED = {"present": False}
SPILLED_LIKE = {**LIKED, "changed": True, "visible": "soon"}
CHANGES = [
    Change("play", lambda world: world.play(KEY), PLAYED, World.shards, {"STATS#TOTAL": 1}),
    Change("visible soon", lambda world: world.play(KEY, counter=PAGES), {"visible": "soon"},
           lambda world: world.tally_after_rollup(PAGES), 1),
    Change("spilled play", lambda world: world.play(KEY), {"visible": "soon"}, World.tally_after_rollup, 1, make_hot),
    Change("take from stock", lambda world: Counting(world).increment(counters.STOCK, -1, KEY), {"counted": True},
           number_of(counters.STOCK), 9, add_stock),
    # The floor refuses the first transaction, and the second transaction goes into debt.
    Change("use beyond a limit", lambda world: Counting(world).increment(STOCK_WITH_DEBT, -12, KEY, used=True),
           {"over": True}, number_of(counters.STOCK), -2, add_stock, transactions_max=2),
    Change("number", lambda world: Counting(world).increment(counters.TICKET, key=KEY), {"number": 1},
           number_of(counters.TICKET), 1),
    Change("set", lambda world: Counting(world).set(counters.STOCK, 42, 1, KEY), {"value": 42, "version": 2},
           lambda world: Counting(world).read(counters.STOCK)["version"], 2, add_stock),
    Change("hold", lambda world: Counting(world).place_hold(3, key=KEY), {"amount": 3}, held_and_left, ({"held": 3}, 7),
           add_stock),
    Change("commit of a hold", partial(settle_hold, state="committed"), {**COMMITTED_3, "changed": True},
           held_and_left, ({"committed": 3}, 7), place_hold, has_receipt=False,
           retry_answer={**COMMITTED_3, "changed": False}),
    Change("commit at the used amount", partial(settle_hold, state="committed", amount=1),
           {**COMMITTED_1, "changed": True}, held_and_left, ({"committed": 3}, 9), place_hold, has_receipt=False,
           retry_answer={**COMMITTED_1, "changed": False}),
    Change("commit of an expired hold", partial(settle_hold, state="committed", amount=1),
           {**COMMITTED_1, "changed": True}, held_and_left, ({"committed": 3}, 9), expire_hold, has_receipt=False,
           retry_answer={**COMMITTED_1, "changed": False}),
    Change("void of a hold", partial(settle_hold, state="voided"), {"state": "voided", "amount": 3, "changed": True},
           held_and_left, ({"voided": 3}, 10), commit_hold, has_receipt=False,
           retry_answer={"state": "voided", "amount": 3, "changed": False}),
    Change("more of a hold", partial(change_hold, amount=5), {"amount": 5, "state": "held"}, held_and_left,
           ({"held": 5}, 5), place_hold),
    Change("less of a hold, for longer", partial(change_hold, amount=1, ttl_s=900), {"amount": 1, "state": "held"},
           held_and_left, ({"held": 1}, 9), place_hold),
    Change("release of a hold", partial(settle_hold, state="released"), {"state": "released", "changed": True},
           held_and_left, ({"released": 3}, 10), place_hold, has_receipt=False,
           retry_answer={"state": "released", "changed": False}),
    Change("like", lambda world: world.like("ann"), {**LIKED, "changed": True}, likes_of, (1, {"ann"}), post_liked_by(),
           has_receipt=False, retry_answer={**LIKED, "changed": False}),
    Change("keyed like", lambda world: world.like("ann", key=KEY), {**LIKED, "changed": True}, likes_of, (1, {"ann"}),
           post_liked_by()),
    Change("spilled like", lambda world: world.like("ann"), SPILLED_LIKE, likes_of,
           (1, {"ann"}), make_hot, has_receipt=False, retry_answer={**LIKED, "changed": False}),
    Change("keyed spilled like", lambda world: world.like("ann", key=KEY), SPILLED_LIKE,
           likes_of, (1, {"ann"}), make_hot),
    # Without token and key, nobody knows after a fault whether this call removed the like.
    Change("unlike", lambda world: world.unlike("ann"), UNLIKED, likes_of, (1, {"bob"}), post_liked_by("ann", "bob"),
           has_receipt=False),
    Change("keyed unlike", lambda world: world.unlike("ann", key=KEY), {**UNLIKED, "changed": True}, likes_of,
           (1, {"bob"}), post_liked_by("ann", "bob")),
    Change("new post", partial(write_post, text="first"), {"revision": 0}, revision_and_text, (0, "first"),
           has_receipt=False),
    Change("edit", partial(write_post, text="second"), {"revision": 1, "body": "second"}, revision_and_text,
           (1, "second"), World.write_post, has_receipt=False),
]  # fmt: skip


def fault_name(fault: Fault) -> str:
    return fault.kind.name.lower()


each_change = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)


def prepare(world: World, change: Change, *planned: Fault) -> None:
    """Make what the change needs, and let these faults meet its next writes."""
    change.prepare(world)
    world.proxy.clear_requests()
    world.proxy.strip_tokens = True
    world.proxy.plan = faults.script({"TransactWriteItems": planned, "PutItem": planned})  # a spill is a PutItem


def matches(members: dict[str, Any], answer: Outcome, *, replayed: bool) -> bool:
    """Whether an answer has these members, and is a replay or not."""
    return members.items() <= answer[0].items() and answer[1] is replayed


@each_change
def test_a_transaction_that_dynamodb_calls_in_progress_is_sent_again_with_the_same_token(
    world: World, change: Change
) -> None:
    """DynamoDB gives this answer to the second copy of a request. The first copy may have committed or not."""
    prepare(world, change)
    world.proxy.strip_tokens = False
    in_progress = [faults.error_after_write(IN_PROGRESS), *[faults.error_answer(IN_PROGRESS)] * (SDK_ATTEMPTS - 1)]
    world.proxy.plan = faults.script({"TransactWriteItems": in_progress})
    outcome = change.make(world)
    assert matches(change.answer, outcome, replayed=False)
    assert outcome[0].get("changed", True) is True, "this call made the change"
    tokens = {request["ClientRequestToken"] for request in world.requests("TransactWriteItems")}
    assert len(tokens) <= change.transactions_max
    assert change.read_stored(world) == change.stored_once


def test_a_call_whose_change_stays_in_progress_finds_the_store_unreachable_at_its_deadline(world: World) -> None:
    world.proxy.plan = faults.always(faults.error_answer(IN_PROGRESS), "TransactWriteItems")
    limited, call = world.with_deadline(within_s=0.5)
    with pytest.raises(StoreUnreachableError, match="The store failed"):
        limited.play(KEY, call=call)
    assert 0 < limited.store.clock() <= 0.5, "the clock began at 0, and the call stops at its deadline"
    assert world.tally() == 0


@each_change
@pytest.mark.parametrize("fault", [*FAULTS_AFTER_COMMIT, faults.DROP_BEFORE], ids=fault_name)
def test_a_retry_of_the_sdk_changes_once_and_gets_the_first_answer(world: World, change: Change, fault: Fault) -> None:
    prepare(world, change, fault)
    assert matches(change.answer, change.make(world), replayed=False)
    assert len(world.requests()) >= 2
    assert change.read_stored(world) == change.stored_once


@each_change
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_process_that_is_killed_at_any_request_and_the_retry_by_another_process_change_once(
    world: World, engine: Engine, change: Change, before: bool
) -> None:
    """Each round has new tables, and kills the process one request later."""
    for request_number in itertools.count():
        settings = fresh_tables(engine.endpoint, ("counts", "receipts"))
        first_process, other_process = (replace(world, store=Store(world.store.client, settings)) for _ in range(2))
        prepare(first_process, change)
        with killing_at(first_process.store, request_number, before=before) as requests:
            change.make(first_process)
        committed = change.read_stored(other_process) == change.stored_once
        body, replayed = change.make(other_process)
        assert replayed is (committed and change.has_receipt)
        assert not committed or (change.retry_answer or change.answer).items() <= body.items()
        assert change.read_stored(other_process) == change.stored_once
        if len(requests) < request_number:  # the change had ended before this request
            break


@pytest.mark.parametrize("read", [World.read_plays, World.read_post], ids=["plays", "post"])
def test_a_read_whose_answers_are_all_truncated_is_an_error_and_never_a_wrong_number(
    world: World, read: Callable[[World], object]
) -> None:
    world.write_post()
    world.play(KEY)
    world.proxy.plan = faults.always(faults.TRUNCATE, "Query")
    with pytest.raises(StoreUnreachableError):
        read(world)


@pytest.mark.parametrize("keeps_tokens", [True, False], ids=["tokens", "no tokens"])
@pytest.mark.parametrize("fault", [*TIMED_OUT, faults.delay(LATE_S)], ids=fault_name)
def test_a_play_that_times_out_or_arrives_after_its_own_retry_counts_once(
    make_world: Callable[..., World], fault: Fault, keeps_tokens: bool
) -> None:
    world = make_world(hasty=True)
    world.proxy.strip_tokens = not keeps_tokens
    world.proxy.plan = faults.script({"TransactWriteItems": [fault]})
    assert world.play(KEY) == (PLAYED, False)
    world.proxy.wait_until_idle()
    assert len(world.requests("TransactWriteItems")) >= 2
    assert world.shards() == {"STATS#TOTAL": 1}
    assert len(world.receipts()) == 1


@pytest.mark.parametrize("spills", [False, True], ids=["not spilled", "spilled"])
def test_a_late_copy_of_a_like_without_a_key_makes_no_like_after_an_unlike(
    make_world: Callable[..., World], spills: bool
) -> None:
    world = make_world(hasty=True)
    make_hot(world) if spills else world.write_post()
    world.proxy.plan = faults_of_writes(faults.delay(LATE_S))
    assert world.like("ann")[0]["changed"] is True
    world.proxy.plan = faults.script({})  # the unlike arrives before the late copy of the like
    assert world.unlike("ann")[0]["changed"] is True
    world.proxy.wait_until_idle()
    assert world.likes()[1] == set()
    assert world.tally_after_rollup(counters.LIKES, POST) == 0


def test_each_attempt_of_tally_has_a_new_token_and_a_retry_of_the_sdk_has_the_same_token(world: World) -> None:
    world.proxy.plan = faults.script({"TransactWriteItems": [faults.FAIL_BEFORE, faults.CONFLICT]})
    world.play(KEY)
    tokens = [request["ClientRequestToken"] for request in world.requests("TransactWriteItems")]
    first_try, retry_of_sdk, retry_of_tally = tokens
    assert first_try == retry_of_sdk != retry_of_tally


# Records


@record
class Visitor:
    """A record with a counter, among the counts."""

    p: str = partition_key(name="PK")
    s: str = sort_key(name="SK")
    visits: int | None = atomic_counter()


def records(world: World) -> Records[Visitor]:
    return Records(world.store.client, world.store.settings.counts_table, Visitor, exact=True)


def visitor() -> Visitor:
    return Visitor(p="V", s="1")


def faults_of_writes(*planned: Fault | None) -> faults.Plan:
    """Returns a plan by which these faults meet the next writes of each operation."""
    return faults.script({name: list(planned) for name in ("TransactWriteItems", "UpdateItem", "PutItem")})


@pytest.mark.parametrize("fault", FAULTS_AFTER_COMMIT + FAULTS_BEFORE_COMMIT, ids=lambda fault: fault.kind.name)
@pytest.mark.parametrize("times", [1, SDK_ATTEMPTS - 1])
def test_each_write_of_a_record_counts_once_under_faults(world: World, fault: Fault, times: int) -> None:
    visitors = records(world)
    world.proxy.plan = faults_of_writes(*[fault] * times)
    assert visitors.put_item(visitor()).visits == 0  # not a RecordExistsError, because this put made the record
    world.proxy.plan = faults_of_writes(*[fault] * times)
    assert visitors.update_item(visitor()).visits == 1
    world.proxy.plan = faults_of_writes(*[fault] * times)
    assert visitors.update_item(visitor(), condition=Attr("visits").eq(1)).visits == 2
    assert visitors.get_item("V", "1") == Visitor(p="V", s="1", visits=2)


def test_all_attempts_of_a_record_have_one_token(world: World) -> None:
    """A copy of the first attempt may arrive after a later attempt has committed. A record has no receipt, so DynamoDB
    must recognise the copy by the token."""
    visitors = records(world)
    planned = [faults.FAIL_BEFORE, faults.CONFLICT, faults.THROTTLED_TRANSACTION, faults.error_after_write(IN_PROGRESS)]
    world.proxy.plan = faults_of_writes(*planned)
    assert visitors.update_item(visitor()).visits == 0, "the first write makes the record"
    requests = world.requests("TransactWriteItems")
    assert len(requests) > len(planned)
    assert len({request["ClientRequestToken"] for request in requests}) == 1
    visitors.update_item(visitor())
    assert world.requests("TransactWriteItems")[-1]["ClientRequestToken"] != requests[0]["ClientRequestToken"]


def test_the_error_of_an_updated_record_that_cannot_be_read_says_that_it_is_updated(world: World) -> None:
    world.proxy.plan = faults.always(faults.LOSE_RESPONSE, "GetItem")
    with pytest.raises(RetryableError, match="is updated, but could not be read"):
        records(world).update_item(visitor())
    world.proxy.plan = faults.no_faults
    assert records(world).get_item("V", "1") == Visitor(p="V", s="1", visits=0)
