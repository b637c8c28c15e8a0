"""The shards of streams: which there are, and what they hold behind a record."""

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


def refused(code: str) -> ClientError:
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
    behind = call(StreamArn="arn:r", ExclusiveStartShardId="b")
    assert client.describe_stream.mock_calls == [call(StreamArn="arn:r"), behind, behind]


def test_a_listing_that_is_cut_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that is not listed would hold up nothing: no watermark may come of the others."""
    monkeypatch.setattr(listing, "PAGES_MAX", 2)
    client = Mock()
    client.describe_stream.return_value = {
        "StreamDescription": {"Shards": [{"ShardId": "a"}], "LastEvaluatedShardId": "a"}
    }
    with pytest.raises(StoreRefusedError, match="The stream of receipts lists more"):
        shards(client).list_shards("receipts")


def test_a_table_that_is_read_in_part_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "PAGES_MAX", 2)
    table = store.settings.ledger_table
    for number in range(3):
        store.client.put_item(TableName=table, Item=key("P", str(number)))
    assert [len(page) for page in queries.partition_pages(store, table, "P", Limit=2)] == [2, 1]
    for found in (queries.partition_items(store, table, "P", Limit=1), queries.scan_pages(store, table, Limit=1)):
        with pytest.raises(StoreRefusedError, match=f"more than 2 pages of {table}"):
            list(found)


def test_records_behind_one_that_was_removed_begin_with_those_that_are_there() -> None:
    """A stream keeps its records for a day. A checkpoint in a quiet shard may be older."""
    client = Mock()
    client.get_shard_iterator.side_effect = [refused("TrimmedDataAccessException"), {"ShardIterator": "i"}]
    client.get_records.side_effect = [{"Records": ["one"]}]
    assert list(shards(client).records_after("counts", "s", "7")) == [["one"]]
    asked = [one.kwargs for one in client.get_shard_iterator.mock_calls]
    kinds = [(one["ShardIteratorType"], one.get("SequenceNumber")) for one in asked]
    assert kinds == [("AFTER_SEQUENCE_NUMBER", "7"), ("TRIM_HORIZON", None)]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (refused("ResourceNotFoundException"), StoreRefusedError),
        (refused("ThrottlingException"), StoreBusyError),
        (ConnectTimeoutError(endpoint_url="x"), StoreUnreachableError),
    ],
)
def test_errors_are_tallys_own(error: Exception, raised: type[Exception]) -> None:
    client = Mock()
    client.describe_stream.side_effect = client.get_shard_iterator.side_effect = error
    with pytest.raises(raised):
        shards(client).list_shards("counts")
    with pytest.raises(raised):
        list(shards(client).records_after("counts", "s", "7"))
