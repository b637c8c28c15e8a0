"""The journal: for each run of stream records and each minute, one compressed segment has the entries of the tallies.

The bookkeeper writes segments in the transaction that moves its checkpoint. A redrive writes one segment. A segment
never changes. It has 5 to 30 bytes for each tally that moved.
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

ONLY_HALVES = {"FilterExpression": "attribute_exists(pairs)", "ProjectionExpression": "pairs"}  # for read_segments
SEGMENT_KEPT_S = 9 * 24 * 3600  # at least: after a week without a sweep, the judge still finds the segments


class JournalEntry(NamedTuple):
    """The expected and the observed amount of one tally in one minute."""

    counter: str
    id: str
    pair: str  # the name that both halves of a child's removal share, if the two are in two entries; otherwise empty
    expected: int
    observed: int
    day: int = -1  # the day of an import, since 1970; -1: not imported


Sums = dict[str, list[list[Any]]]  # by counter, the columns of a segment: ids, expected, observed


def segment_write(
    settings: Settings, minute: int, bucket: int, name: str, entries: Collection[JournalEntry], now_s: float
) -> Write:
    """Returns the write of a segment. `name`: its table, stream shard and first sequence number, together unique."""
    columns: Sums = {}
    halves = [entry[:5] for entry in sorted(entries) if entry.pair]  # without the day
    days: list[tuple[str, int, int]] = []  # of imports: counter, the entry's row in the columns, day
    for counter, id_, pair, expected, observed, day in sorted(entries):
        assert day < 0 or not pair, "a half has no day"
        if not pair:
            ids, expected_amounts, observed_amounts = columns.setdefault(counter, [[], [], []])
            if day >= 0:
                days.append((counter, len(ids), day))
            ids.append(id_)
            expected_amounts.append(expected)
            observed_amounts.append(observed)
    parts = {"body": columns, "pairs": halves, "imports": days}
    # `columns` reads `body` of every segment, so an empty `body` is stored, too.
    compressed = {attribute: items.compress(part) for attribute, part in parts.items() if part or attribute == "body"}
    # The expiration has no seconds. If a batch is one visit, the access log would show whose visit came in that second.
    values: items.Values = {**compressed, "expiration": end_of_day_s(int(now_s) + SEGMENT_KEPT_S)}
    return items.put_write(settings.ledger_table, keys.key(f"SEGMENT#{minute}#{bucket}", name), values)


def read_segments(store: Store, minute: int, **options: str) -> Iterator[Item]:
    """Yields the segments of a minute, in any order. `options`: parameters of DynamoDB's Query."""
    for partition in partitions(minute):
        yield from queries.partition_items(store, store.settings.ledger_table, partition, **options)


def partitions(minute: int) -> list[str]:
    """Returns the partition keys of the segments of a minute."""
    return [f"SEGMENT#{minute}#{bucket}" for bucket in range(fold.BUCKETS)]


def columns(segment: Item) -> Sums:
    """Returns by counter the entries of a segment that are not halves of a child's removal."""
    return dict(items.decompress(segment["body"]))


def removal_halves(segment: Item) -> list[JournalEntry]:
    """Returns the entries of a segment that are halves of a child's removal."""
    return [JournalEntry(*entry) for entry in items.decompress(segment["pairs"])] if "pairs" in segment else []


def imported_amounts(segment: Item, sums: Sums) -> Iterator[tuple[str, str, int, int]]:
    """Yields the imported amounts of a segment: counter, id, day, and amount. `sums`: the segment's `columns`."""
    for counter, row, day in items.decompress(segment["imports"]) if "imports" in segment else ():
        ids, expected, _ = sums[counter]
        yield counter, ids[row], day, expected[row]


def compressed_bytes(segment: Item) -> int:
    """Returns the compressed bytes of a segment."""
    return sum(len(segment[name]["B"]) for name in ("body", "pairs", "imports") if name in segment)
