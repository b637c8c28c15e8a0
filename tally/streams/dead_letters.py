"""Records that could not be applied: kept whole in S3, marked in the ledger, and applied later, once.

The object is put first, and the marker in the transaction that moves the checkpoint over the record. So none is lost,
and one that becomes a dead letter twice is one. A redrive deletes the marker and applies the effect in one transaction,
on condition that nobody judges the minute yet that it books on. One of a time before the ledger began again (loss.py)
has lost its other half: it is booked as even, so that the series have it, and moves a tally as a repair does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError

from ..dynamo import clock, items, keys, queries
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..dynamo.transactions import ConditionFailedError, Write, WriteRejectedError, commit_writes
from ..errors import StoreBusyError, StoreUnreachableError
from . import loss, watermark
from .fold import BatchContext, StreamConsumer
from .lineage import ITEMS
from .record import MALFORMED_ERRORS, CounterIndex, PoisonRecordError, Record, created_s

REASON_CHARACTERS_MAX = 300
REDRIVEN = "redrive"
REDRIVES_MAX = 3  # the minute is minutes from being judged: only a commit that hangs comes too late


def _s3_client() -> Any:
    """Made when the first record becomes a dead letter, which should be never: it adds 50 ms to a cold start."""
    import boto3
    from botocore.config import Config

    # S3 answers in 100 ms; Lambda delivers a batch again that waits longer.
    config = Config(connect_timeout=1, read_timeout=5, retries={"total_max_attempts": 3, "mode": "standard"})
    return boto3.client("s3", config=config)


class DeadLetterExpiredError(PoisonRecordError):
    """The object of a dead letter is not in the bucket: it expired, or somebody removed it."""


@dataclass
class DeadLetterBucket:
    """The bucket. Every failure of S3 is a StoreUnreachableError: nothing is lost, and the caller tries again."""

    bucket: str
    make: Callable[[], Any] = _s3_client

    @cached_property
    def _client(self) -> Any:
        return self.make()

    def put(self, key: str, body: Mapping[str, Any]) -> None:
        """Store an object as JSON, over an older one of its key."""
        self._ask("put_object", key, Body=json.dumps(body, default=str).encode(), ContentType="application/json")

    def get(self, key: str) -> Any:
        """The content of an object. Raises DeadLetterExpiredError, or PoisonRecordError if it is no JSON."""
        try:
            return json.loads(self._ask("get_object", key))
        except ValueError:
            raise PoisonRecordError(f"the object {key} holds no JSON") from None

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        self._ask("delete_object", key)

    def _ask(self, name: str, key: str, **more: Any) -> Any:
        try:
            answer = getattr(self._client, name)(Bucket=self.bucket, Key=key, **more)
            return answer["Body"].read() if name == "get_object" else None
        except (ClientError, BotoCoreError) as error:
            if isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") == "NoSuchKey":
                raise DeadLetterExpiredError("its object is not in the bucket") from None
            raise StoreUnreachableError(f"The bucket of the dead letters failed: {error}") from error


class DeadLetterMarker(NamedTuple):
    """A dead letter. `sort_key`: consumer, time of the record, shard, number; `object`: its key in the bucket."""

    sort_key: str
    object: str
    reason: str
    table: str
    at_s: int

    @property
    def key(self) -> Item:
        return keys.key(keys.DEAD_LETTER_KEY, self.sort_key)

    @property
    def consumer(self) -> str:
        return self.sort_key.partition("#")[0]

    @property
    def made_s(self) -> int:
        """When the record was made, epoch seconds; 0: it does not say."""
        return int(self.sort_key.split("#")[1])


def store_and_mark(
    call: Call,
    objects: DeadLetterBucket,
    consumer: str,
    table: str,
    shard: str,
    spelled: str,
    record: Record,
    reason: str,
) -> Write:
    """Put the record into the bucket; the write of its marker, which must commit with the checkpoint.

    `spelled`: the sequence number. A record without a time comes first: it may be the oldest one. Raises
    StoreUnreachableError.
    """
    object_key = f"{consumer}/{table}/{shard}/{spelled}.json"
    reason = reason[:REASON_CHARACTERS_MAX]
    objects.put(object_key, {"consumer": consumer, "table": table, "shard": shard, "reason": reason, "record": record})
    values: items.Values = {"object": object_key, "reason": reason, "table": table, "at": int(clock.now_s())}
    made_s = 0
    with suppress(PoisonRecordError):
        made_s = int(created_s(record))
    sort_key = f"{keys.dead_letter_prefix(consumer)}{made_s:010}#{table}#{shard}#{spelled}"
    return items.put_write(call.store.settings.ledger_table, keys.key(keys.DEAD_LETTER_KEY, sort_key), values)


def list_markers(call: Call) -> Iterator[DeadLetterMarker]:
    """The markers, by consumer and by the time of the record. Raises what botocore's errors map to."""
    for item in queries.partition_items(call.store, call.store.settings.ledger_table, keys.DEAD_LETTER_KEY):
        object_key, reason, table = (item[name]["S"] for name in ("object", "reason", "table"))
        yield DeadLetterMarker(item["SK"]["S"], object_key, reason, table, items.int_attribute(item, "at"))


def any_waiting(store: Store) -> bool:
    """Whether there is a dead letter."""
    return bool(queries.query(store, store.settings.ledger_table, keys.DEAD_LETTER_KEY, Limit=1))


class RedriveOutcome(Enum):
    """The result of a redrive.

    GONE: another redrive has applied it, or this one did and the answer was lost. KEPT: it still cannot be applied.
    LOST: nobody can apply it any more, for its object is gone. The marker stays until somebody drops it.
    """

    APPLIED = "applied"
    ALREADY_APPLIED = "gone"
    STILL_BLOCKED = "kept"
    OBJECT_LOST = "lost"


def redrive(
    call: Call,
    objects: DeadLetterBucket,
    consumers: Mapping[str, StreamConsumer],
    declared: CounterIndex,
    marker: DeadLetterMarker,
) -> tuple[RedriveOutcome, str]:
    """Apply a dead letter, once; the outcome, and the reason if it was kept.

    The effects are booked on the current minute, as DynamoDB says. Raises StoreUnreachableError and StoreBusyError: the
    record can be redriven again.
    """
    settings = call.store.settings
    for _ in range(REDRIVES_MAX):
        seen = watermark.read(call.store)
        minute = settings.minute_of(clock.now_s())
        again = watermark.pending_resume_minute(call.store, seen)
        place = BatchContext("", f"{REDRIVEN}#{marker.sort_key}", minute)
        outcome = RedriveOutcome.APPLIED
        try:
            writes = _writes(call, consumers, declared, objects.get(marker.object), place, again)
            commit_writes(call, [_marker_removal(call, marker), _open_minute_check(call, minute, seen), *writes])
        except (PoisonRecordError, WriteRejectedError, ConditionFailedError) as error:
            there = queries.get(call.store.client, settings.ledger_table, marker.key)
            has_expired = isinstance(error, DeadLetterExpiredError)
            if there and not isinstance(error, ConditionFailedError):
                return RedriveOutcome.OBJECT_LOST if has_expired else RedriveOutcome.STILL_BLOCKED, error.detail
            if there:
                continue  # it took so long that the minute was judged meanwhile
            outcome = RedriveOutcome.ALREADY_APPLIED
        objects.delete(marker.object)
        return outcome, ""
    raise StoreBusyError("The minute is judged before the record is applied: is the sweep's clock right?")


def discard(call: Call, marker: DeadLetterMarker) -> None:
    """Removes the marker of a record whose object is gone, and notes that the record is lost. Without a marker it does
    nothing.

    What a team's table lost delays no other number: its counters are to be scanned (team/scan_state.py)."""
    lost = loss.loss_of_discarded(call.store.settings, marker.sort_key, marker.consumer, marker.made_s)
    noted = [] if marker.consumer == ITEMS else [lost.as_write(call.store.settings)]
    try:
        commit_writes(call, [_marker_removal(call, marker), *noted])
    except ConditionFailedError:
        return


def _marker_removal(call: Call, marker: DeadLetterMarker) -> Write:
    ledger = {"TableName": call.store.settings.ledger_table, "Key": marker.key}
    return {"Delete": items.with_expected(ledger, {"object": marker.object})}


def _open_minute_check(call: Call, minute: int, seen: watermark.Watermark) -> Write:
    """The check that a minute is not judged, nor the one before: the judge may be reading the next one. And that the
    ledger has not restarted since."""
    check = {
        "TableName": call.store.settings.ledger_table,
        "Key": watermark.WATERMARK_KEY,
        "ConditionExpression": "attribute_not_exists(judged) OR judged < :before",
        "ExpressionAttributeValues": {":before": {"N": str(minute - 1)}},
    }
    return {"ConditionCheck": items.with_expected(check, {"again": seen.item.get("again")})}


def _writes(
    call: Call,
    consumers: Mapping[str, StreamConsumer],
    declared: CounterIndex,
    kept: Any,
    place: BatchContext,
    again: int,
) -> list[Write]:
    """The effects of a dead letter. Raises PoisonRecordError if they cannot be read.

    `again`: the first minute that is judged after a loss. The other half of a change is booked on the minute that its
    record asks for, and that may not be the one in which the record was made.
    """
    try:
        consumer, table, record = consumers[kept["consumer"]], kept["table"], kept["record"]
        spelled = record["dynamodb"]["SequenceNumber"]
    except MALFORMED_ERRORS as error:
        raise PoisonRecordError(f"its object lacks a good consumer, table or record: {error}") from None
    effects = consumer.effects(declared, table, record)
    even = any(effect.minute < again for effect in effects)
    run = consumer.run(spelled, place._replace(table=table, is_drift_exempt=even))
    run.add([effect._replace(minute=place.minute, pair="") for effect in effects])
    return run.writes(call, declared)
