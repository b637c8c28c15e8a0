"""Posts: `META` with the like tally, and the text in an item of its own, so that a like does not pay for the text.

A deleted post is a removed parent (deletion.py).
"""

from __future__ import annotations

from typing import Any

from ..counter import Counter
from ..dynamo import clock, items, queries
from ..dynamo.client import Call
from ..dynamo.keys import Item, key
from ..dynamo.transactions import Write, commit_change
from ..errors import ChangeRefusedError, EditConflictError, ForbiddenError, NotFoundError
from ..fields import decoded_user
from . import deletion
from .children import parent_removed_error
from .tallies import TOMBSTONE, sum_of_shards

TEXT_KEY = "META.BODY"  # `.` sorts after `#`, so one Query reads META, the shards `META#…` and the text
EDIT_ATTEMPTS_MAX = 5  # an attempt fails only if another call creates, edits or deletes the post at the same moment


def read_post(call: Call, counter: Counter, post_id: str) -> dict[str, Any]:
    """Returns the post with its likes summed, in one Query. Raises NotFoundError."""
    post = _read(call, counter, post_id)
    if post is None or TOMBSTONE in post:
        raise NotFoundError(f"There is no post {post_id}.")
    return post


def write_post(call: Call, counter: Counter, post_id: str, text: str) -> tuple[dict[str, Any], bool]:
    """Creates the post or, for its author, gives it this text. Returns the post, and whether it was created.

    `revision` counts edits. If the post has this text, nothing is edited, so a retry changes nothing. Raises
    ForbiddenError for anybody but the author, EditConflictError if the post keeps changing, ParentRemovedError for a
    deleted post while the sweep removes its likes.
    """
    for _ in range(EDIT_ATTEMPTS_MAX):
        post = _read(call, counter, post_id)
        try:
            if post is None:
                return _create(call, counter, post_id, text), True
            if TOMBSTONE in post:
                raise parent_removed_error(counter, post_id)
            if post["author"] != decoded_user(call.caller or ""):
                raise ForbiddenError(f"Only its author edits post {post_id}.")
            if post["body"] == text:
                return post, False
            return _edit(call, counter, post, text), False
        except ChangeRefusedError:
            continue  # another edit came first, so read the post again
    raise EditConflictError(f"Post {post_id} is being edited elsewhere. Read it and try again.")


def delete_post(call: Call, counter: Counter, post_id: str) -> bool:
    """Deletes the caller's post with its text. The sweep deletes the likes. Returns whether this call deleted the post:
    False for a second call. Raises NotFoundError, ForbiddenError for anybody but the author, and the errors of
    deletion.remove_parent."""
    author = {"authorId": {"S": decoded_user(call.caller or "")}}
    meta = queries.get(call.store.client, call.store.settings.counts_table, _meta_key(counter, post_id))
    is_author = meta.get("authorId") == author["authorId"]
    if not meta or (TOMBSTONE in meta and not is_author):
        raise NotFoundError(f"There is no post {post_id}.")
    if not is_author:
        raise ForbiddenError(f"Only its author deletes post {post_id}.")
    text_key = key(counter.partition_start + post_id, TEXT_KEY)
    text: Write = {"Delete": {"TableName": call.store.settings.counts_table, "Key": text_key}}
    return deletion.remove_parent(call, counter, post_id, expected=author, extra_writes=[text])


def _read(call: Call, counter: Counter, post_id: str) -> dict[str, Any] | None:
    """Returns the post; `{TOMBSTONE: True}` for a deleted post; None if there is no post.

    A Query is not a snapshot. While a call creates or deletes the post, a Query may find `META` and not the text, but a
    second Query does not. If somebody removed the text by hand, the post counts as missing.
    """
    partition, table = counter.partition_start + post_id, call.store.settings.counts_table
    for _ in range(2):
        found = queries.partition_items(call.store, table, partition, counter.sort_key, TEXT_KEY)
        by_key = {item["SK"]["S"]: item for item in found}
        meta = by_key.get(counter.sort_key)
        if meta is None:
            return None
        if TOMBSTONE in meta:
            return {TOMBSTONE: True}
        if TEXT_KEY in by_key:
            return {
                "id": post_id,
                "author": meta["authorId"]["S"],
                "created_at": int(meta["createdAt"]["N"]),
                "revision": int(meta["revision"]["N"]),
                "likes": sum_of_shards(counter, (item for part, item in by_key.items() if part != TEXT_KEY)),
                "body": by_key[TEXT_KEY]["body"]["S"],
            }
    return None


def _create(call: Call, counter: Counter, post_id: str, text: str) -> dict[str, Any]:
    """Commits the post, on condition that it does not exist."""
    author, created_s = decoded_user(call.caller or ""), int(clock.now_s())
    values: items.Values = {"authorId": author, "createdAt": created_s, "revision": 0, counter.attribute: 0}
    put = items.put_write(call.store.settings.counts_table, _meta_key(counter, post_id), values)["Put"]
    meta = {"Put": items.with_expected(put, items.EXPECT_NO_ITEM)}
    commit_change(call, counter, post_id, lambda _shard: [meta, _text_write(call, counter, post_id, text)])
    return {"id": post_id, "author": author, "created_at": created_s, "revision": 0, "likes": 0, "body": text}


def _edit(call: Call, counter: Counter, post: dict[str, Any], text: str) -> dict[str, Any]:
    """Commits the text and the next revision, on condition that the post still has the revision that was read."""
    post_id = post["id"]
    table, expected = call.store.settings.counts_table, {"revision": post["revision"], TOMBSTONE: None}
    meta = items.update_write(table, _meta_key(counter, post_id), {"revision": post["revision"] + 1}, expected=expected)
    commit_change(call, counter, post_id, lambda _shard: [meta, _text_write(call, counter, post_id, text)])
    return {**post, "revision": post["revision"] + 1, "body": text}


def _text_write(call: Call, counter: Counter, post_id: str, text: str) -> Write:
    text_key = key(counter.partition_start + post_id, TEXT_KEY)
    return items.put_write(call.store.settings.counts_table, text_key, {"body": text})


def _meta_key(counter: Counter, post_id: str) -> Item:
    return key(counter.partition_start + post_id, counter.sort_key)
