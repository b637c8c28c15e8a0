"""A batch of increments, packed into as few transactions as DynamoDB allows.

A transaction takes 100 items, and each item once. So the amounts for one tally are summed: 90 plays of one video are 90
receipts and one update. Each increment is still counted once under its own key. One whose receipt exists is answered
from it, and the others are committed without it. An increment that is rolled up, or that has spilled, adds only its
receipt to the transaction.

The counting ends in time: what does not fit into the call's time gets StoreBusyError. A batch that is sent again gets
further, because what was counted is found at once: in a pack by its one transaction, elsewhere by one read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .. import observe
from ..counter import Guarantee
from ..dynamo.client import Call, Store
from ..dynamo.contention import HOT_S, SPILL_RETRIES_MAX, THROTTLED_S
from ..dynamo.keys import Item
from ..dynamo.transactions import CONDITION_FAILED, CONFLICT, TRANSACTION_ITEMS_MAX, Write, pause, send, spread_wider
from ..errors import StoreBusyError, StoreRefusedError, TallyError
from . import increments, receipts, tallies
from .increments import Increment
from .receipts import VISIBLE_NOW, VISIBLE_SOON, Body, Counted, Stamp
from .tallies import Tally, minute_now

Result = Counted | Exception
"""The answer, or the reason why not: a TallyError, or the exception of a bug, which fails no other increment."""


class Entry(NamedTuple):
    """One increment of a batch, with its call."""

    call: Call
    increment: Increment


@dataclass(frozen=True)
class Member:
    """One increment in a pack: its place in the batch, and its receipt's stamp."""

    place: int
    call: Call
    increment: Increment
    stamp: Stamp

    @property
    def tally(self) -> Tally:
        """The tally that it moves."""
        return Tally(self.increment.counter, self.increment.id)


def count(entries: Sequence[Entry]) -> list[Result]:
    """Count each increment; the results in order. None of them fails because of another."""
    results: dict[int, Result] = {}
    members: list[Member] = []
    for place, (call, increment) in enumerate(entries):
        try:
            if packable(increment):
                members.append(Member(place, call, increment, receipts.stamp(call, increment.keyed)))
        except Exception as error:
            results[place] = error
    for pack in plan(members):
        if len(pack) > 1:
            results |= _commit(pack)
    results |= _one_by_one({place: entry for place, entry in enumerate(entries) if place not in results})
    return [results[place] for place in range(len(entries))]


def _one_by_one(entries: Mapping[int, Entry]) -> dict[int, Result]:
    """Count each by itself while another one fits into the time; the results by place.

    The slowest so far tells what fits. The first replay tells that the batch was sent before: then the others of its
    kind that were counted are found by one read.
    """
    results: dict[int, Result] = {}
    slowest_s, sent_before = 0.0, False
    for place, (call, increment) in entries.items():
        if place in results:
            continue
        began_s = call.store.clock()
        if began_s + slowest_s >= call.deadline_s:
            results[place] = _no_time()
            continue
        try:
            results[place] = increments.count(call, increment)
        except Exception as error:
            results[place] = error
        slowest_s = max(slowest_s, call.store.clock() - began_s)
        if not sent_before and isinstance(found := results[place], Counted) and found.replayed:
            sent_before = True
            results |= _replays({place: entry for place, entry in entries.items() if place not in results})
    return results


def _replays(entries: Mapping[int, Entry]) -> dict[int, Result]:
    """The results, by place, of those bounded and numbered increments whose receipts are there: half an RCU for each.

    Without an answer there are none: each is then counted by itself, and finds its own receipt.
    """
    members = [
        Member(place, call, increment, receipts.stamp(call, increment.keyed))
        for place, (call, increment) in entries.items()
        if increment.counter.known and increment.key and increment.counter.guarantee is not Guarantee.FAST
    ]
    try:
        live = receipts.live(members[0].call, {member.stamp.id for member in members}) if members else {}
    except TallyError as error:
        observe.logger.info("replays not read", exc_info=error)
        return {}
    return {member.place: _stored(member, live[member.stamp.id]) for member in members if member.stamp.id in live}


def _no_time() -> StoreBusyError:
    return StoreBusyError("There was no time left for this. Send it again with the same key: what is done is found.")


def packable(increment: Increment) -> bool:
    """Whether it can share a transaction: it has a receipt, and its effect does not depend on the counter's number.

    A change of a retired counter cannot: it would fail the others with it.
    """
    counter = increment.counter
    return counter.guarantee is not Guarantee.FAST and not counter.known and not counter.retired


def plan(members: Sequence[Member]) -> list[list[Member]]:
    """Packs of at most 100 items, receipts and tallies together, in order; a receipt only once.

    A member with the same receipt as an earlier one is left out: it is counted by itself, later.
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
    return tally.counter.guarantee is Guarantee.ROLLUP


@dataclass(frozen=True)
class _Tried:
    """The result of one transaction. `stored`: the answers in receipts that it found, by place. If it found none and
    did not commit, `in_the_way` has the tallies that met a conflict, or throttling if it was `throttled`."""

    committed: bool = False
    stored: dict[int, Result] = field(default_factory=dict)
    in_the_way: Collection[Tally] = ()
    throttled: bool = False


def _commit(pack: Sequence[Member]) -> dict[int, Result]:
    """Commit the pack in one transaction, without the members whose receipts exist; the results by place.

    A member that may spill does so by the rules of transactions.transact: at the start while its tally is hot, at once
    after throttling, and every one of them after SPILL_RETRIES_MAX retries.
    """
    results: dict[int, Result] = {}
    left, retries, store = list(pack), pack[0].call.retries(), pack[0].call.store
    moved = {tally for tally in dict.fromkeys(member.tally for member in pack) if not _is_rolled_up(tally)}
    may_spill = {tally for tally in moved if tally.counter.spills}
    alone = {tally for tally in may_spill if store.breaker.hot(tally.partition)}
    while left:
        if store.clock() >= pack[0].call.deadline_s:
            return results | {member.place: _no_time() for member in left}
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
            if not (tried.throttled and spilled):  # otherwise the next try needs less of what is short
                pause(retries)
        except StoreRefusedError:
            return results  # one tally may be at fault for all: the others are counted one by one
        except Exception as error:
            return results | {member.place: error for member in left}
    return results


def _spill(store: Store, tried: _Tried, may_spill: Collection[Tally], *, last: bool) -> set[Tally]:
    """The tallies whose members are written alone from now on. Those that were in the way of the pack are hot.

    A conflict over receipts alone says nothing of the tallies.
    """
    if not (tried.throttled or (last and tried.in_the_way)):
        return set()
    hot = set(may_spill).intersection(tried.in_the_way)
    for tally in hot:
        store.breaker.trip(tally.partition, THROTTLED_S if tried.throttled else HOT_S)
    return set(may_spill) if last else hot


def _counted(member: Member, alone: Collection[Tally]) -> Result:
    """The result of a member whose pack is committed."""
    if member.tally in alone:
        observe.count(observe.SPILLED)
    return Counted(_body(member, alone), replayed=False)


def _attempt(members: Sequence[Member], alone: Collection[Tally]) -> _Tried:
    """Send one transaction. Raises for anything but receipts that exist, conflicts and throttling."""
    call, sums = members[0].call, _sums(members, alone)
    at = minute_now(call)
    writes = [_receipt(member, alone, at) for member in members]
    for tally, amount in sums.items():
        shard = call.store.spread.pick(tally.partition, tally.counter.max_shards)
        writes.append({"Update": tallies.add(call, *tally, shard, amount, at)})
    sent = send(call.store.client, writes)
    if sent.committed:
        for tally in sums:
            call.store.breaker.cool(tally.partition)
        return _Tried(committed=True)
    found = [(member, reason.item or {}) for member, reason in zip(members, sent.reasons, strict=False)
             if reason.code == CONDITION_FAILED]  # fmt: skip
    if found:
        return _Tried(stored={member.place: _stored(member, item) for member, item in found})
    conflict = sent.conflict_or_raise()
    codes = dict(zip(sums, sent.codes[len(members) :], strict=False))
    for tally, code in codes.items():
        if code == CONFLICT:
            spread_wider(call, *tally)
    return _Tried(in_the_way=[tally for tally, code in codes.items() if code != "None"], throttled=not conflict)


def _receipt(member: Member, alone: Collection[Tally], at: int) -> Write:
    make = member.stamp.alone if _by_itself(member, alone) else member.stamp.receipt
    return make(member.call, _body(member, alone), **member.increment.facts(at))


def _body(member: Member, alone: Collection[Tally]) -> Body:
    return {**member.increment.body, **(VISIBLE_SOON if _by_itself(member, alone) else VISIBLE_NOW)}


def _by_itself(member: Member, alone: Collection[Tally]) -> bool:
    return _is_rolled_up(member.tally) or member.tally in alone


def _sums(members: Sequence[Member], alone: Collection[Tally]) -> dict[Tally, int]:
    """The amount by which the transaction moves each tally."""
    sums: dict[Tally, int] = {}
    for member in members:
        if not _by_itself(member, alone):
            sums[member.tally] = sums.get(member.tally, 0) + member.increment.amount
    return sums


def _stored(member: Member, item: Item) -> Result:
    try:
        return receipts.stored(member.call, member.increment.operation, item, member.stamp)
    except TallyError as error:
        return error
