"""Overrides: the limit of one id in place of the limit that its counter declares (limits.py).

After the answer, every write is judged by the override. A call chooses its period when it begins, by the clock of its
process, and is over within seconds. That clock may differ from the clock here by OFF_S_MAX (dynamo/clock.py). So a
change of the override writes a copy into each period that a call may be in: those of the last OFF_S_MAX. A period that
begins within OFF_S_MAX gets a mark instead. A later change, by a clock that is behind, may miss that period, so its
first write has to read the override. A period that begins later reads the override anyway.
"""

from __future__ import annotations

from ..counter import Counter
from ..dynamo import clock, items
from ..dynamo.client import Call
from ..dynamo.keys import Item
from ..dynamo.transactions import Write, transact
from . import limits, periods, tallies
from .limits import MARK, NO_PLAN, PLAN, own_name
from .receipts import Body, ChangeAnswer, Keyed, Stamp, once

STEP_S = 60  # no period is shorter


def read(call: Call, counter: Counter, id_: str) -> Body:
    """Returns the limit of one id, `{"counter","id","limit","own"}`: 1 RCU."""
    within = limits.read(call, counter, id_)
    return {"counter": counter.name, "id": id_, "limit": within.limit, "own": within.own}


def put(call: Call, counter: Counter, id_: str, limit: int | None, *, operation: str, key: str) -> ChangeAnswer:
    """Sets the override of an id; None deletes it. Answers `{"counter","id","limit","own"}`.

    The number does not move, so the receipt says no amount. 4 WCU; with periods 6, and 2 more for each edge nearby.
    Raises KeyReusedError, StoreBusyError.
    """
    assert counter.own_limits, "nothing would judge by it"
    own = limit is not None
    plan = {PLAN: {"S": call.nonce}, own_name(counter): {"N": str(limit)}} if own else NO_PLAN
    body = {"counter": counter.name, "id": id_, "limit": limit if own else limits.declared(counter).limit, "own": own}

    def change(stamp: Stamp) -> Body:
        transact(call, counter, id_, lambda _: _writes(call, counter, id_, plan), stamp.receipt(call, body))
        return body

    return once(call, Keyed(operation, f"{counter.name}/{id_}", key, {"limit": limit}, counter.receipt_days), change)


def _writes(call: Call, counter: Counter, id_: str, plan: Item) -> list[Write]:
    """Returns the writes of an override, and of its copies for the periods that calls may be in."""
    if counter.period is None:
        return [_copy(call, counter, id_, plan)]
    item, table = limits.key(counter, id_), {"TableName": call.store.settings.counts_table}
    first: Write = {"Delete": {**table, "Key": item}} if plan is NO_PLAN else {"Put": {**table, "Item": item | plan}}
    now_s = clock.now_s()
    mark: Item = {PLAN: {"S": f"{MARK}{call.nonce}"}}
    ahead_s = clock.OFF_S_MAX * (2 if counter.unique else 1)  # a visit may begin a period early
    near = {
        periods.tally_id(counter, id_, now_s + far_s): mark if far_s > 0 else plan
        for far_s in range(ahead_s, -clock.OFF_S_MAX - 1, -STEP_S)
    }
    return [first, *(_copy(call, counter, tally, said) for tally, said in near.items())]


def _copy(call: Call, counter: Counter, tally: str, plan: Item) -> Write:
    """Returns the write that gives a tally's item the override or a mark, beside the number. An override removes the
    attributes of another one. It increments the version: a caller that sets the number by an older version has not seen
    the override."""
    gone = [] if plan[PLAN]["S"].startswith(MARK) else limits.not_of(plan)
    write: Write = {
        "TableName": call.store.settings.counts_table,
        "Key": tallies.key(counter, tally, 0),
        "UpdateExpression": "SET #plan = :plan ADD version :one",
        "ExpressionAttributeNames": {"#plan": PLAN},
        "ExpressionAttributeValues": {":plan": plan[PLAN], ":one": {"N": "1"}},
    }
    own = {name: value for name, value in plan.items() if name != PLAN}
    return {"Update": tallies.expiring(items.beside(write, sets=own, removed=gone), counter, tally)}
