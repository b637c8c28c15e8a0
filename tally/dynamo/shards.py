"""The shards of the tables' streams: which there are, and what they hold behind a record.

Lambda reads the streams for the consumers. The sweep asks here: only a shard that is known can be known to be passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from ..errors import StoreRefusedError, from_botocore

ShardTree = dict[str, str | None]  # the ids of stream shards, each with that of the shard that it follows (None: none)
PAGES_MAX = 100  # of 100 shards: a table with 10,000 open shards takes 10 million writes a second
CONFIG = Config(
    connect_timeout=1,
    read_timeout=5,  # seconds; a shard listing takes longer than an item
    retries={"total_max_attempts": 3, "mode": "standard"},
    parameter_validation=False,  # the embedded engine's sequence numbers are shorter than boto3 allows
    user_agent="tally",
)


class StreamShards:
    """The streams of counts and receipts. `arns`: by table."""

    def __init__(self, arns: dict[str, str], make: Callable[[], Any] = lambda: streams_client()) -> None:
        self._arns, self._client = arns, make()

    def list_shards(self, table: str) -> ShardTree:
        """Every shard of a table's stream that DynamoDB lists. Raises what botocore's error maps to, and
        StoreRefusedError if there are more than one may read: nothing could be concluded from some of them."""
        tree: ShardTree = {}
        start: dict[str, str] = {}
        for _ in range(PAGES_MAX):
            described = self._ask("describe_stream", StreamArn=self._arns[table], **start)["StreamDescription"]
            tree |= {shard["ShardId"]: shard.get("ParentShardId") for shard in described.get("Shards", [])}
            last = described.get("LastEvaluatedShardId")
            if not last:
                return tree
            start = {"ExclusiveStartShardId": last}
        raise StoreRefusedError(f"The stream of {table} lists more than {len(tree)} shards.")

    def is_disabled(self, table: str) -> bool:
        """Whether a table's stream takes no records any more: it was switched off, or the table is gone."""
        described = self._ask("describe_stream", StreamArn=self._arns[table], Limit=1)["StreamDescription"]
        return described.get("StreamStatus") in ("DISABLING", "DISABLED")

    def records_after(self, table: str, shard: str, sequence: str | None) -> Iterator[list[Any]]:
        """The records of a shard behind a sequence number (None: all), a call at a time, empty answers included."""
        where = {"StreamArn": self._arns[table], "ShardId": shard}
        after = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": sequence or ""}
        every = {"ShardIteratorType": "TRIM_HORIZON"}
        try:
            iterator = self._ask("get_shard_iterator", **where, **(after if sequence else every))["ShardIterator"]
        except StoreRefusedError:  # TrimmedDataAccessException, unless it is refused again
            iterator = self._ask("get_shard_iterator", **where, **every)["ShardIterator"]
        while iterator:
            answer = self._ask("get_records", ShardIterator=iterator)
            yield answer["Records"]
            iterator = answer.get("NextShardIterator")

    def _ask(self, name: str, **parameters: str | int) -> Any:
        try:
            return getattr(self._client, name)(**parameters)
        except (ClientError, BotoCoreError) as error:
            raise from_botocore(error) from error


def streams_client(**overrides: Any) -> Any:
    """The client of DynamoDB Streams. Make it once."""
    return boto3.client("dynamodbstreams", config=CONFIG, **overrides)
