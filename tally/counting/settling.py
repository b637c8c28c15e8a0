"""Holds are settled: committed at what was used, released, or voided, each once (holds.py has the states)."""

from __future__ import annotations

from ..counter import Counter
from ..dynamo import clock, items
from ..dynamo.client import Call
from ..dynamo.keys import Item
from ..errors import HoldSettledError, NotFoundError, StoreBusyError
from . import holds, periods
from .holds import COMMITTED, EXPIRED, HELD, RELEASED, VOIDED
from .receipts import Body, retired_error

ATTEMPTS_MAX = 5  # a hold becomes overdue, expired, committed and voided at most. A change in between is rare
_STATES_BEFORE = {COMMITTED: (HELD, EXPIRED), RELEASED: (HELD, EXPIRED), VOIDED: (COMMITTED,)}


def settle(call: Call, counter: Counter, id_: str, hold_id: str, state: str, amount: int | None = None) -> Body:
    """Commit a hold of the id (`COMMITTED`: `amount` stays taken, None: what was held), release it (`RELEASED`: given
    back), or void it (`VOIDED`: what its commit took is given back), once.

    A commit gives back what is less than held, and takes what is more. A commit at an amount takes it, too, if the hold
    has expired, until its `kept` seconds after its time; in the period of the hold, as always.

    Returns `{"counter","id","hold","state","changed"}`, with the `amount` of what a commit took. Settling the same way
    twice changes nothing. Raises NotFoundError for an unknown hold, or a period that is not kept. Raises
    HoldSettledError for a hold that was settled another way, or has expired. Raises CounterRetiredError for a void.
    Raises LimitReachedError if there is no room: then the hold stays as it is.
    """
    assert state in _STATES_BEFORE, "only time makes a hold expire"
    assert amount is None or (state == COMMITTED and amount >= 0), "the operation checks it"
    body = {"counter": counter.name, "id": id_, "hold": hold_id, "state": state}
    for _ in range(ATTEMPTS_MAX):
        hold = holds.find(call, counter, id_, hold_id)
        used = {"amount": items.int_attribute(hold, "used")} if "used" in hold else {}
        if hold["state"] == {"S": state} and amount in (None, used.get("amount")):
            return {**body, **used, "changed": hold.get("nonce") == {"S": call.nonce}}  # its own: the answer was lost
        in_time = state == COMMITTED and amount is None
        _refuse(counter, hold, state, in_time=in_time)
        kept = abs(int(hold["amount"]["N"])) if in_time else amount or 0
        if _try_transition(call, counter, hold, state, kept, in_time):
            return {**body, **used, **({"amount": kept} if state == COMMITTED else {}), "changed": True}
    raise StoreBusyError("Another call is settling the hold.")


def _try_transition(call: Call, counter: Counter, hold: Item, state: str, kept: int, in_time: bool) -> bool:
    """Whether this call moved the hold. Expired holds make room for it."""
    tally, by = hold["target"]["S"], holds.amount_to_move(hold, kept)
    return holds.retry_with_room(
        call, counter, tally, by, lambda: holds.transition(call, counter, hold, state, kept, in_time=in_time)
    )


def _refuse(counter: Counter, hold: Item, state: str, *, in_time: bool) -> None:
    """Raise if the hold cannot be moved to the state. `in_time`: an expired hold cannot be, either."""
    now, tally = holds.current_state(hold), hold["target"]["S"]
    if now not in _STATES_BEFORE[state]:
        at = f" at {items.int_attribute(hold, 'used')}" if now == COMMITTED else ""
        raise HoldSettledError(f"The hold is {now}{at}.")
    late = (state, now) == (COMMITTED, EXPIRED)
    if late and in_time:
        raise HoldSettledError("The hold is expired: others may have what it held. Commit an amount to take it now.")
    if late and holds.expires_s(hold) + int(hold["kept"]["N"]) <= clock.now_s():
        raise HoldSettledError("The hold is expired, and too long ago to be committed.")
    if (late or state == VOIDED) and not periods.is_kept(counter, tally, clock.now_s()):
        raise period_not_kept_error(counter, tally)
    if state == VOIDED and counter.retired:
        raise retired_error(counter)


def period_not_kept_error(counter: Counter, tally: str) -> NotFoundError:
    """The error for a hold of a period that is not kept."""
    return NotFoundError(f"{counter.name} keeps {periods.answer_members(tally).get('period')} no more.", field="hold")
