"""The changes that a client can make, as the handlers make them. Import this module after the environment is set."""

from __future__ import annotations

import csv
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import counters
from tally.cli import files
from tally.cli.connection import Stack
from tally.cli.imports import IMPORT
from tally.counter import Counter
from tally.counting import periods, receipts, tallies
from tally.counting.batch import RECEIPT_TARGET
from tally.counting.receipts import ReceiptKey
from tally.counting.tallies import State
from tally.dynamo import queries
from tally.dynamo.client import Call, Store
from tally.errors import StoreBusyError
from tally.operations import changes, children, holds, increments, visits
from tally.streams import record

from ..instruments import Crasher, CrashError
from . import notes
from .notes import Note

CHILD_PUT_AT = "2024-02-29T12:00:00Z"  # the time of each imported child

Body = Mapping[str, Any]
Answer = tuple[Body, bool]
"""The body of an answer, and whether it was a replay."""


class IntendedEntry(NamedTuple):
    """An intended change of one id: an amount, or a child."""

    counter: Counter
    id: str
    amount: int = 0
    child: str = ""

    def note(self, outcome: str, key: str, detail: object = "") -> Note:
        """Returns a note. `outcome`: a constant of notes.py, such as COUNTED. `detail`: as in `Note`."""
        return Note(outcome, self.counter.name, self.id, self.amount, key, detail=str(detail))


@dataclass
class IntendedChange:
    """One intended change. A client calls `send` until it has a final answer. `key`: "" if the change has no key."""

    key: str
    entries: Sequence[IntendedEntry]
    send: Callable[[], Answer]
    notes_of_answer: Callable[[Body], list[Note]]
    """Returns a note for each entry from the answer."""
    late_until_s: float = 0.0
    """The time up to which a late copy of an earlier request may arrive, on the monotonic clock."""
    attempts: int = 0
    made_s: float = field(default_factory=time.time)  # the tally is of the period of this time, or of a later period
    send_void: Callable[..., Any] | None = None
    """Voids the change by its key. None: its counter has no voids."""

    def notes(self, outcome: str, detail: object = "") -> list[Note]:
        """Returns a note for each entry, all with this outcome and detail."""
        return [entry.note(outcome, self.key, detail) for entry in self.entries]


def _answer_of(answer: Any) -> Answer:
    return answer.body, answer.replayed


def _counted_note(entry: IntendedEntry, tally_id: str, made_s: float, key: str, detail: object = "") -> Note:
    """Returns the note of a counted entry. If the tally's period is before `made_s` or after now, the note is WRONG."""
    first, last = (periods.tally_id(entry.counter, entry.id, at_s) for at_s in (made_s, time.time()))
    outcome = notes.COUNTED if first <= tally_id <= last else notes.WRONG
    return entry._replace(id=tally_id).note(outcome, key, detail)


def increment(store: Store, entry: IntendedEntry, key: str) -> IntendedChange:
    """Returns a play, a visit, or another increment."""
    counter, id_, amount, _ = entry

    def send() -> Answer:
        if counter is counters.VISITS:
            return _answer_of(visits.visit(Call(store), url=id_, idempotency_key=key))
        fields = {"counter": counter, "id": id_, "amount": amount, "idempotency_key": key}
        return _answer_of(increments.increment(Call(store), **fields))

    def notes_of_answer(body: Body) -> list[Note]:
        return [_counted_note(entry, periods.tally_id_of_answer(id_, body), intent.made_s, key, body.get("number", ""))]

    undo = partial(changes.void, counter=counter, id=id_, key=key) if counter.is_batchable else None
    intent = IntendedChange(key, [entry], send, notes_of_answer, send_void=undo)
    return intent


def add_visitor(store: Store, entry: IntendedEntry, visitor: str) -> IntendedChange:
    """Returns a visit, which counts a visitor once. The key is "", so that no client repeats
    the visit, because the second answer says that the visitor is not new."""
    counter, id_, *_ = entry

    def send() -> Answer:
        return _answer_of(increments.add_visitor(Call(store), counter=counter, id=id_, visitor=visitor))

    def notes_of_answer(body: Body) -> list[Note]:
        return [_counted_note(entry, periods.tally_id_of_answer(id_, body), intent.made_s, visitor)]

    intent = IntendedChange("", [entry], send, notes_of_answer)
    return intent


def batch(store: Store, faultless: Store, entries: Sequence[IntendedEntry], key: str, *, soon: bool) -> IntendedChange:
    """Returns a batch of changes under one key. Its receipt, which `faultless` reads, has the tallies for the notes."""
    sent = [{"counter": entry.counter.name, "id": entry.id, "amount": entry.amount} for entry in entries]

    def send() -> Answer:
        visible = "soon" if soon else "now"
        call = Call(store, counters=counters.COUNTERS)
        return _answer_of(changes.change(call, changes=sent, idempotency_key=key, visible=visible))

    def notes_of_answer(body: Body) -> list[Note]:
        id_ = receipts.draft_receipt(Call(faultless), ReceiptKey("change", RECEIPT_TARGET, key, payload={})).id
        receipt = queries.get(faultless.client, faultless.settings.receipts_table, {"id": {"S": id_}}) or {}
        tally_ids = {
            (name, periods.answer_members(tally_id)["id"]): tally_id for name, tally_id, _ in record.amounts_of(receipt)
        }
        return [
            _counted_note(entry, tally_ids.get((entry.counter.name, entry.id), ""), intent.made_s, key)
            for entry in entries
        ]

    intent = IntendedChange(key, entries, send, notes_of_answer, send_void=partial(changes.void_changes, key=key))
    return intent


def void(store: Store, counted: IntendedChange, tally_ids: Sequence[str]) -> IntendedChange:
    """Returns the void of a change that was counted in these tallies. A void needs no key."""
    pairs = zip(counted.entries, tally_ids, strict=True)
    voided = [entry._replace(id=tally_id, amount=-entry.amount) for entry, tally_id in pairs]

    def send() -> Answer:
        assert counted.send_void is not None, "its counter has no voids"
        return _answer_of(counted.send_void(Call(store, counters=counters.COUNTERS)))

    return IntendedChange("", voided, send, lambda body: [entry.note(notes.COUNTED, "") for entry in voided])


def put_or_remove(store: Store, entry: IntendedEntry, key: str, *, put: bool) -> IntendedChange:
    """Returns the put or the removal of a like or a member. `key`: "" for a change without a key."""
    counter, id_, _, name = entry
    is_own_child = counter.changes != "service"  # a user changes only the user's own child, and a service each child

    def send() -> Answer:
        call, fields = Call(store, name if is_own_child else None), {} if is_own_child else {"name": name}
        delete_and_put = (  # by the value of `put`
            (children.delete_mine, children.put_mine) if is_own_child else (children.delete_child, children.put_child)
        )
        return _answer_of(delete_and_put[put](call, counter=counter, id=id_, idempotency_key=key or None, **fields))

    def notes_of_answer(body: Body) -> list[Note]:
        is_right = body["present"] is put and body["child"] == name
        return [entry.note((notes.PUT if put else notes.REMOVED) if is_right else notes.WRONG, key, name)]

    return IntendedChange(key, [entry], send, notes_of_answer)


def hold(store: Store, entry: IntendedEntry, ttl_s: int, key: str) -> IntendedChange:
    """Returns a hold of stock."""

    def send() -> Answer:
        fields = {"counter": entry.counter, "id": entry.id, "amount": entry.amount, "ttl_s": ttl_s}
        body, replayed = _answer_of(holds.hold(Call(store), **fields, idempotency_key=key))
        # The worker compares a replay with the first answer. A replay has the present state, which may differ.
        return {name: value for name, value in body.items() if name != "state"}, replayed

    return IntendedChange(key, [entry], send, lambda body: [entry.note(notes.HELD, key, body["hold"])])


def settle(store: Store, entry: IntendedEntry, hold_id: str, *, commit: bool) -> IntendedChange:
    """Returns the commit or the release of a hold, without a key, because a hold settles once."""

    def send() -> Answer:
        settle_hold = holds.commit_hold if commit else holds.release_hold
        return _answer_of(settle_hold(Call(store), counter=entry.counter, id=entry.id, hold=hold_id))

    return IntendedChange("", [entry], send, lambda body: [entry.note(str(body["state"]), "", hold_id)])


def set_number(store: Store, entry: IntendedEntry, key: str) -> IntendedChange:
    """Returns a change that reads a number, and sets it to a value that differs by `amount` from the read number."""
    counter, id_, amount, _ = entry
    states: list[State] = []  # what the first attempt read, for all attempts

    def send() -> Answer:
        call = Call(store)
        if not states:
            states.append(tallies.read_state(call, counter, id_))
        target = {"value": max(counter.floor or 0, states[0].value + amount), "version": states[0].version}
        return _answer_of(increments.set_counter(call, counter=counter, id=id_, **target, idempotency_key=key))

    def notes_of_answer(body: Body) -> list[Note]:
        return [entry._replace(amount=body["value"] - states[0].value).note(notes.COUNTED, key)]

    return IntendedChange(key, [entry], send, notes_of_answer)


def import_file(
    store: Store, crasher: Crasher, folder: Path, entries: Sequence[IntendedEntry], crash_after: Sequence[int], key: str
) -> IntendedChange:
    """Returns an import by `tally import`. For each number of `crash_after`, one attempt dies after so many writes."""
    counter, file = entries[0].counter, folder / f"{key}.csv"
    layout = files.CHILDREN if counter.counts_children else files.NUMBERS
    with file.open("w") as text:
        rows = csv.writer(text)
        rows.writerow(layout.columns(counter))
        rows.writerows(
            [entry.id, entry.child, CHILD_PUT_AT] if entry.child else [entry.id, counter.start + entry.amount]
            for entry in entries
        )
    target = (
        {"counter": None, "children": counter} if counter.counts_children else {"counter": counter, "children": None}
    )
    arguments = Namespace(
        file=str(file), run=key, format=None, skip_bad=False, yes=True, by="soak", why="soak", **target
    )
    crashes = list(crash_after)

    def send() -> Answer:
        crasher.arm(crashes.pop() if crashes else 0)
        try:
            # True: the worker demands that a second answer is a replay, and an import does not say that it is a replay.
            return {"status": IMPORT.run(arguments, Stack(store, None, counters.COUNTERS))}, True
        except CrashError:
            raise StoreBusyError("The import died before its end.") from None
        finally:
            crasher.arm(0)

    def notes_of_answer(body: Body) -> list[Note]:
        outcome = notes.IMPORTED if body["status"] == 0 else notes.WRONG
        return [entry.note(outcome, key, entry.child) for entry in entries]

    return IntendedChange(key, entries, send, notes_of_answer)
