"""One hot key, simulated: Tally's own code while everyone plays one video or likes one post.

The simulation runs the deployed code: increments.count and children.set_child with retries, spreading, breaker and
spilling. DynamoDB (hot_table.py) and Lambda are models in virtual time. The same seed gives the same numbers. The
assumptions, and their reasons:

* A partition takes 1,000 write units and 3,000 read units a second (DynamoDB Developer Guide, "Designing partition
  keys"). The model keeps unused capacity for 1 s, on the safe side. DynamoDB keeps unused capacity for up to 300 s, but
  as "best effort" ("Burst and adaptive capacity"; re:Post, "Spiky workloads in short intervals").
* All items of the hot key are one item collection, so they share a partition. DynamoDB splits a hot partition by sort
  key after minutes (AWS Database Blog, "Scaling DynamoDB: how partitions, hot keys, and split for heat impact
  performance"). No run lasts that long, so the model splits no partition, on the safe side, too.
* Receipts have 4 partitions: a new on-demand table takes 4,000 writes a second (Developer Guide, "Warm throughput":
  12,000 reads and 4,000 writes). A table with a warm throughput has a partition for each 1,000 of WARM_WCU.
* A single write or a read takes 4 ms in the median and 11 ms at p99, after 1.5 ms of client and network. The
  distribution is lognormal; AWS says "single-digit milliseconds". A write costs 1 unit, even if its condition fails.
* Transactions lock their items for 10 to 30 ms, uniformly distributed. They prepare and commit (USENIX ATC 2023,
  "Distributed Transactions at Scale in Amazon DynamoDB"); AWS states no number. A transaction costs 2 units an item,
  one to prepare and one to commit (Developer Guide, "Transactions: capacity management").
* A transaction that meets a locked item is cancelled as TransactionConflict, and a single write fails. A transaction
  without enough capacity is cancelled as ThrottlingError. A cancelled transaction pays to prepare each item that was
  not throttled. This is an assumption, on the safe side.
* botocore makes 3 attempts in its standard mode: a throttled single write waits up to 1 s, then 2 s. botocore retries
  neither cancelled transactions nor conflicts.
* An environment of Lambda serves one request at a time. The environment that became free last serves first. If no
  environment is free, Lambda starts another. Each environment has its own Store, with its own spread and breaker. The
  report has the number of environments, which the model does not limit (Lambda adds 1,000 in 10 s to a function:
  "Lambda scaling behavior"). Cold starts and the function's CPU time are left out, so latency is the store's alone.
* Changes arrive as a Poisson process that starts at full rate, and the first changes count like all others. Each change
  has its own caller and its own key. Callers do not retry.
* The rollup is left out: it makes one transaction a second for each shard of a stream. The result adds spilled changes
  to the tally, as the rollup would.
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
COLD_WCU, WARM_WCU = 4000, 10_000  # the write units a second of a new table, and of a table with a warm throughput
HOT_ID = "hot"
QUICK_CHANGES = 2000  # of each load in a quick run


class Load(NamedTuple):
    """The changes of one key that arrive in a run. `warm`: the table of receipts has a warm throughput of WARM_WCU."""

    counter: Counter
    per_s: int
    duration_s: float
    warm: bool = False

    @property
    def name(self) -> str:
        """The load's name in the report: `plays 5,000/s warm`."""
        return f"{self.counter.name} {self.per_s:,}/s{' warm' if self.warm else ''}"


# Every load but the last two outlasts a breaker that conflicts opened (10 s). So breakers also close, and open again.
LOADS = (
    *(
        Load(counter, per_s, duration_s)
        for counter in (counters.PLAYS, counters.LIKES)
        for per_s, duration_s in ((50, 60.0), (200, 40.0), (1000, 20.0))
    ),
    Load(counters.PLAYS, 5000, 11, warm=True),
    # The last two loads are short, because they exceed the limits and need many environments.
    Load(counters.PLAYS, 5000, 3),
    Load(counters.LIKES, 5000, 3),
)


def measure(quick: bool) -> dict[str, dict[str, float]]:
    """Simulates each load. A quick run shortens each load."""
    shortened = [load._replace(duration_s=min(load.duration_s, QUICK_CHANGES / load.per_s)) for load in LOADS]
    return {load.name: simulate(load) for load in (shortened if quick else LOADS)}


@dataclass(frozen=True)
class _SeededCall(Call):
    """A call with seeded randomness."""

    chance: random.Random = field(default_factory=random.Random, kw_only=True)

    def retries(self, since_s: float | None = None, **bounds: Any) -> Retries:
        return super().retries(since_s, random=self.chance, **bounds)


def _play(call: Call, number: int) -> dict[str, Any]:
    body = {"video_id": HOT_ID, "counted": True}
    # A stranger's key has at least 22 characters.
    return increments.count(call, Increment(counters.PLAYS, HOT_ID, 1, "play", f"{number:022d}", body))[0]


def _like(call: Call, number: int) -> dict[str, Any]:
    return children.set_child(call, counters.LIKES, HOT_ID, call.caller or "", puts=True)[0]


_MAKE_CHANGE: dict[str, Callable[[Call, int], dict[str, Any]]] = {"plays": _play, "likes": _like}


def simulate(load: Load, seed: int = SEED) -> dict[str, float]:
    """Simulates a load on empty tables.

    `failed`: the share of all changes. `spilled`: the share of the accepted changes. `off by`: the tally and the
    spilled amount, less the accepted changes. `WCU each`: all billed units, for each accepted change.
    """
    hub, chance = Hub(), random.Random(f"{seed}/{load.name}")
    partitions = math.ceil((WARM_WCU if load.warm else COLD_WCU) / PARTITION_WCU_PER_S)
    tables = HotTables(hub, SETTINGS, chance, partitions)
    tally_key = tallies.key(load.counter, HOT_ID, shard=0)
    # The tally exists, because a like needs its post.
    tables.items.add((SETTINGS.counts_table, tally_key["PK"]["S"], tally_key["SK"]["S"]))
    free_environments: list[Store] = []
    latencies_s: list[float] = []
    are_spilled: list[bool] = []
    """Whether each accepted change was spilled."""
    environments = 0

    def start_environment() -> Store:
        """Returns the Store of a new execution environment, with its own spread and breaker."""
        nonlocal environments
        environments += 1
        client: Any = HotClient(tables, boto)
        spread, breaker = Spread(clock=hub.clock, random=chance), Breaker(clock=hub.clock)  # type: ignore[arg-type]
        return Store(client, SETTINGS, spread, breaker=breaker, clock=hub.clock, sleep=hub.sleep)

    def change(number: int) -> None:
        started_s, store = hub.now_s, free_environments.pop() if free_environments else start_environment()
        deadline_s = started_s + CALL_TIME_DEFAULT_S
        call = _SeededCall(store, f"user-{number}", deadline_s, f"nonce-{number}", chance=chance)
        with suppress(RetryableError):
            are_spilled.append(_MAKE_CHANGE[load.counter.name](call, number).get("visible") == "soon")
        latencies_s.append(hub.now_s - started_s)
        free_environments.append(store)

    arrives_s, number = hub.now_s, 0
    end_s = arrives_s + load.duration_s
    while (arrives_s := arrives_s + chance.expovariate(load.per_s)) < end_s:
        hub.start(lambda number=number: change(number), arrives_s)  # type: ignore[misc]
        number += 1
    with closing(dynamodb_client(**LOCAL)) as boto:
        hub.run()
    accepted, percentiles_s = len(are_spilled), statistics.quantiles(latencies_s, n=100)
    return {
        "failed": (number - accepted) / number,
        "off by": tables.tally + tables.spilled - accepted,
        "p50 ms": percentiles_s[49] * 1000,
        "p99 ms": percentiles_s[98] * 1000,
        "WCU each": tables.write_units / max(1, accepted),
        "spilled": sum(are_spilled) / max(1, accepted),
        "environments": environments,
        "conflicts": tables.conflicts,
        "throttles": tables.throttles,
    }
