"""The traffic of a simulated world: changes as the handlers make them, and edits by hand."""

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
from tests.invariants.simulation import SimulatedWorld
from tests.invariants.stream_model import Record
from tests.invariants.truth import Tally, amount_of

VIDEOS, PAGES, POSTS, USERS_OF_USAGE, OLD_LIKES = 8, 8, 6, 3, 40  # how many there are of each
SETTLED = (hold_items.COMMITTED, hold_items.RELEASED, hold_items.VOIDED)
RESTORED = "https://example.com/restored"
"""The start of the URLs of pages whose tallies somebody replaces by an old image."""


class Traffic:
    """Makes random changes and edits, and notes the right numbers. After each change or edit,
    `world.schedule_new_records` sends the new records of the engine's streams to the simulated consumers."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world, self.chance, self.truth = world, world.chance, world.truth
        self.likes: list[tuple[str, str]] = []
        """Post and user of each like that is stored."""
        self.removed_likes: list[tuple[str, str]] = []
        """Post and user of each like that its user has removed."""
        self.holds: list[tuple[str, str, int]] = []
        """Id of the stock, id of the hold, and amount of each open hold."""
        self._users = 0
        self._write_old_items()

    def _write_old_items(self) -> None:
        """Writes what was stored before the streams began: posts, likes that are months old, and tallies."""
        now_minute = self.world.settings.minute_of(self.world.clock.now_s)
        for number in range(POSTS):
            posts.write_post(Call(self.world.store, "author"), counters.LIKES, f"p{number}", "hello")
        for _ in range(OLD_LIKES):
            post, user = f"p{self.chance.randrange(POSTS)}", self._new_user()
            self.put_child(post, user, minute=now_minute - self.chance.randint(100, 200_000))
            self.likes.append((post, user))
            self.truth.accepted["likes", post] += 1
            self.world.edit(1, target=post)
        for number in range(4):
            self._restore(number, 50, now_minute - self.chance.randint(60, 1000))
            self.truth.accepted["visits", f"{RESTORED}/{number}"] = 50
        self.world.drop_new_records()

    # ---- changes ----

    def change(self) -> None:
        """Makes one change. Its process has a wrong clock, and waits between the stamp and the commit of the change."""
        disturbances, chance = self.world.disturbances, self.chance
        delay_s = chance.uniform(0, 6) if chance.random() < 0.2 else chance.uniform(0, 0.3)
        if chance.random() < disturbances.slow_share:
            delay_s = chance.uniform(6, 55)
        if chance.random() < disturbances.late_share:
            delay_s = chance.uniform(60, 600)
        skew_s = chance.uniform(-disturbances.skew_s, disturbances.skew_s)
        with self.world.clock.with_skew(skew_s - delay_s):  # stamped in the past, and committed now
            self.change_at_random()

    def change_at_random(self) -> None:
        """Makes a change of a random kind, of a hot tally in a fifth of the cases."""
        kinds = (self.play, self.use, self.visit, self.like, self.unlike, self.stock, self.import_, self.import_likes)
        (kind,) = self.chance.choices(kinds, [0.3, 0.1, 0.2, 0.2, 0.2, 0.1, 0.05, 0.05])
        kind(self.chance.random() < 0.2)

    def play(self, hot: bool) -> None:
        """Plays a video. A play of a hot video spills."""
        self.increment(counters.PLAYS, f"v{self._skewed_number_below(VIDEOS)}", 1, hot)

    def use(self, hot: bool) -> None:
        """Changes usage. A spilled amount is positive, because the world finds the spilled changes in a sum that the
        rollup added, oldest first, until no amount is left (`_note_rollup`)."""
        id_ = f"u{self._skewed_number_below(USERS_OF_USAGE)}"
        self.increment(counters.USAGE, id_, self.chance.choice([1, 3] if hot else [1, 3, -2]), hot)

    def visit(self, _: bool) -> None:
        """Visits a page. A visit always spills."""
        self.increment(counters.VISITS, f"https://example.com/{self._skewed_number_below(PAGES)}", 1, True)

    def increment(self, counter: Counter, id_: str, amount: int, spills: bool) -> None:
        """Counts an increment, and notes the increment. `spills`: whether to make the tally hot first."""
        change = Increment(counter, id_, amount, "count", secrets.token_hex(12), {"counted": True})
        self._set_contention(counter, id_, spills)
        increments.count(Call(self.world.store), change)
        self.truth.accepted[counter.name, id_] += amount
        self._note_spilled()

    def like(self, hot: bool) -> None:
        """Likes a post, as a new user or after an unlike. A like of a hot post spills, but not over a tombstone."""
        post, user = f"p{self._skewed_number_below(POSTS)}", self._new_user()
        removed_likes = [like for like in self.removed_likes if like[0] == post]
        if removed_likes and self.chance.random() < 0.3:
            user = removed_likes[0][1]
            self.removed_likes.remove(removed_likes[0])
        self._set_contention(counters.LIKES, post, hot)
        children.set_child(Call(self.world.store), counters.LIKES, post, user, True)
        self.likes.append((post, user))
        self.truth.accepted["likes", post] += 1
        self._note_spilled()

    def unlike(self, _: bool) -> None:
        """Removes a like, often a recent like."""
        if not self.likes:
            return
        recent_likes = self.likes[-min(len(self.likes), 5) :]
        like = self.chance.choice(recent_likes if self.chance.random() < 0.5 else self.likes)
        self.likes.remove(like)
        self._unlike(like)
        self.removed_likes.append(like)

    def _unlike(self, like: tuple[str, str]) -> None:
        post, user = like
        self._set_contention(counters.LIKES, post, False)
        children.set_child(Call(self.world.store), counters.LIKES, post, user, False)
        self.truth.accepted["likes", post] -= 1
        self._note_spilled()

    def stock(self, _: bool) -> None:
        """Adds to a stock, places a hold, or settles a hold, which may have expired or was just changed."""
        id_ = f"i{self.chance.randrange(2)}"
        act = self.chance.choice(["add", "place", "place", "settle", "settle"])
        if act == "add":
            self.increment(counters.STOCK, id_, self.chance.randint(1, 5), spills=False)
        elif act == "place":
            self.place_hold(id_, self.chance.randint(1, 3), self.chance.choice([60, 900]))
        elif self.holds:
            hold = self.holds.pop(self.chance.randrange(len(self.holds)))
            if self.chance.random() < 0.4:
                hold = self.change_hold(hold, self.chance.randint(1, 4), self.chance.choice([None, 60, 900]))
            self.settle(hold, self.chance.choice(SETTLED))

    def place_hold(self, id_: str, amount: int, ttl_s: int) -> None:
        """Places a hold if enough is left. Tally may release expired holds to make room."""
        call, key = Call(self.world.store), secrets.token_hex(12)
        with contextlib.suppress(LimitReachedError):
            body = holds.place(call, counters.STOCK, id_, amount, ttl_s, operation="hold", key=key).body
            self.holds.append((id_, str(body["hold"]), amount))
            self.truth.accepted["stock", id_] -= amount
        self.world.schedule_new_records()

    def change_hold(self, hold: tuple[str, str, int], amount: int, ttl_s: int | None) -> tuple[str, str, int]:
        """Changes the amount and the time of a hold, if the hold is open and there is room. Returns the hold."""
        id_, hold_id, old_amount = hold
        call, key = Call(self.world.store), secrets.token_hex(12)
        try:
            changing.change_hold(call, counters.STOCK, id_, hold_id, amount, ttl_s, operation="change_hold", key=key)
        except (HoldSettledError, LimitReachedError):
            amount = old_amount
        self.truth.accepted["stock", id_] += old_amount - amount
        self.world.schedule_new_records()
        return id_, hold_id, amount

    def settle(self, hold: tuple[str, str, int], state: str) -> None:
        """Releases a hold, commits it, or commits and voids it. An expired hold is committed at half of its amount."""
        id_, hold_id, amount = hold

        def settle_to(to: str, used: int | None = None) -> int:
            body = settling.settle(Call(self.world.store), counters.STOCK, id_, hold_id, to, used)
            return int(body.get("amount", 0))

        try:
            committed = 0 if state == hold_items.RELEASED else settle_to(hold_items.COMMITTED)
        except HoldSettledError:
            try:
                committed = settle_to(hold_items.COMMITTED, amount // 2)
            except LimitReachedError:  # another hold has taken the amount
                committed, state = 0, hold_items.RELEASED
        if state != hold_items.COMMITTED:
            settle_to(state)
            committed = 0
        self.truth.accepted["stock", id_] += amount - committed
        self.world.schedule_new_records()

    def import_(self, hot: bool) -> None:
        """Imports a number without a day, as from a file that has totals only."""
        number = self._skewed_number_below(VIDEOS)
        counter, id_, amount = self.chance.choice([
            (counters.PLAYS, f"v{number}", 30), (counters.VISITS, f"https://example.com/{number}", 7),
        ])  # fmt: skip
        self._set_contention(counter, id_, hot)
        row = imports.NumberRow(1, id_, amount)
        imports.import_numbers(Call(self.world.store), counter, secrets.token_hex(6), imports.Chunk(0, [row]))
        self.truth.accepted[counter.name, id_] += amount
        self.truth.imported[counter.name, id_] += amount
        self._note_spilled()

    def import_likes(self, _: bool) -> None:
        """Imports two likes of days in 2023."""
        post = f"p{self._skewed_number_below(POSTS)}"
        rows = [
            imports.ChildRow(number, post, self._new_user(), 1_700_000_000 + 86_400 * number) for number in range(2)
        ]
        imports.import_children(Call(self.world.store), counters.LIKES, secrets.token_hex(6), imports.Chunk(0, rows))
        self.likes += [(post, row.child) for row in rows]
        self.truth.accepted["likes", post] += len(rows)
        self.truth.imported["likes", post] += len(rows)
        self.world.schedule_new_records()

    def _set_contention(self, counter: Counter, id_: str, spills: bool) -> None:
        """Makes a tally hot, or lets its next changes go to several shards, or neither. `spills`: makes it hot, so that
        changes spill."""
        store, partition = self.world.store, counter.partition_start + id_
        store.breaker.open_tallies.clear()
        store.spread.widths.clear()
        store.spread.random = random.Random(self.chance.random())  # type: ignore[assignment]  # the seed decides
        if spills:
            store.breaker.trip(partition)
        elif self.chance.random() < 0.4:
            store.spread.widen(partition, counter.max_shards)

    def _note_spilled(self) -> None:
        """Notes the changes that spilled in `truth.spilled`. Adds the field `spilled` to their new records: the tally,
        the number and the amount of each change."""
        for record in self.world.schedule_new_records():
            image = record["dynamodb"].get("NewImage", {})
            if "rollup" in image and TOMBSTONE not in image and record["eventName"] != "REMOVE":
                record["spilled"] = [
                    ((counter, id_), self.world.new_change_number(), amount)
                    for counter, id_, amount in _spilled_amounts(record, image)
                ]
                self.truth.spilled |= dict.fromkeys(
                    (number for _, number, _ in record["spilled"]), self.world.clock.now_s
                )

    # ---- edits by hand ----

    def edit(self) -> None:
        """Makes one edit by hand."""
        # A sweep that died may have written, and the next new record must be the edit's.
        self.world.schedule_new_records()
        kinds: list[Callable[[], object]] = [
            self.move_tally, self.restore, self.delete_tally, self.delete_child, self.add_child,
        ]  # fmt: skip
        # Before the ledger has begun, an image with a nonce of the rollup may be booked on its own old minute, which is
        # never judged. The edit would be missed.
        has_begun = bool(watermark.read(self.world.store).item)
        (kind,) = self.chance.choices(kinds, [0.5, 0.1 * has_begun, 0.1, 0.15, 0.15])
        kind()

    def move_tally(self) -> None:
        """Adds to a tally, without a receipt."""
        tally = self.chance.choice([
            ("plays", f"v{self._skewed_number_below(VIDEOS)}"), ("likes", f"p{self._skewed_number_below(POSTS)}"),
            ("visits", f"https://example.com/{self._skewed_number_below(PAGES)}"), ("usage", "u0"),
        ])  # fmt: skip
        amount = self.chance.choice([-7, -1, 1, 5, 40])
        self.world.edit(amount, counters.COUNTERS[tally[0]], tally[1])
        self._note_edit(tally, amount)

    def edit_repeatedly(self, tally: Tally, amount: int, every_s: float, until_s: float) -> None:
        """Starts a program that edits a tally at regular times."""
        if self.world.clock.now_s < until_s:
            self.world.schedule_new_records()
            self.world.edit(amount, counters.COUNTERS[tally[0]], tally[1])
            self._note_edit(tally, amount)
            self.world.schedule_in(every_s, self.edit_repeatedly, tally, amount, every_s, until_s)

    def restore(self) -> None:
        """Restores an old image of a tally, with the nonce of the rollup, a repair, an unlike or a change."""
        number, now_minute = self.chance.randrange(4), self.world.settings.minute_of(self.world.clock.now_s)
        tally = "visits", f"{RESTORED}/{number}"
        nonce_start = self.chance.choice(["+", "+", "~60.", "-0123456789ab.", ""])
        replaced_number = self._restore(
            number, self.chance.choice([46, 47, 55]), now_minute - self.chance.randint(60, 1000), nonce_start
        )
        # The nonce decides on which minute the edit is booked, so the minute 0 is made up. A repair's nonce in an old
        # image is not a repair.
        self.truth.without_minute.add(tally)
        for record in self.world.schedule_new_records(notes_repairs=False):
            self.truth.note_drift(tally, 0, amount_of(tally, record["dynamodb"]["NewImage"]) - replaced_number)

    def delete_tally(self) -> None:
        """Deletes an item of a tally, but not a post."""
        items = [
            item for item in self.world.scan("counts")
            if any(name in item for name in ("play_count", "visits", "usage")) and RESTORED not in item["PK"]["S"]
        ]  # fmt: skip
        if not items:
            return
        item = self.chance.choice(sorted(items, key=lambda item: (item["PK"]["S"], item["SK"]["S"])))
        self.world.delete({name: item[name] for name in ("PK", "SK")})
        prefix, _, id_ = item["PK"]["S"].partition("#")
        counter = {"VID": counters.PLAYS, "SITE": counters.VISITS, "USER": counters.USAGE}[prefix]
        self._note_edit((counter.name, id_), -int(item[counter.attribute]["N"]))

    def delete_child(self) -> None:
        """Deletes a like without changing the tally."""
        if not self.likes:
            return
        like = self.chance.choice(self.likes)
        self.likes.remove(like)
        self._delete(like)

    def remove_and_restore_repeatedly(self, times: int) -> None:
        """Removes a like by hand each minute, and restores it. The first removal may be an unlike at a minute's end."""
        world, like = self.world, self.chance.choice(self.likes)
        key = keys.key(f"POST#{like[0]}", f"LIKE#USER#{like[1]}")
        image = queries.get(world.wire, world.name("counts"), key)
        if "rollup" in image:
            return  # the rollup would add the restored like a second time
        self.likes.remove(like)
        # Removals by hand are 5 s after a minute begins, and another minute later if the first removal is an unlike.
        minute_ends_in_s, by_user = 60 - world.clock.now_s % 60, self.chance.random() < 0.4
        for number in range(times):
            is_unlike = by_user and number == 0
            after_s = minute_ends_in_s - 0.05 if is_unlike else minute_ends_in_s + 60 * number + (65 if by_user else 5)
            remove = self._unlike if is_unlike else self._delete
            world.schedule_in(after_s, remove, like)
            world.schedule_in(after_s + 6, self._put_back, like, image)
        # Until then no unlike takes this like. A slow unlike is stamped a minute before its commit, so the judge could
        # pair a half of the unlike with a half of the last removal, and the row would be wrong by 1 for two minutes.
        world.schedule_in(minute_ends_in_s + 60 * times + 240, self.likes.append, like)

    def _put_back(self, like: tuple[str, str], image: Item) -> None:
        self.world.schedule_new_records()
        self.world.put(image)
        self.truth.accepted["likes", like[0]] += 1
        self.truth.imported["likes", like[0]] += "imported" in image
        self._note_edit(("likes", like[0]), -1, keys.minute_of(image))

    def _delete(self, like: tuple[str, str]) -> None:
        self.world.schedule_new_records()
        self.world.delete(keys.key(f"POST#{like[0]}", f"LIKE#USER#{like[1]}"))
        self.truth.accepted["likes", like[0]] -= 1
        self._note_edit(("likes", like[0]), 1)

    def add_child(self) -> None:
        """Puts a like without changing the tally."""
        post, user = f"p{self._skewed_number_below(POSTS)}", self._new_user()
        now_minute = self.world.settings.minute_of(self.world.clock.now_s)
        minute = self.chance.choice([None, now_minute, now_minute - 5000, now_minute + 5000])  # 5,000 minutes: days
        self.put_child(post, user, minute)
        self.likes.append((post, user))
        self.truth.accepted["likes", post] += 1
        self._note_edit(("likes", post), -1, minute)

    def put_child(self, post: str, user: str, minute: int | None) -> None:
        """Puts a like as Tally writes a like. `minute`: the minute of the like; None: without a minute and a nonce."""
        item = {**keys.key(f"POST#{post}", f"LIKE#USER#{user}"), "likedAt": {"N": "1"}}
        if minute is not None:
            item |= {"at": {"N": str(minute)}, "nonce": {"S": secrets.token_hex(6)}}
        self.world.put(item)

    def expire(self) -> None:
        """Removes the expired items of counts, which are tombstones and heartbeats, as TTL does."""
        for item in self.world.scan("counts"):
            if int(item.get("expiration", {"N": str(10**12)})["N"]) < self.world.clock.now_s:
                self.world.delete({name: item[name] for name in ("PK", "SK")})
        self.world.schedule_new_records()

    def _note_edit(self, tally: Tally, amount: int, item_minute: int | None = None) -> None:
        """Notes an edit on the minute of its record, or on `item_minute` if the two are at most one minute apart.
        `amount`: by how much the edit makes the tally too high."""

        def note(record: Record, created_s: int) -> None:
            minute = self.world.settings.minute_of(created_s)
            is_near = item_minute is not None and minute - 1 <= item_minute <= minute + 1
            self.truth.note_drift(tally, item_minute if is_near and item_minute is not None else minute, amount)

        (_,) = self.world.schedule_new_records(note)

    def _restore(self, number: int, amount: int, minute: int, nonce_start: str = "+") -> int:
        """Puts an image with an old number and minute of a tally. Returns the number that the image replaces."""
        item: dict[str, Any] = keys.key(f"SITE#{RESTORED}/{number}", "VISITS")
        nonce = nonce_start + secrets.token_hex(6)
        item |= {"visits": {"N": str(amount)}, "at": {"N": str(minute)}, "nonce": {"S": nonce}}
        answer = self.world.wire.put_item(TableName=self.world.name("counts"), Item=item, ReturnValues="ALL_OLD")
        return int(answer.get("Attributes", item)["visits"]["N"])

    def _skewed_number_below(self, end: int) -> int:
        """Returns a number below `end`, mostly a low number, so that some tallies get more changes than others."""
        return min(end - 1, int(self.chance.expovariate(3 / end)))

    def _new_user(self) -> str:
        self._users += 1
        return f"user{self._users}"


def _spilled_amounts(record: Record, image: Item) -> list[tuple[str, str, int]]:
    """Returns what the rollup will add for a record: counter, id and amount."""
    if "id" in record["dynamodb"]["Keys"]:
        return amounts_of(image, only_spilled=True)
    prefix, _, id_ = image["PK"]["S"].partition("#")
    return [("likes" if prefix == counters.LIKES.prefix else "hearts", id_, 1)]
