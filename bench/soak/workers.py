"""A process of clients: each makes changes, writes down the answers, and sends again what got none, as clients do."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import counters
from tally.counter import Counter
from tally.counting import periods
from tally.dynamo.client import Store
from tally.errors import HoldSettledError, LimitReachedError, PreconditionFailedError, RetryableError

from ..instruments import Crasher
from . import notes
from .fault_plan import LATE_S_MAX, READ_TIMEOUT_S
from .monitor import GROWING
from .notes import Note, format_note
from .setup import CLICKS, SoakSetup, set_up_process

if TYPE_CHECKING:
    from .intended_changes import Answered, Body, IntendedChange, IntendedEntry

THREADS = 24
BATCH_MAX, CHANGES_MAX = 90, 6
IMPORT_MAX, CRASHES_MAX, CRASH_WRITES_MAX = 300, 3, 5
TTL_S_MAX = 6  # of a hold
LIKERS = 15  # of each client, in each family
HOT_SHARE = 0.3  # of the changes are of the first two ids


class Move(NamedTuple):
    """Increments of a counter: of which ids, by how much, how often alone, and how often in a batch."""

    counter: Counter
    ids: Sequence[str]
    amounts: Sequence[int]
    weight: float
    batched: float = 0


def _ids(form: str, count: int) -> list[str]:
    return [form.format(number) for number in range(count)]


MOVES = {
    "play": Move(counters.PLAYS, _ids("v{}", 300), [1], 20, 50),
    "visit": Move(counters.VISITS, _ids("https://example.com/{}", 200), [1], 15, 40),
    "usage": Move(counters.USAGE, _ids("u{}", 200), range(1, 10), 10, 20),
    "click": Move(CLICKS, _ids("m{}", 20), [1, 2, -1], 6, 10),
    "call": Move(counters.CALLS, _ids("a{}", 300), [1, 5], 3),
    "stock": Move(counters.STOCK, _ids("i{}", 12), [-3, -2, -1, 5], 8, 0.2),
    "ticket": Move(counters.TICKET, _ids("q{}", 8), [1], 3.5),
    "contest": Move(counters.CONTEST, _ids("c{}", 40), [-1], 1.5),
}
FAMILIES = {counters.LIKES: _ids("p{}", 10), counters.HEARTS: _ids("h{}", 5), counters.MEMBERS: _ids("w{}", 5)}
"""The parents of children."""
WEIGHTS = {"batch": 8.0, "change": 4, "child": 25, "hold": 4, "set": 2, "load": 0.4, "reader": 3}
WEIGHTS |= {name: move.weight for name, move in MOVES.items()}
"""How often a client intends which kind: its method of this name, or an increment."""
BATCHABLE = [move for move in MOVES.values() if move.counter.is_batchable]
IMPORTABLE = [move.counter for move in MOVES.values() if not move.counter.pages] + list(FAMILIES)
LONG_S, LONG_SHARE = 30.0, 0.1  # some changes are sent again much later
REPEATED_SHARE = 0.02  # of the answers never reach the client: it sends the change again
ATTEMPTS_MAX = 100  # then nobody knows whether it was counted, and the soak fails
VOIDED_SHARE = 0.1  # of the changes that were counted
SLOW_S = 0.9 * READ_TIMEOUT_S  # a call that took so long may have sent a copy that is still on its way
FLUSH_S = 0.3


class Stores(NamedTuple):
    """What the clients of a process share.

    `faulty`: for changes that a receipt protects. `faulty_with_tokens`: for changes that DynamoDB's token protects.
    `for_imports`: for imports, which `crasher` ends in the middle. `plain`: without faults.
    """

    faulty: Store
    faulty_with_tokens: Store
    for_imports: Store
    crasher: Crasher
    plain: Store


def shares(operations: int, count: int) -> list[int]:
    """So many changes, shared by `count`."""
    return [operations * (at + 1) // count - operations * at // count for at in range(count)]


def work(stage: SoakSetup, number: int, operations: int) -> None:
    """Make so many changes, and end when each has its final answer."""
    set_up_process(stage, f"worker-{number}")
    loads = stage.store(stage.faulty_endpoint)
    stores = Stores(
        stage.store(stage.faulty_endpoint),
        stage.store(stage.faulty_endpoint_with_tokens),
        loads,
        Crasher(loads.client),
        stage.store(),
    )
    with (stage.folder / f"notes-{number}.tsv").open("a") as file:
        lock = threading.Lock()

        def write(note: Note) -> None:
            with lock:
                file.write(format_note(note))

        clients = [Client(stage, f"{number}-{at}", stores, write) for at in range(THREADS)]
        most = shares(operations, THREADS)
        threads = [threading.Thread(target=one.run, args=(share,)) for one, share in zip(clients, most, strict=True)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(FLUSH_S)
            with lock:
                file.flush()


class Client:
    """One of them."""

    def __init__(self, stage: SoakSetup, name: str, stores: Stores, write: Callable[[Note], None]) -> None:
        from . import intended_changes  # its handlers read the environment

        self._intended, self._stage, self._name, self._stores, self._write = (
            intended_changes,
            stage,
            name,
            stores,
            write,
        )
        self._chance = random.Random(f"{stage.seed}/{name}")
        self._numbers = itertools.count()
        self._begun = self._most = 0
        self._waiting: list[tuple[float, int, IntendedChange, Body | None]] = []
        """What is sent at which time, again or for the first time; on the monotonic clock. With the body of its answer,
        if it has one: then it must have the same again."""
        self._pairs = [
            intended_changes.IntendedEntry(counter, parent, child=f"{name}-{user}")
            for counter, parents in FAMILIES.items()
            for parent in parents
            for user in range(LIKERS)
        ]
        self._hot_pairs = [entry for entry in self._pairs if entry.id == FAMILIES[entry.counter][0]]
        self._children: dict[IntendedEntry, bool | None] = dict.fromkeys(self._pairs, False)
        """Whether each is there; None while a change of it is on its way."""
        self._freed: list[tuple[float, IntendedEntry, bool]] = []

    def run(self, most: int) -> None:
        """Make `most` changes."""
        self._most = most
        try:
            while self._begun < most:
                if not self._send_due():
                    self._begin_any(most - self._begun)
            while self._waiting:
                if not self._send_due():
                    self._hurry()
        except BaseException as error:
            self._write(Note(notes.WRONG, "", "", more=f"client {self._name} died: {error!r}"))
            raise

    def _hurry(self) -> None:
        """Nothing more will come: send now what waits for later, but for what must wait."""
        now_s = time.monotonic()
        self._waiting = [
            (wish.late_until_s if body is None else 0.0, number, wish, body) for _, number, wish, body in self._waiting
        ]
        heapq.heapify(self._waiting)
        if self._waiting[0][0] > now_s:
            time.sleep(min(0.1, self._waiting[0][0] - now_s))

    def _send_due(self) -> bool:
        """Send one change that is due; whether there was one."""
        if not self._waiting or self._waiting[0][0] > time.monotonic():
            return False
        _, _, wish, body = heapq.heappop(self._waiting)
        if body is None:
            self._send(wish)
        else:
            self._repeat(wish, body)
        return True

    def _send_later(self, wish: IntendedChange, after_s: float, body: Body | None = None) -> None:
        heapq.heappush(self._waiting, (time.monotonic() + after_s, next(self._numbers), wish, body))

    def _key(self) -> str:
        return f"{self._stage.seed:06}-{self._name}-{next(self._numbers):09}"

    # What it intends.

    def _begin_any(self, most: int) -> None:
        kind = self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if kind in MOVES:
            self._begin(self._increment(MOVES[kind]))
        elif wish := getattr(self, f"_{kind}")(most):
            self._begin(wish)

    def _begin(self, wish: IntendedChange) -> None:
        self._begun += len(wish.entries)
        self._send(wish)

    def _entry(self, move: Move) -> IntendedEntry:
        hot = self._chance.random() < HOT_SHARE
        id_ = self._chance.choice(move.ids[:2] if hot else move.ids)
        return self._intended.IntendedEntry(move.counter, id_, self._chance.choice(move.amounts))

    def _increment(self, move: Move) -> IntendedChange:
        return self._intended.increment(self._stores.faulty, self._entry(move), self._key())

    def _batch(self, most: int) -> None:
        """Increments in a row."""
        moves, size = list(MOVES.values()), min(most, self._chance.randint(2, BATCH_MAX))
        for move in self._chance.choices(moves, [move.batched for move in moves], k=size):
            if self._begun < self._most:  # voids of the first ones are begun, too
                self._begin(self._increment(move))

    def _change(self, most: int) -> IntendedChange:
        """Move many counters together."""
        moves = self._chance.choices(BATCHABLE, k=min(most, self._chance.randint(1, CHANGES_MAX)))
        soon = all(move.counter.may_roll_up for move in moves) and self._chance.random() < 0.5
        entries = [self._entry(move) for move in moves]
        return self._intended.change(self._stores.faulty, self._stores.plain, entries, soon, self._key())

    def _reader(self, most: int) -> IntendedChange:
        """A visitor of one of few books."""
        entry = self._intended.IntendedEntry(counters.READERS, f"b{self._chance.randrange(20)}", 1)
        return self._intended.reader(self._stores.faulty, entry, self._key())

    def _set(self, most: int) -> IntendedChange:
        return self._intended.setting(self._stores.faulty, self._entry(MOVES["stock"]), self._key())

    def _hold(self, most: int) -> IntendedChange:
        """Hold stock for a short time."""
        entry = self._entry(MOVES["stock"])._replace(amount=1)
        return self._intended.hold(self._stores.faulty, entry, self._chance.randint(2, TTL_S_MAX), self._key())

    def _load(self, most: int) -> IntendedChange:
        """Import a file: half of its rows are of ids that the others change too, and half are of its own."""
        counter, key, size = self._chance.choice(IMPORTABLE), self._key(), self._chance.randint(1, IMPORT_MAX)
        size = min(most, size // 10 + 1 if counter.is_conditional else size)  # each of these takes a transaction
        entries = [self._row(counter, f"{key}-{number}") for number in range(size)]
        writes = [self._chance.randint(1, CRASH_WRITES_MAX) for _ in range(self._chance.randint(0, CRASHES_MAX))]
        return self._intended.load(
            self._stores.for_imports, self._stores.crasher, self._stage.folder, entries, writes, key
        )

    def _row(self, counter: Counter, own: str) -> IntendedEntry:
        if counter.counts_children:
            return self._intended.IntendedEntry(counter, self._chance.choice(FAMILIES[counter]), 0, own)
        (move,) = [move for move in MOVES.values() if move.counter is counter]
        shared = self._chance.random() < 0.5 and not counter.is_conditional  # the others may use a quota up
        at_s = time.time() - self._chance.randint(0, 600)
        id_ = periods.tally_id(counter, self._entry(move).id if shared else own, at_s)
        return self._intended.IntendedEntry(counter, id_, abs(self._chance.choice(move.amounts)) * (counter.delta or 1))

    def _child(self, most: int) -> IntendedChange | None:
        """Put a child, or remove it; None while all of them are on their way."""
        self._free()
        entry = self._chance.choice(self._hot_pairs if self._chance.random() < HOT_SHARE else self._pairs)
        now = self._children[entry]
        if now is None:
            return None
        wanted = not now if self._chance.random() < 0.85 else now
        key = self._key() if self._chance.random() < 0.5 else ""
        self._children[entry] = None
        return self._intended.child(self._stores.faulty if key else self._stores.faulty_with_tokens, entry, wanted, key)

    def _free(self) -> None:
        """Give back the children whose late copies have arrived by now."""
        now_s = time.monotonic()
        for until_s, entry, there in self._freed:
            if until_s <= now_s:
                self._children[entry] = there
        self._freed = [freed for freed in self._freed if freed[0] > now_s]

    # What becomes of it.

    def _send(self, wish: IntendedChange) -> None:
        began_s = time.monotonic()
        result: Answered | Exception
        try:
            result = wish.send()
        except Exception as error:
            result = error
        self._note_answer(wish, result, began_s)

    def _note_answer(self, wish: IntendedChange, result: Answered | Exception, began_s: float) -> None:
        """Note the answer if it is final; else send the change again, soon or much later."""
        now_s = time.monotonic()
        if isinstance(result, RetryableError) or now_s - began_s > SLOW_S:
            wish.late_until_s = now_s + LATE_S_MAX + 0.5
        wish.attempts += 1
        if isinstance(result, RetryableError) and wish.attempts >= ATTEMPTS_MAX:
            self._note(wish.notes(notes.UNKNOWN, repr(result)))
        elif isinstance(result, RetryableError):
            late = self._chance.random() < LONG_SHARE
            self._send_later(wish, self._chance.uniform(0.05, LONG_S if late else 1.0))
        elif isinstance(result, LimitReachedError) and wish.late_until_s > began_s:
            self._send_later(wish, wish.late_until_s - now_s)  # an earlier copy of the request may still be accepted
        elif isinstance(result, LimitReachedError | PreconditionFailedError):
            self._note(wish.notes(notes.REFUSED))
        elif isinstance(result, HoldSettledError):
            self._note(wish.notes_of_answer({"state": notes.EXPIRED}))
        elif isinstance(result, Exception):
            self._note(wish.notes(notes.WRONG, repr(result)))
        else:
            self._accepted(wish, result[0])

    def _accepted(self, wish: IntendedChange, body: Body) -> None:
        (note, *_) = noted = wish.notes_of_answer(body)
        self._note(noted)
        if note.what in (notes.PUT, notes.REMOVED):
            self._note_child(wish, body, note.what == notes.PUT)
        if note.what == notes.HELD:
            self._settle_later(wish.entries[0], note.more)
        if wish.void and note.what == notes.COUNTED and self._chance.random() < VOIDED_SHARE:
            self._void_later(wish, noted)
        if wish.key and self._chance.random() < REPEATED_SHARE:
            self._send_later(wish, self._chance.uniform(0, LONG_S), body)

    def _note_child(self, wish: IntendedChange, body: Body, there: bool) -> None:
        """A child is put or removed. Without a key, it is left alone until no late copy can change it again.

        Not so a child that was written alone: no late copy brings it back, so that is tried.
        """
        (entry,) = wish.entries
        alone = there and not wish.key and body["visible"] == "soon" and wish.late_until_s > time.monotonic()
        if alone and self._begun < self._most:
            self._begin(self._intended.child(self._stores.faulty_with_tokens, entry, False, ""))
        else:
            self._freed.append((0.0 if wish.key else wish.late_until_s, entry, there))

    def _void_later(self, wish: IntendedChange, counted: Sequence[Note]) -> None:
        """Take a change back, but not of what only counts up. Late copies of it may come before that, and after it."""
        growing = any(note.counter in GROWING for note in counted)
        if not growing and self._begun + len(counted) <= self._most:
            self._begun += len(counted)
            void = self._intended.void(self._stores.faulty, wish, [note.id for note in counted])
            self._send_later(void, self._chance.uniform(0, TTL_S_MAX))

    def _settle_later(self, entry: IntendedEntry, hold_id: str) -> None:
        """Settle most holds, some of them too late; the others expire."""
        fate = self._chance.random()
        if fate < 0.85 and self._begun < self._most:
            self._begun += 1
            wish = self._intended.settle(self._stores.faulty, entry, hold_id, fate < 0.45)
            self._send_later(wish, self._chance.uniform(0, 0.75 * TTL_S_MAX))

    def _repeat(self, wish: IntendedChange, body: Body) -> None:
        """Send a change again that was answered: the answer must be the same."""
        try:
            again, replayed = wish.send()
        except RetryableError:
            return
        except Exception as error:
            again, replayed = {"error": repr(error)}, False
        if not replayed or again != body:
            self._note(wish.notes(notes.WRONG, f"{body} became {again}"))

    def _note(self, noted: list[Note]) -> None:
        for note in noted:
            self._write(
                note._replace(answered_s=round(time.time(), 3), more=note.more.replace("\t", " ").replace("\n", " "))
            )
