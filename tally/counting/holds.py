"""Holds: an amount that is taken now, and later kept (committed) or given back (released, or expired), exactly once.

A hold takes from a stock, which has a floor, or from a quota, which has a ceiling. `place` makes a hold in the state
held, and changing.py gives this hold another amount or time. The values of `Transition` say how a hold gets into each
other state. Here an `amount` is at least 0, and `moved_by` is what is added to the number: below 0 when a stock is
taken. But the item of a hold has the `amount` that its release adds, which is below 0 for a quota.

One transaction moves a hold and its tally, on condition that the hold has the state that was read. When a hold leaves
the state held, the transaction deletes its item, and puts a record under another key (hold_items.py). So a query of
*due* holds, which are held past their time, finds no hold in another state. A due hold has not given its amount back.
Before a call refuses a change, it makes due holds of the tally expired, until the change fits (`expire_due_for`). The
sweep makes the other due holds expired (expired_holds.py).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

from ..counter import Counter
from ..dynamo import clock, items, queries
from ..dynamo.client import Call
from ..dynamo.keys import Item
from ..dynamo.transactions import Write
from ..errors import ChangeRefusedError, LimitReachedError, StoreBusyError
from ..fields import HOLD_TTL_MAX_S
from . import hold_items, periods, tallies
from .hold_items import COMMITTED, EXPIRED, HELD, OVERDUE, RELEASED, SETTLED_KEPT_S, VOIDED
from .receipts import KEY_PREFIX, VOIDED_AT, Body, ChangeAnswer, ReceiptDraft, ReceiptKey, count_once, refuse_retired
from .tallies import minute_now

DUE_PAGE_MAX = 80  # holds that a call reads in one query before it refuses a change: 5 read units, with UUIDs as ids
_BUSY = "Expired holds of this tally are not released yet."
T = TypeVar("T")


class Transition(NamedTuple):
    """How a hold gets into another state. A hold enters each state once, and stays released or voided."""

    state: str
    states_before: tuple[str, ...]
    time_condition: str = ""
    """The condition on the time of a hold that is held; "": the time does not matter."""
    may_use_debt: bool = False
    """Whether the number may go beyond its limit, by the counter's `debt`."""


EXPIRE = Transition(EXPIRED, states_before=(HELD,), time_condition="expires <= :now")
"""Gives the amount of a due hold back."""
RELEASE = Transition(RELEASED, states_before=(HELD, EXPIRED))
"""Gives the amount back. If the hold is expired, the amount was given back before, so the release moves nothing."""
COMMIT_AS_HELD = Transition(COMMITTED, states_before=(HELD,), time_condition="expires > :now")
"""Keeps the amount, so it moves nothing. After the expiry, others may have the amount."""
COMMIT_AS_USED = Transition(COMMITTED, states_before=(HELD, EXPIRED), may_use_debt=True)
"""Gives back what was held and not used, or takes what was used and not held: all of it if the hold is expired."""
VOID = Transition(VOIDED, states_before=(COMMITTED,))
"""Gives back what the commit kept, and marks the receipt of the call that placed the hold as voided."""


def place(call: Call, counter: Counter, id_: str, amount: int, ttl_s: int, *, operation: str, key: str) -> ChangeAnswer:
    """Takes `amount` of a tally now and holds it for `ttl_s` seconds. The body has the id of the `hold`, and its
    `state`, which a replay shows as it is now. The receipt lives as long as the hold can be committed, even if another
    call changes the time of the hold.

    If less than `amount` is left after due holds have expired, raises LimitReachedError. Raises KeyReusedError,
    CounterRetiredError, and the errors of `expire_due_for`.
    """
    assert amount > 0, "the operation checks it"
    assert counter.takes_holds, "a hold takes from a limit"
    moved_by = amount if counter.floor is None else -amount
    hold = _new_hold(call, counter, id_, moved_by, ttl_s)
    body, payload = answer_members(hold), {"amount": amount, "ttl_s": ttl_s}

    def change(draft: ReceiptDraft) -> Body:
        if counter.retired:
            refuse_retired(call, counter, draft)
        minute = minute_now(call)
        long_draft = draft._replace(expires_s=hold_items.known_until_s(hold))
        receipt = long_draft.receipt(call, body, **tallies.receipt_facts(counter, id_, moved_by, minute))
        put = items.put_write(call.store.settings.ledger_table, hold, {"receipt": draft.id})
        add = partial(tallies.add_write, call, counter, id_, amount=moved_by, minute=minute)
        tallies.commit_within_limits(call, counter, id_, moved_by, lambda shard: [{"Update": add(shard)}, put], receipt)
        return body

    receipt_key = ReceiptKey(operation, hold_items.key_part(counter.name, id_), key, payload, counter.receipt_days)
    answer = retry_with_room(call, counter, id_, moved_by, lambda: count_once(call, receipt_key, change))
    return with_state(call, counter, id_, answer)


def _new_hold(call: Call, counter: Counter, id_: str, moved_by: int, ttl_s: int) -> Item:
    """Returns the item of a new hold, without the id of its receipt."""
    began_s = int(clock.now_s())
    expires_s = began_s + ttl_s
    hold_id = f"{expires_s}-{secrets.token_urlsafe(12)}"
    values: items.Values = {
        "counter": counter.name,
        "target": id_,
        "hold_id": hold_id,
        "state": HELD,
        "amount": -moved_by,
        "expires": expires_s,
        "latest": began_s + HOLD_TTL_MAX_S,
        "kept_s": hold_items.record_kept_s(call.store, counter),
        **({"caller": call.caller} if call.caller else {}),  # to find the hold when the user is forgotten
    }
    return hold_items.live_key(counter, id_, hold_id, expires_s) | items.to_wire(values)


def answer_members(hold: Item) -> Body:
    """Returns a held hold as answers show it."""
    name = {"counter": hold["counter"]["S"], **periods.answer_members(hold["target"]["S"])}
    amount, expires_s = abs(int(hold["amount"]["N"])), hold_items.expires_s(hold)
    return {**name, "hold": hold["hold_id"]["S"], "amount": amount, "expires_at": expires_s}


def with_state(call: Call, counter: Counter, id_: str, answer: ChangeAnswer) -> ChangeAnswer:
    """Returns the answer about a hold with its present `state`, which in a replay may differ from the first answer."""
    state = HELD
    if answer.replayed:
        state = hold_items.current_state(hold_items.find(call, counter, id_, answer.body["hold"]))
    return answer._replace(body={**answer.body, "state": state})


def retry_with_room(call: Call, counter: Counter, id_: str, moved_by: int, change: Callable[[], T]) -> T:
    """Makes the change by `moved_by`. While the limit refuses the change, lets due holds expire, and tries again."""
    while True:
        try:
            return change()
        except LimitReachedError as refused:
            if not expire_due_for(call, counter, id_, moved_by, refused.left or 0):
                raise


def expire_due_for(call: Call, counter: Counter, id_: str, moved_by: int, remaining: int) -> bool:
    """Makes due holds of this tally expired, which gives their amounts back, until a change by `moved_by` fits. Returns
    whether any hold gave its amount back.

    Callers call this before they refuse a change. `remaining`: the amount that fits now. Takes only holds whose expiry
    moves the number against the direction of `moved_by`. A hold that another call settles at the same time counts, too.
    Raises StoreBusyError if more due holds may exist, because no time is left or not all due holds were read.
    """
    needed, given_back, smallest_refused = abs(moved_by) - remaining, 0, math.inf
    if needed <= 0 or not counter.may_settle_holds:
        return False
    for hold in _due_of_tally(call, counter, id_):
        if call.store.clock() >= call.deadline_s:
            raise StoreBusyError(_BUSY)
        expiry_moves_by = amount_to_move(hold, kept_amount=0)
        size = abs(expiry_moves_by)
        if expiry_moves_by * moved_by < 0 and size < smallest_refused:
            try:
                make_transition(call, counter, hold, EXPIRE)
                given_back += size
            except LimitReachedError:  # of a limit that was declared later; a smaller hold may fit
                smallest_refused = size
        if given_back >= needed:
            break
    return given_back > 0


def amount_to_move(hold: Item, kept_amount: int) -> int:
    """Returns what a write has to add to the number, so that the hold has taken `kept_amount`."""
    amount = int(hold["amount"]["N"])
    taken = abs(amount) if hold["state"]["S"] == HELD else items.int_attribute(hold, "used")  # 0 if the hold is expired
    given_back = taken - kept_amount
    return given_back if amount > 0 else -given_back


def make_transition(call: Call, counter: Counter, hold: Item, transition: Transition, kept_amount: int = 0) -> bool:
    """Gives the hold the new state, and moves its tally so that the hold keeps `kept_amount`.

    `hold`: the item as it was read. Returns False if the hold's state or time does not allow the transition, or if
    another call settled or changed the hold first. Raises LimitReachedError if the tally has no room for the move.
    """
    id_, old_state, new_state = hold["target"]["S"], hold["state"]["S"], transition.state
    record = _record_write(call, counter, hold, new_state, kept_amount)
    if old_state not in transition.states_before:
        return False
    if old_state == HELD:
        removal = {"TableName": call.store.settings.ledger_table, "Key": {"PK": hold["PK"], "SK": hold["SK"]}}
        if transition.time_condition:
            now = {":now": {"N": str(int(clock.now_s()))}}
            removal |= {"ConditionExpression": transition.time_condition, "ExpressionAttributeValues": now}
        hold_writes: list[Write] = [{"Delete": items.with_expected(removal, hold_items.expect_as_read(hold))}, record]
    else:
        hold_writes = [{"Put": items.with_expected(record["Put"], {"state": old_state})}]
    table, receipt = call.store.settings.receipts_table, {"id": hold["receipt"]}
    if transition is VOID and queries.get(call.store.client, table, receipt):  # the receipt may have expired
        # The receipt keeps its nonce, so the bookkeeper does not take it for the receipt of another change.
        hold_writes.append(items.update_write(table, receipt, {VOIDED_AT: int(clock.now_s())}, expected=receipt))
    moved_by, debt = amount_to_move(hold, kept_amount), counter.debt if transition.may_use_debt else 0
    add = partial(_add_writes, call, counter, id_, f"{hold['hold_id']['S']}#{new_state}", moved_by, debt)
    change = call, counter, id_, moved_by, lambda shard: [*hold_writes, *add(shard)]
    try:  # `same_period`: the hold stays in its period, so a refusal does not name the next period
        tallies.commit_within_limits(*change, index=len(hold_writes), debt=debt, same_period=True)
    except ChangeRefusedError:
        return False
    return True


def _record_write(call: Call, counter: Counter, hold: Item, state: str, kept_amount: int) -> Write:
    """Returns the write that puts the record of a hold with the new `state`."""
    copied = ("target", "hold_id", "amount", "expires", "latest", "kept_s", "receipt")
    used = kept_amount if state == COMMITTED else hold.get("used")
    values: items.Values = {
        **{name: hold[name] for name in copied},
        "state": state,
        "expiration": hold_items.known_until_s(hold),
        "nonce": call.nonce,  # by which a retry of the call knows that the transition is its own
        **({} if used is None else {"used": used}),
    }
    key = hold_items.settled_key(hold_items.key_part(counter.name, hold["target"]["S"]), hold["hold_id"]["S"])
    return items.put_write(call.store.settings.ledger_table, key, values)


def _add_writes(call: Call, counter: Counter, id_: str, name: str, moved_by: int, debt: int, shard: int) -> list[Write]:
    """Returns the writes that move the tally, and put a receipt by which the bookkeeper expects the move. `name`: the
    id of the hold and its new state, so each transition has its own receipt."""
    if not moved_by:
        return []
    minute = minute_now(call)
    add: Write = {"Update": tallies.add_write(call, counter, id_, shard, moved_by, minute, debt=debt)}
    receipt = {
        "id": {"S": f"{KEY_PREFIX}#hold#{name}"},
        "nonce": {"S": call.nonce},
        "expiration": {"N": str(int(clock.now_s()) + SETTLED_KEPT_S)},  # only consumers of the stream need the receipt
        **tallies.receipt_facts(counter, id_, moved_by, minute),
    }
    return [add, {"Put": {"TableName": call.store.settings.receipts_table, "Item": receipt}}]


def _due_of_tally(call: Call, counter: Counter, id_: str) -> Iterator[Item]:
    """Yields the due holds of this tally. Raises StoreBusyError if a page has only due holds of other tallies, and
    other pages follow."""
    counter_and_id, table = hold_items.key_part(counter.name, id_), call.store.settings.ledger_table
    bucket_number = hold_items.bucket(counter, id_)
    of_tally = {"target": {"S": id_}, "state": {"S": HELD}}.items()  # `<=` tests whether a hold has both attributes
    # A hold whose expiry failed is overdue, and `due_pages` lacks it. A counter that takes holds has only one limit,
    # which refuses expiries in the direction of the change. They make no room, so overdue holds are not read. After
    # another failure, as of a deploy without the counter, a change may be refused until the next sweep.
    if not counter.takes_holds:
        first = f"{OVERDUE}{counter_and_id}#"
        page = queries.query(call.store, table, f"HOLDS#{bucket_number}", first, f"{first}~", Limit=DUE_PAGE_MAX)
        yield from (hold for hold in page if of_tally <= hold.items())
    for page in hold_items.due_pages(call.store, bucket_number, DUE_PAGE_MAX):
        own = [hold for hold in page if hold["SK"]["S"].endswith(f"#{counter_and_id}") and of_tally <= hold.items()]
        yield from own
        if page.has_more and not own:
            raise StoreBusyError(_BUSY)
