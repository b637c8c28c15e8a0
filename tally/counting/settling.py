"""Settles holds: commits a hold at the amount that was used, releases the hold, or voids its commit (holds.py)."""

from __future__ import annotations

from functools import partial

from ..counter import Counter
from ..dynamo import clock, items
from ..dynamo.client import Call
from ..dynamo.keys import Item
from ..errors import HoldSettledError, StoreBusyError
from . import hold_items, holds, periods
from .hold_items import COMMITTED, EXPIRED, RELEASED, VOIDED
from .holds import COMMIT_AS_HELD, COMMIT_AS_USED, RELEASE, VOID, Transition
from .receipts import Body, retired_error

# An attempt fails only if another call changes the hold first. A hold gets a new state at most four times: overdue,
# expired, committed, voided. Calls rarely change its amount or time in between.
ATTEMPTS_MAX = 5


def settle(call: Call, counter: Counter, id_: str, hold_id: str, state: str, amount: int | None = None) -> Body:
    """Commits, releases or voids a hold of the id. `state`: COMMITTED, RELEASED or VOIDED. holds.py says what moves.
    `amount`: what a commit keeps; None: the amount that was held.

    An expired hold can be committed only with an `amount`, until `kept_s` seconds after the expiry. The tally of the
    hold's period moves, even if another period is current.

    Returns `{"counter","id","hold","state","changed"}`, and for a commit or a void the `amount` that the commit took. A
    second equal call changes nothing. Raises NotFoundError for an unknown hold, and for a late commit or a void in a
    period that is not kept. Raises HoldSettledError if the state of the hold or the time does not allow the transition.
    Raises CounterRetiredError for a void. If there is no room, raises LimitReachedError.
    """
    assert amount is None or (state == COMMITTED and amount >= 0), "the operation checks it"
    commit = COMMIT_AS_HELD if amount is None else COMMIT_AS_USED
    transition = {COMMITTED: commit, RELEASED: RELEASE, VOIDED: VOID}[state]
    body = {"counter": counter.name, "id": id_, "hold": hold_id, "state": state}
    for _ in range(ATTEMPTS_MAX):
        hold = hold_items.find(call, counter, id_, hold_id)
        used_member = {"amount": items.int_attribute(hold, "used")} if "used" in hold else {}
        if hold["state"] == {"S": state} and amount in (None, used_member.get("amount")):
            # If an earlier attempt of this call settled the hold, and its answer was lost, the hold has this nonce.
            return {**body, **used_member, "changed": hold.get("nonce") == {"S": call.nonce}}
        _refuse(counter, hold, transition)
        kept_amount = abs(int(hold["amount"]["N"])) if transition is COMMIT_AS_HELD else amount or 0
        attempt = partial(holds.make_transition, call, counter, hold, transition, kept_amount)
        moved_by = holds.amount_to_move(hold, kept_amount)
        if holds.retry_with_room(call, counter, hold["target"]["S"], moved_by, attempt):
            return {**body, **used_member, **({"amount": kept_amount} if state == COMMITTED else {}), "changed": True}
    raise StoreBusyError("Another call is settling the hold.")


def _refuse(counter: Counter, hold: Item, transition: Transition) -> None:
    """Raises the error if the state of the hold now, its time or its counter does not allow the transition."""
    present, tally = hold_items.current_state(hold), hold["target"]["S"]
    is_late_commit = transition.state == COMMITTED and present == EXPIRED
    if present not in transition.states_before:
        amount = f" at {items.int_attribute(hold, 'used')}" if present == COMMITTED else ""
        advice = " Others may have its amount. Commit an amount to take it now." if is_late_commit else ""
        raise HoldSettledError(f"The hold is {present}{amount}.{advice}")
    if is_late_commit and hold_items.expires_s(hold) + int(hold["kept_s"]["N"]) <= clock.now_s():
        raise HoldSettledError("The hold expired too long ago to be committed.")
    if (is_late_commit or transition is VOID) and not periods.is_kept(counter, tally, clock.now_s()):
        raise periods.not_kept_error(counter, tally, "hold")
    if transition is VOID and counter.retired:
        raise retired_error(counter)
