"""Children: one item for each child, such as a like. One transaction writes the item and moves the parent's tally.

The child's item is its own receipt: a second put of the child finds the item. If the call has an idempotency key, the
transaction has a receipt, too. So a late retry does not put a child again that was removed after the first call. While
the tally is hot, a put spills: it leaves out the tally, and the rollup adds the child to the tally.

The bookkeeper expects a change because of the child's item, and observes the change on the tally's item. A put stores
the same minute in both items, and the bookkeeper books both halves on this minute. A removal, such as an unlike, leaves
no child that could store a minute. So the nonce of the tally's item has a pair name, a hash of the removed child. The
bookkeeper makes the same hash from the child's record, and so finds both halves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from .. import observe
from ..counter import Counter
from ..dynamo import clock, items, queries
from ..dynamo.client import Call
from ..dynamo.keys import Item, key, minute_of, removal_pair_of
from ..dynamo.transactions import Write, commit_change, put_alone
from ..errors import ChangeRefusedError, HotTallyError, NotFoundError, ParentRemovedError, StoreBusyError
from ..fields import decoded_user, encode_cursor
from . import anonymous, tallies
from .receipts import (
    PENDING_ROLLUP,
    VISIBLE_NOW,
    VISIBLE_SOON,
    Body,
    ChangeAnswer,
    ReceiptDraft,
    ReceiptKey,
    count_once,
    expiration_s,
    refuse_retired,
    retired_error,
)
from .tallies import TOMBSTONE, Tally, minute_now

CREATED_AT = "likedAt"
"""The attribute that says when a child was put, in epoch seconds. An anonymous child has only the start of the day."""
TOMBSTONE_KEPT_S = 15 * 60  # a late copy of a write arrives within minutes, or never
ATTEMPTS_MAX = 8  # an attempt fails only if another call changes the same child at the same moment


@dataclass(frozen=True)
class _ChildRequest:
    """A call that puts or removes a child. `parent`: the parent's id. `id`: the child's id, percent-encoded."""

    call: Call
    counter: Counter
    parent: str
    id: str
    puts: bool  # otherwise the call removes the child
    body: Body
    """The members of the answer, besides `changed` and `visible`."""
    draft: ReceiptDraft | None = None
    """The draft of the receipt, if the call has a key."""
    replaces: Item | None = None
    """The tombstone that the new child replaces; None: there is no tombstone."""

    @property
    def location(self) -> Item:
        """The table and the key of the child's item, as a write has them."""
        key = _child_key(self.counter, self.parent, self.id)
        return {"TableName": self.call.store.settings.counts_table, "Key": key}

    def answer(self, changed: bool, visible: Body = VISIBLE_NOW) -> Body:
        return {**self.body, "changed": changed, **visible}

    def receipt(self, body: Body) -> Write | None:
        """Returns the write of a receipt without an amount (the bookkeeper books the child); None without a key."""
        return self.draft.receipt(self.call, body) if self.draft else None

    def commit(self, write: Write, body: Body) -> Body:
        """Commits a write that does not move the tally, with the receipt if the call has a key. Returns `body`."""
        commit_change(self.call, self.counter, self.parent, lambda _: [write], self.receipt(body))
        return body


def set_child(
    call: Call,
    counter: Counter,
    parent: str,
    child: str,
    puts: bool,
    body: Body | None = None,
    receipt_key: ReceiptKey | None = None,
) -> ChangeAnswer:
    """Puts a child of the parent (`puts`), or removes the child. Returns `body` with `changed` and `visible`.

    `child`: the percent-encoded id of the child; if the caller is the child, `call.caller`. A change costs 4 WCU, with
    a key 6. A put that spills costs 1 WCU, with a key 4. A removal first reads the child, and a put that spills first
    reads the parent, each for 1 RCU. Raises NotFoundError for a missing parent, ParentRemovedError,
    CounterRetiredError, and the errors of transactions.commit_change.
    """
    request = _ChildRequest(call, counter, parent, child, puts, body or {})
    if receipt_key is None:
        if counter.retired:
            raise retired_error(counter)
        return ChangeAnswer(_apply_request(request), replayed=False)
    if counter.retired:
        return count_once(call, receipt_key, lambda draft: refuse_retired(call, counter, draft))
    return count_once(call, receipt_key, lambda draft: _apply_request(replace(request, draft=draft)))


def remove(call: Call, counter: Counter, parent: str, child: str) -> None:
    """Removes a forgotten user's child, even if the counter is retired. Raises the other errors of set_child."""
    _apply_request(_ChildRequest(call, counter, parent, child, puts=False, body={}))


def _apply_request(request: _ChildRequest) -> Body:
    """Puts or removes the child, with a receipt if the call has a key.

    Each attempt first tries to commit the change, on condition that there is something to change. If there is nothing
    to change, a call with a key commits its receipt alone, on condition that there is still nothing to change.
    """
    new_shard: int | None = None
    for _ in range(ATTEMPTS_MAX):
        try:
            return _put(request, new_shard) if request.puts else _remove(request, new_shard)
        except ChangeRefusedError as refused:
            child, shard = refused.old_items[0], refused.shard  # `child`: None if its condition held; {} if missing
            if any(TOMBSTONE in (tally or {}) for tally in refused.old_items[1:]):
                raise _refusal(request.counter, request.parent) from None
        if child is None:
            # The child's condition held, so this shard of the tally is missing. The next attempt uses the new shard.
            new_shard = _make_shard(request, shard)
            continue
        new_shard = None
        if TOMBSTONE in child and request.puts:
            request = replace(request, replaces=dict(child))
            continue
        if child.get("nonce") == {"S": request.call.nonce}:  # this call put the child, and the response was lost
            return request.answer(True, VISIBLE_SOON if "rollup" in child else VISIBLE_NOW)
        if child and not request.puts:
            continue  # another call removed or replaced the child after `_remove` read the child
        try:
            return _answer_unchanged(request)
        except ChangeRefusedError:
            continue  # another call changed the child after this attempt
    raise StoreBusyError(f"This child of {request.counter.name} keeps changing.")


def _put(request: _ChildRequest, shard: int | None) -> Body:
    """Commits the child and the move of its tally. While the tally is hot, leaves out the move, and the rollup adds the
    child. Raises ChangeRefusedError if the child exists, or if the shard is missing or a tombstone."""
    call, counter, parent = request.call, request.counter, request.parent
    minute, body = minute_now(call), request.answer(True)

    def writes(shard: int) -> list[Write]:
        return [_child_write(request, minute), _tally_write(request, shard, 1, minute)]

    may_spill = counter.may_spill and not request.replaces  # the rollup reads inserts, not replaced tombstones
    try:
        receipt = request.receipt(body)
        commit_change(call, counter, parent, writes, receipt, first_shard=shard, may_spill=may_spill)
        return body
    except HotTallyError:
        assert may_spill, "the rollup would not add the child"
    # Without the tally's write, no condition fails if the parent is missing or removed. This read costs 1 RCU.
    if not _accepts_children(call, counter, parent):
        raise _refusal(counter, parent)
    child, body = _child_write(request, minute_now(call), **PENDING_ROLLUP), request.answer(True, VISIBLE_SOON)
    if request.draft is None:
        put_alone(call, child)
    else:
        request.commit(child, body)
    observe.count(observe.SPILLED)
    return body


def _remove(request: _ChildRequest, shard: int | None) -> Body:
    """Removes the child, and moves its tally by -1. Raises ChangeRefusedError, also if there is no child."""
    child = queries.get(request.call.store.client, request.location["TableName"], request.location["Key"])
    if not child or TOMBSTONE in child:
        raise ChangeRefusedError([{}], shard=0)  # as if the condition of the child had failed
    removal = _removal_write(request, child)
    minute, nonce_prefix = minute_now(request.call), tallies.removal_nonce(removal_pair_of(child))

    def writes(shard: int) -> list[Write]:
        return [removal, _tally_write(request, shard, -1, minute, nonce_prefix=nonce_prefix)]

    body = request.answer(True)
    commit_change(request.call, request.counter, request.parent, writes, request.receipt(body), first_shard=shard)
    return body


def removal_writes(call: Call, counter: Counter, parent: str, child: Item, shard: int) -> list[Write]:
    """Returns the writes that remove `child`, as it was read, and move a shard of the removed parent by -1."""
    id_ = child["SK"]["S"].removeprefix(counter.child_range[0])
    request = _ChildRequest(call, counter, parent, id_, puts=False, body={})
    nonce_prefix = tallies.removal_nonce(removal_pair_of(child))
    move = tallies.add_write(call, counter, parent, shard, -1, minute_now(call), nonce_prefix=nonce_prefix)
    move["ConditionExpression"] = f"attribute_exists({TOMBSTONE})"
    return [_removal_write(request, child), {"Update": move}]


def _removal_write(request: _ChildRequest, child: Item) -> Write:
    """Returns the write that removes the child, on condition that `child` is as it was read.

    A late copy of the request that put a spilled child would put the child once more. So the removal puts a tombstone
    in place of a spilled child, and the copy's condition fails. TTL removes tombstones.
    """
    assert TOMBSTONE not in child, "the child is removed already"
    exists = {"ConditionExpression": "attribute_exists(SK)", "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    as_read = items.with_expected(exists, {name: child.get(name) for name in ("at", "nonce")})
    write = {**as_read, "TableName": request.location["TableName"]}
    minute, minute_s = minute_of(child), request.call.store.settings.minute_s
    # `at` gives the age, because CREATED_AT may be the start of a day. - 1: the put may be of the minute's last second.
    age_s = math.inf if minute is None else (minute_now(request.call) - minute - 1) * minute_s
    if "rollup" not in child or age_s >= TOMBSTONE_KEPT_S:
        return {"Delete": {**write, "Key": request.location["Key"]}}
    has_user = not request.id.startswith(anonymous.CHILD_NAME_PREFIX)
    tombstone = {name: child[name] for name in ("at", "rollup")}  # a recount sees that the rollup may not have added it
    tombstone[TOMBSTONE] = {"N": str(anonymous.stored_at_s(request.id, int(clock.now_s())))}
    tombstone["nonce"] = {"S": request.call.nonce}
    tombstone["expiration"] = {"N": str(expiration_s(TOMBSTONE_KEPT_S, has_user=has_user))}
    return {"Put": {**write, "Item": {**request.location["Key"], **tombstone}}}


def _answer_unchanged(request: _ChildRequest) -> Body:
    """Answers `changed: false`, with a receipt if the call has a key. Raises ChangeRefusedError if there is now
    something to change. Raises as `_accepts_children` for a removal, if the counter needs a parent."""
    if not request.puts and request.counter.parent_required:
        # has_child raises if the parent is missing. A missing child is not an error.
        has_child(request.call, request.counter, request.parent, request.id)
    unchanged = request.answer(False)
    if request.draft is not None:
        exists = f"attribute_exists(SK) AND attribute_not_exists({TOMBSTONE})"
        condition = exists if request.puts else f"attribute_not_exists(SK) OR attribute_exists({TOMBSTONE})"
        request.commit({"ConditionCheck": {**request.location, "ConditionExpression": condition}}, unchanged)
    return unchanged


def _child_write(request: _ChildRequest, minute: int, **mark: Item) -> Write:
    item = {
        **request.location["Key"],
        CREATED_AT: {"N": str(anonymous.stored_at_s(request.id, int(clock.now_s())))},
        "at": {"N": str(minute)},
        "nonce": {"S": request.call.nonce},
        **mark,
    }
    write: Item = {"ConditionExpression": "attribute_not_exists(SK)"}
    if request.replaces:
        assert TOMBSTONE in request.replaces, "the child is counted already"
        write = {
            "ConditionExpression": f"attribute_exists({TOMBSTONE}) AND nonce = :expected",
            "ExpressionAttributeValues": {":expected": request.replaces["nonce"]},
        }
    where = {"TableName": request.location["TableName"], "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    return {"Put": {**where, "Item": item, **write}}


def _tally_write(request: _ChildRequest, shard: int, amount: int, minute: int, *, nonce_prefix: str = "") -> Write:
    """Returns the write that moves the tally. If the counter needs no parent, the write makes a missing tally."""
    assert amount == (1 if request.puts else -1)
    assert bool(nonce_prefix) != request.puts, "a removal has a pair name, and a put has none"
    tally_of_parent = request.call, request.counter, request.parent
    move = tallies.add_write(*tally_of_parent, shard, amount, minute, nonce_prefix=nonce_prefix)
    condition = {"ConditionExpression": accepts_children_condition(request.counter)}
    return {"Update": {**move, **condition, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}}


def accepts_children_condition(counter: Counter) -> str:
    """Returns the condition that a shard is not a tombstone, and exists if the counter needs a parent."""
    exists = "attribute_exists(PK) AND " if counter.parent_required else ""
    return f"{exists}attribute_not_exists({TOMBSTONE})"


def _make_shard(request: _ChildRequest, shard: int) -> int | None:
    """Makes a missing shard of a parent's tally. Returns the shard, or None if the tally is hot, so that the next put
    spills. If the parent is missing or removed, raises the error of `_refusal`."""
    call, counter, parent = request.call, request.counter, request.parent
    refusal = _refusal(counter, parent)
    if shard == 0:  # the call that made the parent made this shard
        raise refusal
    table = call.store.settings.counts_table
    shard_0 = {"Key": tallies.key(counter, parent, 0), "ConditionExpression": accepts_children_condition(counter)}
    empty = {**tallies.key(counter, parent, shard), counter.attribute: {"N": "0"}}
    new = {"Item": empty, "ConditionExpression": "attribute_not_exists(PK)"}
    writes: list[Write] = [{"ConditionCheck": {"TableName": table, **shard_0}}, {"Put": {"TableName": table, **new}}]
    try:
        commit_change(call, counter, parent, lambda _: writes, may_spill=request.puts and counter.may_spill)
    except HotTallyError:
        return None
    except ChangeRefusedError as refused:
        if refused.old_items[0] is not None:
            raise refusal from None
        # otherwise another writer has just made the shard
    return shard


def _accepts_children(call: Call, counter: Counter, parent: str) -> bool:
    """Returns whether the parent takes children. If the counter needs a parent, raises NotFoundError for a parent that
    is missing or removed."""
    shard_0 = queries.get(call.store.client, call.store.settings.counts_table, tallies.key(counter, parent, 0))
    return _is_accepting(counter, parent, shard_0)


def _is_accepting(counter: Counter, parent: str, shard_0: Item) -> bool:
    if counter.parent_required and (not shard_0 or TOMBSTONE in shard_0):
        raise _refusal(counter, parent)
    return TOMBSTONE not in shard_0


def _refusal(counter: Counter, parent: str) -> NotFoundError | ParentRemovedError:
    """Makes the error for a parent that takes no child. To a caller, a deleted post is like a missing post."""
    if counter.parent_required:
        return NotFoundError(f"There is no {counter.prefix.lower()} {parent}.")
    return parent_removed_error(counter, parent)


def parent_removed_error(counter: Counter, parent: str) -> ParentRemovedError:
    """Makes the error for a call that uses the id of a removed parent."""
    return ParentRemovedError(
        f"{parent} is removed. Tally removes its {counter.name} in the background. The id is free after that, a quarter"
        " of an hour later at the earliest."
    )


def _child_key(counter: Counter, parent: str, child: str) -> Item:
    return key(counter.partition_start + parent, counter.child_range[0] + child)


def has_child(call: Call, counter: Counter, parent: str, child: str) -> bool:
    """Returns whether the child exists and its parent is not removed, for 2 RCU. Raises as `_accepts_children`."""
    keys = [tallies.key(counter, parent, 0), _child_key(counter, parent, child)]
    both = queries.get_many(call, call.store.settings.counts_table, keys, ProjectionExpression=f"SK, {TOMBSTONE}")
    by_key = {item["SK"]["S"]: item for item in both}
    accepting = _is_accepting(counter, parent, by_key.get(counter.sort_key, {}))
    child_item = by_key.get(counter.child_range[0] + child)
    return accepting and child_item is not None and TOMBSTONE not in child_item


def parents_with_child(call: Call, children_of: Mapping[Tally, str]) -> set[Tally]:
    """Returns the parents whose child exists. `children_of`: at most 100 parents, each with the id of a child. Costs 1
    RCU for each child. No parent is read, so a removed parent is returned until the sweep has removed the child."""
    child_keys = {tally: _child_key(*tally, child) for tally, child in children_of.items()}
    by_key = {(key["PK"]["S"], key["SK"]["S"]): tally for tally, key in child_keys.items()}
    keys, table = list(child_keys.values()), call.store.settings.counts_table
    child_items = queries.get_many(call, table, keys, ProjectionExpression=f"PK, SK, {TOMBSTONE}")
    return {by_key[item["PK"]["S"], item["SK"]["S"]] for item in child_items if TOMBSTONE not in item}


class ListedChild(NamedTuple):
    """A child of a list. `since`: when it was put, in epoch seconds; None: Tally did not put the child."""

    name: str | None
    """None: the child is anonymous."""
    since: int | None


def list_children(
    call: Call, counter: Counter, parent: str, limit: int, after: str | None
) -> tuple[list[ListedChild], str | None]:
    """Returns at most `limit` children of a parent by their encoded ids, and the cursor of the next page, if any.

    `after`: the encoded child before the page. Tombstones make a page shorter. Raises as `_accepts_children`.
    """
    partition, (first, last) = counter.partition_start + parent, counter.child_range
    after_key = None if after is None else first + after
    table = call.store.settings.counts_table
    if not _accepts_children(call, counter, parent):
        return [], None  # the parent is removed, and the sweep is removing its children
    page = queries.query(call.store, table, partition, first, last, after=after_key, Limit=limit)
    ids = [item["SK"]["S"].removeprefix(first) for item in page]
    children = [
        ListedChild(
            None if id_.startswith(anonymous.CHILD_NAME_PREFIX) else decoded_user(id_),
            items.int_attribute(item, CREATED_AT) if CREATED_AT in item else None,
        )
        for id_, item in zip(ids, page, strict=True)
        if TOMBSTONE not in item
    ]
    return children, encode_cursor(ids[-1]) if page.has_more and ids else None
