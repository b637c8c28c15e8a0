"""Changes a hold: gives it another amount, another time, or both, in one transaction and once for its key.

The hold keeps its id. A new time gives the hold another key. A record under its id then says MOVED, and has the time.
"""

from __future__ import annotations

from functools import partial

from ..counter import Counter
from ..dynamo import clock, items
from ..dynamo.client import Call
from ..dynamo.keys import Item
from ..dynamo.transactions import Write, sleep_or_raise_busy
from ..errors import CallerError, ChangeRefusedError, HoldSettledError, InvalidInputError
from . import hold_items, holds, periods, tallies
from .hold_items import EXPIRED, HELD, MOVED
from .receipts import Body, ChangeAnswer, ReceiptDraft, ReceiptKey, count_once, raise_if_counted, retired_error


def change_hold(
    call: Call,
    counter: Counter,
    id_: str,
    hold_id: str,
    amount: int | None,
    ttl_s: int | None,
    *,
    operation: str,
    key: str,
) -> ChangeAnswer:
    """Gives a hold another `amount`, and another end, `ttl_s` seconds from now; None: as it is. Answers as holds.place.

    If the hold is to grow by more than is left, releases expired holds. If that is not enough, raises LimitReachedError
    and leaves the hold as it is. Raises HoldSettledError for a hold that is settled or expired, InvalidInputError for
    an end beyond the hold's `latest`, seven days after it was placed, NotFoundError for an unknown hold or a period
    that is not kept, and the errors of holds.place."""
    assert amount is None or amount > 0, "the operation checks it"
    expires_s = None if ttl_s is None else int(clock.now_s()) + ttl_s

    def commit(draft: ReceiptDraft) -> Body:
        retries = None
        while True:
            hold = hold_items.find(call, counter, id_, hold_id)
            if refusal := _refusal(counter, hold, expires_s):
                raise_if_counted(call, draft)  # after the read of the hold, so a retry gets its first answer
                raise refusal
            if body := _try_change(call, counter, hold, amount, expires_s, draft):
                return body
            retries = retries or call.retries()
            sleep_or_raise_busy(retries)

    payload = {"hold": hold_id, "amount": amount, "ttl_s": ttl_s}
    receipt_key = ReceiptKey(operation, hold_items.key_part(counter.name, id_), key, payload, counter.receipt_days)
    return holds.with_state(call, counter, id_, count_once(call, receipt_key, commit))


def _refusal(counter: Counter, hold: Item, expires_s: int | None) -> CallerError | None:
    """Returns the error for a hold that cannot be changed; None if the hold can be changed."""
    state, stored_id, now_s = hold_items.current_state(hold), hold["target"]["S"], clock.now_s()
    if state != HELD:
        consequence = " Others may have its amount." if state == EXPIRED else ""
        return HoldSettledError(f"The hold is {state}, and cannot be changed.{consequence} Place another hold.")
    if counter.retired:
        return retired_error(counter)
    if not periods.is_kept(counter, stored_id, now_s):
        return periods.not_kept_error(counter, stored_id, "hold")
    latest_s = int(hold["latest"]["N"])
    if expires_s is not None and expires_s > latest_s:
        why = f"A hold ends seven days after it was placed. Set ttl_s to {latest_s - int(now_s)} or less."
        return InvalidInputError(f"ttl_s is too large: {why}", field="ttl_s")
    return None


def _try_change(
    call: Call, counter: Counter, hold: Item, amount: int | None, expires_s: int | None, draft: ReceiptDraft
) -> Body | None:
    """Commits the amount and the time, and returns the answer; None if another call changed or settled the hold first.
    If a larger amount does not fit, releases expired holds. `amount`, `expires_s`: None: as the hold has it."""
    stored_id, minute = hold["target"]["S"], tallies.minute_now(call)
    amount, expires_s = amount or abs(int(hold["amount"]["N"])), expires_s or hold_items.expires_s(hold)
    signed = amount if int(hold["amount"]["N"]) > 0 else -amount  # what a release adds to the number
    key = hold_items.live_key(counter, stored_id, hold["hold_id"]["S"], expires_s)
    changed = hold | key | items.to_wire({"amount": signed, "expires": expires_s})
    body, hold_writes = holds.answer_members(changed), _change_writes(call, counter, hold, changed)
    moved_by = holds.amount_to_move(hold, amount)
    # The receipt lives as long as the record of the hold.
    long_draft = draft._replace(expires_s=hold_items.known_until_s(hold))
    receipt = long_draft.receipt(
        call, body, **(tallies.receipt_facts(counter, stored_id, moved_by, minute) if moved_by else {})
    )

    def writes(shard: int) -> list[Write]:
        if not moved_by:
            return hold_writes
        return [*hold_writes, {"Update": tallies.add_write(call, counter, stored_id, shard, moved_by, minute)}]

    # `same_period`: the hold stays in its period, so a refusal does not name the next period.
    move = call, counter, stored_id, moved_by
    commit = partial(tallies.commit_within_limits, *move, writes, receipt, index=len(hold_writes), same_period=True)
    try:
        holds.retry_with_room(call, counter, stored_id, moved_by, commit)
    except ChangeRefusedError:
        return None
    return body


def _change_writes(call: Call, counter: Counter, hold: Item, changed: Item) -> list[Write]:
    """Returns the writes that put the `changed` hold, on condition that the hold is as it was read."""
    table, as_read = call.store.settings.ledger_table, hold_items.expect_as_read(hold)
    put: Item = {"TableName": table, "Item": changed}
    if changed["SK"] == hold["SK"]:
        return [{"Put": items.with_expected(put, as_read)}]
    old_item: Item = {"TableName": table, "Key": {"PK": hold["PK"], "SK": hold["SK"]}}
    key = hold_items.settled_key(hold_items.key_part(counter.name, hold["target"]["S"]), hold["hold_id"]["S"])
    moved: items.Values = {"state": MOVED, **{name: changed[name] for name in ("target", "hold_id", "expires")}}
    return [{"Delete": items.with_expected(old_item, as_read)}, {"Put": put}, items.put_write(table, key, moved)]
