"""Strongly consistent reads: one item, some items, one page, or everything."""

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

PAGES_MAX = 100_000  # of 1 MB: 100 GB; a larger table is exported, not read page by page
SORT_KEY_MIN, SORT_KEY_MAX = " ", "~"  # every sort key of the ledger lies between them: printable ASCII


class Page(list[Item]):
    """The items of one page, in order. `has_more`: whether items follow. `units`: what the read cost, if it asked."""

    has_more: bool = False
    units: float = 0.0


def get(client: DynamoDBClient, table: str, item_key: Item) -> Item:
    """One item; empty if there is none. Raises what botocore's error maps to, StoreUnreachableError."""
    return dict(_get_answer(client, table, item_key).get("Item", {}))


def _get_answer(client: DynamoDBClient, table: str, item_key: Item) -> dict[str, Any]:
    # `ConsumedCapacity` proves that the answer is complete: an item that is missing has no part of its own.
    parameters: dict[str, Any] = {"TableName": table, "Key": item_key, "ReturnConsumedCapacity": "TOTAL"}
    return _send_read(client.get_item, "ConsumedCapacity", **parameters)


def ping(store: Store) -> None:
    """Raise what botocore's errors map to if the counts table does not answer. The item is never written."""
    get(store.client, store.settings.counts_table, key("HEALTH", "HEALTH"))


def get_many(call: Call, table: str, keys: Sequence[Item], **more: Any) -> list[Item]:
    """Those of the items that exist, at most 100, in any order. Raises StoreBusyError, StoreUnreachableError."""
    there: list[Item] = []
    retries, left = call.retries(), list(keys)
    while left:
        wanted = {table: {"Keys": left, "ConsistentRead": True, **more}}
        answer = _send_read(call.store.client.batch_get_item, "Responses", consistent=False, RequestItems=wanted)
        there += answer["Responses"].get(table, [])
        left = answer.get("UnprocessedKeys", {}).get(table, {}).get("Keys", [])
        if left and not retries.sleep_before_retry():
            raise StoreBusyError("The store gets more requests than it takes.")
    return there


def get_each(call: Call, table: str, keys: Sequence[Item]) -> list[Item]:
    """The items of the counts or the ledger that have these keys, in their order; each empty if there is none."""
    there = {(item["PK"]["S"], item["SK"]["S"]): item for item in get_many(call, table, keys)}
    return [there.get((one["PK"]["S"], one["SK"]["S"]), {}) for one in keys]


def query(
    store: Store,
    table: str,
    partition: str,
    low: str = SORT_KEY_MIN,
    high: str = SORT_KEY_MAX,
    *,
    after: str | None = None,
    **more: Any,
) -> Page:
    """One page of a partition, from sort key `low` to `high`, both included; those behind sort key `after` if given.

    `more`: parameters of DynamoDB's Query. Raises what botocore's error maps to, StoreUnreachableError.
    """
    start: dict[str, Any] = {} if after is None else {"ExclusiveStartKey": key(partition, after)}
    return _page(
        _send_read(store.client.query, "Items", **_range_parameters(table, partition, low, high, more), **start)
    )


def partition_items(
    store: Store, table: str, partition: str, low: str = SORT_KEY_MIN, high: str = SORT_KEY_MAX, **more: Any
) -> Iterator[Item]:
    """Every item of a partition, as `query` reads them: one Query while they fit into 1 MB."""
    return chain.from_iterable(partition_pages(store, table, partition, low, high, **more))


def partition_pages(
    store: Store, table: str, partition: str, low: str = SORT_KEY_MIN, high: str = SORT_KEY_MAX, **more: Any
) -> Iterator[Page]:
    """The items of a partition, as `query` reads them, a page at a time."""
    return _all_pages(store.client.query, _range_parameters(table, partition, low, high, more))


def scan_pages(store: Store, table: str, **more: Any) -> Iterator[Page]:
    """Every item of a table, a page at a time. An item collection comes whole: its items follow each other.

    `more`: parameters of DynamoDB's Scan.
    """
    return _all_pages(store.client.scan, {"TableName": table, **more})


def team_pages(
    store: Store, table: str, partition: tuple[str, Item] | None = None, after: Item | None = None, **more: Any
) -> Iterator[Page]:
    """The items of a team's table, a page at a time, each with its units.

    `partition`: name and value of the partition key of those that are read; None: all. `after`: the key of the item
    that they follow. `more`: parameters of the read.
    """
    asked: dict[str, Any] = {"TableName": table, "ReturnConsumedCapacity": "TOTAL", **more}
    if after:
        asked["ExclusiveStartKey"] = after
    if partition is None:
        return _all_pages(store.client.scan, asked)
    name, value = partition
    asked["ExpressionAttributeNames"] = {"#pk": name, **more.get("ExpressionAttributeNames", {})}
    asked |= {"KeyConditionExpression": "#pk = :pk", "ExpressionAttributeValues": {":pk": value}}
    return _all_pages(store.client.query, asked)


def describe_table(store: Store, table: str) -> dict[str, Any]:
    """What DynamoDB says of a table: its keys and stream, and about how many items and bytes it has."""
    answer = _send_read(store.client.describe_table, "Table", consistent=False, TableName=table)
    return dict(answer["Table"])


def _all_pages(ask: Callable[..., Any], parameters: dict[str, Any]) -> Iterator[Page]:
    start: dict[str, Any] = {}
    for _ in range(PAGES_MAX):
        answer = _send_read(ask, "Items", **(parameters | start))
        yield _page(answer)
        if "LastEvaluatedKey" not in answer:
            return
        start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}
    raise StoreRefusedError(f"There are more than {PAGES_MAX} pages of {parameters['TableName']}: export it.")


def _range_parameters(table: str, partition: str, low: str, high: str, more: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a Query. `more`: others of it, perhaps with values of their own."""
    values = {":pk": {"S": partition}, ":low": {"S": low}, ":high": {"S": high}}
    return {
        **more,
        "TableName": table,
        "KeyConditionExpression": "PK = :pk AND SK BETWEEN :low AND :high",
        "ExpressionAttributeValues": values | more.get("ExpressionAttributeValues", {}),
    }


def _page(answer: dict[str, Any]) -> Page:
    page = Page(answer["Items"])
    page.has_more = "LastEvaluatedKey" in answer
    page.units = answer.get("ConsumedCapacity", {}).get("CapacityUnits", 0.0)
    return page


def _send_read(ask: Callable[..., Any], part: str, *, consistent: bool = True, **parameters: Any) -> dict[str, Any]:
    """The answer of one read. Raises what botocore's error maps to."""
    if consistent:
        parameters["ConsistentRead"] = True
    try:
        answer = ask(**parameters)
    except (ClientError, BotoCoreError) as error:
        raise from_botocore(error) from error
    return require_part(dict(answer), part)


def require_part(answer: dict[str, Any], part: str) -> dict[str, Any]:
    """The answer, if it has this part: botocore returns an answer that was cut off as an empty one.

    Raises StoreUnreachableError: a number that was not read must not become 0.
    """
    if part not in answer:
        raise StoreUnreachableError("The store's answer was cut off.")
    return answer
