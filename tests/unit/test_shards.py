"""The shards of streams: which there are, and what they hold behind a record."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError

from tally.dynamo.shards import Shards
from tally.errors import StoreBusyError, StoreRefusedError, StoreUnreachableError


class Client:
    """A client of streams whose answers are given, by operation, in order; an error is raised."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = answers
        self.asked: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        def ask(**parameters: Any) -> Any:
            self.asked.append(parameters)
            answer = self.answers[name].pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ask


def shards(client: Client) -> Shards:
    return Shards({"counts": "arn:c", "receipts": "arn:r"}, lambda: client)


def refused(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code}}, "GetShardIterator")


def test_every_page_of_a_listing_is_read() -> None:
    pages = [
        {"Shards": [{"ShardId": "a"}, {"ShardId": "b", "ParentShardId": "a"}], "LastEvaluatedShardId": "b"},
        {"LastEvaluatedShardId": "b"},
        {"Shards": [{"ShardId": "c", "ParentShardId": "gone"}]},
    ]
    client = Client(describe_stream=[{"StreamDescription": page} for page in pages])
    assert shards(client).listed("receipts") == {"a": None, "b": "a", "c": "gone"}
    assert client.asked == [{"StreamArn": "arn:r"}, *[{"StreamArn": "arn:r", "ExclusiveStartShardId": "b"}] * 2]


def test_records_behind_one_that_was_removed_begin_with_those_that_are_there() -> None:
    """A stream keeps its records for a day. A checkpoint in a quiet shard may be older."""
    found = [{"ShardIterator": "i"}]
    client = Client(
        get_shard_iterator=[refused("TrimmedDataAccessException"), *found], get_records=[{"Records": ["one"]}]
    )
    assert list(shards(client).records_after("counts", "s", "7")) == [["one"]]
    kinds = [(asked["ShardIteratorType"], asked.get("SequenceNumber")) for asked in client.asked[:2]]
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
    with pytest.raises(raised):
        shards(Client(describe_stream=[error])).listed("counts")
    with pytest.raises(raised):
        list(shards(Client(get_shard_iterator=[error] * 2)).records_after("counts", "s", "7"))
