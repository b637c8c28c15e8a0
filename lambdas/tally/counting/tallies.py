"""The tally of one id: how it is read, and the write that moves it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..counter import Counter
from ..dynamo import client
from ..dynamo.client import Call, Item, query
from ..dynamo.transactions import Write
from ..errors import ChangeRefusedError, LimitReachedError


@dataclass(frozen=True)
class State:
    """The number of an unsharded counter, and the version that every write of it increments (0: never written)."""

    value: int
    version: int


def read(call: Call, counter: Counter, id_: str) -> int:
    """The tally of `id_`: one strongly consistent Query, whatever the shards; `start` if nothing was counted."""
    if counter.versioned:
        return read_state(call, counter, id_).value
    low, high = counter.shard_range
    page: dict[str, Any] = query(call, counter.partition_key(id_), low, high)
    return total(counter, page["Items"])


def read_together(call: Call, counters: Sequence[Counter], id_: str) -> list[int]:
    """The tallies of `id_` under counters that share a prefix, in order: one Query over all their shards."""
    ranges = [counter.shard_range for counter in counters]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    page: dict[str, Any] = query(call, counters[0].partition_key(id_), low, high)
    return [
        total(counter, (item for item in page["Items"] if first <= item["SK"]["S"] <= last))
        for counter, (first, last) in zip(counters, ranges, strict=True)
    ]


def total(counter: Counter, items: Iterable[Item]) -> int:
    """The sum over shards. Not a snapshot: while changes race it may be off by those in flight.

    The parts of a tally that only counts up, or that counts children, are never shown below zero.
    """
    number = sum(stored(counter, item, 0) for item in items if counter.shard_of(item["SK"]["S"]) is not None)
    return number if counter.signed else max(0, number)


def stored(counter: Counter, item: Mapping[str, Any], missing: int) -> int:
    """The number in an item, `missing` if there is none.

    What is behind the point of a fraction, which only an edit by hand brings there, is cut off: then the number can be
    read, and drift says by how much it is wrong.
    """
    number = item.get(counter.attribute)
    return missing if number is None else int(number["N"].partition(".")[0])


def read_state(call: Call, counter: Counter, id_: str) -> State:
    """Number and version of a counter that has one shard."""
    page = query(call, counter.partition_key(id_), counter.sort_key, counter.sort_key)
    return state_of(counter, page["Items"][0] if page["Items"] else {})


def state_of(counter: Counter, item: Mapping[str, Any]) -> State:
    """Number and version in an item of an unsharded counter; those of a fresh one if the item is empty."""
    return State(stored(counter, item, counter.start), int(item.get("version", {"N": "0"})["N"]))


def add(call: Call, counter: Counter, id_: str, shard: int, amount: int, at: int) -> Write:
    """The update that adds `amount` to one shard, within the counter's limits, and stamps it: with the minute
    that the change is booked on, and with a nonce, by which the streams tell it from an edit by hand.

    Makes the shard if it is not there. When a limit refuses it, the old item comes back with the refusal.
    """
    write: Write = {
        "TableName": call.store.settings.counts_table,
        "Key": key(counter, id_, shard),
        "UpdateExpression": "SET #at = :at, nonce = :nonce ADD #number :amount",
        "ExpressionAttributeNames": {"#at": "at", "#number": counter.attribute},
        "ExpressionAttributeValues": {":at": {"N": str(at)}, ":nonce": _nonce(), ":amount": {"N": str(amount)}},
    }
    if counter.versioned:
        write["UpdateExpression"] = (
            "SET #at = :at, nonce = :nonce, #number = if_not_exists(#number, :start) + :amount ADD version :one"
        )
        write["ExpressionAttributeValues"] |= {":start": {"N": str(counter.start)}, ":one": {"N": "1"}}
    limit, condition = _limit(counter, amount)
    if limit is not None:
        write["ExpressionAttributeValues"] |= {":limit": {"N": str(limit)}}
        write |= {"ConditionExpression": condition, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    return write


def _limit(counter: Counter, amount: int) -> tuple[int | None, str]:
    """What the number must be for `amount` to fit, and the condition on it; None if it fits any number."""
    if amount < 0 and counter.floor is not None:
        limit, comparison = counter.floor - amount, ">="
        fresh_fits = counter.start >= limit
    elif amount > 0 and counter.ceiling is not None:
        limit, comparison = counter.ceiling - amount, "<="
        fresh_fits = counter.start <= limit
    else:
        return None, ""
    return limit, f"#number {comparison} :limit" + (" OR attribute_not_exists(#number)" if fresh_fits else "")


def refuse(counter: Counter, value: int, amount: int) -> LimitReachedError:
    """The refusal of `amount` at `value`, saying what is left."""
    if amount < 0 and counter.floor is not None:
        return LimitReachedError(f"{value - counter.floor} are left.", left=value - counter.floor)
    left = (counter.ceiling or 0) - value
    return LimitReachedError(f"There is room for {left} more.", left=left)


def refusal(counter: Counter, refused: ChangeRefusedError, amount: int) -> LimitReachedError:
    """The refusal of `amount` by a write that `add` made first of its change: the old item says what is left."""
    return refuse(counter, state_of(counter, refused.old_items[0] or {}).value, amount)


def facts(counter: Counter, id_: str, amount: int, at: int) -> dict[str, Item]:
    """What a receipt says of a change, for whoever reads the receipts' stream."""
    return {
        "counter": {"S": counter.name},
        "target": {"S": id_},
        "amount": {"N": str(amount)},
        "at": {"N": str(at)},
    }


def fits(counter: Counter, value: int) -> bool:
    """Whether `value` is within floor and ceiling."""
    return (counter.floor is None or value >= counter.floor) and (counter.ceiling is None or value <= counter.ceiling)


def assign(call: Call, counter: Counter, id_: str, seen: State, value: int, at: int) -> Write:
    """The update that sets an unsharded counter on condition that it has not moved since it was `seen`."""
    unmoved = "version = :seen" if seen.version else "attribute_not_exists(version)"
    write: Write = {
        "TableName": call.store.settings.counts_table,
        "Key": key(counter, id_, 0),
        "UpdateExpression": "SET #at = :at, nonce = :nonce, #number = :value, version = :next",
        "ConditionExpression": unmoved,
        "ExpressionAttributeNames": {"#at": "at", "#number": counter.attribute},
        "ExpressionAttributeValues": {
            ":at": {"N": str(at)},
            ":nonce": _nonce(),
            ":value": {"N": str(value)},
            ":next": {"N": str(seen.version + 1)},
        },
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    if seen.version:
        write["ExpressionAttributeValues"][":seen"] = {"N": str(seen.version)}
    return write


def key(counter: Counter, id_: str, shard: int) -> Item:
    """The key of one shard's item."""
    return client.key(counter.partition_key(id_), counter.shard_key(shard))


def _nonce() -> Item:
    """What no other write of a tally item carries."""
    return {"S": secrets.token_urlsafe(6)}
