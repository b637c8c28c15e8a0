"""Finds and removes a user's posts, children and holds. Each removal is a change that moves its tally.

A child, such as a like, is a user's if its counter counts users (`MEMBER#USER#`) and its key ends with the user's name.
A hold names its caller. No partition key begins with a user, so a scan of the counts table finds children and posts.
An index of likes by user would cost a write with every like, $0.63 a million. A scan of a million likes costs 40,000
read units, or half a cent. So an index would be cheaper only with more than 125 runs over the life of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple

from ..builtin import LIKES
from ..counter import Counter
from ..counting import children, periods, posts, tallies
from ..counting.hold_items import BUCKETS, RELEASED
from ..counting.settling import settle
from ..counting.tallies import TOMBSTONE
from ..dynamo import queries
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..errors import ConfigurationError, HoldSettledError, NotFoundError, ParentRemovedError
from ..fields import decoded_user


class TraceKind(Enum):
    """The kinds of things that a user leaves."""

    POST = "post"
    CHILD = "child"
    HOLD = "hold"

    @property
    def plural(self) -> str:
        """`posts`, `children`, `holds`: the names of the numbers in the history."""
        return "children" if self is TraceKind.CHILD else f"{self.value}s"


class Trace(NamedTuple):
    """One thing that a user left. `id`: the id of the post, of the child's parent, or of the hold. `item`: a hold as it
    was read; empty for a post or a child. `counter`: None for a hold, whose item names its counter."""

    kind: TraceKind
    id: str
    item: Item
    counter: Counter | None = None


def find_traces(store: Store, counters: Mapping[str, Counter], user: str) -> Iterator[list[Trace]]:
    """Yields a user's traces, a list for each page that is read. `user`: percent-encoded. `counters`: all declared.

    Raises the TallyError of a read that fails.
    """
    for bucket in range(BUCKETS):
        caller_filter: dict[str, Any] = {
            "FilterExpression": "#caller = :caller",
            "ExpressionAttributeNames": {"#caller": "caller"},
            "ExpressionAttributeValues": {":caller": {"S": user}},
        }
        table = store.settings.ledger_table
        for page in queries.partition_pages(store, table, f"HOLDS#{bucket}", **caller_filter):
            yield [Trace(TraceKind.HOLD, hold["hold_id"]["S"], hold) for hold in page]
    of_users = [counter for counter in counters.values() if counter.counts_users]
    sort_keys = {f":child{number}": counter.child_range[0] + user for number, counter in enumerate(of_users)}
    is_post = "begins_with(PK, :posts) AND authorId = :author"
    is_trace = f"(SK IN ({', '.join(sort_keys)}) OR ({is_post}))" if sort_keys else is_post  # `IN ()` is an error
    user_filter: dict[str, Any] = {
        "FilterExpression": f"attribute_not_exists({TOMBSTONE}) AND {is_trace}",
        "ExpressionAttributeValues": {
            ":posts": {"S": LIKES.partition_start},
            ":author": {"S": decoded_user(user)},
            **{name: {"S": sort_key} for name, sort_key in sort_keys.items()},
        },
    }
    for page in queries.scan_pages(store, store.settings.counts_table, **user_filter):
        yield [trace for item in page if (trace := _trace(of_users, item, user))]


def _trace(of_users: Sequence[Counter], item: Item, user: str) -> Trace | None:
    """Returns the trace in an item of the counts table; None for a child of a counter that is not declared."""
    prefix, _, id_ = item["PK"]["S"].partition("#")
    for counter in of_users:
        if counter.prefix == prefix and item["SK"]["S"] == counter.child_range[0] + user:
            return Trace(TraceKind.CHILD, id_, {}, counter)
    return Trace(TraceKind.POST, id_, {}, LIKES) if prefix == LIKES.prefix and "authorId" in item else None


def forget_trace(call: Call, counters: Mapping[str, Counter], trace: Trace) -> None:
    """Removes one trace as its user would, unless another call has removed the trace. `call.caller` is the user.

    Raises ConfigurationError if a hold's counter is not declared, NotFoundError if somebody removed a child's parent
    manually, and what the changes raise, such as LimitReachedError for a hold that does not fit into the tally.
    """
    if trace.counter is None:
        name, id_ = trace.item["counter"]["S"], periods.answer_members(trace.item["target"]["S"])["id"]
        if name not in counters:
            raise ConfigurationError(f"The counter {name} is not declared.")
        with suppress(HoldSettledError):  # a settled hold does not name its caller
            settle(call, counters[name], id_, trace.item["hold_id"]["S"], RELEASED)
    elif trace.kind is TraceKind.POST:
        with suppress(NotFoundError):  # another run has deleted the post
            posts.delete_post(call, trace.counter, trace.id)
    else:
        try:
            children.remove(call, trace.counter, trace.id, call.caller or "")
        except (NotFoundError, ParentRemovedError):
            first = tallies.key(trace.counter, trace.id, shard=0)
            if TOMBSTONE not in queries.get(call.store.client, call.store.settings.counts_table, first):
                raise  # otherwise the parent is removed, and the sweep removes its children
