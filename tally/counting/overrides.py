"""Overrides: the limit of one id in place of the limit that its counter declares (limits.py).

After a change of the override is answered, each write obeys the new override. A call that counts chooses its period
when it begins, by the clock of its process, which may differ from this process's clock by CLOCK_DIFFERENCE_S_MAX
(dynamo/clock.py). So a change of the override writes a copy into each period that such a call may be in: the present
period, and each period that ended within CLOCK_DIFFERENCE_S_MAX. A period that begins within CLOCK_DIFFERENCE_S_MAX
gets a stale mark (limits.py), because the next change of the override, by a clock that is behind, may miss it. The
first write of a period without a copy, or with a stale mark, reads the override.
"""

from __future__ import annotations

from ..counter import Counter
from ..dynamo import clock, items
from ..dynamo.client import Call
from ..dynamo.keys import Item
from ..dynamo.transactions import Write, commit_change
from . import limits, periods, tallies
from .limits import NO_OVERRIDE, OVERRIDE, STALE_COPY_PREFIX, override_attribute
from .receipts import Body, ChangeAnswer, ReceiptDraft, ReceiptKey, count_once

STEP_S = 60  # between the times whose periods get a copy or a mark. No period is shorter, so none is left out


def read_override(call: Call, counter: Counter, id_: str) -> Body:
    """Returns the limit of one id, `{"counter","id","limit","override"}`: 1 RCU."""
    bounds = limits.read_limits(call, counter, id_)
    return {"counter": counter.name, "id": id_, "limit": bounds.limit, "override": bounds.is_override}


def put_override(
    call: Call, counter: Counter, id_: str, limit: int | None, *, operation: str, key: str
) -> ChangeAnswer:
    """Sets the override of an id; None deletes it. Answers `{"counter","id","limit","override"}`.

    The number does not move, so the receipt has no amount. Costs 4 WCU; with periods 4 WCU, and 2 WCU for each period
    that gets a copy or a mark. Raises KeyReusedError, StoreBusyError.
    """
    assert counter.limit_overrides, "no write would obey the override"
    is_set = limit is not None
    override = {OVERRIDE: {"S": call.nonce}, override_attribute(counter): {"N": str(limit)}} if is_set else NO_OVERRIDE
    limit_now = limit if is_set else limits.declared_limits(counter).limit
    body = {"counter": counter.name, "id": id_, "limit": limit_now, "override": is_set}

    def change(draft: ReceiptDraft) -> Body:
        receipt = draft.receipt(call, body)
        commit_change(call, counter, id_, lambda _shard: _override_writes(call, counter, id_, override), receipt)
        return body

    receipt_key = ReceiptKey(operation, f"{counter.name}/{id_}", key, {"limit": limit}, counter.receipt_days)
    return count_once(call, receipt_key, change)


def _override_writes(call: Call, counter: Counter, id_: str, override: Item) -> list[Write]:
    """Returns the writes of an override, and of its copies and marks in the periods that calls may be in."""
    if counter.period is None:
        return [_copy_write(call, counter, id_, override)]
    key, table = limits.key(counter, id_), {"TableName": call.store.settings.counts_table}
    first: Write = {"Put": {**table, "Item": key | override}}
    if override is NO_OVERRIDE:
        first = {"Delete": {**table, "Key": key}}
    now_s = clock.now_s()
    mark: Item = {OVERRIDE: {"S": f"{STALE_COPY_PREFIX}{call.nonce}"}}
    # The time of a visit may be ahead of the clock that counts the visit, and that clock ahead of this clock.
    ahead_s = clock.CLOCK_DIFFERENCE_S_MAX * (2 if counter.unique else 1)
    copies = {  # of the last offset in each period, so the present period gets the override and no mark
        periods.tally_id(counter, id_, now_s + offset_s): mark if offset_s > 0 else override
        for offset_s in range(ahead_s, -clock.CLOCK_DIFFERENCE_S_MAX - 1, -STEP_S)
    }
    return [first, *(_copy_write(call, counter, tally, copy) for tally, copy in copies.items())]


def _copy_write(call: Call, counter: Counter, tally: str, copy: Item) -> Write:
    """Returns the write that stores the override or a stale mark in a tally's item. An override removes the attributes
    of an earlier override. The write increments the version, so that no caller sets the number by older limits."""
    remove = [] if copy[OVERRIDE]["S"].startswith(STALE_COPY_PREFIX) else limits.attributes_to_remove(copy)
    write: Write = {
        "TableName": call.store.settings.counts_table,
        "Key": tallies.key(counter, tally, shard=0),
        "UpdateExpression": "SET #override = :override ADD version :one",
        "ExpressionAttributeNames": {"#override": OVERRIDE},
        "ExpressionAttributeValues": {":override": copy[OVERRIDE], ":one": {"N": "1"}},
    }
    limit = {name: value for name, value in copy.items() if name != OVERRIDE}
    return {"Update": tallies.with_expiry(items.extend_update(write, sets=limit, remove=remove), counter, tally)}
