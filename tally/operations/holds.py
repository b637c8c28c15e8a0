"""Holds: an amount of a stock or a quota that is taken for a while, then committed or released."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal, NotRequired, TypedDict

from tally import fields
from tally.api import kinds, needs
from tally.api.kinds import DeclaredCounter, Id, Key
from tally.api.operation import RATE_100_PER_S, WRITES, Access, Answer, Call, operation
from tally.api.shapes import Count, PeriodName, Seconds
from tally.counter import CHANGES, Counter
from tally.counting import changing, hold_items, holds, periods, settling
from tally.dynamo import clock
from tally.errors import (
    CallerError,
    CounterRetiredError,
    HoldSettledError,
    InvalidInputError,
    LimitReachedError,
    NotFoundError,
)


class Held(TypedDict):
    """The amount is taken, and held until `expires_at`. In a replay, `state` is the present state."""

    counter: str
    id: str
    period: NotRequired[PeriodName]
    hold: str
    amount: Annotated[int, {"minimum": 1}]
    expires_at: Seconds
    state: Literal["held", "committed", "released", "expired", "voided"]


class Settled(TypedDict):
    """The state of a hold, and whether this request changed the state."""

    counter: str
    id: str
    hold: str
    state: Literal["committed", "released", "voided"]
    amount: NotRequired[
        Annotated[Count, {"description": "The whole amount that a commit took, or that a void gave back."}]
    ]
    changed: bool


def _refusal_of_hold(counter: Counter) -> CallerError | None:
    """Returns why nothing of this counter can be held; None if holds can be placed."""
    if counter.takes_holds:
        return None
    if refusal := fields.refusal_unless_counts(counter, CHANGES):
        return refusal
    why = "a hold needs a floor or a ceiling, not both, and no `delta`"
    return InvalidInputError(f"{counter.name} takes no holds: {why}.", field="counter")


def _refusal_of_settling(counter: Counter) -> CallerError | None:
    """Returns why this counter has no holds to settle; None if it may have holds, also under an earlier declaration."""
    return None if counter.may_settle_holds else _refusal_of_hold(counter)


def _needs_to_change_hold(counters: Sequence[Counter]) -> needs.Needs:
    """Returns the access that a change of a hold needs. The change may first release expired holds."""
    return needs.to_release_expired_holds(counters) | needs.on_ledger({"HOLDS#": ["GetItem"]})


HoldId = Annotated[str, kinds.HOLD]
_STOCK = {"counter": "stock", "id": "7c20"}
_settling_operation = partial(
    operation, access=Access.WRITE, refusal_for=_refusal_of_settling, changes_numbers=True, smoke_statuses=[404]
)


@operation(
    "POST /counters/{counter}/{id}/holds",
    access=Access.WRITE,
    throttle=WRITES,
    refusal_for=_refusal_of_hold,
    needs=lambda counters: _needs_to_change_hold(counters) | needs.to_find_receipt_before_refusal(counters),
    raises=[NotFoundError, LimitReachedError, CounterRetiredError],
    example={**_STOCK, "hold": kinds.HOLD_EXAMPLE, "amount": 2, "expires_at": 1785542401, "state": "held"},
    success_statuses=[201],
    changes_numbers=True,
    smoke_statuses=[201, 409],  # 409: nothing is left to hold
)
def hold(
    call: Call,
    *,
    counter: DeclaredCounter,
    id: Id,
    amount: Annotated[int, kinds.HELD_AMOUNT],
    ttl_s: Annotated[int, kinds.TTL],
    idempotency_key: Key,
) -> Answer[Held]:
    """Take an amount and hold it

    Before Tally refuses, it releases expired holds. A replay answers the present `state` of the hold. If the hold was
    released or has expired, send another key to take the amount once more. A hold of a counter with periods stays in
    the period in which it was taken.
    """
    tally_id = periods.tally_id(counter, id, clock.now_s())
    body, replayed = holds.place(call, counter, tally_id, amount, ttl_s, operation="hold", key=idempotency_key)
    return Answer(body, status=201, replayed=replayed)


@operation(
    "PATCH /counters/{counter}/{id}/holds/{hold}",
    access=Access.WRITE,
    throttle=WRITES,
    refusal_for=_refusal_of_hold,
    needs=lambda counters: _needs_to_change_hold(counters) | needs.FIND_RECEIPT,
    raises=[NotFoundError, HoldSettledError, LimitReachedError, CounterRetiredError],
    example={**_STOCK, "hold": kinds.HOLD_EXAMPLE, "amount": 3, "expires_at": 1785543001, "state": "held"},
    changes_numbers=True,
    smoke_statuses=[404],  # no hold has the sample's id
)
def change_hold(
    call: Call,
    *,
    counter: DeclaredCounter,
    id: Id,
    hold: HoldId,
    amount: Annotated[int, kinds.NEW_AMOUNT] | None = None,
    ttl_s: Annotated[int, kinds.NEW_TTL] | None = None,
    idempotency_key: Key,
) -> Answer[Held]:
    """Change the amount of a hold, or when it expires

    Send `amount`, `ttl_s` or both. Tally takes or gives back the difference, and stores the new `expires_at` in the
    same transaction. If the difference does not fit (409), the hold stays as it is. A hold that has ended cannot be
    changed (409). No hold lasts longer than seven days after it was taken. A replay changes nothing, and answers the
    present `state` of the hold.
    """
    if amount is None and ttl_s is None:
        raise InvalidInputError("amount and ttl_s are missing. Send one of them, or both.", field="amount")
    key = idempotency_key
    body, replayed = changing.change_hold(call, counter, id, hold, amount, ttl_s, operation="change_hold", key=key)
    return Answer(body, replayed=replayed)


@_settling_operation(
    "POST /counters/{counter}/{id}/holds/{hold}/commit",
    throttle=WRITES,
    needs=_needs_to_change_hold,
    raises=[NotFoundError, HoldSettledError, LimitReachedError],
    example={**_STOCK, "hold": kinds.HOLD_EXAMPLE, "state": "committed", "amount": 2, "changed": True},
)
def commit_hold(
    call: Call,
    *,
    counter: DeclaredCounter,
    id: Id,
    hold: HoldId,
    amount: Annotated[int, kinds.USED_AMOUNT] | None = None,
) -> Answer[Settled]:
    """Commit a hold, at the held amount or at the used amount

    If less was used than was held, Tally gives the rest back. If more was used, Tally takes the difference, within the
    counter's limit and its `debt`. If the difference does not fit (409), the hold stays. Committing twice changes
    nothing, and a second commit at another amount is refused.

    To commit a hold that has expired, send an `amount`. Tally takes this amount in the period of the hold, within the
    same limit and `debt`. Tally knows a hold for 7 days after it was taken, and then for as long as the counter's
    receipts live.
    """
    return Answer(settling.settle(call, counter, id, hold, hold_items.COMMITTED, amount))


@_settling_operation(
    "DELETE /counters/{counter}/{id}/holds/{hold}",
    throttle=WRITES,
    needs=_needs_to_change_hold,
    raises=[NotFoundError, HoldSettledError, LimitReachedError],
    example={**_STOCK, "hold": kinds.HOLD_EXAMPLE, "state": "released", "changed": True},
)
def release_hold(call: Call, *, counter: DeclaredCounter, id: Id, hold: HoldId) -> Answer[Settled]:
    """Release a hold, which gives its amount back

    Releasing twice changes nothing. A released hold cannot be committed, not even with an `amount`.
    """
    return Answer(settling.settle(call, counter, id, hold, hold_items.RELEASED))


@_settling_operation(
    "POST /counters/{counter}/{id}/holds/{hold}/voids",
    throttle=RATE_100_PER_S,
    needs=lambda counters: _needs_to_change_hold(counters) | needs.FIND_RECEIPT | needs.MARK_RECEIPT,
    raises=[NotFoundError, HoldSettledError, LimitReachedError, CounterRetiredError],
    example={**_STOCK, "hold": kinds.HOLD_EXAMPLE, "state": "voided", "amount": 2, "changed": True},
)
def void_hold(call: Call, *, counter: DeclaredCounter, id: Id, hold: HoldId) -> Answer[Settled]:
    """Void a committed hold

    Tally gives the whole `amount` of the commit back, once, in the period of the hold. Tally knows a hold for 7 days
    after it was taken, and then for as long as the counter's receipts live. Only a committed hold can be voided (409).
    """
    return Answer(settling.settle(call, counter, id, hold, hold_items.VOIDED))
