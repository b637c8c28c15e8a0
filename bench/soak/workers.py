"""A process of clients. Each client makes changes and notes the answers. It resends a change that got no answer.

An operation is one intended change of one id. A batch of five changes is five operations, and so is its void.
"""

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
from .monitor import GROWING_COUNTERS
from .notes import Note, format_note
from .setup import CLICKS, SoakSetup, set_up_process

if TYPE_CHECKING:
    from .intended_changes import Answer, Body, IntendedChange, IntendedEntry

THREADS = 24  # clients in one process
BURST_MAX, BATCH_MAX = 90, 6  # increments of a burst, changes of a batch
IMPORT_MAX, CRASHES_MAX, CRASH_WRITES_MAX = 300, 3, 5  # rows and crashes of an import, writes before a crash
TTL_S_MAX = 6  # of a hold
CHILDREN = 15  # of each client, under each parent
HOT_SHARE = 0.3  # of the changes go to the first two ids


class Move(NamedTuple):
    """Increments of a counter. Clients choose a move by its `weight`, and in a burst by its `weight_in_burst`."""

    counter: Counter
    ids: Sequence[str]
    amounts: Sequence[int]
    weight: float
    weight_in_burst: float = 0


def _ids(pattern: str, count: int) -> list[str]:
    return [pattern.format(number) for number in range(count)]


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
PARENTS = {counters.LIKES: _ids("p{}", 10), counters.HEARTS: _ids("h{}", 5), counters.MEMBERS: _ids("w{}", 5)}
"""The parents of each counter of children."""
WEIGHTS = {"burst": 8.0, "batch": 4, "child": 25, "hold": 4, "set": 2, "import": 0.4, "visitor": 3}
WEIGHTS |= {name: move.weight for name, move in MOVES.items()}
"""How often a client makes each kind of change. Each name is a kind in MOVES, or a method of Client."""
BATCHABLE = [move for move in MOVES.values() if move.counter.is_batchable]
IMPORTABLE = [move.counter for move in MOVES.values() if not move.counter.pages] + list(PARENTS)
LONG_WAIT_S, LONG_WAIT_SHARE = 30.0, 0.1  # LONG_WAIT_SHARE of the retries wait for up to LONG_WAIT_S
REPEATED_SHARE = 0.02  # of the answered changes are sent again, as if the answer was lost
ATTEMPTS_MAX = 100  # after so many attempts the soak fails, because nobody knows whether the change was counted
VOIDED_SHARE = 0.1  # of the counted changes
SETTLED_SHARE, COMMITTED_SHARE = 0.85, 0.45  # of the holds; a hold that is settled without a commit is released
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
    for_imports = setup.store(setup.faulty_endpoint)
    stores = Stores(
        setup.store(setup.faulty_endpoint),
        setup.store(setup.faulty_endpoint_with_tokens),
        for_imports,
        Crasher(for_imports.client),
        setup.store(),
    )
    with (setup.folder / f"notes-{number}.tsv").open("a") as file:
        lock = threading.Lock()

        def write(note: Note) -> None:
            with lock:
                file.write(format_note(note))

        clients = [Client(setup, f"{number}-{at}", stores, write) for at in range(THREADS)]
        client_shares = shares(operations, THREADS)
        threads = [
            threading.Thread(target=client.run, args=(share,))
            for client, share in zip(clients, client_shares, strict=True)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(FLUSH_S)
            with lock:
                file.flush()


class Client:
    """A client that runs in its own thread."""

    def __init__(self, setup: SoakSetup, name: str, stores: Stores, write: Callable[[Note], None]) -> None:
        from . import intended_changes  # its handlers read the environment

        self._intended, self._setup, self._name = intended_changes, setup, name
        self._stores, self._write = stores, write
        self._chance = random.Random(f"{setup.seed}/{name}")
        self._numbers = itertools.count()
        self._begun_operations = self._operations = 0
        self._waiting: list[tuple[float, int, IntendedChange, Body | None]] = []
        """For each waiting change: the time to send it (on the monotonic clock), a number to sort by, and the change. A
        repeated change also has its first answer, because it must get the same answer."""
        self._child_entries = [
            intended_changes.IntendedEntry(counter, parent, child=f"{name}-{user}")
            for counter, parents in PARENTS.items()
            for parent in parents
            for user in range(CHILDREN)
        ]
        self._hot_child_entries = [entry for entry in self._child_entries if entry.id == PARENTS[entry.counter][0]]
        self._child_exists: dict[IntendedEntry, bool | None] = dict.fromkeys(self._child_entries, False)
        """For each child whether it exists; None while a request that changes the child may still arrive."""
        self._changing_until: list[tuple[float, IntendedEntry, bool]] = []
        """When no late request can change the child any more, the child, and whether it then exists."""

    def run(self, operations: int) -> None:
        """Make `operations` changes, and return when each has its final answer."""
        self._operations = operations
        try:
            while self._begun_operations < operations:
                if not self._send_due():
                    self._begin_any(operations - self._begun_operations)
            while self._waiting:
                if not self._send_due():
                    self._advance_waiting()
        except BaseException as error:
            self._write(Note(notes.WRONG, "", "", more=f"client {self._name} died: {error!r}"))
            raise

    def _advance_waiting(self) -> None:
        """Make waiting changes due as soon as no late copy of them can arrive, because no new change follows."""
        now_s = time.monotonic()
        self._waiting = [
            (intent.late_until_s if body is None else 0.0, number, intent, body)
            for _, number, intent, body in self._waiting
        ]
        heapq.heapify(self._waiting)
        if self._waiting[0][0] > now_s:
            time.sleep(min(0.1, self._waiting[0][0] - now_s))

    def _send_due(self) -> bool:
        """Send one change that is due. Returns whether a change was due."""
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

    def _begin_any(self, operations_left: int) -> None:
        kind = self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if kind in MOVES:
            self._begin(self._increment(MOVES[kind]))
        elif intent := getattr(self, f"_{kind}")(operations_left):
            self._begin(intent)

    def _begin(self, intent: IntendedChange) -> None:
        self._begun_operations += len(intent.entries)
        self._send(intent)

    def _entry(self, move: Move) -> IntendedEntry:
        hot = self._chance.random() < HOT_SHARE
        id_ = self._chance.choice(move.ids[:2] if hot else move.ids)
        return self._intended.IntendedEntry(move.counter, id_, self._chance.choice(move.amounts))

    def _increment(self, move: Move) -> IntendedChange:
        return self._intended.increment(self._stores.faulty, self._entry(move), self._key())

    def _burst(self, operations_left: int) -> None:
        """Make many increments, one after the other."""
        moves, size = list(MOVES.values()), min(operations_left, self._chance.randint(2, BURST_MAX))
        for move in self._chance.choices(moves, [move.weight_in_burst for move in moves], k=size):
            if self._begun_operations < self._operations:  # voids of the first increments are operations, too
                self._begin(self._increment(move))

    def _batch(self, operations_left: int) -> IntendedChange:
        """Return a batch of changes under one key."""
        moves = self._chance.choices(BATCHABLE, k=min(operations_left, self._chance.randint(1, BATCH_MAX)))
        soon = all(move.counter.may_roll_up for move in moves) and self._chance.random() < 0.5
        entries = [self._entry(move) for move in moves]
        return self._intended.batch(self._stores.faulty, self._stores.plain, entries, self._key(), soon=soon)

    def _visitor(self, operations_left: int) -> IntendedChange:
        """Return a new visitor of one of 20 books."""
        entry = self._intended.IntendedEntry(counters.READERS, f"b{self._chance.randrange(20)}", 1)
        return self._intended.add_visitor(self._stores.faulty, entry, self._key())

    def _set(self, operations_left: int) -> IntendedChange:
        return self._intended.set_number(self._stores.faulty, self._entry(MOVES["stock"]), self._key())

    def _hold(self, operations_left: int) -> IntendedChange:
        """Return a short hold of stock."""
        entry = self._entry(MOVES["stock"])._replace(amount=1)
        return self._intended.hold(self._stores.faulty, entry, self._chance.randint(2, TTL_S_MAX), self._key())

    def _import(self, operations_left: int) -> IntendedChange:
        """Return an import of a file. Half of the rows have ids that other changes use, too."""
        counter, key, size = self._chance.choice(IMPORTABLE), self._key(), self._chance.randint(1, IMPORT_MAX)
        if counter.is_conditional:  # each row of its file takes a transaction
            size = size // 10 + 1
        size = min(operations_left, size)
        entries = [self._row(counter, f"{key}-{number}") for number in range(size)]
        writes = [self._chance.randint(1, CRASH_WRITES_MAX) for _ in range(self._chance.randint(0, CRASHES_MAX))]
        stores, folder = self._stores, self._setup.folder
        return self._intended.import_file(stores.for_imports, stores.crasher, folder, entries, writes, key)

    def _row(self, counter: Counter, new_id: str) -> IntendedEntry:
        if counter.counts_children:
            return self._intended.IntendedEntry(counter, self._chance.choice(PARENTS[counter]), 0, new_id)
        (move,) = [move for move in MOVES.values() if move.counter is counter]
        # Other changes may use up the quota of a shared id.
        shared = self._chance.random() < 0.5 and not counter.is_conditional
        at_s = time.time() - self._chance.randint(0, 600)
        id_ = periods.tally_id(counter, self._entry(move).id if shared else new_id, at_s)
        return self._intended.IntendedEntry(counter, id_, abs(self._chance.choice(move.amounts)) * (counter.delta or 1))

    def _child(self, operations_left: int) -> IntendedChange | None:
        """Return the put or removal of a child, or None if another request may still change the chosen child."""
        now_s = time.monotonic()
        for until_s, entry, exists in self._changing_until:
            if until_s <= now_s:
                self._child_exists[entry] = exists
        self._changing_until = [changing for changing in self._changing_until if changing[0] > now_s]
        is_hot = self._chance.random() < HOT_SHARE
        entry = self._chance.choice(self._hot_child_entries if is_hot else self._child_entries)
        exists_now = self._child_exists[entry]
        if exists_now is None:
            return None
        put = not exists_now if self._chance.random() < 0.85 else exists_now  # the rest change nothing
        key = self._key() if self._chance.random() < 0.5 else ""
        self._child_exists[entry] = None
        store = self._stores.faulty if key else self._stores.faulty_with_tokens
        return self._intended.put_or_remove(store, entry, key, put=put)

    # The answers.

    def _send(self, intent: IntendedChange) -> None:
        began_s = time.monotonic()
        result: Answer | Exception
        try:
            result = intent.send()
        except Exception as error:
            result = error
        self._note_answer(intent, result, began_s)

    def _note_answer(self, intent: IntendedChange, result: Answer | Exception, began_s: float) -> None:
        """Note a final answer. If the answer is not final, send the change again, soon or much later."""
        now_s = time.monotonic()
        if isinstance(result, RetryableError) or now_s - began_s > SLOW_S:
            intent.late_until_s = now_s + LATE_S_MAX + 0.5  # with a margin
        intent.attempts += 1
        if isinstance(result, RetryableError) and intent.attempts >= ATTEMPTS_MAX:
            self._note(intent.notes(notes.UNKNOWN, repr(result)))
        elif isinstance(result, RetryableError):
            waits_long = self._chance.random() < LONG_WAIT_SHARE
            self._send_later(intent, self._chance.uniform(0.05, LONG_WAIT_S if waits_long else 1.0))
        elif isinstance(result, LimitReachedError) and intent.late_until_s > began_s:
            self._send_later(intent, intent.late_until_s - now_s)  # an earlier copy may still be accepted
        elif isinstance(result, LimitReachedError | PreconditionFailedError):
            self._note(intent.notes(notes.REFUSED))
        elif isinstance(result, HoldSettledError):  # nobody else settles the hold, so it has expired
            self._note(intent.notes_of_answer({"state": notes.EXPIRED}))
        elif isinstance(result, Exception):
            self._note(intent.notes(notes.WRONG, repr(result)))
        else:
            self._note_accepted(intent, result[0])

    def _note_accepted(self, intent: IntendedChange, body: Body) -> None:
        (note, *_) = accepted = intent.notes_of_answer(body)
        self._note(accepted)
        if note.what in (notes.PUT, notes.REMOVED):
            self._note_child(intent, body, note.what == notes.PUT)
        if note.what == notes.HELD:
            self._settle_later(intent.entries[0], note.more)
        if intent.void and note.what == notes.COUNTED and self._chance.random() < VOIDED_SHARE:
            self._void_later(intent, accepted)
        if intent.key and self._chance.random() < REPEATED_SHARE:
            self._send_later(intent, self._chance.uniform(0, LONG_WAIT_S), body)

    def _note_child(self, intent: IntendedChange, body: Body, exists: bool) -> None:
        """Note a child that was put or removed. Without a key, the child waits until no late copy can change it.

        If a put without a key was spilled, remove the child at once, because a late copy of the put could undo a later
        removal.
        """
        (entry,) = intent.entries
        spilled = exists and not intent.key and body["visible"] == "soon" and intent.late_until_s > time.monotonic()
        if spilled and self._begun_operations < self._operations:
            self._begin(self._intended.put_or_remove(self._stores.faulty_with_tokens, entry, "", put=False))
        else:
            self._changing_until.append((0.0 if intent.key else intent.late_until_s, entry, exists))

    def _void_later(self, intent: IntendedChange, counted: Sequence[Note]) -> None:
        """Void a change, unless its counter only counts up. Late copies of the change may come before and after."""
        growing = any(note.counter in GROWING_COUNTERS for note in counted)
        if not growing and self._begun_operations + len(counted) <= self._operations:
            self._begun_operations += len(counted)
            void = self._intended.void(self._stores.faulty, intent, [note.id for note in counted])
            self._send_later(void, self._chance.uniform(0, TTL_S_MAX))

    def _settle_later(self, entry: IntendedEntry, hold_id: str) -> None:
        """Settle most holds, some of them too late. The other holds expire."""
        drawn = self._chance.random()
        if drawn < SETTLED_SHARE and self._begun_operations < self._operations:
            self._begun_operations += 1
            intent = self._intended.settle(self._stores.faulty, entry, hold_id, commit=drawn < COMMITTED_SHARE)
            self._send_later(intent, self._chance.uniform(0, 0.75 * TTL_S_MAX))

    def _repeat(self, intent: IntendedChange, body: Body) -> None:
        """Send an answered change again. The answer must be the same."""
        try:
            second_body, replayed = intent.send()
        except RetryableError:
            return
        except Exception as error:
            second_body, replayed = {"error": repr(error)}, False
        if not replayed or second_body != body:
            self._note(intent.notes(notes.WRONG, f"{body} became {second_body}"))

    def _note(self, answered: list[Note]) -> None:
        for note in answered:
            more = note.more.replace("\t", " ").replace("\n", " ")
            self._write(note._replace(answered_s=round(time.time(), 3), more=more))
