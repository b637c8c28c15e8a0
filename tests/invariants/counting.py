"""Counters, numbers and holds in a world: changes as the handlers make them, and the tables as they really are."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import counters
from functions import increments as handler
from tally.api.entry import Answer
from tally.counter import Counter
from tally.counting import holds, receipts, tallies
from tally.counting.increments import Increment, count
from tally.dynamo.client import CALL_TIME_DEFAULT_S, Call
from tally.dynamo.keys import Item
from tally.errors import CallerError, LimitReachedError
from tests.invariants.world import Outcome, World, persist

ITEM = "i1"


@dataclass
class Clock:
    """The clock that holds and receipts go by: the real one, and what was added to it."""

    ahead_s: float = 0.0

    def time(self) -> float:
        """Seconds since 1970."""
        return time.time() + self.ahead_s

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        self.ahead_s += seconds

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the core go by this clock."""
        for module in (holds, receipts, tallies):
            monkeypatch.setattr(module, "time", SimpleNamespace(time=self.time, monotonic=time.monotonic))


@dataclass
class Counting:
    """What the handlers of counters and holds do, in a world."""

    world: World

    def increment(
        self,
        counter: Counter,
        amount: int | None = None,
        key: str | None = None,
        id_: str = ITEM,
        *,
        caller: str = "ann",
        within_s: float = CALL_TIME_DEFAULT_S,
    ) -> Outcome:
        """Move a counter: the body, and whether it is a replay."""
        call = self.world.call(caller, deadline_s=time.monotonic() + within_s)
        change = handler.increment(call, counter=counter, id=id_, amount=amount, idempotency_key=key or new_key())
        assert isinstance(change, Increment)
        return count(call, change)

    def set(self, counter: Counter, value: int, version: int, key: str | None = None, caller: str = "ann") -> Outcome:
        """Compare-and-set."""
        answer = handler.set_counter(
            self.world.call(caller), counter=counter, id=ITEM, value=value, version=version, idempotency_key=key
        )
        return dict(answer.body), answer.replayed

    def read(self, counter: Counter, id_: str = ITEM) -> dict[str, Any]:
        """A counter through the core."""
        answer: Answer = handler.get_counter(self.world.call(), counter=counter, id=id_)
        return dict(answer.body)

    def stored(self, counter: Counter, id_: str = ITEM) -> int:
        """The number as it is stored; `start` if it never was."""
        return self.world.tally(counter, id_) if self.world.shards(counter, id_) else counter.start

    def stock(self, amount: int) -> None:
        """Put an amount in stock."""
        self.increment(counters.STOCK, amount)

    def take(self, amount: int, ttl_s: int = 60, key: str | None = None, *, call: Call | None = None) -> Outcome:
        """Hold an amount of the stock."""
        return holds.take(
            call or self.world.call("ann"), counters.STOCK, ITEM, amount, ttl_s, operation="hold", key=key or new_key()
        )

    def settle(self, hold_id: str, state: str) -> dict[str, Any]:
        """Commit or release a hold of the stock."""
        return holds.settle(self.world.call("ann"), counters.STOCK, ITEM, hold_id, state)

    def sweep(self) -> int:
        """What the scheduled sweep does; how many holds it gave back."""
        return sum(holds.sweep(self.world.call(), counters.COUNTERS, bucket) for bucket in range(holds.BUCKETS))

    def _ledger(self) -> list[Item]:
        pages = self.world.raw.get_paginator("scan").paginate(
            TableName=self.world.store.settings.ledger_table, ConsistentRead=True
        )
        return [dict(item) for page in pages for item in page["Items"]]

    def ledger(self) -> list[Item]:
        """The holds as they are stored."""
        return [item for item in self._ledger() if item["PK"]["S"].startswith("HOLDS#")]

    def expected(self) -> int:
        """What is expected of all tallies: by receipts, and by what was booked."""
        booked = sum(int(item["expected"]["N"]) for item in self._ledger() if "expected" in item)
        return booked + sum(int(receipt["amount"]["N"]) for receipt in self.world.receipts())

    def amounts(self) -> dict[str, int]:
        """How much the stored holds have taken, by their state."""
        sums: dict[str, int] = {}
        for item in self.ledger():
            sums[item["state"]["S"]] = sums.get(item["state"]["S"], 0) + int(item["amount"]["N"])
        return sums

    def in_existence(self) -> int:
        """All that was ever stocked: what is left, what is held and what was taken for good."""
        amounts = self.amounts()
        return self.stored(counters.STOCK) + amounts.get(holds.HELD, 0) + amounts.get(holds.COMMITTED, 0)


def new_key() -> str:
    """A key that nobody used."""
    return secrets.token_urlsafe(16)


def buy(counting: Counting, counter: Counter, amount: int | None, key: str | None = None) -> dict[str, Any] | int:
    """Take it, sending it again with the same key as a good client does: the body, or what is left of too little."""
    try:
        return persist(partial(counting.increment, counter, amount, key or new_key()))[0]
    except LimitReachedError as refused:
        left = refused.members["left"]
        assert isinstance(left, int)
        return left


def refusal(change: Any) -> CallerError:
    """The error that a change is refused with."""
    with pytest.raises(CallerError) as caught:
        change()
    return caught.value
