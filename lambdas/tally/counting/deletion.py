"""Deleted posts: gone for readers at once. The sweep removes their likes, and moves the tally with each.

A deleted post stays as a mark (`gone`) on `META` and on every shard of its tally: what is marked takes no like. A row
in the ledger names it to the sweep. Each sweep goes on where the last one stopped, by what it finds:

    1. It marks the shards that are not marked, in case the deletion died before.
    2. It takes the likes back, each as an unlike does, up to one on every shard in one transaction.
    3. When nothing is left, it waits for GONE_KEPT_S and looks again: a late copy of a like that was written alone may
       have come. A look that finds something begins a new wait.
    4. It brings each shard to 0 in one transaction. Another one removes them all, `META` and the row.

Until then the id is taken: nothing that arrives late finds a new post under it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..counter import Counter
from ..dynamo import items, keys, queries
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item, key
from ..dynamo.transactions import Write, apply, transact
from ..errors import ChangeRefusedError, EditConflictError, ForbiddenError, NotFoundError, TallyError
from ..fields import user_name
from ..observe import logger
from . import tallies
from .children import GONE, GONE_KEPT_S, taken_back
from .posts import EDIT_ATTEMPTS_MAX, TEXT_KEY
from .receipts import Body

ROWS_MAX = 25  # posts that take turns in a sweep; the next ones follow when these are done
PAGE_MAX = 96  # likes that are read at once: six transactions
_ZERO = "#number = :zero OR attribute_not_exists(#number)"
STEP_S_MAX = 1.0  # for one transaction: the other posts wait
MARKS_S_MAX = GONE_KEPT_S / 2  # after it, a retry of the deletion marks nothing: the sweep may be about to end


def delete(call: Call, counter: Counter, post_id: str) -> Body:
    """Delete the caller's post: `{"post_id","deleted","changed"}`. Readers find it no more, and nobody likes it.

    6 WCU with a text of less than 1 KB, and 1 for each of the other shards that a tally may have. A second deletion
    changes nothing. Raises NotFoundError, ForbiddenError for anybody but the author, EditConflictError if the post
    keeps changing meanwhile, and the errors of transactions.transact.
    """
    deleted_s, changed = _delete(call, counter, post_id)
    if time.time() - deleted_s < MARKS_S_MAX:
        _mark(call, counter, post_id, range(1, counter.max_shards))
    return {"post_id": post_id, "deleted": True, "changed": changed}


def _delete(call: Call, counter: Counter, post_id: str) -> tuple[int, bool]:
    """When the post was deleted, in epoch seconds, and whether this call did it."""
    table, meta_key = call.store.settings.counts_table, tallies.key(counter, post_id, 0)
    for _ in range(EDIT_ATTEMPTS_MAX):
        meta = queries.get(call.store.client, table, meta_key)
        own = meta.get("authorId") == {"S": user_name(call.caller or "")}
        if not meta or (GONE in meta and not own):
            raise NotFoundError(f"There is no post {post_id}.")
        if not own:
            raise ForbiddenError(f"Only its author deletes post {post_id}.")
        if GONE in meta:
            return int(meta[GONE]["N"]), meta.get("deletion") == {"S": call.nonce}
        now_s = int(time.time())
        writes = _tombstone(call, counter, post_id, meta["authorId"], now_s)
        try:
            transact(call, counter, post_id, lambda _, writes=writes: writes)  # type: ignore[misc]
            return now_s, True
        except ChangeRefusedError:
            continue  # another deletion came first: look again
    raise EditConflictError(f"Post {post_id} keeps changing. Try again.")


def _tombstone(call: Call, counter: Counter, post_id: str, author: Item, now_s: int) -> list[Write]:
    """`META` marked, without the revision that an edit needs; the text removed; the row for the sweep."""
    table = {"TableName": call.store.settings.counts_table}
    meta: Write = {
        **table,
        "Key": tallies.key(counter, post_id, 0),
        "UpdateExpression": f"SET {GONE} = :now, deletion = :nonce REMOVE createdAt, revision",
        "ConditionExpression": f"authorId = :author AND attribute_not_exists({GONE})",
        "ExpressionAttributeValues": {":now": {"N": str(now_s)}, ":nonce": {"S": call.nonce}, ":author": author},
    }
    text = {**table, "Key": key(counter.partition_start + post_id, TEXT_KEY)}
    return [{"Update": meta}, {"Delete": text}, _row(call.store, post_id, now_s, calm=False)]


def _row(store: Store, post_id: str, due_s: int, *, calm: bool) -> Write:
    """The row of a deleted post. `calm`: the look before found nothing to do."""
    row_key = key(keys.DELETED_KEY, f"{due_s:012d}#{post_id}")
    return items.put(store.settings.ledger_table, row_key, {"post": post_id, "calm": {"BOOL": calm}})


def _mark(call: Call, counter: Counter, post_id: str, shards: Iterable[int]) -> None:
    """Mark shards of a deleted post, one at a time: all at once would meet every like. Makes those that are missing."""
    for shard in shards:
        mark = {
            "TableName": call.store.settings.counts_table,
            "Key": tallies.key(counter, post_id, shard),
            "UpdateExpression": f"SET {GONE} = if_not_exists({GONE}, :now)",
            "ExpressionAttributeValues": {":now": {"N": str(int(time.time()))}},
        }
        apply(call, [{"Update": mark}])


class Swept(NamedTuple):
    """How many likes and posts a sweep removed, how many posts it could not go on with, and whether it saw all."""

    likes: int
    posts: int
    failed: int
    finished: bool


def sweep(store: Store, counter: Counter, until_s: float) -> Swept:
    """Go on with the deleted posts, until `until_s` on the store's clock. The next sweep does the rest.

    Posts take turns, a transaction each. One that cannot be removed keeps no other one waiting: it is logged, and each
    sweep tries it.
    """
    run = _Sweep(store, counter, until_s)
    finished = False
    try:
        finished = run.go()
    except TallyError:
        logger.exception("deleted posts not read")
    return Swept(run.likes, run.posts, run.failed, finished)


@dataclass
class _Sweep:
    """One sweep, and what it did."""

    store: Store
    counter: Counter
    until_s: float
    likes: int = 0
    posts: int = 0
    failed: int = 0

    @property
    def over(self) -> bool:
        """Whether its time is over."""
        return self.store.clock() >= self.until_s

    def go(self) -> bool:
        """Go on with every post that is due; whether it came through all."""
        ledger, now_s = self.store.settings.ledger_table, int(time.time())
        due = queries.pages(
            self.store, ledger, keys.DELETED_KEY, queries.FIRST, f"{now_s + 1:012d}", Limit=ROWS_MAX
        )  # fmt: skip
        for page in due:
            turns = deque((row, self._removal(row)) for row in page)
            while turns:
                if self.over:
                    return False
                row, removal = turns.popleft()
                try:
                    next(removal)
                    turns.append((row, removal))
                except StopIteration:
                    pass
                except (TallyError, KeyError, TypeError, ValueError):  # an item that somebody put manually, too
                    logger.exception("deleted post not removed yet", extra={"row": row["SK"]})
                    self.failed += 1
        return True

    def _removal(self, row: Item) -> Iterator[None]:
        """Go on with one deleted post, a step at a time."""
        post_id, calm = row["post"]["S"], row["calm"]["BOOL"]
        shards = self._shards(post_id)
        if GONE not in shards.get(0, {}):
            logger.warning("not a deleted post", extra={"row": row["SK"]})
            apply(self._call, [self._without(row)])
            return
        unmarked = [shard for shard in range(self.counter.max_shards) if GONE not in shards.get(shard, {})]
        _mark(self._call, self.counter, post_id, unmarked)
        calm = calm and not unmarked
        yield
        for likes in self._likes(post_id):
            calm = False
            self._take_back(post_id, likes)
            yield
        if calm:
            self._end(row, post_id)
        else:
            self._wait(row, post_id)

    def _likes(self, post_id: str) -> Iterator[list[Item]]:
        """The likes that are there, as many at a time as the tally has shards."""
        table, partition = self.store.settings.counts_table, self.counter.partition_start + post_id
        many = self.counter.max_shards
        for page in queries.pages(self.store, table, partition, *self.counter.children, Limit=PAGE_MAX):
            there = [item for item in page if GONE not in item]
            yield from (there[first : first + many] for first in range(0, len(there), many))

    def _take_back(self, post_id: str, likes: Sequence[Item]) -> None:
        """Remove these likes, each with its part of the tally on a shard of its own."""
        call = self._call
        parts = (taken_back(call, self.counter, post_id, like, shard) for shard, like in enumerate(likes))
        apply(call, [write for writes in parts for write in writes])
        self.likes += len(likes)

    def _wait(self, row: Item, post_id: str) -> None:
        """Look again when every late copy has come."""
        later = _row(self.store, post_id, int(time.time()) + GONE_KEPT_S, calm=True)
        apply(self._call, [self._without(row), later])

    def _end(self, row: Item, post_id: str) -> None:
        """Remove what is left, if the tally is 0. Otherwise it drifts, or the rollup is behind: look again later."""
        shards = self._shards(post_id)
        numbers = {shard: tallies.stored(self.counter, item, 0) for shard, item in shards.items()}
        if sum(numbers.values()):
            logger.warning("deleted post keeps a tally", extra={"post": post_id, "tally": sum(numbers.values())})
            self.failed += 1
            self._wait(row, post_id)
            return
        if any(numbers.values()):
            apply(self._call, self._level(post_id, numbers))
        apply(self._call, [*(self._removed(post_id, shard) for shard in shards), self._without(row)])
        self.posts += 1

    def _level(self, post_id: str, numbers: dict[int, int]) -> list[Write]:
        """Bring every shard to 0: what one loses, others gain, booked on one minute."""
        call, counter = self._call, self.counter
        at, writes = tallies.minute_now(call), list[Write]()
        for shard, number in numbers.items():
            if number:
                move = tallies.add(call, counter, post_id, shard, -number, at)
                move["ExpressionAttributeValues"] |= {":seen": {"N": str(number)}}
                writes.append(
                    {"Update": {**move, "ConditionExpression": f"#number = :seen AND attribute_exists({GONE})"}}
                )
        return writes

    def _removed(self, post_id: str, shard: int) -> Write:
        return {
            "Delete": {
                "TableName": self.store.settings.counts_table,
                "Key": tallies.key(self.counter, post_id, shard),
                "ConditionExpression": f"attribute_exists({GONE}) AND ({_ZERO})",
                "ExpressionAttributeNames": {"#number": self.counter.attribute},
                "ExpressionAttributeValues": {":zero": {"N": "0"}},
            }
        }

    def _without(self, row: Item) -> Write:
        """The row taken away, once."""
        ledger = {"TableName": self.store.settings.ledger_table, "Key": {"PK": row["PK"], "SK": row["SK"]}}
        return {"Delete": {**ledger, "ConditionExpression": "attribute_exists(PK)"}}

    def _shards(self, post_id: str) -> dict[int, Item]:
        """The items of the tally; `META` is shard 0."""
        found = tallies.shards(self._call, self.counter, post_id)
        numbered = ((self.counter.shard_of(item["SK"]["S"]), item) for item in found)
        return {shard: item for shard, item in numbered if shard is not None}

    @property
    def _call(self) -> Call:
        """A call of its own for each step, which a step must not outlast."""
        return Call(self.store, deadline_s=min(self.until_s, self.store.clock() + STEP_S_MAX))
