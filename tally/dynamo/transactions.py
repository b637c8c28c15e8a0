"""The one module that writes: it commits writes, and retries after conflicts and throttling.

A receipt is in its change's transaction, as the first write, so no crash can separate the two. If a change spills,
Tally writes only the change's receipt (or child), and the rollup adds the change.

    send, send_one           one attempt, and its result for each write
    commit_change            a change of a tally, on a shard that it picks, with its receipt
    put_alone, put_receipt   one Put without a transaction, as of a change that spills: half the price
    commit_writes            writes that do not depend on a shard, retried as they are
    try_commit               writes of the sweep or the command, sent once: the caller tries again later
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from botocore.exceptions import BotoCoreError, ClientError

from .. import observe
from ..counter import Counter
from ..errors import (
    BUSY_CODES,
    AlreadyCountedError,
    ChangeRefusedError,
    HotTallyError,
    StoreBusyError,
    TallyError,
    from_botocore,
)
from .client import Call, Store
from .contention import BREAKER_OPEN_S, BREAKER_THROTTLED_S, SPILL_RETRIES_MAX, SPILL_RETRY_S_MAX, Retries
from .items import Write as Write
from .keys import Item

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

TRANSACTION_ITEMS_MAX = 100  # DynamoDB's limit
CONDITION_FAILED, CONFLICT, THROTTLED = "ConditionalCheckFailed", "TransactionConflict", "ThrottlingError"
REJECTED = "ValidationError"  # these four are codes of DynamoDB's cancellation reasons
REJECTED_CODES = frozenset({REJECTED, "ItemCollectionSizeLimitExceeded"})
IN_PROGRESS = "TransactionInProgressException"
_BUSY = frozenset({CONFLICT, THROTTLED, "ProvisionedThroughputExceeded"})
_METHODS = {"Put": "put_item", "Update": "update_item", "Delete": "delete_item"}


class ConditionFailedError(TallyError):
    """A condition of `commit_writes` failed: another writer was first."""


class WriteRejectedError(TallyError):
    """DynamoDB rejected a write, or the size of the writes. The message is DynamoDB's."""


class Reason(NamedTuple):
    """Why a write did not commit. `code`: "None" if only other writes failed. `item`: the old item, if asked for."""

    code: str = "None"
    item: Item | None = None
    message: str = ""


class SendResult(NamedTuple):
    """The result of writes that were sent once. `reasons`: one for each write; empty if the writes committed."""

    reasons: Sequence[Reason] = ()
    error: ClientError | None = None
    answer: Mapping[str, Any] = MappingProxyType({})
    """DynamoDB's answer to writes that committed."""

    @property
    def committed(self) -> bool:
        """True if all writes took effect; otherwise no write did."""
        return self.error is None

    @property
    def codes(self) -> list[str]:
        """The reasons' codes, in the order of the writes."""
        return [reason.code for reason in self.reasons]

    @property
    def is_busy(self) -> bool:
        """True if a write met a conflict or throttling: the same writes may commit later."""
        return not _BUSY.isdisjoint(self.codes)

    @property
    def has_conflict(self) -> bool:
        return CONFLICT in self.codes

    @property
    def condition_failed(self) -> bool:
        return CONDITION_FAILED in self.codes

    def old_items(self) -> list[Item | None]:
        """Returns for each write None if its condition held, else the old item (empty if missing or not asked for)."""
        return [(reason.item or {}) if reason.code == CONDITION_FAILED else None for reason in self.reasons]

    def raise_unless_busy(self) -> None:
        """If no write met a conflict or throttling, raises the error that DynamoDB's error maps to."""
        if self.error is not None and not self.is_busy:
            raise from_botocore(self.error) from self.error


def send(
    client: DynamoDBClient,
    writes: Sequence[Write],
    token: str | None = None,
    *,
    retries: Callable[[], Retries] = lambda: Retries(math.inf),
) -> SendResult:
    """Sends the writes once, in one TransactWriteItems. Raises what botocore's error maps to.

    For ten minutes, the same writes with the same `token` take effect once; None: this call makes a token. The answer
    "in progress" means that DynamoDB still works at an earlier copy of the request, and does not tell the result. So
    this function repeats the request, as often as `retries()` allows, and then raises StoreUnreachableError.
    """
    parameters: Any = {"TransactItems": writes, "ClientRequestToken": token or str(uuid4())}

    def request() -> Any:
        remaining = None
        while True:
            try:
                return client.transact_write_items(**parameters)
            except ClientError as error:
                if error.response["Error"]["Code"] != IN_PROGRESS:
                    raise
                remaining = remaining or retries()
                if not remaining.sleep_before_retry():
                    raise

    return _send_result(len(writes), request)


def send_one(client: DynamoDBClient, write: Write) -> SendResult:
    """Sends one Put, Update or Delete once, as a request of its own, at half the price. Raises as `send`."""
    ((action, parameters),) = write.items()
    return _send_result(1, lambda: getattr(client, _METHODS[action])(**parameters))


def _send_result(write_count: int, request: Callable[[], Any]) -> SendResult:
    """Sends a request. If DynamoDB answers with one error for the whole request, each write has this error's reason."""
    try:
        return SendResult(answer=request())
    except ClientError as error:
        answer: Any = error.response
        code = answer.get("Error", {}).get("Code", "")
        if code == "TransactionCanceledException":
            reasons = answer.get("CancellationReasons", [])
            return SendResult([Reason(r.get("Code", ""), r.get("Item"), r.get("Message", "")) for r in reasons], error)
        if code == "ConditionalCheckFailedException":
            return SendResult([Reason(CONDITION_FAILED, answer.get("Item"))], error)
        if code == "ValidationException":
            return SendResult([Reason(REJECTED, None, answer["Error"].get("Message", code))] * write_count, error)
        if code in BUSY_CODES:
            busy = CONFLICT if code == "TransactionConflictException" else THROTTLED
            return SendResult([Reason(busy)] * write_count, error)
        raise from_botocore(error) from error
    except BotoCoreError as error:
        raise from_botocore(error) from error


def commit_change(
    call: Call,
    counter: Counter,
    id_: str,
    writes: Callable[[int], Sequence[Write]],
    receipt: Write | None = None,
    *,
    first_shard: int | None = None,
    may_spill: bool = False,
) -> None:
    """Commits `writes(shard)`, with the receipt if there is one, in one TransactWriteItems.

    Each attempt has a new token, and another shard than the attempt before, if the spread has several shards.
    `first_shard`: the shard of the first attempt; None: the spread picks the shard.

    If the key has a live receipt, raises AlreadyCountedError, even if another write failed, too. If a condition of
    `writes` failed, raises ChangeRefusedError; but if a write met a conflict or throttling, the next attempt decides.
    Raises StoreBusyError if conflicts or throttling outlast the retries, or what botocore's error maps to.

    `may_spill`: raises HotTallyError when the caller is to spill the change: at once after throttling, because a spill
    needs a quarter of the capacity; at a conflict after SPILL_RETRIES_MAX retries; and while the breaker is open. A
    conflict on another item than a shard, such as the receipt, does not make the tally hot: no spill and no new shards.
    """
    store, tally = call.store, counter.partition_start + id_
    if may_spill and tally in store.breaker.open_tallies and store.breaker.is_open(tally):
        raise HotTallyError
    since_s, retries, shard = store.clock(), None, first_shard
    if shard is None:
        shard = store.spread.pick_shard(tally, counter.max_shards) if tally in store.spread.widths else 0
    while True:
        assert 0 <= shard < counter.max_shards
        attempted = [receipt, *writes(shard)] if receipt else writes(shard)
        assert receipt is None or _receipt_matches(receipt, attempted[1:])
        sent = send(store.client, attempted, retries=call.retries)
        if tally in store.breaker.open_tallies and not sent.is_busy:
            store.breaker.close(tally)  # if a change probes: perhaps this change
        if sent.committed:
            return
        if receipt and sent.codes[:1] == [CONDITION_FAILED]:
            raise AlreadyCountedError(sent.reasons[0].item or {})
        if sent.condition_failed and not sent.is_busy:
            raise ChangeRefusedError(sent.old_items()[1 if receipt else 0 :], shard)
        sent.raise_unless_busy()
        has_shard_conflict = _has_shard_conflict(sent, attempted, counter)
        if has_shard_conflict:
            record_conflict(call, counter, id_)
        retries = retries or call.retries(since_s)
        if may_spill and (not sent.has_conflict or (has_shard_conflict and retries.attempts >= SPILL_RETRIES_MAX)):
            store.breaker.trip(tally, BREAKER_OPEN_S if sent.has_conflict else BREAKER_THROTTLED_S)
            raise HotTallyError
        sleep_or_raise_busy(retries)
        shard = store.spread.pick_shard(tally, counter.max_shards, avoid=shard)


def _receipt_matches(receipt: Write, writes: Sequence[Write]) -> bool:
    """Returns whether the receipt has a condition, and any amount in it is what the updates add to tallies."""
    put, moves = receipt["Put"], [write["Update"]["ExpressionAttributeValues"] for write in writes if "Update" in write]
    if (amount := put["Item"].get("amount")) and int(amount["N"]) != sum(int(move[":amount"]["N"]) for move in moves):
        return False
    return "ConditionExpression" in put


def _has_shard_conflict(sent: SendResult, writes: Sequence[Write], counter: Counter) -> bool:
    """Returns whether the write of a shard met a conflict. Writes of receipts, children and texts do not count."""
    for write, code in zip(writes, sent.codes, strict=False):
        ((_, target),) = write.items()
        sort_key = target.get("Key", target.get("Item", {})).get("SK")
        if code == CONFLICT and sort_key is not None and counter.shard_of(sort_key["S"]) is not None:
            return True
    return False


def put_alone(call: Call, write: Write) -> None:
    """Commits one conditional Put as a request of its own: 1 WCU for each KB, half the price of a transaction.

    Raises ChangeRefusedError with the old item, StoreBusyError, or what botocore's error maps to.
    """
    retries = call.retries(retry_s_max=SPILL_RETRY_S_MAX)
    while not (sent := send_one(call.store.client, write)).committed:
        if sent.condition_failed:
            raise ChangeRefusedError(sent.old_items(), 0) from None
        sent.raise_unless_busy()
        sleep_or_raise_busy(retries)


def put_receipt(call: Call, receipt: Write) -> None:
    """Commits a receipt as `put_alone` does. If the key has a live receipt, raises AlreadyCountedError."""
    try:
        put_alone(call, receipt)
    except ChangeRefusedError as refused:
        raise AlreadyCountedError(refused.old_items[0] or {}) from None


def commit_writes(call: Call, writes: Sequence[Write]) -> None:
    """Commits the writes, the same in each attempt, in one transaction. A single Update is a request of its own.

    If a condition failed, raises ConditionFailedError. Raises WriteRejectedError, StoreBusyError when conflicts or
    throttling outlast the retries, or what botocore's error maps to.
    """
    single, retries, client = len(writes) == 1 and "Update" in writes[0], call.retries(), call.store.client
    while not (sent := send_one(client, writes[0]) if single else send(client, writes, retries=call.retries)).committed:
        if sent.condition_failed:
            raise ConditionFailedError("the condition failed")
        rejected = [reason for reason in sent.reasons if reason.code in REJECTED_CODES]
        if rejected and not sent.is_busy:
            raise WriteRejectedError(rejected[0].message or rejected[0].code)
        sent.raise_unless_busy()
        if sent.has_conflict:
            observe.logger.info("conflict")
        sleep_or_raise_busy(retries)


def try_commit(store: Store, writes: Sequence[Write]) -> bool:
    """Sends the writes once, and returns whether they committed. False: a condition failed, or there was a conflict.

    A single write is a request of its own. If throttled, raises StoreBusyError, else what botocore's error maps to."""
    single = len(writes) == 1 and not _METHODS.keys().isdisjoint(writes[0])  # a ConditionCheck needs a transaction
    sent = send_one(store.client, writes[0]) if single else send(store.client, writes)
    if sent.committed or sent.condition_failed or sent.has_conflict:
        return sent.committed
    sent.raise_unless_busy()
    raise StoreBusyError("The store is throttling.")


def record_conflict(call: Call, counter: Counter, id_: str) -> None:
    """Counts a conflict on a tally in the metrics, and spreads the tally's next writes over more shards."""
    observe.count(observe.CONFLICTS)
    call.store.spread.widen(counter.partition_start + id_, counter.max_shards)


def sleep_or_raise_busy(retries: Retries) -> None:
    """Sleeps before the next attempt. If the retries are used up, raises StoreBusyError."""
    if not retries.sleep_before_retry():
        raise StoreBusyError("The store gets more changes than it takes.")
