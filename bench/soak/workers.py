"""A process of clients. A client makes changes, notes the final answers, and resends a change that got no answer.

An operation is one intended change of one id. So a batch of five changes has five operations, and its void has five.
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
IMPORT_MAX, CRASHES_MAX, CRASH_WRITES_MAX = 300, 3, 5  # of an import: rows, crashes, and writes before each crash
TTL_S_MAX = 6  # a hold expires after 2 to 6 s, so some holds expire before their client settles them
VOID_AFTER_S_MAX = 6  # a void begins at most so long after the answer to its change
CHILDREN_PER_PARENT = 15  # children that a client puts and removes; no other client changes these children
HOT_SHARE = 0.3  # the share of the changes that go to the first two ids of a counter, or to its first parent


class IncrementKind(NamedTuple):
    """Increments of a counter. A client draws a kind by `weight` (burst: `weight_in_burst`), an id, and an amount."""

    counter: Counter
    ids: Sequence[str]
    amounts: Sequence[int]
    weight: float
    weight_in_burst: float = 0


def _ids(pattern: str, count: int) -> list[str]:
    return [pattern.format(number) for number in range(count)]


INCREMENTS = {
    "play": IncrementKind(counters.PLAYS, _ids("v{}", 300), [1], 20, 50),
    "visit": IncrementKind(counters.VISITS, _ids("https://example.com/{}", 200), [1], 15, 40),
    "usage": IncrementKind(counters.USAGE, _ids("u{}", 200), range(1, 10), 10, 20),
    "click": IncrementKind(CLICKS, _ids("m{}", 20), [1, 2, -1], 6, 10),
    "call": IncrementKind(counters.CALLS, _ids("a{}", 300), [1, 5], 3),
    "stock": IncrementKind(counters.STOCK, _ids("i{}", 12), [-3, -2, -1, 5], 8, 0.2),
    "ticket": IncrementKind(counters.TICKET, _ids("q{}", 8), [1], 3.5),
    "contest": IncrementKind(counters.CONTEST, _ids("c{}", 40), [-1], 1.5),
}
PARENTS = {counters.LIKES: _ids("p{}", 10), counters.HEARTS: _ids("h{}", 5), counters.MEMBERS: _ids("w{}", 5)}
"""The parents of each counter of children."""
WEIGHTS = {"burst": 8.0, "batch": 4, "child": 25, "hold": 4, "set": 2, "import": 0.4, "visitor": 3}
WEIGHTS |= {name: kind.weight for name, kind in INCREMENTS.items()}
"""How often a client makes each kind of change. A name is a key of INCREMENTS, or a method's name: Client._burst."""
BATCHABLE = [kind for kind in INCREMENTS.values() if kind.counter.is_batchable]
IMPORTABLE = [kind.counter for kind in INCREMENTS.values() if not kind.counter.pages] + list(PARENTS)
LONG_WAIT_S, LONG_WAIT_SHARE = 30.0, 0.1  # LONG_WAIT_SHARE of the retries wait for up to LONG_WAIT_S
REPEATED_SHARE = 0.02  # the share of the answered changes with a key that are sent again, as if the answer was lost
ATTEMPTS_MAX = 100  # after so many attempts the soak fails, because nobody knows whether the change was counted
VOIDED_SHARE = 0.1  # the share of the counted changes that are voided
SETTLED_SHARE, COMMITTED_SHARE = 0.85, 0.45  # 45 % of the holds are committed, 40 % released, 15 % expire
SLOW_S = 0.9 * READ_TIMEOUT_S  # after a timeout the SDK sends a copy, so a longer call may have a copy on its way
FLUSH_S = 0.3  # between two flushes of the notes, which the monitor reads


class Stores(NamedTuple):
    """The stores that the clients of a process share.

    A change that is sent twice must count once. `faulty`: for changes with a receipt, which ensures this.
    `faulty_with_tokens`: for changes without a receipt, for which DynamoDB's token ensures this. `for_imports`: for
    imports, which `crasher` interrupts. `faultless`: a store whose requests meet no faults.
    """

    faulty: Store
    faulty_with_tokens: Store
    for_imports: Store
    crasher: Crasher
    faultless: Store


def split(operations: int, parts: int) -> list[int]:
    """Returns the sizes of `parts` nearly equal parts of the operations."""
    return [operations * (at + 1) // parts - operations * at // parts for at in range(parts)]


def work(setup: SoakSetup, number: int, operations: int) -> None:
    """Make changes until they have `operations` operations, and return when each change has its final answer.

    `number`: the number of this worker.
    """
    set_up_process(setup, f"worker-{number}")
    for_imports = setup.store(setup.faulty_endpoint)
    stores = Stores(
        setup.store(setup.faulty_endpoint),
        setup.store(setup.faulty_endpoint_with_tokens),
        for_imports,
        Crasher(for_imports.client),
        setup.faultless_store(),
    )
    with (setup.folder / f"notes-{number}.tsv").open("a") as file:
        lock = threading.Lock()

        def write(note: Note) -> None:
            with lock:
                file.write(format_note(note))

        clients = [Client(setup, f"{number}-{at}", stores, write) for at in range(THREADS)]
        threads = [
            threading.Thread(target=client.run, args=(part,))
            for client, part in zip(clients, split(operations, THREADS), strict=True)
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
        from . import intended_changes  # after `set_up_process`: the import reads the environment

        self._intended_changes, self._setup, self._name = intended_changes, setup, name
        self._stores, self._write = stores, write
        self._chance = random.Random(f"{setup.seed}/{name}")
        self._numbers = itertools.count()  # for keys, and to order changes that are due at the same time
        self._begun_operations = self._operations_max = 0
        self._waiting: list[tuple[float, int, IntendedChange, Body | None]] = []
        """For each waiting change: the time to send the change (on the monotonic clock), a number that decides between
        equal times, and the change. A repeated change also has its first answer, which the second answer must equal."""
        self._child_entries = [
            intended_changes.IntendedEntry(counter, parent, child=f"{name}-{user}")
            for counter, parents in PARENTS.items()
            for parent in parents
            for user in range(CHILDREN_PER_PARENT)
        ]
        self._hot_child_entries = [entry for entry in self._child_entries if entry.id == PARENTS[entry.counter][0]]
        self._child_exists: dict[IntendedEntry, bool | None] = dict.fromkeys(self._child_entries, False)
        """For each child whether it exists; None while a request that changes the child may still arrive."""
        self._changing_until: list[tuple[float, IntendedEntry, bool]] = []
        """For each child that a late request may change: until when, the child, and whether the child then exists."""

    def run(self, operations: int) -> None:
        """Make changes until they have `operations` operations, and return when each change has its final answer."""
        self._operations_max = operations
        try:
            while self._begun_operations < operations:
                if not self._send_due():
                    self._begin_random_change(operations - self._begun_operations)
            while self._waiting:
                if not self._send_due():
                    self._shorten_waits()
        except BaseException as error:
            self._write(Note(notes.WRONG, "", "", detail=f"client {self._name} died: {error!r}"))
            raise

    def _shorten_waits(self) -> None:
        """Make each waiting change due as soon as no late copy of the change can arrive. Make each repeat due now. If
        no change is due, sleep for up to 0.1 s."""
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

    def _begin_random_change(self, operations_left: int) -> None:
        """Begin a change of a random kind. The kind's method, such as `_batch`, returns the change to begin. The method
        returns None if it began its changes itself (`_burst`), or if no change can begin now (`_child`)."""
        name = self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if name in INCREMENTS:
            self._begin(self._increment(INCREMENTS[name]))
        elif intent := getattr(self, f"_{name}")(operations_left):
            self._begin(intent)

    def _begin(self, intent: IntendedChange) -> None:
        self._begun_operations += len(intent.entries)
        self._send(intent)

    def _entry(self, kind: IncrementKind) -> IntendedEntry:
        is_hot = self._chance.random() < HOT_SHARE
        id_ = self._chance.choice(kind.ids[:2] if is_hot else kind.ids)
        return self._intended_changes.IntendedEntry(kind.counter, id_, self._chance.choice(kind.amounts))

    def _increment(self, kind: IncrementKind) -> IntendedChange:
        return self._intended_changes.increment(self._stores.faulty, self._entry(kind), self._key())

    def _burst(self, operations_left: int) -> None:
        """Make many increments, one after the other."""
        kinds, size = list(INCREMENTS.values()), min(operations_left, self._chance.randint(2, BURST_MAX))
        for kind in self._chance.choices(kinds, [kind.weight_in_burst for kind in kinds], k=size):
            # An increment of this burst may have planned its void, which also takes operations.
            if self._begun_operations < self._operations_max:
                self._begin(self._increment(kind))

    def _batch(self, operations_left: int) -> IntendedChange:
        """Return a batch of changes under one key."""
        kinds = self._chance.choices(BATCHABLE, k=min(operations_left, self._chance.randint(1, BATCH_MAX)))
        soon = all(kind.counter.may_roll_up for kind in kinds) and self._chance.random() < 0.5
        stores, entries = self._stores, [self._entry(kind) for kind in kinds]
        return self._intended_changes.batch(stores.faulty, stores.faultless, entries, self._key(), soon=soon)

    def _visitor(self, operations_left: int) -> IntendedChange:
        """Return the visit of a new visitor to one of 20 books."""
        entry = self._intended_changes.IntendedEntry(counters.READERS, f"b{self._chance.randrange(20)}", 1)
        return self._intended_changes.add_visitor(self._stores.faulty, entry, self._key())

    def _set(self, operations_left: int) -> IntendedChange:
        return self._intended_changes.set_number(self._stores.faulty, self._entry(INCREMENTS["stock"]), self._key())

    def _hold(self, operations_left: int) -> IntendedChange:
        """Return a short hold of stock."""
        entry = self._entry(INCREMENTS["stock"])._replace(amount=1)
        return self._intended_changes.hold(self._stores.faulty, entry, self._chance.randint(2, TTL_S_MAX), self._key())

    def _import(self, operations_left: int) -> IntendedChange:
        """Return an import of a file. Half of the rows have ids that other changes use, too."""
        counter, key, size = self._chance.choice(IMPORTABLE), self._key(), self._chance.randint(1, IMPORT_MAX)
        if counter.is_conditional:  # each row takes a transaction, so the import has fewer rows
            size = size // 10 + 1
        size = min(operations_left, size)
        entries = [self._imported_row(counter, f"{key}-{number}") for number in range(size)]
        crash_after = [self._chance.randint(1, CRASH_WRITES_MAX) for _ in range(self._chance.randint(0, CRASHES_MAX))]
        stores, folder = self._stores, self._setup.folder
        return self._intended_changes.import_file(stores.for_imports, stores.crasher, folder, entries, crash_after, key)

    def _imported_row(self, counter: Counter, new_name: str) -> IntendedEntry:
        """Return a row of an import file. `new_name`: a name that no other change uses. If the counter counts children,
        the name is the row's child. Otherwise the name is the row's id, unless the row has an id of other changes."""
        if counter.counts_children:
            return self._intended_changes.IntendedEntry(counter, self._chance.choice(PARENTS[counter]), 0, new_name)
        (kind,) = [kind for kind in INCREMENTS.values() if kind.counter is counter]
        # Other changes may use up the limit of a shared id. So the rows of a conditional counter have new ids.
        is_shared = self._chance.random() < 0.5 and not counter.is_conditional
        at_s = time.time() - self._chance.randint(0, 600)  # a row may be of an earlier period
        id_ = periods.tally_id(counter, self._entry(kind).id if is_shared else new_name, at_s)
        value = abs(self._chance.choice(kind.amounts))  # an imported stock must not be below 0
        amount = value * (counter.delta or 1)
        return self._intended_changes.IntendedEntry(counter, id_, amount)

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
        put = not exists_now if self._chance.random() < 0.85 else exists_now  # 15 % of the requests change nothing
        key = self._key() if self._chance.random() < 0.5 else ""
        self._child_exists[entry] = None
        store = self._stores.faulty if key else self._stores.faulty_with_tokens
        return self._intended_changes.put_or_remove(store, entry, key, put=put)

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
            # A late copy of the change may be accepted, so the refusal is not final.
            self._send_later(intent, intent.late_until_s - now_s)
        elif isinstance(result, LimitReachedError | PreconditionFailedError):
            self._note(intent.notes(notes.REFUSED))
        elif isinstance(result, HoldSettledError):  # nobody else settles the hold, so the hold has expired
            self._note(intent.notes_of_answer({"state": notes.EXPIRED}))
        elif isinstance(result, Exception):
            self._note(intent.notes(notes.WRONG, repr(result)))
        else:
            self._note_accepted(intent, result[0])

    def _note_accepted(self, intent: IntendedChange, body: Body) -> None:
        (note, *_) = accepted = intent.notes_of_answer(body)
        self._note(accepted)
        if note.outcome in (notes.PUT, notes.REMOVED):
            self._note_child(intent, body, note.outcome == notes.PUT)
        if note.outcome == notes.HELD:
            self._settle_later(intent.entries[0], note.detail)
        if intent.send_void is not None and note.outcome == notes.COUNTED and self._chance.random() < VOIDED_SHARE:
            self._void_later(intent, accepted)
        if intent.key and self._chance.random() < REPEATED_SHARE:
            self._send_later(intent, self._chance.uniform(0, LONG_WAIT_S), body)

    def _note_child(self, intent: IntendedChange, body: Body, exists: bool) -> None:
        """Note a child that was put or removed. After a change without a key, the client leaves the child alone until
        no late copy can arrive.

        If a put without a key was spilled, remove the child at once, to test that a late copy of the put does not put
        the child once more.
        """
        (entry,) = intent.entries
        spilled = exists and not intent.key and body["visible"] == "soon" and intent.late_until_s > time.monotonic()
        if spilled and self._begun_operations < self._operations_max:
            self._begin(self._intended_changes.put_or_remove(self._stores.faulty_with_tokens, entry, "", put=False))
        else:
            self._changing_until.append((0.0 if intent.key else intent.late_until_s, entry, exists))

    def _void_later(self, intent: IntendedChange, counted: Sequence[Note]) -> None:
        """Void a change, unless the monitor expects that the counter of the change only counts up."""
        only_grows = any(note.counter in GROWING_COUNTERS for note in counted)
        if not only_grows and self._begun_operations + len(counted) <= self._operations_max:
            self._begun_operations += len(counted)
            void = self._intended_changes.void(self._stores.faulty, intent, [note.id for note in counted])
            self._send_later(void, self._chance.uniform(0, VOID_AFTER_S_MAX))

    def _settle_later(self, entry: IntendedEntry, hold_id: str) -> None:
        """Settle most holds. The other holds expire, and so do holds that are settled too late."""
        drawn = self._chance.random()
        if drawn < SETTLED_SHARE and self._begun_operations < self._operations_max:
            self._begun_operations += 1
            intent = self._intended_changes.settle(self._stores.faulty, entry, hold_id, commit=drawn < COMMITTED_SHARE)
            self._send_later(intent, self._chance.uniform(0, 0.75 * TTL_S_MAX))

    def _repeat(self, intent: IntendedChange, body: Body) -> None:
        """Send an answered change again. The answer must be a replay with the body of the first answer."""
        try:
            second_body, replayed = intent.send()
        except RetryableError:
            return
        except Exception as error:
            second_body, replayed = {"error": repr(error)}, False
        if not replayed or second_body != body:
            self._note(intent.notes(notes.WRONG, f"{body} became {second_body}"))

    def _note(self, unwritten_notes: list[Note]) -> None:
        for note in unwritten_notes:
            detail = note.detail.replace("\t", " ").replace("\n", " ")
            self._write(note._replace(answered_s=round(time.time(), 3), detail=detail))
