"""Holds: an amount that is taken now, and later kept (committed) or given back (released, or expired), exactly once.

A hold takes from a stock, which has a floor, or uses a quota up, which has a ceiling. The `amount` of its item is what
its return adds to the number; for a quota it is negative. `target` is the tally, with its period if it has one. The id
without the period is in the keys, so a hold is found without its period. settling.py commits, releases and voids holds,
and changing.py gives them another amount or time.

Holds are in the ledger table. PK, SK -> state:

    HOLDS#bucket              <hold id>#counter/id          held. An id begins with the first time of expiry; the key
                                                            begins with that of now (`expires`)
    HOLDS#bucket              OVERDUE#counter/id#<hold id>  held, expired, and its return was refused
    HOLDS#SETTLED#counter/id  <hold id>                     moved: it is held, and has another time (`expires`)
    HOLDS#SETTLED#counter/id  <hold id>                     committed (`used`: what it took), released, expired or
                                                            voided, until `kept` after it could expire at the `latest`

`receipt` is the id of the receipt that took the hold; a void marks it. `kept`: for how many seconds the receipts of the
counter lived when the hold was placed. So a later `receipt_days` does not separate a hold from its key.

A hold enters each state once:

    held       gives its amount back, or a part of it, when it becomes released, expired or committed. Until then,
               the amount and the time may change
    expired    may be committed at an amount, which the tally takes then, or released
    committed  may be voided, which gives back what the commit took

One transaction moves a hold and its tally, on condition that the hold has the state that was read. The first
transaction deletes the hold and puts its record. So the range of due holds has no settled holds, and a hold that has
its amount has no TTL. The nonce of a record is the nonce of the call that put it. Expired holds are released before a
refusal (`release_expired_for`), and in the sweep (expired_holds.py).
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from ..counter import Counter
from ..dynamo import clock, items, keys, queries
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..dynamo.queries import Page
from ..dynamo.transactions import Write
from ..errors import ChangeRefusedError, LimitReachedError, NotFoundError, StoreBusyError
from ..fields import HOLD_TTL_MAX_S
from . import periods, tallies
from .receipts import KEY_PREFIX, Body, ChangeAnswer, ReceiptDraft, ReceiptKey, count_once, lifetime_s, refuse_retired
from .receipts import VOIDED_AT as VOIDED_AT
from .tallies import minute_now

BUCKETS = 16  # a bucket is one partition: 16 take about 5,000 holds a second
UNRETURNED_MAX = 20  # enough to say that holds are left
OVERDUE = "OVERDUE#"  # behind all times of expiry
SETTLED_KEPT_S = 24 * 3600  # the least time after its latest end for which a hold is known and may be committed late
DUE_PAGE_MAX = 80  # holds that one query before a refusal reads: 5 read units, with UUIDs as ids
HELD, COMMITTED, RELEASED, EXPIRED, VOIDED = "held", "committed", "released", "expired", "voided"
MOVED = "moved"
FIND_ATTEMPTS_MAX = 5  # an attempt fails only if another caller moves the hold between two reads
T = TypeVar("T")


def place(call: Call, counter: Counter, id_: str, amount: int, ttl_s: int, *, operation: str, key: str) -> ChangeAnswer:
    """Takes `amount` of a tally now and holds it for `ttl_s` seconds. The body has the id of the `hold`, and its
    `state`, which a replay shows as it is now. The receipt lives as long as the hold can be committed, even if its time
    changes.

    If less than `amount` is left after expired holds are released, raises LimitReachedError. Raises KeyReusedError,
    CounterRetiredError, and the errors of `release_expired_for`.
    """
    assert amount > 0, "the operation checks it"
    assert counter.takes_holds, "it takes from a limit"
    by = amount if counter.floor is None else -amount
    began_s = int(clock.now_s())
    expires_s, latest_s = began_s + ttl_s, began_s + HOLD_TTL_MAX_S
    hold_id = f"{expires_s}-{secrets.token_urlsafe(12)}"
    body = answer_members(counter, id_, hold_id, amount, expires_s)
    payload = {"amount": amount, "ttl_s": ttl_s}

    def change(draft: ReceiptDraft) -> Body:
        if counter.retired:
            refuse_retired(call, counter, draft)
        at = minute_now(call)
        kept = record_kept_s(call.store, counter)
        lasting = draft._replace(expires_s=known_until_s(latest_s, kept))
        receipt = lasting.receipt(call, body, **tallies.receipt_facts(counter, id_, by, at))
        facts: items.Values = {"latest": latest_s, "kept": kept, "receipt": draft.id}
        writes = partial(_hold_writes, call, counter, id_, hold_id, by, at, facts)
        tallies.commit_within_limits(call, counter, id_, by, lambda _: writes(), receipt)
        return body

    keyed = ReceiptKey(operation, holder_key(counter.name, id_), key, payload, counter.receipt_days)
    answer = retry_with_room(call, counter, id_, by, lambda: count_once(call, keyed, change))
    return with_state(call, counter, id_, answer)


def answer_members(counter: Counter, id_: str, hold_id: str, amount: int, expires_s: int) -> Body:
    """Returns a hold as answers show it."""
    name = {"counter": counter.name, **periods.answer_members(id_)}
    return {**name, "hold": hold_id, "amount": amount, "expires_at": expires_s}


def with_state(call: Call, counter: Counter, id_: str, answer: ChangeAnswer) -> ChangeAnswer:
    """Returns the answer about a hold with its present `state`. In a replay, the state may differ from the first
    answer."""
    state = current_state(find(call, counter, id_, answer.body["hold"])) if answer.replayed else HELD
    return answer._replace(body={**answer.body, "state": state})


def retry_with_room(call: Call, counter: Counter, id_: str, amount: int, change: Callable[[], T]) -> T:
    """Makes the change by `amount`. While the limit refuses the change, releases expired holds and makes the change
    again."""
    while True:
        try:
            return change()
        except LimitReachedError as refused:
            if not release_expired_for(call, counter, id_, amount, refused.left or 0):
                raise


def release_expired_for(call: Call, counter: Counter, id_: str, amount: int, remaining: int) -> bool:
    """Releases expired holds of this tally until `amount` fits, and returns whether any was released.

    Callers use it before they refuse a change. `remaining`: the amount that fits now. Only holds that have taken in the
    direction of `amount` are released. If another call settles such a hold at the same time, that makes room, too.
    Raises StoreBusyError if more expired holds may exist: the call's time is over, or one query did not return all due
    holds.
    """
    needed, room, refused = abs(amount) - remaining, 0, math.inf
    for hold in _due_of_tally(call, counter, id_) if needed > 0 and counter.may_settle_holds else ():
        if call.store.clock() >= call.deadline_s:
            raise _busy_returning_error()
        back = int(hold["amount"]["N"])
        if back * amount < 0 and abs(back) < refused:
            try:
                transition(call, counter, hold, EXPIRED)
                room += abs(back)
            except LimitReachedError:  # at the other limit; a smaller hold may fit
                refused = abs(back)
        if room >= needed:
            break
    return room > 0


def bucket(counter: Counter, id_: str) -> int:
    """Returns the bucket, 0 to 15, that the holds of one tally are in."""
    return hashlib.sha256(holder_key(counter.name, id_).encode()).digest()[0] % BUCKETS


def _hold_writes(
    call: Call, counter: Counter, id_: str, hold_id: str, by: int, at: int, facts: items.Values
) -> list[Write]:
    first_expires_s = int(hold_id.split("-")[0])
    values: items.Values = {
        "counter": counter.name,
        "target": id_,
        "hold_id": hold_id,
        "state": HELD,
        "amount": -by,
        "expires": first_expires_s,
        **facts,
        **({"caller": call.caller} if call.caller else {}),  # to find it when the user is forgotten
    }
    hold = items.put_write(call.store.settings.ledger_table, live_key(counter, id_, hold_id, first_expires_s), values)
    return [{"Update": tallies.add_write(call, counter, id_, 0, by, at)}, hold]


def amount_to_move(hold: Item, kept: int) -> int:
    """Returns by how much the number moves if the hold, which is in this state, has taken `kept` in the end."""
    amount = int(hold["amount"]["N"])
    taken = abs(amount) if hold["state"]["S"] == HELD else items.int_attribute(hold, "used")
    return taken - kept if amount > 0 else kept - taken


def transition(
    call: Call, counter: Counter, hold: Item, state: str, kept_amount: int = 0, *, in_time: bool = False
) -> bool:
    """Moves the hold to `state`, and moves its tally so that the hold has taken `kept_amount` in the end.

    `hold`: the item as it was read. `in_time`: move it only if it has not expired. Returns False if another call moved
    or changed the hold first, or if its expiry is on the wrong side. Raises LimitReachedError if the move does not fit.
    """
    assert state == COMMITTED or not kept_amount, "only a commit keeps an amount"
    id_, hold_id = hold["target"]["S"], hold["hold_id"]["S"]
    latest_s, kept_for_s = (int(hold[fact]["N"]) for fact in ("latest", "kept"))
    used = {COMMITTED: kept_amount, VOIDED: items.int_attribute(hold, "used")}
    record: items.Values = {
        "target": id_,
        "hold_id": hold_id,
        "state": state,
        "amount": int(hold["amount"]["N"]),
        "expires": expires_s(hold),
        "latest": latest_s,
        "kept": kept_for_s,
        "receipt": hold["receipt"]["S"],
        "expiration": known_until_s(latest_s, kept_for_s),
        "nonce": call.nonce,
        **({"used": used[state]} if state in used else {}),
    }
    table, owner = call.store.settings.ledger_table, holder_key(counter.name, id_)
    settled = items.put_write(table, settled_key(owner, hold_id), record)
    if hold["state"]["S"] == HELD:
        gone = {"TableName": table, "Key": {"PK": hold["PK"], "SK": hold["SK"]}}
        removal = items.with_expected(gone | _time_condition(state, in_time), expect_as_read(hold))
        writes: list[Write] = [{"Delete": removal}, settled]
    else:
        writes = [{"Put": items.with_expected(settled["Put"], {"state": hold["state"]["S"]})}]
    receipt = {"id": hold["receipt"]}
    if state == VOIDED and queries.get(call.store.client, call.store.settings.receipts_table, receipt):
        writes.append(_mark_write(call, hold))  # without its receipt, a commit may be voided all the same
    by, debt = amount_to_move(hold, kept_amount), counter.debt if state == COMMITTED else 0
    moves = partial(_move_writes, call, counter, id_, f"{hold_id}#{state}", by, debt)
    try:
        tallies.commit_within_limits(
            call, counter, id_, by, lambda _: [*writes, *moves()], place=len(writes), debt=debt, stays=True
        )
    except ChangeRefusedError:
        return False
    return True


def _mark_write(call: Call, hold: Item) -> Write:
    """Returns the write that marks the receipt of a hold with the time of its void, on condition that the receipt
    exists. Its nonce stays, as in voids.py."""
    receipt = hold["receipt"]
    marked: items.Values = {VOIDED_AT: int(clock.now_s())}
    return items.update_write(call.store.settings.receipts_table, {"id": receipt}, marked, expected={"id": receipt})


def expect_as_read(hold: Item) -> items.Expected:
    """Returns the condition that a hold is held and has the amount that was read. Its key tells its time."""
    return {"state": HELD, "amount": hold["amount"]}


def _time_condition(state: str, in_time: bool) -> Item:
    """Returns the condition on the expiry of a held hold that moves to `state`."""
    if state != EXPIRED and not in_time:
        return {}
    now = {":now": {"N": str(int(clock.now_s()))}}
    return {"ConditionExpression": f"expires {'>' if in_time else '<='} :now", "ExpressionAttributeValues": now}


def _move_writes(call: Call, counter: Counter, id_: str, name: str, amount: int, debt: int) -> list[Write]:
    """Returns the writes that move the tally and put a receipt of the move, from which the bookkeeper knows what to
    expect. `name`: the id of the hold and its new state, so each move of a hold has its own receipt."""
    if not amount:
        return []
    at = minute_now(call)
    back: Write = {"Update": tallies.add_write(call, counter, id_, 0, amount, at, debt=debt)}
    receipt = {
        "id": {"S": f"{KEY_PREFIX}#hold#{name}"},
        "nonce": {"S": call.nonce},
        "expiration": {"N": str(int(clock.now_s()) + SETTLED_KEPT_S)},
        **tallies.receipt_facts(counter, id_, amount, at),
    }
    return [back, {"Put": {"TableName": call.store.settings.receipts_table, "Item": receipt}}]


def record_kept_s(store: Store, counter: Counter) -> int:
    """Returns for how many seconds after its latest end a hold that is placed now is known, with its keys and its
    record."""
    return max(SETTLED_KEPT_S, lifetime_s(store, counter))


def expires_s(hold: Item) -> int:
    """Returns when the hold expires, in epoch seconds."""
    return int(hold["expires"]["N"])


def known_until_s(latest_s: int, kept_for_s: int) -> int:
    """Returns until when the keys and the record of a hold are kept, in epoch seconds. `latest_s`: the latest end of
    the hold."""
    return max(int(clock.now_s()), latest_s) + kept_for_s + clock.OFF_S_MAX


def current_state(hold: Item) -> str:
    """Returns the state of the hold now. If its time is over, a held hold has expired."""
    state = str(hold["state"]["S"])
    return EXPIRED if state == HELD and expires_s(hold) <= clock.now_s() else state


def find(call: Call, counter: Counter, id_: str, hold_id: str) -> Item:
    """Returns the hold, from the first of three places that has it. A hold moves in the order of these places only, or
    to the time that its record names. Raises NotFoundError, StoreBusyError."""
    owner, time_s = holder_key(counter.name, id_), int(hold_id.split("-")[0])
    overdue = keys.key(f"HOLDS#{bucket(counter, id_)}", f"{OVERDUE}{owner}#{hold_id}")
    for _ in range(FIND_ATTEMPTS_MAX):
        live = live_key(counter, id_, hold_id, time_s)
        places = (live, overdue, settled_key(owner, hold_id))
        found = (queries.get(call.store.client, call.store.settings.ledger_table, place) for place in places)
        hold = next(filter(None, found), None)
        if hold is None or hold["hold_id"]["S"] != hold_id:  # the key of a moved hold looks like an id
            raise NotFoundError(f"There is no hold {hold_id}.")
        if hold["state"] != {"S": MOVED}:
            return hold
        time_s = expires_s(hold)
    raise StoreBusyError("Other calls are changing the hold.")


def _due_of_tally(call: Call, counter: Counter, id_: str) -> Iterator[Item]:
    """Yields the expired holds of this tally. Raises StoreBusyError if a page is full of other tallies' holds."""
    owner, table = holder_key(counter.name, id_), call.store.settings.ledger_table
    number = bucket(counter, id_)
    wanted = {"target": {"S": id_}, "state": {"S": HELD}}.items()
    if not counter.takes_holds:  # its overdue holds would be refused again by a tally that takes no change
        first = f"{OVERDUE}{owner}#"
        page = queries.query(call.store, table, f"HOLDS#{number}", first, f"{first}~", Limit=DUE_PAGE_MAX)
        yield from (hold for hold in page if wanted <= hold.items())
    for page in due_pages(call.store, number, DUE_PAGE_MAX):
        own = [hold for hold in page if hold["SK"]["S"].endswith(f"#{owner}") and wanted <= hold.items()]
        yield from own
        if page.has_more and not own:
            raise _busy_returning_error()


def due_pages(store: Store, bucket_number: int, most: int) -> Iterator[Page]:
    """Yields the holds of a bucket that have expired, the oldest first, `most` a page."""
    partition, end = f"HOLDS#{bucket_number}", str(int(clock.now_s()) + 1)
    return queries.partition_pages(store, store.settings.ledger_table, partition, queries.SORT_KEY_MIN, end, Limit=most)


def overdue_pages(store: Store, bucket_number: int, most: int) -> Iterator[Page]:
    """Yields the overdue holds of a bucket, `most` a page."""
    partition, end = f"HOLDS#{bucket_number}", f"{OVERDUE}{queries.SORT_KEY_MAX}"
    return queries.partition_pages(store, store.settings.ledger_table, partition, OVERDUE, end, Limit=most)


def count_unreturned(store: Store, since_s: float) -> tuple[int, bool]:
    """Returns how many expired holds are not released: those that expired before `since_s`, and the overdue ones. The
    second value says whether there may be more, because it reads at most UNRETURNED_MAX of either kind in each
    bucket."""
    end = str(int(since_s))
    ranges = ((queries.SORT_KEY_MIN, end), (OVERDUE, f"{OVERDUE}{queries.SORT_KEY_MAX}"))
    pages = [
        queries.query(store, store.settings.ledger_table, f"HOLDS#{bucket}", low, high, Limit=UNRETURNED_MAX)
        for bucket in range(BUCKETS)
        for low, high in ranges
    ]
    number = sum(hold.get("state") == {"S": HELD} for page in pages for hold in page)
    return number, any(page.has_more for page in pages)


def _busy_returning_error() -> StoreBusyError:
    return StoreBusyError("Expired holds are being given back.")


def live_key(counter: Counter, id_: str, hold_id: str, expires_s: int) -> Item:
    """Returns the key of a held hold. Holds sort by their time of expiry."""
    unique = hold_id.partition("-")[2]
    return keys.key(f"HOLDS#{bucket(counter, id_)}", f"{expires_s}-{unique}#{holder_key(counter.name, id_)}")


def settled_key(owner: str, hold_id: str) -> Item:
    """Returns the key of the record of a settled or moved hold."""
    return keys.key(f"HOLDS#SETTLED#{owner}", hold_id)


def holder_key(name: str, id_: str) -> str:
    """Returns `stock/mug`: counter and id, without the period, as the keys of holds name them."""
    return f"{name}/{periods.answer_members(id_)['id']}"
