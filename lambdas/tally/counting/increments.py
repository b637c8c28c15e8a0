"""Changes of a counter: counted, numbered, rolled up, or set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import observe
from ..counter import Counter, Guarantee
from ..dynamo.client import Call, Item, minute_now
from ..dynamo.transactions import VISIBLE_NOW, VISIBLE_SOON, Body, Stamp, Write, put_receipt, transact, update
from ..errors import (
    ChangeRefusedError,
    KeyReusedError,
    LimitReachedError,
    PreconditionFailedError,
    StoreBusyError,
    TallyHotError,
)
from . import holds, tallies
from .receipts import look, once
from .tallies import State

NUMBER_TURNS_MAX = 64  # a numbered counter is taken one by one: of 50 callers at once the last one loses 49 turns
NUMBER_BACKOFF_MAX_S = 0.080


@dataclass(frozen=True)
class Increment:
    """One intended change of a tally, and what is answered when it is made."""

    counter: Counter
    id: str
    amount: int
    operation: str
    key: str | None
    body: Body
    status: int = 200
    receipt_target: str | None = None
    """What names its receipt; None: the id."""

    @property
    def target(self) -> str:
        """What names its receipt."""
        return self.id if self.receipt_target is None else self.receipt_target

    @property
    def payload(self) -> dict[str, Any]:
        """What must be the same when the key comes again."""
        return {"amount": self.amount}

    def facts(self, at: int) -> dict[str, Item]:
        """What its receipt says to whoever reads the receipts' stream."""
        return tallies.facts(self.counter, self.id, self.amount, at)


def count(call: Call, change: Increment) -> tuple[Body, bool]:
    """Make the change; the body to answer and whether it is a replay.

    EXACT: receipt and count in one transaction, 4 WCU, one round trip; a key is needed. While its tally is hot, and
    for ROLLUP always: the receipt alone, 1 WCU, which a stream consumer adds up. FAST: one update, 1 WCU; a key is not
    looked at. A numbered counter is read first. At a limit, what expired holds have taken is given back first. The body
    says whether the change is `visible` now or soon.

    Raises KeyReusedError if the key stands for another amount, LimitReachedError at a floor or ceiling, which leaves
    no receipt, and commit.transact's errors.
    """
    return holds.with_room(call, change.counter, change.id, lambda: _count(call, change))


def _count(call: Call, change: Increment) -> tuple[Body, bool]:
    if change.counter.guarantee is Guarantee.FAST:
        _add_fast(call, change)
        return {**change.body, **VISIBLE_NOW}, False
    move = _take_number if change.counter.numbered else _add_exact
    if change.counter.guarantee is Guarantee.ROLLUP:
        move = _add_alone
    return once(
        call, change.operation, change.target, change.key or "", change.payload, lambda stamp: move(call, change, stamp)
    )


def _add_fast(call: Call, change: Increment) -> None:
    at = minute_now()
    try:
        update(
            call,
            change.counter,
            change.id,
            lambda shard: tallies.add(call, change.counter, change.id, shard, change.amount, at),
        )
    except ChangeRefusedError as refused:
        raise tallies.refusal(change.counter, refused, change.amount) from None


def _add_exact(call: Call, change: Increment, stamp: Stamp) -> Body:
    counter, at = change.counter, minute_now()
    body = {**change.body, **VISIBLE_NOW}

    def writes(shard: int) -> list[Write]:
        return [{"Update": tallies.add(call, counter, change.id, shard, change.amount, at)}]

    try:
        receipt = stamp.receipt(call, body, **change.facts(at))
        transact(call, counter, change.id, writes, receipt, spills=counter.spills)
    except TallyHotError:
        body = _add_alone(call, change, stamp)
        observe.count(counter.name, observe.SPILLED)
    except ChangeRefusedError as refused:
        raise tallies.refusal(counter, refused, change.amount) from None
    return body


def _add_alone(call: Call, change: Increment, stamp: Stamp) -> Body:
    """The receipt by itself; the rollup adds it to the tally."""
    body = {**change.body, **VISIBLE_SOON}
    put_receipt(call, stamp.alone(call, body, **change.facts(minute_now())))
    return body


def _take_number(call: Call, change: Increment, stamp: Stamp) -> Body:
    """Commit the next number on condition that the counter has not moved; a refusal brings the number that stands."""
    counter, seen = change.counter, tallies.read_state(call, change.counter, change.id)
    retries = call.retries(attempts_max=NUMBER_TURNS_MAX, backoff_max_s=NUMBER_BACKOFF_MAX_S)
    while True:
        number = seen.value + change.amount
        if not tallies.fits(counter, number):
            look(call, stamp)  # after the number was read: whoever took the last one and asks again is told so again
            raise tallies.refuse(counter, seen.value, change.amount)
        last = not tallies.fits(counter, number + change.amount)
        body, at = {**change.body, "number": number, "last": last, **VISIBLE_NOW}, minute_now()
        write = tallies.assign(call, counter, change.id, seen, number, at)
        try:
            transact(
                call,
                counter,
                change.id,
                lambda _, write=write: [{"Update": write}],  # type: ignore[misc]
                stamp.receipt(call, body, **change.facts(at)),
            )
            return body
        except ChangeRefusedError as refused:
            seen = tallies.state_of(counter, refused.old_items[0] or {})
        if not retries.wait():
            raise StoreBusyError("Too many take numbers at once. Send the request again with the same key.")


def set_value(call: Call, counter: Counter, id_: str, value: int, version: int, key: str | None) -> tuple[Body, bool]:
    """Compare-and-set: `value` if the counter still has `version` (0: it was never written); the body, and if replayed.

    Read first, for the receipt says by how much the number moved. Without a key the version is the key: the same
    request again is a replay. Raises PreconditionFailedError when the counter has moved, LimitReachedError for a value
    out of its limits, KeyReusedError.
    """
    if not tallies.fits(counter, value):
        raise LimitReachedError(f"{value} is not within the limits of {counter.name}.", field="value")
    body = {"counter": counter.name, "id": id_, "value": value, "version": version + 1}

    def change(stamp: Stamp) -> Body:
        seen, at = tallies.read_state(call, counter, id_), minute_now()
        if seen.version != version:
            look(call, stamp)  # after the state was read: whoever set it and asks again is told so again
            raise _moved(seen)
        write = tallies.assign(call, counter, id_, seen, value, at)
        receipt = stamp.receipt(call, body, **tallies.facts(counter, id_, value - seen.value, at))
        try:
            transact(call, counter, id_, lambda _: [{"Update": write}], receipt)
        except ChangeRefusedError as refused:
            raise _moved(tallies.state_of(counter, refused.old_items[0] or {})) from None
        return body

    payload = {"value": value, "version": version}
    try:
        return once(call, "set_counter", f"{counter.name}/{id_}", key or f"version-{version}", payload, change)
    except KeyReusedError:
        if key is not None:
            raise
        raise PreconditionFailedError(f"You have set version {version} to another value.") from None


def _moved(stands: State) -> PreconditionFailedError:
    return PreconditionFailedError(f"It is at version {stands.version} now.", version=stands.version)
