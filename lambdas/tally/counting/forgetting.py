"""What there is of a user, and its removal: posts, likes and holds, each by the change that moves its tally.

A scan of the counts table finds likes and posts, because no key begins with a user. An index of likes by user would
cost a write with every like; a scan costs reads, once (docs/privacy.md). A hold names its caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from ..counter import Counter
from ..dynamo import queries
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..errors import ConfigurationError, NotFoundError
from ..fields import user_name
from . import deletion, likes, tallies
from .holds import BUCKETS, EXPIRED, HELD, RELEASED, move
from .likes import GONE


class Kind(Enum):
    """What a user leaves."""

    POST = "post"
    LIKE = "like"
    HOLD = "hold"


class Trace(NamedTuple):
    """One thing that a user left. `id`: of the post, or of the hold; `item`: the hold as it was read."""

    kind: Kind
    id: str
    item: Item


def traces(store: Store, counter: Counter, user: str) -> Iterator[list[Trace]]:
    """What there is of a user, page by page of a scan. `user`: percent-encoded; `counter`: that of the likes.

    Raises what botocore's errors map to.
    """
    for bucket in range(BUCKETS):
        of_caller: dict[str, Any] = {
            "FilterExpression": "#caller = :caller AND #state = :held",
            "ExpressionAttributeNames": {"#caller": "caller", "#state": "state"},
            "ExpressionAttributeValues": {":caller": {"S": user}, ":held": {"S": HELD}},
        }
        table = store.settings.ledger_table
        for page in queries.pages(store, table, f"HOLDS#{bucket}", **of_caller):
            yield [Trace(Kind.HOLD, hold["hold_id"]["S"], hold) for hold in page]
    like = counter.children[0] + user
    of_user: dict[str, Any] = {
        "FilterExpression": f"begins_with(PK, :posts) AND (SK = :like OR authorId = :author)"
        f" AND attribute_not_exists({GONE})",
        "ExpressionAttributeValues": {
            ":posts": {"S": counter.partition_start},
            ":like": {"S": like},
            ":author": {"S": user_name(user)},
        },
    }
    for page in queries.scan(store, store.settings.counts_table, **of_user):
        yield [Trace(Kind.LIKE if item["SK"]["S"] == like else Kind.POST, _post_of(counter, item), {}) for item in page]


def _post_of(counter: Counter, item: Item) -> str:
    return str(item["PK"]["S"].removeprefix(counter.partition_start))


def forget(call: Call, counters: Mapping[str, Counter], counter: Counter, trace: Trace) -> None:
    """Remove one thing as its user would. It may be gone by now. `call.caller` is the user.

    Raises LimitReachedError for a hold whose counter has no room for what it gives back, ConfigurationError if the
    counter is declared no more, NotFoundError for a like whose post somebody removed manually, and what the changes
    raise.
    """
    match trace.kind:
        case Kind.POST:
            _delete(call, counter, trace.id)
        case Kind.LIKE:
            _unlike(call, counter, trace.id)
        case Kind.HOLD:
            _release(call, counters, trace.item)


def _delete(call: Call, counter: Counter, post_id: str) -> None:
    try:
        deletion.delete(call, counter, post_id)
    except NotFoundError:
        return  # another run was first


def _unlike(call: Call, counter: Counter, post_id: str) -> None:
    try:
        likes.set_like(call, counter, post_id, False, operation="unlike", key=None)
    except NotFoundError:
        post = tallies.key(counter, post_id, 0)
        if GONE not in queries.get(call.store.client, call.store.settings.counts_table, post):
            raise  # otherwise the post is deleted, and the sweep removes its likes


def _release(call: Call, counters: Mapping[str, Counter], hold: Item) -> None:
    """Give back what the hold has taken, whether it has expired or not."""
    name, id_ = hold["counter"]["S"], hold["target"]["S"]
    if name not in counters:
        raise ConfigurationError(f"The counter {name} is not declared.")
    for state in (RELEASED, EXPIRED):
        if move(call, counters[name], id_, hold, state):
            return
