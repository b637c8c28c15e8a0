"""Holds: an amount of stock that is taken for a while, then kept or given back."""

import counters
import operations
from tally.api.entry import Answer, Entry
from tally.counter import Counter
from tally.counting import holds
from tally.dynamo.client import Call
from tally.errors import InvalidInputError


def hold(call: Call, *, counter: Counter, id: str, amount: int, ttl_s: int, idempotency_key: str) -> Answer:
    """Take `amount` at once and hold it for `ttl_s` seconds."""
    body, replayed = holds.take(
        call, _holdable(counter), id, amount, ttl_s, operation=operations.HOLD.name, key=idempotency_key
    )
    return Answer(body, status=201, replayed=replayed)


def commit_hold(call: Call, *, counter: Counter, id: str, hold_id: str) -> Answer:
    """Keep the amount of the hold."""
    return Answer(holds.settle(call, _with_holds(counter), id, hold_id, holds.COMMITTED))


def release_hold(call: Call, *, counter: Counter, id: str, hold_id: str) -> Answer:
    """Give back the amount of the hold."""
    return Answer(holds.settle(call, _with_holds(counter), id, hold_id, holds.RELEASED))


def _holdable(counter: Counter) -> Counter:
    if not counter.holdable:
        raise InvalidInputError(
            f"{counter.name} has no floor, or a fixed step: nothing of it can be held.", field="counter"
        )
    return counter


def _with_holds(counter: Counter) -> Counter:
    """A ceiling that came later keeps nobody from settling what is held."""
    return counter if counter.may_have_holds else _holdable(counter)


handler = Entry(
    {operations.HOLD: hold, operations.COMMIT_HOLD: commit_hold, operations.RELEASE_HOLD: release_hold},
    counters=counters.COUNTERS,
)
