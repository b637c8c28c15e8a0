"""Each crossing of a threshold is one event, while consumers die, repeat, come late, and stream shards split."""

from __future__ import annotations

import json
import random
import secrets
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

import counters
from tally.counter import Counter
from tally.counting import increments, overrides, periods, receipts, tallies
from tally.counting.increments import Increment
from tally.dynamo.client import Call
from tally.dynamo.transactions import commit_change
from tally.errors import LimitReachedError
from tally.notify import Notify
from tests.engines import new_engine
from tests.invariants.deployment import Deployment
from tests.invariants.simulation import Clock, Disturbances, seed_randomness
from tests.tiers import in_long

ONE = Counter(
    "one", prefix="ONE", sort_key="N", attribute="n", start=20, floor=0, ceiling=50,
    notify=Notify(at=(5, 10, 30), percent=(80, 100)),
)  # fmt: skip
QUOTA = Counter(
    "quota", prefix="QUOTA", sort_key="N", attribute="n", ceiling=40, period="minute", notify=Notify(percent=(80, 100))
)
WIDE = Counter("wide", prefix="WIDE", sort_key="N", attribute="n", delta=1, notify=Notify(every=25))
OWN = Counter(
    "own", prefix="OWN", sort_key="N", attribute="n", floor=0, ceiling=40, limit_overrides=True,
    notify=Notify(percent=(50, 100)),
)  # fmt: skip
RENEWED = Counter(
    "renewed", prefix="RENEWED", sort_key="N", attribute="n", ceiling=40, limit_overrides=True, period="minute",
    notify=Notify(percent=(50, 80, 100), at=(7,)),
)  # fmt: skip
CREDIT = Counter(
    "credit", prefix="CREDIT", sort_key="N", attribute="n", start=20, floor=0, limit_overrides=True,
    notify=Notify(at=(1, 10)),
)  # fmt: skip
DISTURBED = Disturbances(splits_per_hour=0, slow=0, gaps=0.3, faults=0.35, skew_s=2)
SHARDS = 8
LIMITS = (-1, 0, 1, 10, 25, 60, None)


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    for counter in (ONE, QUOTA, WIDE, OWN, RENEWED, CREDIT):
        monkeypatch.setitem(counters.COUNTERS, counter.name, counter)


def reached(counter: Counter, value: int, limit: int | None) -> dict[tuple[str, int], bool]:
    """Which thresholds a number has reached, where this is its limit."""
    assert counter.notify is not None
    found = {
        ("percent", one): bool(limit and limit > 0 and 100 * value >= one * limit) for one in counter.notify.percent
    }
    return found | {("at", one): value >= one for one in counter.notify.at}


class Walk:
    """What people do to the numbers, and what that crosses: after each write, what has been reached is compared."""

    def __init__(self, world: Deployment, chance: random.Random) -> None:
        self.world, self.chance = world, chance
        self.now: dict[tuple[str, str], int] = {}
        self.judged_by: dict[tuple[str, str], int | None] = {}
        """The ceiling that the item of each tally was written under."""
        self.limits: dict[str, int | None] = {}
        """By counter: the limit that its id has of its own."""
        self.renewed = replace(RENEWED, limit_overrides=False)  # a deploy gives it own limits
        self.crossed: defaultdict[tuple[str, str], dict[tuple[str, int], list[tuple[str, int]]]]
        self.crossed = defaultdict(lambda: defaultdict(list))
        self.wide = self.faults = self.steps = 0
        faulty = world.draws_fault

        def counted() -> bool:
            self.faults += (went := faulty())
            return went

        world.draws_fault = counted  # type: ignore[method-assign]

    def step(self) -> None:
        chance = self.chance
        self.steps += 1
        self.world.sleep(chance.randrange(30))
        if self.steps == 8:
            self.renewed = RENEWED
        for _ in range(chance.randrange(12)):
            self.move(ONE, chance.choice("ab"), chance.choice((-7, -3, -1, 1, 2, 8)))
            self.move(QUOTA, chance.choice("cd"), chance.choice((1, 3, 9)))
            self.move(OWN, "e", chance.choice((-9, -2, 1, 5, 11)))
            self.move(self.renewed, "f", chance.choice((-4, 2, 7, 18)), chance.choice((0, 0, 2)))
            self.move(CREDIT, "g", chance.choice((-12, -5, -1, 1, 9)))
            if chance.random() < 0.2:
                self.set(chance.choice((0, 3, 20, 40)))
            for counter in (OWN, self.renewed, CREDIT):
                edge = self.world.now_s % 60 < 2  # a stamp of DynamoDB's may be in the period that is over
                if counter.limit_overrides and not (counter.period and edge) and chance.random() < 0.2:
                    self.plan(counter, chance.choice(LIMITS))
            if chance.random() < 0.5:
                self.world.play("w", counter=WIDE)
            else:
                self.world.spill("w", counter=WIDE)
            self.wide += 1
        for shard in range(SHARDS):  # many shards move at once
            if chance.random() < 0.3:
                self.on_shard(shard)
        if chance.random() < 0.3:
            self.world.streams.split()

    def move(self, counter: Counter, id_: str, amount: int, ahead_s: int = 0) -> None:
        """`ahead_s`: of the clock of the caller, who may be in the next period."""
        tally = periods.tally_id(counter, id_, self.world.now_s + ahead_s)
        change = Increment(counter, tally, amount, "increment", secrets.token_hex(12), {})
        with suppress(LimitReachedError):
            increments.count(Call(self.world.store), change)
            key = counter.name, tally
            self.written(counter, tally, self.now.get(key, counter.start) + amount, copied=amount > 0)

    def set(self, value: int) -> None:
        """Somebody sets the number, whatever it is."""
        call = Call(self.world.store)
        seen = tallies.read_state(call, OWN, "e")
        with suppress(LimitReachedError):
            increments.set_value(call, OWN, "e", value, seen.version, operation="set", key=secrets.token_hex(12))
            self.written(OWN, "e", value)

    def plan(self, counter: Counter, limit: int | None) -> None:
        """The id gets an override, or the declared limit: so it may reach or leave a percentage."""
        id_ = {"own": "e", "renewed": "f", "credit": "g"}[counter.name]
        overrides.put_override(
            Call(self.world.store), counter, id_, limit, operation="put_limit", key=secrets.token_hex(12)
        )
        self.limits[counter.name] = limit
        tally = periods.tally_id(counter, id_, self.world.now_s)
        self.written(counter, tally, self.now.get((counter.name, tally), counter.start))

    def written(self, counter: Counter, tally: str, value: int, *, copied: bool = True) -> None:
        """`copied`: the write looked at the limits of the id."""
        key, own = (counter.name, tally), self.limits.get(counter.name)
        ceiling = counter.ceiling if own is None or counter.ceiling is None else own
        if not copied:  # with a period the item says what it said before
            ceiling = self.judged_by.get(key, counter.ceiling) if counter.period else ceiling
        before = reached(counter, self.now.get(key, counter.start), self.judged_by.get(key, ceiling))
        self.now[key], self.judged_by[key] = value, ceiling
        for one, is_ in reached(counter, value, ceiling).items():
            if before[one] != is_:
                self.crossed[key][one].append(("up" if is_ else "down", value))

    def on_shard(self, shard: int) -> None:
        call = Call(self.world.store)
        stamp = receipts.draft_receipt(call, receipts.ReceiptKey("x", "w", secrets.token_hex(8), {}))
        at = tallies.minute_now(call)
        receipt = stamp.receipt(call, {}, **tallies.receipt_facts(WIDE, "w", 1, at))
        commit_change(
            call, WIDE, "w", lambda _: [{"Update": tallies.add_write(call, WIDE, "w", shard, 1, at)}], receipt
        )
        self.wide += 1


@pytest.fixture(params=[0, *in_long(range(1, 8))])
def walk(request: pytest.FixtureRequest) -> Iterator[Walk]:
    clock = Clock()
    with new_engine() as engine, seed_randomness(clock, request.param):
        world = Deployment(engine, clock, request.param, DISTURBED)
        world.sweep_each_minute()
        walk = Walk(world, random.Random(request.param))
        world.run(12, walk.step)
        for _ in range(20):
            world.run(2)
            if world.caught_up():
                break
        assert world.caught_up()
        yield walk
        world.wire.close()


def details(world: Deployment) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The events of each tally, in the order that their sequences say."""
    found: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    rows = [json.loads(row["detail"]["S"]) for row in world.rows("EVENT#")]
    for one in sorted(rows, key=lambda row: str(row["sequence"])):
        period = f"#{one['period']}" if "period" in one else ""
        found[one["counter"], one["id"] + period].append(one)
    return found


def test_each_true_crossing_is_one_event_whatever_happens_to_the_consumers(walk: Walk) -> None:
    world, got = walk.world, details(walk.world)
    wide = got.pop(("wide", "w"), [])
    said: defaultdict[tuple[str, str], dict[tuple[str, int], list[tuple[str, int]]]]
    said = defaultdict(lambda: defaultdict(list))
    for tally, found in got.items():
        for one in found:
            of = ("percent", one["percent"]) if "percent" in one else ("at", one["threshold"])
            said[tally][of].append((one["direction"], one["value"]))
    assert said == walk.crossed
    assert {name for name, _ in said} == {"one", "quota", "own", "renewed", "credit"}
    assert [one["threshold"] for one in wide] == list(range(25, walk.wide + 1, 25))
    assert all(one["threshold"] <= one["value"] <= walk.wide for one in wide), "none came early"
    names = [one["event"] for found in (*got.values(), wide) for one in found]
    assert len(names) == len(set(names)) > 50
    assert walk.faults > 60, "it was rough"
    assert world.drifts() == {}
