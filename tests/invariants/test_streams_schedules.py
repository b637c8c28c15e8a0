"""On seeded schedules each stream record takes effect exactly once, however Lambda delivers it.

Each schedule has stream shards of both tables, some of which split. Both consumers get the records in random batches,
repeatedly and concurrently, while processes crash, run out of time or have a wrong clock, and a bucket fails.
unit/test_booking_minutes.py tests on which minute each kind of record is booked. `SCHEDULES=450 make test` runs 450
schedules.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

import counters
from tally.counting import tallies
from tally.dynamo import clock, keys
from tally.streams import consumer as streams
from tests import faults
from tests.contexts import LambdaContext
from tests.delivery import Delivery, Record
from tests.faults import FaultProxy
from tests.invariants.processes import Crash, WatchedClient, client_that_dies, interrupted_client
from tests.invariants.stream_records import MINUTE, heartbeat, like, play, record
from tests.invariants.streaming import CONSUMERS, LONG_TEXT, StreamWorld
from tests.tiers import marked_long

SCHEDULES = int(os.environ.get("SCHEDULES", "60"))
QUICK = SCHEDULES if "SCHEDULES" in os.environ else 12
"""How many schedules `make test` runs."""
TURNS_MAX = 400  # most schedules take fewer than 40 turns
CRASHED = "crashed"


@dataclass
class RecordMaker:
    """Makes the records of stream shards, and notes the right effect of each."""

    chance: random.Random
    tallies: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """What the rollup must have added: (counter, target) -> amount."""
    ledger: defaultdict[tuple[str, str, int], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    """What the bookkeeper must have booked: (counter, target, minute) -> expected, observed."""
    dead_letters: dict[str, set[str]] = field(default_factory=lambda: {name: set() for name in CONSUMERS})
    """Sequence numbers of the records that must become dead letters, by consumer."""
    sequence: int = 0

    def records(self, table: str, length: int) -> list[Record]:
        """Makes the records of one shard. Sequence numbers may gain a digit, so that their order as texts is wrong."""
        self.sequence = self.chance.choice((0, 93, 990, 10**21 - 9, 10**39 - 30))
        kinds = (
            [self.receipt] * 5 + [self.poison, self.expiry_or_heartbeat]
            if table == "receipts"
            else [self.child, self.removed_child, self.moved_tally]
        )
        records = []
        for _ in range(length):
            self.sequence += self.chance.choice((1, 1, 1, 2, 7))
            records.append(self.chance.choice(kinds)())
        return records

    def receipt(self) -> Record:
        """Makes the record of a change in one of three minutes. A batch often has two minutes for one tally."""
        is_spilled, target = self.chance.random() < 0.8, self._target()
        minute, amount = MINUTE + self.chance.choice((-1, 0, 0, 1)), self.chance.choice((1, 1, 1, 3, -2, 10**15))
        new_record = play(self.sequence, target, amount, minute, rollup={"BOOL": is_spilled})
        new_record["eventName"] = self.chance.choice(("INSERT", "INSERT", "MODIFY"))  # MODIFY: over an expired receipt
        self.tallies["plays", target] += amount * is_spilled
        self.ledger["plays", target, minute][0] += amount
        return new_record

    def poison(self) -> Record:
        """Makes a receipt that is malformed, of an undeclared counter, or with a target that DynamoDB rejects."""
        new_record, consumers = self.chance.choice((
            (play(self.sequence, amount="1.5"), CONSUMERS),
            (play(self.sequence, counter={"S": "retired"}), CONSUMERS),
            (record(self.sequence, "UPSERT", {}), CONSUMERS),
            (play(self.sequence, LONG_TEXT), ["rollup"]),
        ))  # fmt: skip
        for name in consumers:
            self.dead_letters[name].add(str(self.sequence))
        # The bookkeeper's segments have no key with an id, so the bookkeeper books a play of LONG_TEXT.
        self.ledger["plays", LONG_TEXT, MINUTE][0] += "bookkeeper" not in consumers
        return new_record

    def expiry_or_heartbeat(self) -> Record:
        """Makes the record of an expiry or of a heartbeat, which has no effect."""
        expired = record(self.sequence, "REMOVE", {"Keys": {"id": {"S": "tally#x"}}})
        return self.chance.choice((expired, heartbeat(self.sequence)))

    def child(self) -> Record:
        """Makes the record of a new like, which may have spilled."""
        is_spilled = self.chance.random() < 0.5
        self.tallies["likes", "p"] += is_spilled
        self.ledger["likes", "p", MINUTE][0] += 1
        return like(self.sequence, f"u{self.sequence}", rollup={"BOOL": is_spilled})

    def removed_child(self) -> Record:
        """Makes the record of a removed like."""
        self.ledger["likes", "p", MINUTE][0] -= 1
        return like(self.sequence, f"u{self.sequence}", "REMOVE")

    def moved_tally(self) -> Record:
        """Makes the record of a tally that a change moved."""
        target, old, new = self._target(), self.chance.randrange(50), self.chance.randrange(50)
        key = tallies.key(counters.PLAYS, target, 0)
        stamp = {"at": {"N": str(MINUTE)}, "nonce": {"S": str(self.sequence)}}
        images = {"OldImage": key | {"play_count": {"N": str(old)}}, "NewImage": key | {"play_count": {"N": str(new)}}}
        images["NewImage"] |= stamp
        self.ledger["plays", target, MINUTE][1] += new - old
        return record(self.sequence, "MODIFY", {"Keys": key, **images})

    def _target(self) -> str:
        return f"v{self.chance.randrange(4)}"


class Deliveries(Delivery):
    """Delivers the records of one stream shard to one consumer at least once, batch after batch, with random faults."""

    def __init__(
        self, world: StreamWorld, chance: random.Random, consumer: str, table: str, shard: str, records: list[Record]
    ) -> None:
        super().__init__(world.handler(consumer), world.name(table), shard, records)
        self.world, self.chance, self.consumer, self.table = world, chance, consumer, table
        self.size = 0
        """After a crash, the size of the next batch, because Lambda bisects a failed batch; 0: any size."""

    def turn(self) -> None:
        """Delivers one batch, perhaps with earlier records, under a random fault."""
        size = self.size or self.chance.choice((2, 10, 25, 60))
        batch = self.batch(size, repeats=self.chance.choice((0, 0, 0, 1, 5, 40)))
        if self.chance.randrange(6) == 0:
            batch = batch + self.chance.sample(batch, len(batch) // 2)  # some records are twice in one batch
        if self.chance.randrange(6) == 0:
            self.chance.shuffle(batch)  # a consumer sorts the records of a batch
        self.size = 0
        answer = self.chance.choice(FAULTS)(self, batch)
        if answer is CRASHED:
            return  # Lambda delivers the records once more
        if self.chance.randrange(2):  # the response is lost, so Lambda repeats the batch
            answer = self.run(batch)
        self.advance(answer, size)
        if answer is not None:  # a consumer may fail only at a record that its checkpoint does not cover
            passed = self.records[: self.position]
            assert all(int(record["dynamodb"]["SequenceNumber"]) <= self.checkpoint for record in passed)

    @property
    def checkpoint(self) -> int:
        """The sequence number of the consumer's checkpoint."""
        return int(self.world.checkpoint(self.consumer, self.table, self.shard).get("sequence", "-1"))

    def run(self, batch: list[Record], client: WatchedClient | None = None) -> str | None:
        """Delivers a batch to a process that may crash. Returns the sequence number that failed, None, or CRASHED."""
        try:
            process = self.world.handler(self.consumer, self.world.with_client(client))
            return self.invoke(batch, LambdaContext(), process)
        except Crash:
            self.size = max(1, len(batch) // 2)
            return CRASHED

    def crash(self, batch: list[Record]) -> str | None:
        """The process dies before a commit, or after a commit before it gets the response."""
        committed, write_number = self.chance.random() < 0.7, self.chance.randrange(4)
        return self.run(batch, client_that_dies(self.world.store.client, write_number, committed=committed))

    def overtaken(self, batch: list[Record]) -> str | None:
        """Another process applies a part of the batch just before a commit."""
        write_number, part = self.chance.randrange(3), _prefix(batch, self.chance.randint(1, len(batch)))
        return self.run(batch, interrupted_client(self.world.store.client, write_number, lambda: self.run(part)))

    def two_processes(self, batch: list[Record]) -> str | None:
        """Two processes apply the batch concurrently."""
        other_thread = threading.Thread(target=self.run, args=(batch,))
        other_thread.start()
        self.run(_prefix(batch, len(batch) // 2 + 1))
        other_thread.join()
        return CRASHED  # Lambda does not know whether a process has applied the whole batch

    def out_of_time(self, batch: list[Record]) -> str | None:
        """The time of the invocation ends in the middle of the batch."""
        write_number, now_s = self.chance.randrange(3), [time.monotonic()]

        def pass_time() -> None:
            now_s[0] += 1000

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(streams, "time", SimpleNamespace(time=time.time, monotonic=lambda: now_s[0]))
            return self.run(batch, interrupted_client(self.world.store.client, write_number, pass_time))

    def bucket_fails(self, batch: list[Record]) -> str | None:
        """A put of a dead letter into S3 fails once."""
        self.world.bucket.failing_puts = 1
        answer = self.run(batch)
        self.world.bucket.failing_puts = 0
        return answer

    def clock_jumps(self, batch: list[Record]) -> str | None:
        """The clock is hours off."""
        offset_s = self.chance.choice((-7200, 7200, 10**6))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(clock, "now_s", lambda: time.time() + offset_s)
            return self.run(batch)


FAULTS = (
    *[Deliveries.run] * 2, *[Deliveries.crash] * 3, Deliveries.overtaken, Deliveries.two_processes,
    Deliveries.out_of_time, Deliveries.bucket_fails, Deliveries.clock_jumps,
)  # fmt: skip


def _prefix(batch: list[Record], length: int) -> list[Record]:
    """Returns the first records of a batch. Lambda never leaves a gap."""
    return sorted(batch, key=lambda record: int(record["dynamodb"]["SequenceNumber"]))[:length]


def deliver_all(world: StreamWorld, maker: RecordMaker, chance: random.Random) -> list[Deliveries]:
    """Delivers every record to both consumers in a random order. A child shard begins when its parent is done."""
    deliveries: list[tuple[Deliveries, Deliveries | None]] = []
    for number in range(2 * chance.choice((1, 1, 2))):
        table, shard = ("receipts", "counts")[number % 2], f"shardId-{number}"
        records = maker.records(table, chance.choice((2, 12, 30)))
        cut = chance.choice((len(records), chance.randrange(len(records) + 1)))  # where the shard splits
        for name in CONSUMERS:
            parent = Deliveries(world, chance, name, table, shard, records[:cut])
            deliveries.append((parent, None))
            deliveries.append((Deliveries(world, chance, name, table, f"{shard}-child", records[cut:]), parent))
    for _ in range(TURNS_MAX):
        ready = [shard for shard, parent in deliveries if not shard.is_done and (parent is None or parent.is_done)]
        if not ready:
            return [shard for shard, _ in deliveries if shard.records]
        chance.choice(ready).turn()
    raise AssertionError("the schedule does not come to an end")


def run(world: StreamWorld, seed: int) -> None:
    """Runs a schedule. Asserts that each record took effect once, and that each checkpoint is at the last record."""
    chance = random.Random(seed)
    maker = RecordMaker(chance)
    deliveries = deliver_all(world, maker, chance)
    assert world.tallies() == {key: amount for key, amount in maker.tallies.items() if amount}
    assert world.ledger() == {key: sums for key, sums in maker.ledger.items() if any(sums)}
    assert world.dead_letter_sequences() == maker.dead_letters
    last_records = {
        keys.checkpoint_key(delivery.consumer, delivery.table, delivery.shard): delivery.records[-1]["dynamodb"]
        for delivery in deliveries
    }
    checkpoints = {(row["PK"]["S"], row["SK"]["S"]): row["sequence"]["S"] for row in world.rows("CHECKPOINT#")}
    assert checkpoints == {key: record["SequenceNumber"] for key, record in last_records.items()}


@pytest.fixture(scope="session")
def streamed() -> tuple[str, ...]:
    """No table needs a stream, because the tests make the records."""
    return ()


@pytest.mark.parametrize("seed", [*range(QUICK), *marked_long(range(QUICK, SCHEDULES))])
def test_each_record_takes_effect_exactly_once(stream: StreamWorld, seed: int) -> None:
    run(stream, seed)


WRITE_FAULTS = {
    faults.LOSE_RESPONSE: 0.06, faults.FAIL_AFTER: 0.06, faults.DROP_BEFORE: 0.05, faults.CONFLICT: 0.08,
    faults.THROTTLE: 0.04,
}  # fmt: skip
NETWORK_FAULTS = {
    "TransactWriteItems": WRITE_FAULTS,
    "UpdateItem": WRITE_FAULTS,
    "GetItem": {faults.TRUNCATE: 0.05, faults.FAIL_BEFORE: 0.05, faults.THROTTLE: 0.05},
}
NETWORK_SEEDS = range(1000, 1000 + SCHEDULES // 6)


@pytest.mark.parametrize("seed", [*NETWORK_SEEDS[: QUICK // 6], *marked_long(NETWORK_SEEDS[QUICK // 6 :])])
def test_each_record_takes_effect_exactly_once_over_a_network_that_fails(
    proxied_stream: StreamWorld, proxy: FaultProxy, seed: int
) -> None:
    """Responses are lost, and the SDK's tokens are removed, so only the checkpoint prevents a second effect."""
    proxy.plan = faults.random_faults(seed, NETWORK_FAULTS)
    run(proxied_stream, seed)
