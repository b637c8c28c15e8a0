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
* botocore makes 3 attempts in its standard mode: a throttled single write waits up to 1 s, then 2 s. It retries no
  cancelled transaction and no conflict.
* Lambda: an environment serves one request at a time. The last one that became free serves first; without a free one,
  Lambda starts another. Each has its own Store, so its spread and its breaker learn alone. The report has their number,
  without a limit (Lambda adds 1,000 in 10 s to a function: "Lambda scaling behavior"). Cold starts and the function's
  CPU time are left out: latency is that of the store.
* Arrivals are a Poisson process that starts at full rate, and the first changes count like all others. Each has another
  caller with another key, who does not retry.
* The rollup is left out: one transaction a second for each shard of a stream. What is visible soon counts as it will.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import counters
from tally.counter import Counter
from tally.counting import children, increments, tallies
from tally.counting.increments import Increment
from tally.dynamo.client import CALL_TIME_DEFAULT_S, Call, Store, dynamodb_client
from tally.dynamo.contention import Breaker, Retries, Spread
from tally.errors import RetryableError

from .clients import LOCAL, SETTINGS
from .hot_table import PARTITION_WCU_PER_S, HotClient, HotTables, Hub

SEED = 1995
COLD_WCU, WARM_WCU = 4000, 10_000
HOT_ID = "hot"
QUICK_CHANGES = 2000


class Load(NamedTuple):
    """A load: changes of one key a second, for some seconds."""

    counter: Counter
    per_s: int
    for_s: float
    warm: bool = False

    @property
    def name(self) -> str:
        """Its name in the report: `plays 5,000/s warm`."""
        return f"{self.counter.name} {self.per_s:,}/s{' warm' if self.warm else ''}"


# All but the last two last longer than a breaker stays open, so that a breaker closes and opens again.
LOADS = (
    *(
        Load(counter, per_s, for_s)
        for counter in (counters.PLAYS, counters.LIKES)
        for per_s, for_s in ((50, 60.0), (200, 40.0), (1000, 20.0))
    ),
    Load(counters.PLAYS, 5000, 11, warm=True),
    Load(counters.PLAYS, 5000, 3),  # short: these two exceed the limits, and environments pile up
    Load(counters.LIKES, 5000, 3),
)


def measure(quick: bool) -> dict[str, dict[str, float]]:
    """Simulate each load. A quick run shortens each load."""
    return {
        load.name: simulate(load._replace(for_s=min(load.for_s, QUICK_CHANGES / load.per_s)) if quick else load)
        for load in LOADS
    }


@dataclass(frozen=True)
class _SeededCall(Call):
    """A call with seeded randomness."""

    chance: random.Random = field(default_factory=random.Random, kw_only=True)

    def retries(self, since_s: float | None = None, **bounds: Any) -> Retries:
        return super().retries(since_s, random=self.chance, **bounds)


def _play(call: Call, number: int) -> dict[str, Any]:
    body = {"video_id": HOT_ID, "counted": True}
    return increments.count(call, Increment(counters.PLAYS, HOT_ID, 1, "play", f"{number:022d}", body))[0]


def _like(call: Call, number: int) -> dict[str, Any]:
    return children.set_child(call, counters.LIKES, HOT_ID, call.caller or "", True)[0]


_CHANGES: dict[str, Callable[[Call, int], dict[str, Any]]] = {"plays": _play, "likes": _like}


def simulate(load: Load, seed: int = SEED) -> dict[str, float]:
    """Simulate a load on empty tables.

    `failed` and `spilled` are shares: of all changes, and of those accepted. `off by`: the tally with what waits for
    the rollup, less what was accepted. `WCU each` has all billed units, including those of failed changes.
    """
    hub, chance = Hub(), random.Random(f"{seed}/{load.name}")
    partitions = math.ceil((WARM_WCU if load.warm else COLD_WCU) / PARTITION_WCU_PER_S)
    tables = HotTables(hub, SETTINGS, chance, partitions)
    post = tallies.key(load.counter, HOT_ID, 0)
    tables.items.add((SETTINGS.counts_table, post["PK"]["S"], post["SK"]["S"]))  # likes need their post
    free: list[Store] = []
    latencies_s: list[float] = []
    soon: list[bool] = []
    """Of each accepted change, whether it is visible soon."""
    environments = 0

    def environment() -> Store:
        """Another execution environment: what it learns is its own."""
        nonlocal environments
        environments += 1
        client: Any = HotClient(tables, boto)
        spread, breaker = Spread(clock=hub.clock, random=chance), Breaker(clock=hub.clock)  # type: ignore[arg-type]
        return Store(client, SETTINGS, spread, breaker=breaker, clock=hub.clock, sleep=hub.sleep)

    def change(number: int) -> None:
        started_s, store = hub.now_s, free.pop() if free else environment()
        deadline_s = started_s + CALL_TIME_DEFAULT_S
        call = _SeededCall(store, f"user-{number}", deadline_s, f"nonce-{number}", chance=chance)
        with suppress(RetryableError):
            soon.append(_CHANGES[load.counter.name](call, number).get("visible") == "soon")
        latencies_s.append(hub.now_s - started_s)
        free.append(store)

    at_s, number = hub.now_s, 0
    end_s = at_s + load.for_s
    while (at_s := at_s + chance.expovariate(load.per_s)) < end_s:
        hub.start(lambda number=number: change(number), at_s)  # type: ignore[misc]
        number += 1
    with closing(dynamodb_client(**LOCAL)) as boto:
        hub.run()
    accepted, cuts = len(soon), statistics.quantiles(latencies_s, n=100)
    return {
        "failed": (number - accepted) / number,
        "off by": tables.tally + tables.spilled - accepted,
        "p50 ms": cuts[49] * 1000,
        "p99 ms": cuts[98] * 1000,
        "WCU each": tables.write_units / max(1, accepted),
        "spilled": sum(soon) / max(1, accepted),
        "environments": environments,
        "conflicts": tables.conflicts,
        "throttles": tables.throttles,
    }
