"""Markers say who began with an item while a scan of its table counts beside the stream: the stream, or the scan.

What is counted of an item begins with the first record that changes what it counts for, or with what the scan read. A
scan that came first leaves what it read. Some records behind it may be older than that read. They are skipped up to the
state that was read: the item had that state once, and from there on old and new images add up, whichever such time it
was. So no clock decides.
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
SCAN_VALID_S = MARKER_KEPT_S // 2  # how long after its beginning a scan holds: no marker that it needs is gone by then
LIVE_MARKER = "live"
"""The marker of an item of which a record was applied: its old and new images add up from here on."""
Marker = str | Contribution | None
"""None: nobody has begun with the item; a Value: what the scan read, and added."""
Moves = tuple[tuple[Contribution, int], ...]
"""What is added: each value, once or minus once."""


def moves_between(old: Contribution | None, new: Contribution | None) -> Moves:
    """What leaves, and what comes."""
    return (*(((old, -1),) if old else ()), *(((new, 1),) if new else ()))


def apply_record(marker: Marker, old: Contribution | None, new: Contribution | None) -> tuple[Moves, Marker]:
    """What a record moves, and the marker of its item then. `old` and `new` differ: other records move nothing."""
    assert old != new
    if marker is None:
        return moves_between(None, new), LIVE_MARKER
    if marker in (LIVE_MARKER, old):
        return moves_between(old, new), LIVE_MARKER
    return (), marker  # the record is older than what the scan read


def marker_key(counter: str, generation: int, item_key: Item) -> Item:
    """The key of the marker of an item, by the key of the item."""
    name = hashlib.sha256(json.dumps(item_key, sort_keys=True).encode()).hexdigest()[:32]
    return keys.key(f"SEEN#{counter}#{name}", str(generation))


def parse_marker(stored: Item) -> Marker:
    """A marker as it is stored; of an empty item none."""
    if not stored:
        return None
    return (
        Contribution(stored["group"]["S"], items.int_attribute(stored, "amount")) if "group" in stored else LIVE_MARKER
    )


def marker_write(table: str, at: Item, was: Marker, now: Marker, now_s: float) -> Write:
    """The write of a marker, on condition that it is as it was read."""
    assert now is not None
    values: dict[str, Any] = {"expiration": int(now_s) + MARKER_KEPT_S}
    if isinstance(now, Contribution):
        values |= now._asdict()
    if was is None:
        seen: items.Expected = items.EXPECT_NO_ITEM
    elif isinstance(was, Contribution):
        seen = was._asdict()
    else:
        seen = {"PK": at["PK"]["S"], "group": None}
    gone = ("group", "amount") if isinstance(was, Contribution) and not isinstance(now, Contribution) else ()
    return items.update_write(table, at, values, remove=gone, expected=seen)


def live_marker_write(table: str, at: Item, now_s: float) -> Write:
    """The write of a marker that no page of a scan rests on any more."""
    return items.put_write(table, at, {"expiration": int(now_s) + MARKER_KEPT_S})
