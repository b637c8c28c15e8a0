"""Children: one item for each, such as a like, and the tally of their parent, moved in the same transaction.

The child's item is its own receipt: a second put of the child finds it. With an idempotency key a receipt joins the
transaction. So a late retry does not put a child again that was removed after the first call. While the tally is hot,
the child is written alone, and a stream consumer adds it to the tally.

A put writes its minute to the child's item and to the tally. A removal, such as an unlike, writes its own minute and a
pair key to the tally. The pair key names the item that it removed, so both halves of a removal are found together.
"""

from __future__ import annotations

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
    ends_s,
    refuse_retired,
    retired_error,
)
from .tallies import TOMBSTONE, Tally, minute_now

CREATED_AT = "likedAt"
"""The attribute that says when a child was put, in epoch seconds; for a browser its day. Likes were the first
children."""
TOMBSTONE_KEPT_S = 15 * 60  # a late copy of a write arrives within minutes, or never
ATTEMPTS_MAX = 8  # an attempt fails only if another call changes the same child at the same moment


@dataclass(frozen=True)
class _ChildRequest:
    """A call that wants a child of `parent` to be there, or not to be there."""

    call: Call
    counter: Counter
    parent: str
    id: str
    wanted: bool
    body: Body
    """The members of the answer, besides `changed` and `visible`."""
    draft: ReceiptDraft | None = None
    """The draft of the receipt, if the call has a key."""
    replaces: Item | None = None
    """The tombstone of the child, if a new child takes its place."""

    @property
    def child(self) -> Item:
        """The table and key of the child's item, as writes name them."""
        key = _child_key(self.counter, self.parent, self.id)
        return {"TableName": self.call.store.settings.counts_table, "Key": key}

    def answer(self, changed: bool, visible: Body = VISIBLE_NOW) -> Body:
        return {**self.body, "changed": changed, **visible}

    def receipt(self, body: Body) -> Write | None:
        """Returns the receipt with this body, if the call has a key. The bookkeeper books the child's item, not this
        receipt."""
        return self.draft.receipt(self.call, body) if self.draft else None

    def commit(self, write: Write, body: Body) -> Body:
        """Commits one write beside the tally, with the receipt if there is one."""
        commit_change(self.call, self.counter, self.parent, lambda _: [write], self.receipt(body))
        return body


def set_child(
    call: Call,
    counter: Counter,
    parent: str,
    child: str,
    wanted: bool,
    body: Body | None = None,
    keyed: ReceiptKey | None = None,
) -> ChangeAnswer:
    """Puts a child of the parent (`wanted`), or removes it. Returns `body` with `changed` and `visible`.

    `child` is percent-encoded; a user's own child is `call.caller`. 4 WCU, 6 with a key. A child that is written alone,
    because its tally is hot, takes 1, or 4 with a key. A removal reads the child first. A child that is written alone
    reads its parent first. Each read is 1 RCU. Raises NotFoundError if the counter needs the parent and there is none,
    ParentRemovedError, CounterRetiredError, and the errors of transactions.commit_change.
    """
    wish = _ChildRequest(call, counter, parent, child, wanted, body or {})
    if keyed is None:
        if counter.retired:
            raise retired_error(counter)
        return ChangeAnswer(_apply_request(wish), replayed=False)
    if counter.retired:
        return count_once(call, keyed, lambda draft: refuse_retired(call, counter, draft))
    return count_once(call, keyed, lambda draft: _apply_request(replace(wish, draft=draft)))


def remove(call: Call, counter: Counter, parent: str, child: str) -> None:
    """Removes a child, also of a retired counter. Raises the errors of set_child."""
    _apply_request(_ChildRequest(call, counter, parent, child, False, {}))


def _apply_request(wish: _ChildRequest) -> Body:
    """Brings the child into the wanted state, with a receipt if the call has a key.

    Each turn first commits the change on condition that there is something to change. If there is nothing to change, a
    call with a key commits its receipt alone, on condition that the child is still as it was.
    """
    made_shard: int | None = None
    for _ in range(ATTEMPTS_MAX):
        try:
            return _put(wish, made_shard) if wish.wanted else _remove(wish, made_shard)
        except ChangeRefusedError as refused:
            child, shard = refused.old_items[0], refused.shard
            if any(TOMBSTONE in (tally or {}) for tally in refused.old_items[1:]):
                raise _refusal(wish.counter, wish.parent) from None
        if child is None:
            made_shard = _make_shard(wish, shard)  # the next turn uses it, and other shards may be missing, too
            continue
        made_shard = None
        if TOMBSTONE in child and wish.wanted:
            wish = replace(wish, replaces=dict(child))
            continue
        if child.get("nonce") == {"S": wish.call.nonce}:  # the call's own child, whose answer was lost
            return wish.answer(True, VISIBLE_SOON if "rollup" in child else VISIBLE_NOW)
        if child and not wish.wanted:
            continue  # another call put it since it was read
        try:
            return _answer_unchanged(wish)
        except ChangeRefusedError:
            continue  # another call changed it after it was read
    raise StoreBusyError(f"This child of {wish.counter.name} keeps changing.")


def _put(wish: _ChildRequest, shard: int | None) -> Body:
    """Commits child and tally in one transaction; the child alone while the tally is hot. Raises ChangeRefusedError."""
    at, done = minute_now(wish.call), wish.answer(True)

    def writes(shard: int) -> list[Write]:
        return [_child_write(wish, at), _tally_write(wish, shard, 1, at)]

    try:
        receipt = wish.receipt(done)
        spills = wish.counter.may_spill and not wish.replaces  # the rollup reads new items only
        commit_change(wish.call, wish.counter, wish.parent, writes, receipt, first_shard=shard, may_spill=spills)
        return done
    except HotTallyError:
        return _put_alone(wish)


def _put_alone(wish: _ChildRequest) -> Body:
    """Commits the child alone, or with its receipt; the rollup adds it to the tally. Raises ChangeRefusedError.

    This write does not see whether the parent is missing or removed. So the parent is read first, for 1 RCU.
    """
    if not _accepts_children(wish.call, wish.counter, wish.parent):
        raise _refusal(wish.counter, wish.parent)
    assert wish.counter.may_spill, "the rollup would not add it"
    assert not wish.replaces, "the rollup reads new items only"
    child, done = _child_write(wish, minute_now(wish.call), **PENDING_ROLLUP), wish.answer(True, VISIBLE_SOON)
    if wish.draft is None:
        put_alone(wish.call, child)
    else:
        wish.commit(child, done)
    observe.count(observe.SPILLED)
    return done


def _remove(wish: _ChildRequest, shard: int | None) -> Body:
    """Removes the child that exists, and takes it from the tally. Raises ChangeRefusedError."""
    seen = queries.get(wish.call.store.client, wish.child["TableName"], wish.child["Key"])
    if not seen or TOMBSTONE in seen:
        raise ChangeRefusedError([{}], 0)
    removal = _removal_write(wish, seen)
    at, by = minute_now(wish.call), tallies.removal_nonce(removal_pair_of(seen))

    def writes(shard: int) -> list[Write]:
        return [removal, _tally_write(wish, shard, -1, at, by=by)]

    done = wish.answer(True)
    commit_change(wish.call, wish.counter, wish.parent, writes, wish.receipt(done), first_shard=shard)
    return done


def removal_writes(call: Call, counter: Counter, parent: str, child: Item, shard: int) -> list[Write]:
    """Returns the writes that remove a child of a removed parent, on a marked shard. `child`: the item as it was
    read."""
    id_ = child["SK"]["S"].removeprefix(counter.child_range[0])
    wish = _ChildRequest(call, counter, parent, id_, False, {})
    by = tallies.removal_nonce(removal_pair_of(child))
    move = tallies.add_write(call, counter, parent, shard, -1, minute_now(call), nonce_prefix=by)
    return [_removal_write(wish, child), {"Update": {**move, "ConditionExpression": f"attribute_exists({TOMBSTONE})"}}]


def _removal_write(wish: _ChildRequest, seen: Item) -> Write:
    """Returns the write that removes the child, on condition that it is as it was read.

    A child that was written alone is one PutItem, and a late copy of the PutItem would put the child again. So the
    removal leaves a tombstone in its place, which TTL removes.
    """
    assert TOMBSTONE not in seen, "it is removed already"
    exists = {"ConditionExpression": "attribute_exists(SK)", "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    as_read = items.with_expected(exists, {name: seen.get(name) for name in ("at", "nonce")})
    write = {**as_read, "TableName": wish.child["TableName"]}
    at, minute_s = minute_of(seen), wish.call.store.settings.minute_s
    # CREATED_AT does not tell whether a late copy can arrive: it may be a day
    if "rollup" not in seen or at is None or (minute_now(wish.call) - at - 1) * minute_s >= TOMBSTONE_KEPT_S:
        return {"Delete": {**write, "Key": wish.child["Key"]}}
    named = not wish.id.startswith(anonymous.CHILD_NAME_PREFIX)
    left = {name: seen[name] for name in ("at", "rollup")}  # the rollup may still have to add it
    left |= {TOMBSTONE: {"N": str(anonymous.since_s(wish.id, int(clock.now_s())))}, "nonce": {"S": wish.call.nonce}}
    left |= {"expiration": {"N": str(ends_s(TOMBSTONE_KEPT_S, named=named))}}
    return {"Put": {**write, "Item": {**wish.child["Key"], **left}}}


def _answer_unchanged(wish: _ChildRequest) -> Body:
    """Answers `changed: false`, with a receipt if the call has a key. Raises ChangeRefusedError if another call has
    changed the child since."""
    if not wish.wanted and wish.counter.parent_required:
        has_child(wish.call, wish.counter, wish.parent, wish.id)  # a missing post is 404, a missing like is not
    unchanged = wish.answer(False)
    if wish.draft is not None:
        exists = f"attribute_exists(SK) AND attribute_not_exists({TOMBSTONE})"
        condition = exists if wish.wanted else f"attribute_not_exists(SK) OR attribute_exists({TOMBSTONE})"
        wish.commit({"ConditionCheck": {**wish.child, "ConditionExpression": condition}}, unchanged)
    return unchanged


def _child_write(wish: _ChildRequest, at: int, **mark: Item) -> Write:
    item = {
        **wish.child["Key"],
        CREATED_AT: {"N": str(anonymous.since_s(wish.id, int(clock.now_s())))},
        "at": {"N": str(at)},
        "nonce": {"S": wish.call.nonce},
        **mark,
    }
    write: Item = {"ConditionExpression": "attribute_not_exists(SK)"}
    if wish.replaces:
        assert TOMBSTONE in wish.replaces, "it is counted already"
        write = {
            "ConditionExpression": f"attribute_exists({TOMBSTONE}) AND nonce = :left",
            "ExpressionAttributeValues": {":left": wish.replaces["nonce"]},
        }
    where = {"TableName": wish.child["TableName"], "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    return {"Put": {**where, "Item": item, **write}}


def _tally_write(wish: _ChildRequest, shard: int, amount: int, at: int, *, by: str = "") -> Write:
    """Returns the write that moves the tally. If the counter needs no parent, the write makes the tally."""
    assert amount == (1 if wish.wanted else -1)
    assert bool(by) != wish.wanted, "a removal names its pair"
    move = tallies.add_write(wish.call, wish.counter, wish.parent, shard, amount, at, nonce_prefix=by)
    condition = {"ConditionExpression": accepts_children_condition(wish.counter)}
    return {"Update": {**move, **condition, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}}


def accepts_children_condition(counter: Counter) -> str:
    """Returns the condition on which a shard takes a child: the parent is not removed, and it is there if the counter
    needs it."""
    exists = "attribute_exists(PK) AND " if counter.parent_required else ""
    return f"{exists}attribute_not_exists({TOMBSTONE})"


def _make_shard(wish: _ChildRequest, shard: int) -> int | None:
    """Makes a tally shard of an existing parent, once. Returns the shard, or None if the tally has become hot
    meanwhile.

    Raises NotFoundError if there is no such parent.
    """
    call, counter, parent = wish.call, wish.counter, wish.parent
    missing = _refusal(counter, parent)
    if shard == 0:
        raise missing
    table = call.store.settings.counts_table
    first = {"Key": tallies.key(counter, parent, 0), "ConditionExpression": accepts_children_condition(counter)}
    empty = {**tallies.key(counter, parent, shard), counter.attribute: {"N": "0"}}
    new = {"Item": empty, "ConditionExpression": "attribute_not_exists(PK)"}
    writes: list[Write] = [{"ConditionCheck": {"TableName": table, **first}}, {"Put": {"TableName": table, **new}}]
    try:
        commit_change(call, counter, parent, lambda _: writes, may_spill=wish.wanted and counter.may_spill)
    except HotTallyError:
        return None
    except ChangeRefusedError as refused:
        if refused.old_items[0] is not None:
            raise missing from None
        # otherwise another writer has just made it
    return shard


def _accepts_children(call: Call, counter: Counter, parent: str) -> bool:
    """Returns whether the parent is not removed. Raises NotFoundError if the counter needs the parent and there is
    none."""
    first = queries.get(call.store.client, call.store.settings.counts_table, tallies.key(counter, parent, 0))
    return _is_accepting(counter, parent, first)


def _is_accepting(counter: Counter, parent: str, first: Item) -> bool:
    if counter.parent_required and (not first or TOMBSTONE in first):
        raise _refusal(counter, parent)
    return TOMBSTONE not in first


def _refusal(counter: Counter, parent: str) -> NotFoundError | ParentRemovedError:
    """Returns why a parent takes no child. A post that is removed is reported as missing."""
    if counter.parent_required:
        return NotFoundError(f"There is no {counter.prefix.lower()} {parent}.")
    return parent_removed_error(counter, parent)


def parent_removed_error(counter: Counter, parent: str) -> ParentRemovedError:
    """Makes the error for a call that needs the id of a removed parent."""
    return ParentRemovedError(
        f"{parent} is removed. Tally removes its {counter.name} in the background. The id is free after that, a quarter"
        " of an hour later at the earliest."
    )


def _child_key(counter: Counter, parent: str, child: str) -> Item:
    return key(counter.partition_start + parent, counter.child_range[0] + child)


def has_child(call: Call, counter: Counter, parent: str, child: str) -> bool:
    """Returns whether the child is there: 2 RCU, one for the parent. If the counter needs a parent that is missing,
    raises NotFoundError."""
    keys = [tallies.key(counter, parent, 0), _child_key(counter, parent, child)]
    both = queries.get_many(call, call.store.settings.counts_table, keys, ProjectionExpression=f"SK, {TOMBSTONE}")
    by_key = {item["SK"]["S"]: item for item in both}
    accepting = _is_accepting(counter, parent, by_key.get(counter.sort_key, {}))
    return accepting and TOMBSTONE not in by_key.get(counter.child_range[0] + child, {TOMBSTONE: True})


def parents_with_child(call: Call, children_of: Mapping[Tally, str]) -> set[Tally]:
    """Returns the parents, of at most 100, that have the child that is given for them. 1 RCU for each.

    It reads no parent. A missing parent has no child; a removed parent has some until the sweep has removed them.
    """
    wanted = {tally: _child_key(*tally, child) for tally, child in children_of.items()}
    by_key = {(key["PK"]["S"], key["SK"]["S"]): tally for tally, key in wanted.items()}
    keys, table = list(wanted.values()), call.store.settings.counts_table
    found = queries.get_many(call, table, keys, ProjectionExpression=f"PK, SK, {TOMBSTONE}")
    return {by_key[item["PK"]["S"], item["SK"]["S"]] for item in found if TOMBSTONE not in item}


class ListedChild(NamedTuple):
    """A child, and when it was put, in epoch seconds; None if it did not go through Tally."""

    name: str | None
    """None: it is anonymous."""
    since: int | None


def list_children(
    call: Call, counter: Counter, parent: str, limit: int, after: str | None
) -> tuple[list[ListedChild], str | None]:
    """Returns the children of a parent in the order of their encoded ids, and the cursor of the next page; None on the
    last page.

    `after`: the percent-encoded child after which the page begins. If the counter needs a parent that is missing,
    raises NotFoundError.
    """
    partition, (first, last) = counter.partition_start + parent, counter.child_range
    after_key = None if after is None else first + after
    table = call.store.settings.counts_table
    if not _accepts_children(call, counter, parent):
        return [], None  # the parent is removed, and the sweep removes its children
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
