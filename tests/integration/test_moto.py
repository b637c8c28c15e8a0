"""A second opinion on single calls: the handlers on moto's DynamoDB. No claim about retries rests on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from moto import mock_aws

import serve
from tally.dynamo.client import Store, dynamodb_client
from tally.settings import Settings
from tests.conftest import create_tables
from tests.contexts import Context
from tests.events import KEY


@pytest.fixture
def moto_store() -> Iterator[Store]:
    with mock_aws():
        client = dynamodb_client()
        settings = Settings.from_environment()
        create_tables(None, settings)
        yield Store(client, settings)


def test_a_play_counts_once_and_is_replayed(moto_store: Store) -> None:
    plays = serve.entry("increments_open", moto_store)
    play = {"operation": "increment", "counter": "plays", "id": "9f3a", "idempotency_key": KEY}
    assert [plays(play, Context())["replayed"] for _ in range(3)] == [False, True, True]
    read = {"operation": "get_counter", "counter": "plays", "id": "9f3a"}
    assert serve.entry("reads", moto_store)(read, Context())["body"]["value"] == 1


def test_a_post_is_liked_and_unliked(moto_store: Store) -> None:
    posts, likes = serve.entry("posts", moto_store), serve.entry("children_open", moto_store)
    posts({"operation": "put_post", "id": "p", "body": "x", "caller": "alice"}, Context())
    like = {"operation": "put_mine", "counter": "likes", "id": "p", "caller": "bob"}
    assert [likes(like, Context())["body"]["changed"] for _ in range(2)] == [True, False]
    assert posts({"operation": "get_post", "id": "p"}, Context())["body"]["likes"] == 1
    assert likes({**like, "operation": "delete_mine"}, Context())["body"]["changed"]
    assert posts({"operation": "get_post", "id": "p"}, Context())["body"]["likes"] == 0
