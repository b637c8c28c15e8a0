"""Likes: one item for each like, and the post's tally moved in the same transaction.

The like item is its own receipt: a second like finds it. With an idempotency key a receipt joins the transaction, so
that a delayed retry does not like again after an unlike. While the post is hot the like item is written alone, and a
stream consumer adds it to the tally.

A like carries its minute on the like item and on the tally. An unlike carries its own minute and a pair key on the
tally. The pair key names the like item that it removed, so both halves of an unlike are found together.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import observe
from ..counter import Counter
from ..dynamo import items, queries
from ..dynamo.client import Call
from ..dynamo.keys import Item, key, pair_of
from ..dynamo.transactions import Write, put, transact
from ..errors import ChangeRefusedError, NotFoundError, StoreBusyError, TallyHotError
from ..fields import to_cursor, user_name
from . import tallies
from .receipts import ALONE, VISIBLE_NOW, VISIBLE_SOON, Body, Counted, Keyed, Stamp, once
from .tallies import minute_now

GONE = "gone"
"""The attribute of what an unlike leaves of a like that was written alone: it is no like. The items of a deleted post
have it too: it is no post."""
THERE = f"attribute_exists(PK) AND attribute_not_exists({GONE})"
"""The condition that a post, or a shard of its tally, is there and not deleted."""
GONE_KEPT_S = 15 * 60  # a copy of a write that is delayed arrives within minutes, or never
TURNS_MAX = 8  # a turn is lost only to another change of the same like at the same moment


@dataclass(frozen=True)
class _Wish:
    """The like of a post as a call wants it. `stamp`: that of its receipt, if the call has a key."""

    call: Call
    counter: Counter
    post_id: str
    liked: bool
    stamp: Stamp | None
    over: Item | None = None
    """What an unlike has left of the user's last like, if the new one takes its place."""

    @property
    def child(self) -> Item:
        """The table and key of the like item, as writes name them."""
        return {
            "TableName": self.call.store.settings.counts_table,
            "Key": _child_key(self.call, self.counter, self.post_id),
        }

    def answer(self, changed: bool, visible: Body = VISIBLE_NOW) -> Body:
        """The body of the answer."""
        return {"post_id": self.post_id, "liked": self.liked, "changed": changed, **visible}

    def receipt(self, body: Body) -> Write | None:
        """The receipt with this body, if the call has a key. It books nothing: the like item does."""
        return self.stamp.receipt(self.call, body) if self.stamp else None

    def commit(self, write: Write, body: Body) -> Body:
        """Commit one write beside the tally, with the receipt if there is one."""
        transact(self.call, self.counter, self.post_id, lambda _: [write], self.receipt(body))
        return body


def set_like(call: Call, counter: Counter, post_id: str, liked: bool, *, operation: str, key: str | None) -> Counted:
    """Like (`liked`) or unlike the post as `call.caller`: `{"post_id","liked","changed","visible"}`.

    4 WCU, 6 with a key. A like of a hot post takes 1, or 4 with a key, after a read of the post. An unlike reads the
    like first. Each read is 1 RCU. Raises NotFoundError for a missing post, and the errors of transactions.transact.
    """
    if key is None:
        return Counted(_move(_Wish(call, counter, post_id, liked, None)), replayed=False)
    keyed = Keyed(operation, post_id, key, {}, counter.receipt_days)
    return once(call, keyed, lambda stamp: _move(_Wish(call, counter, post_id, liked, stamp)))


def _move(wish: _Wish) -> Body:
    """Bring the like into the wanted state, with the receipt if there is a stamp for one.

    Each turn first commits the change on condition that there is something to change. If there is not, a call with a
    key commits its receipt alone, on condition that there still is nothing to change.
    """
    made: int | None = None
    for _ in range(TURNS_MAX):
        try:
            return _like(wish, made) if wish.liked else _unlike(wish, made)
        except ChangeRefusedError as refused:
            child, shard = refused.old_items[0], refused.shard
            if any(GONE in (tally or {}) for tally in refused.old_items[1:]):
                raise _missing(wish.post_id) from None
        if child is None:
            made = _make_shard(wish, shard)  # the next turn uses it: up to fifteen others may be missing too
            continue
        made = None
        if GONE in child and wish.liked:
            wish = replace(wish, over=dict(child))
            continue
        if child.get("nonce") == {"S": wish.call.nonce}:  # the call's own like, whose answer was lost
            return wish.answer(True, VISIBLE_SOON if "rollup" in child else VISIBLE_NOW)
        if child and not wish.liked:
            continue  # another call liked it since it was read
        try:
            return _unchanged(wish)
        except ChangeRefusedError:
            continue  # another call changed it between the two looks
    raise StoreBusyError("This like keeps changing. Send the request again.")


def _like(wish: _Wish, shard: int | None) -> Body:
    """Like and tally in one transaction; the like alone while the tally is hot. Raises ChangeRefusedError."""
    at, done = minute_now(wish.call), wish.answer(True)

    def writes(shard: int) -> list[Write]:
        return [_put_child(wish, at), _add(wish, shard, 1, at)]

    try:
        receipt = wish.receipt(done)
        spills = wish.counter.spills and not wish.over  # the rollup reads new items only
        transact(wish.call, wish.counter, wish.post_id, writes, receipt, first_shard=shard, spills=spills)
        return done
    except TallyHotError:
        return _like_alone(wish)


def _like_alone(wish: _Wish) -> Body:
    """The like item by itself, or with its receipt; the rollup adds it to the tally. Raises ChangeRefusedError.

    Nothing in the write notices a missing post. So its `META` is read first, for 1 RCU.
    """
    _find_post(wish.call, wish.counter, wish.post_id)
    child, done = _put_child(wish, minute_now(wish.call), **ALONE), wish.answer(True, VISIBLE_SOON)
    if wish.stamp is None:
        put(wish.call, child)
    else:
        wish.commit(child, done)
    observe.count(observe.SPILLED)
    return done


def _unlike(wish: _Wish, shard: int | None) -> Body:
    """Take back the like that exists, and its part of the tally. Raises ChangeRefusedError."""
    seen = queries.get(wish.call.store.client, wish.child["TableName"], wish.child["Key"])
    if not seen or GONE in seen:
        raise ChangeRefusedError([{}], 0)
    removal = _removal(wish, seen)
    at, by = minute_now(wish.call), tallies.unliked(pair_of(seen))

    def writes(shard: int) -> list[Write]:
        return [removal, _add(wish, shard, -1, at, by=by)]

    done = wish.answer(True)
    transact(wish.call, wish.counter, wish.post_id, writes, wish.receipt(done), first_shard=shard)
    return done


def taken_back(call: Call, counter: Counter, post_id: str, like: Item, shard: int) -> list[Write]:
    """The writes of an unlike of a deleted post, on a shard that is there. `like`: the item, as it was read."""
    user = like["SK"]["S"].removeprefix(counter.children[0])
    wish = _Wish(replace(call, caller=user), counter, post_id, False, None)
    move = tallies.add(call, counter, post_id, shard, -1, minute_now(call), by=tallies.unliked(pair_of(like)))
    return [_removal(wish, like), {"Update": {**move, "ConditionExpression": f"attribute_exists({GONE})"}}]


def _removal(wish: _Wish, seen: Item) -> Write:
    """The write that takes the like away, on condition that it is as it was read.

    A like that was written alone is one PutItem: a copy of it that arrives late would like again. So the unlike leaves
    an item in its place, which TTL removes.
    """
    there = {"ConditionExpression": "attribute_exists(SK)", "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    unmoved = items.only_if(there, {name: seen.get(name) for name in ("at", "nonce")})
    write = {**unmoved, "TableName": wish.child["TableName"]}
    now_s = int(time.time())
    if not {"rollup", "likedAt"} <= seen.keys() or now_s - int(seen["likedAt"]["N"]) >= GONE_KEPT_S:
        return {"Delete": {**write, "Key": wish.child["Key"]}}
    left = {name: seen[name] for name in ("likedAt", "rollup")}  # the rollup may still have to add it
    left |= {GONE: {"N": str(now_s)}, "expiration": {"N": str(now_s + GONE_KEPT_S)}, "nonce": {"S": wish.call.nonce}}
    return {"Put": {**write, "Item": {**wish.child["Key"], **left}}}


def _unchanged(wish: _Wish) -> Body:
    """The answer that there is nothing to change, with its receipt. Raises ChangeRefusedError if there is by now."""
    if not wish.liked:
        read_like(wish.call, wish.counter, wish.post_id)  # a missing post is 404, a missing like is not
    undone = wish.answer(False)
    if wish.stamp is not None:
        there = f"attribute_exists(SK) AND attribute_not_exists({GONE})"
        as_seen = there if wish.liked else f"attribute_not_exists(SK) OR attribute_exists({GONE})"
        wish.commit({"ConditionCheck": {**wish.child, "ConditionExpression": as_seen}}, undone)
    return undone


def _put_child(wish: _Wish, at: int, **mark: Item) -> Write:
    item = {
        **wish.child["Key"],
        "likedAt": {"N": str(int(time.time()))},
        "at": {"N": str(at)},
        "nonce": {"S": wish.call.nonce},
        **mark,
    }
    write: Item = {"ConditionExpression": "attribute_not_exists(SK)"}
    if wish.over:
        write = {
            "ConditionExpression": f"attribute_exists({GONE}) AND nonce = :left",
            "ExpressionAttributeValues": {":left": wish.over["nonce"]},
        }
    where = {"TableName": wish.child["TableName"], "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    return {"Put": {**where, "Item": item, **write}}


def _add(wish: _Wish, shard: int, amount: int, at: int, *, by: str = "") -> Write:
    move = tallies.add(wish.call, wish.counter, wish.post_id, shard, amount, at, by=by)
    return {"Update": {**move, "ConditionExpression": THERE, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}}


def _make_shard(wish: _Wish, shard: int) -> int | None:
    """Make a tally shard of an existing post, once: the shard, or None if the tally has become hot over it.

    Raises NotFoundError if there is no such post.
    """
    call, counter, post_id = wish.call, wish.counter, wish.post_id
    missing = _missing(post_id)
    if shard == 0:
        raise missing
    table = call.store.settings.counts_table
    post = {
        "TableName": table,
        "Key": tallies.key(counter, post_id, 0),
        "ConditionExpression": THERE,
    }
    empty = {
        "TableName": table,
        "Item": {**tallies.key(counter, post_id, shard), counter.attribute: {"N": "0"}},
        "ConditionExpression": "attribute_not_exists(PK)",
    }
    making: list[Write] = [{"ConditionCheck": post}, {"Put": empty}]
    try:
        transact(call, counter, post_id, lambda _: making, spills=wish.liked and counter.spills)
    except TallyHotError:
        return None
    except ChangeRefusedError as refused:
        if refused.old_items[0] is not None:
            raise missing from None
        # otherwise another writer has just made it
    return shard


def _find_post(call: Call, counter: Counter, post_id: str) -> None:
    post = queries.get(call.store.client, call.store.settings.counts_table, tallies.key(counter, post_id, 0))
    if not post or GONE in post:
        raise _missing(post_id)


def _missing(post_id: str) -> NotFoundError:
    return NotFoundError(f"There is no post {post_id}.")


def _child_key(call: Call, counter: Counter, post_id: str) -> Item:
    return key(counter.partition_start + post_id, counter.children[0] + (call.caller or ""))


def read_like(call: Call, counter: Counter, post_id: str) -> Body:
    """Whether `call.caller` likes the post. Raises NotFoundError for a missing post."""
    keys = [tallies.key(counter, post_id, 0), _child_key(call, counter, post_id)]
    there = queries.get_many(call, call.store.settings.counts_table, keys, ProjectionExpression=f"SK, {GONE}")
    found = {item["SK"]["S"] for item in there if GONE not in item}
    if counter.sort_key not in found:
        raise _missing(post_id)
    return {"post_id": post_id, "liked": len(found) == 2, "changed": False}


def likes_of_caller(call: Call, counter: Counter, post_ids: Sequence[str]) -> dict[str, Any]:
    """Which of the posts, at most 100, `call.caller` likes: `{"likes":[{"post_id","liked"}]}` in the order asked.

    1 RCU for each post. It reads no post: one that is missing is not liked, and a deleted one is until the sweep has
    removed the like.
    """
    asked = {post_id: _child_key(call, counter, post_id) for post_id in post_ids}
    there = queries.get_many(
        call, call.store.settings.counts_table, list(asked.values()), ProjectionExpression=f"PK, {GONE}"
    )
    liked = {item["PK"]["S"].removeprefix(counter.partition_start) for item in there if GONE not in item}
    return {"likes": [{"post_id": post_id, "liked": post_id in liked} for post_id in post_ids]}


def list_likes(call: Call, counter: Counter, post_id: str, limit: int, after: str | None) -> dict[str, Any]:
    """The likers of the post, in the order of their ids: `{"post_id","likes":[{"user_id","likedAt"}],"cursor"}`.

    `after`: the user, percent-encoded, whose successors follow. `cursor` is null on the last page. Raises
    NotFoundError.
    """
    partition, (first, last) = counter.partition_start + post_id, counter.children
    after_key = None if after is None else first + after
    table = call.store.settings.counts_table
    _find_post(call, counter, post_id)  # a deleted one may have likes for a while, and shows none
    page = queries.query(call.store, table, partition, first, last, after=after_key, Limit=limit)
    users = [item["SK"]["S"].removeprefix(first) for item in page]
    likes = [
        {"user_id": user_name(user), "likedAt": int(item["likedAt"]["N"])}
        for user, item in zip(users, page, strict=True)
        if GONE not in item
    ]
    return {"post_id": post_id, "likes": likes, "cursor": to_cursor(users[-1]) if page.more and users else None}
