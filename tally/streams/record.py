"""What a stream record says, in the wire form that Lambda passes on, and which counter an item belongs to.

    {"eventName": "INSERT", "dynamodb": {"SequenceNumber": "111", "ApproximateCreationDateTime": 1700000000.0,
     "Keys": {…}, "NewImage": {"PK": {"S": …}, …}, "OldImage": {…}}, "eventSourceARN": …}

Readers take what they need unchecked, in microseconds. A record that lacks it raises one of MALFORMED: it becomes a
dead letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..counter import Counter
from ..dynamo import keys
from ..errors import TallyError
from ..items import HEARTBEAT_START
from ..settings import MINUTE_DEFAULT_S

Record = dict[str, Any]
Image = Mapping[str, Any]

INSERT, MODIFY, REMOVE = "INSERT", "MODIFY", "REMOVE"
MALFORMED_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError)
SHOWN_CHARACTERS_MAX = 64
CREATED_S_MAX = keys.MINUTE_MAX
TRUE_ATTRIBUTE = {"BOOL": True}
AMOUNT_LIMIT = 10**38
CHANGES, SOON = "changes", "soon"  # of a receipt of many changes: those that moved with it, and those to be rolled up
# the attributes of which a receipt has one, if it says what it counted
CHANGE_ATTRIBUTES = frozenset({"counter", CHANGES, SOON})
_NONE: Image = {"M": {}}


class PoisonRecordError(TallyError):
    """A record that this consumer cannot apply, as counters are declared now. The message says why."""


class CounterIndex:
    """The declared counters as stream readers look them up: by name, and by the items that they keep."""

    __slots__ = ("_tallies", "by_name", "children", "minute_s")

    def __init__(self, counters: Mapping[str, Counter], minute_s: int = MINUTE_DEFAULT_S) -> None:
        self.minute_s, self.by_name = minute_s, dict(counters)
        # By the prefix of the partition key: how sort keys begin, and the counter.
        self.children: dict[str, list[tuple[str, Counter]]] = {}
        self._tallies: dict[str, list[tuple[str, str, Counter]]] = {}
        for counter in counters.values():
            if counter.items is not None:
                continue  # a recount judges it (team/scan_state.py), and no journal
            self._tallies.setdefault(counter.prefix, []).append((*counter.shard_range, counter))
            if counter.child is not None:
                self.children.setdefault(counter.prefix, []).append((counter.child, counter))

    def minute_made(self, record: Record) -> int:
        """The minute in which a record was made, as DynamoDB says."""
        return int(created_s(record) // self.minute_s)

    def counter_of_item(self, prefix: str, sort_key: str) -> Counter | None:
        """The counter whose tally this item belongs to: exactly those items that a reader sums."""
        for low, high, counter in self._tallies.get(prefix, ()):
            if low <= sort_key <= high and counter.shard_of(sort_key) is not None:
                return counter
        return None


def event_name(record: Record) -> str:
    """INSERT, MODIFY or REMOVE. Raises PoisonRecordError for anything else."""
    name = record["eventName"]
    if name != INSERT and name != MODIFY and name != REMOVE:
        raise PoisonRecordError(f"eventName is {str(name)[:32]!r}")
    return name  # type: ignore[no-any-return]


def accepted_receipt(record: Record) -> Image | None:
    """The receipt of an accepted change; None for a receipt that was deleted, or edited manually.

    One that replaces an expired receipt (MODIFY) is new, with a nonce of its own. Raises PoisonRecordError.
    """
    name, change = event_name(record), record["dynamodb"]
    if name == REMOVE:
        return None
    image: Image = change["NewImage"]
    if not isinstance(image, dict):  # None would mean that there was nothing to count
        raise PoisonRecordError("the image is none")
    if name == MODIFY and "nonce" in image and (change.get("OldImage") or {}).get("nonce") == image["nonce"]:
        return None
    return image


def is_ttl_removal(record: Record) -> bool:
    """Whether DynamoDB removed an item because its TTL had come, and nobody else."""
    return bool(record.get("userIdentity", {}).get("principalId") == "dynamodb.amazonaws.com")


def created_s(record: Record) -> float:
    """When the change was made, epoch seconds, as DynamoDB says. Raises PoisonRecordError."""
    try:
        created = float(record["dynamodb"]["ApproximateCreationDateTime"])
    except MALFORMED_ERRORS:
        created = -1
    if not 0 <= created < CREATED_S_MAX:
        raise PoisonRecordError("ApproximateCreationDateTime is no time")
    return created


def heartbeat_key(record: Record) -> str | None:
    """The key of a heartbeat; None for any other record."""
    try:
        for key in record["dynamodb"]["Keys"].values():
            for start in (HEARTBEAT_START, keys.RECEIPT_HEARTBEAT_START):
                if key.get("S", "").startswith(start):
                    return str(key["S"][len(start) :])
        return None
    except MALFORMED_ERRORS:
        return None


def goes_to_rollup(table: str, record: Record) -> bool:
    """Whether Lambda hands a record to the rollup: the filter that `READER` in operations/rollup.py declares.

    The watermark rests on it (lineage.py): nobody waits for a record that Lambda hands over and that this one denies.
    """
    kinds, image = ((INSERT, MODIFY) if table == "receipts" else (INSERT,)), record["dynamodb"].get("NewImage")
    waits = isinstance(image, dict) and image.get("rollup") == TRUE_ATTRIBUTE and record.get("eventName") in kinds
    return waits or heartbeat_key(record) is not None


def goes_to_bookkeeper(table: str, record: Record) -> bool:
    """Whether Lambda hands a record to the bookkeeper, as `READER` in operations/bookkeeper.py declares."""
    return table != "receipts" or record.get("eventName") != REMOVE


def string_of(image: Image, name: str, kind: str = "S") -> str:
    """A string of an item; with `kind` N, a number as DynamoDB spells it. Raises PoisonRecordError without one."""
    value = image.get(name, "missing")
    spelled = value.get(kind) if isinstance(value, dict) else None
    if not isinstance(spelled, str):
        raise PoisonRecordError(f"{name} cannot be {str(value)[:SHOWN_CHARACTERS_MAX]}")
    return spelled


def amounts_of(image: Image, *, alone: bool = False) -> list[tuple[str, str, int]]:
    """What a receipt says of each tally: counter, id and amount. `alone`: only of those that the rollup adds to.

    Raises PoisonRecordError, or one of MALFORMED.
    """
    if CHANGES not in image and SOON not in image:
        return [(string_of(image, "counter"), string_of(image, "target"), _amount(image, "amount"))]
    changed = [
        (counter, id_, _amount(ids["M"], id_))
        for part in ((SOON,) if alone else (CHANGES, SOON))
        for counter, ids in image.get(part, _NONE)["M"].items()
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
    """The minute that a change is booked on: its stamp, or its record's if it was late or the stamp is strange."""
    return stamped if stamped is not None and made - 1 <= stamped <= made + 1 else made


def booking_minute_of(image: Image, minute: int) -> int:
    """The minute that a receipt or a child is booked on. One that was written alone: its record's.

    The clocks of writers differ, so their stamps go back and forth around the edge of a minute. The records of a stream
    shard do not, so the rollup adds what is of one minute in one write.
    """
    is_alone = image.get("rollup") == TRUE_ATTRIBUTE and CHANGES not in image
    return minute if is_alone else booking_minute(keys.minute_of(image), minute)
