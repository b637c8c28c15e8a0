"""Changes counters, numbers and holds in a world as the handlers do, and reads the stored items."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import counters
from tally.api.operation import Answer
from tally.counter import Counter
from tally.counting import changing, expired_holds, hold_items, holds, settling
from tally.dynamo import items
from tally.dynamo.client import CALL_TIME_DEFAULT_S, Call, Store
from tally.dynamo.keys import Item
from tally.errors import CallerError, LimitReachedError
from tally.operations import increments as handler
from tally.operations import reads
from tests.invariants.world import Outcome, World, retry_until_final

ITEM = "i1"


@dataclass
class Counting:
    """Changes of counters and holds in a world."""

    world: World

    def increment(
        self,
        counter: Counter,
        amount: int | None = None,
        key: str | None = None,
        id_: str = ITEM,
        *,
        used: bool = False,
        caller: str = "ann",
        within_s: float = CALL_TIME_DEFAULT_S,
    ) -> Outcome:
        """Change a counter. Returns the body, and whether it is a replay. `amount`: None if the counter has a delta.
        `used`: the amount was used, so it may go into debt. `within_s`: the time that the call has."""
        call = self.world.call(caller, deadline_s=self.world.store.clock() + within_s)
        fields = {"amount": amount, "used": used, "idempotency_key": key or new_key()}
        answer = handler.increment(call, counter=counter, id=id_, **fields)
        return answer.body, answer.replayed

    def set(self, counter: Counter, value: int, version: int, key: str | None = None, caller: str = "ann") -> Outcome:
        """Set a number if its version is `version`. Returns the body, and whether it is a replay."""
        answer = handler.set_counter(
            self.world.call(caller), counter=counter, id=ITEM, value=value, version=version, idempotency_key=key
        )
        return dict(answer.body), answer.replayed

    def read(self, counter: Counter, id_: str = ITEM) -> dict[str, Any]:
        """Returns what a caller reads of a counter."""
        answer: Answer = reads.get_counter(self.world.call(), counter=counter, id=id_)
        return dict(answer.body)

    def stored(self, counter: Counter, id_: str = ITEM) -> int:
        """Returns the stored number, or `start` if none is stored."""
        return self.world.tally(counter, id_) if self.world.shards(counter, id_) else counter.start

    def stock(self, amount: int) -> None:
        """Add an amount to the stock."""
        self.increment(counters.STOCK, amount)

    def place_hold(
        self,
        amount: int = 1,
        ttl_s: int = 60,
        key: str | None = None,
        *,
        call: Call | None = None,
        counter: Counter = counters.STOCK,
        id_: str = ITEM,
    ) -> Outcome:
        """Hold an amount of the stock."""
        call = call or self.world.call("ann")
        return holds.place(call, counter, id_, amount, ttl_s, operation="hold", key=key or new_key())

    def change_hold(
        self, hold_id: str, amount: int | None = None, ttl_s: int | None = None, key: str | None = None
    ) -> Outcome:
        """Change the amount or the time of a hold of the stock."""
        call, options = self.world.call("ann"), {"operation": "change_hold", "key": key or new_key()}
        return changing.change_hold(call, counters.STOCK, ITEM, hold_id, amount, ttl_s, **options)

    def settle_hold(self, hold_id: str, state: str, amount: int | None = None) -> dict[str, Any]:
        """Commit, release or void a hold of the stock."""
        return settling.settle(self.world.call("ann"), counters.STOCK, ITEM, hold_id, state, amount)

    def sweep(self) -> int:
        """Run the sweep. Returns how many holds the sweep released."""
        return self.sweep_until().released

    def sweep_until(self, store: Store | None = None, until_s: float | None = None) -> expired_holds.SweptHolds:
        """Run the sweep until `until_s` on the store's clock, by default for a minute. Returns how many holds the sweep
        released, how many it could not release, and whether it tried all due holds: (released, failed, finished)."""
        store = store or self.world.store
        return expired_holds.sweep(store, counters.COUNTERS, store.clock() + 60 if until_s is None else until_s)

    def stored_holds(self) -> list[Item]:
        """Returns the stored holds, and the records of settled holds, without the marks of holds with a new expiry."""
        return [item for item in self.world.rows("HOLDS#") if item["state"] != {"S": hold_items.MOVED}]

    def only_hold(self) -> Item:
        """Returns the stored item of the only hold."""
        (hold,) = self.stored_holds()
        return hold

    def states(self) -> dict[str, str]:
        """Returns the state of each hold, by its id. Asserts that no hold is stored twice."""
        items_ = self.stored_holds()
        states = {item["hold_id"]["S"]: item["state"]["S"] for item in items_}
        assert len(states) == len(items_)
        return states

    def sum_of_receipts(self) -> int:
        """Returns the sum of the amounts of all receipts."""
        return sum(items.int_attribute(receipt, "amount") for receipt in self.world.receipts())

    def amounts_by_state(self) -> dict[str, int]:
        """Returns the sum of the amounts of the holds in each state."""
        sums: dict[str, int] = {}
        for item in self.stored_holds():
            state = item["state"]["S"]
            sums[state] = sums.get(state, 0) + abs(int(item["amount"]["N"]))
        return sums


def id_in_same_bucket() -> str:
    """Returns the id of another item whose holds are in the same bucket as the holds of `ITEM`."""
    bucket = hold_items.bucket(counters.STOCK, ITEM)
    return next(id_ for id_ in map(str, range(500)) if hold_items.bucket(counters.STOCK, id_) == bucket)


def new_key() -> str:
    """Returns a new key."""
    return secrets.token_urlsafe(16)


def buy(counting: Counting, counter: Counter, amount: int | None, key: str | None = None) -> dict[str, Any] | int:
    """Change a counter, and retry with the same key. Returns the body, or the amount left if the limit is reached."""
    try:
        return retry_until_final(partial(counting.increment, counter, amount, key or new_key()))[0]
    except LimitReachedError as error:
        amount_left = error.members["left"]
        assert isinstance(amount_left, int)
        return amount_left


def refusal(change: Any) -> CallerError:
    """Returns the error of a refused change."""
    with pytest.raises(CallerError) as caught:
        change()
    return caught.value
