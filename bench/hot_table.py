"""The model of DynamoDB for hot_key.py, in virtual time: partitions, transactions, and clients that retry."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

from tally.dynamo.client import CLIENT_CONFIG
from tally.dynamo.keys import Item
from tally.dynamo.transactions import CONDITION_FAILED, Write
from tally.settings import Settings

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

START_S = 1000.0  # not 0, in case Tally's code stores 0 for "never"
PARTITION_WCU_PER_S, PARTITION_RCU_PER_S = 1000.0, 3000.0
BURST_S = 1.0  # how long a partition keeps unused capacity; DynamoDB: up to 300 s, "best effort"
NETWORK_S = 0.0015  # 0.75 ms for the request, 0.75 ms for the answer
WRITE_MEDIAN_S, WRITE_P99_S = 0.004, 0.011  # a single write, a read, or a cancelled transaction
LOCK_S = (0.010, 0.030)  # the shortest and the longest time for which a transaction locks its items
# Each item is under 1 KB. A transaction costs PREPARE_WCU + COMMIT_WCU for each item.
SINGLE_WCU, PREPARE_WCU, COMMIT_WCU = 1.0, 1.0, 1.0
# Of the logarithm of a write's time: the 99th percentile of a normal distribution is 2.326 deviations above the median.
_SIGMA = math.log(WRITE_P99_S / WRITE_MEDIAN_S) / 2.326
CONFLICT, THROTTLED = "TransactionConflict", "ThrottlingError"
_ERRORS = {  # by code, for a request that is not a transaction
    CONFLICT: "TransactionConflictException",
    THROTTLED: "ProvisionedThroughputExceededException",
    CONDITION_FAILED: "ConditionalCheckFailedException",
}
Key = tuple[str, str, str]
"""Table, partition key, sort key."""


class Hub:
    """A virtual clock, and the calls that wait for a time on it. The clock moves only when every call waits.

    Each call is a greenlet, because the simulated code blocks: its sleeps and its requests switch to the hub. Calls
    that wait for the same time go on in the order in which they began to wait, so a run repeats exactly.
    """

    def __init__(self) -> None:
        self.now_s = START_S
        self._waiting: list[tuple[float, int, greenlet]] = []
        self._order = itertools.count()
        self._main: greenlet = getcurrent()

    def clock(self) -> float:
        """Returns the virtual time in seconds, as time.monotonic() returns the real time."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let other calls run until these seconds have passed."""
        self._wait(getcurrent(), self.now_s + max(0.0, seconds))
        self._main.switch()

    def start(self, call: Callable[[], object], at_s: float) -> None:
        """Begin a call at `at_s`."""
        self._wait(greenlet(call, parent=self._main), at_s)

    def run(self) -> None:
        """Run until every call has ended. If a call raises, the run ends and raises the same exception."""
        self._main = getcurrent()
        while self._waiting:
            self.now_s, _, waiter = heapq.heappop(self._waiting)
            waiter.switch()

    def _wait(self, waiter: greenlet, until_s: float) -> None:
        heapq.heappush(self._waiting, (until_s, next(self._order), waiter))


@dataclass
class UnitBucket:
    """The units that a partition still has. Each second adds `rate_per_s`. Unused units are kept for BURST_S.

    `units_left` falls below 0 if several items of one request use the last units.
    """

    hub: Hub
    rate_per_s: float
    units_left: float = field(init=False)
    last_refill_s: float = 0.0

    def __post_init__(self) -> None:
        self.units_left = self.rate_per_s * BURST_S

    def has(self, units: float) -> bool:
        """Whether these units are available now."""
        now_s = self.hub.now_s
        gained = (now_s - self.last_refill_s) * self.rate_per_s
        self.units_left, self.last_refill_s = min(self.rate_per_s * BURST_S, self.units_left + gained), now_s
        return self.units_left >= units


class Partition:
    """The capacity of one partition."""

    def __init__(self, hub: Hub) -> None:
        self.writes, self.reads = UnitBucket(hub, PARTITION_WCU_PER_S), UnitBucket(hub, PARTITION_RCU_PER_S)


class HotTables:
    """The tables. Receipts have `receipts_partitions` partitions, and the hot key's item collection has one."""

    def __init__(self, hub: Hub, settings: Settings, chance: random.Random, receipts_partitions: int) -> None:
        self.hub, self.chance, self._settings = hub, chance, settings
        self.items: set[Key] = set()
        self.tally = self.spilled = 0  # the sum of the added amounts, and the sum that the rollup would add
        self.conflicts = self.throttles = 0  # how many requests failed with this code
        self.write_units = 0.0
        self._locked: set[Key] = set()
        self._partitions = {
            settings.counts_table: [Partition(hub)],
            settings.receipts_table: [Partition(hub) for _ in range(receipts_partitions)],
        }

    def partition_of(self, key: Key) -> Partition:
        """Returns the partition of an item."""
        partitions = self._partitions[key[0]]
        return partitions[int(hashlib.sha256(key[1].encode()).hexdigest()[:8], 16) % len(partitions)]

    def write(self, entries: Sequence[tuple[str, Write]], *, single: bool = False) -> None:
        """Commit writes, each with its kind (`Put`), in a transaction, or a `single` write without a transaction.
        If a write has a conflict, is throttled, or its condition fails, raises FailedRequestError."""
        self.hub.sleep(NETWORK_S / 2)
        failed_units, units = (SINGLE_WCU, SINGLE_WCU) if single else (PREPARE_WCU, PREPARE_WCU + COMMIT_WCU)
        keys = [_key_of(write) for _, write in entries]
        codes = [self._failure_code(key, write, units) for key, (_, write) in zip(keys, entries, strict=True)]
        self.conflicts += CONFLICT in codes
        self.throttles += THROTTLED in codes
        for key, code in zip(keys, codes, strict=True):
            if code != THROTTLED:  # a throttled item costs nothing
                used = failed_units if any(codes) else units
                self.write_units += used
                self.partition_of(key).writes.units_left -= used
        if any(codes):
            self.hub.sleep(NETWORK_S / 2 + self._write_s())
            raise FailedRequestError(codes)
        if not single:
            self._locked.update(keys)
            self.hub.sleep(self.chance.uniform(*LOCK_S))
            self._locked.difference_update(keys)
        for key, (kind, write) in zip(keys, entries, strict=True):
            self._apply(key, kind, write)
        self.hub.sleep(NETWORK_S / 2 + (self._write_s() if single else 0))

    def read(self, keys: Sequence[Key], *, consistent: bool) -> list[Key]:
        """Returns the keys of the items that exist, each below 4 KB. If throttled, raises FailedRequestError."""
        self.hub.sleep(NETWORK_S / 2)
        units, buckets = 1.0 if consistent else 0.5, [self.partition_of(key).reads for key in keys]
        throttled = not all(bucket.has(units) for bucket in buckets)
        for bucket in buckets:
            bucket.units_left -= 0 if throttled else units
        self.throttles += throttled
        self.hub.sleep(NETWORK_S / 2 + self._write_s())
        if throttled:
            raise FailedRequestError([THROTTLED])
        return [key for key in keys if key in self.items]

    def _failure_code(self, key: Key, write: Write, units: float) -> str | None:
        if key in self._locked:
            return CONFLICT
        if not self.partition_of(key).writes.has(units):
            return THROTTLED
        return None if _is_condition_met(write, present=key in self.items) else CONDITION_FAILED

    def _apply(self, key: Key, kind: str, write: Write) -> None:
        if kind == "ConditionCheck":
            return
        self.items.add(key)
        item: Item = write.get("Item", {})
        if kind == "Update" and key[0] == self._settings.counts_table:
            self.tally += int(write["ExpressionAttributeValues"][":amount"]["N"])
        elif item.get("rollup") == {"BOOL": True}:
            self.spilled += int(item.get("amount", {"N": "1"})["N"])  # a like has no amount

    def _write_s(self) -> float:
        return self.chance.lognormvariate(math.log(WRITE_MEDIAN_S), _SIGMA)


class FailedRequestError(Exception):
    """A failed request. The argument is a list with a code, or None, for each write."""


class HotClient:
    """The part of boto3's client that a hot change uses. `boto`: a real client, which only gives the exceptions."""

    def __init__(self, tables: HotTables, boto: DynamoDBClient) -> None:
        self._tables = tables
        self.exceptions: Any = boto.exceptions
        events = SimpleNamespace(register=lambda *_, **__: None)  # Powertools registers its user agent
        self.meta = SimpleNamespace(events=events)

    def put_item(self, **write: Any) -> dict[str, Any]:
        """PutItem."""
        return self._send("PutItem", lambda: self._tables.write([("Put", write)], single=True))

    def get_item(self, **read: Any) -> dict[str, Any]:
        """GetItem: the key, if the item exists."""
        items = self._read("GetItem", read["TableName"], [read["Key"]], read.get("ConsistentRead", False))
        return {"ConsumedCapacity": {}} | ({"Item": items[0]} if items else {})

    def batch_get_item(self, RequestItems: dict[str, Any]) -> dict[str, Any]:
        """BatchGetItem of one table: the keys of the items that exist."""
        ((table, request),) = RequestItems.items()
        items = self._read("BatchGetItem", table, request["Keys"], request.get("ConsistentRead", False))
        return {"Responses": {table: items}}

    def _read(self, operation: str, table: str, keys: list[Any], consistent: bool) -> list[Any]:
        dynamodb_keys = {_key_of({"TableName": table, "Key": key}): key for key in keys}
        answer = self._send(operation, lambda: {"found": self._tables.read(list(dynamodb_keys), consistent=consistent)})
        return [dynamodb_keys[key] for key in answer["found"]]

    def transact_write_items(self, TransactItems: Sequence[Write], **token: str) -> dict[str, Any]:
        """TransactWriteItems, which botocore does not retry. No answer is lost, so tokens do nothing."""
        try:
            self._tables.write([next(iter(entry.items())) for entry in TransactItems])
        except FailedRequestError as failed:
            reasons = [{"Code": code or "None"} for code in failed.args[0]]
            error = {"Error": {"Code": "TransactionCanceledException"}, "CancellationReasons": reasons}
            raise self.exceptions.TransactionCanceledException(error, "TransactWriteItems") from None
        return {}

    def _send(self, operation: str, send: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
        """Send a request as botocore's standard mode does: a throttled request waits up to 1 s, then up to 2 s."""
        attempts: int = CLIENT_CONFIG.retries["total_max_attempts"]  # type: ignore[attr-defined]
        for attempt in itertools.count(1):
            try:
                return send() or {}
            except FailedRequestError as failed:
                [code] = failed.args[0]
                if code != THROTTLED or attempt == attempts:
                    error = {"Error": {"Code": _ERRORS[code], "Message": "simulated"}}
                    raise getattr(self.exceptions, _ERRORS[code])(error, operation) from None
            self._tables.hub.sleep(self._tables.chance.random() * 2 ** (attempt - 1))
        raise AssertionError


def _key_of(write: Write) -> Key:
    key: Item = write.get("Key") or write["Item"]
    if "id" in key:
        return write["TableName"], key["id"]["S"], ""
    return write["TableName"], key["PK"]["S"], key["SK"]["S"]


def _is_condition_met(write: Write, *, present: bool) -> bool:
    """Whether a write's condition is met. Every simulated condition is that the item exists, or does not exist."""
    condition: str = write.get("ConditionExpression", "")
    if condition.startswith("attribute_not_exists("):
        return not present
    if condition.startswith("attribute_exists("):
        return present
    if condition:
        raise NotImplementedError(f"the model does not know the condition {condition!r}")
    return True
