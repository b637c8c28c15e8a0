"""One transaction changes counters and team items once for each key, or changes nothing, whatever fails."""

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
from tests.tiers import marked_long

PLAYS, STOCK, USAGE = counters.PLAYS, counters.STOCK, counters.USAGE
DECLARED = {counter.name: counter for counter in (PLAYS, STOCK, USAGE)}
ORDER_CHANGES = [("stock", "mug", -1), ("plays", "mug"), ("usage", "ann", 1)]
AFTER_ONE_ORDER = [2, 1, 1, 1, 1]
"""What `Shop.numbers` returns after one order, with a stock of three."""
BEFORE_ORDERS = [3, 0, 0, 0, 0]
_numbers = itertools.count()
Write = dict[str, Any]


class Shop:
    """A team that has a table, a stock of three mugs, and a function that sells the mugs."""

    def __init__(self, world: World, stock: int = 3) -> None:
        self.world, self.table = world, f"shop-{next(_numbers)}"
        world.raw.create_table(
            TableName=self.table, BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "PK", "AttributeType": "S"}],
        )  # fmt: skip
        self.stock(stock)
        world.proxy.clear_requests()

    def stock(self, amount: int) -> None:
        self.world.play(f"stocked-{next(_numbers)}", "mug", amount, counter=STOCK)

    def order_write(self, order: str, **attributes: Any) -> Write:
        """Returns the write that puts an order, on condition that no such order is stored."""
        item = {"PK": {"S": order}, **attributes}
        return {"Put": {"TableName": self.table, "Item": item, "ConditionExpression": "attribute_not_exists(PK)"}}

    def total_write(self) -> Write:
        """Returns the write that adds 1 to the number of orders."""
        add = {"UpdateExpression": "ADD n :one", "ExpressionAttributeValues": {":one": {"N": "1"}}}
        return {"Update": {"TableName": self.table, "Key": {"PK": {"S": "TOTAL"}}, **add}}

    def commit(
        self,
        key: str,
        order: str | None = None,
        changes: Sequence[Any] = ORDER_CHANGES,
        extra: Sequence[Write] = (),
        *,
        world: World | None = None,
        **arguments: Any,
    ) -> Committed:
        """Sells a mug, and writes the order and the number of orders. `order`: the name of the order; None: `key`.
        `extra`: other writes. `world`: whose store commits; None: the shop's. `arguments`: of `Transactions.commit`."""
        order = order or key
        transactions = Transactions((world or self.world).store, DECLARED, "shop")
        writes = [self.order_write(order), self.total_write(), *extra]
        parameters = {"answer": {"order": order}, "context": LambdaContext(), **arguments}
        return transactions.commit(key, changes, writes, **parameters)

    def rows(self) -> dict[str, Any]:
        """Returns the items of the team's table by partition key."""
        items = self.world.raw.scan(TableName=self.table, ConsistentRead=True)["Items"]
        return {item["PK"]["S"]: item for item in items}

    def numbers(self) -> list[int]:
        """Returns the mugs, the plays, the usage, the orders, and the team's number of orders."""
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


def test_a_commit_is_one_transaction_and_a_replay_writes_nothing_and_gets_the_first_answer(shop: Shop) -> None:
    assert shop.commit("o-1") == ({"order": "o-1"}, False, "now")
    assert (shop.numbers(), len(shop.world.requests())) == (AFTER_ONE_ORDER, 1)
    assert shop.commit("o-1", "o-1-again") == ({"order": "o-1"}, True, "now")
    assert shop.numbers() == AFTER_ONE_ORDER


def test_a_key_may_be_reused_with_other_writes_and_not_with_other_changes_or_another_payload(shop: Shop) -> None:
    shop.commit("o-1", payload={"basket": ["mug"], "by": ("ann", 7)})
    replay = shop.commit("o-1", "another", changes=ORDER_CHANGES[::-1], payload={"by": ["ann", 7], "basket": ["mug"]})
    assert replay.replayed
    for difference in ({"payload": {"basket": ["cup"]}}, {"payload": None}, {"changes": ORDER_CHANGES[:1]}):
        with pytest.raises(KeyReusedError):
            shop.commit("o-1", **{"payload": {"basket": ["mug"], "by": ["ann", 7]}, **difference})
    assert shop.numbers() == AFTER_ONE_ORDER


def test_a_commit_and_a_call_of_post_changes_have_one_receipt_for_one_key(shop: Shop) -> None:
    """So code that called `POST /changes`, and now commits, may retry with an old key. A caller may look up the key."""
    shop.commit("o-1")
    [receipt] = receipts.find_many(shop.world.call("shop"), "change", [(RECEIPT_TARGET, "o-1")])
    body = {"counted": True, "changes": 3, "tallies": 3, "visible": "now", "answer": {"order": "o-1"}}
    assert receipt == (body, False), "False: not voided"


def test_a_replay_gets_the_first_answer_as_json(shop: Shop) -> None:
    answer = {"at": (1, 2.5), 7: "\ud800", "none": None}  # half of a surrogate pair, which UTF-8 cannot encode
    first = shop.commit("o-1", answer=answer)
    assert first.answer == {"at": [1, 2.5], "7": "\ud800", "none": None}
    assert shop.commit("o-1", answer="other") == first._replace(replayed=True)
    assert [shop.commit("o-2", answer=None).answer for _ in range(2)] == [None, None]


def test_a_commit_may_have_no_writes_and_a_whole_decimal_is_an_amount(shop: Shop) -> None:
    transactions = Transactions(shop.world.store, DECLARED, "shop")
    changes = [("stock", "mug", Decimal("-2")), ["usage", "ann", Decimal("3.0")]]
    assert transactions.commit("k", changes).visible == "now"
    assert shop.numbers() == [1, 0, 3, 0, 0]


def test_a_commit_of_two_tallies_may_have_97_writes_and_an_answer_of_2_kb(shop: Shop) -> None:
    transactions = Transactions(shop.world.store, DECLARED, "shop")  # DynamoDB takes 100 writes; one is the receipt
    answer = "x" * 2046  # with its quotes 2,048 bytes of JSON
    transactions.commit("k", ORDER_CHANGES[:2], [shop.order_write(f"a{n}") for n in range(97)], answer=answer)
    assert shop.numbers() == [2, 1, 0, 97, 0]


def test_a_refusal_names_the_entry_or_the_write_with_its_stored_item_and_leaves_no_receipt(shop: Shop) -> None:
    shop.commit("o-1")
    with pytest.raises(LimitReachedError) as full:
        shop.commit("o-2", changes=[("usage", "ann", 1), ("stock", "mug", -5)])
    assert full.value.members == {"entry": 1, "counter": "stock", "id": "mug", "left": 2}
    missing = {"Key": {"PK": {"S": "none"}}, "ConditionExpression": "attribute_exists(PK)"}
    check = {"ConditionCheck": {"TableName": shop.table, **missing}}
    # The order is write 0, the number of orders is write 1, and the check is write 2, which finds no item.
    for order, extra, write, stored_order in (("o-1", [], 0, "o-1"), ("o-4", [check], 2, None)):
        with pytest.raises(WriteRefusedError, match=rf"condition of writes\[{write}\] failed") as error:
            shop.commit("o-2", order, extra=extra)
        item = error.value.item
        assert (error.value.write, item and item["PK"]["S"]) == (write, stored_order)
    assert shop.numbers() == AFTER_ONE_ORDER
    assert shop.commit("o-2").replayed is False, "the key is free after a refusal"


def test_a_failed_condition_of_a_write_is_answered_before_a_limit_and_releases_no_holds(
    shop: Shop, clock: Clock
) -> None:
    """If the order is stored before, the commit fails with or without room, so no hold is released for the commit."""
    shop.commit("o-1")
    holds.place(shop.world.call("shop"), STOCK, "mug", 2, 60, operation="hold", key="cart")
    clock.pass_s(61)
    with pytest.raises(WriteRefusedError):
        shop.commit("o-2", "o-1")
    assert shop.world.tally(STOCK, "mug") == 0
    shop.commit("o-2")
    assert shop.numbers() == [1, 2, 2, 2, 2], "the expired hold is released for a new order"


def test_a_commit_that_changes_a_retired_counter_is_refused_and_writes_no_items(shop: Shop) -> None:
    declared = {**DECLARED, "usage": replace(USAGE, retired=True)}
    with pytest.raises(CounterRetiredError):
        Transactions(shop.world.store, declared, "shop").commit("k", ORDER_CHANGES, [shop.order_write("o-1")])
    assert shop.numbers() == BEFORE_ORDERS


def put_write(shop: Shop, **item: Any) -> Write:
    return {"Put": {"TableName": shop.table, "Item": item}}


@pytest.mark.parametrize(
    ("writes_of", "message"),
    [
        (lambda shop: [shop.total_write(), shop.total_write()], "accept writes: .*multiple operations on one item"),
        (lambda shop: [put_write(shop, x={"S": "no key"})], "accept writes"),
        (lambda shop: [shop.order_write("a", big={"S": "x" * 410_000})], "accept writes"),
        (lambda shop: [shop.order_write(f"a{n}", big={"S": "x" * 390_000}) for n in range(11)], "accept writes"),
        (lambda shop: [put_write(shop, PK={"S": "a"}, n={"N": "NaN"})], "accept writes"),
        (lambda shop: [
            shop.order_write("a"), {"Update": shop.total_write()["Update"] | {"Key": {"PK": {"S": "text"}}}},
        ],
         r"accept writes(\[1\])?: .*incorrect data type"),
    ],
)  # fmt: skip
def test_writes_that_dynamodb_rejects_are_invalid(
    shop: Shop, writes_of: Callable[[Shop], list[Write]], message: str
) -> None:
    """The error names a write (`writes[1]`) only if DynamoDB does not reject the whole request."""
    shop.world.raw.put_item(TableName=shop.table, Item={"PK": {"S": "text"}, "n": {"S": "seven"}})
    with pytest.raises(WriteInvalidError, match=message) as invalid:
        Transactions(shop.world.store, DECLARED, "shop").commit("k", ORDER_CHANGES[:2], writes_of(shop))
    assert str(invalid.value.field).startswith("writes")
    assert shop.numbers() == [3, 0, 0, 1, 0], "the team has one item, which this test has put"


def test_a_table_that_does_not_exist_is_an_error_of_the_store(shop: Shop) -> None:
    with pytest.raises(StoreRefusedError, match=r"DynamoDB: .*ResourceNotFound"):
        shop.commit("k", extra=[{"Delete": {"TableName": "nowhere", "Key": {"PK": {"S": "a"}}}}])
    assert shop.numbers() == BEFORE_ORDERS


@pytest.mark.parametrize("fault", [faults.CONFLICT, faults.THROTTLED_TRANSACTION])
def test_contention_at_a_write_of_the_team_spills_and_spreads_no_tally_and_opens_no_breaker(
    shop: Shop, fault: faults.Fault
) -> None:
    """The fault is at the last write, which is a write of the team."""
    world = shop.world
    world.proxy.plan = faults.script({"TransactWriteItems": [fault] * 5})  # more than the retries before a spill
    assert shop.commit("o-1").visible == "now"
    assert shop.numbers() == AFTER_ONE_ORDER
    world.proxy.plan = faults.always(fault, "TransactWriteItems")
    timed, _ = world.with_deadline(30)
    with pytest.raises(StoreBusyError):
        shop.commit("o-2", world=timed)
    assert (shop.numbers(), world.store.breaker.open_tallies, world.store.spread.widths) == (AFTER_ONE_ORDER, {}, {})


@pytest.mark.parametrize("fault", [faults.CONFLICT, faults.THROTTLED_TRANSACTION])
def test_contention_at_a_tally_spills_its_change_and_the_writes_of_the_team_are_committed_with_the_receipt(
    shop: Shop, streams: EngineStreams, fault: faults.Fault
) -> None:
    """The fault is at the plays, the third of six writes. In the second order the usage spills, too. The third order
    has no stock, and all its changes spill."""
    shop.world.proxy.plan = faults.script({"TransactWriteItems": [replace(fault, at=2)] * 4})
    assert shop.commit("o-1").visible == "soon"
    for tally in ("VID#mug", "USER#ann"):
        shop.world.store.breaker.trip(tally)
    assert shop.commit("o-2").visible == "soon"
    assert shop.commit("o-3", changes=ORDER_CHANGES[1:]).visible == "soon"
    assert shop.rows().keys() == {"o-1", "o-2", "o-3", "TOTAL"}
    assert shop.world.tally(STOCK, "mug") == 1
    streams.drain()
    assert (shop.world.tally(PLAYS, "mug"), shop.world.tally(USAGE, "ann"), streams.drift_by_tally()) == (3, 3, {})


def test_beside_a_conflict_a_failed_team_condition_is_retried_and_a_stored_receipt_is_replayed(shop: Shop) -> None:
    """First the order, write 4 of 0 to 5, fails beside a conflict at the stock, write 1. An earlier attempt of this
    call may have stored the order. Then the receipt, write 0, fails beside a conflict at write 5."""
    world = shop.world
    order_beside_conflict = faults.condition_and_conflict(4, 1, {"PK": {"S": "o-1"}})
    world.proxy.plan = faults.script({"TransactWriteItems": [order_beside_conflict]})
    assert shop.commit("o-1") == ({"order": "o-1"}, False, "now")
    [receipt] = [receipt for receipt in world.receipts() if "changes" in receipt]  # not the receipt of the stock
    world.proxy.clear_requests()
    world.proxy.plan = faults.script({"TransactWriteItems": [faults.condition_and_conflict(0, 5, receipt)]})
    assert shop.commit("o-1").replayed
    assert (shop.numbers(), len(world.requests())) == (AFTER_ONE_ORDER, 1)


def test_no_write_is_lost_when_other_functions_write_an_item_of_a_commit(shop: Shop) -> None:
    """If DynamoDB rejects the write of another function during a commit, that function sends its write once more."""
    ended = threading.Event()

    def write_without_tally() -> int:
        added = 0
        while not ended.is_set():
            with suppress(ClientError):
                shop.world.raw.update_item(**shop.total_write()["Update"])
                added += 1
        return added

    def sell() -> int:
        try:
            for number in range(20):
                retry_until_final(partial(shop.commit, f"o-{number}", changes=ORDER_CHANGES[2:]))
        finally:
            ended.set()
        return 20

    written, sold = run_together([write_without_tally, sell])
    assert shop.numbers() == [3, 0, 20, 20, written + sold]


LOST_RESPONSES = [faults.LOSE_RESPONSE, faults.FAIL_AFTER, faults.TRUNCATE]


@pytest.mark.parametrize("second", LOST_RESPONSES, ids=lambda fault: fault.kind.name)
@pytest.mark.parametrize("first", LOST_RESPONSES, ids=lambda fault: fault.kind.name)
def test_a_commit_whose_first_two_responses_are_lost_is_done_once(
    shop: Shop, first: faults.Fault, second: faults.Fault
) -> None:
    """The proxy removes the SDK's tokens, which expire after ten minutes. So DynamoDB does not recognize a retry."""
    pair = [first, second]
    shop.world.proxy.strip_tokens = True
    shop.world.proxy.plan = faults.script({"TransactWriteItems": pair})
    assert retry_until_final(partial(shop.commit, "o-1")).answer == {"order": "o-1"}
    assert shop.numbers() == AFTER_ONE_ORDER
    shop.world.proxy.plan = faults.script({"TransactWriteItems": [*pair, first]})  # the SDK attempts a request 3 times
    with pytest.raises(RetryableError):
        shop.commit("o-2")
    assert retry_until_final(partial(shop.commit, "o-2", "o-2-again")) == ({"order": "o-2"}, True, "now")
    assert shop.numbers() == [1, 2, 2, 2, 2]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("request_number", range(3))
def test_a_commit_whose_process_is_killed_at_any_request_is_done_once_by_its_retry(
    shop: Shop, streams: EngineStreams, request_number: int, before: bool
) -> None:
    shop.world.proxy.plan = faults.script({"TransactWriteItems": [faults.CONFLICT, faults.CONFLICT]})
    with killing_at(shop.world.store, request_number, before=before):
        shop.commit("o-1")
    after_kill = shop.numbers()  # two requests meet conflicts, and the third commits
    assert after_kill == (AFTER_ONE_ORDER if (request_number, before) == (2, False) else BEFORE_ORDERS)
    retry = shop.commit("o-1", "o-1-again")
    assert retry.replayed is (after_kill == AFTER_ONE_ORDER)
    assert {retry.answer["order"], "TOTAL"} == shop.rows().keys(), "the answer names the only order"
    streams.drain()
    assert (shop.numbers(), streams.drift_by_tally()) == (AFTER_ONE_ORDER, {})


def test_12_concurrent_commits_with_one_key_make_one_order_and_get_the_same_answer(shop: Shop) -> None:
    answers = run_together(
        [partial(retry_until_final, partial(shop.commit, "key", f"o-{number}")) for number in range(12)]
    )
    assert shop.numbers() == AFTER_ONE_ORDER
    assert [{*commit.answer.values(), "TOTAL"} for commit in answers] == [shop.rows().keys()] * 12
    assert sum(not commit.replayed for commit in answers) == 1


@pytest.mark.parametrize("seed", [0, *marked_long(range(1, 12))])
def test_of_60_concurrent_orders_25_get_a_mug_once_and_each_device_learns_the_order_or_that_no_mug_is_left(
    world: World, streams: EngineStreams, seed: int
) -> None:
    """One to three devices send each order. Transactions lose answers, fail, and meet conflicts and throttling."""
    shop, chance = Shop(world, 25), random.Random(seed)
    world.proxy.strip_tokens = True
    chances = {
        faults.LOSE_RESPONSE: 0.08, faults.FAIL_BEFORE: 0.04, faults.FAIL_AFTER: 0.05, faults.TRUNCATE: 0.03,
        faults.CONFLICT: 0.06, faults.THROTTLED_TRANSACTION: 0.03,
        faults.condition_and_conflict(1, 2, {"qty": {"N": "0"}}): 0.03,  # the stock fails, beside a conflict of plays
        faults.condition_and_conflict(4, 3, {"PK": {"S": "x"}}): 0.03,  # the order fails, beside a conflict of usage
    }  # fmt: skip
    world.proxy.plan = faults.random_faults(seed, {"TransactWriteItems": chances})

    def sell(number: int, device: int) -> tuple[int, str]:
        try:
            commit = retry_until_final(partial(shop.commit, f"key-{number}", f"o-{number}-{device}"))
        except LimitReachedError:
            return number, "sold out"
        return number, commit.answer["order"]

    jobs = [partial(sell, number, device) for number in range(60) for device in range(chance.randint(1, 3))]
    chance.shuffle(jobs)
    answers: dict[int, set[str]] = {}
    for number, order in run_together(jobs):
        answers.setdefault(number, set()).add(order)
    assert shop.numbers() == [0, 25, 25, 25, 25]
    streams.drain()
    assert [world.tally(PLAYS, "mug"), world.tally(USAGE, "ann")] == [25, 25]
    orders = set(itertools.chain(*answers.values())) - {"sold out"}
    assert {*orders, "TOTAL"} == shop.rows().keys()
    assert all(len(orders - {"sold out"}) <= 1 for orders in answers.values())
    assert streams.drift_by_tally() == {}


def test_a_call_without_time_writes_nothing(shop: Shop) -> None:
    with pytest.raises(StoreBusyError, match="no time left"):
        shop.commit("o-1", context=LambdaContext(remaining_ms=500))
    assert shop.numbers() == BEFORE_ORDERS
