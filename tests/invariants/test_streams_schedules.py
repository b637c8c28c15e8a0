"""Stream records on seeded schedules: each takes effect exactly once, however it is delivered.

Each schedule has stream shards of both tables, some of them split, with poison or without, and delivers them to both
consumers with crashes, repeats, cuts, overlaps, threads, a clock that jumps, no time and a bucket that fails.
`SCHEDULES=450 make test` runs more of them.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dev import faults
from dev.base.engine import Engine
from dev.faults import FaultProxy
from tally.dynamo import keys
from tally.dynamo.client import Store, dynamodb_client
from tally.dynamo.keys import Item
from tally.settings import Settings
from tests.conftest import create_tables
from tests.invariants.deliveries import TURNS_MAX, Deliveries
from tests.invariants.streaming import CONSUMERS, Facts, StreamWorld

SCHEDULES = int(os.environ.get("SCHEDULES", "60"))
NETWORK_SCHEDULES = SCHEDULES // 6
_numbers = itertools.count()
Sums = defaultdict[tuple[str, str, int], list[int]]


@pytest.fixture(scope="module")
def make_world(engine: Engine) -> Iterator[Callable[[str], StreamWorld]]:
    """A world with tables of its own; the client is made once for each endpoint."""
    clients = {engine.endpoint: dynamodb_client(endpoint_url=engine.endpoint)}

    def make(endpoint: str = engine.endpoint) -> StreamWorld:
        if endpoint not in clients:
            clients[endpoint] = dynamodb_client(endpoint_url=endpoint)
        names = {
            f"TALLY_{table}_TABLE": f"tally-{table.lower()}-{next(_numbers)}"
            for table in ("COUNTS", "RECEIPTS", "LEDGER")
        }
        settings = Settings.from_environment(names)
        create_tables(engine.endpoint, settings)
        return StreamWorld(Store(clients[endpoint], settings), clients[engine.endpoint])

    yield make
    for client in clients.values():
        client.close()


def shards(facts: Facts, chance: random.Random) -> list[tuple[str, str, list[dict[str, object]], str | None]]:
    """(table, stream shard, records, parent that ends first). Numbers start where they gain a digit."""
    made: list[tuple[str, str, list[dict[str, object]], str | None]] = []
    for number in range(chance.choice((1, 1, 2))):
        for table in ("receipts", "counts"):
            facts.sequence = chance.choice((0, 93, 990, 10**21 - 9, 10**39 - 30))
            length, name = chance.choice((2, 12, 30)), f"shardId-{table}-{facts.seed}-{number}"
            records = facts.receipts(length, chance.random() < 0.5) if table == "receipts" else facts.counts(length)
            if chance.randrange(3):
                made.append((table, name, records, None))
                continue
            cut = chance.randrange(len(records) + 1)  # it splits: the child goes on where the parent ends
            made.append((table, name, records[:cut], None))
            made.append((table, f"{name}-child", records[cut:], name))
    return made


def deliver_all(world: StreamWorld, seed: int, facts: Facts, chance: random.Random) -> list[Deliveries]:
    """Deliver everything to both consumers, in an order of chance; a child's shard begins when its parent is done."""
    parents: dict[tuple[str, str], Deliveries] = {}
    waiting: list[tuple[Deliveries, Deliveries | None]] = []
    for table, shard, records, parent in shards(facts, chance):
        for name in CONSUMERS:
            one = Deliveries(world, chance, name, table, shard, records)
            parents[name, shard] = one
            waiting.append((one, parents[name, parent] if parent else None))
    for _ in range(TURNS_MAX):
        ready = [one for one, parent in waiting if not one.done and (parent is None or parent.done)]
        if not ready:
            return [one for one, _ in waiting]
        chance.choice(ready).turn()
    raise AssertionError(f"schedule {seed} does not come to an end")


def check(world: StreamWorld, facts: Facts, delivered: list[Deliveries], judged: int) -> None:
    """Everything took effect once, and nothing else did; every checkpoint stands at the end of its shard."""
    assert world.tallies() == {key: amount for key, amount in facts.tallies.items() if amount}
    check_segments(world, facts, judged)
    rows = world.rows("CHECKPOINT#")
    stands = {(row["PK"]["S"], row["SK"]["S"]): _stand(row) for row in rows}
    assert stands == {
        keys.checkpoint_key(one.consumer, one.table, one.shard): _end(one.records) for one in delivered if one.records
    }
    assert world.marked() == facts.dead_letters


def check_segments(world: StreamWorld, facts: Facts, judged: int) -> None:
    """Every entry is on its minute; those of judged minutes are on later ones, and of no unlike."""
    booked: Sums = defaultdict(lambda: [0, 0])
    for (counter, target, minute), sums in world.ledger().items():
        assert minute > judged
        _add(booked, (counter, target, minute if judged < 0 else 0), sums)
    wanted: Sums = defaultdict(lambda: [0, 0])
    for (counter, target, minute), sums in facts.ledger.items():
        _add(wanted, (counter, target, minute if judged < 0 else 0), sums)
    assert {key: sums for key, sums in booked.items() if any(sums)} == {
        key: sums for key, sums in wanted.items() if any(sums)
    }
    pairs = [entry.pair for _, _, entries in world.segments() for entry in entries if entry.pair]
    assert judged < 0 or not pairs


def _add(sums: Sums, key: tuple[str, str, int], more: list[int]) -> None:
    sums[key] = [there + one for there, one in zip(sums[key], more, strict=True)]


def _stand(row: Item) -> tuple[str, ...]:
    return tuple(
        next(iter(row[name].values())) for name in ("sequence", "through", "heartbeat", "rolled") if name in row
    )


def _end(records: list[dict[str, Any]]) -> tuple[str, ...]:
    """What a checkpoint says that has passed these records: `_stand`."""
    change = records[-1]["dynamodb"]
    end = (change["SequenceNumber"], str(int(change["ApproximateCreationDateTime"])))
    for record in reversed(records):
        image = record["dynamodb"].get("NewImage") or {}
        if "rolled" in image:
            key = (image.get("PK") or image["id"])["S"]
            return (*end, key.partition("#")[2], image["rolled"]["N"])
    return end


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_each_record_takes_effect_exactly_once(make_world: Callable[..., StreamWorld], seed: int) -> None:
    world, chance = make_world(), random.Random(seed)
    facts = Facts(seed, chance)
    judged = facts.now_minute + 1 if seed % 5 == 0 else -1
    if judged > 0:
        world.put_judged(judged)
    delivered = deliver_all(world, seed, facts, chance)
    check(world, facts, delivered, judged)
    if not facts.redriven:
        return
    for _ in range(2):
        world.redrive()
    for key, amount in facts.redriven.items():
        facts.tallies[key] += amount
    assert world.tallies() == {key: amount for key, amount in facts.tallies.items() if amount}


NETWORK = {
    operation: {
        faults.LOSE_RESPONSE: 0.06,
        faults.FAIL_AFTER: 0.06,
        faults.DROP_BEFORE: 0.05,
        faults.CONFLICT: 0.08,
        faults.THROTTLE: 0.04,
    }
    for operation in ("TransactWriteItems", "UpdateItem")
}
NETWORK["GetItem"] = {faults.TRUNCATE: 0.05, faults.FAIL_BEFORE: 0.05, faults.THROTTLE: 0.05}


@pytest.fixture(scope="module")
def shared_proxy(engine: Engine) -> Iterator[FaultProxy]:
    with FaultProxy(engine.endpoint, strip_tokens=True) as running:
        yield running


@pytest.mark.parametrize("seed", range(1000, 1000 + NETWORK_SCHEDULES))
def test_each_record_takes_effect_exactly_once_over_a_network_that_fails(
    make_world: Callable[..., StreamWorld], shared_proxy: FaultProxy, seed: int
) -> None:
    """Answers are lost and nothing but the checkpoint protects: the SDK's tokens are taken away."""
    world, chance = make_world(shared_proxy.endpoint), random.Random(seed)
    facts = Facts(seed, chance)
    shared_proxy.plan = faults.seeded(seed, NETWORK)
    try:
        delivered = deliver_all(world, seed, facts, chance)
    finally:
        shared_proxy.plan = faults.no_faults
    check(world, facts, delivered, -1)
