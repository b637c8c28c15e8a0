"""A batch of increments, packed into as few transactions as DynamoDB allows.

A transaction takes 100 items, and each item once: so the amounts for one tally are summed, and 90 plays of one video
are 90 receipts and one update. Each increment still is counted once under its own key: where a receipt stands already,
that increment is answered from it and the others are committed without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from . import increments, receipts, tallies
from .commit import (
    CONDITION_FAILED,
    Body,
    Stamp,
    Write,
    busy_or_raise,
    conflict_or_raise,
    pause,
    spread_wider,
)
from .counter import Counter, Guarantee
from .errors import ReceiptFoundError, StoreRefusedError, TallyError
from .increments import Increment
from .store import Call, Item, minute_now

TRANSACTION_ITEMS_MAX = 100  # DynamoDB's limit

Result = tuple[Body, bool] | Exception
"""The body and whether it is a replay, or why not: a TallyError, or whatever a bug raises, which fails no other."""
Entry = tuple[Call, Increment]


@dataclass(frozen=True)
class Member:
    """One increment in a pack: its place in the batch, and its receipt's stamp."""

    place: int
    call: Call
    increment: Increment
    stamp: Stamp


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
    return increment.counter.guarantee is Guarantee.EXACT and not increment.counter.known


def plan(members: Sequence[Member]) -> list[list[Member]]:
    """Packs of at most 100 items, receipts and tallies together, in order; a receipt only once.

    Members whose receipt is another's already are left out: they are counted by themselves, after it.
    """
    packs: list[list[Member]] = [[]]
    seen: set[str] = set()
    tallies_in_pack: set[str] = set()
    for member in members:
        if member.stamp.id in seen:
            continue
        seen.add(member.stamp.id)
        tally = _tally(member.increment)
        if len(packs[-1]) + 1 + len(tallies_in_pack | {tally}) > TRANSACTION_ITEMS_MAX:
            packs.append([])
            tallies_in_pack = set()
        packs[-1].append(member)
        tallies_in_pack.add(tally)
    return packs


def _tally(increment: Increment) -> str:
    return f"{increment.counter.name}#{increment.counter.partition_key(increment.id)}"


def _commit(pack: Sequence[Member]) -> dict[int, Result]:
    """Commit the pack in one transaction, less those whose receipts stand already; the results by place."""
    results: dict[int, Result] = {}
    left, retries = list(pack), pack[0].call.retries()
    while left:
        try:
            found = _attempt(left)
            if found is None:
                return results | {member.place: (member.increment.body, False) for member in left}
            results |= found
            left = [member for member in left if member.place not in found]
            if not found:
                pause(retries)
        except StoreRefusedError:
            return results  # one tally may be at fault for all: those that are left are counted one by one
        except Exception as error:
            return results | {member.place: error for member in left}
    return results


def _attempt(members: Sequence[Member]) -> dict[int, Result] | None:
    """One transaction: None if it was committed; else what receipts that stand already say, by place, or nothing."""
    call, at = members[0].call, minute_now()
    try:
        writes = [_receipt(member, at) for member in members] + _updates(members, at)
        call.store.client.transact_write_items(TransactItems=writes)  # type: ignore[arg-type]
        return None
    except call.store.client.exceptions.TransactionCanceledException as cancelled:
        reasons: Sequence[Any] = cancelled.response.get("CancellationReasons", [])
        stand = [
            (member, reason)
            for member, reason in zip(members, reasons, strict=False)
            if reason.get("Code") == CONDITION_FAILED
        ]
        if stand:
            return {member.place: _stored(member, reason.get("Item", {})) for member, reason in stand}
        conflict = conflict_or_raise(reasons)
    except (ClientError, BotoCoreError) as error:
        conflict = busy_or_raise(error)
    for counter, id_ in {(member.increment.counter, member.increment.id) for member in members}:
        if conflict:
            spread_wider(call, counter, id_)
    return {}


def _receipt(member: Member, at: int) -> Write:
    change = member.increment
    facts = tallies.facts(change.counter, change.id, change.amount, at)
    return member.stamp.receipt(member.call, change.body, **facts)


def _updates(members: Sequence[Member], at: int) -> list[Write]:
    """One update for each tally, with the sum of its amounts."""
    sums: dict[tuple[Counter, str], int] = {}
    for member in members:
        tally = member.increment.counter, member.increment.id
        sums[tally] = sums.get(tally, 0) + member.increment.amount
    call = members[0].call
    return [
        {"Update": tallies.add(call, counter, id_, _shard(call, counter, id_), amount, at)}
        for (counter, id_), amount in sums.items()
    ]


def _shard(call: Call, counter: Counter, id_: str) -> int:
    return call.store.spread.pick(counter.partition_key(id_), counter.max_shards)


def _stored(member: Member, item: Item) -> Result:
    try:
        return receipts.stored_answer(member.call, member.increment.operation, member.stamp, ReceiptFoundError(item))
    except TallyError as error:
        return error
