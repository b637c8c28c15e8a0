"""Settles holds: commits them at the amount that was used, releases or voids them, each once (holds.py has the
states)."""

from __future__ import annotations

from functools import partial

from ..counter import Counter
from ..dynamo import clock, items
from ..dynamo.client import Call
from ..dynamo.keys import Item
from ..errors import HoldSettledError, NotFoundError, StoreBusyError
from . import hold_items, holds, periods
from .hold_items import COMMITTED, EXPIRED, HELD, RELEASED, VOIDED
from .receipts import Body, retired_error

ATTEMPTS_MAX = 5  # a hold becomes overdue, expired, committed and voided. Another change in between is rare
_STATES_BEFORE = {COMMITTED: (HELD, EXPIRED), RELEASED: (HELD, EXPIRED), VOIDED: (COMMITTED,)}


def settle(call: Call, counter: Counter, id_: str, hold_id: str, state: str, amount: int | None = None) -> Body:
    """Commits a hold of the id (`COMMITTED`: `amount` stays taken; None: the amount that was held), releases it
    (`RELEASED`: gives the amount back), or voids it (`VOIDED`: gives back what its commit took), once.

    A commit of less than the held amount gives the rest back; a commit of more takes it. If the hold has expired, a
    commit at an amount takes the amount, for `kept` seconds after the hold's time. It always moves the period of the
    hold.

    Returns `{"counter","id","hold","state","changed"}`, and after a commit the `amount` that it took. To settle the
    same way twice changes nothing. Raises NotFoundError for an unknown hold, or a period that is not kept. Raises
    HoldSettledError for a hold that was settled another way, or has expired. Raises CounterRetiredError for a void. If
    there is no room, raises LimitReachedError and leaves the hold as it is.
    """
    assert state in _STATES_BEFORE, "no call makes a hold expire"
    assert amount is None or (state == COMMITTED and amount >= 0), "the operation checks it"
    body = {"counter": counter.name, "id": id_, "hold": hold_id, "state": state}
    for _ in range(ATTEMPTS_MAX):
        hold = hold_items.find(call, counter, id_, hold_id)
        used = {"amount": items.int_attribute(hold, "used")} if "used" in hold else {}
        if hold["state"] == {"S": state} and amount in (None, used.get("amount")):
            return {**body, **used, "changed": hold.get("nonce") == {"S": call.nonce}}  # its own: the answer was lost
        in_time = state == COMMITTED and amount is None
        _refuse(counter, hold, state, in_time=in_time)
        kept = abs(int(hold["amount"]["N"])) if in_time else amount or 0
        move = partial(holds.transition, call, counter, hold, state, kept, in_time=in_time)
        by = holds.amount_to_move(hold, kept)
        if holds.retry_with_room(call, counter, hold["target"]["S"], by, move):
            return {**body, **used, **({"amount": kept} if state == COMMITTED else {}), "changed": True}
    raise StoreBusyError("Another call is settling the hold.")


def _refuse(counter: Counter, hold: Item, state: str, *, in_time: bool) -> None:
    """Raises if the hold cannot move to the state. `in_time`: an expired hold cannot move, either."""
    now, tally = hold_items.current_state(hold), hold["target"]["S"]
    if now not in _STATES_BEFORE[state]:
        at = f" at {items.int_attribute(hold, 'used')}" if now == COMMITTED else ""
        raise HoldSettledError(f"The hold is {now}{at}.")
    late = (state, now) == (COMMITTED, EXPIRED)
    if late and in_time:
        raise HoldSettledError("The hold is expired. Others may have its amount. Commit an amount to take it now.")
    if late and hold_items.expires_s(hold) + int(hold["kept"]["N"]) <= clock.now_s():
        raise HoldSettledError("The hold expired too long ago to be committed.")
    if (late or state == VOIDED) and not periods.is_kept(counter, tally, clock.now_s()):
        raise period_not_kept_error(counter, tally)
    if state == VOIDED and counter.retired:
        raise retired_error(counter)


def period_not_kept_error(counter: Counter, tally: str) -> NotFoundError:
    """Makes the error for a hold of a period that is not kept."""
    period = periods.answer_members(tally).get("period")
    return NotFoundError(f"{counter.name} does not keep {period} any longer.", field="hold")
