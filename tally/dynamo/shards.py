"""Lists the shards of the tables' streams, and reads the records after a sequence number.

Lambda reads the streams for the consumers. The sweep lists the shards that a consumer must pass, and reads the records
of a quiet shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from ..errors import StoreRefusedError, from_botocore

ShardTree = dict[str, str | None]  # the parent of each stream shard by id; None: no parent is listed
PAGES_MAX = 100  # pages of 100 shards: with 10,000 open shards, a table takes 10 million writes a second
CONFIG = Config(
    connect_timeout=1,
    read_timeout=5,  # seconds; a shard listing takes longer than an item
    retries={"total_max_attempts": 3, "mode": "standard"},
    parameter_validation=False,  # the embedded engine's sequence numbers are shorter than boto3 allows
    user_agent="tally",
)


class StreamShards:
    """The streams of some tables. `arns`: the ARN of each stream, by the name of its table."""

    def __init__(self, arns: dict[str, str], make_client: Callable[[], Any] = lambda: streams_client()) -> None:
        self._arns, self._client = arns, make_client()

    def list_shards(self, table: str) -> ShardTree:
        """Returns every shard that DynamoDB lists of a table's stream. Raises what botocore's error maps to.

        If there are more than PAGES_MAX pages, raises StoreRefusedError, because consumers must pass every shard."""
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
        """Returns whether a table's stream gets no more records, because somebody disabled it or deleted the table."""
        described = self._ask("describe_stream", StreamArn=self._arns[table], Limit=1)["StreamDescription"]
        return described.get("StreamStatus") in ("DISABLING", "DISABLED")

    def records_after(self, table: str, shard: str, sequence: str | None) -> Iterator[list[Any]]:
        """Yields the records after a sequence number (None: all), in one list, perhaps empty, for each GetRecords."""
        of_shard = {"StreamArn": self._arns[table], "ShardId": shard}
        after = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": sequence or ""}
        oldest = {"ShardIteratorType": "TRIM_HORIZON"}
        try:
            iterator = self._ask("get_shard_iterator", **of_shard, **(after if sequence else oldest))["ShardIterator"]
        except StoreRefusedError:  # the record has expired; if there is another cause, the next call raises it again
            iterator = self._ask("get_shard_iterator", **of_shard, **oldest)["ShardIterator"]
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
    """Makes the client of DynamoDB Streams. Make it once in a process: this takes milliseconds."""
    return boto3.client("dynamodbstreams", config=CONFIG, **overrides)
