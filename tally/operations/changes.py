"""Batches: many changes under one key, all or none. Voids: a void takes back the changes of one key."""

from dataclasses import replace
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from tally import fields
from tally.api import needs
from tally.api.kinds import CALLER, CHANGES, VISIBLE, VOIDED_KEY, DeclaredCounter, Id, Key
from tally.api.operation import RATE_100_PER_S, Access, Answer, Call, operation
from tally.api.shapes import PeriodName, WhenVisible
from tally.counter import CHANGES as OF_CHANGES
from tally.counter import Counter
from tally.counting import batch, periods, voids
from tally.counting.receipts import ReceiptKey
from tally.dynamo import clock
from tally.errors import CallerError, CounterRetiredError, InvalidInputError, LimitReachedError, NotFoundError


class Changed(TypedDict):
    """All changes were counted. `changes`: how many. `tallies`: how many numbers the changes moved."""

    counted: Literal[True]
    changes: Annotated[int, {"minimum": 1}]
    tallies: Annotated[int, {"minimum": 1}]
    visible: WhenVisible


class Voided(TypedDict):
    """The change is taken back. `changed`: false if an earlier request had taken the change back."""

    counter: str
    id: str
    period: NotRequired[PeriodName]
    amount: Annotated[int, {"description": "The amount that the change had added, and that the void takes back."}]
    changed: bool
    visible: WhenVisible


class AllVoided(TypedDict):
    """All changes under the key are taken back. `tallies`: how many numbers the changes had moved. `changed`: false if
    an earlier request had taken the changes back."""

    tallies: Annotated[int, {"minimum": 1}]
    changed: bool
    visible: WhenVisible


VoidedKey = Annotated[str, VOIDED_KEY]
ChangeCaller = Annotated[str, CALLER]


def _refusal_of_batch(counter: Counter) -> CallerError | None:
    """Returns why a batch cannot change this counter; None if it can."""
    if (refusal := fields.refusal_unless_counts(counter, OF_CHANGES)) or counter.is_batchable:
        return refusal
    return InvalidInputError(f"{counter.name} cannot be changed in a batch.", field="changes")


@operation(
    "POST /changes",
    access=Access.WRITE,
    throttle=RATE_100_PER_S,
    refusal_for=_refusal_of_batch,
    needs=needs.to_change_batch,
    raises=[LimitReachedError, CounterRetiredError],
    example={"counted": True, "changes": 2, "tallies": 2, "visible": "now"},
    changes_numbers=True,
    body_bytes_max=256 * 1024,  # 1,000 changes with the longest names, ids and amounts
)
def change(
    call: Call,
    *,
    changes: Annotated[list[dict[str, Any]], CHANGES],
    idempotency_key: Key,
    visible: Annotated[str, VISIBLE] = "now",
) -> Answer[Changed]:
    """Move many counters under one key

    All changes count, or none does. At a floor or ceiling Tally refuses all changes, names the entry, and says
    how much is left. A refusal leaves no receipt.
    """
    soon = visible == "soon"
    parsed = batch.parse_batch(changes, call.counters, clock.now_s(), soon=soon)
    body, replayed = batch.count(call, parsed, operation="change", key=idempotency_key, soon=soon)
    return Answer(body, replayed=replayed)


def _refusal_of_void(counter: Counter) -> CallerError | None:
    """Returns why changes of this counter cannot be taken back; None if they can."""
    if (refusal := fields.refusal_unless_counts(counter, OF_CHANGES)) or not counter.numbered:
        return refusal
    return InvalidInputError(f"{counter.name} has no voids: it gives each number out once.", field="counter")


@operation(
    "POST /counters/{counter}/{id}/voids",
    access=Access.WRITE,
    throttle=RATE_100_PER_S,
    refusal_for=_refusal_of_void,
    needs=needs.to_void,
    raises=[NotFoundError, LimitReachedError, CounterRetiredError],
    example={"counter": "stock", "id": "7c20", "amount": -1, "changed": True, "visible": "now"},
    changes_numbers=True,
    smoke_statuses=[404],  # no receipt has the sample's key
)
def void(
    call: Call, *, counter: DeclaredCounter, id: Id, key: VoidedKey, caller: ChangeCaller | None = None
) -> Answer[Voided]:
    """Take a change back

    The first void takes the change back, in the period in which it was counted. Another void changes nothing, and a
    late copy of the change does not count. Tally knows the key as long as its receipt lives. `caller`: who made the
    change; by default you. If a floor or ceiling does not allow the void, Tally refuses it, and the change stays.
    """
    receipt_key = ReceiptKey("increment", f"{counter.name}/{id}", key, payload={})  # a void names only the change's key
    amounts, (body, replayed) = voids.void(_call_of(call, caller), receipt_key)
    ((tally, amount),) = amounts.items()
    members = {"counter": counter.name, **periods.answer_members(tally.id), "amount": amount}
    return Answer({**members, "changed": not replayed, "visible": body["visible"]})


@operation(
    "POST /changes/voids",
    access=Access.WRITE,
    throttle=RATE_100_PER_S,
    refusal_for=_refusal_of_batch,
    needs=needs.to_void,
    raises=[NotFoundError, LimitReachedError, CounterRetiredError],
    example={"tallies": 2, "changed": True, "visible": "now"},
    changes_numbers=True,
    smoke_statuses=[404],  # no receipt has the sample's key
)
def void_changes(call: Call, *, key: VoidedKey, caller: ChangeCaller | None = None) -> Answer[AllVoided]:
    """Take a batch back

    All changes under the key are taken back, or none, by the rules of `POST /counters/{counter}/{id}/voids`.
    """
    receipt_key = ReceiptKey("change", batch.RECEIPT_TARGET, key, payload={})
    amounts, (body, replayed) = voids.void(_call_of(call, caller), receipt_key)
    return Answer({"tallies": len(amounts), "changed": not replayed, "visible": body["visible"]})


def _call_of(call: Call, caller: str | None) -> Call:
    """Returns the call as if `caller` made it (None: unchanged), because a receipt is found by its caller, too."""
    return call if caller is None else replace(call, caller=caller)
