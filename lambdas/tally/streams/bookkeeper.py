"""The drift consumer: it books in the ledger, minute by minute, what is expected of each tally and what is observed.

Expected: accepted changes (receipts), and children that were put or deleted, by Tally or manually. Observed: every
change of a tally item. Both halves of a change that Tally writes carry its minute. A manual edit is booked on the
minute of its record.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..counting import tallies
from ..dynamo.client import Call
from ..dynamo.transactions import Write
from . import rollup
from .fold import Consumer, Effect
from .record import (
    INSERT,
    MODIFY,
    REMOVE,
    YES,
    Declared,
    Record,
    UnreadableError,
    accepted,
    amount,
    event_name,
    minute,
    minute_or_records,
    record_minute,
    text,
)

NAME = "drift"


def read_receipt(declared: Declared, record: Record) -> Sequence[Effect]:
    """An accepted change: expected. An expiry has no effect, nor has a receipt that does not say what it counted.

    A record that the rollup sets aside for lack of a declaration is set aside here too: redriven only there, it would
    be drift.
    """
    image = accepted(record)
    if image is None or "counter" not in image:
        return ()
    counter = declared.by_name.get(image["counter"]["S"])
    if counter is None and image.get("rollup") == YES:
        raise UnreadableError(f"the counter {image['counter']['S'][:64]!r} is not declared")
    if counter is None or not counter.tracked:
        return ()
    return (Effect(counter.name, text(image, "target"), minute(image), amount(image)),)


def read_count(declared: Declared, record: Record) -> Sequence[Effect]:
    """A child that was put or deleted: expected. A tally item that changed: observed. Any other item: no effect."""
    name, change = event_name(record), record["dynamodb"]
    prefix, _, id_ = change["Keys"]["PK"]["S"].partition("#")
    sort_key = change["Keys"]["SK"]["S"]
    for start, _ in declared.children.get(prefix, ()):
        if sort_key.startswith(start):
            return _child(declared, record, name, prefix, id_, sort_key)
    counter = declared.tally(prefix, sort_key)
    if counter is None and name == INSERT:
        rollup.refuse_orphan(change.get("NewImage") or {})
    if counter is None or not counter.tracked:
        return ()
    new, old = change.get("NewImage") or {}, change.get("OldImage") or {}
    if (name != REMOVE and not new) or (name != INSERT and not old):
        raise UnreadableError(f"a {name} without its image")
    moved = tallies.stored(counter, new, counter.start) - tallies.stored(counter, old, counter.start)
    if not moved:
        return ()
    nonce = new.get("nonce")
    by_tally = nonce is not None and nonce != old.get("nonce")
    at = minute_or_records(new, record) if by_tally else record_minute(record)
    return (Effect(counter.name, id_, at, observed=moved),)


def _child(declared: Declared, record: Record, name: str, prefix: str, id_: str, sort_key: str) -> tuple[Effect, ...]:
    """One more, or one less on the minute of its like: so both halves of an unlike meet there too."""
    if name == MODIFY:
        return ()
    change, moved = record["dynamodb"], 1 if name == INSERT else -1
    at = minute_or_records(change["NewImage" if name == INSERT else "OldImage"], record)
    return tuple(
        Effect(counter.name, id_, at, moved)
        for start, counter in declared.children[prefix]
        if sort_key.startswith(start) and counter.tracked
    )


def write(call: Call, declared: Declared, table: str, bucket: int, effect: Effect) -> Write:
    """The update of the ledger's row."""
    settings, (counter, id_, minute, expected, observed) = call.store.settings, effect
    return tallies.book(settings, counter, id_, minute, bucket, expected=expected, observed=observed)


def _row(effect: Effect) -> tuple[object, ...]:
    return effect.counter, effect.id, effect.minute


CONSUMER = Consumer(
    NAME,
    {"receipts": read_receipt, "counts": read_count},
    write,
    _row,
    {"receipts": rollup.awaited_receipt, "counts": rollup.awaited_count},
)
