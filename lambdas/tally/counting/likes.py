"""Likes: one item for each like, and the post's tally moved in the same transaction.

The like item is its own receipt: liking twice finds it. With an idempotency key a receipt joins the transaction, so
that a delayed retry of a like that was since undone does not like again. While the post is hot the like item is written
alone, and a stream consumer adds it to the tally.

A like and its unlike are booked on the minute of the like, by the tally as by the like item.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from .. import observe
from ..counter import Counter
from ..dynamo.client import Call, Item, get, key, minute_now, query, whole
from ..dynamo.transactions import ALONE, VISIBLE_NOW, VISIBLE_SOON, Body, Stamp, Write, put, transact
from ..errors import ChangeRefusedError, NotFoundError, StoreBusyError, TallyHotError, from_botocore
from ..fields import to_cursor, user_name
from ..streams.record import minute_of
from . import tallies
from .receipts import once

LIKE_KEY_PREFIX = "LIKE#USER#"
_AFTER_LIKES = "LIKE#USER$"  # `$` follows `#`: the end of the likes
TURNS_MAX = 8  # each is lost only to another change of the same like at the same moment


@dataclass(frozen=True)
class _Wish:
    """What a call wants of its like of a post. `stamp`: that of its receipt, if it brought a key."""

    call: Call
    counter: Counter
    post_id: str
    liked: bool
    stamp: Stamp | None

    @property
    def child(self) -> Item:
        """The table and key of the like item, as writes name them."""
        return {
            "TableName": self.call.store.settings.counts_table,
            "Key": _child_key(self.call, self.counter, self.post_id),
        }

    def answer(self, changed: bool, visible: Body = VISIBLE_NOW) -> Body:
        """The body that says what became of it."""
        return {"post_id": self.post_id, "liked": self.liked, "changed": changed, **visible}

    def receipt(self, body: Body) -> Write | None:
        """The receipt with this body, if there is to be one. It books nothing: the like item does."""
        return self.stamp.receipt(self.call, body) if self.stamp else None


def set_like(
    call: Call, counter: Counter, post_id: str, liked: bool, *, operation: str, key: str | None
) -> tuple[Body, bool]:
    """Like (`liked`) or unlike the post as `call.caller`: `{"post_id","liked","changed","visible"}`, and if replayed.

    4 WCU, 6 with a key; a like of a hot post 1, 4 with a key, after a read of the post; an unlike reads the like first:
    1 RCU each. Raises NotFoundError for
    a missing post, and commit.transact's errors.
    """
    if key is None:
        return _move(_Wish(call, counter, post_id, liked, None)), False
    return once(call, operation, post_id, key, {}, lambda stamp: _move(_Wish(call, counter, post_id, liked, stamp)))


def _move(wish: _Wish) -> Body:
    """Bring the like into the wanted state, whatever it is now, with the receipt if there is a stamp for one.

    Each turn first commits the change on condition that there is something to change. If there is not, a keyed call
    commits its receipt alone, on condition that it still is so.
    """
    made: int | None = None
    for _ in range(TURNS_MAX):
        try:
            return _like(wish, made) if wish.liked else _unlike(wish, made)
        except ChangeRefusedError as refused:
            child, shard = refused.old_items[0], refused.shard
        if child is None:
            made = _make_shard(wish, shard)  # not to one that is missing too, of which there may be fifteen
            continue
        made = None
        if child.get("nonce") == {"S": wish.call.nonce}:
            return wish.answer(True, VISIBLE_SOON if "rollup" in child else VISIBLE_NOW)  # ours; its answer was lost
        if child and not wish.liked:
            continue  # it was liked anew since it was read
        try:
            return _unchanged(wish)
        except ChangeRefusedError:
            continue  # it was changed between our two looks at it
    raise StoreBusyError("This like keeps changing. Send the request again.")


def _like(wish: _Wish, shard: int | None) -> Body:
    """Like and tally in one transaction; the like alone while the tally is hot. Raises ChangeRefusedError."""
    at, done = minute_now(), wish.answer(True)

    def writes(shard: int) -> list[Write]:
        return [_put_child(wish, at), _add(wish, shard, 1, at)]

    try:
        receipt = wish.receipt(done)
        transact(wish.call, wish.counter, wish.post_id, writes, receipt, first_shard=shard, spills=wish.counter.spills)
        return done
    except TallyHotError:
        return _like_alone(wish)


def _like_alone(wish: _Wish) -> Body:
    """The like item by itself, or with its receipt; the rollup adds it to the tally. Raises ChangeRefusedError.

    Nothing else would notice that there is no such post: its `META` is read first, and only that, for 1 RCU.
    """
    if not get(wish.call.store, wish.child["TableName"], tallies.key(wish.counter, wish.post_id, 0)):
        raise NotFoundError(f"There is no post {wish.post_id}.")
    child, done = _put_child(wish, minute_now(), **ALONE), wish.answer(True, VISIBLE_SOON)
    receipt = wish.receipt(done)
    if receipt is None:
        put(wish.call, child)
    else:
        transact(wish.call, wish.counter, wish.post_id, lambda _: [child], receipt)
    observe.count(wish.counter.name, observe.SPILLED)
    return done


def _unlike(wish: _Wish, shard: int | None) -> Body:
    """The like that stands there, and its part of the tally, taken back. Raises ChangeRefusedError."""
    seen = get(wish.call.store, wish.child["TableName"], wish.child["Key"])
    if not seen:
        raise ChangeRefusedError([seen], 0)
    at = minute_of(seen)
    at = minute_now() if at is None else at
    unmoved = "#at = :at" if "at" in seen else "attribute_exists(SK) AND attribute_not_exists(#at)"
    delete = {
        **wish.child,
        "ConditionExpression": unmoved,
        "ExpressionAttributeNames": {"#at": "at"},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    if "at" in seen:
        delete["ExpressionAttributeValues"] = {":at": seen["at"]}

    def writes(shard: int) -> list[Write]:
        return [{"Delete": delete}, _add(wish, shard, -1, at)]

    done = wish.answer(True)
    transact(wish.call, wish.counter, wish.post_id, writes, wish.receipt(done), first_shard=shard)
    return done


def _unchanged(wish: _Wish) -> Body:
    """The answer that nothing is to be changed, with its receipt. Raises ChangeRefusedError if that has changed."""
    if not wish.liked:
        read_like(wish.call, wish.counter, wish.post_id)  # a missing post is 404, a missing like is not
    undone = wish.answer(False)
    receipt = wish.receipt(undone)
    if receipt is not None:
        stands = "attribute_exists(SK)" if wish.liked else "attribute_not_exists(SK)"
        check: Write = {"ConditionCheck": {**wish.child, "ConditionExpression": stands}}
        transact(wish.call, wish.counter, wish.post_id, lambda _: [check], receipt)
    return undone


def _put_child(wish: _Wish, at: int, **mark: Item) -> Write:
    item = {
        **wish.child["Key"],
        "likedAt": {"N": str(int(time.time()))},
        "at": {"N": str(at)},
        "nonce": {"S": wish.call.nonce},
        **mark,
    }
    return {
        "Put": {
            "TableName": wish.child["TableName"],
            "Item": item,
            "ConditionExpression": "attribute_not_exists(SK)",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
    }


def _add(wish: _Wish, shard: int, amount: int, at: int) -> Write:
    move = tallies.add(wish.call, wish.counter, wish.post_id, shard, amount, at)
    return {"Update": {**move, "ConditionExpression": "attribute_exists(PK)"}}


def _make_shard(wish: _Wish, shard: int) -> int | None:
    """Make a tally shard of an existing post, once: the shard, or None if the tally has become hot over it.

    Raises NotFoundError if there is no such post.
    """
    call, counter, post_id = wish.call, wish.counter, wish.post_id
    missing = NotFoundError(f"There is no post {post_id}.")
    if shard == 0:
        raise missing
    table = call.store.settings.counts_table
    post = {
        "TableName": table,
        "Key": tallies.key(counter, post_id, 0),
        "ConditionExpression": "attribute_exists(PK)",
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
        # else another writer has just made it
    return shard


def _child_key(call: Call, counter: Counter, post_id: str) -> Item:
    return key(counter.partition_key(post_id), LIKE_KEY_PREFIX + (call.caller or ""))


def read_like(call: Call, counter: Counter, post_id: str) -> Body:
    """Whether `call.caller` likes the post. Raises NotFoundError for a missing post."""
    keys: Any = [tallies.key(counter, post_id, 0), _child_key(call, counter, post_id)]
    table = call.store.settings.counts_table
    retries = call.retries()
    found: set[str] = set()
    while keys:
        try:
            page = call.store.client.batch_get_item(
                RequestItems={table: {"Keys": keys, "ConsistentRead": True, "ProjectionExpression": "SK"}}
            )
        except (ClientError, BotoCoreError) as error:
            raise from_botocore(error) from error
        found.update(item["SK"]["S"] for item in whole(dict(page), "Responses")["Responses"].get(table, []))
        keys = page["UnprocessedKeys"][table]["Keys"] if page.get("UnprocessedKeys") else []
        if keys and not retries.wait():
            raise StoreBusyError("The store is answering more than it can. Send the request again.")
    if counter.sort_key not in found:
        raise NotFoundError(f"There is no post {post_id}.")
    return {"post_id": post_id, "liked": len(found) == 2, "changed": False}


def list_likes(call: Call, counter: Counter, post_id: str, limit: int, after: str | None) -> dict[str, Any]:
    """Who likes the post, in the order of their ids: `{"post_id","likes":[{"user_id","likedAt"}],"cursor"}`.

    `after`: the user, percent-encoded, behind whom to go on. `cursor` is null on the last page. Raises NotFoundError.
    """
    partition, last = counter.partition_key(post_id), None
    start = {"ExclusiveStartKey": key(partition, LIKE_KEY_PREFIX + after)} if after is not None else {}
    page = query(call, partition, LIKE_KEY_PREFIX, _AFTER_LIKES, Limit=limit, **start)
    if not page["Items"]:
        read_like(call, counter, post_id)  # a post that nobody likes, or no post?
    users = [item["SK"]["S"].removeprefix(LIKE_KEY_PREFIX) for item in page["Items"]]
    if "LastEvaluatedKey" in page and users:
        last = to_cursor(users[-1])
    likes = [
        {"user_id": user_name(user), "likedAt": int(item["likedAt"]["N"])}
        for user, item in zip(users, page["Items"], strict=True)
    ]
    return {"post_id": post_id, "likes": likes, "cursor": last}
