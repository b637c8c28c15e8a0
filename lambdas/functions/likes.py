"""Likes of a post, and the children of every other counter that has some."""

from typing import Any

import counters
import operations
from tally import fields
from tally.api.entry import Answer, Entry
from tally.counter import Counter
from tally.counting import children, tallies
from tally.counting.receipts import Keyed
from tally.dynamo.client import Call
from tally.errors import InvalidInputError
from tally.operation import Operation
from tally.shipped import LIKES


def like(call: Call, *, post_id: str, idempotency_key: str | None = None, value: bool = False) -> Answer:
    """Like the post as the caller."""
    return _set_like(call, operations.LIKE, post_id, True, idempotency_key, value)


def unlike(call: Call, *, post_id: str, idempotency_key: str | None = None, value: bool = False) -> Answer:
    """Remove the caller's like."""
    return _set_like(call, operations.UNLIKE, post_id, False, idempotency_key, value)


def _set_like(call: Call, operation: Operation, post_id: str, liked: bool, key: str | None, value: bool) -> Answer:
    body = {"post_id": post_id, "liked": liked}
    keyed = None if key is None else Keyed(operation.name, post_id, key, {}, LIKES.receipt_days)
    counted, replayed = children.set_child(call, LIKES, post_id, call.caller or "", liked, body, keyed)
    return Answer(tallies.with_value(call, LIKES, post_id, counted) if value else counted, replayed=replayed)


def get_like(call: Call, *, post_id: str) -> Answer:
    """Whether the caller likes the post."""
    liked = children.is_there(call, LIKES, post_id, call.caller or "")
    return Answer({"post_id": post_id, "liked": liked, "changed": False})


def list_likes(call: Call, *, post_id: str, limit: int = fields.PAGE_SIZE_DEFAULT, cursor: str | None = None) -> Answer:
    """Who likes the post, a page at a time."""
    found, following = children.listed(call, LIKES, post_id, limit, cursor)
    likes = [{"user_id": name, "likedAt": since} for name, since in found]
    return Answer({"post_id": post_id, "likes": likes, "cursor": following})


def my_likes(call: Call, *, post_ids: list[str]) -> Answer:
    """Which of the posts the caller likes, in the order asked."""
    liked = children.parents_of(call, LIKES, call.caller or "", post_ids)
    return Answer({"likes": [{"post_id": post_id, "liked": post_id in liked} for post_id in post_ids]})


def put_child(call: Call, **named: Any) -> Answer:
    """Put a child, which then counts."""
    return _set_child(call, operations.PUT_CHILD, there=True, **named)


def delete_child(call: Call, **named: Any) -> Answer:
    """Remove a child, which then counts no more."""
    return _set_child(call, operations.DELETE_CHILD, there=False, **named)


def _set_child(
    call: Call,
    operation: Operation,
    *,
    counter: Counter,
    id: str,
    child: str,
    there: bool,
    idempotency_key: str | None = None,
) -> Answer:
    body = {**_child_body(counter, id, child), "counted": there}
    keyed = None
    if idempotency_key is not None:
        target = operation.receipt_target(counter, id)
        keyed = Keyed(operation.name, target, idempotency_key, {"child": child}, counter.receipt_days)
    counted, replayed = children.set_child(call, counter, id, child, there, body, keyed)
    return Answer(counted, replayed=replayed)


def get_child(call: Call, *, counter: Counter, id: str, child: str) -> Answer:
    """Whether the child counts."""
    body = _child_body(counter, id, child)
    return Answer({**body, "counted": children.is_there(call, counter, id, child)})


def list_children(
    call: Call, *, counter: Counter, id: str, limit: int = fields.PAGE_SIZE_DEFAULT, cursor: str | None = None
) -> Answer:
    """The children of an id, a page at a time."""
    found, following = children.listed(call, _parent(counter), id, limit, cursor)
    listed = [{"child": name, "since": since} for name, since in found]
    return Answer({"counter": counter.name, "id": id, "children": listed, "cursor": following})


def _child_body(counter: Counter, id_: str, child: str) -> dict[str, Any]:
    return {"counter": _parent(counter).name, "id": id_, "child": fields.user_name(child)}


def _parent(counter: Counter) -> Counter:
    if not counter.counts_children:
        raise InvalidInputError(f"{counter.name} counts no children: it is declared without `child`.", field="counter")
    return counter


handler = Entry(
    {
        operations.LIKE: like,
        operations.UNLIKE: unlike,
        operations.GET_LIKE: get_like,
        operations.LIST_LIKES: list_likes,
        operations.MY_LIKES: my_likes,
        operations.PUT_CHILD: put_child,
        operations.DELETE_CHILD: delete_child,
        operations.GET_CHILD: get_child,
        operations.LIST_CHILDREN: list_children,
    },
    counters=counters.COUNTERS,
)
