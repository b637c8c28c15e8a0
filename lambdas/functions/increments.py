"""Counters of every kind: whatever `counters.py` declares."""

import counters
import operations
from tally.api.entry import Answer, Entry
from tally.counter import Counter, Guarantee
from tally.counting import increments, tallies
from tally.counting.increments import Increment
from tally.dynamo.client import Call
from tally.errors import InvalidInputError
from tally.streams import progress


def increment(
    call: Call, *, counter: Counter, id: str, amount: int | None = None, idempotency_key: str | None = None
) -> Increment:
    """Move the counter by `amount`, or by its own delta; once for each key."""
    if counter.delta is not None and amount not in (None, counter.delta):
        raise InvalidInputError(f"{counter.name} moves by {counter.delta} at a time.", field="amount")
    by = counter.delta if amount is None else amount
    if by is None:
        raise InvalidInputError("amount is missing.", field="amount")
    if idempotency_key is None and counter.guarantee is not Guarantee.FAST:
        raise InvalidInputError("Idempotency-Key is missing.", field="Idempotency-Key")
    body = {"counter": counter.name, "id": id, "counted": True}
    target = operations.INCREMENT.receipt_target(counter, id)
    return Increment(counter, id, by, operations.INCREMENT.name, idempotency_key, body, receipt_target=target)


def get_counter(call: Call, *, counter: Counter, id: str) -> Answer:
    """Its value, with the version that compare-and-set asks for where it has one; as of when, where it is rolled up."""
    body = {"counter": counter.name, "id": id}
    if counter.guarantee is Guarantee.ROLLUP:
        as_of = progress.as_of(call)  # before the number: it may know of more than that, never of less
        return Answer({**body, "value": tallies.read(call, counter, id), "as_of": as_of})
    if not counter.versioned:
        return Answer({**body, "value": tallies.read(call, counter, id)})
    state = tallies.read_state(call, counter, id)
    return Answer({**body, "value": state.value, "version": state.version})


def set_counter(
    call: Call, *, counter: Counter, id: str, value: int, version: int, idempotency_key: str | None = None
) -> Answer:
    """Compare-and-set: the value, if the counter still has the version."""
    if not counter.versioned:
        raise InvalidInputError(f"{counter.name} is spread over shards: it has no version to compare.", field="counter")
    body, replayed = increments.set_value(call, counter, id, value, version, idempotency_key)
    return Answer(body, replayed=replayed)


handler = Entry(
    {operations.INCREMENT: increment, operations.GET_COUNTER: get_counter, operations.SET_COUNTER: set_counter},
    counters=counters.COUNTERS,
)
