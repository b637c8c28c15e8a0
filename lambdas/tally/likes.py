"""Likes: one item for each like, and the post's tally moved in the same transaction.

The like item is its own receipt: liking twice finds it. With an idempotency key a receipt joins the transaction, so
that a delayed retry of a like that was since undone does not like again.
"""

from __future__ import annotations

import time
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from . import tallies
from .commit import Body, Stamp, Write, transact
from .counter import Counter
from .errors import ChangeRefusedError, NotFoundError, StoreBusyError, from_botocore
from .fields import to_cursor, user_name
from .receipts import once
from .store import Call, Item, minute_now, query, whole

LIKE_KEY_PREFIX = "LIKE#USER#"
_AFTER_LIKES = "LIKE#USER$"  # `$` follows `#`: the end of the likes
TURNS_MAX = 8  # each is lost only to another change of the same like at the same moment


def set_like(
    call: Call, counter: Counter, post_id: str, liked: bool, *, operation: str, key: str | None
) -> tuple[Body, bool]:
    """Like (`liked`) or unlike the post as `call.caller`: `{"post_id","liked","changed"}`, and whether it is a replay.

    4 WCU, 6 with a key. Raises NotFoundError for a missing post, and commit.transact's errors.
    """
    if key is None:
        return _move(call, counter, post_id, liked, None), False
    return once(call, operation, post_id, key, {}, lambda stamp: _move(call, counter, post_id, liked, stamp))


def _move(call: Call, counter: Counter, post_id: str, liked: bool, stamp: Stamp | None) -> Body:
    """Bring the like into the wanted state, whatever it is now, with the receipt if there is a stamp for one.

    Each turn first commits the change on condition that there is something to change. If there is not, a keyed call
    commits its receipt alone, on condition that it still is so.
    """
    done, undone = ({"post_id": post_id, "liked": liked, "changed": changed} for changed in (True, False))
    at = minute_now()

    def change(shard: int) -> list[Write]:
        return [_child(call, counter, post_id, liked, at), _tally(call, counter, post_id, shard, liked, at)]

    made: int | None = None
    for _ in range(TURNS_MAX):
        try:
            receipt = stamp.receipt(call, done) if stamp else None
            transact(call, counter, post_id, change, receipt, first_shard=made)
            return done
        except ChangeRefusedError as refused:
            child, shard = refused.old_items[0], refused.shard
        if child is None:
            _make_shard(call, counter, post_id, shard)
            made = shard  # not to one that is missing too, of which there may be fifteen
            continue
        made = None
        if child.get("nonce") == {"S": call.nonce}:
            return done  # it is our own like, whose answer was lost
        if not liked:
            read_like(call, counter, post_id)  # a missing post is 404, a missing like is not
        if stamp is None:
            return undone
        try:
            transact(
                call, counter, post_id, lambda _: [_check(call, counter, post_id, liked)], stamp.receipt(call, undone)
            )
            return undone
        except ChangeRefusedError:
            continue  # it was changed between our two looks at it
    raise StoreBusyError("This like keeps changing. Send the request again.")


def _child(call: Call, counter: Counter, post_id: str, liked: bool, at: int) -> Write:
    table, key = call.store.settings.counts_table, _key(counter, post_id, LIKE_KEY_PREFIX + (call.caller or ""))
    if liked:
        facts = {"likedAt": {"N": str(int(time.time()))}, "at": {"N": str(at)}, "nonce": {"S": call.nonce}}
        put = {"TableName": table, "Item": {**key, **facts}, "ConditionExpression": "attribute_not_exists(SK)"}
        return {"Put": {**put, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}}
    return {"Delete": {"TableName": table, "Key": key, "ConditionExpression": "attribute_exists(SK)"}}


def _tally(call: Call, counter: Counter, post_id: str, shard: int, liked: bool, at: int) -> Write:
    move = tallies.add(call, counter, post_id, shard, 1 if liked else -1, at)
    return {"Update": {**move, "ConditionExpression": "attribute_exists(PK)"}}


def _check(call: Call, counter: Counter, post_id: str, liked: bool) -> Write:
    return {
        "ConditionCheck": {
            "TableName": call.store.settings.counts_table,
            "Key": _key(counter, post_id, LIKE_KEY_PREFIX + (call.caller or "")),
            "ConditionExpression": "attribute_exists(SK)" if liked else "attribute_not_exists(SK)",
        }
    }


def _make_shard(call: Call, counter: Counter, post_id: str, shard: int) -> None:
    """Make a tally shard of an existing post, once. Raises NotFoundError if there is no such post."""
    missing = NotFoundError(f"There is no post {post_id}.")
    if shard == 0:
        raise missing
    table = call.store.settings.counts_table
    post = {
        "TableName": table,
        "Key": _key(counter, post_id, counter.shard_key(0)),
        "ConditionExpression": "attribute_exists(PK)",
    }
    empty = {
        "TableName": table,
        "Item": {**_key(counter, post_id, counter.shard_key(shard)), counter.attribute: {"N": "0"}},
        "ConditionExpression": "attribute_not_exists(PK)",
    }
    try:
        transact(call, counter, post_id, lambda _: [{"ConditionCheck": post}, {"Put": empty}])
    except ChangeRefusedError as refused:
        if refused.old_items[0] is not None:
            raise missing from None
        # else another writer has just made it


def _key(counter: Counter, post_id: str, sort_key: str) -> Item:
    return {"PK": {"S": counter.partition_key(post_id)}, "SK": {"S": sort_key}}


def read_like(call: Call, counter: Counter, post_id: str) -> Body:
    """Whether `call.caller` likes the post. Raises NotFoundError for a missing post."""
    keys: Any = [
        _key(counter, post_id, counter.sort_key),
        _key(counter, post_id, LIKE_KEY_PREFIX + (call.caller or "")),
    ]
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
    key, last = counter.partition_key(post_id), None
    start = {"ExclusiveStartKey": _key(counter, post_id, LIKE_KEY_PREFIX + after)} if after is not None else {}
    page = query(call, key, LIKE_KEY_PREFIX, _AFTER_LIKES, Limit=limit, **start)
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
