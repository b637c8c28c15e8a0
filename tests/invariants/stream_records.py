"""Makes single stream records, in the JSON that DynamoDB sends, and writes journal segments."""

from __future__ import annotations

from typing import Any

from tally.dynamo.client import Store
from tally.dynamo.transactions import try_commit
from tally.streams import segments
from tally.streams.fold import BatchContext
from tally.streams.segments import JournalEntry
from tests.invariants.streaming import NOW_S

SHARD = "shardId-1"
MINUTE = int(NOW_S // 60)


def play(
    sequence: int | str,
    video: str = "v",
    amount: object = 1,
    record_minute: int = MINUTE,
    writer_minute: int | None = None,
    **attributes: Any,
) -> dict[str, Any]:
    """Makes the record of a spilled play. `writer_minute`: the minute of the writer's clock; None: `record_minute`.
    `attributes`: other attributes of the receipt."""
    minute = record_minute if writer_minute is None else writer_minute
    image = {
        "id": {"S": f"tally#{sequence}"}, "counter": {"S": "plays"}, "target": {"S": video},
        "amount": {"N": str(amount)}, "at": {"N": str(minute)}, "rollup": {"BOOL": True},
    }  # fmt: skip
    return record(sequence, "INSERT", {"NewImage": image | attributes}, NOW_S + 60 * (record_minute - MINUTE))


def record(sequence: int, name: str, change: dict[str, Any], created_s: float = NOW_S) -> dict[str, Any]:
    """Makes a record. `name`: `INSERT`, `MODIFY` or `REMOVE`. `change`: the keys and images of the item."""
    stamped = {**change, "SequenceNumber": str(sequence), "ApproximateCreationDateTime": created_s}
    return {"eventName": name, "dynamodb": stamped}


def like(sequence: int, user: str, name: str = "INSERT", **attributes: Any) -> dict[str, Any]:
    """Makes the record of a spilled like, or of its removal. `name`: `INSERT` or `REMOVE`."""
    keys = {"PK": {"S": "POST#p"}, "SK": {"S": f"LIKE#USER#{user}"}}
    image = {**keys, "likedAt": {"N": "1"}, "at": {"N": str(MINUTE)}, "rollup": {"BOOL": True}} | attributes
    return record(sequence, name, {"Keys": keys, "OldImage" if name == "REMOVE" else "NewImage": image})


def heartbeat(sequence: int, key: str = "7", created_s: float = NOW_S) -> dict[str, Any]:
    """Makes the record of a heartbeat in the receipts."""
    keys = {"id": {"S": f"heartbeat#{key}"}}
    image = {**keys, "at": {"N": "1"}}
    return record(sequence, "MODIFY", {"Keys": keys, "NewImage": image}, created_s)


POISON_PLAY = play(50, amount="x")


def bucket_of(shard: str) -> int:
    """Returns the journal bucket of a stream shard."""
    return BatchContext("receipts", shard).bucket


def book(
    store: Store, minute: int, *entries: JournalEntry, name: str = "s#1", bucket: int = 0, now_s: float = 0
) -> None:
    """Write a segment of a minute into the journal. `name`: stream shard, `#` and sequence number of the segment."""
    assert try_commit(store, [segments.segment_write(store.settings, minute, bucket, name, entries, now_s)])
