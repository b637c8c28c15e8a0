"""The rollup: receipts and children that were written alone are added to their tallies.

A receipt says by how much, and on which minute; a child counts one. The rollup stamps the tally with that minute, so
that both halves of the change meet on it in the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..counter import Counter, Guarantee
from ..counting import tallies
from ..dynamo.client import Call
from ..dynamo.transactions import Write
from .fold import Consumer, Effect
from .record import (
    INSERT,
    YES,
    Declared,
    Image,
    Record,
    UnreadableError,
    accepted,
    amount,
    event_name,
    minute,
    minute_or_records,
    text,
)

NAME = "rollup"


def rolled_up(counter: Counter) -> bool:
    """Whether this consumer may add to it. A declaration may have changed since the receipt was written."""
    return counter.spills or counter.guarantee is Guarantee.ROLLUP


def read_receipt(declared: Declared, record: Record) -> Sequence[Effect]:
    """A receipt that was written alone: its amount, on its minute. One that replaces an expired one (MODIFY) is new."""
    image = accepted(record)
    if image is None or image.get("rollup") != YES:
        return ()
    counter = declared.by_name.get(image["counter"]["S"])
    if counter is None:
        raise UnreadableError(f"the counter {image['counter']['S'][:64]!r} is not declared")
    if not rolled_up(counter):
        raise UnreadableError(f"{counter.name} is not rolled up, as it is declared now")
    return (Effect(counter.name, text(image, "target"), minute(image), amount(image)),)


def read_count(declared: Declared, record: Record) -> Sequence[Effect]:
    """A child that was written alone: one, on its minute."""
    if event_name(record) != INSERT:
        return ()
    image = record["dynamodb"]["NewImage"]
    if image.get("rollup") != YES:
        return ()
    prefix, _, id_ = record["dynamodb"]["Keys"]["PK"]["S"].partition("#")
    sort_key = record["dynamodb"]["Keys"]["SK"]["S"]
    owners = [counter for start, counter in declared.children.get(prefix, ()) if sort_key.startswith(start)]
    if not owners:
        refuse_orphan(image)
    at = minute_or_records(image, record)
    for counter in owners:
        if not rolled_up(counter) or counter.max_shards == 1:
            raise UnreadableError(f"{counter.name} is not rolled up, as it is declared now")
    return tuple(Effect(counter.name, id_, at, 1) for counter in owners)


def refuse_orphan(image: Image) -> None:
    """Raise UnreadableError for a child that was written alone. An item of the team's own is no child."""
    if image.get("rollup") == YES and "likedAt" in image:
        raise UnreadableError("no counter is declared that counts this child")


def awaited_receipt(record: Record) -> bool:
    """Whether this consumer has something to add for a record of the receipts."""
    image = accepted(record)
    return image is not None and image.get("rollup") == YES


def awaited_count(record: Record) -> bool:
    """Whether it has for a record of the counts."""
    return bool(record["eventName"] == INSERT and record["dynamodb"]["NewImage"].get("rollup") == YES)


def shard_of(counter: Counter, table: str, bucket: int) -> int:
    """The tally shard that a stream shard's bucket adds to. For children never the first: that would make a post."""
    return bucket % counter.max_shards if table == "receipts" else 1 + bucket % (counter.max_shards - 1)


def write(call: Call, declared: Declared, table: str, bucket: int, effect: Effect) -> Write:
    """The update of the tally."""
    counter = declared.by_name[effect.counter]
    shard = shard_of(counter, table, bucket)
    return {"Update": tallies.add(call, counter, effect.id, shard, effect.accepted, effect.minute)}


def _tally(effect: Effect) -> tuple[object, ...]:
    return effect.counter, effect.id


CONSUMER = Consumer(NAME, {"receipts": read_receipt, "counts": read_count}, write, _tally, {})
