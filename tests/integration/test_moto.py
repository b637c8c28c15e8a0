"""A second opinion on single calls: the handlers on moto's DynamoDB. No claim about retries rests on it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
from moto import mock_aws
from tally.api.entry import Entry

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
    plays = Entry(importlib.import_module("functions.plays").handler.functions, moto_store)
    play = {"operation": "play", "video_id": "9f3a", "idempotency_key": KEY}
    assert [plays(play, Context())["replayed"] for _ in range(3)] == [False, True, True]
    assert plays({"operation": "get_plays", "video_id": "9f3a"}, Context())["body"]["play_count"] == 1


def test_a_post_is_liked_and_unliked(moto_store: Store) -> None:
    posts = Entry(importlib.import_module("functions.posts").handler.functions, moto_store)
    likes = Entry(importlib.import_module("functions.likes").handler.functions, moto_store)
    posts({"operation": "put_post", "post_id": "p", "body": "x", "caller": "alice"}, Context())
    like = {"operation": "like", "post_id": "p", "caller": "bob"}
    assert [likes(like, Context())["body"]["changed"] for _ in range(2)] == [True, False]
    assert posts({"operation": "get_post", "post_id": "p"}, Context())["body"]["likeTally"] == 1
    assert likes({**like, "operation": "unlike"}, Context())["body"]["changed"]
    assert posts({"operation": "get_post", "post_id": "p"}, Context())["body"]["likeTally"] == 0
