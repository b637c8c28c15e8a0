"""Posts: `META` with the like tally, and the text in an item of its own, so that a like never pays for it."""

from __future__ import annotations

import time
from typing import Any

from ..counter import Counter
from ..dynamo import queries
from ..dynamo.client import Call
from ..dynamo.keys import Item, key
from ..dynamo.transactions import Write, transact
from ..errors import ChangeRefusedError, EditConflictError, ForbiddenError, NotFoundError
from ..fields import user_name
from .tallies import total

TEXT_KEY = "META.BODY"  # sorts after every shard (`.` follows `#`): one Query reads META, its shards and the text
EDIT_ATTEMPTS_MAX = 5  # an attempt is lost only to another edit by the same author at the same moment


def read_post(call: Call, counter: Counter, post_id: str) -> dict[str, Any]:
    """The post with its likes summed, in one Query. Raises NotFoundError."""
    post = _read(call, counter, post_id)
    if post is None:
        raise NotFoundError(f"There is no post {post_id}.")
    return post


def write_post(call: Call, counter: Counter, post_id: str, text: str) -> tuple[dict[str, Any], bool]:
    """Create the post or, as its author, give it this text; the post and whether it was created.

    `revision` counts edits: writing the text that is already there is none, so a retry does not count. Raises
    ForbiddenError for anybody but the author, EditConflictError if it keeps changing meanwhile.
    """
    for _ in range(EDIT_ATTEMPTS_MAX):
        post = _read(call, counter, post_id)
        try:
            if post is None:
                return _create(call, counter, post_id, text), True
            if post["authorId"] != user_name(call.caller or ""):
                raise ForbiddenError(f"Only its author edits post {post_id}.")
            if post["body"] == text:
                return post, False
            return _edit(call, counter, post, text), False
        except ChangeRefusedError:
            continue  # another edit came first: look again
    raise EditConflictError(f"Post {post_id} is being edited elsewhere. Read it and try again.")


def _read(call: Call, counter: Counter, post_id: str) -> dict[str, Any] | None:
    partition, table = counter.partition_start + post_id, call.store.settings.counts_table
    by_key = {item["SK"]["S"]: item for item in queries.items(call.store, table, partition, counter.sort_key, TEXT_KEY)}
    meta = by_key.get(counter.sort_key)
    if meta is None:
        return None
    return {
        "post_id": post_id,
        "authorId": meta["authorId"]["S"],
        "createdAt": int(meta["createdAt"]["N"]),
        "revision": int(meta["revision"]["N"]),
        "likeTally": total(counter, (item for part, item in by_key.items() if part != TEXT_KEY)),
        "body": by_key[TEXT_KEY]["body"]["S"],
    }


def _create(call: Call, counter: Counter, post_id: str, text: str) -> dict[str, Any]:
    """The post, on condition that there is none."""
    author, created_s = user_name(call.caller or ""), int(time.time())
    meta: Write = {
        "Put": {
            "TableName": call.store.settings.counts_table,
            "Item": {
                **_meta_key(counter, post_id),
                "authorId": {"S": author},
                "createdAt": {"N": str(created_s)},
                "revision": {"N": "0"},
                counter.attribute: {"N": "0"},
            },
            "ConditionExpression": "attribute_not_exists(PK)",
        }
    }
    transact(call, counter, post_id, lambda _: [meta, _put_text(call, counter, post_id, text)])
    return {
        "post_id": post_id,
        "authorId": author,
        "createdAt": created_s,
        "revision": 0,
        "likeTally": 0,
        "body": text,
    }


def _edit(call: Call, counter: Counter, post: dict[str, Any], text: str) -> dict[str, Any]:
    """The text, and one more revision, on condition that nobody else edited the post since it was read."""
    post_id = post["post_id"]
    meta: Write = {
        "Update": {
            "TableName": call.store.settings.counts_table,
            "Key": _meta_key(counter, post_id),
            "UpdateExpression": "SET revision = :next",
            "ConditionExpression": "revision = :seen",
            "ExpressionAttributeValues": {
                ":seen": {"N": str(post["revision"])},
                ":next": {"N": str(post["revision"] + 1)},
            },
        }
    }
    transact(call, counter, post_id, lambda _: [meta, _put_text(call, counter, post_id, text)])
    return {**post, "revision": post["revision"] + 1, "body": text}


def _put_text(call: Call, counter: Counter, post_id: str, text: str) -> Write:
    item: Item = {**key(counter.partition_start + post_id, TEXT_KEY), "body": {"S": text}}
    return {"Put": {"TableName": call.store.settings.counts_table, "Item": item}}


def _meta_key(counter: Counter, post_id: str) -> Item:
    return key(counter.partition_start + post_id, counter.sort_key)
