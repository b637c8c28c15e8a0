"""Posts: texts, each with an author and likes."""

from typing import Annotated, Literal, TypedDict

from tally.api import needs
from tally.api.kinds import POST_TEXT, Id
from tally.api.operation import RATE_100_PER_S, READS, Access, Answer, Call, operation
from tally.api.shapes import Count, Seconds
from tally.builtin import LIKES
from tally.counting import posts
from tally.errors import EditConflictError, ForbiddenError, NotFoundError, ParentRemovedError


class Post(TypedDict):
    """A post. `likes`: how many users like the post. `revision`: how often its author has edited the post."""

    id: str
    author: str
    created_at: Seconds
    revision: Count
    likes: Count
    body: str


class RemovedPost(TypedDict):
    """The post is removed. `changed`: false if an earlier request had removed the post."""

    id: str
    removed: Literal[True]
    changed: bool


_EXAMPLE = {"id": "a91f", "author": "auth0|7c20", "created_at": 1785542401, "revision": 0, "likes": 2, "body": "Hello"}


@operation(
    "PUT /posts/{id}",
    access=Access.SIGNED_IN,
    throttle=RATE_100_PER_S,
    serves_only=[LIKES],
    needs=lambda counters: needs.on_counts(counters, "Query", "PutItem", "UpdateItem"),
    raises=[ForbiddenError, EditConflictError, ParentRemovedError],
    example=_EXAMPLE,
    success_statuses=[200, 201],
)
def put_post(call: Call, *, id: Id, body: Annotated[str, POST_TEXT]) -> Answer[Post]:
    """Create a post, or edit your own

    Who creates a post is its author, and only the author may edit the post. If the text is the same, nothing changes.
    """
    post, created = posts.write_post(call, LIKES, id, body)
    return Answer(post, status=201 if created else 200)


@operation(
    "GET /posts/{id}",
    access=Access.ANYONE,
    throttle=READS,
    serves_only=[LIKES],
    needs=lambda counters: needs.on_counts(counters, "Query"),
    raises=[NotFoundError],
    example=_EXAMPLE,
    is_cacheable=True,
)
def get_post(call: Call, *, id: Id) -> Answer[Post]:
    """A post with its likes"""
    return Answer(posts.read_post(call, LIKES, id), max_age_s=LIKES.cache_s)


@operation(
    "DELETE /posts/{id}",
    access=Access.SIGNED_IN,
    throttle=RATE_100_PER_S,
    serves_only=[LIKES],
    # `delete_post` marks the post and the shards of its tally, removes its text, and lists the post for the sweep.
    needs=lambda counters: (
        needs.on_counts(counters, "GetItem", "UpdateItem", "DeleteItem") | needs.on_ledger({"DELETED": ["PutItem"]})
    ),
    raises=[NotFoundError, ForbiddenError],
    example={"id": "a91f", "removed": True, "changed": True},
)
def delete_post(call: Call, *, id: Id) -> Answer[RemovedPost]:
    """Delete your own post

    Reads no longer find the post and its likes. The likes are removed in the background. The id can be used again 15
    minutes after the last like is removed, at the earliest.
    """
    return Answer({"id": id, "removed": True, "changed": posts.delete_post(call, LIKES, id)})
