"""Stream records take effect exactly once: the effect and the checkpoint commit in one transaction.

Lambda delivers a record at least once, and may cut batches differently after a failure. A consumer reads its checkpoint
in the stream shard, skips the records up to the checkpoint, and folds the records after it into runs (fold.py). Each
run commits on condition that the checkpoint has not moved. If it has moved, another invocation applied records, and the
consumer reads the checkpoint once more. If the consumer cannot apply a record, the record becomes a dead letter
(dead_letters.py) and delays no other record.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from .. import observe
from ..counter import Counter
from ..dynamo import clock, items, keys
from ..dynamo.client import Call, Store, dynamodb_client
from ..dynamo.keys import Item
from ..dynamo.queries import get
from ..dynamo.transactions import ConditionFailedError, Write, WriteRejectedError, commit_writes
from ..errors import ConfigurationError, RetryableError, StoreBusyError, StoreRefusedError, TallyError
from ..settings import Settings
from . import dead_letters, events, fold, watermark
from .dead_letters import DeadLetterBucket
from .events import Bus, Event
from .fingerprints import FingerprintCache
from .fold import BatchContext, Run, StreamConsumer
from .lineage import Checkpoint
from .record import CounterIndex, PoisonRecordError, Record, created_s

CHECKPOINT_READS_MAX = 8  # in a batch: each repetition follows a move of the checkpoint by another invocation
RESERVE_S = 5.0  # before the timeout no run begins: a transaction takes 10 ms, and up to 3 s of retries if it conflicts

Answer = dict[str, Any]  # {"state": {}, "batchItemFailures": [{"itemIdentifier": the sequence number from `apply`}]}


class Handler:
    """The handler of one consumer. At cold start it reads the settings and makes the client."""

    def __init__(
        self,
        consumer: StreamConsumer,
        counters: Mapping[str, Counter],
        store: Store | None = None,
        objects: DeadLetterBucket | None = None,
        bus: Bus | None = None,
    ) -> None:
        """Raises ConfigurationError if no bucket is set, because a poison record would block the records after it."""
        self.consumer = consumer
        self.store = store or Store(dynamodb_client(), Settings.from_environment())
        self.declared = CounterIndex(counters, self.store.settings.minute_s)
        self.fingerprints = FingerprintCache(self.store)
        if objects is None and not self.store.settings.dead_letter_bucket:
            raise ConfigurationError("TALLY_DEAD_LETTER_BUCKET is not set: set it to the bucket's name")
        self.objects = objects or DeadLetterBucket(self.store.settings.dead_letter_bucket)
        self.bus = bus or Bus(self.store.settings.event_bus)

    def __call__(self, event: Mapping[str, Any], context: Any) -> Answer:
        """Applies one batch.

        Raises StoreRefusedError for a fault of the deployment. Raises ConfigurationError for an event without a shard,
        for a stream of another table, and while a declaration does not fit the stored items (fingerprints.py).
        """
        with observe.metrics():
            records = event.get("Records") or []
            if not records:  # the end of a tumbling window without records
                return {"state": {}, "batchItemFailures": []}
            shard = event.get("shardId")
            if not isinstance(shard, str) or not shard:
                raise ConfigurationError("The event has no shardId: the event source mapping needs a tumbling window")
            call = Call(self.store, deadline_s=time.monotonic() + context.get_remaining_time_in_millis() / 1000)
            source = str(event.get("eventSourceARN") or records[0].get("eventSourceARN"))
            batch = self.batch(call, source, shard)
            failed = batch.apply(records)
            if batch.events and self.bus.name:
                try:
                    events.send(self.store, self.bus, batch.events, call.deadline_s - RESERVE_S)
                except TallyError as error:  # the batch is applied, and the sweep sends these events
                    observe.logger.warning("events were sent, and not noted", exc_info=error)
            return {"state": {}, "batchItemFailures": [] if failed is None else [{"itemIdentifier": failed}]}

    def batch(self, call: Call, source: str, shard: str) -> Batch:
        """Returns a batch of the stream with this ARN. Raises ConfigurationError for a stream of another table."""
        settings = self.store.settings
        table = {settings.counts_table: "counts", settings.receipts_table: "receipts"}.get(table_name(source))
        if table is None:
            raise ConfigurationError(f"The stream {source[:200]!r} is not of the counts or the receipts table")
        return Batch(self, call, table, shard)


@dataclass
class Batch:
    """One batch of one stream shard. `rejected`: by sequence number, why DynamoDB rejected the writes of the record."""

    handler: Handler
    call: Call
    table: str  # `counts`, `receipts`, or the name of a team's table
    shard: str
    rejected: dict[str, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)  # of the committed runs

    def __post_init__(self) -> None:
        self.consumer = self.handler.consumer

    def apply(self, records: Sequence[Record]) -> str | None:
        """Applies the records after the checkpoint. Returns the sequence number of the first record left, if any."""
        store, numbered = self.call.store, fold.by_sequence(records)
        first, last_unbookable = next(iter(numbered.values())), -1  # -1: each minute takes entries
        first_number: str = first["dynamodb"]["SequenceNumber"]
        made_s: float | None = None
        with suppress(PoisonRecordError):
            made_s = created_s(first)
        try:
            all_counted = self.handler.fingerprints.all_counted(self.handler.declared)
            for _ in range(CHECKPOINT_READS_MAX):
                # The checkpoint is read before `_prefetch`: if another invocation then writes, the run does not commit.
                if self.consumer.needs_watermark:
                    last_unbookable = watermark.ensure_begun(self.call, made_s).last_unbookable_minute(store.settings)
                checkpoint = Checkpoint.of(get(store.client, store.settings.ledger_table, self._key))
                self._prefetch(numbered.values())
                context = BatchContext(self.table, self.shard, store.settings.minute_of(clock.now_s()), last_unbookable)
                try:
                    applied = int(checkpoint.sequence or -1)  # as numbers, because "9" is after "10" as a string
                    left = [record for number, record in numbered.items() if number > applied]
                    return self._apply(left, all_counted, context, checkpoint)
                except ConditionFailedError:
                    continue
            self._warn("the checkpoint kept moving", first_number)
        except StoreRefusedError:  # a retry of the batch would hide a fault of the deployment
            raise
        except RetryableError as error:
            self._warn("not applied", first_number, error)
        return first_number

    def _prefetch(self, records: Iterable[Record]) -> None:
        """Reads what the effects of these records depend on; by default nothing. `apply` reads the checkpoint first. If
        the checkpoint has moved when a run commits, `apply` reads both once more."""

    def _apply(
        self, records: Sequence[Record], all_counted: CounterIndex, context: BatchContext, checkpoint: Checkpoint
    ) -> str | None:
        """Commits run by run. If the time runs out or the store is busy, returns the first unapplied record's number.

        The bookkeeper (`needs_watermark`) also books counters that are not declared any more, because it may have
        booked the other half of a change. If DynamoDB rejects a run, or conflicts outlast the retries of a run with
        several tallies, the next run has half as many records. If DynamoDB rejects a run of one record, the record
        becomes a dead letter. Raises ConditionFailedError, StoreRefusedError.
        """
        consumer, records_max = self.consumer, len(records)
        declared = all_counted if consumer.needs_watermark else self.handler.declared
        while records:
            run = fold.next_run(consumer, declared, context, records[:records_max], self.rejected)
            if consumer.needs_watermark:
                self.handler.fingerprints.note(self.handler.declared, (effect.counter for effect in run.sums.values()))
            if self.call.deadline_s - time.monotonic() < RESERVE_S:
                return self._warn("out of time", run.first)
            after = Checkpoint(run.last, int(run.newest_record_s or 0), run.heartbeat, run.newest_for_rollup)
            try:
                writes = run.writes(self.call, declared)
                commit_writes(self.call, [*writes, *self._checkpoint_writes(run, checkpoint, after)])
            except WriteRejectedError as rejected:
                if run.records == 1 and run.dead_letters:
                    raise StoreRefusedError(f"The ledger rejects a checkpoint: {rejected.detail}") from rejected
                if run.records == 1:
                    self.rejected[run.first] = f"refused: {rejected.detail}"
                records_max = max(1, run.records // 2)
                continue
            except StoreRefusedError:
                raise
            except RetryableError as error:
                if isinstance(error, StoreBusyError) and len(run.sums) > 1 and run.records > 1:
                    records_max = run.records // 2
                    continue
                return self._warn("stopped", run.first, error)
            run.on_commit()
            self.events += run.events
            self._report(run)
            records, checkpoint, records_max = records[run.records :], after, 2 * records_max
        return None

    @property
    def _key(self) -> Item:
        return keys.key(*keys.checkpoint_key(self.consumer.name, self.table, self.shard))

    def _checkpoint_writes(self, run: Run, before: Checkpoint, after: Checkpoint) -> list[Write]:
        """Puts the objects of dead letters. Returns the writes of their markers and of the checkpoint.

        The checkpoint moves from `before` to `after`, on condition that the stored checkpoint is `before`.
        """
        assert int(after.sequence or -1) > int(before.sequence or -1), "a checkpoint only advances"
        values = after.values | {"expiration": int(clock.now_s()) + keys.CHECKPOINT_KEPT_S}
        table = self.call.store.settings.ledger_table
        moved = items.update_write(table, self._key, values, expected={"sequence": before.sequence})
        where = self.handler.objects, self.consumer.name, self.table, self.shard
        return [*(dead_letters.store_and_mark(self.call, *where, *letter) for letter in run.dead_letters), moved]

    def _report(self, run: Run) -> None:
        for sequence, _, reason in run.dead_letters:
            observe.count(observe.DEAD_LETTERS, consumer=self.consumer.name)
            observe.logger.error("dead letter", extra={"sequence": sequence, "shard": self.shard, "reason": reason})
        for counter, changes in run.metered_changes.items():
            observe.count(observe.COUNTED, changes, counter=counter)

    def _warn(self, message: str, first_number: str | None, error: Exception | None = None) -> str | None:
        """Logs why the records from `first_number` on are left, and returns `first_number`."""
        observe.logger.warning(message, exc_info=error, extra={"from": first_number, "shard": self.shard})
        return first_number


def table_name(source: str) -> str:
    """Returns the name of the table whose stream has this ARN: `…:table/NAME/stream/…`."""
    return source.partition("table/")[2].partition("/")[0]
