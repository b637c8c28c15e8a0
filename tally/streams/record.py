"""Reads stream records in the wire form of Lambda, and finds the counter that an item belongs to.

    {"eventName": "INSERT", "dynamodb": {"SequenceNumber": "111", "ApproximateCreationDateTime": 1700000000.0,
     "Keys": {…}, "NewImage": {"PK": {"S": …}, …}, "OldImage": {…}}, "eventSourceARN": …}

These functions do not validate a record first, so a read takes microseconds. If a record lacks what they need, the read
raises one of MALFORMED_ERRORS, and the record becomes a dead letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..counter import Counter
from ..dynamo import keys
from ..errors import TallyError
from ..items import HEARTBEAT_PREFIX
from ..settings import MINUTE_DEFAULT_S

Record = dict[str, Any]
Image = Mapping[str, Any]

INSERT, MODIFY, REMOVE = "INSERT", "MODIFY", "REMOVE"
MALFORMED_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError)
SHOWN_CHARACTERS_MAX = 64  # of a wrong value, in the reason of a dead letter
CREATED_S_MAX = keys.MINUTE_MAX  # epoch seconds until the year 2286: as many as the shortest minutes, of 1 s (minute_s)
TRUE_ATTRIBUTE = {"BOOL": True}
AMOUNT_LIMIT = 10**38  # DynamoDB stores numbers of 38 digits
# The attributes of a batch's receipt with amounts by counter and id. The receipt's transaction moved the tallies of
# CHANGES. The rollup moves the tallies of SOON.
CHANGES, SOON = "changes", "soon"
# A receipt that names its changes has at least one of these attributes. The receipt of a child names no changes.
CHANGE_ATTRIBUTES = frozenset({"counter", CHANGES, SOON})
_EMPTY_MAP: Image = {"M": {}}


class PoisonRecordError(TallyError):
    """A record that a consumer can never apply as counters are declared. The message says why."""


class CounterIndex:
    """The declared counters by name, and by the keys of their items."""

    __slots__ = ("_tallies", "by_name", "children", "minute_s")

    def __init__(self, counters: Mapping[str, Counter], minute_s: int = MINUTE_DEFAULT_S) -> None:
        self.minute_s, self.by_name = minute_s, dict(counters)
        # By the prefix of the partition key, each counter with the start of its children's sort keys.
        self.children: dict[str, list[tuple[str, Counter]]] = {}
        self._tallies: dict[str, list[tuple[str, str, Counter]]] = {}  # by prefix: first and last sort key of shards
        for counter in counters.values():
            if counter.items is not None:
                continue  # the consumer of team items counts them, and a recount judges the number (team/scan_state.py)
            self._tallies.setdefault(counter.prefix, []).append((*counter.shard_range, counter))
            if counter.child is not None:
                self.children.setdefault(counter.prefix, []).append((counter.child, counter))

    def minute_made(self, record: Record) -> int:
        """Returns the minute in which a record was made, by DynamoDB's clock."""
        return int(created_s(record) // self.minute_s)

    def counter_of_item(self, prefix: str, sort_key: str) -> Counter | None:
        """Returns the counter whose tally this item is a shard of; None for other items, and numbers of team items."""
        for low, high, counter in self._tallies.get(prefix, ()):
            if low <= sort_key <= high and counter.shard_of(sort_key) is not None:
                return counter
        return None


def event_name(record: Record) -> str:
    """Returns INSERT, MODIFY or REMOVE. Raises PoisonRecordError for any other name."""
    name = record["eventName"]
    if name != INSERT and name != MODIFY and name != REMOVE:
        raise PoisonRecordError(f"eventName is {str(name)[:32]!r}")
    return name  # type: ignore[no-any-return]


def accepted_receipt(record: Record) -> Image | None:
    """Returns the receipt of an accepted change; None for a receipt that was deleted, or edited by hand.

    A receipt that replaces an expired receipt (MODIFY) has a new nonce; an edit keeps the nonce. Raises
    PoisonRecordError.
    """
    name, change = event_name(record), record["dynamodb"]
    if name == REMOVE:
        return None
    image: Image = change["NewImage"]
    if not isinstance(image, dict):  # a null NewImage would look like None, which means no change
        raise PoisonRecordError("NewImage is not an object")
    if name == MODIFY and "nonce" in image and (change.get("OldImage") or {}).get("nonce") == image["nonce"]:
        return None
    return image


def is_ttl_removal(record: Record) -> bool:
    """Returns whether DynamoDB's TTL, and no writer, removed an item."""
    return bool(record.get("userIdentity", {}).get("principalId") == "dynamodb.amazonaws.com")


def created_s(record: Record) -> float:
    """Returns when the change was made, in epoch seconds of DynamoDB's clock. Raises PoisonRecordError."""
    try:
        created = float(record["dynamodb"]["ApproximateCreationDateTime"])
    except MALFORMED_ERRORS:
        created = -1
    if not 0 <= created < CREATED_S_MAX:
        raise PoisonRecordError("ApproximateCreationDateTime is not a time")
    return created


def heartbeat_key(record: Record) -> str | None:
    """Returns the key of a heartbeat, without its prefix; None for any other record."""
    try:
        for key in record["dynamodb"]["Keys"].values():
            for start in (HEARTBEAT_PREFIX, keys.RECEIPT_HEARTBEAT_PREFIX):
                if key.get("S", "").startswith(start):
                    return str(key["S"][len(start) :])
        return None
    except MALFORMED_ERRORS:
        return None


def goes_to_rollup(table: str, record: Record) -> bool:
    """Returns whether Lambda delivers a record to the rollup, by the filter of `READER` in operations/rollup.py: a
    spilled change, or a heartbeat. The watermark waits until the rollup has passed these records (lineage.py)."""
    names, image = ((INSERT, MODIFY) if table == "receipts" else (INSERT,)), record["dynamodb"].get("NewImage")
    is_spilled = isinstance(image, dict) and image.get("rollup") == TRUE_ATTRIBUTE and record.get("eventName") in names
    return is_spilled or heartbeat_key(record) is not None


def goes_to_bookkeeper(table: str, record: Record) -> bool:
    """Returns whether Lambda delivers a record to the bookkeeper, by the filter in operations/bookkeeper.py."""
    return table != "receipts" or record.get("eventName") != REMOVE


def string_of(image: Image, name: str, kind: str = "S") -> str:
    """Returns a string of an item. `kind`: the type: S, or N for a number's digits. Raises PoisonRecordError."""
    value = image.get(name, "missing")
    text = value.get(kind) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise PoisonRecordError(f"{name} cannot be {str(value)[:SHOWN_CHARACTERS_MAX]}")
    return text


def amounts_of(image: Image, *, only_spilled: bool = False) -> list[tuple[str, str, int]]:
    """Returns the changes of a receipt: counter, id and amount. `only_spilled`: of a batch, only the changes that the
    rollup adds. Raises PoisonRecordError, or one of MALFORMED_ERRORS."""
    if CHANGES not in image and SOON not in image:
        return [(string_of(image, "counter"), string_of(image, "target"), _amount(image, "amount"))]
    changed = [
        (counter, id_, _amount(ids["M"], id_))
        for part in ((SOON,) if only_spilled else (CHANGES, SOON))
        for counter, ids in image.get(part, _EMPTY_MAP)["M"].items()
        for id_ in ids["M"]
    ]
    if not changed:
        raise PoisonRecordError("the list of changes is empty")
    return changed


def _amount(image: Image, name: str) -> int:
    value = int(string_of(image, name, "N"))
    if abs(value) >= AMOUNT_LIMIT:
        raise PoisonRecordError(f"{name} has more than 38 digits")
    return value


def booking_minute(stamped: int | None, made: int) -> int:
    """Returns the booking minute of a change: `stamped`, the minute that the change stored (None: no valid minute), or
    `made`, the minute of its record, if the two differ by 2 or more: the change was late, or its stamp is wrong."""
    return stamped if stamped is not None and made - 1 <= stamped <= made + 1 else made


def booking_minute_of(image: Image, minute: int) -> int:
    """Returns the booking minute of a receipt or a child. `minute`: the minute of its record.

    A spilled change is booked on the minute of its record. The rollup writes a tally once for each run of records with
    one minute, and the times of records in a stream shard only increase. Stamps come from clocks that differ, so around
    the end of a minute each record could need a write. If changes committed with a receipt (CHANGES), its stamp counts.
    """
    is_spilled = image.get("rollup") == TRUE_ATTRIBUTE and CHANGES not in image
    return minute if is_spilled else booking_minute(keys.minute_of(image), minute)
