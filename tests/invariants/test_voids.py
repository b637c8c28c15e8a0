"""A void takes a change back once, in the period of the change. A late retry of the change does not count."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import counters
from tally.counter import Counter
from tally.counting import batch, holds, overrides, periods, receipts
from tally.counting.increments import Increment, count
from tally.dynamo.client import Call
from tally.dynamo.clock import CLOCK_DIFFERENCE_S_MAX
from tally.errors import CounterRetiredError, InvalidInputError, LimitReachedError, NotFoundError
from tally.operations import changes as handler
from tests import faults
from tests.invariants.counting import new_key, refusal
from tests.invariants.deployment import deployed
from tests.invariants.simulation import Clock
from tests.invariants.world import FAULT_MIX, World, before_transactions, retry_until_final
from tests.tiers import marked_long

BUDGET = Counter("budget", prefix="BUDGET", sort_key="LEFT", attribute="credits", start=100, floor=0)
QUOTA = Counter("quota", prefix="BUDGET", sort_key="USED", attribute="used", ceiling=100, period="day", keep_periods=2)
VIEWS = Counter("views", prefix="VIEW", sort_key="TOTAL", attribute="views", visible="soon")
SALES = Counter("sales", prefix="SALE", sort_key="TOTAL", attribute="sold")
OVERRIDDEN = replace(QUOTA, name="overridden", sort_key="OVERRIDDEN", limit_overrides=True)
MINUTES = replace(QUOTA, name="minutes", sort_key="MINUTE", period="minute")
DAY_S = 24 * 3600
ID = "acme"
ORDER_CHANGES = [("budget", ID, -3), ("sales", ID, 1), ("quota", ID, 2)]
NOT_FOUND = "No change of this caller has the key, or its receipt has expired."


@dataclass
class Shop:
    """Makes changes and voids as the handlers make them. `caller`: who sends the changes and voids."""

    world: Any
    """A world or a deployment, or any object with a `store`."""
    caller: str | None = "shop"
    counters: dict[str, Counter] = field(
        default_factory=lambda: {
            counter.name: counter for counter in (BUDGET, QUOTA, OVERRIDDEN, VIEWS, SALES, MINUTES)
        }
    )

    def call(self) -> Call:
        return Call(self.world.store, self.caller, counters=self.counters)

    def tally_id(self, counter: Counter) -> str:
        """Returns the id of a counter's tally now."""
        return periods.tally_id(counter, ID, time.time())

    def add(self, counter: Counter, amount: int, key: str | None = None) -> bool:
        """Counts a change. Says whether the answer is a replay."""
        tally, target = self.tally_id(counter), f"{counter.name}/{ID}"
        change = Increment(counter, tally, amount, "increment", key or new_key(), {}, receipt_target=target)
        return count(self.call(), change).replayed

    def order(self, key: str, entries: list[tuple[str, str, int]] = ORDER_CHANGES, soon: bool = False) -> bool:
        """Counts a batch. Says whether the answer is a replay."""
        rows = [{"counter": counter, "id": id_, "amount": amount} for counter, id_, amount in entries]
        call = self.call()
        changes = batch.parse_batch(rows, call.counters, time.time(), soon=soon)
        return batch.count(call, changes, operation="change", key=key, soon=soon).replayed

    def void(self, counter: Counter, key: str, caller: str | None = None) -> dict[str, Any]:
        """Voids the change that has this key. `caller`: who made the change; None: the shop's caller."""
        return dict(handler.void(self.call(), counter=counter, id=ID, key=key, caller=caller).body)

    def void_order(self, key: str) -> dict[str, Any]:
        return dict(handler.void_changes(self.call(), key=key).body)

    def number(self, counter: Counter, tally_id: str | None = None) -> int:
        return int(self.world.tally_after_rollup(counter, tally_id or self.tally_id(counter)))

    def numbers(self) -> list[int]:
        """Returns the numbers that `ORDER_CHANGES` changes: budget, sales and quota."""
        return [self.number(counter) for counter in (BUDGET, SALES, QUOTA)]

    def state(self, operation: str, target: str, key: str) -> tuple[bool, bool]:
        """Says whether the change was counted, and whether it was voided."""
        [receipt] = receipts.find_many(self.call(), operation, [(target, key)])
        return receipt is not None, receipt is not None and receipt.is_voided


@pytest.fixture
def shop(world: World, clock: Clock) -> Shop:
    """A shop at noon."""
    clock.pass_s(1.5 * DAY_S - clock.now_s % DAY_S)
    return Shop(world)


def test_a_void_takes_a_change_back_once_and_a_late_retry_does_not_count(shop: Shop) -> None:
    shop.add(BUDGET, -7, "order-1")
    shop.add(BUDGET, -1, "order-2")
    with shop.world.measure_units() as measured:
        first_answer = shop.void(BUDGET, "order-1")
    assert measured == [("GetItem", 1.0), ("TransactWriteItems", 6.0)]  # 2 units each for both receipts, and the number
    body = {"counter": "budget", "id": ID, "amount": -7, "changed": True, "visible": "now"}
    assert first_answer == body
    assert shop.void(BUDGET, "order-1") == {**body, "changed": False}
    assert replace(shop, caller="another").void(BUDGET, "order-1", caller="shop") == {**body, "changed": False}
    assert shop.add(BUDGET, -7, "order-1"), "the answer is a replay"
    assert shop.number(BUDGET) == 100 - 1
    assert shop.state("increment", f"budget/{ID}", "order-1") == (True, True)
    assert shop.state("increment", f"budget/{ID}", "order-2") == (True, False)


def test_a_void_moves_the_period_in_which_the_change_was_counted(shop: Shop, clock: Clock) -> None:
    key, yesterday = new_key(), shop.tally_id(QUOTA)
    shop.add(replace(QUOTA, receipt_days=9), 100, key)  # the receipt outlives the period
    clock.pass_s(DAY_S)
    shop.add(QUOTA, 100)
    assert shop.void(QUOTA, key) == {
        "counter": "quota", **periods.answer_members(yesterday), "amount": 100, "changed": True, "visible": "now",
    }  # fmt: skip
    assert (shop.number(QUOTA, yesterday), shop.number(QUOTA)) == (0, 100)
    clock.pass_s(1.5 * DAY_S - 1)  # from noon, to the last second in which `yesterday` is kept
    assert shop.void(QUOTA, key)["changed"] is False
    clock.pass_s(1)
    detail = f"quota does not keep {periods.answer_members(yesterday)['period']} any longer."
    assert refusal(partial(shop.void, QUOTA, key)).detail == detail


@pytest.mark.parametrize(
    ("counter", "gift", "used", "left"), [(BUDGET, 50, -120, 30), (QUOTA, -50, 120, 30)], ids=["floor", "ceiling"]
)
def test_a_void_that_a_limit_refuses_writes_nothing_and_may_succeed_later(
    shop: Shop, counter: Counter, gift: int, used: int, left: int
) -> None:
    """The error has no `retry_after_s`, because a void moves the period of its change, and not the next period."""
    shop.add(counter, gift, "gift")
    shop.add(counter, used)
    state_before = (shop.number(counter), shop.world.receipts())
    for _ in range(2):
        error = refusal(partial(shop.void, counter, "gift"))
        tally = {"counter": counter.name, **periods.answer_members(shop.tally_id(counter))}
        assert (type(error), error.members) == (LimitReachedError, {**tally, "left": left})
        assert error.detail.startswith(f"{counter.name} {ID}: ")
    assert (shop.number(counter), shop.world.receipts()) == state_before
    shop.add(counter, -used)
    assert shop.void(counter, "gift")["changed"] is True
    assert shop.number(counter) == counter.start


def test_a_void_is_judged_by_the_override_that_its_period_had_when_the_period_ended(shop: Shop, clock: Clock) -> None:
    counter, tally = replace(OVERRIDDEN, receipt_days=3), shop.tally_id(OVERRIDDEN)

    def put_override(limit: int) -> None:
        overrides.put_override(shop.call(), counter, ID, limit, operation="put_limit", key=new_key())
        shop.world.store.limit_cache.clear()  # as in another process

    def assert_refused(key: str, limit: int) -> None:
        error = refusal(partial(shop.void, counter, key))
        assert error.members == {"counter": "overridden", **periods.answer_members(tally), "left": 0, "limit": limit}

    put_override(10)
    for key, amount in (("gift", -2), ("other", -2), ("all", 14)):  # -2 - 2 + 14 = 10, the limit
        shop.add(counter, amount, key)
    assert_refused("gift", 10)
    put_override(12)
    shop.void(counter, "gift")  # so the number is 12
    clock.pass_s(DAY_S)
    put_override(20)
    assert_refused("other", 12)


def test_expired_holds_are_released_to_make_room_for_a_void(shop: Shop, clock: Clock) -> None:
    shop.add(BUDGET, 50, "gift")
    holds.place(shop.call(), BUDGET, ID, 120, 60, operation="hold", key="cart")
    assert refusal(partial(shop.void, BUDGET, "gift")).members["left"] == 100 + 50 - 120
    clock.pass_s(CLOCK_DIFFERENCE_S_MAX + 61)
    shop.void(BUDGET, "gift")
    assert shop.number(BUDGET) == 100


def test_a_void_is_refused_without_a_receipt_of_the_callers_own_change(shop: Shop, clock: Clock) -> None:
    """A void is refused, too, if the key is of a hold, a change of another counter, caller or operation, or an expired
    receipt, or if the counter is retired, numbered or not declared."""
    shop.add(BUDGET, -1, "order-1")
    receipts_before = shop.world.receipts()
    holds.place(shop.call(), BUDGET, ID, 2, 60, operation="hold", key="cart")
    voids = [partial(shop.void, *tried) for tried in ((BUDGET, "nope"), (BUDGET, "cart"), (SALES, "order-1"))]
    voids += [partial(shop.void, BUDGET, "order-1", "another"), partial(shop.void_order, "order-1")]
    for void in voids:
        error = refusal(void)
        assert (type(error), error.detail) == (NotFoundError, NOT_FOUND)
    retired = replace(BUDGET, retired=True)
    shop.counters["budget"] = retired
    assert isinstance(refusal(partial(shop.void, retired, "order-1")), CounterRetiredError)
    for declared in ({"budget": replace(BUDGET, delta=-1, numbered=True)}, {}):
        shop.counters = declared
        assert isinstance(refusal(partial(shop.void, BUDGET, "order-1")), InvalidInputError)
    assert [receipt for receipt in shop.world.receipts() if receipt in receipts_before] == receipts_before
    shop.counters = {"budget": BUDGET}
    clock.pass_s(DAY_S + CLOCK_DIFFERENCE_S_MAX + 1)
    assert refusal(partial(shop.void, BUDGET, "order-1")).detail == NOT_FOUND


def test_a_key_that_is_reused_after_its_receipt_expired_can_be_voided_a_second_time(shop: Shop, clock: Clock) -> None:
    """The receipt of the first void is still stored, because that void spilled."""
    shop.add(SALES, 5, "order-1")
    shop.world.store.breaker.trip(f"SALE#{ID}")
    assert shop.void(SALES, "order-1")["visible"] == "soon"
    clock.pass_s(DAY_S + CLOCK_DIFFERENCE_S_MAX + 1)
    assert shop.add(SALES, 7, "order-1") is False
    assert shop.void(SALES, "order-1")["amount"] == 7
    assert shop.number(SALES) == 0
    assert len(shop.world.receipts()) == 3  # of the second change, and of both voids


def test_a_change_that_reuses_the_key_before_the_write_of_a_void_is_not_voided(shop: Shop, clock: Clock) -> None:
    shop.add(BUDGET, -5, "order-1")

    def reuse_key() -> None:
        clock.pass_s(DAY_S + CLOCK_DIFFERENCE_S_MAX + 1)
        without_proxy = SimpleNamespace(store=replace(shop.world.store, client=shop.world.raw))
        replace(shop, world=without_proxy).add(BUDGET, -7, "order-1")

    shop.world.proxy.clear_requests()
    shop.world.proxy.plan = before_transactions({0: reuse_key})
    assert refusal(partial(shop.void, BUDGET, "order-1")).detail == "Another change has just used this key."
    shop.world.proxy.plan = faults.no_faults
    assert shop.number(BUDGET) == 100 - 5 - 7


def test_a_change_is_voided_once_even_if_the_receipt_of_its_void_is_deleted(shop: Shop) -> None:
    shop.add(BUDGET, -5, "order-1")
    shop.void(BUDGET, "order-1")
    void_receipt = next(receipt for receipt in shop.world.receipts() if "changes" in receipt)  # not of the increment
    shop.world.raw.delete_item(TableName=shop.world.name("receipts"), Key={"id": void_receipt["id"]})
    assert isinstance(refusal(partial(shop.void, BUDGET, "order-1")), NotFoundError)
    assert shop.number(BUDGET) == 100
    assert shop.add(BUDGET, -5, "order-1"), "the answer is a replay"


@pytest.mark.parametrize("counter", [VIEWS, SALES])
def test_the_rollup_adds_the_void_of_a_change_that_it_adds(shop: Shop, counter: Counter) -> None:
    """The change is of a counter that is visible soon, or of a hot tally."""
    shop.world.store.breaker.trip(f"{counter.prefix}#{ID}")
    shop.add(counter, 7, "k")
    with shop.world.measure_units() as measured:
        assert shop.void(counter, "k")["visible"] == "soon"
    assert measured == [("GetItem", 1.0), ("TransactWriteItems", 4.0)]  # both receipts
    assert (shop.world.tally(counter, ID), shop.number(counter)) == (0, 0)
    left_s = [int(receipt["expiration"]["N"]) - time.time() for receipt in shop.world.receipts()]
    assert min(left_s) > 8 * DAY_S - 60, "a rebuild needs the receipts after a loss"
    assert shop.add(counter, 7, "k")
    assert shop.void(counter, "k")["changed"] is False


def test_the_receipt_of_a_void_is_kept_as_long_as_the_receipt_of_its_change(shop: Shop, clock: Clock) -> None:
    shop.add(replace(BUDGET, receipt_days=30), -1, "k")
    clock.pass_s(DAY_S)
    first_answer = shop.void(BUDGET, "k")
    clock.pass_s(29 * DAY_S - 60)
    assert shop.void(BUDGET, "k") == {**first_answer, "changed": False}
    clock.pass_s(CLOCK_DIFFERENCE_S_MAX + 61)
    assert shop.add(replace(BUDGET, receipt_days=30), -1, "k") is False
    assert shop.void(BUDGET, "k") == first_answer
    assert shop.number(BUDGET) == 100


def test_a_batch_is_voided_as_a_whole_or_not_at_all(shop: Shop) -> None:
    shop.add(BUDGET, 20)
    shop.order("order-1")
    shop.order("in", [("budget", ID, 40), ("views", ID, 3)])
    assert shop.void_order("order-1") == {"tallies": 3, "changed": True, "visible": "now"}
    assert shop.void_order("order-1") == {"tallies": 3, "changed": False, "visible": "now"}
    assert shop.order("order-1"), "the answer is a replay"
    assert shop.numbers() == [100 + 20 + 40, 0, 0]
    shop.add(BUDGET, -130)
    error = refusal(partial(shop.void_order, "in"))
    assert (error.detail, shop.number(VIEWS)) == (f"budget {ID}: 30 left. Nothing was counted.", 3)
    shop.add(BUDGET, 10)
    assert shop.void_order("in") == {"tallies": 2, "changed": True, "visible": "soon"}
    assert (shop.number(BUDGET), shop.number(VIEWS)) == (0, 0)
    assert shop.state("change", batch.RECEIPT_TARGET, "in") == (True, True)


@pytest.mark.parametrize("seed", [0, *marked_long(range(1, 4))])
def test_changes_and_voids_are_exact_under_faults(shop: Shop, seed: int) -> None:
    """40 changes and 10 batches are sent three times each. Three concurrent callers void half of these."""
    chance, proxy = random.Random(seed), shop.world.proxy
    proxy.plan = faults.random_faults(seed, {"TransactWriteItems": FAULT_MIX})
    amounts = {f"k{number}": chance.choice((-5, -1, 3, 9)) for number in range(40)}
    orders = [f"o{number}" for number in range(10)]
    send = {key: partial(shop.add, BUDGET, amount, key) for key, amount in amounts.items()}
    send |= {key: partial(shop.order, key) for key in orders}
    void = {key: partial(shop.void, BUDGET, key) for key in amounts}
    void |= {key: partial(shop.void_order, key) for key in orders}
    for change in send.values():
        retry_until_final(change)
    voided_keys = [key for key in send if chance.random() < 0.5]
    acts = [(key, void[key]) for key in voided_keys * 3] + [(key, send[key]) for key in [*send] * 2]
    chance.shuffle(acts)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda act: (act[0], retry_until_final(act[1])), acts))
    fault_count = sum(times for (fault, _), times in proxy.counts.items() if fault != "NONE")
    proxy.plan = faults.no_faults
    proxy.wait_until_idle()
    assert fault_count > 40, "the plan must fail something"
    changed_keys = [key for key, answer in answers if isinstance(answer, dict) and answer["changed"]]
    assert len(changed_keys) == len(set(changed_keys)), "at most one caller of a void is told `changed`"
    amounts_left = [amount for key, amount in amounts.items() if key not in voided_keys]
    orders_left = len([key for key in orders if key not in voided_keys])
    assert shop.numbers() == [100 + sum(amounts_left) - 3 * orders_left, orders_left, 2 * orders_left]


def test_voids_make_no_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the changes of a budget, a batch, a past period, a hot tally and a counter visible soon are voided."""
    for counter in (BUDGET, QUOTA, VIEWS, SALES, MINUTES):
        monkeypatch.setitem(counters.COUNTERS, counter.name, counter)
    with deployed() as world:
        shop = Shop(world)
        minute = shop.tally_id(MINUTES)
        for number in range(4):
            shop.add(BUDGET, -5, f"s{number}")
            shop.add(VIEWS, 2, f"v{number}")
            shop.add(MINUTES, 3, f"m{number}") if number < 2 else None  # in the first minute
            shop.order(f"o{number}")
            world.store.breaker.trip(f"SALE#{ID}")
            shop.add(SALES, 10, f"h{number}")
            if number % 2:
                shop.void(BUDGET, f"s{number}")
                shop.void(VIEWS, f"v{number}")
                shop.void_order(f"o{number - 1}")
                shop.void(SALES, f"h{number}")
            world.run(0.5)
        shop.void(MINUTES, "m1")
        world.run_without_drift()
        assert world.tally(MINUTES, minute) == 3
        counted = BUDGET, VIEWS, SALES, QUOTA
        numbers = {counter.name: world.tally(counter, shop.tally_id(counter)) for counter in counted}
        assert numbers == {"budget": 100 - 2 * 5 - 2 * 3, "views": 2 * 2, "sales": 2 * 10 + 2 * 1, "quota": 2 * 2}
        assert world.drifts() == {}
