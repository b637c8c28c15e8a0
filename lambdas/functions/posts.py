"""Posts."""

import operations
from tally.api.entry import Answer, Entry
from tally.counting import posts
from tally.dynamo.client import Call
from tally.shipped import LIKES


def put_post(call: Call, *, post_id: str, body: str) -> Answer:
    """Create the post, or edit it as its author."""
    post, created = posts.write_post(call, LIKES, post_id, body)
    return Answer(post, status=201 if created else 200)


def get_post(call: Call, *, post_id: str) -> Answer:
    """The post with its likes."""
    return Answer(posts.read_post(call, LIKES, post_id), max_age_s=LIKES.kept_s)


def delete_post(call: Call, *, post_id: str) -> Answer:
    """Delete the post as its author. Its likes go in the background."""
    return Answer(posts.delete_post(call, LIKES, post_id))


handler = Entry({
    operations.PUT_POST: put_post,
    operations.GET_POST: get_post,
    operations.DELETE_POST: delete_post,
})  # fmt: skip
