"""Traffic that also has batches, removed parents, periods, numbered counters, and items that expire."""

from __future__ import annotations

import contextlib
import secrets
import time

import counters
from tally.counter import Counter
from tally.counting import batch, children, deletion, increments, periods
from tally.counting.increments import Increment
from tally.dynamo.client import Call
from tally.errors import LimitReachedError, ParentRemovedError
from tests.invariants.simulation import SimulatedWorld
from tests.invariants.traffic import Traffic
from tests.invariants.truth import MINUTES, SOON_MINUTES, amount_of, tally_of


class Mixed(Traffic):
    """Traffic in which every second change, on average, is of the kinds in this module. `hot`: the change meets a hot
    tally, and spills if it may. A method that ignores `hot` names this parameter `_`."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self.hearts: list[tuple[str, str]] = []
        """Page and user of each heart."""
        self.more_kinds = [
            self.change_batch, self.put_heart, self.remove_heart, self.remove_page, self.change_minute,
            self.change_soon_minute, self.take_number, self.expire_periods,
        ]  # fmt: skip

    def change_at_random(self) -> None:
        if self.chance.random() < 0.5:
            super().change_at_random()
        else:
            self.chance.choice(self.more_kinds)(self.chance.random() < 0.2)

    def change_batch(self, hot: bool) -> None:
        """Count a batch. Its caller wants the changes visible now, or lets all of them spill."""
        soon = self.chance.random() < 0.3
        entries = [{"counter": "plays", "id": f"v{number}"} for number in range(self.chance.randint(1, 3))]
        entries += [{"counter": "usage", "id": "u1", "amount": 2}, {"counter": "soon_minutes", "id": "k", "amount": 2}]
        if not soon:
            entries += [{"counter": "stock", "id": "i0", "amount": 3}, {"counter": "minutes", "id": "k", "amount": 1}]
        parsed = batch.parse_batch(entries, counters.COUNTERS, time.time(), soon=soon)
        self._set_contention(counters.PLAYS, "v0", hot)
        batch.count(Call(self.world.store), parsed, operation="change", key=secrets.token_hex(12), soon=soon)
        for tally, amount in parsed.sums.items():
            self.truth.accepted[tally.counter.name, tally.id] += amount
        self._note_spilled()

    def put_heart(self, hot: bool) -> None:
        """Put a heart of a page, unless the page is removed."""
        page, user = f"a{self._skewed_number_below(3)}", self._new_user()
        self._set_contention(counters.HEARTS, page, hot)
        with contextlib.suppress(ParentRemovedError):
            children.set_child(Call(self.world.store), counters.HEARTS, page, user, True)
            self.hearts.append((page, user))
            self.truth.accepted["hearts", page] += 1
        self._note_spilled()

    def remove_heart(self, _: bool) -> None:
        """Remove a random heart, often a recent heart."""
        if not self.hearts:
            return
        page, user = heart = self.chance.choice(self.hearts[-4:] if self.chance.random() < 0.5 else self.hearts)
        self._set_contention(counters.HEARTS, page, False)
        with contextlib.suppress(ParentRemovedError):
            children.set_child(Call(self.world.store), counters.HEARTS, page, user, False)
            self.hearts.remove(heart)
            self.truth.accepted["hearts", page] -= 1
        self._note_spilled()

    def remove_page(self, _: bool) -> None:
        """Remove a page, rarely. The sweep removes the page's hearts."""
        page = f"a{self._skewed_number_below(3)}"
        if self.chance.random() < 0.15 and deletion.remove_parent(Call(self.world.store), counters.HEARTS, page):
            self.truth.accepted["hearts", page] = 0
            self.hearts = [heart for heart in self.hearts if heart[0] != page]
        self._note_spilled()

    def change_minute(self, hot: bool) -> None:
        """Change this minute's tally, which is kept for some minutes."""
        self.increment(MINUTES, periods.tally_id(MINUTES, "k", time.time()), 1, hot)

    def change_soon_minute(self, hot: bool) -> None:
        """Change this minute's tally of a counter whose changes always spill."""
        self.increment(SOON_MINUTES, periods.tally_id(SOON_MINUTES, "k", time.time()), 1, hot)

    def take_number(self, _: bool) -> None:
        """Take a ticket, or a place in a contest."""
        counter: Counter = self.chance.choice([counters.TICKET, counters.CONTEST])
        change = Increment(counter, "t", counter.delta or 0, "count", secrets.token_hex(12), {"counted": True})
        name_and_id = counter.name, "t"
        with contextlib.suppress(LimitReachedError):
            increments.count(Call(self.world.store), change)
            if name_and_id not in self.truth.accepted:
                self.truth.accepted[name_and_id] = self.truth.starts[name_and_id] = counter.start
            self.truth.accepted[name_and_id] += change.amount
        self._note_spilled()

    def expire(self) -> None:
        self.expire_periods()
        super().expire()

    def expire_periods(self, _: bool = False) -> None:
        """Remove the items of past periods and some receipts, as DynamoDB's TTL does."""
        world, now_s = self.world, self.world.clock.now_s
        world.schedule_new_records()  # so the new records below are of the removals alone
        for item in world.scan("counts"):
            tally = tally_of(item)
            if tally and tally[0] in ("minutes", "soon_minutes") and int(item["expiration"]["N"]) < now_s:
                world.delete({name: item[name] for name in ("PK", "SK")})
                self.truth.accepted[tally] -= amount_of(tally, item)
        receipts = [item for item in world.scan("receipts") if not item["id"]["S"].startswith("heartbeat#")]
        for item in self.chance.sample(receipts, min(len(receipts), 5)):
            world.wire.delete_item(TableName=world.name("receipts"), Key={"id": item["id"]})
        for record in world.schedule_new_records():
            if record["eventName"] == "REMOVE":
                # The consumers get the record later, and see that TTL removed the item.
                record["userIdentity"] = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
