"""Holds: an amount of a stock or a quota that is taken for a while, then kept or given back."""

from collections.abc import Sequence
from typing import Annotated, Literal, NotRequired, TypedDict

from tally import fields
from tally.api import needs
from tally.api.kinds import (
    HELD_AMOUNT,
    HOLD,
    HOLD_EXAMPLE,
    NEW_AMOUNT,
    NEW_TTL,
    TTL,
    USED_AMOUNT,
    DeclaredCounter,
    Id,
    Key,
)
from tally.api.operation import SELDOM, WRITES, Access, Answer, Call, operation
from tally.api.shapes import Count, PeriodName, Seconds
from tally.counter import CHANGES, Counter
from tally.counting import changing, holds, periods, settling
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
    """The amount is taken, and held until `expires_at`. Only a replay finds another `state` than `held`."""

    counter: str
    id: str
    period: NotRequired[PeriodName]
    hold: str
    amount: Annotated[int, {"minimum": 1}]
    expires_at: Seconds
    state: Literal["held", "committed", "released", "expired", "voided"]


class Settled(TypedDict):
    """The state of a hold, and whether this request changed it."""

    counter: str
    id: str
    hold: str
    state: Literal["committed", "released", "voided"]
    amount: NotRequired[Annotated[Count, {"description": "What a commit took in all, or a void gave back."}]]
    changed: bool


def _refusal_of_hold(counter: Counter) -> CallerError | None:
    """Why nothing of this counter can be held."""
    if counter.takes_holds:
        return None
    if refusal := fields.counts_otherwise(counter, CHANGES):
        return refusal
    why = "a floor and a ceiling, neither of them, or a fixed step"
    return InvalidInputError(f"{counter.name} has {why}: nothing of it can be held.", field="counter")


def _refusal_of_settling(counter: Counter) -> CallerError | None:
    """Why this counter has no holds to settle. No limit or step that came later keeps anybody from settling a hold."""
    return None if counter.may_settle_holds else _refusal_of_hold(counter)


def _needs_to_change_hold(counters: Sequence[Counter]) -> needs.Needs:
    """The hold is read. Expired ones may make room for it first, by writes as its own."""
    return needs.to_release_expired_holds(counters) | needs.on_ledger({"HOLDS#": ["GetItem"]})


_STOCK = {"counter": "stock", "id": "7c20"}


@operation(
    "POST /counters/{counter}/{id}/holds",
    access=Access.WRITE,
    throttle=WRITES,
    refusal_for=_refusal_of_hold,
    needs=lambda counters: _needs_to_change_hold(counters) | needs.to_find_receipt_before_refusal(counters),
    raises=[NotFoundError, LimitReachedError, CounterRetiredError],
    example={**_STOCK, "hold": HOLD_EXAMPLE, "amount": 2, "expires_at": 1785542401, "state": "held"},
    success_statuses=[201],
    changes_numbers=True,
    smoke_statuses=[201, 409],
)
def hold(
    call: Call,
    *,
    counter: DeclaredCounter,
    id: Id,
    amount: Annotated[int, HELD_AMOUNT],
    ttl_s: Annotated[int, TTL],
    idempotency_key: Key,
) -> Answer[Held]:
    """Take an amount and hold it

    Before Tally refuses, expired holds give back their amounts. A replay answers the `state` that the hold has now: one
    that is released or has expired holds nothing any more, and another key takes another hold. A hold of a
    counter with periods stays in the period in which it was taken.
    """
    tally = periods.tally_id(counter, id, clock.now_s())
    body, replayed = holds.place(call, counter, tally, amount, ttl_s, operation="hold", key=idempotency_key)
    return Answer(body, status=201, replayed=replayed)


@operation(
    "PATCH /counters/{counter}/{id}/holds/{hold}",
    access=Access.WRITE,
    throttle=WRITES,
    refusal_for=_refusal_of_hold,
    needs=lambda counters: _needs_to_change_hold(counters) | needs.FIND_RECEIPT,
    raises=[NotFoundError, HoldSettledError, LimitReachedError, CounterRetiredError],
    example={**_STOCK, "hold": HOLD_EXAMPLE, "amount": 3, "expires_at": 1785543001, "state": "held"},
    changes_numbers=True,
    smoke_statuses=[404],
)
def change_hold(
    call: Call,
    *,
    counter: DeclaredCounter,
    id: Id,
    hold: Annotated[str, HOLD],
    amount: Annotated[int, NEW_AMOUNT] | None = None,
    ttl_s: Annotated[int, NEW_TTL] | None = None,
    idempotency_key: Key,
) -> Answer[Held]:
    """Change the amount of a hold, or its time

    Send one of them, or both. More is taken, and less is given back, in one transaction with the new time. If there is
    no room (409), the hold stays as it is. A hold that has ended cannot be changed (409), and no hold lasts longer than
    seven days after it was taken. A replay changes nothing, and answers the `state` that the hold has now.
    """
    if amount is None and ttl_s is None:
        raise InvalidInputError("amount and ttl_s are missing. Send one of them, or both.", field="amount")
    body, replayed = changing.change_hold(
        call, counter, id, hold, amount, ttl_s, operation="change_hold", key=idempotency_key
    )
    return Answer(body, replayed=replayed)


@operation(
    "POST /counters/{counter}/{id}/holds/{hold}/commit",
    access=Access.WRITE,
    throttle=WRITES,
    refusal_for=_refusal_of_settling,
    needs=_needs_to_change_hold,
    raises=[NotFoundError, HoldSettledError, LimitReachedError],
    example={**_STOCK, "hold": HOLD_EXAMPLE, "state": "committed", "amount": 2, "changed": True},
    changes_numbers=True,
    smoke_statuses=[404],
)
def commit_hold(
    call: Call,
    *,
    counter: DeclaredCounter,
    id: Id,
    hold: Annotated[str, HOLD],
    amount: Annotated[int, USED_AMOUNT] | None = None,
) -> Answer[Settled]:
    """Keep what a hold took, or what was really used

    Less than was held: the rest is given back. More: it is taken, too, within the counter's limit and its `debt`; if
    there is no room (409), the hold stays as it is. Committing twice changes nothing; at another amount it is refused.

    A hold that has expired is committed at an `amount` only, within a day. The amount is taken then, in the period of
    the hold, within the same limit and `debt`.
    """
    return Answer(settling.settle(call, counter, id, hold, holds.COMMITTED, amount))


@operation(
    "DELETE /counters/{counter}/{id}/holds/{hold}",
    access=Access.WRITE,
    throttle=WRITES,
    refusal_for=_refusal_of_settling,
    needs=_needs_to_change_hold,
    raises=[NotFoundError, HoldSettledError, LimitReachedError],
    example={**_STOCK, "hold": HOLD_EXAMPLE, "state": "released", "changed": True},
    changes_numbers=True,
    smoke_statuses=[404],
)
def release_hold(call: Call, *, counter: DeclaredCounter, id: Id, hold: Annotated[str, HOLD]) -> Answer[Settled]:
    """Give back the amount of a hold

    Releasing twice changes nothing. After that the hold cannot be committed, nor if it had expired before.
    """
    return Answer(settling.settle(call, counter, id, hold, holds.RELEASED))


@operation(
    "POST /counters/{counter}/{id}/holds/{hold}/voids",
    access=Access.WRITE,
    throttle=SELDOM,
    refusal_for=_refusal_of_settling,
    needs=lambda counters: _needs_to_change_hold(counters) | needs.FIND_RECEIPT | needs.MARK_RECEIPT,
    raises=[NotFoundError, HoldSettledError, LimitReachedError, CounterRetiredError],
    example={**_STOCK, "hold": HOLD_EXAMPLE, "state": "voided", "amount": 2, "changed": True},
    changes_numbers=True,
    smoke_statuses=[404],
)
def void_hold(call: Call, *, counter: DeclaredCounter, id: Id, hold: Annotated[str, HOLD]) -> Answer[Settled]:
    """Void a committed hold

    The whole `amount` of the commit, once, in the period of the hold. Tally knows the hold for eight days after it was
    taken; with `receipt_days`, for seven days and so many more. A hold that is not committed is refused (409).
    """
    return Answer(settling.settle(call, counter, id, hold, holds.VOIDED))
