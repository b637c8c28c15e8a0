"""The changes that a worker can intend, each as the handlers make it. Import this where the environment is set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import counters
from operations import children, holds, increments, visits
from tally.counter import Counter
from tally.counting import increments as counting
from tally.counting.increments import Increment
from tally.dynamo.client import Call, Store

from . import notes
from .notes import Note

Body = Mapping[str, Any]
Answered = tuple[Body, bool]
"""The body of an answer, and whether it was a replay."""


@dataclass
class Wish:
    """One intended change, which is sent until it has a final answer. `key`: empty for one without."""

    key: str
    counter: str
    id: str
    send: Callable[[], Answered]
    noted: Callable[[Body], Note]
    """What the answer means."""
    increment: Increment | None = None
    """If it can be part of a batch."""
    late_until_s: float = 0.0
    """Until when a copy of an earlier request may arrive; on the monotonic clock."""
    attempts: int = 0


def _answered(answer: Any) -> Answered:
    return answer.body, answer.replayed


def increment(store: Store, counter: Counter, id_: str, amount: int, key: str) -> Wish:
    """A play, a visit, or any other increment."""

    def make(call: Call) -> Increment:
        if counter is counters.VISITS:
            visited: Increment = visits.visit(call, url=id_, idempotency_key=key)
            return visited
        moved: Increment = increments.increment(call, counter=counter, id=id_, amount=amount, idempotency_key=key)
        return moved

    def send() -> Answered:
        call = Call(store)
        body, replayed = counting.count(call, make(call))
        return body, replayed

    def noted(body: Body) -> Note:
        return Note(notes.COUNTED, counter.name, id_, amount, key, more=str(body.get("number", "")))

    return Wish(key, counter.name, id_, send, noted, make(Call(store)))


def like(store: Store, post: str, user: str, liked: bool, key: str) -> Wish:
    """A like, or an unlike; with an empty key without one."""

    def send() -> Answered:
        change = children.put_mine if liked else children.delete_mine
        return _answered(change(Call(store, user), counter=counters.LIKES, id=post, idempotency_key=key or None))

    def noted(body: Body) -> Note:
        what = notes.LIKED if liked else notes.UNLIKED
        return Note(what if body["present"] is liked else notes.WRONG, "likes", post, key=key, more=user)

    return Wish(key, "likes", post, send, noted)


def hold(store: Store, item: str, amount: int, ttl_s: int, key: str) -> Wish:
    """Stock that is taken for a while."""

    def send() -> Answered:
        call = Call(store)
        return _answered(
            holds.hold(call, counter=counters.STOCK, id=item, amount=amount, ttl_s=ttl_s, idempotency_key=key)
        )

    def noted(body: Body) -> Note:
        return Note(notes.HELD, "stock", item, amount, key, more=str(body["hold"]))

    return Wish(key, "stock", item, send, noted)


def settle(store: Store, item: str, hold_id: str, commit: bool) -> Wish:
    """A hold that is kept, or given back. It needs no key: a hold settles once."""

    def send() -> Answered:
        change = holds.commit_hold if commit else holds.release_hold
        return _answered(change(Call(store), counter=counters.STOCK, id=item, hold=hold_id))

    def noted(body: Body) -> Note:
        return Note(str(body["state"]), "stock", item, more=hold_id)

    return Wish("", "stock", item, send, noted)
