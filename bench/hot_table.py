"""A model of DynamoDB with its documented limits, for one hot key, in virtual time.

It keeps only the keys of items: the conditions of Tally's writes need no more. hot_key.py lists its assumptions.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError
from botocore.retries.quota import RetryQuota
from botocore.retries.standard import (
    ExponentialBackoff,
    RetryContext,
    RetryQuotaChecker,
    StandardRetryConditions,
    ThrottlingErrorDetector,
)
from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

from tally.dynamo.client import CLIENT_CONFIG
from tally.dynamo.keys import Item
from tally.dynamo.transactions import CONDITION_FAILED, Write
from tally.settings import Settings

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

START_S = 1000.0  # clocks that start at 0 hide bugs
PARTITION_WCU_PER_S, PARTITION_RCU_PER_S = 1000.0, 3000.0
BURST_S = 1.0  # how long a partition keeps unused capacity; DynamoDB: up to 300 s, "best effort"
NETWORK_S = 0.0015  # 0.75 ms for the request, 0.75 ms for the answer
WRITE_MEDIAN_S, WRITE_P99_S = 0.004, 0.011  # a single write, or a cancelled transaction
HOLD_S = (0.010, 0.030)  # how long a transaction holds its items
PREPARE_WCU, COMMIT_WCU = 1.0, 1.0  # for each item of a transaction; each is under 1 KB
_Z99 = 2.326
_SIGMA = math.log(WRITE_P99_S / WRITE_MEDIAN_S) / _Z99
CONFLICT, THROTTLED = "TransactionConflict", "ThrottlingError"

Key = tuple[str, str, str]
"""Table, partition key, sort key."""


class Hub:
    """A clock, and the calls that wait for a moment of it. It moves only when no call has work left at this moment.

    Each call is a greenlet, because the simulated code blocks: its sleeps and its requests switch to the hub. Events of
    the same moment happen in the order of their registration, so a run repeats exactly.
    """

    def __init__(self) -> None:
        self.now_s = START_S
        self._waiting: list[tuple[float, int, greenlet]] = []
        self._turns = itertools.count()
        self._main: greenlet = getcurrent()

    def clock(self) -> float:
        """Seconds, like time.monotonic()."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let other calls run until these seconds have passed."""
        self._wait(getcurrent(), self.now_s + max(0.0, seconds))
        self._main.switch()

    def start(self, call: Callable[[], object], at_s: float | None = None) -> None:
        """Begin a call at a moment, by default now."""
        self._wait(greenlet(call, parent=self._main), self.now_s if at_s is None else at_s)

    def run(self) -> None:
        """Run until every call has ended. An exception of a call ends the run; it is raised here."""
        self._main = getcurrent()
        while self._waiting:
            self.now_s, _, waiter = heapq.heappop(self._waiting)
            waiter.switch()

    def _wait(self, waiter: greenlet, until_s: float) -> None:
        heapq.heappush(self._waiting, (until_s, next(self._turns), waiter))


@dataclass
class Bucket:
    """Units a second, and the unused ones of the last BURST_S."""

    hub: Hub
    rate_per_s: float
    left: float = field(init=False)
    seen_s: float = 0.0

    def __post_init__(self) -> None:
        self.left = self.rate_per_s * BURST_S

    def has(self, units: float) -> bool:
        """Whether these units are available now."""
        now_s = self.hub.now_s
        gained = (now_s - self.seen_s) * self.rate_per_s
        self.left, self.seen_s = min(self.rate_per_s * BURST_S, self.left + gained), now_s
        return self.left >= units

    def take(self, units: float) -> None:
        """Use these units."""
        self.left -= units


@dataclass
class Partition:
    """The capacity of one partition, and its stream."""

    writes: Bucket
    reads: Bucket
    stream: list[tuple[float, int]] = field(default_factory=list)
    """(moment, amount) of each spilled change: the rollup consumer adds them."""


@dataclass
class HotTables:
    """The tables. Receipts have `receipts_partitions` partitions, the item collection of the hot key has one."""

    hub: Hub
    settings: Settings
    boto: DynamoDBClient
    """Sends nothing. It gives botocore's own exceptions and models of operations."""
    chance: random.Random
    receipts_partitions: int
    tally: int = 0
    write_units: float = 0.0
    conflicts: int = 0
    throttles: int = 0
    items: set[Key] = field(default_factory=set)
    _held: set[Key] = field(default_factory=set)
    _partitions: dict[str, list[Partition]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for table, number in (
            (self.settings.counts_table, 1),
            (self.settings.receipts_table, self.receipts_partitions),
        ):
            self._partitions[table] = [
                Partition(Bucket(self.hub, PARTITION_WCU_PER_S), Bucket(self.hub, PARTITION_RCU_PER_S))
                for _ in range(number)
            ]

    def partitions(self) -> list[Partition]:
        """The partitions of the tables with streams; each is a shard of its stream."""
        return self._partitions[self.settings.counts_table] + self._partitions[self.settings.receipts_table]

    def partition_of(self, key: Key) -> Partition | None:
        """The partition of an item; None for the ledger, where each consumer writes only one row."""
        found = self._partitions.get(key[0])
        return found[int(hashlib.sha256(key[1].encode()).hexdigest()[:8], 16) % len(found)] if found else None

    def write(self, write: Write, *, kind: str) -> None:
        """A single write. Raises _RefusedError with the code of the refusal."""
        self.hub.sleep(NETWORK_S / 2)
        self._single(write, kind)
        self.hub.sleep(NETWORK_S / 2 + self._write_s())

    def _single(self, write: Write, kind: str) -> None:
        key = _key_of(write)
        partition = self.partition_of(key)
        code = None
        if key in self._held:
            self.conflicts += 1
            code = "TransactionConflictException"
        elif partition is not None and not partition.writes.has(PREPARE_WCU):
            self.throttles += 1
            code = "ProvisionedThroughputExceededException"
        if code is None:
            self._pay(partition, PREPARE_WCU)  # a failed condition costs the same
            if _holds(write, present=key in self.items):
                self._apply(key, write, kind)
                return
            code = "ConditionalCheckFailedException"
        self.hub.sleep(NETWORK_S / 2 + self._write_s())
        raise _RefusedError(code)

    def read(self, keys: Sequence[Key], *, consistent: bool) -> list[Key]:
        """The keys of those items that exist, each below 4 KB. Raises _RefusedError if it is throttled."""
        self.hub.sleep(NETWORK_S / 2)
        units = 1.0 if consistent else 0.5
        partitions = [partition for key in keys if (partition := self.partition_of(key)) is not None]
        throttled = not all(partition.reads.has(units) for partition in partitions)
        for partition in partitions:
            partition.reads.take(0 if throttled else units)
        self.throttles += throttled
        self.hub.sleep(NETWORK_S / 2 + self._write_s())
        if throttled:
            raise _RefusedError("ProvisionedThroughputExceededException")
        return [key for key in keys if key in self.items]

    def transact(self, writes: Sequence[Write]) -> None:
        """A transaction. Raises _CancelledError with a code for each write."""
        self.hub.sleep(NETWORK_S / 2)
        entries = [(*next(iter(entry.items())),) for entry in writes]
        keys = [_key_of(write) for _, write in entries]
        codes = [self._judge(key, write) for key, (_, write) in zip(keys, entries, strict=True)]
        self.conflicts += CONFLICT in codes
        self.throttles += THROTTLED in codes
        cancelled = any(codes)
        for key, code in zip(keys, codes, strict=True):
            if code != THROTTLED:
                self._pay(self.partition_of(key), PREPARE_WCU if cancelled else PREPARE_WCU + COMMIT_WCU)
        if cancelled:
            self.hub.sleep(NETWORK_S / 2 + self._write_s())
            raise _CancelledError(codes)
        self._held.update(keys)
        self.hub.sleep(self.chance.uniform(*HOLD_S))
        self._held.difference_update(keys)
        for key, (kind, write) in zip(keys, entries, strict=True):
            self._apply(key, write, kind)
        self.hub.sleep(NETWORK_S / 2)

    def _judge(self, key: Key, write: Write) -> str | None:
        if key in self._held:
            return CONFLICT
        partition = self.partition_of(key)
        if partition is not None and not partition.writes.has(PREPARE_WCU + COMMIT_WCU):
            return THROTTLED
        return None if _holds(write, present=key in self.items) else CONDITION_FAILED

    def _pay(self, partition: Partition | None, units: float) -> None:
        self.write_units += units
        if partition is not None:
            partition.writes.take(units)

    def _apply(self, key: Key, write: Write, kind: str) -> None:
        if kind == "ConditionCheck":
            return
        if kind == "Delete":
            self.items.discard(key)
        else:
            self.items.add(key)
        if kind == "Update" and key[0] == self.settings.counts_table:
            self.tally += int(write["ExpressionAttributeValues"][":amount"]["N"])
        item: Item = write.get("Item", {})
        partition = self.partition_of(key)
        if partition is not None and item.get("rollup") == {"BOOL": True}:
            partition.stream.append((self.hub.now_s, int(item.get("amount", {"N": "1"})["N"])))

    def _write_s(self) -> float:
        return self.chance.lognormvariate(math.log(WRITE_MEDIAN_S), _SIGMA)


class _RefusedError(Exception):
    """A refused read or single write: the code."""


class _CancelledError(Exception):
    """A cancelled transaction: a code, or None, for each write."""


class HotClient:
    """The part of boto3's client that Tally's writes use, with botocore's own retries. Each environment has one."""

    def __init__(self, tables: HotTables) -> None:
        self._tables = tables
        self.exceptions: Any = tables.boto.exceptions
        events = SimpleNamespace(register=lambda *_, **__: None)  # Powertools registers its user agent
        self.meta = SimpleNamespace(events=events)
        detector = ThrottlingErrorDetector(None)
        self._backoff = ExponentialBackoff(
            random=tables.chance.random, service_name="dynamodb", throttling_detector=detector
        )
        attempts: int = CLIENT_CONFIG.retries["total_max_attempts"]  # type: ignore[attr-defined]
        self._conditions = StandardRetryConditions(max_attempts=attempts)
        self._quota = RetryQuotaChecker(RetryQuota(), detector)

    def put_item(self, **write: Any) -> dict[str, Any]:
        """PutItem."""
        return self._send("PutItem", lambda: self._tables.write(write, kind="Put"))

    def update_item(self, **write: Any) -> dict[str, Any]:
        """UpdateItem."""
        return self._send("UpdateItem", lambda: self._tables.write(write, kind="Update"))

    def get_item(self, **read: Any) -> dict[str, Any]:
        """GetItem: the key, if the item exists."""
        found = self._read("GetItem", read["TableName"], [read["Key"]], read.get("ConsistentRead", False))
        return {"ConsumedCapacity": {}} | ({"Item": found[0]} if found else {})

    def batch_get_item(self, RequestItems: dict[str, Any]) -> dict[str, Any]:
        """BatchGetItem of one table: the keys of those items that exist."""
        ((table, wanted),) = RequestItems.items()
        found = self._read("BatchGetItem", table, wanted["Keys"], wanted.get("ConsistentRead", False))
        return {"Responses": {table: found}}

    def _read(self, operation: str, table: str, keys: list[Any], consistent: bool) -> list[Any]:
        named = {_key_of({"TableName": table, "Key": key}): key for key in keys}

        def look() -> dict[str, Any]:
            return {"found": [named[key] for key in self._tables.read(list(named), consistent=consistent)]}

        return list(self._send(operation, look)["found"])

    def transact_write_items(self, TransactItems: Sequence[Write], **token: str) -> dict[str, Any]:
        """TransactWriteItems. botocore retries no cancelled transaction. No answer is lost here: tokens do nothing."""
        try:
            self._tables.transact(TransactItems)
        except _CancelledError as cancelled:
            codes: list[str | None] = cancelled.args[0]
            raise self.exceptions.TransactionCanceledException(
                {
                    "Error": {"Code": "TransactionCanceledException", "Message": str(codes)},
                    "CancellationReasons": [{"Code": code or "None"} for code in codes],
                },
                "TransactWriteItems",
            ) from None
        return {}

    def _send(self, operation: str, send: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
        """A request with botocore's retries."""
        request: Any = {}
        model = self._tables.boto.meta.service_model.operation_model(operation)
        attempt = 0
        while True:
            attempt += 1
            try:
                answer = send() or {}
            except _RefusedError as refused:
                error = {"Error": {"Code": refused.args[0], "Message": "simulated"}}
            else:
                self._quota.release_retry_quota(request, SimpleNamespace(status_code=200))
                return answer
            context = RetryContext(attempt, model, parsed_response=error, request_context=request)
            if not (self._conditions.is_retryable(context) and self._quota.acquire_retry_quota(context)):
                made: type[ClientError] = getattr(self.exceptions, error["Error"]["Code"], ClientError)
                raise made(error, operation)  # type: ignore[arg-type]
            self._tables.hub.sleep(self._backoff.delay_amount(context))


def _key_of(write: Write) -> Key:
    key: Item = write.get("Key") or write["Item"]
    if "id" in key:
        return write["TableName"], key["id"]["S"], ""
    return write["TableName"], key["PK"]["S"], key["SK"]["S"]


def _holds(write: Write, *, present: bool) -> bool:
    """Whether a write's condition holds. All conditions of the simulated writes ask whether the item exists."""
    condition: str = write.get("ConditionExpression", "")
    if condition.startswith("attribute_not_exists("):
        return not present
    if condition.startswith("attribute_exists("):
        return present
    if condition:
        raise NotImplementedError(f"the model does not know the condition {condition!r}")
    return True
