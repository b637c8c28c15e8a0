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
from typing import Any, NamedTuple

from .. import observe
from ..counter import Counter
from ..dynamo import keys
from ..dynamo.client import Call, Store, dynamodb_client
from ..dynamo.queries import get
from ..dynamo.transactions import MovedError, RejectedError, Write, apply
from ..errors import ConfigurationError, RetryableError, StoreBusyError, StoreRefusedError
from ..settings import Settings
from . import evidence, fold, set_aside
from .fold import Consumer, Numbered, Place, Run
from .record import Declared
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
    committed: int = 0
    """How many records this invocation has covered itself."""
    skipped: int = 0

    def apply(self, records: Sequence[Any]) -> str | None:
        """Apply the records beyond the checkpoint; the first sequence number that is left, or None if none is."""
        numbered, unnumbered = fold.in_order(records)
        failed = numbered[0].spelled if numbered else FAILED_WHOLE
        try:
            self._set_aside_unnumbered(unnumbered)
            for _ in range(STARTS_MAX):
                seen = self._checkpoint()
                passed = _passed(numbered, seen.sequence)
                self._count_skipped(passed)
                try:
                    self._apply(numbered[passed:], seen)
                    return None
                except MovedError:
                    continue
                except _StoppedError as stopped:
                    return stopped.sequence
            observe.logger.warning("the checkpoint kept moving", extra={"from": failed, "shard": self.shard})
        except RetryableError as error:
            _raise_if_refused(error)
            observe.logger.warning("not applied", exc_info=error, extra={"from": failed, "shard": self.shard})
        return failed

    def _apply(self, records: Sequence[Numbered], seen: Seen) -> None:
        """Commit run by run. Raises MovedError, and _StoppedError at the first record that is not applied.

        A run that DynamoDB rejects is retried with half as many records, down to the one at fault. So is a run that
        keeps meeting conflicts: with fewer items it meets fewer other transactions.
        """
        start, most = 0, len(records)
        place = Place(self.table, self.shard, self.call.store.settings.minute(time.time()), seen.judged)
        while start < len(records):
            run = fold.next_run(self.consumer, self.declared, place, records, start, most=most, refused=self.refused)
            if self._out_of_time():
                observe.logger.warning("out of time", extra={"from": run.first, "shard": self.shard})
                raise _StoppedError(run.first)
            try:
                apply(self.call, self._writes(run, seen))
            except RejectedError as rejected:
                if run.records == 1 and run.set_aside:
                    raise StoreRefusedError(f"The ledger does not take a checkpoint: {rejected.detail}") from rejected
                if run.records == 1:
                    self.refused[run.first] = f"refused: {rejected.detail}"
                most = max(1, run.records // 2)
                continue
            except RetryableError as error:
                _raise_if_refused(error)
                if isinstance(error, StoreBusyError) and len(run.sums) > 1 and run.records > 1:
                    most = run.records // 2
                    continue
                observe.logger.warning("stopped", exc_info=error, extra={"from": run.first, "shard": self.shard})
                raise _StoppedError(run.first) from error
            self._count(run)
            start, seen, most = start + run.records, seen.after(run), 2 * most

    def _out_of_time(self) -> bool:
        return self.call.deadline_s - time.monotonic() < RESERVE_S

    def _writes(self, run: Run, seen: Seen) -> list[Write]:
        """The writes of one transaction. The objects of records that are set aside are put first."""
        name = self.consumer.name
        kept = [
            set_aside.keep(self.call, self.objects, name, self.table, self.shard, spelled, record, reason)
            for spelled, record, reason in run.set_aside
        ]
        return [*run.writes(self.call, self.declared), *kept, {"Update": self._move(run, seen)}]

    def _key(self) -> dict[str, Any]:
        return {
            "TableName": self.call.store.settings.ledger_table,
            "Key": keys.key(*keys.checkpoint_key(self.consumer.name, self.table, self.shard)),
        }

    def _checkpoint(self) -> Seen:
        """How far this consumer has come in this shard. What is judged is read first: that number only grows."""
        key, store = self._key(), self.call.store
        judged = evidence.judged(store) if self.consumer.heeds_judge else -1
        item = get(store.client, key["TableName"], key["Key"])
        if not item:
            return Seen(None, 0, judged)
        return Seen(item["sequence"]["S"], int(item.get("rolled", {"N": "0"})["N"]), judged)

    def _move(self, run: Run, seen: Seen) -> dict[str, Any]:
        """The update of the checkpoint, on condition that it has not moved since it was read."""
        facts: dict[str, Any] = {
            "sequence": {"S": run.last},
            "expiration": {"N": str(int(time.time()) + keys.CHECKPOINT_KEPT_S)},
        }
        if run.through_s is not None:
            facts["through"] = {"N": str(int(run.through_s))}
        if run.pulse is not None:
            facts["pulse"] = {"S": run.pulse[0]}
            facts["rolled"] = {"N": str(max(run.pulse[1], seen.rolled))}
        write = {
            **self._key(),
            "UpdateExpression": "SET " + ", ".join(f"#{fact} = :{fact}" for fact in facts),
            "ConditionExpression": "attribute_not_exists(#sequence)" if seen.sequence is None else "#sequence = :seen",
            "ExpressionAttributeNames": {f"#{fact}": fact for fact in facts},
            "ExpressionAttributeValues": {f":{fact}": value for fact, value in facts.items()},
        }
        if seen.sequence is not None:
            write["ExpressionAttributeValues"][":seen"] = {"S": seen.sequence}
        return write

    def _count_skipped(self, passed: int) -> None:
        """Count the records at or below the checkpoint that another invocation has applied."""
        skipped = passed - self.committed - self.skipped
        self.skipped += skipped
        observe.count(self.consumer.name, observe.SKIPPED, skipped, dimension=observe.CONSUMER)

    def _count(self, run: Run) -> None:
        self.committed += run.records
        for metric, amount in ((observe.APPLIED, run.applied), (observe.SET_ASIDE, len(run.set_aside))):
            observe.count(self.consumer.name, metric, amount, dimension=observe.CONSUMER)
        for spelled, _, reason in run.set_aside:
            observe.logger.error("set aside", extra={"sequence": spelled, "shard": self.shard, "reason": reason})

    def _set_aside_unnumbered(self, records: Sequence[Any]) -> None:
        """Set aside records without a sequence number under a hash of their content: set aside twice, each is one."""
        for record in records:
            name = "unnumbered-" + hashlib.sha256(json.dumps(record, default=str).encode()).hexdigest()[:32]
            marker = set_aside.keep(
                self.call, self.objects, self.consumer.name, self.table, self.shard, name, record, "no sequence number"
            )
            apply(self.call, [marker])
            observe.count(self.consumer.name, observe.SET_ASIDE, dimension=observe.CONSUMER)
            observe.logger.error("set aside", extra={"sequence": name, "shard": self.shard})


class Seen(NamedTuple):
    """A checkpoint as it was read: its sequence number (None: this is the first batch), the newest time that a pulse
    carried, and the last minute that was judged."""

    sequence: str | None
    rolled: int
    judged: int

    def after(self, run: Run) -> Seen:
        """The checkpoint after a run."""
        return Seen(run.last, max(self.rolled, run.pulse[1] if run.pulse else 0), self.judged)


class _StoppedError(Exception):
    """The records from `sequence` on are not applied: the time ran out, or the store was busy."""

    def __init__(self, sequence: str) -> None:
        super().__init__(sequence)
        self.sequence = sequence


def _passed(numbered: Sequence[Numbered], seen: str | None) -> int:
    """How many of the records are at or below the checkpoint, compared as numbers: as strings "9" is after "10"."""
    if seen is None:
        return 0
    at = int(seen)
    return sum(one.number <= at for one in numbered)


def _raise_if_refused(error: RetryableError) -> None:
    """Raise a fault of the deployment as an error of the function: a retry of the batch would hide it."""
    if isinstance(error, StoreRefusedError):
        raise error


def _table(settings: Settings, source: str) -> str:
    """`counts` or `receipts`, by the ARN of the stream: `…:table/NAME/stream/…`. Raises ConfigurationError."""
    name = source.partition("table/")[2].partition("/")[0]
    found = {settings.counts_table: "counts", settings.receipts_table: "receipts"}.get(name)
    if found is None:
        raise ConfigurationError(f"The stream {source[:200]!r} is of neither the counts nor the receipts table")
    return found
