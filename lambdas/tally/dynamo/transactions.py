"""The one place where a change is written: a transaction, retried while others are in its way.

With a receipt, the receipt is the first write of the same transaction: there is no state between "counted" and
"remembered as counted" in which a crash could be. A change that is rolled up is its receipt (or its child) alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from .. import observe
from ..counter import Counter
from ..errors import BUSY_CODES, ChangeRefusedError, ReceiptFoundError, StoreBusyError, TallyHotError, from_botocore
from .client import Call, Item
from .contention import ALONE_RETRY_S_MAX, HOT_S, SPILL_RETRIES_MAX, THROTTLED_S, Retries

Write = dict[str, Any]
"""One entry of TransactItems: `{"Put": {…}}`, `{"Update": {…}}` …"""
Body = dict[str, Any]
"""What an operation answers: JSON."""

VISIBLE_NOW: Body = {"visible": "now"}
VISIBLE_SOON: Body = {"visible": "soon"}
"""What the answer to a change says of when the number shows it: in the next read, or when it was rolled up."""
ALONE: Item = {"rollup": {"BOOL": True}}
"""What marks a receipt or a child that was written alone: the rollup adds it to its tally."""
ALONE_KEPT_S = 8 * 24 * 3600  # longer than checkpoints: what no checkpoint covers can be recounted from the receipts

CONDITION_FAILED = "ConditionalCheckFailed"
BUSY_REASONS = frozenset({"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"})
_CONFLICT_REASONS = frozenset({"TransactionConflict"})
_CONFLICT_CODES = frozenset({"TransactionConflictException", "TransactionInProgressException"})


@dataclass(frozen=True)
class Stamp:
    """What Powertools knows of a receipt before the change is made: its id, the payload's hash, when it expires."""

    id: str
    payload_hash: str
    expires_s: int

    def receipt(self, call: Call, body: Body, **facts: Item) -> Write:
        """The write that puts the COMPLETED receipt if no live one is there. `facts`: attributes for the streams."""
        return {
            "Put": {
                "TableName": call.store.settings.receipts_table,
                "Item": {
                    "id": {"S": self.id},
                    "status": {"S": "COMPLETED"},
                    "data": {"S": json.dumps(body, separators=(",", ":"))},
                    "validation": {"S": self.payload_hash},
                    "expiration": {"N": str(self.expires_s)},
                    "nonce": {"S": call.nonce},
                    **facts,
                },
                "ConditionExpression": "attribute_not_exists(id) OR expiration < :now",
                "ExpressionAttributeValues": {":now": {"N": str(int(time.time()))}},
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
        }

    def alone(self, call: Call, body: Body, **facts: Item) -> Write:
        """The receipt of a change that is written alone. It lives ALONE_KEPT_S at least."""
        expires_s = max(self.expires_s, int(time.time()) + ALONE_KEPT_S)
        return replace(self, expires_s=expires_s).receipt(call, body, **ALONE, **facts)


def transact(
    call: Call,
    counter: Counter,
    id_: str,
    writes: Callable[[int], Sequence[Write]],
    receipt: Write | None = None,
    *,
    first_shard: int | None = None,
    spills: bool = False,
) -> None:
    """Commit `writes(shard)`, with the receipt if there is one, in one TransactWriteItems.

    Each attempt is a call of its own, with a token of its own, on another shard; the first on `first_shard`, if given.

    Raises ReceiptFoundError if a live receipt stands there, ChangeRefusedError if a condition of `writes` failed,
    StoreBusyError when conflicts or throttling outlast the retries, or what botocore's error maps to. `spills`: the
    caller can write the change alone; TallyHotError says when to: when it was throttled (another try would want
    four times what a write alone takes), after SPILL_RETRIES_MAX conflicts, and while the breaker is open.
    """
    tally = counter.partition_key(id_)
    if spills and call.store.breaker.hot(tally):
        raise TallyHotError
    retries = call.retries()
    shard: int | None = None
    while True:
        spread = call.store.spread
        shard = first_shard if first_shard is not None else spread.pick(tally, counter.max_shards, avoid=shard)
        first_shard = None
        items = [receipt] if receipt else []
        items += writes(shard)
        try:
            call.store.client.transact_write_items(TransactItems=items)  # type: ignore[arg-type]
            call.store.breaker.cool(tally)
            return
        except call.store.client.exceptions.TransactionCanceledException as cancelled:
            reasons = cancelled.response.get("CancellationReasons", [])
            if not BUSY_REASONS.intersection(reason.get("Code") for reason in reasons):
                call.store.breaker.cool(tally)  # it was judged, and not turned away
            conflict = _judge(reasons, shard, has_receipt=receipt is not None)
        except (ClientError, BotoCoreError) as error:
            conflict = busy_or_raise(error)
        if conflict:
            spread_wider(call, counter, id_)
        if spills and (not conflict or retries.attempts >= SPILL_RETRIES_MAX):
            call.store.breaker.trip(tally, HOT_S if conflict else THROTTLED_S)
            raise TallyHotError
        pause(retries)


def update(call: Call, counter: Counter, id_: str, write: Callable[[int], Write]) -> None:
    """Commit one UpdateItem, `write(shard)`, for changes that need no receipt: 1 WCU.

    Raises ChangeRefusedError if its condition failed, StoreBusyError, or what botocore's error maps to. An answer that
    was lost leaves the caller not knowing.
    """
    tally = counter.partition_key(id_)
    retries = call.retries()
    shard: int | None = None
    while True:
        shard = call.store.spread.pick(tally, counter.max_shards, avoid=shard)
        try:
            call.store.client.update_item(**write(shard))
            return
        except call.store.client.exceptions.ConditionalCheckFailedException as failed:
            old_item: Any = failed.response.get("Item", {})
            raise ChangeRefusedError([old_item], shard) from None
        except (ClientError, BotoCoreError) as error:
            conflict = busy_or_raise(error)
        if conflict:
            spread_wider(call, counter, id_)
        pause(retries)


def put(call: Call, write: Write) -> None:
    """Commit one conditional Put by itself, for changes that are rolled up: 1 WCU, one round trip.

    Raises ChangeRefusedError with what stands there, StoreBusyError, or what botocore's error maps to.
    """
    retries = call.retries(retry_s_max=ALONE_RETRY_S_MAX)
    while True:
        try:
            call.store.client.put_item(**write["Put"])
            return
        except call.store.client.exceptions.ConditionalCheckFailedException as failed:
            old_item: Any = failed.response.get("Item", {})
            raise ChangeRefusedError([old_item], 0) from None
        except (ClientError, BotoCoreError) as error:
            busy_or_raise(error)
        pause(retries)


def put_receipt(call: Call, receipt: Write) -> None:
    """Commit a receipt by itself. Raises ReceiptFoundError if a live one stands there, and put's errors."""
    try:
        put(call, receipt)
    except ChangeRefusedError as refused:
        raise ReceiptFoundError(refused.old_items[0] or {}) from None


def _judge(reasons: Sequence[Any], shard: int, *, has_receipt: bool) -> bool:
    """Judge a cancelled transaction: raises for a receipt found or a refusal; else whether it met a conflict.

    The order matters: a receipt means "already counted" whatever else failed, and a condition that failed beside a
    conflict is judged afresh by the retry.
    """
    codes = [reason.get("Code") for reason in reasons]
    if has_receipt and codes and codes[0] == CONDITION_FAILED:
        raise ReceiptFoundError(reasons[0].get("Item", {}))
    if CONDITION_FAILED in codes and not BUSY_REASONS.intersection(codes):
        of_change = reasons[1:] if has_receipt else reasons
        old_items = [reason.get("Item", {}) if reason.get("Code") == CONDITION_FAILED else None for reason in of_change]
        raise ChangeRefusedError(old_items, shard)
    return conflict_or_raise(reasons)


def conflict_or_raise(reasons: Sequence[Any]) -> bool:
    """True if a cancelled transaction met a conflict, False if it was throttled; raises for anything else."""
    codes = {reason.get("Code") for reason in reasons}
    if not BUSY_REASONS.intersection(codes):
        error = {"Error": {"Code": "TransactionCanceledException", "Message": str(sorted(map(str, codes)))}}
        raise from_botocore(ClientError(error, "TransactWriteItems"))  # type: ignore[arg-type]
    return bool(_CONFLICT_REASONS.intersection(codes))


def busy_or_raise(error: ClientError | BotoCoreError) -> bool:
    """True for a conflict, False for throttling; raises what anything else maps to."""
    code = error.response.get("Error", {}).get("Code", "") if isinstance(error, ClientError) else ""
    if code not in BUSY_CODES:
        raise from_botocore(error) from error
    return code in _CONFLICT_CODES


def spread_wider(call: Call, counter: Counter, id_: str) -> None:
    """Take note of a conflict on a tally: its next writes spread over more shards."""
    observe.count(counter.name, observe.CONFLICTS)
    call.store.spread.conflict(counter.partition_key(id_), counter.max_shards)


def pause(retries: Retries) -> None:
    """Wait before the next attempt. Raises StoreBusyError when there is to be none."""
    if not retries.wait():
        raise StoreBusyError("The store is taking more changes than it can. Send the request again with the same key.")
