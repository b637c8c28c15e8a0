"""Each threshold crossing is one event, while consumers die, repeat and lag, and stream shards split."""

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
from tests.tiers import marked_long

ONE_SHARD = Counter(
    "one", prefix="ONE", sort_key="N", attribute="n", start=20, floor=0, ceiling=50,
    notify=Notify(at=(5, 10, 30), percent=(80, 100)),
)  # fmt: skip
QUOTA = Counter(
    "quota", prefix="QUOTA", sort_key="N", attribute="n", ceiling=40, period="minute", notify=Notify(percent=(80, 100))
)
WIDE = Counter("wide", prefix="WIDE", sort_key="N", attribute="n", delta=1, notify=Notify(every=25))
OVERRIDABLE = Counter(
    "overridable", prefix="OVERRIDABLE", sort_key="N", attribute="n", floor=0, ceiling=40, limit_overrides=True,
    notify=Notify(percent=(50, 100)),
)  # fmt: skip
MINUTE_LIMIT = Counter(
    "minute_limit", prefix="MINUTELIMIT", sort_key="N", attribute="n", ceiling=40, limit_overrides=True,
    period="minute", notify=Notify(percent=(50, 80, 100), at=(7,)),
)  # fmt: skip
CREDIT = Counter(
    "credit", prefix="CREDIT", sort_key="N", attribute="n", start=20, floor=0, limit_overrides=True,
    notify=Notify(at=(1, 10)),
)  # fmt: skip
DISTURBED = Disturbances(splits_per_hour=0, slow_share=0, gap_share=0.3, fault_share=0.35, skew_s=2)
SHARDS = 8  # of WIDE that may change in one step
LIMITS = (-1, 0, 1, 10, 25, 60, None)  # of overrides; None removes the override


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    for counter in (ONE_SHARD, QUOTA, WIDE, OVERRIDABLE, MINUTE_LIMIT, CREDIT):
        monkeypatch.setitem(counters.COUNTERS, counter.name, counter)


def reached_thresholds(counter: Counter, value: int, limit: int | None) -> dict[tuple[str, int], bool]:
    """Returns whether a number has reached each threshold of its counter. `limit`: the limit of the percentages."""
    assert counter.notify is not None
    percentages = {
        ("percent", percent): bool(limit and limit > 0 and 100 * value >= percent * limit)
        for percent in counter.notify.percent
    }
    return percentages | {("at", number): value >= number for number in counter.notify.at}


class Walk:
    """Random changes of numbers and limits. After each write, the crossed thresholds are noted in `crossed`."""

    def __init__(self, world: Deployment, chance: random.Random) -> None:
        self.world, self.chance = world, chance
        self.numbers: dict[tuple[str, str], int] = {}
        """The present number of each tally."""
        self.item_ceilings: dict[tuple[str, str], int | None] = {}
        """The ceiling that the item of each tally had at its last write."""
        self.overrides: dict[str, int | None] = {}
        """The override of the only id of each counter."""
        self.minute_limit = replace(MINUTE_LIMIT, limit_overrides=False)  # a later deploy allows overrides
        self.crossed: defaultdict[tuple[str, str], dict[tuple[str, int], list[tuple[str, int]]]]
        self.crossed = defaultdict(lambda: defaultdict(list))
        """By tally and threshold: the direction of each crossing, and the number after it."""
        self.wide_changes = self.faults = self.steps = 0
        draws_fault = world.draws_fault

        def draw_and_count() -> bool:
            self.faults += (is_faulty := draws_fault())
            return is_faulty

        world.draws_fault = draw_and_count  # type: ignore[method-assign]

    def step(self) -> None:
        """Let some seconds pass, change numbers and limits, and perhaps split a stream shard."""
        chance = self.chance
        self.steps += 1
        self.world.sleep(chance.randrange(30))
        if self.steps == 8:
            self.minute_limit = MINUTE_LIMIT
        for _ in range(chance.randrange(12)):
            self.move(ONE_SHARD, chance.choice("ab"), chance.choice((-7, -3, -1, 1, 2, 8)))
            self.move(QUOTA, chance.choice("cd"), chance.choice((1, 3, 9)))
            self.move(OVERRIDABLE, "e", chance.choice((-9, -2, 1, 5, 11)))
            self.move(self.minute_limit, "f", chance.choice((-4, 2, 7, 18)), ahead_s=chance.choice((0, 0, 2)))
            self.move(CREDIT, "g", chance.choice((-12, -5, -1, 1, 9)))
            if chance.random() < 0.2:
                self.set(chance.choice((0, 3, 20, 40)))
            for counter in (OVERRIDABLE, self.minute_limit, CREDIT):
                # DynamoDB's stamp may be 2 s behind. By a stamp in the past period, the copy of the override in this
                # period makes an event. Later copies in past periods make no event.
                is_period_new = self.world.now_s % 60 < 2
                if counter.limit_overrides and not (counter.period and is_period_new) and chance.random() < 0.2:
                    self.override(counter, chance.choice(LIMITS))
            if chance.random() < 0.5:
                self.world.play("w", counter=WIDE)
            else:
                self.world.spill("w", counter=WIDE)
            self.wide_changes += 1
        for shard in range(SHARDS):  # many shards of a tally change at once
            if chance.random() < 0.3:
                self.play_on_shard(shard)
        if chance.random() < 0.3:
            self.world.streams.split()

    def move(self, counter: Counter, id_: str, amount: int, ahead_s: int = 0) -> None:
        """Change a number. `ahead_s`: how far the caller's clock is ahead, perhaps in the next period."""
        tally = periods.tally_id(counter, id_, self.world.now_s + ahead_s)
        change = Increment(counter, tally, amount, "increment", secrets.token_hex(12), {})
        with suppress(LimitReachedError):
            increments.count(Call(self.world.store), change)
            key = counter.name, tally
            number = self.numbers.get(key, counter.start) + amount
            # Only an increase is compared with the limit, so only an increase copies the limit.
            self.note_write(counter, tally, number, has_present_limit=amount > 0)

    def set(self, value: int) -> None:
        """Set the number of `e`, which is the only id of OVERRIDABLE."""
        call, key = Call(self.world.store), secrets.token_hex(12)
        version = tallies.read_state(call, OVERRIDABLE, "e").version
        with suppress(LimitReachedError):
            increments.set_value(call, OVERRIDABLE, "e", value, version, operation="set", key=key)
            self.note_write(OVERRIDABLE, "e", value)

    def override(self, counter: Counter, limit: int | None) -> None:
        """Set or remove the override of an id, which may cross a percentage. `limit` None: the declared limit."""
        id_ = {"overridable": "e", "minute_limit": "f", "credit": "g"}[counter.name]
        overrides.put_override(
            Call(self.world.store), counter, id_, limit, operation="put_limit", key=secrets.token_hex(12)
        )
        self.overrides[counter.name] = limit
        tally = periods.tally_id(counter, id_, self.world.now_s)
        self.note_write(counter, tally, self.numbers.get((counter.name, tally), counter.start))

    def note_write(self, counter: Counter, tally: str, value: int, *, has_present_limit: bool = True) -> None:
        """Note the thresholds that a write crosses. `has_present_limit`: the write has copied the present limit."""
        key, override = (counter.name, tally), self.overrides.get(counter.name)
        ceiling = counter.ceiling if override is None or counter.ceiling is None else override
        if not has_present_limit and counter.period:  # the item keeps the ceiling of an earlier write
            ceiling = self.item_ceilings.get(key, counter.ceiling)
        reached_before = reached_thresholds(
            counter, self.numbers.get(key, counter.start), self.item_ceilings.get(key, ceiling)
        )
        self.numbers[key], self.item_ceilings[key] = value, ceiling
        for threshold, is_reached in reached_thresholds(counter, value, ceiling).items():
            if reached_before[threshold] != is_reached:
                self.crossed[key][threshold].append(("up" if is_reached else "down", value))

    def play_on_shard(self, shard: int) -> None:
        """Count a change of `WIDE` on this shard of its tally."""
        call = Call(self.world.store)
        draft = receipts.draft_receipt(call, receipts.ReceiptKey("x", "w", secrets.token_hex(8), {}))
        minute = tallies.minute_now(call)
        receipt = draft.receipt(call, {}, **tallies.receipt_facts(WIDE, "w", 1, minute))
        write = {"Update": tallies.add_write(call, WIDE, "w", shard, 1, minute)}
        commit_change(call, WIDE, "w", lambda _: [write], receipt)
        self.wide_changes += 1


@pytest.fixture(params=[0, *marked_long(range(1, 8))])
def walk(request: pytest.FixtureRequest) -> Iterator[Walk]:
    clock = Clock()
    with new_engine() as engine, seed_randomness(clock, request.param):
        world = Deployment(engine, clock, request.param, DISTURBED)
        world.sweep_each_minute()
        walk = Walk(world, random.Random(request.param))
        world.run(12, walk.step)
        for _ in range(20):
            world.run(2)
            if world.consumers_have_caught_up():
                break
        assert world.consumers_have_caught_up()
        yield walk
        world.wire.close()


def events_by_tally(world: Deployment) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Returns the events of each tally, ordered by their sequences."""
    events: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    details = [json.loads(row["detail"]["S"]) for row in world.rows("EVENT#")]
    for event in sorted(details, key=lambda event: str(event["sequence"])):
        period = f"#{event['period']}" if "period" in event else ""
        events[event["counter"], event["id"] + period].append(event)
    return events


def test_each_true_crossing_is_one_event_whatever_happens_to_the_consumers(walk: Walk) -> None:
    world, events = walk.world, events_by_tally(walk.world)
    wide = events.pop(("wide", "w"), [])
    reported: defaultdict[tuple[str, str], dict[tuple[str, int], list[tuple[str, int]]]]
    reported = defaultdict(lambda: defaultdict(list))
    for tally, tally_events in events.items():
        for event in tally_events:
            threshold = ("percent", event["percent"]) if "percent" in event else ("at", event["threshold"])
            reported[tally][threshold].append((event["direction"], event["value"]))
    assert reported == walk.crossed
    assert {name for name, _ in reported} == {"one", "quota", "overridable", "minute_limit", "credit"}
    assert [event["threshold"] for event in wide] == list(range(25, walk.wide_changes + 1, 25))
    assert all(event["threshold"] <= event["value"] <= walk.wide_changes for event in wide), "no event was early"
    names = [event["event"] for tally_events in (*events.values(), wide) for event in tally_events]
    assert len(names) == len(set(names)) > 50
    assert walk.faults > 60, "the seed draws many faults"
    assert world.drifts() == {}
