"""Stream records take effect exactly once: the effect and the checkpoint commit in one transaction.

Lambda delivers batches at least once, again after a failure, and cut as it likes. A consumer reads its checkpoint in
this stream shard, skips the records at or below it, folds the rest (fold.py) and commits run by run, each on condition
that the checkpoint has not moved. If it has, another invocation was here: the consumer reads the checkpoint again.

The consumer itself sets aside a record that it cannot apply (set_aside.py). Such a record delays no other one.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import observe
from ..counter import Counter
from ..dynamo import items, keys
from ..dynamo.client import Call, Store, dynamodb_client
from ..dynamo.keys import Item
from ..dynamo.queries import get
from ..dynamo.transactions import MovedError, RejectedError, Write, apply
from ..errors import ConfigurationError, RetryableError, StoreBusyError, StoreRefusedError
from ..settings import Settings
from . import evidence, fold, set_aside
from .fold import Consumer, Place, Run, SetAside
from .lineage import Checkpoint
from .record import Declared, Record, sequence
from .set_aside import Objects

STARTS_MAX = 8  # each time the checkpoint moved, another invocation made progress: little is left to do
RESERVE_S = 5.0  # time that a transaction may need: 10 ms, and 3 s of retries under contention
FAILED_WHOLE = ""  # in batchItemFailures: the whole batch

Answer = dict[str, Any]
"""`{"state": {}, "batchItemFailures": [{"itemIdentifier": first sequence number that is not applied}]}`."""


class Handler:
    """The handler of one consumer. Made at cold start: it reads the settings and makes the client."""

    def __init__(
        self,
        consumer: Consumer,
        counters: Mapping[str, Counter],
        store: Store | None = None,
        objects: Objects | None = None,
    ) -> None:
        """Raises ConfigurationError without a bucket for records to set aside: one bad record would block the rest."""
        self.consumer = consumer
        self.store = store or Store(dynamodb_client(), Settings.from_environment())
        self.declared = Declared(counters, self.store.settings.minute_s)
        if objects is None and not self.store.settings.set_aside_bucket:
            raise ConfigurationError("TALLY_SET_ASIDE_BUCKET is not set")
        self.objects = objects or Objects(self.store.settings.set_aside_bucket)

    def __call__(self, event: Mapping[str, Any], context: Any) -> Answer:
        """Apply one batch. Raises ConfigurationError, and StoreRefusedError for a fault of the deployment."""
        with observe.metrics():
            records = event.get("Records") or []
            if not records:  # the end of a window without records
                return {"state": {}, "batchItemFailures": []}
            shard = event.get("shardId")
            if not isinstance(shard, str) or not shard:
                raise ConfigurationError("The event has no shardId: the event source mapping needs a tumbling window")
            call = Call(self.store, deadline_s=time.monotonic() + context.get_remaining_time_in_millis() / 1000)
            source = str(event.get("eventSourceARN") or records[0].get("eventSourceARN"))
            table = _table(self.store.settings, source)
            failed = Batch(self.consumer, self.declared, call, self.objects, table, shard).apply(records)
            return {"state": {}, "batchItemFailures": [] if failed is None else [{"itemIdentifier": failed}]}


@dataclass
class Batch:
    """One batch of one stream shard, on its way through a consumer."""

    consumer: Consumer
    declared: Declared
    call: Call
    objects: Objects
    table: str
    shard: str
    refused: dict[str, str] = field(default_factory=dict)
    """By sequence number: why DynamoDB does not accept a record."""

    def apply(self, records: Sequence[Any]) -> str | None:
        """Apply the records beyond the checkpoint; the first sequence number that is left, or None if none is."""
        numbered, unnumbered = fold.in_order(records)
        failed = next(map(sequence, numbered.values()), FAILED_WHOLE)
        try:
            self._set_aside_unnumbered(unnumbered)
            for _ in range(STARTS_MAX):
                place, seen = self._place(), self._checkpoint()  # in this order: what is judged only grows
                try:
                    at = int(seen.sequence or -1)  # compared as numbers: as strings "9" is after "10"
                    return self._apply([record for number, record in numbered.items() if number > at], place, seen)
                except MovedError:
                    continue
            observe.logger.warning("the checkpoint kept moving", extra={"from": failed, "shard": self.shard})
        except StoreRefusedError:  # a fault of the deployment: a retry of the batch would hide it
            raise
        except RetryableError as error:
            observe.logger.warning("not applied", exc_info=error, extra={"from": failed, "shard": self.shard})
        return failed

    def _apply(self, records: Sequence[Record], place: Place, seen: Checkpoint) -> str | None:
        """Commit run by run; the first record that is left, because the time ran out or the store was busy.

        A run that DynamoDB rejects is retried with half as many records, down to the one at fault. So is a run that
        keeps meeting conflicts: with fewer items it meets fewer other transactions. Raises MovedError,
        StoreRefusedError.
        """
        start, most = 0, len(records)
        while start < len(records):
            run = fold.next_run(self.consumer, self.declared, place, records[start : start + most], self.refused)
            if self.call.deadline_s - time.monotonic() < RESERVE_S:
                observe.logger.warning("out of time", extra={"from": run.first, "shard": self.shard})
                return run.first
            after = seen.after(run.last, run.through_s, run.pulse)
            try:
                apply(self.call, self._writes(run, seen, after))
            except RejectedError as rejected:
                if run.records == 1 and run.set_aside:
                    raise StoreRefusedError(f"The ledger does not take a checkpoint: {rejected.detail}") from rejected
                if run.records == 1:
                    self.refused[run.first] = f"refused: {rejected.detail}"
                most = max(1, run.records // 2)
                continue
            except StoreRefusedError:
                raise
            except RetryableError as error:
                if isinstance(error, StoreBusyError) and len(run.sums) > 1 and run.records > 1:
                    most = run.records // 2
                    continue
                observe.logger.warning("stopped", exc_info=error, extra={"from": run.first, "shard": self.shard})
                return run.first
            self._report(run.set_aside)
            start, seen, most = start + run.records, after, 2 * most
        return None

    def _place(self) -> Place:
        store = self.call.store
        judged = evidence.judged(store) if self.consumer.heeds_judge else -1
        return Place(self.table, self.shard, store.settings.minute(time.time()), judged)

    @property
    def _key(self) -> Item:
        return keys.key(*keys.checkpoint_key(self.consumer.name, self.table, self.shard))

    def _checkpoint(self) -> Checkpoint:
        """How far this consumer has come in this shard."""
        return Checkpoint.of(get(self.call.store.client, self.call.store.settings.ledger_table, self._key))

    def _writes(self, run: Run, seen: Checkpoint, after: Checkpoint) -> list[Write]:
        """The writes of one transaction. The objects of records that are set aside are put first.

        The checkpoint moves on condition that it has not moved since it was read.
        """
        values = after.values | {"expiration": int(time.time()) + keys.CHECKPOINT_KEPT_S}
        table = self.call.store.settings.ledger_table
        kept = [self._kept(*one) for one in run.set_aside]
        moved = items.update(table, self._key, values, was={"sequence": seen.sequence})
        return [*run.writes(self.call, self.declared), *kept, moved]

    def _kept(self, name: str, record: Any, reason: str) -> Write:
        return set_aside.keep(self.call, self.objects, self.consumer.name, self.table, self.shard, name, record, reason)

    def _set_aside_unnumbered(self, records: Sequence[Any]) -> None:
        """Set aside records without a sequence number under a hash of their content: set aside twice, each is one."""
        for record in records:
            name = "unnumbered-" + hashlib.sha256(json.dumps(record, default=str).encode()).hexdigest()[:32]
            one = (name, record, "no sequence number")
            apply(self.call, [self._kept(*one)])
            self._report([one])

    def _report(self, kept: Sequence[SetAside]) -> None:
        for spelled, _, reason in kept:
            observe.count(observe.SET_ASIDE, consumer=self.consumer.name)
            observe.logger.error("set aside", extra={"sequence": spelled, "shard": self.shard, "reason": reason})


def _table(settings: Settings, source: str) -> str:
    """`counts` or `receipts`, by the ARN of the stream: `…:table/NAME/stream/…`. Raises ConfigurationError."""
    name = source.partition("table/")[2].partition("/")[0]
    found = {settings.counts_table: "counts", settings.receipts_table: "receipts"}.get(name)
    if found is None:
        raise ConfigurationError(f"The stream {source[:200]!r} is of neither the counts nor the receipts table")
    return found
