"""Holds: an amount that is taken now, and later kept (committed) or given back (released, or expired), exactly once.

A hold takes from a stock, which has a floor, or uses a quota up, which has a ceiling. The item of a hold has the
`amount` that its release adds to the number: for a quota, a negative amount. `target` is the stored id of the tally,
with the period if the counter has periods. The id without the period is in the keys, so a hold is found without its
period. settling.py commits, releases and voids holds, and changing.py gives a hold another amount or time.

A hold enters each state once. The states released and voided are final:

    held       gives its amount back, or a part of it, when it becomes released, expired or committed. Until then,
               the amount and the time may change
    expired    has given its amount back. May be committed at an amount, which the commit takes from the number, or
               released, which moves nothing
    committed  may be voided, which gives back what the commit took

One transaction moves a hold and its tally, on condition that the hold has the state that was read. When a hold leaves
the state held, the transaction deletes its item, and puts a record under another key (hold_items.py). So a query of
due holds, which are held past their time, finds no settled holds: holds in any other state. TTL removes records, but no
held hold. Before a call refuses a change, it makes due holds of the tally expired, until the change fits
(`release_expired_for`). The sweep makes the other due holds expired (expired_holds.py).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from ..counter import Counter
from ..dynamo import clock, items, queries
from ..dynamo.client import Call
from ..dynamo.keys import Item
from ..dynamo.transactions import Write
from ..errors import ChangeRefusedError, LimitReachedError, StoreBusyError
from ..fields import HOLD_TTL_MAX_S
from . import hold_items, periods, tallies
from .hold_items import COMMITTED, EXPIRED, HELD, OVERDUE, SETTLED_KEPT_S, VOIDED
from .receipts import KEY_PREFIX, VOIDED_AT, Body, ChangeAnswer, ReceiptDraft, ReceiptKey, count_once, refuse_retired
from .tallies import minute_now

DUE_PAGE_MAX = 80  # holds that a call reads in one query before it refuses a change: 5 read units, with UUIDs as ids
T = TypeVar("T")


def place(call: Call, counter: Counter, id_: str, amount: int, ttl_s: int, *, operation: str, key: str) -> ChangeAnswer:
    """Takes `amount` of a tally now and holds it for `ttl_s` seconds. The body has the id of the `hold`, and its
    `state`, which a replay shows as it is now. The receipt lives as long as the hold can be committed, even if another
    call changes the time of the hold.

    If less than `amount` is left after due holds have expired, raises LimitReachedError. Raises KeyReusedError,
    CounterRetiredError, and the errors of `release_expired_for`.
    """
    assert amount > 0, "the operation checks it"
    assert counter.takes_holds, "a hold takes from a limit"
    moved_by = amount if counter.floor is None else -amount
    began_s = int(clock.now_s())
    expires_s, latest_s = began_s + ttl_s, began_s + HOLD_TTL_MAX_S
    hold_id = f"{expires_s}-{secrets.token_urlsafe(12)}"
    body = answer_members(counter, id_, hold_id, amount, expires_s)
    payload = {"amount": amount, "ttl_s": ttl_s}

    def change(draft: ReceiptDraft) -> Body:
        if counter.retired:
            refuse_retired(call, counter, draft)
        minute = minute_now(call)
        kept_s = hold_items.record_kept_s(call.store, counter)
        long_draft = draft._replace(expires_s=hold_items.known_until_s(latest_s, kept_s))
        receipt = long_draft.receipt(call, body, **tallies.receipt_facts(counter, id_, moved_by, minute))
        record_values: items.Values = {"latest": latest_s, "kept_s": kept_s, "receipt": draft.id}
        writes = partial(_hold_writes, call, counter, id_, hold_id, moved_by, minute, record_values)
        tallies.commit_within_limits(call, counter, id_, moved_by, lambda _: writes(), receipt)
        return body

    receipt_key = ReceiptKey(operation, hold_items.key_part(counter.name, id_), key, payload, counter.receipt_days)
    answer = retry_with_room(call, counter, id_, moved_by, lambda: count_once(call, receipt_key, change))
    return with_state(call, counter, id_, answer)


def answer_members(counter: Counter, id_: str, hold_id: str, amount: int, expires_s: int) -> Body:
    """Returns a hold as answers show it."""
    name = {"counter": counter.name, **periods.answer_members(id_)}
    return {**name, "hold": hold_id, "amount": amount, "expires_at": expires_s}


def with_state(call: Call, counter: Counter, id_: str, answer: ChangeAnswer) -> ChangeAnswer:
    """Returns the answer about a hold with its present `state`, which in a replay may differ from the first answer."""
    state = HELD
    if answer.replayed:
        state = hold_items.current_state(hold_items.find(call, counter, id_, answer.body["hold"]))
    return answer._replace(body={**answer.body, "state": state})


def retry_with_room(call: Call, counter: Counter, id_: str, amount: int, change: Callable[[], T]) -> T:
    """Makes the change by `amount`. While the limit refuses the change, lets due holds expire, and tries again."""
    while True:
        try:
            return change()
        except LimitReachedError as refused:
            if not release_expired_for(call, counter, id_, amount, refused.left or 0):
                raise


def release_expired_for(call: Call, counter: Counter, id_: str, amount: int, remaining: int) -> bool:
    """Makes due holds of this tally expired, which gives their amounts back, until `amount` fits. Returns whether any
    hold gave its amount back.

    Callers call this before they refuse a change. `remaining`: the amount that fits now. Takes only holds whose release
    moves the number against the direction of `amount`. A hold that another call settles at the same time counts, too.
    Raises StoreBusyError if more due holds may exist: no time is left, or not all due holds were read.
    """
    needed, released, smallest_refused = abs(amount) - remaining, 0, math.inf
    for hold in _due_of_tally(call, counter, id_) if needed > 0 and counter.may_settle_holds else ():
        if call.store.clock() >= call.deadline_s:
            raise _busy_releasing_error()
        held = int(hold["amount"]["N"])
        if held * amount < 0 and abs(held) < smallest_refused:
            try:
                transition(call, counter, hold, EXPIRED)
                released += abs(held)
            except LimitReachedError:  # of a limit that was declared later; a smaller release may fit
                smallest_refused = abs(held)
        if released >= needed:
            break
    return released > 0


def _hold_writes(
    call: Call, counter: Counter, id_: str, hold_id: str, moved_by: int, minute: int, record_values: items.Values
) -> list[Write]:
    first_expires_s = int(hold_id.split("-")[0])
    values: items.Values = {
        "counter": counter.name,
        "target": id_,
        "hold_id": hold_id,
        "state": HELD,
        "amount": -moved_by,
        "expires": first_expires_s,
        **record_values,
        **({"caller": call.caller} if call.caller else {}),  # to find the hold when the user is forgotten
    }
    key = hold_items.live_key(counter, id_, hold_id, first_expires_s)
    hold = items.put_write(call.store.settings.ledger_table, key, values)
    return [{"Update": tallies.add_write(call, counter, id_, 0, moved_by, minute)}, hold]


def amount_to_move(hold: Item, kept_amount: int) -> int:
    """Returns by how much the number has to move, so that the hold has taken `kept_amount`."""
    amount = int(hold["amount"]["N"])
    taken = abs(amount) if hold["state"]["S"] == HELD else items.int_attribute(hold, "used")  # 0 if the hold is expired
    return taken - kept_amount if amount > 0 else kept_amount - taken


def transition(
    call: Call, counter: Counter, hold: Item, state: str, kept_amount: int = 0, *, must_be_unexpired: bool = False
) -> bool:
    """Gives the hold the new `state`, and moves its tally so that the hold keeps `kept_amount`.

    `hold`: the item as it was read. `state`: if EXPIRED, the time of the hold must be over. `must_be_unexpired`: the
    time must not be over. Returns False if the time does not allow the new state, or if another call settled or changed
    the hold first. Raises LimitReachedError if the tally has no room for the move.
    """
    assert state == COMMITTED or not kept_amount, "only a commit keeps an amount"
    table, id_, hold_id = call.store.settings.ledger_table, hold["target"]["S"], hold["hold_id"]["S"]
    key = hold_items.settled_key(hold_items.key_part(counter.name, id_), hold_id)
    settled = items.put_write(table, key, _record(call, hold, state, kept_amount))
    if hold["state"]["S"] == HELD:
        held_item = {"TableName": table, "Key": {"PK": hold["PK"], "SK": hold["SK"]}}
        removal = held_item | _time_condition(state, must_be_unexpired)
        writes: list[Write] = [{"Delete": items.with_expected(removal, hold_items.expect_as_read(hold))}, settled]
    else:
        writes = [{"Put": items.with_expected(settled["Put"], {"state": hold["state"]["S"]})}]
    receipt = {"id": hold["receipt"]}
    if state == VOIDED and queries.get(call.store.client, call.store.settings.receipts_table, receipt):
        # Marks the receipt of the call that placed the hold. The receipt keeps its nonce: no second change.
        marked: items.Values = {VOIDED_AT: int(clock.now_s())}
        writes.append(items.update_write(call.store.settings.receipts_table, receipt, marked, expected=receipt))
    moved_by, debt = amount_to_move(hold, kept_amount), counter.debt if state == COMMITTED else 0
    moves = partial(_move_writes, call, counter, id_, f"{hold_id}#{state}", moved_by, debt)
    # `same_period`: the hold stays in its period, so a refusal does not name the next period.
    try:
        tallies.commit_within_limits(
            call, counter, id_, moved_by, lambda _: [*writes, *moves()], index=len(writes), debt=debt, same_period=True
        )
    except ChangeRefusedError:
        return False
    return True


def _record(call: Call, hold: Item, state: str, kept_amount: int) -> items.Values:
    """Returns the attributes of the record of a settled hold."""
    latest_s, kept_for_s = (int(hold[name]["N"]) for name in ("latest", "kept_s"))
    used = {COMMITTED: kept_amount, VOIDED: items.int_attribute(hold, "used")}
    return {
        "target": hold["target"]["S"],
        "hold_id": hold["hold_id"]["S"],
        "state": state,
        "amount": int(hold["amount"]["N"]),
        "expires": hold_items.expires_s(hold),
        "latest": latest_s,
        "kept_s": kept_for_s,
        "receipt": hold["receipt"]["S"],
        "expiration": hold_items.known_until_s(latest_s, kept_for_s),
        "nonce": call.nonce,
        **({"used": used[state]} if state in used else {}),
    }


def _time_condition(state: str, must_be_unexpired: bool) -> Item:
    """Returns the condition on the time of a held hold that gets the new `state`."""
    if state != EXPIRED and not must_be_unexpired:
        return {}
    now = {":now": {"N": str(int(clock.now_s()))}}
    operator = ">" if must_be_unexpired else "<="
    return {"ConditionExpression": f"expires {operator} :now", "ExpressionAttributeValues": now}


def _move_writes(call: Call, counter: Counter, id_: str, name: str, amount: int, debt: int) -> list[Write]:
    """Returns the writes that move the tally, and put a receipt by which the bookkeeper expects the move. `name`: the
    id of the hold and its new state, so each state of a hold has its own receipt."""
    if not amount:
        return []
    minute = minute_now(call)
    move: Write = {"Update": tallies.add_write(call, counter, id_, 0, amount, minute, debt=debt)}
    receipt = {
        "id": {"S": f"{KEY_PREFIX}#hold#{name}"},
        "nonce": {"S": call.nonce},
        "expiration": {"N": str(int(clock.now_s()) + SETTLED_KEPT_S)},  # only consumers of the stream need the receipt
        **tallies.receipt_facts(counter, id_, amount, minute),
    }
    return [move, {"Put": {"TableName": call.store.settings.receipts_table, "Item": receipt}}]


def _due_of_tally(call: Call, counter: Counter, id_: str) -> Iterator[Item]:
    """Yields the due holds of this tally. Raises StoreBusyError if a page has none, and other pages follow."""
    counter_and_id, table = hold_items.key_part(counter.name, id_), call.store.settings.ledger_table
    bucket_number = hold_items.bucket(counter, id_)
    of_tally = {"target": {"S": id_}, "state": {"S": HELD}}.items()  # `<=` tests whether a hold has both attributes
    # If a limit refuses a release, the hold becomes overdue, and `due_pages` lacks it. A counter that takes holds has
    # one limit, and a release moves the number away from it. So only a changed declaration leads to overdue holds.
    if not counter.takes_holds:
        first = f"{OVERDUE}{counter_and_id}#"
        page = queries.query(call.store, table, f"HOLDS#{bucket_number}", first, f"{first}~", Limit=DUE_PAGE_MAX)
        yield from (hold for hold in page if of_tally <= hold.items())
    for page in hold_items.due_pages(call.store, bucket_number, DUE_PAGE_MAX):
        own = [hold for hold in page if hold["SK"]["S"].endswith(f"#{counter_and_id}") and of_tally <= hold.items()]
        yield from own
        if page.has_more and not own:
            raise _busy_releasing_error()


def _busy_releasing_error() -> StoreBusyError:
    return StoreBusyError("Expired holds of this tally are not released yet.")
