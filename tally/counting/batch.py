"""Many changes under one key: all changes count, or no change counts.

The changes of one tally are summed up, and one write adds the sum. Limits judge the sum. One transaction has the
receipt first, and then a write for each tally. But a *pending* tally has no write: the rollup adds its sum, because its
counter is always visible soon, the caller asks for `soon`, or the tally spills (spilling.py). The receipt lists the
tallies that its transaction moves, and the pending tallies. If all tallies are pending, only the receipt is written.

A team's function may add writes (tally/transact.py), which follow the tallies in the same transaction.
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

RECEIPT_TARGET = "changes"  # the target in the name of a batch's receipt, where other operations have an id
_ENTRY_FIELDS = frozenset({"counter", "id", "amount"})


@dataclass(frozen=True)
class TeamWrites:
    """Writes that a team adds to the transaction of a batch, and what the receipt of the batch stores about them."""

    writes: Sequence[Write] = ()
    """Writes of the team's items, which return the old item if their condition fails."""
    answer: Any = None
    """A JSON value that the receipt stores, and that a replay returns."""
    payload: Any = None
    """A JSON value that must be the same when the key is sent again, as must the sums."""


@dataclass
class Batch:
    """Changes that are counted under one key. `entry_count`: how many changes the caller sent."""

    entry_count: int
    sums: dict[Tally, int] = field(default_factory=dict)
    first_entry: dict[Tally, int] = field(default_factory=dict)
    """By tally, the index of its first entry, which errors name."""
    team: TeamWrites | None = None
    is_void: bool = False
    """Whether the batch voids a change (voids.py), in the periods in which the change was counted."""
    may_use_debt: bool = False
    """Whether an import counts the amounts, in the tallies' periods. Then a sum may go beyond a limit by the debt."""

    @property
    def payload(self) -> dict[str, Any]:
        """The sums, which must be the same when the key is sent again. The order of entries and the period may differ.

        The payload does not have a team's writes: a retry makes new writes, perhaps with another time or id.
        """
        ids = [periods.answer_members(tally.id)["id"] for tally in self.sums]
        pairs = zip(self.sums.items(), ids, strict=True)
        sums = tallies.by_counter({Tally(tally.counter, id_): amount for (tally, amount), id_ in pairs})
        return dict(sums) if self.team is None else {"changes": sums, "payload": self.team.payload}

    def problem_members(self, tally: Tally) -> dict[str, str | int]:
        """Returns the members of an error response that name the entry at fault. A void has no entries."""
        entry = {} if self.is_void else {"entry": self.first_entry[tally]}
        return {**entry, "counter": tally.counter.name, **periods.answer_members(tally.id)}


def parse_batch(
    entries: Sequence[Mapping[str, object]], counters: Mapping[str, Counter], now_s: float, *, soon: bool
) -> Batch:
    """Checks the changes, and sums them up by tally in the current period. `soon`: the rollup adds all changes.

    Raises InvalidInputError, which names the entry at fault. Raises PayloadTooLargeError beyond TALLIES_MAX tallies.
    """
    batch = Batch(len(entries))
    for index, entry in enumerate(entries):
        path = f"changes[{index}]"
        unknown = sorted(entry.keys() - _ENTRY_FIELDS)
        if unknown:
            raise InvalidInputError(f"There is no field {unknown[0][:64]!r} in {path}.", field=path)
        counter = _find_counter(entry.get("counter"), f"{path}.counter", counters, soon=soon)
        id_ = fields.identifier(entry.get("id"), f"{path}.id")
        tally = Tally(counter, periods.tally_id(counter, id_, now_s))
        amount = fields.amount(entry["amount"], f"{path}.amount") if "amount" in entry else None
        moved_by = fields.amount_or_step(counter, amount, f"{path}.amount")
        batch.sums[tally] = batch.sums.get(tally, 0) + moved_by
        batch.first_entry.setdefault(tally, index)
    if len(batch.sums) > fields.TALLIES_MAX:
        raise PayloadTooLargeError(f"These are changes of more than {fields.TALLIES_MAX} tallies.", field="changes")
    return batch


def _find_counter(name: object, path: str, counters: Mapping[str, Counter], *, soon: bool) -> Counter:
    counter = counters.get(name) if isinstance(name, str) else None
    if counter is None:
        raise InvalidInputError(f"{path} must name a counter of this deployment.", field=path)
    if not counter.is_batchable:
        refusal = fields.refusal_unless_counts(counter, CHANGES)
        why = refusal.detail if refusal else f"{counter.name} is numbered, so it is not part of a batch."
        raise InvalidInputError(f"{path}: {why}", field=path)
    if soon and not counter.may_roll_up:
        detail = f"{path}: {counter.name} has limits or a version, so its changes are visible now, and not soon."
        raise InvalidInputError(detail, field=path)
    return counter


def count(
    call: Call,
    batch: Batch,
    *,
    operation: str,
    key: str,
    soon: bool,
    days: int | None = None,
    imported_day: int | None = None,
) -> ChangeAnswer:
    """Makes all of the changes once, or no change.

    `days`: how many days the receipt lives; None: as the counters say. `imported_day`: an import's day since 1970.

    The answer is `{"counted","changes","tallies","visible"}`: how many changes, of how many tallies, and whether reads
    show all changes now; with `answer`, if TeamWrites has it. If a limit refuses a sum, no receipt is written, and
    LimitReachedError names the entry and the amount that is left. Raises CounterRetiredError, KeyReusedError,
    StoreBusyError, what botocore's errors map to, and for a team's writes WriteRefusedError and WriteInvalidError.
    """
    if days is None:
        days = -(-max(receipts.lifetime_s(call.store, tally.counter) for tally in batch.sums) // receipts.DAY_S)

    def commit(draft: ReceiptDraft) -> Body:
        for tally in batch.sums:
            if tally.counter.retired:
                raise_if_counted(call, draft)
                raise CounterRetiredError(retired_error(tally.counter).detail, **batch.problem_members(tally))
        asked_soon = set(batch.sums) if soon else set[Tally]()
        spilling = SpillPlan.at_start(call, batch.sums.keys() - asked_soon)
        spilling.spilled |= asked_soon
        while call.store.clock() < call.deadline_s:
            body = _attempt(call, batch, draft, spilling)
            if body is not None:
                observe.count(observe.SPILLED, len(spilling.spilled - asked_soon))
                return body
        raise StoreBusyError("There was no time left.")

    receipt_key = ReceiptKey(operation, RECEIPT_TARGET, key, batch.payload, days, imported_day)
    return count_once(call, receipt_key, commit)


def _attempt(call: Call, batch: Batch, draft: ReceiptDraft, spilling: SpillPlan) -> Body | None:
    """Sends the receipt and the writes once. Returns the receipt's body, or None if another attempt may commit.

    If the key has a receipt, raises AlreadyCountedError: the change that was counted may be why other conditions fail.
    Else, after a conflict or throttling, another attempt follows. A team's write is judged before the limits.
    """
    minute, body = minute_now(call), {"counted": True, "changes": batch.entry_count, "tallies": len(batch.sums)}
    moved = {tally: amount for tally, amount in batch.sums.items() if not spilling.is_pending(tally)}
    pending = {tally: amount for tally, amount in batch.sums.items() if spilling.is_pending(tally)}
    body |= VISIBLE_SOON if pending else VISIBLE_NOW
    team = batch.team or TeamWrites()
    if team.answer is not None:
        body["answer"] = team.answer
    make_receipt = draft.pending_receipt if pending else draft.receipt
    receipt = make_receipt(call, body, **tallies.batch_receipt_facts(moved, pending, minute))
    if not moved and not team.writes:
        put_receipt(call, receipt)
        return body
    updates = spilling.updates(moved, minute, may_use_debt=batch.may_use_debt)
    sent = send(call.store.client, [receipt, *updates, *team.writes], retries=call.retries)
    if sent.committed:
        spilling.close_breakers(moved)
        return body
    if sent.codes[0] == CONDITION_FAILED:
        raise AlreadyCountedError(sent.reasons[0].item or {})
    if not sent.is_busy:
        _refuse_team_write(sent.reasons[1 + len(moved) :], all_reasons=sent.reasons)
        if sent.condition_failed:
            if not _release_expired(call, batch, moved, sent):
                sleep_or_raise_busy(spilling.retries)
            return None
    spilling.retry(moved, sent)
    return None


def _refuse_team_write(reasons: Sequence[Reason], *, all_reasons: Sequence[Reason]) -> None:
    """Raises WriteRefusedError for the first write of the team whose condition failed, or WriteInvalidError for the
    first write that DynamoDB rejects. `all_reasons`: those of the receipt and the tallies, too. If all reasons have one
    code, DynamoDB rejected the whole request, and the error names no write."""
    for index, reason in enumerate(reasons):
        if reason.code == CONDITION_FAILED:
            raise WriteRefusedError(
                f"The condition of writes[{index}] failed. Nothing was counted.", write=index, item=reason.item
            )
    for index, reason in enumerate(reasons):
        if reason.code in REJECTED_CODES:
            names_no_write = all(other.code == reason.code for other in all_reasons)
            where = "writes" if names_no_write else f"writes[{index}]"
            raise WriteInvalidError(f"DynamoDB does not accept {where}: {reason.message}", field=where)


def _release_expired(call: Call, batch: Batch, moved: Mapping[Tally, int], sent: SendResult) -> bool:
    """Releases expired holds for each sum that its limit refused. Raises LimitReachedError for the first sum for which
    no hold was released. Returns False if the cached limits were stale, so the next attempt has the new limits."""
    has_released = False
    for tally, old in zip(moved, sent.old_items()[1:], strict=False):  # the receipt is first, a team's writes are last
        counter, amount = tally.counter, moved[tally]
        debt, same_period = counter.debt if batch.may_use_debt else 0, batch.is_void or batch.may_use_debt
        if old is None:
            continue
        error = tallies.limit_error_after(call, counter, tally.id, old, amount, debt, same_period=same_period)
        if error is None:
            continue
        if not holds.expire_due_for(call, counter, tally.id, amount, error.left or 0):
            named = batch.problem_members(tally)
            entry = "" if batch.is_void else f"changes[{named['entry']}], "
            detail = f"{entry}{counter.name} {named['id']}: {error.detail}"
            raise LimitReachedError(detail, **named, **error.members)
        has_released = True
    return has_released
