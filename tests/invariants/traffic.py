"""What happens to tallies in a world: changes as the handlers make them, and edits by hand around them."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from typing import Any

import counters
from tally.counter import Counter
from tally.counting import increments, likes, posts
from tally.counting.increments import Increment
from tally.dynamo import keys
from tally.dynamo.client import Call
from tests.invariants.simulation import Tally, World, amount_of
from tests.invariants.stream_model import Record

VIDEOS, PAGES, POSTS, USERS_OF_USAGE, OLD_LIKES = 8, 8, 6, 3, 40
RESTORED = "https://example.com/restored"
"""Pages whose old image somebody puts back."""


class Traffic:
    """Writers, and somebody who edits by hand."""

    def __init__(self, world: World) -> None:
        self.world, self.chance, self.truth = world, world.chance, world.truth
        self.likes: list[tuple[str, str]] = []
        """Post and user."""
        self._users = 0
        self._before()

    def _before(self) -> None:
        """What is there when the streams are switched on: posts, likes that are months old, tallies."""
        now = self.world.settings.minute(self.world.clock.now_s)
        for number in range(POSTS):
            posts.write_post(Call(self.world.store, "author"), counters.LIKES, f"p{number}", "hello")
        for _ in range(OLD_LIKES):
            post, user = f"p{self.chance.randrange(POSTS)}", self._user()
            self.put_child(post, user, at=now - self.chance.randint(100, 200_000))
            self.likes.append((post, user))
            self.truth.accepted["likes", post] += 1
            self._add(("likes", post), 0, 1)
        for number in range(4):
            self._restore(number, 50, now - self.chance.randint(60, 1000))
            self.truth.accepted["visits", f"{RESTORED}/{number}"] = 50
        self.world.forget()

    # ---- changes ----

    def change(self) -> None:
        """Make one change, by a process whose clock is off and which takes its time between stamp and commit."""
        plan, chance = self.world.plan, self.chance
        delay_s = chance.uniform(0, 6) if chance.random() < 0.2 else chance.uniform(0, 0.3)
        if chance.random() < plan.slow:
            delay_s = chance.uniform(6, 55)
        if chance.random() < plan.late:
            delay_s = chance.uniform(60, 600)
        kinds: list[tuple[Callable[[bool], object], float]] = [
            (self.play, 0.3), (self.use, 0.1), (self.visit, 0.2), (self.like, 0.2), (self.unlike, 0.2),
        ]  # fmt: skip
        (kind,) = chance.choices([one for one, _ in kinds], [share for _, share in kinds])
        with self.world.clock.off(chance.uniform(-plan.skew_s, plan.skew_s) - delay_s):
            kind(chance.random() < 0.2)

    def play(self, hot: bool, video: str | None = None) -> None:
        """A play; a hot video's is written alone."""
        self.increment(counters.PLAYS, video or f"v{self._low(VIDEOS)}", 1, hot)

    def use(self, hot: bool) -> None:
        """An amount, up or down."""
        self.increment(
            counters.USAGE, f"u{self._low(USERS_OF_USAGE)}", self.chance.choice([1, 3] if hot else [1, 3, -2]), hot
        )

    def visit(self, hot: bool = True, page: str | None = None) -> None:
        """A visit, which is always written alone."""
        self.increment(counters.VISITS, page or f"https://example.com/{self._low(PAGES)}", 1, True)

    def increment(self, counter: Counter, id_: str, amount: int, alone: bool) -> None:
        """Count, and note it."""
        change = Increment(counter, id_, amount, "count", secrets.token_hex(12), {"counted": True})
        self._spread(counter, id_, alone)
        increments.count(Call(self.world.store), change)
        self.truth.accepted[counter.name, id_] += amount
        self._written(counter, id_, amount, alone)

    def like(self, hot: bool, post: str | None = None) -> str:
        """A like by a new user; a hot post's is written alone."""
        post, user = post or f"p{self._low(POSTS)}", self._user()
        self._spread(counters.LIKES, post, hot)
        likes.set_like(Call(self.world.store, user), counters.LIKES, post, True, operation="like", key=None)
        self.likes.append((post, user))
        self.truth.accepted["likes", post] += 1
        self._written(counters.LIKES, post, 1, hot)
        return user

    def unlike(self, _: bool = False, of: tuple[str, str] | None = None) -> None:
        """An unlike, of any like that there is or of a young one."""
        if not self.likes:
            return
        if of is None:
            young = min(len(self.likes), 5)
            of = self.chance.choice(self.likes[-young:] if self.chance.random() < 0.5 else self.likes)
        self.likes.remove(of)
        post, user = of
        self._spread(counters.LIKES, post, False)
        likes.set_like(Call(self.world.store, user), counters.LIKES, post, False, operation="unlike", key=None)
        self.truth.accepted["likes", post] -= 1
        self._written(counters.LIKES, post, -1, False)

    def _spread(self, counter: Counter, id_: str, alone: bool) -> None:
        """The writers of this tally find it calm, contended, or hot."""
        store, partition = self.world.store, counter.partition_start + id_
        store.breaker.heats.clear()
        store.spread.widths.clear()
        store.spread.random = random.Random(self.chance.random())  # type: ignore[assignment]
        if alone:
            store.breaker.trip(partition)
        elif self.chance.random() < 0.4:
            store.spread.conflict(partition, counter.max_shards)

    def _written(self, counter: Counter, id_: str, amount: int, alone: bool) -> None:
        tally, number = (counter.name, id_), self.world.number()
        if alone:
            self.truth.alone[number] = self.world.clock.now_s
        for record in self.world.written():
            if "rollup" in record["dynamodb"].get("NewImage", {}):
                assert alone
                record["alone"] = tally, number, amount
                alone = False
        assert not alone

    # ---- edits by hand ----

    def edit(self) -> None:
        """Edit something by hand."""
        kinds = [(self.move_tally, 0.5), (self.restore, 0.1), (self.delete_tally, 0.1), (self.delete_child, 0.15)]
        kinds += [(self.add_child, 0.15)]
        (kind,) = self.chance.choices([one for one, _ in kinds], [share for _, share in kinds])
        kind()

    def move_tally(self, tally: Tally | None = None, amount: int | None = None, shard: int = 0) -> None:
        """Add to a tally, without a receipt."""
        tally = tally or self.chance.choice([
            ("plays", f"v{self._low(VIDEOS)}"), ("likes", f"p{self._low(POSTS)}"),
            ("visits", f"https://example.com/{self._low(PAGES)}"), ("usage", "u0"),
        ])  # fmt: skip
        moved = self.chance.choice([-7, -1, 1, 5, 40]) if amount is None else amount
        self._add(tally, shard, moved)
        self._edited(tally, moved)

    def restore(self) -> None:
        """Put an old image of a tally back, with the rollup's nonce in it."""
        number, now = self.chance.randrange(4), self.world.settings.minute(self.world.clock.now_s)
        tally = "visits", f"{RESTORED}/{number}"
        old = self._restore(number, self.chance.choice([46, 47, 55]), now - self.chance.randint(60, 1000))
        self.truth.unbooked.add(tally)
        for record in self.world.written():
            self.truth.edits[tally].append((0, amount_of(tally, record["dynamodb"]["NewImage"]) - old))

    def delete_tally(self) -> None:
        """Delete an item of a tally, but not a post."""
        items = [
            one for one in self.world.wire.scan(TableName=self.world.names["counts"])["Items"]
            if any(name in one for name in ("play_count", "visits", "usage")) and RESTORED not in one["PK"]["S"]
        ]  # fmt: skip
        if not items:
            return
        item = self.chance.choice(sorted(items, key=lambda one: (one["PK"]["S"], one["SK"]["S"])))
        self.world.wire.delete_item(
            TableName=self.world.names["counts"], Key={name: item[name] for name in ("PK", "SK")}
        )
        prefix, _, id_ = item["PK"]["S"].partition("#")
        counter = {"VID": counters.PLAYS, "SITE": counters.VISITS, "USER": counters.USAGE}[prefix]
        self._edited((counter.name, id_), -int(item[counter.attribute]["N"]))

    def delete_child(self, of: tuple[str, str] | None = None) -> None:
        """Delete a like, and not its part of the tally."""
        if not self.likes:
            return
        post, user = of or self.chance.choice(self.likes)
        self.likes.remove((post, user))
        key = keys.key(f"POST#{post}", f"LIKE#USER#{user}")
        self.world.wire.delete_item(TableName=self.world.names["counts"], Key=key)
        self.truth.accepted["likes", post] -= 1
        self._edited(("likes", post), 1)

    def add_child(self, post: str | None = None) -> None:
        """Put a like, and not its part of the tally."""
        post, user = post or f"p{self._low(POSTS)}", self._user()
        now = self.world.settings.minute(self.world.clock.now_s)
        at = self.chance.choice([None, now, now - 5000, now + 5000])
        self.put_child(post, user, at)
        self.likes.append((post, user))
        self.truth.accepted["likes", post] += 1
        self._edited(("likes", post), -1, at)

    def put_child(self, post: str, user: str, at: int | None) -> None:
        """A like item, as Tally would write it or without a minute."""
        item = {**keys.key(f"POST#{post}", f"LIKE#USER#{user}"), "likedAt": {"N": "1"}}
        if at is not None:
            item |= {"at": {"N": str(at)}, "nonce": {"S": secrets.token_hex(6)}}
        self.world.wire.put_item(TableName=self.world.names["counts"], Item=item)

    def _edited(self, tally: Tally, amount: int, at: int | None = None) -> None:
        """Note an edit on the minute of its record, or on `at` if that is near it."""

        def note(record: Record, created_s: int) -> None:
            minute = self.world.settings.minute(created_s)
            near = at is not None and minute - 1 <= at <= minute + 1
            self.truth.edits[tally].append((at if near and at is not None else minute, amount))

        (_,) = self.world.written(note)

    def _add(self, tally: Tally, shard: int, amount: int) -> None:
        counter = counters.COUNTERS[tally[0]]
        self.world.wire.update_item(
            TableName=self.world.names["counts"],
            Key=keys.key(counter.partition_start + tally[1], counter.shard_key(shard)),
            UpdateExpression="ADD #number :amount",
            ExpressionAttributeNames={"#number": counter.attribute},
            ExpressionAttributeValues={":amount": {"N": str(amount)}},
        )

    def _restore(self, number: int, amount: int, at: int) -> int:
        """Put a tally as the rollup left it long ago; what it said before."""
        item: dict[str, Any] = keys.key(f"SITE#{RESTORED}/{number}", "VISITS")
        item |= {"visits": {"N": str(amount)}, "at": {"N": str(at)}, "nonce": {"S": f"+{secrets.token_hex(6)}"}}
        answer = self.world.wire.put_item(TableName=self.world.names["counts"], Item=item, ReturnValues="ALL_OLD")
        return int(answer.get("Attributes", item)["visits"]["N"])

    def _low(self, number: int) -> int:
        """A low number, as a rule: some tallies are busier than others."""
        return min(number - 1, int(self.chance.expovariate(3 / number)))

    def _user(self) -> str:
        self._users += 1
        return f"user{self._users}"
