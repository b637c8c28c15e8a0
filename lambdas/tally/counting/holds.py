"""Holds: an amount taken at once, and later kept (committed) or given back (released, or expired), exactly once.

A hold is an item in the ledger table. Its state moves once, from `held`, on condition that it is still held, in one
transaction with its effect on the tally. It gets its TTL when it is settled: TTL never removes a hold that expired
before its amount was given back.

Holds sort by their time of expiry within a bucket, so that the sweep finds expired ones without an index.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping
from itertools import islice

from .. import observe
from ..counter import Counter
from ..dynamo import queries
from ..dynamo.client import Call
from ..dynamo.keys import Item
from ..dynamo.transactions import Write, transact
from ..errors import ChangeRefusedError, HoldSettledError, LimitReachedError, NotFoundError, TallyError
from . import tallies
from .receipts import Body, Counted, Keyed, Stamp, once
from .tallies import minute_now

BUCKETS = 16  # a bucket is one partition: 16 take about 5,000 holds a second
SETTLED_KEPT_S = 24 * 3600  # as long as receipts by default: a late commit or release gets the hold's state
RELEASE_BATCH_MAX = 25  # expired holds given back at once, so that a take does not wait long
SWEEP_BATCH_MAX = 500  # of a bucket in each sweep; the next sweep takes the rest
PAGES_MAX = 50  # of 1 MB: a bucket keeps a day of settled holds before TTL removes them
HELD, COMMITTED, RELEASED, EXPIRED = "held", "committed", "released", "expired"


def take(call: Call, counter: Counter, id_: str, amount: int, ttl_s: int, *, operation: str, key: str) -> Counted:
    """Take `amount` now and hold it for `ttl_s` seconds; the body has the `hold_id`.

    Raises LimitReachedError if less is left (expired holds are given back first), KeyReusedError.
    """
    expires_s = int(time.time()) + ttl_s
    hold_id = f"{expires_s}-{secrets.token_urlsafe(12)}"
    body = {"counter": counter.name, "id": id_, "hold_id": hold_id, "amount": amount, "expires_at": expires_s}
    payload = {"amount": amount, "ttl_s": ttl_s}

    def change(stamp: Stamp) -> Body:
        at = minute_now(call)
        receipt = stamp.receipt(call, body, **tallies.facts(counter, id_, -amount, at))
        try:
            transact(call, counter, id_, lambda _: _take_writes(call, counter, id_, hold_id, amount, at), receipt)
        except ChangeRefusedError as refused:
            raise tallies.refusal(counter, refused, -amount) from None
        return body

    keyed = Keyed(operation, f"{counter.name}/{id_}", key, payload)
    try:
        return once(call, keyed, change)
    except LimitReachedError:
        if not made_room(call, counter, id_):
            raise
        return once(call, keyed, change)


def made_room(call: Call, counter: Counter, id_: str) -> bool:
    """At a limit: give back what expired holds have taken, and return whether there was any."""
    return release_expired(call, counter, id_) > 0


def settle(call: Call, counter: Counter, id_: str, hold_id: str, state: str) -> Body:
    """Commit the hold (`COMMITTED`: it stays taken) or release it (`RELEASED`: given back), once.

    The body `{"counter","id","hold_id","state","changed"}`; settling the same way twice changes nothing. Raises
    NotFoundError for an unknown hold, HoldSettledError for one that was settled the other way or has expired.
    """
    body = {"counter": counter.name, "id": id_, "hold_id": hold_id, "state": state}
    try:
        _move(call, counter, id_, hold_id, state)
        return {**body, "changed": True}
    except ChangeRefusedError as refused:
        hold = refused.old_items[0] or {}
    if not hold:
        raise NotFoundError(f"There is no hold {hold_id}.")
    found = hold["state"]["S"]
    if found == state:
        return {**body, "changed": False}
    if found == HELD:  # its time has passed
        found = EXPIRED if _expire(call, counter, id_, hold_id) else _state(call, counter, id_, hold_id)
    if found == EXPIRED and state == RELEASED:
        return {**body, "state": EXPIRED, "changed": False}  # its amount was given back, as the caller asked
    raise HoldSettledError(f"The hold is {found}.")


def release_expired(call: Call, counter: Counter, id_: str) -> int:
    """Give back what expired holds of this tally have taken; how many there were, RELEASE_BATCH_MAX at most.

    Holds that another call settles meanwhile count too: there is room either way.
    """
    due = _due(call, bucket(counter, id_), RELEASE_BATCH_MAX, owner=_owner(counter, id_))
    for item in due:
        _expire(call, counter, id_, item["hold_id"]["S"])
    return len(due)


def bucket(counter: Counter, id_: str) -> int:
    """The bucket, 0 to 15, that the holds of one tally are in."""
    return hashlib.sha256(_owner(counter, id_).encode()).digest()[0] % BUCKETS


def sweep(call: Call, counters: Mapping[str, Counter], bucket_number: int) -> int:
    """Give back what expired holds of one bucket have taken; how many, SWEEP_BATCH_MAX at most.

    A hold that cannot be given back is logged and stays due. It delays no other one.
    """
    released = 0
    for item in _due(call, bucket_number, SWEEP_BATCH_MAX, counters=counters):
        try:
            counter = counters[item["counter"]["S"]]
            released += _expire(call, counter, item["target"]["S"], item["hold_id"]["S"])
        except TallyError:
            observe.logger.exception("not given back", extra={"hold_id": item["hold_id"]["S"]})
    return released


def _expire(call: Call, counter: Counter, id_: str, hold_id: str) -> bool:
    """Whether this very call gave it back; otherwise another one settled it."""
    try:
        _move(call, counter, id_, hold_id, EXPIRED)
        return True
    except ChangeRefusedError:
        return False


def _take_writes(call: Call, counter: Counter, id_: str, hold_id: str, amount: int, at: int) -> list[Write]:
    facts = {"owner": _owner(counter, id_), "counter": counter.name, "target": id_, "hold_id": hold_id, "state": HELD}
    item = {**_key(counter, id_, hold_id), **{name: {"S": fact} for name, fact in facts.items()}}
    item |= {"amount": {"N": str(amount)}, "expires": {"N": hold_id.split("-")[0]}}
    return [
        {"Update": tallies.add(call, counter, id_, 0, -amount, at)},
        {"Put": {"TableName": call.store.settings.ledger_table, "Item": item}},
    ]


def _move(call: Call, counter: Counter, id_: str, hold_id: str, state: str) -> None:
    """Move the hold from `held` to `state`, with its effect on the tally. Raises ChangeRefusedError with the hold."""
    hold = _read(call, counter, id_, hold_id) if state != COMMITTED else {}
    if state != COMMITTED and not hold:
        raise ChangeRefusedError([{}], 0)
    now_s = int(time.time())
    in_time = {COMMITTED: "expires > :now", RELEASED: "expires > :now", EXPIRED: "expires <= :now"}[state]
    write: Write = {
        "TableName": call.store.settings.ledger_table,
        "Key": _key(counter, id_, hold_id),
        "UpdateExpression": "SET #state = :next, expiration = :removed",
        "ConditionExpression": f"#state = :held AND {in_time}",
        "ExpressionAttributeNames": {"#state": "state"},
        "ExpressionAttributeValues": {
            ":held": {"S": HELD},
            ":next": {"S": state},
            ":now": {"N": str(now_s)},
            ":removed": {"N": str(now_s + SETTLED_KEPT_S)},
        },
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    settling: Write = {"Update": write}
    transact(
        call, counter, id_, lambda _: [settling, *(_give_back(call, counter, id_, hold["amount"]["N"]) if hold else ())]
    )


def _give_back(call: Call, counter: Counter, id_: str, amount: str) -> list[Write]:
    """Add the amount to the tally and book it: there is no receipt from which the drift consumer would expect it."""
    at = minute_now(call)
    back: Write = {"Update": tallies.add(call, counter, id_, 0, int(amount), at)}
    return [back]


def _state(call: Call, counter: Counter, id_: str, hold_id: str) -> str:
    hold = _read(call, counter, id_, hold_id)
    return str(hold["state"]["S"]) if hold else EXPIRED  # TTL removes a hold that was settled long ago


def _read(call: Call, counter: Counter, id_: str, hold_id: str) -> Item:
    """The hold; empty if there is none."""
    return queries.get(call.store.client, call.store.settings.ledger_table, _key(counter, id_, hold_id))


def _due(
    call: Call,
    bucket_number: int,
    most: int,
    *,
    owner: str | None = None,
    counters: Mapping[str, Counter] | None = None,
) -> list[Item]:
    """Expired holds of a bucket that are still held, the oldest first: of one owner, or of these counters."""
    names, values = {"#state": "state"}, {":held": {"S": HELD}}
    if owner:
        names, values = {**names, "#owner": "owner"}, {**values, ":owner": {"S": owner}}
    held = queries.pages(
        call.store,
        call.store.settings.ledger_table,
        f"HOLDS#{bucket_number}",
        queries.FIRST,
        str(int(time.time()) + 1),
        FilterExpression="#state = :held" + (" AND #owner = :owner" if owner else ""),
        ExpressionAttributeNames=names,
        ExpressionAttributeValues=values,
    )
    found: list[Item] = []
    for page in islice(held, PAGES_MAX):
        found += [item for item in page if counters is None or item["counter"]["S"] in counters]
        if len(found) >= most:
            break
    return found[:most]


def _key(counter: Counter, id_: str, hold_id: str) -> Item:
    """Holds sort by their time of expiry, with which their ids begin."""
    return {"PK": {"S": f"HOLDS#{bucket(counter, id_)}"}, "SK": {"S": f"{hold_id}#{_owner(counter, id_)}"}}


def _owner(counter: Counter, id_: str) -> str:
    return f"{counter.name}/{id_}"
