"""Changes one counter: counts, gives numbers out, spills, or sets the number.

A transaction returns no values. So a numbered counter and a compare-and-set read the number and commit the next number,
on condition that the number has not moved. Each write increments the version (`ETag`). So the condition also fails if
the number moved, and then moved back. These counters have one shard, and their callers take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from .. import observe
from ..counter import Counter
from ..dynamo.client import Call
from ..dynamo.transactions import Write, commit_change, put_receipt
from ..errors import (
    ChangeRefusedError,
    HotTallyError,
    KeyReusedError,
    LimitReachedError,
    PreconditionFailedError,
    StoreBusyError,
)
from . import holds, limits, tallies
from .limits import Limits
from .receipts import (
    VISIBLE_NOW,
    VISIBLE_SOON,
    Body,
    ChangeAnswer,
    ReceiptDraft,
    ReceiptKey,
    count_once,
    raise_if_counted,
    refuse_retired,
)
from .tallies import State, minute_now

NUMBER_ATTEMPTS_MAX = 64  # callers take numbers one by one, so the last of 50 concurrent callers fails 49 times
NUMBER_BACKOFF_MAX_S = 0.080  # short, because after each failure one caller less competes for numbers


class Increment(NamedTuple):
    """One intended change of a tally. `operation`, `key`: part of the receipt's name. `body`: members of the answer."""

    counter: Counter
    id: str
    """The stored id of the tally, with its period. The period is chosen once, so no attempt moves another period."""

    amount: int
    operation: str
    key: str
    body: Body
    receipt_target: str | None = None
    """The target in the name of the receipt: `counter/id` if the operation serves many counters; None: the id."""
    receipt_days: int | None = None
    """For how many days the receipt lives; None: as the counter says."""
    used: bool = False
    """Whether the amount was used before this call. The change may then exceed the limit by the counter's `debt`."""


def count(call: Call, change: Increment) -> ChangeAnswer:
    """Makes the change once.

    A change that is visible now is one transaction of receipt and number: 4 WCU, one round trip. A change that is
    visible soon, or that spills, writes only the receipt for 1 WCU, and the rollup adds the change to the tally. If the
    counter is numbered, the tally is read first. The body says whether the change is `visible` now or soon.

    If the limit refuses an amount that was `used`, and the release of expired holds makes no room, the amount may go
    beyond the limit by the `debt`, and the body says `over`.

    Raises KeyReusedError if the key was used for another amount. Raises LimitReachedError at a floor or ceiling, which
    leaves no receipt. Raises CounterRetiredError, and the errors of transactions.commit_change.
    """
    counter, id_, amount = change.counter, change.id, change.amount
    move = _take_number if counter.numbered else _spill if counter.is_rolled_up else _add
    target = id_ if change.receipt_target is None else change.receipt_target
    days = change.receipt_days or counter.receipt_days
    payload = {"amount": amount, **({"used": True} if change.used else {})}
    receipt_key = ReceiptKey(change.operation, target, change.key, payload, days)
    commit = partial(refuse_retired, call, counter) if counter.retired else partial(move, call, change)
    attempt = partial(count_once, call, receipt_key, commit)
    try:
        return holds.retry_with_room(call, counter, id_, amount, attempt) if counter.may_settle_holds else attempt()
    except LimitReachedError:
        if not (change.used and counter.debt):  # a counter with a debt has limits, so its `move` is `_add`
            raise
        over_limit = change._replace(body={**change.body, "over": True})
        return count_once(call, receipt_key, partial(_add, call, over_limit, debt=counter.debt))


def _add(call: Call, change: Increment, draft: ReceiptDraft, *, debt: int = 0) -> Body:
    counter, minute = change.counter, minute_now(call)
    body = {**change.body, **VISIBLE_NOW}
    if counter.unique:  # most visitors were counted before, and a read costs less than a transaction that fails
        raise_if_counted(call, draft)

    def writes(shard: int) -> list[Write]:
        return [{"Update": tallies.add_write(call, counter, change.id, shard, change.amount, minute, debt=debt)}]

    try:
        receipt = draft.receipt(call, body, **tallies.receipt_facts(counter, change.id, change.amount, minute))
        tallies.commit_within_limits(
            call, counter, change.id, change.amount, writes, receipt, may_spill=counter.may_spill, debt=debt
        )
    except HotTallyError:
        body = _spill(call, change, draft)
        observe.count(observe.SPILLED)
    return body


def _spill(call: Call, change: Increment, draft: ReceiptDraft) -> Body:
    """Writes only the receipt. The rollup adds the change to the tally."""
    body = {**change.body, **VISIBLE_SOON}
    minute = minute_now(call)
    if not call.caller:  # for privacy, only the day; consumers book a spilled change on the minute of its record
        minute -= minute % tallies.MINUTES_PER_DAY
    facts = tallies.receipt_facts(change.counter, change.id, change.amount, minute)
    put_receipt(call, draft.pending_receipt(call, body, **facts))
    return body


def _take_number(call: Call, change: Increment, draft: ReceiptDraft) -> Body:
    """Commits the next number on condition that the tally has not moved. If another call was first, tries the next."""
    counter, state = change.counter, tallies.read_state(call, change.counter, change.id)
    retries = call.retries(attempts_max=NUMBER_ATTEMPTS_MAX, backoff_max_s=NUMBER_BACKOFF_MAX_S)
    bounds = limits.cached_limits(call, counter, change.id)
    while True:
        number = state.value + change.amount
        if not bounds.fits(number):
            raise_if_counted(call, draft)  # after the read of the number, so a retry of the last number gets its answer
            raise tallies.limit_error(counter, bounds, change.id, state.value, change.amount)
        last = not bounds.fits(number + change.amount)
        body, minute = {**change.body, "number": number, "last": last, **VISIBLE_NOW}, minute_now(call)
        write: Write = {"Update": tallies.assign_write(call, counter, change.id, state, number, minute, bounds)}
        receipt = draft.receipt(call, body, **tallies.receipt_facts(counter, change.id, change.amount, minute))
        try:
            commit_change(call, counter, change.id, _same_writes(write), receipt)
            return body
        except ChangeRefusedError as refused:
            state = tallies.state_of(counter, refused.old_items[0] or {})
        if not retries.sleep_before_retry():
            raise StoreBusyError("Other calls took each number first.")


def set_value(
    call: Call,
    counter: Counter,
    id_: str,
    value: int,
    version: int,
    *,
    operation: str,
    key: str | None,
    days: int | None = None,
    imported_day: int | None = None,
    debt: int = 0,
) -> ChangeAnswer:
    """Sets the number to `value` if the tally still has `version` (0: the tally has no number).

    Reads the tally first, because the receipt says by how much the number moved. Without a key the version is the key,
    so a second equal request is a replay. A numbered counter moves forward only, because it must not give a number out
    twice; before its first change it may be set to any value. `days`: for how many days the receipt lives; None: as the
    counter says. `imported_day`: the day since 1970 that an import belongs to. `debt`: how far an import may go beyond
    a limit. Raises PreconditionFailedError for another version, LimitReachedError for a value beyond the limits or
    behind the numbers that were given out, KeyReusedError, CounterRetiredError.
    """
    if not (counter.retired or counter.limit_overrides):  # declared limits need no read; otherwise `_assign` refuses
        _refuse_beyond_limits(counter, value, limits.cached_limits(call, counter, id_).with_debt(debt))
    change = partial(_assign, call, counter, id_, value, version, debt)
    payload = {"value": value, "version": version}
    target, key_or_version = f"{counter.name}/{id_}", key or f"version-{version}"
    receipt_key = ReceiptKey(operation, target, key_or_version, payload, days or counter.receipt_days, imported_day)
    try:
        return count_once(call, receipt_key, change)
    except KeyReusedError:
        if key is not None:
            raise
        present = tallies.read_state(call, counter, id_).version
        detail = f"You have set version {version} to another value. The counter is at version {present} now."
        raise PreconditionFailedError(detail, version=present) from None


def _assign(call: Call, counter: Counter, id_: str, value: int, version: int, debt: int, draft: ReceiptDraft) -> Body:
    """Commits the number with its receipt, on condition that the tally has `version`. Returns the receipt's body."""
    if counter.retired:
        refuse_retired(call, counter, draft)
    state, minute = tallies.read_state(call, counter, id_), minute_now(call)
    # An override gives its item a version, but no number. Version 0 sets this item, too.
    if state.version != version and (version or state.has_number):
        raise_if_counted(call, draft)  # after the read of the state, so a retry gets its first answer
        raise _stale_version_error(state)
    is_upward = (counter.delta or 0) > 0
    if counter.numbered and state.version and (value < state.value if is_upward else value > state.value):
        # With this value, the counter would give a number out a second time.
        direction, side = ("up", "more") if is_upward else ("down", "less")
        detail = f"{counter.name} has given out its numbers {direction} to {state.value}. Nothing was counted."
        raise LimitReachedError(f"{detail} Set {state.value} or {side}.", field="value")
    bounds = limits.read_limits(call, counter, id_).with_debt(debt)
    _refuse_beyond_limits(counter, value, bounds)
    body = {"counter": counter.name, "id": id_, "value": value, "version": state.version + 1}
    write: Write = {"Update": tallies.assign_write(call, counter, id_, state, value, minute, bounds)}
    receipt = draft.receipt(call, body, **tallies.receipt_facts(counter, id_, value - state.value, minute))
    try:
        commit_change(call, counter, id_, _same_writes(write), receipt)
    except ChangeRefusedError as refused:
        raise _stale_version_error(tallies.state_of(counter, refused.old_items[0] or {})) from None
    return body


def _refuse_beyond_limits(counter: Counter, value: int, bounds: Limits) -> None:
    if not bounds.fits(value):
        detail = f"{value} is not within the limits of {counter.name}. Nothing was counted."
        raise LimitReachedError(detail, field="value")


def _same_writes(write: Write) -> Callable[[int], list[Write]]:
    return lambda _: [write]


def _stale_version_error(present: State) -> PreconditionFailedError:
    return PreconditionFailedError(f"The counter is at version {present.version} now.", version=present.version)
