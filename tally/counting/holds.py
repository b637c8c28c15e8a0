"""Holds: an amount taken at once, and later kept (committed) or given back (released, or expired), exactly once.

A hold takes from a stock, which has a floor, or uses a quota up, which has a ceiling. The `amount` of its item is what
its return adds to the number: that of a quota is negative. `target` is the tally, with its period if it has one; the id
without it is in the keys, so a hold is found without its period.

Holds are in the ledger table. PK, SK -> state:
    HOLDS#bucket              <hold id>#counter/id          held. An id begins with the time of expiry
    HOLDS#bucket              OVERDUE#counter/id#<hold id>  held, expired, and its return was refused
    HOLDS#SETTLED#counter/id  <hold id>                     committed (at an `amount`), released or expired, for
                                                            SETTLED_KEPT_S; whose nonce it has, settled it

A hold is settled once. One transaction takes it away, on condition that it is held, puts a record of its state, and
moves the tally. So the range of holds that are due has no settled ones, and a hold that has its amount has no TTL.
Expired holds give back their amounts before a refusal (`made_room`), and in the sweep (expired.py).
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
from ..errors import (
    ChangeRefusedError,
    HoldSettledError,
    LimitReachedError,
    NotFoundError,
    StoreBusyError,
)
from . import periods, tallies
from .receipts import KEY_PREFIX, Body, ChangeAnswer, Keyed, Stamp, lives_s, once, refuse_retired
from .tallies import minute_now

BUCKETS = 16  # a bucket is one partition: 16 take about 5,000 holds a second
LEFT_MAX = 20  # enough to say that holds are left
OVERDUE = "OVERDUE#"  # behind all times of expiry
SETTLED_KEPT_S = 24 * 3600  # at least: a late commit or release gets the hold's state
LOOK_MAX = 80  # holds that one look before a refusal reads: 5 read units, with UUIDs as ids
HELD, COMMITTED, RELEASED, EXPIRED = "held", "committed", "released", "expired"
T = TypeVar("T")


def take(call: Call, counter: Counter, id_: str, amount: int, ttl_s: int, *, operation: str, key: str) -> ChangeAnswer:
    """Take `amount` of a tally now and hold it for `ttl_s` seconds; the body has the id of the `hold`, and its `state`:
    that of a replay may be settled.

    Raises LimitReachedError if less is left (expired holds are given back first), KeyReusedError, CounterRetiredError,
    and what `made_room` raises.
    """
    assert amount > 0, "the operation checks it"
    assert counter.holdable, "which limit does it take from?"
    by = amount if counter.floor is None else -amount
    expires_s = int(clock.now_s()) + ttl_s
    hold_id = f"{expires_s}-{secrets.token_urlsafe(12)}"
    body = {"counter": counter.name, **periods.shown(id_), "hold": hold_id, "amount": amount, "expires_at": expires_s}
    payload = {"amount": amount, "ttl_s": ttl_s}

    def change(stamp: Stamp) -> Body:
        if counter.retired:
            refuse_retired(call, counter, stamp)
        at = minute_now(call)
        receipt = stamp.receipt(call, body, **tallies.facts(counter, id_, by, at))
        writes = partial(_take_writes, call, counter, id_, hold_id, by, at)
        tallies.commit(call, counter, id_, by, lambda _: writes(), receipt)
        return body

    keyed = Keyed(operation, owner_of(counter.name, id_), key, payload, counter.receipt_days)
    counted = with_room(call, counter, id_, by, lambda: once(call, keyed, change))
    state = _present(call, counter, id_, counted.body["hold"]) if counted.replayed else HELD
    return counted._replace(body={**counted.body, "state": state})


def with_room(call: Call, counter: Counter, id_: str, amount: int, change: Callable[[], T]) -> T:
    """Make the change by `amount`. If less is left for it, expired holds are given back, and it makes it again."""
    while True:
        try:
            return change()
        except LimitReachedError as refused:
            if not made_room(call, counter, id_, amount, refused.left or 0):
                raise


def made_room(call: Call, counter: Counter, id_: str, amount: int, left: int) -> bool:
    """Before the refusal of `amount` where so much is `left`: give back expired holds of this tally that have taken the
    same way, until there is room; whether there were any.

    Holds that another call settles meanwhile count too: there is room either way. Raises StoreBusyError if there may
    be more of them: the time is over, or more holds of other tallies are due than one look sees.
    """
    needed, room, refused = abs(amount) - left, 0, math.inf
    for hold in _own_due(call, counter, id_) if needed > 0 and counter.may_have_holds else ():
        if call.store.clock() >= call.deadline_s:
            raise _returning()
        back = int(hold["amount"]["N"])
        if back * amount < 0 and abs(back) < refused:
            try:
                move(call, counter, hold, EXPIRED)
                room += abs(back)
            except LimitReachedError:  # at the other limit; a smaller one may fit
                refused = abs(back)
        if room >= needed:
            break
    return room > 0


def settle(call: Call, counter: Counter, id_: str, hold_id: str, state: str, amount: int | None = None) -> Body:
    """Commit a hold of the id (`COMMITTED`: `amount` stays taken, None: what was held) or release it (`RELEASED`: given
    back), once. A commit gives back what is less than held, and takes what is more.

    The body `{"counter","id","hold","state","changed"}`, with the `amount` of a commit; settling the same way twice
    changes nothing. Raises NotFoundError for an unknown hold, HoldSettledError for one that was settled another way or
    has expired. Raises LimitReachedError if there is no room for what is released, or for what a commit takes beyond
    the hold: then the hold stands.
    """
    assert state in (COMMITTED, RELEASED), "only time makes one expire"
    assert amount is None or (state == COMMITTED and amount >= 0), "the operation checks it"
    body = {"counter": counter.name, "id": id_, "hold": hold_id, "state": state}
    hold = _read(call, _key(counter, id_, hold_id))
    if hold:
        kept = 0 if state == RELEASED else abs(int(hold["amount"]["N"])) if amount is None else amount
        tally, moved = hold["target"]["S"], _moved(hold, kept)
        if with_room(call, counter, tally, moved, lambda: move(call, counter, hold, state, kept)):
            return {**body, **({"amount": kept} if state == COMMITTED else {}), "changed": True}
    try:
        settled = items.plain(_settled(call, counter, id_, hold_id))
    except LimitReachedError:  # expired, and not given back yet
        if state == RELEASED:
            raise
        settled = {"state": EXPIRED}
    if (settled["state"], state) == (EXPIRED, RELEASED):
        return {**body, "state": EXPIRED, "changed": False}
    if settled["state"] == state and amount in (None, settled.get("amount")):
        known = {"amount": settled["amount"]} if "amount" in settled else {}
        return {**body, **known, "changed": settled.get("nonce") == call.nonce}  # its own: the answer was lost
    at = f" at {settled['amount']}" if "amount" in settled else ""
    raise HoldSettledError(f"The hold is {settled['state']}{at}.")


def bucket(counter: Counter, id_: str) -> int:
    """The bucket, 0 to 15, that the holds of one tally are in."""
    return hashlib.sha256(owner_of(counter.name, id_).encode()).digest()[0] % BUCKETS


def _take_writes(call: Call, counter: Counter, id_: str, hold_id: str, by: int, at: int) -> list[Write]:
    values: items.Values = {
        "counter": counter.name,
        "target": id_,
        "hold_id": hold_id,
        "state": HELD,
        "amount": -by,
        "expires": int(hold_id.split("-")[0]),
        **({"caller": call.caller} if call.caller else {}),  # to find it when the user is forgotten
    }
    hold = items.put(call.store.settings.ledger_table, _key(counter, id_, hold_id), values)
    return [{"Update": tallies.add(call, counter, id_, 0, by, at)}, hold]


def _moved(hold: Item, kept: int) -> int:
    """By how much the number moves when so much of the hold is kept."""
    back = int(hold["amount"]["N"])
    return back - kept if back > 0 else back + kept


def move(call: Call, counter: Counter, hold: Item, state: str, kept: int = 0) -> bool:
    """Move the hold, as it was read, from `held` to `state`, and its tally by what of it is not `kept`. False: another
    call settled it. Raises LimitReachedError if there is no room for that.
    """
    assert state == COMMITTED or not kept, "what is released or expired is given back"
    now_s, table = int(clock.now_s()), {"TableName": call.store.settings.ledger_table}
    hold_id, id_, moved = hold["hold_id"]["S"], hold["target"]["S"], _moved(hold, kept)
    debt = counter.debt if state == COMMITTED else 0
    in_time = {COMMITTED: "expires > :now", RELEASED: "expires > :now", EXPIRED: "expires <= :now"}[state]
    gone: Write = {
        **table,
        "Key": {"PK": hold["PK"], "SK": hold["SK"]},
        "ConditionExpression": f"#state = :held AND {in_time}",
        "ExpressionAttributeNames": {"#state": "state"},
        "ExpressionAttributeValues": {":held": {"S": HELD}, ":now": {"N": str(now_s)}},
    }
    kept_s = max(SETTLED_KEPT_S, lives_s(call.store, counter))  # a replay of the take still asks for the state
    record: items.Values = {"state": state, "expiration": now_s + kept_s, "nonce": call.nonce}
    if state == COMMITTED:
        record = {**record, "amount": kept}
    settled = items.put(table["TableName"], settled_key(owner_of(counter.name, id_), hold_id), record)
    moves = partial(_give_back, call, counter, id_, hold_id, moved, debt)
    try:
        tallies.commit(call, counter, id_, moved, lambda _: [{"Delete": gone}, settled, *moves()], place=2, debt=debt)
    except ChangeRefusedError:
        return False
    return True


def _give_back(call: Call, counter: Counter, id_: str, hold_id: str, amount: int, debt: int) -> list[Write]:
    """Add the amount to the tally, and put a receipt of it: from receipts, the bookkeeper knows what to expect. Where a
    commit takes more than was held, it takes."""
    if not amount:
        return []
    at = minute_now(call)
    back: Write = {"Update": tallies.add(call, counter, id_, 0, amount, at, debt=debt)}
    receipt = {
        "id": {"S": f"{KEY_PREFIX}#hold#{hold_id}"},
        "nonce": {"S": call.nonce},
        "expiration": {"N": str(int(clock.now_s()) + SETTLED_KEPT_S)},
        **tallies.facts(counter, id_, amount, at),
    }
    return [back, {"Put": {"TableName": call.store.settings.receipts_table, "Item": receipt}}]


def _settled(call: Call, counter: Counter, id_: str, hold_id: str) -> Item:
    """The record of how the hold is settled. One that is still held has expired: it is given back now. Raises
    NotFoundError."""
    held = False
    for hold in _places(call, counter, id_, hold_id):
        if hold["state"]["S"] != HELD:
            return hold
        held = True
        if move(call, counter, hold, EXPIRED):
            return {"state": {"S": EXPIRED}}
    if held:
        raise StoreBusyError("Another call is settling the hold. Send the request again.")
    raise _unknown(hold_id)


def _present(call: Call, counter: Counter, id_: str, hold_id: str) -> str:
    """The state of the hold now; one whose time is over has expired. Raises NotFoundError."""
    hold = next(_places(call, counter, id_, hold_id), None)
    if hold is None:
        raise _unknown(hold_id)
    state = str(hold["state"]["S"])
    return EXPIRED if state == HELD and int(hold["expires"]["N"]) <= clock.now_s() else state


def _places(call: Call, counter: Counter, id_: str, hold_id: str) -> Iterator[Item]:
    """The hold, from each place where it is: it moves in this direction only."""
    owner = owner_of(counter.name, id_)
    live = _key(counter, id_, hold_id)
    overdue = keys.key(live["PK"]["S"], f"{OVERDUE}{owner}#{hold_id}")
    yield from filter(None, (_read(call, key) for key in (live, overdue, settled_key(owner, hold_id))))


def _unknown(hold_id: str) -> NotFoundError:
    return NotFoundError(f"There is no hold {hold_id}.")


def _read(call: Call, key: Item) -> Item:
    """The hold; empty if there is none."""
    return queries.get(call.store.client, call.store.settings.ledger_table, key)


def _own_due(call: Call, counter: Counter, id_: str) -> Iterator[Item]:
    """The holds of this tally that are due. Raises StoreBusyError if a look is full of others."""
    owner, table = owner_of(counter.name, id_), call.store.settings.ledger_table
    number = bucket(counter, id_)
    facts = {"target": {"S": id_}, "state": {"S": HELD}}.items()
    if not counter.holdable:  # otherwise a return is refused by a tally that takes no change at all
        first = f"{OVERDUE}{owner}#"
        page = queries.query(call.store, table, f"HOLDS#{number}", first, f"{first}~", Limit=LOOK_MAX)
        yield from (hold for hold in page if facts <= hold.items())
    for page in due(call.store, number, LOOK_MAX):
        own = [hold for hold in page if hold["SK"]["S"].endswith(f"#{owner}") and facts <= hold.items()]
        yield from own
        if page.more and not own:
            raise _returning()


def due(store: Store, bucket_number: int, most: int) -> Iterator[Page]:
    """Holds of a bucket that expired before now, the oldest first, `most` a page."""
    partition, end = f"HOLDS#{bucket_number}", str(int(clock.now_s()) + 1)
    return queries.pages(store, store.settings.ledger_table, partition, queries.FIRST, end, Limit=most)


def overdue(store: Store, bucket_number: int, most: int) -> Iterator[Page]:
    """Holds of a bucket whose return was refused, `most` a page."""
    partition, end = f"HOLDS#{bucket_number}", f"{OVERDUE}{queries.LAST}"
    return queries.pages(store, store.settings.ledger_table, partition, OVERDUE, end, Limit=most)


def left(store: Store, since_s: float) -> tuple[int, bool]:
    """How many holds are not given back though they expired before this time, or their return was refused; and whether
    there may be more: of each bucket it reads at most LEFT_MAX of either kind."""
    end = str(int(since_s))
    ranges = ((queries.FIRST, end), (OVERDUE, f"{OVERDUE}{queries.LAST}"))
    pages = [
        queries.query(store, store.settings.ledger_table, f"HOLDS#{bucket}", low, high, Limit=LEFT_MAX)
        for bucket in range(BUCKETS)
        for low, high in ranges
    ]
    number = sum(hold.get("state") == {"S": HELD} for page in pages for hold in page)
    return number, any(page.more for page in pages)


def _returning() -> StoreBusyError:
    return StoreBusyError("Expired holds are being given back. Send the request again with the same key.")


def _key(counter: Counter, id_: str, hold_id: str) -> Item:
    """Holds sort by their time of expiry, with which their ids begin."""
    return keys.key(f"HOLDS#{bucket(counter, id_)}", f"{hold_id}#{owner_of(counter.name, id_)}")


def settled_key(owner: str, hold_id: str) -> Item:
    """The key of the record of how a hold was settled."""
    return keys.key(f"HOLDS#SETTLED#{owner}", hold_id)


def owner_of(name: str, id_: str) -> str:
    """`stock/mug`: the name of a counter and id in the keys of holds, whatever the period."""
    return f"{name}/{periods.shown(id_)['id']}"
