"""What each operation, schedule and consumer needs of the tables, and what the operators' policy allows.

The roles in the template grant exactly this. Tests record what each function does and compare it with these needs.
No handler imports this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter

import operations
from tally.counter import Counter
from tally.operation import Need, Operation, Table
from tally.shipped import BOT_VISITS, LIKES, PLAYS, VISITS

Needs = frozenset[Need]

RECEIPT_PREFIX = "tally#"
_NOTHING: Needs = frozenset()
_PUT_RECEIPT = frozenset({Need("PutItem", Table.RECEIPTS, RECEIPT_PREFIX)})
_FIND_RECEIPT = frozenset({Need("GetItem", Table.RECEIPTS, RECEIPT_PREFIX)})
_FIND_RECEIPTS = frozenset({Need("BatchGetItem", Table.RECEIPTS, RECEIPT_PREFIX)})
_PROBE = frozenset({Need("GetItem", Table.COUNTS, "HEALTH")})
_READ_SERIES = frozenset({
    Need("GetItem", Table.LEDGER, "PROGRESS"),
    Need("Query", Table.LEDGER, "SERIES#"),
    Need("Query", Table.LEDGER, "RUNNING#"),
})  # fmt: skip
_READ_TOP = frozenset({Need("GetItem", Table.LEDGER, "PROGRESS"), Need("Query", Table.LEDGER, "TOP#")})
_READ_JUDGE = frozenset({Need("GetItem", Table.LEDGER, "JUDGE")})


def of_functions(counters: Mapping[str, Counter]) -> dict[str, Needs]:
    """What the role of each function grants, by the function's module."""
    by_operation = of_operations(counters)
    functions = {
        module: _NOTHING.union(*(by_operation[operation] for operation in found))
        for module, found in operations.functions().items()
    }
    return {**functions, **_of_schedules(counters), **_of_consumers(counters)}


def of_operations(counters: Mapping[str, Counter]) -> dict[Operation, Needs]:
    """What each operation needs. `counters`: those that the deployment declares."""
    read_like, change_like = _on([LIKES], "BatchGetItem"), _change_child([LIKES]) | _on([LIKES], "Query")
    with_children = operations.PUT_CHILD.served(counters)
    change_child = _change_child(with_children) | _find_before_refusal(with_children)
    # A hold that is settled moves within its partitions. What is given back has a receipt.
    settle_hold = _PUT_RECEIPT | _on_holds(counters, "GetItem", "PutItem", "DeleteItem")
    return {
        operations.PLAY: _count(PLAYS) | _on([PLAYS], "Query"),  # the number in the answer
        operations.GET_PLAYS: _on([PLAYS], "Query"),
        operations.PUT_POST: _on([LIKES], "Query", "PutItem", "UpdateItem"),
        operations.GET_POST: _on([LIKES], "Query"),
        # It marks the post and the shards of its tally, and names it to the sweep.
        operations.DELETE_POST: _on([LIKES], "GetItem", "UpdateItem", "DeleteItem")
        | _on_ledger({"DELETED": ["PutItem"]}),
        operations.LIKE: change_like,
        operations.UNLIKE: change_like,
        operations.GET_LIKE: read_like,
        operations.LIST_LIKES: _on([LIKES], "GetItem", "Query"),
        operations.MY_LIKES: read_like,
        operations.PUT_CHILD: change_child,
        operations.DELETE_CHILD: change_child,
        operations.GET_CHILD: _on(with_children, "BatchGetItem"),
        operations.LIST_CHILDREN: _on(with_children, "GetItem", "Query"),
        operations.VISIT: _count(VISITS) | _count(BOT_VISITS),
        operations.GET_VISITS: _on([VISITS, BOT_VISITS], "Query") | _READ_JUDGE,
        operations.GET_BADGE: _on([VISITS], "Query"),
        operations.BEACON: _NOTHING,
        operations.INCREMENT: _increment(counters),
        # It looks for its receipt before it refuses a retired counter. Those that are rolled up have no update.
        operations.CHANGE: _NOTHING.union(*map(_count, operations.CHANGE.served(counters)))
        | _find_before_refusal(operations.CHANGE.served(counters))
        | _release_expired(counters),
        operations.GET_COUNTER: _get_counter(counters),
        # It reads the number before it sets it, and looks for a receipt if the number has moved.
        operations.SET_COUNTER: _PUT_RECEIPT
        | _FIND_RECEIPT
        | _on(operations.SET_COUNTER.served(counters), "Query", "UpdateItem"),
        operations.HOLD: _release_expired(counters) | _find_before_refusal(operations.HOLD.served(counters)),
        operations.COMMIT_HOLD: settle_hold,
        operations.RELEASE_HOLD: settle_hold,
        operations.GET_TALLIES: _get_tallies(_those(counters, lambda counter: counter.public)),
        operations.GET_ANY_TALLIES: _get_tallies(counters.values()),
        operations.GET_COUNTER_BADGE: _on(operations.GET_COUNTER_BADGE.served(counters), "Query"),
        operations.GET_RECEIPT: _FIND_RECEIPT,
        operations.GET_OWN_RECEIPT: _FIND_RECEIPT,
        **dict.fromkeys(operations.SERIES, _READ_SERIES | _on_ledger({"HISTORY#": ["Query"]})),
        operations.GET_TOP: _READ_TOP,
        operations.GET_COUNTER_TOP: _READ_TOP,
        operations.GET_RECEIPTS: _FIND_RECEIPTS,
        operations.GET_OWN_RECEIPTS: _FIND_RECEIPTS,
        operations.GET_DRIFT: _READ_JUDGE | _on_ledger({"DRIFT": ["Query"]}),
        operations.GET_STATUS: _PROBE
        | _READ_JUDGE
        | _on_ledger({"DRIFT": ["Query"], "DEADLETTER": ["Query"], "HOLDS#": ["Query"]}),
        operations.GET_DETAILS: _on(counters.values(), "Query")
        | _READ_JUDGE
        | _on_ledger({"DRIFT": ["GetItem"], "HISTORY#": ["Query"]}),
        operations.HEALTH: _PROBE,
        operations.GET_OPENAPI: _NOTHING,
        **dict.fromkeys(operations.ON_CONSOLE, _NOTHING),
    }


def of_operator(counters: Mapping[str, Counter]) -> Needs:
    """What the command `tally` does beside scanning counts and receipts: it reads, repairs a tally, and redrives."""
    on_ledger = {
        "SEGMENT#": ("PutItem",),  # a redriven record is booked on a page of its own
        "DRIFT": ("Query", "GetItem", "UpdateItem", "ConditionCheckItem"),
        "DEADLETTER": ("Query", "GetItem", "DeleteItem"),
        "HISTORY#": ("Query", "PutItem"),
        "HOLDS#": ("Query", "PutItem", "DeleteItem"),  # of a user that it forgets
        "DELETED": ("PutItem",),
    }
    users = _those(counters, attrgetter("counts_users"))
    forget = _PUT_RECEIPT | _on(users, "GetItem", "BatchGetItem", "PutItem", "DeleteItem")
    repair = _on(counters.values(), "Query", "UpdateItem", "ConditionCheckItem") | _READ_JUDGE
    parents = _those(counters, lambda counter: counter.child is not None)
    import_ = _PUT_RECEIPT | _FIND_RECEIPT | _on(parents, "BatchGetItem", "PutItem", "UpdateItem")
    return repair | forget | import_ | _READ_SERIES | _READ_TOP | _on_ledger(on_ledger)


def _of_schedules(counters: Mapping[str, Counter]) -> dict[str, Needs]:
    """The sweep writes heartbeats, reads how far the consumers have come, judges, and releases expired holds. It takes
    back the children of removed parents.
    """
    heartbeats = {Need("PutItem", Table.COUNTS, "HEARTBEAT#"), Need("PutItem", Table.RECEIPTS, "heartbeat#")}
    checkpoints = [f"CHECKPOINT#{one.function}#{table.value}" for one in operations.CONSUMERS for table in one.streams]
    judging = {
        "JUDGE": ("GetItem", "UpdateItem"),
        "SEGMENT#": ("Query",),
        "DRIFT": ("Query", "BatchGetItem", "UpdateItem"),
        "PROGRESS": ("GetItem", "UpdateItem"),
        "SERIES#": ("UpdateItem",),
        "RUNNING#": ("Query", "PutItem"),
        "TOP#": ("Query", "PutItem"),
        **dict.fromkeys(checkpoints, ("Query",)),
    }
    deleting = _on(_those(counters, attrgetter("counts_children")), "Query", "UpdateItem", "PutItem", "DeleteItem")
    deleting |= _on_ledger({"DELETED": ["Query", "PutItem", "DeleteItem"]})
    return {"sweep": _release_expired(counters) | heartbeats | _on_ledger(judging) | deleting}


def _of_consumers(counters: Mapping[str, Counter]) -> dict[str, Needs]:
    rolled_up = _those(counters, lambda counter: counter.rolls_up)
    return {
        "rollup": _consume("rollup") | _on(rolled_up, "UpdateItem"),
        "drift": _consume("drift") | _READ_JUDGE | _on_ledger({"SEGMENT#": ["PutItem"]}),  # none of a judged minute
    }


def _consume(consumer: str) -> Needs:
    """Its checkpoints, and markers of the records that it could not apply."""
    return _on_ledger({f"CHECKPOINT#{consumer}#": ("GetItem", "UpdateItem"), "DEADLETTER": ("PutItem",)})


def _increment(counters: Mapping[str, Counter]) -> Needs:
    """Each is read for the value in the answer, and a number before it is taken.

    After the last number a receipt is looked for, so that a retry gets that number. A batch that was sent before reads
    its receipts together.
    """
    served = operations.INCREMENT.served(counters)
    numbered = [counter for counter in served if counter.numbered]
    take_number = _on(served, "Query") | (_FIND_RECEIPT if numbered else _find_before_refusal(served))
    replays = _FIND_RECEIPTS if any(counter.known for counter in served) else _NOTHING
    return _NOTHING.union(*map(_count, served)) | take_number | replays | _release_expired(counters)


def _change_child(counters: Iterable[Counter]) -> Needs:
    """A change reads the child. It may look for a parent, and make a shard beside it (tally/counting/children.py)."""
    change = _on(counters, "PutItem", "GetItem", "UpdateItem", "DeleteItem", "ConditionCheckItem")
    return (change | _on(_needing_parent(counters), "BatchGetItem") | _PUT_RECEIPT) if change else _NOTHING


def _needing_parent(counters: Iterable[Counter]) -> list[Counter]:
    return [counter for counter in counters if counter.parent_required]


def _find_before_refusal(served: Iterable[Counter]) -> Needs:
    """A retry of a change from before its counter was retired gets its answer."""
    return _FIND_RECEIPT if any(counter.retired for counter in served) else _NOTHING


def _get_tallies(readable: Iterable[Counter]) -> Needs:
    """Those with one item are read together, and those with shards each by itself."""
    found = list(readable)
    single = [counter for counter in found if counter.versioned]
    spread = [counter for counter in found if not counter.versioned]
    rolled_up = any(counter.soon for counter in found)
    return _on(single, "BatchGetItem") | _on(spread, "Query") | (_READ_JUDGE if rolled_up else _NOTHING)


def _get_counter(counters: Mapping[str, Counter]) -> Needs:
    served = operations.GET_COUNTER.served(counters)
    rolled_up = any(counter.soon for counter in served)
    return _on(served, "Query") | (_READ_JUDGE if rolled_up else _NOTHING)


def _count(counter: Counter) -> Needs:
    """A receipt, and an update of the tally, unless the rollup makes it."""
    return _PUT_RECEIPT | (_NOTHING if counter.soon else _on([counter], "UpdateItem"))


def _release_expired(counters: Mapping[str, Counter]) -> Needs:
    """Before a 409, and in the sweep, expired holds give back what they have taken."""
    return _PUT_RECEIPT | _on_holds(counters, "Query", "PutItem", "DeleteItem")


def _on_holds(counters: Mapping[str, Counter], *actions: str) -> Needs:
    """The actions on holds, and an update of the counters that may have some."""
    return _on_ledger({"HOLDS#": actions}) | _on(operations.RELEASE_HOLD.served(counters), "UpdateItem")


def _on(counters: Iterable[Counter], *actions: str) -> Needs:
    """The actions on the items of these counters."""
    return frozenset(Need(action, Table.COUNTS, f"{counter.prefix}#") for counter in counters for action in actions)


def _on_ledger(by_prefix: Mapping[str, Iterable[str]]) -> Needs:
    """The actions on the ledger's items, by the prefix of their partition key."""
    return frozenset(Need(action, Table.LEDGER, prefix) for prefix, actions in by_prefix.items() for action in actions)


def _those(counters: Mapping[str, Counter], which: Callable[[Counter], bool]) -> list[Counter]:
    return [counter for counter in counters.values() if which(counter)]
