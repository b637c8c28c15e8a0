"""The traffic of a world: changes as the handlers make them, and edits by hand."""

from __future__ import annotations

import contextlib
import random
import secrets
from collections.abc import Callable
from typing import Any

import counters
from tally.counter import Counter
from tally.counting import changing, children, hold_items, holds, increments, posts, settling
from tally.counting.increments import Increment
from tally.counting.tallies import TOMBSTONE
from tally.dynamo import keys, queries
from tally.dynamo.client import Call
from tally.dynamo.keys import Item
from tally.errors import HoldSettledError, LimitReachedError
from tally.maintenance import imports
from tally.streams import watermark
from tally.streams.record import amounts_of
from tests.invariants.simulation import World
from tests.invariants.stream_model import Record
from tests.invariants.truth import Tally, amount_of

VIDEOS, PAGES, POSTS, USERS_OF_USAGE, OLD_LIKES = 8, 8, 6, 3, 40
SETTLED = (hold_items.COMMITTED, hold_items.RELEASED, hold_items.VOIDED)
RESTORED = "https://example.com/restored"
"""Pages whose old image somebody puts back."""


class Traffic:
    """Writers, and a person who edits by hand."""

    def __init__(self, world: World) -> None:
        self.world, self.chance, self.truth = world, world.chance, world.truth
        self.likes: list[tuple[str, str]] = []
        """Post and user."""
        self.unliked: list[tuple[str, str]] = []
        self.holds: list[tuple[str, str, int]] = []
        """Stock, hold and amount of those that are not settled."""
        self._users = 0
        self._before()

    def _before(self) -> None:
        """Write the items from before the streams: posts, likes that are months old, tallies."""
        now = self.world.settings.minute_of(self.world.clock.now_s)
        for number in range(POSTS):
            posts.write_post(Call(self.world.store, "author"), counters.LIKES, f"p{number}", "hello")
        for _ in range(OLD_LIKES):
            post, user = f"p{self.chance.randrange(POSTS)}", self._user()
            self.put_child(post, user, at=now - self.chance.randint(100, 200_000))
            self.likes.append((post, user))
            self.truth.accepted["likes", post] += 1
            self.world.edit(1, target=post)
        for number in range(4):
            self._restore(number, 50, now - self.chance.randint(60, 1000))
            self.truth.accepted["visits", f"{RESTORED}/{number}"] = 50
        self.world.drop_new_records()

    # ---- changes ----

    def change(self) -> None:
        """Make one change, by a process with a wrong clock that waits between stamp and commit."""
        plan, chance = self.world.disturbances, self.chance
        delay_s = chance.uniform(0, 6) if chance.random() < 0.2 else chance.uniform(0, 0.3)
        if chance.random() < plan.slow:
            delay_s = chance.uniform(6, 55)
        if chance.random() < plan.late:
            delay_s = chance.uniform(60, 600)
        with self.world.clock.with_skew(chance.uniform(-plan.skew_s, plan.skew_s) - delay_s):
            self.kind()

    def kind(self) -> None:
        """One of these."""
        kinds = (self.play, self.use, self.visit, self.like, self.unlike, self.stock, self.import_, self.import_likes)
        (kind,) = self.chance.choices(kinds, [0.3, 0.1, 0.2, 0.2, 0.2, 0.1, 0.05, 0.05])
        kind(self.chance.random() < 0.2)

    def play(self, hot: bool) -> None:
        """Play a video. A play of a hot video is written alone."""
        self.increment(counters.PLAYS, f"v{self._low(VIDEOS)}", 1, hot)

    def use(self, hot: bool) -> None:
        """Change usage, up or down."""
        self.increment(
            counters.USAGE, f"u{self._low(USERS_OF_USAGE)}", self.chance.choice([1, 3] if hot else [1, 3, -2]), hot
        )

    def visit(self, _: bool) -> None:
        """Visit a page. A visit is always written alone."""
        self.increment(counters.VISITS, f"https://example.com/{self._low(PAGES)}", 1, True)

    def increment(self, counter: Counter, id_: str, amount: int, alone: bool) -> None:
        """Count an increment, and note it."""
        change = Increment(counter, id_, amount, "count", secrets.token_hex(12), {"counted": True})
        self._spread(counter, id_, alone)
        increments.count(Call(self.world.store), change)
        self.truth.accepted[counter.name, id_] += amount
        self._note_spilled()

    def like(self, hot: bool) -> None:
        """Like a post, as a new user or after an unlike. A like of a hot post is mostly written alone."""
        post, user = f"p{self._low(POSTS)}", self._user()
        back = [one for one in self.unliked if one[0] == post]
        if back and self.chance.random() < 0.3:
            user = back[0][1]
            self.unliked.remove(back[0])
        self._spread(counters.LIKES, post, hot)
        children.set_child(Call(self.world.store), counters.LIKES, post, user, True)
        self.likes.append((post, user))
        self.truth.accepted["likes", post] += 1
        self._note_spilled()

    def unlike(self, _: bool) -> None:
        """Remove a like, any like or a recent one."""
        if not self.likes:
            return
        young = min(len(self.likes), 5)
        of = self.chance.choice(self.likes[-young:] if self.chance.random() < 0.5 else self.likes)
        self.likes.remove(of)
        self._unlike(of)
        self.unliked.append(of)

    def _unlike(self, of: tuple[str, str]) -> None:
        post, user = of
        self._spread(counters.LIKES, post, False)
        children.set_child(Call(self.world.store), counters.LIKES, post, user, False)
        self.truth.accepted["likes", post] -= 1
        self._note_spilled()

    def stock(self, _: bool) -> None:
        """Stock up, place a hold, or settle a hold, which may have expired."""
        id_ = f"i{self.chance.randrange(2)}"
        what = self.chance.choice(["more", "take", "take", "settle", "settle"])
        if what == "more":
            self.increment(counters.STOCK, id_, self.chance.randint(1, 5), alone=False)
        elif what == "take":
            self.take(id_, self.chance.randint(1, 3), self.chance.choice([60, 900]))
        elif self.holds:
            one = self.holds.pop(self.chance.randrange(len(self.holds)))
            if self.chance.random() < 0.4:
                one = self.change_hold(one, self.chance.randint(1, 4), self.chance.choice([None, 60, 900]))
            self.settle(one, self.chance.choice(SETTLED))

    def take(self, id_: str, amount: int, ttl_s: int) -> None:
        """Hold an amount if enough is left. Expired holds may be released for it."""
        call, key = Call(self.world.store), secrets.token_hex(12)
        with contextlib.suppress(LimitReachedError):
            body = holds.place(call, counters.STOCK, id_, amount, ttl_s, operation="hold", key=key).body
            self.holds.append((id_, str(body["hold"]), amount))
            self.truth.accepted["stock", id_] -= amount
        self.world.take_written()

    def change_hold(self, hold: tuple[str, str, int], amount: int, ttl_s: int | None) -> tuple[str, str, int]:
        """Give a hold another amount and time, if it has not ended and there is room."""
        id_, hold_id, was = hold
        call, how = Call(self.world.store), {"operation": "change_hold", "key": secrets.token_hex(12)}
        try:
            changing.change_hold(call, counters.STOCK, id_, hold_id, amount, ttl_s, **how)
        except (HoldSettledError, LimitReachedError):
            amount = was
        self.truth.accepted["stock", id_] += was - amount
        self.world.take_written()
        return id_, hold_id, amount

    def settle(self, hold: tuple[str, str, int], state: str) -> None:
        """Release a hold, or commit it, at half of its amount if it has expired; or void what was committed."""
        id_, hold_id, amount = hold

        def settle(to: str, used: int | None = None) -> int:
            body = settling.settle(Call(self.world.store), counters.STOCK, id_, hold_id, to, used)
            return int(body.get("amount", 0))

        try:
            kept = 0 if state == hold_items.RELEASED else settle(hold_items.COMMITTED)
        except HoldSettledError:
            try:
                kept = settle(hold_items.COMMITTED, amount // 2)
            except LimitReachedError:  # somebody else has it
                kept, state = 0, hold_items.RELEASED
        if state != hold_items.COMMITTED:
            settle(state)
            kept = 0
        self.truth.accepted["stock", id_] += amount - kept
        self.world.take_written()

    def import_(self, hot: bool) -> None:
        """Import numbers, which have no day of their own."""
        number = self._low(VIDEOS)
        counter, id_, amount = self.chance.choice([
            (counters.PLAYS, f"v{number}", 30), (counters.VISITS, f"https://example.com/{number}", 7),
        ])  # fmt: skip
        self._spread(counter, id_, hot)
        row = imports.NumberRow(1, id_, amount)
        imports.import_numbers(Call(self.world.store), counter, secrets.token_hex(6), imports.Chunk(0, [row]))
        self.truth.accepted[counter.name, id_] += amount
        self.truth.imported[counter.name, id_] += amount
        self._note_spilled()

    def import_likes(self, _: bool) -> None:
        """Import likes of two days of long ago."""
        post = f"p{self._low(POSTS)}"
        rows = [imports.ChildRow(number, post, self._user(), 1_700_000_000 + 86_400 * number) for number in range(2)]
        imports.import_children(Call(self.world.store), counters.LIKES, secrets.token_hex(6), imports.Chunk(0, rows))
        self.likes += [(post, row.child) for row in rows]
        self.truth.accepted["likes", post] += len(rows)
        self.truth.imported["likes", post] += len(rows)
        self.world.take_written()

    def _spread(self, counter: Counter, id_: str, alone: bool) -> None:
        """Let the writers of a tally find it calm, contended, or hot."""
        store, partition = self.world.store, counter.partition_start + id_
        store.breaker.open_tallies.clear()
        store.spread.widths.clear()
        store.spread.random = random.Random(self.chance.random())  # type: ignore[assignment]
        if alone:
            store.breaker.trip(partition)
        elif self.chance.random() < 0.4:
            store.spread.widen(partition, counter.max_shards)

    def _note_spilled(self) -> None:
        """Note a change that was written alone, as its record shows."""
        for record in self.world.take_written():
            image = record["dynamodb"].get("NewImage", {})
            if "rollup" in image and TOMBSTONE not in image and record["eventName"] != "REMOVE":
                record["spilled"] = [
                    ((counter, id_), self.world.number(), amount) for counter, id_, amount in _waiting(record, image)
                ]
                self.truth.spilled |= dict.fromkeys((one[1] for one in record["spilled"]), self.world.clock.now_s)

    # ---- edits by hand ----

    def edit(self) -> None:
        """Make one edit by hand."""
        self.world.take_written()  # what a sweep that died has left: the next record is the edit's
        kinds: list[Callable[[], object]] = [
            self.move_tally, self.restore, self.delete_tally, self.delete_child, self.add_child,
        ]  # fmt: skip
        swept = bool(watermark.read(self.world.store).item)  # from then on an old minute is known to be one
        (kind,) = self.chance.choices(kinds, [0.5, 0.1 * swept, 0.1, 0.15, 0.15])
        kind()

    def move_tally(self) -> None:
        """Add to a tally, without a receipt."""
        tally = self.chance.choice([
            ("plays", f"v{self._low(VIDEOS)}"), ("likes", f"p{self._low(POSTS)}"),
            ("visits", f"https://example.com/{self._low(PAGES)}"), ("usage", "u0"),
        ])  # fmt: skip
        moved = self.chance.choice([-7, -1, 1, 5, 40])
        self.world.edit(moved, counters.COUNTERS[tally[0]], tally[1])
        self._note_edit(tally, moved)

    def drip(self, tally: Tally, amount: int, every_s: float, until_s: float) -> None:
        """Start a program that changes a tally directly, again and again."""
        if self.world.clock.now_s < until_s:
            self.world.take_written()
            self.world.edit(amount, counters.COUNTERS[tally[0]], tally[1])
            self._note_edit(tally, amount)
            self.world.schedule_in(every_s, self.drip, tally, amount, every_s, until_s)

    def restore(self) -> None:
        """Restore an old image of a tally, with the nonce of a change, the rollup, a repair or an unlike."""
        number, now = self.chance.randrange(4), self.world.settings.minute_of(self.world.clock.now_s)
        tally = "visits", f"{RESTORED}/{number}"
        by = self.chance.choice(["+", "+", "~60.", "-0123456789ab.", ""])
        old = self._restore(number, self.chance.choice([46, 47, 55]), now - self.chance.randint(60, 1000), by)
        self.truth.unbooked.add(tally)
        for record in self.world.take_written(by_hand=True):
            self.truth.note_edit(tally, 0, amount_of(tally, record["dynamodb"]["NewImage"]) - old)

    def delete_tally(self) -> None:
        """Delete an item of a tally, but not a post."""
        items = [
            one for one in self.world.scan("counts")
            if any(name in one for name in ("play_count", "visits", "usage")) and RESTORED not in one["PK"]["S"]
        ]  # fmt: skip
        if not items:
            return
        item = self.chance.choice(sorted(items, key=lambda one: (one["PK"]["S"], one["SK"]["S"])))
        self.world.delete({name: item[name] for name in ("PK", "SK")})
        prefix, _, id_ = item["PK"]["S"].partition("#")
        counter = {"VID": counters.PLAYS, "SITE": counters.VISITS, "USER": counters.USAGE}[prefix]
        self._note_edit((counter.name, id_), -int(item[counter.attribute]["N"]))

    def delete_child(self) -> None:
        """Delete a like without changing the tally."""
        if not self.likes:
            return
        of = self.chance.choice(self.likes)
        self.likes.remove(of)
        self._delete(of)

    def flip(self, times: int) -> None:
        """The same like is removed and put back by hand, minute after minute; the first time perhaps by its user, at
        the edge of a minute."""
        world, of = self.world, self.chance.choice(self.likes)
        key = keys.key(f"POST#{of[0]}", f"LIKE#USER#{of[1]}")
        image = queries.get(world.wire, world.name("counts"), key)
        if "rollup" in image:
            return  # put back, it would be rolled up again
        self.likes.remove(of)
        edge_s, by_user = 60 - world.clock.now_s % 60, self.chance.random() < 0.4
        for number in range(times):
            after_s = edge_s + (60 * number + (65 if by_user else 5) if number or not by_user else -0.05)
            remove = self._unlike if by_user and not number else self._delete
            world.schedule_in(after_s, remove, of)
            world.schedule_in(after_s + 6, self._put_back, of, image)
        # A slow unlike is stamped a minute before its commit. Next to the last removal by hand, nobody could tell which
        # of the halves is even with which: the row would be off by one for two minutes.
        world.schedule_in(edge_s + 60 * times + 240, self.likes.append, of)

    def _put_back(self, of: tuple[str, str], image: Item) -> None:
        self.world.take_written()
        self.world.put(image)
        self.truth.accepted["likes", of[0]] += 1
        self.truth.imported["likes", of[0]] += "imported" in image
        self._note_edit(("likes", of[0]), -1, keys.minute_of(image))

    def _delete(self, of: tuple[str, str]) -> None:
        self.world.take_written()
        self.world.delete(keys.key(f"POST#{of[0]}", f"LIKE#USER#{of[1]}"))
        self.truth.accepted["likes", of[0]] -= 1
        self._note_edit(("likes", of[0]), 1)

    def add_child(self) -> None:
        """Put a like without changing the tally."""
        post, user = f"p{self._low(POSTS)}", self._user()
        now = self.world.settings.minute_of(self.world.clock.now_s)
        at = self.chance.choice([None, now, now - 5000, now + 5000])
        self.put_child(post, user, at)
        self.likes.append((post, user))
        self.truth.accepted["likes", post] += 1
        self._note_edit(("likes", post), -1, at)

    def put_child(self, post: str, user: str, at: int | None) -> None:
        """Put a like item, as Tally writes it or without a minute."""
        item = {**keys.key(f"POST#{post}", f"LIKE#USER#{user}"), "likedAt": {"N": "1"}}
        if at is not None:
            item |= {"at": {"N": str(at)}, "nonce": {"S": secrets.token_hex(6)}}
        self.world.put(item)

    def expire(self) -> None:
        """Remove what has expired from counts, as TTL does: what unlikes left, and heartbeats."""
        for item in self.world.scan("counts"):
            if int(item.get("expiration", {"N": str(10**12)})["N"]) < self.world.clock.now_s:
                self.world.delete({name: item[name] for name in ("PK", "SK")})
        self.world.take_written()

    def _note_edit(self, tally: Tally, amount: int, at: int | None = None) -> None:
        """Note an edit on the minute of its record, or on `at` if that is near it."""

        def note(record: Record, created_s: int) -> None:
            minute = self.world.settings.minute_of(created_s)
            near = at is not None and minute - 1 <= at <= minute + 1
            self.truth.note_edit(tally, at if near and at is not None else minute, amount)

        (_,) = self.world.take_written(note)

    def _restore(self, number: int, amount: int, at: int, by: str = "+") -> int:
        """Restore a tally as it was long ago. Returns its old number. `by`: the beginning of the nonce."""
        item: dict[str, Any] = keys.key(f"SITE#{RESTORED}/{number}", "VISITS")
        item |= {"visits": {"N": str(amount)}, "at": {"N": str(at)}, "nonce": {"S": by + secrets.token_hex(6)}}
        answer = self.world.wire.put_item(TableName=self.world.name("counts"), Item=item, ReturnValues="ALL_OLD")
        return int(answer.get("Attributes", item)["visits"]["N"])

    def _low(self, number: int) -> int:
        """Returns a low number mostly, so that some tallies are busier than others."""
        return min(number - 1, int(self.chance.expovariate(3 / number)))

    def _user(self) -> str:
        self._users += 1
        return f"user{self._users}"


def _waiting(record: Record, image: Item) -> list[tuple[str, str, int]]:
    """Returns what the rollup will add for a record: counter, id and amount."""
    if "id" in record["dynamodb"]["Keys"]:
        return amounts_of(image, alone=True)
    prefix, _, id_ = image["PK"]["S"].partition("#")
    return [("likes" if prefix == counters.LIKES.prefix else "hearts", id_, 1)]
