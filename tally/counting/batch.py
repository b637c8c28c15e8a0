"""Many changes under one key: all of them count, or none does.

The changes of one tally are folded to their sum: one write, judged by that sum. One transaction has the receipt first,
and then a write for each tally. A tally that waits for the rollup has no write: it is rolled up, its caller asks for
`soon`, or it spills (spilling.py). The receipt lists the tallies that moved with it apart from those that wait. If all
of them wait, the receipt is written alone.

A function of a team's may add writes of its own (tally/transact.py): they follow the tallies in the same transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import fields, observe
from ..counter import CHANGES, Counter
from ..dynamo.client import Call
from ..dynamo.items import Write
from ..dynamo.transactions import (
    CONDITION_FAILED,
    REJECTED_CODES,
    Reason,
    SendResult,
    put_receipt,
    send,
    sleep_or_raise_busy,
)
from ..errors import (
    AlreadyCountedError,
    CounterRetiredError,
    InvalidInputError,
    LimitReachedError,
    PayloadTooLargeError,
    StoreBusyError,
    WriteInvalidError,
    WriteRefusedError,
)
from . import holds, periods, receipts, tallies
from .receipts import (
    VISIBLE_NOW,
    VISIBLE_SOON,
    Body,
    ChangeAnswer,
    ReceiptDraft,
    ReceiptKey,
    count_once,
    raise_if_counted,
    retired_error,
)
from .spilling import SpillPlan
from .tallies import Tally, minute_now

RECEIPT_TARGET = "changes"  # in the receipt's name, where other operations have an id
_NAMES = frozenset({"counter", "id", "amount"})


@dataclass(frozen=True)
class TeamWrites:
    """What a team adds to the transaction."""

    writes: Sequence[Write] = ()
    """Writes of its own items, which return the old item if their condition fails."""
    answer: Any = None
    """What the receipt remembers, as JSON has it: a replay gives it back."""
    payload: Any = None
    """What must be the same when the key is sent again, beside the sums."""


@dataclass
class Batch:
    """What is counted together."""

    entries: int
    sums: dict[Tally, int] = field(default_factory=dict)
    first_entry: dict[Tally, int] = field(default_factory=dict)
    """The place of the first entry of each tally."""
    team: TeamWrites | None = None
    is_void: bool = False
    """Whether earlier changes are taken back (voids.py), in the periods in which they were counted."""
    may_use_debt: bool = False
    """Whether they were counted elsewhere: as what a commit takes, they may go beyond a limit by the counter's debt."""

    @property
    def payload(self) -> dict[str, Any]:
        """What must be the same when the key is sent again: the sums, whatever the order of the entries, or the
        period. A team's own writes are no part of it: a retry makes them again, with another time or id in them."""
        sent = {
            Tally(tally.counter, periods.answer_members(tally.id)["id"]): amount for tally, amount in self.sums.items()
        }
        sums = tallies.by_counter(sent)
        return dict(sums) if self.team is None else {"changes": sums, "payload": self.team.payload}

    def problem_members(self, tally: Tally) -> dict[str, str | int]:
        """The members of a problem that name the entry at fault; what is taken back has no entries."""
        entry = {} if self.is_void else {"entry": self.first_entry[tally]}
        return {**entry, "counter": tally.counter.name, **periods.answer_members(tally.id)}


def parse_batch(
    entries: Sequence[Mapping[str, object]], counters: Mapping[str, Counter], now_s: float, *, soon: bool
) -> Batch:
    """The changes, checked and folded; of counters with periods, in the period of now. `soon`: the caller wants all of
    them rolled up.

    Raises InvalidInputError, which names the entry at fault; PayloadTooLargeError for more tallies than TALLIES_MAX.
    """
    changes = Batch(len(entries))
    for place, entry in enumerate(entries):
        at = f"changes[{place}]"
        unknown = sorted(entry.keys() - _NAMES)
        if unknown:
            raise InvalidInputError(f"There is no field {unknown[0][:64]!r} in {at}.", field=at)
        counter = _counter(entry.get("counter"), f"{at}.counter", counters, soon=soon)
        id_ = fields.identifier(entry.get("id"), f"{at}.id")
        tally = Tally(counter, periods.tally_id(counter, id_, now_s))
        amount = fields.amount(entry["amount"], f"{at}.amount") if "amount" in entry else None
        by = fields.amount_or_step(counter, amount, f"{at}.amount")
        changes.sums[tally] = changes.sums.get(tally, 0) + by
        changes.first_entry.setdefault(tally, place)
    if len(changes.sums) > fields.TALLIES_MAX:
        raise PayloadTooLargeError(f"These are changes of more than {fields.TALLIES_MAX} tallies.", field="changes")
    return changes


def _counter(name: object, at: str, counters: Mapping[str, Counter], *, soon: bool) -> Counter:
    counter = counters.get(name) if isinstance(name, str) else None
    if counter is None:
        raise InvalidInputError(f"{at} must name a counter of this deployment.", field=at)
    if not counter.is_batchable:
        refusal = fields.counts_otherwise(counter, CHANGES)
        why = refusal.detail if refusal else f"{counter.name} is changed alone: its changes are numbered."
        raise InvalidInputError(f"{at}: {why}", field=at)
    if soon and not counter.may_roll_up:
        detail = f"{at}: a change of {counter.name} is visible now: it has limits, or a version."
        raise InvalidInputError(detail, field=at)
    return counter


def count(
    call: Call,
    changes: Batch,
    *,
    operation: str,
    key: str,
    soon: bool,
    days: int | None = None,
    imported_day: int | None = None,
) -> ChangeAnswer:
    """Make all of the changes once, or none of them. The receipt lives for `days`, or as long as the counters say.
    `imported_day`: of an import.

    The answer is `{"counted","changes","tallies","visible"}`: how many changes, of how many tallies, and whether reads
    show all of them now. Raises LimitReachedError, which names an entry and how much is left; it leaves no receipt.
    Raises CounterRetiredError, KeyReusedError, StoreBusyError, and what botocore's errors map to. With own writes the
    answer may have `answer`, and a refusal may be WriteRefusedError or WriteInvalidError.
    """
    if days is None:
        days = -(-max(receipts.lifetime_s(call.store, tally.counter) for tally in changes.sums) // receipts.DAY_S)
    keyed = ReceiptKey(operation, RECEIPT_TARGET, key, changes.payload, days, imported_day)
    return count_once(call, keyed, lambda stamp: _commit(call, changes, stamp, soon=soon))


def _commit(call: Call, changes: Batch, stamp: ReceiptDraft, *, soon: bool) -> Body:
    _refuse_retired(call, changes, stamp)
    asked = set(changes.sums) if soon else set[Tally]()
    spilling = SpillPlan.at_start(call, changes.sums.keys() - asked)
    spilling.spilled |= asked
    while True:
        if call.store.clock() >= call.deadline_s:
            raise StoreBusyError("There was no time left.")
        body = _attempt(call, changes, stamp, spilling)
        if body is not None:
            observe.count(observe.SPILLED, len(spilling.spilled - asked))
            return body


def _attempt(call: Call, changes: Batch, stamp: ReceiptDraft, spilling: SpillPlan) -> Body | None:
    """Send the receipt and the writes once; the body that the receipt has, or None if another attempt may commit."""
    at, body = minute_now(call), {"counted": True, "changes": changes.entries, "tallies": len(changes.sums)}
    moved = {tally: amount for tally, amount in changes.sums.items() if not spilling.is_pending(tally)}
    waiting = {tally: amount for tally, amount in changes.sums.items() if spilling.is_pending(tally)}
    body |= VISIBLE_SOON if waiting else VISIBLE_NOW
    own = changes.team or TeamWrites()
    if own.answer is not None:
        body["answer"] = own.answer
    receipt = (stamp.pending_receipt if waiting else stamp.receipt)(
        call, body, **tallies.batch_receipt_facts(moved, waiting, at)
    )
    if not moved and not own.writes:
        put_receipt(call, receipt)
        return body
    updates = spilling.updates(moved, at, used=changes.may_use_debt)
    sent = send(call.store.client, [receipt, *updates, *own.writes], retries=call.retries)
    if sent.committed:
        spilling.close_breakers(moved)
        return body
    if sent.codes[0] == CONDITION_FAILED:
        raise AlreadyCountedError(sent.reasons[0].item or {})
    if not sent.is_busy:
        _refuse_team_write(sent.reasons[1 + len(moved) :], all_of=sent.reasons)
        if sent.condition_failed:
            if not _make_room(call, changes, moved, sent):
                sleep_or_raise_busy(spilling.retries)
            return None
    spilling.retry(moved, sent)
    return None


def _refuse_team_write(reasons: Sequence[Reason], *, all_of: Sequence[Reason]) -> None:
    """Raise for the first own write that is at fault. It comes before any tally: no hold that is given back would help.

    Raises WriteRefusedError for a condition that failed, WriteInvalidError for what DynamoDB does not accept.
    """
    for place, reason in enumerate(reasons):
        if reason.code == CONDITION_FAILED:
            raise WriteRefusedError(
                f"The condition of writes[{place}] failed. Nothing was counted.", write=place, item=reason.item
            )
    for place, reason in enumerate(reasons):
        if reason.code in REJECTED_CODES:
            whole = all(one.code == reason.code for one in all_of)
            at = "writes" if whole else f"writes[{place}]"
            raise WriteInvalidError(f"DynamoDB does not accept {at}: {reason.message}", field=at)


def _make_room(call: Call, changes: Batch, moved: Mapping[Tally, int], sent: SendResult) -> bool:
    """Make room for the changes that were refused. Raises LimitReachedError if there is none for the first one.

    False: it made none, because those were judged by limits that their tallies have not.
    """
    room = False
    for tally, old in zip(moved, sent.old_items()[1:], strict=False):
        counter, amount = tally.counter, moved[tally]
        debt, stays = counter.debt if changes.may_use_debt else 0, changes.is_void or changes.may_use_debt
        error = (
            tallies.limit_error_after(call, counter, tally.id, old, amount, debt, stays=stays)
            if old is not None
            else None
        )
        if error is None:
            continue
        if not holds.release_expired_for(call, counter, tally.id, amount, error.left or 0):
            named = changes.problem_members(tally)
            place = "" if changes.is_void else f"changes[{named['entry']}], "
            detail = f"{place}{counter.name} {named['id']}: {error.detail}"
            raise LimitReachedError(detail, **named, **error.members)
        room = True
    return room


def _refuse_retired(call: Call, changes: Batch, stamp: ReceiptDraft) -> None:
    """Raises CounterRetiredError, or AlreadyCountedError if the changes were counted before that."""
    for tally in changes.sums:
        if tally.counter.retired:
            raise_if_counted(call, stamp)
            raise CounterRetiredError(retired_error(tally.counter).detail, **changes.problem_members(tally))
