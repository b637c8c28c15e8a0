"""A process of clients. Each makes changes and writes down the answers. It sends a change again that got no answer."""

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
LIKERS = 15  # children of each client, under each parent
HOT_SHARE = 0.3  # of the changes go to the first two ids


class Move(NamedTuple):
    """Increments of a counter. `weight`: how often a client makes one. `batched`: how often one is part of a batch."""

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
"""The parents of each counter of children."""
WEIGHTS = {"batch": 8.0, "change": 4, "child": 25, "hold": 4, "set": 2, "load": 0.4, "reader": 3}
WEIGHTS |= {name: move.weight for name, move in MOVES.items()}
"""How often a client makes each kind of change: the method of this name, or an increment."""
BATCHABLE = [move for move in MOVES.values() if move.counter.is_batchable]
IMPORTABLE = [move.counter for move in MOVES.values() if not move.counter.pages] + list(FAMILIES)
LONG_S, LONG_SHARE = 30.0, 0.1  # this share of the retries waits for up to LONG_S
REPEATED_SHARE = 0.02  # of the answered changes are sent again, as if the answer was lost
ATTEMPTS_MAX = 100  # after these it is unknown whether the change was counted, and the soak fails
VOIDED_SHARE = 0.1  # of the counted changes
SLOW_S = 0.9 * READ_TIMEOUT_S  # a call that took this long may have sent a copy that has not arrived yet
FLUSH_S = 0.3


class Stores(NamedTuple):
    """The stores that the clients of a process share.

    `faulty`: for changes that a receipt protects. `faulty_with_tokens`: for changes that DynamoDB's token protects.
    `for_imports`: for imports, which `crasher` interrupts. `plain`: without faults.
    """

    faulty: Store
    faulty_with_tokens: Store
    for_imports: Store
    crasher: Crasher
    plain: Store


def shares(operations: int, count: int) -> list[int]:
    """Returns the shares of `count` workers in the operations."""
    return [operations * (at + 1) // count - operations * at // count for at in range(count)]


def work(setup: SoakSetup, number: int, operations: int) -> None:
    """Make `operations` changes, and return when each has its final answer."""
    set_up_process(setup, f"worker-{number}")
    loads = setup.store(setup.faulty_endpoint)
    stores = Stores(
        setup.store(setup.faulty_endpoint),
        setup.store(setup.faulty_endpoint_with_tokens),
        loads,
        Crasher(loads.client),
        setup.store(),
    )
    with (setup.folder / f"notes-{number}.tsv").open("a") as file:
        lock = threading.Lock()

        def write(note: Note) -> None:
            with lock:
                file.write(format_note(note))

        clients = [Client(setup, f"{number}-{at}", stores, write) for at in range(THREADS)]
        most = shares(operations, THREADS)
        threads = [threading.Thread(target=one.run, args=(share,)) for one, share in zip(clients, most, strict=True)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(FLUSH_S)
            with lock:
                file.flush()


class Client:
    """A client, in a thread of its own."""

    def __init__(self, setup: SoakSetup, name: str, stores: Stores, write: Callable[[Note], None]) -> None:
        from . import intended_changes  # its handlers read the environment

        self._intended, self._setup, self._name = intended_changes, setup, name
        self._stores, self._write = stores, write
        self._chance = random.Random(f"{setup.seed}/{name}")
        self._numbers = itertools.count()
        self._begun = self._most = 0
        self._waiting: list[tuple[float, int, IntendedChange, Body | None]] = []
        """The time to send a change (on the monotonic clock), a number to sort by, the change, and its answer if it has
        one: a repeated change must get the same answer."""
        self._pairs = [
            intended_changes.IntendedEntry(counter, parent, child=f"{name}-{user}")
            for counter, parents in FAMILIES.items()
            for parent in parents
            for user in range(LIKERS)
        ]
        self._hot_pairs = [entry for entry in self._pairs if entry.id == FAMILIES[entry.counter][0]]
        self._children: dict[IntendedEntry, bool | None] = dict.fromkeys(self._pairs, False)
        """Whether each child exists; None while a change of the child is on its way."""
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
        """Send every waiting change as soon as a late copy of it can no longer arrive, as no new change follows."""
        now_s = time.monotonic()
        self._waiting = [
            (intent.late_until_s if body is None else 0.0, number, intent, body)
            for _, number, intent, body in self._waiting
        ]
        heapq.heapify(self._waiting)
        if self._waiting[0][0] > now_s:
            time.sleep(min(0.1, self._waiting[0][0] - now_s))

    def _send_due(self) -> bool:
        """Send one change that is due. Returns whether there was one."""
        if not self._waiting or self._waiting[0][0] > time.monotonic():
            return False
        _, _, intent, body = heapq.heappop(self._waiting)
        if body is None:
            self._send(intent)
        else:
            self._repeat(intent, body)
        return True

    def _send_later(self, intent: IntendedChange, after_s: float, body: Body | None = None) -> None:
        heapq.heappush(self._waiting, (time.monotonic() + after_s, next(self._numbers), intent, body))

    def _key(self) -> str:
        return f"{self._setup.seed:06}-{self._name}-{next(self._numbers):09}"

    # The changes that a client makes.

    def _begin_any(self, most: int) -> None:
        kind = self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if kind in MOVES:
            self._begin(self._increment(MOVES[kind]))
        elif intent := getattr(self, f"_{kind}")(most):
            self._begin(intent)

    def _begin(self, intent: IntendedChange) -> None:
        self._begun += len(intent.entries)
        self._send(intent)

    def _entry(self, move: Move) -> IntendedEntry:
        hot = self._chance.random() < HOT_SHARE
        id_ = self._chance.choice(move.ids[:2] if hot else move.ids)
        return self._intended.IntendedEntry(move.counter, id_, self._chance.choice(move.amounts))

    def _increment(self, move: Move) -> IntendedChange:
        return self._intended.increment(self._stores.faulty, self._entry(move), self._key())

    def _batch(self, most: int) -> None:
        """Make increments one after the other."""
        moves, size = list(MOVES.values()), min(most, self._chance.randint(2, BATCH_MAX))
        for move in self._chance.choices(moves, [move.batched for move in moves], k=size):
            if self._begun < self._most:  # voids of the first increments count as operations, too
                self._begin(self._increment(move))

    def _change(self, most: int) -> IntendedChange:
        """Change many counters under one key."""
        moves = self._chance.choices(BATCHABLE, k=min(most, self._chance.randint(1, CHANGES_MAX)))
        soon = all(move.counter.may_roll_up for move in moves) and self._chance.random() < 0.5
        entries = [self._entry(move) for move in moves]
        return self._intended.change(self._stores.faulty, self._stores.plain, entries, soon, self._key())

    def _reader(self, most: int) -> IntendedChange:
        """Add a visitor of one of 20 books."""
        entry = self._intended.IntendedEntry(counters.READERS, f"b{self._chance.randrange(20)}", 1)
        return self._intended.reader(self._stores.faulty, entry, self._key())

    def _set(self, most: int) -> IntendedChange:
        return self._intended.setting(self._stores.faulty, self._entry(MOVES["stock"]), self._key())

    def _hold(self, most: int) -> IntendedChange:
        """Hold stock for a short time."""
        entry = self._entry(MOVES["stock"])._replace(amount=1)
        return self._intended.hold(self._stores.faulty, entry, self._chance.randint(2, TTL_S_MAX), self._key())

    def _load(self, most: int) -> IntendedChange:
        """Import a file. Half of its rows have ids that other changes use, too; half have ids of their own."""
        counter, key, size = self._chance.choice(IMPORTABLE), self._key(), self._chance.randint(1, IMPORT_MAX)
        size = min(most, size // 10 + 1 if counter.is_conditional else size)  # a conditional row takes a transaction
        entries = [self._row(counter, f"{key}-{number}") for number in range(size)]
        writes = [self._chance.randint(1, CRASH_WRITES_MAX) for _ in range(self._chance.randint(0, CRASHES_MAX))]
        stores, folder = self._stores, self._setup.folder
        return self._intended.load(stores.for_imports, stores.crasher, folder, entries, writes, key)

    def _row(self, counter: Counter, own: str) -> IntendedEntry:
        if counter.counts_children:
            return self._intended.IntendedEntry(counter, self._chance.choice(FAMILIES[counter]), 0, own)
        (move,) = [move for move in MOVES.values() if move.counter is counter]
        shared = self._chance.random() < 0.5 and not counter.is_conditional  # other changes may use a quota up
        at_s = time.time() - self._chance.randint(0, 600)
        id_ = periods.tally_id(counter, self._entry(move).id if shared else own, at_s)
        return self._intended.IntendedEntry(counter, id_, abs(self._chance.choice(move.amounts)) * (counter.delta or 1))

    def _child(self, most: int) -> IntendedChange | None:
        """Put or remove a child. Returns None if a change of the chosen child is still on its way."""
        now_s = time.monotonic()
        for until_s, entry, there in self._freed:  # no late copy of these can arrive any more
            if until_s <= now_s:
                self._children[entry] = there
        self._freed = [freed for freed in self._freed if freed[0] > now_s]
        entry = self._chance.choice(self._hot_pairs if self._chance.random() < HOT_SHARE else self._pairs)
        now = self._children[entry]
        if now is None:
            return None
        wanted = not now if self._chance.random() < 0.85 else now
        key = self._key() if self._chance.random() < 0.5 else ""
        self._children[entry] = None
        return self._intended.child(self._stores.faulty if key else self._stores.faulty_with_tokens, entry, wanted, key)

    # The answers.

    def _send(self, intent: IntendedChange) -> None:
        began_s = time.monotonic()
        result: Answered | Exception
        try:
            result = intent.send()
        except Exception as error:
            result = error
        self._note_answer(intent, result, began_s)

    def _note_answer(self, intent: IntendedChange, result: Answered | Exception, began_s: float) -> None:
        """Note a final answer. After another answer, send the change again, soon or much later."""
        now_s = time.monotonic()
        if isinstance(result, RetryableError) or now_s - began_s > SLOW_S:
            intent.late_until_s = now_s + LATE_S_MAX + 0.5
        intent.attempts += 1
        if isinstance(result, RetryableError) and intent.attempts >= ATTEMPTS_MAX:
            self._note(intent.notes(notes.UNKNOWN, repr(result)))
        elif isinstance(result, RetryableError):
            late = self._chance.random() < LONG_SHARE
            self._send_later(intent, self._chance.uniform(0.05, LONG_S if late else 1.0))
        elif isinstance(result, LimitReachedError) and intent.late_until_s > began_s:
            self._send_later(intent, intent.late_until_s - now_s)  # an earlier copy may still be accepted
        elif isinstance(result, LimitReachedError | PreconditionFailedError):
            self._note(intent.notes(notes.REFUSED))
        elif isinstance(result, HoldSettledError):
            self._note(intent.notes_of_answer({"state": notes.EXPIRED}))
        elif isinstance(result, Exception):
            self._note(intent.notes(notes.WRONG, repr(result)))
        else:
            self._accepted(intent, result[0])

    def _accepted(self, intent: IntendedChange, body: Body) -> None:
        (note, *_) = noted = intent.notes_of_answer(body)
        self._note(noted)
        if note.what in (notes.PUT, notes.REMOVED):
            self._note_child(intent, body, note.what == notes.PUT)
        if note.what == notes.HELD:
            self._settle_later(intent.entries[0], note.more)
        if intent.void and note.what == notes.COUNTED and self._chance.random() < VOIDED_SHARE:
            self._void_later(intent, noted)
        if intent.key and self._chance.random() < REPEATED_SHARE:
            self._send_later(intent, self._chance.uniform(0, LONG_S), body)

    def _note_child(self, intent: IntendedChange, body: Body, there: bool) -> None:
        """Note a child that was put or removed. Without a key, it waits until no late copy can change it.

        If the put was written alone, the child is removed at once: a late copy of the put must not bring it back.
        """
        (entry,) = intent.entries
        alone = there and not intent.key and body["visible"] == "soon" and intent.late_until_s > time.monotonic()
        if alone and self._begun < self._most:
            self._begin(self._intended.child(self._stores.faulty_with_tokens, entry, False, ""))
        else:
            self._freed.append((0.0 if intent.key else intent.late_until_s, entry, there))

    def _void_later(self, intent: IntendedChange, counted: Sequence[Note]) -> None:
        """Void a change, unless its counter only counts up. Late copies of the change may come before and after."""
        growing = any(note.counter in GROWING for note in counted)
        if not growing and self._begun + len(counted) <= self._most:
            self._begun += len(counted)
            void = self._intended.void(self._stores.faulty, intent, [note.id for note in counted])
            self._send_later(void, self._chance.uniform(0, TTL_S_MAX))

    def _settle_later(self, entry: IntendedEntry, hold_id: str) -> None:
        """Settle most holds, and some too late. The other holds expire."""
        fate = self._chance.random()
        if fate < 0.85 and self._begun < self._most:
            self._begun += 1
            intent = self._intended.settle(self._stores.faulty, entry, hold_id, fate < 0.45)
            self._send_later(intent, self._chance.uniform(0, 0.75 * TTL_S_MAX))

    def _repeat(self, intent: IntendedChange, body: Body) -> None:
        """Send an answered change again: the answer must be the same."""
        try:
            again, replayed = intent.send()
        except RetryableError:
            return
        except Exception as error:
            again, replayed = {"error": repr(error)}, False
        if not replayed or again != body:
            self._note(intent.notes(notes.WRONG, f"{body} became {again}"))

    def _note(self, noted: list[Note]) -> None:
        for note in noted:
            more = note.more.replace("\t", " ").replace("\n", " ")
            self._write(note._replace(answered_s=round(time.time(), 3), more=more))
