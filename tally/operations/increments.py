"""Move a counter, set it, or override its limit for one id."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Literal, NotRequired, TypedDict

from tally import fields
from tally.api import kinds, needs
from tally.api.kinds import Amount, DeclaredCounter, Id, IncludeValue, Key, KeyInHeaderOrBody
from tally.api.operation import RATE_100_PER_S, WRITES, Access, Answer, Call, operation
from tally.api.shapes import NewValue, PeriodName, Version, WhenVisible
from tally.counter import AMOUNT_MAX, CHANGES, VISITORS, Counter
from tally.counting import increments, overrides, periods, tallies, unique_visitors
from tally.counting.increments import Increment
from tally.dynamo import clock
from tally.errors import (
    CallerError,
    CounterRetiredError,
    InvalidInputError,
    LimitReachedError,
    NotFoundError,
    PreconditionFailedError,
    PreconditionRequiredError,
)


class Counted(TypedDict):
    """The change was counted."""

    counter: str
    id: str
    counted: Literal[True]
    visible: WhenVisible
    period: NotRequired[PeriodName]
    number: NotRequired[
        Annotated[int, {"description": "Of a numbered counter: this change's number, which no other change has."}]
    ]
    last: NotRequired[Annotated[bool, {"description": "Whether a numbered counter has no number after this one."}]]
    over: NotRequired[
        Annotated[Literal[True], {"description": "The change exceeds the limit, as `used` allows within the `debt`."}]
    ]
    value: NotRequired[NewValue]


class Visitor(TypedDict):
    """The visitor is counted in this period. `new`: false if an earlier visit in the period counted."""

    counter: str
    id: str
    period: PeriodName
    new: bool
    visible: WhenVisible


class IdLimit(TypedDict):
    """The limit of one id. `override`: false for the declared limit, which may change with a deploy."""

    counter: str
    id: str
    limit: int
    override: bool


class NewState(TypedDict):
    """The value was set."""

    counter: str
    id: str
    value: int
    version: Version


def _refusal_of_change(counter: Counter) -> CallerError | None:
    """Returns why changes do not move this counter; None if they do."""
    return fields.refusal_unless_counts(counter, CHANGES)


def _refusal_of_set(counter: Counter) -> CallerError | None:
    """Returns why callers cannot set this counter; None if they can."""
    if (refusal := _refusal_of_change(counter)) or counter.may_be_set:
        return refusal
    without_periods = 'has visible="soon"' if counter.is_rolled_up else "is spread over shards"
    why = f"has a number for each {counter.period}" if counter.period else without_periods
    return InvalidInputError(f"{counter.name} {why}: it has no version to compare.", field="counter")


def _refusal_of_override(counter: Counter) -> CallerError | None:
    """Returns why this counter takes no overrides; None if it takes them."""
    if counter.limit_overrides:
        return None
    why = f"{counter.name} is not declared with limit_overrides: all of its ids have the same limits."
    return InvalidInputError(why, field="counter")


def _needs_of_override(action: str) -> Callable[[Sequence[Counter]], needs.Needs]:
    """Returns the function for the access that a change of an override needs. An override is in the item of its tally.
    With periods, an override has its own item, on which `action` is called, and copies in the items of the tallies."""

    def needed(counters: Sequence[Counter]) -> needs.Needs:
        with_overrides = [counter for counter in counters if counter.limit_overrides]
        of_periods = needs.on_counts((counter for counter in with_overrides if counter.period), action)
        return needs.PUT_RECEIPT | needs.on_counts(with_overrides, "UpdateItem") | of_periods

    return needed


def _needs_to_increment(counters: Sequence[Counter]) -> needs.Needs:
    """Returns the access that a change needs. A change may read the number for the answer. A change of a numbered
    counter first reads the number. If no number is left, the change may be a retry, and looks for its receipt."""
    needed = needs.to_count(counters) | needs.on_counts(counters, "Query") | needs.to_release_expired_holds(counters)
    if any(counter.numbered for counter in counters):
        needed |= needs.FIND_RECEIPT
    return needed | needs.to_find_receipt_before_refusal(counters)


@operation(
    "POST /counters/{counter}/{id}/increments",
    access=Access.WRITE,
    audience_field="changes",
    throttle=WRITES,
    throttle_if_opened=RATE_100_PER_S,
    short_route="POST {path}",
    refusal_for=_refusal_of_change,
    needs=_needs_to_increment,
    raises=[NotFoundError, LimitReachedError, CounterRetiredError],
    example={"counter": "stock", "id": "7c20", "counted": True, "visible": "now"},
    changes_numbers=True,
)
def increment(
    call: Call,
    *,
    counter: DeclaredCounter,
    id: Id,
    idempotency_key: KeyInHeaderOrBody,
    amount: Amount | None = None,
    used: Annotated[bool, kinds.USED] = False,
    value: IncludeValue = False,
) -> Answer[Counted]:
    """Move a counter

    At a floor or ceiling Tally refuses the change and says how much is left. A refusal leaves no receipt, so a retry
    with the same key may succeed later. A counter with periods counts in the current period, and a refusal says when
    the next period begins. An amount that is already `used` may exceed the limit, up to the counter's `debt`. The
    answer then has `over`.
    """
    by = fields.amount_or_step(counter, amount, "amount")
    tally_id, id_members = id, {"id": id}
    if counter.period:
        tally_id = periods.tally_id(counter, id, clock.now_s())
        id_members = periods.answer_members(tally_id)
    body = {"counter": counter.name, **id_members, "counted": True}
    target = f"{counter.name}/{id}"  # without the period, so that a retry in the next period is a replay
    change = Increment(counter, tally_id, by, "increment", idempotency_key, body, receipt_target=target, used=used)
    answer, replayed = increments.count(call, change)
    return Answer(tallies.with_value(call, counter, tally_id, answer) if value else answer, replayed=replayed)


@operation(
    "POST /counters/{counter}/{id}/visitors",
    access=Access.WRITE,
    throttle=WRITES,
    refusal_for=lambda counter: fields.refusal_unless_counts(counter, VISITORS),
    needs=lambda counters: needs.to_count_visitors(counters) | needs.to_find_receipt_before_refusal(counters),
    raises=[NotFoundError, LimitReachedError, CounterRetiredError],
    example={"counter": "readers", "id": "7c20", "period": "2026-07-31", "new": True, "visible": "soon"},
    changes_numbers=True,
)
def add_visitor(
    call: Call,
    *,
    counter: DeclaredCounter,
    id: Id,
    visitor: Annotated[str, kinds.VISITOR],
    at: Annotated[int, kinds.FIRST_TRY_TIME] | None = None,
) -> Answer[Visitor]:
    """Count a visitor

    Each visitor counts once in a period, whichever service sends the visit, and however often. At a ceiling Tally
    refuses only new visitors. If you repeat a visit after its period has ended, send the same `at`, so it counts once.
    """
    return Answer(unique_visitors.count(call, counter, id, visitor, at).body)


@operation(
    "PUT /counters/{counter}/{id}",
    access=Access.WRITE,
    throttle=WRITES,
    refusal_for=_refusal_of_set,
    # `set_counter` reads the number first, and looks for a receipt if the number has moved.
    needs=lambda counters: (
        needs.PUT_RECEIPT
        | needs.FIND_RECEIPT
        | needs.on_counts(counters, "Query", "UpdateItem")
        | needs.to_read_limits(counters)
    ),
    raises=[
        NotFoundError, LimitReachedError, CounterRetiredError, PreconditionFailedError, PreconditionRequiredError,
    ],
    example={"counter": "stock", "id": "7c20", "value": 98, "version": 8},
    changes_numbers=True,
    smoke_statuses=[412],  # the sample names a version that the counter of the smoke test does not have
)  # fmt: skip
def set_counter(
    call: Call,
    *,
    counter: DeclaredCounter,
    id: Id,
    value: Annotated[int, kinds.VALUE],
    version: Annotated[int, kinds.VERSION],
    idempotency_key: Key | None = None,
) -> Answer[NewState]:
    """Set a counter, if it has the version that you read

    Compare-and-set: `If-Match` must be the present `ETag` of the counter. A repeated request is a replay. A numbered
    counter only moves forward: Tally refuses (409) a value that would give out a number a second time.
    """
    key = idempotency_key
    body, replayed = increments.set_value(call, counter, id, value, version, operation="set_counter", key=key)
    return Answer(body, replayed=replayed)


_LIMIT = {"counter": "calls", "id": "7c20", "limit": 10_000, "override": True}
_of_override = partial(operation, throttle=RATE_100_PER_S, refusal_for=_refusal_of_override, raises=[NotFoundError])


@_of_override("GET /counters/{counter}/{id}/limit", access=Access.READ, needs=needs.to_read_limits, example=_LIMIT)
def get_limit(call: Call, *, counter: DeclaredCounter, id: Id) -> Answer[IdLimit]:
    """The limit of one id

    The ceiling, or the floor of a counter without a ceiling.
    """
    return Answer(overrides.read_override(call, counter, id))


@_of_override(
    "PUT /counters/{counter}/{id}/limit",
    access=Access.WRITE,
    needs=_needs_of_override("PutItem"),
    example=_LIMIT,
    changes_numbers=True,
)
def put_limit(
    call: Call, *, counter: DeclaredCounter, id: Id, limit: Annotated[int, kinds.LIMIT_OVERRIDE], idempotency_key: Key
) -> Answer[IdLimit]:
    """Override the limit of one id

    The override replaces the declared limit, or an earlier override, for every change after the answer. If more is used
    already, Tally refuses changes that do not fit, but never a change that leads back to the limit. With periods, the
    override is valid in the current period and in all later ones.
    """
    least = min(counter.start, 0) if counter.floor is None else counter.floor
    if counter.ceiling is not None and limit < least:  # a number begins at `least` or above
        rule = f"a ceiling of {counter.name} must be at least {least}, which refuses every change"
        advice = f"To allow any amount, give {AMOUNT_MAX}, the largest."
        raise InvalidInputError(f"limit is {limit}, but {rule}. {advice}", field="limit")
    body, replayed = overrides.put_override(call, counter, id, limit, operation="put_limit", key=idempotency_key)
    return Answer(body, replayed=replayed)


@_of_override(
    "DELETE /counters/{counter}/{id}/limit",
    access=Access.WRITE,
    needs=_needs_of_override("DeleteItem"),
    example={**_LIMIT, "limit": 1_000, "override": False},
    changes_numbers=True,
)
def delete_limit(call: Call, *, counter: DeclaredCounter, id: Id, idempotency_key: Key) -> Answer[IdLimit]:
    """Reset the limit of one id to the declared one"""
    body, replayed = overrides.put_override(call, counter, id, None, operation="delete_limit", key=idempotency_key)
    return Answer(body, replayed=replayed)
