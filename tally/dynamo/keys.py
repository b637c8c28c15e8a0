"""Keys of the ledger's items, and the minute that items store.

The ledger has what the streams report of each tally, and how far the consumers have come. PK, SK -> attributes:
    segment     SEGMENT#minute#bucket, table#stream shard#first sequence -> body, pairs, imports
    judge       JUDGE, JUDGE -> format, judged, after, journal_complete_s, bookkeeper_passed_s, rollup_passed_s,
                reads_complete_s, oldest_dead_letter_s, redriven_until, oldest_loss_s, resume_minute, probe_visible_s,
                probe_rollup_s, rollup_booked_s, written_s, began_s, first_judged_s, warm_up_until, streams; of a
                restored ledger: format, restored_s, notes_began_s
    drift       DRIFT, digest -> counter, target, drift, upto, since, changes
    checkpoint  CHECKPOINT#consumer#table, stream shard -> sequence, through, heartbeat, note
    dead letters   DEADLETTER, consumer#epoch s of the record#table#shard#sequence -> object, reason, table, at
    losses      LOST, gap#consumer or letter#its sort key -> consumer, since, until, resume_minute
    history     HISTORY#counter#target, epoch ms#nonce -> at, by, why, how, amount, before, after, added
    losses, acknowledged   HISTORY#LOST, epoch ms#nonce -> by, why, at, consumer, since, until
    forgotten   HISTORY#FORGOTTEN#digest, epoch ms#nonce -> by, why, found, posts, children, holds, finished
    imported    HISTORY#IMPORT, counter#run -> by, why, at, digest, rows, refused, finished
    fingerprint FINGERPRINT, counter -> fingerprint (streams/fingerprints.py)
    scan        ITEMS, counter -> table, counted_by, generation, digest, groups, began, ended, closed, position, items,
                found (team/scan_state.py)
    team table  PASSED, table -> passed, seen, stream: how far a team table's stream is counted (team/scan_state.py)
    team number WATCHED#bucket, digest -> counter, target, at, low, high, since, rule (team/team_numbers.py)
    first count SEEN#counter#item's digest, generation -> group, amount: whether the stream or a scan counted a team
                item first (team/first_seen.py)
    secret      SECRET, SECRET -> secret (counting/pseudonyms.py)
    event       EVENT#partition, or SENT#partition after the event is sent, epoch ms#name -> detail (streams/events.py)
    level       LEVEL#counter, digest -> level, target, expiration (streams/levels.py)
    deleted     DELETED, epoch s#counter#target -> counter, target, found_nothing

A segment has what a run of stream records books on one minute (streams/segments.py). The ledger also has holds
(counting/hold_items.py) and series (series/hours.py, series/top.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

Item = dict[str, Any]
"""An item in DynamoDB's wire form: `{"PK": {"S": …}, …}`."""

FORMAT = 2
"""The format of all stored items and dead letters. If you change the format so that older code would misread an item,
take the next number, and migrate the stored items."""
CHECKPOINT_KEPT_S = 7 * 24 * 3600  # after the consumer last wrote the checkpoint; a stream keeps records for a day
DRIFT_KEY, DEAD_LETTER_KEY, DELETED_KEY = "DRIFT", "DEADLETTER", "DELETED"
JUDGE_KEY, FINGERPRINT_KEY, PROGRESS_KEY, LOST_KEY = "JUDGE", "FINGERPRINT", "PROGRESS", "LOST"
LOST_HISTORY_KEY = "HISTORY#LOST"
IMPORT_KEY = "HISTORY#IMPORT"
RECEIPT_HEARTBEAT_PREFIX = "heartbeat#"  # of a heartbeat's id in receipts; in other tables, HEARTBEAT_PREFIX
MINUTE_MAX = 10**10  # later than each minute until the year 2286, even if a minute lasts a second (minute_s)


def key(partition_key: str, sort_key: str) -> Item:
    """Returns the key of an item of the counts table or the ledger, in DynamoDB's wire form."""
    return {"PK": {"S": partition_key}, "SK": {"S": sort_key}}


def running_partition(hour: int, through: int) -> str:
    """Returns the partition key of an hour's running segments up to the minute `through` (series/hours.py)."""
    return f"RUNNING#{hour}#{through}"


def tally_digest(counter: str, target: str) -> str:
    """Returns a tally's name for sort keys: a hash, because an id may fill the 1,024 bytes of a sort key."""
    return hashlib.sha256(f"{counter}#{target}".encode()).hexdigest()[:32]


def minute_of(item: Mapping[str, Any]) -> int | None:
    """Returns the minute `at` of an item; None if the item has no valid minute, because somebody put it by hand."""
    try:
        at = int(item["at"]["N"])
    except (KeyError, TypeError, ValueError):
        return None
    return at if 0 <= at < MINUTE_MAX else None


def removal_pair_of(child: Mapping[str, Any]) -> str:
    """Returns the pair name of a removal: 12 hexadecimal digits of a hash of the removed child. The bookkeeper
    finds the name in the nonce of the tally, and derives it from the record of the child, so it finds both halves.

    `child`: the item as it was read, or the old image of its record. If `SK`, `at` or `nonce` is missing, or has
    another type than Tally writes, "" takes its place.
    """
    parts = [child.get(name, {}).get(kind, "") for name, kind in (("SK", "S"), ("at", "N"), ("nonce", "S"))]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def checkpoint_key(consumer: str, table: str, shard: str) -> tuple[str, str]:
    """Returns the key of the checkpoint of a consumer (`rollup`, `bookkeeper`) in a stream shard of a table."""
    return f"CHECKPOINT#{consumer}#{table}", shard


def dead_letter_prefix(consumer: str) -> str:
    """Returns the beginning of the sort keys of a consumer's dead letters. The time of the record follows."""
    return f"{consumer}#"


def forgotten_key(user: str) -> str:
    """Returns the partition key of a forgotten user's history, which does not have the user's name."""
    return f"HISTORY#FORGOTTEN#{hashlib.sha256(user.encode()).hexdigest()}"


def history_key(counter: str, target: str) -> str:
    """Returns the partition key of a tally's repairs."""
    return f"HISTORY#{counter}#{target}"
