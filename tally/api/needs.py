"""The access to tables that an operation needs: an action on the items whose partition key begins with a prefix.

A function's role grants exactly the needs of its operations. Tests compare these needs with the function's requests.
dynamo/keys.py lists the prefixes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from tally.counter import Counter


class Table(Enum):
    """The tables of a stack."""

    COUNTS = "counts"
    RECEIPTS = "receipts"
    LEDGER = "ledger"
    SALTS = "salts"
    """Exists only if the deployment counts visitors of pages."""


class Need(NamedTuple):
    """An action on the items of one table whose partition key starts with `prefix`."""

    action: str
    table: Table
    prefix: str


Needs = frozenset[Need]
RECEIPT_PREFIX = "tally#"
NOTHING: Needs = frozenset()


def on_counts(counters: Iterable[Counter], *actions: str) -> Needs:
    """Returns the needs for these actions on the items of these counters."""
    return frozenset(Need(action, Table.COUNTS, f"{counter.prefix}#") for counter in counters for action in actions)


def on_ledger(by_prefix: Mapping[str, Iterable[str]]) -> Needs:
    """Returns the needs for actions on the ledger's items. `by_prefix`: the actions by prefix of the partition key."""
    return frozenset(Need(action, Table.LEDGER, prefix) for prefix, actions in by_prefix.items() for action in actions)


PUT_RECEIPT: Needs = frozenset({Need("PutItem", Table.RECEIPTS, RECEIPT_PREFIX)})
FIND_RECEIPT: Needs = frozenset({Need("GetItem", Table.RECEIPTS, RECEIPT_PREFIX)})
MARK_RECEIPT: Needs = frozenset({Need("UpdateItem", Table.RECEIPTS, RECEIPT_PREFIX)})  # as voided
FIND_RECEIPTS: Needs = frozenset({Need("BatchGetItem", Table.RECEIPTS, RECEIPT_PREFIX)})
READ_WATERMARK = on_ledger({"JUDGE": ["GetItem"]})
READ_SCANS = on_ledger({"ITEMS": ["GetItem"], "PASSED": ["GetItem"]})
READ_FINGERPRINTS = on_ledger({"FINGERPRINT": ["Query"]})
STACK_SECRET = on_ledger({"SECRET": ["GetItem", "PutItem"]})
SALT_OF_DAY: Needs = frozenset(Need(action, Table.SALTS, "SALT#") for action in ("GetItem", "PutItem"))
FORGET_SALTS: Needs = frozenset({Need("DeleteItem", Table.SALTS, "SALT#")})
PING_STORE: Needs = frozenset({Need("GetItem", Table.COUNTS, "HEALTH")})


def to_count(counters: Iterable[Counter]) -> Needs:
    """Returns the needs of a change without limits, which puts a receipt, and moves the tally unless it spills."""
    counting = list(counters)
    visible_now = [counter for counter in counting if counter.visible == "now"]
    return (PUT_RECEIPT if counting else NOTHING) | on_counts(visible_now, "UpdateItem")


def to_read_limits(counters: Iterable[Counter]) -> Needs:
    """Returns the needs to read the override of an id, if the counter allows overrides."""
    return on_counts((counter for counter in counters if counter.limit_overrides), "BatchGetItem")


def to_count_visitors(counters: Iterable[Counter]) -> Needs:
    """Returns the needs to count a visitor, whom Tally hashes with the stack's secret. If the counter is visible now, a
    visit looks for its receipt first. Due holds of an earlier declaration may expire, and make room below a ceiling."""
    unique = list(counters)
    find_receipt = FIND_RECEIPT if any(counter.visible == "now" for counter in unique) else NOTHING
    return (to_count(unique) | to_release_expired_holds(unique) | STACK_SECRET | find_receipt) if unique else NOTHING


def to_change_batch(counters: Iterable[Counter]) -> Needs:
    """Returns the needs of a batch, which looks for its receipt before it refuses a retired counter."""
    changed = list(counters)
    return to_count(changed) | to_find_receipt_before_refusal(changed) | to_release_expired_holds(changed)


def to_void(counters: Iterable[Counter]) -> Needs:
    """Returns the needs of a void, which reads and marks the receipt of the change."""
    return to_change_batch(counters) | FIND_RECEIPT | MARK_RECEIPT


def to_find_receipt_before_refusal(counters: Iterable[Counter]) -> Needs:
    """Returns the needs to answer a retry of a change whose counter was retired after the change."""
    return FIND_RECEIPT if any(counter.retired for counter in counters) else NOTHING


def to_release_expired_holds(counters: Iterable[Counter]) -> Needs:
    """Returns the needs to make due holds expired: before a limit refuses a change, and in the sweep."""
    with_holds = [counter for counter in counters if counter.may_settle_holds]
    moves = on_ledger({"HOLDS#": ["Query", "PutItem", "DeleteItem"]}) | on_counts(with_holds, "UpdateItem")
    return (PUT_RECEIPT | moves | to_read_limits(with_holds)) if with_holds else NOTHING


def to_change_child(counters: Iterable[Counter]) -> Needs:
    """Returns the needs to put or delete a child, which may also read the parent and create a shard of its tally."""
    with_children = list(counters)
    change = on_counts(with_children, "PutItem", "GetItem", "UpdateItem", "DeleteItem", "ConditionCheckItem")
    of_posts = [counter for counter in with_children if counter.parent_required]
    return (change | on_counts(of_posts, "BatchGetItem") | PUT_RECEIPT) if with_children else NOTHING


def to_read_tallies(counters: Iterable[Counter]) -> Needs:
    """Returns the needs to read tallies: one BatchGetItem for tallies of one item each, else a Query for each tally."""
    readable = list(counters)
    single = [counter for counter in readable if counter.has_version]
    spread = [counter for counter in readable if not counter.has_version]
    return on_counts(single, "BatchGetItem") | on_counts(spread, "Query") | to_read_as_of(readable)


def to_read_scan(counters: Iterable[Counter]) -> Needs:
    """Returns the needs to read the scan of a counter of items. Its numbers are shown only after the scan."""
    return READ_SCANS if any(counter.items is not None for counter in counters) else NOTHING


def to_read_as_of(counters: Iterable[Counter]) -> Needs:
    """Returns the needs to read `as_of` of numbers that are visible soon. A number of items also needs its scan."""
    soon = [counter for counter in counters if counter.visible == "soon"]
    watermark = READ_WATERMARK if any(counter.items is None for counter in soon) else NOTHING
    return watermark | to_read_scan(soon)


def to_make_events(counters: Iterable[Counter]) -> Needs:
    """Returns the needs to make events. For a sum of shards, a consumer stores the highest threshold reached."""
    notifying = [counter for counter in counters if counter.notifies]
    sums = [counter for counter in notifying if not counter.has_version]
    written = {"EVENT#": ("PutItem",)} if notifying else {}
    return on_ledger(written | ({"LEVEL#": ("GetItem", "UpdateItem")} if sums else {})) | on_counts(sums, "Query")


def to_send_events(counters: Iterable[Counter], *more: str) -> Needs:
    """Returns the needs to send events, and to store each as sent. `more`: further actions on events to send."""
    sent = {"EVENT#": ("DeleteItem", *more), "SENT#": ("PutItem",)}
    return on_ledger(sent) if any(counter.notifies for counter in counters) else NOTHING


def to_consume(consumer: str) -> Needs:
    """Returns the needs of a consumer: schema fingerprints, checkpoints, and the ledger's items of dead letters."""
    written = {f"CHECKPOINT#{consumer}#": ("GetItem", "UpdateItem"), "DEADLETTER": ("PutItem",)}
    return on_ledger(written) | READ_FINGERPRINTS
