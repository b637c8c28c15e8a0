"""Counters and a team's own items in one transaction: all of it once under a key, or none of it, whatever fails."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError

import counters
from tally.counting import holds, receipts
from tally.counting.batch import RECEIPT_TARGET
from tally.errors import (
    CounterRetiredError,
    KeyReusedError,
    LimitReachedError,
    RetryableError,
    StoreBusyError,
    StoreRefusedError,
    WriteInvalidError,
    WriteRefusedError,
)
from tally.transact import Committed, Transactions
from tests import faults
from tests.contexts import LambdaContext
from tests.invariants.simulation import Clock
from tests.invariants.streaming import EngineStreams
from tests.invariants.threads import run_together
from tests.invariants.world import World, killing_at, retry_until_final
from tests.tiers import in_long

PLAYS, STOCK, USAGE = counters.PLAYS, counters.STOCK, counters.USAGE
DECLARED = {one.name: one for one in (PLAYS, STOCK, USAGE)}
ORDER = [("stock", "mug", -1), ("plays", "mug"), ("usage", "ann", 1)]
DONE = [2, 1, 1, 1, 1]
"""What `of` gives when one order was made, of a stock of three."""
NOTHING = [3, 0, 0, 0, 0]
_numbers = itertools.count()
Write = dict[str, Any]


class Shop:
    """A team with a table, a stock of three mugs, and a function that sells them."""

    def __init__(self, world: World, stock: int = 3) -> None:
        self.world, self.table = world, f"shop-{next(_numbers)}"
        world.raw.create_table(
            TableName=self.table,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "PK", "AttributeType": "S"}],
        )
        self.stock(stock)
        world.proxy.forget()

    def stock(self, amount: int) -> None:
        self.world.play(f"stocked-{next(_numbers)}", "mug", amount, counter=STOCK)

    def new(self, order: str, **more: Any) -> Write:
        item = {"PK": {"S": order}, **more}
        return {"Put": {"TableName": self.table, "Item": item, "ConditionExpression": "attribute_not_exists(PK)"}}

    def total(self) -> Write:
        how = {"UpdateExpression": "ADD n :one", "ExpressionAttributeValues": {":one": {"N": "1"}}}
        return {"Update": {"TableName": self.table, "Key": {"PK": {"S": "TOTAL"}}, **how}}

    def commit(
        self,
        key: str,
        order: str | None = None,
        changes: Sequence[Any] = ORDER,
        extra: Sequence[Write] = (),
        *,
        world: World | None = None,
        **how: Any,
    ) -> Committed:
        """Sell a mug: the order, and how many there are."""
        order = order or key
        sells = Transactions((world or self.world).store, DECLARED, "shop")
        writes = [self.new(order), self.total(), *extra]
        return sells.commit(key, changes, writes, **{"answer": {"order": order}, "context": LambdaContext(), **how})

    def rows(self) -> dict[str, Any]:
        found = self.world.raw.scan(TableName=self.table, ConsistentRead=True)["Items"]
        return {item["PK"]["S"]: item for item in found}

    def of(self) -> list[int]:
        """Mugs, plays and use; orders, and how many the total says."""
        rows, world = self.rows(), self.world
        total = int(rows.pop("TOTAL", {"n": {"N": "0"}})["n"]["N"])
        numbers = [
            world.tally(STOCK, "mug"),
            world.tally_after_rollup(PLAYS, "mug"),
            world.tally_after_rollup(USAGE, "ann"),
        ]
        return [*numbers, len(rows), total]


@pytest.fixture
def shop(world: World) -> Shop:
    return Shop(world)


# ---- one transaction ----


def test_all_is_one_transaction_and_a_replay_writes_nothing_and_gives_the_first_answer(shop: Shop) -> None:
    assert shop.commit("o-1") == ({"order": "o-1"}, False, "now")
    assert (shop.of(), len(shop.world.sent())) == (DONE, 1)
    assert shop.commit("o-1", "o-1-again") == ({"order": "o-1"}, True, "now")
    assert shop.of() == DONE


def test_the_key_has_the_sums_and_what_the_caller_names_and_not_the_writes(shop: Shop) -> None:
    shop.commit("o-1", payload={"basket": ["mug"], "by": ("ann", 7)})
    same = shop.commit("o-1", "another", changes=ORDER[::-1], payload={"by": ["ann", 7], "basket": ["mug"]})
    assert same.replayed
    for how in ({"payload": {"basket": ["cup"]}}, {"payload": None}, {"changes": ORDER[:1]}):
        with pytest.raises(KeyReusedError):
            shop.commit("o-1", **{"payload": {"basket": ["mug"], "by": ["ann", 7]}, **how})
    assert shop.of() == DONE


def test_a_key_is_that_of_post_changes_too(shop: Shop) -> None:
    """A function that moves from one to the other sells no order twice; and one may ask whether it was counted."""
    shop.commit("o-1")
    [found] = receipts.find_many(shop.world.call("shop"), "change", [(RECEIPT_TARGET, "o-1")])
    wanted = {"counted": True, "changes": 3, "tallies": 3, "visible": "now", "answer": {"order": "o-1"}}
    assert found == (wanted, False)


def test_the_first_answer_is_what_a_replay_gets(shop: Shop) -> None:
    answer = {"at": (1, 2.5), 7: "\ud800", "none": None}
    first = shop.commit("o-1", answer=answer)
    assert first.answer == {"at": [1, 2.5], "7": "\ud800", "none": None}
    assert shop.commit("o-1", answer="other") == first._replace(replayed=True)
    assert [shop.commit("o-2", answer=None).answer for _ in range(2)] == [None, None]


def test_a_commit_may_have_no_writes_and_a_whole_decimal_is_an_amount(shop: Shop) -> None:
    sells = Transactions(shop.world.store, DECLARED, "shop")
    assert sells.commit("k", [("stock", "mug", Decimal("-2")), ["usage", "ann", Decimal("3.0")]]).visible == "now"
    assert shop.of() == [1, 0, 3, 0, 0]


def test_97_own_writes_go_beside_two_tallies_and_an_answer_of_2_kb(shop: Shop) -> None:
    sells = Transactions(shop.world.store, DECLARED, "shop")
    sells.commit("k", ORDER[:2], [shop.new(f"a{n}") for n in range(97)], answer="x" * 2046)
    assert shop.of() == [2, 1, 0, 97, 0]


# ---- refusals ----


def test_a_refusal_names_the_entry_or_the_write_with_the_item_that_was_there_and_leaves_no_receipt(shop: Shop) -> None:
    shop.commit("o-1")
    with pytest.raises(LimitReachedError) as full:
        shop.commit("o-2", changes=[("usage", "ann", 1), ("stock", "mug", -5)])
    assert full.value.members == {"entry": 1, "counter": "stock", "id": "mug", "left": 2}
    none = {"Key": {"PK": {"S": "none"}}, "ConditionExpression": "attribute_exists(PK)"}
    for order, extra, wanted in (("o-1", [], (0, "o-1")), ("o-4", [none], (2, None))):
        checks = [{"ConditionCheck": {"TableName": shop.table, **one}} for one in extra]
        with pytest.raises(WriteRefusedError, match=rf"condition of writes\[{wanted[0]}\] failed") as refused:
            shop.commit("o-2", order, extra=checks)
        item = refused.value.item
        assert (refused.value.write, item and item["PK"]["S"]) == wanted
    assert shop.of() == DONE
    assert shop.commit("o-2").replayed is False, "the key is free after a refusal"


def test_an_own_write_is_refused_before_a_limit_and_gives_back_no_holds(shop: Shop, clock: Clock) -> None:
    """Its order is there already: room for it would help nobody."""
    shop.commit("o-1")
    holds.place(shop.world.call("shop"), STOCK, "mug", 2, 60, operation="hold", key="cart")
    clock.pass_s(61)
    with pytest.raises(WriteRefusedError):
        shop.commit("o-2", "o-1")
    assert shop.world.tally(STOCK, "mug") == 0
    shop.commit("o-2")
    assert shop.of() == [1, 2, 2, 2, 2], "the hold that had expired is given back for an order that is new"


def test_a_retired_counter_refuses_and_leaves_the_items(shop: Shop) -> None:
    declared = {**DECLARED, "usage": replace(USAGE, retired=True)}
    with pytest.raises(CounterRetiredError):
        Transactions(shop.world.store, declared, "shop").commit("k", ORDER, [shop.new("o-1")])
    assert shop.of() == NOTHING


def put(shop: Shop, **item: Any) -> Write:
    return {"Put": {"TableName": shop.table, "Item": item}}


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (lambda shop: [shop.total(), shop.total()], "accept writes: .*multiple operations on one item"),
        (lambda shop: [put(shop, x={"S": "no key"})], "accept writes"),
        (lambda shop: [shop.new("a", big={"S": "x" * 410_000})], "accept writes"),
        (lambda shop: [shop.new(f"a{n}", big={"S": "x" * 390_000}) for n in range(11)], "accept writes"),
        (lambda shop: [put(shop, PK={"S": "a"}, n={"N": "NaN"})], "accept writes"),
        (lambda shop: [shop.new("a"), {"Update": shop.total()["Update"] | {"Key": {"PK": {"S": "text"}}}}],
         r"accept writes(\[1\])?: .*incorrect data type"),
    ],
)  # fmt: skip
def test_what_dynamodb_does_not_accept_is_a_fault_of_the_writes(
    shop: Shop, write: Callable[[Shop], list[Write]], why: str
) -> None:
    shop.world.raw.put_item(TableName=shop.table, Item={"PK": {"S": "text"}, "n": {"S": "seven"}})
    with pytest.raises(WriteInvalidError, match=why) as refused:
        Transactions(shop.world.store, DECLARED, "shop").commit("k", ORDER[:2], write(shop))
    assert str(refused.value.field).startswith("writes")
    assert shop.of() == [3, 0, 0, 1, 0]


def test_a_table_that_there_is_not_is_named(shop: Shop) -> None:
    """And so is a right that is missing."""
    with pytest.raises(StoreRefusedError, match=r"DynamoDB: .*ResourceNotFound"):
        shop.commit("k", extra=[{"Delete": {"TableName": "nowhere", "Key": {"PK": {"S": "a"}}}}])
    assert shop.of() == NOTHING


# ---- contention ----


@pytest.mark.parametrize("fault", [faults.CONFLICT, faults.THROTTLED_TRANSACTION])
def test_an_own_write_that_is_in_the_way_spills_spreads_and_heats_no_tally(shop: Shop, fault: faults.Fault) -> None:
    """The fault is at the last write, which is the team's."""
    world = shop.world
    world.proxy.plan = faults.script({"TransactWriteItems": [fault] * 5})
    assert shop.commit("o-1").visible == "now"
    assert shop.of() == DONE
    world.proxy.plan = faults.always(fault, "TransactWriteItems")
    rushed, _ = world.with_deadline(30)
    with pytest.raises(StoreBusyError):
        shop.commit("o-2", world=rushed)
    assert (shop.of(), world.store.breaker.open_tallies, world.store.spread.widths) == (DONE, {}, {})


@pytest.mark.parametrize("fault", [faults.CONFLICT, faults.THROTTLED_TRANSACTION])
def test_a_tally_that_is_in_the_way_spills_and_the_own_writes_go_with_the_receipt(
    shop: Shop, streams: EngineStreams, fault: faults.Fault
) -> None:
    """The fault is at the plays, the third of six writes; then the usage waits too, and then nothing moves at once."""
    shop.world.proxy.plan = faults.script({"TransactWriteItems": [replace(fault, at=2)] * 4})
    assert shop.commit("o-1").visible == "soon"
    for tally in ("VID#mug", "USER#ann"):
        shop.world.store.breaker.trip(tally)
    assert shop.commit("o-2").visible == "soon"
    assert shop.commit("o-3", changes=ORDER[1:]).visible == "soon"
    assert shop.rows().keys() == {"o-1", "o-2", "o-3", "TOTAL"}
    assert shop.world.tally(STOCK, "mug") == 1
    streams.drain()
    assert (shop.world.tally(PLAYS, "mug"), shop.world.tally(USAGE, "ann"), streams.drift_by_tally()) == (3, 3, {})


def test_a_refusal_beside_a_conflict_is_judged_by_the_next_attempt_and_a_receipt_is_a_replay(shop: Shop) -> None:
    """The order's condition, the fifth of six writes, failed while a tally was in the way: it may be our own order."""
    world = shop.world
    world.proxy.plan = faults.script({"TransactWriteItems": [faults.mixed(4, 1, {"PK": {"S": "o-1"}})]})
    assert shop.commit("o-1") == ({"order": "o-1"}, False, "now")
    [receipt] = [one for one in world.receipts() if "changes" in one]
    world.proxy.forget()
    world.proxy.plan = faults.script({"TransactWriteItems": [faults.mixed(0, 5, receipt)]})
    assert shop.commit("o-1").replayed
    assert (shop.of(), len(world.sent())) == (DONE, 1)


def test_plain_writers_of_the_same_item_and_commits_lose_nothing(shop: Shop) -> None:
    """A team's other functions go on. What DynamoDB refuses them for a commit that is under way, they send again."""
    ended = threading.Event()

    def plainly() -> int:
        added = 0
        while not ended.is_set():
            with suppress(ClientError):
                shop.world.raw.update_item(**shop.total()["Update"])
                added += 1
        return added

    def sell() -> int:
        try:
            for number in range(20):
                retry_until_final(partial(shop.commit, f"o-{number}", changes=ORDER[2:]))
        finally:
            ended.set()
        return 20

    plain, sold = run_together([plainly, sell])
    assert shop.of() == [3, 0, 20, 20, plain + sold]


# ---- faults ----

LOST = [faults.LOSE_RESPONSE, faults.FAIL_AFTER, faults.TRUNCATE]


@pytest.mark.parametrize("second", LOST, ids=lambda fault: fault.kind.name)
@pytest.mark.parametrize("first", LOST, ids=lambda fault: fault.kind.name)
def test_two_answers_that_are_lost(shop: Shop, first: faults.Fault, second: faults.Fault) -> None:
    """The SDK's tokens are gone, as they are after ten minutes: each copy is a transaction of its own."""
    pair = [first, second]
    shop.world.proxy.strip_tokens = True
    shop.world.proxy.plan = faults.script({"TransactWriteItems": pair})
    assert retry_until_final(partial(shop.commit, "o-1")).answer == {"order": "o-1"}
    assert shop.of() == DONE
    shop.world.proxy.plan = faults.script({"TransactWriteItems": [*pair, first]})  # all of the SDK's attempts
    with pytest.raises(RetryableError):
        shop.commit("o-2")
    assert retry_until_final(partial(shop.commit, "o-2", "o-2-again")) == ({"order": "o-2"}, True, "now")
    assert shop.of() == [1, 2, 2, 2, 2]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("at", range(3))
def test_a_process_that_is_killed_over_any_request(shop: Shop, streams: EngineStreams, at: int, before: bool) -> None:
    shop.world.proxy.plan = faults.script({"TransactWriteItems": [faults.CONFLICT, faults.CONFLICT]})
    with killing_at(shop.world.store, at, before=before):
        shop.commit("o-1")
    half = shop.of()
    assert half == (DONE if (at, before) == (2, False) else NOTHING)
    done = shop.commit("o-1", "o-1-again")
    assert (done.replayed, {done.answer["order"], "TOTAL"}) == (half == DONE, shop.rows().keys())
    streams.drain()
    assert (shop.of(), streams.drift_by_tally()) == (DONE, {})


def test_12_copies_at_once_make_one_order_and_all_of_them_name_it(shop: Shop) -> None:
    answers = run_together(
        [partial(retry_until_final, partial(shop.commit, "key", f"o-{number}")) for number in range(12)]
    )
    assert shop.of() == DONE
    assert [{*one.answer.values(), "TOTAL"} for one in answers] == [shop.rows().keys()] * 12
    assert sum(not one.replayed for one in answers) == 1


@pytest.mark.parametrize("seed", [0, *in_long(range(1, 12))])
def test_60_orders_of_25_mugs_each_sent_by_some_devices_at_once(
    world: World, streams: EngineStreams, seed: int
) -> None:
    """In a network that fails in all ways: what was sold is there once, and each device knows what became of it."""
    shop, chance = Shop(world, 25), random.Random(seed)
    world.proxy.strip_tokens = True
    some = {
        faults.LOSE_RESPONSE: 0.08, faults.FAIL_BEFORE: 0.04, faults.FAIL_AFTER: 0.05, faults.TRUNCATE: 0.03,
        faults.CONFLICT: 0.06, faults.THROTTLED_TRANSACTION: 0.03, faults.mixed(1, 2, {"qty": {"N": "0"}}): 0.03,
        faults.mixed(4, 3, {"PK": {"S": "x"}}): 0.03,
    }  # fmt: skip
    world.proxy.plan = faults.random_faults(seed, {"TransactWriteItems": some})

    def sell(number: int, device: int) -> tuple[int, str]:
        try:
            done = retry_until_final(partial(shop.commit, f"key-{number}", f"o-{number}-{device}"))
        except LimitReachedError:
            return number, "sold out"
        return number, done.answer["order"]

    jobs = [partial(sell, number, device) for number in range(60) for device in range(chance.randint(1, 3))]
    chance.shuffle(jobs)
    said: dict[int, set[str]] = {}
    for number, order in run_together(jobs):
        said.setdefault(number, set()).add(order)
    streams.drain()
    assert shop.of() == [0, 25, 25, 25, 25]
    sold = [*itertools.chain(*said.values())]
    assert {*sold, "TOTAL"} - {"sold out"} == shop.rows().keys()
    assert all(len(orders - {"sold out"}) <= 1 for orders in said.values())
    assert streams.drift_by_tally() == {}


def test_a_call_without_time_writes_nothing(shop: Shop) -> None:
    with pytest.raises(StoreBusyError, match="no time left"):
        shop.commit("o-1", context=LambdaContext(remaining_ms=500))
    assert shop.of() == NOTHING
