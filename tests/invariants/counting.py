"""Counters, numbers and holds in a world: changes as the handlers make them, and the stored items."""

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
        """Change a counter. Returns the body, and whether it is a replay."""
        call = self.world.call(caller, deadline_s=self.world.store.clock() + within_s)
        given = {"amount": amount, "used": used, "idempotency_key": key or new_key()}
        answer = handler.increment(call, counter=counter, id=id_, **given)
        return answer.body, answer.replayed

    def set(self, counter: Counter, value: int, version: int, key: str | None = None, caller: str = "ann") -> Outcome:
        """Compare-and-set."""
        answer = handler.set_counter(
            self.world.call(caller), counter=counter, id=ITEM, value=value, version=version, idempotency_key=key
        )
        return dict(answer.body), answer.replayed

    def read(self, counter: Counter, id_: str = ITEM) -> dict[str, Any]:
        """A counter through the core."""
        answer: Answer = reads.get_counter(self.world.call(), counter=counter, id=id_)
        return dict(answer.body)

    def stored(self, counter: Counter, id_: str = ITEM) -> int:
        """Returns the stored number, or `start` if none is stored."""
        return self.world.tally(counter, id_) if self.world.shards(counter, id_) else counter.start

    def stock(self, amount: int) -> None:
        """Put an amount in stock."""
        self.increment(counters.STOCK, amount)

    def take(
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

    def change(
        self, hold_id: str, amount: int | None = None, ttl_s: int | None = None, key: str | None = None
    ) -> Outcome:
        """Change the amount or the time of a hold of the stock."""
        call, how = self.world.call("ann"), {"operation": "change_hold", "key": key or new_key()}
        return changing.change_hold(call, counters.STOCK, ITEM, hold_id, amount, ttl_s, **how)

    def settle(self, hold_id: str, state: str, amount: int | None = None) -> dict[str, Any]:
        """Commit, release or void a hold of the stock."""
        return settling.settle(self.world.call("ann"), counters.STOCK, ITEM, hold_id, state, amount)

    def sweep(self) -> int:
        """Run the sweep. Returns how many holds it released."""
        return self.swept().returned

    def swept(self, store: Store | None = None, until_s: float | None = None) -> expired_holds.SweptHolds:
        """Run the sweep, within a minute or until `until_s` on the store's clock."""
        store = store or self.world.store
        return expired_holds.sweep(store, counters.COUNTERS, store.clock() + 60 if until_s is None else until_s)

    def ledger(self) -> list[Item]:
        """Returns the stored holds, and the stored records of settled holds."""
        return [item for item in self.world.rows("HOLDS#") if item["state"] != {"S": hold_items.MOVED}]

    def hold(self) -> Item:
        """The only hold there is, as it is stored."""
        (hold,) = self.ledger()
        return hold

    def states(self) -> dict[str, str]:
        """The state of each hold, by its id; no hold is stored twice."""
        ledger = self.ledger()
        states = {item["hold_id"]["S"]: item["state"]["S"] for item in ledger}
        assert len(states) == len(ledger)
        return states

    def expected(self) -> int:
        """Returns the expected tallies, by the receipts only."""
        return sum(items.int_attribute(receipt, "amount") for receipt in self.world.receipts())

    def amounts(self) -> dict[str, int]:
        """Returns the amounts of the holds, by their state."""
        sums: dict[str, int] = {}
        for item in self.ledger():
            state = item["state"]["S"]
            sums[state] = sums.get(state, 0) + abs(int(item["amount"]["N"]))
        return sums


def neighbour() -> str:
    """Another item, whose holds are in the same bucket."""
    bucket = hold_items.bucket(counters.STOCK, ITEM)
    return next(id_ for id_ in map(str, range(500)) if hold_items.bucket(counters.STOCK, id_) == bucket)


def new_key() -> str:
    """Returns a new key."""
    return secrets.token_urlsafe(16)


def buy(counting: Counting, counter: Counter, amount: int | None, key: str | None = None) -> dict[str, Any] | int:
    """Take an amount, and retry with the same key. Returns the body, or what is left if the limit is reached."""
    try:
        return retry_until_final(partial(counting.increment, counter, amount, key or new_key()))[0]
    except LimitReachedError as refused:
        left = refused.members["left"]
        assert isinstance(left, int)
        return left


def refusal(change: Any) -> CallerError:
    """Returns the error of a rejected change."""
    with pytest.raises(CallerError) as caught:
        change()
    return caught.value
