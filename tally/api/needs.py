"""What an operation needs of the tables: an action on the items of a table whose partition key begins with a prefix.

Roles grant exactly these. Tests record what each function does, and compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from tally.counter import Counter


class Table(Enum):
    """The tables."""

    COUNTS = "counts"
    RECEIPTS = "receipts"
    LEDGER = "ledger"
    SALTS = "salts"
    """There only if visitors of pages are counted."""


class Need(NamedTuple):
    """An action on the items of one table whose partition key starts with `prefix`."""

    action: str
    table: Table
    prefix: str


Needs = frozenset[Need]

RECEIPT_PREFIX = "tally#"
NOTHING: Needs = frozenset()


def on_counts(counters: Iterable[Counter], *actions: str) -> Needs:
    """The actions on the items of these counters."""
    return frozenset(Need(action, Table.COUNTS, f"{counter.prefix}#") for counter in counters for action in actions)


def on_ledger(by_prefix: Mapping[str, Iterable[str]]) -> Needs:
    """The actions on the ledger's items, by the prefix of their partition key."""
    return frozenset(Need(action, Table.LEDGER, prefix) for prefix, actions in by_prefix.items() for action in actions)


PUT_RECEIPT: Needs = frozenset({Need("PutItem", Table.RECEIPTS, RECEIPT_PREFIX)})
FIND_RECEIPT: Needs = frozenset({Need("GetItem", Table.RECEIPTS, RECEIPT_PREFIX)})
MARK_RECEIPT: Needs = frozenset({Need("UpdateItem", Table.RECEIPTS, RECEIPT_PREFIX)})
FIND_RECEIPTS: Needs = frozenset({Need("BatchGetItem", Table.RECEIPTS, RECEIPT_PREFIX)})
READ_WATERMARK = on_ledger({"JUDGE": ["GetItem"]})
READ_SCANS = on_ledger({"ITEMS": ["GetItem"], "PASSED": ["GetItem"]})
READ_FORMS = on_ledger({"FORM": ["Query"]})
STACK_SECRET = on_ledger({"SECRET": ["GetItem", "PutItem"]})
SALT_OF_DAY: Needs = frozenset(Need(action, Table.SALTS, "SALT#") for action in ("GetItem", "PutItem"))
FORGET_SALTS: Needs = frozenset({Need("DeleteItem", Table.SALTS, "SALT#")})
PING_STORE: Needs = frozenset({Need("GetItem", Table.COUNTS, "HEALTH")})


def to_count(counters: Iterable[Counter]) -> Needs:
    """A receipt, and an update of the number unless the rollup makes it."""
    counting = list(counters)
    now = [counter for counter in counting if counter.visible == "now"]
    return (PUT_RECEIPT if counting else NOTHING) | on_counts(now, "UpdateItem") | to_read_limits(counting)


def to_read_limits(counters: Iterable[Counter]) -> Needs:
    """Reads the override of an id, if the counter allows overrides."""
    return on_counts((counter for counter in counters if counter.limit_overrides), "BatchGetItem")


def to_count_visitors(counters: Iterable[Counter]) -> Needs:
    """Under a hash that needs the secret of the stack. Where it is visible now, a receipt is looked for first."""
    unique = list(counters)
    looks = FIND_RECEIPT if any(counter.visible == "now" for counter in unique) else NOTHING
    return (to_count(unique) | to_release_expired_holds(unique) | STACK_SECRET | looks) if unique else NOTHING


def to_change_batch(counters: Iterable[Counter]) -> Needs:
    """Many changes under one key. It looks for its receipt before it refuses a retired counter."""
    together = list(counters)
    return to_count(together) | to_find_receipt_before_refusal(together) | to_release_expired_holds(together)


def to_void(counters: Iterable[Counter]) -> Needs:
    """The receipt of what is taken back is read and marked."""
    return to_change_batch(counters) | FIND_RECEIPT | MARK_RECEIPT


def to_find_receipt_before_refusal(counters: Iterable[Counter]) -> Needs:
    """A retry of a change from before its counter was retired gets its answer."""
    return FIND_RECEIPT if any(counter.retired for counter in counters) else NOTHING


def to_release_expired_holds(counters: Iterable[Counter]) -> Needs:
    """Before a 409, and in the sweep, expired holds give back what they have taken."""
    holding = [counter for counter in counters if counter.may_settle_holds]
    moved = on_ledger({"HOLDS#": ["Query", "PutItem", "DeleteItem"]}) | on_counts(holding, "UpdateItem")
    return (PUT_RECEIPT | moved | to_read_limits(holding)) if holding else NOTHING


def to_change_child(counters: Iterable[Counter]) -> Needs:
    """A change reads the child. It may look for a parent, and make a shard beside it (tally/counting/children.py)."""
    families = list(counters)
    change = on_counts(families, "PutItem", "GetItem", "UpdateItem", "DeleteItem", "ConditionCheckItem")
    needing = [counter for counter in families if counter.parent_required]
    return (change | on_counts(needing, "BatchGetItem") | PUT_RECEIPT) if families else NOTHING


def to_read_tallies(counters: Iterable[Counter]) -> Needs:
    """Those with one item are read together, and those with shards each by itself."""
    readable = list(counters)
    single = [counter for counter in readable if counter.has_version]
    spread = [counter for counter in readable if not counter.has_version]
    return on_counts(single, "BatchGetItem") | on_counts(spread, "Query") | to_read_as_of(readable)


def to_read_scan(counters: Iterable[Counter]) -> Needs:
    """The number of a counter of items is shown once they are counted."""
    return READ_SCANS if any(counter.items is not None for counter in counters) else NOTHING


def to_read_as_of(counters: Iterable[Counter]) -> Needs:
    """A number that is visible soon says as of when it is complete; one of items, whether they are counted."""
    soon = [counter for counter in counters if counter.visible == "soon"]
    judged = READ_WATERMARK if any(counter.items is None for counter in soon) else NOTHING
    return judged | to_read_scan(soon)


def to_make_events(counters: Iterable[Counter]) -> Needs:
    """The events of thresholds that numbers cross, and the levels of those that are sums."""
    notifying = [counter for counter in counters if counter.notifies]
    sums = [counter for counter in notifying if not counter.has_version]
    written = {"EVENT#": ("PutItem",)} if notifying else {}
    return on_ledger(written | ({"LEVEL#": ("GetItem", "UpdateItem")} if sums else {})) | on_counts(sums, "Query")


def to_send_events(counters: Iterable[Counter], *more: str) -> Needs:
    """Notes which events were sent; `more`: what else is done with those that were not."""
    sent = {"EVENT#": ("DeleteItem", *more), "SENT#": ("PutItem",)}
    return on_ledger(sent) if any(counter.notifies for counter in counters) else NOTHING


def to_consume(consumer: str) -> Needs:
    """What a stream consumer reads and writes: the counters' forms; its checkpoints, and markers of the records that it
    could not apply."""
    written = {f"CHECKPOINT#{consumer}#": ("GetItem", "UpdateItem"), "DEADLETTER": ("PutItem",)}
    return on_ledger(written) | READ_FORMS
