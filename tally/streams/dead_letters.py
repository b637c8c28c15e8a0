"""Dead letters: records that a consumer could not apply. A bucket in S3 has the record, and the ledger has a marker.

The consumer first puts the object. The transaction that moves the checkpoint past the record puts the marker. So no
record is lost, and a record that becomes a dead letter twice is one dead letter. A redrive deletes the marker and
applies the effect in one transaction, on condition that the minute of the effect is not judged.

If a dead letter is older than the ledger's restart (loss.py), the other half of its change is lost or not judged. The
bookkeeper's redrive then books the expected amount as observed, too, so that the series have the change and no drift
appears. The rollup's redrive moves the tally with the nonce of a repair, so the bookkeeper does not book this move.
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
from ..dynamo.client import Call, Store, aws_client
from ..dynamo.keys import Item
from ..dynamo.transactions import ConditionFailedError, Write, WriteRejectedError, commit_writes
from ..errors import StoreBusyError, StoreUnreachableError
from . import loss, watermark
from .fold import BatchContext, StreamConsumer
from .lineage import ITEMS
from .record import MALFORMED_ERRORS, CounterIndex, PoisonRecordError, Record, created_s

REASON_CHARACTERS_MAX = 300  # of a reason, as the object and the marker store it
REDRIVEN = "redrive"  # a redrive's segment has this and the marker's sort key in its name, in place of a stream shard
REDRIVES_MAX = 3  # tries: a try fails only if its minute is judged or the ledger restarts before the commit


class DeadLetterExpiredError(PoisonRecordError):
    """The object of a dead letter is not in the bucket: it expired, or somebody removed it."""


@dataclass
class DeadLetterBucket:
    """The bucket. If S3 fails, each method raises StoreUnreachableError, and the caller can repeat the call."""

    bucket: str
    # S3 answers in 100 ms. If S3 does not answer in time, the batch fails, and Lambda delivers the batch again.
    make_client: Callable[[], Any] = lambda: aws_client("s3", read_timeout_s=5, attempts=3)

    @cached_property
    def _client(self) -> Any:
        return self.make_client()

    def put(self, key: str, body: Mapping[str, Any]) -> None:
        """Stores an object as JSON, in place of an older object of its key."""
        self._request("put_object", key, Body=json.dumps(body, default=str).encode(), ContentType="application/json")

    def get(self, key: str) -> Any:
        """Returns the content of an object. Raises DeadLetterExpiredError, or PoisonRecordError if it is not JSON."""
        try:
            return json.loads(self._request("get_object", key))
        except ValueError:
            raise PoisonRecordError(f"the object {key} is not JSON") from None

    def delete(self, key: str) -> None:
        """Deletes an object, if it exists."""
        self._request("delete_object", key)

    def _request(self, name: str, key: str, **more: Any) -> Any:
        try:
            answer = getattr(self._client, name)(Bucket=self.bucket, Key=key, **more)
            return answer["Body"].read() if name == "get_object" else None
        except (ClientError, BotoCoreError) as error:
            if isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") == "NoSuchKey":
                raise DeadLetterExpiredError("the object of the dead letter is not in the bucket") from None
            raise StoreUnreachableError(f"The bucket of the dead letters failed: {error}") from error


class DeadLetterMarker(NamedTuple):
    """The marker of a dead letter. `sort_key`: consumer, time of the record, table, shard, sequence number. `object`:
    the key of the object in the bucket. `reason`: why the record is a dead letter, and `at_s`: since when."""

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
        """When the record was made, epoch seconds; 0: the record has no time."""
        return int(self.sort_key.split("#")[1])


def store_and_mark(
    call: Call, bucket: DeadLetterBucket, consumer: str, table: str, shard: str, sequence: str, record: Record, why: str
) -> Write:
    """Puts the record into the bucket, and returns the write of its marker, which must commit with the checkpoint.

    `sequence`: the sequence number. The marker of a record without a time has time 0, because the record may be the
    oldest. Raises StoreUnreachableError.
    """
    object_key = f"{consumer}/{table}/{shard}/{sequence}.json"
    reason = why[:REASON_CHARACTERS_MAX]
    bucket.put(object_key, {"consumer": consumer, "table": table, "shard": shard, "reason": reason, "record": record})
    values: items.Values = {"object": object_key, "reason": reason, "table": table, "at": int(clock.now_s())}
    made_s = 0
    with suppress(PoisonRecordError):
        made_s = int(created_s(record))
    sort_key = f"{keys.dead_letter_prefix(consumer)}{made_s:010}#{table}#{shard}#{sequence}"
    return items.put_write(call.store.settings.ledger_table, keys.key(keys.DEAD_LETTER_KEY, sort_key), values)


def list_markers(call: Call) -> Iterator[DeadLetterMarker]:
    """Yields the markers, by consumer and by the time of the record. Raises what botocore's errors map to."""
    for item in queries.partition_items(call.store, call.store.settings.ledger_table, keys.DEAD_LETTER_KEY):
        object_key, reason, table = (item[name]["S"] for name in ("object", "reason", "table"))
        yield DeadLetterMarker(item["SK"]["S"], object_key, reason, table, items.int_attribute(item, "at"))


def any_waiting(store: Store) -> bool:
    """Returns whether there is a dead letter, which waits for a redrive."""
    return bool(queries.query(store, store.settings.ledger_table, keys.DEAD_LETTER_KEY, Limit=1))


class RedriveOutcome(Enum):
    """The result of a redrive.

    ALREADY_APPLIED: another redrive applied the record, or this redrive did, and DynamoDB's answer was lost.
    STILL_BLOCKED: the record cannot be applied. OBJECT_LOST: the object is not in the bucket, so the record can never
    be applied. The marker stays until a person discards the dead letter.
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
    """Applies a dead letter once. Returns the outcome, and why the dead letter stays; "" if it does not stay.

    The effects are booked on the current minute, by DynamoDB's clock. After StoreUnreachableError or StoreBusyError,
    the caller can repeat the redrive.
    """
    settings = call.store.settings
    for _ in range(REDRIVES_MAX):
        watermark_ = watermark.read(call.store)
        minute = settings.minute_of(clock.now_s())
        resume_minute = watermark.pending_resume_minute(call.store, watermark_)
        context = BatchContext("", f"{REDRIVEN}#{marker.sort_key}", minute)
        outcome = RedriveOutcome.APPLIED
        try:
            writes = _writes(call, consumers, declared, objects.get(marker.object), context, resume_minute)
            checks = _marker_removal_write(call, marker), _open_minute_check_write(call, minute, watermark_)
            commit_writes(call, [*checks, *writes])
        except (PoisonRecordError, WriteRejectedError, ConditionFailedError) as error:
            has_marker = bool(queries.get(call.store.client, settings.ledger_table, marker.key))
            has_expired = isinstance(error, DeadLetterExpiredError)
            if has_marker and not isinstance(error, ConditionFailedError):
                return RedriveOutcome.OBJECT_LOST if has_expired else RedriveOutcome.STILL_BLOCKED, error.detail
            if has_marker:
                continue  # the minute was judged, or the ledger restarted, before the commit
            outcome = RedriveOutcome.ALREADY_APPLIED
        objects.delete(marker.object)
        return outcome, ""
    raise StoreBusyError("The sweep judged the minute before the record was applied. Check the clocks, and try again.")


def discard(call: Call, marker: DeadLetterMarker) -> None:
    """Deletes the marker of a record whose object is gone, and notes the loss. If there is no marker, does nothing.

    The loss of a team table's record is not noted: its counters need a scan instead (team/scan_state.py).
    """
    lost = loss.loss_of_discarded(call.store.settings, marker.sort_key, marker.consumer, marker.made_s)
    loss_writes = [] if marker.consumer == ITEMS else [lost.as_write(call.store.settings)]
    with suppress(ConditionFailedError):  # there is no marker
        commit_writes(call, [_marker_removal_write(call, marker), *loss_writes])


def _marker_removal_write(call: Call, marker: DeadLetterMarker) -> Write:
    ledger = {"TableName": call.store.settings.ledger_table, "Key": marker.key}
    return {"Delete": items.with_expected(ledger, {"object": marker.object})}


def _open_minute_check_write(call: Call, minute: int, watermark_: watermark.Watermark) -> Write:
    """Returns the check that neither `minute` nor the minute before is judged, and that `resume_minute` is unchanged.

    After the minute before is judged, the judge may be reading the segments of `minute`.
    """
    check = {
        "TableName": call.store.settings.ledger_table,
        "Key": watermark.WATERMARK_KEY,
        "ConditionExpression": "attribute_not_exists(judged) OR judged < :before",
        "ExpressionAttributeValues": {":before": {"N": str(minute - 1)}},
    }
    return {"ConditionCheck": items.with_expected(check, {"resume_minute": watermark_.item.get("resume_minute")})}


def _writes(
    call: Call,
    consumers: Mapping[str, StreamConsumer],
    declared: CounterIndex,
    letter: Any,
    context: BatchContext,
    resume_minute: int,
) -> list[Write]:
    """Returns the writes of a dead letter's effects, on the minute of `context`. `letter`: the content of its object.

    `resume_minute`: the first minute that is judged after a loss. If the record's booking minute is before this minute,
    the other half, which has the same booking minute, is lost or not judged. Raises PoisonRecordError.
    """
    try:
        consumer, table, record = consumers[letter["consumer"]], letter["table"], letter["record"]
        number = record["dynamodb"]["SequenceNumber"]
    except MALFORMED_ERRORS as error:
        raise PoisonRecordError(f"its object has no valid consumer, table or record: {error}") from None
    effects = consumer.effects(declared, table, record)
    has_lost_half = any(effect.minute < resume_minute for effect in effects)
    run = consumer.run(number, context._replace(table=table, is_drift_exempt=has_lost_half))
    run.add([effect._replace(minute=context.minute, pair="") for effect in effects])  # only near minutes are paired
    return run.writes(call, declared)
