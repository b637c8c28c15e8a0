"""The ledger table: what the streams say of each tally, and how far their consumers have come.

PK, SK -> attributes:
    row         LEDGER#slot, minute#digest#bucket -> counter, target, minute, expected, observed, booked
    drift       DRIFT, digest -> counter, target, drift, since, judged, confirmed
    checkpoint  CHECKPOINT#consumer#table, stream shard -> sequence, through, moved, began, late, pending
    set aside   SETASIDE, consumer#shard#sequence -> object, reason, table, at
    history     HISTORY#counter#target, epoch ms#nonce -> by, why, amount, before, after

A row says what was expected and observed of one tally in one minute; many writers of one hot tally have rows (buckets)
of their own. It is judged once it is settled: equal sums are deleted, unequal ones move to the tally's drift row.
Holds stand in this table too (holds.py).
"""

from __future__ import annotations

import hashlib
import time

from ..settings import Settings
from .client import key as key  # its users find it beside the keys that are made of it
from .transactions import Write

SLOTS = 16  # partitions that rows are spread over; a sweep asks each of them
BUCKETS = 16  # rows that the writers of one tally and minute are spread over
ROW_KEPT_S = 30 * 24 * 3600  # one that nobody judged in a month stands for a sweep that does not run
CHECKPOINT_KEPT_S = 7 * 24 * 3600  # after its last move; a stream keeps its records for a day
DRIFT_KEY, SET_ASIDE_KEY = "DRIFT", "SETASIDE"
EXPECTED, OBSERVED = "expected", "observed"


def digest(counter: str, target: str) -> str:
    """Names a tally in a sort key, which holds 1,024 bytes where an id may have as many itself."""
    return hashlib.sha256(f"{counter}#{target}".encode()).hexdigest()[:32]


def row_key(counter: str, target: str, minute: int, bucket: int) -> tuple[str, str]:
    """Partition and sort key of a ledger row. Rows of one tally are in one slot, the oldest minute first."""
    name = digest(counter, target)
    return f"LEDGER#{int(name[:8], 16) % SLOTS}", f"{minute:010d}#{name}#{bucket}"


def book(
    settings: Settings, counter: str, target: str, minute: int, bucket: int, *, expected: int = 0, observed: int = 0
) -> Write:
    """The Update entry that books on a tally's minute, for transactions that know their part of it themselves."""
    partition, sort = row_key(counter, target, minute, bucket)
    now_s = int(time.time())
    return {
        "Update": {
            "TableName": settings.ledger_table,
            "Key": key(partition, sort),
            "UpdateExpression": "SET #counter = :counter, target = :target, #minute = :minute, booked = :now,"
            " expiration = :expiration ADD expected :expected, observed :observed",
            "ExpressionAttributeNames": {"#counter": "counter", "#minute": "minute"},
            "ExpressionAttributeValues": {
                ":counter": {"S": counter},
                ":target": {"S": target},
                ":minute": {"N": str(minute)},
                ":now": {"N": str(now_s)},
                ":expiration": {"N": str(max(minute * 60, now_s) + ROW_KEPT_S)},  # an unlike is booked on an old minute
                ":expected": {"N": str(expected)},
                ":observed": {"N": str(observed)},
            },
        }
    }


def checkpoint_key(consumer: str, table: str, shard: str) -> tuple[str, str]:
    """Key of how far a consumer (`rollup`, `drift`) has come in one stream shard of a table (`counts`, `receipts`)."""
    return f"CHECKPOINT#{consumer}#{table}", shard


def set_aside_key(consumer: str, shard: str, sequence: str) -> tuple[str, str]:
    """Key of the marker of a record that could not be applied."""
    return SET_ASIDE_KEY, f"{consumer}#{shard}#{sequence}"


def history_key(counter: str, target: str) -> str:
    """Partition key of what was repaired on a tally."""
    return f"HISTORY#{counter}#{target}"
