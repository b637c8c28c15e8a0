"""Each crossing of a threshold is one event, while consumers die, repeat, come late, and stream shards split."""

from __future__ import annotations

import json
import random
import secrets
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

import counters
from tally.counter import Counter
from tally.counting import increments, periods, plans, receipts, tallies
from tally.counting.increments import Increment
from tally.dynamo.client import Call
from tally.dynamo.transactions import transact
from tally.errors import LimitReachedError
from tally.notify import Notify
from tests.engines import new_engine
from tests.invariants.judged import Deployment
from tests.invariants.simulation import Clock, Plan, seeded
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
    "own", prefix="OWN", sort_key="N", attribute="n", floor=0, ceiling=40, own_limits=True,
    notify=Notify(percent=(50, 100)),
)  # fmt: skip
ROUGH = Plan(splits_per_hour=0, slow=0, gaps=0.3, faults=0.35, skew_s=2)
STEPS = {"one": {5, 10, 30, 40, 50}, "quota": {32, 40}}
SHARDS = 8


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    for counter in (ONE, QUOTA, WIDE, OWN):
        monkeypatch.setitem(counters.COUNTERS, counter.name, counter)


class Walk:
    """What people do to the numbers, and what that crosses, found by walking one by one."""

    def __init__(self, world: Deployment, chance: random.Random) -> None:
        self.world, self.chance = world, chance
        self.now: dict[tuple[str, str], int] = {}
        self.crossed: defaultdict[tuple[str, str], list[tuple[int, str, int]]] = defaultdict(list)
        self.wide = self.faults = 0
        self.limit = 40
        faulty = world.faulty

        def counted() -> bool:
            self.faults += (went := faulty())
            return went

        world.faulty = counted  # type: ignore[method-assign]

    def step(self) -> None:
        chance = self.chance
        for _ in range(chance.randrange(12)):
            self.move(ONE, chance.choice("ab"), chance.choice((-7, -3, -1, 1, 2, 8)))
            self.move(QUOTA, chance.choice("cd"), chance.choice((1, 3, 9)))
            self.move(OWN, "e", chance.choice((-9, -2, 1, 5, 11)))
            if chance.random() < 0.2:
                self.plan(chance.choice((10, 25, 60, None)))
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

    def move(self, counter: Counter, id_: str, amount: int) -> None:
        tally = periods.tally_id(counter, id_, self.world.now_s)
        change = Increment(counter, tally, amount, "increment", secrets.token_hex(12), {})
        try:
            increments.count(Call(self.world.store), change)
        except LimitReachedError:
            return
        key = counter.name, tally
        at = self.now.get(key, counter.start)
        to = self.now[key] = at + amount
        steps = {-(-self.limit * part // 100) for part in (50, 100)} if counter is OWN else STEPS[counter.name]
        while at != to:
            up = to > at
            at += up
            if at in steps:
                self.crossed[key].append((at, "up" if up else "down", to))
            at -= not up

    def plan(self, limit: int | None) -> None:
        """The id gets a limit of its own, or the declared one: so it may reach or leave a percentage."""
        plans.put(Call(self.world.store), OWN, "e", limit, operation="put_limit", key=secrets.token_hex(12))
        was, self.limit = self.limit, limit or 40
        number = self.now.get(("own", "e"), 0)
        for part in (50, 100):
            before, after = -(-was * part // 100), -(-self.limit * part // 100)
            if (number >= before) != (number >= after):
                self.crossed["own", "e"].append((after, "up" if number >= after else "down", number))

    def on_shard(self, shard: int) -> None:
        call = Call(self.world.store)
        stamp = receipts.stamp(call, receipts.Keyed("x", "w", secrets.token_hex(8), {}))
        at = tallies.minute_now(call)
        receipt = stamp.receipt(call, {}, **tallies.facts(WIDE, "w", 1, at))
        transact(call, WIDE, "w", lambda _: [{"Update": tallies.add(call, WIDE, "w", shard, 1, at)}], receipt)
        self.wide += 1


@pytest.fixture(params=[0, *in_long(range(1, 8))])
def walk(request: pytest.FixtureRequest) -> Iterator[Walk]:
    clock = Clock()
    with new_engine() as engine, seeded(clock, request.param):
        world = Deployment(engine, clock, request.param, ROUGH)
        world.sweep_each_minute()
        walk = Walk(world, random.Random(request.param))
        world.run(15, walk.step)
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
    said = {
        tally: [(one["threshold"], one["direction"], one["value"]) for one in found] for tally, found in got.items()
    }
    assert said == {tally: crossings for tally, crossings in walk.crossed.items() if crossings}
    assert [one["threshold"] for one in wide] == list(range(25, walk.wide + 1, 25))
    assert all(one["threshold"] <= one["value"] <= walk.wide for one in wide), "none came early"
    names = [one["event"] for found in (*got.values(), wide) for one in found]
    assert len(names) == len(set(names)) > 50
    assert walk.faults > 60, "it was rough"
    assert world.drifts() == {}
