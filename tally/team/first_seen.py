"""Markers: for each item, whether the stream or a scan counted it first, while the scan reads the table.

A scan reads a table while its stream is consumed, so both could count one item. The marker of the item decides. If the
stream was first, the scan skips the item. If the scan was first, the marker has the contribution that the scan read.
The item's next records may be older than the scan's read. So the consumer skips these records, until the old image of a
record has this contribution. From then on, the consumer applies each record: less its old image, plus its new image. If
several records have this old image, any of these is right, because the sum is the same. No clock is compared.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ..dynamo import items, keys
from ..dynamo.items import Write
from ..dynamo.keys import Item
from ..items import Contribution

MARKER_KEPT_S = 30 * 24 * 3600
SCAN_VALID_S = MARKER_KEPT_S // 2  # so long after its start a scan is valid: until then no marker has expired
STREAM_MARKER = "stream"
"""The stream counts the item: a record of the item was applied, so each later record is applied, too."""
Marker = str | Contribution | None
"""None: neither the stream nor the scan has counted the item; a Contribution: what the scan read and added."""
Moves = tuple[tuple[Contribution, int], ...]
"""The contributions to add, each with the sign 1 or -1."""


def moves_between(old: Contribution | None, new: Contribution | None) -> Moves:
    """Returns the old contribution with -1, and the new contribution with 1."""
    return (*(((old, -1),) if old else ()), *(((new, 1),) if new else ()))


def apply_record(marker: Marker, old: Contribution | None, new: Contribution | None) -> tuple[Moves, Marker]:
    """Returns what a record adds to the recount, and the next marker of its item. `old` and `new` must differ."""
    assert old != new
    if marker is None:
        return moves_between(None, new), STREAM_MARKER
    if marker in (STREAM_MARKER, old):
        return moves_between(old, new), STREAM_MARKER
    return (), marker  # the record is older than what the scan read


def marker_key(counter: str, generation: int, item_key: Item) -> Item:
    """Returns the key of an item's marker. `generation`: the scan's. `item_key`: the key of the item in its table."""
    name = hashlib.sha256(json.dumps(item_key, sort_keys=True).encode()).hexdigest()[:32]
    return keys.key(f"SEEN#{counter}#{name}", str(generation))


def parse_marker(stored: Item) -> Marker:
    """Returns the marker of a stored item; None if the item is empty."""
    if "group" in stored:
        return Contribution(stored["group"]["S"], items.int_attribute(stored, "amount"))
    return STREAM_MARKER if stored else None


def marker_write(table: str, key: Item, before: Marker, after: Marker, now_s: float) -> Write:
    """Returns the write of a marker, on condition that the stored marker is `before`."""
    assert after is not None
    values: dict[str, Any] = {"expiration": int(now_s) + MARKER_KEPT_S}
    if isinstance(after, Contribution):
        values |= after._asdict()
    if before is None:
        expected: items.Expected = items.EXPECT_NO_ITEM
    elif isinstance(before, Contribution):
        expected = before._asdict()
    else:
        expected = {"PK": key["PK"]["S"], "group": None}
    removed = ("group", "amount") if isinstance(before, Contribution) and not isinstance(after, Contribution) else ()
    return items.update_write(table, key, values, remove=removed, expected=expected)


def stream_marker_write(table: str, key: Item, now_s: float) -> Write:
    """Returns the write of STREAM_MARKER, without a condition, because after its end a scan reads no marker."""
    return items.put_write(table, key, {"expiration": int(now_s) + MARKER_KEPT_S})
