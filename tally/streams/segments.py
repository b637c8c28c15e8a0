"""The journal: what a run of stream records says of the tallies in one minute, as one compressed segment.

The bookkeeper writes them in the transaction that moves its checkpoint; a redrive writes one. None ever changes. A
segment takes 5 to 30 bytes for each tally that moved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from ..counting.receipts import end_of_day_s
from ..dynamo import items, keys, queries
from ..dynamo.client import Store
from ..dynamo.keys import Item
from ..dynamo.transactions import Write
from ..settings import Settings
from . import fold

# `read_segments` them alone
ONLY_HALVES = {
    "FilterExpression": "attribute_exists(pairs)",
    "ProjectionExpression": "pairs",
}
# at least, to the end of that day: a sweep that was down over a holiday still judges them
SEGMENT_KEPT_S = 9 * 24 * 3600


class JournalEntry(NamedTuple):
    """What one minute says of one tally."""

    counter: str
    id: str
    pair: str  # the name that both halves of an unlike share, while they are apart; else empty
    expected: int
    observed: int
    day: int = -1  # since 1970, that an import belongs to, all of it expected; -1: no import


Sums = dict[str, list[list[Any]]]  # by counter, the columns of a segment: ids, expected, observed


def segment_write(
    settings: Settings, minute: int, bucket: int, name: str, entries: Collection[JournalEntry], now_s: float
) -> Write:
    """The write of a segment. `name`: table, stream shard and first sequence number, which no other segment has."""
    columns: Sums = {}
    halves = [entry[:5] for entry in sorted(entries) if entry.pair]
    days: list[tuple[str, int, int]] = []
    for counter, id_, pair, expected, observed, day in sorted(entries):
        assert day < 0 or not pair, "a half has no day"
        if not pair:
            ids, more, moved = columns.setdefault(counter, [[], [], []])
            if day >= 0:
                days.append((counter, len(ids), day))
            ids.append(id_)
            more.append(expected)
            moved.append(observed)
    parts = {"body": columns, "pairs": halves, "imports": days}
    body = {name: items.compress(part) for name, part in parts.items() if part or name == "body"}
    # A batch may have one visit alone: with the second of the batch, the access log would name who it was.
    values: items.Values = {**body, "expiration": end_of_day_s(int(now_s) + SEGMENT_KEPT_S)}
    return items.put_write(settings.ledger_table, keys.key(f"SEGMENT#{minute}#{bucket}", name), values)


def read_segments(store: Store, minute: int, **wanted: str) -> Iterator[Item]:
    """The segments of a minute, in any order. `wanted`: parameters of DynamoDB's Query."""
    for partition in partitions(minute):
        yield from queries.partition_items(store, store.settings.ledger_table, partition, **wanted)


def partitions(minute: int) -> list[str]:
    """The partition keys of the segments of a minute."""
    return [f"SEGMENT#{minute}#{bucket}" for bucket in range(fold.BUCKETS)]


def columns(segment: Item) -> Sums:
    """The entries of a segment that are not halves of an unlike."""
    return dict(items.decompress(segment["body"]))


def removal_halves(segment: Item) -> list[JournalEntry]:
    """The entries of a segment that are halves of an unlike."""
    return [JournalEntry(*entry) for entry in items.decompress(segment["pairs"])] if "pairs" in segment else []


def imported_amounts(segment: Item, sums: Sums) -> Iterator[tuple[str, str, int, int]]:
    """What of the sums was imported: counter, id, the day that it belongs to, and the amount."""
    for counter, row, day in items.decompress(segment["imports"]) if "imports" in segment else ():
        ids, expected, _ = sums[counter]
        yield counter, ids[row], day, expected[row]


def compressed_bytes(segment: Item) -> int:
    """The compressed bytes of a segment."""
    return sum(len(segment[name]["B"]) for name in ("body", "pairs", "imports") if name in segment)
