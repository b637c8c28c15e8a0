"""Each unique visitor counts once in a period, however often and however late a visit is sent.

`VISITS=50000 pytest tests/invariants/test_uniques.py -k log` compares a larger log with the numbers.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import pytest

import counters
from tally.counter import Counter
from tally.counting import periods, pseudonyms, unique_visitors
from tally.dynamo import keys
from tally.dynamo.client import Call
from tally.dynamo.clock import CLOCK_DIFFERENCE_S_MAX
from tally.errors import InvalidInputError, LimitReachedError, StoreUnreachableError
from tests import faults
from tests.engines import new_engine
from tests.invariants.counting import ITEM, Counting
from tests.invariants.deployment import Deployment
from tests.invariants.simulation import Clock, Disturbances, seed_randomness
from tests.invariants.test_periods import evening as evening  # five minutes before midnight
from tests.invariants.test_removed_periods import take_removals_by_ttl
from tests.invariants.threads import run_together
from tests.invariants.world import World, retry_until_final
from tests.tiers import marked_long

pytestmark = pytest.mark.usefixtures("clock")
KEYED = Counter(
    "readers", prefix="BOOK", sort_key="READERS", attribute="readers",
    delta=1, period="day", visible="soon", receipt_days=2,
)  # fmt: skip
"""Not unique: its callers count visitors once by the key, which names the visitor and the day."""
READERS = counters.READERS
GAMBIER = replace(READERS, timezone="Pacific/Gambier")  # days begin at 09:00 UTC, and simulations at 08:00 UTC
SEATS = Counter("seats", prefix="SEATS", sort_key="USERS", attribute="users", period="month", ceiling=25, unique=True)
DAILY = Counter("daily", prefix="SEEN", sort_key="USERS", attribute="users", period="day", unique=True)
COSTS_OF_NEW_VISITOR = [("GetItem", 1.0), ("TransactWriteItems", 4.0)]
DAY_S = 24 * 3600
VISITS = int(os.environ.get("VISITS", "600"))
RESENT_S = 1800  # a visit whose response was lost is sent once more within this time


@pytest.fixture(autouse=True)
def _declare_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    for counter in (SEATS, DAILY):
        monkeypatch.setitem(counters.COUNTERS, counter.name, counter)


def visit(world: World, counter: Counter, visitor: str, at_s: float | None = None, caller: str = "web") -> bool:
    """Counts a visit. Says whether the visitor is new."""
    body = retry_until_final(lambda: unique_visitors.count(world.call(caller), counter, ITEM, visitor, at_s)).body
    return bool(body["new"])


def uniques(world: World, counter: Counter, at_s: float) -> int:
    """Returns the number of visitors in the period of this time, with the receipts that the rollup will add."""
    return world.tally_after_rollup(counter, periods.tally_id(counter, ITEM, at_s))


def test_a_key_of_visitor_and_day_counts_a_visitor_twice_only_if_a_visit_arrives_on_the_day_after(
    counting: Counting, evening: Clock
) -> None:
    today, tomorrow = (periods.tally_id(KEYED, ITEM, evening() + later_s) for later_s in (0, DAY_S))
    proxy = counting.world.proxy
    proxy.plan = faults.random_faults(5, {"PutItem": {faults.LOSE_RESPONSE: 0.3, faults.FAIL_AFTER: 0.2}})

    def visit(visitor: str, tally: str) -> None:
        day = tally[-10:]
        retry_until_final(lambda: counting.increment(KEYED, key=f"{visitor}-{day}"))

    for visitor in ("ann", "bob") * 5:
        visit(visitor, today)
    assert counting.world.tally_after_rollup(KEYED, today) == 2
    evening.pass_s(600)
    visit("cid", today)  # sent before midnight, and counted on the new day
    for visitor in ("bob", "cid") * 5:
        visit(visitor, tomorrow)
    # Tomorrow counts bob once, and cid by the key of each day.
    assert [counting.world.tally_after_rollup(KEYED, tally) for tally in (today, tomorrow)] == [2, 3]
    assert proxy.count_injected(faults.LOSE_RESPONSE) + proxy.count_injected(faults.FAIL_AFTER) > 5


@pytest.mark.parametrize("counter", [READERS, DAILY], ids=["soon", "now"])
def test_a_visitor_counts_once_for_all_services_and_is_new_once_whatever_responses_are_lost(
    world: World, evening: Clock, counter: Counter
) -> None:
    pseudonyms.stack_secret(world.call())  # creates the secret before its write can meet a fault
    world.proxy.plan = faults.always(faults.LOSE_RESPONSE, "PutItem", "TransactWriteItems")
    with pytest.raises(StoreUnreachableError):
        unique_visitors.count(world.call("web"), counter, ITEM, "ann")
    world.proxy.plan = faults.no_faults
    assert [visit(world, counter, "ann", caller=caller) for caller in ("web", "app")] == [False, False]
    world.proxy.plan = faults.script({name: [faults.LOSE_RESPONSE] for name in ("PutItem", "TransactWriteItems")})
    world.proxy.strip_tokens = True
    assert visit(world, counter, "bob"), "the retry of the SDK finds the receipt of its own call"
    assert world.proxy.count_injected(faults.LOSE_RESPONSE) >= 1
    assert [visit(world, counter, visitor) for visitor in ("bob", "cid", "cid")] == [False, True, False]
    assert uniques(world, counter, evening()) == 3


@pytest.mark.parametrize("counter", [READERS, DAILY], ids=["soon", "now"])
def test_a_visit_counts_in_the_period_of_its_first_try_and_each_period_counts_every_visitor(
    world: World, evening: Clock, counter: Counter
) -> None:
    first_s = evening()
    assert visit(world, counter, "ann", first_s)
    evening.pass_s(600)
    assert [visit(world, counter, visitor, first_s) for visitor in ("ann", "bob")] == [False, True]
    assert [visit(world, counter, visitor) for visitor in ("ann", "ann", "bob")] == [True, False, True]
    assert (uniques(world, counter, first_s), uniques(world, counter, evening())) == (2, 2)


def test_a_clock_that_is_behind_moves_no_visit_into_the_day_before(world: World, evening: Clock) -> None:
    midnight_s = evening() + 300
    evening.pass_s(298)
    assert visit(world, READERS, "ann", midnight_s)  # the service's clock is 2 s ahead of the function's clock
    evening.pass_s(4)
    assert not visit(world, READERS, "ann")
    assert (uniques(world, READERS, midnight_s - 1), uniques(world, READERS, midnight_s)) == (0, 1)


def test_a_first_try_must_be_within_the_last_day(world: World, evening: Clock) -> None:
    now_s, one_period = evening(), replace(READERS, keep_periods=1)
    for wrong_time_s in (now_s - DAY_S - 1, now_s + CLOCK_DIFFERENCE_S_MAX + 1):
        with pytest.raises(InvalidInputError, match="within the last day"):
            unique_visitors.count(world.call(), READERS, ITEM, "ann", wrong_time_s)
    assert not world.receipts()
    assert [visit(world, READERS, "ann", now_s - DAY_S) for _ in range(2)] == [True, False]
    assert visit(world, READERS, "bob", now_s + CLOCK_DIFFERENCE_S_MAX)
    # Even a counter that keeps one past period keeps the period of every first try that is accepted.
    assert periods.is_kept(one_period, periods.tally_id(one_period, ITEM, now_s - DAY_S), now_s)


def test_a_receipt_is_kept_longer_after_its_period_than_a_first_try_may_be_late(world: World, evening: Clock) -> None:
    """A rebuild may need a receipt for eight days. The tally stays after its receipts have expired."""
    ends_s: dict[str, int] = {}
    for counter in (READERS, SEATS):
        visit(world, counter, "ann")
        ends_s[counter.name] = periods.ends_s(counter, periods.tally_id(counter, ITEM, evening()))
    for receipt in world.receipts():
        later_s = int(receipt["expiration"]["N"]) - ends_s[receipt["counter"]["S"]]
        assert 8 * DAY_S <= later_s <= 10 * DAY_S  # a receipt expires at the end of a day


def test_a_receipt_has_a_pseudonym_that_is_different_in_another_stack(world: World) -> None:
    visit(world, READERS, "ann")
    (receipt,) = world.receipts()
    secret = pseudonyms.stack_secret(world.call())
    assert "ann" not in str(receipt)
    table = world.store.settings.ledger_table
    # Without the stored secret, a new process makes another secret, as in another stack.
    world.raw.delete_item(TableName=table, Key=keys.key(pseudonyms.SECRET, pseudonyms.SECRET))
    assert not visit(world, READERS, "ann"), "a process reads the secret once"
    world.store.secret_cache.clear()
    assert visit(world, READERS, "ann")
    assert pseudonyms.stack_secret(world.call()) != secret
    assert {other["id"]["S"] for other in world.receipts()} > {receipt["id"]["S"]}


def test_processes_that_create_the_secret_concurrently_get_the_same_secret(world: World) -> None:
    """Each process may read before any process has written, so several may try to store a secret."""
    world.proxy.plan = faults.random_faults(3, {"PutItem": {faults.LOSE_RESPONSE: 0.3, faults.FAIL_AFTER: 0.3}})
    stores = [replace(world.store, secret_cache={}) for _ in range(8)]
    secrets = run_together(
        [lambda store=store: retry_until_final(lambda: pseudonyms.stack_secret(Call(store))) for store in stores]
    )
    assert len(set(secrets)) == 1
    assert len(secrets[0]) >= 40


def test_a_visit_costs_a_write_unit_if_visible_soon_and_else_a_read_unit_at_least(world: World) -> None:
    """The engine does not bill a write whose condition failed. DynamoDB bills such a write."""
    pseudonyms.stack_secret(world.call())  # creates the secret before the test measures
    visible_soon = ([("PutItem", 1.0)], [("PutItem", 0)])
    visible_now = (COSTS_OF_NEW_VISITOR, COSTS_OF_NEW_VISITOR[:1])
    for counter, costs_of_visits in ((READERS, visible_soon), (DAILY, visible_now), (SEATS, visible_now)):
        for costs in costs_of_visits:
            with world.measure_units() as measured:
                visit(world, counter, "ann")
            assert measured == costs


def test_at_a_ceiling_counted_users_are_accepted_and_all_others_are_refused(world: World) -> None:
    """40 users want 25 seats. 8 callers send users concurrently, while responses are lost and transactions conflict."""
    world.proxy.strip_tokens = True
    chances = {faults.LOSE_RESPONSE: 0.1, faults.FAIL_AFTER: 0.05, faults.CONFLICT: 0.1}
    world.proxy.plan = faults.random_faults(7, {"TransactWriteItems": chances})
    order = [f"u{number % 40}" for number in range(160)]
    random.Random(1).shuffle(order)

    def seat(user: str) -> tuple[str, bool]:
        try:
            visit(world, SEATS, user)
            return user, True
        except LimitReachedError:
            return user, False

    shares = (order[caller::8] for caller in range(8))
    results = run_together([lambda share=share: [seat(user) for user in share] for share in shares])
    outcomes = set(chain(*results))
    assert sum(world.proxy.count_injected(fault) for fault in chances) > 20
    assert len(outcomes) == 40, "each user is always accepted or always refused"
    assert sum(is_accepted for _, is_accepted in outcomes) == 25
    assert world.tally(SEATS, periods.tally_id(SEATS, ITEM, time.time())) == 25


class Log:
    """Random visits around midnight, and the visitors of each day. A visit is of the day on which the service first
    sent it, by the service's clock."""

    def __init__(self, world: Deployment, chance: random.Random, visits: int) -> None:
        self.world, self.chance, self.visits_left = world, chance, visits
        self.visitor_count = max(20, visits // 10)
        self.per_step = -(-visits // 75)  # how many new visits a step sends: 75 of the test's 80 steps send all
        self.visitors: defaultdict[str, set[str]] = defaultdict(set)
        """The visitors of each tally."""
        self.unsent: list[tuple[float, str, str]] = []
        """Visits to send, also visits whose response was lost: time of the first try, page, visitor."""
        self.sent_count = self.lost_count = self.new_count = self.fault_count = 0

    def note_fault(self, is_fault: bool) -> bool:
        """Counts a fault of a consumer."""
        self.fault_count += is_fault
        return is_fault

    def step(self) -> None:
        """Sends some new visits, and some visits whose responses were lost."""
        for _ in range(min(self.visits_left, self.per_step)):
            self.visits_left -= 1
            at_s = self.world.now_s + self.chance.uniform(-2, 2)  # by the clock of the service
            self.unsent.append((at_s, self.chance.choice("ab"), f"v{self.chance.randrange(self.visitor_count)}"))
        unsent, self.unsent = self.unsent, []
        for at_s, page, visitor in unsent:
            if self.chance.random() < 0.5 and at_s < self.world.now_s - 2:  # the service pauses before its retry
                self.unsent.append((at_s, page, visitor))
                continue
            self._send(at_s, page, visitor)

    def _send(self, at_s: float, page: str, visitor: str) -> None:
        self.sent_count += 1
        with self.world.clock.with_skew(self.chance.uniform(-2, 2)):  # the clock of the function
            answer = unique_visitors.count(Call(self.world.store, "web"), GAMBIER, page, visitor, int(at_s))
        tally = periods.tally_id(GAMBIER, page, int(at_s))
        self.new_count += answer.body["new"]
        assert answer.body["new"] is (visitor not in self.visitors[tally])
        self.visitors[tally].add(visitor)
        if self.chance.random() < 0.4 and self.world.now_s - at_s < RESENT_S:
            self.lost_count += 1
            self.unsent.append((at_s, page, visitor))


@pytest.fixture
def simulated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """A deployment: a third of the consumers' invocations die, repeat or lose the response, and clocks are 2 s off."""
    monkeypatch.setitem(counters.COUNTERS, GAMBIER.name, GAMBIER)
    clock = Clock()
    with new_engine() as engine, seed_randomness(clock, request.param):
        disturbances = Disturbances(splits_per_hour=0, slow_share=0, gap_share=0.3, fault_share=0.35)
        world = Deployment(engine, clock, request.param, disturbances, shards=None)
        clock.pass_s(2400)  # 20 minutes before the new day
        world.sweep_each_minute()
        yield world
        world.wire.close()


def expire_receipts(world: Deployment) -> int:
    """Removes every receipt of a visit, as DynamoDB does by TTL. Returns the number of removed receipts."""
    world.schedule_new_records()
    receipts = [item for item in world.scan("receipts") if "target" in item]
    for item in receipts:
        world.wire.delete_item(TableName=world.name("receipts"), Key={"id": item["id"]})
    take_removals_by_ttl(world)
    return len(receipts)


@pytest.mark.parametrize("simulated", [0, *marked_long([1, 2, 3])], indirect=True)
def test_the_uniques_of_two_days_equal_the_log_and_stay_after_the_receipts_expired(
    simulated: Deployment, request: pytest.FixtureRequest
) -> None:
    world, chance = simulated, random.Random(request.node.callspec.params["simulated"])
    log = Log(world, chance, VISITS)
    draws_fault = world.draws_fault
    world.draws_fault = lambda: log.note_fault(draws_fault())  # type: ignore[method-assign]

    def step() -> None:
        log.step()
        if chance.random() < 0.2:
            world.streams.split()

    world.run(40, step)
    assert log.visits_left == 0
    while log.unsent:
        world.run(1, log.step)
    for _ in range(40):  # for up to 80 minutes
        world.run(2)
        if world.consumers_have_caught_up() and not world.drifts():
            break
    expected = {tally: len(visitors) for tally, visitors in log.visitors.items()}
    assert len(expected) == 4, "two pages, two days"
    assert {tally: world.tally(GAMBIER, tally) for tally in expected} == expected
    assert log.new_count == sum(expected.values())
    assert expire_receipts(world) == sum(expected.values())
    world.run(6)
    assert {tally: world.tally(GAMBIER, tally) for tally in expected} == expected
    assert (world.drifts(), set().union(*world.dead_letter_sequences().values())) == ({}, set())
    assert min(log.lost_count, log.fault_count) > 50
    print(f"{log.sent_count} sent, {log.lost_count} lost responses, {log.new_count} uniques, {log.fault_count} faults")
