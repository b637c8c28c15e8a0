"""Strongly consistent reads of what stands in a table, page by page, for those who judge it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from ..errors import from_botocore
from .client import Item, Store, whole

PAGES_MAX = 10_000  # of 1 MB: ten gigabytes of one partition are no longer read but exported


def pages(store: Store, table: str, partition: str, low: str, high: str, **more: Any) -> Iterator[list[Item]]:
    """The items of one partition from sort key `low` to `high`, both included, in order, a page at a time.

    Raises what botocore's error maps to, StoreUnreachableError for a page that was cut.
    """
    start: dict[str, Any] = {}
    for _ in range(PAGES_MAX):
        try:
            page = store.client.query(
                TableName=table,
                KeyConditionExpression="PK = :pk AND SK BETWEEN :low AND :high",
                ExpressionAttributeValues={":pk": {"S": partition}, ":low": {"S": low}, ":high": {"S": high}},
                ConsistentRead=True,
                **more,
                **start,
            )
        except (ClientError, BotoCoreError) as error:
            raise from_botocore(error) from error
        yield list(whole(dict(page), "Items")["Items"])
        if "LastEvaluatedKey" not in page:
            return
        start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
