"""Likes of a post."""

import operations
from tally import fields
from tally.api.entry import Answer, Entry
from tally.counting import likes, tallies
from tally.dynamo.client import Call
from tally.shipped import LIKES


def like(call: Call, *, post_id: str, idempotency_key: str | None = None, value: bool = False) -> Answer:
    """Like the post as the caller."""
    name = operations.LIKE.name
    body, replayed = likes.set_like(call, LIKES, post_id, True, operation=name, key=idempotency_key)
    return Answer(tallies.with_value(call, LIKES, post_id, body) if value else body, replayed=replayed)


def unlike(call: Call, *, post_id: str, idempotency_key: str | None = None, value: bool = False) -> Answer:
    """Remove the caller's like."""
    name = operations.UNLIKE.name
    body, replayed = likes.set_like(call, LIKES, post_id, False, operation=name, key=idempotency_key)
    return Answer(tallies.with_value(call, LIKES, post_id, body) if value else body, replayed=replayed)


def get_like(call: Call, *, post_id: str) -> Answer:
    """Whether the caller likes the post."""
    return Answer(likes.read_like(call, LIKES, post_id))


def list_likes(call: Call, *, post_id: str, limit: int = fields.PAGE_SIZE_DEFAULT, cursor: str | None = None) -> Answer:
    """Who likes the post, a page at a time."""
    return Answer(likes.list_likes(call, LIKES, post_id, limit, cursor))


def my_likes(call: Call, *, post_ids: list[str]) -> Answer:
    """Which of the posts the caller likes, in the order asked."""
    return Answer(likes.likes_of_caller(call, LIKES, post_ids))


handler = Entry({
    operations.LIKE: like,
    operations.UNLIKE: unlike,
    operations.GET_LIKE: get_like,
    operations.LIST_LIKES: list_likes,
    operations.MY_LIKES: my_likes,
})  # fmt: skip
