"""Posts: `META` with the like tally, and the text in an item of its own, so that a like never pays for it."""

from __future__ import annotations

import time
from typing import Any

from ..counter import Counter
from ..dynamo.client import Call, Item, key, query
from ..dynamo.transactions import transact
from ..errors import ChangeRefusedError, EditConflictError, ForbiddenError, NotFoundError
from ..fields import user_name
from ..records import Condition, Records, atomic_counter, attribute, partition_key, record, sort_key
from .tallies import total

TEXT_KEY = "META.BODY"  # sorts behind every shard (`.` follows `#`): one Query takes in META, its shards and the text
EDIT_ATTEMPTS_MAX = 5  # each is lost only to another edit of the same author at the same moment


@record
class Meta:
    """A post without its text. Every update of the record moves `revision`; `likeTally` is moved by likes.py."""

    partition: str = partition_key(name="PK")
    part: str = sort_key(name="SK")
    author: str | None = attribute(name="authorId", default=None)
    created_s: int | None = attribute(name="createdAt", default=None)
    likes: int | None = attribute(name="likeTally", default=None)
    revision: int | None = atomic_counter()


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
            continue  # somebody was faster: look again
    raise EditConflictError(f"Post {post_id} is being edited elsewhere. Read it and try again.")


def _read(call: Call, counter: Counter, post_id: str) -> dict[str, Any] | None:
    items: list[Item] = query(call, counter.partition_key(post_id), counter.sort_key, TEXT_KEY)["Items"]
    by_key = {item["SK"]["S"]: item for item in items}
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
    meta = Meta(
        partition=counter.partition_key(post_id),
        part=counter.sort_key,
        author=user_name(call.caller or ""),
        created_s=int(time.time()),
        likes=0,
    )
    write = _metas(call).put_write(meta)
    transact(call, counter, post_id, lambda _: [write, _text_write(call, counter, post_id, text)])
    return {
        "post_id": post_id,
        "authorId": meta.author,
        "createdAt": meta.created_s,
        "revision": 0,
        "likeTally": 0,
        "body": text,
    }


def _edit(call: Call, counter: Counter, post: dict[str, Any], text: str) -> dict[str, Any]:
    """The text, and one more revision, on condition that nobody else edited the post since it was read."""
    meta = Meta(partition=counter.partition_key(post["post_id"]), part=counter.sort_key)
    unmoved = Condition("revision = :seen", values={":seen": post["revision"]})
    write = _metas(call).update_write(meta, condition=unmoved, ignore_nulls=True)
    transact(call, counter, post["post_id"], lambda _: [write, _text_write(call, counter, post["post_id"], text)])
    return {**post, "revision": post["revision"] + 1, "body": text}


def _metas(call: Call) -> Records[Meta]:
    return Records(call.store.client, call.store.settings.counts_table, Meta)


def _text_write(call: Call, counter: Counter, post_id: str, text: str) -> dict[str, Any]:
    return {
        "Put": {
            "TableName": call.store.settings.counts_table,
            "Item": {**key(counter.partition_key(post_id), TEXT_KEY), "body": {"S": text}},
        }
    }
