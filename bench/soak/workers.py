"""A process of clients: each makes changes, writes down the answers, and sends again what got none, as clients do."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import counters
from tally.counter import Counter
from tally.counting import batches
from tally.dynamo.client import Call, Store
from tally.errors import HoldSettledError, LimitReachedError, RetryableError

from . import notes
from .notes import Note, line
from .stage import Stage, become
from .weather import LATE_S_MAX, READ_TIMEOUT_S

if TYPE_CHECKING:
    from .wishes import Answered, Body, Wish

THREADS = 12
BATCH_MAX = 90
TTL_S_MAX = 6  # of a hold
VIDEOS, PAGES, USERS, POSTS, ITEMS, QUEUES, CONTESTS = 300, 200, 200, 10, 12, 8, 40
LIKERS = 25  # of each client
HOT_SHARE = 0.3  # of the changes are of the first two ids
WEIGHTS = {"batch": 8.0, "play": 20, "visit": 15, "usage": 10, "like": 25, "number": 5, "stock": 8, "hold": 4}
LONG_S, LONG_SHARE = 30.0, 0.1  # some changes are sent again much later
REPEATED_SHARE = 0.02  # of the answers never reach the client: it sends the change again
ATTEMPTS_MAX = 100  # then nobody knows whether it was counted, and the soak fails
SLOW_S = 0.9 * READ_TIMEOUT_S  # a call that took so long may have sent a copy that is still on its way
FLUSH_S = 0.3


def work(stage: Stage, number: int, operations: int) -> None:
    """Make so many changes, and end when each has its final answer."""
    become(stage, f"worker-{number}")
    weather, tokens = stage.store(stage.weather), stage.store(stage.tokens)
    with (stage.folder / f"notes-{number}.tsv").open("a") as file:
        lock = threading.Lock()

        def write(note: Note) -> None:
            with lock:
                file.write(line(note))

        share = [operations * (at + 1) // THREADS - operations * at // THREADS for at in range(THREADS)]
        clients = [Client(stage, f"{number}-{at}", weather, tokens, write) for at in range(THREADS)]
        threads = [threading.Thread(target=one.run, args=(most,)) for one, most in zip(clients, share, strict=True)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(FLUSH_S)
            with lock:
                file.flush()


class Client:
    """One of them. `weather`: the store for what a receipt protects; `tokens`: for what DynamoDB's token does."""

    def __init__(self, stage: Stage, name: str, weather: Store, tokens: Store, write: Callable[[Note], None]) -> None:
        from . import wishes  # its handlers read the environment

        self._wishes, self._name, self._weather, self._tokens, self._write = wishes, name, weather, tokens, write
        self._stage = stage
        self._chance = random.Random(f"{stage.seed}/{name}")
        self._numbers = itertools.count()
        self._begun = self._most = 0
        self._waiting: list[tuple[float, int, Wish]] = []
        """What is sent at which time, again or for the first time; on the monotonic clock."""
        self._repeats: list[tuple[float, int, Wish, Body]] = []
        self._likes: dict[tuple[str, str], bool | None] = {
            (f"p{post}", f"{name}-{user}"): False for post in range(POSTS) for user in range(LIKERS)
        }
        """None while a change of it is on its way."""
        self._freed: list[tuple[float, tuple[str, str], bool]] = []

    def run(self, most: int) -> None:
        """Make `most` changes."""
        self._most = most
        try:
            while self._begun < most:
                if not self._send_due():
                    self._something(most - self._begun)
            while self._waiting or self._repeats:
                if not self._send_due():
                    self._hurry()
        except BaseException as error:
            self._write(Note(notes.WRONG, "", "", more=f"client {self._name} died: {error!r}"))
            raise

    def _hurry(self) -> None:
        """Nothing more will come: send now what waits for later, but for what must wait."""
        now_s = time.monotonic()
        self._waiting = [(max(wish.late_until_s, 0), number, wish) for _, number, wish in self._waiting]
        heapq.heapify(self._waiting)
        self._repeats = [(0, *rest) for _, *rest in self._repeats]  # type: ignore[misc]
        if self._waiting and self._waiting[0][0] > now_s:
            time.sleep(min(0.1, self._waiting[0][0] - now_s))

    def _send_due(self) -> bool:
        """Send one change that is due; whether there was one."""
        now_s = time.monotonic()
        if self._repeats and self._repeats[0][0] <= now_s:
            _, _, wish, body = heapq.heappop(self._repeats)
            self._repeat(wish, body)
            return True
        if self._waiting and self._waiting[0][0] <= now_s:
            self._send(heapq.heappop(self._waiting)[2])
            return True
        return False

    def _later(self, wish: Wish, after_s: float) -> None:
        heapq.heappush(self._waiting, (time.monotonic() + after_s, next(self._numbers), wish))

    def _key(self) -> str:
        return f"{self._stage.seed:06}-{self._name}-{next(self._numbers):09}"

    def _one_of(self, count: int, letter: str) -> str:
        hot = self._chance.random() < HOT_SHARE
        return f"{letter}{self._chance.randrange(2 if hot else count)}"

    # What it intends.

    def _something(self, most: int) -> None:
        kind = self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if kind == "batch":
            self._batch(min(most, self._chance.randint(2, BATCH_MAX)))
            return
        self._begun += 1
        if kind == "like":
            self._like()
        elif kind == "hold":
            self._hold()
        else:
            self._send(self._increment(kind))

    def _increment(self, kind: str) -> Wish:
        chance, store = self._chance, self._weather
        counter: Counter
        match kind:
            case "play":
                counter, id_, amount = counters.PLAYS, self._one_of(VIDEOS, "v"), 1
            case "visit":
                counter, id_, amount = counters.VISITS, f"https://example.com/{self._one_of(PAGES, '')}", 1
            case "usage":
                counter, id_, amount = counters.USAGE, self._one_of(USERS, "u"), chance.randint(1, 9)
            case "number" if chance.random() < 0.3:
                counter, id_, amount = counters.CONTEST, f"c{chance.randrange(CONTESTS)}", -1
            case "number":
                counter, id_, amount = counters.TICKET, f"q{chance.randrange(QUEUES)}", 1
            case _:
                counter, id_, amount = counters.STOCK, f"i{chance.randrange(ITEMS)}", chance.choice((-3, -2, -1, 5))
        return self._wishes.increment(store, counter, id_, amount, self._key())

    def _batch(self, size: int) -> None:
        self._begun += size
        kinds = self._chance.choices(("play", "visit", "usage", "stock"), (50, 40, 20, 0.2), k=size)
        members = [self._increment(kind) for kind in kinds]
        began_s = time.monotonic()
        entries = [batches.Entry(Call(self._weather), wish.increment) for wish in members if wish.increment]
        for wish, result in zip(members, batches.count(entries), strict=True):
            self._judge(wish, result, began_s)

    def _like(self) -> None:
        self._free()
        while True:
            pair = self._chance.choice(tuple(self._likes)) if self._chance.random() < 0.7 else self._hot_pair()
            now = self._likes[pair]
            if now is not None:
                break
        wanted = not now if self._chance.random() < 0.85 else now
        key = self._key() if self._chance.random() < 0.5 else ""
        store = self._weather if key else self._tokens
        self._likes[pair] = None
        self._send(self._wishes.like(store, *pair, wanted, key))

    def _hot_pair(self) -> tuple[str, str]:
        return "p0", f"{self._name}-{self._chance.randrange(LIKERS)}"

    def _free(self) -> None:
        """Give back the likes whose late copies have arrived by now."""
        now_s = time.monotonic()
        for until_s, pair, liked in self._freed:
            if until_s <= now_s:
                self._likes[pair] = liked
        self._freed = [one for one in self._freed if one[0] > now_s]

    def _hold(self) -> None:
        """Hold stock for a short time."""
        ttl_s = self._chance.randint(2, TTL_S_MAX)
        self._send(self._wishes.hold(self._weather, f"i{self._chance.randrange(ITEMS)}", 1, ttl_s, self._key()))

    # What becomes of it.

    def _send(self, wish: Wish) -> None:
        began_s = time.monotonic()
        result: Answered | Exception
        try:
            result = wish.send()
        except Exception as error:
            result = error
        self._judge(wish, result, began_s)

    def _judge(self, wish: Wish, result: Answered | Exception, began_s: float) -> None:
        """Note the answer if it is final; else send the change again, soon or much later."""
        now_s = time.monotonic()
        if isinstance(result, RetryableError) or now_s - began_s > SLOW_S:
            wish.late_until_s = now_s + LATE_S_MAX + 0.5
        wish.attempts += 1
        if isinstance(result, RetryableError) and wish.attempts >= ATTEMPTS_MAX:
            self._note(Note(notes.UNKNOWN, wish.counter, wish.id, key=wish.key, more=repr(result)))
        elif isinstance(result, RetryableError):
            late = self._chance.random() < LONG_SHARE
            self._later(wish, self._chance.uniform(0.05, LONG_S if late else 1.0))
        elif isinstance(result, LimitReachedError) and wish.late_until_s > began_s:
            self._later(wish, wish.late_until_s - now_s)  # an earlier copy of the request may still be accepted
        elif isinstance(result, LimitReachedError):
            self._note(Note(notes.REFUSED, wish.counter, wish.id, key=wish.key))
        elif isinstance(result, HoldSettledError):
            self._note(wish.noted({"state": notes.EXPIRED}))
        elif isinstance(result, Exception):
            self._note(Note(notes.WRONG, wish.counter, wish.id, key=wish.key, more=repr(result)))
        else:
            self._accepted(wish, result[0])

    def _accepted(self, wish: Wish, body: Body) -> None:
        note = wish.noted(body)
        self._note(note)
        if note.what in (notes.LIKED, notes.UNLIKED):
            self._liked(wish, body, (note.id, note.more), note.what == notes.LIKED)
        if note.what == notes.HELD:
            self._settle_later(note)
        if wish.key and self._chance.random() < REPEATED_SHARE:
            at_s = time.monotonic() + self._chance.uniform(0, LONG_S)
            heapq.heappush(self._repeats, (at_s, next(self._numbers), wish, body))

    def _liked(self, wish: Wish, body: Body, pair: tuple[str, str], liked: bool) -> None:
        """A like or an unlike is done. Without a key, it is left alone until no late copy can change it again.

        Not so a like that was written alone: no late copy brings it back, so that is tried.
        """
        alone = liked and not wish.key and body["visible"] == "soon" and wish.late_until_s > time.monotonic()
        if alone and self._begun < self._most:
            self._begun += 1
            self._send(self._wishes.like(self._tokens, *pair, False, ""))
        else:
            self._freed.append((0.0 if wish.key else wish.late_until_s, pair, liked))

    def _settle_later(self, note: Note) -> None:
        """Settle most holds, some of them too late; the others expire."""
        fate = self._chance.random()
        if fate < 0.85 and self._begun < self._most:
            self._begun += 1
            wish = self._wishes.settle(self._weather, note.id, note.more, fate < 0.45)
            self._later(wish, self._chance.uniform(0, 0.75 * TTL_S_MAX))

    def _repeat(self, wish: Wish, body: Body) -> None:
        """Send a change again that was answered: the answer must be the same."""
        try:
            again, replayed = wish.send()
        except RetryableError:
            return
        except Exception as error:
            again, replayed = {"error": repr(error)}, False
        if not replayed or again != body:
            self._note(Note(notes.WRONG, wish.counter, wish.id, key=wish.key, more=f"{body} became {again}"))

    def _note(self, note: Note) -> None:
        self._write(
            note._replace(answered_s=round(time.time(), 3), more=note.more.replace("\t", " ").replace("\n", " "))
        )
