"""Hands stream records to consumers as Lambda does on its worst days: at least once, and otherwise as it likes."""

from __future__ import annotations

import random
import threading
import time
from types import SimpleNamespace

import pytest

from dev.streams.delivery import Delivery, Record
from tally.counting import tallies
from tally.dynamo.client import Store
from tally.streams import consumer as streams
from tally.streams import dead_letters
from tests.invariants.processes import Crash, interrupted, killed
from tests.invariants.streaming import CONSUMERS, Context, StreamWorld

TURNS_MAX = 400  # of a schedule; the longest takes about a hundred
CRASHED = "crashed"


class Deliveries(Delivery):
    """Hands the records of one stream shard to one consumer: at least once, in order, and otherwise as it likes."""

    def __init__(
        self, world: StreamWorld, chance: random.Random, consumer: str, table: str, shard: str, records: list[Record]
    ) -> None:
        super().__init__(world.handler(CONSUMERS[consumer]), world.name(table), shard, records)
        self.world, self.chance, self.consumer, self.table = world, chance, consumer, table
        self.size = 0
        """Smaller after each crash, as bisecting makes it; 0: not bisected."""

    def turn(self) -> None:
        """Deliver one batch, perhaps with records from before, as many as it happens; something goes wrong or not."""
        size = self.size or self.chance.choice((2, 10, 25, 60))
        batch = self.batch(size, back=self.chance.choice((0, 0, 0, 1, 5, 40)))
        if self.chance.randrange(6) == 0:
            batch = batch + self.chance.sample(batch, len(batch) // 2)  # twice in one batch
        if self.chance.randrange(6) == 0:
            self.chance.shuffle(batch)
        answer = self.chance.choice(FAULTS)(self, batch)
        if answer is CRASHED or self.chance.randrange(2):  # it crashed, or the answer is lost: delivered again
            answer = self.run(self.world.store, batch)
        self.size = 0
        self.move(answer, size)
        if answer is not None:
            assert all(self.applied(int(record["dynamodb"]["SequenceNumber"])) for record in self.records[: self.at])

    def applied(self, number: int) -> bool:
        """Whether the checkpoint is at or beyond this record."""
        return number <= int(self.world.checkpoint(self.consumer, self.table, self.shard).get("sequence", "-1"))

    def run(self, store: Store, batch: list[Record]) -> str | None:
        """Deliver it to a process that may crash: the sequence number that failed, None, or CRASHED."""
        try:
            return self.invoke(batch, Context(), self.world.handler(CONSUMERS[self.consumer], store))
        except Crash:
            self.size = max(1, len(batch) // 2)
            return CRASHED


def fine(turn: Deliveries, batch: list[Record]) -> str | None:
    """Nothing goes wrong."""
    return turn.run(turn.world.store, batch)


def crash_before(turn: Deliveries, batch: list[Record]) -> str | None:
    """The process dies before a commit."""
    return crash(turn, batch, committed=False)


def crash_after(turn: Deliveries, batch: list[Record]) -> str | None:
    """The process dies after a commit, before it knows."""
    return crash(turn, batch, committed=True)


def crash(turn: Deliveries, batch: list[Record], committed: bool) -> str | None:
    """The process dies at a commit."""
    client = killed(turn.world.store.client, turn.chance.randrange(4), committed=committed)
    return turn.run(turn.world.through(client), batch)


def _prefix(batch: list[Record], length: int) -> list[Record]:
    """The first of a batch: Lambda never leaves a gap."""
    return sorted(batch, key=lambda one: int(one["dynamodb"]["SequenceNumber"]))[:length]


def moved_meanwhile(turn: Deliveries, batch: list[Record]) -> str | None:
    """Another process applies some of the batch just before a commit."""
    at, part = turn.chance.randrange(3), _prefix(batch, turn.chance.randint(1, len(batch)))
    client = interrupted(turn.world.store.client, at, lambda: turn.run(turn.world.store, part))
    return turn.run(turn.world.through(client), batch)


def two_at_once(turn: Deliveries, batch: list[Record]) -> str | None:
    """Two processes have the batch at once."""
    other = threading.Thread(target=turn.run, args=(turn.world.store, batch))
    other.start()
    turn.run(turn.world.store, _prefix(batch, len(batch) // 2 + 1))
    other.join()
    return CRASHED  # which of the two answered?


def out_of_time(turn: Deliveries, batch: list[Record]) -> str | None:
    """Time runs out in the middle."""
    store, client = turn.world.watched()
    clock = SimpleNamespace(now_s=time.monotonic())
    at = turn.chance.randrange(3)

    def after(number: int) -> None:
        if number == at:
            clock.now_s += 1000

    client.after = after
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "time", SimpleNamespace(time=time.time, monotonic=lambda: clock.now_s))
        return turn.run(store, batch)


def bucket_fails(turn: Deliveries, batch: list[Record]) -> str | None:
    """S3 fails once."""
    turn.world.bucket.failing = 1
    answer = turn.run(turn.world.store, batch)
    turn.world.bucket.failing = 0
    return answer


def clock_jumps(turn: Deliveries, batch: list[Record]) -> str | None:
    """The wall clock is hours off."""
    offset = turn.chance.choice((-7200, 7200, 10**6))
    with pytest.MonkeyPatch.context() as patch:
        moved = SimpleNamespace(time=lambda: time.time() + offset, monotonic=time.monotonic)
        for module in (streams, tallies, dead_letters):
            patch.setattr(module, "time", moved)
        return turn.run(turn.world.store, batch)


FAULTS = (
    fine, fine, crash_before, crash_after, crash_after, moved_meanwhile, two_at_once, out_of_time, bucket_fails,
    clock_jumps,
)  # fmt: skip
