"""DynamoDB as hot_key.py simulates it, in virtual time: partitions, transactions, and clients that retry."""

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

START_S = 1000.0  # clocks that start at 0 hide bugs
PARTITION_WCU_PER_S, PARTITION_RCU_PER_S = 1000.0, 3000.0
BURST_S = 1.0  # how long a partition keeps unused capacity; DynamoDB: up to 300 s, "best effort"
NETWORK_S = 0.0015  # 0.75 ms for the request, 0.75 ms for the answer
WRITE_MEDIAN_S, WRITE_P99_S = 0.004, 0.011  # a single write, or a cancelled transaction
HOLD_S = (0.010, 0.030)  # how long a transaction holds its items
PREPARE_WCU, COMMIT_WCU = 1.0, 1.0  # for each item of a transaction; each is under 1 KB
_SIGMA = math.log(WRITE_P99_S / WRITE_MEDIAN_S) / 2.326
CONFLICT, THROTTLED = "TransactionConflict", "ThrottlingError"
_ALONE = {  # the errors of a request that is no transaction
    CONFLICT: "TransactionConflictException",
    THROTTLED: "ProvisionedThroughputExceededException",
    CONDITION_FAILED: "ConditionalCheckFailedException",
}
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
        """Returns seconds, like time.monotonic()."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let other calls run until these seconds have passed."""
        self._wait(getcurrent(), self.now_s + max(0.0, seconds))
        self._main.switch()

    def start(self, call: Callable[[], object], at_s: float) -> None:
        """Begin a call at a moment."""
        self._wait(greenlet(call, parent=self._main), at_s)

    def run(self) -> None:
        """Run until every call has ended. An exception of a call ends the run; it is raised here."""
        self._main = getcurrent()
        while self._waiting:
            self.now_s, _, waiter = heapq.heappop(self._waiting)
            waiter.switch()

    def _wait(self, waiter: greenlet, until_s: float) -> None:
        heapq.heappush(self._waiting, (until_s, next(self._turns), waiter))


@dataclass
class UnitBucket:
    """The units of each second, and the unused units of the last BURST_S."""

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


class Partition:
    """The capacity of one partition."""

    def __init__(self, hub: Hub) -> None:
        self.writes, self.reads = UnitBucket(hub, PARTITION_WCU_PER_S), UnitBucket(hub, PARTITION_RCU_PER_S)


class HotTables:
    """The tables. Receipts have `receipts_partitions` partitions, the item collection of the hot key has one."""

    def __init__(self, hub: Hub, settings: Settings, chance: random.Random, receipts_partitions: int) -> None:
        self.hub, self.chance, self._settings = hub, chance, settings
        self.items: set[Key] = set()
        self.tally = self.spilled = self.conflicts = self.throttles = 0
        """`tally`: what was added to it; `spilled`: what the rollup would add."""
        self.write_units = 0.0
        self._held: set[Key] = set()
        self._partitions = {
            settings.counts_table: [Partition(hub)],
            settings.receipts_table: [Partition(hub) for _ in range(receipts_partitions)],
        }

    def partition_of(self, key: Key) -> Partition:
        """Returns the partition of an item."""
        partitions = self._partitions[key[0]]
        return partitions[int(hashlib.sha256(key[1].encode()).hexdigest()[:8], 16) % len(partitions)]

    def write(self, entries: Sequence[tuple[str, Write]], *, alone: bool = False) -> None:
        """Commit a transaction, or one write `alone`. Raises RefusedError."""
        self.hub.sleep(NETWORK_S / 2)
        units = PREPARE_WCU if alone else PREPARE_WCU + COMMIT_WCU
        keys = [_key_of(write) for _, write in entries]
        codes = [self._refusal(key, write, units) for key, (_, write) in zip(keys, entries, strict=True)]
        self.conflicts += CONFLICT in codes
        self.throttles += THROTTLED in codes
        for key, code in zip(keys, codes, strict=True):
            if code != THROTTLED:  # a refusal costs as much as it takes to prepare
                used = PREPARE_WCU if any(codes) else units
                self.write_units += used
                self.partition_of(key).writes.left -= used
        if any(codes):
            self.hub.sleep(NETWORK_S / 2 + self._write_s())
            raise RefusedError(codes)
        if not alone:
            self._held.update(keys)
            self.hub.sleep(self.chance.uniform(*HOLD_S))
            self._held.difference_update(keys)
        for key, (kind, write) in zip(keys, entries, strict=True):
            self._apply(key, kind, write)
        self.hub.sleep(NETWORK_S / 2 + (self._write_s() if alone else 0))

    def read(self, keys: Sequence[Key], *, consistent: bool) -> list[Key]:
        """Returns the keys of the items that exist, each below 4 KB. Raises RefusedError if the read is throttled."""
        self.hub.sleep(NETWORK_S / 2)
        units, buckets = 1.0 if consistent else 0.5, [self.partition_of(key).reads for key in keys]
        throttled = not all(bucket.has(units) for bucket in buckets)
        for bucket in buckets:
            bucket.left -= 0 if throttled else units
        self.throttles += throttled
        self.hub.sleep(NETWORK_S / 2 + self._write_s())
        if throttled:
            raise RefusedError([THROTTLED])
        return [key for key in keys if key in self.items]

    def _refusal(self, key: Key, write: Write, units: float) -> str | None:
        if key in self._held:
            return CONFLICT
        if not self.partition_of(key).writes.has(units):
            return THROTTLED
        return None if _holds(write, present=key in self.items) else CONDITION_FAILED

    def _apply(self, key: Key, kind: str, write: Write) -> None:
        if kind == "ConditionCheck":
            return
        self.items.add(key)
        item: Item = write.get("Item", {})
        if kind == "Update" and key[0] == self._settings.counts_table:
            self.tally += int(write["ExpressionAttributeValues"][":amount"]["N"])
        elif item.get("rollup") == {"BOOL": True}:
            self.spilled += int(item.get("amount", {"N": "1"})["N"])

    def _write_s(self) -> float:
        return self.chance.lognormvariate(math.log(WRITE_MEDIAN_S), _SIGMA)


class RefusedError(Exception):
    """A refused request: a code, or None, for each write."""


class HotClient:
    """The part of boto3's client that a hot change uses. `boto` sends nothing: it gives botocore's own exceptions."""

    def __init__(self, tables: HotTables, boto: DynamoDBClient) -> None:
        self._tables = tables
        self.exceptions: Any = boto.exceptions
        events = SimpleNamespace(register=lambda *_, **__: None)  # Powertools registers its user agent
        self.meta = SimpleNamespace(events=events)

    def put_item(self, **write: Any) -> dict[str, Any]:
        """PutItem."""
        return self._send("PutItem", lambda: self._tables.write([("Put", write)], alone=True))

    def get_item(self, **read: Any) -> dict[str, Any]:
        """GetItem: the key, if the item exists."""
        there = self._read("GetItem", read["TableName"], [read["Key"]], read.get("ConsistentRead", False))
        return {"ConsumedCapacity": {}} | ({"Item": there[0]} if there else {})

    def batch_get_item(self, RequestItems: dict[str, Any]) -> dict[str, Any]:
        """BatchGetItem of one table: the keys of those items that exist."""
        ((table, wanted),) = RequestItems.items()
        there = self._read("BatchGetItem", table, wanted["Keys"], wanted.get("ConsistentRead", False))
        return {"Responses": {table: there}}

    def _read(self, operation: str, table: str, keys: list[Any], consistent: bool) -> list[Any]:
        named = {_key_of({"TableName": table, "Key": key}): key for key in keys}
        answer = self._send(operation, lambda: {"found": self._tables.read(list(named), consistent=consistent)})
        return [named[key] for key in answer["found"]]

    def transact_write_items(self, TransactItems: Sequence[Write], **token: str) -> dict[str, Any]:
        """TransactWriteItems. botocore retries no cancelled transaction. No answer is lost here: tokens do nothing."""
        try:
            self._tables.write([next(iter(entry.items())) for entry in TransactItems])
        except RefusedError as refused:
            reasons = [{"Code": code or "None"} for code in refused.args[0]]
            error = {"Error": {"Code": "TransactionCanceledException"}, "CancellationReasons": reasons}
            raise self.exceptions.TransactionCanceledException(error, "TransactWriteItems") from None
        return {}

    def _send(self, operation: str, send: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
        """Send a request as botocore's standard mode does: it retries after throttling, within 1 s and then 2 s."""
        attempts: int = CLIENT_CONFIG.retries["total_max_attempts"]  # type: ignore[attr-defined]
        for attempt in itertools.count(1):
            try:
                return send() or {}
            except RefusedError as refused:
                [code] = refused.args[0]
                if code != THROTTLED or attempt == attempts:
                    error = {"Error": {"Code": _ALONE[code], "Message": "simulated"}}
                    raise getattr(self.exceptions, _ALONE[code])(error, operation) from None
            self._tables.hub.sleep(self._tables.chance.random() * 2 ** (attempt - 1))
        raise AssertionError


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
