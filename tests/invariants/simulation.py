"""Simulates hours of a deployment in seconds: the real code on the embedded engine, virtual time, modelled streams.

A seed decides everything: traffic, manual edits, splits, crashes, stalls and failed sweeps. The simulation derives the
right numbers (`Truth`) from its own actions, never from the code under test. The traffic gives a record an entry that
DynamoDB's records lack, `spilled`: the tally, serial number and amount of each spilled change. So the simulation knows
which changes the rollup has added or lost.

Not modelled: in DynamoDB the writes of a transaction become visible one after the other, in the engine all at once.
The stream records of a transaction do arrive one after the other.
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
from tally.counting.tallies import REPAIR_NONCE_PREFIX, ROLLUP_NONCE_PREFIX
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
START_S = 1_800_000_000  # 08:00 UTC on 15 January 2027


class Clock:
    """A clock that only the simulation moves. `skew_s`: how far the clock of the running process is ahead."""

    def __init__(self, now_s: float = START_S) -> None:
        self.now_s, self.skew_s = now_s, 0.0

    def __call__(self) -> float:
        return self.now_s + self.skew_s

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds

    @contextlib.contextmanager
    def with_skew(self, skew_s: float) -> Iterator[None]:
        """Run a process with a wrong clock, which no answer of DynamoDB has corrected before."""
        saved_ahead_s = CLOCK.ahead_s
        self.skew_s, CLOCK.ahead_s = skew_s, 0.0
        try:
            yield
        finally:
            self.skew_s, CLOCK.ahead_s = 0.0, saved_ahead_s


@contextlib.contextmanager
def seed_randomness(clock: Clock, seed: int) -> Iterator[None]:
    """Makes every process use `clock`, and draw the same random tokens in each run of a seed."""
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fold, "BUCKETS", 2)  # so the judge reads fewer partitions; test_segments has every bucket
        patch.setattr(time, "time", clock)
        patch.setattr(secrets, "token_hex", lambda size: chance.randbytes(size).hex())
        patch.setattr(secrets, "token_urlsafe", lambda size: chance.randbytes(size).hex()[: size * 4 // 3])
        yield


@dataclass(frozen=True)
class Stall:
    """A time in which a consumer is not invoked. `shard_number`: the shard's place in the list of its table. A field
    that is None does not restrict the stall."""

    from_s: float
    to_s: float
    consumer: str | None = None
    table: str | None = None
    shard_number: int | None = None

    def stops(self, now_s: float, consumer: str, table: str, shard_number: int) -> bool:
        """Whether the stall stops this consumer in this shard now."""
        return self.from_s <= now_s < self.to_s and all(
            stalled is None or stalled == actual
            for stalled, actual in ((self.consumer, consumer), (self.table, table), (self.shard_number, shard_number))
        )


@dataclass(frozen=True)
class Disturbances:
    """What disturbs the processes of a world, and how often."""

    splits_per_hour: float = 4.0
    slow_share: float = 0.05
    """Share of changes that are committed 6 to 55 s after the writer read its clock."""
    late_share: float = 0.0
    """Share of changes that are committed 1 to 10 minutes after the writer read its clock."""
    gap_share: float = 0.1
    """Share of records that reach their shard up to 2 s after other records of the same transaction."""
    fault_share: float = 0.1
    """Share of invocations that die, sleep, are repeated or lose their answer."""
    skew_s: float = 2.0
    """How far the clock of a process is ahead or behind, at most."""
    retention_s: float = float("inf")
    """How long a stream keeps a record, at least. If the retention is finite, people also discard dead letters."""
    deploys: bool = False
    """Whether declarations change."""
    window_s: float = 0.0
    """For how long Lambda gathers records before it invokes the bookkeeper."""

    @property
    def may_lose_records(self) -> bool:
        """Whether records may be lost."""
        return self.retention_s < float("inf")


WRITES = {"PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems"}
CONFLICT_CHANCE = 0.02  # the chance that an update of the ledger fails with a conflict
UNDISTURBED = Disturbances(splits_per_hour=0, slow_share=0, gap_share=0, fault_share=0, skew_s=0)


class TimedWire(SyncWire):
    """A client whose answers have the true time in a header, as the answers of DynamoDB have. `throttled`: partition
    keys for which a PutItem is throttled."""

    def __init__(self, port: int, clock: Clock) -> None:
        super().__init__(port)
        self._clock = clock
        self.throttled: set[str] = set()
        self.conflict_seed: int | None = None
        """The seed that decides which updates of the ledger fail with a conflict; None: no update."""
        self._updates: defaultdict[str, int] = defaultdict(int)
        """How often each item was updated. A conflict is drawn by item and number, because threads update items in
        another order in each run of a seed."""
        self.written_tables: set[str] = set()
        """The tables that any client has written to since `SimulatedWorld.schedule_new_records`."""

    def _call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if operation == "PutItem" and parameters["Item"].get("PK", {}).get("S") in self.throttled:
            raise ClientError({"Error": {"Code": "ProvisionedThroughputExceededException"}}, operation)
        updates_ledger = operation == "UpdateItem" and parameters["TableName"] == SETTINGS.ledger_table
        if updates_ledger and self.conflict_seed is not None and self._has_conflict(parameters["Key"]):
            raise ClientError({"Error": {"Code": "TransactionConflictException"}}, operation)
        if operation in WRITES:
            writes = parameters.get("TransactItems", [{operation: parameters}])
            self.written_tables |= {fields["TableName"] for write in writes for fields in write.values()}
        answer = super()._call(operation, parameters)
        date = formatdate(self._clock.now_s, usegmt=True)
        CLOCK.correct_from(date, self._clock())
        return answer | {"ResponseMetadata": {"HTTPHeaders": {"date": date}}}

    def _has_conflict(self, key: Item) -> bool:
        name = str(key)
        self._updates[name] += 1
        drawn = random.Random(f"{self.conflict_seed} {name} {self._updates[name]}").random()
        return key != PROGRESS and drawn < CONFLICT_CHANCE  # only one sweep at a time writes PROGRESS


class SimulatedWorld(EngineStreams):
    """The processes of one deployment, on tables in the embedded engine, and the queue of the next actions.

    `sweeps_series`: whether the sweep also sums up the hours of series, and removes the children of removed parents.
    `shards`: how many shards each stream has at the start; None: one to three. `store`: a store on this engine, whose
    tables have streams; None: the world creates the tables.
    """

    sweeps_series = False
    wire_type = TimedWire
    wire: TimedWire

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        seed: int,
        disturbances: Disturbances,
        shards: int | None = None,
        store: Store | None = None,
    ) -> None:
        wire = self.wire_type(engine.port, clock)
        if store is None:
            create_tables(engine.endpoint, SETTINGS, TABLES)
            store = Store(wire, SETTINGS)  # type: ignore[arg-type]
        super().__init__(store, wire)
        self.chance, self.clock, self.settings = random.Random(seed), clock, store.settings
        self.disturbances = disturbances
        self.streams = Streams(self.chance, lambda: clock.now_s, shards)
        self.truth = Truth()
        self.stalls: list[Stall] = []
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        """A heap of scheduled actions: time, number (the order of actions of one time), action, arguments."""
        self._event_numbers = itertools.count()
        self._change_numbers = itertools.count()  # each names one spilled change
        self._appended_s: dict[str, float] = {}
        """By key: when the newest record of an item reaches its shard."""
        self._deliveries: dict[tuple[str, str], Delivery] = {}
        """The deliveries by consumer and shard."""
        self._scheduled_polls: set[tuple[str, str]] = set()  # consumer and shard
        self.failures: defaultdict[str, int] = defaultdict(int)
        """How often each thing happened that must not happen."""
        self.unreadable: set[tuple[str, str]] = set()
        """Each pair of a consumer and a target whose receipts the consumer cannot read now."""
        self._noted_objects: set[str] = set()
        """The objects of the dead letters that `truth` knows."""
        for name, handler in self.handlers.items():
            read = dict(handler.consumer.read)  # receipts can be `unreadable`
            read["receipts"] = functools.partial(self._read, name)
            handler.consumer = replace(handler.consumer, read=read)

    def sweep(self, client: Any = None) -> None:
        """Run the sweep, as operations/sweep does each minute."""
        store = self.with_client(client or self.wire)
        current = watermark.read(store)
        now_s = CLOCK.now_s()
        if not current.is_too_fresh(store.settings, now_s):  # else writes that the watermark proves may not be visible
            untimed = replace(store, clock=lambda: 0.0)  # so a busy machine does not end the sweep early
            watermark.advance(untimed, self.streams, current, now_s)  # type: ignore[arg-type]
            judge.judge(store, current, now_s, until_s=float("inf"))
        if self.sweeps_series:
            hours.sum_up(store, watermark.read(store).judged, until_s=float("inf"))
            deletion.sweep(store, counters.COUNTERS, float("inf"))

    def drifts(self) -> dict[Tally, int]:
        """Returns the drift of each tally that has a drift row."""
        return {(row.counter, row.target): row.drift for row in rows.all_rows(self.store)}

    # ---- scheduled actions ----

    def schedule_at(self, at_s: float, action: Callable[..., object], *arguments: Any) -> None:
        """Schedule an action at a time."""
        heapq.heappush(self._events, (at_s, next(self._event_numbers), action, arguments))

    def schedule_in(self, after_s: float, action: Callable[..., object], *arguments: Any) -> None:
        """Schedule an action after some seconds."""
        self.schedule_at(self.clock.now_s + after_s, action, *arguments)

    def run_until(self, until_s: float) -> None:
        """Let time pass, and run the actions that are due."""
        while self._events and self._events[0][0] <= until_s:
            at_s, _, action, arguments = heapq.heappop(self._events)
            self.clock.now_s = max(self.clock.now_s, at_s)
            action(*arguments)
        self.clock.now_s = max(self.clock.now_s, until_s)

    def new_change_number(self) -> int:
        return next(self._change_numbers)

    def draws_fault(self) -> bool:
        """Draws whether this invocation has a fault."""
        return self.chance.random() < self.disturbances.fault_share

    def with_random_skew(self) -> contextlib.AbstractContextManager[None]:
        """Run a process in a `with` block, with a clock that is wrong by up to `skew_s` of the disturbances."""
        return self.clock.with_skew(self.chance.uniform(-self.disturbances.skew_s, self.disturbances.skew_s))

    # ---- the streams ----

    def schedule_new_records(
        self, note: Callable[[Record, int], None] = lambda record, created_s: None, *, notes_repairs: bool = True
    ) -> list[Record]:
        """Take the new records from the engine's streams, and schedule each to be appended to its modelled shard.
        `note` is called with the record and its creation time when the record is appended. `notes_repairs`: False after
        a redrive from before a loss, which writes a repair's nonce, and is not a repair."""
        new_records: list[Record] = []
        written_tables, self.wire.written_tables = self.wire.written_tables, set()
        for table in TABLES:
            new = self.records(table) if self.name(table) in written_tables else ()
            for record in map(_with_sorted_maps, new):
                new_records.append(record)
                if notes_repairs:
                    self._note_repair(record)
                self._send(table, record, note)
        return new_records

    def _send(self, table: str, record: Record, note: Callable[[Record, int], None]) -> None:
        delay_s = self.chance.uniform(0, 0.2)
        if self.chance.random() < self.disturbances.gap_share:
            delay_s = self.chance.uniform(0, 1.9)
        item = str(sorted(record["dynamodb"]["Keys"].items()))
        at_s = max(self.clock.now_s + delay_s, self._appended_s.get(item, 0))  # the records of an item keep their order
        self._appended_s[item] = at_s
        self.schedule_at(at_s, self._append, table, record, note)

    def _append(self, table: str, record: Record, note: Callable[[Record, int], None]) -> None:
        shard = self.streams.append(table, record)
        note(record, shard.last_s)
        for tally, change_number, amount in record.get("spilled", ()):
            shard.spilled[tally].append((change_number, amount))
        for consumer in CONSUMERS:
            self._schedule_poll(consumer, shard)

    def _note_repair(self, record: Record) -> None:
        """If the record is of a repair, note the amount of the repair."""
        tally, amount = moved_by(REPAIR_NONCE_PREFIX, record)
        if tally is not None:
            self.truth.repaired[tally] += amount

    # ---- the consumers ----

    def _schedule_poll(self, consumer: str, shard: ModelledShard, after_s: float | None = None) -> None:
        """Schedule the next poll of a shard, unless a poll is scheduled. `after_s` is None: after 0.5 to 3 s."""
        if (consumer, shard.id) not in self._scheduled_polls:
            self._scheduled_polls.add((consumer, shard.id))
            if after_s is None:
                after_s = self.chance.uniform(0.5, 3) + self.disturbances.window_s * (consumer == "bookkeeper")
            self.schedule_in(after_s, self._poll, consumer, shard)

    def consumers_have_caught_up(self) -> bool:
        """Whether each consumer has got every record of every shard."""
        shards = [shard for table in TABLES for shard in self.streams.shards[table]]
        return all(self.delivery_to(name, shard).is_done for name in CONSUMERS for shard in shards)

    def delivery_to(self, consumer: str, shard: ModelledShard) -> Delivery:
        """Returns the delivery of a shard to a consumer, which knows the consumer's position."""
        place = consumer, shard.id
        if place not in self._deliveries:
            self._deliveries[place] = self.delivery(consumer, shard.table, shard.id, shard.records)
        return self._deliveries[place]

    def _poll(self, consumer: str, shard: ModelledShard) -> None:
        self._scheduled_polls.discard((consumer, shard.id))
        self._trim(consumer, shard)
        now_s, shard_number = self.clock.now_s, self.streams.shards[shard.table].index(shard)
        is_stalled = any(stall.stops(now_s, consumer, shard.table, shard_number) for stall in self.stalls)
        # Lambda reads no child before its parent is finished, and no shard that DescribeStream does not list.
        is_parent_done = shard.parent is None or self.delivery_to(consumer, shard.parent).is_done
        if is_stalled:
            self._schedule_poll(consumer, shard, self.chance.uniform(0, 10))
        elif not is_parent_done or shard.listed_s > now_s:
            self._schedule_poll(consumer, shard, self.chance.uniform(1, 20))
        elif not self.delivery_to(consumer, shard).is_done:
            self._deliver(consumer, shard)
            if not self.delivery_to(consumer, shard).is_done:
                self._schedule_poll(consumer, shard)

    def _trim(self, consumer: str, shard: ModelledShard) -> None:
        """Trim records up to 300 s after their retention. A consumer that has not seen these records loses them."""
        spare_s = self.chance.uniform(0, 300) if self.disturbances.may_lose_records else 0
        oldest_s = self.clock.now_s - self.disturbances.retention_s - spare_s
        times_s = map(_created_s, shard.records[shard.trimmed :])
        shard.trimmed += sum(1 for _ in itertools.takewhile(lambda created_s: created_s < oldest_s, times_s))
        delivery = self.delivery_to(consumer, shard)
        for record in shard.records[delivery.position : shard.trimmed] if consumer == "rollup" else ():
            for tally, change_number, amount in record.get("spilled", ()):
                if (change_number, amount) not in shard.spilled[tally]:
                    continue  # the rollup has added the change, or the change is in a dead letter
                shard.spilled[tally].remove((change_number, amount))
                minute = booking_minute_of(record["dynamodb"]["NewImage"], self.settings.minute_of(_created_s(record)))
                self.truth.note_drift(tally, minute, -amount)
                self.truth.lost_changes.add(change_number)
        delivery.position = max(delivery.position, shard.trimmed)

    def _deliver(self, consumer: str, shard: ModelledShard) -> None:
        """Deliver one batch, with a fault or without."""
        delivery = self.delivery_to(consumer, shard)
        repeated = min(delivery.position - shard.trimmed, self.chance.choice((1, 5, 40))) if self.draws_fault() else 0
        size = self.chance.choice((self.chance.randint(1, 60), 400))
        batch = delivery.batch(size, repeated)
        answered = not batch or self._invoke(consumer, shard, batch)
        if answered and not (batch and self.draws_fault() and self.chance.random() < 0.3):  # else the answer is lost
            delivery.advance(None, size)

    def _invoke(self, consumer: str, shard: ModelledShard, batch: list[Record]) -> bool:
        """Invoke a consumer. Returns whether the consumer answered that it applied the records."""
        process, late_writes = self.handlers[consumer], list[tuple[str, dict[str, Any]]]()
        if self.draws_fault():
            write_number, committed = self.chance.randrange(3), self.chance.random() < 0.5
            client = client_that_dies(self.wire, write_number, committed=committed)
            if self.chance.random() < 0.4:
                client = self._client_with_late_write(late_writes)
            process = self.handler(consumer, self.with_client(client), process.declared.by_name)
        with self.with_random_skew():
            try:
                delivery, context = self.delivery_to(consumer, shard), LambdaContext(remaining_ms=60_000)
                failed, answered = delivery.invoke(batch, context, process), True
            except (Crash, ConfigurationError):  # a process that died, or a declaration that does not fit stored items
                failed, answered = None, False
        self._note_rollup(shard, self.schedule_new_records())
        self._note_dead_letters()
        for name, parameters in late_writes:
            self.schedule_in(self.chance.uniform(1, 90), self._commit_late, shard, name, parameters)
        if failed is not None:
            self.failures["a consumer failed"] += 1
        return answered

    # ---- dead letters ----

    def _read(self, consumer: str, declared: CounterIndex, record: Record) -> Sequence[Effect]:
        """Read a receipt as a consumer does. If the receipt is `unreadable`, raises PoisonRecordError."""
        if any((consumer, tally[1]) in self.unreadable for tally, _, _ in record.get("spilled", ())):
            raise PoisonRecordError("the consumer has a bug")
        return CONSUMERS[consumer].read["receipts"](declared, record)

    def _note_dead_letters(self) -> None:
        """Note each new dead letter as drift on the minute of its record: the rollup has not added the change to the
        tally, or the bookkeeper does not expect the change."""
        if self.bucket.objects.keys() <= self._noted_objects:
            return
        for marker in dead_letters.list_markers(Call(self.with_client(self.wire))):
            if marker.object in self._noted_objects:
                continue
            self._noted_objects.add(marker.object)
            if "spilled" not in json.loads(self.bucket.objects[marker.object])["record"]:
                continue  # a test has stored this dead letter
            consumer, tally, change_number, amount, created_s, shard_id = self._dead_letter(marker)
            if consumer == "bookkeeper":  # the change is observed and not expected, though the tally is right
                self.truth.drifts[tally].append((self.settings.minute_of(created_s), amount))
                continue
            self.truth.note_drift(tally, self.settings.minute_of(created_s), -amount)
            (shard,) = (shard for shard in self.streams.shards["receipts"] if shard.id == shard_id)
            shard.spilled[tally].remove((change_number, amount))

    def _dead_letter(self, marker: DeadLetterMarker) -> tuple[str, Tally, int, int, int, str]:
        """Returns consumer, tally, change number, amount, creation time and shard of the change in a dead letter."""
        dead_letter = json.loads(self.bucket.objects[marker.object])
        [((counter, id_), change_number, amount)] = dead_letter["record"]["spilled"]
        created_s = dead_letter["record"]["dynamodb"]["ApproximateCreationDateTime"]
        return dead_letter["consumer"], (counter, id_), change_number, amount, created_s, dead_letter["shard"]

    def redrive_all(self, skew_s: float = 0) -> None:
        """Redrive every dead letter, in a process whose clock is ahead by `skew_s`."""
        self.schedule_new_records()
        self._note_dead_letters()
        for marker in list(dead_letters.list_markers(Call(self.with_client(self.wire)))):
            consumer, tally, change_number, amount, created_s, _ = self._dead_letter(marker)
            receipt = json.loads(self.bucket.objects[marker.object])["record"]["dynamodb"]["NewImage"]
            booking_minute = booking_minute_of(receipt, self.settings.minute_of(created_s))
            is_drift_exempt = booking_minute < watermark.pending_resume_minute(self.store, watermark.read(self.store))
            with self.clock.with_skew(skew_s):
                assert self.redrive(markers=[marker]) == ["applied"]
            if not is_drift_exempt:  # the ledger still has the other half of the change
                drift = amount if consumer == "rollup" else -amount
                self.truth.drifts[tally].append((self.settings.minute_of(self.clock.now_s), drift))
            if consumer == "rollup":
                self.truth.excesses[tally] += amount
                del self.truth.spilled[change_number]
            self.schedule_new_records(notes_repairs=not is_drift_exempt)

    def discard_some_dead_letters(self) -> None:
        """Let the objects of some dead letters expire, and discard these dead letters."""
        self.schedule_new_records()
        self._note_dead_letters()
        for marker in list(dead_letters.list_markers(Call(self.with_client(self.wire)))):
            if self.chance.random() < 0.5:
                consumer, _, change_number, *_ = self._dead_letter(marker)
                del self.bucket.objects[marker.object]
                dead_letters.discard(Call(self.with_client(self.wire)), marker)
                self.truth.lost_changes |= {change_number} if consumer == "rollup" else set()

    def _client_with_late_write(self, late_writes: list[tuple[str, dict[str, Any]]]) -> WatchedClient:
        """Returns a client whose process dies at its first write. Adds the write to `late_writes`: it commits late."""
        client = WatchedClient(self.wire)

        def defer(number: int, name: str, parameters: dict[str, Any]) -> None:
            late_writes.append((name, parameters))
            raise Crash

        client.before = defer
        return client

    def _commit_late(self, shard: ModelledShard, name: str, parameters: dict[str, Any]) -> None:
        with contextlib.suppress(Exception):  # usually the condition fails, because the checkpoint has advanced
            getattr(self.wire, name)(**parameters)
        self._note_rollup(shard, self.schedule_new_records())
        self._note_dead_letters()

    def _note_rollup(self, shard: ModelledShard, records: list[Record]) -> None:
        """Note the spilled changes that the rollup has added to tallies: the oldest changes of the shard."""
        for record in records:
            tally, amount_left = moved_by(ROLLUP_NONCE_PREFIX, record)
            if tally is None:
                continue
            while amount_left > 0 and shard.spilled[tally]:
                change_number, amount = shard.spilled[tally].popleft()
                del self.truth.spilled[change_number]
                amount_left -= amount
            if amount_left:
                self.failures["the rollup added more than was spilled"] += 1


def _created_s(record: Record) -> float:
    return float(record["dynamodb"]["ApproximateCreationDateTime"])


def _with_sorted_maps(value: Any) -> Any:
    """Returns a record with sorted maps. The rollup writes in the order of the engine's maps, which differs by run."""
    return {name: _with_sorted_maps(value[name]) for name in sorted(value)} if isinstance(value, dict) else value
