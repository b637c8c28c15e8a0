"""Settles holds: commits a hold at the amount that was used, releases the hold, or voids its commit (holds.py)."""

from __future__ import annotations

from functools import partial

from ..counter import Counter
from ..dynamo import clock, items
from ..dynamo.client import Call
from ..dynamo.keys import Item
from ..errors import HoldSettledError, StoreBusyError
from . import hold_items, holds, periods
from .hold_items import COMMITTED, EXPIRED, HELD, RELEASED, VOIDED
from .receipts import Body, retired_error

# An attempt fails only if another call changes the hold first. A hold gets a new state at most four times: overdue,
# expired, committed, voided. Calls rarely change its amount or time in between.
ATTEMPTS_MAX = 5
_STATES_BEFORE = {COMMITTED: (HELD, EXPIRED), RELEASED: (HELD, EXPIRED), VOIDED: (COMMITTED,)}  # by the new state


def settle(call: Call, counter: Counter, id_: str, hold_id: str, state: str, amount: int | None = None) -> Body:
    """Gives a hold of the id its final `state`. COMMITTED: `amount` stays taken; None: the amount that was held.
    RELEASED: the hold gives its amount back. VOIDED: it gives back what its commit took.

    A commit of less than the held amount gives the difference back, and a commit of more takes the difference. An
    expired hold may have given its amount back, so only a commit with an `amount` is possible, until `kept_s` seconds
    after the expiry. The tally of the hold's period moves, even if another period is current.

    Returns `{"counter","id","hold","state","changed"}`, and for a commit or a void the `amount` that the commit took. A
    second equal call changes nothing. Raises NotFoundError for an unknown hold, and for a late commit or a void in a
    period that is not kept. Raises HoldSettledError if the hold has another final state, or if it has expired and the
    call needs it unexpired. Raises CounterRetiredError for a void. If there is no room, raises LimitReachedError.
    """
    assert state in _STATES_BEFORE, "no call makes a hold expire"
    assert amount is None or (state == COMMITTED and amount >= 0), "the operation checks it"
    body = {"counter": counter.name, "id": id_, "hold": hold_id, "state": state}
    for _ in range(ATTEMPTS_MAX):
        hold = hold_items.find(call, counter, id_, hold_id)
        used_member = {"amount": items.int_attribute(hold, "used")} if "used" in hold else {}
        if hold["state"] == {"S": state} and amount in (None, used_member.get("amount")):
            # If an earlier attempt of this call settled the hold, and its answer was lost, the hold has this nonce.
            return {**body, **used_member, "changed": hold.get("nonce") == {"S": call.nonce}}
        must_be_unexpired = state == COMMITTED and amount is None  # the held amount is sure only until the expiry
        _refuse(counter, hold, state, must_be_unexpired=must_be_unexpired)
        kept_amount = abs(int(hold["amount"]["N"])) if must_be_unexpired else amount or 0
        move = partial(holds.transition, call, counter, hold, state, kept_amount, must_be_unexpired=must_be_unexpired)
        moved_by = holds.amount_to_move(hold, kept_amount)
        if holds.retry_with_room(call, counter, hold["target"]["S"], moved_by, move):
            return {**body, **used_member, **({"amount": kept_amount} if state == COMMITTED else {}), "changed": True}
    raise StoreBusyError("Another call is settling the hold.")


def _refuse(counter: Counter, hold: Item, state: str, *, must_be_unexpired: bool) -> None:
    """Raises the error if the hold cannot get this state. `must_be_unexpired`: whether an expired hold cannot, too."""
    present, tally = hold_items.current_state(hold), hold["target"]["S"]
    if present not in _STATES_BEFORE[state]:
        amount = f" at {items.int_attribute(hold, 'used')}" if present == COMMITTED else ""
        raise HoldSettledError(f"The hold is {present}{amount}.")
    is_late_commit = (state, present) == (COMMITTED, EXPIRED)
    if is_late_commit and must_be_unexpired:
        raise HoldSettledError("The hold is expired. Others may have its amount. Commit an amount to take it now.")
    if is_late_commit and hold_items.expires_s(hold) + int(hold["kept_s"]["N"]) <= clock.now_s():
        raise HoldSettledError("The hold expired too long ago to be committed.")
    if (is_late_commit or state == VOIDED) and not periods.is_kept(counter, tally, clock.now_s()):
        raise periods.not_kept_error(counter, tally, "hold")
    if state == VOIDED and counter.retired:
        raise retired_error(counter)
