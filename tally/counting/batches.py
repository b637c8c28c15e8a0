"""A batch of increments, packed into as few transactions as DynamoDB allows.

A transaction takes 100 items, and each item once. So the amounts for one tally are summed: 90 plays of one video are 90
receipts and one update. Each increment is still counted once under its own key. One whose receipt exists is answered
from it, and the others are committed without it. An increment that is rolled up, or that has spilled, adds only its
receipt to the transaction.

The counting ends in time: what does not fit into the call's time gets StoreBusyError. A batch that is sent again gets
further, because what was counted is found at once: in a pack by its one transaction, elsewhere by one read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .. import observe
from ..dynamo.client import Call
from ..dynamo.keys import Item
from ..dynamo.transactions import CONDITION_FAILED, TRANSACTION_ITEMS_MAX, Write, send
from ..errors import StoreBusyError, StoreRefusedError, TallyError
from . import increments, receipts
from .increments import Increment
from .receipts import VISIBLE_NOW, VISIBLE_SOON, Body, Counted, Stamp
from .spilling import Spilling
from .tallies import Tally, minute_now

Result = Counted | Exception
"""The answer, or the reason why not: a TallyError, or the exception of a bug, which fails no other increment."""


class Entry(NamedTuple):
    """One increment of a batch, with its call."""

    call: Call
    increment: Increment


class Member(NamedTuple):
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
        if increment.counter.known and increment.key
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
    """Whether it can share a transaction: its effect does not depend on the counter's number.

    A change of a retired counter cannot: it would fail the others with it.
    """
    return not (increment.counter.known or increment.counter.retired)


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
        moved = set() if member.increment.counter.soon else {member.tally}
        if len(packs[-1]) + 1 + len(tallies_in_pack | moved) > TRANSACTION_ITEMS_MAX:
            packs.append([])
            tallies_in_pack = set()
        packs[-1].append(member)
        tallies_in_pack |= moved
    return packs


def _commit(pack: Sequence[Member]) -> dict[int, Result]:
    """Commit the pack in one transaction, without the members whose receipts exist; the results by place."""
    results: dict[int, Result] = {}
    left, call = list(pack), pack[0].call
    spilling = Spilling.of(call, [member.tally for member in pack])
    while left:
        if call.store.clock() >= call.deadline_s:
            return results | {member.place: _no_time() for member in left}
        try:
            found = _attempt(left, spilling)
        except StoreRefusedError:
            return results  # one tally may be at fault for all: the others are counted one by one
        except Exception as error:
            return results | {member.place: error for member in left}
        if found is None:
            return results | {member.place: _counted(member, spilling) for member in left}
        results |= found
        left = [member for member in left if member.place not in found]
    return results


def _counted(member: Member, spilling: Spilling) -> Result:
    """The result of a member whose pack is committed."""
    if member.tally in spilling.alone:
        observe.count(observe.SPILLED)
    return Counted(_body(member, spilling), replayed=False)


def _attempt(members: Sequence[Member], spilling: Spilling) -> dict[int, Result] | None:
    """Send one transaction. None: it committed. Otherwise the answers in receipts that it found, by place: none after
    conflicts and throttling. Raises for anything else, and StoreBusyError when the retries are used up."""
    call = members[0].call
    sums, at = _sums(members, spilling), minute_now(call)
    writes = [_receipt(member, spilling, at) for member in members]
    sent = send(call.store.client, [*writes, *spilling.updates(sums, at)], retries=call.retries)
    if sent.committed:
        spilling.committed(sums)
        return None
    found = [(member, reason.item or {}) for member, reason in zip(members, sent.reasons, strict=False)
             if reason.code == CONDITION_FAILED]  # fmt: skip
    if not found:
        spilling.retry(sums, sent, len(members))
    return {member.place: _stored(member, item) for member, item in found}


def _receipt(member: Member, spilling: Spilling, at: int) -> Write:
    make = member.stamp.alone if spilling.waits(member.tally) else member.stamp.receipt
    return make(member.call, _body(member, spilling), **member.increment.facts(at))


def _body(member: Member, spilling: Spilling) -> Body:
    return {**member.increment.body, **(VISIBLE_SOON if spilling.waits(member.tally) else VISIBLE_NOW)}


def _sums(members: Sequence[Member], spilling: Spilling) -> dict[Tally, int]:
    """The amount by which the transaction moves each tally."""
    sums: dict[Tally, int] = {}
    for member in members:
        if not spilling.waits(member.tally):
            sums[member.tally] = sums.get(member.tally, 0) + member.increment.amount
    return sums


def _stored(member: Member, item: Item) -> Result:
    try:
        return receipts.stored(member.call, item, member.stamp)
    except TallyError as error:
        return error
