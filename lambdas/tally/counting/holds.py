"""Holds: an amount taken at once, to be kept (committed) or given back (released, or expired), exactly once.

A hold is an item in the ledger table; its state moves once, from `held`, on condition that it is still held, in one
transaction with what that does to the tally. It carries a TTL only once it is settled: one that merely expired is
never removed before its amount was given back.

Expired holds stand first in their bucket, by time, so that the sweep finds them without an index.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from .. import observe
from ..counter import Counter
from ..dynamo import ledger
from ..dynamo.client import Call, Item, get, minute_now, whole
from ..dynamo.transactions import Body, Stamp, Write, transact
from ..errors import ChangeRefusedError, HoldSettledError, LimitReachedError, NotFoundError, TallyError, from_botocore
from . import tallies
from .receipts import once

_T = TypeVar("_T")
BUCKETS = 16  # a bucket is one partition: 16 take about 5,000 holds a second
SETTLED_KEPT_S = 24 * 3600  # as long as receipts by default: a late commit or release is told what became of it
RELEASE_BATCH_MAX = 25  # expired holds given back in one go, so that a take is not kept waiting
SWEEP_BATCH_MAX = 500  # of a bucket at each sweep; the next one takes the rest
PAGES_MAX = 50  # of 1 MB: a bucket holds a day of settled holds before TTL removes them
HELD, COMMITTED, RELEASED, EXPIRED = "held", "committed", "released", "expired"


def take(call: Call, counter: Counter, id_: str, amount: int, ttl_s: int, key: str) -> tuple[Body, bool]:
    """Take `amount` now and hold it for `ttl_s` seconds; the body with the `hold_id`, and whether it is a replay.

    Raises LimitReachedError if there is not as much (expired holds are given back first), KeyReusedError.
    """
    expires_s = int(time.time()) + ttl_s
    hold_id = f"{expires_s}-{secrets.token_urlsafe(12)}"
    body = {"counter": counter.name, "id": id_, "hold_id": hold_id, "amount": amount, "expires_at": expires_s}
    payload = {"amount": amount, "ttl_s": ttl_s}

    def change(stamp: Stamp) -> Body:
        at = minute_now()
        receipt = stamp.receipt(call, body, **tallies.facts(counter, id_, -amount, at))
        try:
            transact(call, counter, id_, lambda _: _take_writes(call, counter, id_, hold_id, amount, at), receipt)
        except ChangeRefusedError as refused:
            raise tallies.refusal(counter, refused, -amount) from None
        return body

    def attempt() -> tuple[Body, bool]:
        return once(call, "hold", f"{counter.name}/{id_}", key, payload, change)

    return with_room(call, counter, id_, attempt)


def with_room(call: Call, counter: Counter, id_: str, attempt: Callable[[], _T]) -> _T:
    """Attempt a change; at a limit, give back what expired holds have taken and, if there was any, try once more."""
    try:
        return attempt()
    except LimitReachedError:
        if not counter.holdable or not release_expired(call, counter, id_):
            raise
        return attempt()


def settle(call: Call, counter: Counter, id_: str, hold_id: str, state: str) -> Body:
    """Commit the hold (`COMMITTED`: it stays taken) or release it (`RELEASED`: given back), once.

    The body `{"counter","id","hold_id","state","changed"}`; settling the same way twice changes nothing. Raises
    NotFoundError for a hold that never was, HoldSettledError for one that is settled otherwise or has expired.
    """
    body = {"counter": counter.name, "id": id_, "hold_id": hold_id, "state": state}
    try:
        _move(call, counter, id_, hold_id, state)
        return {**body, "changed": True}
    except ChangeRefusedError as refused:
        hold = refused.old_items[0] or {}
    if not hold:
        raise NotFoundError(f"There is no hold {hold_id}.")
    stands = hold["state"]["S"]
    if stands == state:
        return {**body, "changed": False}
    if stands == HELD:  # it is held, but its time has passed
        stands = EXPIRED if _expire(call, counter, id_, hold_id) else _state(call, counter, id_, hold_id)
    if stands == EXPIRED and state == RELEASED:
        return {**body, "state": EXPIRED, "changed": False}  # it was given back, which is what was asked for
    raise HoldSettledError(f"The hold is {stands}.")


def release_expired(call: Call, counter: Counter, id_: str) -> int:
    """Give back what expired holds of this counter have taken; how many there were, RELEASE_BATCH_MAX at most.

    Those that somebody else settles meanwhile are among them: for the caller there is room now either way.
    """
    due = _due(call, bucket(counter, id_), RELEASE_BATCH_MAX, owner=_owner(counter, id_))
    for item in due:
        _expire(call, counter, id_, item["hold_id"]["S"])
    return len(due)


def bucket(counter: Counter, id_: str) -> int:
    """The bucket, 0 to 15, that the holds of one tally are in."""
    return hashlib.sha256(_owner(counter, id_).encode()).digest()[0] % BUCKETS


def sweep(call: Call, counters: Mapping[str, Counter], bucket_number: int) -> int:
    """Give back what expired holds of one bucket have taken, whosever they are; how many, SWEEP_BATCH_MAX at most.

    One that cannot be given back is logged and stays due; it keeps no other one waiting.
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
    """Whether it was given back by this very call; else somebody settled it."""
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
    """The amount back in the tally, and booked: there is no receipt from which the drift consumer would expect it."""
    at, bucket_number = minute_now(), call.store.spread.random.randrange(ledger.BUCKETS)
    back: Write = {"Update": tallies.add(call, counter, id_, 0, int(amount), at)}
    if not counter.tracked:  # it was when the hold was taken
        return [back]
    booking = ledger.book(call.store.settings, counter.name, id_, at, bucket_number, expected=int(amount))
    return [back, booking]


def _state(call: Call, counter: Counter, id_: str, hold_id: str) -> str:
    hold = _read(call, counter, id_, hold_id)
    return str(hold["state"]["S"]) if hold else EXPIRED  # TTL removes what was settled long ago


def _read(call: Call, counter: Counter, id_: str, hold_id: str) -> Item:
    """The hold; empty if there is none."""
    return get(call.store, call.store.settings.ledger_table, _key(counter, id_, hold_id))


def _due(
    call: Call,
    bucket_number: int,
    most: int,
    *,
    owner: str | None = None,
    counters: Mapping[str, Counter] | None = None,
) -> list[Item]:
    """Holds of a bucket, of one owner or of these counters, whose time has passed and that are still held; the oldest
    first."""
    values: Item = {
        ":pk": {"S": f"HOLDS#{bucket_number}"},
        ":next_second": {"S": str(int(time.time()) + 1)},
        ":held": {"S": HELD},
    }
    found: list[Item] = []
    start: dict[str, Any] = {}
    for _ in range(PAGES_MAX):
        try:
            page = call.store.client.query(
                TableName=call.store.settings.ledger_table,
                KeyConditionExpression="PK = :pk AND SK < :next_second",
                FilterExpression="#state = :held" + (" AND #owner = :owner" if owner else ""),
                ExpressionAttributeNames={"#state": "state"} | ({"#owner": "owner"} if owner else {}),
                ExpressionAttributeValues=values | ({":owner": {"S": owner}} if owner else {}),
                ConsistentRead=True,
                **start,
            )
        except (ClientError, BotoCoreError) as error:
            raise from_botocore(error) from error
        held = whole(dict(page), "Items")["Items"]
        found += [item for item in held if counters is None or item["counter"]["S"] in counters]
        if len(found) >= most or "LastEvaluatedKey" not in page:
            break
        start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
    return found[:most]


def _key(counter: Counter, id_: str, hold_id: str) -> Item:
    """Sorted by the time of expiry, which a hold's id begins with."""
    return {"PK": {"S": f"HOLDS#{bucket(counter, id_)}"}, "SK": {"S": f"{hold_id}#{_owner(counter, id_)}"}}


def _owner(counter: Counter, id_: str) -> str:
    return f"{counter.name}/{id_}"
