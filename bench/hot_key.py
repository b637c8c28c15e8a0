"""One hot key, simulated: Tally's own code while everyone plays one video or likes one post.

The simulation runs the deployed code: increments.count and children.set_child with retries, spreading, breaker and
spilling. The other side is a model of DynamoDB (hot_table.py) and of Lambda in virtual time. The
same seed gives the same numbers. The assumptions, and their reasons:

* Partitions: one takes 1,000 write units and 3,000 read units a second (DynamoDB Developer Guide, "Designing partition
  keys"). It keeps unused capacity for 1 s. DynamoDB keeps it for up to 300 s, but as "best effort" ("Burst and adaptive
  capacity"; re:Post, "Spiky workloads in short intervals"). 1 s is the safe side.
* All items of the hot key are one item collection, so they share a partition. DynamoDB splits a hot partition by sort
  key after minutes (AWS Database Blog, "Scaling DynamoDB: how partitions, hot keys, and split for heat impact
  performance"). No run lasts that long, so the model splits nothing. That is the safe side too.
* Receipts have 4 partitions: a new on-demand table takes 4,000 writes a second (Developer Guide, "Warm throughput":
  12,000 reads and 4,000 writes). A warm throughput of WARM_WCU gives them as many partitions as it needs.
* A single write takes 4 ms in the median and 11 ms at p99, after 1.5 ms of client and network. The distribution is
  lognormal; AWS says "single-digit milliseconds". It costs 1 unit, even if its condition fails.
* Transactions hold their items for 10 to 30 ms, uniform. They prepare and commit (USENIX ATC 2023, "Distributed
  Transactions at Scale in Amazon DynamoDB"); AWS states no number. They cost 2 units an item, one for each step
  (Developer Guide, "Transactions: capacity management").
* A transaction that meets a held item is cancelled as TransactionConflict; a single write is refused. A transaction
  without enough capacity is cancelled as ThrottlingError. A cancelled transaction pays to prepare each item that was
  not throttled. This is an assumption, on the safe side.
* botocore: its standard mode decides, with its own classes. It makes 3 attempts; a throttled single write waits up to
  1 s, then 2 s. It retries no cancelled transaction and no conflict.
* Lambda: an environment serves one request at a time. The last one that became free serves first; without a free one,
  Lambda starts another. Each has its own Store, so its spread and its breaker learn alone. The report has their number,
  without a limit (Lambda adds 1,000 in 10 s to a function: "Lambda scaling behavior"). Cold starts and the function's
  CPU time are left out: latency is that of the store.
* Arrivals are a Poisson process that starts at full rate, and the first changes count like all others. Each has another
  caller with another key, who does not retry.
* Rollup: each partition (a stream shard) has one reader. It polls every 250 ms, as Lambda does, and waits at most 1 s
  for 1,000 records; folding takes 20 µs a record. One transaction of the tally's item and the checkpoint adds a batch;
  it pays, conflicts and is throttled like any other. "Catch-up" is the time from the last answer until the tally equals
  the number of accepted changes.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import counters
from tally.counter import Counter
from tally.counting import children, increments, tallies
from tally.counting.increments import Increment
from tally.dynamo.client import CALL_TIME_DEFAULT_S, Call, Store, dynamodb_client
from tally.dynamo.contention import Breaker, Retries, Spread
from tally.errors import RetryableError
from tally.streams.fold import StreamPlace
from tally.streams.rollup import shard_of

from .clients import SETTINGS
from .hot_table import PARTITION_WCU_PER_S, HotClient, HotTables, Hub, Partition

SEED = 1995
COLD_WCU = 4000
WARM_WCU = 10_000
HOT_ID = "hot"
POLL_S, BATCH_S, BATCH_RECORDS, FOLD_S = 0.25, 1.0, 1000, 20e-6
REDELIVERY_S = 1.0
QUICK_CHANGES = 2000
SETTLING_S_MAX = 120.0  # later than that, the rollup did not catch up


class Heat(NamedTuple):
    """A load: changes of one key a second, for some seconds."""

    counter: Counter
    per_s: int
    for_s: float
    warm: bool = False

    @property
    def name(self) -> str:
        """Its name in the report: `plays 5,000/s warm`."""
        return f"{self.counter.name} {self.per_s:,}/s{' warm' if self.warm else ''}"


# Each lasts longer than a breaker stays open, so that it closes and opens again.
HEATS = (
    *(
        Heat(counter, per_s, for_s)
        for counter in (counters.PLAYS, counters.LIKES)
        for per_s, for_s in ((50, 60.0), (200, 40.0), (1000, 20.0))
    ),
    Heat(counters.PLAYS, 5000, 11, warm=True),
    Heat(counters.PLAYS, 5000, 3),  # short: these two exceed the limits, and environments pile up
    Heat(counters.LIKES, 5000, 3),
)


def measure(quick: bool) -> dict[str, dict[str, float]]:
    """Simulate one heat after the other. If it is to be quick, each is shorter."""
    return {
        heat.name: simulate(heat._replace(for_s=min(heat.for_s, QUICK_CHANGES / heat.per_s)) if quick else heat)
        for heat in HEATS
    }


@dataclass(frozen=True)
class _Invocation(Call):
    """A call with seeded randomness."""

    chance: random.Random = field(default_factory=random.Random, kw_only=True)

    def retries(self, since_s: float | None = None, **bounds: Any) -> Retries:
        return super().retries(since_s, random=self.chance, **bounds)


@dataclass
class _Run:
    """The state of one simulation."""

    heat: Heat
    hub: Hub
    chance: random.Random
    tables: HotTables
    free: list[Store] = field(default_factory=list)
    environments: int = 0
    latencies_s: list[float] = field(default_factory=list)
    accepted: int = 0
    spilled: int = 0
    under_way: int = 0
    to_come: int = 0
    last_answer_s: float = 0.0
    right_s: float = math.inf

    def go(self) -> None:
        """Start every change, and run until the tally is right."""
        heat, at_s, number = self.heat, self.hub.now_s, 0
        end_s = at_s + heat.for_s
        while (at_s := at_s + self.chance.expovariate(heat.per_s)) < end_s:
            self.hub.start(lambda number=number: self._change(number), at_s)  # type: ignore[misc]
            number += 1
        self.to_come = number
        for index, partition in enumerate(self.tables.partitions()):
            self.hub.start(_Rollup(self, partition, index).go)
        self.hub.run()

    def done(self) -> bool:
        """Whether the run is over. Notes the moment when the tally became right."""
        if self.to_come or self.under_way:
            return False
        if self.tables.tally == self.accepted and self.right_s == math.inf:
            self.right_s = self.hub.now_s
        return self.right_s < math.inf or self.hub.now_s > self.last_answer_s + SETTLING_S_MAX

    def _change(self, number: int) -> None:
        self.to_come -= 1
        self.under_way += 1
        started_s = self.hub.now_s
        store = self.free.pop() if self.free else self._environment()
        try:
            body = _CHANGES[self.heat.counter.name](self.call(store, number), number)
        except RetryableError:
            pass
        else:
            self.accepted += 1
            self.spilled += body.get("visible") == "soon"
        self.latencies_s.append(self.hub.now_s - started_s)
        self.free.append(store)
        self.under_way -= 1
        self.last_answer_s = self.hub.now_s
        self.done()

    def _environment(self) -> Store:
        self.environments += 1
        clock, spread = self.hub.clock, Spread(clock=self.hub.clock, random=self.chance)  # type: ignore[arg-type]
        client: Any = HotClient(self.tables)
        return Store(client, SETTINGS, spread, breaker=Breaker(clock=clock), clock=clock, sleep=self.hub.sleep)

    def call(self, store: Store, number: int) -> Call:
        """The call of the caller with this number, in an environment."""
        deadline_s = self.hub.now_s + CALL_TIME_DEFAULT_S
        return _Invocation(store, f"user-{number}", deadline_s, f"nonce-{number}", chance=self.chance)


def _play(call: Call, number: int) -> dict[str, Any]:
    key = f"{number:022d}"
    body = {"video_id": HOT_ID, "counted": True}
    return increments.count(call, Increment(counters.PLAYS, HOT_ID, 1, "play", key, body))[0]


def _like(call: Call, number: int) -> dict[str, Any]:
    return children.set_child(call, counters.LIKES, HOT_ID, call.caller or "", True)[0]


_CHANGES: dict[str, Callable[[Call, int], dict[str, Any]]] = {"plays": _play, "likes": _like}


@dataclass
class _Rollup:
    """A model of the rollup consumer of one stream shard: its polls, its batches and their transactions."""

    run: _Run
    partition: Partition
    index: int

    def go(self) -> None:
        """Poll, wait for a batch, add it; until the run is over."""
        hub, stream = self.run.hub, self.partition.stream
        while not self.run.done():
            hub.sleep(POLL_S)
            if not stream:
                continue
            first_s = stream[0][0]
            if len(stream) < BATCH_RECORDS and hub.now_s < first_s + BATCH_S:
                continue
            batch = stream[:BATCH_RECORDS]
            del stream[:BATCH_RECORDS]
            hub.sleep(FOLD_S * len(batch))
            while not self._add(sum(amount for _, amount in batch)):
                hub.sleep(REDELIVERY_S)

    def _add(self, amount: int) -> bool:
        run, counter = self.run, self.run.heat.counter
        client: Any = HotClient(run.tables)
        call = run.call(Store(client, SETTINGS, clock=run.hub.clock, sleep=run.hub.sleep), 0)
        place = StreamPlace("counts" if counter.child else "receipts", f"shardId-{self.index}")
        update = tallies.add(call, counter, HOT_ID, shard_of(counter, place), amount, 0, by=tallies.ROLLED_UP)
        checkpoint = {
            "TableName": SETTINGS.ledger_table,
            "Key": {"PK": {"S": "CHECKPOINT"}, "SK": {"S": str(self.index)}},
        }
        retries = call.retries()
        while True:
            try:
                client.transact_write_items(TransactItems=[{"Update": update}, {"Update": checkpoint}])
            except client.exceptions.TransactionCanceledException:
                if not retries.wait():
                    return False
            else:
                run.done()
                return True


def simulate(heat: Heat, seed: int = SEED) -> dict[str, float]:
    """Simulate a heat on empty tables.

    `failed` and `spilled` are shares: of all changes, and of those accepted. `WCU each` has all billed units, including
    those of failed changes and of the rollup. `catch-up s`: from the last answer until the tally was right.
    """
    hub, chance = Hub(), random.Random(f"{seed}/{heat.name}")
    partitions = math.ceil((WARM_WCU if heat.warm else COLD_WCU) / PARTITION_WCU_PER_S)
    with closing(
        dynamodb_client(region_name="eu-west-1", aws_access_key_id="none", aws_secret_access_key="none")
    ) as boto:
        tables = HotTables(hub, SETTINGS, boto, chance, partitions)
        post = tallies.key(heat.counter, HOT_ID, 0)
        tables.items.add((SETTINGS.counts_table, post["PK"]["S"], post["SK"]["S"]))  # likes need their post
        run = _Run(heat, hub, chance, tables)
        run.go()
    changes, accepted = len(run.latencies_s), max(1, run.accepted)
    cuts = statistics.quantiles(run.latencies_s, n=100)
    return {
        "failed": (changes - run.accepted) / changes,
        "p50 ms": cuts[49] * 1000,
        "p99 ms": cuts[98] * 1000,
        "WCU each": tables.write_units / accepted,
        "spilled": run.spilled / accepted,
        "catch-up s": min(SETTLING_S_MAX, run.right_s - run.last_answer_s),
        "environments": run.environments,
        "conflicts": tables.conflicts,
        "throttles": tables.throttles,
    }
