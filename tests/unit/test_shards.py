"""Tests how Tally lists the shards of streams, reads the records after a checkpoint, and reads partitions by pages."""

from __future__ import annotations

from unittest.mock import Mock, call

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError

from tally.dynamo import queries
from tally.dynamo import shards as listing
from tally.dynamo.client import Store
from tally.dynamo.keys import key
from tally.dynamo.shards import StreamShards
from tally.errors import StoreBusyError, StoreRefusedError, StoreUnreachableError


def shards(client: Mock) -> StreamShards:
    return StreamShards({"counts": "arn:c", "receipts": "arn:r"}, lambda: client)


def client_error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code}}, "GetShardIterator")


def test_every_page_of_a_listing_is_read() -> None:
    pages = [
        {"Shards": [{"ShardId": "a"}, {"ShardId": "b", "ParentShardId": "a"}], "LastEvaluatedShardId": "b"},
        {"LastEvaluatedShardId": "b"},
        {"Shards": [{"ShardId": "c", "ParentShardId": "gone"}]},
    ]
    client = Mock()
    client.describe_stream.side_effect = [{"StreamDescription": page} for page in pages]
    assert shards(client).list_shards("receipts") == {"a": None, "b": "a", "c": "gone"}
    next_page = call(StreamArn="arn:r", ExclusiveStartShardId="b")
    assert client.describe_stream.mock_calls == [call(StreamArn="arn:r"), next_page, next_page]


def test_a_listing_with_too_many_pages_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that is not listed would not delay the watermark, which would then prove nothing."""
    monkeypatch.setattr(listing, "PAGES_MAX", 2)
    client = Mock()
    client.describe_stream.return_value = {
        "StreamDescription": {"Shards": [{"ShardId": "a"}], "LastEvaluatedShardId": "a"}
    }
    with pytest.raises(StoreRefusedError, match="The stream of receipts lists more"):
        shards(client).list_shards("receipts")


def test_a_partition_or_scan_with_too_many_pages_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "PAGES_MAX", 2)
    table = store.settings.ledger_table
    for number in range(3):
        store.client.put_item(TableName=table, Item=key("P", str(number)))
    assert [len(page) for page in queries.partition_pages(store, table, "P", Limit=2)] == [2, 1]
    for items in (queries.partition_items(store, table, "P", Limit=1), queries.scan_pages(store, table, Limit=1)):
        with pytest.raises(StoreRefusedError, match=f"more than 2 pages of {table}"):
            list(items)


def test_records_after_a_removed_record_begin_with_the_oldest_record_that_is_kept() -> None:
    """A checkpoint in a quiet shard may be older than a day, after which a stream drops its records."""
    client = Mock()
    client.get_shard_iterator.side_effect = [client_error("TrimmedDataAccessException"), {"ShardIterator": "i"}]
    client.get_records.side_effect = [{"Records": ["one"]}]
    assert list(shards(client).records_after("counts", "s", "7")) == [["one"]]
    requests = [request.kwargs for request in client.get_shard_iterator.mock_calls]
    kinds = [(request["ShardIteratorType"], request.get("SequenceNumber")) for request in requests]
    assert kinds == [("AFTER_SEQUENCE_NUMBER", "7"), ("TRIM_HORIZON", None)]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (client_error("ResourceNotFoundException"), StoreRefusedError),
        (client_error("ThrottlingException"), StoreBusyError),
        (ConnectTimeoutError(endpoint_url="x"), StoreUnreachableError),
    ],
)
def test_an_error_of_the_streams_is_raised_as_an_error_of_tally(error: Exception, raised: type[Exception]) -> None:
    client = Mock()
    client.describe_stream.side_effect = client.get_shard_iterator.side_effect = error
    with pytest.raises(raised):
        shards(client).list_shards("counts")
    with pytest.raises(raised):
        list(shards(client).records_after("counts", "s", "7"))
