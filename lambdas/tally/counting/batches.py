"""A batch of increments, packed into as few transactions as DynamoDB allows.

A transaction takes 100 items, and each item once: so the amounts for one tally are summed, and 90 plays of one video
are 90 receipts and one update. Each increment still is counted once under its own key: where a receipt stands already,
that increment is answered from it and the others are committed without it. What is rolled up, or has spilled, is in
the transaction with its receipt alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from .. import observe
from ..counter import Counter, Guarantee
from ..dynamo.client import Call, Item, Store, minute_now
from ..dynamo.contention import HOT_S, SPILL_RETRIES_MAX, THROTTLED_S
from ..dynamo.transactions import (
    CONDITION_FAILED,
    VISIBLE_NOW,
    VISIBLE_SOON,
    Body,
    Stamp,
    Write,
    busy_or_raise,
    conflict_or_raise,
    pause,
    spread_wider,
)
from ..errors import ReceiptFoundError, StoreRefusedError, TallyError
from . import increments, receipts, tallies
from .increments import Increment

TRANSACTION_ITEMS_MAX = 100  # DynamoDB's limit

Result = tuple[Body, bool] | Exception
"""The body and whether it is a replay, or why not: a TallyError, or whatever a bug raises, which fails no other."""
Entry = tuple[Call, Increment]
Tally = tuple[Counter, str]


@dataclass(frozen=True)
class Member:
    """One increment in a pack: its place in the batch, and its receipt's stamp."""

    place: int
    call: Call
    increment: Increment
    stamp: Stamp

    @property
    def tally(self) -> Tally:
        """The counter and the id that it moves."""
        return self.increment.counter, self.increment.id


def count(entries: Sequence[Entry]) -> list[Result]:
    """Count each increment; the results in order. None of them fails because of another."""
    results: dict[int, Result] = {}
    members: list[Member] = []
    for place, (call, increment) in enumerate(entries):
        try:
            if len(entries) > 1 and packable(increment):
                keyed = (increment.operation, increment.target, increment.key or "", increment.payload)
                members.append(Member(place, call, increment, receipts.stamp_of(call, *keyed)))
        except Exception as error:
            results[place] = error
    for pack in plan(members):
        if len(pack) > 1:
            results |= _commit(pack)
    for place, (call, increment) in enumerate(entries):
        if place not in results:
            try:
                results[place] = increments.count(call, increment)
            except Exception as error:
                results[place] = error
    return [results[place] for place in range(len(entries))]


def packable(increment: Increment) -> bool:
    """Whether it can share a transaction: it has a receipt, and nothing of the counter's number depends on its turn."""
    return increment.counter.guarantee is not Guarantee.FAST and not increment.counter.known


def plan(members: Sequence[Member]) -> list[list[Member]]:
    """Packs of at most 100 items, receipts and tallies together, in order; a receipt only once.

    Members whose receipt is another's already are left out: they are counted by themselves, after it.
    """
    packs: list[list[Member]] = [[]]
    seen: set[str] = set()
    tallies_in_pack: set[Tally] = set()
    for member in members:
        if member.stamp.id in seen:
            continue
        seen.add(member.stamp.id)
        moved = set() if _is_rolled_up(member.tally) else {member.tally}
        if len(packs[-1]) + 1 + len(tallies_in_pack | moved) > TRANSACTION_ITEMS_MAX:
            packs.append([])
            tallies_in_pack = set()
        packs[-1].append(member)
        tallies_in_pack |= moved
    return packs


def _is_rolled_up(tally: Tally) -> bool:
    return tally[0].guarantee is Guarantee.ROLLUP


@dataclass(frozen=True)
class _Tried:
    """What became of one transaction. `stored`: what receipts that stand already say, by place; if there are none and
    it was not committed, `in_the_way` has the tallies that met a conflict, or throttling if it was `throttled`."""

    committed: bool = False
    stored: dict[int, Result] = field(default_factory=dict)
    in_the_way: Collection[Tally] = ()
    throttled: bool = False


def _commit(pack: Sequence[Member]) -> dict[int, Result]:
    """Commit the pack in one transaction, less those whose receipts stand already; the results by place.

    What may be written alone is so as commit.transact has it: from the start while it is hot, at once when it was
    throttled, and all of it after SPILL_RETRIES_MAX retries.
    """
    results: dict[int, Result] = {}
    left, retries, store = list(pack), pack[0].call.retries(), pack[0].call.store
    moved = {tally for tally in dict.fromkeys(member.tally for member in pack) if not _is_rolled_up(tally)}
    may_spill = {tally for tally in moved if tally[0].spills}
    alone = {tally for tally in may_spill if store.breaker.hot(_key(tally))}
    while left:
        try:
            tried = _attempt(left, alone)
            if tried.committed:
                return results | {member.place: _counted(member, alone) for member in left}
            results |= tried.stored
            left = [member for member in left if member.place not in tried.stored]
            if tried.stored:
                continue
            spilled = _spill(store, tried, may_spill, last=retries.attempts >= SPILL_RETRIES_MAX) - alone
            alone |= spilled
            if not (tried.throttled and spilled):  # else the next try wants less of what there is too little of
                pause(retries)
        except StoreRefusedError:
            return results  # one tally may be at fault for all: those that are left are counted one by one
        except Exception as error:
            return results | {member.place: error for member in left}
    return results


def _spill(store: Store, tried: _Tried, may_spill: Collection[Tally], *, last: bool) -> set[Tally]:
    """The tallies whose members are written alone from now on. Those that were in the way of the pack are hot."""
    if not (tried.throttled or last):
        return set()
    hot = set(may_spill).intersection(tried.in_the_way)
    for tally in hot:
        store.breaker.trip(_key(tally), THROTTLED_S if tried.throttled else HOT_S)
    return set(may_spill) if last else hot


def _counted(member: Member, alone: Collection[Tally]) -> Result:
    """The result of a member whose pack is committed."""
    if member.tally in alone:
        observe.count(member.increment.counter.name, observe.SPILLED)
    return _body(member, alone), False


def _attempt(members: Sequence[Member], alone: Collection[Tally]) -> _Tried:
    """One transaction. Raises for anything but receipts that stand, conflicts and throttling."""
    call, at = members[0].call, minute_now()
    sums = _sums(members, alone)
    try:
        writes = [_receipt(member, alone, at) for member in members]
        for (counter, id_), amount in sums.items():
            writes.append({"Update": tallies.add(call, counter, id_, _shard(call, counter, id_), amount, at)})
        call.store.client.transact_write_items(TransactItems=writes)  # type: ignore[arg-type]
        for tally in sums:
            call.store.breaker.cool(_key(tally))
        return _Tried(committed=True)
    except call.store.client.exceptions.TransactionCanceledException as cancelled:
        reasons: Sequence[Any] = cancelled.response.get("CancellationReasons", [])
        stand = [
            (member, reason)
            for member, reason in zip(members, reasons, strict=False)
            if reason.get("Code") == CONDITION_FAILED
        ]
        if stand:
            return _Tried(stored={member.place: _stored(member, reason.get("Item", {})) for member, reason in stand})
        conflict = conflict_or_raise(reasons)
        of_tallies = zip(sums, reasons[len(members) :], strict=False)
        in_the_way = [tally for tally, reason in of_tallies if reason.get("Code") != "None"]
    except (ClientError, BotoCoreError) as error:
        conflict, in_the_way = busy_or_raise(error), list(sums)
    for counter, id_ in in_the_way if conflict else ():
        spread_wider(call, counter, id_)
    return _Tried(in_the_way=in_the_way, throttled=not conflict)


def _receipt(member: Member, alone: Collection[Tally], at: int) -> Write:
    make = member.stamp.alone if _by_itself(member, alone) else member.stamp.receipt
    return make(member.call, _body(member, alone), **member.increment.facts(at))


def _body(member: Member, alone: Collection[Tally]) -> Body:
    return {**member.increment.body, **(VISIBLE_SOON if _by_itself(member, alone) else VISIBLE_NOW)}


def _by_itself(member: Member, alone: Collection[Tally]) -> bool:
    return _is_rolled_up(member.tally) or member.tally in alone


def _sums(members: Sequence[Member], alone: Collection[Tally]) -> dict[Tally, int]:
    """What each tally that is moved in the transaction is moved by."""
    sums: dict[Tally, int] = {}
    for member in members:
        if not _by_itself(member, alone):
            sums[member.tally] = sums.get(member.tally, 0) + member.increment.amount
    return sums


def _key(tally: Tally) -> str:
    counter, id_ = tally
    return counter.partition_key(id_)


def _shard(call: Call, counter: Counter, id_: str) -> int:
    return call.store.spread.pick(_key((counter, id_)), counter.max_shards)


def _stored(member: Member, item: Item) -> Result:
    try:
        return receipts.stored_answer(member.call, member.increment.operation, member.stamp, ReceiptFoundError(item))
    except TallyError as error:
        return error
