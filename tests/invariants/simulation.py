"""Hours in seconds: the code as deployed, on the embedded engine, in virtual time and in modelled streams.

A seed decides everything: traffic, edits by hand, splits, crashes, stalls, sweeps that fail. What is right is known
from what the simulation did, never from what the code says.

Not modelled: in DynamoDB the parts of a transaction become visible one after the other, in the engine at once. Their
stream records do come one after the other.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import json
import random
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import Any

import pytest
from botocore.exceptions import ClientError

import counters
from tally.counting import deletion
from tally.dev.base.engine import Engine
from tally.drift import judge, rows
from tally.dynamo.client import Call, Store
from tally.dynamo.clock import CLOCK
from tally.dynamo.keys import Item
from tally.errors import ConfigurationError
from tally.series import hours
from tally.series.progress import PROGRESS
from tally.settings import Settings
from tally.streams import dead_letters, fold, watermark
from tally.streams.dead_letters import DeadLetterMarker
from tally.streams.fold import Effect
from tally.streams.record import CounterIndex, PoisonRecordError, booking_minute_of
from tests.conftest import create_tables
from tests.contexts import LambdaContext
from tests.delivery import Delivery, Record
from tests.invariants.processes import Crash, WatchedClient, client_that_dies
from tests.invariants.stream_model import TABLES, ModelledShard, Streams
from tests.invariants.streaming import CONSUMERS, EngineStreams
from tests.invariants.truth import Tally, Truth, moved_by
from tests.sync_wire import SyncWire

SETTINGS = Settings("sim-counts-table", "sim-receipts-table", "sim-ledger-table", frozenset("*"), 86400, "")
START_S = 1_800_000_000 // 3600 * 3600


class Clock:
    """Wall time that only the simulation moves. `skew_s`: how far the clock of the process that runs now is off."""

    def __init__(self, now_s: float = START_S) -> None:
        self.now_s, self.skew_s = now_s, 0.0

    def __call__(self) -> float:
        return self.now_s + self.skew_s

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds

    @contextlib.contextmanager
    def with_skew(self, skew_s: float) -> Iterator[None]:
        """Run a process with a wrong clock, which no answer has corrected yet."""
        others_s = CLOCK.ahead_s
        self.skew_s, CLOCK.ahead_s = skew_s, 0.0
        try:
            yield
        finally:
            self.skew_s, CLOCK.ahead_s = 0.0, others_s


@contextlib.contextmanager
def seed_randomness(clock: Clock, seed: int) -> Iterator[None]:
    """Makes every process use this clock, and draw the same random names in each run of a seed."""
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fold, "BUCKETS", 2)  # partitions to read; test_segments reads them all
        patch.setattr(time, "time", clock)
        patch.setattr(secrets, "token_hex", lambda size: chance.randbytes(size).hex())
        patch.setattr(secrets, "token_urlsafe", lambda size: chance.randbytes(size).hex()[: size * 4 // 3])
        yield


@dataclass(frozen=True)
class Stall:
    """A consumer that is not invoked for a while. None: both consumers, in both tables, in every shard."""

    from_s: float
    to_s: float
    consumer: str | None = None
    table: str | None = None
    number: int | None = None

    def holds(self, now_s: float, consumer: str, table: str, number: int) -> bool:
        """Whether the stall stops this consumer now."""
        return self.from_s <= now_s < self.to_s and all(
            wanted is None or wanted == given
            for wanted, given in ((self.consumer, consumer), (self.table, table), (self.number, number))
        )


@dataclass(frozen=True)
class Roughness:
    """How rough a world is. `calm`: every process does its work at once, without an interruption."""

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
    kept_s: float = float("inf")
    """How long a stream keeps a record, at least. People also drop dead letters if that is not for ever."""
    deploys: bool = False
    """Whether declarations change."""
    window_s: float = 0.0
    """For how long a stream gathers records for the bookkeeper."""

    @property
    def losing(self) -> bool:
        """Whether records may be lost."""
        return self.kept_s < float("inf")


WRITES = {"PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems"}
CONFLICTS = 0.02
CALM = Roughness(splits_per_hour=0, slow=0, gaps=0, faults=0, skew_s=0)


class TimedWire(SyncWire):
    """A client whose answers say what time it truly is, as DynamoDB's do. `throttled`: partitions that take no Put."""

    def __init__(self, port: int, clock: Clock) -> None:
        super().__init__(port)
        self._clock = clock
        self.throttled: set[str] = set()
        self.conflicts: int | None = None
        """The seed by which some updates of the ledger meet another one. Threads make them: each item has a chance."""
        self._updates: defaultdict[str, int] = defaultdict(int)
        self.wrote: set[str] = set()
        """The tables that it or others have written to since somebody took the records of the streams."""

    def _call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if operation == "PutItem" and parameters["Item"].get("PK", {}).get("S") in self.throttled:
            raise ClientError({"Error": {"Code": "ProvisionedThroughputExceededException"}}, operation)
        of_ledger = operation == "UpdateItem" and parameters["TableName"] == SETTINGS.ledger_table
        if of_ledger and self.conflicts is not None and self._meets_another(parameters["Key"]):
            raise ClientError({"Error": {"Code": "TransactionConflictException"}}, operation)
        if operation in WRITES:
            writes = parameters.get("TransactItems", [{operation: parameters}])
            self.wrote |= {one["TableName"] for write in writes for one in write.values()}
        answer = super()._call(operation, parameters)
        date = formatdate(self._clock.now_s, usegmt=True)
        CLOCK.hear(date, self._clock())
        return answer | {"ResponseMetadata": {"HTTPHeaders": {"date": date}}}

    def _meets_another(self, key: Item) -> bool:
        name = str(key)
        self._updates[name] += 1
        chance = random.Random(f"{self.conflicts} {name} {self._updates[name]}").random()
        return key != PROGRESS and chance < CONFLICTS


class World(EngineStreams):
    """One deployment, and the queue of what happens next. `series`: whether its sweep folds the hours too, and removes
    the children of removed parents.

    `shards`: how many each stream has at first; None: as chance has it. `store`: of this engine, with streams of both
    tables; None: the engine has no tables yet.
    """

    series = False
    wire_type = TimedWire
    wire: TimedWire

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        seed: int,
        plan: Roughness,
        shards: int | None = None,
        store: Store | None = None,
    ) -> None:
        wire = self.wire_type(engine.port, clock)
        if store is None:
            create_tables(engine.endpoint, SETTINGS, TABLES)
            store = Store(wire, SETTINGS)  # type: ignore[arg-type]
        super().__init__(store, wire)
        self.chance, self.clock, self.plan, self.settings = random.Random(seed), clock, plan, store.settings
        self.streams = Streams(self.chance, lambda: clock.now_s, shards)
        self.truth = Truth()
        self.stalls: list[Stall] = []
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self._changes = itertools.count()
        self._appended_s: dict[str, float] = {}
        self._ways: dict[tuple[str, str], Delivery] = {}
        self._polled: set[tuple[str, str]] = set()
        self.bad: defaultdict[str, int] = defaultdict(int)
        self.unreadable: set[tuple[str, str]] = set()
        """Consumers, and targets whose receipts they cannot read now."""
        self._noted: set[str] = set()
        for name, handler in self.handlers.items():
            read = dict(handler.consumer.read)
            read["receipts"] = functools.partial(self._read, name)
            handler.consumer = replace(handler.consumer, read=read)

    def sweep(self, client: Any = None) -> None:
        """Run the sweep, as operations/sweep does each minute."""
        store = self.with_client(client or self.wire)
        seen = watermark.read(store)
        now_s = CLOCK.now_s()
        if not seen.is_too_fresh(store.settings, now_s):
            still = replace(store, clock=lambda: 0.0)  # however busy this machine is
            watermark.advance(still, self.streams, seen, now_s)  # type: ignore[arg-type]
            judge.judge(store, seen, now_s, until_s=float("inf"))
        if self.series:
            hours.sum_up(store, watermark.last_judged_minute(store), until_s=float("inf"))
            deletion.sweep(store, counters.COUNTERS, float("inf"))

    def drifts(self) -> dict[Tally, int]:
        """The rows that are listed."""
        return {(row.counter, row.target): row.drift for row in rows.all_rows(self.store)}

    # ---- what happens next ----

    def schedule_at(self, at_s: float, what: Callable[..., object], *how: Any) -> None:
        """Schedule an action at a time."""
        heapq.heappush(self._events, (at_s, next(self._numbers), what, how))

    def schedule_in(self, after_s: float, what: Callable[..., object], *how: Any) -> None:
        """Schedule an action after some seconds."""
        self.schedule_at(self.clock.now_s + after_s, what, *how)

    def run_until(self, until_s: float) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] <= until_s:
            at_s, _, what, how = heapq.heappop(self._events)
            self.clock.now_s = max(self.clock.now_s, at_s)
            what(*how)
        self.clock.now_s = max(self.clock.now_s, until_s)

    def number(self) -> int:
        """Returns a number that no change has had."""
        return next(self._changes)

    def is_faulty(self) -> bool:
        """Whether this invocation goes wrong."""
        return self.chance.random() < self.plan.faults

    def skewed(self) -> contextlib.AbstractContextManager[None]:
        """Run another process, whose clock is off by up to 2 s."""
        return self.clock.with_skew(self.chance.uniform(-self.plan.skew_s, self.plan.skew_s))

    # ---- the streams ----

    def take_written(
        self, note: Callable[[Record, int], None] = lambda record, created_s: None, *, by_hand: bool = False
    ) -> list[Record]:
        """Take the records of what was just written; each will be in its shard in a moment, and then be noted."""
        taken: list[Record] = []
        wrote, self.wire.wrote = self.wire.wrote, set()
        for table in TABLES:
            for record in map(_in_order, self.records(table) if self.name(table) in wrote else ()):
                taken.append(record)
                if not by_hand:
                    self._note_repair(record)
                self._send(table, record, note)
        return taken

    def _send(self, table: str, record: Record, note: Callable[[Record, int], None]) -> None:
        delay_s = self.chance.uniform(0, 0.2)
        if self.chance.random() < self.plan.gaps:
            delay_s = self.chance.uniform(0, 1.9)
        item = str(sorted(record["dynamodb"]["Keys"].items()))
        at_s = max(self.clock.now_s + delay_s, self._appended_s.get(item, 0))  # an item's records keep their order
        self._appended_s[item] = at_s
        self.schedule_at(at_s, self._append, table, record, note)

    def _append(self, table: str, record: Record, note: Callable[[Record, int], None]) -> None:
        shard = self.streams.append(table, record)
        note(record, shard.last_s)
        for tally, number, amount in record.get("alone", ()):
            shard.alone[tally].append((number, amount))
        for consumer in CONSUMERS:
            self._wake(consumer, shard)

    def _note_repair(self, record: Record) -> None:
        """Note what a repair moved."""
        tally, amount = moved_by("~", record)
        if tally is not None:
            self.truth.repaired[tally] += amount

    # ---- the consumers ----

    def _wake(self, consumer: str, shard: ModelledShard, after_s: float | None = None) -> None:
        if (consumer, shard.id) not in self._polled:
            self._polled.add((consumer, shard.id))
            if after_s is None:
                after_s = self.chance.uniform(0.5, 3) + self.plan.window_s * (consumer == "bookkeeper")
            self.schedule_in(after_s, self._poll, consumer, shard)

    def caught_up(self) -> bool:
        """Whether nothing waits for any consumer."""
        shards = [shard for table in TABLES for shard in self.streams.shards[table]]
        return all(self.delivery_to(name, shard).is_done for name in CONSUMERS for shard in shards)

    def delivery_to(self, consumer: str, shard: ModelledShard) -> Delivery:
        """Returns how far a consumer is in a shard."""
        name = consumer, shard.id
        if name not in self._ways:
            self._ways[name] = self.delivery(consumer, shard.table, shard.id, shard.records)
        return self._ways[name]

    def _poll(self, consumer: str, shard: ModelledShard) -> None:
        self._polled.discard((consumer, shard.id))
        number = self.streams.shards[shard.table].index(shard)
        parent = shard.parent
        self._trim(consumer, shard)
        if any(one.holds(self.clock.now_s, consumer, shard.table, number) for one in self.stalls):
            self._wake(consumer, shard, self.chance.uniform(0, 10))
        elif parent is not None and (
            not self.delivery_to(consumer, parent).is_done or shard.listed_s > self.clock.now_s
        ):
            self._wake(consumer, shard, self.chance.uniform(1, 20))  # a parent is finished before its child
        elif not self.delivery_to(consumer, shard).is_done:
            self._deliver(consumer, shard)
            if not self.delivery_to(consumer, shard).is_done:
                self._wake(consumer, shard)

    def _trim(self, consumer: str, shard: ModelledShard) -> None:
        """Trim records beyond the retention, sooner or later. A consumer that has not seen them loses them."""
        old_s = self.clock.now_s - self.plan.kept_s - (self.chance.uniform(0, 300) if self.plan.losing else 0)
        made = map(_made_s, shard.records[shard.trimmed :])
        shard.trimmed += sum(1 for _ in itertools.takewhile(lambda made_s: made_s < old_s, made))
        way = self.delivery_to(consumer, shard)
        for record in shard.records[way.position : shard.trimmed] if consumer == "rollup" else ():
            for tally, number, amount in record.get("alone", ()):
                if (number, amount) not in shard.alone[tally]:
                    continue  # it was added, and the answer was lost; or it is a dead letter
                shard.alone[tally].remove((number, amount))
                minute = booking_minute_of(record["dynamodb"]["NewImage"], self.settings.minute_of(_made_s(record)))
                self.truth.note_edit(tally, minute, -amount)
                self.truth.lost.add(number)
        way.position = max(way.position, shard.trimmed)

    def _deliver(self, consumer: str, shard: ModelledShard) -> None:
        """Deliver one batch, with a fault or without."""
        way = self.delivery_to(consumer, shard)
        back = min(way.position - shard.trimmed, self.chance.choice((1, 5, 40))) if self.is_faulty() else 0
        size = self.chance.choice((self.chance.randint(1, 60), 400))
        batch = way.batch(size, back)
        went = not batch or self._invoke(consumer, shard, batch)
        if went and not (batch and self.is_faulty() and self.chance.random() < 0.3):  # or the answer is lost
            way.advance(None, size)

    def _invoke(self, consumer: str, shard: ModelledShard, batch: list[Record]) -> bool:
        """Invoke a consumer. Returns whether it answered that it applied the records."""
        process, late = self.handlers[consumer], list[tuple[str, dict[str, Any]]]()
        if self.is_faulty():
            client = client_that_dies(self.wire, self.chance.randrange(3), committed=self.chance.random() < 0.5)
            if self.chance.random() < 0.4:
                client = self._zombie(late)
            process = self.handler(consumer, self.with_client(client), process.declared.by_name)
        with self.skewed():
            try:
                failed, answered = self.delivery_to(consumer, shard).invoke(batch, LambdaContext(60_000), process), True
            except (Crash, ConfigurationError):  # of a declaration that does not fit: Lambda tries again
                failed, answered = None, False
        self._note_rollup(shard, self.take_written())
        self._note_dead_letters()
        for name, parameters in late:
            self.schedule_in(self.chance.uniform(1, 90), self._commit, shard, name, parameters)
        if failed is not None:
            self.bad["a consumer failed"] += 1
        return answered

    # ---- dead letters ----

    def _read(self, consumer: str, declared: CounterIndex, record: Record) -> Sequence[Effect]:
        """Read a receipt as a consumer does, unless its code has a bug now."""
        if any((consumer, tally[1]) in self.unreadable for tally, _, _ in record.get("alone", ())):
            raise PoisonRecordError("a bug")
        return CONSUMERS[consumer].read["receipts"](declared, record)

    def _note_dead_letters(self) -> None:
        """Note what each new dead letter leaves out, on the minute of its record."""
        if self.bucket.objects.keys() <= self._noted:
            return
        for marker in dead_letters.list_markers(Call(self.with_client(self.wire))):
            if marker.object not in self._noted:
                self._noted.add(marker.object)
                if "alone" not in json.loads(self.bucket.objects[marker.object])["record"]:
                    continue  # a test made it itself
                consumer, tally, number, amount, made_s, shard = self._dead_letter(marker)
                if consumer == "bookkeeper":
                    self.truth.edits[tally].append((self.settings.minute_of(made_s), amount))
                    continue
                self.truth.note_edit(tally, self.settings.minute_of(made_s), -amount)
                (of,) = (one for one in self.streams.shards["receipts"] if one.id == shard)
                of.alone[tally].remove((number, amount))

    def _dead_letter(self, marker: DeadLetterMarker) -> tuple[str, Tally, int, int, int, str]:
        kept = json.loads(self.bucket.objects[marker.object])
        [((counter, id_), number, amount)] = kept["record"]["alone"]
        made_s = kept["record"]["dynamodb"]["ApproximateCreationDateTime"]
        return kept["consumer"], (counter, id_), number, amount, made_s, kept["shard"]

    def redrive_all(self, off_s: float = 0) -> None:
        """Redrive every dead letter, by a process with a wrong clock."""
        self.take_written()
        self._note_dead_letters()
        for marker in list(dead_letters.list_markers(Call(self.with_client(self.wire)))):
            consumer, tally, number, amount, made_s, _ = self._dead_letter(marker)
            receipt = json.loads(self.bucket.objects[marker.object])["record"]["dynamodb"]["NewImage"]
            booked = booking_minute_of(receipt, self.settings.minute_of(made_s))
            even = booked < watermark.pending_resume_minute(self.store, watermark.read(self.store))
            with self.clock.with_skew(off_s):
                assert self.redrive(markers=[marker]) == ["applied"]
            if not even:  # else its other half is forgotten
                moved = amount if consumer == "rollup" else -amount
                self.truth.edits[tally].append((self.settings.minute_of(self.clock.now_s), moved))
            if consumer == "rollup":
                self.truth.off[tally] += amount
                del self.truth.alone[number]
            self.take_written(by_hand=even)

    def drop_some(self) -> None:
        """Let the objects of some dead letters expire, and discard these dead letters."""
        self.take_written()
        self._note_dead_letters()
        for marker in list(dead_letters.list_markers(Call(self.with_client(self.wire)))):
            if self.chance.random() < 0.5:
                consumer, _, number, *_ = self._dead_letter(marker)
                del self.bucket.objects[marker.object]
                dead_letters.discard(Call(self.with_client(self.wire)), marker)
                self.truth.lost |= {number} if consumer == "rollup" else set()

    def _zombie(self, late: list[tuple[str, dict[str, Any]]]) -> WatchedClient:
        """Returns a client whose first write is committed late, after its process seems dead."""
        client = WatchedClient(self.wire)

        def hold(number: int, name: str, parameters: dict[str, Any]) -> None:
            late.append((name, parameters))
            raise Crash

        client.before = hold
        return client

    def _commit(self, shard: ModelledShard, name: str, parameters: dict[str, Any]) -> None:
        with contextlib.suppress(Exception):  # as a rule the checkpoint has moved
            getattr(self.wire, name)(**parameters)
        self._note_rollup(shard, self.take_written())
        self._note_dead_letters()

    def _note_rollup(self, shard: ModelledShard, records: list[Record]) -> None:
        """Note what the rollup just added to tallies: the oldest waiting changes of its shard."""
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


def _made_s(record: Record) -> float:
    return float(record["dynamodb"]["ApproximateCreationDateTime"])


def _in_order(value: Any) -> Any:
    """Returns a record with sorted maps. The engine sorts them at random, and the rollup writes in their order."""
    return {name: _in_order(value[name]) for name in sorted(value)} if isinstance(value, dict) else value
