"""More that happens to tallies: many changes under one key, removed parents, periods, and what expires."""

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
from tests.invariants.simulation import World
from tests.invariants.traffic import Traffic
from tests.invariants.truth import MINS, SOON_MINS, amount_of, tally_of


class Mixed(Traffic):
    """Traffic of which half is of these kinds."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.hearts: list[tuple[str, str]] = []
        """Page and user."""
        self.more = [
            self.joint, self.heart, self.unheart, self.remove_hearts, self.minute, self.soon_minute,
            self.numbered, self.expire_periods,
        ]  # fmt: skip

    def kind(self) -> None:
        if self.chance.random() < 0.5:
            super().kind()
        else:
            self.chance.choice(self.more)(self.chance.random() < 0.2)

    def joint(self, hot: bool) -> None:
        """Make many changes under one key: all visible now, or all soon."""
        soon = self.chance.random() < 0.3
        entries = [{"counter": "plays", "id": f"v{number}"} for number in range(self.chance.randint(1, 3))]
        entries += [{"counter": "usage", "id": "u1", "amount": 2}, {"counter": "soon_mins", "id": "k", "amount": 2}]
        if not soon:
            entries += [{"counter": "stock", "id": "i0", "amount": 3}, {"counter": "mins", "id": "k", "amount": 1}]
        wanted = batch.parse_batch(entries, counters.COUNTERS, time.time(), soon=soon)
        self._spread(counters.PLAYS, "v0", hot)
        batch.count(Call(self.world.store), wanted, operation="change", key=secrets.token_hex(12), soon=soon)
        for tally, amount in wanted.sums.items():
            self.truth.accepted[tally.counter.name, tally.id] += amount
        self._note_spilled()

    def heart(self, hot: bool) -> None:
        """Put a child whose parent may be removed."""
        page, user = f"a{self._low(3)}", self._user()
        self._spread(counters.HEARTS, page, hot)
        with contextlib.suppress(ParentRemovedError):
            children.set_child(Call(self.world.store), counters.HEARTS, page, user, True)
            self.hearts.append((page, user))
            self.truth.accepted["hearts", page] += 1
        self._note_spilled()

    def unheart(self, _: bool) -> None:
        """Remove the child."""
        if not self.hearts:
            return
        page, user = of = self.chance.choice(self.hearts[-4:] if self.chance.random() < 0.5 else self.hearts)
        self._spread(counters.HEARTS, page, False)
        with contextlib.suppress(ParentRemovedError):
            children.set_child(Call(self.world.store), counters.HEARTS, page, user, False)
            self.hearts.remove(of)
            self.truth.accepted["hearts", page] -= 1
        self._note_spilled()

    def remove_hearts(self, _: bool) -> None:
        """Remove a parent, rarely. The sweep removes its children."""
        page = f"a{self._low(3)}"
        removed = self.chance.random() < 0.15
        if removed and deletion.remove_parent(Call(self.world.store), counters.HEARTS, page):
            self.truth.accepted["hearts", page] = 0
            self.hearts = [heart for heart in self.hearts if heart[0] != page]
        self._note_spilled()

    def minute(self, hot: bool) -> None:
        """Change a tally that lives for some minutes."""
        self.increment(MINS, periods.tally_id(MINS, "k", time.time()), 1, hot)

    def soon_minute(self, hot: bool) -> None:
        """Change a tally that is always written alone."""
        self.increment(SOON_MINS, periods.tally_id(SOON_MINS, "k", time.time()), 1, hot)

    def numbered(self, _: bool) -> None:
        """Give out a number, or take a place."""
        counter: Counter = self.chance.choice([counters.TICKET, counters.CONTEST])
        change = Increment(counter, "t", counter.delta or 0, "count", secrets.token_hex(12), {"counted": True})
        tally = counter.name, "t"
        with contextlib.suppress(LimitReachedError):
            increments.count(Call(self.world.store), change)
            if tally not in self.truth.accepted:
                self.truth.accepted[tally] = self.truth.began[tally] = counter.start
            self.truth.accepted[tally] += change.amount
        self._note_spilled()

    def expire(self) -> None:
        self.expire_periods()
        super().expire()

    def expire_periods(self, _: bool = False) -> None:
        """TTL removes periods that are over, and receipts."""
        world, now_s = self.world, self.world.clock.now_s
        world.take_written()
        for item in world.scan("counts"):
            tally = tally_of(item)
            if tally and tally[0] in ("mins", "soon_mins") and int(item["expiration"]["N"]) < now_s:
                world.delete({name: item[name] for name in ("PK", "SK")})
                self.truth.accepted[tally] -= amount_of(tally, item)
        receipts = [one for one in world.scan("receipts") if not one["id"]["S"].startswith("heartbeat#")]
        for item in self.chance.sample(receipts, min(len(receipts), 5)):
            world.wire.delete_item(TableName=world.name("receipts"), Key={"id": item["id"]})
        for record in world.take_written():
            if record["eventName"] == "REMOVE":
                record["userIdentity"] = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
