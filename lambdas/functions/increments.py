"""The counters that `counters.py` declares: moved, read and set by name."""

import time

import counters
import operations
from tally import fields
from tally.api.entry import Answer, Entry
from tally.counter import Counter
from tally.counting import changes as changes_
from tally.counting import holds, increments, periods, tallies
from tally.counting.increments import Increment
from tally.counting.receipts import VISIBLE_NOW, VISIBLE_SOON
from tally.dynamo.client import Call
from tally.errors import InvalidInputError
from tally.streams import watermark


def increment(
    call: Call,
    *,
    counter: Counter,
    id: str,
    idempotency_key: str,
    amount: int | None = None,
    value: bool = False,
) -> Increment:
    """Move the counter by `amount`, or by its own step, once for each key: in the period of now, if it has periods."""
    _refuse_children(counter)
    by = fields.step(counter, amount, "amount")
    tally = periods.tally_id(counter, id, time.time())
    body = {"counter": counter.name, **periods.shown(tally), "counted": True}
    target = operations.INCREMENT.receipt_target(counter, id)
    room = holds.made_room if counter.may_have_holds else None
    name = operations.INCREMENT.name
    return Increment(
        counter, tally, by, name, idempotency_key, body, receipt_target=target, make_room=room, shows_value=value
    )


def change(
    call: Call, *, changes: list[dict[str, object]], idempotency_key: str, visible: str = VISIBLE_NOW["visible"]
) -> Answer:
    """Make all of the changes once, or none of them."""
    soon = visible == VISIBLE_SOON["visible"]
    wanted = changes_.read(changes, counters.COUNTERS, time.time(), soon=soon)
    body, replayed = changes_.count(call, wanted, operation=operations.CHANGE.name, key=idempotency_key, soon=soon)
    return Answer(body, replayed=replayed)


def get_counter(call: Call, *, counter: Counter, id: str, period: str | None = None) -> Answer:
    """Its value; with the version for compare-and-set, or with `as_of` if it is rolled up.

    `period`: which one, if it has periods; None: the current one.
    """
    tally = periods.tally_id(counter, id, time.time(), period)
    body: dict[str, object] = {"counter": counter.name, **periods.shown(tally)}
    if counter.settable:
        state = tallies.read_state(call, counter, tally)
        body |= {"value": state.value, "version": state.version}
    elif counter.soon:
        as_of = watermark.as_of(call)  # before the number, which may then be newer but never older
        body |= {"value": tallies.read(call, counter, tally), "as_of": as_of}
    else:
        body["value"] = tallies.read(call, counter, tally)
    return Answer(body, max_age_s=counter.kept_s)


def set_counter(
    call: Call, *, counter: Counter, id: str, value: int, version: int, idempotency_key: str | None = None
) -> Answer:
    """Compare-and-set: set the value if the counter still has the version."""
    _refuse_children(counter)
    if not counter.settable:
        why = f"has a tally for each {counter.period}" if counter.period else "is spread over shards"
        raise InvalidInputError(f"{counter.name} {why}: it has no version to compare.", field="counter")
    body, replayed = increments.set_value(
        call, counter, id, value, version, operation=operations.SET_COUNTER.name, key=idempotency_key
    )
    return Answer(body, replayed=replayed)


def _refuse_children(counter: Counter) -> None:
    """Refuse to move the number of a counter that counts items: it would no longer be how many there are."""
    if counter.counts_children:
        path = f"/counters/{counter.name}/{{id}}/children/{{child}}"
        raise InvalidInputError(f"{counter.name} counts children: PUT or DELETE {path} moves it.", field="counter")


handler = Entry(
    {
        operations.INCREMENT: increment,
        operations.CHANGE: change,
        operations.GET_COUNTER: get_counter,
        operations.SET_COUNTER: set_counter,
    },
    counters=counters.COUNTERS,
)
