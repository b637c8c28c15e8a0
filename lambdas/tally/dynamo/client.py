"""The way to DynamoDB: one client with its time-outs, and what one call carries with it."""

from __future__ import annotations

import gc
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from ..errors import StoreUnreachableError, from_botocore
from ..settings import Settings
from .contention import Breaker, Retries, Spread


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause garbage collection, and let no later one scan what exists by then: it stays.

    Scanning takes an eighth of a cold start, most of it right after the pause.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()


with _uncollected():
    import boto3
    from botocore.config import Config

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

CALL_TIME_DEFAULT_S = 8.0
"""Time for one call where no Lambda context says less."""

Item = dict[str, Any]
"""An item in DynamoDB's wire form: `{"PK": {"S": …}, …}`."""

CLIENT_CONFIG = Config(
    connect_timeout=1,  # seconds; DynamoDB answers in milliseconds, botocore's 60 s outlives any request
    read_timeout=2,
    retries={"total_max_attempts": 3, "mode": "standard"},
    max_pool_connections=50,
    parameter_validation=False,  # we built the inputs ourselves: 50 us a call
    user_agent="tally",  # fixed: botocore composes a new one for each call otherwise, 50 us
)


def dynamodb_client(**overrides: Any) -> DynamoDBClient:
    """The client that everything uses. Make it once: a client costs 3 ms and more."""
    with _uncollected():
        return boto3.client("dynamodb", config=CLIENT_CONFIG, **overrides)


@dataclass(frozen=True)
class Store:
    """What one process holds of the store: made at cold start, shared by its calls and its threads."""

    client: DynamoDBClient
    settings: Settings
    spread: Spread = field(default_factory=Spread)
    breaker: Breaker = field(default_factory=Breaker)
    layers: threading.local = field(default_factory=threading.local)
    """The Powertools persistence layers of this process, by operation; never shared by threads (receipts.py)."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    """Time as retries know it: a simulation has its own (bench/hot_key.py)."""


@dataclass(frozen=True)
class Call:
    """One call of one operation: who calls, until when there is time, and a nonce to know our own writes by."""

    store: Store
    caller: str | None = None
    """The user, percent-encoded (fields.user); None for anonymous callers."""
    deadline_s: float = field(default_factory=lambda: time.monotonic() + CALL_TIME_DEFAULT_S)
    """On the store's clock, which is time.monotonic()."""
    nonce: str = field(default_factory=lambda: secrets.token_urlsafe(9))

    def retries(self, **bounds: Any) -> Retries:
        """The retries of one change of this call, within its deadline. `bounds` are fields of Retries."""
        return Retries(self.deadline_s, sleep=self.store.sleep, clock=self.store.clock, **bounds)

    def get_remaining_time_in_millis(self) -> int:
        """As a Lambda context has it: Powertools asks for it by this name."""
        return max(0, int((self.deadline_s - self.store.clock()) * 1000))


def remaining_s(context: Any, unknown_s: float = CALL_TIME_DEFAULT_S) -> float:
    """The seconds that an invocation has left; `unknown_s` where no Lambda context says."""
    remaining_ms = getattr(context, "get_remaining_time_in_millis", None)
    return unknown_s if remaining_ms is None else float(remaining_ms()) / 1000


def minute_now() -> int:
    """The minute that a change is booked on: whole minutes since 1970."""
    return int(time.time() // 60)


def key(partition_key: str, sort_key: str) -> Item:
    """The key of an item of the counts table or the ledger, in DynamoDB's wire form."""
    return {"PK": {"S": partition_key}, "SK": {"S": sort_key}}


def get(store: Store, table: str, item_key: Item) -> Item:
    """One strongly consistent GetItem; empty if there is no such item.

    An answer that was cut lacks what it consumed: it must not pass for none.
    """
    try:
        found = store.client.get_item(
            TableName=table, Key=item_key, ConsistentRead=True, ReturnConsumedCapacity="TOTAL"
        )
    except (ClientError, BotoCoreError) as error:
        raise from_botocore(error) from error
    return dict(whole(dict(found), "ConsumedCapacity").get("Item", {}))


def query(call: Call, partition_key: str, low: str, high: str, **more: Any) -> dict[str, Any]:
    """One strongly consistent Query over the items from sort key `low` to `high`, both included."""
    try:
        page = call.store.client.query(
            TableName=call.store.settings.counts_table,
            KeyConditionExpression="PK = :pk AND SK BETWEEN :low AND :high",
            ExpressionAttributeValues={":pk": {"S": partition_key}, ":low": {"S": low}, ":high": {"S": high}},
            ConsistentRead=True,
            **more,
        )
    except (ClientError, BotoCoreError) as error:
        raise from_botocore(error) from error
    return whole(dict(page), "Items")


def whole(page: dict[str, Any], part: str) -> dict[str, Any]:
    """The page, if it has this part: botocore gives an answer that was cut as an empty one after its last attempt.

    Raises StoreUnreachableError: a number that was not read must not become 0.
    """
    if part not in page:
        raise StoreUnreachableError("The store's answer was cut. Send the request again.")
    return page
