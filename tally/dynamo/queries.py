"""Reads one item, many items, one page or all pages, strongly consistent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from ..errors import StoreBusyError, StoreRefusedError, StoreUnreachableError, from_botocore
from .client import Call, Store
from .keys import Item, key

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

PAGES_MAX = 100_000  # a page has up to 1 MB. Read page by page, a table of 100 GB takes hours: export it
SORT_KEY_MIN, SORT_KEY_MAX = " ", "~"  # sort keys of the ledger are printable ASCII


class Page(list[Item]):
    """The items of one page, in order. `has_more`: whether items follow. `units`: the read units; 0: not asked for."""

    has_more: bool = False
    units: float = 0.0


def get(client: DynamoDBClient, table: str, item_key: Item) -> Item:
    """Returns one item; empty if it is missing. Raises what botocore's error maps to, StoreUnreachableError."""
    # An answer that was cut off has no `ConsumedCapacity`. If the item is missing, the answer has no other member.
    parameters: dict[str, Any] = {"TableName": table, "Key": item_key, "ReturnConsumedCapacity": "TOTAL"}
    return dict(_send_read(client.get_item, "ConsumedCapacity", **parameters).get("Item", {}))


def ping(store: Store) -> None:
    """Raises the error of `from_botocore` if the counts table does not answer. Reads an item that never exists."""
    get(store.client, store.settings.counts_table, key("HEALTH", "HEALTH"))


def get_many(call: Call, table: str, keys: Sequence[Item], **extra: Any) -> list[Item]:
    """Returns the items that exist of at most 100 keys, in any order. `extra`: further parameters of BatchGetItem for
    the table. Raises StoreBusyError, StoreUnreachableError."""
    present: list[Item] = []
    retries, unread = call.retries(), list(keys)
    while unread:
        requested = {table: {"Keys": unread, "ConsistentRead": True, **extra}}  # ConsistentRead is set for each table
        answer = _send_read(call.store.client.batch_get_item, "Responses", consistent=False, RequestItems=requested)
        present += answer["Responses"].get(table, [])
        unread = answer.get("UnprocessedKeys", {}).get(table, {}).get("Keys", [])
        if unread and not retries.sleep_before_retry():
            raise StoreBusyError("The store gets more requests than it takes.")
    return present


def get_each(call: Call, table: str, keys: Sequence[Item]) -> list[Item]:
    """Returns the items of these keys, in order, from the counts table or the ledger; a missing item is empty."""
    present = {(item["PK"]["S"], item["SK"]["S"]): item for item in get_many(call, table, keys)}
    return [present.get((item_key["PK"]["S"], item_key["SK"]["S"]), {}) for item_key in keys]


def query(
    store: Store,
    table: str,
    partition: str,
    low: str = SORT_KEY_MIN,
    high: str = SORT_KEY_MAX,
    *,
    after: str | None = None,
    **extra: Any,
) -> Page:
    """Returns one page of a partition, from sort key `low` to `high`, both included.

    `after`: only items after this sort key; None: all. `extra`: further parameters of DynamoDB's Query. Raises what
    botocore's error maps to, StoreUnreachableError.
    """
    start: dict[str, Any] = {} if after is None else {"ExclusiveStartKey": key(partition, after)}
    parameters = _range_parameters(table, partition, low, high, extra) | start
    return _page(_send_read(store.client.query, "Items", **parameters))


def partition_items(
    store: Store, table: str, partition: str, low: str = SORT_KEY_MIN, high: str = SORT_KEY_MAX, **extra: Any
) -> Iterator[Item]:
    """Yields every item of a partition, from sort key `low` to `high`. Sends one Query for each page of 1 MB."""
    return chain.from_iterable(partition_pages(store, table, partition, low, high, **extra))


def partition_pages(
    store: Store, table: str, partition: str, low: str = SORT_KEY_MIN, high: str = SORT_KEY_MAX, **extra: Any
) -> Iterator[Page]:
    """Yields the pages of a partition, from sort key `low` to `high`, with the parameters of `query`."""
    return _all_pages(store.client.query, _range_parameters(table, partition, low, high, extra))


def scan_pages(store: Store, table: str, **extra: Any) -> Iterator[Page]:
    """Yields the pages of a table. The items of a partition follow each other. `extra`: parameters of a Scan."""
    return _all_pages(store.client.scan, {"TableName": table, **extra})


def team_table_pages(
    store: Store, table: str, partition: tuple[str, Item] | None = None, after: Item | None = None, **extra: Any
) -> Iterator[Page]:
    """Yields the pages of a team table, each with the read units that it cost.

    `partition`: the name and the value of one partition key; None: the whole table. `after`: only items after this
    key. `extra`: further parameters of the Query or the Scan.
    """
    parameters: dict[str, Any] = {"TableName": table, "ReturnConsumedCapacity": "TOTAL", **extra}
    if after:
        parameters["ExclusiveStartKey"] = after
    if partition is None:
        return _all_pages(store.client.scan, parameters)
    name, value = partition
    parameters["ExpressionAttributeNames"] = {"#pk": name, **extra.get("ExpressionAttributeNames", {})}
    parameters |= {"KeyConditionExpression": "#pk = :pk", "ExpressionAttributeValues": {":pk": value}}
    return _all_pages(store.client.query, parameters)


def describe_table(store: Store, table: str) -> dict[str, Any]:
    """Returns DynamoDB's description of a table: its keys and stream, and about how many items and bytes it has."""
    answer = _send_read(store.client.describe_table, "Table", consistent=False, TableName=table)
    return dict(answer["Table"])


def _all_pages(send: Callable[..., Any], parameters: dict[str, Any]) -> Iterator[Page]:
    start: dict[str, Any] = {}
    for _ in range(PAGES_MAX):
        answer = _send_read(send, "Items", **(parameters | start))
        yield _page(answer)
        if "LastEvaluatedKey" not in answer:
            return
        start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}
    raise StoreRefusedError(f"There are more than {PAGES_MAX} pages of {parameters['TableName']}. Export the table.")


def _range_parameters(table: str, partition: str, low: str, high: str, extra: dict[str, Any]) -> dict[str, Any]:
    """Returns the parameters of a Query. `extra`: further parameters, which may have ExpressionAttributeValues."""
    values = {":pk": {"S": partition}, ":low": {"S": low}, ":high": {"S": high}}
    return {
        **extra,
        "TableName": table,
        "KeyConditionExpression": "PK = :pk AND SK BETWEEN :low AND :high",
        "ExpressionAttributeValues": values | extra.get("ExpressionAttributeValues", {}),
    }


def _page(answer: dict[str, Any]) -> Page:
    page = Page(answer["Items"])
    page.has_more = "LastEvaluatedKey" in answer
    page.units = answer.get("ConsumedCapacity", {}).get("CapacityUnits", 0.0)
    return page


def _send_read(send: Callable[..., Any], member: str, *, consistent: bool = True, **parameters: Any) -> dict[str, Any]:
    """Sends one read. Raises what botocore's error maps to, or StoreUnreachableError if `member` is missing."""
    if consistent:
        parameters["ConsistentRead"] = True
    try:
        answer = send(**parameters)
    except (ClientError, BotoCoreError) as error:
        raise from_botocore(error) from error
    return require_member(dict(answer), member)


def require_member(answer: dict[str, Any], member: str) -> dict[str, Any]:
    """Returns DynamoDB's answer. If it lacks `member`, raises StoreUnreachableError.

    If the connection cut an answer off, botocore returns an empty answer. Without this check, Tally would read a 0.
    """
    if member not in answer:
        raise StoreUnreachableError("The store's answer was cut off.")
    return answer
