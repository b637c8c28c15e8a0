"""Keys of the items of the ledger table, and the minute that items carry.

The ledger holds what the streams report of each tally, and how far their consumers have come. PK, SK -> attributes:
    row         LEDGER#slot, minute#digest#bucket -> counter, target, minute, expected, observed, booked
    drift       DRIFT, digest -> counter, target, drift, since, judged, confirmed
    checkpoint  CHECKPOINT#consumer#table, stream shard -> sequence, through, moved, began, late, pending
    set aside   SETASIDE, consumer#shard#sequence -> object, reason, table, at
    history     HISTORY#counter#target, epoch ms#nonce -> by, why, amount, before, after

A row holds what was expected and observed of one tally in one minute. The writers of a hot tally have rows (buckets)
of their own. A row is judged when it is settled: equal sums are deleted, unequal ones move to the tally's drift row.
Holds are in this table too (holds.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

Item = dict[str, Any]
"""An item in DynamoDB's wire form: `{"PK": {"S": …}, …}`."""

SLOTS = 16  # partitions of the rows; a sweep reads each of them
BUCKETS = 16  # rows that the writers of one tally and minute share
ROW_KEPT_S = 30 * 24 * 3600  # a row that was not judged in a month shows that the sweep does not run
CHECKPOINT_KEPT_S = 7 * 24 * 3600  # after its last move; a stream keeps its records for a day
DRIFT_KEY, SET_ASIDE_KEY = "DRIFT", "SETASIDE"
MINUTE_MAX = 10**10  # rows sort by ten digits of the minute


def key(partition_key: str, sort_key: str) -> Item:
    """The key of an item of the counts table or the ledger, in DynamoDB's wire form."""
    return {"PK": {"S": partition_key}, "SK": {"S": sort_key}}


def digest(counter: str, target: str) -> str:
    """The name of a tally in a sort key, which takes 1,024 bytes: an id alone may have as many."""
    return hashlib.sha256(f"{counter}#{target}".encode()).hexdigest()[:32]


def row_key(counter: str, target: str, minute: int, bucket: int) -> tuple[str, str]:
    """Partition and sort key of a ledger row. The rows of one tally are in one slot, the oldest minute first."""
    name = digest(counter, target)
    return f"LEDGER#{int(name[:8], 16) % SLOTS}", f"{minute:010d}#{name}#{bucket}"


def minute_of(item: Mapping[str, Any]) -> int | None:
    """The minute `at` of an item; None without a valid one, as in an item that somebody put manually."""
    try:
        at = int(item["at"]["N"])
    except (KeyError, TypeError, ValueError):
        return None
    return at if 0 <= at < MINUTE_MAX else None


def pair_of(child: Mapping[str, Any]) -> str:
    """The name that both halves of an unlike share: 12 hexadecimal digits, from the child that it removed.

    `child`: the item as it was read, or the old image of its record. A missing `SK`, `at` or `nonce` counts as empty,
    and so does one of another type than Tally writes.
    """
    parts = [child.get(name, {}).get(kind, "") for name, kind in (("SK", "S"), ("at", "N"), ("nonce", "S"))]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def checkpoint_key(consumer: str, table: str, shard: str) -> tuple[str, str]:
    """Key of how far a consumer (`rollup`, `drift`) has come in one stream shard of a table (`counts`, `receipts`)."""
    return f"CHECKPOINT#{consumer}#{table}", shard


def set_aside_key(consumer: str, shard: str, sequence: str) -> tuple[str, str]:
    """Key of the marker of a record that was set aside."""
    return SET_ASIDE_KEY, f"{consumer}#{shard}#{sequence}"


def history_key(counter: str, target: str) -> str:
    """Partition key of a tally's repairs."""
    return f"HISTORY#{counter}#{target}"
