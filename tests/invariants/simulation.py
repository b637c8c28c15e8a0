"""Hours in seconds: the code as deployed, on the embedded engine, in virtual time and in modelled streams.

A seed decides everything: traffic, edits by hand, splits, crashes, stalls, sweeps that fail. What is right is known
from what the simulation did, never from what the code says.

Not modelled: in DynamoDB the parts of a transaction become visible one after the other, in the engine at once. Their
stream records do come one after the other.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import counters
from local.base.engine import Engine
from tally import observe
from tally.counter import Counter
from tally.dynamo.client import Store
from tally.settings import Settings
from tests.contexts import Context
from tests.invariants.deployment import CONSUMERS, event, handler, iterator
from tests.invariants.processes import Crash, Watched, killed
from tests.invariants.stream_model import TABLES, Modelled, Record, Streams, passes_filter
from tests.invariants.streaming import Bucket
from tests.invariants.wire import Wire

START_S = 1_800_000_000 // 3600 * 3600
LATE_S = 60  # a commit this long after the end of its minute is late
REST_MINUTES_MAX = 60  # to catch up in, once nothing happens any more
Tally = tuple[str, str]
"""Counter and id."""


class Clock:
    """Wall time that only the simulation moves. `skew_s`: how far the clock of the process that runs now is off."""

    def __init__(self, now_s: float = START_S) -> None:
        self.now_s, self.skew_s = now_s, 0.0

    def __call__(self) -> float:
        return self.now_s + self.skew_s

    @contextlib.contextmanager
    def off(self, skew_s: float) -> Iterator[None]:
        """Run a process whose clock is off."""
        self.skew_s = skew_s
        try:
            yield
        finally:
            self.skew_s = 0.0


@contextlib.contextmanager
def seeded(clock: Clock, seed: int) -> Iterator[None]:
    """Everybody goes by this clock, and draws the same random names in each run of a seed."""
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", clock)
        patch.setattr(observe, "_write", lambda gathered: None)  # a fifth of the time
        patch.setattr(secrets, "token_hex", lambda size: chance.randbytes(size).hex())
        patch.setattr(secrets, "token_urlsafe", lambda size: chance.randbytes(size).hex()[: size * 4 // 3])
        yield


@dataclass(frozen=True)
class Stall:
    """A consumer that is not invoked for a while; None: both, in both tables, in every shard."""

    from_s: float
    to_s: float
    consumer: str | None = None
    table: str | None = None
    number: int | None = None

    def holds(self, now_s: float, consumer: str, table: str, number: int) -> bool:
        """Whether it stops this one now."""
        return self.from_s <= now_s < self.to_s and all(
            wanted is None or wanted == given
            for wanted, given in ((self.consumer, consumer), (self.table, table), (self.number, number))
        )


@dataclass
class Truth:
    """What the simulation did, and so what is right."""

    accepted: defaultdict[Tally, int] = field(default_factory=lambda: defaultdict(int))
    """What each tally should say."""
    edits: defaultdict[Tally, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Manual edits of each tally: minute, and by how much the tally is off for it."""
    unbooked: set[Tally] = field(default_factory=set)
    """Tallies with edits that no minute can be told for: looked at in the end."""
    repaired: defaultdict[Tally, int] = field(default_factory=lambda: defaultdict(int))
    """By how much repairs moved each tally."""
    alone: dict[int, float] = field(default_factory=dict)
    """When each change was accepted that was written alone and is not in its tally yet."""

    def drift(self, tally: Tally, through: float = float("inf"), after: float = -1) -> int:
        """The drift of a tally by its edits in the minutes after `after` up to `through`, and by repairs."""
        edits = sum(amount for minute, amount in self.edits[tally] if after < minute <= through)
        return edits + self.repaired[tally]


@dataclass(frozen=True)
class Plan:
    """How rough a world is. `calm`: every process does its work at once and in one go."""

    splits_per_hour: float = 4.0
    slow: float = 0.05
    """Share of changes that are committed 6 to 55 s after they were stamped."""
    late: float = 0.0
    """Share that is committed 1 to 10 minutes after."""
    gaps: float = 0.1
    """Share of records that come up to 2 s after the others of their transaction."""
    faults: float = 0.1
    """Share of invocations that die, sleep, are repeated or lose their answer."""
    skew_s: float = 2.0


CALM = Plan(splits_per_hour=0, slow=0, gaps=0, faults=0, skew_s=0)


class World:
    """One deployment on an engine of its own, and the queue of what happens next."""

    def __init__(self, engine: Engine, clock: Clock, seed: int, plan: Plan) -> None:
        self.chance, self.clock, self.plan = random.Random(seed), clock, plan
        self.wire = Wire(engine.port)
        self.settings = Settings(
            "sim-counts-table", "sim-receipts-table", "sim-ledger-table", frozenset("*"), 86400, ""
        )
        self.store = Store(self.wire, self.settings)  # type: ignore[arg-type]
        self.names = {"counts": self.settings.counts_table, "receipts": self.settings.receipts_table}
        self._create()
        self.streams = Streams(self.chance, lambda: clock.now_s)
        self.shards: Any = self.streams
        """What the sweep asks for the shards."""
        self.truth = Truth()
        self.stalls: list[Stall] = []
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self._changes = itertools.count()
        self._iterators = {table: iterator(self.wire, self.names[table]) for table in TABLES}
        self._appended_s: dict[str, float] = {}
        self._passed: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._polled: set[tuple[str, str]] = set()
        self.bucket = Bucket()
        self._handlers = {name: handler(name, self.store, self.bucket) for name in CONSUMERS}
        self.bad: defaultdict[str, int] = defaultdict(int)

    def _create(self) -> None:
        for table in (*self.names.values(), self.settings.ledger_table):
            names = ["id"] if table == self.names["receipts"] else ["PK", "SK"]
            streamed = {"StreamSpecification": {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}}
            self.wire.create_table(
                TableName=table,
                KeySchema=[
                    {"AttributeName": name, "KeyType": kind}
                    for name, kind in zip(names, ("HASH", "RANGE"), strict=False)
                ],
                AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in names],
                BillingMode="PAY_PER_REQUEST",
                **(streamed if table in self.names.values() else {}),
            )

    def close(self) -> None:
        """Close the connections."""
        self.wire.close()

    # ---- what happens next ----

    def at(self, at_s: float, what: Callable[..., object], *how: Any) -> None:
        """Do something then."""
        heapq.heappush(self._events, (at_s, next(self._numbers), what, how))

    def soon(self, after_s: float, what: Callable[..., object], *how: Any) -> None:
        """Do something in some seconds."""
        self.at(self.clock.now_s + after_s, what, *how)

    def run(self, until_s: float) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] <= until_s:
            at_s, _, what, how = heapq.heappop(self._events)
            self.clock.now_s = max(self.clock.now_s, at_s)
            what(*how)
        self.clock.now_s = max(self.clock.now_s, until_s)

    def number(self) -> int:
        """A number that no change had."""
        return next(self._changes)

    def faulty(self) -> bool:
        """Whether this invocation goes wrong."""
        return self.chance.random() < self.plan.faults

    def skewed(self) -> contextlib.AbstractContextManager[None]:
        """Another process: its clock is off by up to 2 s."""
        return self.clock.off(self.chance.uniform(-self.plan.skew_s, self.plan.skew_s))

    # ---- the streams ----

    def written(
        self, note: Callable[[Record, int], None] = lambda record, created_s: None, *, by_hand: bool = False
    ) -> list[Record]:
        """Take the records of what was just written; each will be in its shard in a moment, and then be noted."""
        taken = []
        for table in TABLES:
            while True:
                page = self.wire.get_records(ShardIterator=self._iterators[table], Limit=1000)
                self._iterators[table] = page["NextShardIterator"]
                for record in page["Records"]:
                    taken.append(record)
                    if not by_hand:
                        self._repaired(record)
                    self._send(table, record, note)
                if len(page["Records"]) < 1000:
                    break
        return taken

    def forget(self) -> None:
        """Drop the records of what was written before the streams were switched on."""
        for table in TABLES:
            page = self.wire.get_records(ShardIterator=self._iterators[table], Limit=1000)
            self._iterators[table] = page["NextShardIterator"]

    def _send(self, table: str, record: Record, note: Callable[[Record, int], None]) -> None:
        delay_s = self.chance.uniform(0, 0.2)
        if self.chance.random() < self.plan.gaps:
            delay_s = self.chance.uniform(0, 1.9)
        item = str(sorted(record["dynamodb"]["Keys"].items()))
        at_s = max(self.clock.now_s + delay_s, self._appended_s.get(item, 0))  # an item's records keep their order
        self._appended_s[item] = at_s
        self.at(at_s, self._append, table, record, note)

    def _append(self, table: str, record: Record, note: Callable[[Record, int], None]) -> None:
        shard = self.streams.append(table, record)
        note(record, shard.last_s)
        if "alone" in record:
            tally, number, amount = record["alone"]
            shard.alone[tally].append((number, amount))
        for consumer in CONSUMERS:
            self._wake(consumer, shard)

    def _repaired(self, record: Record) -> None:
        """Note what a repair moved."""
        tally, amount = moved_by("~", record)
        if tally is not None:
            self.truth.repaired[tally] += amount

    # ---- the consumers ----

    def _wake(self, consumer: str, shard: Modelled, after_s: float | None = None) -> None:
        if (consumer, shard.id) not in self._polled:
            self._polled.add((consumer, shard.id))
            self.soon(self.chance.uniform(0.5, 3) if after_s is None else after_s, self._poll, consumer, shard)

    def caught_up(self) -> bool:
        """Whether nothing waits for any consumer."""
        shards = [shard for table in TABLES for shard in self.streams.shards[table]]
        return not any(self._passed[name, shard.id] < len(shard.records) for name in CONSUMERS for shard in shards)

    def _poll(self, consumer: str, shard: Modelled) -> None:
        self._polled.discard((consumer, shard.id))
        number = self.streams.shards[shard.table].index(shard)
        held = [one.to_s for one in self.stalls if one.holds(self.clock.now_s, consumer, shard.table, number)]
        parent = shard.parent
        if held:
            self._wake(consumer, shard, max(held) - self.clock.now_s + self.chance.uniform(0, 5))
        elif parent is not None and (
            self._passed[consumer, parent.id] < len(parent.records) or shard.listed_s > self.clock.now_s
        ):
            self._wake(consumer, shard, self.chance.uniform(1, 20))  # a parent is finished before its child
        elif self._passed[consumer, shard.id] < len(shard.records):
            self._deliver(consumer, shard)
            if self._passed[consumer, shard.id] < len(shard.records):
                self._wake(consumer, shard)

    def _deliver(self, consumer: str, shard: Modelled) -> None:
        """One batch, with something going wrong or not."""
        passed = self._passed[consumer, shard.id]
        start = max(0, passed - self.chance.choice((1, 5, 40))) if self.faulty() else passed
        end = min(len(shard.records), passed + self.chance.choice((self.chance.randint(1, 60), 400)))
        batch = [one for one in shard.records[start:end] if passes_filter(consumer, shard.table, one)]
        if not batch:
            self._passed[consumer, shard.id] = end
            return
        went = self._invoke(consumer, shard, batch)
        if went and not (self.faulty() and self.chance.random() < 0.3):  # or the answer is lost
            self._passed[consumer, shard.id] = end

    def _invoke(self, consumer: str, shard: Modelled, batch: list[Record]) -> bool:
        """Whether the invocation answered that it applied them."""
        process, late = self._handlers[consumer], list[tuple[str, dict[str, Any]]]()
        if self.faulty():
            client = killed(self.wire, self.chance.randrange(3), committed=self.chance.random() < 0.5)
            if self.chance.random() < 0.4:
                client = self._zombie(late)
            process = handler(consumer, replace(self.store, client=client))  # type: ignore[arg-type]
        with self.skewed():
            try:
                answer = process(event(self.names[shard.table], shard.id, batch), Context(60_000))
            except Crash:
                answer = None
        self._rolled_up(shard, self.written())
        for name, parameters in late:
            self.soon(self.chance.uniform(1, 90), self._commit, shard, name, parameters)
        if answer is not None and answer["batchItemFailures"]:
            self.bad["a consumer failed"] += 1
        return answer is not None

    def _zombie(self, late: list[tuple[str, dict[str, Any]]]) -> Watched:
        """A client whose first write is on its way when the process is taken for dead: it is committed later."""
        client = Watched(self.wire)

        def hold(number: int, name: str, parameters: dict[str, Any]) -> None:
            late.append((name, parameters))
            raise Crash

        client.before = hold
        return client

    def _commit(self, shard: Modelled, name: str, parameters: dict[str, Any]) -> None:
        with contextlib.suppress(Exception):  # as a rule the checkpoint has moved
            getattr(self.wire, name)(**parameters)
        self._rolled_up(shard, self.written())

    def _rolled_up(self, shard: Modelled, records: list[Record]) -> None:
        """What the rollup just added to tallies is what waits there of its shard, the oldest first."""
        for record in records:
            tally, left = moved_by("+", record)
            if tally is None:
                continue
            while left > 0 and shard.alone[tally]:
                number, amount = shard.alone[tally].popleft()
                del self.truth.alone[number]
                left -= amount
            if left:
                self.bad["the rollup added what was not there"] += 1


_COUNTERS: dict[str, list[Counter]] = defaultdict(list)
for _counter in counters.COUNTERS.values():
    _COUNTERS[_counter.prefix].append(_counter)


def tally_of(item: dict[str, Any]) -> Tally | None:
    """The tally that an item belongs to, by its key; None for any other item."""
    if "PK" not in item:
        return None
    prefix, _, id_ = item["PK"]["S"].partition("#")
    for counter in _COUNTERS.get(prefix, ()):
        if item["SK"]["S"] == counter.sort_key or item["SK"]["S"].startswith(f"{counter.sort_key}#"):
            return counter.name, id_
    return None


def amount_of(tally: Tally, item: dict[str, Any]) -> int:
    """The number in a tally's item."""
    counter = counters.COUNTERS[tally[0]]
    return int(item.get(counter.attribute, {"N": counter.start})["N"])


def moved_by(start: str, record: Record) -> tuple[Tally | None, int]:
    """The tally that a write with such a new nonce moved, and by how much."""
    tally = tally_of(record["dynamodb"]["Keys"])
    new, old = record["dynamodb"].get("NewImage", {}), record["dynamodb"].get("OldImage", {})
    nonce = new.get("nonce", {}).get("S", "")
    if tally is None or not nonce.startswith(start) or nonce == old.get("nonce", {}).get("S"):
        return None, 0
    return tally, amount_of(tally, new) - amount_of(tally, old)
